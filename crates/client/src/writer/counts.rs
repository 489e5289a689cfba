//! What became of a client's writes, for those who watch.
//!
//! # Invariants
//! 1. A writer takes its share of the gauges back when it ends: with no writer left they are 0. Copies that are
//!    missing, and ledgers without a mark, outlive their writers.
//! 2. Every entry is counted once, when it is acknowledged; of every [`TIMED_EACH`]th the time is taken, by its id, so that a
//!    stall shows with all the entries it held up.
//!
//! # Limits     24 bytes for each timed entry in flight

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bindery_types::EntryId;
use tokio::time::Instant;

use super::core::WriterCore;
use crate::error::WhyStopped;
use crate::health::{Latency, Percentiles};

/// Of so many entries the time of one is taken.
const TIMED_EACH: i64 = 8;

/// What became of a client's writes. Counts are since the client was made.
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

/// Of a client.
pub(crate) struct WriteCounts {
    origin: Instant,
    writers: AtomicU64,
    writers_short: AtomicU64,
    writers_failed: AtomicU64,
    entries: AtomicU64,
    ensemble_changes: AtomicU64,
    copies_missing: AtomicU64,
    copies_filled: AtomicU64,
    ledgers_unmarked: AtomicU64,
    latency: Latency,
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

/// One writer's counts so far.
pub(super) struct Counting {
    of_client: Arc<WriteCounts>,
    acknowledged: Option<EntryId>,
    ensemble_number: u64,
    copies_missing: u64,
    copies_filled: u64,
    is_unmarked: bool,
    is_short: bool,
    is_over: bool,
    /// When entries got their ids.
    timed: VecDeque<(EntryId, Instant)>,
}

impl Counting {
    pub fn new(of_client: Arc<WriteCounts>, core: &WriterCore) -> Counting {
        of_client.writers.fetch_add(1, Ordering::Relaxed);
        Counting {
            of_client,
            acknowledged: core.acknowledged(),
            ensemble_number: core.ensemble_number(),
            copies_missing: 0,
            copies_filled: 0,
            is_unmarked: false,
            is_short: false,
            is_over: false,
            timed: VecDeque::new(),
        }
    }

    /// An entry got its id.
    pub fn pushed(&mut self, entry: EntryId) {
        if entry.get() % TIMED_EACH == 0 {
            self.timed.push_back((entry, Instant::now()));
        }
    }

    /// The core was changed.
    pub fn look(&mut self, core: &WriterCore) {
        let counts = &*self.of_client;
        let acknowledged = core.acknowledged();
        if acknowledged > self.acknowledged {
            let entries = EntryId::to_wire(acknowledged) - EntryId::to_wire(self.acknowledged);
            counts.entries.fetch_add(entries as u64, Ordering::Relaxed);
            self.acknowledged = acknowledged;
            self.take_times(acknowledged);
        }
        let counts = &*self.of_client;
        let changes = core.ensemble_number() - self.ensemble_number;
        if changes > 0 {
            counts.ensemble_changes.fetch_add(changes, Ordering::Relaxed);
            self.ensemble_number = core.ensemble_number();
        }
        let (missing, filled) = core.copies_missing_and_filled();
        // Fewer when one came late: additions wrap around.
        counts.copies_missing.fetch_add(missing.wrapping_sub(self.copies_missing), Ordering::Relaxed);
        counts.copies_filled.fetch_add(filled - self.copies_filled, Ordering::Relaxed);
        (self.copies_missing, self.copies_filled) = (missing, filled);
        let change = u64::from(core.is_unmarked()).wrapping_sub(u64::from(self.is_unmarked));
        counts.ledgers_unmarked.fetch_add(change, Ordering::Relaxed);
        self.is_unmarked = core.is_unmarked();
        match core.stopped().map(|stopped| stopped.why) {
            None => self.is_short(core.is_short() && !self.is_over),
            // It may still be closed in good order (`WriterCore::begin_close`).
            Some(WhyStopped::Fenced) if !core.has_unconfirmed() => {}
            Some(why) => self.end(has_failed(&why)),
        }
    }

    /// The writer is dropped: as [`look`](Self::look), and nothing follows.
    pub fn leave(&mut self, core: &WriterCore) {
        self.look(core);
        self.end(core.stopped().is_some_and(|stopped| has_failed(&stopped.why)));
    }

    fn take_times(&mut self, acknowledged: Option<EntryId>) {
        let over = self.timed.partition_point(|(entry, _)| Some(*entry) <= acknowledged);
        if over == 0 {
            return;
        }
        let now = Instant::now();
        for (_, since) in self.timed.drain(..over) {
            let counts = &self.of_client;
            counts.latency.record(now.duration_since(counts.origin), now.duration_since(since));
        }
    }

    fn is_short(&mut self, is_short: bool) {
        match (self.is_short, is_short) {
            (false, true) => self.of_client.writers_short.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.of_client.writers_short.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
        self.is_short = is_short;
    }

    fn end(&mut self, has_failed: bool) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.is_short(false);
        self.of_client.writers.fetch_sub(1, Ordering::Relaxed);
        self.of_client.writers_failed.fetch_add(u64::from(has_failed), Ordering::Relaxed);
    }
}

fn has_failed(why: &WhyStopped) -> bool {
    !matches!(why, WhyStopped::Closing | WhyStopped::ClientClosed)
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.end(false);
    }
}
