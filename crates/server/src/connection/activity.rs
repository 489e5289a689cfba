//! The activity of a connection, for operators: counted once per socket read or write, never per entry.
//!
//! # Data flow
//! ```text
//! reader (a read at a time), completion (a group at a time), flushes that leave something ──► Activity ──► flow view
//! ```
//!
//! # Invariants
//! 1. Nothing here decides anything: all of it may be a moment old. But for `adds_owed`: when it is 0, every answer to an
//!    add is in the outbox.
//! 2. A flush that leaves nothing behind, and follows one that left nothing, costs one load and no clock.

use crate::connection::output::outbox::{Flush, Outbox};
use crate::metrics::Stages;
use crate::pressure::Pressure;
use crate::slow_log::{Slow, SlowKind};
use bindery_io::Clock;
use bindery_wire::Protocol;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use std::time::Duration;

/// A kind of request counts for the class of its connection for this long.
pub const CLASS_MEMORY: Duration = Duration::from_secs(60);

/// Why a connection is not read although it has something to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// For memory to read into.
    Inbound,
    /// For memory for a frame above a read buffer.
    LargeFrame,
    /// For room for its answers: the peer does not take them, or the pool for them is full.
    Outbox,
    /// For room in the write pool.
    WriteRoom,
    /// For reads in hand to finish: they are as many as the connection may have, or as the pool for them has room for.
    Reads,
    /// For the limit of the tenant whose adds come next.
    Tenant,
}

impl Wait {
    const ALL: [Wait; 6] =
        [Wait::Inbound, Wait::LargeFrame, Wait::Outbox, Wait::WriteRoom, Wait::Reads, Wait::Tenant];

    fn code(self) -> u64 {
        self as u64 + 1
    }

    fn of_code(code: u64) -> Option<Wait> {
        Wait::ALL.into_iter().find(|wait| wait.code() == code)
    }

    /// True for a wait that is for memory, which no peer ends by reading its answers.
    fn is_for_memory(self) -> bool {
        match self {
            Wait::Inbound | Wait::LargeFrame | Wait::WriteRoom => true,
            Wait::Outbox | Wait::Reads | Wait::Tenant => false,
        }
    }
}

/// The use of a connection within the last [`CLASS_MEMORY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Nothing.
    Idle,
    /// Adds.
    Writer,
    /// Reads.
    Reader,
    /// Both.
    Mixed,
    /// Fencing reads or recovery adds, whatever else.
    Recovery,
}

/// What one socket read brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes of whole frames.
    pub bytes: u64,
    /// Adds handed on.
    pub adds: u64,
    /// Reads of any kind.
    pub reads: u64,
    /// How many of all these fence, or are adds of a recovery.
    pub recovery: u64,
    /// Bit 0: something was v2; bit 1: v3.
    pub protocols: u64,
}

impl Received {
    /// A frame of this protocol was there.
    pub fn saw(&mut self, protocol: Protocol) {
        self.protocols |= match protocol {
            Protocol::V2 => 1,
            Protocol::V3 => 2,
        };
    }
}

/// Bytes that the peer has not taken.
#[derive(Debug, Default)]
struct Unsent {
    /// What the kernel had taken, ever, when it last took anything, and when that was.
    sent: u64,
    progress_ns: u64,
    /// What is watched: everything up to `end`, left behind at `since_ns`.
    end: u64,
    since_ns: u64,
    bytes: u64,
}

/// See the module.
pub struct Activity {
    clock: Arc<dyn Clock>,
    stages: Arc<Stages>,
    pressure: Arc<Pressure>,
    peer: SocketAddr,
    /// A peer that takes its answers later than this is logged; zero: none is.
    slow: Duration,
    opened_ns: u64,
    /// When a whole request came last; at first when it was opened.
    last_request_ns: AtomicU64,
    protocols: AtomicU64,
    bytes_in: AtomicU64,
    adds: AtomicU64,
    reads: AtomicU64,
    adds_owed: AtomicI64,
    last_add_ns: AtomicU64,
    last_read_ns: AtomicU64,
    last_recovery_ns: AtomicU64,
    inbound: AtomicU64,
    inbound_large: AtomicU64,
    ahead: AtomicU64,
    /// Time in steps of 256 ns, and the code of a [`Wait`]; 0 for none.
    wait: AtomicU64,
    has_unsent: AtomicBool,
    unsent: Mutex<Unsent>,
}

