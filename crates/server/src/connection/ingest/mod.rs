//! The first half of a connection: takes memory, reads the socket, decodes frames, and hands requests over.
//!
//! # Data flow
//! ```text
//! readable -> lease a buffer -> read -> frames -> adds: batch per shard -> Engine::add_or_ask
//!                                              |      no room: late_adds waits, look_ahead handles what need not
//!                                              -> reads: reads::queue; others: operations
//! ```
//!
//! # Invariants
//! 1. No memory without a permit, and none while idle. A frame longer than the buffer takes a permit for its whole
//!    length from a pool of its own before memory is allocated, and is read exactly to its end; its length was checked
//!    against the frame limit before. That permit is kept only while the next frame is large too.
//! 2. Before a request is decoded, room for its answer is promised by the outbox, and room for a read by the queue; none
//!    left means the peer does not read, or wants more than its share, and it is not read any more. Meanwhile it holds
//!    the requests that are here and no buffer, and no more was read than there seemed to be room for: peers that do not
//!    read leave the buffers to those that do.
//! 3. Adds found in one read go to the engine together, those of a ledger in order, before anything after them that could
//!    depend on them, and before this task waits for the peer. FORCE and WRITE_LAC come behind the adds of their ledger.
//!    A fence comes behind those that find room; the others meet it when they are placed.
//! 4. When a shard has no room, only this task waits, and requests that need not wait with it pass ([`look_ahead`]). It
//!    waits for the admission deadline at most, and not beyond the maximum age of the waiting adds unless they include
//!    recovery or high-priority ones; adds that still have no room are then refused ([`late_adds`]). Adds that already
//!    have that age when they are read, counted from their arrival in the kernel ([`Inlet`]), are refused before they
//!    are placed, if memory was short for as long.
//! 5. A peer that sent no whole request yet, or has to say who it is and did not ([`authenticate`]), reads into memory of pools of its own, a little of it, and has
//!    `first_request_max` from its first byte to the end of that request, and before that to the end of a TLS handshake: unidentified peers cannot take memory
//!    from clients. Of a request that is handled, nothing stays in these pools.
//! 6. A peer in the middle of a frame holds memory that others wait for only as long as it keeps up [`MIN_BYTES_PER_S`]
//!    over that whole frame: a byte now and then is no progress. What waits in line for the memory of a large frame holds
//!    what is here of it and no buffer, and while anybody does, frames are begun [`BEGUN_BYTES`] at a time.
//! 7. Told to drain, it handles what the kernel had received by then, and whole frames only.
//! 8. Adds that wait for room keep the buffer they were read into, so connections that add have a pool of their own: however
//!    many of them wait, fences, reads and health requests of others are read. A connection takes its buffers from there when
//!    adds came of late. In any other buffer of a client the first add ends what is handled: what is left, no more
//!    than a stranger may send, moves to a buffer of that pool first, and of a large frame nothing is left. A stranger keeps only the
//!    bytes of its requests.
//!
//! # Order of pools     first requests, then inbound, then inbound-adds, then inbound-large: a task that holds
//! bytes of one waits only for later ones

mod authenticate;
mod batches;
mod early_auth;
mod frames;
mod late_adds;
mod look_ahead;
mod operations;
mod start_tls;

use crate::connection::activity::Wait;
use crate::connection::output::outbox::Closed;
use crate::connection::reads::queue_memory::FREE;
use crate::connection::request::V3_ANSWER_BYTES;
use crate::connection::slice_turns::{SLICE_BYTES, SliceTurn};
use crate::connection::transport::Inlet;
use crate::connection::{CloseReason, Connection};
use crate::shared::Shared;
use authenticate::Stranger;
use bindery_flow::{ByteBudget, Permit};
use bindery_io::canary::Canary;
use bindery_wire::frame::{self, LENGTH_PREFIX_SIZE_BYTES, Split};
pub(super) use frames::Frames;
use frames::Handled;
use look_ahead::{Ahead, AheadSource};
use start_tls::First;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Credit taken at once for the answers to what one read brought.
const CREDIT_STEP: usize = 16 * 1024;
/// Minimum average rate of a peer in the middle of a frame while others wait for memory. It is below the rate of any
/// network that bookies run on, so that only peers that do not really send fall short of it; the largest frame (5 MiB)
/// then holds its memory for 80 s at most.
const MIN_BYTES_PER_S: u64 = 64 * 1024;
/// Read at least, when there is little room.
const READ_BYTES_MIN: usize = 2048;
/// A read's bytes are doubled up to this, from the least.
const SLICE_BYTES_MAX: usize = 1024 * 1024;
/// Size of a read while others wait for the memory of large frames: a large frame may begin in it.
const BEGUN_BYTES: usize = 4096;
/// How long a first request may lie there without progress while others wait for its memory.
const FIRST_STALL_MAX: Duration = Duration::from_secs(1);

