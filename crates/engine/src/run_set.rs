//! Entries as runs.

use crate::api::EntryRun;
use bindery_types::EntryId;

/// Collects ids, which come in any order and with duplicates, as runs.
///
/// # Limits
/// Twice `max` runs are held; it gives up when more than `max` are left once those that touch are joined.
pub(crate) struct RunSet {
    runs: Vec<EntryRun>,
    max: usize,
    is_too_much: bool,
    /// Entries outside of these bounds are left out.
    within: (EntryId, EntryId),
}

impl RunSet {
    pub(crate) fn new(max: usize) -> RunSet {
        RunSet { runs: Vec::new(), max, is_too_much: false, within: (EntryId::FIRST, EntryId::MAX) }
    }

    /// For the entries from `first` to `last`, however many runs they are.
    pub(crate) fn within(first: EntryId, last: EntryId) -> RunSet {
        RunSet { within: (first, last), ..RunSet::new(usize::MAX) }
    }

    /// Entries outside of them are left out.
    pub(crate) fn bounds(&self) -> (EntryId, EntryId) {
        self.within
    }

    /// It has given up.
    pub(crate) fn is_too_much(&self) -> bool {
        self.is_too_much
    }

    /// Begins again.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.is_too_much = false;
    }

    /// Adds ids; the cheapest when they ascend.
    pub(crate) fn extend(&mut self, entries: impl IntoIterator<Item = EntryId>) {
        let (first, last) = self.within;
        for entry in entries.into_iter().filter(|entry| *entry >= first && *entry <= last) {
            match self.runs.last_mut() {
                Some(run) if run.last.get().checked_add(1) == Some(entry.get()) => run.last = entry,
                _ if self.is_too_much => return,
                _ => {
                    if self.runs.len() / 2 >= self.max {
                        self.join();
                        self.is_too_much = self.runs.len() > self.max;
                    }
                    self.runs.push(EntryRun { first: entry, last: entry });
                }
            }
        }
    }

    /// Adds a run, as far as it is within the bounds. However long it is, this takes the same time.
    pub(crate) fn add(&mut self, run: EntryRun) {
        let run = EntryRun { first: run.first.max(self.within.0), last: run.last.min(self.within.1) };
        if run.first > run.last {
            return;
        }
        self.extend([run.first]);
        if !self.is_too_much
            && let Some(last) = self.runs.last_mut()
        {
            last.last = last.last.max(run.last);
        }
    }

    /// Joins runs that touch or overlap.
    fn join(&mut self) {
        self.runs.sort_unstable_by_key(|run| run.first);
        self.runs.dedup_by(|next, run| {
            let touches = next.first.get() <= run.last.get().saturating_add(1);
            if touches {
                run.last = run.last.max(next.last);
            }
            touches
        });
    }

    /// Maximal runs, ascending; `None` when they are more than `max`.
    pub(crate) fn finish(mut self) -> Option<Vec<EntryRun>> {
        self.join();
        (!self.is_too_much && self.runs.len() <= self.max).then_some(self.runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(ids: impl IntoIterator<Item = i64>, max: usize) -> Option<Vec<(i64, i64)>> {
        let mut runs = RunSet::new(max);
        runs.extend(ids.into_iter().map(|id| EntryId::new(id).unwrap()));
        Some(runs.finish()?.iter().map(|run| (run.first.get(), run.last.get())).collect())
    }

    #[test]
    fn runs_are_maximal() {
        assert_eq!(ends([5, 3, 4, 4, 9, 0], usize::MAX).unwrap(), [(0, 0), (3, 5), (9, 9)]);
        assert_eq!(ends([], 1).unwrap(), []);
        assert_eq!(ends([i64::MAX, i64::MAX], 1).unwrap(), [(i64::MAX, i64::MAX)]);
    }

    #[test]
    fn a_run_counts_as_one_however_long_it_is() {
        let run =
            |first, last| EntryRun { first: EntryId::new(first).unwrap(), last: EntryId::new(last).unwrap() };
        let mut runs = RunSet::new(2);
        for (first, last) in [(0, 1 << 60), (5, 9), ((1 << 60) + 1, (1 << 60) + 1), (i64::MAX, i64::MAX)] {
            runs.add(run(first, last));
        }
        assert_eq!(runs.finish().unwrap(), [run(0, (1 << 60) + 1), run(i64::MAX, i64::MAX)]);
        let mut runs = RunSet::within(EntryId::new(7).unwrap(), EntryId::new(8).unwrap());
        runs.add(run(0, i64::MAX));
        assert_eq!(runs.finish().unwrap(), [run(7, 8)]);
    }

    #[test]
    fn a_set_of_runs_stays_within_its_limit() {
        // Evens, then odds: 1000 runs first, one in the end.
        let evens_and_odds = (0..2000).step_by(2).chain((1..2000).step_by(2));
        assert_eq!(ends(evens_and_odds.clone(), 1000).unwrap(), [(0, 1999)]);
        assert_eq!(ends(evens_and_odds, 499), None);
        assert_eq!(ends((0..300).step_by(3), 99), None);
        assert_eq!(ends((0..300).step_by(3), 100).unwrap().len(), 100);
        // The same ids again and again take no more room.
        assert_eq!(ends((0..100).flat_map(|_| (0..30).step_by(3)), 10).unwrap().len(), 10);
    }
}
