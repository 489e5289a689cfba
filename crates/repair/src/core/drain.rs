//! Which copies of a ledger a bookie that is being emptied holds, and whether another bookie could take them.

use std::collections::BTreeSet;

use bindery_types::{BookieId, LedgerMetadata};

use super::audit::audit;

/// The copies of a ledger on a bookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// Segments with an end of which copies are there: they can be copied now.
    pub segments: usize,
    /// It is in the last ensemble of a ledger that is not closed: its writer leaves it, or somebody closes the ledger.
    pub is_open: bool,
    /// A segment's copies have nowhere to go: all bookies that take writes are in its ensemble.
    pub is_stuck: bool,
    /// Bookies of the ensemble, for a message.
    pub ensemble_size: usize,
}

/// The copies of the ledger on `bookie`; `None` when it has none. `writable` are the bookies that take writes.
pub fn holding(
    metadata: &LedgerMetadata,
    bookie: &BookieId,
    writable: &BTreeSet<BookieId>,
) -> Option<Holding> {
    let found = audit(metadata, |member| member != bookie);
    if found.is_whole() {
        return None;
    }
    let is_stuck = metadata.segments().iter().any(|segment| {
        let is_member = |candidate: &&BookieId| segment.ensemble.contains(candidate);
        segment.ensemble.contains(bookie)
            && found.lacks.iter().any(|lack| lack.first == segment.first_entry)
            && writable.iter().filter(|candidate| *candidate != bookie).all(|candidate| is_member(&candidate))
    });
    Some(Holding {
        segments: found.lacks.len(),
        is_open: !found.open.is_empty(),
        is_stuck,
        ensemble_size: metadata.quorum.ensemble_size(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, EntryId, LedgerSecret, LedgerState, Quorum, Segment};

    fn ids(names: &str) -> BTreeSet<BookieId> {
        names.split_whitespace().map(|name| BookieId::new(name).unwrap()).collect()
    }

    /// Segments by first entries and ensembles of three; `last` of a closed ledger.
    fn ledger(segments: &[(i64, &str)], last: Option<i64>) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(3, 2, 2).unwrap(), secret);
        for (first, names) in segments {
            let ensemble = names.split(' ').map(|name| BookieId::new(name).unwrap()).collect();
            metadata.push_segment(Segment { first_entry: EntryId::new(*first).unwrap(), ensemble }).unwrap();
        }
        if let Some(last) = last {
            metadata.state = LedgerState::Closed { last_entry: EntryId::new(last), length_bytes: 0 };
        }
        metadata
    }

    fn of(metadata: &LedgerMetadata, writable: &str) -> Option<(usize, bool, bool)> {
        let bookie = BookieId::new("a").unwrap();
        let found = holding(metadata, &bookie, &ids(writable))?;
        Some((found.segments, found.is_open, found.is_stuck))
    }

    #[test]
    fn what_is_on_a_bookie_is_told_from_what_only_names_it() {
        let all = "a b c d";
        assert_eq!(of(&ledger(&[(0, "a b c"), (9, "b c d")], Some(20)), all), Some((1, false, false)));
        assert_eq!(of(&ledger(&[(0, "b c d")], Some(20)), all), None);
        // Entry 0 is on b and c.
        assert_eq!(of(&ledger(&[(0, "b c a")], Some(0)), all), None);
        assert_eq!(of(&ledger(&[(0, "a b c")], Some(-1)), all), None);
        assert_eq!(of(&ledger(&[(0, "a b c"), (9, "a c d")], None), all), Some((1, true, false)));
        assert_eq!(of(&ledger(&[(0, "a b c"), (9, "b c d")], None), all), Some((1, false, false)));
    }

    #[test]
    fn copies_need_a_bookie_that_is_not_in_their_ensemble() {
        let one = ledger(&[(0, "a b c")], Some(20));
        assert_eq!(of(&one, "b c"), Some((1, false, true)));
        assert_eq!(of(&one, "a b c"), Some((1, false, true)), "itself is none");
        assert_eq!(of(&one, "c d"), Some((1, false, false)));
        // An open segment moves with its writer.
        assert_eq!(of(&ledger(&[(0, "a b c")], None), "b c"), Some((0, true, false)));
    }
}
