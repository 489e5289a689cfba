//! The Oxia driver against servers in memory ([`fake`]), whose shards and faults a test chooses, and against a real server that
//! `BINDERY_TEST_OXIA=host:port` names (ignored otherwise).

mod fake;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::conformance::{self, Harness, Opening};
use bindery_metadata::layout::{AuditorPlace, init_cluster};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::oxia::{self, OxiaStore};
use bindery_metadata::store::{
    CreateMode, MetadataStore, SessionCredentials, SessionState, StoreError, WatchEvent,
};
use bindery_metadata::transfer::{Dump, Export, import};
use bindery_metadata::{
    BookieServiceInfo, ConnectOptions, Cookie, Fault as ServerFault, InitOutcome, Layout, LedgerLayout,
    RegistrationMode, Security, SessionId, WaitFor,
};
use bindery_types::{BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, LedgerSecret, Quorum, Segment};
use bytes::Bytes;
use tokio::sync::watch;

use fake::{Fake, Fault, NAMESPACE};

/// The shortest that Oxia grants.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);
/// Far above anything that must happen.
const PATIENCE: Duration = Duration::from_secs(120);

fn options(resume: Option<SessionCredentials>) -> ConnectOptions {
    // The first connection of a busy machine may take longer than a session may be silent.
    let connect_timeout = Some(PATIENCE);
    ConnectOptions { session_timeout: SESSION_TIMEOUT, resume, connect_timeout, ..ConnectOptions::default() }
}

async fn connect(fake: &Fake) -> OxiaStore {
    oxia::connect(&fake.servers(), NAMESPACE, options(None)).await.expect("servers that serve")
}

/// A store for what takes longer than [`SESSION_TIMEOUT`] on a busy machine.
async fn connect_patiently(fake: &Fake) -> OxiaStore {
    let options = ConnectOptions { session_timeout: PATIENCE, ..options(None) };
    oxia::connect(&fake.servers(), NAMESPACE, options).await.expect("servers that serve")
}

async fn session_after(session: &mut watch::Receiver<SessionState>, former: SessionId) -> SessionId {
    let is_other = |state: &SessionState| matches!(state, SessionState::Connected(id) if *id != former);
    let state =
        tokio::time::timeout(PATIENCE, session.wait_for(is_other)).await.expect("soon").unwrap().clone();
    state.connected().unwrap()
}

fn session_of(store: &OxiaStore) -> SessionId {
    store.session().borrow().clone().connected().expect("connected")
}

async fn node(store: &dyn MetadataStore, path: &str, mode: CreateMode) -> String {
    store.create(path, Bytes::new(), mode).await.expect("create").path
}

struct OnFake(Fake);

impl Harness for OnFake {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { Arc::new(connect_patiently(&self.0).await) as Arc<dyn MetadataStore> })
    }

    fn resume(&self, credentials: SessionCredentials) -> Opening<'_> {
        Box::pin(async move {
            let opened = oxia::connect(&self.0.servers(), NAMESPACE, options(Some(credentials))).await;
            Arc::new(opened.unwrap()) as Arc<dyn MetadataStore>
        })
    }

    fn base(&self, name: &'static str) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async move {
            let store = connect_patiently(&self.0).await;
            let path = node(&store, &format!("/{name}"), CreateMode::Persistent).await;
            store.close().await.unwrap();
            path
        })
    }
}

#[tokio::test]
async fn the_oxia_driver_conforms() {
    for (servers, shards) in [(1, 1), (2, 5)] {
        let checks = conformance::run(&OnFake(Fake::start(servers, shards).await)).await;
        println!("driver=oxia servers={servers} shards={shards} conformance_checks={checks}");
    }
}

struct OnServer {
    servers: Vec<String>,
    /// Of this run alone.
    base: String,
}

impl Harness for OnServer {
    fn open(&self) -> Opening<'_> {
        Box::pin(async {
            let options = ConnectOptions { session_timeout: Duration::from_secs(10), ..options(None) };
            Arc::new(oxia::connect(&self.servers, "default", options).await.unwrap())
                as Arc<dyn MetadataStore>
        })
    }

    fn resume(&self, credentials: SessionCredentials) -> Opening<'_> {
        Box::pin(async move {
            let opened = oxia::connect(&self.servers, "default", options(Some(credentials))).await;
            Arc::new(opened.unwrap()) as Arc<dyn MetadataStore>
        })
    }

    fn base(&self, name: &'static str) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async move {
            node(&*self.open().await, &format!("{}/{name}", self.base), CreateMode::Persistent).await
        })
    }
}

