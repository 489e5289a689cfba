//! Members that are slow, or that failed and have no replacement (invariants 5 to 8 of the core; IC17).

use super::*;

/// A writer of 3/3/2 whose third bookie is silent, with this many entries confirmed by the others.
fn with_silent_third(entries: usize) -> Script {
    let mut script = Script::new(3, 3, 2);
    script.append(entries);
    for entry in 0..entries as i64 {
        script.ack(entry, &[0, 1]);
    }
    assert_eq!(script.confirmed(), entries as i64 - 1);
    script
}

fn place(positions: &[usize], asked: &str) -> Option<Step> {
    let asked = if asked.is_empty() { Vec::new() } else { ids(asked) };
    let avoided = ids("c").into_iter().collect();
    Some(Step::Place { positions: positions.to_vec(), ensemble: ids("a b c"), avoided, asked })
}

#[test]
fn who_is_behind_is_told_by_what_an_ack_quorum_has() {
    let cost = |script: &Script, entries: u64| {
        entries * cost_bytes(&script.codec, script.core.quorum().write_quorum_size(), 5)
    };
    let mut script = Script::new(3, 3, 2);
    script.append(4);
    script.ack(0, &[0]);
    assert_eq!(script.held_back(), (vec![], 0), "two have not answered: neither is the slow one");
    script.ack(0, &[1]);
    script.ack(1, &[1, 0]);
    script.ack(2, &[0]);
    assert_eq!(script.held_back(), (vec![2], cost(&script, 2)), "not what only one has, nor what nobody has");
    script.ack(0, &[2]);
    assert_eq!(script.held_back(), (vec![2], cost(&script, 1)));
    script.ack(1, &[2]);
    assert_eq!(script.held_back(), (vec![], 0));

    // All are needed: the one that all others wait for.
    let mut script = Script::new(3, 3, 3);
    script.append(2);
    script.ack(0, &[0]);
    assert_eq!(script.held_back().1, 0);
    script.ack(0, &[2]);
    assert_eq!(script.held_back(), (vec![1], cost(&script, 1)));
    // A single replica is never behind others.
    let mut script = Script::new(1, 1, 1);
    script.append(9);
    assert_eq!(script.held_back(), (vec![], 0));
    // One ack suffices: both others are behind.
    let mut script = Script::new(3, 3, 1);
    script.append(1);
    script.ack(0, &[1]);
    assert_eq!(script.held_back(), (vec![0, 2], cost(&script, 1)));
}

#[test]
fn a_slow_bookie_is_let_go_of_once_marked_and_then_replaced() {
    let mut script = with_silent_third(4);
    script.append(1);
    script.report(4);
    let (behind, _) = script.held_back();
    assert_eq!(behind, [2], "invariant 6: nothing is let go of before the mark");
    script.ack(4, &[0, 1]);
    assert_eq!(script.confirmed(), 4, "invariant 8: the LAC moves meanwhile");
    script.mark("c");
    assert_eq!(script.held_back(), (vec![], 0), "IC17");
    assert_eq!(script.core.take_withdrawn(), ids("c"));
    assert_eq!(script.core.next_step(), place(&[2], ""), "a spare first; the slow one is not asked at once");
    script.append(1);
    assert!(script.sent.iter().all(|send| send.entry != at(5) || send.position != 2), "it gets nothing more");
    script.ack(5, &[0, 1]);
    assert_eq!(script.confirmed(), 5, "invariant 8");

    script.append(1);
    script.ack(6, &[0]);
    script.core.placed(&ids("d"), 0, &[]);
    script.ack(6, &[1]);
    assert_eq!(script.confirmed(), 6, "invariant 8: the mark holds up nothing");
    script.mark("c");
    script.append(1);
    script.ack(7, &[0, 1]);
    assert_eq!(script.confirmed(), 6, "IC11: frozen from here on");
    let (metadata, _) = script.wanted_write();
    assert_eq!(metadata.segments()[1], Segment { first_entry: at(7), ensemble: ids("a b d") });
    let before = script.sent.len();
    script.written(Ok(1));
    assert_eq!(script.confirmed(), 7);
    let resent: Vec<_> = script.sent[before..].iter().map(|s| (s.entry.get(), s.position)).collect();
    assert_eq!(resent, [(7, 2)], "what is unconfirmed goes to the successor");
    assert_eq!((script.core.held(), script.core.retry_after()), (vec![], None));
}

