//! Ledgers in object storage, on the side of the bookie: reading entries back, and letting local copies go.
//!
//! # Data flow
//! ```text
//! read ─► engine: in object storage alone ─► cached? ─ yes ─► answered like an entry in memory
//!                                               └ no ─► parked; extent (local disk) ─► fetcher ─► unparked, planned again
//!                                                  its object is gone or bad ─► catalogue: the object by now ─► fetcher
//! ledgers closed and reconciled ─► trim: metadata, grace ─► catalogue: their objects ─► check (T19) ─► engine: trim
//! ```
//! [`proof`] who is taken for a tierer; [`bounds`] how far it is believed; [`reconcile`] what it changes; [`extents`] where entries are;
//! [`locate`] asks the catalogue for that; [`trimmer`] decides what may go; [`trim`] does it; the requests are made by
//! [`bindery_tiering::fetch`] and [`Locator`], on threads of their own.
//!
//! # Invariants
//! 1. A bookie starts, and serves all it has here, whatever the bucket does. Only reads of entries that are in it alone fail,
//!    with an I/O error that says so in the log, never with "no such entry".
//! 2. A parked read holds its descriptor and a place among those that wait; no permit, no window, no slot of the I/O pool.
//! 3. No thread of the runtime or of the I/O pool waits for the bucket, or for a look into the state table.
//! 4. A read whose object is gone, damaged or another one is looked up once more, in the catalogue as it is by then, and asks again
//!    when it is in another object (T10). So a bookie that was not told of a rewrite reads on.
//! 5. A read that waits for the state table of a disk that hangs is refused after the same time as one that waits for the bucket.
//! 6. Remembered extents of a ledger are forgotten when a tierer tells others: the ledger may be another one by now.
//!
//! # Limits
//! Memory: a part of the memory limit, for reading, and for the catalogue: [`TierConfig::catalogue_bytes`] for its blocks; its indexes and
//! the part of its log behind the newest snapshot come on top, some 14 MB with ten million extents. Waiters, requests:
//! [`FetchOptions`], [`Locator`]. Threads: [`THREADS`], and [`LOOKUP_THREADS_MAX`] that wait for local disks.

mod bounds;
mod extents;
mod locate;
#[cfg(test)]
mod model;
mod proof;
mod reconcile;
mod trim;
mod trimmer;
mod view;

pub use proof::REREAD_INTERVAL;
pub use trim::{TrimDesk, TrimStatus, TrimTask};
pub use trimmer::{Blocked, Candidate, Room, TrimConfig, Trimmer, Verdict};
pub use view::{NUMBERS, REACHABLE, TierNumbers, expose, json, ledger_json};

use crate::log_limit::LogLimit;
use crate::metrics::{Counter, Summary};
use bindery_engine::{Engine, Refusal, TieredRead};
use bindery_io::canary::{Canaries, Canary};
use bindery_io::{Clock, SystemRandom};
use bindery_tiering::catalogue::{CatalogueOptions, Locator, Requests};
use bindery_tiering::fetch::{
    Ask, Entry, FetchError, FetchOptions, Fetched, Fetcher, Offer, ReaderId, Ticket,
};
use bindery_tiering::store::{self, OpenError, Store, StoreOptions, StoreUrl};
use bindery_tiering::{ClusterId, InvalidId};
use bindery_types::tier::{ObjectRef, TierExtent};
use bindery_types::{LedgerId, LedgerMetadata};
use bindery_wire::ErrorCode;
use bindery_wire::v3::reconcile::Reconciled;
use extents::Extents;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Threads that send requests and decode blocks.
const THREADS: usize = 2;
/// Threads beside these that look up extents, and read objects of a local directory.
const LOOKUP_THREADS_MAX: usize = 8;
/// A directory that could not be opened is tried again after this.
const OPEN_PAUSE: Duration = Duration::from_secs(5);
/// Requests of tierers that wait for the journal: their answers are larger than what is promised for them.
const RECONCILES_MAX: usize = 64;
/// Rows of the catalogue that are remembered beside its blocks: some 2 MB.
const CATALOGUE_ROWS_MAX: usize = 20_000;
/// One line about the bucket in this time.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Settings of what a bookie does with object storage.
#[derive(Debug, Clone)]
pub struct TierConfig {
    /// Where the bucket is.
    pub url: StoreUrl,
    /// Time limits of the store's own.
    pub store: StoreOptions,
    /// Bounds of reading. Its memory is a part of the memory limit: see [`TierConfig::memory_bytes`].
    pub fetch: FetchOptions,
    /// Memory for reading; `None` for a part of the memory limit.
    pub memory_bytes: Option<u64>,
    /// When local copies go.
    pub trim: TrimConfig,
}

