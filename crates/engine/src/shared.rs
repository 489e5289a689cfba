//! State that requests, journals and flushes share: the shards, the view that readers have of each directory, and the state of
//! the engine as a whole.
//!
//! It is below all of them and knows none: [`crate::Engine`] is the face that requests see, `journaling` and `flushing` are the
//! steps of the threads.
//!
//! Lock order: shard, then log view. No lock is held across I/O.

use crate::admission_queue::{AdmissionGrant, AdmissionQueue, RoomWaiter};
use crate::api::{Answer, Refusal, Status, Waiter};
use crate::config::EngineConfig;
use crate::damage::DamageRegister;
use crate::direct_fence::DirectFences;
use crate::fault_log::FaultLog;
use crate::ingest_desk::IngestDesk;
use crate::journals::{JournalDesk, MarkVector};
use crate::ledger_budget::LedgerBudget;
use crate::pacing::Load;
use crate::pulse::{JournalPulse, PulseCounters};
use crate::shard::{Gate, Reserve, Shard, ShardConfig, Waits};
use crate::signal::Signal;
use crate::space_desk::SpaceDesk;
use crate::stats::Counters;
use crate::tier::TierBudget;
use bindery_io::chunk::{ChunkPool, Lane};
use bindery_io::{Clock, Shortage};
use bindery_storage::{LogMaker, LogView, StorageMemory, TierView};
use bindery_types::{LedgerId, MasterKey};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Progress of the flush, for the journal; and whether a stop hurries it.
#[derive(Default)]
pub(crate) struct PacingDesk {
    /// Bytes that the flush under way has written; 0 between flushes.
    pub(crate) written: AtomicU64,
    /// Freezes whose flush is not committed.
    pub(crate) flushes: AtomicU64,
    /// Flushes must not pause any more.
    pub(crate) is_hurried: AtomicBool,
}

/// A part of the engine that found no space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanting {
    Flush,
    Journal(usize),
}

/// Shards over the journals and the ledger directories.
pub(crate) struct Shared {
    config: EngineConfig,
    pool: ChunkPool,
    shards: Vec<Mutex<Shard>>,
    views: Vec<Arc<LogView>>,
    /// For each ledger directory, the view of the extents in object storage that its table has.
    tiers: Vec<Arc<TierView>>,
    tier_budget: Arc<TierBudget>,
    ledger_budget: Arc<LedgerBudget>,
    memory: StorageMemory,
    queues: Vec<Arc<AdmissionQueue>>,
    /// By the number of the journal.
    journals: Vec<JournalDesk>,
    /// The marks that every ledger directory has committed.
    covered: Mutex<MarkVector>,
    /// The generation that the next freeze gives to what comes after it: one count over all journals.
    next_generation: AtomicU64,
    is_read_only: AtomicBool,
    takes_high_priority: AtomicBool,
    /// Room for recoveries while no other adds are taken, and how many of their adds found none.
    recovery_reserve: Reserve,
    recoveries_refused: AtomicU64,
    failed: Mutex<Option<String>>,
    waits: Mutex<BTreeMap<Wanting, (Shortage, String)>>,
    directories_failed: Mutex<BTreeMap<usize, String>>,
    /// No ledger directory takes anything any more.
    is_storage_lost: AtomicBool,
    /// Ledger directories that are nearly full; empty when that is not known.
    full: Mutex<Vec<bool>>,
    /// Free bytes that flushes leave in each ledger directory; 0 where none were set.
    rewrite_room: Mutex<Vec<u64>>,
    /// Tickets that are neither flushed nor refused for good.
    tickets_out: AtomicUsize,
    direct_fences: DirectFences,
    /// Make entry logs beside the owner of each ledger directory.
    makers: Vec<LogMaker>,
    ingests: IngestDesk,
    /// Wakes the owner of the ledger directories.
    flush_signal: Arc<Signal>,
    counters: Counters,
    pacing: PacingDesk,
    /// The write counters of each journal.
    pulses: Vec<PulseCounters>,
    /// Sent to the completion thread and not delivered, of all journals.
    undelivered: Arc<AtomicUsize>,
    space: SpaceDesk,
    faults: Arc<FaultLog>,
    damage: Arc<DamageRegister>,
}

