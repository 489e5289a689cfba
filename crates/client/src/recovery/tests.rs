//! Each rule of opening with recovery (protocol reference, section 7.5), by scripted answers.

use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::store::{VALUE_SIZE_BYTES_MAX, Version};
use bindery_types::{
    BookieId, DigestType, Digester, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, Quorum,
    Segment,
};
use bindery_wire::ErrorCode;
use bytes::Bytes;

use super::core::{Out, READ_AHEAD_ENTRIES, RecoveryCore, RecoveryRead};
use crate::entry::EntryCodec;
use crate::error::RecoveryError;
use crate::handover::Handover;
use crate::metadata_edit::{size_bytes, with_ensemble};
use crate::transport::{AddTag, BookieError};
use crate::writer::core::Step;

fn ids(names: &str) -> Vec<BookieId> {
    names.split(' ').map(|name| BookieId::new(name).unwrap()).collect()
}

fn at(entry: i64) -> EntryId {
    EntryId::new(entry).unwrap()
}

fn codec() -> EntryCodec {
    EntryCodec::new(LedgerId::new(1).unwrap(), Digester::new(DigestType::Crc32c, b""))
}

/// An open ledger on bookies a, b, c, ...
fn metadata(e: usize, qw: usize, qa: usize) -> LedgerMetadata {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let mut metadata = LedgerMetadata::new(Quorum::new(e, qw, qa).unwrap(), secret);
    let ensemble = ids("a b c d e")[..e].to_vec();
    metadata.push_segment(Segment { first_entry: at(0), ensemble }).unwrap();
    metadata
}

/// Entry `id` of five bytes, written when `lac` was confirmed.
fn stored(id: i64, lac: i64) -> Bytes {
    let mut stored = Vec::new();
    codec().put(at(id), EntryId::new(lac), 5 * (id as u64 + 1), b"12345", &mut stored);
    stored.into()
}

const ABSENT: Result<Bytes, BookieError> = Err(BookieError::Refused(ErrorCode::NoEntry));
const UNKNOWN: Result<Bytes, BookieError> = Err(BookieError::Lost);

struct Script {
    core: RecoveryCore,
    out: Out,
    /// What [`Script::ack`] answered.
    answered: Vec<(EntryId, AddTag)>,
}

impl Script {
    fn new(metadata: LedgerMetadata) -> Script {
        let mut out = Out::default();
        let read = StoredLedger { metadata, version: Version::counted(3), created_ms: 0 };
        let core = RecoveryCore::new(LedgerId::new(1).unwrap(), codec(), read, &mut out);
        let mut script = Script { core, out, answered: Vec::new() };
        if let Some(Step::Write { metadata, expected }) = script.core.next_step() {
            assert_eq!((metadata.state, expected), (LedgerState::InRecovery, Version::counted(3)));
            assert!(
                script.out.reads.is_empty(),
                "nothing is fenced before the writer's changes are shut out"
            );
            script.core.written(Ok(Version::counted(4)), &mut script.out);
        }
        script
    }

    /// Fenced on all bookies, of which the first returned this entry.
    fn fenced(metadata: LedgerMetadata, last: Bytes) -> Script {
        let size = metadata.quorum.ensemble_size();
        let mut script = Script::new(metadata);
        script.fence("a", Ok(last));
        for bookie in &ids("b c d e")[..size - 1] {
            script.fence(bookie.as_str(), ABSENT);
        }
        script
    }

    fn take(&mut self, bookie: &str, entry: Option<EntryId>) -> Option<RecoveryRead> {
        let is_it = |read: &RecoveryRead| read.bookie.as_str() == bookie && read.entry == entry;
        let index = self.out.reads.iter().position(is_it)?;
        Some(self.out.reads.remove(index))
    }

    /// Answers a fence, unless coverage made it needless to wait for.
    fn fence(&mut self, bookie: &str, result: Result<Bytes, BookieError>) {
        let read = self.take(bookie, None).expect("every bookie of the last ensemble is fenced (IC5)");
        self.core.on_read(read.tag, result, &mut self.out);
    }

