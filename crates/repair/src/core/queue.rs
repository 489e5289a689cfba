//! Which of the marked ledgers is repaired next.
//!
//! # Invariants
//! 1. Fewest live copies first, then the one that was marked first, then by id.
//! 2. A ledger that could not be repaired waits for a pause that grows, [`PAUSE_MAX`] at most, and holds up no other meanwhile. Its
//!    reason stays until it is repaired or no longer marked. What was only to be looked at later is looked at when another number of its
//!    copies is there.
//! 3. A ledger is given out once at a time.
//!
//! # Limits     [`LEDGERS_MAX`] ledgers; beyond them the least endangered are left out until there is room

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_types::LedgerId;

/// Ledgers that are known to be marked.
pub const LEDGERS_MAX: usize = 100_000;
/// The first pause after a failure.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// The longest while another worker has it, or is to take it.
const ELSEWHERE_PAUSE_MAX: Duration = Duration::from_secs(16);
/// The longest.
pub const PAUSE_MAX: Duration = Duration::from_secs(300);

/// By what ledgers are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    copies: usize,
    since_ms: i64,
    ledger: LedgerId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Marked {
    rank: Rank,
    not_before: Duration,
    pause: Duration,
    why: Option<String>,
    is_out: bool,
    /// It waits, and nothing failed.
    is_later: bool,
    /// More copies are there than when it was given out.
    is_better: bool,
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// The ledger is whole, gone, or no longer marked.
    Done,
    /// Another worker has it, or is to take it.
    Elsewhere,
    /// It is to be tried again after this time; that is no failure.
    Later(Duration, String),
    /// It could not be repaired now.
    Failed(String),
}

/// See the module.
#[derive(Debug, Default)]
pub struct RepairQueue {
    ledgers: BTreeMap<LedgerId, Marked>,
    order: BTreeSet<Rank>,
    left_out: u64,
}

impl RepairQueue {
    /// Whether the ledger is known.
    pub fn knows(&self, ledger: LedgerId) -> bool {
        self.ledgers.contains_key(&ledger)
    }

    /// Notes a marked ledger, and how many live copies its rarest entry has. `since_ms`: when it was marked.
    pub fn put(&mut self, ledger: LedgerId, copies: usize, since_ms: i64) {
        let rank = Rank { copies, since_ms, ledger };
        if let Some(known) = self.ledgers.get_mut(&ledger) {
            self.order.remove(&known.rank);
            if copies < known.rank.copies {
                // In greater danger than before: no pause of a better time holds.
                (known.not_before, known.pause) = (Duration::ZERO, Duration::ZERO);
            } else if copies > known.rank.copies {
                known.is_better = true;
                if known.is_later {
                    known.not_before = Duration::ZERO;
                }
            }
            known.rank = rank;
            self.order.insert(rank);
            return;
        }
        if self.ledgers.len() >= LEDGERS_MAX {
            let least = self.order.last().copied();
            let is_out = |rank: &Rank| self.ledgers.get(&rank.ledger).is_some_and(|known| known.is_out);
            match least.filter(|least| *least > rank && !is_out(least)) {
                Some(least) => self.forget(least.ledger),
                None => {
                    self.left_out += 1;
                    return;
                }
            }
            self.left_out += 1;
        }
        let marked = Marked {
            rank,
            not_before: Duration::ZERO,
            pause: Duration::ZERO,
            why: None,
            is_out: false,
            is_later: false,
            is_better: false,
        };
        self.ledgers.insert(ledger, marked);
        self.order.insert(rank);
    }

    /// Forgets ledgers that are not marked any more: all that are known and not among `marked`.
    pub fn keep(&mut self, marked: &BTreeSet<LedgerId>) {
        let gone = self.ledgers.iter().filter(|(ledger, known)| !known.is_out && !marked.contains(ledger));
        let gone: Vec<LedgerId> = gone.map(|(ledger, _)| *ledger).collect();
        gone.into_iter().for_each(|ledger| self.forget(ledger));
        self.left_out = 0;
    }

    fn forget(&mut self, ledger: LedgerId) {
        if let Some(known) = self.ledgers.remove(&ledger) {
            self.order.remove(&known.rank);
        }
    }

    /// The ledger to repair now (invariants 1 to 3).
    pub fn take(&mut self, now: Duration) -> Option<LedgerId> {
        let is_due = |rank: &&Rank| {
            self.ledgers.get(&rank.ledger).is_some_and(|known| !known.is_out && known.not_before <= now)
        };
        let ledger = self.order.iter().find(is_due)?.ledger;
        if let Some(known) = self.ledgers.get_mut(&ledger) {
            (known.is_out, known.is_better) = (true, false);
        }
        Some(ledger)
    }

    /// Takes the outcome of an attempt in.
    pub fn came(&mut self, now: Duration, ledger: LedgerId, attempt: Attempt) {
        let Some(known) = self.ledgers.get_mut(&ledger) else { return };
        known.is_out = false;
        known.is_later = matches!(attempt, Attempt::Later(..));
        match attempt {
            Attempt::Done => self.forget(ledger),
            Attempt::Elsewhere => {
                known.pause = (known.pause * 2).clamp(PAUSE_MIN, ELSEWHERE_PAUSE_MAX);
                known.not_before = now + known.pause;
                known.why = None;
            }
            Attempt::Later(pause, why) => {
                // What it waits for may have come meanwhile.
                known.not_before = if known.is_better { now } else { now + pause };
                known.why = Some(why);
            }
            Attempt::Failed(why) => {
                known.pause = (known.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                known.not_before = now + known.pause;
                known.why = Some(why);
            }
        }
    }

    /// When the next ledger may be taken; `None` when none waits.
    pub fn wake_at(&self) -> Option<Duration> {
        self.ledgers.values().filter(|known| !known.is_out).map(|known| known.not_before).min()
    }

    /// All that are known.
    pub fn ledgers(&self) -> impl Iterator<Item = LedgerId> {
        self.ledgers.keys().copied()
    }

    /// Those behind `after` that are known, `max` at most: to be ranked again, some at a time.
    pub fn ledgers_after(&self, after: Option<LedgerId>, max: usize) -> Vec<LedgerId> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.ledgers.range((from, Unbounded)).map(|(ledger, _)| *ledger).take(max).collect()
    }

