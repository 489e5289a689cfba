//! Everything with a `next` is a `Stream`, too, with the same entries.

use bindery_client::{Entry, EntryId, OpenMode, ReadError, StoreError};
use bindery_metadata::MetadataStore;
use futures_util::stream::{FusedStream, select};
use futures_util::{FutureExt, StreamExt, TryStreamExt};

use crate::ledgers::cluster::{Cluster, entry, options, payload};
use crate::ledgers::{PASSWORD, enqueue_many, wait_for_lac};

fn ids(entries: &[Entry]) -> Vec<i64> {
    entries.iter().map(|entry| entry.id.get()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_entries_works_with_combinators() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(3, 2, 2)).await.unwrap();
    let id = writer.id();
    enqueue_many(&writer, 0..500).await;
    writer.close().await.unwrap();
    let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();

    let all: Vec<Entry> = reader.read(entry(0)..=entry(499)).try_collect().await.unwrap();
    assert_eq!(ids(&all), (0..500).collect::<Vec<_>>());
    assert!(all.iter().all(|found| found.payload == payload(found.id.get())));
    let lengths = reader.read(entry(10)..=entry(19)).map_ok(|entry| entry.payload.len());
    let length = lengths.try_fold(0, |sum, length| async move { Ok(sum + length) }).await.unwrap();
    assert_eq!(length, (10..20).map(|id| payload(id).len()).sum::<usize>());

    // Two runs side by side, of which one is left in the middle, and both ways of asking on one stream.
    let mut merged = select(reader.read(entry(0)..=entry(9)), reader.read(entry(100)..=entry(499)).take(5));
    let mut got = Vec::new();
    while let Some(found) = merged.try_next().await.unwrap() {
        got.push(found.id.get());
    }
    got.sort_unstable();
    assert_eq!(got, (0..10).chain(100..105).collect::<Vec<_>>());
    let mut stream = reader.read(entry(0)..=entry(2));
    assert!(!stream.is_terminated());
    assert_eq!(stream.next().await.unwrap().unwrap().id, entry(0));
    assert_eq!(StreamExt::next(&mut stream).await.unwrap().unwrap().id, entry(1));
    assert_eq!(stream.next().await.unwrap().unwrap().id, entry(2));
    assert!(stream.is_terminated() && StreamExt::next(&mut stream).await.is_none());

    let mut beyond = reader.read(entry(498)..=entry(500));
    let refused = beyond.try_next().await.unwrap_err();
    assert!(
        matches!(refused, ReadError::BeyondEnd { last: Some(last), .. } if last == entry(499)),
        "{refused}"
    );
    assert!(beyond.is_terminated() && beyond.try_next().await.unwrap().is_none());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tail_works_with_combinators_and_goes_on_after_it_was_left_alone() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(3, 2, 2)).await.unwrap();
    let reader = client.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap();
    let mut tail = reader.tail(EntryId::FIRST);
    // Polled without an entry to come, again and again, and left each time: no entry is lost by that.
    for _ in 0..3 {
        assert!(tail.next().now_or_never().is_none());
        assert!(StreamExt::next(&mut tail).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    enqueue_many(&writer, 0..50).await;
    let first: Vec<Entry> = tail.by_ref().take(20).try_collect().await.unwrap();
    assert_eq!(ids(&first), (0..20).collect::<Vec<_>>());
    enqueue_many(&writer, 50..60).await;
    writer.close().await.unwrap();
    let rest: Vec<Entry> = tail.by_ref().try_collect().await.unwrap();
    assert_eq!(ids(&rest), (20..60).collect::<Vec<_>>());
    assert!(tail.is_terminated() && tail.next().await.is_none());
    cluster.stop().await;
}

/// Each of them first asks for the end of the open ledger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_nobody_polls_any_more_hold_up_nobody() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    let reader = client.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap();
    enqueue_many(&writer, 0..100).await;
    writer.drain().await.unwrap();
    wait_for_lac(&client.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap(), 99).await;
    let mut left: Vec<_> = (0..20).map(|_| reader.read(entry(0)..=entry(90))).collect();
    for stream in &mut left {
        assert!(stream.next().now_or_never().is_none());
    }
    let all: Vec<Entry> = reader.read(entry(0)..=entry(90)).try_collect().await.unwrap();
    assert_eq!(ids(&all), (0..91).collect::<Vec<_>>());
    for stream in left {
        let all: Vec<Entry> = stream.try_collect().await.unwrap();
        assert_eq!(ids(&all), (0..91).collect::<Vec<_>>());
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_goes_on_after_an_error_that_passes_and_ends_after_one_that_stays() {
    let cluster = Cluster::start(1).await;
    let (client, store) = cluster.client_on_store().await;
    let id = client.create_ledger(options(1, 1, 1)).await.unwrap().id();
    let mut listing = client.ledgers();
    store.disconnect();
    for _ in 0..2 {
        let error = listing.next().await.unwrap().unwrap_err();
        assert!(error.is_transient() && !listing.is_terminated(), "{error}");
    }
    store.reconnect();
    assert_eq!(listing.next().await, Some(Ok(id)));
    assert_eq!(listing.next().await, None);
    assert!(listing.is_terminated());

    let mut listing = client.ledgers();
    store.close().await.unwrap();
    assert_eq!(listing.next().await, Some(Err(StoreError::Closed)));
    assert!(
        listing.is_terminated() && listing.next().await.is_none() && listing.next_range().await.is_none()
    );
    // Without that, one which asks for all of it would never end.
    assert_eq!(client.ledgers().take(10).count().await, 1);
    cluster.stop().await;
}
