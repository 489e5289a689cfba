//! Which of the marked ledgers is repaired next.
//!
//! ```text
//! put --> fresh, by rank --take--> out --came--> waiting, by time --due--> due or left, by rank --take--> out
//!  |'-------------------- left to others first --> waiting                                                  ^
//!  '---------- its bookie cannot take the copies --> out of reach, by time --still listed--> by rank --take--'
//! ```
//!
//! # Invariants
//! 1. Fewest live copies first, then the one that was marked first. Those marked at the same time, as by one scan, come in an order of
//!    this worker's own: workers that take the same ledgers in the same order would meet at each lock.
//! 2. A ledger that could not be repaired waits for a pause that grows, [`PAUSE_MAX`] at most. Its reason stays until it is repaired or no
//!    longer marked. A ledger that only waits is tried at once when more of its copies are live.
//! 3. A ledger is given out once at a time.
//! 4. Those that could not be repaired hold up no other: while there are fresh ones, two of them do not come in a row; and when the room
//!    is used up, no more than half of it is theirs.
//! 5. What is left to other workers gives way to fresh ledgers in the same danger: for most of it the others come. While they are seen to
//!    repair what was left to them ([`OTHERS_QUIET`]), one such ledger is tried each [`LEFT_INTERVAL`], so that locks that come to nothing
//!    are few; the endangered ones are tried when they are due.
//! 6. What the own bookie cannot take (out of reach) is tried when a listing has it still and shows that the others repaired nothing of
//!    that kind, and nothing that is not known here, for [`OTHERS_QUIET`]: an attempt tells why nobody repairs it. Until then one is tried each [`REACH_INTERVAL`], the most
//!    endangered first, so that none waits for ever. Whether the others repair the endangered ones counts by itself: those do not wait for
//!    repairs of less need. What was tried, and is there a minute later, is left over: nothing holds it up any more, and another bookie gets
//!    the copies. It goes without telling of others at work, as several workers may send such copies.
//!
//! # Limits     [`LEDGERS_MAX`] ledgers; beyond them the least endangered are left out until there is room

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_io::canary::{Canaries, Canary};
use bindery_types::LedgerId;

use super::audit::Fit;

/// Ledgers that are known to be marked.
pub const LEDGERS_MAX: usize = 100_000;
/// The first pause after a failure.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// The longest while another worker has it: that may be killed.
const ELSEWHERE_PAUSE_MAX: Duration = Duration::from_secs(16);
/// How long a ledger is left to other workers whose bookies could take the copies.
const OTHERS_FIRST: Duration = Duration::from_secs(4);
/// The first pause of a ledger whose copies the own bookie cannot take.
const OUT_OF_REACH: Duration = Duration::from_secs(30);
/// A pause after which such a ledger is not left to others any more.
const LEFT_OVER: Duration = Duration::from_secs(60);
/// Other workers are at work for so long after a ledger that was left to them was repaired.
const OTHERS_QUIET: Duration = Duration::from_secs(30);
/// Time between two tries of what is left to others who are at work.
const LEFT_INTERVAL: Duration = Duration::from_secs(1);
/// The same of what is out of reach.
const REACH_INTERVAL: Duration = Duration::from_secs(300);
/// A ledger with so few live copies is endangered.
const ENDANGERED_COPIES: usize = 1;
/// The longest.
pub const PAUSE_MAX: Duration = Duration::from_secs(300);

/// By what ledgers are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    copies: usize,
    since_ms: i64,
    order: u64,
    ledger: LedgerId,
}

/// Where a ledger is in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It was not tried yet, or is in greater danger than when it was.
    Fresh,
    /// It was tried, or is left to others, until then.
    Waiting(Duration),
    /// It waited, and may be taken now.
    Due,
    /// It is being repaired.
    Out,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Marked {
    rank: Rank,
    turn: Turn,
    fit: Fit,
    pause: Duration,
    why: Option<String>,
    /// It waits, and nothing failed.
    is_later: bool,
    /// More copies are there than when it was given out.
    is_better: bool,
    /// Another worker had it when it was tried last, and may have been killed since.
    is_elsewhere: bool,
}

impl Marked {
    /// Other workers are better placed to repair it, and may still do it.
    fn is_left(&self) -> bool {
        self.fit == Fit::Others && self.why.is_none() && !self.is_elsewhere
    }

    /// The own bookie cannot take what it lacks, and those that can may still do it.
    fn is_out_of_reach(&self) -> bool {
        self.fit == Fit::Never && self.why.is_none() && self.pause < LEFT_OVER
    }

    fn is_endangered(&self) -> bool {
        self.rank.copies <= ENDANGERED_COPIES
    }

