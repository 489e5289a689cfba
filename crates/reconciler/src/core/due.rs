//! Which ledgers are due, in the order of a round, kept up to date with what changes of each: no event goes through all ledgers.
//!
//! # Invariants
//! 1. A ledger is in one place: it is due now, or it will be at a time, or neither.
//! 2. What is due now comes in the order of [`Rank`]: who was asked for, who was left out before, closed ledgers, the oldest lag (T14).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_types::LedgerId;

/// The place of a ledger among those that are due. The smallest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    is_not_urgent: bool,
    is_new: bool,
    is_behind_sealed: bool,
    since: Duration,
    ledger: LedgerId,
}

impl Rank {
    /// Of a ledger whose oldest entry waits since then.
    pub fn new(
        ledger: LedgerId,
        since: Duration,
        is_urgent: bool,
        was_left_out: bool,
        is_sealed: bool,
    ) -> Rank {
        let is_behind_sealed = !was_left_out && !is_sealed;
        Rank { is_not_urgent: !is_urgent, is_new: !was_left_out, is_behind_sealed, since, ledger }
    }
}

/// When a ledger is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Now(Rank),
    At(Duration),
}

/// The ledgers that are due, or will be.
#[derive(Debug, Clone, Default)]
pub(super) struct DueLedgers {
    places: BTreeMap<LedgerId, Due>,
    now: BTreeSet<Rank>,
    later: BTreeSet<(Duration, LedgerId)>,
}

impl DueLedgers {
    /// Puts a ledger into its place, or takes it out.
    pub fn set(&mut self, ledger: LedgerId, due: Option<Due>) {
        let before = match due {
            Some(due) => self.places.insert(ledger, due),
            None => self.places.remove(&ledger),
        };
        if before == due {
            return;
        }
        match before {
            Some(Due::Now(rank)) => drop(self.now.remove(&rank)),
            Some(Due::At(at)) => drop(self.later.remove(&(at, ledger))),
            None => {}
        }
        match due {
            Some(Due::Now(rank)) => drop(self.now.insert(rank)),
            Some(Due::At(at)) => drop(self.later.insert((at, ledger))),
            None => {}
        }
    }

    /// Takes out those whose time has come: each is to be put into its place again.
    pub fn take_ripe(&mut self, now: Duration) -> Vec<LedgerId> {
        let mut ripe = Vec::new();
        while let Some((_, ledger)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.set(ledger, None);
            ripe.push(ledger);
        }
        ripe
    }

    /// Those that are due, by their rank.
    pub fn iter(&self) -> impl Iterator<Item = LedgerId> + '_ {
        self.now.iter().map(|rank| rank.ledger)
    }

    /// Those that are due and were in no round's choice yet: the round had no room for them.
    pub fn new_ones(&self) -> Vec<LedgerId> {
        // New ones follow the others, among those that were asked for and among those that were not.
        let of_half = |is_not_urgent: bool| {
            let first = LedgerId::new(0).expect("ids begin with 0");
            let (since, is_behind_sealed) = (Duration::ZERO, false);
            let from = Rank { is_not_urgent, is_new: true, is_behind_sealed, since, ledger: first };
            self.now.range(from..).take_while(move |rank| rank.is_not_urgent == is_not_urgent)
        };
        of_half(false).chain(of_half(true)).map(|rank| rank.ledger).collect()
    }

    /// Whether there is one that is due.
    pub fn has_some(&self) -> bool {
        !self.now.is_empty()
    }

    /// Whether one that is due was asked for.
    pub fn is_urgent(&self) -> bool {
        self.now.first().is_some_and(|rank| !rank.is_not_urgent)
    }

    /// Whether this one is due.
    #[cfg(test)]
    pub fn contains(&self, ledger: LedgerId) -> bool {
        matches!(self.places.get(&ledger), Some(Due::Now(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(id: i64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    fn order(due: &DueLedgers) -> Vec<i64> {
        due.iter().map(LedgerId::get).collect()
    }

    fn now(id: i64, since: u64, is_urgent: bool, was_left_out: bool, is_sealed: bool) -> Option<Due> {
        Some(Due::Now(Rank::new(ledger(id), Duration::from_secs(since), is_urgent, was_left_out, is_sealed)))
    }

    #[test]
    fn the_left_out_come_first_then_sealed_then_open() {
        let mut due = DueLedgers::default();
        due.set(ledger(1), now(1, 1, false, false, false));
        due.set(ledger(2), now(2, 2, false, false, true));
        due.set(ledger(3), now(3, 3, false, true, false));
        due.set(ledger(4), now(4, 4, false, true, true));
        due.set(ledger(5), now(5, 5, false, false, true));
        assert!(!due.is_urgent());
        due.set(ledger(7), now(7, 99, true, false, true));
        assert_eq!(order(&due), [7, 3, 4, 2, 5, 1]);
        assert!(due.is_urgent() && due.has_some());
        assert_eq!(due.new_ones().iter().map(|id| id.get()).collect::<Vec<_>>(), [7, 2, 5, 1]);
        due.set(ledger(7), None);
        assert!(!due.is_urgent());
    }

    #[test]
    fn a_ledger_is_in_one_place() {
        let mut due = DueLedgers::default();
        let at = |seconds| Some(Due::At(Duration::from_secs(seconds)));
        due.set(ledger(1), at(5));
        due.set(ledger(2), at(9));
        due.set(ledger(1), at(7));
        assert_eq!(due.take_ripe(Duration::from_secs(6)), []);
        assert_eq!(due.take_ripe(Duration::from_secs(7)), [ledger(1)]);
        assert_eq!(due.take_ripe(Duration::from_secs(7)), [], "once");
        due.set(ledger(2), now(2, 1, false, false, true));
        assert_eq!((order(&due), due.take_ripe(Duration::from_secs(100))), (vec![2], vec![]));
        due.set(ledger(2), now(2, 3, false, true, true));
        assert_eq!(order(&due), [2]);
        due.set(ledger(2), None);
        assert!(!due.has_some() && due.places.is_empty() && due.later.is_empty());
    }
}
