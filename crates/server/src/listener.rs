//! Accepts connections and owns their tasks.
//!
//! # Invariants
//! 1. Before the bookie is ready a connection is closed at once (protocol reference, section 1.1): a client tries
//!    another bookie instead of waiting.
//! 2. At most `connections_max` are served. With all places taken a newcomer gets that of the connection that has been
//!    silent for longest ([`crate::connection`]'s door), or else that of the client that has been idle for longest and at least
//!    `idle_client_min`: one that is owed nothing and has no long poll parked. Without such it waits until one closes or becomes idle;
//!    those behind it are not accepted, and the kernel's backlog bounds them. Whoever watches is told of it.
//! 3. An address has no more places than the limits allow; one more is closed at once.
//! 4. At a stop no connection is accepted any more; requests that had reached this machine by then are handled and
//!    answered, as far as `drain_max` allows.
//! 5. [`Listener::run`] returns when every connection's tasks have ended.
//! 6. While clients cannot connect for want of file descriptors, whoever registers this bookie knows of it: from the first
//!    attempt that failed until none has for [`SHORTAGE_OVER`].

use crate::connection::Connection;
use crate::latch::Latch;
use crate::log_limit::LogLimit;
use crate::shared::Shared;
use crate::sockets::peer_of;
use crate::yielding::after_all_others;
use bindery_io::has_no_descriptor;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Pause after accepting failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// After so long without a failure descriptors are not short any more.
const SHORTAGE_OVER: Duration = Duration::from_secs(10);
/// Newcomers accepted before whatever else is ready runs: a fraction of a millisecond.
const ACCEPTS_IN_A_ROW: u32 = 8;
/// How often answers under way are checked while draining.
const DRAIN_STEP: Duration = Duration::from_millis(10);
/// One log line in this time about newcomers that were turned away, or took the place of another.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two searches for idle clients while a newcomer waits.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// Idle clients that one look finds. Each look asks all connections.
const IDLE_FOUND_MAX: usize = 64;

/// A bound socket.
pub struct Listener {
    socket: TcpListener,
}

impl Listener {
    /// Over a bound socket.
    pub fn new(socket: TcpListener) -> Listener {
        Listener { socket }
    }

