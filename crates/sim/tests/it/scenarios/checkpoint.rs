//! Flushes, marks and what a crash between their steps leaves.

use super::*;
use bindery_storage::{Generation, LedgerDirectory, ReadOnlyDisk, StateTable};

fn two_directories() -> EngineConfig {
    let dirs = (0..2).map(|i| PathBuf::from(format!("/data/ledgers{i}"))).collect();
    EngineConfig { ledger_dirs: dirs, shard_count: 2, ..config() }
}

/// Group of each durable mark of a directory, by journal.
fn marks(disk: &SimDisk, dir: &Path) -> Vec<(u32, u64)> {
    let image: Arc<dyn Disk> = Arc::new(disk.durable_image());
    let image: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(image));
    let (_, recovered) = StateTable::open(&image, dir).unwrap();
    recovered.marks.iter().map(|m| (m.journal, m.mark.group)).collect()
}

/// A ledger of each shard.
fn one_of_each(bookie: &Bookie) -> [i64; 2] {
    let of = |shard| (1..100).find(|id| bookie.machine.engine.shard_of(ledger(*id)) == shard).unwrap();
    [of(0), of(1)]
}

/// BookKeeper #3329: the flush of one ledger directory completed the mark for both; a kill lost what the other one had
/// in memory. Here each directory has its own, and a start replays from the lowest.
#[test]
fn r18_bk_3329_a_crash_between_the_commits_of_two_directories_loses_nothing() {
    let mut between = 0;
    for operations in 0..1000 {
        let mut bookie = start_with(two_directories(), new_disk());
        let ledgers = one_of_each(&bookie);
        for e in 0..3 {
            ledgers.iter().for_each(|id| bookie.add(*id, e, 100, false));
            bookie.group();
        }
        bookie.disk.crash_after(operations);
        bookie.flush();
        let is_over = !bookie.disk.is_off();
        for seed in 0..3 {
            let left = Arc::new(bookie.disk.crash(&SeededRandom::new(operations * 10 + seed)));
            let [one, two] = [0, 1].map(|i| marks(&left, Path::new(&format!("/data/ledgers{i}"))));
            between += u64::from(one != two);
            let restarted = start_with(two_directories(), left);
            for (id, e) in ledgers.into_iter().flat_map(|id| (0..3).map(move |e| (id, e))) {
                let found = restarted.read(id, EntryRef::At(entry(e)));
                assert_eq!(found, Ok(body(id, e, 100)), "crash at {operations}, seed {seed}");
            }
        }
        if is_over {
            assert!(between > 0, "no crash fell between the two commits");
            return;
        }
    }
    panic!("the flush does not end");
}

/// BookKeeper #4105: of two checkpoints that raced the older one wrote its mark last, and the journal behind it was
/// gone. Here a directory that is ahead keeps its mark while a replay in several flushes brings the other one up.
#[test]
fn r19_bk_4105_a_directory_that_is_ahead_keeps_its_mark() {
    let large = EngineConfig { write_pool_bytes: 8 << 20, ..two_directories() };
    let small = EngineConfig { write_pool_bytes: 512 << 10, ..two_directories() };
    let dirs = [0, 1].map(|i| PathBuf::from(format!("/data/ledgers{i}")));
    let mut is_reached = false;
    for operations in 0..1000 {
        let mut bookie = start_with(large.clone(), new_disk());
        let ledgers = one_of_each(&bookie);
        for e in 0..60 {
            ledgers.iter().for_each(|id| bookie.add(*id, e, 8000, false));
            bookie.group();
        }
        bookie.disk.crash_after(operations);
        bookie.flush();
        assert!(bookie.disk.is_off(), "no crash fell between the two commits");
        let left = Arc::new(bookie.disk.durable_image());
        let before = dirs.each_ref().map(|dir| marks(&left, dir));
        if before[0] == before[1] {
            continue;
        }
        is_reached = true;
        let restarted = start_with(small.clone(), left);
        for (dir, before) in dirs.iter().zip(&before) {
            let after = marks(&restarted.disk, dir);
            assert!(after >= *before, "{}: {before:?} went to {after:?}", dir.display());
        }
        for (id, e) in ledgers.into_iter().flat_map(|id| (0..60).map(move |e| (id, e))) {
            assert_eq!(restarted.read(id, EntryRef::At(entry(e))), Ok(body(id, e, 8000)));
        }
        break;
    }
    assert!(is_reached);
}

