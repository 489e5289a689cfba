//! Garbage collection of a whole bookie against a metadata store in memory: deleted ledgers go, and doubt drops nothing
//! (IB16).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "what damage does to files")]

use crate::common::PATIENCE;
use crate::common::whole::{
    Running, cluster, config_that_flushes as config, id, metadata, refused, start, start_on, start_over,
};
use crate::disks::{FREEZES, Frozen, Thaws};
use bindery_io::{Disk, RealDisk};
use bindery_metadata::StoreLayer;
use bindery_metadata::memory::MemoryStore;
use bindery_metadata::store::{CreateMode, MetadataStore, Stat, StoreFuture};
use bindery_server::cluster_record::ClusterRecord;
use bindery_server::config::BookieConfig;
use bindery_types::{BookieId, LedgerState};
use bindery_wire::{ErrorCode, v2};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

impl Running {
    /// As clients do: metadata first, then an entry.
    pub async fn create(&self, ledger: i64) {
        self.layout.ledgers().create(id(ledger), &metadata("bookie-0", LedgerState::Open)).await.unwrap();
        assert_eq!(self.add(ledger, 0).await, ErrorCode::Ok);
    }

    pub async fn delete(&self, ledger: i64) {
        self.layout.ledgers().delete(id(ledger), None).await.unwrap();
    }

    async fn details(&self) -> serde_json::Value {
        self.json("/api/v1/bookie/gc_details").await[0].take()
    }

    /// One round, to its end; says why it stopped.
    async fn why(&self, order: &str) -> serde_json::Value {
        self.collect(order).await;
        self.details().await["bindery"]["stoppedBecause"].take()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_ledger_goes_and_its_space_comes_back() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    for ledger in [0, 1, 2, 3] {
        bookie.create(ledger).await;
    }
    bookie.flushed(4).await;
    bookie.delete(0).await;
    bookie.delete(2).await;
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    for (ledger, code) in
        [(0, ErrorCode::NoLedger), (1, ErrorCode::Ok), (2, ErrorCode::NoLedger), (3, ErrorCode::Ok)]
    {
        assert_eq!(bookie.read(ledger, 0).await, code, "ledger {ledger}");
    }
    assert_eq!(bookie.add(2, 1).await, ErrorCode::Fenced, "a late writer");
    assert_eq!(bookie.metric("bindery_gc_ledgers_removed").await, 2);
    assert_eq!(bookie.metric("bookie_ledgers_count").await, 2);

    // The removals reach the state table with a flush; then the logs are worth half as much, or nothing.
    let rewritten = async {
        loop {
            bookie.collect(r#"{"forceMajor":true}"#).await;
            let details = bookie.details().await["bindery"].take();
            if details["logsRewritten"].as_u64() > Some(0) || details["logsDropped"].as_u64() > Some(0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, rewritten).await.unwrap();
    assert_eq!(bookie.read(1, 0).await, ErrorCode::Ok);
    bookie.stop().await;
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!((bookie.read(1, 0).await, bookie.read(2, 0).await), (ErrorCode::Ok, ErrorCode::NoLedger));
    bookie.stop().await;
}

/// Counts what a bookie reads of its metadata.
struct Counting {
    inner: Arc<MemoryStore>,
    reads: AtomicUsize,
}

impl StoreLayer for Counting {
    fn beneath(&self) -> &dyn MetadataStore {
        &*self.inner
    }

    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.exists(path)
    }

    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.children(path)
    }
}

/// A round looks deleted ledgers up once more before it removes them, with one read for each directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_ledgers_of_one_directory_are_looked_up_together() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let store = Arc::new(cluster.open());
    let over = Arc::new(Counting { inner: store.clone(), reads: AtomicUsize::new(0) });
    let disk = Arc::new(RealDisk::new());
    let bookie = start_over(disk, config(dir.path()), &cluster, store, over.clone()).await.unwrap();
    for ledger in 0..300 {
        bookie.create(ledger).await;
    }
    for ledger in 100..240 {
        bookie.delete(ledger).await;
    }
    let before = over.reads.load(Ordering::SeqCst);
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    let reads = over.reads.load(Ordering::SeqCst) - before;
    assert_eq!(bookie.metric("bindery_gc_ledgers_removed").await, 140);
    assert!(reads < 20, "{reads} reads of metadata");
    for (ledger, code) in
        [(99, ErrorCode::Ok), (100, ErrorCode::NoLedger), (239, ErrorCode::NoLedger), (240, ErrorCode::Ok)]
    {
        assert_eq!(bookie.read(ledger, 0).await, code, "ledger {ledger}");
    }
    bookie.stop().await;
}

/// A journal that hangs answers no removal. The round still ends and says why, and a later one goes through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_does_not_wait_for_a_journal_that_hangs() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let is_frozen = Arc::new(AtomicBool::new(false));
    let mut config = BookieConfig { journal_dirs: vec![dir.path().join(FREEZES)], ..config(dir.path()) };
    config.garbage.journal_patience = Duration::from_millis(300);
    let disk = Frozen { inner: RealDisk::new(), is_frozen: is_frozen.clone() };
    let bookie = start_on(Arc::new(disk), config, &cluster).await.unwrap();
    assert_eq!(bookie.why("").await, serde_json::Value::Null, "its mark is there");
    for ledger in [0, 1] {
        bookie.create(ledger).await;
    }
    bookie.flushed(2).await;
    bookie.delete(0).await;

