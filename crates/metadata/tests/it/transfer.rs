//! A cluster out of one store and into another: between memory stores always, with a real server when
//! `BINDERY_TEST_ZOOKEEPER=host:port` names one (ignored otherwise).

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bindery_metadata::OpenError;
use bindery_metadata::layout::{InitError, init_cluster};
use bindery_metadata::memory::{Fault, Kind, MemoryCluster, MemoryStore};
use bindery_metadata::store::{
    CreateMode, Created, MetadataStore, Op, Stat, StoreError, StoreFuture, Version,
};
use bindery_metadata::transfer::{COUNTER_STEPS_MAX, Dump, Export, ImportError, import};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions};
use bindery_metadata::{BookieServiceInfo, Layout, LedgerLayout, RegistrationMode, StoreLayer};
use bindery_types::{BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, LedgerSecret, Quorum, Segment};
use bytes::Bytes;

type Store = Arc<dyn MetadataStore>;

async fn cluster(store: &Store, root: &str) -> Layout {
    init_cluster(&**store, root, LedgerLayout::Hierarchical, [7; 16]).await.unwrap();
    Layout::open(store.clone(), root, None).await.unwrap()
}

fn metadata() -> LedgerMetadata {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p\x00\xff\n\\".to_vec() };
    let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
    let ensemble = vec![BookieId::new("b:1").unwrap()];
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
    metadata
}

/// A cluster with generated ledgers, chosen ids of both ranges, a deleted ledger, a cookie and a running bookie.
/// Returns the generated ids.
async fn fill(layout: &Layout, count: usize) -> Vec<i64> {
    let mut generated = Vec::new();
    for _ in 0..count {
        let id = layout.ids().next().await.unwrap();
        layout.ledgers().create(id, &metadata()).await.unwrap();
        generated.push(id.get());
    }
    for id in [1 << 20, i64::from(i32::MAX), 1 << 40, i64::MAX] {
        layout.ledgers().create(LedgerId::new(id).unwrap(), &metadata()).await.unwrap();
    }
    // The last one goes: its id must not come again, its entries may still be on bookies.
    layout.ledgers().delete(LedgerId::new(generated[count - 1]).unwrap(), None).await.unwrap();
    let (store, root) = (layout.store(), layout.root());
    for (path, data) in
        [("/cookies", ""), ("/cookies/b:1", "5\nbookieHost: \"b:1\"\n"), ("/disableHealthCheck", "")]
    {
        store.create(&format!("{root}{path}"), data.into(), CreateMode::Persistent).await.unwrap();
    }
    let id = BookieId::new("b:1").unwrap();
    let info = BookieServiceInfo::of_bookie(("127.0.0.1", 3181), None);
    layout.registration().register(&id, RegistrationMode::Writable, &info).await.unwrap();
    generated
}

async fn export(layout: &Layout) -> (String, Dump) {
    let (mut export, mut text) = (Export::new(layout), String::new());
    while let Some(part) = export.next().await.unwrap() {
        text += &part;
    }
    let dump = Dump::read(&mut text.as_bytes()).unwrap();
    assert_eq!(export.summary().nodes, dump.nodes_count() as u64);
    (text, dump)
}

/// Every node below `root` with its value, without ephemeral ones.
async fn tree(store: &Store, root: &str) -> Vec<(String, Bytes)> {
    let (mut open, mut all) = (vec![root.to_string()], Vec::new());
    while let Some(path) = open.pop() {
        let node = store.get(&path).await.unwrap();
        if node.stat.owner.is_some() {
            continue;
        }
        all.push((path[root.len()..].to_string(), node.data));
        open.extend(store.children(&path).await.unwrap().into_iter().map(|name| format!("{path}/{name}")));
    }
    all.sort();
    all
}

async fn ledgers(layout: &Layout) -> Vec<i64> {
    let (ledgers, mut all) = (layout.ledgers(), Vec::new());
    let mut listing = ledgers.list();
    while let Some(range) = listing.next().await.unwrap() {
        all.extend(range.into_iter().map(LedgerId::get));
    }
    all
}

