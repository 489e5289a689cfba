//! A whole bookie on disks that fill up and empty again: IB19, P11, R38.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::frames::{KEY, add_frame, hello};
use crate::common::whole::{Running, cluster, config, config_that_flushes, id, metadata, open, start_on};
use crate::common::{PATIENCE, wire};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk, Space};
use bindery_metadata::RegistrationMode;
use bindery_metadata::memory::MemoryCluster;
use bindery_server::bookie::Ended;
use bindery_server::config::BookieConfig;
use bindery_server::disks::{Cause, DiskLimits, ReadOnlyReasons};
use bindery_server::limits::Limits;
use bindery_types::LedgerState;
use bindery_wire::v3::{self, Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

impl Place {
    async fn new() -> Place {
        let free = Arc::new(AtomicU64::new(TOTAL / 2));
        Place { dir: tempfile::tempdir().unwrap(), cluster: cluster().await, free }
    }

    async fn start(&self, disks: DiskLimits) -> Running {
        self.start_as(BookieConfig { disks, ..config(self.dir.path()) }).await
    }

    async fn start_as(&self, mut config: BookieConfig) -> Running {
        let disk = Scripted { inner: RealDisk::new(), free: self.free.clone() };
        config.garbage.interval = Duration::from_secs(86_400);
        start_on(Arc::new(disk), config, &self.cluster).await.unwrap()
    }

    /// Waits until the bookie is registered in this mode alone; it must be registered all the while (IB19).
    async fn registered(&self, mode: RegistrationMode) {
        let registration = open(&self.cluster).await.registration();
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
    assert_eq!(running.add(1, 0).await, ErrorCode::Ok);
    place.free.store(TOTAL / 25, Ordering::SeqCst);
    place.registered(RegistrationMode::ReadOnly).await;
    // The matrix of section 4.7.
    assert_eq!(running.add(1, 1).await, ErrorCode::ReadOnly);
    assert_eq!(running.add_as(v2::Flags::RECOVERY_ADD, 1, 1).await, ErrorCode::ReadOnly);
    assert_eq!(
        running.add_as(high, 1, 1).await,
        ErrorCode::Ok,
        "4 % of the volume are enough for high priority"
    );
    assert_eq!(running.read(1, 0).await, ErrorCode::Ok);
    let state = running.get("/api/v1/bookie/state").await;
    assert!(state.contains("\"readOnly\":true") && state.contains("96.0 % full"), "{state}");
    assert!(state.contains("\"availableForHighPriorityWrites\":true"), "{state}");
    let metrics = running.get("/metrics").await;
    assert!(metrics.contains("bindery_read_only{cause=\"disk_full\"} 1"), "{metrics}");
    assert!(metrics.contains("bindery_volume_reserve_bytes{dir="), "{metrics}");

    place.free.store(1 << 20, Ordering::SeqCst);
    let seen = async {
        while !running.get("/api/v1/bookie/state").await.contains("\"availableForHighPriorityWrites\":false")
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap();
    assert_eq!(running.add_as(high, 1, 2).await, ErrorCode::ReadOnly);
    assert_eq!(
        running.read_as(v2::Flags::DO_FENCING, 1, 2).await,
        ErrorCode::NoEntry,
        "a full bookie fences"
    );
    assert_eq!(running.read_as(v2::Flags::DO_FENCING, 1, 0).await, ErrorCode::Ok);

    place.free.store(TOTAL / 2, Ordering::SeqCst);
    place.registered(RegistrationMode::Writable).await;
    assert_eq!(running.add(1, 2).await, ErrorCode::Fenced);
    running.stop().await;
}

/// A full bookie lets its ledgers be closed, by Java's clients (v2, v3) and ours: an entry that a recovery adds again and that is
/// here takes no room, in memory or on disk; others have half of the reserve, and are refused then. Re-replication, which has no
/// priority, is refused at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_bookie_lets_its_ledgers_be_closed() {
    let recovery = v2::Flags::RECOVERY_ADD.with(v2::Flags::HIGH_PRIORITY);
    let place = Place::new().await;
    let disks = DiskLimits { reserve_bytes: Some(8192), ..limits() };
    let running = place.start_as(BookieConfig { disks, ..config_that_flushes(place.dir.path()) }).await;
    for entry in 0..3 {
        assert_eq!(running.add(1, entry).await, ErrorCode::Ok);
    }
    running.flushed(3).await;
    let left = async || running.json("/api/v1/bookie/state").await["recoveryReserveBytes"].as_u64().unwrap();
    place.free.store(0, Ordering::SeqCst);
    place.registered(RegistrationMode::ReadOnly).await;
    assert_eq!(running.read_as(v2::Flags::DO_FENCING, 1, 2).await, ErrorCode::Ok);
    assert_eq!(running.add_as(v2::Flags::RECOVERY_ADD, 1, 3).await, ErrorCode::ReadOnly);
    for entry in 0..3 {
        assert_eq!(running.add_as(recovery, 1, entry).await, ErrorCode::Ok, "its copy is on disk");
    }
    assert_eq!(running.metric("bindery_parked_adds").await, 3, "they were compared");
    assert_eq!(left().await, 4096, "half of the reserve");

    // As Java sends it in v3.
    let operation = Operation::Add(proto::AddRequest {
        ledger_id: 1,
        entry_id: 3,
        master_key: KEY.as_bytes().to_vec().into(),
        body: hello(1, 3).into(),
        flag: Some(proto::add_request::Flag::RecoveryAdd as i32),
        ..Default::default()
    });
    let mut frame = BytesMut::new();
    v3::put_frame(&v3::Request { txn_id: 1, priority: 100, operation }.into_message(), &mut frame);
    let mut socket = TcpStream::connect(running.address).await.unwrap();
    socket.write_all(&frame).await.unwrap();
    let mut answer = vec![0; socket.read_u32().await.unwrap() as usize];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(v3::decode_response(answer.into()).unwrap().status, 0);
    assert!(left().await < 4096);
    let mut taken = 4;
    let refusal = loop {
        match running.add_as(recovery, 1, taken).await {
            ErrorCode::Ok => taken += 1,
            refusal => break refusal,
        }
    };
    assert_eq!(refusal, ErrorCode::ReadOnly);
    assert!((40..100).contains(&taken), "{taken} entries of 49 bytes with their headers");
    assert_eq!(running.metric("bindery_recovery_adds_refused").await, 1);
    assert_eq!(running.add_as(recovery, 1, 2).await, ErrorCode::Ok, "its copy needs none of it");
    for entry in 0..taken {
        assert_eq!(running.read(1, entry).await, ErrorCode::Ok);
    }
    // With room the reserve is held again, and so is theirs.
    place.free.store(TOTAL / 2, Ordering::SeqCst);
    place.registered(RegistrationMode::Writable).await;
    let held = async {
        while left().await < 4096 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, held).await.unwrap();
    running.stop().await;
}

/// The log advises to delete ledgers, and that helps: while a disk is full they go soon, though the next round of garbage
/// collection is a day away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_bookie_looks_for_ledgers_that_were_deleted() {
    let place = Place::new().await;
    let running = place.start(limits()).await;
    let ledgers = running.layout.ledgers();
    for ledger in 0..6 {
        assert_eq!(running.layout.ids().next().await.unwrap(), id(ledger));
        ledgers.create(id(ledger), &metadata("bookie-0", LedgerState::Open)).await.unwrap();
        assert_eq!(running.add(ledger, 0).await, ErrorCode::Ok);
    }
    ledgers.delete(id(0), None).await.unwrap();
    place.free.store(TOTAL / 25, Ordering::SeqCst);
    place.registered(RegistrationMode::ReadOnly).await;
    let removed = async |count| {
        let gone = async {
            while running.metric("bindery_gc_ledgers_removed").await < count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.unwrap();
    };
    removed(1).await;
    assert_eq!((running.read(0, 0).await, running.read(1, 0).await), (ErrorCode::NoLedger, ErrorCode::Ok));
    // Those that are deleted while it is full, too: it looks again and again, and compacts when something went.
    for (count, ledger) in [(2, 1), (3, 2)] {
        ledgers.delete(id(ledger), None).await.unwrap();
        removed(count).await;
        assert_eq!(running.read(ledger, 0).await, ErrorCode::NoLedger);
    }
    assert_eq!(running.read(5, 0).await, ErrorCode::Ok);
    running.stop().await;
}

/// R38: a disk that was full before says nothing about now. P11: a full one starts, gives its reserve up for it,
/// registers in its true state from the beginning, and takes the reserve back when there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_bookie_starts_and_its_next_start_on_empty_disks_is_writable() {
    let place = Place::new().await;
    let running = place.start(limits()).await;
    assert_eq!(running.add(1, 0).await, ErrorCode::Ok);
    running.stop().await;
    let reserve = place.dir.path().join("journal/current/RESERVE");
    let held = || std::fs::metadata(&reserve).map_or(0, |file| file.len());
    assert_eq!(held(), 1 << 20);

    place.free.store(0, Ordering::SeqCst);
    let running = place.start(limits()).await;
    assert_eq!(held(), 0, "given up before the replay");
    place.registered(RegistrationMode::ReadOnly).await;
    assert_eq!(running.read(1, 0).await, ErrorCode::Ok);
    running.stop().await;

    place.free.store(TOTAL / 2, Ordering::SeqCst);
    let running = place.start(limits()).await;
    place.registered(RegistrationMode::Writable).await;
    assert_eq!(held(), 1 << 20);
    running.stop().await;
}

/// A flush waits for space. When it found some the disks are measured at once, however long `diskCheckInterval` is; a stop
/// before that is one in order, and the next start has what is in the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_is_writable_as_soon_as_what_waited_for_space_has_it() {
    let place = Place::new().await;
    let disks = DiskLimits { interval: Duration::from_secs(3600), ..limits() };
    let config = BookieConfig { disks, ..config_that_flushes(place.dir.path()) };
    let running = place.start_as(config.clone()).await;
    assert_eq!(running.add(1, 0).await, ErrorCode::Ok);
    running.flushed(1).await;
    let fill = async |running: &Running, entry| {
        place.free.store(0, Ordering::SeqCst);
        assert_eq!(running.add(1, entry).await, ErrorCode::Ok);
        let is_full = async {
            loop {
                let state = running.json("/api/v1/bookie/state").await;
                let why = &state["readOnlyBecause"];
                if why["no_space"].is_string() && why["disk_full"].is_string() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, is_full).await.unwrap();
        place.registered(RegistrationMode::ReadOnly).await;
    };
    fill(&running, 1).await;
    place.free.store(TOTAL / 2, Ordering::SeqCst);
    tokio::time::timeout(PATIENCE, place.registered(RegistrationMode::Writable)).await.unwrap();
    assert_eq!(running.add(1, 2).await, ErrorCode::Ok);

    running.flushed(3).await;
    fill(&running, 3).await;
    running.stop.set();
    let ended = running.task.await.unwrap();
    assert!(matches!(ended, Ended::Stopped), "what is not flushed is in the journal: {ended:?}");
    place.free.store(TOTAL / 2, Ordering::SeqCst);
    let running = place.start_as(config).await;
    for entry in 0..4 {
        assert_eq!(running.read(1, entry).await, ErrorCode::Ok);
    }
    running.stop().await;
}

/// The real disk, whose writes to one directory wait for the test, as on a frozen file system.
pub(crate) struct Frozen {
    pub(crate) inner: RealDisk,
    pub(crate) is_frozen: Arc<AtomicBool>,
}

/// Ends the frost, also when a test fails: the end of a bookie waits for its threads.
pub(crate) struct Thaws(pub(crate) Arc<AtomicBool>);

impl Drop for Thaws {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

struct FrozenFile(Arc<dyn DiskFile>, Arc<AtomicBool>);

impl FrozenFile {
    fn wait(&self) {
        while self.1.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The name of the directory whose disk hangs.
pub(crate) const FREEZES: &str = "freezes";

impl DiskLayer for Frozen {
    fn beneath(&self) -> &dyn Disk {
        &self.inner
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.inner.open(path, mode)?;
        Ok(match path.components().any(|part| part.as_os_str() == FREEZES) {
            true => Arc::new(FrozenFile(file, self.is_frozen.clone())),
            false => file,
        })
    }
}

impl FileLayer for FrozenFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.0
    }
    fn write_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.wait();
        self.0.write_at(slices, offset)
    }
    fn write_durable_at(&self, slices: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.wait();
        self.0.write_durable_at(slices, offset)
    }
    fn sync(&self) -> io::Result<()> {
        self.wait();
        self.0.sync()
    }
}

/// One of two ledger disks hangs and returns no error. The bookie says so, is registered read-only, refuses adds at once, still
/// reads, and is writable by itself once the disk answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_whose_ledger_disk_hangs_is_read_only_until_it_answers() {
    let place = Place::new().await;
    let is_frozen = Arc::new(AtomicBool::new(false));
    let config = config_that_flushes(place.dir.path());
    let ledger_dirs = vec![place.dir.path().join("sound"), place.dir.path().join(FREEZES)];
    let config = BookieConfig { ledger_dirs, disks: limits(), ..config };
    let disk = Frozen { inner: RealDisk::new(), is_frozen: is_frozen.clone() };
    let running = start_on(Arc::new(disk), config, &place.cluster).await.unwrap();
    assert_eq!(running.add(1, 0).await, ErrorCode::Ok);
    running.flushed(1).await;

    is_frozen.store(true, Ordering::SeqCst);
    // Until no memory is left for more: each of these connections is refused, or waits for an answer.
    let writers: Vec<_> = (10..14)
        .map(|ledger| {
            let address = running.address;
            tokio::spawn(async move {
                let (mut from, mut to) = TcpStream::connect(address).await.unwrap().into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from, &mut tokio::io::sink()).await });
                for entry in 0.. {
                    let frame = add_frame(ledger, entry, 512 << 10, v2::Flags::NONE, KEY);
                    if to.write_all(&frame).await.is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    let why = async {
        loop {
            let state = running.json("/api/v1/bookie/state").await;
            if let Some(why) = state["readOnlyBecause"]["ledgers_hang"].as_str() {
                return why.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let why = tokio::time::timeout(PATIENCE, why).await.unwrap();
    writers.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(why.contains("does not answer") && why.contains(FREEZES), "{why}");
    tokio::time::timeout(PATIENCE, place.registered(RegistrationMode::ReadOnly)).await.unwrap();
    // At first the queue of those that waited for room is ahead of it.
    let refused = async { while running.add(1, 1).await != ErrorCode::ReadOnly {} };
    tokio::time::timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(running.read(1, 0).await, ErrorCode::Ok);
    let metrics = running.get("/metrics").await;
    assert!(metrics.contains("bindery_read_only{cause=\"ledgers_hang\"} 1"), "{metrics}");

    is_frozen.store(false, Ordering::SeqCst);
    tokio::time::timeout(PATIENCE, place.registered(RegistrationMode::Writable)).await.unwrap();
    assert_eq!(running.add(1, 1).await, ErrorCode::Ok);
    running.stop().await;
}

/// S10: peers begin ledgers until there is no memory for their states. New ones then go elsewhere, those that are here are written
/// to and fenced, others are fenced, and it ends when garbage collection found that nobody created them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_with_too_many_ledgers_takes_no_new_ones_until_garbage_collection_drops_some() {
    const KNOWN: i64 = 1_000_000;
    let place = Place::new().await;
    let small = BookieConfig { ledger_memory: Some(32 << 10), ..config_that_flushes(place.dir.path()) };
    let running = place.start_as(BookieConfig { disks: limits(), ..small }).await;
    running.layout.ledgers().create(id(KNOWN), &metadata("bookie-0", LedgerState::Open)).await.unwrap();
    assert_eq!(running.add(KNOWN, 0).await, ErrorCode::Ok);
    let mut next = 0;
    let refused = loop {
        match running.add(next, 0).await {
            ErrorCode::Ok => next += 1,
            refused => break refused,
        }
        assert!(next < 1000, "there is a limit");
    };
    assert_eq!(refused, ErrorCode::ReadOnly);
    place.registered(RegistrationMode::ReadOnly).await;
    assert_eq!(running.add(next, 0).await, ErrorCode::ReadOnly);
    assert_eq!((running.add(KNOWN, 1).await, running.add(0, 1).await), (ErrorCode::Ok, ErrorCode::Ok));
    let fencing = v2::Flags::DO_FENCING;
    assert_eq!(running.read_as(fencing, KNOWN, 1).await, ErrorCode::Ok);
    assert_eq!(running.read_as(fencing, next, 0).await, ErrorCode::NoEntry, "an unknown ledger is fenced");
    let recovery = v2::Flags::RECOVERY_ADD.with(v2::Flags::HIGH_PRIORITY);
    assert_eq!(running.add_as(recovery, next + 1, 0).await, ErrorCode::Ok, "and recovered");
    assert_eq!(running.add(next + 2, 0).await, ErrorCode::ReadOnly);
    let state = running.json("/api/v1/bookie/state").await;
    let why = state["readOnlyBecause"]["too_many_ledgers"].as_str().unwrap();
    assert!(why.contains("of 32 KiB") && why.contains("ledgerMemoryMB"), "{why}");
    let metrics = running.get("/metrics").await;
    assert!(metrics.contains("bindery_read_only{cause=\"too_many_ledgers\"} 1"), "{metrics}");
    assert!(running.metric("bindery_ledgers_refused").await >= 3);
    assert_eq!(running.metric("bindery_index_ledger_bytes_max").await, 32 << 10);
    // The watch asks for rounds; one that drops nearly everything is for an operator to allow.
    assert!(running.metric("bindery_gc_rounds").await > 0);
    let over = async {
        while running.metric("bindery_index_ledger_bytes").await > 16 << 10 {
            running.collect(r#"{"forceMajor":true,"waiveChecks":true}"#).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, over).await.unwrap();
    place.registered(RegistrationMode::Writable).await;
    assert_eq!(running.add(next + 2, 0).await, ErrorCode::Ok);
    assert_eq!(running.read(KNOWN, 1).await, ErrorCode::Ok);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_read_only_mode_a_full_bookie_stops() {
    let place = Place::new().await;
    let running = place.start(DiskLimits { may_be_read_only: false, ..limits() }).await;
    assert_eq!(running.add(1, 0).await, ErrorCode::Ok);
    place.free.store(0, Ordering::SeqCst);
    let ended = running.task.await.unwrap();
    assert!(matches!(&ended, Ended::DiskFull(why) if why.contains("100.0 % full")), "{ended:?}");
}

/// Clients that are connected need no descriptors: a bookie without any is registered as read-only, and serves their adds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_of_connected_clients_are_served_without_descriptors() {
    let bookie = wire::start(Limits::default()).await;
    let standing = ReadOnlyReasons::new(bookie.shared.engine.clone());
    let mut client = wire::Client::new(&bookie).await;
    let mut add = async |entry| {
        client.send(&add_frame(1, entry, 100, v2::Flags::NONE, KEY)).await;
        client.next_v2().await.code()
    };
    let why = || Some("a test".to_owned());
    standing.set(Cause::NoConnections, why());
    assert_eq!(*standing.mode().borrow(), RegistrationMode::ReadOnly);
    assert_eq!(add(0).await, ErrorCode::Ok);
    standing.set(Cause::DiskFull, why());
    assert_eq!(add(1).await, ErrorCode::ReadOnly);
    standing.set(Cause::DiskFull, None);
    assert_eq!(*standing.mode().borrow(), RegistrationMode::ReadOnly);
    assert_eq!(add(1).await, ErrorCode::Ok);
    standing.set(Cause::NoConnections, None);
    assert_eq!(*standing.mode().borrow(), RegistrationMode::Writable);
    bookie.stop().await;
}
