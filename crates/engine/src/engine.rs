//! The engine as the server sees it: requests go to the shard of their ledger, each under a short lock.
//!
//! Lock order: shard, then log view. No lock is held across I/O.

use crate::admission_queue::{AdmissionGrant, AdmissionQueue, Admittance, RoomWaiter};
use crate::api::{
    Add, Changes, DurablePoint, EntryRef, EntryRun, LedgerPresence, Lookup, MetadataVerdict, Poll, PollId,
    Refusal, Waiter,
};
use crate::config::{Admission, EngineConfig};
use crate::direct_fence::DirectFence;
use crate::journals::{JournalDesk, JournalStats, MarkVector};
use crate::lookup::{DiskRead, OnDisk, RunSet, entries_on_disk, on_disk, sole_run};
use crate::pacing::Load;
use crate::pulse::{JournalPulse, PulseCounters};
use crate::shard::{Copy, Found, Gate, NoRoom, Reserve, Shard, ShardConfig, Taken, Waits};
use crate::space::{ScrubStatus, SpaceDesk, SpaceStatus, WantedCollection};
use crate::stats::{Counters, EngineStats};
use crate::tier::TierBudget;
use bindery_io::Shortage;
use bindery_io::chunk::{ChunkPool, Lane};
use bindery_storage::{FoundRun, LogView, Patience, StorageMemory, TierView};
use bindery_types::{EntryId, LedgerId, MasterKey};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What the flush tells the journal, and a stop the flush.
#[derive(Default)]
pub(crate) struct PacingDesk {
    /// Bytes that the flush under way has written; 0 between flushes.
    pub(crate) written: AtomicU64,
    /// Freezes whose flush is not committed.
    pub(crate) flushes: AtomicU64,
    /// Flushes must not pause any more.
    pub(crate) is_hurried: AtomicBool,
}

/// Bytes of a grant beside the body of an entry: the header of its record, and a record with the key of a new ledger.
const OVERHEAD_BYTES: usize = 64;

/// Who wants space and finds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanting {
    Flush,
    Journal(usize),
}

/// What an operator should know about an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Adds are refused, except with high priority.
    pub is_read_only: bool,
    /// Adds with high priority find room, read-only or not.
    pub takes_high_priority: bool,
    /// Bytes that recoveries may still add while no other adds are taken; `u64::MAX` without a bound.
    pub recovery_reserve_bytes: u64,
    /// Adds of recoveries that were refused because that, or the room for them in a journal, was used up.
    pub recoveries_refused: u64,
    /// The first failure of journal or storage. Nothing is acknowledged any more; reads go on.
    pub failed: Option<String>,
    /// Writes that found no space on their volume and are tried again until they do; no add is taken meanwhile but those of
    /// recoveries, as far as the reserve goes.
    pub waits_for_space: Option<String>,
    /// The same for want of a file descriptor, which says nothing about any volume.
    pub waits_for_descriptor: Option<String>,
    /// Ledger directories that failed while the others went on, by their number, and why.
    pub directories_failed: BTreeMap<usize, String>,
    /// False: acknowledged adds may be lost in a power cut.
    pub journal_sync: bool,
}

/// Shards over the journals and the ledger directories. Every method takes `&self` and never waits for a peer.
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) pool: ChunkPool,
    pub(crate) shards: Vec<Mutex<Shard>>,
    pub(crate) views: Vec<Arc<LogView>>,
    /// Of each ledger directory, the extents in object storage.
    pub(crate) tiers: Vec<Arc<TierView>>,
    pub(crate) tier_budget: Arc<TierBudget>,
    pub(crate) memory: StorageMemory,
    queues: Vec<Arc<AdmissionQueue>>,
    /// By the number of the journal.
    pub(crate) journals: Vec<JournalDesk>,
    /// The marks that every ledger directory has committed.
    pub(crate) covered: Mutex<MarkVector>,
    /// The generation that the next freeze gives to what comes after it: one count over all journals.
    next_generation: AtomicU64,
    is_read_only: AtomicBool,
    takes_high_priority: AtomicBool,
    /// For recoveries while no other adds are taken, and how many of their adds found no room in it.
    recovery_reserve: Reserve,
    recoveries_refused: AtomicU64,
    failed: Mutex<Option<String>>,
    waits: Mutex<BTreeMap<Wanting, (Shortage, String)>>,
    directories_failed: Mutex<BTreeMap<usize, String>>,
    /// No ledger directory takes anything any more.
    is_storage_lost: AtomicBool,
    /// Ledger directories that are nearly full; empty when that is not known.
    pub(crate) full: Mutex<Vec<bool>>,
    /// Free bytes that flushes leave in each ledger directory; none where it is not said.
    pub(crate) rewrite_room: Mutex<Vec<u64>>,
    /// Tickets that are neither flushed nor refused for good.
    pub(crate) tickets_out: AtomicUsize,
    pub(crate) direct_fences: Mutex<VecDeque<DirectFence>>,
    pub(crate) counters: Counters,
    pub(crate) pacing: PacingDesk,
    /// Of each journal.
    pub(crate) pulses: Vec<PulseCounters>,
    pub(crate) space: SpaceDesk,
    /// The highest ledger that a state table remembers.
    highest_recovered: Option<LedgerId>,
}

