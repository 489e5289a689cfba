//! What a tierer tells of itself, for JSON, tables and metrics.

mod numbers;

pub use self::numbers::{Shown, TierReport};

use bindery_client::BulkCounts;
use bindery_metrics::Series;
use bindery_tiering::catalogue::Requests;
use bindery_types::{EntryId, LedgerId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::Common;
use super::desk::View;
use super::meter::Prices;
use crate::core::measure::{Durations, Stage};
use crate::core::upkeep::{Upkeep, UpkeepStatus};
use crate::core::{Core, Lag, LedgerStatus, Limit, State, Status, Unwatched};

/// How far something is behind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LagReport {
    /// Entries that could be in the tier and are not.
    pub entries: u64,
    /// Their bytes, about.
    pub bytes: u64,
    /// How long the oldest of them could have been.
    pub seconds: f64,
}

/// One ledger.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerReport {
    /// The ledger.
    pub ledger: i64,
    /// `tiered`, `opening`, `waiting`, `due`, `building`, `failing`, `stopped`. Of one that is not watched: `tiered`; `gone`: it was asked for, and does not
    /// exist; `elsewhere`: another tierer moves it; or `unknown`.
    pub state: String,
    /// Why it fails, or is stopped.
    pub why: Option<String>,
    /// Whether it is closed.
    pub is_sealed: bool,
    /// The last entry that may be tiered.
    pub available: Option<i64>,
    /// The last entry in the catalogue.
    pub tiered: Option<i64>,
    /// The last reconciled entries that bookies have, as far as they are known.
    pub bookies: Vec<(String, Option<i64>)>,
    /// How far it is behind.
    pub lag: LagReport,
    /// The name of the tierer that moves it, when that is another one. This one moves it, too, for a minute after it was asked.
    #[serde(default)]
    pub owner: Option<String>,
}

/// How long something took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DurationsReport {
    /// How many.
    pub count: u64,
    /// All of them together.
    pub sum_seconds: f64,
    /// The last one.
    pub last_seconds: f64,
    /// Half of them took no longer.
    pub p50_seconds: f64,
    /// 99 of 100.
    pub p99_seconds: f64,
}

/// A stage of rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageReport {
    /// `read`, `build`, `upload`, `commit`, `update`.
    pub stage: String,
    /// How long rounds spent in it.
    pub took: DurationsReport,
}

/// Requests to the object store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestsReport {
    /// That write.
    pub puts: u64,
    /// That read.
    pub gets: u64,
    /// That list.
    pub lists: u64,
    /// That delete.
    pub deletes: u64,
    /// Bytes written.
    pub bytes_put: u64,
    /// Bytes read.
    pub bytes_got: u64,
    /// For each GiB of entries that was tiered.
    pub per_gib: Option<f64>,
    /// In an hour in which nothing is tiered.
    pub per_idle_hour: Option<f64>,
}

/// What it costs by the provider's list prices, in US dollars. No bill.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CostReport {
    /// Requests since the start.
    pub requests_usd: f64,
    /// Requests for each GiB of entries that was tiered.
    pub per_gib_usd: Option<f64>,
    /// An hour in which nothing is tiered.
    pub idle_hour_usd: Option<f64>,
    /// What the catalogue's objects cost in a month.
    pub storage_month_usd: f64,
}

/// Milliseconds.
fn ms(seconds: f64) -> i64 {
    (seconds * 1000.0) as i64
}

impl DurationsReport {
    /// Its quantiles in milliseconds.
    fn show(&self, labels: &[(&str, &str)], series: &mut Series<'_>) {
        for (quantile, seconds) in [("0.5", self.p50_seconds), ("0.99", self.p99_seconds)] {
            series.signed(&[labels, &[("quantile", quantile)]].concat(), ms(seconds));
        }
    }
}

/// Where numbers are counted.
struct Sources<'a> {
    status: &'a Status,
    upkeep: &'a UpkeepStatus,
    common: &'a Common,
    read: BulkCounts,
    view: &'a View,
}

fn lag_of(lag: Lag) -> LagReport {
    LagReport { entries: lag.entries, bytes: lag.bytes, seconds: lag.age.as_secs_f64() }
}

fn durations(of: &Durations) -> DurationsReport {
    DurationsReport {
        count: of.count(),
        sum_seconds: of.sum().as_secs_f64(),
        last_seconds: of.last().as_secs_f64(),
        p50_seconds: of.quantile(0.5).as_secs_f64(),
        p99_seconds: of.quantile(0.99).as_secs_f64(),
    }
}

/// One ledger. Of one that is not watched little is known.
pub(super) fn ledger(core: &Core, now: Duration, id: LedgerId) -> LedgerReport {
    let (name, owner) = (core.team().name(), core.team().owner(id));
    let owner = Some(owner).filter(|owner| *owner != name).map(ToOwned::to_owned);
    let Some(status) = core.ledger(now, id) else {
        let unwatched = core.unwatched(id);
        return LedgerReport {
            ledger: id.get(),
            state: unwatched.name().to_owned(),
            is_sealed: unwatched == Unwatched::Done,
            owner,
            ..LedgerReport::default()
        };
    };
    LedgerReport { owner, ..watched(status) }
}

