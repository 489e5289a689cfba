//! The task of a lane: connects when there is something to send, carries requests and answers, and says what became of
//! every request when a connection ends.
//!
//! ```text
//!            request                   connected
//!  waiting ──────────► connecting ───────────────► conversing ──► waiting      (a connection that brought answers)
//!     ▲                    │ failed                    │ lost before it brought anything
//!     └──── refusing ◄─────┴───────────────────────────┘
//!           (requests fail at once until the pause is over)
//! ```
//!
//! # Invariants
//! 1. When a connection ends, a request is `Unreachable` only if not a byte of it was handed to the kernel.
//! 2. Sinks are called with no lock of the lane held, and only from here.
//! 3. A request is answered by its deadline: connecting ends before a request queued at its start is overdue, and a sweep
//!    every [`Timing::sweep_interval`] finds overdue requests, with deadlines that much earlier.
//! 4. A task that is dropped at any `.await` answers everything with `Closed` (`Drop`).
//!
//! # Limits     pause between attempts: [`PAUSE_MIN`] doubled up to `Timing::pause_max`

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bindery_types::host_and_port;
use bindery_wire::FrameLimit;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};

use super::answers::Answers;
use super::delivery::Deliveries;
use super::foreign;
use super::handshake::{self, Progress, Speaks};
use super::hooks::{BookieAddress, Hooks};
use super::incoming::Incoming;
use super::lane::Lane;
use super::outgoing::{Batch, Frame};
use super::pending::{Sweep, Verdict};
use super::resolve::Resolver;
use crate::stream::{ByteStream, readable, writable};
use crate::transport::BookieError;

/// The first pause after a failed attempt.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Reads and writes after which others on this thread get their turn.
const ROUNDS_MAX: u32 = 16;

/// The times a lane keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// What callers were promised.
    pub(super) request_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) sweep_interval: Duration,
    pub(super) pause_max: Duration,
}

/// Why a conversation ended.
enum End {
    Closing,
    Lost(String),
    /// The bookie refused the client's certificate, or the other side is no bookie. No request that was sent can have taken effect.
    Refused(String),
    Unexpected(String),
}

/// After a failure: what to answer, and until when.
#[derive(Default)]
struct Backoff {
    failures: u32,
    refusing: Option<(Instant, BookieError)>,
}

impl Backoff {
    fn on_failure(&mut self, error: BookieError, pause_max: Duration) {
        let pause = PAUSE_MIN.saturating_mul(1 << self.failures.min(16)).min(pause_max);
        self.failures += 1;
        self.refusing = Some((Instant::now() + pause, error));
    }

    fn refusal(&self) -> Option<BookieError> {
        let (until, error) = self.refusing.as_ref()?;
        (Instant::now() < *until).then(|| error.clone())
    }
}

struct Task {
    lane: Arc<Lane>,
    resolver: Arc<Resolver>,
    hooks: Hooks,
    speaks: Speaks,
    limit: FrameLimit,
    timing: Timing,
    out: Deliveries,
    backoff: Backoff,
}

impl Drop for Task {
    fn drop(&mut self) {
        // After a panic the sinks may be what panicked.
        if !std::thread::panicking() {
            self.lane.set_gone(&mut self.out);
            self.out.deliver();
        }
    }
}

/// The lane's task, which runs until it is aborted. Also one that is dropped before its first step answers what was
/// queued meanwhile (invariant 4).
pub(super) fn run(
    lane: Arc<Lane>,
    resolver: Arc<Resolver>,
    hooks: Hooks,
    speaks: Speaks,
    limit: FrameLimit,
    timing: Timing,
) -> impl Future<Output = ()> + Send {
    let out = Deliveries::new(lane.bookie.clone());
    let mut task = Task { lane, resolver, hooks, speaks, limit, timing, out, backoff: Backoff::default() };
    async move { task.run().await }
}

impl Task {
    async fn run(&mut self) {
        while self.wait_for_requests().await {
            if let Some(error) = self.backoff.refusal() {
                self.fail_all(|_| error.clone());
                continue;
            }
            match self.connect().await {
                None => {}
                Some(Ok(stream)) => self.carry(stream).await,
                Some(Err(error)) => {
                    tracing::debug!(bookie_id = %self.lane.bookie, %error, "no connection");
                    self.resolver.forget();
                    self.backoff.on_failure(error.clone(), self.timing.pause_max);
                    self.fail_all(|_| error.clone());
                }
            }
        }
        loop {
            self.fail_all(|_| BookieError::Closed);
            self.lane.set_closed();
            self.lane.wake.notified().await;
        }
    }

    /// False when the lane is closing.
    async fn wait_for_requests(&mut self) -> bool {
        loop {
            {
                let mut state = self.lane.state.lock();
                state.give_out_refused(&mut self.out);
                if state.is_closing {
                    return false;
                }
                if !state.pending.is_empty() {
                    state.is_waiting = false;
                    return true;
                }
                state.is_waiting = self.out.is_empty();
            }
            if self.out.is_empty() {
                self.lane.wake.notified().await;
            } else {
                self.out.deliver();
            }
        }
    }

