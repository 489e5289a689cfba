//! What is measured of the engine and of the pools, read when somebody asks for metrics. Handles that hot paths record into are in
//! [`crate::metrics`].

use super::{as_java, process};
use crate::auth::Auth;
use crate::flow_view::{self, PoolFlow};
use crate::maintenance::garbage::GarbageDesk;
use crate::metadata_check::ParkedAdds;
use crate::metrics::{self, Batching, Metrics, Stages};
use crate::shared::Shared;
use crate::tenants::Tenants;
use crate::tls::Tls;
use crate::{disks, tier};
use bindery_engine::{
    DamageSummary, EngineStats, JournalStats, LedgerMemory, ScrubStatus, SpaceStatus, Status,
};
use bindery_metrics::{About, Exposition, Kind, Row, Table};
use bindery_storage::{CacheStats, IndexUse};
use std::sync::Arc;

/// Bytes of a journal record besides the entry.
const RECORD_HEADER_BYTES: u64 = 12;

/// A bookie at one moment.
pub(super) struct BookieNumbers {
    pub(super) shared: Arc<Shared>,
    pub(super) stats: EngineStats,
    pub(super) space: SpaceStatus,
    pub(super) cache: CacheStats,
    pub(super) journals: Vec<JournalStats>,
    pub(super) pools: Vec<PoolFlow>,
    scrub: ScrubStatus,
    damage: DamageSummary,
    status: Status,
    ledgers: LedgerMemory,
    index_runs: (usize, usize),
}

impl BookieNumbers {
    fn of(shared: &Arc<Shared>) -> BookieNumbers {
        let engine = &shared.engine;
        BookieNumbers {
            stats: engine.stats(),
            space: engine.space_status(),
            scrub: engine.scrub_status(),
            damage: engine.damage_summary(),
            status: engine.status(),
            ledgers: engine.ledger_memory(),
            cache: engine.storage_memory().cache.stats(),
            journals: engine.journal_stats(),
            pools: flow_view::pools(shared),
            index_runs: engine.index_runs(),
            shared: shared.clone(),
        }
    }

