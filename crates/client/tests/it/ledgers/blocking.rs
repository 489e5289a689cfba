//! The blocking client against real bookies, and where it may not be called.

use bindery_client::blocking::{Client, Error};
use bindery_client::{AppendError, EntryId, LedgerId, OpenMode, ReadError};

use crate::ledgers::PASSWORD;
use crate::ledgers::cluster::{Cluster, entry, options, payload};

/// Runs blocking code beside a cluster that lives in this test's runtime.
async fn beside<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = tokio::sync::oneshot::channel();
    // A thread of its own, as a program without a runtime has.
    let thread = std::thread::spawn(move || drop(sender.send(run())));
    let done = done.await;
    thread.join().expect("a panic is reported above");
    done.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_are_written_read_followed_and_handed_over() {
    let cluster = Cluster::start(3).await;
    let builder = cluster.builder().await;
    beside(move || {
        let client = Client::connect(builder).unwrap();
        let writer = client.create_ledger(options(3, 2, 2)).unwrap();
        let id = writer.id();
        let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).unwrap();
        assert_eq!((&reader).into_iter().count(), 0, "nothing is confirmed yet");
        let tail = reader.tail(entry(0));
        let follower = std::thread::spawn(move || {
            tail.map(|found| found.unwrap().payload).zip(0..).all(|(found, id)| found == payload(id))
        });
        for next in 0..500 {
            assert_eq!(writer.enqueue(&payload(next)).unwrap(), entry(next));
        }
        assert_eq!(writer.drain().unwrap(), Some(entry(499)));
        assert_eq!(writer.append(&payload(500)).unwrap(), entry(500));
        assert_eq!(writer.progress().confirmed, Some(entry(500)));
        let large = vec![0; writer.payload_bytes_max() as usize + 1];
        let error = writer.append(&large).unwrap_err();
        assert!(matches!(error.failed(), Some(AppendError::TooLarge { .. })));
        assert_eq!(writer.close().unwrap().last_entry, Some(entry(500)));
        assert!(follower.join().unwrap());

        let reader = client.open_ledger(id, PASSWORD, OpenMode::Recover).unwrap();
        let entries: Vec<EntryId> = (&reader).into_iter().map(|found| found.unwrap().id).collect();
        assert_eq!(entries, (0..501).map(entry).collect::<Vec<_>>());
        assert_eq!(reader.read_entry(entry(7)).unwrap().payload, payload(7));
        let mut beyond = reader.read(entry(400)..=entry(501));
        assert!(matches!(beyond.next(), Some(Err(Error::Failed(ReadError::BeyondEnd { .. })))));
        assert!(beyond.next().is_none(), "it ends after an error");
        assert_eq!(reader.verify(entry(0), None).unwrap().entries, 501);

        let deferred = client.create_ledger(options(3, 2, 2).deferred_sync(true)).unwrap();
        let deferred_id = deferred.id();
        deferred.append(b"x").unwrap();
        assert_eq!(deferred.progress().confirmed, None);
        assert_eq!(deferred.force().unwrap(), Some(entry(0)));
        assert_eq!(deferred.close().unwrap().last_entry, Some(entry(0)));

        let shared = client.create_handed_over(options(3, 2, 2)).unwrap();
        for turn in 0..3 {
            let writer = client.open_for_append(shared, PASSWORD).unwrap();
            assert_eq!(writer.append(b"x").unwrap(), entry(turn));
            assert_eq!(writer.hand_over().unwrap(), Some(entry(turn)));
        }
        let ledgers: Vec<LedgerId> = client.ledgers().map(Result::unwrap).collect();
        assert_eq!(ledgers, [id, deferred_id, shared]);
        assert_eq!(client.bookies().unwrap().len(), 3);
        client.delete_ledger(shared).unwrap();
        assert!(client.metadata(shared).is_err());
        client.close().unwrap();
        assert!(client.create_ledger(options(1, 1, 1)).is_err());
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inside_a_runtime_calls_are_refused_with_a_reason_and_drops_are_harmless() {
    let cluster = Cluster::start(1).await;
    let builder = cluster.builder().await;
    let error = Client::connect(builder).unwrap_err();
    assert_eq!(error, Error::InsideRuntime);
    assert!(error.to_string().contains("use bindery_client::Client"), "{error}");
    let builder = cluster.builder().await;
    let (client, writer, reader) = beside(move || {
        let client = Client::connect(builder).unwrap();
        let writer = client.create_ledger(options(1, 1, 1)).unwrap();
        writer.append(b"x").unwrap();
        let reader = client.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).unwrap();
        (client, writer, reader)
    })
    .await;
    assert_eq!(writer.append(b"x").unwrap_err(), Error::InsideRuntime);
    let mut entries = reader.read(entry(0)..=entry(0));
    assert_eq!(entries.next(), Some(Err(Error::InsideRuntime)));
    assert_eq!(entries.next(), None);
    assert!(client.ledgers().eq([Err(Error::InsideRuntime)]));
    assert_eq!(client.close(), Err(Error::InsideRuntime));
    // This call does not block, so it may be made anywhere.
    assert_eq!(writer.try_enqueue(b"y").unwrap(), entry(1));
    assert_eq!(writer.close().unwrap_err(), Error::InsideRuntime);
    drop((client, reader, entries));
    cluster.stop().await;
}
