//! Limits of ingests, the reasons for refusing one, and the queue of those that wait for their commit.
//!
//! An **ingest** takes copies of entries, as repairs bring them, directly into entry logs and past the journals. How it goes is
//! in [`crate::Ingest`] and `flushing::ingest`, and why it is right in `docs/internals/flush.md`.

use bindery_storage::{Generation, ReadBack, UnnamedLog};
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Ingests under way at a time.
pub const INGESTS_MAX: usize = 4;
/// Bytes of entries of one ingest.
pub const INGEST_BYTES_MAX: u64 = 256 << 20;
/// Entries of one ingest.
pub const INGEST_ENTRIES_MAX: u64 = 1 << 18;
/// Ledgers of one ingest.
pub const INGEST_LEDGERS_MAX: usize = 1 << 14;
/// Entry logs of one ingest: where ledgers do not ascend, another log begins.
pub const INGEST_LOGS_MAX: usize = 4;

/// Why an ingest, or a part of it, is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IngestError {
    /// Nothing is known of the ledger here, or it was removed, perhaps since the ingest began.
    #[error("ledger {0} is not here, or was removed: put it into limbo, then ingest its entries anew")]
    NoLedger(LedgerId),
    /// Another ingest has entries of the ledger.
    #[error("another ingest has entries of ledger {0}: wait until that has ended")]
    Busy(LedgerId),
    /// The ledger was removed and came back, and that is not on disk yet. A flush is requested.
    #[error("ledger {0} came back from a removal that is not flushed yet: try again in a moment")]
    RemovalNotFlushed(LedgerId),
    /// The ledger was removed and came back since the ingest began, whose copies would count as older than that.
    #[error(
        "ledger {0} came back from a removal since this ingest began: commit it and take the ledger into another one"
    )]
    BehindRemoval(LedgerId),
    /// Last entry and LAC (last add confirmed) of the ledger could not be committed beside changes of it that never ended.
    #[error("ledger {0} changes all the time: try again, or let its entries come through the journal")]
    NeverAtRest(LedgerId),
    /// The entry is here, or on its way, or a damaged copy of it is here: a copy of an ingest would be older than that.
    #[error(
        "entry {entry} of ledger {ledger} is here already: ingest what Engine::held_entries lacks, and add what \
         Engine::damaged_of names"
    )]
    Held {
        /// The ledger.
        ledger: LedgerId,
        /// The first of its entries that is here.
        entry: EntryId,
    },
    /// The entry was let go because it is in object storage.
    #[error(
        "entry {entry} of ledger {ledger} is in object storage and was let go here: it is read from there"
    )]
    Tiered {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
    },
    /// Entries of a ledger ascend strictly.
    #[error(
        "entry {entry} of ledger {ledger} comes after entry {after}: the entries of a ledger must ascend"
    )]
    NotAscending {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// The one before.
        after: EntryId,
    },
    /// Ledgers ascend, but for as many times as there are logs.
    #[error(
        "ledger {0} comes after a higher one, and so did others before: bring the ledgers of an ingest in ascending \
         order, or in several ingests"
    )]
    LedgersOutOfOrder(LedgerId),
    /// The bytes are not those of the entry.
    #[error("{bytes} bytes are not entry {entry} of ledger {ledger}: {why}")]
    BadBody {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// How many bytes.
        bytes: usize,
        /// What is wrong with them.
        why: &'static str,
    },
    /// The ingest has as much as one may have: commit it, and begin another one.
    #[error("this ingest has as many {0} as one may have: commit it and begin another one")]
    Full(&'static str),
    /// Too many ingests are under way.
    #[error("{INGESTS_MAX} ingests are under way: end one first")]
    TooMany,
    /// Nothing was appended.
    #[error("the ingest has no entries")]
    Empty,
    /// The bookie takes no copies now: it is read-only, waits for space or for descriptors, or no ledger directory has room.
    #[error("the bookie takes no copies now: {0}")]
    ReadOnly(String),
    /// A disk failed, or what it holds is damaged. After a failed commit it is not known whether it is in force after a restart.
    #[error("I/O error: {0}")]
    Io(String),
    /// It was refused before, or a write of it failed.
    #[error("the ingest has failed before: drop it and begin another one")]
    Over,
}

/// Called once with the outcome of a commit, on the thread of the ledger directories; must not block. Dropped uncalled only at
/// shutdown.
pub type IngestWaiter = Box<dyn FnOnce(Result<(), IngestError>) + Send>;

/// The entries of one ledger in an ingest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IngestedLedger {
    pub(crate) ledger: LedgerId,
    pub(crate) generation: Generation,
    pub(crate) first: EntryId,
    pub(crate) last: EntryId,
    /// The highest LAC (last add confirmed) in them.
    pub(crate) last_add_confirmed: Option<EntryId>,
}

/// An ingest whose logs are durable and read back. Only its commit is missing.
pub(crate) struct IngestedLogs {
    /// Its number, by which the shards know it.
    pub(crate) number: u64,
    pub(crate) directory: usize,
    /// Ascending.
    pub(crate) ledgers: Vec<IngestedLedger>,
    pub(crate) logs: Vec<(UnnamedLog, ReadBack)>,
}

/// Ingests under way, and those that wait for their commit.
#[derive(Default)]
pub(crate) struct IngestDesk {
    last_number: AtomicU64,
    under_way: AtomicUsize,
    waiting: Mutex<VecDeque<(IngestedLogs, IngestWaiter)>>,
}

impl IngestDesk {
    /// Counts one more, and gives it its number; `None`: there are too many.
    pub(crate) fn begin(&self) -> Option<u64> {
        let more = |count: usize| (count < INGESTS_MAX).then_some(count + 1);
        self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(self.last_number.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// One ended, committed or not.
    pub(crate) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn push(&self, logs: IngestedLogs, waiter: IngestWaiter) {
        self.waiting.lock().push_back((logs, waiter));
    }

    /// Takes all of them out.
    pub(crate) fn take(&self) -> VecDeque<(IngestedLogs, IngestWaiter)> {
        std::mem::take(&mut *self.waiting.lock())
    }
}