#[test]
fn without_a_spare_the_writer_goes_on_and_looks_again_with_growing_pauses() {
    let mut script = with_silent_third(4);
    script.report(4);
    script.mark("c");
    script.core.placed(&[], 0, &[]);
    let mut pauses = Vec::new();
    for entry in 4..12 {
        script.append(1);
        script.ack(entry, &[0, 1]);
        assert_eq!(script.confirmed(), entry, "IC20");
        assert_eq!(script.core.next_step(), None);
        pauses.push(script.core.retry_after().unwrap().as_secs());
        script.core.retry();
        assert_eq!(script.core.next_step(), place(&[2], "c"), "the held one is asked, too");
        match entry {
            // The metadata store cannot be reached: the step is optional.
            5 => assert!(script.core.put_off()),
            _ => script.core.placed(&[], 0, &[]),
        }
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);

    // It answers again: it is written to with a segment of its own (invariant 7).
    script.core.retry();
    script.append(1);
    script.core.placed(&[], 0, &ids("c"));
    script.mark("c");
    let (metadata, _) = script.wanted_write();
    assert_eq!(metadata.segments()[1], Segment { first_entry: at(12), ensemble: ids("a b c") });
    let late = script.tag(0, 2);
    script.written(Ok(1));
    script.core.on_answer(at(12), late, Connection::default(), &LOST);
    assert_eq!(script.core.next_step(), None, "IC11: late answers to what was sent before do not count");
    script.ack(12, &[2, 0]);
    assert_eq!((script.confirmed(), script.core.held()), (12, vec![]));

    // Marked again before the end (invariant 6): repair may have looked before.
    script.ack(12, &[1]);
    script.core.begin_close();
    script.mark("c");
    let (closed, _) = script.wanted_write();
    assert_eq!(closed.state, LedgerState::Closed { last_entry: Some(at(12)), length_bytes: 65 });
    script.written(Ok(2));
    assert_eq!(script.why(), Some(WhyStopped::Closing));
}

/// A bookie that rejoins and is lost again at once costs a segment each time: the pauses keep growing. They start over
/// with a bookie that stays well for the longest pause.
#[test]
fn the_pauses_begin_anew_once_all_were_well_for_the_longest() {
    let mut script = with_silent_third(4);
    let mut pauses = Vec::new();
    for turn in 0..4 {
        let entry = 4 + turn;
        script.append(1);
        script.ack(entry, &[0, 1]);
        script.report(1);
        script.mark("c");
        assert_eq!(script.core.next_step(), place(&[2], ""), "who was just given up is not asked at once");
        script.core.placed(&[], 0, &[]);
        pauses.push(script.core.retry_after().unwrap().as_secs());
        script.core.retry();
        assert_eq!(script.core.next_step(), place(&[2], "c"));
        script.core.placed(&[], 0, &ids("c"));
        script.mark("c");
        script.written(Ok(turn + 1));
        assert_eq!(script.core.held(), []);
        pauses.push(script.core.retry_after().unwrap().as_secs());
        if turn == 2 {
            script.core.retry();
            assert_eq!((script.core.retry_after(), script.core.next_step()), (None, None), "all is well");
        }
    }
    assert_eq!(pauses, [1, 60, 2, 60, 4, 60, 1, 60], "before a search, and after the rejoin");
}

#[test]
fn a_ledger_is_marked_before_it_ends_whatever_is_under_way() {
    let mut script = with_silent_third(4);
    script.report(4);
    script.core.begin_close();
    script.mark("c");
    assert!(matches!(script.wanted_write().0.state, LedgerState::Closed { .. }));
    // What a slow one that could not be held still owes is let go of with the writer.
    let mut script = Script::new(5, 3, 2);
    script.append(5);
    let acks: [&[usize]; 5] = [&[0, 1], &[1, 3], &[3, 4], &[4, 0], &[4, 0, 1]];
    script.ack(0, acks[0]);
    script.report(1);
    script.mark("c");
    script.core.placed(&[], 0, &[]);
    for entry in 1..5 {
        script.ack(entry, acks[entry as usize]);
    }
    assert_eq!((script.confirmed(), script.held_back().0), (4, vec![3]));
    script.report(1);
    script.core.placed(&[], 0, &[]);
    assert_eq!(script.core.held(), ids("c"), "c, d, e would be left with one");
    script.core.begin_close();
    script.mark("c d");
    assert!(matches!(script.wanted_write().0.state, LedgerState::Closed { .. }));
    // Nor has one answered that was not found to be slow.
    let mut script = with_silent_third(4);
    script.core.begin_close();
    script.mark("c");
    assert!(matches!(script.wanted_write().0.state, LedgerState::Closed { .. }));
    // A bookie that fails for the last entry, which is complete without it: no change of the ensemble follows.
    let mut script = with_silent_third(1);
    script.answer(0, 2, LOST);
    script.core.begin_close();
    script.mark("c");
    // Nothing lacks anywhere: no mark.
    let mut script = with_silent_third(4);
    (0..4).for_each(|entry| script.ack(entry, &[2]));
    script.core.begin_close();
    assert!(matches!(script.wanted_write().0.state, LedgerState::Closed { .. }));
}

