//! What a full or read-only bookie takes of recoveries, so that its ledgers can be closed.

use super::*;

/// Recovery invariants 2 and 3: while a flush waits for space a ledger can be closed, and its entries outlive a crash and are
/// flushed when there is room. That is for recoveries alone, and ends with their reserve.
#[test]
fn a_full_bookie_takes_what_recoveries_add_within_their_reserve() {
    for is_killed in [false, true] {
        let mut bookie = Bookie::new(1);
        let ledgers = bookie.ledgers();
        for entry in 0..5 {
            bookie.add(ledgers[0], entry, false).unwrap();
        }
        bookie.faults.set(&[full(&["write"], ".elog")]);
        bookie.flush();
        // Of 2,000 bytes each, with their headers.
        bookie.engine().set_recovery_reserve(9_000);
        assert!(bookie.engine().status().waits_for_space.is_some());
        assert_eq!(bookie.fence(ledgers[0]), Ok(()));
        for entry in [5, 6, 7] {
            assert_eq!(bookie.recover(ledgers[0], entry), Ok(()));
        }
        assert_eq!(bookie.recover(2_000_000, 0), Ok(()), "of a ledger that is new here");
        assert_eq!(bookie.engine().status().recoveries_refused, 0);
        assert_eq!(bookie.recover(ledgers[0], 8), Err(Refusal::ReadOnly), "nothing is left");
        let status = bookie.engine().status();
        assert_eq!((status.recoveries_refused, status.recovery_reserve_bytes), (1, 9_000 - 4 * 2_012));

        bookie.engine().set_recovery_reserve(1 << 20);
        for (is_recovery, is_high_priority) in [(false, false), (false, true), (true, false)] {
            let refused = bookie.add_as(ledgers[1], 5, is_recovery, is_high_priority);
            assert_eq!(refused, Err(Refusal::ReadOnly), "{is_recovery} {is_high_priority}");
        }
        if is_killed {
            bookie.open().unwrap();
            assert!(bookie.engine().status().waits_for_space.is_some(), "still full");
        }
        assert_eq!(bookie.recover(ledgers[0], 8), Ok(()));
        bookie.check_acked();
        bookie.faults.set(&[]);
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None);
        assert_eq!(bookie.add(ledgers[0], 9, false), Err(Refusal::Fenced));
        bookie.add(ledgers[1], 0, false).unwrap();
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        bookie.check_acked();
        assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0, "everything was flushed");
    }
}

/// Recovery invariant 4: a recovery adds the entries it read again. An entry that is here takes no room: it is acknowledged for the copy in
/// memory, or for the one on disk, which the caller compares; anything else, and any other add, is not.
#[test]
fn what_a_recovery_adds_again_to_a_full_bookie_takes_no_room() {
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[0];
    for entry in 0..3 {
        bookie.add(ledger, entry, false).unwrap();
    }
    bookie.flush();
    for entry in 3..6 {
        bookie.add(ledger, entry, false).unwrap();
    }
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.flush();
    let engine = bookie.engine();
    engine.set_recovery_reserve(0);
    let records = || engine.stats().journal_bytes;
    let before = records();
    for entry in 3..6 {
        assert_eq!(bookie.recover(ledger, entry), Ok(()), "in memory");
    }
    assert_eq!(bookie.add(ledger, 3, true), Err(Refusal::ReadOnly), "not of a recovery");
    assert_eq!(bookie.recover(ledger, 6), Err(Refusal::ReadOnly), "not here");
    assert_eq!(records(), before, "nothing was placed");

    let (id, other) = (LedgerId::new(ledger).unwrap(), MasterKey::new([2; 20]));
    let body = |entry: i64, last: u8| {
        let mut body = bookie.read(ledger, entry).unwrap();
        *body.last_mut().unwrap() = last;
        body
    };
    let bodies: Vec<Vec<u8>> = vec![body(1, 1), body(1, 7), body(4, 7)];
    let add = |at: usize, key| Add {
        origin: Origin { connection: 0, txn: at as u64, tag: 0 },
        ledger: id,
        entry: EntryId::new([1, 1, 4][at]).unwrap(),
        last_add_confirmed: None,
        key,
        body: &bodies[at],
        is_recovery: true,
        is_high_priority: true,
    };
    let ask = |add: Add<'_>| {
        let mut unplaced = Vec::new();
        assert_eq!(engine.add_or_ask(engine.shard_of(id), &[add], None, &mut unplaced), 1);
        unplaced.iter().filter(|(_, what)| *what == Unplaced::Asks).count()
    };
    // On disk: left with the caller, with the copy. The same or not is for the caller to say.
    for at in [0, 1] {
        assert_eq!(ask(add(at, KEY)), 1, "{at}");
        assert_eq!(engine.copy_on_disk(&add(at, KEY)).unwrap().load().unwrap(), bodies[0]);
    }
    assert!(engine.confirm(&add(0, KEY)));
    assert_eq!(bookie.drive().pop().unwrap().result, Ok(()));
    // Another key, or other bytes in memory: that is no copy.
    assert!(engine.copy_on_disk(&add(0, other)).is_none() && !engine.confirm(&add(0, other)));
    assert_eq!((ask(add(0, other)), ask(add(2, KEY))), (0, 0));
    assert!(bookie.drive().iter().all(|done| done.result == Err(Refusal::ReadOnly)));
    // Without asking, as after a copy that is another one.
    assert_eq!(bookie.recover(ledger, 1), Err(Refusal::ReadOnly));
    // A ledger that was removed has no copies, and what waits for its comparison is not acknowledged.
    engine.remove_ledger(id, Box::new(|_| {}));
    bookie.drive();
    assert!(engine.copy_on_disk(&add(0, KEY)).is_none() && !engine.confirm(&add(0, KEY)));
    assert_eq!(bookie.recover(ledger, 4), Err(Refusal::ReadOnly));
}

