//! Deferred sync and force against real bookies (protocol reference, section 7.9).

use bindery_client::{CloseError, CreateError, ForceError, LedgerState, OpenMode, WhyStopped};

use crate::ledgers::cluster::{Cluster, entry, options, payload};
use crate::ledgers::{PASSWORD, assert_reads, enqueue_many, length_of, wait_for_lac};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_with_deferred_sync_are_seen_up_to_the_last_force() {
    let cluster = Cluster::start(5).await;
    let client = cluster.client().await;
    for (e, qw, qa) in [(1, 1, 1), (3, 3, 2), (5, 3, 2)] {
        let writer = client.create_ledger(options(e, qw, qa).deferred_sync(true)).await.unwrap();
        assert_eq!(writer.force().await.unwrap(), None, "there is nothing");
        enqueue_many(&writer, 0..500).await;
        assert_eq!(writer.append(&payload(500)).await.unwrap(), entry(500));
        let progress = writer.progress().borrow().clone();
        assert_eq!((progress.confirmed, progress.acknowledged), (None, Some(entry(500))));
        let reader =
            cluster.client().await.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap();
        assert_eq!(reader.refresh().await.unwrap(), None);
        assert_eq!(writer.force().await.unwrap(), Some(entry(500)));
        assert_eq!(writer.progress().borrow().confirmed, Some(entry(500)));
        wait_for_lac(&reader, 500).await;
        assert_reads(&reader, 0..501).await;
        enqueue_many(&writer, 501..1000).await;
        assert_eq!(writer.drain().await.unwrap(), Some(entry(999)));
        let id = writer.id();
        let closed = writer.close().await.unwrap();
        assert_eq!(
            (closed.last_entry, closed.length_bytes),
            (Some(entry(999)), length_of(0..1000)),
            "a close forces"
        );
        let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
        assert_reads(&reader, 0..1000).await;
    }
    let error = client.create_handed_over(options(1, 1, 1).deferred_sync(true)).await.unwrap_err();
    assert_eq!(error, CreateError::DeferredSyncHandedOver);
    // An ordinary ledger can be forced as well.
    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    enqueue_many(&writer, 0..100).await;
    assert_eq!(writer.drain().await.unwrap(), Some(entry(99)));
    assert_eq!(writer.force().await.unwrap(), Some(entry(99)));
    writer.close().await.unwrap();
    client.close().await;
    assert!(matches!(
        client.create_ledger(options(1, 1, 1).deferred_sync(true)).await,
        Err(CreateError::ClientClosed)
    ));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_stops_fails_the_force_and_one_that_came_back_cannot_answer_it() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(3, 3, 2).deferred_sync(true)).await.unwrap();
    let id = writer.id();
    enqueue_many(&writer, 0..50).await;
    writer.drain().await.unwrap();
    let member = client.metadata(id).await.unwrap().metadata.segments()[0].ensemble[1].clone();
    let index = member.as_str().trim_start_matches('b').parse().unwrap();
    cluster.stop_bookie(&member).await;
    let error = writer.force().await.unwrap_err();
    assert!(matches!(&error, ForceError::Bookies { answers, .. } if answers.0[0].0 == member), "{error}");
    cluster.start_bookie(index).await;
    // It may be refused while the client pauses between attempts to connect.
    let stopped = loop {
        match writer.force().await {
            Err(ForceError::Stopped(stopped)) => break stopped,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            Ok(lac) => panic!("{lac:?} was forced by a bookie that was started anew"),
        }
    };
    assert!(matches!(&stopped.why, WhyStopped::DeferredSync(failed) if failed.0[0].0 == member), "{stopped}");
    assert!(writer.append(b"late").await.is_err());
    let error = writer.close().await.unwrap_err();
    assert_eq!(error, CloseError::Stopped(stopped));
    // Entries that an ack quorum has are kept.
    let reader = client.open_ledger(id, PASSWORD, OpenMode::Recover).await.unwrap();
    assert_eq!(reader.last_add_confirmed(), Some(entry(49)));
    assert_reads(&reader, 0..50).await;
    client.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_add_ends_a_writer_with_deferred_sync_and_leaves_its_ledger_to_recovery() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(3, 3, 3).deferred_sync(true)).await.unwrap();
    let id = writer.id();
    writer.append(&payload(0)).await.unwrap();
    let member = client.metadata(id).await.unwrap().metadata.segments()[0].ensemble[0].clone();
    cluster.stop_bookie(&member).await;
    let error = writer.append(&payload(1)).await.unwrap_err();
    assert!(error.to_string().contains("in a ledger with deferred sync none can be replaced"), "{error}");
    drop(writer);
    let stored = client.metadata(id).await.unwrap().metadata;
    assert_eq!((stored.segments().len(), stored.state), (1, LedgerState::Open), "no ensemble change");
    let reader = client.open_ledger(id, PASSWORD, OpenMode::Recover).await.unwrap();
    assert!(reader.last_add_confirmed() >= Some(entry(0)));
    client.close().await;
    cluster.stop().await;
}
