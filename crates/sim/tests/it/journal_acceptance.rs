//! The journal's acceptance tests, under the names that docs/reference/journal-requirements.md lists. Requirements J1 to
//! J14 are cited by each. Every bit and every length: `journal_damage`. Threads: `crates/engine/tests/journals.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_engine::{Add, AddDone, AddSink, EngineConfig, EntryRef, GroupTimes, Lookup, Machine, Origin};
use bindery_io::canary::Canaries;
use bindery_io::chunk::{ChunkPool, Lane};
use bindery_io::{
    BLOCK_SIZE_BYTES, Disk, DiskFile, DiskLayer, FileLayer, ManualClock, OpenMode, SeededRandom,
};
use bindery_journal::record::{self, HEADER_SIZE_BYTES, Kind};
use bindery_journal::{
    Group, HeaderProblem, Journal, JournalConfig, JournalError, Part, PreparedFile, ReplayError, Replayed,
    inspect, survey,
};
use bindery_sim::disk::{FaultKind, SimDisk, SimDiskConfig};
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE_BYTES as u64;
const FILE_BYTES: u64 = 16 * BLOCK;
const DIR: &str = "/j";

fn config(bytes_max: u64) -> JournalConfig {
    JournalConfig {
        bytes_max,
        dir: PathBuf::from(DIR),
        file_bytes: FILE_BYTES,
        owner: "test".into(),
        journal: 0,
        is_tiered: false,
        sync: true,
        canaries: Canaries::none(),
    }
}

fn medium() -> Arc<SimDisk> {
    let disk = Arc::new(SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(1)));
    disk.create_dir_all(Path::new(DIR)).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk
}

fn open_with(disk: &Arc<SimDisk>, config: JournalConfig, covered: u64) -> Journal {
    let mut journal = Journal::open(disk.clone(), config, Arc::new(SeededRandom::new(9))).unwrap();
    journal.replay(covered, |_, _| Ok::<(), Infallible>(())).unwrap();
    journal
}

fn open(disk: &Arc<SimDisk>) -> Journal {
    open_with(disk, config(0), 0)
}

fn body(entry: i64, size: usize) -> Vec<u8> {
    let mut body = [5, entry, entry - 1].map(i64::to_be_bytes).concat();
    body.resize(24 + size, entry as u8);
    body
}

/// A group of entries of these sizes: a block of header, then one part, which begins a block.
fn group(first: i64, sizes: &[usize]) -> Group {
    let bytes: usize = sizes.iter().map(|size| size + 24 + HEADER_SIZE_BYTES).sum();
    let mut chunk = ChunkPool::new(bytes.next_multiple_of(4096), 1, 0).take(Lane::Normal).unwrap();
    let mut headers_crc = 0;
    for (entry, size) in (first..).zip(sizes) {
        let body = body(entry, *size);
        let mut header = [0; HEADER_SIZE_BYTES];
        chunk.append(HEADER_SIZE_BYTES + body.len(), |target| {
            header = record::encode(target, Kind::Entry, &[&body]).0;
        });
        headers_crc = record::fold_header(headers_crc, &header);
    }
    let data = chunk.slice(0..chunk.len());
    let part = Part { data, shard: 0, record_count: sizes.len() as u32, headers_crc };
    Group { parts: vec![part], force_sync: false }
}

fn put(journal: &mut Journal, entry: i64, size: usize) -> Result<u64, JournalError> {
    journal.write(&group(entry, &[size]))
}

/// The bodies that a replay of this medium delivers.
fn bodies(disk: SimDisk, covered: u64) -> Result<(Vec<Vec<u8>>, Replayed), ReplayError<Infallible>> {
    let mut bodies = Vec::new();
    let mut journal = Journal::open(Arc::new(disk), config(0), Arc::new(SeededRandom::new(3)))?;
    let replayed = journal.replay(covered, |_, records| {
        bodies.extend(records.iter().map(|record| record.body.to_vec()));
        Ok(())
    })?;
    Ok((bodies, replayed))
}

fn files(disk: &SimDisk) -> Vec<(PathBuf, u64)> {
    let mut files: Vec<_> = disk.list(Path::new(DIR)).unwrap();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files.into_iter().map(|file| (Path::new(DIR).join(file.name), file.len)).collect()
}

