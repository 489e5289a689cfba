//! What a tierer tells of itself, for JSON, tables and metrics.

use std::sync::atomic::Ordering;

use bindery_client::BulkCounts;
use bindery_tiering::catalogue::Requests;
use bindery_types::{EntryId, LedgerId};
use serde::{Deserialize, Serialize};

use super::Common;
use super::desk::View;
use super::meter::Prices;
use crate::core::measure::{Durations, Stage};
use crate::core::upkeep::UpkeepStatus;
use crate::core::{Lag, LedgerStatus, Limit, State, Status};

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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerReport {
    /// The ledger.
    pub ledger: i64,
    /// `tiered`, `opening`, `waiting`, `due`, `building`, `failing`, `stopped`, or `unknown` when it is not watched.
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

/// A tierer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierReport {
    /// The store.
    pub store: String,
    /// The cluster's INSTANCEID.
    pub cluster: String,
    /// Whether tiering is paused.
    pub paused: bool,
    /// Whether the tierer is ending.
    pub stopping: bool,
    /// What holds it up: a stage, or nothing. With the share of the time that it was busy.
    pub limit: Option<(String, f64)>,
    /// Ledgers that are watched.
    pub ledgers_watched: u64,
    /// As many ledgers are watched as may be, and with each there is something to do: the others wait.
    #[serde(default)]
    pub crowded: bool,
    /// Closed ledgers that are in the tier as a whole, and whose bookies know.
    pub ledgers_done: u64,
    /// Ledgers that are stopped, because a bookie is ahead of the catalogue.
    pub ledgers_stopped: u64,
    /// Ledgers that cannot be read at the moment.
    pub ledgers_failing: u64,
    /// All ledgers together; the seconds are the largest.
    pub lag: LagReport,
    /// Seconds of the ledgers that are behind: half of them have less,
    pub lag_p50_seconds: f64,
    /// and 99 of 100.
    pub lag_p99_seconds: f64,
    /// Those that are behind most.
    pub behind: Vec<LedgerReport>,
    /// The wait between rounds.
    pub interval_seconds: f64,
    /// Rounds that began.
    pub rounds: u64,
    /// Times nothing was due.
    pub idle_rounds: u64,
    /// Objects being built, and how many may be.
    pub objects_building: (u64, u64),
    /// Objects committed.
    pub objects: u64,
    /// Their lengths.
    pub object_bytes: u64,
    /// Extents in them.
    pub extents: u64,
    /// Entries in them.
    pub entries: u64,
    /// Bytes of those.
    pub entry_bytes: u64,
    /// Entries that could not be verified.
    pub entries_unverified: u64,
    /// Uploads that failed.
    pub upload_failures: u64,
    /// Ledgers that were left out of an object because they could not be read.
    pub read_failures: u64,
    /// Commits.
    pub commits: u64,
    /// Commits that were sent again.
    pub commit_retries: u64,
    /// Extents that the catalogue dropped: near 0 with one tierer.
    pub corrections: u64,
    /// Objects that it refused.
    pub refused_objects: u64,
    /// Ids reserved.
    pub ids_reserved: u64,
    /// Ids that were not used in time.
    pub ids_expired: u64,
    /// Ledgers that were ever stopped.
    pub stopped_ever: u64,
    /// Times a bookie said that it has too much to do.
    pub pressure: u64,
    /// Bytes that may be read in a second.
    pub bytes_per_second: Option<u64>,
    /// Whether that is less than configured, because of pressure.
    pub slowed_down: bool,
    /// Bytes of entries read.
    pub bytes_read: u64,
    /// Bytes of entries held by the reader.
    pub read_held_bytes: u64,
    /// Damaged copies that were read from another bookie.
    pub damaged_copies: u64,
    /// Requests to bookies with last reconciled entries.
    pub update_requests: u64,
    /// Ledgers in them.
    pub update_ledgers: u64,
    /// Ledgers of those that failed.
    pub update_failures: u64,
    /// Requests without an answer.
    pub update_timeouts: u64,
    /// Requests that took long.
    pub updates_overdue: u64,
    /// Requests in flight.
    pub updates_in_flight: u64,
    /// Ledgers whose ack quorums were told.
    pub reconciled: u64,
    /// Ledgers whose ack quorums were not, in time.
    pub reconciled_late: u64,
    /// Time of rounds by stage.
    pub stages: Vec<StageReport>,
    /// Rounds from their plan to their last update.
    pub cycles: DurationsReport,
    /// Ledgers from the commit to their ack quorums.
    pub lre: DurationsReport,
    /// Requests to the object store.
    pub requests: RequestsReport,
    /// What they cost.
    pub cost: CostReport,
    /// Ledgers in the catalogue.
    pub catalogue_ledgers: u64,
    /// Extents in it.
    pub catalogue_extents: u64,
    /// Bytes of entries in it.
    pub catalogue_bytes: u64,
    /// Objects in it.
    pub catalogue_objects: u64,
    /// Their lengths.
    pub catalogue_object_bytes: u64,
    /// Those of them that nothing refers to.
    pub catalogue_unreferenced_bytes: u64,
    /// Ids that are reserved, or were and have expired.
    pub catalogue_reserved: u64,
    /// The number of its last record.
    pub catalogue_number: u64,
    /// By how much the own clock is ahead of the store's.
    pub clock_ahead_ms: i64,
    /// Objects that nothing refers to, and that wait for their deletion.
    pub unreferenced_objects: u64,
    /// Passes of the upkeep.
    pub upkeep_passes: u64,
    /// Deleted ledgers that were removed from the catalogue.
    pub ledgers_removed: u64,
    /// Objects that were deleted, or were not there any more.
    pub objects_deleted: u64,
    /// Objects that the last pass could not delete.
    pub delete_failures: u64,
    /// Passes that removed no ledger because the metadata store was not believed.
    pub upkeep_doubts: u64,
    /// Objects that took over what was live of others.
    pub rewrites: u64,
    /// Objects of which all that was live was taken over.
    pub objects_rewritten: u64,
    /// Bytes of entries that were.
    pub rewritten_bytes: u64,
    /// Times that objects could not be rewritten; it is tried again.
    pub rewrite_failures: u64,
    /// Rewritten objects that wait until all bookies know where their entries went.
    pub objects_waiting: u64,
    /// Rewritten objects of which all bookies know that.
    pub objects_released: u64,
    /// The reason why one of them waits.
    pub waits_for: Option<String>,
    /// Objects that can be neither rewritten nor let go because they are damaged.
    pub objects_damaged: u64,
    /// One of them, and in which way.
    pub damaged: Option<String>,
    /// Times that all of the bucket was compared with the catalogue.
    pub scan_sweeps: u64,
    /// Objects that were compared.
    pub scan_objects: u64,
    /// Objects without a row that were deleted.
    pub orphans_deleted: u64,
    /// Objects without a row that are not old enough to be deleted.
    pub orphans_waiting: u64,
    /// Objects without a row that are old enough, and kept because somebody may need them.
    pub orphans_kept: u64,
    /// Why one of them is kept.
    pub orphan_kept: Option<String>,
    /// Objects without a row that are kept because they cannot be read.
    pub orphans_unreadable: u64,
    /// One of them, and why.
    pub orphan_unreadable: Option<String>,
    /// Why nothing is deleted at the moment, and what ends that: a doubt about the catalogue.
    pub deletions_stopped: Option<String>,
    /// Objects that the catalogue refers to and the bucket does not have as they were committed.
    pub objects_missing: u64,
    /// Why no ledger is removed from the catalogue at the moment.
    pub upkeep_doubt: Option<String>,
    /// The last thing of the upkeep that did not work.
    pub upkeep_error: Option<String>,
    /// Alarms, the newest last.
    pub alarms: Vec<String>,
    /// The last thing that did not work.
    pub last_error: Option<String>,
}

