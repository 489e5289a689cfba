//! R32: batch reads that hung, looped or mixed up their entries. The bookie's part of it: every batch read ends, with
//! what its limits say, and what came before on the connection leaves no trace in its answer (IB21, IB22, IB23).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::frames::{
    KEY, OwnedV2, add_frame, batch_request, body, exchange, framed, hello, read_request,
};
use crate::common::whole::{cluster, config_that_flushes, damage_entry, start as start_whole};
use crate::common::wire::{Client, start};
use bindery_server::limits::Limits;
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use tokio::net::TcpStream;

fn entries(ledger: i64, entries: std::ops::Range<i64>, size: usize) -> Vec<Vec<u8>> {
    entries.map(|entry| body(ledger, entry, entry - 1, size)).collect()
}

/// BookKeeper #4641: a count of 0 is no limit. The batch ends at the end of the ledger, at the requested size, or at
/// the server's; it goes on from where it ended, and beyond the end it is refused. Nonsense ends, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r32_bk_4641_a_count_of_zero_ends() {
    let window = 64 * 1024;
    let bookie = start(Limits { read_window_bytes: window, ..Limits::default() }).await;
    let mut client = Client::new(&bookie).await;
    let (ledger, count, size) = (7, 300, 1000);
    let mut adds = BytesMut::new();
    for entry in 0..count {
        adds.extend_from_slice(&add_frame(ledger, entry, size, v2::Flags::NONE, KEY));
    }
    client.send(&adds).await;
    for _ in 0..count {
        assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
    }
    for max_count in [0, -1, i32::MIN, i32::MAX] {
        // To the end, in as many batches as it takes.
        let (mut next, mut rounds) = (0, 0);
        while next < count {
            let request = batch_request(ledger, next, i64::from(max_count), max_count, i64::MAX);
            let OwnedV2::Batch(ErrorCode::Ok, request_id, found) = client.v2(request).await else {
                panic!("entry {next}, count {max_count}")
            };
            assert_eq!(request_id, i64::from(max_count));
            assert!(!found.is_empty() && found.iter().map(Vec::len).sum::<usize>() <= window + 4096);
            assert_eq!(found, entries(ledger, next..next + found.len() as i64, size));
            next += found.len() as i64;
            rounds += 1;
        }
        assert!(rounds > 1, "the window ends a batch");
        for start in [count, count + 1, i64::MAX - 1] {
            let beyond = client.v2(batch_request(ledger, start, 5, max_count, i64::MAX)).await;
            assert_eq!(beyond, OwnedV2::Batch(ErrorCode::NoEntry, 5, Vec::new()), "{start}");
        }
        // Invariant 1 of the budget of a batch: the first entry goes whatever the size says.
        for max_size in [0, -1, i64::MIN, 1] {
            let one = client.v2(batch_request(ledger, 3, 6, max_count, max_size)).await;
            assert_eq!(one, OwnedV2::Batch(ErrorCode::Ok, 6, entries(ledger, 3..4, size)));
        }
    }
    for start in [-1, i64::MIN] {
        let bad = client.v2(batch_request(ledger, start, 8, 0, 1 << 20)).await;
        assert_eq!(bad, OwnedV2::Batch(ErrorCode::BadRequest, 8, Vec::new()));
    }
    bookie.stop().await;
}

/// A batch is charged by the size of recent entries. When its own are longer it is loaded again with the whole requested size, so
/// it has as many entries as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_longer_entries_than_were_read_before_is_whole() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    // Of the middle ones some fit what is charged for as many short ones, and not all.
    let (short, long, middle) = ((1, 100), (2, 30_000), (3, 300));
    for (ledger, size) in [short, long, middle] {
        for entry in 0..20 {
            client.send(&add_frame(ledger, entry, size, v2::Flags::NONE, KEY)).await;
            assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, entry));
        }
    }
    for round in 0..4 {
        for _ in 0..30 {
            let answer = client.v2(batch_request(short.0, 3, round, 10, 1 << 20)).await;
            assert_eq!(answer, OwnedV2::Batch(ErrorCode::Ok, round, entries(short.0, 3..13, short.1)));
        }
        let answer = client.v2(batch_request(middle.0, 5, round, 12, 1 << 20)).await;
        assert_eq!(answer, OwnedV2::Batch(ErrorCode::Ok, round, entries(middle.0, 5..17, middle.1)));
        let answer = client.v2(batch_request(long.0, 5, round, 12, 1 << 20)).await;
        assert_eq!(answer, OwnedV2::Batch(ErrorCode::Ok, round, entries(long.0, 5..17, long.1)));
        // The requested size ends it as before.
        let answer = client.v2(batch_request(long.0, 0, round, 20, 100_000)).await;
        assert_eq!(answer, OwnedV2::Batch(ErrorCode::Ok, round, entries(long.0, 0..3, long.1)));
    }
    bookie.stop().await;
}

