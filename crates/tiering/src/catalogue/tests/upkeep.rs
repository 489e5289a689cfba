//! Snapshots, merges and cleaning: cut off anywhere, and seen by those that are behind.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::ObjectStoreExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;

use super::faulty::{Faulty, Plan, Written};
use super::shared::{Oracle, open, records};
use super::*;

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

/// So many rounds of one tierer, each an object with extents of three ledgers.
async fn rounds(catalogue: &mut Catalogue, from: u64, count: u64) {
    for number in from..from + count {
        catalogue.commit(vec![reserve(&[number])]).await.unwrap();
        let mut extents = Vec::new();
        for of in 0..3 {
            let next = catalogue.next(ledger(of)).await.unwrap().get();
            extents.push((of, next, next + 4));
        }
        catalogue.commit(vec![commit(number, &extents)]).await.unwrap();
    }
}

async fn keys(store: &Arc<dyn ObjectStore>, under: &str) -> Vec<Path> {
    let under = Path::from(format!("some/prefix/{CLUSTER}/catalogue/{under}"));
    store.list(Some(&under)).map_ok(|found| found.location).try_collect().await.unwrap()
}

/// Invariants 6 and 7: the power fails behind each request of a round with snapshot, merge and cleaning; the next process
/// finds the state of the log and goes on.
#[test]
fn upkeep_can_be_cut_off_between_any_two_requests() {
    for is_last_done in [false, true] {
        let mut cut = 0;
        loop {
            let is_whole = run(async {
                let written = Written::default();
                let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
                let calm: Arc<dyn ObjectStore> = Faulty::new(inner.clone(), written.clone(), Plan::Calm);
                let mut before = open(calm.clone(), OpenMode::Create, 1).await.unwrap();
                for from in 0..3 {
                    rounds(&mut before, from * 10, 3).await;
                    let done = before.snapshot().unwrap().run().await.unwrap();
                    assert_eq!(before.install(done).await.unwrap(), Installed::Counts);
                }
                rounds(&mut before, 50, 3).await;
                drop(before);
                let power = Faulty::new(inner.clone(), written.clone(), Plan::Calm);
                let mut cut_off = open(power.clone(), OpenMode::Write, 2).await.unwrap();
                let before = cut_off.runs().0;
                *power.plan.lock().unwrap() = Plan::Cut { left: cut, is_last_done };
                let is_whole = async {
                    cut_off.commit(vec![reserve(&[90])]).await?;
                    cut_off.maintain().await
                };
                let is_whole = is_whole.await.is_ok();
                if is_whole {
                    assert!(before > 1 && cut_off.runs().0 == 1, "{:?}", cut_off.runs());
                }
                drop(cut_off);
                let mut after = open(calm, OpenMode::Write, 3).await.unwrap();
                Oracle::of(&written).compare(&mut after).await;
                rounds(&mut after, 100, 3).await;
                after.maintain().await.unwrap();
                Oracle::of(&written).compare(&mut after).await;
                is_whole
            });
            if is_whole {
                break;
            }
            cut += 1;
        }
        assert!(cut > 15, "snapshot, merge and cleaning were cut at {cut} places");
    }
}

/// Invariant 8: a process whose next number was written, covered and deleted creates it again, and is told that this does not
/// count.
#[test]
fn a_process_that_was_away_does_not_commit_into_the_past() {
    run(async {
        let written = Written::default();
        let store: Arc<dyn ObjectStore> = Faulty::new(Arc::new(InMemory::new()), written.clone(), Plan::Calm);
        let mut away = open(store.clone(), OpenMode::Create, 1).await.unwrap();
        away.commit(vec![reserve(&[1])]).await.unwrap();
        let mut reader = open(store.clone(), OpenMode::Read, 3).await.unwrap();
        let mut busy = open(store.clone(), OpenMode::Create, 2).await.unwrap();
        rounds(&mut busy, 10, 10).await;
        busy.maintain().await.unwrap();
        assert_eq!(keys(&store, "log").await.len(), 2, "records behind the snapshot that are kept");
        let count = records(&written);
        // It looked for the end of the log before it was away.
        let refused = away.write(vec![commit(1, &[(7, 0, 9)])]).await.unwrap_err();
        assert!(matches!(refused, CatalogueError::Superseded { position: 1, .. }), "{refused}");
        assert_eq!(keys(&store, "log").await.len(), 2, "nothing is left of it");
        assert_eq!((away.position(), away.next(ledger(7)).await.unwrap()), (busy.position(), entry(0)));
        // It goes on from there.
        let outcome = away.commit(vec![commit(1, &[(7, 0, 9)])]).await.unwrap();
        assert_eq!(outcome.position.number, count as u64 + 1);
        reader.refresh().await.unwrap();
        assert_eq!(reader.next(ledger(7)).await.unwrap(), entry(10));
        Oracle::of(&written).compare(&mut reader).await;
    });
}

