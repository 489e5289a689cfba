//! Reads of one class of a connection that need one disk. They hold up no other read and no write.
//!
//! # Data flow
//! ```text
//! not in memory ─► slot of the I/O pool? ─ yes ─► load
//!                          └─ no ─► bytes returned, `waiting`, queued for a slot ─► looked up again, bytes ─► load
//! ```
//!
//! # Invariants
//! 1. A read that waits for a disk holds only its descriptor: neither bytes of a pool nor room in a window, which are for
//!    reads that can go on. A disk that hangs keeps the memory of the loads it has begun, and no more.
//! 2. A class queues once for each disk. Slots are given in the order of arrival, so connections take turns by loads.
//!    Disks free slots, peers do not: a slot is kept while its class waits for bytes of the pool, and returned when it
//!    would have to wait for the peer.
//! 3. Waiting reads come before reads that arrived later.
//! 4. The first one is not looked up again before its slot has come, or a load of this class has ended.
//!
//! # Limits
//! All descriptors that the read queue holds may wait here: that bounds their number and their memory.

use crate::connection::request::ReadRequest;
use crate::io_pool::{Place, Slot};
use crate::read_class::ReadClass;
use crate::shared::Shared;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Descriptors that an idle connection keeps memory for.
const KEPT: usize = 16;

/// See the module.
pub struct DiskQueue {
    at: Place,
    class: ReadClass,
    waiting: VecDeque<ReadRequest>,
    place: Option<Pin<Box<dyn Future<Output = Slot> + Send>>>,
    slot: Option<Slot>,
    /// With so many loads under way their window had no room for more.
    full_with: Option<usize>,
}

impl DiskQueue {
    /// An empty one.
    pub fn new(at: Place, class: ReadClass) -> DiskQueue {
        DiskQueue { at, class, waiting: VecDeque::new(), place: None, slot: None, full_with: None }
    }

    /// True when no read waits for this disk, and no slot is held for one.
    pub fn is_free(&self) -> bool {
        self.waiting.is_empty() && self.place.is_none() && self.slot.is_none()
    }

    /// True when reads wait.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True when a slot is there to be used.
    pub fn has_slot(&self) -> bool {
        self.slot.is_some()
    }

    /// True when the first one that waits may be begun, with so many loads of the class under way there (invariant 4).
    pub fn may_begin(&self, under_way: usize) -> bool {
        self.place.is_none() && self.full_with.is_none_or(|full| under_way < full)
    }

    /// How many descriptors wait first that follow `request` ([`ReadRequest::is_followed_by`]); at most `most`.
    pub fn count_following(&self, request: &ReadRequest, most: usize) -> usize {
        request.count_following(&self.waiting, most)
    }

    /// The first descriptor that waits, if it follows `request`.
    pub fn next_following(&mut self, request: &ReadRequest) -> Option<ReadRequest> {
        request.take_following(&mut self.waiting)
    }

    /// The first descriptor that waits. Without one there is no use for a slot.
    pub fn next(&mut self) -> Option<ReadRequest> {
        self.next_if(|_| true)
    }

    /// The first descriptor that waits, if it is such a one.
    pub fn next_if(&mut self, is_such: impl FnOnce(&ReadRequest) -> bool) -> Option<ReadRequest> {
        let next = if self.waiting.front().is_some_and(is_such) { self.waiting.pop_front() } else { None };
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT {
            self.waiting = VecDeque::new();
        }
        next
    }

    /// Keeps descriptors in their order: `at_front` when they were the first before.
    pub fn wait(&mut self, requests: impl DoubleEndedIterator<Item = ReadRequest>, at_front: bool) {
        if at_front {
            requests.rev().for_each(|request| self.waiting.push_front(request));
        } else {
            self.waiting.extend(requests);
        }
    }

    /// The loads under way, so many, leave their window no room.
    pub fn is_full_with(&mut self, under_way: usize) {
        self.full_with = Some(under_way);
        self.slot = None;
    }

    /// A slot for a load of `bytes`: the one that came, or one that is free. Otherwise takes a place in line.
    pub fn slot(&mut self, shared: &Arc<Shared>, bytes: u64) -> Option<Slot> {
        let (at, class) = (self.at, self.class);
        let slot = match self.slot.take() {
            Some(slot) => shared.io.fit(slot, bytes),
            None if self.place.is_some() => return None,
            None => shared.io.try_slot(at, class, bytes),
        };
        self.full_with = None;
        if slot.is_none() {
            let shared = shared.clone();
            self.place = Some(Box::pin(async move { shared.io.slot(at, class, bytes).await }));
        }
        slot
    }

    /// Keeps a slot until there are bytes for its load (invariant 2).
    pub fn keep(&mut self, slot: Slot) {
        self.slot = Some(slot);
    }

    /// Gives the slot back, or the place in line for one.
    pub fn give_up_slot(&mut self) {
        self.slot = None;
        self.place = None;
    }

    /// Ready once the slot has come; never when there is none to wait for. The place in line is kept.
    pub fn poll_granted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(place) = &mut self.place else { return Poll::Pending };
        self.slot = Some(ready!(place.as_mut().poll(context)));
        self.place = None;
        Poll::Ready(())
    }
}