/// Invariant 11: a bookie that failed is replaced at once, and gets what it lacks when it is back.
#[test]
fn a_bookie_that_is_back_gets_what_it_lacks_also_when_it_was_replaced() {
    let replaced = |kept_bytes_max: u64| {
        let mut script = Script::new(3, 3, 2);
        script.core.may_keep(kept_bytes_max);
        script.append(3);
        (0..3).for_each(|entry| script.ack(entry, &[0, 1]));
        script.append(1);
        (0..4).for_each(|entry| script.answer(entry, 2, LOST));
        if kept_bytes_max == 0 {
            // Without room to keep anything, repair is told.
            script.mark("c");
        }
        script.core.placed(&ids("d"), 0, &[]);
        assert_eq!(script.wanted_write().0.segments()[1].first_entry, at(3));
        script.written(Ok(1));
        script.ack(3, &[0, 1, 2]);
        script
    };
    let mut script = replaced(u64::MAX);
    assert_eq!((script.confirmed(), script.core.next_step()), (3, None), "nothing is let go of yet");
    assert!(!script.core.is_complete());
    (0..3).for_each(|_| script.fill_all("c"));
    assert!(script.core.is_complete());
    assert_eq!(script.core.copies_missing_and_filled(), (0, 3));
    script.core.begin_close();
    assert_eq!(script.wanted_write().0.segments().len(), 2);

    let mut script = replaced(0);
    assert_eq!(script.core.copies_missing_and_filled(), (3, 0));
    assert_eq!(script.core.next_step(), None);
    script.core.begin_close();
    script.mark("c");
    let starts: Vec<_> = script.wanted_write().0.segments().iter().map(|s| s.first_entry.get()).collect();
    assert_eq!(starts, [0, 3]);
}

/// Invariant 7: one refusal among entries that the bookie has.
#[test]
fn a_gap_in_the_middle_of_a_segment_begins_a_segment_when_the_ledger_is_closed() {
    let mut script = Script::new(3, 3, 2);
    script.append(4);
    for entry in 0..4 {
        script.ack(entry, &[0, 1]);
        match entry {
            2 => script.answer(2, 2, refused(ErrorCode::TooManyRequests)),
            _ => script.ack(entry, &[2]),
        }
    }
    script.core.begin_close();
    script.mark("c");
    let (metadata, _) = script.wanted_write();
    let segments: Vec<_> =
        metadata.segments().iter().map(|s| (s.first_entry.get(), s.ensemble.clone())).collect();
    assert_eq!(segments, [(0, ids("a b c")), (2, ids("a b c"))]);
    // A late answer does not change the metadata that is being written.
    script.core.on_answer(at(2), script.tag(2, 2), Connection::default(), &Ok(()));
    assert_eq!(script.wanted_write().0, metadata);
    script.written(Ok(1));
    assert_eq!(script.core.metadata(), &metadata);
}

#[test]
fn a_failed_bookie_without_a_spare_is_held_and_the_ack_quorum_goes_on() {
    let mut script = Script::new(3, 3, 2);
    script.append(2);
    script.answer(0, 2, LOST);
    script.ack(0, &[0, 1]);
    assert_eq!(script.confirmed(), -1, "IC11");
    script.core.placed(&[], 0, &[]);
    script.mark("c");
    script.ack(1, &[0, 1]);
    assert_eq!((script.confirmed(), script.core.held(), script.why()), (1, ids("c"), None));
    assert_eq!(script.core.next_step(), None, "the ensemble is as it was: nothing to write");
    script.core.on_answer(at(1), script.tag(1, 2), Connection::default(), &Ok(()));
    script.append(1);
    script.answer(2, 1, LOST);
    // Below the ack quorum it stops, unless the held one can be written again.
    assert_eq!(script.core.next_step().map(asked), Some(ids("c")));
    let mut other = with_failed_second(&ids("c"));
    assert_eq!(other.core.next_step(), Some(Step::Mark { replicas: ids("b c") }));
    other.mark("b c");
    other.written(Ok(1));
    assert_eq!((other.core.held(), other.why()), (ids("b"), None));
    other.ack(2, &[2, 0]);
    assert_eq!(other.confirmed(), 2);
    let stopped = with_failed_second(&[]);
    let Some(WhyStopped::NotEnoughBookies(why)) = stopped.why() else { panic!("{:?}", stopped.why()) };
    assert_eq!(why.failed.0.iter().map(|(bookie, _)| bookie.clone()).collect::<Vec<_>>(), ids("b c"));
    let message = stopped.core.stopped().unwrap().to_string();
    assert!(message.contains("fewer bookies than its ack quorum can be written to"), "{message}");
}

