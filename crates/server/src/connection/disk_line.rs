//! Reads of one lane of a connection that need a disk, so that they keep no other read and no write waiting.
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
//! 2. At most [`WAITING_MAX`] descriptors wait, and come before reads that were asked for later.

use super::request::ReadRequest;
use crate::io_pool::{Lane, Slot};
use crate::shared::Shared;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Descriptors that wait for the disk while later reads are answered from memory.
pub const WAITING_MAX: usize = 64;

/// Descriptors that an idle connection keeps memory for.
const KEPT: usize = 16;

/// See the module. `L` is a load with all it needs but the slot.
pub struct DiskLine<L> {
    waiting: VecDeque<ReadRequest>,
    ready: Option<L>,
    place: Option<Pin<Box<dyn Future<Output = Slot> + Send>>>,
    slot: Option<Slot>,
}

impl<L> Default for DiskLine<L> {
    fn default() -> Self {
        DiskLine { waiting: VecDeque::new(), ready: None, place: None, slot: None }
    }
}

impl<L> DiskLine<L> {
    /// True when another load may be begun.
    pub fn is_free(&self) -> bool {
        self.ready.is_none()
    }

    /// Reads that would find a place if they turned out to need the disk.
    pub fn room(&self) -> usize {
        WAITING_MAX.saturating_sub(self.waiting.len())
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

    /// The load and a slot for it, or a place in line.
    pub fn begin(&mut self, shared: &Arc<Shared>, lane: Lane, load: L) -> Option<(L, Slot)> {
        assert!(self.is_free(), "one load waits for a slot (disk line invariant 1)");
        if let Some(slot) = shared.io.try_slot(lane) {
            return Some((load, slot));
        }
        self.ready = Some(load);
        let shared = shared.clone();
        self.place = Some(Box::pin(async move { shared.io.slot(lane).await }));
        None
    }

    /// Waits for the slot; for ever when there is none to wait for. Cancel safe: the place is kept.
    pub async fn granted(&mut self) {
        let Some(place) = &mut self.place else { return std::future::pending().await };
        self.slot = Some(place.await);
        self.place = None;
    }

    /// The load whose slot has come.
    pub fn take_granted(&mut self) -> Option<(L, Slot)> {
        let slot = self.slot.take()?;
        Some((self.ready.take().expect("a slot is waited for with a load"), slot))
    }
}
