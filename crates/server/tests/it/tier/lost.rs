//! Objects that are gone, and bookies that are told where their entries are now.

use super::*;

/// A bookie may be away while the object of its ledger is rewritten and the old one deleted. After the first read that misses an entry
/// there, a tierer asks the bookie and tells it of the new object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_whose_object_is_gone_is_told_again() {
    is_told_again(false).await;
}

/// The same where the credentials of the bookie do not allow keys to be listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_may_not_know_that_its_object_is_gone_is_told_again() {
    is_told_again(true).await;
}

async fn is_told_again(hides_missing: bool) {
    let world = World::new(patient(), Canaries::none()).await;
    world.bucket.hides_missing.store(hides_missing, Ordering::SeqCst);
    let object = world.tier_away(1, 7).await;
    let rewritten = world.upload(2, 7, (0..ENTRIES).map(|id| stored(7, id))).await;
    world.bucket.inner.delete(&key(&object)).await.unwrap();
    assert_eq!(world.register(7).await, ENTRIES - 1, "nobody has missed anything");
    for id in [5, 3, 9] {
        assert_eq!(world.read(7, id).await.code(), ErrorCode::Io);
    }
    assert_eq!(world.register(7).await, 2);
    // Told of the same object it still has nothing; of the new one, it has everything.
    world.reconcile(7, object, ENTRIES - 1).await;
    assert_eq!(world.read(7, 4).await.code(), ErrorCode::Io);
    assert_eq!(world.register(7).await, 3);
    world.reconcile(7, rewritten, ENTRIES - 1).await;
    assert_eq!(world.register(7).await, ENTRIES - 1);
    for id in [0, 3, ENTRIES - 1] {
        assert_eq!(world.read(7, id).await.code(), ErrorCode::Ok);
    }
    world.stop().await;
}

/// Tier invariant 7, in several requests: each answer says how far the bookie was told, and one that leaves the missing entry out changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_whose_object_is_gone_is_told_of_all_that_comes_behind() {
    let world = World::new(patient(), Canaries::none()).await;
    let object = world.tier_away(1, 7).await;
    let low = world.upload_from(2, 7, 0, (0..30).map(|id| stored(7, id))).await;
    let high = world.upload_from(3, 7, 30, (30..ENTRIES).map(|id| stored(7, id))).await;
    world.bucket.inner.delete(&key(&object)).await.unwrap();
    assert_eq!(world.read(7, 5).await.code(), ErrorCode::Io);
    assert_eq!(world.register(7).await, 4);
    assert_eq!(world.tell(7, high, 30, ENTRIES - 1).await, ENTRIES - 1);
    assert_eq!(world.register(7).await, 4, "nobody told of entry 5");
    assert_eq!(world.tell(7, low, 0, 29).await, 29);
    assert_eq!(world.register(7).await, 29, "what is behind has not been told of since");
    assert_eq!(world.tell(7, high, 30, ENTRIES - 1).await, ENTRIES - 1);
    assert_eq!(world.register(7).await, ENTRIES - 1);
    for id in [0, 5, 29, 30, ENTRIES - 1] {
        assert_eq!(world.read(7, id).await.code(), ErrorCode::Ok);
    }
    world.stop().await;
}
