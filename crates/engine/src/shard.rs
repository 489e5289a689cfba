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
//! begin_freeze (at a cut) -> freeze_some, again and again -> Frozen -> flushed to an entry log -> drop_frozen
//! ```
//!
//! # Invariants
//! 1. An add is answered `Ok` only with the cut that holds its record, after that cut is durable.
//! 2. Check and insert of an add are one call: no fence comes between them (BookKeeper #4701).
//! 3. A fence waiter fires only when the fence record is durable; the fence bit is set when the record is placed, so
//!    every add placed before it has a lower sequence in the same journal.
//! 4. Answers to adds leave in the order in which the adds came, refusals included. Those of a bookie that takes no adds
//!    may leave ahead of a group whose write hangs ([`Shard::take_refusals_ahead`]), never ahead of one to the same entry.
//! 5. A cut takes everything placed; there is never more than one cut in flight.
//! 6. Records that are not durable are not shown.
//! 7. A removed ledger answers nothing and takes nothing from the moment its removal is placed; its state stays, so
//!    that late writers meet it (BookKeeper #4462), until [`Shard::forget`]. It hides copies of lower generations only. Of a
//!    fenced one a trace stays then: metadata is asked about writers of it.
//! 8. A freeze has of each ledger what was placed up to its cut, nothing more and nothing less, though it takes ledgers over
//!    while others change: before a ledger changes, it is taken over ([`Shard::settle`]).
//!
//! # Limits
//! Bytes placed and not cut: `formed_bytes_max`, or what pacing offers, and one record more (a large one must not starve
//! behind small ones); fences and explicit LACs are not held back by it, recovery adds not by pacing. While somebody waits
//! for space: what a cut found in the journal for recoveries ([`recovery`]), and fences. Parts of a cut: `parts_max`. Chunks: the pool.

mod cut;
mod direct;
mod freeze;
mod ingest;
mod limbo;
mod lookup;
mod memory;
mod place;
mod recovery;
mod removal;
mod replay;
mod tier;

pub(crate) use cut::ShardCut;
pub(crate) use direct::DirectStep;
pub(crate) use freeze::Died;
use freeze::Freezing;
pub(crate) use ingest::Readiness;
pub(crate) use lookup::{Found, MemoryWalk};
pub(crate) use recovery::{Copy, Gate, Reserve, Waits};
use recovery::{Passage, is_of_a_recovery};

use crate::api::{Add, AddDone, Answer, Poll, PollId, Refusal, Waiter};
use crate::config::Admission;
use crate::ledger::{Epoch, LedgerState};
use crate::ledger_budget::{Beginning, EXPLICIT_LAC_BYTES_MAX, LedgerBudget};
use crate::ledger_map::LedgerMap;
use crate::tier::{TierBudget, Tiered};
use crate::write_cache::Frozen;
use bindery_io::canary::{Canaries, Canary};
use bindery_io::chunk::{ChunkPool, ChunkSlice, Lane, OpenChunk};
use bindery_journal::Part;
use bindery_journal::record::{self, Kind};
use bindery_storage::{LedgerRanges, LedgerRecord};
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The configuration of a shard.
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
    /// Bounds the states of ledgers in memory, of all shards.
    pub(crate) ledger_budget: Arc<LedgerBudget>,
    /// Bounds the extents in memory, of all shards.
    pub(crate) tier_budget: Arc<TierBudget>,
}

/// No chunk, or no room in the group that is forming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// What became of an add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Placed, or here already: its answer leaves with a cut.
    Answered,
    /// As well, with a refusal.
    Refused,
    /// Left with the caller, to be offered again after metadata was read ([`Shard::on_verdict`]).
    Asks,
}

/// Metadata's part in an add that it has to speak for.
#[derive(Clone, Copy)]
pub(crate) enum Word<'a> {
    /// It can be asked: the add is left with the caller.
    Wanted,
    /// It cannot be asked: the add is refused.
    Never,
    /// It was read, after this was seen here of a trimmed ledger; `None`: it was not trimmed. If that has changed, it has to be read again.
    Given(Option<&'a Tiered>),
}

