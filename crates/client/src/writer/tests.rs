//! Each rule of adding (protocol reference, section 7.3) and of changing metadata (7.8), by scripted events.

mod force;
mod grown;
mod shell;
mod slow;

use std::sync::Arc;

use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::store::Version;
use bindery_types::{
    BookieId, DigestType, Digester, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, Quorum,
    Segment,
};
use bindery_wire::ErrorCode;

use super::core::{CHANGES_IN_A_ROW_MAX, LetGo, Start, Step, WriterCore, cost_bytes};
use super::counts::Counting;
use crate::entry::EntryCodec;
use crate::error::{NotEnoughBookies, WhyStopped};
use crate::handover::Handover;
use crate::metadata_edit;
use crate::transport::{AddTag, BookieError, Connection};
use crate::window::Send;
use crate::write_counts::WriteCounts;

fn ids(names: &str) -> Vec<BookieId> {
    names.split(' ').map(|name| BookieId::new(name).unwrap()).collect()
}

fn at(entry: i64) -> EntryId {
    EntryId::new(entry).unwrap()
}

struct Script {
    core: WriterCore,
    sent: Vec<Send>,
    codec: EntryCodec,
}

impl Script {
    /// A writer on bookies a, b, c, ...
    fn new(e: usize, qw: usize, qa: usize) -> Script {
        Script::with(e, qw, qa, false)
    }

    /// With deferred sync, or without.
    fn with(e: usize, qw: usize, qa: usize, is_deferred: bool) -> Script {
        Script::start(e, qw, qa, is_deferred, None)
    }

    /// `token`: of a ledger that is handed over.
    fn start(e: usize, qw: usize, qa: usize, is_deferred: bool, token: Option<u64>) -> Script {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let ledger = LedgerId::new(1).unwrap();
        let codec = EntryCodec::new(ledger, Digester::new(DigestType::Crc32c, b""));
        let mut metadata = LedgerMetadata::new(Quorum::new(e, qw, qa).unwrap(), secret);
        let ensemble = ids("a b c d e")[..e].to_vec();
        metadata.push_segment(Segment { first_entry: at(0), ensemble }).unwrap();
        if let Some(token) = token {
            Handover::Busy { token }.set(&mut metadata);
        }
        let mut core = WriterCore::new(Start {
            ledger,
            codec: codec.clone(),
            metadata,
            version: Version::counted(0),
            confirmed: None,
            length_bytes: 0,
            token,
            is_deferred,
        });
        core.may_keep(u64::MAX);
        Script { core, sent: Vec::new(), codec }
    }

    /// A writer of 3/3/2 whose ledger has as many segments of a, b and c as this size takes, one entry each.
    fn grown(size_bytes: usize) -> Script {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let ledger = LedgerId::new(1).unwrap();
        let codec = EntryCodec::new(ledger, Digester::new(DigestType::Crc32c, b""));
        let mut metadata = LedgerMetadata::new(Quorum::new(3, 3, 2).unwrap(), secret);
        let mut entries = 0;
        while entries % 1024 != 0 || metadata_edit::size_bytes(&metadata) < size_bytes {
            metadata.push_segment(Segment { first_entry: at(entries), ensemble: ids("a b c") }).unwrap();
            entries += 1;
        }
        let mut core = WriterCore::new(Start {
            ledger,
            codec: codec.clone(),
            metadata,
            version: Version::counted(0),
            confirmed: Some(at(entries - 1)),
            length_bytes: entries as u64,
            token: None,
            is_deferred: false,
        });
        core.may_keep(0);
        Script { core, sent: Vec::new(), codec }
    }

    fn append(&mut self, count: usize) {
        for _ in 0..count {
            self.core.append(b"12345", None, &mut self.sent).unwrap();
        }
    }

    /// The tag under which an entry was last sent to a position.
    fn tag(&self, entry: i64, position: usize) -> AddTag {
        let is_it = |send: &&Send| send.entry == at(entry) && send.position == position;
        self.sent.iter().rev().find(is_it).expect("it was sent there").tag
    }

    fn answer(&mut self, entry: i64, position: usize, result: Result<(), BookieError>) {
        let tag = self.tag(entry, position);
        self.core.on_answer(at(entry), tag, Connection::default(), &result);
        self.settle();
    }

