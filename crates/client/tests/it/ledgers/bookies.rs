//! Bookies in the process of a test, on a metadata store in memory. The tests of the tierer and of repair compile this file, too.

#![allow(dead_code, reason = "each crate that compiles this uses a part of it")]

use std::path::PathBuf;
use std::sync::Arc;

use bindery_client::{BookieId, EntryId, LedgerWriter};
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_server::bookie::{Bookie, Components, Ended, LocalStore, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;

struct Running {
    store: LocalStore,
    stop: Arc<Latch>,
    task: tokio::task::JoinHandle<Ended>,
}

/// Bookies named `b0`, `b1`, ..., each with a folder that it keeps.
pub struct Bookies {
    pub metadata: MemoryCluster,
    dir: tempfile::TempDir,
    running: Vec<Option<Running>>,
}

impl Bookies {
    /// None yet, of a cluster that is made in `metadata`. The INSTANCEID follows from its bytes.
    pub async fn new(metadata: MemoryCluster, instance: [u8; 16]) -> Bookies {
        let store = metadata.open();
        layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, instance).await.unwrap();
        Bookies { metadata, dir: tempfile::tempdir().unwrap(), running: Vec::new() }
    }

    /// With a session of its own.
    pub async fn layout(&self) -> Layout {
        Layout::open(Arc::new(self.metadata.open()), "/ledgers", None).await.unwrap()
    }

    pub fn home(&self, index: usize) -> PathBuf {
        self.dir.path().join(format!("b{index}"))
    }

    /// Starts a bookie, again or for the first time, on the directories it had.
    pub async fn start(&mut self, index: usize, tune: impl FnOnce(&mut BookieConfig)) {
        let home = self.home(index);
        let mut config = BookieConfig {
            journal_dirs: vec![home.join("journal")],
            ledger_dirs: vec![home.join("ledgers")],
            home: Some(home),
            listen: "127.0.0.1:0".parse().unwrap(),
            bookie_id: Some(format!("b{index}")),
            memory_limit: Some(256 << 20),
            preallocate: 0,
            journal_file_bytes: 16 << 20,
            allow_loopback: true,
            disks: DiskLimits { reserve_bytes: Some(0), ..DiskLimits::default() },
            ..BookieConfig::default()
        };
        tune(&mut config);
        let components = Components {
            disk: Arc::new(RealDisk::new()),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            metadata: Metadata::Layout(self.layout().await),
        };
        let bookie = Bookie::start(config, components).await.unwrap();
        let (store, stop) = (bookie.local_store(), Arc::new(Latch::default()));
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { bookie.run(&stop).await }
        });
        if self.running.len() <= index {
            self.running.resize_with(index + 1, || None);
        }
        self.running[index] = Some(Running { store, stop, task });
    }

    /// Of a bookie that runs.
    pub fn store(&self, index: usize) -> Option<&LocalStore> {
        Some(&self.running.get(index)?.as_ref()?.store)
    }

    /// The number of the bookie with this id.
    pub fn index_of(id: &BookieId) -> usize {
        id.as_str().strip_prefix('b').and_then(|index| index.parse().ok()).unwrap()
    }

    pub async fn stop(&mut self, index: usize) {
        let running = self.running[index].take().unwrap();
        drop(running.store);
        running.stop.set();
        assert_eq!(running.task.await.unwrap(), Ended::Stopped);
    }

    pub async fn stop_all(mut self) {
        for running in self.running.iter_mut().filter_map(Option::take) {
            running.stop.set();
            running.task.await.unwrap();
        }
    }
}

pub fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
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

/// Appends entries `range`, confirmed.
pub async fn append(writer: &LedgerWriter, range: std::ops::Range<i64>) {
    for id in range.clone() {
        writer.enqueue(&payload(id)).await.unwrap();
    }
    let mut progress = writer.progress();
    let last = entry(range.end - 1);
    progress.wait_for(|progress| progress.confirmed >= Some(last)).await.unwrap();
}