impl TierConfig {
    /// The defaults, for a bucket.
    pub fn new(url: StoreUrl) -> TierConfig {
        TierConfig {
            url,
            // Retries are the fetcher's, which knows how long its readers wait.
            store: StoreOptions {
                request_timeout: Duration::from_secs(10),
                retry_timeout: Duration::from_secs(10),
                retries_max: 0,
                ..StoreOptions::default()
            },
            fetch: FetchOptions::default(),
            memory_bytes: None,
            trim: TrimConfig::default(),
        }
    }

    /// Memory for object storage, by the memory limit: for reading, and [`TierConfig::extents_bytes`] and
    /// [`TierConfig::catalogue_bytes`] of it.
    pub fn memory_bytes(&self, limit: u64) -> u64 {
        self.memory_bytes.unwrap_or((limit / 8).clamp(16 << 20, 256 << 20))
    }

    /// The part of this for extents that wait for the state table.
    pub fn extents_bytes(memory_bytes: u64) -> u64 {
        (memory_bytes / 8).min(16 << 20)
    }

    /// The part of this for blocks of the catalogue.
    pub fn catalogue_bytes(memory_bytes: u64) -> u64 {
        (memory_bytes / 8).min(8 << 20)
    }
}

/// Why object storage cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The settings of its store.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The cluster has no id that objects could be told by (T18).
    #[error("object storage needs a cluster with an INSTANCEID, which `bindery cluster init` draws: {0}")]
    Cluster(InvalidId),
    /// Its threads could not be started.
    #[error("cannot start the threads that read from object storage: {0}")]
    Threads(std::io::Error),
}

/// How a read from object storage failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Object storage did not give it.
    Fetch(FetchError),
    /// Where it is could not be looked up here.
    Lookup(Refusal),
}

impl Failure {
    /// How a client is told. None of it says that there is no such entry.
    pub fn refusal(&self) -> Refusal {
        match self {
            Failure::Fetch(FetchError::Busy) => Refusal::TooManyRequests,
            Failure::Fetch(_) => Refusal::Io,
            // The ledger went meanwhile.
            Failure::Lookup(Refusal::NoLedger) => Refusal::NoLedger,
            Failure::Lookup(_) => Refusal::Io,
        }
    }

    /// True when a second look may find the entry in another object (invariant 4).
    pub fn may_be_elsewhere(&self) -> bool {
        matches!(
            self,
            Failure::Fetch(
                FetchError::Missing { .. }
                    | FetchError::Different { .. }
                    | FetchError::Damaged { .. }
                    | FetchError::Refused { .. }
            )
        )
    }
}

/// A read that object storage did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadFailure {
    /// Its ledger.
    pub ledger: LedgerId,
    /// Its entry.
    pub entry: i64,
    /// The object, and what is wrong with it or with the bucket.
    pub why: String,
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
}

/// The outcome of a read that was parked.
#[derive(Debug)]
pub struct Arrival {
    /// The entry, or why not.
    pub outcome: Result<Fetched, Failure>,
    /// The object that was asked.
    pub object: Option<ObjectRef>,
}

/// A parked read's place among those that wait. Dropping it gives the place back; nobody is called then.
pub struct Waiting(Arc<Mutex<Place>>);

impl Waiting {
    /// A place whose wait is over.
    #[cfg(test)]
    pub fn for_test() -> Waiting {
        Waiting(Arc::new(Mutex::new(Place::Over)))
    }
}

enum Place {
    /// Its extent is being looked up.
    LooksUp,
    /// The fetcher has it.
    Waits(#[expect(dead_code, reason = "dropping it cancels")] Ticket),
    /// Called back, or no longer wanted.
    Over,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A ticket is dropped without the lock: it may call others back.
        let place = std::mem::replace(&mut *self.0.lock(), Place::Over);
        drop(place);
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiting")
    }
}

/// A request of a tierer that is under way.
pub struct Reconciling(Arc<Tier>);

