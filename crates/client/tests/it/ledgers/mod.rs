//! Whole ledgers against real bookies: created, appended to, closed, read, followed, recovered, handed over, with bookies
//! that stop meanwhile.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod announce;
mod blocking;
mod bookies;
mod bulk;
mod byte_io;
mod chain;
mod claim;
pub mod cluster;
mod force;
mod frames;
mod gaps;
mod marks;
mod placement;
mod stopped;
mod streams;
mod verify;

use std::time::Duration;

use bindery_client::{
    AppendError, AppendOpenError, Client, CloseError, CreateError, EntryId, LedgerId, LedgerReader,
    LedgerState, LedgerWriter, OpenError, OpenMode, ReadError, TryAppendError, WhyStopped,
};
use futures_util::TryStreamExt;
use tokio::time::timeout;

use crate::ledgers::cluster::{Cluster, entry, options, payload};

const PASSWORD: &[u8] = b"secret";

async fn enqueue_many(writer: &LedgerWriter, ids: std::ops::Range<i64>) {
    for id in ids {
        assert_eq!(writer.enqueue(&payload(id)).await.unwrap(), entry(id));
    }
}

async fn assert_reads(reader: &LedgerReader, ids: std::ops::Range<i64>) {
    let mut stream = reader.read(entry(ids.start)..=entry(ids.end - 1));
    let mut length_bytes = (0..ids.start).map(|id| payload(id).len() as u64).sum::<u64>();
    for id in ids {
        let found = stream.next().await.unwrap().unwrap();
        length_bytes += payload(id).len() as u64;
        assert_eq!((found.id, &found.payload[..]), (entry(id), &payload(id)[..]));
        assert_eq!(found.length_bytes, length_bytes, "entry {id}");
    }
    assert!(stream.next().await.is_none());
}

/// Until the bookies know that this entry is confirmed, with no entry after it: by an explicit LAC.
async fn wait_for_lac(reader: &LedgerReader, last: i64) {
    let seen = async {
        while reader.refresh().await.unwrap() != Some(entry(last)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), seen).await.expect("an explicit LAC");
}

