//! Flushes that find no space, or no file descriptor: they wait, and go on by themselves.

use super::*;

/// Every write site of a flush that may find no space: adds are refused meanwhile, reads and fences go on, the retry
/// goes into a new file, and then everything goes on. Nothing piles up.
#[test]
fn a_flush_without_space_waits_and_goes_on() {
    for (dirs, calls, path) in [
        (1, &["create"][..], ".elog"),
        (1, &["write"], ".elog"),
        (1, &["sync"], ".elog"),
        (2, &["write"], ".elog"),
        (2, &["write"], "ledgers1"),
    ] {
        let mut bookie = Bookie::new(dirs);
        let ledgers = bookie.ledgers();
        for entry in 0..5 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
        }
        let path = if path == "ledgers1" { "ledgers1/0" } else { path };
        bookie.faults.set(&[full(calls, path)]);
        bookie.flush();
        if bookie.faults.hits() == 0 {
            panic!("{calls:?} {path}: nothing was injected");
        }
        let status = bookie.engine().status();
        assert!(status.waits().is_some() && status.failed.is_none(), "{status:?}");
        let before = bookie.logs();
        for _ in 0..5 {
            bookie.tend();
        }
        assert!(bookie.faults.hits() >= 5, "{calls:?} {path}: tried again");
        assert!(bookie.logs() <= before, "{calls:?} {path}: attempts pile up");
        for is_high_priority in [false, true] {
            assert_eq!(bookie.add(ledgers[0], 99, is_high_priority), Err(Refusal::ReadOnly));
        }
        bookie.check_acked();
        assert_eq!(bookie.fence(ledgers[1]), Ok(()), "a full bookie fences");

        bookie.faults.set(&[]);
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None, "{calls:?} {path}");
        for entry in 5..8 {
            bookie.add(ledgers[0], entry, false).unwrap();
        }
        assert_eq!(bookie.add(ledgers[1], 8, false), Err(Refusal::Fenced));
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        assert!(bookie.engine().is_fenced(LedgerId::new(ledgers[1]).unwrap()));
        assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0, "everything was flushed");
    }
}

/// Where a flush takes a file descriptor and there is none: that passes, so it waits as for space and costs no directory.
#[test]
fn a_flush_without_file_descriptors_waits_and_goes_on() {
    for (dirs, calls, path) in [
        (1, &["create"][..], ".elog"),
        // Read back before the commit.
        (1, &["open"], ".elog"),
        (1, &["sync_dir"], "ledgers0"),
        (2, &["create", "open"], "ledgers1/0"),
    ] {
        let mut bookie = Bookie::new(dirs);
        let ledgers = bookie.ledgers();
        for ledger in &ledgers {
            bookie.add(*ledger, 0, false).unwrap();
        }
        let before = bookie.logs();
        bookie.faults.set(&[without_descriptor(calls, path)]);
        bookie.flush();
        assert!(bookie.faults.hits() > 0, "{calls:?} {path}: nothing was injected");
        for _ in 0..5 {
            bookie.tend();
            let status = bookie.engine().status();
            assert!(status.waits_for_descriptor.is_some(), "{calls:?} {path}: {status:?}");
            assert_eq!(status.waits_for_space, None, "no volume is full");
            assert!(status.failed.is_none() && status.directories_failed.is_empty(), "{status:?}");
        }
        assert!(bookie.faults.hits() >= 5, "{calls:?} {path}: tried again");
        assert!(bookie.logs() < before + dirs, "{calls:?} {path}: attempts pile up");
        bookie.check_acked();

        bookie.faults.set(&[]);
        bookie.tend();
        assert_eq!(bookie.engine().status().waits(), None, "{calls:?} {path}");
        bookie.add(ledgers[0], 1, false).unwrap();
        bookie.flush();
        bookie.restart();
        assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0, "everything was flushed");
    }
}

/// The state table asks for its blocks before it writes: without them only its commit fails, and it is opened again.
/// There are enough ledgers for it to grow.
#[test]
fn a_state_table_without_space_waits_and_goes_on() {
    let mut bookie = Bookie::new(2);
    bookie.faults.set(&[full(&["allocate"], "state.redb")]);
    let mut next = 0;
    while bookie.faults.hits() == 0 {
        assert!(next < 60_000, "the table never grew");
        for _ in 0..3000 {
            let (ledger, waiter) = (LedgerId::new(next).unwrap(), Box::new(|_| ()));
            bookie.engine().fence(ledger, KEY, waiter);
            next += 1;
        }
        bookie.drive();
        bookie.flush();
    }
    assert!(bookie.engine().status().waits().is_some());
    assert_eq!(bookie.add(next, 0, false), Err(Refusal::ReadOnly));
    bookie.tend();
    assert!(bookie.faults.hits() > 0, "the same again");
    bookie.faults.set(&[]);
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None);
    bookie.add(next, 0, false).unwrap();
    bookie.flush();
    bookie.restart();
    for ledger in (0..next).step_by(97) {
        assert!(bookie.engine().is_fenced(LedgerId::new(ledger).unwrap()), "{ledger}");
    }
}
