//! Catalogues that were lost, cut, or replaced by an older copy.

use std::sync::Arc;

use bindery_io::{SeededRandom, SystemClock};
use bytes::Bytes;
use futures_util::{FutureExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::rebuild::{key, upload};
use super::shared::{open, small};
use super::*;
use crate::store::Store;

type Copied = Vec<(Path, Bytes)>;

fn of_catalogue(name: &str) -> Path {
    Path::from(format!("some/prefix/{CLUSTER}/catalogue/{name}"))
}

fn record_key(number: u64) -> Path {
    of_catalogue(&format!("log/{number:020}"))
}

/// All keys of the catalogue, with their contents.
async fn copied(store: &Arc<dyn ObjectStore>) -> Copied {
    let prefix = Path::from(format!("some/prefix/{CLUSTER}/catalogue"));
    let found: Vec<_> = store.list(Some(&prefix)).try_collect().await.unwrap();
    let mut copied = Vec::new();
    for meta in found {
        let bytes = store.get(&meta.location).await.unwrap().bytes().await.unwrap();
        copied.push((meta.location, bytes));
    }
    copied
}

/// The catalogue becomes this one.
async fn put_back(store: &Arc<dyn ObjectStore>, copy: &Copied) {
    for (location, _) in copied(store).await {
        store.delete(&location).await.unwrap();
    }
    for (location, bytes) in copy {
        store.put(location, bytes.clone().into()).await.unwrap();
    }
}

/// An object is reserved, uploaded and committed, with an id of now.
async fn object_of(store: &Arc<dyn ObjectStore>, catalogue: &mut Catalogue, of: i64) -> u64 {
    // An id of its own, drawn before the record that reserves it.
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    let number = catalogue.now_ms();
    catalogue.commit(vec![reserve(&[number])]).await.unwrap();
    let new = upload(store, number, &[(of, 0, 9)]).await;
    catalogue.commit(vec![Change::Commit(new)]).await.unwrap();
    number
}

async fn rebuild_all(store: &Arc<dyn ObjectStore>, seen: impl FnMut(u64)) -> Result<Rebuilt, CatalogueError> {
    let store = Store::new("s3://bucket/some/prefix".parse().unwrap(), store.clone());
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(8)));
    rebuild(&store, CLUSTER, &small(), clock, random, |_| None, seen).await
}

/// Invariant 1: nobody begins a catalogue beside objects, and the error says what to do.
#[tokio::test]
async fn no_catalogue_begins_beside_objects() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut running = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    object_of(&store, &mut running, 1).await;
    put_back(&store, &Vec::new()).await;
    for mode in [OpenMode::Create, OpenMode::Write, OpenMode::Read] {
        let refused = open(store.clone(), mode, 2).await.err().unwrap();
        assert!(matches!(refused, CatalogueError::Lost { .. }), "{refused}");
        assert!(refused.to_string().contains("bindery tier rebuild --metadata URI --store URL"), "{refused}");
    }
    // The one that runs does not go on where others cannot follow.
    let error = running.commit(vec![reserve(&[7])]).await.unwrap_err();
    assert!(matches!(error, CatalogueError::Changed { .. }), "{error}");
    assert!(matches!(running.reload().await, Err(CatalogueError::Lost { .. })));
    assert!(copied(&store).await.is_empty(), "nothing was written");
    // The marker alone is no catalogue, either.
    let marker = super::super::manifest::encode_marker(CLUSTER, 0);
    store.put(&of_catalogue("format"), marker.into()).await.unwrap();
    let refused = open(store.clone(), OpenMode::Create, 2).await.err().unwrap();
    assert!(matches!(refused, CatalogueError::Lost { .. }), "{refused}");
    // What the error names ends it, also for the one that runs.
    rebuild_all(&store, |_| ()).await.unwrap();
    running.reload().await.unwrap();
    assert_eq!(running.next(ledger(1)).await.unwrap(), entry(10));
    let mut other = open(store.clone(), OpenMode::Create, 2).await.unwrap();
    assert_eq!(other.next(ledger(1)).await.unwrap(), entry(10));
    object_of(&store, &mut running, 2).await;
    other.refresh().await.unwrap();
    assert_eq!(other.next(ledger(2)).await.unwrap(), entry(10));
}

