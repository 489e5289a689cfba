use super::super::paths::Root;
use super::*;
use crate::layer::StoreLayer;
use crate::layout::TierPause;
use crate::memory::{Fault, Kind, MemoryCluster, MemoryStore};
use crate::store::StoreFuture;

const HIERARCHICAL: &[u8] = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1";

#[test]
fn layout_text_is_javas() {
    assert_eq!(LedgerLayout::Hierarchical.to_text().as_bytes(), HIERARCHICAL);
    for layout in [LedgerLayout::Hierarchical, LedgerLayout::LongHierarchical] {
        assert_eq!(LedgerLayout::parse(layout.to_text().as_bytes()), Ok(layout));
    }
    assert_eq!(LedgerLayout::parse(b"1\nflat:1"), Err(LayoutError::FormatVersion(1)));
    let flat = b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1";
    assert!(matches!(LedgerLayout::parse(flat), Err(LayoutError::Unsupported(_))));
    for bad in [&b""[..], b"x\ny:1", b"2\nno-version", b"2", b"\xff\n:"] {
        assert!(matches!(LedgerLayout::parse(bad), Err(LayoutError::Malformed(_))));
    }
}

#[test]
fn instance_ids_are_version_4_uuids() {
    assert_eq!(uuid_text([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
}

#[tokio::test]
async fn init_creates_once_completes_what_stopped_and_refuses_another_layout() {
    let store = MemoryCluster::new().open();
    let init = |layout| init_cluster(&store, "/a/ledgers", layout, [1; 16]);
    assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::Created));
    assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::AlreadyInitialised));
    let other = init(LedgerLayout::LongHierarchical).await;
    assert!(matches!(other, Err(InitError::OtherLayout { .. })), "{other:?}");
    assert_eq!(store.children("/a/ledgers").await.unwrap(), ["INSTANCEID", "LAYOUT", "available"]);
    assert_eq!(store.get("/a/ledgers/LAYOUT").await.unwrap().data, HIERARCHICAL);
    store.delete("/a/ledgers/LAYOUT", None).await.unwrap();
    assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::Completed));
    store.create("/else", Bytes::new(), CreateMode::Persistent).await.unwrap();
    for missing in [&["/available/readonly"][..], &["/available/readonly", "/available"]] {
        for name in missing {
            store.delete(&format!("/a/ledgers{name}"), None).await.unwrap();
        }
        assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::Mended), "{missing:?}");
        assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::AlreadyInitialised));
    }
    let foreign = init_cluster(&store, "/else", LedgerLayout::Hierarchical, [1; 16]).await;
    assert!(matches!(foreign, Err(InitError::ForeignRoot { .. })), "{foreign:?}");
}

/// As Java's bookies do: `ParallelLedgerRecoveryTest` and others make no more than this.
#[tokio::test]
async fn a_bookie_writes_the_layout_of_a_bare_cluster_only() {
    for kind in Kind::ALL {
        let bare = |nodes: &'static [&'static str]| async move {
            let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::of(kind).open());
            for node in nodes {
                store.create(node, Bytes::new(), CreateMode::Persistent).await.unwrap();
            }
            store
        };
        let store = bare(&["/l", "/l/available", "/l/cookies"]).await;
        assert!(Layout::open(store.clone(), "/l", None).await.is_err(), "a client changes nothing");
        let layout = Layout::open_or_complete(store.clone(), "/l", None).await.unwrap();
        assert_eq!(layout.ledger_layout(), LedgerLayout::Hierarchical);
        assert_eq!(store.get("/l/LAYOUT").await.unwrap().data, HIERARCHICAL);
        assert_eq!(layout.instance_id().await, Ok(None));
        assert!(store.exists("/l/available/readonly").await.unwrap().is_some());
        let long = Some(LedgerLayout::LongHierarchical);
        let layout = Layout::open_or_complete(bare(&["/l", "/l/available"]).await, "/l", long).await.unwrap();
        assert_eq!(layout.ledger_layout(), LedgerLayout::LongHierarchical);
        for nodes in [
            &["/l"][..],
            &[],
            &["/l", "/l/available", "/l/00"],
            &["/l", "/l/available", "/l/idgen"],
            &["/l", "/l/available", "/l/IMPORTING"],
        ] {
            let store = bare(nodes).await;
            assert!(Layout::open_or_complete(store.clone(), "/l", None).await.is_err(), "{nodes:?}");
            assert!(store.exists("/l/LAYOUT").await.unwrap().is_none(), "{nodes:?}");
        }
    }
}

