//! Settings of a bookie as its operator gives them. The command line fills this in from flags and files.

use crate::auth::AuthConfig;
use crate::disks::{DiskLimits, SlowLimits};
use crate::limits::Limits;
use crate::maintenance::garbage::GarbageConfig;
use crate::maintenance::surplus::SurplusConfig;
use crate::tenants::TenantsConfig;
use crate::tier::TierConfig;
use crate::tls::TlsConfig;
use bindery_engine::{PoolMemory, SpaceConfig};
use bindery_metadata::Security;
use bindery_types::{BookieId, InvalidBookieId, bare_host};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// What the command line calls the addresses, for errors that say what to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionNames {
    /// Sets [`BookieConfig::listen`].
    pub listen: &'static str,
    /// Sets [`BookieConfig::admin`].
    pub admin: &'static str,
}

/// The part of the admin API that its port serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminScope {
    /// Everything.
    All,
    /// `/metrics` and `/heartbeat`. For `prometheusStatsHttpPort`, which listens on all addresses as in Java: strangers may read
    /// metrics there and change nothing.
    Metrics,
}

/// Values only; components (disk, clock, metadata store) are passed beside it.
#[derive(Debug, Clone)]
pub struct BookieConfig {
    /// The directory that `journal_dirs` and `ledger_dirs` were derived from, if they were (`--data`).
    pub home: Option<PathBuf>,
    /// A new bookie's directories stand in its cookie by their path below `home`, so that `home` may be moved. False:
    /// by their whole path, as a Java bookie's. An existing cookie's form is kept.
    pub may_move: bool,
    /// Journal directories (`journalDirectories`), at least one. The place in the list is the number of the journal.
    pub journal_dirs: Vec<PathBuf>,
    /// Ledger directories (`ledgerDirectories`), at least one.
    pub ledger_dirs: Vec<PathBuf>,
    /// Where to listen (`listeningInterface`, `bookiePort`).
    pub listen: SocketAddr,
    /// What clients connect to (`advertisedAddress`); `None` derives it from `listen` or the host name.
    pub advertise: Option<(String, u16)>,
    /// Fixed id (`bookieId`); `None` means the advertised `host:port`.
    pub bookie_id: Option<String>,
    /// Where the admin port listens (`httpServerEnabled`, `httpServerPort`); `None` for none.
    pub admin: Option<SocketAddr>,
    /// What the admin port serves.
    pub admin_scope: AdminScope,
    /// A file of the tokens that allow changes over the admin port from other machines (`httpServerTokensFile`, ours).
    pub admin_tokens: Option<PathBuf>,
    /// A port for metrics alone may be opened.
    pub metrics_enabled: bool,
    /// Changes from this machine need a token, too.
    pub admin_token_required: bool,
    /// Names by which requests of this machine may ask the admin port, besides addresses, `localhost` and the advertised name.
    pub admin_names: Vec<String>,
    /// What errors call these addresses.
    pub option_names: OptionNames,
    /// Bytes for all pools together; `None` for the default of the machine.
    pub memory_limit: Option<u64>,
    /// Bytes for the states of ledgers (`ledgerMemoryMB`, ours); `None` for a share of the memory limit.
    pub ledger_memory: Option<u64>,
    /// True when `limits.connections_max` was set (`maxConnections`) and must fit `memory_limit`; false: as many of
    /// them as fit.
    pub are_connections_set: bool,
    /// When the write pool's share of it is taken from the system.
    pub pool_memory: PoolMemory,
    /// Sync before acknowledging (`journalSyncData`).
    pub journal_sync: bool,
    /// Files of each journal that are zero-filled at start, in the background.
    pub preallocate: usize,
    /// Bytes of all files of one journal (`journalDiskSizeMaxMB`); 0 for twice the write pool.
    pub journal_bytes_max: u64,
    /// Length of a journal file in bytes (`journalMaxSizeMB`).
    pub journal_file_bytes: u64,
    /// Longest time between two flushes (`flushInterval`).
    pub flush_interval: Duration,
    /// A loopback address may be derived (`allowLoopback`).
    pub allow_loopback: bool,
    /// Take no writes (`forceReadOnlyBookie`).
    pub read_only: bool,
    /// New directories may be added, and drained journals taken away (`allowStorageExpansion`).
    pub allow_storage_expansion: bool,
    /// Empty directories without a cookie may stand for lost ones: everything that may have been in them is in limbo
    /// (`dataIntegrityChecking` with `dataIntegrityStampMissingCookies`).
    pub accept_lost_directories: bool,
    /// Start although the journal is damaged where acknowledged records may be: everything here is in limbo.
    pub accept_journal_damage: bool,
    /// How ledgers that should not be here are found.
    pub surplus: SurplusConfig,
    /// Session timeout asked for (`zkTimeout`).
    pub session_timeout: Duration,
    /// TLS and SASL to the metadata store, and who may use the nodes written there (`zkEnableSecurity`).
    pub metadata_security: Security,
    /// Threads that may block on disk reads.
    pub read_threads: usize,
    /// How deleted ledgers are found.
    pub garbage: GarbageConfig,
    /// How space is given back.
    pub space: SpaceConfig,
    /// When disks are too full.
    pub disks: DiskLimits,
    /// When the journal is too slow.
    pub slow_journal: SlowLimits,
    /// TLS for those who ask for it; `None` without.
    pub tls: Option<TlsConfig>,
    /// TLS on the admin port; `None` for plain HTTP.
    pub admin_tls: Option<TlsConfig>,
    /// Clients have to say who they are; `None`: every client is served.
    pub auth: Option<AuthConfig>,
    /// Requests are counted and limited by tenant; `None`: they are not.
    pub tenants: Option<TenantsConfig>,
    /// Object storage, from which entries are read whose copies here were let go; `None` without.
    pub tier: Option<TierConfig>,
    /// Repair runs in this process, and has a part of the memory.
    pub has_repair: bool,
    /// Bounds.
    pub limits: Limits,
}

