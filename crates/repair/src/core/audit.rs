//! What a ledger lacks, by its metadata and by who is there.
//!
//! # Invariants
//! 1. A bookie lacks nothing where no entry belongs to it: of a striped segment that is shorter than its ensemble, or of an empty one.
//! 2. A segment ends before the next one begins; the last one of a closed ledger at its last entry, of another nowhere.

use std::collections::BTreeSet;

use bindery_types::{BookieId, EntryId, LedgerMetadata, LedgerState, Quorum, Segment};

/// Copies that a bookie should have and that are missing. They are of the entries in one segment that belong to its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// First entry of the segment, which names it.
    pub first: EntryId,
    /// Its last entry.
    pub last: EntryId,
    /// In the ensemble.
    pub position: usize,
    /// The bookie that is there.
    pub bookie: BookieId,
}

/// What a ledger lacks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// Copies of segments that have an end.
    pub lacks: Vec<Lack>,
    /// Bookies of the last segment of a ledger that is not closed: what they lack grows, or its writer replaces them.
    pub open: Vec<BookieId>,
    /// Live copies of the entry that has the fewest.
    pub copies_min: usize,
    /// Copies that this entry has lost.
    pub lost_max: usize,
}

impl Audit {
    /// The bookies that lack copies, each once and in the order of their ids.
    pub fn lacking(&self) -> impl Iterator<Item = &BookieId> {
        let lacking: BTreeSet<&BookieId> =
            self.lacks.iter().map(|lack| &lack.bookie).chain(&self.open).collect();
        lacking.into_iter()
    }

    /// Whether an entry lost two copies or more and has at most one left. Such a ledger is repaired without a delay.
    pub fn is_endangered(&self) -> bool {
        self.lost_max >= 2 && self.copies_min <= 1
    }

    /// Whether it lacks nothing.
    pub fn is_whole(&self) -> bool {
        self.lacks.is_empty() && self.open.is_empty()
    }
}

/// Where a segment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentEnd {
    /// With this entry.
    At(EntryId),
    /// It has no entries.
    Empty,
    /// It may grow.
    Open,
}

/// Each segment, and where it ends (invariant 2).
pub fn segments(metadata: &LedgerMetadata) -> impl Iterator<Item = (&Segment, SegmentEnd)> {
    let all = metadata.segments();
    all.iter().enumerate().map(move |(index, segment)| {
        let end = match (all.get(index + 1), metadata.state) {
            (Some(next), _) => last_before(next.first_entry),
            (None, LedgerState::Closed { last_entry, .. }) => last_entry,
            (None, LedgerState::Open | LedgerState::InRecovery) => return (segment, SegmentEnd::Open),
        };
        let end = end.filter(|end| *end >= segment.first_entry);
        (segment, end.map_or(SegmentEnd::Empty, SegmentEnd::At))
    })
}

fn last_before(entry: EntryId) -> Option<EntryId> {
    EntryId::new(entry.get() - 1)
}

/// Live copies of the entries of a segment: one number for each write set that occurs. None of an empty one.
pub fn copies<'a>(
    quorum: Quorum,
    segment: &'a Segment,
    end: SegmentEnd,
    is_there: impl Fn(&BookieId) -> bool + 'a,
) -> impl Iterator<Item = usize> + 'a {
    first_turn(quorum, segment, end)
        .map(move |entry| quorum.write_set(entry).filter(|at| is_there(&segment.ensemble[*at])).count())
}

/// The first entries of a segment, one for each write set that occurs: they repeat after as many as the ensemble has bookies.
fn first_turn(quorum: Quorum, segment: &Segment, end: SegmentEnd) -> impl Iterator<Item = EntryId> + use<> {
    let first = segment.first_entry.get();
    let turn = first.saturating_add(i64::try_from(quorum.ensemble_size()).unwrap_or(i64::MAX));
    let beyond = match end {
        SegmentEnd::Empty => first,
        SegmentEnd::At(last) => last.get().saturating_add(1).min(turn),
        SegmentEnd::Open => turn,
    };
    (first..beyond).filter_map(EntryId::new)
}

