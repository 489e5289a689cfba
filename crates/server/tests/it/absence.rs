//! A bookie that lost entries, and ledgers that are gone or should not be here, against a metadata store in memory:
//! IB17, IB27, IB28, X18 in process, R10, R12, R33, R42.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::frames::{KEY, exchange, hello};
use crate::common::whole::{
    Running, cluster, config_that_flushes, id, metadata, open, refused, start, start_over,
};
use bindery_io::{Disk, RealDisk};
use bindery_metadata::layout::LedgerError;
use bindery_metadata::memory::Fault;
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::maintenance::surplus::SurplusConfig;
use bindery_types::{BookieId, EntryId, LedgerState};
use bindery_wire::{ErrorCode, v2};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

fn config(dir: &Path) -> BookieConfig {
    BookieConfig { disks: DiskLimits::default(), ..config_that_flushes(dir) }
}

fn lossy(dir: &Path) -> BookieConfig {
    BookieConfig { accept_lost_directories: true, ..config(dir) }
}

fn closed(last: i64) -> LedgerState {
    LedgerState::Closed { last_entry: EntryId::new(last), length_bytes: 5 * (last as u64 + 1) }
}

impl Running {
    async fn put(&self, ledger: i64, bookie: &str, state: LedgerState) {
        let ledgers = self.layout.ledgers();
        let metadata = metadata(bookie, state);
        match ledgers.get(id(ledger)).await {
            Ok(stored) => ledgers.update(id(ledger), &metadata, stored.version).await.map(|_| ()).unwrap(),
            Err(_) => ledgers.create(id(ledger), &metadata).await.map(|_| ()).unwrap(),
        }
    }

    async fn recover(&self, ledger: i64, entry: i64) -> ErrorCode {
        self.add_as(v2::Flags::RECOVERY_ADD, ledger, entry).await
    }
}

fn wipe(dir: &Path) {
    for part in ["journal", "ledgers"] {
        std::fs::remove_dir_all(dir.join(part)).unwrap();
    }
}

/// X18: the data directory is wiped, identity and cookie are kept. The start is refused; with the operator's word
/// everything that may have been lost is unknown, writers of those ledgers wait for metadata, and a ledger is sound
/// again when it was copied back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x18_r12_bk_2612_wiped_disks_deny_nothing() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    for (ledger, bookie_id, state) in [
        (1, "bookie-0", LedgerState::Open),
        (2, "bookie-0", closed(1)),
        (3, "bookie-1", LedgerState::Open),
        (4, "bookie-0", LedgerState::InRecovery),
    ] {
        bookie.put(ledger, bookie_id, state).await;
    }
    for (ledger, entry) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        assert_eq!(bookie.add(ledger, entry).await, ErrorCode::Ok);
    }
    assert_eq!(bookie.read(1, 7).await, ErrorCode::NoEntry);
    bookie.stop().await;
    wipe(dir.path());

    let why = refused(config(dir.path()), &cluster).await;
    assert!(why.contains("dataIntegrityStampMissingCookies"), "{why}");
    let bookie = start(lossy(dir.path()), &cluster).await;
    for round in 0..2 {
        for (ledger, entry) in [(1, 0), (1, 7), (1, -1), (2, 0), (2, -1), (4, 0)] {
            assert_eq!(
                bookie.read(ledger, entry).await,
                ErrorCode::Io,
                "unknown, round {round}: {ledger}:{entry}"
            );
        }
        assert_eq!(bookie.read(3, 0).await, ErrorCode::NoLedger, "never here");
        // IB28.
        assert_eq!(bookie.add(1, 2 + round).await, ErrorCode::Ok, "open, and named last");
        assert_eq!(bookie.read(1, 2 + round).await, ErrorCode::Ok);
        assert_eq!(bookie.add(2, 2).await, ErrorCode::Fenced, "closed");
        assert_eq!(bookie.add(4, 0).await, ErrorCode::Fenced, "in recovery");
        assert_eq!(bookie.add(3, 0).await, ErrorCode::Io, "open on others");
        assert_eq!(bookie.add(0, 0).await, ErrorCode::Fenced, "deleted");
    }
    bookie.store.disconnect();
    assert_eq!(bookie.add(3, 0).await, ErrorCode::Io, "metadata cannot be asked");
    bookie.store.reconnect();
    // A ledger that did not exist when the disks were new: metadata is not asked.
    assert_eq!(bookie.add(100, 0).await, ErrorCode::Ok);
    bookie.collect("").await;
    let limbo = bookie.json("/api/v1/bookie/limbo").await;
    assert_eq!(limbo["count"], 3, "{limbo}");
    bookie.stop().await;

    // It outlives restarts, and needs no word of the operator any more.
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!(bookie.read(2, 0).await, ErrorCode::Io);
    assert_eq!(bookie.add(2, 2).await, ErrorCode::Fenced);
    assert_eq!(bookie.recover(2, 0).await, ErrorCode::Ok);
    bookie.collect("").await;
    let limbo = bookie.json("/api/v1/bookie/limbo").await;
    let two = limbo["ledgers"].as_array().unwrap().iter().find(|l| l["ledgerId"] == 2).unwrap();
    assert_eq!((&two["firstMissing"], &two["missing"]), (&1.into(), &1.into()), "{limbo}");
    assert_eq!((bookie.read(2, 0).await, bookie.read(2, 1).await), (ErrorCode::Ok, ErrorCode::Io));
    assert_eq!(bookie.recover(2, 1).await, ErrorCode::Ok);
    bookie.collect("").await;
    assert_eq!(bookie.json("/api/v1/bookie/limbo").await["count"], 2);
    assert_eq!((bookie.read(2, 1).await, bookie.read(2, 2).await), (ErrorCode::Ok, ErrorCode::NoEntry));
    bookie.stop().await;
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!((bookie.read(2, 2).await, bookie.read(1, 0).await), (ErrorCode::NoEntry, ErrorCode::Io));
    bookie.stop().await;
}

