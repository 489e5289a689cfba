//! Answers to reads, put into bytes for the outbox, and what is noted of each.

use super::Granted;
use crate::connection::Connection;
use crate::connection::output::outbox::Body;
use crate::connection::reads::held;
use crate::connection::request::{ReadKind, ReadRequest, Reply, code};
use crate::shared::Shared;
use crate::slow_log::{Slow, SlowKind};
use bindery_engine::Refusal;
use bindery_types::EntryId;
use bindery_wire::v3::{self, response};
use bindery_wire::{ErrorCode, v2};
use bytes::Bytes;
use std::time::Duration;

fn known_lac(shared: &Shared, request: &ReadRequest) -> Option<i64> {
    shared.engine.last_add_confirmed(request.ledger).ok().map(EntryId::to_wire)
}

/// Answers with an entry, in the form that its kind of read has. `now_ns` is when it was loaded: one look at the clock
/// serves all that were loaded together.
pub(super) fn answer_entry(
    shared: &Shared,
    connection: &Connection,
    granted: Granted,
    body: Body<'_>,
    now_ns: u64,
) {
    let Granted { request, permit, window } = granted;
    let (ledger, entry) = (request.ledger.get(), request.entry);
    let size = match &body {
        Body::Copy(bytes) => bytes.len(),
        Body::Owned(bytes) => bytes.len(),
    };
    shared.metrics.read_bytes.add(size as u64);
    held::take(shared, connection, &request, size);
    record(shared, connection, &request, size, now_ns, true);
    match request.reply {
        Reply::V2 { version } => connection.outbox.entry(request, window, permit, body, |out| {
            v2::put_read_response_header(version, ledger, entry, size, out);
        }),
        Reply::V3 { txn } if matches!(request.kind, ReadKind::Entry) => {
            let max_lac = if request.is_fence { None } else { known_lac(shared, &request) };
            let bytes: &[u8] = match &body {
                Body::Copy(bytes) => bytes,
                Body::Owned(bytes) => bytes,
            };
            connection.outbox.entry(request, window, permit, Body::Copy(&[]), |out| {
                v3::put_read_response(txn, ledger, entry, bytes, max_lac, out);
            });
        }
        Reply::V3 { txn } => {
            let bytes = match body {
                Body::Copy(bytes) => Bytes::copy_from_slice(bytes),
                Body::Owned(bytes) => Bytes::from(bytes),
            };
            let message = match &request.kind {
                ReadKind::Lac => {
                    let lac = shared.engine.explicit_lac(request.ledger).ok().flatten().map(Bytes::from);
                    response::read_lac(txn, ErrorCode::Ok, ledger, lac, Some(bytes))
                }
                ReadKind::Poll(poll) => {
                    let result = response::ReadResult {
                        body: Some(bytes),
                        max_lac: known_lac(shared, &request),
                        lac_update_timestamp_ms: poll.woken_at_ms,
                    };
                    response::read(txn, ledger, poll.previous.saturating_add(1), result)
                }
                _ => {
                    let result = response::ReadResult { body: Some(bytes), ..Default::default() };
                    response::read(txn, ledger, entry, result)
                }
            };
            connection.outbox.entry(request, window, permit, Body::Copy(&[]), |out| {
                v3::put_frame(&message, out);
            });
        }
    }
}

/// The answer when there is no entry to send, which is not a failure for every kind of read.
pub(super) fn answer_without_entry(
    shared: &Shared,
    connection: &Connection,
    request: &ReadRequest,
    refusal: Refusal,
) {
    match (&request.kind, request.reply, refusal) {
        (ReadKind::Poll(_), _, Refusal::NoEntry) => answer_poll_without_entry(shared, connection, request),
        (ReadKind::Lac, Reply::V3 { txn }, Refusal::NoEntry) => {
            // An explicit LAC (last add confirmed) without any entry is an answer too (section 2.4).
            match shared.engine.explicit_lac(request.ledger) {
                Ok(Some(lac)) => {
                    let lac = Some(Bytes::from(lac));
                    let message = response::read_lac(txn, ErrorCode::Ok, request.ledger.get(), lac, None);
                    answer_message(shared, connection, request, &message, true);
                }
                Ok(None) => answer_failure(shared, connection, request, Refusal::NoEntry),
                Err(refusal) => answer_failure(shared, connection, request, refusal),
            }
        }
        _ => answer_failure(shared, connection, request, refusal),
    }
}

