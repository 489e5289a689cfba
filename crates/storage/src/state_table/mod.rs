//! The state table of a ledger directory: live entry logs, ledger states and journal marks, in one redb database
//! in the file `state.redb`. Its commit is the only commit point of the directory.
//!
//! # Data flow
//! ```text
//! open (loads everything, verified) -> commit (Checkpoint) ...
//! ```
//!
//! # Invariants
//! 1. A checkpoint is in force entirely or not at all, and durable when [`StateTable::commit`] returns `Ok`.
//! 2. No mark goes back, journal by journal (IB12). Asserted before each commit.
//! 3. A table that lost or kept a record against the last commit does not load: the sum over all records' hashes
//!    is committed with them. "Unknown" never reads as "empty" (IB15).
//! 4. After the first failure of a write, sync or commit the file is not written again; every later commit fails
//!    with the first reason (IB14). Whether the failed commit is in force is known after a restart.
//! 5. The file is made under another name and renamed when complete: `state.redb` is never half made, and an
//!    existing one is never initialised again, however short it is.
//!
//! 6. A commit that was ever acknowledged is in force, or the table does not open: each commit is numbered, and the
//!    number sealed in the file outside of redb before `commit` returns.
//! 7. An open finds what is on the medium: after a sync that failed, the page cache shows pages that never got there, also
//!    to the next process. So a commit is believed, and sealed if a crash left it without its seal, only as read past the page
//!    cache ([`redb_file`](crate::redb_file)), where the file system has direct I/O.
//!
//! # Why redb's one-phase commit, with a seal of our own
//! redb never overwrites a live page; a commit writes new pages and the idle one of two commit slots, then flips the
//! byte in its header that says which slot counts. Crash model: any subset of the sectors written since the last
//! sync may be old, new or torn.
//! - *One phase* (redb's default) syncs once, after the flip. Whether the flipped slot's pages all arrived is decided
//!   by their 128-bit checksums at the next open; if not, redb falls back to the slot before, whose pages are intact.
//!   Safe in this model, but a page of an acknowledged commit that rots looks like a torn commit: redb goes back to
//!   the state before in silence, while the journal files that only the newer one covers may be gone. The seal tells
//!   the two apart: a table behind its seal lost an acknowledged commit, which is damage.
//! - *Two phases* sync pages and slot before the flip, and refuse a slot that does not verify instead of falling
//!   back. That is as safe, and one more sync as well, but after such a commit redb trusts the slot so much that
//!   opening parses pages before verifying them: one flipped bit in the right place panics (a test here found it in
//!   redb 4.4). The one-phase path verifies first, so that damage is an error that names the file.
//! - *Quick repair* saves the page allocator with each commit, to spare the walk over the tables after a crash. It
//!   implies two phases, and the walk is wanted: it verifies every page, and `load` reads everything anyway.
//!
//! redb's header sector is rewritten in place, which a torn write would destroy; [`redb_file`](crate::redb_file) keeps it in two slots.
//!
//! # Why a table is never closed
//! redb saves its page allocator when a database is closed, and believes it unverified at the next open: one bad bit
//! there panics, or lets a live page be overwritten. So the file is shut before redb can close it. Each open is then
//! the one after a crash, which verifies every page and recounts the free ones. A stop writes nothing.
//!
//! # Limits
//! redb's cache: 4 MiB. `load` holds one record per ledger, and reads the extents one by one. Of fenced ledgers that are forgotten
//! [`LedgerRanges::RANGES_MAX`] ranges stay.

mod record;
#[cfg(test)]
mod tests;
mod tier;

use crate::codec::{Put, Take};
pub use crate::error::STATE_FILE_NAME;
use crate::error::SYNC_STATE_TABLE;
use crate::ledger_ranges::LedgerRanges;
use crate::read_only::ReadOnlyDisk;
use crate::redb_file::{
    Backend, Format, HEADER_SIZE, Latch, Medium, Seals, check_header, encode_header, state_error,
};
use crate::{Damaged, DiskError, LogId, NewerFormat, StateError};
use bindery_io::{BLOCK_SIZE_BYTES, Disk, OpenMode};
use bindery_types::LedgerId;
use crc_fast::{CrcAlgorithm, Digest};
use record::{BadValue, NextIds, TableId, TableKey, number_of, seal, unseal};
use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, ReadableTable, Table, TableDefinition,
};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tier::PutError;

