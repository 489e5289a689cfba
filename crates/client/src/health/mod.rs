//! How the bookies are doing, as seen from this process: which replica is asked first, which bookies new ensembles avoid.
//!
//! # Data flow
//! ```text
//! reader --(order of the replicas)--> choice <-- node: pending, latency, state <-- what requests came to
//!                                                  ^-- probe: of those that are not healthy; the registration
//! placement <-- avoided                            '-- writer, recovery: failures
//! extra requests (hedges, retries) <-- allowance     survey (placement): how far away a bookie is --> node
//! ```
//! Everything but `probe` is synchronous and takes the time as an argument.
//!
//! # Invariants (C: replica choice reference)
//! 1. It gives an order and never takes a replica away; quorums, fencing, recovery and what a LAC (last add confirmed)
//!    needs do not know of it (C7, C8, IC19).
//! 2. Guards count the requests under way, so an idle node is at zero (C1, C2). `node`
//! 3. A bookie that fails fast is avoided as soon as one that is silent (C9). `condition`
//! 4. Extra requests are a share of the originals (C5). `allowance`
//! 5. An empty list of the registered bookies changes nothing, and neither does a failure to get one (C12).
//! 6. A node is found once for each version of a ledger's metadata; sending takes neither a lock nor a look-up (C13).
//!
//! # Limits     one node, about 3 KiB, for each bookie that a ledger in use names, or that failed; until it is neither
//! registered nor in use
//!
//! # Not here   a way to tell a bookie that answers probes and fails reads: it changes between healthy and suspect, at the pace of
//! probes

mod allowance;
mod choice;
mod condition;
mod latency;
mod load;
mod node;
mod probe;
mod refusals;
mod rejects;
mod trial;
mod view;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bindery_io::SeededRandom;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, Segment};
use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::allowance::Allowance;
pub(crate) use self::choice::PENDING_MAX;
use self::condition::Event;
use self::condition::LOOKED_FOR;
pub use self::condition::NodeState;
pub(crate) use self::latency::Latency;
use self::load::Line;
use self::node::OPERATIONS;
pub use self::node::{Node, Operation, Pending};
pub(crate) use self::node::{Outcome, count};
pub(crate) use self::probe::{Prober, ask};
pub use self::view::{BookieHealth, BusyBookie, Percentiles, ReadHealth};
use crate::location::Distance;
use crate::options::BOOKIE_QUARANTINE_TIME_DEFAULT;
use crate::transport::BookieError;

/// After this time without an answer a bookie is suspect, and the next replica is asked.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Hedges by entries of the originals.
const HEDGE_SHARE: f64 = 0.1;
/// Retries after errors, by entries of the originals.
const RETRY_SHARE: f64 = 0.2;
/// Retries that are allowed in any minute, however few the originals, and of any size: a client that reads little need not wait.
const RETRIES_FREE: u64 = 20;
/// Bounds of the time after which a hedge is sent.
const HEDGE_AFTER_MIN: Duration = Duration::from_millis(1);
const HEDGE_AFTER_MAX: Duration = Duration::from_secs(2);
const HEDGE_PERCENTILE: f64 = 0.95;
/// With fewer requests a percentile says nothing.
const SAMPLES_MIN: u64 = 20;
/// Up to this many entries of a batch, a hedge waits at least this long.
const BATCH_HEDGES: [(u64, Duration); 5] = [
    (12, Duration::from_millis(8)),
    (20, Duration::from_millis(30)),
    (150, Duration::from_millis(50)),
    (500, Duration::from_millis(100)),
    (u64::MAX, Duration::from_millis(500)),
];
/// How often the registration is read while a bookie is in trouble.
const REFRESH_MIN: Duration = Duration::from_secs(2);
/// For one that is gone, whenever this part of the time since it left has passed ...
const REFRESH_PART: u32 = 20;
/// ... and at least this often.
const REFRESH_MAX: Duration = Duration::from_secs(60);
/// How long a percentile is used before it is computed again.
const PERCENTILE_AGE_MS: u64 = 100;