impl Default for BookieConfig {
    fn default() -> BookieConfig {
        BookieConfig {
            home: None,
            may_move: false,
            journal_dirs: Vec::new(),
            ledger_dirs: Vec::new(),
            listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 3181)),
            advertise: None,
            bookie_id: None,
            admin: None,
            admin_scope: AdminScope::All,
            admin_tokens: None,
            metrics_enabled: true,
            admin_token_required: false,
            admin_names: Vec::new(),
            option_names: OptionNames { listen: "--listen", admin: "--admin" },
            memory_limit: None,
            ledger_memory: None,
            are_connections_set: false,
            pool_memory: PoolMemory::Touched,
            journal_sync: true,
            preallocate: 2,
            journal_bytes_max: 0,
            journal_file_bytes: 256 << 20,
            flush_interval: Duration::from_secs(10),
            allow_loopback: false,
            read_only: false,
            allow_storage_expansion: false,
            accept_lost_directories: false,
            accept_journal_damage: false,
            surplus: SurplusConfig::default(),
            session_timeout: Duration::from_secs(10),
            metadata_security: Security::default(),
            read_threads: 4,
            garbage: GarbageConfig::default(),
            space: SpaceConfig::default(),
            disks: DiskLimits::default(),
            slow_journal: SlowLimits::default(),
            tls: None,
            admin_tls: None,
            auth: None,
            tenants: None,
            tier: None,
            has_repair: false,
            limits: Limits::default(),
        }
    }
}

