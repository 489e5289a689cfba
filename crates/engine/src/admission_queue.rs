//! The queue of adds that found no room in the group that forms, one for each shard. Room is granted to tenants by weight, and to the
//! adds of a tenant in the order of arrival.
//!
//! # Data flow
//! ```text
//! add_or_ask (no room, or others wait) -> when_room -> AdmissionQueue
//!     -> cut: an AdmissionGrant for as many as the next group takes -> RoomWaiter -> add_or_ask, with it
//! ```
//!
//! # Invariants
//! 1. While somebody waits, ordinary adds without a grant are not taken, so no add overtakes the queue. Of one tenant the first to
//!    come is the first to be granted room.
//! 2. Grants and the group that forms are together at most what is offered, and one record more. The sum of the grants is
//!    read before the room, so a grant that is used in between counts twice, and too little is granted until it is dropped.
//! 3. A grant is returned exactly once, used or not: dropping it returns it, and wakes the journal thread when others
//!    wait for the room it held.
//! 4. Recovery adds bypass the queue.
//!
//! # Limits
//! Waiters of a shard: [`WAITERS_MAX`].

use crate::fair_queue::{FairQueue, Share};
use crate::signal::Signal;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Waiters stay after their request gave up, so a disk that hangs would pile them up.
const WAITERS_MAX: usize = 16_384;

/// Called once with a grant, on the completion thread, or at once on the thread that queues where too many wait; must not block. Dropped
/// uncalled only at shutdown.
pub type RoomWaiter = Box<dyn FnOnce(AdmissionGrant) + Send>;

/// The right to add a number of bytes to the group that forms, ahead of all that came later.
#[must_use = "it keeps room from others until it is dropped"]
pub struct AdmissionGrant {
    queue: Arc<AdmissionQueue>,
    cost: usize,
}

impl AdmissionGrant {
    /// Its cost: bytes, or records where these are counted.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }
}

impl Drop for AdmissionGrant {
    fn drop(&mut self) {
        // Total order with `wait`: either this sees the waiter, or the thread that is woken for it sees what was returned.
        self.queue.reserved.fetch_sub(self.cost, Ordering::SeqCst);
        // A grant that was used wakes the thread anyhow. One whose client is gone leaves nothing to write, and without this
        // the next in line would wait until the thread looks by itself.
        if self.queue.has_waiting() {
            self.queue.signal.raise();
        }
    }
}

/// How much waits for room, and how much is reserved by grants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Admittance {
    /// Batches in the queue. Those whose connection gave up count until they come to its head.
    pub waiting: usize,
    /// Their cost: bytes, or records where these are counted.
    pub waiting_cost: usize,
    /// Recovery batches, which bypass the queue.
    pub urgent: usize,
    /// Sum of the grants given out.
    pub reserved: usize,
}

impl Admittance {
    pub(crate) fn and(self, other: Admittance) -> Admittance {
        Admittance {
            waiting: self.waiting + other.waiting,
            waiting_cost: self.waiting_cost + other.waiting_cost,
            urgent: self.urgent + other.urgent,
            reserved: self.reserved + other.reserved,
        }
    }
}

#[derive(Default)]
struct Queues {
    ordinary: FairQueue<RoomWaiter>,
    urgent: Vec<RoomWaiter>,
}

/// The queue of one shard.
pub(crate) struct AdmissionQueue {
    /// Wakes the thread of the shard's journal, which gives the grants.
    signal: Arc<Signal>,
    queues: Mutex<Queues>,
    /// Ordinary batches that wait.
    waiting: AtomicUsize,
    urgent: AtomicUsize,
    /// Sum of the grants that are out.
    reserved: AtomicUsize,
}

impl AdmissionQueue {
    pub(crate) fn new(signal: Arc<Signal>) -> AdmissionQueue {
        AdmissionQueue {
            signal,
            queues: Mutex::default(),
            waiting: AtomicUsize::new(0),
            urgent: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
        }
    }

