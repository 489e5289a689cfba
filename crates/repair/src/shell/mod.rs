//! The parts that read and write: the auditor's, the worker's, and what joins them in one process.
//!
//! ```text
//! Repair::start --> election --elected--> scans (`auditing`), periodic checks (`checking`)
//!               '-> worker: marks --> RepairQueue --> one task for each ledger under way (`ledger`)
//! ```

mod auditing;
mod checking;
mod copying;
mod facts;
mod intake;
mod ledger;
mod pacing;
mod ranking;
mod report;
mod tiered;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_client::{BulkOptions, BulkReader, Client};
use bindery_engine::Engine;
use bindery_io::Clock;
use bindery_metadata::layout::{LedgerError, RegisteredBookie, RegistrationMode};
use bindery_metadata::{Layout, StoreError};
use bindery_types::{BookieId, LedgerId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use self::auditing::{LedgersOf, for_each_ledger, mark_ledgers, mark_ledgers_of};
use self::facts::{Bookies, Facts};
pub use self::report::{CheckReport, PlacementReport, RepairReport, StuckLedger};
use self::tiered::Places;
pub use self::tiered::{LetsGo, OwnTier};
pub use self::worker::repair_ledgers;
use crate::core::absence::Absences;
use crate::core::auditor::AuditorSettings;
use crate::core::check::Progress;

/// The bookies that a worker copies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// This bookie alone, which the worker is part of. Copies then cross the network once.
    Own(BookieId),
    /// Any that the placement policy chooses. This is for a worker outside of bookies.
    Any,
}

/// The periodic checks of an auditor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckSettings {
    /// Time from the end of one check of all ledgers to the next one, `None` for never.
    pub interval: Option<Duration>,
    /// Whether it stands for the check of replicas of BookKeeper's auditor, too, whose time it then writes.
    pub covers_replicas: bool,
    /// Of the entries between the first and the last one of a position, the share in percent that is read.
    pub read_percent: u32,
    /// Ledgers that are checked at the same time.
    pub parallel: usize,
    /// Requests to all bookies and for metadata in a second.
    pub requests_per_second: u32,
    /// Time from the end of one check of placement to the next one, `None` for never.
    pub placement_interval: Option<Duration>,
}

impl Default for CheckSettings {
    /// Each week, as in BookKeeper. A ledger of one segment on three bookies takes ten requests, so 100 ledgers are checked in a second.
    fn default() -> CheckSettings {
        CheckSettings {
            interval: Some(Duration::from_secs(604_800)),
            covers_replicas: false,
            read_percent: 0,
            parallel: 8,
            requests_per_second: 1000,
            placement_interval: None,
        }
    }
}

/// Says how many adds a bookie answered since it began, and the sum of their times in microseconds.
pub type AddTimes = Arc<dyn Fn() -> (u64, u64) + Send + Sync>;

/// The bookie that a worker is part of.
#[derive(Clone)]
pub struct OwnBookie {
    /// Takes copies in past the journal.
    pub engine: Arc<Engine>,
    /// Copies give way while its adds take longer.
    pub adds: AddTimes,
    /// Object storage, if it reads from one: places of entries there are moved instead of the entries.
    pub tier: Option<OwnTier>,
}

/// Ledgers that are repaired at a time by default, and by a bookie's worker at most: ingests of an engine are as many.
const PARALLEL_MAX: usize = bindery_engine::INGESTS_MAX;

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
    /// The checks that it makes as the auditor.
    pub checks: CheckSettings,
    /// Whether new marks say since when, by the clock of this process.
    pub stamps_marks: bool,
    /// Marks older than this are counted in [`RepairReport::overdue`]; `None` counts none.
    pub mark_grace: Option<Duration>,
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
            parallel: PARALLEL_MAX,
            look_interval: Duration::from_secs(1),
            checks: CheckSettings::default(),
            stamps_marks: true,
            mark_grace: None,
        }
    }
}

/// Memory of an entry log that is being written: a buffer, and the index of a run.
const LOG_BYTES: u64 = 4 << 20;

impl RepairConfig {
    /// The same within so many bytes of memory, of which half are for copies on their way, and half for the entry logs that they are written
    /// to: of one at least, and no more than four, which is how many ledgers are repaired at a time.
    pub fn within(mut self, bytes: u64) -> RepairConfig {
        self.memory_limit = bytes / 2;
        self.parallel =
            usize::try_from(bytes / 2 / LOG_BYTES).map_or(PARALLEL_MAX, |logs| logs.clamp(1, PARALLEL_MAX));
        self
    }
}

