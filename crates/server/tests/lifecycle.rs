//! A whole bookie against a metadata store in memory: start, serve, stop, start again, and everything that refuses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, RegistrationMode, layout};
use bindery_server::bookie::{Bookie, Components, Ended, Metadata, StartError};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;
use bindery_types::{BookieId, MasterKey};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn cluster(name: u8) -> MemoryCluster {
    let cluster = MemoryCluster::new();
    let store = cluster.open();
    layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [name; 16]).await.unwrap();
    cluster
}

async fn open(cluster: &MemoryCluster) -> Layout {
    Layout::open(Arc::new(cluster.open()), "/ledgers", None).await.unwrap()
}

async fn components(cluster: &MemoryCluster) -> Components {
    Components {
        disk: Arc::new(RealDisk::new()),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        metadata: Metadata::Layout(open(cluster).await),
    }
}

fn config(dir: &Path) -> BookieConfig {
    BookieConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers")],
        home: Some(dir.to_owned()),
        listen: "127.0.0.1:0".parse().unwrap(),
        admin: Some("127.0.0.1:0".parse().unwrap()),
        bookie_id: Some("bookie-0".to_owned()),
        memory_limit: Some(256 << 20),
        preallocate: 0,
        journal_file_bytes: 16 << 20,
        allow_loopback: true,
        disks: DiskLimits { reserve_bytes: Some(0), ..DiskLimits::default() },
        ..BookieConfig::default()
    }
}

struct Running {
    address: SocketAddr,
    admin: SocketAddr,
    stop: Arc<Latch>,
    task: tokio::task::JoinHandle<Ended>,
}

async fn start(config: BookieConfig, cluster: &MemoryCluster) -> Result<Running, StartError> {
    let bookie = Bookie::start(config, components(cluster).await).await?;
    let (address, admin) = (bookie.address(), bookie.admin_address().unwrap());
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { bookie.run(&stop).await }
    });
    Ok(Running { address, admin, stop, task })
}

impl Running {
    async fn stop(self) -> Ended {
        self.stop.set();
        self.task.await.unwrap()
    }
}

async fn refused(config: BookieConfig, cluster: &MemoryCluster) -> String {
    start(config, cluster).await.map(|_| ()).unwrap_err().to_string()
}

/// The first line and the body of an answer to a request of the admin port.
async fn http(address: SocketAddr, method: &str, path: &str) -> (String, String) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

fn body(entry: i64) -> Vec<u8> {
    let mut body = Vec::new();
    for field in [1, entry, entry - 1, 5] {
        body.extend_from_slice(&i64::to_be_bytes(field));
    }
    body.extend_from_slice(b"hello");
    body
}

