//! Secondary indexes: further keys under which a record of Oxia's is found.

use super::records::Key;
use bindery_oxia::keys;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// What an entry costs besides its texts, roughly.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// A key of a record in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexKey {
    /// Name of the index.
    pub(crate) index: Arc<str>,
    pub(crate) key: Arc<str>,
}

/// Bytes that they take in the record and in the index, roughly.
pub(super) fn size_bytes(keys: &[IndexKey]) -> usize {
    keys.iter().map(|of| 2 * (of.index.len() + of.key.len()) + ENTRY_OVERHEAD_BYTES).sum()
}

/// An entry of an index. Those of one index lie together, in the order of keys, and those of one key in the order of their records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    index: Arc<str>,
    key: Arc<str>,
    place: Place,
}

/// Where an entry stands among those of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    BeforeAll,
    Of(Key),
    BehindAll,
}

impl Place {
    fn order(&self) -> (u8, &str) {
        match self {
            Place::BeforeAll => (0, ""),
            Place::Of(record) => (1, record.as_str()),
            Place::BehindAll => (2, ""),
        }
    }
}

impl Entry {
    pub(super) fn new(of: &IndexKey, record: Key) -> Entry {
        Entry { index: of.index.clone(), key: of.key.clone(), place: Place::Of(record) }
    }

    /// Before all entries of a key.
    fn before(index: &str, key: &str) -> Entry {
        Entry { index: index.into(), key: key.into(), place: Place::BeforeAll }
    }

    /// Behind all entries of a key.
    fn behind(index: &str, key: &str) -> Entry {
        Entry { index: index.into(), key: key.into(), place: Place::BehindAll }
    }

    /// The key in the index.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The key of the record.
    pub(super) fn record(&self) -> Option<&Key> {
        match &self.place {
            Place::Of(record) => Some(record),
            Place::BeforeAll | Place::BehindAll => None,
        }
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        let records = || self.place.order().cmp(&other.place.order());
        self.index.cmp(&other.index).then_with(|| keys::compare(&self.key, &other.key)).then_with(records)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A range of one index.
#[derive(Debug, Clone)]
pub(crate) struct IndexRange {
    pub(super) from: Bound<Entry>,
    pub(super) to: Entry,
}

impl IndexRange {
    /// From a key, which belongs to it, to another one, which does not; without an end when that is empty.
    pub(crate) fn new(index: &str, start: &str, end: &str) -> IndexRange {
        let to = match end {
            // The next name.
            "" => Entry::before(&format!("{index}\0"), ""),
            end => Entry::before(index, end),
        };
        IndexRange { from: Bound::Included(Entry::before(index, start)), to }
    }

    /// The entries of a key.
    pub(crate) fn of_key(index: &str, key: &str) -> IndexRange {
        IndexRange { from: Bound::Included(Entry::before(index, key)), to: Entry::behind(index, key) }
    }

    /// Everything behind a key.
    pub(crate) fn above(index: &str, key: &str) -> IndexRange {
        IndexRange { from: Bound::Excluded(Entry::behind(index, key)), ..IndexRange::new(index, key, "") }
    }

    /// Everything before a key.
    pub(crate) fn below(index: &str, key: &str) -> IndexRange {
        IndexRange { from: Bound::Included(Entry::before(index, "")), to: Entry::before(index, key) }
    }

    /// What is left behind an entry.
    pub(crate) fn behind(&self, entry: &Entry) -> IndexRange {
        IndexRange { from: Bound::Excluded(entry.clone()), to: self.to.clone() }
    }
}
