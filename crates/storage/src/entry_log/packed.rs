//! The runs of a log that is being written, which its footer lists in the end: a log of small ledgers has millions.
//!
//! # Limits
//! About 20 bytes for each run where ledger ids are near each other, [`PACKED_BYTES_MAX`] at most, in pieces of [`PIECE_BYTES`].
//! They are charged to the index pool, and given back piece by piece while the footer is written. Where the pool is full they
//! exceed it: a flush cannot wait, and a rewrite under way gives back only when it ends. The engine begins no more rewrites than
//! the pool has room for, but for one (`space`).

use super::format::{BLOCK, Extent};
use crate::varint::{behind, put, take};
use crate::{Generation, IndexCharge, IndexPool, IndexUse, LogId};
use bindery_types::{EntryId, LedgerId};
use std::collections::VecDeque;
use std::sync::Arc;

/// A piece never moves: one list of all would be copied whenever it grows.
const PIECE_BYTES: usize = 64 << 10;
/// Nine numbers and a checksum.
const PACKED_BYTES_MAX: usize = 9 * 10 + 4;

/// A queue of extents, ascending by (ledger, first), each behind the one before in the file.
pub(super) struct PackedExtents {
    pieces: VecDeque<Vec<u8>>,
    /// Those that are in it.
    count: u64,
    /// Ledger and last entry of the one that was put there last.
    before: (i64, i64),
    taken: Taken,
    charge: Option<IndexCharge>,
}

/// The position that the extents taken out so far lead to.
struct Taken {
    /// Bytes of the first piece.
    bytes: usize,
    /// Ledger and last entry of the last one.
    before: (i64, i64),
    /// Where the bodies of the next begin.
    bodies_offset: u64,
}

impl Default for PackedExtents {
    fn default() -> PackedExtents {
        let taken = Taken { bytes: 0, before: (0, 0), bodies_offset: BLOCK };
        PackedExtents { pieces: VecDeque::new(), count: 0, before: (0, 0), taken, charge: None }
    }
}

impl PackedExtents {
    /// None yet, and charged to `pool`.
    pub(super) fn charged_to(pool: &Arc<IndexPool>) -> PackedExtents {
        let charge = Some(IndexCharge::new(pool, IndexUse::Writing));
        PackedExtents { charge, ..PackedExtents::default() }
    }

    fn set_charge(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.set((self.pieces.len() * PIECE_BYTES) as u64);
        }
    }

    pub(super) fn push(&mut self, extent: &Extent) {
        let has_room = |piece: &Vec<u8>| piece.capacity() - piece.len() >= PACKED_BYTES_MAX;
        if !self.pieces.back().is_some_and(has_room) {
            self.pieces.push_back(Vec::with_capacity(PIECE_BYTES));
            self.set_charge();
        }
        let (ledger, last) = self.before;
        let step = extent.ledger.get().abs_diff(ledger);
        let from = if step == 0 { last } else { 0 };
        let (first, end) = (extent.first.get(), extent.last.get());
        let lac = EntryId::to_wire(extent.max_lac);
        let out = self.pieces.back_mut().expect("there is one with room");
        put(out, step);
        put(out, first.abs_diff(from));
        put(out, end.abs_diff(first));
        put(out, u64::from(extent.count));
        put(out, extent.stride);
        // Mostly just below the last entry, but it may be far above.
        put(out, u64::from(lac > end));
        put(out, end.abs_diff(lac));
        put(out, extent.generation.0);
        put(out, extent.bodies_len);
        out.extend_from_slice(&extent.records_crc.to_le_bytes());
        self.before = (extent.ledger.get(), end);
        self.count += 1;
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        self.count
    }

    /// Takes out the first.
    pub(super) fn pop(&mut self, log_id: LogId) -> Option<Extent> {
        let piece = self.pieces.front()?;
        let mut bytes = &piece[self.taken.bytes..];
        let extent = self.taken.decode(&mut bytes, log_id)?;
        self.taken.bytes = piece.len() - bytes.len();
        self.count -= 1;
        if bytes.is_empty() {
            self.pieces.pop_front();
            self.taken.bytes = 0;
            self.set_charge();
        }
        Some(extent)
    }
}

