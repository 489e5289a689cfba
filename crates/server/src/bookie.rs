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
//!    serve under an identity that may be somebody else's.
//! 4. A stop ends within `drain_max` and [`STOP_REST_MAX`] from any state. What is not flushed by then is replayed by
//!    the next start.
//!
//! # Order of the stop
//! ```text
//! engine read-only -> registered read-only (at most ANNOUNCE_MAX) -> accept nothing -> finish what was received,
//! answer (at most drain_max) -> close -> unregister -> garbage collector, engine: flush -> end of session -> admin
//! ```
//! Writers are told "read-only" and replace this bookie while it still answers everything else.

use crate::admin::{self, AdminState};
use crate::config::{BookieConfig, Identity, IdentityError};
use crate::connection::{BulkLine, Completion, Registry};
use crate::data_dirs::{self, DataDirError, DataDirs};
use crate::descriptors::{self, TooFewDescriptors};
use crate::disks::{Cause, DiskWatch, Standing};
use crate::garbage::{GarbageCollector, GarbageDesk};
use crate::integrity;
use crate::io_pool::IoPool;
use crate::known::Known;
use crate::latch::Latch;
use crate::listener::Listener;
use crate::memory::{MemoryPlan, MemoryPlanError, Pools, Surroundings, default_limit, machine_bytes};
use crate::metrics::Metrics;
use crate::shared::{BufferSlab, Shared, Volumes};
use crate::sockets;
use crate::surplus::Surplus;
use crate::words::{WordDesk, WordReader};
use bindery_engine::{EngineConfig, EngineThreads, Machine};
use bindery_io::{Clock, Disk, Random};
use bindery_metadata::layout::CookiesError;
use bindery_metadata::{
    BookieRegistrar, BookieServiceInfo, ConnectOptions, Cookie, CookieProblem, Layout, MetadataUri,
    OpenError, RegistrationEvent, RegistrationMode, StartKind, StoreError, Version,
};
use bindery_types::BookieId;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Bound of what a stop does beside draining connections (`drain_max`).
pub const STOP_REST_MAX: Duration = Duration::from_secs(5);
/// How long a stop waits until the metadata store shows the bookie as read-only.
const ANNOUNCE_MAX: Duration = Duration::from_secs(1);
/// How long the stop waits for the metadata store.
const UNREGISTER_MAX: Duration = Duration::from_secs(2);
/// How often, and at what distance, a taken port is tried again: half a second.
const BIND_ATTEMPTS: u32 = 25;
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// How often, and at what distance, ledgers that may have lost entries are looked for.
const COVER_ATTEMPTS: u32 = 10;
const COVER_PAUSE: Duration = Duration::from_secs(1);
/// Read buffers that were not needed for so long go back to the system.
const BUFFER_TRIM_INTERVAL: Duration = Duration::from_secs(30);
/// Disk reads queued or running for each thread, in each lane: enough that no thread idles while the next one comes, few
/// enough that connections wait in the order of arrival for a slot, and not behind the jobs of one of them.
const READ_SLOTS_PER_THREAD: usize = 4;

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

