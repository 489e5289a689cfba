//! Objects with little left in them are rewritten, and go once others are proved to have their entries (T16).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bindery_client::{Client, EntryId, LedgerId};
use bindery_reconciler::{TierReport, Tierer};
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::object_key;
use bindery_tiering::footers::Footers;
use object_store::ObjectStoreExt;

use super::cluster::Cluster;
use super::tiering::{Tier, sealed, until};
use super::upkeep::quick;

/// Ledgers in one object, and a tierer that has left its mark.
async fn tiered(tier: &Tier, cluster: &Cluster, client: &Client, entries: &[i64]) -> (Tierer, Vec<LedgerId>) {
    let mut ids = Vec::new();
    for count in entries {
        ids.extend(sealed(client, 1, *count).await);
    }
    let tierer = tier.start(cluster, client, quick()).await;
    let all = entries.len() as u64;
    let report = until(&tierer.handle(), "all in the tier", |report| report.ledgers_done == all).await;
    assert_eq!((report.objects, tier.objects()), (1, 1), "one object has all of them");
    // A pass has left a mark, by which the metadata store proves to be current later on.
    let passes = report.upkeep_passes;
    until(&tierer.handle(), "passes", |report| report.upkeep_passes > passes + 1).await;
    (tierer, ids)
}

/// The objects that a bookie was told of for a ledger.
fn told(cluster: &Cluster, bookie: &str, ledger: LedgerId) -> BTreeSet<ObjectId> {
    cluster.registers.of(bookie, ledger).extents.iter().map(|extent| extent.object.id).collect()
}

async fn in_catalogue(tier: &Tier, cluster: &Cluster, ledger: LedgerId) -> BTreeSet<ObjectId> {
    let rows = tier.catalogue(cluster).await.extents(ledger, EntryId::FIRST, 100).await.unwrap();
    rows.iter().map(|(_, row)| row.object.id).collect()
}

