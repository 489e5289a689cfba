//! The reads of one connection that wait for their turn: descriptors only, no bytes.
//!
//! # Data flow
//! ```text
//!                   ┌─ fencing and high priority ─┐
//! push ─► line of ──┤                             ├─► next ─► load ─► answer ─► sent ─► finish ─► next of the line
//!         equal key └─ plain ─────────────────────┘             │
//!                   ▲      park ◄── not durable yet, fence under way ── unpark
//!                   │      park_for_tier ◄── in object storage alone ── arrive ─► before all others of its class
//!                   └── take_back ◄── dropped: the peer takes nothing
//! ```
//!
//! # Invariants
//! 1. On v2, responses of equal (ledger, entry) leave in request order (protocol reference, section 1.7): a client
//!    would take the answer of an older plain read for the end of a fencing. So of one key only the first of its line
//!    runs; the next starts when the one before it has finished: its answer is queued and will not be taken back, or, if
//!    it has entry bytes, the kernel has it. So a response that is dropped and loaded again overtakes no other of its key.
//! 2. A fencing read overtakes plain reads of other keys. Older reads of its own key go with it, just before it.
//! 3. At most `max` requests are held, and [`RESERVE`] more of the priority class, so that plain reads never keep a
//!    recovery out. While there is no room the reader takes no requests ([`ReadQueue::room`]); one that comes
//!    nevertheless (a long poll that ended, a fencing read behind many) is refused at once. If its key is being read,
//!    that refusal passes for the one of an older read, which is as good: reads of one key are alike, and it is the
//!    newer one that will be served. Not so when one of them fences: then the refusal waits for its turn; at most
//!    [`RESERVE`] of these are held.
//! 4. Each request pushed is given out by `next_*` exactly once between two `put_back`s, `take_back`s or `unpark`s, and
//!    leaves with `finish`.
//! 5. Those that are parked for object storage do not keep others out, up to [`IN_TIER_MAX`] of them.
//! 6. Descriptors are covered ([`crate::connection::reads::queue_memory`]), except those of the priority class.
//!    Requests that are not covered are refused as above.

use crate::connection::reads::queue_memory::{self, QueueMemory};
use crate::connection::request::{ReadKind, ReadRequest};
use crate::read_class::{PerClass, ReadClass};
use crate::tier::Waiting;
use bindery_engine::Refusal;
use bindery_flow::ByteBudget;
use foldhash::fast::RandomState;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

/// Requests of the priority class that are taken beyond the limit.
pub const RESERVE: usize = 1000;
/// Requests parked for object storage that are held beyond the limit: while that takes its time, others are taken.
pub const IN_TIER_MAX: usize = 4096;

/// Reads that an empty class keeps memory for.
const CLASS_KEPT: usize = 256;

type Key = (i64, i64);

/// The outcome of pushing a request.
#[derive(Debug, PartialEq)]
pub enum Pushed {
    /// It will run.
    Queued,
    /// Too many are held: it will be answered with too-many-requests when its turn comes. No further action is needed.
    RefusedInTurn,
    /// Too many are held, and nothing it could overtake: answer it with too-many-requests now.
    Refused(Box<ReadRequest>),
    /// Too many even of the refused ones: close the connection.
    Overflow,
}

/// The unfinished requests of a key.
#[derive(Default)]
struct Line {
    /// All but the first.
    behind: VecDeque<ReadRequest>,
    /// How many of all fence.
    fences: usize,
}

/// See the module.
pub struct ReadQueue {
    max: usize,
    /// Requests pushed and not finished.
    held: usize,
    /// Of these, refused ones that wait for their turn.
    refused_in_line: usize,
    /// Of these, those behind another one in a line.
    behind: usize,
    cover: QueueMemory,
    runnable: PerClass<VecDeque<ReadRequest>>,
    /// For each v2 key with an unfinished request. Nothing depends on its order.
    lines: HashMap<Key, Line, RandomState>,
    /// Given out and waiting for something; by `seq`.
    parked: HashMap<u64, ReadRequest>,
    /// Of the parked ones, those that wait for object storage.
    in_tier: usize,
    /// Given out, and set aside for a limit of their tenants.
    limited: usize,
    /// Parkings for object storage so far.
    tier_parkings: u64,
    /// Back from object storage, in the order in which they came: plain, high.
    arrived: PerClass<VecDeque<ReadRequest>>,
    /// Fences that ended before their request was given out; by `seq`.
    fences_done: HashMap<u64, Result<(), Refusal>>,
    /// A fencing read came behind another one of its key since this was asked.
    has_fence_behind: bool,
    /// The reader waits until there is room again.
    is_awaited: bool,
    /// Tells it.
    room_made: Arc<Notify>,
    /// Requests that finish from now on were queued before the close, and are no longer known.
    is_closed: bool,
}

