//! The first half of a connection: takes memory, reads the socket, decodes frames, and hands requests over.
//!
//! # Data flow
//! ```text
//! readable -> lease -> read -> FrameBuffer -> Frames -> adds: batch per shard -> Engine::add_or_ask
//!                                              |      no room: late_adds waits, look_ahead handles what need not
//!                                              -> reads: reads::queue; others: operations
//! ```
//!
//! This module is the shell: it waits for sockets, memory, peers and shards. [`frame_buffer`] owns the received bytes, without I/O.
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
//! 6. A peer in the middle of a frame holds memory that others wait for only as long as it keeps a least rate
//!    over that whole frame ([`patience`]): a byte now and then is no progress. What waits in line for the memory of a large frame holds
//!    what is here of it and no buffer, and while anybody does, frames are begun [`BEGUN_BYTES`] at a time.
//! 7. Told to drain, it handles what the kernel had received by then, and whole frames only.
//! 8. Adds that wait for room keep the buffer they were read into, so connections that add have a pool of their own: however
//!    many of them wait, fences, reads and health requests of others are read. A connection takes its buffers from there when
//!    adds came of late. In any other buffer of a client the first add ends what is handled: what is left, no more
//!    than a stranger may send, moves to a buffer of that pool first, and of a large frame nothing is left. A stranger keeps only the
//!    bytes of its requests.
//!
//! 9. Adds of a tenant over its limit wait like adds that find no room; [`tenancy`] decides which adds wait, and until when. Where tenants
//!    are configured, adds of a first request move to the memory of clients before they wait.
//!
//! # Order of pools     first requests, then inbound, then inbound-adds, then inbound-large: a task that holds
//! bytes of one waits only for later ones. No task waits for `ahead`

mod authenticate;
mod batches;
mod early_auth;
mod frame_buffer;
mod frames;
mod greeting;
mod large;
mod late_adds;
mod look_ahead;
mod operations;
mod patience;
mod read_size;
mod room;
mod start_tls;
mod tenancy;

