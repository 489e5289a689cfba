//! The write cache: an index over the journal chunks. It holds no entry bytes of its own.
//!
//! # Invariants
//! 1. Of several copies of an entry the one with the higher sequence is the newer one.
//! 2. A copy that is not durable is never returned as found; an older durable one stays until it is overtaken.
//! 3. Copies that came in order ascend by entry and by sequence.

use crate::api::EntryRun;
use crate::run_set::RunSet;
use crate::tier::PlacedUpdate;
use bindery_io::chunk::ChunkSlice;
use bindery_storage::{ExtentChange, LedgerRecord};
use bindery_types::{EntryId, LedgerId};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// Where one copy of an entry stands in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheRecord {
    pub(crate) entry: i64,
    /// The sequence of its journal record in the shard.
    pub(crate) sequence: u64,
    /// Index of the chunk in its cache.
    pub(crate) chunk: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) crc32c: u32,
}

/// The copies a cache holds of one ledger's entries; a pointer while there are none.
#[derive(Debug, Default)]
pub(crate) struct CacheRecords(Option<Box<Copies>>);

/// With many ledgers most have one entry in a cache: that one takes a single allocation.
#[derive(Debug, Default)]
struct Copies {
    /// Entries that came in order: ascending, one copy each.
    run: SmallVec<[CacheRecord; 1]>,
    strays: Option<Box<Strays>>,
}

/// Copies of entries that did not come in order, by entry and sequence. A map, because a writer that sends backwards must not make
/// each add cost a memmove.
type Strays = BTreeMap<(i64, u64), CacheRecord>;

impl Copies {
    /// The strays from this entry on, ascending.
    fn strays_from(&self, entry: i64) -> impl Iterator<Item = &CacheRecord> {
        self.strays.iter().flat_map(move |strays| strays.range((entry, 0)..)).map(|(_, record)| record)
    }

    /// Every copy: first the run, then the strays. Each of the two ascends by entry, the whole does not.
    fn all(&self) -> impl Iterator<Item = &CacheRecord> {
        self.run.iter().chain(self.strays.iter().flat_map(|strays| strays.values()))
    }
}

/// Where a walk over the copies of a ledger goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walk {
    /// Among those that came in order, at this entry.
    Run(i64),
    /// Among the others.
    Strays((i64, u64)),
}

impl Default for Walk {
    fn default() -> Walk {
        Walk::Run(i64::MIN)
    }
}

/// The last of the records from `at` on whose entries follow each other, up to the sequence `durable`. Both ascend (invariant 3), so
/// it is found in steps that double.
fn dense_end(run: &[CacheRecord], at: usize, durable: u64) -> usize {
    let first = run[at].entry;
    let is_dense = |place: usize| {
        run.get(place).is_some_and(|record| {
            record.sequence <= durable && record.entry.abs_diff(first) == (place - at) as u64
        })
    };
    let (mut end, mut step) = (at, 1);
    while is_dense(end + step) {
        end += step;
        step *= 2;
    }
    while step > 1 {
        step /= 2;
        if is_dense(end + step) {
            end += step;
        }
    }
    end
}

/// What a look-up found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The newest durable copy.
    pub(crate) durable: Option<CacheRecord>,
    /// Sequence of the oldest copy that is not durable yet.
    pub(crate) undurable: Option<u64>,
}

