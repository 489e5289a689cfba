//! Which ledgers go into the objects of the next round.
//!
//! # Invariants
//! 1. A round takes ledgers in the order of [`super::due`]: those left out before first, then by the age of what waits (T14).
//! 2. A ledger is in one object of a round: the next round goes on with it.
//! 3. An object takes ledgers until it has its target; a ledger larger than that has an object to itself and gets as much of
//!    it as fits.

use bindery_types::LedgerId;

/// Ledgers in one object: each has metadata in the footer.
pub const LEDGERS_PER_OBJECT_MAX: usize = 10_000;

/// Spreads due ledgers, each with its bytes as far as they are known, over at most `objects_max` objects of `target` bytes. It looks at no
/// more of them than there is room for.
pub fn plan(
    due: impl IntoIterator<Item = (LedgerId, u64)>,
    objects_max: usize,
    target: u64,
) -> Vec<Vec<LedgerId>> {
    let mut due = due.into_iter();
    let mut objects = Vec::new();
    while objects.len() < objects_max {
        let (mut ledgers, mut filled) = (Vec::new(), 0_u64);
        while filled < target
            && ledgers.len() < LEDGERS_PER_OBJECT_MAX
            && let Some((ledger, bytes)) = due.next()
        {
            ledgers.push(ledger);
            filled = filled.saturating_add(bytes);
        }
        if ledgers.is_empty() {
            break;
        }
        objects.push(ledgers);
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(due: &[(i64, u64)], objects_max: usize) -> Vec<Vec<i64>> {
        let due = due.iter().map(|(id, bytes)| (LedgerId::new(*id).unwrap(), *bytes));
        let objects = plan(due, objects_max, 100);
        objects.iter().map(|ledgers| ledgers.iter().map(|ledger| ledger.get()).collect()).collect()
    }

    #[test]
    fn nothing_due_is_no_object() {
        assert!(planned(&[], 8).is_empty());
    }

    #[test]
    fn an_object_is_filled_and_the_others_have_to_wait() {
        assert_eq!(planned(&[(2, 60), (1, 60), (4, 10), (3, 60)], 1), [[2, 1]]);
        assert_eq!(planned(&[(1, 1)], 0), Vec::<Vec<i64>>::new());
    }

    #[test]
    fn a_ledger_larger_than_an_object_has_one_to_itself() {
        assert_eq!(planned(&[(1, 500), (2, 500), (3, 10), (4, 10)], 3), [vec![1], vec![2], vec![3, 4]]);
    }

    /// No more is looked at than there is room for.
    #[test]
    fn a_round_goes_not_through_all_that_is_due() {
        let mut looked_at = 0;
        let due = (0..1_000_000).map(|id| {
            looked_at += 1;
            (LedgerId::new(id).unwrap(), 10)
        });
        assert_eq!(plan(due, 2, 100).len(), 2);
        assert_eq!(looked_at, 20);
    }
}