    /// Bytes written to disks, by cause.
    fn written(&self) -> [(&'static str, u64); 5] {
        [
            ("journal", self.stats.journal_disk_bytes),
            ("flush", self.stats.flushed_bytes),
            ("compaction", self.stats.compacted_bytes),
            ("merge", self.stats.merged_bytes),
            ("ingest", self.stats.ingested_bytes),
        ]
    }

    fn amplification_permille(&self) -> u64 {
        let stats = &self.stats;
        // Records are counted with their headers, entries without.
        let added = stats.journal_bytes.saturating_sub(stats.journal_entries * RECORD_HEADER_BYTES);
        // Copies that came past the journals are written once.
        let entries = added + stats.ingested_bytes;
        let written: u64 = self.written().iter().map(|(_, bytes)| bytes).sum();
        let permille = (u128::from(written) * 1000).checked_div(u128::from(entries)).unwrap_or(0);
        u64::try_from(permille).unwrap_or(u64::MAX)
    }

    fn index_bytes(&self, of: IndexUse) -> u64 {
        self.shared.engine.storage_memory().index.used(of)
    }
}

const BOOKIE: Table<BookieNumbers> = Table::new(&[
    Row::each(
        Kind::Gauge,
        "bookie_journal_JOURNAL_MEMORY_MAX",
        &["journalIndex"],
        "Bytes of the write pool, which the journals share.",
        |of, series| {
            let bytes = of.stats.write_pool_chunks * of.stats.write_pool_chunk_bytes;
            series.count(&[("journalIndex", "0")], bytes);
        },
    ),
    Row::each(
        Kind::Gauge,
        "bookie_journal_JOURNAL_MEMORY_USED",
        &["journalIndex"],
        "Bytes of the write pool in use.",
        |of, series| {
            let bytes = of.stats.write_pool_chunks_in_use * of.stats.write_pool_chunk_bytes;
            series.count(&[("journalIndex", "0")], bytes);
        },
    ),
    Row::gauge("bookie_ledgers_count", "Ledgers here.", |of| of.stats.ledgers),
    Row::gauge("bindery_ledgers_removed", "Removed ledgers that are remembered.", |of| {
        of.stats.ledgers_removed
    }),
    Row::gauge("bindery_entry_logs", "Live entry logs.", |of| of.stats.entry_logs),
    Row::gauge("bindery_entry_log_bytes", "Bytes of the files of live entry logs.", |of| {
        of.stats.entry_log_bytes
    }),
    Row::counter(
        "bindery_space_collections",
        "Rounds in which logs were weighed for dropping and rewriting.",
        |of| of.space.collections,
    ),
    Row::counter("bindery_space_logs_dropped", "Logs dropped because nothing in them was live.", |of| {
        of.space.logs_dropped
    }),
    Row::counter("bindery_space_logs_rewritten", "Logs rewritten by compaction.", |of| {
        of.space.logs_rewritten
    }),
    Row::counter(
        "bindery_space_bytes_copied",
        "Bytes that compaction and merging copied: entries with their index records.",
        |of| of.space.bytes_copied,
    ),
    Row::counter(
        "bindery_space_bytes_removed",
        "Bytes of files that were dropped, rewritten or merged.",
        |of| of.space.bytes_removed,
    ),
    Row::counter("bindery_space_bytes_rewritten", "Bytes of files that compaction made.", |of| {
        of.space.bytes_rewritten
    }),
    Row::counter("bindery_space_merges", "Merges done.", |of| of.space.merges),
    Row::counter("bindery_space_logs_merged", "Logs that were merged.", |of| of.space.logs_merged),
    Row::gauge(
        "bindery_space_replaced_bytes",
        "Bytes of replaced logs that are kept until their grace is over.",
        |of| of.space.replaced_bytes,
    ),
    Row::gauge(
        "bindery_space_logs_skipped",
        "Logs that the last collection left out because they cannot be read.",
        |of| of.space.skipped.len() as u64,
    ),
    Row::counter("bindery_space_errors", "Other failures of collections.", |of| of.space.errors),
    Row::each(
        Kind::Counter,
        "bindery_written_bytes",
        &["cause"],
        "Bytes written to disks. ingest: copies that a repair brought.",
        |of, series| {
            for (cause, bytes) in of.written() {
                series.count(&[("cause", cause)], bytes);
            }
        },
    ),
    Row::gauge(
        "bindery_write_amplification_permille",
        "Bytes written since the start for each 1000 bytes of entries that came.",
        |of| of.amplification_permille(),
    ),
    Row::counter("bindery_scrub_passes", "Walks of the scrub over all live logs.", |of| of.scrub.passes),
    Row::counter("bindery_scrub_bytes", "Bytes that the scrub looked at.", |of| of.scrub.bytes),
    Row::counter(
        "bindery_scrub_findings",
        "Damage that the scrub found, each as often as it was met.",
        |of| of.scrub.findings,
    ),
    Row::gauge("bindery_scrub_damaged_logs", "Live logs that are known to be damaged.", |of| {
        of.scrub.damaged_logs
    }),
    Row::gauge(
        "bindery_damaged_ledgers",
        "Ledgers with entries that are damaged here and wait for another copy.",
        |of| of.damage.ledgers,
    ),
    Row::gauge(
        "bindery_damaged_ranges",
        "Ranges of entries that are damaged here and wait for another copy.",
        |of| of.damage.ranges,
    ),
    Row::counter("bindery_damaged_ranges_made_good", "Damaged ranges that were replaced.", |of| {
        of.damage.made_good
    }),
    Row::counter(
        "bindery_damaged_logs_renewed",
        "Logs that were replaced because of damage in them.",
        |of| of.damage.logs_renewed,
    ),
    Row::counter("bindery_flushes", "Flushes committed.", |of| of.stats.flushes),
    Row::counter("bindery_flushed_entries", "Entries that flushes wrote to entry logs.", |of| {
        of.stats.flushed_entries
    }),
    Row::counter("bindery_flushed_bytes", "Bytes that flushes wrote to entry logs.", |of| {
        of.stats.flushed_bytes
    }),
    Row::counter("bindery_write_pool_full", "Times a batch of adds found no room in the write pool.", |of| {
        of.stats.no_room
    }),
    Row::counter("bindery_flush_ms", "Milliseconds of flushes.", |of| of.stats.flush_ns / 1_000_000),
    Row::counter(
        "bindery_merge_in_flush_ms",
        "Milliseconds between the writes of flushes that rewrites took because they were behind.",
        |of| of.stats.merge_in_flush_ns / 1_000_000,
    ),
    Row::gauge(
        "bindery_recovery_reserve_bytes",
        "Bytes that recoveries may still add while no other adds are taken.",
        |of| of.status.recovery_reserve_bytes,
    ),
    Row::counter(
        "bindery_recovery_adds_refused",
        "Adds of recoveries that were refused because that reserve, or the room for them in a journal, was used up.",
        |of| of.status.recoveries_refused,
    ),
    Row::counter("bindery_journal_wakes", "Times the thread of a journal was woken.", |of| {
        of.stats.journal_wakes
    }),
    Row::gauge(
        "bindery_index_extent_bytes",
        "Bytes of the index pool that runs of flushed entries take.",
        |of| of.index_bytes(IndexUse::Extents),
    ),
    Row::gauge(
        "bindery_index_ledger_bytes",
        "Bytes of the index pool that the states of ledgers take.",
        |of| of.index_bytes(IndexUse::Ledgers),
    ),
    Row::gauge(
        "bindery_index_ledger_bytes_max",
        "Bytes of ledger states from which on no new ledgers are taken.",
        |of| of.ledgers.bytes_max,
    ),
    Row::gauge(
        "bindery_index_writing_bytes",
        "Bytes of the index pool for runs of entry logs that flushes and rewrites are writing.",
        |of| of.index_bytes(IndexUse::Writing),
    ),
    Row::counter(
        "bindery_ledgers_refused",
        "Requests refused because they would have begun a ledger, or enlarged one for good, beyond the memory for them.",
        |of| of.ledgers.refused,
    ),
    Row::each(
        Kind::Gauge,
        "bindery_index_runs",
        &["kind"],
        "Runs of flushed entries whose places are in memory, and on disk.",
        |of, series| {
            for (kind, runs) in [("memory", of.index_runs.0), ("disk", of.index_runs.1)] {
                series.count(&[("kind", kind)], runs as u64);
            }
        },
    ),
    Row::each(
        Kind::Counter,
        "bindery_cache_hits",
        &["kind"],
        "Blocks that were in the cache. index: looked up; ahead: read ahead, when their reader came to them.",
        |of, series| {
            for (kind, hits) in [("index", of.cache.index_hits), ("ahead", of.cache.ahead_hits)] {
                series.count(&[("kind", kind)], hits);
            }
        },
    ),
    Row::each(
        Kind::Counter,
        "bindery_cache_misses",
        &["kind"],
        "Blocks that were not in the cache.",
        |of, series| {
            for (kind, misses) in [("index", of.cache.index_misses), ("ahead", of.cache.ahead_misses)] {
                series.count(&[("kind", kind)], misses);
            }
        },
    ),
    Row::gauge("bindery_connections_max", "Connections of clients that may be open.", |of| {
        of.shared.limits.connections_max as u64
    }),
    Row::flag(
        "bindery_connections_crowded",
        "1 while all places for connections are taken by clients in use, and a new one waits.",
        |of| of.shared.connections.door().crowded_since_ns().is_some(),
    ),
    Row::gauge("bindery_connections_silent", "Connections that have not sent a whole request yet.", |of| {
        of.shared.connections.door().silent() as u64
    }),
    Row::gauge("bindery_long_polls_max", "Long polls that may be parked.", |of| {
        of.shared.limits.long_polls_max as u64
    }),
    Row::gauge("bindery_disk_lists", "Lists of entries that wait or run.", |of| of.shared.io.lists() as u64),
    Row::gauge("bindery_disk_reads_queued", "Jobs that wait for a thread that may block on a disk.", |of| {
        of.shared.io.queued() as u64
    }),
    Row::flag(
        "bindery_failed",
        "1 after a failed write or sync: no adds any more. Replace the disk, or remount it, then restart.",
        |of| of.status.failed.is_some(),
    ),
    Row::gauge(
        "bindery_directories_failed",
        "Ledger directories that failed while the others go on.",
        |of| of.status.directories_failed.len() as u64,
    ),
    Row::flag(
        "bindery_waits_for_space",
        "1 while a flush or a journal waits for space on its volume.",
        |of| of.status.waits_for_space.is_some(),
    ),
    Row::flag(
        "bindery_waits_for_descriptor",
        "1 while a flush or a journal waits for a file descriptor.",
        |of| of.status.waits_for_descriptor.is_some(),
    ),
]);

const JOURNALS: Table<JournalStats> = Table::by(
    "journalIndex",
    &[
        Row::counter(
            "bookie_journal_JOURNAL_WRITE_BYTES",
            "Bytes of records written to the journal.",
            |of| of.record_bytes,
        ),
        Row::counter(
            "bindery_journal_written_bytes",
            "Bytes written to the journal, headers and padding included.",
            |of| of.written_bytes,
        ),
        Row::counter(
            "bindery_journal_file_waits",
            "Times a group waited for a file to be freed, because the journal was at its cap.",
            |of| of.file_waits,
        ),
        Row::counter(
            "bindery_journal_file_wait_ms",
            "Milliseconds of the waits for a file that ended.",
            |of| of.file_wait_ns / 1_000_000,
        ),
        Row::gauge(
            "bindery_journal_used_bytes",
            "Bytes of the journal that a restart would replay, whole files but the last.",
            |of| of.used_bytes,
        ),
        Row::gauge("bindery_journal_file_bytes", "Bytes of all files of the journal.", |of| of.file_bytes),
        Row::gauge(
            "bindery_journal_max_bytes",
            "Bytes that the files of the journal may take; 0: no limit.",
            |of| of.bytes_max,
        ),
        Row::gauge("bindery_journal_files", "Files of the journal.", |of| of.files),
        Row::gauge(
            "bindery_journal_files_free",
            "Files of the journal that are free to be used again.",
            |of| of.files_free,
        ),
    ],
);

const POOLS: Table<PoolFlow> = Table::by(
    "pool",
    &[
        Row::gauge("bindery_pool_capacity_bytes", "Bytes of a pool of the memory limit.", |pool| {
            pool.capacity_bytes
        }),
        Row::gauge("bindery_pool_used_bytes", "Bytes of a pool in use.", |pool| pool.used_bytes),
        Row::gauge("bindery_pool_waiting", "Who waits for bytes of a pool.", |pool| pool.waiting),
        Row::counter(
            "bindery_pool_waits",
            "Times somebody had to wait for bytes of a pool; of write those that do not any more.",
            |pool| pool.waits,
        ),
        Row::counter(
            "bindery_pool_waited_ms",
            "Milliseconds of the waits for bytes of a pool that ended.",
            |pool| pool.waited_ms,
        ),
    ],
);

/// Everything there is to measure of a bookie that serves.
pub(super) async fn expose(shared: &Arc<Shared>, out: &mut Exposition) {
    let metrics = &shared.metrics;
    Metrics::TABLE.expose(metrics, out);
    Batching::TABLE.expose(&metrics.batching, out);
    Stages::TABLE.expose(&metrics.stages, out);
    ParkedAdds::TABLE.expose(&shared.parked_adds, out);
    let numbers = BookieNumbers::of(shared);
    metrics.stages.expose_journals(numbers.journals.len(), out);
    let journals: Vec<_> =
        numbers.journals.iter().enumerate().map(|(number, of)| (number.to_string(), of)).collect();
    JOURNALS.expose_each(journals.iter().map(|(number, of)| (number.as_str(), *of)), out);
    BOOKIE.expose(&numbers, out);
    POOLS.expose_each(numbers.pools.iter().map(|pool| (pool.name.as_str(), pool)), out);
    if let Some(tenants) = &shared.tenants {
        tenants.expose(out);
    }
    as_java::expose(shared, &numbers, &flow_view::reads(shared).await, out);
}

/// All names that the admin port of a bookie has, with what they mean, by part; those of extensions of the process are theirs.
pub fn about() -> Vec<(&'static str, Vec<About>)> {
    vec![
        (
            "Requests and connections",
            [Metrics::TABLE.about(), ParkedAdds::TABLE.about(), as_java::READS.about()].concat(),
        ),
        ("Where time goes", [Stages::TABLE.about(), Batching::TABLE.about()].concat()),
        ("Journals", [metrics::JOURNALS.about(), JOURNALS.about(), as_java::JOURNALS.about()].concat()),
        (
            "Storage and memory",
            [BOOKIE.about(), as_java::BOOKIE.about(), POOLS.about(), as_java::THREADS.about()].concat(),
        ),
        (
            "Disks",
            [
                disks::VOLUMES.about(),
                disks::REASONS.about(),
                as_java::WRITABLE.about(),
                as_java::USAGE.about(),
                as_java::DIRECTORIES.about(),
            ]
            .concat(),
        ),
        ("Garbage collection", [GarbageDesk::TABLE.about(), as_java::GARBAGE.about()].concat()),
        ("Object storage, as a bookie reads it", tier::NUMBERS.about()),
        ("Tenants", Tenants::about_numbers()),
        ("TLS and users", [Tls::about_numbers(), Auth::about_numbers()].concat()),
        ("The process", process::PROCESS.about()),
    ]
}
