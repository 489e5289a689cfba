//! A shard: the ledgers that hash to it, its open journal chunk, and everything that waits for it.
//!
//! A synchronous state machine with `&mut self` entry points. In the binary a short mutex gives the order of calls, in
//! the simulator the scheduler does. No I/O, no clock, no thread.
//!
//! # Data flow
//! ```text
//! add, fence, write_lac -> record placed in the open chunk (sequence s) -> cut -> group written -> on_durable(s)
//!                                         |                                                         |
//!                                   write cache index                                    answers, polls, waiters
//! freeze (at a cut) -> Frozen -> flushed to an entry log -> drop_frozen
//! ```
//!
//! # Invariants
//! 1. An add is answered `Ok` only with the cut that holds its record, after that cut is durable.
//! 2. Check and insert of an add are one call: no fence comes between them (BookKeeper #4701).
//! 3. A fence waiter fires only when the fence record is durable; the fence bit is set when the record is placed, so
//!    every add placed before it has a lower sequence in the same journal.
//! 4. Answers to adds leave in the order in which the adds came, refusals included.
//! 5. A cut takes everything placed; there is never more than one cut in flight.
//! 6. What is not durable is not shown.
//! 7. A removed ledger answers nothing and takes nothing from the moment its removal is placed; its state stays, so
//!    that late writers meet it (BookKeeper #4462), until [`Shard::forget`]. It hides copies of lower generations only.
//!
//! # Limits
//! Bytes placed and not cut: `formed_bytes_max`, or what pacing offers, and one record more (a large one must not starve
//! behind small ones); fences and explicit LACs are not held back by it, recovery adds not by pacing. Parts of a cut: `parts_max`. Chunks: the pool.

mod direct;
mod limbo;
mod removal;
mod replay;

pub(crate) use direct::DirectStep;

use crate::api::{Add, AddDone, EntryRef, Poll, PollId, Refusal, Waiter};
use crate::config::Admission;
use crate::ledger::{LedgerState, ParkedPoll};
use crate::ledger_map::LedgerMap;
use crate::lookup::RunSet;
use crate::write_cache::{CacheRecord, Frozen};
use bindery_io::BLOCK_SIZE_BYTES;
use bindery_io::canary::{Canaries, Canary};
use bindery_io::chunk::{ChunkPool, ChunkSlice, Lane, OpenChunk};
use bindery_journal::Part;
use bindery_journal::record::{self, HEADER_SIZE_BYTES, Kind};
use bindery_storage::{IndexPool, IndexUse, LedgerRecord};
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// What a record of the write cache's index counts for.
const INDEX_RECORD_BYTES: usize = 64;

/// What a shard is made with.
#[derive(Clone)]
pub(crate) struct ShardConfig {
    pub(crate) index: u32,
    pub(crate) formed_bytes_max: usize,
    pub(crate) admission: Admission,
    /// Most parts in one cut, and one more that is still open.
    pub(crate) parts_max: usize,
    pub(crate) entry_bytes_max: usize,
    pub(crate) limbo_up_to: Option<LedgerId>,
    pub(crate) checked_up_to: Option<LedgerId>,
    pub(crate) canaries: Canaries,
    /// Charged for the states of ledgers.
    pub(crate) index_pool: Arc<IndexPool>,
}

/// No chunk, or no room in the group that is forming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// What became of an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Placed or refused: its answer leaves with a cut.
    Answered,
    /// Left with the caller, who asks metadata and then comes again ([`Shard::on_word`]).
    Asks,
}

/// Why an add is not placed.
enum Obstacle {
    Refused(Refusal),
    /// Metadata can say; the refusal holds where nobody asks it.
    Asks(Refusal),
}

/// What a shard gives to one group.
pub(crate) struct ShardCut {
    pub(crate) parts: Vec<Part>,
    /// Everything up to this sequence is in the cut.
    pub(crate) upto: u64,
    pub(crate) adds: Vec<AddDone>,
    /// Waiters of FORCE_LEDGER: they need a sync even when the journal does not.
    pub(crate) forces: Vec<Waiter>,
}

/// Where a look-up in memory ended.
pub(crate) enum Found {
    Memory(ChunkSlice),
    /// Not in memory; look on disk, and if it is not there either, `otherwise` holds.
    OnDisk {
        entry: EntryId,
        otherwise: Otherwise,
        /// Copies of a lower generation are those of a former life of the ledger.
        hidden_below: u64,
    },
}

/// What holds when no durable copy is found anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// It is not here.
    NoEntry,
    /// The ledger is in limbo.
    Unknown,
    /// A copy at this sequence is on its way to the disk; `in_limbo` as in [`Otherwise::Unknown`].
    Undurable { sequence: u64, in_limbo: bool },
}