    fn settle(&mut self) {
        self.core.settle();
        self.core.release(&mut LetGo::default());
    }

    /// A bookie is back, and gets an entry that it lacks.
    fn fill(&mut self, bookie: &str, entry: i64) {
        self.core.tick(true);
        let mut fills = self.core.take_fills();
        assert_eq!(fills.len(), 1, "{fills:?}");
        let fill = fills.remove(0);
        assert_eq!((fill.bookie.as_str(), fill.entry), (bookie, at(entry)));
        self.core.on_answer(fill.entry, fill.tag, Connection::default(), &Ok(()));
        self.settle();
    }

    fn held_back(&self) -> (Vec<usize>, u64) {
        let mut behind = Vec::new();
        let bytes = self.core.held_back(&mut behind);
        (behind, bytes)
    }

    fn ack(&mut self, entry: i64, positions: &[usize]) {
        for &position in positions {
            self.answer(entry, position, Ok(()));
        }
    }

    fn confirmed(&self) -> i64 {
        EntryId::to_wire(self.core.confirmed())
    }

    fn why(&self) -> Option<WhyStopped> {
        self.core.stopped().map(|stopped| stopped.why)
    }

    /// The write that is wanted now.
    fn wanted_write(&self) -> (LedgerMetadata, Version) {
        match self.core.next_step() {
            Some(Step::Write { metadata, expected }) => (*metadata, expected),
            other => panic!("a write is wanted, not {other:?}"),
        }
    }

    fn written(&mut self, outcome: Result<i64, LedgerError>) {
        self.core.written(outcome.map(Version::counted), &mut self.sent);
        self.settle();
    }

    fn read(&mut self, metadata: LedgerMetadata, version: i64) {
        assert_eq!(self.core.next_step(), Some(Step::Read));
        self.core.read(
            StoredLedger { metadata, version: Version::counted(version), created_ms: 0 },
            &mut self.sent,
        );
        self.settle();
    }

    fn change(&mut self, chosen: &str, version: i64) {
        assert!(matches!(self.core.next_step(), Some(Step::Place { .. })));
        self.core.placed(&ids(chosen), 0, &[]);
        self.written(Ok(version));
    }
}

impl Script {
    fn metadata(&self) -> LedgerMetadata {
        self.core.metadata().clone()
    }

    /// The mark that is wanted now was made.
    fn mark(&mut self, replicas: &str) {
        assert_eq!(self.core.next_step(), Some(Step::Mark { replicas: ids(replicas) }));
        self.core.marked(&mut self.sent);
        self.settle();
    }

    /// Reports a bookie as slow if it holds up as much as that many of the script's entries.
    fn report(&mut self, entries: u64) {
        let quorum = self.core.quorum();
        let limit = entries * cost_bytes(&self.codec, quorum.write_quorum_size(), 5);
        let (behind, bytes) = self.held_back();
        for position in behind.into_iter().filter(|_| bytes >= limit) {
            self.core.on_slow(position, bytes);
        }
        self.settle();
    }
}

const LOST: Result<(), BookieError> = Err(BookieError::Lost);

fn refused(code: ErrorCode) -> Result<(), BookieError> {
    Err(BookieError::Refused(code))
}

fn changed() -> LedgerError {
    LedgerError::Changed(LedgerId::new(1).unwrap())
}

#[test]
fn entries_go_to_their_write_set_with_the_lac_of_the_moment() {
    let mut script = Script::new(5, 3, 2);
    script.append(2);
    let positions = |sent: &[Send]| sent.iter().map(|send| send.position).collect::<Vec<_>>();
    assert_eq!(positions(&script.sent), [0, 1, 2, 1, 2, 3]);
    script.ack(0, &[0, 2]);
    script.append(1);
    let last = script.codec.open(Some(at(2)), &script.sent[6].body).unwrap();
    assert_eq!((last.last_add_confirmed, last.length_bytes), (Some(at(0)), 15), "IC3");
    assert_eq!(&last.payload[..], b"12345");
}

#[test]
fn entries_are_confirmed_strictly_in_order_by_an_ack_quorum() {
    let mut script = Script::new(3, 3, 2);
    script.append(3);
    script.ack(1, &[0, 1, 2]);
    script.ack(0, &[1]);
    assert_eq!(script.confirmed(), -1, "IC1, IC2: entry 0 has one ack");
    script.answer(0, 1, Ok(()));
    assert_eq!(script.confirmed(), -1, "an ack counts once");
    script.ack(0, &[2]);
    assert_eq!(script.confirmed(), 1, "IC2");
    assert_eq!(script.core.confirmed_length_bytes(), 10);
}

