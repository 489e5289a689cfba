//! Accepts connections and owns their tasks.
//!
//! # Invariants
//! 1. Before the bookie is ready a connection is closed at once (protocol reference, section 1.1): a client tries
//!    another bookie instead of waiting.
//! 2. At most `connections_max` are served. With all places taken a newcomer gets that of the connection that has been
//!    silent for longest ([`crate::connection`]'s door); when none is silent nothing is accepted until one closes, and
//!    the kernel's backlog bounds what waits.
//! 3. An address has no more places than the limits allow; one more is closed at once.
//! 4. At a stop nothing is accepted any more; what had reached this machine by then is handled and answered, as far as
//!    `drain_max` allows.
//! 5. [`Listener::run`] returns when every connection's tasks have ended.

use crate::connection::Connection;
use crate::latch::Latch;
use crate::log_limit::LogLimit;
use crate::shared::Shared;
use crate::yielding::after_all_others;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// Pause after accepting failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Newcomers accepted before whatever else is ready runs: a fraction of a millisecond.
const ACCEPTS_IN_A_ROW: u32 = 8;
/// How often answers under way are looked at while draining.
const DRAIN_STEP: Duration = Duration::from_millis(10);
/// One log line in this time about newcomers that were turned away, or took the place of another.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

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

    /// Serves until `stop`; then stops accepting, finishes what was received for at most `drain_max`, closes.
    pub async fn run(self, shared: Arc<Shared>, stop: &Latch) {
        let mut entrance = Entrance {
            places: Arc::new(Semaphore::new(shared.limits.connections_max)),
            shared,
            connections: JoinSet::new(),
            refusals: LogLimit::new(LOG_INTERVAL),
            evictions: LogLimit::new(LOG_INTERVAL),
        };
        tokio::select! {
            biased;
            () = stop.wait() => {}
            () = entrance.accept_all(&self.socket) => {}
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

/// Where connections come in.
struct Entrance {
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
    connections: JoinSet<()>,
    refusals: LogLimit,
    evictions: LogLimit,
}

impl Entrance {
    /// Accepts for ever. A dropped future drops at most a socket that nothing was read from.
    async fn accept_all(&mut self, socket: &TcpListener) {
        let mut in_a_row = 0;
        loop {
            // Ended tasks are taken out as they end.
            while self.connections.try_join_next().is_some() {}
            let place = match self.places.clone().try_acquire_owned() {
                Ok(place) => Some(place),
                // Somebody can make room, for a newcomer and not before.
                Err(_) if self.shared.connections.door().oldest_silent().is_some() => None,
                Err(_) => Some(self.place().await),
            };
            match socket.accept().await {
                Ok((socket, peer)) => self.admit(socket, peer, place).await,
                Err(error) => {
                    tracing::warn!(%error, "accept a connection");
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

    async fn place(&self) -> OwnedSemaphorePermit {
        self.places.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    async fn admit(&mut self, socket: TcpStream, peer: SocketAddr, place: Option<OwnedSemaphorePermit>) {
        let shared = self.shared.clone();
        let Some(entry) = Entry::new(&shared, peer) else {
            shared.metrics.refused.add(1);
            if let Some(others) = self.refusals.admit(shared.clock.monotonic_ns()) {
                let max = shared.limits.connections_of(peer.ip());
                tracing::warn!(
                    %peer, max, others,
                    "refused a connection: its address has as many as it may (maxConnectionsPerAddress)"
                );
            }
            return;
        };
        let place = match place {
            Some(place) => place,
            None => {
                self.evict();
                self.place().await
            }
        };
        if let Err(error) = shared.limits.socket.apply(&socket) {
            tracing::debug!(%peer, %error, "set options of a socket");
        }
        self.connections.spawn(async move {
            Connection::serve(entry.shared.clone(), socket, peer).await;
            drop((entry, place));
        });
    }

    /// Closes the connection that has been silent for longest, if one is.
    fn evict(&mut self) {
        let Some(oldest) = self.shared.connections.door().oldest_silent() else { return };
        let Some(connection) = self.shared.connection(oldest) else { return };
        connection.close();
        self.shared.metrics.closed_silent.add(1);
        if let Some(others) = self.evictions.admit(self.shared.clock.monotonic_ns()) {
            let (peer, max) = (connection.peer(), self.shared.limits.connections_max);
            tracing::warn!(
                %peer, max, others,
                "closed a connection that never sent a request: a newcomer needs its place (maxConnections)"
            );
        }
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

/// Waits until everything received is answered and nothing is owed to any peer, at most `drain_max`.
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
                "closing connections with answers under way (shutdownDrainTimeoutSec)"
            );
            return;
        }
        tokio::time::sleep(DRAIN_STEP).await;
    }
}
