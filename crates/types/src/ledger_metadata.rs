//! The metadata of a ledger (protocol reference, section 5.5). Its encoding is in `bindery-metadata`.
//!
//! # Invariants
//! 1. Segments begin at ascending entries and have `ensemble_size` bookies each.
//! 2. The last entry and the length are known only of a closed ledger.

use std::collections::BTreeMap;
use std::fmt;

use crate::{BookieId, DigestType, EntryId, MasterKey, Quorum};

/// The format a ledger's metadata was read in and is written in again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MetadataFormatVersion {
    /// Lines of text, before 4.0.
    V1,
    /// Protobuf text.
    V2,
    /// Protobuf binary, the default since 4.9.
    V3,
}

/// Whether a ledger can grow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LedgerState {
    /// A writer may add entries.
    Open,
    /// A client found the writer gone, fences the ledger and decides where it ends.
    InRecovery,
    /// It never changes again.
    Closed {
        /// The last entry; `None` when the ledger is empty.
        last_entry: Option<EntryId>,
        /// Sum of the payloads.
        length_bytes: u64,
    },
}

/// Entries with one ensemble.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The first of them; the segment ends before the next one begins.
    pub first_entry: EntryId,
    /// The bookies, by ensemble index.
    pub ensemble: Vec<BookieId>,
}

/// Digest type and password, as the creator of the ledger chose them.
#[derive(Clone, PartialEq, Eq)]
pub struct LedgerSecret {
    /// How entries are digested.
    pub digest_type: DigestType,
    /// The password; may be empty. Never printed.
    pub password: Vec<u8>,
}

impl LedgerSecret {
    /// The key that bookies check.
    pub fn master_key(&self) -> MasterKey {
        MasterKey::from_password(&self.password)
    }
}

impl fmt::Debug for LedgerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerSecret").field("digest_type", &self.digest_type).finish_non_exhaustive()
    }
}

/// A ledger's metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LedgerMetadata {
    /// The format to keep when it is written again.
    pub format_version: MetadataFormatVersion,
    /// Ensemble, write quorum and ack quorum.
    pub quorum: Quorum,
    /// Open, in recovery, or closed with its end.
    pub state: LedgerState,
    /// Its segments; use [`LedgerMetadata::push_segment`] to add one.
    segments: Vec<Segment>,
    /// `None` in version 1, which does not store it.
    pub secret: Option<LedgerSecret>,
    /// Creation time in milliseconds since the epoch, when it is stored. Java falls back to that of the node.
    pub created_ms: Option<i64>,
    /// Free properties; absent in version 1.
    pub custom: BTreeMap<String, Vec<u8>>,
    /// Random token of the creation, only in version 3: tells a creator whose answer was lost whether the node that
    /// exists is its own.
    pub creation_token: Option<i64>,
}

/// When a ledger was created, and what that proves. Creation times tell the ledgers apart that had an id one after the other: nothing
/// else in the metadata of every format does, because Java's clients drop the creation token with the first change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Creation {
    /// In milliseconds since the epoch: as the metadata says, or else when its node was created.
    pub ms: i64,
    /// A time from here on that was noted for a ledger of this id, and differs, was another ledger's. Earlier ones prove nothing: the
    /// nodes of a cluster that was copied into another metadata store are as young as the copy.
    pub proves_from_ms: i64,
}

impl Creation {
    /// Of metadata whose node was created at `node_ms`, in a cluster whose INSTANCEID was written at `cluster_ms`.
    pub fn of(metadata: &LedgerMetadata, node_ms: i64, cluster_ms: Option<i64>) -> Creation {
        match metadata.created_ms {
            Some(ms) => Creation { ms, proves_from_ms: i64::MIN },
            None => Creation { ms: node_ms, proves_from_ms: cluster_ms.unwrap_or(i64::MAX) },
        }
    }

    /// Whether the time that was noted for a ledger of this id proves that it was another one. Without a note nothing does.
    pub fn is_anothers(&self, noted_ms: Option<i64>) -> bool {
        noted_ms.is_some_and(|noted| noted != self.ms && noted >= self.proves_from_ms)
    }
}

/// A segment that does not fit (invariant 1).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidSegment {
    /// It begins where, or before, the last one does.
    #[error("a segment begins at entry {first_entry}, not after the one before at {previous}")]
    NotAscending {
        /// Its first entry.
        first_entry: EntryId,
        /// The first entry of the segment before it.
        previous: EntryId,
    },
    /// It has another number of bookies than the ensemble.
    #[error("the segment at entry {first_entry} has {bookies} bookies in an ensemble of {ensemble_size}")]
    EnsembleSize {
        /// Its first entry.
        first_entry: EntryId,
        /// How many bookies it has.
        bookies: usize,
        /// How many it should have.
        ensemble_size: usize,
    },
}