#[test]
fn bytes_are_given_back_when_every_replica_answered_or_was_replaced() {
    let mut script = Script::new(3, 3, 2);
    script.append(1);
    let mut let_go = LetGo::default();
    let mut hear = |script: &mut Script, position, result| {
        let tag = script.tag(0, position);
        script.core.on_answer(at(0), tag, Connection::default(), &result);
        script.core.settle();
        script.core.release(&mut let_go);
        let_go.bodies.len()
    };
    assert_eq!(hear(&mut script, 0, Ok(())), 0);
    assert_eq!(hear(&mut script, 1, Ok(())), 0, "confirmed, but one replica still has the bytes (IC17)");
    assert_eq!(hear(&mut script, 2, LOST), 1);
}

#[test]
fn a_failed_bookie_is_replaced_from_the_lac_on_and_pending_entries_go_to_its_successor() {
    let mut script = Script::new(3, 3, 2);
    script.append(4);
    script.ack(0, &[0, 1]);
    script.ack(1, &[1]);
    script.answer(1, 2, LOST);
    script.ack(2, &[0, 1]);
    script.ack(1, &[0]);
    assert_eq!(script.confirmed(), 0, "IC11: nothing is confirmed while an ensemble change runs");
    let Some(Step::Place { positions, ensemble, .. }) = script.core.next_step() else {
        panic!("a place step")
    };
    assert_eq!((positions, ensemble.len()), (vec![2], 3));
    script.core.placed(&ids("d"), 0, &[]);
    let (metadata, expected) = script.wanted_write();
    assert_eq!(expected, Version::counted(0));
    let segments = metadata.segments();
    assert_eq!((segments[1].first_entry, &segments[1].ensemble), (at(1), &ids("a b d")), "from LAC + 1 on");
    let before = script.sent.len();
    script.written(Ok(1));
    let resent: Vec<_> = script.sent[before..].iter().map(|s| (s.entry.get(), s.position)).collect();
    assert_eq!(resent, [(1, 2), (2, 2), (3, 2)]);
    assert_eq!(script.confirmed(), 2, "acks of the members that stay count");
}

#[test]
fn acks_of_a_replaced_bookie_do_not_count_also_when_they_are_late() {
    // R8, R9 (#4097, #4651).
    let mut script = Script::new(2, 2, 2);
    script.append(2);
    let old = script.tag(0, 1);
    script.ack(0, &[0]);
    script.ack(1, &[0, 1]);
    script.answer(0, 1, LOST);
    script.change("c", 1);
    assert_eq!(script.confirmed(), -1, "entry 1 had both acks, one of them of the replaced bookie");
    script.core.on_answer(at(0), old, Connection::default(), &Ok(()));
    script.settle();
    assert_eq!(script.confirmed(), -1, "an answer of a bookie no longer at the position is ignored");
    script.ack(0, &[1]);
    assert_eq!(script.confirmed(), 0);
    script.ack(1, &[1]);
    assert_eq!(script.confirmed(), 1);
}

#[test]
fn a_segment_that_begins_at_the_same_entry_is_replaced() {
    let mut script = Script::new(2, 2, 2);
    script.append(1);
    script.answer(0, 0, LOST);
    script.change("c", 1);
    script.answer(0, 1, LOST);
    script.core.placed(&ids("d"), 0, &[]);
    let (metadata, expected) = script.wanted_write();
    assert_eq!((expected, metadata.segments().len()), (Version::counted(1), 1));
    assert_eq!(metadata.segments()[0].ensemble, ids("c d"));
}

