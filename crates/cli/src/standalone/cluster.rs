//! A coordinator and bookies in this process: started together, ended together.
//!
//! # Data flow
//! ```text
//! coordinator -> cluster's metadata -> bookies, all at once -> wait for: stop, or the end of any of them
//!                                                              -> bookies stop -> coordinator stops
//! ```
//!
//! # Invariants
//! 1. The coordinator outlives the bookies: they take their registrations back before it goes.
//! 2. No part goes on when one has ended for good: the rest would look like a working cluster.

use super::home::Home;
use super::plan::{Plan, bookie_name};
use crate::bookie_security::BookieSecurity;
use crate::entry_source::ClientEntries;
use crate::exit::{self, Failure};
use crate::repair::RepairRole;
use crate::tier_role::TierRole;
use bindery_coordinator::{Coordinator, CoordinatorConfig};
use bindery_io::{Clock, Disk, Random};
use bindery_metadata::{ConnectOptions, InitOutcome, MetadataUri, Security};
use bindery_repair::{RepairConfig, Targets};
use bindery_server::admin::extension::Part;
use bindery_server::bookie::{Bookie, Components, Ended, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::descriptors;
use bindery_server::latch::Latch;
use bindery_tiering::ClusterId;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How often, and at what distance, a taken port is tried again: half a second, for a killed process to let go of it.
const BIND_ATTEMPTS: u32 = 25;
const BIND_PAUSE: Duration = Duration::from_millis(20);
/// The least memory for answers that the coordinator's clients have not taken: some lists of all ledgers.
const OUTBOXES_BYTES_MIN: u64 = 16 << 20;

/// The coordinator's connections, where descriptors are plenty.
const COORDINATOR_CONNECTIONS_MAX: usize = 1000;

/// State that all parts share.
#[derive(Clone)]
pub struct World {
    /// Files.
    pub disk: Arc<dyn Disk>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Names and nonces.
    pub random: Arc<dyn Random>,
}

/// A cluster that serves.
pub struct Cluster {
    /// Where it is, for clients.
    pub metadata: MetadataUri,
    coordinator: Coordinator,
    bookies: Vec<Bookie>,
    /// The tierer, when ledgers are kept in object storage.
    role: Option<TierRole>,
    /// How repair speaks to the bookies, if there is any.
    repair: Option<BookieSecurity>,
    /// Ends with the cluster: the lock.
    _home: Arc<Home>,
}

impl Cluster {
    /// Starts all parts; when one fails to start, stops those that had started.
    pub async fn start(mut plan: Plan, home: Arc<Home>, world: World) -> Result<Cluster, Failure> {
        let connections_max = share_descriptors(&mut plan.bookies)?;
        name_bookies(&mut plan.bookies, &home).await?;
        let coordinator = start_coordinator(&plan, connections_max, &world).await?;
        let metadata = uri_of(coordinator.local_addr());
        let role = plan.tier.take().map(|tier| TierRole::new(tier, metadata.clone(), Security::default()));
        let (security, has_repair) = (plan.security, plan.has_repair);
        let started = async {
            init(&metadata, plan.instance_id, &*world.random).await?;
            start_bookies(plan.bookies, &world, &metadata).await
        };
        let started = tokio::select! {
            started = started => started,
            // Bookies that were starting are dropped with their start: nothing was acknowledged yet.
            why = coordinator.failed() => Err(coordinator_failed(&why)),
        };
        match started {
            Ok(bookies) => {
                if let (Some(role), Some(first)) = (&role, bookies.first()) {
                    first.extend_admin(Part::Tier, role.admin());
                }
                for bookie in &bookies {
                    ClientEntries::lend(bookie, security.clone());
                }
                Ok(Cluster {
                    metadata,
                    coordinator,
                    bookies,
                    role,
                    repair: has_repair.then_some(security),
                    _home: home,
                })
            }
            Err(failure) => {
                coordinator.stop().await;
                Err(failure)
            }
        }
    }

    /// Where clients of Oxia find the same tree.
    pub fn oxia(&self) -> Option<SocketAddr> {
        self.coordinator.oxia_addr()
    }

    /// Addresses of the bookies, and of their admin ports.
    pub fn addresses(&self) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let admins = self.bookies.iter().filter_map(Bookie::admin_address).collect();
        (self.bookies.iter().map(Bookie::address).collect(), admins)
    }

    /// Serves until `stop`, or until a part ends for good; then ends everything.
    pub async fn run(self, stop: Arc<Latch>) -> Result<(), Failure> {
        let tiering = self.role.map(|role| role.spawn(&stop));
        // The bookies come and go together, and copies between them cross no network: one auditor and one worker, one session and one
        // budget of memory for all of them.
        let name = self.bookies.first().map(|bookie| bookie.bookie_id().clone());
        let repairing = self.repair.zip(name).map(|(security, name)| {
            let config = RepairConfig::new(name, Targets::Any);
            RepairRole::spawn(config, None, (self.metadata.clone(), Security::default()), security, &stop)
        });
        if let (Some(repairing), Some(first)) = (&repairing, self.bookies.first()) {
            first.extend_admin(Part::Repair, repairing.admin());
        }
        let mut running = JoinSet::new();
        for (index, bookie) in self.bookies.into_iter().enumerate() {
            let stop = stop.clone();
            running.spawn(async move { (index, bookie.run(&stop).await) });
        }
        let mut first_failure = None;
        let asked = stop.clone();
        let mut note = |failure: Option<Failure>| {
            if let Some(failure) = failure {
                match asked.is_set() {
                    false => tracing::error!(%failure, "a component failed: stopping the whole cluster"),
                    true => tracing::error!(%failure, "a component did not stop in order"),
                }
                first_failure.get_or_insert(failure);
            }
        };
        tokio::select! {
            () = stop.wait() => {}
            why = self.coordinator.failed() => note(Some(coordinator_failed(&why))),
            Some(ended) = running.join_next() => note(failure_of(ended)),
        }
        stop.set();
        while let Some(ended) = running.join_next().await {
            note(failure_of(ended));
        }
        if let Some(tiering) = tiering {
            tiering.ended().await;
        }
        if let Some(repairing) = repairing {
            repairing.ended().await;
        }
        self.coordinator.stop().await;
        first_failure.map_or(Ok(()), Err)
    }
}

