//! Bookies in this process, on a metadata store in memory; registers of last reconciled entries in a transport that stands in
//! for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{Answer, BookieError, Transport, TransportLayer};
use bindery_client::{
    BookieId, Client, CreateOptions, EntryId, LedgerId, LedgerWriter, OpenMode, Quorum, Reconcile,
    Reconciled, TIER_PROPERTY, TIER_PROPERTY_VALUE,
};
use bindery_io::{Clock as _, RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::store::{MetadataStore, StoreError};
use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, layout};
use bindery_server::bookie::{Bookie, Components, Ended, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;
use bindery_types::TierSecret;
use bindery_types::tier::TierExtent;
use bindery_wire::ErrorCode;
use bytes::Bytes;
use parking_lot::Mutex;

/// The INSTANCEID that `init_cluster` makes of its bytes is read back from the store.
pub const INSTANCE: [u8; 16] = [1; 16];

struct Running {
    stop: Arc<Latch>,
    task: tokio::task::JoinHandle<Ended>,
}

/// The cluster of one test.
pub struct Cluster {
    metadata: MemoryCluster,
    dir: tempfile::TempDir,
    bookies: Vec<Option<Running>>,
    pub registers: Arc<Registers>,
}

impl Cluster {
    /// `count` bookies, named `b0`, `b1`, ..., of which the first `told` take updates.
    pub async fn start(count: usize, told: usize) -> Cluster {
        // The tierer tells the age of entries by creation times and its own clock.
        let metadata = MemoryCluster::starting_at(SystemClock::new().wall_ms());
        let store = metadata.open();
        layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, INSTANCE).await.unwrap();
        let mut cluster = Cluster {
            metadata,
            dir: tempfile::tempdir().unwrap(),
            bookies: Vec::new(),
            registers: Arc::new(Registers::default()),
        };
        for index in 0..count {
            cluster.bookies.push(None);
            cluster.start_bookie(index).await;
            if index < told {
                cluster.advertise(index).await;
            }
        }
        cluster
    }

    pub async fn layout(&self) -> Layout {
        Layout::open(Arc::new(self.metadata.open()), "/ledgers", None).await.unwrap()
    }

    /// A client whose updates go to registers in memory.
    pub async fn client(&self) -> Client {
        let layout = self.layout().await;
        let bookies = Arc::new(Bookies::new(layout.registration(), ConnectionOptions::default()));
        let transport = Arc::new(Told { bookies, registers: self.registers.clone() });
        Client::builder().layout(layout).transport(transport).connect().await.unwrap()
    }

    async fn start_bookie(&mut self, index: usize) {
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
        self.bookies[index] = Some(Running { stop, task });
    }

    /// Adds the property that a bookie with a tier has.
    async fn advertise(&self, index: usize) {
        let store = self.metadata.open();
        let path = format!("/ledgers/available/b{index}");
        let node = store.get(&path).await.unwrap();
        let mut info = BookieServiceInfo::decode(&node.data).unwrap();
        info.properties.insert(TIER_PROPERTY.into(), TIER_PROPERTY_VALUE.into());
        match store.set(&path, Bytes::from(info.encode()), None).await {
            Ok(_) | Err(StoreError::NoNode { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn stop_bookie(&mut self, index: usize) {
        let running = self.bookies[index].take().unwrap();
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

/// What bookies were told.
#[derive(Default)]
pub struct Registers {
    by_bookie: Mutex<BTreeMap<BookieId, BTreeMap<LedgerId, Register>>>,
    /// Updates of these are never answered.
    pub hang_on: Mutex<BTreeSet<LedgerId>>,
    pub requests: AtomicU64,
    /// Every request takes so long, in milliseconds.
    pub latency_ms: AtomicU64,
    pub is_refusing: AtomicBool,
}

#[derive(Default, Clone)]
pub struct Register {
    pub last: Option<EntryId>,
    pub extents: Vec<TierExtent>,
}

impl Registers {
    pub fn of(&self, bookie: &str, ledger: LedgerId) -> Register {
        let bookie = BookieId::new(bookie).unwrap();
        let by_bookie = self.by_bookie.lock();
        by_bookie.get(&bookie).and_then(|ledgers| ledgers.get(&ledger)).cloned().unwrap_or_default()
    }

    async fn reconcile(&self, bookie: BookieId, request: Reconcile) -> Result<Vec<Reconciled>, BookieError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(self.latency_ms.load(Ordering::Relaxed))).await;
        if self.is_refusing.load(Ordering::Relaxed) {
            return Err(BookieError::Refused(ErrorCode::TooManyRequests));
        }
        if request.ledgers.iter().any(|update| self.hang_on.lock().contains(&update.ledger)) {
            std::future::pending::<()>().await;
        }
        let mut by_bookie = self.by_bookie.lock();
        let ledgers = by_bookie.entry(bookie).or_default();
        let results = request.ledgers.into_iter().map(|update| {
            let register = ledgers.entry(update.ledger).or_default();
            let mut code = ErrorCode::Ok;
            if let Some(first) = update.extents.first() {
                let next = register.last.map_or(0, |last| last.get() + 1);
                if first.first.get() > next {
                    code = ErrorCode::BadRequest;
                } else {
                    register.extents.retain(|old| old.last < first.first || Some(old.first) > update.last);
                    register.extents.extend(update.extents);
                    register.extents.sort_unstable_by_key(|extent| extent.first);
                    register.last = register.last.max(update.last);
                }
            }
            Reconciled { ledger: update.ledger, code, last: register.last }
        });
        Ok(results.collect())
    }
}

/// The network, but for updates.
struct Told {
    bookies: Arc<Bookies>,
    registers: Arc<Registers>,
}

impl TransportLayer for Told {
    fn beneath(&self) -> &dyn Transport {
        &*self.bookies
    }

    fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        _: Option<TierSecret>,
        _: Duration,
    ) -> Answer<'_, Vec<Reconciled>> {
        let bookie = bookie.clone();
        Box::pin(async move { self.registers.reconcile(bookie, request).await })
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

pub async fn writer(client: &Client) -> LedgerWriter {
    let mut options = CreateOptions::new(Quorum::new(3, 3, 2).unwrap());
    options.password = b"secret".to_vec();
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

/// The entries of a ledger, as readers get them.
pub async fn read(client: &Client, ledger: LedgerId) -> Vec<Bytes> {
    let reader = client.open_ledger(ledger, b"secret", OpenMode::ReadOnly).await.unwrap();
    let mut entries = Vec::new();
    let Some(last) = reader.last_add_confirmed() else { return entries };
    let mut stream = reader.read(EntryId::FIRST, last);
    while let Some(entry) = stream.next().await {
        entries.push(entry.unwrap().payload);
    }
    entries
}
