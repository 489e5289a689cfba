//! The flow view: which peers hold which bytes, which wait for what, and which do not take what they asked for. `GET
//! /api/v1/bookie/flow` returns it, and `bindery flow` shows it.
//!
//! # Data flow
//! ```text
//! pools, engine, each connection (short locks, one at a time) -> Top (bounded) -> FlowView -> JSON
//! ```
//!
//! # Invariants
//! 1. It takes nothing of any pool and waits for nobody, so it answers when all of them are full.
//! 2. All connections are counted; the [`CONNECTIONS_MAX`] first by the order asked for are listed, at most.
//!
//! # Limits     [`CONNECTIONS_MAX`]; between [`CONNECTIONS_AT_ONCE`] connections other tasks run

pub use crate::connection::{ConnectionFlow, STALLED_MS};
use crate::shared::Shared;
pub use crate::tenants::{DirectionFlow, TenantFlow};
use crate::yielding::after_all_others;
use bindery_flow::BudgetWaits;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::str::FromStr;

/// Connections listed at most.
pub const CONNECTIONS_MAX: usize = 1000;
/// Connections listed when the request gives no number.
pub const CONNECTIONS_DEFAULT: usize = 50;
/// Connections looked at between two looks at other work.
const CONNECTIONS_AT_ONCE: usize = 128;
/// What the list of connections begins with; the most of it first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sort {
    /// Bytes held of all pools.
    #[default]
    Held,
    /// Time without progress of the peer.
    Stalled,
    /// Reads that wait for their turn.
    Queued,
    /// Adds that are not answered.
    Owed,
    /// Adds since it was opened.
    Adds,
    /// Reads since it was opened.
    Reads,
    /// Bytes received.
    In,
    /// Bytes sent.
    Out,
}

impl Sort {
    /// All of them, in the order in which `bindery flow` goes through them.
    pub const ALL: [Sort; 8] =
        [Sort::Held, Sort::Stalled, Sort::Queued, Sort::Owed, Sort::Adds, Sort::Reads, Sort::In, Sort::Out];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Held => "held",
            Sort::Stalled => "stalled",
            Sort::Queued => "queued",
            Sort::Owed => "owed",
            Sort::Adds => "adds",
            Sort::Reads => "reads",
            Sort::In => "in",
            Sort::Out => "out",
        }
    }

    /// The one after it, round and round.
    pub fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }

    fn key(self, flow: &ConnectionFlow) -> u64 {
        match self {
            Sort::Held => flow.held_bytes,
            Sort::Stalled => flow.progress_ms.map_or(0, |ms| ms + 1),
            Sort::Queued => flow.reads_queued,
            Sort::Owed => flow.adds_owed,
            Sort::Adds => flow.adds,
            Sort::Reads => flow.reads,
            Sort::In => flow.bytes_in,
            Sort::Out => flow.bytes_out,
        }
    }
}

/// Not the name of a [`Sort`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such order: give one of held, stalled, queued, owed, adds, reads, in, out")]
pub struct NoSuchSort;

impl FromStr for Sort {
    type Err = NoSuchSort;

    fn from_str(text: &str) -> Result<Sort, NoSuchSort> {
        Sort::ALL.into_iter().find(|sort| sort.name() == text).ok_or(NoSuchSort)
    }
}

/// One pool of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolFlow {
    /// Its name.
    pub name: String,
    /// All of it.
    pub capacity_bytes: u64,
    /// In use.
    pub used_bytes: u64,
    /// Who waits for some of it, a number.
    pub waiting: u64,
    /// How often somebody had to wait for some of it; of `write`, those that do not any more.
    #[serde(default)]
    pub waits: u64,
    /// How long, together, those have waited that do not any more.
    #[serde(default)]
    pub waited_ms: u64,
}

/// Adds on their way into the write pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionFlow {
    /// Connections that wait for room now.
    pub connections_waiting: u64,
    /// Batches in line, those included whose connection gave up.
    pub batches_waiting: u64,
    /// Bytes of their entries.
    pub bytes_waiting: u64,
    /// Batches of recovery that wait beside the line.
    pub recovery_waiting: u64,
    /// Bytes reserved for those whose turn it is.
    pub reserved_bytes: u64,
    /// Adds in the engine that are not answered.
    pub adds_in_progress: u64,
    /// Adds answered with too-many-requests since the start.
    pub adds_rejected: u64,
}

