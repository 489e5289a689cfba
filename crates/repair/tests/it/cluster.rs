//! Bookies in this process, on a metadata store in memory.

use std::sync::Arc;
use std::time::Duration;

use bindery_client::{BookieId, Client, CreateOptions, EntryId, LedgerId, LedgerWriter, OpenMode, Quorum};
use bindery_io::{Clock as _, RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_server::bookie::{Bookie, Components, Ended, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;
use bindery_server::maintenance::garbage::GarbageConfig;
use bytes::Bytes;

const INSTANCE: [u8; 16] = [1; 16];
pub const PASSWORD: &[u8] = b"secret";

struct Running {
    stop: Arc<Latch>,
    task: tokio::task::JoinHandle<Ended>,
}

/// The cluster of one test.
pub struct Cluster {
    metadata: MemoryCluster,
    dir: tempfile::TempDir,
    bookies: Vec<Option<Running>>,
}

pub fn id(name: &str) -> BookieId {
    BookieId::new(name).unwrap()
}

impl Cluster {
    /// `count` bookies, named `b0`, `b1`, ...
    pub async fn start(count: usize) -> Cluster {
        // Marks say since when, and workers compare that with their clock.
        let metadata = MemoryCluster::starting_at(SystemClock::new().wall_ms());
        let store = metadata.open();
        layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, INSTANCE).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Cluster { metadata, dir, bookies: Vec::new() };
        for index in 0..count {
            cluster.start_bookie(index).await;
        }
        cluster
    }

    pub async fn layout(&self) -> Layout {
        Layout::open(Arc::new(self.metadata.open()), "/ledgers", None).await.unwrap()
    }

    /// With a session of its own.
    pub async fn client(&self) -> Client {
        Client::builder().layout(self.layout().await).connect().await.unwrap()
    }

    pub async fn start_bookie(&mut self, index: usize) {
        self.start_bookie_with(index, false).await;
    }

    /// `accepts_loss`: it may have lost directories, and its ledgers are then in limbo.
    pub async fn start_bookie_with(&mut self, index: usize, accepts_loss: bool) {
        let home = self.dir.path().join(format!("b{index}"));
        let config = BookieConfig {
            journal_dirs: vec![home.join("journal")],
            ledger_dirs: vec![home.join("ledgers")],
            home: Some(home),
            listen: "127.0.0.1:0".parse().unwrap(),
            bookie_id: Some(format!("b{index}")),
            memory_limit: Some(256 << 20),
            preallocate: 0,
            journal_file_bytes: 16 << 20,
            allow_loopback: true,
            accept_lost_directories: accepts_loss,
            accept_journal_damage: accepts_loss,
            garbage: GarbageConfig { interval: Duration::from_secs(1), ..GarbageConfig::default() },
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
        if self.bookies.len() <= index {
            self.bookies.resize_with(index + 1, || None);
        }
        self.bookies[index] = Some(Running { stop, task });
    }

    pub async fn stop_bookie(&mut self, index: usize) {
        let running = self.bookies[index].take().unwrap();
        running.stop.set();
        assert_eq!(running.task.await.unwrap(), Ended::Stopped);
    }

    /// Stops a bookie for good: its directories and its cookie are gone.
    pub async fn lose_bookie(&mut self, index: usize) {
        self.stop_bookie(index).await;
        std::fs::remove_dir_all(self.dir.path().join(format!("b{index}"))).unwrap();
        self.layout().await.cookies().delete(&id(&format!("b{index}")), None).await.unwrap();
    }

    /// Deletes all that a stopped bookie has; its cookie stays.
    pub fn wipe_bookie(&self, index: usize) {
        std::fs::remove_dir_all(self.dir.path().join(format!("b{index}"))).unwrap();
    }

    pub async fn stop(mut self) {
        for running in self.bookies.iter_mut().filter_map(Option::take) {
            running.stop.set();
            running.task.await.unwrap();
        }
    }
}

pub fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

/// Some empty, some large, each different.
pub fn payload(id: i64) -> Vec<u8> {
    let size = match id % 7 {
        0 => 0,
        6 => 20_000,
        n => 100 * n as usize,
    };
    (0..size).map(|at| (at as i64 * 31 + id) as u8).collect()
}

pub async fn writer(client: &Client, quorum: (usize, usize, usize)) -> LedgerWriter {
    let mut options = CreateOptions::new(Quorum::new(quorum.0, quorum.1, quorum.2).unwrap());
    options.password = PASSWORD.to_vec();
    client.create_ledger(options).await.unwrap()
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

/// Closed ledgers of `entries` entries.
pub async fn sealed(
    client: &Client,
    ledgers: usize,
    entries: i64,
    quorum: (usize, usize, usize),
) -> Vec<LedgerId> {
    let mut ids = Vec::new();
    for _ in 0..ledgers {
        let writer = writer(client, quorum).await;
        append(&writer, 0..entries).await;
        ids.push(writer.id());
        writer.close().await.unwrap();
    }
    ids
}

/// Every copy of the ledger is where metadata say, sound, and equal to what was written; `lost` is named nowhere.
pub async fn assert_whole(client: &Client, ledger: LedgerId, entries: i64, lost: &str) {
    let metadata = client.metadata(ledger).await.unwrap().metadata;
    for segment in metadata.segments() {
        assert!(!segment.ensemble.contains(&id(lost)), "ledger {ledger}: {metadata:?}");
    }
    let reader = client.open_ledger(ledger, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    assert_eq!(reader.last_add_confirmed(), Some(entry(entries - 1)));
    let mut look = reader.verify(EntryId::FIRST, None).await.unwrap();
    while look.step().await.unwrap() {}
    assert_eq!(look.report().findings, [], "ledger {ledger}");
    assert_eq!(look.report().entries, entries as u64);
    let mut stream = reader.read(EntryId::FIRST, entry(entries - 1));
    let mut next = 0;
    while let Some(read) = stream.next().await {
        assert_eq!(read.unwrap().payload, Bytes::from(payload(next)));
        next += 1;
    }
    assert_eq!(next, entries);
}