fn waits_of(waits: &BTreeMap<Wanting, (Shortage, String)>) -> Waits {
    let is_space = |(what, _): &(Shortage, String)| *what == Shortage::Space;
    match (waits.is_empty(), waits.values().all(is_space)) {
        (true, _) => Waits::No,
        (false, true) => Waits::ForSpace,
        (false, false) => Waits::ForDescriptors,
    }
}

impl Status {
    /// What waits for space or for a file descriptor.
    pub fn waits(&self) -> Option<&str> {
        self.waits_for_space.as_deref().or(self.waits_for_descriptor.as_deref())
    }
}

impl Engine {
    pub(crate) fn new(
        config: EngineConfig,
        views: Vec<Arc<LogView>>,
        tiers: Vec<Arc<TierView>>,
        memory: StorageMemory,
        highest_recovered: Option<LedgerId>,
    ) -> Engine {
        let pool = ChunkPool::new(config.chunk_size(), config.chunk_count(), config.chunk_reserve());
        let tier_budget = TierBudget::new(config.tier_extents_bytes);
        let shards = (0..config.shard_count)
            .map(|index| {
                let shard = ShardConfig {
                    index: u32::try_from(index).expect("shards are few"),
                    formed_bytes_max: config.formed_bytes_max(),
                    admission: config.admission,
                    parts_max: config.parts_max(),
                    entry_bytes_max: config.entry_bytes_max,
                    limbo_up_to: config.limbo_up_to,
                    checked_up_to: config.checked_up_to,
                    canaries: config.canaries,
                    index_pool: memory.index.clone(),
                    tier_budget: tier_budget.clone(),
                };
                Mutex::new(Shard::new(shard, pool.clone()))
            })
            .collect();
        let journals: Vec<JournalDesk> = config.journal_dirs.iter().map(|_| JournalDesk::new()).collect();
        let queue_of =
            |shard: usize| Arc::new(AdmissionQueue::new(journals[shard % journals.len()].signal.clone()));
        Engine {
            views,
            tiers,
            tier_budget,
            memory,
            queues: (0..config.shard_count).map(queue_of).collect(),
            journals,
            covered: Mutex::default(),
            next_generation: AtomicU64::new(0),
            is_read_only: AtomicBool::new(false),
            takes_high_priority: AtomicBool::new(true),
            recovery_reserve: Reserve::unbounded(),
            recoveries_refused: AtomicU64::new(0),
            pulses: config.journal_dirs.iter().map(|_| PulseCounters::new(config.journal_slow)).collect(),
            failed: Mutex::new(None),
            waits: Mutex::default(),
            directories_failed: Mutex::default(),
            is_storage_lost: AtomicBool::new(false),
            full: Mutex::default(),
            rewrite_room: Mutex::default(),
            tickets_out: AtomicUsize::new(0),
            direct_fences: Mutex::default(),
            counters: Counters::default(),
            pacing: PacingDesk::default(),
            space: SpaceDesk::default(),
            highest_recovered,
            config,
            pool,
            shards,
        }
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Number of journals.
    pub fn journal_count(&self) -> usize {
        self.journals.len()
    }

    /// The journal of a shard.
    pub fn journal_of(&self, shard: usize) -> usize {
        shard % self.journals.len()
    }

    /// The shards of a journal, ascending.
    pub(crate) fn shards_of(&self, journal: usize) -> impl Iterator<Item = usize> + use<> {
        (journal..self.shards.len()).step_by(self.journals.len())
    }

    /// Has all shards frozen and flushed soon.
    pub(crate) fn want_freeze(&self) {
        self.journals.iter().for_each(|journal| journal.is_freeze_wanted.store(true, Ordering::Release));
    }

    pub(crate) fn wake_journals(&self) {
        self.journals.iter().for_each(|journal| journal.signal.raise());
    }

    fn wake_journal_of(&self, shard: usize) {
        self.journals[self.journal_of(shard)].signal.raise();
    }

    /// Everything that is placed from now on is of this generation or a higher one.
    pub(crate) fn begin_generations(&self, first: u64) {
        self.next_generation.store(first + 1, Ordering::Release);
        for shard in &self.shards {
            shard.lock().begin_generation(first);
        }
    }

    /// For what is placed after a freeze.
    pub(crate) fn next_generation(&self) -> u64 {
        self.next_generation.fetch_add(1, Ordering::AcqRel)
    }

    /// The shard of a ledger.
    pub fn shard_of(&self, ledger: LedgerId) -> usize {
        // Fibonacci hashing: neighbouring ids spread evenly, and the order of bits does not matter.
        let hash = (ledger.get() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(hash) * self.shards.len() as u128) >> 64) as usize
    }