/// The whole bookie. Counts are since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TotalFlow {
    /// Open connections.
    pub connections: u64,
    /// Those of them that are stalled.
    pub stalled: u64,
    /// Bytes they hold, all of them.
    pub held_bytes: u64,
    /// Adds answered.
    pub adds: u64,
    /// Bytes of entries taken.
    pub add_bytes: u64,
    /// Reads answered.
    pub reads: u64,
    /// Bytes of entries sent.
    pub read_bytes: u64,
    /// Reads that wait for a disk.
    pub disk_reads_queued: u64,
}

/// Connections that are not listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestFlow {
    /// How many.
    pub connections: u64,
    /// Bytes they hold.
    pub held_bytes: u64,
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowView {
    /// Milliseconds since 1970.
    pub now_ms: i64,
    /// Milliseconds of a clock that never goes back, to tell rates from two views.
    pub monotonic_ms: u64,
    /// Why it takes no adds; empty when it does.
    #[serde(default)]
    pub read_only_because: Vec<String>,
    /// By name, in the order of the start-up table.
    pub pools: Vec<PoolFlow>,
    /// Adds on their way in.
    pub admission: AdmissionFlow,
    /// The whole bookie.
    pub totals: TotalFlow,
    /// Those who share the bookie; empty without a file of tenants.
    #[serde(default)]
    pub tenants: Vec<TenantFlow>,
    /// The order of `connections`.
    pub sort: Sort,
    /// The first of them.
    pub connections: Vec<ConnectionFlow>,
    /// The others.
    pub rest: RestFlow,
}

/// Reads that are not answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadsFlow {
    /// All of them.
    pub in_progress: u64,
    /// Those that wait because their peer does not take what was loaded for it, or for bytes for loaded entries.
    pub blocked: u64,
}

/// The first `most` by `sort`, of any number.
struct Top {
    sort: Sort,
    most: usize,
    kept: Vec<ConnectionFlow>,
}

impl Top {
    fn new(sort: Sort, most: usize) -> Top {
        Top { sort, most, kept: Vec::new() }
    }

    fn push(&mut self, flow: ConnectionFlow) {
        self.kept.push(flow);
        if self.kept.len() >= 2 * self.most.max(64) {
            self.shorten();
        }
    }

    fn shorten(&mut self) {
        let sort = self.sort;
        self.kept.sort_by_cached_key(|flow| {
            (
                Reverse(sort.key(flow)),
                Reverse(flow.held_bytes),
                Reverse(flow.adds + flow.reads),
                flow.peer.clone(),
            )
        });
        self.kept.truncate(self.most);
    }

    fn into_first(mut self) -> Vec<ConnectionFlow> {
        self.shorten();
        self.kept
    }
}

/// Looks at everything but why the bookie is read-only, which the caller adds. `most` is cut to [`CONNECTIONS_MAX`].
pub async fn gather(shared: &Shared, sort: Sort, most: usize) -> FlowView {
    let mut top = Top::new(sort, most.min(CONNECTIONS_MAX));
    let metrics = &shared.metrics;
    let mut totals = TotalFlow {
        adds: metrics.add_entry.count(),
        add_bytes: metrics.write_bytes.get(),
        reads: metrics.read_entry.count()
            + metrics.read_entry_fence.count()
            + metrics.read_entry_long_poll.count(),
        read_bytes: metrics.read_bytes.get(),
        disk_reads_queued: shared.io.queued() as u64,
        ..TotalFlow::default()
    };
    let monotonic_ms = shared.clock.monotonic_ns() / 1_000_000;
    let connections = shared.connections.all();
    for some in connections.chunks(CONNECTIONS_AT_ONCE) {
        for connection in some {
            let flow = connection.flow();
            totals.connections += 1;
            totals.stalled += u64::from(flow.stalled_ms().is_some());
            totals.held_bytes += flow.held_bytes;
            top.push(flow);
        }
        after_all_others().await;
    }
    let connections = top.into_first();
    let rest = RestFlow {
        connections: totals.connections - connections.len() as u64,
        held_bytes: totals.held_bytes - connections.iter().map(|flow| flow.held_bytes).sum::<u64>(),
    };
    FlowView {
        now_ms: shared.clock.wall_ms(),
        monotonic_ms,
        read_only_because: Vec::new(),
        pools: pools(shared),
        admission: admission(shared),
        totals,
        tenants: shared.tenants.as_ref().map(|tenants| tenants.view()).unwrap_or_default(),
        sort,
        connections,
        rest,
    }
}

/// Counts the reads of all connections that are not answered.
pub async fn reads(shared: &Shared) -> ReadsFlow {
    let mut reads = ReadsFlow::default();
    for some in shared.connections.all().chunks(CONNECTIONS_AT_ONCE) {
        for connection in some {
            let (queued, loads, is_window_full) = connection.reads_unanswered();
            reads.in_progress += queued + loads;
            reads.blocked += if is_window_full { queued } else { 0 };
        }
        after_all_others().await;
    }
    let pools = &shared.pools;
    let short = pools.outbound.gauge().waiting + pools.outbound_priority.gauge().waiting;
    reads.blocked = (reads.blocked + short as u64).min(reads.in_progress);
    reads
}

