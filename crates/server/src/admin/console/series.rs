//! What the console remembers, by the names under which `/metrics` shows it.

use std::collections::HashMap;
use std::sync::LazyLock;

/// How a number goes into a row of the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// It only grows: by how much in a second.
    Rate,
    /// It goes up and down: the most of the time that the row stands for.
    Peak,
}

/// What becomes of several lines, for example of several journals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    Sum,
    Max,
}

/// A number of the past.
#[derive(Debug)]
pub(super) struct Series {
    /// Its name for the page.
    pub(super) key: &'static str,
    pub(super) of: Of,
    join: Join,
    metric: &'static str,
    /// Stands among the labels of the lines that count; empty for all.
    label: &'static str,
}

const fn rate(key: &'static str, metric: &'static str, label: &'static str) -> Series {
    Series { key, of: Of::Rate, join: Join::Sum, metric, label }
}

const fn peak(key: &'static str, metric: &'static str, label: &'static str) -> Series {
    Series { key, of: Of::Peak, join: Join::Sum, metric, label }
}

/// A quantile: of several journals the largest.
const fn quantile(key: &'static str, metric: &'static str, label: &'static str) -> Series {
    Series { key, of: Of::Peak, join: Join::Max, metric, label }
}

const ADDS: &str = "bookkeeper_server_ADD_ENTRY_REQUEST";
const ADD_COUNT: &str = "bookkeeper_server_ADD_ENTRY_REQUEST_count";
const READS: &str = "bookkeeper_server_READ_ENTRY_REQUEST";
const SYNCS: &str = "bookie_journal_JOURNAL_SYNC";
const WRITTEN: &str = "bindery_written_bytes";
const POOL: &str = "bindery_pool_used_bytes";
const MEDIAN: &str = "success=\"true\",quantile=\"0.5\"";
const OF_99: &str = "success=\"true\",quantile=\"0.99\"";
const OF_999: &str = "success=\"true\",quantile=\"0.999\"";

/// A line that this node adds to its metrics for the console: counting them looks at each connection.
pub(super) const STALLED: &str = "console_connections_stalled";

/// All of them; those of the tierer and of repair have no number where a process has no such part.
pub(super) const SERIES: &[Series] = &[
    rate("adds", ADD_COUNT, "success=\"true\""),
    rate("addsFailed", ADD_COUNT, "success=\"false\""),
    rate("addsRejected", "bookkeeper_server_ADD_ENTRY_REJECTED", ""),
    rate("addBytes", "bookie_WRITE_BYTES", ""),
    rate("reads", "bookkeeper_server_READ_ENTRY_REQUEST_count", "success=\"true\""),
    rate("readsRejected", "bookkeeper_server_READ_ENTRY_REJECTED", ""),
    rate("readBytes", "bookie_READ_BYTES", ""),
    rate("slow", "bindery_slow_requests", ""),
    rate("journalBytes", WRITTEN, "cause=\"journal\""),
    rate("flushBytes", WRITTEN, "cause=\"flush\""),
    rate("mergeBytes", WRITTEN, "cause=\"merge\""),
    rate("compactionBytes", WRITTEN, "cause=\"compaction\""),
    rate("ingestBytes", WRITTEN, "cause=\"ingest\""),
    rate("scrubBytes", "bindery_scrub_bytes", ""),
    quantile("addP50", ADDS, MEDIAN),
    quantile("addP99", ADDS, OF_99),
    quantile("addP999", ADDS, OF_999),
    quantile("readP50", READS, MEDIAN),
    quantile("readP99", READS, OF_99),
    quantile("readP999", READS, OF_999),
    quantile("syncP50", SYNCS, MEDIAN),
    quantile("syncP99", SYNCS, OF_99),
    quantile("groupP50", "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES", MEDIAN),
    peak("addsInProgress", "bookkeeper_server_ADD_ENTRY_IN_PROGRESS", ""),
    peak("diskReadsQueued", "bindery_disk_reads_queued", ""),
    peak("connections", "bindery_connections", ""),
    peak("stalled", STALLED, ""),
    peak("pool.write", POOL, "pool=\"write\""),
    peak("pool.inbound", POOL, "pool=\"inbound\""),
    peak("pool.inbound-adds", POOL, "pool=\"inbound-adds\""),
    peak("pool.outbox", POOL, "pool=\"outbox\""),
    peak("pool.outbound", POOL, "pool=\"outbound\""),
    peak("pool.outbound-priority", POOL, "pool=\"outbound-priority\""),
    peak("pool.control", POOL, "pool=\"control\""),
    peak("pool.index", POOL, "pool=\"index\""),
    peak("pool.cache", POOL, "pool=\"cache\""),
    peak("journalUsed", "bindery_journal_used_bytes", ""),
    peak("journalFiles", "bindery_journal_file_bytes", ""),
    peak("logs", "bindery_entry_logs", ""),
    peak("logBytes", "bindery_entry_log_bytes", ""),
    peak("ledgers", "bookie_ledgers_count", ""),
    peak("volumeFree", "bindery_volume_free_bytes", ""),
    peak("writeAmplification", "bindery_write_amplification_permille", ""),
    peak("tierLagMs", "bindery_tier_lag_ms", ""),
    peak("tierLagBytes", "bindery_tier_lag_bytes", ""),
    rate("tierPutBytes", "bindery_tier_store_bytes_put", ""),
    rate("tierRequests", "bindery_tier_store_requests", ""),
    peak("repairListed", "bindery_repair_listed", ""),
    rate("repairBytes", "bindery_repair_bytes", ""),
    rate("repaired", "bindery_repair_repaired", ""),
];

