//! A log whose extents stay on disk: the little in memory that finds them in its footer.
//!
//! # Data flow
//! ```text
//! extents in memory -> Fence::of -> dropped;   look-up: fence -> one block of the footer (block cache) -> extent
//! ```
//!
//! # Invariants
//! 1. The fence knows the checksum of each footer block, from extents that were verified: a block that was read again is
//!    used only if it is the same (IB8).
//! 2. The filter has every ledger of the log: that it lacks one proves that the log has no run of it. One in some 70,000
//!    ledgers that are not there seems to be, which costs a read, and fails with the log's disk: so few that a dead disk
//!    full of paged logs takes next to no ledgers of other disks with it.
//! 3. Runs of a log do not overlap and ascend, so the run that may hold an entry is in the block that the fence names.
//!
//! # Limits
//! In memory: 20 bytes for each 51 extents, and 3 bytes for each ledger.

use crate::Patience;
use crate::codec::crc32c;
use crate::entry_log::{FOOTER_BLOCK_EXTENTS, waited};
use crate::{EntryLog, Extent, Generation, ReadError, TryReadError};
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bits of the filter for each ledger, and how many of them a ledger sets.
const FILTER_BITS: u64 = 24;
const FILTER_HASHES: u64 = 12;

/// What is kept of a log's footer.
#[derive(Debug)]
pub(crate) struct Fence {
    /// Ledger and first entry of the first extent of each footer block.
    firsts: Box<[(LedgerId, EntryId)]>,
    /// CRC32C of each footer block.
    checksums: Box<[u32]>,
    filter: Box<[u64]>,
    last_ledger: LedgerId,
    extents: usize,
    /// Looked at since the clock came by.
    pub(crate) was_used: AtomicBool,
}

