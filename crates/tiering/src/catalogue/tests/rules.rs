//! The rules of the core.

use super::*;

struct Log {
    core: Core,
    facts: Facts,
}

impl Log {
    fn new() -> Log {
        Log { core: Core::new(CLUSTER), facts: Facts::nothing_below() }
    }

    fn apply(&mut self, writer: u64, time_ms: u64, changes: Vec<Change>) -> Vec<ChangeOutcome> {
        let number = self.core.position().number + 1;
        let outcome = self.core.apply(&record(number, writer, time_ms, changes), &self.facts).unwrap();
        assert_eq!(outcome.position, self.core.position());
        Rows::of(&self.core).check();
        outcome.changes
    }

    fn one(&mut self, time_ms: u64, change: Change) -> ChangeOutcome {
        self.apply(1, time_ms, vec![change]).remove(0)
    }

    fn stored(&self, number: u64) -> StoredObject {
        match self.core.object(&self.facts, id(number)).unwrap() {
            Some(ObjectRow::Stored(stored)) => stored,
            other => panic!("object {number} is {other:?}"),
        }
    }
}

fn verdicts(outcome: &ChangeOutcome) -> Vec<(Verdict, i64)> {
    match outcome {
        ChangeOutcome::Committed(Ok(extents)) => {
            extents.iter().map(|extent| (extent.verdict, extent.next.get())).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn refusal(outcome: &ChangeOutcome) -> Refusal {
    match outcome {
        ChangeOutcome::Committed(Err(refusal)) | ChangeOutcome::Forgotten(Err(refusal)) => *refusal,
        other => panic!("{other:?}"),
    }
}

proptest! {
    /// Invariants 1 and 2 (T3, IT1, T11): after any records of any writers there is no gap and no overlap, every count is
    /// right, and two readers agree.
    #[test]
    fn any_interleaving_leaves_whole_ledgers(records in changes()) {
        let (mut log, mut other) = (Log::new(), Log::new());
        for (writer, time_ms, changes) in records {
            prop_assert_eq!(
                log.apply(writer, time_ms, changes.clone()),
                other.apply(writer, time_ms, changes)
            );
        }
        prop_assert_eq!(Rows::of(&log.core), Rows::of(&other.core));
    }

    /// Invariant 3 (T6, IT6): a commit that comes again at once changes nothing and has the same outcome.
    #[test]
    fn a_commit_is_idempotent(records in changes()) {
        let mut log = Log::new();
        for (writer, time_ms, changes) in records {
            let outcomes = log.apply(writer, time_ms, changes.clone());
            let Some((change, first)) = changes.last().zip(outcomes.last()) else { continue };
            if matches!(first, ChangeOutcome::Committed(Ok(_))) {
                let before = Rows::of(&log.core);
                let second = log.one(0, change.clone());
                prop_assert_eq!(&second, first);
                prop_assert_eq!(Rows::of(&log.core), before);
            }
        }
    }

    /// What is loaded from below, and how often, changes nothing: a core above runs answers as one that holds everything
    /// does. Its tail is cut off again and again, so that everything has to be loaded.
    #[test]
    fn a_core_above_runs_does_as_a_whole_one(records in changes(), keep in 0_u64..4) {
        let mut whole = Log::new();
        let mut above = Core::new(CLUSTER);
        let mut history = vec![Rows::default()];
        for (number, (writer, time_ms, changes)) in (1..).zip(records) {
            let covered = above.position().number.saturating_sub(keep);
            above.settle(covered);
            let record = record(number, writer, time_ms, changes);
            let mut facts = Facts::new();
            let outcome = loop {
                match above.apply(&record, &facts) {
                    Ok(outcome) => break outcome,
                    Err(needs) => {
                        prop_assert!(!needs.is_empty());
                        answer(&needs, &history[covered as usize], &mut facts);
                    }
                }
            };
            prop_assert_eq!(whole.core.apply(&record, &whole.facts).unwrap(), outcome);
            prop_assert_eq!(whole.core.totals(), above.totals());
            history.push(Rows::of(&whole.core));
        }
    }
}

fn answer(needs: &Needs, below: &Rows, facts: &mut Facts) {
    for id in &needs.ledgers {
        facts.put_ledger(*id, below.ledgers.get(id).copied());
    }
    for id in &needs.objects {
        facts.put_object(*id, below.objects.get(id).copied());
    }
    for wanted in &needs.extents {
        let keys = (wanted.ledger, wanted.from)..=(wanted.ledger, wanted.through);
        let all: Vec<_> = below.extents.range(keys).map(|((_, first), row)| (*first, *row)).collect();
        // One at a time: the core has to ask again and again.
        let rows: Vec<_> = all.iter().take(1).copied().collect();
        let through = if all.len() > 1 { rows[0].0 } else { wanted.through };
        facts.put_extents(wanted.ledger, wanted.from, through, rows);
    }
}

/// T3: the extents of other ledgers are unaffected, and the outcome gives the true next entry.
#[test]
fn a_misaligned_extent_is_dropped_by_itself() {
    let mut log = Log::new();
    log.one(0, reserve(&[1, 2, 3]));
    let first = log.one(0, commit(1, &[(1, 0, 9), (2, 0, 4)]));
    assert_eq!(verdicts(&first), [(Verdict::Accepted, 10), (Verdict::Accepted, 5)]);
    let second = log.one(0, commit(2, &[(1, 5, 19), (2, 5, 9), (3, 1, 2), (2, 10, 10)]));
    let expected = [
        (Verdict::Misaligned, 10),
        (Verdict::Accepted, 11),
        (Verdict::Misaligned, 0),
        (Verdict::Accepted, 11),
    ];
    assert_eq!(verdicts(&second), expected);
    assert_eq!(log.stored(2).live_extents, 2);
    // Nothing of it was accepted: unreferenced at once.
    log.one(5, commit(3, &[(1, 0, 9)]));
    assert_eq!(log.stored(3).unreferenced_ms, Some(5));
    assert_eq!(log.core.totals().unreferenced, 1);
}

/// T5, and invariant 5: an id is reserved, for a while, by the log's time.
#[test]
fn only_a_reserved_id_can_be_committed() {
    let mut log = Log::new();
    assert_eq!(refusal(&log.one(0, commit(1, &[(1, 0, 9)]))), Refusal::NotReserved);
    log.one(100, reserve(&[1, 2]));
    // A writer whose clock is behind does not turn the time back, and does not make a reservation longer.
    log.one(0, reserve(&[3]));
    assert_eq!(log.core.position().log_ms, 100);
    log.one(1099, commit(1, &[(1, 0, 9)]));
    assert_eq!(refusal(&log.one(1100, commit(2, &[(1, 10, 19)]))), Refusal::Expired);
    assert_eq!(refusal(&log.one(0, commit(3, &[(1, 10, 19)]))), Refusal::Expired);
    assert_eq!(refusal(&log.one(9000, commit(2, &[(1, 10, 19)]))), Refusal::Expired);
    assert_eq!(log.core.next(&log.facts, ledger(1)), Ok(entry(10)));
    assert_eq!(log.core.totals().reserved, 2);
    // Expired: the object may be deleted, and then its row.
    assert_eq!(log.one(0, Change::ForgetObject(id(2))), ChangeOutcome::Forgotten(Ok(())));
    assert_eq!(refusal(&log.one(0, commit(2, &[(1, 10, 19)]))), Refusal::NotReserved);
    assert_eq!(refusal(&log.one(0, Change::ForgetObject(id(1)))), Refusal::InUse);
}

/// T6: repeated, a commit answers the same; other content under its id is refused.
#[test]
fn an_id_names_one_content() {
    let mut log = Log::new();
    log.one(0, reserve(&[1]));
    let first = log.one(0, commit(1, &[(1, 0, 9), (2, 3, 4)]));
    let before = Rows::of(&log.core);
    assert_eq!(log.one(5000, commit(1, &[(1, 0, 9), (2, 3, 4)])), first);
    assert_eq!(refusal(&log.one(0, commit(1, &[(1, 0, 9)]))), Refusal::OtherContent);
    assert_eq!(Rows::of(&log.core), before);
    // Reserved again, by whoever: it is taken.
    assert_eq!(log.one(0, reserve(&[1])), ChangeOutcome::Reserved { refused: vec![id(1)] });
}

/// T16: exactly the ranges of the old objects, so that no entry is lost or doubled.
#[test]
fn a_rewrite_takes_over_whole_extents_of_its_sources() {
    let mut log = Log::new();
    log.one(0, reserve(&[1, 2, 3, 4, 5]));
    log.one(0, commit(1, &[(1, 0, 9), (2, 0, 9)]));
    log.one(0, commit(2, &[(1, 10, 19)]));
    log.one(0, commit(3, &[(1, 20, 29)]));
    let outcome = log.one(7, replace(4, &[1, 2], &[(1, 0, 19), (2, 0, 4), (1, 20, 29), (3, 0, 1)]));
    let expected = [
        (Verdict::Accepted, 30),
        (Verdict::NotReplaceable, 10),
        (Verdict::NotReplaceable, 30),
        (Verdict::NotReplaceable, 0),
    ];
    assert_eq!(verdicts(&outcome), expected, "a part, another object's, and a ledger without extents");
    assert_eq!(log.stored(2).unreferenced_ms, Some(7), "all of it was taken over");
    assert_eq!((log.stored(1).live_extents, log.stored(1).unreferenced_ms), (1, None));
    // Somebody rewrote the same in the meantime: the second one is in vain, and harmless.
    let late = log.one(8, replace(5, &[1, 2], &[(1, 0, 19)]));
    assert_eq!(verdicts(&late), [(Verdict::NotReplaceable, 30)]);
    assert_eq!(log.stored(5).unreferenced_ms, Some(8));
    let all = WantedExtents { ledger: ledger(1), from: entry(0), through: EntryId::MAX, limit: 9 };
    let extents = log.core.extents(&log.facts, all).unwrap();
    let ranges: Vec<_> =
        extents.iter().map(|(first, row)| (first.get(), row.last.get(), row.object.id)).collect();
    assert_eq!(ranges, [(0, 19, id(4)), (20, 29, id(3))]);
    assert_eq!(extents[0].1.tier_extent(extents[0].0).object, reference(4));
}

/// T16: an object is unreferenced when its last extent was taken over, or its ledger was removed, whichever comes last. A record of an earlier
/// build, which said that bookies know, changes nothing.
#[test]
fn a_rewritten_object_is_unreferenced_with_its_last_extent() {
    let mut log = Log::new();
    log.one(0, reserve(&[1, 2, 3]));
    log.one(0, commit(1, &[(1, 0, 9), (2, 0, 9), (3, 0, 9)]));
    log.one(4, replace(2, &[1], &[(1, 0, 9)]));
    let first = log.stored(1).replaced.unwrap();
    assert_eq!((first.number, first.at_ms), (log.core.position().number, 4));
    log.one(5, replace(3, &[1], &[(2, 0, 9)]));
    assert_eq!((log.core.totals().unreferenced, log.stored(1).unreferenced_ms), (0, None));
    assert_eq!(refusal(&log.one(6, Change::ForgetObject(id(1)))), Refusal::InUse);
    log.one(6, Change::RemoveLedger { ledger: ledger(3), created_ms: None });
    let before = log.stored(1);
    assert_eq!((log.core.totals().unreferenced, before.unreferenced_ms), (1, Some(6)));
    let release = Change::Release { object: id(1), replaced: first.number };
    assert_eq!(log.one(7, release.clone()), ChangeOutcome::Nothing);
    assert_eq!(log.stored(1), before);
    assert_eq!(log.one(8, Change::ForgetObject(id(1))), ChangeOutcome::Forgotten(Ok(())));
    assert_eq!(log.one(8, release), ChangeOutcome::Nothing);
}

/// An earlier build let an object wait for bookies: it is unreferenced since its last extent was taken over.
#[test]
fn a_row_of_an_object_that_waited_for_bookies_is_garbage() {
    let mut log = Log::new();
    log.one(0, reserve(&[1, 2]));
    log.one(0, commit(1, &[(1, 0, 9)]));
    log.one(4, replace(2, &[1], &[(1, 0, 9)]));
    let now = log.stored(1);
    for (live_extents, expected) in [(0, now.unreferenced_ms), (1, None)] {
        let mut row = Vec::new();
        ObjectRow::Stored(StoredObject { unreferenced_ms: None, live_extents, ..now }).encode(&mut row);
        let Some(ObjectRow::Stored(read)) = ObjectRow::decode(&row) else { panic!("{row:?}") };
        assert_eq!(read.unreferenced_ms, expected);
    }
    assert_eq!(now.unreferenced_ms, Some(4));
}

/// An id that is used again: the rest of the former ledger goes first, and no late removal takes entries of the new one.
#[test]
fn extents_of_another_ledger_of_the_id_are_not_joined_and_a_removal_is_of_one_ledger() {
    let mut log = Log::new();
    let remove = |created_ms| Change::RemoveLedger { ledger: ledger(1), created_ms };
    log.one(0, reserve(&[1, 2, 3, 4]));
    log.one(0, created(commit(1, &[(1, 0, 9)]), 100));
    assert_eq!(verdicts(&log.one(1, created(commit(2, &[(1, 10, 19)]), 200))), [(Verdict::OtherLedger, 10)]);
    assert_eq!(verdicts(&log.one(1, created(commit(3, &[(1, 0, 4)]), 200))), [(Verdict::OtherLedger, 10)]);
    for other in [None, Some(200)] {
        assert_eq!(log.one(2, remove(other)), ChangeOutcome::LedgerRemoved { extents: 0, left: 0 });
    }
    assert_eq!(log.one(3, remove(Some(100))), ChangeOutcome::LedgerRemoved { extents: 1, left: 0 });
    assert_eq!(verdicts(&log.one(4, created(commit(4, &[(1, 0, 4)]), 200))), [(Verdict::Accepted, 5)]);
    assert_eq!(log.one(5, remove(Some(100))), ChangeOutcome::LedgerRemoved { extents: 0, left: 0 });
}

/// T13, IT8: unreferenced, then the object, then the row; and a ledger that is larger than one removal takes.
#[test]
fn a_large_ledger_goes_in_several_steps() {
    let mut log = Log::new();
    let count = REMOVED_EXTENTS_MAX as i64 + 10;
    let extents: Vec<_> = (0..count).map(|at| (1, at * 2, at * 2 + 1)).collect();
    log.one(0, reserve(&[1, 2]));
    log.one(0, commit(1, &extents));
    let removed = log.one(1, Change::RemoveLedger { ledger: ledger(1), created_ms: None });
    assert_eq!(removed, ChangeOutcome::LedgerRemoved { extents: REMOVED_EXTENTS_MAX as u64, left: 10 });
    // It takes nothing any more: its entries are about to go.
    let late = log.one(2, commit(2, &[(1, count * 2, count * 2 + 5)]));
    assert_eq!(verdicts(&late), [(Verdict::Removed, count * 2)]);
    assert_eq!(refusal(&log.one(2, Change::ForgetObject(id(1)))), Refusal::InUse);
    let removed = log.one(3, Change::RemoveLedger { ledger: ledger(1), created_ms: None });
    assert_eq!(removed, ChangeOutcome::LedgerRemoved { extents: 10, left: 0 });
    assert_eq!(log.stored(1).unreferenced_ms, Some(3));
    assert_eq!(
        log.one(3, Change::RemoveLedger { ledger: ledger(1), created_ms: None }),
        ChangeOutcome::LedgerRemoved { extents: 0, left: 0 }
    );
    assert_eq!(log.one(4, Change::ForgetObject(id(1))), ChangeOutcome::Forgotten(Ok(())));
    assert_eq!(log.one(4, Change::ForgetObject(id(1))), ChangeOutcome::Forgotten(Ok(())), "repeated (T13)");
    assert_eq!(log.core.totals().ledgers, 0);
}
