//! A scrub finds each kind of damage, and only that.

use std::sync::Arc;

use bindery_io::{SeededRandom, SystemClock};
use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};

use super::*;
use crate::catalogue::tests::rebuild::{key, upload};
use crate::catalogue::tests::{CLUSTER, entry, id, ledger};
use crate::catalogue::{CatalogueOptions, Change, OpenMode};

/// A store with one cluster in it.
struct Tier {
    inner: Arc<dyn ObjectStore>,
    store: Store,
    catalogue: Catalogue,
}

impl Tier {
    async fn new() -> Tier {
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let store = Store::new("s3://bucket/some/prefix".parse().unwrap(), inner.clone());
        let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SeededRandom::new(1)));
        let options = CatalogueOptions::default();
        let opened = Catalogue::open(&store, CLUSTER, OpenMode::Create, options, clock, random);
        let catalogue = opened.await.unwrap();
        Tier { inner, store, catalogue }
    }

    async fn commit(&mut self, number: u64, extents: &[(i64, i64, i64)]) {
        let object = upload(&self.inner, number, extents).await;
        let reserve = Change::Reserve { objects: vec![id(number)], ttl_ms: 100_000 };
        self.catalogue.commit(vec![reserve]).await.unwrap();
        self.catalogue.commit(vec![Change::Commit(object)]).await.unwrap();
    }

    async fn alter(&self, number: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.inner.get(&key(number)).await.unwrap().bytes().await.unwrap().to_vec();
        change(&mut bytes);
        self.inner.put(&key(number), bytes.into()).await.unwrap();
    }

    async fn scrub(&mut self) -> (Scrubbed, Vec<Finding>) {
        let mut found = Vec::new();
        let on = |event: Event<'_>| {
            if let Event::Found(finding) = event {
                found.push(finding.clone());
            }
        };
        let options = ScrubOptions { at_once: 3, failures_max: 5 };
        let sums = scrub(&self.store, CLUSTER, Some(&mut self.catalogue), options, on).await.unwrap();
        (sums, found)
    }
}

