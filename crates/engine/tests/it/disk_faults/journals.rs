//! Journals that fail, or can have no further file: fences hold, and find room.

use super::*;

/// R4, IB4: a journal that failed takes no fences, so they go to the state table, and hold after a restart, for a
/// ledger with entries and for an unknown one. No other request is acknowledged.
#[test]
fn fences_go_to_the_state_table_when_the_journal_failed() {
    for dirs in [1, 2] {
        let mut bookie = Bookie::new(dirs);
        let ledgers = bookie.ledgers();
        bookie.add(ledgers[0], 0, false).unwrap();
        bookie.faults.set(&[broken(&["write"], "journal")]);
        assert_eq!(bookie.add(ledgers[0], 1, false), Err(Refusal::ReadOnly));
        assert!(bookie.engine().status().failed.is_some());
        let unknown = 1_000_000;
        for ledger in [ledgers[0], unknown, ledgers[0]] {
            assert_eq!(bookie.fence(ledger), Ok(()));
            assert!(bookie.engine().is_fenced(LedgerId::new(ledger).unwrap()));
        }
        let (sender, receiver) = sync_channel(1);
        let wrong = MasterKey::new([9; 20]);
        bookie.engine().fence(
            LedgerId::new(unknown).unwrap(),
            wrong,
            Box::new(move |o| sender.send(o).unwrap()),
        );
        bookie.tend();
        assert_eq!(receiver.try_recv(), Ok(Err(Refusal::WrongKey)));
        assert_eq!(bookie.read(ledgers[0], 1), Err(Refusal::NoEntry));
        bookie.restart();
        for ledger in [ledgers[0], unknown] {
            assert!(bookie.engine().is_fenced(LedgerId::new(ledger).unwrap()), "{ledger}");
            assert_eq!(bookie.add(ledger, 5, false), Err(Refusal::Fenced));
        }
    }
}

/// When the state table fails as well, the fence is refused: never a lie.
#[test]
fn a_fence_that_nothing_can_keep_is_an_error() {
    let mut bookie = Bookie::new(1);
    bookie.faults.set(&[broken(&["write", "sync"], "")]);
    assert_eq!(bookie.add(1, 0, false), Err(Refusal::ReadOnly));
    assert_eq!(bookie.fence(2), Err(Refusal::Io));
    assert_eq!(bookie.fence(2), Err(Refusal::Io));
    bookie.restart();
}

/// A ticket that was out when the journal failed is flushed before a fence is committed, or it would take it back.
#[test]
fn a_direct_fence_waits_for_the_flush_under_way() {
    let mut bookie = Bookie::new(1);
    bookie.add(1, 0, false).unwrap();
    let machine = bookie.machine.as_mut().unwrap();
    machine.want_freeze();
    let in_flight = machine.journals[0].cut().unwrap();
    let written = machine.journals[0].write(&in_flight);
    let ticket = machine.journals[0].finish(in_flight, written).freeze.unwrap();
    bookie.faults.set(&[broken(&["write"], "journal")]);
    assert_eq!(bookie.add(1, 1, false), Err(Refusal::ReadOnly));
    let (sender, receiver) = sync_channel(1);
    bookie.engine().fence(LedgerId::new(1).unwrap(), KEY, Box::new(move |o| sender.send(o).unwrap()));
    bookie.tend();
    assert!(receiver.try_recv().is_err(), "not before the flush");
    let _ = bookie.machine.as_mut().unwrap().flushing.flush(ticket).unwrap();
    bookie.tend();
    assert_eq!(receiver.try_recv(), Ok(Ok(())));
    bookie.restart();
    assert!(bookie.engine().is_fenced(LedgerId::new(1).unwrap()));
}

/// R39: no further journal file can be made. Flushes give files back, so adds go on in turn; when they cannot, adds are
/// refused and fences are not; the bookie starts on the full volume; a file is made as soon as there is space.
#[test]
fn a_full_journal_volume_goes_on_with_what_it_has() {
    let mut bookie = Bookie::new(1);
    let ledgers = bookie.ledgers();
    let mut entry = 0;
    let mut add = |bookie: &mut Bookie| {
        entry += 1;
        bookie.add(ledgers[0], entry, false)
    };
    // Three files of 1 MiB, of which one is free at the end.
    for _ in 0..600 {
        add(&mut bookie).unwrap();
    }
    bookie.flush();
    let files = |bookie: &Bookie| std::fs::read_dir(bookie.dir.path().join("journal")).unwrap().count();
    let before = files(&bookie);
    bookie.faults.set(&[full(&["create", "allocate"], "journal/")]);
    for _ in 0..2000 {
        add(&mut bookie).unwrap();
    }
    assert!(bookie.faults.hits() > 0, "it never wanted a further file");
    assert_eq!(files(&bookie), before, "nothing is left of files that were not made");

    // Without flushes nothing comes back: adds are refused, and what is kept back is for fences.
    bookie.faults.set(&[full(&["create", "allocate"], "journal/"), full(&["write"], ".elog")]);
    bookie.flush();
    for ledger in 0..200 {
        assert_eq!(bookie.fence(1_000_000 + ledger), Ok(()));
        assert_eq!(add(&mut bookie), Err(Refusal::ReadOnly));
    }
    bookie.faults.set(&[full(&["create", "allocate"], "journal/")]);
    bookie.open().unwrap();
    bookie.check_acked();
    assert_eq!(bookie.fence(2_000_000), Ok(()));
    bookie.faults.set(&[]);
    // As the idle journal does.
    bookie.machine.as_mut().unwrap().journals[0].seal();
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None);
    add(&mut bookie).unwrap();
    bookie.restart();
}

