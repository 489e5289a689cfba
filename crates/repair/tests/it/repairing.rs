use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::repair::with_member;
use bindery_client::{Client, EntryId, LedgerId, LedgerState, OpenMode};
use bindery_io::{Clock as _, SystemClock};
use bindery_metadata::memory::{Kind, MemoryCluster};
use bindery_metadata::store::{CreateMode, MetadataStore as _};
use bindery_metadata::{Layout, LedgerLayout, layout};
use bindery_repair::core::audit::audit;
use bindery_repair::{Repair, RepairConfig, RepairReport, Targets, mark_ledgers_of, repair_ledgers};
use tokio::time::Instant;

use super::cluster::{Cluster, append, assert_whole, entry, id, sealed, writer};

/// Far above anything that must happen.
pub const HANG: Duration = Duration::from_secs(60);

pub fn config(name: &str, delay: Duration) -> RepairConfig {
    let mut config = RepairConfig::new(id(name), Targets::Own(id(name)));
    (config.auditor.delay, config.auditor.settle) = (delay, Duration::ZERO);
    config.open_grace = Duration::from_millis(500);
    config.look_interval = Duration::from_millis(100);
    // What is marked here is what the test marked, or lost.
    config.checks.interval = None;
    config
}

/// Auditor and worker of each of these bookies.
pub async fn start_all(cluster: &Cluster, indexes: std::ops::Range<usize>, delay: Duration) -> Vec<Repair> {
    let mut all = Vec::new();
    for index in indexes {
        let client = cluster.client().await;
        let config = config(&format!("b{index}"), delay);
        all.push(Repair::start(config, client, cluster.own(index), Arc::new(SystemClock::new())));
    }
    all
}

pub fn reports(all: &[Repair]) -> Vec<RepairReport> {
    all.iter().map(|repair| repair.handle().report()).collect()
}

