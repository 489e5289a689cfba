//! The index of a log whose extents stay on disk: the entries that each run reaches, and the checksum of each block of the
//! footer.
//!
//! # Layout
//! ```text
//! block   ledger and first entry of its first extent | where its bytes begin | CRC32C of its extents | a width for each column
//! bytes   the least `first` and the least number of bytes of the block's runs, 8 bytes each, then four columns with a number
//!         for each run, each of its width, 0 to 8 bytes, least significant byte first:
//!         ledger - ledger of the block, first - least first, last - first, bytes of bodies and index records - least of them
//! ```
//! With columns of one width, any run of a block is found without going through those before it: a read asks the index of each log.
//! A merge asks those of newer logs about each ledger, ascending, and decodes a block at a time ([`IndexWalk`]).
//!
//! # Invariants
//! 1. Questions about the reach of runs are answered exactly, without the disk: that no run of a log reaches an entry is
//!    proven. Only the entries of a run with gaps have to be looked up on the disk.
//! 2. It comes from a footer that was verified whole, and has the checksum of each of its blocks: one that is read again is
//!    used only if it is the same (IB8).
//!
//! # Limits
//! 48 bytes for each [`FOOTER_BLOCK_EXTENTS`] runs, and for each run 3 to 6 bytes where ledger ids are near each other, 32
//! at most. A look-up bisects the blocks, then the runs of one; one of many ledgers does so in a single pass. 2 KiB for each walk.

use super::FOOTER_BLOCK_EXTENTS;
use crate::Extent;
use crate::codec::Crc32c;
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

/// Ledger, first entry, span, bytes: see the layout.
const COLUMNS: usize = 4;
/// The least `first` and the least number of bytes, in front of the columns.
const HEAD_BYTES: usize = 2 * size_of::<u64>();
/// Behind the last column, so that eight bytes can be read wherever a number begins.
const PADDING: [u8; 8] = [0; 8];

#[derive(Debug)]
struct Block {
    ledger: LedgerId,
    first: EntryId,
    begin: u64,
    checksum: u32,
    widths: [u8; COLUMNS],
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
    /// The runs of the block under way.
    block: Vec<IndexedRun>,
    extents: usize,
    run_bytes: u64,
    last_ledger: Option<LedgerId>,
    checksum: Crc32c,
    encoded: Vec<u8>,
}

