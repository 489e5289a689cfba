//! Entry logs: immutable files of entries sorted by (ledger, entry), with the index that finds them.
//!
//! # Data flow
//! ```text
//! EntryLogWriter::create -> append (ascending) ... -> finish (write, sync, sync_dir) -> SealedLog
//! EntryLog::open -> extents -> lookup (extent, entry) -> EntryLocation -> read, verified
//! ```
//!
//! ```text
//! | header block | run: bodies, records | run: bodies, records | ... | footer: extents | zeros, trailer |
//! 0            4096                                                                       whole 4 KiB blocks
//! ```
//! A run is a sequence of entries of one ledger: at most [`RUN_ENTRIES_MAX`], so that neither the writer nor a
//! reader ever holds the index of a large ledger in memory. Each run has one [`Extent`] in the footer.
//! The bytes are drawn in `docs/formats.md` and in `format.rs`.
//!
//! # Invariants
//! 1. Entries ascend strictly by (ledger, entry) over the whole file; an id occurs once. The writer asserts it.
//! 2. A body's CRC is CRC32C over the body exactly as received; it was computed when the entry arrived and is
//!    checked on every read, together with the ledger and entry ids inside the body (IB8, IB13).
//! 3. Every record has its own CRC over (log, ledger, place in the run, record): a search trusts verified records
//!    only, so "not in this run" is proven (IB7).
//! 4. Header, runs, footer, padding and trailer cover the file without gap; its length is written in the trailer.
//! 5. `finish` returns only after the bytes (sync) and the name (sync_dir) are durable.

mod format;
mod packed;
mod paged_index;
mod read;
mod runs;
#[cfg(test)]
mod tests;
mod together;
mod verify;
mod write;

pub use format::{ENTRY_BODY_MIN_BYTES, EntryLocation, Extent, FORMAT_VERSION, IndexRecord, RUN_ENTRIES_MAX};
pub use paged_index::IndexedRun;
pub(crate) use paged_index::{IndexWalk, PagedIndex, PagedIndexBuilder};
pub use read::{Ahead, EntryLog, LogDescription, Patience};
pub(crate) use read::{IndexedOpening, waited};
pub(crate) use runs::LogIndex;
pub use runs::RunCursor;
pub use together::{FoundRun, TOGETHER_ENTRIES_MAX};
pub use verify::{LogCheck, LogDamage, LogEvent, LogPart, LogTotals, VerifyReport};
pub use write::{EntryLogWriter, LOG_WRITE_BYTES, SealedLog, UnnamedLog};

#[cfg(test)]
pub(crate) use format::test_extent;
pub(crate) use format::{file_name, log_id_of};

/// Extents that are read together when they are not in memory: they fit an index block.
pub(crate) const FOOTER_BLOCK_EXTENTS: usize = 4096 / format::EXTENT_SIZE;

/// Bytes of one entry's line in a run's index.
pub const RECORD_BYTES: u64 = format::RECORD_SIZE as u64;

/// Bytes of the footer for each run.
pub const EXTENT_BYTES: u64 = format::EXTENT_SIZE as u64;