/// Invariant 1: another tierer made the catalogue, and put its first objects there, while this one looked.
#[tokio::test]
async fn a_tierer_that_is_second_takes_the_catalogue_that_is_there() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut first = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    let second = open(store.clone(), OpenMode::Create, 2).await.unwrap();
    object_of(&store, &mut first, 1).await;
    assert_eq!(second.position().number, 0, "it opened an empty one");
    assert_eq!(open(store.clone(), OpenMode::Create, 3).await.unwrap().position().number, 2);
}

/// Invariant 2: a number that somebody deleted is not written again, by whoever has not read it.
#[tokio::test]
async fn a_record_that_was_deleted_is_noticed() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut one = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    one.commit(vec![reserve(&[1, 2, 3])]).await.unwrap();
    let mut two = open(store.clone(), OpenMode::Create, 2).await.unwrap();
    for number in [1, 2] {
        one.commit(vec![commit(number, &[(number as i64, 0, 9)])]).await.unwrap();
    }
    // The second tierer is at record 1, and record 2 is gone.
    let kept = store.get(&record_key(2)).await.unwrap().bytes().await.unwrap();
    store.delete(&record_key(2)).await.unwrap();
    let error = two.commit(vec![commit(3, &[(1, 0, 4)])]).await.unwrap_err();
    assert!(matches!(error, CatalogueError::LogGap { last: 3, .. }), "{error}");
    assert!(store.get(&record_key(2)).await.is_err(), "it was not written again");
    // It comes back, and all is well.
    store.put(&record_key(2), kept.clone().into()).await.unwrap();
    let outcome = two.commit(vec![commit(3, &[(1, 0, 4)])]).await.unwrap();
    assert_eq!(outcome.position.number, 4);
    // The last record is deleted: who has read it misses it.
    store.delete(&record_key(4)).await.unwrap();
    for outcome in [two.refresh().await, two.commit(Vec::new()).await.map(drop)] {
        assert!(matches!(outcome, Err(CatalogueError::Changed { .. })), "{outcome:?}");
    }
    // Somebody else writes the number again, with other contents.
    one.commit(vec![reserve(&[4])]).await.unwrap();
    assert!(matches!(two.refresh().await, Err(CatalogueError::Changed { .. })));
    two.reload().await.unwrap();
    two.refresh().await.unwrap();
    assert_eq!(two.position(), one.position());
}

/// Invariants 2 to 4: an older copy is put back.
#[tokio::test]
async fn an_older_copy_is_noticed() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut running = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    object_of(&store, &mut running, 1).await;
    let older = copied(&store).await;
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    let number = object_of(&store, &mut running, 2).await;
    let newer = copied(&store).await;
    put_back(&store, &older).await;
    assert!(matches!(running.refresh().await, Err(CatalogueError::Changed { .. })));
    // The second object's id was reserved after the copy was made.
    for refused in
        [running.reload().await.unwrap_err(), open(store.clone(), OpenMode::Create, 2).await.err().unwrap()]
    {
        let CatalogueError::Older { found, .. } = &refused else { panic!("{refused}") };
        assert!(found.ends_with(&id(number).to_string()), "{refused}");
        assert!(refused.to_string().contains("bindery tier rebuild"), "{refused}");
    }
    // Both remedies: the newest copy, and a rebuild.
    put_back(&store, &newer).await;
    running.refresh().await.unwrap();
    open(store.clone(), OpenMode::Create, 2).await.unwrap();
    put_back(&store, &older).await;
    rebuild_all(&store, |_| ()).await.unwrap();
    running.reload().await.unwrap();
    let mut opened = open(store.clone(), OpenMode::Create, 3).await.unwrap();
    for catalogue in [&mut running, &mut opened] {
        for of in [1, 2] {
            assert_eq!(catalogue.next(ledger(of)).await.unwrap(), entry(10));
        }
    }
    // A copy whose history goes on with numbers that this process has not read is another history nevertheless.
    put_back(&store, &Vec::new()).await;
    rebuild_all(&store, |_| ()).await.unwrap();
    running.reload().await.unwrap();
    running.commit(vec![reserve(&[5])]).await.unwrap();
    let position = running.position();
    let other = copied(&store).await;
    put_back(&store, &newer).await;
    assert!(position.number < 4, "the copy has four records");
    let followed = running.refresh().await;
    assert!(matches!(followed, Err(CatalogueError::Changed { .. })), "{followed:?}, {position:?}");
    assert_eq!(running.position(), position, "nothing of it was applied");
    put_back(&store, &other).await;
    // A name that no tierer drew proves nothing.
    let far = ObjectId::from_bytes([0xff; 16]);
    let far = Path::from(format!("some/prefix/{}", object_key(CLUSTER, far)));
    store.put(&far, Bytes::from_static(b"somebody's").into()).await.unwrap();
    open(store.clone(), OpenMode::Create, 4).await.unwrap();
}