/// A volume above its threshold: recoveries pass within the reserve, and all of high priority where there is room for it.
#[test]
fn a_read_only_bookie_takes_what_recoveries_add_within_their_reserve() {
    let mut bookie = Bookie::new(1);
    let engine = bookie.engine();
    engine.set_read_only(true);
    engine.set_recovery_reserve(2_100);
    assert_eq!(bookie.add(1, 0, true), Ok(()));
    assert_eq!(bookie.recover(1, 1), Ok(()));
    assert_eq!(engine.status().recovery_reserve_bytes, 2_100, "there is room for high priority");
    engine.set_takes_high_priority(false);
    assert_eq!(bookie.add(1, 2, true), Err(Refusal::ReadOnly));
    assert_eq!(bookie.recover(1, 2), Ok(()));
    assert_eq!(bookie.recover(1, 3), Err(Refusal::ReadOnly));
    engine.set_read_only(false);
    assert_eq!(bookie.recover(1, 3), Ok(()));
    assert_eq!(engine.status().recovery_reserve_bytes, 2_100 - 2_012);
    bookie.check_acked();
}

/// Recovery invariant 1, and who waits for a descriptor says nothing about space: neither takes what recoveries add.
#[test]
fn recoveries_pass_for_want_of_space_alone() {
    let mut bookie = Bookie::new(1);
    bookie.add(1, 0, false).unwrap();
    bookie.faults.set(&[without_descriptor(&["create"], ".elog")]);
    bookie.flush();
    assert!(bookie.engine().status().waits_for_descriptor.is_some());
    assert_eq!(bookie.recover(1, 1), Err(Refusal::ReadOnly));
    bookie.faults.set(&[full(&["create"], ".elog")]);
    bookie.tend();
    assert!(bookie.engine().status().waits_for_space.is_some());
    assert_eq!(bookie.recover(1, 1), Ok(()));
    bookie.faults.set(&[broken(&["create"], ".elog")]);
    bookie.tend();
    assert!(bookie.engine().status().failed.is_some());
    assert_eq!(bookie.recover(1, 2), Err(Refusal::ReadOnly));
    bookie.check_acked();
}

/// Recovery invariant 2: where the journal can have no other file either, recoveries are refused in time, so that fences
/// find room behind them; none of them waits.
#[test]
fn recoveries_leave_room_for_fences_in_the_last_file_of_a_journal() {
    for (size, shards) in [(1, 1), (1, 3), (3, 3)] {
        let mut bookie = Bookie::of(1, 1, shards, 0);
        let ledgers = bookie.ledgers();
        // With its first file no other is made; or it has a second one by then.
        let path = if size == 1 { "journal-0001" } else { "journal-0002" };
        bookie.faults.set(&[full(&["create", "allocate"], path), full(&["write"], ".elog")]);
        let added =
            (0..2000).take_while(|entry| bookie.add(ledgers[0], *entry, false).is_ok()).count() as i64;
        assert!(bookie.engine().status().waits_for_space.is_some());
        let mut taken = 0;
        let refused = (added..added + 2000).find_map(|entry| {
            // From several shards in one group, as far as there is room.
            for ledger in &ledgers {
                place_as(&bookie.engine(), *ledger, entry, true, true);
            }
            let answers = bookie.drive();
            assert_eq!(answers.len(), ledgers.len(), "none waits");
            for done in &answers {
                if done.result.is_ok() {
                    taken += 1;
                    bookie.acked.push((done.ledger.get(), entry));
                }
            }
            answers.iter().find_map(|done| done.result.err())
        });
        assert_eq!(refused, Some(Refusal::ReadOnly));
        assert!(taken > 10, "{taken} of {shards} shards");
        for fenced in 0..20 {
            assert_eq!(bookie.fence(1_000_000 + fenced), Ok(()));
        }
        bookie.check_acked();
        bookie.open().unwrap();
        bookie.check_acked();
        bookie.faults.set(&[]);
        bookie.machine.as_mut().unwrap().journals[0].seal();
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None);
        bookie.add(ledgers[0], 5000, false).unwrap();
        bookie.restart();
        bookie.check_acked();
    }
}