impl LedgerMetadata {
    /// An open ledger without segments, in the current format.
    pub fn new(quorum: Quorum, secret: LedgerSecret) -> LedgerMetadata {
        LedgerMetadata {
            format_version: MetadataFormatVersion::V3,
            quorum,
            state: LedgerState::Open,
            segments: Vec::new(),
            secret: Some(secret),
            created_ms: None,
            custom: BTreeMap::new(),
            creation_token: None,
        }
    }

    /// The segments in ascending order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Adds a segment at the end (invariant 1).
    pub fn push_segment(&mut self, segment: Segment) -> Result<(), InvalidSegment> {
        let first_entry = segment.first_entry;
        if let Some(last) = self.segments.last()
            && last.first_entry >= first_entry
        {
            return Err(InvalidSegment::NotAscending { first_entry, previous: last.first_entry });
        }
        let (bookies, ensemble_size) = (segment.ensemble.len(), self.quorum.ensemble_size());
        if bookies != ensemble_size {
            return Err(InvalidSegment::EnsembleSize { first_entry, bookies, ensemble_size });
        }
        self.segments.push(segment);
        Ok(())
    }

    /// The segment that `entry` is in: the last one that begins at or before it. `None` before the first segment.
    pub fn segment_of(&self, entry: EntryId) -> Option<&Segment> {
        let after = self.segments.partition_point(|segment| segment.first_entry <= entry);
        after.checked_sub(1).map(|index| &self.segments[index])
    }

    /// The bookies that store `entry`, in the order in which they are asked.
    pub fn write_set(&self, entry: EntryId) -> impl Iterator<Item = &BookieId> {
        let segment = self.segment_of(entry);
        segment
            .into_iter()
            .flat_map(move |segment| self.quorum.write_set(entry).map(|index| &segment.ensemble[index]))
    }

    /// Whether any segment names this bookie.
    pub fn names(&self, bookie: &BookieId) -> bool {
        self.segments.iter().any(|segment| segment.ensemble.contains(bookie))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    fn bookies(names: &str) -> Vec<BookieId> {
        names.split(' ').map(|name| BookieId::new(name).unwrap()).collect()
    }

    fn metadata() -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"secret".to_vec() };
        let mut metadata = LedgerMetadata::new(Quorum::new(3, 2, 2).unwrap(), secret);
        metadata.push_segment(Segment { first_entry: entry(0), ensemble: bookies("a b c") }).unwrap();
        metadata.push_segment(Segment { first_entry: entry(10), ensemble: bookies("a d c") }).unwrap();
        metadata
    }

    #[test]
    fn an_entry_is_in_the_last_segment_that_begins_before_it() {
        let metadata = metadata();
        let write_set = |id| metadata.write_set(entry(id)).map(BookieId::as_str).collect::<Vec<_>>();
        assert_eq!(write_set(9), ["a", "b"]);
        assert_eq!(write_set(10), ["d", "c"]);
        assert_eq!(write_set(11), ["c", "a"]);
        assert!(metadata.names(&bookies("d")[0]));
        assert!(!metadata.names(&bookies("e")[0]));
    }

    #[test]
    fn segments_ascend_and_have_whole_ensembles() {
        let mut metadata = metadata();
        let again = Segment { first_entry: entry(10), ensemble: bookies("a b c") };
        assert!(matches!(metadata.push_segment(again), Err(InvalidSegment::NotAscending { .. })));
        let short = Segment { first_entry: entry(11), ensemble: bookies("a b") };
        assert!(matches!(metadata.push_segment(short), Err(InvalidSegment::EnsembleSize { .. })));
        assert_eq!(metadata.segments().len(), 2);
    }

    #[test]
    fn a_ledger_is_another_one_only_if_its_creation_proves_that() {
        let mut metadata = metadata();
        let copied = Creation::of(&metadata, 500, Some(400));
        assert_eq!((copied.is_anothers(None), copied.is_anothers(Some(500))), (false, false));
        assert!(copied.is_anothers(Some(400)) && copied.is_anothers(Some(600)));
        assert!(!copied.is_anothers(Some(399)), "it may have been copied from another store");
        assert!(!Creation::of(&metadata, 500, None).is_anothers(Some(400)), "no cluster to compare with");
        metadata.created_ms = Some(300);
        assert!(Creation::of(&metadata, 500, Some(400)).is_anothers(Some(399)), "a copy keeps this time");
        assert!(!Creation::of(&metadata, 500, Some(400)).is_anothers(Some(300)));
    }

    #[test]
    fn a_password_never_prints_itself() {
        assert!(!format!("{:?}", metadata()).contains("secret\""));
        assert!(!format!("{:?}", metadata()).contains("115"));
    }
}