/// Invariant 6: entries that a slow bookie has not acknowledged are kept until the mark is made, even with a spare at
/// hand; a failure that comes meanwhile goes first.
#[test]
fn nothing_is_let_go_of_before_the_mark_with_a_spare_at_hand_either() {
    let slow_and_needed = || {
        let mut script = Script::new(2, 2, 2);
        script.append(3);
        (0..3).for_each(|entry| script.ack(entry, &[0]));
        script.report(3);
        script.core.placed(&ids("c"), 0, &[]);
        assert_eq!(script.core.next_step(), Some(Step::Mark { replicas: ids("b") }));
        script
    };
    let mut script = slow_and_needed();
    assert_eq!((script.held_back().0, script.core.take_withdrawn()), (vec![1], vec![]));
    assert!(!script.core.awaits_change(), "invariant 8");
    script.mark("b");
    assert_eq!((script.held_back().0, script.core.take_withdrawn()), (vec![], ids("b")));
    assert!(matches!(script.core.next_step(), Some(Step::Write { .. })));

    let mut script = slow_and_needed();
    script.answer(2, 1, LOST);
    script.mark("b");
    assert_eq!(script.core.next_step().map(asked), Some(vec![]), "placed anew, as one that failed");
    assert!(script.core.awaits_change());
}

impl Script {
    /// A bookie gets what was sent to it of what it lacks.
    fn fill_all(&mut self, bookie: &str) {
        self.core.tick(true);
        for fill in self.core.take_fills() {
            assert_eq!(fill.bookie.as_str(), bookie);
            self.core.on_answer(fill.entry, fill.tag, Connection::default(), &Ok(()));
        }
        self.settle();
    }
}

fn no_access() -> LedgerError {
    LedgerError::Store(StoreError::Protocol("the node holds no mark".into()))
}

impl Script {
    /// The step under way failed for good; whether the writer goes on without it.
    fn goes_on_without(&mut self) -> bool {
        let goes_on = self.core.goes_on_without(&no_access(), &mut self.sent);
        self.settle();
        goes_on
    }
}

/// Invariant 9.
#[test]
fn metadata_that_fails_does_not_stop_a_writer_that_needs_none() {
    let marks_c = Some(Step::Mark { replicas: ids("c") });
    let mut script = Script::new(3, 3, 2);
    script.append(2);
    script.answer(0, 2, LOST);
    script.ack(0, &[0, 1]);
    // Neither can the bookies be listed, nor the mark be made.
    assert!(matches!(script.core.next_step(), Some(Step::Place { .. })));
    assert!(script.goes_on_without());
    assert_eq!((script.core.next_step(), script.confirmed()), (marks_c.clone(), -1));
    assert!(script.goes_on_without());
    script.ack(1, &[0, 1]);
    assert_eq!((script.confirmed(), script.core.held(), script.why()), (1, ids("c"), None));
    // Tried again with each search, which takes place whatever comes of it.
    script.core.retry();
    assert_eq!(script.core.next_step(), marks_c);
    assert!(script.goes_on_without());
    assert_eq!(script.core.next_step(), place(&[2], "c"));
    script.core.placed(&[], 0, &[]);
    script.core.retry();
    script.mark("c");
    assert_eq!(script.core.next_step(), place(&[2], "c"));
    script.core.placed(&[], 0, &[]);
    script.core.retry();
    assert_eq!(script.core.next_step(), place(&[2], "c"), "marked once is enough");
    // It joins again although the mark cannot be made: the gap is there anyway.
    assert!(!script.core.is_unmarked());
    script.core.placed(&[], 0, &ids("c"));
    assert_eq!(script.core.next_step(), marks_c);
    assert!(script.goes_on_without());
    script.written(Ok(1));
    assert_eq!(script.core.held(), []);
    // Nobody is held any more, and the mark is tried again until it is made.
    assert!(script.core.is_unmarked());
    for _ in 0..3 {
        assert!(script.core.retry_after().unwrap().as_secs() < 60);
        script.core.retry();
        assert_eq!(script.core.next_step(), marks_c);
        assert!(script.goes_on_without());
        assert_eq!(script.core.next_step(), None);
    }
    script.core.begin_close();
    assert_eq!(script.core.next_step(), marks_c);
    assert!(script.goes_on_without());
    assert!(matches!(script.wanted_write().0.state, LedgerState::Closed { .. }));
    script.written(Ok(2));
    assert!(script.core.is_unmarked(), "for good");

    // Without an ack quorum there is nothing to go on with.
    let mut script = Script::new(3, 3, 3);
    script.append(1);
    script.answer(0, 2, LOST);
    assert!(!script.goes_on_without());
    // Nor when the client is closed.
    let mut script = Script::new(3, 3, 2);
    script.append(1);
    script.answer(0, 2, LOST);
    assert!(!script.core.goes_on_without(&LedgerError::Store(StoreError::Closed), &mut Vec::new()));
}

