//! What is measured of auditor and worker, under our names and under those of BookKeeper.

use bindery_metrics::{Kind, Row, SummarySnapshot, Table};
use bindery_repair::RepairReport;

/// Numbers of live copies that metrics always have: those that somebody is woken for.
const COPIES_SHOWN: [usize; 2] = [0, 1];

/// Whether they run, and how often they could not start.
pub const STANDING: Table<(bool, u64)> = Table::new(&[
    Row::flag(
        "bindery_repair_up",
        "1 while auditor and worker of this process run; 0: it should repair and cannot.",
        |(is_up, _)| *is_up,
    ),
    Row::counter(
        "bindery_repair_start_failures",
        "Attempts to start auditor and worker that failed.",
        |(_, failures)| *failures,
    ),
]);

/// Our own names.
pub const REPORT: Table<RepairReport> = Table::new(&[
    Row::flag("bindery_repair_auditor", "1 on the bookie that is the auditor.", |report| report.is_auditor),
    Row::flag("bindery_repair_disabled", "1 while repair is switched off for the cluster.", |report| {
        report.is_disabled
    }),
    Row::gauge("bindery_repair_bookies_away", "Of the auditor: bookies that it misses.", |report| {
        report.away.len() as u64
    }),
    Row::each(
        Kind::Gauge,
        "bindery_repair_waiting",
        &["copies"],
        "Ledgers that wait for repair, by the live copies of the entry that has the fewest. unknown: metadata cannot be read.",
        |report, series| {
            let mut waiting = report.waiting.clone();
            for copies in COPIES_SHOWN {
                waiting.entry(copies).or_default();
            }
            for (copies, ledgers) in waiting {
                // Of a ledger whose metadata cannot be read it is not known.
                let copies = if copies == usize::MAX { "unknown".to_owned() } else { copies.to_string() };
                series.count(&[("copies", &copies)], ledgers);
            }
        },
    ),
    Row::gauge(
        "bindery_repair_listed",
        "Ledgers that are marked, as this bookie read the marks last.",
        |report| report.listed,
    ),
    Row::gauge("bindery_repair_left_out", "Marks that this bookie cannot hold in memory.", |report| {
        report.left_out
    }),
    Row::gauge("bindery_repair_under_way", "Ledgers that this bookie copies.", |report| {
        report.under_way.len() as u64
    }),
    Row::gauge("bindery_repair_stuck", "Ledgers that cannot be repaired at the moment.", |report| {
        report.stuck_count
    }),
    Row::gauge(
        "bindery_repair_overdue",
        "Ledgers that are marked for longer than underreplicatedLedgerRecoveryGracePeriod.",
        |report| report.overdue,
    ),
    Row::gauge("bindery_repair_held_bytes", "Bytes of copies in memory.", |report| report.held_bytes),
    Row::gauge(
        "bindery_repair_limit_bytes",
        "Bytes that this bookie may copy in a second now; 0: no limit.",
        |report| report.bytes_per_second.unwrap_or(0),
    ),
    Row::flag(
        "bindery_repair_slowed_down",
        "1 while that is less than configured, because others need the disks.",
        |report| report.is_slowed_down,
    ),
    Row::flag(
        "bindery_repair_check_running",
        "Of the auditor: 1 while a check of what bookies have is under way.",
        |report| report.check.is_running,
    ),
    Row::signed(
        "bindery_repair_check_ended_ms",
        "When the last check of what bookies have ended, in ms since 1970; 0: none did.",
        |report| report.check.ended_ms.unwrap_or(0),
    ),
    Row::each(
        Kind::Gauge,
        "bindery_repair_check_ledgers",
        &["found"],
        "Of the auditor: ledgers that the check under way, or the last one, found whole, lacking, or left unchecked.",
        |report, series| {
            let check = &report.check;
            for (found, ledgers) in
                [("whole", check.whole), ("lacking", check.lacking), ("unchecked", check.unchecked)]
            {
                series.count(&[("found", found)], ledgers);
            }
        },
    ),
    Row::gauge(
        "bindery_repair_badly_placed",
        "Of the auditor: ledgers that its check of placement found on too few racks or regions.",
        |report| report.placement.badly_placed,
    ),
    Row::counter("bindery_repair_scans", "Of the auditor: looks through all ledgers.", |report| report.scans),
    Row::counter("bindery_repair_marked", "Of the auditor: ledgers marked.", |report| report.marked),
    Row::counter("bindery_repair_repaired", "Ledgers that this bookie made whole.", |report| report.repaired),
    Row::counter("bindery_repair_found_whole", "Marked ledgers that lacked nothing.", |report| {
        report.found_whole
    }),
    Row::counter("bindery_repair_failures", "Attempts to repair a ledger that failed.", |report| {
        report.failures
    }),
    Row::counter("bindery_repair_entries", "Entries that this bookie copied.", |report| report.entries),
    Row::counter("bindery_repair_bytes", "Bytes that this bookie copied.", |report| report.bytes),
    Row::counter(
        "bindery_repair_bytes_past_journal",
        "Bytes copied into this bookie past its journal.",
        |report| report.bytes_past_journal,
    ),
    Row::counter(
        "bindery_repair_tiered_entries",
        "Entries that this bookie lacked and that were not copied, because they are in object storage and it was told where.",
        |report| report.tiered_entries,
    ),
    Row::counter("bindery_repair_dropped", "Copies given up because the bookie came back.", |report| {
        report.dropped
    }),
    Row::counter("bindery_repair_closed", "Open ledgers closed to be repaired.", |report| report.closed),
    Row::signed(
        "bindery_repair_last_error_ms",
        "When the auditor or worker last failed at anything but a ledger, in ms since 1970; 0: never.",
        |report| report.last_error_ms.unwrap_or(0),
    ),
]);