/// Invariant 2 where the log was cleaned, and a snapshot stands for it.
#[tokio::test]
async fn what_was_read_is_known_again_by_the_newest_manifest() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut one = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    for number in 1..=8 {
        one.commit(vec![reserve(&[number])]).await.unwrap();
    }
    let done = one.snapshot().unwrap().run().await.unwrap();
    one.install(done).await.unwrap();
    one.clean().await.unwrap();
    let mut two = open(store.clone(), OpenMode::Read, 2).await.unwrap();
    two.refresh().await.unwrap();
    store.delete(&of_catalogue(&format!("snapshots/manifests/{:020}", 1))).await.unwrap();
    assert!(matches!(two.refresh().await, Err(CatalogueError::Changed { .. })));
}

/// T12: a tierer ends its round while a rebuild reads footers. Nobody comes to another state than it.
#[tokio::test(start_paused = true)]
async fn a_rebuild_waits_for_rounds_that_end_meanwhile() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut running = open(store.clone(), OpenMode::Create, 1).await.unwrap();
    running.commit(vec![reserve(&[1, 2, 3])]).await.unwrap();
    let first = upload(&store, 1, &[(1, 0, 9)]).await;
    running.commit(vec![Change::Commit(first)]).await.unwrap();
    let second = upload(&store, 2, &[(1, 10, 19)]).await;
    let mut calls = 0;
    let rebuilt = rebuild_all(&store, |_| {
        calls += 1;
        if calls == 1 {
            let committed = running.commit(vec![Change::Commit(second.clone())]).now_or_never();
            let outcome = committed.expect("memory answers at once").unwrap();
            assert!(matches!(&outcome.changes[0], ChangeOutcome::Committed(Ok(_))), "{outcome:?}");
        }
    });
    let rebuilt = rebuilt.await.unwrap();
    assert_eq!((rebuilt.totals.objects, calls), (2, 4), "it began again");
    let mut fresh = open(store.clone(), OpenMode::Write, 2).await.unwrap();
    assert_eq!(fresh.position().number, running.position().number, "the record is covered");
    running.refresh().await.unwrap();
    for catalogue in [&mut fresh, &mut running] {
        assert_eq!(catalogue.next(ledger(1)).await.unwrap(), entry(20));
        assert!(matches!(catalogue.object(id(2)).await.unwrap(), Some(ObjectRow::Stored(_))));
    }
    // An object that comes or goes meanwhile counts, too; and one that never stops is an error.
    let mut number = 100;
    let busy = rebuild_all(&store, |_| {
        number += 1;
        let put = store.put(&key(number), Bytes::from_static(b"half an object").into()).now_or_never();
        put.expect("memory answers at once").unwrap();
    });
    assert!(matches!(busy.await, Err(CatalogueError::Busy { .. })));
}