impl Activity {
    /// Of a connection that was opened now.
    pub fn new(
        clock: Arc<dyn Clock>,
        stages: Arc<Stages>,
        pressure: Arc<Pressure>,
        peer: SocketAddr,
        slow: Duration,
    ) -> Activity {
        Activity {
            opened_ns: clock.monotonic_ns(),
            last_request_ns: AtomicU64::new(clock.monotonic_ns()),
            clock,
            stages,
            pressure,
            peer,
            slow,
            protocols: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            adds: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            adds_owed: AtomicI64::new(0),
            last_add_ns: AtomicU64::new(0),
            last_read_ns: AtomicU64::new(0),
            last_recovery_ns: AtomicU64::new(0),
            inbound: AtomicU64::new(0),
            inbound_large: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            wait: AtomicU64::new(0),
            has_unsent: AtomicBool::new(false),
            unsent: Mutex::default(),
        }
    }

    /// What a socket read at `received_ns` brought.
    pub fn on_received(&self, received_ns: u64, received: Received) {
        let Received { bytes, adds, reads, recovery, protocols } = received;
        if bytes > 0 {
            self.last_request_ns.store(received_ns, Relaxed);
        }
        self.bytes_in.fetch_add(bytes, Relaxed);
        self.protocols.fetch_or(protocols, Relaxed);
        let counted = [
            (adds, Some(&self.adds), &self.last_add_ns),
            (reads, Some(&self.reads), &self.last_read_ns),
            (recovery, None, &self.last_recovery_ns),
        ];
        for (count, total, last_ns) in counted.into_iter().filter(|(count, ..)| *count > 0) {
            if let Some(total) = total {
                total.fetch_add(count, Relaxed);
            }
            // 0 says never.
            last_ns.store(received_ns.max(1), Relaxed);
        }
    }

    /// True when adds came within the last [`CLASS_MEMORY`]: more may come, and have to wait for room.
    pub fn adds_of_late(&self) -> bool {
        let last_ns = self.last_add_ns.load(Relaxed);
        let age = |now_ns: u64| Duration::from_nanos(now_ns.saturating_sub(last_ns));
        last_ns > 0 && age(self.clock.monotonic_ns()) < CLASS_MEMORY
    }

    /// Adds were handed to the engine (positive), or answered (negative).
    pub fn on_adds_owed(&self, change: i64) {
        self.adds_owed.fetch_add(change, AcqRel);
    }

    /// Adds without an answer in the outbox.
    pub fn adds_owed(&self) -> u64 {
        u64::try_from(self.adds_owed.load(Acquire)).unwrap_or(0)
    }

    /// When a whole request came last; `None` while part of one is here, or adds of it are owed an answer.
    pub fn at_rest_since_ns(&self) -> Option<u64> {
        let holds = [&self.inbound, &self.inbound_large, &self.ahead];
        let is_at_rest = self.adds_owed() == 0 && holds.iter().all(|held| held.load(Relaxed) == 0);
        is_at_rest.then(|| self.last_request_ns.load(Relaxed))
    }

    /// Bytes held of the pools for reading: buffers, and large frames.
    pub fn holds_inbound(&self, bytes: u64) {
        self.inbound.store(bytes, Relaxed);
    }

    /// As [`Activity::holds_inbound`], for large frames.
    pub fn holds_inbound_large(&self, bytes: u64) {
        self.inbound_large.store(bytes, Relaxed);
    }

    /// As [`Activity::holds_inbound`], to look past adds that wait.
    pub fn holds_ahead(&self, bytes: u64) {
        self.ahead.store(bytes, Relaxed);
    }