#[tokio::test]
async fn a_lost_connection_anywhere_does_not_stop_an_initialisation() {
    for kind in Kind::ALL {
        for fault in [Fault::LossBeforeApply, Fault::LossAfterApply] {
            for writes in 0..3 {
                let store = MemoryCluster::of(kind).open();
                store.inject_at(writes, fault);
                let outcome = init_cluster(&store, "/a/ledgers", LedgerLayout::Hierarchical, [1; 16]).await;
                assert_eq!(outcome, Ok(InitOutcome::Completed), "{fault:?} at write {writes}");
                assert_eq!(store.get("/a/ledgers/LAYOUT").await.unwrap().data, HIERARCHICAL);
            }
        }
    }
}

/// A process that is killed after any of its writes: with the cluster there is the pause.
#[tokio::test]
async fn a_paused_cluster_is_never_there_without_its_pause() {
    let pause_of = |store: &Arc<dyn MetadataStore>| TierPause(Root::new(store.clone(), "/a/ledgers"));
    let mut created = 0;
    for writes in 0..6 {
        let cluster = MemoryCluster::new();
        let store = cluster.open();
        store.inject_at(writes, Fault::LossAfterApply);
        let _ =
            try_init_cluster(&store, "/a/ledgers", LedgerLayout::Hierarchical, [1; 16], Some("why")).await;
        let store: Arc<dyn MetadataStore> = Arc::new(cluster.open());
        let is_there = store.exists("/a/ledgers/INSTANCEID").await.unwrap().is_some();
        assert_eq!(pause_of(&store).get().await.unwrap().is_some(), is_there, "killed after write {writes}");
        created += u32::from(is_there);
    }
    assert!(created > 1 && created < 6, "{created}");
    let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::new().open());
    let init = || init_cluster_with(&*store, "/a/ledgers", LedgerLayout::Hierarchical, [1; 16], Some("why"));
    assert_eq!(init().await, Ok(InitOutcome::Created));
    assert_eq!(pause_of(&store).get().await, Ok(Some("why".to_owned())));
    assert_eq!(pause_of(&store).resume().await, Ok(true));
    assert_eq!(init().await, Ok(InitOutcome::AlreadyInitialised));
    assert_eq!(pause_of(&store).get().await, Ok(None), "it keeps its state");
    // One that an earlier build left without LAYOUT.
    store.delete("/a/ledgers/LAYOUT", None).await.unwrap();
    assert_eq!(init().await, Ok(InitOutcome::Completed));
    assert_eq!(pause_of(&store).get().await, Ok(Some("why".to_owned())));
}

