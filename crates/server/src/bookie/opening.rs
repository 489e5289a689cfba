//! The middle of the start: from locked directories to an open engine. Everything that can refuse is here (invariant 2 of
//! the start): identity, metadata, cookies, replay.

use super::{Components, Metadata, StartError};
use crate::cluster_record::ClusterRecord;
use crate::config::{BookieConfig, Identity};
use crate::data_dirs::{self, DataDirError, DataDirs, FoundRecord};
use crate::maintenance::integrity;
use crate::memory::MemoryPlan;
use crate::tier::TierConfig;
use bindery_engine::{EngineConfig, Machine};
use bindery_io::{Disk, why_full_stays_full};
use bindery_metadata::{ConnectOptions, Cookie, Layout, Membership, StartKind, Version};
use bindery_types::BookieId;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Attempts to find ledgers that may have lost entries, and the pause between them.
const COVER_ATTEMPTS: u32 = 10;
const COVER_PAUSE: Duration = Duration::from_secs(1);

/// The middle of the start: everything that can refuse.
pub(super) struct Opening<'a> {
    pub(super) config: &'a BookieConfig,
    pub(super) components: &'a Components,
    pub(super) dirs: &'a Arc<DataDirs>,
    pub(super) plan: &'a MemoryPlan,
    pub(super) address: SocketAddr,
}