fn loss() -> LedgerError {
    LedgerError::Store(StoreError::ConnectionLoss)
}

/// A writer that keeps nothing for bookies. The third one was away and lacks entries that are confirmed; another one took its
/// place, and the mark is wanted.
fn with_replaced_third() -> Script {
    let mut script = Script::new(3, 3, 2);
    script.core.may_keep(0);
    script.append(3);
    (0..3).for_each(|entry| script.ack(entry, &[0, 1]));
    script.append(1);
    (0..4).for_each(|entry| script.answer(entry, 2, LOST));
    assert_eq!(script.core.next_step(), Some(Step::Mark { replicas: ids("c") }));
    script
}

/// Invariant 2 of `members`.
#[test]
fn a_mark_that_fails_is_made_again_after_pauses_and_so_is_one_for_a_later_loss() {
    let mut script = with_replaced_third();
    assert!(script.core.put_off(), "the store is away for a moment: the change comes first");
    script.core.placed(&ids("d"), 0, &[]);
    script.written(Ok(1));
    script.ack(3, &[0, 1, 2]);
    let mut pauses = Vec::new();
    for _ in 0..3 {
        assert_eq!(script.core.next_step(), None);
        assert!(script.core.is_unmarked());
        pauses.push(script.core.retry_after().unwrap().as_secs());
        script.core.retry();
        assert_eq!(script.core.next_step(), Some(Step::Mark { replicas: ids("c") }));
        if pauses.len() < 3 {
            assert!(script.core.put_off());
        }
    }
    assert_eq!(pauses, [1, 2, 4]);
    script.mark("c");
    assert!(!script.core.is_unmarked());
    assert_eq!((script.core.next_step(), script.core.retry_after()), (None, None));

    // It is a member again, instead of a, and lacks entries once more: repair may have removed the mark.
    script.append(1);
    script.answer(4, 0, LOST);
    script.change("c", 2);
    assert_eq!(script.core.ensemble(), ids("c b d"));
    script.ack(4, &[1, 2]);
    script.answer(4, 0, LOST);
    assert_eq!((script.confirmed(), script.core.next_step()), (4, Some(Step::Mark { replicas: ids("c") })));
    // The next mark names the bookie that is lost while this one is made.
    script.append(2);
    script.ack(5, &[1, 2]);
    script.mark("c");
    assert!(!script.core.is_unmarked());
}

/// Invariant 7: Java's checker finds the first and the last entry, and removes the mark.
#[test]
fn a_gap_in_the_middle_begins_a_segment_before_the_mark_is_made() {
    let with_gap = || {
        let mut script = Script::new(3, 3, 2);
        script.core.may_keep(0);
        script.append(4);
        (0..4).for_each(|entry| script.ack(entry, &[0, 1]));
        [0, 1, 3].into_iter().for_each(|entry| script.ack(entry, &[2]));
        script.answer(2, 2, refused(ErrorCode::TooManyRequests));
        script
    };
    let starts = |metadata: &LedgerMetadata| -> Vec<i64> {
        metadata.segments().iter().map(|segment| segment.first_entry.get()).collect()
    };
    let mut script = with_gap();
    let (split, expected) = script.wanted_write();
    assert_eq!((starts(&split), expected, split.state), (vec![0, 2], Version::counted(0), LedgerState::Open));
    assert!(!script.core.awaits_change(), "nothing waits for it");
    script.written(Ok(1));
    script.mark("c");
    assert_eq!((script.core.next_step(), script.core.retry_after()), (None, None));
    // The next change is written on top of it.
    script.append(1);
    script.core.placed(&ids("d"), 0, &[]);
    let (metadata, expected) = script.wanted_write();
    assert_eq!((starts(&metadata), expected), (vec![0, 2, 4], Version::counted(1)));

    // Its outcome is unknown, and the store away: later again, by reading first.
    let unknown = || {
        let mut script = with_gap();
        script.written(Err(loss()));
        assert_eq!(script.core.next_step(), Some(Step::Read), "IC14");
        assert!(script.core.put_off());
        assert_eq!((script.core.next_step(), script.core.is_unmarked()), (None, true));
        script
    };
    let mut script = unknown();
    assert_eq!(script.core.retry_after().unwrap().as_secs(), 1);
    script.core.retry();
    script.read(split.clone(), 1);
    script.mark("c");
    let mut script = unknown();
    script.core.retry();
    script.read(Script::new(3, 3, 2).metadata(), 0);
    assert_eq!(script.wanted_write(), (split.clone(), Version::counted(0)));
    // A change that comes first finds it, too.
    let mut script = unknown();
    script.append(1);
    script.core.placed(&ids("d"), 0, &[]);
    assert_eq!(script.wanted_write().1, Version::counted(0));
    script.written(Err(changed()));
    script.read(split.clone(), 1);
    assert_eq!((starts(&script.wanted_write().0), script.why()), (vec![0, 2, 4], None));
    // So does the end.
    let mut script = unknown();
    script.core.begin_close();
    script.mark("c");
    script.written(Err(changed()));
    script.read(split, 1);
    assert_eq!((starts(&script.wanted_write().0), script.why()), (vec![0, 2], None));

    // Refused: the mark is all there is.
    let mut script = with_gap();
    script.written(Err(no_access()));
    script.mark("c");
    assert_eq!((script.core.next_step(), script.why()), (None, None));
}