/// BookKeeper #1345: what came between the flush of rotated logs and that of the current one was missed, and the mark
/// moved over it. Here a freeze takes what is before its group, its mark ends there, and no other freeze comes before
/// the flush is back.
#[test]
fn r29_bk_1345_what_comes_during_a_flush_is_behind_its_mark() {
    let mut bookie = fresh();
    bookie.add(1, 0, 100, false);
    bookie.group();
    let ticket = bookie.begin_flush().unwrap();
    // The journal takes new files meanwhile.
    for e in 1..8 {
        bookie.add(1, e, 9000, false);
        bookie.group();
        assert!(bookie.begin_flush().is_none(), "one at a time");
    }
    bookie.end_flush(ticket).unwrap();
    assert_eq!(marks(&bookie.disk, Path::new("/data/ledgers")), [(0, 1)]);
    let bookie = bookie.power_cut();
    assert_eq!(bookie.read(1, EntryRef::At(entry(0))), Ok(body(1, 0, 100)));
    for e in 1..8 {
        assert_eq!(bookie.read(1, EntryRef::At(entry(e))), Ok(body(1, e, 9000)));
    }
}

/// BookKeeper #2983: the mark moved before the journal file was forced. Here there is nothing to flush before the group
/// of the freeze is durable, and none at all when it fails.
#[test]
fn r30_bk_2983_a_group_that_failed_freezes_nothing() {
    let mut bookie = fresh();
    bookie.add(1, 0, 100, false);
    bookie.group();
    bookie.flush();
    let before = marks(&bookie.disk, Path::new("/data/ledgers"));
    bookie.add(1, 1, 100, false);
    bookie.disk.order_fault(FaultKind::SyncErrorNewData, None);
    assert!(bookie.begin_flush().is_none());
    assert_eq!(bookie.results().last(), Some(&(1, Err(Refusal::ReadOnly))));
    bookie.flush();
    assert_eq!(marks(&bookie.disk, Path::new("/data/ledgers")), before);
    let bookie = bookie.power_cut();
    assert_eq!(bookie.read(1, EntryRef::At(entry(0))), Ok(body(1, 0, 100)));
}

/// BookKeeper #4855: a flush wrote a part, failed, and the file was used on, with every later place too early. Here the
/// file is not touched again, nothing of it counts, and a restart flushes again from the journal.
#[test]
fn r3_bk_4855_a_flush_that_fails_half_way_leaves_nothing_that_counts() {
    let second = Path::new("/data/ledgers/0000000000000001.elog");
    let faults = [
        FaultKind::WriteError,
        FaultKind::SyncNoSpace,
        FaultKind::SyncErrorOldData,
        FaultKind::SyncErrorNewData,
    ];
    for fault in faults {
        let mut bookie = fresh();
        for e in 0..6 {
            if e == 3 {
                bookie.flush();
            }
            bookie.add(1, e, 3000, false);
            bookie.group();
        }
        bookie.disk.order_fault(fault, Some(second));
        bookie.flush();
        // A full disk only makes the bookie wait, without adds; any other failure is final.
        let status = bookie.machine.engine.status();
        let is_full = fault == FaultKind::SyncNoSpace;
        assert_eq!(
            (status.waits_for_space.is_some(), status.failed.is_some()),
            (is_full, !is_full),
            "{fault:?}"
        );
        bookie.results();
        bookie.add(1, 9, 10, false);
        bookie.group();
        assert_eq!(bookie.results(), [(9, Err(Refusal::ReadOnly))], "{fault:?}");
        let check = |bookie: &Bookie| {
            for e in 0..6 {
                let found = bookie.read(1, EntryRef::At(entry(e)));
                assert_eq!(found, Ok(body(1, e, 3000)), "{fault:?}");
            }
        };
        check(&bookie);
        for seed in 0..4 {
            let left = Arc::new(bookie.disk.crash(&SeededRandom::new(seed)));
            check(&start(left));
        }
    }
}

