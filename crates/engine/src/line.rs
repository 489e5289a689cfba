//! Who waits for room, in order: a line for each shard.
//!
//! # Data flow
//! ```text
//! add_batch (no room, or somebody waits) -> when_room -> line -> cut: Turns for what the next group takes -> waiters
//! Turn -> add_batch_in_turn
//! ```
//!
//! # Invariants
//! 1. While somebody waits, ordinary adds without a turn are not taken: nobody passes the line.
//! 2. Turns and what has formed are together at most what is offered, and one record more: what is reserved is read
//!    before the room, so that a turn that is used in between counts in both, and gives a turn less until it is dropped.
//! 3. A turn is given back exactly once, used or not: dropping it does that, and wakes the journal thread when others
//!    wait for what it kept.
//! 4. Who waits with recovery adds does not stand in the line.
//!
//! # Limits
//! Waiters of a shard: [`WAITERS_MAX`].

use crate::signal::Signal;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Waiters stay after their request gave up, so a disk that hangs would pile them up.
const WAITERS_MAX: usize = 16_384;

/// Called once, on the completion thread, with the turn to add; must not block. Dropped uncalled only at shutdown.
pub type RoomWaiter = Box<dyn FnOnce(Turn) + Send>;

/// The right to add so much to the group that forms, ahead of those who came later.
#[must_use = "it keeps room from others until it is dropped"]
pub struct Turn {
    line: Arc<Line>,
    cost: usize,
}

impl Turn {
    /// What it is worth: bytes, or records where these are counted.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Total order with `wait`: either this sees who waits, or the thread that is woken for it sees what came back.
        self.line.reserved.fetch_sub(self.cost, Ordering::SeqCst);
        // One that was used wakes the thread anyhow. One whose client is gone leaves nothing to write, and without this
        // the next in line would wait until the thread looks by itself.
        if self.line.is_waited_for() {
            self.line.signal.raise();
        }
    }
}

/// Who waits for room, and what is reserved for those whose turn it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Admittance {
    /// Batches that stand in line. Those whose connection gave up count until it would be their turn.
    pub waiting: usize,
    /// What they are worth: bytes, or records where these are counted.
    pub waiting_cost: usize,
    /// Batches of recovery, which do not stand in line.
    pub urgent: usize,
    /// What the turns given out are worth.
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

struct Place {
    cost: usize,
    waiter: RoomWaiter,
}

#[derive(Default)]
struct Places {
    ordinary: VecDeque<Place>,
    urgent: Vec<Place>,
}

/// The line of one shard.
pub(crate) struct Line {
    /// Wakes the thread of the shard's journal, which gives the turns.
    signal: Arc<Signal>,
    places: Mutex<Places>,
    /// Length of the ordinary line.
    waiting: AtomicUsize,
    urgent: AtomicUsize,
    /// Sum of the turns that are out.
    reserved: AtomicUsize,
}

impl Line {
    pub(crate) fn new(signal: Arc<Signal>) -> Line {
        Line {
            signal,
            places: Mutex::default(),
            waiting: AtomicUsize::new(0),
            urgent: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
        }
    }

