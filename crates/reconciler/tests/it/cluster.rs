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
use bindery_io::{Clock as _, SystemClock};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::store::{MetadataStore, StoreError};
use bindery_metadata::{BookieServiceInfo, Layout};
use bindery_types::TierSecret;
use bindery_types::tier::TierExtent;
use bindery_wire::ErrorCode;
use bytes::Bytes;
use parking_lot::Mutex;

use super::bookies::Bookies as TestBookies;
pub use super::bookies::{append, entry, payload};

/// The INSTANCEID that `init_cluster` makes of its bytes is read back from the store.
pub const INSTANCE: [u8; 16] = [1; 16];

/// The cluster of one test.
pub struct Cluster {
    bookies: TestBookies,
    pub registers: Arc<Registers>,
}

impl Cluster {
    /// `count` bookies, named `b0`, `b1`, ..., of which the first `told` take updates.
    pub async fn start(count: usize, told: usize) -> Cluster {
        // The tierer tells the age of entries by creation times and its own clock.
        let metadata = MemoryCluster::starting_at(SystemClock::new().wall_ms());
        let bookies = TestBookies::new(metadata, INSTANCE).await;
        let mut cluster = Cluster { bookies, registers: Arc::new(Registers::default()) };
        for index in 0..count {
            cluster.bookies.start(index, |_| {}).await;
            if index < told {
                cluster.advertise(index).await;
            }
        }
        cluster
    }

    pub async fn layout(&self) -> Layout {
        self.bookies.layout().await
    }

    /// A client whose updates go to registers in memory.
    pub async fn client(&self) -> Client {
        let layout = self.layout().await;
        let bookies = Arc::new(Bookies::new(layout.registration(), ConnectionOptions::default()));
        let transport = Arc::new(Told { bookies, registers: self.registers.clone() });
        Client::builder().layout(layout).transport(transport).connect().await.unwrap()
    }

    /// Adds the property that a bookie with a tier has.
    async fn advertise(&self, index: usize) {
        let store = self.bookies.metadata.open();
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
        self.bookies.stop(index).await;
    }

    pub async fn stop(self) {
        self.bookies.stop_all().await;
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
            Reconciled { ledger: update.ledger, code, last: register.last, let_go: None }
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

pub async fn writer(client: &Client) -> LedgerWriter {
    let mut options = CreateOptions::new(Quorum::new(3, 3, 2).unwrap());
    options.password = b"secret".to_vec();
    client.create_ledger(options).await.unwrap()
}

/// The entries of a ledger, as readers get them.
pub async fn read(client: &Client, ledger: LedgerId) -> Vec<Bytes> {
    let reader = client.open_ledger(ledger, b"secret", OpenMode::ReadOnly).await.unwrap();
    let mut entries = Vec::new();
    let Some(last) = reader.last_add_confirmed() else { return entries };
    let mut stream = reader.read(EntryId::FIRST..=last);
    while let Some(entry) = stream.next().await {
        entries.push(entry.unwrap().payload);
    }
    entries
}