    /// Takes adds in order, all of them of ledgers of `shard`, and returns how many were taken. Every add taken is
    /// answered through the sink, refusals included. When it returns fewer than were given, there was no room; see
    /// [`Engine::when_room`]. Adds that need a check of metadata are refused.
    pub fn add_batch(&self, shard: usize, adds: &[Add<'_>]) -> usize {
        self.place_batch(shard, adds, None, None)
    }

    /// As [`Engine::add_batch`], with the grant that [`Engine::when_room`] gave.
    pub fn add_batch_with(&self, shard: usize, adds: &[Add<'_>], grant: AdmissionGrant) -> usize {
        self.place_batch(shard, adds, Some(grant), None)
    }

    /// As [`Engine::add_batch`], or [`Engine::add_batch_with`], but adds that metadata must speak for are left with the
    /// caller: their places in `adds` are appended to `asks`. The caller reads metadata, gives the word to
    /// [`Engine::on_verdict`], and comes again. They count as taken. Likewise those of recoveries that may be on disk already,
    /// while there is no room for them: see [`Engine::copy_on_disk`].
    pub fn add_or_ask(
        &self,
        shard: usize,
        adds: &[Add<'_>],
        grant: Option<AdmissionGrant>,
        asks: &mut Vec<usize>,
    ) -> usize {
        self.place_batch(shard, adds, grant, Some(asks))
    }

    fn place_batch(
        &self,
        index: usize,
        adds: &[Add<'_>],
        grant: Option<AdmissionGrant>,
        mut asks: Option<&mut Vec<usize>>,
    ) -> usize {
        let Some(first) = adds.first() else { return 0 };
        let queue = &self.queues[index];
        // No add overtakes the queue (admission_queue invariant 1), also not behind a recovery add, which bypasses it.
        let has_waiting = grant.is_none() && queue.has_waiting();
        if has_waiting && !first.is_recovery {
            Counters::add(&self.counters.no_room, 1);
            return 0;
        }
        let gate = self.gate();
        let taken = {
            let mut shard = self.shards[index].lock();
            let reserved = if has_waiting { usize::MAX } else { queue.reserved() };
            shard.admit(grant.as_ref().map(AdmissionGrant::cost), reserved);
            let mut taken = 0;
            for add in adds {
                let by_copy = self.by_copy(&mut shard, add, &gate, asks.is_some());
                match by_copy.map_or_else(|| shard.add(add, &gate, asks.is_some()), Ok) {
                    Ok(Taken::Answered) => {}
                    Ok(Taken::Asks) => asks.as_mut().expect("only asked for when allowed").push(taken),
                    Err(NoRoom) => break,
                }
                taken += 1;
            }
            taken
        };
        drop(grant);
        if taken < adds.len() {
            Counters::add(&self.counters.no_room, 1);
            // Either the group forming is full, and the next cut makes room; or all chunks are, and a flush does.
            if !self.pool.has_free(Lane::Normal) {
                self.want_freeze();
                self.wake_journals();
            }
        }
        self.wake_journal_of(index);
        taken
    }

    fn gate(&self) -> Gate<'_> {
        Gate {
            is_read_only: self.is_read_only.load(Ordering::Relaxed),
            takes_high_priority: self.takes_high_priority.load(Ordering::Relaxed),
            reserve: &self.recovery_reserve,
            refused: &self.recoveries_refused,
        }
    }

    /// The fate of an add that is here already, when there may be no room for it again.
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
        let canaries = self.config.canaries;
        match on_disk(&self.views, add.ledger, entry, otherwise, hidden_below, tiered, canaries) {
            OnDisk::Read(read) => Some(read),
            OnDisk::Refused(_) | OnDisk::Undurable(_) | OnDisk::Tiered(_) => None,
        }
    }

    /// Of an add that [`Engine::add_or_ask`] left with the caller: the copy on disk that may be what a recovery adds again,
    /// while there is no room for another one. When it is the same, byte by byte, [`Engine::confirm`] the add; else, and
    /// without one, offer it again. Adds of metadata's word have none.
    pub fn copy_on_disk(&self, add: &Add<'_>) -> Option<DiskRead> {
        let shard = self.shard(add.ledger).lock();
        match shard.copy_of(add, &self.gate()) {
            Copy::NotInMemory(found) => self.on_disk(add, found),
            Copy::Same | Copy::No => None,
        }
    }

    /// Acknowledges an add of a recovery for the copy of [`Engine::copy_on_disk`], which the caller compared. False when
    /// the ledger went meanwhile: offer the add again.
    pub fn confirm(&self, add: &Add<'_>) -> bool {
        let is_done = self.shard(add.ledger).lock().confirm(add);
        self.wake_journal_of(self.shard_of(add.ledger));
        is_done
    }

    /// Refuses adds that were not taken, all of them of ledgers of `shard`: answered through the sink, behind whatever
    /// was taken before.
    pub fn refuse(&self, shard: usize, adds: &[Add<'_>], refusal: Refusal) {
        self.shards[shard].lock().refuse(adds, refusal);
        self.wake_journal_of(shard);
    }

    /// Gives a grant for `adds`, which were not taken, or for as many of them as find room; first come, first served.
    /// Recovery adds bypass the queue.
    pub fn when_room(&self, shard: usize, adds: &[Add<'_>], waiter: RoomWaiter) {
        let cost = match self.config.admission {
            Admission::Bytes => adds.iter().map(|add| add.body.len() + OVERHEAD_BYTES).sum(),
            Admission::Writes(_) => adds.len(),
        };
        let is_urgent = adds.first().is_some_and(|add| add.is_recovery);
        // A grant that is worth nothing tries as any other add, and queues again.
        if let Some((oldest, grant)) = self.queues[shard].wait(cost, is_urgent, waiter) {
            oldest(grant);
        }
        // Room may have been made between the failed attempt and now: the next cut looks.
        self.wake_journal_of(shard);
    }

    /// Hands out the grants of the group that a shard begins now: a waiter woken without room would only try and fail.
    /// A flush that frees chunks wakes the journal threads, which ask again.
    pub(crate) fn give_grants(&self, shard: usize, into: &mut Vec<(RoomWaiter, AdmissionGrant)>) {
        // Before the room (admission_queue invariant 2); grants are given by this thread alone.
        let reserved = self.queues[shard].reserved();
        let (is_over, room, has_urgent_room) = {
            let shard = self.shards[shard].lock();
            let room =
                if shard.has_room() { shard.offered().saturating_sub(shard.formed() + reserved) } else { 0 };
            (shard.refuses_all(), room, shard.has_chunk(Lane::Recovery))
        };
        if is_over {
            self.queues[shard].let_all_go(into);
        } else {
            self.queues[shard].give_grants(room, has_urgent_room, into);
        }
    }

    /// Grants worth nothing for those that wait for room, when what they add is refused anyhow.
    pub(crate) fn let_ordinary_go(&self, shard: usize, into: &mut Vec<(RoomWaiter, AdmissionGrant)>) {
        self.queues[shard].let_ordinary_go(into);
    }

    /// True when somebody waits for room that there is in a shard of the journal.
    pub(crate) fn has_room_to_offer(&self, journal: usize) -> bool {
        self.shards_of(journal).any(|index| {
            let queue = &self.queues[index];
            if !queue.has_waiting() && !queue.has_urgent() {
                return false;
            }
            let shard = self.shards[index].lock();
            shard.refuses_all()
                || queue.has_urgent() && shard.has_chunk(Lane::Recovery)
                || queue.has_waiting() && shard.has_room() && queue.reserved() < shard.offered()
        })
    }

    /// Fences the ledger, known or not. The waiter fires with `Ok` when the fence is durable; only then may the
    /// request be answered, whether the entry it asks for exists or not (protocol reference, section 4.3).
    pub fn fence(&self, ledger: LedgerId, key: MasterKey, waiter: Waiter) {
        let mut shard = self.shard(ledger).lock();
        if shard.has_failed() {
            drop(shard);
            return self.fence_directly(ledger, key, waiter);
        }
        let answered = shard.fence(ledger, key, waiter);
        drop(shard);
        self.answer_or_wake(self.shard_of(ledger), answered);
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
        let is_read_only = self.is_read_only.load(Ordering::Relaxed);
        let answered = self.shard(ledger).lock().write_lac(ledger, key, lac, body, is_read_only, waiter);
        self.answer_or_wake(self.shard_of(ledger), answered);
    }

    /// Removes a ledger: from now on it reads as unknown and takes nothing, and once the waiter fires that outlives a
    /// power cut. Its space comes back with the collection of entry logs. For a ledger that metadata says is gone.
    pub fn remove_ledger(&self, ledger: LedgerId, waiter: Waiter) {
        let answered = self.shard(ledger).lock().remove(ledger, waiter);
        self.answer_or_wake(self.shard_of(ledger), answered);
    }

    /// When something was placed for a ledger last. Ask before the metadata that decides about a removal is read.
    pub fn changes(&self, ledger: LedgerId) -> Changes {
        self.shard(ledger).lock().changes(ledger)
    }

    /// As [`Engine::remove_ledger`], unless something was placed for the ledger since `seen`: somebody may have created
    /// it again under the same id, and what was acknowledged since is not to be lost. Then false, and the waiter is
    /// dropped uncalled.
    pub fn remove_unchanged(&self, ledger: LedgerId, seen: Changes, waiter: Waiter) -> bool {
        let answered = {
            let mut shard = self.shard(ledger).lock();
            if !shard.is_unchanged(ledger, seen) {
                return false;
            }
            shard.remove(ledger, waiter)
        };
        self.answer_or_wake(self.shard_of(ledger), answered);
        true
    }

    /// Lets a removed ledger exist again, empty, with the key and the fence it had. For a ledger that metadata says is
    /// to be held here after all. Any other ledger stays as it is.
    pub fn revive_ledger(&self, ledger: LedgerId, key: MasterKey, waiter: Waiter) {
        let answered = self.shard(ledger).lock().revive(ledger, key, waiter);
        self.answer_or_wake(self.shard_of(ledger), answered);
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
        let outcome = self.shard(ledger).lock().on_verdict(ledger, key, is_recovery, word);
        self.wake_journal_of(self.shard_of(ledger));
        outcome
    }

    /// Marks a ledger, known or not, as in limbo or as sound; the waiter fires when that is durable. Sound is one that
    /// holds, durably, every entry that it should hold.
    pub fn set_limbo(&self, ledger: LedgerId, is_limbo: bool, waiter: Waiter) {
        let answered = self.shard(ledger).lock().set_limbo(ledger, is_limbo, waiter);
        self.answer_or_wake(self.shard_of(ledger), answered);
    }

    /// The ledgers marked as in limbo, ascending.
    pub fn limbo_ledgers(&self) -> Vec<LedgerId> {
        let mut ledgers = Vec::new();
        for shard in &self.shards {
            shard.lock().limbo_ledgers(&mut ledgers);
        }
        ledgers.sort_unstable();
        ledgers
    }

    /// From now on only marked ledgers are in limbo: every one that needs it is marked, durably
    /// ([`EngineConfig::limbo_up_to`]).
    pub fn end_cover(&self) {
        for shard in &self.shards {
            shard.lock().cover_with_limbo(None);
        }
    }

    /// What is known of a ledger.
    pub fn presence(&self, ledger: LedgerId) -> LedgerPresence {
        self.shard(ledger).lock().presence(ledger)
    }

    /// The ledgers that exist here, ascending.
    pub fn ledgers(&self) -> Vec<LedgerId> {
        let mut ledgers = Vec::new();
        for shard in &self.shards {
            shard.lock().ledgers(&mut ledgers);
        }
        ledgers.sort_unstable();
        ledgers
    }

    /// The highest ledger that was ever here, also when it is gone.
    pub fn highest_ledger(&self) -> Option<LedgerId> {
        self.shards.iter().filter_map(|shard| shard.lock().highest_ledger()).max().max(self.highest_recovered)
    }

    /// Fires after a sync that covers every add of the ledger received before.
    pub fn force(&self, ledger: LedgerId, waiter: Waiter) {
        let answered = self.shard(ledger).lock().force(waiter);
        self.answer_or_wake(self.shard_of(ledger), answered);
    }

    /// Looks an entry up. Memory hits are returned; the rest says what to do next.
    pub fn read(&self, ledger: LedgerId, which: EntryRef) -> Result<Lookup, Refusal> {
        let index = self.shard_of(ledger);
        let shard = self.shards[index].lock();
        match shard.find(ledger, which)? {
            Found::Memory(body) => Ok(Lookup::Memory(body)),
            Found::OnDisk { entry, otherwise, hidden_below, tiered } => {
                let canaries = self.config.canaries;
                match on_disk(&self.views, ledger, entry, otherwise, hidden_below, tiered, canaries) {
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
            _ => self.shard_of(ledger) % self.views.len(),
        }
    }

    /// Number of ledger directories.
    pub fn directory_count(&self) -> usize {
        self.views.len()
    }

    /// Entries from `first` on, `count` at most, that are on disk, lie together there within `bytes_max` (the first
    /// whatever its length), and have no other copy anywhere: found at once, to be read at once. `None` whenever that
    /// is not so, or takes a wait that `patience` rules out, or fails: then [`Engine::read`] of each tells.
    pub fn read_run(
        &self,
        ledger: LedgerId,
        first: EntryId,
        count: u32,
        bytes_max: usize,
        patience: Patience,
    ) -> Option<FoundRun> {
        let last = EntryId::new(first.get().saturating_add(i64::from(count) - 1))?;
        let run = {
            let shard = self.shard(ledger).lock();
            let (last, hidden_below) = shard.absent_from_memory(ledger, first, last)?;
            sole_run(&self.views, ledger, (first, last), hidden_below)?
        };
        run.locate(bytes_max, patience).ok()
    }

    /// Fires when the point is durable, possibly at once; then read again.
    pub fn when_durable(&self, point: DurablePoint, waiter: Waiter) {
        let answered = self.shards[point.shard].lock().when_durable(point.sequence, waiter);
        self.answer_or_wake(point.shard, answered);
    }

    /// The highest LAC (last add confirmed) of durable entries and explicit LACs.
    pub fn last_add_confirmed(&self, ledger: LedgerId) -> Result<Option<EntryId>, Refusal> {
        self.shard(ledger).lock().last_add_confirmed(ledger)
    }

    /// The body of the last durable WRITE_LAC.
    pub fn explicit_lac(&self, ledger: LedgerId) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(self.shard(ledger).lock().explicit_lac(ledger)?.map(|body| body.to_vec()))
    }

    /// Asks to be told when the LAC moves beyond `previous`.
    pub fn poll_lac(
        &self,
        ledger: LedgerId,
        previous: Option<EntryId>,
        waiter: Waiter,
    ) -> Result<Poll, Refusal> {
        self.shard(ledger).lock().poll_lac(ledger, previous, waiter)
    }

    /// Takes a parked poll back; its waiter is dropped. False when it has fired already.
    pub fn cancel_poll(&self, ledger: LedgerId, poll: PollId) -> bool {
        self.shard(ledger).lock().cancel_poll(ledger, poll)
    }

    /// Every durable entry of a ledger, as runs, with those that were let go because they are in object storage. Blocks on the
    /// disk.
    pub fn list_entries(&self, ledger: LedgerId) -> Result<Vec<EntryRun>, Refusal> {
        Ok(self.list(ledger, false, RunSet::new(usize::MAX))?.expect("no limit"))
    }

    /// As [`Engine::list_entries`], in bounded memory: at most `2 * runs_max` runs, and the index records of one extent.
    /// `None` when there are more than `runs_max`.
    pub fn list_entries_within(
        &self,
        ledger: LedgerId,
        runs_max: usize,
    ) -> Result<Option<Vec<EntryRun>>, Refusal> {
        self.list(ledger, false, RunSet::new(runs_max))
    }

    /// As [`Engine::list_entries`], of the entries from `first` to `last`, also in limbo: what is here, not what should be.
    pub fn held_entries(
        &self,
        ledger: LedgerId,
        first: EntryId,
        last: EntryId,
    ) -> Result<Vec<EntryRun>, Refusal> {
        Ok(self.list(ledger, true, RunSet::within(first, last))?.expect("no limit"))
    }

    fn list(
        &self,
        ledger: LedgerId,
        with_limbo: bool,
        mut runs: RunSet,
    ) -> Result<Option<Vec<EntryRun>>, Refusal> {
        // Memory first: entries that a flush moves to disk in between are then seen twice, never missed.
        let hidden_below = self.shard(ledger).lock().cached_entries(ledger, with_limbo, &mut runs)?;
        entries_on_disk(&self.views, ledger, hidden_below, &mut runs)?;
        Ok(runs.finish())
    }

    /// True when normal adds to the ledger are refused.
    pub fn is_fenced(&self, ledger: LedgerId) -> bool {
        self.shard(ledger).lock().is_fenced(ledger)
    }

    /// True while adds without high priority are refused.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    /// Refuses or accepts adds without high priority.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Relaxed);
    }

    /// Whether adds with high priority pass while the engine is read-only (section 4.7). At first they do.
    pub fn set_takes_high_priority(&self, takes: bool) {
        self.takes_high_priority.store(takes, Ordering::Relaxed);
    }

    /// Bytes that recoveries may add from now on while no other adds are taken, because a volume is full: so that a
    /// ledger can be closed. At first only memory and the journals bound them.
    pub fn set_recovery_reserve(&self, bytes: u64) {
        self.recovery_reserve.set(bytes);
    }

    /// How each journal does. `now_ns` is the time of the clock that the engine was opened with.
    pub fn pulses(&self, now_ns: u64) -> Vec<JournalPulse> {
        self.pulses.iter().map(|pulse| pulse.read(now_ns)).collect()
    }

    /// Identifies the write of a journal that is under way, if there is one.
    pub(crate) fn write_under_way(&self, journal: usize) -> Option<NonZeroU64> {
        self.pulses[journal].write_under_way()
    }

    /// Asks for an empty group now and then while no other group is written, so that a journal that became slow is seen
    /// to be fast again.
    pub fn set_probing(&self, is_probing: bool) {
        // Repeated calls wake no journal: one that is woken more often than it takes to count as idle would neither
        // seal its last group nor write the groups requested here.
        let changed = self.pulses.iter().filter(|pulse| pulse.set_probing(is_probing)).count();
        if changed > 0 {
            self.wake_journals();
        }
    }

    /// State for operators.
    pub fn status(&self) -> Status {
        let failed = self.failed.lock().clone();
        Status {
            is_read_only: failed.is_some() || self.is_read_only.load(Ordering::Relaxed),
            takes_high_priority: failed.is_none() && self.takes_high_priority.load(Ordering::Relaxed),
            recovery_reserve_bytes: self.recovery_reserve.left(),
            recoveries_refused: self.recoveries_refused.load(Ordering::Relaxed),
            failed,
            waits_for_space: self.waits_for(Shortage::Space),
            waits_for_descriptor: self.waits_for(Shortage::Descriptors),
            directories_failed: self.directories_failed.lock().clone(),
            journal_sync: self.config.journal_sync,
        }
    }

    /// Counters and gauges.
    pub fn stats(&self) -> EngineStats {
        let logs: Vec<_> = self.views.iter().flat_map(|view| view.logs()).collect();
        let journals = self.journal_stats();
        let sum = |of: fn(&JournalStats) -> u64| journals.iter().map(of).sum();
        EngineStats {
            entry_logs: logs.len() as u64,
            entry_log_bytes: logs.iter().map(|log| log.size()).sum(),
            write_pool_chunks_in_use: self.pool.in_use() as u64,
            write_pool_chunks: self.pool.capacity() as u64,
            write_pool_chunk_bytes: self.pool.chunk_size() as u64,
            ledgers: self.shards.iter().map(|s| s.lock().ledger_count() as u64).sum(),
            journal_wakes: self.journals.iter().map(|journal| journal.signal.wakes()).sum(),
            ledgers_removed: self.shards.iter().map(|s| s.lock().removed_count() as u64).sum(),
            journal_bytes: sum(|journal| journal.record_bytes),
            journal_disk_bytes: sum(|journal| journal.written_bytes),
            journal_file_waits: sum(|journal| journal.file_waits),
            journal_file_wait_ns: sum(|journal| journal.file_wait_ns),
            ..self.counters.snapshot()
        }
    }

    /// By the number of the journal: what it wrote and what it occupies.
    pub fn journal_stats(&self) -> Vec<JournalStats> {
        self.journals.iter().map(|journal| journal.counts.read()).collect()
    }

    /// Who waits for room in the write pool, over all shards.
    pub fn admittance(&self) -> Admittance {
        let queues = self.queues.iter().map(|queue| queue.admittance());
        queues.fold(Admittance::default(), Admittance::and)
    }

    /// Number of runs of flushed entries whose extents are in memory, and of those that are found by the fences of their
    /// logs.
    pub fn index_runs(&self) -> (usize, usize) {
        let counts = self.views.iter().map(|view| view.run_counts());
        counts.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1))
    }

    /// The pools of the index and of the block cache.
    pub fn storage_memory(&self) -> &StorageMemory {
        &self.memory
    }

    /// Asks for a collection of space now, within a flush interval; while one is under way that does as much, for nothing.
    pub fn want_collection(&self, wanted: WantedCollection) {
        self.space.want(wanted);
    }

    /// As [`Engine::want_collection`], once the removals so far are in the state tables. Until then the entries that they hide
    /// count as live, so this asks for a flush too.
    pub fn want_collection_after_removals(&self, wanted: WantedCollection) {
        self.space.want_after_removals(wanted);
        self.want_freeze();
        self.wake_journals();
    }

    /// True while a requested collection has not begun.
    pub fn is_collection_wanted(&self) -> bool {
        self.space.is_wanted()
    }

    /// How the collection of space goes.
    pub fn space_status(&self) -> SpaceStatus {
        self.space.status()
    }

    /// Bytes and chunks of the active write caches, of all journals as of their last cuts.
    pub(crate) fn active(&self) -> (u64, u64) {
        let of = |journal: &JournalDesk| {
            (journal.active_bytes.load(Ordering::Relaxed), journal.active_chunks.load(Ordering::Relaxed))
        };
        self.journals.iter().map(of).fold((0, 0), |(b, c), (bytes, chunks)| (b + bytes, c + chunks))
    }

    /// The load of the write caches now.
    pub(crate) fn load(&self) -> Load {
        let mut load = Load { written: self.pacing.written.load(Ordering::Acquire), ..Load::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            load.active += shard.active_bytes();
            load.frozen += shard.frozen_bytes();
        }
        load
    }

    /// Asks for a check of all live logs now, within a flush interval. Returns the number of the request: it is answered
    /// when [`ScrubStatus::answered`] has reached it.
    pub fn want_scrub(&self) -> u64 {
        self.space.want_scrub()
    }

    /// How the scrub goes.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.space.scrub_status()
    }

    /// True when adds wait for room.
    pub(crate) fn adds_wait(&self) -> bool {
        self.queues.iter().any(|queue| queue.has_waiting() || queue.has_urgent())
    }

    /// A journal or a ledger directory failed: no shard takes adds any more, those of other journals neither. True
    /// when this is the first failure.
    pub(crate) fn fail(&self, reason: &str) -> bool {
        let is_first = self.latch(reason);
        for shard in &self.shards {
            shard.lock().refuse_adds();
        }
        // Waiters for room must be told.
        self.wake_journals();
        is_first
    }

    /// Keeps the first reason; true when this is it.
    fn latch(&self, reason: &str) -> bool {
        let mut failed = self.failed.lock();
        let is_first = failed.is_none();
        failed.get_or_insert_with(|| reason.to_owned());
        is_first
    }

    /// Somebody finds no space, or no file descriptor (or does again): until it does no add is taken, so that memory stays
    /// bounded, but for those of recoveries while it is space alone.
    pub(crate) fn wait_for(&self, who: Wanting, want: Option<(Shortage, String)>) {
        let mut waits = self.waits.lock();
        let before = waits_of(&waits);
        match want {
            Some((what, reason)) => {
                if waits.get(&who).is_none_or(|(before, _)| *before != what) {
                    let said = match what {
                        Shortage::Space => {
                            "no space on the disk: adds are refused, and it is tried again each second; delete ledgers, free something \
                             else there, or enlarge the volume"
                        }
                        Shortage::Descriptors => {
                            "no file descriptor: adds are refused, and it is tried again each second; raise ulimit -n (LimitNOFILE) \
                             if that does not pass"
                        }
                    };
                    tracing::warn!(reason, "{said}");
                }
                waits.insert(who, (what, reason));
            }
            None => {
                if let Some((what, _)) = waits.remove(&who) {
                    let over = match what {
                        Shortage::Space => "there is space again",
                        Shortage::Descriptors => "there are file descriptors again",
                    };
                    tracing::warn!("{over}: the write that waited for it is done");
                }
            }
        }
        let now = waits_of(&waits);
        if now == before {
            return;
        }
        for shard in &self.shards {
            shard.lock().set_waits(now);
        }
    }

    fn waits_for(&self, what: Shortage) -> Option<String> {
        let waits = self.waits.lock();
        waits.values().find(|(short, _)| *short == what).map(|(_, reason)| reason.clone())
    }

    /// Somebody finds no space, or no file descriptor.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waits.lock().is_empty()
    }

    /// One of several ledger directories failed.
    pub(crate) fn lose_directory(&self, index: usize, reason: String) {
        self.directories_failed.lock().insert(index, reason);
    }

    /// No ledger directory is left: what is added could never be flushed.
    pub(crate) fn lose_storage(&self, reason: &str) {
        self.is_storage_lost.store(true, Ordering::Release);
        self.fail(reason);
    }

    pub(crate) fn is_storage_lost(&self) -> bool {
        self.is_storage_lost.load(Ordering::Acquire)
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.failed.lock().is_some()
    }

    pub(crate) fn shard(&self, ledger: LedgerId) -> &Mutex<Shard> {
        &self.shards[self.shard_of(ledger)]
    }

    /// Called without the shard's lock: a waiter may do anything short.
    pub(crate) fn answer_or_wake(&self, shard: usize, answered: Option<(Waiter, Result<(), Refusal>)>) {
        match answered {
            Some((waiter, outcome)) => waiter(outcome),
            None => self.wake_journal_of(shard),
        }
    }
}