fn waits_of(waits: &BTreeMap<Wanting, (Shortage, String)>) -> Waits {
    let is_space = |(what, _): &(Shortage, String)| *what == Shortage::Space;
    match (waits.is_empty(), waits.values().all(is_space)) {
        (true, _) => Waits::No,
        (false, true) => Waits::ForSpace,
        (false, false) => Waits::ForDescriptors,
    }
}

impl Shared {
    pub(crate) fn new(
        config: EngineConfig,
        views: Vec<Arc<LogView>>,
        tiers: Vec<Arc<TierView>>,
        makers: Vec<LogMaker>,
        memory: StorageMemory,
        clock: Arc<dyn Clock>,
    ) -> Shared {
        let pool = ChunkPool::new(config.chunk_size(), config.chunk_count(), config.chunk_reserve());
        let tier_budget = TierBudget::new(config.tier_extents_bytes);
        let ledger_budget = LedgerBudget::new(memory.index.clone(), config.ledger_bytes_max);
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
                    ledger_budget: ledger_budget.clone(),
                    tier_budget: tier_budget.clone(),
                };
                Mutex::new(Shard::new(shard, pool.clone()))
            })
            .collect();
        let journals: Vec<JournalDesk> = config.journal_dirs.iter().map(|_| JournalDesk::new()).collect();
        let queue_of =
            |shard: usize| Arc::new(AdmissionQueue::new(journals[shard % journals.len()].signal.clone()));
        let damage = Arc::new(DamageRegister::new(&views));
        Shared {
            faults: Arc::new(FaultLog::new(clock, damage.clone())),
            damage,
            views,
            tiers,
            tier_budget,
            ledger_budget,
            memory,
            queues: (0..config.shard_count).map(queue_of).collect(),
            journals,
            covered: Mutex::default(),
            next_generation: AtomicU64::new(0),
            is_read_only: AtomicBool::new(false),
            takes_high_priority: AtomicBool::new(true),
            recovery_reserve: Reserve::unbounded(),
            recoveries_refused: AtomicU64::new(0),
            undelivered: Arc::default(),
            pulses: config.journal_dirs.iter().map(|_| PulseCounters::new(config.journal_slow)).collect(),
            failed: Mutex::new(None),
            waits: Mutex::default(),
            directories_failed: Mutex::default(),
            is_storage_lost: AtomicBool::new(false),
            full: Mutex::default(),
            rewrite_room: Mutex::default(),
            tickets_out: AtomicUsize::new(0),
            direct_fences: DirectFences::default(),
            makers,
            ingests: IngestDesk::default(),
            flush_signal: Arc::default(),
            counters: Counters::default(),
            pacing: PacingDesk::default(),
            space: SpaceDesk::default(),
            config,
            pool,
            shards,
        }
    }

    /// The budget for the memory of ledger states.
    pub(crate) fn ledger_budget(&self) -> &LedgerBudget {
        &self.ledger_budget
    }

    /// How the engine was configured.
    pub(crate) fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The write pool.
    pub(crate) fn pool(&self) -> &ChunkPool {
        &self.pool
    }

    pub(crate) fn shards(&self) -> &[Mutex<Shard>] {
        &self.shards
    }

    /// A shard by its number.
    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock()
    }

    /// The shard of a ledger.
    pub(crate) fn lock_of(&self, ledger: LedgerId) -> MutexGuard<'_, Shard> {
        self.lock(self.shard_of(ledger))
    }

    /// The admission queues, by shard.
    pub(crate) fn queues(&self) -> &[Arc<AdmissionQueue>] {
        &self.queues
    }

    /// Where reads say what they could not read.
    pub(crate) fn faults(&self) -> &Arc<FaultLog> {
        &self.faults
    }

    /// Copies of entries that are known to be damaged.
    pub(crate) fn damage(&self) -> &Arc<DamageRegister> {
        &self.damage
    }

    /// The view that readers have of each ledger directory.
    pub(crate) fn views(&self) -> &[Arc<LogView>] {
        &self.views
    }

    /// For each ledger directory, the view of the extents in object storage that its table has.
    pub(crate) fn tiers(&self) -> &[Arc<TierView>] {
        &self.tiers
    }

    /// Bounds the extents in memory.
    pub(crate) fn tier_budget(&self) -> &TierBudget {
        &self.tier_budget
    }

    /// The pools of the index and of the block cache.
    pub(crate) fn memory(&self) -> &StorageMemory {
        &self.memory
    }

    /// Answers of groups that were sent to the completion thread and are not delivered, of all journals.
    pub(crate) fn undelivered(&self) -> &Arc<AtomicUsize> {
        &self.undelivered
    }

    /// What is shared of the journals, by their number.
    pub(crate) fn journals(&self) -> &[JournalDesk] {
        &self.journals
    }

    /// For each journal, by its number, where its thread counts the groups it writes, slow ones apart, and notes the write under way.
    /// [`Shared::pulses`] reads them.
    pub(crate) fn pulse_counters(&self) -> &[PulseCounters] {
        &self.pulses
    }

    /// The marks that every ledger directory has committed.
    pub(crate) fn covered(&self) -> &Mutex<MarkVector> {
        &self.covered
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn pacing(&self) -> &PacingDesk {
        &self.pacing
    }

    /// Status of collection and scrub, and requests to them.
    pub(crate) fn space(&self) -> &SpaceDesk {
        &self.space
    }

    /// A ticket was made. It is out until it is flushed or refused for good.
    pub(crate) fn on_ticket_out(&self) {
        self.tickets_out.fetch_add(1, Ordering::AcqRel);
    }

    /// A ticket was flushed.
    pub(crate) fn on_ticket_flushed(&self) {
        self.tickets_out.fetch_sub(1, Ordering::AcqRel);
    }

    /// Some ticket is not flushed.
    pub(crate) fn is_ticket_out(&self) -> bool {
        self.tickets_out.load(Ordering::Acquire) > 0
    }

    /// Fences that wait for a commit to the state table, because the journal failed.
    pub(crate) fn direct_fences(&self) -> &DirectFences {
        &self.direct_fences
    }

    /// Makes entry logs in a ledger directory, beside its owner.
    pub(crate) fn maker(&self, directory: usize) -> &LogMaker {
        &self.makers[directory]
    }

    /// Ingests under way, and those that wait for their commit.
    pub(crate) fn ingests(&self) -> &IngestDesk {
        &self.ingests
    }

    /// Wakes the owner of the ledger directories.
    pub(crate) fn flush_signal(&self) -> &Arc<Signal> {
        &self.flush_signal
    }

    /// Queues a fence for a commit to the state table; refuses it if none will come.
    pub(crate) fn fence_directly(&self, ledger: LedgerId, key: MasterKey, waiter: Waiter) {
        let refused = match self.is_storage_lost() {
            true => Some(waiter),
            false => self.direct_fences.push(ledger, key, waiter),
        };
        if let Some(waiter) = refused {
            waiter(Err(Refusal::Io));
        }
    }

    /// The journal of a shard.
    pub(crate) fn journal_of(&self, shard: usize) -> usize {
        shard % self.journals.len()
    }

    /// The shards of a journal, ascending.
    pub(crate) fn shards_of(&self, journal: usize) -> impl Iterator<Item = usize> + use<> {
        (journal..self.shards.len()).step_by(self.journals.len())
    }

    /// Asks for a freeze and a flush of all shards soon.
    pub(crate) fn want_freeze(&self) {
        self.journals.iter().for_each(|journal| journal.is_freeze_wanted.store(true, Ordering::Release));
    }

    pub(crate) fn wake_journals(&self) {
        self.journals.iter().for_each(|journal| journal.signal.raise());
    }

    pub(crate) fn wake_journal_of(&self, shard: usize) {
        self.journals[self.journal_of(shard)].signal.raise();
    }

    /// Everything that is placed from now on is of this generation or a higher one.
    pub(crate) fn begin_generations(&self, first: u64) {
        self.next_generation.store(first + 1, Ordering::Release);
        for shard in &self.shards {
            shard.lock().begin_generation(first);
        }
    }

    /// Takes the next generation, which is for what is placed after a freeze.
    pub(crate) fn next_generation(&self) -> u64 {
        self.next_generation.fetch_add(1, Ordering::AcqRel)
    }

    /// Everything in a shard of this generation or a lower one is on disk, and no start replays it.
    pub(crate) fn flushed_generation(&self, shard: usize) -> u64 {
        self.journals[self.journal_of(shard)].flushed_generation.load(Ordering::Acquire)
    }

    /// The highest generation that was given out: none of what is placed has a higher one.
    pub(crate) fn newest_generation(&self) -> u64 {
        self.next_generation.load(Ordering::Acquire).saturating_sub(1)
    }

    /// Asks for a freeze and a flush of the shards of one journal.
    pub(crate) fn want_freeze_of(&self, shard: usize) {
        self.journals[self.journal_of(shard)].is_freeze_wanted.store(true, Ordering::Release);
        self.wake_journal_of(shard);
    }

    /// The ledger directory that entries of a shard go to: its own, or the next that did not fail and is not full. `None`: there is
    /// none.
    pub(crate) fn directory_with_room(&self, shard: usize) -> Option<usize> {
        let (full, failed) = (self.full_directories(), self.directories_failed.lock());
        let count = self.views.len();
        let has_room =
            |index: &usize| !failed.contains_key(index) && !full.get(*index).is_some_and(|is_full| *is_full);
        (0..count).map(|step| (shard + step) % count).find(has_room)
    }

    /// The shard of a ledger.
    pub(crate) fn shard_of(&self, ledger: LedgerId) -> usize {
        // Fibonacci hashing: neighbouring ids spread evenly, and the order of bits does not matter.
        let hash = (ledger.get() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(hash) * self.shards.len() as u128) >> 64) as usize
    }

    pub(crate) fn gate(&self) -> Gate<'_> {
        Gate {
            is_read_only: self.is_read_only.load(Ordering::Relaxed),
            takes_high_priority: self.takes_high_priority.load(Ordering::Relaxed),
            reserve: &self.recovery_reserve,
            refused: &self.recoveries_refused,
        }
    }

    /// Hands out the grants of the group that a shard begins now: a waiter woken without room would only try and fail.
    /// A flush that frees chunks wakes the journal threads, which ask again.
    pub(crate) fn give_grants(&self, shard: usize, into: &mut Vec<(RoomWaiter, AdmissionGrant)>) {
        // Before the room (admission_queue invariant 2); grants are given by this thread alone.
        let reserved = self.queues[shard].reserved();
        let (is_over, room, has_urgent_room) = {
            let shard = self.lock(shard);
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

    /// Gives grants of 0 to the ordinary adds that wait for room, when they are refused anyhow.
    pub(crate) fn let_ordinary_go(&self, shard: usize, into: &mut Vec<(RoomWaiter, AdmissionGrant)>) {
        self.queues[shard].let_ordinary_go(into);
    }

    /// True if adds wait for room in a shard of the journal that has some, or that refuses them.
    pub(crate) fn has_room_to_offer(&self, journal: usize) -> bool {
        self.shards_of(journal).any(|index| {
            let queue = &self.queues[index];
            if !queue.has_waiting() && !queue.has_urgent() {
                return false;
            }
            let shard = self.lock(index);
            shard.refuses_all()
                || queue.has_urgent() && shard.has_chunk(Lane::Recovery)
                || queue.has_waiting() && shard.has_room() && queue.reserved() < shard.offered()
        })
    }

    /// True while adds without high priority are refused.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Relaxed)
    }

    /// Refuses or accepts adds without high priority.
    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Relaxed);
    }

    /// Whether adds with high priority pass while the engine is read-only (section 4.7). At first they do.
    pub(crate) fn set_takes_high_priority(&self, takes: bool) {
        self.takes_high_priority.store(takes, Ordering::Relaxed);
    }

    /// Bytes that recoveries may add from now on while no other adds are taken, because a volume is full: so that a
    /// ledger can be closed. At first only memory and the journals bound them.
    pub(crate) fn set_recovery_reserve(&self, bytes: u64) {
        self.recovery_reserve.set(bytes);
    }

    /// How fast each journal writes. `now_ns` is the time of the clock that the engine was opened with.
    pub(crate) fn pulses(&self, now_ns: u64) -> Vec<JournalPulse> {
        let waits = self.journals.iter().map(|desk| desk.waits_for_file.load(Ordering::Relaxed));
        let pulses = self.pulses.iter().map(|pulse| pulse.read(now_ns));
        pulses.zip(waits).map(|(pulse, waits_for_file)| JournalPulse { waits_for_file, ..pulse }).collect()
    }

    /// Identifies the write of a journal that is under way, if there is one.
    pub(crate) fn write_under_way(&self, journal: usize) -> Option<NonZeroU64> {
        self.pulses[journal].write_under_way()
    }

    /// Asks for an empty group now and then while no other group is written, so that a journal that became slow is seen
    /// to be fast again.
    pub(crate) fn set_probing(&self, is_probing: bool) {
        // Repeated calls wake no journal: one that is woken more often than it takes to count as idle would neither
        // seal its last group nor write the groups requested here.
        let changed = self.pulses.iter().filter(|pulse| pulse.set_probing(is_probing)).count();
        if changed > 0 {
            self.wake_journals();
        }
    }

    /// State for operators.
    pub(crate) fn status(&self) -> Status {
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

    /// Bytes and chunks of the active write caches, of all journals as of their last cuts.
    pub(crate) fn active(&self) -> (u64, u64) {
        let of = |journal: &JournalDesk| {
            (journal.active_bytes.load(Ordering::Relaxed), journal.active_chunks.load(Ordering::Relaxed))
        };
        self.journals.iter().map(of).fold((0, 0), |(b, c), (bytes, chunks)| (b + bytes, c + chunks))
    }

    /// The load of the write caches now.
    pub(crate) fn load(&self) -> Load {
        let blocks_adds = !self.pool.has_free(Lane::Normal)
            || self.journals.iter().any(|journal| journal.waits_for_file.load(Ordering::Relaxed));
        let written = self.pacing.written.load(Ordering::Acquire);
        let mut load = Load { written, blocks_adds, ..Load::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            load.active += shard.active_bytes();
            load.frozen += shard.frozen_bytes();
        }
        load
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

    /// `who` lacks space or a file descriptor, with the reason; or lacks nothing any more (`None`). While anything is lacking no adds are
    /// taken, so that memory stays bounded, except those of recoveries while only space is lacking.
    pub(crate) fn wait_for(&self, who: Wanting, want: Option<(Shortage, String)>) {
        let mut waits = self.waits.lock();
        let before = waits_of(&waits);
        match want {
            Some((what, reason)) => {
                if waits.get(&who).is_none_or(|(before, _)| *before != what) {
                    let said = match what {
                        Shortage::Space => {
                            "no space left on the disk: adds are refused, retrying every second; delete ledgers, \
                             free other space there, or enlarge the volume"
                        }
                        Shortage::Descriptors => {
                            "out of file descriptors: adds are refused, retrying every second; raise ulimit -n \
                             (LimitNOFILE) if this persists"
                        }
                    };
                    tracing::warn!(reason, "{said}");
                }
                waits.insert(who, (what, reason));
            }
            None => {
                if let Some((what, _)) = waits.remove(&who) {
                    let over = match what {
                        Shortage::Space => "space is available again",
                        Shortage::Descriptors => "file descriptors are available again",
                    };
                    tracing::warn!("{over}: the write that was waiting is done");
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

    /// True while a flush or a journal waits for space or for a file descriptor.
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

    /// Call it without the shard's lock: the waiter may do anything that is short.
    pub(crate) fn answer_or_wake(&self, shard: usize, answered: Answer) {
        match answered {
            Answer::Now(waiter, outcome) => waiter(outcome),
            Answer::Later => self.wake_journal_of(shard),
        }
    }

    /// Directories that should get no entries, because they are nearly full; the others take theirs.
    pub(crate) fn set_full_directories(&self, full: &[bool]) {
        full.clone_into(&mut self.full.lock());
    }

    pub(crate) fn full_directories(&self) -> Vec<bool> {
        self.full.lock().clone()
    }

    /// Free bytes that flushes leave in each ledger directory.
    pub(crate) fn set_rewrite_room(&self, bytes: &[u64]) {
        bytes.clone_into(&mut self.rewrite_room.lock());
    }

    pub(crate) fn rewrite_room(&self, index: usize) -> u64 {
        self.rewrite_room.lock().get(index).copied().unwrap_or(0)
    }
}
