//! The moving parts of an engine: journals and ledger directories, stepped from outside.
//!
//! The binary's threads ([`crate::threads`]) and the simulator call the same steps; nothing here waits.
//!
//! # Data flow
//! ```text
//! Journaling, one for each journal: cut -> write -> finish -> Completions (answers, waiters)
//!                                                        \-> FreezeTicket (sometimes) -> Flushing::flush -> release
//! ```
//!
//! # Invariants
//! 1. In each journal `cut`, `write`, `finish` follow each other; there is one group in flight.
//! 2. A ticket's mark is the group of the cut its caches were frozen at, so the mark committed with them covers exactly
//!    the records that they and earlier flushes of the same journal hold (BookKeeper #1345, #2983). A record placed
//!    after the cut is in a later group and in the next cache.
//! 3. Every ledger directory commits the component of the ticket's journal, also one that has no entries of it, and
//!    no component goes back (IB12, BookKeeper #3329, #4105). Journal files are released only after that.
//! 4. A new log is visible before the frozen cache it came from is dropped.
//! 5. Of one journal, caches are flushed in the order in which they were frozen; between journals any order will do,
//!    because no ledger is in two of them.
//! 6. A generation is given out once, over all journals.
//! 7. The files of a journal take its cap and one file at most (requirement J11), and one more for each start that waited for
//!    space: from half of it on a freeze is due; at the cap only a freeze may take one more file, the one that is kept back if there is one, and while its flush is
//!    under way other groups wait for that. A flush frees every file but the last, so the wait ends with it (J12). One
//!    that waits for space leaves the file that is kept back to what has formed, and to fences. A journal that cannot
//!    make another file takes fences until its last one is full; then they wait for one, and nothing fails. One that has a
//!    single file takes adds until half of it is used. Recoveries, which pass while a write waits for space, find room in what is
//!    at hand, of which a quarter of a file stays for fences.
//! 8. The extents of a ledger in object storage are committed with the state that counts them, in one commit, which covers
//!    their journal records. They stay in that directory when the state moves on to another: a directory that is lost may take
//!    extents along whose last reconciled entry is elsewhere, which a start with other directories than before looks for.

use crate::admission_queue::{AdmissionGrant, RoomWaiter};
use crate::api::{AddDone, AddSink, GroupTimes, Refusal, Waiter};
use crate::engine::{Engine, Wanting};
use crate::flush_routing::{FlushRouting, Left, Part, StorageFault};
use crate::journals::MarkVector;
use crate::pacing::FlushPace;
use crate::shard::ShardCut;
use crate::space::Space;
use crate::stats::Counters;
use crate::write_cache::{CacheRecords, Frozen};
use bindery_io::canary::{Canaries, Canary};
use bindery_io::{BLOCK_SIZE_BYTES, Clock};
use bindery_journal::group::layout;
use bindery_journal::{Group, Journal, JournalError};
use bindery_storage::entry_log::RECORD_BYTES;
use bindery_storage::{
    DirectoryCommit, ExtentChange, Generation, LedgerDirectory, LedgerRecord, Mark, SealedLog,
};
use bindery_types::{EntryId, LedgerId};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Ledgers taken over by a frozen cache, or put to rest, while a shard's lock is held.
const LEDGERS_AT_ONCE: usize = 256;

/// A group between cut and finish.
pub struct InFlight {
    group: Group,
    /// Of each shard of the journal.
    cuts: Vec<(usize, ShardCut)>,
    /// Shards whose freeze began with this cut.
    freezing: Vec<usize>,
    is_freeze: bool,
    /// The formed group waits for a journal file: these are answers to adds refused in the meantime.
    is_refusals: bool,
    /// Who may add to the group that forms now.
    grants: Vec<(RoomWaiter, AdmissionGrant)>,
    /// What is known at the cut.
    times: GroupTimes,
}

impl InFlight {
    /// Takes out the grants, to be delivered before the group is written, so that adds that come meanwhile form the next.
    pub fn take_grants(&mut self) -> Completions {
        Completions { grants: std::mem::take(&mut self.grants), ..Completions::default() }
    }