impl Reconciling {
    /// It is answered.
    pub fn end(self, results: &[Reconciled]) {
        let taken = results.iter().filter(|result| result.code == ErrorCode::Ok).count();
        self.0.reconciled.add(taken as u64);
        self.0.not_reconciled.add((results.len() - taken) as u64);
        // Invariant 6.
        let mut known = self.0.extents.lock();
        results.iter().for_each(|result| known.forget(result.ledger));
    }
}

impl Drop for Reconciling {
    fn drop(&mut self) {
        self.0.reconciling.fetch_sub(1, Ordering::AcqRel);
    }
}

/// See the module.
pub struct Tier {
    url: StoreUrl,
    fetcher: Arc<OnceLock<Fetcher>>,
    locator: Arc<OnceLock<Locator>>,
    extents: Mutex<Extents>,
    lookups: AtomicUsize,
    lookups_max: usize,
    /// Until a look into the state table is given up.
    lookup_deadline: Duration,
    log: Mutex<LogLimit>,
    /// Clients are told a code only.
    last_failure: Mutex<Option<ReadFailure>>,
    clock: Arc<dyn Clock>,
    canaries: Canaries,
    /// Time that parked reads waited.
    pub waits: Summary,
    /// Reads that were looked up a second time because their object was gone.
    pub second_looks: Counter,
    /// Trimming.
    pub desk: TrimDesk,
    trim: TrimConfig,
    cluster: ClusterId,
    /// Once it has joined the cluster.
    home: OnceLock<proof::Home>,
    warnings: Mutex<LogLimit>,
    reconciling: AtomicUsize,
    /// Ledgers of which a tierer said how far they are in object storage, and that was taken.
    pub reconciled: Counter,
    /// Those for which it was not.
    pub not_reconciled: Counter,
    /// Last: its tasks use the rest.
    runtime: OwnRuntime,
}

/// Ends without waiting: it is dropped where nobody may.
struct OwnRuntime(Option<Runtime>);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl OwnRuntime {
    fn handle(&self) -> &tokio::runtime::Handle {
        self.0.as_ref().expect("it is there until it is dropped").handle()
    }
}

impl Tier {
    /// Opens the bucket of a cluster, without a request to it. A local directory that is not there is tried again until it is.
    ///
    /// # Errors
    /// For settings that no retry mends.
    pub fn open(
        config: &TierConfig,
        memory_bytes: u64,
        instance_id: &str,
        clock: Arc<dyn Clock>,
        canaries: Canaries,
    ) -> Result<Arc<Tier>, TierError> {
        let cluster: ClusterId = instance_id.trim().parse().map_err(TierError::Cluster)?;
        let tier = Tier::new(&config.url, cluster, &config.fetch, clock, canaries)?;
        let tier = Tier { trim: config.trim.clone(), ..tier };
        let catalogue_bytes = TierConfig::catalogue_bytes(memory_bytes);
        let memory_bytes = memory_bytes - TierConfig::extents_bytes(memory_bytes) - catalogue_bytes;
        let fetch = FetchOptions {
            memory_bytes_max: memory_bytes,
            index_bytes_max: memory_bytes / 4,
            ..config.fetch.clone()
        };
        let make = {
            let (parts, url) = (tier.parts(), config.url.clone());
            // The task that follows the catalogue has no retries of its own.
            let with_retries = StoreOptions {
                request_timeout: config.store.request_timeout,
                retry_timeout: config.fetch.request_timeout,
                ..StoreOptions::default()
            };
            move |store: Store| {
                let of_catalogue = store::open(&url, &with_retries).unwrap_or_else(|_| store.clone());
                parts.set(store, of_catalogue, fetch, catalogue_bytes);
            }
        };
        match store::open(&config.url, &config.store) {
            Ok(store) => make(store),
            Err(error @ OpenError::Directory { .. }) => {
                tracing::error!(%error, "cannot reach the tier, retrying: local entries are served meanwhile");
                tier.handle().spawn(open_later(config.url.clone(), config.store.clone(), make));
            }
            Err(error @ OpenError::Settings { .. }) => return Err(error.into()),
        }
        Ok(Arc::new(tier))
    }

