//! Names of BookKeeper that its dashboards query and that no handle of [`crate::metrics`] has: read when somebody asks for metrics.
//! Where a number says something else than BookKeeper's, it is a stand-in and its help says what it is.

use super::numbers::BookieNumbers;
use crate::disks::{DirectoryStatus, DiskDesk};
use crate::flow_view::ReadsFlow;
use crate::maintenance::garbage::GarbageDesk;
use crate::metrics::Metrics;
use crate::shared::Shared;
use bindery_engine::DirectoryStats;
use bindery_metrics::{Exposition, Kind, Row, SummarySnapshot, Table, stand_in};
use std::sync::Arc;

/// The labels that BookKeeper gives what each of its worker threads measures: here no thread owns a request.
const OF_ADDS: &[(&str, &str)] = &[("threadPool", "BookieWriteThreadPool"), ("thread", "0")];
const OF_READS: &[(&str, &str)] = &[("threadPool", "BookieReadThreadPool"), ("thread", "0")];

/// A number of the whole bookie.
pub(super) const BOOKIE: Table<BookieNumbers> = Table::new(&[
    stand_in(Row::each(
        Kind::Summary,
        "bookkeeper_server_ADD_ENTRY",
        &["threadPool", "thread"],
        "As bookkeeper_server_ADD_ENTRY_REQUEST: the answer to an add is queued as soon as the entry is durable. The labels are always the \
         same.",
        |of, series| series.summary(OF_ADDS, &of.shared.metrics.add_entry.snapshot(series.now_ns())),
    )),
    stand_in(Row::each(
        Kind::Summary,
        "bookkeeper_server_READ_ENTRY",
        &["threadPool", "thread"],
        "As bookkeeper_server_READ_ENTRY_REQUEST. The labels are always the same.",
        |of, series| series.summary(OF_READS, &of.shared.metrics.read_entry.snapshot(series.now_ns())),
    )),
    Row::summary("bookie_BOOKIE_ADD_ENTRY", "As bookkeeper_server_ADD_ENTRY_REQUEST.", |of, now_ns| {
        of.shared.metrics.add_entry.snapshot(now_ns)
    }),
    Row::summary("bookie_BOOKIE_READ_ENTRY", "As bookkeeper_server_READ_ENTRY_REQUEST.", |of, now_ns| {
        of.shared.metrics.read_entry.snapshot(now_ns)
    }),
    stand_in(Row::summary(
        "bookie_read_entry",
        "Entries loaded from disk, in ms, with the wait for a thread. What memory has is not in it.",
        |of, now_ns| of.shared.metrics.stages.read_load.snapshot(now_ns),
    )),
    Row::gauge("bookie_JOURNAL_DIRS", "Journals.", |of| of.shared.engine.journal_count() as u64),
    stand_in(Row::gauge(
        "bookie_write_cache_size",
        "Bytes of the write pool in use: entries that no flush has written yet, with their records.",
        |of| of.stats.write_pool_chunks_in_use * of.stats.write_pool_chunk_bytes,
    )),
    stand_in(Row::gauge("bookie_write_cache_max_size", "Bytes of the write pool.", |of| {
        of.stats.write_pool_chunks * of.stats.write_pool_chunk_bytes
    })),
    stand_in(Row::gauge(
        "bookie_read_cache_size",
        "Bytes of the block cache in use: blocks of the index, and blocks read ahead. Entries are kept by the kernel's page cache.",
        |of| of.cache.held,
    )),
    stand_in(Row::counter(
        "bookie_read_cache_hits",
        "Blocks read ahead that were there when their reader came to them.",
        |of| of.cache.ahead_hits,
    )),
    stand_in(Row::counter(
        "bookie_read_cache_misses",
        "Blocks that a reader in sequence had to fetch.",
        |of| of.cache.ahead_misses,
    )),
    Row::summary("bookie_flush", "Flushes, in ms. No quantiles are kept.", |of, _| {
        SummarySnapshot::of_sums(of.stats.flushes, of.stats.flush_ns as f64 / 1e6)
    }),
    Row::summary("bookie_flush_size", "Bytes that flushes wrote. No quantiles are kept.", |of, _| {
        SummarySnapshot::of_sums(of.stats.flushes, of.stats.flushed_bytes as f64)
    }),
    Row::gauge("bookie_ACTIVE_LEDGER_TOTAL", "Ledgers here.", |of| of.stats.ledgers),
    stand_in(Row::gauge(
        "bookie_ENTRY_LOG_SPACE_BYTES",
        "Bytes of all entry logs: of those that are live, and of replaced ones that are kept until their grace is over.",
        |of| of.stats.entry_log_bytes + of.space.replaced_bytes,
    )),
    Row::counter("bookie_MINOR_COMPACTION_TOTAL", "Collections of space with a minor compaction.", |of| {
        of.space.minor_compactions
    }),
    Row::counter("bookie_MAJOR_COMPACTION_TOTAL", "Collections of space with a major compaction.", |of| {
        of.space.major_compactions
    }),
    Row::counter(
        "bookie_MINOR_COMPACTION_COUNT",
        "The name of bookie_MINOR_COMPACTION_TOTAL in older versions of BookKeeper.",
        |of| of.space.minor_compactions,
    ),
    Row::counter(
        "bookie_RECLAIMED_DELETION_SPACE_BYTES",
        "Bytes of entry logs that were dropped because nothing in them was live.",
        |of| of.space.bytes_dropped,
    ),
    stand_in(Row::counter(
        "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
        "Bytes that compacted entry logs had more than what was made of them. Merges, which BookKeeper has not, are in it.",
        |of| {
            let (removed, made) = (of.space.bytes_removed, of.space.bytes_rewritten + of.space.bytes_merged);
            removed.saturating_sub(of.space.bytes_dropped).saturating_sub(made)
        },
    )),
    stand_in(Row::gauge(
        "jvm_memory_direct_bytes_used",
        "There is no JVM: bytes of the pools of the memory limit in use.",
        |of| of.pools.iter().map(|pool| pool.used_bytes).sum(),
    )),
    stand_in(Row::gauge(
        "jvm_memory_direct_bytes_max",
        "There is no JVM: bytes of the pools of the memory limit.",
        |of| of.pools.iter().map(|pool| pool.capacity_bytes).sum(),
    )),
    stand_in(Row::each(
        Kind::Gauge,
        "jvm_memory_bytes_max",
        &["area"],
        "There is no JVM. heap: the memory limit.",
        |of, series| series.count(&[("area", "heap")], of.shared.pools.limit_bytes),
    )),
]);

