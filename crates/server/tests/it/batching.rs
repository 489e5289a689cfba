//! Adds in batches, counted at a bookie in process: what its socket reads, its shards and its groups share.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{KEY, OwnedV2, add_frame};
use crate::common::wire::{Client, start_on};
use crate::order::{Gate, GateDisk};
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_server::bookie::{Bookie, Components, Ended, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::latch::Latch;
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_types::MasterKey;
use bindery_wire::v2;
use bytes::BytesMut;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const ADDS: i64 = 400;
const LEDGERS: i64 = 16;

struct Running {
    address: SocketAddr,
    admin: SocketAddr,
    stop: Arc<Latch>,
    task: JoinHandle<Ended>,
}

/// A bookie with two ledger directories, and so with two shards at least.
async fn start(dir: &Path, add_batch_entries_max: usize) -> Running {
    let cluster = MemoryCluster::new();
    layout::init_cluster(&cluster.open(), "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
    let store = Arc::new(cluster.open());
    let metadata = Metadata::Layout(Layout::open(store, "/ledgers", None).await.unwrap());
    let config = BookieConfig {
        journal_dirs: vec![dir.join("journal")],
        ledger_dirs: vec![dir.join("ledgers0"), dir.join("ledgers1")],
        home: Some(dir.to_owned()),
        listen: "127.0.0.1:0".parse().unwrap(),
        admin: Some("127.0.0.1:0".parse().unwrap()),
        memory_limit: Some(256 << 20),
        preallocate: 0,
        journal_file_bytes: 16 << 20,
        flush_interval: Duration::from_secs(3600),
        allow_loopback: true,
        limits: Limits { add_batch_entries_max, ..Limits::default() },
        ..BookieConfig::default()
    };
    let disk = Arc::new(RealDisk::new());
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    let bookie = Bookie::start(config, Components { disk, clock, random, metadata }).await.unwrap();
    let (address, admin) = (bookie.address(), bookie.admin_address().unwrap());
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { bookie.run(&stop).await }
    });
    Running { address, admin, stop, task }
}

impl Running {
    /// The value of a series, by its whole name, labels included.
    async fn metric(&self, series: &str) -> u64 {
        let mut socket = TcpStream::connect(self.admin).await.unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).await.unwrap();
        let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|v| v.starts_with(' ')));
        line.unwrap_or_else(|| panic!("no {series} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Adds to all ledgers over one connection, sent at once; waits for all answers, which must be of success.
    async fn add_all(&self) {
        let mut out = BytesMut::new();
        for i in 0..ADDS {
            let (ledger, entry) = (i % LEDGERS, i / LEDGERS);
            let body = [ledger, entry, entry - 1, 0].map(i64::to_be_bytes).concat();
            let add = v2::Add::new(v2::Flags::NONE, MasterKey::new([1; 20]), &body).unwrap();
            v2::Request::Add(add).encode(&mut out);
        }
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        socket.write_all(&out).await.unwrap();
        let mut answers = vec![0; ADDS as usize * v2::ADD_RESPONSE_SIZE_BYTES];
        socket.read_exact(&mut answers).await.unwrap();
        for answer in answers.chunks(v2::ADD_RESPONSE_SIZE_BYTES) {
            let answer = v2::Response::decode(&answer[4..]).unwrap();
            assert!(
                matches!(answer, v2::Response::Add { code: bindery_wire::ErrorCode::Ok, .. }),
                "{answer:?}"
            );
        }
        // The counters follow the answers.
        for _ in 0..1000 {
            if self.metric("bindery_add_answers_per_connection_and_group_sum").await == ADDS as u64 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("not all answers were counted");
    }

    async fn stop(self) {
        self.stop.set();
        self.task.await.unwrap();
    }
}

/// One socket write for a connection and group, whatever the number of shards; no batch is beyond the cap; a wake-up of
/// the journal's thread is shared.
#[tokio::test(flavor = "multi_thread")]
async fn adds_of_a_socket_read_share_batches_groups_and_writes() {
    let dir = tempfile::tempdir().unwrap();
    let bookie = start(dir.path(), 1000).await;
    bookie.add_all().await;
    let groups = bookie.metric(
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_count{success=\"true\", journalIndex=\"0\"}",
    );
    let groups = groups.await;
    let writes = bookie.metric("bindery_socket_writes").await;
    assert_eq!(writes, bookie.metric("bindery_add_answers_per_connection_and_group_count").await);
    assert!(writes <= groups, "{writes} writes of one connection for {groups} groups");
    let reads = bookie.metric("bindery_socket_reads").await;
    let batches = bookie.metric("bindery_add_batch_entries_count").await;
    assert_eq!(bookie.metric("bindery_add_batch_entries_sum").await, ADDS as u64);
    let shards = std::thread::available_parallelism().map_or(1, |n| n.get().min(8)).max(2) as u64;
    assert!(batches <= reads * shards, "{batches} batches of {reads} reads");
    assert!(bookie.metric("bindery_journal_wakes").await <= batches + reads, "a wake-up for an entry");
    bookie.stop().await;
}

/// The cap is kept: with one entry each add enters its shard alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_cap_of_one_entry_makes_a_batch_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let bookie = start(dir.path(), 1).await;
    bookie.add_all().await;
    assert_eq!(bookie.metric("bindery_add_batch_entries_count").await, ADDS as u64);
    assert_eq!(bookie.metric("bindery_add_batch_entries_bucket{le=\"1\"}").await, ADDS as u64);
    bookie.stop().await;
}

/// More than the pool holds, over both shards of an engine: a connection stands in the lines of both, nothing is lost or
/// given twice, and the order within each ledger stays (reader invariants 3 and 4).
#[tokio::test(flavor = "multi_thread")]
async fn adds_wait_for_room_in_all_their_shards_and_keep_their_order() {
    const EACH: i64 = 2500;
    let limits = Limits { admission_deadline: PATIENCE, ..Limits::default() };
    let plan = MemoryPlan { write: 48 << 20, ..MemoryPlan::new(256 << 20, &limits).unwrap() };
    let gate = Gate::default();
    let bookie = start_on(limits, plan, Arc::new(GateDisk(RealDisk::new(), gate.clone()))).await;
    let mut client = Client::new(&bookie).await;
    // No group is written before the pool is full.
    gate.shut(true);
    let mut out = BytesMut::new();
    for i in 0..EACH * LEDGERS {
        out.extend_from_slice(&add_frame(i % LEDGERS, i / LEDGERS, 2000, v2::Flags::NONE, KEY));
    }
    client.flood(out);
    let is_full = async {
        while bookie.shared.engine.stats().no_room == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_full).await.expect("more than the pool holds");
    gate.shut(false);
    let mut next: HashMap<i64, i64> = HashMap::new();
    for _ in 0..EACH * LEDGERS {
        let OwnedV2::Add(code, ledger, entry) = client.next_v2().await else { panic!("not an add") };
        let expected = next.entry(ledger).or_default();
        assert_eq!((code, entry), (bindery_wire::ErrorCode::Ok, *expected), "ledger {ledger}");
        *expected += 1;
    }
    assert!(next.values().all(|next| *next == EACH) && next.len() == LEDGERS as usize);
    assert_eq!(bookie.shared.metrics.adds_blocked.get(), 0);
    bookie.stop().await;
}