/// Why a bookie does not start. Each says what to do; nothing is lost.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Too few file descriptors.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// The memory limit is too small.
    #[error(transparent)]
    Memory(#[from] MemoryPlanError),
    /// A data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// A port cannot be bound.
    #[error("cannot listen on {address}: {source}. {}", port_advice(.source, .option))]
    Bind {
        /// Where.
        address: SocketAddr,
        /// The option that says so.
        option: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The bookie has no usable name.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The cluster cannot be opened.
    #[error("{0}")]
    Metadata(#[from] OpenError),
    /// The metadata store failed.
    #[error("metadata: {0}")]
    Store(#[from] StoreError),
    /// The cookies say no.
    #[error(transparent)]
    Cookie(#[from] Box<CookieProblem>),
    /// A cookie cannot be read or written.
    #[error("cookie in the metadata store: {0}")]
    StoredCookie(#[from] CookiesError),
    /// The engine cannot be opened.
    #[error(transparent)]
    Engine(#[from] Box<bindery_engine::OpenError>),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The bookie cannot be registered.
    #[error("{0}")]
    Registration(String),
    /// Entries may be lost, and metadata does not say of which ledgers.
    #[error(
        "cannot find out in metadata which ledgers this bookie may have lost entries of: {0}. Nothing was denied to \
         anybody; start again when the metadata store is well"
    )]
    Integrity(String),
    /// Stopped while starting.
    #[error("stopped while starting")]
    Stopped,
}

fn port_advice(source: &io::Error, option: &str) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            format!("Another process has the port: stop it, or choose another port with {option}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("Ports below 1024 need privileges: choose another port with {option}")
        }
        _ => format!("Give an address of this machine with {option}"),
    }
}

/// How a bookie ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to; everything is flushed.
    Stopped,
    /// Its registration was refused while it ran.
    RegistrationLost(String),
    /// A disk is full and `readOnlyModeEnabled` is false; everything is flushed that finds room.
    DiskFull(String),
    /// It was asked to, but not everything could be flushed; the next start replays it.
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
    serving: JoinHandle<()>,
    garbage: JoinHandle<()>,
    words: JoinHandle<()>,
    standing: Arc<Standing>,
    may_be_read_only: bool,
    watch: JoinHandle<()>,
    stop_admin: Arc<Latch>,
    admin: Option<AdminTask>,
    /// Ends with the bookie: the directories' locks.
    dirs: Arc<DataDirs>,
}

impl Bookie {
    /// Starts a bookie; returns when it serves.
    pub async fn start(mut config: BookieConfig, components: Components) -> Result<Bookie, StartError> {
        let begun_ns = components.clock.monotonic_ns();
        let wanted = config.limits.connections_max;
        config.limits.connections_max = descriptors::raise(wanted)?;
        let around = Surroundings {
            ledger_dirs: config.ledger_dirs.len(),
            shards_min: config.ledger_dirs.len().max(config.journal_dirs.len()),
            are_connections_set: config.are_connections_set,
        };
        let limit = config.memory_limit.unwrap_or_else(|| default_limit(machine_bytes()));
        let plan = MemoryPlan::of(limit, &config.limits, around)?;
        config.limits.connections_max = plan.connections_max;
        config.limits.long_polls_max = config.limits.long_polls_max.min(plan.long_polls_max());
        log_start(&config, &plan, wanted);

        let dirs = open_dirs(&config, &components.disk).await?;
        let option = config.option_names.listen;
        let bind_error = |source| StartError::Bind { address: config.listen, option, source };
        let socket = bind_patiently(config.listen).await.map_err(bind_error)?;
        log_socket(&config, &plan, &socket);
        let listener = Listener::new(socket);
        let address = listener.address().map_err(bind_error)?;
        let state = Arc::new(AdminState::default());
        let stop_admin = Arc::new(Latch::default());
        let (admin, admin_address) = start_admin(&config, &state, &stop_admin).await?;

        let disk_watch = {
            let (disk, dirs, write) = (components.disk.clone(), dirs.clone(), plan.write);
            let (limits, slow) = (config.disks.clone(), config.slow_journal);
            let prepare = move || {
                let (ledgers, volumes) = (dirs.ledger_files(), dirs.volumes_of_all());
                DiskWatch::prepare(disk, ledgers, volumes, write, limits, slow)
            };
            blocking(move || Ok::<_, StartError>(prepare())).await?
        };
        // Whoever connects before everything is ready is closed at once.
        let opening = Opening { config: &config, components: &components, dirs: &dirs, plan: &plan, address };
        let Opened { identity, layout, instance_id, machine, mut known } = tokio::select! {
            () = listener.refuse() => return Err(StartError::Stopped),
            opened = opening.run() => opened?,
        };

        let shared = Arc::new(Shared {
            engine: machine.engine.clone(),
            clock: components.clock.clone(),
            pools: Pools::new(&plan),
            metrics: Metrics::new(),
            io: IoPool::start(config.read_threads, READ_SLOTS_PER_THREAD * config.read_threads.max(1))
                .map_err(StartError::Thread)?,
            connections: Registry::default(),
            bulk: BulkLine::new(tokio::runtime::Handle::current().metrics().num_workers()),
            buffers: BufferSlab::new(config.limits.read_buffer_bytes),
            volumes: Volumes::new(components.disk.clone(), dirs.volumes()),
            limits: config.limits.clone(),
            words: WordDesk::default(),
        });
        let standing = Arc::new(Standing::new(shared.engine.clone()));
        if config.read_only {
            standing
                .set(Cause::Configured, Some("the configuration says so (forceReadOnlyBookie)".to_owned()));
        }
        disk_watch.check(&shared.engine, &standing).await;
        let engine = machine.start(components.disk.clone(), Arc::new(Completion::new(shared.clone())));
        let _ = state.shared.set(shared.clone());
        let _ = state.disks.set((disk_watch.desk(), standing.clone()));
        let stop_serving = Arc::new(Latch::default());
        let serving = tokio::spawn({
            let (shared, stop) = (shared.clone(), stop_serving.clone());
            async move { listener.run(shared, &stop).await }
        });

        if let Some(up_to) = known.limbo_up_to {
            // Before anybody can find this bookie: who names it now named it when its entries were lost.
            let marked = replace_cover(&layout, &shared.engine, &identity.bookie_id, up_to).await;
            let without = Known { limbo_up_to: None, ..known };
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
                // What it could not flush is replayed; the error of the start says more.
                let _ = tokio::task::spawn_blocking(move || engine.stop()).await;
                return Err(error);
            }
            known = without;
            shared.engine.end_cover();
        }
        let desk = Arc::new(GarbageDesk::default());
        let _ = state.garbage.set(desk.clone());
        let collector = GarbageCollector {
            desk,
            engine: shared.engine.clone(),
            layout: layout.clone(),
            instance_id: instance_id.clone(),
            config: config.garbage.clone(),
            clock: components.clock.clone(),
            known,
            dirs: dirs.clone(),
            surplus: Surplus {
                engine: shared.engine.clone(),
                layout: layout.clone(),
                bookie_id: identity.bookie_id.clone(),
                instance_id,
                config: config.surplus.clone(),
                ops_per_second: config.garbage.ops_per_second,
                limits: config.garbage.limits,
                before: BTreeMap::new(),
            },
        };
        let garbage = tokio::spawn(collector.run(stop_serving.clone()));
        let words = WordReader {
            shared: shared.clone(),
            layout: layout.clone(),
            bookie_id: identity.bookie_id.clone(),
        };
        let words = tokio::spawn(words.run(stop_serving.clone()));

        let may_be_read_only = disk_watch.may_be_read_only();
        let watch = tokio::spawn(disk_watch.run(
            shared.engine.clone(),
            components.clock.clone(),
            standing.clone(),
            stop_serving.clone(),
        ));
        let mode = *standing.mode().borrow();
        let admin_endpoint = admin_address.map(|admin| (identity.host.as_str(), admin.port()));
        let info = BookieServiceInfo::of_bookie((&identity.host, identity.port), admin_endpoint);
        let (registrar, events) = BookieRegistrar::start(
            layout.registration(),
            identity.bookie_id.clone(),
            info,
            mode,
            Some(dirs.session_store()),
        );
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
            serving,
            garbage,
            words,
            standing,
            may_be_read_only,
            watch,
            stop_admin,
            admin,
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
        self.state.is_running.store(true, Ordering::Release);
    }

    /// Serves until `stop`, or until the registration is refused; then shuts down.
    pub async fn run(mut self, stop: &Latch) -> Ended {
        let mut lost = None;
        let mut full = None;
        let mut mode = self.standing.mode();
        // What changed while the bookie was being registered is a change too.
        mode.mark_changed();
        let mut trim = tokio::time::interval(BUFFER_TRIM_INTERVAL);
        loop {
            tokio::select! {
                () = stop.wait() => break,
                _ = trim.tick() => self.shared.buffers.trim(),
                event = self.events.recv() => match event {
                    Some(RegistrationEvent::Registered { mode, session }) => {
                        self.on_registered(mode);
                        tracing::info!(?mode, %session, "registered again");
                    }
                    Some(RegistrationEvent::Lost) => tracing::warn!("connection to the metadata store lost"),
                    Some(RegistrationEvent::Expired) => {
                        self.shared.metrics.server_status.set(-1);
                        tracing::warn!("metadata session expired: registering again");
                    }
                    Some(RegistrationEvent::Refused(error)) => {
                        lost = Some(error.to_string());
                        break;
                    }
                    None => {
                        lost = Some("the registrar ended".to_owned());
                        break;
                    }
                },
                Ok(()) = mode.changed() => {
                    let mode = *mode.borrow_and_update();
                    let reasons = self.standing.reasons();
                    let why = reasons.get(&Cause::DiskFull).or(reasons.get(&Cause::NoSpace));
                    if let (false, Some(why)) = (self.may_be_read_only, why) {
                        full = Some(why.clone());
                        break;
                    }
                    self.registrar.set_mode(mode);
                }
            }
        }
        if let Some(why) = &lost {
            tracing::error!(why, "registration refused: stopping");
        }
        if let Some(why) = &full {
            tracing::error!(why, "stopping, because readOnlyModeEnabled is false");
        }
        let unclean = self.shut_down().await;
        match (lost, full, unclean) {
            (Some(why), ..) => Ended::RegistrationLost(why),
            (None, Some(why), _) => Ended::DiskFull(why),
            (None, None, Some(why)) => Ended::Unclean(why),
            (None, None, None) => Ended::Stopped,
        }
    }

    /// Lets clients that look for bookies find this one as read-only, if the metadata store answers in time.
    async fn announce_read_only(&mut self) {
        self.registrar.set_mode(RegistrationMode::ReadOnly);
        let announced = async {
            while let Some(event) = self.events.recv().await {
                if matches!(event, RegistrationEvent::Registered { mode: RegistrationMode::ReadOnly, .. }) {
                    return true;
                }
            }
            false
        };
        match tokio::time::timeout(ANNOUNCE_MAX, announced).await {
            Ok(true) => tracing::info!("registered as read-only"),
            Ok(false) | Err(_) => {
                tracing::warn!("cannot be registered as read-only now: stopping all the same")
            }
        }
    }

    /// Ends everything within the bounds of the stop; says what could not be ended in order.
    async fn shut_down(mut self) -> Option<String> {
        let drain_max = self.shared.limits.drain_max;
        tracing::info!(?drain_max, "stopping");
        self.state.is_shutting_down.store(true, Ordering::Release);
        self.state.is_running.store(false, Ordering::Release);
        let was_writable = *self.standing.mode().borrow() == RegistrationMode::Writable;
        self.standing.set(Cause::Stopping, Some("the bookie was asked to stop".to_owned()));
        if was_writable {
            self.announce_read_only().await;
        }
        let Bookie {
            shared,
            layout,
            registrar,
            engine,
            stop_serving,
            serving,
            garbage,
            words,
            watch,
            stop_admin,
            admin,
            dirs,
            ..
        } = self;
        let orderly = async {
            stop_serving.set();
            if serving.await.is_err() {
                tracing::error!("the listener panicked");
            }
            registrar.stop(UNREGISTER_MAX).await;
            shared.metrics.server_status.set(-1);
            if garbage.await.is_err() {
                tracing::error!("the garbage collector panicked");
            }
            if words.await.is_err() {
                tracing::error!("the reader of metadata for adds panicked");
            }
            // It may be waiting for a disk that does not answer; it holds nothing that a stop needs.
            watch.abort();
            let stopped = tokio::task::spawn_blocking(move || {
                shared.io.stop();
                engine.stop().map_err(|error| error.to_string())
            })
            .await
            .unwrap_or_else(|_| Err("the engine panicked while stopping".to_owned()));
            // Ended last: until here the session, and so the identity, is this process's.
            if let Ok(Ok(())) = tokio::time::timeout(UNREGISTER_MAX, layout.store().close()).await {
                // The next start need not ask for a session that is known to be gone.
                let dirs = dirs.clone();
                let _ = tokio::task::spawn_blocking(move || dirs.forget_session()).await;
            }
            stop_admin.set();
            drop(admin);
            stopped.err()
        };
        let stop_max = drain_max + STOP_REST_MAX;
        let unclean = match tokio::time::timeout(stop_max, orderly).await {
            Ok(unclean) => unclean,
            Err(_) => Some(format!("not everything ended within {stop_max:?}")),
        };
        match &unclean {
            None => tracing::info!("stopped"),
            Some(why) => tracing::error!(
                why,
                "stopped uncleanly: acknowledged entries are safe, the next start replays"
            ),
        }
        unclean
    }
}

