//! Makes entry logs in a ledger directory: for its owner, and for threads beside it that write one at their own pace.
//!
//! # Data flow
//! ```text
//! begin_log -> EntryLogWriter -> finish_unnamed: contents durable -> read_back
//!                                    '- the owner: UnnamedLog::name -> LedgerDirectory::commit_read
//! ```
//!
//! # Invariants
//! 1. Two logs of a directory never get one id, whichever thread asks.
//! 2. Names are made durable by the owner's thread alone. So when it commits, every sync of the directory that failed before is
//!    counted (invariant 6 of [`LedgerDirectory`](super::LedgerDirectory)).

use super::ReadBack;
use crate::entry_log::{IndexedOpening, file_name};
use crate::{
    DirectoryError, EntryLogWriter, Generation, IndexCharge, IndexUse, LogId, LogView, SealedLog,
    StorageMemory, WriteError,
};
use bindery_io::Disk;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Clone)]
pub struct LogMaker {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) memory: StorageMemory,
    pub(super) view: Arc<LogView>,
    next_log_id: Arc<AtomicU64>,
    /// Syncs of the directory that failed, for all logs that are being written.
    name_losses: Arc<AtomicU64>,
}

impl LogMaker {
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        memory: &StorageMemory,
        view: Arc<LogView>,
        next_log_id: u64,
    ) -> LogMaker {
        LogMaker {
            disk: disk.clone(),
            dir: dir.to_owned(),
            memory: memory.clone(),
            view,
            next_log_id: Arc::new(AtomicU64::new(next_log_id)),
            name_losses: Arc::default(),
        }
    }

    /// Starts a log under a new id.
    pub fn begin_log(&self, generation: Generation) -> Result<EntryLogWriter, WriteError> {
        let log_id = LogId(self.next_log_id.fetch_add(1, Ordering::Relaxed));
        // Before the file is made: the owner may fail to sync the directory meanwhile, and lose its name.
        let losses = self.name_losses.load(Ordering::Acquire);
        let write_bytes = self.memory.log_write_bytes;
        let writer = EntryLogWriter::create_with(&self.disk, &self.dir, log_id, generation, write_bytes)?;
        Ok(writer.beside(&self.name_losses, losses).charged_to(&self.memory.index))
    }

    /// Begins to read a finished log back, as has to be done before a commit brings it: that takes long for one of millions of
    /// runs.
    pub fn read_back(&self, sealed: &SealedLog) -> Result<ReadBack, DirectoryError> {
        let resident_max = self.view.resident_max();
        let opening = IndexedOpening::begin(&self.disk, &self.dir, sealed.log_id, resident_max)?;
        let charge = IndexCharge::new(&self.memory.index, IndexUse::Writing);
        Ok(ReadBack { sealed: sealed.clone(), opening, charge })
    }

    /// Bytes that are free on the volume; `None`: that is not known. Some network file systems do not say.
    pub fn free_bytes(&self) -> Option<u64> {
        let space = self.disk.space(&self.dir).ok()?;
        (space.total > 0).then_some(space.free)
    }

    /// Shows a log to readers that no commit brought: canary M51.
    pub fn publish_now(&self, sealed: &SealedLog) -> Result<(), DirectoryError> {
        let (log, index) =
            crate::EntryLog::open_indexed(&self.disk, &self.dir, sealed.log_id, self.view.resident_max())?;
        self.view.add(&Arc::new(log.cached_by(&self.memory.cache)), index);
        Ok(())
    }

    /// Removes the file of a finished log that was never committed. One that cannot be removed is an orphan of the next open.
    pub fn discard(&self, log_id: LogId) -> Result<(), crate::DiskError> {
        assert!(self.view.log(log_id).is_none(), "log {log_id} is live");
        super::remove_each(&self.disk, &[self.dir.join(file_name(log_id))])
    }
}
