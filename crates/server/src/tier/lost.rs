//! Ledgers whose objects are gone (invariant 7 of [`super`]).
//!
//! # Invariants
//! 1. Until a tierer has told of objects again from the first entry that could not be read to the register, it hears of what is below
//!    the entries that it has not told of. A part that does not begin at or below that entry changes nothing.
//! 2. A ledger that is not here is no ledger of these.
//!
//! # Limits     ledgers: [`LOST_MAX`]

use bindery_types::{EntryId, LedgerId};
use std::collections::BTreeMap;

/// Ledgers that are remembered; tierers do not hear of others.
const LOST_MAX: usize = 10_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// For each, the first entry that could not be read, and of which nobody has told since.
    firsts: BTreeMap<LedgerId, EntryId>,
}

impl Lost {
    pub fn is_full(&self) -> bool {
        self.firsts.len() >= LOST_MAX
    }

    pub fn has(&self, ledger: LedgerId) -> bool {
        self.firsts.contains_key(&ledger)
    }

    pub fn ledgers(&self) -> Vec<LedgerId> {
        self.firsts.keys().copied().collect()
    }

    /// Invariant 2.
    pub fn forget(&mut self, ledger: LedgerId) {
        self.firsts.remove(&ledger);
    }

    /// The entry could not be read. False: there is no room.
    pub fn note(&mut self, ledger: LedgerId, entry: EntryId) -> bool {
        if self.is_full() && !self.has(ledger) {
            return false;
        }
        let first = self.firsts.entry(ledger).or_insert(entry);
        *first = entry.min(*first);
        true
    }

    /// The register that a tierer hears that asked for it.
    pub fn asked(&self, ledger: LedgerId, register: Option<EntryId>) -> Option<EntryId> {
        match self.firsts.get(&ledger) {
            Some(first) => register.min(first.get().checked_sub(1).and_then(EntryId::new)),
            None => register,
        }
    }

    /// The register that a tierer hears that told of objects from `first` to `last`, which were taken.
    pub fn told(
        &mut self,
        ledger: LedgerId,
        (first, last): (EntryId, EntryId),
        register: Option<EntryId>,
    ) -> Option<EntryId> {
        let Some(lost) = self.firsts.get_mut(&ledger).filter(|lost| (first..=last).contains(&**lost)) else {
            return register;
        };
        match EntryId::new(last.get().saturating_add(1)).filter(|_| Some(last) < register) {
            Some(behind) => {
                *lost = behind;
                Some(last)
            }
            None => {
                self.firsts.remove(&ledger);
                register
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    fn ledger(id: i64) -> LedgerId {
        LedgerId::new(id).unwrap()
    }

    /// Invariant 1.
    #[test]
    fn a_ledger_is_lost_until_it_was_told_of_up_to_its_register() {
        let (mut lost, of, register) = (Lost::default(), ledger(7), Some(entry(99)));
        [30, 10, 50].iter().for_each(|id| assert!(lost.note(of, entry(*id))));
        let range = |first: i64, last: i64| (entry(first), entry(last));
        assert_eq!(lost.asked(of, register), Some(entry(9)));
        assert_eq!(lost.asked(ledger(8), register), register);
        // Beside the entry, and for another ledger.
        assert_eq!(lost.told(of, range(0, 9), register), register);
        assert_eq!(lost.told(of, range(11, 99), register), register);
        assert_eq!(lost.told(ledger(8), range(0, 99), register), register);
        assert_eq!(lost.asked(of, register), Some(entry(9)));
        assert_eq!(lost.told(of, range(10, 39), register), Some(entry(39)), "the rest is lost still");
        assert_eq!(lost.asked(of, register), Some(entry(39)));
        assert_eq!(lost.told(of, range(20, 70), register), Some(entry(70)));
        assert_eq!(lost.told(of, range(71, 99), register), register);
        assert_eq!((lost.asked(of, register), lost.has(of)), (register, false));
        assert!(lost.note(of, entry(0)));
        assert_eq!(lost.asked(of, register), None);
    }

    /// Invariant 2.
    #[test]
    fn ledgers_that_are_not_here_leave_room() {
        let mut lost = Lost::default();
        (0..LOST_MAX as i64).for_each(|id| assert!(lost.note(ledger(id), entry(5))));
        let new = ledger(LOST_MAX as i64);
        assert!(lost.is_full() && !lost.note(new, entry(5)) && lost.note(ledger(3), entry(4)));
        lost.ledgers()
            .into_iter()
            .filter(|ledger| ledger.get() % 2 > 0)
            .for_each(|ledger| lost.forget(ledger));
        assert!(lost.note(new, entry(5)) && lost.has(ledger(2)) && !lost.has(ledger(3)));
        assert_eq!(lost.ledgers().len(), LOST_MAX / 2 + 1);
    }
}