    /// A bucket that is open already, for tests.
    ///
    /// # Errors
    /// As [`Tier::open`].
    pub fn with_store(
        store: Store,
        cluster: ClusterId,
        fetch: FetchOptions,
        clock: Arc<dyn Clock>,
        canaries: Canaries,
    ) -> Result<Arc<Tier>, TierError> {
        let tier = Tier::new(store.url(), cluster, &fetch, clock, canaries)?;
        tier.parts().set(store.clone(), store, fetch, 1 << 20);
        Ok(Arc::new(tier))
    }

    fn new(
        url: &StoreUrl,
        cluster: ClusterId,
        fetch: &FetchOptions,
        clock: Arc<dyn Clock>,
        canaries: Canaries,
    ) -> Result<Tier, TierError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(LOOKUP_THREADS_MAX)
            .thread_name("tier")
            .enable_all()
            .build()
            .map_err(TierError::Threads)?;
        Ok(Tier {
            url: url.clone(),
            fetcher: Arc::default(),
            locator: Arc::default(),
            extents: Mutex::default(),
            lookups: AtomicUsize::new(0),
            lookups_max: fetch.waiters_max,
            lookup_deadline: fetch.deadline,
            log: Mutex::new(LogLimit::new(LOG_INTERVAL)),
            last_failure: Mutex::default(),
            clock,
            canaries,
            waits: Summary::latency(1),
            second_looks: Counter::default(),
            desk: TrimDesk::default(),
            trim: TrimConfig::default(),
            cluster,
            home: OnceLock::new(),
            warnings: Mutex::new(LogLimit::new(LOG_INTERVAL)),
            reconciling: AtomicUsize::new(0),
            reconciled: Counter::default(),
            not_reconciled: Counter::default(),
            runtime: OwnRuntime(Some(runtime)),
        })
    }

    /// Writes a line about a request of a tierer, or of a peer that is none, unless one was written just before. It gets the number of lines
    /// that were left out.
    pub fn warn(&self, write: impl FnOnce(u64)) {
        let admitted = self.warnings.lock().admit(self.clock.monotonic_ns());
        if let Some(left_out) = admitted {
            write(left_out);
        }
    }

    /// Where the bucket is.
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// Whose objects it reads.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The reader of entries, which is not there while its directory is not.
    pub fn reader(&self) -> Arc<OnceLock<Fetcher>> {
        self.fetcher.clone()
    }

    /// Whether local copies of a ledger go here once it is in object storage, by the settings.
    pub fn lets_go(&self, metadata: &LedgerMetadata) -> bool {
        self.trim.is_on && self.trim.wants(metadata)
    }

    /// A place for a request of a tierer, unless too many are under way.
    pub fn begin_reconcile(self: &Arc<Self>) -> Option<Reconciling> {
        let before = self.reconciling.fetch_add(1, Ordering::AcqRel);
        // Dropped when there are too many.
        let place = Reconciling(self.clone());
        (before < RECONCILES_MAX).then_some(place)
    }

    /// The last read that failed.
    pub fn last_failure(&self) -> Option<ReadFailure> {
        self.last_failure.lock().clone()
    }

    /// The reader of entries; `None` while its directory is not there.
    pub fn fetcher(&self) -> Option<&Fetcher> {
        self.fetcher.get()
    }

    /// Requests that looked into the catalogue.
    pub fn catalogue_requests(&self) -> Requests {
        self.locator.get().map(Locator::requests).unwrap_or_default()
    }

    /// An entry, if it is in memory here. Never waits.
    pub fn cached(&self, connection: u64, read: &TieredRead) -> Option<Entry> {
        let extent = self.extents.lock().get(read.ledger(), read.epoch(), read.entry())?;
        self.fetcher()?.cached(&ask_of(connection, read, extent))
    }

    /// Asks for an entry of a connection. `done` is called once, from any thread and maybe before this returns, unless what is
    /// returned is dropped before. With `not`, another object than that one is wanted: it has failed.
    pub fn ask(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        connection: u64,
        read: TieredRead,
        not: Option<(ObjectRef, Failure)>,
        done: impl FnOnce(Arrival) + Send + 'static,
    ) -> Waiting {
        let place = Arc::new(Mutex::new(Place::LooksUp));
        let begun_ns = self.clock.monotonic_ns();
        let tier = self.clone();
        let done = move |arrival: Arrival| {
            let now_ns = tier.clock.monotonic_ns();
            tier.waits.record(0, now_ns, now_ns.saturating_sub(begun_ns), arrival.outcome.is_ok());
            done(arrival);
        };
        let known = match &not {
            None => self.extents.lock().get(read.ledger(), read.epoch(), read.entry()),
            Some(_) => {
                self.second_looks.add(1);
                self.extents.lock().forget(read.ledger());
                None
            }
        };
        if let Some(extent) = known {
            self.ask_at(extent, connection, &read, &place, done);
            return Waiting(place);
        }
        if self.lookups.fetch_add(1, Ordering::AcqRel) >= self.lookups_max {
            self.lookups.fetch_sub(1, Ordering::AcqRel);
            done(Arrival { outcome: Err(Failure::Fetch(FetchError::Busy)), object: None });
            return Waiting(place);
        }
        if let Some((object, failure)) = not {
            self.look_again(connection, read, (object, failure), &place, done);
            return Waiting(place);
        }
        let (tier, engine, of_lookup) = (self.clone(), engine.clone(), place.clone());
        let (ledger, epoch, entry) = (read.ledger(), read.epoch(), read.entry());
        // Bounded by `lookups_max`, also while a disk hangs.
        let looks_up = self.runtime.handle().spawn_blocking({
            let (tier, place, read) = (self.clone(), place.clone(), read.clone());
            move || {
                let is_over = matches!(*place.lock(), Place::Over);
                let found = (!is_over).then(|| engine.tier_extent(&read));
                tier.lookups.fetch_sub(1, Ordering::AcqRel);
                found
            }
        });
        let deadline = self.lookup_deadline;
        self.runtime.handle().spawn(async move {
            let found = match tokio::time::timeout(deadline, looks_up).await {
                Ok(Ok(found)) => found,
                // The disk does not answer (invariant 5), or the process ends.
                Ok(Err(_)) | Err(_) => Some(Err(Refusal::Io)),
            };
            match found {
                None => {}
                Some(Err(refusal)) => {
                    let outcome = Err(Failure::Lookup(refusal));
                    tier.call(&of_lookup, done, Arrival { outcome, object: None });
                }
                Some(Ok(extent)) => {
                    tier.extents.lock().put(ledger, epoch, entry, extent);
                    tier.ask_at(extent, connection, &read, &of_lookup, done);
                }
            }
        });
        Waiting(place)
    }

    /// Asks the catalogue for another object than the one that failed (invariant 4). Has one of the places of look-ups.
    fn look_again(
        self: &Arc<Self>,
        connection: u64,
        read: TieredRead,
        (object, failure): (ObjectRef, Failure),
        place: &Arc<Mutex<Place>>,
        done: impl FnOnce(Arrival) + Send + 'static,
    ) {
        let (tier, place) = (self.clone(), place.clone());
        self.runtime.handle().spawn(async move {
            let is_over = matches!(*place.lock(), Place::Over);
            let (ledger, entry) = (read.ledger(), read.entry());
            let found = match is_over {
                false => Some(tier.locate(ledger, entry, read.created_ms(), Duration::ZERO).await),
                true => None,
            };
            tier.lookups.fetch_sub(1, Ordering::AcqRel);
            match found {
                None => {}
                Some(Ok(extents)) if extents[0].object != object => {
                    let mut known = tier.extents.lock();
                    for extent in &extents {
                        known.put(ledger, read.epoch(), entry.max(extent.first), *extent);
                    }
                    drop(known);
                    tier.ask_at(extents[0], connection, &read, &place, done);
                }
                Some(found) => {
                    if let Err(error) = found {
                        tracing::debug!(%ledger, %entry, %error, "the catalogue names no other object");
                    }
                    tier.call(&place, done, Arrival { outcome: Err(failure), object: Some(object) });
                }
            }
        });
    }

    /// Calls back, unless it is no longer wanted.
    fn call(&self, place: &Mutex<Place>, done: impl FnOnce(Arrival), arrival: Arrival) {
        let place = std::mem::replace(&mut *place.lock(), Place::Over);
        if !matches!(place, Place::Over) {
            done(arrival);
        }
    }

    fn ask_at(
        self: &Arc<Self>,
        extent: TierExtent,
        connection: u64,
        read: &TieredRead,
        place: &Arc<Mutex<Place>>,
        done: impl FnOnce(Arrival) + Send + 'static,
    ) {
        let object = Some(extent.object);
        let Some(fetcher) = self.fetcher() else {
            let reason = format!("{} is not there", self.url).into();
            let outcome = Err(Failure::Fetch(FetchError::Unreachable { reason }));
            return self.call(place, done, Arrival { outcome, object });
        };
        // Called once: by the callback, or here with an entry that is in memory already.
        let done = Arc::new(Mutex::new(Some(done)));
        let (tier, of_callback, of_place) = (self.clone(), done.clone(), place.clone());
        let callback = move |outcome: Result<Fetched, FetchError>| {
            let Some(done) = of_callback.lock().take() else { return };
            let outcome = outcome.map_err(Failure::Fetch);
            tier.call(&of_place, done, Arrival { outcome, object });
        };
        let outcome = match fetcher.ask(ask_of(connection, read, extent), callback) {
            Ok(Offer::Coming(ticket)) => {
                let mut place = place.lock();
                match *place {
                    Place::LooksUp => *place = Place::Waits(ticket),
                    Place::Waits(_) | Place::Over => {
                        drop(place);
                        drop(ticket);
                    }
                }
                return;
            }
            Ok(Offer::Here(entry)) => Ok(entry.keep()),
            Err(error) => Err(Failure::Fetch(error)),
        };
        let done = done.lock().take();
        if let Some(done) = done {
            self.call(place, done, Arrival { outcome, object });
        }
    }

    /// Notes that a read failed, and writes it down now and then.
    pub fn report(&self, ledger: LedgerId, entry: i64, failure: &Failure) {
        let error = match failure {
            Failure::Fetch(error) => error,
            // The engine has said it.
            Failure::Lookup(_) => return,
        };
        *self.last_failure.lock() =
            Some(ReadFailure { ledger, entry, why: error.to_string(), at_ms: self.clock.wall_ms() });
        let Some(left_out) = self.log.lock().admit(self.clock.monotonic_ns()) else { return };
        if error.is_alarm() {
            tracing::error!(%ledger, entry, left_out, "cannot read an entry from object storage: {error}");
        } else {
            tracing::warn!(%ledger, entry, left_out, "{error}");
        }
    }

    /// True when a read that failed is to be looked up once more (invariant 4).
    pub fn looks_again(&self, failure: &Failure) -> bool {
        failure.may_be_elsewhere() && !self.canaries.has(Canary::T10SourceNotLookedUpAgain)
    }

    pub(crate) fn handle(&self) -> &tokio::runtime::Handle {
        self.runtime.handle()
    }

    /// Its parts that wait until the bucket can be opened.
    fn parts(&self) -> Parts {
        Parts {
            fetcher: self.fetcher.clone(),
            locator: self.locator.clone(),
            cluster: self.cluster,
            clock: self.clock.clone(),
            runtime: self.handle().clone(),
        }
    }
}

