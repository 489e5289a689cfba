//! Restart: ledgers from the state table, then the journal's records behind its mark.

use super::{NoRoom, Shard, explicit_lac_of};
use crate::lagging::Lagging;
use crate::ledger::LedgerState;
use bindery_io::chunk::Lane;
use bindery_journal::record::{Kind, Record};
use bindery_storage::LedgerRecord;
use bindery_types::EntryId;

impl Shard {
    /// The generation of what comes next: above all that is on disk or was removed.
    pub(crate) fn begin_generation(&mut self, generation: u64) {
        debug_assert!(
            self.ledgers.values().all(|state| state.hidden_below <= generation),
            "nothing new is hidden"
        );
        self.generation = generation;
        self.charge_ledgers();
    }

    /// A ledger from the state table. Records of two directories (after a change of their number) are merged; of two
    /// lives the later one counts, and a fence of either.
    pub(crate) fn restore(&mut self, record: &LedgerRecord) {
        let restored = LedgerState::restore(record);
        let known = self.ledgers.get(&record.ledger);
        let was_tiered = known.is_some_and(|known| known.tier.is_some());
        let lac_charge = known.map_or(0, |known| known.explicit_lac_charge());
        match self.ledgers.get_mut(&record.ledger) {
            None => {
                self.ledgers.insert(record.ledger, Box::new(restored));
            }
            Some(known) if known.life < restored.life => {
                let fence = known.fence.or(restored.fence);
                **known = LedgerState { fence, ..restored };
            }
            Some(known) if known.life > restored.life => known.fence = known.fence.or(restored.fence),
            Some(known) => {
                let other = known.snapshot(record.ledger);
                known.key = known.key.filter(|k| !k.is_zero()).or(restored.key);
                known.fence = known.fence.or(restored.fence);
                known.is_limbo |= restored.is_limbo;
                known.join_tier(record.tier);
                let last = other.last_entry.max(record.last_entry);
                known.last_entry = Lagging::durable(EntryId::to_wire(last));
                if record.last_add_confirmed >= other.last_add_confirmed {
                    let lac = EntryId::to_wire(record.last_add_confirmed);
                    known.last_add_confirmed = Lagging::durable(lac);
                }
                let newest = known.explicit_lacs_newest().map(explicit_lac_of);
                if let Some(body) = record.explicit_lac.as_deref()
                    && Some(explicit_lac_of(body)) > newest
                {
                    known.push_explicit_lac(0, 0, body.into());
                }
            }
        }
        self.recount_explicit_lac(record.ledger, lac_charge);
        self.on_tier_restored(record.ledger, was_tiered);
        if self.ledgers[&record.ledger].is_removed() {
            self.on_removed(record.ledger);
        } else {
            self.on_back(record.ledger);
        }
    }

    /// Between this and [`Shard::end_replay`] records are placed as durable.
    pub(crate) fn begin_replay(&mut self) {
        self.is_replaying = true;
    }

    /// Applies a record of the journal again.
    pub(crate) fn replay(&mut self, record: &Record<'_>) -> Result<(), NoRoom> {
        debug_assert!(self.is_replaying, "between begin_replay and end_replay");
        let ledger = record.ledger;
        match record.kind {
            Kind::Entry => {
                let placed = self.place(Kind::Entry, &[record.body], Lane::Reserved)?;
                self.exists(ledger);
                let entry = record.entry().expect("replay gives entries with their id");
                self.index_entry(ledger, entry, record.last_add_confirmed(), placed);
            }
            Kind::LedgerKey | Kind::Fence => {
                let key = record.master_key().expect("key and fence records hold a key");
                self.index_key(ledger, key);
                if record.kind == Kind::Fence {
                    let state = self.exists(ledger);
                    state.fence = state.fence.or(Some(0));
                }
            }
            Kind::Removal => {
                self.sequence += 1;
                self.index_removal(ledger, record.is_fenced_removal(), self.sequence);
                (self.cut, self.durable) = (self.sequence, self.sequence);
            }
            Kind::ExplicitLac => {
                let key = record.master_key().expect("explicit LAC records hold a key");
                let body = record.explicit_lac().expect("explicit LAC records hold a body");
                self.sequence += 1;
                self.index_explicit_lac(ledger, key, explicit_lac_of(body), body.into(), self.sequence);
                (self.cut, self.durable) = (self.sequence, self.sequence);
            }
            Kind::Limbo => {
                self.sequence += 1;
                self.index_limbo(ledger, record.enters_limbo());
                (self.cut, self.durable) = (self.sequence, self.sequence);
            }
            Kind::Reconciled => self.replay_update(record)?,
            Kind::Restored => self.replay_restored(record)?,
            Kind::FenceWithoutKey => {
                self.settle(ledger);
                if let Some(state) = self.ledgers.get_mut(&ledger) {
                    state.fence = state.fence.or(Some(0));
                    self.mark_dirty(ledger);
                }
            }
        }
        Ok(())
    }

    /// Replay is over: the placed records are in the journal already and are not written to it again.
    pub(crate) fn end_replay(&mut self) {
        self.is_replaying = false;
    }
}
