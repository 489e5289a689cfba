//! What the bookie measures: BookKeeper's names for dashboards that exist, `bindery_*` beside them.
//!
//! One struct of handles is made at start; nothing is looked up on the hot path and nothing is global, so several
//! bookies fit one process. Adds are recorded a group at a time under one lock, reads in a shard per connection.

mod batching;
mod exposition;
mod stages;
mod summary;

pub use crate::counter::{Counter, Gauge};
pub use batching::{Batching, Log2Histogram};
pub use exposition::Exposition;
pub use stages::{JournalStages, Stages};
pub use summary::{Summary, SummarySnapshot};

use std::sync::Arc;

/// Shards of the summaries that many threads record into.
const READ_SHARDS: usize = 4;

/// The handles of one bookie (protocol reference, section 8.2). Latencies run from decoding to queueing the answer.
pub struct Metrics {
    /// `bookkeeper_server_ADD_ENTRY_REQUEST`.
    pub add_entry: Summary,
    /// `bookkeeper_server_READ_ENTRY_REQUEST`, batch reads included.
    pub read_entry: Summary,
    /// `bookkeeper_server_READ_ENTRY_FENCE_REQUEST`.
    pub read_entry_fence: Summary,
    /// `bookkeeper_server_READ_ENTRY_LONG_POLL_REQUEST`: the wait is part of it.
    pub read_entry_long_poll: Summary,
    /// `bookkeeper_server_FORCE_LEDGER_REQUEST`.
    pub force_ledger: Summary,
    /// `bookkeeper_server_WRITE_LAC_REQUEST`.
    pub write_lac: Summary,
    /// `bookkeeper_server_READ_LAC_REQUEST`.
    pub read_lac: Summary,
    /// `bookkeeper_server_GET_BOOKIE_INFO_REQUEST`.
    pub get_bookie_info: Summary,
    /// `bookkeeper_server_GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST`.
    pub get_list_of_entries: Summary,
    /// `bookie_WRITE_BYTES`: entry bytes acknowledged.
    pub write_bytes: Counter,
    /// `bookie_READ_BYTES`: entry bytes answered.
    pub read_bytes: Counter,
    /// Entries on disk that were answered without a thread that waits: the kernel had them in memory.
    pub reads_without_wait: Counter,
    /// Entries on disk that were read in one piece with their neighbours.
    pub reads_together: Counter,
    /// `bookkeeper_server_ADD_ENTRY_REJECTED`: adds answered with too-many-requests by admission.
    pub add_rejected: Counter,
    /// `bookkeeper_server_READ_ENTRY_REJECTED`: reads refused because a connection's queue was full,
    /// or was filled by reads of a silent disk.
    pub read_rejected: Counter,
    /// `bookkeeper_server_ADD_ENTRY_IN_PROGRESS`.
    pub adds_in_progress: Gauge,
    /// `bookkeeper_server_ADD_ENTRY_BLOCKED`: connections whose reader waits for room in the write pool.
    pub adds_blocked: Gauge,
    /// `bindery_connections`.
    pub connections: Gauge,
    /// `bindery_connections_accepted`.
    pub connections_accepted: Counter,
    /// `bindery_connections_closed_bad_frame`: by us, because the peer sent what no client sends.
    pub closed_bad_frame: Counter,
    /// `bindery_connections_closed_stalled`: by us, because the peer stopped reading or sending while bytes were short.
    pub closed_stalled: Counter,
    /// `bindery_connections_closed_silent`: by us, because the peer sent no whole request in time, or none while a
    /// newcomer needed its place.
    pub closed_silent: Counter,
    /// `bindery_connections_closed_idle`: by us, because a newcomer needed the place of a client that had been idle for longest.
    pub closed_idle: Counter,
    /// `bindery_connections_refused`: from an address that had as many as it may.
    pub refused: Counter,
    /// `bindery_connections_closed_copy_gone`: by us, because the rest of a frame could not be loaded again.
    pub closed_copy_gone: Counter,
    /// `bindery_tls_connections`: those over TLS, the handshake included.
    pub tls_connections: Gauge,
    /// `bindery_tls_handshakes`: finished ones.
    pub tls_handshakes: Counter,
    /// `bindery_connections_closed_tls`: by us, because TLS failed or was required and not asked for.
    pub tls_refused: Counter,
    /// `bindery_auth_succeeded`: connections whose peer has proved who it is.
    pub auth_succeeded: Counter,
    /// `bindery_auth_failed`: connections that ended, or that are not served, because it did not.
    pub auth_failed: Counter,
    /// `bindery_requests_unauthorized`: of users whose roles do not allow them.
    pub requests_unauthorized: Counter,
    /// `bindery_reads_too_old`: reads answered with too-many-requests because they had waited too long.
    pub reads_too_old: Counter,
    /// `bindery_long_polls_refused`: long polls answered with too-many-requests because too many are parked.
    pub long_polls_refused: Counter,
    /// `bindery_adds_too_old`: the same of adds that waited for room.
    pub adds_too_old: Counter,
    /// `bindery_responses_dropped`: read responses given up while their peer took nothing, to be loaded again.
    pub responses_dropped: Counter,
    /// `bindery_responses_dropped_bytes`: bytes that this gave back to the pools.
    pub responses_dropped_bytes: Counter,
    /// `bindery_frames_resumed`: frames sent in part whose rest was loaded again.
    pub frames_resumed: Counter,
    /// `bindery_long_polls_parked`.
    pub long_polls_parked: Gauge,
    /// `bookie_SERVER_STATUS`: 1 read-write, 0 read-only, -1 not registered.
    pub server_status: Gauge,
    /// How well work is batched; each connection's socket counts here too.
    pub batching: Arc<Batching>,
    /// Where the time goes. Connections keep it, too.
    pub stages: Arc<Stages>,
}

