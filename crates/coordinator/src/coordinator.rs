//! Starting and stopping: store, listener, ticks, commit thread.

use crate::config::CoordinatorConfig;
use crate::connection;
use crate::core::{Core, CoreConfig};
use crate::error::StartError;
use crate::oxia;
use crate::shared::{Shared, now_of};
use crate::store::{Store, damaged};
use bindery_io::{Clock, Disk, DiskLock, Random, RealDisk, create_durable_dir, why_full_stays_full};
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Locked for as long as a coordinator uses the directory.
const LOCK_FILE_NAME: &str = "coordinator.lock";
/// Pause after accepting failed, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running coordinator. Dropping it stops it without waiting, and the directory stays locked until what was begun is
/// written; [`Coordinator::stop`] waits.
pub struct Coordinator {
    local_addr: SocketAddr,
    oxia_addr: Option<SocketAddr>,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    /// Accepting with its connections, and ticks.
    tasks: JoinSet<()>,
    /// Holds the lock of the directory while it may write there.
    commits: Option<std::thread::JoinHandle<()>>,
}

impl Coordinator {
    /// Starts a coordinator on the machine's disk; it serves when this returns. Needs a tokio runtime with I/O and
    /// time.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub async fn start(
        config: CoordinatorConfig,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Coordinator, StartError> {
        Coordinator::start_on(Arc::new(RealDisk::new()), config, clock, random).await
    }

