//! The life of a bookie: from its configuration to serving, and back.
//!
//! # Order of the start (protocol reference, section 4.8)
//! ```text
//! descriptors -> examine and lock directories -> bind ports (closing whoever connects) -> metadata, under the session
//! of the process before -> cookies -> open the engine (replay, flush) -> threads -> accept -> register -> serving
//! ```
//! # Invariants
//! 1. Nothing is served before replay is committed; nothing is registered before connections are accepted.
//! 2. Nothing is written to a directory or to metadata before every check that can refuse has passed.
//! 3. While it runs, a lost registration is renewed by the registrar; when that is refused the bookie stops rather than
//!    serve under an identity that may belong to another process.
//! 4. A stop ends within `drain_max` and [`STOP_REST_MAX`] from any state. The next start replays what is not flushed
//!    by then.
//!
//! # Order of the stop
//! ```text
//! engine read-only -> registered read-only (at most ANNOUNCE_MAX) -> accept nothing -> finish what was received,
//! answer (at most drain_max) -> close -> unregister -> garbage collector, engine: flush -> end of session -> admin
//! ```
//! Writers are told "read-only" and replace this bookie while it still answers everything else.

mod error;
mod opening;
mod ports;
mod running;
mod users;

pub use error::StartError;
pub use running::STOP_REST_MAX;

use crate::admin::extension::{AdminExtension, Part};
use crate::admin::ledgers::{EntrySource, reading_bytes};
use crate::admin::{AdminState, Standing};
use crate::auth::Auth;
use crate::cluster_record::ClusterRecord;
use crate::config::{BookieConfig, Identity};
use crate::connection::{Completion, Registry, SliceTurns};
use crate::data_dirs::DataDirs;
use crate::descriptors;
use crate::disks::{Cause, DiskWatch, LedgerCalls, ReadOnlyReasons};
use crate::draining::DrainWatch;
use crate::health::{DataPathWatch, Health};
use crate::io_pool::IoPools;
use crate::latch::Latch;
use crate::listener::Listener;
use crate::log_limit::LogLimit;
use crate::maintenance::garbage::{GarbageCollector, GarbageDesk, GarbageRequest};
use crate::maintenance::surplus::Surplus;
use crate::memory::{MemoryPlan, Pools, Surroundings, default_limit, machine_bytes};
use crate::metadata_check::MetadataChecker;
use crate::metrics::Metrics;
use crate::reload::Watch;
use crate::shared::{BufferSlab, Shared};
use crate::tenants::Tenants;
use crate::tenants::ledgers::LookUps;
use crate::tier::{Tier, TrimTask, Trimmer};
use crate::tls::{Tls, TlsConfig};
use crate::turns::Turns;
use crate::volumes::Volumes;
use bindery_engine::{Engine, EngineThreads};
use bindery_io::{Clock, Disk, Random};
use bindery_metadata::{
    BookieRegistrar, BookieServiceInfo, Layout, MetadataUri, RegistrationEvent, RegistrationMode,
};
use bindery_types::BookieId;
use bindery_wire::FrameLimit;
use opening::{Opened, Opening, blocking, open_dirs, replace_cover};
use parking_lot::Mutex;
use ports::{AdminTask, bind_patiently, log_socket, start_admin};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use users::ReloadUsers;

/// In the service info of a bookie that takes last reconciled entries, because it can read what it would let go.
pub const TIER_PROPERTY: &str = "bindery.tier";

/// What a bookie touches of the outside.
pub struct Components {
    /// Files.
    pub disk: Arc<dyn Disk>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Nonces.
    pub random: Arc<dyn Random>,
    /// The cluster.
    pub metadata: Metadata,
}

/// Where the cluster's metadata is.
pub enum Metadata {
    /// To be connected to.
    Uri(MetadataUri),
    /// Connected already, for tests.
    Layout(Layout),
}

impl Metadata {
    /// Its servers, as an operator knows them.
    fn servers(&self) -> String {
        match self {
            Metadata::Uri(uri) => uri.servers.join(","),
            Metadata::Layout(_) => String::new(),
        }
    }
}