/// Invariants 1, 3 and 5 on any two stores.
async fn moves(source: &Store, source_root: &str, target: &Store, target_root: &str) {
    let layout = cluster(source, source_root).await;
    let generated = fill(&layout, 30).await;
    let (text, dump) = export(&layout).await;
    let next = generated[29] + 2;
    assert!(text.contains(&format!("counter\t/idgen\t{next}\n")), "asking took one number: {text}");
    assert!(!text.contains("127.0.0.1"), "the registration is left out");
    let summary = import(target, target_root, &dump).await.unwrap();
    assert_eq!((summary.nodes, summary.found, summary.already_there), (dump.nodes_count() as u64, 0, false));
    assert_eq!(summary.ids, format!("ledger ids go on at {next}"));
    let imported = Layout::open(target.clone(), target_root, None).await.unwrap();
    assert_eq!(tree(target, target_root).await, tree(source, source_root).await);
    assert_eq!(ledgers(&imported).await, ledgers(&layout).await);
    assert_eq!(imported.instance_id().await, layout.instance_id().await);
    let id = LedgerId::new(generated[0]).unwrap();
    assert_eq!(imported.ledgers().get(id).await.unwrap().metadata, metadata());
    assert_eq!(imported.ids().next().await.unwrap().get(), next);
    // Once more: it is all there. After a change it is somebody's.
    imported.ledgers().delete(id, None).await.unwrap();
    let refused = import(target, target_root, &dump).await;
    assert_eq!(refused, Err(ImportError::NotEmpty { root: target_root.into() }));
}

fn memory() -> Store {
    Arc::new(MemoryCluster::new().open())
}

fn memory_of(kind: Kind) -> Store {
    Arc::new(MemoryCluster::of(kind).open())
}

#[tokio::test]
async fn a_cluster_moves_with_everything_but_its_registrations() {
    for source in Kind::ALL {
        for target in Kind::ALL {
            moves(&memory_of(source), "/ledgers", &memory_of(target), "/other/place/ledgers").await;
        }
    }
}

/// Its driver writes no LAYOUT; BookKeeper's, and ours, look for one in the copy.
#[tokio::test]
async fn a_cluster_of_pulsars_driver_moves_with_a_layout() {
    let (source, target) = (memory(), memory());
    fill(&cluster(&source, "/l").await, 5).await;
    source.delete("/l/LAYOUT", None).await.unwrap();
    let layout = Layout::open(source.clone(), "/l", None).await.unwrap();
    let (_, dump) = export(&layout).await;
    import(&target, "/l", &dump).await.unwrap();
    let imported = Layout::open(target.clone(), "/l", None).await.unwrap();
    assert_eq!(imported.ledger_layout(), LedgerLayout::Hierarchical);
    assert_eq!(ledgers(&imported).await, ledgers(&layout).await);
    let has_layout = |node: &&(String, Bytes)| node.0 == "/LAYOUT";
    assert_eq!(tree(&source, "/l").await.iter().filter(has_layout).count(), 0, "nothing is written there");
    let copy: Vec<_> = tree(&target, "/l").await.into_iter().filter(|node| !has_layout(&node)).collect();
    assert_eq!(copy, tree(&source, "/l").await);
    // Repeated, it is all there.
    assert!(import(&target, "/l", &dump).await.unwrap().already_there);
}

/// A bookie would take the copy for the store that it knows.
#[tokio::test]
async fn marks_of_bookies_stay_behind() {
    let (source, target) = (memory(), memory());
    let layout = cluster(&source, "/l").await;
    fill(&layout, 3).await;
    let id = BookieId::new("b:1").unwrap();
    layout.store_marks().put(&id, 7).await.unwrap();
    let (text, dump) = export(&layout).await;
    assert!(!text.contains("bindery-marks"), "{text}");
    import(&target, "/l", &dump).await.unwrap();
    let layout = Layout::open(target.clone(), "/l", None).await.unwrap();
    assert_eq!(layout.store_marks().get(&id).await, Ok(None));
    layout.store_marks().put(&id, 8).await.unwrap();
    assert!(import(&target, "/l", &dump).await.unwrap().already_there);
}

#[tokio::test]
async fn an_import_of_what_is_there_changes_nothing() {
    let (source, target) = (memory(), memory());
    let layout = cluster(&source, "/l").await;
    fill(&layout, 3).await;
    let (_, dump) = export(&layout).await;
    import(&target, "/l", &dump).await.unwrap();
    let again = import(&target, "/l", &dump).await.unwrap();
    assert!(again.already_there);
    assert_eq!(again.found, dump.nodes_count() as u64);
}

