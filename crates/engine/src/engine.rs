//! The engine as the server sees it: requests go to the shard of their ledger, each under a short lock.
//!
//! Lock order: shard, then log view. No lock is held across I/O.

mod ingest;
mod tier;

pub use ingest::{Ingest, SealedIngest};

use crate::admission_queue::{AdmissionGrant, Admittance, RoomWaiter};
use crate::api::{
    Add, Changes, DurablePoint, EntryRef, EntryRun, LedgerPresence, MetadataVerdict, Poll, PollId, Refusal,
    Status, Unplaced, Waiter,
};
use crate::completions::Completions;
use crate::config::Admission;
use crate::damage::{DamageSummary, DamagedRange, Unreadable};
use crate::fair_queue::Share;
use crate::journals::JournalStats;
use crate::ledger_budget::{Beginning, LedgerMemory};
use crate::lookup::{DiskRead, Lookup, OnDisk, entries_on_disk, on_disk, sole_run};
use crate::pulse::JournalPulse;
use crate::run_set::RunSet;
use crate::shard::{Copy, Found, Gate, MemoryWalk, NoRoom, Shard, Taken, Word};
use crate::shared::Shared;
use crate::space_desk::{CompactionKinds, ScrubStatus, SpaceStatus, WantedCollection};
use crate::stats::{Counters, DirectoryStats, EngineStats};
use crate::tier::Tiered;
use crate::write_cache::Walk;
use bindery_io::canary::Canary;
use bindery_io::chunk::Lane;
use bindery_storage::{FoundRun, LogView, Patience, StorageMemory};
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a grant beside the body of an entry: the header of its record, and a record with the key of a new ledger.
const OVERHEAD_BYTES: usize = 64;