/// Reads and their waits.
pub(super) const READS: Table<ReadsFlow> = Table::new(&[
    Row::gauge("bookkeeper_server_READ_ENTRY_IN_PROGRESS", "Reads that are not answered.", |reads| {
        reads.in_progress
    }),
    stand_in(Row::gauge(
        "bookkeeper_server_READ_ENTRY_BLOCKED",
        "Reads that wait because their peer does not take what was loaded for it, or because bytes for loaded entries are short.",
        |reads| reads.blocked,
    )),
]);

/// Of one journal.
pub(super) struct JournalNumbers {
    shared: Arc<Shared>,
    number: usize,
    queued_records: u64,
    is_writing: bool,
    /// Of all journals.
    groups_undelivered: u64,
}

/// By journal.
pub(super) const JOURNALS: Table<JournalNumbers> = Table::by(
    "journalIndex",
    &[
        stand_in(Row::summary(
            "bookie_journal_JOURNAL_ADD_ENTRY",
            "Adds of the journal, in ms from decoding to queueing the answer. BookKeeper's begin when the journal has them.",
            |of, now_ns| {
                let shard = Metrics::of_journal(of.number) as usize;
                of.shared.metrics.add_entry.shard(shard, now_ns)
            },
        )),
        Row::gauge(
            "bookie_journal_JOURNAL_QUEUE_SIZE",
            "Records that wait for the next group of the journal.",
            |of| of.queued_records,
        ),
        stand_in(Row::flag(
            "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE",
            "1 while a group is being written and synced, which is one call: a journal never has more of them.",
            |of| of.is_writing,
        )),
        stand_in(Row::gauge(
            "bookie_journal_JOURNAL_CB_QUEUE_SIZE",
            "Groups that are durable and whose answers wait for the thread that hands them out, which all journals share.",
            |of| of.groups_undelivered,
        )),
    ],
);

/// Of one ledger directory.
pub(super) struct DirectoryNumbers {
    name: String,
    stats: DirectoryStats,
}

/// By ledger directory, which holds its index, too.
pub(super) const DIRECTORIES: Table<DirectoryNumbers> = Table::by(
    "ledgerDir",
    &[
        stand_in(Row::each(
            Kind::Gauge,
            "bookie_entries_count",
            &["indexDir"],
            "Entries in live entry logs; those of removed ledgers are in it until their space is given back.",
            |of, series| series.count(&[("indexDir", &of.name)], of.stats.entries),
        )),
        Row::each(
            Kind::Gauge,
            "bookie_ACTIVE_ENTRY_LOG_TOTAL",
            &["indexDir"],
            "Live entry logs.",
            |of, series| series.count(&[("indexDir", &of.name)], of.stats.logs),
        ),
        stand_in(Row::each(
            Kind::Gauge,
            "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES",
            &["indexDir"],
            "Bytes of live entry logs, what is dead in them included.",
            |of, series| series.count(&[("indexDir", &of.name)], of.stats.log_bytes),
        )),
    ],
);

