//! The runs of a log that is being written, which its footer lists in the end: a log of small ledgers has millions.

use super::format::{BLOCK, Extent};
use crate::varint::{behind, put, take};
use crate::{Generation, LogId};
use bindery_types::{EntryId, LedgerId};

/// Extents in about 20 bytes each where ledger ids are near each other, ascending by (ledger, first), each behind the one
/// before in the file.
#[derive(Default)]
pub(super) struct PackedExtents {
    bytes: Vec<u8>,
    count: u64,
    before: (i64, i64),
}

impl PackedExtents {
    pub(super) fn push(&mut self, extent: &Extent) {
        let (ledger, last) = self.before;
        let step = extent.ledger.get().abs_diff(ledger);
        let from = if step == 0 { last } else { 0 };
        let (first, end) = (extent.first.get(), extent.last.get());
        let lac = EntryId::to_wire(extent.max_lac);
        let out = &mut self.bytes;
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

    pub(super) fn len(&self) -> u64 {
        self.count
    }

    pub(super) fn iter(&self, log_id: LogId) -> impl Iterator<Item = Extent> {
        let (mut bytes, mut before, mut bodies_offset) = (&*self.bytes, (0, 0), BLOCK);
        std::iter::from_fn(move || {
            if bytes.is_empty() {
                return None;
            }
            let step = take(&mut bytes);
            let from = if step == 0 { before.1 } else { 0 };
            let ledger = behind(before.0, step);
            let first = behind(from, take(&mut bytes));
            let last = behind(first, take(&mut bytes));
            let (count, stride) = (take(&mut bytes), take(&mut bytes));
            let lac = match (take(&mut bytes), take(&mut bytes)) {
                (0, below) => last.checked_sub_unsigned(below)?,
                (_, above) => behind(last, above),
            };
            let (generation, bodies_len) = (take(&mut bytes), take(&mut bytes));
            let (records_crc, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            before = (ledger, last);
            let extent = Extent {
                log_id,
                ledger: LedgerId::new(ledger)?,
                first: EntryId::new(first)?,
                last: EntryId::new(last)?,
                count: u32::try_from(count).ok()?,
                stride,
                max_lac: EntryId::new(lac),
                generation: Generation(generation),
                bodies_offset,
                bodies_len,
                records_offset: bodies_offset + bodies_len,
                records_crc: u32::from_le_bytes(*records_crc),
            };
            bodies_offset = extent.records_end();
            Some(extent)
        })
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
            let (mut packed, mut extents, mut ledger) = (PackedExtents::default(), Vec::new(), 5i64);
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
            prop_assert_eq!(packed.iter(LogId(7)).collect::<Vec<_>>(), extents);
        }
    }
}