    /// Nothing is read until what is given back is dropped.
    pub fn waits(&self, why: Wait) -> Waiting<'_> {
        let now_ns = self.clock.monotonic_ns();
        self.wait.store((now_ns & !0xff) | why.code(), Relaxed);
        if why.is_for_memory() {
            self.pressure.begin(now_ns);
        }
        Waiting(self, why.is_for_memory())
    }

    /// As [`Activity::waits`], of a peer that sent nothing yet: memory may be short for newcomers when it is not for
    /// others.
    pub fn waits_as_stranger(&self, why: Wait) -> Waiting<'_> {
        self.wait.store((self.clock.monotonic_ns() & !0xff) | why.code(), Relaxed);
        Waiting(self, false)
    }

    /// To be told of every flush.
    pub fn on_flush(&self, flush: &Flush, outbox: &Outbox) {
        let Some((waited, bytes)) = self.waited(flush, outbox) else { return };
        let now_ns = self.clock.monotonic_ns();
        self.stages.send.record(0, now_ns, waited.as_nanos() as u64, true);
        if !self.slow.is_zero() && waited >= self.slow {
            let slow =
                Slow { peer: Some(self.peer), bytes, total: waited, send: Some(waited), ..Slow::default() };
            self.stages.slow.report(now_ns, SlowKind::Peer, &slow);
        }
    }

    /// How long what was left behind once, and is taken now, waited for the peer, and how much it was.
    fn waited(&self, flush: &Flush, outbox: &Outbox) -> Option<(Duration, u64)> {
        if !self.has_unsent.load(Relaxed) && *flush == Flush::Done {
            return None;
        }
        // Done may also mean that another thread writes: only the numbers say whether anything is left.
        let (sent, left) = outbox.progress();
        let now_ns = self.clock.monotonic_ns();
        let mut unsent = self.unsent.lock();
        let was_left = self.has_unsent.swap(left > 0, Relaxed);
        if !was_left {
            *unsent = Unsent { sent, progress_ns: now_ns, end: sent + left, since_ns: now_ns, bytes: left };
            return None;
        }
        if sent > unsent.sent {
            (unsent.sent, unsent.progress_ns) = (sent, now_ns);
        }
        if sent < unsent.end {
            return None;
        }
        let waited = Duration::from_nanos(now_ns.saturating_sub(unsent.since_ns));
        let bytes = unsent.bytes;
        (unsent.end, unsent.since_ns, unsent.bytes) = (sent + left, now_ns, left);
        Some((waited, bytes))
    }

    /// Everything, at one moment.
    pub fn read(&self) -> ActivityView {
        let now_ns = self.clock.monotonic_ns();
        let ago = |then_ns: u64| Duration::from_nanos(now_ns.saturating_sub(then_ns));
        let wait = self.wait.load(Relaxed);
        let is_recent = |last: &AtomicU64| {
            let last_ns = last.load(Relaxed);
            last_ns > 0 && ago(last_ns) < CLASS_MEMORY
        };
        let class = match (is_recent(&self.last_add_ns), is_recent(&self.last_read_ns)) {
            _ if is_recent(&self.last_recovery_ns) => Class::Recovery,
            (false, false) => Class::Idle,
            (true, false) => Class::Writer,
            (false, true) => Class::Reader,
            (true, true) => Class::Mixed,
        };
        ActivityView {
            open: ago(self.opened_ns),
            protocol: match self.protocols.load(Relaxed) {
                0 => "-",
                1 => "v2",
                2 => "v3",
                _ => "v2+v3",
            },
            class,
            bytes_in: self.bytes_in.load(Relaxed),
            adds: self.adds.load(Relaxed),
            reads: self.reads.load(Relaxed),
            adds_owed: self.adds_owed(),
            inbound: self.inbound.load(Relaxed) + self.ahead.load(Relaxed),
            inbound_large: self.inbound_large.load(Relaxed),
            wait: Wait::of_code(wait & 0xff).map(|why| (why, ago(wait & !0xff))),
            unsent: self.has_unsent.load(Relaxed).then(|| ago(self.unsent.lock().progress_ns)),
        }
    }
}

/// The reader waits. Ends with it.
#[must_use = "the wait ends when it is dropped"]
pub struct Waiting<'a>(&'a Activity, bool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.wait.store(0, Relaxed);
        if self.1 {
            self.0.pressure.end(self.0.clock.monotonic_ns());
        }
    }
}

