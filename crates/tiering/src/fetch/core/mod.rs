//! Decides what is fetched, for whom and when. Synchronous: events come in with the time, actions go out.
//!
//! # Data flow
//! ```text
//! ask ─► waiter ─► goal (an index, a block) ─► lane ─► job ─► Action::Start
//! index_arrived, block_arrived ─► cache ─► the goal's waiters: Action::Answer, or the next goal
//! finished ─► retry, or an answer to those that are left
//! ```
//!
//! # Invariants
//! 1. A goal is in one queue, or in one job. It has waiters, or it is in a job (what is read ahead has none).
//! 2. A waiter waits for one goal, and is in the order of deadlines.
//! 3. A job holds memory for all that it has not delivered, and a slot, until it is finished.
//!
//! # Parts
//! Here what is asked, cancelled and timed out, [`requests`] what is sent, [`arrivals`] what comes of it.
//!
//! # Not here   requests over the network, decoding, callbacks ([`super::fetcher`])

mod ahead;
mod arrivals;
mod circuit;
mod lanes;
mod memory;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ahead::Sequences;
use bindery_types::EntryId;
use bindery_types::tier::ObjectRef;
use circuit::Circuit;
use lanes::{Lanes, Place};
use memory::{BlockId, Memory, ObjectKey};

use super::index::{Block, Index, cut};
use super::{Ask, FetchError, FetchOptions, ReaderId};
use crate::object::Extent;

pub use memory::{Evicted, PinId};

/// Errors about objects that are remembered for a while.
const BAD_MAX: usize = 1_024;

/// The good outcome of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// Its entry, in a block that is pinned.
    Entry(PinId),
    /// The slot and the memory that it asked for.
    Slot(SlotId),
}

/// A thing to do now; their order does not matter.
#[derive(Debug)]
pub enum Action<W> {
    /// Send a request.
    Start(Start),
    /// Call a waiter back.
    Answer(W, Result<Got, FetchError>),
    /// Drop this.
    Drop(Evicted),
}

/// A request to send.
#[derive(Debug, Clone)]
pub struct Start {
    pub job: JobId,
    pub object: ObjectRef,
    pub what: What,
    /// Not before this time.
    pub at_ns: u64,
    /// It is given up then.
    pub until_ns: u64,
}

