//! Requests that waited in the kernel, because their connection was not read: their age counts from there. Most tests
//! hold all memory for reading, so that requests lie in the receive buffer of the socket.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{KEY, OwnedV2, add_frame, body, fence_request, framed, framed_v3, read_request};
use crate::common::wire::{Bookie, Client, start};
use bindery_flow::{ByteBudget, Permit};
use bindery_server::connection::Wait;
use bindery_server::limits::Limits;
use bindery_wire::v3::{Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::{Bytes, BytesMut};
use std::time::Duration;

const AGE_MAX: Duration = Duration::from_millis(200);
const ORDINARY: v2::Flags = v2::Flags::NONE;

fn add(ledger: i64, entry: i64, flags: v2::Flags) -> BytesMut {
    add_frame(ledger, entry, 100, flags, KEY)
}

/// Sends until it is neither refused for its age, which is possible on a machine that stands still, nor unanswered.
async fn fresh(client: &mut Client, request: &[u8]) -> OwnedV2 {
    let tries = async {
        loop {
            client.send(request).await;
            let answer = client.next_v2().await;
            if answer.code() != ErrorCode::TooManyRequests {
                return answer;
            }
        }
    };
    tokio::time::timeout(PATIENCE, tries).await.expect("a fresh request is served")
}

/// Takes all memory for reading.
async fn stop_reading(bookie: &Bookie) -> [Permit; 2] {
    let pools = &bookie.shared.pools;
    let all = async |pool: &ByteBudget| {
        tokio::time::timeout(PATIENCE, pool.acquire(pool.capacity())).await.unwrap().unwrap()
    };
    [all(&pools.inbound).await, all(&pools.inbound_adds).await]
}

/// Waits until requests are there, and are not read.
async fn lie_in_the_kernel(bookie: &Bookie) {
    let is_waiting = || {
        let all = bookie.shared.connections.all();
        all.iter().any(|connection| connection.flow().not_read_because == Some(Wait::Inbound))
    };
    let wait = async {
        while !is_waiting() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

/// Sends while nothing is read, and lets the bookie read when all of it is older than `age`.
async fn send_and_let_it_lie(bookie: &Bookie, client: &mut Client, requests: &[u8], age: Duration) {
    let memory = stop_reading(bookie).await;
    client.send(requests).await;
    lie_in_the_kernel(bookie).await;
    tokio::time::sleep(age).await;
    drop(memory);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waited_in_the_kernel_beyond_the_maximum_age_is_refused_and_what_is_fresh_is_not() {
    let bookie = start(Limits { request_age_max: AGE_MAX, ..Limits::default() }).await;
    let mut client = Client::new(&bookie).await;
    assert_eq!(fresh(&mut client, &add(6, 0, ORDINARY)).await.code(), ErrorCode::Ok);
    // Of fresh requests some may have been refused.
    let metrics = &bookie.shared.metrics;
    let (adds, reads) = (metrics.adds_too_old.get(), metrics.reads_too_old.get());

    let mut requests = BytesMut::new();
    (1..=20).for_each(|entry| requests.extend_from_slice(&add(6, entry, ORDINARY)));
    requests.extend_from_slice(&framed(v2::Request::Read(read_request(6, 0))));
    send_and_let_it_lie(&bookie, &mut client, &requests, 2 * AGE_MAX).await;
    let mut refused = Vec::new();
    for _ in 0..21 {
        match client.next_v2().await {
            OwnedV2::Add(ErrorCode::TooManyRequests, 6, entry) => refused.push(entry),
            OwnedV2::Read(ErrorCode::TooManyRequests, 6, 0, _) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, (1..=20).collect::<Vec<i64>>(), "in order");
    assert_eq!((metrics.adds_too_old.get() - adds, metrics.reads_too_old.get() - reads), (20, 1));
    assert_eq!(metrics.add_rejected.get() - adds, 20);

    let answer = fresh(&mut client, &framed(v2::Request::Read(read_request(6, 20)))).await;
    assert_eq!(answer.code(), ErrorCode::NoEntry, "what is refused is not placed");
    assert_eq!(fresh(&mut client, &add(6, 20, ORDINARY)).await.code(), ErrorCode::Ok);
    bookie.stop().await;
}

/// The v3 protocol, and a batch that has no answer under way before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v3_adds_that_waited_in_the_kernel_are_refused() {
    let bookie = start(Limits { request_age_max: AGE_MAX, ..Limits::default() }).await;
    let mut client = Client::new(&bookie).await;
    assert_eq!(fresh(&mut client, &add(6, 0, ORDINARY)).await.code(), ErrorCode::Ok);
    let add = Operation::Add(proto::AddRequest {
        ledger_id: 6,
        entry_id: 1,
        master_key: Bytes::copy_from_slice(KEY.as_bytes()),
        body: body(6, 1, 0, 100).into(),
        ..proto::AddRequest::default()
    });
    send_and_let_it_lie(&bookie, &mut client, &framed_v3(9, add), 2 * AGE_MAX).await;
    let response = client.next_v3().await;
    let add = response.add_response.unwrap();
    assert_eq!((response.header.txn_id, add.status), (9, ErrorCode::TooManyRequests.v3()));
    bookie.stop().await;
}

/// A recovery that is refused only starts over: its adds, and fences, are done however long they waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_adds_and_fences_are_done_however_long_they_waited_in_the_kernel() {
    let bookie = start(Limits { request_age_max: AGE_MAX, ..Limits::default() }).await;
    let mut client = Client::new(&bookie).await;
    assert_eq!(fresh(&mut client, &add(6, 0, ORDINARY)).await.code(), ErrorCode::Ok);
    let mut requests = add(6, 1, v2::Flags::RECOVERY_ADD);
    requests.extend_from_slice(&framed(v2::Request::Read(fence_request(6, -1, KEY))));
    send_and_let_it_lie(&bookie, &mut client, &requests, 2 * AGE_MAX).await;
    let mut answers = [client.next_v2().await.code(), client.next_v2().await.code()];
    answers.sort_by_key(|code| code.v3());
    assert_eq!(answers, [ErrorCode::Ok; 2]);
    assert_eq!(fresh(&mut client, &add(6, 2, ORDINARY)).await.code(), ErrorCode::Fenced);
    bookie.stop().await;
}

/// A process that was paused finds adds that are older than the maximum age, and room for all of them: none is refused. Their
/// writer may have its quorum from others, and never send them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn adds_that_came_while_the_process_stood_still_are_taken_however_old() {
    const ADDS: i64 = 100;
    let bookie = start(Limits { request_age_max: AGE_MAX, ..Limits::default() }).await;
    let mut client = Client::new(&bookie).await;
    assert_eq!(fresh(&mut client, &add(6, 0, ORDINARY)).await.code(), ErrorCode::Ok);
    let refused = bookie.shared.metrics.add_rejected.get();
    let mut adds = BytesMut::new();
    (1..=ADDS).for_each(|entry| adds.extend_from_slice(&add(6, entry, ORDINARY)));

    // The one thread of the runtime stands still; this one is none of its threads.
    let (stood_still, stands_still) = std::sync::mpsc::sync_channel(1);
    let (go_on, goes_on) = std::sync::mpsc::sync_channel::<()>(0);
    let pause = tokio::spawn(async move {
        stood_still.send(()).unwrap();
        let _ = goes_on.recv();
    });
    stands_still.recv().unwrap();
    client.send(&adds).await;
    std::thread::sleep(2 * AGE_MAX);
    drop(go_on);
    pause.await.unwrap();
    for entry in 1..=ADDS {
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 6, entry));
    }
    assert_eq!(bookie.shared.metrics.add_rejected.get(), refused);
    bookie.stop().await;
}

/// Without a maximum age nothing is refused, however long it waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_maximum_age_nothing_is_too_old() {
    let bookie = start(Limits { request_age_max: Duration::ZERO, ..Limits::default() }).await;
    let mut client = Client::new(&bookie).await;
    assert_eq!(fresh(&mut client, &add(6, 0, ORDINARY)).await.code(), ErrorCode::Ok);
    send_and_let_it_lie(&bookie, &mut client, &add(6, 1, ORDINARY), AGE_MAX).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 6, 1));
    bookie.stop().await;
}
