//! When a LAC (last add confirmed) is announced by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{Answer, Transport, TransportLayer};
use bindery_client::{BookieId, EntryId, LedgerId, OpenMode};
use bindery_types::MasterKey;
use bytes::Bytes;
use tokio::time::Instant;

use crate::ledgers::cluster::{Cluster, options};
use crate::ledgers::{PASSWORD, wait_for_lac};

/// The network, with explicit LACs counted.
struct Counting {
    bookies: Bookies,
    lacs: AtomicUsize,
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
        self.bookies.write_lac(bookie, ledger, key, lac, body)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explicit_lac_is_written_only_when_no_entry_follows() {
    let cluster = Cluster::start(1).await;
    let bookies = Bookies::new(cluster.layout().await.registration(), ConnectionOptions::default());
    let transport = Arc::new(Counting { bookies, lacs: AtomicUsize::new(0) });
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