#[tokio::test]
#[ignore = "needs BINDERY_TEST_OXIA"]
async fn the_oxia_driver_conforms_on_a_real_server() {
    let server =
        std::env::var("BINDERY_TEST_OXIA").expect("BINDERY_TEST_OXIA=host:port names an Oxia server");
    let mut on = OnServer { servers: vec![server], base: String::new() };
    let prefix = "/bindery-test-conformance-";
    on.base = node(&*on.open().await, prefix, CreateMode::PersistentSequential).await;
    let checks = conformance::run(&on).await;
    println!("driver=oxia conformance_checks={checks}");
    whole_layout(on.open().await, on.open().await, &format!("{}/ledgers", on.base)).await;
}

fn metadata() -> LedgerMetadata {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
    let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
    let ensemble = vec![BookieId::new("b:1").unwrap()];
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
    metadata.creation_token = Some(7);
    metadata
}

/// What bookies, clients and repair do with a cluster.
async fn whole_layout(store: Arc<dyn MetadataStore>, other: Arc<dyn MetadataStore>, root: &str) {
    let init = async || init_cluster(&*store, root, LedgerLayout::Hierarchical, [7; 16]).await;
    assert_eq!(init().await, Ok(InitOutcome::Created));
    assert_eq!(init().await, Ok(InitOutcome::AlreadyInitialised));
    let layout = Layout::open(store.clone(), root, None).await.unwrap();
    let theirs = Layout::open(other.clone(), root, None).await.unwrap();
    assert_eq!(layout.is_whole().await, Ok(true));
    let (one, two) = (BookieId::new("b:1").unwrap(), BookieId::new("b:2").unwrap());

    let cookie = Cookie::new(
        &one,
        &["/j".into()],
        &["/l".into()],
        None,
        layout.instance_id().await.unwrap().as_deref(),
    );
    layout.cookies().create(&one, &cookie).await.unwrap();
    assert!(theirs.cookies().create(&one, &cookie).await.is_err());
    let info = BookieServiceInfo::of_bookie(("h", 3181), None);
    let (mut writable, _read_only) = theirs.registration().watch_lists().await.unwrap();
    for mode in [RegistrationMode::Writable, RegistrationMode::ReadOnly, RegistrationMode::Writable] {
        layout.registration().register(&one, mode, &info).await.unwrap();
        let listed = theirs.registration().list().await.unwrap();
        assert_eq!(listed.iter().map(|listed| listed.mode).collect::<Vec<_>>(), [mode]);
    }
    tokio::time::timeout(PATIENCE, async {
        while !writable.has_fired() {
            tokio::task::yield_now().await
        }
    })
    .await
    .unwrap();

    let mut ids = Vec::new();
    for layout in [&layout, &theirs, &layout] {
        ids.push(layout.ids().next().await.unwrap());
    }
    assert!(ids[0].get() == 1 && ids[0] < ids[1] && ids[1] < ids[2], "{ids:?}");
    layout.ids().advance(LedgerId::new(20).unwrap()).await.unwrap();
    assert_eq!(theirs.ids().next().await.unwrap().get(), 21);
    let chosen = [ids[0], LedgerId::new(123_456).unwrap(), LedgerId::new(1 << 40).unwrap()];
    let (ledgers, theirs_ledgers) = (layout.ledgers(), theirs.ledgers());
    for id in chosen {
        let version = ledgers.create(id, &metadata()).await.unwrap();
        assert_eq!(ledgers.create(id, &metadata()).await, Ok(version), "its own, by its token");
        assert_eq!(theirs_ledgers.get(id).await.unwrap().version, version);
        let newer = theirs_ledgers.update(id, &metadata(), version).await.unwrap();
        assert!(newer.is_later_than(version));
        assert!(ledgers.update(id, &metadata(), version).await.is_err(), "changed meanwhile");
        assert!(ledgers.create(id, &metadata()).await.is_err(), "written to since");
    }
    let (mut listing, mut listed) = (theirs_ledgers.list(), Vec::new());
    while let Some(range) = listing.next().await.unwrap() {
        listed.extend(range);
    }
    assert_eq!(listed, chosen);
    ledgers.delete(chosen[1], None).await.unwrap();
    assert_eq!(theirs_ledgers.exists(chosen[1]).await, Ok(false));

    let (marks, their_marks) = (layout.under_replication(), theirs.under_replication());
    marks.mark(chosen[0], std::slice::from_ref(&one)).await.unwrap();
    their_marks.mark(chosen[0], std::slice::from_ref(&two)).await.unwrap();
    assert_eq!(marks.replicas(chosen[0]).await.unwrap().unwrap(), ["b:1", "b:2"]);
    let (locks, their_locks) = (layout.replication_locks(), theirs.replication_locks());
    let lock = locks.try_lock(chosen[0], &one).await.unwrap().unwrap();
    assert!(their_locks.try_lock(chosen[0], &two).await.unwrap().is_none());
    assert!(locks.holds(&lock).await.unwrap());
    let mark = marks.marked(chosen[0]).await.unwrap().unwrap();
    assert_eq!(marks.unmark(chosen[0], mark.version).await, Ok(true));
    locks.unlock(lock).await.unwrap();
    let lock = their_locks.try_lock(chosen[0], &two).await.unwrap().expect("given back");
    their_locks.unlock(lock).await.unwrap();
    assert_eq!(their_marks.after(None, 9).await.unwrap(), []);

    let (votes, their_votes) = (layout.auditor_votes(), theirs.auditor_votes());
    let first = votes.vote(&one).await.unwrap();
    assert!(matches!(votes.place(&first, &one).await.unwrap(), AuditorPlace::Elected(_)));
    let second = their_votes.vote(&two).await.unwrap();
    let AuditorPlace::Behind(watch) = their_votes.place(&second, &two).await.unwrap() else {
        panic!("{second:?}")
    };
    votes.withdraw(&first).await.unwrap();
    tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap();
    assert!(matches!(their_votes.place(&second, &two).await.unwrap(), AuditorPlace::Elected(_)));

    assert_eq!(layout.draining().begin(&one, "new disks").await, Ok(true));
    let begun = layout.draining().standing(&one).await.unwrap().begun.unwrap();
    let (version, _) = layout.cookies().raw(&one).await.unwrap().unwrap();
    assert_eq!(layout.draining().remove_cookie(&one, version, begun).await, Ok(true));
    assert_eq!(theirs.draining().end(&one).await, Ok(true));

    store.close().await.unwrap();
    let gone = async { while !theirs.registration().list().await.unwrap().is_empty() {} };
    tokio::time::timeout(PATIENCE, gone).await.expect("a registration goes with its session");
}