/// The nodes of the bookies that one version of a ledger's metadata names (invariant 6).
#[derive(Debug)]
pub struct LedgerNodes {
    /// By the first entry of each segment, and by position in it.
    segments: Vec<(EntryId, Vec<Arc<Node>>)>,
}

impl LedgerNodes {
    /// Looks the nodes up, once.
    pub fn new(metadata: &LedgerMetadata, health: &NodeHealth) -> LedgerNodes {
        let segments = metadata.segments().iter();
        let nodes = |segment: &Segment| segment.ensemble.iter().map(|bookie| health.node(bookie)).collect();
        LedgerNodes { segments: segments.map(|segment| (segment.first_entry, nodes(segment))).collect() }
    }

    /// The nodes of the segment that `entry` belongs to, by position in the ensemble; none if there is no segment.
    pub fn ensemble(&self, entry: EntryId) -> &[Arc<Node>] {
        let behind = self.segments.partition_point(|(first, _)| *first <= entry);
        behind.checked_sub(1).map_or(&[], |index| &self.segments[index].1)
    }

    /// The nodes of the last segment.
    pub fn last_ensemble(&self) -> &[Arc<Node>] {
        self.segments.last().map_or(&[], |(_, nodes)| nodes)
    }
}

/// What a transport error says about its bookie.
impl From<&BookieError> for Outcome {
    fn from(error: &BookieError) -> Outcome {
        use bindery_wire::ErrorCode;
        match error {
            BookieError::Refused(ErrorCode::TooManyRequests) => Outcome::Rejected,
            BookieError::Refused(ErrorCode::Io) => Outcome::Failed,
            // Sound answers: there is no such entry, it is fenced, the password is wrong, the operation is unknown.
            BookieError::Refused(_) => Outcome::Declined,
            // It is the client that refuses it.
            BookieError::AnswerTooLarge { .. } => Outcome::Declined,
            BookieError::NotRegistered
            | BookieError::Unreachable(_)
            | BookieError::Lost
            | BookieError::LostUnanswered(_) => Outcome::Unreachable,
            BookieError::TimedOut(_) => Outcome::TimedOut,
            BookieError::Unexpected(_) => Outcome::Failed,
            // The client's own doing: it was closed, or its writer gave up a slow bookie.
            BookieError::Closed | BookieError::Behind(_) | BookieError::Reconnected => Outcome::None,
        }
    }
}

/// The time after which a hedge is sent, and the latencies that it is computed from.
#[derive(Default)]
struct HedgeAfter {
    latency: Latency,
    /// Milliseconds since the start, and the percentile in microseconds: 32 bits each.
    cached: AtomicU64,
}

/// The bookies of a cluster, as one client sees them. See the module.
pub struct NodeHealth {
    origin: Instant,
    /// How long new ensembles avoid a bookie that was found unhealthy.
    quarantine: Duration,
    nodes: RwLock<HashMap<BookieId, Arc<Node>>>,
    /// For ties and shares.
    random: Line<SeededRandom>,
    hedge_after: [HedgeAfter; OPERATIONS],
    pub(crate) hedges: Allowance,
    pub(crate) retries: Allowance,
    fail_open: AtomicU64,
    hedges_won: AtomicU64,
    /// Notified when a bookie is no longer healthy.
    wake_prober: Notify,
}

impl NodeHealth {
    /// Knows no bookie yet. `seed` is that of the random numbers that break ties.
    pub fn new(seed: u64) -> NodeHealth {
        NodeHealth {
            origin: Instant::now(),
            quarantine: BOOKIE_QUARANTINE_TIME_DEFAULT,
            nodes: RwLock::default(),
            random: Line(SeededRandom::new(seed)),
            hedge_after: Default::default(),
            hedges: Allowance::new(HEDGE_SHARE, 0),
            retries: Allowance::new(RETRY_SHARE, RETRIES_FREE),
            fail_open: AtomicU64::new(0),
            hedges_won: AtomicU64::new(0),
            wake_prober: Notify::new(),
        }
    }

    /// Sets how long new ensembles avoid a bookie that was found unhealthy.
    pub(crate) fn with_quarantine(mut self, quarantine: Duration) -> NodeHealth {
        self.quarantine = quarantine;
        self
    }

