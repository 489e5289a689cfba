//! Scrubs, collections and compactions on disks that are full, cannot be read, or give no descriptor.

use super::*;

/// A log that is dropped while a scrub is in the middle of it gives its blocks back: no reader has its file open.
#[test]
fn a_scrub_keeps_no_file_of_a_dropped_log_open() {
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[0];
    // More than the scrub looks at in one step.
    for entry in 0..300 {
        bookie.add(ledger, entry, false).unwrap();
    }
    bookie.flush();
    bookie.tend();
    let dir = bookie.dir.path().to_owned();
    let open_logs = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let paths = open.filter_map(|file| std::fs::read_link(file.path()).ok());
        paths.filter(|path| path.starts_with(&dir) && path.to_string_lossy().contains(".elog")).count()
    };
    assert_eq!(open_logs(), 2, "one for readers, one of the scrub");
    bookie.engine().remove_ledger(LedgerId::new(ledger).unwrap(), Box::new(|_| ()));
    bookie.flush();
    bookie.engine().want_collection(WantedCollection::default());
    for _ in 0..5 {
        bookie.tend();
    }
    assert_eq!((bookie.logs(), open_logs()), (0, 0));
}

/// A scrub that gets no descriptor, or no memory for its reads, has found nothing: it waits, and checks the log later.
#[test]
fn a_scrub_without_file_descriptors_finds_no_damage() {
    const ENOMEM: i32 = 12;
    for (rule, why) in [
        (without_descriptor(&["open"], ".elog"), "open"),
        (Rule { os_error: Some(ENOMEM), ..full(&["read"], ".elog") }, "read"),
    ] {
        let mut bookie = Bookie::new(1);
        let ledger = bookie.ledgers()[0];
        for entry in 0..5 {
            bookie.add(ledger, entry, false).unwrap();
        }
        bookie.flush();
        bookie.engine().want_scrub();
        bookie.faults.hits();
        bookie.faults.set(&[rule]);
        for _ in 0..20 {
            bookie.tend();
        }
        assert!(bookie.faults.hits() > 1, "{why}: tried again");
        let status = bookie.engine().scrub_status();
        assert_eq!((status.findings, status.damaged_logs), (0, 0), "{why}: {status:?}");
        assert!(status.is_running, "{why}: the pass is not over");

        bookie.faults.set(&[]);
        for _ in 0..20 {
            bookie.tend();
        }
        let status = bookie.engine().scrub_status();
        let last = status.last.unwrap();
        assert_eq!((last.findings, last.entries), (0, 5), "{why}");
        bookie.check_acked();
    }
}

/// Space invariant 8: a directory whose state table finds no space keeps its dead log, and the memory of removed ledgers
/// stays; the other directory is collected in the same collection.
#[test]
fn a_directory_without_space_keeps_no_other_from_being_collected() {
    let mut bookie = Bookie::new(2);
    let ledgers = bookie.ledgers();
    for ledger in &ledgers[..2] {
        bookie.add(*ledger, 0, false).unwrap();
    }
    bookie.flush();
    // Of the second directory, and forgotten from the first one before.
    let second = ledgers[1] + 1;
    let forgotten = (second..).find(|l| bookie.engine().shard_of(LedgerId::new(*l).unwrap()) == 1).unwrap();
    bookie.add(forgotten, 0, false).unwrap();
    bookie.acked.clear();
    for ledger in [ledgers[0], ledgers[1], forgotten] {
        bookie.engine().remove_ledger(LedgerId::new(ledger).unwrap(), Box::new(|_| ()));
    }
    bookie.flush();
    assert_eq!(bookie.logs(), 2);

    // Its table wants to grow and cannot, nor can it be opened again.
    bookie.faults.set(&[full(&["allocate"], "ledgers0/state.redb")]);
    let mut next = 10_000;
    while bookie.faults.hits() == 0 {
        assert!(next < 100_000, "the table never grew");
        for ledger in next..next + 3000 {
            bookie.engine().fence(LedgerId::new(ledger).unwrap(), KEY, Box::new(|_| ()));
        }
        next += 3000;
        bookie.drive();
        bookie.flush();
    }
    bookie.faults.set(&[full(&["read"], "ledgers0/state.redb")]);
    bookie.engine().want_collection(WantedCollection::default());
    for _ in 0..5 {
        bookie.tend();
    }
    assert!(bookie.faults.hits() > 0);
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_dropped), (1, 1), "{space:?}");
    assert!(space.errors >= 2, "to forget and to drop: {space:?}");
    let status = bookie.engine().status();
    assert!(status.failed.is_none() && status.directories_failed.is_empty(), "{status:?}");

    bookie.faults.set(&[]);
    bookie.engine().want_collection(WantedCollection::default());
    for _ in 0..5 {
        bookie.tend();
    }
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_dropped), (2, 2), "{space:?}");
    bookie.restart();
    for ledger in [ledgers[0], ledgers[1], forgotten] {
        assert_eq!(bookie.read(ledger, 0), Err(Refusal::NoLedger));
    }
}