    fn answer(&mut self, bookie: &str, entry: i64, result: Result<Bytes, BookieError>) {
        let read = self.take(bookie, Some(at(entry))).expect("it was asked");
        self.core.on_read(read.tag, result, &mut self.out);
    }

    /// Every bookie that was sent something and is named acknowledges it.
    fn ack(&mut self, bookies: &str) {
        let ensemble = self.core.ensemble().to_vec();
        for send in std::mem::take(&mut self.out.sends) {
            let bookie = &ensemble[send.position];
            self.answered.push((send.entry, send.tag));
            if bookies.split(' ').any(|name| name == bookie.as_str()) {
                self.core.on_answer(send.entry, send.tag, &Ok(()));
            } else {
                self.core.on_answer(send.entry, send.tag, &Err(BookieError::Lost));
            }
        }
        self.core.settle(&mut self.out);
    }

    /// The ledger is to be marked as under-replicated on these bookies, and is.
    fn mark(&mut self, names: &str) {
        assert_eq!(self.core.next_step(), Some(Step::Mark { replicas: ids(names) }), "invariant 8");
        self.core.marked();
    }

    fn is_reading(&self) -> bool {
        self.out.reads.iter().any(|read| read.entry.is_some())
    }

    fn end(&self) -> Option<LedgerState> {
        match self.core.next_step() {
            Some(Step::Write { metadata, .. }) => Some(metadata.state),
            Some(_) | None => None,
        }
    }

    fn error(&self) -> Option<&RecoveryError> {
        self.core.result().and_then(|result| result.as_ref().err())
    }
}

fn closed(last_entry: i64) -> Option<LedgerState> {
    let length_bytes = 5 * (last_entry + 1) as u64;
    Some(LedgerState::Closed { last_entry: EntryId::new(last_entry), length_bytes })
}

#[test]
fn reading_begins_when_the_fences_cover_the_last_ensemble() {
    // IC4, IC5, R15. 5/3/2: no two neighbours within a write set may be unknown.
    let mut script = Script::new(metadata(5, 3, 2));
    assert_eq!(script.out.reads.len(), 5);
    script.fence("a", ABSENT);
    script.fence("c", Err(BookieError::Refused(ErrorCode::NoLedger)));
    assert!(!script.is_reading());
    script.fence("b", UNKNOWN);
    script.fence("d", ABSENT);
    assert!(!script.is_reading(), "b and e would hide an entry written to e, a, b");
    script.fence("e", ABSENT);
    assert!(script.is_reading());
}

#[test]
fn without_coverage_the_recovery_fails_and_the_ledger_stays() {
    for unknown in [
        UNKNOWN,
        Err(BookieError::Refused(ErrorCode::Io)),
        Err(BookieError::Refused(ErrorCode::UnknownLedgerState)),
        // R50: OK with a bad digest is no knowledge.
        Ok(Bytes::from_static(b"damaged")),
    ] {
        let mut script = Script::new(metadata(3, 3, 2));
        script.fence("a", ABSENT);
        script.fence("b", unknown.clone());
        script.fence("c", unknown.clone());
        assert!(matches!(script.error(), Some(RecoveryError::NotCovered { .. })), "IC6: {unknown:?}");
        assert_eq!(script.core.next_step(), None);
    }
    let mut script = Script::new(metadata(3, 3, 2));
    script.fence("c", Err(BookieError::Refused(ErrorCode::Unauthorized)));
    assert!(matches!(script.error(), Some(RecoveryError::Unauthorized { .. })));
}

#[test]
fn reading_goes_on_from_the_highest_lac_inside_the_last_entries() {
    let mut script = Script::new(metadata(3, 3, 1));
    script.fence("a", Ok(stored(9, 4)));
    script.fence("b", Ok(stored(7, 6)));
    assert!(!script.is_reading(), "3/3/1: all three");
    script.fence("c", ABSENT);
    let first = script.out.reads.iter().filter_map(|read| read.entry).min();
    assert_eq!(first, Some(at(7)));
    let asked = script.out.reads.iter().filter(|read| read.entry == Some(at(7))).count();
    assert_eq!(asked, 3, "its whole write set");
    assert_eq!(script.out.reads.len(), 3 * READ_AHEAD_ENTRIES);
}