/// The first of a class. Many of them may wait elsewhere when the class is empty, for a disk: its memory goes with them.
fn next_of(queue: &mut VecDeque<ReadRequest>) -> Option<ReadRequest> {
    let next = queue.pop_front();
    if queue.is_empty() && queue.capacity() > CLASS_KEPT {
        *queue = VecDeque::new();
    }
    next
}

fn key_of(request: &ReadRequest) -> Option<Key> {
    let is_keyed = request.reply.is_v2() && matches!(request.kind, ReadKind::Entry);
    is_keyed.then_some((request.ledger.get(), request.entry))
}

impl ReadQueue {
    /// Holds up to `max` requests, covered by `pool`.
    pub fn new(max: usize, pool: ByteBudget) -> ReadQueue {
        ReadQueue {
            max,
            held: 0,
            refused_in_line: 0,
            behind: 0,
            cover: QueueMemory::new(pool),
            runnable: PerClass::default(),
            lines: HashMap::default(),
            parked: HashMap::new(),
            in_tier: 0,
            limited: 0,
            tier_parkings: 0,
            arrived: PerClass::default(),
            fences_done: HashMap::new(),
            has_fence_behind: false,
            is_awaited: false,
            room_made: Arc::default(),
            is_closed: false,
        }
    }

    /// How many plain reads it takes now, after an attempt to make that at least one. With none, the connection is not
    /// read (invariant 3); see [`ReadQueue::await_room`].
    pub fn room(&mut self) -> usize {
        self.cover.reach(self.held).min(self.max()).saturating_sub(self.held)
    }

    /// Plain requests that are held at most (invariant 5).
    fn max(&self) -> usize {
        self.max + self.in_tier.min(IN_TIER_MAX)
    }

    /// The handle that is notified once there is room for some reads, unless there is room now. Room will come: the
    /// held requests finish.
    pub fn await_room(&mut self) -> Option<Arc<Notify>> {
        self.is_awaited = self.room() == 0;
        self.is_awaited.then(|| self.room_made.clone())
    }

    /// Takes a request, unless too many are held (invariant 3).
    pub fn push(&mut self, mut request: ReadRequest) -> Pushed {
        let is_full = match request.class.is_priority() {
            true => self.held >= self.max() + RESERVE,
            false => self.held >= self.max() || self.cover.reach(self.held) <= self.held,
        };
        if is_full {
            let line = key_of(&request).and_then(|key| self.lines.get_mut(&key));
            let Some(line) = line.filter(|line| request.is_fence || line.fences > 0) else {
                return Pushed::Refused(Box::new(request));
            };
            if self.refused_in_line >= RESERVE {
                return Pushed::Overflow;
            }
            self.refused_in_line += 1;
            self.held += 1;
            self.behind += 1;
            line.fences += usize::from(request.is_fence);
            request.wait_outcome = Some(Err(Refusal::TooManyRequests));
            line.behind.push_back(request);
            return Pushed::RefusedInTurn;
        }
        self.held += 1;
        let Some(key) = key_of(&request) else {
            self.enqueue(request);
            return Pushed::Queued;
        };
        match self.lines.entry(key) {
            Entry::Vacant(place) => {
                place.insert(Line { fences: usize::from(request.is_fence), ..Line::default() });
                self.enqueue(request);
            }
            Entry::Occupied(line) => {
                let line = line.into_mut();
                let promotes = request.class.is_priority();
                if promotes {
                    line.behind.iter_mut().for_each(|older| older.class = ReadClass::Priority);
                }
                line.fences += usize::from(request.is_fence);
                line.behind.push_back(request);
                self.behind += 1;
                if promotes {
                    self.has_fence_behind = true;
                    self.promote_first(key);
                }
            }
        }
        Pushed::Queued
    }

