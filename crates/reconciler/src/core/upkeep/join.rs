//! Which objects are joined: those that have a small extent of each of many ledgers, as open ledgers leave them behind.
//!
//! # Data flow
//! ```text
//! page of the scan ─► objects of small extents ─► group of a size ─► survey ─► extents that follow each other become one ([`super::rewrite`])
//!                                                             ▲           └─► span of ledgers of each
//!                                                             └───────────────┘
//! ```
//!
//! # Invariants
//! 1. Of a group the mean length of extents that the catalogue refers to differs by less than a factor of [`GROUP_MIN`], and so many objects
//!    make a group. Extents become as many times as long, so a byte is copied about once for each power of that factor below the limit.
//! 2. Two are enough of those that were committed [`UpkeepSettings::join_after`](super::UpkeepSettings::join_after) ago: what is left over of a
//!    ledger that is closed becomes one extent for each such power, and pays for it with three copies more at most.
//! 3. Objects of a group have ledgers of one stretch, as far as their spans tell. The span of an object is known once it was surveyed, or made by
//!    joining others. Objects without a known span are grouped among themselves; an old one that finds no group is surveyed alone.
//! 4. No object keeps others from being joined: an object that is limited to small groups is a member only of groups of that size.
//!
//! # Limits     objects that are remembered: [`CANDIDATES_MAX`]; of a group: as many as its caller says, [`BYTES_MAX`] and [`FOOTERS_BYTES_MAX`], which are in
//! memory while it is joined; spans: [`SPANS_MAX`], the lowest ids are forgotten first

use std::collections::BTreeMap;

use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::StoredObject;
use bindery_types::LedgerId;

/// Objects that are joined, at least.
const GROUP_MIN: usize = 8;
/// Live bytes of a group.
const BYTES_MAX: u64 = 1 << 30;
/// Footers of a group.
const FOOTERS_BYTES_MAX: u64 = 16 << 20;
/// Objects that are remembered until their turn.
const CANDIDATES_MAX: usize = 1000;
/// Objects whose span is remembered.
const SPANS_MAX: usize = 16_384;

/// An object of small extents.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    stored: StoredObject,
    is_old: bool,
}

/// The first and the last ledger of an object.
type Span = (LedgerId, LedgerId);

/// Objects that may be joined.
#[derive(Debug, Clone, Default)]
pub(super) struct Joins {
    candidates: BTreeMap<ObjectId, Candidate>,
    spans: BTreeMap<ObjectId, Span>,
}

/// The mean length of an object's extents that the catalogue refers to, in bytes.
fn extent_bytes(stored: &StoredObject) -> u64 {
    stored.live_bytes / u64::from(stored.live_extents.max(1))
}

fn footer_bytes(stored: &StoredObject) -> u64 {
    stored.object.length_bytes.saturating_sub(stored.object.footer_offset)
}

/// Whether the extents are smaller than `below` bytes on average.
pub(super) fn has_small_extents(stored: &StoredObject, below: u64) -> bool {
    extent_bytes(stored) < below
}

impl Joins {
    /// Remembers an object of small extents; two that are old are enough for a group.
    pub fn note(&mut self, stored: StoredObject, is_old: bool) {
        self.insert(Candidate { stored, is_old });
    }

    /// Objects that are to be joined further in the next group.
    pub fn put_back(&mut self, sources: impl IntoIterator<Item = StoredObject>) {
        sources.into_iter().for_each(|stored| self.insert(Candidate { stored, is_old: true }));
    }

    fn insert(&mut self, candidate: Candidate) {
        self.candidates.insert(candidate.stored.object.id, candidate);
        if self.candidates.len() > CANDIDATES_MAX {
            // It comes again with its page.
            self.candidates.pop_first();
        }
    }

    /// Whether the ledgers of an object are not known.
    pub fn lacks_span(&self, object: &ObjectId) -> bool {
        !self.spans.contains_key(object)
    }

    /// It is not to be joined, for now.
    pub fn remove(&mut self, object: &ObjectId) {
        self.candidates.remove(object);
    }

    /// The catalogue does not refer to it any more.
    pub fn forget(&mut self, object: &ObjectId) {
        self.candidates.remove(object);
        self.spans.remove(object);
    }

    /// Nothing is joined here, for now.
    pub fn clear(&mut self) {
        self.candidates.clear();
    }

