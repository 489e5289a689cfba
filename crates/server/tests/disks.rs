//! A whole bookie on disks that fill up and empty again: IB19, P11, R38.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_io::{Disk, DiskLayer, RealDisk, Space, SystemClock, SystemRandom};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, RegistrationMode, layout};
use bindery_server::bookie::{Bookie, Components, Ended, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;
use bindery_types::MasterKey;
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The real disk, with as much free as the test says.
struct Scripted {
    inner: RealDisk,
    free: Arc<AtomicU64>,
}

const TOTAL: u64 = 1 << 40;

impl DiskLayer for Scripted {
    fn beneath(&self) -> &dyn Disk {
        &self.inner
    }
    fn space(&self, _: &Path) -> io::Result<Space> {
        Ok(Space { total: TOTAL, free: self.free.load(Ordering::SeqCst) })
    }
}

struct Place {
    dir: tempfile::TempDir,
    cluster: MemoryCluster,
    free: Arc<AtomicU64>,
}

struct Running {
    address: SocketAddr,
    admin: SocketAddr,
    stop: Arc<Latch>,
    task: tokio::task::JoinHandle<Ended>,
}

impl Place {
    async fn new() -> Place {
        let cluster = MemoryCluster::new();
        layout::init_cluster(&cluster.open(), "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        Place { dir: tempfile::tempdir().unwrap(), cluster, free: Arc::new(AtomicU64::new(TOTAL / 2)) }
    }

    async fn layout(&self) -> Layout {
        Layout::open(Arc::new(self.cluster.open()), "/ledgers", None).await.unwrap()
    }

    async fn start(&self, disks: DiskLimits) -> Running {
        let dir = self.dir.path();
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
            allow_loopback: true,
            disks,
            ..BookieConfig::default()
        };
        let components = Components {
            disk: Arc::new(Scripted { inner: RealDisk::new(), free: self.free.clone() }),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            metadata: Metadata::Layout(self.layout().await),
        };
        let bookie = Bookie::start(config, components).await.unwrap();
        let (address, admin) = (bookie.address(), bookie.admin_address().unwrap());
        let stop = Arc::new(Latch::default());
        let stopping = stop.clone();
        let task = tokio::spawn(async move { bookie.run(&stopping).await });
        Running { address, admin, stop, task }
    }

    /// Waits until the bookie is registered in this mode alone; it must be registered all the while (IB19).
    async fn registered(&self, mode: RegistrationMode) {
        let registration = self.layout().await.registration();
        loop {
            let found = registration.list().await.unwrap();
            assert!(!found.is_empty(), "absent while it moves");
            if found.len() == 1 && found[0].mode == mode {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Running {
    async fn add(&self, entry: i64, flags: v2::Flags) -> ErrorCode {
        let mut body = Vec::new();
        for field in [1, entry, entry - 1, 5] {
            body.extend_from_slice(&i64::to_be_bytes(field));
        }
        body.extend_from_slice(b"hello");
        let add = v2::Add::new(flags, MasterKey::new([1; 20]), &body).unwrap();
        match v2::Response::decode(&self.exchange(v2::Request::Add(add)).await).unwrap() {
            v2::Response::Add { code, .. } => code,
            other => panic!("{other:?}"),
        }
    }

    async fn read(&self, entry_id: i64, flags: v2::Flags) -> ErrorCode {
        let master_key = flags.contains(v2::Flags::DO_FENCING).then_some(MasterKey::new([1; 20]));
        let read = v2::Read { version: 2, flags, ledger_id: 1, entry_id, master_key };
        match v2::Response::decode(&self.exchange(v2::Request::Read(read)).await).unwrap() {
            v2::Response::Read { code, .. } => code,
            other => panic!("{other:?}"),
        }
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

    async fn http(&self, path: &str) -> String {
        let mut socket = TcpStream::connect(self.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).await.unwrap();
        text
    }
}

fn limits() -> DiskLimits {
    let interval = Duration::from_millis(100);
    DiskLimits {
        interval,
        reserve_bytes: Some(1 << 20),
        high_priority_bytes_min: 1 << 30,
        ..DiskLimits::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_bookie_is_read_only_says_why_and_comes_back_by_itself() {
    let place = Place::new().await;
    let running = place.start(limits()).await;
    let high = v2::Flags::HIGH_PRIORITY;
    assert_eq!(running.add(0, v2::Flags::NONE).await, ErrorCode::Ok);
    place.free.store(TOTAL / 25, Ordering::SeqCst);
    place.registered(RegistrationMode::ReadOnly).await;
    // The matrix of section 4.7.
    assert_eq!(running.add(1, v2::Flags::NONE).await, ErrorCode::ReadOnly);
    assert_eq!(running.add(1, v2::Flags::RECOVERY_ADD).await, ErrorCode::ReadOnly);
    assert_eq!(running.add(1, high).await, ErrorCode::Ok, "4 % of the volume are enough for high priority");
    assert_eq!(running.read(0, v2::Flags::NONE).await, ErrorCode::Ok);
    let state = running.http("/api/v1/bookie/state").await;
    assert!(state.contains("\"readOnly\":true") && state.contains("96.0 % full"), "{state}");
    assert!(state.contains("\"availableForHighPriorityWrites\":true"), "{state}");
    let metrics = running.http("/metrics").await;
    assert!(metrics.contains("bindery_read_only{cause=\"disk_full\"} 1"), "{metrics}");
    assert!(metrics.contains("bindery_volume_reserve_bytes{dir="), "{metrics}");

    place.free.store(1 << 20, Ordering::SeqCst);
    let seen = async {
        while !running.http("/api/v1/bookie/state").await.contains("\"availableForHighPriorityWrites\":false")
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap();
    assert_eq!(running.add(2, high).await, ErrorCode::ReadOnly);
    assert_eq!(running.read(2, v2::Flags::DO_FENCING).await, ErrorCode::NoEntry, "a full bookie fences");
    assert_eq!(running.read(0, v2::Flags::DO_FENCING).await, ErrorCode::Ok);

    place.free.store(TOTAL / 2, Ordering::SeqCst);
    place.registered(RegistrationMode::Writable).await;
    assert_eq!(running.add(2, v2::Flags::NONE).await, ErrorCode::Fenced);
    running.stop.set();
    assert_eq!(running.task.await.unwrap(), Ended::Stopped);
}

/// R38: what was full before says nothing about now. P11: a full one starts, gives its reserve up for it, registers as
/// what it is from the beginning, and takes the reserve back when there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_bookie_starts_and_its_next_start_on_empty_disks_is_writable() {
    let place = Place::new().await;
    let running = place.start(limits()).await;
    assert_eq!(running.add(0, v2::Flags::NONE).await, ErrorCode::Ok);
    running.stop.set();
    assert_eq!(running.task.await.unwrap(), Ended::Stopped);
    let reserve = place.dir.path().join("journal/current/RESERVE");
    let held = || std::fs::metadata(&reserve).map_or(0, |file| file.len());
    assert_eq!(held(), 1 << 20);

    place.free.store(0, Ordering::SeqCst);
    let running = place.start(limits()).await;
    assert_eq!(held(), 0, "given up before the replay");
    place.registered(RegistrationMode::ReadOnly).await;
    assert_eq!(running.read(0, v2::Flags::NONE).await, ErrorCode::Ok);
    running.stop.set();
    assert_eq!(running.task.await.unwrap(), Ended::Stopped);

    place.free.store(TOTAL / 2, Ordering::SeqCst);
    let running = place.start(limits()).await;
    place.registered(RegistrationMode::Writable).await;
    assert_eq!(held(), 1 << 20);
    running.stop.set();
    assert_eq!(running.task.await.unwrap(), Ended::Stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_read_only_mode_a_full_bookie_stops() {
    let place = Place::new().await;
    let running = place.start(DiskLimits { may_be_read_only: false, ..limits() }).await;
    assert_eq!(running.add(0, v2::Flags::NONE).await, ErrorCode::Ok);
    place.free.store(0, Ordering::SeqCst);
    let ended = running.task.await.unwrap();
    assert!(matches!(&ended, Ended::DiskFull(why) if why.contains("100.0 % full")), "{ended:?}");
}
