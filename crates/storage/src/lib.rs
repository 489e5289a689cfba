//! Ledger storage: the part of a bookie that keeps its ledgers once the journal is no longer needed for them.
//!
//! One ledger directory holds entry logs (immutable files of sorted entries) and one state table (which logs are
//! live, what is known about each ledger, how far the journals are covered). Everything here is synchronous code
//! over [`bindery_io::Disk`]; no clock, no threads.
//!
//! # Data flow
//! ```text
//! frozen write cache -> EntryLogWriter -> sealed log, synced -> StateTable::commit -> LogView -> reads
//!                                                               (only commit point)
//! ```
//!
//! # Invariants
//! 1. An entry log is written once, sealed by sync, and never changed again.
//! 2. The state table's commit is the only commit point: a log it does not list does not exist, a log it lists is
//!    complete and durable (IB13).
//! 3. Order between copies of an entry is by generation alone, never by file id.
//! 4. "Not here" is answered from verified bytes only; damage is an error, never an absence (IB7, IB15).
//! 5. After the first failed write or sync on a file nothing more is written to it (IB14).
//! 6. Journal marks never go back (IB12).

mod block_cache;
use bindery_types::codec;
mod directory;
pub mod entry_log;
mod error;
mod extents;
mod index_pool;
pub mod ledger_ranges;
mod memory;
mod paged;
mod read_only;
pub mod redb_file;
pub mod state_table;
#[cfg(test)]
mod testing;
pub mod usage;
mod varint;
pub mod verify_dir;
mod view;

pub use block_cache::{BLOCK_COST_BYTES, BlockCache, CacheStats};
pub use directory::{DirectoryCommit, LedgerDirectory, LogMaker, OpenedDirectory, ReadBack};
pub use entry_log::{
    Ahead, EntryLocation, EntryLog, EntryLogWriter, Extent, FoundRun, Patience, RunCursor, SealedLog,
    TOGETHER_ENTRIES_MAX, UnnamedLog,
};
pub use error::{
    Damaged, DirectoryError, DiskError, NewerFormat, OpenLogError, ReadError, StateError, TryReadError,
    WriteError,
};
pub use extents::{Coverage, ExtentDirectory};
pub(crate) use index_pool::IndexCharge;
pub use index_pool::{IndexPool, IndexUse};
pub use ledger_ranges::LedgerRanges;
pub use memory::StorageMemory;
pub use paged::PagedLog;
pub use read_only::ReadOnlyDisk;
pub use state_table::{
    Checkpoint, ExtentChange, ExtentRow, ExtentUpdate, JournalMark, LedgerRecord, LogRecord, Mark, Meta,
    Recovered, StateTable, TierRecord, TierView,
};

pub use entry_log::IndexedRun;
pub use view::{
    Asked, FoundEntry, Lead, LogView, NewerRuns, OverlapScan, PagingOut, RunSearch, SoleRun, Source,
    UnreadableRun, locate, try_locate,
};

use std::fmt;

/// Names one entry log of a ledger directory. Never used twice in that directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u64);

/// Age of a write: of two copies of an entry the one with the higher generation is the entry.
/// Given out by the engine, ascending over all directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
