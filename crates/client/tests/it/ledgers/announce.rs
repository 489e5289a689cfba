//! When a LAC (last add confirmed) is announced by itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{Answer, Transport, TransportLayer};
use bindery_client::{BookieId, EntryId, LedgerId, OpenMode};
use bindery_types::MasterKey;
use bytes::Bytes;
use tokio::time::Instant;

use crate::ledgers::cluster::{Cluster, entry, options, payload};
use crate::ledgers::{PASSWORD, assert_reads, enqueue_many, wait_for_lac};

/// The network, with explicit LACs counted, and those to one bookie never answered.
struct Counting {
    bookies: Bookies,
    lacs: AtomicUsize,
    silent: OnceLock<BookieId>,
    lacs_to_silent: AtomicUsize,
}

impl Counting {
    async fn of(cluster: &Cluster) -> Arc<Counting> {
        let bookies = Bookies::new(cluster.layout().await.registration(), ConnectionOptions::default());
        let (lacs, lacs_to_silent) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Counting { bookies, lacs, silent: OnceLock::new(), lacs_to_silent })
    }
}

impl TransportLayer for Counting {
    fn beneath(&self) -> &dyn Transport {
        &self.bookies
    }

    fn write_lac(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        key: MasterKey,
        lac: EntryId,
        body: Bytes,
    ) -> Answer<'_, ()> {
        self.lacs.fetch_add(1, Ordering::SeqCst);
        if self.silent.get() == Some(bookie) {
            self.lacs_to_silent.fetch_add(1, Ordering::SeqCst);
            return Box::pin(std::future::pending());
        }
        self.bookies.write_lac(bookie, ledger, key, lac, body)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explicit_lac_is_written_only_when_no_entry_follows() {
    let cluster = Cluster::start(1).await;
    let transport = Counting::of(&cluster).await;
    let builder = cluster.builder().await.transport(transport.clone());
    let interval = Duration::from_secs(1);
    let client = builder.explicit_lac_interval(interval).connect().await.unwrap();
    let writer = client.create_ledger(options(1, 1, 1)).await.unwrap();
    // On a machine that stands still for an interval no entry follows in time, either.
    let (mut begun, mut pauses) = (Instant::now(), 0);
    for _ in 0..120 {
        let began = Instant::now();
        writer.append(b"x").await.unwrap();
        pauses += usize::from(begun.elapsed() >= interval);
        begun = began;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let reader = cluster.client().await.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap();
    wait_for_lac(&reader, 119).await;
    // Each entry announces the one before it, so only the last one is announced by itself.
    let announced = transport.lacs.load(Ordering::SeqCst);
    assert!((1..=1 + pauses).contains(&announced), "{announced} with {pauses} pauses");
    writer.close().await.unwrap();
    cluster.stop().await;
}

/// Nothing is announced by itself so soon.
const NEVER: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_drained_is_seen_by_whoever_looks() {
    let cluster = Cluster::start(3).await;
    let client = cluster.builder().await.explicit_lac_interval(NEVER).connect().await.unwrap();
    let readers = cluster.client().await;
    for (e, qw, qa) in [(1, 1, 1), (3, 3, 2), (3, 2, 2), (3, 2, 1)] {
        let writer = client.create_ledger(options(e, qw, qa)).await.unwrap();
        enqueue_many(&writer, 0..1000).await;
        assert_eq!(writer.drain().await.unwrap(), Some(entry(999)));
        let reader = readers.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap();
        assert_eq!(reader.last_add_confirmed(), Some(entry(999)), "{e}/{qw}/{qa}");
        // A run without a last entry looks again before it ends.
        enqueue_many(&writer, 1000..1500).await;
        writer.drain().await.unwrap();
        let mut all = reader.read(..);
        for id in 0..1500 {
            assert_eq!(all.next().await.unwrap().unwrap().id, entry(id));
        }
        assert!(all.next().await.is_none());
        writer.append(&payload(1500)).await.unwrap();
        assert!(all.next().await.is_none(), "over is over");
        writer.drain().await.unwrap();
        assert_reads(&reader, 0..1501).await;
        // Behind the end there is nothing, and that is no error where no last entry was named.
        assert!(reader.read(entry(1600)..).next().await.is_none());
        assert!(reader.read(entry(1600)..=entry(1600)).next().await.unwrap().is_err());
        writer.close().await.unwrap();
        assert!(reader.read(entry(1501)..).next().await.is_none());
        assert!(reader.is_closed(), "the look found that");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_at_once_what_a_writer_of_their_own_client_confirmed() {
    let cluster = Cluster::start(1).await;
    let client = cluster.builder().await.explicit_lac_interval(NEVER).connect().await.unwrap();
    let writer = client.create_ledger(options(1, 1, 1)).await.unwrap();
    let early = client.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap();
    for id in 0..20 {
        writer.append(&payload(id)).await.unwrap();
        let reader = client.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap();
        assert_eq!(reader.last_add_confirmed(), Some(entry(id)));
    }
    let mut all = early.read(..);
    for id in 0..20 {
        assert_eq!(all.next().await.unwrap().unwrap().id, entry(id));
    }
    assert!(all.next().await.is_none());
    assert_eq!(early.read_entry(entry(19)).await.unwrap().id, entry(19));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_waits_for_an_ack_quorum_and_asks_a_silent_bookie_once() {
    let cluster = Cluster::start(3).await;
    let transport = Counting::of(&cluster).await;
    let builder = cluster.builder().await.transport(transport.clone());
    let client = builder.explicit_lac_interval(NEVER).connect().await.unwrap();
    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    let info = client.metadata(writer.id()).await.unwrap();
    transport.silent.set(info.metadata.segments()[0].ensemble[1].clone()).unwrap();
    let readers = cluster.client().await;
    for id in 0..10 {
        enqueue_many(&writer, id..id + 1).await;
        writer.drain().await.unwrap();
        let reader = readers.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap();
        assert_eq!(reader.last_add_confirmed(), Some(entry(id)));
        // Everything was announced: there is nothing to say again.
        let before = transport.lacs.load(Ordering::SeqCst);
        writer.drain().await.unwrap();
        assert_eq!(transport.lacs.load(Ordering::SeqCst), before);
    }
    assert_eq!(transport.lacs_to_silent.load(Ordering::SeqCst), 1);
    writer.close().await.unwrap();
    cluster.stop().await;
}
