//! Claims and recoveries when the store fails for a moment, or holds what no client of ours writes.

use std::time::Duration;

use bindery_client::{
    AppendOpenError, BookieId, Client, CreateError, HANDOVER_PROPERTY, LedgerError, LedgerId, LedgerMetadata,
    OpenError, OpenMode, Quorum, RecoveryError, Segment,
};
use bindery_metadata::memory::Fault;
use bindery_types::{DigestType, LedgerSecret};

use crate::ledgers::PASSWORD;
use crate::ledgers::cluster::{Cluster, entry, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_outlasts_a_store_that_fails_for_a_moment() {
    let cluster = Cluster::start(1).await;
    let id = cluster.client().await.create_handed_over(options(1, 1, 1)).await.unwrap();
    for fault in [Fault::LossBeforeApply, Fault::LossAfterApply] {
        let (client, store) = cluster.client_on_store().await;
        store.inject(fault);
        let claim = tokio::spawn(async move { client.open_for_append(id, PASSWORD).await });
        // Whatever the claim is at: reading, writing, or finding out what became of the write.
        store.disconnect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        store.reconnect();
        let writer = claim.await.unwrap().unwrap();
        writer.append(b"x").await.unwrap();
        writer.hand_over().await.unwrap();
    }
    cluster.stop().await;
}

/// Claims a ledger until the claim has been written and not been answered for, and drops the call then.
async fn drop_a_claim_midway(cluster: &Cluster, id: LedgerId) -> Client {
    let looks = cluster.client().await;
    loop {
        // The claim is written, its answer is lost, and the call waits a moment before it looks what became of it.
        let (client, store) = cluster.client_on_store().await;
        store.inject(Fault::LossAfterApply);
        let is_busy = async {
            let busy = |metadata: &LedgerMetadata| metadata.custom[HANDOVER_PROPERTY].starts_with(b"busy");
            while !busy(&looks.metadata(id).await.unwrap().metadata) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = is_busy => return client,
            // It was too fast, on a machine that stood still.
            writer = client.open_for_append(id, PASSWORD) => drop(writer.unwrap().hand_over().await.unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_midway_leaves_its_ledger_to_others() {
    let cluster = Cluster::start(1).await;
    let id = cluster.client().await.create_handed_over(options(1, 1, 1)).await.unwrap();
    for at in 0..4 {
        let client = drop_a_claim_midway(&cluster, id).await;
        let next = match at % 2 {
            // The same client may take it again, and so may others.
            0 => client.clone(),
            _ => cluster.client().await,
        };
        let is_free = async {
            loop {
                match next.open_for_append(id, PASSWORD).await {
                    Ok(writer) => return writer,
                    Err(AppendOpenError::Busy(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let writer = tokio::time::timeout(Duration::from_secs(60), is_free).await.expect("it is handed over");
        assert_eq!(writer.append(b"x").await.unwrap(), entry(at), "nothing was written meanwhile");
        writer.hand_over().await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_closed_hands_over_first_what_it_took_for_a_dropped_call() {
    let cluster = Cluster::start(1).await;
    let id = cluster.client().await.create_handed_over(options(1, 1, 1)).await.unwrap();
    let client = drop_a_claim_midway(&cluster, id).await;
    client.close().await;
    let writer = cluster.client().await.open_for_append(id, PASSWORD).await.unwrap();
    writer.hand_over().await.unwrap();
    let error = client.open_for_append(id, PASSWORD).await.unwrap_err();
    assert!(matches!(error, AppendOpenError::ClientClosed), "{error}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_and_deleting_outlast_a_store_that_fails_for_a_moment() {
    let cluster = Cluster::start(1).await;
    let (client, store) = cluster.client_on_store().await;
    // Once while the store is away, then with each answer lost: of the id, of the ledger, and of the deletion.
    let fails = |client: Client| async move {
        let id = client.create_handed_over(options(1, 1, 1)).await?;
        client.metadata(id).await.expect("it was created");
        assert_eq!(client.bookies().await.expect("registered").len(), 1);
        Ok::<_, CreateError>(id)
    };
    store.disconnect();
    let created = tokio::spawn(fails(client.clone()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    store.reconnect();
    let mut ids = vec![created.await.unwrap().unwrap()];
    for fault in [Fault::LossBeforeApply, Fault::LossAfterApply] {
        for writes in 0..6 {
            store.inject_at(writes, fault);
            ids.push(fails(client.clone()).await.unwrap());
        }
    }
    let ledgers = cluster.layout().await.ledgers();
    let mut listing = ledgers.list();
    let mut found = Vec::new();
    while let Some(range) = listing.next().await.unwrap() {
        found.extend(range);
    }
    assert_eq!(found, ids, "no ledger was created that nobody knows of");
    for (at, id) in ids.iter().enumerate() {
        store.inject(if at % 2 == 0 { Fault::LossAfterApply } else { Fault::LossBeforeApply });
        client.delete_ledger(*id).await.unwrap();
        assert_eq!(client.metadata(*id).await.unwrap_err(), LedgerError::NotFound(*id));
    }
    assert_eq!(client.delete_ledger(ids[0]).await, Err(LedgerError::NotFound(ids[0])));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_is_refused_whose_hand_over_does_not_fit_its_metadata() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let id = client.create_handed_over(options(1, 1, 1)).await.unwrap();
    let ledgers = cluster.layout().await.ledgers();
    for text in ["idle next=4 length=9", "idle next=5 length=9223372036854775808"] {
        let stored = ledgers.get(id).await.unwrap();
        let mut metadata =
            LedgerMetadata::new(stored.metadata.quorum, stored.metadata.secret.clone().unwrap());
        let ensemble = stored.metadata.segments()[0].ensemble.clone();
        metadata.push_segment(Segment { first_entry: entry(5), ensemble }).unwrap();
        metadata.custom.insert(HANDOVER_PROPERTY.into(), text.into());
        ledgers.update(id, &metadata, stored.version).await.unwrap();
        let error = client.open_for_append(id, PASSWORD).await.unwrap_err();
        assert!(matches!(&error, AppendOpenError::UnknownHandover { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_recovery_refuses_a_write_quorum_above_the_limit() {
    let cluster = Cluster::start(0).await;
    let (id, size) = (LedgerId::new(7).unwrap(), 65);
    let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: PASSWORD.to_vec() };
    let mut metadata = LedgerMetadata::new(Quorum::new(size, size, 1).unwrap(), secret);
    let ensemble = (0..size).map(|index| BookieId::new(format!("b{index}")).unwrap()).collect();
    metadata.push_segment(Segment { first_entry: entry(0), ensemble }).unwrap();
    cluster.layout().await.ledgers().create(id, &metadata).await.unwrap();
    let error = cluster.client().await.open_ledger(id, PASSWORD, OpenMode::Recover).await.unwrap_err();
    assert!(
        matches!(
            &error,
            OpenError::Recovery(RecoveryError::WriteQuorumTooLarge { write_quorum_size: 65, .. })
        ),
        "{error}"
    );
}