fn start_failed(number: usize, error: &str) -> Failure {
    // The system's words for a full disk, which reach this far as text only.
    let advice = if error.contains("No space left on device") {
        ". Make room on the disk and start again: nothing acknowledged is lost"
    } else {
        ""
    };
    Failure::new(format!("{}: {error}{advice}", bookie_name(number)))
}

fn coordinator_failed(why: &str) -> Failure {
    Failure::new(format!(
        "the coordinator failed: {why}. Everything was stopped, nothing acknowledged is lost: make room on the disk or \
         replace it, and start again"
    ))
}

fn failure_of(ended: Result<(usize, Ended), tokio::task::JoinError>) -> Option<Failure> {
    let (index, ended) = match ended {
        Ok(ended) => ended,
        Err(error) => return Some(Failure::new(format!("a bookie ended: {error}"))),
    };
    let name = bookie_name(index + 1);
    match ended {
        Ended::Stopped => None,
        Ended::RegistrationLost(why) => {
            Some(Failure::with_code(exit::REGISTRATION_LOST, format!("{name}: {why}")))
        }
        Ended::DiskFull(why) => Some(Failure::new(format!("{name}: {why}"))),
        Ended::Unclean(why) => Some(Failure::with_code(exit::UNCLEAN_STOP, format!("{name}: {why}"))),
    }
}

fn uri_of(coordinator: SocketAddr) -> MetadataUri {
    let text = format!("zk://{coordinator}/ledgers");
    text.parse().expect("an address and a path make a URI")
}