/// Says what the kernel may keep for each connection, and warns when that is not what was asked for.
fn log_socket(config: &BookieConfig, plan: &MemoryPlan, socket: &TcpListener) {
    let options = &config.limits.socket;
    let granted = match options.apply(socket).and_then(|()| options.granted(socket)) {
        Ok(granted) => granted,
        Err(error) => {
            tracing::warn!(%error, "the kernel refuses an option of sockets; connections are served without it");
            return;
        }
    };
    tracing::info!("{}", plan.kernel_line(granted));
    let sides = [
        ("serverSendBufferSizeBytes", options.send_buffer_bytes, granted.send, "net.core.wmem_max"),
        ("serverReceiveBufferSizeBytes", options.receive_buffer_bytes, granted.receive, "net.core.rmem_max"),
    ];
    for (key, wanted, granted, sysctl) in sides {
        if granted < wanted / 2 * 2 {
            tracing::warn!("{key}={wanted}: the kernel grants {granted}; raise {sysctl} to {}", wanted / 2);
        }
    }
}

/// The admin port; it ends with its owner, also when the start fails half-way.
struct AdminTask(JoinHandle<()>);

impl Drop for AdminTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The middle of the start: everything that can refuse.
struct Opening<'a> {
    config: &'a BookieConfig,
    components: &'a Components,
    dirs: &'a Arc<DataDirs>,
    plan: &'a MemoryPlan,
    address: SocketAddr,
}

