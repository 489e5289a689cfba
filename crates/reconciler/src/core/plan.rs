//! Which ledgers go into the objects of the next round.
//!
//! # Invariants
//! 1. Ledgers that the last round had no room for come first, by their lag in time (T14); then sealed ones, then open ones, each
//!    by their lag in time.
//! 2. A ledger is in one object of a round: the next round goes on with it.
//! 3. An object takes ledgers until it has its target; a ledger larger than that has an object to itself and gets as much of
//!    it as fits.

use std::time::Duration;

use bindery_types::LedgerId;

/// A ledger that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The ledger.
    pub ledger: LedgerId,
    /// Bytes to be tiered, as far as they are known.
    pub bytes: u64,
    /// Since when its oldest untiered entry could be tiered.
    pub since: Duration,
    /// Whether it is closed.
    pub is_sealed: bool,
    /// Whether the last round had no room for it.
    pub was_left_out: bool,
    /// Whether somebody asked for it.
    pub is_urgent: bool,
}

impl Candidate {
    fn rank(&self) -> (bool, bool, bool, Duration, LedgerId) {
        let is_behind_sealed = !self.was_left_out && !self.is_sealed;
        (!self.is_urgent, !self.was_left_out, is_behind_sealed, self.since, self.ledger)
    }
}

/// The objects of a round.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Ledgers by object.
    pub objects: Vec<Vec<LedgerId>>,
    /// Those that are due and did not fit.
    pub left_out: Vec<LedgerId>,
}

/// Ledgers in one object: each has metadata in the footer.
pub const LEDGERS_PER_OBJECT_MAX: usize = 10_000;

/// Spreads due ledgers over at most `objects_max` objects of `target` bytes.
pub fn plan(mut due: Vec<Candidate>, objects_max: usize, target: u64) -> Plan {
    due.sort_unstable_by_key(Candidate::rank);
    let mut plan = Plan::default();
    let mut open: Option<(Vec<LedgerId>, u64)> = None;
    for candidate in due {
        if open.is_none() && plan.objects.len() < objects_max {
            open = Some((Vec::new(), 0));
        }
        let Some((ledgers, bytes)) = &mut open else {
            plan.left_out.push(candidate.ledger);
            continue;
        };
        ledgers.push(candidate.ledger);
        *bytes = bytes.saturating_add(candidate.bytes);
        if *bytes >= target || ledgers.len() >= LEDGERS_PER_OBJECT_MAX {
            plan.objects.extend(open.take().map(|(ledgers, _)| ledgers));
        }
    }
    plan.objects.extend(open.map(|(ledgers, _)| ledgers));
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(ledger: i64, bytes: u64, since: u64) -> Candidate {
        Candidate {
            ledger: LedgerId::new(ledger).unwrap(),
            bytes,
            since: Duration::from_secs(since),
            is_sealed: true,
            was_left_out: false,
            is_urgent: false,
        }
    }

    fn ids(ledgers: &[LedgerId]) -> Vec<i64> {
        ledgers.iter().map(|ledger| ledger.get()).collect()
    }

    #[test]
    fn nothing_due_is_no_object() {
        assert_eq!(plan(Vec::new(), 8, 100), Plan::default());
    }

    #[test]
    fn the_largest_lag_comes_first_and_what_does_not_fit_is_left_out() {
        let due = vec![candidate(1, 60, 5), candidate(2, 60, 3), candidate(3, 60, 9), candidate(4, 10, 7)];
        let plan = plan(due, 1, 100);
        assert_eq!(ids(&plan.objects[0]), [2, 1]);
        assert_eq!(ids(&plan.left_out), [4, 3]);
    }

    #[test]
    fn the_left_out_come_first_then_sealed_then_open() {
        let open = |mut candidate: Candidate| {
            candidate.is_sealed = false;
            candidate
        };
        let left_out = |mut candidate: Candidate| {
            candidate.was_left_out = true;
            candidate
        };
        let urgent = Candidate { is_urgent: true, ..candidate(7, 1, 99) };
        let due = vec![
            open(candidate(1, 1, 1)),
            candidate(2, 1, 2),
            open(left_out(candidate(3, 1, 3))),
            left_out(candidate(4, 1, 4)),
            candidate(5, 1, 5),
            urgent,
        ];
        assert_eq!(ids(&plan(due, 1, 100).objects[0]), [7, 3, 4, 2, 5, 1]);
    }

    #[test]
    fn a_ledger_larger_than_an_object_has_one_to_itself() {
        let due = vec![candidate(1, 500, 1), candidate(2, 500, 2), candidate(3, 10, 3), candidate(4, 10, 4)];
        let plan = plan(due, 3, 100);
        assert_eq!(
            plan.objects.iter().map(|object| ids(object)).collect::<Vec<_>>(),
            [vec![1], vec![2], vec![3, 4]]
        );
    }
}
