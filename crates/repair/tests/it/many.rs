//! What finding and marking the ledgers of a lost bookie costs, on a real ZooKeeper: `bench/audit` runs it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bindery_client::{Client, EntryId, LedgerId, LedgerMetadata, LedgerState, Quorum};
use bindery_io::{Clock as _, SystemClock};
use bindery_metadata::layout;
use bindery_metadata::store::{CreateMode, MetadataStore};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions};
use bindery_metadata::{Layout, LedgerLayout};
use bindery_repair::{Repair, RepairConfig, Targets};
use bindery_types::{DigestType, LedgerSecret, Segment};
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cluster::id;
use super::requests::{Counted, Counts};

const BOOKIES: usize = 5;

async fn store(server: &str) -> Arc<dyn MetadataStore> {
    let options =
        ZooKeeperOptions { session_timeout: Duration::from_secs(30), ..ZooKeeperOptions::default() };
    Arc::new(zookeeper::connect(&[server.to_owned()], options).await.unwrap())
}

fn metadata(ledger: i64) -> LedgerMetadata {
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
    let mut metadata = LedgerMetadata::new(Quorum::new(3, 3, 2).unwrap(), secret);
    // The lost bookie is in each of them.
    let others = (0..2).map(|at| 1 + (ledger as usize + at) % (BOOKIES - 1));
    let ensemble =
        std::iter::once(0).chain(others).map(|bookie| id(&format!("10.0.0.{bookie}:3181"))).collect();
    metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
    metadata.state = LedgerState::Closed { last_entry: EntryId::new(9), length_bytes: 90 };
    metadata
}

/// KiB of this process: now, and at most since the last reset.
fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    (of("VmRSS:"), of("VmHWM:"))
}

#[allow(clippy::disallowed_methods, reason = "no file on a disk")]
fn reset_most() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// What other clients feel: the 99th percentile of a read, in ms, of some each 5 ms until the task is stopped.
async fn feel(store: Arc<dyn MetadataStore>, mut stop: tokio::sync::oneshot::Receiver<()>) -> f64 {
    let mut times = Vec::new();
    while stop.try_recv().is_err() {
        let began = Instant::now();
        store.exists("/zookeeper").await.unwrap();
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    times.sort_unstable();
    times[times.len() * 99 / 100].as_secs_f64() * 1000.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: bench/audit runs it"]
async fn ledgers_of_a_lost_bookie_are_found_and_marked() {
    let server = std::env::var("BINDERY_TEST_ZOOKEEPER").expect("host:port of a ZooKeeper");
    let ledgers: i64 = std::env::var("BINDERY_AUDIT_LEDGERS").map_or(100_000, |count| count.parse().unwrap());
    let plain = store(&server).await;
    let root = format!("/audit-{}", SystemClock::new().wall_ms());
    layout::init_cluster(&*plain, &root, LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
    let layout = Layout::open(plain.clone(), &root, None).await.unwrap();
    for bookie in 1..BOOKIES {
        let path = format!("{root}/available/10.0.0.{bookie}:3181");
        plain.create(&path, Bytes::new(), CreateMode::Persistent).await.unwrap();
    }
    let mut creates = JoinSet::new();
    for ledger in 0..ledgers {
        if creates.len() >= 64 {
            creates.join_next().await.unwrap().unwrap();
        }
        let ledgers = layout.ledgers();
        creates.spawn(async move {
            ledgers.create(LedgerId::new(ledger).unwrap(), &metadata(ledger)).await.unwrap();
        });
    }
    while let Some(created) = creates.join_next().await {
        created.unwrap();
    }
    let probe = store(&server).await;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let feeling = tokio::spawn(feel(probe.clone(), stopped));
    tokio::time::sleep(Duration::from_secs(3)).await;
    stop.send(()).unwrap();
    println!("p99 of a read before: {:.2} ms", feeling.await.unwrap());

    let marks = layout.under_replication();
    for what in ["found and marked", "looked at again, all marked"] {
        let counts = Arc::new(Counts::default());
        let counted = Counted { beneath: store(&server).await, counts: counts.clone() };
        let client = Client::builder()
            .layout(Layout::open(Arc::new(counted), &root, None).await.unwrap())
            .connect()
            .await
            .unwrap();
        let mut config = RepairConfig::new(id("auditor"), Targets::Own(id("auditor")));
        config.auditor.delay = Duration::ZERO;
        config.checks.interval = None;
        // The worker has its first look alone.
        config.look_interval = Duration::from_secs(3600);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let feeling = tokio::spawn(feel(probe.clone(), stopped));
        reset_most();
        let (before, _) = resident();
        let began = Instant::now();
        let repair = Repair::start(config, client, None, Arc::new(SystemClock::new()));
        let count = u64::try_from(ledgers).unwrap();
        // A scan that finds bookies that only metadata name is followed by another one, which is the one that marks.
        while repair.handle().report().marked < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let seconds = began.elapsed().as_secs_f64();
        let (_, most) = resident();
        let (reads, writes) = (counts.reads.load(Ordering::Relaxed), counts.writes.load(Ordering::Relaxed));
        let report = repair.handle().report();
        repair.stop().await;
        stop.send(()).unwrap();
        println!(
            "{what}: {ledgers} ledgers in {seconds:.1} s, {:.2} reads and {:.2} writes each, {} scans before, {:.1} MiB more \
             resident at most, p99 of a read of another client {:.2} ms",
            reads as f64 / ledgers as f64,
            writes as f64 / ledgers as f64,
            report.scans,
            most.saturating_sub(before) as f64 / 1024.0,
            feeling.await.unwrap(),
        );
    }
    let began = Instant::now();
    let listed = marks.after(None, usize::MAX).await.unwrap().len();
    println!("listed: {listed} marks in {:.2} s", began.elapsed().as_secs_f64());
    assert_eq!(listed as i64, ledgers);
}