/// Without transactions, killed after any of its writes (invariant 3).
#[tokio::test]
async fn an_initialisation_node_by_node_is_finished_by_the_next_and_opens_with_its_pause() {
    let pause_of = |store: &Arc<dyn MetadataStore>| TierPause(Root::new(store.clone(), "/a/l"));
    let hierarchical = LedgerLayout::Hierarchical;
    let (mut whole, mut paused_alone) = (0, 0);
    for writes in 0..12 {
        let cluster = MemoryCluster::of(Kind::OfOxia);
        let first = cluster.open();
        first.inject_at(writes, Fault::LossAfterApply);
        let _ = try_init_cluster(&first, "/a/l", hierarchical, [1; 16], Some("why")).await;
        let store: Arc<dyn MetadataStore> = Arc::new(cluster.open());
        let is_open = Layout::open(store.clone(), "/a/l", None).await.is_ok();
        assert!(!is_open || pause_of(&store).get().await.unwrap().is_some(), "killed after {writes}");
        whole += u32::from(is_open);
        let is_named = store.exists("/a/l/INSTANCEID").await.unwrap().is_some();
        let is_paused = pause_of(&store).get().await.unwrap().is_some();
        assert!(is_paused || !is_named, "killed after {writes}: invariant 4");
        paused_alone += u32::from(is_paused && !is_named);
        let bookies = Layout::open_or_complete(store.clone(), "/a/l", None).await.map(drop);
        assert_eq!(bookies.is_ok(), is_open, "killed after {writes}: {bookies:?}");
        let outcome = init_cluster_with(&*store, "/a/l", hierarchical, [1; 16], Some("why")).await;
        let is_made = matches!(
            outcome,
            Ok(InitOutcome::Created | InitOutcome::Completed | InitOutcome::AlreadyInitialised)
        );
        assert!(is_made && is_open == (outcome == Ok(InitOutcome::AlreadyInitialised)), "{outcome:?}");
        assert_eq!(store.get("/a/l/LAYOUT").await.unwrap().data, HIERARCHICAL);
        assert_eq!(pause_of(&store).get().await, Ok(Some("why".to_owned())));
        let other = init_cluster_with(&*store, "/a/l", hierarchical, [2; 16], Some("why")).await;
        assert!(matches!(other, Err(InitError::OtherCluster { .. })), "{other:?}");
    }
    assert!(whole > 0 && whole < 10 && paused_alone > 1, "{whole} {paused_alone}");
    // An initialisation that asks for no pause keeps the one that is there.
    let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::of(Kind::OfOxia).open());
    create_parents(&*store, "/a/l/", "").await.unwrap();
    pause_of(&store).pause("why").await.unwrap();
    assert_eq!(init_cluster(&*store, "/a/l", hierarchical, [1; 16]).await, Ok(InitOutcome::Created));
    assert_eq!(pause_of(&store).get().await, Ok(Some("why".to_owned())));
    // A root of others gets nothing.
    let store = MemoryCluster::of(Kind::OfOxia).open();
    for node in ["/else", "/else/theirs"] {
        store.create(node, Bytes::new(), CreateMode::Persistent).await.unwrap();
    }
    let foreign = init_cluster(&store, "/else", hierarchical, [1; 16]).await;
    assert!(matches!(foreign, Err(InitError::ForeignRoot { .. })), "{foreign:?}");
    assert_eq!(store.children("/else").await.unwrap(), ["theirs"]);
    let store = MemoryCluster::of(Kind::OfOxia).open();
    create_parents(&store, "/else/underreplication/theirs/", "").await.unwrap();
    let foreign = init_cluster(&store, "/else", hierarchical, [1; 16]).await;
    assert!(matches!(foreign, Err(InitError::ForeignRoot { .. })), "{foreign:?}");
    assert_eq!(store.children("/else").await.unwrap(), ["underreplication"]);
}

/// The memory driver answers at once.
fn at_once<T>(request: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(request).poll(&mut context) {
        std::task::Poll::Ready(answer) => answer,
        std::task::Poll::Pending => panic!("the memory driver answers at once"),
    }
}

/// A bookie that starts within any write of an initialisation, in a root that is new or that has no more than the place of bookies.
#[tokio::test]
async fn a_bookie_that_starts_meanwhile_opens_no_cluster_that_lacks_its_pause() {
    for kind in Kind::ALL {
        for is_bare in [false, true] {
            for write in 0..11 {
                let cluster = MemoryCluster::of(kind);
                let (store, theirs) = (cluster.open(), cluster.open());
                if is_bare {
                    create_parents(&store, "/l/available/", "").await.unwrap();
                }
                store.interleave_write(write, move || {
                    let theirs: Arc<dyn MetadataStore> = Arc::new(theirs);
                    let Ok(layout) = at_once(Layout::open_or_complete(theirs, "/l", None)) else {
                        return;
                    };
                    // A tierer needs the INSTANCEID.
                    let is_named = at_once(layout.instance_id()).unwrap().is_some();
                    let is_paused = at_once(layout.tier_pause().get()).unwrap().is_some();
                    assert!(is_paused || !is_named, "{kind:?}, write {write}");
                    assert!(is_bare, "{kind:?}, write {write}: it is not for a bookie to complete");
                });
                let hierarchical = LedgerLayout::Hierarchical;
                let outcome = init_cluster_with(&store, "/l", hierarchical, [1; 16], Some("why")).await;
                let store: Arc<dyn MetadataStore> = Arc::new(store);
                let is_paused = TierPause(Root::new(store.clone(), "/l")).get().await.unwrap().is_some();
                assert_eq!(is_paused, outcome.is_ok(), "{kind:?}, write {write}: {outcome:?}");
                assert_eq!(store.exists("/l/INSTANCEID").await.unwrap().is_some(), outcome.is_ok());
            }
        }
    }
}