#[test]
fn the_lac_is_never_below_the_last_segment() {
    // R14 (#2615).
    let ledger = with_ensemble(&metadata(3, 3, 2), at(10), ids("a b d"));
    let mut script = Script::new(ledger);
    for bookie in ["a", "b", "d"] {
        script.fence(bookie, ABSENT);
        if script.is_reading() {
            break;
        }
    }
    assert_eq!(script.out.reads.iter().filter_map(|read| read.entry).min(), Some(at(10)));
    script.answer("a", 10, ABSENT);
    script.answer("b", 10, ABSENT);
    // No entry was found behind the LAC: the length is read from the entry at the LAC, in the segment it belongs to.
    script.answer("c", 9, Ok(stored(9, 8)));
    assert_eq!(script.end(), closed(9));
}

/// A bookie of the last ensemble joined an earlier one by re-replication: its last entry is a copy that Java packed again, with
/// the LAC of that moment.
#[test]
fn the_lac_inside_a_copy_by_re_replication_is_one_to_go_on_from() {
    let ledger = with_ensemble(&metadata(3, 3, 2), at(10), ids("a b d"));
    for (lac, first) in [(14, 15), (9, 10)] {
        let mut script = Script::new(ledger.clone());
        script.fence("d", Ok(stored(9, lac)));
        script.fence("a", ABSENT);
        assert_eq!(script.out.reads.iter().filter_map(|read| read.entry).min(), Some(at(first)));
        script.answer("a", first, ABSENT);
        script.answer("d", first, ABSENT);
        if lac == 14 {
            assert_eq!(script.end(), None, "the copy's length is not that of entry 14");
            script.answer("b", 14, Ok(stored(14, 13)));
        }
        assert_eq!(script.end(), closed(lac));
    }
}

#[test]
fn a_ledger_does_not_end_below_a_lac_inside_a_copy() {
    let until_missing = || {
        let mut script = Script::fenced(metadata(3, 3, 2), stored(0, -1));
        script.answer("b", 0, Ok(stored(0, 1)));
        assert_eq!(script.out.sends[0].body, stored(0, 1), "the bytes that were found");
        script.ack("a b c");
        script.answer("a", 1, ABSENT);
        script.answer("b", 1, ABSENT);
        assert_eq!((script.end(), script.error()), (None, None), "IC7: entry 1 was confirmed");
        script
    };
    let mut script = until_missing();
    script.answer("c", 1, Ok(stored(1, 0)));
    script.ack("a b c");
    script.answer("a", 2, ABSENT);
    script.answer("b", 2, ABSENT);
    assert_eq!(script.end(), closed(1));
    let mut script = until_missing();
    script.answer("c", 1, ABSENT);
    let error = script.error().expect("no end, no entry");
    assert!(matches!(error, RecoveryError::EntryUnknown { entry, .. } if *entry == at(1)), "{error}");
}

#[test]
fn a_ledger_does_not_end_below_a_lac_inside_an_entry_that_was_read_ahead() {
    let until_missing = |ahead: Bytes| {
        let mut script = Script::fenced(metadata(3, 3, 2), stored(0, -1));
        script.answer("b", 2, Ok(ahead));
        script.answer("a", 0, ABSENT);
        script.answer("b", 0, ABSENT);
        script
    };
    let mut script = until_missing(stored(2, 1));
    assert_eq!((script.end(), script.error()), (None, None), "IC7: entry 0 was confirmed");
    script.answer("c", 0, Ok(stored(0, -1)));
    // A copy that is not needed any more says that there was more.
    script.answer("c", 2, Ok(stored(2, 3)));
    for bookie in ["a", "b"] {
        script.answer(bookie, 1, ABSENT);
    }
    script.answer("c", 1, Ok(stored(1, 0)));
    script.ack("a b c");
    script.answer("a", 3, ABSENT);
    script.answer("b", 3, ABSENT);
    assert_eq!((script.end(), script.error()), (None, None), "IC7: entry 3 was confirmed");
    script.answer("c", 3, ABSENT);
    let error = script.error().expect("no end, no entry");
    assert!(matches!(error, RecoveryError::EntryUnknown { entry, .. } if *entry == at(3)), "{error}");
    assert_eq!(until_missing(stored(2, -1)).end(), closed(-1), "nothing was confirmed");
}