    /// True when the journal has nothing to do for it, and waits for a file.
    pub(crate) fn is_refusals(&self) -> bool {
        self.is_refusals
    }
}

/// What a finished group answers. Deliver it without holding a lock.
#[derive(Default)]
pub struct Completions {
    adds: Vec<Vec<AddDone>>,
    waiters: Vec<(Waiter, Result<(), Refusal>)>,
    grants: Vec<(RoomWaiter, AdmissionGrant)>,
    /// Of the group, unless these are grants alone.
    group: Option<GroupTimes>,
    /// Set when this group froze the write caches.
    pub freeze: Option<FreezeTicket>,
}

impl Completions {
    /// Of adds that were refused, and of those who wait for room.
    pub(crate) fn of_refusals(
        times: GroupTimes,
        adds: Vec<Vec<AddDone>>,
        grants: Vec<(RoomWaiter, AdmissionGrant)>,
    ) -> Completions {
        Completions { adds, grants, group: Some(times), ..Completions::default() }
    }

    /// Hands every answer to its taker.
    pub fn deliver(self, sink: &dyn AddSink) {
        if let Some(group) = self.group.filter(|group| group.bytes > 0 || !self.adds.is_empty()) {
            sink.on_adds_done(&group, &self.adds);
        }
        for (waiter, outcome) in self.waiters {
            waiter(outcome);
        }
        for (waiter, grant) in self.grants {
            waiter(grant);
        }
    }

    /// True when it consists only of answers, to at most `adds_max` adds.
    pub(crate) fn is_few_adds(&self, adds_max: usize) -> bool {
        self.waiters.is_empty()
            && self.grants.is_empty()
            && self.adds.iter().map(Vec::len).sum::<usize>() <= adds_max
    }

    /// True when there is nothing to deliver.
    pub fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.waiters.is_empty() && self.grants.is_empty()
    }
}

/// Frozen write caches whose entries are durable in their journal.
pub struct FreezeTicket {
    /// The journal whose shards were frozen; `None` for all, at the start.
    pub(crate) journal: Option<usize>,
    /// The marks covered once the caches are flushed, sampled at the freeze: the component of this journal, and of the
    /// others the marks committed by then.
    pub(crate) marks: MarkVector,
    /// Shards that have not taken over all ledgers.
    pub(crate) freezing: Vec<usize>,
    /// The caches of the others.
    pub(crate) frozen: Vec<(usize, Arc<Frozen>)>,
}

impl FreezeTicket {
    /// Of shards whose freeze has just begun.
    pub(crate) fn begun(journal: Option<usize>, marks: MarkVector, freezing: Vec<usize>) -> FreezeTicket {
        FreezeTicket { journal, marks, freezing, frozen: Vec::new() }
    }
}

/// A flush that is committed in all ledger directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "its journal waits for it"]
pub struct Flushed {
    /// The journal whose component rose: give it to [`Journaling::on_flushed`] of that one.
    pub journal: usize,
    pub(crate) mark: Mark,
}

/// Everything the journal holds so far, as a mark.
pub(crate) fn mark_of(journal: &Journal) -> Mark {
    Mark { file_id: journal.last_file_id(), group: journal.last_group() }
}

/// One journal's half.
pub struct Journaling {
    pub(crate) engine: Arc<Engine>,
    /// Number of the journal.
    pub(crate) index: usize,
    pub(crate) journal: Journal,
    pub(crate) clock: Arc<dyn Clock>,
    /// A ticket is out; no other freeze until it is back.
    pub(crate) is_flushing: bool,
    /// Since when the next group waits for a file to be freed.
    pub(crate) waits_from_ns: Option<u64>,
    /// The last group of the journal is an empty one: see [`Journaling::seal`].
    pub(crate) is_sealed: bool,
    /// When the last write of a group began and ended.
    pub(crate) write_ns: (u64, u64),
}