/// Invariant 12.
#[test]
fn what_lies_in_queues_is_withdrawn_before_the_end_releases_it() {
    let mut script = with_silent_third(4);
    script.core.begin_close();
    assert_eq!(script.core.take_withdrawn(), ids("c"));

    // A fill is on its way to a bookie that is no member any more.
    let with_fill = || {
        let mut script = with_replaced_third_kept();
        script.core.tick(true);
        assert_eq!(script.core.take_fills().len(), 1);
        script
    };
    let mut script = with_fill();
    let bytes = script.core.kept_bytes();
    script.core.begin_close();
    script.settle();
    assert_eq!(script.core.kept_bytes(), bytes / 3, "it is in the queue");
    assert_eq!(script.core.take_withdrawn(), ids("c"));
    assert_eq!(script.core.kept_bytes(), 0);

    // One that stops withdraws nothing: others of its entries may be on their way there.
    let mut script = with_fill();
    script.core.stop(WhyStopped::MetadataChanged);
    script.settle();
    assert_eq!((script.core.kept_bytes(), script.core.take_withdrawn()), (bytes / 3, vec![]));
}

fn with_replaced_third_kept() -> Script {
    let mut script = Script::new(3, 3, 2);
    script.append(3);
    (0..3).for_each(|entry| script.ack(entry, &[0, 1]));
    script.append(1);
    (0..4).for_each(|entry| script.answer(entry, 2, LOST));
    script.core.placed(&ids("d"), 0, &[]);
    script.written(Ok(1));
    script.ack(3, &[0, 1, 2]);
    script.core.take_withdrawn();
    script
}

/// Invariant 11: the writer tries once to mark copies that only it knows to be missing.
#[test]
fn a_writer_that_stops_by_itself_marks_what_bookies_lack() {
    let mut script = with_replaced_third_kept();
    assert!(!script.core.is_parting() && !script.core.is_unmarked());
    script.core.stop(WhyStopped::MetadataChanged);
    assert!(script.core.is_parting() && script.core.is_unmarked());
    assert_eq!(script.core.begin_parting(), Some(ids("c")));
    assert_eq!((script.core.is_parting(), script.core.begin_parting()), (true, None));
    script.core.end_parting(true);
    assert!(!script.core.is_parting() && !script.core.is_unmarked());

    // One that is dropped, or whose client is closed, does nothing more.
    for why in [WhyStopped::Closing, WhyStopped::ClientClosed, WhyStopped::Deleted] {
        let mut script = with_replaced_third_kept();
        script.core.stop(why);
        assert_eq!((script.core.is_parting(), script.core.begin_parting()), (false, None));
        assert!(script.core.is_unmarked());
    }
}

/// Invariant 6: without a mark a slow bookie's entries are held back; it is up to the budget to make the writer wait.
#[test]
fn a_slow_bookie_is_not_given_up_without_the_mark() {
    let mut script = with_silent_third(4);
    script.report(4);
    assert!(!script.goes_on_without());
    assert!(script.core.put_off(), "later again");
    assert_eq!((script.held_back().0, script.core.held(), script.why()), (vec![2], vec![], None));
    assert_eq!(script.core.retry_after().unwrap().as_secs(), 1);
    script.append(1);
    script.ack(4, &[0, 1]);
    assert_eq!(script.confirmed(), 4, "the writer goes on meanwhile");
    // Its requests time out.
    script.answer(0, 2, Err(BookieError::TimedOut(std::time::Duration::from_secs(5))));
    script.append(1);
    assert!(matches!(script.core.next_step(), Some(Step::Place { .. })));
    script.core.placed(&[], 0, &[]);
    assert!(script.goes_on_without());
    script.ack(5, &[0, 1]);
    assert_eq!((script.confirmed(), script.core.held()), (5, ids("c")));
}