/// How a bookie ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// On request; everything is flushed.
    Stopped,
    /// Its registration was refused while it ran.
    RegistrationLost(String),
    /// A disk is full and `readOnlyModeEnabled` is false; everything is flushed that finds room.
    DiskFull(String),
    /// On request, but not everything could be flushed; the next start replays it.
    Unclean(String),
}

/// A bookie that serves.
pub struct Bookie {
    identity: Identity,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    shared: Arc<Shared>,
    state: Arc<AdminState>,
    layout: Layout,
    registrar: BookieRegistrar,
    events: mpsc::Receiver<RegistrationEvent>,
    engine: EngineThreads,
    stop_serving: Arc<Latch>,
    /// Set when nothing is served any more: until then parked adds are settled.
    stop_metadata_checks: Arc<Latch>,
    serving: JoinHandle<()>,
    garbage: JoinHandle<()>,
    trim: Option<JoinHandle<()>>,
    /// Tasks that look at files of the operator, and at whose ledgers are.
    file_watches: Vec<JoinHandle<()>>,
    metadata_checker: JoinHandle<()>,
    drain_watch: JoinHandle<()>,
    standing: Arc<ReadOnlyReasons>,
    may_be_read_only: bool,
    /// After so long without the metadata store nobody counts on the registration any more.
    session_timeout: Duration,
    /// Its servers, for the log.
    metadata_servers: String,
    watch: JoinHandle<()>,
    health_watch: JoinHandle<()>,
    stop_admin: Arc<Latch>,
    admin: Option<AdminTask>,
    repair_bytes: u64,
    /// Ends with the bookie: the directories' locks.
    dirs: Arc<DataDirs>,
}

/// What a part of a bookie's process uses that writes to its ledger directories beside it, as repair does. While it is kept, no other
/// process gets the directories, also when the bookie has ended.
#[derive(Clone)]
pub struct LocalStore {
    shared: Arc<Shared>,
    repair_bytes: u64,
    _dirs: Arc<DataDirs>,
}

impl LocalStore {
    /// The bookie's engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    /// The part of the bookie's memory limit that repair has; 0 if the bookie's configuration does not speak of it.
    pub fn repair_bytes(&self) -> u64 {
        self.repair_bytes
    }

    /// Object storage, if the bookie reads from one.
    pub fn tier(&self) -> Option<&Arc<Tier>> {
        self.shared.tier.as_ref()
    }

    /// How many adds it answered since it began, and the sum of their times in microseconds.
    pub fn add_times(&self) -> (u64, u64) {
        self.shared.metrics.add_entry.totals()
    }
}

