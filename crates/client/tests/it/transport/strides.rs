//! Batch reads with a stride, to bookies that do not know them.

use bindery_client::connection::ConnectionOptions;
use bindery_client::transport::{BatchReadRequest, BookieError, Transport};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use tokio::io::AsyncWriteExt;

use crate::transport::peer::{Peer, bookies};
use crate::transport::support::*;

/// What a Java bookie does, which passes over a stride: of a striped ledger it has a gap soon.
#[tokio::test]
async fn a_bookie_that_passes_over_a_stride_is_asked_by_strides_once() {
    let (bookies, peer) = (bookies(ConnectionOptions::default()).await, Peer::new().await);
    let batch = |stride| BatchReadRequest {
        ledger: ledger(1),
        first: entry(3),
        stride,
        count_max: 9,
        size_bytes_max: 999,
    };
    let stored = |id: i64| [1, id, id - 1, 0].map(i64::to_be_bytes).concat();
    let first = async {
        let mut trial = peer.accept().await;
        let request = trial.next().await.unwrap();
        let Ok(v2::Request::BatchRead(read)) = v2::Request::decode(&request) else { panic!("{request:?}") };
        assert_eq!((read.stride, read.flags, read.start_entry_id), (3, v2::Flags::STRIDE, 3));
        let (run, mut out) = ([stored(3), stored(4)], BytesMut::new());
        let run = run.iter().map(Vec::as_slice);
        v2::put_batch_read_response(2, 1, 3, read.request_id, false, run, &mut out);
        trial.socket.write_all(&out).await.unwrap();
    };
    let (entries, ()) = tokio::join!(bookies.batch_read(&peer.id, batch(3)), first);
    assert_eq!(entries.unwrap(), [stored(3)], "not what was not asked for");
    let unknown = Err(BookieError::Refused(ErrorCode::BadRequest));
    assert_eq!(bookies.batch_read(&peer.id, batch(3)).await, unknown, "without asking");
    let run = async { peer.accept().await.answer_batch().await };
    let (entries, ()) = tokio::join!(bookies.batch_read(&peer.id, batch(1)), run);
    assert_eq!(entries.unwrap(), [&b"body"[..]], "runs it knows");
}