#[test]
fn failures_during_a_change_make_the_next_one_and_nothing_is_confirmed_in_between() {
    // R34 (#1886): one change at a time.
    let mut script = Script::new(3, 3, 2);
    script.append(1);
    script.answer(0, 0, LOST);
    script.ack(0, &[2]);
    script.answer(0, 1, LOST);
    assert!(
        matches!(script.core.next_step(), Some(Step::Place { positions, .. }) if positions.len() == 1),
        "IC11"
    );
    script.core.placed(&ids("d"), 0, &[]);
    let (metadata, _) = script.wanted_write();
    assert_eq!(metadata.segments()[0].ensemble, ids("d b c"));
    script.written(Ok(1));
    script.ack(0, &[0]);
    assert_eq!(script.confirmed(), -1, "two acks, and a change under way");
    script.change("e", 2);
    assert_eq!(script.core.ensemble(), ids("d e c"));
    assert_eq!(script.confirmed(), 0);
}

#[test]
fn an_entry_pushed_during_a_change_goes_to_the_successor() {
    let mut script = Script::new(2, 2, 2);
    script.append(1);
    script.answer(0, 0, LOST);
    script.append(1);
    assert_eq!(script.sent.len(), 3, "not to the bookie that failed");
    script.change("c", 1);
    script.ack(0, &[0, 1]);
    script.ack(1, &[0, 1]);
    assert_eq!(script.confirmed(), 1);
}

#[test]
fn a_failure_of_a_complete_entry_waits_for_the_next_entry() {
    // #1592: then it is an ordinary ensemble change.
    let mut script = Script::new(3, 3, 2);
    script.append(1);
    script.ack(0, &[0, 1]);
    script.answer(0, 2, LOST);
    assert_eq!((script.confirmed(), script.core.next_step()), (0, None));
    script.append(1);
    script.core.placed(&ids("d"), 0, &[]);
    assert_eq!(script.wanted_write().0.segments()[1].first_entry, at(1));
    script.written(Ok(1));
    script.ack(1, &[1, 2]);
    assert_eq!(script.confirmed(), 1);
}

#[test]
fn fenced_and_unauthorized_end_the_writer_at_once() {
    for (code, why) in [
        (ErrorCode::Fenced, WhyStopped::Fenced),
        (ErrorCode::Unauthorized, WhyStopped::Unauthorized { bookie: ids("b")[0].clone() }),
    ] {
        let mut script = Script::new(3, 3, 2);
        script.append(2);
        script.ack(0, &[0, 2]);
        script.ack(1, &[0]);
        script.answer(1, 1, refused(code));
        script.ack(1, &[2]);
        assert_eq!(
            (script.confirmed(), script.why()),
            (0, Some(why)),
            "nothing is confirmed afterwards (IC7)"
        );
        assert!(script.core.append(b"", None, &mut Vec::new()).is_err());
        assert_eq!(script.core.stopped().unwrap().last_confirmed, Some(at(0)));
    }
}

#[test]
fn a_late_refusal_of_a_complete_entry_does_not_keep_the_writer_from_closing() {
    // The third bookie of an entry that two acknowledged gets it after a recovery has fenced the ledger.
    let fenced_with = |entries: usize| {
        let mut script = Script::new(3, 3, 2);
        script.append(entries);
        script.ack(0, &[0, 1]);
        script.answer(0, 2, refused(ErrorCode::Fenced));
        assert_eq!((script.confirmed(), script.why()), (0, Some(WhyStopped::Fenced)));
        script.core.begin_close();
        script
    };
    let mut script = fenced_with(1);
    script.mark("c");
    let (closed, _) = script.wanted_write();
    assert_eq!(closed.state, LedgerState::Closed { last_entry: Some(at(0)), length_bytes: 5 });
    script.written(Err(changed()));
    script.read(closed, 3);
    assert_eq!(script.why(), Some(WhyStopped::Closing), "recovered to the same end (IC8)");

    let script = fenced_with(2);
    assert_eq!(
        script.core.next_step(),
        None,
        "the end of one with unconfirmed entries is the recovery's to find"
    );
    assert_eq!(script.why(), Some(WhyStopped::Fenced));
}