impl Bookie {
    /// Starts a bookie; returns when it serves.
    pub async fn start(mut config: BookieConfig, components: Components) -> Result<Bookie, StartError> {
        let begun_ns = components.clock.monotonic_ns();
        let wanted = config.limits.connections_max;
        let allowed = descriptors::raise(wanted)?;
        config.limits.connections_max = allowed.connections;
        let logs = allowed.logs_as_one(config.ledger_dirs.len());
        config.space.logs_in_memory_as_one = config.space.logs_in_memory_as_one.min(logs);
        let around = Surroundings {
            ledger_dirs: config.ledger_dirs.len(),
            shards_min: config.ledger_dirs.len().max(config.journal_dirs.len()),
            are_connections_set: config.are_connections_set,
            tier_bytes: 0,
            repair_bytes: 0,
            tls_connection_bytes: config.tls.as_ref().map_or(0, TlsConfig::connection_bytes),
            admin_tls_connection_bytes: config.admin_tls.as_ref().map_or(0, TlsConfig::connection_bytes),
        };
        let limit = config.memory_limit.unwrap_or_else(|| default_limit(machine_bytes()));
        let tier_bytes = config.tier.as_ref().map_or(0, |tier| tier.memory_bytes(limit));
        let around = Surroundings { tier_bytes, ..around };
        let plan = match config.has_repair {
            true => MemoryPlan::with_repair(limit, &config.limits, around)?,
            false => MemoryPlan::of(limit, &config.limits, around)?,
        };
        config.limits.connections_max = plan.connections_max;
        config.limits.long_polls_max = config.limits.long_polls_max.min(plan.long_polls_max());
        log_start(&config, &plan, wanted);

        let turns = turns_of_strangers();
        let tls = open_tls(&config, &turns).await?;
        let auth = open_auth(&config, turns, &components.random).await?;
        let tenants = open_tenants(&config, &components.clock).await?;
        let dirs = open_dirs(&config, &components.disk).await?;
        let option = config.option_names.listen;
        let bind_error = |source| StartError::Bind { address: config.listen, option, source };
        let socket = bind_patiently(config.listen).await.map_err(bind_error)?;
        log_socket(&config, &plan, &socket);
        let listener = Listener::new(socket);
        let address = listener.address().map_err(bind_error)?;
        let state = Arc::new(AdminState::default());
        let stop_admin = Arc::new(Latch::default());
        let pools = Pools::new(&plan);
        let (admin, admin_address) =
            start_admin(&config, auth.clone(), &state, &pools.admin, &stop_admin).await?;

        // From here on. A disk that hangs before this point keeps the start waiting.
        let ledger_calls = LedgerCalls::new(dirs.ledgers(), components.clock.clone());
        let components = Components { disk: ledger_calls.watch(components.disk.clone()), ..components };
        let mut disk_watch = {
            let (disk, dirs, write) = (components.disk.clone(), dirs.clone(), plan.write);
            let (limits, slow) = (config.disks.clone(), config.slow_journal);
            let round_interval = config.garbage.interval;
            let prepare = move || {
                let (ledgers, volumes) = (dirs.ledger_files(), dirs.volumes_of_all());
                DiskWatch::prepare(disk, ledgers, volumes, write, limits, slow, round_interval)
            };
            blocking(move || Ok::<_, StartError>(prepare())).await?
        };
        // Whoever connects before everything is ready is closed at once.
        let opening = Opening { config: &config, components: &components, dirs: &dirs, plan: &plan, address };
        let Opened { identity, layout, instance_id, membership, machine, mut known } = tokio::select! {
            () = listener.refuse() => return Err(StartError::Stopped),
            opened = opening.run() => opened?,
        };

        let tier = match &config.tier {
            Some(tier) => {
                let (clock, canaries) = (components.clock.clone(), config.limits.canaries);
                let tier = Tier::open(tier, plan.tier, &instance_id, clock, canaries)?;
                let random = components.random.clone();
                tier.join(layout.clone(), identity.bookie_id.clone(), random).await;
                Some(tier)
            }
            None => None,
        };
        let io = IoPools::start(
            machine.engine.directory_count(),
            config.read_threads,
            pools.loads(),
            components.clock.clone(),
        )
        .map_err(StartError::Thread)?;
        let shared = Arc::new(Shared {
            engine: machine.engine.clone(),
            clock: components.clock.clone(),
            metrics: Metrics::new(machine.engine.journal_count()),
            pressure: Arc::default(),
            io: Arc::new(io),
            pools,
            connections: Registry::default(),
            bulk: SliceTurns::new(tokio::runtime::Handle::current().metrics().num_workers()),
            buffers: BufferSlab::new(config.limits.read_buffer_bytes),
            volumes: Volumes::new(components.disk.clone(), dirs.volumes()),
            limits: config.limits.clone(),
            parked_adds: Arc::default(),
            tls,
            auth,
            tenants,
            tier,
            tier_log: Mutex::new(LogLimit::new(Duration::from_secs(10))),
            long_polls: Default::default(),
            list_log: Default::default(),
            frame_logs: Shared::frame_logs(),
        });
        let standing = Arc::new(ReadOnlyReasons::new(shared.engine.clone()));
        if config.read_only {
            standing
                .set(Cause::Configured, Some("the configuration says so (forceReadOnlyBookie)".to_owned()));
        }
        let drain = DrainWatch {
            layout: layout.clone(),
            bookie_id: identity.bookie_id.clone(),
            standing: standing.clone(),
        };
        // Before anybody can find it as writable.
        let watch_of_drain = drain.look().await.map_err(StartError::Store)?;
        let desk = Arc::new(GarbageDesk::default());
        disk_watch.check(&shared.engine, &standing, &desk).await;
        let engine = machine.start(components.disk.clone(), Arc::new(Completion::new(shared.clone())));
        let _ = state.shared.set(shared.clone());
        let _ = state.bookie_id.set(identity.bookie_id.to_string());
        state.metadata.open(layout.clone());
        let _ = state.disks.set((disk_watch.desk(), standing.clone()));
        let _ = state.standing.set(Standing {
            may_be_read_only: disk_watch.may_be_read_only(),
            disk: components.disk.clone(),
            dirs: dirs.clone(),
        });
        let stop_serving = Arc::new(Latch::default());
        let serving = tokio::spawn({
            let (shared, stop, standing) = (shared.clone(), stop_serving.clone(), standing.clone());
            let lacks_descriptors = move |why| standing.set(Cause::NoConnections, why);
            async move { listener.run(shared, &stop, &lacks_descriptors).await }
        });

        // Before the cover is replaced, which takes as long as metadata has ledgers: adds come meanwhile.
        let checker = MetadataChecker {
            parked: shared.parked_adds.clone(),
            engine: shared.engine.clone(),
            io: shared.io.clone(),
            admission_deadline: shared.limits.admission_deadline,
            layout: layout.clone(),
            bookie_id: identity.bookie_id.clone(),
        };
        let stop_metadata_checks = Arc::new(Latch::default());
        let metadata_checker = tokio::spawn(checker.run(stop_metadata_checks.clone()));
        if let Some(up_to) = known.limbo_up_to {
            // Before anybody can find this bookie: who names it now named it when its entries were lost.
            let marked = replace_cover(&layout, &shared.engine, &identity.bookie_id, up_to).await;
            let without = ClusterRecord { limbo_up_to: None, ..known };
            let saved = match marked {
                Ok(()) => {
                    let dirs = dirs.clone();
                    blocking(move || dirs.save_known(&without)).await.map_err(StartError::from)
                }
                Err(why) => Err(StartError::Integrity(why)),
            };
            if let Err(error) = saved {
                stop_serving.set();
                let _ = serving.await;
                stop_metadata_checks.set();
                let _ = metadata_checker.await;
                // The next start replays what it could not flush; the error of the start says more.
                let _ = tokio::task::spawn_blocking(move || engine.stop()).await;
                return Err(error);
            }
            known = without;
            shared.engine.end_cover();
        }
        let trim = shared.tier.clone().zip(config.tier.as_ref()).map(|(tier, settings)| {
            let task = TrimTask {
                engine: shared.engine.clone(),
                clock: shared.clock.clone(),
                volumes: shared.volumes.clone(),
                tier,
                layout: layout.clone(),
                random: components.random.clone(),
                trimmer: Trimmer::new(settings.trim.clone(), config.limits.canaries),
                log: LogLimit::new(crate::tier::LOG_INTERVAL),
            };
            task.start(stop_serving.clone())
        });
        let mut file_watches = watch_files(&config, &shared, &stop_serving);
        if let Some(tenants) = shared.tenants.clone() {
            let look_ups = LookUps { tenants, layout: layout.clone() };
            file_watches.push(tokio::spawn(look_ups.run(stop_serving.clone())));
        }
        let _ = state.garbage.set(desk.clone());
        let collector = GarbageCollector {
            desk: desk.clone(),
            engine: shared.engine.clone(),
            layout: layout.clone(),
            instance_id: instance_id.clone(),
            config: config.garbage.clone(),
            clock: components.clock.clone(),
            known,
            dirs: dirs.clone(),
            random: components.random.clone(),
            marked: None,
            surplus: Surplus {
                engine: shared.engine.clone(),
                layout: layout.clone(),
                bookie_id: identity.bookie_id.clone(),
                instance_id,
                config: config.surplus.clone(),
                ops_per_second: config.garbage.ops_per_second,
                limits: config.garbage.limits,
                journal_patience: config.garbage.journal_patience,
                before: BTreeMap::new(),
            },
            found_before: Vec::new(),
            unproven: BTreeMap::new(),
            confirms_from: Instant::now(),
            carried: GarbageRequest::default(),
            logged: None,
        };
        let garbage = tokio::spawn(collector.run(stop_serving.clone()));
        let may_be_read_only = disk_watch.may_be_read_only();
        let health_watch = tokio::spawn({
            let standing = standing.clone();
            let watch = DataPathWatch {
                shared: shared.clone(),
                disk: components.disk.clone(),
                dirs: dirs.ledger_files(),
                calls: ledger_calls.clone(),
                lacks_descriptors: Box::new(move || standing.reasons().remove(&Cause::NoConnections)),
                health: state.health.clone(),
            };
            watch.run(stop_serving.clone())
        });
        let watch = tokio::spawn(disk_watch.run(
            ledger_calls,
            shared.engine.clone(),
            desk,
            components.clock.clone(),
            standing.clone(),
            stop_serving.clone(),
        ));
        let drain_watch = tokio::spawn(drain.run(Some(watch_of_drain), stop_serving.clone()));
        let mode = *standing.mode().borrow();
        let admin_endpoint = admin_address.map(|admin| (identity.host.as_str(), admin.port()));
        let mut info = BookieServiceInfo::of_bookie((&identity.host, identity.port), admin_endpoint);
        if shared.tls.is_some() {
            info.offer_tls();
        }
        // Also where the setting is missing, and extents are here: such a bookie refuses updates, so that tierers keep the objects
        // that it needs when the setting is back.
        if config.tier.is_some() || shared.engine.has_tiered() {
            info.properties.insert(TIER_PROPERTY.to_owned(), "1".to_owned());
        }
        let (registrar, events) = BookieRegistrar::start(membership, info, mode, Some(dirs.session_store()));
        let mut bookie = Bookie {
            identity,
            address,
            admin_address,
            shared,
            state,
            layout,
            registrar,
            events,
            engine,
            stop_serving,
            stop_metadata_checks,
            serving,
            garbage,
            trim,
            file_watches,
            metadata_checker,
            drain_watch,
            standing,
            may_be_read_only,
            session_timeout: config.session_timeout,
            metadata_servers: components.metadata.servers(),
            watch,
            health_watch,
            stop_admin,
            admin,
            repair_bytes: plan.repair,
            dirs,
        };
        if let Err(why) = bookie.wait_until_registered().await {
            bookie.shut_down().await;
            return Err(StartError::Registration(why));
        }
        let elapsed_ms = (components.clock.monotonic_ns() - begun_ns) / 1_000_000;
        tracing::info!(
            bookie_id = %bookie.identity.bookie_id,
            listen = %bookie.address,
            admin = bookie.admin_address.map(tracing::field::display),
            read_only = mode == RegistrationMode::ReadOnly,
            journal_sync = config.journal_sync,
            start_ms = elapsed_ms,
            "serving"
        );
        Ok(bookie)
    }