impl PagedIndexBuilder {
    /// Adds the next run, ascending by (ledger, first).
    pub(crate) fn push(&mut self, extent: &Extent) {
        self.block.push(IndexedRun {
            number: self.extents,
            ledger: extent.ledger,
            first: extent.first,
            last: extent.last,
            bytes: extent.bytes(),
        });
        self.encoded.clear();
        extent.encode(&mut self.encoded);
        self.checksum.update(&self.encoded);
        self.extents += 1;
        self.run_bytes += extent.bytes();
        if self.block.len() == FOOTER_BLOCK_EXTENTS {
            self.close_block();
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let block = self.block.capacity() * size_of::<IndexedRun>();
        (self.blocks.capacity() * size_of::<Block>() + self.bytes.capacity() + block) as u64
    }

    fn close_block(&mut self) {
        let Some(&IndexedRun { ledger, first, .. }) = self.block.first() else { return };
        let least_first = self.block.iter().map(|run| run.first.get()).min().unwrap_or_default();
        let least_bytes = self.block.iter().map(|run| run.bytes).min().unwrap_or_default();
        let columns = |run: &IndexedRun| -> [u64; COLUMNS] {
            [
                run.ledger.get().abs_diff(ledger.get()),
                run.first.get().abs_diff(least_first),
                run.last.get().abs_diff(run.first.get()),
                run.bytes - least_bytes,
            ]
        };
        let rows: Vec<[u64; COLUMNS]> = self.block.iter().map(columns).collect();
        let mut widest = [0; COLUMNS];
        for row in &rows {
            widest.iter_mut().zip(row).for_each(|(widest, number)| *widest |= number);
        }
        let widths = widest.map(|number| (u64::BITS - number.leading_zeros()).div_ceil(8) as u8);
        let begin = self.bytes.len() as u64;
        let checksum = std::mem::take(&mut self.checksum).value();
        self.blocks.push(Block { ledger, first, begin, checksum, widths });
        self.bytes.extend_from_slice(&least_first.to_le_bytes());
        self.bytes.extend_from_slice(&least_bytes.to_le_bytes());
        for (column, width) in widths.into_iter().enumerate() {
            for row in &rows {
                self.bytes.extend_from_slice(&row[column].to_le_bytes()[..usize::from(width)]);
            }
        }
        self.last_ledger = self.block.last().map(|run| run.ledger);
        self.block.clear();
    }

    /// `None` for a log without runs.
    pub(crate) fn finish(mut self) -> Option<PagedIndex> {
        self.close_block();
        let last_ledger = self.last_ledger?;
        self.bytes.extend_from_slice(&PADDING);
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

/// How far questions that ascend have come in an index. The runs of one block are decoded, because most questions are about the
/// next run.
#[derive(Debug, Default)]
pub(crate) struct IndexWalk {
    runs: Vec<IndexedRun>,
    /// Those before it are behind.
    at: usize,
    next_block: usize,
}

/// The columns of one block.
#[derive(Clone, Copy)]
struct Columns<'a> {
    /// From the head on, with the padding at the end.
    bytes: &'a [u8],
    ledger: u64,
    least_first: u64,
    least_bytes: u64,
    widths: [usize; COLUMNS],
    /// Where each column begins.
    begins: [usize; COLUMNS],
    /// The number of its first run, and how many it has.
    number: usize,
    len: usize,
}

/// A number of so many bytes; there is padding behind the last.
fn number_at(bytes: &[u8], at: usize, width: usize) -> u64 {
    let eight = bytes[at..].first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
    if width == 8 { eight } else { eight & ((1 << (8 * width)) - 1) }
}

impl Columns<'_> {
    fn get(&self, column: usize, place: usize) -> u64 {
        let width = self.widths[column];
        number_at(self.bytes, self.begins[column] + place * width, width)
    }

    fn ledger(&self, place: usize) -> u64 {
        self.ledger + self.get(0, place)
    }

    fn first(&self, place: usize) -> u64 {
        self.least_first + self.get(1, place)
    }

    fn last(&self, place: usize) -> u64 {
        self.first(place) + self.get(2, place)
    }

    fn run(&self, place: usize) -> Option<IndexedRun> {
        let id = |id: u64| i64::try_from(id).ok();
        Some(IndexedRun {
            number: self.number + place,
            ledger: LedgerId::new(id(self.ledger(place))?)?,
            first: EntryId::new(id(self.first(place))?)?,
            last: EntryId::new(id(self.last(place))?)?,
            bytes: self.least_bytes + self.get(3, place),
        })
    }

    /// The first run whose (ledger, last) is not below this; its length when there is none.
    fn first_reaching(&self, ledger: LedgerId, entry: EntryId) -> usize {
        let (ledger, entry) = (ledger.get().unsigned_abs(), entry.get().unsigned_abs());
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low.midpoint(high);
            let its_ledger = self.ledger(middle);
            if its_ledger < ledger || (its_ledger == ledger && self.last(middle) < entry) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// The runs of one block from one place on, and those behind it.
struct Runs<'a> {
    index: &'a PagedIndex,
    /// The block that is next.
    block: usize,
    columns: Option<Columns<'a>>,
    place: usize,
}

impl Runs<'_> {
    /// Goes to the next block; false when there is none.
    fn next_block(&mut self) -> bool {
        self.columns = self.index.columns(self.block);
        self.place = 0;
        self.block += usize::from(self.columns.is_some());
        self.columns.is_some()
    }
}

impl Iterator for Runs<'_> {
    type Item = IndexedRun;

    fn next(&mut self) -> Option<IndexedRun> {
        while self.columns.as_ref().is_none_or(|columns| self.place == columns.len) {
            if !self.next_block() {
                return None;
            }
        }
        let run = self.columns.as_ref()?.run(self.place);
        self.place += 1;
        run
    }
}

