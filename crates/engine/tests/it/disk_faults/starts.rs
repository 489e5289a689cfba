//! Starts on disks without space: the bookie serves the records of its journal, which wait for room.

use super::*;

/// Held invariants 1 and 3: the records of the journal cannot be flushed at a start, and the bookie still comes up,
/// again and again. It takes no adds, serves what it has, fences, and flushes when there is room.
#[test]
fn a_start_without_space_serves_and_waits() {
    for (dirs, journals, calls, path) in [
        (1, 1, &["create"][..], ".elog"),
        (1, 1, &["write"], ".elog"),
        (2, 1, &["sync"], ".elog"),
        (2, 1, &["write"], "ledgers1/0"),
        (2, 2, &["write"], ".elog"),
    ] {
        let mut bookie = Bookie::of(dirs, journals, 4, 0);
        let ledgers = bookie.ledgers();
        for entry in 0..5 {
            for ledger in &ledgers {
                bookie.add(*ledger, entry, false).unwrap();
            }
        }
        assert_eq!(bookie.fence(ledgers[1]), Ok(()));
        bookie.faults.set(&[full(calls, path)]);
        for start in 1..=3 {
            bookie.open().unwrap();
            assert!(bookie.faults.hits() > 0, "{calls:?} {path}: nothing was injected");
            let status = bookie.engine().status();
            assert!(status.waits().is_some() && status.failed.is_none(), "{status:?}");
            bookie.check_acked();
            bookie.tend();
            for is_high_priority in [false, true] {
                assert_eq!(bookie.add(ledgers[0], 99, is_high_priority), Err(Refusal::ReadOnly));
            }
            for fenced in 1..start {
                assert!(bookie.engine().is_fenced(LedgerId::new(1_000_000 + fenced).unwrap()));
            }
            assert!(bookie.engine().is_fenced(LedgerId::new(ledgers[1]).unwrap()));
            assert_eq!(bookie.fence(1_000_000 + start), Ok(()), "a full bookie fences");
        }
        bookie.faults.set(&[]);
        for _ in 0..journals {
            bookie.tend();
        }
        assert_eq!(bookie.engine().status().waits(), None, "{calls:?} {path}");
        bookie.add(ledgers[0], 5, false).unwrap();
        assert_eq!(bookie.add(ledgers[1], 5, false), Err(Refusal::Fenced));
        bookie.flush();
        bookie.check_acked();
        bookie.restart();
        assert_eq!(bookie.machine.as_ref().unwrap().replayed.records, 0, "everything was flushed");
        for fenced in (1..=3).map(|start| 1_000_000 + start).chain([ledgers[1]]) {
            assert!(bookie.engine().is_fenced(LedgerId::new(fenced).unwrap()));
        }
    }
}

/// Without a journal file either, a start serves, and a fence waits until one can be made: it does not fail the journal, and
/// adds behind it are refused aloud.
#[test]
fn a_start_without_space_for_a_journal_file_lets_fences_wait() {
    let mut bookie = Bookie::new(1);
    // With its first file no other is made.
    bookie.faults.set(&[full(&["create", "allocate"], "journal-0001")]);
    bookie.add(1, 0, false).unwrap();
    bookie.faults.set(&[full(&["create", "allocate"], "journal/"), full(&["write"], ".elog")]);
    bookie.open().unwrap();
    bookie.check_acked();
    let (sender, receiver) = sync_channel(1);
    bookie.engine().fence(LedgerId::new(1).unwrap(), KEY, Box::new(move |o| sender.send(o).unwrap()));
    for entry in 1..4 {
        assert_eq!(bookie.add(1, entry, false), Err(Refusal::ReadOnly), "answered while the fence waits");
        assert!(bookie.drive().is_empty());
        bookie.machine.as_mut().unwrap().journals[0].seal();
        bookie.tend();
    }
    assert!(receiver.try_recv().is_err(), "nothing can hold it");
    assert_eq!(bookie.engine().status().failed, None);
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.machine.as_mut().unwrap().journals[0].seal();
    bookie.drive();
    assert_eq!(receiver.try_recv(), Ok(Ok(())));
    bookie.open().unwrap();
    assert!(bookie.engine().is_fenced(LedgerId::new(1).unwrap()));
    bookie.restart();
}

