//! Connections: one reader task and one sender task each, and whatever thread completes their work.
//!
//! # Data flow
//! ```text
//! reader ── adds ──► Engine::add_or_ask ─► completion thread ──► Completion (AddSink) ─┐
//!    │ ──── fence, WRITE_LAC, FORCE ──► waiter on the completion thread ───────────────┼─► Outbox ─► socket
//!    └ ──── reads ──► ReadQueue ──► sender ──► memory, or I/O pool ───────────────────┘
//! ```
//!
//! # Invariants
//! 1. No thread waits for a peer. Answers that a peer does not take, and requests that it does not finish sending, hold
//!    bytes of bounded pools.
//! 2. One response per request, to the connection it came from, none after close (IB22): waiters know a connection by
//!    number and generation only.
//! 3. Adds of a ledger on a connection reach their shard in the order in which they were received.
//!    Those that are parked until metadata is checked ([`crate::metadata_check`]) come behind later ones of other keys.
//! 4. Closing gives everything back: permits, promises, parked polls.

mod activity;
mod connection_limits;
mod flow;
mod ingest;
mod output;
mod reads;
mod registry;
mod request;
pub mod shared;
mod slice_turns;
mod transport;

pub use crate::limits::{StallRules, StalledClose};
pub use activity::{Class, Wait};
pub use connection_limits::ConnectionLimits;
pub use flow::{ConnectionFlow, STALLED_MS};
pub use output::completion::Completion;
pub use registry::Registry;
pub use slice_turns::SliceTurns;

use crate::auth::{Identity, Rights};
use crate::io_pool::Place;
use crate::latch::Latch;
use crate::read_class::{PerClass, ReadClass};
use crate::shared::Shared;
use crate::tenants::Tenancy;
use crate::tier::Arrival;
use activity::Activity;
use bindery_engine::Refusal;
use bindery_wire::ErrorCode;
use bindery_wire::frame::FrameTooLarge;
use output::outbox::{Flush, Outbox};
use output::peer_time::PeerTime;
use parking_lot::Mutex;
use reads::long_poll::{LongPolls, PollHolder};
use reads::queue::{Pushed, ReadQueue};
use request::{ReadKind, ReadRequest};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use transport::Transport;

/// One open connection.
pub struct Connection {
    id: u64,
    peer: SocketAddr,
    arrived_ns: u64,
    transport: Arc<Transport>,
    outbox: Outbox,
    reads: Mutex<ReadQueue>,
    polls: Mutex<LongPolls>,
    next_seq: AtomicU64,
    /// Loads on the I/O pools, by place: plain, fencing and high priority.
    loads_in_flight: Box<[PerClass<AtomicUsize>]>,
    /// Bytes loaded before the peer takes those before them.
    ahead_max: usize,
    /// Why this side closed it, when that was found outside of its tasks.
    fault: OnceLock<CloseReason>,
    /// Bytes to expect of an entry whose size is not known before it is loaded.
    size_guess: AtomicUsize,
    /// Answers to adds of a group, appended by a thread that will flush when it has appended all of the group.
    touched: AtomicUsize,
    /// Work for the sender: reads to start, bytes the socket did not take, a new deadline.
    wake_sender: Arc<Notify>,
    closed: Latch,
    /// Nothing is read that comes from now on; answers still leave.
    draining: Latch,
    /// Everything that had come by then is handled.
    is_read_out: AtomicBool,
    /// The reader waits for room for the answers to more reads.
    waits_for_credit: AtomicBool,
    /// The identity of its peer, if the bookie authenticates clients; set once.
    identity: OnceLock<Identity>,
    /// A whole, well-formed request came, of a peer who has said who it is if it has to: the peer is a client.
    has_spoken: AtomicBool,
    activity: Activity,
    /// What it took of its tenants.
    tenancy: Mutex<Tenancy>,
    /// When its peer did not take what waited for it.
    peer_time: Mutex<PeerTime>,
}

