//! The ZooKeeper driver and the layout on it against a real server, named by `BINDERY_TEST_ZOOKEEPER=host:port`.
//!
//! Ignored by a plain `cargo test`, because they need that server; the repository's `./test` starts one and includes
//! them. Each test works below a node of its own, so a server can be used again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::conformance::{self, Harness, Opening};
use bindery_metadata::layout::RegistrationError;
use bindery_metadata::store::{
    CreateMode, MetadataStore, SessionCredentials, SessionState, StoreError, WatchEvent,
};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions, ZooKeeperStore};
use bindery_metadata::{
    BookieRegistrar, BookieServiceInfo, ConnectOptions, InitOutcome, Layout, Membership, MetadataUri,
    OpenError, RegistrationEvent, RegistrationMode,
};
use bindery_types::{BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, LedgerSecret, Quorum, Segment};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// The shortest the server grants with its default tick of 2 s.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);
/// Far above anything that must happen.
const PATIENCE: Duration = Duration::from_secs(120);

fn server() -> String {
    let server = std::env::var("BINDERY_TEST_ZOOKEEPER");
    server.expect("BINDERY_TEST_ZOOKEEPER=host:port names the ZooKeeper server to test against")
}

async fn connect_to(servers: &[String], resume: Option<SessionCredentials>) -> ZooKeeperStore {
    let options =
        ZooKeeperOptions { session_timeout: SESSION_TIMEOUT, resume, ..ZooKeeperOptions::default() };
    zookeeper::connect(servers, options).await.expect("a reachable server")
}

async fn connect(resume: Option<SessionCredentials>) -> ZooKeeperStore {
    // A server that is not there, in front: the driver goes on to the next.
    connect_to(&["127.0.0.1:1".into(), server()], resume).await
}

/// A node that is this test run's alone.
async fn scratch(store: &dyn MetadataStore, name: &str) -> String {
    let path = format!("/bindery-test-{name}-");
    let created = store.create(&path, "".into(), CreateMode::PersistentSequential).await;
    created.expect("create a fresh node").path
}

struct ZooKeeper;

impl Harness for ZooKeeper {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { Arc::new(connect(None).await) as Arc<dyn MetadataStore> })
    }

    fn resume(&self, credentials: SessionCredentials) -> Opening<'_> {
        Box::pin(async { Arc::new(connect(Some(credentials)).await) as Arc<dyn MetadataStore> })
    }

    fn base(&self, name: &'static str) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async move {
            let store = connect(None).await;
            let path = scratch(&store, name).await;
            store.close().await.expect("close");
            path
        })
    }
}

#[tokio::test]
#[ignore = "needs BINDERY_TEST_ZOOKEEPER"]
async fn the_zookeeper_driver_conforms() {
    let checks = conformance::run(&ZooKeeper).await;
    println!("driver=zookeeper server={} conformance_checks={checks}", server());
}

/// A cluster below a fresh node, two levels down.
async fn cluster(name: &str) -> MetadataUri {
    let store = connect(None).await;
    let base = scratch(&store, name).await;
    store.close().await.expect("close");
    let uri: MetadataUri = format!("zk+hierarchical://127.0.0.1:1;{}{base}/deep/ledgers", server())
        .parse()
        .expect("valid in this test");
    let options = ConnectOptions { session_timeout: SESSION_TIMEOUT, ..ConnectOptions::default() };
    let missing = bindery_metadata::connect(&uri, options.clone()).await.err();
    assert!(matches!(missing, Some(OpenError::NotInitialised { .. })), "{missing:?}");
    let init = |id| bindery_metadata::init(&uri, options.clone(), id, None);
    assert_eq!(init([7; 16]).await, Ok(InitOutcome::Created));
    assert_eq!(init([8; 16]).await, Ok(InitOutcome::AlreadyInitialised));
    uri
}

async fn open(uri: &MetadataUri, resume: Option<SessionCredentials>) -> Layout {
    let options = ConnectOptions { session_timeout: SESSION_TIMEOUT, resume, ..ConnectOptions::default() };
    bindery_metadata::connect(uri, options).await.expect("an initialised cluster")
}

fn bookie() -> (BookieId, BookieServiceInfo) {
    (
        BookieId::new("127.0.0.1:3181").expect("valid in this test"),
        BookieServiceInfo::of_bookie(("127.0.0.1", 3181), None),
    )
}