    /// A survey found these ledgers in an object.
    pub fn note_span(&mut self, object: ObjectId, ledgers: impl IntoIterator<Item = LedgerId>) {
        let span = ledgers.into_iter().fold(None, |span: Option<Span>, ledger| match span {
            None => Some((ledger, ledger)),
            Some((first, last)) => Some((first.min(ledger), last.max(ledger))),
        });
        let Some(span) = span else { return };
        self.spans.insert(object, span);
        if self.spans.len() > SPANS_MAX {
            self.spans.pop_first();
        }
    }

    /// Whether both may have extents of the same ledgers: each span has the middle of the other one, or neither is known.
    fn may_share(&self, one: &ObjectId, other: &ObjectId) -> bool {
        let has_middle = |(first, last): &Span, of: &Span| {
            let middle = of.0.get() + (of.1.get() - of.0.get()) / 2;
            (first.get()..=last.get()).contains(&middle)
        };
        match (self.spans.get(one), self.spans.get(other)) {
            (Some(one), Some(other)) => has_middle(one, other) && has_middle(other, one),
            (None, None) => true,
            _ => false,
        }
    }

    /// The next objects to be joined, the smallest extents first; none when no group is large enough. `group_max` says how many may be in a
    /// group with an object.
    pub fn group(&mut self, group_max: impl Fn(&ObjectId) -> usize) -> Vec<StoredObject> {
        let mut by_size: Vec<(u64, Candidate)> =
            self.candidates.values().map(|candidate| (extent_bytes(&candidate.stored), *candidate)).collect();
        by_size.sort_by_key(|(bytes, _)| *bytes);
        for (at, (bytes, anchor)) in by_size.iter().enumerate() {
            let too_large = bytes.max(&1) * GROUP_MIN as u64;
            let of_size = by_size[at..].iter().take_while(|(bytes, _)| *bytes < too_large);
            let of_anchor = of_size
                .map(|(_, other)| other)
                .filter(|other| self.may_share(&anchor.stored.object.id, &other.stored.object.id));
            let mut all: Vec<&Candidate> = of_anchor.collect();
            // Extents that were made one after the other follow each other. The anchor is in its group.
            let is_other = |candidate: &&Candidate| candidate.stored.object.id != anchor.stored.object.id;
            all.sort_by_key(|candidate| (is_other(candidate), candidate.stored.object.id));
            let max = group_max(&anchor.stored.object.id);
            let mut group = fitting(all.iter().copied(), max, &group_max);
            if group.len() < GROUP_MIN.min(max) {
                group = match anchor.is_old {
                    true => fitting(all.into_iter().filter(|candidate| candidate.is_old), max, &group_max),
                    false => Vec::new(),
                };
            }
            let is_surveyed_alone = anchor.is_old && self.lacks_span(&anchor.stored.object.id);
            if group.len() > 1 || (group.len() == 1 && is_surveyed_alone) {
                for stored in &group {
                    self.candidates.remove(&stored.object.id);
                }
                return group;
            }
        }
        Vec::new()
    }
}

/// The first ones, at most `max`, that are a group by its limits. Those that may be in smaller groups alone are left out.
fn fitting<'a>(
    candidates: impl Iterator<Item = &'a Candidate>,
    max: usize,
    group_max: impl Fn(&ObjectId) -> usize,
) -> Vec<StoredObject> {
    let (mut bytes, mut footers) = (0, 0);
    let mut group: Vec<StoredObject> = Vec::new();
    for Candidate { stored, .. } in candidates {
        let more = (bytes + stored.live_bytes, footers + footer_bytes(stored));
        let fits = more.0 <= BYTES_MAX && more.1 <= FOOTERS_BYTES_MAX;
        if group.is_empty() || (group.len() < max && fits && group_max(&stored.object.id) >= max) {
            (bytes, footers) = more;
            group.push(*stored);
        }
    }
    group
}

#[cfg(test)]
mod tests {
    use super::super::rewrite::SOURCES_MAX;
    use super::super::tests::stored;
    use super::*;

