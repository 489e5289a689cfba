//! The shell around the cores: tasks that wait, read, write and ask. It decides nothing.
//!
//! # Data flow
//! ```text
//!                    ┌─ listing, looks ── metadata, LAC
//! main task (Core) ──┼─ objects (Assembly) ── bulk reader ── store          one task each, all owned by the main task
//!                    ├─ updates ── bookies
//!                    └─ desk (Catalogue) ── store
//! ```
//!
//! # Invariants
//! 1. The store is tried out before anything is committed to it, and one that does not honour conditional creates is refused, until an
//!    operator clears it.
//! 2. Every action of the core is answered once, whatever happens to what it does.
//! 3. Memory: objects under construction, those that take over extents of others among them, times ([`Limits::part_bytes`] twice, and a
//!    block), and the bulk reader's budget. See [`TiererConfig::memory_limit`].
//! 4. A stop ends what is under way, or gives it up after [`TiererConfig::stop_patience`]; tasks end with their tierer.

mod desk;
mod meter;
mod object;
mod report;
mod rewrite;
mod run;
mod tierers;
mod upkeep;
mod upload;
mod views;
mod whereabouts;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bindery_client::{BulkOptions, Client};
use bindery_io::{Clock, Random};
use bindery_metadata::{Layout, StoreError as MetadataError};
use bindery_tiering::catalogue::{Catalogue, CatalogueError, CatalogueOptions, OpenMode};
use bindery_tiering::object::Compression;
use bindery_tiering::store::{self, CheckError, CheckOptions, Gate, Store};
use bindery_tiering::{ClusterId, InvalidId};
use bindery_types::LedgerId;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::desk::Desk;
use self::meter::Meter;
pub use self::meter::Prices;
pub use self::report::{
    CostReport, DurationsReport, LagReport, LedgerReport, RequestsReport, Shown, StageReport, TierReport,
};
use self::run::Runner;
use self::tierers::{Notes, Registered};
use self::views::Views;
use crate::assembly::Limits;
use crate::core::Settings;

/// Settings of a tierer.
#[derive(Debug, Clone)]
pub struct TiererConfig {
    /// Bytes of entries and parts in memory. Start: 256 MiB; at least [`MEMORY_MIN`].
    pub memory_limit: u64,
    /// Bytes read in a second; not limited by default.
    pub bytes_per_second: Option<u64>,
    /// How blocks are stored.
    pub compression: Compression,
    /// How long a stop waits for what is under way. Start: 20 s.
    pub stop_patience: Duration,
    /// Tries the store out at start, which takes some 200 requests.
    pub checks_store: bool,
    /// The rest.
    pub settings: Settings,
    /// Of one object; [`Settings::target_bytes`] replaces its target.
    pub limits: Limits,
    /// Of the catalogue.
    pub catalogue: CatalogueOptions,
}

impl Default for TiererConfig {
    fn default() -> TiererConfig {
        TiererConfig {
            memory_limit: 256 << 20,
            bytes_per_second: None,
            compression: Compression::None,
            stop_patience: Duration::from_secs(20),
            checks_store: true,
            settings: Settings::default(),
            limits: Limits::default(),
            catalogue: CatalogueOptions::default(),
        }
    }
}

/// One object of 8 MiB parts and a small reader.
pub const MEMORY_MIN: u64 = 48 << 20;

/// Room of the bulk reader, and the part of the memory that it gets.
const READ_BYTES_MIN: u64 = 16 << 20;
const READ_SHARE: u64 = 3;

impl TiererConfig {
    /// Splits the memory into the reader's part and as many objects as fit into the rest.
    fn memory(&self) -> (u64, usize) {
        let limit = self.memory_limit.max(MEMORY_MIN);
        let read = (limit / READ_SHARE).max(READ_BYTES_MIN);
        // A part that is written, one that is filled, the block that is open, and batches that wait for their turn.
        let object = 2 * self.limits.part_bytes as u64 + (8 << 20);
        let objects = ((limit - read) / object).max(1);
        (read, usize::try_from(objects).unwrap_or(usize::MAX).min(self.settings.objects_max))
    }
}

