//! The commits of ingests ([`crate::Ingest`]): one transaction brings the logs, and last entry and LAC (last add confirmed) of
//! their ledgers.
//!
//! # Data flow
//! ```text
//! IngestDesk -> each ledger ready, under the lock of its shard -> names durable -> commit -> last entry, LAC, polls -> waiter
//!                 '- not at rest: request a freeze, try again after the next flush
//! ```
//!
//! # Invariants
//! 1. What a shard says of a ledger when the commit begins holds, as far as the commit needs it, when it ends: a removal in between
//!    hides what is committed, because its generation is higher (`shard::ingest`); no other commit comes in between, because this
//!    thread makes all of them.
//! 2. A ledger may change while its record is being committed, and be frozen before its state in memory has the last entry that
//!    the record has. Such a frozen record is committed with that last entry and LAC: it would take them back otherwise.
//! 3. A commit that waits ends: with a flush, at most [`FLUSHES_MAX`] of them, or when the bookie takes no writes.
//! 4. At most one is committed in a step, so that a flush waits for one transaction.

use super::Flushing;
use crate::api::Waiter;
use crate::flush_routing::StorageFault;
use crate::ingest_desk::{IngestError, IngestWaiter, IngestedLedger, IngestedLogs};
use crate::shard::Readiness;
use crate::stats::Counters;
use crate::write_cache::Frozen;
use bindery_io::canary::Canary;
use bindery_storage::{DirectoryCommit, DirectoryError, Generation, LedgerRecord, ReadBack};
use bindery_types::{EntryId, LedgerId};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

/// Flushes that a commit waits for at most until its ledgers are at rest.
const FLUSHES_MAX: u32 = 16;

/// An ingest that waits for its ledgers to be at rest.
struct Waiting {
    logs: IngestedLogs,
    waiter: IngestWaiter,
    /// Flushes that ended before the last try; `None`: it was not tried yet.
    flushes: Option<u64>,
    tries: u32,
}

/// A frozen record that says less of a ledger than the one that an ingest brought (invariant 2).
struct Stale {
    shard: usize,
    ledger: LedgerId,
    last_entry: EntryId,
    last_add_confirmed: Option<EntryId>,
    /// The last frozen cache of the shard that has one.
    until: u64,
}

/// Ingests, as the owner of the ledger directories has them.
#[derive(Default)]
pub(super) struct Ingests {
    waiting: VecDeque<Waiting>,
    stale: Vec<Stale>,
}

impl Ingests {
    /// The records of these caches that say less of a ledger than an ingest committed, as they must be.
    pub(super) fn records_over(&self, states: &[&Frozen]) -> Vec<LedgerRecord> {
        let mut records = Vec::new();
        for stale in &self.stale {
            let caches = states.iter().filter(|frozen| {
                frozen.generation <= stale.until && frozen.records.contains_key(&stale.ledger)
            });
            for record in caches.flat_map(|frozen| &frozen.states).filter(|r| r.ledger == stale.ledger) {
                let mut record = record.clone();
                record.last_entry = record.last_entry.max(Some(stale.last_entry));
                record.last_add_confirmed = record.last_add_confirmed.max(stale.last_add_confirmed);
                records.push(record);
            }
        }
        records
    }
}

/// An ingest whose ledgers are ready.
struct Ready {
    logs: IngestedLogs,
    /// Of the ledgers that are at rest.
    records: Vec<LedgerRecord>,
}

enum Looked {
    Ready(Ready),
    /// This ledger is not.
    NotAtRest(IngestedLogs, LedgerId),
    Refused(IngestedLogs, IngestError),
}