#[test]
fn what_a_writer_counts_of_itself_goes_with_it_and_one_that_is_closed_did_not_fail() {
    // Invariant 1 of `counts`: a member is held, a late answer says that the ledger is fenced, and it is closed
    // nevertheless.
    let mut script = Script::new(3, 3, 1);
    let counts = Arc::new(WriteCounts::new());
    let mut counting = Counting::new(counts.clone(), &script.core);
    let gauges = |counts: &WriteCounts| {
        let health = counts.view(0);
        (health.writers, health.writers_short, health.writers_failed)
    };
    script.append(1);
    script.answer(0, 2, LOST);
    script.settle();
    script.core.placed(&[], 0, &[]);
    script.mark("c");
    script.ack(0, &[0]);
    counting.look(&script.core);
    assert_eq!((gauges(&counts), counts.view(0).entries), ((1, 1, 0), 1));
    script.answer(0, 1, refused(ErrorCode::Fenced));
    script.settle();
    counting.look(&script.core);
    assert_eq!((script.why(), gauges(&counts)), (Some(WhyStopped::Fenced), (1, 1, 0)), "it may be closed");
    script.core.begin_close();
    script.mark("b c");
    counting.look(&script.core);
    assert_eq!((counts.view(0).copies_missing, counts.view(0).copies_filled), (2, 0));
    script.written(Ok(1));
    counting.look(&script.core);
    assert_eq!((script.why(), gauges(&counts)), (Some(WhyStopped::Closing), (0, 0, 0)));
    drop(counting);
    assert_eq!(gauges(&counts), (0, 0, 0));

    // Dropped instead, or with an entry that nobody confirms: it failed.
    for entries in [1, 2] {
        let mut script = Script::new(3, 3, 2);
        let mut counting = Counting::new(counts.clone(), &script.core);
        script.append(entries);
        script.ack(0, &[0, 1]);
        script.answer(0, 2, refused(ErrorCode::Fenced));
        counting.look(&script.core);
        script.core.stop(WhyStopped::Closing);
        counting.leave(&script.core);
        assert_eq!(gauges(&counts), (0, 0, entries as u64));
    }
}

/// A copy that was given up may still arrive: it was on its way.
#[test]
fn a_copy_that_comes_late_is_not_missing_any_more() {
    let mut script = Script::new(3, 3, 2);
    let counts = Arc::new(WriteCounts::new());
    let mut counting = Counting::new(counts.clone(), &script.core);
    let missing = |counts: &WriteCounts| {
        let health = counts.view(0);
        (health.copies_missing, health.copies_filled, health.ledgers_unmarked)
    };
    script.core.may_keep(0);
    script.append(2);
    (0..2).for_each(|entry| script.ack(entry, &[0, 1]));
    script.report(1);
    script.mark("c");
    script.core.placed(&[], 0, &[]);
    counting.look(&script.core);
    assert_eq!(missing(&counts), (2, 0, 0));
    assert_eq!(script.core.next_step(), None, "it was marked before it was held");
    script.core.on_answer(at(0), script.tag(0, 2), Connection::default(), &Ok(()));
    counting.look(&script.core);
    assert_eq!(missing(&counts), (1, 0, 0));
    // What is missing outlives the writer that knew.
    drop(counting);
    assert_eq!(missing(&counts), (1, 0, 0));
}

#[test]
fn passing_refusals_replace_the_bookie() {
    for code in [ErrorCode::ReadOnly, ErrorCode::TooManyRequests, ErrorCode::Io, ErrorCode::NoLedger] {
        let mut script = Script::new(2, 2, 2);
        script.append(1);
        script.answer(0, 0, refused(code));
        assert!(matches!(script.core.next_step(), Some(Step::Place { .. })), "{code:?}");
    }
}

#[test]
fn without_a_replacement_the_writer_stops_and_with_fewer_those_found_are_used() {
    let mut script = Script::new(3, 3, 3);
    script.append(1);
    script.answer(0, 0, LOST);
    script.core.placed(&[], 2, &[]);
    let is_told = |e: &NotEnoughBookies| (e.needed, e.available, e.read_only) == (1, 0, 2);
    assert!(matches!(script.why(), Some(WhyStopped::NotEnoughBookies(e)) if is_told(&e)));

    let mut script = Script::new(3, 3, 2);
    script.append(2);
    script.ack(0, &[0, 1]);
    script.answer(0, 2, LOST);
    script.answer(1, 1, LOST);
    assert!(
        matches!(script.core.next_step(), Some(Step::Place { positions, .. }) if positions.len() == 2),
        "merged"
    );
    let before = script.sent.len();
    script.core.placed(&ids("d"), 0, &[]);
    script.mark("c");
    script.written(Ok(1));
    assert_eq!(script.core.ensemble(), ids("a d c"));
    let resent: Vec<_> = script.sent[before..].iter().map(|s| (s.entry.get(), s.position)).collect();
    assert_eq!(resent, [(1, 1)], "the member that stays is held");
    assert_eq!(script.core.held(), ids("c"));

    // Without it there would be no ack quorum: it is tried again.
    let mut script = Script::new(3, 3, 3);
    script.append(1);
    script.answer(0, 1, LOST);
    script.answer(0, 2, LOST);
    script.change("d", 1);
    script.change("e", 2);
    let before = script.sent.len() - 1;
    assert_eq!(script.core.ensemble(), ids("a d e"));
    assert_eq!((script.sent[before].entry, script.sent[before].position), (at(0), 2));
}

