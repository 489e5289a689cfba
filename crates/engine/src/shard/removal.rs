//! Removal: a ledger goes, is remembered for late writers, comes back or is forgotten. Shard invariant 7.

use super::Shard;
use crate::api::{Answer, Changes, LedgerPresence, Refusal, Waiter};
use crate::ledger::LedgerState;
use bindery_io::canary::Canary;
use bindery_io::chunk::Lane;
use bindery_journal::record::Kind;
use bindery_storage::LedgerRanges;
use bindery_types::{LedgerId, MasterKey};
use std::ops::Bound;

impl Shard {
    /// Removes a ledger. The waiter fires when that is durable, at once when there is nothing to remove.
    pub(crate) fn remove(&mut self, ledger: LedgerId, waiter: Waiter) -> Answer {
        let Some(state) = self.ledgers.get(&ledger) else { return Answer::Now(waiter, Ok(())) };
        if state.is_removed() {
            let sequence = state.removed_at;
            return self.when_durable(sequence, waiter);
        }
        if self.is_failed {
            return Answer::Now(waiter, Err(Refusal::Io));
        }
        let is_fenced = state.fence.is_some();
        self.place_removal(ledger, is_fenced, waiter)
    }

    /// When something was placed for the ledger last, for [`Shard::is_unchanged`].
    pub(crate) fn changes(&self, ledger: LedgerId) -> Changes {
        Changes(self.ledgers.get(&ledger).map_or(0, |state| state.changed_at))
    }

    /// True when nothing was placed for the ledger since `seen` was taken.
    pub(crate) fn is_unchanged(&self, ledger: LedgerId, seen: Changes) -> bool {
        self.changes(ledger) == seen || self.config.canaries.has(Canary::M31StaleRemoval)
    }

    pub(super) fn place_removal(&mut self, ledger: LedgerId, is_fenced: bool, waiter: Waiter) -> Answer {
        let pieces: [&[u8]; 2] = [&ledger.get().to_be_bytes(), &[u8::from(is_fenced)]];
        let Ok(placed) = self.place(Kind::Removal, &pieces, Lane::Reserved) else {
            return Answer::Now(waiter, Err(Refusal::TooManyRequests));
        };
        self.index_removal(ledger, is_fenced, placed.sequence);
        self.waiters.push((placed.sequence, waiter));
        Answer::Later
    }

    pub(super) fn index_removal(&mut self, ledger: LedgerId, is_fenced: bool, sequence: u64) {
        // The records in the active cache are dropped below; a canary counts their generation as older than the
        // removal.
        let generation = self.generation + u64::from(self.config.canaries.has(Canary::M25RemovalHidesNewer));
        self.settle(ledger);
        let state = self.known_or_begun(ledger);
        let (was_tiered, lac_charge) = (state.tier.is_some(), state.explicit_lac_charge());
        state.remove(sequence, generation);
        if is_fenced {
            state.fence = state.fence.or(Some(sequence));
        }
        if state.wake_polls_at.is_some() {
            self.raised.insert(ledger);
        }
        self.last_removal = generation;
        self.recount_explicit_lac(ledger, lac_charge);
        self.on_tier_gone(ledger, was_tiered);
        self.on_removed(ledger);
        self.vouched.remove(&ledger);
        self.end_ingest_of(ledger);
        self.mark_dirty(ledger);
    }

    /// A ledger is removed.
    pub(super) fn on_removed(&mut self, ledger: LedgerId) {
        self.removed.insert(ledger);
    }

    /// A ledger is not removed any more, or forgotten.
    pub(super) fn on_back(&mut self, ledger: LedgerId) {
        self.removed.remove(&ledger);
    }

    /// A removed ledger exists after all: metadata names this bookie again. It is empty. Its fence holds, and with it
    /// its key; a ledger that was not fenced may be a new one under the same id.
    pub(crate) fn revive(&mut self, ledger: LedgerId, key: MasterKey, waiter: Waiter) -> Answer {
        let Some(state) = self.ledgers.get(&ledger) else { return Answer::Now(waiter, Ok(())) };
        if !state.accepts(&key) && (state.fence.is_some() || !state.is_removed()) {
            return Answer::Now(waiter, Err(Refusal::WrongKey));
        }
        if !state.is_removed() {
            return Answer::Now(waiter, Ok(()));
        }
        if self.is_failed {
            return Answer::Now(waiter, Err(Refusal::Io));
        }
        let pieces: [&[u8]; 2] = [&ledger.get().to_be_bytes(), key.as_bytes()];
        let Ok(placed) = self.place(Kind::LedgerKey, &pieces, Lane::Reserved) else {
            return Answer::Now(waiter, Err(Refusal::TooManyRequests));
        };
        self.index_key(ledger, key);
        self.vouched.insert(ledger);
        self.waiters.push((placed.sequence, waiter));
        Answer::Later
    }

    pub(crate) fn presence(&self, ledger: LedgerId) -> LedgerPresence {
        match self.ledgers.get(&ledger) {
            None => LedgerPresence::Unknown,
            Some(state) if state.is_removed() => LedgerPresence::Removed,
            Some(_) => LedgerPresence::Known,
        }
    }

