//! Clients add while the lost directories of a bookie are replaced by empty ones: their answers follow metadata, however slow it
//! is, and never run ahead of it (IB27, IB28, decision 0014).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{KEY, OwnedV2, exchange, framed, hello, http, read_request};
use crate::common::whole::{Running, cluster, config, id, metadata, open, start, start_over};
use bindery_io::RealDisk;
use bindery_metadata::memory::{MemoryCluster, MemoryStore};
use bindery_metadata::store::{MetadataStore, Node, StoreFuture};
use bindery_metadata::{Layout, StoreError, StoreLayer};
use bindery_server::config::BookieConfig;
use bindery_server::limits::Limits;
use bindery_server::metadata_check::READS_MAX;
use bindery_types::{EntryId, LedgerState};
use bindery_wire::{ErrorCode, v2};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Ledgers with a writer: more than metadata is asked about at a time.
const WRITERS: i64 = 3 * READS_MAX as i64;
/// The ledger whose metadata keeps the cover over all ledgers from being replaced.
const LAST: i64 = WRITERS + 1;
/// Adds that a writer sends without waiting for an answer.
const ADDS: i64 = 3;

/// What becomes of the metadata of a ledger while checks of it wait, and what its writer is told.
const FATES: [(Fate, ErrorCode); 7] = [
    (Fate::Open, ErrorCode::Ok),
    (Fate::Closed, ErrorCode::Fenced),
    (Fate::InRecovery, ErrorCode::Fenced),
    (Fate::Deleted, ErrorCode::Fenced),
    (Fate::Elsewhere, ErrorCode::Io),
    (Fate::Garbled, ErrorCode::Io),
    (Fate::Unreadable, ErrorCode::Io),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Closed,
    InRecovery,
    Deleted,
    /// Its last ensemble is without this bookie.
    Elsewhere,
    /// Its node holds bytes that are no metadata.
    Garbled,
    /// The store fails.
    Unreadable,
}

fn fate_of(ledger: i64) -> (Fate, ErrorCode) {
    FATES[ledger as usize % FATES.len()]
}

fn ledgers_with(fate: Fate) -> impl Iterator<Item = i64> {
    (1..=WRITERS).filter(move |ledger| fate_of(*ledger).0 == fate)
}

/// How a request is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Not before the script says something else.
    Held,
    Fails,
    /// The task that asks.
    Panics,
}

/// Requests that are not in here are answered at once.
#[derive(Clone, Default)]
struct Script {
    /// Checks begin with a sync of the path of their ledger; other parts of a bookie do not sync it.
    checks: BTreeMap<String, Answer>,
    /// Reads of the metadata of [`LAST`] wait.
    is_cover_held: bool,
}

/// Metadata that answers as the script says.
struct Scripted {
    inner: Arc<MemoryStore>,
    script: watch::Sender<Script>,
    last: String,
    /// Checks whose sync is not answered.
    held: AtomicUsize,
}

impl Scripted {
    fn new(cluster: &MemoryCluster, layout: &Layout, script: Script) -> Arc<Scripted> {
        Arc::new(Scripted {
            inner: Arc::new(cluster.open()),
            script: watch::Sender::new(script),
            last: layout.ledgers().path(id(LAST)),
            held: AtomicUsize::new(0),
        })
    }
}

impl StoreLayer for Scripted {
    fn beneath(&self) -> &dyn MetadataStore {
        &*self.inner
    }

    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        let path = path.to_owned();
        Box::pin(async move {
            if path == self.last {
                self.script.subscribe().wait_for(|script| !script.is_cover_held).await.unwrap();
            }
            self.inner.get(&path).await
        })
    }

    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        let path = path.to_owned();
        Box::pin(async move {
            let mut script = self.script.subscribe();
            let is_answered = |script: &Script| script.checks.get(&path) != Some(&Answer::Held);
            self.held.fetch_add(1, Ordering::SeqCst);
            let answer = script.wait_for(is_answered).await.unwrap().checks.get(&path).copied();
            self.held.fetch_sub(1, Ordering::SeqCst);
            assert!(answer != Some(Answer::Panics), "planted");
            if answer.is_some() { Err(StoreError::ConnectionLoss) } else { self.inner.sync(&path).await }
        })
    }
}