fn is_rewritten(report: &TierReport) -> bool {
    report.objects_rewritten == 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_an_object_goes_into_a_new_one_and_the_old_one_goes() {
    let cluster = Cluster::start(3, 2).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let (tierer, ids) = tiered(&tier, &cluster, &client, &[400, 30, 50]).await;
    let handle = tierer.handle();
    let before = in_catalogue(&tier, &cluster, ids[1]).await;
    client.delete_ledger(ids[0]).await.unwrap();
    let report = until(&handle, "it is rewritten", is_rewritten).await;
    assert!(report.rewritten_bytes > 0 && report.rewrites == 1, "{report:#?}");
    let report = until(&handle, "and goes", |report| report.catalogue_objects == 1).await;
    assert_eq!((report.garbage_kept, report.unreferenced_objects), (0, 0));
    assert_eq!((tier.objects(), report.alarms.len(), report.rewrite_failures), (1, 0, 0), "{report:#?}");
    tier.assert_holds(&cluster, &client, &ids[1..]).await;
    for ledger in &ids[1..] {
        let now = in_catalogue(&tier, &cluster, *ledger).await;
        assert!(now.len() == 1 && now.is_disjoint(&before), "{now:?}");
        for bookie in ["b0", "b1"] {
            assert_eq!(
                told(&cluster, bookie, *ledger),
                before,
                "{bookie} asks the catalogue when it needs to"
            );
        }
    }
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

/// The object that took the entries over is damaged: the old one stays, also when the tierer starts anew, until it is mended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rewritten_object_stays_while_the_one_that_took_it_over_is_damaged() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let mut patient = quick();
    patient.settings.upkeep.delete_delay = Duration::from_secs(3);
    let (tierer, ids) = tiered(&tier, &cluster, &client, &[400, 30]).await;
    tierer.stop().await;
    let tierer = tier.start(&cluster, &client, patient.clone()).await;
    client.delete_ledger(ids[0]).await.unwrap();
    until(&tierer.handle(), "it is rewritten", is_rewritten).await;
    let mut catalogue = tier.catalogue(&cluster).await;
    let row = catalogue.extents(ids[1], EntryId::FIRST, 1).await.unwrap().remove(0).1;
    let key = tier.store.key(&object_key(catalogue.cluster(), row.object.id));
    let good = tier.store.inner().get(&key).await.unwrap().bytes().await.unwrap();
    let mut bad = good.to_vec();
    bad[row.object.footer_offset as usize + 20] ^= 1;
    tier.store.inner().put(&key, bad.into()).await.unwrap();
    let is_kept = |report: &TierReport| report.kept_for.is_some() && report.garbage_kept == 1;
    let report = until(&tierer.handle(), "the old one is kept", is_kept).await;
    let why = report.kept_for.as_ref().unwrap();
    assert!(why.contains(&row.object.id.to_string()), "it names the damaged one: {why}");
    tierer.stop().await;
    let tierer = tier.start(&cluster, &client, patient).await;
    let handle = tierer.handle();
    let report = until(&handle, "it is kept still", is_kept).await;
    assert_eq!(tier.objects(), 2, "{report:#?}");
    tier.store.inner().put(&key, good.into()).await.unwrap();
    let report = until(&handle, "then it goes", |report| report.catalogue_objects == 1).await;
    assert_eq!((tier.objects(), report.alarms.len()), (1, 0), "{report:#?}");
    tier.assert_holds(&cluster, &client, &ids[1..]).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

/// Requests fail, before and after they had their effect, and uploads in each of their steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rewrite_gets_through_a_store_that_fails() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    // Large enough for parts.
    let (tierer, ids) = tiered(&tier, &cluster, &client, &[500, 350]).await;
    let handle = tierer.handle();
    tier.faults.fail_every.store(12, Ordering::Relaxed);
    tier.faults.lose_every.store(12, Ordering::Relaxed);
    tier.faults.steps.store(true, Ordering::Relaxed);
    client.delete_ledger(ids[0]).await.unwrap();
    // Which steps are hit depends on what else is going on; after some attempts that failed the pauses become long.
    let has_tried = |report: &TierReport| report.objects_rewritten == 1 || report.rewrite_failures > 2;
    until(&handle, "it is tried", has_tried).await;
    tier.faults.fail_every.store(0, Ordering::Relaxed);
    tier.faults.lose_every.store(0, Ordering::Relaxed);
    // Also when the commit happened and its answer was lost.
    until(&handle, "the old one is gone", |report| report.catalogue_objects == 1).await;
    assert!(tier.faults.failed.load(Ordering::Relaxed) > 5, "{:?}", tier.faults);
    let report = handle.report().await.unwrap();
    assert!(report.alarms.is_empty(), "{report:#?}");
    tier.assert_holds(&cluster, &client, &ids[1..]).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

/// One object of two is damaged: the other one is rewritten, and an operator sees which one it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_object_is_an_alarm_and_keeps_no_other() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let (tierer, ids) = tiered(&tier, &cluster, &client, &[400, 30]).await;
    tierer.stop().await;
    let mut more = sealed(&client, 1, 400).await;
    more.extend(sealed(&client, 1, 30).await);
    let tierer = tier.start(&cluster, &client, quick()).await;
    let handle = tierer.handle();
    let report = until(&handle, "all in the tier", |report| report.ledgers_done == 4).await;
    assert_eq!((report.catalogue_objects, tier.objects()), (2, 2), "{report:#?}");
    let mut catalogue = tier.catalogue(&cluster).await;
    let row = catalogue.extents(ids[1], EntryId::FIRST, 1).await.unwrap().remove(0).1;
    let key = tier.store.key(&object_key(catalogue.cluster(), row.object.id));
    let mut bytes = tier.store.inner().get(&key).await.unwrap().bytes().await.unwrap().to_vec();
    let footer = Footers::new(tier.store.clone(), catalogue.cluster()).of(&row.object).await.unwrap();
    let block = footer.extents_of(ids[1]).next().unwrap().blocks[0];
    bytes[(block.offset + u64::from(block.stored_size_bytes) / 2) as usize] ^= 1;
    tier.store.inner().put(&key, bytes.into()).await.unwrap();
    let before = in_catalogue(&tier, &cluster, more[1]).await;
    for ledger in [ids[0], more[0]] {
        client.delete_ledger(ledger).await.unwrap();
    }
    let is_done = |report: &TierReport| report.objects_rewritten == 1 && report.objects_damaged == 1;
    let report = until(&handle, "the other one is rewritten", is_done).await;
    let name = row.object.id.to_string();
    assert!(report.damaged.as_ref().unwrap().contains(&name), "{report:#?}");
    assert!(report.alarms.len() == 1 && report.alarms[0].contains(&name), "{report:#?}");
    assert!(in_catalogue(&tier, &cluster, more[1]).await.is_disjoint(&before));
    assert_eq!(in_catalogue(&tier, &cluster, ids[1]).await, BTreeSet::from([row.object.id]));
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

/// Two tierers rewrite the same: one of them wins, and the work of the other is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tierers_rewrite_the_same_object() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let (first, ids) = tiered(&tier, &cluster, &client, &[400, 30, 40, 50]).await;
    let second = tier.start(&cluster, &client, quick()).await;
    let passes = |report: &TierReport| report.upkeep_passes > 2;
    until(&second.handle(), "the other one runs", passes).await;
    let before = in_catalogue(&tier, &cluster, ids[1]).await;
    client.delete_ledger(ids[0]).await.unwrap();
    // With the old object there is one as well, so that the catalogue itself is asked.
    let is_moved = async || in_catalogue(&tier, &cluster, ids[1]).await.is_disjoint(&before);
    let moved = tokio::time::timeout(Duration::from_secs(60), async {
        while !is_moved().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    moved.await.expect("it is rewritten");
    for tierer in [&first, &second] {
        let is_done = |report: &TierReport| report.catalogue_objects == 1 && report.catalogue_ledgers == 3;
        until(&tierer.handle(), "one object is left", is_done).await;
    }
    tier.assert_holds(&cluster, &client, &ids[1..]).await;
    for tierer in [first, second] {
        let report = tierer.handle().report().await.unwrap();
        assert!(report.alarms.is_empty(), "{report:#?}");
        tierer.stop().await;
    }
    client.close().await;
    cluster.stop().await;
}
