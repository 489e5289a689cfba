//! A ledger directory: its state table and live entry logs, opened together, changed together.
//!
//! # Data flow
//! ```text
//! open: state table -> listed logs -> orphans removed -> view
//! flush: begin_log -> EntryLogWriter -> commit: read the log back -> state table -> view
//! merge: begin_log -> EntryLogWriter -> read_back, by steps -> commit_read: state table -> view
//! beside the owner: LogMaker -> EntryLogWriter -> UnnamedLog, read back -> commit_read
//! read: view.find -> Source (newest generation first) -> EntryLog
//! ```
//! One owner opens, flushes and commits ([`LedgerDirectory`]); any number of readers share the [`LogView`].
//!
//! # Invariants
//! 1. A log is visible to readers only after its commit; it is opened and verified before the commit (IB13).
//! 2. A file is removed only when it has a name of ours and the table does not list it. Without a table nothing is
//!    removed (IB15). Orphans of a crash are removed at open (IB18).
//! 3. A log id is never used twice: ids of orphans are reserved durably before the orphans go.
//! 4. A lookup takes its sources in one snapshot, and a new source is published before the withdrawal of the ones it
//!    replaces. Withdrawn files are unlinked when no reader holds them.
//! 5. The newest copy that may hold an entry decides: when it cannot be read, an older one is not given instead.
//! 6. After a sync of the directory that failed, no log counts as durable whose name is from before: the next sync may say
//!    yes of a name that the failed one dropped. So every such sync belongs to a log that fails with it.

mod maker;

pub use maker::LogMaker;

use crate::entry_log::{IndexedOpening, file_name, log_id_of};
use crate::state_table::{
    Checkpoint, ExtentChange, JournalMark, LedgerRecord, LogRecord, Meta, NEW_FILE_NAME, Recovered, TierView,
};
use crate::{
    Damaged, DirectoryError, DiskError, EntryLog, EntryLogWriter, Generation, IndexCharge, LogId, LogView,
    OpenLogError, PagingOut, SealedLog, StateError, StateTable, StorageMemory, WriteError,
};
use bindery_io::Disk;
use bindery_types::LedgerId;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The owner's handle.
pub struct LedgerDirectory {
    maker: LogMaker,
    state: StateTable,
    /// The last commit found no space, and the table was opened again for its readers.
    lacked_space: bool,
    /// The table that readers of extents use after the other failed for good.
    for_readers: Option<StateTable>,
    view: Arc<LogView>,
    /// No longer listed; files still there.
    withdrawn: Vec<Arc<EntryLog>>,
}

/// The result of [`LedgerDirectory::open`].
pub struct OpenedDirectory {
    /// The directory.
    pub directory: LedgerDirectory,
    /// Contents of its state table.
    pub recovered: Recovered,
    /// True when the directory had no state table and got an empty one.
    pub is_fresh: bool,
    /// Files that a crash left behind and that were removed.
    pub orphans: Vec<LogId>,
}

/// Changes of a directory that come into force together.
#[derive(Debug, Clone, Copy, Default)]
pub struct DirectoryCommit<'a> {
    /// Finished logs, visible from now on.
    pub logs_added: &'a [SealedLog],
    /// Logs whose live entries are all in other logs.
    pub logs_removed: &'a [LogId],
    /// New positions of journals; the others stay.
    pub marks: &'a [JournalMark],
    /// Ledger states that replace the ones before, in any order. Of several of one ledger the last counts.
    pub ledgers: &'a [&'a [LedgerRecord]],
    /// Extents in object storage that come and go.
    pub extents: &'a [ExtentChange],
    /// Ledgers to be forgotten; one that the directory does not know is fine.
    pub ledgers_forgotten: &'a [LedgerId],
    /// Those of them that were fenced.
    pub fences_forgotten: &'a [LedgerId],
    /// Replaces identity and layout.
    pub meta: Option<&'a Meta>,
}

/// A finished log that is read back, some runs at a time, to be committed by [`LedgerDirectory::commit_read`]. The
/// index of its runs is charged to the index pool meanwhile.
pub struct ReadBack {
    sealed: SealedLog,
    opening: IndexedOpening,
    charge: IndexCharge,
}

