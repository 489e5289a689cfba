//! Small extents of ledgers that were open are joined, and the objects that had them go.

use std::time::Duration;

use bindery_client::{Client, EntryId, LedgerId, LedgerWriter};
use bindery_reconciler::{TierReport, Tierer, TiererConfig};
use tokio::time::Instant;

use super::cluster::{Cluster, append, writer};
use super::tiering::{Tier, until};
use super::upkeep::quick;

const LEDGERS: u64 = 12;
const ROUNDS: u64 = 10;
/// So many that extents have about the same length: entries of this test have not.
const ENTRIES: u64 = 40;

fn with_joins(below_bytes: u64) -> TiererConfig {
    let mut config = quick();
    config.settings.upkeep.join_below_bytes = below_bytes;
    // Objects that are left over become old soon.
    config.settings.upkeep.join_after = Duration::from_secs(1);
    // Objects of this test are sparse at no time.
    config.settings.upkeep.rewrite_below = 0.0;
    config
}

/// All ledgers grow by some entries, again and again, each time up to what the tierer has moved.
async fn grow(client: &Client, tierer: &Tierer) -> Vec<LedgerWriter> {
    let mut writers = Vec::new();
    for _ in 0..LEDGERS {
        writers.push(writer(client).await);
    }
    for round in 0..ROUNDS {
        let from = i64::try_from(round * ENTRIES).unwrap();
        for writer in &writers {
            append(writer, from..from + ENTRIES as i64).await;
        }
        let all = (round + 1) * ENTRIES * LEDGERS;
        until(&tierer.handle(), "the round is in the tier", |report| report.entries == all).await;
    }
    writers
}

async fn extents(tier: &Tier, cluster: &Cluster, ledgers: &[LedgerId]) -> Vec<usize> {
    let mut catalogue = tier.catalogue(cluster).await;
    let mut counts = Vec::new();
    for ledger in ledgers {
        counts.push(catalogue.extents(*ledger, EntryId::FIRST, 1000).await.unwrap().len());
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_extents_become_one_for_each_ledger_and_their_objects_go() {
    let cluster = Cluster::start(3, 2).await;
    let client = cluster.client().await;
    let tier = Tier::new();
    let tierer = tier.start(&cluster, &client, with_joins(0)).await;
    let writers = grow(&client, &tierer).await;
    let ids: Vec<LedgerId> = writers.iter().map(LedgerWriter::id).collect();
    for writer in writers {
        writer.close().await.unwrap();
    }
    until(&tierer.handle(), "all of them are done", |report| report.ledgers_done == LEDGERS).await;
    let before = extents(&tier, &cluster, &ids).await;
    let (all, objects) = (before.iter().sum::<usize>() as u64, tier.objects() as u64);
    assert!(before.iter().all(|count| *count >= ROUNDS as usize), "{before:?}");
    tierer.stop().await;

    let tierer = tier.start(&cluster, &client, with_joins(1 << 20)).await;
    let handle = tierer.handle();
    let began = Instant::now();
    loop {
        let counts = extents(&tier, &cluster, &ids).await;
        if counts.iter().all(|count| *count <= 4) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "they are joined: {before:?} -> {counts:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let is_tidy =
        |report: &TierReport| report.catalogue_objects < objects && report.unreferenced_objects == 0;
    let report = until(&handle, "and the objects go", is_tidy).await;
    assert!(report.extents_joined >= all / 2, "{all} extents: {report:#?}");
    assert_eq!((report.rewrite_failures, report.alarms.len(), report.garbage_kept), (0, 0, 0), "{report:#?}");
    tier.assert_holds(&cluster, &client, &ids).await;
    tierer.stop().await;
    client.close().await;
    cluster.stop().await;
}
