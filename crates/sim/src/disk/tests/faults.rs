//! Each kind of fault, by order, and the power cut.

use super::*;
use bindery_io::chunk::AlignedBuf;
use std::io::ErrorKind;

#[test]
fn a_failed_sync_is_followed_by_one_that_works_and_proves_nothing() {
    use FaultKind as F;
    for (kind, error, seen) in [
        (F::SyncErrorNewData, ErrorKind::Other, 2),
        (F::SyncErrorOldData, ErrorKind::Other, 1),
        (F::SyncNoSpace, ErrorKind::StorageFull, 2),
    ] {
        for durable_write in [false, true] {
            let (disk, file) = disk_with_file(config(SectorSize::Bytes512, 0.0), 64 << 10);
            disk.order_fault(kind, Some(Path::new(FILE)));
            let bytes = vec![2; 64 << 10];
            let failed = if durable_write {
                file.write_durable_at(&[IoSlice::new(&bytes)], 0).unwrap_err()
            } else {
                put(&*file, 0, &bytes);
                file.sync().unwrap_err()
            };
            assert!(failed.kind() == error || failed.raw_os_error() == Some(5), "{kind:?}: {failed}");
            let new_sectors = |bytes: &[u8]| bytes.chunks(512).filter(|s| s[0] == 2).count();
            let shown = new_sectors(&read_all(&disk, FILE));
            file.sync().expect("the kernel thinks the pages are clean");
            let durable = new_sectors(&read_all(&disk.durable_image(), FILE));
            assert!((8..64).contains(&durable), "{kind:?}: about a quarter of 128 sectors, not {durable}");
            assert_eq!(shown, if seen == 2 { 128 } else { durable }, "{kind:?}");
            let found = read_all(&disk.crash(&SeededRandom::new(9)), FILE);
            assert_eq!(new_sectors(&found), durable, "{kind:?}: nothing is pending any more");
        }
    }
}

#[test]
fn a_late_sync_error_hits_the_next_sync_in_the_directory() {
    let (disk, file) = disk_with_file(SimDiskConfig::default(), 512);
    let sibling = disk.open(Path::new("/d/g"), OpenMode::CreateBuffered).unwrap();
    put(&*file, 0, &[2; 512]);
    disk.order_fault(FaultKind::SyncErrorNext, None);
    file.sync().unwrap();
    assert_eq!(read_all(&disk.durable_image(), FILE), [2; 512]);
    assert!(sibling.sync().is_err());
    sibling.sync().unwrap();
    file.sync().unwrap();
}

#[test]
fn media_faults_do_what_they_say_and_are_written_down() {
    let (disk, file) = disk_with_file(SimDiskConfig::default(), 16 << 10);
    let path = Path::new(FILE);
    disk.flip_bits(path, 100, 9).unwrap();
    assert_eq!(read_all(&disk, FILE)[99..103], [1, 0xfe, 0, 1]);
    assert_eq!(read_all(&disk.durable_image(), FILE)[100], 0xfe);
    disk.fail_reads(path, 5000, 1).unwrap();
    let mut buf = [0; 10];
    assert_eq!(file.read_at(&mut buf, 4090).unwrap_err().raw_os_error(), Some(5));
    file.read_exact_at(&mut buf, 0).unwrap();
    put(&*file, 4096, &[1; 4096]);
    file.read_exact_at(&mut buf, 4090).expect("a written page can be read again");

    disk.order_fault(FaultKind::LostWrite, Some(path));
    put(&*file, 0, &[7; 512]);
    file.sync().unwrap();
    assert_eq!((read_all(&disk, FILE)[0], read_all(&disk.durable_image(), FILE)[0]), (7, 1));
    let direct = disk.open(path, OpenMode::CreateDirect).unwrap();
    let mut block = AlignedBuf::zeroed(4096);
    block.fill(8);
    disk.order_fault(FaultKind::LostWrite, Some(path));
    put_durable(&*direct, 8192, &block);
    assert_eq!(read_all(&disk, FILE)[8192], 1, "a direct write has no cache that shows it");
    disk.order_fault(FaultKind::MisdirectedWrite, Some(path));
    put_durable(&*direct, 8192, &block);
    let stray = disk.damage().last().unwrap().clone();
    assert_eq!(stray.kind, FaultKind::MisdirectedWrite);
    if stray.bytes.start != 8192 {
        assert_eq!(read_all(&disk.durable_image(), FILE)[stray.bytes.start as usize], 8);
    }
    assert!(disk.damage().len() >= 5);

    disk.order_fault(FaultKind::WriteError, None);
    assert!(file.write_at(&[IoSlice::new(b"x")], 0).is_err());
    disk.order_fault(FaultKind::ShortRead, None);
    assert!(file.read_at(&mut [0; 512], 0).unwrap() < 512);
    disk.order_fault(FaultKind::ShortWrite, None);
    let n = direct.write_at(&[IoSlice::new(&AlignedBuf::zeroed(16 << 10))], 0).unwrap();
    assert!(n < 16 << 10 && n % 4096 == 0 && n > 0, "a short direct write keeps its caller aligned: {n}");
    disk.order_fault(FaultKind::SyncDirError, None);
    disk.open(Path::new("/d/lost"), OpenMode::CreateBuffered).unwrap();
    assert!(disk.sync_dir(Path::new("/d")).is_err());
    disk.sync_dir(Path::new("/d")).unwrap();

    disk.wipe();
    assert!(file.read_at(&mut buf, 0).is_err());
    assert!(!disk.exists(path).unwrap());
}