fn short(found: &[Finding]) -> Vec<(Severity, Fault, Option<i64>)> {
    found
        .iter()
        .map(|finding| (finding.severity, finding.fault, finding.entries.map(|(of, ..)| of.get())))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sound_is_called_sound() {
    let mut tier = Tier::new().await;
    tier.commit(1, &[(1, 0, 9), (2, 0, 4)]).await;
    tier.commit(2, &[(1, 10, 29)]).await;
    // The loser of a race: unreferenced, but still read.
    tier.commit(3, &[(1, 10, 12)]).await;
    let (sums, found) = tier.scrub().await;
    assert_eq!(found, []);
    assert_eq!((sums.objects, sums.extents, sums.entries, sums.ledgers), (3, 4, 38, 2));
    assert_eq!((sums.ledgers_damaged, sums.found), (0, [0, 0, 0]));
}

/// Invariants 1 and 3: the extent, the object, and the ledger that has it are named, and the other ledger of the object is not.
#[tokio::test(flavor = "multi_thread")]
async fn damage_is_found_where_it_is() {
    let mut tier = Tier::new().await;
    tier.commit(1, &[(1, 0, 9), (2, 0, 4)]).await;
    tier.commit(2, &[(1, 10, 29)]).await;
    tier.commit(3, &[(3, 0, 9)]).await;
    tier.commit(4, &[(4, 0, 9)]).await;
    // A byte of the first extent of object 1, which is that of ledger 1.
    tier.alter(1, |bytes| bytes[130] ^= 1).await;
    tier.inner.delete(&key(2)).await.unwrap();
    // Another object under this name, and one that was cut short.
    let other = upload(&tier.inner, 5, &[(3, 0, 9)]).await;
    let moved = tier.inner.get(&key(5)).await.unwrap().bytes().await.unwrap();
    tier.inner.put(&key(3), moved.into()).await.unwrap();
    tier.inner.delete(&key(5)).await.unwrap();
    assert!(other.extents.len() == 1);
    tier.alter(4, |bytes| bytes.truncate(bytes.len() - 1)).await;
    let (sums, found) = tier.scrub().await;
    let damage = Severity::Damage;
    let short = short(&found);
    for expected in [
        (damage, Fault::Damaged, Some(1)),
        (damage, Fault::Missing, None),
        (damage, Fault::Missing, Some(1)),
        (damage, Fault::Foreign, None),
        (damage, Fault::Foreign, Some(3)),
        (damage, Fault::Damaged, None),
        (damage, Fault::Damaged, Some(4)),
    ] {
        assert!(short.contains(&expected), "{expected:?}: {found:#?}");
    }
    assert!(found.iter().all(|finding| finding.severity == damage));
    // Sound extents of object 1 do not count for ledger 2.
    assert_eq!(sums.ledgers, 4);
    let of_two: Vec<_> = short.iter().filter(|(_, _, of)| *of == Some(2)).collect();
    assert_eq!(of_two.len(), 0, "{found:#?}");
    assert_eq!(sums.ledgers_damaged, 3);
    let of_missing = found.iter().find(|f| f.fault == Fault::Missing && f.entries.is_some()).unwrap();
    assert_eq!(of_missing.entries, Some((ledger(1), entry(10), entry(29))));
}

/// Invariants 1 and 2.
#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_refers_to_is_a_leftover_at_most() {
    let mut tier = Tier::new().await;
    tier.commit(1, &[(1, 0, 9)]).await;
    upload(&tier.inner, 7, &[(8, 0, 1)]).await;
    let reserve = Change::Reserve { objects: vec![id(8)], ttl_ms: 100_000 };
    tier.catalogue.commit(vec![reserve]).await.unwrap();
    upload(&tier.inner, 8, &[(9, 0, 1)]).await;
    let foreign = tier.store.key(&format!("{CLUSTER}/objects/readme.txt"));
    tier.inner.put(&foreign, Bytes::from_static(b"hello").into()).await.unwrap();
    // Unreferenced, and damaged.
    tier.commit(2, &[(1, 5, 9)]).await;
    tier.alter(2, |bytes| bytes[100] ^= 1).await;
    let (sums, found) = tier.scrub().await;
    let leftover = Severity::Leftover;
    let mut found = short(&found);
    found.sort_by_key(|(_, fault, _)| *fault as u8);
    let expected = [
        (leftover, Fault::Damaged, Some(1)),
        (leftover, Fault::Foreign, None),
        (leftover, Fault::Unreferenced, None),
    ];
    assert_eq!(found, expected);
    assert_eq!((sums.reserved, sums.found), (1, [0, 0, 3]));
}

/// Without a catalogue objects are read, too.
#[tokio::test(flavor = "multi_thread")]
async fn objects_are_compared_with_themselves_when_there_is_no_catalogue() {
    let mut tier = Tier::new().await;
    tier.commit(1, &[(1, 0, 9)]).await;
    tier.commit(2, &[(1, 10, 19)]).await;
    tier.alter(2, |bytes| bytes[130] ^= 1).await;
    let mut found = Vec::new();
    let on = |event: Event<'_>| {
        if let Event::Found(finding) = event {
            found.push(finding.clone());
        }
    };
    let sums = scrub(&tier.store, CLUSTER, None, ScrubOptions::default(), on).await.unwrap();
    assert_eq!(short(&found), [(Severity::Damage, Fault::Damaged, Some(1))]);
    assert_eq!((sums.objects, sums.entries), (2, 10));
}

#[tokio::test]
async fn clusters_are_found_by_their_keys() {
    let tier = Tier::new().await;
    assert_eq!(crate::store::clusters(&tier.store).await.unwrap(), [CLUSTER]);
    let other = tier.store.key("not-a-cluster/objects/x");
    tier.inner.put(&other, Bytes::from_static(b"x").into()).await.unwrap();
    assert_eq!(crate::store::clusters(&tier.store).await.unwrap(), [CLUSTER]);
}
