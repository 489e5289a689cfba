//! Garbage collection of a whole bookie against a metadata store in memory: what is deleted goes, and doubt drops
//! nothing (IB16).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::{MemoryCluster, MemoryStore};
use bindery_metadata::store::CreateMode;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_server::bookie::{Bookie, Components, Ended, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;
use bindery_types::{
    BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, LedgerSecret, MasterKey, Quorum, Segment,
};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(30);

struct Running {
    address: SocketAddr,
    admin: SocketAddr,
    stop: Arc<Latch>,
    task: tokio::task::JoinHandle<Ended>,
    /// The bookie's own connection to metadata.
    store: Arc<MemoryStore>,
    /// Somebody else's.
    layout: Layout,
}

async fn start(dir: &Path, cluster: &MemoryCluster) -> Running {
    let store = Arc::new(cluster.open());
    let own = Layout::open(store.clone(), "/ledgers", None).await.unwrap();
    let config = BookieConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers")],
        home: Some(dir.to_owned()),
        listen: "127.0.0.1:0".parse().unwrap(),
        admin: Some("127.0.0.1:0".parse().unwrap()),
        bookie_id: Some("bookie-0".to_owned()),
        memory_limit: Some(256 << 20),
        preallocate: 0,
        journal_file_bytes: 16 << 20,
        flush_interval: Duration::from_millis(100),
        allow_loopback: true,
        disks: DiskLimits { reserve_bytes: Some(0), ..DiskLimits::default() },
        ..BookieConfig::default()
    };
    let components = Components {
        disk: Arc::new(RealDisk::new()),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        metadata: Metadata::Layout(own),
    };
    let bookie = Bookie::start(config, components).await.unwrap();
    let (address, admin) = (bookie.address(), bookie.admin_address().unwrap());
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { bookie.run(&stop).await }
    });
    let layout = Layout::open(Arc::new(cluster.open()), "/ledgers", None).await.unwrap();
    Running { address, admin, stop, task, store, layout }
}

