//! How endangered a ledger is, as its mark says it: the auditor has read the metadata, so that workers need not.
//!
//! # Invariants
//! 1. What a mark says of the danger is believed only where it comes to what metadata would say: of the same registered bookies, and where
//!    the mark names none of them, which may lack entries or be emptied.
//! 2. It decides order alone: whoever repairs the ledger reads its metadata under the lock.

use std::collections::BTreeSet;

use bindery_metadata::layout::{Danger, Marked};
use bindery_types::{BookieId, LedgerMetadata, Segment};

use super::audit::{Audit, Fit};

/// A hash of bookies, the same in every process and version: FNV-1a with 64 bits over the ids, ascending, each with a line feed.
pub fn hash_of(bookies: &BTreeSet<BookieId>) -> u64 {
    let bytes = bookies.iter().flat_map(|bookie| bookie.as_str().bytes().chain([b'\n']));
    hash(bytes)
}

/// FNV-1a with 64 bits.
pub(super) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// What the mark of a ledger is to say that lacks what `found` says while the bookies with the hash `bookies` are registered. `None` of one
/// whose copies are to be filled up, not replaced, and of one with more members than a mark names.
pub fn danger(metadata: &LedgerMetadata, found: &Audit, bookies: u64) -> Option<Danger> {
    let mut lacking = found.lacks.iter().map(|lack| lack.first);
    let ensemble = |first| -> Option<&Segment> {
        metadata.segments().iter().find(|segment| segment.first_entry == first)
    };
    let mut members = ensemble(lacking.next()?)?.ensemble.clone();
    for first in lacking {
        let others = &ensemble(first)?.ensemble;
        members.retain(|member| others.contains(member));
    }
    (members.len() <= Danger::MEMBERS_MAX).then_some(Danger { copies: found.copies_min, bookies, members })
}

/// Who looks at a mark.
#[derive(Debug, Clone, Copy)]
pub struct Looker<'a> {
    /// The bookie that the worker copies to; `None` of one that copies to any.
    pub own: Option<&'a BookieId>,
    /// Whether that bookie takes copies.
    pub takes_writes: bool,
    /// The registered bookies, and the hash of their ids.
    pub live: &'a BTreeSet<BookieId>,
    /// See [`hash_of`].
    pub bookies: u64,
}

/// The live copies of a ledger and whose it is to repair, by its mark alone; `None` where metadata have to be read (invariant 1).
pub fn by_mark(mark: &Marked, looker: Looker<'_>) -> Option<(usize, Fit)> {
    let danger = mark.danger.as_ref().filter(|danger| danger.bookies == looker.bookies)?;
    let is_there = |replica: &String| looker.live.iter().any(|bookie| bookie.as_str() == replica);
    if mark.replicas.iter().any(is_there) {
        return None;
    }
    let can_take = looker.own.is_none_or(|own| looker.takes_writes && !danger.members.contains(own));
    Some((danger.copies, if can_take { Fit::Ours } else { Fit::Never }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::audit::{audit, fit};
    use bindery_metadata::store::Version;
    use bindery_types::{DigestType, EntryId, LedgerSecret, LedgerState, Quorum};

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn ids(names: &str) -> BTreeSet<BookieId> {
        names.split(' ').map(id).collect()
    }

    fn ledger(segments: &[(i64, &str)]) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(3, 3, 2).unwrap(), secret);
        for (first, names) in segments {
            let first_entry = EntryId::new(*first).unwrap();
            metadata
                .push_segment(Segment { first_entry, ensemble: names.split(' ').map(id).collect() })
                .unwrap();
        }
        metadata.state = LedgerState::Closed { last_entry: EntryId::new(99), length_bytes: 7 };
        metadata
    }

    #[test]
    fn a_mark_comes_to_what_metadata_say() {
        let live = ids("a b c d e f");
        let bookies = hash_of(&live);
        for segments in [
            vec![(0, "a b x")],
            vec![(0, "a x y")],
            vec![(0, "a b x"), (10, "a c x")],
            vec![(0, "a b c"), (5, "d x b"), (7, "d y e")],
        ] {
            let metadata = ledger(&segments);
            let found = audit(&metadata, |bookie| live.contains(bookie));
            let replicas = vec!["x".to_owned(), "y".to_owned()];
            let danger = danger(&metadata, &found, bookies);
            let mark = Marked { replicas, since_ms: None, danger, version: Version::counted(0) };
            for own in &live {
                for takes_writes in [true, false] {
                    let looker = Looker { own: Some(own), takes_writes, live: &live, bookies };
                    let wanted = fit(own, takes_writes, &metadata, &mark.replicas, &found);
                    let told = by_mark(&mark, looker);
                    assert_eq!(told, Some((found.copies_min, wanted)), "{segments:?} for {own}");
                }
            }
            let any = Looker { own: None, takes_writes: false, live: &live, bookies };
            assert_eq!(by_mark(&mark, any), Some((found.copies_min, Fit::Ours)));
        }
    }

    #[test]
    fn a_mark_is_not_believed_where_it_may_be_wrong() {
        let live = ids("a b c d");
        let bookies = hash_of(&live);
        let metadata = ledger(&[(0, "a b x")]);
        let found = audit(&metadata, |bookie| live.contains(bookie));
        let danger = danger(&metadata, &found, bookies);
        let mark = |replicas: &[&str]| Marked {
            replicas: replicas.iter().map(|replica| (*replica).to_owned()).collect(),
            since_ms: None,
            danger: danger.clone(),
            version: Version::counted(0),
        };
        let own = id("d");
        let looker = Looker { own: Some(&own), takes_writes: true, live: &live, bookies };
        assert!(by_mark(&mark(&["x"]), looker).is_some());
        assert_eq!(by_mark(&mark(&["x", "b"]), looker), None, "b may lack entries, or be emptied");
        assert_eq!(by_mark(&Marked { danger: None, ..mark(&["x"]) }, looker), None);
        let fewer = ids("a c d");
        let looker = Looker { live: &fewer, bookies: hash_of(&fewer), ..looker };
        assert_eq!(by_mark(&mark(&["x"]), looker), None, "other bookies are registered");
    }

    #[test]
    fn a_mark_says_nothing_where_no_copy_is_replaced() {
        let whole = ledger(&[(0, "a b c")]);
        assert_eq!(danger(&whole, &audit(&whole, |_| true), 1), None);
        let mut open = ledger(&[(0, "a b x")]);
        open.state = LedgerState::Open;
        assert_eq!(danger(&open, &audit(&open, |bookie| *bookie != id("x")), 1), None);
    }

    #[test]
    fn the_hash_of_bookies_is_the_same_everywhere() {
        assert_eq!(hash_of(&BTreeSet::new()), 0xcbf2_9ce4_8422_2325);
        // By the definition: each byte is mixed in, then multiplied by the prime.
        let by_hand = b"a\nbc\n".iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211)
        });
        assert_eq!(hash_of(&ids("bc a")), by_hand);
    }
}
