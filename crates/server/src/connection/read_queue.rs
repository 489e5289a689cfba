//! The reads of one connection that wait for their turn: descriptors only, no bytes.
//!
//! # Data flow
//! ```text
//!                   ┌─ fencing and high priority ─┐
//! push ─► line of ──┤                             ├─► next ─► load ─► answer ─► finish ─► next of the line
//!         equal key └─ plain ─────────────────────┘
//!                          park ◄── not durable yet, fence under way ── unpark
//! ```
//!
//! # Invariants
//! 1. On v2, responses of equal (ledger, entry) leave in request order (protocol reference, section 1.7): a client
//!    would take the answer of an older plain read for the end of a fencing. So of one key only the first of its line
//!    runs; the next starts when the answer of the one before it is queued.
//! 2. A fencing read overtakes plain reads of other keys. Older reads of its own key go with it, just before it.
//! 3. At most `max` requests are held, and [`RESERVE`] more of the fencing lane, so that plain reads never keep a
//!    recovery out. A v2 request beyond that whose key is being read is refused in its turn, for invariant 1; at most
//!    [`RESERVE`] of these are held.
//! 4. Each request pushed is given out by `next_*` exactly once between two `put_back`s or `unpark`s, and leaves with
//!    `finish`.

use super::request::{ReadKind, ReadRequest};
use bindery_engine::Refusal;
use std::collections::{HashMap, VecDeque};

/// Requests of the fencing lane that are taken beyond the limit.
pub const RESERVE: usize = 1000;

type Key = (i64, i64);

/// What became of a request that was pushed.
#[derive(Debug, PartialEq)]
pub enum Pushed {
    /// It will run.
    Queued,
    /// Too many are held: it will be answered with too-many-requests when its turn comes. Do nothing else for it.
    RefusedInTurn,
    /// Too many are held, and nothing it could overtake: answer it with too-many-requests now.
    Refused(Box<ReadRequest>),
    /// Too many even of the refused ones: close the connection.
    Overflow,
}

/// See the module.
pub struct ReadQueue {
    max: usize,
    /// Requests pushed and not finished.
    held: usize,
    high: VecDeque<ReadRequest>,
    plain: VecDeque<ReadRequest>,
    /// For each v2 key with an unfinished request: the ones behind it. Never iterated.
    lines: HashMap<Key, VecDeque<ReadRequest>>,
    /// Given out and waiting for something; by `seq`.
    parked: HashMap<u64, ReadRequest>,
    /// Fences that ended before their request was given out; by `seq`.
    fences_done: HashMap<u64, Result<(), Refusal>>,
}

fn key_of(request: &ReadRequest) -> Option<Key> {
    let is_keyed = request.reply.is_v2() && matches!(request.kind, ReadKind::Entry);
    is_keyed.then_some((request.ledger.get(), request.entry))
}

impl ReadQueue {
    /// Holds up to `max` requests.
    pub fn new(max: usize) -> ReadQueue {
        ReadQueue {
            max,
            held: 0,
            high: VecDeque::new(),
            plain: VecDeque::new(),
            lines: HashMap::new(),
            parked: HashMap::new(),
            fences_done: HashMap::new(),
        }
    }

    /// Takes a request, unless too many are held (invariant 3).
    #[cfg(test)]
    pub fn push(&mut self, request: ReadRequest) -> Pushed {
        self.push_within(request, usize::MAX)
    }

    /// Takes a request, unless too many are held (invariant 3), or as many as there is memory for. The fencing lane
    /// does not ask for memory.
    pub fn push_within(&mut self, mut request: ReadRequest, covered: usize) -> Pushed {
        let max = if request.is_high { self.max + RESERVE } else { self.max.min(covered) };
        if self.held >= max {
            let Some(line) = key_of(&request).and_then(|key| self.lines.get_mut(&key)) else {
                return Pushed::Refused(Box::new(request));
            };
            if self.held >= self.max + 2 * RESERVE {
                return Pushed::Overflow;
            }
            self.held += 1;
            request.wait_outcome = Some(Err(Refusal::TooManyRequests));
            line.push_back(request);
            return Pushed::RefusedInTurn;
        }
        self.held += 1;
        let Some(key) = key_of(&request) else {
            self.enqueue(request);
            return Pushed::Queued;
        };
        match self.lines.get_mut(&key) {
            None => {
                self.lines.insert(key, VecDeque::new());
                self.enqueue(request);
            }
            Some(line) => {
                let promotes = request.is_high;
                if promotes {
                    line.iter_mut().for_each(|older| older.is_high = true);
                }
                line.push_back(request);
                if promotes {
                    self.promote_first(key);
                }
            }
        }
        Pushed::Queued
    }

