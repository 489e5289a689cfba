//! A journal, stepped from outside: groups are cut, written and answered.
//!
//! The binary's threads ([`crate::threads`]) and the simulator call the same steps; nothing here waits.
//!
//! # Data flow
//! ```text
//! cut -> write -> finish -> Completions (answers, waiters)
//!                      \-> FreezeTicket (sometimes) -> flush -> on_flushed: files are free
//! ```
//!
//! # Invariants
//! 1. In each journal `cut`, `write`, `finish` follow each other; there is one group in flight.
//! 2. A ticket's mark is the group of the cut its caches were frozen at, so the mark committed with them covers exactly
//!    the records that they and earlier flushes of the same journal hold (BookKeeper #1345, #2983). A record placed
//!    after the cut is in a later group and in the next cache.
//! 3. A generation is given out once, over all journals.
//! 4. The files of a journal take its cap and one file at most (requirement J11), and one more for each start that waited for
//!    space: from half of it on a freeze is due; at the cap only a freeze may take one more file, the one that is kept back if there
//!    is one, and while its flush is under way other groups wait for that. A flush frees every file but the last, so the wait ends with it (J12). One
//!    that waits for space leaves the file that is kept back to what has formed, and to fences. A journal that cannot
//!    make another file takes fences until its last one is full; then they wait for one, and nothing fails. One that has a
//!    single file takes adds until half of it is used. Recoveries, which pass while a write waits for space, find room in what is
//!    at hand, of which a quarter of a file stays for fences.

use crate::admission_queue::{AdmissionGrant, RoomWaiter};
use crate::api::{GroupTimes, Refusal};
use crate::completions::Completions;
use crate::shard::ShardCut;
use crate::shared::{Shared, Wanting};
use crate::stats::Counters;
use crate::tickets::{Flushed, FreezeTicket};
use bindery_io::canary::Canary;
use bindery_io::{BLOCK_SIZE_BYTES, Clock};
use bindery_journal::group::layout;
use bindery_journal::{Group, Journal, JournalError, OpenError as JournalOpenError};
use bindery_storage::Mark;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

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

    /// True when the journal has nothing to do for it, and waits for a file: no write of it hangs.
    pub fn is_refusals(&self) -> bool {
        self.is_refusals
    }
}

/// Everything a journal holds so far, as a mark.
pub(crate) fn mark_of(journal: &Journal) -> Mark {
    Mark { file_id: journal.last_file_id(), group: journal.last_group() }
}

/// One journal's half.
pub struct Journaling {
    shared: Arc<Shared>,
    /// Number of the journal.
    index: usize,
    journal: Journal,
    clock: Arc<dyn Clock>,
    /// A ticket is out; no other freeze until it is back.
    is_flushing: bool,
    /// Since when the next group waits for a file to be freed.
    waits_from_ns: Option<u64>,
    /// The last group of the journal is an empty one: see [`Journaling::seal`].
    is_sealed: bool,
    /// When the last write of a group began and ended.
    write_ns: (u64, u64),
}

impl Journaling {
    pub(crate) fn new(
        shared: Arc<Shared>,
        index: usize,
        journal: Journal,
        clock: Arc<dyn Clock>,
    ) -> Journaling {
        Journaling {
            shared,
            index,
            journal,
            clock,
            is_flushing: false,
            waits_from_ns: None,
            is_sealed: true,
            write_ns: (0, 0),
        }
    }

    /// Number of the journal.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(crate) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Waits until there may be something to cut, at most so long.
    pub(crate) fn wait(&self, rest: Duration) {
        self.shared.journals()[self.index].signal.wait(rest);
    }

    /// A start finds no space for what the journal holds behind the group `covered`: its files are kept, and the ticket of
    /// that is out.
    pub(crate) fn hold(&mut self, covered: u64) -> Result<(), JournalOpenError> {
        self.is_flushing = true;
        self.journal.hold(covered)?;
        // A seal takes a file into use: not the one that is kept back.
        self.is_sealed = self.journal.files_free() < 2;
        Ok(())
    }

    /// No ticket is out any more, and none came back.
    pub(crate) fn forget_ticket(&mut self) {
        self.is_flushing = false;
    }

