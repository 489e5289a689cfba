//! What health knows, for those who watch.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bindery_types::BookieId;

use super::choice::PENDING_MAX;
use super::latency::Latency;
use super::node::Operation;
use super::{NodeHealth, NodeState};

/// Latencies of the last 5 to 10 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Percentiles {
    /// Answers.
    pub count: u64,
    /// Their mean.
    pub mean: Duration,
    /// Half of them took no longer.
    pub p50: Duration,
    /// 95 of 100.
    pub p95: Duration,
    /// 99 of 100.
    pub p99: Duration,
}

/// One bookie, as this client sees it. Counts are since it is known to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BookieHealth {
    /// The bookie.
    pub bookie: BookieId,
    /// How it does.
    pub state: NodeState,
    /// How often that changed.
    pub transitions: u64,
    /// Whether new ensembles avoid it: it is not healthy, or was found unhealthy lately.
    pub is_avoided: bool,
    /// Reads under way, and those that still count after a timeout.
    pub pending: u64,
    /// Whether these are so many that other replicas are preferred.
    pub is_blocked: bool,
    /// Reads sent to it: also hedges, retries and what was not answered, but no probes.
    pub reads_sent: u64,
    /// Reads answered.
    pub answered: u64,
    /// Latencies of reads of one entry.
    pub reads: Percentiles,
    /// Latencies of reads of runs of entries.
    pub batch_reads: Percentiles,
    /// Requests without an answer in time.
    pub timeouts: u64,
    /// Requests that found no connection, or lost it.
    pub unreachable: u64,
    /// Errors that it answered, and answers that made no sense.
    pub errors: u64,
    /// Requests that it refused because of their number.
    pub rejected: u64,
    /// The share of reads, in per cent, that goes elsewhere because of these.
    pub reject_percent: u8,
    /// Entries that it should have and said it had not.
    pub missing_copies: u64,
    /// Probes answered.
    pub probes_answered: u64,
    /// Probes that were not.
    pub probes_failed: u64,
    /// Hedges sent to it.
    pub hedges_sent: u64,
    /// Hedges sent to it that were answered first.
    pub hedges_won: u64,
    /// Why it last could not be reached, or failed; `None` if it never did.
    pub last_error: Option<String>,
}

impl BookieHealth {
    /// Of a healthy bookie, with all counts at zero: for tests of programs that show it.
    pub fn new(bookie: BookieId) -> BookieHealth {
        BookieHealth {
            bookie,
            state: NodeState::Healthy,
            transitions: 0,
            is_avoided: false,
            pending: 0,
            is_blocked: false,
            reads_sent: 0,
            answered: 0,
            reads: Percentiles::default(),
            batch_reads: Percentiles::default(),
            timeouts: 0,
            unreachable: 0,
            errors: 0,
            rejected: 0,
            reject_percent: 0,
            missing_copies: 0,
            probes_answered: 0,
            probes_failed: 0,
            hedges_sent: 0,
            hedges_won: 0,
            last_error: None,
        }
    }
}

/// A bookie that said "too many requests" of late.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BusyBookie {
    /// Its id.
    pub bookie: BookieId,
    /// How long ago it last said so.
    pub since: Duration,
    /// How often it said so since this client knows it.
    pub refusals: u64,
}

/// Reads of a client that were sent to more than one replica, and those that found none well. Counts are since the client
/// was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReadHealth {
    /// Hedges sent: reads sent to a second replica because the first took long.
    pub hedges_sent: u64,
    /// Those answered before the first replica.
    pub hedges_won: u64,
    /// Hedges not sent because there were too many.
    pub hedges_refused: u64,
    /// Entries that hedges may ask for in this minute.
    pub hedges_left: u64,
    /// Reads sent to another replica after an error or a timeout.
    pub retries: u64,
    /// Moments at which such a read had to wait, because there were too many.
    pub retries_delayed: u64,
    /// Entries that retries may ask for in this minute; one for each of those that are free.
    pub retries_left: u64,
    /// Reads for which no replica was well, so that the least bad was asked.
    pub fail_open: u64,
    /// After how long a read of one entry is hedged; `None` while too little is known.
    pub hedge_after: Option<Duration>,
}

impl Latency {
    /// Those of the last 5 to 10 s.
    pub(crate) fn percentiles(&self, now: Duration) -> Percentiles {
        let of = |share| self.percentile(now, share).unwrap_or_default();
        Percentiles {
            count: self.count(now),
            mean: self.mean(now).unwrap_or_default(),
            p50: of(0.5),
            p95: of(0.95),
            p99: of(0.99),
        }
    }
}

impl NodeHealth {
    /// All bookies that this client knows, sorted by id.
    pub fn bookies(&self) -> Vec<BookieHealth> {
        let now = self.now();
        let mut views: Vec<BookieHealth> = self
            .settled(now)
            .iter()
            .map(|node| {
                let (counts, pending) = (&node.counts, node.pending());
                BookieHealth {
                    bookie: node.bookie().clone(),
                    state: node.state(),
                    transitions: node.transitions(),
                    is_avoided: node.is_avoided(now, self.quarantine),
                    pending,
                    is_blocked: pending >= PENDING_MAX,
                    reads_sent: counts.reads_sent.load(Ordering::Relaxed),
                    answered: node.answered(),
                    reads: node.latency(Operation::Read).percentiles(now),
                    batch_reads: node.latency(Operation::BatchRead).percentiles(now),
                    timeouts: counts.timeouts.load(Ordering::Relaxed),
                    unreachable: counts.unreachable.load(Ordering::Relaxed),
                    errors: counts.errors.load(Ordering::Relaxed),
                    rejected: counts.rejected.load(Ordering::Relaxed),
                    reject_percent: (node.reject_ratio(now) * 100.0) as u8,
                    missing_copies: counts.missing_copies.load(Ordering::Relaxed),
                    probes_answered: counts.probes_answered.load(Ordering::Relaxed),
                    probes_failed: counts.probes_failed.load(Ordering::Relaxed),
                    hedges_sent: counts.hedges_sent.load(Ordering::Relaxed),
                    hedges_won: counts.hedges_won.load(Ordering::Relaxed),
                    last_error: node.last_error(),
                }
            })
            .collect();
        views.sort_by(|a, b| a.bookie.cmp(&b.bookie));
        views
    }

    /// Those that said "too many requests" within `within`, sorted by id.
    pub fn busy(&self, within: Duration) -> Vec<BusyBookie> {
        let now = self.now();
        let nodes = self.nodes.read();
        let busy = nodes.values().filter_map(|node| {
            let since = node.since_rejected(now).filter(|since| *since < within)?;
            let refusals = node.counts.rejected.load(Ordering::Relaxed);
            Some(BusyBookie { bookie: node.bookie().clone(), since, refusals })
        });
        let mut busy: Vec<_> = busy.collect();
        busy.sort_by(|a, b| a.bookie.cmp(&b.bookie));
        busy
    }

    /// What became of this client's reads.
    pub fn reads(&self) -> ReadHealth {
        let now = self.now();
        ReadHealth {
            hedges_sent: self.hedges.taken(),
            hedges_won: self.hedges_won.load(Ordering::Relaxed),
            hedges_refused: self.hedges.refused(),
            hedges_left: self.hedges.left(now),
            retries: self.retries.taken(),
            retries_delayed: self.retries.refused(),
            retries_left: self.retries.left(now),
            fail_open: self.fail_open.load(Ordering::Relaxed),
            hedge_after: self.hedge_after(Operation::Read, 1),
        }
    }
}