    /// Moves the runnable request of a key from the plain class to the other (invariant 2). Linear, but a connection
    /// pays only for its own fencing reads of keys it is already reading.
    fn promote_first(&mut self, key: Key) {
        if let Some(at) = self.runnable.plain.iter().position(|r| key_of(r) == Some(key)) {
            let mut first = self.runnable.plain.remove(at).expect("the position was just found");
            first.class = ReadClass::Priority;
            self.runnable.priority.push_back(first);
        }
    }

    fn enqueue(&mut self, request: ReadRequest) {
        self.runnable[request.class].push_back(request);
    }

    /// The next request of a class.
    pub fn next(&mut self, class: ReadClass) -> Option<ReadRequest> {
        next_of(&mut self.arrived[class]).or_else(|| next_of(&mut self.runnable[class]))
    }

    /// The next plain request, if it is this one, that was put back.
    pub fn next_put_back(&mut self, seq: u64) -> Option<ReadRequest> {
        let is_next = self.runnable.plain.front().is_some_and(|request| request.seq == seq);
        if is_next { self.runnable.plain.pop_front() } else { None }
    }

    /// How many plain requests come next that follow `request` ([`ReadRequest::is_followed_by`]); at most `most`.
    pub fn count_following(&self, request: &ReadRequest, most: usize) -> usize {
        request.count_following(&self.runnable.plain, most)
    }

    /// The next plain request, if it follows `request`.
    pub fn next_following(&mut self, request: &ReadRequest) -> Option<ReadRequest> {
        request.take_following(&mut self.runnable.plain)
    }

    /// True when `next` would give something.
    pub fn has_next(&self) -> bool {
        self.runnable.iter().chain(self.arrived.iter()).any(|queue| !queue.is_empty())
    }

    /// Returns a request that was given out and cannot start now, to the front of its class.
    pub fn put_back(&mut self, request: ReadRequest) {
        self.runnable[request.class].push_front(request);
    }

    /// True when a fencing or high-priority read came behind another one of its key since this was called last.
    pub fn take_fence_behind(&mut self) -> bool {
        std::mem::take(&mut self.has_fence_behind)
    }

    /// True when a fencing or high-priority read waits for this one, which was given out.
    pub fn is_before_fence(&self, request: &ReadRequest) -> bool {
        let line = key_of(request).and_then(|key| self.lines.get(&key));
        line.is_some_and(|line| line.behind.iter().any(|later| later.class.is_priority()))
    }

    /// Returns requests whose responses were dropped, in the order of those, to the front of their classes. One with a
    /// fencing read behind it in its line goes with that (invariant 2).
    pub fn take_back(&mut self, requests: Vec<ReadRequest>) {
        for mut request in requests.into_iter().rev() {
            let line = key_of(&request).and_then(|key| self.lines.get(&key));
            let behind = line.and_then(|line| line.behind.iter().map(|later| later.class).max());
            request.class = request.class.max(behind.unwrap_or_default());
            self.put_back(request);
        }
    }

    /// Keeps a request that was given out until `unpark`.
    pub fn park(&mut self, request: ReadRequest) {
        let previous = self.parked.insert(request.seq, request);
        assert!(previous.is_none(), "a request is given out once (read queue invariant 4)");
    }

    /// Brings a parked request back with the outcome of its wait, to the front of its class. False when there is none.
    pub fn unpark(&mut self, seq: u64, outcome: Result<(), Refusal>) -> bool {
        let Some(mut request) = self.parked.remove(&seq) else { return false };
        request.wait_outcome = Some(outcome);
        self.put_back(request);
        true
    }

    /// Keeps a request that was given out until its entry comes from object storage. Returns the number of this parking.
    pub fn park_for_tier(&mut self, mut request: ReadRequest) -> u64 {
        self.tier_parkings += 1;
        request.tier.get_or_insert_default().parked = self.tier_parkings;
        self.in_tier += 1;
        self.park(request);
        self.tier_parkings
    }

