//! Bookies in this process, on a metadata store in memory.

use std::sync::Arc;
use std::time::Duration;

use bindery_client::{BookieId, Client, ClientBuilder, CreateOptions, EntryId, Quorum};
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::{MemoryCluster, MemoryStore};
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_server::bookie::{Bookie, Components, Ended, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;

/// A bookie that runs.
pub struct Running {
    pub id: BookieId,
    stop: Arc<Latch>,
    task: tokio::task::JoinHandle<Ended>,
}

/// The cluster of one test.
pub struct Cluster {
    metadata: MemoryCluster,
    dir: tempfile::TempDir,
    bookies: Vec<Option<Running>>,
}

impl Cluster {
    /// `count` bookies, named `b0`, `b1`, ...
    pub async fn start(count: usize) -> Cluster {
        let metadata = MemoryCluster::new();
        let store = metadata.open();
        layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let mut cluster = Cluster { metadata, dir: tempfile::tempdir().unwrap(), bookies: Vec::new() };
        for index in 0..count {
            cluster.bookies.push(None);
            cluster.start_bookie(index).await;
        }
        cluster
    }

    /// Another session.
    pub fn store(&self) -> MemoryStore {
        self.metadata.open()
    }

    pub async fn layout(&self) -> Layout {
        Layout::open(Arc::new(self.metadata.open()), "/ledgers", None).await.unwrap()
    }

    /// A client, and the store that it uses, to take away.
    pub async fn client_on_store(&self) -> (Client, Arc<MemoryStore>) {
        let store = Arc::new(self.metadata.open());
        let layout = Layout::open(store.clone(), "/ledgers", None).await.unwrap();
        (Client::builder().layout(layout).connect().await.unwrap(), store)
    }

    /// A client with a session and connections of its own.
    pub async fn client(&self) -> Client {
        self.builder().await.connect().await.unwrap()
    }

    pub async fn builder(&self) -> ClientBuilder {
        Client::builder().layout(self.layout().await).request_timeout(Duration::from_secs(5))
    }

    /// Starts a bookie, again or for the first time, on the directories it had.
    pub async fn start_bookie(&mut self, index: usize) {
        let home = self.dir.path().join(format!("b{index}"));
        let config = BookieConfig {
            journal_dirs: vec![home.join("journal")],
            ledger_dirs: vec![home.join("ledgers")],
            home: Some(home),
            // Each on a host of its own, as far as racks go.
            listen: format!("127.0.0.{}:0", index + 1).parse().unwrap(),
            bookie_id: Some(format!("b{index}")),
            memory_limit: Some(256 << 20),
            preallocate: 0,
            journal_file_bytes: 16 << 20,
            allow_loopback: true,
            disks: DiskLimits { reserve_bytes: Some(0), ..DiskLimits::default() },
            ..BookieConfig::default()
        };
        let components = Components {
            disk: Arc::new(RealDisk::new()),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            metadata: Metadata::Layout(self.layout().await),
        };
        let bookie = Bookie::start(config, components).await.unwrap();
        let stop = Arc::new(Latch::default());
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { bookie.run(&stop).await }
        });
        let id = BookieId::new(format!("b{index}")).unwrap();
        self.bookies[index] = Some(Running { id, stop, task });
    }

    /// Stops the bookie of this id.
    pub async fn stop_bookie(&mut self, id: &BookieId) {
        let slot = self.bookies.iter_mut().find(|slot| slot.as_ref().is_some_and(|b| b.id == *id)).unwrap();
        let running = slot.take().unwrap();
        running.stop.set();
        assert_eq!(running.task.await.unwrap(), Ended::Stopped);
    }

    pub async fn stop(mut self) {
        for running in self.bookies.iter_mut().filter_map(Option::take) {
            running.stop.set();
            running.task.await.unwrap();
        }
    }
}

/// Options with a password, so that keys are checked.
pub fn options(ensemble: usize, write_quorum: usize, ack_quorum: usize) -> CreateOptions {
    let mut options = CreateOptions::new(Quorum::new(ensemble, write_quorum, ack_quorum).unwrap());
    options.password = b"secret".to_vec();
    options
}

/// What entry `id` holds in these tests: some empty, some large, each different.
pub fn payload(id: i64) -> Vec<u8> {
    let size = match id % 7 {
        0 => 0,
        6 => 20_000,
        n => 100 * n as usize,
    };
    (0..size).map(|at| (at as i64 * 31 + id) as u8).collect()
}

pub fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}
