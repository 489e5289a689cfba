//! The flush's side: the active write cache is frozen at a cut, and a frozen one goes once it is on disk.

use super::Shard;
use crate::ledger::{LedgerState, TierState};
use crate::space::Died;
use crate::write_cache::{Frozen, FrozenExtents};
use bindery_storage::{Generation, IndexUse, LedgerRecord};
use bindery_types::LedgerId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a record of the write cache's index counts for.
const INDEX_RECORD_BYTES: usize = 64;

/// What a ledger that changed counts for, however little was written to it: its place in the index with the least room that
/// a list of records takes, and its state in the frozen cache and in the commit.
const CHANGED_LEDGER_BYTES: usize = 512;

impl Shard {
    /// Takes the active write cache out, right after a cut: the group of that cut is its boundary. `None` when
    /// nothing changed since the last freeze. What comes after it has the generation `next`.
    pub(crate) fn freeze(&mut self, next: u64) -> Option<Arc<Frozen>> {
        debug_assert_eq!(self.sequence, self.cut, "a freeze follows a cut");
        let generation = self.generation;
        debug_assert!(next > generation, "generations ascend");
        self.generation = next;
        if self.dirty.is_empty() {
            return None;
        }
        self.seal_open_chunk();
        let bytes = self.active_bytes();
        let mut records = HashMap::new();
        let mut states: Vec<LedgerRecord> = Vec::with_capacity(self.dirty.len());
        let mut extents = BTreeMap::new();
        for ledger in std::mem::take(&mut self.dirty) {
            let state = self.ledgers.get_mut(&ledger).expect("a dirty ledger is known");
            state.is_dirty = false;
            // Whether the tables forget it is not known yet, and this may be all that a crash leaves of the ledger.
            if let Some(record) = self.forgetting.remove(&ledger) {
                state.outlive(&record);
            }
            states.push(state.snapshot(ledger));
            let is_cleared = std::mem::take(&mut state.are_extents_gone);
            let updates =
                state.tier.as_mut().map(|tier| std::mem::take(&mut tier.updates)).unwrap_or_default();
            if is_cleared || !updates.is_empty() {
                extents.insert(ledger, FrozenExtents { is_cleared, updates });
            }
            if !state.records.is_empty() {
                records.insert(ledger, std::mem::take(&mut state.records));
            }
        }
        states.sort_unstable_by_key(|s| s.ledger);
        (self.cached_records, self.cached_bytes) = (0, 0);
        let chunks = std::mem::take(&mut self.chunks);
        let frozen = Arc::new(Frozen { generation, chunks, records, bytes, states, extents });
        self.frozen.push(frozen.clone());
        Some(frozen)
    }

    /// The ledgers of a flushed cache go to rest, as far as they are not written to any more, and their trims count.
    /// Call it with some at a time. `died` gets those of which copies are gone, or were let go, by what was flushed after the
    /// generation `before`.
    pub(crate) fn rest(&mut self, flushed: &[LedgerRecord], before: u64, died: &mut Vec<Died>) {
        let durable = self.durable;
        for record in flushed {
            let trimmed_before = self.trimmed_for_good(record.ledger, false);
            self.on_tier_committed(record);
            let trimmed = self.trimmed_for_good(record.ledger, false);
            let ledger = record.ledger;
            if record.hidden_below.0 > before {
                died.push(Died { ledger, hidden_below: record.hidden_below, trimmed: None });
            }
            if let Some(until) = trimmed.filter(|_| trimmed > trimmed_before) {
                let trimmed = Some((trimmed_before, until));
                died.push(Died { ledger, hidden_below: Generation(0), trimmed });
            }
            if let Some(state) = self.ledgers.get_mut(&record.ledger) {
                state.rest(durable);
            }
        }
    }

    /// Charges the index pool for the ledgers there are now.
    pub(super) fn charge_ledgers(&mut self) {
        let slots = self.ledgers.capacity() * (size_of::<(LedgerId, Box<LedgerState>)>() + 1);
        let removed = (self.removed.len() + self.unfenced_removed.len()) * size_of::<LedgerId>() * 2;
        let untrimmed = self.untrimmed.len() * size_of::<LedgerId>() * 2;
        let tiered = self.tiered_count * TierState::BYTES + untrimmed;
        let now = (slots + removed + self.ledgers.len() * LedgerState::BYTES + tiered) as u64;
        let before = std::mem::replace(&mut self.charged, now);
        self.config.index_pool.charge(IndexUse::Ledgers, now.saturating_sub(before));
        self.config.index_pool.release(IndexUse::Ledgers, before.saturating_sub(now));
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
        self.frozen.iter().map(|frozen| frozen.bytes).sum()
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_cache::{CacheRecord, CacheRecords};

    /// What is charged for a ledger with one entry covers what it takes: a list's least room is four records, a map keeps
    /// up to half of its slots empty, and the commit copies the states.
    #[test]
    fn a_ledger_that_was_written_to_once_is_charged_for_what_it_takes() {
        let mut records = CacheRecords::default();
        records.insert(CacheRecord { entry: 0, sequence: 1, chunk: 0, offset: 0, length: 1, crc32c: 0 });
        let slot = 2 * (size_of::<(LedgerId, CacheRecords)>() + 1);
        let takes = size_of::<LedgerId>() + slot + records.heap_bytes() + 2 * size_of::<LedgerRecord>();
        let charged = INDEX_RECORD_BYTES + CHANGED_LEDGER_BYTES;
        assert!(takes <= charged && charged < takes * 2, "{takes} bytes, {charged} charged");
    }
}
