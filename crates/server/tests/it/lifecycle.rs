//! A whole bookie against a metadata store in memory: start, serve, stop, start again, and everything that refuses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::frames::{KEY, OwnedV2, exchange, hello, read_request};
use crate::common::whole::{Running, cluster, cluster_of, config, open, refused, start, start_over};
use bindery_io::RealDisk;
use bindery_metadata::memory::MemoryStore;
use bindery_metadata::store::{CreateMode, MetadataStore, Node, Op, SessionState, StoreFuture};
use bindery_metadata::{BookieServiceInfo, Layout, RegistrationMode, SessionId, StoreLayer};
use bindery_server::bookie::Ended;
use bindery_server::config::BookieConfig;
use bindery_types::BookieId;
use bindery_wire::{ErrorCode, v2};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Notes how the bookie is listed whenever its start reads something.
struct Noting {
    inner: Arc<MemoryStore>,
    observer: Layout,
    listed: Mutex<Vec<Vec<BookieId>>>,
}

impl StoreLayer for Noting {
    fn beneath(&self) -> &dyn MetadataStore {
        &*self.inner
    }
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        let path = path.to_owned();
        Box::pin(async move {
            // As the first thing after it connected, it reads its cookie.
            if path.contains("/cookies/") {
                let listed = self.observer.registration().list().await?;
                self.listed.lock().push(listed.into_iter().map(|bookie| bookie.bookie_id).collect());
            }
            self.inner.get(&path).await
        })
    }
}

