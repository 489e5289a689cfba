//! The index of a log whose extents stay on disk: the entries that each run reaches, and the checksum of each block of the
//! footer.
//!
//! # Layout
//! ```text
//! block   ledger and first entry of its first extent | where its bytes begin | CRC32C of its extents
//! bytes   for each extent, as variable-length numbers:
//!         ledger - ledger before (0 for the first of a block)
//!         first - last of the run before, in the same ledger; first, in another one; nothing for the first of a block
//!         last - first
//!         bytes of bodies and index records
//! ```
//!
//! # Invariants
//! 1. Questions about the reach of runs are answered exactly, without the disk: that no run of a log reaches an entry is
//!    proven. Only the entries of a run with gaps have to be looked up on the disk.
//! 2. It comes from a footer that was verified whole, and has the checksum of each of its blocks: one that is read again is
//!    used only if it is the same (IB8).
//!
//! # Limits
//! 24 bytes for each [`FOOTER_BLOCK_EXTENTS`] runs, and for each run 5 to 8 bytes where ledger ids are near each other, 29
//! at most. A look-up bisects the blocks and goes through the runs of one; one of many ledgers does so in a single pass.

use super::FOOTER_BLOCK_EXTENTS;
use crate::Extent;
use crate::codec::Crc32c;
use crate::varint::{behind, put, take};
use bindery_types::{EntryId, LedgerId};
use std::sync::atomic::AtomicBool;

/// A run as the index has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexedRun {
    /// Its number among the runs of the log.
    pub(crate) number: usize,
    /// Its ledger.
    pub ledger: LedgerId,
    /// First entry.
    pub first: EntryId,
    /// Last entry.
    pub last: EntryId,
    /// Bytes of bodies and records: [`Extent::bytes`].
    pub bytes: u64,
}

impl IndexedRun {
    /// The first run of a log.
    pub fn new(ledger: LedgerId, first: EntryId, last: EntryId, bytes: u64) -> IndexedRun {
        IndexedRun { number: 0, ledger, first, last, bytes }
    }
}

#[derive(Debug)]
struct Block {
    ledger: LedgerId,
    first: EntryId,
    begin: u64,
    checksum: u32,
}

/// Finds the runs of a log that are not in memory.
#[derive(Debug)]
pub(crate) struct PagedIndex {
    blocks: Box<[Block]>,
    bytes: Box<[u8]>,
    extents: usize,
    run_bytes: u64,
    last_ledger: LedgerId,
    /// Looked at since the clock came by.
    pub(crate) was_used: AtomicBool,
}

/// A [`PagedIndex`] of which some runs are still to come.
#[derive(Default)]
pub(crate) struct PagedIndexBuilder {
    blocks: Vec<Block>,
    bytes: Vec<u8>,
    extents: usize,
    run_bytes: u64,
    before: Option<(LedgerId, EntryId)>,
    checksum: Crc32c,
    encoded: Vec<u8>,
}

impl PagedIndexBuilder {
    /// Adds the next run, ascending by (ledger, first).
    pub(crate) fn push(&mut self, extent: &Extent) {
        if self.extents.is_multiple_of(FOOTER_BLOCK_EXTENTS) {
            self.close_block();
            let begin = self.bytes.len() as u64;
            self.blocks.push(Block { ledger: extent.ledger, first: extent.first, begin, checksum: 0 });
            put(&mut self.bytes, 0);
        } else {
            let (ledger, last) = self.before.expect("a block has a first run");
            let step = extent.ledger.get().abs_diff(ledger.get());
            let from = if step == 0 { last.get() } else { 0 };
            put(&mut self.bytes, step);
            put(&mut self.bytes, extent.first.get().abs_diff(from));
        }
        put(&mut self.bytes, extent.last.get().abs_diff(extent.first.get()));
        put(&mut self.bytes, extent.bytes());
        self.encoded.clear();
        extent.encode(&mut self.encoded);
        self.checksum.update(&self.encoded);
        self.before = Some((extent.ledger, extent.last));
        self.extents += 1;
        self.run_bytes += extent.bytes();
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        (self.blocks.capacity() * size_of::<Block>() + self.bytes.capacity()) as u64
    }

