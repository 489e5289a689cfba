//! Bookies that are emptied while they serve.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::{Client, LedgerId, LedgerState};
use bindery_io::SystemClock;
use bindery_metadata::layout::RegistrationMode;
use bindery_repair::core::drain::holding;
use bindery_repair::{Repair, RepairConfig, Targets, mark_ledgers, repair_ledgers};
use tokio::time::Instant;

use super::cluster::{Cluster, append, assert_whole, id, sealed, writer};

/// Far above anything that must happen.
const HANG: Duration = Duration::from_secs(60);

async fn eventually(what: &str, is_it: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_it().await {
        assert!(began.elapsed() < HANG, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn mode_of(cluster: &Cluster, bookie: &str) -> Option<RegistrationMode> {
    let registered = cluster.layout().await.registration().list().await.unwrap();
    registered.iter().find(|found| found.bookie_id == id(bookie)).map(|found| found.mode)
}

/// Those of the ledgers that have copies in segments with an end on the bookie.
async fn on(client: &Client, ledgers: &[LedgerId], bookie: &str) -> BTreeSet<LedgerId> {
    let mut found = BTreeSet::new();
    for ledger in ledgers {
        let metadata = client.metadata(*ledger).await.unwrap().metadata;
        if holding(&metadata, &id(bookie), &BTreeSet::new()).is_some_and(|found| found.segments > 0) {
            found.insert(*ledger);
        }
    }
    found
}

fn config(name: &str, targets: Targets) -> RepairConfig {
    let mut config = RepairConfig::new(id(name), targets);
    config.look_interval = Duration::from_millis(100);
    // An open ledger would be closed at once, if it were taken for one that lost a bookie.
    config.open_grace = Duration::ZERO;
    config.checks.interval = None;
    config
}

async fn begin(cluster: &Cluster, bookie: &str) {
    assert!(cluster.layout().await.draining().begin(&id(bookie), "test").await.unwrap());
    eventually("it is read-only", async || {
        mode_of(cluster, bookie).await == Some(RegistrationMode::ReadOnly)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_bookie_that_is_emptied_are_replaced_while_it_is_a_source() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let mut ids = sealed(&client, 4, 30, (3, 3, 2)).await;
    ids.extend(sealed(&client, 4, 30, (3, 2, 2)).await);
    // Their only copies are on the bookie that holds them.
    ids.extend(sealed(&client, 8, 30, (1, 1, 1)).await);
    begin(&cluster, "b0").await;
    // A restart does not make it writable.
    cluster.stop_bookie(0).await;
    cluster.start_bookie(0).await;
    assert_eq!(mode_of(&cluster, "b0").await, Some(RegistrationMode::ReadOnly));

    let held = on(&client, &ids, "b0").await;
    assert!(!held.is_empty());
    mark_ledgers(&client, &SystemClock::new(), &id("b0"), &held).await.unwrap();
    let worker = config("drain-1", Targets::Any);
    let clock = Arc::new(SystemClock::new());
    let stuck = repair_ledgers(worker, cluster.client().await, clock, &held, 3, |_| {}).await.unwrap();
    assert_eq!(stuck, []);
    assert_eq!(on(&client, &ids, "b0").await, BTreeSet::new());
    // It serves still, and is not needed any more.
    cluster.lose_bookie(0).await;
    for ledger in ids {
        assert_whole(&client, ledger, 30, "b0").await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_bookies_empty_another_one_and_leave_its_writers_alone() {
    let cluster = Cluster::start(5).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 6, 20, (3, 3, 2)).await;
    let mut open = Vec::new();
    while open.is_empty() {
        let writer = writer(&client, (3, 3, 2)).await;
        append(&writer, 0..10).await;
        let ensemble = client.metadata(writer.id()).await.unwrap().metadata.segments()[0].ensemble.clone();
        match ensemble.contains(&id("b0")) {
            true => open.push(writer),
            false => drop(writer.close().await.unwrap()),
        }
    }
    begin(&cluster, "b0").await;
    let mut all = Vec::new();
    for index in 1..5 {
        let name = format!("b{index}");
        let config = config(&name, Targets::Own(id(&name)));
        all.push(Repair::start(
            config,
            cluster.client().await,
            cluster.own(index),
            Arc::new(SystemClock::new()),
        ));
    }
    let held = on(&client, &ids, "b0").await;
    let idle: BTreeSet<LedgerId> = open.iter().map(|writer| writer.id()).collect();
    let marked = held.union(&idle).copied().collect();
    mark_ledgers(&client, &SystemClock::new(), &id("b0"), &marked).await.unwrap();
    let marks = cluster.layout().await.under_replication();
    eventually("nothing is marked", async || marks.after(None, 1).await.unwrap().is_empty()).await;
    assert_eq!(on(&client, &ids, "b0").await, BTreeSet::new());
    // A writer that adds nothing keeps its ledger, and leaves the bookie with its next add.
    for writer in open {
        let ledger = writer.id();
        let segments = async || client.metadata(ledger).await.unwrap().metadata;
        assert_eq!(segments().await.state, LedgerState::Open);
        // On a busy machine its refusal may come when all entries of an append are confirmed: then the next add leaves it.
        let next = std::cell::Cell::new(10);
        eventually("its writer leaves b0", async || {
            append(&writer, next.get()..next.get() + 10).await;
            next.set(next.get() + 10);
            let metadata = segments().await;
            !metadata.segments().last().unwrap().ensemble.contains(&id("b0"))
        })
        .await;
        writer.close().await.unwrap();
        let left: BTreeSet<LedgerId> = on(&client, &[ledger], "b0").await;
        mark_ledgers(&client, &SystemClock::new(), &id("b0"), &left).await.unwrap();
        eventually("nothing is marked", async || marks.after(None, 1).await.unwrap().is_empty()).await;
        assert_whole(&client, ledger, next.get(), "b0").await;
    }
    for repair in all {
        repair.stop().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_whose_emptying_is_ended_keeps_its_copies_and_takes_writes() {
    let cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let ids = sealed(&client, 3, 20, (3, 3, 2)).await;
    begin(&cluster, "b1").await;
    let held = on(&client, &ids, "b1").await;
    mark_ledgers(&client, &SystemClock::new(), &id("b1"), &held).await.unwrap();
    assert!(cluster.layout().await.draining().end(&id("b1")).await.unwrap());
    eventually("it takes writes", async || mode_of(&cluster, "b1").await == Some(RegistrationMode::Writable))
        .await;
    let worker = config("drain-1", Targets::Any);
    let clock = Arc::new(SystemClock::new());
    let stuck = repair_ledgers(worker, cluster.client().await, clock, &held, 3, |_| {}).await.unwrap();
    assert_eq!((stuck, on(&client, &ids, "b1").await), (vec![], held));
    cluster.stop().await;
}
