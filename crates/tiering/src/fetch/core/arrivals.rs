//! What requests bring, and how they end: the cache and the waiters get what came, and a failure is tried again, remembered, or
//! told.

use std::sync::Arc;

use super::memory::{BlockId, ObjectKey};
use super::{Action, Actions, Core, Found, JobId, Key, Start, WaiterId, What};
use crate::fetch::FetchError;
use crate::fetch::index::{Block, Index, block_cost_bytes};

impl<W> Core<W> {
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

    pub(super) fn succeed(&mut self) {
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
    pub(super) fn fail_queued(&mut self, now_ns: u64, out: &mut Actions<W>) {
        let error = self.circuit.error();
        while let Some((_, key)) = self.lanes.next(usize::MAX) {
            self.fail_goal(now_ns, &key, &error, out);
        }
        while let Some((_, (_, on))) = self.checks.pop_first() {
            out.push(Action::Answer(on, Err(error.clone())));
        }
    }
}
