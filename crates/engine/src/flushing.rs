//! The ledger directories, stepped from outside: frozen write caches become entry logs, and between two flushes space is
//! given back.
//!
//! The binary's threads ([`crate::threads`]) and the simulator call the same steps.
//!
//! # Data flow
//! ```text
//! FreezeTicket -> parts (`flush_routing`) -> an entry log per directory -> commit with the mark -> Flushed
//! logs of an ingest, written elsewhere -> commit with the records of its ledgers (`ingest`)
//! ```
//!
//! # Invariants
//! 1. Every ledger directory commits the component of the ticket's journal, also one that has no entries of it, and
//!    no component goes back (IB12, BookKeeper #3329, #4105). Journal files are released only after that.
//! 2. A new log is visible before the frozen cache it came from is dropped.
//! 3. Of one journal, caches are flushed in the order in which they were frozen; between journals any order will do,
//!    because no ledger is in two of them.
//! 4. The extents of a ledger in object storage are committed with the state that counts them, in one commit, which covers
//!    their journal records. They stay in that directory when the state moves on to another: a directory that is lost may take
//!    extents along whose last reconciled entry is elsewhere, which a start with other directories than before looks for.

mod direct_fence;
mod ingest;
mod paced;

use crate::direct_fence::DIRECT_FENCE_PAUSE;
use crate::directories::{Directories, FlushError};
use crate::flush_routing::{Left, Part, StorageFault};
use crate::journals::MarkVector;
use crate::shared::{Shared, Wanting};
use crate::space::Upkeep;
use crate::stats::Counters;
use crate::tickets::{Flushed, FreezeTicket};
use crate::write_cache::{CacheRecords, Frozen};
use bindery_io::Clock;
use bindery_io::canary::{Canaries, Canary};
use bindery_storage::entry_log::RECORD_BYTES;
use bindery_storage::{DirectoryCommit, ExtentChange, Generation, LedgerRecord, SealedLog};
use bindery_types::{EntryId, LedgerId};
use ingest::Ingests;
use paced::PacedWrites;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Ledgers taken over by a frozen cache, or put to rest, while a shard's lock is held.
const LEDGERS_AT_ONCE: usize = 256;

/// The ledger directories' half.
pub struct Flushing {
    shared: Arc<Shared>,
    upkeep: Upkeep,
    ingests: Ingests,
    clock: Arc<dyn Clock>,
    /// How a flush pauses between two writes; `None` for one that does not, as at a restart and a stop.
    pause: Option<fn(Duration)>,
}

impl Flushing {
    pub(crate) fn new(shared: Arc<Shared>, directories: Directories, clock: Arc<dyn Clock>) -> Flushing {
        let upkeep = Upkeep::new(shared.clone(), directories, clock.clone());
        Flushing { shared, upkeep, ingests: Ingests::default(), clock, pause: None }
    }

    pub(crate) fn directories(&self) -> &Directories {
        self.upkeep.directories()
    }