/// R10: the cookie was removed as well, so the bookie starts as new at its old address. Recovery closed the ledger
/// meanwhile; its writer is not acknowledged, and what was lost is not denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_bk_4812_a_bookie_created_anew_under_its_id_takes_no_late_writer() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    bookie.put(1, "bookie-0", LedgerState::Open).await;
    assert_eq!(bookie.add(1, 0).await, ErrorCode::Ok);
    let (layout, me) = (bookie.layout.clone(), BookieId::new("bookie-0").unwrap());
    bookie.stop().await;
    wipe(dir.path());
    layout.cookies().delete(&me, None).await.unwrap();
    let bookie = start(config(dir.path()), &cluster).await;
    bookie.put(1, "bookie-0", closed(0)).await;
    assert_eq!(bookie.add(1, 1).await, ErrorCode::Fenced, "the writer of a closed ledger");
    assert_eq!((bookie.read(1, 0).await, bookie.read(1, -1).await), (ErrorCode::Io, ErrorCode::Io));
    bookie.stop().await;
}

/// The metadata store fails at each write of the start in turn. The drain ends before the cookie is made, so the bookie takes writes after the
/// next start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_bookie_under_the_id_of_one_that_was_emptied_takes_writes_wherever_its_start_is_cut() {
    for write in 0..5 {
        let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
        let (layout, me) = (open(&cluster).await, BookieId::new("bookie-0").unwrap());
        layout.draining().begin(&me, "new disks").await.unwrap();
        let store = Arc::new(cluster.open());
        store.inject_at(write, Fault::LossBeforeApply);
        let disk = Arc::new(RealDisk::new());
        match start_over(disk, config(dir.path()), &cluster, store.clone(), store).await {
            Ok(running) => running.stop().await,
            Err(_) => {
                let has_cookie = layout.cookies().get(&me).await.unwrap().is_some();
                let is_emptied = layout.draining().list().await.unwrap().contains(&me);
                assert!(!(has_cookie && is_emptied), "cut at write {write}");
            }
        }
        // A start that is cut in between leaves stamped directories without a cookie.
        if layout.cookies().get(&me).await.unwrap().is_none() {
            wipe(dir.path());
        }
        let running = start(config(dir.path()), &cluster).await;
        assert!(layout.draining().list().await.unwrap().is_empty(), "cut at write {write}");
        running.stop().await;
    }
}

/// An add that waits for a check of metadata when the bookie is told to stop gets its answer: the reader of metadata
/// goes on for as long as connections are served. The store does not answer, so it is a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_waits_for_metadata_is_answered_by_a_stop() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    bookie.put(1, "bookie-0", LedgerState::Open).await;
    assert_eq!(bookie.add(1, 0).await, ErrorCode::Ok);
    bookie.stop().await;
    wipe(dir.path());
    let bookie = start(lossy(dir.path()), &cluster).await;
    bookie.store.hang();
    let late = hello(1, 1);
    let mut socket = TcpStream::connect(bookie.address).await.unwrap();
    let answer = async {
        exchange(&mut socket, v2::Request::Add(v2::Add::new(v2::Flags::NONE, KEY, &late).unwrap())).await
    };
    let stop = async {
        while bookie.metric("bindery_parked_adds").await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bookie.stop.set();
    };
    let (answer, ()) =
        tokio::time::timeout(crate::common::PATIENCE, async { tokio::join!(answer, stop) }).await.unwrap();
    assert_ne!(answer.code(), ErrorCode::Ok, "{answer:?}");
    bookie.task.await.unwrap();
}