impl Opening<'_> {
    async fn run(&self) -> Result<Opened, StartError> {
        let identity = {
            let (config, address) = (self.config.clone(), self.address);
            blocking(move || config.identity(address, &host_name())).await?
        };
        if identity.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            && !self.config.allow_loopback
        {
            tracing::warn!(host = identity.host, "only clients on this machine can reach a loopback address");
        }
        let layout = self.connect().await?;
        let instance_id = layout.instance_id().await?;
        let cookies = self.check_cookies(&identity, &layout, instance_id.as_deref()).await?;
        let mut known = self.known().await?;
        let config = EngineConfig {
            limbo_up_to: known.limbo_up_to,
            checked_up_to: known.checked_up_to,
            journal_dirs: self.dirs.journal_files(),
            former_journal_dirs: cookies.former,
            ledger_dirs: self.dirs.ledger_files(),
            write_pool_bytes: self.plan.write,
            index_pool_bytes: self.plan.index,
            cache_pool_bytes: self.plan.cache,
            pool_memory: self.config.pool_memory,
            journal_bytes_max: self.config.journal_bytes_max,
            journal_file_bytes: self.config.journal_file_bytes,
            journal_files_preallocated: self.config.preallocate,
            journal_sync: self.config.journal_sync,
            entry_bytes_max: self.config.limits.frame.entry_size_bytes_max(),
            group_bytes_max: self.config.limits.group_bytes_max,
            flush_interval: self.config.flush_interval,
            space: self.config.space.clone(),
            journal_slow: self.config.slow_journal.p99_max,
            instance_id: instance_id.clone().unwrap_or_default(),
            bookie_id: identity.bookie_id.to_string(),
            ..engine_sizes(
                self.dirs.ledgers().len().max(self.config.journal_dirs.len()),
                self.plan.write,
                &self.config.limits,
            )
        };
        let Components { disk, clock, random, .. } = self.components;
        let begun_ns = clock.monotonic_ns();
        let open = |config: EngineConfig| {
            let (disk, clock, random) = (disk.clone(), clock.clone(), random.clone());
            blocking(move || Machine::open(config, disk, clock, random).map_err(Box::new))
        };
        let machine = match open(config.clone()).await {
            Err(error) if self.config.accept_journal_damage && error.is_journal_damage() => {
                tracing::error!(
                    %error,
                    "the journal is damaged, and the operator accepts it: every ledger that may have lost entries is in limbo"
                );
                // Durable before anything of the journal is taken over: after that nothing shows the damage any more.
                known = self.enter_limbo(&layout).await?;
                let (limbo_up_to, checked_up_to) = (known.limbo_up_to, known.checked_up_to);
                open(EngineConfig { limbo_up_to, checked_up_to, accepts_journal_damage: true, ..config })
                    .await?
            }
            opened => opened?,
        };
        if let Some(damage) = &machine.replayed.first_damage {
            tracing::error!(places = machine.replayed.damaged_places, first = %damage, "damage was passed over");
        }
        tracing::info!(
            open_ms = (clock.monotonic_ns() - begun_ns) / 1_000_000,
            replayed_records = machine.replayed.records,
            replayed_bytes = machine.replayed.bytes,
            torn_tail = machine.replayed.torn_tail.is_some(),
            "engine open"
        );
        if let Some((order, version)) = cookies.stamp_later {
            let expected = self.dirs.expected_cookie(&identity.bookie_id, instance_id.as_deref());
            self.stamp(&expected, Some(order)).await?;
            layout.cookies().update(&identity.bookie_id, &expected, version).await?;
            tracing::info!("drained journals taken away: cookie updated");
        }
        let instance_id = instance_id.unwrap_or_default();
        Ok(Opened { identity, layout, instance_id, machine, known })
    }

    async fn known(&self) -> Result<Known, DataDirError> {
        let dirs = self.dirs.clone();
        blocking(move || dirs.known()).await
    }

    /// Notes, durably, that every ledger that metadata has now may have lost entries here, and that nobody's writer is
    /// believed without asking (IB28).
    async fn enter_limbo(&self, layout: &Layout) -> Result<Known, StartError> {
        layout.store().sync(layout.root()).await?;
        let mut highest = None;
        let ledgers = layout.ledgers();
        let mut listing = ledgers.list();
        while let Some(range) = listing.next().await? {
            highest = highest.max(range.last().copied());
        }
        let before = self.known().await?;
        let known = Known {
            checked_up_to: before.checked_up_to.max(highest),
            limbo_up_to: before.limbo_up_to.max(highest),
            ..before
        };
        if known != before {
            let dirs = self.dirs.clone();
            blocking(move || dirs.save_known(&known)).await?;
        }
        Ok(known)
    }

    async fn connect(&self) -> Result<Layout, StartError> {
        let uri = match &self.components.metadata {
            Metadata::Layout(layout) => return Ok(layout.clone()),
            Metadata::Uri(uri) => uri,
        };
        let session = self.dirs.session_store();
        let resume = tokio::task::spawn_blocking(move || session.load()).await;
        let resume = match resume {
            Ok(Ok(resume)) => resume,
            Ok(Err(error)) => {
                tracing::warn!(%error, "read the former metadata session: opening a new one");
                None
            }
            Err(_) => None,
        };
        tracing::info!(
            servers = uri.servers.join(","),
            root = uri.root,
            resumes = resume.is_some(),
            "connecting to metadata"
        );
        let options = ConnectOptions { session_timeout: self.config.session_timeout, resume };
        Ok(bindery_metadata::connect(uri, options).await?)
    }

    async fn check_cookies(
        &self,
        identity: &Identity,
        layout: &Layout,
        instance_id: Option<&str>,
    ) -> Result<CheckedCookies, StartError> {
        let expected = self.dirs.expected_cookie(&identity.bookie_id, instance_id);
        let dirs = self.dirs.clone();
        let directories = blocking(move || dirs.directories()).await?;
        let cookies = layout.cookies();
        let stored = cookies.get(&identity.bookie_id).await?;
        let found: Vec<_> = stored.iter().map(|stored| stored.cookie.clone()).collect();
        let validate = match self.config.accept_lost_directories {
            true => bindery_metadata::cookie::validate_with_losses,
            false => bindery_metadata::cookie::validate,
        };
        let kind = validate(&expected, &found, &directories, self.config.allow_storage_expansion)
            .map_err(Box::new)?;
        let mut checked = CheckedCookies::default();
        match kind {
            StartKind::Restart => tracing::info!("cookies match: restart"),
            StartKind::New => {
                // Ledgers may name a bookie of this id whose cookie was removed.
                self.enter_limbo(layout).await?;
                self.stamp(&expected, None).await?;
                cookies.create(&identity.bookie_id, &expected).await?;
                tracing::info!("new bookie: cookie written to directories and metadata");
            }
            StartKind::Lost { stamp: order } => {
                self.enter_limbo(layout).await?;
                self.stamp(&expected, Some(order)).await?;
                tracing::error!(
                    "directories were lost and come back empty: what may have been in them is answered as unknown"
                );
            }
            StartKind::Expansion { stamp: order } => {
                self.stamp(&expected, Some(order)).await?;
                let version = stored.map(|stored| stored.version);
                if let Some(version) = version {
                    cookies.update(&identity.bookie_id, &expected, version).await?;
                }
                tracing::info!("new directories: cookie updated");
            }
            StartKind::JournalsRemoved { former, stamp } => {
                checked.former = self.dirs.former_journal_files(&former);
                checked.stamp_later = stored.map(|stored| (stamp, stored.version));
            }
        }
        Ok(checked)
    }

    async fn stamp(&self, cookie: &Cookie, order: Option<Vec<String>>) -> Result<(), DataDirError> {
        let (dirs, cookie) = (self.dirs.clone(), cookie.clone());
        blocking(move || dirs.stamp(&cookie, order.as_deref())).await
    }
}

