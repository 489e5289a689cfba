//! The memory of a ledger's entries in flight: what an entry costs, where its bytes lie, what the budget gave for it.
//!
//! # Data flow
//! ```text
//! append  -> store: bytes behind one another in a block -> admit: the permit joins that of the ledger
//! release -> a part of the ledger's permit, for as many bytes as are let go of
//! ```
//!
//! # Limits     blocks grow up to [`BLOCK_BYTES_MAX`], or to one entry
//!
//! # Not here   who waits for the budget (the writer's shell); which entries are let go of (`window`)

use bindery_flow::Permit;
use bytes::{Bytes, BytesMut};

use crate::entry::EntryCodec;

/// What an entry costs besides its stored bytes: its place in the window, and its part of what is free in a block.
pub(crate) const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// What it costs for each replica: the head of its frame, its places in the queue and among what waits for answers. Twice
/// with deferred sync, where the head waits by itself.
pub(crate) const FRAME_OVERHEAD_BYTES: u64 = 192;

/// Buffers for stored entries grow up to this.
const BLOCK_BYTES_MAX: usize = 64 * 1024;

/// How many frames an entry makes.
pub(crate) fn frames(write_quorum_size: usize, is_deferred: bool) -> usize {
    if is_deferred { 2 * write_quorum_size } else { write_quorum_size }
}

/// What an entry costs besides its stored bytes, by its frames.
pub(crate) fn overhead_bytes(frames: usize) -> u64 {
    ENTRY_OVERHEAD_BYTES + frames as u64 * FRAME_OVERHEAD_BYTES
}

/// The part of the budget that an entry of this size takes, by the number of its [`frames`].
pub(crate) fn cost_bytes(codec: &EntryCodec, frames: usize, payload: usize) -> u64 {
    codec.stored_size_bytes(payload) as u64 + overhead_bytes(frames)
}

/// Bodies and permits that are not needed any more, to be dropped where no lock is held.
#[derive(Default)]
pub(crate) struct LetGo {
    pub bodies: Vec<Bytes>,
    pub permit: Option<Permit>,
}

impl LetGo {
    /// An entry, with what it held of the budget.
    pub fn add(&mut self, body: Bytes, permit: Option<Permit>) {
        self.bodies.push(body);
        self.add_permit(permit);
    }

    /// Adds the contents of another one.
    pub fn append(&mut self, mut other: LetGo) {
        self.bodies.append(&mut other.bodies);
        self.add_permit(other.permit);
    }

    pub fn add_permit(&mut self, permit: Option<Permit>) {
        match (&mut self.permit, permit) {
            (Some(all), Some(permit)) => all.merge(permit),
            (all @ None, permit) => *all = permit,
            (Some(_), None) => {}
        }
    }
}

/// Tests that copy a writer give it no permits.
#[cfg(test)]
impl Clone for LetGo {
    fn clone(&self) -> LetGo {
        assert!(self.permit.is_none(), "a permit is returned once");
        LetGo { bodies: self.bodies.clone(), permit: None }
    }
}

#[cfg(test)]
impl std::fmt::Debug for LetGo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {:?}", self.bodies, self.permit.as_ref().map(Permit::bytes))
    }
}

/// A ledger's part of the budget.
#[derive(Default)]
pub(super) struct Held(Option<Permit>);

impl Held {
    pub fn merge(&mut self, permit: Option<Permit>) {
        match (&mut self.0, permit) {
            (Some(held), Some(permit)) => held.merge(permit),
            (held @ None, permit) => *held = permit,
            (Some(_), None) => {}
        }
    }

    pub fn split(&mut self, bytes: u64) -> Option<Permit> {
        self.0.as_mut().map(|permit| permit.split(bytes))
    }
}

/// Tests that copy a writer give it no permits.
#[cfg(test)]
impl Clone for Held {
    fn clone(&self) -> Held {
        assert!(self.0.is_none(), "a permit is returned once");
        Held(None)
    }
}

#[cfg(test)]
impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.as_ref().map(Permit::bytes))
    }
}

/// See the module; of one ledger.
#[derive(Default)]
#[cfg_attr(test, derive(Clone, Debug))]
pub(super) struct InFlight {
    /// Entries are stored one behind another, so that they share an allocation.
    block: BytesMut,
    /// The permit for the entries in the window.
    permit: Held,
    /// Their cost, which the permit covers.
    cost_bytes: u64,
}

impl InFlight {
    /// The stored form of an entry of this size, which `put` appends.
    pub fn store(&mut self, stored_size_bytes: usize, put: impl FnOnce(&mut BytesMut)) -> Bytes {
        if self.block.capacity() < stored_size_bytes {
            // As large as what is in flight asks for, so that a slow ledger pins little and a fast one allocates rarely.
            let wanted = usize::try_from(self.cost_bytes / 4).unwrap_or(BLOCK_BYTES_MAX);
            self.block = BytesMut::with_capacity(wanted.min(BLOCK_BYTES_MAX).max(stored_size_bytes));
        }
        put(&mut self.block);
        let body = self.block.split().freeze();
        debug_assert_eq!(body.len(), stored_size_bytes);
        body
    }

    /// An entry of this cost is in flight, with the permit for it.
    pub fn admit(&mut self, permit: Option<Permit>, cost_bytes: u64) {
        self.permit.merge(permit);
        self.cost_bytes += cost_bytes;
    }

    /// Entries of this cost are let go of; their part of the permit.
    pub fn release(&mut self, cost_bytes: u64) -> Option<Permit> {
        self.cost_bytes -= cost_bytes;
        let permit = self.permit.split(cost_bytes);
        if self.cost_bytes == 0 {
            // An idle ledger holds nothing.
            self.block = BytesMut::new();
        }
        permit
    }
}