impl Opening<'_> {
    pub(super) async fn run(&self) -> Result<Opened, StartError> {
        let identity = {
            let (config, address) = (self.config.clone(), self.address);
            blocking(move || config.identity(address, &host_name())).await?
        };
        if identity.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            && !self.config.allow_loopback
        {
            tracing::warn!(
                host = identity.host,
                "advertising a loopback address: only clients on this machine can \
             reach it"
            );
        }
        if self.address.is_ipv4() && identity.host.parse::<std::net::Ipv6Addr>().is_ok() {
            tracing::warn!(
                host = identity.host,
                listen = %self.address,
                "clients are told an IPv6 address, and only IPv4 is listened on"
            );
        }
        let layout = self.connect().await?;
        // A session that was resumed keeps the registration of the process before, by which clients would find a bookie that serves
        // nobody until the start is over.
        let unregistered = layout.registration().unregister(&identity.bookie_id).await;
        unregistered.map_err(|error| StartError::Registration(error.to_string()))?;
        let instance_id = layout.instance_id().await?;
        let mut cookies = self.check_cookies(&identity, &layout, instance_id.as_deref()).await?;
        let mut known = match self.known().await? {
            FoundRecord::Sound(known) => known,
            FoundRecord::Missing => {
                tracing::warn!(
                    "no ledger directory has KNOWN, the record of the cluster's metadata: an early build left these directories, or \
                     it was deleted, and with it which entries may be missing"
                );
                ClusterRecord::default()
            }
            FoundRecord::Damaged => {
                tracing::error!(
                    "no ledger directory has a sound record of the cluster's metadata: it is made anew on the safe side. Every \
                     ledger that metadata has goes into limbo until it was compared, and adds of all of them are checked with \
                     metadata first"
                );
                self.enter_limbo(&layout).await?
            }
        };
        let config = EngineConfig {
            limbo_up_to: known.limbo_up_to,
            checked_up_to: known.checked_up_to,
            journal_dirs: self.dirs.journal_files(),
            former_journal_dirs: cookies.former,
            ledger_dirs: self.dirs.ledger_files(),
            ledger_volumes: self.ledger_volumes().await?,
            write_pool_bytes: self.plan.write,
            index_pool_bytes: self.plan.index,
            ledger_bytes_max: self.config.ledger_memory.unwrap_or_else(|| self.plan.ledger_memory()),
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
            tier_extents_bytes: TierConfig::extents_bytes(self.plan.tier),
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
                    "the journal is damaged, and the operator accepted that: every ledger that may have lost entries \
                     goes into limbo"
                );
                // Durable before anything of the journal is taken over: after that nothing shows the damage any more.
                known = self.enter_limbo(&layout).await?;
                let (limbo_up_to, checked_up_to) = (known.limbo_up_to, known.checked_up_to);
                open(EngineConfig { limbo_up_to, checked_up_to, accepts_journal_damage: true, ..config })
                    .await?
            }
            Err(error) if error.is_directory_damage() => {
                return Err(StartError::Damaged { error, verify: verify_command(self.config) });
            }
            opened => opened?,
        };
        if let Some(damage) = &machine.replayed.first_damage {
            tracing::error!(places = machine.replayed.damaged_places, first = %damage, "journal damage was skipped, \
             as the operator accepted: records there are lost on this bookie, and ledgers that may have lost entries \
             are in limbo");
        }
        tracing::info!(
            open_ms = (clock.monotonic_ns() - begun_ns) / 1_000_000,
            replayed_records = machine.replayed.records,
            replayed_bytes = machine.replayed.bytes,
            torn_tail = machine.replayed.torn_tail.is_some(),
            "engine opened"
        );
        if let Some((order, version)) = cookies.stamp_later {
            let expected = self.dirs.expected_cookie(&identity.bookie_id, instance_id.as_deref());
            self.stamp(&expected, Some(order)).await?;
            layout.cookies().update(&identity.bookie_id, &expected, version).await?;
            cookies.in_metadata = Some(expected);
            tracing::info!("drained journals removed: cookie updated");
        }
        let (id, cookie) = (identity.bookie_id.clone(), cookies.in_metadata);
        let membership = Membership::new(layout.clone(), id, instance_id.clone(), cookie);
        let instance_id = instance_id.unwrap_or_default();
        Ok(Opened { identity, layout, instance_id, membership, machine, known })
    }

    async fn ledger_volumes(&self) -> Result<Vec<usize>, DataDirError> {
        let dirs = self.dirs.clone();
        let volumes = blocking(move || Ok::<_, DataDirError>(dirs.volumes_of_all())).await?;
        let on = |volume: usize| volumes[volume].ledger_dirs.iter().map(move |index| (*index, volume));
        let mut of_dirs: Vec<(usize, usize)> = (0..volumes.len()).flat_map(on).collect();
        of_dirs.sort_unstable();
        Ok(of_dirs.into_iter().map(|(_, volume)| volume).collect())
    }

    async fn known(&self) -> Result<FoundRecord, DataDirError> {
        let dirs = self.dirs.clone();
        blocking(move || dirs.known()).await
    }

    /// Notes, durably, that every ledger that metadata has now may have lost entries here, and that nobody's writer is
    /// believed without asking (IB28).
    async fn enter_limbo(&self, layout: &Layout) -> Result<ClusterRecord, StartError> {
        layout.store().sync(layout.root()).await?;
        let mut highest = None;
        let ledgers = layout.ledgers();
        let mut listing = ledgers.list();
        while let Some(range) = listing.next().await? {
            highest = highest.max(range.last().copied());
        }
        let found = self.known().await?;
        let before = match found {
            FoundRecord::Sound(known) => known,
            FoundRecord::Missing | FoundRecord::Damaged => ClusterRecord::default(),
        };
        let known = ClusterRecord {
            checked_up_to: before.checked_up_to.max(highest),
            limbo_up_to: before.limbo_up_to.max(highest),
            ..before
        };
        // A record that says nothing is written as well, so that a bookie of this build always has one.
        if found != FoundRecord::Sound(known) {
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
                tracing::warn!(%error, "cannot read the saved metadata session, opening a new one");
                None
            }
            Err(_) => None,
        };
        tracing::info!(
            servers = uri.servers.join(","),
            root = uri.root,
            "connecting to the metadata store{}",
            if resume.is_some() { ", to resume the previous session" } else { "" }
        );
        let options = ConnectOptions {
            session_timeout: self.config.session_timeout,
            resume,
            security: self.config.metadata_security.clone(),
            ..ConnectOptions::default()
        };
        Ok(bindery_metadata::connect_as_bookie(uri, options).await?)
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
        let mut checked = CheckedCookies {
            in_metadata: stored.as_ref().map(|stored| stored.cookie.clone()),
            ..CheckedCookies::default()
        };
        match kind {
            StartKind::Restart => tracing::info!("cookies match: restart"),
            StartKind::New => {
                // Ledgers may name a bookie of this id whose cookie was removed.
                self.enter_limbo(layout).await?;
                self.stamp(&expected, None).await?;
                // One of this id may have been emptied and taken out. With the cookie this is a restart, which leaves the node.
                layout.draining().end(&identity.bookie_id).await?;
                cookies.create(&identity.bookie_id, &expected).await?;
                checked.in_metadata = Some(expected);
                tracing::info!("new bookie: cookie written to directories and metadata");
            }
            StartKind::Lost { stamp: order } => {
                self.enter_limbo(layout).await?;
                self.stamp(&expected, Some(order)).await?;
                tracing::error!(
                    "directories were lost and replaced by empty ones: entries that may have been in them are \
                     answered as unknown"
                );
            }
            StartKind::Expansion { stamp: order } => {
                self.stamp(&expected, Some(order)).await?;
                let version = stored.map(|stored| stored.version);
                if let Some(version) = version {
                    cookies.update(&identity.bookie_id, &expected, version).await?;
                    checked.in_metadata = Some(expected);
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

/// `bindery verify` with all directories of a bookie, as a shell takes it.
fn verify_command(config: &BookieConfig) -> String {
    let parent_of = |dirs: &[PathBuf], name: &str| match dirs {
        [dir] if dir.ends_with(name) => dir.parent().map(Path::to_owned),
        _ => None,
    };
    let home = parent_of(&config.journal_dirs, "journal");
    let dirs = match home.filter(|home| parent_of(&config.ledger_dirs, "ledgers").as_ref() == Some(home)) {
        Some(home) => vec![home],
        None => config.journal_dirs.iter().chain(&config.ledger_dirs).cloned().collect(),
    };
    let quoted = dirs.iter().map(|dir| {
        let dir = dir.to_string_lossy();
        match dir.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)) {
            true => dir.into_owned(),
            false => format!("'{}'", dir.replace('\'', r"'\''")),
        }
    });
    ["bindery verify".to_owned()].into_iter().chain(quoted).collect::<Vec<_>>().join(" ")
}

/// What the middle of the start leads to.
pub(super) struct Opened {
    pub(super) identity: Identity,
    pub(super) layout: Layout,
    /// Empty for a cluster without one.
    pub(super) instance_id: String,
    pub(super) membership: Membership,
    pub(super) machine: Machine,
    pub(super) known: ClusterRecord,
}

/// Marks the ledgers that metadata says may have been here, in place of the cover over all of them.
pub(super) async fn replace_cover(
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
                tracing::warn!(
                    ledgers,
                    "ledgers in limbo: metadata says that this bookie may have held them"
                );
                return Ok(());
            }
            Err(why) if attempt == COVER_ATTEMPTS => return Err(why),
            Err(why) => {
                tracing::warn!(why, "cannot look up the ledgers that name this bookie, retrying");
                tokio::time::sleep(COVER_PAUSE).await;
            }
        }
    }
}