/// How many there are.
pub(super) const COUNT: usize = SERIES.len();

/// Which series a metric is for.
static OF_METRIC: LazyLock<HashMap<&'static str, Vec<usize>>> = LazyLock::new(|| {
    let mut found: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, series) in SERIES.iter().enumerate() {
        found.entry(series.metric).or_default().push(index);
    }
    found
});

/// A moment: the number of each series, NaN where the text has none.
pub(super) type Moment = [f64; COUNT];

/// Takes the numbers out of the text of `/metrics`.
pub(super) fn pick(text: &str) -> Moment {
    let mut moment = [f64::NAN; COUNT];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        // Labels may have spaces in them, values have none.
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let Some(indices) = OF_METRIC.get(name) else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        for index in indices {
            let (series, number) = (&SERIES[*index], &mut moment[*index]);
            if labels.contains(series.label) && !value.is_nan() {
                *number = match (number.is_nan(), series.join) {
                    (true, _) => value,
                    (false, Join::Sum) => *number + value,
                    (false, Join::Max) => number.max(value),
                };
            }
        }
    }
    moment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str, key: &str) -> f64 {
        pick(text)[SERIES.iter().position(|series| series.key == key).unwrap()]
    }

    #[test]
    fn numbers_are_found_by_name_and_label_and_joined() {
        let text = "# HELP bookie_WRITE_BYTES Bytes.\n# TYPE bookie_WRITE_BYTES counter\nbookie_WRITE_BYTES 7\n\
            bindery_written_bytes{cause=\"journal\"} 5\nbindery_written_bytes{cause=\"flush\"} 6\n\
            bindery_journal_used_bytes{journalIndex=\"0\"} 3\nbindery_journal_used_bytes{journalIndex=\"1\"} 4\n\
            bookie_journal_JOURNAL_SYNC{success=\"true\",quantile=\"0.99\", journalIndex=\"0\"} 1.5\n\
            bookie_journal_JOURNAL_SYNC{success=\"true\",quantile=\"0.99\", journalIndex=\"1\"} 0.5\n\
            bookie_journal_JOURNAL_SYNC{success=\"true\",quantile=\"0.5\", journalIndex=\"1\"} NaN\n";
        for (key, expected) in [
            ("addBytes", 7.0),
            ("journalBytes", 5.0),
            ("flushBytes", 6.0),
            ("journalUsed", 7.0),
            ("syncP99", 1.5),
        ] {
            assert_eq!(number(text, key), expected, "{key}");
        }
        for key in ["syncP50", "adds", "repaired"] {
            assert!(number(text, key).is_nan(), "{key}");
        }
    }

    #[test]
    fn names_are_told_apart() {
        let mut keys: Vec<_> = SERIES.iter().map(|series| series.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), COUNT);
    }
}
