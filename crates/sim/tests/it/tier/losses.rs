//! Last reconciled entries, extents and trims when a directory, a part of the journal or a page is lost, and at the bounds.

use super::*;

/// The power goes, and of one ledger directory nothing is left: it comes back empty.
fn without_directory(bookie: Bookie, directory: usize, config: EngineConfig) -> Bookie {
    let left = bookie.disk.crash(&SeededRandom::new(3));
    let dir = &bookie.config.ledger_dirs[directory];
    for file in left.list(dir).unwrap() {
        left.remove(&dir.join(&file.name)).unwrap();
    }
    left.sync_dir(dir).unwrap();
    start(Arc::new(left), config)
}

/// A ledger whose state is in this directory of two, while nothing is wrong.
fn ledger_of(bookie: &Bookie, directory: usize) -> i64 {
    (1..).find(|id| bookie.machine.engine.shard_of(ledger(*id)) % 2 == directory).unwrap()
}

/// Invariant 2, T2: a replay takes no update across a gap, so that the tierer sends again what went with a directory.
#[test]
fn a_replay_takes_no_update_across_a_gap() {
    let mut bookie = fresh_with(config(2, 2));
    let id = ledger_of(&bookie, 0);
    (0..10).for_each(|e| bookie.add(id, e, 100));
    assert_eq!(bookie.reconcile(&[update(id, &[(0, 4, 1)])])[0].result, Ok(()));
    bookie.flush();
    bookie.add(id, 10, 100);
    assert_eq!(bookie.reconcile(&[update(id, &[(5, 9, 2)])]), [done(id, 9)]);
    let mut bookie = without_directory(bookie, 0, config(2, 2));
    assert_eq!(
        bookie.machine.engine.presence(ledger(id)),
        LedgerPresence::Known,
        "an entry came from the journal"
    );
    assert_eq!((bookie.register(id), bookie.extents(id, 0)), (done(id, -1), vec![]));
    assert_eq!(bookie.reconcile(&[update(id, &[(0, 9, 3)])]), [done(id, 9)]);
    assert_eq!(bookie.power_cut().extents(id, 0), [(0, 9, 3)]);
}

/// Invariants 2 and 4: the state of a ledger moved to another directory, and its extents went with the former one. Register
/// and trim go too, and what was let go is unknown until it is here again, never denied.
#[test]
fn register_and_trim_go_with_the_extents() {
    let mut bookie = fresh();
    for id in 1..8 {
        (0..10).for_each(|e| bookie.add(id, e, 100));
        bookie.group();
        bookie.reconcile(&[update(id, &[(0, 4, 1)])]);
        bookie.trim(id, 4).unwrap();
    }
    bookie.flush();
    let mut bookie = bookie.power_cut_to(config(2, 2));
    let (here, moved) = (ledger_of(&bookie, 0), ledger_of(&bookie, 1));
    for id in [here, moved] {
        assert_eq!(bookie.extents(id, 0), [(0, 4, 1)], "a directory more takes nothing away");
        assert_eq!(bookie.reconcile(&[update(id, &[(5, 9, 2)])]), [done(id, 9)]);
    }
    bookie.flush();
    let mut bookie = without_directory(bookie, 0, config(2, 2));
    for _ in 0..2 {
        assert_eq!(
            bookie.machine.engine.presence(ledger(here)),
            LedgerPresence::Unknown,
            "it went as a whole"
        );
        assert_eq!((bookie.register(moved), bookie.extents(moved, 0)), (done(moved, -1), vec![]));
        assert_eq!(bookie.machine.engine.tiered(ledger(moved)), None);
        assert_eq!(bookie.read(moved, EntryRef::At(entry(3))), Err(Refusal::Unknown));
        assert_eq!(
            bookie.machine.engine.held_entries(ledger(moved), EntryId::FIRST, EntryId::MAX).unwrap(),
            []
        );
        bookie = bookie.power_cut();
    }
    assert_eq!(bookie.reconcile(&[update(moved, &[(0, 9, 3)])]), [done(moved, 9)]);
    assert_eq!(bookie.power_cut().extents(moved, 0), [(0, 9, 3)]);
}

