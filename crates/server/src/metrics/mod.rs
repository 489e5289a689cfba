//! What the bookie measures: BookKeeper's names for dashboards that exist, `bindery_*` beside them.
//!
//! One struct of handles is made at start; nothing is looked up on the hot path and nothing is global, so several
//! bookies fit one process. Adds are recorded a group at a time under one lock, reads in a shard per connection.

mod batching;
mod stages;

pub use batching::Batching;
pub use bindery_metrics::{Counter, Gauge, Summary, SummarySnapshot};
pub use stages::{JOURNALS, JournalStages, Stages};

use bindery_metrics::numbers;
use std::sync::Arc;

/// Shards of the summaries that many threads record into.
const READ_SHARDS: usize = 4;

numbers! {
    /// The handles of one bookie with `journals` journals (protocol reference, section 8.2).
    pub struct Metrics(journals: usize) {
        add_entry: Summary(
            "bookkeeper_server_ADD_ENTRY_REQUEST",
            "Adds, in ms from decoding to queueing the answer."
        ) = Summary::latency(journals + 1),
        read_entry: Summary(
            "bookkeeper_server_READ_ENTRY_REQUEST",
            "Reads of entries, batch reads included, in ms from decoding to queueing the answer."
        ) = Summary::latency(READ_SHARDS),
        read_entry_fence: Summary(
            "bookkeeper_server_READ_ENTRY_FENCE_REQUEST",
            "Reads that fence their ledger, in ms from decoding to queueing the answer."
        ),
        read_entry_long_poll: Summary(
            "bookkeeper_server_READ_ENTRY_LONG_POLL_REQUEST",
            "Long polls, in ms from decoding to queueing the answer. The wait is part of it."
        ),
        force_ledger: Summary("bookkeeper_server_FORCE_LEDGER_REQUEST", "Force requests, in ms."),
        write_lac: Summary("bookkeeper_server_WRITE_LAC_REQUEST", "Requests that write a last confirmed entry, in ms."),
        read_lac: Summary("bookkeeper_server_READ_LAC_REQUEST", "Requests for a last confirmed entry, in ms."),
        get_bookie_info: Summary("bookkeeper_server_GET_BOOKIE_INFO_REQUEST", "Requests for free space, in ms."),
        get_list_of_entries: Summary(
            "bookkeeper_server_GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST",
            "Requests for the entries of a ledger that are here, in ms."
        ),
        add_rejected: Counter(
            "bookkeeper_server_ADD_ENTRY_REJECTED",
            "Adds answered with too-many-requests because there was no room in time: disks are slower than writers."
        ),
        read_rejected: Counter(
            "bookkeeper_server_READ_ENTRY_REJECTED",
            "Reads refused because the queue of their connection was full, or filled by reads of a silent disk."
        ),
        write_bytes: Counter("bookie_WRITE_BYTES", "Entry bytes acknowledged."),
        read_bytes: Counter("bookie_READ_BYTES", "Entry bytes answered."),
        reads_without_wait: Counter(
            "bindery_reads_without_wait",
            "Entries on disk that were answered without a thread that may block: the kernel had them in memory."
        ),
        reads_together: Counter(
            "bindery_reads_together",
            "Entries read from disk in one piece with their neighbours, for a range or a batch."
        ),
        connections_accepted: Counter("bindery_connections_accepted", "Connections accepted."),
        closed_bad_frame: Counter(
            "bindery_connections_closed_bad_frame",
            "Connections closed because the peer sent what no client sends."
        ),
        closed_stalled: Counter(
            "bindery_connections_closed_stalled",
            "Connections closed because the peer stopped reading or sending while others were short of bytes that it held."
        ),
        closed_silent: Counter(
            "bindery_connections_closed_silent",
            "Connections closed because the peer sent no whole request in time, or none while a newcomer needed its place."
        ),
        closed_idle: Counter(
            "bindery_connections_closed_idle",
            "Connections closed because a newcomer needed the place of the client that had been idle for longest."
        ),
        refused: Counter(
            "bindery_connections_refused",
            "Connections refused because their address had as many as it may."
        ),
        closed_copy_gone: Counter(
            "bindery_connections_closed_copy_gone",
            "Connections closed because the rest of a frame could not be loaded again."
        ),
        tls_handshakes: Counter("bindery_tls_handshakes", "TLS handshakes finished."),
        tls_refused: Counter(
            "bindery_connections_closed_tls",
            "Connections closed because TLS failed, or was required and not asked for."
        ),
        auth_succeeded: Counter("bindery_auth_succeeded", "Connections whose peer has proved who it is."),
        auth_failed: Counter(
            "bindery_auth_failed",
            "Connections that ended, or that are not served, because their peer has not proved who it is."
        ),
        requests_unauthorized: Counter(
            "bindery_requests_unauthorized",
            "Requests of users whose roles do not allow them."
        ),
        reads_too_old: Counter(
            "bindery_reads_too_old",
            "Reads answered with too-many-requests because they had waited too long."
        ),
        long_polls_refused: Counter(
            "bindery_long_polls_refused",
            "Long polls answered with too-many-requests because too many are parked."
        ),
        adds_too_old: Counter(
            "bindery_adds_too_old",
            "Adds answered with too-many-requests because they had waited for room too long."
        ),
        responses_dropped: Counter(
            "bindery_responses_dropped",
            "Answers to reads that were given up while their peer took nothing, to be loaded again."
        ),
        responses_dropped_bytes: Counter(
            "bindery_responses_dropped_bytes",
            "Bytes that answers which were given up returned to the pools."
        ),
        frames_resumed: Counter(
            "bindery_frames_resumed",
            "Frames sent in part whose rest was loaded again."
        ),
        adds_in_progress: Gauge("bookkeeper_server_ADD_ENTRY_IN_PROGRESS", "Adds in the engine that are not answered."),
        adds_blocked: Gauge(
            "bookkeeper_server_ADD_ENTRY_BLOCKED",
            "Connections whose adds wait for room in the write pool; BookKeeper counts adds.",
            stand_in
        ),
        server_status: Gauge(
            "bookie_SERVER_STATUS",
            "1 read-write, 0 read-only, -1 not registered."
        ) = Gauge::starting_at(-1),
        connections: Gauge("bindery_connections", "Open connections of clients."),
        tls_connections: Gauge("bindery_tls_connections", "Connections over TLS, those in their handshake included."),
        long_polls_parked: Gauge("bindery_long_polls_parked", "Long polls that wait for an entry to be confirmed."),
    }
    with {
        /// How well work is batched; each connection's socket counts here too.
        pub batching: Arc<Batching>,
        /// Where the time goes. Connections keep it, too.
        pub stages: Arc<Stages>,
    }
}

impl Metrics {
    /// The shard of [`Metrics::add_entry`] for adds that came to no journal.
    pub const NO_JOURNAL: u64 = 0;

    /// The shard of [`Metrics::add_entry`] for adds of this journal.
    pub fn of_journal(journal: usize) -> u64 {
        journal as u64 + 1
    }
}