/// Offsets and lengths of the groups of a file's present use.
fn places(disk: &Arc<SimDisk>, path: &Path) -> Vec<(u64, u64)> {
    let disk: Arc<dyn Disk> = disk.clone();
    let mut places = Vec::new();
    let visit = |item: inspect::Item<'_>| {
        if let inspect::Item::Group(group, _) = item {
            places.push((group.offset, group.total_bytes));
        }
    };
    inspect::walk(&disk, path, visit).unwrap();
    places
}

fn spoil(disk: &SimDisk, path: &Path, at: u64) {
    disk.flip_bits(path, at, 3).unwrap();
}

// ---- 1. durability at the answer --------------------------------------------------------------------------------

/// J1, J6: all entries of a group are on the medium when its one write returns.
#[test]
fn written_to_disk_batch() {
    let disk = medium();
    let mut journal = open(&disk);
    journal.write(&group(0, &[10, 2000, 0, 9000])).unwrap();
    let (found, replayed) = bodies(disk.durable_image(), 0).unwrap();
    assert_eq!(found, [body(0, 10), body(1, 2000), body(2, 0), body(3, 9000)]);
    assert_eq!((replayed.groups, replayed.records), (1, 4));
}

/// J1: each group is durable before the next one is written.
#[test]
fn written_to_disk_sync() {
    let disk = medium();
    let mut journal = open(&disk);
    for entry in 0..40 {
        put(&mut journal, entry, 700).unwrap();
        let (found, _) = bodies(disk.durable_image(), 0).unwrap();
        assert_eq!(found.len() as i64, entry + 1, "over several files too");
    }
    assert!(files(&disk).len() > 2);
}

/// J1: without sync a group is written and not durable, until a forced one makes all before it so.
#[test]
fn written_to_disk_no_sync() {
    let disk = medium();
    let mut journal = open_with(&disk, JournalConfig { sync: false, ..config(0) }, 0);
    for entry in 0..4 {
        put(&mut journal, entry, 100).unwrap();
    }
    let (found, _) = bodies(disk.durable_image(), 0).unwrap();
    assert!(found.is_empty(), "{} entries are durable", found.len());
    journal.write(&Group { force_sync: true, ..group(4, &[100]) }).unwrap();
    let (found, _) = bodies(disk.durable_image(), 0).unwrap();
    assert_eq!(found.len(), 5);
}

/// Calls that matter to the page cache.
#[derive(Default)]
struct CacheCalls {
    /// How often a file that was opened so was written.
    written: BTreeMap<OpenMode, usize>,
    /// Ranges that the kernel was told to start writing out.
    written_out: Vec<Range<u64>>,
}

struct CacheWatch(Arc<SimDisk>, Arc<Mutex<CacheCalls>>);
struct CacheWatchFile(Arc<dyn DiskFile>, OpenMode, Arc<Mutex<CacheCalls>>);

impl DiskLayer for CacheWatch {
    fn beneath(&self) -> &dyn Disk {
        &*self.0
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(CacheWatchFile(self.0.open(path, mode)?, mode, self.1.clone())))
    }
}

impl FileLayer for CacheWatchFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.0
    }
    fn write_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        *self.2.lock().written.entry(self.1).or_default() += 1;
        self.0.write_at(slices, offset)
    }
    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        *self.2.lock().written.entry(self.1).or_default() += 1;
        self.0.write_durable_at(slices, offset)
    }
    fn begin_writeback(&self, offset: u64, len: u64) {
        self.2.lock().written_out.push(offset..offset + len);
    }
}

/// J1: without sync small groups go through the page cache, and the kernel is told to write them out MiB by MiB, each
/// byte once; large ones, and with sync all, go past it.
#[test]
fn written_to_page_cache_no_sync() {
    const MIB: u64 = 1 << 20;
    for (sync, size) in [(false, 10 << 10), (false, 100 << 10), (true, 10 << 10)] {
        let calls = Arc::new(Mutex::new(CacheCalls::default()));
        let disk = Arc::new(CacheWatch(medium(), calls.clone()));
        let config = JournalConfig { sync, file_bytes: 4 * MIB, ..config(0) };
        let mut journal = Journal::open(disk, config, Arc::new(SeededRandom::new(9))).unwrap();
        journal.replay(0, |_, _| Ok::<(), Infallible>(())).unwrap();
        let groups = (2 << 20) / size;
        for entry in 0..groups as i64 {
            put(&mut journal, entry, size).unwrap();
        }
        let CacheCalls { written, written_out } = &*calls.lock();
        let is_cached = !sync && size < 64 << 10;
        // The header of the file is written past it.
        assert_eq!(written[&OpenMode::CreateDirect], if is_cached { 1 } else { groups + 1 });
        assert_eq!(written.get(&OpenMode::CreateBuffered), is_cached.then_some(&groups));
        if sync {
            assert!(written_out.is_empty());
            continue;
        }
        let mut end = BLOCK;
        for range in written_out {
            assert_eq!(range.start, end, "behind the one before");
            assert!((MIB..MIB + MIB / 4).contains(&(range.end - range.start)), "{range:?}");
            end = range.end;
        }
        assert!(end > MIB && journal.bytes_in_use() - end < MIB, "up to {end}");
    }
}

