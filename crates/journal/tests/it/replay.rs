//! Restarts from journal files that rotted, were cut, or cannot be read (requirement J13).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_io::canary::Canaries;
use bindery_io::chunk::{ChunkPool, Lane};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk, SeededRandom};
use bindery_journal::record::{HEADER_SIZE_BYTES, Kind, encode, fold_header};
use bindery_journal::{
    Group, HeaderProblem, Journal, JournalConfig, Part, ReplayError, Replayed, inspect, survey,
};
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCK: u64 = 4096;

/// A directory and the real disk.
fn place() -> (tempfile::TempDir, Arc<dyn Disk>) {
    (tempfile::tempdir().unwrap(), Arc::new(RealDisk::new()))
}

/// A journal with files of so many blocks.
fn open(disk: &Arc<dyn Disk>, dir: &Path, sync: bool, blocks: u64) -> Journal {
    let config = JournalConfig {
        bytes_max: 0,
        dir: dir.to_owned(),
        file_bytes: blocks * BLOCK,
        owner: "cluster bookie".into(),
        journal: 0,
        is_tiered: false,
        sync,
        canaries: Canaries::none(),
    };
    Journal::open(disk.clone(), config, Arc::new(SeededRandom::new(7))).unwrap()
}

/// Entries, each a group of one block.
fn write(journal: &mut Journal, entries: std::ops::Range<i64>) {
    for entry in entries {
        let pool = ChunkPool::new(64 << 10, 1, 0);
        let mut chunk = pool.take(Lane::Normal).unwrap();
        // As far from the beginning of a block as the part will be in its group.
        chunk.append(256, |_| ());
        let (start, mut header) = (chunk.len(), [0; HEADER_SIZE_BYTES]);
        let body = [[5, entry, entry - 1].map(i64::to_be_bytes).concat(), vec![7; 90]].concat();
        chunk.append(HEADER_SIZE_BYTES + body.len(), |target| {
            header = encode(target, Kind::Entry, &[&body]).0;
        });
        let headers_crc = fold_header(0, &header);
        let part = Part { data: chunk.slice(start..chunk.len()), shard: 0, record_count: 1, headers_crc };
        journal.write(&Group { parts: vec![part], force_sync: false }).unwrap();
    }
}

/// The entries that a replay gives.
fn replay(journal: &mut Journal) -> Result<(Vec<i64>, Replayed), ReplayError<Infallible>> {
    let mut entries = Vec::new();
    let seen = journal.replay(0, |_, records| {
        entries.extend(records.iter().map(|record| record.entry().unwrap().get()));
        Ok(())
    })?;
    Ok((entries, seen))
}

fn flip(disk: &Arc<dyn Disk>, path: &Path, at: u64) {
    let file = disk.open(path, OpenMode::CreateBuffered).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&mut [IoSlice::new(&[byte[0] ^ 1])], at).unwrap();
}

/// Goal: a file without sync that the next one found synced has no holes, so rot in it is damage; in the newest it may be
/// what a power cut left. Method: three files of three groups, each group but the last of its file in turn.
#[test]
fn rot_in_a_rolled_unsynced_file_is_damage() {
    for (file, is_damage) in [(0, true), (1, true), (2, false)] {
        for group in [1, 2] {
            let (dir, disk) = place();
            let mut journal = open(&disk, dir.path(), false, 4);
            replay(&mut journal).unwrap();
            write(&mut journal, 0..9);
            journal.sync().unwrap();
            flip(&disk, &dir.path().join(format!("journal-{file:04}.bjl")), group * BLOCK + 8);
            let replayed = replay(&mut open(&disk, dir.path(), false, 4));
            if is_damage {
                assert!(
                    matches!(&replayed, Err(ReplayError::Damage(d)) if d.offset == group * BLOCK),
                    "{replayed:?}"
                );
                let mut accepting = open(&disk, dir.path(), false, 4);
                accepting.accept_damage();
                let (entries, seen) = replay(&mut accepting).unwrap();
                assert_eq!((entries.len(), seen.damaged_places, seen.unsynced_holes), (8, 1, 0));
            } else {
                assert_eq!(replayed.unwrap().1.unsynced_holes, 1);
            }
        }
    }
}