    fn is_stuck(&self) -> bool {
        self.why.is_some() && matches!(self.turn, Turn::Waiting(_) | Turn::Due)
    }
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// The ledger is whole, gone, or no longer marked.
    Done,
    /// Another worker has it.
    Elsewhere,
    /// This bookie cannot take what it lacks: another bookie's worker is to repair it.
    NotHere,
    /// It is to be tried again after this time; that is no failure.
    Later(Duration, String),
    /// It could not be repaired now.
    Failed(String),
}

/// See the module.
#[derive(Debug, Default)]
pub struct RepairQueue {
    ledgers: BTreeMap<LedgerId, Marked>,
    fresh: BTreeSet<Rank>,
    waiting: BTreeSet<(Duration, LedgerId)>,
    due: BTreeSet<Rank>,
    /// As `due`, of those that are left to other workers.
    left: BTreeSet<Rank>,
    /// As `waiting` and `due`, of those that are out of reach.
    beyond: BTreeSet<(Duration, LedgerId)>,
    beyond_due: BTreeSet<Rank>,
    /// When marks were listed last.
    listed_at: Duration,
    /// Until then other workers are at work on what was left to them.
    others_until: Duration,
    /// The same of endangered ledgers.
    others_endangered_until: Duration,
    /// While they are: when one of `left`, and one of `beyond_due`, may be tried.
    left_at: Duration,
    beyond_at: Duration,
    /// Of `waiting` and `due`, those that could not be repaired; others are left to other workers for a while.
    stuck: usize,
    /// Whether the last one that was given out had waited.
    was_retry: bool,
    left_out: u64,
    salt: u64,
    canaries: Canaries,
}

impl RepairQueue {
    /// Empty; `salt` differs from worker to worker.
    pub fn new(salt: u64) -> RepairQueue {
        RepairQueue { salt, ..RepairQueue::default() }
    }

    /// The same with a planted bug, for the model.
    pub fn with_canaries(self, canaries: Canaries) -> RepairQueue {
        RepairQueue { canaries, ..self }
    }

    /// Whether the ledger is known.
    pub fn knows(&self, ledger: LedgerId) -> bool {
        self.ledgers.contains_key(&ledger)
    }

    /// Notes a marked ledger, and how many live copies its rarest entry has. `since_ms`: when it was marked. `fit`: whose it is to repair;
    /// one that was not known waits for the others if these are better placed.
    pub fn put(&mut self, now: Duration, ledger: LedgerId, copies: usize, since_ms: i64, fit: Fit) {
        let is_ignored = self.canaries.has(Canary::M61DangerIgnored);
        let copies = if is_ignored { usize::MAX - copies } else { copies };
        let rank = Rank { copies, since_ms, order: order(self.salt, ledger), ledger };
        if let Some(mut known) = self.remove(ledger) {
            let was_left = known.fit != Fit::Ours
                && matches!(known.turn, Turn::Waiting(_) | Turn::Due)
                && known.pause.is_zero()
                && known.why.is_none();
            known.fit = fit;
            if copies < known.rank.copies {
                // In greater danger than before: no pause of a better time holds.
                known.pause = Duration::ZERO;
                known.turn = match known.turn {
                    Turn::Out => Turn::Out,
                    _ if known.is_out_of_reach() => first_turn(now, fit),
                    _ => Turn::Fresh,
                };
            } else if copies > known.rank.copies {
                known.is_better = true;
                if known.is_later && known.turn != Turn::Out {
                    known.turn = Turn::Due;
                }
            }
            if was_left && fit == Fit::Ours {
                // It was left to others, and is for this worker now.
                known.turn = Turn::Fresh;
            }
            known.rank = rank;
            self.enter(known);
            return;
        }
        if self.ledgers.len() >= LEDGERS_MAX {
            self.left_out += 1;
            match self.yields(rank, fit) {
                Some(other) => drop(self.remove(other)),
                None => return,
            }
        }
        let (turn, pause, why) = (first_turn(now, fit), Duration::ZERO, None);
        let (is_later, is_better, is_elsewhere) = (false, false, false);
        self.enter(Marked { rank, turn, fit, pause, why, is_later, is_better, is_elsewhere });
    }

    /// The ledger that makes room for a new one (invariant 4).
    fn yields(&self, rank: Rank, fit: Fit) -> Option<LedgerId> {
        if self.is_clogged() {
            // The one that is tried again last: when it comes back it is behind others.
            let last = self.waiting.last().map(|(_, ledger)| *ledger);
            return last.or_else(|| self.due.last().map(|rank| rank.ledger));
        }
        // What this worker can repair comes before what it cannot.
        let beyond = self.beyond.last().map(|(_, ledger)| *ledger);
        let beyond = beyond.or_else(|| self.beyond_due.last().map(|rank| rank.ledger));
        let fresh = self.fresh.last().filter(|least| **least > rank).map(|least| least.ledger);
        if fit == Fit::Never { fresh } else { beyond.or(fresh) }
    }

