//! Counts of a client's writes, for monitoring.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::health::{Latency, Percentiles};

/// Counts of a client's writes, since the client was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WriteHealth {
    /// Ledgers that are written now: neither closed, nor stopped by a failure.
    pub writers: u64,
    /// Those of them that go on without a replica until there is a bookie for it; they are marked as under-replicated.
    pub writers_short: u64,
    /// Writers that stopped by themselves: fenced, or too few bookies. Their calls say why. One that was fenced with all its
    /// entries confirmed, and is closed then, is not among them.
    pub writers_failed: u64,
    /// Entries acknowledged by their ack quorum, and so confirmed, unless the ledger has
    /// [deferred sync](crate::CreateOptions::deferred_sync).
    pub entries: u64,
    /// From the moment an entry got its id to this, of the last 5 to 10 s, of every eighth entry of a ledger; `count` is of
    /// those.
    pub latency: Percentiles,
    /// Changes of ensembles that were completed: a bookie failed or was slow and another took its place, one that failed is left
    /// out, or one that was left out is back. A slow one that is left out by itself shows in `writers_short` only.
    pub ensemble_changes: u64,
    /// Copies of confirmed entries that their bookies do not have, as far as is known, and will not get from the writer: one
    /// for each entry and bookie. A copy that arrives later is subtracted again. Their ledgers are marked as
    /// under-replicated, at the latest when they are closed or handed over, but for those of `ledgers_unmarked`.
    pub copies_missing: u64,
    /// Ledgers with such copies that no mark names. While one is written, its writer tries again to mark it; it stays among
    /// them when the mark could not be made before its writer closed, handed over or stopped, or when the writer was dropped.
    pub ledgers_unmarked: u64,
    /// Copies that came late: the bookie was away, or refused, and got them from the writer when it was back.
    pub copies_filled: u64,
    /// Choices of bookies, for new ledgers and for replacements, whose write sets could not be spread over the racks or regions
    /// that the placement asks for. A search that is repeated counts each time.
    pub placements_unmet: u64,
}

/// Of a client; its writers count.
pub(crate) struct WriteCounts {
    pub origin: Instant,
    pub writers: AtomicU64,
    pub writers_short: AtomicU64,
    pub writers_failed: AtomicU64,
    pub entries: AtomicU64,
    pub ensemble_changes: AtomicU64,
    pub copies_missing: AtomicU64,
    pub copies_filled: AtomicU64,
    pub ledgers_unmarked: AtomicU64,
    pub latency: Latency,
}

impl WriteCounts {
    pub fn new() -> WriteCounts {
        WriteCounts {
            origin: Instant::now(),
            writers: AtomicU64::new(0),
            writers_short: AtomicU64::new(0),
            writers_failed: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            ensemble_changes: AtomicU64::new(0),
            copies_missing: AtomicU64::new(0),
            copies_filled: AtomicU64::new(0),
            ledgers_unmarked: AtomicU64::new(0),
            latency: Latency::default(),
        }
    }

    pub fn view(&self, placements_unmet: u64) -> WriteHealth {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        WriteHealth {
            writers: of(&self.writers),
            writers_short: of(&self.writers_short),
            writers_failed: of(&self.writers_failed),
            entries: of(&self.entries),
            latency: self.latency.percentiles(self.origin.elapsed()),
            ensemble_changes: of(&self.ensemble_changes),
            copies_missing: of(&self.copies_missing),
            copies_filled: of(&self.copies_filled),
            ledgers_unmarked: of(&self.ledgers_unmarked),
            placements_unmet,
        }
    }
}