// ---- 2. limits --------------------------------------------------------------------------------------------------

/// J5, by reading: a group that fills a file to its last block is in it, and the next one is in another.
#[test]
fn max_segment_size() {
    let disk = medium();
    let mut journal = open(&disk);
    let largest = FILE_BYTES - 2 * BLOCK;
    put(&mut journal, 0, largest as usize - 24 - HEADER_SIZE_BYTES).unwrap();
    // And one that is made ahead.
    assert_eq!((files(&disk).len(), journal.files_free()), (2, 1));
    assert_eq!(places(&disk, &files(&disk)[0].0), [(BLOCK, FILE_BYTES - BLOCK)]);
    put(&mut journal, 1, 0).unwrap();
    assert_eq!((files(&disk).len(), journal.files_free()), (3, 1));
    // A group above a file has one of its own length: no group is split.
    put(&mut journal, 2, 2 * FILE_BYTES as usize).unwrap();
    let (found, _) = bodies(disk.durable_image(), 0).unwrap();
    assert_eq!(found.iter().map(Vec::len).max(), Some(2 * FILE_BYTES as usize + 24));
    assert_eq!(found.len(), 3);
}

/// J8: a file that is made ahead is exactly as long as it will be, and counts as unused until it has a header.
#[test]
fn new_segment_odsync() {
    let disk = medium();
    let mut journal = open(&disk);
    let slot = journal.reserve_slot();
    let config = journal.config().clone();
    let prepared = PreparedFile::create(&*disk, &config, slot, || true).unwrap().unwrap();
    let (path, length) = files(&disk).remove(0);
    assert_eq!(length, FILE_BYTES);
    let dyn_disk: Arc<dyn Disk> = disk.clone();
    assert_eq!(survey::file(&dyn_disk, &path).unwrap().header, Err(HeaderProblem::Unused));
    journal.add_prepared(prepared);
    // The last free one is kept back, so there are two.
    let slot = journal.reserve_slot();
    let second = PreparedFile::create(&*disk, &config, slot, || true).unwrap().unwrap();
    journal.add_prepared(second);
    put(&mut journal, 0, 10).unwrap();
    assert_eq!(files(&disk).iter().map(|(_, length)| *length).collect::<Vec<_>>(), [FILE_BYTES; 2]);
    assert!(survey::file(&dyn_disk, &path).unwrap().header.is_ok(), "it is used, and not longer");
    // One that was given up half-way is finished by the next who prepares it.
    let slot = journal.reserve_slot();
    let mut steps = 1;
    let given_up = PreparedFile::create(&*disk, &config, slot, || {
        steps -= 1;
        steps >= 0
    });
    assert!(given_up.unwrap().is_none() || files(&disk)[2].1 == FILE_BYTES);
    PreparedFile::create(&*disk, &config, slot, || true).unwrap().unwrap();
    assert_eq!(files(&disk)[2].1, FILE_BYTES);
}

/// J10: a journal that failed is closed: nothing is written to it any more, and the first reason is kept.
#[test]
fn closed() {
    let disk = medium();
    let mut journal = open(&disk);
    put(&mut journal, 0, 10).unwrap();
    disk.order_fault(FaultKind::SyncErrorNewData, None);
    let first = put(&mut journal, 1, 10).unwrap_err().to_string();
    let changes = disk.changes();
    for entry in 2..5 {
        assert_eq!(put(&mut journal, entry, 10).unwrap_err().to_string(), first);
        assert_eq!(journal.sync().unwrap_err().to_string(), first);
    }
    assert_eq!(disk.changes(), changes, "not one write and not one sync");
}

