//! Disks that are full, fail to read, read short, or hold what nobody wrote.

use super::*;
use bindery_io::OpenMode;
use bindery_journal::inspect;
use bindery_sim::disk::FaultPlan;
use std::io::IoSlice;

fn overwrite(disk: &SimDisk, path: &Path, offset: u64, bytes: &[u8]) {
    let file = disk.open(path, OpenMode::CreateBuffered).unwrap();
    file.write_all_at(&mut [IoSlice::new(bytes)], offset).unwrap();
    file.sync().unwrap();
}

fn log_path(bookie: &Bookie, index: usize) -> PathBuf {
    Path::new("/data/ledgers").join(&bookie.log_files()[index])
}

fn length(disk: &SimDisk, path: &Path) -> u64 {
    disk.open(path, OpenMode::Read).unwrap().len().unwrap()
}

/// BookKeeper #4607, #4658: a log whose header was never written, or taken from a reused buffer, said that it held no
/// ledgers, so it was deleted. Here what does not verify stops the start, and no file goes.
#[test]
fn r2_bk_4607_a_log_that_says_nothing_is_not_an_empty_log() {
    for from_end in [None, Some(4096)] {
        let mut bookie = fresh();
        bookie.add(1, 0, 200, false);
        bookie.group();
        bookie.flush();
        let (path, disk) = (log_path(&bookie, 0), bookie.disk.clone());
        drop(bookie);
        let offset = from_end.map_or(0, |back| length(&disk, &path) - back);
        overwrite(&disk, &path, offset, &[0; 4096]);
        let error = open(config(), &disk).err().unwrap().to_string();
        assert!(error.contains("0000000000000000.elog"), "{error}");
        assert!(disk.exists(&path).unwrap(), "it is still there");
    }
}

/// The other half of #4607: what cannot be read proves nothing. An older copy stays while the newer one's log is
/// unreadable.
#[test]
fn r2_bk_4607_an_unreadable_log_takes_the_place_of_no_other() {
    let mut bookie = fresh();
    for size in [200, 300] {
        for e in [0, 2, 3, 7] {
            bookie.add(1, e, size, false);
        }
        bookie.group();
        bookie.flush();
    }
    let newer = log_path(&bookie, 1);
    bookie.disk.fail_reads(&newer, 0, length(&bookie.disk, &newer) as usize).unwrap();
    bookie.collect();
    assert_eq!(bookie.log_files().len(), 2, "{:?}", bookie.machine.engine.space_status());
}

/// BookKeeper #2908: the index had the entry, its log could not be read, the answer was "no such entry", and a recovery
/// cut the ledger there.
#[test]
fn r7_bk_2908_a_log_that_cannot_be_read_is_an_error_and_no_negative() {
    let mut bookie = fresh();
    for e in 0..3 {
        bookie.add(1, e, 200, false);
    }
    bookie.group();
    bookie.flush();
    let path = log_path(&bookie, 0);
    bookie.disk.fail_reads(&path, 0, length(&bookie.disk, &path) as usize).unwrap();
    for e in 0..3 {
        assert_eq!(bookie.read(1, EntryRef::At(entry(e))), Err(Refusal::Io), "entry {e}");
    }
    assert_eq!(bookie.read(1, EntryRef::Last), Err(Refusal::Io));
    match bookie.machine.engine.list_entries(ledger(1)) {
        Err(refusal) => assert_eq!(refusal, Refusal::Io),
        Ok(runs) => assert_eq!((runs[0].first, runs[0].last), (entry(0), entry(2)), "known without reading"),
    }
    // A fence is answered as a read is: an error, not "no such entry".
    let fenced = bookie.fence(1, KEY);
    bookie.group();
    assert_eq!(*fenced.lock(), Some(Ok(())));
    assert_eq!(bookie.read(1, EntryRef::Last), Err(Refusal::Io));
    assert_eq!(bookie.read(1, EntryRef::At(entry(7))), Err(Refusal::NoEntry), "outside of every run: proven");
}

/// BookKeeper #4841: a short direct read counted as full, and the block with the bytes of another place was kept.
#[test]
fn r24_bk_4841_short_reads_give_the_right_bytes() {
    let mut bookie = fresh();
    let plan = FaultPlan { short_read: 0.9, ..FaultPlan::default() };
    for e in 0..20 {
        bookie.add(1, e, 100 + 700 * e as usize, false);
        bookie.group();
        if e % 8 == 7 {
            bookie.flush();
        }
    }
    let check = |bookie: &Bookie| {
        for e in (0..20).chain((0..20).rev()) {
            assert_eq!(bookie.read(1, EntryRef::At(entry(e))), Ok(body(1, e, 100 + 700 * e as usize)));
        }
    };
    bookie.disk.set_faults(plan.clone());
    check(&bookie);
    // A start reads logs, state table and journal.
    let left = Arc::new(bookie.disk.durable_image());
    left.set_faults(plan);
    check(&start(left));
}

