//! The contract of [`Disk`], as one suite that each implementation runs: the real, the checked, the simulated one.
//!
//! It covers what a running process can see. The simulated disk has its own tests of crashes.

use crate::chunk::AlignedBuf;
use crate::{
    BLOCK_SIZE_BYTES, Disk, DiskFile, OpenMode, Random, SeededRandom, ZeroFill, open_ahead, open_uncached,
    zero_fill,
};
use std::io::{ErrorKind, IoSlice};
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;
const WORKS: &str = "a conforming disk does this";

/// Runs the whole suite in `root`, an existing empty directory.
///
/// # Panics
/// When the disk does not conform.
pub fn disk(disk: &dyn Disk, root: &Path) {
    directories_and_names(disk, &root.join("names"));
    missing_things_are_not_found(disk, &root.join("missing"));
    reads_see_writes_holes_and_the_end(disk, &root.join("reads"));
    cached_reads_agree_or_would_wait(disk, &root.join("cached"));
    many_slices_are_written_in_order(disk, &root.join("slices"));
    existing_files_are_kept_when_opened(disk, &root.join("keep"));
    open_files_outlive_their_names(disk, &root.join("unnamed"));
    direct_files_take_aligned_transfers(disk, &root.join("direct"));
    asking_for_what_follows_changes_nothing(disk, &root.join("asked"));
    uncached_reads_take_any_place(disk, &root.join("uncached"));
    zeros_are_filled_in_steps(disk, &root.join("zero"));
    blocks_are_allocated_and_nothing_is_lost(disk, &root.join("allocate"));
    a_lock_has_one_holder(disk, &root.join("lock"));
    random_operations_agree_with_a_model(disk, &root.join("model"));
    let space = disk.space(root).expect(WORKS);
    assert!(space.free > 0 && space.free <= space.total, "{space:?}");
}

fn make(disk: &dyn Disk, dir: &Path) {
    disk.create_dir_all(dir).expect(WORKS);
    disk.sync_dir(dir.parent().expect("the suite runs below a root")).expect(WORKS);
}

fn create(disk: &dyn Disk, path: &Path, content: &[u8]) -> Arc<dyn DiskFile> {
    let file = disk.open(path, OpenMode::CreateBuffered).expect(WORKS);
    file.write_all_at(&mut [IoSlice::new(content)], 0).expect(WORKS);
    file
}

/// Everything in a file, read in pieces that do not divide it.
fn content(file: &dyn DiskFile) -> Vec<u8> {
    let mut all = Vec::new();
    let mut piece = [0u8; 1000];
    loop {
        let n = file.read_at(&mut piece, all.len() as u64).expect(WORKS);
        if n == 0 {
            assert_eq!(file.len().expect(WORKS), all.len() as u64, "the end is where the length says");
            return all;
        }
        all.extend_from_slice(&piece[..n]);
    }
}

/// A disk need not have anything in memory; the bytes that it gives without waiting are those of the file.
fn cached_reads_agree_or_would_wait(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i * 7) as u8).collect();
    let file = create(disk, &dir.join("f"), &bytes);
    file.sync().expect(WORKS);
    for (offset, len) in [(0usize, 1usize), (0, 20_000), (4095, 2), (8192, 4096), (19_999, 1)].repeat(20) {
        let mut read = vec![0xAA; len];
        match file.read_cached_at(&mut read, offset as u64).expect(WORKS) {
            // Also what seems to be the end: see `DiskFile::read_cached_exact_at`.
            None | Some(0) => {}
            Some(n) => assert!(read[..n] == bytes[offset..offset + n], "{n} of {len} at {offset}"),
        }
        if file.read_cached_exact_at(&mut read, offset as u64).expect(WORKS) {
            assert_eq!(read, bytes[offset..offset + len], "{len} at {offset}");
        }
    }
    let mut behind = [0; 10];
    assert!(matches!(file.read_cached_at(&mut behind, 20_000).expect(WORKS), None | Some(0)));
    // Half of it is there: an exact read never passes the rest off as read.
    assert!(!file.read_cached_exact_at(&mut behind, 19_995).expect(WORKS), "the file ends inside");
}