/// A process that ends syncs nothing: the file it leaves may have holes, whatever follows it.
#[test]
fn a_hole_in_the_last_file_of_a_process_stays_a_hole() {
    let (dir, disk) = place();
    let mut journal = open(&disk, dir.path(), false, 8);
    replay(&mut journal).unwrap();
    write(&mut journal, 0..3);
    let mut journal = open(&disk, dir.path(), false, 8);
    replay(&mut journal).unwrap();
    write(&mut journal, 3..5);
    flip(&disk, &dir.path().join("journal-0000.bjl"), 2 * BLOCK + 8);
    let (entries, seen) = replay(&mut open(&disk, dir.path(), false, 8)).unwrap();
    assert_eq!((entries, seen.unsynced_holes), (vec![0, 2, 3, 4], 1));
}

/// Goal: of a file whose header alone is bad, accepting the damage keeps every group. Method: the header of the newest of two
/// files, of a middle one, and of one that is a single file; the next start must read the same groups again.
#[test]
fn accepted_damage_to_a_header_keeps_the_groups() {
    for (blocks, file) in [(64, 0), (32, 1), (16, 1)] {
        let (dir, disk) = place();
        let mut journal = open(&disk, dir.path(), true, blocks);
        replay(&mut journal).unwrap();
        write(&mut journal, 0..50);
        flip(&disk, &dir.path().join(format!("journal-{file:04}.bjl")), 100);
        let stopped = replay(&mut open(&disk, dir.path(), true, blocks));
        assert!(matches!(stopped, Err(ReplayError::Damage(_))), "{stopped:?}");
        for _ in 0..2 {
            let mut accepting = open(&disk, dir.path(), true, blocks);
            accepting.accept_damage();
            let (entries, seen) = replay(&mut accepting).unwrap();
            assert_eq!(entries, (0..50).collect::<Vec<_>>());
            assert_eq!((seen.damaged_places, seen.last_group, accepting.last_group()), (1, 50, 50));
        }
    }
}

/// A free file whose header is bad, and that holds groups of an earlier use only, is as good as unused.
#[test]
fn a_free_file_with_a_bad_header_is_no_damage() {
    let (dir, disk) = place();
    let mut journal = open(&disk, dir.path(), true, 4);
    replay(&mut journal).unwrap();
    write(&mut journal, 0..9);
    drop(journal);
    flip(&disk, &dir.path().join("journal-0000.bjl"), 100);
    let mut journal = open(&disk, dir.path(), true, 4);
    let seen = journal.replay(3, |_, _| Ok::<(), Infallible>(())).unwrap();
    assert_eq!((seen.groups, seen.damaged_places), (6, 0));
}

/// J11. Goal: a number of a file that is not there counts against no limit, and is used before a new one. Method: of four
/// files and the one that is made ahead the second goes, as one that was reserved and never made.
#[test]
fn a_missing_slot_does_not_count_and_is_used_first() {
    let (dir, disk) = place();
    let mut journal = open(&disk, dir.path(), true, 4);
    replay(&mut journal).unwrap();
    write(&mut journal, 0..12);
    drop(journal);
    disk.remove(&dir.path().join("journal-0001.bjl")).unwrap();
    let mut journal = open(&disk, dir.path(), true, 4);
    journal.replay(6, |_, _| Ok::<(), Infallible>(())).unwrap();
    assert_eq!((journal.file_count(), journal.footprint_bytes()), (4, 16 * BLOCK));
    assert_eq!((journal.reserve_slot(), journal.reserve_slot(), journal.file_count()), (1, 5, 6));
}

/// A disk with blocks of a file that cannot be read.
struct Scratched {
    path: PathBuf,
    blocks: Range<u64>,
}

struct ScratchedFile {
    inner: Arc<dyn DiskFile>,
    /// None in the other files.
    blocks: Range<u64>,
}

impl DiskLayer for Scratched {
    fn beneath(&self) -> &dyn Disk {
        &RealDisk
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let blocks = if path == self.path { self.blocks.clone() } else { 0..0 };
        Ok(Arc::new(ScratchedFile { inner: RealDisk.open(path, mode)?, blocks }))
    }
}