/// Requests fences until 1,000 are answered or wait, with the group behind each with which a journal goes idle. Gives how many were
/// answered.
fn fence_until_full(bookie: &mut Bookie) -> Arc<AtomicU64> {
    let answered = Arc::new(AtomicU64::new(0));
    for fenced in 0..1000 {
        let answered = answered.clone();
        let count = move |outcome| {
            assert_eq!(outcome, Ok(()));
            answered.fetch_add(1, Ordering::SeqCst);
        };
        bookie.engine().fence(LedgerId::new(2_000_000 + fenced).unwrap(), KEY, Box::new(count));
        bookie.drive();
        bookie.machine.as_mut().unwrap().journals[0].seal();
    }
    assert!((1..1000).contains(&answered.load(Ordering::SeqCst)), "{answered:?}");
    assert_eq!(bookie.engine().status().failed, None);
    answered
}

/// R39: a volume that is full, or a process without descriptors, before a journal's first file is. It has a second one
/// by then, which takes adds, then fences; when that is full too, fences wait.
#[test]
fn a_young_journal_has_a_file_for_a_full_volume() {
    // A descriptor is needed to sync a directory, too.
    let exhausted = without_descriptor(&["create", "reopen", "open", "sync_dir"], "/journal");
    for rule in [full(&["create", "allocate"], "journal/"), exhausted] {
        let mut bookie = Bookie::new(1);
        let ledger = bookie.ledgers()[0];
        bookie.add(ledger, 0, false).unwrap();
        // Without flushes, which would give files back.
        bookie.faults.set(&[rule.clone(), full(&["write"], ".elog")]);
        let refusal = (1..2000).find_map(|entry| bookie.add(ledger, entry, false).err());
        assert_eq!(refusal, Some(Refusal::ReadOnly), "it wants a third file");
        let answered = fence_until_full(&mut bookie);
        bookie.faults.set(&[]);
        bookie.tend();
        bookie.machine.as_mut().unwrap().journals[0].seal();
        bookie.drive();
        assert_eq!(answered.load(Ordering::SeqCst), 1000);

        // A file that a flush frees, when there is no descriptor for it, is free after the next one.
        let stats = |bookie: &Bookie| bookie.engine().journal_stats()[0];
        let mut entries = 3000..6000;
        bookie.flush();
        let written = stats(&bookie).written_bytes;
        while stats(&bookie).written_bytes < written + (3 << 19) {
            bookie.add(ledger, entries.next().unwrap(), false).unwrap();
        }
        bookie.faults.set(&[without_descriptor(&["reopen"], "journal/")]);
        bookie.faults.hits();
        bookie.flush();
        assert!(bookie.faults.hits() > 0);
        bookie.faults.set(&[]);
        for _ in 0..2 {
            bookie.add(ledger, entries.next().unwrap(), false).unwrap();
            bookie.flush();
        }
        bookie.add(ledger, entries.next().unwrap(), false).unwrap();
        let stats = stats(&bookie);
        assert_eq!(stats.files_free, stats.files - 1, "all but the one that is written: {stats:?}");
        bookie.check_acked();
        bookie.restart();
    }
}

/// The first group of a start needs neither space nor a descriptor: its file and the names of all files were made durable before.
/// A start whose journal can have no file waits for one.
#[test]
fn the_first_group_of_a_start_finds_a_file() {
    let exhausted = without_descriptor(&["create", "reopen", "open", "sync_dir"], "/journal");
    for rule in [full(&["create", "allocate"], "journal/"), exhausted] {
        let mut bookie = Bookie::new(1);
        let ledger = bookie.ledgers()[0];
        for entry in 0..3 {
            bookie.faults.set(std::slice::from_ref(&rule));
            bookie.add(ledger, entry, false).unwrap();
            assert_eq!(bookie.engine().status().failed, None);
            bookie.restart();
        }
    }
    let mut bookie = Bookie::new(1);
    let ledger = bookie.ledgers()[0];
    for file in std::fs::read_dir(bookie.dir.path().join("journal")).unwrap() {
        RealDisk::new().remove(&file.unwrap().path()).unwrap();
    }
    for rule in [without_descriptor(&["create"], "/journal"), full(&["create", "allocate"], "journal/")] {
        bookie.faults.set(&[rule]);
        bookie.open().unwrap();
        assert_eq!(bookie.add(ledger, 0, false), Err(Refusal::ReadOnly));
        assert_eq!(bookie.engine().status().failed, None);
    }
    bookie.faults.set(&[]);
    bookie.machine.as_mut().unwrap().journals[0].seal();
    bookie.add(ledger, 0, false).unwrap();
    bookie.restart();
}