impl Journaling {
    /// Takes what formed. `None` when there is nothing to write, to answer or to freeze.
    pub fn cut(&mut self) -> Option<InFlight> {
        self.offer_room();
        let engine = self.engine.clone();
        let is_freeze = self.is_freeze_due();
        let has_work = || engine.shards_of(self.index).any(|shard| engine.shards[shard].lock().has_work());
        if !is_freeze && !engine.has_room_to_offer(self.index) && !has_work() {
            return None;
        }
        let mut held = Vec::new();
        // At the cap a group must fit the file there is, until the flush under way frees one (requirement J11). That is
        // looked at under the locks of all shards, so that nothing is placed in between.
        // Likewise without another file and without space for one, also while no flush is under way: it is tried again.
        let is_at_cap = self.is_flushing && self.journal.is_at_cap() && !self.may_use_kept_file();
        let has_no_other = is_at_cap || self.journal.has_no_other_file();
        if has_no_other && !engine.is_failed() {
            held.extend(engine.shards_of(self.index).map(|shard| engine.shards[shard].lock()));
            let bytes: u64 = held.iter().map(|shard| shard.cut_bytes_max()).sum();
            if bytes > 0 && !self.journal.fits(bytes + BLOCK_SIZE_BYTES as u64) {
                drop(held);
                self.begin_to_wait();
                if is_freeze {
                    engine.journals[self.index].is_freeze_wanted.store(true, Ordering::Release);
                }
                return self.cut_refusals();
            }
        }
        self.end_to_wait();
        let next_generation = is_freeze.then(|| engine.next_generation());
        let (mut cuts, mut freezing, mut grants) = (Vec::new(), Vec::new(), Vec::new());
        let mut held = held.into_iter();
        for index in engine.shards_of(self.index) {
            let mut shard = held.next().unwrap_or_else(|| engine.shards[index].lock());
            cuts.push((index, shard.cut()));
            if next_generation.is_some_and(|next| shard.begin_freeze(next)) {
                freezing.push(index);
            }
            drop(shard);
            engine.give_grants(index, &mut grants);
        }
        let group = Group {
            parts: cuts.iter().flat_map(|(_, c)| c.parts.iter().cloned()).collect(),
            force_sync: cuts.iter().any(|(_, c)| !c.forces.is_empty()),
        };
        if is_freeze {
            self.is_flushing = true;
            engine.pacing.flushes.fetch_add(1, Ordering::AcqRel);
            engine.journals[self.index].set_active(0, 0);
        }
        let cut_ns = self.clock.monotonic_ns();
        self.write_ns = (cut_ns, cut_ns);
        let times = GroupTimes {
            journal: self.index,
            adds: cuts.iter().map(|(_, cut)| cut.adds.len() as u64).sum(),
            bytes: group.parts.iter().map(|part| part.data.len() as u64).sum(),
            cut_ns,
            ..GroupTimes::default()
        };
        Some(InFlight { group, cuts, freezing, is_freeze, is_refusals: false, grants, times })
    }

    /// While the formed group waits for space, for an unknown time, refusals are still answered.
    fn cut_refusals(&mut self) -> Option<InFlight> {
        let engine = self.engine.clone();
        if !engine.is_waiting() {
            return None;
        }
        let (mut cuts, mut grants) = (Vec::new(), Vec::new());
        for index in engine.shards_of(self.index) {
            cuts.push((index, engine.shards[index].lock().cut_refusals()));
            engine.give_grants(index, &mut grants);
        }
        let adds: u64 = cuts.iter().map(|(_, cut)| cut.adds.len() as u64).sum();
        if adds == 0 && grants.is_empty() {
            return None;
        }
        let cut_ns = self.clock.monotonic_ns();
        self.write_ns = (cut_ns, cut_ns);
        let times = GroupTimes { journal: self.index, adds, cut_ns, ..GroupTimes::default() };
        let (group, freezing) = (Group::default(), Vec::new());
        Some(InFlight { group, cuts, freezing, is_freeze: false, is_refusals: true, grants, times })
    }