/// R42: data, and no cookie in metadata.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r42_bk_2305_data_without_a_cookie_in_metadata_does_not_start() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!(bookie.add(1, 0).await, ErrorCode::Ok);
    let (layout, me) = (bookie.layout.clone(), BookieId::new("bookie-0").unwrap());
    bookie.stop().await;
    layout.cookies().delete(&me, None).await.unwrap();
    for config in [config(dir.path()), lossy(dir.path())] {
        let why = refused(config, &cluster).await;
        assert!(why.contains("no cookie"), "{why}");
    }
}

/// IB17, R33: a ledger that should not be here goes only when nobody replicates it and nothing was written to it since
/// the round before; a recovery add brings it back, into limbo, because earlier copies are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r33_bk_4668_a_surplus_ledger_goes_without_harm_to_a_repair() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let never = SurplusConfig { interval: Duration::ZERO, ..SurplusConfig::default() };
    let bookie = start(BookieConfig { surplus: never, ..config(dir.path()) }, &cluster).await;
    for ledger in 1..4 {
        bookie.put(ledger, "bookie-0", LedgerState::Open).await;
        assert_eq!(bookie.add(ledger, 0).await, ErrorCode::Ok);
    }
    // A removed ledger is remembered for as long as a log has some of its entries.
    bookie.flushed(3).await;
    bookie.put(1, "bookie-1", closed(0)).await;
    bookie.put(2, "bookie-1", LedgerState::InRecovery).await;
    let surplus = r#"{"forceSurplus":true}"#;
    bookie.collect(surplus).await;
    assert_eq!(bookie.read(1, 0).await, ErrorCode::Ok, "written to a moment ago: it may be a repair");
    // A repair goes on: the round that finds the ledger changed again leaves it.
    assert_eq!(bookie.recover(1, 1).await, ErrorCode::Ok);
    bookie.collect(surplus).await;
    assert_eq!(bookie.read(1, 1).await, ErrorCode::Ok);
    // Unchanged, but another worker holds the lock.
    let (locks, other) = (bookie.layout.replication_locks(), BookieId::new("worker").unwrap());
    let lock = locks.try_lock(id(1), &other).await.unwrap().unwrap();
    bookie.collect(surplus).await;
    assert_eq!(bookie.read(1, 1).await, ErrorCode::Ok);
    locks.unlock(lock).await.unwrap();
    let before = bookie.layout.ledgers().get(id(1)).await.unwrap();
    bookie.collect(surplus).await;
    assert_eq!(
        (bookie.read(1, 0).await, bookie.read(1, 1).await),
        (ErrorCode::NoLedger, ErrorCode::NoLedger)
    );
    // A worker that lost its lock unnoticed cannot name this bookie by what it read before.
    let late = bookie.layout.ledgers().update(id(1), &before.metadata, before.version).await;
    assert!(matches!(late, Err(LedgerError::Changed(_))), "{late:?}");
    assert_eq!(bookie.layout.ledgers().get(id(1)).await.unwrap().metadata, before.metadata);
    assert_eq!((bookie.read(2, 0).await, bookie.read(3, 0).await), (ErrorCode::Ok, ErrorCode::Ok));
    assert!(locks.try_lock(id(1), &other).await.unwrap().is_some(), "the lock was given back");
    assert_eq!(bookie.json("/api/v1/bookie/gc_details").await[0]["bindery"]["surplusRemoved"], 1);

    assert_eq!(bookie.add(1, 2).await, ErrorCode::Fenced, "a late writer of a closed ledger");
    assert_eq!(bookie.recover(1, 1).await, ErrorCode::Ok, "a repair chose this bookie again");
    assert_eq!(bookie.read(1, 1).await, ErrorCode::Ok);
    assert_eq!((bookie.read(1, 0).await, bookie.read(1, -1).await), (ErrorCode::Io, ErrorCode::Io));
    bookie.stop().await;
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!((bookie.read(1, 1).await, bookie.read(1, 0).await), (ErrorCode::Ok, ErrorCode::Io));
    bookie.stop().await;
}