/// Reads until the connection ends.
pub async fn run(shared: &Arc<Shared>, connection: &Arc<Connection>) -> CloseReason {
    let mut socket = Inlet::new(connection.transport.clone(), shared.clock.clone());
    let silent_until = shared.limits.silent_max.map(|max| Instant::now() + max);
    let (mut read_size, mut ahead) = (ReadSize::new(), Ahead::default());
    let mut stranger = Stranger::default();
    loop {
        // The drain may have been seen, and the last bytes read, while memory was held: then there is nothing to wait
        // for.
        if !socket.is_drained() {
            tokio::select! {
                () = connection.closed.wait() => return CloseReason::Ours,
                () = connection.draining.wait(), if !socket.is_draining() => {}
                () = until(silent_until), if !connection.has_spoken() => return CloseReason::Silent,
                () = until(stranger.deadline), if !connection.has_spoken() => return CloseReason::Silent,
                ready = socket.readable() => if let Err(error) = ready {
                    return CloseReason::Socket(error.kind());
                }
            }
        }
        if is_drained(connection, &mut socket) {
            connection.is_read_out.store(true, Ordering::Release);
            connection.closed.wait().await;
            return CloseReason::Ours;
        }
        shared.metrics.batching.reader_wakes.add(1);
        // Before memory is taken, which others wait for.
        let mut turn = match connection.is_bulk() {
            true => tokio::select! {
                () = connection.closed.wait() => return CloseReason::Ours,
                turn = shared.bulk.turn() => Some(turn),
            },
            false => None,
        };
        let limits = &shared.limits;
        let is_first = !connection.has_spoken();
        let (pool, size) = match is_first {
            true => (&shared.pools.first, limits.first_buffer_bytes.min(limits.read_buffer_bytes)),
            false => (inbound_of(shared, connection), limits.read_buffer_bytes),
        };
        let lease = match pool.try_acquire(size as u64) {
            Some(lease) => lease,
            None => {
                // A task that waits holds no turn (slice_turns invariant 1).
                turn = None;
                match lease(connection, pool, size, None, Wait::Inbound).await {
                    Ok(lease) => lease,
                    Err(reason) => return reason,
                }
            }
        };
        connection.activity.holds_inbound(lease.bytes());
        let mut active = Active {
            shared,
            connection,
            socket: &mut socket,
            read_size: &mut read_size,
            ahead: &mut ahead,
            stranger: &mut stranger,
            base: if is_first { vec![0; size] } else { shared.buffers.take() },
            pool,
            lease,
            large: None,
            is_first,
            deadline: None,
            turn,
        };
        let result = active.run().await;
        connection.activity.holds_inbound(0);
        connection.activity.holds_inbound_large(0);
        active.give_base_back();
        assert!(result.is_err() || !ahead.is_in_use(), "what was read ahead is handled");
        if let Err(reason) = result {
            return reason;
        }
    }
}

/// The pool for the read buffer of a client (invariant 8).
fn inbound_of<'a>(shared: &'a Shared, connection: &Connection) -> &'a ByteBudget {
    let pools = &shared.pools;
    if connection.activity.adds_of_late() { &pools.inbound_adds } else { &pools.inbound }
}