/// Space invariant 9: whoever asks for a collection again and again, as a full bookie does, keeps none from ending.
#[test]
fn a_collection_ends_although_others_are_asked_for_meanwhile() {
    let mut bookie = Bookie::new(2);
    for ledger in bookie.ledgers() {
        bookie.add(ledger, 0, false).unwrap();
    }
    bookie.flush();
    for _ in 0..20 {
        let wanted = WantedCollection { minor: true, major: true };
        bookie.engine().want_collection(wanted);
        bookie.engine().want_collection_after_removals(wanted);
        bookie.tend();
    }
    let space = bookie.engine().space_status();
    assert!(space.collections >= 5, "{space:?}");
    // A request for one that does as much has no effect, and no other collection follows.
    for _ in 0..10 {
        bookie.tend();
    }
    assert!(!bookie.engine().is_collection_wanted());
    let before = bookie.engine().space_status().collections;
    bookie.engine().want_collection(WantedCollection { minor: false, major: true });
    bookie.tend();
    bookie.engine().want_collection(WantedCollection { minor: true, major: false });
    for _ in 0..10 {
        bookie.tend();
    }
    assert_eq!(bookie.engine().space_status().collections, before + 1);
}

/// Space invariant 9: a full volume gets space back before all logs are weighed.
#[test]
fn logs_found_dead_go_before_all_are_weighed() {
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[0];
    let count = 80;
    for entry in 0..count {
        bookie.add(ledger, entry, false).unwrap();
        bookie.flush();
    }
    bookie.acked.clear();
    assert_eq!(bookie.logs(), count as usize);
    bookie.engine().remove_ledger(LedgerId::new(ledger).unwrap(), Box::new(|_| ()));
    bookie.flush();
    bookie.engine().want_collection(WantedCollection::default());
    // A step ends after some time, too, so how many there are depends on the machine.
    for _ in 0..1000 {
        bookie.tend();
        if bookie.engine().space_status().logs_dropped > 0 {
            break;
        }
    }
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_dropped), (0, 32), "{space:?}");
    for _ in 0..1000 {
        bookie.tend();
        if bookie.engine().space_status().collections > 0 {
            break;
        }
    }
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_dropped), (1, count as u64), "{space:?}");
    bookie.restart();
}

/// Space invariant 4: with places that are looked up on disk, a disk that cannot be read says nothing about the logs of
/// the others. They are compacted, with what it may have a newer copy of, and it alone is reported.
#[test]
fn logs_beside_a_directory_that_cannot_be_read_are_compacted() {
    let mut bookie = Bookie::new(2);
    bookie.is_paged = true;
    bookie.open().unwrap();
    let ledgers = bookie.ledgers();
    let (kept, removed) = (ledgers[0], ledgers[2]);
    for entry in 0..40 {
        bookie.add(removed, entry, false).unwrap();
    }
    bookie.acked.clear();
    for entry in 0..10 {
        bookie.add(kept, entry, false).unwrap();
        // Some runs, of which each would ask.
        if entry % 3 == 0 {
            bookie.flush();
        }
    }
    bookie.flush();
    // The same ledger, later, on the other disk.
    bookie.engine().set_full_directories(&[true, false]);
    for entry in 0..15 {
        bookie.add(kept, entry, false).unwrap();
    }
    bookie.flush();
    bookie.engine().remove_ledger(LedgerId::new(removed).unwrap(), Box::new(|_| ()));
    bookie.flush();
    assert_eq!(bookie.logs(), 5);

    bookie.faults.set(&[broken(&["read"], "ledgers1/0")]);
    bookie.engine().want_collection(WantedCollection { minor: false, major: true });
    for _ in 0..20 {
        bookie.tend();
    }
    let hits = bookie.faults.hits();
    assert!(hits > 0, "nothing was injected");
    assert!(hits < 6, "{hits} reads of what is known to fail");
    let space = bookie.engine().space_status();
    assert_eq!((space.collections, space.logs_rewritten), (1, 1), "{space:?}");
    let blamed: Vec<&String> = space.skipped.iter().map(|(log, _)| log).collect();
    assert!(matches!(blamed[..], [log] if log.contains("ledgers1/")), "{space:?}");
    bookie.faults.set(&[]);
    bookie.check_acked();
    bookie.restart();
}
