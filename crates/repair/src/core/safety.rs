//! Whether bookies may be stopped now.
//!
//! # Invariants
//! 1. Stopping is unsafe for a ledger when it takes copies from an entry that then has fewer than its ack quorum, or fewer than two.
//! 2. Ledgers that are in that state already, and lose nothing more, do not count.

use std::collections::BTreeSet;

use bindery_types::{BookieId, LedgerMetadata};

use super::audit::{copies, segments};

/// What stopping would do to one ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopVerdict {
    /// Nothing that matters.
    Safe,
    /// Its rarest entry would have so many copies left, too few to be sure of.
    FewCopies {
        /// Copies left.
        copies: usize,
        /// What its writers wait for.
        ack_quorum: usize,
    },
    /// Entries could not be read at all.
    Unreadable,
}

/// Judges what becomes of a ledger if the bookies in `stopped` stop now. `live` holds all bookies that are registered, these included.
pub fn verdict(
    metadata: &LedgerMetadata,
    live: &BTreeSet<BookieId>,
    stopped: &BTreeSet<BookieId>,
) -> StopVerdict {
    let (quorum, ack_quorum) = (metadata.quorum, metadata.quorum.ack_quorum_size());
    let of_segment = |(segment, end)| {
        let before = copies(quorum, segment, end, |bookie| live.contains(bookie));
        let after = copies(quorum, segment, end, |bookie| live.contains(bookie) && !stopped.contains(bookie));
        before.zip(after)
    };
    // Invariant 2.
    let fewer = segments(metadata).flat_map(of_segment).filter(|(before, after)| after < before);
    match fewer.map(|(_, after)| after).min() {
        Some(0) => StopVerdict::Unreadable,
        Some(copies) if copies < ack_quorum.max(2) => StopVerdict::FewCopies { copies, ack_quorum },
        Some(_) | None => StopVerdict::Safe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_types::{DigestType, EntryId, LedgerSecret, LedgerState, Quorum, Segment};

    fn ids(names: &str) -> BTreeSet<BookieId> {
        names.split_whitespace().map(|name| BookieId::new(name).unwrap()).collect()
    }

    fn verdict_of(quorum: (usize, usize, usize), ensemble: &str, live: &str, stopped: &str) -> StopVerdict {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(quorum.0, quorum.1, quorum.2).unwrap(), secret);
        let ensemble = ensemble.split(' ').map(|name| BookieId::new(name).unwrap()).collect();
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
        metadata.state = LedgerState::Closed { last_entry: EntryId::new(50), length_bytes: 0 };
        verdict(&metadata, &ids(live), &ids(stopped))
    }

    #[test]
    fn one_of_three_may_stop_and_a_second_one_may_not() {
        let of = |live, stopped| verdict_of((3, 3, 2), "a b c", live, stopped);
        assert_eq!(of("a b c d", "a"), StopVerdict::Safe);
        assert_eq!(of("a b c d", "a d"), StopVerdict::Safe);
        let few = StopVerdict::FewCopies { copies: 1, ack_quorum: 2 };
        assert_eq!(of("a b c d", "a b"), few);
        assert_eq!(of("b c d", "b"), few, "a is away already");
        assert_eq!(of("b c d", "d"), StopVerdict::Safe);
        assert_eq!(of("b c d", "a"), StopVerdict::Safe, "it takes nothing away");
        assert_eq!(of("a", "a"), StopVerdict::Unreadable);
    }

    #[test]
    fn the_ack_quorum_and_the_stripes_count() {
        assert_eq!(
            verdict_of((3, 3, 3), "a b c", "a b c", "a"),
            StopVerdict::FewCopies { copies: 2, ack_quorum: 3 }
        );
        // Of four in stripes of two, neighbours are all that some entries have.
        let of = |stopped| verdict_of((4, 2, 1), "a b c d", "a b c d", stopped);
        assert_eq!(of("a b"), StopVerdict::Unreadable);
        assert_eq!(of("a c"), StopVerdict::FewCopies { copies: 1, ack_quorum: 1 });
        assert_eq!(verdict_of((1, 1, 1), "a", "a b", "a"), StopVerdict::Unreadable);
    }

    #[test]
    fn a_bad_stripe_does_not_hide_another() {
        // Entries of b and c have one copy left already. Those of a and d have two.
        let found = verdict_of((4, 2, 2), "a b c d", "a b d", "d");
        assert_eq!(found, StopVerdict::Unreadable, "entries of c and d are on d alone");
        let found = verdict_of((4, 2, 2), "a b c d", "a b d", "a");
        assert_eq!(found, StopVerdict::FewCopies { copies: 1, ack_quorum: 2 });
    }
}
