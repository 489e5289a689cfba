//! Whether a trimmed ledger here is the one of its id that lives. An id may be used again: then adds are of another ledger, and must not
//! count as trimmed.
//!
//! # Invariants
//! 1. Creation times decide where they can ([`Creation`](bindery_types::Creation)).
//! 2. Else the state does, for a writer's adds: a ledger is trimmed once it is closed, up to its last entry, and never opens again. It
//!    does not for a recovery's: metadata that was put back from an older copy says the same, and what a bookie has of a ledger in
//!    object storage must not go for that.

use bindery_engine::Tiered;
use bindery_metadata::layout::StoredLedger;
use bindery_types::LedgerState;

/// Whose an add to a trimmed ledger is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Of the ledger that is here.
    Same,
    /// Of another one: what is here goes first.
    Another,
    /// Nothing proves either.
    Doubtful,
}

/// Whose an add is, by what was known here before metadata was read. `cluster_ms`: when the cluster was made.
pub(crate) fn of_add(
    seen: &Tiered,
    stored: &StoredLedger,
    cluster_ms: Option<i64>,
    is_recovery: bool,
) -> Life {
    let creation = stored.creation(cluster_ms);
    if seen.created_ms == Some(creation.ms) {
        return Life::Same;
    }
    if creation.is_anothers(seen.created_ms) {
        return Life::Another;
    }
    match stored.metadata.state {
        LedgerState::Closed { last_entry, .. } if last_entry >= seen.trimmed_below => Life::Same,
        _ if is_recovery => Life::Doubtful,
        _ => Life::Another,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_metadata::store::Version;
    use bindery_types::{DigestType, EntryId, LedgerMetadata, LedgerSecret, Quorum};

    #[test]
    fn creation_times_decide_and_else_the_state_for_writers() {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
        let entry = |id| EntryId::new(id).unwrap();
        let stored = |state| {
            let mut metadata = metadata.clone();
            metadata.state = state;
            StoredLedger { metadata, version: Version::counted(0), created_ms: 500 }
        };
        let closed = |last| stored(LedgerState::Closed { last_entry: EntryId::new(last), length_bytes: 0 });
        let (open, recovering) = (stored(LedgerState::Open), stored(LedgerState::InRecovery));
        let seen = |created_ms| Tiered {
            life: 0,
            update: 1,
            is_update_durable: true,
            lre: entry(9),
            trimmed_below: Some(entry(9)),
            is_trim_committed: true,
            created_ms,
            changes: bindery_engine::Changes::NONE,
        };
        let of = |created_ms, stored: &StoredLedger| {
            [false, true].map(|is_recovery| of_add(&seen(created_ms), stored, Some(100), is_recovery))
        };
        for stored in [&open, &recovering, &closed(9), &closed(3)] {
            assert_eq!(of(Some(500), stored), [Life::Same; 2], "metadata of before, or a late writer");
            assert_eq!(of(Some(400), stored), [Life::Another; 2]);
        }
        // Not known, or from before the cluster was copied.
        for created_ms in [None, Some(99)] {
            assert_eq!(of(created_ms, &closed(9)), [Life::Same; 2]);
            for stored in [&open, &recovering, &closed(3)] {
                assert_eq!(of(created_ms, stored), [Life::Another, Life::Doubtful]);
            }
        }
    }
}