/// Why an add is not placed.
enum Obstacle {
    Refused(Refusal),
    /// Metadata can decide; without a check of metadata the refusal holds.
    Asks(Refusal),
    /// The ledger is trimmed, and metadata did not speak of what is here.
    MayBeAnothers,
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
    /// Of the bytes, those of updates of what is in object storage.
    formed_update_bytes: usize,
    /// Bytes that ordinary adds may place until the next cut: at most `formed_bytes_max`.
    offered_bytes: usize,
    /// Most that `formed` may reach with ordinary adds of the batch under way; see [`Shard::admit`].
    admitted: usize,
    /// Last sequence placed, taken by a cut, durable.
    sequence: u64,
    cut: u64,
    durable: u64,
    adds: Vec<AddDone>,
    /// Entries of which `adds` has an answer without a record: a refusal, or a copy that was here already.
    unplaced: Vec<(LedgerId, EntryId)>,
    /// Those of the cut in flight.
    unplaced_in_flight: Vec<(LedgerId, EntryId)>,
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
    /// That of the last removal; 0 without one since the start.
    last_removal: u64,
    /// Removed and remembered.
    removed: BTreeSet<LedgerId>,
    /// Forgotten although they were fenced: whether a writer of one that is unknown is late is metadata's to say.
    fences_forgotten: LedgerRanges,
    /// Dropped here, and still in a table, perhaps for good: the commits that forget them are under way.
    forgetting: BTreeMap<LedgerId, LedgerRecord>,
    /// Charged for ledgers.
    charged: u64,
    /// The part of that for explicit LACs.
    explicit_lac_bytes: usize,
    /// Every ledger up to it is in limbo.
    limbo_up_to: Option<LedgerId>,
    /// Metadata spoke for their writers since the start.
    vouched: BTreeSet<LedgerId>,
    /// Ledgers of which entries are in object storage.
    tiered_count: usize,
    /// Those of them of which copies could go.
    untrimmed: BTreeSet<LedgerId>,
    tier_budget: Arc<TierBudget>,
    /// Of the active write cache.
    epoch: Epoch,
    freezing: Option<Freezing>,
    /// Ledgers that are being ingested, and the number of the ingest.
    ingests: BTreeMap<LedgerId, u64>,
    /// Oldest first.
    frozen: Vec<Arc<Frozen>>,
    /// The journal failed.
    is_failed: bool,
    /// Ledger storage failed: what is added could never be flushed. Fences still go to the journal.
    refuses_adds: bool,
    /// A flush or the journal found no space, or no descriptor: as `refuses_adds`, until it does, but for recoveries.
    waits: Waits,
    /// The limit of `formed_bytes` for recoveries while that lasts: as much of the journal as is sure.
    recovery_offer: usize,
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
            tiered_count: 0,
            untrimmed: BTreeSet::new(),
            tier_budget: config.tier_budget.clone(),
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
            formed_update_bytes: 0,
            offered_bytes: config_offer,
            admitted: usize::MAX,
            sequence: 0,
            cut: 0,
            durable: 0,
            adds: Vec::new(),
            unplaced: Vec::new(),
            unplaced_in_flight: Vec::new(),
            waiters: Vec::new(),
            forces: Vec::new(),
            raised: BTreeSet::new(),
            next_poll: 0,
            chunks: Vec::new(),
            cached_records: 0,
            cached_bytes: 0,
            dirty: Vec::new(),
            generation: 1,
            last_removal: 0,
            removed: BTreeSet::new(),
            fences_forgotten: LedgerRanges::default(),
            forgetting: BTreeMap::new(),
            charged: 0,
            explicit_lac_bytes: 0,
            epoch: Epoch::default(),
            freezing: None,
            ingests: BTreeMap::new(),
            frozen: Vec::new(),
            is_failed: false,
            refuses_adds: false,
            waits: Waits::No,
            recovery_offer: 0,
            is_replaying: false,
            apart: Vec::new(),
        }
    }

    /// Checks and places one add. Its answer, whatever it is, leaves with a cut, unless metadata must be asked, and can be
    /// asked; `NoRoom` leaves no trace.
    pub(crate) fn add(&mut self, add: &Add<'_>, gate: &Gate<'_>, word: Word<'_>) -> Result<Taken, NoRoom> {
        let done = AddDone::of(add, Ok(()));
        let passage = if self.is_open_to(add, gate) { Passage::Open } else { self.passage(add, gate) };
        match (self.check_add(add, passage, word), word) {
            (Ok(()), _) => {}
            (Err(Obstacle::MayBeAnothers), Word::Wanted | Word::Given(_))
            | (Err(Obstacle::Asks(_)), Word::Wanted) => return Ok(Taken::Asks),
            (Err(obstacle), _) => {
                let refusal = match obstacle {
                    Obstacle::Refused(refusal) | Obstacle::Asks(refusal) => refusal,
                    Obstacle::MayBeAnothers => Refusal::Unknown,
                };
                self.answer_unplaced(AddDone { result: Err(refusal), ..done });
                return Ok(Taken::Refused);
            }
        }
        if self.config.canaries.has(Canary::M13FenceCheckApart) {
            self.apart.push((done, add.last_add_confirmed, add.key, add.body.to_vec()));
            return Ok(Taken::Answered);
        }
        let lane = if add.is_recovery { Lane::Recovery } else { Lane::Normal };
        self.insert(&done, add.last_add_confirmed, add.key, add.body, lane)?;
        if passage == Passage::OfReserve {
            gate.reserve.spend(add);
        }
        Ok(Taken::Answered)
    }

    /// Whether the state of the bookie lets this add pass as any other: it has not failed, takes adds, and waits for nothing.
    pub(crate) fn is_open_to(&self, add: &Add<'_>, gate: &Gate<'_>) -> bool {
        !self.is_failed && !self.refuses_adds && self.waits == Waits::No && gate.admits(add)
    }

    /// Refuses adds that are not placed. Their answers leave with a cut, behind those of older ones (invariant 4).
    pub(crate) fn refuse(&mut self, adds: &[Add<'_>], refusal: Refusal) {
        adds.iter().for_each(|add| self.answer_unplaced(AddDone::of(add, Err(refusal))));
    }

    /// Answers an add of which nothing is placed.
    fn answer_unplaced(&mut self, done: AddDone) {
        self.unplaced.push((done.ledger, done.entry));
        self.adds.push(done);
    }

    fn check_add(&self, add: &Add<'_>, passage: Passage, word: Word<'_>) -> Result<(), Obstacle> {
        let refused = |refusal| Err(Obstacle::Refused(refusal));
        if passage == Passage::Closed {
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
            let is_spoken_for =
                || matches!(word, Word::Given(Some(seen)) if Shard::is_trimmed_as(state, seen));
            if Shard::may_be_anothers(state) && !is_spoken_for() {
                return Err(Obstacle::MayBeAnothers);
            }
        }
        let beginning = if is_of_a_recovery(add) { Beginning::Urgent } else { Beginning::Ordinary };
        if state.is_none() && !self.may_begin(add.ledger, beginning) {
            return refused(Refusal::ReadOnly);
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
            self.settle(ledger);
            self.known_or_begun(ledger).key = Some(key);
            self.mark_dirty(ledger);
        }
        let placed = self.place(Kind::Entry, &[body], lane)?;
        self.index_entry(ledger, done.entry, last_add_confirmed, placed);
        self.adds.push(*done);
        Ok(())
    }

    /// Fences a ledger, known or not. The waiter fires when that is durable.
    pub(crate) fn fence(
        &mut self,
        beginning: Beginning,
        ledger: LedgerId,
        key: MasterKey,
        waiter: Waiter,
    ) -> Answer {
        let state = self.ledgers.get(&ledger);
        if state.is_some_and(|s| !s.accepts(&key)) {
            return Answer::Now(waiter, Err(Refusal::WrongKey));
        }
        if let Some(state) = state
            && let Some(sequence) = state.fence
        {
            let sequence = if state.is_removed() { sequence.max(state.removed_at) } else { sequence };
            return self.when_durable(sequence, waiter);
        }
        if self.is_failed {
            return Answer::Now(waiter, Err(Refusal::Io));
        }
        if state.is_some_and(|state| state.is_removed()) {
            return self.place_removal(ledger, true, waiter);
        }
        if !self.may_begin(ledger, beginning) {
            return Answer::Now(waiter, Err(Refusal::TooManyRequests));
        }
        let ledger_bytes = ledger.get().to_be_bytes();
        let placed = if self.config.canaries.has(Canary::M4FenceWithoutKey) {
            self.place(Kind::FenceWithoutKey, &[&ledger_bytes], Lane::Reserved)
        } else {
            self.place(Kind::Fence, &[&ledger_bytes, key.as_bytes()], Lane::Reserved)
        };
        let Ok(placed) = placed else { return Answer::Now(waiter, Err(Refusal::TooManyRequests)) };
        self.settle(ledger);
        let state = self.known_or_begun(ledger);
        if state.needs_key(&key) {
            state.key = Some(key);
        }
        state.fence = Some(placed.sequence);
        // Tailing readers learn of it when it is durable; those that come later wait as on any ledger (section 2.6).
        let (is_empty, has_polls) = (state.last_entry.placed() < 0, !state.polls.is_empty());
        if has_polls {
            state.wake_polls_at = Some(placed.sequence);
            self.raised.insert(ledger);
        }
        self.mark_dirty(ledger);
        if is_empty && self.config.canaries.has(Canary::M3NegativeFenceBeforeDurable) {
            return Answer::Now(waiter, Ok(()));
        }
        self.waiters.push((placed.sequence, waiter));
        Answer::Later
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
        self.on_back(ledger);
        self.settle(ledger);
        let state = self.known_or_begun(ledger);
        state.revive();
        state
    }

    /// Stores an explicit LAC (last add confirmed). Allowed on a fenced ledger; begins an unknown one.
    pub(crate) fn write_lac(
        &mut self,
        ledger: LedgerId,
        key: MasterKey,
        lac: Option<EntryId>,
        body: &[u8],
        is_read_only: bool,
        waiter: Waiter,
    ) -> Answer {
        if self.takes_no_adds() || is_read_only {
            return Answer::Now(waiter, Err(Refusal::ReadOnly));
        }
        // It stays in memory, whatever the limit of entries.
        if body.len() > EXPLICIT_LAC_BYTES_MAX {
            return Answer::Now(waiter, Err(Refusal::BadRequest));
        }
        if let Some(state) = self.ledgers.get(&ledger) {
            if state.is_removed() {
                return Answer::Now(waiter, Err(Refusal::NoLedger));
            }
            if !state.accepts(&key) {
                return Answer::Now(waiter, Err(Refusal::WrongKey));
            }
        }
        if !self.may_begin(ledger, Beginning::Ordinary) {
            return Answer::Now(waiter, Err(Refusal::ReadOnly));
        }
        // The room beyond the limit is for fences and recoveries.
        if !self.may_keep_lac(ledger, body.len()) {
            return Answer::Now(waiter, Err(Refusal::TooManyRequests));
        }
        let pieces: [&[u8]; 3] = [&ledger.get().to_be_bytes(), key.as_bytes(), body];
        // Any writer may send them, so they leave the last chunks to fences.
        let Ok(placed) = self.place(Kind::ExplicitLac, &pieces, Lane::Recovery) else {
            return Answer::Now(waiter, Err(Refusal::TooManyRequests));
        };
        self.index_explicit_lac(ledger, key, lac, body.into(), placed.sequence);
        self.waiters.push((placed.sequence, waiter));
        Answer::Later
    }

    /// Fires after a sync that covers everything placed so far.
    pub(crate) fn force(&mut self, waiter: Waiter) -> Answer {
        if self.is_failed {
            return Answer::Now(waiter, Err(Refusal::Io));
        }
        self.forces.push(waiter);
        Answer::Later
    }

    /// Parks a waiter until `sequence` is durable; gives it back when it is, or never will be.
    pub(crate) fn when_durable(&mut self, sequence: u64, waiter: Waiter) -> Answer {
        if sequence <= self.durable {
            return Answer::Now(waiter, Ok(()));
        }
        if self.is_failed {
            return Answer::Now(waiter, Err(Refusal::Io));
        }
        self.waiters.push((sequence, waiter));
        Answer::Later
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
        let id = PollId { previous, number: self.next_poll };
        state.polls.park(id, waiter);
        if state.last_add_confirmed.placed() > previous {
            self.raised.insert(ledger);
        }
        Ok(Poll::Parked(id))
    }

    /// Takes a parked poll back; its waiter is dropped. False when it has fired.
    pub(crate) fn cancel_poll(&mut self, ledger: LedgerId, id: PollId) -> bool {
        self.ledgers.get_mut(&ledger).is_some_and(|state| state.polls.cancel(id))
    }
}

/// The LAC inside a WRITE_LAC body: ledger id, then the LAC (protocol reference, section 3.3).
pub(crate) fn explicit_lac_of(body: &[u8]) -> Option<EntryId> {
    let raw: [u8; 8] = body.get(8..16)?.try_into().ok()?;
    EntryId::new(i64::from_be_bytes(raw))
}