/// What [`Activity::read`] sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivityView {
    /// Since it was opened.
    pub open: Duration,
    /// What it speaks.
    pub protocol: &'static str,
    /// The use of the connection.
    pub class: Class,
    /// Bytes received.
    pub bytes_in: u64,
    /// Adds received.
    pub adds: u64,
    /// Reads received.
    pub reads: u64,
    /// Adds handed to the engine and not answered.
    pub adds_owed: u64,
    /// Bytes held to read into.
    pub inbound: u64,
    /// Bytes held for a large frame.
    pub inbound_large: u64,
    /// Why it is not read, and since when.
    pub wait: Option<(Wait, Duration)>,
    /// While bytes wait for the peer: how long ago it last took some, or they came.
    pub unsent: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::output::outbox::Sink;
    use bindery_flow::ByteBudget;
    use std::io::{self, IoSlice};
    use tokio::sync::Notify;

    #[derive(Default)]
    struct HandClock(AtomicU64);

    impl Clock for HandClock {
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Relaxed)
        }
        fn wall_ms(&self) -> i64 {
            0
        }
    }

    /// Takes so many bytes, then none.
    struct Peer(AtomicU64);

    impl Sink for Peer {
        fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let most = self.0.load(Relaxed);
            let taken = slices.iter().map(|slice| slice.len() as u64).sum::<u64>().min(most);
            self.0.fetch_sub(taken, Relaxed);
            if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken as usize) }
        }
    }

    fn activity(clock: Arc<HandClock>) -> Activity {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        Activity::new(clock, Arc::default(), Arc::default(), peer, Duration::ZERO)
    }

    const SECOND: u64 = 1_000_000_000;

    fn put(outbox: &Outbox, bytes: usize) {
        outbox.try_credit(bytes, bytes).unwrap();
        outbox.answer(bytes, |out| out.extend_from_slice(&vec![0; bytes]));
    }

    #[test]
    fn the_progress_of_a_peer_is_seen_byte_by_byte_and_its_waits_when_they_end() {
        let clock = Arc::new(HandClock::default());
        let activity = activity(clock.clone());
        let outbox =
            Outbox::new(4096, 4096, 4096, ByteBudget::new("outbox", 1 << 20), Arc::new(Notify::new()));
        let peer = Peer(AtomicU64::new(0));
        let step = |seconds: u64, takes: u64| {
            clock.0.store(seconds * SECOND, Relaxed);
            peer.0.store(takes, Relaxed);
            let flush = outbox.flush(&peer, true, &mut Vec::new());
            (activity.waited(&flush, &outbox), activity.read().unsent.map(|age| age.as_secs()))
        };
        assert_eq!(step(1, 0), (None, None), "nothing to send");
        put(&outbox, 1000);
        assert_eq!(step(10, 0), (None, Some(0)));
        assert_eq!(step(15, 0), (None, Some(5)), "it took nothing for five seconds");
        assert_eq!(step(16, 10), (None, Some(0)), "ten bytes are progress");
        assert_eq!(step(18, 0), (None, Some(2)));
        put(&outbox, 1000);
        let waited = |seconds| Some((Duration::from_secs(seconds), 1000));
        assert_eq!(step(20, 990), (waited(10), Some(0)), "the first thousand, queued at 10");
        assert_eq!(step(23, 2000), (waited(3), None));
        assert_eq!(step(30, 0), (None, None));
    }

    #[test]
    fn a_connection_is_what_it_was_used_for_of_late() {
        let clock = Arc::new(HandClock::default());
        let activity = activity(clock.clone());
        assert_eq!(activity.read().class, Class::Idle);
        let steps = [
            (0, Received { adds: 3, ..Received::default() }, Class::Writer),
            (30, Received { reads: 1, ..Received::default() }, Class::Mixed),
            (65, Received::default(), Class::Reader),
            (66, Received { reads: 1, recovery: 1, ..Received::default() }, Class::Recovery),
            (200, Received::default(), Class::Idle),
        ];
        for (seconds, received, class) in steps {
            clock.0.store(seconds * SECOND, Relaxed);
            activity.on_received(clock.monotonic_ns(), received);
            assert_eq!(activity.read().class, class, "after {seconds} s");
        }
        assert_eq!((activity.read().adds, activity.read().reads), (3, 2));
    }

    #[test]
    fn a_wait_of_the_reader_is_shown_while_it_lasts() {
        let clock = Arc::new(HandClock::default());
        let activity = activity(clock.clone());
        for why in Wait::ALL {
            clock.0.store(5 * SECOND, Relaxed);
            let waiting = activity.waits(why);
            clock.0.store(7 * SECOND, Relaxed);
            let (shown, age) = activity.read().wait.unwrap();
            assert_eq!((shown, age.as_millis() / 100), (why, 20));
            drop(waiting);
            assert_eq!(activity.read().wait, None);
        }
    }
}