async fn exchange(socket: &mut TcpStream, request: v2::Request<'_>) -> Vec<u8> {
    let mut out = BytesMut::new();
    request.encode(&mut out);
    socket.write_all(&out).await.unwrap();
    let len = socket.read_u32().await.unwrap();
    let mut payload = vec![0; len as usize];
    socket.read_exact(&mut payload).await.unwrap();
    payload
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_registers_serves_stops_and_comes_back_with_its_entries() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(1).await;
    let id = BookieId::new("bookie-0").unwrap();
    for round in 0..3 {
        let running = start(config(dir.path()), &cluster).await.unwrap();
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
            let read = v2::Read {
                version: 2,
                flags: v2::Flags::NONE,
                ledger_id: 1,
                entry_id: entry,
                master_key: None,
            };
            let payload = exchange(&mut socket, v2::Request::Read(read)).await;
            let v2::Response::Read { code, body: found, .. } = v2::Response::decode(&payload).unwrap() else {
                panic!("a read response")
            };
            assert_eq!((code, found), (ErrorCode::Ok, &body(entry)[..]), "entry {entry} of an earlier run");
        }
        let body = body(round);
        let add = v2::Add::new(v2::Flags::NONE, MasterKey::new([1; 20]), &body).unwrap();
        let payload = exchange(&mut socket, v2::Request::Add(add)).await;
        let response = v2::Response::decode(&payload).unwrap();
        assert!(matches!(response, v2::Response::Add { code: ErrorCode::Ok, .. }), "{response:?}");

        let (status, ready) = http(running.admin, "GET", "/api/v1/bookie/is_ready").await;
        assert_eq!((status.as_str(), ready.as_str()), ("HTTP/1.1 200 OK", "OK"));
        assert_eq!(http(running.admin, "POST", "/heartbeat").await.1, "OK\n");
        assert!(http(running.admin, "POST", "/metrics").await.0.contains("403"));
        assert!(http(running.admin, "PUT", "/api/v1/bookie/state").await.0.contains("404"));
        let state: serde_json::Value =
            serde_json::from_str(&http(running.admin, "GET", "/api/v1/bookie/state").await.1).unwrap();
        assert_eq!((&state["running"], &state["readOnly"]), (&true.into(), &false.into()));
        // An answer leaves before it is counted.
        for line in [
            "bookkeeper_server_ADD_ENTRY_REQUEST_count{success=\"true\"} 1",
            "bookie_SERVER_STATUS 1",
            "bookie_WRITE_BYTES 37",
            "bindery_connections 1",
        ] {
            let seen = async {
                while !http(running.admin, "GET", "/metrics").await.1.lines().any(|found| found == line) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            assert!(tokio::time::timeout(Duration::from_secs(10), seen).await.is_ok(), "{line}");
        }

        assert_eq!(running.stop().await, Ended::Stopped);
        assert_eq!(socket.read(&mut [0; 1]).await.unwrap(), 0, "the connection is closed");
        assert!(open(&cluster).await.registration().list().await.unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_wrong_start_gives_one_clear_error_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, other) = (cluster(1).await, cluster(2).await);
    let running = start(config(dir.path()), &mine).await.unwrap();

    let error = refused(config(dir.path()), &mine).await;
    assert!(error.contains("in use by another bookie"), "{error}");
    let elsewhere = tempfile::tempdir().unwrap();
    let occupied = BookieConfig { listen: running.address, ..config(elsewhere.path()) };
    let error = refused(occupied, &mine).await;
    assert!(error.contains("--listen") && error.contains(&running.address.to_string()), "{error}");
    // The same id with other directories.
    let error = refused(config(elsewhere.path()), &mine).await;
    assert!(error.contains("bindery cluster cookie"), "{error}");
    assert_eq!(running.stop().await, Ended::Stopped);

    // Another bookie's directory, another cluster, a cookie that is gone.
    let renamed = BookieConfig { bookie_id: Some("bookie-9".to_owned()), ..config(dir.path()) };
    let error = refused(renamed, &mine).await;
    assert!(error.contains("belongs to another bookie"), "{error}");
    let error = refused(config(dir.path()), &other).await;
    assert!(error.contains("nothing was changed"), "{error}");
    let small = BookieConfig { memory_limit: Some(1 << 20), ..config(dir.path()) };
    assert!(refused(small, &mine).await.contains("--memory-limit"));

    let again = start(config(dir.path()), &mine).await.unwrap();
    assert_eq!(again.stop().await, Ended::Stopped, "nothing was lost on the way");
    let id = BookieId::new("bookie-0").unwrap();
    open(&mine).await.cookies().delete(&id, None).await.unwrap();
    let error = refused(config(dir.path()), &mine).await;
    assert!(error.contains("no cookie for it"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_bookie_registers_as_such_and_refuses_adds() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster(1).await;
    let running = start(BookieConfig { read_only: true, ..config(dir.path()) }, &cluster).await.unwrap();
    let registered = open(&cluster).await.registration().list().await.unwrap();
    assert_eq!(registered[0].mode, RegistrationMode::ReadOnly);
    let mut socket = TcpStream::connect(running.address).await.unwrap();
    let body = body(0);
    let add = v2::Add::new(v2::Flags::NONE, MasterKey::new([1; 20]), &body).unwrap();
    let payload = exchange(&mut socket, v2::Request::Add(add)).await;
    let response = v2::Response::decode(&payload).unwrap();
    assert!(matches!(response, v2::Response::Add { code: ErrorCode::ReadOnly, .. }), "{response:?}");
    assert_eq!(running.stop().await, Ended::Stopped);
}
