//! Each number of a tierer in one row: its name in JSON, its metric with help, where it is counted, and how a terminal shows it.

use super::{CostReport, DurationsReport, LagReport, LedgerReport, RequestsReport, StageReport};
use super::{Sources, ms};
use crate::core::measure::Stage;
use bindery_metrics::{Kind, Row, Table};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;

/// A number as a terminal shows it.
pub struct Shown {
    /// On which line.
    pub line: &'static str,
    /// In which words: `{}` stands for the number, `{size}` for the number as a size, `{rate}` for what a second adds to that.
    pub words: &'static str,
    /// The number.
    pub of: fn(&TierReport) -> u64,
}

macro_rules! report {
    (
        $(#[$meta:meta])*
        $name:ident from $of:ident: &$sources:ident
        metrics {
            $($number:ident: $kind:ident $metric:literal $help:literal = $from:expr
                $(=> $line:ident $words:literal)?;)*
        }
        others {
            $($other:ident: $about:literal = $other_from:expr $(=> $other_line:ident $other_words:literal)?;)*
        }
        by hand { $($(#[$hand_meta:meta])* $hand:ident: $type:ty,)* }
        rows { $($row:expr),* $(,)? }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(#[doc = $help] pub $number: u64,)*
            $(#[doc = $about] pub $other: u64,)*
            $($(#[$hand_meta])* pub $hand: $type,)*
        }

        impl $name {
            /// A report with its numbers alone. The caller fills in the other fields.
            pub(super) fn counted($of: &$sources<'_>) -> $name {
                $name {
                    $($number: $from,)*
                    $($other: $other_from,)*
                    ..$name::default()
                }
            }

            /// Its metrics.
            pub const TABLE: Table<$name> = Table::new(&[
                $(Row::$kind($metric, $help, |report: &$name| report.$number),)*
                $($row,)*
            ]);

            /// The numbers that a terminal shows, each on its line, in this order.
            pub const SHOWN: &[Shown] = &[
                $($(Shown { line: stringify!($line), words: $words, of: |report| report.$number },)?)*
                $($(Shown { line: stringify!($other_line), words: $other_words, of: |report| report.$other },)?)*
            ];
        }
    };
}

report! {
    /// A tierer.
    TierReport from of: &Sources
    metrics {
        entries: counter "bindery_tier_entries" "Entries in committed objects."
            = of.status.counts.entries => moved "{} entries";
        entry_bytes: counter "bindery_tier_entry_bytes" "Bytes of entries in committed objects."
            = of.status.counts.entry_bytes => moved "{size}{rate}";
        objects: counter "bindery_tier_objects" "Objects committed."
            = of.status.counts.objects => moved "{} objects";
        object_bytes: counter "bindery_tier_object_bytes" "Lengths of committed objects."
            = of.status.counts.object_bytes;
        extents: counter "bindery_tier_extents" "Extents in committed objects."
            = of.status.counts.extents => moved "{} extents";
        rounds: counter "bindery_tier_rounds" "Rounds that began."
            = of.status.counts.rounds => moved "{} rounds";
        idle_rounds: counter "bindery_tier_idle_rounds" "Times nothing was due."
            = of.status.counts.idle_rounds;
        entries_unverified: counter "bindery_tier_entries_unverified" "Entries that could not be verified."
            = of.common.unverified.load(Ordering::Relaxed);
        updates_in_flight: gauge "bindery_tier_updates_in_flight" "Requests to bookies in flight."
            = of.status.updates_in_flight as u64 => now "{} updates in flight";
        bytes_read: counter "bindery_tier_bytes_read" "Bytes of entries read from bookies."
            = of.read.bytes => read "{size}{rate}";
        read_held_bytes: gauge "bindery_tier_read_held_bytes" "Bytes of entries held by the reader."
            = of.read.held_bytes => read "{size} held";
        damaged_copies: counter "bindery_tier_damaged_copies" "Damaged copies that were read from another bookie."
            = of.read.damaged_copies;
        pressure: counter "bindery_tier_pressure" "Times a bookie said that it has too much to do."
            = of.status.counts.pressure;
        update_requests: counter "bindery_tier_update_requests" "Requests to bookies with last reconciled entries."
            = of.status.updates.requests => updates "{} requests";
        update_ledgers: counter "bindery_tier_update_ledgers" "Ledgers in requests with last reconciled entries."
            = of.status.updates.ledgers => updates "{} ledgers in them";
        update_failures: counter "bindery_tier_update_failures" "Ledgers of such requests that failed."
            = of.status.updates.failures => updates "{} failed";
        update_timeouts: counter "bindery_tier_update_timeouts" "Such requests without an answer."
            = of.status.updates.timeouts => updates "{} without an answer";
        updates_overdue: counter "bindery_tier_updates_overdue" "Such requests that took long."
            = of.status.updates.overdue;
        reconciled: counter "bindery_tier_reconciled" "Ledgers whose ack quorums were told."
            = of.status.updates.reconciled => updates "{} reconciled";
        reconciled_late: counter "bindery_tier_reconciled_late" "Ledgers whose ack quorums were not told in time."
            = of.status.updates.late => updates "{} late";
        bookies_unreachable: gauge "bindery_tier_bookies_unreachable"
            "Registered bookies that did not answer this tierer's last requests."
            = of.status.unreachable.len() as u64;
        tierers: gauge "bindery_tier_tierers" "Tierers that share the ledgers, this one included."
            = of.status.tierers => share "{} tierers";
        ledgers_own: gauge "bindery_tier_ledgers_own" "Ledgers of the last listing that this tierer moves."
            = of.status.own => share "{} are this one's";
        ledgers_waiting: gauge "bindery_tier_ledgers_waiting"
            "Ledgers of this tierer that wait for a look, and count in no lag."
            = of.status.waiting => ledgers "{} wait for a look";
        handed_over: counter "bindery_tier_ledgers_handed_over" "Times a ledger was left to another tierer."
            = of.status.counts.handed_over;
        commits: counter "bindery_tier_commits" "Commits to the catalogue that were answered."
            = of.status.counts.commits;
        upload_failures: counter "bindery_tier_upload_failures" "Uploads that failed."
            = of.status.counts.upload_failures => trouble "{} uploads failed";
        read_failures: counter "bindery_tier_read_failures"
            "Ledgers that were left out of an object because they could not be read."
            = of.status.counts.read_failures => trouble "{} ledgers left out";
        commit_retries: counter "bindery_tier_commit_retries" "Commits that were sent again."
            = of.status.counts.commit_retries => trouble "{} commits sent again";
        corrections: counter "bindery_tier_corrections" "Extents that the catalogue dropped: near 0 while tierers neither come nor go."
            = of.status.counts.corrections => trouble "{} extents not taken";
        refused_objects: counter "bindery_tier_objects_refused" "Objects that the catalogue refused."
            = of.status.counts.refused_objects => trouble "{} objects not taken";
        delete_failures: gauge "bindery_tier_delete_failures" "Objects that the last pass of the upkeep could not delete."
            = of.upkeep.counts.delete_failures => trouble "{} objects could not be deleted, and are tried again";
        rewrite_failures: counter "bindery_tier_rewrite_failures"
            "Times that objects could not be rewritten; it is tried again."
            = of.upkeep.counts.rewrite_failures => trouble "{} rewrites failed, and are repeated";
        ids_reserved: counter "bindery_tier_ids_reserved" "Ids of objects that were reserved."
            = of.status.counts.reserved;
        ids_expired: counter "bindery_tier_ids_expired" "Reserved ids that were not used in time."
            = of.status.counts.expired;
        stopped_ever: counter "bindery_tier_ledgers_stopped"
            "Ledgers that were ever stopped, because a bookie was ahead of the catalogue."
            = of.status.counts.stopped;
        catalogue_ledgers: gauge "bindery_tier_catalogue_ledgers" "Ledgers in the catalogue."
            = of.view.totals.ledgers => catalogue "{} ledgers";
        catalogue_extents: gauge "bindery_tier_catalogue_extents" "Extents in the catalogue."
            = of.view.totals.extents => catalogue "{} extents";
        catalogue_objects: gauge "bindery_tier_catalogue_objects" "Objects in the catalogue."
            = of.view.totals.objects => catalogue "{} objects";
        catalogue_object_bytes: gauge "bindery_tier_catalogue_object_bytes" "Lengths of the objects in the catalogue."
            = of.view.totals.object_bytes => catalogue "{size} long";
        catalogue_unreferenced_bytes: gauge "bindery_tier_catalogue_unreferenced_bytes"
            "Lengths of the objects in the catalogue that nothing refers to."
            = of.view.totals.unreferenced_bytes => catalogue "{size} of them unreferenced";
        catalogue_reserved: gauge "bindery_tier_catalogue_reserved_ids" "Ids that are reserved, or were and have expired."
            = of.view.totals.reserved => catalogue "{} ids reserved";
        unreferenced_objects: gauge "bindery_tier_catalogue_unreferenced_objects"
            "Objects that nothing refers to, and that wait for their deletion."
            = of.view.totals.unreferenced => upkeep "{} objects wait for their deletion";
        objects_deleted: counter "bindery_tier_objects_deleted" "Objects that were deleted, or were not there any more."
            = of.upkeep.counts.objects_deleted => upkeep "{} deleted";
        ledgers_removed: counter "bindery_tier_ledgers_removed" "Deleted ledgers that were removed from the catalogue."
            = of.upkeep.counts.ledgers_removed => upkeep "{} deleted ledgers removed from the catalogue";
        upkeep_passes: counter "bindery_tier_upkeep_passes" "Passes of the upkeep."
            = of.upkeep.counts.passes;
        upkeep_doubts: counter "bindery_tier_upkeep_doubts"
            "Passes of the upkeep that removed no ledger because the metadata store was not believed."
            = of.upkeep.counts.doubts;
        objects_rewritten: counter "bindery_tier_objects_rewritten" "Objects of which all that was live was taken over."
            = of.upkeep.counts.objects_rewritten => rewritten "{} objects of which little was left";
        rewritten_bytes: counter "bindery_tier_rewritten_bytes" "Bytes of entries that were taken over so."
            = of.upkeep.counts.rewritten_bytes => rewritten "{size} of entries";
        extents_joined: counter "bindery_tier_extents_joined" "Small extents that became parts of longer ones."
            = of.upkeep.counts.extents_joined => rewritten "{} small extents joined";
        rewrites: counter "bindery_tier_rewrites" "Objects that took over what was live of others."
            = of.upkeep.counts.rewrites => rewritten "into {}";
        garbage_kept: gauge "bindery_tier_garbage_kept"
            "Objects that the catalogue does not refer to, kept until it is proved that no reader needs them."
            = of.upkeep.garbage_kept => rewritten "{} kept without a proof";
        objects_damaged: gauge "bindery_tier_objects_damaged"
            "Objects that can be neither rewritten nor let go because they are damaged."
            = of.upkeep.objects_damaged;
        scan_sweeps: counter "bindery_tier_scan_sweeps" "Times that all of the bucket was compared with the catalogue."
            = of.upkeep.scan.sweeps => scan "{} sweeps of the bucket";
        scan_objects: counter "bindery_tier_scan_objects" "Objects that were compared."
            = of.upkeep.scan.objects => scan "{} objects compared";
        objects_missing: gauge "bindery_tier_objects_missing"
            "Objects that the catalogue refers to and the bucket does not have as they were committed."
            = of.upkeep.scan.missing => scan "{} missing";
        orphans_deleted: counter "bindery_tier_orphans_deleted" "Objects without a row in the catalogue that were deleted."
            = of.upkeep.scan.orphans_deleted => scan "without a row {} deleted";
        orphans_waiting: gauge "bindery_tier_orphans_waiting"
            "Objects without a row that are not old enough to be deleted."
            = of.upkeep.scan.orphans_waiting => scan "{} not old enough";
        orphans_unreadable: gauge "bindery_tier_orphans_unreadable"
            "Objects without a row that are kept because they cannot be read."
            = of.upkeep.scan.orphans_unreadable => scan "{} unreadable";
        orphans_kept: gauge "bindery_tier_orphans_kept"
            "Objects without a row that are old enough, and kept because somebody may need them."
            = of.upkeep.scan.orphans_kept => scan "{} kept";
    }
    others {
        ledgers_listed: "Ledgers of the last listing." = of.status.listed => share "of {} ledgers";
        ledgers_watched: "Ledgers that are watched." = of.status.watched => ledgers "{} watched";
        ledgers_done: "Closed ledgers that are in the tier as a whole, and whose bookies know."
            = of.status.done => ledgers "{} done";
        ledgers_failing: "Ledgers that cannot be read at the moment." = of.status.failing => ledgers "{} failing";
        ledgers_stopped: "Ledgers that are stopped, because a bookie is ahead of the catalogue."
            = of.status.stopped => ledgers "{} stopped";
        catalogue_bytes: "Bytes of entries in the catalogue." = of.view.totals.bytes => catalogue "{size} of entries";
        catalogue_number: "The number of the last record of the catalogue."
            = of.view.position.number => catalogue "record {}";
    }
    by hand {
        /// The store.
        store: String,
        /// The cluster's INSTANCEID.
        cluster: String,
        /// Whether tiering is paused.
        paused: bool,
        /// Whether the tierer is ending.
        stopping: bool,
        /// What holds it up: a stage, or nothing. With the share of the time that it was busy.
        limit: Option<(String, f64)>,
        /// Its name among those that share the ledgers.
        #[serde(default)]
        name: String,
        /// Why it cannot do its work, so that others do its part as well,
        #[serde(default)]
        unable: Option<String>,
        /// and why it cannot do its part of the upkeep, so that others do it while there are any.
        #[serde(default)]
        no_upkeep: Option<String>,
        /// Bookies that are registered and did not answer this tierer's last requests: what is on them alone stays behind here.
        #[serde(default)]
        unreachable: Vec<String>,
        /// As many ledgers are watched as may be, and with each there is something to do: the others wait.
        #[serde(default)]
        crowded: bool,
        /// In this time each ledger that waits had a look, or how long that is taking by now; 0 when none does.
        #[serde(default)]
        turn_seconds: f64,
        /// All ledgers together; the seconds are the largest.
        lag: LagReport,
        /// Seconds of the ledgers that are behind: half of them have less,
        lag_p50_seconds: f64,
        /// and 99 of 100.
        lag_p99_seconds: f64,
        /// Those that are behind most.
        behind: Vec<LedgerReport>,
        /// The wait between rounds.
        interval_seconds: f64,
        /// Objects being built, and how many may be.
        objects_building: (u64, u64),
        /// Bytes that may be read in a second.
        bytes_per_second: Option<u64>,
        /// Whether that is less than configured, because of pressure.
        slowed_down: bool,
        /// Time of rounds by stage.
        stages: Vec<StageReport>,
        /// Rounds from their plan to their last update.
        cycles: DurationsReport,
        /// Ledgers from the commit to their ack quorums.
        lre: DurationsReport,
        /// Requests to the object store.
        requests: RequestsReport,
        /// What they cost.
        cost: CostReport,
        /// By how much the own clock is ahead of the store's.
        clock_ahead_ms: i64,
        /// Why an object that the catalogue does not refer to is kept.
        kept_for: Option<String>,
        /// A damaged object, and in which way it is.
        damaged: Option<String>,
        /// Why an object without a row is kept.
        orphan_kept: Option<String>,
        /// An object without a row that cannot be read, and why.
        orphan_unreadable: Option<String>,
        /// Why nothing is deleted at the moment, and what ends that: a doubt about the catalogue.
        deletions_stopped: Option<String>,
        /// Why no ledger is removed from the catalogue at the moment.
        upkeep_doubt: Option<String>,
        /// The last thing of the upkeep that did not work.
        upkeep_error: Option<String>,
        /// Alarms, the newest last.
        alarms: Vec<String>,
        /// The last thing that did not work.
        last_error: Option<String>,
    }
    rows {
        Row::flag("bindery_tier_paused", "1 while tiering is paused.", |report| report.paused),
        Row::flag(
            "bindery_tier_crowded",
            "1 while as many ledgers are watched as may be, and with each there is something to do.",
            |report| report.crowded
        ),
        Row::gauge(
            "bindery_tier_lag_entries",
            "Entries that could be in the tier and are not.",
            |report| report.lag.entries
        ),
        Row::gauge("bindery_tier_lag_bytes", "Bytes of those entries, about.", |report| report.lag.bytes),
        Row::each(
            Kind::Gauge,
            "bindery_tier_lag_ms",
            &["quantile"],
            "How long the oldest of those entries could have been in the tier, over the ledgers that are behind.",
            |report, series| {
                let (half, most) = (report.lag_p50_seconds, report.lag_p99_seconds);
                for (quantile, seconds) in [("0.5", half), ("0.99", most), ("1.0", report.lag.seconds)] {
                    series.signed(&[("quantile", quantile)], ms(seconds));
                }
            }
        ),
        Row::each(
            Kind::Gauge,
            "bindery_tier_ledgers",
            &["state"],
            "Ledgers. watched; done: closed, in the tier as a whole, and their bookies know; failing: not readable at the \
             moment; stopped: a bookie is ahead of the catalogue.",
            |report, series| {
                for (state, ledgers) in [
                    ("watched", report.ledgers_watched),
                    ("done", report.ledgers_done),
                    ("failing", report.ledgers_failing),
                    ("stopped", report.ledgers_stopped),
                ] {
                    series.count(&[("state", state)], ledgers);
                }
            }
        ),
        Row::each(
            Kind::Gauge,
            "bindery_tier_limit",
            &["stage"],
            "1 for the stage that holds the tierer up.",
            |report, series| {
                for stage in Stage::ALL {
                    let is_it = report.limit.as_ref().is_some_and(|(limit, _)| limit == stage.name());
                    series.signed(&[("stage", stage.name())], i64::from(is_it));
                }
            }
        ),
        Row::flag("bindery_tier_unable", "1 while it cannot do its work, so that others do its part as well.", |report| {
            report.unable.is_some()
        }),
        Row::signed(
            "bindery_tier_turn_ms",
            "In this time each ledger that waits has a look; 0 when none does.",
            |report| ms(report.turn_seconds)
        ),
        Row::signed("bindery_tier_interval_ms", "The wait between rounds, in ms.", |report| ms(report.interval_seconds)),
        Row::gauge("bindery_tier_objects_building", "Objects being built.", |report| report.objects_building.0),
        Row::flag(
            "bindery_tier_slowed_down",
            "1 while fewer bytes are read in a second than configured, because bookies are busy.",
            |report| report.slowed_down
        ),
        Row::counter(
            "bindery_tier_store_bytes_put",
            "Bytes written to the object store.",
            |report| report.requests.bytes_put
        ),
        Row::counter(
            "bindery_tier_store_bytes_got",
            "Bytes read from the object store.",
            |report| report.requests.bytes_got
        ),
        Row::each(
            Kind::Counter,
            "bindery_tier_store_requests",
            &["kind"],
            "Requests to the object store.",
            |report, series| {
                for (kind, count) in [
                    ("put", report.requests.puts),
                    ("get", report.requests.gets),
                    ("list", report.requests.lists),
                    ("delete", report.requests.deletes),
                ] {
                    series.count(&[("kind", kind)], count);
                }
            }
        ),
        Row::each(
            Kind::Counter,
            "bindery_tier_stage_ms",
            &["stage"],
            "Milliseconds that rounds spent in a stage.",
            |report, series| {
                for stage in &report.stages {
                    series.signed(&[("stage", &stage.stage)], ms(stage.took.sum_seconds));
                }
            }
        ),
        Row::each(
            Kind::Gauge,
            "bindery_tier_stage_round_ms",
            &["stage", "quantile"],
            "Milliseconds that a round spends in a stage.",
            |report, series| {
                for stage in &report.stages {
                    stage.took.show(&[("stage", &stage.stage)], series);
                }
            }
        ),
        Row::each(
            Kind::Gauge,
            "bindery_tier_lre_ms",
            &["quantile"],
            "Milliseconds from the commit of a ledger until its ack quorum was told.",
            |report, series| report.lre.show(&[], series)
        ),
        Row::each(
            Kind::Gauge,
            "bindery_tier_cycle_ms",
            &["quantile"],
            "Milliseconds of rounds from their plan to their last update.",
            |report, series| report.cycles.show(&[], series)
        ),
        Row::signed(
            "bindery_tier_cost_requests_micro_usd",
            "Requests since the start by the provider's list prices, in millionths of a US dollar.",
            |report| (report.cost.requests_usd * 1e6) as i64
        ),
        Row::signed(
            "bindery_tier_cost_storage_month_micro_usd",
            "What the catalogue's objects cost in a month by list prices, in millionths of a US dollar.",
            |report| (report.cost.storage_month_usd * 1e6) as i64
        ),
        Row::flag(
            "bindery_tier_deletions_stopped",
            "1 while nothing is deleted because of a doubt about the catalogue.",
            |report| report.deletions_stopped.is_some()
        ),
        Row::gauge("bindery_tier_alarms", "Alarms of the tierer.", |report| report.alarms.len() as u64),
    }
}