pub use record::{ExtentRow, JournalMark, LedgerRecord, LogRecord, Mark, Meta, TierRecord};
pub use tier::{ExtentChange, ExtentUpdate, TierView};

/// The version this build writes, and the newest it reads. 1: first.
pub const STATE_FORMAT_VERSION: u32 = 1;
const FORMAT: Format = Format { magic: b"BNDRSTAT", version: STATE_FORMAT_VERSION, name: "a state table" };

/// Name under which it is made.
pub(crate) const NEW_FILE_NAME: &str = "state.redb.new";

/// redb's cache, part of the fixed memory of the process. Checkpoints touch few pages.
const CACHE_BYTES: usize = 4 << 20;

type Definition = TableDefinition<'static, u64, &'static [u8]>;
const META: Definition = TableDefinition::new("meta");
const MARKS: Definition = TableDefinition::new("marks");
const LOGS: Definition = TableDefinition::new("logs");
const LEDGERS: Definition = TableDefinition::new("ledgers");
/// By ledger and first entry. Made with the first row.
const EXTENTS: TableDefinition<'static, (u64, u64), &'static [u8]> = TableDefinition::new("extents");

type Extents = ReadOnlyTable<(u64, u64), &'static [u8]>;

/// Keys of the table `meta`.
const KEY_IDENTITY: u64 = 0;
const KEY_NEXT_LOG: u64 = 1;
/// Number of the commit and sum over all other records.
const KEY_SUM: u64 = 2;

/// Everything the table holds, verified.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovered {
    /// `None` until the first commit that sets it.
    pub meta: Option<Meta>,
    /// One mark per journal that has one, ascending.
    pub marks: Vec<JournalMark>,
    /// Live logs, ascending.
    pub logs: Vec<LogRecord>,
    /// Known ledgers, ascending.
    pub ledgers: Vec<LedgerRecord>,
    /// Number of extents in object storage, of all ledgers. They are read through [`TierView`].
    pub extents: u64,
    /// All logs that were ever listed, or reserved, are below it.
    pub next_log_id: u64,
    /// Ledgers that were forgotten although they were fenced, and perhaps others.
    pub fences_forgotten: LedgerRanges,
}

/// Changes that come into force together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Checkpoint<'a> {
    /// New positions of journals; the others stay.
    pub marks: &'a [JournalMark],
    /// Logs that exist from now on. Their files must be durable already.
    pub logs_added: &'a [LogRecord],
    /// Logs that no longer exist. Their files may be unlinked afterwards.
    pub logs_removed: &'a [LogId],
    /// Ledger states that replace the ones before, in any order. Of several of one ledger the last counts.
    pub ledgers: &'a [&'a [LedgerRecord]],
    /// Extents of ledgers in object storage that come, and those that go.
    pub extents: &'a [ExtentChange],
    /// Ledgers to be forgotten, with their extents; one that the table does not hold is fine.
    pub ledgers_forgotten: &'a [LedgerId],
    /// Those of them that were fenced, which is remembered in ranges.
    pub fences_forgotten: &'a [LedgerId],
    /// Replaces identity and layout.
    pub meta: Option<&'a Meta>,
    /// Log ids below it are never given out again; `None` reserves up to the logs added.
    pub next_log_id: Option<u64>,
}

impl Checkpoint<'_> {
    fn records(&self) -> impl Iterator<Item = &LedgerRecord> {
        self.ledgers.iter().copied().flatten()
    }

    fn brings_extents(&self) -> bool {
        self.extents.iter().any(|change| !change.updates.is_empty())
    }
}

/// The open table. One owner commits; while it runs only extents are read ([`TierView`]).
pub struct StateTable {
    path: PathBuf,
    database: Arc<Database>,
    tier: Arc<TierView>,
    seals: Seals,
    latch: Arc<Latch>,
    marks: BTreeMap<u32, Mark>,
    sum: Sum,
    /// Number of the last commit in force, from 1.
    commits: u64,
    next: NextIds,
    /// There is a table of extents, or was a commit that made one.
    has_extents: bool,
}

/// Order-independent sum over records, to notice lost, stale and foreign ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sum {
    hashes: u64,
    records: u64,
}