    /// Ledgers that are known.
    pub fn len(&self) -> usize {
        self.ledgers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ledgers.is_empty()
    }

    /// Marked ledgers that there was no room for since the last look.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// How many have so many live copies.
    pub fn by_copies(&self) -> BTreeMap<usize, u64> {
        let mut counts = BTreeMap::new();
        for known in self.ledgers.values() {
            *counts.entry(known.rank.copies).or_insert(0) += 1;
        }
        counts
    }

    /// Ledgers that could not be repaired when they were tried last, and why: the most endangered first.
    pub fn stuck(&self) -> impl Iterator<Item = (LedgerId, &str)> {
        let known = self.order.iter().filter_map(|rank| self.ledgers.get(&rank.ledger));
        known.filter_map(|known| Some((known.rank.ledger, known.why.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(id: i64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_fewest_copies_come_first_then_the_oldest_mark() {
        let mut queue = RepairQueue::default();
        for (ledger, copies, since) in [(1, 2, 10), (2, 1, 30), (3, 1, 20), (4, 2, 5), (5, 2, 5)] {
            queue.put(id(ledger), copies, since);
        }
        let taken: Vec<i64> =
            std::iter::from_fn(|| queue.take(seconds(0))).map(|ledger| ledger.get()).collect();
        assert_eq!(taken, [3, 2, 4, 5, 1]);
        assert_eq!(queue.take(seconds(999)), None, "each is out once");
        queue.came(seconds(0), id(4), Attempt::Done);
        assert_eq!((queue.len(), queue.knows(id(4))), (4, false));
    }

    #[test]
    fn what_cannot_be_repaired_waits_ever_longer_and_holds_up_no_other() {
        let mut queue = RepairQueue::default();
        queue.put(id(1), 1, 0);
        queue.put(id(2), 2, 0);
        let mut now = seconds(0);
        assert_eq!(queue.take(now), Some(id(1)));
        queue.came(now, id(1), Attempt::Failed("no copy is left".into()));
        assert_eq!(queue.take(now), Some(id(2)));
        queue.came(now, id(2), Attempt::Done);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            assert_eq!(queue.take(now), None);
            let at = queue.wake_at().unwrap();
            pauses.push((at - now).as_secs());
            now = at;
            assert_eq!(queue.take(now), Some(id(1)));
            queue.came(now, id(1), Attempt::Failed("no copy is left".into()));
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(queue.stuck().collect::<Vec<_>>(), [(id(1), "no copy is left")]);
        queue.put(id(1), 1, 0);
        assert_eq!(queue.take(now), None, "it was known to be in this danger");
        queue.put(id(1), 0, 0);
        assert_eq!(queue.take(now), Some(id(1)), "it is in greater danger");
        queue.came(now, id(1), Attempt::Later(seconds(30), "its writer may be alive".into()));
        queue.keep(&BTreeSet::new());
        assert!(queue.is_empty() && queue.stuck().next().is_none());
    }

    #[test]
    fn what_waits_for_a_bookie_is_looked_at_when_it_is_back() {
        let mut queue = RepairQueue::default();
        queue.put(id(1), 2, 0);
        queue.put(id(2), 2, 0);
        assert_eq!((queue.take(seconds(0)), queue.take(seconds(0))), (Some(id(1)), Some(id(2))));
        queue.came(seconds(0), id(1), Attempt::Later(seconds(120), "a bookie is away".into()));
        queue.came(seconds(0), id(2), Attempt::Failed("no spare bookie".into()));
        queue.put(id(1), 2, 0);
        assert_eq!(queue.take(seconds(1)), None, "nothing changed");
        queue.put(id(1), 3, 0);
        queue.put(id(2), 3, 0);
        assert_eq!((queue.take(seconds(1)), queue.take(seconds(1))), (Some(id(1)), None));
        // Also when that is seen during the attempt.
        queue.put(id(1), 4, 0);
        queue.came(seconds(1), id(1), Attempt::Later(seconds(120), "a bookie is away".into()));
        assert_eq!(queue.take(seconds(1)), Some(id(1)));
        queue.came(seconds(1), id(1), Attempt::Later(seconds(120), "a bookie is away".into()));
        assert_eq!(queue.take(seconds(120)), Some(id(2)), "the other one is due before");
    }

    #[test]
    fn beyond_the_limit_the_least_endangered_are_left_out() {
        let mut queue = RepairQueue::default();
        for ledger in 0..LEDGERS_MAX as i64 {
            queue.put(id(ledger), 2, 0);
        }
        queue.put(id(i64::MAX), 2, 0);
        assert_eq!((queue.len(), queue.left_out(), queue.knows(id(i64::MAX))), (LEDGERS_MAX, 1, false));
        queue.put(id(i64::MAX), 1, 0);
        assert_eq!((queue.len(), queue.left_out()), (LEDGERS_MAX, 2));
        assert_eq!(queue.take(seconds(0)), Some(id(i64::MAX)));
        assert_eq!(queue.by_copies(), BTreeMap::from([(1, 1), (2, LEDGERS_MAX as u64 - 1)]));
    }
}