fn watched(status: LedgerStatus) -> LedgerReport {
    let why = match &status.state {
        State::Failing(why) => Some(why.clone()),
        State::Stopped { bookie, register } => Some(format!(
            "bookie {bookie} is ahead of the catalogue: it has everything up to entry {register}"
        )),
        State::Tiered | State::Opening | State::Waiting | State::Due | State::Building => None,
    };
    LedgerReport {
        ledger: status.ledger.get(),
        state: status.state.name().to_owned(),
        why,
        is_sealed: status.is_sealed,
        available: status.available.map(EntryId::get),
        tiered: status.tiered.map(EntryId::get),
        bookies: status
            .registers
            .into_iter()
            .map(|(bookie, register)| (bookie.to_string(), register.map(EntryId::get)))
            .collect(),
        lag: lag_of(status.lag),
        owner: None,
    }
}

/// How ledgers are read.
pub(super) struct Reads {
    pub counts: BulkCounts,
    /// Bytes that may be read in a second.
    pub bytes_per_second: Option<u64>,
    /// Whether that is less than configured.
    pub is_slowed_down: bool,
}

pub(super) fn report(
    status: &Status,
    of_upkeep: &Upkeep,
    common: &Common,
    reads: Reads,
    view: &View,
    alarms: Vec<String>,
) -> TierReport {
    const GIB: f64 = 1_073_741_824.0;
    let upkeep = of_upkeep.status();
    let entry_bytes = status.counts.entry_bytes;
    let requests: Requests = common.meter.requests();
    let prices = Prices::of(common.store.url().kind());
    let (gib, idle) = (entry_bytes as f64 / GIB, common.meter.idle_per_hour());
    let requests_usd = prices.requests(&requests);
    let all = (requests.puts + requests.gets + requests.lists + requests.deletes) as f64;
    let per_gib = |sum: f64| (entry_bytes > 0).then(|| sum / gib);
    let (bytes_per_second, slowed_down) = (reads.bytes_per_second, reads.is_slowed_down);
    TierReport {
        store: common.store.url().to_string(),
        cluster: common.cluster.to_string(),
        paused: status.is_paused,
        stopping: status.is_stopping,
        limit: match status.limit {
            Limit::None => None,
            Limit::Stage(stage, share) => Some((stage.name().to_owned(), share)),
        },
        name: status.name.clone(),
        unable: status.unable.clone(),
        no_upkeep: of_upkeep.unable(),
        unreachable: status.unreachable.iter().map(ToString::to_string).collect(),
        crowded: status.is_crowded,
        turn_seconds: status.turn.as_secs_f64(),
        lag: lag_of(status.lag),
        lag_p50_seconds: status.lag_age.0.as_secs_f64(),
        lag_p99_seconds: status.lag_age.1.as_secs_f64(),
        behind: status.behind.iter().cloned().map(watched).collect(),
        interval_seconds: status.interval.as_secs_f64(),
        objects_building: (status.objects_building as u64, status.objects_max as u64),
        bytes_per_second,
        slowed_down,
        stages: Stage::ALL
            .iter()
            .map(|stage| StageReport {
                stage: stage.name().to_owned(),
                took: durations(status.phases.of(*stage)),
            })
            .collect(),
        cycles: durations(&status.cycles),
        lre: durations(&status.lre),
        requests: RequestsReport {
            puts: requests.puts,
            gets: requests.gets,
            lists: requests.lists,
            deletes: requests.deletes,
            bytes_put: requests.bytes_put,
            bytes_got: requests.bytes_got,
            per_gib: per_gib(all),
            per_idle_hour: idle,
        },
        cost: CostReport {
            requests_usd,
            per_gib_usd: per_gib(requests_usd),
            // Without work a tierer only reads.
            idle_hour_usd: idle.map(|requests| requests / 1000.0 * prices.thousand_reads),
            storage_month_usd: view.totals.object_bytes as f64 / GIB * prices.gib_month,
        },
        clock_ahead_ms: view.clock_ahead_ms,
        kept_for: upkeep.kept_for.clone(),
        damaged: upkeep.damaged.clone(),
        orphan_kept: upkeep.orphan_kept.clone(),
        orphan_unreadable: upkeep.orphan_unreadable.clone(),
        deletions_stopped: upkeep.deletions_stopped.clone(),
        upkeep_doubt: upkeep.doubt.clone(),
        upkeep_error: upkeep.last_error.clone(),
        alarms,
        last_error: status.last_error.clone(),
        ..TierReport::counted(&Sources { status, upkeep, common, read: reads.counts, view })
    }
}