impl Taken {
    fn decode(&mut self, bytes: &mut &[u8], log_id: LogId) -> Option<Extent> {
        let step = take(bytes);
        let from = if step == 0 { self.before.1 } else { 0 };
        let ledger = behind(self.before.0, step);
        let first = behind(from, take(bytes));
        let last = behind(first, take(bytes));
        let (count, stride) = (take(bytes), take(bytes));
        let lac = match (take(bytes), take(bytes)) {
            (0, below) => last.checked_sub_unsigned(below)?,
            (_, above) => behind(last, above),
        };
        let (generation, bodies_len) = (take(bytes), take(bytes));
        let (records_crc, rest) = bytes.split_first_chunk()?;
        let extent = Extent {
            log_id,
            ledger: LedgerId::new(ledger)?,
            first: EntryId::new(first)?,
            last: EntryId::new(last)?,
            count: u32::try_from(count).ok()?,
            stride,
            max_lac: EntryId::new(lac),
            generation: Generation(generation),
            bodies_offset: self.bodies_offset,
            bodies_len,
            records_offset: self.bodies_offset + bodies_len,
            records_crc: u32::from_le_bytes(*records_crc),
        };
        *bytes = rest;
        self.before = (ledger, last);
        self.bodies_offset = extent.records_end();
        Some(extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_come_back_as_they_were(
            shape in prop::collection::vec(
                (0..3u64, 0..1i64 << 40, 0..1i64 << 40, 1..70_000u32, any::<u32>(), -1..1i64 << 50, 0..1u64 << 40), 0..60
            ),
            is_last_highest in any::<bool>(),
        ) {
            let pool = Arc::new(IndexPool::new(1));
            let (mut packed, mut extents, mut ledger) = (PackedExtents::charged_to(&pool), Vec::new(), 5i64);
            let (mut last, mut bodies_offset) = (0, BLOCK);
            for (step, gap, span, count, records_crc, lac, bodies_len) in shape {
                ledger += step as i64;
                let first = if step == 0 { last + gap } else { gap };
                last = first + span;
                let extent = Extent {
                    log_id: LogId(7),
                    ledger: LedgerId::new(ledger).unwrap(),
                    first: EntryId::new(first).unwrap(),
                    last: EntryId::new(last).unwrap(),
                    count,
                    stride: bodies_len % 4,
                    max_lac: EntryId::new(lac),
                    generation: Generation(bodies_len),
                    bodies_offset,
                    bodies_len,
                    records_offset: bodies_offset + bodies_len,
                    records_crc,
                };
                bodies_offset = extent.records_end();
                packed.push(&extent);
                extents.push(extent);
            }
            if is_last_highest {
                // The farthest that an entry and its LAC can be apart.
                let before = extents.last().map_or(BLOCK, Extent::records_end);
                let highest = Extent {
                    log_id: LogId(7),
                    ledger: LedgerId::new(ledger + 1).unwrap(),
                    first: EntryId::MAX,
                    last: EntryId::MAX,
                    count: 1,
                    stride: 1,
                    max_lac: None,
                    generation: Generation(1),
                    bodies_offset: before,
                    bodies_len: 24,
                    records_offset: before + 24,
                    records_crc: 1,
                };
                packed.push(&highest);
                extents.push(highest);
            }
            prop_assert_eq!(packed.len(), extents.len() as u64);
            let popped: Vec<Extent> = std::iter::from_fn(|| packed.pop(LogId(7))).collect();
            prop_assert_eq!(popped, extents);
            prop_assert_eq!((packed.len(), pool.used(IndexUse::Writing)), (0, 0));
        }
    }

    #[test]
    fn what_they_take_is_charged_and_given_back_as_they_go() {
        let pool = Arc::new(IndexPool::new(1));
        let mut packed = PackedExtents::charged_to(&pool);
        let mut bodies_offset = BLOCK;
        for ledger in 0..20_000 {
            let id = |raw| EntryId::new(raw).unwrap();
            let extent = Extent {
                log_id: LogId(7),
                ledger: LedgerId::new(ledger * 3).unwrap(),
                first: id(40),
                last: id(44),
                count: 5,
                stride: 1,
                max_lac: Some(id(43)),
                generation: Generation(1000),
                bodies_offset,
                bodies_len: 500,
                records_offset: bodies_offset + 500,
                records_crc: 0xdead_beef,
            };
            bodies_offset = extent.records_end();
            packed.push(&extent);
        }
        let charged = pool.used(IndexUse::Writing);
        assert!(charged > 20_000 * 10 && charged < 20_000 * 20 + PIECE_BYTES as u64, "{charged} bytes");
        for _ in 0..15_000 {
            assert!(packed.pop(LogId(7)).is_some());
        }
        assert!(pool.used(IndexUse::Writing) <= charged / 2);
        drop(packed);
        assert_eq!(pool.used(IndexUse::Writing), 0);
    }
}