    /// Moves the runnable request of a key from the plain lane to the other (invariant 2). Linear, but a connection
    /// pays only for its own fencing reads of keys it is already reading.
    fn promote_first(&mut self, key: Key) {
        if let Some(at) = self.plain.iter().position(|r| key_of(r) == Some(key)) {
            let mut first = self.plain.remove(at).expect("the position was just found");
            first.is_high = true;
            self.high.push_back(first);
        }
    }

    fn enqueue(&mut self, request: ReadRequest) {
        if request.is_high { self.high.push_back(request) } else { self.plain.push_back(request) }
    }

    /// The next request of the fencing lane.
    pub fn next_high(&mut self) -> Option<ReadRequest> {
        self.high.pop_front()
    }

    /// The next plain request.
    pub fn next_plain(&mut self) -> Option<ReadRequest> {
        self.plain.pop_front()
    }

    /// True when `next_high` or `next_plain` would give something.
    pub fn has_next(&self) -> bool {
        !(self.high.is_empty() && self.plain.is_empty())
    }

    /// Returns a request that was given out and cannot start now, to the front of its lane.
    pub fn put_back(&mut self, request: ReadRequest) {
        if request.is_high { self.high.push_front(request) } else { self.plain.push_front(request) }
    }

    /// Keeps a request that was given out until `unpark`.
    pub fn park(&mut self, request: ReadRequest) {
        let previous = self.parked.insert(request.seq, request);
        assert!(previous.is_none(), "a request is given out once (read queue invariant 4)");
    }

    /// Brings a parked request back with the outcome of its wait, to the front of its lane. False when there is none.
    pub fn unpark(&mut self, seq: u64, outcome: Result<(), Refusal>) -> bool {
        let Some(mut request) = self.parked.remove(&seq) else { return false };
        request.wait_outcome = Some(outcome);
        self.put_back(request);
        true
    }

    /// Keeps a fencing read until its fence is durable, or gives it back with the outcome when it is already.
    pub fn await_fence(&mut self, mut request: ReadRequest) -> Option<ReadRequest> {
        match self.fences_done.remove(&request.seq) {
            Some(outcome) => {
                request.wait_outcome = Some(outcome);
                Some(request)
            }
            None => {
                self.park(request);
                None
            }
        }
    }

    /// The fence of request `seq` ended; true when the request can run now.
    pub fn fence_done(&mut self, seq: u64, outcome: Result<(), Refusal>) -> bool {
        let unparked = self.unpark(seq, outcome);
        if !unparked {
            self.fences_done.insert(seq, outcome);
        }
        unparked
    }

    /// The answer of a request is queued: the next of its line may run. True when there is one.
    pub fn finish(&mut self, request: &ReadRequest) -> bool {
        self.held -= 1;
        let Some(key) = key_of(request) else { return false };
        let line =
            self.lines.get_mut(&key).expect("an unfinished request has a line (read queue invariant 1)");
        match line.pop_front() {
            Some(next) => {
                self.enqueue(next);
                true
            }
            None => {
                self.lines.remove(&key);
                false
            }
        }
    }

