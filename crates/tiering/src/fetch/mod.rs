//! Reading entries back from the tier: few requests, bounded memory, and never a wait for anybody else.
//!
//! # Data flow
//! ```text
//! ask(ledger, entry, extent) ─► in the cache ───────────────────────────────────────────────────► entry, pinned
//!        └► goal: the object's index, then a block ─► lane of (reader, ledger) ─► GET ─► cache ─► callbacks
//!           others that want the same join it          round robin, as slots     └► blocks that follow, for those
//!                                                       and memory allow             who read in sequence
//! ```
//! [`core`] decides, without I/O and without a clock; [`fetcher`] sends requests and calls back; [`check`] compares an object
//! with local copies before those are dropped (T19).
//!
//! # Invariants
//! 1. A reader gets the very entry that it asked for: its block has the checksum that the footer says, the footer
//!    the one that the reference says, and the entry carries its ids. Anything else is an error that names object and part.
//! 2. No error says that an entry does not exist.
//! 3. However many wait for an index or a block, one request is under way for it.
//! 4. Memory under way and in the caches is at most [`FetchOptions::memory_bytes_max`]; a pinned block stays in the cache.
//!    A pin that is not used within [`FetchOptions::pin_lease`] is revoked when others need its memory, and its owner asks
//!    again: a peer that takes nothing holds up nobody.
//! 5. Readers take turns, and within a reader its ledgers; no reader has all slots. One request of checks may run beside those of
//!    readers, however much these want: else local copies would stay for as long. More run when no reader has anything queued.
//! 6. A waiter is called back once, by its deadline or before; one that is cancelled never, and leaves nothing behind.
//! 7. While the store cannot be reached, those that need it are told so at once, and one of them in a while tries.
//! 8. Without waiters there is no request, no timer and no queue.
//!
//! # Limits
//! All in [`FetchOptions`].
//!
//! # Not here   which entries are in the tier, and in which object (the bookie's engine)

pub mod check;
mod core;
mod fetcher;
mod get;
mod index;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bindery_types::tier::{ObjectId, TierExtent};
use bindery_types::{EntryId, LedgerId};

use crate::object::ObjectError;

pub use self::core::FetchStats;
pub use fetcher::{Entry, Fetched, Fetcher, Offer, Ticket};

/// Bounds and time limits.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// Memory for what is under way and for the caches. Start: 64 MiB.
    pub memory_bytes_max: u64,
    /// Of this, for indexes of objects (decoded footers). Start: 16 MiB.
    pub index_bytes_max: u64,
    /// Requests at once. Start: 16.
    pub requests_max: usize,
    /// Of these for one reader. Start: 12.
    pub requests_per_reader_max: usize,
    /// Of these for checks before trimming, while no reader has anything queued. Start: 8.
    pub requests_of_checks_max: usize,
    /// Readers' entries that wait. Start: 16,384.
    pub waiters_max: usize,
    /// Of these for one reader. Start: 4,096.
    pub waiters_per_reader_max: usize,
    /// Bytes that one request brings to who reads in sequence. Start: 8 MiB.
    pub ahead_bytes_max: u64,
    /// Until a waiter is told that the tier cannot be reached. Start: 5 s, the time after which clients ask another bookie.
    pub deadline: Duration,
    /// For one try of a request. Start: 10 s.
    pub try_timeout: Duration,
    /// For a request with its retries. Start: 15 s. Longer than a waiter's deadline, so that a slow store is of use after all.
    pub request_timeout: Duration,
    /// Tries after the first. Start: 3.
    pub retries_max: u32,
    /// Pause before the first retry, doubled for each that follows. Start: 100 ms.
    pub retry_pause: Duration,
    /// Tries in a row that fail before the store counts as out of reach. Start: 5.
    pub failures_max: u32,
    /// Pause before the store is tried again, doubled with each failure up to the maximum. Start: 1 s.
    pub pause_min: Duration,
    /// Longest such pause. Start: 30 s.
    pub pause_max: Duration,
    /// How long an entry that came stays for its reader when memory is short. Start: 1 s.
    pub pin_lease: Duration,
    /// Time before a damaged block, or an object that is another one, is tried again. Start: 10 s.
    pub bad_for: Duration,
    /// Time before the next request for an object that the store says is not there, or may not be read: that may be over at any moment,
    /// when the bucket or a proxy was out of order. Start: 250 ms.
    pub missing_for: Duration,
}