    pub(crate) fn directories_mut(&mut self) -> &mut Directories {
        self.upkeep.directories_mut()
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Has flushes pause so between two writes.
    pub(crate) fn pause_with(&mut self, pause: fn(Duration)) {
        self.pause = Some(pause);
    }

    /// Has a ticket's caches take over `most` ledgers more, under the lock of one shard; false when they have all.
    /// [`Flushing::flush`] does it to the end.
    pub fn freeze_some(&mut self, ticket: &mut FreezeTicket, most: usize) -> bool {
        let Some(shard) = ticket.freezing.last().copied() else { return false };
        let mut locked = self.shared.lock(shard);
        let frozen = locked.freeze_some(most);
        MutexGuard::unlock_fair(locked);
        if let Some(frozen) = frozen {
            ticket.freezing.pop();
            ticket.frozen.insert(0, (shard, frozen));
        }
        true
    }

    /// Writes the frozen caches into one entry log for each directory, commits, and lets the memory go. Blocks on the
    /// disk. After an error the ticket waits for [`Flushing::retry`], or the engine is latched: see `flush_routing`.
    pub fn flush(&mut self, mut ticket: FreezeTicket) -> Result<Flushed, FlushError> {
        while self.freeze_some(&mut ticket, LEDGERS_AT_ONCE) {}
        self.assert_next(&ticket);
        let canaries = self.shared.config().canaries;
        if let (true, Some(journal)) = (canaries.has(Canary::M6MarkAfterSwap), ticket.journal) {
            ticket.marks.raise(journal, *self.shared.journals()[journal].written.lock());
        }
        let is_skipped = canaries.has(Canary::M7MarksLexicographic)
            && ticket.marks.is_lexicographically_at_most(&self.shared.covered().lock());
        if let Some(lost) = self.directories().lost() {
            return Err(lost);
        }
        let left = if is_skipped { Left::new() } else { self.spread(&ticket) };
        self.flush_left(ticket, left)
    }

    /// Flushes the parts that are left of a ticket.
    pub(crate) fn flush_left(&mut self, ticket: FreezeTicket, left: Left) -> Result<Flushed, FlushError> {
        self.upkeep.on_rested();
        let flushed = self.flush_parts(ticket, left);
        self.upkeep.on_flushed();
        flushed
    }

    fn flush_parts(&mut self, mut ticket: FreezeTicket, mut left: Left) -> Result<Flushed, FlushError> {
        let begun = self.clock.monotonic_ns();
        let canaries = self.shared.config().canaries;
        let mut writes = PacedWrites::begin(self, &ticket, begun);
        while let Some((&index, part)) = left.first_key_value() {
            let pick =
                |places: &[usize]| places.iter().map(|p| &*ticket.frozen[*p].1).collect::<Vec<&Frozen>>();
            let (entries, states) = (pick(&part.entries), pick(&part.states));
            let extents = extents_for(&ticket, part, canaries);
            let outcome = match self.directories().routing().failure(index) {
                // It failed while the ticket waited (flush_routing invariant 2).
                Some(reason) => Err(StorageFault::Failed(reason)),
                None => self.flush_directory(index, &entries, &states, &extents, &ticket.marks, &mut writes),
            };
            match outcome {
                Ok(()) => drop(left.remove(&index)),
                Err(fault) => ticket = self.after_fault(index, fault, ticket, &mut left)?,
            }
        }
        if let Err((index, fault)) = self.directories_mut().tell_who_is_out() {
            ticket = self.after_fault(index, fault, ticket, &mut left)?;
        }
        self.shared.pacing().written.store(0, Ordering::Release);
        if ticket.journal.is_some() {
            self.shared.pacing().flushes.fetch_sub(1, Ordering::AcqRel);
            self.shared.on_ticket_flushed();
        }
        self.shared.covered().lock().join(&ticket.marks);
        let journals = self.shared.journals().iter();
        let before: Vec<u64> = journals.map(|j| j.flushed_generation.load(Ordering::Acquire)).collect();
        let mut died = Vec::new();
        for (shard, frozen) in &ticket.frozen {
            self.shared.lock(*shard).drop_frozen(frozen);
            self.directories_mut().on_flushed(*shard, frozen.generation);
            let before = before[self.shared.journal_of(*shard)];
            for some in frozen.states.chunks(LEDGERS_AT_ONCE) {
                let mut locked = self.shared.lock(*shard);
                locked.rest(some, before, &mut died);
                MutexGuard::unlock_fair(locked);
            }
        }
        self.forget_stale_records();
        self.upkeep.on_died(died);
        let counters = self.shared.counters();
        Counters::add(&counters.flushes, 1);
        Counters::add(&counters.flush_ns, self.clock.monotonic_ns().saturating_sub(begun));
        let journal = ticket.journal.unwrap_or(0);
        Ok(Flushed { journal, mark: ticket.marks.of_journal(journal) })
    }

    fn spread(&self, ticket: &FreezeTicket) -> Left {
        let full = self.shared.full_directories();
        self.directories().routing().spread(ticket.frozen.iter().map(|(shard, _)| *shard), &full)
    }

    /// `index` did not take its part, which is in `left`: puts the ticket aside, or spreads the part over the others.
    /// `Ok` gives the ticket back: go on with what is left.
    pub(crate) fn after_fault(
        &mut self,
        index: usize,
        fault: StorageFault,
        ticket: FreezeTicket,
        left: &mut Left,
    ) -> Result<FreezeTicket, FlushError> {
        self.shared.pacing().written.store(0, Ordering::Release);
        let reason = match fault {
            StorageFault::Short(what, reason) => {
                let error = self.directories().error(index, reason);
                let now_ns = self.clock.monotonic_ns();
                self.directories_mut().routing_mut().put_aside(ticket, std::mem::take(left), now_ns);
                self.shared.wait_for(Wanting::Flush, Some((what, error.to_string())));
                return Err(error);
            }
            StorageFault::Failed(reason) => reason,
        };
        let error = self.directories_mut().fail(index, reason);
        if self.shared.is_storage_lost() {
            return Err(error);
        }
        let lost = left.remove(&index).unwrap_or_default();
        let full = self.shared.full_directories();
        self.directories().routing().move_part(lost, &ticket, &full, left);
        Ok(ticket)
    }

    /// Tries what waits for space again, when that is due. `None`: nothing is due.
    pub fn retry(&mut self) -> Option<Result<Flushed, FlushError>> {
        let now = self.clock.monotonic_ns();
        let pause = u64::try_from(self.shared.config().space_retry_interval.as_nanos()).unwrap_or(u64::MAX);
        if now.saturating_sub(self.directories().routing().tried_ns()?) < pause {
            return None;
        }
        if self.shared.is_storage_lost() {
            return None;
        }
        let (ticket, left) = self.directories_mut().routing_mut().take_waiting()?;
        let flushed = self.flush_left(ticket, left);
        if flushed.is_ok() && !self.is_waiting() {
            self.shared.wait_for(Wanting::Flush, None);
        }
        Some(flushed)
    }

    /// True while a flush waits for space. No other ticket can be flushed then.
    pub fn is_waiting(&self) -> bool {
        self.directories().routing().is_waiting()
    }

    /// A mark covers everything below it: committing it over a cache that was never flushed would lose that cache.
    fn assert_next(&self, ticket: &FreezeTicket) {
        let shards: Vec<usize> = match ticket.journal {
            Some(journal) => self.shared.shards_of(journal).collect(),
            None => (0..self.shared.shards().len()).collect(),
        };
        for index in shards {
            let shard = self.shared.lock(index);
            let mine = ticket.frozen.iter().find(|(s, _)| *s == index).map(|(_, frozen)| frozen);
            let is_next = match (mine, shard.oldest_frozen()) {
                (Some(mine), Some(oldest)) => Arc::ptr_eq(mine, oldest),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            assert!(is_next, "shard {index}: caches are flushed in the order in which they were frozen");
        }
    }

    /// A ledger was removed since the cache was frozen, and a flush that waits for space leaves it out (`flush_routing` invariant 3).
    fn is_gone(&self, ledger: LedgerId, frozen: &Frozen) -> bool {
        let shared = &self.shared;
        shared.is_waiting() && shared.config().journal_sync && {
            let shard = shared.shard_of(ledger);
            let flushed = self.directories().flushed_generation(shard);
            frozen.generation < shared.lock(shard).hidden_for_good(ledger, flushed, true)
        }
    }

    /// One directory: an entry log when there are entries, and always a commit with the mark, so that fences and LACs
    /// that came without entries are not forgotten with the journal (BookKeeper #4843).
    fn flush_directory(
        &mut self,
        index: usize,
        entries: &[&Frozen],
        states: &[&Frozen],
        extents: &[ExtentChange],
        marks: &MarkVector,
        writes: &mut PacedWrites,
    ) -> Result<(), StorageFault> {
        let all = entries.iter().flat_map(|f| f.records.iter().map(move |(l, r)| (*l, r, *f)));
        let all = all.filter(|(_, records, _)| !records.is_empty());
        let mut ledgers: Vec<_> = all.filter(|(ledger, _, f)| !self.is_gone(*ledger, f)).collect();
        ledgers.sort_unstable_by_key(|(ledger, ..)| *ledger);
        let mut sealed = None;
        if !ledgers.is_empty() {
            if self.shared.is_waiting() || !self.directories().routing().may_lose {
                let bytes_of = |records: &CacheRecords| -> u64 {
                    let records = records.newest_ascending();
                    records.iter().map(|record| u64::from(record.length) + RECORD_BYTES).sum()
                };
                self.upkeep
                    .check_room(index, ledgers.iter().map(|(_, records, _)| bytes_of(records)).sum())?;
            }
            let generation = entries.iter().map(|frozen| frozen.generation).max().unwrap_or(0);
            let mut log = self.directories_mut()[index].begin_log(Generation(generation))?;
            let mut written = 0;
            for (ledger, records, frozen) in ledgers {
                for record in records.newest_ascending().iter() {
                    let entry = EntryId::new(record.entry).expect("placed entries are not negative");
                    if let Err(error) = log.append(ledger, entry, frozen.bytes_of(record), record.crc32c) {
                        // Its entries are in no table; if the file stays, the next start removes it.
                        let _ = log.abandon();
                        return Err(error.into());
                    }
                    if writes.on_written(log.written_bytes()) {
                        self.commit_ingests();
                        self.upkeep.tend_behind();
                        writes.pause(|| self.tend_aside());
                        self.upkeep.on_rested();
                    }
                    if log.written_bytes() > written {
                        written = log.written_bytes();
                        if let Err(fault) = self.upkeep.check_room(index, 0) {
                            let _ = log.abandon();
                            return Err(fault);
                        }
                    }
                }
            }
            writes.end_log();
            if let Err(fault) = self.upkeep.check_room(index, log.unwritten_bytes()) {
                let _ = log.abandon();
                return Err(fault);
            }
            let is_early = self.shared.config().canaries.has(Canary::M9IndexBeforeLog);
            sealed = Some(if is_early { log.finish_unsynced()? } else { log.finish_or_abandon()? });
        }
        if sealed.is_none() && self.shared.config().canaries.has(Canary::M8EmptyFlushSkipped) {
            return Ok(());
        }
        let ingested = self.ingests.records_over(states);
        let mut states: Vec<&[LedgerRecord]> = states.iter().map(|frozen| &*frozen.states).collect();
        // Of several of one ledger the last counts.
        states.push(&ingested);
        let logs: &[SealedLog] = sealed.as_slice();
        let directory = &mut self.directories_mut()[index];
        // A directory that is ahead keeps its marks: two directories can differ after a crash between their commits.
        let mut all = MarkVector::of(&directory.marks());
        all.join(marks);
        let marks = all.marks();
        let commit = DirectoryCommit {
            logs_added: logs,
            ledgers: &states,
            extents,
            marks: &marks,
            ..Default::default()
        };
        if let Err(error) = directory.commit(&commit) {
            let fault = self.directories().fault_of(index, &error);
            if let (true, Some(log)) = (fault.may_pass(), logs.first()) {
                // If that fails too, it is an orphan of the next open.
                let _ = self.directories_mut()[index].discard(log.log_id);
            }
            return Err(fault);
        }
        for log in logs {
            Counters::add(&self.shared.counters().flushed_entries, log.entries);
            Counters::add(&self.shared.counters().flushed_bytes, log.size);
        }
        Ok(())
    }

    /// One step. Returns after how long it wants to be called again, `None` when there is nothing to do before the next
    /// collection is due. After an error the engine is latched.
    pub fn tend(&mut self) -> Result<Option<Duration>, FlushError> {
        let is_failed = self.shared.is_failed();
        if is_failed {
            self.fence_directly();
        }
        let has_ingest = self.commit_ingests();
        let soon = self.upkeep.tend()?;
        let soon = soon.into_iter().chain(has_ingest.then_some(Duration::ZERO)).min();
        let retry = self.is_waiting().then_some(self.shared.config().space_retry_interval);
        Ok(soon.into_iter().chain(retry).chain(is_failed.then_some(DIRECT_FENCE_PAUSE)).min())
    }

    /// A step in a pause of a flush, whose log is not committed yet; true when it read or wrote anything. An error
    /// latches the engine, as the flush will find.
    fn tend_aside(&mut self) -> bool {
        let before = self.upkeep.spent();
        let _ = self.tend();
        self.upkeep.spent() > before
    }

    /// A step of the scrub only.
    pub fn scrub_alone(&mut self) {
        self.upkeep.scrub_alone();
    }

    /// Forgets removed ledgers of which nothing is left, all of them at once, and says how many.
    pub fn forget_removed(&mut self) -> Result<usize, FlushError> {
        self.upkeep.forget_removed()
    }

    /// Checks, between two collections, that no log has more dead bytes than were counted. Goes through all runs of all logs.
    ///
    /// # Errors
    /// The log that has more dead bytes than were counted.
    pub fn check_dead_bytes(&mut self) -> Result<(), String> {
        self.upkeep.check_dead_bytes()
    }
}

/// The extents of a ticket that go to a directory: those of its states (invariant 4), and the removals of all others.
fn extents_for(ticket: &FreezeTicket, part: &Part, canaries: Canaries) -> Vec<ExtentChange> {
    let mut changes = Vec::new();
    for (place, (_, frozen)) in ticket.frozen.iter().enumerate() {
        if part.states.contains(&place) && !canaries.has(Canary::M45ExtentsLeftOut) {
            changes.extend(frozen.extent_changes());
        } else {
            changes.extend(frozen.extents_gone());
        }
    }
    changes
}
