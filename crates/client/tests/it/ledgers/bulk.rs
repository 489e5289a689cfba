//! Stored bytes read in bulk from real bookies.

use std::time::Duration;

use bindery_client::{
    BulkOptions, EntryId, LedgerState, LedgerView, OpenMode, ReadError, StoredEntry, TierSupport,
};
use bindery_wire::entry::EntryHeader;

use crate::ledgers::cluster::{Cluster, entry, options, payload};
use crate::ledgers::{PASSWORD, assert_reads, enqueue_many, wait_for_lac};

/// Header and digest (CRC32C) of a stored entry.
const FRONT_BYTES: usize = 32 + 4;

async fn read(view: &LedgerView, first: i64, last: i64) -> Result<Vec<StoredEntry>, ReadError> {
    let (mut stream, mut entries) = (view.read(entry(first), entry(last)), Vec::new());
    while let Some(batch) = stream.next().await {
        entries.extend_from_slice(batch?.entries());
    }
    Ok(entries)
}

/// Nothing when `last` is -1.
async fn read_up_to(view: &LedgerView, last: i64) -> Vec<StoredEntry> {
    if last < 0 { Vec::new() } else { read(view, 0, last).await.unwrap() }
}

/// The LAC comes to be this entry, which is the last one. Not all bookies learn it at once, and each reader asks others first.
async fn assert_reaches(view: &LedgerView, last: i64) {
    let reaches = async {
        loop {
            let lac = view.refresh().await.unwrap();
            assert!(lac <= Some(entry(last)), "{lac:?} is behind the last entry");
            if lac == Some(entry(last)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reaches).await.expect("an explicit LAC");
}

fn assert_stored(view: &LedgerView, entries: &[StoredEntry], ids: std::ops::Range<i64>) {
    assert_eq!(entries.len() as i64, ids.end - ids.start);
    for (found, id) in entries.iter().zip(ids) {
        assert_eq!((found.id, found.is_verified), (entry(id), true));
        let header = EntryHeader::of(&found.bytes).unwrap();
        assert_eq!((header.ledger_id, header.entry_id), (view.id().get(), id));
        assert!(header.last_add_confirmed < id, "as its writer sent it");
        assert_eq!(&found.bytes[FRONT_BYTES..], &payload(id)[..]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_of_every_shape_are_read_while_they_are_written_and_after_a_bookie_stopped() {
    let mut cluster = Cluster::start(6).await;
    for (turn, (e, qw, qa)) in [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)].into_iter().enumerate() {
        let client = cluster.client().await;
        let reader = cluster.client().await.bulk(BulkOptions::default());
        let writer = client.create_ledger(options(e, qw, qa)).await.unwrap();
        enqueue_many(&writer, 0..1000).await;
        writer.drain().await.unwrap();
        // Open: up to what is confirmed, without the password, and the writer goes on.
        let view = reader.open(writer.id()).await.unwrap();
        let last = view.refresh().await.unwrap().map_or(-1, EntryId::get);
        assert_stored(&view, &read_up_to(&view, last).await, 0..last + 1);
        let ordinary = client.open_ledger(writer.id(), PASSWORD, OpenMode::ReadOnly).await.unwrap();
        wait_for_lac(&ordinary, 999).await;
        assert_reaches(&view, 999).await;
        assert_stored(&view, &read(&view, 0, 999).await.unwrap(), 0..1000);
        assert!(!view.is_sealed());
        assert!(matches!(read(&view, 0, 1000).await, Err(ReadError::BeyondEnd { .. })));
        if qw > 1 {
            // A segment with another bookie, of which a stopped one is part of the first.
            let metadata = client.metadata(writer.id()).await.unwrap().metadata;
            let member = metadata.segments()[0].ensemble[turn % e].clone();
            cluster.stop_bookie(&member).await;
            enqueue_many(&writer, 1000..2000).await;
            writer.drain().await.unwrap();
            let metadata = client.metadata(writer.id()).await.unwrap().metadata;
            assert!(metadata.segments().len() > 1, "{e}/{qw}/{qa}");
            wait_for_lac(&ordinary, 1999).await;
            assert_reaches(&view, 1999).await;
            assert_stored(&view, &read(&view, 0, 1999).await.unwrap(), 0..2000);
            cluster.start_bookie(member.as_str().trim_start_matches('b').parse().unwrap()).await;
        }
        let end = view.last_readable().unwrap().get() + 1;
        enqueue_many(&writer, end.max(1000)..end.max(1000) + 10).await;
        let last = writer.close().await.expect("nobody fenced it").last_entry.unwrap().get();
        assert_eq!(view.refresh().await.unwrap(), Some(entry(last)));
        assert!(view.is_sealed());
        assert!(matches!(view.metadata().0.state, LedgerState::Closed { .. }));
        let entries = read(&view, 0, last).await.unwrap();
        assert_stored(&view, &entries, 0..last + 1);
        assert_stored(&view, &read(&view, 500, 501).await.unwrap(), 500..502);
        let counts = reader.counts();
        assert_eq!((counts.refused_ranges, counts.damaged_copies), (0, 0));
        drop(entries);
        client.close().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_reads_and_ordinary_ones_go_side_by_side() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    for (e, qw, qa) in [(3, 3, 2), (3, 2, 2)] {
        let writer = client.create_ledger(options(e, qw, qa)).await.unwrap();
        enqueue_many(&writer, 0..3000).await;
        let id = writer.id();
        writer.close().await.unwrap();
        let options = BulkOptions::new().memory_limit(1 << 20).range_size_bytes(100_000);
        let view = client.bulk(options).open(id).await.unwrap();
        let ordinary = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
        let bulk = (0..8).map(|_| {
            let view = view.clone();
            tokio::spawn(async move {
                let entries = read(&view, 0, 2999).await.unwrap();
                assert_stored(&view, &entries, 0..3000);
            })
        });
        let bulk: Vec<_> = bulk.collect();
        assert_reads(&ordinary, 0..3000).await;
        for read in bulk {
            read.await.unwrap();
        }
    }
    // Without a tier URL bookies do not take part.
    for bookie in client.bookies().await.unwrap() {
        assert_eq!(client.tier_support(&bookie.id).await, Ok(TierSupport::KeepsEverything));
    }
    client.close().await;
    cluster.stop().await;
}