#[tokio::test]
async fn ids_move_to_a_new_upper_half_where_counting_would_take_long_or_the_source_is_there_already() {
    let source = MemoryCluster::new();
    let store: Store = Arc::new(source.open());
    let layout = cluster(&store, "/l").await;
    layout.ids().next().await.unwrap();
    source.set_sequence("/l/idgen", u32::try_from(COUNTER_STEPS_MAX).unwrap());
    let (_, dump) = export(&layout).await;
    let target = memory();
    assert_eq!(import(&target, "/l", &dump).await.unwrap().ids, "ledger ids go on at 4294967296");
    let imported = Layout::open(target, "/l", None).await.unwrap();
    assert_eq!(imported.ids().next().await.unwrap().get(), 1 << 32);
    // That cluster moves on to a third store, which must not give out 2^32 again.
    let (text, dump) = export(&imported).await;
    assert!(!text.contains("counter"), "{text}");
    let third = memory();
    assert_eq!(import(&third, "/l", &dump).await.unwrap().ids, "ledger ids go on at 8589934592");
    let imported = Layout::open(third, "/l", None).await.unwrap();
    assert_eq!(imported.ids().next().await.unwrap().get(), 2 << 32);
}

#[tokio::test]
async fn a_counter_is_moved_through_many_rounds() {
    let source = MemoryCluster::new();
    let store: Store = Arc::new(source.open());
    let layout = cluster(&store, "/l").await;
    layout.ids().next().await.unwrap();
    source.set_sequence("/l/idgen", 1233);
    let (_, dump) = export(&layout).await;
    let target = memory();
    assert_eq!(import(&target, "/l", &dump).await.unwrap().ids, "ledger ids go on at 1234");
    assert_eq!(target.children("/l/idgen").await.unwrap(), [""; 0]);
    let imported = Layout::open(target, "/l", None).await.unwrap();
    assert_eq!(imported.ids().next().await.unwrap().get(), 1234);
}

#[tokio::test]
async fn a_root_that_is_in_use_is_refused_and_not_touched() {
    let (source, target) = (memory(), memory());
    let layout = cluster(&source, "/l").await;
    fill(&layout, 3).await;
    let (_, dump) = export(&layout).await;
    cluster(&target, "/l").await;
    let before = tree(&target, "/l").await;
    assert!(matches!(import(&target, "/l", &dump).await, Err(ImportError::NotEmpty { .. })));
    assert_eq!(tree(&target, "/l").await, before);
    // Half an import of another file.
    target.create("/half", Bytes::new(), CreateMode::Persistent).await.unwrap();
    target.create("/half/IMPORTING", "00000000".into(), CreateMode::Persistent).await.unwrap();
    let refused = import(&target, "/half", &dump).await;
    assert!(
        matches!(&refused, Err(ImportError::OtherImport { checksum, .. }) if checksum == "00000000"),
        "{refused:?}"
    );
    // An empty root is as good as none.
    target.create("/empty", "old".into(), CreateMode::Persistent).await.unwrap();
    import(&target, "/empty", &dump).await.unwrap();
    assert_eq!(tree(&target, "/empty").await, tree(&source, "/l").await);
}

/// Fails for good after a number of writes, as a process that is killed.
struct Dies {
    inner: MemoryStore,
    left: AtomicUsize,
}

impl Dies {
    /// The memory driver applies a write when it is called, so it must not be called at all.
    fn write<'a, T: Send + 'a>(&'a self, request: impl FnOnce() -> StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        let alive = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match alive {
            Ok(_) => request(),
            Err(_) => Box::pin(async { Err(StoreError::Closed) }),
        }
    }
}

impl StoreLayer for Dies {
    fn beneath(&self) -> &dyn MetadataStore {
        &self.inner
    }
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
        self.write(|| self.inner.create(path, data, mode))
    }
    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        self.write(|| self.inner.set(path, data, expected))
    }
    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        self.write(|| self.inner.delete(path, expected))
    }
    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()> {
        self.write(|| self.inner.multi(ops))
    }
}