/// A long poll that brings the LAC only: no move, or the next entry is on another bookie (section 2.6).
pub(super) fn answer_poll_without_entry(shared: &Shared, connection: &Connection, request: &ReadRequest) {
    let (ReadKind::Poll(poll), Reply::V3 { txn }) = (&request.kind, request.reply) else { return };
    let result = response::ReadResult {
        body: None,
        max_lac: known_lac(shared, request),
        lac_update_timestamp_ms: poll.woken_at_ms,
    };
    let message = response::read(txn, request.ledger.get(), -1, result);
    answer_message(shared, connection, request, &message, true);
}

pub(super) fn answer_info(shared: &Shared, connection: &Connection, request: &ReadRequest) {
    let (ReadKind::Info(asked), Reply::V3 { txn }) = (&request.kind, request.reply) else { return };
    let message = match shared.volumes.space() {
        Ok(space) => {
            let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            let total = asked.wants_total_disk_capacity().then(|| bytes(space.total));
            let free = asked.wants_free_disk_space().then(|| bytes(space.free));
            response::get_bookie_info(txn, ErrorCode::Ok, total, free)
        }
        Err(error) => {
            tracing::warn!(%error, "cannot read the free disk space");
            response::get_bookie_info(txn, ErrorCode::Io, None, None)
        }
    };
    let is_ok = message.status == ErrorCode::Ok.v3();
    answer_message(shared, connection, request, &message, is_ok);
}

/// Sends a message that fits the promise of its request, or nearly: an explicit LAC body is small.
fn answer_message(
    shared: &Shared,
    connection: &Connection,
    request: &ReadRequest,
    message: &v3::proto::Response,
    is_success: bool,
) {
    connection.outbox.unpromised_answer(request.promised, |out| v3::put_frame(message, out));
    record(shared, connection, request, 0, shared.clock.monotonic_ns(), is_success);
    connection.finish_read(request);
}

/// Answers with a failure.
pub fn answer_failure(shared: &Shared, connection: &Connection, request: &ReadRequest, refusal: Refusal) {
    answer_failure_of_finished(shared, connection, request, refusal);
    connection.finish_read(request);
}

/// Answers with a failure what the read queue does not hold any more.
pub(super) fn answer_failure_of_finished(
    shared: &Shared,
    connection: &Connection,
    request: &ReadRequest,
    refusal: Refusal,
) {
    connection.outbox.answer(request.promised, |out| request.put_failure(code(refusal), out));
    record(shared, connection, request, 0, shared.clock.monotonic_ns(), false);
}

/// `bytes`: of entries in the answer; `now_ns`: when it was ready.
pub(super) fn record(
    shared: &Shared,
    connection: &Connection,
    request: &ReadRequest,
    bytes: usize,
    now_ns: u64,
    is_success: bool,
) {
    let metrics = &shared.metrics;
    let summary = match (&request.kind, request.is_fence) {
        (ReadKind::Entry | ReadKind::Batch(_), true) => &metrics.read_entry_fence,
        (ReadKind::Entry | ReadKind::Batch(_), false) => &metrics.read_entry,
        (ReadKind::Poll(_), _) => &metrics.read_entry_long_poll,
        (ReadKind::Lac, _) => &metrics.read_lac,
        (ReadKind::List, _) => &metrics.get_list_of_entries,
        (ReadKind::Info(_), _) => &metrics.get_bookie_info,
    };
    let took = Duration::from_nanos(now_ns.saturating_sub(request.received_ns));
    summary.record(connection.id, now_ns, took.as_nanos() as u64, is_success);
    let threshold = shared.limits.slow_request;
    // A long poll is there to wait.
    if !threshold.is_zero() && took >= threshold && !matches!(request.kind, ReadKind::Poll(_)) {
        report_slow(shared, connection, request, bytes, (now_ns, took));
    }
}

fn report_slow(
    shared: &Shared,
    connection: &Connection,
    request: &ReadRequest,
    bytes: usize,
    (now_ns, total): (u64, Duration),
) {
    let kind = if request.is_fence { SlowKind::FencingRead } else { SlowKind::Read };
    // Without a turn it was refused where it stood.
    let load =
        (request.started_ns > 0).then(|| Duration::from_nanos(now_ns.saturating_sub(request.started_ns)));
    let slow = Slow {
        peer: Some(connection.peer()),
        ids: Some((request.ledger.get(), request.entry)),
        bytes: bytes as u64,
        total,
        queue: Some(total.saturating_sub(load.unwrap_or_default())),
        load,
        ..Slow::default()
    };
    shared.metrics.stages.slow.report(now_ns, kind, &slow);
}