/// A store in parts, of which the first listing shows `available` and not what was made before it.
struct InParts {
    beneath: MemoryStore,
    is_listed: std::sync::atomic::AtomicBool,
}

impl StoreLayer for InParts {
    fn beneath(&self) -> &dyn MetadataStore {
        &self.beneath
    }
    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        let is_first = !self.is_listed.swap(true, std::sync::atomic::Ordering::Relaxed);
        let names = self.beneath.children(path);
        Box::pin(async move {
            let mut names = names.await?;
            names.retain(|name| !is_first || name == "available");
            Ok(names)
        })
    }
}

#[tokio::test]
async fn a_listing_that_is_not_of_one_moment_makes_no_cluster_bare() {
    for first in ["/l/underreplication", "/l/IMPORTING"] {
        let store = InParts {
            beneath: MemoryCluster::of(Kind::OfOxia).open(),
            is_listed: std::sync::atomic::AtomicBool::new(false),
        };
        for node in ["/l", first, "/l/available"] {
            store.beneath.create(node, Bytes::new(), CreateMode::Persistent).await.unwrap();
        }
        assert_eq!(complete(&store, "/l", LedgerLayout::Hierarchical).await, Ok(false), "{first}");
        assert!(store.beneath.exists("/l/LAYOUT").await.unwrap().is_none());
    }
}

#[tokio::test]
async fn an_import_that_begins_meanwhile_is_no_cluster() {
    for kind in Kind::ALL {
        for read in 0..8 {
            let cluster = MemoryCluster::of(kind);
            let (store, theirs) = (cluster.open(), cluster.open());
            store.interleave(read, move || {
                for node in ["/l", "/l/IMPORTING", "/l/INSTANCEID", "/l/cookies", "/l/available"] {
                    at_once(theirs.create(node, Bytes::new(), CreateMode::Persistent)).unwrap();
                }
            });
            let opened = Layout::open(Arc::new(store), "/l", None).await.map(drop);
            assert!(
                matches!(opened, Err(OpenError::Importing { .. } | OpenError::NotInitialised { .. })),
                "{kind:?}, read {read}: {opened:?}"
            );
        }
    }
}

