//! Fences past a failed journal: the record that the state table must have, and the state that holds once it does.

use super::Shard;
use crate::api::{Refusal, Waiter};
use crate::ledger::LedgerState;
use crate::ledger_budget::Beginning;
use bindery_storage::LedgerRecord;
use bindery_types::{LedgerId, MasterKey};

/// The next step of a fence when the journal has failed.
pub(crate) enum DirectStep {
    /// Nothing: the answer is known.
    Answer(Result<(), Refusal>),
    /// This record, durably.
    Commit(Box<LedgerRecord>),
}

impl Shard {
    pub(crate) fn direct_fence(&self, ledger: LedgerId, key: MasterKey) -> DirectStep {
        debug_assert!(self.is_failed, "a journal that works takes fences");
        if !self.may_begin(ledger, Beginning::Urgent) {
            return DirectStep::Answer(Err(Refusal::TooManyRequests));
        }
        let unknown = LedgerState::boxed(None);
        let state = self.ledgers.get(&ledger).unwrap_or(&unknown);
        if !state.accepts(&key) {
            return DirectStep::Answer(Err(Refusal::WrongKey));
        }
        if state.is_removed() {
            // Its removal may be in the failed journal only: nothing is known for certain.
            let is_certain = state.fence.is_some_and(|fence| fence.max(state.removed_at) <= self.durable);
            return DirectStep::Answer(if is_certain { Ok(()) } else { Err(Refusal::Io) });
        }
        if state.fence.is_some_and(|fence| fence <= self.durable) {
            return DirectStep::Answer(Ok(()));
        }
        let mut record = state.snapshot(ledger);
        record.is_fenced = true;
        // Later updates are in the journal with their extents, and come from there at the next start.
        record.tier = state.committed_tier();
        if state.needs_key(&key) {
            record.master_key = Some(key);
        }
        DirectStep::Commit(Box::new(record))
    }

    /// The state table says fenced. Returns the polls that this wakes.
    pub(crate) fn on_fenced_directly(&mut self, ledger: LedgerId, key: MasterKey) -> Vec<Waiter> {
        self.settle(ledger);
        let state = self.known_or_begun(ledger);
        if state.needs_key(&key) {
            state.key = Some(key);
        }
        state.fence = Some(0);
        let polls = state.polls.take();
        self.raised.remove(&ledger);
        polls
    }
}
