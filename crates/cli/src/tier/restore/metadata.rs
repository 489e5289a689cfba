//! The metadata that a restored ledger gets, from what its last object has of it. Reads and writes nothing.

use bindery_client::{CONTINUED_PROPERTY, HANDOVER_PROPERTY};
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Quorum, Segment};

/// How the end of a restored ledger came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All of it was in the tier when its last object was built.
    Whole,
    /// It was open then: it is closed behind its last entry in the tier.
    WasOpen,
    /// It went on up to this entry, and the rest never came into the tier.
    Cut {
        /// Its last entry.
        was: EntryId,
    },
}

/// Why a ledger cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The object says that the ledger ended before.
    #[error("its metadata says that it ended {}, and the tier has entries up to {last}", .ended.map_or_else(|| "without an entry".to_owned(), |entry| format!("with entry {entry}")))]
    Beyond {
        /// The end by the metadata.
        ended: Option<EntryId>,
        /// In the tier.
        last: EntryId,
    },
}

/// How the end of the ledger is, given what its last object says, and the length if that says it.
pub fn end(original: &LedgerMetadata, last: EntryId) -> Result<(End, Option<u64>), Unfit> {
    match original.state {
        LedgerState::Closed { last_entry: Some(was), length_bytes } if was == last => {
            Ok((End::Whole, Some(length_bytes)))
        }
        LedgerState::Closed { last_entry: Some(was), .. } if was > last => Ok((End::Cut { was }, None)),
        LedgerState::Closed { last_entry, .. } => Err(Unfit::Beyond { ended: last_entry, last }),
        LedgerState::Open | LedgerState::InRecovery => Ok((End::WasOpen, None)),
    }
}

/// The metadata: closed with its last entry in the tier, on bookies that are there now. Fewer of them than the ensemble had make it
/// smaller: the copy that counts is in the tier.
pub fn restored(
    ledger: LedgerId,
    original: &LedgerMetadata,
    (last, length_bytes): (EntryId, u64),
    bookies: &[BookieId],
) -> LedgerMetadata {
    let old = &original.quorum;
    let ensemble_size = old.ensemble_size().min(bookies.len()).max(1);
    let write = old.write_quorum_size().min(ensemble_size);
    let ack = old.ack_quorum_size().min(write);
    // Old metadata may have an ack quorum that no new ledger gets.
    let quorum = if ensemble_size == old.ensemble_size() {
        original.quorum
    } else {
        Quorum::new(ensemble_size, write, ack.max(1)).unwrap_or(original.quorum)
    };
    let mut metadata = LedgerMetadata::new(
        quorum,
        bindery_types::LedgerSecret { digest_type: bindery_types::DigestType::Crc32c, password: Vec::new() },
    );
    metadata.format_version = original.format_version;
    metadata.secret.clone_from(&original.secret);
    metadata.created_ms = original.created_ms;
    metadata.custom.clone_from(&original.custom);
    metadata.creation_token = original.creation_token;
    if !matches!(original.state, LedgerState::Closed { .. }) {
        // A closed ledger is never handed over.
        metadata.custom.remove(HANDOVER_PROPERTY);
    }
    metadata.state = LedgerState::Closed { last_entry: Some(last), length_bytes };
    // Each ledger begins with another bookie, so that reads are spread.
    let from = usize::try_from(ledger.get()).unwrap_or(0) % bookies.len().max(1);
    let ensemble = bookies.iter().cycle().skip(from).take(ensemble_size).cloned().collect();
    // The ensemble has as many bookies as the quorum says, so it fits.
    let _ = metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble });
    metadata
}

