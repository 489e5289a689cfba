//! What may be shown: entries, LACs and fences of ledgers, of what is durable in memory. Shard invariants 6 and 7.

use super::Shard;
use crate::api::{EntryRef, EntryRun, Refusal};
use crate::ledger::LedgerState;
use crate::lookup::Otherwise;
use crate::run_set::RunSet;
use crate::tier::TieredRead;
use crate::write_cache::{Frozen, Walk};
use bindery_io::canary::Canary;
use bindery_io::chunk::ChunkSlice;
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;

/// Where a look-up in memory ended.
pub(crate) enum Found {
    Memory(ChunkSlice),
    /// Not in memory; look on disk, and if it is not there either, `otherwise` holds.
    OnDisk {
        entry: EntryId,
        otherwise: Otherwise,
        /// Copies of a lower generation are those of a former life of the ledger.
        hidden_below: u64,
        /// It is in object storage, and was let go here: then `otherwise` does not hold.
        tiered: Option<TieredRead>,
    },
}

/// Steps of a list while a shard is locked.
const STEPS: usize = 4096;

/// How far a list of a ledger's entries in memory is.
#[derive(Default)]
pub(crate) struct MemoryWalk {
    /// Copies that are not durable count, too.
    with_undurable: bool,
    /// Copies up to this sequence count.
    durable: Option<u64>,
    hidden_below: Option<u64>,
    /// Caches up to this generation were walked to their end.
    done: Option<u64>,
    /// The cache that is being walked, and where.
    generation: Option<u64>,
    at: Walk,
}

impl MemoryWalk {
    /// Of every copy that was placed when the list began, durable or not.
    pub(crate) fn with_undurable() -> MemoryWalk {
        MemoryWalk { with_undurable: true, ..MemoryWalk::default() }
    }
}

/// How far one step of such a list came.
pub(crate) struct MemoryStep {
    /// Caches that do not change any more: they are walked without the lock.
    pub(crate) whole: Vec<Arc<Frozen>>,
    pub(crate) durable: u64,
    pub(crate) is_done: bool,
    /// Copies on disk of a lower generation do not count.
    pub(crate) hidden_below: u64,
}

impl Shard {
    /// Looks for a durable copy in memory.
    pub(crate) fn find(&self, ledger: LedgerId, which: EntryRef) -> Result<Found, Refusal> {
        let state = self.live(ledger)?;
        let is_limbo = self.is_limbo(ledger, state);
        let entry = match which {
            EntryRef::At(entry) => entry,
            EntryRef::Last if is_limbo => return Err(Refusal::Unknown),
            EntryRef::Last => {
                // An entry below the trim counts as held.
                let last = EntryId::new(state.last_entry.shown(self.durable)).max(Shard::trimmed(state));
                last.ok_or(Refusal::NoEntry)?
            }
        };
        let active = state.records.find(entry.get(), self.durable);
        if let Some(record) = active.durable {
            return Ok(Found::Memory(self.body(state, &record)));
        }
        let mut undurable = active.undurable;
        for frozen in self.caches().rev().filter(|frozen| frozen.generation >= state.hidden_below) {
            let found = frozen.find(ledger, entry, self.durable);
            if let Some(record) = found.durable {
                return Ok(Found::Memory(frozen.body(&record)));
            }
            undurable = found.undurable.or(undurable);
        }
        let otherwise = match undurable {
            Some(sequence) => Otherwise::Undurable { sequence, in_limbo: is_limbo },
            None if is_limbo => Otherwise::Unknown,
            None => Otherwise::NoEntry,
        };
        let tiered = self.tiered_read(ledger, state, entry);
        Ok(Found::OnDisk { entry, otherwise, hidden_below: state.hidden_below, tiered })
    }