#[tokio::test]
#[ignore = "needs BINDERY_TEST_ZOOKEEPER"]
async fn a_cluster_has_the_nodes_of_java_and_takes_ledgers_of_both_ranges() {
    let uri = cluster("cluster").await;
    let layout = open(&uri, None).await;
    let children = |path: &str| layout.store().children(&format!("{}{path}", uri.root));
    assert_eq!(children("").await.unwrap(), ["INSTANCEID", "LAYOUT", "available"]);
    assert_eq!(children("/available").await.unwrap(), ["readonly"]);
    assert_eq!(layout.instance_id().await.unwrap().as_deref(), Some("07070707-0707-4707-8707-070707070707"));
    let ids = layout.ids();
    let first = ids.next().await.unwrap();
    assert_eq!((first.get(), ids.next().await.unwrap().get()), (0, 1));
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
    let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble: vec![bookie().0] }).unwrap();
    let ledgers = layout.ledgers();
    let all = [first.get(), 10_000, i64::from(i32::MAX) - 1, i64::from(i32::MAX), i64::MAX];
    for id in all.map(|id| LedgerId::new(id).unwrap()) {
        let version = ledgers.create(id, &metadata).await.unwrap();
        assert_eq!(ledgers.get(id).await.unwrap().metadata, metadata);
        ledgers.update(id, &metadata, version).await.unwrap();
        assert!(ledgers.update(id, &metadata, version).await.is_err());
    }
    let (mut listing, mut found) = (ledgers.list(), Vec::new());
    while let Some(range) = listing.next().await.unwrap() {
        found.extend(range.into_iter().map(LedgerId::get));
    }
    assert_eq!(found, all);
    for id in all.map(|id| LedgerId::new(id).unwrap()) {
        ledgers.delete(id, None).await.unwrap();
    }
    assert_eq!(ledgers.list().next().await, Ok(None));
    println!("layout: ledgers created, read, updated, listed and deleted: {}", all.len());
}

/// A killed bookie's node stays; with the kept session it is its own at once, without it the session must end first.
#[tokio::test]
#[ignore = "needs BINDERY_TEST_ZOOKEEPER"]
async fn a_killed_bookie_registers_at_once_with_its_session_and_after_its_end_without() {
    let uri = cluster("restart").await;
    let (id, info) = bookie();
    let register =
        async |layout: &Layout| layout.registration().register(&id, RegistrationMode::Writable, &info).await;
    let layout = open(&uri, None).await;
    let first = register(&layout).await.unwrap();
    let credentials = layout.store().session_credentials().unwrap();
    drop(layout);
    let begin = tokio::time::Instant::now();
    let resumed = open(&uri, Some(credentials)).await;
    assert_eq!(register(&resumed).await, Ok(first), "the same session, hence at once");
    let at_once = begin.elapsed();
    drop(resumed);
    let begin = tokio::time::Instant::now();
    let fresh = open(&uri, None).await;
    let second = register(&fresh).await.unwrap();
    assert_ne!(second, first);
    println!("registered after a kill: with session {at_once:?}, without {:?}", begin.elapsed());
    // While that one lives, no other session registers.
    let rival = open(&uri, None).await;
    let refused = register(&rival).await;
    assert!(matches!(refused, Err(RegistrationError::Owned { owner, .. }) if owner == second), "{refused:?}");
}

async fn next(events: &mut mpsc::Receiver<RegistrationEvent>) -> RegistrationEvent {
    tokio::time::timeout(PATIENCE, events.recv())
        .await
        .expect("an event follows")
        .expect("the registrar runs")
}