/// Shards over the journals and the ledger directories. Every method takes `&self` and never waits for a peer.
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>) -> Engine {
        Engine { shared }
    }

    /// The state that journals and flushes have in common with it.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.shared.shards().len()
    }

    /// Number of journals.
    pub fn journal_count(&self) -> usize {
        self.shared.journals().len()
    }

    /// The journal of a shard.
    pub fn journal_of(&self, shard: usize) -> usize {
        self.shared.journal_of(shard)
    }

    /// The shard of a ledger.
    pub fn shard_of(&self, ledger: LedgerId) -> usize {
        self.shared.shard_of(ledger)
    }

    /// Takes adds in order, all of them of ledgers of `shard`, and returns how many were taken. Every add taken is
    /// answered through the sink, refusals included. When it returns fewer than were given, there was no room; see
    /// [`Engine::when_room`]. Adds that need a check of metadata are refused.
    pub fn add_batch(&self, shard: usize, adds: &[Add<'_>]) -> usize {
        self.place_batch(shard, adds, None, Word::Never, |_, _| {})
    }

    /// As [`Engine::add_batch`], with the grant that [`Engine::when_room`] gave.
    pub fn add_batch_with(&self, shard: usize, adds: &[Add<'_>], grant: AdmissionGrant) -> usize {
        self.place_batch(shard, adds, Some(grant), Word::Never, |_, _| {})
    }

    /// As [`Engine::add_batch`], or [`Engine::add_batch_with`], for adds of one ledger that [`Engine::add_or_ask`] left with the caller and
    /// [`Engine::on_verdict`] allowed. `seen` is what [`Engine::tiered`] said before metadata was read, if the ledger was trimmed. If
    /// the ledger was trimmed again since, the verdict is out of date: the adds are left with the caller, which asks metadata again.
    pub fn add_judged(
        &self,
        shard: usize,
        adds: &[Add<'_>],
        grant: Option<AdmissionGrant>,
        seen: Option<&Tiered>,
        asks: &mut Vec<usize>,
    ) -> usize {
        self.place_batch(shard, adds, grant, Word::Given(seen), |at, what| {
            if what == Unplaced::Asks {
                asks.push(at);
            }
        })
    }

    /// As [`Engine::add_batch`], or [`Engine::add_batch_with`], and appends to `unplaced` the places in `adds` of those that were taken and
    /// not placed. Adds that metadata must speak for are left with the caller, who reads metadata, gives the word to
    /// [`Engine::on_verdict`], and comes again. Likewise those of recoveries that may be on disk already,
    /// while there is no room for them: see [`Engine::copy_on_disk`].
    pub fn add_or_ask(
        &self,
        shard: usize,
        adds: &[Add<'_>],
        grant: Option<AdmissionGrant>,
        unplaced: &mut Vec<(usize, Unplaced)>,
    ) -> usize {
        self.place_batch(shard, adds, grant, Word::Wanted, |at, what| unplaced.push((at, what)))
    }

    fn place_batch(
        &self,
        index: usize,
        adds: &[Add<'_>],
        grant: Option<AdmissionGrant>,
        word: Word<'_>,
        mut unplaced: impl FnMut(usize, Unplaced),
    ) -> usize {
        let Some(first) = adds.first() else { return 0 };
        let queue = &self.shared.queues()[index];
        // No add overtakes the queue (admission_queue invariant 1), also not behind a recovery add, which bypasses it.
        let has_waiting = grant.is_none() && queue.has_waiting();
        if has_waiting && !first.is_recovery {
            Counters::add(&self.shared.counters().no_room, 1);
            return 0;
        }
        let gate = self.shared.gate();
        let taken = {
            let mut shard = self.shared.lock(index);
            let reserved = if has_waiting { usize::MAX } else { queue.reserved() };
            shard.admit(grant.as_ref().map(AdmissionGrant::cost), reserved);
            let mut taken = 0;
            for add in adds {
                // Only what a recovery adds may be here already.
                let mut by_copy = || self.by_copy(&mut shard, add, &gate, matches!(word, Word::Wanted));
                let by_copy = if add.is_recovery { by_copy() } else { None };
                match by_copy.map_or_else(|| shard.add(add, &gate, word), Ok) {
                    Ok(Taken::Answered) => {}
                    Ok(Taken::Refused) => unplaced(taken, Unplaced::Refused),
                    Ok(Taken::Asks) => unplaced(taken, Unplaced::Asks),
                    Err(NoRoom) => break,
                }
                taken += 1;
            }
            taken
        };
        drop(grant);
        if taken < adds.len() {
            Counters::add(&self.shared.counters().no_room, 1);
            // Either the group forming is full, and the next cut makes room; or all chunks are, and a flush does.
            if !self.shared.pool().has_free(Lane::Normal) {
                self.shared.want_freeze();
                self.shared.wake_journals();
            }
        }
        self.shared.wake_journal_of(index);
        taken
    }

    /// The fate of an add that is here already, where the bookie does not take it as any other.
    fn by_copy(&self, shard: &mut Shard, add: &Add<'_>, gate: &Gate<'_>, may_ask: bool) -> Option<Taken> {
        match shard.copy_of(add, gate) {
            Copy::Same => shard.confirm(add).then_some(Taken::Answered),
            Copy::NotInMemory(found) if may_ask => self.on_disk(add, found).map(|_| Taken::Asks),
            Copy::NotInMemory(_) | Copy::No => None,
        }
    }

    /// Call it with the shard's lock held.
    fn on_disk(&self, add: &Add<'_>, found: Found) -> Option<DiskRead> {
        let Found::OnDisk { entry, otherwise, hidden_below, tiered } = found else { return None };
        let canaries = self.shared.config().canaries;
        let (views, faults) = (self.shared.views(), self.shared.faults());
        match on_disk(views, add.ledger, entry, otherwise, hidden_below, tiered, (canaries, faults)) {
            OnDisk::Read(read) => Some(read),
            OnDisk::Refused(_) | OnDisk::Undurable(_) | OnDisk::Tiered(_) => None,
        }
    }

    /// Of an add that [`Engine::add_or_ask`] left with the caller: the copy on disk that may be what a recovery adds again,
    /// while there is no room for another one. When it is the same, byte by byte, [`Engine::confirm`] the add; else, and
    /// without one, offer it again. Adds of metadata's word have none.
    pub fn copy_on_disk(&self, add: &Add<'_>) -> Option<DiskRead> {
        let shard = self.shared.lock_of(add.ledger);
        match shard.copy_of(add, &self.shared.gate()) {
            Copy::NotInMemory(found) => self.on_disk(add, found),
            Copy::Same | Copy::No => None,
        }
    }

    /// Acknowledges an add of a recovery for the copy of [`Engine::copy_on_disk`], which the caller compared. False when
    /// the ledger went meanwhile: offer the add again.
    pub fn confirm(&self, add: &Add<'_>) -> bool {
        let is_done = self.shared.lock_of(add.ledger).confirm(add);
        self.shared.wake_journal_of(self.shared.shard_of(add.ledger));
        is_done
    }

    /// Refuses adds that were not taken, all of them of ledgers of `shard`: answered through the sink, behind whatever
    /// was taken before.
    pub fn refuse(&self, shard: usize, adds: &[Add<'_>], refusal: Refusal) {
        self.shared.lock(shard).refuse(adds, refusal);
        self.shared.wake_journal_of(shard);
    }

    /// Gives a grant for `adds`, which were not taken, or for as many of them as find room; first come, first served.
    /// Recovery adds bypass the queue.
    pub fn when_room(&self, shard: usize, adds: &[Add<'_>], waiter: RoomWaiter) {
        self.when_room_for(shard, Share::DEFAULT, adds, waiter);
    }

    /// As [`Engine::when_room`], for adds of a tenant: tenants that wait are granted room by weight.
    pub fn when_room_for(&self, shard: usize, share: Share, adds: &[Add<'_>], waiter: RoomWaiter) {
        let cost = match self.shared.config().admission {
            Admission::Bytes => adds.iter().map(|add| add.body.len() + OVERHEAD_BYTES).sum(),
            Admission::Writes(_) => adds.len(),
        };
        let is_urgent = adds.first().is_some_and(|add| add.is_recovery);
        // A grant that is worth nothing tries as any other add, and queues again.
        if let Some((oldest, grant)) = self.shared.queues()[shard].wait(share, cost, is_urgent, waiter) {
            oldest(grant);
        }
        // Room may have been made between the failed attempt and now: the next cut looks.
        self.shared.wake_journal_of(shard);
    }

    /// Fences the ledger, known or not. The waiter fires with `Ok` when the fence is durable; only then may the
    /// request be answered, whether the entry it asks for exists or not (protocol reference, section 4.3).
    pub fn fence(&self, ledger: LedgerId, key: MasterKey, waiter: Waiter) {
        self.fence_as(Beginning::Urgent, ledger, key, waiter);
    }

    /// As [`Engine::fence`], but gives the waiter back when all that is lacking is memory for one more ledger: the caller looks
    /// whether metadata has the ledger, and then calls [`Engine::fence_known`].
    #[must_use]
    pub fn fence_or_ask(&self, ledger: LedgerId, key: MasterKey, waiter: Waiter) -> Option<Waiter> {
        {
            let shard = self.shared.lock_of(ledger);
            if !shard.has_failed() && !shard.may_begin(ledger, Beginning::Urgent) {
                return Some(waiter);
            }
        }
        self.fence(ledger, key, waiter);
        None
    }

    /// As [`Engine::fence`], of a ledger that metadata has: whatever memory the others take.
    pub fn fence_known(&self, ledger: LedgerId, key: MasterKey, waiter: Waiter) {
        self.fence_as(Beginning::Known, ledger, key, waiter);
    }

    fn fence_as(&self, beginning: Beginning, ledger: LedgerId, key: MasterKey, waiter: Waiter) {
        let mut shard = self.shared.lock_of(ledger);
        if shard.has_failed() {
            drop(shard);
            return self.shared.fence_directly(ledger, key, waiter);
        }
        let answered = shard.fence(beginning, ledger, key, waiter);
        drop(shard);
        self.shared.answer_or_wake(self.shared.shard_of(ledger), answered);
    }

    /// Stores an explicit LAC (last add confirmed); the waiter fires when it is durable.
    pub fn write_lac(
        &self,
        ledger: LedgerId,
        key: MasterKey,
        lac: Option<EntryId>,
        body: &[u8],
        waiter: Waiter,
    ) {
        let is_read_only = self.shared.is_read_only();
        let answered = self.shared.lock_of(ledger).write_lac(ledger, key, lac, body, is_read_only, waiter);
        self.shared.answer_or_wake(self.shared.shard_of(ledger), answered);
    }

    /// Removes a ledger: from now on it reads as unknown and takes nothing, and once the waiter fires that outlives a
    /// power cut. Its space comes back with the collection of entry logs. For a ledger that metadata says is gone.
    pub fn remove_ledger(&self, ledger: LedgerId, waiter: Waiter) {
        let answered = self.shared.lock_of(ledger).remove(ledger, waiter);
        self.shared.answer_or_wake(self.shared.shard_of(ledger), answered);
    }

    /// When something was placed for a ledger last. Ask before the metadata that decides about a removal is read.
    pub fn changes(&self, ledger: LedgerId) -> Changes {
        self.shared.lock_of(ledger).changes(ledger)
    }

    /// As [`Engine::remove_ledger`], unless something was placed for the ledger since `seen`: somebody may have created
    /// it again under the same id, and what was acknowledged since is not to be lost. Then false, and the waiter is
    /// dropped uncalled.
    pub fn remove_unchanged(&self, ledger: LedgerId, seen: Changes, waiter: Waiter) -> bool {
        let answered = {
            let mut shard = self.shared.lock_of(ledger);
            if !shard.is_unchanged(ledger, seen) {
                return false;
            }
            shard.remove(ledger, waiter)
        };
        self.shared.answer_or_wake(self.shared.shard_of(ledger), answered);
        true
    }

    /// Lets a removed ledger exist again, empty, with the key and the fence it had. For a ledger that metadata says is
    /// to be held here after all. Any other ledger stays as it is.
    pub fn revive_ledger(&self, ledger: LedgerId, key: MasterKey, waiter: Waiter) {
        let answered = self.shared.lock_of(ledger).revive(ledger, key, waiter);
        self.shared.answer_or_wake(self.shared.shard_of(ledger), answered);
    }

    /// Takes what metadata says of a ledger to which an add was left by [`Engine::add_or_ask`], and does what it calls
    /// for. It must have been read after the add came. `Ok`: offer the add again; else refuse it.
    pub fn on_verdict(
        &self,
        ledger: LedgerId,
        key: MasterKey,
        is_recovery: bool,
        word: MetadataVerdict,
    ) -> Result<(), Refusal> {
        let outcome = self.shared.lock_of(ledger).on_verdict(ledger, key, is_recovery, word);
        self.shared.wake_journal_of(self.shared.shard_of(ledger));
        outcome
    }

    /// Removes a ledger, of which `seen` was known here before metadata was read, as garbage collection would: metadata shows that it was
    /// another one than the one of its id that lives. False if it has changed since: then it stays, and metadata has to be read again.
    pub fn end_other_life(&self, ledger: LedgerId, seen: &Tiered) -> Result<bool, Refusal> {
        let outcome = self.shared.lock_of(ledger).end_other_life(ledger, seen);
        self.shared.wake_journal_of(self.shared.shard_of(ledger));
        outcome
    }

    /// Marks a ledger, known or not, as in limbo or as sound; the waiter fires when that is durable. Sound is one that
    /// holds, durably, every entry that it should hold.
    pub fn set_limbo(&self, ledger: LedgerId, is_limbo: bool, waiter: Waiter) {
        let answered = self.shared.lock_of(ledger).set_limbo(ledger, is_limbo, waiter);
        self.shared.answer_or_wake(self.shared.shard_of(ledger), answered);
    }

    /// The ledgers marked as in limbo, ascending.
    pub fn limbo_ledgers(&self) -> Vec<LedgerId> {
        let mut ledgers = Vec::new();
        for shard in self.shared.shards() {
            shard.lock().limbo_ledgers(&mut ledgers);
        }
        ledgers.sort_unstable();
        ledgers
    }

    /// From now on only marked ledgers are in limbo: every one that needs it is marked, durably
    /// ([`EngineConfig::limbo_up_to`]).
    pub fn end_cover(&self) {
        for shard in self.shared.shards() {
            shard.lock().cover_with_limbo(None);
        }
    }

    /// What is known of a ledger.
    pub fn presence(&self, ledger: LedgerId) -> LedgerPresence {
        self.shared.lock_of(ledger).presence(ledger)
    }

    /// The ledgers that exist here, ascending.
    pub fn ledgers(&self) -> Vec<LedgerId> {
        let mut ledgers = Vec::new();
        for shard in self.shared.shards() {
            shard.lock().ledgers(&mut ledgers);
        }
        ledgers.sort_unstable();
        ledgers
    }

    /// Fires after a sync that covers every add of the ledger received before.
    pub fn force(&self, ledger: LedgerId, waiter: Waiter) {
        let answered = self.shared.lock_of(ledger).force(waiter);
        self.shared.answer_or_wake(self.shared.shard_of(ledger), answered);
    }

    /// Looks an entry up. Memory hits are returned; the rest says what to do next.
    pub fn read(&self, ledger: LedgerId, which: EntryRef) -> Result<Lookup, Refusal> {
        let index = self.shared.shard_of(ledger);
        let shard = self.shared.lock(index);
        match shard.find(ledger, which)? {
            Found::Memory(body) => Ok(Lookup::Memory(body)),
            Found::OnDisk { entry, otherwise, hidden_below, tiered } => {
                let canaries = self.shared.config().canaries;
                let (views, faults) = (self.shared.views(), self.shared.faults());
                match on_disk(views, ledger, entry, otherwise, hidden_below, tiered, (canaries, faults)) {
                    OnDisk::Read(read) => Ok(Lookup::Disk(read)),
                    OnDisk::Tiered(read) => Ok(Lookup::Tiered(read)),
                    OnDisk::Refused(refusal) => Err(refusal),
                    OnDisk::Undurable(sequence) => {
                        Ok(Lookup::Undurable(DurablePoint { shard: index, sequence }))
                    }
                }
            }
        }
    }

    /// Number of the ledger directory that a read from this entry on asks first: of its newest copy, or else the one that
    /// the ledger's entries are flushed to while nothing is wrong with it.
    pub fn directory_of(&self, ledger: LedgerId, entry: Option<EntryId>) -> usize {
        match entry.map(|entry| self.read(ledger, EntryRef::At(entry))) {
            Some(Ok(Lookup::Disk(read))) => read.directory(),
            _ => self.shared.shard_of(ledger) % self.shared.views().len(),
        }
    }

    /// Number of ledger directories.
    pub fn directory_count(&self) -> usize {
        self.shared.views().len()
    }

    /// Entries from `first` on, each `step` behind the one before, `count` at most, that are on disk, lie together there within
    /// `bytes_max` (the first whatever its length; what lies between counts), and have no other copy anywhere: found at once, to be read
    /// at once. `None` whenever that is not so, or takes a wait that `patience` rules out, or fails: then [`Engine::read`] of each tells.
    pub fn read_run(
        &self,
        ledger: LedgerId,
        (first, step): (EntryId, u32),
        count: u32,
        bytes_max: usize,
        patience: Patience,
    ) -> Option<FoundRun> {
        let span = i64::from(count.checked_sub(1)?) * i64::from(step);
        let last = EntryId::new(first.get().saturating_add(span))?;
        let run = {
            let shard = self.shared.lock_of(ledger);
            let (last, hidden_below) = shard.absent_from_memory(ledger, first, last)?;
            sole_run(self.shared.views(), ledger, (first, last), step, hidden_below)?
        };
        run.locate(bytes_max, patience).ok().flatten()
    }

    /// Calls `waiter` once everything up to `point` (of a [`Lookup::Undurable`]) is durable, or with an error once it never will be: at
    /// once and on this thread if that is known already. After a success the caller looks up again.
    pub fn when_durable(&self, point: DurablePoint, waiter: Waiter) {
        let answered = self.shared.lock(point.shard).when_durable(point.sequence, waiter);
        self.shared.answer_or_wake(point.shard, answered);
    }

    /// The highest LAC (last add confirmed) of durable entries and explicit LACs.
    pub fn last_add_confirmed(&self, ledger: LedgerId) -> Result<Option<EntryId>, Refusal> {
        self.shared.lock_of(ledger).last_add_confirmed(ledger)
    }

    /// The body of the last durable WRITE_LAC.
    pub fn explicit_lac(&self, ledger: LedgerId) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(self.shared.lock_of(ledger).explicit_lac(ledger)?.map(|body| body.to_vec()))
    }

    /// Asks to be told when the LAC moves beyond `previous`.
    pub fn poll_lac(
        &self,
        ledger: LedgerId,
        previous: Option<EntryId>,
        waiter: Waiter,
    ) -> Result<Poll, Refusal> {
        self.shared.lock_of(ledger).poll_lac(ledger, previous, waiter)
    }

    /// Takes a parked poll back; its waiter is dropped. False when it has fired already.
    pub fn cancel_poll(&self, ledger: LedgerId, poll: PollId) -> bool {
        self.shared.lock_of(ledger).cancel_poll(ledger, poll)
    }

    /// Every durable entry of a ledger, as runs, with those that were let go because they are in object storage, without those that are
    /// known as damaged: a repair brings these as it brings what is missing. Blocks on the disk.
    pub fn list_entries(&self, ledger: LedgerId) -> Result<Vec<EntryRun>, Refusal> {
        let unreadable = self.unreadable(ledger);
        let list = self.list(ledger, false, MemoryWalk::default(), RunSet::new(usize::MAX), &unreadable)?;
        Ok(list.expect("no limit"))
    }

    /// As [`Engine::list_entries`], in bounded memory: at most `2 * runs_max` runs, and the index records of one extent.
    /// `None` when there are more than `runs_max`.
    pub fn list_entries_within(
        &self,
        ledger: LedgerId,
        runs_max: usize,
    ) -> Result<Option<Vec<EntryRun>>, Refusal> {
        let unreadable = self.unreadable(ledger);
        self.list(ledger, false, MemoryWalk::default(), RunSet::new(runs_max), &unreadable)
    }

    /// As [`Engine::list_entries`], of the entries from `first` to `last`, also in limbo: what is here, not what should be.
    pub fn held_entries(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
    ) -> Result<Vec<EntryRun>, Refusal> {
        let unreadable = self.unreadable(ledger);
        let runs = RunSet::within(first, last);
        Ok(self.list(ledger, true, MemoryWalk::default(), runs, &unreadable)?.expect("no limit"))
    }

    /// What lists leave out.
    fn unreadable(&self, ledger: LedgerId) -> Vec<Unreadable> {
        match self.shared.config().canaries.has(Canary::M56DamageListed) {
            true => Vec::new(),
            false => self.shared.damage().unreadable(ledger),
        }
    }

    fn list(
        &self,
        ledger: LedgerId,
        with_limbo: bool,
        mut walk: MemoryWalk,
        mut runs: RunSet,
        unreadable: &[Unreadable],
    ) -> Result<Option<Vec<EntryRun>>, Refusal> {
        // Memory first: entries that a flush moves to disk in between are then seen twice, never missed.
        let hidden_below = loop {
            let step =
                self.shared.lock_of(ledger).cached_entries(ledger, with_limbo, &mut walk, &mut runs)?;
            for frozen in &step.whole {
                let Some(records) = frozen.records.get(&ledger) else { continue };
                let all = records.durable_runs(&mut Walk::default(), step.durable, usize::MAX, &mut runs);
                debug_assert!(all, "there is no limit of steps");
                if runs.is_too_much() {
                    break;
                }
            }
            // The runs in memory alone exceed the room. The caller asks again with more, so the rest of this walk would be wasted.
            if runs.is_too_much() {
                return Ok(None);
            }
            if step.is_done {
                break step.hidden_below;
            }
        };
        let (views, faults) = (self.shared.views(), self.shared.faults());
        entries_on_disk(views, ledger, hidden_below, &mut runs, unreadable, faults)?;
        Ok(runs.finish())
    }

    /// True when normal adds to the ledger are refused.
    pub fn is_fenced(&self, ledger: LedgerId) -> bool {
        self.shared.lock_of(ledger).is_fenced(ledger)
    }

    /// Refuses or accepts adds without high priority.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.shared.set_read_only(is_read_only);
    }

    /// Whether adds with high priority pass while the engine is read-only (section 4.7). At first they do.
    pub fn set_takes_high_priority(&self, takes: bool) {
        self.shared.set_takes_high_priority(takes);
    }

    /// Bytes that recoveries may add from now on while no other adds are taken, because a volume is full: so that a
    /// ledger can be closed. At first only memory and the journals bound them.
    pub fn set_recovery_reserve(&self, bytes: u64) {
        self.shared.set_recovery_reserve(bytes);
    }

    /// Directories that should get no entries, because they are nearly full; the others take theirs.
    pub fn set_full_directories(&self, full: &[bool]) {
        self.shared.set_full_directories(full);
    }

    /// For each ledger directory, the free bytes that flushes of entries leave from now on for rewrites of entry logs, which
    /// bring back the space of deleted ledgers. None at first.
    pub fn set_rewrite_room(&self, bytes: &[u64]) {
        self.shared.set_rewrite_room(bytes);
    }

    /// True when adds wait for room in memory.
    pub fn adds_wait(&self) -> bool {
        self.shared.adds_wait()
    }

    /// How each journal does. `now_ns` is the time of the clock that the engine was opened with.
    pub fn pulses(&self, now_ns: u64) -> Vec<JournalPulse> {
        self.shared.pulses(now_ns)
    }

    /// Asks for an empty group now and then while no other group is written, so that a journal that became slow is seen
    /// to be fast again.
    pub fn set_probing(&self, is_probing: bool) {
        self.shared.set_probing(is_probing);
    }

    /// Fires once a group whose write began after the call is written to this journal and synced. The journal writes an empty group if there
    /// is no other. It fires on the completion thread, as adds are answered. A journal that has no room for one fires without a write; one whose next group waits
    /// for a file ([`JournalPulse::waits_for_file`]) fires when it has that. Nothing of it outlives a restart.
    ///
    /// # Errors
    /// [`Refusal::Io`] when the journal failed.
    pub fn probe_journal(&self, journal: usize, waiter: Waiter) {
        let shared = &self.shared;
        shared.journals()[journal].is_probe_wanted.store(true, Ordering::Release);
        let shard = shared.shards_of(journal).next().expect("a journal has a shard");
        let answered = shared.lock(shard).force(waiter);
        shared.answer_or_wake(shard, answered);
    }

    /// Answers to adds that were refused, of a journal that a simulator holds between cut and finish.
    pub fn refuse_ahead(&self, journal: usize) -> Completions {
        self.shared.refuse_ahead(journal)
    }

    /// State for operators.
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Counters and gauges.
    pub fn stats(&self) -> EngineStats {
        let directories = self.directory_stats();
        let journals = self.journal_stats();
        let sum = |of: fn(&JournalStats) -> u64| journals.iter().map(of).sum();
        EngineStats {
            entry_logs: directories.iter().map(|of| of.logs).sum(),
            entry_log_bytes: directories.iter().map(|of| of.log_bytes).sum(),
            groups_undelivered: self.shared.undelivered().load(Ordering::Relaxed) as u64,
            write_pool_chunks_in_use: self.shared.pool().in_use() as u64,
            write_pool_chunks: self.shared.pool().capacity() as u64,
            write_pool_chunk_bytes: self.shared.pool().chunk_size() as u64,
            ledgers: self.shared.shards().iter().map(|s| s.lock().ledger_count() as u64).sum(),
            journal_wakes: self.shared.journals().iter().map(|journal| journal.signal.wakes()).sum(),
            ledgers_removed: self.shared.shards().iter().map(|s| s.lock().removed_count() as u64).sum(),
            journal_bytes: sum(|journal| journal.record_bytes),
            journal_disk_bytes: sum(|journal| journal.written_bytes),
            journal_file_waits: sum(|journal| journal.file_waits),
            journal_file_wait_ns: sum(|journal| journal.file_wait_ns),
            ..self.shared.counters().snapshot()
        }
    }

    /// By the number of the journal: what it wrote and what it occupies.
    pub fn journal_stats(&self) -> Vec<JournalStats> {
        let journals = self.shared.journals();
        let mut stats: Vec<_> = journals.iter().map(|journal| journal.counts.read()).collect();
        for (number, of) in stats.iter_mut().enumerate() {
            of.is_writing = self.shared.write_under_way(number).is_some();
        }
        // Shard s belongs to journal s % J.
        for (number, shard) in self.shared.shards().iter().enumerate() {
            stats[number % journals.len()].queued_records += shard.lock().formed_records() as u64;
        }
        stats
    }

    /// By the number of the ledger directory: what is in its live entry logs.
    pub fn directory_stats(&self) -> Vec<DirectoryStats> {
        let of = |view: &Arc<LogView>| {
            let logs = view.logs();
            DirectoryStats {
                logs: logs.len() as u64,
                log_bytes: logs.iter().map(|log| log.size()).sum(),
                entries: logs.iter().map(|log| log.entry_count()).sum(),
            }
        };
        self.shared.views().iter().map(of).collect()
    }

    /// Who waits for room in the write pool, over all shards.
    pub fn admittance(&self) -> Admittance {
        let queues = self.shared.queues().iter().map(|queue| queue.admittance());
        queues.fold(Admittance::default(), Admittance::and)
    }

    /// Number of runs of flushed entries whose extents are in memory, and of those that are found by the fences of their
    /// logs.
    pub fn index_runs(&self) -> (usize, usize) {
        let counts = self.shared.views().iter().map(|view| view.run_counts());
        counts.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1))
    }

    /// The pools of the index and of the block cache.
    pub fn storage_memory(&self) -> &StorageMemory {
        self.shared.memory()
    }

    /// The memory of ledger states, and its limit.
    pub fn ledger_memory(&self) -> LedgerMemory {
        self.shared.ledger_budget().memory()
    }

    /// Asks for a collection of space now, within a flush interval; while one is under way that does as much, for nothing.
    pub fn want_collection(&self, wanted: WantedCollection) {
        self.shared.space().want(wanted);
    }

    /// As [`Engine::want_collection`], once the removals so far are in the state tables. Until then the entries that they hide
    /// count as live, so this asks for a flush too.
    pub fn want_collection_after_removals(&self, wanted: WantedCollection) {
        self.shared.space().want_after_removals(wanted);
        self.shared.want_freeze();
        self.shared.wake_journals();
    }

    /// The kinds of compactions that are suspended.
    pub fn suspended_compactions(&self) -> CompactionKinds {
        self.shared.space().suspended()
    }

    /// Begins no more compactions of these kinds, whoever asks for them, until they are resumed, or space runs short. Those under way go on,
    /// and logs without a live entry are dropped as ever.
    pub fn suspend_compactions(&self, kinds: CompactionKinds) {
        self.shared.space().suspend(kinds);
    }

    /// Lets compactions of these kinds begin again.
    pub fn resume_compactions(&self, kinds: CompactionKinds) {
        self.shared.space().resume(kinds);
    }

    /// By the number of the journal: the file and the group up to which entry logs have what it holds.
    pub fn covered_marks(&self) -> Vec<(u64, u64)> {
        let covered = self.shared.covered().lock();
        (0..self.journal_count())
            .map(|journal| covered.of_journal(journal))
            .map(|mark| (mark.file_id, mark.group))
            .collect()
    }

    /// True while a requested collection has not begun.
    pub fn is_collection_wanted(&self) -> bool {
        self.shared.space().is_wanted()
    }

    /// How the collection of space goes.
    pub fn space_status(&self) -> SpaceStatus {
        self.shared.space().status()
    }

    /// Asks for a check of all live logs now, within a flush interval. Returns the number of the request: it is answered
    /// when [`ScrubStatus::answered`] has reached it.
    pub fn want_scrub(&self) -> u64 {
        self.shared.space().want_scrub()
    }

    /// Damaged entries that wait for another copy, of ledgers above `after`, ascending by ledger; at most about `most` ranges, those of
    /// a ledger together. An entry is replaced by a recovery add of it, like one that is missing.
    pub fn damaged(&self, after: Option<LedgerId>, most: usize) -> Vec<DamagedRange> {
        self.shared.damage().waiting(after, most)
    }

    /// As [`Engine::damaged`], of one ledger.
    pub fn damaged_of(&self, ledger: LedgerId) -> Vec<DamagedRange> {
        self.shared.damage().waiting_of(ledger)
    }

    /// Takes the word of metadata that nothing of their ledger is missing here beside these ranges, or in them: then what the logs have
    /// of them is not needed any more. Get the ranges first, then the list of entries that is compared.
    pub fn damage_is_made_good(&self, ranges: &[DamagedRange]) {
        self.shared.damage().make_good(ranges, true);
    }

    /// How much damage is known.
    pub fn damage_summary(&self) -> DamageSummary {
        self.shared.damage().summary()
    }

    /// How the scrub goes.
    pub fn scrub_status(&self) -> ScrubStatus {
        let damaged_logs = self.shared.damage().damaged_logs();
        ScrubStatus { damaged_logs, ..self.shared.space().scrub_status() }
    }
}
