//! The memory of ledger states, of all shards together, and its limit.
//!
//! A ledger has a state from its first add, fence or explicit LAC (last add confirmed) on, whether metadata knows it or not, and
//! until garbage collection finds that metadata does not. Peers choose ids freely, so without a limit whoever may write fills
//! the memory.
//!
//! ```text
//! add, write_lac --\
//! fence, recovery --> Shard::may_begin -> has_room -> the state is made, and charged at once
//! restart ------------------------------------------> the state is made, and charged
//! ```
//!
//! # Invariants
//! 1. From the limit on no ledger begins with an ordinary add, an explicit LAC, or a copy in object storage.
//! 2. Fences and adds of recoveries begin ledgers up to an eighth more: writers that filled the memory must not keep others from
//!    closing their ledgers. Beyond that a fence begins one that metadata has ([`Engine::fence_known`](crate::Engine::fence_known)),
//!    and none that somebody made up.
//! 3. Adds, fences and reads of a ledger that is known are never refused here, and a start takes over whatever was acknowledged. From
//!    the limit on a known ledger gets no larger explicit LAC, and no first copy in object storage: both are tried again, and would
//!    use up what is for recoveries.
//! 4. A shard charges for its ledgers when one begins and when some are forgotten, not only at its next cut.
//!
//! # Limits
//! Shards look at the sum without a common lock, so each of them may exceed the limit by one ledger, and by the fences of one commit
//! where they go to the tables directly. The sum leaves out memory that a ledger needs only until it is flushed, which the write cache
//! counts, and parked polls, which have a limit of their own.

use bindery_storage::{IndexPool, IndexUse};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Longest body of an explicit LAC, which is kept in memory for each ledger: the protocol's have 16 bytes and a digest of at
/// most 20.
pub const EXPLICIT_LAC_BYTES_MAX: usize = 256;

/// The part of the limit that fences and recoveries have beyond it.
const URGENT_SHARE: u64 = 8;

/// On whose behalf a ledger begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    Ordinary,
    /// A fence, or an add of a recovery.
    Urgent,
    /// A fence of a ledger that metadata has.
    Known,
}

/// The memory that the states of ledgers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerMemory {
    /// Bytes they take.
    pub used_bytes: u64,
    /// From here on no ledger begins, but for fences and recoveries.
    pub bytes_max: u64,
    /// Requests that were refused because they would have begun one, or enlarged one for good.
    pub refused: u64,
}

/// See the module.
pub(crate) struct LedgerBudget {
    index: Arc<IndexPool>,
    bytes_max: u64,
    refused: AtomicU64,
}

impl LedgerBudget {
    pub(crate) fn new(index: Arc<IndexPool>, bytes_max: u64) -> Arc<LedgerBudget> {
        Arc::new(LedgerBudget { index, bytes_max, refused: AtomicU64::new(0) })
    }

    /// Whether the states may take so many bytes more. Counts requests that are refused for it.
    pub(crate) fn has_room(&self, bytes: u64, beginning: Beginning) -> bool {
        let limit = match beginning {
            Beginning::Ordinary => self.bytes_max,
            Beginning::Known => return true,
            Beginning::Urgent => self.bytes_max.saturating_add(self.bytes_max / URGENT_SHARE),
        };
        let has_room = self.index.used(IndexUse::Ledgers).saturating_add(bytes) <= limit;
        if !has_room {
            self.refused.fetch_add(1, Relaxed);
        }
        has_room
    }

    /// A shard holds `now` bytes, for which `before` are charged.
    pub(crate) fn recharge(&self, before: u64, now: u64) {
        if now > before {
            self.index.charge(IndexUse::Ledgers, now - before);
        } else if now < before {
            self.index.release(IndexUse::Ledgers, before - now);
        }
    }

    pub(crate) fn memory(&self) -> LedgerMemory {
        LedgerMemory {
            used_bytes: self.index.used(IndexUse::Ledgers),
            bytes_max: self.bytes_max,
            refused: self.refused.load(Relaxed),
        }
    }
}