#[tokio::test]
async fn the_layout_works_on_oxia() {
    let fake = Fake::start(2, 3).await;
    let (store, other) = (connect_patiently(&fake).await, connect_patiently(&fake).await);
    whole_layout(Arc::new(store), Arc::new(other), "/ledgers").await;
}

#[tokio::test]
async fn a_cluster_moves_to_oxia_and_back() {
    let fake = Fake::start(1, 2).await;
    let source: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::new().open());
    init_cluster(&*source, "/l", LedgerLayout::Hierarchical, [7; 16]).await.unwrap();
    let layout = Layout::open(source, "/l", None).await.unwrap();
    for _ in 0..30 {
        let id = layout.ids().next().await.unwrap();
        layout.ledgers().create(id, &metadata()).await.unwrap();
    }
    let text = async |layout: &Layout| {
        let (mut export, mut text) = (Export::new(layout), String::new());
        while let Some(part) = export.next().await.unwrap() {
            text += &part;
        }
        text
    };
    let first = text(&layout).await;
    let target: Arc<dyn MetadataStore> = Arc::new(connect_patiently(&fake).await);
    import(&target, "/l", &Dump::read(&mut first.as_bytes()).unwrap()).await.unwrap();
    let imported = Layout::open(target, "/l", None).await.unwrap();
    assert_eq!(imported.ids().peek().await.unwrap().map(LedgerId::get), Some(31));
    let nodes = |text: &str| {
        text.lines().filter(|line| line.starts_with("node")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(nodes(&text(&imported).await), nodes(&first));
}

#[tokio::test]
async fn requests_follow_the_leader_of_a_shard() {
    let fake = Fake::start(2, 2).await;
    let store = connect(&fake).await;
    let session = session_of(&store);
    node(&store, "/p", CreateMode::Persistent).await;
    node(&store, "/e", CreateMode::Ephemeral).await;
    let (_, watch) = store.children_and_watch("/p").await.unwrap();
    // Both shards move to the second server, and the first one is gone.
    for shard in [0, 1] {
        fake.lead(shard, 1);
    }
    fake.stop(0);
    assert_eq!(
        tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(),
        WatchEvent::Lost,
        "invariant 2"
    );
    for number in 0..20 {
        // One that met the end of its server may have been applied.
        match store.create(&format!("/p/{number}"), Bytes::new(), CreateMode::Persistent).await {
            Ok(_) | Err(StoreError::ConnectionLoss) => {}
            other => panic!("{other:?}"),
        }
    }
    let (names, watch) = store.children_and_watch("/p").await.unwrap();
    assert!(names.len() >= 18, "{names:?}");
    node(&store, "/p/x", CreateMode::Persistent).await;
    assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(), WatchEvent::ChildrenChanged);
    // The session went on.
    let is_back = |state: &SessionState| *state == SessionState::Connected(session);
    let mut state = store.session();
    tokio::time::timeout(PATIENCE, state.wait_for(is_back)).await.expect("the same session").unwrap();
    assert_eq!(store.exists("/e").await.unwrap().unwrap().owner, Some(session));
}