/// Waits in line for memory, at most until `deadline`.
async fn lease(
    connection: &Connection,
    pool: &ByteBudget,
    bytes: usize,
    deadline: Option<Instant>,
    why: Wait,
) -> Result<Permit, CloseReason> {
    if let Some(permit) = pool.try_acquire(bytes as u64) {
        return Ok(permit);
    }
    let _waiting = match why == Wait::Inbound && !connection.has_spoken() {
        true => connection.activity.waits_as_stranger(why),
        false => connection.activity.waits(why),
    };
    tokio::select! {
        () = connection.closed.wait() => Err(CloseReason::Ours),
        () = until(deadline) => Err(CloseReason::Silent),
        permit = pool.acquire(bytes as u64) => permit.map_err(|_| CloseReason::Ours),
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// How much to read at once.
struct ReadSize {
    /// Bytes of requests that go with a byte of promised answers, in eighths: the last that were seen, but at most doubled
    /// by one read. No answer is promised more than eight times the size of its request.
    eighths: usize,
    /// Doubled by each read that fills it, so that a crowd that comes at once is read in small pieces first.
    slice: usize,
}

impl ReadSize {
    fn new() -> ReadSize {
        ReadSize { eighths: 1, slice: READ_BYTES_MIN }
    }

    /// A read brought `bytes` of the `most` it could.
    fn filled(&mut self, bytes: usize, most: usize) {
        if bytes == most {
            self.slice = (2 * self.slice).min(SLICE_BYTES_MAX);
        } else if bytes < self.slice / 4 {
            self.slice = (self.slice / 2).max(READ_BYTES_MIN);
        }
    }

    fn learn(&mut self, requests: usize, answers: usize) {
        if let Some(eighths) = (requests * 8).checked_div(answers) {
            self.eighths = eighths.clamp(1, 2 * self.eighths);
        }
    }

    /// Bytes of requests that `room` for answers is enough for.
    fn fits(&self, room: usize) -> usize {
        room.saturating_mul(self.eighths) / 8
    }
}

/// True when the connection drains and everything that had come is read (invariant 7).
fn is_drained(connection: &Connection, socket: &mut Inlet) -> bool {
    if connection.draining.is_set() {
        socket.begin_drain();
    }
    socket.is_drained()
}

/// A connection that has something to say, and memory to say it in.
struct Active<'a> {
    shared: &'a Arc<Shared>,
    connection: &'a Arc<Connection>,
    socket: &'a mut Inlet,
    read_size: &'a mut ReadSize,
    /// Empty but while frames are handled.
    ahead: &'a mut Ahead,
    /// Of a peer that has to say who it is.
    stranger: &'a mut Stranger,
    /// Empty while requests, or a part of one, are set aside.
    base: Vec<u8>,
    /// Where the lease is from.
    pool: &'a ByteBudget,
    lease: Permit,
    /// Memory for frames longer than `base`, kept while such frames follow each other.
    large: Option<(Vec<u8>, Permit)>,
    /// No request of this peer was handled yet (invariant 5).
    is_first: bool,
    /// By when the first request must be here; set by its first byte.
    deadline: Option<Instant>,
    /// For one slice, of a connection with many reads in hand.
    turn: Option<SliceTurn>,
}

impl<'a> Active<'a> {
    /// Reads and handles until there is nothing to read and no frame is half here, or until no more is to be read.
    async fn run(&mut self) -> Result<(), CloseReason> {
        let (mut begin, mut end) = (0, 0);
        let mut partial_since = Instant::now();
        // Read already, before adds waited or its buffer was changed, and not handled.
        let mut is_at_hand = false;
        loop {
            if !is_at_hand && is_drained(self.connection, self.socket) {
                // Every decoded request is answered; the rest is not a whole frame.
                return Ok(());
            }
            let is_new = begin == end;
            if is_at_hand {
                partial_since = Instant::now();
            } else if is_new {
                begin = 0;
                if self.turn.is_none() && self.connection.is_bulk() {
                    return Ok(());
                }
                let most = self.read_max();
                let read = tokio::select! {
                    biased;
                    read = self.socket.read(&mut self.base[..most]) => read,
                    // Nothing there: back to waiting without memory (invariant 1).
                    () = std::future::ready(()) => return Ok(()),
                };
                end = received(read)?;
                self.read_size.filled(end, most);
                self.shared.metrics.batching.socket_reads.add(1);
                if self.is_first {
                    self.deadline = Some(self.first_deadline());
                }
            } else {
                match self.read_more(begin, end, partial_since).await? {
                    Some(read) => end += read,
                    None => return Ok(()),
                }
            }
            if !self.is_large_next(&self.base[begin..end]) {
                // Before anything that may wait, for this peer or for a shard (invariant 1).
                if self.large.take().is_some() {
                    self.connection.activity.holds_inbound_large(0);
                }
            }
            if self.is_first
                && self.is_first_frame()
                && let Some(start) = self.first_record(&self.base[begin..end])
            {
                return self.start_tls(start, begin..end).await;
            }
            if self.is_first && self.is_whole(&self.base[begin..end]) {
                match self.first_frame(&self.base[begin..end]).await? {
                    First::Tls(start) => {
                        let behind = begin + start.len..end;
                        return self.start_tls(start, behind).await;
                    }
                    First::Unknown => {
                        (begin, end) = (0, self.await_start_tls(begin..end).await?);
                        is_at_hand = true;
                        continue;
                    }
                    First::Other => {}
                }
                if self.is_unauthenticated() {
                    std::ops::Range { start: begin, end } = self.authenticate_with(begin..end).await?;
                    if begin == end {
                        return Ok(());
                    }
                    is_at_hand = true;
                    continue;
                }
                // Before the peer sees its answer: a peer that was answered is a client. A malformed request closes the
                // connection.
                self.connection.speak(self.shared);
                // Its adds may have to wait for room, and other strangers for this memory.
                self.base.truncate(end);
                self.base.shrink_to_fit();
                self.lease.shrink_to(end as u64);
                self.connection.activity.holds_inbound(self.lease.bytes());
            }
            // The buffer is lent to the batch while it is handed over; it comes back whatever happens.
            let base = std::mem::take(&mut self.base);
            let received_ns = self.socket.arrived_ns();
            let (is_first, is_of_adds) = (self.is_first, self.is_of_adds());
            let source = AheadSource { socket: &mut *self.socket, ahead: &mut *self.ahead };
            let frames = Frames {
                turn: self.turn.take(),
                // Elsewhere no adds wait, or those of a stranger.
                source: Some(source).filter(|_| is_of_adds),
                may_keep: is_first || is_of_adds,
                ..Frames::new(self.shared, self.connection, 0, received_ns)
            };
            let result = frames.handle(&base[begin..end]).await;
            self.base = base;
            let Handled { used, promised, mut missing, lacks_room, received_ns, is_at_add, turn } = result?;
            if let Some(turn) = turn {
                turn.pass_on().await;
            }
            self.read_size.learn(used, promised);
            is_at_hand = self.ahead.is_in_use();
            if is_at_hand {
                (begin, end) = (0, self.ahead.move_to(&mut self.base, &self.connection.activity));
                is_at_hand = end > 0;
                continue;
            }
            begin += used;
            if lacks_room {
                match self.wait_for_room(begin..end, received_ns).await? {
                    Some(left) => (begin, end, missing) = (0, left.bytes, left.missing),
                    None => return Ok(()),
                }
            }
            let partial = end - begin;
            if is_at_add {
                self.move_to(&self.shared.pools.inbound_adds, begin..end).await?;
                (begin, end, is_at_hand) = (0, partial, true);
                continue;
            }
            // Not if it waited for room: then it is a client by now, and waits for no memory of a pool that it has some of.
            if self.is_first && used > 0 {
                if partial == 0 {
                    return Ok(());
                }
                self.move_to(inbound_of(self.shared, self.connection), begin..end).await?;
                (begin, end) = (0, partial);
            }
            if partial == 0 {
                continue;
            }
            if used > 0 || is_new || lacks_room {
                partial_since = Instant::now();
            }
            let whole = partial + missing;
            let is_long = whole > self.shared.limits.first_buffer_bytes && whole <= self.base.len();
            if is_long && !self.is_first && !self.is_of_adds() {
                // An add, by its length.
                self.move_to(&self.shared.pools.inbound_adds, begin..end).await?;
                (begin, end) = (0, partial);
            } else if whole > self.base.len() {
                if self.is_unauthenticated() {
                    let base = std::mem::take(&mut self.base);
                    return Err(self.refuse_long(&base[begin..end]).await);
                }
                if !self.read_large(begin..end, whole).await? {
                    return Ok(());
                }
                (begin, end) = (0, self.ahead.move_to(&mut self.base, &self.connection.activity));
                is_at_hand = end > 0;
            } else if begin + whole > self.base.len() || end == self.base.len() {
                self.base.copy_within(begin..end, 0);
                (begin, end) = (0, partial);
            }
        }
    }

    /// Takes a buffer of a later pool, with what is `here` of the next requests: of a client for a stranger (invariant 5), of a
    /// connection that adds for one that does not (invariant 8).
    async fn move_to(
        &mut self,
        pool: &'a ByteBudget,
        here: std::ops::Range<usize>,
    ) -> Result<(), CloseReason> {
        assert!(!std::ptr::eq(self.pool, pool), "nobody waits for a pool with memory of it in hand");
        let begun = self.set_aside(here);
        if self.large.take().is_some() {
            self.connection.activity.holds_inbound_large(0);
        }
        let size = self.shared.limits.read_buffer_bytes;
        self.lease = lease(self.connection, pool, size, None, Wait::Inbound).await?;
        self.pool = pool;
        self.connection.activity.holds_inbound(self.lease.bytes());
        self.base = self.shared.buffers.take();
        self.base[..begun.len()].copy_from_slice(&begun);
        (self.is_first, self.deadline) = (false, None);
        Ok(())
    }

    /// True when its buffer is one of those that may be kept while adds wait for room.
    fn is_of_adds(&self) -> bool {
        std::ptr::eq(self.pool, &self.shared.pools.inbound_adds)
    }

    /// How much to read at once, when nothing is here (invariants 2 and 6).
    fn read_max(&self) -> usize {
        let most = match self.is_of_adds() {
            true => self.base.len(),
            // It may have to wait for a place among those (invariant 8).
            false => self.base.len().min(self.shared.limits.first_buffer_bytes),
        };
        let pools = &self.shared.pools;
        let large = if self.is_first { &pools.first_large } else { &pools.inbound_large };
        let is_large_short = large.gauge().waiting > 0;
        let slice = if self.turn.is_some() { SLICE_BYTES } else { self.read_size.slice };
        let wanted = self.read_size.fits(self.connection.outbox.room()).min(slice);
        let control = pools.control.gauge();
        let is_read_room_short =
            2 * control.used > control.capacity && self.connection.reads.lock().len() >= FREE;
        let wanted = if is_read_room_short { 0 } else { wanted };
        wanted.max(READ_BYTES_MIN).min(if is_large_short { BEGUN_BYTES } else { most }).min(most)
    }

    fn give_base_back(&mut self) {
        let base = std::mem::take(&mut self.base);
        // A stranger's is its own.
        if !self.is_first && !base.is_empty() {
            self.shared.buffers.put(base);
        }
    }

    /// Takes what is here out of the buffer, and gives that back with all memory but for these bytes.
    fn set_aside(&mut self, here: std::ops::Range<usize>) -> Vec<u8> {
        let aside = self.base[here].to_vec();
        self.give_base_back();
        self.lease.shrink_to(aside.len() as u64);
        self.connection.activity.holds_inbound(aside.len() as u64);
        aside
    }

    /// Waits until there is room for answers, and handles the requests `here` (invariant 2). Returns the part of a
    /// frame that is left, now at the beginning of the buffer; `None` when no bytes are left.
    async fn wait_for_room(
        &mut self,
        here: std::ops::Range<usize>,
        received_ns: u64,
    ) -> Result<Option<Left>, CloseReason> {
        let aside = self.set_aside(here);
        if self.is_first {
            let pool = &self.shared.pools.inbound;
            self.lease = lease(self.connection, pool, aside.len(), None, Wait::Inbound).await?;
            self.pool = pool;
            (self.is_first, self.deadline) = (false, None);
        }
        let mut at = 0;
        let missing = loop {
            self.wait_for_reads().await?;
            let credit = self.wait_for_credit(CREDIT_STEP).await?;
            // Their age is that of the read that brought them.
            let frames = Frames {
                may_keep: self.is_of_adds(),
                ..Frames::new(self.shared, self.connection, credit, received_ns)
            };
            let handled = frames.handle(&aside[at..]).await?;
            at += handled.used;
            if handled.is_at_add {
                let pool = &self.shared.pools.inbound_adds;
                self.lease = lease(self.connection, pool, aside.len(), None, Wait::Inbound).await?;
                self.pool = pool;
            } else if !handled.lacks_room {
                break handled.missing;
            }
        };
        let left = aside[at..].to_vec();
        drop(aside);
        self.lease.shrink_to(left.len() as u64);
        if left.is_empty() {
            return Ok(None);
        }
        let size = self.shared.limits.read_buffer_bytes;
        let whole = match self.pool.try_acquire(size as u64) {
            Some(whole) => whole,
            // Few bytes are no hindrance: all connections together hold less than a buffer.
            None if left.len() < LENGTH_PREFIX_SIZE_BYTES => {
                lease(self.connection, self.pool, size, None, Wait::Inbound).await?
            }
            // No task waits for this pool while it holds more bytes of it.
            None => {
                let whole = left.len() + missing;
                self.read_aside(left, whole).await?;
                return Ok(None);
            }
        };
        self.lease = whole;
        self.connection.activity.holds_inbound(self.lease.bytes());
        self.base = self.shared.buffers.take();
        self.base[..left.len()].copy_from_slice(&left);
        Ok(Some(Left { bytes: left.len(), missing }))
    }

    /// Waits until reads that are in hand have finished, when there is no room for more.
    async fn wait_for_reads(&self) -> Result<(), CloseReason> {
        let Some(room_made) = self.connection.reads.lock().await_room() else { return Ok(()) };
        let _waiting = self.connection.activity.waits(Wait::Reads);
        // Some of them may be waiting for a disk that hangs.
        self.connection.wake_sender.notify_one();
        tokio::select! {
            () = self.connection.closed.wait() => Err(self.died_paused()),
            () = room_made.notified() => Ok(()),
        }
    }

    /// Waits for the peer to take answers; then there is room for one at least.
    async fn wait_for_credit(&self, most: usize) -> Result<usize, CloseReason> {
        let _waiting = self.connection.activity.waits(Wait::Outbox);
        self.connection.waits_for_credit.store(true, Ordering::Release);
        self.connection.wake_sender.notify_one();
        let credit = tokio::select! {
            () = self.connection.closed.wait() => return Err(self.died_paused()),
            credit = self.connection.outbox.credit(V3_ANSWER_BYTES, most) => credit,
        };
        self.connection.waits_for_credit.store(false, Ordering::Release);
        credit.map_err(|Closed| CloseReason::Ours)
    }

    /// The connection was closed while it waited for its peer to read. Here is canary M24.
    fn died_paused(&self) -> CloseReason {
        if self.shared.limits.canaries.has(Canary::M24PausedPermitLeaks) {
            std::mem::forget(self.shared.pools.inbound.try_acquire(1));
        }
        CloseReason::Ours
    }

    fn is_whole(&self, data: &[u8]) -> bool {
        matches!(frame::split(data, self.shared.limits.frame), Ok(Split::Frame(_)))
    }

    /// True when `data` begins with a part of a frame that will not fit the buffer.
    fn is_large_next(&self, data: &[u8]) -> bool {
        match frame::split(data, self.shared.limits.frame) {
            Ok(Split::Incomplete { missing }) => data.len() + missing > self.base.len(),
            Ok(Split::Frame(_)) | Err(_) => false,
        }
    }

    /// Reads the rest of something begun `since` at `begin` into `base` from `end`; `None` when no more is to be read.
    async fn read_more(
        &mut self,
        begin: usize,
        end: usize,
        since: Instant,
    ) -> Result<Option<usize>, CloseReason> {
        let most = self.read_max();
        let mut base = std::mem::take(&mut self.base);
        let until = base.len().min(end + most);
        let part = Part { since, filled: end - begin, pool: self.pool, deadline: self.deadline };
        let result = self.read_patiently(&mut base[end..until], part).await;
        self.base = base;
        result
    }

    /// Reads the rest of a frame of `whole` bytes, prefix included, that does not fit the buffer; handles it. False when
    /// no more is to be read.
    async fn read_large(&mut self, begun: std::ops::Range<usize>, whole: usize) -> Result<bool, CloseReason> {
        let shared = self.shared;
        let pools = &shared.pools;
        let pool = if self.is_first { &pools.first_large } else { &pools.inbound_large };
        // Given back before asking for more: no task waits for this pool while it holds bytes of it.
        let large = self.large.take().filter(|(memory, _)| memory.len() >= whole);
        let at_once = large.or_else(|| pool.try_acquire(whole as u64).map(|permit| (vec![0; whole], permit)));
        self.connection.activity.holds_inbound_large(0);
        let Some((mut memory, permit)) = at_once else {
            let aside = self.set_aside(begun);
            return self.read_aside(aside, whole).await;
        };
        let Some(credit) = self.connection.outbox.try_credit(V3_ANSWER_BYTES, V3_ANSWER_BYTES) else {
            drop((memory, permit));
            let aside = self.set_aside(begun);
            return self.read_aside(aside, whole).await;
        };
        let filled = begun.len();
        memory[..filled].copy_from_slice(&self.base[begun]);
        if !self.is_of_adds() {
            // It is most likely an add, and holds no other memory while it waits for room (invariant 8).
            self.set_aside(0..0);
        }
        self.read_rest(Large { memory, permit, credit, filled, whole }).await
    }

    /// As [`Active::read_large`], of a frame whose beginning was set aside; waits in line for what it lacks. Always
    /// false: the task does not wait for a buffer while it holds memory for large frames.
    async fn read_aside(&mut self, aside: Vec<u8>, whole: usize) -> Result<bool, CloseReason> {
        let pools = &self.shared.pools;
        let pool = if self.is_first { &pools.first_large } else { &pools.inbound_large };
        let credit = match self.connection.outbox.try_credit(V3_ANSWER_BYTES, V3_ANSWER_BYTES) {
            Some(credit) => credit,
            None => self.wait_for_credit(V3_ANSWER_BYTES).await?,
        };
        let permit = lease(self.connection, pool, whole, self.deadline, Wait::LargeFrame).await?;
        let (mut memory, filled) = (vec![0; whole], aside.len());
        memory[..filled].copy_from_slice(&aside);
        drop(aside);
        self.lease.shrink_to(0);
        self.connection.activity.holds_inbound(0);
        self.read_rest(Large { memory, permit, credit, filled, whole }).await
    }

    /// Reads a large frame to its end and handles it. False when no more is to be read, or the buffer was given back.
    async fn read_rest(&mut self, large: Large) -> Result<bool, CloseReason> {
        let Large { mut memory, permit, credit, mut filled, whole } = large;
        let pools = &self.shared.pools;
        let pool = if self.is_first { &pools.first_large } else { &pools.inbound_large };
        self.connection.activity.holds_inbound_large(permit.bytes());
        // The peer answers for its own time, not for the wait for memory.
        let since = Instant::now();
        while filled < whole {
            let part = Part { since, filled, pool, deadline: self.deadline };
            match self.read_patiently(&mut memory[filled..whole], part).await? {
                Some(read) => filled += read,
                None => {
                    self.connection.outbox.return_credit(credit);
                    return Ok(false);
                }
            }
        }
        if self.lacks_tls() {
            return Err(CloseReason::NotEncrypted);
        }
        self.connection.speak(self.shared);
        // Handled whatever it is: a read beyond the room is refused.
        let received_ns = self.socket.arrived_ns();
        // Into the buffer, afterwards.
        let may_look = !self.base.is_empty();
        let source = AheadSource { socket: &mut *self.socket, ahead: &mut *self.ahead };
        let frames = Frames {
            read_room: 1,
            source: Some(source).filter(|_| may_look),
            ..Frames::new(self.shared, self.connection, credit, received_ns)
        };
        let Handled { used, .. } = frames.handle(&memory[..whole]).await?;
        assert_eq!(used, whole, "a large frame is read exactly to its end (reader invariant 1)");
        if self.base.is_empty() {
            return Ok(false);
        }
        self.large = Some((memory, permit));
        Ok(true)
    }

    /// Reads some bytes of the rest of `part`; `None` when no more is to be read. A peer that does not keep up while
    /// others wait for the pool it holds is given up.
    async fn read_patiently(
        &mut self,
        target: &mut [u8],
        part: Part<'_>,
    ) -> Result<Option<usize>, CloseReason> {
        let step = Duration::from_millis(500);
        let stall_max = self.shared.limits.stall_max;
        loop {
            // At every call too: a peer that trickles never lets the timer end.
            let now = Instant::now();
            if part.deadline.is_some_and(|deadline| now >= deadline) {
                return Err(CloseReason::Silent);
            }
            if part.is_stalled(now, if self.is_first { stall_max.min(FIRST_STALL_MAX) } else { stall_max }) {
                let bytes_held = (part.filled + target.len()) as u64;
                let took_nothing_for = now.duration_since(part.since);
                return Err(CloseReason::Stalled { bytes_held, took_nothing_for });
            }
            if is_drained(self.connection, self.socket) {
                return Ok(None);
            }
            let drain_begins = self.connection.draining.wait();
            let is_draining = self.socket.is_draining();
            tokio::select! {
                biased;
                read = self.socket.read(target) => {
                    self.shared.metrics.batching.socket_reads.add(1);
                    return received(read).map(Some);
                }
                () = self.connection.closed.wait() => return Err(CloseReason::Ours),
                () = drain_begins, if !is_draining => {}
                () = tokio::time::sleep(step) => {}
            }
        }
    }
}

fn received(read: std::io::Result<usize>) -> Result<usize, CloseReason> {
    match read {
        Ok(0) => Err(CloseReason::Peer),
        Ok(n) => Ok(n),
        Err(error) => Err(failed(error)),
    }
}

/// Why a connection ends whose transport failed.
fn failed(error: std::io::Error) -> CloseReason {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => CloseReason::Tls(error.to_string()),
        None => CloseReason::Socket(error.kind()),
    }
}

