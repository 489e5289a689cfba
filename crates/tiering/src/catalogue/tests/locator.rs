//! Look-ups of a bookie, beside a tierer at work.

use std::sync::Arc;
use std::time::Duration;

use bindery_io::{SeededRandom, SystemClock};
use bindery_types::tier::TierExtent;
use futures_util::{FutureExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::faulty::{Faulty, Plan, Written};
use super::rebuild::upload;
use super::shared::{open, small};
use super::*;
use crate::store::Store;

/// A log that was followed at any time is recent enough.
const ANY_AGE: Duration = Duration::MAX;

struct World {
    store: Arc<dyn ObjectStore>,
    counted: Arc<Faulty>,
    tierer: Catalogue,
    locator: Locator,
}

impl World {
    async fn new() -> World {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let tierer = open(store.clone(), OpenMode::Create, 1).await.unwrap();
        let counted = Faulty::new(store.clone(), Written::default(), Plan::Calm);
        let locator = locator(counted.clone());
        World { store, counted, tierer, locator }
    }

    /// Commits an object, and puts a snapshot behind it.
    async fn commit(&mut self, change: Change) {
        let (Change::Commit(new) | Change::Replace { object: new, .. }) = &change else {
            panic!("an object")
        };
        let reserved = Change::Reserve { objects: vec![new.object.id], ttl_ms: 60_000 };
        self.tierer.commit(vec![reserved]).await.unwrap();
        self.tierer.commit(vec![change]).await.unwrap();
        self.tierer.maintain().await.unwrap();
    }

    async fn locate(&self, of: i64, at: i64, age_max: Duration) -> Result<Vec<(i64, i64, u64)>, LocateError> {
        let found = self.locator.locate(ledger(of), entry(at), None, age_max).await?;
        let shown =
            |extent: &TierExtent| (extent.first.get(), extent.last.get(), extent.object.id.reserved_ms());
        Ok(found.iter().map(shown).collect())
    }

    fn requests(&self) -> usize {
        *self.counted.asked.lock().unwrap()
    }
}

fn locator(store: Arc<dyn ObjectStore>) -> Locator {
    let store = Store::new("s3://bucket/some/prefix".parse().unwrap(), store);
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(5)));
    Locator::start(store, CLUSTER, small(), clock, random, &tokio::runtime::Handle::current())
}

#[tokio::test]
async fn entries_are_found_as_far_as_the_log_was_followed_and_no_further_than_asked() {
    let mut world = World::new().await;
    world.commit(commit(1, &[(5, 0, 9), (6, 0, 4)])).await;
    world.commit(commit(2, &[(5, 10, 19)])).await;
    assert_eq!(world.requests(), 0, "invariant 1");
    assert_eq!(world.locate(5, 3, ANY_AGE).await, Ok(vec![(0, 9, 1), (10, 19, 2)]));
    assert_eq!(world.locate(5, 19, ANY_AGE).await, Ok(vec![(10, 19, 2)]));
    // A block that was loaded once needs no further request.
    let requests = world.requests();
    for at in 0..20 {
        assert!(world.locate(5, at, ANY_AGE).await.is_ok());
    }
    assert_eq!(world.requests(), requests);
    // An entry that was committed since is found, and an object that took over is named, if the answer has to be newer.
    world.commit(commit(3, &[(5, 20, 29)])).await;
    assert_eq!(world.locate(5, 25, ANY_AGE).await, Ok(vec![(20, 29, 3)]), "invariant 2");
    world.commit(replace(4, &[1, 2], &[(5, 0, 19)])).await;
    assert_eq!(world.locate(5, 3, ANY_AGE).await, Ok(vec![(0, 9, 1), (10, 19, 2), (20, 29, 3)]));
    assert_eq!(world.locate(5, 3, Duration::ZERO).await, Ok(vec![(0, 19, 4), (20, 29, 3)]));
    assert_eq!(world.locate(5, 3, ANY_AGE).await, Ok(vec![(0, 19, 4), (20, 29, 3)]));
    let absent = LocateError::Absent { ledger: ledger(6), entry: entry(5) };
    assert_eq!(world.locate(6, 5, ANY_AGE).await, Err(absent));
}

/// Many at once, more than are looked up together, each with its own answer; a question that was withdrawn is not answered.
#[tokio::test]
async fn questions_of_many_are_answered_together() {
    let mut world = World::new().await;
    for of in 0..60 {
        world.commit(commit(of as u64 + 1, &[(of, 0, 9)])).await;
    }
    let withdrawn = world.locator.locate(ledger(3), entry(0), None, ANY_AGE);
    assert!(withdrawn.now_or_never().is_none());
    let asked = (0..60).map(|of| world.locate(of, of % 10, Duration::ZERO));
    let found = futures_util::future::join_all(asked).await;
    for (of, found) in found.into_iter().enumerate() {
        assert_eq!(found, Ok(vec![(0, 9, of as u64 + 1)]));
    }
}