    /// The last entry, up to `last`, before which memory has no copy from `first` on, durable or not, and the
    /// generation below which copies on disk do not count; `None` when it has one of `first`, or the ledger is not to
    /// be read.
    pub(crate) fn absent_from_memory(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
    ) -> Option<(EntryId, u64)> {
        let state = self.live(ledger).ok()?;
        let frozen = self.caches().filter_map(|frozen| frozen.records.get(&ledger));
        let copies = frozen.chain([&state.records]);
        let nearest = copies.filter_map(|records| records.first_within(first.get(), last.get())).min();
        match nearest.filter(|_| !self.config.canaries.has(Canary::M37OlderCopiesTogether)) {
            None => Some((last, state.hidden_below)),
            Some(entry) if entry > first.get() => Some((EntryId::new(entry - 1)?, state.hidden_below)),
            Some(_) => None,
        }
    }

    pub(super) fn live(&self, ledger: LedgerId) -> Result<&LedgerState, Refusal> {
        let state = self.ledgers.get(&ledger).filter(|state| !state.is_removed());
        state.map(|state| &**state).ok_or_else(|| self.absence(ledger))
    }

    /// The LAC that may be shown.
    pub(crate) fn last_add_confirmed(&self, ledger: LedgerId) -> Result<Option<EntryId>, Refusal> {
        let state = self.sound(ledger)?;
        Ok(EntryId::new(state.last_add_confirmed.shown(self.durable)))
    }

    /// The last durable explicit LAC.
    pub(crate) fn explicit_lac(&self, ledger: LedgerId) -> Result<Option<Arc<[u8]>>, Refusal> {
        let state = self.sound(ledger)?;
        Ok(state.explicit_lac(self.durable).cloned())
    }

    /// Adds some of the durable entries in memory to `runs`, and at the end those that were let go: a list takes the lock for [`STEPS`] at a
    /// time. `Unknown` for a ledger in limbo, unless `with_limbo`.
    pub(crate) fn cached_entries(
        &self,
        ledger: LedgerId,
        with_limbo: bool,
        walk: &mut MemoryWalk,
        runs: &mut RunSet,
    ) -> Result<MemoryStep, Refusal> {
        let state = if with_limbo { self.live(ledger)? } else { self.sound(ledger)? };
        // Entries that came since the list began need not be in it, and a walk never ends that follows a writer.
        let upto = if walk.with_undurable { self.sequence } else { self.durable };
        let durable = *walk.durable.get_or_insert(upto);
        if walk.hidden_below.is_some_and(|before| before != state.hidden_below) {
            // The ledger went and came back: the runs found so far are of its former life.
            runs.clear();
            *walk = MemoryWalk {
                durable: Some(upto),
                with_undurable: walk.with_undurable,
                ..MemoryWalk::default()
            };
        }
        walk.hidden_below = Some(state.hidden_below);
        let is_new = |generation: u64| {
            generation >= state.hidden_below && walk.done.is_none_or(|done| generation > done)
        };
        let whole: Vec<Arc<Frozen>> =
            self.whole_caches().filter(|frozen| is_new(frozen.generation)).cloned().collect();
        if let Some(last) = whole.last() {
            walk.done = Some(last.generation);
        }
        let mut left = Some(());
        for (generation, records) in self.moving_records(ledger, state) {
            if generation < state.hidden_below || walk.done.is_some_and(|done| generation <= done) {
                continue;
            }
            if walk.generation != Some(generation) {
                (walk.generation, walk.at) = (Some(generation), Walk::default());
            }
            // The lock is given up between two caches, too.
            if left.take().is_none() || !records.durable_runs(&mut walk.at, durable, STEPS, runs) {
                return Ok(MemoryStep { whole, durable, is_done: false, hidden_below: state.hidden_below });
            }
            walk.done = Some(generation);
        }
        if let Some(last) = Shard::trimmed(state) {
            runs.add(EntryRun { first: EntryId::FIRST, last });
        }
        Ok(MemoryStep { whole, durable, is_done: true, hidden_below: state.hidden_below })
    }

    pub(crate) fn is_fenced(&self, ledger: LedgerId) -> bool {
        self.ledgers.get(&ledger).is_some_and(|s| s.fence.is_some() || s.is_removed())
    }

    pub(crate) fn ledger_count(&self) -> usize {
        self.ledgers.len() - self.removed.len()
    }
}