impl Sum {
    fn hash(table: TableId, key: impl TableKey, value: &[u8]) -> u64 {
        let mut hash = Digest::new(CrcAlgorithm::Crc64Nvme);
        hash.update(&[table as u8]);
        hash.update(key.bytes().as_ref());
        hash.update(value);
        hash.finalize()
    }
    fn add(&mut self, table: TableId, key: impl TableKey, value: &[u8]) {
        self.hashes = self.hashes.wrapping_add(Sum::hash(table, key, value));
        self.records += 1;
    }
    fn subtract(&mut self, table: TableId, key: impl TableKey, value: &[u8]) {
        self.hashes = self.hashes.wrapping_sub(Sum::hash(table, key, value));
        self.records = self.records.checked_sub(1).expect("a removed record was counted when it was added");
    }
    fn put(&self, put: &mut Put<'_>) {
        put.u64(self.hashes).u64(self.records);
    }
    fn take(take: &mut Take<'_>) -> Option<Sum> {
        Some(Sum { hashes: take.u64()?, records: take.u64()? })
    }
}

impl StateTable {
    /// True when `dir` has a state table, whatever its condition.
    pub fn exists(disk: &Arc<dyn Disk>, dir: &Path) -> Result<bool, StateError> {
        let path = dir.join(STATE_FILE_NAME);
        disk.exists(&path).map_err(|e| DiskError::new(&path, "look for state table", e).into())
    }

    /// Makes an empty table in `dir`, which must have none. It is durable on return.
    pub fn create(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(StateTable, Recovered), StateError> {
        let (path, new) = (dir.join(STATE_FILE_NAME), dir.join(NEW_FILE_NAME));
        assert!(!StateTable::exists(disk, dir)?, "a state table is never made over another");
        let failed = |action| {
            let new = new.clone();
            move |e: io::Error| DiskError::new(&new, action, e)
        };
        if disk.exists(&new).map_err(failed("look for"))? {
            disk.remove(&new).map_err(failed("remove what an interrupted creation left:"))?;
        }
        let file = disk.open(&new, OpenMode::CreateBuffered).map_err(failed("create state table"))?;
        file.write_all_at(&mut [IoSlice::new(&encode_header(&FORMAT))], 0)
            .map_err(failed("write state table"))?;
        let latch = Arc::new(Latch::default());
        let medium = Medium::of(&**disk, &*file, &new).map_err(failed(SYNC_STATE_TABLE))?;
        let backend = Backend::new(file.clone(), medium.clone(), new.clone(), latch.clone())
            .map_err(failed("read state table"))?;
        let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend);
        let database = Arc::new(database.map_err(|e| state_error(&new, &latch, e.into()))?);
        let mut table = StateTable {
            path: new.clone(),
            tier: Arc::new(TierView::new(database.clone(), new.clone(), latch.clone())),
            database,
            seals: Seals::new(file.clone(), medium, latch.clone()),
            latch,
            marks: BTreeMap::new(),
            sum: Sum::default(),
            commits: 0,
            next: NextIds::default(),
            has_extents: false,
        };
        table.commit(&Checkpoint::default())?;
        drop(table);
        file.sync().map_err(failed(SYNC_STATE_TABLE))?;
        drop(file);
        disk.rename(&new, &path).map_err(|e| DiskError::new(&path, "publish state table", e))?;
        disk.sync_dir(dir).map_err(|e| DiskError::new(dir, "sync directory", e))?;
        StateTable::open(disk, dir)
    }