fn marked(report: &RepairReport) -> SummarySnapshot {
    SummarySnapshot::of_sums(report.scans, report.marked as f64)
}

fn attempts(report: &RepairReport) -> SummarySnapshot {
    SummarySnapshot::of_sums(report.attempts, report.attempts_ms as f64)
        .with_failures(report.failures, report.failures_ms as f64)
}

fn bytes(report: &RepairReport) -> SummarySnapshot {
    SummarySnapshot::of_sums(report.entries, report.bytes as f64)
}

/// The rows of BookKeeper, under the prefixes of its auditor and of its worker.
macro_rules! as_java {
    ($($auditor:literal $worker:literal),*) => {
        Table::new(&[$(
            Row::summary(
                concat!($auditor, "_NUM_UNDER_REPLICATED_LEDGERS"),
                "Of the auditor: ledgers marked by a look through all ledgers. No quantiles are kept.",
                |report, _| marked(report),
            ),
            Row::gauge(
                concat!($auditor, "_NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY"),
                "As bindery_repair_badly_placed.",
                |report| report.placement.badly_placed,
            ),
            Row::gauge(
                concat!($auditor, "_NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD"),
                "As bindery_repair_overdue.",
                |report| report.overdue,
            ),
            Row::summary(
                concat!($worker, "_rereplicate"),
                "Attempts to repair a ledger, in ms. No quantiles are kept.",
                |report, _| attempts(report),
            ),
            Row::counter(
                concat!($worker, "_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED"),
                "As bindery_repair_repaired.",
                |report| report.repaired,
            ),
            Row::counter(
                concat!($worker, "_NUM_ENTRIES_READ"),
                "As bindery_repair_entries: what is read is written.",
                |report| report.entries,
            ),
            Row::summary(
                concat!($worker, "_NUM_BYTES_READ"),
                "Bytes of the entries copied. No quantiles are kept.",
                |report, _| bytes(report),
            ),
            Row::counter(
                concat!($worker, "_NUM_ENTRIES_WRITTEN"),
                "As bindery_repair_entries.",
                |report| report.entries,
            ),
            Row::summary(
                concat!($worker, "_NUM_BYTES_WRITTEN"),
                "Bytes of the entries copied. No quantiles are kept.",
                |report, _| bytes(report),
            ),
        )*])
    };
}

/// The names of BookKeeper: those of auditor and worker inside a bookie, and those of its separate daemon, whichever it is here.
pub const AS_JAVA: Table<RepairReport> = as_java![
    "replication_auditor" "replication_replication_worker",
    "auditor" "replication_worker"
];

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_metrics::Exposition;

    #[test]
    fn metrics_have_our_names_and_javas() {
        let mut report = RepairReport::default();
        (report.entries, report.bytes, report.repaired) = (7, 900, 3);
        (report.attempts, report.attempts_ms, report.failures, report.failures_ms) = (4, 40, 1, 5);
        report.placement.badly_placed = 8;
        report.waiting.insert(2, 11);
        report.waiting.insert(usize::MAX, 1);
        report.listed = 12;
        (report.overdue, report.check.lacking, report.check.ended_ms) = (5, 6, Some(1234));
        let mut out = Exposition::new();
        REPORT.expose(&report, &mut out);
        AS_JAVA.expose(&report, &mut out);
        let text = out.into_text();
        for line in [
            "bindery_repair_waiting{copies=\"0\"} 0",
            "bindery_repair_waiting{copies=\"1\"} 0",
            "bindery_repair_waiting{copies=\"2\"} 11",
            "bindery_repair_waiting{copies=\"unknown\"} 1",
            "bindery_repair_bytes 900",
            "bindery_repair_check_ledgers{found=\"lacking\"} 6",
            "bindery_repair_check_ended_ms 1234",
            "bindery_repair_listed 12",
            "bindery_repair_overdue 5",
            "bindery_repair_badly_placed 8",
            "replication_auditor_NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD 5",
            "bindery_repair_repaired 3",
            "replication_replication_worker_rereplicate_count{success=\"true\"} 4",
            "replication_replication_worker_rereplicate_sum{success=\"false\"} 5.0",
            "replication_replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED 3",
            "replication_replication_worker_NUM_ENTRIES_WRITTEN 7",
            "replication_replication_worker_NUM_BYTES_READ_sum{success=\"true\"} 900.0",
            "replication_auditor_NUM_UNDER_REPLICATED_LEDGERS_count{success=\"true\"} 0",
            "replication_worker_NUM_ENTRIES_READ 7",
            "auditor_NUM_UNDER_REPLICATED_LEDGERS_count{success=\"true\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
    }
}
