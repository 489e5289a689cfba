//! The auditor's checks and the order of its marks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::repair::with_member;
use bindery_client::resolver::TableResolver;
use bindery_client::{
    BookieId, Client, EntryId, LedgerId, LedgerMetadata, LedgerState, Quorum, RackAware, SeededRandom,
};
use bindery_io::{Clock as _, SystemClock};
use bindery_metadata::layout::{self, PeriodicCheck};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::store::CreateMode;
use bindery_metadata::{Layout, LedgerLayout};
use bindery_repair::{Repair, RepairConfig, RepairReport, Targets};
use bindery_types::{DigestType, LedgerSecret, Segment};
use bytes::Bytes;
use tokio::time::Instant;

use super::cluster::{Cluster, assert_whole, entry, id, sealed};

/// Far above anything that must happen.
const HANG: Duration = Duration::from_secs(60);

/// Checks without a pause between them, where the cluster has no time of a check that is younger.
fn config(name: &str, interval: Duration) -> RepairConfig {
    let mut config = RepairConfig::new(id(name), Targets::Own(id(name)));
    config.look_interval = Duration::from_millis(100);
    config.auditor.delay = Duration::from_secs(3600);
    config.checks.interval = Some(interval);
    config.checks.requests_per_second = 1_000_000;
    config
}

async fn start(client: Client, config: RepairConfig) -> Repair {
    Repair::start(config, client, None, Arc::new(SystemClock::new()))
}