/// Applies a write until it is applied, whatever becomes of its attempts.
async fn until_created(store: &dyn MetadataStore, path: &str) {
    let created = async {
        loop {
            match store.create(path, Bytes::new(), CreateMode::Persistent).await {
                Ok(_) | Err(StoreError::NodeExists { .. }) => return,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, created).await.expect("another server leads the shard");
}

/// It is cut off: nothing says that its connections are at an end.
#[tokio::test]
async fn a_server_that_goes_silent_is_left() {
    let fake = Fake::start(3, 2).await;
    let store = connect(&fake).await;
    let session = session_of(&store);
    node(&store, "/p", CreateMode::Persistent).await;
    node(&store, "/e", CreateMode::Ephemeral).await;
    let (_, watch) = store.children_and_watch("/p").await.unwrap();
    // The first server says who leads, and leads one of the shards; the third one is to lead it.
    fake.silence(0);
    fake.lead(0, 2);
    assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(), WatchEvent::Lost);
    for number in 0..10 {
        until_created(&store, &format!("/p/{number}")).await;
    }
    let listed = async {
        loop {
            if let Ok(listed) = store.children_and_watch("/p").await {
                return listed;
            }
        }
    };
    let (names, watch) = tokio::time::timeout(PATIENCE, listed).await.expect("notifications of all shards");
    assert_eq!(names.len(), 10, "{names:?}");
    until_created(&store, "/p/x").await;
    let event = tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap();
    assert!(matches!(event, WatchEvent::ChildrenChanged | WatchEvent::Lost), "{event:?}");
    let is_back = |state: &SessionState| *state == SessionState::Connected(session);
    let mut state = store.session();
    tokio::time::timeout(PATIENCE, state.wait_for(is_back)).await.expect("the same session").unwrap();
}

/// The server that named the leader is silent, and neither leads anything nor is due for a ping.
#[tokio::test]
async fn a_request_that_meets_a_former_leader_has_the_next_server_asked() {
    let fake = Fake::start(3, 1).await;
    let store = connect_patiently(&fake).await;
    fake.lead(0, 1);
    node(&store, "/p", CreateMode::Persistent).await;
    let (_, watch) = store.get_and_watch("/p").await.unwrap();
    fake.silence(0);
    fake.lead_without_a_word(0, 2);
    node(&store, "/p/n", CreateMode::Persistent).await;
    assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(), WatchEvent::Lost);
    let (_, watch) = store.get_and_watch("/p").await.unwrap();
    store.set("/p", "v".into(), None).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(), WatchEvent::DataChanged);
}

#[tokio::test]
async fn closing_does_not_wait_for_a_server_that_is_silent() {
    let fake = Fake::start(1, 2).await;
    let store = connect(&fake).await;
    let (_, watch) = store.exists_and_watch("/p").await.unwrap();
    fake.silence(0);
    let closed = tokio::time::timeout(PATIENCE, store.close()).await.expect("each request has an end");
    assert_eq!(closed, Err(StoreError::ConnectionLoss), "sessions may live on");
    assert_eq!(watch.changed().await, WatchEvent::Lost);
    assert_eq!(store.exists("/p").await, Err(StoreError::Closed));
}

