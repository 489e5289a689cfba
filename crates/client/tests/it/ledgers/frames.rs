//! Clients whose limit of a frame is another one than that of the bookies.

use bindery_client::{AppendError, FrameLimit, OpenMode, ReadError};

use crate::ledgers::PASSWORD;
use crate::ledgers::cluster::{Cluster, entry, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_above_the_frame_limit_are_refused_one_by_one() {
    let cluster = Cluster::start(2).await;
    let large = vec![7; 100_000];
    let client = cluster.client().await;
    let writer = client.create_ledger(options(2, 2, 2)).await.unwrap();
    let id = writer.id();
    writer.append(b"small").await.unwrap();
    writer.append(&large).await.unwrap();
    writer.append(b"last").await.unwrap();
    writer.close().await.unwrap();

    let limit = FrameLimit::new(50_000).unwrap();
    let narrow = cluster.builder().await.frame_limit(limit).connect().await.unwrap();
    let other = narrow.create_ledger(options(2, 2, 2)).await.unwrap();
    let AppendError::TooLarge { max_bytes, .. } = other.append(&large).await.unwrap_err() else {
        panic!("it does not fit a frame")
    };
    assert!((49_000..50_000).contains(&max_bytes), "{max_bytes}");
    let error = other.append(&large).await.unwrap_err().to_string();
    assert!(error.contains("nettyMaxFrameSizeBytes"), "{error}");
    let reader = narrow.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    for _ in 0..20 {
        // Adds are under way on the connections that bring the large entry.
        other.enqueue(&large[..40_000]).await.unwrap();
        let error = reader.read_entry(entry(1)).await.unwrap_err();
        assert!(matches!(error, ReadError::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("frame limit of 50000"), "{error}");
        for (at, payload) in [(0, "small"), (2, "last")] {
            let found = reader.read_entry(entry(at)).await.unwrap();
            assert_eq!(found.payload, payload.as_bytes());
        }
    }
    assert_eq!(other.drain().await.unwrap(), Some(entry(19)), "no append failed");
    assert_eq!(narrow.write_health().ensemble_changes, 0);
    other.close().await.unwrap();

    // By default what any bookie takes is written, and what Pulsar's take is read.
    let reader = client.open_ledger(id, PASSWORD, OpenMode::ReadOnly).await.unwrap();
    assert_eq!(reader.read_entry(entry(1)).await.unwrap().payload, large);
    let writer = client.create_ledger(options(2, 2, 2)).await.unwrap();
    assert!(writer.payload_bytes_max() < FrameLimit::DEFAULT.entry_size_bytes_max() as u64);
    let wide = cluster.builder().await.frame_limit(FrameLimit::PULSAR).connect().await.unwrap();
    let wide = wide.create_ledger(options(2, 2, 2)).await.unwrap();
    assert_eq!(wide.payload_bytes_max() - writer.payload_bytes_max(), 10 * 1024);
    cluster.stop().await;
}
