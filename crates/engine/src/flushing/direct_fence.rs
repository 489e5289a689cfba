//! The commits of [`crate::direct_fence`].

use super::Flushing;
use crate::api::{Refusal, Waiter};
use crate::direct_fence::DirectFence;
use crate::flush_routing::StorageFault;
use crate::shard::DirectStep;
use bindery_storage::{DirectoryCommit, LedgerRecord};
use bindery_types::LedgerId;
use std::collections::BTreeMap;

impl Flushing {
    /// Commits the fences that wait. Blocks on the disk.
    pub(super) fn fence_directly(&mut self) {
        let is_ticket_out = self.shared.is_ticket_out();
        let can_commit = !self.shared.is_storage_lost() && !self.is_waiting();
        if is_ticket_out && can_commit {
            return; // it is flushed next
        }
        let waiting = self.shared.direct_fences().take();
        let mut fired: Vec<(Waiter, Result<(), Refusal>)> = Vec::new();
        let mut records: BTreeMap<usize, BTreeMap<LedgerId, LedgerRecord>> = BTreeMap::new();
        let mut committing: BTreeMap<usize, Vec<DirectFence>> = BTreeMap::new();
        for fence in waiting {
            let shard = self.shared.shard_of(fence.ledger);
            let step = self.shared.lock(shard).direct_fence(fence.ledger, fence.key);
            match step {
                DirectStep::Answer(outcome) => fired.push((fence.waiter, outcome)),
                DirectStep::Commit(_) if !can_commit => fired.push((fence.waiter, Err(Refusal::Io))),
                DirectStep::Commit(record) => {
                    let home = self.directories().routing().home(shard);
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
            let outcome = match self.directories_mut()[home].commit(&commit) {
                Ok(()) => Ok(()),
                Err(error) => {
                    if let StorageFault::Failed(reason) = self.directories().fault_of(home, &error) {
                        self.directories_mut().fail(home, reason);
                    }
                    Err(Refusal::Io)
                }
            };
            for DirectFence { ledger, key, waiter } in fences {
                if outcome.is_ok() {
                    let polls = self.shared.lock_of(ledger).on_fenced_directly(ledger, key);
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
