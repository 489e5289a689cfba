//! Confirmed entries that members of their write sets lack, and how a ledger's segments tell repair of them.
//!
//! Java's checker reads the first and the last entry that a bookie should have of a segment, and takes the bookie for complete
//! when both are there: it then removes the mark of the ledger. A gap between the two would stay for good, and nobody would
//! know. So a segment is split where such a gap begins. Both halves have the same ensemble: nothing changes for a reader.
//!
//! # Data flow
//! ```text
//! AddWindow::release -> Lack -> Gaps: runs of entries by member -> with_splits -> the next write of metadata
//! filled, or acknowledged late --> ^
//! ```
//!
//! # Invariants
//! 1. In metadata that is written with [`Gaps::with_splits`] every run of entries that a member lacks touches an end of its
//!    entries of a segment (IC23), as far as there are no more than [`RUNS_MAX`] runs, and the metadata does not become larger than
//!    [`GROWN_SIZE_BYTES`] by that.
//! 2. The write sets of all entries stay the same.
//!
//! 3. A run that stands for several, or that has entries which the member got, stays as it is: rather too much than too little.
//!
//! # Limits     [`RUNS_MAX`] runs for each member; behind them one run stands for several

use std::collections::{BTreeMap, BTreeSet};

use bindery_types::{BookieId, EntryId, LedgerMetadata, Quorum};

use crate::metadata_edit::{GROWN_SIZE_BYTES, size_bytes, with_splits};
use crate::transport::AddTag;
use crate::window::{AddWindow, Lack};

/// Gaps of one member that are told from one another: single refusals make them, and each refusal ends in a replacement.
pub(crate) const RUNS_MAX: usize = 64;

/// See the module; of one ledger, since its writer or recoverer began.
#[derive(Debug, Clone)]
pub(crate) struct Gaps {
    quorum: Quorum,
    /// By the tag of the member.
    members: BTreeMap<u64, Gap>,
}

/// Of one member.
#[derive(Debug, Clone)]
struct Gap {
    bookie: BookieId,
    position: usize,
    /// Entries that it lacks, as far as that is known.
    entries: u64,
    /// Ascending.
    runs: Vec<Run>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    first: i64,
    last: i64,
    /// The member lacks all of its entries in it (invariant 3).
    is_exact: bool,
}

