//! Racks, from a map file or a script to the ensembles of real bookies.

#![allow(clippy::disallowed_methods, reason = "the files of an operator")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use bindery_client::resolver::{ScriptResolver, TableResolver};
use bindery_client::{BookieId, Client, CreateError, DiskWeights, EntryId, RackAware};
use bindery_io::{RealDisk, SystemRandom};

use crate::ledgers::cluster::{Cluster, options, payload};

/// The places of the bookies `b0` to `b5`: two on each of three racks.
fn rack(bookie: &BookieId) -> usize {
    bookie.as_str()[1..].parse::<usize>().unwrap() / 2
}

fn racks(bookies: &[BookieId]) -> BTreeSet<usize> {
    bookies.iter().map(rack).collect()
}

/// A map for the addresses on which [`Cluster`] starts its bookies.
fn map() -> String {
    (0..6).map(|index| format!("127.0.0.{}\t/rack-{}\n", index + 1, index / 2)).collect()
}

async fn ensemble(client: &Client, create: bindery_client::CreateOptions) -> Vec<BookieId> {
    let writer = client.create_ledger(create).await.unwrap();
    let info = client.metadata(writer.id()).await.unwrap();
    writer.close().await.unwrap();
    info.metadata.segments()[0].ensemble.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ensembles_and_replacements_are_spread_over_the_racks_of_a_map() {
    let mut cluster = Cluster::start(6).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("racks");
    std::fs::write(&path, map()).unwrap();
    let table = TableResolver::open(Arc::new(RealDisk::new()), &path).unwrap();
    let builder = cluster.builder().await.placement(RackAware::new(SystemRandom).racks_min(3).enforced(true));
    // The weights come from the bookies: all have the same disk.
    let client =
        builder.network_resolver(table).disk_weights(DiskWeights::default()).connect().await.unwrap();
    for _ in 0..10 {
        assert_eq!(racks(&ensemble(&client, options(3, 3, 2)).await).len(), 3);
    }
    assert_eq!(ensemble(&client, options(5, 5, 2)).await.len(), 5, "five on three racks are fine");

    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    writer.append(&payload(1)).await.unwrap();
    let before = client.metadata(writer.id()).await.unwrap().metadata.segments()[0].ensemble.clone();
    cluster.stop_bookie(&before[1]).await;
    // Until the failure was noticed and the bookie replaced.
    let replaced = loop {
        writer.append(&payload(2)).await.unwrap();
        let metadata = client.metadata(writer.id()).await.unwrap().metadata;
        if let Some(last) = metadata.segments().last().filter(|last| last.first_entry > EntryId::FIRST) {
            break last.ensemble.clone();
        }
    };
    assert_eq!(racks(&replaced).len(), 3);
    assert_eq!(rack(&replaced[1]), rack(&before[1]), "the other bookie of that rack");
    assert_ne!(replaced[1], before[1]);
    writer.close().await.unwrap();
    client.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_places_bookies_and_one_that_fails_places_nobody() {
    let cluster = Cluster::start(4).await;
    let dir = tempfile::tempdir().unwrap();
    let script = |name: &str, body: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        ScriptResolver::new(path)
    };
    let enforced = || RackAware::new(SystemRandom).enforced(true);
    let sound = script("sound", r#"for host in "$@"; do n=${host##*.}; echo /rack-$(( (n - 1) / 2 )); done"#);
    let client =
        cluster.builder().await.placement(enforced()).network_resolver(sound).connect().await.unwrap();
    for _ in 0..10 {
        assert_eq!(racks(&ensemble(&client, options(2, 2, 2)).await).len(), 2);
    }
    client.close().await;

    let client = cluster.builder().await.placement(enforced());
    let client = client.network_resolver(script("broken", "exit 1")).connect().await.unwrap();
    let error = client.create_ledger(options(2, 2, 2)).await.map(|_| ()).unwrap_err();
    assert!(matches!(&error, CreateError::CannotSpread { unmet, .. } if unmet.left_out == 4), "{error}");
    assert!(error.to_string().contains("broken failed (exit status: 1), and said nothing."), "{error}");
    client.close().await;
    // Not enforced, so entries are stored nevertheless.
    let client = cluster.builder().await.placement(RackAware::new(SystemRandom));
    let client = client.network_resolver(script("broken", "exit 1")).connect().await.unwrap();
    assert_eq!(ensemble(&client, options(3, 3, 2)).await.len(), 3);
    assert_eq!(client.write_health().placements_unmet, 1, "and it is counted");
    client.close().await;
    cluster.stop().await;
}
