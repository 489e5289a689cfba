//! The flow view and the slow-request log of a whole bookie: a peer that takes nothing is called stalled, the view is
//! there when nothing is left of any pool, and requests that waited for a slow disk say so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::frames::{KEY, add_frame, framed, read_request};
use crate::common::{PATIENCE, whole, wire};
use bindery_io::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode, RealDisk};
use bindery_server::connection::{Class, Wait};
use bindery_server::flow_view::{self, ConnectionFlow, FlowView, STALLED_MS, Sort};
use bindery_server::limits::Limits;
use bindery_wire::{ErrorCode, v2};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::field::{Field, Visit};

const ENTRIES: i64 = 40;

/// One ledger of entries of 64 KiB, over one connection that stays open.
async fn write_entries(bookie: &whole::Running) -> TcpStream {
    let mut socket = TcpStream::connect(bookie.address).await.unwrap();
    for entry in 0..ENTRIES {
        socket.write_all(&add_frame(1, entry, 64 << 10, v2::Flags::NONE, KEY)).await.unwrap();
        let mut answer = vec![0; socket.read_u32().await.unwrap() as usize];
        socket.read_exact(&mut answer).await.unwrap();
    }
    socket
}

async fn view(bookie: &whole::Running, query: &str) -> FlowView {
    serde_json::from_str(&bookie.get(&format!("/api/v1/bookie/flow{query}")).await).unwrap()
}