/// Where metrics go.
pub trait MetricSink {
    /// A number that only grows.
    fn counter(&mut self, name: &str, labels: &[(&str, &str)], value: u64);
    /// A number that goes up and down.
    fn gauge(&mut self, name: &str, labels: &[(&str, &str)], value: i64);
}

impl TierReport {
    /// All of it as metrics.
    pub fn metrics(&self, out: &mut dyn MetricSink) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let ms = |seconds: f64| (seconds * 1000.0) as i64;
        let micro_usd = |usd: f64| (usd * 1e6) as i64;
        out.gauge("bindery_tier_paused", &[], i64::from(self.paused));
        out.gauge("bindery_tier_crowded", &[], i64::from(self.crowded));
        out.gauge("bindery_tier_lag_entries", &[], gauge(self.lag.entries));
        out.gauge("bindery_tier_lag_bytes", &[], gauge(self.lag.bytes));
        let lags = [("0.5", self.lag_p50_seconds), ("0.99", self.lag_p99_seconds), ("1.0", self.lag.seconds)];
        for (quantile, seconds) in lags {
            out.gauge("bindery_tier_lag_ms", &[("quantile", quantile)], ms(seconds));
        }
        let ledgers = [
            ("watched", self.ledgers_watched),
            ("done", self.ledgers_done),
            ("failing", self.ledgers_failing),
            ("stopped", self.ledgers_stopped),
        ];
        for (state, count) in ledgers {
            out.gauge("bindery_tier_ledgers", &[("state", state)], gauge(count));
        }
        for stage in Stage::ALL {
            let is_it = self.limit.as_ref().is_some_and(|(limit, _)| limit == stage.name());
            out.gauge("bindery_tier_limit", &[("stage", stage.name())], i64::from(is_it));
        }
        out.gauge("bindery_tier_interval_ms", &[], ms(self.interval_seconds));
        out.gauge("bindery_tier_objects_building", &[], gauge(self.objects_building.0));
        out.gauge("bindery_tier_updates_in_flight", &[], gauge(self.updates_in_flight));
        out.gauge("bindery_tier_slowed_down", &[], i64::from(self.slowed_down));
        out.gauge("bindery_tier_read_held_bytes", &[], gauge(self.read_held_bytes));
        let counters = [
            ("bindery_tier_rounds", self.rounds),
            ("bindery_tier_idle_rounds", self.idle_rounds),
            ("bindery_tier_objects", self.objects),
            ("bindery_tier_object_bytes", self.object_bytes),
            ("bindery_tier_extents", self.extents),
            ("bindery_tier_entries", self.entries),
            ("bindery_tier_entry_bytes", self.entry_bytes),
            ("bindery_tier_entries_unverified", self.entries_unverified),
            ("bindery_tier_bytes_read", self.bytes_read),
            ("bindery_tier_damaged_copies", self.damaged_copies),
            ("bindery_tier_read_failures", self.read_failures),
            ("bindery_tier_upload_failures", self.upload_failures),
            ("bindery_tier_commits", self.commits),
            ("bindery_tier_commit_retries", self.commit_retries),
            ("bindery_tier_corrections", self.corrections),
            ("bindery_tier_objects_refused", self.refused_objects),
            ("bindery_tier_ids_reserved", self.ids_reserved),
            ("bindery_tier_ids_expired", self.ids_expired),
            ("bindery_tier_ledgers_stopped", self.stopped_ever),
            ("bindery_tier_pressure", self.pressure),
            ("bindery_tier_update_requests", self.update_requests),
            ("bindery_tier_update_ledgers", self.update_ledgers),
            ("bindery_tier_update_failures", self.update_failures),
            ("bindery_tier_update_timeouts", self.update_timeouts),
            ("bindery_tier_updates_overdue", self.updates_overdue),
            ("bindery_tier_reconciled", self.reconciled),
            ("bindery_tier_reconciled_late", self.reconciled_late),
            ("bindery_tier_upkeep_passes", self.upkeep_passes),
            ("bindery_tier_upkeep_doubts", self.upkeep_doubts),
            ("bindery_tier_ledgers_removed", self.ledgers_removed),
            ("bindery_tier_objects_deleted", self.objects_deleted),
            ("bindery_tier_rewrites", self.rewrites),
            ("bindery_tier_objects_rewritten", self.objects_rewritten),
            ("bindery_tier_rewritten_bytes", self.rewritten_bytes),
            ("bindery_tier_rewrite_failures", self.rewrite_failures),
            ("bindery_tier_objects_released", self.objects_released),
            ("bindery_tier_scan_sweeps", self.scan_sweeps),
            ("bindery_tier_scan_objects", self.scan_objects),
            ("bindery_tier_orphans_deleted", self.orphans_deleted),
            ("bindery_tier_store_bytes_put", self.requests.bytes_put),
            ("bindery_tier_store_bytes_got", self.requests.bytes_got),
        ];
        for (name, value) in counters {
            out.counter(name, &[], value);
        }
        let requests = [
            ("put", self.requests.puts),
            ("get", self.requests.gets),
            ("list", self.requests.lists),
            ("delete", self.requests.deletes),
        ];
        for (kind, count) in requests {
            out.counter("bindery_tier_store_requests", &[("kind", kind)], count);
        }
        for stage in &self.stages {
            out.counter(
                "bindery_tier_stage_ms",
                &[("stage", &stage.stage)],
                ms(stage.took.sum_seconds) as u64,
            );
        }
        for stage in &self.stages {
            for (quantile, seconds) in [("0.5", stage.took.p50_seconds), ("0.99", stage.took.p99_seconds)] {
                let labels = [("stage", stage.stage.as_str()), ("quantile", quantile)];
                out.gauge("bindery_tier_stage_round_ms", &labels, ms(seconds));
            }
        }
        for (quantile, seconds) in [("0.5", self.lre.p50_seconds), ("0.99", self.lre.p99_seconds)] {
            out.gauge("bindery_tier_lre_ms", &[("quantile", quantile)], ms(seconds));
        }
        for (quantile, seconds) in [("0.5", self.cycles.p50_seconds), ("0.99", self.cycles.p99_seconds)] {
            out.gauge("bindery_tier_cycle_ms", &[("quantile", quantile)], ms(seconds));
        }
        out.gauge("bindery_tier_cost_requests_micro_usd", &[], micro_usd(self.cost.requests_usd));
        out.gauge("bindery_tier_cost_storage_month_micro_usd", &[], micro_usd(self.cost.storage_month_usd));
        out.gauge("bindery_tier_catalogue_ledgers", &[], gauge(self.catalogue_ledgers));
        out.gauge("bindery_tier_catalogue_extents", &[], gauge(self.catalogue_extents));
        out.gauge("bindery_tier_catalogue_objects", &[], gauge(self.catalogue_objects));
        out.gauge("bindery_tier_catalogue_object_bytes", &[], gauge(self.catalogue_object_bytes));
        out.gauge("bindery_tier_catalogue_unreferenced_bytes", &[], gauge(self.catalogue_unreferenced_bytes));
        out.gauge("bindery_tier_catalogue_unreferenced_objects", &[], gauge(self.unreferenced_objects));
        out.gauge("bindery_tier_objects_waiting_for_bookies", &[], gauge(self.objects_waiting));
        out.gauge("bindery_tier_objects_damaged", &[], gauge(self.objects_damaged));
        out.gauge("bindery_tier_orphans_waiting", &[], gauge(self.orphans_waiting));
        out.gauge("bindery_tier_orphans_kept", &[], gauge(self.orphans_kept));
        out.gauge("bindery_tier_orphans_unreadable", &[], gauge(self.orphans_unreadable));
        out.gauge("bindery_tier_deletions_stopped", &[], i64::from(self.deletions_stopped.is_some()));
        out.gauge("bindery_tier_objects_missing", &[], gauge(self.objects_missing));
        out.gauge("bindery_tier_delete_failures", &[], gauge(self.delete_failures));
        out.gauge("bindery_tier_catalogue_reserved_ids", &[], gauge(self.catalogue_reserved));
        out.gauge("bindery_tier_alarms", &[], gauge(self.alarms.len() as u64));
    }
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