/// BookKeeper #4640: the read-only state was persisted, and outlived the full disk it came from.
#[test]
fn r38_bk_4640_read_only_is_not_remembered() {
    let mut bookie = fresh();
    bookie.add(1, 0, 10, false);
    bookie.group();
    bookie.machine.engine.set_read_only(true);
    bookie.add(1, 1, 10, false);
    bookie.group();
    assert_eq!(bookie.results(), [(0, Ok(())), (1, Err(Refusal::ReadOnly))]);
    bookie.flush();
    let mut bookie = bookie.power_cut();
    assert!(!bookie.machine.engine.status().is_read_only);
    bookie.add(1, 1, 10, false);
    bookie.group();
    assert_eq!(bookie.results(), [(1, Ok(()))]);
}

/// BookKeeper #3150, #2103: with the journal's volume full the bookie crashed at each start. Here nothing acknowledged
/// is lost however often it is started, a start that cannot go on says why, and one with room goes on by itself. A full volume
/// fails nothing.
#[test]
fn r39_bk_3150_a_full_volume_loses_nothing_and_needs_nothing_but_room() {
    let mut bookie = fresh();
    let space = bookie.disk.space(Path::new("/data")).unwrap();
    bookie.disk.set_capacity(Some(space.total - space.free + (100 << 10)));
    let mut acked = Vec::new();
    for e in 0..200 {
        bookie.add(1, e, 3000, false);
        bookie.group();
        acked.extend(bookie.results().into_iter().filter(|(_, result)| result.is_ok()).map(|(e, _)| e));
    }
    let status = bookie.machine.engine.status();
    assert!(status.failed.is_none() && status.waits_for_space.is_some());
    assert!(!acked.is_empty() && acked.len() < 200, "{} {status:?}", acked.len());
    let check = |bookie: &Bookie| {
        for e in &acked {
            assert_eq!(bookie.read(1, EntryRef::At(entry(*e))), Ok(body(1, *e, 3000)));
        }
    };
    check(&bookie);
    let disk = Arc::new(bookie.disk.durable_image());
    for _ in 0..5 {
        match open(config(), &disk) {
            Ok(bookie) => check(&bookie),
            Err(error) => assert!(error.to_string().contains("os error 28"), "{error}"),
        }
    }
    disk.set_capacity(None);
    let mut bookie = start(disk);
    check(&bookie);
    bookie.add(1, 500, 10, false);
    bookie.group();
    assert_eq!(bookie.results(), [(500, Ok(()))]);
}

/// BookKeeper #2178, #3949: a journal with a negative length or position made a crash loop. Here the end of a journal
/// may be anything, and nonsense with a group behind it is named, the same at each start.
#[test]
fn r45_bk_2178_nonsense_in_a_journal_is_a_torn_tail_or_named() {
    let mut bookie = fresh();
    for e in 0..3 {
        bookie.add(1, e, 100, false);
        bookie.group();
    }
    let name = bookie.disk.list(Path::new("/data/journal")).unwrap().remove(0).name;
    let path = Path::new("/data/journal").join(name);
    let mut offsets = Vec::new();
    let disk: Arc<dyn Disk> = bookie.disk.clone();
    inspect::walk(&disk, &path, |item| {
        if let inspect::Item::Group(group, _) = item {
            offsets.push(group.offset);
        }
    })
    .unwrap();
    assert_eq!(offsets.len(), 3);
    // Header length, number of parts, file id, sequence, offset, length, and offset and length of the first part.
    for field in [8, 12, 16, 32, 40, 48, 64, 68] {
        for (group, offset) in offsets.iter().enumerate() {
            let disk = Arc::new(bookie.disk.durable_image());
            overwrite(&disk, &path, offset + field, &[0xff; 4]);
            let said: Vec<_> = (0..2).map(|_| open(config(), &disk).err().map(|e| e.to_string())).collect();
            assert_eq!(said[0], said[1], "group {group}, field {field}");
            match &said[0] {
                None => {
                    assert_eq!(group, 2, "field {field}: only the last group may be taken for a torn tail");
                    let bookie = start(disk);
                    assert_eq!(bookie.read(1, EntryRef::Last), Ok(body(1, 1, 100)));
                }
                Some(said) => {
                    assert_ne!(group, 2, "field {field}: {said}");
                    assert!(said.contains(&format!("damaged at offset {offset}")), "{said}");
                    assert!(said.contains("journal-0000.bjl"), "{said}");
                }
            }
        }
    }
}