    /// Time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The node of a bookie, to be kept by those who send to it.
    pub fn node(&self, bookie: &BookieId) -> Arc<Node> {
        if let Some(node) = self.nodes.read().get(bookie) {
            return node.clone();
        }
        let mut nodes = self.nodes.write();
        nodes.entry(bookie.clone()).or_insert_with(|| Arc::new(Node::new(bookie.clone()))).clone()
    }

    /// Notes how far away a bookie is, if it is read from.
    pub(crate) fn is_at(&self, bookie: &BookieId, distance: Distance) {
        if let Some(node) = self.nodes.read().get(bookie) {
            node.is_at(distance);
        }
    }

    /// The order in which to ask `nodes`: indexes into them, every one once. `stays_with` is the ledger, if its readers stay with
    /// one replica.
    pub(crate) fn order<'a>(
        &self,
        nodes: impl Iterator<Item = &'a Node>,
        operation: Operation,
        stays_with: Option<LedgerId>,
    ) -> Vec<usize> {
        let order = choice::order(nodes, operation, self.now(), &self.random.0, stays_with);
        if order.is_fail_open {
            self.fail_open.fetch_add(1, Ordering::Relaxed);
        }
        order.indexes
    }

    /// Takes the outcome of a counted request.
    pub(crate) fn finished(
        &self,
        pending: Pending<'_>,
        node: &Node,
        operation: Operation,
        latency: Duration,
        outcome: Outcome,
    ) {
        let now = self.now();
        if outcome == Outcome::Answered {
            self.hedge_after[operation as usize].latency.record(now, latency);
        }
        node.finished(pending, operation, latency, outcome, now);
        self.look_after(node, outcome);
    }

    /// Takes the outcome of any other request.
    pub(crate) fn note(&self, node: &Node, outcome: Outcome) {
        node.note(outcome, self.now());
        self.look_after(node, outcome);
    }

    /// Notes that a counted request is taking long.
    pub(crate) fn is_late(&self, node: &Node) {
        node.is_late(self.now());
        self.wake_prober.notify_one();
    }

    fn look_after(&self, node: &Node, outcome: Outcome) {
        let is_fine = matches!(outcome, Outcome::Answered | Outcome::Declined);
        // A forgotten one that answers may be registered again.
        if node.needs_care() && (!is_fine || node.state() == NodeState::Forgotten) {
            self.wake_prober.notify_one();
        }
    }

    /// Takes failures of requests that are neither a reader's nor adds: those of recovery, say.
    pub(crate) fn note_failure(&self, bookie: &BookieId, error: &BookieError) {
        let outcome = Outcome::from(error);
        if !matches!(outcome, Outcome::Declined | Outcome::None) {
            self.note(&self.node(bookie), outcome);
        }
    }

    /// The same of an add. One that is refused for want of room counts against the bookie when it happens again.
    pub(crate) fn note_add_failure(&self, bookie: &BookieId, error: &BookieError) {
        self.note_failure(bookie, error);
        if Outcome::from(error) == Outcome::Rejected {
            self.node(bookie).refused_add(self.now());
        }
    }

    /// When to send a hedge for a request of this many entries; `None` as long as too little is known.
    pub(crate) fn hedge_after(&self, operation: Operation, entries: u64) -> Option<Duration> {
        let now = self.now();
        let HedgeAfter { latency, cached } = &self.hedge_after[operation as usize];
        let now_ms = now.as_millis() as u64 & u64::from(u32::MAX);
        let seen = cached.load(Ordering::Relaxed);
        let us = match seen {
            seen if seen != 0 && now_ms.wrapping_sub(seen >> 32) < PERCENTILE_AGE_MS => {
                seen & u64::from(u32::MAX)
            }
            _ => {
                let known = latency.count(now) >= SAMPLES_MIN;
                let percentile = latency.percentile(now, HEDGE_PERCENTILE).filter(|_| known);
                // 0 is unknown.
                let us =
                    percentile.map_or(0, |known| known.clamp(HEDGE_AFTER_MIN, HEDGE_AFTER_MAX).as_micros());
                cached.store(now_ms << 32 | us as u64, Ordering::Relaxed);
                us as u64
            }
        };
        let percentile = (us > 0).then(|| Duration::from_micros(us))?;
        Some(match operation {
            Operation::Read => percentile,
            Operation::BatchRead => {
                let by_size = BATCH_HEDGES.iter().find(|(up_to, _)| entries <= *up_to);
                percentile.max(by_size.map_or(Duration::ZERO, |(_, after)| *after))
            }
        })
    }

    /// A hedge's answer came first.
    pub(crate) fn hedge_won(&self, node: &Node) {
        count(&node.counts.hedges_won);
        self.hedges_won.fetch_add(1, Ordering::Relaxed);
    }

    /// The bookies that new ensembles use only when there are not enough others.
    pub(crate) fn avoided(&self) -> BTreeSet<BookieId> {
        let now = self.now();
        let avoided = self.settled(now).into_iter().filter(|node| node.is_avoided(now, self.quarantine));
        avoided.map(|node| node.bookie().clone()).collect()
    }

    /// Takes the list of all registered bookies, writable or not; an empty one is ignored (invariant 5). Those that it lacks are
    /// forgotten, and their nodes are dropped once nothing uses them.
    pub(crate) fn refresh(&self, members: &BTreeSet<BookieId>) {
        if members.is_empty() {
            return;
        }
        let now = self.now();
        let mut nodes = self.nodes.write();
        nodes.retain(|bookie, node| {
            let is_member = members.contains(bookie);
            node.on(if is_member { Event::Returned } else { Event::Left }, now);
            is_member || Arc::strong_count(node) > 1
        });
    }

    /// The nodes of the bookies to probe.
    fn to_probe(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.settled(self.now());
        nodes.retain(|node| matches!(node.state(), NodeState::Suspect | NodeState::Unhealthy));
        nodes
    }

    /// All nodes, after probations and holds that are over were ended.
    fn settled(&self, now: Duration) -> Vec<Arc<Node>> {
        let nodes: Vec<_> = self.nodes.read().values().cloned().collect();
        nodes.iter().for_each(|node| node.settle(now));
        nodes
    }

    /// How often to read the registration now; `None` if there is nothing to wait for: no probe, no end of a probation or
    /// of a hold, no return. The longer a bookie has been gone, the longer the interval, until the search ends.
    fn refresh_interval(&self) -> Option<Duration> {
        let now = self.now();
        let nodes = self.nodes.read();
        let in_trouble = nodes.values().filter(|node| node.needs_care());
        let intervals = in_trouble.filter_map(|node| match node.gone_for(now) {
            None => Some(REFRESH_MIN),
            Some(gone) if gone < LOOKED_FOR => Some((gone / REFRESH_PART).clamp(REFRESH_MIN, REFRESH_MAX)),
            Some(_) => None,
        });
        intervals.min()
    }
}