#[test]
fn nothing_is_read_behind_the_last_entry_that_there_can_be() {
    let last = i64::MAX - 1;
    let mut script = Script::new(metadata(3, 3, 2));
    script.fence("a", Ok(stored(0, last)));
    script.fence("b", ABSENT);
    let asked: Vec<i64> = script.out.reads.iter().filter_map(|read| Some(read.entry?.get())).collect();
    assert_eq!(asked, [last; 3], "for its length");
    for bookie in ["a", "b", "c"] {
        script.answer(bookie, last, ABSENT);
    }
    let end = script.end();
    assert!(
        matches!(end, Some(LedgerState::Closed { last_entry, .. }) if last_entry == Some(at(last))),
        "{end:?}"
    );
}

#[test]
fn what_is_found_is_added_again_and_closed_when_an_ack_quorum_has_it() {
    let mut script = Script::fenced(metadata(3, 3, 2), stored(1, -1));
    script.answer("b", 0, ABSENT);
    script.answer("a", 0, Ok(stored(0, -1)));
    assert_eq!(script.out.sends.len(), 3, "to its write set");
    assert_eq!(script.out.sends[0].body, stored(0, -1), "the writer's bytes");
    script.answer("c", 1, Ok(stored(1, -1)));
    script.answer("b", 2, ABSENT);
    script.answer("c", 2, ABSENT);
    assert_eq!(script.end(), None, "IC15: not before the acks");
    script.ack("a b c");
    assert_eq!(script.end(), closed(1));
    script.core.written(Ok(Version::counted(5)), &mut script.out);
    assert_eq!(script.core.result().unwrap().as_ref().unwrap().version, Version::counted(5));
}

#[test]
fn the_end_takes_enough_negatives_and_unknown_is_none() {
    // IC6, M15. 3/3/2: two negatives.
    let mut script = Script::fenced(metadata(3, 3, 2), stored(0, -1));
    script.answer("a", 0, ABSENT);
    assert_eq!(script.end(), None);
    script.answer("b", 0, UNKNOWN);
    script.answer("c", 0, Ok(Bytes::from_static(b"damaged")));
    let error = script.error().expect("no end, no entry");
    assert!(matches!(error, RecoveryError::EntryUnknown { entry, .. } if *entry == at(0)), "{error}");

    let mut script = Script::fenced(metadata(3, 3, 2), stored(0, -1));
    script.answer("a", 0, ABSENT);
    script.answer("b", 0, Ok(stored(0, -1)));
    script.answer("c", 0, ABSENT);
    assert_eq!(script.out.sends.len(), 3, "a valid positive wins over negatives that follow");

    let mut script = Script::fenced(metadata(3, 3, 2), stored(0, -1));
    script.answer("a", 0, ABSENT);
    script.answer("c", 0, Ok(stored(1, -1)));
    assert_eq!(script.end(), None, "another entry is no answer");
    script.answer("b", 0, ABSENT);
    assert_eq!(script.end(), closed(-1));
}

#[test]
fn a_gap_ends_the_ledger_also_when_entries_behind_it_were_found() {
    let mut script = Script::fenced(metadata(3, 3, 2), stored(1, -1));
    script.answer("a", 1, Ok(stored(1, -1)));
    script.answer("a", 0, ABSENT);
    script.answer("c", 0, ABSENT);
    assert_eq!(script.end(), closed(-1), "entry 1 was never confirmed");
}

#[test]
fn ensembles_change_in_memory_and_are_published_with_the_close() {
    // IC12, M19.
    let mut script = Script::fenced(metadata(3, 3, 2), stored(5, 4));
    script.answer("a", 5, Ok(stored(5, 4)));
    script.ack("a");
    assert!(matches!(script.core.next_step(), Some(Step::Place { positions, .. }) if positions.len() == 2));
    script.core.placed(&ids("x y"), 0, &mut script.out);
    assert_eq!(script.core.next_step(), None, "nothing is written");
    script.ack("x y");
    script.answer("b", 6, ABSENT);
    script.answer("c", 6, ABSENT);
    let Some(Step::Write { metadata, expected }) = script.core.next_step() else { panic!("the close") };
    assert_eq!((Some(metadata.state), expected), (closed(5), Version::counted(4)));
    let last = metadata.segments().last().unwrap();
    assert_eq!((last.first_entry, &last.ensemble), (at(5), &ids("a x y")));
}