impl PagedIndex {
    /// The index of these extents: all of a log, ascending. `None` for a log without any.
    pub(crate) fn of(extents: &[Extent]) -> Option<PagedIndex> {
        let mut builder = PagedIndexBuilder::default();
        extents.iter().for_each(|extent| builder.push(extent));
        builder.finish()
    }

    fn columns(&self, block: usize) -> Option<Columns<'_>> {
        let Block { ledger, begin, widths, .. } = self.blocks.get(block)?;
        let number = block * FOOTER_BLOCK_EXTENTS;
        let len = (self.extents - number).min(FOOTER_BLOCK_EXTENTS);
        let bytes = &self.bytes[*begin as usize..];
        let widths = widths.map(usize::from);
        let mut next = HEAD_BYTES;
        let begins = widths.map(|width| {
            next += width * len;
            next - width * len
        });
        Some(Columns {
            bytes,
            ledger: ledger.get().unsigned_abs(),
            least_first: number_at(bytes, 0, 8),
            least_bytes: number_at(bytes, 8, 8),
            widths,
            begins,
            number,
            len,
        })
    }

    /// The runs of this ledger that reach this entry, and all behind them.
    fn runs_near(&self, ledger: LedgerId, entry: EntryId) -> Runs<'_> {
        let behind = self.blocks.partition_point(|block| (block.ledger, block.first) <= (ledger, entry));
        let mut runs = self.runs_from_block(behind.saturating_sub(1));
        if runs.next_block()
            && let Some(columns) = &runs.columns
        {
            runs.place = columns.first_reaching(ledger, entry);
        }
        runs
    }

    fn runs_from_block(&self, block: usize) -> Runs<'_> {
        Runs { index: self, block, columns: None, place: 0 }
    }

    /// The run that reaches the entry; at most one does.
    pub(crate) fn find(&self, ledger: LedgerId, entry: EntryId) -> Option<usize> {
        self.runs_within(ledger, entry, entry).next().map(|run| run.number)
    }

    /// True when a run of the ledger reaches into `first..=last`. Questions to one `walk` ascend by ledger and first entry.
    pub(crate) fn reaches(
        &self,
        walk: &mut IndexWalk,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
    ) -> bool {
        loop {
            while let Some(run) = walk.runs.get(walk.at) {
                if (run.ledger, run.last) >= (ledger, first) {
                    return run.ledger == ledger && run.first <= last;
                }
                walk.at += 1;
            }
            if walk.next_block >= self.blocks.len() {
                return false;
            }
            let block = self.block_of(ledger, first, walk.next_block);
            walk.runs.clear();
            walk.runs.extend(self.runs_from(block * FOOTER_BLOCK_EXTENTS, FOOTER_BLOCK_EXTENTS));
            (walk.at, walk.next_block) = (0, block + 1);
        }
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
        runs.take_while(move |run| run.ledger == ledger && run.first <= last)
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
            let block = self.block_of(ledger, EntryId::FIRST, at_block.unwrap_or(0));
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

    /// The block in which the runs of a ledger that reach the entry begin, if it has any, which is not before block `from`. From
    /// there on in steps that double: it is mostly near.
    fn block_of(&self, ledger: LedgerId, entry: EntryId, from: usize) -> usize {
        let begins_before = |block: &Block| (block.ledger, block.first) <= (ledger, entry);
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
            let questions = probes.iter().map(|(at, offset)| {
                let run = &extents[usize::from(*at) % extents.len()];
                (run.ledger, EntryId::new(run.first.get() + offset).unwrap_or(run.first))
            });
            let questions: BTreeSet<(LedgerId, EntryId)> = questions.collect();
            let mut walk = IndexWalk::default();
            for (ledger, first) in questions {
                for last in [first, EntryId::new(first.get() + 5).unwrap(), EntryId::MAX] {
                    let reaches = index.runs_within(ledger, first, last).next().is_some();
                    prop_assert_eq!(index.reaches(&mut walk, ledger, first, last), reaches);
                }
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