/// Looks until the view is as it should be.
async fn until(bookie: &whole::Running, query: &str, is_so: impl Fn(&FlowView) -> bool) -> FlowView {
    let look = async {
        loop {
            let view = view(bookie, query).await;
            if is_so(&view) {
                return view;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.expect("the view becomes so")
}

fn of<'a>(view: &'a FlowView, socket: &TcpStream) -> &'a ConnectionFlow {
    let peer = socket.local_addr().unwrap().to_string();
    view.connections.iter().find(|flow| flow.peer == peer).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_nothing_is_shown_as_stalled_with_what_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let bookie = whole::start(whole::config(dir.path()), &whole::cluster().await).await;
    let writer = write_entries(&bookie).await;
    let mut greedy = TcpStream::connect(bookie.address).await.unwrap();
    let reads: Vec<u8> =
        (0..5000i64).flat_map(|n| framed(v2::Request::Read(read_request(1, n % ENTRIES))).to_vec()).collect();
    greedy.write_all(&reads).await.unwrap();

    let stalled = until(&bookie, "?sort=stalled", |view| view.totals.stalled == 1).await;
    let greedy_peer = greedy.local_addr().unwrap().to_string();
    assert_eq!(stalled.connections[0].peer, greedy_peer, "the order that was asked for");
    let flow = of(&stalled, &greedy);
    assert_eq!((flow.class, &*flow.protocol), (Class::Reader, "v2"));
    assert!(flow.stalled_ms().unwrap() >= STALLED_MS);
    assert!(flow.unsent_bytes > 0 && flow.outbound_bytes > 0 && flow.reads_queued > 0, "{flow:?}");
    assert!(flow.held_bytes >= flow.outbound_bytes);
    assert_eq!(flow.reads, 5000);
    let flow = of(&stalled, &writer);
    assert_eq!((flow.class, flow.adds, flow.adds_owed), (Class::Writer, ENTRIES as u64, 0));
    assert_eq!((flow.stalled_ms(), flow.not_read_because), (None, None));
    assert!(stalled.totals.held_bytes >= of(&stalled, &greedy).held_bytes);
    let outbound = stalled.pools.iter().find(|pool| pool.name == "outbound").unwrap();
    assert!(outbound.used_bytes > 0 && outbound.used_bytes <= outbound.capacity_bytes);

    // One line is enough, and the rest is counted.
    let one = view(&bookie, "?limit=1").await;
    assert_eq!((one.connections.len(), one.rest.connections), (1, 1));
    assert_eq!(one.connections[0].peer, greedy_peer, "most is held by the one that takes nothing");
    for (query, why) in [("?limit=many", "limit"), ("?sort=size", "sort"), ("?top=3", "sort=held")] {
        let (status, body) = bookie.http("GET", &format!("/api/v1/bookie/flow{query}"), "").await;
        assert!(status.contains("400") && body.contains(why), "{status} {body}");
    }

    // It goes on reading: what it asked for arrives, and nobody is stalled.
    let mut buffer = vec![0; 1 << 20];
    assert!(greedy.read(&mut buffer).await.unwrap() > 0);
    drop(greedy);
    let after = until(&bookie, "", |view| view.totals.connections == 1).await;
    assert_eq!((after.totals.stalled, of(&after, &writer).held_bytes), (0, 0));
    bookie.stop().await;
}

/// Flow view invariant 1: nothing is left of any pool, and whoever waits for it is shown with what it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_view_is_there_when_nothing_is_left_of_any_pool() {
    let bookie = wire::start(Limits::default()).await;
    let pools = &bookie.shared.pools;
    let all = [
        &pools.first,
        &pools.first_large,
        &pools.inbound,
        &pools.inbound_adds,
        &pools.inbound_large,
        &pools.outbox,
        &pools.outbound,
        &pools.outbound_priority,
    ];
    let taken = all.map(|pool| pool.try_acquire(pool.capacity()).unwrap());
    let mut client = TcpStream::connect(bookie.address).await.unwrap();
    client.write_all(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await.unwrap();
    let look = async {
        loop {
            let view = flow_view::gather(&bookie.shared, Sort::Held, 10).await;
            if let [flow] = &view.connections[..]
                && flow.not_read_because == Some(Wait::Inbound)
            {
                return view;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let view = tokio::time::timeout(PATIENCE, look).await.unwrap();
    assert!(view.connections[0].not_read_ms.is_some());
    let full = view.pools.iter().filter(|pool| pool.used_bytes == pool.capacity_bytes).count();
    assert_eq!(full, all.len(), "{:?}", view.pools);
    let of_first = |view: &FlowView| {
        let pool = view.pools.iter().find(|pool| pool.name == "first").unwrap();
        (pool.waiting, pool.waits, pool.waited_ms)
    };
    assert_eq!(of_first(&view), (1, 1, 0), "a newcomer");
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(taken);
    let mut answer = vec![0; client.read_u32().await.unwrap() as usize];
    client.read_exact(&mut answer).await.unwrap();
    let view = flow_view::gather(&bookie.shared, Sort::Held, 10).await;
    let (waiting, waits, waited_ms) = of_first(&view);
    assert!((waiting, waits) == (0, 1) && waited_ms >= 10, "{waited_ms}");
    drop(client);
    bookie.stop().await;
}

const SLOWNESS: Duration = Duration::from_millis(300);

/// While the flag is up, writes of journals take [`SLOWNESS`], and so do reads of other files, none of which the kernel has
/// in memory.
struct SlowDisk {
    beneath: RealDisk,
    is_slow: Arc<AtomicBool>,
}

impl DiskLayer for SlowDisk {
    fn beneath(&self) -> &dyn Disk {
        &self.beneath
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let beneath = self.beneath.open(path, mode)?;
        let is_journal = path.components().any(|part| part.as_os_str() == "journal");
        Ok(Arc::new(SlowFile { beneath, is_slow: self.is_slow.clone(), is_journal }))
    }
}

struct SlowFile {
    beneath: Arc<dyn DiskFile>,
    is_slow: Arc<AtomicBool>,
    is_journal: bool,
}

impl SlowFile {
    fn is_slow_at(&self, is_journal: bool) -> bool {
        self.is_journal == is_journal && self.is_slow.load(Ordering::Acquire)
    }
}

impl FileLayer for SlowFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.beneath
    }

    fn write_durable_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        if self.is_slow_at(true) {
            std::thread::sleep(SLOWNESS);
        }
        self.beneath.write_durable_at(slices, offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.is_slow_at(false) {
            std::thread::sleep(SLOWNESS);
        }
        self.beneath.read_at(buf, offset)
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        if self.is_slow_at(false) { Ok(None) } else { self.beneath.read_cached_at(buf, offset) }
    }
}

type Line = BTreeMap<String, String>;

/// Keeps the fields of each line of the slow-request log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Line>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "bindery_server::slow_log"
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Fields::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[derive(Default)]
struct Fields(Line);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_waited_for_a_slow_disk_are_logged_with_their_stages() {
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let is_slow = Arc::new(AtomicBool::new(false));
    let disk = SlowDisk { beneath: RealDisk::new(), is_slow: is_slow.clone() };
    let mut config = whole::config_that_flushes(dir.path());
    config.limits.slow_request = SLOWNESS;
    let bookie = whole::start_on(Arc::new(disk), config, &whole::cluster().await).await.unwrap();
    is_slow.store(true, Ordering::Release);
    assert_eq!(bookie.add(7, 3).await, ErrorCode::Ok);
    is_slow.store(false, Ordering::Release);

    let of_ledger = |line: &Line| line.get("ledger_id").is_some_and(|ledger| ledger == "7");
    let logged = async {
        loop {
            let found = lines.0.lock().unwrap().iter().find(|line| of_ledger(line)).cloned();
            if let Some(line) = found {
                return line;
            }
            // The line is written behind the answer.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let line = tokio::time::timeout(PATIENCE, logged).await.unwrap();
    let field = |name: &str| line.get(name).unwrap_or_else(|| panic!("{name}: {line:?}")).clone();
    let ms = |name: &str| field(name).parse::<f64>().unwrap();
    assert_eq!((&*field("kind"), &*field("entry_id"), &*field("bytes")), ("\"add\"", "3", "37"));
    assert_eq!((&*field("journal"), &*field("group_adds")), ("0", "1"));
    assert!(field("peer").starts_with("127.0.0.1:"));
    assert!(ms("journal_ms") >= SLOWNESS.as_millis() as f64, "the disk is to blame: {line:?}");
    let stages: f64 = ["queue_ms", "journal_ms", "answer_ms"].into_iter().map(&ms).sum();
    // A received time is kept in steps of 256 ns.
    assert!(stages <= ms("total_ms") + 0.01, "{line:?}");
    assert!(!line.contains_key("load_ms"), "an add loads nothing");

    let metrics = bookie.get("/metrics").await;
    for expected in [
        "bindery_slow_requests{kind=\"add\"} 1\n",
        "bookie_journal_JOURNAL_SYNC_count{success=\"true\", journalIndex=\"0\"} ",
        "bookie_journal_JOURNAL_QUEUE_LATENCY_count{success=\"true\", journalIndex=\"0\"} 1\n",
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_sum{success=\"true\", journalIndex=\"0\"} 1.0\n",
        "bindery_journal_used_bytes{journalIndex=\"0\"} ",
        "bindery_add_stage_count{success=\"true\", stage=\"answer\"} 1\n",
    ] {
        assert!(metrics.contains(expected), "{expected}\n{metrics}");
    }

    is_slow.store(true, Ordering::Release);
    let logged = async {
        loop {
            // From memory until it is flushed.
            assert_eq!(bookie.read(7, 3).await, ErrorCode::Ok);
            // The subscriber is of the whole process: other tests have slow reads of other ledgers.
            let is_read = |line: &&Line| of_ledger(line) && line["kind"] == "\"read\"";
            let found = lines.0.lock().unwrap().iter().find(is_read).cloned();
            if let Some(line) = found {
                return line;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let line = tokio::time::timeout(PATIENCE, logged).await.unwrap();
    is_slow.store(false, Ordering::Release);
    let ms =
        |name: &str| line.get(name).unwrap_or_else(|| panic!("{name}: {line:?}")).parse::<f64>().unwrap();
    assert!(ms("load_ms") >= SLOWNESS.as_millis() as f64, "the disk is to blame: {line:?}");
    assert!((ms("queue_ms") + ms("load_ms") - ms("total_ms")).abs() < 0.01, "{line:?}");
    assert!(!line.contains_key("journal_ms") && line["ledger_id"] == "7", "{line:?}");
    bookie.stop().await;
}
