//! Changes of ledger metadata, each made on a copy (protocol reference, section 7.8), and how large it may grow.
//!
//! A store takes 1 MiB for a ledger, and a ledger whose metadata does not fit any more can never be closed. So a ledger that is written to
//! for long, with a bookie that comes and goes, gets fewer segments the larger its metadata is ([`GROWN_SIZE_BYTES`],
//! [`FULL_SIZE_BYTES`]), and its end always fits ([`that_fits`]).

use std::collections::{BTreeMap, BTreeSet};

use bindery_metadata::codec::ledger;
use bindery_metadata::store::VALUE_SIZE_BYTES_MAX;
use bindery_types::{BookieId, EntryId, LedgerMetadata, Segment};

/// From this size on no segment is made so that repair sees a gap, nor for a bookie that is back: the mark of the ledger says what is
/// missing, and the bookie gets nothing more. It is some thousands of segments.
pub(crate) const GROWN_SIZE_BYTES: usize = 256 << 10;

/// From this size on a bookie that failed is replaced only where there is no ack quorum without it. What is left to the limit of the
/// store is for those replacements, for a recovery, and for the end.
pub(crate) const FULL_SIZE_BYTES: usize = 768 << 10;

/// The bytes that the store would have to take.
pub(crate) fn size_bytes(metadata: &LedgerMetadata) -> usize {
    ledger::encode(metadata).len()
}

/// The metadata as it fits into a node: where it does not, neighbours of one ensemble become one segment. Readers find the same bookies.
/// Repair may not see a gap between the two any more, which is less than a ledger that cannot be closed. The last segment stays: it says up
/// to where entries are confirmed.
pub(crate) fn that_fits(metadata: LedgerMetadata) -> LedgerMetadata {
    if size_bytes(&metadata) <= VALUE_SIZE_BYTES_MAX {
        return metadata;
    }
    let mut merged: Vec<Segment> = Vec::new();
    let last = metadata.segments().len().saturating_sub(1);
    for (index, segment) in metadata.segments().iter().enumerate() {
        if index == last || merged.last().is_none_or(|before| before.ensemble != segment.ensemble) {
            merged.push(segment.clone());
        }
    }
    with_segments(&metadata, merged)
}

/// The ensemble with the chosen bookies at the first of these positions.
///
/// # Panics
/// When one of them is a member.
pub(crate) fn with_replacements<'a>(
    ensemble: &[BookieId],
    positions: impl Iterator<Item = &'a usize>,
    chosen: &[BookieId],
) -> Vec<BookieId> {
    let mut changed = ensemble.to_vec();
    for (&position, bookie) in positions.zip(chosen) {
        assert!(!changed.contains(bookie), "a replacement is not a member");
        changed[position] = bookie.clone();
    }
    changed
}

/// The metadata with `ensemble` in force from `first_entry` on: the last segment is replaced when it begins there.
///
/// # Panics
/// When the last segment begins behind `first_entry`: the LAC (last add confirmed) is never below the entry before it.
pub(crate) fn with_ensemble(
    metadata: &LedgerMetadata,
    first_entry: EntryId,
    ensemble: Vec<BookieId>,
) -> LedgerMetadata {
    let mut segments = metadata.segments().to_vec();
    if let Some(last) = segments.last() {
        assert!(last.first_entry <= first_entry, "a segment never begins before the last one (IC11)");
        if last.first_entry == first_entry {
            segments.pop();
        }
    }
    segments.push(Segment { first_entry, ensemble });
    with_segments(metadata, segments)
}

/// The metadata with a segment more at each of these entries, of the same ensemble as before.
pub(crate) fn with_splits(metadata: &LedgerMetadata, first_entries: &BTreeSet<EntryId>) -> LedgerMetadata {
    let mut segments: BTreeMap<EntryId, Segment> = BTreeMap::new();
    for &first_entry in first_entries {
        if let Some(segment) = metadata.segment_of(first_entry) {
            segments.insert(first_entry, Segment { first_entry, ensemble: segment.ensemble.clone() });
        }
    }
    segments.extend(metadata.segments().iter().map(|segment| (segment.first_entry, segment.clone())));
    with_segments(metadata, segments.into_values().collect())
}

/// The metadata with other segments.
pub(crate) fn with_segments(metadata: &LedgerMetadata, segments: Vec<Segment>) -> LedgerMetadata {
    let secret = metadata.secret.clone();
    let placeholder =
        bindery_types::LedgerSecret { digest_type: bindery_types::DigestType::Dummy, password: Vec::new() };
    let mut changed = LedgerMetadata::new(metadata.quorum, placeholder);
    changed.format_version = metadata.format_version;
    changed.state = metadata.state;
    changed.secret = secret;
    changed.created_ms = metadata.created_ms;
    changed.custom = metadata.custom.clone();
    changed.creation_token = metadata.creation_token;
    for segment in segments {
        changed.push_segment(segment).expect("segments of valid metadata, and one that ascends");
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, LedgerSecret, LedgerState, Quorum};

    #[test]
    fn what_does_not_fit_loses_segments_that_say_nothing_to_readers() {
        let ids = |names: &str| -> Vec<BookieId> {
            names.split(' ').map(|name| BookieId::new(name).unwrap()).collect()
        };
        let at = |entry| EntryId::new(entry).unwrap();
        let secret = LedgerSecret { digest_type: DigestType::Hmac, password: b"p".to_vec() };
        let empty = LedgerMetadata::new(Quorum::new(2, 2, 1).unwrap(), secret);
        let of = |segments: &[(i64, &str)]| {
            let segments = segments
                .iter()
                .map(|(first, names)| Segment { first_entry: at(*first), ensemble: ids(names) });
            with_segments(&empty, segments.collect())
        };
        let mut small = of(&[(0, "a b"), (5, "a b"), (9, "a b")]);
        assert_eq!(that_fits(small.clone()), small, "it fits");
        // Something else takes the room.
        small.custom.insert("k".into(), vec![0; VALUE_SIZE_BYTES_MAX]);
        let mut large = of(&[(0, "a b"), (5, "a b"), (7, "a c"), (8, "a c"), (9, "a c")]);
        large.custom = small.custom.clone();
        let mut merged = of(&[(0, "a b"), (7, "a c"), (9, "a c")]);
        merged.custom = small.custom;
        assert_eq!(that_fits(large), merged);
    }

    #[test]
    fn a_segment_replaces_one_of_the_same_entry_and_follows_others() {
        let ids = |names: &str| -> Vec<BookieId> {
            names.split(' ').map(|name| BookieId::new(name).unwrap()).collect()
        };
        let at = |entry| EntryId::new(entry).unwrap();
        let secret = LedgerSecret { digest_type: DigestType::Hmac, password: b"p".to_vec() };
        let mut metadata = LedgerMetadata::new(Quorum::new(2, 2, 1).unwrap(), secret);
        metadata.push_segment(Segment { first_entry: at(0), ensemble: ids("a b") }).unwrap();
        metadata.state = LedgerState::InRecovery;
        metadata.custom.insert("k".into(), b"v".to_vec());
        metadata.creation_token = Some(3);
        let replaced = with_ensemble(&metadata, at(0), ids("a c"));
        assert_eq!(replaced.segments(), [Segment { first_entry: at(0), ensemble: ids("a c") }]);
        let appended = with_ensemble(&replaced, at(5), ids("d c"));
        assert_eq!(appended.segments().len(), 2);
        let back = with_segments(&appended, metadata.segments().to_vec());
        assert_eq!(back, metadata, "nothing but segments changes");
    }
}
