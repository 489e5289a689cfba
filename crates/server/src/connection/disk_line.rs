//! Reads of one lane of a connection that need one disk, so that they keep no other read and no write waiting.
//!
//! # Data flow
//! ```text
//! not in memory ─► bytes held ─► slot of the I/O pool? ─ yes ─► load
//!                                      └─ no ─► `ready`, in line for a slot ─► load
//! and one more, meanwhile ─► `waiting`: descriptors, looked up again when their turn comes
//! ```
//!
//! # Invariants
//! 1. One load, at most, waits for a slot with its bytes in hand; slots are given out in the order of arrival, so
//!    connections take turns by loads. Disks free slots, peers do not.
//! 2. At most so many descriptors wait as the lane allows ([`waiting_max`]), and come before reads that arrived later.

use super::read_queue::RESERVE;
use super::request::ReadRequest;
use crate::io_pool::{Lane, Place, Slot};
use crate::shared::Shared;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Descriptors that wait for a disk while later reads are answered from memory, or by other disks: of plain reads a few; of
/// a recovery's as many as it has a reserve for, since it may fence hundreds of ledgers at once.
pub fn waiting_max(lane: Lane) -> usize {
    match lane {
        Lane::Plain => 64,
        Lane::High => RESERVE,
    }
}

/// Descriptors that an idle connection keeps memory for.
const KEPT: usize = 16;

/// See the module. `L` is a load with all it needs but the slot.
pub struct DiskLine<L> {
    lane: Lane,
    waiting: VecDeque<ReadRequest>,
    ready: Option<L>,
    place: Option<Pin<Box<dyn Future<Output = Slot> + Send>>>,
    slot: Option<Slot>,
}

impl<L> DiskLine<L> {
    /// An empty one.
    pub fn new(lane: Lane) -> DiskLine<L> {
        DiskLine { lane, waiting: VecDeque::new(), ready: None, place: None, slot: None }
    }

    /// True when another load may be begun.
    pub fn is_free(&self) -> bool {
        self.ready.is_none()
    }

    /// Reads that would find a place if they turned out to need the disk.
    pub fn room(&self) -> usize {
        waiting_max(self.lane).saturating_sub(self.waiting.len())
    }

    /// How many descriptors wait first that follow `request` ([`ReadRequest::is_followed_by`]); at most `most`.
    pub fn count_following(&self, request: &ReadRequest, most: usize) -> usize {
        request.count_following(&self.waiting, most)
    }

    /// The first descriptor that waits, if it follows `request`.
    pub fn next_following(&mut self, request: &ReadRequest) -> Option<ReadRequest> {
        request.take_following(&mut self.waiting)
    }

    /// The first descriptor that waits.
    pub fn next(&mut self) -> Option<ReadRequest> {
        let next = self.waiting.pop_front();
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

    /// The load and a slot for it where its disk is read, or a place in line.
    pub fn begin(&mut self, shared: &Arc<Shared>, at: Place, load: L) -> Option<(L, Slot)> {
        assert!(self.is_free(), "one load waits for a slot (disk line invariant 1)");
        let lane = self.lane;
        if let Some(slot) = shared.io.try_slot(at, lane) {
            return Some((load, slot));
        }
        self.ready = Some(load);
        let shared = shared.clone();
        self.place = Some(Box::pin(async move { shared.io.slot(at, lane).await }));
        None
    }

    /// Ready once the slot has come; never when there is none to wait for. The place in line is kept.
    pub fn poll_granted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(place) = &mut self.place else { return Poll::Pending };
        self.slot = Some(ready!(place.as_mut().poll(context)));
        self.place = None;
        Poll::Ready(())
    }

    /// The load whose slot has come.
    pub fn take_granted(&mut self) -> Option<(L, Slot)> {
        let slot = self.slot.take()?;
        Some((self.ready.take().expect("a slot is waited for with a load"), slot))
    }
}
