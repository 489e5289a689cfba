//! A tierer inside this process: its start (again and again where bookies must not wait for it), its end, and what
//! its admin port answers.

use crate::bucket;
use crate::exit::{self, Failure};
use crate::own_client::{NotOpened, OwnClient};
pub use bindery_config::tier::{TierSettings, settings};
use bindery_io::{Clock, SystemClock, SystemRandom};
use bindery_metadata::{MetadataUri, Security};
use bindery_metrics::{Exposition, Row, Table};
use bindery_reconciler::{Components, StartError, TierReport, Tierer, TiererHandle};
use bindery_server::admin::extension::{
    AdminExtension, Extending, ExtensionAnswer, ExtensionFault, ExtensionRequest,
};
use bindery_server::latch::Latch;
use bindery_tiering::ClusterId;
use bindery_tiering::store::{self, CheckError, Gate, StoreUrl};
use bindery_types::LedgerId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A tierer that runs, with the client it works with.
struct Started {
    cluster: ClusterId,
    tierer: Tierer,
    own: OwnClient,
}

impl Started {
    async fn end(self) {
        self.tierer.stop().await;
        self.own.close().await;
    }
}

/// Why it did not start, and whether the same start may succeed later.
pub struct NotStarted {
    /// The failure to report, with its exit code.
    pub failure: Failure,
    /// Whether it passes without action by an operator.
    pub is_transient: bool,
    /// The object store, or the settings for it, are the cause.
    pub is_of_store: bool,
}

async fn start(
    settings: &TierSettings,
    gate: &Arc<Gate>,
    metadata: &(MetadataUri, Security),
) -> Result<Started, NotStarted> {
    // With this client the tierer reads from bookies and tells them what is in the tier.
    let opened = OwnClient::open(metadata, &settings.security).await;
    let own = opened.map_err(|NotOpened { failure, is_transient }| NotStarted {
        failure,
        is_transient,
        is_of_store: false,
    })?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let components = Components {
        layout: own.layout.clone(),
        client: own.client.clone(),
        store: settings.store.clone(),
        gate: gate.clone(),
        clock,
        random: Arc::new(SystemRandom),
    };
    match Tierer::start(settings.config.clone(), components).await {
        Ok(tierer) => Ok(Started { cluster: tierer.cluster(), tierer, own }),
        Err(error) => {
            own.close().await;
            Err(not_started(settings, error))
        }
    }
}

fn not_started(settings: &TierSettings, error: StartError) -> NotStarted {
    let of_store = |failure: Failure| NotStarted {
        is_transient: failure.code == exit::UNREACHABLE,
        is_of_store: true,
        failure,
    };
    match error {
        StartError::Store { error, .. } => of_store(check_failure(settings.store.url(), &error)),
        StartError::Metadata(cause) if cause.is_transient() => {
            let failure = Failure::with_code(exit::UNREACHABLE, format!("the metadata store: {cause}"));
            NotStarted { failure, is_transient: true, is_of_store: false }
        }
        StartError::Catalogue(error) => of_store(bucket::catalogue_failure(&settings.store, &error)),
        other => NotStarted { failure: Failure::new(other), is_transient: false, is_of_store: false },
    }
}

/// How long such a process waits for the whole tierer to end.
const STOP_MAX: Duration = Duration::from_secs(15);
/// How long a request waits for a tierer that is starting; commands wait longer for an answer.
const START_WAIT_MAX: Duration = Duration::from_secs(3);
/// The first and the longest pause between two attempts to start, in a process that also has other work.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Between two looks whether another process found that the store breaks a promise.
const NOTE_INTERVAL: Duration = Duration::from_secs(300);

/// A tierer in this process.
pub struct TierRole {
    admin: Arc<TierAdmin>,
    settings: TierSettings,
    /// What is known of the store, through all starts.
    gate: Arc<Gate>,
    metadata: (MetadataUri, Security),
}