    let thaws = Thaws(is_frozen.clone());
    is_frozen.store(true, Ordering::SeqCst);
    let why = bookie.why("").await;
    assert!(why.as_str().is_some_and(|why| why.contains("journal")), "{why}");
    assert_eq!(bookie.metric("bindery_gc_stopped").await, 1);
    assert_eq!(bookie.metric("bindery_gc_ledgers_removed").await, 0);
    drop(thaws);

    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!(bookie.metric("bindery_gc_stopped").await, 0);
    assert_eq!((bookie.read(0, 0).await, bookie.read(1, 0).await), (ErrorCode::NoLedger, ErrorCode::Ok));
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubt_about_metadata_drops_nothing() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    // It has left its mark by then.
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    let all: Vec<i64> = (0..21).collect();
    for ledger in &all {
        bookie.create(*ledger).await;
    }
    bookie.delete(5).await;

    bookie.store.disconnect();
    let why = bookie.why("").await;
    assert!(why.as_str().is_some_and(|why| why.contains("metadata")), "{why}");
    assert_eq!(bookie.read(5, 0).await, ErrorCode::Ok);
    bookie.store.reconnect();
    assert_eq!(bookie.metric("bindery_gc_stopped").await, 1);

    let instance = "/ledgers/INSTANCEID";
    let store = bookie.layout.store().clone();
    let ours = store.get(instance).await.unwrap().data;
    store.set(instance, "another".into(), None).await.unwrap();
    let why = bookie.why(r#"{"waiveChecks":true}"#).await;
    assert!(why.as_str().is_some_and(|why| why.contains("cluster")), "{why}");
    store.delete(instance, None).await.unwrap();
    let why = bookie.why(r#"{"waiveChecks":true}"#).await;
    assert!(why.as_str().is_some_and(|why| why.contains("cluster")), "{why}");
    store.create(instance, ours, CreateMode::Persistent).await.unwrap();
    assert_eq!(bookie.read(5, 0).await, ErrorCode::Ok, "nothing was dropped so far");

    for ledger in 6..18 {
        bookie.delete(ledger).await;
    }
    let why = bookie.why("").await;
    assert!(why.as_str().is_some_and(|why| why.contains("13 of 21")), "{why}");
    assert_eq!(bookie.read(6, 0).await, ErrorCode::Ok);
    assert_eq!(bookie.metric("bindery_gc_ledgers_removed").await, 0);
    assert_eq!(bookie.why(r#"{"waiveChecks":true}"#).await, serde_json::Value::Null);
    assert_eq!((bookie.read(6, 0).await, bookie.read(20, 0).await), (ErrorCode::NoLedger, ErrorCode::Ok));
    assert_eq!(bookie.metric("bindery_gc_ledgers_removed").await, 13);
    assert_eq!(bookie.metric("bindery_gc_stopped").await, 0);

    for ledger in all.into_iter().filter(|ledger| !(5..18).contains(ledger)) {
        bookie.delete(ledger).await;
    }
    // Without the mark, it may be a copy from before.
    let (marks, own) = (bookie.layout.store_marks(), BookieId::new("bookie-0").unwrap());
    let mark = marks.get(&own).await.unwrap().unwrap();
    marks.put(&own, mark ^ 1).await.unwrap();
    let why = bookie.why(r#"{"waiveChecks":true}"#).await;
    assert!(why.as_str().is_some_and(|why| why.contains("empty")), "{why}");
    bookie.layout.ids().next().await.unwrap();
    cluster.set_sequence("/ledgers/idgen", 21);
    for _ in 0..5 {
        let why = bookie.why("").await;
        assert!(why.as_str().is_some_and(|why| why.contains("empty")), "{why}");
    }
    assert_eq!(bookie.read(20, 0).await, ErrorCode::Ok);
    marks.put(&own, mark).await.unwrap();
    // Half a cluster.
    let layout = store.get("/ledgers/LAYOUT").await.unwrap().data;
    store.create("/ledgers/IMPORTING", "".into(), CreateMode::Persistent).await.unwrap();
    let why = bookie.why("").await;
    assert!(why.as_str().is_some_and(|why| why.contains("whole")), "{why}");
    store.delete("/ledgers/IMPORTING", None).await.unwrap();
    store.delete("/ledgers/LAYOUT", None).await.unwrap();
    let why = bookie.why("").await;
    assert!(why.as_str().is_some_and(|why| why.contains("whole")), "{why}");
    assert_eq!(bookie.read(20, 0).await, ErrorCode::Ok);
    store.create("/ledgers/LAYOUT", layout, CreateMode::Persistent).await.unwrap();
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!(bookie.read(20, 0).await, ErrorCode::NoLedger);
    let (status, _) = bookie.http("POST", "/api/v1/bookie/gc", "").await;
    assert!(status.contains("405"), "{status}");
    let (status, _) = bookie.http("PUT", "/api/v1/bookie/gc", r#"{"forceMayor":true}"#).await;
    assert!(status.contains("400"), "{status}");
    bookie.stop().await;
}

/// IB16: stores that are not the one that this bookie knows do not become it by being asked, by this bookie or by others, nor
/// by ids that are given out or skipped. Copies with an older mark, imports, and empty stores drop nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_put_back_from_a_copy_never_proves_to_be_current() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    let (store, marks) = (bookie.layout.store().clone(), bookie.layout.store_marks());
    let own = BookieId::new("bookie-0").unwrap();
    let mark = async || marks.get(&own).await.unwrap();
    let create = async |ledger| {
        assert_eq!(bookie.layout.ids().next().await.unwrap(), id(ledger));
        bookie.create(ledger).await;
    };
    create(0).await;
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    let older = mark().await.unwrap();
    create(1).await;
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    let newer = mark().await.unwrap();
    assert_ne!(older, newer, "what is here has changed");
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!(mark().await, Some(newer), "nothing has changed");

    for ledger in [0, 1] {
        bookie.delete(ledger).await;
    }
    let path = marks.path(&own);
    for of_copy in [Some(older), None] {
        match of_copy {
            Some(mark) => marks.put(&own, mark).await.unwrap(),
            None => store.delete(&path, None).await.unwrap(),
        }
        // From before ledger 1; then somebody takes ids; then an import raises them above all.
        for next in [1, 2, 1000] {
            cluster.set_sequence("/ledgers/idgen", next);
            for _ in 0..3 {
                let why = bookie.why("").await;
                assert!(why.as_str().is_some_and(|why| why.contains("empty")), "{next}: {why}");
            }
            assert_eq!(bookie.layout.ids().peek().await.unwrap(), Some(id(next.into())), "none was taken");
        }
        assert_eq!(mark().await, of_copy, "a store in doubt gets no mark");
        assert_eq!((bookie.read(0, 0).await, bookie.read(1, 0).await), (ErrorCode::Ok, ErrorCode::Ok));
    }

    // Its mark is there again, but not its cookie.
    marks.put(&own, newer).await.unwrap();
    let cookie = store.get("/ledgers/cookies/bookie-0").await.unwrap().data;
    store.delete("/ledgers/cookies/bookie-0", None).await.unwrap();
    let why = bookie.why("").await;
    assert!(why.as_str().is_some_and(|why| why.contains("empty")), "{why}");
    store.create("/ledgers/cookies/bookie-0", cookie, CreateMode::Persistent).await.unwrap();
    // The mark is known to the next process as well.
    bookie.stop().await;
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!(bookie.read(1, 0).await, ErrorCode::Ok);
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!(
        (bookie.read(0, 0).await, bookie.read(1, 0).await),
        (ErrorCode::NoLedger, ErrorCode::NoLedger)
    );
    bookie.stop().await;
}

/// IB16: ids that clients choose have no order. What metadata was seen to know is expected of it also when that ledger is gone, so a copy
/// from before the lower ones is behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_knew_a_deleted_ledger_above_all_others_is_expected_to_have_known_it() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    bookie.create(50).await;
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    bookie.delete(50).await;
    bookie.create(3).await;
    // Once to remove it, and once to leave a mark.
    for _ in 0..2 {
        assert_eq!(bookie.why("").await, serde_json::Value::Null);
    }
    assert_eq!(bookie.read(50, 0).await, ErrorCode::NoLedger);
    // The copy: without ledger 3, and with one of others above it.
    let others = metadata("bookie-1", LedgerState::Open);
    bookie.layout.ledgers().create(id(10), &others).await.unwrap();
    bookie.delete(3).await;
    let own = BookieId::new("bookie-0").unwrap();
    let path = bookie.layout.store_marks().path(&own);
    bookie.layout.store().delete(&path, None).await.unwrap();
    for _ in 0..2 {
        let why = bookie.why("").await;
        assert!(why.as_str().is_some_and(|why| why.contains("it knew ledger 50 before")), "{why}");
        assert_eq!(bookie.read(3, 0).await, ErrorCode::Ok);
    }
    bookie.stop().await;
}

/// A bookie that knows no mark: nothing above the listing goes before it has one, from a round that needed no proof.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_without_a_mark_gets_one_in_a_round_that_needs_no_proof() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    for ledger in [0, 1] {
        assert_eq!(bookie.layout.ids().next().await.unwrap(), id(ledger));
        bookie.create(ledger).await;
    }
    bookie.stop().await;
    RealDisk::new().remove(&dir.path().join("ledgers/current/KNOWN")).unwrap();
    let bookie = start(config(dir.path()), &cluster).await;
    bookie.delete(1).await;
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!(bookie.read(1, 0).await, ErrorCode::Ok);
    assert_eq!(bookie.details().await["bindery"]["unprovenLedgers"], 1);
    assert_eq!(bookie.layout.ids().next().await.unwrap(), id(2));
    bookie.create(2).await;
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!(bookie.read(1, 0).await, ErrorCode::NoLedger);
    for ledger in [0, 2] {
        bookie.delete(ledger).await;
    }
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!(bookie.read(2, 0).await, ErrorCode::NoLedger);
    bookie.stop().await;
}

/// A process that ends between noting its first mark and leaving it in the store, or whose store fails then: later rounds leave one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_mark_that_never_got_there_stops_no_later_round() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    for ledger in [0, 1, 2] {
        bookie.create(ledger).await;
    }
    let (store, marks) = (bookie.layout.store().clone(), bookie.layout.store_marks());
    let own = BookieId::new("bookie-0").unwrap();
    if marks.get(&own).await.unwrap().is_some() {
        store.delete(&marks.path(&own), None).await.unwrap();
    }
    bookie.stop().await;
    let noted = ClusterRecord { store_marks: [None, Some(7)], ..ClusterRecord::default() };
    assert_eq!(ClusterRecord::parse(noted.to_text().as_bytes()), Ok(noted));
    std::fs::write(dir.path().join("ledgers/current/KNOWN"), noted.to_text()).unwrap();
    let bookie = start(config(dir.path()), &cluster).await;
    bookie.delete(0).await;
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!((bookie.read(0, 0).await, bookie.read(1, 0).await), (ErrorCode::NoLedger, ErrorCode::Ok));
    assert!(bookie.layout.store_marks().get(&own).await.unwrap().is_some(), "there is a mark now");
    bookie.stop().await;
}