/// What the middle of the start leads to.
struct Opened {
    identity: Identity,
    layout: Layout,
    /// Empty for a cluster without one.
    instance_id: String,
    machine: Machine,
    known: Known,
}

/// Marks the ledgers that metadata says may have been here, in place of the cover over all of them.
async fn replace_cover(
    layout: &Layout,
    engine: &Arc<bindery_engine::Engine>,
    bookie_id: &BookieId,
    up_to: bindery_types::LedgerId,
) -> Result<(), String> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match integrity::mark(layout, engine, bookie_id, up_to).await {
            Ok(0) => return Ok(()),
            Ok(ledgers) => {
                tracing::warn!(ledgers, "in limbo: metadata says that they may have been here");
                return Ok(());
            }
            Err(why) if attempt == COVER_ATTEMPTS => return Err(why),
            Err(why) => {
                tracing::warn!(why, "looking for ledgers that name this bookie; it is tried again");
                tokio::time::sleep(COVER_PAUSE).await;
            }
        }
    }
}

/// What the cookies ask of the rest of the start.
#[derive(Default)]
struct CheckedCookies {
    /// Files of journals that are configured no more.
    former: Vec<PathBuf>,
    /// Directories to be stamped, and the version of the cookie to be replaced, once those proved to be drained.
    stamp_later: Option<(Vec<String>, Version)>,
}