/// One ledger; one that is not watched may be done.
pub(super) fn ledger(id: LedgerId, found: Option<LedgerStatus>, is_done: bool) -> LedgerReport {
    let Some(status) = found else {
        return LedgerReport {
            ledger: id.get(),
            state: if is_done { State::Tiered.name() } else { "unknown" }.to_owned(),
            why: None,
            is_sealed: is_done,
            available: None,
            tiered: None,
            bookies: Vec::new(),
            lag: LagReport::default(),
        };
    };
    let why = match &status.state {
        State::Failing(why) => Some(why.clone()),
        State::Stopped { bookie, register } => Some(format!(
            "bookie {bookie} is ahead of the catalogue: it has everything up to entry {register}"
        )),
        State::Tiered | State::Opening | State::Waiting | State::Due | State::Building => None,
    };
    LedgerReport {
        ledger: id.get(),
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
    upkeep: &UpkeepStatus,
    common: &Common,
    reads: Reads,
    view: &View,
    alarms: Vec<String>,
) -> TierReport {
    let Reads { counts: read, bytes_per_second, is_slowed_down } = reads;
    const GIB: f64 = 1_073_741_824.0;
    let Status { counts, updates, .. } = status;
    let requests: Requests = common.meter.requests();
    let prices = Prices::of(common.store.url().kind());
    let (gib, idle) = (counts.entry_bytes as f64 / GIB, common.meter.idle_per_hour());
    let requests_usd = prices.requests(&requests);
    let all = (requests.puts + requests.gets + requests.lists + requests.deletes) as f64;
    let per_gib = |sum: f64| (counts.entry_bytes > 0).then(|| sum / gib);
    TierReport {
        store: common.store.url().to_string(),
        cluster: common.cluster.to_string(),
        paused: status.is_paused,
        stopping: status.is_stopping,
        limit: match status.limit {
            Limit::None => None,
            Limit::Stage(stage, share) => Some((stage.name().to_owned(), share)),
        },
        ledgers_watched: status.watched,
        crowded: status.is_crowded,
        ledgers_done: status.done,
        ledgers_stopped: status.stopped,
        ledgers_failing: status.failing,
        lag: lag_of(status.lag),
        lag_p50_seconds: status.lag_age.0.as_secs_f64(),
        lag_p99_seconds: status.lag_age.1.as_secs_f64(),
        behind: status.behind.iter().map(|of| ledger(of.ledger, Some(of.clone()), false)).collect(),
        interval_seconds: status.interval.as_secs_f64(),
        rounds: counts.rounds,
        idle_rounds: counts.idle_rounds,
        objects_building: (status.objects_building as u64, status.objects_max as u64),
        objects: counts.objects,
        object_bytes: counts.object_bytes,
        extents: counts.extents,
        entries: counts.entries,
        entry_bytes: counts.entry_bytes,
        entries_unverified: common.unverified.load(Ordering::Relaxed),
        upload_failures: counts.upload_failures,
        read_failures: counts.read_failures,
        commits: counts.commits,
        commit_retries: counts.commit_retries,
        corrections: counts.corrections,
        refused_objects: counts.refused_objects,
        ids_reserved: counts.reserved,
        ids_expired: counts.expired,
        stopped_ever: counts.stopped,
        pressure: counts.pressure,
        bytes_per_second,
        slowed_down: is_slowed_down,
        bytes_read: read.bytes,
        read_held_bytes: read.held_bytes,
        damaged_copies: read.damaged_copies,
        update_requests: updates.requests,
        update_ledgers: updates.ledgers,
        update_failures: updates.failures,
        update_timeouts: updates.timeouts,
        updates_overdue: updates.overdue,
        updates_in_flight: status.updates_in_flight as u64,
        reconciled: updates.reconciled,
        reconciled_late: updates.late,
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
        catalogue_ledgers: view.totals.ledgers,
        catalogue_extents: view.totals.extents,
        catalogue_bytes: view.totals.bytes,
        catalogue_objects: view.totals.objects,
        catalogue_object_bytes: view.totals.object_bytes,
        catalogue_unreferenced_bytes: view.totals.unreferenced_bytes,
        catalogue_reserved: view.totals.reserved,
        catalogue_number: view.position.number,
        clock_ahead_ms: view.clock_ahead_ms,
        unreferenced_objects: view.totals.unreferenced,
        upkeep_passes: upkeep.counts.passes,
        ledgers_removed: upkeep.counts.ledgers_removed,
        objects_deleted: upkeep.counts.objects_deleted,
        delete_failures: upkeep.counts.delete_failures,
        upkeep_doubts: upkeep.counts.doubts,
        rewrites: upkeep.counts.rewrites,
        objects_rewritten: upkeep.counts.objects_rewritten,
        rewritten_bytes: upkeep.counts.rewritten_bytes,
        rewrite_failures: upkeep.counts.rewrite_failures,
        objects_waiting: upkeep.objects_waiting,
        objects_released: upkeep.counts.objects_released,
        waits_for: upkeep.waits_for.clone(),
        objects_damaged: upkeep.objects_damaged,
        damaged: upkeep.damaged.clone(),
        scan_sweeps: upkeep.scan.sweeps,
        scan_objects: upkeep.scan.objects,
        orphans_deleted: upkeep.scan.orphans_deleted,
        orphans_waiting: upkeep.scan.orphans_waiting,
        orphans_kept: upkeep.scan.orphans_kept,
        orphan_kept: upkeep.orphan_kept.clone(),
        orphans_unreadable: upkeep.scan.orphans_unreadable,
        orphan_unreadable: upkeep.orphan_unreadable.clone(),
        deletions_stopped: upkeep.deletions_stopped.clone(),
        objects_missing: upkeep.scan.missing,
        upkeep_doubt: upkeep.doubt.clone(),
        upkeep_error: upkeep.last_error.clone(),
        alarms,
        last_error: status.last_error.clone(),
    }
}