impl FileLayer for ScratchedFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.inner
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let touches = |block: u64| offset < (block + 1) * BLOCK && offset + buf.len() as u64 > block * BLOCK;
        match self.blocks.clone().any(touches) {
            // As the kernel says it.
            true => Err(io::Error::from_raw_os_error(5)),
            false => self.inner.read_at(buf, offset),
        }
    }
}

/// Goal: a block that the disk does not give stops a start only where something that is needed may have stood in it, and
/// accepting the damage costs what was in that block. Method: each block of three files of a journal whose first file and a
/// half are covered, with a last file that is not full.
#[test]
fn one_unreadable_block() {
    for (file, block) in (0..3).flat_map(|file| (0..6).map(move |block| (file, block))) {
        let (dir, disk) = place();
        let mut journal = open(&disk, dir.path(), true, 6);
        replay(&mut journal).unwrap();
        // Five in each full file; three in the last.
        write(&mut journal, 0..13);
        drop(journal);
        let covered = 7;
        let scratched: Arc<dyn Disk> = Arc::new(Scratched {
            path: dir.path().join(format!("journal-{file:04}.bjl")),
            blocks: block..block + 1,
        });
        let mut groups = Vec::new();
        let mut journal = open(&scratched, dir.path(), true, 6);
        let replayed = journal.replay(covered, |group, _| {
            groups.push(group);
            Ok::<(), Infallible>(())
        });
        let is_needed = match file {
            0 => false,
            // Its header, and groups 8 to 10.
            1 => block == 0 || block > 2,
            _ => true,
        };
        let all: Vec<u64> = (covered + 1..=13).collect();
        if !is_needed {
            assert_eq!(replayed.unwrap().damaged_places, 0, "file {file}, block {block}");
            assert_eq!(groups, all);
            continue;
        }
        let damage = match replayed {
            Err(ReplayError::Damage(damage)) => damage,
            other => panic!("file {file}, block {block}: {other:?}"),
        };
        // Without a header it is the next file that tells what is missing.
        let at = if (file, block) == (1, 0) { 2 } else { file };
        assert!(damage.path.ends_with(format!("journal-{at:04}.bjl")) && damage.may_pass, "{damage}");
        let mut accepting = open(&scratched, dir.path(), true, 6);
        accepting.accept_damage();
        groups.clear();
        let seen = accepting.replay(covered, |group, _| {
            groups.push(group);
            Ok::<(), Infallible>(())
        });
        // Behind the last group of a file the next one tells of the gap as well.
        let places = if (file, block) == (1, 5) { 2 } else { 1 };
        assert_eq!(seen.unwrap().damaged_places, places, "file {file}, block {block}");
        // Block 1 has the first group of its file.
        let lost = (block > 0).then_some(5 * file + block);
        let expected: Vec<u64> = all.into_iter().filter(|group| Some(*group) != lost).collect();
        assert_eq!(groups, expected, "file {file}, block {block}");
    }
}

/// Inspecting such a file shows where the block is, and the groups in front of it.
#[test]
fn an_unreadable_block_is_shown() {
    let (dir, disk) = place();
    let mut journal = open(&disk, dir.path(), true, 6);
    replay(&mut journal).unwrap();
    write(&mut journal, 0..5);
    drop(journal);
    let path = dir.path().join("journal-0000.bjl");
    for block in 0..6 {
        let scratched: Arc<dyn Disk> = Arc::new(Scratched { path: path.clone(), blocks: block..block + 1 });
        let header = survey::file(&scratched, &path).unwrap().header;
        assert_eq!(header == Err(HeaderProblem::Damaged), block == 0, "{header:?}");
        let (mut groups, mut end) = (0, None);
        inspect::walk(&scratched, &path, |item| match item {
            inspect::Item::Header(_) => {}
            inspect::Item::Group(..) => groups += 1,
            inspect::Item::End { offset, why, .. } => end = Some((offset, why)),
        })
        .unwrap();
        let (offset, why) = end.unwrap();
        let expected = if block == 0 { 5 } else { block - 1 };
        assert_eq!((groups, offset), (expected, (expected + 1) * BLOCK), "{why}");
        assert_eq!(
            why.contains(&format!("an I/O error), and nobody knows what it was, at {offset}")),
            block > 0,
            "{why}"
        );
    }
}