impl ReadBack {
    /// Reads on; true when all of it was read.
    ///
    /// # Errors
    /// It is not what was written, or cannot be read.
    pub fn read_on(&mut self) -> Result<bool, DirectoryError> {
        let is_done = self.opening.read_on()?;
        self.charge.set(self.opening.bytes());
        Ok(is_done)
    }
}

impl LedgerDirectory {
    /// Opens `dir`, which must exist. A directory without state table and without entry logs gets an empty table.
    ///
    /// # Errors
    /// Any unusable log or table fails the whole directory: serving the rest would answer "no such entry" for what
    /// is merely unreadable. Nothing is removed then.
    pub fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Result<OpenedDirectory, DirectoryError> {
        LedgerDirectory::open_with(disk, dir, &StorageMemory::new(u64::MAX, 0))
    }

    /// As [`LedgerDirectory::open`], with pools that are shared with other directories.
    pub fn open_with(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        memory: &StorageMemory,
    ) -> Result<OpenedDirectory, DirectoryError> {
        let files = disk.list(dir).map_err(|e| DiskError::new(dir, "list directory", e))?;
        let on_disk: Vec<LogId> = files.iter().filter_map(|file| log_id_of(&file.name)).collect();
        let is_fresh = !StateTable::exists(disk, dir)?;
        if is_fresh && !on_disk.is_empty() {
            return Err(DirectoryError::StateMissing { dir: dir.to_owned(), logs: on_disk.len() });
        }
        let (mut state, recovered) =
            if is_fresh { StateTable::create(disk, dir)? } else { StateTable::open(disk, dir)? };

        let view = Arc::new(LogView::new(memory.index.clone()));
        for record in &recovered.logs {
            let (log, index) = EntryLog::open_indexed(disk, dir, record.log_id, view.resident_max())?;
            check_against_table(&log, record.generation, record.size)?;
            view.add(&Arc::new(log.cached_by(&memory.cache)), index);
            view.make_room();
        }

        let is_orphan = |id: &LogId| !recovered.logs.iter().any(|record| record.log_id == *id);
        let orphans: Vec<LogId> = on_disk.into_iter().filter(is_orphan).collect();
        let above_orphans = orphans.iter().map(|id| id.0.saturating_add(1)).max().unwrap_or(0);
        let next_log_id = recovered.next_log_id.max(above_orphans);
        let mut removals: Vec<PathBuf> = orphans.iter().map(|id| dir.join(file_name(*id))).collect();
        if !is_fresh && files.iter().any(|file| file.name == NEW_FILE_NAME) {
            removals.push(dir.join(NEW_FILE_NAME));
        }
        if !orphans.is_empty() {
            state.commit(&Checkpoint { next_log_id: Some(next_log_id), ..Checkpoint::default() })?;
        }
        remove_all(disk, dir, &removals)?;
        let directory = LedgerDirectory {
            maker: LogMaker::new(disk, dir, memory, view.clone(), next_log_id),
            state,
            lacked_space: false,
            for_readers: None,
            view,
            withdrawn: Vec::new(),
        };
        Ok(OpenedDirectory { directory, recovered, is_fresh, orphans })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.maker.dir
    }

    /// Makes logs beside the owner, who commits them.
    pub fn maker(&self) -> LogMaker {
        self.maker.clone()
    }

    /// The view that readers use.
    pub fn view(&self) -> Arc<LogView> {
        self.view.clone()
    }

    /// The extents in object storage that are committed here, for readers.
    pub fn tier(&self) -> Arc<TierView> {
        self.state.tier()
    }

    /// The committed marks, ascending by journal.
    pub fn marks(&self) -> Vec<JournalMark> {
        self.state.marks()
    }

    /// What the state table has of a ledger.
    pub fn ledger(&self, ledger: LedgerId) -> Result<Option<LedgerRecord>, StateError> {
        self.state.ledger(ledger)
    }

    /// Why the directory takes no more commits, once something failed.
    pub fn failure(&self) -> Option<String> {
        self.state.failure()
    }

    /// True when the last commit failed for want of space: the next one tries again.
    pub fn lacks_space(&self) -> bool {
        self.lacked_space || self.state.lacks_space()
    }

    /// Starts a log under a new id.
    pub fn begin_log(&mut self, generation: Generation) -> Result<EntryLogWriter, WriteError> {
        self.maker.begin_log(generation)
    }

