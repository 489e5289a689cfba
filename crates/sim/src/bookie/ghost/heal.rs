//! The copies that other bookies hold of entries acknowledged here.

use super::{Fate, Ghost, Lost, Removal};
use bindery_types::LedgerId;

impl Ghost {
    /// A removal of the ledger was asked for, or is done.
    pub fn may_go(&self, ledger: LedgerId) -> bool {
        self.removal(ledger) != Removal::No
    }

    /// The entries of a ledger that must be here and were not lost with a disk, as they must read. `is_busy`: adds are under way, and
    /// an entry with a newer one that is not answered is left out.
    pub fn copies_elsewhere(&self, ledger: LedgerId, is_busy: bool) -> Vec<Lost> {
        let Some(state) = self.ledgers.get(&ledger) else { return Vec::new() };
        let mut copies = Vec::new();
        for (entry, all) in &state.sent {
            let newest = all.iter().filter(|s| s.must_stay()).max_by_key(|s| s.submission);
            let Some(newest) = newest.filter(|newest| !newest.is_lost) else { continue };
            let is_open = all.iter().any(|s| s.fate == Fate::Open && s.submission > newest.submission);
            if !(is_busy && is_open) {
                copies.push((*entry, newest.submission, newest.lac, newest.body.clone()));
            }
        }
        copies
    }
}
