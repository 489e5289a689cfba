//! The flush's side: the active write cache is frozen at a cut, and a frozen one goes once it is on disk.
//!
//! A freeze begins at a cut and covers every change up to it. It moves ledgers into the frozen cache in small batches, so that a
//! freeze of a hundred thousand ledgers never locks the shard for long. A ledger that is about to change before its turn is moved
//! first ([`Shard::settle`]), so each is frozen as it was at the cut.

use super::Shard;
use crate::ledger::{Epoch, LedgerState};
use crate::write_cache::{CacheRecord, CacheRecords, Frozen, FrozenExtents};
use bindery_io::chunk::ChunkSlice;
use bindery_storage::{Generation, LedgerRecord};
use bindery_types::{EntryId, LedgerId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a commit says about a ledger's copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Died {
    pub(crate) ledger: LedgerId,
    /// Copies of a lower generation are gone.
    pub(crate) hidden_below: Generation,
    /// Entries behind the first and up to the second were let go.
    pub(crate) trimmed: Option<(Option<EntryId>, EntryId)>,
}

/// Bytes that a record of the write cache's index counts for.
const INDEX_RECORD_BYTES: usize = 64;

/// Bytes charged for a ledger that changed, however little was written to it: its place in the index, the boxes that its state keeps
/// until it rests, and its record in the frozen cache.
const CHANGED_LEDGER_BYTES: usize = 384;

/// A freeze under way.
pub(super) struct Freezing {
    epoch: Epoch,
    /// Ledgers that changed before the cut. Some may be in `frozen` already.
    dirty: Vec<LedgerId>,
    /// All chunks, and the ledgers that were moved so far.
    frozen: Frozen,
}

impl Freezing {
    /// True when the records of this ledger belong to the frozen cache and have not been moved there yet.
    fn awaits(&self, state: &LedgerState) -> bool {
        state.dirty_in == Some(self.epoch)
    }

    fn take(&mut self, ledger: LedgerId, state: &mut LedgerState) {
        state.dirty_in = None;
        self.frozen.states.push(state.snapshot(ledger));
        let is_cleared = std::mem::take(&mut state.are_extents_gone);
        let updates = state.tier.as_mut().map(|tier| std::mem::take(&mut tier.updates)).unwrap_or_default();
        if is_cleared || !updates.is_empty() {
            self.frozen.extents.insert(ledger, FrozenExtents { is_cleared, updates });
        }
        self.frozen.records.insert(ledger, std::mem::take(&mut state.records));
    }
}

impl Shard {
    /// Begins to take the active write cache out, right after a cut: the group of that cut is its boundary. False when nothing
    /// changed since the last freeze. Later changes have the generation `next`.
    pub(crate) fn begin_freeze(&mut self, next: u64) -> bool {
        debug_assert_eq!(self.sequence, self.cut, "a freeze follows a cut");
        assert!(self.freezing.is_none(), "one freeze at a time");
        let generation = self.generation;
        debug_assert!(next > generation, "generations ascend");
        self.generation = next;
        if self.dirty.is_empty() {
            return false;
        }
        self.seal_open_chunk();
        let bytes = self.active_bytes();
        let (dirty, epoch) = (std::mem::take(&mut self.dirty), self.epoch);
        self.epoch = epoch.next();
        (self.cached_records, self.cached_bytes) = (0, 0);
        let frozen = Frozen {
            generation,
            chunks: std::mem::take(&mut self.chunks),
            // A map that grows moves everything that is in it.
            records: HashMap::with_capacity(dirty.len()),
            bytes,
            states: Vec::with_capacity(dirty.len()),
            extents: BTreeMap::new(),
        };
        self.freezing = Some(Freezing { epoch, dirty, frozen });
        true
    }

    /// Moves up to `most` more ledgers. Returns the frozen cache once it has all of them.
    pub(crate) fn freeze_some(&mut self, most: usize) -> Option<Arc<Frozen>> {
        for _ in 0..most {
            let freezing = self.freezing.as_mut().expect("a freeze is under way");
            let Some(ledger) = freezing.dirty.pop() else {
                let freezing = self.freezing.take().expect("it is");
                let frozen = Arc::new(freezing.frozen);
                self.frozen.push(frozen.clone());
                return Some(frozen);
            };
            self.settle(ledger);
        }
        None
    }

    /// Must be called before a ledger changes: if a freeze under way still needs the ledger, it is moved now.
    pub(super) fn settle(&mut self, ledger: LedgerId) {
        let Some(freezing) = &mut self.freezing else { return };
        let Some(state) = self.ledgers.get_mut(&ledger).filter(|state| freezing.awaits(state)) else {
            return;
        };
        // Whether the tables forget it is not known yet, and this may be all that a crash leaves of the ledger.
        if let Some(record) = self.forgetting.remove(&ledger) {
            state.outlive(&record);
        }
        freezing.take(ledger, state);
    }

    /// Caches that are not on disk, oldest first; the active one is not among them.
    pub(super) fn caches(&self) -> impl DoubleEndedIterator<Item = &Frozen> {
        self.frozen
            .iter()
            .map(|frozen| &**frozen)
            .chain(self.freezing.as_ref().map(|freezing| &freezing.frozen))
    }