/// BookKeeper #1527: an explicit LAC was lost at a restart and readers saw theirs go back.
#[test]
fn r40_bk_1527_an_explicit_lac_outlives_restarts() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.add(1, 1, 10, false);
    let lac_body = |lac: i64| [1i64, lac, 0].map(i64::to_be_bytes).concat();
    // The later one counts, and the older one that arrives behind it changes nothing.
    for lac in [1, 0] {
        let stored = Outcome::default();
        let body = lac_body(lac);
        bookie.machine.engine.write_lac(ledger(1), KEY, EntryId::new(lac), &body, waiter(&stored));
        bookie.group();
        assert_eq!(*stored.lock(), Some(Ok(())));
    }
    for round in 0..4 {
        let engine = &bookie.machine.engine;
        assert_eq!(engine.explicit_lac(ledger(1)), Ok(Some(lac_body(1))), "round {round}");
        assert_eq!(engine.last_add_confirmed(ledger(1)), Ok(EntryId::new(1)), "round {round}");
        if round == 2 {
            bookie.flush();
        }
        bookie = bookie.power_cut();
    }
}

/// IB25: of two bodies with the same LAC the first stays, also when its record is in the directory that was the ledger's
/// own when there were fewer shards and the second came after the ledger had moved.
#[test]
fn the_same_explicit_lac_again_in_another_directory_changes_nothing() {
    let with_shards = |shard_count| EngineConfig { shard_count, ..two_directories() };
    let mut bookie = start_with(with_shards(2), new_disk());
    let three = start_with(with_shards(3), new_disk());
    let dir = |bookie: &Bookie, id: &i64| bookie.machine.engine.shard_of(ledger(*id)) % 2;
    // Directories are read in order: both ways count.
    for first in [0, 1] {
        let moves = |id: &i64| dir(&bookie, id) == first && dir(&three, id) != first;
        let moves = (0..100).find(moves).unwrap();
        let write = |bookie: &mut Bookie, body: &[u8]| {
            let stored = Outcome::default();
            let engine = bookie.machine.engine.clone();
            engine.write_lac(ledger(moves), KEY, EntryId::new(2), body, waiter(&stored));
            bookie.group();
            assert_eq!(*stored.lock(), Some(Ok(())));
        };
        let body = |number: i64| [moves, 2, number].map(i64::to_be_bytes).concat();
        let shown = |bookie: &Bookie| bookie.machine.engine.explicit_lac(ledger(moves));
        write(&mut bookie, &body(1));
        bookie.flush();
        let mut moved = start_with(with_shards(3), Arc::new(bookie.disk.durable_image()));
        write(&mut moved, &body(2));
        let seen = shown(&moved);
        // Once from the journal, once from both tables.
        for _ in 0..2 {
            moved = start_with(with_shards(3), Arc::new(moved.disk.durable_image()));
            assert_eq!(shown(&moved), seen, "first in directory {first}");
        }
        assert_eq!(seen, Ok(Some(body(1))));
        bookie = start_with(with_shards(2), new_disk());
    }
}

/// BookKeeper BK-584, BK-500: a fence bit was lost when the ledger's state was evicted, or at a restart.
#[test]
fn r41_bk_500_a_fence_outlives_flushes_and_restarts() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    let fenced = bookie.fence(1, KEY);
    bookie.group();
    assert_eq!(*fenced.lock(), Some(Ok(())));
    for round in 0..4 {
        // Other ledgers push it out of every cache there may be, and the journal files with it are used again.
        for id in 100..140 {
            bookie.add(id, round, 2000, false);
            bookie.group();
        }
        bookie.flush();
        bookie = bookie.power_cut();
        bookie.add(1, 1, 10, false);
        bookie.add(1, round + 2, 10, true);
        bookie.group();
        let results = bookie.results();
        assert_eq!(results, [(1, Err(Refusal::Fenced)), (round + 2, Ok(()))], "round {round}");
        assert_eq!(*bookie.fence(1, OTHER_KEY).lock(), Some(Err(Refusal::WrongKey)), "round {round}");
    }
}