/// Invariant 5.
#[test]
fn a_driver_with_patience_has_the_bookies_of_the_ack_quorum_tried_again() {
    let mut script = Script::new(2, 2, 2);
    script.core.may_wait(true);
    script.append(2);
    script.ack(0, &[0]);
    // More often than there may be changes in a row.
    for _ in 0..2 * CHANGES_IN_A_ROW_MAX {
        script.answer(0, 1, LOST);
        assert!(matches!(script.core.next_step(), Some(Step::Place { .. })));
        script.core.placed(&[], 0, &[]);
        assert_eq!(script.core.next_step(), Some(Step::Wait));
        script.answer(1, 0, Ok(()));
        assert_eq!((script.confirmed(), script.why()), (-1, None), "nothing is confirmed meanwhile");
        let before = script.sent.len();
        script.core.waited(&mut script.sent);
        let again: Vec<_> =
            script.sent[before..].iter().map(|send| (send.entry.get(), send.position)).collect();
        assert_eq!(again, [(0, 1), (1, 1)], "all that it has not acknowledged");
        assert_eq!(script.core.next_step(), None, "the ensemble stays as it is");
    }
    script.ack(0, &[1]);
    script.ack(1, &[1]);
    assert_eq!(script.confirmed(), 1);
    assert_eq!(script.core.copies_missing_and_filled(), (0, 0));

    // It will not take the entry later either.
    script.append(1);
    script.answer(2, 1, Err(BookieError::AnswerTooLarge { size_bytes: 2, limit_bytes: 1 }));
    script.core.placed(&[], 0, &[]);
    assert!(matches!(script.why(), Some(WhyStopped::NotEnoughBookies(_))));
}

#[test]
fn changes_without_progress_are_bounded() {
    let mut script = Script::new(2, 2, 2);
    script.append(1);
    for change in 0..CHANGES_IN_A_ROW_MAX {
        script.answer(0, 0, LOST);
        script.change(["c", "d"][change as usize % 2], change as i64 + 1);
    }
    script.answer(0, 0, LOST);
    assert!(matches!(script.why(), Some(WhyStopped::TooManyChanges { .. })), "IC18");
}

/// Invariant 5: bookies and spares that all fail at once, as in a restart of the whole cluster, end no patient writer.
#[test]
fn a_driver_with_patience_pauses_between_changes_that_bring_nothing() {
    let paused = || {
        let mut script = Script::new(2, 2, 2);
        script.core.may_wait(true);
        script.append(1);
        for change in 0..2 * CHANGES_IN_A_ROW_MAX {
            script.answer(0, 0, LOST);
            if change >= CHANGES_IN_A_ROW_MAX {
                assert_eq!(
                    (script.core.next_step(), script.why()),
                    (Some(Step::Wait), None),
                    "change {change}"
                );
                let before = script.sent.len();
                script.core.waited(&mut script.sent);
                assert_eq!(script.sent[before..].len(), 1, "the member that failed is tried again");
                script.answer(0, 0, LOST);
            }
            script.change(["c", "d"][change as usize % 2], change as i64 + 1);
        }
        script
    };
    let mut script = paused();
    script.answer(0, 0, LOST);
    script.core.waited(&mut script.sent);
    script.ack(0, &[0, 1]);
    assert_eq!((script.confirmed(), script.why()), (0, None), "the bookies are back");

    let lasts = Err(BookieError::AnswerTooLarge { size_bytes: 2, limit_bytes: 1 });
    for (patience, error) in [(false, LOST), (true, lasts)] {
        let mut script = paused();
        script.core.may_wait(patience);
        script.answer(0, 0, error);
        assert!(matches!(script.why(), Some(WhyStopped::TooManyChanges { .. })), "IC18");
    }
}