    fn enter(&mut self, marked: Marked) {
        let (rank, is_beyond) = (marked.rank, marked.is_out_of_reach());
        self.stuck += usize::from(marked.is_stuck());
        match marked.turn {
            Turn::Fresh => drop(self.fresh.insert(rank)),
            Turn::Waiting(until) if is_beyond => drop(self.beyond.insert((until, rank.ledger))),
            Turn::Waiting(until) => drop(self.waiting.insert((until, rank.ledger))),
            Turn::Due if is_beyond => drop(self.beyond_due.insert(rank)),
            Turn::Due if marked.is_left() => drop(self.left.insert(rank)),
            Turn::Due => drop(self.due.insert(rank)),
            Turn::Out => {}
        }
        self.ledgers.insert(rank.ledger, marked);
    }

    fn remove(&mut self, ledger: LedgerId) -> Option<Marked> {
        let marked = self.ledgers.remove(&ledger)?;
        self.stuck -= usize::from(marked.is_stuck());
        match marked.turn {
            Turn::Fresh => drop(self.fresh.remove(&marked.rank)),
            Turn::Waiting(until) if marked.is_out_of_reach() => drop(self.beyond.remove(&(until, ledger))),
            Turn::Waiting(until) => drop(self.waiting.remove(&(until, ledger))),
            Turn::Due if marked.is_out_of_reach() => drop(self.beyond_due.remove(&marked.rank)),
            Turn::Due if marked.is_left() => drop(self.left.remove(&marked.rank)),
            Turn::Due => drop(self.due.remove(&marked.rank)),
            Turn::Out => {}
        }
        Some(marked)
    }

    /// Takes a listing in: forgets ledgers that are not marked any more, those known, with ids above `after` and up to `upto`, and not among
    /// `marked`.
    pub fn keep(
        &mut self,
        now: Duration,
        marked: &BTreeSet<LedgerId>,
        after: Option<LedgerId>,
        upto: Option<LedgerId>,
    ) {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let range = (after.map_or(Unbounded, Excluded), upto.map_or(Unbounded, Included));
        let gone = self.ledgers.range(range);
        let gone = gone.filter(|(ledger, known)| known.turn != Turn::Out && !marked.contains(ledger));
        let gone: Vec<LedgerId> = gone.map(|(ledger, _)| *ledger).collect();
        for ledger in gone {
            let Some(known) = self.remove(ledger) else { continue };
            if (known.is_left() || known.is_out_of_reach()) && known.turn != Turn::Fresh {
                self.others_work(now, known.is_endangered());
            }
        }
        self.listed_at = now;
        while let Some((until, ledger)) = self.beyond.first().copied()
            && until <= now
        {
            self.turn_to(ledger, Turn::Due);
        }
        self.left_out = 0;
    }

    /// The listing that was taken in last shows that others repaired ledgers that are not known here.
    pub fn on_others_repaired(&mut self, now: Duration) {
        // Their danger is not known either. Where all that is known is endangered, they are taken to be.
        self.others_work(now, self.ledgers.values().all(Marked::is_endangered));
    }

    fn others_work(&mut self, now: Duration, on_endangered: bool) {
        self.others_until = now + OTHERS_QUIET;
        if on_endangered {
            self.others_endangered_until = self.others_until;
        }
    }

    /// Whether more than half of the room is used by ledgers that could not be repaired when they were tried last.
    pub fn is_clogged(&self) -> bool {
        self.stuck > LEDGERS_MAX / 2
    }

    fn turn_to(&mut self, ledger: LedgerId, turn: Turn) {
        if let Some(known) = self.remove(ledger) {
            self.enter(Marked { turn, ..known });
        }
    }

    /// The ledger to repair now (invariants 1 to 6).
    pub fn take(&mut self, now: Duration) -> Option<LedgerId> {
        while let Some((until, ledger)) = self.waiting.first().copied()
            && until <= now
        {
            self.turn_to(ledger, Turn::Due);
        }
        let (fresh, due) = (self.fresh.first(), self.due.first());
        let yields = |rank: &&Rank| fresh.is_none_or(|fresh| rank.copies < fresh.copies);
        let left = self.left.first().filter(yields).filter(|left| self.left_after(left) <= now);
        let beyond = self.beyond_due.first().filter(yields).filter(|rank| self.beyond_after(rank) <= now);
        let tried = due.into_iter().chain(left).chain(beyond).min();
        let is_retry = match (fresh, tried) {
            (None, None) => return None,
            (Some(fresh), Some(tried)) => tried < fresh && !self.was_retry,
            (fresh, _) => fresh.is_none(),
        };
        let ledger = if is_retry { tried } else { fresh }?.ledger;
        self.was_retry = is_retry;
        if let Some(known) = self.remove(ledger) {
            if known.turn == Turn::Due && known.is_left() {
                self.left_at = now + LEFT_INTERVAL;
            }
            if known.turn == Turn::Due && known.is_out_of_reach() {
                self.beyond_at = now + REACH_INTERVAL;
            }
            self.enter(Marked { turn: Turn::Out, is_better: false, ..known });
        }
        Some(ledger)
    }

