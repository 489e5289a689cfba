//! Deleted ledgers leave the catalogue, and their objects the bucket (T13, T17).

use std::sync::atomic::Ordering;
use std::time::Duration;

use std::path::Path;
use std::sync::Arc;

use bindery_client::EntryId;
use bindery_io::{SystemClock, SystemRandom};
use bindery_reconciler::core::upkeep::UpkeepSettings;
use bindery_reconciler::{StartError, TiererConfig};
use bindery_tiering::catalogue::{CatalogueError, CatalogueOptions, rebuild};
use bytes::Bytes;

use super::cluster::Cluster;
use super::tiering::{Tier, config, sealed, until};

/// Passes come at once, and objects go after a moment.
pub fn quick() -> TiererConfig {
    let mut config = config();
    config.settings.doubt_kept = Duration::from_millis(500);
    config.settings.upkeep = UpkeepSettings {
        interval: Duration::from_millis(200),
        delete_delay: Duration::from_millis(500),
        confirm_pause: Duration::from_millis(100),
        rewrite_pause: Duration::from_millis(200),
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

#[allow(clippy::disallowed_methods, reason = "a bucket in a real directory, changed by hand")]
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// All of the catalogue is deleted under a tierer that runs, an older copy is put back, and it is rebuilt: no object goes, and it goes on by
/// itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalogue_that_is_lost_or_older_takes_no_object_with_it() {
    let cluster = Cluster::start(3, 3).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let mut ids = sealed(&client, 3, 50).await;
    let tierer = tier.start(&cluster, &client, quick()).await;
    let handle = tierer.handle();
    until(&handle, "all in the tier", |report| report.ledgers_done == 3).await;
    let catalogue = tier.part(&cluster, "catalogue").await;
    let older = tier.part(&cluster, "older").await;
    copy(&catalogue, &older);
    ids.extend(sealed(&client, 3, 50).await);
    until(&handle, "more in the tier", |report| report.ledgers_done == 6).await;
    let objects = tier.objects();
    assert!(objects > 1);

    std::fs::remove_dir_all(&catalogue).unwrap();
    let report = until(&handle, "it notices", |report| report.deletions_stopped.is_some()).await;
    assert!(report.deletions_stopped.as_ref().unwrap().contains("bindery tier rebuild"), "{report:#?}");
    let passes = report.upkeep_passes;
    until(&handle, "passes", |report| report.upkeep_passes > passes + 5).await;
    assert_eq!(tier.objects(), objects);
    let refused = tier.try_start(&cluster, &client, quick()).await.err().unwrap();
    assert!(matches!(refused, StartError::Catalogue(CatalogueError::Lost { .. })), "{refused}");

    copy(&older, &catalogue);
    let passes = handle.report().await.unwrap().upkeep_passes;
    let report = until(&handle, "passes", |report| report.upkeep_passes > passes + 5).await;
    assert!(report.deletions_stopped.is_some(), "{report:#?}");
    assert_eq!(tier.objects(), objects);

    let id = cluster.layout().await.instance_id().await.unwrap().unwrap().trim().parse().unwrap();
    let (clock, random) = (Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    rebuild(&tier.store, id, &CatalogueOptions::default(), clock, random, |_| None, |_| ()).await.unwrap();
    until(&handle, "it goes on", |report| {
        report.deletions_stopped.is_none() && report.catalogue_ledgers == 6
    })
    .await;
    ids.extend(sealed(&client, 2, 20).await);
    until(&handle, "and tiers", |report| report.catalogue_ledgers == 8 && report.ledgers_done == 8).await;
    tier.assert_holds(&cluster, &client, &ids).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}
