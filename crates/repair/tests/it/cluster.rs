//! Bookies in this process, on a metadata store in memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::{BookieId, Client, CreateOptions, EntryId, LedgerId, LedgerWriter, OpenMode, Quorum};
use bindery_io::{Clock as _, SystemClock};
use bindery_metadata::Layout;
use bindery_metadata::memory::{Kind, MemoryCluster};
use bindery_repair::{OwnBookie, OwnTier};
use bindery_server::config::BookieConfig;
use bindery_server::maintenance::garbage::GarbageConfig;
use bindery_server::tier::TierConfig;
use bytes::Bytes;

use super::bookies::Bookies;
pub use super::bookies::{append, entry, payload};

pub const PASSWORD: &[u8] = b"secret";

/// The cluster of one test.
pub struct Cluster {
    bookies: Bookies,
    /// Bookies that are started read from there and let copies go.
    pub tier: Option<TierConfig>,
}

pub fn id(name: &str) -> BookieId {
    BookieId::new(name).unwrap()
}

impl Cluster {
    /// `count` bookies, named `b0`, `b1`, ...
    pub async fn start(count: usize) -> Cluster {
        Cluster::start_on(Kind::OfZooKeeper, count).await
    }

    /// As [`start`](Self::start), with a metadata store of this kind.
    pub async fn start_on(kind: Kind, count: usize) -> Cluster {
        // Marks say since when, and workers compare that with their clock.
        let metadata = MemoryCluster::of(kind).at(SystemClock::new().wall_ms());
        let mut cluster = Cluster { bookies: Bookies::new(metadata, [1; 16]).await, tier: None };
        for index in 0..count {
            cluster.start_bookie(index).await;
        }
        cluster
    }

    pub async fn layout(&self) -> Layout {
        self.bookies.layout().await
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
        let tune = |config: &mut BookieConfig| {
            config.accept_lost_directories = accepts_loss;
            config.accept_journal_damage = accepts_loss;
            config.garbage = GarbageConfig { interval: Duration::from_secs(1), ..GarbageConfig::default() };
            config.tier = self.tier.clone();
            if config.tier.is_some() {
                // Copies that are let go are soon gone.
                config.flush_interval = Duration::from_millis(200);
                config.space.collection_interval = Duration::from_millis(300);
                config.space.replaced_grace = Duration::ZERO;
            }
        };
        self.bookies.start(index, tune).await;
    }

    /// It removes no ledger that metadata does not name it for.
    pub async fn start_keeping_bookie(&mut self, index: usize) {
        let tune = |config: &mut BookieConfig| {
            config.garbage =
                GarbageConfig { interval: Duration::from_secs(3600), ..GarbageConfig::default() };
            config.tier = self.tier.clone();
        };
        self.bookies.start(index, tune).await;
    }

    /// Of a bookie that runs.
    pub fn own(&self, index: usize) -> Option<OwnBookie> {
        let store = self.bookies.store(index)?.clone();
        let tier = store.tier().cloned().map(|tier| OwnTier {
            cluster: tier.cluster(),
            reader: tier.reader(),
            lets_go: Arc::new(move |metadata| tier.lets_go(metadata)),
        });
        Some(OwnBookie { engine: store.engine().clone(), adds: Arc::new(move || store.add_times()), tier })
    }

    /// Bytes of objects that a bookie read from the bucket since it began.
    pub fn bytes_from_bucket(&self, index: usize) -> u64 {
        let tier = self.bookies.store(index).and_then(|store| store.tier().cloned()).unwrap();
        tier.fetcher().unwrap().stats().request_bytes
    }

    /// It flushes, scrubs and compacts all the time.
    pub async fn start_scrubbing_bookie(&mut self, index: usize) {
        let tune = |config: &mut BookieConfig| {
            config.garbage =
                GarbageConfig { interval: Duration::from_millis(500), ..GarbageConfig::default() };
            config.flush_interval = Duration::from_millis(200);
            config.space.collection_interval = Duration::from_millis(500);
            config.space.scrub_period = Duration::from_millis(500);
            config.space.scrub_bytes_per_second = 64 << 20;
            config.space.replaced_grace = Duration::ZERO;
        };
        self.bookies.start(index, tune).await;
    }

    /// The entry logs of a bookie.
    pub fn entry_logs(&self, index: usize) -> Vec<PathBuf> {
        let current = self.bookies.home(index).join("ledgers/current");
        let mut logs: Vec<PathBuf> =
            std::fs::read_dir(current).unwrap().map(|file| file.unwrap().path()).collect();
        logs.retain(|path| path.extension().is_some_and(|extension| extension == "elog"));
        logs.sort();
        logs
    }

    /// Bytes of the entry logs of a bookie.
    pub fn local_bytes(&self, index: usize) -> u64 {
        // One may go meanwhile.
        let lengths =
            self.entry_logs(index).into_iter().map(|log| std::fs::metadata(log).map(|file| file.len()));
        lengths.filter_map(Result::ok).sum()
    }

    pub async fn stop_bookie(&mut self, index: usize) {
        self.bookies.stop(index).await;
    }

    /// Stops a bookie for good: its directories and its cookie are gone.
    pub async fn lose_bookie(&mut self, index: usize) {
        self.stop_bookie(index).await;
        self.wipe_bookie(index);
        self.layout().await.cookies().delete(&id(&format!("b{index}")), None).await.unwrap();
    }

    pub fn home(&self, index: usize) -> std::path::PathBuf {
        self.bookies.home(index)
    }

    /// Deletes all that a stopped bookie has; its cookie stays.
    pub fn wipe_bookie(&self, index: usize) {
        std::fs::remove_dir_all(self.bookies.home(index)).unwrap();
    }

    pub async fn stop(self) {
        self.bookies.stop_all().await;
    }
}

pub async fn writer(client: &Client, quorum: (usize, usize, usize)) -> LedgerWriter {
    let mut options = CreateOptions::new(Quorum::new(quorum.0, quorum.1, quorum.2).unwrap());
    options.password = PASSWORD.to_vec();
    client.create_ledger(options).await.unwrap()
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
    let mut stream = reader.read(EntryId::FIRST..=entry(entries - 1));
    let mut next = 0;
    while let Some(read) = stream.next().await {
        assert_eq!(read.unwrap().payload, Bytes::from(payload(next)));
        next += 1;
    }
    assert_eq!(next, entries);
}
