//! Adds that pass while the bookie takes no others: high priority, and those that a recovery needs to close a ledger of a full bookie.
//!
//! ```text
//! add -> failed? -> somebody waits for space? ------------------> within the reserve and the journal's room, if a recovery's
//!                -> read-only? -> high priority, and room on disk -> yes
//!                              -> a recovery's --------------------> within the reserve
//! ```
//! Most of what a recovery adds is here already: it adds again what it read, because the writer, whose LAC (last add
//! confirmed) in the entries lags behind, may not have stored it on an ack quorum. A durable copy with the same bytes is
//! as good as another one and takes no room, so it is acknowledged as it is. A copy on disk must be read first, which the
//! caller does ([`Engine::add_or_ask`](crate::Engine::add_or_ask)).
//!
//! A recovery's add is one that says so *and* is of high priority, as those of Java and of ours are. Re-replication, which
//! sends recovery adds of no priority, looks for another bookie.
//!
//! # Invariants
//! 1. Failed storage takes nothing: acknowledged records could never be flushed.
//! 2. While somebody waits for space, nothing is placed that would have to wait for a journal file: a recovery is refused
//!    aloud instead, and fences find room behind it. It needs no room on the ledger volumes before the flush that waits
//!    has some.
//! 3. Recoveries place no more than the reserve of the bookie, whatever the shard ([`Reserve`]), so they take neither the
//!    memory nor the space that fences, removals and compactions need.
//! 4. An add is acknowledged for a copy only when that is durable, of this life of the ledger, the same byte by byte, and
//!    the key is the ledger's.
//!
//! # Limits
//! The reserve, and of the journal half of what is sure at a cut, over its shards: adds come before the cut and behind it.

use super::Shard;
use crate::api::{Add, AddDone, EntryRef};
use crate::ledger::LedgerState;
use crate::shard::Found;
use bindery_io::chunk::Lane;
use bindery_journal::record::HEADER_SIZE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether somebody waits, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    No,
    /// Want of space alone, of which recoveries have a reserve.
    ForSpace,
    ForDescriptors,
}

/// What the state of the bookie lets pass.
pub(crate) struct Gate<'a> {
    pub(crate) is_read_only: bool,
    /// Adds of high priority pass that.
    pub(crate) takes_high_priority: bool,
    pub(crate) reserve: &'a Reserve,
    /// Counts recoveries' adds that found no room in it.
    pub(crate) refused: &'a AtomicU64,
}

impl Gate<'_> {
    /// Whether the bookie takes adds, or this one although it is read-only.
    pub(super) fn admits(&self, add: &Add<'_>) -> bool {
        !self.is_read_only || (add.is_high_priority && self.takes_high_priority)
    }
}

pub(super) fn is_of_a_recovery(add: &Add<'_>) -> bool {
    add.is_recovery && add.is_high_priority
}

/// Bytes that recoveries may still add while the bookie takes no others.
pub(crate) struct Reserve(AtomicU64);

impl Reserve {
    /// Without a bound but memory and journal, until somebody sets one.
    pub(crate) fn unbounded() -> Reserve {
        Reserve(AtomicU64::new(u64::MAX))
    }

    pub(crate) fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn spend(&self, add: &Add<'_>) {
        // Fails when there is no bound.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left < u64::MAX).then(|| left.saturating_sub(size(add) as u64))
        });
    }
}

/// Whether an add of a recovery that does not pass freely is here already.
pub(crate) enum Copy {
    /// Acknowledge it ([`Shard::confirm`]).
    Same,
    /// Not in memory. Whoever may look on disk is to do so.
    NotInMemory(Found),
    No,
}

/// Whether the state of the bookie lets an add pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    Open,
    /// For as long as the reserve lasts.
    OfReserve,
    Closed,
}

/// A record with the key of a ledger, whose id is in front of it.
const KEY_RECORD_BYTES: usize = HEADER_SIZE_BYTES + 8 + 20;

/// Bytes of a record in journal and memory.
fn size(add: &Add<'_>) -> usize {
    HEADER_SIZE_BYTES + add.body.len()
}

impl Shard {
    /// Sets what recoveries may have formed at most while somebody waits for space.
    pub(crate) fn offer_recoveries(&mut self, bytes: usize) {
        self.recovery_offer = bytes.min(self.config.formed_bytes_max);
    }

    /// Looks in memory for what a recovery adds, when it would have to pass for the reserve (invariant 4).
    pub(crate) fn copy_of(&self, add: &Add<'_>, gate: &Gate<'_>) -> Copy {
        let is_closed = self.is_failed || self.refuses_adds || !is_of_a_recovery(add);
        if is_closed || self.is_open_to(add, gate) {
            return Copy::No;
        }
        // The entries here of a trimmed ledger may be another ledger's ([`Shard::may_be_anothers`]): such an add asks.
        let is_own = |state: &LedgerState| state.accepts(&add.key) && !Shard::may_be_anothers(state);
        if !self.live(add.ledger).is_ok_and(is_own) {
            return Copy::No;
        }
        match self.find(add.ledger, EntryRef::At(add.entry)) {
            Ok(Found::Memory(body)) if body[..] == *add.body => Copy::Same,
            Ok(Found::Memory(_)) | Err(_) => Copy::No,
            Ok(found) => Copy::NotInMemory(found),
        }
    }

    /// Acknowledges an add for a copy that is the same, if the ledger is still there to have one, and not trimmed. False when not.
    pub(crate) fn confirm(&mut self, add: &Add<'_>) -> bool {
        let is_own = |state: &LedgerState| state.accepts(&add.key) && !Shard::may_be_anothers(state);
        let may = !self.is_failed && self.live(add.ledger).is_ok_and(is_own);
        if may {
            self.answer_unplaced(AddDone::of(add, Ok(())));
        }
        may
    }

    /// How the state of the bookie lets an add pass that [`Shard::is_open_to`] says no to.
    pub(super) fn passage(&self, add: &Add<'_>, gate: &Gate<'_>) -> Passage {
        // Invariant 1.
        if self.is_failed || self.refuses_adds || self.waits == Waits::ForDescriptors {
            return Passage::Closed;
        }
        if !is_of_a_recovery(add) {
            return Passage::Closed;
        }
        // Invariant 2. The key of a ledger that is new here comes in front of the entry.
        let formed = self.formed_bytes + size(add) + KEY_RECORD_BYTES;
        let is_sure =
            self.waits == Waits::No || (formed <= self.recovery_offer && self.has_chunk(Lane::Recovery));
        // Invariant 3.
        if is_sure && gate.reserve.left() >= size(add) as u64 {
            return Passage::OfReserve;
        }
        gate.refused.fetch_add(1, Ordering::Relaxed);
        Passage::Closed
    }
}