/// What the cookies ask of the rest of the start.
#[derive(Default)]
struct CheckedCookies {
    /// As it stands in the metadata store now.
    in_metadata: Option<Cookie>,
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
pub(super) async fn blocking<T: Send + 'static, E: Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Cancelled: the runtime is going away, and with it whoever waits here.
            Err(_) => std::future::pending().await,
        },
    }
}

pub(super) async fn open_dirs(
    config: &BookieConfig,
    disk: &Arc<dyn Disk>,
) -> Result<Arc<DataDirs>, StartError> {
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
        let dirs = DataDirs::open(disk.clone(), &journals, &ledgers, names_below.as_deref())?;
        for dir in dirs.ledger_files().iter().chain(&dirs.journal_files()) {
            if let Some(why) = why_full_stays_full(&*disk, dir) {
                tracing::warn!("{why}");
            }
        }
        Ok::<_, DataDirError>(dirs)
    });
    Ok(Arc::new(dirs.await?))
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_is_named_with_all_directories() {
        let of = |journals: &[&str], ledgers: &[&str]| {
            let paths = |dirs: &[&str]| dirs.iter().map(PathBuf::from).collect();
            let config = BookieConfig {
                journal_dirs: paths(journals),
                ledger_dirs: paths(ledgers),
                ..BookieConfig::default()
            };
            verify_command(&config)
        };
        assert_eq!(of(&["/d/journal"], &["/d/ledgers"]), "bindery verify /d");
        assert_eq!(of(&["/d/journal"], &["/e/ledgers"]), "bindery verify /d/journal /e/ledgers");
        assert_eq!(of(&["/j 1"], &["/l1", "/it's"]), r"bindery verify '/j 1' /l1 '/it'\''s'");
    }
}