struct Placed {
    sequence: u64,
    chunk: u32,
    offset: u32,
    length: u32,
    crc32c: u32,
}

/// In boxes: a map has room for up to twice what is in it.
type Ledgers = LedgerMap<Box<LedgerState>>;

pub(crate) struct Shard {
    config: ShardConfig,
    pool: ChunkPool,
    ledgers: Ledgers,
    open: Option<OpenChunk>,
    /// Start of what is placed in the open chunk and not cut.
    part_start: usize,
    part_records: u32,
    part_headers_crc: u32,
    /// Parts of chunks that filled up since the last cut.
    parts: Vec<Part>,
    formed_bytes: usize,
    formed_records: usize,
    /// Bytes that ordinary adds may place until the next cut: at most `formed_bytes_max`.
    offered_bytes: usize,
    /// What ordinary adds of the batch under way may make `formed` at most; see [`Shard::admit`].
    admitted: usize,
    /// Last sequence placed, taken by a cut, durable.
    sequence: u64,
    cut: u64,
    durable: u64,
    adds: Vec<AddDone>,
    waiters: Vec<(u64, Waiter)>,
    forces: Vec<Waiter>,
    /// Ledgers with parked polls whose LAC rose, or may become visible, since polls were last looked at: a finished
    /// group visits only these.
    raised: BTreeSet<LedgerId>,
    next_poll: u64,
    /// Full chunks of the active write cache.
    chunks: Vec<ChunkSlice>,
    cached_records: usize,
    /// Bytes of the records in the active write cache.
    cached_bytes: usize,
    dirty: Vec<LedgerId>,
    /// The one that the active write cache will have on disk.
    generation: u64,
    /// Removed and remembered.
    removed: BTreeSet<LedgerId>,
    /// Dropped here, and still in a table, perhaps for good: the commits that forget them are under way.
    forgetting: BTreeMap<LedgerId, LedgerRecord>,
    /// Charged to the index pool.
    charged: u64,
    /// Of all that ever changed here.
    highest_ledger: Option<LedgerId>,
    /// Every ledger up to it is in limbo.
    limbo_up_to: Option<LedgerId>,
    /// Metadata spoke for their writers since the start.
    vouched: BTreeSet<LedgerId>,
    /// Oldest first.
    frozen: Vec<Arc<Frozen>>,
    /// The journal failed.
    is_failed: bool,
    /// Ledger storage failed: what is added could never be flushed. Fences still go to the journal.
    refuses_adds: bool,
    /// A flush or the journal found no space: as `refuses_adds`, until it does.
    waits_for_space: bool,
    is_replaying: bool,
    /// Adds between check and insert: the M13 canary only.
    apart: Vec<(AddDone, Option<EntryId>, MasterKey, Vec<u8>)>,
}

impl Shard {
    pub(crate) fn new(config: ShardConfig, pool: ChunkPool) -> Shard {
        let config_offer = config.formed_bytes_max;
        Shard {
            limbo_up_to: config.limbo_up_to,
            vouched: BTreeSet::new(),
            config,
            pool,
            ledgers: Ledgers::default(),
            open: None,
            part_start: 0,
            part_records: 0,
            part_headers_crc: 0,
            parts: Vec::new(),
            formed_bytes: 0,
            formed_records: 0,
            offered_bytes: config_offer,
            admitted: usize::MAX,
            sequence: 0,
            cut: 0,
            durable: 0,
            adds: Vec::new(),
            waiters: Vec::new(),
            forces: Vec::new(),
            raised: BTreeSet::new(),
            next_poll: 0,
            chunks: Vec::new(),
            cached_records: 0,
            cached_bytes: 0,
            dirty: Vec::new(),
            generation: 1,
            removed: BTreeSet::new(),
            forgetting: BTreeMap::new(),
            charged: 0,
            highest_ledger: None,
            frozen: Vec::new(),
            is_failed: false,
            refuses_adds: false,
            waits_for_space: false,
            is_replaying: false,
            apart: Vec::new(),
        }
    }

    // ---- requests ----------------------------------------------------------------------------------------------