/// The parts of [`Tier`] that need its store, and what they are made with.
struct Parts {
    fetcher: Arc<OnceLock<Fetcher>>,
    locator: Arc<OnceLock<Locator>>,
    cluster: ClusterId,
    clock: Arc<dyn Clock>,
    runtime: tokio::runtime::Handle,
}

impl Parts {
    fn set(self, store: Store, of_catalogue: Store, fetch: FetchOptions, catalogue_bytes: u64) {
        let options = CatalogueOptions {
            request_timeout: fetch.request_timeout,
            cache_bytes_max: usize::try_from(catalogue_bytes).unwrap_or(usize::MAX),
            facts_max: CATALOGUE_ROWS_MAX,
            ..CatalogueOptions::default()
        };
        let random = Arc::new(SystemRandom);
        let locator = Locator::start(of_catalogue, self.cluster, options, self.clock, random, &self.runtime);
        drop(self.locator.set(locator));
        drop(self.fetcher.set(Fetcher::new(store, self.cluster, fetch, self.runtime)));
    }
}

fn ask_of(connection: u64, read: &TieredRead, extent: TierExtent) -> Ask {
    Ask { reader: ReaderId(connection), ledger: read.ledger(), entry: read.entry(), extent }
}

async fn open_later(url: StoreUrl, options: StoreOptions, make: impl FnOnce(Store) + Send + 'static) {
    loop {
        tokio::time::sleep(OPEN_PAUSE).await;
        let (url, options) = (url.clone(), options.clone());
        let opened = tokio::task::spawn_blocking(move || store::open(&url, &options)).await;
        if let Ok(Ok(store)) = opened {
            tracing::info!("the tier is now reachable");
            return make(store);
        }
    }
}