/// The part of an object to read.
#[derive(Debug, Clone)]
pub enum What {
    /// The footer.
    Index,
    /// The blocks of this piece of an extent, without the first ones, which have been delivered.
    Blocks(Arc<Extent>, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(u64);

/// How asking went.
#[derive(Debug)]
pub enum Asked {
    /// It is here: pinned, and open.
    Here(PinId, Arc<Block>),
    /// The waiter will be called back.
    Waits(WaiterId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Index(ObjectKey),
    Block(BlockId),
}

#[derive(Debug)]
struct Goal {
    waiters: BTreeSet<WaiterId>,
    /// Of a block: it alone, as an extent.
    extent: Option<Arc<Extent>>,
    state: GoalState,
}

#[derive(Debug, Clone, Copy)]
enum GoalState {
    Queued(Place),
    Running(JobId),
}

struct Waiter<W> {
    ask: Ask,
    goal: Key,
    asked_ns: u64,
    on: W,
}

#[derive(Debug)]
struct Job {
    reader: ReaderId,
    object: ObjectRef,
    extent: Option<Arc<Extent>>,
    /// Of the extent's blocks, those that arrived or turned out bad.
    delivered: usize,
    /// Bytes of memory that it holds.
    reserved: u64,
    tries: u32,
    until_ns: u64,
    /// A waiter's deadline passed while it was under way.
    is_late: bool,
}

/// Counters since the start, and numbers of this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// Entries found in the cache at once.
    pub hits: u64,
    /// Entries that had to wait.
    pub misses: u64,
    /// Entries that had to wait, and came.
    pub waited: u64,
    /// Nanoseconds that these waited, together.
    pub waited_ns: u64,
    /// Entries that were wanted and did not come.
    pub failures: u64,
    /// Asks that were refused because too many wait.
    pub refused: u64,
    /// Requests sent to the store, retries and those of checks included.
    pub requests: u64,
    /// Requests that failed, each try.
    pub requests_failed: u64,
    /// Bytes that came.
    pub request_bytes: u64,
    /// Nanoseconds that requests took, together.
    pub request_ns: u64,
    /// Blocks read ahead of their readers.
    pub blocks_ahead: u64,
    /// Missing, foreign or damaged objects that were met.
    pub alarms: u64,
    /// Pins that were revoked because their owners did not use them.
    pub pins_revoked: u64,
    /// Entries that wait.
    pub waiting: u64,
    /// Requests under way.
    pub running: u64,
    /// Memory for requests under way.
    pub under_way_bytes: u64,
    /// Memory of indexes.
    pub index_bytes: u64,
    /// Memory of blocks.
    pub block_bytes: u64,
    /// Entries that came and are not answered yet.
    pub pins: u64,
    /// False while the store counts as out of reach.
    pub is_reachable: bool,
}

/// See the module. `W` is how a waiter is called back.
pub struct Core<W> {
    options: FetchOptions,
    deadline_ns: u64,
    waiters: HashMap<WaiterId, Waiter<W>>,
    deadlines: BTreeSet<(u64, WaiterId)>,
    next_waiter: u64,
    goals: HashMap<Key, Goal>,
    lanes: Lanes<Key>,
    jobs: HashMap<JobId, Job>,
    next_job: u64,
    memory: Memory,
    /// Something is queued that memory does not suffice for.
    is_starving: bool,
    sequences: Sequences,
    circuit: Circuit,
    /// The goal that finds out whether the store can be reached again.
    trial: Option<Key>,
    /// Parts that were found to be bad, and until when that is believed.
    bad: HashMap<Key, (u64, FetchError)>,
    /// Checks that wait for a slot and for so many bytes.
    checks: BTreeMap<WaiterId, (u64, W)>,
    slots: HashMap<SlotId, u64>,
    is_stopped: bool,
    stats: FetchStats,
}

/// Where an entry is, as far as that is known.
enum Found {
    /// In the cache.
    Here(BlockId),
    /// This is to be fetched first.
    Needs(Key, Option<Arc<Extent>>),
}

type Actions<W> = Vec<Action<W>>;

impl<W> Core<W> {
    pub fn new(options: FetchOptions) -> Core<W> {
        Core {
            deadline_ns: options.deadline.as_nanos() as u64,
            waiters: HashMap::new(),
            deadlines: BTreeSet::new(),
            next_waiter: 0,
            goals: HashMap::new(),
            lanes: Lanes::new(),
            jobs: HashMap::new(),
            next_job: 0,
            memory: Memory::new(
                options.memory_bytes_max,
                options.index_bytes_max,
                options.pin_lease.as_nanos() as u64,
            ),
            is_starving: false,
            sequences: Sequences::default(),
            circuit: Circuit::new(&options),
            trial: None,
            bad: HashMap::new(),
            checks: BTreeMap::new(),
            slots: HashMap::new(),
            is_stopped: false,
            stats: FetchStats::default(),
            options,
        }
    }

    /// An entry that is in the cache.
    pub fn cached(&mut self, now_ns: u64, ask: &Ask, out: &mut Actions<W>) -> Option<(PinId, Arc<Block>)> {
        match self.find(now_ns, ask, out) {
            Ok(Found::Here(id)) => Some(self.hit(&id)),
            Ok(Found::Needs(..)) | Err(_) => None,
        }
    }

    fn hit(&mut self, id: &BlockId) -> (PinId, Arc<Block>) {
        self.stats.hits += 1;
        let pin = self.memory.pin(id, None).expect("it was just found");
        (pin, self.memory.open(pin).expect("it was just pinned"))
    }

    /// An entry from the cache, or a place among those that wait for it. When it is refused, the waiter is given back.
    pub fn ask(
        &mut self,
        now_ns: u64,
        ask: Ask,
        on: W,
        out: &mut Actions<W>,
    ) -> Result<Asked, (FetchError, W)> {
        let admitted = match self.find(now_ns, &ask, out) {
            Ok(Found::Here(id)) => {
                let (pin, block) = self.hit(&id);
                return Ok(Asked::Here(pin, block));
            }
            Ok(Found::Needs(key, extent)) => self.admit(now_ns, &ask, key).map(|()| (key, extent)),
            Err(error) => Err(error),
        };
        match admitted {
            Err(error) => {
                match error {
                    FetchError::Busy => self.stats.refused += 1,
                    _ => self.stats.failures += 1,
                }
                Err((error, on))
            }
            Ok((goal, extent)) => {
                self.stats.misses += 1;
                let id = WaiterId(self.next_waiter);
                self.next_waiter += 1;
                self.lanes.add_waiter(ask.reader);
                self.deadlines.insert((now_ns.saturating_add(self.deadline_ns), id));
                self.waiters.insert(id, Waiter { ask, goal, asked_ns: now_ns, on });
                self.join(id, goal, extent);
                self.pump(now_ns, out);
                Ok(Asked::Waits(id))
            }
        }
    }

    /// Whether an entry may wait for what is to be fetched first.
    fn admit(&mut self, now_ns: u64, ask: &Ask, key: Key) -> Result<(), FetchError> {
        if self.is_stopped {
            return Err(FetchError::Stopped);
        }
        self.believe(now_ns, &key)?;
        let of_reader = self.lanes.waiters(ask.reader);
        if self.waiters.len() >= self.options.waiters_max || of_reader >= self.options.waiters_per_reader_max
        {
            return Err(FetchError::Busy);
        }
        let was_reachable = self.circuit.is_reachable();
        self.circuit.admit(now_ns)?;
        if !was_reachable {
            self.trial = Some(key);
        }
        Ok(())
    }

    /// A part that was bad is left alone for a while.
    fn believe(&mut self, now_ns: u64, key: &Key) -> Result<(), FetchError> {
        match self.bad.get(key) {
            Some((until_ns, error)) if *until_ns > now_ns => Err(error.clone()),
            Some(_) => {
                self.bad.remove(key);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn note_bad(&mut self, now_ns: u64, key: Key, error: &FetchError) {
        if self.bad.len() >= BAD_MAX {
            self.bad.retain(|_, (until_ns, _)| *until_ns > now_ns);
        }
        if self.bad.len() < BAD_MAX {
            let is_word_of_store = matches!(error, FetchError::Missing { .. } | FetchError::Refused { .. });
            let time = if is_word_of_store { self.options.missing_for } else { self.options.bad_for };
            let until_ns = now_ns.saturating_add(time.as_nanos() as u64);
            self.bad.insert(key, (until_ns, error.clone()));
        }
    }

    /// Where an entry is. When a block is touched in sequence, those that follow are read ahead.
    fn find(&mut self, now_ns: u64, ask: &Ask, out: &mut Actions<W>) -> Result<Found, FetchError> {
        let object = ObjectKey(ask.extent.object);
        let Some(index) = self.memory.index(&object) else {
            return Ok(Found::Needs(Key::Index(object), None));
        };
        let (extent, block) = index.place_of(&object.0, ask.ledger, ask.entry).inspect_err(|_| {
            self.stats.alarms += 1;
        })?;
        let id = BlockId(object, extent.blocks[block].offset);
        if let Some(next) = next_of(extent.last_of(block)) {
            let first = extent.blocks[block].first;
            if let Some(blocks) = self.sequences.touch(now_ns, ask.ledger, first, next) {
                if let Some(before) = block.checked_sub(1) {
                    self.memory.pass_block(&BlockId(object, extent.blocks[before].offset));
                }
                self.read_ahead(now_ns, ask.reader, object, extent, block, blocks, out);
            }
        }
        if self.memory.has_block(&id) {
            return Ok(Found::Here(id));
        }
        let piece = match self.goals.contains_key(&Key::Block(id)) {
            true => None,
            false => Some(Arc::new(cut(extent, block, 1))),
        };
        Ok(Found::Needs(Key::Block(id), piece))
    }

    /// Puts a waiter to a goal, which is made when it is new.
    fn join(&mut self, id: WaiterId, key: Key, extent: Option<Arc<Extent>>) {
        let waiter = self.waiters.get_mut(&id).expect("a waiter joins");
        waiter.goal = key;
        let ask = &waiter.ask;
        let lanes = &mut self.lanes;
        let goal = self.goals.entry(key).or_insert_with(|| Goal {
            waiters: BTreeSet::new(),
            extent,
            state: GoalState::Queued(lanes.push(ask.reader, ask.ledger, key)),
        });
        goal.waiters.insert(id);
    }

    /// Takes a waiter back that was not answered yet.
    pub fn cancel(&mut self, now_ns: u64, id: WaiterId, out: &mut Actions<W>) -> Option<W> {
        let on = match self.checks.remove(&id) {
            Some((_, on)) => {
                if self.trial.is_none() {
                    self.circuit.give_up_trial(now_ns);
                }
                on
            }
            None => self.leave(now_ns, id)?.on,
        };
        self.pump(now_ns, out);
        Some(on)
    }

    /// Forgets a waiter; its goal too, when it was the only one and its request was not sent.
    fn leave(&mut self, now_ns: u64, id: WaiterId) -> Option<Waiter<W>> {
        let waiter = self.forget_waiter(id)?;
        let goal = self.goals.get_mut(&waiter.goal).expect("core invariant 2: a waiter has a goal");
        goal.waiters.remove(&id);
        if let GoalState::Queued(place) = goal.state
            && goal.waiters.is_empty()
        {
            self.lanes.remove(place);
            self.forget_goal(now_ns, &waiter.goal);
        }
        Some(waiter)
    }

    fn forget_waiter(&mut self, id: WaiterId) -> Option<Waiter<W>> {
        let waiter = self.waiters.remove(&id)?;
        self.deadlines.remove(&(waiter.asked_ns.saturating_add(self.deadline_ns), id));
        self.lanes.remove_waiter(waiter.ask.reader);
        Some(waiter)
    }

    fn forget_goal(&mut self, now_ns: u64, key: &Key) -> Option<Goal> {
        if self.trial == Some(*key) {
            self.trial = None;
            self.circuit.give_up_trial(now_ns);
        }
        self.goals.remove(key)
    }

    /// Answers all waiters of a goal with an error.
    fn fail_goal(&mut self, now_ns: u64, key: &Key, error: &FetchError, out: &mut Actions<W>) {
        let Some(goal) = self.forget_goal(now_ns, key) else { return };
        if let GoalState::Queued(place) = goal.state {
            self.lanes.remove(place);
        }
        for id in goal.waiters {
            self.answer(now_ns, id, Err(error.clone()), out);
        }
    }

    fn answer(
        &mut self,
        now_ns: u64,
        id: WaiterId,
        outcome: Result<PinId, FetchError>,
        out: &mut Actions<W>,
    ) {
        let waiter = self.forget_waiter(id).expect("a waiter is answered once");
        match outcome {
            Ok(_) => {
                self.stats.waited += 1;
                self.stats.waited_ns += now_ns.saturating_sub(waiter.asked_ns);
            }
            Err(_) => self.stats.failures += 1,
        }
        out.push(Action::Answer(waiter.on, outcome.map(Got::Entry)));
    }

    /// Waits for a slot and memory of its own (invariant 5 of the module above).
    pub fn slot(
        &mut self,
        now_ns: u64,
        (object, bytes): (&ObjectRef, u64),
        on: W,
        out: &mut Actions<W>,
    ) -> Option<WaiterId> {
        let max = self.memory.max();
        let admitted = match () {
            () if self.is_stopped => Err(FetchError::Stopped),
            () if bytes > max => Err(FetchError::TooLarge { object: object.id, bytes, max }),
            () => self.circuit.admit(now_ns),
        };
        if let Err(error) = admitted {
            out.push(Action::Answer(on, Err(error)));
            return None;
        }
        let id = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        self.checks.insert(id, (bytes, on));
        self.pump(now_ns, out);
        Some(id)
    }

    /// Gives a slot back, with what its request came to, if one was sent.
    pub fn slot_done(
        &mut self,
        now_ns: u64,
        id: SlotId,
        outcome: Option<Result<(), Arc<str>>>,
        out: &mut Actions<W>,
    ) {
        let bytes = self.slots.remove(&id).expect("a slot is given back once");
        self.memory.release(bytes);
        match outcome {
            Some(Ok(())) => self.succeed(),
            None if self.trial.is_none() => self.circuit.give_up_trial(now_ns),
            None => {}
            Some(Err(reason)) => {
                self.stats.requests_failed += 1;
                if self.circuit.fail(now_ns, &reason) {
                    self.fail_queued(now_ns, out);
                }
            }
        }
        self.pump(now_ns, out);
    }

    /// Keeps an index that a check has read, if there is room.
    pub fn keep_index(&mut self, now_ns: u64, object: &ObjectRef, index: Arc<Index>, out: &mut Actions<W>) {
        let bytes = index.cost_bytes();
        if !self.is_stopped && self.reserve(now_ns, bytes, true, out) {
            let mut evicted = Vec::new();
            self.memory.insert_index(ObjectKey(*object), index, bytes, &mut evicted);
            out.extend(evicted.into_iter().map(Action::Drop));
        }
    }

    /// An index from the cache.
    pub fn index(&mut self, object: &ObjectRef) -> Option<Arc<Index>> {
        self.memory.index(&ObjectKey(*object))
    }

    /// The pinned block, which stays from now on until it is unpinned. `None` when the pin was revoked.
    pub fn open(&mut self, pin: PinId) -> Option<Arc<Block>> {
        self.memory.open(pin)
    }

    /// The owner of an open pin has to wait for its turn after all.
    pub fn close(&mut self, now_ns: u64, pin: PinId) {
        self.memory.close(pin, now_ns);
    }

    /// Length of an entry of a pinned block.
    pub fn size_of(&self, pin: PinId, entry: EntryId) -> usize {
        self.memory.peek(pin).and_then(|block| block.entry(entry)).map_or(0, bytes::Bytes::len)
    }

    /// Gives a pin back.
    pub fn unpin(&mut self, now_ns: u64, pin: PinId, out: &mut Actions<W>) {
        self.memory.unpin(pin);
        if self.is_starving {
            self.pump(now_ns, out);
        }
    }

    /// When to call [`Core::tick`].
    pub fn next_tick_ns(&self) -> Option<u64> {
        let deadline_ns = self.deadlines.first().map(|(deadline_ns, _)| *deadline_ns);
        let lease_ns = if self.is_starving { self.memory.next_lease_end_ns() } else { None };
        deadline_ns.into_iter().chain(lease_ns).min()
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ns: u64, out: &mut Actions<W>) {
        while let Some((deadline_ns, id)) = self.deadlines.first().copied()
            && deadline_ns <= now_ns
        {
            let goal = self.waiters[&id].goal;
            let reason: Arc<str> = format!("no answer within {} ms", self.deadline_ns / 1_000_000).into();
            let mut error = FetchError::Busy;
            let mut is_out_of_reach = false;
            if let GoalState::Running(job) = self.goals[&goal].state {
                error = FetchError::Unreachable { reason: reason.clone() };
                let job = self.jobs.get_mut(&job).expect("core invariant 1: a goal's job");
                if !std::mem::replace(&mut job.is_late, true) {
                    is_out_of_reach = self.circuit.fail(now_ns, &reason);
                }
            }
            let waiter = self.leave(now_ns, id).expect("it was just there");
            self.stats.failures += 1;
            out.push(Action::Answer(waiter.on, Err(error)));
            if is_out_of_reach {
                self.fail_queued(now_ns, out);
            }
        }
        self.pump(now_ns, out);
    }

    /// Ends everything: nobody is left waiting, and nothing is taken any more. Jobs that are under way still report.
    pub fn stop(&mut self, now_ns: u64, out: &mut Actions<W>) {
        self.is_stopped = true;
        let waiting: Vec<WaiterId> = self.waiters.keys().copied().collect();
        for id in waiting {
            let waiter = self.leave(now_ns, id).expect("it waits");
            out.push(Action::Answer(waiter.on, Err(FetchError::Stopped)));
        }
        while let Some((_, (_, on))) = self.checks.pop_first() {
            out.push(Action::Answer(on, Err(FetchError::Stopped)));
        }
        let mut evicted = Vec::new();
        self.memory.clear(&mut evicted);
        out.extend(evicted.into_iter().map(Action::Drop));
    }

    /// A request was sent and ended.
    pub fn count_request(&mut self, bytes: u64, took_ns: u64) {
        self.stats.requests += 1;
        self.stats.request_bytes += bytes;
        self.stats.request_ns += took_ns;
    }

    /// An alarm of a check.
    pub fn count_alarm(&mut self) {
        self.stats.alarms += 1;
    }

    pub fn stats(&self) -> FetchStats {
        let usage = self.memory.usage();
        FetchStats {
            waiting: self.waiters.len() as u64,
            running: self.running() as u64,
            under_way_bytes: usage.under_way_bytes,
            index_bytes: usage.index_bytes,
            block_bytes: usage.block_bytes,
            pins: usage.pins as u64,
            pins_revoked: self.memory.revoked(),
            is_reachable: self.circuit.is_reachable(),
            ..self.stats
        }
    }
}

fn next_of(entry: EntryId) -> Option<EntryId> {
    EntryId::new(entry.get().checked_add(1)?)
}