#[test]
fn without_replacements_an_ack_quorum_of_the_others_suffices() {
    // IC20: three bookies, one of them gone.
    let mut script = Script::fenced(metadata(3, 3, 2), stored(0, -1));
    script.answer("a", 0, Ok(stored(0, -1)));
    let tag = script.out.sends[2].tag;
    script.core.on_answer(at(0), tag, &Err(BookieError::Lost));
    script.core.settle(&mut script.out);
    script.core.placed(&[], 0, &mut script.out);
    script.answer("a", 1, ABSENT);
    script.answer("b", 1, ABSENT);
    assert_eq!(script.end(), None, "IC15");
    script.ack("a b");
    script.mark("c");
    assert_eq!(script.end(), closed(0));

    let mut script = Script::fenced(metadata(3, 3, 2), stored(0, -1));
    script.answer("a", 0, Ok(stored(0, -1)));
    script.ack("a");
    script.core.placed(&[], 1, &mut script.out);
    assert!(
        matches!(script.error(), Some(RecoveryError::NotEnoughBookies { error, .. }) if error.read_only == 1)
    );
}

/// Invariants 7 and 8: b lacks what was confirmed before, c refuses one entry.
#[test]
fn what_is_added_again_has_a_segment_and_a_late_copy_is_waited_for() {
    let recovering = || {
        let mut script = Script::fenced(metadata(3, 3, 2), stored(6, 4));
        for entry in [5, 6] {
            script.answer("a", entry, Ok(stored(entry, 4)));
        }
        let mut sends = std::mem::take(&mut script.out.sends);
        assert_eq!(sends.len(), 6);
        sends.sort_by_key(|send| (send.entry, send.position));
        for send in sends {
            match (send.entry.get(), send.position) {
                (6, 2) => {}
                (5, 2) => {
                    let refused = Err(BookieError::Refused(ErrorCode::TooManyRequests));
                    script.core.on_answer(send.entry, send.tag, &refused);
                }
                _ => script.core.on_answer(send.entry, send.tag, &Ok(())),
            }
            script.answered.push((send.entry, send.tag));
        }
        script.core.settle(&mut script.out);
        script.answer("a", 7, ABSENT);
        script.answer("b", 7, ABSENT);
        assert_eq!(script.core.next_step(), None, "the last copy is on its way");
        assert!(script.core.is_lingering());
        script
    };
    let starts = |script: &Script| -> Vec<i64> {
        let Some(Step::Write { metadata, .. }) = script.core.next_step() else { panic!("the close") };
        metadata.segments().iter().map(|segment| segment.first_entry.get()).collect()
    };
    let mut script = recovering();
    let (entry, tag) = script.answered[5];
    script.core.on_answer(entry, tag, &Ok(()));
    script.core.settle(&mut script.out);
    script.mark("c");
    assert_eq!((script.end(), starts(&script)), (closed(6), vec![0, 5]));

    let mut script = recovering();
    script.core.lose_patience(&mut script.out);
    assert_eq!(script.core.next_step(), Some(Step::Mark { replicas: ids("c") }));
    // A mark that cannot be made does not keep the ledger open.
    script.core.metadata_failed(LedgerError::Store(StoreError::ConnectionLoss));
    assert_eq!((script.end(), starts(&script)), (closed(6), vec![0, 5]));
}

/// A recovery that wants to close at entry 0, and what it wants to write.
fn closing() -> (Script, LedgerMetadata) {
    let mut script = Script::fenced(metadata(3, 3, 2), stored(0, -1));
    script.answer("a", 0, Ok(stored(0, -1)));
    script.ack("a b c");
    script.answer("a", 1, ABSENT);
    script.answer("b", 1, ABSENT);
    let Some(Step::Write { metadata, .. }) = script.core.next_step() else { panic!("the close") };
    (script, *metadata)
}