/// A frame of which a part is here.
struct Part<'a> {
    /// When the rest of it was first waited for.
    since: Instant,
    /// Bytes here.
    filled: usize,
    /// Where its memory is from.
    pool: &'a ByteBudget,
    /// When it must be whole, whoever waits.
    deadline: Option<Instant>,
}

impl Part<'_> {
    /// True when its peer is too slow for the memory it holds (invariant 6).
    fn is_stalled(&self, now: Instant, stall_max: Duration) -> bool {
        let elapsed = now.duration_since(self.since);
        elapsed >= stall_max
            && (self.filled as u128) * 1000 < u128::from(MIN_BYTES_PER_S) * elapsed.as_millis()
            && self.pool.gauge().waiting > 0
    }
}

/// A frame that does not fit the buffer, with all that it takes.
struct Large {
    memory: Vec<u8>,
    permit: Permit,
    /// Promised for its answer.
    credit: usize,
    /// Bytes that are here.
    filled: usize,
    whole: usize,
}

/// Part of a frame that is left when requests before it are handled.
struct Left {
    bytes: usize,
    missing: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_appetite_falls_at_once_and_grows_slowly() {
        let mut read_size = ReadSize::new();
        assert_eq!(read_size.fits(800), 100, "nothing is known yet");
        for _ in 0..10 {
            read_size.learn(64_000, 64 * 28);
        }
        assert!(read_size.fits(4096) > 64 * 1024, "adds of 1 KiB take little room");
        read_size.learn(28, 40);
        assert!(read_size.fits(4000) <= 2800, "reads take more than they are long");
        read_size.learn(64_000, 28);
        assert!(read_size.fits(4000) <= 5600);
        read_size.learn(0, 0);
        read_size.learn(1, 1 << 20);
        assert_eq!(read_size.fits(8), 1);
    }