    /// Checks and places one add. Its answer leaves with a cut, whatever it is, unless it must be asked for and
    /// `may_ask`; `NoRoom` leaves no trace.
    pub(crate) fn add(&mut self, add: &Add<'_>, is_read_only: bool, may_ask: bool) -> Result<Taken, NoRoom> {
        let done = AddDone::of(add, Ok(()));
        match self.check_add(add, is_read_only) {
            Ok(()) => {}
            Err(Obstacle::Asks(_)) if may_ask => return Ok(Taken::Asks),
            Err(Obstacle::Asks(refusal) | Obstacle::Refused(refusal)) => {
                self.adds.push(AddDone { result: Err(refusal), ..done });
                return Ok(Taken::Answered);
            }
        }
        if self.config.canaries.has(Canary::M13FenceCheckApart) {
            self.apart.push((done, add.last_add_confirmed, add.key, add.body.to_vec()));
            return Ok(Taken::Answered);
        }
        let lane = if add.is_recovery { Lane::Recovery } else { Lane::Normal };
        self.insert(&done, add.last_add_confirmed, add.key, add.body, lane)?;
        Ok(Taken::Answered)
    }

    /// Refuses adds that are not placed. Their answers leave with a cut, behind those of older ones (invariant 4).
    pub(crate) fn refuse(&mut self, adds: &[Add<'_>], refusal: Refusal) {
        self.adds.extend(adds.iter().map(|add| AddDone::of(add, Err(refusal))));
    }

    fn check_add(&self, add: &Add<'_>, is_read_only: bool) -> Result<(), Obstacle> {
        let refused = |refusal| Err(Obstacle::Refused(refusal));
        if self.takes_no_adds() || (is_read_only && !add.is_high_priority) {
            return refused(Refusal::ReadOnly);
        }
        if add.body.len() > self.config.entry_bytes_max || add.body.len() < record::ENTRY_BODY_MIN {
            return refused(Refusal::BadRequest);
        }
        let state = self.ledgers.get(&add.ledger);
        if let Some(state) = state {
            let is_fenced = state.fence.is_some() && !add.is_recovery;
            if state.is_removed() {
                return if is_fenced {
                    refused(Refusal::Fenced)
                } else {
                    Err(Obstacle::Asks(Refusal::Fenced))
                };
            }
            if !state.accepts(&add.key) {
                return refused(Refusal::WrongKey);
            }
            if is_fenced {
                return refused(Refusal::Fenced);
            }
        }
        if !add.is_recovery && self.needs_word(add.ledger, state.map(|state| &**state)) {
            return Err(Obstacle::Asks(Refusal::Unknown));
        }
        Ok(())
    }

    fn insert(
        &mut self,
        done: &AddDone,
        last_add_confirmed: Option<EntryId>,
        key: MasterKey,
        body: &[u8],
        lane: Lane,
    ) -> Result<(), NoRoom> {
        let ledger = done.ledger;
        if self.ledgers.get(&ledger).is_none_or(|state| state.needs_key(&key)) {
            self.place(Kind::LedgerKey, &[&ledger.get().to_be_bytes(), key.as_bytes()], lane)?;
            self.ledgers.entry(ledger).or_insert_with(|| LedgerState::boxed(None)).key = Some(key);
            self.mark_dirty(ledger);
        }
        let placed = self.place(Kind::Entry, &[body], lane)?;
        self.index_entry(ledger, done.entry, last_add_confirmed, placed);
        self.adds.push(*done);
        Ok(())
    }

    /// Fences a ledger, known or not. The waiter fires when that is durable; `Some` gives it back with an answer that
    /// is known at once.
    #[must_use]
    pub(crate) fn fence(
        &mut self,
        ledger: LedgerId,
        key: MasterKey,
        waiter: Waiter,
    ) -> Option<(Waiter, Result<(), Refusal>)> {
        let state = self.ledgers.get(&ledger);
        if state.is_some_and(|s| !s.accepts(&key)) {
            return Some((waiter, Err(Refusal::WrongKey)));
        }
        if let Some(state) = state
            && let Some(sequence) = state.fence
        {
            let sequence = if state.is_removed() { sequence.max(state.removed_at) } else { sequence };
            return self.when_durable(sequence, waiter);
        }
        if self.is_failed {
            return Some((waiter, Err(Refusal::Io)));
        }
        if state.is_some_and(|state| state.is_removed()) {
            return self.place_removal(ledger, true, waiter);
        }
        let ledger_bytes = ledger.get().to_be_bytes();
        let placed = if self.config.canaries.has(Canary::M4FenceWithoutKey) {
            self.place(Kind::FenceWithoutKey, &[&ledger_bytes], Lane::Reserved)
        } else {
            self.place(Kind::Fence, &[&ledger_bytes, key.as_bytes()], Lane::Reserved)
        };
        let Ok(placed) = placed else { return Some((waiter, Err(Refusal::TooManyRequests))) };
        let state = self.ledgers.entry(ledger).or_insert_with(|| LedgerState::boxed(None));
        if state.needs_key(&key) {
            state.key = Some(key);
        }
        state.fence = Some(placed.sequence);
        // Tailing readers learn of it when it is durable; those that come later wait as on any ledger (section 2.6).
        if !state.polls.is_empty() {
            state.wake_polls_at = Some(placed.sequence);
            self.raised.insert(ledger);
        }
        let is_empty = state.last_entry.placed() < 0;
        self.mark_dirty(ledger);
        if is_empty && self.config.canaries.has(Canary::M3NegativeFenceBeforeDurable) {
            return Some((waiter, Ok(())));
        }
        self.waiters.push((placed.sequence, waiter));
        None
    }

    /// A record with this key was placed: the ledger exists, and the key is its own.
    fn index_key(&mut self, ledger: LedgerId, key: MasterKey) {
        let state = self.exists(ledger);
        if state.needs_key(&key) {
            state.key = Some(key);
        }
        self.mark_dirty(ledger);
    }

    /// The state of a ledger of which a record was just placed: known, and not removed any more.
    fn exists(&mut self, ledger: LedgerId) -> &mut LedgerState {
        self.removed.remove(&ledger);
        let state = self.ledgers.entry(ledger).or_insert_with(|| LedgerState::boxed(None));
        state.revive();
        state
    }

    /// Stores an explicit LAC (last add confirmed). Allowed on a fenced ledger; creates an unknown one.
    #[must_use]
    pub(crate) fn write_lac(
        &mut self,
        ledger: LedgerId,
        key: MasterKey,
        lac: Option<EntryId>,
        body: &[u8],
        is_read_only: bool,
        waiter: Waiter,
    ) -> Option<(Waiter, Result<(), Refusal>)> {
        if self.takes_no_adds() || is_read_only {
            return Some((waiter, Err(Refusal::ReadOnly)));
        }
        if body.len() > self.config.entry_bytes_max {
            return Some((waiter, Err(Refusal::BadRequest)));
        }
        if let Some(state) = self.ledgers.get(&ledger) {
            if state.is_removed() {
                return Some((waiter, Err(Refusal::NoLedger)));
            }
            if !state.accepts(&key) {
                return Some((waiter, Err(Refusal::WrongKey)));
            }
        }
        let pieces: [&[u8]; 3] = [&ledger.get().to_be_bytes(), key.as_bytes(), body];
        let Ok(placed) = self.place(Kind::ExplicitLac, &pieces, Lane::Reserved) else {
            return Some((waiter, Err(Refusal::TooManyRequests)));
        };
        self.index_explicit_lac(ledger, key, lac, body.into(), placed.sequence);
        self.waiters.push((placed.sequence, waiter));
        None
    }

    /// Fires after a sync that covers everything placed so far.
    #[must_use]
    pub(crate) fn force(&mut self, waiter: Waiter) -> Option<(Waiter, Result<(), Refusal>)> {
        if self.is_failed {
            return Some((waiter, Err(Refusal::Io)));
        }
        self.forces.push(waiter);
        None
    }

    /// Parks a waiter until `sequence` is durable; gives it back when it is, or never will be.
    #[must_use]
    pub(crate) fn when_durable(
        &mut self,
        sequence: u64,
        waiter: Waiter,
    ) -> Option<(Waiter, Result<(), Refusal>)> {
        if sequence <= self.durable {
            return Some((waiter, Ok(())));
        }
        if self.is_failed {
            return Some((waiter, Err(Refusal::Io)));
        }
        self.waiters.push((sequence, waiter));
        None
    }

    /// Parks a waiter until the LAC shown is above `previous`.
    pub(crate) fn poll_lac(
        &mut self,
        ledger: LedgerId,
        previous: Option<EntryId>,
        waiter: Waiter,
    ) -> Result<Poll, Refusal> {
        let durable = self.durable;
        self.sound(ledger)?;
        let state = self.ledgers.get_mut(&ledger).expect("a sound ledger is known");
        let previous = EntryId::to_wire(previous);
        if state.last_add_confirmed.shown(durable) > previous {
            return Ok(Poll::Ready);
        }
        self.next_poll += 1;
        let id = PollId(self.next_poll);
        state.polls.push(ParkedPoll { id, previous, waiter });
        if state.last_add_confirmed.placed() > previous {
            self.raised.insert(ledger);
        }
        Ok(Poll::Parked(id))
    }

    /// Takes a parked poll back; its waiter is dropped. False when it has fired.
    pub(crate) fn cancel_poll(&mut self, ledger: LedgerId, id: PollId) -> bool {
        let Some(state) = self.ledgers.get_mut(&ledger) else { return false };
        let before = state.polls.len();
        state.polls.retain(|p| p.id != id);
        state.polls.len() < before
    }

    // ---- look-ups ----------------------------------------------------------------------------------------------

    /// Looks for a durable copy in memory.
    pub(crate) fn find(&self, ledger: LedgerId, which: EntryRef) -> Result<Found, Refusal> {
        let state = self.live(ledger)?;
        let is_limbo = self.is_limbo(ledger, state);
        let entry = match which {
            EntryRef::At(entry) => entry,
            EntryRef::Last if is_limbo => return Err(Refusal::Unknown),
            EntryRef::Last => EntryId::new(state.last_entry.shown(self.durable)).ok_or(Refusal::NoEntry)?,
        };
        let active = state.records.find(entry.get(), self.durable);
        if let Some(record) = active.durable {
            return Ok(Found::Memory(self.body(&record)));
        }
        let mut undurable = active.undurable;
        for frozen in self.frozen.iter().rev().filter(|frozen| frozen.generation >= state.hidden_below) {
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
        Ok(Found::OnDisk { entry, otherwise, hidden_below: state.hidden_below })
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
        let frozen = self.frozen.iter().filter_map(|frozen| frozen.records.get(&ledger));
        let copies = frozen.chain([&state.records]);
        let nearest = copies.filter_map(|records| records.first_within(first.get(), last.get())).min();
        match nearest.filter(|_| !self.config.canaries.has(Canary::M37OlderCopiesTogether)) {
            None => Some((last, state.hidden_below)),
            Some(entry) if entry > first.get() => Some((EntryId::new(entry - 1)?, state.hidden_below)),
            Some(_) => None,
        }
    }

    fn live(&self, ledger: LedgerId) -> Result<&LedgerState, Refusal> {
        let state = self.ledgers.get(&ledger).filter(|state| !state.is_removed());
        state.map(|state| &**state).ok_or_else(|| self.absence(ledger))
    }

    fn body(&self, record: &CacheRecord) -> ChunkSlice {
        let range = record.offset as usize..record.offset as usize + record.length as usize;
        match self.chunks.get(record.chunk as usize) {
            Some(chunk) => chunk.slice(range),
            None => self.open.as_ref().expect("a record's chunk is full or open").slice(range),
        }
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

    /// Adds the durable entries in memory to `runs`. Returns the generation below which copies on disk do not count;
    /// `Unknown` for a ledger in limbo, unless `with_limbo`.
    pub(crate) fn cached_entries(
        &self,
        ledger: LedgerId,
        with_limbo: bool,
        runs: &mut RunSet,
    ) -> Result<u64, Refusal> {
        let state = if with_limbo { self.live(ledger)? } else { self.sound(ledger)? };
        let frozen = self.frozen.iter().filter(|f| f.generation >= state.hidden_below);
        let frozen = frozen.filter_map(|f| f.records.get(&ledger));
        for records in frozen.chain([&state.records]) {
            runs.extend(records.durable_entries(self.durable).filter_map(EntryId::new));
        }
        Ok(state.hidden_below)
    }

    pub(crate) fn is_fenced(&self, ledger: LedgerId) -> bool {
        self.ledgers.get(&ledger).is_some_and(|s| s.fence.is_some() || s.is_removed())
    }

    pub(crate) fn ledger_count(&self) -> usize {
        self.ledgers.len() - self.removed.len()
    }

    // ---- the journal's side ------------------------------------------------------------------------------------

    /// True when a cut would hold something.
    pub(crate) fn has_work(&self) -> bool {
        self.formed_bytes > 0 || !self.adds.is_empty() || !self.forces.is_empty() || !self.apart.is_empty()
    }

    /// Most bytes that a cut would take in a group: of records, and for each part a block of alignment.
    pub(crate) fn cut_bytes_max(&self) -> u64 {
        if self.formed_bytes == 0 {
            return 0;
        }
        (self.formed_bytes + (self.parts.len() + 1) * 2 * BLOCK_SIZE_BYTES) as u64
    }

    /// True when an entry of any size would find its place after a cut.
    pub(crate) fn has_room(&self) -> bool {
        self.refuses_all() || (self.offered_bytes > 0 && self.has_chunk(Lane::Normal))
    }

    /// True when an entry of any size would find a chunk.
    pub(crate) fn has_chunk(&self, lane: Lane) -> bool {
        let largest = self.config.entry_bytes_max + HEADER_SIZE_BYTES;
        self.pool.has_free(lane) || self.open.as_ref().is_some_and(|open| open.remaining() >= largest)
    }

    /// What has formed, in what admission counts.
    pub(crate) fn formed(&self) -> usize {
        match self.config.admission {
            Admission::Bytes => self.formed_bytes,
            Admission::Writes(_) => self.formed_records,
        }
    }

    /// What ordinary adds may place until the next cut, in what admission counts.
    pub(crate) fn offered(&self) -> usize {
        match self.config.admission {
            Admission::Bytes => self.offered_bytes,
            Admission::Writes(most) => most,
        }
    }

    /// Before a batch: with a turn it may place what that is worth, without one what is neither formed nor reserved.
    pub(crate) fn admit(&mut self, turn: Option<usize>, reserved: usize) {
        self.admitted = match turn {
            Some(cost) => self.formed() + cost,
            None => self.offered().saturating_sub(reserved),
        };
    }

    /// True when adds are refused, so that nobody has to wait for room.
    pub(crate) fn refuses_all(&self) -> bool {
        self.takes_no_adds()
    }

    /// Sets what ordinary adds may place until the next cut. Recovery adds and fences do not see it.
    pub(crate) fn offer(&mut self, bytes: usize) {
        self.offered_bytes = bytes.min(self.config.formed_bytes_max);
    }

    /// Takes everything placed since the last cut (invariant 5).
    pub(crate) fn cut(&mut self) -> ShardCut {
        debug_assert!(self.cut == self.durable || self.is_failed, "one cut in flight");
        for (done, lac, key, body) in std::mem::take(&mut self.apart) {
            if self.insert(&done, lac, key, &body, Lane::Reserved).is_err() {
                self.adds.push(AddDone { result: Err(Refusal::TooManyRequests), ..done });
            }
        }
        self.close_part();
        self.cut = self.sequence;
        (self.formed_bytes, self.formed_records) = (0, 0);
        self.charge_ledgers();
        ShardCut {
            parts: std::mem::take(&mut self.parts),
            upto: self.sequence,
            adds: std::mem::take(&mut self.adds),
            forces: std::mem::take(&mut self.forces),
        }
    }

    /// The group that held the cut up to `upto` is durable. Returns the waiters and polls to fire.
    pub(crate) fn on_durable(&mut self, upto: u64) -> Vec<Waiter> {
        assert!(upto == self.cut && upto >= self.durable, "durable {upto}, cut {}", self.cut);
        self.durable = upto;
        let (ready, parked): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiters).into_iter().partition(|(sequence, _)| *sequence <= upto);
        self.waiters = parked;
        let mut fired: Vec<Waiter> = ready.into_iter().map(|(_, waiter)| waiter).collect();
        let ledgers = &mut self.ledgers;
        self.raised.retain(|ledger| {
            let state = ledgers.get_mut(ledger).expect("a polled ledger is known");
            let shown = state.last_add_confirmed.shown(upto);
            let is_fenced_now = state.wake_polls_at.take_if(|fence| *fence <= upto).is_some();
            let (ready, parked): (Vec<_>, Vec<_>) =
                state.polls.take().into_iter().partition(|p| is_fenced_now || p.previous < shown);
            state.polls = parked.into();
            fired.extend(ready.into_iter().map(|p| p.waiter));
            let may_follow = state.last_add_confirmed.placed() > shown || state.wake_polls_at.is_some();
            !state.polls.is_empty() && may_follow
        });
        fired
    }

    /// The journal failed: nothing that is not durable will ever be. Returns what waits, to be refused.
    pub(crate) fn fail(&mut self) -> (Vec<AddDone>, Vec<Waiter>) {
        // Once: nothing is placed after it, so later refusals find nothing to forget.
        if !std::mem::replace(&mut self.is_failed, true) {
            let durable = self.durable;
            self.ledgers.values_mut().for_each(|state| state.forget_above(durable));
        }
        self.parts.clear();
        self.formed_bytes = 0;
        self.part_start = self.open.as_ref().map_or(0, OpenChunk::len);
        (self.part_records, self.part_headers_crc) = (0, 0);
        self.apart.clear();
        let waiters = std::mem::take(&mut self.waiters).into_iter().map(|(_, w)| w);
        let waiters = waiters.chain(std::mem::take(&mut self.forces)).collect();
        (std::mem::take(&mut self.adds), waiters)
    }

    /// True when the journal failed: nothing can be placed any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.is_failed
    }

    fn takes_no_adds(&self) -> bool {
        self.is_failed || self.refuses_adds || self.waits_for_space
    }

    /// Takes no adds and explicit LACs while somebody waits for space.
    pub(crate) fn set_waits_for_space(&mut self, waits: bool) {
        self.waits_for_space = waits;
    }

    /// Ledger storage failed: takes no adds and explicit LACs any more.
    pub(crate) fn refuse_adds(&mut self) {
        self.refuses_adds = true;
    }

    // ---- the flush's side --------------------------------------------------------------------------------------

    /// Takes the active write cache out, right after a cut: the group of that cut is its boundary. `None` when
    /// nothing changed since the last freeze. What comes after it has the generation `next`.
    pub(crate) fn freeze(&mut self, next: u64) -> Option<Arc<Frozen>> {
        debug_assert_eq!(self.sequence, self.cut, "a freeze follows a cut");
        let generation = self.generation;
        debug_assert!(next > generation, "generations ascend");
        self.generation = next;
        if self.dirty.is_empty() {
            return None;
        }
        self.seal_open_chunk();
        let mut records = HashMap::new();
        let mut states: Vec<LedgerRecord> = Vec::with_capacity(self.dirty.len());
        for ledger in std::mem::take(&mut self.dirty) {
            let state = self.ledgers.get_mut(&ledger).expect("a dirty ledger is known");
            state.is_dirty = false;
            // Whether the tables forget it is not known yet, and this may be all that a crash leaves of the ledger.
            if let Some(record) = self.forgetting.remove(&ledger) {
                state.outlive(&record);
            }
            states.push(state.snapshot(ledger));
            if !state.records.is_empty() {
                records.insert(ledger, std::mem::take(&mut state.records));
            }
        }
        states.sort_unstable_by_key(|s| s.ledger);
        let bytes = self.active_bytes();
        (self.cached_records, self.cached_bytes) = (0, 0);
        let chunks = std::mem::take(&mut self.chunks);
        let frozen = Arc::new(Frozen { generation, chunks, records, bytes, states });
        self.frozen.push(frozen.clone());
        Some(frozen)
    }

    /// The ledgers of a flushed cache go to rest, as far as they are not written to any more. Call it with some at a time.
    pub(crate) fn rest(&mut self, flushed: &[LedgerRecord]) {
        let durable = self.durable;
        for record in flushed {
            if let Some(state) = self.ledgers.get_mut(&record.ledger) {
                state.rest(durable);
            }
        }
    }

    /// Charges the index pool for the ledgers there are now.
    pub(super) fn charge_ledgers(&mut self) {
        let slots = self.ledgers.capacity() * (size_of::<(LedgerId, Box<LedgerState>)>() + 1);
        let removed = self.removed.len() * size_of::<LedgerId>() * 2;
        let now = (slots + removed + self.ledgers.len() * LedgerState::BYTES) as u64;
        let before = std::mem::replace(&mut self.charged, now);
        self.config.index_pool.charge(IndexUse::Ledgers, now.saturating_sub(before));
        self.config.index_pool.release(IndexUse::Ledgers, before.saturating_sub(now));
    }

    /// The cache that must be flushed next.
    pub(crate) fn oldest_frozen(&self) -> Option<&Arc<Frozen>> {
        self.frozen.first()
    }

    /// The flush of the oldest frozen cache is committed and its entries can be found on disk.
    pub(crate) fn drop_frozen(&mut self, frozen: &Arc<Frozen>) {
        let oldest = self.frozen.first().expect("a flushed cache was frozen");
        assert!(Arc::ptr_eq(oldest, frozen), "caches are flushed in order");
        self.frozen.remove(0);
    }

    /// Chunks in the active write cache.
    pub(crate) fn active_chunks(&self) -> usize {
        self.chunks.len() + usize::from(self.open.is_some())
    }

    /// Bytes of the active write cache. Charged at 64 bytes, a record of the index and its share of growth counts like
    /// entry bytes.
    pub(crate) fn active_bytes(&self) -> u64 {
        (self.cached_bytes + self.cached_records * INDEX_RECORD_BYTES) as u64
    }

    /// Bytes of the frozen write caches.
    pub(crate) fn frozen_bytes(&self) -> u64 {
        self.frozen.iter().map(|frozen| frozen.bytes).sum()
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    // ---- placing -----------------------------------------------------------------------------------------------

    /// Copies a record into the open chunk: the one copy of an entry.
    fn place(&mut self, kind: Kind, pieces: &[&[u8]], lane: Lane) -> Result<Placed, NoRoom> {
        let length: usize = pieces.iter().map(|p| p.len()).sum();
        let size = HEADER_SIZE_BYTES + length;
        let is_full = match lane {
            Lane::Normal => self.formed() >= self.admitted,
            Lane::Recovery => self.formed_bytes >= self.config.formed_bytes_max,
            Lane::Reserved => false,
        };
        if is_full {
            return Err(NoRoom);
        }
        if self.open.as_ref().is_none_or(|open| open.remaining() < size) {
            if self.parts.len() + 1 >= self.config.parts_max {
                return Err(NoRoom);
            }
            let next = self.pool.take(lane).ok_or(NoRoom)?;
            assert!(size <= next.remaining(), "a chunk holds the largest record");
            self.seal_open_chunk();
            self.open = Some(next);
        }
        let open = self.open.as_mut().expect("a chunk was opened");
        let (mut header, mut crc) = ([0; HEADER_SIZE_BYTES], 0);
        let start = open.append(size, |target| (header, crc) = record::encode(target, kind, pieces));
        self.sequence += 1;
        self.cached_bytes += size;
        if self.is_replaying {
            (self.cut, self.durable) = (self.sequence, self.sequence);
            self.part_start = start + size;
        } else {
            self.part_records += 1;
            self.part_headers_crc = record::fold_header(self.part_headers_crc, &header);
            self.formed_bytes += size;
            self.formed_records += 1;
        }
        Ok(Placed {
            sequence: self.sequence,
            chunk: u32::try_from(self.chunks.len()).expect("chunks are few"),
            offset: u32::try_from(start + HEADER_SIZE_BYTES).expect("a chunk is below 4 GiB"),
            length: u32::try_from(length).expect("a record is below 4 GiB"),
            crc32c: crc,
        })
    }

    fn close_part(&mut self) {
        let Some(open) = &self.open else { return };
        if open.len() > self.part_start {
            self.parts.push(Part {
                data: open.slice(self.part_start..open.len()),
                shard: self.config.index,
                record_count: self.part_records,
                headers_crc: self.part_headers_crc,
            });
        }
        self.part_start = open.len();
        (self.part_records, self.part_headers_crc) = (0, 0);
    }

    fn seal_open_chunk(&mut self) {
        self.close_part();
        if let Some(full) = self.open.take() {
            self.chunks.push(full.slice(0..full.len()));
        }
        self.part_start = 0;
    }

    fn index_entry(&mut self, ledger: LedgerId, entry: EntryId, lac: Option<EntryId>, placed: Placed) {
        let (cut, durable) = (self.cut.min(placed.sequence - 1), self.durable.min(placed.sequence - 1));
        let state = self.ledgers.get_mut(&ledger).expect("the ledger was created with its key");
        let Placed { sequence, chunk, offset, length, crc32c } = placed;
        state.records.insert(CacheRecord { entry: entry.get(), sequence, chunk, offset, length, crc32c });
        state.last_entry.raise(entry.get(), sequence, cut, durable);
        state.last_add_confirmed.raise(EntryId::to_wire(lac), sequence, cut, durable);
        if !state.polls.is_empty() {
            self.raised.insert(ledger);
        }
        self.cached_records += 1;
        // As `mark_dirty`, without looking the ledger up again: this is for each entry.
        self.highest_ledger = self.highest_ledger.max(Some(ledger));
        if state.mark_dirty(sequence) {
            self.dirty.push(ledger);
        }
    }

    fn index_explicit_lac(
        &mut self,
        ledger: LedgerId,
        key: MasterKey,
        lac: Option<EntryId>,
        body: Arc<[u8]>,
        sequence: u64,
    ) {
        let (cut, durable) = (self.cut.min(sequence - 1), self.durable.min(sequence - 1));
        let state = self.exists(ledger);
        if state.needs_key(&key) {
            state.key = Some(key);
        }
        let lac = EntryId::to_wire(lac);
        // One that says nothing new is acknowledged and changes nothing: the LAC never goes back, and of two records of
        // the ledger, in two directories, the same LAC has the same body (IB25).
        let newest = state.explicit_lacs_newest().map(|body| EntryId::to_wire(explicit_lac_of(body)));
        if newest.is_none_or(|newest| lac > newest) {
            state.push_explicit_lac(sequence, durable, body);
        }
        state.last_add_confirmed.raise(lac, sequence, cut, durable);
        if !state.polls.is_empty() {
            self.raised.insert(ledger);
        }
        self.mark_dirty(ledger);
    }

    fn mark_dirty(&mut self, ledger: LedgerId) {
        self.highest_ledger = self.highest_ledger.max(Some(ledger));
        let state = self.ledgers.get_mut(&ledger).expect("a ledger that changes is known");
        if state.mark_dirty(self.sequence) {
            self.dirty.push(ledger);
        }
    }
}

/// The LAC inside a WRITE_LAC body: ledger id, then the LAC (protocol reference, section 3.3).
pub(crate) fn explicit_lac_of(body: &[u8]) -> Option<EntryId> {
    let raw: [u8; 8] = body.get(8..16)?.try_into().ok()?;
    EntryId::new(i64::from_be_bytes(raw))
}