pub async fn until(all: &[Repair], what: &str, is_it: impl AsyncFn(&[RepairReport]) -> bool) {
    let began = Instant::now();
    while !is_it(&reports(all)).await {
        assert!(began.elapsed() < HANG, "{what}: {:#?}", reports(all));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Nothing is marked, and at least `repaired` ledgers were made whole.
pub async fn until_repaired(cluster: &Cluster, all: &[Repair], repaired: u64) {
    let marks = cluster.layout().await.under_replication();
    until(all, "all is repaired", async |reports: &[RepairReport]| {
        // One that was marked again meanwhile was found whole at its last look.
        let count: u64 = reports.iter().map(|report| report.repaired + report.found_whole).sum();
        count >= repaired && marks.after(None, 1).await.unwrap().is_empty()
    })
    .await;
}

pub async fn stop_all(all: Vec<Repair>) {
    for repair in all {
        repair.stop().await;
    }
}

/// Entries that the ledgers had on a bookie.
pub async fn entries_on(client: &Client, ledgers: &[LedgerId], bookie: &str) -> (u64, u64) {
    let (mut entries, mut of) = (0, 0);
    for ledger in ledgers {
        let metadata = client.metadata(*ledger).await.unwrap().metadata;
        let found = audit(&metadata, |known| *known != id(bookie));
        of += u64::from(!found.lacks.is_empty());
        for lack in found.lacks {
            let all = (lack.first.get()..=lack.last.get()).filter_map(EntryId::new);
            entries += all.filter(|at| metadata.quorum.is_in_write_set(*at, lack.position)).count() as u64;
        }
    }
    (entries, of)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_lost_bookie_are_brought_back_and_no_more_than_those() {
    let mut cluster = Cluster::start(5).await;
    let client = cluster.client().await;
    let whole = sealed(&client, 12, 60, (3, 3, 2)).await;
    let striped = sealed(&client, 12, 61, (3, 2, 2)).await;
    let ids: Vec<LedgerId> = whole.iter().chain(&striped).copied().collect();
    let (lost_entries, lost_ledgers) = entries_on(&client, &ids, "b0").await;
    assert!(lost_ledgers > 3, "{lost_ledgers}");
    let all = start_all(&cluster, 1..5, Duration::ZERO).await;
    until(&all, "there is one auditor", async |reports: &[RepairReport]| {
        reports.iter().filter(|report| report.is_auditor && report.scans > 0).count() == 1
    })
    .await;
    cluster.lose_bookie(0).await;
    until_repaired(&cluster, &all, lost_ledgers).await;
    for ledger in &whole {
        assert_whole(&client, *ledger, 60, "b0").await;
    }
    for ledger in &striped {
        assert_whole(&client, *ledger, 61, "b0").await;
    }
    let copied: u64 = reports(&all).iter().map(|report| report.entries).sum();
    assert_eq!(copied, lost_entries, "{:#?}", reports(&all));
    stop_all(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_auditors_death_elects_another_and_a_bookie_that_is_back_in_time_costs_nothing() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 6, 20, (3, 3, 2)).await;
    let mut all = start_all(&cluster, 1..4, Duration::from_secs(600)).await;
    until(&all, "there is an auditor", async |reports: &[RepairReport]| {
        reports.iter().any(|report| report.is_auditor && report.scans > 0)
    })
    .await;
    let auditor = all.iter().position(|repair| repair.handle().report().is_auditor).unwrap();
    all.remove(auditor).stop().await;
    until(&all, "there is another auditor", async |reports: &[RepairReport]| {
        reports.iter().any(|report| report.is_auditor && report.scans > 0)
    })
    .await;
    cluster.stop_bookie(0).await;
    until(&all, "b0 is missed", async |reports: &[RepairReport]| {
        reports.iter().any(|report| report.away.keys().eq(["b0"]))
    })
    .await;
    cluster.start_bookie(0).await;
    until(&all, "b0 is back", async |reports: &[RepairReport]| {
        reports.iter().all(|report| report.away.is_empty())
    })
    .await;
    let marks = cluster.layout().await.under_replication();
    assert_eq!(marks.after(None, 9).await.unwrap(), []);
    assert!(reports(&all).iter().all(|report| report.marked == 0 && report.entries == 0));
    for ledger in ids {
        assert_whole(&client, ledger, 20, "nobody").await;
    }
    stop_all(all).await;
    cluster.stop().await;
}

/// Where the store has no transactions, the number of a vote may have been drawn before that of the auditor's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_auditor_gives_way_to_a_lower_vote_that_comes_late() {
    let metadata = MemoryCluster::of(Kind::OfOxia);
    let (mut all, late) = (Vec::new(), metadata.open());
    layout::init_cluster(&late, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
    for name in ["b0", "b1"] {
        let layout = Layout::open(Arc::new(metadata.open()), "/ledgers", None).await.unwrap();
        let client = Client::builder().layout(layout).connect().await.unwrap();
        let config = config(name, Duration::from_secs(600));
        all.push(Repair::start(config, client, None, Arc::new(SystemClock::new())));
    }
    let auditors = |count| {
        async move |reports: &[RepairReport]| {
            reports.iter().filter(|report| report.is_auditor && report.scans > 0).count() == count
        }
    };
    until(&all, "there is one auditor", auditors(1)).await;
    // Names of this kind of store begin at 1.
    let lowest = "/ledgers/underreplication/auditorelection/V_0000000000";
    late.create(lowest, "".into(), CreateMode::Ephemeral).await.unwrap();
    until(&all, "the auditor gives way", auditors(0)).await;
    late.close().await.unwrap();
    until(&all, "there is one auditor again", auditors(1)).await;
    stop_all(all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_auditor_looks_through_all_ledgers_once() {
    let mut cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    sealed(&client, 3, 2, (2, 2, 2)).await;
    let all = start_all(&cluster, 0..1, Duration::from_secs(600)).await;
    until(&all, "all was looked at", async |reports: &[RepairReport]| reports[0].scans > 0).await;
    let settings = cluster.layout().await.repair_settings();
    assert!(settings.watch_delay().await.unwrap().0.is_some(), "it wrote the delay, for BookKeeper's tools");
    // Each is seen at the beginning of a round, so the one before has ended.
    for (is_away, what) in [(true, "b1 is missed"), (false, "b1 is back")] {
        match is_away {
            true => cluster.stop_bookie(1).await,
            false => cluster.start_bookie(1).await,
        }
        until(&all, what, async |reports: &[RepairReport]| reports[0].away.contains_key("b1") == is_away)
            .await;
    }
    assert_eq!(reports(&all)[0].scans, 1);
    stop_all(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_vote_and_do_nothing_hold_nothing_up() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 30, 2, (3, 3, 2)).await;
    let (_, lost) = entries_on(&client, &ids, "b0").await;
    cluster.lose_bookie(0).await;
    // Most ledgers are in their shares.
    let mut idle = Vec::new();
    for name in ["java:1", "java:2", "java:3", "java:4", "java:5"] {
        let layout = cluster.layout().await;
        layout.auditor_votes().vote(&id(name)).await.unwrap();
        idle.push(layout);
    }
    let all = start_all(&cluster, 1..4, Duration::from_secs(3600)).await;
    mark_ledgers_of(&client, &SystemClock::new(), &BTreeSet::from([id("b0")]), false).await.unwrap();
    until_repaired(&cluster, &all, lost).await;
    assert!(reports(&all).iter().all(|report| !report.is_auditor), "the first vote is another's");
    for ledger in ids {
        assert_whole(&client, ledger, 2, "b0").await;
    }
    stop_all(all).await;
    drop(idle);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_spare_bookie_the_reason_is_said_and_a_new_one_ends_it() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 4, 20, (3, 3, 2)).await;
    let single = sealed(&client, 6, 10, (1, 1, 1)).await;
    let (_, single_lost) = entries_on(&client, &single, "b0").await;
    let mut all = start_all(&cluster, 1..3, Duration::ZERO).await;
    cluster.lose_bookie(0).await;
    until(&all, "ledgers are stuck", async |reports: &[RepairReport]| {
        reports.iter().all(|report| report.stuck_count >= 1)
            && reports.iter().flat_map(|report| &report.stuck).any(|stuck| stuck.why.contains("add one"))
    })
    .await;
    cluster.start_bookie(3).await;
    all.extend(start_all(&cluster, 3..4, Duration::ZERO).await);
    until(&all, "they are repaired", async |_: &[RepairReport]| entries_on(&client, &ids, "b0").await.1 == 0)
        .await;
    for ledger in ids {
        assert_whole(&client, ledger, 20, "b0").await;
    }
    // Those without another copy stay marked, and say so.
    let marks = cluster.layout().await.under_replication();
    assert_eq!(marks.after(None, 99).await.unwrap().len() as u64, single_lost);
    if single_lost > 0 {
        let report = reports(&all).into_iter().find(|report| !report.stuck.is_empty()).unwrap();
        assert!(report.stuck[0].why.contains("no copy left"), "{report:#?}");
    }
    stop_all(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_ledger_is_closed_only_when_its_writer_is_silent() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    // Nobody can take the place of the lost bookie, so its writer goes on without it as long as an ack quorum is there.
    let busy = writer(&client, (3, 3, 2)).await;
    let idle = writer(&client, (3, 3, 2)).await;
    append(&busy, 0..10).await;
    append(&idle, 0..10).await;
    let (busy_id, idle_id) = (busy.id(), idle.id());
    cluster.lose_bookie(0).await;
    let writing = tokio::spawn(async move {
        let mut next = 10;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(8) {
            append(&busy, next..next + 1).await;
            next += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        busy
    });
    let all = start_all(&cluster, 1..3, Duration::ZERO).await;
    until(&all, "the idle one is closed", async |reports: &[RepairReport]| {
        reports.iter().map(|report| report.closed).sum::<u64>() == 1
    })
    .await;
    let state = |ledger| async move { client.metadata(ledger).await.unwrap().metadata.state };
    assert!(matches!(state.clone()(idle_id).await, LedgerState::Closed { .. }));
    let busy = writing.await.unwrap();
    assert_eq!(state(busy_id).await, LedgerState::Open, "{:#?}", reports(&all));
    drop((busy, idle));
    stop_all(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lacks_entries_gets_them_and_a_mark_of_a_whole_ledger_goes() {
    let cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 3, 40, (3, 3, 2)).await;
    let layout = cluster.layout().await;
    // One ledger that names a bookie which has nothing of it, as a repair would that changed metadata first.
    let info = client.metadata(ids[0]).await.unwrap();
    let members = &info.metadata.segments()[0].ensemble;
    let spare =
        (0..4).map(|index| id(&format!("b{index}"))).find(|bookie| !members.contains(bookie)).unwrap();
    let changed = with_member(&info.metadata, EntryId::FIRST, 1, &spare).unwrap();
    layout.ledgers().update(ids[0], &changed, info.version).await.unwrap();
    let marks = layout.under_replication();
    for ledger in &ids[..2] {
        marks.mark(*ledger, std::slice::from_ref(&spare)).await.unwrap();
    }
    let deleted = LedgerId::new(77_777).unwrap();
    marks.mark(deleted, std::slice::from_ref(&spare)).await.unwrap();
    let all = start_all(&cluster, 0..1, Duration::from_secs(600)).await;
    until(&all, "nothing is marked", async |_: &[RepairReport]| {
        marks.after(None, 1).await.unwrap().is_empty()
    })
    .await;
    let report = all[0].handle().report();
    assert_eq!((report.repaired, report.found_whole, report.entries), (1, 1, 40), "{report:#?}");
    for ledger in ids {
        assert_whole(&client, ledger, 40, "nobody").await;
    }
    stop_all(all).await;
    cluster.stop().await;
}

/// Writers mark ledgers while a bookie restarts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_bookie_that_restarts_are_left_alone_whatever_is_marked() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 6, 20, (3, 3, 2)).await;
    let (_, named) = entries_on(&client, &ids, "b0").await;
    assert!(named > 0);
    let all = start_all(&cluster, 1..4, Duration::from_secs(600)).await;
    until(&all, "workers look", async |reports: &[RepairReport]| {
        reports.iter().any(|report| report.is_auditor)
    })
    .await;
    cluster.stop_bookie(0).await;
    let marks = cluster.layout().await.under_replication();
    for ledger in &ids {
        marks.mark(*ledger, &[id("b0")]).await.unwrap();
    }
    until(&all, "they wait", async |reports: &[RepairReport]| {
        let waits = |report: &RepairReport| {
            report.stuck.iter().any(|stuck| stuck.why.contains("to come back before it is replaced"))
        };
        reports.iter().any(waits)
    })
    .await;
    assert!(reports(&all).iter().all(|report| report.entries == 0), "{:#?}", reports(&all));
    cluster.start_bookie(0).await;
    until(&all, "nothing is marked", async |_: &[RepairReport]| {
        marks.after(None, 1).await.unwrap().is_empty()
    })
    .await;
    assert!(reports(&all).iter().all(|report| report.entries == 0 && report.repaired == 0));
    // A mark that says since when is an auditor's, or an operator's.
    cluster.stop_bookie(0).await;
    for ledger in &ids {
        marks.mark_since(*ledger, &[id("b0")], Some(SystemClock::new().wall_ms())).await.unwrap();
    }
    until_repaired(&cluster, &all, named).await;
    for ledger in ids {
        assert_whole(&client, ledger, 20, "b0").await;
    }
    stop_all(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_disabled_nothing_is_marked_or_copied() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 6, 20, (3, 3, 2)).await;
    let settings = cluster.layout().await.repair_settings();
    assert!(settings.disable().await.unwrap());
    let all = start_all(&cluster, 1..4, Duration::ZERO).await;
    cluster.lose_bookie(0).await;
    until(&all, "it is known", async |reports: &[RepairReport]| {
        reports.iter().all(|report| report.is_disabled) && reports.iter().any(|report| report.is_auditor)
    })
    .await;
    let marks = cluster.layout().await.under_replication();
    marks.mark(ids[0], &[id("b0")]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(marks.after(None, 9).await.unwrap(), [ids[0]]);
    assert!(reports(&all).iter().all(|report| report.entries == 0 && report.marked == 0));
    let (_, lost) = entries_on(&client, &ids, "b0").await;
    assert!(settings.enable().await.unwrap());
    until_repaired(&cluster, &all, lost).await;
    for ledger in ids {
        assert_whole(&client, ledger, 20, "b0").await;
    }
    stop_all(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_of_a_bookie_are_repaired_on_demand_by_who_is_no_bookie() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 8, 30, (3, 2, 2)).await;
    let single = sealed(&client, 8, 5, (1, 1, 1)).await;
    cluster.lose_bookie(1).await;
    let lost = BTreeSet::from([id("b1")]);
    let clock = Arc::new(SystemClock::new());
    let planned = mark_ledgers_of(&client, &*clock, &lost, true).await.unwrap();
    let marks = cluster.layout().await.under_replication();
    assert_eq!(marks.after(None, 99).await.unwrap(), [], "a dry run marks nothing");
    let marked = mark_ledgers_of(&client, &*clock, &lost, false).await.unwrap();
    assert_eq!(marked, planned);
    assert!(marked.lacking.iter().all(|(_, bookies)| *bookies == [id("b1")]));
    let wanted: BTreeSet<LedgerId> = marked.lacking.iter().map(|(ledger, _)| *ledger).collect();
    let mut config = RepairConfig::new(id("repair-1"), Targets::Any);
    config.look_interval = Duration::from_millis(100);
    let repairer = cluster.client().await;
    let left = repair_ledgers(config, repairer, clock, &wanted, 2, |_| {}).await.unwrap();
    let (_, single_lost) = entries_on(&client, &single, "b1").await;
    assert_eq!(left.len() as u64, single_lost, "{left:#?}");
    assert!(left.iter().all(|stuck| stuck.why.contains("no copy left")), "{left:#?}");
    for ledger in ids {
        assert_whole(&client, ledger, 30, "b1").await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_of_an_open_ledger_are_repaired_and_its_writer_goes_on() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let writer = writer(&client, (3, 3, 2)).await;
    append(&writer, 0..25).await;
    let metadata = client.metadata(writer.id()).await.unwrap().metadata;
    let member: usize = metadata.segments()[0].ensemble[0].as_str()[1..].parse().unwrap();
    cluster.lose_bookie(member).await;
    // The writer takes the spare bookie, so the first segment has an end.
    append(&writer, 25..50).await;
    cluster.start_bookie(4).await;
    let mut all = Vec::new();
    for index in (0..5).filter(|index| *index != member) {
        all.extend(start_all(&cluster, index..index + 1, Duration::ZERO).await);
    }
    until_repaired(&cluster, &all, 1).await;
    append(&writer, 50..75).await;
    let ledger = writer.id();
    assert_eq!(client.metadata(ledger).await.unwrap().metadata.state, LedgerState::Open);
    writer.close().await.unwrap();
    let reader = client.open_ledger(ledger, super::cluster::PASSWORD, OpenMode::ReadOnly).await.unwrap();
    assert_eq!(reader.last_add_confirmed(), Some(entry(74)));
    assert_whole(&client, ledger, 75, &format!("b{member}")).await;
    stop_all(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_lost_its_disks_gets_back_what_it_had_while_it_serves() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let whole = sealed(&client, 5, 40, (3, 3, 2)).await;
    let striped = sealed(&client, 5, 41, (3, 2, 2)).await;
    cluster.stop_bookie(1).await;
    cluster.wipe_bookie(1);
    cluster.start_bookie_with(1, true).await;
    // None but the bookies of the ensemble is there, so nobody takes its place.
    let all = start_all(&cluster, 0..3, Duration::from_secs(600)).await;
    until_repaired(&cluster, &all, 10).await;
    // It finds by itself that it lacks nothing any more.
    let began = Instant::now();
    for (ids, entries) in [(&whole, 40), (&striped, 41)] {
        for ledger in ids {
            while client.entries_of(&id("b1"), *ledger).await.is_err() {
                assert!(began.elapsed() < HANG, "ledger {ledger} is in limbo still");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            assert_whole(&client, *ledger, entries, "nobody").await;
        }
    }
    stop_all(all).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_copies_go_past_the_journal_and_outlive_restarts() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let whole = sealed(&client, 3, 700, (3, 3, 2)).await;
    let striped = sealed(&client, 3, 1100, (3, 2, 2)).await;
    let (_, lost) = entries_on(&client, &[&whole[..], &striped[..]].concat(), "b0").await;
    let all = start_all(&cluster, 1..4, Duration::ZERO).await;
    cluster.lose_bookie(0).await;
    until_repaired(&cluster, &all, lost).await;
    let report = reports(&all);
    let (bytes, past): (Vec<u64>, Vec<u64>) =
        report.iter().map(|report| (report.bytes, report.bytes_past_journal)).unzip();
    assert_eq!(past, bytes, "none went through the journal: {report:#?}");
    assert!(bytes.iter().sum::<u64>() > 3 << 20, "{report:#?}");
    stop_all(all).await;
    for index in 1..4 {
        cluster.stop_bookie(index).await;
    }
    for index in 1..4 {
        cluster.start_bookie(index).await;
    }
    // A bookie that was down and one that lost its disks need not be told apart for long: this one gets all of its copies back.
    cluster.stop_bookie(1).await;
    cluster.wipe_bookie(1);
    cluster.start_bookie_with(1, true).await;
    let all = start_all(&cluster, 1..4, Duration::from_secs(600)).await;
    until(&all, "it is in limbo no more", async |_: &[RepairReport]| {
        for ledger in whole.iter().chain(&striped) {
            if client.entries_of(&id("b1"), *ledger).await.is_err() {
                return false;
            }
        }
        true
    })
    .await;
    let past: u64 = reports(&all).iter().map(|report| report.bytes_past_journal).sum();
    assert!(past > 3 << 20, "{:#?}", reports(&all));
    stop_all(all).await;
    for (ids, entries) in [(&whole, 700), (&striped, 1100)] {
        for ledger in ids {
            assert_whole(&client, *ledger, entries, "b0").await;
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_mark_and_a_delay_that_cannot_be_read_hold_up_no_other() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 6, 20, (3, 3, 2)).await;
    let layout = cluster.layout().await;
    let marks = layout.under_replication();
    // Of a ledger that the auditor has to mark, too.
    let bad = ids[0];
    marks.mark(bad, &[id("b0")]).await.unwrap();
    layout.store().set(&marks.path(bad), "replica: {".into(), None).await.unwrap();
    layout.repair_settings().set_delay(Duration::from_secs(3600)).await.unwrap();
    layout
        .store()
        .set("/ledgers/underreplication/lostBookieRecoveryDelay", "soon".into(), None)
        .await
        .unwrap();
    let all = start_all(&cluster, 1..4, Duration::ZERO).await;
    cluster.lose_bookie(0).await;
    let good = &ids[1..];
    until(&all, "the others are repaired", async |_: &[RepairReport]| {
        entries_on(&client, good, "b0").await.1 == 0
    })
    .await;
    for ledger in good {
        assert_whole(&client, *ledger, 20, "b0").await;
    }
    until(&all, "the bad mark is named", async |reports: &[RepairReport]| {
        reports.iter().flat_map(|report| &report.stuck).any(|stuck| stuck.why.contains("holds no mark"))
    })
    .await;
    stop_all(all).await;
    cluster.stop().await;
}

/// Writers mark without a time: that gives their own ledgers no less grace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_ledger_has_its_grace_whatever_the_mark_says() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let idle = writer(&client, (3, 3, 2)).await;
    append(&idle, 0..10).await;
    let marks = cluster.layout().await.under_replication();
    cluster.lose_bookie(0).await;
    marks.mark(idle.id(), &[id("b0")]).await.unwrap();
    let mut config = config("b1", Duration::ZERO);
    config.open_grace = Duration::from_secs(3600);
    let repair = Repair::start(config, cluster.client().await, None, Arc::new(SystemClock::new()));
    let all = [repair];
    until(&all, "it waits", async |reports: &[RepairReport]| {
        reports[0].stuck.iter().any(|stuck| stuck.why.contains("its writer has 3600s"))
    })
    .await;
    assert_eq!(client.metadata(idle.id()).await.unwrap().metadata.state, LedgerState::Open);
    drop(idle);
    stop_all(all.into()).await;
    cluster.stop().await;
}
