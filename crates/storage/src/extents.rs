//! The extent directory: for the logs whose extents are in memory, which runs may hold an entry.
//!
//! # Invariants
//! 1. Candidates come newest generation first. Copies of equal generation are the same write (a merge copies an
//!    entry with its generation), so their order does not matter.
//! 2. A ledger's runs are sorted by first entry, with the running maximum of their last entries: a lookup visits
//!    the runs that reach the entry and, in the usual case of runs that do not overlap, one other.
//! 3. `last_entry` and `max_lac` are kept, not computed.
//! 4. `bytes` is what the memory of all runs comes to: the capacity of every list, and a charge for each node.
//!
//! # Limits
//! About 120 bytes per run, and 140 per ledger; the owner pages logs out ([`crate::LogView`]).

use crate::{Extent, LogId};
use bindery_types::{EntryId, LedgerId};
use std::collections::BTreeMap;

/// Which runs hold a range of consecutive entries, from the first entry of the query on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coverage<R> {
    /// No run spans any of them up to this entry.
    Nothing(EntryId),
    /// This run has each of them up to this entry, and no other run spans any of these.
    Sole(R, EntryId),
    /// Several runs, or one with gaps, may have the first of them; or only the disk can tell.
    Unclear,
}

/// Runs of all live logs of a ledger directory.
#[derive(Debug, Default, Clone)]
pub struct ExtentDirectory {
    ledgers: BTreeMap<LedgerId, Runs>,
    /// Ledger and first entry of each run of each log, ascending: the time to find the runs of a log again depends on what it holds, not
    /// on what its ledgers have in other logs.
    logs: BTreeMap<LogId, Vec<(LedgerId, EntryId)>>,
    extents: usize,
    bytes: u64,
}

/// Charged for a ledger: its node, and what the allocator adds to two lists.
const LEDGER_BYTES: usize = (size_of::<LedgerId>() + size_of::<Runs>()) * 3 / 2 + 32;
/// Charged for a log.
const LOG_BYTES: usize = 64;
/// Lists shorter than this grow by one: a bookie with very many ledgers has few runs of most of them.
const GROW_BY_ONE: usize = 8;

/// The runs of one ledger; never empty.
#[derive(Debug, Default, Clone)]
struct Runs {
    /// By (first, log).
    runs: Vec<Extent>,
    /// `reach[i]` is the largest `last` among `runs[..=i]`.
    reach: Vec<EntryId>,
    max_lac: Option<EntryId>,
}

impl Runs {
    fn bytes(&self) -> u64 {
        let lists = self.runs.capacity() * size_of::<Extent>() + self.reach.capacity() * size_of::<EntryId>();
        (LEDGER_BYTES + lists) as u64
    }

    fn insert(&mut self, extent: Extent) {
        if self.runs.len() < GROW_BY_ONE {
            self.runs.reserve_exact(1);
            self.reach.reserve_exact(self.runs.len() + 1 - self.reach.len());
        }
        let at = self.runs.partition_point(|run| (run.first, run.log_id) < (extent.first, extent.log_id));
        self.runs.insert(at, extent);
        self.max_lac = self.max_lac.max(extent.max_lac);
        self.recompute_reach(at);
    }

    fn remove_log(&mut self, log_id: LogId) -> usize {
        let before = self.runs.len();
        self.runs.retain(|run| run.log_id != log_id);
        self.max_lac = self.runs.iter().map(|run| run.max_lac).max().flatten();
        self.recompute_reach(0);
        if self.runs.len() * 2 < self.runs.capacity() {
            self.runs.shrink_to_fit();
            self.reach.shrink_to_fit();
        }
        before - self.runs.len()
    }

    fn recompute_reach(&mut self, from: usize) {
        self.reach.truncate(from);
        let mut reach = self.reach.last().copied();
        for run in &self.runs[from..] {
            let furthest = reach.map_or(run.last, |reach| reach.max(run.last));
            self.reach.push(furthest);
            reach = Some(furthest);
        }
    }
}