#[test]
fn a_stale_read_shows_once_what_was_overwritten() {
    let (disk, file) = disk_with_file(SimDiskConfig::default(), 2 * 4096);
    let path = Path::new(FILE);
    put(&*file, 0, &[7; 2 * 4096]);
    file.sync().unwrap();
    let read = || {
        let mut buf = [0; 4096];
        file.read_exact_at(&mut buf, 4096).unwrap();
        buf[0]
    };
    assert_eq!(read(), 7);
    disk.order_fault(FaultKind::StaleRead, Some(path));
    let stale = read();
    assert_ne!(stale, 7, "the former content");
    assert_eq!(read(), 7, "once");
    assert_eq!(disk.fault_hits(), [(FaultKind::StaleRead, 1)]);
}

#[test]
fn drawn_damage_keeps_to_the_files_it_is_for() {
    let config = SimDiskConfig { damaged_files: vec![".elog".into()], ..SimDiskConfig::default() };
    let disk = new_disk(config);
    disk.set_faults(FaultPlan { bit_rot: 1.0, ..FaultPlan::default() });
    for (name, is_damaged) in [("/d/a.bjl", false), ("/d/a.elog", true)] {
        let file = disk.open(Path::new(name), OpenMode::CreateBuffered).unwrap();
        put(&*file, 0, &[0; 100]);
        let mut buf = [0; 100];
        file.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(buf != [0; 100], is_damaged, "{name}");
    }
}

#[test]
fn a_full_disk_takes_what_fits_and_goes_on_when_space_is_freed() {
    let (disk, file) =
        disk_with_file(SimDiskConfig { capacity: Some(10 * 4096), ..SimDiskConfig::default() }, 2 * 4096);
    assert_eq!(disk.space(Path::new("/d")).unwrap(), Space { total: 10 * 4096, free: 8 * 4096 });
    assert_eq!(
        file.write_at(&[IoSlice::new(&vec![2; 12 * 4096])], 4096).unwrap(),
        9 * 4096,
        "short at the end of space"
    );
    let full = file.write_at(&[IoSlice::new(b"x")], 10 * 4096).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    put(&*file, 0, b"overwriting needs no space");
    file.set_len(4096).unwrap();
    put(&*file, 10 * 4096, b"x");
    assert_eq!(disk.space(Path::new("/d")).unwrap().free, 8 * 4096, "holes take none");
}

#[test]
fn a_power_cut_at_any_change_stops_everything_and_frees_the_lock() {
    let work = |disk: &SimDisk| -> io::Result<()> {
        let _lock = disk.lock(Path::new("/d/LOCK"))?;
        let file = disk.open(Path::new(FILE), OpenMode::CreateBuffered)?;
        file.write_at(&[IoSlice::new(&[2; 2048])], 0)?;
        file.sync()?;
        file.write_durable_at(&[IoSlice::new(&[3; 2048])], 2048)?;
        disk.rename(Path::new(FILE), Path::new("/d/g"))?;
        disk.sync_dir(Path::new("/d"))
    };
    let whole = new_disk(SimDiskConfig::default());
    let before = whole.changes();
    work(&whole).unwrap();
    let changes = whole.changes() - before;
    assert_eq!(changes, 7);
    for after in 0..changes {
        let disk = new_disk(SimDiskConfig::default());
        disk.crash_after(after);
        let held = disk.lock(Path::new("/d/OTHER"));
        let cut = work(&disk).unwrap_err();
        assert_eq!((cut.kind(), cut.to_string().as_str()), (ErrorKind::Other, "simulated crash"));
        assert!(disk.is_off());
        let trace = disk.trace_hash();
        assert!(disk.exists(Path::new("/d")).is_err() && disk.sync_dir(Path::new("/d")).is_err());
        assert_eq!(disk.trace_hash(), trace, "a dead disk does nothing");
        let found = disk.crash(&SeededRandom::new(after));
        found.lock(Path::new("/d/OTHER")).expect("nobody holds a lock after a crash");
        drop(held);
    }
}