/// Why a tierer does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The metadata store failed.
    #[error("the metadata store: {0}")]
    Metadata(#[from] MetadataError),
    /// The cluster has no INSTANCEID.
    #[error(
        "the cluster has no INSTANCEID, by which its objects are told from those of other clusters: run bindery cluster init"
    )]
    NoInstanceId,
    /// It has one that is no UUID.
    #[error("the cluster's INSTANCEID cannot name its objects: {0}")]
    InstanceId(#[from] InvalidId),
    /// The store does not do what it has to.
    #[error("{url} cannot hold a tier: {error}")]
    Store {
        /// The store.
        url: String,
        /// What is wrong.
        error: CheckError,
    },
    /// The catalogue cannot be opened.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

/// The parts that a tierer works with.
pub struct Components {
    /// The cluster's metadata.
    pub layout: Layout,
    /// A client of the cluster. It stays the caller's.
    pub client: Client,
    /// The object store.
    pub store: Store,
    /// What is known of its promises: the same for every start in this process.
    pub gate: Arc<Gate>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// For ids.
    pub random: Arc<dyn Random>,
}

/// Shared by all tasks of a tierer.
struct Common {
    cluster: ClusterId,
    store: Store,
    clock: Arc<dyn Clock>,
    meter: Arc<Meter>,
    limits: Limits,
    /// The core's time began so long ago, so that it can express the age of ledgers.
    origin: Duration,
    /// Places for objects under construction, by memory.
    sites: Semaphore,
    /// The clock's time and the runtime's at the same moment.
    started: (Duration, Instant),
    unverified: AtomicU64,
}

/// A hundred years.
const ORIGIN: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Common {
    fn now(&self) -> Duration {
        self.origin + Duration::from_nanos(self.clock.monotonic_ns())
    }

    /// The core's time as the runtime's.
    fn instant(&self, at: Duration) -> Instant {
        self.started.1 + at.saturating_sub(self.started.0)
    }

    fn count_unverified(&self, entries: u64) {
        self.unverified.fetch_add(entries, Ordering::Relaxed);
    }
}

/// A question or an order to a running tierer.
enum Command {
    Report(oneshot::Sender<TierReport>),
    Ledger(LedgerId, oneshot::Sender<LedgerReport>),
    Now(LedgerId, oneshot::Sender<()>),
    Stop,
}

/// Commands that wait.
const COMMANDS_MAX: usize = 64;

/// A way to ask a running tierer. Cheap to clone.
#[derive(Clone)]
pub struct TiererHandle(mpsc::Sender<Command>);

impl TiererHandle {
    /// How it stands; `None` when it has ended.
    pub async fn report(&self) -> Option<TierReport> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Command::Report(reply)).await.ok()?;
        answer.await.ok()
    }

    /// How one ledger stands; `None` when the tierer has ended.
    pub async fn ledger(&self, ledger: LedgerId) -> Option<LedgerReport> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Command::Ledger(ledger, reply)).await.ok()?;
        answer.await.ok()
    }

    /// Asks for a ledger to be tiered now; false when the tierer has ended.
    pub async fn tier_now(&self, ledger: LedgerId) -> bool {
        let (reply, answer) = oneshot::channel();
        self.0.send(Command::Now(ledger, reply)).await.is_ok() && answer.await.is_ok()
    }

    /// Asks it to end; false when it has.
    pub async fn stop(&self) -> bool {
        self.0.send(Command::Stop).await.is_ok()
    }
}

/// A tierer that runs. Dropping it ends it at once: objects that are not committed expire.
pub struct Tierer {
    cluster: ClusterId,
    handle: TiererHandle,
    main: Option<JoinHandle<()>>,
}