    /// The id it is registered under.
    pub fn bookie_id(&self) -> &BookieId {
        &self.identity.bookie_id
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For parts of this process that write to the ledger directories beside the bookie.
    pub fn local_store(&self) -> LocalStore {
        LocalStore { shared: self.shared.clone(), repair_bytes: self.repair_bytes, _dirs: self.dirs.clone() }
    }

    /// Lets another part of the process answer on the admin port, too. The first one stays.
    pub fn extend_admin(&self, part: Part, extension: Arc<dyn AdminExtension>) {
        self.state.extensions.add(part, extension);
    }

    /// The cluster's metadata, under the session of this bookie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The largest frame that it takes, and the bytes that a source of entries for its admin port may hold.
    pub fn entry_limits(&self) -> (FrameLimit, u64) {
        (self.shared.limits.frame, reading_bytes(&self.shared.limits))
    }

    /// Whether data passes, as liveness probes are told: for the watchdog of a service manager.
    pub fn health(&self) -> Arc<Health> {
        self.state.health.clone()
    }

    /// Lets the admin port show the settings in force, a JSON object. The first ones stay.
    pub fn show_settings(&self, settings: String) {
        let _ = self.state.settings.set(settings);
    }

    /// Lets the admin port show entries of ledgers of the cluster. The first source stays.
    pub fn show_entries(&self, source: Arc<dyn EntrySource>) {
        self.state.entry_reads.open(source);
    }

    /// Where its admin port listens.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    async fn wait_until_registered(&mut self) -> Result<(), String> {
        while let Some(event) = self.events.recv().await {
            match event {
                RegistrationEvent::Registered { mode, session } => {
                    self.on_registered(mode);
                    tracing::info!(?mode, %session, "registered");
                    return Ok(());
                }
                RegistrationEvent::Lost | RegistrationEvent::Expired => {
                    tracing::warn!(?event, "registration interrupted while starting");
                }
                RegistrationEvent::Refused(error) => return Err(error.to_string()),
            }
        }
        Err("the registrar ended".to_owned())
    }

