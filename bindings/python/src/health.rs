//! How bookies and writes do, as a client sees them.

use bindery_client::Percentiles;
use pyo3::prelude::*;

/// Latencies of the last 5 to 10 s, in seconds; all 0 when nothing was answered.
#[pyclass(frozen, get_all, module = "bindery")]
#[derive(Clone)]
pub(crate) struct Latencies {
    /// Answers.
    count: u64,
    /// Their mean.
    mean: f64,
    /// Half of them took no longer.
    p50: f64,
    /// 95 of 100.
    p95: f64,
    /// 99 of 100.
    p99: f64,
}

#[pymethods]
impl Latencies {
    fn __repr__(&self) -> String {
        let Latencies { count, mean, p50, p95, p99 } = self;
        format!("<bindery.Latencies of {count}: mean {mean} s, p50 {p50} s, p95 {p95} s, p99 {p99} s>")
    }
}

impl From<Percentiles> for Latencies {
    fn from(percentiles: Percentiles) -> Latencies {
        let Percentiles { count, mean, p50, p95, p99, .. } = percentiles;
        let [mean, p50, p95, p99] = [mean, p50, p95, p99].map(|latency| latency.as_secs_f64());
        Latencies { count, mean, p50, p95, p99 }
    }
}

/// One bookie. Counts are since the client knows it.
#[pyclass(frozen, get_all, module = "bindery")]
pub(crate) struct BookieHealth {
    /// The bookie.
    id: String,
    /// "healthy", "probation", "suspect", "unhealthy" or "forgotten".
    state: &'static str,
    /// How often that changed.
    transitions: u64,
    /// Whether new ensembles avoid it.
    is_avoided: bool,
    /// Reads under way, and those that still count after a timeout.
    pending: u64,
    /// Whether these are so many that other replicas are preferred.
    is_blocked: bool,
    /// Reads sent to it, without probes.
    reads_sent: u64,
    /// Reads answered.
    answered: u64,
    /// Latencies of reads of one entry.
    reads: Latencies,
    /// Latencies of reads of runs of entries.
    batch_reads: Latencies,
    /// Requests without an answer in time.
    timeouts: u64,
    /// Requests that found no connection, or lost it.
    unreachable: u64,
    /// Errors that it answered, and answers that made no sense.
    errors: u64,
    /// Requests that it refused because of their number.
    rejected: u64,
    /// The share of reads, in per cent, that goes elsewhere because of these.
    reject_percent: u8,
    /// Entries that it should have and said it had not.
    missing_copies: u64,
    /// Probes answered.
    probes_answered: u64,
    /// Probes that were not.
    probes_failed: u64,
    /// Hedges sent to it.
    hedges_sent: u64,
    /// Hedges sent to it that were answered first.
    hedges_won: u64,
    /// Why it last could not be reached, or failed.
    last_error: Option<String>,
}

#[pymethods]
impl BookieHealth {
    fn __repr__(&self) -> String {
        format!("<bindery.BookieHealth of {}, {}>", self.id, self.state)
    }
}

impl From<bindery_client::BookieHealth> for BookieHealth {
    fn from(health: bindery_client::BookieHealth) -> BookieHealth {
        BookieHealth {
            id: health.bookie.to_string(),
            state: health.state.as_str(),
            transitions: health.transitions,
            is_avoided: health.is_avoided,
            pending: health.pending,
            is_blocked: health.is_blocked,
            reads_sent: health.reads_sent,
            answered: health.answered,
            reads: health.reads.into(),
            batch_reads: health.batch_reads.into(),
            timeouts: health.timeouts,
            unreachable: health.unreachable,
            errors: health.errors,
            rejected: health.rejected,
            reject_percent: health.reject_percent,
            missing_copies: health.missing_copies,
            probes_answered: health.probes_answered,
            probes_failed: health.probes_failed,
            hedges_sent: health.hedges_sent,
            hedges_won: health.hedges_won,
            last_error: health.last_error,
        }
    }
}

/// Writes of a client. Counts are since it was made.
#[pyclass(frozen, get_all, module = "bindery")]
pub(crate) struct WriteHealth {
    /// Ledgers that are written now.
    writers: u64,
    /// Those of them that go on without a replica.
    writers_short: u64,
    /// Writers that stopped by themselves.
    writers_failed: u64,
    /// Entries acknowledged by their ack quorum.
    entries: u64,
    /// From an entry's id to this, of every eighth entry.
    latency: Latencies,
    /// Changes of ensembles.
    ensemble_changes: u64,
    /// Copies of confirmed entries that bookies lack.
    copies_missing: u64,
    /// Ledgers with such copies and without a mark.
    ledgers_unmarked: u64,
    /// Copies that bookies got late.
    copies_filled: u64,
    /// Choices that could not be spread as asked.
    placements_unmet: u64,
}

#[pymethods]
impl WriteHealth {
    fn __repr__(&self) -> String {
        format!("<bindery.WriteHealth of {} writers, {} short>", self.writers, self.writers_short)
    }
}

impl From<bindery_client::WriteHealth> for WriteHealth {
    fn from(health: bindery_client::WriteHealth) -> WriteHealth {
        WriteHealth {
            writers: health.writers,
            writers_short: health.writers_short,
            writers_failed: health.writers_failed,
            entries: health.entries,
            latency: health.latency.into(),
            ensemble_changes: health.ensemble_changes,
            copies_missing: health.copies_missing,
            ledgers_unmarked: health.ledgers_unmarked,
            copies_filled: health.copies_filled,
            placements_unmet: health.placements_unmet,
        }
    }
}