/// No heartbeat is due for long, and the former leader ends nothing.
#[tokio::test]
async fn watches_follow_the_leader_of_a_shard() {
    let fake = Fake::start(2, 2).await;
    let store = connect_patiently(&fake).await;
    node(&store, "/p", CreateMode::Persistent).await;
    for round in 0..3 {
        for shard in 0..2 {
            let (_, watch) = store.get_and_watch("/p").await.unwrap();
            let (_, listed) = store.children_and_watch("/p").await.unwrap();
            let leader = if (round + shard) % 2 == 0 { 1 } else { 0 };
            fake.lead_without_a_word(shard, leader);
            for watch in [watch, listed] {
                assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(), WatchEvent::Lost);
            }
            let (_, watch) = store.get_and_watch("/p").await.unwrap();
            let (_, listed) = store.children_and_watch("/p").await.unwrap();
            store.set("/p", "v".into(), None).await.unwrap();
            assert_eq!(
                tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(),
                WatchEvent::DataChanged
            );
            node(&store, &format!("/p/{round}-{shard}"), CreateMode::Persistent).await;
            let event = tokio::time::timeout(PATIENCE, listed.changed()).await.unwrap();
            assert_eq!(event, WatchEvent::ChildrenChanged);
        }
    }
}

#[tokio::test]
async fn a_full_store_is_no_lost_connection() {
    let fake = Fake::start(1, 2).await;
    let store = connect_patiently(&fake).await;
    let session = session_of(&store);
    store.create("/p", "v".into(), CreateMode::Persistent).await.unwrap();
    fake.fail_writes(Some(Fault::NoRoom));
    for (mode, path) in [
        (CreateMode::Persistent, "/q"),
        (CreateMode::Ephemeral, "/q"),
        // Its parent is written first.
        (CreateMode::PersistentSequential, "/p"),
    ] {
        let created = match mode {
            CreateMode::PersistentSequential => store.create("/p/n-", "v".into(), mode).await,
            _ => store.create(path, "v".into(), mode).await,
        };
        assert_eq!(created, Err(StoreError::Full { path: path.into() }), "{mode:?}");
    }
    let before = fake.refused();
    assert_eq!(store.set("/p", "w".into(), None).await, Err(StoreError::Full { path: "/p".into() }));
    assert_eq!(fake.refused(), before + 1, "it was sent once");
    fake.fail_writes(None);
    node(&store, "/q", CreateMode::Ephemeral).await;
    assert_eq!(&store.get("/p").await.unwrap().data[..], b"v");
    assert_eq!(session_of(&store), session);
}

/// Sessions are numbered by each shard: what is one client's session in a shard may be another's in the next.
#[tokio::test]
async fn an_ephemeral_node_is_created_under_the_session_of_its_shard_or_not_at_all() {
    let fake = Fake::start(1, 1).await;
    let store = Arc::new(connect_patiently(&fake).await);
    let (mut state, first) = (store.session(), session_of(&store));
    node(&*store, "/e", CreateMode::Ephemeral).await;
    fake.fail_writes(Some(Fault::NotLeader));
    let create = {
        let store = store.clone();
        tokio::spawn(async move { store.create("/n", Bytes::new(), CreateMode::Ephemeral).await })
    };
    while fake.refused() == 0 {
        tokio::task::yield_now().await;
    }
    // The record is to go to another shard now, where a session has the same number.
    fake.split(0);
    fake.fail_writes(None);
    assert_eq!(create.await.unwrap(), Err(StoreError::SessionExpired));
    assert_eq!(store.exists("/n").await, Ok(None), "nothing was created under a session of another shard");
    let second = session_after(&mut state, first).await;
    node(&*store, "/n", CreateMode::Ephemeral).await;
    assert_eq!(store.exists("/n").await.unwrap().unwrap().owner, Some(second));
}

