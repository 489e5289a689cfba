//! What a repair asks of the metadata store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bindery_client::Client;
use bindery_io::SystemClock;
use bindery_metadata::memory::Kind;
use bindery_metadata::store::{
    CreateMode, Created, MetadataStore, Node, Op, Stat, StoreFuture, Version, Watch,
};
use bindery_metadata::{Layout, StoreLayer};
use bindery_repair::{Repair, Targets, mark_ledgers_of};
use bytes::Bytes;
use tokio::time::Instant;

use super::cluster::{Cluster, assert_whole, id, sealed};
use super::repairing::{HANG, config, entries_on};

#[derive(Default)]
pub struct Counts {
    /// All, listings among them.
    pub reads: AtomicU64,
    pub listings: AtomicU64,
    pub writes: AtomicU64,
    /// Of all, those about marks.
    pub of_marks: AtomicU64,
}

impl Counts {
    /// Reads that are no listings, listings, and writes.
    fn taken(&self) -> [u64; 3] {
        let [reads, listings, writes] =
            [&self.reads, &self.listings, &self.writes].map(|count| count.load(Ordering::Relaxed));
        [reads - listings, listings, writes]
    }
}

/// Counts requests.
pub struct Counted {
    pub beneath: Arc<dyn MetadataStore>,
    pub counts: Arc<Counts>,
}

impl Counted {
    fn note(&self, path: &str) {
        let is_of_marks = path.contains("/underreplication/ledgers");
        self.counts.of_marks.fetch_add(is_of_marks.into(), Ordering::Relaxed);
    }

    fn read(&self, path: &str) -> &dyn MetadataStore {
        self.note(path);
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        &*self.beneath
    }

    fn list(&self, path: &str) -> &dyn MetadataStore {
        self.counts.listings.fetch_add(1, Ordering::Relaxed);
        self.read(path)
    }

    fn write(&self, path: &str) -> &dyn MetadataStore {
        self.note(path);
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
        &*self.beneath
    }
}

impl StoreLayer for Counted {
    fn beneath(&self) -> &dyn MetadataStore {
        &*self.beneath
    }
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        self.read(path).get(path)
    }
    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        self.read(path).get_and_watch(path)
    }
    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        self.read(path).exists(path)
    }
    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        self.read(path).exists_and_watch(path)
    }
    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        self.list(path).children(path)
    }
    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)> {
        self.list(path).children_and_watch(path)
    }
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
        self.write(path).create(path, data, mode)
    }
    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        self.write(path).set(path, data, expected)
    }
    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        self.write(path).delete(path, expected)
    }
    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()> {
        // A worker's transactions are of marks.
        self.write("/underreplication/ledgers").multi(ops)
    }
    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        self.read(path).sync(path)
    }
}

async fn counted(cluster: &Cluster, counts: &Arc<Counts>) -> Client {
    let layout = cluster.layout().await;
    let store = Counted { beneath: layout.store().clone(), counts: counts.clone() };
    let layout = Layout::open(Arc::new(store), layout.root(), None).await.unwrap();
    Client::builder().layout(layout).connect().await.unwrap()
}

/// What the repair of a ledger costs.
struct Cost {
    reads: f64,
    writes: f64,
}

/// Requests of the auditor, which lists the bookies each ten seconds, and may have begun a look: workers that ask for marks each second send
/// a hundred in this time.
const AUDITOR_ASKS_MAX: u64 = 30;

/// Asserts that the metadata store is not asked for marks, and for nothing else but by the auditor.
async fn assert_rests(counts: &Counts, why: &str) {
    let taken = || {
        let all = counts.taken().into_iter().sum::<u64>();
        (counts.of_marks.load(Ordering::Relaxed), all)
    };
    let (of_marks, all) = taken();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (of_marks_then, all_then) = taken();
    assert_eq!(of_marks_then, of_marks, "{why}");
    assert!(all_then <= all + AUDITOR_ASKS_MAX, "{why}: {} requests", all_then - all);
}