    /// While a flush is under way, of whatever journal, adds get the room that pacing leaves them; its end gives them all
    /// of it. While somebody waits for space, recoveries get the room that the journal has behind the
    /// group that is cut now: half of it may join that one yet.
    pub(crate) fn offer_room(&self) {
        let engine = &self.engine;
        let room = engine.config.room();
        let is_flushing = engine.pacing.flushes.load(Ordering::Acquire) > 0;
        let offer = if is_flushing { room.offer(engine.load()) } else { room.group_bytes_max };
        // The room is that of all journals; without scarcity each has its whole group.
        let sharers = match offer < room.group_bytes_max {
            true => engine.shards.len(),
            false => engine.config.shards_of_a_journal(),
        };
        let offer = usize::try_from(offer).unwrap_or(usize::MAX).div_ceil(sharers);
        let shards = || engine.shards_of(self.index).map(|index| engine.shards[index].lock());
        let sure = self.journal.room_for_recoveries().saturating_sub(self.forming_bytes()) / 2;
        let sure = usize::try_from(sure).unwrap_or(usize::MAX) / engine.config.shards_of_a_journal();
        for mut shard in shards() {
            shard.offer(offer);
            shard.offer_recoveries(sure);
        }
    }

    /// The most that a group of all that is placed now takes, but for its header.
    fn forming_bytes(&self) -> u64 {
        let engine = &self.engine;
        engine.shards_of(self.index).map(|index| engine.shards[index].lock().cut_bytes_max()).sum()
    }

    /// A freeze is due when the active caches of all journals hold an eighth of the pool's bytes or a quarter of its
    /// chunks, and this one its share of that, or when somebody asked for it.
    fn is_freeze_due(&self) -> bool {
        let engine = &self.engine;
        let (mut chunks, mut bytes, mut is_dirty) = (0, 0, false);
        for index in engine.shards_of(self.index) {
            let shard = engine.shards[index].lock();
            chunks += shard.active_chunks();
            bytes += shard.active_bytes();
            is_dirty |= shard.is_dirty();
        }
        let desk = &engine.journals[self.index];
        desk.set_active(bytes, chunks as u64);
        if self.is_flushing || engine.is_failed() {
            return false;
        }
        let (journals, pool) = (engine.journals.len() as u64, engine.pool.capacity() as u64);
        let (all_bytes, all_chunks) = engine.active();
        let is_full = all_bytes >= engine.config.room().freeze_at && bytes * journals >= all_bytes
            || all_chunks * 4 >= pool && chunks as u64 * journals >= all_chunks;
        let is_wanted = desk.is_freeze_wanted.swap(false, Ordering::AcqRel);
        (is_dirty && (is_wanted || is_full)) || self.is_half_used()
    }

    /// Half of the journal's cap is in use, and a flush, of marks alone perhaps, would free some of it.
    fn is_half_used(&self) -> bool {
        let (cap, desk) = (self.journal.config().bytes_max, &self.engine.journals[self.index]);
        let is_behind =
            || desk.written.lock().group > self.engine.covered.lock().of_journal(self.index).group;
        cap > 0 && self.journal.bytes_in_use() >= cap / 2 && is_behind()
    }

    /// The flush under way waits for space, for an unknown time: no adds are taken then, so the file that is kept back
    /// takes the formed group, and fences.
    fn may_use_kept_file(&self) -> bool {
        self.journal.files_free() > 0 && self.engine.is_waiting()
    }

    /// The next group waits for a file.
    fn begin_to_wait(&mut self) {
        if self.waits_from_ns.is_none() {
            self.waits_from_ns = Some(self.clock.monotonic_ns());
            self.engine.journals[self.index].counts.on_file_wait_begun();
        }
    }

    fn end_to_wait(&mut self) {
        if let Some(from) = self.waits_from_ns.take() {
            let waited = self.clock.monotonic_ns().saturating_sub(from);
            self.engine.journals[self.index].counts.on_file_wait_ended(waited);
        }
    }

