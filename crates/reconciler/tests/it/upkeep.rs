//! Deleted ledgers leave the catalogue, and their objects the bucket (T13, T17).

use std::sync::atomic::Ordering;
use std::time::Duration;

use bindery_client::EntryId;
use bindery_reconciler::TiererConfig;
use bindery_reconciler::core::upkeep::UpkeepSettings;
use bytes::Bytes;

use super::cluster::Cluster;
use super::tiering::{Tier, config, sealed, until};

/// Passes come at once, and objects go after a moment.
pub fn quick() -> TiererConfig {
    let mut config = config();
    config.settings.upkeep = UpkeepSettings {
        interval: Duration::from_millis(200),
        delete_delay: Duration::from_millis(500),
        confirm_pause: Duration::from_millis(100),
        rewrite_pause: Duration::from_millis(200),
        settle: Duration::from_millis(300),
        ..UpkeepSettings::default()
    };
    config
}

/// All of the ledgers but one, and then that one, too: the bucket ends up empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_ledgers_leave_the_catalogue_and_their_objects_the_bucket() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let ids = sealed(&client, 14, 100).await;
    let tierer = tier.start(&cluster, &client, quick()).await;
    let handle = tierer.handle();
    until(&handle, "all in the tier", |report| report.ledgers_done == 14).await;
    // A pass has left a mark, by which the store proves to be current later on.
    let passes = handle.report().await.unwrap().upkeep_passes;
    until(&handle, "passes", |report| report.upkeep_passes > passes + 1).await;
    for ledger in &ids[..13] {
        client.delete_ledger(*ledger).await.unwrap();
    }
    let report = until(&handle, "13 are gone", |report| report.catalogue_ledgers == 1).await;
    assert!(report.ledgers_removed == 13 && report.alarms.is_empty(), "{report:#?}");
    tier.assert_holds(&cluster, &client, &ids[13..]).await;
    client.delete_ledger(ids[13]).await.unwrap();
    until(&handle, "and so is the last", |report| report.catalogue_objects == 0).await;
    assert_eq!(tier.objects(), 0);
    let mut catalogue = tier.catalogue(&cluster).await;
    assert_eq!(catalogue.ledgers_after(None, 10).await.unwrap(), []);
    assert_eq!(catalogue.extents(ids[0], EntryId::FIRST, 10).await.unwrap(), []);
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

/// T17: neither an emptied metadata store nor another cluster's takes anything out of the catalogue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_metadata_store_that_lost_everything_is_not_believed() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let ids = sealed(&client, 12, 10).await;
    let tierer = tier.start(&cluster, &client, quick()).await;
    let handle = tierer.handle();
    until(&handle, "all in the tier", |report| report.ledgers_done == 12).await;
    let layout = cluster.layout().await;
    let instance = layout.store().get("/ledgers/INSTANCEID").await.unwrap().data;
    layout.store().set("/ledgers/INSTANCEID", Bytes::from("another"), None).await.unwrap();
    let report = until(&handle, "another cluster's", |report| report.upkeep_doubts > 0).await;
    assert!(report.upkeep_doubt.as_ref().unwrap().contains("another"), "{report:#?}");
    layout.store().set("/ledgers/INSTANCEID", instance, None).await.unwrap();
    until(&handle, "it goes on", |report| report.upkeep_doubt.is_none()).await;
    // The ledgers are gone, and so is the mark.
    let mark = "/ledgers/underreplication/bindery-marks/bindery-tier";
    layout.store().delete(mark, None).await.unwrap();
    // The newest first, so that the listing never reaches as far as the catalogue.
    for ledger in ids.iter().rev() {
        client.delete_ledger(*ledger).await.unwrap();
    }
    let is_empty = |why: &String| why.contains("lists no ledger");
    let report =
        until(&handle, "it doubts", |report| report.upkeep_doubt.as_ref().is_some_and(is_empty)).await;
    assert_eq!((report.catalogue_ledgers, report.ledgers_removed), (12, 0), "{report:#?}");
    assert!(report.alarms.iter().any(|alarm| alarm.contains("lists no ledger")), "{report:#?}");
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}

/// T13: an object that cannot be deleted is one alarm, stays in the catalogue, and goes when it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_permission_to_delete_there_is_one_alarm_and_everything_else_goes_on() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let ids = sealed(&client, 3, 50).await;
    let tierer = tier.start(&cluster, &client, quick()).await;
    let handle = tierer.handle();
    until(&handle, "all in the tier", |report| report.ledgers_done == 3).await;
    tier.faults.denies_deletions.store(true, Ordering::Relaxed);
    client.delete_ledger(ids[0]).await.unwrap();
    client.delete_ledger(ids[1]).await.unwrap();
    client.delete_ledger(ids[2]).await.unwrap();
    let report = until(&handle, "deletions fail", |report| report.delete_failures > 0).await;
    let passes = report.upkeep_passes;
    let more = sealed(&client, 2, 20).await;
    let report = until(&handle, "more ledgers come", |report| {
        report.ledgers_done >= 5 && report.upkeep_passes > passes + 2
    })
    .await;
    let denials = report.alarms.iter().filter(|alarm| alarm.contains("cannot be deleted from the bucket"));
    assert_eq!(denials.count(), 1, "{report:#?}");
    assert!(report.unreferenced_objects > 0);
    tier.faults.denies_deletions.store(false, Ordering::Relaxed);
    until(&handle, "then they go", |report| report.unreferenced_objects == 0).await;
    tier.assert_holds(&cluster, &client, &more).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}