/// Why the bookie has no usable name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The id has forbidden characters.
    #[error(transparent)]
    Id(#[from] InvalidBookieId),
    /// The host name leads nowhere.
    #[error(
        "cannot find an address for this host (name {host:?}): name the one clients can reach with --advertise HOST:PORT"
    )]
    NoAddress {
        /// The host's name.
        host: String,
    },
    /// The host name leads to loopback, which other machines cannot reach.
    #[error(
        "the name of this host ({host:?}) resolves to {address}, which other machines cannot reach: give \
         --advertise HOST:PORT, or --allow-loopback when all clients are on this machine"
    )]
    Loopback {
        /// The host's name.
        host: String,
        /// Its address.
        address: IpAddr,
    },
}

/// Under which name, and where, clients find the bookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The id in metadata.
    pub bookie_id: BookieId,
    /// Host to connect to.
    pub host: String,
    /// Port to connect to.
    pub port: u16,
}

impl BookieConfig {
    /// Works the identity out. `bound` is the address listened on. `host_name` is asked only when the address says
    /// nothing; it is resolved, which may block.
    pub fn identity(&self, bound: SocketAddr, host_name: &str) -> Result<Identity, IdentityError> {
        let (named, port) = match &self.advertise {
            Some((host, port)) => (host.clone(), *port),
            None if !bound.ip().is_unspecified() => (bound.ip().to_string(), bound.port()),
            None => (self.own_address(host_name)?.to_string(), bound.port()),
        };
        let bookie_id = match &self.bookie_id {
            Some(id) => BookieId::new(id.clone())?,
            // As BookKeeper makes it, an IPv6 address as it is named: the id of a bookie that is there must not change.
            None => BookieId::new(format!("{named}:{port}"))?,
        };
        Ok(Identity { bookie_id, host: bare_host(&named).to_owned(), port })
    }

    fn own_address(&self, host: &str) -> Result<IpAddr, IdentityError> {
        let addresses: Vec<IpAddr> =
            (host, 0).to_socket_addrs().map(|found| found.map(|a| a.ip()).collect()).unwrap_or_default();
        let is_wanted = |address: &&IpAddr| address.is_ipv4() && !address.is_loopback();
        let address = addresses.iter().find(is_wanted).or_else(|| addresses.first()).copied();
        match address {
            None => Err(IdentityError::NoAddress { host: host.to_owned() }),
            Some(address) if address.is_loopback() && !self.allow_loopback => {
                Err(IdentityError::Loopback { host: host.to_owned(), address })
            }
            Some(address) => Ok(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_follows_advertise_then_listen_then_the_host() {
        let bound = "10.1.2.3:3181".parse().unwrap();
        let mut config = BookieConfig::default();
        let identity = config.identity(bound, "nowhere.invalid").unwrap();
        assert_eq!((identity.bookie_id.as_str(), identity.host.as_str()), ("10.1.2.3:3181", "10.1.2.3"));
        config.advertise = Some(("bookie-0.example".to_owned(), 3999));
        assert_eq!(config.identity(bound, "").unwrap().bookie_id.as_str(), "bookie-0.example:3999");
        config.bookie_id = Some("b0".to_owned());
        let identity = config.identity(bound, "").unwrap();
        assert_eq!((identity.bookie_id.as_str(), identity.port), ("b0", 3999));
        config.bookie_id = None;
        for (advertised, id) in [("::1", "::1:3181"), ("[::1]", "[::1]:3181")] {
            config.advertise = Some((advertised.to_owned(), 3181));
            let identity = config.identity(bound, "").unwrap();
            assert_eq!((identity.bookie_id.as_str(), identity.host.as_str()), (id, "::1"));
        }
        config.bookie_id = Some("b 0".to_owned());
        assert!(matches!(config.identity(bound, ""), Err(IdentityError::Id(_))));
    }

    #[test]
    fn a_loopback_address_is_derived_only_when_allowed() {
        let bound = "0.0.0.0:3181".parse().unwrap();
        let mut config = BookieConfig::default();
        let error = config.identity(bound, "localhost").unwrap_err();
        assert!(matches!(error, IdentityError::Loopback { .. }), "{error}");
        config.allow_loopback = true;
        assert!(config.identity(bound, "localhost").is_ok());
    }
}