fn read(script: &mut Script, metadata: LedgerMetadata) {
    assert_eq!(script.core.next_step(), Some(Step::Read));
    let read = StoredLedger { metadata, version: Version::counted(9), created_ms: 0 };
    script.core.read(read, &mut script.out);
}

#[test]
fn a_conflicting_close_takes_what_others_decided() {
    // IC8, IC13, IC14.
    let changed = || LedgerError::Changed(LedgerId::new(1).unwrap());
    let (mut script, mut theirs) = closing();
    theirs.state = LedgerState::Closed { last_entry: Some(at(3)), length_bytes: 20 };
    script.core.written(Err(changed()), &mut script.out);
    read(&mut script, theirs.clone());
    assert_eq!(script.core.result().unwrap().as_ref().unwrap().metadata, theirs);

    // M20: the write went through, its answer was lost.
    let (mut script, ours) = closing();
    script.core.written(Err(LedgerError::Store(StoreError::ConnectionLoss)), &mut script.out);
    read(&mut script, ours.clone());
    assert_eq!(script.core.result().unwrap().as_ref().unwrap().metadata, ours);

    let (mut script, mut property) = closing();
    property.state = LedgerState::InRecovery;
    property.custom.insert("k".into(), b"v".to_vec());
    script.core.written(Err(changed()), &mut script.out);
    read(&mut script, property);
    let Some(Step::Write { metadata, expected }) = script.core.next_step() else {
        panic!("the close, again")
    };
    assert_eq!((Some(metadata.state), expected), (closed(0), Version::counted(9)));
    assert!(metadata.custom.contains_key("k"));

    let (mut script, other) = closing();
    let mut other = with_ensemble(&other, at(0), ids("a b x"));
    other.state = LedgerState::InRecovery;
    script.core.written(Err(changed()), &mut script.out);
    script.out.reads.clear();
    read(&mut script, other);
    let fenced: Vec<&str> = script.out.reads.iter().map(|read| read.bookie.as_str()).collect();
    assert_eq!(fenced, ["a", "b", "x"], "another last ensemble: from the beginning");
}

#[test]
fn acks_of_an_earlier_attempt_do_not_count() {
    let (mut script, other) = closing();
    let mut other = with_ensemble(&other, at(0), ids("x y z"));
    other.state = LedgerState::InRecovery;
    let earlier = script.answered.clone();
    script.core.written(Err(LedgerError::Changed(LedgerId::new(1).unwrap())), &mut script.out);
    script.out.reads.clear();
    read(&mut script, other);
    script.fence("x", Ok(stored(0, -1)));
    script.fence("y", ABSENT);
    script.answer("x", 0, Ok(stored(0, -1)));
    script.answer("x", 1, ABSENT);
    script.answer("y", 1, ABSENT);
    assert_eq!(script.out.sends.len(), 3, "entry 0 goes to x, y and z");
    // Sent to a, b and c by the first attempt, and answered late.
    assert_eq!(earlier.len(), 3);
    for (entry, tag) in earlier {
        script.core.on_answer(entry, tag, &Ok(()));
        script.core.settle(&mut script.out);
    }
    assert_eq!(script.core.next_step(), None, "IC15: nobody of the ensemble has the entry yet");
    script.ack("x y");
    script.mark("z");
    let Some(Step::Write { metadata, .. }) = script.core.next_step() else { panic!("the close") };
    assert_eq!(Some(metadata.state), closed(0));
}

#[test]
fn a_fence_that_is_answered_late_changes_nothing() {
    let mut script = Script::new(metadata(3, 3, 2));
    let late = script.take("a", None).unwrap();
    for bookie in ["b", "c"] {
        script.fence(bookie, ABSENT);
    }
    assert!(script.is_reading());
    let before = script.out.reads.len();
    script.core.on_read(late.tag, Ok(stored(9, 8)), &mut script.out);
    assert_eq!(script.out.reads.len(), before);
    assert!(script.error().is_none());
}

#[test]
fn an_idle_ledger_ends_where_its_last_writer_left_it() {
    let mut ledger = metadata(3, 3, 2);
    Handover::Idle { next: at(5), length_bytes: 25, is_whole: false }.set(&mut ledger);
    let mut script = Script::new(ledger);
    script.fence("a", ABSENT);
    script.fence("b", ABSENT);
    script.answer("a", 5, ABSENT);
    script.answer("b", 5, ABSENT);
    assert_eq!(script.end(), closed(4));
}

