//! Accepts connections and owns their tasks.
//!
//! # Invariants
//! 1. Before the bookie is ready a connection is closed at once (protocol reference, section 1.1): a client tries
//!    another bookie instead of waiting.
//! 2. At `connections_max` nothing is accepted until one closes; the kernel's backlog bounds what waits.
//! 3. [`Listener::run`] returns when every connection's tasks have ended.

use crate::connection::Connection;
use crate::latch::Latch;
use crate::shared::Shared;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Pause after accepting failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often answers under way are looked at while draining.
const DRAIN_STEP: Duration = Duration::from_millis(10);

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

    /// Serves until `stop`; then stops accepting, lets answers under way leave for at most `drain_max`, closes.
    pub async fn run(self, shared: Arc<Shared>, stop: &Latch) {
        let places = Arc::new(Semaphore::new(shared.limits.connections_max));
        let mut connections = JoinSet::new();
        loop {
            let place = tokio::select! {
                () = stop.wait() => break,
                place = places.clone().acquire_owned() => place.expect("the semaphore is never closed"),
            };
            let accepted = tokio::select! {
                () = stop.wait() => break,
                accepted = self.socket.accept() => accepted,
                // Ended tasks are taken out as they end.
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((socket, peer)) => {
                    let shared = shared.clone();
                    connections.spawn(async move {
                        Connection::serve(shared, socket, peer).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.socket);
        self::drain(&shared).await;
        for connection in shared.connections.all() {
            connection.close();
        }
        while connections.join_next().await.is_some() {}
    }
}

/// Waits until nothing is owed to any peer, at most `drain_max`.
async fn drain(shared: &Shared) {
    let deadline = tokio::time::Instant::now() + shared.limits.drain_max;
    for connection in shared.connections.all() {
        connection.stop_reading();
    }
    while tokio::time::Instant::now() < deadline {
        if shared.connections.all().iter().all(|connection| connection.is_idle()) {
            return;
        }
        tokio::time::sleep(DRAIN_STEP).await;
    }
    tracing::warn!("closing connections with answers under way");
}