fn kind<T>(result: std::io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

fn directories_and_names(disk: &dyn Disk, dir: &Path) {
    let deep = dir.join("a/b");
    disk.create_dir_all(&deep).expect(WORKS);
    disk.create_dir_all(&deep).expect("making a directory again is fine");
    create(disk, &dir.join("z"), b"zz");
    create(disk, &dir.join("m"), b"");
    let listed = || -> Vec<(String, bool, u64)> {
        disk.list(dir).expect(WORKS).into_iter().map(|e| (e.name, e.is_dir, e.len)).collect()
    };
    assert_eq!(listed(), [("a".into(), true, 0), ("m".into(), false, 0), ("z".into(), false, 2)]);
    assert!(disk.exists(&deep).expect(WORKS) && disk.exists(&dir.join("z")).expect(WORKS));
    assert!(!disk.exists(&dir.join("y")).expect(WORKS));

    disk.rename(&dir.join("z"), &dir.join("m")).expect("renaming replaces");
    disk.sync_dir(dir).expect(WORKS);
    assert_eq!(listed(), [("a".into(), true, 0), ("m".into(), false, 2)]);
    disk.rename(&dir.join("m"), &deep.join("m")).expect("renaming goes to other directories");
    let moved = disk.open(&deep.join("m"), OpenMode::Read).expect(WORKS);
    assert_eq!(content(&*moved), b"zz");
    disk.remove(&deep.join("m")).expect(WORKS);
    assert!(!disk.exists(&deep.join("m")).expect(WORKS));
    assert_eq!(disk.list(&deep).expect(WORKS), []);
    assert!(disk.remove(&deep).is_err(), "removing is for files");
    assert!(disk.open(&deep, OpenMode::Read).is_err(), "a directory does not open as a file");
    assert!(disk.open(&deep, OpenMode::CreateBuffered).is_err());
}

fn missing_things_are_not_found(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let no = dir.join("no");
    assert_eq!(kind(disk.open(&no, OpenMode::Read)), Some(ErrorKind::NotFound));
    assert_eq!(kind(disk.open(&no.join("file"), OpenMode::CreateBuffered)), Some(ErrorKind::NotFound));
    assert_eq!(kind(disk.list(&no)), Some(ErrorKind::NotFound));
    assert_eq!(kind(disk.remove(&no)), Some(ErrorKind::NotFound));
    assert_eq!(kind(disk.rename(&no, &dir.join("to"))), Some(ErrorKind::NotFound));
    assert_eq!(kind(disk.sync_dir(&no)), Some(ErrorKind::NotFound));
    assert_eq!(kind(disk.space(&no)), Some(ErrorKind::NotFound));
    assert!(!disk.exists(&no.join("below")).expect(WORKS));
}

fn reads_see_writes_holes_and_the_end(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let file = disk.open(&dir.join("f"), OpenMode::CreateBuffered).expect(WORKS);
    assert!(file.is_empty().expect(WORKS) && !file.is_direct());
    file.write_all_at(&mut [IoSlice::new(b"end")], 10_000).expect(WORKS);
    assert_eq!(file.len().expect(WORKS), 10_003);
    let mut buf = [9u8; 8];
    file.read_exact_at(&mut buf, 9_990).expect(WORKS);
    assert_eq!(buf, [0; 8], "a hole reads as zero");
    assert_eq!(file.read_at(&mut buf, 10_001).expect(WORKS), 2, "a read is short at the end");
    assert_eq!(&buf[..2], b"nd");
    assert_eq!(file.read_at(&mut buf, 10_003).expect(WORKS), 0);
    assert_eq!(file.read_at(&mut buf, 1 << 40).expect(WORKS), 0);
    assert_eq!(kind(file.read_exact_at(&mut buf, 10_000)), Some(ErrorKind::UnexpectedEof));

    let mut slices = [IoSlice::new(b""), IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cd")];
    file.write_all_durable_at(&mut slices, 4_094).expect(WORKS);
    file.read_exact_at(&mut buf[..4], 4_094).expect(WORKS);
    assert_eq!(&buf[..4], b"abcd");

    file.set_len(4_095).expect(WORKS);
    file.set_len(8_192).expect(WORKS);
    file.read_exact_at(&mut buf[..4], 4_094).expect(WORKS);
    assert_eq!(&buf[..4], b"a\0\0\0", "what was cut off does not come back");
    file.sync().expect(WORKS);
    disk.sync_dir(dir).expect(WORKS);
    assert_eq!(content(&*disk.open(&dir.join("f"), OpenMode::Read).expect(WORKS)).len(), 8_192);
}

fn many_slices_are_written_in_order(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let file = disk.open(&dir.join("f"), OpenMode::CreateBuffered).expect(WORKS);
    let bytes: Vec<u8> = (0..2_500u32).map(|i| (i % 251) as u8).collect();
    let mut slices: Vec<IoSlice<'_>> = bytes.chunks(1).map(IoSlice::new).collect();
    file.write_all_at(&mut slices, 3).expect("more slices than the kernel takes at once");
    assert_eq!(content(&*file)[3..], bytes[..]);
}

fn existing_files_are_kept_when_opened(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let path = dir.join("f");
    let first = create(disk, &path, &[7; 4096]);
    for mode in [OpenMode::CreateBuffered, OpenMode::CreateDirect, OpenMode::Read, OpenMode::ReadScattered] {
        let again = disk.open(&path, mode).expect(WORKS);
        assert_eq!(again.len().expect(WORKS), 4096, "{mode:?}");
    }
    let second = disk.open(&path, OpenMode::CreateBuffered).expect(WORKS);
    second.write_all_at(&mut [IoSlice::new(b"x")], 0).expect(WORKS);
    assert_eq!(content(&*first)[..2], [b'x', 7], "both handles are the same file");
}

fn open_files_outlive_their_names(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let (old, new) = (dir.join("old"), dir.join("new"));
    let file = create(disk, &old, b"first");
    let replaced = create(disk, &new, b"replaced");
    disk.rename(&old, &new).expect(WORKS);
    file.write_all_at(&mut [IoSlice::new(b"F")], 0).expect("an open file is written after it was renamed");
    file.sync().expect(WORKS);
    assert_eq!(content(&*disk.open(&new, OpenMode::Read).expect(WORKS)), b"First");
    assert_eq!(content(&*replaced), b"replaced", "a replaced file stays readable");
    disk.remove(&new).expect(WORKS);
    assert_eq!(content(&*file), b"First", "a removed file stays readable");
    let other = create(disk, &new, b"other");
    assert_eq!((content(&*file), content(&*other)), (b"First".to_vec(), b"other".to_vec()));
}

fn direct_files_take_aligned_transfers(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let file = disk.open(&dir.join("f"), OpenMode::CreateDirect).expect("refused direct I/O falls back");
    let (mut a, mut b) = (AlignedBuf::zeroed(4096), AlignedBuf::zeroed(8192));
    a.fill(1);
    b.fill(2);
    file.write_all_at(&mut [IoSlice::new(&a), IoSlice::new(&b)], BLOCK).expect(WORKS);
    file.write_all_durable_at(&mut [IoSlice::new(&a)], 4 * BLOCK).expect(WORKS);
    let mut all = AlignedBuf::zeroed(8 * BLOCK_SIZE_BYTES);
    let n = file.read_at(&mut all, 0).expect(WORKS);
    assert_eq!(n as u64, 5 * BLOCK);
    for (block, expected) in [0u8, 1, 2, 2, 1].into_iter().enumerate() {
        assert!(all[block * 4096..(block + 1) * 4096].iter().all(|&byte| byte == expected), "block {block}");
    }
    file.set_len(BLOCK + 904).expect(WORKS);
    all.fill(9);
    assert_eq!(file.read_at(&mut all, 0).expect(WORKS), 5_000, "an unaligned end is read up to");
    // The buffer behind the reported bytes is not asserted: a device fills whole blocks.
    assert_eq!((all[4_095], all[4_096], all[4_999]), (0, 1, 1));
    // The buffer is cut after the end, so what is left of it is no longer aligned.
    assert_eq!(kind(file.read_exact_at(&mut all, 0)), Some(ErrorKind::UnexpectedEof));
    file.sync().expect(WORKS);
    let buffered = disk.open(&dir.join("f"), OpenMode::Read).expect(WORKS);
    assert_eq!(content(&*buffered)[4096..], [1; 904], "buffered readers see direct writes");
}

fn asking_for_what_follows_changes_nothing(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let path = dir.join("f");
    assert_eq!(kind(disk.open(&path, OpenMode::ReadScattered)), Some(ErrorKind::NotFound));
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    let made = create(disk, &path, &bytes);
    let scattered = disk.open(&path, OpenMode::ReadScattered).expect(WORKS);
    for (offset, len) in [(0, 1), (4_000, 1 << 20), (99_999, 0), (1 << 40, 1 << 20), (0, u64::MAX)] {
        scattered.begin_reading(offset, len);
        made.begin_reading(offset, len);
        assert_eq!(content(&*scattered), bytes);
    }
    assert_eq!(scattered.len().expect(WORKS), 100_000);
}

fn uncached_reads_take_any_place(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let path = dir.join("f");
    assert_eq!(kind(open_uncached(disk, &path)), Some(ErrorKind::NotFound));
    assert_eq!(kind(open_ahead(disk, &path, 1 << 16)), Some(ErrorKind::NotFound));
    let expected: Vec<u8> = (0..700_001u32).map(|at| (at % 251) as u8).collect();
    create(disk, &path, &expected);
    let mut files = vec![open_uncached(disk, &path).expect(WORKS)];
    files.extend([4096, 1 << 16, 1 << 20].map(|window| open_ahead(disk, &path, window).expect(WORKS)));
    for file in files {
        assert!(!file.is_direct(), "no rule of alignment");
        for (at, len) in
            [(0, 1), (0, 4096), (1, 4096), (4095, 2), (5000, 600_000), (262_143, 262_146), (700_000, 1)]
        {
            let mut found = vec![0; len];
            file.read_exact_at(&mut found, at as u64).expect(WORKS);
            assert!(found == expected[at..at + len], "{len} at {at}");
        }
        let mut beyond = [0; 3];
        assert_eq!(file.read_at(&mut beyond, 699_999).expect(WORKS), 2);
        assert_eq!(file.read_at(&mut beyond, 700_001).expect(WORKS), 0);
        assert_eq!(file.read_at(&mut beyond, 1_000_000).expect(WORKS), 0);
    }
}

fn zeros_are_filled_in_steps(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let file = disk.open(&dir.join("f"), OpenMode::CreateDirect).expect(WORKS);
    let mut block = AlignedBuf::zeroed(4096);
    block.fill(5);
    for at in [0, 1, 300] {
        file.write_all_at(&mut [IoSlice::new(&block)], at * BLOCK).expect(WORKS);
    }
    let mut fill = ZeroFill::new(BLOCK, 299 * BLOCK);
    assert!(fill.step(&*file).expect(WORKS), "1 MiB is not 299 blocks");
    while fill.step(&*file).expect(WORKS) {}
    assert_eq!(fill.remaining(), 0);
    let found = content(&*disk.open(&dir.join("f"), OpenMode::Read).expect(WORKS));
    let expected = [vec![5; 4096], vec![0; 299 * 4096], vec![5; 4096]].concat();
    assert!(found == expected, "zeros are exactly where they were asked for");
    zero_fill(&*file, 301 * BLOCK, 3 << 20).expect(WORKS);
    assert_eq!(file.len().expect(WORKS), 301 * BLOCK + (3 << 20));
}

fn blocks_are_allocated_and_nothing_is_lost(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    for mode in [OpenMode::CreateBuffered, OpenMode::CreateDirect] {
        let path = dir.join(format!("{mode:?}"));
        let file = disk.open(&path, mode).expect(WORKS);
        let mut block = AlignedBuf::zeroed(4096);
        block.fill(5);
        for at in [0, 3] {
            file.write_all_at(&mut [IoSlice::new(&block)], at * BLOCK).expect(WORKS);
        }
        file.allocate(2 * BLOCK).expect("a shorter allocation changes nothing");
        file.allocate(300 * BLOCK).expect(WORKS);
        file.allocate(300 * BLOCK).expect("allocating again is fine");
        file.sync().expect(WORKS);
        let found = content(&*disk.open(&path, OpenMode::Read).expect(WORKS));
        let written = [vec![5; 4096], vec![0; 2 * 4096], vec![5; 4096], vec![0; 296 * 4096]].concat();
        assert!(found == written, "{mode:?}: what was written stays, the rest is zero");
    }
}

fn a_lock_has_one_holder(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let path = dir.join("LOCK");
    let held = disk.lock(&path).expect(WORKS);
    assert_eq!(kind(disk.lock(&path)), Some(ErrorKind::WouldBlock));
    drop(disk.lock(&dir.join("OTHER")).expect("locks are independent"));
    drop(held);
    drop(disk.lock(&path).expect("a dropped lock is free"));
    assert!(disk.exists(&path).expect(WORKS));
}

fn random_operations_agree_with_a_model(disk: &dyn Disk, dir: &Path) {
    make(disk, dir);
    let random = SeededRandom::new(0x0b00_c1e5);
    let path = dir.join("f");
    let mut file = disk.open(&path, OpenMode::CreateBuffered).expect(WORKS);
    let mut model: Vec<u8> = Vec::new();
    for step in 0..600 {
        let (at, len) = (random.below(40_000) as usize, random.below(9_000) as usize);
        match random.below(12) {
            0 => {
                file.set_len(at as u64).expect(WORKS);
                model.resize(at, 0);
            }
            1 => file.sync().expect(WORKS),
            2 => file = disk.open(&path, OpenMode::CreateBuffered).expect(WORKS),
            3..=7 => {
                let bytes = vec![random.next_u64() as u8; len];
                let (x, y) = bytes.split_at(len / 3);
                let mut slices = [IoSlice::new(x), IoSlice::new(y)];
                if random.chance(0.5) {
                    file.write_all_at(&mut slices, at as u64).expect(WORKS);
                } else {
                    file.write_all_durable_at(&mut slices, at as u64).expect(WORKS);
                }
                if len > 0 {
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                }
            }
            _ => {
                let mut buf = vec![0xee; len];
                let n = file.read_at(&mut buf, at as u64).expect(WORKS);
                let expected = model.get(at..).unwrap_or(&[]);
                assert!(n > 0 || len == 0 || expected.is_empty(), "step {step}: nothing read before the end");
                assert!(buf[..n] == expected[..n], "step {step}: {n} bytes at {at} differ from the model");
            }
        }
    }
    assert!(content(&*file) == model, "the final content differs from the model");
}