    /// True while ordinary adds have to queue.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn has_urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire) > 0
    }

    pub(crate) fn reserved(&self) -> usize {
        self.reserved.load(Ordering::SeqCst)
    }

    /// For operators: walks the queue.
    pub(crate) fn admittance(&self) -> Admittance {
        let queues = self.queues.lock();
        Admittance {
            waiting: queues.ordinary.len(),
            waiting_cost: queues.ordinary.cost(),
            urgent: queues.urgent.len(),
            reserved: self.reserved(),
        }
    }

    /// Takes a place at the end of the line of a tenant, for adds of this cost. Urgent are those of recoveries, which have a list of their own until that is
    /// full. If there are too many waiters, returns the oldest one of the longest line, which the caller must call: its request gave up long ago, most likely.
    #[must_use]
    pub(crate) fn wait(
        self: &Arc<Self>,
        share: Share,
        cost: usize,
        is_urgent: bool,
        waiter: RoomWaiter,
    ) -> Option<(RoomWaiter, AdmissionGrant)> {
        let mut queues = self.queues.lock();
        if is_urgent && queues.urgent.len() < WAITERS_MAX {
            queues.urgent.push(waiter);
            self.urgent.store(queues.urgent.len(), Ordering::Release);
            return None;
        }
        let is_full = queues.ordinary.len() >= WAITERS_MAX;
        let oldest = if is_full { queues.ordinary.pop_of_longest() } else { None };
        queues.ordinary.push(share, cost, waiter);
        self.waiting.store(queues.ordinary.len(), Ordering::SeqCst);
        oldest.map(|waiter| (waiter, self.grant(0)))
    }

    fn grant(self: &Arc<Self>, cost: usize) -> AdmissionGrant {
        self.reserved.fetch_add(cost, Ordering::AcqRel);
        AdmissionGrant { queue: self.clone(), cost }
    }

    /// Moves to `into` the next waiters of the queue with their grants, as far as `room` goes, and all urgent ones if there is room for
    /// them. `room` is what is neither formed nor reserved ([`AdmissionQueue::reserved`], read before what is formed).
    pub(crate) fn give_grants(
        self: &Arc<Self>,
        mut room: usize,
        has_urgent_room: bool,
        into: &mut Vec<(RoomWaiter, AdmissionGrant)>,
    ) {
        if !self.has_waiting() && !self.has_urgent() {
            return;
        }
        let queues = &mut *self.queues.lock();
        if has_urgent_room {
            into.extend(queues.urgent.drain(..).map(|waiter| (waiter, self.grant(0))));
        }
        while room > 0
            // One that needs more takes what there is, and queues again for the rest.
            && let Some((cost, waiter)) = queues.ordinary.pop(room)
        {
            room -= cost;
            into.push((waiter, self.grant(cost)));
        }
        self.waiting.store(queues.ordinary.len(), Ordering::SeqCst);
        self.urgent.store(queues.urgent.len(), Ordering::Release);
    }

    /// Moves all waiters to `into`, recoveries first, each with a grant of 0. For a shard that refuses what they add: with the grant they
    /// offer it once more, and get the refusal instead of waiting for room.
    pub(crate) fn let_all_go(self: &Arc<Self>, into: &mut Vec<(RoomWaiter, AdmissionGrant)>) {
        let queues = &mut *self.queues.lock();
        into.extend(queues.urgent.drain(..).map(|waiter| (waiter, self.grant(0))));
        self.urgent.store(0, Ordering::Release);
        self.drain_ordinary(queues, into);
    }

    /// As [`AdmissionQueue::let_all_go`], but recoveries stay.
    pub(crate) fn let_ordinary_go(self: &Arc<Self>, into: &mut Vec<(RoomWaiter, AdmissionGrant)>) {
        if self.has_waiting() {
            self.drain_ordinary(&mut self.queues.lock(), into);
        }
    }

    fn drain_ordinary(self: &Arc<Self>, queues: &mut Queues, into: &mut Vec<(RoomWaiter, AdmissionGrant)>) {
        into.extend(queues.ordinary.drain().map(|waiter| (waiter, self.grant(0))));
        self.waiting.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::time::Duration;

    /// Invariant 3: a grant whose client is gone wakes the thread that gives the next one; with an empty queue it does
    /// not.
    #[test]
    fn a_turn_dropped_unused_wakes_the_journal_thread() {
        let signal = Arc::new(Signal::default());
        let is_raised = || signal.wait(Duration::ZERO);
        let line = Arc::new(AdmissionQueue::new(signal.clone()));
        let room = 10;
        for _ in 0..2 {
            assert!(line.wait(Share::DEFAULT, room, false, Box::new(drop)).is_none());
        }
        let mut given = Vec::new();
        line.give_grants(room - line.reserved(), true, &mut given);
        let (waiter, turn) = given.pop().unwrap();
        line.give_grants(room - line.reserved(), true, &mut given);
        assert!(given.is_empty(), "the first has all the room");
        assert!(!is_raised());
        waiter(turn);
        assert!(is_raised(), "there is room for the next");
        line.give_grants(room - line.reserved(), true, &mut given);
        let (waiter, turn) = given.pop().unwrap();
        waiter(turn);
        assert!(!is_raised(), "nobody waits");
        assert_eq!(line.reserved(), 0);
    }

    /// Room goes to tenants by weight, however many of one came before.
    #[test]
    fn room_goes_to_tenants_by_weight() {
        let line = Arc::new(AdmissionQueue::new(Arc::default()));
        let order = Arc::new(Mutex::new(Vec::new()));
        for (tenant, weight) in [(1, 100), (2, 300)] {
            for _ in 0..100 {
                let order = order.clone();
                let waiter = Box::new(move |_| order.lock().push(tenant));
                assert!(line.wait(Share { tenant, weight }, 10, false, waiter).is_none());
            }
        }
        for _ in 0..4 {
            let mut given = Vec::new();
            line.give_grants(100 - line.reserved(), true, &mut given);
            given.into_iter().for_each(|(waiter, grant)| waiter(grant));
        }
        let of_second = order.lock().iter().filter(|tenant| **tenant == 2).count();
        assert_eq!((order.lock().len(), of_second), (40, 30));
    }

    proptest! {
        /// Line invariants 2 and 3, and the order of the line.
        #[test]
        fn turns_come_in_order_within_the_room_and_come_back(
            steps in prop::collection::vec((0u8..3, 1usize..50), 1..200), room in 1usize..100,
        ) {
            let line = Arc::new(AdmissionQueue::new(Arc::default()));
            let order = Arc::new(Mutex::new(Vec::new()));
            let (mut number, mut held) = (0u64, VecDeque::new());
            for (step, cost) in steps {
                match step {
                    0 => {
                        let (order, mine) = (order.clone(), number);
                        let waiter = Box::new(move |turn: AdmissionGrant| order.lock().push((mine, turn.cost())));
                        prop_assert!(line.wait(Share::DEFAULT, cost, false, waiter).is_none());
                        number += 1;
                    }
                    1 => {
                        let mut given = Vec::new();
                        line.give_grants(room - line.reserved(), true, &mut given);
                        held.extend(given);
                    }
                    _ => if let Some((waiter, turn)) = held.pop_front() {
                        waiter(turn);
                    }
                }
                prop_assert!(line.reserved() <= room, "{} reserved of {room}", line.reserved());
                prop_assert_eq!(line.reserved(), held.iter().map(|(_, turn)| turn.cost()).sum::<usize>());
            }
            let order: Vec<u64> = order.lock().iter().map(|(number, _)| *number).collect();
            prop_assert!(order.is_sorted(), "{order:?}");
            drop(held);
            prop_assert_eq!(line.reserved(), 0);
        }
    }
}