impl Flushing {
    /// Commits an ingest that waits for it and is ready. True when another may be. Blocks on the disk.
    pub(super) fn commit_ingests(&mut self) -> bool {
        for (logs, waiter) in self.shared.ingests().take() {
            self.ingests.waiting.push_back(Waiting { logs, waiter, flushes: None, tries: 0 });
        }
        let flushes = self.shared.counters().flushes.load(Relaxed);
        for _ in 0..self.ingests.waiting.len() {
            let Some(waiting) = self.ingests.waiting.pop_front() else { return false };
            let Waiting { logs, waiter, flushes: tried, tries } = waiting;
            if tried == Some(flushes) && !self.takes_no_ingest(&logs) {
                self.ingests.waiting.push_back(Waiting { logs, waiter, flushes: tried, tries });
                continue;
            }
            match self.look_at(logs) {
                Looked::Ready(ready) => {
                    self.commit_ingest(ready, waiter);
                    return !self.ingests.waiting.is_empty();
                }
                Looked::Refused(logs, error) => self.refuse_ingest(logs, waiter, error),
                Looked::NotAtRest(logs, ledger) if tries == FLUSHES_MAX => {
                    self.refuse_ingest(logs, waiter, IngestError::NeverAtRest(ledger));
                }
                Looked::NotAtRest(logs, _) => {
                    let waiting = Waiting { logs, waiter, flushes: Some(flushes), tries: tries + 1 };
                    self.ingests.waiting.push_back(waiting);
                }
            }
        }
        false
    }

    /// The bookie takes no writes, or not in this directory.
    fn takes_no_ingest(&self, logs: &IngestedLogs) -> bool {
        self.obstacle_of(logs).is_some()
    }

    fn obstacle_of(&self, logs: &IngestedLogs) -> Option<IngestError> {
        let routing = self.directories().routing();
        let status = self.shared.status();
        if let Some(reason) = routing.failure(logs.directory) {
            return Some(IngestError::Io(reason));
        }
        let reason = status.failed.as_deref().or(status.waits()).map(str::to_owned);
        reason.map(IngestError::ReadOnly)
    }

    /// Whether all ledgers of an ingest are ready for its commit.
    fn look_at(&self, logs: IngestedLogs) -> Looked {
        if let Some(error) = self.obstacle_of(&logs) {
            return Looked::Refused(logs, error);
        }
        let shared = &self.shared;
        let (mut records, mut busy) = (Vec::new(), None);
        for part in &logs.ledgers {
            let shard = shared.shard_of(part.ledger);
            let flushed = shared.flushed_generation(shard);
            let readiness = shared.lock(shard).ready_for_ingest(part, logs.number, flushed);
            match readiness {
                Readiness::Refused(error) => return Looked::Refused(logs, error),
                Readiness::NotAtRest(hidden_below) if self.has_record(&logs, part, hidden_below) => {}
                Readiness::NotAtRest(_) => {
                    busy = Some(part.ledger);
                    shared.want_freeze_of(shard);
                }
                Readiness::Ready(record) => records.push(*record),
            }
        }
        match busy {
            None => Looked::Ready(Ready { logs, records }),
            Some(ledger) => Looked::NotAtRest(logs, ledger),
        }
    }

    /// The state table has a record of the ledger, of this life, that needs no change for the entries of the ingest.
    fn has_record(&self, logs: &IngestedLogs, part: &IngestedLedger, hidden_below: Generation) -> bool {
        // Where it cannot be read, the flush or the next commit finds out.
        let record = self.directories()[logs.directory].ledger(part.ledger).ok().flatten();
        record.is_some_and(|record| {
            record.life % 2 == 0
                && record.hidden_below == hidden_below
                && record.last_entry >= Some(part.last)
                && record.last_add_confirmed >= part.last_add_confirmed
        })
    }