async fn start_coordinator(
    plan: &Plan,
    connections_max: usize,
    world: &World,
) -> Result<Coordinator, Failure> {
    use bindery_coordinator::StartError;
    for attempt in 1.. {
        let mut config = CoordinatorConfig::new(plan.coordinator, &plan.coordinator_dir);
        config.oxia = Some(plan.oxia);
        config.notifications_bytes_max =
            config.notifications_bytes_max.min((plan.coordinator_bytes / 32) as usize);
        config.connections_max = connections_max;
        // Beside redb's cache and sessions: its part of the memory limit, most of it for the tree.
        config.tree_bytes_max = config.tree_bytes_max.min((plan.coordinator_bytes / 4 * 3) as usize);
        config.pending_bytes_max = config.pending_bytes_max.min((plan.coordinator_bytes / 16) as usize);
        config.watched_bytes_max = config.watched_bytes_max.min((plan.coordinator_bytes / 16) as usize);
        let outboxes = (plan.coordinator_bytes / 8).max(OUTBOXES_BYTES_MIN) as usize;
        config.outboxes_bytes_max = config.outboxes_bytes_max.min(outboxes);
        config.outbox_bytes_max = config.outbox_bytes_max.min(outboxes);
        let (clock, random) = (world.clock.clone(), world.random.clone());
        match Coordinator::start_on(world.disk.clone(), config, clock, random).await {
            Ok(coordinator) => return Ok(coordinator),
            Err(StartError::AddressInUse { .. } | StartError::Locked { .. }) if attempt < BIND_ATTEMPTS => {}
            Err(StartError::AddressInUse { address }) => {
                let (server, option) = match address == plan.oxia {
                    true => ("an Oxia", "--oxia-port"),
                    false => ("a ZooKeeper", "--coordinator-port"),
                };
                return Err(Failure::new(format!(
                    "cannot listen on {address}: another process, perhaps {server}, has the port. Stop it, or choose \
                     another port with {option}"
                )));
            }
            Err(error) => return Err(Failure::new(format!("coordinator: {error}"))),
        }
        tokio::time::sleep(BIND_PAUSE).await;
    }
    unreachable!("the last attempt returns")
}

/// The cluster's metadata, at the first start; and what an interrupted first start left out.
async fn init(metadata: &MetadataUri, named: Option<ClusterId>, random: &dyn Random) -> Result<(), Failure> {
    match crate::cluster::create(metadata, &ConnectOptions::default(), named, random).await? {
        InitOutcome::AlreadyInitialised => {}
        _ => tracing::info!("cluster initialised"),
    }
    Ok(())
}

/// All of them at once: each waits for its own disk. When one cannot start, the others are stopped again.
async fn start_bookies(
    configs: Vec<BookieConfig>,
    world: &World,
    metadata: &MetadataUri,
) -> Result<Vec<Bookie>, Failure> {
    let mut starting = JoinSet::new();
    for (index, config) in configs.into_iter().enumerate() {
        let (world, metadata) = (world.clone(), metadata.clone());
        starting.spawn(async move {
            let number = index + 1;
            let World { disk, clock, random } = world;
            let components = Components { disk, clock, random, metadata: Metadata::Uri(metadata) };
            let started = Bookie::start(config, components).await;
            let bookie = started.map_err(|error| start_failed(number, &error.to_string()))?;
            Ok((index, bookie))
        });
    }
    let mut bookies = Vec::new();
    let mut first_failure = None;
    while let Some(started) = starting.join_next().await {
        match started {
            Ok(Ok(started)) => bookies.push(started),
            Ok(Err(failure)) => {
                first_failure.get_or_insert(failure);
            }
            Err(error) => {
                first_failure.get_or_insert(Failure::new(format!("a bookie's start ended: {error}")));
            }
        }
    }
    bookies.sort_by_key(|(index, _)| *index);
    let bookies: Vec<Bookie> = bookies.into_iter().map(|(_, bookie)| bookie).collect();
    let Some(failure) = first_failure else { return Ok(bookies) };
    let stop = Latch::default();
    stop.set();
    for bookie in bookies {
        // Nothing was acknowledged yet: how it ends says nothing new.
        let _ = bookie.run(&stop).await;
    }
    Err(failure)
}