impl CacheRecords {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|copies| copies.all().next().is_none())
    }

    /// Bytes on the heap; of strays without what their map adds.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |copies| {
            let strays = copies.strays_from(i64::MIN).count() * size_of::<((i64, u64), CacheRecord)>();
            let run = if copies.run.spilled() { copies.run.capacity() * size_of::<CacheRecord>() } else { 0 };
            size_of::<Copies>() + run + strays
        })
    }

    pub(crate) fn insert(&mut self, record: CacheRecord) {
        let copies = self.0.get_or_insert_default();
        if copies.run.last().is_none_or(|last| last.entry < record.entry) {
            copies.run.push(record);
        } else {
            copies.strays.get_or_insert_default().insert((record.entry, record.sequence), record);
        }
    }

    pub(crate) fn find(&self, entry: i64, durable: u64) -> Found {
        let mut found = Found::default();
        let Some(copies) = &self.0 else { return found };
        let in_run = copies.run.binary_search_by_key(&entry, |r| r.entry).ok().map(|i| &copies.run[i]);
        let strays = copies.strays_from(entry).take_while(|record| record.entry == entry);
        // Ascending by sequence: a stray of an entry is always newer than its copy in the run.
        for record in in_run.into_iter().chain(strays) {
            if record.sequence <= durable {
                found.durable = Some(*record);
            } else if found.undurable.is_none() {
                found.undurable = Some(record.sequence);
            }
        }
        found
    }

    /// The lowest entry from `first` to `last` with a copy, durable or not.
    pub(crate) fn first_within(&self, first: i64, last: i64) -> Option<i64> {
        let copies = self.0.as_ref()?;
        let in_run = copies.run.get(copies.run.partition_point(|r| r.entry < first)).map(|r| r.entry);
        let stray = copies.strays_from(first).next().map(|record| record.entry);
        in_run.into_iter().chain(stray).min().filter(|entry| *entry <= last)
    }

    /// Adds entries with a copy up to the sequence `durable` to `runs`, from where `walk` is on, in `most` steps: one for each run of entries
    /// that came in order, and for each that did not. True when there are no more.
    pub(crate) fn durable_runs(&self, walk: &mut Walk, durable: u64, most: usize, runs: &mut RunSet) -> bool {
        let Some(copies) = &self.0 else { return true };
        let mut left = most;
        if let Walk::Run(from) = *walk {
            let run = &copies.run;
            let mut at = run.partition_point(|record| record.entry < from);
            while let Some(first) = run.get(at).filter(|first| first.sequence <= durable) {
                if left == 0 {
                    *walk = Walk::Run(first.entry);
                    return false;
                }
                left -= 1;
                let end = dense_end(run, at, durable);
                if let (Some(first), Some(last)) = (EntryId::new(first.entry), EntryId::new(run[end].entry)) {
                    runs.add(EntryRun { first, last });
                }
                if runs.is_too_much() {
                    return true;
                }
                at = end + 1;
            }
            *walk = Walk::Strays((i64::MIN, 0));
        }
        let (Walk::Strays(from), Some(strays)) = (*walk, &copies.strays) else { return true };
        for (at, record) in strays.range(from..) {
            if left == 0 {
                *walk = Walk::Strays(*at);
                return false;
            }
            left -= 1;
            if record.sequence <= durable {
                runs.extend(EntryId::new(record.entry));
            }
            if runs.is_too_much() {
                return true;
            }
        }
        true
    }

    /// The newest copy of each entry, ascending. Nothing is copied when all came in order.
    pub(crate) fn newest_ascending(&self) -> Cow<'_, [CacheRecord]> {
        let Some(copies) = &self.0 else { return Cow::Borrowed(&[]) };
        if copies.strays.is_none() {
            return Cow::Borrowed(&copies.run);
        }
        let mut all: Vec<_> = copies.all().copied().collect();
        all.sort_unstable_by_key(|r| (r.entry, std::cmp::Reverse(r.sequence)));
        all.dedup_by_key(|r| r.entry);
        Cow::Owned(all)
    }

    /// Drops copies that will never become durable.
    pub(crate) fn forget_above(&mut self, durable: u64) {
        if let Some(copies) = &mut self.0 {
            copies.run.retain(|r| r.sequence <= durable);
            if let Some(strays) = &mut copies.strays {
                strays.retain(|_, r| r.sequence <= durable);
            }
        }
    }
}

/// What a freeze took out of a shard: immutable until its flush is committed.
pub(crate) struct Frozen {
    /// Age of everything in it, as the entry log will carry it.
    pub(crate) generation: u64,
    pub(crate) chunks: Vec<ChunkSlice>,
    /// Of every ledger that changed, also of one without entries.
    pub(crate) records: HashMap<LedgerId, CacheRecords>,
    /// Bytes of its records and of their index.
    pub(crate) bytes: u64,
    /// State at the freeze of every ledger that changed since the one before.
    pub(crate) states: Vec<LedgerRecord>,
    /// What changed of their extents in object storage. In order, so that a seed of the simulator repeats.
    pub(crate) extents: BTreeMap<LedgerId, FrozenExtents>,
}

/// What changed of a ledger's extents.
#[derive(Default)]
pub(crate) struct FrozenExtents {
    /// The extents from before are gone.
    pub(crate) is_cleared: bool,
    /// Oldest first.
    pub(crate) updates: Vec<PlacedUpdate>,
}

impl Frozen {
    /// The changes of extents for the directory that takes the states.
    pub(crate) fn extent_changes(&self) -> impl Iterator<Item = ExtentChange> {
        self.extents.iter().map(|(ledger, FrozenExtents { is_cleared, updates })| ExtentChange {
            ledger: *ledger,
            is_cleared: *is_cleared,
            updates: updates.iter().map(|placed| placed.update.clone()).collect(),
        })
    }