/// A fencing read or an add of a ledger that nobody created, whatever its id, stops no collection, also not after a restart; and it
/// goes itself when metadata that we know lacked it for long enough. An older copy of metadata still is in doubt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_made_up_ledger_with_a_high_id_stops_nothing() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    for ledger in 0..20 {
        bookie.create(ledger).await;
    }
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    let (fenced, added) = (1 << 62, 1 << 50);
    assert_eq!(bookie.read_as(v2::Flags::DO_FENCING, fenced, 0).await, ErrorCode::NoEntry);
    assert_eq!(bookie.add(added, 0).await, ErrorCode::Ok);
    for ledger in 15..18 {
        bookie.delete(ledger).await;
    }
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!(
        (bookie.read(15, 0).await, bookie.read(17, 0).await),
        (ErrorCode::NoLedger, ErrorCode::NoLedger)
    );
    assert_eq!(bookie.details().await["bindery"]["unprovenLedgers"], 2);
    assert_eq!(
        bookie.read(added, 0).await,
        ErrorCode::Ok,
        "a copy of before may answer: an hour to see that"
    );
    bookie.stop().await;
    let mut config = config(dir.path());
    config.garbage.unproven_kept = Duration::ZERO;
    let bookie = start(config, &cluster).await;
    // The highest that it knew goes, whatever ids were given out: the mark tells.
    for ledger in [18, 19] {
        bookie.delete(ledger).await;
    }
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!((bookie.read(19, 0).await, bookie.read(added, 0).await), (ErrorCode::NoLedger, ErrorCode::Ok));
    // By now there is another mark. An older copy has a former one, and lists no more than it did then.
    let (marks, own) = (bookie.layout.store_marks(), BookieId::new("bookie-0").unwrap());
    let mark = marks.get(&own).await.unwrap().unwrap();
    marks.put(&own, mark ^ 1).await.unwrap();
    bookie.delete(14).await;
    let why = bookie.why("").await;
    assert!(why.as_str().is_some_and(|why| why.contains("up to 13 only")), "{why}");
    assert_eq!(bookie.read(14, 0).await, ErrorCode::Ok);
    marks.put(&own, mark).await.unwrap();
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!((bookie.read(14, 0).await, bookie.read(added, 0).await), (ErrorCode::NoLedger, ErrorCode::Ok));
    assert_eq!(bookie.why("").await, serde_json::Value::Null);
    assert_eq!(bookie.read(added, 0).await, ErrorCode::NoLedger);
    assert_eq!(bookie.metric("bookie_ledgers_count").await, 14);
    bookie.stop().await;
}

