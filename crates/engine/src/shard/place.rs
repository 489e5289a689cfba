//! Placing: a record is copied into the open chunk, which gives it its sequence, and indexed.

use super::{NoRoom, Shard, explicit_lac_of};
use crate::write_cache::CacheRecord;
use bindery_io::chunk::Lane;
use bindery_journal::Part;
use bindery_journal::record::{self, HEADER_SIZE_BYTES, Kind};
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::sync::Arc;

/// Where a record went.
pub(super) struct Placed {
    pub(super) sequence: u64,
    pub(super) chunk: u32,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) crc32c: u32,
}

impl Shard {
    /// Copies a record into the open chunk: the one copy of an entry.
    pub(super) fn place(&mut self, kind: Kind, pieces: &[&[u8]], lane: Lane) -> Result<Placed, NoRoom> {
        let length: usize = pieces.iter().map(|p| p.len()).sum();
        let size = HEADER_SIZE_BYTES + length;
        let is_full = match (kind, lane) {
            (Kind::Reconciled | Kind::Restored, _) => self.is_full_of_updates(),
            (Kind::ExplicitLac, _) => false,
            (_, Lane::Normal) => self.formed() >= self.admitted,
            (_, Lane::Recovery) => self.formed_bytes >= self.config.formed_bytes_max,
            (_, Lane::Reserved) => false,
        };
        if is_full {
            return Err(NoRoom);
        }
        if self.open.as_ref().is_none_or(|open| open.remaining() < size) {
            // The last part is for what has the last chunks.
            let spare = if lane == Lane::Reserved { 1 } else { 2 };
            if self.parts.len() + spare >= self.config.parts_max {
                return Err(NoRoom);
            }
            let next = self.pool.take(lane).ok_or(NoRoom)?;
            assert!(size <= next.remaining(), "a chunk holds the largest record");
            self.seal_open_chunk();
            self.open = Some(next);
        }
        let open = self.open.as_mut().expect("a chunk was opened");
        let (mut header, mut crc) = ([0; HEADER_SIZE_BYTES], 0);
        let start = open.append(size, |target| (header, crc) = record::encode(target, kind, pieces));
        self.sequence += 1;
        self.cached_bytes += size;
        if self.is_replaying {
            (self.cut, self.durable) = (self.sequence, self.sequence);
            self.part_start = start + size;
        } else {
            self.part_records += 1;
            self.part_headers_crc = record::fold_header(self.part_headers_crc, &header);
            self.formed_bytes += size;
            self.formed_records += 1;
            if matches!(kind, Kind::Reconciled | Kind::Restored) {
                self.on_update_formed(length);
            }
        }
        Ok(Placed {
            sequence: self.sequence,
            chunk: u32::try_from(self.chunks.len()).expect("chunks are few"),
            offset: u32::try_from(start + HEADER_SIZE_BYTES).expect("a chunk is below 4 GiB"),
            length: u32::try_from(length).expect("a record is below 4 GiB"),
            crc32c: crc,
        })
    }

    pub(super) fn close_part(&mut self) {
        let Some(open) = &self.open else { return };
        if open.len() > self.part_start {
            self.parts.push(Part {
                data: open.slice(self.part_start..open.len()),
                shard: self.config.index,
                record_count: self.part_records,
                headers_crc: self.part_headers_crc,
            });
        }
        self.part_start = open.len();
        (self.part_records, self.part_headers_crc) = (0, 0);
    }

    pub(super) fn seal_open_chunk(&mut self) {
        self.close_part();
        if let Some(full) = self.open.take() {
            self.chunks.push(full.slice(0..full.len()));
        }
        self.part_start = 0;
    }

    pub(super) fn index_entry(
        &mut self,
        ledger: LedgerId,
        entry: EntryId,
        lac: Option<EntryId>,
        placed: Placed,
    ) {
        let (cut, durable) = (self.cut.min(placed.sequence - 1), self.durable.min(placed.sequence - 1));
        self.settle(ledger);
        let state = self.ledgers.get_mut(&ledger).expect("the ledger was created with its key");
        let Placed { sequence, chunk, offset, length, crc32c } = placed;
        state.records.insert(CacheRecord { entry: entry.get(), sequence, chunk, offset, length, crc32c });
        state.last_entry.raise(entry.get(), sequence, cut, durable);
        state.last_add_confirmed.raise(EntryId::to_wire(lac), sequence, cut, durable);
        if !state.polls.is_empty() {
            self.raised.insert(ledger);
        }
        self.cached_records += 1;
        // As `mark_dirty`, without looking the ledger up again: this is for each entry.
        if state.mark_dirty(sequence, self.epoch) {
            self.dirty.push(ledger);
        }
    }

    pub(super) fn index_explicit_lac(
        &mut self,
        ledger: LedgerId,
        key: MasterKey,
        lac: Option<EntryId>,
        body: Arc<[u8]>,
        sequence: u64,
    ) {
        let (cut, durable) = (self.cut.min(sequence - 1), self.durable.min(sequence - 1));
        let state = self.exists(ledger);
        if state.needs_key(&key) {
            state.key = Some(key);
        }
        let (lac, charge) = (EntryId::to_wire(lac), state.explicit_lac_charge());
        // One that says nothing new is acknowledged and changes nothing: the LAC never goes back, and of two records of
        // the ledger, in two directories, the same LAC has the same body (IB25).
        let newest = state.explicit_lacs_newest().map(|body| EntryId::to_wire(explicit_lac_of(body)));
        if newest.is_none_or(|newest| lac > newest) {
            state.push_explicit_lac(sequence, durable, body);
        }
        state.last_add_confirmed.raise(lac, sequence, cut, durable);
        if !state.polls.is_empty() {
            self.raised.insert(ledger);
        }
        self.recount_explicit_lac(ledger, charge);
        self.mark_dirty(ledger);
    }

    /// A ledger changed. It was settled before.
    pub(super) fn mark_dirty(&mut self, ledger: LedgerId) {
        let state = self.ledgers.get_mut(&ledger).expect("a ledger that changes is known");
        if state.mark_dirty(self.sequence, self.epoch) {
            self.dirty.push(ledger);
        }
    }
}