// ---- 3. space ---------------------------------------------------------------------------------------------------

/// J7: files that a flush covers are free, but not the one being written; a restart behind the last mark frees it too.
#[test]
fn discard_completed_segments() {
    let disk = medium();
    let mut journal = open(&disk);
    let mut last = 0;
    for entry in 0..60 {
        last = put(&mut journal, entry, 700).unwrap();
    }
    let count = files(&disk).len();
    assert!(count > 3);
    journal.release_up_to(last);
    assert_eq!(journal.files_free(), count - 1);
    assert!(journal.bytes_in_use() <= FILE_BYTES);
    drop(journal);
    let mut journal = open_with(&disk, config(0), last);
    journal.release_up_to(last);
    assert_eq!((journal.files_free(), journal.bytes_in_use()), (count, 0));
}

/// J11: a journal that has more files than its cap allows takes them from the end as they become free.
#[test]
fn delete_when_over_disk_limit() {
    let disk = medium();
    let mut journal = open(&disk);
    let mut last = 0;
    for entry in 0..120 {
        last = put(&mut journal, entry, 700).unwrap();
    }
    assert!(files(&disk).len() > 6);
    drop(journal);
    let mut journal = open_with(&disk, config(4 * FILE_BYTES), last);
    let before = journal.footprint_bytes();
    journal.release_up_to(last);
    assert_eq!(journal.footprint_bytes(), files(&disk).len() as u64 * FILE_BYTES);
    assert!(journal.footprint_bytes() < before && journal.footprint_bytes() <= 4 * FILE_BYTES);
    let (found, replayed) = bodies(disk.durable_image(), last).unwrap();
    assert_eq!((found.len(), replayed.groups), (0, 0));
}

/// J7, J9: files that were replayed are used again; restarts do not make the journal grow.
#[test]
fn handle_replayed_segments() {
    let disk = medium();
    let mut last = 0;
    let mut counts = Vec::new();
    for round in 0..5 {
        let mut journal = open_with(&disk, config(8 * FILE_BYTES), last);
        journal.release_up_to(last);
        for entry in 0..40 {
            last = put(&mut journal, round * 40 + entry, 700).unwrap();
        }
        counts.push(journal.footprint_bytes());
        assert!(journal.footprint_bytes() <= 9 * FILE_BYTES, "cap and one file");
    }
    // Once, the file that is kept back comes to them.
    assert!(counts[1] <= counts[0] + FILE_BYTES, "{counts:?}");
    assert!(counts[2..].iter().all(|count| *count == counts[1]), "{counts:?}");
}

/// J11: the footprint counts a file from the moment it may be made until it is removed, free ones too.
#[test]
fn delete_recycled_segment_removes_size() {
    let disk = medium();
    let mut journal = open(&disk);
    let slot = journal.reserve_slot();
    assert_eq!(journal.footprint_bytes(), FILE_BYTES);
    let config = journal.config().clone();
    journal.add_prepared(PreparedFile::create(&*disk, &config, slot, || true).unwrap().unwrap());
    assert_eq!(journal.footprint_bytes(), FILE_BYTES);
    for entry in 0..40 {
        put(&mut journal, entry, 700).unwrap();
    }
    let made = files(&disk).len() as u64;
    assert_eq!(journal.footprint_bytes(), made * FILE_BYTES);
    journal.release_up_to(journal.last_group());
    assert_eq!(journal.footprint_bytes(), made * FILE_BYTES, "free files are there");
}

// ---- 4. replay --------------------------------------------------------------------------------------------------

/// J9: everything comes back, once, in the order in which it was written.
#[test]
fn reader() {
    let disk = medium();
    let mut journal = open(&disk);
    for entry in 0..30 {
        put(&mut journal, entry, (entry as usize * 97) % 3000).unwrap();
    }
    let (found, replayed) = bodies(disk.durable_image(), 0).unwrap();
    let expected: Vec<_> = (0..30).map(|entry| body(entry, (entry as usize * 97) % 3000)).collect();
    assert_eq!(found, expected);
    assert_eq!((replayed.groups, replayed.torn_tail), (30, None));
    let (rest, _) = bodies(disk.durable_image(), 10).unwrap();
    assert_eq!(rest, expected[10..], "only what is behind the mark");
}

