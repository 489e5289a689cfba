//! What a bookie's admin port says of its auditor and worker, and takes orders for: paths below `/api/v1/autorecovery/`, and metrics.

use super::order::{Order, PACE};
use super::recover::check_stopped;
use crate::ledger::form::count;
use bindery_client::Client;
use bindery_repair::{RepairHandle, RepairReport};
use bindery_server::admin::extension::{
    AdminExtension, Extending, ExtensionAnswer, ExtensionFault, ExtensionRequest,
};
use bindery_server::metrics::{Exposition, SummarySnapshot};
use bindery_types::LedgerId;
use parking_lot::Mutex;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long the metadata store may take to say whether a bookie is stopped.
const CHECK_MAX: Duration = Duration::from_secs(3);
/// Numbers of live copies that metrics always have: those that somebody is woken for.
const COPIES_SHOWN: [usize; 2] = [0, 1];

/// The state of auditor and worker of this process.
#[derive(Default)]
pub enum Standing {
    /// Before the first attempt to start.
    #[default]
    Starts,
    /// It is left out, because it could reach no bookie by the settings of this process.
    LeftOut(String),
    /// The last attempt to start failed; the next one follows.
    Failed(String),
    /// With the client that they use.
    Runs(RepairHandle, Client),
    /// The process ends.
    Ended,
}

/// The last order, and how far it is.
struct Taken {
    order: Order,
    state: Arc<Mutex<String>>,
    task: JoinHandle<()>,
}

/// The part that an admin port shows.
#[derive(Default)]
pub struct RepairAdmin {
    standing: Mutex<Standing>,
    /// Attempts to start that failed.
    start_failures: AtomicU64,
    taken: Mutex<Option<Taken>>,
}

impl RepairAdmin {
    /// Notes what became of auditor and worker. An order ends with them.
    pub fn set(&self, standing: Standing) {
        let is_end = matches!(standing, Standing::Ended);
        if matches!(standing, Standing::Failed(_)) {
            self.start_failures.fetch_add(1, Ordering::Relaxed);
        }
        *self.standing.lock() = standing;
        if is_end && let Some(taken) = &*self.taken.lock() {
            taken.task.abort();
        }
    }

    /// Auditor and worker, or why there are none.
    fn running(&self) -> Result<(RepairHandle, Client), String> {
        match &*self.standing.lock() {
            Standing::Starts => Err("repair is starting".to_owned()),
            Standing::LeftOut(why) | Standing::Failed(why) => Err(format!("repair cannot start: {why}")),
            Standing::Runs(handle, client) => Ok((handle.clone(), client.clone())),
            Standing::Ended => Err("the process ends".to_owned()),
        }
    }

    async fn respond(&self, request: ExtensionRequest<'_>) -> ExtensionAnswer {
        let refused = |(status, why): (u16, String)| ExtensionAnswer::Refused(status, why);
        let order = match (request.method, request.name) {
            ("GET", "report") => return self.report(),
            ("PUT", "bookie") => Order::of_recovery(request.body),
            ("PUT", "decommission") => Order::of_decommission(request.body),
            (_, "bookie" | "decommission") => {
                return refused((404, "Not found method. Should be PUT method".to_owned()));
            }
            (_, "report") => return refused((404, "Not found method. Should be GET method".to_owned())),
            _ => return refused((404, "no such path".to_owned())),
        };
        match order {
            Ok(order) => self.take(order).await,
            Err(wrong) => refused(wrong),
        }
    }

    fn report(&self) -> ExtensionAnswer {
        let handle = match self.running() {
            Ok((handle, _)) => handle,
            Err(why) => return ExtensionAnswer::Refused(503, why),
        };
        let mut report = match serde_json::to_value(handle.report()) {
            Ok(report) => report,
            Err(error) => return ExtensionAnswer::Refused(500, error.to_string()),
        };
        if let (Some(taken), Value::Object(fields)) = (&*self.taken.lock(), &mut report) {
            fields.insert("order".to_owned(), taken.order.shown(&taken.state.lock()));
        }
        ExtensionAnswer::Json(report.to_string())
    }