    /// As [`Coordinator::start`], on any disk.
    pub async fn start_on(
        disk: Arc<dyn Disk>,
        config: CoordinatorConfig,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Coordinator, StartError> {
        for address in [Some(config.listen), config.oxia].into_iter().flatten() {
            if !address.ip().is_loopback() {
                return Err(StartError::NotLoopback { address });
            }
        }
        // The lock before the port: of two processes with the same settings, the second is told about the directory.
        let dir = config.data_dir.clone();
        let (lock, disk) = blocking(move || Ok((lock(&*disk, &dir)?, disk))).await?;
        let (listener, local_addr) = listen(config.listen).await?;
        let oxia = match config.oxia {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let (dir, core_config, now) = (config.data_dir.clone(), core_config(&config), now_of(&*clock));
        let (store, core) = blocking(move || {
            let (store, loaded) = Store::open(&disk, &dir)?;
            let mut core = Core::new(core_config, loaded.zxid_ceiling, now, random);
            for (id, record) in loaded.sessions {
                core.restore_session(id, record, now);
            }
            for (offset, encoded) in loaded.notifications {
                core.restore_notifications(offset, encoded)
                    .map_err(|what| damaged(store.path(), format!("{what}: {offset}")))?;
            }
            for (path, record) in loaded.nodes {
                core.restore_node(&path, record)
                    .map_err(|what| damaged(store.path(), format!("{what}: {path}")))?;
            }
            core.finish_restore().map_err(|what| damaged(store.path(), what))?;
            Ok((store, core))
        })
        .await?;
        let shared = Arc::new(Shared::new(config, core, clock));
        let commits = {
            let for_thread = shared.clone();
            let thread = std::thread::Builder::new().name("coordinator-log".into());
            let spawned = thread.spawn(move || {
                for_thread.run_commits(store);
                drop(lock);
            });
            let path = shared.config.data_dir.clone();
            Some(spawned.map_err(|source| StartError::Disk { action: "start a thread for", path, source })?)
        };
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(shared.clone(), listener, stopped.clone(), connection::serve));
        let oxia_addr = oxia.map(|(listener, address)| {
            tasks.spawn(accept(shared.clone(), listener, stopped.clone(), oxia::serve));
            address
        });
        tasks.spawn(tick(shared.clone(), stopped));
        tracing::info!(address = %local_addr, oxia = oxia_addr.map(tracing::field::display), "coordinator is serving");
        Ok(Coordinator { local_addr, oxia_addr, shared, stop, tasks, commits })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Where it listens for clients of Oxia.
    pub fn oxia_addr(&self) -> Option<SocketAddr> {
        self.oxia_addr
    }

    /// Why it stopped serving, once its store failed. It acknowledges nothing from then on, and has closed its
    /// connections and its port; only a new start helps.
    pub fn failure(&self) -> Option<String> {
        self.shared.progress().borrow().failure.as_deref().map(str::to_owned)
    }

    /// Waits until the store fails; gives the reason. Never returns while all is well. Cancel safe.
    pub async fn failed(&self) -> String {
        let mut progress = self.shared.progress();
        match progress.wait_for(|progress| progress.failure.is_some()).await {
            Ok(progress) => progress.failure.as_deref().unwrap_or_default().to_owned(),
            Err(_) => unreachable!("the sender lives as long as the coordinator"),
        }
    }

    /// Closes the port and all connections and waits until everything is durable and the directory is free. Sessions
    /// stay: their clients come back to the next start, or expire a timeout after it.
    pub async fn stop(mut self) {
        self.shared.stop();
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        if let Some(commits) = self.commits.take() {
            let joined = tokio::task::spawn_blocking(move || commits.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the thread that writes the coordinator's store panicked");
            }
        }
    }
}

impl Drop for Coordinator {
    /// The tasks are aborted with their set; the thread ends by itself.
    fn drop(&mut self) {
        self.shared.stop();
    }
}

fn core_config(config: &CoordinatorConfig) -> CoreConfig {
    let (session_timeout_min_ms, session_timeout_max_ms) = config.session_timeouts_ms();
    CoreConfig {
        tick_ms: config.tick_ms(),
        session_timeout_min_ms,
        session_timeout_max_ms,
        tree_bytes_max: config.tree_bytes_max,
        watches_max: config.watches_max,
        watched_bytes_max: config.watched_bytes_max,
        sessions_max: config.sessions_max,
        notifications_bytes_max: config.oxia.map_or(0, |_| config.notifications_bytes_max.max(1)),
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let listener = TcpListener::bind(address).await.map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => StartError::AddressInUse { address },
        _ => StartError::Listen { address, source },
    })?;
    let local_addr = listener.local_addr().map_err(|source| StartError::Listen { address, source })?;
    Ok((listener, local_addr))
}

/// Runs blocking work of the start outside of the runtime's threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn lock(disk: &dyn Disk, dir: &Path) -> Result<Box<dyn DiskLock>, StartError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| StartError::Disk { action, path, source }
    };
    create_durable_dir(disk, dir).map_err(failed("create directory", dir))?;
    if let Some(why) = why_full_stays_full(disk, dir) {
        tracing::warn!("{why}");
    }
    let path = dir.join(LOCK_FILE_NAME);
    disk.lock(&path).map_err(|source| match source.kind() {
        ErrorKind::WouldBlock => StartError::Locked { dir: dir.to_owned() },
        _ => StartError::Disk { action: "lock", path, source },
    })
}

/// Accepts until stopped or failed; then closes the port and every connection.
async fn accept<F: Future<Output = ()> + Send + 'static>(
    shared: Arc<Shared>,
    listener: TcpListener,
    mut stopped: watch::Receiver<bool>,
    serve: impl Fn(Arc<Shared>, TcpStream, SocketAddr) -> F,
) {
    let mut progress = shared.progress();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            _ = progress.wait_for(|progress| progress.failure.is_some()) => break,
            // Ended tasks are taken out as they end.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => match shared.admit() {
                Some(admitted) => {
                    let served = serve(shared.clone(), socket, peer);
                    connections.spawn(async move {
                        served.await;
                        drop(admitted);
                    });
                }
                None => tracing::warn!(%peer, "too many connections, closing the newest"),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// Ends sessions whose time is up, and containers that are empty.
async fn tick(shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(shared.config.tick_ms()));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let check_interval = shared.config.container_check_interval.max(Duration::from_millis(1));
    let mut checks = tokio::time::interval(check_interval);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    checks.reset();
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => return,
            _ = ticks.tick() => shared.tick(),
            _ = checks.tick() => shared.act(|core, now, out| core.on_container_check(now, out)),
        }
    }
}