/// A bookie whose address is known before it has started; no other process takes it.
fn config_at(dir: &Path, test: u8) -> BookieConfig {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let host = [127, 1 + test + (high % 100), middle, low];
    BookieConfig {
        listen: SocketAddr::from((host, 3181)),
        admin: Some(SocketAddr::from((host, 8080))),
        flush_interval: Duration::from_millis(100),
        ..config(dir)
    }
}

/// A bookie with an entry of each ledger, stopped, whose directories are lost then. Metadata stays as it was.
async fn lose_directories(config: &BookieConfig, cluster: &MemoryCluster) -> Layout {
    let bookie = start(config.clone(), cluster).await;
    let layout = bookie.layout.clone();
    for ledger in 1..=LAST {
        layout.ledgers().create(id(ledger), &metadata("bookie-0", LedgerState::Open)).await.unwrap();
        assert_eq!(bookie.add(ledger, 0).await, ErrorCode::Ok);
    }
    bookie.stop().await;
    for dir in config.journal_dirs.iter().chain(&config.ledger_dirs) {
        std::fs::remove_dir_all(dir).unwrap();
    }
    layout
}

/// Starts it with empty directories, in the background, and waits until it serves.
async fn come_back(
    config: &BookieConfig,
    cluster: &MemoryCluster,
    store: &Arc<Scripted>,
) -> JoinHandle<Running> {
    let (config, cluster, over) = (config.clone(), cluster.clone(), store.clone());
    let address = config.listen;
    let config = BookieConfig { accept_lost_directories: true, ..config };
    let starting = tokio::spawn(async move {
        let (disk, beneath) = (Arc::new(RealDisk::new()), over.inner.clone());
        start_over(disk, config, &cluster, beneath, over).await.unwrap()
    });
    let served = async {
        // Connections that come before it is ready are closed.
        while try_read(address, 1, 0).await.is_err() {
            assert!(!starting.is_finished());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, served).await.unwrap();
    starting
}

async fn try_read(address: SocketAddr, ledger: i64, entry: i64) -> std::io::Result<ErrorCode> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(&framed(v2::Request::Read(read_request(ledger, entry)))).await?;
    next(&mut socket).await.map(|answer| answer.code())
}

async fn next(socket: &mut TcpStream) -> std::io::Result<OwnedV2> {
    let mut payload = vec![0; socket.read_u32().await? as usize];
    socket.read_exact(&mut payload).await?;
    Ok(OwnedV2::of(&payload))
}

async fn add(socket: &mut TcpStream, flags: v2::Flags, ledger: i64, entry: i64) -> ErrorCode {
    let body = hello(ledger, entry);
    exchange(socket, v2::Request::Add(v2::Add::new(flags, KEY, &body).unwrap())).await.code()
}

/// A writer that goes on with the ledger from entry 1, and returns what it is told about each add.
async fn write(address: SocketAddr, ledger: i64) -> (i64, Vec<ErrorCode>) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    for entry in 1..=ADDS {
        let body = hello(ledger, entry);
        let add = v2::Add::new(v2::Flags::NONE, KEY, &body).unwrap();
        socket.write_all(&framed(v2::Request::Add(add))).await.unwrap();
    }
    let mut codes = Vec::new();
    for entry in 1..=ADDS {
        match next(&mut socket).await.unwrap() {
            OwnedV2::Add(code, of_ledger, of_entry) if (of_ledger, of_entry) == (ledger, entry) => {
                codes.push(code)
            }
            other => panic!("{other:?} in place of the answer for {ledger}:{entry}"),
        }
    }
    (ledger, codes)
}