    /// The changes for the other directories: they may have extents of a removed ledger that was theirs before.
    pub(crate) fn extents_gone(&self) -> impl Iterator<Item = ExtentChange> {
        let gone = self.extents.iter().filter(|(_, change)| change.is_cleared);
        gone.map(|(ledger, _)| ExtentChange { ledger: *ledger, is_cleared: true, updates: Vec::new() })
    }

    pub(crate) fn body(&self, record: &CacheRecord) -> ChunkSlice {
        let start = record.offset as usize;
        self.chunks[record.chunk as usize].slice(start..start + record.length as usize)
    }

    /// As `body`, without a handle of its own: a flush looks at each entry once.
    pub(crate) fn bytes_of(&self, record: &CacheRecord) -> &[u8] {
        let start = record.offset as usize;
        &self.chunks[record.chunk as usize][start..start + record.length as usize]
    }

    pub(crate) fn find(&self, ledger: LedgerId, entry: EntryId, durable: u64) -> Found {
        self.records.get(&ledger).map(|r| r.find(entry.get(), durable)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(entry: i64, sequence: u64) -> CacheRecord {
        CacheRecord { entry, sequence, chunk: 0, offset: 0, length: 0, crc32c: 0 }
    }

    /// A million entries that came in order are found in some steps.
    #[test]
    fn a_run_is_listed_without_a_look_at_each_entry() {
        let mut cache = CacheRecords::default();
        for entry in (0..1_000_000).chain(1_000_001..1_500_000) {
            cache.insert(record(entry, entry as u64 + 1));
        }
        let (mut runs, mut walk) = (RunSet::new(usize::MAX), Walk::default());
        assert!(cache.durable_runs(&mut walk, 1_200_000, 2, &mut runs), "two runs");
        let found: Vec<_> =
            runs.finish().unwrap().iter().map(|run| (run.first.get(), run.last.get())).collect();
        assert_eq!(found, [(0, 999_999), (1_000_001, 1_199_999)]);
    }

    proptest! {
        /// Write cache invariants 1 and 2, against the list of all inserts.
        #[test]
        fn finds_the_newest_durable_copy(entries in prop::collection::vec(0i64..12, 1..60), durable in 0u64..60, steps in 1usize..9) {
            let mut cache = CacheRecords::default();
            for (i, entry) in entries.iter().enumerate() {
                cache.insert(record(*entry, i as u64 + 1));
            }
            for entry in 0..12 {
                let copies = || (1u64..).zip(&entries).filter(|(_, e)| **e == entry).map(|(s, _)| s);
                let found = cache.find(entry, durable);
                prop_assert_eq!(found.durable.map(|r| r.sequence), copies().filter(|s| *s <= durable).max());
                prop_assert_eq!(found.undurable, copies().find(|s| *s > durable));
            }
            for first in 0..12 {
                let above = entries.iter().copied().filter(|entry| (first..=first + 3).contains(entry));
                prop_assert_eq!(cache.first_within(first, first + 3), above.min());
            }
            // An entry whose newest copy is not durable yet still has its older one.
            // However few steps are taken at a time.
            let (mut runs, mut walk) = (RunSet::new(usize::MAX), Walk::default());
            while !cache.durable_runs(&mut walk, durable, steps, &mut runs) {}
            let listed: Vec<i64> = runs
                .finish()
                .unwrap()
                .into_iter()
                .flat_map(|run| run.first.get()..=run.last.get())
                .collect();
            let shown = (0..12).filter(|entry| cache.find(*entry, durable).durable.is_some());
            prop_assert_eq!(listed, shown.collect::<Vec<_>>());
            let newest = cache.newest_ascending();
            let mut expected: Vec<i64> = entries.clone();
            expected.sort_unstable();
            expected.dedup();
            prop_assert_eq!(newest.iter().map(|r| r.entry).collect::<Vec<_>>(), expected);
            for r in newest.iter() {
                let last = (1u64..).zip(&entries).filter(|(_, e)| **e == r.entry).map(|(s, _)| s).max();
                prop_assert_eq!(Some(r.sequence), last);
            }
            cache.forget_above(durable);
            let held = cache.0.map_or(0, |copies| copies.all().count());
            prop_assert_eq!(held, entries.len().min(durable as usize));
        }
    }
}