    /// When the first of `left` may be tried (invariant 5).
    fn left_after(&self, left: &Rank) -> Duration {
        if left.copies <= ENDANGERED_COPIES { Duration::ZERO } else { self.left_at.min(self.others_until) }
    }

    /// When the first of `beyond_due` may be tried (invariant 6).
    fn beyond_after(&self, rank: &Rank) -> Duration {
        let is_endangered = rank.copies <= ENDANGERED_COPIES;
        let until = if is_endangered { self.others_endangered_until } else { self.others_until };
        if until <= self.listed_at { Duration::ZERO } else { self.beyond_at }
    }

    /// Takes the outcome of an attempt in.
    pub fn came(&mut self, now: Duration, ledger: LedgerId, attempt: Attempt) {
        let Some(mut known) = self.remove(ledger) else { return };
        let mut wait_doubled = |max| {
            known.pause = (known.pause * 2).clamp(PAUSE_MIN, max);
            known.pause
        };
        known.is_later = matches!(attempt, Attempt::Later(..));
        known.is_elsewhere = attempt == Attempt::Elsewhere;
        let (pause, why) = match attempt {
            Attempt::Done => return,
            Attempt::Elsewhere => (wait_doubled(ELSEWHERE_PAUSE_MAX), None),
            Attempt::NotHere => {
                // Where that was known before, it has waited for so long already.
                let before = if known.fit == Fit::Never { OUT_OF_REACH } else { Duration::ZERO };
                known.pause = (known.pause.max(before) * 2).clamp(OUT_OF_REACH, PAUSE_MAX);
                known.fit = Fit::Never;
                (known.pause, None)
            }
            // The bookie it waits for may have returned during the attempt.
            Attempt::Later(pause, why) => (if known.is_better { Duration::ZERO } else { pause }, Some(why)),
            Attempt::Failed(why) => (wait_doubled(PAUSE_MAX), Some(why)),
        };
        (known.turn, known.why) = (Turn::Waiting(now + pause), why);
        self.enter(known);
    }

    /// Live copies of the most endangered ledger that may be taken now for the first time; `None` when there is none.
    pub fn next_copies(&self) -> Option<usize> {
        self.fresh.first().map(|rank| rank.copies)
    }

