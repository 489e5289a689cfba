//! Answers reads: finds the entry, takes bytes for it, loads it, encodes the answer.
//!
//! # Invariants
//! 1. A permit for an entry's bytes is held before they are loaded. When an entry turns out larger than was expected
//!    its bytes are dropped and the request goes back with the size it needs.
//! 2. What is not durable is not shown: such a request is parked until it is, without a thread.
//! 3. Nothing here waits for a disk but what runs on the I/O pool: an entry is read inline only with calls that give up
//!    where the kernel would have to wait.
//! 4. Every request given to `plan` or `run` is answered, parked or put back, exactly one of them.
//! 5. A request older than the maximum age is answered with too-many-requests when its turn comes, and never reaches a
//!    disk: its client has given up, and asks another replica. Fencing, recovery and high priority have no maximum age
//!    ([`ReadRequest::is_too_old`]); the rest of a frame whose beginning was sent has none either.

use super::outbox::{Body, Identity, Part, Window};
use super::request::{ReadKind, ReadRequest, Reply, code};
use super::{CloseReason, Connection};
use crate::io_pool::Slot;
use crate::shared::Shared;
use crate::slow_log::{Slow, SlowKind};
use bindery_engine::{DiskRead, DurablePoint, EntryRef, Lookup, Refusal};
use bindery_flow::Permit;
use bindery_types::EntryId;
use bindery_wire::v3::{self, response};
use bindery_wire::{BatchReadBudget, EntryAvailability, ErrorCode, v2};
use bytes::{BufMut, Bytes, BytesMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Charged beside an entry for the head of its answer: at most 40 bytes on v2, 96 on v3.
const HEAD_BYTES: usize = 128;
/// Charged for a list of entries before its length is known: 630 runs.
const LIST_BYTES: usize = 64 * 1024;
/// What a list takes for each of its runs: two runs of 16 bytes while it is collected, a group of the answer, the group
/// encoded, and that in its frame, 24 each.
const LIST_RUN_BYTES: usize = 2 * 16 + 3 * 24;
/// When a list needs more, it comes again with so many times the bytes.
const LIST_STEP: usize = 8;

/// Largest entry that is read on a thread of the runtime, when the kernel has it in memory.
const INLINE_BYTES_MAX: usize = 64 * 1024;

/// What to load, and how many bytes it takes.
pub enum Plan {
    /// Answered already, or parked.
    Settled,
    /// An entry whose bytes are in memory.
    Memory(bindery_io::chunk::ChunkSlice, usize),
    /// An entry on disk.
    Disk(DiskRead, usize),
    /// Work that runs as a whole on a thread that may block.
    Blocking(usize),
}

impl Plan {
    /// Bytes that must be held before `run`.
    pub fn charge(&self) -> usize {
        match self {
            Plan::Settled => 0,
            Plan::Memory(_, charge) | Plan::Disk(_, charge) | Plan::Blocking(charge) => *charge,
        }
    }
}

/// A load from disk with the bytes for it in hand: all it needs but a slot of the I/O pool.
pub struct Load {
    /// What to load.
    pub work: Work,
    /// Bytes for it.
    pub permit: Permit,
    /// Room for it.
    pub window: Window,
}

/// What runs on a thread that may block.
pub enum Work {
    /// One entry.
    Entry(ReadRequest, DiskRead),
    /// A batch, a list, or free disk space.
    Whole(ReadRequest),
    /// The rest of a frame of which the peer has a part.
    Part(Part),
}

/// Bytes to hold for the rest of a frame.
pub fn charge_of_part(part: &Part) -> usize {
    part.identity.frame_len() + HEAD_BYTES
}

/// Looks a read up. Settles it when that takes no bytes; otherwise gives it back with what to do.
pub fn plan(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: ReadRequest,
) -> (Plan, Option<ReadRequest>) {
    if let Some(Err(refusal)) = request.wait_outcome {
        answer_failure(shared, connection, &request, refusal);
        return (Plan::Settled, None);
    }
    if refuse_too_old(shared, connection, &request) {
        return (Plan::Settled, None);
    }
    let limits = &shared.limits;
    let entry = match &request.kind {
        ReadKind::Entry => EntryId::new(request.entry).map_or(EntryRef::Last, EntryRef::At),
        ReadKind::Lac => EntryRef::Last,
        ReadKind::Poll(poll) => match shared.engine.last_add_confirmed(request.ledger) {
            Err(refusal) => {
                answer_failure(shared, connection, &request, refusal);
                return (Plan::Settled, None);
            }
            Ok(lac) => match EntryId::new(poll.previous.saturating_add(1)) {
                Some(next) if EntryId::to_wire(lac) > poll.previous && poll.wants_entry => EntryRef::At(next),
                _ => {
                    answer_poll_without_entry(shared, connection, &request);
                    return (Plan::Settled, None);
                }
            },
        },
        ReadKind::Batch(batch) => {
            let asked = usize::try_from(batch.max_size_bytes).unwrap_or(0);
            let most = asked.min(limits.batch_read_size_bytes_max as usize).min(limits.read_window_bytes);
            return (Plan::Blocking(most.max(request.size_hint) + HEAD_BYTES), Some(request));
        }
        ReadKind::List => return (Plan::Blocking(LIST_BYTES.max(request.size_hint)), Some(request)),
        ReadKind::Info(_) => return (Plan::Blocking(HEAD_BYTES), Some(request)),
    };
    let explicit_lac_bytes = match request.kind {
        ReadKind::Lac => {
            shared.engine.explicit_lac(request.ledger).ok().flatten().map_or(0, |body| body.len())
        }
        _ => 0,
    };
    match shared.engine.read(request.ledger, entry) {
        Ok(Lookup::Memory(bytes)) => {
            let charge = bytes.len() + explicit_lac_bytes + HEAD_BYTES;
            (Plan::Memory(bytes, charge), Some(request))
        }
        Ok(Lookup::Disk(mut read)) => {
            let size = match read.try_locate() {
                Some(Ok(size)) => size as usize,
                Some(Err(refusal)) => {
                    answer_without_entry(shared, connection, &request, refusal);
                    return (Plan::Settled, None);
                }
                None if request.size_hint > 0 => request.size_hint,
                None => connection.size_guess.load(Ordering::Relaxed),
            };
            (Plan::Disk(read, size + explicit_lac_bytes + HEAD_BYTES), Some(request))
        }
        Ok(Lookup::Undurable(point)) => {
            park_until_durable(shared, connection, request, point);
            (Plan::Settled, None)
        }
        Err(refusal) => {
            answer_without_entry(shared, connection, &request, refusal);
            (Plan::Settled, None)
        }
    }
}

thread_local! {
    /// Where entries are read to before they are copied to the outbox: one for each thread of the runtime.
    static INLINE: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Answers a request that has waited too long (invariant 5).
fn refuse_too_old(shared: &Shared, connection: &Connection, request: &ReadRequest) -> bool {
    let is_too_old = request.is_too_old(shared.clock.monotonic_ns(), shared.limits.request_age_max);
    if is_too_old {
        shared.metrics.reads_too_old.add(1);
        answer_failure(shared, connection, request, Refusal::TooManyRequests);
    }
    is_too_old
}

/// Answers an entry on disk at once when nobody has to wait for the disk, up to [`INLINE_BYTES_MAX`]. Gives everything
/// back when it takes a thread that may wait.
pub fn run_inline(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: ReadRequest,
    mut read: DiskRead,
    permit: Permit,
    window: Window,
) -> Result<(), Box<(ReadRequest, DiskRead, Permit, Window)>> {
    let is_small = matches!(read.try_locate(), Some(Ok(size)) if size as usize + HEAD_BYTES <= permit.bytes() as usize
            && size as usize <= INLINE_BYTES_MAX);
    if !is_small {
        return Err(Box::new((request, read, permit, window)));
    }
    INLINE.with_borrow_mut(|body| match read.try_load(body) {
        None => Err(Box::new((request, read, permit, window))),
        Some(Ok(())) => {
            shared.metrics.reads_without_wait.add(1);
            learn_size(connection, body.len());
            answer_entry(shared, connection, request, Body::Copy(body), permit, window);
            Ok(())
        }
        Some(Err(refusal)) => {
            connection.outbox.close_window(window);
            answer_without_entry(shared, connection, &request, refusal);
            Ok(())
        }
    })
}

/// Answers an entry that is in memory.
pub fn answer_from_memory(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: ReadRequest,
    bytes: &[u8],
    permit: Permit,
    window: Window,
) {
    answer_entry(shared, connection, request, Body::Copy(bytes), permit, window);
}

/// Runs a load on the I/O pool.
pub fn run(shared: &Arc<Shared>, connection: &Arc<Connection>, load: Load, slot: Slot) {
    let Load { work, permit, window } = load;
    let is_high = slot.is_high();
    let (shared, connection) = (shared.clone(), connection.clone());
    connection.loads_in_flight[usize::from(is_high)].fetch_add(1, Ordering::AcqRel);
    let begun_ns = shared.clock.monotonic_ns();
    shared.clone().io.run(slot, move || {
        match work {
            Work::Part(part) => run_part(&shared, &connection, &part, permit, window),
            Work::Entry(request, _) | Work::Whole(request)
                if refuse_too_old(&shared, &connection, &request) =>
            {
                connection.outbox.close_window(window);
            }
            Work::Entry(request, read) => run_entry(&shared, &connection, request, &read, permit, window),
            Work::Whole(request) => match request.kind {
                ReadKind::Batch(_) => run_batch(&shared, &connection, request, permit, window),
                ReadKind::List => run_list(&shared, &connection, request, permit, window),
                _ => {
                    connection.outbox.close_window(window);
                    answer_info(&shared, &connection, &request);
                }
            },
        }
        let now_ns = shared.clock.monotonic_ns();
        shared.metrics.stages.read_load.record(0, now_ns, now_ns.saturating_sub(begun_ns), true);
        connection.loads_in_flight[usize::from(is_high)].fetch_sub(1, Ordering::AcqRel);
        connection.flush();
        // Room for one load more.
        connection.wake_sender.notify_one();
    });
}

fn run_entry(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: ReadRequest,
    read: &DiskRead,
    permit: Permit,
    window: Window,
) {
    match read.load() {
        Ok(bytes) if bytes.len() + HEAD_BYTES > permit.bytes() as usize => {
            retry_larger(connection, request, bytes.len(), window);
        }
        Ok(bytes) => {
            learn_size(connection, bytes.len());
            answer_entry(shared, connection, request, Body::Owned(bytes), permit, window);
        }
        Err(refusal) => {
            connection.outbox.close_window(window);
            answer_without_entry(shared, connection, &request, refusal);
        }
    }
}

/// Loads what a dropped frame was made of. Another copy than the one the peer has a part of is not sent.
fn run_part(shared: &Shared, connection: &Connection, part: &Part, permit: Permit, window: Window) {
    let rest = load_body(shared, &part.identity).and_then(|body| part.identity.rest(part.sent, &body));
    match rest {
        Some(rest) => {
            shared.metrics.frames_resumed.add(1);
            connection.outbox.resume(rest, window, permit);
        }
        None => {
            connection.outbox.close_window(window);
            connection.close_because(CloseReason::CopyGone { ledger: part.identity.ledger().get() });
        }
    }
}

/// The entries of a frame as they stand in it; `None` when one of them cannot be read any more.
fn load_body(shared: &Shared, identity: &Identity) -> Option<Vec<u8>> {
    let (entries, is_batch) = identity.entries();
    let mut body = Vec::new();
    for entry in entries {
        let entry = EntryRef::At(EntryId::new(entry)?);
        let loaded = match shared.engine.read(identity.ledger(), entry).ok()? {
            Lookup::Memory(bytes) => Loaded::Memory(bytes),
            Lookup::Disk(read) => Loaded::Disk(read.load().ok()?),
            Lookup::Undurable(_) => return None,
        };
        let bytes = loaded.bytes();
        if body.len() + bytes.len() > identity.frame_len() {
            return None;
        }
        if is_batch {
            let mut size = BytesMut::new();
            v2::put_batch_entry_size(bytes.len(), &mut size);
            body.put_slice(&size);
        }
        body.put_slice(bytes);
    }
    Some(body)
}

/// Guesses stay near the largest entries of late: too small a guess costs a second load.
fn learn_size(connection: &Connection, size: usize) {
    let guess = connection.size_guess.load(Ordering::Relaxed);
    connection.size_guess.store(size.max(guess - guess / 8), Ordering::Relaxed);
}

/// Back to the front of its lane, with the size it needs (invariant 1).
fn retry_larger(connection: &Connection, mut request: ReadRequest, size: usize, window: Window) {
    connection.outbox.close_window(window);
    if request.kind != ReadKind::List {
        learn_size(connection, size);
    }
    request.size_hint = size;
    if !connection.closed.is_set() {
        connection.reads.lock().put_back(request);
    }
}

fn park_until_durable(
    shared: &Arc<Shared>,
    connection: &Connection,
    request: ReadRequest,
    point: DurablePoint,
) {
    let (id, seq) = (connection.id, request.seq);
    // Parked first: the waiter may fire before this returns.
    connection.reads.lock().park(request);
    let shared_of_waiter = shared.clone();
    let waiter = move |outcome| {
        if let Some(connection) = shared_of_waiter.connection(id) {
            connection.unpark(seq, outcome);
        }
    };
    shared.engine.when_durable(point, Box::new(waiter));
}

fn known_lac(shared: &Shared, request: &ReadRequest) -> Option<i64> {
    shared.engine.last_add_confirmed(request.ledger).ok().map(EntryId::to_wire)
}

fn answer_entry(
    shared: &Shared,
    connection: &Connection,
    request: ReadRequest,
    body: Body<'_>,
    permit: Permit,
    window: Window,
) {
    let (ledger, entry) = (request.ledger.get(), request.entry);
    let size = match &body {
        Body::Copy(bytes) => bytes.len(),
        Body::Owned(bytes) => bytes.len(),
    };
    shared.metrics.read_bytes.add(size as u64);
    record(shared, connection, &request, size, true);
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
fn answer_without_entry(shared: &Shared, connection: &Connection, request: &ReadRequest, refusal: Refusal) {
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
fn answer_poll_without_entry(shared: &Shared, connection: &Connection, request: &ReadRequest) {
    let (ReadKind::Poll(poll), Reply::V3 { txn }) = (&request.kind, request.reply) else { return };
    let result = response::ReadResult {
        body: None,
        max_lac: known_lac(shared, request),
        lac_update_timestamp_ms: poll.woken_at_ms,
    };
    let message = response::read(txn, request.ledger.get(), -1, result);
    answer_message(shared, connection, request, &message, true);
}

fn answer_info(shared: &Shared, connection: &Connection, request: &ReadRequest) {
    let (ReadKind::Info(asked), Reply::V3 { txn }) = (&request.kind, request.reply) else { return };
    let message = match shared.volumes.space() {
        Ok(space) => {
            let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
            let total = asked.wants_total_disk_capacity().then(|| bytes(space.total));
            let free = asked.wants_free_disk_space().then(|| bytes(space.free));
            response::get_bookie_info(txn, ErrorCode::Ok, total, free)
        }
        Err(error) => {
            tracing::warn!(%error, "read free disk space");
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
    record(shared, connection, request, 0, is_success);
    connection.finish_read(request);
}

pub fn answer_failure(shared: &Shared, connection: &Connection, request: &ReadRequest, refusal: Refusal) {
    connection.outbox.answer(request.promised, |out| request.put_failure(code(refusal), out));
    record(shared, connection, request, 0, false);
    connection.finish_read(request);
}

fn run_list(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: ReadRequest,
    permit: Permit,
    window: Window,
) {
    let Reply::V3 { txn } = request.reply else { return };
    let ledger = request.ledger.get();
    let charged = permit.bytes() as usize;
    let runs = match shared.engine.list_entries_within(request.ledger, charged / LIST_RUN_BYTES) {
        Ok(runs) => runs,
        Err(refusal) => {
            connection.outbox.close_window(window);
            return answer_failure(shared, connection, &request, refusal);
        }
    };
    let Some(runs) = runs else {
        // What a frame holds, and a pool: more runs could not be answered.
        let frame_runs = shared.limits.frame.size_bytes() / 24;
        let pool = if request.is_high { &shared.pools.outbound_priority } else { &shared.pools.outbound };
        let most = (frame_runs * LIST_RUN_BYTES).min(pool.capacity() as usize - HEAD_BYTES);
        if charged < most {
            let size = charged.saturating_mul(LIST_STEP).min(most);
            return retry_larger(connection, request, size, window);
        }
        tracing::warn!(ledger_id = ledger, "list of entries exceeds the frame limit or the memory for it");
        connection.outbox.close_window(window);
        return answer_failure(shared, connection, &request, Refusal::Io);
    };
    let mut available = EntryAvailability::default();
    for run in &runs {
        (run.first.get()..=run.last.get()).filter_map(EntryId::new).for_each(|entry| available.push(entry));
    }
    let size = available.encoded_size_bytes();
    if !shared.limits.frame.admits_payload(size + HEAD_BYTES) {
        tracing::warn!(ledger_id = ledger, runs = runs.len(), "list of entries exceeds the frame limit");
        connection.outbox.close_window(window);
        return answer_failure(shared, connection, &request, Refusal::Io);
    }
    let message = response::get_list_of_entries(txn, ErrorCode::Ok, ledger, Some(available.encode()));
    record(shared, connection, &request, size, true);
    connection.outbox.entry(request, window, permit, Body::Copy(&[]), |out| v3::put_frame(&message, out));
}

/// A batch read: the first entry whatever its size, then consecutive ones while they fit; anything missing after the
/// first ends the batch (protocol reference, section 1.5). The window ends it too.
fn run_batch(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    request: ReadRequest,
    permit: Permit,
    window: Window,
) {
    let (ReadKind::Batch(batch), Reply::V2 { version }) = (&request.kind, request.reply) else { return };
    let limits = &shared.limits;
    let room = permit.bytes() as usize - HEAD_BYTES;
    let server_max =
        (limits.batch_read_size_bytes_max as usize).min(room + v2::BATCH_READ_RESPONSE_OVERHEAD_BYTES);
    let mut budget = BatchReadBudget::new(batch, server_max as u32, limits.frame);
    let mut body = BytesMut::new();
    let mut next = batch.start_entry_id;
    while !budget.is_full() {
        let loaded =
            match EntryId::new(next).map(|entry| shared.engine.read(request.ledger, EntryRef::At(entry))) {
                None => Err(Refusal::NoEntry),
                Some(Ok(Lookup::Memory(bytes))) => Ok(Loaded::Memory(bytes)),
                Some(Ok(Lookup::Disk(read))) => read.load().map(Loaded::Disk),
                Some(Ok(Lookup::Undurable(point))) if budget.count() == 0 => {
                    connection.outbox.close_window(window);
                    return park_until_durable(shared, connection, request, point);
                }
                Some(Ok(Lookup::Undurable(_))) => break,
                Some(Err(refusal)) => Err(refusal),
            };
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(refusal) if budget.count() == 0 => {
                connection.outbox.close_window(window);
                return answer_failure(shared, connection, &request, refusal);
            }
            Err(_) => break,
        };
        let bytes = loaded.bytes();
        let needed = bytes.len() + v2::BATCH_READ_ENTRY_OVERHEAD_BYTES;
        if budget.count() == 0 && needed > room {
            return retry_larger(connection, request, needed, window);
        }
        if !budget.admit(bytes.len()) {
            break;
        }
        v2::put_batch_entry_size(bytes.len(), &mut body);
        body.extend_from_slice(bytes);
        match next.checked_add(1) {
            Some(after) => next = after,
            None => break,
        }
    }
    if budget.count() == 0 {
        // Not even the first entry fits a frame.
        connection.outbox.close_window(window);
        return answer_failure(shared, connection, &request, Refusal::Io);
    }
    let size = body.len();
    let (ledger, start, request_id) = (request.ledger.get(), batch.start_entry_id, batch.request_id);
    shared.metrics.read_bytes.add(size as u64);
    record(shared, connection, &request, size, true);
    connection.outbox.entry(request, window, permit, Body::Owned(body.into()), |out| {
        v2::put_batch_read_response_header(version, ledger, start, request_id, size, out);
    });
}

enum Loaded {
    Memory(bindery_io::chunk::ChunkSlice),
    Disk(Vec<u8>),
}

impl Loaded {
    fn bytes(&self) -> &[u8] {
        match self {
            Loaded::Memory(bytes) => bytes,
            Loaded::Disk(bytes) => bytes,
        }
    }
}

/// `bytes`: of entries in the answer.
fn record(shared: &Shared, connection: &Connection, request: &ReadRequest, bytes: usize, is_success: bool) {
    let metrics = &shared.metrics;
    let summary = match (&request.kind, request.is_fence) {
        (ReadKind::Entry | ReadKind::Batch(_), true) => &metrics.read_entry_fence,
        (ReadKind::Entry | ReadKind::Batch(_), false) => &metrics.read_entry,
        (ReadKind::Poll(_), _) => &metrics.read_entry_long_poll,
        (ReadKind::Lac, _) => &metrics.read_lac,
        (ReadKind::List, _) => &metrics.get_list_of_entries,
        (ReadKind::Info(_), _) => &metrics.get_bookie_info,
    };
    let now_ns = shared.clock.monotonic_ns();
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