/// What all parts share.
struct Common {
    config: RepairConfig,
    client: Client,
    own: Option<OwnBookie>,
    bulk: BulkReader,
    places: Places,
    clock: Arc<dyn Clock>,
    began: Instant,
    state: Mutex<RepairReport>,
    facts: Facts,
    /// The name of this process's vote, once it has voted. A vote that is gone is not among all votes.
    vote: Mutex<Option<String>>,
    absences: Mutex<Absences>,
    /// An operator asked for these repairs, so bookies that are away are replaced without a delay.
    is_on_demand: bool,
    /// How far the check of all ledgers is. It outlives an election that was lost and won again.
    progress: Mutex<Progress>,
    /// Ledgers that are not closed and whose last ensemble lost a bookie: since when this worker knows. No more than the queue has.
    open_since: Mutex<BTreeMap<LedgerId, Instant>>,
}

impl Common {
    fn new(config: RepairConfig, client: Client, own: Option<OwnBookie>, clock: Arc<dyn Clock>) -> Common {
        let bulk =
            BulkOptions::new().memory_limit(config.memory_limit).bytes_per_second(config.bytes_per_second);
        Common {
            bulk: client.bulk(bulk),
            places: Places::default(),
            facts: Facts::new(client.layout().clone()),
            config,
            client,
            own,
            clock,
            began: Instant::now(),
            state: Mutex::default(),
            vote: Mutex::default(),
            absences: Mutex::default(),
            is_on_demand: false,
            progress: Mutex::default(),
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

    /// What new marks say of the time.
    fn mark_time(&self) -> Option<i64> {
        self.config.stamps_marks.then(|| self.clock.wall_ms())
    }

    /// The bookies that are registered.
    async fn bookies(&self) -> Result<Arc<Bookies>, StoreError> {
        let bookies = self.facts.bookies().await?;
        self.absences.lock().on_bookies(self.now(), &bookies.ids);
        Ok(bookies)
    }

    /// Of the bookies that a mark names, those that are being emptied: their copies are to be replaced although they are there.
    async fn leaving(&self, named: &[String]) -> Result<BTreeSet<BookieId>, StoreError> {
        let draining = self.facts.draining().await?;
        let is_named = |bookie: &&BookieId| named.iter().any(|name| name == bookie.as_str());
        Ok(draining.iter().filter(is_named).cloned().collect())
    }

    /// Whether a bookie takes copies: it is registered as writable, and not being emptied.
    async fn takes_writes(&self, bookie: &BookieId, bookies: &Bookies) -> Result<bool, StoreError> {
        let is_writable = |registered: &RegisteredBookie| {
            registered.bookie_id == *bookie && registered.mode == RegistrationMode::Writable
        };
        Ok(bookies.registered.iter().any(is_writable) && !self.facts.draining().await?.contains(bookie))
    }

    /// How long a bookie may be away.
    async fn delay(&self) -> Result<Duration, StoreError> {
        Ok(self.facts.delay().await?.unwrap_or(self.config.auditor.delay))
    }

    fn note_error(&self, what: &str, error: &dyn std::fmt::Display) {
        tracing::warn!(%error, "repair: {what}");
        let mut state = self.state.lock();
        (state.last_error, state.last_error_ms) =
            (Some(format!("{what}: {error}")), Some(self.clock.wall_ms()));
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
        report.copies_to_any = self.0.config.targets == Targets::Any;
        report.held_bytes = self.0.bulk.counts().held_bytes;
        report
    }
}

impl Repair {
    /// Starts both: it stands for election at once, and repairs what is marked. Ledgers are read and copied through `client`, whose
    /// session with the metadata store should be its own: locks of one session do not exclude each other. `own` is the bookie that
    /// this process is ([`Targets::Own`]): large copies go past its journal. Without it they go to the bookie as adds.
    pub fn start(
        config: RepairConfig,
        client: Client,
        own: Option<OwnBookie>,
        clock: Arc<dyn Clock>,
    ) -> Repair {
        let common = Arc::new(Common::new(config, client, own, clock));
        let (stop, stopped) = watch::channel(false);
        let tasks = vec![
            tokio::spawn(auditing::run(common.clone(), stopped.clone())),
            tokio::spawn(pacing::run(common.clone(), stopped.clone())),
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

/// Whether a failure to read metadata is about one ledger alone, so that it holds up no other: it cannot be understood, or not be read by this
/// client.
fn is_of_one_ledger(error: &LedgerError) -> bool {
    matches!(error, LedgerError::Malformed { .. } | LedgerError::Store(StoreError::NoAuth { .. }))
}

/// A ledger, for messages.
fn named(ledger: LedgerId) -> String {
    format!("ledger {ledger}")
}
