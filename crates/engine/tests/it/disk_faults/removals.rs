//! Deleted ledgers beside a flush that waits for space, and beside a directory that fails to forget them.

use super::*;

/// A full disk has a way out: while a flush waits for space, a ledger that is deleted gives the space of its logs back, which
/// needs a commit and no other room; and the removal holds over a crash.
#[test]
fn a_removal_gives_space_back_while_a_flush_waits_for_it() {
    for is_killed in [false, true] {
        let mut bookie = Bookie::new(1);
        let [first, second, ..] = bookie.ledgers()[..] else { panic!("three shards") };
        for entry in 0..5 {
            bookie.add(first, entry, false).unwrap();
        }
        bookie.flush();
        bookie.add(first, 5, false).unwrap();
        bookie.add(second, 0, false).unwrap();
        bookie.faults.set(&[full(&["create"], ".elog")]);
        bookie.flush();
        assert!(bookie.engine().status().waits_for_space.is_some());
        assert_eq!(bookie.logs(), 1);

        let removed = Arc::new(Mutex::new(None));
        let answer = removed.clone();
        let id = LedgerId::new(first).unwrap();
        bookie.engine().remove_ledger(id, Box::new(move |outcome| *answer.lock() = Some(outcome)));
        bookie.drive();
        assert_eq!(removed.lock().take(), Some(Ok(())));
        bookie.engine().want_collection_after_removals(WantedCollection::default());
        for _ in 0..5 {
            bookie.tend();
        }
        assert_eq!(bookie.logs(), 0, "nothing of the log is live");
        assert!(bookie.engine().status().waits_for_space.is_some());

        bookie.acked.retain(|(ledger, _)| *ledger != first);
        if is_killed {
            bookie.restart();
        }
        bookie.faults.set(&[]);
        for _ in 0..5 {
            bookie.tend();
        }
        assert_eq!(bookie.engine().status().waits(), None);
        assert_eq!(bookie.read(first, 0), Err(Refusal::NoLedger), "is killed: {is_killed}");
        assert_eq!(bookie.read(first, 5), Err(Refusal::NoLedger));
        bookie.add(second, 1, false).unwrap();
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        assert_eq!(bookie.read(first, 0), Err(Refusal::NoLedger));
    }
}

/// Entries that wait for space need none once their ledger is deleted: the flush leaves them out, and completes with
/// the rest. A volume that holds little but the journal has no other way out. The removal holds over a crash, and the
/// ledger may come back.
#[test]
fn a_removal_takes_what_waits_for_space_out_of_the_flush() {
    for is_killed in [false, true] {
        let mut bookie = Bookie::new(1);
        let [first, second, ..] = bookie.ledgers()[..] else { panic!("three shards") };
        for entry in 0..5 {
            bookie.add(first, entry, false).unwrap();
        }
        bookie.faults.set(&[full(&["create"], ".elog")]);
        bookie.flush();
        bookie.tend();
        assert!(bookie.engine().status().waits_for_space.is_some());

        let id = LedgerId::new(first).unwrap();
        let (sender, receiver) = sync_channel(1);
        bookie.engine().remove_ledger(id, Box::new(move |outcome| sender.send(outcome).unwrap()));
        bookie.tend();
        assert!(bookie.engine().status().waits_for_space.is_some(), "the journal does not have the removal");
        bookie.drive();
        assert_eq!(receiver.try_recv(), Ok(Ok(())));
        bookie.acked.clear();
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None, "there is nothing to write");
        assert_eq!(bookie.logs(), 0);
        if is_killed {
            bookie.restart();
        }
        bookie.faults.set(&[]);
        assert_eq!(bookie.read(first, 0), Err(Refusal::NoLedger), "is killed: {is_killed}");
        bookie.add(second, 0, false).unwrap();
        let (sender, receiver) = sync_channel(1);
        bookie.engine().revive_ledger(id, KEY, Box::new(move |outcome| sender.send(outcome).unwrap()));
        bookie.drive();
        assert_eq!(receiver.try_recv(), Ok(Ok(())));
        bookie.add(first, 7, false).unwrap();
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        assert_eq!(bookie.read(first, 0), Err(Refusal::NoEntry));
    }
}

/// The same beside a ledger that stays: the rest of the waiting flush is written.
#[test]
fn what_stays_of_a_flush_that_waited_is_written() {
    let mut bookie = Bookie::new(1);
    let [first, second, ..] = bookie.ledgers()[..] else { panic!("three shards") };
    for entry in 0..5 {
        bookie.add(first, entry, false).unwrap();
        bookie.add(second, entry, false).unwrap();
    }
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.flush();
    bookie.engine().remove_ledger(LedgerId::new(first).unwrap(), Box::new(|_| ()));
    bookie.drive();
    bookie.acked.retain(|(ledger, _)| *ledger != first);
    bookie.tend();
    assert!(bookie.engine().status().waits_for_space.is_some(), "there are entries to write");
    bookie.faults.set(&[]);
    let before = bookie.engine().stats();
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None);
    let after = bookie.engine().stats();
    assert_eq!(after.flushed_entries - before.flushed_entries, 5, "only those of the ledger that stays");
    bookie.check_acked();
    bookie.restart();
    assert_eq!(bookie.read(first, 0), Err(Refusal::NoLedger));
}

/// Space invariant 5: a ledger comes back while the directory that was its own before fails to forget its removal, and
/// is frozen right then. The other directory's memory must not count as later.
#[test]
fn a_ledger_frozen_while_it_is_forgotten_outlives_its_removal() {
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[1];
    bookie.add(ledger, 0, false).unwrap();
    bookie.acked.clear();
    bookie.engine().remove_ledger(LedgerId::new(ledger).unwrap(), Box::new(|_| ()));
    bookie.flush();
    // With two directories the second one is home to its shard, and the first still remembers the removal.
    bookie.dirs = 2;
    bookie.restart();
    bookie.machine.as_ref().unwrap().want_freeze();
    let Machine { engine, mut journals, mut flushing, .. } = bookie.machine.take().unwrap();
    let (inbox, engine_of_others) = (Inbox::default(), engine.clone());
    let (sender, frozen) = sync_channel(1);
    *bookie.faults.meanwhile.lock() = Some(Box::new(move || {
        place(&engine_of_others, ledger, 1, false);
        let in_flight = journals[0].cut().unwrap();
        let written = journals[0].write(&in_flight);
        let mut done = journals[0].finish(in_flight, written);
        sender.send((done.freeze.take().unwrap(), journals)).unwrap();
        done.deliver(&inbox);
        assert_eq!(inbox.0.lock().pop().unwrap().result, Ok(()));
    }));
    bookie.faults.set(&[broken(&["write"], "ledgers0/")]);
    assert!(flushing.forget_removed().is_err(), "one directory cannot forget");
    bookie.acked.push((ledger, 1));
    let (ticket, mut journals) = frozen.try_recv().expect("it was forgotten in the shard, and came back");
    journals[0].on_flushed(flushing.flush(ticket).unwrap());
    drop((engine, journals, flushing));
    bookie.restart();
}