/// Invariants 3 and 4, for an end after each write.
#[tokio::test]
async fn an_import_that_is_killed_anywhere_leaves_no_open_cluster_and_is_finished_by_the_next() {
    let source = memory();
    let layout = cluster(&source, "/l").await;
    fill(&layout, 450).await;
    let (_, dump) = export(&layout).await;
    let expected = tree(&source, "/l").await;
    let (mut ended, mut importing) = (0, 0);
    for writes in 0.. {
        let target = MemoryCluster::new();
        let dies: Store = Arc::new(Dies { inner: target.open(), left: AtomicUsize::new(writes) });
        let outcome = import(&dies, "/a/l", &dump).await;
        let dead = dies.session_credentials().unwrap().id;
        target.expire(dead);
        let store: Store = Arc::new(target.open());
        if outcome.is_ok() {
            break;
        }
        ended += 1;
        assert_eq!(store.exists("/a/l/LAYOUT").await, Ok(None), "killed after {writes} writes");
        if store.exists("/a/l/IMPORTING").await.unwrap().is_some() {
            // Nobody is told to initialise it, and who tries does not open it.
            let opened = Layout::open(store.clone(), "/a/l", None).await.map(drop);
            assert!(matches!(opened, Err(OpenError::Importing { .. })), "{opened:?}");
            let made = init_cluster(&*store, "/a/l", LedgerLayout::Hierarchical, [3; 16]).await;
            assert!(
                matches!(made, Err(InitError::Importing { .. })),
                "killed after {writes} writes: {made:?}"
            );
            importing += 1;
        }
        let finished = import(&store, "/a/l", &dump).await.unwrap();
        assert_eq!(finished.nodes, dump.nodes_count() as u64);
        assert_eq!(tree(&store, "/a/l").await, expected, "killed after {writes} writes");
        let imported = Layout::open(store, "/a/l", None).await.unwrap();
        let next = imported.ids().next().await.unwrap().get();
        assert!(next >= 451, "killed after {writes} writes: id {next} comes again");
    }
    assert!(ended > 10 && importing > 10, "only {ended} places to be killed at, {importing} with a root");
}

/// Invariants 3 and 4, without transactions: LAYOUT is made when all else is there and was compared, and whoever repeats the import
/// finishes it.
#[tokio::test]
async fn an_import_without_transactions_is_finished_by_the_next() {
    let source = memory();
    let layout = cluster(&source, "/l").await;
    fill(&layout, 20).await;
    let (_, dump) = export(&layout).await;
    let expected = tree(&source, "/l").await;
    for has_root in [false, true] {
        let (mut ended, mut importing, mut compared) = (0, 0, 0);
        for writes in 0.. {
            let target = MemoryCluster::of(Kind::OfOxia);
            let store: Store = Arc::new(target.open());
            if has_root {
                // Empty, and with another value than in the file.
                for (node, data) in [("/a", ""), ("/a/l", "old")] {
                    store.create(node, data.into(), CreateMode::Persistent).await.unwrap();
                }
            }
            let dies: Store = Arc::new(Dies { inner: target.open(), left: AtomicUsize::new(writes) });
            let outcome = import(&dies, "/a/l", &dump).await;
            target.expire(dies.session_credentials().unwrap().id);
            if outcome.is_ok() {
                break;
            }
            ended += 1;
            let has_layout = store.exists("/a/l/LAYOUT").await.unwrap().is_some();
            let has_marker = store.exists("/a/l/IMPORTING").await.unwrap().is_some();
            assert!(
                !has_layout || has_marker,
                "killed after {writes} writes: the last step removes the marker"
            );
            if has_layout {
                compared += 1;
                let there: Vec<_> = tree(&store, "/a/l").await;
                assert_eq!(there.len(), expected.len() + 1, "all of it, and the marker");
            }
            // As a bookie, which would complete a bare cluster.
            let opened = Layout::open_or_complete(store.clone(), "/a/l", None).await.map(drop);
            match has_marker {
                true => assert!(matches!(opened, Err(OpenError::Importing { .. })), "{opened:?}"),
                false => assert!(matches!(opened, Err(OpenError::NotInitialised { .. })), "{opened:?}"),
            }
            if has_marker {
                importing += 1;
                let before = tree(&store, "/a/l").await;
                let made = init_cluster(&*store, "/a/l", LedgerLayout::Hierarchical, [3; 16]).await;
                assert!(matches!(made, Err(InitError::Importing { .. })), "{made:?}");
                assert_eq!(tree(&store, "/a/l").await, before);
            }
            let finished = import(&store, "/a/l", &dump).await.unwrap();
            assert_eq!(finished.nodes, dump.nodes_count() as u64);
            assert_eq!(tree(&store, "/a/l").await, expected, "killed after {writes} writes");
            let imported = Layout::open(store, "/a/l", None).await.unwrap();
            let next = imported.ids().next().await.unwrap().get();
            assert!(next >= 21, "killed after {writes} writes: id {next} comes again");
        }
        assert!(ended > 20 && importing > 10 && compared == 1, "{ended} {importing} {compared}");
    }
}