fn length_of(ids: std::ops::Range<i64>) -> u64 {
    ids.map(|id| payload(id).len() as u64).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_of_every_shape_are_written_closed_and_read_back() {
    let cluster = Cluster::start(5).await;
    let client = cluster.client().await;
    for (e, qw, qa) in [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)] {
        let writer = client.create_ledger(options(e, qw, qa)).await.unwrap();
        let id = writer.id();
        enqueue_many(&writer, 0..2000).await;
        assert_eq!(writer.append(&payload(2000)).await.unwrap(), entry(2000));
        assert_eq!(writer.progress().borrow().confirmed, Some(entry(2000)));
        enqueue_many(&writer, 2001..2010).await;
        let closed = writer.close().await.unwrap();
        let end = (Some(entry(2009)), length_of(0..2010));
        assert_eq!((closed.last_entry, closed.length_bytes), end, "{e}/{qw}/{qa}");

        for how in [OpenMode::Recover, OpenMode::ReadOnly] {
            let reader = cluster.client().await.open_ledger(id, PASSWORD, how).await.unwrap();
            assert!(reader.is_closed());
            assert_eq!(reader.length_bytes(), Some(end.1));
            assert_reads(&reader, 0..2010).await;
            assert_reads(&reader, 1234..1235).await;
            let beyond = reader.read_entry(entry(2010)).await.unwrap_err();
            assert!(matches!(&beyond, ReadError::BeyondEnd { last, .. } if *last == end.0), "{beyond}");
        }
        let info = client.metadata(id).await.unwrap();
        assert_eq!(info.metadata.quorum.ensemble_size(), e);
        assert_eq!(info.metadata.segments().len(), 1);
    }
    let empty = client.create_ledger(options(3, 2, 2)).await.unwrap();
    let id = empty.id();
    let closed = empty.close().await.unwrap();
    assert_eq!((closed.last_entry, closed.length_bytes), (None, 0));
    let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    assert_eq!((reader.last_add_confirmed(), reader.length_bytes()), (None, Some(0)));
    assert!(reader.tail(entry(0)).next().await.is_none());
    let ledgers: Vec<LedgerId> = client.ledgers().try_collect().await.unwrap();
    assert_eq!(ledgers.len(), 5);
    let mut listing = client.ledgers();
    assert_eq!(listing.next().await, Some(Ok(ledgers[0])));
    assert_eq!(listing.next_range().await.unwrap().unwrap(), &ledgers[1..], "what is left of the range");
    assert_eq!((listing.next_range().await, listing.next().await), (None, None));
    client.delete_ledger(id).await.unwrap();
    assert!(matches!(
        client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await,
        Err(OpenError::NotFound(_))
    ));
    assert_eq!(client.bookies().await.unwrap().len(), 5);
    client.close().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_work_is_refused_with_a_reason() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let error = client.create_ledger(options(3, 2, 2)).await.unwrap_err();
    assert!(
        matches!(&error, CreateError::NotEnoughBookies(e) if (e.needed, e.available) == (3, 1)),
        "{error}"
    );
    assert!(error.to_string().contains("3 needed, 1 available"), "{error}");

    let writer = client.create_ledger(options(1, 1, 1)).await.unwrap();
    let id = writer.id();
    let large = vec![0; writer.payload_bytes_max() as usize + 1];
    assert!(matches!(writer.enqueue(&large).await, Err(AppendError::TooLarge { .. })));
    assert_eq!(writer.append(&large[1..]).await.unwrap(), entry(0), "the largest entry");
    let confirmed = writer.try_append(b"at once").unwrap();
    assert_eq!(writer.try_enqueue(b"behind it").unwrap(), entry(2), "it has its id already");
    assert_eq!(confirmed.await.unwrap(), entry(1));
    assert!(matches!(writer.try_append(&large), Err(TryAppendError::Append(AppendError::TooLarge { .. }))));
    let error = client.open_ledger(id, b"wrong", OpenMode::Recover).await.unwrap_err();
    assert!(matches!(error, OpenError::WrongPassword(_)), "{error}");
    let error = client.open_for_append(id, PASSWORD).await.unwrap_err();
    assert!(matches!(error, AppendOpenError::NotHandedOver(_)), "{error}");
    assert!(error.to_string().contains("bindery ledger close"), "{error}");
    writer.close().await.unwrap();
    let error = client.open_for_append(id, PASSWORD).await.unwrap_err();
    assert!(matches!(error, AppendOpenError::Closed { last_entry: Some(_), .. }), "{error}");
    let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    assert_eq!(reader.read_entry(entry(0)).await.unwrap().payload, large[1..]);

    let writer = client.create_ledger(options(1, 1, 1)).await.unwrap();
    client.close().await;
    let error = writer.append(b"x").await.unwrap_err();
    assert!(matches!(&error, AppendError::Stopped(s) if s.why == WhyStopped::ClientClosed), "{error}");
    assert_eq!(client.create_ledger(options(1, 1, 1)).await.unwrap_err(), CreateError::ClientClosed);
    cluster.stop().await;
}