/// A leader that was deposed and does not know it answers reads, and completes no write.
#[tokio::test]
async fn sync_fails_on_a_leader_that_completes_no_writes() {
    let fake = Fake::start(1, 3).await;
    let store = connect(&fake).await;
    node(&store, "/p", CreateMode::Persistent).await;
    fake.fail_writes(Some(Fault::Unanswered));
    let refused = store.sync("/").await;
    assert!(matches!(refused, Err(StoreError::Unreachable { .. })), "{refused:?}");
    assert!(store.exists("/p").await.unwrap().is_some());
    fake.fail_writes(None);
    let before = fake.writes();
    store.sync("/").await.unwrap();
    assert_eq!(fake.writes(), before + 3, "one of each shard");
}

#[tokio::test]
async fn a_listing_is_bounded_over_all_shards() {
    let fake = Fake::start(1, 2).await;
    let store = connect_patiently(&fake).await;
    // The widest that a number is written.
    let size = usize::from(u16::MAX);
    let fitting = oxia::LIST_SIZE_BYTES_MAX / (size + 100) / 2;
    fake.list_instead(fitting, size);
    assert_eq!(store.children("/p").await.unwrap().len(), 2 * fitting);
    // Each of the two shards stays below the bound; together they exceed it.
    fake.list_instead(fitting + fitting / 5, size);
    let refused = store.children("/p").await;
    assert!(
        matches!(&refused, Err(StoreError::Protocol(why)) if why.contains("bytes of names")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_write_is_repeated_only_when_it_was_refused() {
    let fake = Fake::start(1, 1).await;
    let store = connect_patiently(&fake).await;
    fake.fail_next_write(Fault::NotLeader);
    node(&store, "/a", CreateMode::Persistent).await;
    let before = fake.writes();
    fake.fail_next_write(Fault::Unanswered);
    let lost = store.create("/b", Bytes::new(), CreateMode::Persistent).await;
    assert_eq!(lost, Err(StoreError::ConnectionLoss), "invariant 1");
    assert_eq!(fake.writes(), before + 1, "it was sent once");
    assert!(store.exists("/b").await.unwrap().is_some(), "and was applied");
    fake.fail_next_write(Fault::Unanswered);
    assert_eq!(store.delete("/b", None).await, Err(StoreError::ConnectionLoss));
    assert_eq!(store.delete("/b", None).await, Err(StoreError::NoNode { path: "/b".into() }));
}

#[tokio::test]
async fn a_session_ends_on_all_shards_when_it_ends_on_one() {
    let fake = Fake::start(1, 4).await;
    let store = connect(&fake).await;
    let mut state = store.session();
    let first = session_of(&store);
    let sessions = fake.sessions();
    assert_eq!(sessions.len(), 4, "one of each shard");
    for number in 0..12 {
        node(&store, &format!("/e{number}"), CreateMode::Ephemeral).await;
    }
    let (shard, session) = sessions[2];
    fake.expire(shard, session);
    let second = session_after(&mut state, first).await;
    // Invariant 3: what was on the other shards went with it.
    for number in 0..12 {
        assert_eq!(store.exists(&format!("/e{number}")).await, Ok(None), "{number}");
    }
    assert!(fake.sessions().iter().all(|session| !sessions.contains(session)));
    node(&store, "/e0", CreateMode::Ephemeral).await;
    assert_eq!(store.exists("/e0").await.unwrap().unwrap().owner, Some(second));
    // A write finds it out before a heartbeat does.
    for (shard, session) in fake.sessions() {
        fake.expire(shard, session);
    }
    let refused = store.create("/e0", Bytes::new(), CreateMode::Ephemeral).await;
    assert_eq!(refused, Err(StoreError::SessionExpired));
    let third = session_after(&mut state, second).await;
    node(&store, "/e0", CreateMode::Ephemeral).await;
    assert_eq!(store.exists("/e0").await.unwrap().unwrap().owner, Some(third));
    assert!(fake.beats() > 0);
    // Closed, it leaves nothing.
    store.close().await.unwrap();
    assert_eq!(fake.sessions(), []);
}

#[tokio::test]
async fn a_session_is_another_one_when_the_shards_are() {
    let fake = Fake::start(1, 2).await;
    let store = connect(&fake).await;
    let (mut state, first) = (store.session(), session_of(&store));
    node(&store, "/p", CreateMode::Persistent).await;
    for number in 0..20 {
        node(&store, &format!("/p/{number:02}"), CreateMode::Persistent).await;
    }
    fake.split(0);
    session_after(&mut state, first).await;
    assert_eq!(store.children("/p").await.unwrap().len(), 20);
    node(&store, "/e", CreateMode::Ephemeral).await;
    assert_eq!(fake.sessions().iter().filter(|(shard, _)| *shard >= 100).count() % 2, 0);
}

#[tokio::test]
async fn watches_are_lost_with_the_notifications_of_any_shard() {
    let fake = Fake::start(1, 3).await;
    let store = connect(&fake).await;
    node(&store, "/p", CreateMode::Persistent).await;
    for shard in 0..3 {
        let (_, watch) = store.get_and_watch("/p").await.unwrap();
        let (_, listed) = store.children_and_watch("/p").await.unwrap();
        fake.break_notifications(shard);
        for watch in [watch, listed] {
            assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(), WatchEvent::Lost);
        }
    }
    let (_, watch) = store.get_and_watch("/p").await.unwrap();
    store.set("/p", "v".into(), None).await.unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, watch.changed()).await.unwrap(), WatchEvent::DataChanged);
}