    fn fail_all(&mut self, why: impl Fn(u64) -> BookieError) {
        self.lane.drain(&why, &mut self.out);
        self.out.deliver();
    }

    fn interval(&self) -> Interval {
        let mut interval = interval(self.timing.sweep_interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    }

    /// `None` when the lane is closing.
    async fn connect(&self) -> Option<Result<ByteStream, BookieError>> {
        let progress = Progress::default();
        let attempt = async {
            let address = self.resolver.resolve().await?;
            let bookie = self.lane.bookie.clone();
            let to = BookieAddress { bookie, host: address.host, port: address.port };
            let connected = handshake::connect(&self.hooks, &to, self.speaks, &progress).await;
            connected.map_err(|error| {
                BookieError::Unreachable(format!("{}: {error}", host_and_port(&to.host, to.port)))
            })
        };
        let limit = self.timing.connect_timeout;
        let attempt = async {
            let late = |_| {
                let awaited = progress.awaited();
                Err(BookieError::Unreachable(format!("no connection within {limit:?}{awaited}")))
            };
            timeout(limit, attempt).await.unwrap_or_else(late)
        };
        tokio::pin!(attempt);
        let mut tick = self.interval();
        loop {
            tokio::select! {
                result = &mut attempt => return Some(result),
                () = self.lane.wake.notified() => {}
                _ = tick.tick() => {}
            }
            let mut state = self.lane.state.lock();
            state.now = Instant::now();
            if state.is_closing {
                return None;
            }
        }
    }

    /// Converses until the connection ends, and answers what is left.
    async fn carry(&mut self, stream: ByteStream) {
        self.out.begin_connection();
        let begin = self.lane.state.lock().outgoing.begin();
        let mut conversation = Conversation {
            stream,
            batch: Batch::new(begin),
            taken: Vec::new(),
            incoming: Incoming::new(self.limit),
            answers: Answers::default(),
            last_received: None,
            has_received: false,
            foreign: None,
            next_sweep: Instant::now() + self.timing.sweep_interval,
        };
        let end = self.converse(&mut conversation).await;
        let written = conversation.batch.written();
        let has_received = conversation.has_received;
        let end = match (end, conversation.foreign) {
            (End::Lost(_) | End::Unexpected(_), Some(speaks)) if !has_received => End::Refused(speaks.into()),
            (end, _) => end,
        };
        drop(conversation);
        let (reason, after_write) = match end {
            End::Closing => return self.fail_all(|_| BookieError::Closed),
            End::Lost(reason) => {
                let why = match &self.hooks.tls {
                    _ if has_received => BookieError::Lost,
                    Some(tls) => BookieError::LostUnanswered(tls.silent_refusal()),
                    None => BookieError::LostUnanswered(foreign::SILENCE.to_owned()),
                };
                (reason, why)
            }
            End::Refused(reason) => (reason.clone(), BookieError::Unreachable(reason)),
            End::Unexpected(mut reason) => {
                if !has_received {
                    reason.push_str(foreign::STRANGER);
                }
                (reason.clone(), BookieError::Unexpected(reason))
            }
        };
        tracing::debug!(bookie_id = %self.lane.bookie, reason, "connection ended");
        let silence = match &after_write {
            BookieError::LostUnanswered(silence) => format!("; {silence}"),
            _ => String::new(),
        };
        let before_write =
            BookieError::Unreachable(format!("the connection ended before this was sent: {reason}{silence}"));
        self.resolver.forget();
        if has_received {
            self.backoff = Backoff::default();
        } else {
            // Somebody else's address, or a bookie that cannot serve: not again at once.
            let error = match &after_write {
                BookieError::Unreachable(_) => after_write.clone(),
                BookieError::LostUnanswered(_) => BookieError::Unreachable(after_write.to_string()),
                _ => BookieError::Unreachable(format!("the last connection brought nothing: {reason}")),
            };
            self.backoff.on_failure(error, self.timing.pause_max);
        }
        // Invariant 1.
        self.fail_all(|position| match position < written {
            true => after_write.clone(),
            false => before_write.clone(),
        });
    }

    async fn converse(&mut self, conversation: &mut Conversation) -> End {
        let mut tick = self.interval();
        let mut rounds = 0;
        loop {
            match poll_fn(|context| Poll::Ready(self.round(conversation, context))).await {
                Err(end) => return end,
                Ok(true) => {
                    rounds += 1;
                    if rounds == ROUNDS_MAX {
                        rounds = 0;
                        tokio::task::yield_now().await;
                    }
                    continue;
                }
                Ok(false) => rounds = 0,
            }
            let (is_waiting, has_pending) = {
                let mut state = self.lane.state.lock();
                if state.is_closing {
                    return End::Closing;
                }
                state.give_out_refused(&mut self.out);
                if conversation.batch.is_empty() && self.out.is_empty() && state.outgoing.is_empty() {
                    state.is_waiting = true;
                }
                // Paced, it waits for answers, and is not to be woken for each request that comes.
                let is_waiting = state.is_waiting || state.is_paced() || !conversation.batch.is_empty();
                (is_waiting, !state.pending.is_empty())
            };
            self.out.deliver();
            if !is_waiting {
                continue;
            }
            // Cancel safe, all of it: readiness and notifications are kept, and a tick only says that it is time to look.
            let is_writing = !conversation.batch.is_empty();
            let tcp = conversation.stream.tcp();
            tokio::select! {
                biased;
                ready = readable(tcp) => {
                    if let Err(error) = ready {
                        return End::Lost(error.to_string());
                    }
                }
                ready = writable(tcp), if is_writing => {
                    if let Err(error) = ready {
                        return End::Lost(error.to_string());
                    }
                }
                () = self.lane.wake.notified() => {}
                _ = tick.tick(), if has_pending => {}
            }
        }
    }

    /// One write, one read, one look at the clock. True when bytes moved.
    fn round(&mut self, conversation: &mut Conversation, context: &mut Context<'_>) -> Result<bool, End> {
        let now = Instant::now();
        let Conversation { stream, batch, taken, incoming, answers, .. } = conversation;
        {
            let mut state = self.lane.state.lock();
            state.now = now;
            state.is_waiting = false;
            // Lane invariant 3.
            if batch.is_empty() && !state.is_paced() {
                batch.take(&mut state.outgoing, taken);
            }
        }
        batch.fill(taken);
        let mut has_moved = false;
        let mut broken = None;
        if !batch.is_empty() {
            match batch.write_some(|slices| stream.try_write_vectored(slices, context)) {
                Ok(_) => has_moved = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // Answers may have come before.
                Err(error) => broken = Some(End::Lost(error.to_string())),
            }
        }
        if let Err(error) = stream.try_flush(context) {
            broken = broken.or(Some(End::Lost(error.to_string())));
        }
        match incoming.read_some(stream, context) {
            Ok(0) => return Err(End::Lost("closed by the bookie".into())),
            Ok(_) => {
                has_moved = true;
                if conversation.last_received.is_none() {
                    conversation.foreign = foreign::protocol(incoming.unread());
                }
                conversation.last_received = Some(now);
                let decoded = answers.decode_from(incoming);
                if !answers.is_empty() {
                    let matched = {
                        let mut state = self.lane.state.lock();
                        answers.match_with(&mut state.pending, &mut self.out)
                    };
                    self.out.deliver();
                    conversation.has_received |= matched.answers > 0;
                    if let Some(reason) = matched.end {
                        return Err(End::Unexpected(reason));
                    }
                    let unmatched = matched.unmatched;
                    if unmatched > 0 {
                        tracing::debug!(bookie_id = %self.lane.bookie, unmatched, "answers without a request");
                    }
                }
                if let Err(reason) = decoded {
                    return Err(End::Unexpected(reason));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if let Some(broken) = broken {
                    return Err(broken);
                }
            }
            Err(error) => {
                let tls = self.hooks.tls.as_ref().filter(|_| !conversation.has_received);
                return Err(match tls.and_then(|tls| tls.late_refusal(&error)) {
                    Some(refusal) => End::Refused(format!("cannot begin TLS: {refusal}")),
                    None => End::Lost(error.to_string()),
                });
            }
        }
        if now >= conversation.next_sweep {
            conversation.next_sweep = now + self.timing.sweep_interval;
            self.sweep(conversation, now)?;
        }
        Ok(has_moved)
    }

    /// Answers what is overdue.
    fn sweep(&mut self, conversation: &Conversation, now: Instant) -> Result<(), End> {
        let sweep = Sweep {
            // Invariant 3: a request that would be overdue before the next sweep is overdue now.
            now: now + self.timing.sweep_interval,
            timeout: self.timing.request_timeout,
            written: conversation.batch.written(),
            last_received: conversation.last_received,
        };
        let found = self.lane.state.lock().pending.sweep(&sweep, &mut self.out);
        self.out.deliver();
        match found.verdict() {
            None => Ok(()),
            Some(Verdict::TakesNothing) => Err(End::Lost("it takes no requests".into())),
            Some(Verdict::Silent) => Err(End::Lost("it does not answer".into())),
            Some(Verdict::OwesTooMuch) => Err(End::Lost("too many requests were never answered".into())),
        }
    }
}

/// One connection.
struct Conversation {
    stream: ByteStream,
    batch: Batch,
    /// Empty between calls; kept for its allocation.
    taken: Vec<Frame>,
    incoming: Incoming,
    answers: Answers,
    last_received: Option<Instant>,
    has_received: bool,
    /// What the other side speaks, when its first bytes are no bookie's.
    foreign: Option<&'static str>,
    next_sweep: Instant,
}