impl TierRole {
    /// A tierer for the cluster of that metadata, yet to be run.
    pub fn new(settings: TierSettings, metadata: MetadataUri, security: Security) -> TierRole {
        TierRole {
            admin: Arc::new(TierAdmin::default()),
            settings,
            gate: Arc::default(),
            metadata: (metadata, security),
        }
    }

    /// The part that an admin port shows.
    pub fn admin(&self) -> Arc<dyn AdminExtension> {
        self.admin.clone()
    }

    /// Runs until `stop`; a start that fails is an error.
    pub async fn run_or_fail(self, stop: &Latch) -> Result<(), Failure> {
        let started = tokio::select! {
            () = stop.wait() => return Ok(()),
            started = start(&self.settings, &self.gate, &self.metadata) => started.map_err(|not_started| not_started.failure)?,
        };
        self.serve(started, stop).await.map_err(|not_started| not_started.failure)
    }

    /// Runs until `stop`. A start that fails is tried again: the rest of the process does not depend on the store. A store that was shown
    /// to break a promise is not tried out again ([`Gate`]).
    async fn run_patiently(self, stop: &Latch) {
        let mut pause = RETRY.0;
        loop {
            let started = tokio::select! {
                () = stop.wait() => return,
                started = start(&self.settings, &self.gate, &self.metadata) => started,
            };
            let outcome = match started {
                Ok(started) => {
                    pause = RETRY.0;
                    self.serve(started, stop).await
                }
                Err(not_started) => Err(not_started),
            };
            let Err(not_started) = outcome else { return };
            let why = not_started.failure.to_string();
            match not_started.is_transient {
                true => {
                    tracing::warn!(retry_s = pause.as_secs(), "the tierer cannot start yet, retrying: {why}")
                }
                false => tracing::error!(
                    retry_s = pause.as_secs(),
                    "the tierer cannot start, and this needs an \
                 operator; retrying meanwhile: {why}"
                ),
            }
            self.admin.set(Standing::Failed { why, is_of_store: not_started.is_of_store });
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// Runs beside the bookies of this process, until `stop`.
    pub fn spawn(self, stop: &Arc<Latch>) -> RunningRole {
        let stop = stop.clone();
        RunningRole(tokio::spawn(async move { self.run_patiently(&stop).await }))
    }

    /// Until `stop`, or until somebody found that the store breaks a promise.
    async fn serve(&self, started: Started, stop: &Latch) -> Result<(), NotStarted> {
        tracing::info!(store = %self.settings.store.url(), "the tierer is running");
        self.admin.set(Standing::Runs(started.tierer.handle()));
        let broken = tokio::select! {
            () = stop.wait() => None,
            broken = self.broken_promise(started.cluster) => Some(broken),
        };
        started.end().await;
        match broken {
            None => {
                self.admin.set(Standing::Ended);
                Ok(())
            }
            Some(error) => {
                let failure = check_failure(self.settings.store.url(), &error);
                Err(NotStarted { failure, is_transient: false, is_of_store: true })
            }
        }
    }

    /// Returns when the store has a note about a promise that it broke.
    async fn broken_promise(&self, cluster: ClusterId) -> CheckError {
        loop {
            tokio::time::sleep(NOTE_INTERVAL).await;
            // While the store cannot be asked, the tierer can do nothing there either.
            if let Ok(Some(broken)) = store::known(&self.settings.store, Some(cluster), &self.gate).await {
                return CheckError::Known(broken);
            }
        }
    }
}

/// A tierer that runs beside bookies.
pub struct RunningRole(JoinHandle<()>);

impl RunningRole {
    /// Waits for its end once it is told to stop, but not for long: the next tierer does what this one leaves.
    pub async fn ended(mut self) {
        if tokio::time::timeout(STOP_MAX, &mut self.0).await.is_err() {
            self.0.abort();
            tracing::warn!(
                "the tierer did not stop in time and was aborted: nothing is lost; the next one does its \
             unfinished objects again, whose reserved ids expire"
            );
        }
    }
}

/// The state of this process's tierer.
#[derive(Default)]
enum Standing {
    #[default]
    Starts,
    /// The last attempt to start failed; the next one follows.
    Failed {
        why: String,
        is_of_store: bool,
    },
    Runs(TiererHandle),
    /// The process ends.
    Ended,
}

/// The state that an admin port shows.
#[derive(Default)]
struct TierAdmin {
    standing: watch::Sender<Standing>,
}

impl TierAdmin {
    fn set(&self, standing: Standing) {
        self.standing.send_replace(standing);
    }

    /// The tierer, or why there is none. Waits a little for one that is starting: bookies serve before it does, and a command that
    /// follows the start of a server should not have to be repeated.
    async fn started(&self) -> Result<TiererHandle, String> {
        let mut standing = self.standing.subscribe();
        let started = standing.wait_for(|standing| !matches!(standing, Standing::Starts));
        // The sender is our own, so it is there. When the time is over, the answer is that the tierer is starting.
        let _ = tokio::time::timeout(START_WAIT_MAX, started).await;
        self.handle()
    }

    /// The tierer, or why there is none.
    fn handle(&self) -> Result<TiererHandle, String> {
        match &*self.standing.borrow() {
            Standing::Starts => Err("it is starting".to_owned()),
            Standing::Failed { why, .. } => Err(why.clone()),
            Standing::Ended => Err("the process ends".to_owned()),
            Standing::Runs(handle) => Ok(handle.clone()),
        }
    }

    async fn respond(&self, request: ExtensionRequest<'_>) -> ExtensionAnswer {
        let refused = |status, why: &str| ExtensionAnswer::Refused(status, why.to_owned());
        let handle = match self.started().await {
            Ok(handle) => handle,
            Err(why) => return ExtensionAnswer::Refused(503, why),
        };
        let ended = || refused(503, "it has ended");
        match (request.method, request.name) {
            ("GET", "status") => match handle.report().await.map(|report| serde_json::to_string(&report)) {
                Some(Ok(text)) => ExtensionAnswer::Json(text),
                Some(Err(error)) => ExtensionAnswer::Refused(500, error.to_string()),
                None => ended(),
            },
            ("GET", "ledger") | ("PUT", "now") => {
                let id =
                    request.query.strip_prefix("id=").and_then(|id| id.parse().ok()).and_then(LedgerId::new);
                let Some(ledger) = id else { return refused(400, "name a ledger: id=N") };
                if request.name == "now" && !handle.tier_now(ledger).await {
                    return ended();
                }
                match handle.ledger(ledger).await.map(|report| serde_json::to_string(&report)) {
                    Some(Ok(text)) => ExtensionAnswer::Json(text),
                    Some(Err(error)) => ExtensionAnswer::Refused(500, error.to_string()),
                    None => ended(),
                }
            }
            (_, "status" | "ledger" | "now") => refused(405, "GET status, GET ledger?id=N, PUT now?id=N"),
            _ => refused(404, "no such path"),
        }
    }
}

impl AdminExtension for TierAdmin {
    fn fault(&self) -> Option<ExtensionFault> {
        match &*self.standing.borrow() {
            Standing::Failed { why, is_of_store } => Some(ExtensionFault {
                alarm: format!("the tierer cannot start: {why}"),
                is_of_store: *is_of_store,
            }),
            Standing::Starts | Standing::Runs(_) | Standing::Ended => None,
        }
    }

    fn answer<'a>(&'a self, request: ExtensionRequest<'a>) -> Extending<'a, ExtensionAnswer> {
        Box::pin(self.respond(request))
    }

    fn expose<'a>(&'a self, out: &'a mut Exposition) -> Extending<'a, ()> {
        Box::pin(async move {
            let report = match self.handle() {
                Ok(handle) => handle.report().await,
                Err(_) => None,
            };
            UP.expose(&report.is_some(), out);
            match report {
                Some(report) => TierReport::TABLE.expose(&report, out),
                None => ALARMS.expose(&self.fault().is_some(), out),
            }
        })
    }
}

/// Whether a tierer runs.
pub const UP: Table<bool> =
    Table::new(&[Row::flag("bindery_tier_up", "1 while the tierer of this process runs.", |is_up| *is_up)]);
/// As of a tierer that runs: it is one alarm that none does.
const ALARMS: Table<bool> =
    Table::new(&[Row::flag("bindery_tier_alarms", "Alarms of the tierer.", |is_alarm| *is_alarm)]);

/// The fault of a store, and where its settings come from if that may help.
pub fn check_failure(url: &StoreUrl, error: &CheckError) -> Failure {
    match error {
        CheckError::Failed { check, error } => {
            let text = format!("{url} cannot hold a tier: {check}: {}", error.without_key());
            bucket::failure_in(url, &text, error)
        }
        CheckError::Dishonoured { .. } | CheckError::Known(_) => {
            Failure::new(format!("{url} cannot hold a tier: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_waits_a_little_for_a_tierer_that_starts() {
        let admin = Arc::new(TierAdmin::default());
        let status = |admin: Arc<TierAdmin>| async move {
            let peer = ([127, 0, 0, 1], 1).into();
            match admin
                .respond(ExtensionRequest { method: "GET", name: "status", query: "", body: b"", peer })
                .await
            {
                ExtensionAnswer::Refused(code, why) => (code, why),
                _ => panic!("there is no tierer"),
            }
        };
        let (answer, ()) = tokio::join!(status(admin.clone()), async {
            tokio::task::yield_now().await;
            admin.set(Standing::Failed { why: "no bucket".to_owned(), is_of_store: true });
        });
        assert_eq!(answer, (503, "no bucket".to_owned()), "not that it is starting");
    }

    /// From the first attempt that failed until one succeeds: an alarm, here and in metrics.
    #[tokio::test]
    async fn a_tierer_that_cannot_start_is_an_alarm() {
        let admin = TierAdmin::default();
        let exposed = async || {
            let mut out = Exposition::new();
            admin.expose(&mut out).await;
            out.into_text()
        };
        assert_eq!(admin.fault(), None, "it starts");
        assert!(exposed().await.contains("\nbindery_tier_alarms 0\n"));
        admin.set(Standing::Failed { why: "no bucket".to_owned(), is_of_store: true });
        let fault = admin.fault().unwrap();
        assert!(fault.is_of_store && fault.alarm == "the tierer cannot start: no bucket", "{fault:?}");
        assert!(exposed().await.contains("\nbindery_tier_alarms 1\n"));
        admin.set(Standing::Starts);
        assert_eq!(admin.fault(), None);
        assert!(exposed().await.contains("\nbindery_tier_alarms 0\n"));
    }

    /// One line that fits a terminal, whatever the store says.
    #[test]
    fn failures_of_a_store_are_short_and_have_codes() {
        use bindery_tiering::store::{Check, StoreError};
        let url: StoreUrl = "s3://a-bucket-with-a-name/and/a/prefix".parse().unwrap();
        let key = "and/a/prefix/00112233-4455-6677-8899-aabbccddeeff/check/00112233445566770011223344556677/control";
        let (key, reason) = (key.to_owned(), "x".repeat(90));
        for (error, code, words) in [
            (StoreError::NotFound { key: key.clone() }, 1, "AWS_ACCESS_KEY_ID"),
            (
                StoreError::Denied { key: key.clone(), reason: reason.clone() },
                1,
                "AWS_WEB_IDENTITY_TOKEN_FILE",
            ),
            (
                StoreError::Refused { key: key.clone(), reason: "ExpiredToken (look at AWS_REGION)".into() },
                1,
                "AWS_REGION",
            ),
            (StoreError::Unsupported { key: key.clone(), reason: reason.clone() }, 1, "does not support"),
            (StoreError::Unavailable { key, reason }, 7, "cannot be reached"),
        ] {
            let failure = check_failure(
                &url,
                &CheckError::Failed { check: Check::ConditionalCreate, error: error.clone() },
            );
            let text = failure.to_string();
            assert_eq!(failure.code, code, "{text}");
            assert!(text.contains(words) && text.len() <= 320, "{}: {text}", text.len());
        }
    }
}
