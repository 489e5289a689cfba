//! What a bookie's admin port says of its auditor and worker, and takes orders for: paths below `/api/v1/autorecovery/`, and metrics.

use super::numbers;
use super::order::{Order, PACE};
use super::recover::check_stopped;
use crate::ledger::form::count;
use bindery_client::Client;
use bindery_metrics::Exposition;
use bindery_repair::RepairHandle;
use bindery_server::admin::extension::{
    AdminExtension, Extending, ExtensionAnswer, ExtensionFault, ExtensionRequest,
};
use bindery_types::LedgerId;
use parking_lot::Mutex;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long the metadata store may take to say whether a bookie is stopped.
const CHECK_MAX: Duration = Duration::from_secs(3);

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
        let standing = (report.is_some(), self.start_failures.load(Ordering::Relaxed));
        numbers::STANDING.expose(&standing, out);
        if let Some(report) = report {
            numbers::REPORT.expose(&report, out);
            numbers::AS_JAVA.expose(&report, out);
        }
        Box::pin(std::future::ready(()))
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
        let text = out.into_text();
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
        let expected = [
            "# TYPE bindery_repair_up gauge",
            "bindery_repair_up 0",
            "# TYPE bindery_repair_start_failures counter",
            "bindery_repair_start_failures 2",
        ];
        assert_eq!(lines, expected);
        admin.set(Standing::LeftOut("no user".to_owned()));
        assert_eq!(alarm(), "repair cannot start: no user");
        admin.set(Standing::Ended);
        assert_eq!(admin.fault(), None);
    }
}