    /// Makes the group durable: one write, one sync. Blocks on the disk.
    pub fn write(&mut self, in_flight: &InFlight) -> Result<(), JournalError> {
        let group = &in_flight.group;
        // Before anything else: without bytes there is nothing to write, but what failed earlier stays not durable.
        if let Some(error) = self.journal.failure() {
            return Err(error.clone());
        }
        if group.parts.is_empty() {
            // A journal that syncs by itself has nothing left to force.
            let is_needed = group.force_sync && !self.engine.config.journal_sync;
            return if is_needed { self.journal.sync() } else { Ok(()) };
        }
        if self.engine.is_failed() && self.journal.is_at_cap() && self.journal.files_free() == 0 {
            let parts = group.parts.iter().map(|part| (part.data.offset_in_chunk(), part.data.len()));
            if !self.journal.fits(layout(parts).total_bytes) {
                return Err(self.journal.give_up());
            }
        }
        let written_before = self.journal.written_bytes();
        self.write_timed(group)?;
        self.is_sealed = false;
        let took = self.write_ns.1.saturating_sub(self.write_ns.0);
        let counters = &self.engine.counters;
        Counters::add(&counters.journal_groups, 1);
        Counters::add(&counters.journal_entries, in_flight.times.adds);
        let written_bytes = self.journal.written_bytes() - written_before;
        self.engine.journals[self.index].counts.add_group(in_flight.times.bytes, written_bytes);
        Counters::add(&counters.journal_write_ns, took);
        counters.journal_write_ns_max.fetch_max(took, Ordering::Relaxed);
        Ok(())
    }

    fn write_timed(&mut self, group: &Group) -> Result<u64, JournalError> {
        let pulse = &self.engine.pulses[self.index];
        let begun_ns = self.clock.monotonic_ns();
        pulse.begin(begun_ns);
        let written = self.journal.write(group);
        let ended_ns = self.clock.monotonic_ns();
        pulse.end(ended_ns);
        self.write_ns = (begun_ns, ended_ns);
        self.tell_about_space();
        written
    }

    /// A journal that can make no further file takes what must be written only, and wants a flush, which gives files
    /// back.
    pub(crate) fn tell_about_space(&self) {
        self.engine.journals[self.index].counts.set_files(&self.journal);
        let short = self.journal.short_of_files().map(|(what, why)| (what, why.to_owned()));
        if short.is_some() && self.journal.files_used() > 0 {
            self.engine.journals[self.index].is_freeze_wanted.store(true, Ordering::Release);
        }
        self.engine.wait_for(Wanting::Journal(self.index), short);
    }

    /// Writes an empty group behind the last one, once, when the journal has gone idle: damage to the last group of
    /// records then has a group behind it and is not taken for a write that never finished. No caller waits for it.
    /// Blocks on the disk.
    pub fn seal(&mut self) {
        self.journal.make_spare();
        self.tell_about_space();
        // While a slow journal is watched for its recovery, again and again.
        let is_done = self.is_sealed && !self.engine.pulses[self.index].is_probing();
        if is_done || self.journal.last_group() == 0 || self.journal.failure().is_some() {
            return;
        }
        let has_no_other = self.journal.is_at_cap() || self.journal.has_no_other_file();
        if has_no_other && !self.journal.fits(BLOCK_SIZE_BYTES as u64) {
            return;
        }
        self.is_sealed = true;
        if let Err(error) = self.write_timed(&Group::default()) {
            self.engine.fail(&error.to_string());
            tracing::error!(%error, "a journal failed while idle: this bookie takes no adds any more; reads go on");
        }
    }

    /// Turns the outcome of `write` into answers.
    pub fn finish(&mut self, in_flight: InFlight, written: Result<(), JournalError>) -> Completions {
        let InFlight { group, cuts, freezing, is_freeze, is_refusals, grants, times } = in_flight;
        let times = GroupTimes { begun_ns: self.write_ns.0, written_ns: self.write_ns.1, ..times };
        drop(group);
        let mut done = match written {
            Ok(()) if is_refusals => Completions {
                adds: cuts.into_iter().map(|(_, cut)| cut.adds).filter(|adds| !adds.is_empty()).collect(),
                ..Completions::default()
            },
            Ok(()) => self.finish_durable(cuts, freezing, is_freeze),
            Err(error) => self.finish_failed(cuts, &error.to_string()),
        };
        done.grants.splice(..0, grants);
        done.group = Some(times);
        done
    }

