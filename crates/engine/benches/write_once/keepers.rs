//! Today's keeper sorts and copies into an entry log; the other one writes an index and keeps the journal file. And what
//! comes later for that one: sorting.

use crate::adds::{Keeper, Rec, Set, slot_path};
use crate::disk::{CountingDisk, Fresh, Spares};
use crate::index::{self, Found, IndexWriter, RECORD_BYTES, Run};
use bindery_io::chunk::AlignedBuf;
use bindery_io::{BLOCK_SIZE_BYTES, Disk, OpenMode};
use bindery_journal::FileHeader;
use bindery_storage::{
    Checkpoint, DirectoryCommit, Generation, LedgerDirectory, LogId, LogRecord, StateTable, StorageMemory,
};
use bindery_types::codec::crc32c;
use bindery_types::{EntryId, LedgerId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const READ_BYTES: usize = 1 << 20;

/// Pools of a bookie that may take 1 GiB.
pub fn memory() -> StorageMemory {
    StorageMemory::new(80 << 20, 54 << 20)
}

pub fn open_directory(disk: &Arc<CountingDisk>, dir: &Path) -> LedgerDirectory {
    let disk: Arc<dyn Disk> = disk.clone();
    disk.create_dir_all(dir).unwrap();
    LedgerDirectory::open_with(&disk, dir, &memory()).unwrap().directory
}

/// As `flush_directory` of the engine.
pub struct Today(pub LedgerDirectory);

impl Keeper for Today {
    fn keep(&mut self, set: Set) {
        let mut log = self.0.begin_log(set.generation()).unwrap();
        for (ledger, recs) in set.sorted() {
            for rec in recs {
                log.append(ledger, EntryId::new(rec.entry).unwrap(), set.body(rec), rec.crc32c).unwrap();
            }
        }
        let sealed = log.finish_or_abandon().unwrap();
        assert_eq!(sealed.entries, set.entries);
        let (states, marks) = (set.states(), [set.mark()]);
        let commit = DirectoryCommit {
            logs_added: &[sealed],
            ledgers: &[&states],
            marks: &marks,
            ..DirectoryCommit::default()
        };
        self.0.commit(&commit).unwrap();
    }
}

/// Paths of a kept journal file and of its index.
pub fn kept_paths(dir: &Path, file_id: u64) -> (PathBuf, PathBuf) {
    (dir.join(format!("{file_id:016x}.jlog")), dir.join(format!("{file_id:016x}.jidx")))
}

/// Keeps journal files as logs.
pub struct Once<'a> {
    pub disk: Arc<CountingDisk>,
    pub journal_dir: PathBuf,
    table_dir: PathBuf,
    pub table: Option<StateTable>,
    pub spares: &'a mut Spares,
    pub fresh: Fresh,
    /// Of the journal files kept, the oldest first.
    pub kept: Vec<u64>,
}

impl<'a> Once<'a> {
    pub fn new(
        disk: &Arc<CountingDisk>,
        dir: &Path,
        journal_dir: &Path,
        spares: &'a mut Spares,
        fresh: Fresh,
    ) -> Once<'a> {
        disk.create_dir_all(dir).unwrap();
        let shared: Arc<dyn Disk> = disk.clone();
        let (table, _) = StateTable::create(&shared, dir).unwrap();
        let (disk, journal_dir) = (disk.clone(), journal_dir.to_owned());
        let table_dir = dir.to_owned();
        Once { disk, journal_dir, table_dir, table: Some(table), spares, fresh, kept: Vec::new() }
    }

    /// As a start does. It lists all that was kept.
    pub fn open_table(&mut self) {
        let disk: Arc<dyn Disk> = self.disk.clone();
        let (table, recovered) = StateTable::open(&disk, &self.table_dir).unwrap();
        assert_eq!(recovered.logs.iter().map(|log| log.log_id.0).collect::<Vec<_>>(), self.kept);
        self.table = Some(table);
    }

    fn write_index(&self, set: &Set) -> u64 {
        let (_, path) = kept_paths(&self.journal_dir, set.file_id);
        let mut writer = IndexWriter::create(&*self.disk, &path, set.file_id);
        for (ledger, recs) in set.sorted() {
            let found = recs.iter().map(|rec| {
                let Rec { entry, length, crc32c, .. } = *rec;
                Found { entry, offset: set.offset_of(rec), length, crc32c }
            });
            let max_lac = recs.last().map_or(-1, |rec| rec.entry - 1);
            writer.run(ledger, max_lac, found);
        }
        writer.finish(set.group)
    }

    /// Commits what an index says is in a kept file.
    fn commit(&mut self, set: &Set, size: u64) {
        let marks = vec![set.mark()];
        let (log_id, generation) = (LogId(set.file_id), set.generation());
        let record = LogRecord { log_id, generation, size, entries: set.entries, marks: marks.clone() };
        let states = set.states();
        let checkpoint =
            Checkpoint { logs_added: &[record], ledgers: &[&states], marks: &marks, ..Checkpoint::default() };
        self.table.as_mut().unwrap().commit(&checkpoint).unwrap();
        self.kept.push(set.file_id);
    }
}