async fn until(all: &[Repair], what: &str, is_it: impl Fn(&RepairReport) -> bool) -> RepairReport {
    let began = Instant::now();
    loop {
        let reports: Vec<RepairReport> = all.iter().map(|repair| repair.handle().report()).collect();
        if let Some(found) = reports.iter().find(|report| is_it(report)) {
            return found.clone();
        }
        assert!(began.elapsed() < HANG, "{what}: {reports:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_unmarked(layout: &Layout) {
    let began = Instant::now();
    while !layout.under_replication().after(None, 1).await.unwrap().is_empty() {
        assert!(began.elapsed() < HANG, "ledgers are marked still");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn stop(all: Vec<Repair>) {
    for repair in all {
        repair.stop().await;
    }
}

#[allow(clippy::disallowed_methods, reason = "the disks of a bookie that is stopped")]
fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for found in std::fs::read_dir(from).unwrap() {
        let found = found.unwrap();
        let to = to.join(found.file_name());
        match found.file_type().unwrap().is_dir() {
            true => copy_dir(&found.path(), &to),
            false => drop(std::fs::copy(found.path(), to).unwrap()),
        }
    }
}

/// A bookie whose disks are those of an hour ago says with good faith that it has nothing of what came since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_a_bookie_lost_in_silence_are_found_and_brought_back() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let before = sealed(&client, 4, 30, (3, 3, 2)).await;
    cluster.stop_bookie(1).await;
    let copy = tempfile::tempdir().unwrap();
    copy_dir(&cluster.home(1), copy.path());
    cluster.start_bookie(1).await;
    let whole = sealed(&client, 3, 30, (3, 3, 2)).await;
    let striped = sealed(&client, 3, 31, (3, 2, 2)).await;
    cluster.stop_bookie(1).await;
    cluster.wipe_bookie(1);
    copy_dir(copy.path(), &cluster.home(1));
    cluster.start_bookie(1).await;
    let layout = cluster.layout().await;
    let mut all = Vec::new();
    for name in ["b0", "b1", "b2"] {
        all.push(start(cluster.client().await, config(name, Duration::from_secs(604_800))).await);
    }
    let report = until(&all, "a check has ended", |report| report.check.ended > 0).await;
    let check = &report.check;
    assert_eq!((check.whole, check.lacking, check.unchecked), (4, 6, 0), "{report:#?}");
    assert!(check.problems.iter().all(|problem| problem.why == "b1 lacks entries: marked"), "{report:#?}");
    until_unmarked(&layout).await;
    for ledger in before.iter().chain(&whole) {
        assert_whole(&client, *ledger, 30, "nobody").await;
    }
    for ledger in &striped {
        assert_whole(&client, *ledger, 31, "nobody").await;
    }
    // What is copied is what it should have and lost: all entries of three ledgers, and two of three of three others.
    let copied: u64 = all.iter().map(|repair| repair.handle().report().entries).sum();
    let of_striped = |ledger| {
        let client = &client;
        async move {
            let metadata = client.metadata(ledger).await.unwrap().metadata;
            let position =
                metadata.segments()[0].ensemble.iter().position(|bookie| *bookie == id("b1")).unwrap();
            (0..31).filter(|at| metadata.quorum.is_in_write_set(entry(*at), position)).count() as u64
        }
    };
    let mut lost = 3 * 30;
    for ledger in striped {
        lost += of_striped(ledger).await;
    }
    assert_eq!(copied, lost);
    stop(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_cluster_is_left_alone_and_the_next_auditor_keeps_the_time() {
    let cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    sealed(&client, 5, 20, (3, 2, 2)).await;
    sealed(&client, 5, 1, (4, 2, 2)).await;
    sealed(&client, 2, 3, (1, 1, 1)).await;
    let open = super::cluster::writer(&client, (3, 3, 2)).await;
    super::cluster::append(&open, 0..5).await;
    let mut often = config("b0", Duration::from_secs(1));
    often.checks.read_percent = 50;
    let all = vec![start(cluster.client().await, often).await];
    let report = until(&all, "it was checked twice", |report| report.check.ended >= 2).await;
    assert_eq!((report.marked, report.check.lacking, report.check.unchecked), (0, 0, 0), "{report:#?}");
    assert_eq!(report.check.problems, []);
    stop(all).await;
    let layout = cluster.layout().await;
    assert_eq!(layout.under_replication().after(None, 9).await.unwrap(), []);
    let ended = layout.repair_settings().check_ended(PeriodicCheck::AllLedgers).await.unwrap().unwrap();
    assert!((SystemClock::new().wall_ms() - ended).abs() < 600_000, "{ended}");
    // The next one is due in a week.
    let all = vec![start(cluster.client().await, config("b1", Duration::from_secs(604_800))).await];
    let report = until(&all, "it is elected", |report| report.check.ended_ms.is_some()).await;
    assert_eq!((report.check.ended, report.check.ended_ms), (0, Some(ended)), "{report:#?}");
    stop(all).await;
    drop(open);
    cluster.stop().await;
}

/// Copies with a wrong digest are found by reading: the list names them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_checked_is_named_and_holds_up_no_other() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 6, 20, (3, 3, 2)).await;
    let layout = cluster.layout().await;
    // Registered, and nothing listens there.
    let silent = id("127.0.0.1:1");
    layout
        .store()
        .create("/ledgers/available/127.0.0.1:1", Bytes::new(), CreateMode::Persistent)
        .await
        .unwrap();
    for ledger in &ids[..2] {
        let info = client.metadata(*ledger).await.unwrap();
        let changed = with_member(&info.metadata, EntryId::FIRST, 0, &silent).unwrap();
        layout.ledgers().update(*ledger, &changed, info.version).await.unwrap();
    }
    let path = layout.ledgers().path(ids[2]);
    layout.store().set(&path, "BookieMetadataFormatVersion\t3\nnothing".into(), None).await.unwrap();
    let info = client.metadata(ids[3]).await.unwrap();
    let mut changed = info.metadata.clone();
    changed.secret.as_mut().unwrap().digest_type = DigestType::Hmac;
    layout.ledgers().update(ids[3], &changed, info.version).await.unwrap();
    // Away: that is not for this check.
    let info = client.metadata(ids[4]).await.unwrap();
    let changed = with_member(&info.metadata, EntryId::FIRST, 0, &id("gone")).unwrap();
    layout.ledgers().update(ids[4], &changed, info.version).await.unwrap();

    let all = vec![start(cluster.client().await, config("b0", Duration::from_secs(604_800))).await];
    let report = until(&all, "a check has ended", |report| report.check.ended > 0).await;
    let check = &report.check;
    assert_eq!((check.whole, check.lacking, check.unchecked), (2, 1, 3), "{report:#?}");
    let why = |ledger: LedgerId| -> &str {
        let of = check.problems.iter().find(|problem| problem.ledger == ledger.get());
        &of.unwrap_or_else(|| panic!("{ledger} in {report:#?}")).why
    };
    assert!(why(ids[0]).starts_with("127.0.0.1:1 does not say what it has"), "{report:#?}");
    assert!(why(ids[1]).starts_with("127.0.0.1:1 does not say what it has"), "{report:#?}");
    assert!(why(ids[2]).starts_with(&format!("ledger {}", ids[2])), "{report:#?}");
    assert_eq!(why(ids[3]), "b0, b1, b2 lacks entries: marked");
    stop(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_stops_while_repair_is_disabled_and_goes_on_then() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    sealed(&client, 30, 2, (3, 3, 2)).await;
    let settings = cluster.layout().await.repair_settings();
    let mut slow = config("b0", Duration::from_secs(604_800));
    // Ten requests for a ledger.
    (slow.checks.requests_per_second, slow.checks.parallel) = (60, 2);
    let all = vec![start(cluster.client().await, slow).await];
    until(&all, "some are checked", |report| report.check.whole > 3).await;
    settings.disable().await.unwrap();
    let report = until(&all, "it stopped", |report| report.is_disabled && !report.check.is_running).await;
    assert!(report.check.whole < 30, "{report:#?}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let later = all[0].handle().report().check;
    assert_eq!((later.whole, later.ended), (report.check.whole, 0));
    settings.enable().await.unwrap();
    let report = until(&all, "it has ended", |report| report.check.ended > 0).await;
    assert!((30..=32).contains(&report.check.whole), "it went on where it was: {report:#?}");
    stop(all).await;
    cluster.stop().await;
}

/// A cluster of names: bookies that are registered and ledgers that are closed, and nothing behind them.
struct Names {
    metadata: MemoryCluster,
}

impl Names {
    async fn new(bookies: usize) -> Names {
        let metadata = MemoryCluster::starting_at(SystemClock::new().wall_ms());
        layout::init_cluster(&metadata.open(), "/ledgers", LedgerLayout::Hierarchical, [1; 16])
            .await
            .unwrap();
        let names = Names { metadata };
        let layout = names.layout().await;
        layout.store().create("/ledgers/available", Bytes::new(), CreateMode::Persistent).await.ok();
        for bookie in 0..bookies {
            let path = format!("/ledgers/available/{}", Names::bookie(bookie));
            layout.store().create(&path, Bytes::new(), CreateMode::Persistent).await.unwrap();
        }
        names
    }

    fn bookie(index: usize) -> BookieId {
        id(&format!("10.0.0.{index}:1"))
    }

    async fn layout(&self) -> Layout {
        Layout::open(Arc::new(self.metadata.open()), "/ledgers", None).await.unwrap()
    }

    async fn ledger(layout: &Layout, ledger: i64, ensemble: [usize; 3]) {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(Quorum::new(3, 3, 2).unwrap(), secret);
        let ensemble = ensemble.map(Names::bookie).to_vec();
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
        metadata.state = LedgerState::Closed { last_entry: EntryId::new(9), length_bytes: 90 };
        layout.ledgers().create(LedgerId::new(ledger).unwrap(), &metadata).await.unwrap();
    }
}

/// Two of five bookies are lost at once: three ledgers of ten lack one copy and three have one left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_with_one_copy_left_are_marked_before_all_others() {
    const LEDGERS: i64 = 20_000;
    let names = Names::new(5).await;
    let layout = names.layout().await;
    let ensembles: Vec<[usize; 3]> =
        (0..5).flat_map(|a| (a + 1..5).flat_map(move |b| (b + 1..5).map(move |c| [a, b, c]))).collect();
    for ledger in 0..LEDGERS {
        Names::ledger(&layout, ledger, ensembles[ledger as usize % ensembles.len()]).await;
    }
    for lost in [0, 1] {
        layout.store().delete(&format!("/ledgers/available/{}", Names::bookie(lost)), None).await.unwrap();
    }
    let mut config = config("auditor", Duration::from_secs(604_800));
    (config.auditor.delay, config.checks.interval) = (Duration::ZERO, None);
    let client = Client::builder().layout(names.layout().await).connect().await.unwrap();
    // The worker has no bookie to copy to, so marks stay.
    let all = vec![start(client, config).await];
    until(&all, "all are scanned", |report| report.scans > 0).await;
    stop(all).await;
    let marks = layout.under_replication();
    let mut times: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    for ledger in marks.after(None, usize::MAX).await.unwrap() {
        let mark = marks.marked(ledger).await.unwrap().unwrap();
        times.entry(mark.replicas.len()).or_default().push(mark.since_ms.unwrap());
    }
    let tenth = LEDGERS as usize / 10;
    assert_eq!((times[&1].len(), times[&2].len()), (6 * tenth, 3 * tenth));
    // An auditor that never saw these bookies learns from metadata that both are away: until then it looked at a few ledgers.
    let last = *times[&2].iter().max().unwrap();
    let early = times[&1].iter().filter(|time| **time <= last).count();
    assert!(early < 100, "{early} of {} were not held back", times[&1].len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_whose_ensembles_are_not_spread_are_counted() {
    let names = Names::new(4).await;
    let layout = names.layout().await;
    // Bookies 0 to 2 are in one rack.
    for (ledger, ensemble) in [[0, 1, 2], [0, 1, 3], [2, 1, 0], [3, 1, 2]].into_iter().enumerate() {
        Names::ledger(&layout, ledger as i64, ensemble).await;
    }
    let table = "10.0.0.0 /r/one\n10.0.0.1 /r/one\n10.0.0.2 /r/one\n10.0.0.3 /r/two\n";
    let client = Client::builder()
        .layout(names.layout().await)
        .placement(RackAware::new(SeededRandom::new(1)))
        .network_resolver(TableResolver::parse(table).unwrap())
        .connect()
        .await
        .unwrap();
    let mut config = config("auditor", Duration::from_secs(604_800));
    config.checks.interval = None;
    config.checks.placement_interval = Some(Duration::from_secs(3600));
    let all = vec![start(client, config).await];
    let report = until(&all, "placement is checked", |report| report.placement.ended > 0).await;
    let placement = &report.placement;
    assert_eq!((placement.judged, placement.badly_placed), (4, 2), "{report:#?}");
    let named: BTreeSet<i64> = placement.problems.iter().map(|problem| problem.ledger).collect();
    assert_eq!(named, BTreeSet::from([0, 2]));
    assert_eq!(placement.problems[0].why, "its write sets should be on 2 racks, and one is on 1");
    assert_eq!(report.marked, 0);
    stop(all).await;
    let settings = layout.repair_settings();
    assert!(settings.check_ended(PeriodicCheck::Placement).await.unwrap().is_some());
    assert_eq!(settings.check_ended(PeriodicCheck::AllLedgers).await.unwrap(), None);
}
