//! One writer's share in the counts of its client ([`crate::write_counts`]).
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
use std::sync::atomic::Ordering;

use bindery_types::EntryId;
use tokio::time::Instant;

use super::core::WriterCore;
use crate::error::WhyStopped;
use crate::write_counts::WriteCounts;

/// Of so many entries the time of one is taken.
const TIMED_EACH: i64 = 8;

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