/// A record of metadata that is lost or damaged costs no data: all of it is compared, and writers go on when metadata says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_record_of_metadata_is_made_anew_on_the_safe_side() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    for ledger in 0..3 {
        bookie.create(ledger).await;
    }
    bookie.stop().await;
    let known = dir.path().join("ledgers/current/KNOWN");
    // Early builds wrote it with their first round: a missing one is no damage.
    std::fs::remove_file(&known).unwrap();
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!((bookie.read(1, 0).await, bookie.metric("bindery_limbo_ledgers").await), (ErrorCode::Ok, 0));
    bookie.stop().await;
    for text in ["bindery-known 3\ncheckedUpTo 1\ncrc32c 00000000\n", "", "\u{0}\u{0}"] {
        std::fs::write(&known, text).unwrap();
        let bookie = start(config(dir.path()), &cluster).await;
        assert!(
            std::fs::read_to_string(&known).unwrap().contains("checkedUpTo 2"),
            "all of them are checked"
        );
        assert_eq!((bookie.read(1, 0).await, bookie.read(1, 7).await), (ErrorCode::Ok, ErrorCode::Io));
        assert_eq!(bookie.add(1, 1).await, ErrorCode::Ok, "metadata says that it is open and here");
        assert_eq!(bookie.metric("bindery_limbo_ledgers").await, 3);
        bookie.stop().await;
    }
    let newer = "bindery-known 9\n";
    let crc = bindery_journal::record::crc32c(newer.as_bytes());
    std::fs::write(&known, format!("{newer}crc32c {crc:08x}\n")).unwrap();
    let why = refused(config(dir.path()), &cluster).await;
    assert!(why.contains("written by a newer bindery") && !why.contains("lost"), "{why}");
}