    fn finish_durable(
        &mut self,
        cuts: Vec<(usize, ShardCut)>,
        freezing: Vec<usize>,
        is_freeze: bool,
    ) -> Completions {
        let mut done = Completions::default();
        for (index, cut) in cuts {
            let fired = self.engine.shards[index].lock().on_durable(cut.upto);
            done.waiters.extend(fired.into_iter().chain(cut.forces).map(|w| (w, Ok(()))));
            if !cut.adds.is_empty() {
                done.adds.push(cut.adds);
            }
        }
        let written = mark_of(&self.journal);
        *self.engine.journals[self.index].written.lock() = written;
        if is_freeze {
            let mut marks = self.engine.covered.lock().clone();
            marks.raise(self.index, written);
            self.engine.tickets_out.fetch_add(1, Ordering::AcqRel);
            done.freeze = Some(FreezeTicket::begun(Some(self.index), marks, freezing));
            if self.engine.config.canaries.has(Canary::M28ReleasedBeforeFlush) {
                self.journal.release_up_to(self.journal.last_group());
            }
        }
        done
    }

    fn finish_failed(&mut self, cuts: Vec<(usize, ShardCut)>, reason: &str) -> Completions {
        if self.engine.fail(reason) {
            tracing::error!(
                reason,
                "a journal failed: this bookie acknowledges nothing any more; reads go on"
            );
        }
        let mut done = Completions::default();
        for (index, cut) in cuts {
            let (mut adds, waiters) = self.engine.shards[index].lock().fail();
            let mut all = cut.adds;
            all.append(&mut adds);
            // Refusals stay as they were; adds that would have been acknowledged are refused.
            let is_told = self.engine.config.canaries.has(Canary::M29FailedGroupAcknowledged);
            for add in all.iter_mut().filter(|_| !is_told) {
                add.result = add.result.and(Err(Refusal::ReadOnly));
            }
            done.adds.push(all);
            done.waiters.extend(waiters.into_iter().chain(cut.forces).map(|w| (w, Err(Refusal::Io))));
            self.engine.give_grants(index, &mut done.grants);
        }
        done
    }

    /// A flush came back: its journal files may be reused, and the next freeze may come.
    pub fn on_flushed(&mut self, flushed: Flushed) {
        assert_eq!(flushed.journal, self.index, "a flush goes back to its journal");
        self.is_flushing = false;
        self.journal.release_up_to(flushed.mark.group);
        self.tell_about_space();
    }
}

/// The ledger directories' half.
pub struct Flushing {
    pub(crate) engine: Arc<Engine>,
    pub(crate) directories: Vec<LedgerDirectory>,
    /// By journal: everything in its shards of this generation or a lower one is on disk.
    pub(crate) flushed_generations: Vec<u64>,
    pub(crate) space: Space,
    pub(crate) clock: Arc<dyn Clock>,
    /// Which directories failed, and what waits for space.
    pub(crate) routing: FlushRouting,
    /// How a flush pauses between two writes; `None` for one that does not, as at a restart and a stop.
    pub(crate) pause: Option<fn(Duration)>,
}

/// A flush did not go through: it waits for space, or no ledger directory is left and the engine is latched (IB14).
#[derive(Debug, thiserror::Error)]
#[error("flush to {directory}: {reason}")]
pub struct FlushError {
    directory: String,
    reason: String,
}

impl FlushError {
    pub(crate) fn new(directory: String, reason: String) -> FlushError {
        FlushError { directory, reason }
    }
}