    /// The address bound, with the port the system chose for port 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Closes whoever connects, for as long as the future is polled. Cancel safe.
    pub async fn refuse(&self) {
        loop {
            match self.socket.accept().await {
                Ok((socket, peer)) => {
                    tracing::debug!(%peer, "refused a connection: starting");
                    drop(socket);
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    /// Serves until `stop`; then stops accepting, finishes what was received for at most `drain_max`, closes. Tells
    /// `lacks_descriptors` why clients cannot connect, and `None` when they can again.
    pub async fn run(self, shared: Arc<Shared>, stop: &Latch, lacks_descriptors: &LacksDescriptors) {
        let (pressure, clock) = (shared.pressure.clone(), shared.clock.clone());
        let mut entrance = Entrance {
            places: Arc::new(Semaphore::new(shared.limits.connections_max)),
            shared,
            connections: JoinSet::new(),
            refusals: LogLimit::new(LOG_INTERVAL),
            evictions: LogLimit::new(LOG_INTERVAL),
            idle_evictions: LogLimit::new(LOG_INTERVAL),
            crowds: LogLimit::new(LOG_INTERVAL),
            idle: VecDeque::new(),
            shortage: Shortage { tell: lacks_descriptors, until: None },
        };
        tokio::select! {
            biased;
            () = stop.wait() => {}
            () = entrance.accept_all(&self.socket) => {}
            never = pressure.observe(clock.as_ref()) => match never {},
        }
        let Entrance { shared, mut connections, .. } = entrance;
        drop(self.socket);
        self::drain(&shared).await;
        // One that was accepted last may register after others were closed.
        while !connections.is_empty() {
            for connection in shared.connections.all() {
                connection.close();
            }
            let _ = tokio::time::timeout(DRAIN_STEP, connections.join_next()).await;
        }
    }
}

/// See [`Listener::run`].
pub type LacksDescriptors = dyn Fn(Option<String>) + Send + Sync;

/// Where connections come in.
struct Entrance<'a> {
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
    connections: JoinSet<()>,
    refusals: LogLimit,
    evictions: LogLimit,
    idle_evictions: LogLimit,
    crowds: LogLimit,
    /// Clients that were idle at the last look, the longest idle first.
    idle: VecDeque<u64>,
    shortage: Shortage<'a>,
}

impl Entrance<'_> {
    /// Accepts for ever. A dropped future drops at most a socket that nothing was read from.
    async fn accept_all(&mut self, socket: &TcpListener) {
        let mut in_a_row = 0;
        loop {
            // Ended tasks are taken out as they end.
            while self.connections.try_join_next().is_some() {}
            let place = self.places.clone().try_acquire_owned().ok();
            let accepted = tokio::select! {
                biased;
                () = self.shortage.ends() => continue,
                accepted = socket.accept() => accepted,
            };
            match accepted {
                Ok((socket, peer)) => self.admit(socket, peer_of(peer), place).await,
                Err(error) => {
                    if !self.shortage.is_cause_of(&error) {
                        tracing::warn!(%error, "cannot accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
            // A crowd comes between the requests of those that are here.
            in_a_row += 1;
            if in_a_row == ACCEPTS_IN_A_ROW {
                in_a_row = 0;
                after_all_others().await;
            }
        }
    }

    async fn admit(&mut self, socket: TcpStream, peer: SocketAddr, place: Option<OwnedSemaphorePermit>) {
        let shared = self.shared.clone();
        let Some(entry) = Entry::new(&shared, peer) else {
            shared.metrics.refused.add(1);
            if let Some(others) = self.refusals.admit(shared.clock.monotonic_ns()) {
                let max = shared.limits.connections_of(peer.ip());
                tracing::warn!(
                    %peer, max, others,
                    "refused a connection: its address has reached its limit (maxConnectionsPerAddress)"
                );
            }
            return;
        };
        let place = match place {
            Some(place) => place,
            None => self.make_room(peer).await,
        };
        if let Err(error) = shared.limits.socket.apply(&socket) {
            tracing::debug!(%peer, %error, "set options of a socket");
        }
        self.connections.spawn(async move {
            Connection::serve(entry.shared.clone(), socket, peer).await;
            drop((entry, place));
        });
    }

    /// A place for a newcomer while all are taken (invariant 2).
    async fn make_room(&mut self, newcomer: SocketAddr) -> OwnedSemaphorePermit {
        let since_ns = self.shared.clock.monotonic_ns();
        let crowd = Crowd(self.shared.clone());
        loop {
            if self.evict() || self.evict_idle() {
                return wait_for_place(&self.places, &mut self.shortage).await;
            }
            crowd.0.connections.door().set_crowded(Some(since_ns));
            if let Some(others) = self.crowds.admit(self.shared.clock.monotonic_ns()) {
                let max = self.shared.limits.connections_max;
                tracing::warn!(
                    peer = %newcomer, max, others,
                    "a new connection waits: all places are taken by clients that are in use (maxConnections)"
                );
            }
            tokio::select! {
                place = wait_for_place(&self.places, &mut self.shortage) => return place,
                // The connection that took the last place may be silent, and comes into the list only now.
                () = self.shared.connections.door().silent_came() => {}
                () = tokio::time::sleep(IDLE_LOOK) => {}
            }
        }
    }

    /// Closes the client that has been idle for longest; false when none is.
    fn evict_idle(&mut self) -> bool {
        let shared = self.shared.clone();
        let now_ns = shared.clock.monotonic_ns();
        let idle_min = u64::try_from(shared.limits.idle_client_min.as_nanos()).unwrap_or(u64::MAX);
        let is_idle = |since_ns: u64| now_ns.saturating_sub(since_ns) >= idle_min;
        if self.idle.is_empty() {
            let all = shared.connections.all();
            let since =
                |c: &Arc<Connection>| Some((c.idle_client_since_ns().filter(|ns| is_idle(*ns))?, c.id()));
            let mut idle: Vec<(u64, u64)> = all.iter().filter_map(since).collect();
            idle.sort_unstable();
            self.idle.extend(idle.into_iter().take(IDLE_FOUND_MAX).map(|(_, id)| id));
        }
        while let Some(id) = self.idle.pop_front() {
            // It may be gone, or in use again.
            let Some(connection) = shared.connection(id) else { continue };
            let Some(since_ns) = connection.idle_client_since_ns().filter(|ns| is_idle(*ns)) else {
                continue;
            };
            connection.close();
            shared.metrics.closed_idle.add(1);
            if let Some(others) = self.idle_evictions.admit(now_ns) {
                let (peer, max) = (connection.peer(), shared.limits.connections_max);
                let idle_ms = now_ns.saturating_sub(since_ns) / 1_000_000;
                tracing::warn!(
                    %peer, idle_ms, max, others,
                    "closed the connection of an idle client, to make room for a new one (maxConnections)"
                );
            }
            return true;
        }
        false
    }

    /// Closes the connection that has been silent for longest; false when none is.
    fn evict(&mut self) -> bool {
        let Some(oldest) = self.shared.connections.door().oldest_silent() else { return false };
        // One that ends right now gives its place back, too.
        let Some(connection) = self.shared.connection(oldest) else { return true };
        connection.close();
        self.shared.metrics.closed_silent.add(1);
        if let Some(others) = self.evictions.admit(self.shared.clock.monotonic_ns()) {
            let (peer, max) = (connection.peer(), self.shared.limits.connections_max);
            tracing::warn!(
                %peer, max, others,
                "closed a connection that never sent a request, to make room for a new one (maxConnections)"
            );
        }
        true
    }
}

/// Newcomers wait for a place until this is dropped.
struct Crowd(Arc<Shared>);

impl Drop for Crowd {
    fn drop(&mut self) {
        self.0.connections.door().set_crowded(None);
    }
}

/// Waits for a place, however long that takes, and meanwhile says when a shortage is over: a bookie that is full
/// would stay read-only for as long as nobody leaves it.
async fn wait_for_place(places: &Arc<Semaphore>, shortage: &mut Shortage<'_>) -> OwnedSemaphorePermit {
    let mut place = pin!(places.clone().acquire_owned());
    loop {
        tokio::select! {
            biased;
            () = shortage.ends() => {}
            place = place.as_mut() => return place.expect("the semaphore is never closed"),
        }
    }
}

/// Whether descriptors are short (invariant 6).
struct Shortage<'a> {
    tell: &'a LacksDescriptors,
    /// While they are.
    until: Option<Instant>,
}

impl Shortage<'_> {
    /// To be told of every connection that could not be accepted. True when that was for want of a descriptor.
    fn is_cause_of(&mut self, error: &io::Error) -> bool {
        let is_cause = has_no_descriptor(error);
        if is_cause && self.until.replace(Instant::now() + SHORTAGE_OVER).is_none() {
            let why = "clients cannot connect: too many open files (raise ulimit -n, or LimitNOFILE in the systemd unit)";
            (self.tell)(Some(why.to_owned()));
        }
        is_cause
    }

    /// Waits until a shortage is over, and says so; for ever without one. Cancel safe.
    async fn ends(&mut self) {
        let Some(until) = self.until else { return std::future::pending().await };
        tokio::time::sleep_until(until).await;
        self.until = None;
        (self.tell)(None);
    }
}

/// A place among the connections of an address, for a task to own.
struct Entry {
    shared: Arc<Shared>,
    peer: SocketAddr,
}

impl Entry {
    fn new(shared: &Arc<Shared>, peer: SocketAddr) -> Option<Entry> {
        let is_in = shared.connections.door().enter(peer.ip(), &shared.limits);
        is_in.then(|| Entry { shared: shared.clone(), peer })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.connections.door().leave(self.peer.ip());
    }
}

/// Waits until everything received is answered and no peer is owed an answer, at most `drain_max`.
async fn drain(shared: &Shared) {
    let deadline = tokio::time::Instant::now() + shared.limits.drain_max;
    loop {
        let connections = shared.connections.all();
        for connection in &connections {
            connection.stop_reading();
        }
        let busy = connections.iter().filter(|connection| !connection.is_drained()).count();
        if busy == 0 {
            return;
        }
        if tokio::time::Instant::now() >= deadline {
            let drain_max = shared.limits.drain_max;
            tracing::warn!(
                connections = busy,
                ?drain_max,
                "drain timed out, closing connections that still have responses pending (shutdownDrainTimeoutSec)"
            );
            return;
        }
        tokio::time::sleep(DRAIN_STEP).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use rustix::io::Errno;

    /// Invariant 6.
    #[tokio::test(start_paused = true)]
    async fn a_shortage_lasts_until_no_connection_has_failed_for_a_while() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = {
            let told = told.clone();
            move |why: Option<String>| told.lock().push(why.is_some())
        };
        let mut shortage = Shortage { tell: &tell, until: None };
        assert!(!shortage.is_cause_of(&Errno::CONNABORTED.into()));
        let is_over = async |shortage: &mut Shortage<'_>, within| {
            tokio::time::timeout(within, shortage.ends()).await.is_ok()
        };
        assert!(!is_over(&mut shortage, Duration::from_secs(3600)).await, "there is none");
        assert!(shortage.is_cause_of(&Errno::MFILE.into()));
        assert!(!is_over(&mut shortage, SHORTAGE_OVER / 2).await);
        assert!(shortage.is_cause_of(&Errno::NFILE.into()));
        assert!(!is_over(&mut shortage, SHORTAGE_OVER / 2).await);
        assert_eq!(*told.lock(), [true], "once");
        assert!(is_over(&mut shortage, SHORTAGE_OVER).await);
        assert_eq!(*told.lock(), [true, false]);
        assert!(!is_over(&mut shortage, Duration::from_secs(3600)).await);
    }

    /// Invariant 6, of a bookie that has no place left.
    #[tokio::test(start_paused = true)]
    async fn a_shortage_ends_while_all_places_are_taken() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = {
            let told = told.clone();
            move |why: Option<String>| told.lock().push(why.is_some())
        };
        let mut shortage = Shortage { tell: &tell, until: None };
        assert!(shortage.is_cause_of(&Errno::MFILE.into()));
        let places = Arc::new(Semaphore::new(0));
        let waited = tokio::time::timeout(2 * SHORTAGE_OVER, wait_for_place(&places, &mut shortage)).await;
        assert!(waited.is_err(), "there is no place");
        assert_eq!(*told.lock(), [true, false]);
        places.add_permits(1);
        drop(wait_for_place(&places, &mut shortage).await);
    }
}
