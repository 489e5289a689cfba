//! Entries that lack a copy, on real bookies: filled by the writer when the bookie is back soon, marked when it is not, and at
//! an end of a segment in any case.

use std::time::Duration;

use bindery_client::{BookieId, Client, Fault, LedgerId, LedgerWriter};
use tokio::time::timeout;

use crate::ledgers::cluster::{Cluster, entry, options, payload};
use crate::ledgers::verify::verify;
use crate::ledgers::{PASSWORD, enqueue_many};

/// A bookie of the ledger's last ensemble.
async fn member(client: &Client, id: LedgerId) -> BookieId {
    client.metadata(id).await.unwrap().metadata.segments().last().unwrap().ensemble[1].clone()
}

async fn append(writer: &LedgerWriter, ids: std::ops::Range<i64>) {
    for id in ids {
        assert_eq!(writer.append(&payload(id)).await.unwrap(), entry(id));
    }
}

fn index_of(bookie: &BookieId) -> usize {
    bookie.as_str()[1..].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_is_back_soon_gets_what_it_missed_from_the_writer() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    let id = writer.id();
    append(&writer, 0..20).await;
    let victim = member(&client, id).await;
    cluster.stop_bookie(&victim).await;
    append(&writer, 20..60).await;
    assert_eq!(client.write_health().writers_short, 1);
    cluster.start_bookie(index_of(&victim)).await;
    let back = async {
        while client.write_health().copies_filled < 40 || client.write_health().writers_short > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), back).await.expect("filled, and written to again");
    append(&writer, 60..80).await;
    let complete = async {
        while client.memory_in_use().adds_bytes > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), complete).await.expect("no answer is missing, and no entry kept");
    writer.close().await.unwrap();
    assert_eq!(client.write_health().copies_missing, 0);
    let report = verify(&client, id).await;
    assert!(report.is_sound() && report.entries == 80, "{:?}", report.findings);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_ends_while_a_bookie_is_down_is_marked_and_the_next_one_begins_a_segment() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let id = client.create_handed_over(options(3, 3, 2)).await.unwrap();
    let victim = member(&client, id).await;
    let writer = client.open_for_append(id, PASSWORD).await.unwrap();
    enqueue_many(&writer, 0..10).await;
    writer.hand_over().await.unwrap();
    cluster.stop_bookie(&victim).await;
    for round in 1..4 {
        let before = client.write_health().copies_missing;
        let writer = client.open_for_append(id, PASSWORD).await.unwrap();
        // One entry: it is complete before the bookie that is away is missed, or after.
        append(&writer, 9 + round..10 + round).await;
        writer.hand_over().await.unwrap();
        assert_eq!(client.write_health().copies_missing, before + 1);
        assert_eq!(client.under_replicated_on(id).await.unwrap(), [victim.to_string()]);
    }
    cluster.start_bookie(index_of(&victim)).await;
    // A client that has not met it while it was away.
    let client = cluster.client().await;
    let writer = client.open_for_append(id, PASSWORD).await.unwrap();
    append(&writer, 13..20).await;
    writer.close().await.unwrap();
    let report = verify(&client, id).await;
    assert_eq!(report.copies(Fault::Missing), 3, "{:?}", report.findings);
    let gap = &report.findings[0];
    assert_eq!((&gap.bookie, gap.first, gap.last), (&victim, entry(10), entry(12)));
    let metadata = client.metadata(id).await.unwrap().metadata;
    let starts: Vec<i64> = metadata.segments().iter().map(|segment| segment.first_entry.get()).collect();
    assert!(starts.contains(&13), "the gap ends where a segment does: {starts:?}");
    cluster.stop().await;
}