impl Default for FetchOptions {
    fn default() -> FetchOptions {
        FetchOptions {
            memory_bytes_max: 64 << 20,
            index_bytes_max: 16 << 20,
            requests_max: 16,
            requests_per_reader_max: 12,
            requests_of_checks_max: 8,
            waiters_max: 16_384,
            waiters_per_reader_max: 4_096,
            ahead_bytes_max: 8 << 20,
            deadline: Duration::from_secs(5),
            try_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(15),
            retries_max: 3,
            retry_pause: Duration::from_millis(100),
            failures_max: 5,
            pause_min: Duration::from_secs(1),
            pause_max: Duration::from_secs(30),
            pin_lease: Duration::from_secs(1),
            bad_for: Duration::from_secs(10),
            missing_for: Duration::from_millis(250),
        }
    }
}

/// One of those that take turns: a connection, for example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderId(pub u64);

/// An entry that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// For whom.
    pub reader: ReaderId,
    /// Its ledger.
    pub ledger: LedgerId,
    /// Its number.
    pub entry: EntryId,
    /// Where it is.
    pub extent: TierExtent,
}

/// Why an entry was not read from the tier. None of them says that it is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The store does not answer, or not as it should at the moment.
    #[error("the tier cannot be reached: {reason}")]
    Unreachable {
        /// The cause.
        reason: Arc<str>,
    },
    /// More entries wait than may.
    #[error("too many reads wait for the tier")]
    Busy,
    /// There is no such object, which the store also says of a bucket that is gone and of an unknown access key.
    #[error("object {object} is missing: {reason}")]
    Missing {
        /// The object.
        object: ObjectId,
        /// In the words of the store.
        reason: Arc<str>,
    },
    /// The store answers, and does not let this object be read (403): its own permissions, key or storage class. Others may be read.
    #[error("object {object} cannot be read: {reason}")]
    Refused {
        /// The object.
        object: ObjectId,
        /// In the words of the store.
        reason: Arc<str>,
    },
    /// A part of the object is not what was written.
    #[error("object {object}: {error}")]
    Damaged {
        /// The object.
        object: ObjectId,
        /// Which part, and what is wrong with it.
        error: ObjectError,
    },
    /// The object is another one than was committed.
    #[error("object {object} is not the one that was committed: {difference}")]
    Different {
        /// The object.
        object: ObjectId,
        /// In what.
        difference: Arc<str>,
    },
    /// It takes more memory than there is for all reads from the tier.
    #[error("object {object}: a part takes {bytes} bytes of memory, and reads from the tier may take {max}")]
    TooLarge {
        /// The object.
        object: ObjectId,
        /// Memory for the part.
        bytes: u64,
        /// Memory for all.
        max: u64,
    },
    /// The fetcher ends.
    #[error("reads from the tier end with this process")]
    Stopped,
}

impl FetchError {
    /// True when the object itself is at fault: a person must look.
    pub fn is_alarm(&self) -> bool {
        match self {
            FetchError::Missing { .. } | FetchError::Damaged { .. } | FetchError::Different { .. } => true,
            FetchError::Unreachable { .. }
            | FetchError::Refused { .. }
            | FetchError::Busy
            | FetchError::TooLarge { .. }
            | FetchError::Stopped => false,
        }
    }

    /// True when the store answered, and the answer concerns this object alone.
    pub(crate) fn is_of_object(&self) -> bool {
        self.is_alarm() || matches!(self, FetchError::Refused { .. })
    }
}