    fn object(n: usize) -> ObjectId {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&(n as u64).to_be_bytes());
        ObjectId::new(7, random)
    }

    /// Ten extents of so many bytes each.
    fn of_extents(n: usize, bytes: u64) -> StoredObject {
        stored(object(n), 10 * bytes, 1.0)
    }

    fn ids(group: &[StoredObject]) -> Vec<ObjectId> {
        group.iter().map(|stored| stored.object.id).collect()
    }

    fn group(joins: &mut Joins) -> Vec<ObjectId> {
        ids(&joins.group(|_| SOURCES_MAX))
    }

    fn span(joins: &mut Joins, n: usize, ledgers: [i64; 2]) {
        joins.note_span(object(n), ledgers.map(|id| LedgerId::new(id).unwrap()));
    }

    /// Invariants 1 and 2.
    #[test]
    fn eight_of_a_size_are_joined_and_two_that_are_old() {
        let mut joins = Joins::default();
        (0..7).for_each(|n| joins.note(of_extents(n, 5000 + n as u64), false));
        // One with longer extents waits for its like.
        joins.note(of_extents(70, 50_000), false);
        assert!(group(&mut joins).is_empty());
        joins.note(of_extents(7, 5000), false);
        assert_eq!(group(&mut joins), (0..8).map(object).collect::<Vec<_>>());
        assert!(group(&mut joins).is_empty(), "they are in a group");
        (0..3).for_each(|n| {
            joins.note(of_extents(n, 5000), n == 2);
            span(&mut joins, n, [0, 99]);
        });
        assert!(group(&mut joins).is_empty());
        joins.note(of_extents(0, 5000), true);
        assert_eq!(group(&mut joins), [object(0), object(2)], "the young one waits");
        // Of one the ledgers are not known.
        joins.note(of_extents(3, 5000), true);
        assert_eq!(group(&mut joins), [object(3)]);
        joins.note(of_extents(3, 5000), true);
        span(&mut joins, 3, [0, 99]);
        assert!(group(&mut joins).is_empty());
    }

    #[test]
    fn a_group_is_bounded() {
        let mut joins = Joins::default();
        (0..40).for_each(|n| joins.note(of_extents(n, 5000), false));
        assert_eq!(group(&mut joins).len(), SOURCES_MAX);
        let mut joins = Joins::default();
        (0..10).for_each(|n| {
            let mut large = of_extents(n, 5000);
            large.object.footer_offset -= 3 << 14;
            large.live_bytes = 300 << 20;
            large.live_extents = 60_000;
            joins.note(large, true);
        });
        assert_eq!(group(&mut joins).len(), 3, "a GiB at most");
        assert_eq!(ids(&joins.group(|_| 2)).len(), 2);
    }

    /// Invariant 4: uploads of its groups failed, so the oldest object is in no group any more.
    #[test]
    fn one_that_is_in_no_group_keeps_no_other_from_being_joined() {
        let mut joins = Joins::default();
        (0..9).for_each(|n| joins.note(of_extents(n, 5000), false));
        let group_max = |id: &ObjectId| if *id == object(0) { 1 } else { SOURCES_MAX };
        assert_eq!(ids(&joins.group(group_max)), (1..9).map(object).collect::<Vec<_>>());
    }

    /// Invariant 3.
    #[test]
    fn objects_of_other_ledgers_are_in_no_group() {
        let mut joins = Joins::default();
        for n in 0..16 {
            joins.note(of_extents(n, 5000), false);
            let first = if n % 2 == 0 { 0 } else { 100 };
            span(&mut joins, n, [first, first + 99]);
        }
        assert_eq!(group(&mut joins), (0..16).step_by(2).map(object).collect::<Vec<_>>());
        assert_eq!(group(&mut joins), (1..16).step_by(2).map(object).collect::<Vec<_>>());
        // Of nine, two have a stretch for themselves.
        for n in 0..9 {
            joins.note(of_extents(n, 5000), false);
            let first = if n < 7 { 0 } else { 100 };
            span(&mut joins, n, [first, first + 99]);
        }
        assert!(group(&mut joins).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut joins = Joins::default();
        for n in 0..SPANS_MAX + 10 {
            joins.note(of_extents(n, 5000), false);
            span(&mut joins, n, [1, 2]);
        }
        assert_eq!((joins.candidates.len(), joins.spans.len()), (CANDIDATES_MAX, SPANS_MAX));
        joins.forget(&object(SPANS_MAX));
        assert_eq!(joins.candidates.len(), CANDIDATES_MAX - 1);
    }
}