/// Looks at one ledger: `is_there` says of a bookie whether its copies count.
pub fn audit(metadata: &LedgerMetadata, is_there: impl Fn(&BookieId) -> bool) -> Audit {
    let quorum = metadata.quorum;
    let mut audit = Audit { copies_min: quorum.write_quorum_size(), ..Audit::default() };
    for (segment, end) in segments(metadata) {
        for copies in copies(quorum, segment, end, &is_there) {
            audit.copies_min = audit.copies_min.min(copies);
            audit.lost_max = audit.lost_max.max(quorum.write_quorum_size() - copies);
        }
        for (position, bookie) in segment.ensemble.iter().enumerate() {
            let mut entries = first_turn(quorum, segment, end);
            if is_there(bookie) || !entries.any(|entry| quorum.is_in_write_set(entry, position)) {
                continue;
            }
            match end {
                SegmentEnd::At(last) => {
                    let (first, bookie) = (segment.first_entry, bookie.clone());
                    audit.lacks.push(Lack { first, last, position, bookie });
                }
                SegmentEnd::Open => audit.open.push(bookie.clone()),
                SegmentEnd::Empty => {}
            }
        }
    }
    audit
}

/// Whether a ledger with this mark lacks nothing, by its metadata alone: every member is there, it is not open where it lacks one, and the
/// mark names no member that is there, which may lack entries.
pub fn lacks_nothing(
    metadata: &LedgerMetadata,
    mark: &[String],
    is_there: impl Fn(&BookieId) -> bool,
) -> bool {
    let mut members = metadata.segments().iter().flat_map(|segment| segment.ensemble.iter());
    let is_named = |bookie: &BookieId| mark.iter().any(|replica| replica == bookie.as_str());
    audit(metadata, &is_there).is_whole() && !members.any(|member| is_there(member) && is_named(member))
}

/// Whose ledger it is to repair, as far as metadata say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The worker of this bookie can repair a part of it: the bookie may become a member, or may lack entries as one. So is what needs no
    /// copies at all.
    Ours,
    /// A member that is there and that the mark names fills itself, if it has a worker.
    Others,
    /// Of what it lacks this bookie can take nothing.
    Never,
}

/// Looks at a ledger, whose mark names `replicas`, for the worker of a bookie. `takes_writes`: the bookie does, and is not being emptied.
pub fn fit(
    own: &BookieId,
    takes_writes: bool,
    metadata: &LedgerMetadata,
    replicas: &[String],
    found: &Audit,
) -> Fit {
    let is_named = |bookie: &BookieId| replicas.iter().any(|replica| replica == bookie.as_str());
    let may_join = |lack: &Lack| {
        let segment = metadata.segments().iter().find(|segment| segment.first_entry == lack.first);
        takes_writes && segment.is_some_and(|segment| !segment.ensemble.contains(own))
    };
    let is_member = |wanted: &dyn Fn(&BookieId) -> bool| {
        metadata.segments().iter().flat_map(|segment| segment.ensemble.iter()).any(wanted)
    };
    let fills_itself = takes_writes && is_named(own) && is_member(&|bookie| bookie == own);
    if fills_itself || found.lacks.iter().any(may_join) {
        Fit::Ours
    } else if !found.lacks.is_empty() {
        Fit::Never
    } else if is_member(&is_named) {
        Fit::Others
    } else {
        Fit::Ours
    }
}

/// About how many bytes an entry of a closed ledger has, by the length in its metadata: of the payload alone. 0 of another one.
pub fn entry_bytes(metadata: &LedgerMetadata) -> u64 {
    match metadata.state {
        LedgerState::Closed { last_entry: Some(last), length_bytes } => {
            length_bytes / (last.get().unsigned_abs() + 1)
        }
        LedgerState::Closed { last_entry: None, .. } | LedgerState::Open | LedgerState::InRecovery => 0,
    }
}

/// About how many entries of these runs a position has.
pub fn entries_of(metadata: &LedgerMetadata, runs: &[(EntryId, EntryId)]) -> u64 {
    let numbers = |(first, last): &(EntryId, EntryId)| (last.get() - first.get()).unsigned_abs() + 1;
    let quorum = metadata.quorum;
    let (copies, bookies) = (quorum.write_quorum_size() as u64, quorum.ensemble_size() as u64);
    runs.iter().map(numbers).sum::<u64>() * copies / bookies.max(1)
}

/// The most entries of one comparison: metadata may claim any number.
const SLICE_ENTRIES: i64 = 1 << 20;