impl ExtentDirectory {
    /// An empty directory.
    pub fn new() -> ExtentDirectory {
        ExtentDirectory::default()
    }

    /// Adds the runs of a log.
    ///
    /// # Panics
    /// When the log is there already or an extent is of another log.
    pub fn add_log(&mut self, log_id: LogId, extents: &[Extent]) {
        assert!(!self.logs.contains_key(&log_id), "log {log_id} is added once");
        self.add_runs(log_id, extents);
    }

    /// Adds more runs of a log, which come after those that were added before.
    pub fn add_runs(&mut self, log_id: LogId, extents: &[Extent]) {
        let places = self.logs.entry(log_id).or_insert_with(|| {
            self.bytes += LOG_BYTES as u64;
            Vec::new()
        });
        let place_bytes = |places: &Vec<_>| (places.capacity() * size_of::<(LedgerId, EntryId)>()) as u64;
        let before = place_bytes(places);
        places.reserve(extents.len());
        let mut ascends = true;
        for extent in extents {
            assert_eq!(extent.log_id, log_id, "extents are added with their log");
            let place = (extent.ledger, extent.first);
            ascends &= places.last().is_none_or(|last| *last < place);
            places.push(place);
        }
        // In a real log they always ascend.
        if !ascends {
            places.sort_unstable();
            places.dedup();
        }
        self.bytes = self.bytes - before + place_bytes(places);
        for extent in extents {
            let mut is_new = false;
            let runs = self.ledgers.entry(extent.ledger).or_insert_with(|| {
                is_new = true;
                Runs::default()
            });
            let before = if is_new { 0 } else { runs.bytes() };
            runs.insert(*extent);
            self.bytes = self.bytes - before + runs.bytes();
        }
        self.extents += extents.len();
    }

    /// Forgets the runs of a log; false when it is not there.
    pub fn remove_log(&mut self, log_id: LogId) -> bool {
        let is_there = self.logs.contains_key(&log_id);
        while !self.remove_runs(log_id, usize::MAX) {}
        is_there
    }

