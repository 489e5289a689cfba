//! One ledger directory of several that fails or is full: the others take what it would have.

use super::*;

/// One bad directory of several, at each of its write sites: the others take what it would have, acknowledged entries
/// stay readable, marks move on, and the restart finds everything.
#[test]
fn the_others_go_on_without_a_failed_directory() {
    for calls in [&["create"][..], &["write"], &["sync"], &["sync_dir"]] {
        let mut bookie = Bookie::new(3);
        let ledgers = bookie.ledgers();
        for entry in 0..4 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
        }
        bookie.flush();
        for entry in 4..8 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
        }
        bookie.faults.set(&[broken(calls, "ledgers1")]);
        bookie.flush();
        assert!(bookie.faults.hits() > 0, "{calls:?}: nothing was injected");
        let status = bookie.engine().status();
        assert_eq!(status.failed, None, "{calls:?}");
        assert_eq!(status.directories_failed.keys().copied().collect::<Vec<_>>(), [1], "{calls:?}");
        bookie.check_acked();
        // Enough to use journal files again, which only the marks of the others allow.
        for entry in 8..400 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
            if entry % 20 == 0 {
                bookie.flush();
                bookie.tend();
            }
        }
        bookie.check_acked();
        assert_eq!(bookie.fence(ledgers[1]), Ok(()));
        // Killed: the directory is back, and knows less than the others.
        bookie.restart();
        assert!(bookie.engine().is_fenced(LedgerId::new(ledgers[1]).unwrap()));
        for entry in 400..410 {
            bookie.add(ledgers[0], entry, false).unwrap();
            bookie.add(ledgers[2], entry, false).unwrap();
        }
        bookie.flush();
        bookie.restart();
        // And once more, so that nothing rests on what only that start knew.
        bookie.restart();
    }
}

/// Reads of entries that only the failed directory holds return an I/O error while it cannot be read, and reads of the
/// others go on.
#[test]
fn reads_of_a_failed_directory_are_errors_never_no_such_entry() {
    let mut bookie = Bookie::new(3);
    let ledgers = bookie.ledgers();
    for ledger in &ledgers {
        bookie.add(*ledger, 0, false).unwrap();
    }
    bookie.flush();
    bookie.faults.set(&[broken(&["create", "write", "sync", "read"], "ledgers1")]);
    bookie.add(ledgers[1], 1, false).unwrap();
    bookie.flush();
    assert_eq!(bookie.read(ledgers[1], 0), Err(Refusal::Io));
    assert!(bookie.read(ledgers[1], 1).is_ok(), "what came later is on another one");
    assert!(bookie.read(ledgers[0], 0).is_ok() && bookie.read(ledgers[2], 0).is_ok());
    assert_eq!(bookie.read(ledgers[0], 1), Err(Refusal::NoEntry));
    bookie.restart();
}

/// With the last directory the bookie stops taking adds, as with its only one.
#[test]
fn without_any_directory_left_the_engine_is_latched() {
    let mut bookie = Bookie::new(2);
    let ledgers = bookie.ledgers();
    bookie.add(ledgers[0], 0, false).unwrap();
    bookie.faults.set(&[broken(&["write"], ".elog")]);
    bookie.flush();
    assert!(bookie.faults.hits() >= 2);
    let status = bookie.engine().status();
    assert!(status.failed.is_some() && status.directories_failed.len() == 2, "{status:?}");
    assert_eq!(bookie.add(ledgers[0], 1, true), Err(Refusal::ReadOnly));
    assert_eq!(bookie.fence(ledgers[0]), Ok(()), "the journal still takes fences");
    bookie.check_acked();
    bookie.restart();
    assert!(bookie.engine().is_fenced(LedgerId::new(ledgers[0]).unwrap()));
}

/// A directory that is nearly full gets its states and marks, and no entries.
#[test]
fn entries_go_past_a_full_directory() {
    let mut bookie = Bookie::new(3);
    let ledgers = bookie.ledgers();
    bookie.engine().set_full_directories(&[false, true, false]);
    for ledger in &ledgers {
        bookie.add(*ledger, 0, false).unwrap();
    }
    bookie.flush();
    let logs =
        |i: usize| std::fs::read_dir(bookie.dir.path().join(format!("ledgers{i}"))).unwrap().count() - 1;
    assert_eq!([logs(0), logs(1), logs(2)], [1, 0, 1]);
    bookie.check_acked();
    bookie.restart();
    assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0);
}

/// A directory that fails while a ticket waits for space in it gets nothing of that ticket, whatever it would say now.
#[test]
fn a_ticket_that_waits_goes_past_a_directory_that_failed_meanwhile() {
    let mut bookie = Bookie::of(3, 2, 6, 0);
    let ledgers = bookie.ledgers();
    for ledger in &ledgers {
        bookie.add(*ledger, 0, false).unwrap();
    }
    bookie.flush();
    for ledger in &ledgers {
        bookie.add(*ledger, 1, false).unwrap();
    }
    bookie.machine.as_ref().unwrap().want_freeze();
    bookie.faults.set(&[full(&["create"], "ledgers2")]);
    bookie.drive_journal(0);
    assert!(bookie.engine().status().waits().is_some());
    bookie.faults.set(&[broken(&["write"], "ledgers2")]);
    bookie.drive_journal(1);
    assert!(bookie.engine().status().directories_failed.contains_key(&2));
    bookie.faults.set(&[]);
    let logs = |bookie: &Bookie| {
        let names = std::fs::read_dir(bookie.dir.path().join("ledgers2")).unwrap();
        names.filter(|n| n.as_ref().unwrap().file_name().to_string_lossy().ends_with(".elog")).count()
    };
    let before = logs(&bookie);
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None, "the others took it");
    assert_eq!(logs(&bookie), before, "nothing goes to a directory that failed");
    bookie.check_acked();
    bookie.restart();
}