/// A writer whose ensemble change met a conflict, and the metadata it has to decide by.
fn in_conflict() -> (Script, LedgerMetadata) {
    let mut script = Script::new(2, 2, 2);
    script.append(1);
    script.answer(0, 0, LOST);
    script.core.placed(&ids("c"), 0, &[]);
    let mut before = script.wanted_write().0;
    script.written(Err(changed()));
    before = crate::metadata_edit::with_ensemble(&before, at(0), ids("a b"));
    (script, before)
}

#[test]
fn a_conflict_is_decided_by_what_the_metadata_says_now() {
    // BK-584: never overwritten blindly. IC13, IC14.
    let (mut script, mut metadata) = in_conflict();
    metadata.state = LedgerState::Closed { last_entry: None, length_bytes: 0 };
    script.read(metadata, 5);
    assert_eq!(script.why(), Some(WhyStopped::Closed));

    let (mut script, mut metadata) = in_conflict();
    metadata.state = LedgerState::InRecovery;
    script.read(metadata, 5);
    assert_eq!(script.why(), Some(WhyStopped::Fenced));

    let (mut script, metadata) = in_conflict();
    let theirs = crate::metadata_edit::with_ensemble(&metadata, at(0), ids("a e"));
    script.read(theirs, 5);
    assert_eq!(script.why(), Some(WhyStopped::MetadataChanged));

    let (mut script, mut metadata) = in_conflict();
    metadata.custom.insert("k".into(), b"v".to_vec());
    script.read(metadata, 5);
    let (again, expected) = script.wanted_write();
    assert_eq!((expected, &again.segments()[0].ensemble), (Version::counted(5), &ids("c b")));
    assert!(again.custom.contains_key("k"), "somebody else's property is kept");

    let (mut script, _) = in_conflict();
    script.core.metadata_failed(LedgerError::NotFound(LedgerId::new(1).unwrap()));
    assert_eq!(script.why(), Some(WhyStopped::Deleted));
}

#[test]
fn a_write_whose_answer_was_lost_is_found_by_reading() {
    let loss = || LedgerError::Store(StoreError::ConnectionLoss);
    let mut script = Script::new(2, 2, 2);
    script.append(1);
    script.ack(0, &[1]);
    script.answer(0, 0, LOST);
    script.core.placed(&ids("c"), 0, &[]);
    let (written, _) = script.wanted_write();
    script.written(Err(loss()));
    script.read(written, 1);
    assert_eq!((script.core.ensemble(), script.core.next_step()), (&ids("c b")[..], None), "IC14");
    script.ack(0, &[0]);
    assert_eq!(script.confirmed(), 0);

    // M20: a close whose reply was lost succeeded.
    script.core.begin_close();
    let (written, _) = script.wanted_write();
    assert_eq!(written.state, LedgerState::Closed { last_entry: Some(at(0)), length_bytes: 5 });
    script.written(Err(loss()));
    script.read(written, 2);
    assert_eq!(script.why(), Some(WhyStopped::Closing));
}

#[test]
fn a_close_meets_what_others_did() {
    let drained = || {
        let mut script = Script::new(2, 2, 2);
        script.append(1);
        script.ack(0, &[0, 1]);
        script.core.begin_close();
        let closed = script.wanted_write().0;
        script.written(Err(changed()));
        (script, closed)
    };
    let (mut script, closed) = drained();
    script.read(closed, 3);
    assert_eq!(script.why(), Some(WhyStopped::Closing), "recovered to the same end (IC8)");

    let (mut script, mut closed) = drained();
    closed.state = LedgerState::Closed { last_entry: None, length_bytes: 0 };
    script.read(closed, 3);
    assert_eq!((script.why(), script.core.closed_elsewhere()), (Some(WhyStopped::Closed), Some(None)));

    let (mut script, mut closed) = drained();
    closed.state = LedgerState::InRecovery;
    script.read(closed, 3);
    assert_eq!(script.wanted_write().1, Version::counted(3), "only on the condition of what was read");
    assert!(script.core.append(b"", None, &mut Vec::new()).is_err(), "nothing follows a close");
}