/// Invariant 2: of an id that is used again only the ledger of the right creation time is found.
#[tokio::test]
async fn another_ledger_of_the_same_id_is_not_taken_for_it() {
    let mut world = World::new().await;
    world.commit(created(commit(1, &[(5, 0, 9)]), 100)).await;
    let located = async |world: &World, created_ms: i64| {
        world.locator.locate(ledger(5), entry(3), Some(created_ms), ANY_AGE).await
    };
    assert_eq!(located(&world, 100).await.map(|found| found[0].object.id), Ok(id(1)));
    // The other one takes its place while the log was not followed.
    let removal = Change::RemoveLedger { ledger: ledger(5), created_ms: Some(100) };
    world.tierer.commit(vec![removal]).await.unwrap();
    world.commit(created(commit(2, &[(5, 0, 9)]), 200)).await;
    assert_eq!(located(&world, 200).await.map(|found| found[0].object.id), Ok(id(2)));
    let other = LocateError::OtherLedger { ledger: ledger(5), found_ms: 200 };
    assert_eq!(located(&world, 100).await, Err(other.clone()));
    assert!(other.is_of_ledger());
}

/// Invariants 3 and 4: without a catalogue each question says so, soon after it is back it is read, and another one that took its place
/// is, too.
#[tokio::test]
async fn a_catalogue_that_is_lost_and_comes_back_is_read() {
    let mut world = World::new().await;
    world.commit(commit(1, &[(5, 0, 9)])).await;
    let prefix = Path::from("some/prefix");
    let keys: Vec<Path> =
        world.store.list(Some(&prefix)).map_ok(|meta| meta.location).try_collect().await.unwrap();
    let mut copy = Vec::new();
    for key in keys {
        copy.push((key.clone(), world.store.get(&key).await.unwrap().bytes().await.unwrap()));
        world.store.delete(&key).await.unwrap();
    }
    let lost = world.locate(5, 0, ANY_AGE).await.unwrap_err();
    assert!(!lost.is_of_ledger() && lost.to_string().contains("there is no catalogue of cluster"), "{lost}");
    let requests = world.requests();
    assert_eq!(world.locate(5, 0, ANY_AGE).await, Err(lost), "invariant 3");
    assert_eq!(world.requests(), requests, "invariant 3");
    for (key, bytes) in &copy {
        world.store.put(key, bytes.clone().into()).await.unwrap();
    }
    let found = async {
        while world.locate(5, 0, ANY_AGE).await != Ok(vec![(0, 9, 1)]) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found).await.unwrap();
    // A later state, then the copy again: a reader that follows the log notices.
    world.commit(commit(2, &[(5, 10, 19)])).await;
    assert_eq!(world.locate(5, 15, ANY_AGE).await, Ok(vec![(10, 19, 2)]));
    let keys: Vec<Path> =
        world.store.list(Some(&prefix)).map_ok(|meta| meta.location).try_collect().await.unwrap();
    for key in keys {
        world.store.delete(&key).await.unwrap();
    }
    let gone = world.locate(5, 15, Duration::ZERO).await.unwrap_err();
    assert!(matches!(gone, LocateError::Catalogue(_)), "{gone}");
    for (key, bytes) in &copy {
        world.store.put(key, bytes.clone().into()).await.unwrap();
    }
    let found = async {
        while world.locate(5, 0, Duration::ZERO).await != Ok(vec![(0, 9, 1)]) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found).await.expect("invariant 4");
    let absent = LocateError::Absent { ledger: ledger(5), entry: entry(15) };
    assert_eq!(world.locate(5, 15, ANY_AGE).await, Err(absent));
}

/// A rebuilt catalogue has what is behind a gap: an answer ends before the gap.
#[tokio::test]
async fn an_answer_ends_before_a_gap() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    drop(open(store.clone(), OpenMode::Create, 1).await.unwrap());
    for (number, extent) in [(1, (5, 0, 9)), (2, (5, 10, 14)), (3, (5, 20, 29))] {
        upload(&store, number, &[extent]).await;
    }
    let of_rebuild = Store::new("s3://bucket/some/prefix".parse().unwrap(), store.clone());
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(8)));
    rebuild(&of_rebuild, CLUSTER, &small(), clock, random, |_| None, |_| ()).await.unwrap();
    let locator = locator(store);
    let located = async |at: i64| {
        let found = locator.locate(ledger(5), entry(at), None, ANY_AGE).await?;
        Ok::<_, LocateError>(found.iter().map(|extent| extent.first.get()).collect::<Vec<_>>())
    };
    assert_eq!(located(0).await, Ok(vec![0, 10]));
    assert_eq!(located(15).await, Err(LocateError::Absent { ledger: ledger(5), entry: entry(15) }));
    assert_eq!(located(25).await, Ok(vec![20]));
}