/// The same with a record that stays in the past: one that reads it is not led astray.
#[test]
fn a_record_in_the_past_leads_nobody_astray() {
    run(async {
        let written = Written::default();
        let store: Arc<dyn ObjectStore> = Faulty::new(Arc::new(InMemory::new()), written.clone(), Plan::Calm);
        let mut busy = open(store.clone(), OpenMode::Create, 2).await.unwrap();
        busy.commit(vec![reserve(&[1])]).await.unwrap();
        let mut away = open(store.clone(), OpenMode::Write, 3).await.unwrap();
        rounds(&mut busy, 10, 10).await;
        busy.maintain().await.unwrap();
        let stray = record(2, 77, 0, vec![commit(1, &[(7, 0, 9)])]).encode().unwrap();
        let key = Path::from(format!("some/prefix/{CLUSTER}/catalogue/log/{:020}", 2));
        store.put(&key, stray.into()).await.unwrap();
        away.refresh().await.unwrap();
        Oracle::of(&written).compare(&mut away).await;
        let outcome = away.commit(vec![reserve(&[2])]).await.unwrap();
        assert_eq!(outcome.position.number, records(&written) as u64);
        away.clean().await.unwrap();
        assert!(!keys(&store, "log").await.contains(&key), "it is cleaned away");
    });
}

/// A record in the past, and behind it records that nobody has deleted yet: whoever read through all of them does not get away with
/// being ahead of the snapshot.
#[test]
fn records_behind_one_in_the_past_do_not_make_it_count() {
    run(async {
        let written = Written::default();
        let store: Arc<dyn ObjectStore> = Faulty::new(Arc::new(InMemory::new()), written.clone(), Plan::Calm);
        let mut busy = open(store.clone(), OpenMode::Create, 2).await.unwrap();
        busy.commit(vec![reserve(&[1])]).await.unwrap();
        let mut away = open(store.clone(), OpenMode::Write, 3).await.unwrap();
        busy.commit(vec![reserve(&[2])]).await.unwrap();
        rounds(&mut busy, 10, 1).await;
        let done = busy.snapshot().unwrap().run().await.unwrap();
        busy.install(done).await.unwrap();
        rounds(&mut busy, 20, 2).await;
        assert_eq!(busy.clean().await.unwrap().records, 2);
        let stray = record(2, 77, 0, vec![commit(1, &[(7, 0, 9)])]).encode().unwrap();
        let key = Path::from(format!("some/prefix/{CLUSTER}/catalogue/log/{:020}", 2));
        store.put(&key, stray.into()).await.unwrap();
        away.refresh().await.unwrap();
        assert_eq!(away.position(), busy.position());
        assert_eq!(away.next(ledger(7)).await.unwrap(), entry(0));
        Oracle::of(&written).compare(&mut away).await;
    });
}

/// Runs that are deleted under a reader: it looks at the newer manifest and reads on.
#[test]
fn a_reader_outlives_the_runs_it_knows() {
    run(async {
        let written = Written::default();
        let store: Arc<dyn ObjectStore> = Faulty::new(Arc::new(InMemory::new()), written.clone(), Plan::Calm);
        let mut busy = open(store.clone(), OpenMode::Create, 1).await.unwrap();
        rounds(&mut busy, 0, 5).await;
        busy.maintain().await.unwrap();
        let mut reader = open(store.clone(), OpenMode::Read, 2).await.unwrap();
        let first_runs = keys(&store, "snapshots/runs").await;
        for from in 1..60 {
            rounds(&mut busy, from * 10, 3).await;
            busy.maintain().await.unwrap();
        }
        let runs = keys(&store, "snapshots/runs").await;
        assert!(first_runs.iter().all(|run| !runs.contains(run)), "{first_runs:?}");
        assert!(runs.len() < 15, "{} runs are left", runs.len());
        assert!(!reader.extents(ledger(1), entry(3), 5).await.unwrap().is_empty());
        Oracle::of(&written).compare(&mut reader).await;
        assert!(keys(&store, "log").await.len() < 20);
    });
}