/// J9: one record that fills most of a file.
#[test]
fn replay_single_large() {
    let disk = medium();
    put(&mut open(&disk), 0, FILE_BYTES as usize / 2).unwrap();
    assert_eq!(bodies(disk.durable_image(), 0).unwrap().0, [body(0, FILE_BYTES as usize / 2)]);
}

/// J9: groups larger than a file, of several records, between small ones.
#[test]
fn replay_large() {
    let disk = medium();
    let mut journal = open(&disk);
    let large = [30_000, 30_000, 30_000, 1];
    put(&mut journal, 0, 3).unwrap();
    journal.write(&group(1, &large)).unwrap();
    put(&mut journal, 5, 3).unwrap();
    let expected: Vec<_> = [3].iter().chain(&large).chain(&[3]).zip(0..).map(|(s, e)| body(e, *s)).collect();
    assert_eq!(bodies(disk.durable_image(), 0).unwrap().0, expected);
}

/// J14: the first group begins behind the header block, each other one where the one before ends.
#[test]
fn entry_offsets() {
    let disk = medium();
    let mut journal = open(&disk);
    for entry in 0..5 {
        put(&mut journal, entry, 1500 * entry as usize).unwrap();
    }
    let places = places(&disk, &files(&disk)[0].0);
    let mut expected = BLOCK;
    for (offset, length) in places {
        assert_eq!(offset, expected);
        assert_eq!(length % BLOCK, 0);
        expected += length;
    }
}

/// J14: a record whose last byte is the last of the file is no torn tail, and nothing behind it is missed.
#[test]
fn segment_end_on_entry_end() {
    let disk = medium();
    let mut journal = open(&disk);
    // Header of the group, 64 and 24 bytes, is followed by the part where it lies in its chunk: at the next block.
    let size = (FILE_BYTES - 2 * BLOCK) as usize - 24 - HEADER_SIZE_BYTES;
    put(&mut journal, 0, size).unwrap();
    put(&mut journal, 1, 10).unwrap();
    let (found, replayed) = bodies(disk.durable_image(), 0).unwrap();
    assert_eq!(found, [body(0, size), body(1, 10)]);
    assert_eq!(replayed.torn_tail, None);
    let (path, _) = files(&disk).remove(0);
    let file = disk.open(&path, OpenMode::Read).unwrap();
    let mut last = vec![0; BLOCK_SIZE_BYTES];
    file.read_exact_at(&mut last, FILE_BYTES - BLOCK).unwrap();
    assert!(last.iter().all(|byte| *byte == 0), "entry 0 is of zeros up to the end");
}

/// J9: files are replayed in the order of their use, not of their names.
#[test]
fn replay_segment_order() {
    let disk = medium();
    let mut journal = open(&disk);
    let mut last = 0;
    for entry in 0..40 {
        last = put(&mut journal, entry, 700).unwrap();
    }
    journal.release_up_to(last);
    for entry in 40..80 {
        put(&mut journal, entry, 700).unwrap();
    }
    let ids: Vec<_> = files(&disk)
        .iter()
        .filter_map(|(path, _)| {
            let dyn_disk: Arc<dyn Disk> = disk.clone();
            Some(survey::file(&dyn_disk, path).unwrap().header.ok()?.identity.file_id)
        })
        .collect();
    assert!(!ids.is_sorted(), "the first slots are the newest now: {ids:?}");
    let (found, _) = bodies(disk.durable_image(), last).unwrap();
    assert_eq!(found, (40..80).map(|entry| body(entry, 700)).collect::<Vec<_>>());
}

/// J9: an error of the visitor of the records ends the replay with that error, and the next replay gives all of them.
#[test]
fn handle_consumer_error() {
    let disk = medium();
    let mut journal = open(&disk);
    for entry in 0..6 {
        put(&mut journal, entry, 10).unwrap();
    }
    let mut again = Journal::open(disk.clone(), config(0), Arc::new(SeededRandom::new(3))).unwrap();
    let mut seen = 0;
    let failed = again.replay(0, |group, _| {
        seen += 1;
        if group == 3 { Err("no room") } else { Ok(()) }
    });
    assert!(matches!(failed, Err(ReplayError::Visitor("no room"))));
    assert_eq!(seen, 3);
    assert_eq!(bodies(disk.durable_image(), 0).unwrap().0.len(), 6);
}

