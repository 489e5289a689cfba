//! A journal that does not sync by itself.

use super::*;

fn unsynced() -> EngineConfig {
    EngineConfig { journal_sync: false, ..config() }
}

/// Where the groups of the one journal file begin.
fn groups(disk: &Arc<SimDisk>) -> (PathBuf, Vec<u64>) {
    let path = PathBuf::from("/data/journal/journal-0000.bjl");
    let mut offsets = Vec::new();
    let disk: Arc<dyn Disk> = disk.clone();
    bindery_journal::inspect::walk(&disk, &path, |item| {
        if let bindery_journal::inspect::Item::Group(group, _) = item {
            offsets.push(group.offset);
        }
    })
    .unwrap();
    (path, offsets)
}

/// Entry 0, entry 0 again, entry 1, each in a group of its own.
fn three_groups(is_forced: bool) -> (Bookie, Outcome) {
    let mut bookie = start_with(unsynced(), new_disk());
    let forced = Outcome::default();
    for (number, (e, size)) in [(0, 10), (0, 20), (1, 10)].into_iter().enumerate() {
        bookie.add(1, e, size, false);
        if is_forced && number == 1 {
            bookie.machine.engine.force(ledger(1), waiter(&forced));
        }
        bookie.group();
    }
    (bookie, forced)
}

/// Found by seed 1771554: a forced group that rots was taken for one that a power cut had swallowed, and the content
/// before it was shown. Each group says which ones before it are durable, so it is damage now.
#[test]
fn a_forced_group_that_rots_is_damage_and_not_a_hole() {
    for damaged in [0, 1] {
        let (bookie, forced) = three_groups(true);
        assert_eq!(*forced.lock(), Some(Ok(())));
        let (path, offsets) = groups(&bookie.disk);
        bookie.disk.flip_bits(&path, offsets[damaged] + 8, 1).unwrap();
        let error = open(unsynced(), &bookie.disk).err().unwrap().to_string();
        assert!(error.contains("damaged at offset") && error.contains("was durable"), "{error}");
    }
}

/// A group that no FORCE covers may be a hole: the start goes on behind it.
#[test]
fn an_unforced_group_that_is_lost_is_a_hole() {
    let (bookie, _) = three_groups(false);
    let (path, offsets) = groups(&bookie.disk);
    bookie.disk.flip_bits(&path, offsets[1] + 8, 1).unwrap();
    let bookie = start_with(unsynced(), bookie.disk);
    assert_eq!(bookie.machine.replayed.unsynced_holes, 1);
    assert_eq!(bookie.read(1, EntryRef::At(entry(0))), Ok(body(1, 0, 10)));
    assert_eq!(bookie.read(1, EntryRef::At(entry(1))), Ok(body(1, 1, 10)));
}

/// Found by seed 300: numbers that were raised over a hole without any group behind it were not committed, and the next
/// file began behind a gap.
#[test]
fn numbers_raised_over_a_hole_are_committed() {
    let (bookie, _) = three_groups(false);
    let (path, offsets) = groups(&bookie.disk);
    // The first two groups are gone; the third began, and did not arrive whole.
    bookie.disk.flip_bits(&path, offsets[0], 1).unwrap();
    bookie.disk.flip_bits(&path, offsets[1], 1).unwrap();
    bookie.disk.flip_bits(&path, offsets[2] + 200, 1).unwrap();
    let mut bookie = start_with(unsynced(), bookie.disk);
    assert_eq!((bookie.machine.replayed.groups, bookie.machine.replayed.last_group), (0, 2));
    bookie.add(1, 5, 10, false);
    bookie.group();
    let disk = bookie.disk.clone();
    drop(bookie);
    let bookie = start_with(unsynced(), disk);
    assert_eq!(bookie.read(1, EntryRef::At(entry(5))), Ok(body(1, 5, 10)));
}

/// BookKeeper #3884: with the journal's sync off an acknowledgement waited for a flush that never came. Here it leaves
/// with its group, and a FORCE with nothing to write is answered as well.
#[test]
fn r31_bk_3884_without_sync_an_add_is_answered_with_its_group() {
    let mut bookie = start_with(unsynced(), new_disk());
    bookie.add(1, 0, 10, false);
    bookie.group();
    assert_eq!(bookie.results(), [(0, Ok(()))]);
    assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 0, 10)), "and shown");
    for round in 0..2 {
        let forced = Outcome::default();
        bookie.machine.engine.force(ledger(1), waiter(&forced));
        bookie.group();
        assert_eq!(*forced.lock(), Some(Ok(())), "round {round}");
    }
    let disk = Arc::new(bookie.disk.durable_image());
    let bookie = start_with(unsynced(), disk);
    assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 0, 10)), "forced, so durable");
}

/// Held invariant 1: a process ends, and the next one finds no space for what its journal holds and shows it from memory. From
/// then on it is durable, as a flush would have made it: no power cut takes it back, or leaves a gap before what follows.
#[test]
fn what_is_shown_while_a_start_waits_for_space_is_durable() {
    let (bookie, _) = three_groups(false);
    let disk = bookie.disk.clone();
    drop(bookie);
    disk.order_fault(FaultKind::SyncNoSpace, Some(Path::new("/data/ledgers/0000000000000000.elog")));
    let mut bookie = start_with(unsynced(), disk);
    assert!(bookie.machine.engine.status().waits_for_space.is_some());
    let check = |bookie: &Bookie| {
        assert_eq!(bookie.read(1, EntryRef::At(entry(0))), Ok(body(1, 0, 20)));
        assert_eq!(bookie.read(1, EntryRef::At(entry(1))), Ok(body(1, 1, 10)));
    };
    check(&bookie);
    let (fenced, forced) = (bookie.fence(1, KEY), Outcome::default());
    bookie.machine.engine.force(ledger(1), waiter(&forced));
    bookie.group();
    assert_eq!((*fenced.lock(), *forced.lock()), (Some(Ok(())), Some(Ok(()))));
    let bookie = start_with(unsynced(), Arc::new(bookie.disk.durable_image()));
    check(&bookie);
    assert!(bookie.machine.engine.is_fenced(ledger(1)));
}