/// IB17: a ledger that is deleted, and created again under the same id by a writer with another password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_created_again_under_its_id_is_taken_when_metadata_says_so() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    for ledger in [1, 2] {
        bookie.put(ledger, "bookie-0", LedgerState::Open).await;
        assert_eq!(bookie.add(ledger, 0).await, ErrorCode::Ok);
    }
    // A removed ledger that was never fenced is remembered for as long as a log has some of its entries (decision 0009).
    bookie.flushed(2).await;
    bookie.layout.ledgers().delete(id(1), None).await.unwrap();
    bookie.collect("").await;
    assert_eq!(bookie.read(1, 0).await, ErrorCode::NoLedger);
    assert_eq!((bookie.add(1, 1).await, bookie.recover(1, 1).await), (ErrorCode::Fenced, ErrorCode::Fenced));
    // The verdict of a moment ago is kept for a second.
    tokio::time::sleep(bindery_server::metadata_check::VERDICT_TTL).await;
    bookie.put(1, "bookie-0", LedgerState::Open).await;
    assert_eq!(bookie.add(1, 1).await, ErrorCode::Ok);
    assert_eq!((bookie.read(1, 1).await, bookie.read(1, 0).await), (ErrorCode::Ok, ErrorCode::NoEntry));
    bookie.stop().await;
}

/// One ledger with a very high id that was deleted before metadata was seen to list it: nothing tells it from one that a copy of metadata
/// lacks. It stops no other, and a waiver lets it go at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_ledger_above_all_ids_stops_no_other_and_goes_by_a_waiver() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    for ledger in [1, 2, 3, 1 << 50] {
        bookie.put(ledger, "bookie-0", LedgerState::Open).await;
        assert_eq!(bookie.add(ledger, 0).await, ErrorCode::Ok);
    }
    for ledger in [2, 1 << 50] {
        bookie.layout.ledgers().delete(id(ledger), None).await.unwrap();
    }
    bookie.collect("").await;
    let details = bookie.json("/api/v1/bookie/gc_details").await[0]["bindery"].take();
    assert!(details["stoppedBecause"].is_null() && details["unprovenLedgers"] == 1, "{details}");
    assert_eq!(
        (bookie.read(2, 0).await, bookie.read(1 << 50, 0).await),
        (ErrorCode::NoLedger, ErrorCode::Ok)
    );
    bookie.collect(r#"{"waiveChecks":true}"#).await;
    assert_eq!(bookie.read(1 << 50, 0).await, ErrorCode::NoLedger);
    bookie.stop().await;
    let bookie = start(config(dir.path()), &cluster).await;
    bookie.layout.ledgers().delete(id(1), None).await.unwrap();
    bookie.collect("").await;
    assert_eq!((bookie.read(1, 0).await, bookie.read(3, 0).await), (ErrorCode::NoLedger, ErrorCode::Ok));
    bookie.stop().await;
}

/// J13: the journal is gone below the marks. The start is refused; with the operator's word all ledgers that it may
/// have concerned are in limbo, for good until they are whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accepted_loss_of_the_journal_denies_nothing() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config(dir.path()), &cluster).await;
    for (ledger, state) in [(1, LedgerState::Open), (2, closed(0)), (3, closed(1))] {
        bookie.put(ledger, "bookie-0", state).await;
        assert_eq!(bookie.add(ledger, 0).await, ErrorCode::Ok);
    }
    bookie.stop().await;
    for file in std::fs::read_dir(dir.path().join("journal/current")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "bjl") {
            RealDisk::new().remove(&path).unwrap();
        }
    }
    let why = refused(config(dir.path()), &cluster).await;
    assert!(why.contains("are gone") && why.contains("--accept-journal-damage"), "{why}");
    let accepting = BookieConfig { accept_journal_damage: true, ..config(dir.path()) };
    let bookie = start(accepting, &cluster).await;
    bookie.collect("").await;
    assert_eq!((bookie.read(1, 0).await, bookie.read(1, 1).await), (ErrorCode::Ok, ErrorCode::Io));
    assert_eq!((bookie.read(3, 0).await, bookie.read(3, 1).await), (ErrorCode::Ok, ErrorCode::Io));
    assert_eq!(
        (bookie.read(2, 0).await, bookie.read(2, 1).await),
        (ErrorCode::Ok, ErrorCode::NoEntry),
        "whole"
    );
    bookie.stop().await;
    let bookie = start(config(dir.path()), &cluster).await;
    assert_eq!((bookie.read(1, 1).await, bookie.read(2, 1).await), (ErrorCode::Io, ErrorCode::NoEntry));
    bookie.stop().await;
}