    /// True while ordinary adds have to wait their turn.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn has_urgent(&self) -> bool {
        self.urgent.load(Ordering::Acquire) > 0
    }

    pub(crate) fn reserved(&self) -> usize {
        self.reserved.load(Ordering::SeqCst)
    }

    /// For operators: walks the line.
    pub(crate) fn admittance(&self) -> Admittance {
        let places = self.places.lock();
        Admittance {
            waiting: places.ordinary.len(),
            waiting_cost: places.ordinary.iter().map(|place| place.cost).sum(),
            urgent: places.urgent.len(),
            reserved: self.reserved(),
        }
    }

    /// Takes a place at the end. Gives back the oldest waiter when there are too many: it gave up long ago, most likely.
    #[must_use]
    pub(crate) fn wait(
        self: &Arc<Self>,
        cost: usize,
        is_urgent: bool,
        waiter: RoomWaiter,
    ) -> Option<(RoomWaiter, Turn)> {
        let mut places = self.places.lock();
        let place = Place { cost, waiter };
        if is_urgent && places.urgent.len() < WAITERS_MAX {
            places.urgent.push(place);
            self.urgent.store(places.urgent.len(), Ordering::Release);
            return None;
        }
        let oldest = if places.ordinary.len() >= WAITERS_MAX { places.ordinary.pop_front() } else { None };
        places.ordinary.push_back(place);
        self.waiting.store(places.ordinary.len(), Ordering::SeqCst);
        oldest.map(|place| (place.waiter, self.turn(0)))
    }

    fn turn(self: &Arc<Self>, cost: usize) -> Turn {
        self.reserved.fetch_add(cost, Ordering::AcqRel);
        Turn { line: self.clone(), cost }
    }

    /// Turns for the first of the line, as far as `room` goes, and for all urgent ones when there is room for them.
    /// `room` is what is neither formed nor reserved ([`Line::reserved`], read before them).
    pub(crate) fn give_turns(
        self: &Arc<Self>,
        mut room: usize,
        has_urgent_room: bool,
        into: &mut Vec<(RoomWaiter, Turn)>,
    ) {
        if !self.is_waited_for() && !self.has_urgent() {
            return;
        }
        let places = &mut *self.places.lock();
        if has_urgent_room {
            into.extend(places.urgent.drain(..).map(|place| (place.waiter, self.turn(0))));
        }
        while room > 0
            && let Some(place) = places.ordinary.pop_front()
        {
            // One that needs more takes what there is, and stands in line for the rest.
            let cost = place.cost.clamp(1, room);
            room -= cost;
            into.push((place.waiter, self.turn(cost)));
        }
        self.waiting.store(places.ordinary.len(), Ordering::SeqCst);
        self.urgent.store(places.urgent.len(), Ordering::Release);
    }

    /// Everybody, in order, when what they add is refused anyhow.
    pub(crate) fn let_all_go(self: &Arc<Self>, into: &mut Vec<(RoomWaiter, Turn)>) {
        let places = &mut *self.places.lock();
        into.extend(places.urgent.drain(..).map(|place| (place.waiter, self.turn(0))));
        self.urgent.store(0, Ordering::Release);
        self.drain_ordinary(places, into);
    }

    /// As [`Line::let_all_go`], but without those of recovery.
    pub(crate) fn let_ordinary_go(self: &Arc<Self>, into: &mut Vec<(RoomWaiter, Turn)>) {
        if self.is_waited_for() {
            self.drain_ordinary(&mut self.places.lock(), into);
        }
    }

    fn drain_ordinary(self: &Arc<Self>, places: &mut Places, into: &mut Vec<(RoomWaiter, Turn)>) {
        into.extend(places.ordinary.drain(..).map(|place| (place.waiter, self.turn(0))));
        self.waiting.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    /// Line invariant 3: a turn whose client is gone wakes the thread that gives the next one; without anybody in line
    /// it does not.
    #[test]
    fn a_turn_dropped_unused_wakes_the_journal_thread() {
        let signal = Arc::new(Signal::default());
        let is_raised = || signal.wait(Duration::ZERO);
        let line = Arc::new(Line::new(signal.clone()));
        let room = 10;
        for _ in 0..2 {
            assert!(line.wait(room, false, Box::new(drop)).is_none());
        }
        let mut given = Vec::new();
        line.give_turns(room - line.reserved(), true, &mut given);
        let (waiter, turn) = given.pop().unwrap();
        line.give_turns(room - line.reserved(), true, &mut given);
        assert!(given.is_empty(), "the first has all the room");
        assert!(!is_raised());
        waiter(turn);
        assert!(is_raised(), "there is room for the next");
        line.give_turns(room - line.reserved(), true, &mut given);
        let (waiter, turn) = given.pop().unwrap();
        waiter(turn);
        assert!(!is_raised(), "nobody waits");
        assert_eq!(line.reserved(), 0);
    }

    proptest! {
        /// Line invariants 2 and 3, and the order of the line.
        #[test]
        fn turns_come_in_order_within_the_room_and_come_back(
            steps in prop::collection::vec((0u8..3, 1usize..50), 1..200), room in 1usize..100,
        ) {
            let line = Arc::new(Line::new(Arc::default()));
            let order = Arc::new(Mutex::new(Vec::new()));
            let (mut number, mut held) = (0u64, VecDeque::new());
            for (step, cost) in steps {
                match step {
                    0 => {
                        let (order, mine) = (order.clone(), number);
                        let waiter = Box::new(move |turn: Turn| order.lock().push((mine, turn.cost())));
                        prop_assert!(line.wait(cost, false, waiter).is_none());
                        number += 1;
                    }
                    1 => {
                        let mut given = Vec::new();
                        line.give_turns(room - line.reserved(), true, &mut given);
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