/// Why a connection ended; for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Peer,
    /// The socket failed.
    #[error("socket error: {0}")]
    Socket(std::io::ErrorKind),
    /// The peer sent what no client sends. No answer exists (protocol reference, section 1.1).
    #[error("bad frame: {0}")]
    BadFrame(String),
    /// The peer took or sent nothing for long, and held bytes (or the operator wants such peers closed).
    #[error("no progress for {} ms while it held {bytes_held} bytes", took_nothing_for.as_millis())]
    Stalled {
        /// Bytes of the pools that it held.
        bytes_held: u64,
        /// How long.
        took_nothing_for: Duration,
    },
    /// A frame was sent in part, its memory was given to others, and the copy it was made of is not there any more.
    #[error("the entry of ledger {ledger} whose beginning was sent has changed: the rest cannot be sent")]
    CopyGone {
        /// The ledger.
        ledger: i64,
    },
    /// The peer sent no whole request in time.
    #[error("no whole request in time")]
    Silent,
    /// The handshake of TLS was not finished in time.
    #[error("no TLS handshake in time")]
    HandshakeLate,
    /// The handshake failed, or later bytes were not valid TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// The peer sent a request without TLS, which this bookie requires.
    #[error("a request without TLS, which this bookie requires (tlsRequired)")]
    NotEncrypted,
    /// The peer did not say who it is, or did so wrongly. The audit log says more.
    #[error("not authenticated")]
    NotAuthenticated,
    /// The keys of TLS 1.2 encrypted nearly all that they may. The client begins again, with new ones.
    #[error("the keys of TLS 1.2 are used up: the client connects again")]
    KeysUsedUp,
    /// This side closed it: shutdown, or the other task ended first.
    #[error("closed by this bookie")]
    Ours,
}

impl From<FrameTooLarge> for CloseReason {
    fn from(error: FrameTooLarge) -> CloseReason {
        CloseReason::BadFrame(error.to_string())
    }
}

impl Connection {
    /// Adds the connection to the registry and runs it until it ends.
    pub async fn serve(shared: Arc<Shared>, socket: TcpStream, peer: SocketAddr) {
        let limits = &shared.limits;
        let wake_sender = Arc::new(Notify::new());
        let batching = shared.metrics.batching.clone();
        let transport = Arc::new(Transport::new(socket, wake_sender.clone(), batching));
        let ahead_max = limits.read_ahead_bytes(shared.pools.outbound.capacity());
        let connection = shared.connections.insert(|id| Connection {
            id,
            peer,
            arrived_ns: shared.clock.monotonic_ns(),
            transport,
            outbox: Outbox::new(
                limits.answers_bytes_max,
                limits.read_window_bytes,
                ahead_max,
                shared.pools.outbox.clone(),
                wake_sender.clone(),
            ),
            reads: Mutex::new(ReadQueue::new(limits.read_queue_max, shared.pools.control.clone())),
            polls: Mutex::default(),
            next_seq: AtomicU64::new(0),
            loads_in_flight: (0..shared.io.place_count()).map(|_| Default::default()).collect(),
            ahead_max,
            fault: OnceLock::new(),
            size_guess: AtomicUsize::new(shared.limits.read_buffer_bytes),
            touched: AtomicUsize::new(0),
            wake_sender,
            closed: Latch::default(),
            draining: Latch::default(),
            activity: Activity::new(
                shared.clock.clone(),
                shared.metrics.stages.clone(),
                shared.pressure.clone(),
                peer,
                limits.slow_request,
            ),
            is_read_out: AtomicBool::new(false),
            waits_for_credit: AtomicBool::new(false),
            identity: OnceLock::new(),
            has_spoken: AtomicBool::new(false),
            tenancy: Mutex::default(),
            peer_time: Mutex::new(PeerTime::new(limits.request_age_max)),
        });
        shared.connections.door().add_silent(connection.arrived_ns, connection.id);
        shared.metrics.connections.add(1);
        shared.metrics.connections_accepted.add(1);
        let sender = tokio::spawn(output::sender::run(shared.clone(), connection.clone()));
        let reason = ingest::run(&shared, &connection).await;
        connection.close();
        // The sender ends as soon as it sees the closed latch.
        let sender_reason = sender.await.unwrap_or(CloseReason::Ours);
        let reason = if reason == CloseReason::Ours { sender_reason } else { reason };
        let reason = connection.fault.get().cloned().unwrap_or(reason);
        match &reason {
            CloseReason::BadFrame(_) => {
                shared.metrics.closed_bad_frame.add(1);
                let log = &shared.frame_logs[usize::from(connection.has_spoken())];
                let others = log.lock().admit(shared.clock.monotonic_ns());
                if let Some(others) = others {
                    tracing::warn!(%peer, %reason, others, "connection closed");
                }
            }
            CloseReason::Stalled { bytes_held, took_nothing_for } => {
                shared.metrics.closed_stalled.add(1);
                let took_nothing_for_ms = took_nothing_for.as_millis() as u64;
                tracing::warn!(%peer, bytes_held, took_nothing_for_ms, "connection closed: its peer makes no progress");
                // Bytes that it did not take must not stay with the kernel instead.
                if let Err(error) = connection.transport.reset_on_close() {
                    tracing::debug!(%peer, %error, "set SO_LINGER");
                }
            }
            CloseReason::CopyGone { .. } => {
                shared.metrics.closed_copy_gone.add(1);
                tracing::warn!(%peer, %reason, "connection closed");
            }
            CloseReason::Silent | CloseReason::HandshakeLate => {
                shared.metrics.closed_silent.add(1);
                tracing::debug!(%peer, %reason, "connection closed");
            }
            CloseReason::Tls(_) | CloseReason::NotEncrypted => {
                shared.metrics.tls_refused.add(1);
                if let Some(others) =
                    shared.tls.as_ref().and_then(|tls| tls.may_log(shared.clock.monotonic_ns()))
                {
                    tracing::warn!(%peer, %reason, others, "connection closed");
                }
            }
            _ => tracing::debug!(%peer, %reason, "connection closed"),
        }
        connection.transport.end();
        connection.forget_all(&shared);
        connection.not_silent(&shared);
        shared.connections.remove(connection.id);
        shared.metrics.tls_connections.add(-i64::from(connection.transport.is_tls()));
        shared.metrics.connections.add(-1);
    }