/// The usage of each ledger directory. The name of the metric contains the directory.
pub(super) const USAGE: Table<DirectoryStatus> = Table::named(
    "<path>",
    &[Row::each(
        Kind::Gauge,
        "bookie_ledger_dir_<path>_usage",
        &[],
        "Percent of the volume of a ledger directory in use, measured every diskCheckInterval. <path> is the directory, _ in place of /.",
        |of, series| {
            if let Some(used) = of.used {
                series.real(&[], used * 100.0);
            }
        },
    )],
);

/// Directories in all, and those that take entries.
pub(super) const WRITABLE: Table<(u64, u64)> = Table::new(&[
    Row::gauge("bookie_ledger_num_dirs", "Ledger directories.", |(all, _)| *all),
    Row::gauge(
        "bookie_ledger_writable_dirs",
        "Ledger directories that take entries: neither above diskUsageThreshold nor failed.",
        |(_, writable)| *writable,
    ),
]);

/// Garbage collection.
pub(super) const GARBAGE: Table<GarbageDesk> = Table::new(&[
    Row::counter(
        "bookie_DELETED_LEDGER_TOTAL",
        "Ledgers that garbage collection removed, those that should not be here included.",
        |desk| desk.removed.get() + desk.surplus_removed.get(),
    ),
    Row::counter(
        "bookie_DELETED_LEDGER_COUNT",
        "The name of bookie_DELETED_LEDGER_TOTAL in older versions of BookKeeper.",
        |desk| desk.removed.get() + desk.surplus_removed.get(),
    ),
]);

/// By queue of a ledger directory.
pub(super) const THREADS: Table<u64> = Table::by(
    "thread",
    &[stand_in(Row::gauge(
        "bookkeeper_server_thread_executor_queue",
        "Reads that wait for a thread which may block on a ledger directory, by the number of the directory: BookieReadThreadPool-N; \
         those that fence or recover: BookieHighPriorityThread-N.",
        |queued| *queued,
    ))],
);

/// Everything but what is of the disk desk and of garbage collection.
pub(super) fn expose(shared: &Arc<Shared>, numbers: &BookieNumbers, reads: &ReadsFlow, out: &mut Exposition) {
    BOOKIE.expose(numbers, out);
    READS.expose(reads, out);
    let journals: Vec<_> = (numbers.journals.iter().enumerate())
        .map(|(number, journal)| {
            let of = JournalNumbers {
                shared: shared.clone(),
                number,
                queued_records: journal.queued_records,
                is_writing: journal.is_writing,
                groups_undelivered: numbers.stats.groups_undelivered,
            };
            (number.to_string(), of)
        })
        .collect();
    JOURNALS.expose_each(journals.iter().map(|(number, of)| (number.as_str(), of)), out);
    let queued: Vec<_> = (shared.io.queued_by_directory().into_iter().enumerate())
        .flat_map(|(number, queued)| {
            [
                (format!("BookieReadThreadPool-{number}"), queued.plain as u64),
                (format!("BookieHighPriorityThread-{number}"), queued.priority as u64),
            ]
        })
        .collect();
    THREADS.expose_each(queued.iter().map(|(thread, queued)| (thread.as_str(), queued)), out);
}

/// The ledger directories, as the disk desk knows them.
pub(super) fn expose_directories(shared: &Shared, desk: &DiskDesk, out: &mut Exposition) {
    let directories = desk.directories();
    let failed = shared.engine.status().directories_failed;
    let writable = (directories.iter().enumerate())
        .filter(|(number, of)| !of.is_full && !failed.contains_key(number))
        .count();
    WRITABLE.expose(&(directories.len() as u64, writable as u64), out);
    // As BookKeeper has it: the label is the directory that has the files, the name the configured one above it.
    let configured = |of: &DirectoryStatus| {
        let above = of.dir.parent().filter(|_| of.dir.ends_with("current"));
        above.unwrap_or(&of.dir).display().to_string()
    };
    let by_name: Vec<_> = directories.iter().map(|of| (configured(of), of)).collect();
    USAGE.expose_each(by_name.iter().map(|(name, of)| (name.as_str(), *of)), out);
    let numbers: Vec<_> = (directories.iter().zip(shared.engine.directory_stats()))
        .map(|(of, stats)| DirectoryNumbers { name: of.dir.display().to_string(), stats })
        .collect();
    DIRECTORIES.expose_each(numbers.iter().map(|of| (of.name.as_str(), of)), out);
}