/// It takes up the session of the process that was killed, whose registration is still there. Nobody finds it by that while it starts;
/// the registration of another bookie is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_resumes_its_session_is_not_listed_before_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster().await;
    let [own, other] = ["bookie-0", "bookie-1"].map(|id| BookieId::new(id).unwrap());
    let info = BookieServiceInfo::of_bookie(("127.0.0.1", 1), None);
    let session = Arc::new(cluster.open());
    let before = Layout::open(session.clone(), "/ledgers", None).await.unwrap().registration();
    for id in [&own, &other] {
        before.register(id, RegistrationMode::Writable, &info).await.unwrap();
    }
    let observer = open(&cluster).await;
    let over =
        Arc::new(Noting { inner: session.clone(), observer: observer.clone(), listed: Mutex::default() });
    let disk = Arc::new(RealDisk::new());
    let running = start_over(disk, config(dir.path()), &cluster, session, over.clone()).await.unwrap();
    let listed = over.listed.lock().clone();
    assert!(!listed.is_empty() && listed.iter().all(|ids| *ids == [other.clone()]), "{listed:?}");
    let registered = observer.registration().list().await.unwrap();
    assert_eq!(registered.len(), 2, "both are listed: {registered:?}");
    let now = observer.registration().service_info(&own).await.unwrap().unwrap().unwrap();
    assert_eq!(now.endpoints[0].port, running.address.port());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_registers_serves_stops_and_comes_back_with_its_entries() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster().await;
    let id = BookieId::new("bookie-0").unwrap();
    for round in 0..3 {
        let running = start(config(dir.path()), &cluster).await;
        let registration = open(&cluster).await.registration();
        let registered = registration.list().await.unwrap();
        assert_eq!(registered.len(), 1);
        assert_eq!((&registered[0].bookie_id, registered[0].mode), (&id, RegistrationMode::Writable));
        let info = registration.service_info(&id).await.unwrap().unwrap().unwrap();
        assert_eq!(
            (info.endpoints[0].port, info.endpoints[1].port),
            (running.address.port(), running.admin.port())
        );

        let mut socket = TcpStream::connect(running.address).await.unwrap();
        for entry in 0..round {
            let read = v2::Request::Read(read_request(1, entry));
            let expected = OwnedV2::Read(ErrorCode::Ok, 1, entry, hello(1, entry));
            assert_eq!(exchange(&mut socket, read).await, expected, "entry {entry} of an earlier run");
        }
        let body = hello(1, round);
        let add = v2::Request::Add(v2::Add::new(v2::Flags::NONE, KEY, &body).unwrap());
        assert_eq!(exchange(&mut socket, add).await, OwnedV2::Add(ErrorCode::Ok, 1, round));

        let (status, ready) = running.http("GET", "/api/v1/bookie/is_ready", "").await;
        assert_eq!((status.as_str(), ready.as_str()), ("HTTP/1.1 200 OK", "OK"));
        assert_eq!(running.http("POST", "/heartbeat", "").await.1, "OK\n");
        assert!(running.http("POST", "/metrics", "").await.0.contains("403"));
        assert!(running.http("PUT", "/api/v1/bookie/state", "").await.0.contains("404"));
        let state: serde_json::Value =
            serde_json::from_str(&running.http("GET", "/api/v1/bookie/state", "").await.1).unwrap();
        assert_eq!((&state["running"], &state["readOnly"]), (&true.into(), &false.into()));
        // An answer leaves before it is counted.
        for line in [
            "bookkeeper_server_ADD_ENTRY_REQUEST_count{success=\"true\"} 1",
            "bookie_SERVER_STATUS 1",
            "bookie_WRITE_BYTES 37",
            "bindery_connections 1",
        ] {
            let seen = async {
                while !running.http("GET", "/metrics", "").await.1.lines().any(|found| found == line) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            assert!(tokio::time::timeout(Duration::from_secs(10), seen).await.is_ok(), "{line}");
        }

        running.stop().await;
        assert_eq!(socket.read(&mut [0; 1]).await.unwrap(), 0, "the connection is closed");
        assert!(open(&cluster).await.registration().list().await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_start_gives_one_clear_error_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, other) = (cluster().await, cluster_of([2; 16]).await);
    let running = start(config(dir.path()), &mine).await;

    let error = refused(config(dir.path()), &mine).await;
    assert!(error.contains("in use by another bookie"), "{error}");
    let elsewhere = tempfile::tempdir().unwrap();
    let occupied = BookieConfig { listen: running.address, ..config(elsewhere.path()) };
    let error = refused(occupied, &mine).await;
    assert!(error.contains("--listen") && error.contains(&running.address.to_string()), "{error}");
    // The same id with other directories.
    let error = refused(config(elsewhere.path()), &mine).await;
    assert!(error.contains("bindery cluster cookie"), "{error}");
    running.stop().await;

    // Another bookie's directory, another cluster, a cookie that is gone.
    let renamed = BookieConfig { bookie_id: Some("bookie-9".to_owned()), ..config(dir.path()) };
    let error = refused(renamed, &mine).await;
    assert!(error.contains("belongs to another bookie"), "{error}");
    let error = refused(config(dir.path()), &other).await;
    assert!(error.contains("nothing was changed"), "{error}");
    let small = BookieConfig { memory_limit: Some(1 << 20), ..config(dir.path()) };
    assert!(refused(small, &mine).await.contains("--memory-limit"));

    let again = start(config(dir.path()), &mine).await;
    again.stop().await;
    let id = BookieId::new("bookie-0").unwrap();
    open(&mine).await.cookies().delete(&id, None).await.unwrap();
    let error = refused(config(dir.path()), &mine).await;
    assert!(error.contains("no cookie for it"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_bookie_registers_as_such_and_refuses_adds() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster().await;
    let running = start(BookieConfig { read_only: true, ..config(dir.path()) }, &cluster).await;
    let registered = open(&cluster).await.registration().list().await.unwrap();
    assert_eq!(registered[0].mode, RegistrationMode::ReadOnly);
    assert_eq!(running.add(1, 0).await, ErrorCode::ReadOnly);
    running.stop().await;
}

/// Another cluster answers at the same address: a wiped store, or a name that moved. Its ledgers are not the bookie's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_whose_store_becomes_another_cluster_stops_unlisted() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster().await;
    let running = start(config(dir.path()), &cluster).await;
    let (session, store) = (session_of(&running), cluster.open());
    store.set("/ledgers/INSTANCEID", "another".into(), None).await.unwrap();
    cluster.expire(session);
    let ended = tokio::time::timeout(crate::common::PATIENCE, running.task).await.unwrap().unwrap();
    assert!(matches!(&ended, Ended::RegistrationLost(why) if why.contains("another cluster")), "{ended:?}");
    assert!(open(&cluster).await.registration().list().await.unwrap().is_empty());
}

/// The readiness check reports a registration that is gone, or that no client can count on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_clients_do_not_find_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster().await;
    let config = BookieConfig { session_timeout: Duration::from_millis(300), ..config(dir.path()) };
    let running = start(config, &cluster).await;
    assert_eq!(ready(&running).await, (true, 1));

    // Its node is another's, which it waits for.
    let (other, node) = (cluster.open(), "/ledgers/available/bookie-0".to_owned());
    let data = "theirs".into();
    let steal = [
        Op::Delete { path: node.clone(), expected: None },
        Op::Create { path: node.clone(), data, mode: CreateMode::Ephemeral },
    ];
    other.multi(steal.into()).await.unwrap();
    until(&running, (false, -1)).await;
    other.delete(&node, None).await.unwrap();
    until(&running, (true, 1)).await;

    running.store.disconnect();
    until(&running, (false, -1)).await;
    running.store.reconnect();
    until(&running, (true, 1)).await;
    running.stop().await;
}

fn session_of(running: &Running) -> SessionId {
    match *running.store.session().borrow() {
        SessionState::Connected(id) => id,
        ref other => panic!("{other:?}"),
    }
}

/// What is said of readiness, and `bookie_SERVER_STATUS`.
async fn ready(running: &Running) -> (bool, i64) {
    let (status, _) = running.http("GET", "/api/v1/bookie/is_ready", "").await;
    (status.contains("200"), running.metric("bookie_SERVER_STATUS").await)
}

async fn until(running: &Running, wanted: (bool, i64)) {
    let seen = async {
        while ready(running).await != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(crate::common::PATIENCE, seen).await.is_ok(), "{wanted:?}");
}