    /// Requests held.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Forgets everything: the connection is closed. `finish` must not be called afterwards.
    pub fn clear(&mut self) {
        *self = ReadQueue::new(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::Reply;
    use super::*;
    use bindery_types::LedgerId;
    use proptest::prelude::*;

    fn read(seq: u64, entry: i64, is_fence: bool) -> ReadRequest {
        ReadRequest {
            seq,
            kind: ReadKind::Entry,
            ledger: LedgerId::MIN,
            entry,
            reply: Reply::V2 { version: 2 },
            received_ns: 0,
            started_ns: 0,
            promised: 28,
            is_fence,
            is_high: is_fence,
            size_hint: 0,
            wait_outcome: None,
        }
    }

    fn next(queue: &mut ReadQueue) -> Option<ReadRequest> {
        queue.next_high().or_else(|| queue.next_plain())
    }

    #[test]
    fn a_fencing_read_overtakes_other_keys_and_takes_its_own_along() {
        let mut queue = ReadQueue::new(10);
        for (seq, entry) in [(0, 7), (1, -1), (2, 8), (3, -1)] {
            assert_eq!(queue.push(read(seq, entry, false)), Pushed::Queued);
        }
        assert_eq!(queue.push(read(4, -1, true)), Pushed::Queued);
        assert_eq!(queue.push(read(5, -1, false)), Pushed::Queued);
        queue.fence_done(4, Ok(()));
        let mut order = Vec::new();
        while let Some(request) = next(&mut queue) {
            let Some(request) = (if request.is_fence { queue.await_fence(request) } else { Some(request) })
            else {
                continue;
            };
            order.push(request.seq);
            queue.finish(&request);
        }
        assert_eq!(order, [1, 3, 4, 0, 2, 5], "invariants 1 and 2");
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_later_plain_read_of_the_key_waits_for_the_fence() {
        let mut queue = ReadQueue::new(10);
        assert_eq!(queue.push(read(0, -1, true)), Pushed::Queued);
        assert_eq!(queue.push(read(1, -1, false)), Pushed::Queued);
        let fence = next(&mut queue).unwrap();
        assert!(queue.await_fence(fence).is_none());
        assert!(next(&mut queue).is_none(), "invariant 1: request 1 must not be answered first");
        assert!(queue.fence_done(0, Err(Refusal::Io)));
        let fence = next(&mut queue).unwrap();
        assert_eq!(fence.wait_outcome, Some(Err(Refusal::Io)));
        assert!(queue.finish(&fence));
        assert_eq!(next(&mut queue).unwrap().seq, 1);
    }

    #[test]
    fn a_full_queue_still_takes_fencing_reads() {
        let mut queue = ReadQueue::new(2);
        assert_eq!(queue.push(read(0, 0, false)), Pushed::Queued);
        assert_eq!(queue.push(read(1, 1, false)), Pushed::Queued);
        assert!(matches!(queue.push(read(2, 2, false)), Pushed::Refused(_)));
        assert_eq!(queue.push(read(3, 3, true)), Pushed::Queued);
    }

    /// Read queue invariant 1 when the queue is full: the refusal of a fencing read must not be taken for the answer of
    /// the older plain read, whose answer would then pass for the end of the fencing.
    #[test]
    fn a_refusal_waits_for_the_older_read_of_its_key() {
        let mut queue = ReadQueue::new(1);
        assert_eq!(queue.push(read(0, -1, false)), Pushed::Queued);
        for seq in 1..=RESERVE as u64 {
            assert_eq!(queue.push(read(seq, 1000 + seq as i64, true)), Pushed::Queued);
        }
        assert_eq!(queue.push(read(5000, -1, true)), Pushed::RefusedInTurn);
        let older = queue.next_plain().unwrap();
        assert_eq!((older.seq, older.wait_outcome), (0, None));
        assert!(queue.finish(&older), "now it is the turn of the refused one");
        while let Some(request) = queue.next_high() {
            if request.seq == 5000 {
                assert_eq!(request.wait_outcome, Some(Err(Refusal::TooManyRequests)));
                return;
            }
            queue.finish(&request);
        }
        panic!("the refused read was never answered");
    }

    proptest! {
        /// Invariants 1 and 4, with loads that finish in any order and are put back or parked at will.
        #[test]
        fn equal_keys_are_answered_in_request_order(
            arrivals in prop::collection::vec((0i64..4, prop::bool::weighted(0.2)), 1..60),
            choices in prop::collection::vec(any::<u8>(), 200..400),
        ) {
            let mut queue = ReadQueue::new(1000);
            let mut answered: Vec<ReadRequest> = Vec::new();
            let mut running: Vec<ReadRequest> = Vec::new();
            let mut arrivals = arrivals.into_iter().enumerate();
            let mut parked: Vec<u64> = Vec::new();
            let mut choices = choices.into_iter().cycle();
            let mut total = 0;
            let mut quiet = 0;
            while quiet < 400 {
                quiet += 1;
                let choice = choices.next().unwrap();
                match choice % 5 {
                    0 => if let Some((seq, (entry, is_fence))) = arrivals.next() {
                        assert_eq!(queue.push(read(seq as u64, entry, is_fence)), Pushed::Queued);
                        if is_fence {
                            parked.push(seq as u64);
                        }
                        total += 1;
                        quiet = 0;
                    },
                    1 | 2 => if let Some(request) = next(&mut queue) {
                        quiet = 0;
                        if request.is_fence && request.wait_outcome.is_none() {
                            running.extend(queue.await_fence(request));
                        } else if choice > 200 {
                            queue.put_back(request);
                        } else {
                            running.push(request);
                        }
                    },
                    3 => if !running.is_empty() {
                        quiet = 0;
                        let request = running.remove(choice as usize % running.len());
                        queue.finish(&request);
                        answered.push(request);
                    },
                    _ => if !parked.is_empty() {
                        quiet = 0;
                        queue.fence_done(parked.remove(choice as usize % parked.len()), Ok(()));
                    },
                }
            }
            prop_assert_eq!(answered.len(), total);
            prop_assert_eq!(queue.len(), 0);
            prop_assert!(queue.lines.is_empty() && queue.parked.is_empty() && queue.fences_done.is_empty());
            for entry in 0..4 {
                let of_key: Vec<u64> = answered.iter().filter(|r| r.entry == entry).map(|r| r.seq).collect();
                prop_assert!(of_key.is_sorted(), "invariant 1: {of_key:?}");
            }
        }
    }
}