    /// Forgets `most` runs of a log, the last ones first, and the other runs of the same ledgers with them. True when none is left.
    pub fn remove_runs(&mut self, log_id: LogId, most: usize) -> bool {
        let Some(places) = self.logs.get_mut(&log_id) else { return true };
        // Runs of one ledger go together.
        let mut keep = places.len().saturating_sub(most);
        while keep > 0 && keep < places.len() && places[keep - 1].0 == places[keep].0 {
            keep -= 1;
        }
        let mut gone = places.split_off(keep);
        let is_empty = places.is_empty();
        if is_empty {
            let capacity = places.capacity();
            self.bytes -= (LOG_BYTES + capacity * size_of::<(LedgerId, EntryId)>()) as u64;
            self.logs.remove(&log_id);
        }
        gone.dedup_by_key(|(ledger, _)| *ledger);
        for (ledger, _) in gone {
            let Some(runs) = self.ledgers.get_mut(&ledger) else { continue };
            let before = runs.bytes();
            self.extents -= runs.remove_log(log_id);
            self.bytes -= before;
            if runs.runs.is_empty() {
                self.ledgers.remove(&ledger);
            } else {
                self.bytes += runs.bytes();
            }
        }
        is_empty
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True when runs of the log are here.
    pub fn has_log(&self, log_id: LogId) -> bool {
        self.logs.contains_key(&log_id)
    }

    /// Fills `found` with the runs that may hold the entry, newest generation first. The buffer is the caller's so
    /// that a lookup allocates nothing.
    pub fn candidates(&self, ledger: LedgerId, entry: EntryId, found: &mut Vec<Extent>) {
        found.clear();
        self.visit_candidates(ledger, entry, |run| found.push(*run));
        found.sort_unstable_by_key(|run| std::cmp::Reverse((run.generation, run.log_id)));
    }

    /// The runs that may hold the entry, in no order of age.
    pub fn visit_candidates(&self, ledger: LedgerId, entry: EntryId, mut visit: impl FnMut(&Extent)) {
        let Some(runs) = self.ledgers.get(&ledger) else { return };
        let end = runs.runs.partition_point(|run| run.first <= entry);
        for at in (0..end).rev() {
            if runs.reach[at] < entry {
                break;
            }
            if runs.runs[at].may_hold(entry) {
                visit(&runs.runs[at]);
            }
        }
    }

    /// Which runs hold the entries from `first` on, as far as one answer is true of them, and up to `last` at most. A run with
    /// gaps, which lacks some of them, counts as the sole one only `with_gaps`.
    pub fn coverage(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        with_gaps: bool,
    ) -> Coverage<&Extent> {
        let Some(runs) = self.ledgers.get(&ledger) else { return Coverage::Nothing(last) };
        let behind = runs.runs.partition_point(|run| run.first <= first);
        let next = runs.runs.get(behind).filter(|next| next.first <= last);
        let mut until = next.and_then(|next| EntryId::new(next.first.get() - 1)).unwrap_or(last);
        let mut sole = None;
        for at in (0..behind).rev() {
            if runs.reach[at] < first {
                break;
            }
            let run = &runs.runs[at];
            if run.last < first {
                continue;
            }
            if sole.is_some() || !(with_gaps || run.is_dense()) {
                return Coverage::Unclear;
            }
            until = until.min(run.last);
            sole = Some(run);
        }
        sole.map_or(Coverage::Nothing(until), |run| Coverage::Sole(run, until))
    }

    /// The runs of a log, ascending; none if it is not here.
    pub fn of_log(&self, log_id: LogId) -> Vec<Extent> {
        self.some_of_log(log_id, 0, usize::MAX)
    }

    /// At most `most` runs of a log, ascending, from number `from` on.
    pub fn some_of_log(&self, log_id: LogId, from: usize, most: usize) -> Vec<Extent> {
        let places = self.logs.get(&log_id).into_iter().flatten().skip(from).take(most);
        let runs_at = |(ledger, first): &(LedgerId, EntryId)| {
            let (runs, place) = (self.runs(*ledger), (*first, log_id));
            let begin = runs.partition_point(|run| (run.first, run.log_id) < place);
            runs[begin..].iter().take_while(move |run| (run.first, run.log_id) == place)
        };
        places.flat_map(runs_at).copied().collect()
    }

    /// The runs of a ledger that reach into `first..=last`, the last ones first.
    pub fn visit_overlapping(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
        mut visit: impl FnMut(&Extent),
    ) {
        let Some(runs) = self.ledgers.get(&ledger) else { return };
        let end = runs.runs.partition_point(|run| run.first <= last);
        for at in (0..end).rev() {
            if runs.reach[at] < first {
                break;
            }
            if runs.runs[at].last >= first {
                visit(&runs.runs[at]);
            }
        }
    }

    /// The runs of a ledger, by first entry.
    pub fn runs(&self, ledger: LedgerId) -> &[Extent] {
        self.ledgers.get(&ledger).map_or(&[], |runs| &runs.runs)
    }

    /// The highest entry of a ledger.
    pub fn last_entry(&self, ledger: LedgerId) -> Option<EntryId> {
        self.ledgers.get(&ledger)?.reach.last().copied()
    }

    /// The largest LAC (last add confirmed) that an entry of the ledger carries.
    pub fn max_lac(&self, ledger: LedgerId) -> Option<EntryId> {
        self.ledgers.get(&ledger)?.max_lac
    }

    /// All ledgers with entries, ascending.
    pub fn ledgers(&self) -> impl Iterator<Item = LedgerId> + '_ {
        self.ledgers.keys().copied()
    }

    /// The logs, ascending.
    pub fn logs(&self) -> impl Iterator<Item = LogId> + '_ {
        self.logs.keys().copied()
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.extents
    }

    /// True without runs.
    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }
}