/// BookKeeper #4788, #4680: answers of requests under way at once carry their own ids and entries, whatever is sent
/// again meanwhile. A client that retries repeats ledger, entry and even the request id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r32_bk_4788_repeated_batches_answer_each_request_with_its_own() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    for ledger in [1, 2] {
        for entry in 0..40 {
            client.send(&add_frame(ledger, entry, 100, v2::Flags::NONE, KEY)).await;
            assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, entry));
        }
    }
    let mut out = BytesMut::new();
    let mut expected = Vec::new();
    for i in 0..600i64 {
        let (ledger, start, count) = (1 + i % 2, i % 37, 1 + (i % 3) as i32);
        // Every fifth id is used again for the very same batch.
        let id = if i % 5 == 0 { 1_000_000 + (i % 2) * 1000 + start * 10 + i64::from(count) } else { i };
        out.extend_from_slice(&framed(batch_request(ledger, start, id, count, 1 << 20)));
        expected.push((id, entries(ledger, start..start + i64::from(count), 100)));
    }
    client.send(&out).await;
    let mut found = Vec::new();
    for _ in 0..expected.len() {
        match client.next_v2().await {
            OwnedV2::Batch(ErrorCode::Ok, id, bodies) => found.push((id, bodies)),
            other => panic!("{other:?}"),
        }
    }
    expected.sort();
    found.sort();
    assert!(found == expected, "one answer for each request, with its own entries (IB22)");
    bookie.stop().await;
}

/// BookKeeper #4789: a batch that meets a damaged entry. When it is the first the answer is an I/O error, so that the
/// client asks another bookie; else the batch ends before it. The same batch, requested again on the same connection,
/// and the requests behind it are still answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r32_bk_4789_a_batch_ends_before_damage_and_can_be_asked_for_again() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start_whole(config_that_flushes(dir.path()), &cluster).await;
    for entry in 0..4 {
        assert_eq!(bookie.add(1, entry).await, ErrorCode::Ok);
    }
    bookie.flushed(4).await;
    bookie.stop().await;
    damage_entry(dir.path(), &hello(1, 2));
    let bookie = start_whole(config_that_flushes(dir.path()), &cluster).await;

    let mut socket = TcpStream::connect(bookie.address).await.unwrap();
    let good = |range: std::ops::Range<i64>| range.map(|entry| hello(1, entry)).collect::<Vec<_>>();
    for round in 0..3 {
        for max_count in [0, 4] {
            let answer = exchange(&mut socket, batch_request(1, 0, round, max_count, 1 << 20)).await;
            assert_eq!(answer, OwnedV2::Batch(ErrorCode::Ok, round, good(0..2)), "up to the damage");
            let answer = exchange(&mut socket, batch_request(1, 2, round, max_count, 1 << 20)).await;
            assert_eq!(answer, OwnedV2::Batch(ErrorCode::Io, round, Vec::new()), "never a negative (IB7)");
            let answer = exchange(&mut socket, batch_request(1, 3, round, max_count, 1 << 20)).await;
            assert_eq!(answer, OwnedV2::Batch(ErrorCode::Ok, round, good(3..4)));
        }
        let answer = exchange(&mut socket, v2::Request::Read(read_request(1, 2))).await;
        assert_eq!(answer.code(), ErrorCode::Io);
    }
    // A copy from another bookie mends it.
    assert_eq!(bookie.add_as(v2::Flags::RECOVERY_ADD, 1, 2).await, ErrorCode::Ok);
    let answer = exchange(&mut socket, batch_request(1, 0, 9, 0, 1 << 20)).await;
    assert_eq!(answer, OwnedV2::Batch(ErrorCode::Ok, 9, good(0..4)));
    bookie.stop().await;
}
