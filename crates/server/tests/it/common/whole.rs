//! A whole bookie on real disks, against a metadata store in memory.

use super::frames::{KEY, exchange, hello, http, read_request};
use bindery_io::{Disk, RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::{MemoryCluster, MemoryStore};
use bindery_metadata::{Layout, LedgerLayout, MetadataStore, layout};
use bindery_server::bookie::{Bookie, Components, Ended, Metadata, StartError};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;
use bindery_types::{
    BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState, Quorum, Segment,
};
use bindery_wire::{ErrorCode, v2};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// A bookie that runs.
pub struct Running {
    pub address: SocketAddr,
    pub admin: SocketAddr,
    pub stop: Arc<Latch>,
    pub task: tokio::task::JoinHandle<Ended>,
    /// The bookie's own connection to metadata.
    pub store: Arc<MemoryStore>,
    /// Somebody else's.
    pub layout: Layout,
}

/// An initialised cluster.
pub async fn cluster() -> MemoryCluster {
    cluster_of([1; 16]).await
}

/// An initialised cluster of this instance id.
pub async fn cluster_of(instance: [u8; 16]) -> MemoryCluster {
    let cluster = MemoryCluster::new();
    layout::init_cluster(&cluster.open(), "/ledgers", LedgerLayout::Hierarchical, instance).await.unwrap();
    cluster
}

/// A connection to metadata.
pub async fn open(cluster: &MemoryCluster) -> Layout {
    Layout::open(Arc::new(cluster.open()), "/ledgers", None).await.unwrap()
}

/// `bookie-0` with everything below `dir`, and no reserve.
pub fn config(dir: &Path) -> BookieConfig {
    BookieConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers")],
        home: Some(dir.to_owned()),
        listen: "127.0.0.1:0".parse().unwrap(),
        admin: Some("127.0.0.1:0".parse().unwrap()),
        bookie_id: Some("bookie-0".to_owned()),
        memory_limit: Some(256 << 20),
        preallocate: 0,
        journal_file_bytes: 16 << 20,
        allow_loopback: true,
        disks: DiskLimits { reserve_bytes: Some(0), ..DiskLimits::default() },
        ..BookieConfig::default()
    }
}

/// As [`config`], and flushes ten times a second.
pub fn config_that_flushes(dir: &Path) -> BookieConfig {
    BookieConfig { flush_interval: Duration::from_millis(100), ..config(dir) }
}

/// Starts a bookie on `disk`.
pub async fn start_on(
    disk: Arc<dyn Disk>,
    config: BookieConfig,
    cluster: &MemoryCluster,
) -> Result<Running, StartError> {
    let store = Arc::new(cluster.open());
    start_over(disk, config, cluster, store.clone(), store).await
}

/// As [`start_on`]; the bookie sees `over` in place of its own connection to metadata, which is beneath it.
pub async fn start_over(
    disk: Arc<dyn Disk>,
    config: BookieConfig,
    cluster: &MemoryCluster,
    store: Arc<MemoryStore>,
    over: Arc<dyn MetadataStore>,
) -> Result<Running, StartError> {
    let own = Layout::open(over, "/ledgers", None).await.unwrap();
    let components = Components {
        disk,
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        metadata: Metadata::Layout(own),
    };
    let bookie = Bookie::start(config, components).await?;
    let (address, admin) = (bookie.address(), bookie.admin_address().unwrap());
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { bookie.run(&stop).await }
    });
    Ok(Running { address, admin, stop, task, store, layout: open(cluster).await })
}

/// Starts a bookie on the real disk.
pub async fn try_start(config: BookieConfig, cluster: &MemoryCluster) -> Result<Running, StartError> {
    start_on(Arc::new(RealDisk::new()), config, cluster).await
}

/// As [`try_start`]; it has to start.
pub async fn start(config: BookieConfig, cluster: &MemoryCluster) -> Running {
    try_start(config, cluster).await.unwrap()
}

/// The error of a start that must be refused.
pub async fn refused(config: BookieConfig, cluster: &MemoryCluster) -> String {
    try_start(config, cluster).await.map(|_| ()).unwrap_err().to_string()
}