fn asked(step: Step) -> Vec<BookieId> {
    match step {
        Step::Place { asked, .. } => asked,
        other => panic!("{other:?}"),
    }
}

/// Bookie c is held, b fails, there is no spare, and these held ones answer.
fn with_failed_second(alive: &[BookieId]) -> Script {
    let mut script = Script::new(3, 3, 2);
    script.append(2);
    script.answer(0, 2, LOST);
    script.ack(0, &[0, 1]);
    script.core.placed(&[], 0, &[]);
    script.mark("c");
    script.ack(1, &[0, 1]);
    script.append(1);
    script.answer(2, 1, LOST);
    script.core.placed(&[], 0, alive);
    script
}

#[test]
fn a_slow_bookie_that_the_ack_quorum_needs_is_waited_for() {
    let mut script = Script::new(2, 2, 2);
    script.append(3);
    for entry in 0..3 {
        script.ack(entry, &[0]);
    }
    script.report(3);
    let asks_nobody = |script: &Script| script.core.next_step().map(asked) == Some(vec![]);
    assert!(asks_nobody(&script), "no mark: nothing is let go of");
    script.core.placed(&[], 0, &[]);
    assert_eq!((script.core.held(), script.why()), (vec![], None));
    script.core.retry();
    assert!(asks_nobody(&script));
    script.core.placed(&ids("c"), 0, &[]);
    script.mark("b");
    script.written(Ok(1));
    assert_eq!(script.core.ensemble(), ids("a c"));
    script.ack(0, &[1]);
    assert_eq!(script.confirmed(), 0);

    // A bookie that caught up needs no replacement any more, and the pauses start over with the next one.
    let mut script = Script::new(2, 2, 2);
    script.append(1);
    script.ack(0, &[0]);
    script.report(1);
    script.core.placed(&[], 0, &[]);
    script.core.retry();
    script.core.placed(&[], 0, &[]);
    assert_eq!(script.core.retry_after().unwrap().as_secs(), 2);
    script.ack(0, &[1]);
    script.core.retry();
    assert_eq!((script.core.next_step(), script.core.retry_after()), (None, None));
    script.append(1);
    script.ack(1, &[0]);
    script.report(1);
    script.core.placed(&[], 0, &[]);
    assert_eq!(script.core.retry_after().unwrap().as_secs(), 1);
}

/// IC20: confirming waits for an ensemble change, so that asks no bookie that may be silent unless it must.
#[test]
fn a_failure_asks_held_bookies_only_for_an_ack_quorum_and_ends_a_search() {
    let mut script = Script::new(3, 3, 1);
    script.append(1);
    script.ack(0, &[0, 1]);
    script.report(1);
    script.mark("c");
    script.core.placed(&[], 0, &[]);
    script.core.retry();
    assert_eq!(script.core.next_step(), place(&[2], "c"));
    script.append(1);
    assert!(!script.core.is_overtaken() && !script.core.awaits_change());
    script.answer(1, 1, LOST);
    assert!(script.core.is_overtaken() && script.core.awaits_change());
    script.core.placed(&[], 0, &[]);
    assert!(!script.core.is_overtaken(), "it comes first now");
    assert_eq!(script.core.next_step().map(asked), Some(vec![]), "a suffices");
    script.core.placed(&[], 0, &[]);
    script.mark("b c");
    assert!(!script.core.awaits_change());
    script.ack(1, &[0]);
    assert_eq!((script.confirmed(), script.core.held()), (1, ids("b c")));
}

#[test]
fn a_lac_is_announced_to_those_that_are_written_to() {
    let mut script = with_silent_third(4);
    script.report(4);
    script.mark("c");
    script.core.placed(&[], 0, &[]);
    let (lac, _, bookies) = script.core.announce().unwrap();
    assert_eq!((lac, bookies), (at(3), ids("a b")), "an ack quorum, and nobody who never answers");
}