/// R39: a volume that is full as soon as the journal has its first file. Fences go there and wait when it is full.
#[test]
fn a_journal_with_one_file_does_not_fail_for_want_of_another() {
    let mut bookie = Bookie::new(1);
    bookie.faults.set(&[full(&["create", "allocate"], "journal-0001")]);
    // A flush frees nothing of the only file.
    let added = (0..1000).take_while(|entry| bookie.add(1, *entry, false).is_ok()).count() as i64;
    assert!((50..150).contains(&added), "{added}: half of it is for adds");
    assert_eq!(bookie.add(1, added, false), Err(Refusal::ReadOnly));
    let answered = fence_until_full(&mut bookie);
    bookie.faults.set(&[]);
    bookie.machine.as_mut().unwrap().journals[0].seal();
    bookie.drive();
    assert_eq!(answered.load(Ordering::SeqCst), 1000);
    bookie.add(1, added, false).unwrap();
    bookie.check_acked();
    bookie.restart();
    assert!(bookie.engine().is_fenced(LedgerId::new(2_000_999).unwrap()));
}

/// J11, P11: a journal that keeps a file back stops at its cap, too, while a flush is under way. When that flush finds no
/// space, the file that is kept back takes what has formed, and fences.
#[test]
fn at_the_cap_of_the_journal_a_flush_without_space_holds_no_fence_back() {
    let mut bookie = Bookie::of(1, 1, 3, 4 << 20);
    let ledger = bookie.ledgers()[0];
    let files = |bookie: &Bookie| std::fs::read_dir(bookie.dir.path().join("journal")).unwrap().count();
    for entry in 0..600 {
        bookie.add(ledger, entry, false).unwrap();
    }
    bookie.flush();
    assert!(bookie.machine.as_ref().unwrap().engine.stats().flushes > 1, "files were used again");

    bookie.machine.as_ref().unwrap().want_freeze();
    let inbox = Inbox::default();
    let (mut ticket, mut entry) = (None, 600);
    loop {
        place(&bookie.engine(), ledger, entry, false);
        ticket = bookie.groups(0, &inbox).or(ticket);
        if inbox.0.lock().pop().is_none() {
            break;
        }
        bookie.acked.push((ledger, entry));
        entry += 1;
        assert!(files(&bookie) <= 4, "it takes what it may have");
    }
    assert!(bookie.engine().stats().journal_file_waits > 0, "the last one waits");

    bookie.faults.set(&[full(&["write"], ".elog")]);
    assert!(bookie.machine.as_mut().unwrap().flushing.flush(ticket.unwrap()).is_err());
    assert_eq!(bookie.drive().pop().expect("the group that formed is answered").result, Ok(()));
    bookie.acked.push((ledger, entry));
    for ledger in 0..20 {
        assert_eq!(bookie.fence(1_000_000 + ledger), Ok(()));
    }
    assert_eq!(bookie.add(ledger, entry + 1, false), Err(Refusal::ReadOnly));
    bookie.faults.set(&[]);
    bookie.tend();
    assert_eq!(bookie.engine().status().waits(), None);
    for entry in entry + 1..entry + 600 {
        bookie.add(ledger, entry, false).unwrap();
        assert!(files(&bookie) <= 4);
    }
    bookie.restart();
}

/// A volume with little free space.
struct Little(RealDisk);
impl DiskLayer for Little {
    fn beneath(&self) -> &dyn Disk {
        &self.0
    }
    fn space(&self, dir: &Path) -> io::Result<bindery_io::Space> {
        Ok(bindery_io::Space { free: 1 << 20, ..self.0.space(dir)? })
    }
}

/// J11: files that are not made ahead, for want of space, do not count: their slots are given back.
#[test]
fn a_journal_file_that_is_not_made_ahead_does_not_count() {
    let mut bookie = Bookie::of(1, 1, 3, 4 << 20);
    bookie.add(1, 0, false).unwrap();
    bookie.machine = None;
    let config = EngineConfig { journal_files_preallocated: 2, ..bookie.config() };
    let disk: Arc<dyn Disk> = Arc::new(Little(RealDisk::new()));
    let machine =
        Machine::open(config, disk.clone(), Arc::new(bindery_io::SystemClock::new()), Arc::new(SystemRandom));
    let machine = machine.unwrap();
    let engine = machine.engine.clone();
    let threads = machine.start(disk, Arc::new(Inbox::default()));
    for entry in 1..50 {
        place(&engine, 1, entry, false);
        std::thread::sleep(Duration::from_millis(5));
    }
    let found = std::fs::read_dir(bookie.dir.path().join("journal")).unwrap().count();
    assert_eq!(engine.journal_stats()[0].files, found as u64);
    threads.stop().unwrap();
}