#[cfg(test)]
impl ExtentDirectory {
    /// Recounts the bytes, to check invariant 4.
    fn counted_bytes(&self) -> u64 {
        let places = |places: &Vec<_>| LOG_BYTES + places.capacity() * size_of::<(LedgerId, EntryId)>();
        let logs: usize = self.logs.values().map(places).sum();
        logs as u64 + self.ledgers.values().map(Runs::bytes).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Generation;
    use crate::entry_log::test_extent;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id(raw: i64) -> EntryId {
        EntryId::new(raw).unwrap()
    }

    /// (ledger, first, count, stride, max LAC)
    type Shape = (i64, i64, u32, u64, i64);

    fn shape() -> impl Strategy<Value = Shape> {
        (0..4i64, 0..60i64, 1..20u32, 1..4u64, -1..60i64)
    }

    proptest! {
        /// Logs with random overlapping runs come and go; every lookup equals the one in a plain list of copies.
        #[test]
        fn lookups_equal_a_list_of_copies(
            steps in prop::collection::vec((any::<bool>(), prop::collection::vec(shape(), 0..6), 0..50u64), 1..25)
        ) {
            let mut directory = ExtentDirectory::new();
            let mut model: BTreeMap<LogId, Vec<Extent>> = BTreeMap::new();
            for (number, (remove, shapes, generation)) in steps.into_iter().enumerate() {
                if remove && !model.is_empty() {
                    let victim = *model.keys().nth(generation as usize % model.len()).unwrap();
                    model.remove(&victim);
                    if generation % 2 == 0 {
                        while !directory.remove_runs(victim, 2) {}
                    } else {
                        prop_assert!(directory.remove_log(victim));
                    }
                    prop_assert!(!directory.remove_log(victim));
                } else {
                    let log_id = LogId(number as u64);
                    let mut extents: Vec<Extent> = shapes
                        .into_iter()
                        .map(|(ledger, first, count, stride, lac)| {
                            let last = first + i64::from(count - 1) * stride as i64;
                            let stride = if count == 1 { 1 } else { stride };
                            let ledger = LedgerId::new(ledger).unwrap();
                            let (first, last) = (id(first), id(last));
                            let max_lac = EntryId::new(lac);
                            let generation = Generation(generation);
                            test_extent(log_id, ledger, first, last, count, stride, max_lac, generation)
                        })
                        .collect();
                    extents.sort_by_key(|e| (e.ledger, e.first));
                    if generation % 2 == 0 || extents.is_empty() {
                        directory.add_log(log_id, &extents);
                    } else {
                        extents.chunks(2).for_each(|some| directory.add_runs(log_id, some));
                    }
                    model.insert(log_id, extents);
                }
                let copies: Vec<Extent> = model.values().flatten().copied().collect();
                prop_assert_eq!(directory.len(), copies.len());
                prop_assert_eq!(directory.bytes(), directory.counted_bytes());
                for (log_id, extents) in &model {
                    // Runs of a real log never begin with the same entry; these may.
                    let key = |e: &Extent| (e.ledger, e.first, e.last, e.count, e.stride, e.max_lac);
                    let (mut found, mut expected) = (directory.of_log(*log_id), extents.clone());
                    found.sort_by_key(key);
                    expected.sort_by_key(key);
                    prop_assert_eq!(found, expected);
                }
                let ledgers: BTreeSet<LedgerId> = copies.iter().map(|e| e.ledger).collect();
                prop_assert_eq!(directory.ledgers().collect::<Vec<_>>(), ledgers.into_iter().collect::<Vec<_>>());
                let mut found = Vec::new();
                for ledger in (0..4).map(|l| LedgerId::new(l).unwrap()) {
                    let of_ledger = || copies.iter().filter(|e| e.ledger == ledger);
                    prop_assert_eq!(directory.last_entry(ledger), of_ledger().map(|e| e.last).max());
                    prop_assert_eq!(directory.max_lac(ledger), of_ledger().map(|e| e.max_lac).max().flatten());
                    for entry in (0..130).map(id) {
                        directory.candidates(ledger, entry, &mut found);
                        let holds = |e: &&Extent| (0..e.count)
                            .any(|i| e.first.get() + i64::from(i) * e.stride as i64 == entry.get());
                        let mut expected: Vec<Extent> = of_ledger().filter(holds).copied().collect();
                        prop_assert!(found.is_sorted_by_key(|e| std::cmp::Reverse(e.generation)));
                        let key = |e: &Extent| (e.log_id, e.first, e.last, e.count);
                        expected.sort_by_key(key);
                        let mut actual = found.clone();
                        actual.sort_by_key(key);
                        prop_assert_eq!(actual, expected);
                    }
                    let holders = |entry: i64| {
                        let holds = |e: &&Extent| e.first.get() <= entry && entry <= e.last.get();
                        of_ledger().filter(holds).count()
                    };
                    for (first, last) in (0..60).flat_map(|first| [(first, first), (first, first + 17)]) {
                        let with_gaps = first % 2 == 0;
                        match directory.coverage(ledger, id(first), id(last), with_gaps) {
                            Coverage::Nothing(until) => {
                                prop_assert!((first..=until.get()).all(|entry| holders(entry) == 0));
                                prop_assert!(until.get() == last || holders(until.get() + 1) > 0);
                            }
                            Coverage::Sole(run, until) => {
                                prop_assert!((with_gaps || run.stride == 1) && until.get() <= last);
                                prop_assert!((first..=until.get()).all(|entry| holders(entry) == 1));
                                prop_assert!(run.first <= id(first) && until <= run.last);
                                let goes_on = until.get() < last && until < run.last;
                                prop_assert!(!goes_on || holders(until.get() + 1) > 1);
                            }
                            Coverage::Unclear => {
                                let has_first = |e: &&Extent| e.first.get() <= first && first <= e.last.get();
                                let mut of_first = of_ledger().filter(has_first);
                                prop_assert!(holders(first) > 1 || (!with_gaps && of_first.any(|e| e.stride > 1)));
                            }
                        }
                    }
                    for extent in of_ledger() {
                        let overlaps = |e: &&Extent| e.first <= extent.last && e.last >= extent.first;
                        let mut expected: Vec<Extent> = of_ledger().filter(overlaps).copied().collect();
                        let mut overlapping = Vec::new();
                        directory.visit_overlapping(ledger, extent.first, extent.last, |run| overlapping.push(*run));
                        let key = |e: &Extent| (e.log_id, e.first, e.last, e.count);
                        expected.sort_by_key(key);
                        overlapping.sort_by_key(key);
                        prop_assert_eq!(overlapping, expected);
                    }
                }
            }
        }
    }

    /// Planning asks for the runs of each log in turn, of ledgers that have runs in every log.
    #[test]
    fn the_runs_of_a_log_are_those_of_no_other_log() {
        let (logs, ledgers) = (200, 4);
        let mut directory = ExtentDirectory::new();
        for log in 0..logs {
            let runs: Vec<Extent> = (0..ledgers)
                .map(|ledger| {
                    // Every fifth log repeats the first entry of the one before: a run is found by both its keys.
                    let first = (log - i64::from(log % 5 == 4)) * 10;
                    let (ledger, generation) = (LedgerId::new(ledger).unwrap(), Generation(1 + log as u64));
                    test_extent(LogId(log as u64), ledger, id(first), id(first + 9), 10, 1, None, generation)
                })
                .collect();
            directory.add_log(LogId(log as u64), &runs);
        }
        for log in (0..logs).map(|log| LogId(log as u64)) {
            let all = (0..ledgers).flat_map(|ledger| directory.runs(LedgerId::new(ledger).unwrap()));
            let expected: Vec<Extent> = all.filter(|run| run.log_id == log).copied().collect();
            assert_eq!(expected.len(), ledgers as usize);
            assert_eq!(directory.of_log(log), expected);
        }
    }
}