    fn on_registered(&self, mode: RegistrationMode) {
        let status = match mode {
            RegistrationMode::Writable => 1,
            RegistrationMode::ReadOnly => 0,
        };
        self.shared.metrics.server_status.set(status);
        self.state.is_registered.store(true, Ordering::Release);
        self.state.is_running.store(true, Ordering::Release);
    }
}

/// Loads what TLS needs, before anything is touched.
async fn open_tls(config: &BookieConfig, turns: &Turns) -> Result<Option<Arc<Tls>>, StartError> {
    let Some(tls) = config.tls.clone() else { return Ok(None) };
    let turns = turns.clone();
    let tls = blocking(move || Tls::open(tls, turns)).await?;
    Ok(Some(Arc::new(tls)))
}

/// Loads whom this bookie knows, before anything is touched.
async fn open_auth(
    config: &BookieConfig,
    turns: Turns,
    random: &Arc<dyn Random>,
) -> Result<Option<Arc<Auth>>, StartError> {
    let Some(auth) = config.auth.clone() else { return Ok(None) };
    let random = random.clone();
    let auth = blocking(move || Auth::open(auth, turns, random)).await?;
    Ok(Some(Arc::new(auth)))
}

/// Loads who shares this bookie, before anything is touched.
async fn open_tenants(
    config: &BookieConfig,
    clock: &Arc<dyn Clock>,
) -> Result<Option<Arc<Tenants>>, StartError> {
    let Some(tenants) = config.tenants.clone() else { return Ok(None) };
    let clock = clock.clone();
    let tenants = blocking(move || Tenants::open(tenants, clock)).await?;
    Ok(Some(Arc::new(tenants)))
}