    /// Puts `commit` into force: durable, then visible. On an error it may or may not be in force after a restart,
    /// is not visible now, and the directory takes no more commits when it came from the state table, unless
    /// [`LedgerDirectory::lacks_space`]: then it is not in force.
    pub fn commit(&mut self, commit: &DirectoryCommit<'_>) -> Result<(), DirectoryError> {
        self.make_ready()?;
        let mut read = Vec::with_capacity(commit.logs_added.len());
        for sealed in commit.logs_added {
            let mut log = self.read_back(sealed)?;
            while !log.read_on()? {}
            read.push(log);
        }
        self.commit_read(&DirectoryCommit { logs_added: &[], ..*commit }, read)
    }

    /// Begins to read a finished log back, as has to be done before a commit brings it: that takes long for one of millions of
    /// runs.
    pub fn read_back(&self, sealed: &SealedLog) -> Result<ReadBack, DirectoryError> {
        self.maker.read_back(sealed)
    }

    fn make_ready(&mut self) -> Result<(), DirectoryError> {
        self.lacked_space = false;
        // A read that failed, perhaps for a reader, is no reason to give the directory up.
        if self.state.lacks_space() || self.state.failed_to_read() {
            self.state.reopen(&self.maker.disk, &self.maker.dir)?;
        }
        Ok(())
    }

    /// As [`LedgerDirectory::commit`], with the logs that were read back to their end.
    ///
    /// # Panics
    /// When the commit names other logs.
    pub fn commit_read(
        &mut self,
        commit: &DirectoryCommit<'_>,
        logs_added: Vec<ReadBack>,
    ) -> Result<(), DirectoryError> {
        assert!(commit.logs_added.is_empty(), "logs that a commit brings are read back before");
        self.make_ready()?;
        let mut marks: BTreeMap<u32, JournalMark> = BTreeMap::new();
        marks.extend(
            self.state.marks().into_iter().chain(commit.marks.iter().copied()).map(|m| (m.journal, m)),
        );
        let marks: Vec<JournalMark> = marks.into_values().collect();
        let mut opened = Vec::with_capacity(logs_added.len());
        let mut records = Vec::with_capacity(logs_added.len());
        for ReadBack { sealed, opening, charge } in logs_added {
            let SealedLog { log_id, generation, size, entries, footer_checksum, .. } = sealed;
            let (log, index) = opening.finish()?;
            check_against_table(&log, generation, size)?;
            if log.footer_checksum() != footer_checksum {
                let what = "the footer read back is not the one that was written";
                return Err(OpenLogError::from(Damaged::new(log.path(), 0, what)).into());
            }
            opened.push((Arc::new(log.cached_by(&self.maker.memory.cache)), index, charge));
            records.push(LogRecord { log_id, generation, size, entries, marks: marks.clone() });
        }
        self.commit_state(&Checkpoint {
            marks: commit.marks,
            logs_added: &records,
            logs_removed: commit.logs_removed,
            ledgers: commit.ledgers,
            extents: commit.extents,
            ledgers_forgotten: commit.ledgers_forgotten,
            fences_forgotten: commit.fences_forgotten,
            meta: commit.meta,
            next_log_id: None,
        })?;
        for (log, index, charge) in opened {
            drop(charge);
            self.view.add(&log, index);
        }
        for log_id in commit.logs_removed {
            self.withdrawn.push(self.view.remove(*log_id));
        }
        self.view.make_room();
        // A log that cannot be read now stays paged out, and reads that need it get the error.
        let _ = self.view.page_in();
        Ok(())
    }

    /// Commits to the state table, and sees to those who read extents when that fails.
    fn commit_state(&mut self, checkpoint: &Checkpoint<'_>) -> Result<(), DirectoryError> {
        let mut committed = self.state.commit(checkpoint);
        if committed.is_err() && self.state.failed_to_read() {
            self.state.reopen(&self.maker.disk, &self.maker.dir)?;
            committed = self.state.commit(checkpoint);
        }
        let Err(error) = committed else { return Ok(()) };
        if !self.state.has_extents() {
            return Err(error.into());
        }
        if self.state.lacks_space() {
            self.lacked_space = self.state.try_reopen(&self.maker.disk, &self.maker.dir).is_ok();
        } else if self.for_readers.is_none() {
            // Without it they get errors, as of a disk that is gone.
            self.for_readers = self.state.open_for_readers(&self.maker.disk, &self.maker.dir).ok();
        }
        Err(error.into())
    }