/// BookKeeper #4803: after a crash in a compaction the recovered log got its id in decimal, and readers looked for hex.
/// Here the name is fixed when the file is made, and the ids of this test have letters in them.
#[test]
fn r23_bk_4803_a_log_has_one_name_through_a_crash_in_its_compaction() {
    let prepare = || {
        let mut bookie = fresh();
        for id in 1..=11 {
            bookie.add(id, 0, 200, false);
            bookie.add(90 + id, 0, 4000, false);
            bookie.group();
            bookie.flush();
        }
        (91..=101).for_each(|id| drop(bookie.remove(id)));
        bookie.group();
        bookie.flush();
        bookie
    };
    let mut outputs = 0;
    for operations in 0..1000 {
        let mut bookie = prepare();
        bookie.disk.crash_after(operations);
        bookie.collect();
        let is_over = !bookie.disk.is_off();
        let left = Arc::new(bookie.disk.crash(&SeededRandom::new(operations)));
        let restarted = start(left);
        for name in restarted.log_files() {
            let id = u64::from_str_radix(name.trim_end_matches(".elog"), 16).unwrap();
            assert_eq!(name, format!("{id:016x}.elog"));
            outputs += u64::from(id > 10);
        }
        for id in 1..=11 {
            let found = restarted.read(id, EntryRef::Last);
            assert_eq!(found, Ok(body(id, 0, 200)), "crash at {operations}");
        }
        if is_over {
            assert!(outputs > 3, "{outputs} outputs survived");
            return;
        }
    }
    panic!("the compaction does not end");
}

/// Ledger directory invariant 6, found by seed 20869: a replaced log was unlinked while an output was written. The sync of the
/// directory behind that failed and was passed over, the output's own one said yes, and a power cut took its name. A
/// log whose name a failed sync had fails with it, and unlinking syncs nothing.
#[test]
fn a_failed_sync_of_a_directory_fails_all_logs_that_it_had_to_name() {
    let sim = new_disk();
    let (disk, dir): (Arc<dyn Disk>, _) = (sim.clone(), Path::new("/data/ledgers"));
    disk.create_dir_all(dir).unwrap();
    let mut directory = LedgerDirectory::open(&disk, dir).unwrap().directory;
    let mut begin = || directory.begin_log(Generation(1)).unwrap();
    let (first, second) = (begin(), begin());
    sim.order_fault(FaultKind::SyncDirError, Some(dir));
    assert!(first.finish().is_err());
    assert!(second.finish().is_err(), "the sync that worked says nothing of a name from before");
    let third = begin().finish().unwrap();
    sim.order_fault(FaultKind::SyncDirError, Some(dir));
    directory.discard(third.log_id).unwrap();
    assert!(directory.begin_log(Generation(1)).unwrap().finish().is_err(), "the fault is still to come");
}

/// The sync of a commit fails, the kernel calls its pages clean and goes on showing them, the process is started again on
/// the same machine, and the power is cut later. The commit never reached the medium, so the start goes back to the one
/// before, and the journal still has what that one does not cover.
#[test]
fn a_commit_whose_sync_failed_is_not_believed_from_the_page_cache() {
    use FaultKind as F;
    let table = Path::new("/data/ledgers/state.redb");
    let mut is_shown = false;
    for fault in [F::SyncErrorNewData, F::SyncNoSpace, F::SyncErrorOldData] {
        for seed in 0..6 {
            let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(seed)));
            disk.create_dir_all(Path::new("/data")).unwrap();
            disk.sync_dir(Path::new("/")).unwrap();
            let mut bookie = start(disk);
            for e in 0..4 {
                bookie.add(1, e, 9000, false);
                bookie.group();
            }
            let before = marks(&bookie.disk, Path::new("/data/ledgers"));
            let ticket = bookie.begin_flush().unwrap();
            bookie.disk.order_fault(fault, Some(table));
            bookie.end_flush(ticket).unwrap_err();
            let shown = |disk: &Arc<SimDisk>| {
                let of_cache = bindery_io::canary::CachedDisk(disk.clone());
                let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(Arc::new(of_cache)));
                StateTable::open(&disk, Path::new("/data/ledgers"))
                    .is_ok_and(|(_, found)| found.marks.iter().any(|mark| mark.mark.group > before[0].1))
            };
            is_shown |= shown(&bookie.disk);
            // The process only.
            let disk = bookie.disk.clone();
            drop(bookie);
            let bookie = start(disk);
            for e in 0..4 {
                assert_eq!(
                    bookie.read(1, EntryRef::At(entry(e))),
                    Ok(body(1, e, 9000)),
                    "{fault:?}, seed {seed}"
                );
            }
            // And now the machine, once before anything else was written.
            let left = Arc::new(bookie.disk.crash(&SeededRandom::new(seed)));
            let bookie = start(left);
            for e in 0..4 {
                assert_eq!(
                    bookie.read(1, EntryRef::At(entry(e))),
                    Ok(body(1, e, 9000)),
                    "{fault:?}, seed {seed}"
                );
            }
        }
    }
    assert!(is_shown, "the page cache never showed the commit that failed");
}