/// J13: damage wholly below the mark is harmless and passed over; groups behind the mark are replayed.
#[test]
fn invalid_entry_skipped() {
    let disk = medium();
    let mut journal = open(&disk);
    for entry in 0..6 {
        put(&mut journal, entry, 10).unwrap();
    }
    let (path, _) = files(&disk).remove(0);
    spoil(&disk, &path, places(&disk, &path)[1].0 + BLOCK + 20);
    let (found, _) = bodies(disk.durable_image(), 3).unwrap();
    assert_eq!(found, (3..6).map(|entry| body(entry, 10)).collect::<Vec<_>>());
    assert!(matches!(bodies(disk.durable_image(), 0), Err(ReplayError::Damage(_))), "not below this one");
}

// ---- 5. damage --------------------------------------------------------------------------------------------------

/// J13: a bad byte in a record that is needed, with a group behind it, stops the replay and names the place.
#[test]
fn entry_corruption() {
    let disk = medium();
    let mut journal = open(&disk);
    for entry in 0..6 {
        put(&mut journal, entry, 500).unwrap();
    }
    let (path, _) = files(&disk).remove(0);
    let (offset, _) = places(&disk, &path)[2];
    spoil(&disk, &path, offset + BLOCK + 300);
    match bodies(disk.durable_image(), 0) {
        Err(ReplayError::Damage(damage)) => assert_eq!((damage.path, damage.offset), (path, offset)),
        other => panic!("{other:?}"),
    }
}

/// J13: the first group of a file, which nothing but the header precedes.
#[test]
fn chunk_corruption() {
    let disk = medium();
    let mut journal = open(&disk);
    for entry in 0..4 {
        put(&mut journal, entry, 500).unwrap();
    }
    let (path, _) = files(&disk).remove(0);
    spoil(&disk, &path, BLOCK + 3);
    assert!(matches!(bodies(disk.durable_image(), 0), Err(ReplayError::Damage(_))));
}

/// J13: the last group of a file that is not the newest is missed by the next file.
#[test]
fn chunk_corruption2() {
    let disk = medium();
    let mut journal = open(&disk);
    for entry in 0..40 {
        put(&mut journal, entry, 700).unwrap();
    }
    let (path, _) = files(&disk).remove(0);
    let (offset, _) = *places(&disk, &path).last().unwrap();
    spoil(&disk, &path, offset + BLOCK + 100);
    assert!(matches!(bodies(disk.durable_image(), 0), Err(ReplayError::Damage(_))));
}

/// J8: in a recycled file a bad last group leaves older groups behind it, which are of another use: a torn tail, not
/// damage.
#[test]
fn chunk_corruption3() {
    let disk = medium();
    let mut journal = open(&disk);
    let mut last = 0;
    for entry in 0..15 {
        last = put(&mut journal, entry, 700).unwrap();
    }
    journal.release_up_to(last);
    // The first file is full and free; the second one fills up, and then the first is taken again.
    let mut entry = 15;
    while files(&disk).len() < 2 || journal.files_free() > 0 {
        put(&mut journal, entry, 700).unwrap();
        journal.release_up_to(journal.last_group() - 1);
        entry += 1;
        assert!(entry < 100);
        if entry > 40 && places(&disk, &files(&disk)[0].0).len() == 3 {
            break;
        }
    }
    let (path, groups) = files(&disk)
        .into_iter()
        .map(|(path, _)| (path.clone(), places(&disk, &path)))
        .max_by_key(|(path, _)| {
            let dyn_disk: Arc<dyn Disk> = disk.clone();
            survey::file(&dyn_disk, path).unwrap().header.map_or(0, |header| header.identity.file_id)
        })
        .unwrap();
    let covered = journal.last_group() - 1;
    let (offset, length) = *groups.last().unwrap();
    assert!(offset + length < FILE_BYTES, "older groups are behind it");
    spoil(&disk, &path, offset + 10);
    let (found, _) = bodies(disk.durable_image(), covered).unwrap();
    assert!(found.is_empty(), "the last group is torn, and nothing of an older use came instead");
}