/// Invariant 1, T1: a replay of a removal makes the number of the life grow; a flush in the middle of it commits that number
/// with a mark behind the removal. Updates of the life in the journal still count after a second start.
#[test]
fn a_replay_that_was_cut_short_loses_no_update() {
    let large = EngineConfig { write_pool_bytes: 16 << 20, ..config(1, 1) };
    let mut bookie = with_entries(fresh_with(large), 1, 5);
    bookie.machine.engine.remove_ledger(ledger(1), Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    bookie.group();
    bookie.machine.engine.revive_ledger(ledger(1), KEY, Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    bookie.group();
    for e in 0..40 {
        bookie.add(2, e, 15 << 10);
        bookie.group();
    }
    assert_eq!(bookie.reconcile(&[update(1, &[(0, 9, 1)])]), [done(1, 9)]);
    // The table gets the life of now; its mark stays before the removal.
    bookie.disk.set_faults(FaultPlan { write_error: 1.0, ..FaultPlan::default() });
    let _lost = bookie.ask(&[update(1, &[(0, 9, 3)])]);
    assert!(!bookie.try_group(), "the journal fails");
    bookie.disk.set_faults(FaultPlan::default());
    bookie.machine.engine.fence(ledger(1), KEY, Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    bookie.machine.flushing.tend().unwrap();
    // A start with less memory, which flushes again and again while it replays.
    let small = EngineConfig { write_pool_bytes: 256 << 10, ..bookie.config.clone() };
    let left = bookie.disk.crash(&SeededRandom::new(3));
    let mut cuts = 0;
    for changes in (0..).step_by(5) {
        let disk = Arc::new(left.durable_image());
        disk.crash_after(changes);
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        let opened = Machine::open(small.clone(), disk.clone(), clock, Arc::new(SeededRandom::new(1)));
        let is_through = opened.is_ok();
        drop(opened);
        let mut again = start(Arc::new(disk.crash(&SeededRandom::new(changes))), small.clone());
        assert_eq!(
            (again.register(1), again.extents(1, 0)),
            (done(1, 9), vec![(0, 9, 1)]),
            "cut at {changes}"
        );
        if is_through {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 5, "{cuts}");
}

/// Invariant 1: a fence past the failed journal commits the life after limbo without the update that came in limbo, which
/// the next start takes from the journal.
#[test]
fn a_direct_fence_after_limbo_loses_no_update() {
    let mut bookie = with_entries(fresh(), 1, 10);
    bookie.machine.engine.set_limbo(ledger(1), true, Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    bookie.flush();
    assert_eq!(bookie.reconcile(&[update(1, &[(0, 9, 1)])]), [done(1, 9)]);
    bookie.machine.engine.set_limbo(ledger(1), false, Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    bookie.group();
    bookie.disk.set_faults(FaultPlan { write_error: 1.0, ..FaultPlan::default() });
    let _lost = bookie.ask(&[update(1, &[(0, 9, 3)])]);
    assert!(!bookie.try_group(), "the journal fails");
    bookie.disk.set_faults(FaultPlan::default());
    bookie.machine.engine.fence(ledger(1), KEY, Box::new(|outcome| assert_eq!(outcome, Ok(()))));
    bookie.machine.flushing.tend().unwrap();
    let mut bookie = bookie.power_cut();
    assert!(bookie.machine.engine.is_fenced(ledger(1)));
    assert_eq!((bookie.register(1), bookie.extents(1, 0)), (done(1, 9), vec![(0, 9, 1)]));
}

/// Invariant 4: a copy below the trim that cannot be read any more is as good as none.
#[test]
fn a_damaged_copy_below_the_trim_does_not_hide_object_storage() {
    let mut bookie = with_entries(fresh(), 1, 10);
    bookie.reconcile(&[update(1, &[(0, 4, 1)])]);
    bookie.trim(1, 4).unwrap();
    bookie.flush();
    let dir = bookie.config.ledger_dirs[0].clone();
    let logs = bookie.disk.list(&dir).unwrap().into_iter().filter(|file| !file.name.contains("redb"));
    for log in logs.filter(|file| !file.is_dir) {
        let path = dir.join(&log.name);
        let bytes = bookie.disk.open(&path, bindery_io::OpenMode::Read).unwrap().len().unwrap();
        (64..bytes).step_by(16).for_each(|at| bookie.disk.flip_bits(&path, at, 8).unwrap());
    }
    assert_eq!(bookie.read(1, EntryRef::At(entry(7))), Err(Refusal::Io), "above the trim damage is an error");
    assert_eq!(bookie.tiered_at(1, 3), (0, 4, 1));
}

/// A read of the last entry below a trim is one of object storage, and the LAC stays known here, also on a bookie that has a
/// stripe of the ledger.
#[test]
fn the_last_entry_below_a_trim_is_in_object_storage_and_the_lac_is_known() {
    let mut bookie = fresh();
    (0..10).step_by(2).for_each(|e| bookie.add(1, e, 100));
    bookie.flush();
    bookie.reconcile(&[update(1, &[(0, 9, 1)])]);
    bookie.trim(1, 9).unwrap();
    bookie.flush();
    bookie.collect();
    for _ in 0..2 {
        assert_eq!(bookie.tiered_at(1, 6), (0, 9, 1));
        assert_eq!(bookie.read(1, EntryRef::Last), Err(Refusal::Tiered));
        assert_eq!(bookie.machine.engine.last_add_confirmed(ledger(1)), Ok(Some(entry(7))));
        bookie = bookie.power_cut();
    }
    // A copy behind the trim is the last one, and is here.
    bookie.add(1, 10, 100);
    bookie.flush();
    assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 10, 100)));
}

/// Limits: updates of one ledger that wait for the state table are few, whatever room there is, so that a look-up finds its
/// way through them; a flush gives room.
#[test]
fn updates_of_one_ledger_that_wait_are_few() {
    let mut bookie = fresh_with(EngineConfig { tier_extents_bytes: 64 << 20, ..config(1, 1) });
    bookie.add(1, 0, 10);
    bookie.flush();
    let refused =
        (0..1000).find(|n| bookie.reconcile(&[update(1, &[(*n, *n, *n as u64)])])[0].result.is_err());
    assert_eq!(refused, Some(256));
    bookie.flush();
    assert_eq!(bookie.reconcile(&[update(1, &[(256, 256, 1)])]), [done(1, 256)]);
}

/// Limits: an update that is larger than the room there can ever be is taken in pieces, flush by flush.
#[test]
fn an_update_beyond_the_bound_is_taken_in_pieces() {
    let mut bookie = fresh_with(EngineConfig { tier_extents_bytes: 4 << 10, ..config(1, 1) });
    bookie.add(1, 0, 10);
    bookie.flush();
    let many: Vec<_> = (0..200).map(|n| (n, n, n as u64)).collect();
    let (mut next, mut rounds) = (0, 0);
    while next < 200 {
        let lre = bookie.reconcile(&[update(1, &many[next..])])[0].lre;
        let after = lre.map_or(0, |lre| lre.get() as usize + 1);
        assert!(after > next, "it goes on at {next}");
        (next, rounds) = (after, rounds + 1);
        bookie.flush();
    }
    assert!(rounds > 1);
    assert_eq!(bookie.power_cut().extents(1, 0), many);
}

/// A page of [`bindery_engine::Engine::untrimmed`] is full as long as there are ledgers for it, whatever is on its way.
#[test]
fn a_page_of_ledgers_to_trim_ends_only_with_the_ledgers() {
    let mut bookie = fresh();
    (1..=6).for_each(|id| bookie.add(id, 0, 10));
    bookie.flush();
    (4..=6).for_each(|id| assert_eq!(bookie.reconcile(&[update(id, &[(0, 0, 1)])]), [done(id, 0)]));
    (1..=3).for_each(|id| drop(bookie.ask(&[update(id, &[(0, 0, 1)])])));
    let page = bookie.machine.engine.untrimmed(None, 2);
    assert_eq!(page.iter().map(|(ledger, _)| ledger.get()).collect::<Vec<_>>(), [4, 5]);
}