/// Gives bookies the ids under which they first started: ledgers name a bookie by its id, which stays when the port
/// changes. A new bookie is named after its address, which must not be the name of an older one.
async fn name_bookies(configs: &mut [BookieConfig], home: &Arc<Home>) -> Result<(), Failure> {
    let (started, home) = (configs.len(), home.clone());
    let ids = tokio::task::spawn_blocking(move || {
        let count = started.max(home.bookies_with_data());
        (1..=count).map(|number| home.bookie_id(number)).collect::<Result<Vec<_>, _>>()
    });
    let ids = ids.await.map_err(Failure::new)?.map_err(Failure::new)?;
    for (index, config) in configs.iter_mut().enumerate() {
        if ids[index].is_none()
            && let Some(owner) = clash(&config.listen, &ids)
        {
            return Err(Failure::new(format!(
                "{} is new and would be named {} after its port, which is the name of {}, whose data is from when it had \
                 that port: choose another --bookie-port, none of whose ports an older bookie is named after. Nothing was \
                 changed",
                bookie_name(index + 1),
                config.listen,
                bookie_name(owner + 1)
            )));
        }
        config.bookie_id.clone_from(&ids[index]);
    }
    Ok(())
}

/// Which bookie has this address for its id.
fn clash(address: &SocketAddr, ids: &[Option<String>]) -> Option<usize> {
    let address = address.to_string();
    ids.iter().position(|id| id.as_ref() == Some(&address))
}

/// The connections and entry logs that the process may have: bookies get equal parts. Returns the coordinator's connections.
fn share_descriptors(configs: &mut [BookieConfig]) -> Result<usize, Failure> {
    let wanted = configs.first().map_or(0, |config| config.limits.connections_max);
    let files = configs.len().saturating_sub(1) * descriptors::DESCRIPTORS_RESERVED as usize;
    let mut allowed =
        descriptors::raise(wanted + COORDINATOR_CONNECTIONS_MAX + files).map_err(Failure::new)?;
    let (coordinator, each) = shares(allowed.connections.saturating_sub(files), configs.len());
    allowed.files += files as u64;
    let logs = allowed.logs_as_one(configs.iter().map(|config| config.ledger_dirs.len()).sum());
    for config in configs {
        config.limits.connections_max = each;
        config.space.logs_in_memory_as_one = config.space.logs_in_memory_as_one.min(logs);
    }
    Ok(coordinator)
}

/// The coordinator's connections, and those of each bookie: an equal share for each when there are few.
fn shares(allowed: usize, bookies: usize) -> (usize, usize) {
    let allowed = allowed.max(descriptors::CONNECTIONS_MIN as usize);
    let coordinator = (allowed / (bookies + 1)).clamp(1, COORDINATOR_CONNECTIONS_MAX);
    (coordinator, (allowed.saturating_sub(coordinator) / bookies.max(1)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_all_parts_together_are_no_more_than_allowed() {
        assert_eq!(shares(11_000, 1), (1000, 10_000));
        assert_eq!(shares(512, 1), (256, 256));
        assert_eq!(shares(512, 3), (128, 128));
        assert_eq!(shares(0, 3), (16, 16), "as if there were 64");
        assert_eq!(shares(10_000, 0).0, 1000);
    }

    #[test]
    fn a_new_bookie_is_not_named_as_an_old_one() {
        let ids = [Some("127.0.0.1:3182".to_owned()), None];
        assert_eq!(clash(&"127.0.0.1:3182".parse().unwrap(), &ids), Some(0));
        assert_eq!(clash(&"127.0.0.1:3183".parse().unwrap(), &ids), None);
    }
}
