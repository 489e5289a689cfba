//! The settings of a coordinator.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a coordinator. [`CoordinatorConfig::new`] has ZooKeeper's defaults where it has them.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// Where to listen: a loopback address. Port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Where to listen for clients of Oxia: a loopback address; `None` for none. Port 0 lets the system choose.
    pub oxia: Option<SocketAddr>,
    /// Directory of the store; made when missing. One process uses it at a time.
    pub data_dir: PathBuf,
    /// The unit of session timeouts (ZooKeeper's `tickTime`, 2 s): sessions expire at multiples of it.
    pub tick: Duration,
    /// Shortest session timeout granted; two ticks when `None` (`minSessionTimeout`).
    pub session_timeout_min: Option<Duration>,
    /// Longest session timeout granted; twenty ticks when `None` (`maxSessionTimeout`).
    pub session_timeout_max: Option<Duration>,
    /// Connections at a time, of both protocols; one more is closed at once. Besides what is counted (`outbox_bytes_max`, `outboxes_bytes_max`) each
    /// has buffers: one of Oxia's its share of `outboxes_bytes_max` and some 64 KiB, one of ZooKeeper's a frame of 1 MiB.
    pub connections_max: usize,
    /// Replies a connection may be owed; reading it stops there until the client takes some.
    pub replies_max: usize,
    /// Bytes of replies a connection may be owed before reading it stops. A single reply may exceed it.
    pub replies_bytes_max: usize,
    /// Bytes of replies and notifications at which a client that does not take them is disconnected.
    pub outbox_bytes_max: usize,
    /// Bytes of replies and notifications to all clients together. Beyond it the client that is owed most is disconnected.
    pub outboxes_bytes_max: usize,
    /// Bytes of requests that wait to become durable, over all connections; reading stops there.
    pub pending_bytes_max: usize,
    /// Bytes of the tree in memory (paths, values, 256 per node). Creations beyond it get "quota exceeded" (-125).
    pub tree_bytes_max: usize,
    /// Watches over all connections. Beyond it the connection with the most is closed.
    pub watches_max: usize,
    /// Bytes of the paths watched, over all connections. Beyond it the connection with the most is closed.
    pub watched_bytes_max: usize,
    /// Sessions at a time, including those whose clients are gone but which have not expired; a connection that asks for
    /// one more is closed.
    pub sessions_max: usize,
    /// Bytes of notifications that are kept for clients of Oxia that come back. One that missed more is not told of it.
    pub notifications_bytes_max: usize,
    /// How often to look for empty containers (`znode.container.checkIntervalMs`, 1 min).
    pub container_check_interval: Duration,
    /// How long a connection may take to say what it is: to ask for a session or send a four letter word, or to send preface and settings of
    /// HTTP/2. Later it is closed: it would take the place of another one for ever. 10 s: a client on this machine needs milliseconds, and one
    /// that was swapped out some seconds.
    pub handshake_timeout: Duration,
}

impl CoordinatorConfig {
    /// The defaults, for an address and a directory.
    pub fn new(listen: SocketAddr, data_dir: impl Into<PathBuf>) -> CoordinatorConfig {
        CoordinatorConfig {
            listen,
            oxia: None,
            data_dir: data_dir.into(),
            tick: Duration::from_secs(2),
            session_timeout_min: None,
            session_timeout_max: None,
            connections_max: 1000,
            replies_max: 1000,
            replies_bytes_max: 4 << 20,
            outbox_bytes_max: 64 << 20,
            outboxes_bytes_max: 256 << 20,
            pending_bytes_max: 16 << 20,
            tree_bytes_max: 1 << 30,
            watches_max: 1_000_000,
            watched_bytes_max: 128 << 20,
            sessions_max: 100_000,
            notifications_bytes_max: 4 << 20,
            container_check_interval: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(10),
        }
    }

    /// The shortest and the longest session timeout to grant, in ms. Both are at least 1 and fit the protocol's signed 32 bits, and
    /// the longest is never below the shortest.
    pub(crate) fn session_timeouts_ms(&self) -> (u32, u32) {
        let ms = |time: Duration| {
            u32::try_from(time.as_millis()).unwrap_or(i32::MAX as u32).clamp(1, i32::MAX as u32)
        };
        let shortest = ms(self.session_timeout_min.unwrap_or(self.tick * 2));
        (shortest, ms(self.session_timeout_max.unwrap_or(self.tick * 20)).max(shortest))
    }

    pub(crate) fn tick_ms(&self) -> u64 {
        u64::try_from(self.tick.as_millis()).unwrap_or(u64::MAX).max(1)
    }
}
