//! Reads and trims of ledgers whose objects were rewritten, and of ledgers of which the catalogue lacks entries.

use super::*;

/// A bookie that was not told of a rewrite finds the new object, whatever it knew of the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_read_from_the_objects_that_took_the_place_of_others() {
    let world = World::new(patient(), Canaries::none()).await;
    let object = world.tier_away(1, 7).await;
    let both = world.upload(2, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.replace(&[object], 7, both, 0, ENTRIES - 1).await;
    world.bucket.inner.delete(&key(&object)).await.unwrap();
    for id in (0..ENTRIES).step_by(5) {
        let OwnedV2::Read(ErrorCode::Ok, 7, _, body) = world.read(7, id).await else { panic!("entry {id}") };
        assert!(body == stored(7, id));
    }
    // Once more, and the objects before it go.
    let third = world.upload(3, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.replace(&[both], 7, third, 0, ENTRIES - 1).await;
    world.bucket.inner.delete(&key(&both)).await.unwrap();
    let answers = futures_util::future::join_all((0..ENTRIES).map(|id| world.read(7, id))).await;
    assert!(answers.iter().all(|answer| answer.code() == ErrorCode::Ok), "all of them at once");
    world.stop().await;
}

/// A ledger whose object was rewritten meanwhile is compared with the new object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_compared_with_the_object_that_the_catalogue_names() {
    let world = World::new(patient(), Canaries::none()).await;
    world.write(7).await;
    let object = world.upload(2, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.commit(7, object, 0, ENTRIES - 1).await;
    // The log is followed for this one, and not again for a while.
    world.write(6).await;
    let other = world.upload(1, 6, (0..ENTRIES).map(|id| stored(6, id))).await;
    world.close_ledger(6, ENTRIES - 1).await;
    world.reconcile(6, other, ENTRIES - 1).await;
    world.until("the other is trimmed", || world.is_trimmed(6)).await;
    let rewritten = world.upload(3, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.replace(&[object], 7, rewritten, 0, ENTRIES - 1).await;
    world.bucket.inner.delete(&key(&object)).await.unwrap();
    world.close_ledger(7, ENTRIES - 1).await;
    assert_eq!(world.tell(7, rewritten, 0, ENTRIES - 1).await, ENTRIES - 1);
    world.until("trimmed", || world.is_trimmed(7)).await;
    assert_eq!(world.tier.desk.status().blocked_count, 0);
    world.stop().await;
}

/// Extents in many objects are checked side by side, with one request for what each says of itself, and one for its table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_extents_are_checked_side_by_side() {
    let world = World::new(patient(), Canaries::none()).await;
    world.write(7).await;
    let mut objects = Vec::new();
    for at in 0..20 {
        let bodies = (at * 3..at * 3 + 3).map(|id| stored(7, id));
        let object = world.upload_from(10 + at as u8, 7, at * 3, bodies).await;
        world.commit(7, object, at * 3, at * 3 + 2).await;
        objects.push(object);
    }
    // The log is followed for this one, and not again for a while.
    world.write(6).await;
    let other = world.upload(1, 6, (0..ENTRIES).map(|id| stored(6, id))).await;
    world.close_ledger(6, ENTRIES - 1).await;
    world.reconcile(6, other, ENTRIES - 1).await;
    world.until("the other is trimmed", || world.is_trimmed(6)).await;
    let requests = || world.bucket.requests.load(Ordering::SeqCst);
    let before = requests();
    world.bucket.hangs.send_replace(true);
    world.close_ledger(7, ENTRIES - 1).await;
    for (at, object) in (0..).zip(&objects) {
        world.tell(7, *object, at * 3, at * 3 + 2).await;
    }
    world.until("several at once", || requests() - before == 8).await;
    world.bucket.hangs.send_replace(false);
    world.until("trimmed", || world.is_trimmed(7)).await;
    // Footer, table and the one block of each; the place of the extents is one look into the catalogue.
    assert_eq!(requests() - before, 3 * objects.len());
    world.stop().await;
}

/// The bookie was told of entries that the catalogue does not have: their copies stay, and that shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_goes_that_the_catalogue_does_not_have() {
    let world = World::new(patient(), Canaries::none()).await;
    world.write(7).await;
    let object = world.upload(1, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.commit(7, object, 0, 29).await;
    world.close_ledger(7, ENTRIES - 1).await;
    assert_eq!(world.tell(7, object, 0, ENTRIES - 1).await, ENTRIES - 1);
    let blocked = || world.tier.desk.status().blocked.first().map(|(_, blocked)| blocked.why.clone());
    world.until("looked at", || blocked().is_some() || world.is_trimmed(7)).await;
    let why = blocked().expect("T19: its copies stay");
    assert!(why.contains("the catalogue has no object with entry 30 of ledger 7"), "{why}");
    world.stop().await;
}

/// The catalogue is not asked while the object that the bookie was told of is good: without a catalogue reads go on, and nothing more goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_go_on_without_a_catalogue_and_nothing_more_is_let_go() {
    let world = World::new(patient(), Canaries::none()).await;
    world.write(7).await;
    let object = world.upload(1, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.reconcile(7, object, ENTRIES - 1).await;
    let seen = world.bookie.shared.engine.tiered(whole::id(7)).unwrap();
    world.bookie.shared.engine.trim(whole::id(7), &seen, entry(ENTRIES - 1)).unwrap();
    world.until("trimmed", || world.is_trimmed(7)).await;
    world.collect().await;
    let marker = Path::from(format!("{CLUSTER}/catalogue/format"));
    let bytes = world.bucket.inner.get(&marker).await.unwrap().bytes().await.unwrap();
    world.bucket.inner.delete(&marker).await.unwrap();
    assert_eq!(world.read(7, 3).await.code(), ErrorCode::Ok);
    // Another ledger waits until the catalogue is back, and the round says why.
    world.write(8).await;
    let other = world.upload(2, 8, (0..ENTRIES).map(|id| stored(8, id))).await;
    world.close_ledger(8, ENTRIES - 1).await;
    world.tell(8, other, 0, ENTRIES - 1).await;
    let stopped = || world.tier.desk.status().stopped_because;
    world.until("stopped", || stopped().is_some()).await;
    let why = stopped().unwrap();
    assert!(why.contains("catalogue/format: not found") && why.contains("bindery tier rebuild"), "{why}");
    assert!(!world.is_trimmed(8));
    world.bucket.inner.put(&marker, bytes.into()).await.unwrap();
    world.stop().await;
}

/// A rebuilt catalogue lacks an object: nothing goes of a ledger of which entries would be missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_goes_of_a_ledger_with_a_gap_in_the_catalogue() {
    let world = World::new(patient(), Canaries::none()).await;
    world.write(7).await;
    let object = world.upload(1, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    for (number, first) in [(2, 0), (3, 40)] {
        world.upload_from(number, 7, first, (first..first + 20).map(|id| stored(7, id))).await;
    }
    world.bucket.inner.delete(&key(&object)).await.unwrap();
    let store = Store::new("s3://bucket".parse().unwrap(), world.bucket.inner.clone());
    let (options, clock) = (CatalogueOptions::default(), Arc::new(SystemClock::new()));
    let random = Arc::new(SystemRandom);
    rebuild(&store, CLUSTER, &options, clock, random, |_| None, |_| ()).await.unwrap();
    world.close_ledger(7, ENTRIES - 1).await;
    assert_eq!(world.tell(7, object, 0, ENTRIES - 1).await, ENTRIES - 1);
    let blocked = || world.tier.desk.status().blocked.first().map(|(_, blocked)| blocked.why.clone());
    world.until("looked at", || blocked().is_some() || world.is_trimmed(7)).await;
    let why = blocked().expect("T19: its copies stay");
    assert!(why.contains("the catalogue has no object with entry 20 of ledger 7"), "{why}");
    world.stop().await;
}