impl std::fmt::Debug for NodeHealth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeHealth").field("nodes", &self.nodes.read().values()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn set(names: &[&str]) -> BTreeSet<BookieId> {
        names.iter().map(|name| id(name)).collect()
    }

    /// Its probes are answered, so only the refusals can keep new ledgers away from it.
    #[tokio::test(start_paused = true)]
    async fn new_ensembles_avoid_a_bookie_that_refuses_adds_again_and_come_back_to_it() {
        use bindery_wire::ErrorCode;
        let health = NodeHealth::new(1);
        let full = BookieError::Refused(ErrorCode::TooManyRequests);
        health.note_add_failure(&id("a"), &full);
        health.note_failure(&id("b"), &full);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(health.avoided(), set(&[]));
        health.note_add_failure(&id("a"), &full);
        health.note_failure(&id("b"), &full);
        assert_eq!(health.avoided(), set(&["a"]), "b refused no adds");
        assert_eq!(health.node(&id("a")).state(), NodeState::Healthy, "it is still read from");
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(health.avoided(), set(&[]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_of_members_forgets_those_that_left_and_an_empty_one_changes_nothing() {
        // C12.
        let health = NodeHealth::new(1);
        let (kept, unused) = (health.node(&id("a")), id("b"));
        health.note_failure(&unused, &BookieError::Lost);
        let under_way = kept.begin();
        health.refresh(&BTreeSet::new());
        assert_eq!(kept.state(), NodeState::Healthy);
        assert_eq!(health.avoided(), set(&["b"]));
        health.refresh(&set(&["c"]));
        assert_eq!(kept.state(), NodeState::Forgotten);
        assert_eq!(health.avoided(), set(&["a"]), "b is in nobody's use, and gone");
        assert!(health.to_probe().is_empty(), "nobody probes what is not there");
        health.finished(under_way, &kept, Operation::Read, Duration::ZERO, Outcome::TimedOut);
        assert_eq!(
            (kept.state(), kept.pending()),
            (NodeState::Forgotten, 1),
            "late events finish their counters"
        );
        health.refresh(&set(&["a"]));
        assert_eq!(kept.state(), NodeState::Healthy);
        tokio::time::advance(node::HOLD).await;
        assert!(!health.avoided().contains(&id("a")));
        assert_eq!(kept.pending(), 0);
    }

    /// A bookie that never comes back, of a ledger that is still read.
    #[tokio::test(start_paused = true)]
    async fn a_bookie_that_left_is_looked_for_ever_more_seldom_and_not_for_ever() {
        let health = NodeHealth::new(1);
        let (gone, _other) = (health.node(&id("a")), health.node(&id("b")));
        health.refresh(&set(&["b"]));
        let mut lists = Vec::new();
        while let Some(interval) = health.refresh_interval() {
            lists.push(interval.as_secs());
            tokio::time::advance(interval).await;
            health.refresh(&set(&["b"]));
        }
        assert!(lists.is_sorted() && lists.contains(&60), "{lists:?}");
        assert_eq!(lists[..20], [2; 20], "the first 40 s, in which a restart is to be seen (C10)");
        assert!(health.now() <= LOOKED_FOR + REFRESH_MAX && lists.len() < 120, "{lists:?}");
        // A forgotten bookie answers nevertheless.
        health.finished(gone.begin(), &gone, Operation::Read, Duration::ZERO, Outcome::Answered);
        assert_eq!((gone.state(), health.refresh_interval()), (NodeState::Forgotten, Some(REFRESH_MIN)));
        health.refresh(&set(&["a", "b"]));
        assert_eq!((gone.state(), health.refresh_interval()), (NodeState::Healthy, None));
        // Trouble with another bookie has the registration read as often as before.
        health.refresh(&set(&["b"]));
        tokio::time::advance(LOOKED_FOR / 2).await;
        health.note_failure(&id("b"), &BookieError::Lost);
        assert_eq!(health.refresh_interval(), Some(REFRESH_MIN));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hedge_waits_for_the_percentile_within_bounds() {
        let health = NodeHealth::new(1);
        let node = health.node(&id("a"));
        let record = |operation, ms, count| {
            for _ in 0..count {
                let latency = Duration::from_millis(ms);
                health.finished(node.begin(), &node, operation, latency, Outcome::Answered);
            }
        };
        record(Operation::Read, 40, 10);
        assert_eq!(health.hedge_after(Operation::Read, 1), None, "too little is known");
        record(Operation::Read, 40, 90);
        tokio::time::advance(Duration::from_secs(1)).await;
        let after = health.hedge_after(Operation::Read, 1).unwrap();
        assert!(after >= Duration::from_millis(40) && after <= Duration::from_millis(50), "{after:?}");
        assert_eq!(health.hedge_after(Operation::BatchRead, 1), None, "another kind");
        record(Operation::BatchRead, 0, 100);
        tokio::time::advance(Duration::from_secs(1)).await;
        for (entries, ms) in [(1, 8), (12, 8), (13, 30), (150, 50), (500, 100), (501, 500)] {
            let expected = Some(Duration::from_millis(ms));
            assert_eq!(health.hedge_after(Operation::BatchRead, entries), expected, "{entries}");
        }
        record(Operation::Read, 60_000, 1000);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(health.hedge_after(Operation::Read, 1), Some(HEDGE_AFTER_MAX));
    }
}