    fn close_block(&mut self) {
        if let Some(block) = self.blocks.last_mut() {
            block.checksum = std::mem::take(&mut self.checksum).value();
        }
    }

    /// `None` for a log without runs.
    pub(crate) fn finish(mut self) -> Option<PagedIndex> {
        let (last_ledger, _) = self.before?;
        self.close_block();
        Some(PagedIndex {
            blocks: self.blocks.into(),
            bytes: self.bytes.into(),
            extents: self.extents,
            run_bytes: self.run_bytes,
            last_ledger,
            was_used: AtomicBool::new(false),
        })
    }
}

/// The runs of one block and those behind it.
struct Runs<'a> {
    index: &'a PagedIndex,
    /// The block that is next.
    block: usize,
    number: usize,
    bytes: &'a [u8],
    ledger: i64,
    last: i64,
    is_first: bool,
}

impl Iterator for Runs<'_> {
    type Item = IndexedRun;

    fn next(&mut self) -> Option<IndexedRun> {
        while self.bytes.is_empty() {
            let block = self.index.blocks.get(self.block)?;
            self.bytes = self.index.block_bytes(self.block);
            self.number = self.block * FOOTER_BLOCK_EXTENTS;
            (self.ledger, self.last, self.is_first) = (block.ledger.get(), block.first.get(), true);
            self.block += 1;
        }
        let step = take(&mut self.bytes);
        let first = if std::mem::take(&mut self.is_first) {
            self.last
        } else {
            let from = if step == 0 { self.last } else { 0 };
            self.ledger = behind(self.ledger, step);
            behind(from, take(&mut self.bytes))
        };
        self.last = behind(first, take(&mut self.bytes));
        let bytes = take(&mut self.bytes);
        let number = self.number;
        self.number += 1;
        let ids = (LedgerId::new(self.ledger)?, EntryId::new(first)?, EntryId::new(self.last)?);
        Some(IndexedRun { number, ledger: ids.0, first: ids.1, last: ids.2, bytes })
    }
}

impl PagedIndex {
    /// The index of these extents: all of a log, ascending. `None` for a log without any.
    pub(crate) fn of(extents: &[Extent]) -> Option<PagedIndex> {
        let mut builder = PagedIndexBuilder::default();
        extents.iter().for_each(|extent| builder.push(extent));
        builder.finish()
    }

    fn block_bytes(&self, block: usize) -> &[u8] {
        let end = self.blocks.get(block + 1).map_or(self.bytes.len(), |next| next.begin as usize);
        &self.bytes[self.blocks[block].begin as usize..end]
    }

