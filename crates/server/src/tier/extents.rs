//! Where entries are that were read lately: spares a look into the local state table for each of them.
//!
//! # Invariants
//! 1. All that is known of a ledger is of one epoch: when it was removed and came back, earlier pieces do not count.
//!
//! # Limits
//! [`EXTENTS_MAX`] pieces; then it starts from none.

use bindery_types::tier::TierExtent;
use bindery_types::{EntryId, LedgerId};
use std::collections::{BTreeMap, HashMap};

/// Pieces of extents that are remembered: some 100 bytes each.
const EXTENTS_MAX: usize = 8_192;

#[derive(Debug, Default)]
struct OfLedger {
    epoch: u32,
    /// By the first entry for which it holds.
    pieces: BTreeMap<EntryId, TierExtent>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Extents {
    ledgers: HashMap<LedgerId, OfLedger>,
    count: usize,
}

impl Extents {
    /// The extent that has an entry.
    pub fn get(&self, ledger: LedgerId, epoch: u32, entry: EntryId) -> Option<TierExtent> {
        let known = self.ledgers.get(&ledger).filter(|known| known.epoch == epoch)?;
        let (_, extent) = known.pieces.range(..=entry).next_back()?;
        (entry <= extent.last).then_some(*extent)
    }

    /// Remembers that `extent` holds from `entry` on.
    pub fn put(&mut self, ledger: LedgerId, epoch: u32, entry: EntryId, extent: TierExtent) {
        if self.count >= EXTENTS_MAX {
            *self = Extents::default();
        }
        let known = self.ledgers.entry(ledger).or_default();
        if known.epoch != epoch {
            self.count -= known.pieces.len();
            *known = OfLedger { epoch, pieces: BTreeMap::new() };
        }
        // Further down in the same extent: one piece says it.
        if let Some((first, next)) = known.pieces.range(entry..).next()
            && next.object == extent.object
            && *first <= extent.last
        {
            let first = *first;
            known.pieces.remove(&first);
            self.count -= 1;
        }
        if known.pieces.insert(entry, extent).is_none() {
            self.count += 1;
        }
    }

    /// Forgets a ledger: its extents are others by now.
    pub fn forget(&mut self, ledger: LedgerId) {
        if let Some(known) = self.ledgers.remove(&ledger) {
            self.count -= known.pieces.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::tier::{ObjectId, ObjectRef};

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    fn extent(first: i64, last: i64, of: u8) -> TierExtent {
        let id = ObjectId::new(1, [of; 10]);
        let object = ObjectRef { id, length_bytes: 9, footer_offset: 1, footer_crc: 2, etag_crc: 3 };
        TierExtent { first: entry(first), last: entry(last), object }
    }

    #[test]
    fn a_piece_holds_from_where_it_was_found_and_in_its_epoch_only() {
        let (mut extents, ledger) = (Extents::default(), LedgerId::new(5).unwrap());
        extents.put(ledger, 1, entry(10), extent(0, 20, 1));
        assert_eq!(extents.get(ledger, 1, entry(9)), None);
        assert_eq!(extents.get(ledger, 1, entry(20)), Some(extent(0, 20, 1)));
        assert_eq!(extents.get(ledger, 1, entry(21)), None);
        assert_eq!(extents.get(ledger, 2, entry(10)), None, "extents invariant 1");
        // Read downwards it stays one piece.
        for id in (0..10).rev() {
            extents.put(ledger, 1, entry(id), extent(0, 20, 1));
        }
        assert_eq!((extents.count, extents.get(ledger, 1, entry(0))), (1, Some(extent(0, 20, 1))));
        extents.put(ledger, 2, entry(0), extent(0, 5, 2));
        assert_eq!((extents.count, extents.get(ledger, 1, entry(0))), (1, None), "extents invariant 1");
        extents.forget(ledger);
        assert_eq!((extents.count, extents.get(ledger, 2, entry(0))), (0, None));
        for id in 0..20_000 {
            extents.put(LedgerId::new(id).unwrap(), 1, entry(0), extent(0, 1, 1));
        }
        assert!(extents.count <= EXTENTS_MAX);
    }
}