/// Where the store counts writes and not children, the count is set.
#[tokio::test]
async fn ids_go_on_where_the_source_is_without_transactions() {
    let source = MemoryCluster::new();
    let store: Store = Arc::new(source.open());
    let layout = cluster(&store, "/l").await;
    fill(&layout, 3).await;
    source.set_sequence("/l/idgen", 5_000_000);
    let (_, dump) = export(&layout).await;
    let target = memory_of(Kind::OfOxia);
    let summary = import(&target, "/l", &dump).await.unwrap();
    assert_eq!(summary.ids, "ledger ids go on at 5000001");
    let imported = Layout::open(target, "/l", None).await.unwrap();
    assert_eq!(imported.ids().next().await.unwrap().get(), 5_000_001);
}

/// Invariant 4, with a connection that breaks at each write, before or after it was applied.
#[tokio::test]
async fn a_lost_connection_anywhere_is_got_over() {
    let mut runs = tokio::task::JoinSet::new();
    // Without transactions each node and each number is a write of its own.
    for (kind, ledgers, writes) in [(Kind::OfZooKeeper, 450, 14), (Kind::OfOxia, 20, 100)] {
        let source = memory();
        let layout = cluster(&source, "/l").await;
        fill(&layout, ledgers).await;
        let (_, dump) = export(&layout).await;
        let (dump, expected) = (Arc::new(dump), Arc::new(tree(&source, "/l").await));
        for fault in [Fault::LossBeforeApply, Fault::LossAfterApply] {
            for write in 0..writes {
                let (dump, expected) = (dump.clone(), expected.clone());
                runs.spawn(async move {
                    let cluster = MemoryCluster::of(kind);
                    let target = cluster.open();
                    target.inject_at(write, fault);
                    let target: Store = Arc::new(target);
                    import(&target, "/a/l", &dump).await.unwrap();
                    let found = tree(&target, "/a/l").await;
                    assert_eq!(found, *expected, "{kind:?}, {fault:?} at write {write}");
                    // With another client, as the last faults come after the import.
                    let imported = Layout::open(Arc::new(cluster.open()), "/a/l", None).await.unwrap();
                    assert!(imported.ids().next().await.unwrap().get() > ledgers as i64);
                });
            }
        }
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs BINDERY_TEST_ZOOKEEPER"]
async fn a_cluster_moves_between_real_servers_and_memory() {
    let server = std::env::var("BINDERY_TEST_ZOOKEEPER").expect("BINDERY_TEST_ZOOKEEPER=host:port");
    let options = ZooKeeperOptions::default();
    let zookeeper: Store = Arc::new(zookeeper::connect(&[server], options).await.unwrap());
    let mode = CreateMode::PersistentSequential;
    let base = zookeeper.create("/bindery-test-transfer-", Bytes::new(), mode).await.unwrap().path;
    moves(&memory(), "/ledgers", &zookeeper, &format!("{base}/a/ledgers")).await;
    moves(&zookeeper, &format!("{base}/b"), &zookeeper, &format!("{base}/c")).await;
    // Some ten thousand ledgers: many transactions, and a counter that has to be moved far.
    let source = memory();
    let layout = cluster(&source, "/l").await;
    fill(&layout, 12_000).await;
    let (_, dump) = export(&layout).await;
    let root = format!("{base}/many");
    import(&zookeeper, &root, &dump).await.unwrap();
    let imported = Layout::open(zookeeper, &root, None).await.unwrap();
    assert_eq!(ledgers(&imported).await, ledgers(&layout).await);
    assert_eq!(imported.ids().next().await.unwrap().get(), 12_001);
}