/// J13: a file that was cut is damage: in a group that others follow in the next file, and in the last of all, because
/// no write that was never finished leaves a file shorter than it was.
#[test]
fn chunk_truncation() {
    let disk = medium();
    let mut journal = open(&disk);
    for entry in 0..10 {
        put(&mut journal, entry, 700).unwrap();
    }
    let all = files(&disk);
    assert!(all.len() >= 3);
    for (path, _) in &all {
        // One is made ahead and has no groups.
        let Some(&(offset, _)) = places(&disk, path).last() else { continue };
        let image = disk.durable_image();
        image.open(path, OpenMode::CreateBuffered).unwrap().set_len(offset + 100).unwrap();
        assert!(matches!(bodies(image, 0), Err(ReplayError::Damage(_))), "{}", path.display());
    }
}

// ---- 6. liveness ------------------------------------------------------------------------------------------------

/// J10: an error while a file is taken into use fails the journal, also when somebody removed the file before.
#[test]
fn exceptions_in_allocate() {
    for is_file_gone in [false, true] {
        let disk = medium();
        let mut journal = open(&disk);
        put(&mut journal, 0, FILE_BYTES as usize - 5000).unwrap();
        if is_file_gone {
            let slot = journal.reserve_slot();
            let config = journal.config().clone();
            journal.add_prepared(PreparedFile::create(&*disk, &config, slot, || true).unwrap().unwrap());
            disk.remove(&files(&disk)[1].0).unwrap();
        }
        disk.order_fault(FaultKind::SyncErrorNewData, None);
        assert!(put(&mut journal, 1, 5000).is_err());
        assert!(journal.failure().is_some());
        let (found, _) = bodies(disk.durable_image(), 0).unwrap();
        assert_eq!(found.len(), 1, "what was acknowledged is there");
    }
}

/// J10: a volume without space for the next file fails the journal, and what was acknowledged stays.
#[test]
fn allocation_failure() {
    let disk = medium();
    let mut journal = open(&disk);
    disk.set_capacity(Some(FILE_BYTES + BLOCK));
    let mut acknowledged = 0;
    for entry in 0..200 {
        match put(&mut journal, entry, 700) {
            Ok(_) => acknowledged += 1,
            Err(_) => break,
        }
    }
    assert!(journal.failure().is_some() && acknowledged > 0 && acknowledged < 200);
    disk.set_capacity(None);
    let (found, _) = bodies(disk.durable_image(), 0).unwrap();
    assert!(found.len() >= acknowledged);
}

// ---- 8. crash ---------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Answers(parking_lot::Mutex<Vec<i64>>);
impl AddSink for Answers {
    fn on_adds_done(&self, _: &GroupTimes, shards: &[Vec<AddDone>]) {
        let acknowledged = shards.iter().flatten().filter(|done| done.result.is_ok());
        self.0.lock().extend(acknowledged.map(|done| done.entry.get()));
    }
}

fn machine(disk: Arc<dyn Disk>) -> Result<Machine, bindery_engine::OpenError> {
    let config = EngineConfig {
        journal_dirs: vec!["/d/journal0".into(), "/d/journal1".into()],
        ledger_dirs: vec!["/d/ledgers0".into(), "/d/ledgers1".into()],
        shard_count: 2,
        write_pool_bytes: 1 << 20,
        chunk_bytes: 64 << 10,
        journal_file_bytes: FILE_BYTES,
        group_bytes_max: 64 << 10,
        entry_bytes_max: 16 << 10,
        ..EngineConfig::default()
    };
    Machine::open(config, disk, Arc::new(ManualClock::new(0)), Arc::new(SeededRandom::new(1)))
}