async fn until_unmarked(cluster: &Cluster, workers: &[Repair], limit: Duration) {
    let (marks, began) = (cluster.layout().await.under_replication(), Instant::now());
    while !marks.after(None, 1).await.unwrap().is_empty() {
        let reports = || workers.iter().map(|worker| worker.handle().report()).collect::<Vec<_>>();
        assert!(began.elapsed() < limit, "{:#?}", reports());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Loses `b0` of `bookies`, and lets workers of others repair `ledgers` of its ledgers: of all others if `workers` is one less than
/// `bookies`, else one for all of them. Before and after that nothing is asked.
async fn cost(kind: Kind, bookies: usize, workers: usize, ledgers: usize) -> Cost {
    let mut cluster = Cluster::start_on(kind, bookies).await;
    let client = cluster.client().await;
    let mut ids = Vec::new();
    let mut lost = 0;
    while lost < ledgers as u64 {
        let more = sealed(&client, 20, 1, (3, 3, 2)).await;
        lost += entries_on(&client, &more, "b0").await.1;
        ids.extend(more);
    }
    cluster.lose_bookie(0).await;
    let counts = Arc::new(Counts::default());
    let mut all = Vec::new();
    for worker in 1..=workers {
        let client = counted(&cluster, &counts).await;
        let mut config = config(&format!("b{worker}"), Duration::from_secs(3600));
        if workers + 1 < bookies {
            config.targets = Targets::Any;
        }
        config.look_interval = Duration::from_secs(1);
        all.push(Repair::start(config, client, None, Arc::new(SystemClock::new())));
    }
    // Votes, and first looks.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_rests(&counts, "nothing was ever marked").await;
    let before = counts.taken();
    let marked =
        mark_ledgers_of(&client, &SystemClock::new(), &BTreeSet::from([id("b0")]), false).await.unwrap();
    assert_eq!(marked.lacking.len() as u64, lost);
    let began = Instant::now();
    until_unmarked(&cluster, &all, 4 * HANG).await;
    let after = counts.taken();
    let [reads, listings, writes] = [0, 1, 2].map(|at| (after[at] - before[at]) as f64 / lost as f64);
    println!(
        "{workers} workers, {lost} ledgers in {:.1} s: for each {reads:.2} reads, {writes:.2} writes, and {listings:.2} listings",
        began.elapsed().as_secs_f64()
    );
    // They list what is left once more, or twice.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_rests(&counts, "all are repaired").await;
    // Sooner than a worker looks that no watch tells.
    cluster.layout().await.under_replication().mark(ids[0], &[id("b0")]).await.unwrap();
    until_unmarked(&cluster, &all, Duration::from_secs(15)).await;
    for repair in all {
        repair.stop().await;
    }
    for ledger in ids.into_iter().step_by(ledgers.div_ceil(100)) {
        assert_whole(&client, ledger, 1, "b0").await;
    }
    cluster.stop().await;
    Cost { reads, writes }
}

/// Two writes for a ledger, its lock and the end of its repair, and two reads under the lock, of its mark and metadata. Who is to repair it
/// its mark says: where one bookie alone can take the copies, as here, each worker may have to look at it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_costs_few_requests_and_an_idle_worker_none() {
    let Cost { reads, writes } = cost(Kind::OfZooKeeper, 4, 3, 60).await;
    assert!(reads <= 5.5 && writes <= 2.5, "{reads} reads, {writes} writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_costs_no_more_requests_where_one_worker_is_alone() {
    let Cost { reads, writes } = cost(Kind::OfZooKeeper, 4, 1, 60).await;
    assert!(reads <= 3.5 && writes <= 2.5, "{reads} reads, {writes} writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_costs_no_more_requests_where_there_are_many_workers() {
    let Cost { reads, writes } = cost(Kind::OfZooKeeper, 9, 8, 60).await;
    // The first few marks of a burst are looked at by all of them.
    assert!(reads <= 8.0 && writes <= 3.5, "{reads} reads, {writes} writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_costs_no_more_requests_where_there_are_many_marks() {
    let Cost { reads, writes } = cost(Kind::OfZooKeeper, 4, 3, 2000).await;
    assert!(reads <= 5.5 && writes <= 2.5, "{reads} reads, {writes} writes");
}

/// Without transactions nodes above marks are looked for and stay, so that a ledger costs more. At rest it makes no difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_asks_nothing_where_nodes_above_marks_stay() {
    let Cost { reads, writes } = cost(Kind::OfOxia, 4, 3, 20).await;
    assert!(reads <= 30.0 && writes <= 8.0, "{reads} reads, {writes} writes");
}
