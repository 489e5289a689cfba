//! Every bound of the server in one place.

use crate::sockets::SocketOptions;
use bindery_io::canary::Canaries;
use bindery_wire::FrameLimit;
use std::net::IpAddr;
use std::time::Duration;

/// When a connection whose peer takes nothing is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StalledClose {
    /// Never for that alone.
    Never,
    /// When others wait for a pool that it holds bytes of, or such a pool is nearly full.
    UnderPressure,
    /// After the time without progress, whatever others need.
    Always,
}

/// How patient a bookie is with peers that take nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallRules {
    /// Without progress for so long, and with memory short, responses are dropped to be loaded again.
    pub drop_after: Duration,
    /// Without progress for so long, the connection may be closed.
    pub close_after: Duration,
    /// Whether it is.
    pub close: StalledClose,
}

/// Bounds of connections, queues and waits. Bytes that belong to pools are in [`crate::memory`].
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest frame, either direction (`nettyMaxFrameSizeBytes`).
    pub frame: FrameLimit,
    /// The largest batch read response (`maxBatchReadSize`, BookKeeper default 5 MiB).
    pub batch_read_size_bytes_max: u32,
    /// Adds handed to a shard at once.
    pub add_batch_entries_max: usize,
    /// Entry bytes handed to a shard at once; one larger entry goes alone.
    pub add_batch_bytes_max: usize,
    /// Bytes of adds that are acknowledged together, in each journal; as many again wait meanwhile.
    pub group_bytes_max: usize,
    /// How long an add waits for room in the write pool before it is answered with too-many-requests.
    pub admission_deadline: Duration,
    /// Reads held per connection; more are answered with too-many-requests (Java: 10,000 per thread).
    pub read_queue_max: usize,
    /// Bytes of loaded entries per connection that the peer has not taken yet; a larger entry goes alone.
    pub read_window_bytes: usize,
    /// Bytes of loaded entries of all connections, when that is to be less than the outbound pool's share.
    pub outbound_bytes_max: Option<u64>,
    /// Bytes of answers without entries per connection that the peer has not taken yet; then it is not read any more.
    pub answers_bytes_max: usize,
    /// Loads from disk under way per connection.
    pub loads_in_flight_max: usize,
    /// Long polls parked per connection.
    pub long_polls_per_connection_max: usize,
    /// Long polls parked in all.
    pub long_polls_max: usize,
    /// The longest a long poll waits, whatever the client asks for.
    pub long_poll_wait_max: Duration,
    /// Connections (`maxConnections`); at this number one that never sent a request makes room for a newcomer, or else the client that
    /// has been idle for longest. Without such, newcomers wait until one closes.
    pub connections_max: usize,
    /// Connections of one address (`maxConnectionsPerAddress`); see [`Limits::connections_of`].
    pub connections_per_address_max: Option<usize>,
    /// A client that asked for nothing, and waits for nothing, for so long makes room for a newcomer.
    pub idle_client_min: Duration,
    /// How long a peer may take from the first byte of its first request to its last (`firstRequestTimeoutSec`).
    pub first_request_max: Duration,
    /// How long a peer may send nothing at all after it connected (`silentConnectionTimeoutSec`); `None`: for ever.
    pub silent_max: Option<Duration>,
    /// Memory for the first request of a connection; a larger one takes its length from a pool of its own.
    pub first_buffer_bytes: usize,
    /// Options of each socket.
    pub socket: SocketOptions,
    /// Memory a connection reads into while it has something to say. Larger frames take their length from another pool.
    pub read_buffer_bytes: usize,
    /// A peer in the middle of a frame is closed after this long without enough progress, but only while others wait for
    /// the bytes it holds.
    pub stall_max: Duration,
    /// Rules for a peer that takes none of its answers.
    pub stall: StallRules,
    /// Plain reads, and adds that are not placed, are answered with too-many-requests at this age, counted from their
    /// arrival in the kernel; zero: never. Reads do not grow old while their own peer takes nothing, adds only while memory
    /// is short.
    pub request_age_max: Duration,
    /// How long a stop may take to finish what was received and to let the answers leave
    /// (`shutdownDrainTimeoutSec`).
    pub drain_max: Duration,
    /// How long a peer of the admin port may take for a head, for a body, and to take a piece of an answer.
    pub admin_patience: Duration,
    /// A planted bug that the tests must find, if any.
    pub canaries: Canaries,
    /// A request that takes longer is logged with its stages; zero: none is (`slowRequestThresholdMSec`).
    pub slow_request: Duration,
}

/// Peers that take nothing, each with what is loaded for it ahead, that fit the outbound pool together.
const SILENT_PEERS: u64 = 2048;

impl Limits {
    /// Bytes loaded for a connection beyond what the kernel has taken, by the capacity of the outbound pool. The kernel's
    /// buffer feeds the peer while more is loaded, so it takes no more than a write's worth.
    pub fn read_ahead_bytes(&self, outbound_bytes: u64) -> usize {
        (outbound_bytes / SILENT_PEERS).clamp(16 * 1024, 64 * 1024) as usize
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            frame: FrameLimit::DEFAULT,
            batch_read_size_bytes_max: 5 * 1024 * 1024,
            add_batch_entries_max: 1000,
            add_batch_bytes_max: 1024 * 1024,
            group_bytes_max: 16 * 1024 * 1024,
            admission_deadline: Duration::from_secs(2),
            read_queue_max: 20_000,
            read_window_bytes: 1024 * 1024,
            outbound_bytes_max: None,
            answers_bytes_max: 1024 * 1024,
            loads_in_flight_max: 16,
            long_polls_per_connection_max: 5_000,
            long_polls_max: 50_000,
            long_poll_wait_max: Duration::from_secs(300),
            connections_max: 10_000,
            connections_per_address_max: None,
            idle_client_min: Duration::from_secs(60),
            first_request_max: Duration::from_secs(10),
            silent_max: Some(Duration::from_secs(600)),
            first_buffer_bytes: 16 * 1024,
            socket: SocketOptions::default(),
            read_buffer_bytes: 64 * 1024,
            stall_max: Duration::from_secs(5),
            stall: StallRules {
                drop_after: Duration::from_millis(200),
                close_after: Duration::from_secs(5),
                close: StalledClose::UnderPressure,
            },
            // Half of the 30 s after which Pulsar's clients give up: a refused read can still be had from another replica.
            request_age_max: Duration::from_secs(15),
            drain_max: Duration::from_secs(5),
            admin_patience: Duration::from_secs(10),
            canaries: Canaries::none(),
            slow_request: Duration::from_secs(1),
        }
    }
}

impl Limits {
    /// Connections that one address may have: what was set; otherwise half of all, so that one cannot keep the others
    /// out, and as many as there are for this machine itself.
    pub fn connections_of(&self, address: IpAddr) -> usize {
        match self.connections_per_address_max {
            Some(max) => max,
            None if address.to_canonical().is_loopback() => usize::MAX,
            None => (self.connections_max / 2).max(1),
        }
    }
}