fn mix(ledger: LedgerId) -> u64 {
    let mut hash = (ledger.get() as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

/// The bits of a ledger in a filter of `words` words.
fn bits_of(ledger: LedgerId, words: usize) -> impl Iterator<Item = (usize, u64)> {
    let hash = mix(ledger);
    let step = (hash >> 32) | 1;
    (0..FILTER_HASHES).map(move |i| {
        let bit = hash.wrapping_add(i.wrapping_mul(step)) % (words as u64 * 64);
        ((bit / 64) as usize, 1 << (bit % 64))
    })
}

impl Fence {
    /// The fence of these extents: all of a log, ascending. `None` for a log without any.
    pub(crate) fn of(extents: &[Extent]) -> Option<Fence> {
        let last_ledger = extents.last()?.ledger;
        let blocks = extents.chunks(FOOTER_BLOCK_EXTENTS);
        let mut bytes = Vec::new();
        let checksum = |block: &[Extent]| {
            bytes.clear();
            block.iter().for_each(|extent| extent.encode(&mut bytes));
            crc32c(&[&bytes])
        };
        let ledgers = 1 + extents.windows(2).filter(|pair| pair[0].ledger != pair[1].ledger).count();
        let mut filter = vec![0; (ledgers as u64 * FILTER_BITS).div_ceil(64) as usize].into_boxed_slice();
        for extent in extents {
            for (word, bit) in bits_of(extent.ledger, filter.len()) {
                filter[word] |= bit;
            }
        }
        Some(Fence {
            firsts: blocks.clone().map(|block| (block[0].ledger, block[0].first)).collect(),
            checksums: blocks.map(checksum).collect(),
            filter,
            last_ledger,
            extents: extents.len(),
            was_used: AtomicBool::new(false),
        })
    }

    /// False when the log has no run of the ledger.
    pub(crate) fn may_have(&self, ledger: LedgerId) -> bool {
        ledger >= self.firsts[0].0
            && ledger <= self.last_ledger
            && bits_of(ledger, self.filter.len()).all(|(word, bit)| self.filter[word] & bit != 0)
    }

    /// Number of extents.
    pub(crate) fn len(&self) -> usize {
        self.extents
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let blocks = size_of_val(&*self.firsts) + size_of_val(&*self.checksums);
        (size_of::<Fence>() + blocks + size_of_val(&*self.filter) + 64) as u64
    }

    /// The block with the last extent at or below (ledger, entry); `None` when all are above.
    fn block_of(&self, ledger: LedgerId, entry: EntryId) -> Option<usize> {
        self.firsts.partition_point(|first| *first <= (ledger, entry)).checked_sub(1)
    }
}

/// A log and its fence. Keeps the log readable while it lives.
#[derive(Clone)]
pub struct PagedLog {
    pub(crate) log: Arc<EntryLog>,
    pub(crate) fence: Arc<Fence>,
}

impl PagedLog {
    /// No run of it is newer.
    pub fn newest(&self) -> Generation {
        self.log.generation()
    }

    /// The run that may hold the entry.
    pub(crate) fn find(
        &self,
        ledger: LedgerId,
        entry: EntryId,
        patience: Patience,
    ) -> Result<Option<Extent>, TryReadError> {
        let Some(number) = self.fence.block_of(ledger, entry) else { return Ok(None) };
        self.with_block(number, patience, |count, extent_at| {
            let (mut low, mut high) = (0, count);
            while low < high {
                let middle = low + (high - low) / 2;
                let extent = extent_at(middle)?;
                if (extent.ledger, extent.first) <= (ledger, entry) {
                    low = middle + 1
                } else {
                    high = middle
                }
            }
            let Some(at) = low.checked_sub(1) else { return Ok(None) };
            let extent = extent_at(at)?;
            Ok((extent.ledger == ledger && extent.may_hold(entry)).then_some(extent))
        })
    }

    /// The runs of a ledger with entries in `first..=last`, ascending. Blocks on the disk.
    pub(crate) fn runs_between(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
    ) -> Result<Vec<Extent>, ReadError> {
        let mut found = Vec::new();
        let Some(end) = self.fence.block_of(ledger, last) else { return Ok(found) };
        for number in self.fence.block_of(ledger, first).unwrap_or(0)..=end {
            let collect = |count: usize, extent_at: &dyn Fn(usize) -> Result<Extent, ReadError>| {
                for at in 0..count {
                    let extent = extent_at(at)?;
                    if extent.ledger == ledger && extent.first <= last && extent.last >= first {
                        found.push(extent);
                    }
                }
                Ok(())
            };
            self.with_block(number, Patience::Wait, collect).map_err(waited)?;
        }
        Ok(found)
    }

    fn with_block<T>(
        &self,
        number: usize,
        patience: Patience,
        look: impl FnOnce(usize, &dyn Fn(usize) -> Result<Extent, ReadError>) -> Result<T, ReadError>,
    ) -> Result<T, TryReadError> {
        let begin = number * FOOTER_BLOCK_EXTENTS;
        let count = FOOTER_BLOCK_EXTENTS.min(self.fence.extents - begin);
        self.log.with_footer_extents(begin, count, self.fence.checksums[number], patience, |extent_at| {
            look(count, extent_at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LogId;
    use crate::entry_log::test_extent;

    /// Invariant 2.
    #[test]
    fn the_filter_has_every_ledger_and_few_others() {
        for spread in [2, 30, 1 << 20] {
            let ledgers = (0..5000).map(|i| LedgerId::new(i * spread).unwrap());
            let id = EntryId::FIRST;
            let extents: Vec<Extent> =
                ledgers.map(|l| test_extent(LogId(1), l, id, id, 1, 1, None, Generation(1))).collect();
            let fence = Fence::of(&extents).unwrap();
            assert!(extents.iter().all(|extent| fence.may_have(extent.ledger)));
            // Within the range of those that are there: what is outside of it needs no filter.
            let others = (0..50_000).map(|i| LedgerId::new(i * spread / 10 + 1).unwrap());
            let others: Vec<LedgerId> =
                others.filter(|l| extents.binary_search_by_key(l, |e| e.ledger).is_err()).collect();
            let wrong = others.iter().filter(|ledger| fence.may_have(**ledger)).count();
            assert!(wrong <= 2, "{wrong} of {} with spread {spread}", others.len());
            assert!(fence.bytes() < 5000 * 4, "{} bytes", fence.bytes());
        }
        assert!(Fence::of(&[]).is_none());
    }
}