    /// Takes a log out of sight that canary M51 showed too early.
    pub fn hide_again(&mut self, log_id: LogId) {
        drop(self.view.remove(log_id));
    }

    /// Removes files of live logs: canary M22, which does so before their successors are committed.
    pub fn unlink_now(&mut self, logs: &[LogId]) {
        let paths: Vec<PathBuf> = logs.iter().map(|id| self.maker.dir.join(file_name(*id))).collect();
        // Whatever comes of it: it is a bug on purpose.
        let _ = remove_all(&self.maker.disk, &self.maker.dir, &paths);
    }

    /// Pages the runs of a live log out of memory, by a step; true when none is there. Before a log with many goes, so that its
    /// commit is a short step.
    pub fn page_out_on(&self, paging: &mut PagingOut) -> bool {
        self.view.page_out_on(paging)
    }

    /// Unlinks the files of removed logs that no reader holds any more; returns how many remain.
    pub fn unlink_withdrawn(&mut self) -> Result<usize, DirectoryError> {
        self.unlink_withdrawn_if(|_| true)
    }

    /// As [`LedgerDirectory::unlink_withdrawn`], of those only that `may_go`. The others stay for a later call, or for
    /// the next open.
    pub fn unlink_withdrawn_if(&mut self, may_go: impl Fn(LogId) -> bool) -> Result<usize, DirectoryError> {
        // The view lost them before, so a count of one cannot grow again.
        let stays = |log: &Arc<EntryLog>| Arc::strong_count(log) > 1 || !may_go(log.log_id());
        let (held, free): (Vec<_>, Vec<_>) = std::mem::take(&mut self.withdrawn).into_iter().partition(stays);
        self.withdrawn = held;
        let paths: Vec<PathBuf> = free.iter().map(|log| log.path().to_owned()).collect();
        drop(free);
        remove_each(&self.maker.disk, &paths)?;
        Ok(self.withdrawn.len())
    }
}

impl LedgerDirectory {
    /// Logs that were removed and whose files are still there, with the length of each.
    pub fn withdrawn(&self) -> impl Iterator<Item = (LogId, u64)> + '_ {
        self.withdrawn.iter().map(|log| (log.log_id(), log.size()))
    }

    /// Removes the file of a finished log that was never committed: a commit refused it because it does not read back
    /// as it was written. One that cannot be removed is an orphan of the next open.
    ///
    /// # Panics
    /// When the log is live.
    pub fn discard(&self, log_id: LogId) -> Result<(), DiskError> {
        self.maker.discard(log_id)
    }

    /// The disk it is on, for checks of its files.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.maker.disk
    }
}

fn check_against_table(log: &EntryLog, generation: Generation, size: u64) -> Result<(), OpenLogError> {
    if (log.generation(), log.size()) == (generation, size) {
        return Ok(());
    }
    let what = format!(
        "it is generation {} with {} bytes, the state table says generation {generation} with {size}",
        log.generation(),
        log.size()
    );
    Err(Damaged::new(log.path(), 0, what).into())
}

/// Removes files, and leaves it to the next sync of the directory to make that durable: a file that a crash brings back
/// is an orphan. A sync of its own could fail and be ignored, and the kernel would then report names as durable that
/// are not, those of logs being written among them.
fn remove_each(disk: &Arc<dyn Disk>, paths: &[PathBuf]) -> Result<(), DiskError> {
    for path in paths {
        match disk.remove(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(DiskError::new(path, "remove", e)),
            _ => {}
        }
    }
    Ok(())
}

/// As [`remove_each`], durably.
fn remove_all(disk: &Arc<dyn Disk>, dir: &Path, paths: &[PathBuf]) -> Result<(), DiskError> {
    remove_each(disk, paths)?;
    if paths.is_empty() {
        return Ok(());
    }
    disk.sync_dir(dir).map_err(|e| DiskError::new(dir, "sync directory", e))
}

#[cfg(test)]
mod tests;