/// Deleting the only ledger, or nearly all, or all: a store that has our INSTANCEID and our mark, and has counted as far as all
/// that was here, is believed, a large share when two rounds agree, and the space comes back without another interval or flush.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_goes_however_much_it_is() {
    for (here, deleted) in [(1, 0..1), (52, 0..51), (30, 0..30)] {
        let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
        let mut config = config(dir.path());
        config.garbage.interval = Duration::from_secs(86_400);
        let bookie = start(config, &cluster).await;
        assert_eq!(bookie.why("").await, serde_json::Value::Null);
        for ledger in 0..here {
            assert_eq!(bookie.layout.ids().next().await.unwrap(), id(ledger));
            bookie.create(ledger).await;
        }
        bookie.flushed(here).await;
        let log_bytes = || {
            let files = std::fs::read_dir(dir.path().join("ledgers/current")).unwrap();
            let logs = files
                .map(|file| file.unwrap())
                .filter(|file| file.path().extension().is_some_and(|e| e == "elog"));
            logs.map(|log| log.metadata().unwrap().len()).sum::<u64>()
        };
        assert!(log_bytes() > 0);
        for ledger in deleted.clone() {
            bookie.delete(ledger).await;
        }
        let is_large = deleted.end > 10;
        assert_eq!(bookie.why("").await, serde_json::Value::Null);
        if is_large {
            let begun = tokio::time::Instant::now();
            assert_eq!(bookie.read(0, 0).await, ErrorCode::Ok, "one look is not enough");
            assert_eq!(bookie.why("").await, serde_json::Value::Null);
            assert_eq!(bookie.read(0, 0).await, ErrorCode::Ok, "nor are two, one right behind the other");
            let gone = async {
                while bookie.metric("bindery_gc_ledgers_removed").await < deleted.end {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(PATIENCE, gone).await.unwrap();
            assert!(begun.elapsed() > Duration::from_secs(4), "{:?}", begun.elapsed());
        }
        for ledger in 0..here {
            let code = if deleted.contains(&ledger) { ErrorCode::NoLedger } else { ErrorCode::Ok };
            assert_eq!(bookie.read(ledger, 0).await, code, "ledger {ledger} of {here}");
        }
        // The one that stays lies in a log with others.
        let is_back = async {
            loop {
                let details = bookie.details().await["bindery"].take();
                let (dropped, rewritten) =
                    (details["logsDropped"].as_u64(), details["logsRewritten"].as_u64());
                match here - deleted.end {
                    0 if log_bytes() == 0 => return,
                    1 if dropped > Some(0) || rewritten > Some(0) => return,
                    _ => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, is_back).await.unwrap();
        assert_eq!(bookie.metric("bindery_gc_stopped").await, 0);
        bookie.stop().await;
    }
}

/// A requested scrub covers everything that is flushed, names damage, and costs no other entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrub_can_be_asked_for_and_waited_for() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    for ledger in [1, 2] {
        bookie.create(ledger).await;
    }
    bookie.flushed(2).await;
    let scrub = async || {
        let order = r#"{"wait":true,"waitSeconds":30}"#;
        let (status, body) = bookie.http("PUT", "/api/v1/bookie/scrub", order).await;
        assert!(status.contains("200"), "{status} {body}");
        serde_json::from_str::<serde_json::Value>(&body).unwrap()
    };
    let result = scrub().await;
    assert_eq!((&result["lastPass"]["entries"], &result["lastPass"]["findings"]), (&2.into(), &0.into()));

    let current = dir.path().join("ledgers/current");
    let mut logs: Vec<_> = std::fs::read_dir(current).unwrap().map(|file| file.unwrap().path()).collect();
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "elog"));
    logs.sort();
    // The last byte of the first body: "hello" becomes "helln".
    let log = std::fs::OpenOptions::new().write(true).open(&logs[0]).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&log, b"n", 4096 + 36).unwrap();
    let result = scrub().await;
    assert_eq!(result["lastPass"]["findings"], 1, "{result}");
    let finding = &result["findings"][0];
    assert_eq!((finding["file"].as_str(), &finding["offset"]), (logs[0].to_str(), &4096.into()));
    assert_eq!((&finding["affected"]["ledger"], &finding["affected"]["first"]), (&1.into(), &0.into()));
    assert!(finding["advice"].as_str().unwrap().contains("marks their ledger for repair"));
    assert_eq!(bookie.metric("bindery_scrub_damaged_logs").await, 1);
    assert_eq!((bookie.read(1, 0).await, bookie.read(2, 0).await), (ErrorCode::Io, ErrorCode::Ok));
    let (_, state) = bookie.http("GET", "/api/v1/bookie/scrub", "").await;
    assert!(state.contains(r#""damagedLogs":1"#), "{state}");
    let (status, _) = bookie.http("PUT", "/api/v1/bookie/scrub", r#"{"weit":true}"#).await;
    assert!(status.contains("400"), "{status}");
    let (status, _) = bookie.http("POST", "/api/v1/bookie/scrub", "").await;
    assert!(status.contains("405"), "{status}");
    assert!(bookie.metric("bindery_write_amplification_permille").await > 1000);
    bookie.stop().await;
}