/// The entries of a position in slices.
pub fn slices(lack: &Lack) -> impl Iterator<Item = Lack> + '_ {
    let mut next = Some(lack.first);
    std::iter::from_fn(move || {
        let first = next.filter(|first| *first <= lack.last)?;
        let beyond = first.get().checked_add(SLICE_ENTRIES).and_then(EntryId::new);
        let last = beyond
            .map_or(lack.last, |beyond| EntryId::new(beyond.get() - 1).expect("above an id").min(lack.last));
        next = beyond;
        Some(Lack { first, last, ..lack.clone() })
    })
}

/// Runs of entries of one position that `has` denies, each from its first to its last one. Between these are entries of other positions
/// alone.
pub fn missing_runs(
    metadata: &LedgerMetadata,
    lack: &Lack,
    has: impl Fn(EntryId) -> bool,
) -> Vec<(EntryId, EntryId)> {
    let mut runs: Vec<(EntryId, EntryId)> = Vec::new();
    let mut is_open = false;
    for entry in (lack.first.get()..=lack.last.get()).filter_map(EntryId::new) {
        if !metadata.quorum.is_in_write_set(entry, lack.position) {
            continue;
        }
        match (has(entry), runs.last_mut()) {
            (true, _) => is_open = false,
            (false, Some((_, last))) if is_open => *last = entry,
            (false, _) => {
                runs.push((entry, entry));
                is_open = true;
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, LedgerSecret};

    fn at(entry: i64) -> EntryId {
        EntryId::new(entry).unwrap()
    }

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    /// Segments by their first entries and ensembles.
    fn metadata(quorum: (usize, usize, usize), segments: &[(i64, &str)]) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(quorum.0, quorum.1, quorum.2).unwrap(), secret);
        for (first, names) in segments {
            let ensemble = names.split(' ').map(id).collect();
            metadata.push_segment(Segment { first_entry: at(*first), ensemble }).unwrap();
        }
        metadata
    }

    fn closed(mut metadata: LedgerMetadata, last: i64) -> LedgerMetadata {
        metadata.state = LedgerState::Closed { last_entry: EntryId::new(last), length_bytes: 0 };
        metadata
    }

    fn lacks(metadata: &LedgerMetadata, away: &str) -> Vec<(i64, i64, usize)> {
        let audit = audit(metadata, |bookie| bookie.as_str() != away);
        audit.lacks.iter().map(|lack| (lack.first.get(), lack.last.get(), lack.position)).collect()
    }

    #[test]
    fn a_ledger_lacks_nothing_when_all_members_are_there_and_the_mark_names_none_of_them() {
        let ledger = closed(metadata((3, 3, 2), &[(0, "a b c"), (10, "a d c")]), 20);
        let mark = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(lacks_nothing(&ledger, &mark(&["x"]), |_| true));
        assert!(!lacks_nothing(&ledger, &mark(&["x", "d"]), |_| true), "d may lack entries");
        assert!(!lacks_nothing(&ledger, &mark(&["x"]), |bookie| bookie.as_str() != "b"));
        let open = metadata((3, 3, 2), &[(0, "a b c")]);
        assert!(lacks_nothing(&open, &mark(&["x"]), |_| true));
        assert!(!lacks_nothing(&open, &mark(&["x"]), |bookie| bookie.as_str() != "b"));
    }

    #[test]
    fn a_ledger_is_for_who_may_join_it_or_is_named() {
        let ledger = closed(metadata((3, 3, 2), &[(0, "a b c"), (10, "a d c")]), 20);
        let found = audit(&ledger, |bookie| bookie.as_str() != "a");
        let fit = |own: &str, takes_writes, named: &str, found: &Audit| {
            super::fit(&id(own), takes_writes, &ledger, &[named.to_owned()], found)
        };
        for own in ["e", "b", "d"] {
            assert_eq!(fit(own, true, "a", &found), Fit::Ours, "{own} may join a segment");
            assert_eq!(fit(own, false, "a", &found), Fit::Never, "{own} takes no writes");
        }
        assert_eq!(fit("c", true, "a", &found), Fit::Never, "it is a member of both");
        assert_eq!(fit("c", true, "c", &found), Fit::Ours, "it may lack entries");
        let whole = audit(&ledger, |_| true);
        assert_eq!(fit("c", true, "x", &whole), Fit::Ours, "it only has to be unmarked");
        assert_eq!(fit("c", true, "c", &whole), Fit::Ours);
        assert_eq!(fit("b", true, "c", &whole), Fit::Others, "c fills itself");
        assert_eq!(fit("c", false, "c", &whole), Fit::Others, "or others fill it");
    }

    #[test]
    fn the_size_of_entries_comes_from_the_length_of_a_closed_ledger() {
        let mut ledger = metadata((3, 3, 2), &[(0, "a b c")]);
        assert_eq!(entry_bytes(&ledger), 0);
        for (last, length_bytes, size) in [(Some(99), 5000, 50), (Some(0), 7, 7), (None, 0, 0)] {
            ledger.state = LedgerState::Closed { last_entry: last.and_then(EntryId::new), length_bytes };
            assert_eq!(entry_bytes(&ledger), size);
        }
    }

    #[test]
    fn each_segment_that_a_lost_bookie_is_in_is_named_to_its_last_entry() {
        let ledger = closed(metadata((3, 3, 2), &[(0, "a b c"), (10, "a d c"), (15, "d b c")]), 20);
        assert_eq!(lacks(&ledger, "a"), [(0, 9, 0), (10, 14, 0)]);
        assert_eq!(lacks(&ledger, "b"), [(0, 9, 1), (15, 20, 1)]);
        assert_eq!(lacks(&ledger, "x"), []);
        let found = audit(&ledger, |bookie| bookie.as_str() != "c");
        assert_eq!((found.copies_min, found.lost_max, found.lacks.len()), (2, 1, 3));
        assert!(audit(&ledger, |_| true).is_whole());
    }

    #[test]
    fn who_has_no_entry_lacks_none() {
        // Entry 0 is on a and b, and there is no other.
        let striped = closed(metadata((3, 2, 2), &[(0, "a b c")]), 0);
        assert_eq!(lacks(&striped, "c"), []);
        assert_eq!(lacks(&striped, "b"), [(0, 0, 1)]);
        assert_eq!(audit(&striped, |bookie| bookie.as_str() != "c").copies_min, 2);
        let empty = closed(metadata((2, 2, 2), &[(0, "a b")]), -1);
        assert!(audit(&empty, |_| false).is_whole());
        // A last segment that got no entry: recovery closed the ledger before it.
        let late = closed(metadata((2, 2, 2), &[(0, "a b"), (5, "a c")]), 4);
        assert_eq!(lacks(&late, "c"), []);
    }

    #[test]
    fn the_last_segment_of_an_open_ledger_is_apart() {
        let open = metadata((3, 2, 2), &[(0, "a b c"), (7, "a b d")]);
        let found = audit(&open, |bookie| bookie.as_str() != "a");
        assert_eq!(found.lacks.len(), 1);
        assert_eq!((found.open, found.copies_min), (vec![id("a")], 1));
    }

    #[test]
    fn danger_is_that_of_the_entry_with_the_fewest_copies() {
        let ledger = closed(metadata((4, 2, 2), &[(0, "a b c d")]), 100);
        let is_there = |away: &'static str| move |bookie: &BookieId| !away.contains(bookie.as_str());
        let opposite = audit(&ledger, is_there("a c"));
        assert_eq!((opposite.copies_min, opposite.lost_max), (1, 1));
        let neighbours = audit(&ledger, is_there("a b"));
        assert_eq!((neighbours.copies_min, neighbours.lost_max), (0, 2));
    }

    #[test]
    fn runs_leave_out_what_is_there_and_what_belongs_to_others() {
        let ledger = closed(metadata((3, 2, 2), &[(0, "a b c")]), 11);
        // Position 0 has entries 0, 2, 3, 5, 6, 8, 9, 11.
        let lack = Lack { first: at(0), last: at(11), position: 0, bookie: id("a") };
        let runs = |has: &[i64]| -> Vec<(i64, i64)> {
            let found = missing_runs(&ledger, &lack, |entry| has.contains(&entry.get()));
            found.into_iter().map(|(first, last)| (first.get(), last.get())).collect()
        };
        assert_eq!(runs(&[]), [(0, 11)]);
        assert_eq!(runs(&[0, 5, 11]), [(2, 3), (6, 9)]);
        assert_eq!(runs(&[0, 2, 3, 5, 6, 8, 9, 11]), []);
    }
}