#[test]
fn a_failure_while_a_replacement_is_sought_comes_first() {
    let mut script = with_silent_third(4);
    script.report(4);
    script.append(1);
    script.answer(4, 0, LOST);
    script.mark("c");
    // Both are gone: one is held already, for the other there is no ack quorum.
    assert!(matches!(script.core.next_step(), Some(Step::Place { positions, .. }) if positions.len() == 1));
    script.core.placed(&ids("d"), 0, &[]);
    script.written(Ok(1));
    assert_eq!((script.core.ensemble().to_vec(), script.core.held()), (ids("d b c"), ids("c")));
    script.ack(4, &[0, 1]);
    assert_eq!(script.confirmed(), 4);
}

/// Striped: an ack quorum is kept in every write set, or nothing is held.
#[test]
fn in_a_striped_ensemble_no_write_set_loses_its_ack_quorum() {
    let mut script = Script::new(5, 3, 2);
    script.append(10);
    // Bookie c, at position 2, is in the write sets of entries 0, 1, 2, 5, 6, 7.
    for entry in 0..10 {
        let positions: Vec<usize> = (0..3).map(|i| (entry as usize + i) % 5).filter(|p| *p != 2).collect();
        script.ack(entry, &positions);
    }
    script.report(4);
    script.mark("c");
    script.core.placed(&[], 0, &[]);
    assert_eq!((script.confirmed(), script.core.held()), (9, ids("c")));
    script.append(5);
    // With d gone, too, entries of b, c, d and c, d, e have one bookie left.
    script.answer(13, 3, LOST);
    script.core.placed(&[], 0, &[]);
    assert!(matches!(script.why(), Some(WhyStopped::NotEnoughBookies(_))));
}

/// BookKeeper #1886: a second ensemble change while the first write is unanswered, and a member that was replaced
/// comes back. Here: a slow one.
#[test]
fn bk_1886_r34_a_slow_member_waits_for_the_change_under_way() {
    let mut script = with_silent_third(4);
    script.append(1);
    script.answer(4, 0, LOST);
    script.core.placed(&ids("d"), 0, &[]);
    script.report(4);
    assert!(matches!(script.core.next_step(), Some(Step::Write { .. })), "one at a time (IC11)");
    script.written(Err(changed()));
    let (first, _) = {
        let mut metadata = Script::new(3, 3, 2).metadata();
        metadata = crate::metadata_edit::with_ensemble(&metadata, at(4), ids("d b c"));
        (metadata, 7)
    };
    // It went through after all.
    script.read(first, 7);
    assert_eq!(script.core.ensemble(), ids("d b c"));
    script.mark("c");
    script.core.placed(&ids("e"), 0, &[]);
    script.mark("c");
    let (metadata, expected) = script.wanted_write();
    assert_eq!(expected, Version::counted(7), "IC14: on the condition of what was read");
    let ensembles: Vec<_> =
        metadata.segments().iter().map(|s| (s.first_entry.get(), s.ensemble.clone())).collect();
    assert_eq!(
        ensembles,
        [(0, ids("a b c")), (4, ids("d b e"))],
        "keys ascend, and nobody comes back (IC11)"
    );
}

/// BookKeeper #3466: packets are lost, and a ledger is closed behind entries that no bookie has. A bookie that is held
/// acknowledges nothing, whatever it answers late.
#[test]
fn bk_3466_r37_what_a_held_bookie_answers_late_confirms_nothing() {
    let mut script = with_silent_third(2);
    script.append(2);
    script.report(2);
    let tag = script.tag(2, 2);
    script.mark("c");
    script.core.placed(&[], 0, &[]);
    script.ack(2, &[0]);
    // Whether it was withdrawn or stored, its answer no longer counts.
    script.core.on_answer(at(2), tag, Connection::default(), &Ok(()));
    script.settle();
    assert_eq!(script.confirmed(), 1, "IC1");
}

/// Window invariant 4, for a change that is made for others.
#[test]
fn who_failed_for_a_complete_entry_is_not_forgotten_when_another_joins() {
    let mut script = Script::new(4, 4, 2);
    script.append(4);
    for entry in 0..4 {
        script.ack(entry, &[0, 1, 3]);
    }
    script.report(4);
    script.mark("c");
    script.append(1);
    script.ack(4, &[0, 1]);
    script.answer(4, 3, LOST);
    assert_eq!(script.confirmed(), 4, "it is complete: the failure can wait");
    script.core.placed(&ids("e"), 0, &[]);
    script.mark("c");
    let (metadata, _) = script.wanted_write();
    assert_eq!(metadata.segments()[1].ensemble, ids("a b e d"));
    script.written(Ok(1));
    assert_eq!(script.core.next_step(), None);
    script.append(1);
    let Some(Step::Place { positions, .. }) = script.core.next_step() else {
        panic!("{:?}", script.core.next_step())
    };
    assert_eq!(positions, [3], "now it is replaced");
}