/// Shards and group size for a write pool: fewer shards when the pool is small, but as many as there are journals and
/// ledger directories.
fn engine_sizes(shards_min: usize, write_pool_bytes: u64, limits: &crate::limits::Limits) -> EngineConfig {
    let entry_bytes_max = limits.frame.entry_size_bytes_max();
    let mut sizes = EngineConfig { entry_bytes_max, write_pool_bytes, ..EngineConfig::default() };
    sizes.shard_count = sizes.shard_count.max(shards_min);
    while sizes.shard_count > shards_min.max(1) && sizes.write_pool_bytes_min() > write_pool_bytes {
        sizes.shard_count -= 1;
    }
    sizes
}

/// Runs blocking work off the runtime's own threads.
async fn blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

async fn open_dirs(config: &BookieConfig, disk: &Arc<dyn Disk>) -> Result<Arc<DataDirs>, StartError> {
    let (disk, home) = (disk.clone(), config.home.clone());
    let (journals, ledgers) = (config.journal_dirs.clone(), config.ledger_dirs.clone());
    let may_move = config.may_move;
    let dirs = blocking(move || {
        if let Some(home) = &home {
            data_dirs::examine_home(&*disk, home)?;
        }
        // Cookies stay as they were first written: a bookie of standalone may go on in a cluster.
        let has_relative_names = |dir: &PathBuf| DataDirs::has_relative_names(&*disk, dir);
        let names_below = home.filter(|_| may_move || journals.first().is_some_and(has_relative_names));
        DataDirs::open(disk, &journals, &ledgers, names_below.as_deref())
    });
    Ok(Arc::new(dirs.await?))
}