use crate::connection::activity::Wait;
use crate::connection::reads::queue_memory::FREE;
use crate::connection::slice_turns::{SLICE_BYTES, SliceTurn};
use crate::connection::transport::Inlet;
use crate::connection::{CloseReason, Connection};
use crate::shared::Shared;
use authenticate::Stranger;
use bindery_flow::{ByteBudget, Permit};
use frame_buffer::FrameBuffer;
pub(super) use frames::Frames;
use frames::Handled;
use greeting::Greeting;
use look_ahead::{Ahead, AheadSource};
use patience::Pace;
use read_size::{READ_BYTES_MIN, ReadSize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Credit taken at once for the answers to what one read brought.
const CREDIT_STEP: usize = 16 * 1024;
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
        if let Err(reason) = tenancy::wait_until_paid(shared, connection).await {
            return reason;
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
        let memory = if is_first { vec![0; size] } else { shared.buffers.take() };
        let mut active = Active {
            shared,
            connection,
            socket: &mut socket,
            read_size: &mut read_size,
            ahead: &mut ahead,
            stranger: &mut stranger,
            buffer: FrameBuffer::new(memory, lease, limits.frame),
            pool,
            large: None,
            is_first,
            deadline: None,
            turn,
        };
        let result = active.run().await;
        connection.activity.holds_inbound(0);
        connection.activity.holds_inbound_large(0);
        let memory = active.buffer.take_memory();
        active.give_back(memory);
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
    /// Without space while requests, or a part of one, are set aside.
    buffer: FrameBuffer,
    /// Where its memory is from.
    pool: &'a ByteBudget,
    /// For frames that do not fit the buffer, kept while such frames follow each other.
    large: Option<FrameBuffer>,
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
        let mut partial_since = Instant::now();
        // Read already, before adds waited or its buffer was changed, and not handled.
        let mut is_at_hand = false;
        loop {
            if !is_at_hand && is_drained(self.connection, self.socket) {
                // Every decoded request is answered; the rest is not a whole frame.
                return Ok(());
            }
            let is_new = self.buffer.is_empty();
            if is_at_hand {
                partial_since = Instant::now();
            } else {
                let has_read = match is_new {
                    true => self.read_new().await?,
                    false => self.read_more(partial_since).await?,
                };
                if !has_read {
                    return Ok(());
                }
            }
            if !self.buffer.is_outgrown() {
                // Before anything that may wait, for this peer or for a shard (invariant 1).
                self.drop_large();
            }
            if self.is_first {
                match self.greet().await? {
                    Greeting::Over => return Ok(()),
                    Greeting::Again => {
                        is_at_hand = true;
                        continue;
                    }
                    Greeting::Request => {}
                }
            }
            let Handled { used, promised, lacks_room, received_ns, is_at_add, turn } = self.handle().await?;
            if let Some(turn) = turn {
                turn.pass_on().await;
            }
            self.read_size.learn(used, promised);
            self.buffer.skip(used);
            is_at_hand = self.ahead.is_in_use();
            if is_at_hand {
                is_at_hand = self.take_ahead();
                continue;
            }
            if lacks_room && !self.wait_for_room(received_ns).await? {
                return Ok(());
            }
            if self.ahead.is_in_use() {
                // Behind a large frame.
                is_at_hand = self.take_ahead();
                continue;
            }
            if is_at_add {
                self.move_to(&self.shared.pools.inbound_adds).await?;
                is_at_hand = true;
                continue;
            }
            // Not if it waited for room: then it is a client by now, and waits for no memory of a pool that it has some of.
            if self.is_first && used > 0 {
                if self.buffer.is_empty() {
                    return Ok(());
                }
                self.move_to(inbound_of(self.shared, self.connection)).await?;
            }
            let Some(whole) = self.buffer.begun() else { continue };
            if self.buffer.make_room_for_prefix() {
                // Kept without space behind a login; the length of the frame is not here yet.
                continue;
            }
            if used > 0 || is_new || lacks_room {
                partial_since = Instant::now();
            }
            let is_long = whole > self.shared.limits.first_buffer_bytes && whole <= self.buffer.size();
            if is_long && !self.is_first && !self.is_of_adds() {
                // An add, by its length.
                self.move_to(&self.shared.pools.inbound_adds).await?;
            } else if whole > self.buffer.size() {
                if self.is_unauthenticated() {
                    return Err(self.refuse_long().await);
                }
                if !self.read_large(whole).await? {
                    return Ok(());
                }
                is_at_hand = self.take_ahead();
            } else {
                self.buffer.make_room(whole);
            }
        }
    }

    /// Reads what is there, into an empty buffer; false when nothing is, or others have their turn.
    async fn read_new(&mut self) -> Result<bool, CloseReason> {
        if (self.turn.is_none() && self.connection.is_bulk())
            || tenancy::is_paused(self.shared, self.connection)
        {
            return Ok(false);
        }
        let most = self.read_max();
        let read = tokio::select! {
            biased;
            read = self.socket.read(self.buffer.space(most)) => received(read)?,
            // Nothing there: back to waiting without memory (invariant 1).
            () = std::future::ready(()) => return Ok(false),
        };
        self.buffer.filled(read);
        self.read_size.filled(read, most);
        self.shared.metrics.batching.socket_reads.add(1);
        if self.is_first {
            self.deadline = Some(self.first_deadline());
        }
        Ok(true)
    }

    /// Reads the rest of a frame that was begun at `since`; false when no more is to be read.
    async fn read_more(&mut self, since: Instant) -> Result<bool, CloseReason> {
        let (most, pace) = (self.read_max(), self.pace(since, self.pool));
        patience::read(self.shared, self.connection, self.socket, &mut self.buffer, most, pace).await
    }

    fn pace(&self, since: Instant, pool: &'a ByteBudget) -> Pace<'a> {
        let stall_max = self.shared.limits.stall_max;
        let stall_max = if self.is_first { stall_max.min(FIRST_STALL_MAX) } else { stall_max };
        Pace { since, pool, stall_max, deadline: self.deadline }
    }

    /// Handles the frames in the buffer. They are lent to the batch while it is handed over, and stay in the buffer.
    async fn handle(&mut self) -> Result<Handled, CloseReason> {
        let received_ns = self.socket.arrived_ns();
        let (is_first, is_of_adds) = (self.is_first, self.is_of_adds());
        let source = AheadSource { socket: &mut *self.socket, ahead: &mut *self.ahead };
        let frames = Frames {
            turn: self.turn.take(),
            // Elsewhere no adds wait, or those of a stranger.
            source: Some(source).filter(|_| is_of_adds),
            may_keep: is_of_adds || (is_first && self.shared.tenants.is_none()),
            kept: [is_of_adds.then_some((self.pool, self.buffer.charged())), None],
            ..Frames::new(self.shared, self.connection, 0, received_ns)
        };
        frames.handle(self.buffer.frames()).await
    }

    /// Moves what was read ahead to the buffer, which is empty. False when nothing was.
    fn take_ahead(&mut self) -> bool {
        self.ahead.move_to(&mut self.buffer, &self.connection.activity);
        !self.buffer.is_empty()
    }

    /// Takes a buffer of a later pool, with what is here of the next requests: of a client for a stranger (invariant 5), of a
    /// connection that adds for one that does not (invariant 8).
    async fn move_to(&mut self, pool: &'a ByteBudget) -> Result<(), CloseReason> {
        assert!(!std::ptr::eq(self.pool, pool), "nobody waits for a pool with memory of it in hand");
        self.set_aside();
        self.drop_large();
        let size = self.shared.limits.read_buffer_bytes;
        let permit = lease(self.connection, pool, size, None, Wait::Inbound).await?;
        self.pool = pool;
        self.take_buffer(permit);
        (self.is_first, self.deadline) = (false, None);
        Ok(())
    }

    /// Moves what was set aside to a buffer of full size.
    fn take_buffer(&mut self, permit: Permit) {
        self.connection.activity.holds_inbound(permit.bytes());
        self.buffer.move_to(self.shared.buffers.take(), permit);
    }

    /// True when its buffer is one of those that may be kept while adds wait for room.
    fn is_of_adds(&self) -> bool {
        std::ptr::eq(self.pool, &self.shared.pools.inbound_adds)
    }

    /// How much to read at once, when nothing is here (invariants 2 and 6).
    fn read_max(&self) -> usize {
        let most = match self.is_of_adds() {
            true => self.buffer.size(),
            // It may have to wait for a place among those (invariant 8).
            false => self.buffer.size().min(self.shared.limits.first_buffer_bytes),
        };
        let pools = &self.shared.pools;
        let is_large_short = self.large_pool().gauge().waiting > 0;
        let slice = if self.turn.is_some() { SLICE_BYTES } else { self.read_size.slice };
        let wanted = self.read_size.fits(self.connection.outbox.room()).min(slice);
        let control = pools.control.gauge();
        let is_read_room_short =
            2 * control.used > control.capacity && self.connection.reads.lock().len() >= FREE;
        let wanted = if is_read_room_short { 0 } else { wanted };
        wanted.max(READ_BYTES_MIN).min(if is_large_short { BEGUN_BYTES } else { most }).min(most)
    }

    fn give_back(&self, memory: Vec<u8>) {
        // A stranger's is its own, and what was set aside is dropped.
        if !self.is_first && memory.len() == self.shared.limits.read_buffer_bytes {
            self.shared.buffers.put(memory);
        }
    }

    /// Gives back all memory but for the bytes that are here.
    fn set_aside(&mut self) {
        self.keep_only(0);
    }

    /// As [`Active::set_aside`]; of the lease, `beside` bytes more stay.
    fn keep_only(&mut self, beside: usize) {
        let memory = self.buffer.shrink(beside);
        self.give_back(memory);
        self.connection.activity.holds_inbound(self.buffer.charged());
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