    #[test]
    fn reads_grow_while_they_are_filled() {
        let mut read_size = ReadSize::new();
        assert_eq!(read_size.slice, READ_BYTES_MIN, "a crowd that comes at once is read in small pieces");
        for _ in 0..20 {
            read_size.filled(read_size.slice, read_size.slice);
        }
        assert_eq!(read_size.slice, SLICE_BYTES_MAX);
        read_size.filled(read_size.slice / 2, read_size.slice);
        assert_eq!(read_size.slice, SLICE_BYTES_MAX);
        for _ in 0..20 {
            read_size.filled(100, read_size.slice);
        }
        assert_eq!(read_size.slice, READ_BYTES_MIN);
    }

    #[test]
    fn a_part_of_a_frame_is_judged_by_its_rate_and_only_while_others_wait() {
        let pool = ByteBudget::new("inbound_large", 100);
        let since = Instant::now();
        let stall_max = Duration::from_secs(5);
        let at = |seconds| since + Duration::from_secs(seconds);
        let part = |filled| Part { since, filled, pool: &pool, deadline: None };
        let rate = MIN_BYTES_PER_S as usize;

        let held = pool.try_acquire(100);
        assert!(!part(0).is_stalled(at(1000), stall_max), "nobody waits");
        let mut waiting = Box::pin(pool.acquire(1));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());

        assert!(!part(0).is_stalled(at(4), stall_max), "every peer has this long");
        assert!(part(0).is_stalled(at(5), stall_max));
        // A byte every four seconds: no wait is long, and still it is no progress (invariant 6).
        assert!(part(25).is_stalled(at(100), stall_max));
        assert!(part(20 * rate - 1).is_stalled(at(20), stall_max));
        assert!(!part(20 * rate).is_stalled(at(20), stall_max), "slow, but it keeps up");
        drop((held, waiting));
        assert!(!part(0).is_stalled(at(5), stall_max));
    }
}