/// Goal: a file that could not be read, and can be later, replaces nothing that was written since. Method: the header,
/// or all, of the newest of two files is unreadable; the damage is accepted, all files are released, and more is
/// written.
#[test]
fn a_file_that_can_be_read_again_hides_nothing() {
    for blocks in [0..1, 0..6] {
        let (dir, disk) = place();
        let mut journal = open(&disk, dir.path(), true, 6);
        replay(&mut journal).unwrap();
        write(&mut journal, 0..8);
        drop(journal);
        let path = dir.path().join("journal-0001.bjl");
        let scratched: Arc<dyn Disk> = Arc::new(Scratched { path, blocks });
        let mut journal = open(&scratched, dir.path(), true, 6);
        journal.accept_damage();
        let seen = replay(&mut journal).unwrap().1;
        assert!(seen.damaged_places > 0);
        journal.release_up_to(seen.last_group);
        write(&mut journal, 100..103);
        drop(journal);
        let mut entries = Vec::new();
        let mut journal = open(&disk, dir.path(), true, 6);
        let replayed = journal.replay(seen.last_group, |_, records| {
            entries.extend(records.iter().map(|record| record.entry().unwrap().get()));
            Ok::<(), Infallible>(())
        });
        assert_eq!((replayed.unwrap().damaged_places, entries), (0, vec![100, 101, 102]));
    }
}

/// Of two files of one id, as when a copy was put beside, one would hide the other.
#[test]
fn two_files_of_one_id_are_damage() {
    for covered in [0, 5, 6] {
        let (dir, disk) = place();
        let mut journal = open(&disk, dir.path(), true, 6);
        replay(&mut journal).unwrap();
        write(&mut journal, 0..8);
        drop(journal);
        let (from, to) = ("journal-0001.bjl", "journal-0007.bjl");
        std::fs::copy(dir.path().join(from), dir.path().join(to)).unwrap();
        let mut journal = open(&disk, dir.path(), true, 6);
        let replayed = journal.replay(covered, |_, _| Ok::<(), Infallible>(()));
        assert!(
            matches!(&replayed, Err(ReplayError::Damage(d)) if d.what.contains("its id")),
            "{replayed:?}"
        );
    }
}

/// Behind the last group of a file the next one tells that nothing is missing.
#[test]
fn unreadable_blocks_behind_the_groups_of_a_file_are_no_damage() {
    for block in 4..6 {
        let (dir, disk) = place();
        for entries in [0..3, 3..5] {
            let mut journal = open(&disk, dir.path(), true, 6);
            replay(&mut journal).unwrap();
            write(&mut journal, entries);
        }
        let path = dir.path().join("journal-0000.bjl");
        let scratched: Arc<dyn Disk> = Arc::new(Scratched { path, blocks: block..block + 1 });
        let (entries, seen) = replay(&mut open(&scratched, dir.path(), true, 6)).unwrap();
        assert_eq!((entries, seen.damaged_places), (vec![0, 1, 2, 3, 4], 0));
    }
}

/// Of the newest file, header and only group; and the same of a file that was never used.
#[test]
fn an_unreadable_header_with_its_group_is_damage_and_an_unused_one_is_not() {
    for (written, is_damage) in [(6, true), (5, false)] {
        let (dir, disk) = place();
        let mut journal = open(&disk, dir.path(), true, 6);
        replay(&mut journal).unwrap();
        write(&mut journal, 0..written);
        drop(journal);
        let path = dir.path().join("journal-0001.bjl");
        if !is_damage {
            disk.open(&path, OpenMode::CreateBuffered).unwrap().set_len(6 * BLOCK).unwrap();
        }
        let blocks = if is_damage { 0..2 } else { 0..1 };
        let scratched: Arc<dyn Disk> = Arc::new(Scratched { path: path.clone(), blocks });
        match replay(&mut open(&scratched, dir.path(), true, 6)) {
            Err(ReplayError::Damage(damage)) => assert!(is_damage && damage.path == path, "{damage}"),
            replayed => assert!(!is_damage && replayed.is_ok(), "{replayed:?}"),
        }
    }
}
