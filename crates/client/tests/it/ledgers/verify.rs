//! Every copy of every entry, on real bookies: all there, on a bookie that was away, damaged on the way, on a dead bookie.

use std::sync::Arc;
use std::time::Duration;

use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{Answer, BatchReadRequest, ReadRequest, Transport, TransportLayer};
use bindery_client::{BookieId, Client, EntryId, Fault, LedgerId, OpenMode, VerifyReport};
use bytes::Bytes;
use tokio::time::timeout;

use crate::ledgers::cluster::{Cluster, entry, options, payload};
use crate::ledgers::{PASSWORD, enqueue_many};

pub async fn verify(client: &Client, id: LedgerId) -> VerifyReport {
    let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    let mut look = reader.verify(entry(0), None).await.unwrap();
    while look.step().await.unwrap() {}
    assert_eq!(client.memory_in_use().read_ahead_bytes, 0);
    look.into_report()
}

/// A closed ledger with this many entries.
async fn written(client: &Client, shape: (usize, usize, usize), entries: i64) -> LedgerId {
    let writer = client.create_ledger(options(shape.0, shape.1, shape.2)).await.unwrap();
    enqueue_many(&writer, 0..entries).await;
    let id = writer.id();
    writer.close().await.unwrap();
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_where_they_should_be_and_those_of_a_dead_bookie_are_unreachable() {
    let mut cluster = Cluster::start(5).await;
    let client = cluster.client().await;
    let mut ledgers = Vec::new();
    for shape in [(3, 3, 2), (5, 3, 2), (3, 2, 2), (1, 1, 1)] {
        let id = written(&client, shape, 1000).await;
        // An ack quorum confirmed the last entries; the others may still be on their way.
        let whole = async {
            loop {
                let report = verify(&client, id).await;
                if report.is_sound() {
                    return report;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let report = timeout(Duration::from_secs(20), whole).await.expect("every copy");
        assert_eq!((report.entries, report.is_closed, report.last), (1000, true, Some(entry(999))));
        assert_eq!(report.payload_bytes, (0..1000).map(|id| payload(id).len() as u64).sum::<u64>());
        assert_eq!(report.bookies.values().map(|counts| counts.sound()).sum::<u64>(), 1000 * shape.1 as u64);
        ledgers.push((id, shape));
    }
    let striped = client.metadata(ledgers[1].0).await.unwrap().metadata;
    let victim = striped.segments()[0].ensemble[2].clone();
    cluster.stop_bookie(&victim).await;
    let report = verify(&client, ledgers[1].0).await;
    // Three of five entries have it in their write set, and two copies each are left.
    assert_eq!(report.bookies[&victim].unreachable, 600);
    assert_eq!((report.copies(Fault::Unreachable), report.is_damaged(), report.undecided), (600, false, 0));
    assert!(report.findings.iter().all(|finding| finding.bookie == victim), "{:?}", report.findings);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_while_a_bookie_was_away_is_missing_there() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let writer = client.create_ledger(options(3, 3, 2)).await.unwrap();
    let id = writer.id();
    enqueue_many(&writer, 0..100).await;
    writer.drain().await.unwrap();
    let victim = client.metadata(id).await.unwrap().metadata.segments()[0].ensemble[1].clone();
    cluster.stop_bookie(&victim).await;
    // No spare: the ledger goes on with its ack quorum.
    for next in 100..300 {
        assert_eq!(writer.append(&payload(next)).await.unwrap(), entry(next));
    }
    writer.close().await.unwrap();
    let index = victim.as_str().trim_start_matches('b').parse().unwrap();
    cluster.start_bookie(index).await;
    // A client that has not met it while it was away.
    let report = verify(&cluster.client().await, id).await;
    assert_eq!((report.entries, report.below_ack_quorum), (300, 0));
    let findings: Vec<_> = report.findings.iter().map(|f| (f.bookie.clone(), f.fault, f.last)).collect();
    assert_eq!(findings, [(victim.clone(), Fault::Missing, entry(299))], "{:?}", report.findings);
    // Of the first hundred, which the others acknowledged, it may have any number.
    let of_victim = &report.bookies[&victim];
    assert!(of_victim.missing >= 200, "{}", of_victim.missing);
    assert_eq!(of_victim.missing + of_victim.sound(), 300);
    cluster.stop().await;
}

/// The network, with a bit of what one bookie returns for some entries turned over.
struct Damaging {
    bookies: Bookies,
    victim: BookieId,
}

impl Damaging {
    fn pass(&self, bookie: &BookieId, entry: EntryId, stored: Bytes) -> Bytes {
        if *bookie != self.victim || entry.get() % 10 != 3 {
            return stored;
        }
        let mut bytes = stored.to_vec();
        *bytes.last_mut().unwrap() ^= 4;
        bytes.into()
    }
}

impl TransportLayer for Damaging {
    fn beneath(&self) -> &dyn Transport {
        &self.bookies
    }

    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        let bookie = bookie.clone();
        Box::pin(async move {
            let entry = request.entry.unwrap();
            Ok(self.pass(&bookie, entry, self.bookies.read(&bookie, request).await?))
        })
    }

    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        let bookie = bookie.clone();
        Box::pin(async move {
            let entries = (request.first.get()..).map(entry);
            let stored = self.bookies.batch_read(&bookie, request).await?;
            Ok(entries.zip(stored).map(|(entry, stored)| self.pass(&bookie, entry, stored)).collect())
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_copies_are_found_and_readers_get_the_others() {
    let cluster = Cluster::start(3).await;
    let id = written(&cluster.client().await, (3, 3, 3), 500).await;
    let victim = BookieId::new("b1").unwrap();
    let layout = cluster.layout().await;
    let bookies = Bookies::new(layout.registration(), ConnectionOptions::default());
    let transport = Arc::new(Damaging { bookies, victim: victim.clone() });
    let client = Client::builder().layout(layout).transport(transport).connect().await.unwrap();
    let report = verify(&client, id).await;
    assert_eq!((report.entries, report.below_ack_quorum, report.first_below), (500, 50, Some(entry(3))));
    assert_eq!(report.bookies[&victim].damaged, 50);
    assert_eq!((report.copies(Fault::Damaged), report.is_damaged(), report.lost), (50, true, 0));
    assert_eq!(report.findings[0].to_string(), "b1: entry 3 damaged");
    let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    crate::ledgers::assert_reads(&reader, 0..500).await;
    cluster.stop().await;
}