    /// Those of them that do not change any more, oldest first.
    pub(super) fn whole_caches(&self) -> impl Iterator<Item = &Arc<Frozen>> {
        self.frozen.iter()
    }

    /// The records of a ledger that may change or move, oldest first, each with the generation that they have, or will have when they are
    /// frozen.
    pub(super) fn moving_records<'a>(
        &'a self,
        ledger: LedgerId,
        state: &'a LedgerState,
    ) -> impl Iterator<Item = (u64, &'a CacheRecords)> {
        let freezing = self.freezing.as_ref();
        let moved = freezing
            .and_then(|freezing| Some((freezing.frozen.generation, freezing.frozen.records.get(&ledger)?)));
        let awaits = freezing.filter(|freezing| freezing.awaits(state));
        let generation = awaits.map_or(self.generation, |freezing| freezing.frozen.generation);
        moved.into_iter().chain([(generation, &state.records)])
    }

    /// The entry of a record that is in a ledger's state.
    pub(super) fn body(&self, state: &LedgerState, record: &CacheRecord) -> ChunkSlice {
        if let Some(freezing) = self.freezing.as_ref().filter(|freezing| freezing.awaits(state)) {
            return freezing.frozen.body(record);
        }
        let range = record.offset as usize..record.offset as usize + record.length as usize;
        match self.chunks.get(record.chunk as usize) {
            Some(chunk) => chunk.slice(range),
            None => self.open.as_ref().expect("a record's chunk is full or open").slice(range),
        }
    }

    /// The ledgers of a flushed cache go to rest, as far as they are not written to any more, and their trims count.
    /// Call it with some at a time. `died` gets those of which copies are gone, or were let go, by what was flushed after the
    /// generation `before`.
    pub(crate) fn rest(&mut self, flushed: &[LedgerRecord], before: u64, died: &mut Vec<Died>) {
        let durable = self.durable;
        for record in flushed {
            let ledger = record.ledger;
            if record.hidden_below.0 > before {
                died.push(Died { ledger, hidden_below: record.hidden_below, trimmed: None });
            }
            let Some(state) = self.ledgers.get_mut(&ledger) else { continue };
            state.rest(durable);
            if state.tier.is_none() {
                continue;
            }
            let trimmed_before = self.trimmed_for_good(ledger, false);
            self.on_tier_committed(record);
            let trimmed = self.trimmed_for_good(ledger, false);
            if let Some(until) = trimmed.filter(|_| trimmed > trimmed_before) {
                let trimmed = Some((trimmed_before, until));
                died.push(Died { ledger, hidden_below: Generation(0), trimmed });
            }
        }
    }

    /// The cache that must be flushed next.
    pub(crate) fn oldest_frozen(&self) -> Option<&Arc<Frozen>> {
        self.frozen.first()
    }

    /// The flush of the oldest frozen cache is committed and its entries can be found on disk.
    pub(crate) fn drop_frozen(&mut self, frozen: &Arc<Frozen>) {
        let oldest = self.frozen.first().expect("a flushed cache was frozen");
        assert!(Arc::ptr_eq(oldest, frozen), "caches are flushed in order");
        self.frozen.remove(0);
    }

    /// Chunks in the active write cache.
    pub(crate) fn active_chunks(&self) -> usize {
        self.chunks.len() + usize::from(self.open.is_some())
    }

    /// Bytes of the active write cache. Charged at 64 bytes, a record of the index and its share of growth counts like
    /// entry bytes, and so does what each changed ledger takes.
    pub(crate) fn active_bytes(&self) -> u64 {
        let index = self.cached_records * INDEX_RECORD_BYTES + self.dirty.len() * CHANGED_LEDGER_BYTES;
        (self.cached_bytes + index) as u64
    }

    /// Bytes of the frozen write caches.
    pub(crate) fn frozen_bytes(&self) -> u64 {
        self.caches().map(|frozen| frozen.bytes).sum()
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lagging::Lagging;

    /// What is charged for a ledger with one entry covers what it takes: a map keeps up to half of its slots empty, last entry
    /// and LAC are not durable, a flush sorts ledgers and records.
    #[test]
    fn a_ledger_that_was_written_to_once_is_charged_for_what_it_takes() {
        let mut records = CacheRecords::default();
        records.insert(CacheRecord { entry: 0, sequence: 1, chunk: 0, offset: 0, length: 1, crc32c: 0 });
        let slot = 2 * (size_of::<(LedgerId, CacheRecords)>() + 1);
        let sorted = size_of::<(LedgerId, &CacheRecords, &Frozen)>() + size_of::<&LedgerRecord>();
        let state = 2 * Lagging::PENDING_BYTES + size_of::<LedgerRecord>();
        let takes = size_of::<LedgerId>() + slot + records.heap_bytes() + state + sorted;
        let charged = INDEX_RECORD_BYTES + CHANGED_LEDGER_BYTES;
        assert!(takes <= charged && charged < takes * 2, "{takes} bytes, {charged} charged");
    }
}