impl Keeper for Once<'_> {
    fn keep(&mut self, set: Set) {
        let slot = slot_path(&self.journal_dir, set.slot);
        let mut block = AlignedBuf::zeroed(BLOCK_SIZE_BYTES);
        let file = Disk::open(&*self.disk, &slot, OpenMode::ReadDirect).unwrap();
        file.read_exact_at(&mut block, 0).unwrap();
        assert_eq!(FileHeader::decode(&block).unwrap().identity.file_id, set.file_id);
        let index_bytes = self.write_index(&set);
        let (kept, _) = kept_paths(&self.journal_dir, set.file_id);
        Disk::rename(&*self.disk, &slot, &kept).unwrap();
        let fresh = self.spares.take(self.fresh);
        Disk::rename(&*self.disk, &fresh, &slot).unwrap();
        Disk::sync_dir(&*self.disk, &self.journal_dir).unwrap();
        self.commit(&set, file.len().unwrap() + index_bytes);
    }
}

/// Sorts kept files, so many at a time, into entry logs of `directory`. Each is read once, from its beginning to its end.
/// Returns the number of entries.
pub fn sort(once: &mut Once<'_>, directory: &mut LedgerDirectory, buffers: &mut [[AlignedBuf; 2]]) -> u64 {
    let mut entries = 0;
    let kept = std::mem::take(&mut once.kept);
    for some in kept.chunks(buffers.len()) {
        let mut runs: BTreeMap<(LedgerId, usize), Run> = BTreeMap::new();
        for (number, file_id) in some.iter().enumerate() {
            let (path, index_path) = kept_paths(&once.journal_dir, *file_id);
            let [bodies, index] = &mut buffers[number];
            read_whole(&once.disk, &path, bodies);
            read_whole(&once.disk, &index_path, index);
            let opened = Disk::open(&*once.disk, &index_path, OpenMode::ReadScattered).unwrap();
            runs.extend(index::open(&*opened, *file_id).0.into_iter().map(|run| ((run.ledger, number), run)));
        }
        // By ledger, then by age: entries ascend, since they came in order.
        let mut log = directory.begin_log(Generation(*some.last().unwrap())).unwrap();
        for ((ledger, number), run) in &runs {
            let [bodies, index] = &buffers[*number];
            let records = &index[run.records_offset as usize..][..run.count as usize * RECORD_BYTES];
            assert_eq!(crc32c(&[records]), run.records_crc);
            for (place, record) in (0..).zip(records.chunks_exact(RECORD_BYTES)) {
                let found = index::decode_record(record, some[*number], run, place);
                let body = &bodies[found.offset as usize..][..found.length as usize];
                assert_eq!(crc32c(&[body]), found.crc32c);
                log.append(*ledger, EntryId::new(found.entry).unwrap(), body, found.crc32c).unwrap();
            }
        }
        let sealed = log.finish_or_abandon().unwrap();
        entries += sealed.entries;
        let commit = DirectoryCommit { logs_added: &[sealed], ..DirectoryCommit::default() };
        directory.commit(&commit).unwrap();
        let gone: Vec<LogId> = some.iter().map(|file_id| LogId(*file_id)).collect();
        let checkpoint = Checkpoint { logs_removed: &gone, ..Checkpoint::default() };
        once.table.as_mut().unwrap().commit(&checkpoint).unwrap();
        for file_id in some {
            let (path, index_path) = kept_paths(&once.journal_dir, *file_id);
            once.spares.put(&path);
            Disk::remove(&*once.disk, &index_path).unwrap();
        }
    }
    entries
}

/// Memory for so many kept files and their indexes. All of it is touched, as that of a pool is: fresh pages are dear.
pub fn buffers(at_once: usize, file_bytes: u64) -> Vec<[AlignedBuf; 2]> {
    let touched = |bytes: u64| {
        let mut buffer = AlignedBuf::zeroed(bytes as usize);
        buffer.fill(1);
        buffer
    };
    (0..at_once).map(|_| [touched(file_bytes), touched(file_bytes / 2)]).collect()
}

/// A file, past the page cache.
///
/// # Panics
/// When it does not fit.
fn read_whole(disk: &CountingDisk, path: &Path, bytes: &mut AlignedBuf) {
    let file = Disk::open(disk, path, OpenMode::ReadDirect).unwrap();
    let length = file.len().unwrap() as usize;
    for (number, piece) in bytes[..length].chunks_mut(READ_BYTES).enumerate() {
        file.read_exact_at(piece, (number * READ_BYTES) as u64).unwrap();
    }
}