    /// Brings an ingest into force, and shows it.
    fn commit_ingest(&mut self, ready: Ready, waiter: IngestWaiter) {
        let Ready { records, logs: IngestedLogs { number, directory, ledgers, logs } } = ready;
        let (mut read_back, mut names): (Vec<ReadBack>, _) = (Vec::new(), Vec::new());
        for (log, read) in logs {
            read_back.push(read);
            names.push(log);
        }
        if self.shared.config().canaries.has(Canary::M51IngestShownEarly) {
            names.iter().for_each(|log| self.directories_mut()[directory].hide_again(log.sealed().log_id));
        }
        let named = names.iter().try_for_each(|log| log.name());
        let is_planted = self.shared.config().canaries.has(Canary::M53LastEntryNotRaised);
        let mut records = if is_planted { Vec::new() } else { records };
        if self.shared.config().canaries.has(Canary::M59IngestForgetsFence) {
            records.iter_mut().for_each(|record| record.is_fenced = false);
        }
        let mut is_certain = true;
        let outcome = match named {
            Err(error) => Err(IngestError::Io(error.to_string())),
            Ok(()) => {
                let commit = DirectoryCommit { ledgers: &[&records], ..Default::default() };
                let committed = self.directories_mut()[directory].commit_read(&commit, read_back);
                committed.map_err(|error| {
                    let (error, may_be_in_force) = self.failed_commit(directory, &error);
                    is_certain = !may_be_in_force;
                    error
                })
            }
        };
        let mut polls: Vec<Waiter> = Vec::new();
        match &outcome {
            Ok(()) => {
                let counters = self.shared.counters();
                for log in &names {
                    Counters::add(&counters.ingested_entries, log.sealed().entries);
                    Counters::add(&counters.ingested_bytes, log.sealed().size);
                }
                polls = self.show_ingested(number, &ledgers);
            }
            Err(_) => {
                self.end_ingest(number, &ledgers);
                // The next start may find them in the state table otherwise.
                if is_certain {
                    // Where that fails, too, they are orphans of the next start.
                    names.drain(..).for_each(|log| drop(log.abandon()));
                }
            }
        }
        self.shared.ingests().end();
        polls.into_iter().for_each(|poll| poll(Ok(())));
        waiter(outcome);
    }

    /// A commit did not go through: what to say, and whether it may be in force after a restart.
    fn failed_commit(&mut self, directory: usize, error: &DirectoryError) -> (IngestError, bool) {
        // A log that does not read back as it was written: nothing was committed.
        if !matches!(error, DirectoryError::Log(_)) {
            match self.directories().fault_of(directory, error) {
                StorageFault::Short(_, reason) => return (IngestError::ReadOnly(reason), false),
                StorageFault::Failed(reason) => {
                    self.directories_mut().fail(directory, reason);
                    return (IngestError::Io(error.to_string()), true);
                }
            }
        }
        (IngestError::Io(error.to_string()), false)
    }

    /// The logs are in force: raises last entry and LAC of their ledgers. Returns the polls that this wakes.
    fn show_ingested(&mut self, number: u64, ledgers: &[IngestedLedger]) -> Vec<Waiter> {
        let mut polls = Vec::new();
        for part in ledgers {
            let shard = self.shared.shard_of(part.ledger);
            let (woken, stale) = self.shared.lock(shard).on_ingested(part, number);
            polls.extend(woken);
            if let Some(until) = stale {
                let IngestedLedger { ledger, last: last_entry, last_add_confirmed, .. } = *part;
                self.ingests.stale.push(Stale { shard, ledger, last_entry, last_add_confirmed, until });
            }
        }
        polls
    }

    /// A flush ended: frozen records that were committed by it say nothing any more.
    pub(super) fn forget_stale_records(&mut self) {
        let shared = &self.shared;
        self.ingests.stale.retain(|stale| shared.flushed_generation(stale.shard) < stale.until);
    }

    fn refuse_ingest(&self, logs: IngestedLogs, waiter: IngestWaiter, error: IngestError) {
        self.end_ingest(logs.number, &logs.ledgers);
        for (log, _) in logs.logs {
            let _ = log.abandon();
        }
        self.shared.ingests().end();
        waiter(Err(error));
    }

    fn end_ingest(&self, number: u64, ledgers: &[IngestedLedger]) {
        for part in ledgers {
            self.shared.lock_of(part.ledger).end_ingest(part.ledger, number);
        }
    }
}

#[cfg(test)]
mod tests;
