//! Fences when the journal failed: they go straight to the state table, or fail.
//!
//! # Data flow
//! ```text
//! Engine::fence (journal failed) -> queue -> Flushing::fence_directly -> commit to the state table -> waiter
//! ```
//!
//! # Invariants
//! 1. A waiter fires with `Ok` only after the commit that says fenced, with the key, is durable (IB4).
//! 2. No ticket is out when a fence is committed: a flush of a state frozen before would take it back. A ticket that
//!    cannot be flushed makes direct fences fail.
//! 3. Everything else that the record says of the ledger is durable: a failed journal has made the shard forget the
//!    rest.
//!
//! # Limits
//! [`DIRECT_FENCES_MAX`] fences wait; more are refused with an I/O error.

use crate::api::Waiter;
use bindery_types::{LedgerId, MasterKey};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

/// Fences that wait for a commit.
const DIRECT_FENCES_MAX: usize = 1024;

/// While the journal is failed, the owner of the directories looks for fences so often.
pub(crate) const DIRECT_FENCE_PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct DirectFence {
    pub(crate) ledger: LedgerId,
    pub(crate) key: MasterKey,
    pub(crate) waiter: Waiter,
}

/// Those that wait for a commit.
#[derive(Default)]
pub(crate) struct DirectFences(Mutex<VecDeque<DirectFence>>);

impl DirectFences {
    /// Gives the waiter back when too many wait.
    #[must_use]
    pub(crate) fn push(&self, ledger: LedgerId, key: MasterKey, waiter: Waiter) -> Option<Waiter> {
        let mut waiting = self.0.lock();
        if waiting.len() >= DIRECT_FENCES_MAX {
            return Some(waiter);
        }
        waiting.push_back(DirectFence { ledger, key, waiter });
        None
    }

    /// Takes all of them out.
    pub(crate) fn take(&self) -> VecDeque<DirectFence> {
        std::mem::take(&mut *self.0.lock())
    }
}