impl Tierer {
    /// Tries the store out, opens the catalogue, and starts.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left running.
    pub async fn start(config: TiererConfig, components: Components) -> Result<Tierer, StartError> {
        let Components { layout, client, store, gate, clock, random } = components;
        let cluster: ClusterId =
            layout.instance_id().await?.ok_or(StartError::NoInstanceId)?.trim().parse()?;
        if config.checks_store {
            let url = store.url().to_string();
            let options = CheckOptions { cluster: Some(cluster), compare_and_swap: false };
            let checked = store::admit(&store, &options, &gate, &*clock, &*random, |checked| {
                let took_ms = checked.took.as_millis() as u64;
                tracing::debug!(check = %checked.check, verdict = ?checked.verdict, took_ms, "the store was tried out");
            });
            checked.await.map_err(|error| StartError::Store { url, error })?;
        }
        let (read_bytes, objects_max) = config.memory();
        let mut settings = config.settings.clone();
        settings.objects_max = objects_max;
        let catalogue = Catalogue::open(
            &store,
            cluster,
            OpenMode::Create,
            config.catalogue.clone(),
            clock.clone(),
            random.clone(),
        );
        let catalogue = catalogue.await?;
        let limits = Limits {
            target_bytes: settings.target_bytes(),
            compression: config.compression,
            ..config.limits
        };
        let started = (ORIGIN + Duration::from_nanos(clock.monotonic_ns()), Instant::now());
        let meter = Arc::new(Meter::default());
        let common = Arc::new(Common {
            cluster,
            store,
            clock: clock.clone(),
            meter: meter.clone(),
            limits,
            origin: ORIGIN,
            sites: Semaphore::new(objects_max),
            started,
            unverified: AtomicU64::new(0),
        });
        let options = BulkOptions::new().memory_limit(read_bytes).bytes_per_second(config.bytes_per_second);
        let reader = client.bulk(options.ranges_per_bookie(2));
        let view = Arc::new(Mutex::new(desk::View::default()));
        let desk = Desk {
            catalogue,
            random: random.clone(),
            reservation_ttl_ms: u64::try_from(2 * settings.reservation_use.as_millis()).unwrap_or(u64::MAX),
            meter,
            view: view.clone(),
            refreshed_at: None,
            lost: desk::Lost::default(),
        };
        let (asks, waiting) = mpsc::channel(desk::WAITING_MAX);
        let desk = tokio::spawn(desk.run(waiting));
        let (said, notes) = watch::channel(Notes::default());
        let registered = Registered::new(layout.tierers(), &*random, notes);
        let runner = Runner::new(
            (registered, said),
            config,
            settings,
            common,
            client,
            layout.clone(),
            Arc::new(Views::new(reader, layout)),
            asks,
            desk,
            view,
            random,
        );
        let (commands, waiting) = mpsc::channel(COMMANDS_MAX);
        let main = tokio::spawn(runner.run(waiting));
        Ok(Tierer { cluster, handle: TiererHandle(commands), main: Some(main) })
    }

    /// The cluster whose ledgers it moves.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// A way to ask it.
    pub fn handle(&self) -> TiererHandle {
        self.handle.clone()
    }

    /// Ends it, and returns when it has ended: objects under construction are finished, or given up when that takes long.
    pub async fn stop(mut self) {
        self.handle.stop().await;
        self.ended().await;
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// When one of its tasks did.
    pub async fn ended(&mut self) {
        if let Some(main) = &mut self.main {
            let ended = main.await;
            self.main = None;
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }
}

impl Drop for Tierer {
    fn drop(&mut self) {
        if let Some(main) = &self.main {
            main.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_split_between_reading_and_objects() {
        let of = |memory_limit| TiererConfig { memory_limit, ..TiererConfig::default() }.memory();
        assert_eq!(of(256 << 20), ((256 << 20) / 3, 7));
        assert_eq!(of(0), (16 << 20, 1));
        assert_eq!(of(16 << 30).1, 8);
        let (read, objects) = of(MEMORY_MIN);
        assert!(read + objects as u64 * (24 << 20) <= MEMORY_MIN);
    }
}
