//! Ledgers whose entries are being ingested past the journal: the generation of their copies, and what must hold at the commit.
//!
//! # Invariants
//! 1. At most one ingest has entries of a ledger at a time, and a removal ends its claim for good, also when the ledger comes
//!    back or is forgotten and begun anew. Only with the claim is it committed.
//! 2. The generation of the copies is one that is flushed. So it is below that of every cache that is still to be flushed, frozen
//!    ones included, as a rewrite takes for granted of what is on disk; what is placed after the claim is newer, and a removal
//!    that is placed after it hides them (IB17).
//! 3. The removal before, if there was one, is flushed when the claim is made. No start replays it then: replayed, it would take
//!    a new generation and hide copies that came after it.
//! 4. In the state table of the directory that gets the entries, the ledger's record has a last entry and a LAC (last add confirmed)
//!    that are as high as those of the entries: it has them already, or the same commit brings them. Such a record is made
//!    from a ledger at rest, of which everything is in the state tables: a record of anything else could say what is not durable.
//! 5. Somebody who decides about a removal sees that the ledger changed, both when an ingest of it began and when it was committed.

use super::Shard;
use crate::api::Waiter;
use crate::ingest_desk::{IngestError, IngestedLedger};
use bindery_io::canary::Canary;
use bindery_storage::{Generation, LedgerRecord};
use bindery_types::{EntryId, LedgerId};

/// Set in [`crate::Changes`] that come from an ingest: sequences of records never get there.
const OF_INGEST: u64 = 1 << 63;

/// Whether a ledger's part of an ingest may be committed now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// With this record of the ledger.
    Ready(Box<LedgerRecord>),
    /// When what is known of the ledger is flushed, or without a record if the state table has one that is as high, and hides the
    /// same copies as removed: those below this generation.
    NotAtRest(Generation),
    Refused(IngestError),
}

impl Shard {
    /// Claims a ledger for an ingest whose lowest entry of it is `first`, and returns the generation of its copies. What was frozen
    /// up to the generation `flushed` is on disk; no copy of the ingest may have a generation above `most`.
    pub(crate) fn begin_ingest(
        &mut self,
        ledger: LedgerId,
        first: EntryId,
        number: u64,
        flushed: u64,
        most: Generation,
    ) -> Result<Generation, IngestError> {
        if self.takes_no_adds() {
            return Err(IngestError::ReadOnly(NO_WRITES.into()));
        }
        // Both bounds hold: a journal may have been flushed since the ingest took `most`, and this shard's may not (invariant 2).
        let flushed = match self.config.canaries.has(Canary::M52RemovalNotAwaited) {
            true => self.generation - 1,
            false => flushed,
        };
        let generation = most.min(Generation(flushed));
        let Some(state) = self.ledgers.get_mut(&ledger).filter(|state| !state.is_removed()) else {
            return Err(IngestError::NoLedger(ledger));
        };
        if self.ingests.contains_key(&ledger) {
            return Err(IngestError::Busy(ledger));
        }
        if state.hidden_below > flushed {
            return Err(IngestError::RemovalNotFlushed(ledger));
        }
        if state.hidden_below > generation.0 {
            return Err(IngestError::BehindRemoval(ledger));
        }
        if Shard::trimmed(state) >= Some(first) {
            return Err(IngestError::Tiered { ledger, entry: first });
        }
        state.changed_at = OF_INGEST | (2 * number);
        self.ingests.insert(ledger, number);
        Ok(generation)
    }

    /// An ingest ended: it has no claim any more.
    pub(crate) fn end_ingest(&mut self, ledger: LedgerId, number: u64) {
        if self.ingests.get(&ledger) == Some(&number) {
            self.ingests.remove(&ledger);
        }
    }

    /// A ledger is removed: whatever an ingest has of it must not come into force.
    pub(super) fn end_ingest_of(&mut self, ledger: LedgerId) {
        if !self.config.canaries.has(Canary::M54RemovalUnnoticed) {
            self.ingests.remove(&ledger);
        }
    }

    /// Whether a ledger's part of an ingest may be committed now. What was frozen up to the generation `flushed` is on disk.
    pub(crate) fn ready_for_ingest(&self, part: &IngestedLedger, number: u64, flushed: u64) -> Readiness {
        let ledger = part.ledger;
        if self.takes_no_adds() {
            return Readiness::Refused(IngestError::ReadOnly(NO_WRITES.into()));
        }
        let state = self.ledgers.get(&ledger).filter(|_| self.ingests.get(&ledger) == Some(&number));
        let Some(state) = state else { return Readiness::Refused(IngestError::NoLedger(ledger)) };
        if Shard::trimmed(state) >= Some(part.first) {
            return Readiness::Refused(IngestError::Tiered { ledger, entry: part.first });
        }
        // Invariant 4.
        let in_caches = self.caches().any(|cache| cache.records.contains_key(&ledger));
        let is_planted =
            self.config.canaries.has(Canary::M52RemovalNotAwaited) && state.hidden_below > flushed;
        if (state.dirty_in.is_some() || in_caches) && !is_planted {
            return Readiness::NotAtRest(Generation(state.hidden_below));
        }
        // With what is in object storage: it may take the place of the only record that says so.
        let mut record = state.snapshot(ledger);
        record.last_entry = record.last_entry.max(Some(part.last));
        record.last_add_confirmed = record.last_add_confirmed.max(part.last_add_confirmed);
        Readiness::Ready(Box::new(record))
    }

    /// A ledger's part of an ingest is committed, and readers see its log. Returns the polls that this wakes, and the generation
    /// of a frozen cache, if there is one, whose record of the ledger may say less: see `flushing::ingest`.
    pub(crate) fn on_ingested(&mut self, part: &IngestedLedger, number: u64) -> (Vec<Waiter>, Option<u64>) {
        let ledger = part.ledger;
        if self.ingests.get(&ledger) != Some(&number) {
            // It was removed meanwhile, which hides what was committed.
            return (Vec::new(), None);
        }
        self.ingests.remove(&ledger);
        let durable = self.durable;
        let caches = self.caches().filter(|cache| cache.records.contains_key(&ledger));
        let stale = caches.map(|cache| cache.generation).max();
        let Some(state) = self.ledgers.get_mut(&ledger) else { return (Vec::new(), None) };
        state.last_entry.raise_durable(part.last.get());
        state.last_add_confirmed.raise_durable(EntryId::to_wire(part.last_add_confirmed));
        state.changed_at = OF_INGEST | (2 * number + 1);
        let shown = state.last_add_confirmed.shown(durable);
        (state.polls.take_below(shown), stale)
    }
}

const NO_WRITES: &str = "it has failed, or waits for space or for file descriptors";