/// Others change the metadata of a ledger.
async fn meet(layout: &Layout, ledger: i64, fate: Fate) {
    let (ledgers, store) = (layout.ledgers(), layout.store());
    let set = async |bookie, state| {
        let version = ledgers.get(id(ledger)).await.unwrap().version;
        ledgers.update(id(ledger), &metadata(bookie, state), version).await.map(|_| ()).unwrap();
    };
    match fate {
        Fate::Open | Fate::Unreadable => {}
        Fate::Closed => {
            set("bookie-0", LedgerState::Closed { last_entry: EntryId::new(0), length_bytes: 5 }).await;
        }
        Fate::InRecovery => set("bookie-0", LedgerState::InRecovery).await,
        Fate::Deleted => ledgers.delete(id(ledger), None).await.unwrap(),
        Fate::Elsewhere => set("bookie-1", LedgerState::Open).await,
        Fate::Garbled => {
            store.set(&ledgers.path(id(ledger)), "no metadata".into(), None).await.map(|_| ()).unwrap();
        }
    }
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let looks = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.unwrap();
}

/// Metadata answers only after others changed it, or fails: the adds that came before are acknowledged where the ledger is still
/// open here, and nowhere else. Adds that need no check, reads and recoveries do not wait for those that do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_that_come_while_lost_directories_are_replaced_get_the_verdict_of_metadata() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let limits = Limits { admission_deadline: 10 * PATIENCE, ..Limits::default() };
    let config = BookieConfig { limits, ..config_at(dir.path(), 0) };
    let layout = lose_directories(&config, &cluster).await;
    let path_of = |ledger| layout.ledgers().path(id(ledger));
    let script = Script {
        checks: (1..=WRITERS).map(|ledger| (path_of(ledger), Answer::Held)).collect(),
        is_cover_held: true,
    };
    let store = Scripted::new(&cluster, &layout, script);
    let starting = come_back(&config, &cluster, &store).await;
    let (address, admin) = (config.listen, config.admin.unwrap());

    let mut writers = JoinSet::new();
    (1..=WRITERS).for_each(|ledger| drop(writers.spawn(write(address, ledger))));
    let parked = format!("\nbindery_parked_adds {}\n", WRITERS * ADDS);
    until(async || http(admin, "GET", "/metrics", "").await.1.contains(&parked)).await;
    until(async || store.held.load(Ordering::SeqCst) == READS_MAX).await;
    let mut other = TcpStream::connect(address).await.unwrap();
    let (none, recovery) = (v2::Flags::NONE, v2::Flags::RECOVERY_ADD);
    assert_eq!(
        add(&mut other, none, LAST + 1, 0).await,
        ErrorCode::Ok,
        "new since the directories were lost"
    );
    assert_eq!(add(&mut other, recovery, LAST, 0).await, ErrorCode::Ok, "a recovery");
    for ledger in 1..=WRITERS {
        assert_eq!(
            try_read(address, ledger, 0).await.unwrap(),
            ErrorCode::Io,
            "unknown, not absent: {ledger}"
        );
    }

    for ledger in 1..=WRITERS {
        meet(&layout, ledger, fate_of(ledger).0).await;
    }
    let failing = ledgers_with(Fate::Unreadable).map(|ledger| (path_of(ledger), Answer::Fails)).collect();
    store.script.send_modify(|script| script.checks = failing);
    for (ledger, codes) in tokio::time::timeout(PATIENCE, writers.join_all()).await.unwrap() {
        assert_eq!(codes, [fate_of(ledger).1; ADDS as usize], "ledger {ledger}");
    }
    // A store that fails says nothing about the ledger: the writer goes on when it answers again.
    store.script.send_modify(|script| script.checks.clear());
    for ledger in ledgers_with(Fate::Unreadable) {
        assert_eq!(add(&mut other, none, ledger, 1).await, ErrorCode::Ok, "ledger {ledger}");
    }

    // A verdict of the time under the cover does not count once the ledger is marked.
    let (ended, open_still) =
        (ledgers_with(Fate::Open).next().unwrap(), ledgers_with(Fate::Open).nth(1).unwrap());
    assert_eq!(add(&mut other, none, ended, ADDS + 1).await, ErrorCode::Ok);
    meet(&layout, ended, Fate::InRecovery).await;
    assert!(!starting.is_finished() && open(&cluster).await.registration().list().await.unwrap().is_empty());
    store.script.send_modify(|script| script.is_cover_held = false);
    let bookie = tokio::time::timeout(PATIENCE, starting).await.unwrap().unwrap();
    assert_eq!(bookie.add(ended, ADDS + 2).await, ErrorCode::Fenced);
    assert_eq!(bookie.add(open_still, ADDS + 1).await, ErrorCode::Ok);

    let holds = async |bookie: &Running| {
        for ledger in 1..=WRITERS {
            let (fate, code) = fate_of(ledger);
            let is_stored = code == ErrorCode::Ok || fate == Fate::Unreadable;
            let is_read = bookie.read(ledger, 1).await == ErrorCode::Ok;
            assert_eq!(is_read, is_stored, "ledger {ledger}");
        }
    };
    holds(&bookie).await;
    bookie.stop().await;
    let bookie = start(config, &cluster).await;
    holds(&bookie).await;
    bookie.stop().await;
}

