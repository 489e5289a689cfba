//! What a repair asks of the metadata store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bindery_client::Client;
use bindery_io::SystemClock;
use bindery_metadata::store::{CreateMode, MetadataStore, Node, Op, Stat, StoreFuture, Version, Watch};
use bindery_metadata::{Layout, StoreLayer};
use bindery_repair::{Repair, mark_ledgers_of};
use bytes::Bytes;
use tokio::time::Instant;

use super::cluster::{Cluster, assert_whole, id, sealed};
use super::repairing::{HANG, config, entries_on};

#[derive(Default)]
pub struct Counts {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
}

/// Counts requests.
pub struct Counted {
    pub beneath: Arc<dyn MetadataStore>,
    pub counts: Arc<Counts>,
}

impl Counted {
    fn read(&self) -> &dyn MetadataStore {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        &*self.beneath
    }

    fn write(&self) -> &dyn MetadataStore {
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
        &*self.beneath
    }
}

impl StoreLayer for Counted {
    fn beneath(&self) -> &dyn MetadataStore {
        &*self.beneath
    }
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        self.read().get(path)
    }
    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        self.read().get_and_watch(path)
    }
    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        self.read().exists(path)
    }
    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        self.read().exists_and_watch(path)
    }
    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        self.read().children(path)
    }
    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)> {
        self.read().children_and_watch(path)
    }
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, String> {
        self.write().create(path, data, mode)
    }
    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        self.write().set(path, data, expected)
    }
    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        self.write().delete(path, expected)
    }
    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()> {
        self.write().multi(ops)
    }
    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        self.read().sync(path)
    }
}

async fn counted(cluster: &Cluster, counts: &Arc<Counts>) -> Client {
    let layout = cluster.layout().await;
    let store = Counted { beneath: layout.store().clone(), counts: counts.clone() };
    let layout = Layout::open(Arc::new(store), layout.root(), None).await.unwrap();
    Client::builder().layout(layout).connect().await.unwrap()
}

/// Two writes for a ledger, its lock and the end of its repair; four reads by who repairs it, of mark and metadata before and under the
/// lock, and two by each other worker, which has to know who is in danger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_costs_few_requests_and_an_idle_worker_none() {
    const LEDGERS: usize = 60;
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let ids = sealed(&client, LEDGERS, 3, (3, 3, 2)).await;
    let (_, lost) = entries_on(&client, &ids, "b0").await;
    cluster.lose_bookie(0).await;
    let counts = Arc::new(Counts::default());
    let mut all = Vec::new();
    for name in ["b1", "b2", "b3"] {
        let client = counted(&cluster, &counts).await;
        let config = config(name, Duration::from_secs(3600));
        all.push(Repair::start(config, client, None, Arc::new(SystemClock::new())));
    }
    let taken = || (counts.reads.load(Ordering::Relaxed), counts.writes.load(Ordering::Relaxed));
    // Votes, and first looks.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = taken();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(taken(), before, "nothing is marked: the metadata store is not asked");
    let marked =
        mark_ledgers_of(&client, &SystemClock::new(), &BTreeSet::from([id("b0")]), false).await.unwrap();
    assert_eq!(marked.lacking.len() as u64, lost);
    let marks = cluster.layout().await.under_replication();
    let began = Instant::now();
    while !marks.after(None, 1).await.unwrap().is_empty() {
        assert!(began.elapsed() < HANG);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let after = taken();
    let (reads, writes) = (after.0 - before.0, after.1 - before.1);
    println!("{reads} reads and {writes} writes for {lost} ledgers");
    // A listing of the marks each 100 ms is among the reads, and a lock that another had is among the writes.
    assert!(writes <= 2 * lost + lost / 2, "{writes} writes for {lost} ledgers");
    assert!(reads <= 8 * lost + 200, "{reads} reads for {lost} ledgers");
    for repair in all {
        repair.stop().await;
    }
    for ledger in ids {
        assert_whole(&client, ledger, 3, "b0").await;
    }
    cluster.stop().await;
}