    /// Takes what formed. `None` when there is nothing to write, to answer or to freeze.
    pub fn cut(&mut self) -> Option<InFlight> {
        self.offer_room();
        let shared = self.shared.clone();
        let is_freeze = self.is_freeze_due();
        let has_work = || shared.shards_of(self.index).any(|shard| shared.lock(shard).has_work());
        if !is_freeze && !shared.has_room_to_offer(self.index) && !has_work() {
            return None;
        }
        let mut held = Vec::new();
        // At the cap a group must fit the file there is, until the flush under way frees one (requirement J11). That is
        // looked at under the locks of all shards, so that nothing is placed in between.
        // Likewise without another file and without space for one, also while no flush is under way: it is tried again.
        let is_at_cap = self.is_flushing && self.journal.is_at_cap() && !self.may_use_kept_file();
        let has_no_other = is_at_cap || self.journal.has_no_other_file();
        if has_no_other && !shared.is_failed() {
            held.extend(shared.shards_of(self.index).map(|shard| shared.lock(shard)));
            let bytes: u64 = held.iter().map(|shard| shard.cut_bytes_max()).sum();
            if bytes > 0 && !self.journal.fits(bytes + BLOCK_SIZE_BYTES as u64) {
                drop(held);
                self.begin_to_wait();
                if is_freeze {
                    shared.journals()[self.index].is_freeze_wanted.store(true, Ordering::Release);
                }
                return self.cut_refusals();
            }
        }
        self.end_to_wait();
        let next_generation = is_freeze.then(|| shared.next_generation());
        let (mut cuts, mut freezing, mut grants) = (Vec::new(), Vec::new(), Vec::new());
        let mut held = held.into_iter();
        for index in shared.shards_of(self.index) {
            let mut shard = held.next().unwrap_or_else(|| shared.lock(index));
            cuts.push((index, shard.cut()));
            if next_generation.is_some_and(|next| shard.begin_freeze(next)) {
                freezing.push(index);
            }
            drop(shard);
            shared.give_grants(index, &mut grants);
        }
        let group = Group {
            parts: cuts.iter().flat_map(|(_, c)| c.parts.iter().cloned()).collect(),
            force_sync: cuts.iter().any(|(_, c)| !c.forces.is_empty()),
        };
        if is_freeze {
            self.is_flushing = true;
            shared.pacing().flushes.fetch_add(1, Ordering::AcqRel);
            shared.journals()[self.index].set_active(0, 0);
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
        let shared = self.shared.clone();
        if !shared.is_waiting() {
            return None;
        }
        let (mut cuts, mut grants) = (Vec::new(), Vec::new());
        for index in shared.shards_of(self.index) {
            cuts.push((index, shared.lock(index).cut_refusals()));
            shared.give_grants(index, &mut grants);
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
        let shared = &self.shared;
        let room = shared.config().room();
        let is_flushing = shared.pacing().flushes.load(Ordering::Acquire) > 0;
        let offer = if is_flushing { room.offer(shared.load()) } else { room.group_bytes_max };
        // The room is that of all journals; without scarcity each has its whole group.
        let sharers = match offer < room.group_bytes_max {
            true => shared.shards().len(),
            false => shared.config().shards_of_a_journal(),
        };
        let offer = usize::try_from(offer).unwrap_or(usize::MAX).div_ceil(sharers);
        let shards = || shared.shards_of(self.index).map(|index| shared.lock(index));
        let sure = self.journal.room_for_recoveries().saturating_sub(self.forming_bytes()) / 2;
        let sure = usize::try_from(sure).unwrap_or(usize::MAX) / shared.config().shards_of_a_journal();
        for mut shard in shards() {
            shard.offer(offer);
            shard.offer_recoveries(sure);
        }
    }

    /// The most that a group of all that is placed now takes, but for its header.
    fn forming_bytes(&self) -> u64 {
        let shared = &self.shared;
        shared.shards_of(self.index).map(|index| shared.lock(index).cut_bytes_max()).sum()
    }

    /// A freeze is due when the active caches of all journals hold an eighth of the pool's bytes or a quarter of its
    /// chunks, and this one its share of that, or when somebody asked for it and there is something to flush, or a full file to free.
    fn is_freeze_due(&self) -> bool {
        let shared = &self.shared;
        let (mut chunks, mut bytes, mut is_dirty) = (0, 0, false);
        for index in shared.shards_of(self.index) {
            let shard = shared.lock(index);
            chunks += shard.active_chunks();
            bytes += shard.active_bytes();
            is_dirty |= shard.is_dirty();
        }
        let desk = &shared.journals()[self.index];
        desk.set_active(bytes, chunks as u64);
        if self.is_flushing || shared.is_failed() {
            return false;
        }
        let (journals, pool) = (shared.journals().len() as u64, shared.pool().capacity() as u64);
        let (all_bytes, all_chunks) = shared.active();
        let is_full = all_bytes >= shared.config().room().freeze_at && bytes * journals >= all_bytes
            || all_chunks * 4 >= pool && chunks as u64 * journals >= all_chunks;
        let is_wanted = desk.is_freeze_wanted.swap(false, Ordering::AcqRel);
        // Probes alone fill files, too.
        let is_filled = is_wanted && self.journal.files_used() > 0 && self.is_behind();
        (is_dirty && (is_wanted || is_full)) || is_filled || self.is_half_used()
    }

    /// Half of the journal's cap is in use, and a flush, of marks alone perhaps, would free some of it.
    fn is_half_used(&self) -> bool {
        let cap = self.journal.config().bytes_max;
        cap > 0 && self.journal.bytes_in_use() >= cap / 2 && self.is_behind()
    }

    /// Some of its groups are not covered by a flush.
    fn is_behind(&self) -> bool {
        let written = self.shared.journals()[self.index].written.lock().group;
        written > self.shared.covered().lock().of_journal(self.index).group
    }

    /// The flush under way waits for space, for an unknown time: no adds are taken then, so the file that is kept back
    /// takes the formed group, and fences.
    fn may_use_kept_file(&self) -> bool {
        self.journal.files_free() > 0 && self.shared.is_waiting()
    }

    /// The next group waits for a file.
    fn begin_to_wait(&mut self) {
        if self.waits_from_ns.is_none() {
            self.waits_from_ns = Some(self.clock.monotonic_ns());
            let desk = &self.shared.journals()[self.index];
            desk.waits_for_file.store(true, Ordering::Relaxed);
            desk.counts.on_file_wait_begun();
        }
    }

    fn end_to_wait(&mut self) {
        if let Some(from) = self.waits_from_ns.take() {
            let waited = self.clock.monotonic_ns().saturating_sub(from);
            let desk = &self.shared.journals()[self.index];
            desk.waits_for_file.store(false, Ordering::Relaxed);
            desk.counts.on_file_wait_ended(waited);
        }
    }

    /// Makes the group durable: one write, one sync. Blocks on the disk.
    pub fn write(&mut self, in_flight: &InFlight) -> Result<(), JournalError> {
        let group = &in_flight.group;
        // Before anything else: without bytes there is nothing to write, but what failed earlier stays not durable.
        if let Some(error) = self.journal.failure() {
            return Err(error.clone());
        }
        // One with something in it is as good.
        let is_probe = self.shared.journals()[self.index].is_probe_wanted.swap(false, Ordering::AcqRel);
        if group.parts.is_empty() {
            if is_probe && self.takes_probe() {
                self.is_sealed = true;
                return self.write_timed(&Group::default()).map(drop);
            }
            // A journal that syncs by itself has nothing left to force.
            let is_needed = group.force_sync && !self.shared.config().journal_sync;
            return if is_needed { self.journal.sync() } else { Ok(()) };
        }
        if self.shared.is_failed() && self.journal.is_at_cap() && self.journal.files_free() == 0 {
            let parts = group.parts.iter().map(|part| (part.data.offset_in_chunk(), part.data.len()));
            if !self.journal.fits(layout(parts).total_bytes) {
                return Err(self.journal.give_up());
            }
        }
        let written_before = self.journal.written_bytes();
        self.write_timed(group)?;
        self.is_sealed = false;
        let took = self.write_ns.1.saturating_sub(self.write_ns.0);
        let counters = self.shared.counters();
        Counters::add(&counters.journal_groups, 1);
        Counters::add(&counters.journal_entries, in_flight.times.adds);
        let written_bytes = self.journal.written_bytes() - written_before;
        self.shared.journals()[self.index].counts.add_group(in_flight.times.bytes, written_bytes);
        Counters::add(&counters.journal_write_ns, took);
        counters.journal_write_ns_max.fetch_max(took, Ordering::Relaxed);
        Ok(())
    }

    fn write_timed(&mut self, group: &Group) -> Result<u64, JournalError> {
        let pulse = &self.shared.pulse_counters()[self.index];
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
        self.shared.journals()[self.index].counts.set_files(&self.journal);
        let short = self.journal.short_of_files().map(|(what, why)| (what, why.to_owned()));
        if short.is_some() && self.journal.files_used() > 0 {
            self.shared.journals()[self.index].is_freeze_wanted.store(true, Ordering::Release);
        }
        self.shared.wait_for(Wanting::Journal(self.index), short);
    }

    /// Writes an empty group behind the last one, once, when the journal has gone idle: damage to the last group of
    /// records then has a group behind it and is not taken for a write that never finished. No caller waits for it.
    /// Blocks on the disk.
    pub fn seal(&mut self) {
        self.journal.make_spare();
        self.tell_about_space();
        // While a slow journal is watched for its recovery, again and again.
        let is_done = self.is_sealed && !self.shared.pulse_counters()[self.index].is_probing();
        if is_done || self.journal.last_group() == 0 || self.journal.failure().is_some() {
            return;
        }
        if !self.takes_empty_group() {
            return;
        }
        self.is_sealed = true;
        if let Err(error) = self.write_timed(&Group::default()) {
            self.shared.fail(&error.to_string());
            tracing::error!(%error, "a journal failed while idle: this bookie no longer accepts adds; reads \
             continue");
        }
    }

    /// Whether there is room for an empty group that no add or fence needs more.
    fn takes_empty_group(&self) -> bool {
        self.has_other_file() || self.fits_empty_group()
    }

    /// Whether there is room for a probe. While no file comes back, the last one is kept for fences and removals. A probe that is not written
    /// still gets its answer.
    fn takes_probe(&self) -> bool {
        let may_be_short = self.is_flushing || self.shared.is_waiting();
        self.has_other_file() && (!may_be_short || self.journal.files_free() >= 2 && self.fits_empty_group())
    }

    fn has_other_file(&self) -> bool {
        !self.journal.is_at_cap() && !self.journal.has_no_other_file()
    }

    fn fits_empty_group(&self) -> bool {
        self.journal.fits(BLOCK_SIZE_BYTES as u64)
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
            let fired = self.shared.lock(index).on_durable(cut.upto);
            done.waiters.extend(fired.into_iter().chain(cut.forces).map(|w| (w, Ok(()))));
            if !cut.adds.is_empty() {
                done.adds.push(cut.adds);
            }
        }
        let written = mark_of(&self.journal);
        *self.shared.journals()[self.index].written.lock() = written;
        if is_freeze {
            let mut marks = self.shared.covered().lock().clone();
            marks.raise(self.index, written);
            self.shared.on_ticket_out();
            done.freeze = Some(FreezeTicket::begun(Some(self.index), marks, freezing));
            if self.shared.config().canaries.has(Canary::M28ReleasedBeforeFlush) {
                self.journal.release_up_to(self.journal.last_group());
            }
        }
        done
    }

    fn finish_failed(&mut self, cuts: Vec<(usize, ShardCut)>, reason: &str) -> Completions {
        if self.shared.fail(reason) {
            tracing::error!(
                reason,
                "a journal failed: this bookie no longer acknowledges anything; reads continue"
            );
        }
        let mut done = Completions::default();
        for (index, cut) in cuts {
            let (mut adds, waiters) = self.shared.lock(index).fail();
            let mut all = cut.adds;
            all.append(&mut adds);
            // Refusals stay as they were; adds that would have been acknowledged are refused.
            let is_told = self.shared.config().canaries.has(Canary::M29FailedGroupAcknowledged);
            for add in all.iter_mut().filter(|_| !is_told) {
                add.result = add.result.and(Err(Refusal::ReadOnly));
            }
            done.adds.push(all);
            done.waiters.extend(waiters.into_iter().chain(cut.forces).map(|w| (w, Err(Refusal::Io))));
            self.shared.give_grants(index, &mut done.grants);
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