/// Two rounds of: placed, cut, written, answered, frozen, flushed, released. Ends behind so many steps, or when the power
/// is gone. Returns what was acknowledged, by ledger.
fn live(disk: &Arc<SimDisk>, steps: usize) -> Result<Vec<Vec<i64>>, bindery_engine::OpenError> {
    let mut machine = machine(disk.clone())?;
    let engine = machine.engine.clone();
    // A ledger of each shard, so of each journal.
    let of =
        |shard| (0..).filter_map(LedgerId::new).find(|ledger| engine.shard_of(*ledger) == shard).unwrap();
    let ledgers = [of(0), of(1)];
    let sinks = [Answers::default(), Answers::default()];
    let mut left = steps;
    let mut step = || {
        left = left.saturating_sub(1);
        left > 0 && !disk.is_off()
    };
    'all: for round in 0..2 {
        for (journal, ledger) in ledgers.iter().enumerate() {
            for entry in round * 3..round * 3 + 3 {
                let body = [ledger.get(), entry, -1, 0].map(i64::to_be_bytes).concat();
                let add = Add {
                    origin: Origin { connection: 0, txn: 0, tag: 0 },
                    ledger: *ledger,
                    entry: EntryId::new(entry).unwrap(),
                    last_add_confirmed: None,
                    key: MasterKey::new([1; 20]),
                    body: &body,
                    is_recovery: false,
                    is_high_priority: false,
                };
                assert_eq!(engine.add_batch(journal, &[add]), 1);
            }
            if !step() {
                break 'all;
            }
        }
        machine.want_freeze();
        let mut tickets = Vec::new();
        for (journal, sink) in sinks.iter().enumerate() {
            let in_flight = machine.journals[journal].cut().unwrap();
            if !step() {
                break 'all;
            }
            let written = machine.journals[journal].write(&in_flight);
            if !step() {
                break 'all;
            }
            let mut done = machine.journals[journal].finish(in_flight, written);
            tickets.extend(done.freeze.take());
            done.deliver(sink);
            if !step() {
                break 'all;
            }
        }
        for ticket in tickets {
            let Ok(flushed) = machine.flushing.flush(ticket) else { break 'all };
            if !step() {
                break 'all;
            }
            machine.journals[flushed.journal].on_flushed(flushed);
            if !step() {
                break 'all;
            }
        }
    }
    Ok(sinks.into_iter().map(|sink| sink.0.into_inner()).collect())
}

/// The acknowledged entries are there, each once, and no others.
fn after_a_crash(disk: SimDisk, acknowledged: &[Vec<i64>], what: &str) {
    let machine = machine(Arc::new(disk)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let engine = &machine.engine;
    for (shard, acknowledged) in acknowledged.iter().enumerate() {
        let ledger =
            (0..).filter_map(LedgerId::new).find(|ledger| engine.shard_of(*ledger) == shard).unwrap();
        let runs = engine.list_entries(ledger).unwrap_or_default();
        let listed: Vec<i64> = runs.iter().flat_map(|run| run.first.get()..=run.last.get()).collect();
        assert!(listed.iter().all(|entry| (0..6).contains(entry)), "{what}: {listed:?}");
        assert!(listed.windows(2).all(|pair| pair[0] < pair[1]), "{what}: {listed:?}");
        for entry in acknowledged {
            assert!(listed.contains(entry), "{what}: {ledger}:{entry} of {acknowledged:?}, {listed:?}");
        }
        for entry in listed {
            let found = match engine.read(ledger, EntryRef::At(EntryId::new(entry).unwrap())) {
                Ok(Lookup::Memory(body)) => body.to_vec(),
                Ok(Lookup::Disk(read)) => read.load().unwrap(),
                _ => panic!("{what}: {ledger}:{entry} is listed and not there"),
            };
            assert_eq!(found, [ledger.get(), entry, -1, 0].map(i64::to_be_bytes).concat(), "{what}");
        }
    }
}

/// J1, J9, IB1, IB11, IB12: the process is killed, and the power cut, behind each step of an entry's life, and at each
/// change of the disk inside them; two journals, two ledger directories.
#[test]
fn kill_at_each_entry_state() {
    let root = || {
        let disk = SimDisk::new(SimDiskConfig::default(), &SeededRandom::new(5));
        disk.create_dir_all(Path::new("/d")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        Arc::new(disk)
    };
    for steps in 1..40 {
        let disk = root();
        let acknowledged = live(&disk, steps).unwrap();
        after_a_crash(disk.durable_image(), &acknowledged, &format!("power cut behind step {steps}"));
        let image = disk.crash(&SeededRandom::new(steps as u64));
        after_a_crash(image, &acknowledged, &format!("crash behind step {steps}"));
    }
    let disk = root();
    let all = live(&disk, usize::MAX).unwrap();
    assert_eq!(all, [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]].map(Vec::from));
    let changes = disk.changes();
    for change in 0..changes {
        let disk = root();
        disk.crash_after(change);
        // A start that the power ends has acknowledged nothing.
        let acknowledged = live(&disk, usize::MAX).unwrap_or_default();
        let image = disk.crash(&SeededRandom::new(change));
        after_a_crash(image, &acknowledged, &format!("power cut at change {change} of {changes}"));
    }
}