/// Two processes take the same snapshot; and a merge while snapshots are taken.
#[test]
fn the_second_of_two_snapshots_is_discarded() {
    run(async {
        let written = Written::default();
        let store: Arc<dyn ObjectStore> = Faulty::new(Arc::new(InMemory::new()), written.clone(), Plan::Calm);
        let mut one = open(store.clone(), OpenMode::Create, 1).await.unwrap();
        rounds(&mut one, 0, 4).await;
        let mut two = open(store.clone(), OpenMode::Create, 2).await.unwrap();
        let (of_one, of_two) = (one.snapshot().unwrap(), two.snapshot().unwrap());
        let (of_one, of_two) = (of_one.run().await.unwrap(), of_two.run().await.unwrap());
        assert_eq!(one.install(of_one).await.unwrap(), Installed::Counts);
        assert_eq!(two.install(of_two).await.unwrap(), Installed::Discarded);
        assert_eq!(keys(&store, "snapshots/runs").await.len(), 1);
        rounds(&mut one, 10, 4).await;
        let done = one.snapshot().unwrap().run().await.unwrap();
        assert_eq!(one.install(done).await.unwrap(), Installed::Counts);
        let merge = one.upkeep_due().unwrap();
        assert_eq!(merge.kind(), UpkeepKind::Merge);
        let merged = merge.run().await.unwrap();
        rounds(&mut two, 20, 4).await;
        let done = two.snapshot().unwrap().run().await.unwrap();
        assert_eq!(two.install(done).await.unwrap(), Installed::Counts);
        // The merged run is named by nobody yet, and may be.
        assert_eq!(two.clean().await.unwrap().runs, 0);
        assert_eq!(one.install(merged).await.unwrap(), Installed::Counts, "below the newer snapshot");
        assert_eq!(one.runs().0, 2);
        for mut catalogue in [one, two] {
            catalogue.refresh().await.unwrap();
            Oracle::of(&written).compare(&mut catalogue).await;
        }
    });
}

/// Invariant 9, and T18.
#[test]
fn what_is_not_there_is_no_empty_catalogue() {
    run(async {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        for mode in [OpenMode::Read, OpenMode::Write] {
            let refused = open(store.clone(), mode, 1).await.err().unwrap();
            assert!(matches!(refused, CatalogueError::NotThere { .. }), "{refused}");
            assert!(refused.to_string().contains("check the URL and the credentials"), "{refused}");
        }
        let mut catalogue = open(store.clone(), OpenMode::Create, 1).await.unwrap();
        rounds(&mut catalogue, 0, 3).await;
        let mut reader = open(store.clone(), OpenMode::Read, 1).await.unwrap();
        assert_eq!(reader.commit(Vec::new()).await, Err(CatalogueError::ReadOnly));
        // A record in the middle is gone.
        let record = Path::from(format!("some/prefix/{CLUSTER}/catalogue/log/{:020}", 4));
        let bytes = store.get(&record).await.unwrap().bytes().await.unwrap();
        store.delete(&record).await.unwrap();
        let refused = open(store.clone(), OpenMode::Create, 1).await.err().unwrap();
        assert!(matches!(refused, CatalogueError::LogGap { last: 6, .. }), "{refused}");
        // It is altered.
        let mut altered = bytes.to_vec();
        altered[40] ^= 1;
        store.put(&record, altered.into()).await.unwrap();
        let refused = open(store.clone(), OpenMode::Create, 1).await.err().unwrap();
        assert!(
            refused.to_string().contains("checksum") && refused.to_string().contains("rebuild"),
            "{refused}"
        );
        store.put(&record, bytes.into()).await.unwrap();
        // The marker is gone, or another cluster's.
        let marker = Path::from(format!("some/prefix/{CLUSTER}/catalogue/format"));
        store.delete(&marker).await.unwrap();
        let refused = open(store.clone(), OpenMode::Create, 1).await.err().unwrap();
        assert!(matches!(refused, CatalogueError::Incomplete { .. }), "{refused}");
        let other = super::super::manifest::encode_marker(ClusterId::from_bytes([3; 16]), 0);
        store.put(&marker, other.into()).await.unwrap();
        let refused = open(store.clone(), OpenMode::Create, 1).await.err().unwrap();
        assert!(refused.to_string().contains("belongs to the cluster"), "{refused}");
    });
}

