//! Changes of ledger metadata, each made on a copy (protocol reference, section 7.8).

use std::collections::{BTreeMap, BTreeSet};

use bindery_types::{BookieId, EntryId, LedgerMetadata, Segment};

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