    /// Appends the ledgers that exist here.
    pub(crate) fn ledgers(&self, into: &mut Vec<LedgerId>) {
        into.extend(self.ledgers.keys().filter(|ledger| !self.removed.contains(ledger)));
    }

    /// The generation below which copies of the ledger are removed for good: the removal is in the state table, which covers generations
    /// up to `flushed`. With `in_journal` it is enough that the journal has the removal durably, because a start replays it before it
    /// serves anything.
    pub(crate) fn hidden_for_good(&self, ledger: LedgerId, flushed: u64, in_journal: bool) -> u64 {
        let Some(state) = self.ledgers.get(&ledger) else { return 0 };
        match in_journal && state.removed_at <= self.durable {
            true => state.hidden_below,
            false => state.hidden_for_good(flushed),
        }
    }

    /// The generation of the last removal: it is in the state table when that is flushed.
    pub(crate) fn last_removal(&self) -> u64 {
        self.last_removal
    }

    /// The generation below which copies of the ledger are hidden, by a removal that may not be committed.
    pub(crate) fn hidden_below(&self, ledger: LedgerId) -> u64 {
        self.ledgers.get(&ledger).map_or(0, |state| state.hidden_below)
    }

    /// Removed ledgers, remembered for late writers.
    pub(crate) fn removed_count(&self) -> usize {
        self.removed.len()
    }

    /// Removed ledgers that may be forgotten if they have no copies on disk, ascending: those whose removal, and whose fence
    /// if there is one, is flushed with generation `flushed` or before, and that nothing in memory mentions.
    ///
    /// Looks at the first `most` of them after `after`, so that the shard is locked for a short time. Also returns the last one that it
    /// looked at, from which to go on; `None`: there are no others.
    pub(crate) fn forgettable(
        &self,
        flushed: u64,
        after: Option<LedgerId>,
        most: usize,
    ) -> (Vec<LedgerId>, Option<LedgerId>) {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut looked: Vec<LedgerId> =
            self.removed.range((begin, Bound::Unbounded)).take(most).copied().collect();
        let last = looked.last().copied().filter(|_| looked.len() == most);
        looked.retain(|ledger| !self.is_mentioned(*ledger, flushed));
        (looked, last)
    }

    /// True when something in memory needs the state of a removed ledger, or its removal is not flushed.
    fn is_mentioned(&self, ledger: LedgerId, flushed: u64) -> bool {
        let state = &self.ledgers[&ledger];
        let is_busy = state.dirty_in.is_some() || !state.polls.is_empty() || state.hidden_below > flushed;
        let in_cache = || self.caches().any(|cache| cache.records.contains_key(&ledger));
        is_busy || in_cache()
    }

    /// Drops the memory of those of the ledgers that may still be forgotten, and returns them. None of them has a copy on disk:
    /// the caller found that without the lock of the shard, and it is still true because only the calling thread adds logs. Call
    /// [`Shard::end_forgetting`] when the tables have forgotten them, too, or failed to. Those that were fenced are added to
    /// `fenced`: the tables remember that as long as they live.
    pub(crate) fn forget(
        &mut self,
        flushed: u64,
        without_copies: &[LedgerId],
        fenced: &mut Vec<LedgerId>,
    ) -> Vec<LedgerId> {
        let may_go = |ledger: &&LedgerId| {
            // It may be back, and removed again, since it was listed.
            self.removed.contains(ledger) && !self.is_mentioned(**ledger, flushed)
        };
        let forgotten: Vec<LedgerId> = without_copies.iter().filter(may_go).copied().collect();
        for ledger in &forgotten {
            self.on_back(*ledger);
            let state = self.ledgers.remove(ledger).expect("a removed ledger is known");
            if state.fence.is_some() {
                self.fences_forgotten.insert(*ledger);
                fenced.push(*ledger);
            }
            self.forgetting.insert(*ledger, state.snapshot(*ledger));
            self.raised.remove(ledger);
            self.vouched.remove(ledger);
        }
        self.charge_ledgers();
        forgotten
    }

    /// Ends what [`Shard::forget`] began. If it is committed, every table has forgotten these ledgers. Otherwise some table may still
    /// remember them, and so must the shard, or after a restart later records of a ledger would count as older than its removal.
    pub(crate) fn end_forgetting(&mut self, is_committed: bool) {
        // A freeze needs to know what was being forgotten.
        for ledger in self.forgetting.keys().copied().collect::<Vec<_>>() {
            self.settle(ledger);
        }
        for (ledger, record) in std::mem::take(&mut self.forgetting) {
            if is_committed {
                continue;
            }
            match self.ledgers.get_mut(&ledger) {
                None => {
                    self.ledgers.insert(ledger, Box::new(LedgerState::restore(&record)));
                    self.on_removed(ledger);
                }
                Some(state) => state.outlive(&record),
            }
            self.mark_dirty(ledger);
        }
        self.charge_ledgers();
    }

    /// The fences that earlier processes forgot.
    pub(crate) fn recall_fences(&mut self, forgotten: &LedgerRanges) {
        self.fences_forgotten.join(forgotten);
    }

    /// Marks all removed ledgers as changed, so that the next freeze writes their states again.
    pub(crate) fn touch_removed(&mut self) {
        for ledger in self.removed.clone() {
            self.settle(ledger);
            self.mark_dirty(ledger);
        }
    }
}