impl Metrics {
    /// Fresh handles, everything zero, status "not registered".
    pub fn new() -> Metrics {
        let metrics = Metrics {
            add_entry: Summary::latency(1),
            read_entry: Summary::latency(READ_SHARDS),
            read_entry_fence: Summary::latency(1),
            read_entry_long_poll: Summary::latency(1),
            force_ledger: Summary::latency(1),
            write_lac: Summary::latency(1),
            read_lac: Summary::latency(1),
            get_bookie_info: Summary::latency(1),
            get_list_of_entries: Summary::latency(1),
            write_bytes: Counter::default(),
            read_bytes: Counter::default(),
            reads_without_wait: Counter::default(),
            reads_together: Counter::default(),
            add_rejected: Counter::default(),
            read_rejected: Counter::default(),
            adds_in_progress: Gauge::default(),
            adds_blocked: Gauge::default(),
            connections: Gauge::default(),
            connections_accepted: Counter::default(),
            closed_bad_frame: Counter::default(),
            closed_stalled: Counter::default(),
            closed_silent: Counter::default(),
            closed_idle: Counter::default(),
            refused: Counter::default(),
            closed_copy_gone: Counter::default(),
            tls_connections: Gauge::default(),
            tls_handshakes: Counter::default(),
            tls_refused: Counter::default(),
            auth_succeeded: Counter::default(),
            auth_failed: Counter::default(),
            requests_unauthorized: Counter::default(),
            reads_too_old: Counter::default(),
            long_polls_refused: Counter::default(),
            adds_too_old: Counter::default(),
            responses_dropped: Counter::default(),
            responses_dropped_bytes: Counter::default(),
            frames_resumed: Counter::default(),
            long_polls_parked: Gauge::default(),
            server_status: Gauge::default(),
            batching: Arc::default(),
            stages: Arc::default(),
        };
        metrics.server_status.set(-1);
        metrics
    }

    /// Writes everything this struct holds.
    pub fn expose(&self, now_ns: u64, out: &mut Exposition) {
        let summaries = [
            ("ADD_ENTRY_REQUEST", &self.add_entry),
            ("READ_ENTRY_REQUEST", &self.read_entry),
            ("READ_ENTRY_FENCE_REQUEST", &self.read_entry_fence),
            ("READ_ENTRY_LONG_POLL_REQUEST", &self.read_entry_long_poll),
            ("FORCE_LEDGER_REQUEST", &self.force_ledger),
            ("WRITE_LAC_REQUEST", &self.write_lac),
            ("READ_LAC_REQUEST", &self.read_lac),
            ("GET_BOOKIE_INFO_REQUEST", &self.get_bookie_info),
            ("GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST", &self.get_list_of_entries),
        ];
        for (name, summary) in summaries {
            out.summary(&format!("bookkeeper_server_{name}"), &[], &summary.snapshot(now_ns));
        }
        let counters = [
            ("bookkeeper_server_ADD_ENTRY_REJECTED", &self.add_rejected),
            ("bookkeeper_server_READ_ENTRY_REJECTED", &self.read_rejected),
            ("bookie_WRITE_BYTES", &self.write_bytes),
            ("bookie_READ_BYTES", &self.read_bytes),
            ("bindery_connections_accepted", &self.connections_accepted),
            ("bindery_connections_closed_bad_frame", &self.closed_bad_frame),
            ("bindery_connections_closed_stalled", &self.closed_stalled),
            ("bindery_connections_closed_silent", &self.closed_silent),
            ("bindery_connections_closed_idle", &self.closed_idle),
            ("bindery_connections_refused", &self.refused),
            ("bindery_connections_closed_copy_gone", &self.closed_copy_gone),
            ("bindery_tls_handshakes", &self.tls_handshakes),
            ("bindery_connections_closed_tls", &self.tls_refused),
            ("bindery_auth_succeeded", &self.auth_succeeded),
            ("bindery_auth_failed", &self.auth_failed),
            ("bindery_requests_unauthorized", &self.requests_unauthorized),
            ("bindery_reads_too_old", &self.reads_too_old),
            ("bindery_long_polls_refused", &self.long_polls_refused),
            ("bindery_adds_too_old", &self.adds_too_old),
            ("bindery_responses_dropped", &self.responses_dropped),
            ("bindery_responses_dropped_bytes", &self.responses_dropped_bytes),
            ("bindery_frames_resumed", &self.frames_resumed),
        ];
        for (name, counter) in counters {
            out.counter(name, &[], counter.get());
        }
        let gauges = [
            ("bookkeeper_server_ADD_ENTRY_IN_PROGRESS", &self.adds_in_progress),
            ("bookkeeper_server_ADD_ENTRY_BLOCKED", &self.adds_blocked),
            ("bookie_SERVER_STATUS", &self.server_status),
            ("bindery_connections", &self.connections),
            ("bindery_tls_connections", &self.tls_connections),
            ("bindery_long_polls_parked", &self.long_polls_parked),
        ];
        for (name, gauge) in gauges {
            out.gauge(name, &[], gauge.get());
        }
        self.batching.expose(out);
        self.stages.expose(now_ns, out);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}