/// A panic while metadata is read costs the adds that waited for it a refusal, and keeps no later one of their keys waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_check_keeps_no_key_waiting() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let config = config_at(dir.path(), 50);
    let layout = lose_directories(&config, &cluster).await;
    let script =
        Script { checks: [(layout.ledgers().path(id(1)), Answer::Panics)].into(), is_cover_held: true };
    let store = Scripted::new(&cluster, &layout, script);
    let starting = come_back(&config, &cluster, &store).await;
    let (_, codes) = tokio::time::timeout(PATIENCE, write(config.listen, 1)).await.unwrap();
    assert_eq!(codes, [ErrorCode::Io; ADDS as usize]);
    store.script.send_modify(|script| *script = Script::default());
    let (_, codes) = tokio::time::timeout(PATIENCE, write(config.listen, 1)).await.unwrap();
    assert_eq!(codes, [ErrorCode::Ok; ADDS as usize]);
    let bookie = tokio::time::timeout(PATIENCE, starting).await.unwrap().unwrap();
    bookie.stop().await;
}

/// Metadata does not answer before the deadline of an add: the add is refused, on a connection that goes on, and its writer is
/// taken when metadata answers in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_metadata_says_nothing_about_is_refused_and_may_come_again() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let limits = Limits { admission_deadline: Duration::from_millis(50), ..Limits::default() };
    let config = BookieConfig { limits, ..config_at(dir.path(), 100) };
    let layout = lose_directories(&config, &cluster).await;
    let path = layout.ledgers().path(id(1));
    let script = Script { checks: [(path, Answer::Held)].into(), is_cover_held: true };
    let store = Scripted::new(&cluster, &layout, script);
    let starting = come_back(&config, &cluster, &store).await;

    let (_, codes) = write(config.listen, 1).await;
    assert_eq!(codes, [ErrorCode::Io; ADDS as usize]);
    let mut socket = TcpStream::connect(config.listen).await.unwrap();
    for entry in [1, 2] {
        assert_eq!(add(&mut socket, v2::Flags::NONE, 1, entry).await, ErrorCode::Io);
        assert_eq!(add(&mut socket, v2::Flags::NONE, LAST + 1, entry).await, ErrorCode::Ok);
    }
    store.script.send_modify(|script| *script = Script::default());
    // On a busy machine the store may be too slow once more.
    let taken = async { while add(&mut socket, v2::Flags::NONE, 1, 1).await != ErrorCode::Ok {} };
    tokio::time::timeout(PATIENCE, taken).await.unwrap();
    let bookie = tokio::time::timeout(PATIENCE, starting).await.unwrap().unwrap();
    assert_eq!((bookie.read(1, 1).await, bookie.read(1, 2).await), (ErrorCode::Ok, ErrorCode::Io));
    bookie.stop().await;
}