/// The same on a local directory, where keys are files.
#[tokio::test]
async fn a_local_directory_does_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalFileSystem::new_with_prefix(dir.path()).unwrap().with_automatic_cleanup(true);
    let written = Written::default();
    let store: Arc<dyn ObjectStore> = Faulty::new(Arc::new(local), written.clone(), Plan::Calm);
    let mut one = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    let mut two = open(store.clone(), OpenMode::Create, 2).await.unwrap();
    for from in 0..6 {
        rounds(&mut one, from * 100, 3).await;
        one.maintain().await.unwrap();
        two.refresh().await.unwrap();
        rounds(&mut two, from * 100 + 50, 3).await;
        two.maintain().await.unwrap();
        one.refresh().await.unwrap();
    }
    let mut reader = open(store, OpenMode::Read, 3).await.unwrap();
    Oracle::of(&written).compare(&mut reader).await;
    assert!(one.clock_ahead_ms().unwrap().abs() < 60_000);
}

/// Bytes from the bucket that make no sense are an error that names the row, and not a row that is not there.
#[tokio::test]
async fn rows_that_make_no_sense_are_errors() {
    use super::super::bucket::Bucket;
    use super::super::manifest::{Manifest, RunName, RunRef};
    use super::super::row::Key;
    use super::super::run::RunBuilder;
    use crate::store::Store;

    let rows = [
        (vec![Key::ledger(ledger(77))], "ledger 77"),
        (vec![Key::extent(ledger(77), entry(5))], "ledger 77's extent at entry 5"),
        (vec![Key::object(id(7)), Key::garbage(id(7))], "object "),
    ];
    for (keys, name) in rows {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let position = open(store.clone(), OpenMode::Create, 1).await.unwrap().position();
        let of_bucket = Store::new("s3://bucket/some/prefix".parse().unwrap(), store.clone());
        let bucket = Bucket::new(of_bucket, CLUSTER, Duration::from_secs(10));
        let mut builder = RunBuilder::new(CLUSTER);
        keys.iter().for_each(|key| builder.push(*key, Some(b"nonsense")));
        let (chunks, shape) = builder.finish();
        let run = RunName { manifest: 0, nonce: 9 };
        bucket.put(&bucket.run(run), Bytes::from(chunks.concat())).await.unwrap();
        let manifest = Manifest {
            cluster: CLUSTER,
            number: 1,
            covered: position,
            log_floor: 0,
            run_floor: 0,
            totals: Totals { ledgers: 1, ..Totals::default() },
            runs: vec![RunRef { name: run, shape }],
        };
        bucket.create(&bucket.manifest(1), Bytes::from(manifest.encode())).await.unwrap();
        let mut catalogue = open(store, OpenMode::Read, 2).await.unwrap();
        let errors = match keys[0].table() {
            Some(super::super::row::Table::Ledgers) => vec![
                catalogue.ledgers_after(None, 10).await.map(drop),
                catalogue.ledger(ledger(77)).await.map(drop),
            ],
            Some(super::super::row::Table::Extents) => {
                vec![catalogue.extents(ledger(77), entry(0), 10).await.map(drop)]
            }
            _ => vec![
                catalogue.objects_after(None, 10).await.map(drop),
                catalogue.garbage(u64::MAX, 10).await.map(drop),
                catalogue.object(id(7)).await.map(drop),
            ],
        };
        for error in errors {
            let error = error.unwrap_err();
            let CatalogueError::Damaged { key, damage: CatalogueDamage::Malformed } = &error else {
                panic!("{error:?}")
            };
            assert!(key.contains(name), "{key}");
            assert!(name != "object " || key.contains(&id(7).to_string()), "{key}");
        }
    }
}
