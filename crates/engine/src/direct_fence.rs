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

use crate::api::{Refusal, Waiter};
use crate::engine::Engine;
use crate::flush_routing::StorageFault;
use crate::machine::Flushing;
use crate::shard::DirectStep;
use bindery_storage::{DirectoryCommit, LedgerRecord};
use bindery_types::{LedgerId, MasterKey};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Fences that wait for a commit.
const DIRECT_FENCES_MAX: usize = 1024;

/// While the journal is failed, the owner of the directories looks for fences so often.
pub(crate) const DIRECT_FENCE_PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct DirectFence {
    ledger: LedgerId,
    key: MasterKey,
    waiter: Waiter,
}

impl Engine {
    pub(crate) fn fence_directly(&self, ledger: LedgerId, key: MasterKey, waiter: Waiter) {
        let mut waiting = self.direct_fences.lock();
        if waiting.len() < DIRECT_FENCES_MAX && !self.is_storage_lost() {
            waiting.push_back(DirectFence { ledger, key, waiter });
            return;
        }
        drop(waiting);
        waiter(Err(Refusal::Io));
    }
}

impl Flushing {
    /// Commits the fences that wait. Blocks on the disk.
    pub(crate) fn fence_directly(&mut self) {
        let is_ticket_out = self.engine.tickets_out.load(Ordering::Acquire) > 0;
        let can_commit = !self.engine.is_storage_lost() && !self.is_waiting();
        if is_ticket_out && can_commit {
            return; // it is flushed next
        }
        let waiting = std::mem::take(&mut *self.engine.direct_fences.lock());
        let mut fired: Vec<(Waiter, Result<(), Refusal>)> = Vec::new();
        let mut records: BTreeMap<usize, BTreeMap<LedgerId, LedgerRecord>> = BTreeMap::new();
        let mut committing: BTreeMap<usize, Vec<DirectFence>> = BTreeMap::new();
        for fence in waiting {
            let shard = self.engine.shard_of(fence.ledger);
            let step = self.engine.shards[shard].lock().direct_fence(fence.ledger, fence.key);
            match step {
                DirectStep::Answer(outcome) => fired.push((fence.waiter, outcome)),
                DirectStep::Commit(_) if !can_commit => fired.push((fence.waiter, Err(Refusal::Io))),
                DirectStep::Commit(record) => {
                    let home = self.home(shard);
                    // Of two keys for a ledger that had none, the first one counts.
                    let key =
                        records.entry(home).or_default().entry(fence.ledger).or_insert(*record).master_key;
                    if key == Some(fence.key) {
                        committing.entry(home).or_default().push(fence);
                    } else {
                        fired.push((fence.waiter, Err(Refusal::WrongKey)));
                    }
                }
            }
        }
        for (home, fences) in committing {
            let ledgers: Vec<LedgerRecord> =
                records.remove(&home).unwrap_or_default().into_values().collect();
            let commit = DirectoryCommit { ledgers: &[&ledgers], ..Default::default() };
            let outcome = match self.directories[home].commit(&commit) {
                Ok(()) => Ok(()),
                Err(error) => {
                    if let StorageFault::Failed(reason) = self.fault_of(home, &error) {
                        self.fail(home, reason);
                    }
                    Err(Refusal::Io)
                }
            };
            for DirectFence { ledger, key, waiter } in fences {
                if outcome.is_ok() {
                    let polls = self.engine.shard(ledger).lock().on_fenced_directly(ledger, key);
                    fired.extend(polls.into_iter().map(|poll| (poll, Ok(()))));
                }
                fired.push((waiter, outcome));
            }
        }
        for (waiter, outcome) in fired {
            waiter(outcome);
        }
    }
}