    /// Begins an order, unless one is under way or its bookies run.
    async fn take(&self, order: Order) -> ExtensionAnswer {
        let (handle, client) = match self.running() {
            Ok(running) => running,
            Err(why) => return ExtensionAnswer::Refused(503, why),
        };
        let checked = tokio::time::timeout(CHECK_MAX, check_stopped(client.layout(), &order.bookies)).await;
        match checked {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return ExtensionAnswer::Refused(409, failure.to_string()),
            Err(_) => return ExtensionAnswer::Refused(503, "the metadata store does not answer".to_owned()),
        }
        let mut taken = self.taken.lock();
        if let Some(before) = taken.as_ref().filter(|before| !before.task.is_finished()) {
            let why = format!(
                "an order for {} is being carried out (GET report says how far it is): one at a time",
                before.order.bookies.iter().map(|bookie| bookie.as_str()).collect::<Vec<_>>().join(", ")
            );
            return ExtensionAnswer::Refused(409, why);
        }
        let state = Arc::new(Mutex::new("begins".to_owned()));
        let task = tokio::spawn({
            let (order, state) = (order.clone(), state.clone());
            async move {
                let say = |text: String| *state.lock() = text;
                let why = |ledger: LedgerId| {
                    let stuck = handle.report().stuck;
                    stuck.into_iter().find(|stuck| stuck.ledger == ledger.get()).map(|stuck| stuck.why)
                };
                match order.carry_out(&client, PACE, why, say).await {
                    Ok(text) => {
                        tracing::info!(bookies = ?order.bookies, "{}: {text}", order.path);
                        say(text);
                    }
                    Err(failure) => {
                        tracing::warn!(bookies = ?order.bookies, "{}: {failure}", order.path);
                        say(format!("failed: {failure}"));
                    }
                }
            }
        });
        let said = order.taken();
        *taken = Some(Taken { order, state, task });
        ExtensionAnswer::Text(said)
    }
}

impl Drop for RepairAdmin {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.get_mut() {
            taken.task.abort();
        }
    }
}

impl AdminExtension for RepairAdmin {
    fn fault(&self) -> Option<ExtensionFault> {
        let alarm = match &*self.standing.lock() {
            Standing::LeftOut(why) => format!("repair cannot start: {why}"),
            Standing::Failed(why) => {
                let failures = self.start_failures.load(Ordering::Relaxed);
                format!("repair cannot start ({}): {why}", count(failures, "attempt", "attempts"))
            }
            Standing::Starts | Standing::Runs(..) | Standing::Ended => return None,
        };
        Some(ExtensionFault { alarm, is_of_store: false })
    }

    fn answer<'a>(&'a self, request: ExtensionRequest<'a>) -> Extending<'a, ExtensionAnswer> {
        Box::pin(self.respond(request))
    }

    fn expose<'a>(&'a self, out: &'a mut Exposition) -> Extending<'a, ()> {
        let report = self.running().ok().map(|(handle, _)| handle.report());
        out.gauge("bindery_repair_up", &[], i64::from(report.is_some()));
        out.counter("bindery_repair_start_failures", &[], self.start_failures.load(Ordering::Relaxed));
        if let Some(report) = report {
            expose(&report, out);
            expose_as_java(&report, out);
        }
        Box::pin(std::future::ready(()))
    }
}

/// Our own names.
fn expose(report: &RepairReport, out: &mut Exposition) {
    out.gauge("bindery_repair_auditor", &[], i64::from(report.is_auditor));
    out.gauge("bindery_repair_disabled", &[], i64::from(report.is_disabled));
    out.gauge_of("bindery_repair_bookies_away", &[], report.away.len() as u64);
    let mut waiting = report.waiting.clone();
    for copies in COPIES_SHOWN {
        waiting.entry(copies).or_default();
    }
    for (copies, ledgers) in waiting {
        // Of a ledger whose metadata cannot be read it is not known.
        let copies = if copies == usize::MAX { "unknown".to_owned() } else { copies.to_string() };
        out.gauge_of("bindery_repair_waiting", &[("copies", &copies)], ledgers);
    }
    out.gauge_of("bindery_repair_listed", &[], report.listed);
    out.gauge_of("bindery_repair_left_out", &[], report.left_out);
    out.gauge_of("bindery_repair_under_way", &[], report.under_way.len() as u64);
    out.gauge_of("bindery_repair_stuck", &[], report.stuck_count);
    out.gauge_of("bindery_repair_overdue", &[], report.overdue);
    out.gauge_of("bindery_repair_held_bytes", &[], report.held_bytes);
    out.gauge_of("bindery_repair_limit_bytes", &[], report.bytes_per_second.unwrap_or(0));
    out.gauge("bindery_repair_slowed_down", &[], i64::from(report.is_slowed_down));
    let check = &report.check;
    out.gauge("bindery_repair_check_running", &[], i64::from(check.is_running));
    out.gauge("bindery_repair_check_ended_ms", &[], check.ended_ms.unwrap_or(0));
    for (found, ledgers) in
        [("whole", check.whole), ("lacking", check.lacking), ("unchecked", check.unchecked)]
    {
        out.gauge_of("bindery_repair_check_ledgers", &[("found", found)], ledgers);
    }
    out.gauge_of("bindery_repair_badly_placed", &[], report.placement.badly_placed);
    for (name, count) in [
        ("bindery_repair_scans", report.scans),
        ("bindery_repair_marked", report.marked),
        ("bindery_repair_repaired", report.repaired),
        ("bindery_repair_found_whole", report.found_whole),
        ("bindery_repair_failures", report.failures),
        ("bindery_repair_entries", report.entries),
        ("bindery_repair_bytes", report.bytes),
        ("bindery_repair_bytes_past_journal", report.bytes_past_journal),
        ("bindery_repair_dropped", report.dropped),
        ("bindery_repair_closed", report.closed),
    ] {
        out.counter(name, &[], count);
    }
    out.gauge("bindery_repair_last_error_ms", &[], report.last_error_ms.unwrap_or(0));
}