/// The server ends the session (another client takes it over and closes it); the bookie comes back under a new one.
#[tokio::test]
#[ignore = "needs BINDERY_TEST_ZOOKEEPER"]
async fn an_expired_session_is_followed_by_a_registration_under_a_new_one() {
    let uri = cluster("expiry").await;
    let layout = open(&uri, None).await;
    let (id, info) = bookie();
    let instance_id = layout.instance_id().await.unwrap();
    let membership = Membership::new(layout.clone(), id.clone(), instance_id, None);
    let credentials = layout.store().session_credentials().unwrap();
    let (registrar, mut events) = BookieRegistrar::start(membership, info, RegistrationMode::Writable, None);
    let mode = RegistrationMode::Writable;
    assert_eq!(next(&mut events).await, RegistrationEvent::Registered { mode, session: credentials.id });
    let mut session = layout.store().session();
    let changed =
        |state: &SessionState| matches!(state, SessionState::Connected(id) if *id != credentials.id);
    // Both clients take the session from each other; sooner or later the close gets through.
    let steal = async {
        loop {
            let thief = connect(Some(credentials.clone())).await;
            thief.close().await.expect("close");
            if tokio::time::timeout(Duration::from_millis(500), session.wait_for(changed)).await.is_ok() {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, steal).await.expect("the session ends");
    let mut seen = Vec::new();
    let session = loop {
        match next(&mut events).await {
            RegistrationEvent::Registered { session, .. } if session != credentials.id => break session,
            other => seen.push(other),
        }
    };
    assert!(seen.contains(&RegistrationEvent::Expired), "{seen:?}");
    let node = layout.store().get(&format!("{}/available/{id}", uri.root)).await.unwrap();
    assert_eq!(node.stat.owner, Some(session));
    registrar.stop(PATIENCE).await;
    assert_eq!(layout.registration().list().await, Ok(vec![]));
    println!("expired={} registered={session} events between={}", credentials.id, seen.len());
}

/// A proxy in front of the server whose connections can be cut.
struct Proxy {
    address: String,
    open: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    async fn start() -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("valid in this test");
        let address = listener.local_addr().expect("valid in this test").to_string();
        let (open, gate) = watch::channel(true);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let mut gate = gate.clone();
                connections.spawn(async move {
                    if !*gate.borrow() {
                        return;
                    }
                    let Ok(mut upstream) = TcpStream::connect(server()).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut upstream) => {}
                        _ = gate.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        Proxy { address, open, task }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// By which a store that may move knows what its flag says.
#[tokio::test]
#[ignore = "needs BINDERY_TEST_ZOOKEEPER"]
async fn a_watch_has_fired_when_a_sync_behind_the_change_returns() {
    let (ours, theirs) = (connect(None).await, connect(None).await);
    let base = scratch(&ours, "sync").await;
    for round in 0..500 {
        let path = format!("{base}/{round}");
        let (_, mut of_node) = ours.get_and_watch(&base).await.unwrap();
        let (_, mut of_none) = ours.exists_and_watch(&path).await.unwrap();
        theirs.set(&base, "".into(), None).await.unwrap();
        theirs.create(&path, "".into(), CreateMode::Persistent).await.unwrap();
        ours.sync("/").await.unwrap();
        assert!(of_node.has_fired() && of_none.has_fired(), "round {round}");
    }
}

/// Store invariants 2 and 3 over real connections, and the same session afterwards.
#[tokio::test]
#[ignore = "needs BINDERY_TEST_ZOOKEEPER"]
async fn a_cut_connection_fires_watches_and_comes_back_under_the_same_session() {
    let proxy = Proxy::start().await;
    let store = Arc::new(connect_to(std::slice::from_ref(&proxy.address), None).await);
    let base = scratch(&*store, "cut").await;
    let credentials = store.session_credentials().unwrap();
    let mut session = store.session();
    let (mut applied, mut unknown) = (0, 0);
    for round in 0..20 {
        let (_, lost) = store.get_and_watch(&base).await.unwrap();
        // Writes in flight while the connection is cut, at another moment each round.
        let writes: Vec<_> = (0..20)
            .map(|number| {
                let (store, path) = (store.clone(), format!("{base}/{round:02}-{number:02}"));
                tokio::spawn(async move { store.create(&path, "".into(), CreateMode::Persistent).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(150 * round)).await;
        proxy.open.send_replace(false);
        let event = tokio::time::timeout(PATIENCE, lost.changed()).await.expect("a watch fires");
        assert_eq!(event, WatchEvent::Lost);
        proxy.open.send_replace(true);
        let mut known = Vec::new();
        for (number, write) in writes.into_iter().enumerate() {
            match write.await.unwrap() {
                Ok(created) => known.push(created.path),
                Err(StoreError::ConnectionLoss) => unknown += 1,
                Err(other) => panic!("write {number}: {other}"),
            }
        }
        let connected = session.wait_for(|state| matches!(state, SessionState::Connected(_)));
        let state = tokio::time::timeout(PATIENCE, connected).await.expect("it reconnects").unwrap().clone();
        assert_eq!(state, SessionState::Connected(credentials.id));
        for path in &known {
            assert!(store.exists(path).await.unwrap().is_some(), "{path} was acknowledged");
        }
        applied += known.len();
    }
    assert_eq!(applied + unknown, 400);
    println!("cut connections: 20, writes acknowledged: {applied}, outcome unknown: {unknown}");
    // Without a server: requests wait no longer than the session timeout, and were not sent.
    proxy.open.send_replace(false);
    let outcome = loop {
        match store.create(&format!("{base}/never"), "".into(), CreateMode::Persistent).await {
            Err(StoreError::ConnectionLoss) => {}
            outcome => break outcome,
        }
    };
    assert!(matches!(outcome, Err(StoreError::Unreachable { .. })), "{outcome:?}");
}