impl Gaps {
    pub fn new(quorum: Quorum) -> Gaps {
        Gaps { quorum, members: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A member lacks an entry; those of one member come in their order. False when its runs are not told from one another any
    /// more.
    pub fn add(&mut self, lack: &Lack) -> bool {
        let position = AddWindow::position_of(lack.tag);
        let gap = self.members.entry(lack.tag.0).or_insert_with(|| Gap {
            bookie: lack.bookie.clone(),
            position,
            entries: 0,
            runs: Vec::new(),
        });
        gap.entries += 1;
        let entry = lack.entry.get();
        let is_full = gap.runs.len() == RUNS_MAX;
        match gap.runs.last_mut() {
            Some(run) if !has_any(self.quorum, position, run.last + 1, entry - 1) => run.last = entry,
            Some(run) if is_full => {
                run.last = entry;
                run.is_exact = false;
            }
            Some(_) | None => gap.runs.push(Run { first: entry, last: entry, is_exact: true }),
        }
        gap.runs.last().is_some_and(|run| run.is_exact)
    }

    /// The member has an entry after all. False when it was not known to lack it.
    pub fn fill(&mut self, tag: AddTag, entry: EntryId) -> bool {
        let (quorum, entry) = (self.quorum, entry.get());
        let Some(gap) = self.members.get_mut(&tag.0) else { return false };
        let is_full = gap.runs.len() == RUNS_MAX;
        // Entries of other positions lie between its own.
        let is_own = has_any(quorum, gap.position, entry, entry);
        let is_in = |run: &Run| is_own && (run.first..=run.last).contains(&entry);
        let Some(index) = gap.runs.iter().position(is_in) else { return false };
        let run = &mut gap.runs[index];
        if !run.is_exact {
            return false;
        }
        gap.entries -= 1;
        let before = previous(quorum, gap.position, run.first, entry);
        let before = before.map(|last| Run { last, ..*run });
        let behind = next(quorum, gap.position, entry, run.last);
        let behind = behind.map(|first| Run { first, ..*run });
        if before.is_some() && behind.is_some() && is_full {
            run.is_exact = false;
            return true;
        }
        gap.runs.splice(index..=index, before.into_iter().chain(behind));
        if gap.runs.is_empty() {
            self.members.remove(&tag.0);
        }
        true
    }

    /// A bookie has an entry, wherever it was a member when it got it; the tags under which it was known to lack it.
    pub fn fill_of(&mut self, bookie: &BookieId, entry: EntryId) -> Vec<AddTag> {
        let tags = self.members.iter().filter(|(_, gap)| gap.bookie == *bookie).map(|(tag, _)| AddTag(*tag));
        let mut tags: Vec<AddTag> = tags.collect();
        tags.retain(|tag| self.fill(*tag, entry));
        tags
    }

    /// Copies that members lack.
    pub fn copies(&self) -> u64 {
        self.members.values().map(|gap| gap.entries).sum()
    }

    /// The bookies that lack something.
    pub fn bookies(&self) -> BTreeSet<BookieId> {
        self.members.values().map(|gap| gap.bookie.clone()).collect()
    }

    /// Whether a bookie of the last segment lacks something of it.
    pub fn is_in_last_segment(&self, metadata: &LedgerMetadata) -> bool {
        metadata.segments().last().is_some_and(|segment| {
            let is_of_it = |gap: &Gap| segment.ensemble.get(gap.position) == Some(&gap.bookie);
            let is_there =
                |gap: &Gap| gap.runs.last().is_some_and(|run| run.last >= segment.first_entry.get());
            self.members.values().any(|gap| is_of_it(gap) && is_there(gap))
        })
    }

    /// The metadata with its segments split so that repair sees the gaps (invariant 1). `last_entry`: where the last segment
    /// ends.
    pub fn with_splits(&self, metadata: LedgerMetadata, last_entry: Option<EntryId>) -> LedgerMetadata {
        let mut splits = BTreeSet::new();
        let segments = metadata.segments();
        for (index, segment) in segments.iter().enumerate() {
            let begin = segment.first_entry.get();
            let end = segments
                .get(index + 1)
                .map_or(EntryId::to_wire(last_entry), |next| next.first_entry.get() - 1);
            for gap in self.members.values() {
                if segment.ensemble.get(gap.position) != Some(&gap.bookie) {
                    continue;
                }
                for run in &gap.runs {
                    let (first, last) = (run.first.max(begin), run.last.min(end));
                    if first <= last
                        && has_any(self.quorum, gap.position, begin, first - 1)
                        && has_any(self.quorum, gap.position, last + 1, end)
                    {
                        splits.extend(EntryId::new(first));
                    }
                }
            }
        }
        if splits.is_empty() {
            return metadata;
        }
        let split = with_splits(&metadata, &splits);
        if size_bytes(&split) <= GROWN_SIZE_BYTES { split } else { metadata }
    }
}

/// Whether the member at a position should have any of the entries `first..=last`.
fn has_any(quorum: Quorum, position: usize, first: i64, last: i64) -> bool {
    // Every so many entries come to all positions.
    let last = last.min(first.saturating_add(quorum.ensemble_size() as i64 - 1));
    (first..=last).filter_map(EntryId::new).any(|entry| quorum.is_in_write_set(entry, position))
}

/// The last entry of the member in `first..entry`.
fn previous(quorum: Quorum, position: usize, first: i64, entry: i64) -> Option<i64> {
    let from = first.max(entry - quorum.ensemble_size() as i64);
    (from..entry).rev().find(|&entry| has_any(quorum, position, entry, entry))
}

/// The first entry of the member behind `entry` and up to `last`.
fn next(quorum: Quorum, position: usize, entry: i64, last: i64) -> Option<i64> {
    let until = last.min(entry.saturating_add(quorum.ensemble_size() as i64));
    (entry + 1..=until).find(|&entry| has_any(quorum, position, entry, entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, LedgerSecret, Segment};
    use bytes::Bytes;

    fn ids(names: &str) -> Vec<BookieId> {
        names.split(' ').map(|name| BookieId::new(name).unwrap()).collect()
    }

    fn at(entry: i64) -> EntryId {
        EntryId::new(entry).unwrap()
    }

    fn lack(tag: u64, bookie: &str, entry: i64) -> Lack {
        let bookie = ids(bookie).remove(0);
        Lack { tag: AddTag(tag), bookie, entry: at(entry), body: Bytes::new(), cost_bytes: 1 }
    }

    fn metadata(quorum: Quorum, segments: &[(i64, &str)]) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(quorum, secret);
        for (first, names) in segments {
            metadata.push_segment(Segment { first_entry: at(*first), ensemble: ids(names) }).unwrap();
        }
        metadata
    }

    fn starts(gaps: &Gaps, metadata: &LedgerMetadata, last: i64) -> Vec<i64> {
        let split = gaps.with_splits(metadata.clone(), EntryId::new(last));
        for entry in (0..=last).map(at) {
            assert!(split.write_set(entry).eq(metadata.write_set(entry)), "invariant 2");
        }
        split.segments().iter().map(|segment| segment.first_entry.get()).collect()
    }

    #[test]
    fn a_gap_between_the_ends_of_a_segment_begins_one() {
        let quorum = Quorum::new(3, 3, 2).unwrap();
        let mut gaps = Gaps::new(quorum);
        (4..=6).for_each(|entry| assert!(gaps.add(&lack(2, "c", entry))));
        let one = metadata(quorum, &[(0, "a b c")]);
        assert_eq!(starts(&gaps, &one, 9), [0, 4]);
        assert_eq!(starts(&gaps, &one, 6), [0], "it reaches the end");
        assert_eq!(starts(&gaps, &metadata(quorum, &[(0, "a b c"), (4, "a b c")]), 9), [0, 4]);
        assert_eq!(starts(&gaps, &metadata(quorum, &[(0, "a b c"), (6, "d b c")]), 9), [0, 6], "in both");
        assert_eq!(starts(&gaps, &metadata(quorum, &[(0, "a b x")]), 9), [0], "repaired meanwhile");
        assert!(gaps.is_in_last_segment(&one));
        assert!(!gaps.is_in_last_segment(&metadata(quorum, &[(0, "a b c"), (7, "a b c")])));

        // Filled from its beginning, it becomes smaller; from its middle, two.
        assert!(gaps.fill(AddTag(2), at(4)) && !gaps.fill(AddTag(2), at(4)) && !gaps.fill(AddTag(1), at(5)));
        assert_eq!(starts(&gaps, &one, 9), [0, 5]);
        (7..=8).for_each(|entry| assert!(gaps.add(&lack(2, "c", entry))));
        assert!(gaps.fill(AddTag(2), at(6)));
        assert_eq!(starts(&gaps, &one, 9), [0, 5, 7]);
        assert_eq!(gaps.bookies(), ids("c").into_iter().collect());
        // It says so under another tag: it was a member elsewhere.
        let c = ids("c").remove(0);
        assert_eq!((gaps.fill_of(&c, at(5)), gaps.fill_of(&c, at(5))), (vec![AddTag(2)], vec![]));
        assert_eq!(gaps.fill_of(&ids("a")[0], at(7)), []);
        [7, 8].into_iter().for_each(|entry| assert!(gaps.fill(AddTag(2), at(entry))));
        assert!(gaps.is_empty());
    }

    #[test]
    fn striped_entries_follow_one_another_as_the_member_gets_them() {
        let quorum = Quorum::new(3, 2, 2).unwrap();
        let mut gaps = Gaps::new(quorum);
        // The bookie at position 0 gets the entries 0, 2, 3, 5, 6, 8, 9, 11.
        [3, 5, 6].into_iter().for_each(|entry| assert!(gaps.add(&lack(0, "a", entry))));
        let one = metadata(quorum, &[(0, "a b c")]);
        assert_eq!(starts(&gaps, &one, 11), [0, 3]);
        assert_eq!(starts(&gaps, &one, 7), [0], "7 is not its own");
        assert_eq!(starts(&gaps, &metadata(quorum, &[(0, "a b c"), (1, "a b d")]), 8), [0, 1, 3]);
        assert_eq!(starts(&gaps, &metadata(quorum, &[(0, "a b c"), (3, "a b d")]), 8), [0, 3]);
        assert!(!gaps.fill(AddTag(0), at(4)), "not its own");
        assert!(gaps.fill(AddTag(0), at(5)));
        assert_eq!((starts(&gaps, &one, 11), gaps.copies()), (vec![0, 3, 6], 2));
    }

    #[test]
    fn of_too_many_runs_the_last_stands_for_several() {
        let quorum = Quorum::new(1, 1, 1).unwrap();
        let mut gaps = Gaps::new(quorum);
        let last = 2 * RUNS_MAX as i64 + 9;
        let lacking = || (1..last).step_by(2);
        for entry in lacking() {
            let is_told = (entry as usize) < 2 * RUNS_MAX;
            assert_eq!(gaps.add(&lack(0, "a", entry)), is_told, "{entry}");
        }
        let one = metadata(quorum, &[(0, "a")]);
        let found = starts(&gaps, &one, last + 5);
        assert_eq!(found.len(), 1 + RUNS_MAX);
        assert!(!gaps.add(&lack(0, "a", last - 1)), "next to what cannot be told apart");
        let merged = *found.last().unwrap();
        for entry in lacking() {
            assert_eq!(gaps.fill(AddTag(0), at(entry)), entry < merged, "{entry}");
        }
        // Invariant 3: the merged run stays although an entry came late.
        assert_eq!(starts(&gaps, &one, last + 5), [0, merged]);
        assert!(!gaps.is_empty() && gaps.is_in_last_segment(&one));
        assert_eq!(gaps.copies(), 1 + lacking().filter(|entry| *entry >= merged).count() as u64);
    }

    #[test]
    fn without_room_for_two_runs_one_stays_as_it_is() {
        let quorum = Quorum::new(1, 1, 1).unwrap();
        let mut gaps = Gaps::new(quorum);
        for run in 0..RUNS_MAX as i64 {
            (0..3).for_each(|entry| assert!(gaps.add(&lack(0, "a", 1 + 4 * run + entry))));
        }
        let last = 4 * RUNS_MAX as i64;
        let one = metadata(quorum, &[(0, "a")]);
        let before = starts(&gaps, &one, last);
        // Said twice, it is counted once.
        assert!(gaps.fill(AddTag(0), at(2)) && !gaps.fill(AddTag(0), at(2)));
        for entry in (1..last).filter(|entry| entry % 4 != 0 && *entry != 2) {
            assert_eq!(gaps.fill(AddTag(0), at(entry)), entry > 3);
        }
        assert_eq!((gaps.copies(), starts(&gaps, &one, last)), (2, before[..2].to_vec()), "invariant 3");
    }
}
