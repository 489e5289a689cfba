//! The parts that read and write: the auditor's, the worker's, and what joins them in one process.
//!
//! ```text
//! Repair::start --> election --elected--> scans (`auditing`)
//!               '-> worker: marks --> RepairQueue --> one task for each ledger under way (`ledger`)
//! ```

mod auditing;
mod ledger;
mod report;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_client::{BulkOptions, BulkReader, Client};
use bindery_io::Clock;
use bindery_metadata::{Layout, StoreError};
use bindery_types::{BookieId, LedgerId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use self::auditing::{LedgersOf, for_each_ledger, mark_ledgers_of};
pub use self::report::{RepairReport, StuckLedger};
pub use self::worker::repair_ledgers;
use crate::core::absence::Absences;
use crate::core::auditor::AuditorSettings;

/// The bookies that a worker copies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// This bookie alone, which the worker is part of. Copies then cross the network once.
    Own(BookieId),
    /// Any that the placement policy chooses. This is for a worker outside of bookies.
    Any,
}

/// How ledgers are repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairConfig {
    /// The name of this process in votes and locks. A worker inside a bookie has the bookie's id.
    pub name: BookieId,
    /// The bookies that it copies to.
    pub targets: Targets,
    /// Times of the auditor.
    pub auditor: AuditorSettings,
    /// How long a ledger that is not closed, and whose last ensemble has lost a bookie, is left to its writer.
    pub open_grace: Duration,
    /// Bytes of copies under way, 16 MiB by default.
    pub memory_limit: u64,
    /// Bytes copied in a second, if limited.
    pub bytes_per_second: Option<u64>,
    /// Ledgers that are repaired at the same time.
    pub parallel: usize,
    /// Time between two listings of the marks.
    pub look_interval: Duration,
}

impl RepairConfig {
    /// The defaults: a bookie is lost after 15 min (as Redpanda's and HDFS's graces are of 10 to 15), an open ledger has 30 s, as in
    /// BookKeeper.
    pub fn new(name: BookieId, targets: Targets) -> RepairConfig {
        RepairConfig {
            name,
            targets,
            auditor: AuditorSettings::default(),
            open_grace: Duration::from_secs(30),
            memory_limit: 16 << 20,
            bytes_per_second: None,
            parallel: 4,
            look_interval: Duration::from_secs(1),
        }
    }
}

/// What all parts share.
struct Common {
    config: RepairConfig,
    client: Client,
    bulk: BulkReader,
    clock: Arc<dyn Clock>,
    began: Instant,
    state: Mutex<RepairReport>,
    live: Mutex<Option<(Instant, Arc<BTreeSet<BookieId>>)>>,
    absences: Mutex<Absences>,
    /// An operator waits for it: no bookie that is away is waited for.
    is_on_demand: bool,
    /// Ledgers that are not closed and whose last ensemble lost a bookie: since when this worker knows. No more than the queue has.
    open_since: Mutex<BTreeMap<LedgerId, Instant>>,
}

/// How old the list of bookies may be that a copy begins with, or goes on with.
const LIVE_AGE_MAX: Duration = Duration::from_secs(1);

impl Common {
    fn new(config: RepairConfig, client: Client, clock: Arc<dyn Clock>) -> Common {
        let bulk =
            BulkOptions::new().memory_limit(config.memory_limit).bytes_per_second(config.bytes_per_second);
        Common {
            bulk: client.bulk(bulk),
            config,
            client,
            clock,
            began: Instant::now(),
            state: Mutex::default(),
            live: Mutex::default(),
            absences: Mutex::default(),
            is_on_demand: false,
            open_since: Mutex::default(),
        }
    }

    fn layout(&self) -> &Layout {
        self.client.layout()
    }

    /// Time of the cores.
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The bookies that are registered, as they were a moment ago.
    async fn live(&self) -> Result<Arc<BTreeSet<BookieId>>, StoreError> {
        if let Some((at, live)) = self.live.lock().clone()
            && at.elapsed() < LIVE_AGE_MAX
        {
            return Ok(live);
        }
        self.live_now().await
    }

    /// The bookies that are registered, read now.
    async fn live_now(&self) -> Result<Arc<BTreeSet<BookieId>>, StoreError> {
        let asked_at = Instant::now();
        let live = Arc::new(self.layout().registration().registered().await?);
        self.absences.lock().on_bookies(self.now(), &live);
        *self.live.lock() = Some((asked_at, live.clone()));
        Ok(live)
    }

    /// How long a bookie may be away.
    async fn delay(&self) -> Result<Duration, StoreError> {
        match self.layout().repair_settings().delay().await {
            Ok(delay) => Ok(delay.unwrap_or(self.config.auditor.delay)),
            // It holds no number, which the auditor reports.
            Err(StoreError::Protocol(_)) => Ok(self.config.auditor.delay),
            Err(error) => Err(error),
        }
    }

    fn note_error(&self, what: &str, error: &dyn std::fmt::Display) {
        tracing::warn!(%error, "repair: {what}");
        self.state.lock().last_error = Some(format!("{what}: {error}"));
    }
}

/// Auditor and worker of one process. Dropped, its tasks end.
pub struct Repair {
    handle: RepairHandle,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

/// To look at a [`Repair`] that runs.
#[derive(Clone)]
pub struct RepairHandle(Arc<Common>);

impl RepairHandle {
    /// What it does, and did since it began.
    pub fn report(&self) -> RepairReport {
        let mut report = self.0.state.lock().clone();
        report.held_bytes = self.0.bulk.counts().held_bytes;
        report
    }
}

impl Repair {
    /// Starts both: it stands for election at once, and repairs what is marked. Ledgers are read and copied through `client`, whose
    /// session with the metadata store should be its own: locks of one session do not exclude each other.
    pub fn start(config: RepairConfig, client: Client, clock: Arc<dyn Clock>) -> Repair {
        let common = Arc::new(Common::new(config, client, clock));
        let (stop, stopped) = watch::channel(false);
        let tasks = vec![
            tokio::spawn(auditing::run(common.clone(), stopped.clone())),
            tokio::spawn(worker::run(common.clone(), stopped)),
        ];
        Repair { handle: RepairHandle(common), stop, tasks }
    }

    /// To look at it.
    pub fn handle(&self) -> RepairHandle {
        self.handle.clone()
    }

    /// Stops both parts: ledgers under way are given back between two batches, and the vote is taken back.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        for task in self.tasks.drain(..) {
            if let Err(error) = task.await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }
}

impl Drop for Repair {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl std::fmt::Debug for Repair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repair").field("report", &self.handle.report()).finish_non_exhaustive()
    }
}

/// Waits for a stop; a [`Repair`] that is dropped counts as one.
async fn stops(stopped: &mut watch::Receiver<bool>) {
    let _ended = stopped.wait_for(|stopped| *stopped).await;
}

/// Waits for a time, or until a stop; true when it is a stop.
async fn pause(stopped: &mut watch::Receiver<bool>, time: Duration) -> bool {
    tokio::select! {
        () = stops(stopped) => true,
        () = tokio::time::sleep(time) => false,
    }
}

/// A ledger, for messages.
fn named(ledger: LedgerId) -> String {
    format!("ledger {ledger}")
}