async fn cluster() -> MemoryCluster {
    let cluster = MemoryCluster::new();
    layout::init_cluster(&cluster.open(), "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
    cluster
}

fn metadata() -> LedgerMetadata {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
    let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
    let ensemble = vec![BookieId::new("bookie-0").unwrap()];
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
    metadata
}

fn id(raw: i64) -> LedgerId {
    LedgerId::new(raw).unwrap()
}

impl Running {
    async fn http(&self, method: &str, path: &str, body: &str) -> (String, String) {
        let mut socket = TcpStream::connect(self.admin).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    async fn exchange(&self, request: v2::Request<'_>) -> Vec<u8> {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let mut out = BytesMut::new();
        request.encode(&mut out);
        socket.write_all(&out).await.unwrap();
        let len = socket.read_u32().await.unwrap();
        let mut payload = vec![0; len as usize];
        socket.read_exact(&mut payload).await.unwrap();
        payload
    }

    /// As clients do: metadata first, then an entry.
    async fn create(&self, ledger: i64) {
        self.layout.ledgers().create(id(ledger), &metadata()).await.unwrap();
        assert_eq!(self.add(ledger, 0).await, ErrorCode::Ok);
    }

    async fn delete(&self, ledger: i64) {
        self.layout.ledgers().delete(id(ledger), None).await.unwrap();
    }

    async fn add(&self, ledger: i64, entry: i64) -> ErrorCode {
        let mut body = [ledger, entry, entry - 1, 5].map(i64::to_be_bytes).concat();
        body.extend_from_slice(b"hello");
        let add = v2::Add::new(v2::Flags::NONE, MasterKey::new([1; 20]), &body).unwrap();
        let payload = self.exchange(v2::Request::Add(add)).await;
        match v2::Response::decode(&payload).unwrap() {
            v2::Response::Add { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }

    async fn read(&self, ledger: i64) -> ErrorCode {
        let read =
            v2::Read { version: 2, flags: v2::Flags::NONE, ledger_id: ledger, entry_id: 0, master_key: None };
        let payload = self.exchange(v2::Request::Read(read)).await;
        match v2::Response::decode(&payload).unwrap() {
            v2::Response::Read { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }

    async fn details(&self) -> serde_json::Value {
        let (status, body) = self.http("GET", "/api/v1/bookie/gc_details", "").await;
        assert!(status.contains("200"), "{status}");
        serde_json::from_str::<serde_json::Value>(&body).unwrap()[0].take()
    }

    async fn metric(&self, name: &str) -> i64 {
        let (_, text) = self.http("GET", "/metrics", "").await;
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default();
        line.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{name}: {line:?}"))
    }

    /// One round, to its end; says why it stopped.
    async fn collect(&self, order: &str) -> serde_json::Value {
        let (status, body) = self.http("PUT", "/api/v1/bookie/gc", order).await;
        assert!(status.contains("200"), "{status} {body}");
        let ended = async {
            while self.http("GET", "/api/v1/bookie/gc", "").await.1 != r#"{"is_in_force_gc":"false"}"# {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.unwrap();
        self.details().await["bindery"]["stoppedBecause"].take()
    }

    async fn stop(self) {
        self.stop.set();
        assert_eq!(self.task.await.unwrap(), Ended::Stopped);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_ledger_goes_and_its_space_comes_back() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(dir.path(), &cluster).await;
    for ledger in [0, 1, 2, 3] {
        bookie.create(ledger).await;
    }
    let flushed = async {
        while bookie.metric("bindery_flushed_entries").await < 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, flushed).await.unwrap();
    bookie.delete(0).await;
    bookie.delete(2).await;
    assert_eq!(bookie.collect("").await, serde_json::Value::Null);
    for (ledger, code) in
        [(0, ErrorCode::NoLedger), (1, ErrorCode::Ok), (2, ErrorCode::NoLedger), (3, ErrorCode::Ok)]
    {
        assert_eq!(bookie.read(ledger).await, code, "ledger {ledger}");
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
    assert_eq!(bookie.read(1).await, ErrorCode::Ok);
    bookie.stop().await;
    let bookie = start(dir.path(), &cluster).await;
    assert_eq!((bookie.read(1).await, bookie.read(2).await), (ErrorCode::Ok, ErrorCode::NoLedger));
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubt_about_metadata_drops_nothing() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(dir.path(), &cluster).await;
    let all: Vec<i64> = (0..21).collect();
    for ledger in &all {
        bookie.create(*ledger).await;
    }
    bookie.delete(5).await;

    bookie.store.disconnect();
    let why = bookie.collect("").await;
    assert!(why.as_str().is_some_and(|why| why.contains("metadata")), "{why}");
    assert_eq!(bookie.read(5).await, ErrorCode::Ok);
    bookie.store.reconnect();
    assert_eq!(bookie.metric("bindery_gc_stopped").await, 1);

    let instance = "/ledgers/INSTANCEID";
    let store = bookie.layout.store().clone();
    let ours = store.get(instance).await.unwrap().data;
    store.set(instance, "another".into(), None).await.unwrap();
    let why = bookie.collect(r#"{"waiveChecks":true}"#).await;
    assert!(why.as_str().is_some_and(|why| why.contains("cluster")), "{why}");
    store.delete(instance, None).await.unwrap();
    let why = bookie.collect(r#"{"waiveChecks":true}"#).await;
    assert!(why.as_str().is_some_and(|why| why.contains("cluster")), "{why}");
    store.create(instance, ours, CreateMode::Persistent).await.unwrap();
    assert_eq!(bookie.read(5).await, ErrorCode::Ok, "nothing was dropped so far");

    for ledger in 6..18 {
        bookie.delete(ledger).await;
    }
    let why = bookie.collect("").await;
    assert!(why.as_str().is_some_and(|why| why.contains("13 of 21")), "{why}");
    assert_eq!(bookie.read(6).await, ErrorCode::Ok);
    assert_eq!(bookie.metric("bindery_gc_ledgers_removed").await, 0);
    assert_eq!(bookie.collect(r#"{"waiveChecks":true}"#).await, serde_json::Value::Null);
    assert_eq!((bookie.read(6).await, bookie.read(20).await), (ErrorCode::NoLedger, ErrorCode::Ok));
    assert_eq!(bookie.metric("bindery_gc_ledgers_removed").await, 13);
    assert_eq!(bookie.metric("bindery_gc_stopped").await, 0);

    for ledger in all.into_iter().filter(|ledger| !(5..18).contains(ledger)) {
        bookie.delete(ledger).await;
    }
    let why = bookie.collect(r#"{"waiveChecks":true}"#).await;
    assert!(why.as_str().is_some_and(|why| why.contains("empty")), "{why}");
    assert_eq!(bookie.read(20).await, ErrorCode::Ok);
    let (status, _) = bookie.http("POST", "/api/v1/bookie/gc", "").await;
    assert!(status.contains("405"), "{status}");
    let (status, _) = bookie.http("PUT", "/api/v1/bookie/gc", r#"{"forceMayor":true}"#).await;
    assert!(status.contains("400"), "{status}");
    bookie.stop().await;
}

/// A scrub that is asked for covers everything that is flushed, names damage, and costs no other entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrub_can_be_asked_for_and_waited_for() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(dir.path(), &cluster).await;
    for ledger in [1, 2] {
        bookie.create(ledger).await;
    }
    let flushed = async {
        while bookie.metric("bindery_flushed_entries").await < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, flushed).await.unwrap();
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
    assert!(finding["advice"].as_str().unwrap().contains("bookkeeper shell recover bookie-0 --ledger 1"));
    assert_eq!(bookie.metric("bindery_scrub_damaged_logs").await, 1);
    assert_eq!((bookie.read(1).await, bookie.read(2).await), (ErrorCode::Io, ErrorCode::Ok));
    let (_, state) = bookie.http("GET", "/api/v1/bookie/scrub", "").await;
    assert!(state.contains(r#""damagedLogs":1"#), "{state}");
    let (status, _) = bookie.http("PUT", "/api/v1/bookie/scrub", r#"{"weit":true}"#).await;
    assert!(status.contains("400"), "{status}");
    let (status, _) = bookie.http("POST", "/api/v1/bookie/scrub", "").await;
    assert!(status.contains("405"), "{status}");
    assert!(bookie.metric("bindery_write_amplification_permille").await > 1000);
    bookie.stop().await;
}
