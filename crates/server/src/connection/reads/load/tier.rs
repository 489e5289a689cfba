//! Entries that are in object storage alone: such a read is parked until its entry is here, and planned again then, as a hit
//! in memory.
//!
//! # Invariants
//! 1. A read that is parked here holds its descriptor and its place among those that wait for object storage: no permit, no
//!    window, no slot of the I/O pool.
//! 2. An entry that came stays in memory until it is answered, unless its connection takes too long while others need
//!    that memory: then it is fetched again.
//! 3. Nothing of this is answered with "no such entry".

use super::answers::{answer_entry, answer_without_entry};
use super::{Granted, HEAD_BYTES, Plan};
use crate::connection::Connection;
use crate::connection::output::outbox::Body;
use crate::connection::request::{ReadRequest, TierRead};
use crate::shared::Shared;
use bindery_engine::{Refusal, TieredRead};
use bindery_tiering::fetch::Fetched;
use std::sync::Arc;

/// Plans a read of an entry that is in object storage alone: it is here by now, or the read is parked.
pub(super) fn plan(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    mut request: ReadRequest,
    read: TieredRead,
    beside_bytes: usize,
) -> (Plan, Option<ReadRequest>) {
    if size_of_arrived(&request, &read).is_none() {
        let has_failed = request.tier.as_ref().is_some_and(|tier| tier.failed.is_some());
        let tier = shared.tier.as_ref().filter(|_| !has_failed);
        match tier.and_then(|tier| tier.cached(connection.id, &read)) {
            Some(entry) => request.tier.get_or_insert_default().arrived = Some((entry.keep(), read.epoch())),
            None => {
                park(shared, connection, request, read);
                return (Plan::Settled, None);
            }
        }
    }
    let size = size_of_arrived(&request, &read).expect("it is here");
    (Plan::Tier(size + beside_bytes + HEAD_BYTES), Some(request))
}

/// Length of the entry, when it came for this read.
fn size_of_arrived(request: &ReadRequest, read: &TieredRead) -> Option<usize> {
    let (fetched, epoch) = request.tier.as_ref()?.arrived.as_ref()?;
    (fetched.id() == read.entry() && *epoch == read.epoch()).then(|| fetched.size_bytes())
}

/// Answers a read whose entry could not be had. A read whose object is gone is looked up once more: then it is given back.
pub(super) fn settle_failure(
    shared: &Shared,
    connection: &Connection,
    mut request: ReadRequest,
) -> Option<ReadRequest> {
    let (Some(tier), Some(read)) = (&shared.tier, &mut request.tier) else { return Some(request) };
    let Some((failure, object)) = &read.failed else { return Some(request) };
    let is_first = !std::mem::replace(&mut read.has_looked_again, true);
    if is_first && object.is_some() && tier.looks_again(failure) {
        return Some(request);
    }
    tier.report(request.ledger, request.entry, failure);
    let refusal = failure.refusal();
    answer_without_entry(shared, connection, &request, refusal);
    None
}

/// Parks a read until its entry, or word of why it cannot be had, comes from object storage.
pub(super) fn park(
    shared: &Arc<Shared>,
    connection: &Connection,
    mut request: ReadRequest,
    read: TieredRead,
) {
    let Some(tier) = &shared.tier else {
        if let Some(left_out) = shared.tier_log.lock().admit(shared.clock.monotonic_ns()) {
            tracing::error!(
                ledger = %read.ledger(), entry = %read.entry(), left_out,
                "the entry exists only in object storage, and this bookie has none configured: set it with --tier \
                 URL"
            );
        }
        return answer_without_entry(shared, connection, &request, Refusal::Tiered);
    };
    let state = request.tier.get_or_insert_default();
    let not = state.failed.take().and_then(|(failure, object)| Some((object?, failure)));
    // Of another look-up. It is given back without the lock.
    drop(state.arrived.take());
    let (id, seq, epoch) = (connection.id, request.seq, read.epoch());
    // Parked first: the callback may come before this returns.
    let parked = connection.reads.lock().park_for_tier(request);
    let of_callback = shared.clone();
    let waiting = tier.ask(&shared.engine, id, read, not, move |arrival| {
        if let Some(connection) = of_callback.connection(id) {
            connection.arrive(&of_callback, seq, arrival, epoch);
        }
    });
    let left = connection.reads.lock().hold_for_tier(seq, parked, waiting);
    drop(left);
}

/// Answers a read whose entry came. When its memory was taken back meanwhile it is planned again.
pub fn answer_from_tier(shared: &Shared, connection: &Connection, mut granted: Granted) {
    let arrived = granted.request.tier.take().and_then(|tier: Box<TierRead>| tier.arrived);
    match arrived.and_then(|(fetched, _): (Fetched, u32)| fetched.open()) {
        Some(entry) => {
            granted.request.is_from_tier = true;
            answer_entry(shared, connection, granted, Body::Copy(&entry), shared.clock.monotonic_ns());
        }
        None => {
            let request = granted.give_up(connection);
            if !connection.closed.is_set() {
                connection.reads.lock().put_back(request);
                connection.wake_sender.notify_one();
            }
        }
    }
}

/// A look-up on disk ended with "in object storage": answers with the entry that came for that, or parks the read.
pub(super) fn run_tiered(
    shared: &Arc<Shared>,
    connection: &Connection,
    granted: Granted,
    read: Option<TieredRead>,
) {
    let Some(read) = read else {
        return answer_without_entry(shared, connection, &granted.give_up(connection), Refusal::Io);
    };
    match size_of_arrived(&granted.request, &read) {
        Some(size) if size <= granted.room() => answer_from_tier(shared, connection, granted),
        Some(size) => super::retry_larger(connection, granted, size),
        None => park(shared, connection, granted.give_up(connection), read),
    }
}
