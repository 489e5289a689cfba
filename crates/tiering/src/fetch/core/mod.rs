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
//! # Not here   requests, decoding, callbacks ([`super::fetcher`])

mod ahead;
mod circuit;
mod lanes;
mod memory;
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

use super::index::{Block, Index, block_cost_bytes, cut, decoding_cost_bytes, footer_cost_bytes};
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
            let until_ns = now_ns.saturating_add(self.options.bad_for.as_nanos() as u64);
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

    /// Begins to read what follows a block, when less than half of what is to be ahead is here or on its way. It is
    /// not urgent, so it takes only slots and memory that others do not use.
    #[expect(clippy::too_many_arguments, reason = "one place of an object, taken apart")]
    fn read_ahead(
        &mut self,
        now_ns: u64,
        reader: ReaderId,
        object: ObjectKey,
        extent: &Extent,
        block: usize,
        blocks: usize,
        out: &mut Actions<W>,
    ) {
        let is_spare = self.lanes.is_empty()
            && self.running() < self.options.requests_max / 2
            && self.lanes.running(reader) < self.options.requests_per_reader_max
            && self.circuit.is_reachable()
            && !self.is_stopped;
        // The block itself may be on its way to be fetched, with those behind it.
        let id_of = |at: usize| BlockId(object, extent.blocks[at].offset);
        if !is_spare || !self.is_here_or_coming(&id_of(block)) {
            return;
        }
        let missing = (block + 1..extent.blocks.len()).find(|at| !self.is_here_or_coming(&id_of(*at)));
        let Some(missing) = missing.filter(|at| at - block <= blocks.div_ceil(2)) else { return };
        let count = self.count_together(object, extent, missing, blocks);
        self.start_blocks(now_ns, reader, object, Arc::new(cut(extent, missing, count)), false, out);
    }

    fn is_here_or_coming(&self, id: &BlockId) -> bool {
        let is_coming = |goal: &Goal| matches!(goal.state, GoalState::Running(_));
        self.memory.has_block(id) || self.goals.get(&Key::Block(*id)).is_some_and(is_coming)
    }

    /// How many blocks from `first` on to read with one request: up to `most`, as far as none of them is here, on its way or
    /// bad, within the bytes that a sequence may have.
    fn count_together(&self, object: ObjectKey, extent: &Extent, first: usize, most: usize) -> usize {
        let sequences = self.sequences.count().max(1) as u64;
        let bytes_max = self.options.ahead_bytes_max.min(self.memory.max() / 2 / sequences);
        let (mut bytes, mut count) = (0, 0);
        for (at, block) in extent.blocks.iter().enumerate().skip(first).take(most.max(1)) {
            let id = BlockId(object, block.offset);
            bytes += u64::from(block.stored_size_bytes).max(block_cost_bytes(extent, at));
            let is_wanted = !self.is_here_or_coming(&id) && !self.bad.contains_key(&Key::Block(id));
            if count > 0 && (bytes > bytes_max || !is_wanted) {
                break;
            }
            count += 1;
        }
        count
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

    fn running(&self) -> usize {
        self.jobs.len() + self.slots.len()
    }

    /// Starts what may start.
    fn pump(&mut self, now_ns: u64, out: &mut Actions<W>) {
        self.is_starving = false;
        // Readers come first, unless none of them may have more requests at once.
        let mut may_check = false;
        while self.running() < self.options.requests_max {
            let Some((place, key)) = self.lanes.next(self.options.requests_per_reader_max) else {
                may_check = true;
                break;
            };
            match self.start(now_ns, place, key, out) {
                Ok(()) => {}
                Err(None) => {
                    self.is_starving = true;
                    break;
                }
                Err(Some(error)) => self.fail_goal(now_ns, &key, &error, out),
            }
        }
        while may_check
            && self.slots.len() < self.options.requests_of_checks_max
            && self.running() < self.options.requests_max
            && let Some((_, (bytes, _))) = self.checks.first_key_value()
        {
            let bytes = *bytes;
            if !self.reserve(now_ns, bytes, true, out) {
                self.is_starving = true;
                break;
            }
            let (WaiterId(number), (_, on)) = self.checks.pop_first().expect("it was just seen");
            self.slots.insert(SlotId(number), bytes);
            out.push(Action::Answer(on, Ok(Got::Slot(SlotId(number)))));
        }
    }

    fn reserve(&mut self, now_ns: u64, bytes: u64, may_evict: bool, out: &mut Actions<W>) -> bool {
        let mut evicted = Vec::new();
        let is_reserved = self.memory.reserve(now_ns, bytes, may_evict, &mut evicted);
        out.extend(evicted.into_iter().map(Action::Drop));
        is_reserved
    }

    /// Starts a goal whose turn it is; `Err(None)` when memory does not suffice at the moment.
    fn start(
        &mut self,
        now_ns: u64,
        place: Place,
        key: Key,
        out: &mut Actions<W>,
    ) -> Result<(), Option<FetchError>> {
        let too_large = |object: &ObjectKey, bytes: u64, max: u64| {
            Some(FetchError::TooLarge { object: object.0.id, bytes, max })
        };
        let max = self.memory.max();
        match key {
            Key::Index(object) => {
                let bytes = footer_cost_bytes(&object.0);
                if bytes > max {
                    return Err(too_large(&object, bytes, max));
                }
                if !self.reserve(now_ns, bytes, true, out) {
                    return Err(None);
                }
                self.lanes.take(place);
                let job = self.begin(now_ns, place.reader, object, None, bytes, out);
                self.goals.get_mut(&key).expect("it was queued").state = GoalState::Running(job);
            }
            Key::Block(id @ BlockId(object, _)) => {
                let alone = self.goals[&key].extent.clone().expect("the goal of a block has its extent");
                let together = self.with_following(id, &alone);
                if self.start_blocks(now_ns, place.reader, object, together, true, out) {
                    return Ok(());
                }
                let bytes = blocks_cost_bytes(&alone);
                if bytes > max {
                    return Err(too_large(&object, bytes, max));
                }
                if !self.start_blocks(now_ns, place.reader, object, alone, true, out) {
                    return Err(None);
                }
            }
        }
        Ok(())
    }

    /// A block with those that its sequence has read ahead.
    fn with_following(&mut self, BlockId(object, offset): BlockId, alone: &Arc<Extent>) -> Arc<Extent> {
        let blocks = next_of(alone.last).map_or(1, |next| self.sequences.blocks(alone.ledger, next));
        if blocks <= 1 {
            return alone.clone();
        }
        let Some(index) = self.memory.index(&object) else { return alone.clone() };
        let Some(extent) = index.extent_of(alone.ledger, alone.first) else { return alone.clone() };
        let Ok(at) = extent.blocks.binary_search_by_key(&offset, |block| block.offset) else {
            return alone.clone();
        };
        Arc::new(cut(extent, at, self.count_together(object, extent, at, blocks)))
    }

    /// Starts a request for blocks, of which none is here or on its way. False when there is no memory for it.
    fn start_blocks(
        &mut self,
        now_ns: u64,
        reader: ReaderId,
        object: ObjectKey,
        extent: Arc<Extent>,
        is_waited_for: bool,
        out: &mut Actions<W>,
    ) -> bool {
        let bytes = blocks_cost_bytes(&extent);
        if !self.reserve(now_ns, bytes, is_waited_for, out) {
            return false;
        }
        let job = self.begin(now_ns, reader, object, Some(extent.clone()), bytes, out);
        for (at, block) in extent.blocks.iter().enumerate() {
            let key = Key::Block(BlockId(object, block.offset));
            match self.goals.get_mut(&key) {
                Some(goal) => {
                    let GoalState::Queued(place) = goal.state else {
                        panic!("invariant 3: a second request for a block")
                    };
                    goal.state = GoalState::Running(job);
                    // The turn is that of the first; those behind it go along.
                    if at == 0 { self.lanes.take(place) } else { self.lanes.remove(place) }
                }
                None => {
                    self.stats.blocks_ahead += 1;
                    let goal =
                        Goal { waiters: BTreeSet::new(), extent: None, state: GoalState::Running(job) };
                    self.goals.insert(key, goal);
                }
            }
        }
        true
    }

    fn begin(
        &mut self,
        now_ns: u64,
        reader: ReaderId,
        object: ObjectKey,
        extent: Option<Arc<Extent>>,
        reserved: u64,
        out: &mut Actions<W>,
    ) -> JobId {
        let id = JobId(self.next_job);
        self.next_job += 1;
        let until_ns = now_ns.saturating_add(self.options.request_timeout.as_nanos() as u64);
        let what = extent.clone().map_or(What::Index, |extent| What::Blocks(extent, 0));
        self.lanes.begin(reader);
        let job = Job {
            reader,
            object: object.0,
            extent,
            delivered: 0,
            reserved,
            tries: 1,
            until_ns,
            is_late: false,
        };
        self.jobs.insert(id, job);
        let until_ns = until_ns.min(now_ns.saturating_add(self.options.try_timeout.as_nanos() as u64));
        out.push(Action::Start(Start { job: id, object: object.0, what, at_ns: now_ns, until_ns }));
        id
    }

    /// The index of a job's object is here.
    pub fn index_arrived(&mut self, now_ns: u64, id: JobId, index: Arc<Index>, out: &mut Actions<W>) {
        let job = self.jobs.get_mut(&id).expect("a job delivers before it is finished");
        let key = ObjectKey(job.object);
        let reserved = std::mem::take(&mut job.reserved);
        job.delivered = 1;
        self.succeed();
        let mut evicted = Vec::new();
        self.memory.insert_index(key, index, reserved, &mut evicted);
        out.extend(evicted.into_iter().map(Action::Drop));
        let Some(goal) = self.forget_goal(now_ns, &Key::Index(key)) else { return };
        for waiter in goal.waiters {
            self.route(now_ns, waiter, out);
        }
    }

    /// Sends a waiter on, now that its object's index is here.
    fn route(&mut self, now_ns: u64, id: WaiterId, out: &mut Actions<W>) {
        let ask = self.waiters[&id].ask;
        let found = self.find(now_ns, &ask, out).and_then(|found| {
            if let Found::Needs(key, _) = &found {
                self.believe(now_ns, key)?;
            }
            Ok(found)
        });
        match found {
            Err(error) => self.answer(now_ns, id, Err(error), out),
            Ok(Found::Here(block)) => self.answer_block(now_ns, id, &block, out),
            Ok(Found::Needs(key, extent)) => self.join(id, key, extent),
        }
    }

    fn answer_block(&mut self, now_ns: u64, id: WaiterId, block: &BlockId, out: &mut Actions<W>) {
        let pin = self.memory.pin(block, Some(now_ns)).expect("it is in the cache");
        self.answer(now_ns, id, Ok(pin), out);
    }

    /// The next block of a job is here.
    pub fn block_arrived(&mut self, now_ns: u64, id: JobId, block: Block, out: &mut Actions<W>) {
        let (block_id, cost_bytes) = self.deliver(id);
        self.succeed();
        self.memory.insert_block(block_id, Arc::new(block), cost_bytes);
        self.jobs.get_mut(&id).expect("it delivers").reserved -= cost_bytes;
        let Some(goal) = self.forget_goal(now_ns, &Key::Block(block_id)) else { return };
        for waiter in goal.waiters {
            self.answer_block(now_ns, waiter, &block_id, out);
        }
    }

    /// The next block of a job is bad.
    pub fn block_failed(&mut self, now_ns: u64, id: JobId, error: &FetchError, out: &mut Actions<W>) {
        let (block_id, _) = self.deliver(id);
        self.succeed();
        self.stats.alarms += 1;
        self.note_bad(now_ns, Key::Block(block_id), error);
        self.fail_goal(now_ns, &Key::Block(block_id), error, out);
    }

    fn deliver(&mut self, id: JobId) -> (BlockId, u64) {
        let job = self.jobs.get_mut(&id).expect("a job delivers before it is finished");
        let extent = job.extent.as_ref().expect("a job that reads blocks has an extent");
        let at = job.delivered;
        job.delivered += 1;
        (BlockId(ObjectKey(job.object), extent.blocks[at].offset), block_cost_bytes(extent, at))
    }

    fn succeed(&mut self) {
        self.circuit.succeed();
        self.trial = None;
    }

    /// A try of a job ended. With an error it is tried again when that may help.
    pub fn finished(&mut self, now_ns: u64, id: JobId, result: Result<(), FetchError>, out: &mut Actions<W>) {
        let error = match result {
            Ok(()) => None,
            Err(error) => {
                self.stats.requests_failed += 1;
                Some(error)
            }
        };
        if error == Some(FetchError::Stopped) {
            // There is nothing that would run another one.
            self.stop(now_ns, out);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if let Some(FetchError::Unreachable { reason }) = &error {
            // One that was late has failed already, as far as others are concerned.
            let is_out_of_reach = match std::mem::take(&mut job.is_late) {
                true => !self.circuit.is_reachable(),
                false => self.circuit.fail(now_ns, reason),
            };
            if is_out_of_reach {
                self.fail_queued(now_ns, out);
            } else if let Some(start) = self.retry(now_ns, id) {
                out.push(Action::Start(start));
                return;
            }
        }
        let job = self.jobs.remove(&id).expect("it was just there");
        self.memory.release(job.reserved);
        self.lanes.end(job.reader);
        let object = ObjectKey(job.object);
        let keys: Vec<Key> = match &job.extent {
            None if job.delivered > 0 => Vec::new(),
            None => vec![Key::Index(object)],
            Some(extent) => {
                let left = extent.blocks[job.delivered..].iter();
                left.map(|block| Key::Block(BlockId(object, block.offset))).collect()
            }
        };
        let error = error.unwrap_or(FetchError::Unreachable { reason: Arc::from("the answer ended early") });
        if error.is_of_object() {
            self.succeed();
            self.stats.alarms += u64::from(error.is_alarm());
            keys.iter().for_each(|key| self.note_bad(now_ns, *key, &error));
        }
        keys.iter().for_each(|key| self.fail_goal(now_ns, key, &error, out));
        self.pump(now_ns, out);
    }

    /// Tries a job again, if somebody waits for it and there is time.
    fn retry(&mut self, now_ns: u64, id: JobId) -> Option<Start> {
        let job = self.jobs.get_mut(&id)?;
        let pause_ns = (self.options.retry_pause.as_nanos() as u64) << job.tries.min(16).saturating_sub(1);
        // Many jobs that failed together do not come back together.
        let pause_ns = pause_ns.saturating_sub(pause_ns / 4 * (id.0 % 3) / 2);
        let at_ns = now_ns.saturating_add(pause_ns);
        let object = ObjectKey(job.object);
        let is_wanted = |key: &Key| self.goals.get(key).is_some_and(|goal| !goal.waiters.is_empty());
        let is_wanted = match &job.extent {
            None => is_wanted(&Key::Index(object)),
            Some(extent) => extent.blocks[job.delivered..]
                .iter()
                .any(|block| is_wanted(&Key::Block(BlockId(object, block.offset)))),
        };
        if job.tries > self.options.retries_max || at_ns >= job.until_ns || !is_wanted {
            return None;
        }
        job.tries += 1;
        let what = match &job.extent {
            None => What::Index,
            Some(extent) => What::Blocks(extent.clone(), job.delivered),
        };
        let until_ns = job.until_ns.min(at_ns.saturating_add(self.options.try_timeout.as_nanos() as u64));
        Some(Start { job: id, object: job.object, what, at_ns, until_ns })
    }

    /// The store is out of reach: everything that is queued fails.
    fn fail_queued(&mut self, now_ns: u64, out: &mut Actions<W>) {
        let error = self.circuit.error();
        while let Some((_, key)) = self.lanes.next(usize::MAX) {
            self.fail_goal(now_ns, &key, &error, out);
        }
        while let Some((_, (_, on))) = self.checks.pop_first() {
            out.push(Action::Answer(on, Err(error.clone())));
        }
    }

    /// Waits for a slot and memory of its own, behind all readers.
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

/// Memory for a request that brings these blocks.
fn blocks_cost_bytes(extent: &Extent) -> u64 {
    let kept: u64 = (0..extent.blocks.len()).map(|at| block_cost_bytes(extent, at)).sum();
    kept + decoding_cost_bytes(&extent.blocks)
}