    /// The runs from the one that may hold (ledger, entry) on, or from a little before it.
    fn runs_near(&self, ledger: LedgerId, entry: EntryId) -> Runs<'_> {
        let behind = self.blocks.partition_point(|block| (block.ledger, block.first) <= (ledger, entry));
        self.runs_from_block(behind.saturating_sub(1))
    }

    fn runs_from_block(&self, block: usize) -> Runs<'_> {
        Runs { index: self, block, number: 0, bytes: &[], ledger: 0, last: 0, is_first: false }
    }

    /// The run that reaches the entry; at most one does.
    pub(crate) fn find(&self, ledger: LedgerId, entry: EntryId) -> Option<usize> {
        self.runs_within(ledger, entry, entry).next().map(|run| run.number)
    }

    /// The runs of a ledger that reach into `first..=last`, ascending.
    pub(crate) fn runs_within(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
    ) -> impl Iterator<Item = IndexedRun> {
        let is_within = ledger >= self.blocks[0].ledger && ledger <= self.last_ledger;
        let runs = is_within.then(|| self.runs_near(ledger, first)).into_iter().flatten();
        runs.skip_while(move |run| (run.ledger, run.last) < (ledger, first))
            .take_while(move |run| run.ledger == ledger && run.first <= last)
    }

    /// Gives the runs of some ledgers, which ascend strictly, each with the place of its ledger among them; of one ledger for as
    /// long as `visit` says so. One pass: neighbouring ledgers share the reads of blocks, and of the runs of one.
    pub(crate) fn visit_each(&self, ledgers: &[LedgerId], mut visit: impl FnMut(usize, IndexedRun) -> bool) {
        debug_assert!(ledgers.is_sorted_by(|before, behind| before < behind), "each is asked for once");
        let begin = ledgers.partition_point(|ledger| *ledger < self.blocks[0].ledger);
        let end = ledgers.partition_point(|ledger| *ledger <= self.last_ledger);
        let mut runs = self.runs_from_block(0);
        let (mut at_block, mut next) = (None, None);
        for (place, &ledger) in ledgers.iter().enumerate().take(end).skip(begin) {
            let block = self.block_of(ledger, at_block.unwrap_or(0));
            // The runs wanted may be in the rest of the last block.
            if at_block.is_none_or(|at| at < block) {
                runs = self.runs_from_block(block);
                next = runs.next();
            }
            while next.is_some_and(|run| run.ledger < ledger) {
                next = runs.next();
            }
            while let Some(run) = next
                && run.ledger == ledger
                && visit(place, run)
            {
                next = runs.next();
            }
            at_block = Some(runs.block.saturating_sub(1));
        }
    }

    /// The block in which the runs of a ledger begin, if it has any, which is not before block `from`. From there on in steps
    /// that double: it is mostly near.
    fn block_of(&self, ledger: LedgerId, from: usize) -> usize {
        let begins_before = |block: &Block| (block.ledger, block.first) <= (ledger, EntryId::FIRST);
        let (mut low, mut step) = (from, 1);
        while self.blocks.get(low + step).is_some_and(begins_before) {
            low += step;
            step *= 2;
        }
        let high = self.blocks.len().min(low + step);
        low + self.blocks[low..high].partition_point(begins_before).saturating_sub(1)
    }

    /// Takes out the ledgers, which ascend strictly, of which the log has runs.
    pub(crate) fn retain_absent(&self, ledgers: &mut Vec<LedgerId>) {
        let mut found = Vec::new();
        self.visit_each(ledgers, |place, _| {
            found.push(place);
            false
        });
        let mut found = found.into_iter().peekable();
        let mut place = 0;
        ledgers.retain(|_| {
            place += 1;
            found.next_if_eq(&(place - 1)).is_none()
        });
    }

    /// At most `count` runs from number `from` on.
    pub(crate) fn runs_from(&self, from: usize, count: usize) -> impl Iterator<Item = IndexedRun> {
        let runs = self.runs_from_block(from / FOOTER_BLOCK_EXTENTS);
        runs.skip(from % FOOTER_BLOCK_EXTENTS).take(count)
    }

    /// Bytes of all runs.
    pub(crate) fn run_bytes(&self) -> u64 {
        self.run_bytes
    }

    /// Number of extents.
    pub(crate) fn len(&self) -> usize {
        self.extents
    }

    /// CRC32C of a block of the footer.
    pub(crate) fn checksum(&self, block: usize) -> u32 {
        self.blocks[block].checksum
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of::<PagedIndex>() + size_of_val(&*self.blocks) + self.bytes.len() + 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry_log::test_extent;
    use crate::{Generation, LogId};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Gap to the ledger before, then (gap to the entry before, span) of each run.
    fn ledgers() -> impl Strategy<Value = Vec<(u64, Vec<(u64, u64)>)>> {
        let gap = prop_oneof![1..3u64, 1..1u64 << 40];
        let run = (prop_oneof![0..3u64, 0..1u64 << 33], prop_oneof![0..3u64, 0..100_000u64]);
        prop::collection::vec((gap, prop::collection::vec(run, 1..6)), 1..120)
    }

    proptest! {
        /// Invariant 1: every answer equals the one of the plain list.
        #[test]
        fn answers_equal_those_of_a_list(shape in ledgers(), probes in prop::collection::vec((any::<u16>(), -2i64..3), 60)) {
            let (mut extents, mut ledger) = (Vec::new(), -1i64);
            for (gap, runs) in shape {
                ledger += gap as i64;
                let mut next = 0i64;
                for (gap, span) in runs {
                    let first = next + gap as i64;
                    let last = first + span as i64;
                    let ids = (LedgerId::new(ledger).unwrap(), EntryId::new(first).unwrap(), EntryId::new(last).unwrap());
                    extents.push(test_extent(LogId(1), ids.0, ids.1, ids.2, 1, 0, None, Generation(1)));
                    next = last + 1;
                }
            }
            let index = PagedIndex::of(&extents).unwrap();
            prop_assert_eq!(index.len(), extents.len());
            let near = |(at, offset): &(u16, i64)| extents[usize::from(*at) % extents.len()].ledger.get() + offset;
            for some in probes.chunks(20) {
                let asked: BTreeSet<LedgerId> = some.iter().map(near).filter_map(LedgerId::new).collect();
                let asked: Vec<LedgerId> = asked.into_iter().collect();
                for first_alone in [false, true] {
                    let mut visited = Vec::new();
                    index.visit_each(&asked, |place, run| {
                        visited.push((asked[place], run.number));
                        !first_alone
                    });
                    let mut expected: Vec<(LedgerId, usize)> = extents.iter().map(|e| e.ledger).zip(0..).collect();
                    expected.retain(|(ledger, _)| asked.contains(ledger));
                    if first_alone {
                        expected.dedup_by_key(|(ledger, _)| *ledger);
                    }
                    prop_assert_eq!(visited, expected);
                }
                let mut absent = asked.clone();
                index.retain_absent(&mut absent);
                let has = |ledger: &LedgerId| extents.iter().any(|e| e.ledger == *ledger);
                prop_assert_eq!(absent, asked.into_iter().filter(|ledger| !has(ledger)).collect::<Vec<_>>());
            }
            let numbered: Vec<IndexedRun> = index.runs_from(0, usize::MAX).collect();
            prop_assert_eq!(numbered.len(), extents.len());
            for (number, (run, extent)) in numbered.iter().zip(&extents).enumerate() {
                prop_assert_eq!((run.number, run.ledger, run.first, run.last), (number, extent.ledger, extent.first, extent.last));
                prop_assert_eq!(run.bytes, extent.bytes());
            }
            let from = extents.len() / 2;
            prop_assert_eq!(index.runs_from(from, 3).collect::<Vec<_>>(), numbered.iter().skip(from).take(3).copied().collect::<Vec<_>>());
            for (at, offset) in probes {
                let near = extents[usize::from(at) % extents.len()];
                let ledgers = [near.ledger.get(), near.ledger.get() + 1, near.ledger.get() - 1];
                let entries = [near.first.get() + offset, near.last.get() + offset];
                for ledger in ledgers.into_iter().filter_map(LedgerId::new) {
                    for entry in entries.into_iter().filter_map(EntryId::new) {
                        let expected = extents.iter().position(|e| e.ledger == ledger && e.first <= entry && e.last >= entry);
                        prop_assert_eq!(index.find(ledger, entry), expected);
                        let last = EntryId::new(entry.get() + 50).unwrap();
                        let within = |e: &&Extent| e.ledger == ledger && e.first <= last && e.last >= entry;
                        let expected: Vec<EntryId> = extents.iter().filter(within).map(|e| e.first).collect();
                        let found: Vec<EntryId> = index.runs_within(ledger, entry, last).map(|run| run.first).collect();
                        prop_assert_eq!(found, expected);
                    }
                }
            }
        }
    }

    #[test]
    fn runs_of_neighbouring_ledgers_take_few_bytes() {
        let ledgers = (0..5000).map(|i| LedgerId::new(i * 3).unwrap());
        let id = |raw| EntryId::new(raw).unwrap();
        let extents: Vec<Extent> =
            ledgers.map(|l| test_extent(LogId(1), l, id(40), id(44), 5, 1, None, Generation(1))).collect();
        let index = PagedIndex::of(&extents).unwrap();
        assert!(index.bytes() < 5000 * 6, "{} bytes", index.bytes());
        assert!(PagedIndex::of(&[]).is_none());
    }
}