    /// Keeps the place of a request that is parked for object storage; gives it back when that parking is over.
    #[must_use = "a place is not to be dropped with the lock held"]
    pub fn hold_for_tier(&mut self, seq: u64, parked: u64, waiting: Waiting) -> Option<Waiting> {
        let tier = self.parked.get_mut(&seq).and_then(|request| request.tier.as_mut());
        match tier.filter(|tier| tier.parked == parked && tier.waiting.is_none()) {
            Some(tier) => {
                tier.waiting = Some(waiting);
                None
            }
            None => Some(waiting),
        }
    }

    /// The request whose wait for object storage is over.
    pub fn unpark_from_tier(&mut self, seq: u64) -> Option<ReadRequest> {
        let request = self.parked.remove(&seq)?;
        self.in_tier -= 1;
        Some(request)
    }

    /// Brings a request back from object storage, behind those that came before it.
    pub fn arrive(&mut self, request: ReadRequest) {
        self.arrived[request.class].push_back(request);
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

    /// A request is answered for good (invariant 1): the next of its line may run. True when there is one; never after
    /// `clear`, which may come between an answer and this.
    pub fn finish(&mut self, request: &ReadRequest) -> bool {
        if self.is_closed {
            return false;
        }
        self.release(request);
        let has_next = self.finish_in_line(request);
        if self.held == 0 {
            self.shrink();
        }
        has_next
    }

    /// A request is held no more.
    fn release(&mut self, request: &ReadRequest) {
        self.held -= 1;
        if request.wait_outcome == Some(Err(Refusal::TooManyRequests)) {
            self.refused_in_line = self.refused_in_line.saturating_sub(1);
        }
        self.cover.release(self.held);
        // Not for each single read: the reader would be woken for each.
        if self.is_awaited && (self.held <= queue_memory::FREE / 2 || self.room() >= queue_memory::STEP) {
            self.is_awaited = false;
            self.room_made.notify_one();
        }
    }

    /// Tells the reader of the room that there is, however little: more may be long in coming.
    pub fn offer_room(&mut self) {
        if self.is_awaited && self.room() > 0 {
            self.is_awaited = false;
            self.room_made.notify_one();
        }
    }

    /// True while the reader waits for room.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// True when a read waits for another one of its key.
    pub fn has_behind(&self) -> bool {
        self.behind > 0
    }

    /// Takes up to `most` reads that are late and wait behind another one of their key, which may be long in coming. They are
    /// finished thereby, and to be refused: that passes for the answer to an older one, which is as good (invariant 3). Not
    /// where one of the line fences.
    pub fn take_late(&mut self, most: usize, is_late: impl Fn(&ReadRequest) -> bool) -> Vec<ReadRequest> {
        let mut late = Vec::new();
        for line in self.lines.values_mut().filter(|line| line.fences == 0) {
            while late.len() < most
                && let Some(request) = line.behind.pop_front()
            {
                if !is_late(&request) {
                    line.behind.push_front(request);
                    break;
                }
                late.push(request);
            }
        }
        // The order of a map is none.
        late.sort_unstable_by_key(|request| request.seq);
        self.behind -= late.len();
        late.iter().for_each(|request| self.release(request));
        late
    }

    /// Memory that many requests took goes when none is left: it is not covered by any other means (invariant 5).
    fn shrink(&mut self) {
        const KEPT: usize = 2 * queue_memory::FREE;
        // Most connections ask for more than this, over and over: the kept part does not have to grow again.
        for lane in self.runnable.iter_mut().chain(self.arrived.iter_mut()) {
            lane.shrink_to(KEPT);
        }
        if self.lines.capacity() > KEPT {
            self.lines.shrink_to(KEPT / 8 * 7);
        }
        if self.parked.capacity() > KEPT {
            self.parked = HashMap::new();
        }
        if self.fences_done.is_empty() && self.fences_done.capacity() > KEPT {
            self.fences_done = HashMap::new();
        }
    }

    fn finish_in_line(&mut self, request: &ReadRequest) -> bool {
        let Some(key) = key_of(request) else { return false };
        let Entry::Occupied(mut place) = self.lines.entry(key) else {
            panic!("an unfinished request has a line (read queue invariant 1)");
        };
        let line = place.get_mut();
        line.fences -= usize::from(request.is_fence);
        match line.behind.pop_front() {
            Some(next) => {
                self.behind -= 1;
                self.enqueue(next);
                true
            }
            None => {
                place.remove();
                false
            }
        }
    }

    /// Requests held.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Requests held that do not wait for object storage or for a limit: what makes work here.
    pub fn in_hand(&self) -> usize {
        self.held.saturating_sub(self.in_tier + self.limited)
    }

    /// So many of those that were given out are set aside for a limit.
    pub fn set_limited(&mut self, limited: usize) {
        self.limited = limited;
    }

    /// Bytes of the control pool that it has.
    pub fn leased_bytes(&self) -> u64 {
        self.cover.leased_bytes()
    }

    /// Forgets everything: the connection is closed. A long poll that ends just then may still be pushed; it is not
    /// run. The old queue is to be dropped without the lock.
    #[must_use = "it is not to be dropped with the lock held"]
    pub fn clear(&mut self) -> ReadQueue {
        let room_made = self.room_made.clone();
        let new = ReadQueue { room_made, is_closed: true, ..ReadQueue::new(self.max, self.cover.pool()) };
        std::mem::replace(self, new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::future::Future;
    use std::task::{Context, Waker};

    fn read(seq: u64, entry: i64, is_fence: bool) -> ReadRequest {
        ReadRequest { is_fence, class: ReadClass::of(is_fence), ..ReadRequest::for_test(seq, entry) }
    }

    fn queue(max: usize) -> ReadQueue {
        ReadQueue::new(max, ByteBudget::new("control", 64 << 20))
    }

    fn next(queue: &mut ReadQueue) -> Option<ReadRequest> {
        queue.next(ReadClass::Priority).or_else(|| queue.next(ReadClass::Plain))
    }

    #[test]
    fn reads_parked_for_object_storage_keep_no_others_out_and_come_back_first() {
        let mut queue = queue(2);
        for seq in 0..2 {
            assert_eq!(queue.push(read(seq, seq as i64, false)), Pushed::Queued);
        }
        assert_eq!(queue.room(), 0);
        let (first, second) = (queue.next(ReadClass::Plain).unwrap(), queue.next(ReadClass::Plain).unwrap());
        let parked = [first, second].map(|request| queue.park_for_tier(request));
        assert_eq!((queue.len(), queue.in_hand(), queue.room()), (2, 0, 2), "read queue invariant 5");
        assert!(queue.hold_for_tier(0, parked[0], Waiting::for_test()).is_none());
        assert!(queue.hold_for_tier(0, parked[0], Waiting::for_test()).is_some(), "it is held already");
        assert!(queue.hold_for_tier(1, parked[0], Waiting::for_test()).is_some(), "of another parking");
        for seq in 2..4 {
            assert_eq!(queue.push(read(seq, seq as i64, false)), Pushed::Queued);
        }
        assert!(matches!(queue.push(read(4, 4, false)), Pushed::Refused(_)));
        for seq in [1, 0] {
            let request = queue.unpark_from_tier(seq).unwrap();
            queue.arrive(request);
        }
        assert!(queue.unpark_from_tier(0).is_none());
        assert_eq!((queue.len(), queue.in_hand(), queue.room()), (4, 4, 0));
        let order = std::iter::from_fn(|| {
            let request = queue.next(ReadClass::Plain)?;
            queue.finish(&request);
            Some(request.seq)
        });
        assert_eq!(order.collect::<Vec<_>>(), [1, 0, 2, 3]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_fencing_read_overtakes_other_keys_and_takes_its_own_along() {
        let mut queue = queue(10);
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

    /// A close between an answer and its `finish`, and a long poll that ends just then.
    #[test]
    fn what_finishes_after_the_close_is_nobodys() {
        let mut queue = queue(10);
        assert_eq!(queue.push(read(0, 7, false)), Pushed::Queued);
        let answered = next(&mut queue).unwrap();
        drop(queue.clear());
        assert_eq!(queue.push(read(1, 8, false)), Pushed::Queued);
        assert!(!queue.finish(&answered));
    }

    #[test]
    fn a_later_plain_read_of_the_key_waits_for_the_fence() {
        let mut queue = queue(10);
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
        let mut queue = queue(2);
        assert_eq!(queue.push(read(0, 0, false)), Pushed::Queued);
        assert_eq!(queue.push(read(1, 1, false)), Pushed::Queued);
        assert!(matches!(queue.push(read(2, 2, false)), Pushed::Refused(_)));
        assert_eq!(queue.push(read(3, 3, true)), Pushed::Queued);
    }

    #[test]
    fn a_full_queue_refuses_plain_reads_at_once_also_those_of_a_key_that_is_read() {
        let mut queue = queue(1);
        assert_eq!(queue.push(read(0, 7, false)), Pushed::Queued);
        for seq in 1..5000 {
            assert!(matches!(queue.push(read(seq, 7, false)), Pushed::Refused(_)), "invariant 3");
        }
        assert_eq!(queue.push(read(5000, 7, true)), Pushed::Queued, "fencing has its reserve");
        assert_eq!(queue.push(read(5001, 7, false)), Pushed::RefusedInTurn, "and now order counts");
    }

    /// Read queue invariant 1 when the queue is full: the refusal of a fencing read must not be taken for the answer of
    /// the older plain read, whose answer would then pass for the end of the fencing.
    #[test]
    fn a_refusal_waits_for_the_older_read_of_its_key() {
        let mut queue = queue(1);
        assert_eq!(queue.push(read(0, -1, false)), Pushed::Queued);
        for seq in 1..=RESERVE as u64 {
            assert_eq!(queue.push(read(seq, 1000 + seq as i64, true)), Pushed::Queued);
        }
        assert_eq!(queue.push(read(5000, -1, true)), Pushed::RefusedInTurn);
        let older = queue.next(ReadClass::Plain).unwrap();
        assert_eq!((older.seq, older.wait_outcome), (0, None));
        assert!(queue.finish(&older), "now it is the turn of the refused one");
        while let Some(request) = queue.next(ReadClass::Priority) {
            if request.seq == 5000 {
                assert_eq!(request.wait_outcome, Some(Err(Refusal::TooManyRequests)));
                return;
            }
            queue.finish(&request);
        }
        panic!("the refused read was never answered");
    }

    /// Invariant 3: a waiter for room is notified once, when there is room for more than one read.
    #[test]
    fn room_is_made_by_reads_that_finish() {
        let mut queue = queue(100);
        for seq in 0..100 {
            assert!(queue.room() > 0 && queue.await_room().is_none());
            assert_eq!(queue.push(read(seq, seq as i64, false)), Pushed::Queued);
        }
        let room_made = queue.await_room().unwrap();
        let is_told = || {
            let told = std::pin::pin!(room_made.notified());
            told.poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        for finished in 1..=100 {
            let request = queue.next(ReadClass::Plain).unwrap();
            queue.finish(&request);
            assert_eq!(is_told(), finished == queue_memory::STEP, "after {finished}");
        }
        assert_eq!(queue.room(), queue_memory::FREE);
    }

    /// Invariant 5.
    #[test]
    fn greedy_connections_leave_room_for_others_and_give_theirs_back() {
        let pool = ByteBudget::new("control", 16 << 20);
        let mut queues: Vec<_> = (0..64).map(|_| ReadQueue::new(20_000, pool.clone())).collect();
        for queue in &mut queues {
            for seq in 0..20_000 {
                queue.push(read(seq, seq as i64, false));
            }
        }
        assert!(pool.gauge().used <= pool.capacity());
        let mut healthy = ReadQueue::new(20_000, pool.clone());
        let take = |queue: &mut ReadQueue| {
            (0..20_000).take_while(|seq| queue.push(read(*seq, *seq as i64, false)) == Pushed::Queued).count()
        };
        assert!(
            take(&mut healthy) >= queue_memory::FREE + queue_memory::STEP,
            "a first step for the next one"
        );
        let fence = read(20_000, 50_000, true);
        assert_eq!(queues[0].push(fence), Pushed::Queued, "fences are taken beyond the pool");
        for queue in queues.iter_mut().chain([&mut healthy]) {
            while let Some(request) = next(queue) {
                queue.finish(&request);
            }
        }
        assert_eq!(pool.gauge().used, 0);
        assert!(take(&mut healthy) >= 5_000, "who is alone pipelines deeply");
        drop(healthy.clear());
        assert_eq!(pool.gauge().used, 0);
    }

    /// Behind one that takes for ever: plain reads may be refused, in their order; where one of them fences, order counts.
    #[test]
    fn late_reads_behind_another_of_their_key_are_taken_out_unless_one_fences() {
        let mut queue = queue(10);
        for (seq, entry) in [(0, 7), (1, 7), (2, 8), (3, 7), (4, 8), (5, 7)] {
            assert_eq!(queue.push(read(seq, entry, false)), Pushed::Queued);
        }
        assert_eq!(queue.push(read(6, 8, true)), Pushed::Queued);
        let first = queue.next(ReadClass::Plain).unwrap();
        let late = |queue: &mut ReadQueue, most, before| {
            queue.take_late(most, |request| request.seq < before).iter().map(|r| r.seq).collect::<Vec<_>>()
        };
        assert!(late(&mut queue, 0, 10).is_empty());
        assert_eq!(late(&mut queue, 10, 4), [1, 3], "the next one is not late, and entry 8 is fenced");
        assert!(queue.has_behind());
        assert_eq!((queue.len(), late(&mut queue, 10, 4).len()), (5, 0));
        assert!(queue.finish(&first), "one is left behind it");
        let order = std::iter::from_fn(|| {
            let request = queue.next(ReadClass::Priority).or_else(|| queue.next(ReadClass::Plain))?;
            queue.finish(&request);
            Some(request.seq)
        });
        assert_eq!(order.collect::<Vec<_>>(), [2, 4, 6, 5]);
        assert!(queue.len() == 0 && !queue.has_behind());
    }

    #[test]
    fn an_idle_connection_keeps_no_memory_of_a_deep_pipeline() {
        let mut queue = queue(20_000);
        for seq in 0..5000 {
            assert_eq!(queue.push(read(seq, seq as i64, seq % 2 == 0)), Pushed::Queued);
        }
        while let Some(request) = next(&mut queue) {
            if let Some(request) = if request.is_fence { queue.await_fence(request) } else { Some(request) } {
                queue.finish(&request);
            }
        }
        for seq in (0..5000).filter(|seq| seq % 2 == 0) {
            assert!(queue.fence_done(seq, Ok(())));
            let fence = next(&mut queue).unwrap();
            queue.finish(&fence);
        }
        let kept = [
            queue.runnable.priority.capacity(),
            queue.runnable.plain.capacity(),
            queue.lines.capacity(),
            queue.parked.capacity(),
            queue.fences_done.capacity(),
        ];
        assert!(kept.iter().all(|capacity| *capacity <= 2 * queue_memory::FREE), "{kept:?}");
    }

    #[test]
    fn dropped_responses_come_first_again_and_go_along_with_a_fence_of_their_key() {
        let mut queue = queue(10);
        for (seq, entry) in [(0, 7), (1, -1), (2, 8), (3, 9)] {
            assert_eq!(queue.push(read(seq, entry, false)), Pushed::Queued);
        }
        let answered: Vec<_> = (0..3).map(|_| queue.next(ReadClass::Plain).unwrap()).collect();
        assert_eq!(queue.push(read(4, -1, true)), Pushed::Queued);
        assert!(
            queue.next(ReadClass::Priority).is_none(),
            "the older read of the key is answered, but not sent: invariant 1"
        );
        queue.take_back(answered);
        let first = queue.next(ReadClass::Priority).unwrap();
        assert_eq!((first.seq, first.class), (1, ReadClass::Priority), "invariant 2");
        let order: Vec<_> =
            std::iter::from_fn(|| queue.next(ReadClass::Plain)).map(|request| request.seq).collect();
        assert_eq!(order, [0, 2, 3]);
        queue.finish(&first);
        assert_eq!(queue.next(ReadClass::Priority).unwrap().seq, 4);
    }

    proptest! {
        /// Invariants 1 and 4, with loads that finish in any order and are put back, taken back or parked at will.
        #[test]
        fn equal_keys_are_answered_in_request_order(
            arrivals in prop::collection::vec((0i64..4, prop::bool::weighted(0.2)), 1..60),
            choices in prop::collection::vec(any::<u8>(), 200..400),
        ) {
            let mut queue = queue(1000);
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
                    3 if choice > 220 => queue.take_back(std::mem::take(&mut running)),
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