#[tokio::test]
async fn numbers_are_not_given_twice_and_the_parent_keeps_its_value() {
    let fake = Fake::start(1, 2).await;
    let store = Arc::new(connect_patiently(&fake).await);
    store.create("/p", "value".into(), CreateMode::Persistent).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let store = store.clone();
        tasks.spawn(async move {
            let path = node(&*store, "/p/n-", CreateMode::EphemeralSequential).await;
            store.delete(&path, None).await.unwrap();
            path
        });
    }
    let mut names = std::collections::BTreeSet::new();
    while let Some(name) = tasks.join_next().await {
        assert!(names.insert(name.unwrap()));
    }
    assert_eq!(names.first().map(String::as_str), Some("/p/n-0000000001"));
    assert_eq!(names.last().map(String::as_str), Some("/p/n-0000000050"));
    let parent = store.get("/p").await.unwrap();
    assert_eq!((&parent.data[..], parent.stat.next_sequence), (&b"value"[..], 51));
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_or_trusted_says_why() {
    let fake = Fake::start(1, 1).await;
    let of_command = ConnectOptions { wait_for: WaitFor::Silent, ..options(None) };
    let refused = oxia::connect(&["127.0.0.1:1".into()], NAMESPACE, of_command.clone()).await.err().unwrap();
    let StoreError::Unreachable { waited, faults } = refused else { panic!("{refused}") };
    assert_eq!(
        (waited, &faults.0[..]),
        (Duration::ZERO, &[("127.0.0.1:1".into(), ServerFault::Refused)][..])
    );
    let unknown = oxia::connect(&fake.servers(), "other", of_command.clone()).await.err().unwrap();
    assert!(unknown.to_string().contains("no namespace \"other\""), "{unknown}");
    // Another server is asked when one is down.
    let servers = ["127.0.0.1:1".to_owned(), fake.servers()[0].clone()];
    oxia::connect(&servers, NAMESPACE, of_command).await.unwrap();
    // A store that was open says what is wrong with its server.
    let store = connect(&fake).await;
    fake.stop(0);
    let gone = store.get("/p").await.unwrap_err();
    assert!(matches!(gone, StoreError::Unreachable { .. }), "{gone}");
    let security = Security::default().restricted(true);
    let refused = oxia::connect(&servers, NAMESPACE, ConnectOptions { security, ..options(None) }).await;
    assert!(matches!(refused.err(), Some(StoreError::Untrusted { .. })));
}

#[tokio::test]
async fn numbers_are_skipped_at_once_and_never_taken_back() {
    let fake = Fake::start(2, 3).await;
    let store = connect_patiently(&fake).await;
    store.create("/ids", "of".into(), CreateMode::Persistent).await.unwrap();
    let next =
        async || store.create("/ids/n-", Bytes::new(), CreateMode::PersistentSequential).await.unwrap().path;
    assert_eq!(next().await, "/ids/n-0000000001");
    store.skip_sequence("/ids", 500).await.unwrap();
    store.skip_sequence("/ids", 3).await.unwrap();
    assert_eq!(next().await, "/ids/n-0000000500");
    assert_eq!(&store.get("/ids").await.unwrap().data[..], b"of");
    store.skip_sequence("/ids", 501).await.unwrap();
    assert_eq!(next().await, "/ids/n-0000000501", "it is the next one already");
    let missing = store.skip_sequence("/none", 3).await;
    assert_eq!(missing, Err(StoreError::NoNode { path: "/none".to_owned() }));
}