/// The locks are ours, so a port still taken may be that of the process before, which is just ending.
async fn bind_patiently(address: SocketAddr) -> io::Result<TcpListener> {
    for _ in 0..BIND_ATTEMPTS {
        match sockets::listen(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => tokio::time::sleep(BIND_PAUSE).await,
            other => return other,
        }
    }
    sockets::listen(address)
}

async fn start_admin(
    config: &BookieConfig,
    state: &Arc<AdminState>,
    stop: &Arc<Latch>,
) -> Result<(Option<AdminTask>, Option<SocketAddr>), StartError> {
    let Some(address) = config.admin else { return Ok((None, None)) };
    let failed = |source| StartError::Bind { address, option: config.option_names.admin, source };
    let listener = bind_patiently(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let task = tokio::spawn(admin::serve(listener, state.clone(), stop.clone()));
    Ok((Some(AdminTask(task)), Some(bound)))
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
    tracing::info!(limit_mib = plan.limit >> 20, "memory pools\n{plan}");
    if config.are_connections_set && plan.connections_max < connections_wanted {
        tracing::warn!(
            "maxConnections={connections_wanted}: file descriptors allow {}; raise LimitNOFILE or ulimit -n",
            plan.connections_max
        );
    }
    if !config.journal_sync {
        tracing::warn!("journal sync is off: acknowledged entries may be lost in a power cut");
    }
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned())
}