/// Held invariant 2: records that the layout of now would put elsewhere are not kept in memory, where later records of their
/// ledgers would get into another journal. The start says so, and with the layout of before it goes on.
#[test]
fn a_start_without_space_keeps_its_layout() {
    let mut bookie = Bookie::of(1, 2, 4, 0);
    for ledger in bookie.ledgers() {
        bookie.add(ledger, 0, false).unwrap();
    }
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.shards = 5;
    let refused = bookie.open().unwrap_err();
    assert!(matches!(refused, OpenError::NoSpace(_)), "{refused}");
    assert!(refused.to_string().contains("cores that it had"), "{refused}");
    bookie.shards = 4;
    bookie.open().unwrap();
    bookie.check_acked();
    bookie.restart();
}

/// Held invariant 4: of a journal without sync a power cut took the end, which one directory has and the other, full, lacks.
/// Nothing may be written behind that gap before the mark of every directory is: the next start would take it for damage.
#[test]
fn a_start_without_space_does_not_wait_behind_a_lost_end() {
    let mut bookie = Bookie::new(2);
    bookie.journal_sync = false;
    bookie.open().unwrap();
    let ledgers = bookie.ledgers();
    for entry in 0..5 {
        for ledger in &ledgers {
            bookie.add(*ledger, entry, false).unwrap();
        }
    }
    let is_full = [full(&["write"], "ledgers1/0")];
    bookie.faults.set(&is_full);
    bookie.flush();
    assert!(bookie.engine().status().waits().is_some());
    bookie.machine = None;
    let path = bookie.dir.path().join("journal/journal-0000.bjl");
    let (disk, mut groups): (Arc<dyn Disk>, _) = (Arc::new(RealDisk::new()), Vec::new());
    inspect::walk(&disk, &path, |item| {
        if let inspect::Item::Group(group, _) = item {
            groups.push(group.offset);
        }
    })
    .unwrap();
    let file = disk.open(&path, OpenMode::CreateBuffered).unwrap();
    for offset in &groups[groups.len() - 2..] {
        file.write_all_at(&mut [io::IoSlice::new(&[0; 4096])], *offset).unwrap();
    }
    for _ in 0..2 {
        let refused = bookie.open().unwrap_err();
        assert!(matches!(refused, OpenError::NoSpace(_)), "{refused}");
        assert!(refused.to_string().contains("power cut"), "{refused}");
    }
    bookie.faults.set(&[]);
    bookie.open().unwrap();
    for entry in 0..4 {
        for ledger in &ledgers {
            assert!(bookie.read(*ledger, entry).is_ok());
        }
    }
    bookie.fence(ledgers[0]).unwrap();
    bookie.open().unwrap();
}

/// Memory is bounded: a journal that holds more than the pool takes is not replayed on a full disk.
#[test]
fn a_start_without_space_holds_what_the_pool_takes() {
    let mut bookie = Bookie::new(1);
    bookie.write_pool_bytes = 16 << 20;
    bookie.open().unwrap();
    let ledger = bookie.ledgers()[0];
    let inbox = Inbox::default();
    for entry in 0..2000 {
        place(&bookie.engine(), ledger, entry, false);
        // The flush never comes.
        drop(bookie.groups(0, &inbox));
        bookie.acked.push((ledger, entry));
    }
    assert!(inbox.0.lock().iter().all(|done| done.result.is_ok()));
    bookie.faults.set(&[full(&["write"], ".elog")]);
    bookie.write_pool_bytes = 3 << 20;
    let refused = bookie.open().unwrap_err();
    assert!(refused.to_string().contains("as much memory as before"), "{refused}");
    bookie.write_pool_bytes = 16 << 20;
    bookie.open().unwrap();
    bookie.check_acked();
    bookie.restart();
}