fn admission(shared: &Shared) -> AdmissionFlow {
    let (line, metrics) = (shared.engine.admittance(), &shared.metrics);
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    AdmissionFlow {
        connections_waiting: count(metrics.adds_blocked.get()),
        batches_waiting: line.waiting as u64,
        bytes_waiting: line.waiting_cost as u64,
        recovery_waiting: line.urgent as u64,
        reserved_bytes: line.reserved as u64,
        adds_in_progress: count(metrics.adds_in_progress.get()),
        adds_rejected: metrics.add_rejected.get(),
    }
}

/// Every byte pool of the process.
pub(crate) fn pools(shared: &Shared) -> Vec<PoolFlow> {
    let pool =
        |name: &str, capacity_bytes: u64, used_bytes: u64, waiting: u64, waits: BudgetWaits| PoolFlow {
            name: name.to_owned(),
            capacity_bytes,
            used_bytes,
            waiting,
            waits: waits.count,
            waited_ms: waits.waited_ns / 1_000_000,
        };
    let never = BudgetWaits::default();
    let stats = shared.engine.stats();
    let chunk = stats.write_pool_chunk_bytes;
    let blocked = u64::try_from(shared.metrics.adds_blocked.get()).unwrap_or(0);
    let capacity = stats.write_pool_chunks * chunk;
    let waits = shared.metrics.stages.room_waits();
    let mut pools = vec![pool("write", capacity, stats.write_pool_chunks_in_use * chunk, blocked, waits)];
    let gauges = shared.pools.gauges().into_iter().zip(shared.pools.waits());
    pools.extend(gauges.map(|((name, gauge), (_, waits))| {
        pool(name, gauge.capacity, gauge.used, gauge.waiting as u64, waits)
    }));
    let memory = shared.engine.storage_memory();
    let cache = memory.cache.stats();
    pools.push(pool("index", memory.index.capacity(), memory.index.used_in_all(), 0, never));
    pools.push(pool("cache", cache.capacity, cache.held, 0, never));
    pools
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Class;

    fn connection(number: u64) -> ConnectionFlow {
        ConnectionFlow {
            peer: format!("10.0.0.1:{number:05}"),
            protocol: "v2".to_owned(),
            class: Class::Idle,
            open_ms: 0,
            held_bytes: 0,
            inbound_bytes: number % 7,
            inbound_large_bytes: 0,
            outbox_bytes: 0,
            outbound_bytes: 0,
            outbound_priority_bytes: 0,
            window_bytes: 0,
            unsent_bytes: 0,
            reads_queued: number * 37 % 1009,
            loads: 0,
            long_polls: 0,
            adds_owed: 0,
            answer_bytes_owed: 0,
            progress_ms: None,
            is_window_full: false,
            not_read_because: None,
            not_read_ms: None,
            adds: 0,
            reads: 0,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    /// Flow view invariant 2.
    #[test]
    fn of_any_number_the_first_are_kept_in_order() {
        let mut top = Top::new(Sort::Queued, 10);
        for number in 0..10_000 {
            let flow = connection(number);
            top.push(ConnectionFlow { held_bytes: flow.sum_held(), ..flow });
            assert!(top.kept.len() < 200, "bounded");
        }
        let mut all: Vec<_> = (0..10_000).map(connection).collect();
        all.sort_by_key(|flow| (Reverse(flow.reads_queued), Reverse(flow.sum_held()), flow.peer.clone()));
        let first: Vec<_> = top.into_first().into_iter().map(|flow| flow.peer).collect();
        let expected: Vec<_> = all.into_iter().take(10).map(|flow| flow.peer).collect();
        assert_eq!(first, expected);
        let mut none = Top::new(Sort::Held, 0);
        none.push(connection(1));
        assert!(none.into_first().is_empty());
    }

    #[test]
    fn orders_have_names_and_follow_each_other() {
        let mut sort = Sort::default();
        for expected in Sort::ALL {
            assert_eq!((sort, sort.name().parse()), (expected, Ok(expected)));
            let as_json = serde_json::to_string(&sort).unwrap();
            assert_eq!(as_json, format!("\"{}\"", sort.name()));
            sort = sort.next();
        }
        assert_eq!(sort, Sort::default());
        assert_eq!("size".parse::<Sort>(), Err(NoSuchSort));
    }
}