/// For handshakes and passwords of peers of this port together, whoever they are: as many as half of the runtime's threads, so that half of the cores
/// are left to others. With one core there is one turn, which the system shares out. The admin port has two more, for a handshake and a password.
fn turns_of_strangers() -> Turns {
    Turns::new(tokio::runtime::Handle::current().metrics().num_workers() / 2)
}

/// Begins to look at the files of TLS, of users and of tenants, if they may change.
fn watch_files(config: &BookieConfig, shared: &Arc<Shared>, stop: &Arc<Latch>) -> Vec<JoinHandle<()>> {
    let mut watches = Vec::new();
    let interval = config.tls.as_ref().and_then(|tls| tls.refresh);
    if let (Some(files), Some(interval)) = (shared.tls.clone(), interval) {
        watches.push(tokio::spawn(Watch { files, interval }.run(stop.clone())));
    }
    if let Some(auth) = config.auth.as_ref().filter(|auth| auth.has_files()) {
        let files = Arc::new(ReloadUsers(shared.clone()));
        watches.push(tokio::spawn(Watch { files, interval: auth.refresh }.run(stop.clone())));
    }
    if let (Some(files), Some(tenants)) = (shared.tenants.clone(), &config.tenants) {
        watches.push(tokio::spawn(Watch { files, interval: tenants.refresh }.run(stop.clone())));
    }
    watches
}

fn log_start(config: &BookieConfig, plan: &MemoryPlan, connections_wanted: usize) {
    let list = |dirs: &[PathBuf]| -> String {
        dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(",")
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        journal_dirs = list(&config.journal_dirs),
        ledger_dirs = list(&config.ledger_dirs),
        listen = %config.listen,
        connections_max = config.limits.connections_max,
        "starting"
    );
    tracing::info!(
        write_mib = plan.write >> 20,
        connections_max = plan.connections_max,
        "memory limit {} MiB; `bindery flow` shows its pools, and the debug log says what each is for",
        plan.limit >> 20
    );
    for (pool, bytes, purpose) in plan.parts() {
        tracing::debug!(pool, mib = bytes >> 20, purpose, "memory pool");
    }
    if config.are_connections_set && plan.connections_max < connections_wanted {
        tracing::warn!(
            "maxConnections={connections_wanted}: file descriptors allow only {}; raise LimitNOFILE or ulimit -n",
            plan.connections_max
        );
    }
    if !config.journal_sync {
        tracing::warn!("journal sync is off: acknowledged entries may be lost in a power cut");
    }
}