impl Flushing {
    /// Has a ticket's caches take over `most` ledgers more, under the lock of one shard; false when they have all.
    /// [`Flushing::flush`] does it to the end.
    pub fn freeze_some(&mut self, ticket: &mut FreezeTicket, most: usize) -> bool {
        let Some(shard) = ticket.freezing.last().copied() else { return false };
        let mut locked = self.engine.shards[shard].lock();
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
    pub fn flush(&mut self, ticket: FreezeTicket) -> Result<Flushed, FlushError> {
        self.begin_flush();
        let flushed = self.flush_ticket(ticket);
        self.end_flush();
        flushed
    }

    fn flush_ticket(&mut self, mut ticket: FreezeTicket) -> Result<Flushed, FlushError> {
        while self.freeze_some(&mut ticket, LEDGERS_AT_ONCE) {}
        self.assert_next(&ticket);
        let canaries = self.engine.config.canaries;
        if let (true, Some(journal)) = (canaries.has(Canary::M6MarkAfterSwap), ticket.journal) {
            ticket.marks.raise(journal, *self.engine.journals[journal].written.lock());
        }
        let is_skipped = canaries.has(Canary::M7MarksLexicographic)
            && ticket.marks.is_lexicographically_at_most(&self.engine.covered.lock());
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        let left = if is_skipped { Left::new() } else { self.spread(&ticket) };
        self.flush_left(ticket, left)
    }

    /// Flushes the parts that are left of a ticket.
    pub(crate) fn flush_left(
        &mut self,
        mut ticket: FreezeTicket,
        mut left: Left,
    ) -> Result<Flushed, FlushError> {
        let begun = self.clock.monotonic_ns();
        let canaries = self.engine.config.canaries;
        let mut writes = PacedWrites::begin(self, &ticket, begun);
        while let Some((&index, part)) = left.first_key_value() {
            let pick =
                |places: &[usize]| places.iter().map(|p| &*ticket.frozen[*p].1).collect::<Vec<&Frozen>>();
            let (entries, states) = (pick(&part.entries), pick(&part.states));
            let extents = extents_for(&ticket, part, canaries);
            let outcome = match self.routing.failure(index) {
                // It failed while the ticket waited (flush_routing invariant 2).
                Some(reason) => Err(StorageFault::Failed(reason)),
                None => self.flush_directory(index, &entries, &states, &extents, &ticket.marks, &mut writes),
            };
            match outcome {
                Ok(()) => drop(left.remove(&index)),
                Err(fault) => ticket = self.after_fault(index, fault, ticket, &mut left)?,
            }
        }
        if let Err((index, fault)) = self.tell_who_is_out() {
            ticket = self.after_fault(index, fault, ticket, &mut left)?;
        }
        self.engine.pacing.written.store(0, Ordering::Release);
        if ticket.journal.is_some() {
            self.engine.pacing.flushes.fetch_sub(1, Ordering::AcqRel);
            self.engine.tickets_out.fetch_sub(1, Ordering::AcqRel);
        }
        self.engine.covered.lock().join(&ticket.marks);
        let (before, mut died) = (self.flushed_generations.clone(), Vec::new());
        for (shard, frozen) in &ticket.frozen {
            self.engine.shards[*shard].lock().drop_frozen(frozen);
            let journal = self.engine.journal_of(*shard);
            let flushed = &mut self.flushed_generations[journal];
            *flushed = frozen.generation.max(*flushed);
            for some in frozen.states.chunks(LEDGERS_AT_ONCE) {
                let mut locked = self.engine.shards[*shard].lock();
                locked.rest(some, before[journal], &mut died);
                MutexGuard::unlock_fair(locked);
            }
        }
        self.on_died(died);
        let counters = &self.engine.counters;
        Counters::add(&counters.flushes, 1);
        Counters::add(&counters.flush_ns, self.clock.monotonic_ns().saturating_sub(begun));
        let journal = ticket.journal.unwrap_or(0);
        Ok(Flushed { journal, mark: ticket.marks.of_journal(journal) })
    }

    /// Everything in the shard of this generation or a lower one is on disk.
    pub(crate) fn flushed_generation(&self, shard: usize) -> u64 {
        self.flushed_generations[self.engine.journal_of(shard)]
    }

    /// A mark covers everything below it: committing it over a cache that was never flushed would lose that cache.
    fn assert_next(&self, ticket: &FreezeTicket) {
        let shards: Vec<usize> = match ticket.journal {
            Some(journal) => self.engine.shards_of(journal).collect(),
            None => (0..self.engine.shards.len()).collect(),
        };
        for index in shards {
            let shard = self.engine.shards[index].lock();
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
        let engine = &self.engine;
        engine.is_waiting() && engine.config.journal_sync && {
            let shard = engine.shard_of(ledger);
            let flushed = self.flushed_generation(shard);
            frozen.generation < engine.shards[shard].lock().hidden_for_good(ledger, flushed, true)
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
            if self.engine.is_waiting() || !self.routing.may_lose {
                let bytes_of = |records: &CacheRecords| -> u64 {
                    let records = records.newest_ascending();
                    records.iter().map(|record| u64::from(record.length) + RECORD_BYTES).sum()
                };
                self.check_room(index, ledgers.iter().map(|(_, records, _)| bytes_of(records)).sum())?;
            }
            let generation = entries.iter().map(|frozen| frozen.generation).max().unwrap_or(0);
            let mut log = self.directories[index].begin_log(Generation(generation))?;
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
                        self.tend_behind();
                        writes.pause(|| self.tend_in_pause());
                    }
                    if log.written_bytes() > written {
                        written = log.written_bytes();
                        if let Err(fault) = self.check_room(index, 0) {
                            let _ = log.abandon();
                            return Err(fault);
                        }
                    }
                }
            }
            writes.end_log();
            if let Err(fault) = self.check_room(index, log.unwritten_bytes()) {
                let _ = log.abandon();
                return Err(fault);
            }
            let is_early = self.engine.config.canaries.has(Canary::M9IndexBeforeLog);
            sealed = Some(if is_early { log.finish_unsynced()? } else { log.finish_or_abandon()? });
        }
        if sealed.is_none() && self.engine.config.canaries.has(Canary::M8EmptyFlushSkipped) {
            return Ok(());
        }
        let directory = &mut self.directories[index];
        let states: Vec<&[LedgerRecord]> = states.iter().map(|frozen| &*frozen.states).collect();
        let logs: &[SealedLog] = sealed.as_slice();
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
            let fault = self.fault_of(index, &error);
            if let (true, Some(log)) = (fault.may_pass(), logs.first()) {
                // If that fails too, it is an orphan of the next open.
                let _ = self.directories[index].discard(log.log_id);
            }
            return Err(fault);
        }
        for log in logs {
            Counters::add(&self.engine.counters.flushed_entries, log.entries);
            Counters::add(&self.engine.counters.flushed_bytes, log.size);
        }
        Ok(())
    }
}