    /// Its number, which no other connection ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where it comes from; for the log.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The identity of its peer, once that is known.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.get()
    }

    /// The peer has said who it is.
    fn identify(&self, identity: Identity) {
        assert!(self.identity.set(identity).is_ok(), "a connection has one identity");
    }

    /// The rights of its peer.
    fn rights(&self, shared: &Shared) -> Rights {
        match (&shared.auth, self.identity.get()) {
            (None, _) => Rights::ALL,
            (Some(_), Some(identity)) => identity.rights(),
            (Some(_), None) => Rights::NONE,
        }
    }

    /// Its loads under way in a place and a class.
    fn loads_in_flight(&self, place: Place, class: ReadClass) -> &AtomicUsize {
        &self.loads_in_flight[place.index()][class]
    }

    /// True while it is not read because of the reads, or the answers, that it has in hand.
    fn is_unread(&self) -> bool {
        self.waits_for_credit.load(Ordering::Acquire) || self.reads.lock().is_awaited()
    }

    /// True when it has so many reads in hand that it decodes more by turns ([`slice_turns`]).
    fn is_bulk(&self) -> bool {
        self.reads.lock().in_hand() >= slice_turns::DECODE_READS
    }

    /// Ends both tasks and drops what is queued.
    pub fn close(&self) {
        if self.closed.set() {
            self.outbox.close();
            self.wake_sender.notify_one();
        }
    }

    /// As [`Connection::close`], for the first reason given.
    fn close_because(&self, reason: CloseReason) {
        let _ = self.fault.set(reason);
        self.close();
    }

    /// Handles what has reached this machine and reads nothing after that; answers still leave.
    pub fn stop_reading(&self) {
        self.draining.set();
    }

    /// True when every request that had arrived by the call of [`Connection::stop_reading`] is handled, and the peer is
    /// owed no answer. Parked long polls are not counted: they wait for something that may never come.
    pub fn is_drained(&self) -> bool {
        if self.closed.is_set() {
            return true;
        }
        self.is_read_out.load(Ordering::Acquire) && self.is_idle()
    }

    fn is_idle(&self) -> bool {
        self.outbox.owes_nothing() && self.reads.lock().len() == 0 && !self.transport.has_pending()
    }

    /// When its peer sent its last request, if that is a client that is owed no answer and waits for none.
    pub fn idle_client_since_ns(&self) -> Option<u64> {
        let is_idle =
            self.has_spoken() && !self.closed.is_set() && self.is_idle() && self.polls.lock().len() == 0;
        is_idle.then(|| self.activity.at_rest_since_ns()).flatten()
    }

    /// Gives back what outlives the tasks: descriptors and parked polls (invariant 4).
    fn forget_all(&self, shared: &Shared) {
        let reads = self.reads.lock().clear();
        drop(reads);
        loop {
            let Some((request, id)) = self.polls.lock().take_any() else { break };
            self.leave_poll(shared);
            if let Some(id) = id {
                shared.engine.cancel_poll(request.ledger, id);
            }
        }
    }

    /// The peer sent a whole request, or said who it is where it has to: it is a client, and no candidate for making room any more.
    fn speak(&self, shared: &Shared) {
        if !self.has_spoken.swap(true, Ordering::AcqRel) {
            self.not_silent(shared);
        }
    }

    fn has_spoken(&self) -> bool {
        self.has_spoken.load(Ordering::Acquire)
    }

    fn not_silent(&self, shared: &Shared) {
        shared.connections.door().remove_silent(self.arrived_ns, self.id);
    }

    fn next_seq(&self) -> u64 {
        self.next_seq.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes what is queued as far as the socket takes it; the sender gets the rest. Called by any thread, so over TLS the
    /// sender gets everything (transport invariant 3).
    fn flush(&self) {
        if self.transport.is_tls() {
            if self.outbox.has_unsent() {
                self.wake_sender.notify_one();
            }
            return;
        }
        match self.flush_once(false) {
            Flush::Done | Flush::Held => {}
            Flush::Left => self.wake_sender.notify_one(),
            Flush::Broken => self.close(),
        }
    }

    /// As [`Outbox::flush`], and tells whoever watches its progress.
    fn flush_once(&self, is_sender: bool) -> Flush {
        let mut finished = Vec::new();
        let flush = self.outbox.flush(self.transport.as_ref(), is_sender, &mut finished);
        if !finished.is_empty() {
            self.finish_reads(&finished);
        }
        self.activity.on_flush(&flush, &self.outbox);
        match flush {
            // Encrypted bytes have left the outbox and may still wait for the kernel.
            Flush::Done | Flush::Held => match self.transport.push_pending() {
                Ok(true) => flush,
                Ok(false) => Flush::Left,
                Err(_) => Flush::Broken,
            },
            Flush::Left | Flush::Broken => flush,
        }
    }

    /// Its memory and activity at this moment.
    pub fn flow(&self) -> ConnectionFlow {
        let (outbox, activity) = (self.outbox.view(), self.activity.read());
        let ms = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let progress = activity.unsent.filter(|_| outbox.unsent > 0);
        let mut flow = ConnectionFlow {
            peer: self.peer.to_string(),
            protocol: activity.protocol.to_owned(),
            class: activity.class,
            open_ms: ms(activity.open),
            held_bytes: 0,
            inbound_bytes: activity.inbound,
            inbound_large_bytes: activity.inbound_large,
            outbox_bytes: outbox.leased,
            outbound_bytes: outbox.plain,
            outbound_priority_bytes: outbox.high,
            window_bytes: outbox.window_max,
            unsent_bytes: outbox.unsent,
            reads_queued: self.reads.lock().len() as u64,
            loads: outbox.loads as u64,
            long_polls: self.polls.lock().len() as u64,
            adds_owed: activity.adds_owed,
            answer_bytes_owed: outbox.promised,
            progress_ms: progress.map(ms),
            is_window_full: outbox.is_window_full,
            not_read_because: activity.wait.map(|(why, _)| why),
            not_read_ms: activity.wait.map(|(_, age)| ms(age)),
            adds: activity.adds,
            reads: activity.reads,
            bytes_in: activity.bytes_in,
            bytes_out: outbox.sent,
        };
        flow.held_bytes = flow.sum_held();
        flow
    }

    /// Its reads in the queue, those being loaded, and whether what was loaded waits for its peer.
    pub(crate) fn reads_unanswered(&self) -> (u64, u64, bool) {
        let outbox = self.outbox.view();
        (self.reads.lock().len() as u64, outbox.loads as u64, outbox.is_window_full)
    }

    /// How old what has waited since then is, but for the time that its peer took.
    fn age(&self, since_ns: u64, now_ns: u64) -> Duration {
        let age = Duration::from_nanos(now_ns.saturating_sub(since_ns));
        age.saturating_sub(self.peer_time.lock().since(since_ns, now_ns))
    }

    /// True when a read has waited longer than the maximum age, if there is one: its client has given up, or is about to.
    fn is_too_old(&self, shared: &Shared, request: &ReadRequest) -> bool {
        let age_max = shared.limits.request_age_max;
        if !request.has_maximum_age() || age_max == Duration::ZERO {
            return false;
        }
        let (since_ns, now_ns) = (request.waits_since_ns, shared.clock.monotonic_ns());
        let is_old = Duration::from_nanos(now_ns.saturating_sub(since_ns)) > age_max;
        is_old && self.age(since_ns, now_ns) > age_max
    }

    /// Takes a read into the queue, or refuses it and answers so. True when it will run.
    fn push_read(&self, shared: &Shared, request: ReadRequest) -> bool {
        let pushed = self.reads.lock().push(request);
        match pushed {
            Pushed::Queued => {
                self.wake_sender.notify_one();
                true
            }
            Pushed::RefusedInTurn => {
                shared.metrics.read_rejected.add(1);
                false
            }
            Pushed::Overflow => {
                shared.metrics.read_rejected.add(1);
                self.close();
                false
            }
            Pushed::Refused(request) => {
                shared.metrics.read_rejected.add(1);
                // Never queued, so it has no place to give up.
                self.outbox.answer(request.promised, |out| {
                    request.put_failure(ErrorCode::TooManyRequests, out);
                });
                // A long poll that ended comes from elsewhere than the reader, who would send it.
                self.wake_sender.notify_one();
                false
            }
        }
    }

    /// A long poll is to be parked: false when too many are.
    fn enter_poll(&self, shared: &Shared) -> bool {
        let limits = &shared.limits;
        let may = self.polls.lock().len() < limits.long_polls_per_connection_max
            && shared.long_polls.take(PollHolder::of(self.peer, self.id), limits.long_polls_max);
        if may {
            shared.metrics.long_polls_parked.add(1);
        }
        may
    }

    /// A long poll is not parked any more.
    fn leave_poll(&self, shared: &Shared) {
        shared.metrics.long_polls_parked.add(-1);
        shared.long_polls.give_back(PollHolder::of(self.peer, self.id));
    }

    /// A long poll ended: its answer is a read like others.
    fn end_poll(&self, shared: &Shared, mut request: ReadRequest, is_woken: bool) {
        self.leave_poll(shared);
        request.waits_since_ns = shared.clock.monotonic_ns();
        if !self.outbox.promise_again(request.promised) {
            tracing::debug!(peer = %self.peer, "closed: no memory is left for the answers to its long polls");
            return self.close();
        }
        if let ReadKind::Poll(poll) = &mut request.kind {
            poll.woken_at_ms = is_woken.then(|| shared.clock.wall_ms());
        }
        self.push_read(shared, request);
    }

    /// Brings a parked read back to its class.
    fn unpark(&self, seq: u64, outcome: Result<(), Refusal>) {
        if self.reads.lock().unpark(seq, outcome) {
            self.wake_sender.notify_one();
        }
    }

    /// The wait of a parked read for object storage is over. Its age counts from here: the wait was not for this bookie.
    fn arrive(&self, shared: &Shared, seq: u64, arrival: Arrival, epoch: u32) {
        let Some(mut request) = self.reads.lock().unpark_from_tier(seq) else { return };
        let tier = request.tier.get_or_insert_default();
        tier.waiting = None;
        match arrival.outcome {
            Ok(fetched) => tier.arrived = Some((fetched, epoch)),
            Err(failure) => tier.failed = Some((failure, arrival.object)),
        }
        request.waits_since_ns = shared.clock.monotonic_ns();
        self.reads.lock().arrive(request);
        self.wake_sender.notify_one();
    }

    /// A read is answered without entry bytes: lets the next one of its key run, and the sender look for more.
    fn finish_read(&self, request: &ReadRequest) {
        self.finish_reads(std::slice::from_ref(request));
    }

    /// Reads are answered for good ([`ReadQueue`], invariant 1).
    fn finish_reads(&self, requests: &[ReadRequest]) {
        if self.closed.is_set() {
            return;
        }
        let mut reads = self.reads.lock();
        for request in requests {
            reads.finish(request);
        }
        let has_next = reads.has_next();
        drop(reads);
        if has_next {
            self.wake_sender.notify_one();
        }
    }
}