#[test]
fn a_closed_ledger_needs_nothing() {
    let mut ledger = metadata(3, 3, 2);
    ledger.state = LedgerState::Closed { last_entry: None, length_bytes: 0 };
    let script = Script::new(ledger.clone());
    assert_eq!(script.core.result().unwrap().as_ref().unwrap().metadata, ledger);
    assert!(script.out.reads.is_empty());
}

#[test]
fn a_length_that_cannot_be_learned_now_fails_and_one_that_is_lost_does_not() {
    let until_length = || {
        let mut script = Script::fenced(metadata(3, 3, 2), stored(5, 4));
        script.answer("a", 5, ABSENT);
        script.answer("b", 5, ABSENT);
        script.answer("a", 4, ABSENT);
        script.answer("b", 4, ABSENT);
        assert_eq!(script.end(), None);
        script
    };
    let mut script = until_length();
    script.answer("c", 4, UNKNOWN);
    assert!(matches!(script.error(), Some(RecoveryError::EntryUnknown { .. })));
    let mut script = until_length();
    script.answer("c", 4, ABSENT);
    assert!(
        matches!(script.end(), Some(LedgerState::Closed { last_entry, .. }) if last_entry == Some(at(4)))
    );
}

/// Repair moved an older segment while the recovery looked for the length at its old members.
#[test]
fn a_length_that_was_lost_is_asked_of_new_members_when_the_close_conflicts() {
    let until_closing = |older: &str| {
        let ledger = with_ensemble(&metadata(3, 3, 2), at(10), ids("a b d"));
        let mut script = Script::new(ledger);
        script.fence("a", ABSENT);
        script.fence("b", ABSENT);
        script.answer("a", 10, ABSENT);
        script.answer("b", 10, ABSENT);
        for bookie in ["a", "b", "c"] {
            script.answer(bookie, 9, ABSENT);
        }
        assert!(script.end().is_some(), "it is where the last segment begins");
        script.core.written(Err(LedgerError::Changed(LedgerId::new(1).unwrap())), &mut script.out);
        script.out.reads.clear();
        let mut other = with_ensemble(&metadata(3, 3, 2), at(0), ids(older));
        other = with_ensemble(&other, at(10), ids("a b d"));
        other.state = LedgerState::InRecovery;
        read(&mut script, other);
        script
    };
    let mut script = until_closing("x b c");
    assert_eq!(script.end(), None, "x may have it");
    script.fence("a", ABSENT);
    script.fence("b", ABSENT);
    script.answer("a", 10, ABSENT);
    script.answer("b", 10, ABSENT);
    script.answer("x", 9, Ok(stored(9, 9)));
    assert_eq!(script.end(), closed(9));
    let script = until_closing("a b c");
    assert!(script.end().is_some(), "nothing has moved");
}

/// Of a writer that did not bound it.
#[test]
fn a_ledger_whose_metadata_is_at_the_limit_of_the_store_is_closed() {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let mut grown = LedgerMetadata::new(Quorum::new(3, 3, 2).unwrap(), secret);
    let mut entries = 0;
    while entries % 1024 != 0 || size_bytes(&grown) <= VALUE_SIZE_BYTES_MAX {
        grown.push_segment(Segment { first_entry: at(entries), ensemble: ids("a b c") }).unwrap();
        entries += 1;
    }
    let last = entries - 1;
    let mut script = Script::fenced(grown, stored(last, last - 1));
    script.answer("a", last, Ok(stored(last, last - 1)));
    script.ack("a b c");
    while script.is_reading() {
        let read = script.out.reads.remove(0);
        script.core.on_read(read.tag, ABSENT, &mut script.out);
    }
    let Some(Step::Write { metadata, .. }) = script.core.next_step() else { panic!("it closes") };
    assert_eq!(script.end(), closed(last));
    assert!(size_bytes(&metadata) <= VALUE_SIZE_BYTES_MAX);
    assert_eq!(metadata.segments().len(), 2, "one, and the last, which says what is confirmed");
}