/// Of two initialisations at once one makes the cluster, whatever the order of their writes.
#[tokio::test]
async fn the_cluster_of_two_initialisations_at_once_has_one_id() {
    for reads in 0..8 {
        let cluster = MemoryCluster::of(Kind::OfOxia);
        let (first, second) = (cluster.open(), cluster.open());
        first.interleave(reads, move || {
            let init = init_cluster(&second, "/l", LedgerLayout::Hierarchical, [2; 16]);
            let _ = at_once(init);
        });
        let outcome = init_cluster(&first, "/l", LedgerLayout::Hierarchical, [1; 16]).await;
        let id = first.get("/l/INSTANCEID").await.unwrap().data;
        let ours = id == uuid_text([1; 16]);
        assert!(ours || id == uuid_text([2; 16]), "{id:?}");
        assert!(ours || outcome != Ok(InitOutcome::Created), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_cluster_that_is_named_is_no_other_half_made_or_whole() {
    let store = MemoryCluster::new().open();
    let hierarchical = LedgerLayout::Hierarchical;
    init_cluster(&store, "/l", hierarchical, [1; 16]).await.unwrap();
    let named = || init_cluster_with(&store, "/l", hierarchical, [2; 16], Some("why"));
    let found = "01010101-0101-4101-8101-010101010101".to_owned();
    let other = Err(InitError::OtherCluster { found });
    assert_eq!(named().await, other);
    // Half-made: it stopped before the last step.
    store.delete("/l/LAYOUT", None).await.unwrap();
    assert_eq!(named().await, other);
    assert!(store.exists("/l/LAYOUT").await.unwrap().is_none());
    store.delete("/l/available/readonly", None).await.unwrap();
    assert_eq!(named().await, other);
    assert_eq!(store.children("/l/available").await.unwrap(), Vec::<String>::new());
    store.delete("/l/INSTANCEID", None).await.unwrap();
    assert_eq!(named().await, Err(InitError::OtherCluster { found: String::new() }));
    assert_eq!(store.children("/l").await.unwrap(), ["available"]);
    // The id is written as it was named, of whatever version of UUID, and known again however it is written.
    let named = || init_cluster_with(&store, "/n", hierarchical, [0xff; 16], Some("why"));
    assert_eq!(named().await, Ok(InitOutcome::Created));
    let id = store.get("/n/INSTANCEID").await.unwrap().data;
    assert_eq!(id, "ffffffff-ffff-ffff-ffff-ffffffffffff");
    let upper = Bytes::from(String::from_utf8_lossy(&id).to_uppercase() + "\n");
    store.set("/n/INSTANCEID", upper, None).await.unwrap();
    assert_eq!(named().await, Ok(InitOutcome::AlreadyInitialised));
}

/// The tree that the driver of Pulsar 4.2 and 5.0 makes, without the parents that are containers and have gone.
async fn of_pulsar(nodes: &[&str]) -> Arc<dyn MetadataStore> {
    let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::new().open());
    for node in ["/l", "/l/INSTANCEID"].iter().chain(nodes) {
        create_parents(&*store, node, "").await.unwrap();
        let data = if node.ends_with("INSTANCEID") { "76d4c7ac-4b8e-4a6c-9ad2-3f5b8c3f8a51" } else { "" };
        store.create(node, Bytes::from(data), CreateMode::Persistent).await.unwrap();
    }
    store
}

#[tokio::test]
async fn a_cluster_of_pulsars_driver_is_read_and_nothing_is_written_there() {
    let trees: [&[&str]; 5] = [
        &[],
        &["/l/cookies/b1"],
        &["/l/available/b1", "/l/cookies/b1"],
        &[
            "/l/available/readonly/b1",
            "/l/cookies/b1",
            "/l/00/0000/L0002",
            "/l/idgen",
            "/l/underreplication/LAYOUT",
        ],
        &["/l/cookies/b1", "/l/000/0000/0021/4748/L3647", "/l/idgen-long/HOB-0000000001"],
    ];
    for nodes in trees {
        let store = of_pulsar(nodes).await;
        let before = store.children("/l").await.unwrap();
        for wanted in [None, Some(LedgerLayout::Hierarchical)] {
            for layout in [
                Layout::open(store.clone(), "/l", wanted).await.unwrap(),
                Layout::open_or_complete(store.clone(), "/l", wanted).await.unwrap(),
            ] {
                assert_eq!(layout.ledger_layout(), LedgerLayout::Hierarchical);
                assert_eq!(layout.is_whole().await, Ok(true), "{nodes:?}");
                let id = layout.instance_id().await.unwrap().unwrap();
                assert_eq!(id, "76d4c7ac-4b8e-4a6c-9ad2-3f5b8c3f8a51");
            }
        }
        let long = LedgerLayout::LongHierarchical;
        let mismatch = Layout::open(store.clone(), "/l", Some(long)).await.unwrap_err();
        assert!(matches!(mismatch, OpenError::LayoutMismatch { .. }), "{mismatch}");
        let init = |layout| init_cluster(&*store, "/l", layout, [1; 16]);
        assert_eq!(init(LedgerLayout::Hierarchical).await, Ok(InitOutcome::AlreadyInitialised));
        assert!(matches!(init(long).await, Err(InitError::OtherLayout { .. })));
        assert_eq!(store.children("/l").await.unwrap(), before, "{nodes:?}");
    }
}

#[tokio::test]
async fn whoever_opened_a_cluster_with_its_layout_does_not_go_on_without() {
    let store = of_pulsar(&["/l/cookies/b1", "/l/00/0000/L0002"]).await;
    let without = Layout::open(store.clone(), "/l", None).await.unwrap();
    // Java's own driver writes it.
    let text = LedgerLayout::Hierarchical.to_text();
    store.create("/l/LAYOUT", text.into(), CreateMode::Persistent).await.unwrap();
    let with = Layout::open(store.clone(), "/l", None).await.unwrap();
    assert_eq!((without.is_whole().await, with.is_whole().await), (Ok(true), Ok(true)));
    store.delete("/l/LAYOUT", None).await.unwrap();
    assert_eq!((without.is_whole().await, with.is_whole().await), (Ok(true), Ok(false)));
    store.delete("/l/INSTANCEID", None).await.unwrap();
    assert_eq!(without.is_whole().await, Ok(false));
}

#[tokio::test]
async fn a_cluster_that_lost_its_layout_is_told_from_one_of_pulsars() {
    let (hierarchical, long) = (LedgerLayout::Hierarchical, LedgerLayout::LongHierarchical);
    for (ledger, has_long_paths) in [
        ("/l/000/0000/0000/0000/L0005", true),
        ("/l/000/0000/0021/4748/L3646", true),
        ("/l/L0000000007", false),
    ] {
        let store = of_pulsar(&["/l/cookies/b1", "/l/available/readonly", ledger]).await;
        let gone = LayoutGone { root: "/l".into(), has_long_paths };
        for wanted in [None, Some(hierarchical), Some(long)] {
            let opened = Layout::open_or_complete(store.clone(), "/l", wanted).await.unwrap_err();
            assert_eq!(opened, OpenError::LayoutGone(gone.clone()), "{ledger}");
        }
        let init = |layout| init_cluster(&*store, "/l", layout, [1; 16]);
        let refused = init(hierarchical).await.unwrap_err();
        assert_eq!(refused, InitError::LayoutGone(gone), "{ledger}");
        assert!(!refused.to_string().contains("remove it"), "{refused}");
        assert!(store.exists("/l/LAYOUT").await.unwrap().is_none());
        if has_long_paths {
            assert_eq!(init(long).await, Ok(InitOutcome::Completed));
            assert_eq!(Layout::open(store, "/l", None).await.unwrap().ledger_layout(), long);
        }
    }
}

#[tokio::test]
async fn a_cluster_opens_only_when_initialised_and_with_its_own_layout() {
    for kind in Kind::ALL {
        let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::of(kind).open());
        let open = |wanted| Layout::open(store.clone(), "/ledgers", wanted);
        assert!(matches!(open(None).await, Err(OpenError::NotInitialised { .. })));
        init_cluster(&*store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = open(Some(LedgerLayout::Hierarchical)).await.unwrap();
        assert_eq!(layout.instance_id().await.unwrap().unwrap(), "01010101-0101-4101-8101-010101010101");
        let mismatch = open(Some(LedgerLayout::LongHierarchical)).await.unwrap_err();
        assert!(mismatch.to_string().contains("use zk+hierarchical://"), "{mismatch}");
        store.delete("/ledgers/INSTANCEID", None).await.unwrap();
        assert_eq!(open(None).await.unwrap().instance_id().await, Ok(None));

        assert_eq!(layout.is_whole().await, Ok(true));
        let marker = format!("/ledgers{IMPORT_MARKER}");
        store.create(&marker, Bytes::new(), CreateMode::Persistent).await.unwrap();
        assert_eq!(layout.is_whole().await, Ok(false));
        assert!(matches!(open(None).await, Err(OpenError::Importing { .. })), "LAYOUT is not all");
        store.delete(&marker, None).await.unwrap();
        let other: Bytes = LedgerLayout::LongHierarchical.to_text().into();
        store.set("/ledgers/LAYOUT", other, None).await.unwrap();
        assert_eq!(layout.is_whole().await, Ok(false));
        store.delete("/ledgers/LAYOUT", None).await.unwrap();
        assert_eq!(layout.is_whole().await, Ok(false));
    }
}