#[test]
fn a_hand_over_says_where_the_next_writer_goes_on() {
    let mut script = Script::start(2, 2, 2, false, Some(7));
    script.append(2);
    for entry in 0..2 {
        script.ack(entry, &[0, 1]);
    }
    script.core.begin_hand_over();
    let (metadata, _) = script.wanted_write();
    let idle = Handover::Idle { next: at(2), length_bytes: 10, is_whole: true };
    assert_eq!(Handover::of(&metadata), Some(Ok(idle)));
    assert_eq!(metadata.state, LedgerState::Open);
    script.written(Ok(1));
    assert_eq!(script.why(), Some(WhyStopped::Closing));
}

/// Core invariant 7: whoever is away may be back when the next writer comes.
#[test]
fn a_hand_over_leaves_a_segment_to_the_next_writer_when_a_bookie_lacks_the_last_entries() {
    let handed_over = |is_filled: bool| {
        let mut script = Script::start(3, 3, 2, false, Some(7));
        script.append(2);
        script.ack(0, &[0, 1, 2]);
        script.answer(1, 2, LOST);
        script.ack(1, &[0, 1]);
        script.core.placed(&[], 0, &[]);
        script.mark("c");
        if is_filled {
            script.fill("c", 1);
        }
        script.core.begin_hand_over();
        if !is_filled {
            script.mark("c");
        }
        script.wanted_write().0
    };
    let metadata = handed_over(false);
    let ensembles: Vec<_> =
        metadata.segments().iter().map(|s| (s.first_entry.get(), s.ensemble.clone())).collect();
    assert_eq!(ensembles, [(0, ids("a b c")), (2, ids("a b c"))]);
    assert_eq!(
        Handover::of(&metadata),
        Some(Ok(Handover::Idle { next: at(2), length_bytes: 10, is_whole: true }))
    );
    assert_eq!(handed_over(true).segments().len(), 1, "nothing lacks, and nothing is marked");
}

#[test]
fn a_hand_over_whose_answer_was_lost_is_found_behind_the_next_writer() {
    let idle = |next| Handover::Idle { next: at(next), length_bytes: 5 * next as u64, is_whole: true };
    let (taken, ours) = (Handover::Busy { token: 8 }, Handover::Busy { token: 7 });
    let closed = LedgerState::Closed { last_entry: Some(at(4)), length_bytes: 25 };
    let outcomes = [
        (idle(1), LedgerState::Open, Some(WhyStopped::Closing)),
        (taken, LedgerState::Open, Some(WhyStopped::Closing)),
        // By a next writer, after that one's entries.
        (idle(2), LedgerState::Open, Some(WhyStopped::Closing)),
        // Who has ended it since, or whose ledger is being recovered.
        (taken, closed, Some(WhyStopped::Closing)),
        (taken, LedgerState::InRecovery, Some(WhyStopped::Closing)),
        (ours, LedgerState::Open, None),
        (ours, closed, Some(WhyStopped::Closed)),
        (ours, LedgerState::InRecovery, Some(WhyStopped::Fenced)),
        (idle(0), LedgerState::Open, Some(WhyStopped::MetadataChanged)),
    ];
    for (found, state, why) in outcomes {
        let mut script = Script::start(2, 2, 2, false, Some(7));
        script.append(1);
        script.ack(0, &[0, 1]);
        script.core.begin_hand_over();
        let (mut metadata, _) = script.wanted_write();
        script.written(Err(LedgerError::Store(StoreError::ConnectionLoss)));
        found.set(&mut metadata);
        metadata.state = state;
        script.read(metadata, 3);
        assert_eq!(script.why(), why, "{found:?}, {state:?}");
    }
}

#[test]
fn a_lac_is_announced_once_when_no_entry_carries_it() {
    let mut script = Script::new(3, 2, 2);
    script.append(2);
    script.ack(0, &[0, 1]);
    assert_eq!(script.core.unannounced(), None, "an entry is under way");
    script.ack(1, &[1, 2]);
    assert_eq!(script.core.unannounced(), Some(at(1)));
    let (lac, body, bookies) = script.core.announce().unwrap();
    assert_eq!((lac, bookies), (at(1), ids("b c")), "the write set of the LAC's entry");
    assert_eq!(script.codec.open_lac(&body), Some(Some(at(1))));
    assert_eq!(script.core.unannounced(), None);
    script.append(1);
    script.ack(2, &[2, 0]);
    assert_eq!(script.core.unannounced(), Some(at(2)));
}