/// Writes until the stop of a bookie was noticed and dealt with.
async fn write_across_stop(
    cluster: &mut Cluster,
    client: &Client,
    shape: (usize, usize, usize),
) -> LedgerWriter {
    let writer = client.create_ledger(options(shape.0, shape.1, shape.2)).await.unwrap();
    enqueue_many(&writer, 0..500).await;
    // Confirmed entries stay with their bookies: the change appends a segment.
    writer.drain().await.unwrap();
    let info = client.metadata(writer.id()).await.unwrap();
    let victim = info.metadata.segments()[0].ensemble[1].clone();
    let (writer, ()) = tokio::join!(
        async {
            enqueue_many(&writer, 500..1500).await;
            writer
        },
        cluster.stop_bookie(&victim)
    );
    writer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_stops_is_replaced_and_nothing_confirmed_is_lost() {
    for shape in [(3, 3, 2), (3, 2, 2), (2, 2, 1)] {
        let mut cluster = Cluster::start(4).await;
        let client = cluster.client().await;
        let writer = write_across_stop(&mut cluster, &client, shape).await;
        let id = writer.id();
        // A failure of entries that have their ack quorum waits for a later entry.
        let mut next = 1500;
        let replaced = async {
            while client.metadata(id).await.unwrap().metadata.segments().len() == 1 {
                assert_eq!(writer.append(&payload(next)).await.unwrap(), entry(next));
                next += 1;
            }
        };
        timeout(Duration::from_secs(20), replaced).await.expect("an ensemble change");
        enqueue_many(&writer, next..next + 100).await;
        assert_eq!(writer.drain().await.unwrap(), Some(entry(next + 99)));
        let segments = client.metadata(id).await.unwrap().metadata.segments().to_vec();
        assert!(!segments.last().unwrap().ensemble.contains(&segments[0].ensemble[1]), "{segments:?}");
        writer.close().await.unwrap();
        let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
        assert_reads(&reader, 0..next + 100).await;
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_spare_bookie_the_writer_stops_and_names_the_last_confirmed_entry() {
    let mut cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(2, 2, 2)).await.unwrap();
    let id = writer.id();
    enqueue_many(&writer, 0..100).await;
    assert_eq!(writer.drain().await.unwrap(), Some(entry(99)));
    let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    wait_for_lac(&reader, 99).await;
    let victim = client.metadata(id).await.unwrap().metadata.segments()[0].ensemble[1].clone();
    cluster.stop_bookie(&victim).await;
    let error = writer.append(&payload(100)).await.unwrap_err();
    let AppendError::Stopped(stopped) = &error else { panic!("{error}") };
    assert_eq!(stopped.last_confirmed, Some(entry(99)));
    let WhyStopped::NotEnoughBookies(why) = &stopped.why else { panic!("{error}") };
    assert_eq!(why.failed.0[0].0, victim, "{error}");
    assert!(error.to_string().contains("last confirmed entry is 99"), "{error}");
    assert_eq!(writer.progress().borrow().failure, Some(error.clone()));
    assert!(matches!(writer.close().await, Err(CloseError::Stopped(again)) if again == *stopped));

    // With one bookie of two nothing can be hidden from the other: Qa is 2.
    let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    assert_reads(&reader, 0..100).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_of_a_dead_writer_is_recovered_also_by_several_at_once() {
    let mut cluster = Cluster::start(4).await;
    for (shape, has_failed_bookie) in [((3, 3, 2), false), ((4, 3, 2), true), ((3, 2, 2), false)] {
        let client = cluster.client().await;
        let writer = client.create_ledger(options(shape.0, shape.1, shape.2)).await.unwrap();
        let id = writer.id();
        enqueue_many(&writer, 0..1000).await;
        writer.drain().await.unwrap();
        enqueue_many(&writer, 1000..1300).await;
        // Its process dies: adds under way do not finish.
        client.close().await;
        drop(writer);
        if has_failed_bookie {
            let victim =
                cluster.client().await.metadata(id).await.unwrap().metadata.segments()[0].ensemble[0].clone();
            cluster.stop_bookie(&victim).await;
        }
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let client = cluster.client().await;
            tasks.spawn(async move { client.open_ledger(id, PASSWORD, OpenMode::Recover).await.unwrap() });
        }
        let mut ends = Vec::new();
        while let Some(reader) = tasks.join_next().await {
            let reader = reader.unwrap();
            let last = reader.last_add_confirmed().unwrap().get();
            assert!((999..1300).contains(&last), "{last}");
            assert_eq!(reader.length_bytes(), Some(length_of(0..last + 1)));
            assert_reads(&reader, 0..last + 1).await;
            ends.push(last);
        }
        assert!(ends.iter().all(|end| *end == ends[0]), "IC8: {ends:?}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_writer_is_fenced_out_by_a_recovery() {
    let cluster = Cluster::start(3).await;
    let (client, other) = (cluster.client().await, cluster.client().await);
    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    let id = writer.id();
    enqueue_many(&writer, 0..200).await;
    writer.drain().await.unwrap();
    let reader = other.open_ledger(id, PASSWORD, OpenMode::Recover).await.unwrap();
    assert_eq!(reader.last_add_confirmed(), Some(entry(199)));
    let error = writer.append(b"too late").await.unwrap_err();
    let AppendError::Stopped(stopped) = &error else { panic!("{error}") };
    assert_eq!((stopped.why.clone(), stopped.last_confirmed), (WhyStopped::Fenced, Some(entry(199))));
    assert!(writer.enqueue(b"x").await.is_err());
    assert_reads(&reader, 0..200).await;

    // One that wrote nothing meanwhile finds the same end when it closes; one that is behind does not.
    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    enqueue_many(&writer, 0..10).await;
    writer.drain().await.unwrap();
    other.open_ledger(writer.id(), PASSWORD, OpenMode::Recover).await.unwrap();
    let closed = writer.close().await.unwrap();
    assert_eq!(closed.last_entry, Some(entry(9)), "IC8");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tail_follows_across_an_ensemble_change_and_ends_with_the_ledger() {
    let mut cluster = Cluster::start(4).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(3, 2, 2)).await.unwrap();
    let id = writer.id();
    let reader = cluster.client().await.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    assert_eq!(reader.last_add_confirmed(), None);
    let tail = tokio::spawn({
        let reader = reader.clone();
        async move {
            let (mut tail, mut next) = (reader.tail(entry(0)), 0);
            while let Some(found) = tail.next().await {
                let found = found.unwrap();
                assert_eq!((found.id, &found.payload[..]), (entry(next), &payload(next)[..]));
                next += 1;
            }
            next
        }
    });
    enqueue_many(&writer, 0..300).await;
    writer.drain().await.unwrap();
    let victim = client.metadata(id).await.unwrap().metadata.segments()[0].ensemble[0].clone();
    cluster.stop_bookie(&victim).await;
    enqueue_many(&writer, 300..600).await;
    writer.drain().await.unwrap();
    // Idle: readers still learn of the last entry.
    wait_for_lac(&reader, 599).await;
    enqueue_many(&writer, 600..700).await;
    writer.close().await.unwrap();
    assert_eq!(timeout(Duration::from_secs(30), tail).await.unwrap().unwrap(), 700);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_is_handed_over_between_clients() {
    let cluster = Cluster::start(3).await;
    let id = cluster.client().await.create_handed_over(options(3, 2, 2)).await.unwrap();
    let mut next = 0;
    for turn in 0..3 {
        let client = cluster.client().await;
        let error = client.open_for_append(id, b"wrong").await.unwrap_err();
        assert!(matches!(error, AppendOpenError::WrongPassword(_)), "{error}");
        let writer = client.open_for_append(id, PASSWORD).await.unwrap();
        let error = cluster.client().await.open_for_append(id, PASSWORD).await.unwrap_err();
        assert!(matches!(error, AppendOpenError::Busy(_)), "one writer: {error}");
        enqueue_many(&writer, next..next + 50 * turn).await;
        next += 50 * turn;
        assert_eq!(writer.hand_over().await.unwrap(), EntryId::new(next - 1));
        let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
        assert_eq!(reader.last_add_confirmed(), EntryId::new(next - 1), "all of an idle ledger is confirmed");
    }
    let (a, b) = (cluster.client().await, cluster.client().await);
    let (a, b) = tokio::join!(a.open_for_append(id, PASSWORD), b.open_for_append(id, PASSWORD));
    assert!(a.is_ok() != b.is_ok(), "of two that claim it at once one gets it");
    let writer = a.or(b).unwrap();
    enqueue_many(&writer, next..next + 10).await;
    let closed = writer.close().await.unwrap();
    let length_bytes = length_of(0..next + 10);
    assert_eq!((closed.last_entry, closed.length_bytes), (Some(entry(next + 9)), length_bytes));
    let reader = cluster.client().await.open_ledger(id, PASSWORD, OpenMode::Recover).await.unwrap();
    assert_reads(&reader, 0..next + 10).await;

    // One that died busy is recovered; an idle one, too.
    let id = cluster.client().await.create_handed_over(options(3, 3, 2)).await.unwrap();
    let client = cluster.client().await;
    let writer = client.open_for_append(id, PASSWORD).await.unwrap();
    enqueue_many(&writer, 0..5).await;
    writer.hand_over().await.unwrap();
    let reader = client.open_ledger(id, PASSWORD, OpenMode::Recover).await.unwrap();
    assert_eq!((reader.last_add_confirmed(), reader.length_bytes()), (Some(entry(4)), Some(length_of(0..5))));
    let state = client.metadata(id).await.unwrap().metadata.state;
    assert!(matches!(state, LedgerState::Closed { .. }));
    cluster.stop().await;
}