/// The extents of a ticket that go to a directory: those of its states (invariant 8), and the removals of all others.
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

/// Carries out what [`FlushPace`] says, between the writes of one flush.
struct PacedWrites {
    engine: Arc<Engine>,
    clock: Arc<dyn Clock>,
    pause: Option<fn(Duration)>,
    pace: FlushPace,
    total: u64,
    /// Bytes of the logs that are finished, and of the one under way.
    finished: u64,
    current: u64,
}

impl PacedWrites {
    fn begin(flushing: &Flushing, ticket: &FreezeTicket, now_ns: u64) -> PacedWrites {
        let total = ticket.frozen.iter().map(|(_, frozen)| frozen.bytes).sum();
        let config = &flushing.engine.config;
        PacedWrites {
            engine: flushing.engine.clone(),
            clock: flushing.clock.clone(),
            pause: flushing.pause,
            pace: FlushPace::begin(config.room(), total, now_ns, config.flush_spread),
            total,
            finished: 0,
            current: 0,
        }
    }

    /// The log under way has `bytes` on disk: tells those who wait for room if that is news, and says so.
    fn on_written(&mut self, bytes: u64) -> bool {
        if bytes == self.current {
            return false;
        }
        self.current = bytes;
        let engine = &self.engine;
        engine.pacing.written.store((self.finished + bytes).min(self.total), Ordering::Release);
        if engine.adds_wait() {
            engine.wake_journals();
        }
        true
    }

    /// Pauses when the next write is early. `aside` does something else in the pause, and says whether it did.
    fn pause(&self, mut aside: impl FnMut() -> bool) {
        let (Some(pause), engine) = (self.pause, &self.engine) else { return };
        while !engine.pacing.is_hurried.load(Ordering::Acquire) {
            let wait = self.pace.wait(self.clock.monotonic_ns(), engine.load());
            if wait.is_zero() {
                return;
            }
            if !aside() {
                pause(wait);
            }
        }
    }

    fn end_log(&mut self) {
        self.finished += std::mem::take(&mut self.current);
    }
}
