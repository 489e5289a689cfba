//! What is queued becomes requests: turns, memory, and the blocks that one request brings together.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::lanes::Place;
use super::memory::{BlockId, ObjectKey};
use super::{
    Action, Actions, Core, Goal, GoalState, Got, Job, JobId, Key, SlotId, Start, WaiterId, What, next_of,
};
use crate::fetch::index::{block_cost_bytes, cut, decoding_cost_bytes, footer_cost_bytes};
use crate::fetch::{FetchError, ReaderId};
use crate::object::Extent;

impl<W> Core<W> {
    pub(super) fn running(&self) -> usize {
        self.jobs.len() + self.slots.len()
    }

    /// Starts what may start.
    pub(super) fn pump(&mut self, now_ns: u64, out: &mut Actions<W>) {
        self.is_starving = false;
        self.start_checks(now_ns, 1, out);
        // Then readers come first, unless none of them may have more requests at once.
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
        if may_check {
            self.start_checks(now_ns, self.options.requests_of_checks_max, out);
        }
    }

    /// Starts requests of checks, until so many run.
    fn start_checks(&mut self, now_ns: u64, most: usize, out: &mut Actions<W>) {
        while self.slots.len() < most
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

    pub(super) fn reserve(&mut self, now_ns: u64, bytes: u64, may_evict: bool, out: &mut Actions<W>) -> bool {
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

    /// Begins to read what follows a block, when less than half of what is to be ahead is here or on its way. It is
    /// not urgent, so it takes only slots and memory that others do not use.
    #[expect(clippy::too_many_arguments, reason = "one place of an object, taken apart")]
    pub(super) fn read_ahead(
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
}

/// Memory for a request that brings these blocks.
fn blocks_cost_bytes(extent: &Extent) -> u64 {
    let kept: u64 = (0..extent.blocks.len()).map(|at| block_cost_bytes(extent, at)).sum();
    kept + decoding_cost_bytes(&extent.blocks)
}