/// The id of a ledger.
pub fn id(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}

/// Metadata of a ledger on one bookie.
pub fn metadata(bookie: &str, state: LedgerState) -> LedgerMetadata {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
    let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
    let ensemble = vec![BookieId::new(bookie).unwrap()];
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
    metadata.state = state;
    metadata
}

impl Running {
    /// One request on a connection of its own.
    pub async fn add_as(&self, flags: v2::Flags, ledger: i64, entry: i64) -> ErrorCode {
        let body = hello(ledger, entry);
        let add = v2::Add::new(flags, KEY, &body).unwrap();
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        exchange(&mut socket, v2::Request::Add(add)).await.code()
    }

    pub async fn add(&self, ledger: i64, entry: i64) -> ErrorCode {
        self.add_as(v2::Flags::NONE, ledger, entry).await
    }

    /// One request on a connection of its own, with the key when it fences.
    pub async fn read_as(&self, flags: v2::Flags, ledger: i64, entry: i64) -> ErrorCode {
        let master_key = flags.contains(v2::Flags::DO_FENCING).then_some(KEY);
        let read = v2::Read { flags, master_key, ..read_request(ledger, entry) };
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        exchange(&mut socket, v2::Request::Read(read)).await.code()
    }

    pub async fn read(&self, ledger: i64, entry: i64) -> ErrorCode {
        self.read_as(v2::Flags::NONE, ledger, entry).await
    }

    /// The first line and the body of an answer of the admin port.
    pub async fn http(&self, method: &str, path: &str, body: &str) -> (String, String) {
        http(self.admin, method, path, body).await
    }

    /// The body that the admin port returns for `path`.
    pub async fn get(&self, path: &str) -> String {
        let (status, body) = self.http("GET", path, "").await;
        assert!(status.contains("200"), "{path}: {status} {body}");
        body
    }

    pub async fn json(&self, path: &str) -> serde_json::Value {
        serde_json::from_str(&self.get(path).await).unwrap()
    }

    /// Waits until so many entries are in entry logs.
    pub async fn flushed(&self, entries: i64) {
        let flushed = async {
            while self.metric("bindery_flushed_entries").await < entries {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(super::PATIENCE, flushed).await.unwrap();
    }

    /// The value of a metric without labels.
    pub async fn metric(&self, name: &str) -> i64 {
        let text = self.get("/metrics").await;
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default();
        line.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{name}: {line:?}"))
    }

    /// One round of garbage collection, to its end.
    pub async fn collect(&self, order: &str) {
        let (status, body) = self.http("PUT", "/api/v1/bookie/gc", order).await;
        assert!(status.contains("200"), "{status} {body}");
        let ended = async {
            while self.get("/api/v1/bookie/gc").await != r#"{"is_in_force_gc":"false"}"# {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(super::PATIENCE, ended).await.unwrap();
    }

    /// Stops it in order.
    pub async fn stop(self) {
        self.stop.set();
        assert_eq!(self.task.await.unwrap(), Ended::Stopped);
    }
}

/// Flips the last byte of each copy of an entry in the entry logs of a bookie that does not run: in a running one, a merge may have
/// read the entry just before, and write it undamaged just after.
#[allow(clippy::disallowed_methods, reason = "a disk that rots asks nobody")]
pub fn damage_entry(dir: &Path, entry: &[u8]) {
    let places = places_of(dir, entry);
    assert!(!places.is_empty(), "the entry is in no entry log");
    for (path, at) in places {
        let log = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&log, &[!entry[entry.len() - 1]], at as u64).unwrap();
    }
}

/// Where the last byte of each copy of an entry is.
#[allow(clippy::disallowed_methods, reason = "it looks behind the bookie's back")]
fn places_of(dir: &Path, entry: &[u8]) -> Vec<(PathBuf, usize)> {
    let mut places = Vec::new();
    for file in std::fs::read_dir(dir.join("ledgers/current")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "elog") {
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes.windows(entry.len()).position(|window| window == entry);
            places.extend(found.map(|at| (path, at + entry.len() - 1)));
        }
    }
    places
}