    /// Opens the table of `dir`, which must have one, and loads it.
    ///
    /// # Errors
    /// [`StateError::NewerFormat`] before anything is changed; [`StateError::Damaged`] when the file is not what was
    /// committed.
    pub fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<(StateTable, Recovered), StateError> {
        let path = dir.join(STATE_FILE_NAME);
        let failed = |e| DiskError::new(&path, "open state table", e);
        if !disk.exists(&path).map_err(failed)? {
            return Err(failed(io::ErrorKind::NotFound.into()).into());
        }
        let file = disk.open(&path, OpenMode::CreateBuffered).map_err(failed)?;
        // redb makes a new database of an empty file: that must not happen to one that was cut.
        if file.len().map_err(failed)? <= HEADER_SIZE {
            return Err(Damaged::new(&path, 0, "the file is cut").into());
        }
        let mut block = vec![0; BLOCK_SIZE_BYTES];
        file.read_exact_at(&mut block, 0).map_err(failed)?;
        check_header(&block, &FORMAT, &path)?;
        // Blocks for what was never written of it. Without them a commit may fail later; that is no reason not to start.
        let _ = file.len().and_then(|len| file.allocate(len));
        // Invariant 7.
        let synced = |e| DiskError::new(&path, SYNC_STATE_TABLE, e);
        let medium = Medium::of(&**disk, &*file, &path).map_err(synced)?;
        let latch = Arc::new(Latch::default());
        let backend =
            Backend::new(file.clone(), medium.clone(), path.clone(), latch.clone()).map_err(failed)?;
        let database = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend);
        let database = Arc::new(database.map_err(|e| state_error(&path, &latch, e.into()))?);
        let mut table = StateTable {
            tier: Arc::new(TierView::new(database.clone(), path.clone(), latch.clone())),
            seals: Seals::new(file, medium, latch.clone()),
            path,
            database,
            latch,
            marks: BTreeMap::new(),
            sum: Sum::default(),
            commits: 0,
            next: NextIds::default(),
            has_extents: false,
        };
        let recovered = table.load()?;
        table.has_extents = table.extents()?.is_some();
        table.marks = recovered.marks.iter().map(|m| (m.journal, m.mark)).collect();
        table.next =
            NextIds { log: recovered.next_log_id, fences_forgotten: recovered.fences_forgotten.clone() };
        (table.commits, table.sum) = table.committed_sum()?;
        table.check_seal()?;
        Ok((table, recovered))
    }

    /// State table invariant 6. A commit that a crash left without its seal is sealed now: it is in force.
    fn check_seal(&self) -> Result<(), StateError> {
        let path = &self.path;
        let sealed = self.seals.read().map_err(|e| DiskError::new(path, "read the seals of", e))?;
        let damaged = |what: String| Err(Damaged::new(path, BLOCK_SIZE_BYTES as u64, what).into());
        match sealed {
            Some(sealed) if sealed == self.commits => Ok(()),
            Some(sealed) if sealed > self.commits => damaged(format!(
                "commit {sealed} was acknowledged, but the tables are at commit {}",
                self.commits
            )),
            // The first commit of all is made under the temporary name: no reader sees it without its seal.
            Some(sealed) if sealed + 1 == self.commits => {
                self.seals.write(self.commits).map_err(|e| DiskError::new(path, "seal a commit in", e).into())
            }
            Some(sealed) => {
                damaged(format!("the tables are at commit {}, the seals at {sealed}", self.commits))
            }
            None => damaged("both seals are unreadable".to_owned()),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The extents in it, for readers.
    pub fn tier(&self) -> Arc<TierView> {
        self.tier.clone()
    }

    /// True when extents are in it, or were.
    pub(crate) fn has_extents(&self) -> bool {
        self.has_extents
    }

    /// Why the table takes no more commits, once something failed.
    pub fn failure(&self) -> Option<String> {
        self.latch.reason()
    }

    /// True when the last commit failed because the file system had no blocks left, and this was the only failure ever:
    /// [`StateTable::reopen`] may help.
    pub fn lacks_space(&self) -> bool {
        self.latch.is_for_want_of_space()
    }

    /// True when nothing happened to the file but a read that failed, of a reader or of a commit: [`StateTable::reopen`]
    /// tells whether it is sound.
    pub fn failed_to_read(&self) -> bool {
        self.latch.is_for_a_read()
    }

    /// Opens the table of `dir` again after a commit that found no space, or a read that failed. Such a commit is not in force:
    /// it failed before anything of it could be, which is checked.
    ///
    /// # Errors
    /// As [`StateTable::open`]; and [`StateError::Damaged`] when the table is not at the last commit that worked. This
    /// table then stays as it was and takes no commits; unless space was all that lacked once more, it never will.
    pub fn reopen(&mut self, disk: &Arc<dyn Disk>, dir: &Path) -> Result<(), StateError> {
        self.try_reopen(disk, dir).inspect_err(|error| {
            if !error.may_pass() {
                self.latch.give_up(error);
            }
        })
    }

    /// As [`StateTable::reopen`], and may be tried again, whatever the error.
    pub(crate) fn try_reopen(&mut self, disk: &Arc<dyn Disk>, dir: &Path) -> Result<(), StateError> {
        let is_sound = self.lacks_space() || self.failed_to_read();
        assert!(is_sound, "only a table that nothing else happened to is opened again");
        let mut table = self.open_again(disk, dir)?;
        // Readers keep the view that they have.
        self.tier.follow(&table.tier);
        table.tier = self.tier.clone();
        *self = table;
        Ok(())
    }

    /// Has readers of extents ask the file as it was after the last commit that worked, though nothing is written to it any more:
    /// as long as what is returned lives.
    ///
    /// # Errors
    /// As [`StateTable::reopen`]: then they are answered with errors.
    pub(crate) fn open_for_readers(
        &self,
        disk: &Arc<dyn Disk>,
        dir: &Path,
    ) -> Result<StateTable, StateError> {
        let disk: Arc<dyn Disk> = Arc::new(ReadOnlyDisk::new(disk.clone()));
        let table = self.open_again(&disk, dir)?;
        self.tier.follow(&table.tier);
        Ok(table)
    }

    fn open_again(&self, disk: &Arc<dyn Disk>, dir: &Path) -> Result<StateTable, StateError> {
        let (table, _) = StateTable::open(disk, dir)?;
        if (table.commits, table.sum) != (self.commits, self.sum) {
            let what =
                format!("it is at commit {}, and {} was the last that worked", table.commits, self.commits);
            return Err(Damaged::new(&self.path, 0, what).into());
        }
        Ok(table)
    }

    /// The committed marks, ascending by journal.
    pub fn marks(&self) -> Vec<JournalMark> {
        self.marks.iter().map(|(journal, mark)| JournalMark { journal: *journal, mark: *mark }).collect()
    }

    /// Reads and verifies every record (state table invariant 3).
    pub fn load(&self) -> Result<Recovered, StateError> {
        let mut recovered = Recovered::default();
        let mut sum = Sum::default();
        self.each(META, TableId::Meta, &mut sum, |key, value| {
            match key {
                KEY_IDENTITY => recovered.meta = Some(unseal(TableId::Meta, key, value, Meta::take)?),
                KEY_NEXT_LOG => {
                    let next = unseal(TableId::Meta, key, value, NextIds::take)?;
                    (recovered.next_log_id, recovered.fences_forgotten) = (next.log, next.fences_forgotten);
                }
                _ => return Err(BadValue::Damaged("there is a key that nobody wrote")),
            }
            Ok(())
        })?;
        self.each(MARKS, TableId::Marks, &mut sum, |key, value| {
            let journal =
                u32::try_from(key).map_err(|_| BadValue::Damaged("a journal number is too large"))?;
            let mark = unseal(TableId::Marks, key, value, Mark::take)?;
            recovered.marks.push(JournalMark { journal, mark });
            Ok(())
        })?;
        self.each(LOGS, TableId::Logs, &mut sum, |key, value| {
            recovered.logs.push(unseal(TableId::Logs, key, value, |t| LogRecord::take(LogId(key), t))?);
            Ok(())
        })?;
        self.each(LEDGERS, TableId::Ledgers, &mut sum, |key, value| {
            let ledger = i64::try_from(key).ok().and_then(LedgerId::new);
            let ledger = ledger.ok_or(BadValue::Damaged("a ledger id is too large"))?;
            recovered.ledgers.push(unseal(TableId::Ledgers, key, value, |t| LedgerRecord::take(ledger, t))?);
            Ok(())
        })?;
        self.each_extent(&mut sum, || recovered.extents += 1)?;
        if sum != self.committed_sum()?.1 {
            let what = "the records are not the ones that were committed last";
            return Err(Damaged::new(&self.path, 0, what).into());
        }
        Ok(recovered)
    }

    /// The record of a ledger as it was committed last.
    pub fn ledger(&self, ledger: LedgerId) -> Result<Option<LedgerRecord>, StateError> {
        let key = number_of(ledger.get());
        let read = || -> Result<_, redb::Error> {
            let table = self.database.begin_read()?.open_table(LEDGERS)?;
            let decode = |t: &mut Take<'_>| LedgerRecord::take(ledger, t);
            Ok(table.get(key)?.map(|value| unseal(TableId::Ledgers, key, value.value(), decode)))
        };
        let found = read().map_err(|e| state_error(&self.path, &self.latch, e))?;
        found.transpose().map_err(|bad| self.bad_value("ledgers", key, bad))
    }

    /// Puts `checkpoint` into force, durably.
    ///
    /// # Panics
    /// When a mark goes back (IB12), a log is added twice or removed without being listed: bugs of the caller.
    pub fn commit(&mut self, checkpoint: &Checkpoint<'_>) -> Result<(), StateError> {
        for JournalMark { journal, mark } in checkpoint.marks {
            if let Some(before) = self.marks.get(journal) {
                assert!(mark >= before, "the mark of journal {journal} goes back from {before} to {mark}");
            }
        }
        let above_added = checkpoint.logs_added.iter().map(|log| log.log_id.0 + 1);
        let log = above_added.chain(checkpoint.next_log_id).max().unwrap_or(0).max(self.next.log);
        let mut fences_forgotten = self.next.fences_forgotten.clone();
        checkpoint.fences_forgotten.iter().for_each(|ledger| fences_forgotten.insert(*ledger));
        let next = NextIds { log, fences_forgotten };
        if let Some(reason) = self.latch.reason() {
            return Err(StateError::Latched { path: self.path.clone(), reason });
        }
        let number = self.commits + 1;
        let written = self.write(checkpoint, number, &next);
        let sealed = written.and_then(|sum| Ok(self.seals.write(number).map(|()| sum)?));
        let sum = sealed.map_err(|error| {
            let error = match error {
                PutError::Database(error) => state_error(&self.path, &self.latch, error),
                PutError::Row(key, bad) => bad_value(&self.path, "extents", key, bad),
            };
            // Also when redb failed before it touched the file: it may have been in the middle.
            self.latch.set("commit", &error);
            error
        })?;
        self.sum = sum;
        self.commits = number;
        self.has_extents |= checkpoint.brings_extents();
        self.next = next;
        self.marks.extend(checkpoint.marks.iter().map(|m| (m.journal, m.mark)));
        Ok(())
    }

    fn write(&self, checkpoint: &Checkpoint<'_>, number: u64, next: &NextIds) -> Result<Sum, PutError> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        // See the module's text.
        transaction.set_two_phase_commit(false);
        let mut sum = self.sum;
        {
            let mut marks = transaction.open_table(MARKS)?;
            for JournalMark { journal, mark } in checkpoint.marks {
                let key = (*journal).into();
                let value = seal(TableId::Marks, key, |p| mark.put(p));
                replace(&mut marks, TableId::Marks, key, &mut sum, &value)?;
            }
            let mut logs = transaction.open_table(LOGS)?;
            for log in checkpoint.logs_added {
                let key = log.log_id.0;
                let value = seal(TableId::Logs, key, |p| log.put(p));
                let was_there = replace(&mut logs, TableId::Logs, key, &mut sum, &value)?;
                assert!(!was_there, "log {} is added once", log.log_id);
            }
            for log_id in checkpoint.logs_removed {
                let value = logs.remove(log_id.0)?;
                let value = value.unwrap_or_else(|| panic!("log {log_id} is removed but not listed"));
                sum.subtract(TableId::Logs, log_id.0, value.value());
            }
            let mut ledgers = transaction.open_table(LEDGERS)?;
            // In the order of the keys each page is changed once; the cache holds few.
            let mut records: Vec<&LedgerRecord> = checkpoint.records().collect();
            records.sort_by_key(|record| key_of(record.ledger));
            for record in records {
                let key = key_of(record.ledger);
                replace(&mut ledgers, TableId::Ledgers, key, &mut sum, &record.seal(key))?;
            }
            for ledger in checkpoint.ledgers_forgotten {
                let key = key_of(*ledger);
                if let Some(value) = ledgers.remove(key)? {
                    sum.subtract(TableId::Ledgers, key, value.value());
                }
            }
            // A table is made when it is opened; most bookies have no tier.
            let is_touched = !checkpoint.extents.is_empty() || !checkpoint.ledgers_forgotten.is_empty();
            if checkpoint.brings_extents() || (self.has_extents && is_touched) {
                let mut extents = transaction.open_table(EXTENTS)?;
                for ledger in checkpoint.ledgers_forgotten {
                    tier::clear(&mut extents, &mut sum, *ledger)?;
                }
                for change in checkpoint.extents {
                    tier::put(&mut extents, &mut sum, change)?;
                }
            }
            let mut meta = transaction.open_table(META)?;
            if let Some(identity) = checkpoint.meta {
                let value = identity.seal(KEY_IDENTITY);
                replace(&mut meta, TableId::Meta, KEY_IDENTITY, &mut sum, &value)?;
            }
            replace(&mut meta, TableId::Meta, KEY_NEXT_LOG, &mut sum, &next.seal(KEY_NEXT_LOG))?;
            let value = seal(TableId::Meta, KEY_SUM, |p| {
                p.u64(number);
                sum.put(p);
            });
            meta.insert(KEY_SUM, value.as_slice())?;
        }
        transaction.commit()?;
        Ok(sum)
    }

    /// Number of the commit in force, and the sum it left.
    fn committed_sum(&self) -> Result<(u64, Sum), StateError> {
        let read = || -> Result<_, redb::Error> {
            let table = self.database.begin_read()?.open_table(META)?;
            let decode = |t: &mut Take<'_>| Some((t.u64()?, Sum::take(t)?));
            Ok(table.get(KEY_SUM)?.map(|value| unseal(TableId::Meta, KEY_SUM, value.value(), decode)))
        };
        match read().map_err(|e| state_error(&self.path, &self.latch, e))? {
            Some(Ok(sum)) => Ok(sum),
            Some(Err(bad)) => Err(self.bad_value("meta", KEY_SUM, bad)),
            None => Err(Damaged::new(&self.path, 0, "the sum over the records is missing").into()),
        }
    }

    /// Visits all records of a table but the sum, and adds them up.
    fn each(
        &self,
        definition: Definition,
        table: TableId,
        sum: &mut Sum,
        mut visit: impl FnMut(u64, &[u8]) -> Result<(), BadValue>,
    ) -> Result<(), StateError> {
        let failed = |e: redb::Error| state_error(&self.path, &self.latch, e);
        let open = || -> Result<_, redb::Error> { Ok(self.database.begin_read()?.open_table(definition)?) };
        for item in open().map_err(failed)?.iter().map_err(|e| failed(e.into()))? {
            let (key, value) = item.map_err(|e| failed(e.into()))?;
            let (key, value) = (key.value(), value.value());
            if (table, key) == (TableId::Meta, KEY_SUM) {
                continue;
            }
            sum.add(table, key, value);
            visit(key, value).map_err(|bad| {
                let name = redb::TableHandle::name(&definition).to_owned();
                self.bad_value(&name, key, bad)
            })?;
        }
        Ok(())
    }

    /// Adds all rows of the table of extents up, verified.
    fn each_extent(&self, sum: &mut Sum, mut count: impl FnMut()) -> Result<(), StateError> {
        let failed = |e: redb::Error| state_error(&self.path, &self.latch, e);
        let Some(extents) = self.extents()? else { return Ok(()) };
        for item in extents.iter().map_err(|e| failed(e.into()))? {
            let (key, value) = item.map_err(|e| failed(e.into()))?;
            let (key, value) = (key.value(), value.value());
            sum.add(TableId::Extents, key, value);
            ExtentRow::unseal(key, value).map_err(|bad| self.bad_value("extents", key.0, bad))?;
            count();
        }
        Ok(())
    }

    fn extents(&self) -> Result<Option<Extents>, StateError> {
        let failed = |e: redb::Error| state_error(&self.path, &self.latch, e);
        match self.database.begin_read().map_err(|e| failed(e.into()))?.open_table(EXTENTS) {
            Ok(extents) => Ok(Some(extents)),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(failed(error.into())),
        }
    }

    fn bad_value(&self, table: &str, key: u64, bad: BadValue) -> StateError {
        bad_value(&self.path, table, key, bad)
    }
}

fn bad_value(path: &Path, table: &str, key: u64, bad: BadValue) -> StateError {
    match bad {
        BadValue::Damaged(what) => Damaged::new(path, 0, format!("table {table}, key {key}: {what}")).into(),
        BadValue::Newer(found) => {
            NewerFormat { path: path.to_owned(), found, supported: STATE_FORMAT_VERSION }.into()
        }
    }
}

impl Drop for StateTable {
    /// Shuts the file, so that redb's own closing is refused before it writes.
    fn drop(&mut self) {
        self.latch.set("use the state table", &"it is closed");
    }
}

fn key_of(ledger: LedgerId) -> u64 {
    number_of(ledger.get())
}

/// Sets a record and keeps the sum; true when it replaced one.
fn replace(
    table: &mut Table<'_, u64, &'static [u8]>,
    id: TableId,
    key: u64,
    sum: &mut Sum,
    value: &[u8],
) -> Result<bool, redb::Error> {
    let before = table.insert(key, value)?;
    if let Some(before) = &before {
        sum.subtract(id, key, before.value());
    }
    sum.add(id, key, value);
    Ok(before.is_some())
}