    /// When the next ledger may be taken; `None` when none waits.
    pub fn wake_at(&self) -> Option<Duration> {
        if !self.fresh.is_empty() || !self.due.is_empty() {
            return Some(Duration::ZERO);
        }
        let left = self.left.first().map(|left| self.left_after(left));
        // Those of `beyond` become due with a listing.
        let beyond = self.beyond_due.first().map(|rank| self.beyond_after(rank));
        let waiting = self.waiting.first().map(|(until, _)| *until);
        left.into_iter().chain(beyond).chain(waiting).min()
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

    /// Whether a ledger was left to the workers of other bookies for so long that none of them seems to take it: bookies whose repair is
    /// off have none.
    pub fn is_left_over(&self, ledger: LedgerId) -> bool {
        self.ledgers.get(&ledger).is_some_and(|known| known.why.is_none() && known.pause >= LEFT_OVER)
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
        let stuck = self.ledgers.values().filter_map(|known| Some((known.rank, known.why.as_deref()?)));
        let mut stuck: Vec<(Rank, &str)> = stuck.collect();
        stuck.sort_unstable_by_key(|(rank, _)| *rank);
        stuck.into_iter().map(|(rank, why)| (rank.ledger, why))
    }

    /// How many these are.
    pub fn stuck_count(&self) -> u64 {
        self.ledgers.values().filter(|known| known.why.is_some()).count() as u64
    }

    /// Ledgers that were marked before this time, in milliseconds since the epoch. Those whose marks say no time do not count.
    pub fn marked_before(&self, ms: i64) -> u64 {
        let is_before = |known: &&Marked| known.rank.since_ms > 0 && known.rank.since_ms < ms;
        self.ledgers.values().filter(is_before).count() as u64
    }
}

/// Where a ledger begins that is for this worker, or for others.
fn first_turn(now: Duration, fit: Fit) -> Turn {
    match fit {
        Fit::Ours => Turn::Fresh,
        Fit::Others => Turn::Waiting(now + OTHERS_FIRST),
        Fit::Never => Turn::Waiting(now + OUT_OF_REACH),
    }
}

/// Where a ledger comes among those of the same danger and time: by id where there is no salt, else in an order that seems random.
fn order(salt: u64, ledger: LedgerId) -> u64 {
    let id = ledger.get().unsigned_abs();
    if salt == 0 {
        return id;
    }
    // The finalizer of SplitMix64.
    let mixed = (id ^ salt).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
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
            queue.put(seconds(0), id(ledger), copies, since, Fit::Ours);
        }
        let taken: Vec<i64> =
            std::iter::from_fn(|| queue.take(seconds(0))).map(|ledger| ledger.get()).collect();
        assert_eq!(taken, [3, 2, 4, 5, 1]);
        assert_eq!(queue.take(seconds(999)), None, "each is out once");
        queue.came(seconds(0), id(4), Attempt::Done);
        assert_eq!((queue.len(), queue.knows(id(4))), (4, false));
    }

    #[test]
    fn workers_take_ledgers_of_one_scan_in_orders_of_their_own() {
        let taken = |salt| -> Vec<i64> {
            let mut queue = RepairQueue::new(salt);
            for ledger in 0..50 {
                queue.put(seconds(0), id(ledger), 2, 7, Fit::Ours);
            }
            queue.put(seconds(0), id(99), 1, 8, Fit::Ours);
            std::iter::from_fn(|| queue.take(seconds(0))).map(|ledger| ledger.get()).collect()
        };
        let (one, two) = (taken(1), taken(2));
        assert_eq!((one[0], two[0]), (99, 99), "danger comes first");
        let same = one[1..].iter().zip(&two[1..]).filter(|(one, two)| one == two).count();
        assert!(same < 10, "{one:?} and {two:?}");
        let mut sorted = one;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).chain([99]).collect::<Vec<_>>());
    }

    #[test]
    fn a_ledger_that_another_worker_had_comes_in_turns_with_fresh_ones() {
        let mut queue = RepairQueue::default();
        queue.put(seconds(0), id(1), 1, 0, Fit::Ours);
        assert_eq!(queue.take(seconds(0)), Some(id(1)));
        queue.came(seconds(0), id(1), Attempt::Elsewhere);
        for ledger in 2..6 {
            queue.put(seconds(0), id(ledger), 1, 9, Fit::Ours);
        }
        // That worker may have been killed since.
        assert_eq!(queue.take(seconds(60)), Some(id(1)));
        queue.came(seconds(60), id(1), Attempt::NotHere);
        queue.keep(seconds(999), &(1..6).map(id).collect(), None, None);
        for ledger in 2..6 {
            assert_eq!(
                queue.take(seconds(999)),
                Some(id(ledger)),
                "others are better placed for the first one"
            );
        }
        assert_eq!(queue.take(seconds(999)), Some(id(1)));
    }

    #[test]
    fn what_others_are_to_repair_waits_for_them() {
        let mut queue = RepairQueue::default();
        queue.put(seconds(0), id(1), 1, 0, Fit::Others);
        queue.put(seconds(0), id(2), 2, 0, Fit::Ours);
        assert_eq!(queue.take(seconds(0)), Some(id(2)));
        queue.put(seconds(3), id(1), 1, 0, Fit::Others);
        assert_eq!(queue.take(seconds(3)), None);
        assert_eq!(queue.take(seconds(4)), Some(id(1)), "the first time counts");
        queue.put(seconds(4), id(3), 1, 0, Fit::Others);
        queue.put(seconds(4), id(4), 1, 0, Fit::Never);
        for ledger in [3, 4] {
            queue.put(seconds(4), id(ledger), 1, 0, Fit::Ours);
            assert_eq!(queue.take(seconds(4)), Some(id(ledger)), "it is for this worker now");
        }
    }

    #[test]
    fn what_no_other_worker_takes_is_tried_and_then_sent_to_another_bookie() {
        let mut queue = RepairQueue::default();
        queue.put(seconds(0), id(1), 2, 0, Fit::Never);
        queue.put(seconds(0), id(2), 2, 0, Fit::Ours);
        assert_eq!(queue.take(seconds(0)), Some(id(2)));
        // The placement policy wants it elsewhere.
        queue.came(seconds(0), id(2), Attempt::NotHere);
        let mut taken = Vec::new();
        let marked: BTreeSet<LedgerId> = [1, 2].map(id).into();
        for now in 1..200 {
            queue.keep(seconds(now), &marked, None, None);
            while let Some(ledger) = queue.take(seconds(now)) {
                taken.push((now, ledger.get(), queue.is_left_over(ledger)));
                queue.came(seconds(now), ledger, Attempt::NotHere);
            }
        }
        assert_eq!(taken, [(30, 1, false), (30, 2, false), (90, 1, true), (90, 2, true)]);
        // A worker that has its lock may be killed, and one that fails says why.
        queue.keep(seconds(210), &marked, None, None);
        assert_eq!(queue.take(seconds(210)), Some(id(1)));
        queue.came(seconds(210), id(1), Attempt::Elsewhere);
        queue.keep(seconds(226), &marked, None, None);
        assert_eq!((queue.take(seconds(226)), queue.take(seconds(226))), (Some(id(1)), Some(id(2))));
        queue.came(seconds(226), id(1), Attempt::Failed("no spare bookie".into()));
        assert_eq!(queue.take(seconds(258)), Some(id(1)), "no listing is waited for");
    }

    /// Listings each second, of which each has one mark less until `works_until`, as the only bookie that takes copies repairs them.
    fn attempts(copies: usize, works_until: u64, until: u64) -> Vec<(u64, i64)> {
        let mut queue = RepairQueue::default();
        for ledger in 0..2000 {
            queue.put(seconds(0), id(ledger), copies, 0, Fit::Never);
        }
        let mut attempts = Vec::new();
        for now in 1..until {
            let marked = (now.min(works_until) as i64..2000).map(id).collect();
            queue.keep(seconds(now), &marked, None, None);
            for now in [now * 1000, now * 1000 + 990].map(Duration::from_millis) {
                while let Some(ledger) = queue.take(now) {
                    attempts.push((now.as_secs(), ledger.get()));
                    queue.came(now, ledger, Attempt::NotHere);
                }
            }
        }
        attempts
    }

    #[test]
    fn what_is_out_of_reach_is_left_alone_while_others_repair_it() {
        for copies in [1, 2] {
            let tried: Vec<u64> = attempts(copies, 1900, 1900).into_iter().map(|(now, _)| now).collect();
            assert_eq!(
                tried,
                [30, 330, 630, 930, 1230, 1530, 1830],
                "one at a time, so that none waits for ever"
            );
            let tried = attempts(copies, 1900, 1990);
            let at_once = tried.iter().filter(|(now, _)| *now == 1930).count();
            assert_eq!(at_once, 100, "nothing went on for half a minute");
        }
    }

    #[test]
    fn an_endangered_ledger_waits_for_no_repairs_of_less_need() {
        let mut queue = RepairQueue::default();
        for ledger in 0..100 {
            queue.put(seconds(0), id(ledger), 2, 0, Fit::Never);
        }
        for ledger in 100..103 {
            queue.put(seconds(0), id(ledger), 1, 0, Fit::Never);
        }
        let mut taken = Vec::new();
        for now in 1..60 {
            queue.keep(seconds(now), &(now as i64..103).map(id).collect(), None, None);
            while let Some(ledger) = queue.take(seconds(now)) {
                taken.push((now, ledger.get()));
                queue.came(seconds(now), ledger, Attempt::NotHere);
            }
        }
        assert_eq!(taken, [(30, 100), (30, 101), (30, 102)]);
    }

    #[test]
    fn repairs_of_ledgers_that_are_not_known_count_for_the_endangered_where_all_are() {
        for (copies_of_last, is_tried) in [(1, false), (2, true)] {
            let mut queue = RepairQueue::default();
            queue.put(seconds(0), id(1), 1, 0, Fit::Never);
            queue.put(seconds(0), id(2), 1, 0, Fit::Never);
            queue.put(seconds(0), id(3), copies_of_last, 0, Fit::Never);
            queue.keep(seconds(40), &(1..4).map(id).collect(), None, None);
            queue.on_others_repaired(seconds(40));
            assert_eq!(queue.take(seconds(40)), Some(id(1)));
            assert_eq!(queue.take(seconds(40)).is_some(), is_tried);
            assert_eq!(queue.take(seconds(40)), None, "others are at work");
        }
    }

    #[test]
    fn only_a_listing_shows_that_nothing_went_on() {
        let mut queue = RepairQueue::default();
        queue.put(seconds(0), id(1), 2, 0, Fit::Never);
        queue.put(seconds(0), id(2), 2, 0, Fit::Never);
        queue.put(seconds(0), id(3), 2, 0, Fit::Never);
        assert_eq!(queue.take(seconds(50)), None, "it may be repaired by now");
        queue.keep(seconds(60), &[2, 3].map(id).into(), None, None);
        assert_eq!((queue.take(seconds(60)), queue.take(seconds(61))), (Some(id(2)), None));
        assert_eq!(queue.take(seconds(95)), None, "the last listing was one of progress");
        queue.keep(seconds(96), &[2, 3].map(id).into(), None, None);
        assert_eq!(queue.take(seconds(96)), Some(id(3)));
    }

    #[test]
    fn what_is_out_of_reach_makes_room() {
        let mut queue = RepairQueue::default();
        for ledger in 0..LEDGERS_MAX as i64 {
            queue.put(seconds(0), id(ledger), 1, 0, Fit::Never);
        }
        queue.put(seconds(0), id(i64::MAX - 1), 1, 0, Fit::Never);
        queue.put(seconds(0), id(i64::MAX), 2, 0, Fit::Ours);
        assert_eq!((queue.len(), queue.knows(id(i64::MAX - 1))), (LEDGERS_MAX, false));
        assert_eq!(queue.take(seconds(0)), Some(id(i64::MAX)));
    }

    #[test]
    fn what_is_left_to_others_gives_way_to_fresh_ledgers_in_the_same_danger() {
        let mut queue = RepairQueue::default();
        queue.put(seconds(0), id(1), 2, 0, Fit::Others);
        queue.put(seconds(0), id(2), 1, 0, Fit::Others);
        for ledger in 10..13 {
            queue.put(seconds(0), id(ledger), 2, 5, Fit::Ours);
        }
        let taken: Vec<i64> =
            std::iter::from_fn(|| queue.take(seconds(4))).map(|ledger| ledger.get()).collect();
        assert_eq!(taken, [2, 10, 11, 12, 1], "the endangered one, and then all that are for this worker");
    }

    #[test]
    fn while_others_repair_what_is_left_to_them_one_is_tried_each_second() {
        let mut queue = RepairQueue::default();
        for ledger in 1..10 {
            queue.put(seconds(0), id(ledger), 2, 0, Fit::Others);
        }
        let marked: BTreeSet<LedgerId> = (2..10).map(id).collect();
        queue.keep(seconds(5), &marked, None, None);
        queue.put(seconds(0), id(20), 1, 0, Fit::Others);
        assert_eq!(queue.take(seconds(5)), Some(id(20)), "an endangered one waits for no other worker");
        queue.came(seconds(5), id(20), Attempt::Done);
        for (now, ledger) in [(6, 2), (7, 3), (8, 4)] {
            assert_eq!(queue.wake_at(), Some(seconds(now)));
            assert_eq!(queue.take(seconds(now)), Some(id(ledger)));
            assert_eq!(queue.take(seconds(now)), None, "the others are at work");
            queue.came(seconds(now), id(ledger), Attempt::Done);
        }
        let rest: Vec<i64> =
            std::iter::from_fn(|| queue.take(seconds(35))).map(|ledger| ledger.get()).collect();
        assert_eq!(rest, [5, 6, 7, 8, 9], "the others were quiet for half a minute");
    }

    #[test]
    fn what_cannot_be_repaired_waits_ever_longer_and_holds_up_no_other() {
        let mut queue = RepairQueue::default();
        queue.put(seconds(0), id(1), 1, 0, Fit::Ours);
        queue.put(seconds(0), id(2), 2, 0, Fit::Ours);
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
        queue.put(seconds(0), id(1), 1, 0, Fit::Ours);
        assert_eq!(queue.take(now), None, "it was known to be in this danger");
        queue.put(seconds(0), id(1), 0, 0, Fit::Ours);
        assert_eq!(queue.take(now), Some(id(1)), "it is in greater danger");
        queue.came(now, id(1), Attempt::Later(seconds(30), "its writer may be alive".into()));
        queue.keep(seconds(0), &BTreeSet::new(), None, None);
        assert!(queue.is_empty() && queue.stuck().next().is_none());
    }

    #[test]
    fn of_those_that_were_tried_one_comes_between_two_fresh_ones() {
        let mut queue = RepairQueue::default();
        for ledger in 0..10 {
            queue.put(seconds(0), id(ledger), 0, 0, Fit::Ours);
            assert_eq!(queue.take(seconds(0)), Some(id(ledger)));
            queue.came(seconds(0), id(ledger), Attempt::Failed("no copy is left".into()));
        }
        for ledger in 10..14 {
            queue.put(seconds(0), id(ledger), 2, 0, Fit::Ours);
        }
        // All of the first ten are due, and have fewer copies.
        let taken: Vec<i64> =
            std::iter::from_fn(|| queue.take(seconds(2))).map(|ledger| ledger.get()).collect();
        assert_eq!(taken, [0, 10, 1, 11, 2, 12, 3, 13, 4, 5, 6, 7, 8, 9]);
        queue.came(seconds(2), id(3), Attempt::Later(seconds(30), "its writer may be alive".into()));
        assert_eq!(queue.wake_at(), Some(seconds(32)));
        assert_eq!(queue.marked_before(0), 0, "no mark said since when");
        queue.put(seconds(0), id(20), 1, 1000, Fit::Ours);
        assert_eq!((queue.marked_before(1000), queue.marked_before(1001)), (0, 1));
    }

    #[test]
    fn those_that_cannot_be_repaired_leave_half_of_the_room_to_others() {
        let mut queue = RepairQueue::default();
        for ledger in 0..LEDGERS_MAX as i64 {
            queue.put(seconds(0), id(ledger), 0, 0, Fit::Ours);
            let taken = queue.take(seconds(0)).unwrap();
            queue.came(seconds(0), taken, Attempt::Failed("no copy is left".into()));
        }
        assert!(queue.is_clogged() && queue.take(seconds(1)).is_none());
        let beyond = LEDGERS_MAX as i64..2 * LEDGERS_MAX as i64;
        for ledger in beyond.clone() {
            queue.put(seconds(0), id(ledger), 2, 0, Fit::Ours);
        }
        assert_eq!((queue.len(), queue.left_out()), (LEDGERS_MAX, LEDGERS_MAX as u64));
        let known = beyond.filter(|ledger| queue.knows(id(*ledger))).count();
        assert_eq!(known, LEDGERS_MAX / 2);
        assert_eq!(queue.take(seconds(1)), Some(id(LEDGERS_MAX as i64)));
        // A part of the ids was looked at: the others stay.
        queue.keep(seconds(1), &BTreeSet::new(), Some(id(9)), Some(id(LEDGERS_MAX as i64)));
        assert!(queue.knows(id(9)) && !queue.knows(id(10)));
        assert!(queue.knows(id(LEDGERS_MAX as i64)), "it is under way");
        assert!(queue.knows(id(LEDGERS_MAX as i64 + 1)));
    }

    #[test]
    fn what_waits_for_a_bookie_is_looked_at_when_it_is_back() {
        let mut queue = RepairQueue::default();
        queue.put(seconds(0), id(1), 2, 0, Fit::Ours);
        queue.put(seconds(0), id(2), 2, 0, Fit::Ours);
        assert_eq!((queue.take(seconds(0)), queue.take(seconds(0))), (Some(id(1)), Some(id(2))));
        queue.came(seconds(0), id(1), Attempt::Later(seconds(120), "a bookie is away".into()));
        queue.came(seconds(0), id(2), Attempt::Failed("no spare bookie".into()));
        queue.put(seconds(0), id(1), 2, 0, Fit::Ours);
        assert_eq!(queue.take(seconds(1)), None, "nothing changed");
        queue.put(seconds(0), id(1), 3, 0, Fit::Ours);
        queue.put(seconds(0), id(2), 3, 0, Fit::Ours);
        assert_eq!((queue.take(seconds(1)), queue.take(seconds(1))), (Some(id(1)), None));
        // Also when that is seen during the attempt.
        queue.put(seconds(0), id(1), 4, 0, Fit::Ours);
        queue.came(seconds(1), id(1), Attempt::Later(seconds(120), "a bookie is away".into()));
        assert_eq!(queue.take(seconds(1)), Some(id(1)));
        queue.came(seconds(1), id(1), Attempt::Later(seconds(120), "a bookie is away".into()));
        assert_eq!(queue.take(seconds(120)), Some(id(2)), "the other one is due before");
    }

    #[test]
    fn what_is_left_to_others_is_not_stuck() {
        let mut queue = RepairQueue::default();
        for ledger in 0..LEDGERS_MAX as i64 {
            queue.put(seconds(0), id(ledger), 2, 0, Fit::Others);
        }
        assert!(!queue.is_clogged() && queue.take(seconds(3)).is_none());
        assert_eq!(queue.take(seconds(4)), Some(id(0)));
        assert_eq!(queue.stuck_count(), 0);
    }

    #[test]
    fn beyond_the_limit_the_least_endangered_are_left_out() {
        let mut queue = RepairQueue::default();
        for ledger in 0..LEDGERS_MAX as i64 {
            queue.put(seconds(0), id(ledger), 2, 0, Fit::Ours);
        }
        queue.put(seconds(0), id(i64::MAX), 2, 0, Fit::Ours);
        assert_eq!((queue.len(), queue.left_out(), queue.knows(id(i64::MAX))), (LEDGERS_MAX, 1, false));
        queue.put(seconds(0), id(i64::MAX), 1, 0, Fit::Ours);
        assert_eq!((queue.len(), queue.left_out()), (LEDGERS_MAX, 2));
        assert_eq!(queue.take(seconds(0)), Some(id(i64::MAX)));
        assert_eq!(queue.by_copies(), BTreeMap::from([(1, 1), (2, LEDGERS_MAX as u64 - 1)]));
    }
}