/// The names of BookKeeper's auditor and replication worker. Summaries have counts and sums; no quantiles are kept.
fn expose_as_java(report: &RepairReport, out: &mut Exposition) {
    let (auditor, worker) = ("replication_auditor", "replication_replication_worker");
    let marked = SummarySnapshot::of_sums(report.scans, report.marked as f64);
    out.summary(&format!("{auditor}_NUM_UNDER_REPLICATED_LEDGERS"), &[], &marked);
    for (name, ledgers) in [
        ("NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY", report.placement.badly_placed),
        ("NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD", report.overdue),
    ] {
        out.gauge_of(&format!("{auditor}_{name}"), &[], ledgers);
    }
    let attempts = SummarySnapshot::of_sums(report.attempts, report.attempts_ms as f64)
        .with_failures(report.failures, report.failures_ms as f64);
    out.summary(&format!("{worker}_rereplicate"), &[], &attempts);
    out.counter(&format!("{worker}_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED"), &[], report.repaired);
    let bytes = SummarySnapshot::of_sums(report.entries, report.bytes as f64);
    for way in ["READ", "WRITTEN"] {
        out.counter(&format!("{worker}_NUM_ENTRIES_{way}"), &[], report.entries);
        out.summary(&format!("{worker}_NUM_BYTES_{way}"), &[], &bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn asked(admin: &RepairAdmin, method: &str, name: &str, body: &str) -> ExtensionAnswer {
        let peer = ([127, 0, 0, 1], 1).into();
        admin.respond(ExtensionRequest { method, name, query: "", body: body.as_bytes(), peer }).await
    }

    #[tokio::test]
    async fn repair_that_cannot_start_says_so_and_is_an_alarm() {
        let admin = RepairAdmin::default();
        let report = asked(&admin, "GET", "report", "").await;
        assert_eq!(report, ExtensionAnswer::Refused(503, "repair is starting".to_owned()));
        assert_eq!(admin.fault(), None);
        admin.set(Standing::Failed("no such user".to_owned()));
        let alarm = || admin.fault().unwrap().alarm;
        assert_eq!(alarm(), "repair cannot start (1 attempt): no such user");
        admin.set(Standing::Failed("no such user".to_owned()));
        assert_eq!(alarm(), "repair cannot start (2 attempts): no such user");
        let why = "repair cannot start: no such user".to_owned();
        let put = asked(&admin, "PUT", "bookie", r#"{"bookie_src":["b:1"]}"#).await;
        assert_eq!(put, ExtensionAnswer::Refused(503, why));
        let get = asked(&admin, "GET", "bookie", "").await;
        let text = "Not found method. Should be PUT method".to_owned();
        assert_eq!(get, ExtensionAnswer::Refused(404, text));
        let mut out = Exposition::new();
        admin.expose(&mut out).await;
        let text = "# TYPE bindery_repair_up gauge\nbindery_repair_up 0\n\
            # TYPE bindery_repair_start_failures counter\nbindery_repair_start_failures 2\n";
        assert_eq!(out.into_text(), text);
        admin.set(Standing::LeftOut("no user".to_owned()));
        assert_eq!(alarm(), "repair cannot start: no user");
        admin.set(Standing::Ended);
        assert_eq!(admin.fault(), None);
    }

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
        expose(&report, &mut out);
        expose_as_java(&report, &mut out);
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
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
    }
}