/// In which way a ledger that exists is another one than the tier has; `None` when it is the same.
pub fn difference(there: &LedgerMetadata, original: &LedgerMetadata, last: EntryId) -> Option<String> {
    match there.state {
        LedgerState::Closed { last_entry: Some(entry), .. } if entry == last => {}
        LedgerState::Closed { last_entry, .. } => {
            let end =
                last_entry.map_or_else(|| "is empty".to_owned(), |entry| format!("ends with entry {entry}"));
            return Some(format!(
                "a ledger of this id exists, and {end}; the tier has it up to entry {last}"
            ));
        }
        LedgerState::Open => return Some("a ledger of this id exists, and is open".to_owned()),
        LedgerState::InRecovery => return Some("a ledger of this id exists, and is in recovery".to_owned()),
    }
    if there.secret != original.secret {
        return Some("a ledger of this id exists, with another password or digest".to_owned());
    }
    let own = |metadata: &LedgerMetadata| {
        let mut custom = metadata.custom.clone();
        // These come and go after an object was built.
        custom.remove(HANDOVER_PROPERTY);
        custom.remove(CONTINUED_PROPERTY);
        custom
    };
    (own(there) != own(original)).then(|| "a ledger of this id exists, with other properties".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_metadata::codec;
    use bindery_types::{DigestType, LedgerSecret, MetadataFormatVersion};

    fn entry(id: i64) -> EntryId {
        EntryId::new(id).unwrap()
    }

    fn original(state: LedgerState) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Hmac, password: b"secret".to_vec() };
        let mut metadata = LedgerMetadata::new(Quorum::new(3, 3, 2).unwrap(), secret);
        metadata.state = state;
        metadata.created_ms = Some(77);
        metadata.custom.insert("application".into(), b"pulsar".to_vec());
        metadata.custom.insert(HANDOVER_PROPERTY.into(), b"busy token=0000000000000001".to_vec());
        metadata
    }

    fn closed(last: i64) -> LedgerState {
        LedgerState::Closed { last_entry: Some(entry(last)), length_bytes: 500 }
    }

    #[test]
    fn the_end_is_that_of_the_tier() {
        assert_eq!(end(&original(closed(9)), entry(9)), Ok((End::Whole, Some(500))));
        assert_eq!(end(&original(closed(12)), entry(9)), Ok((End::Cut { was: entry(12) }, None)));
        assert_eq!(end(&original(LedgerState::Open), entry(9)), Ok((End::WasOpen, None)));
        assert_eq!(end(&original(LedgerState::InRecovery), entry(9)), Ok((End::WasOpen, None)));
        let error = end(&original(closed(5)), entry(9)).unwrap_err().to_string();
        assert_eq!(error, "its metadata says that it ended with entry 5, and the tier has entries up to 9");
    }

    #[test]
    fn everything_but_state_and_bookies_stays() {
        let bookies: Vec<BookieId> = (0..4).map(|n| BookieId::new(format!("b{n}:1")).unwrap()).collect();
        let before = original(LedgerState::Open);
        let ledger = LedgerId::new(6).unwrap();
        let after = restored(ledger, &before, (entry(9), 321), &bookies);
        assert_eq!(after.state, LedgerState::Closed { last_entry: Some(entry(9)), length_bytes: 321 });
        assert_eq!(
            (after.quorum, &after.secret, after.created_ms),
            (before.quorum, &before.secret, Some(77))
        );
        assert_eq!(after.custom.keys().collect::<Vec<_>>(), ["application"], "nobody writes it");
        for format_version in [MetadataFormatVersion::V2, MetadataFormatVersion::V3] {
            let mut after = after.clone();
            after.format_version = format_version;
            let bytes = codec::ledger::encode(&after);
            assert_eq!(codec::ledger::decode(&bytes).unwrap().created_ms, Some(77), "as Java reads it");
        }
        let ensemble: Vec<&str> = after.segments()[0].ensemble.iter().map(|bookie| bookie.as_str()).collect();
        assert_eq!(ensemble, ["b2:1", "b3:1", "b0:1"]);
        assert_eq!(difference(&after, &before, entry(9)), None, "a second time finds it there");
        let mut continued = after.clone();
        continued.custom.insert(CONTINUED_PROPERTY.into(), b"7".to_vec());
        assert_eq!(
            difference(&continued, &before, entry(9)),
            None,
            "its writer died after the object was built"
        );
        // Fewer bookies than the ensemble had.
        let small = restored(ledger, &before, (entry(9), 321), &bookies[..1]);
        assert_eq!((small.quorum.ensemble_size(), small.quorum.ack_quorum_size()), (1, 1));
        assert_eq!(small.segments()[0].ensemble.len(), 1);
    }

    #[test]
    fn another_ledger_is_told_from_the_same_one() {
        let before = original(closed(9));
        let with = |change: &dyn Fn(&mut LedgerMetadata)| {
            let mut there = before.clone();
            change(&mut there);
            difference(&there, &before, entry(9))
        };
        assert_eq!(with(&|_| ()), None);
        assert!(with(&|there| there.state = LedgerState::Open).unwrap().contains("is open"));
        assert!(with(&|there| there.state = closed(3)).unwrap().contains("ends with entry 3"));
        assert!(with(&|there| there.secret = None).unwrap().contains("another password"));
        assert!(with(&|there| drop(there.custom.remove("application"))).unwrap().contains("properties"));
    }
}
