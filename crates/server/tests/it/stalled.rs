//! Peers that ask and do not take, beside one that does: over real sockets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{KEY, OwnedV2, add_frame, body, fence_request, read_request};
use crate::common::wire::{Bookie, Client, SteeredClock, start, start_at};
use bindery_io::RealDisk;
use bindery_server::connection::{StallRules, StalledClose};
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::sync::Arc;
use std::time::Duration;

const PEERS: usize = 64;
const PIPELINED: i64 = 20_000;
const ENTRIES: i64 = 40;

fn limits(close: StalledClose) -> Limits {
    let stall =
        StallRules { drop_after: Duration::from_millis(20), close_after: Duration::from_millis(300), close };
    Limits { stall, request_age_max: Duration::ZERO, ..Limits::default() }
}

/// Adds `ENTRIES` entries of `size` to ledger 6.
async fn fill(client: &mut Client, size: usize) {
    for entry in 0..ENTRIES {
        client.send(&add_frame(6, entry, size, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 6, entry));
    }
}

/// Asks for `count` entries, from `first` on and round again.
fn reads(first: i64, count: i64) -> BytesMut {
    let mut out = BytesMut::new();
    for i in 0..count {
        v2::Request::Read(read_request(6, (first + i) % ENTRIES)).encode(&mut out);
    }
    out
}

/// Waits until something holds.
async fn eventually(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it holds in time");
}

/// D2 with D3, D5: 64 peers pipeline 20,000 reads each of large entries and take nothing. One that takes what it asks
/// for goes on reading, adding and fencing; the responses that the others hold are dropped; one of them that begins to
/// read after all gets each frame whole, the one that was cut included; and when they close, all pools are empty (IB20,
/// IB21, P9).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_peers_that_take_nothing_cost_the_others_nothing() {
    let size = 500_000;
    let bookie = start(limits(StalledClose::Never)).await;
    let mut healthy = Client::new(&bookie).await;
    fill(&mut healthy, size).await;
    let mut deaf = Vec::new();
    for first in 0..PEERS as i64 {
        // The last one will read in the end, for which it takes a real window.
        let is_last = first == PEERS as i64 - 1;
        let mut peer = if is_last { Client::new(&bookie).await } else { Client::deaf(&bookie).await };
        peer.flood(reads(first, PIPELINED));
        deaf.push(peer);
    }
    // Their entries alone would be more than the pool.
    let outbound = bookie.shared.pools.outbound.gauge().capacity;
    assert!((PEERS * size) as u64 > outbound);
    let mut round = 0;
    // Mostly parts of frames, of which the peer has the beginning.
    while round < 50 || bookie.shared.metrics.responses_dropped_bytes.get() == 0 {
        let entry = round % ENTRIES;
        let read = healthy.v2(v2::Request::Read(read_request(6, entry))).await;
        assert!(matches!(read, OwnedV2::Read(ErrorCode::Ok, 6, e, _) if e == entry));
        healthy.send(&add_frame(6, ENTRIES + round, 10, v2::Flags::NONE, KEY)).await;
        assert_eq!(healthy.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 6, ENTRIES + round));
        let fenced = healthy.v2(v2::Request::Read(fence_request(1000 + round, -1, KEY))).await;
        assert!(matches!(fenced, OwnedV2::Read(ErrorCode::NoEntry, ..)), "{fenced:?}");
        round += 1;
    }
    // One of the deaf reads after all.
    let mut peer = deaf.pop().unwrap();
    let mut entries = 0;
    while entries < 60 {
        match peer.next_v2().await {
            OwnedV2::Read(ErrorCode::Ok, 6, entry, got) => {
                assert!(got == body(6, entry, entry - 1, size), "entry {entry} is whole");
                entries += 1;
            }
            OwnedV2::Read(ErrorCode::TooManyRequests, 6, _, _) => {}
            other => panic!("{other:?}"),
        }
    }
    drop((deaf, peer));
    assert_eq!(bookie.shared.metrics.closed_stalled.get() + bookie.shared.metrics.closed_copy_gone.get(), 0);
    let shared = bookie.shared.clone();
    eventually(|| shared.pools.gauges().iter().all(|(_, gauge)| gauge.used == 0)).await;
    drop(shared);
    bookie.stop().await;
}

/// The memory of each peer is bounded by the bytes loaded ahead, and not by the window: small entries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_nothing_holds_a_write_of_entries_and_its_share_of_descriptors() {
    let bookie = start(limits(StalledClose::UnderPressure)).await;
    let mut healthy = Client::new(&bookie).await;
    fill(&mut healthy, 4000).await;
    let mut deaf = Vec::new();
    for first in 0..8 {
        let mut peer = Client::deaf(&bookie).await;
        peer.flood(reads(first, PIPELINED));
        deaf.push(peer);
    }
    let shared = bookie.shared.clone();
    // The later ones may only ask for as much as fits their kernels' buffers.
    eventually(|| {
        let all = shared.connections.all();
        let blocked = all.iter().filter(|connection| connection.flow().progress_ms.is_some_and(|ms| ms > 0));
        blocked.count() >= 3
    })
    .await;
    for connection in shared.connections.all() {
        let flow = connection.flow();
        assert!(flow.outbound_bytes < 32 * 1024, "{flow:?}");
    }
    let reads = bindery_server::flow_view::reads(&shared).await;
    assert!(reads.blocked > 100 && reads.blocked <= reads.in_progress, "as metrics show it: {reads:?}");
    let control = shared.pools.control.gauge();
    assert!(control.used < control.capacity, "{control:?}");
    for entry in 0..ENTRIES {
        let read = healthy.v2(v2::Request::Read(read_request(6, entry))).await;
        assert!(matches!(read, OwnedV2::Read(ErrorCode::Ok, 6, e, _) if e == entry));
    }
    drop((deaf, shared));
    bookie.stop().await;
}

/// `stalledConnectionClose=always`: closed though no other peer needs anything, and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_peer_is_closed_when_the_operator_wants_it() {
    let bookie = start(limits(StalledClose::Always)).await;
    let mut healthy = Client::new(&bookie).await;
    fill(&mut healthy, 100_000).await;
    let mut deaf = Client::deaf(&bookie).await;
    deaf.flood(reads(0, PIPELINED));
    let shared = bookie.shared.clone();
    eventually(|| shared.metrics.closed_stalled.get() == 1).await;
    let read = healthy.v2(v2::Request::Read(read_request(6, 0))).await;
    assert!(matches!(read, OwnedV2::Read(ErrorCode::Ok, ..)), "who takes its answers is not closed");
    drop((deaf, shared));
    bookie.stop().await;
}

/// A bookie with a maximum age, by a clock that goes on when it is told to.
async fn start_with_ages() -> (Bookie, Arc<SteeredClock>) {
    let limits = Limits { request_age_max: AGE_MAX, ..limits(StalledClose::Never) };
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    let clock = SteeredClock::new();
    (start_at(limits, plan, Arc::new(RealDisk::new()), clock.clone()).await, clock)
}

/// Far longer than any machine stands still.
const AGE_MAX: Duration = Duration::from_secs(3600);

/// A broker that stood still for longer than the maximum age finds all its reads served: they waited for the broker itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_do_not_grow_old_while_their_own_peer_takes_nothing() {
    let (bookie, clock) = start_with_ages().await;
    let mut client = Client::deaf(&bookie).await;
    fill(&mut client, 500_000).await;
    client.send(&reads(0, 100)).await;
    let flows = || bookie.shared.connections.all();
    eventually(|| flows().iter().any(|c| c.flow().progress_ms.is_some_and(|ms| ms > 100))).await;
    clock.put_forward(2 * AGE_MAX);
    for i in 0..100 {
        let answer = client.next_v2().await;
        assert!(matches!(answer, OwnedV2::Read(ErrorCode::Ok, 6, ..)), "read {i}: {:?}", answer.code());
    }
    assert_eq!(bookie.shared.metrics.reads_too_old.get(), 0);
    drop(client);
    bookie.stop().await;
}

/// A read that this bookie kept waiting for longer than the maximum age is refused (load rule: it never reaches a disk); a
/// fencing read is not. Method: a test that holds all memory for entries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_older_than_the_maximum_age_are_refused_and_fencing_reads_are_not() {
    const READS: usize = 20;
    let (bookie, clock) = start_with_ages().await;
    let mut client = Client::new(&bookie).await;
    fill(&mut client, 1000).await;
    let outbound = &bookie.shared.pools.outbound;
    let memory = outbound.try_acquire(outbound.capacity()).unwrap();
    client.send(&reads(0, READS as i64)).await;
    let flows = || bookie.shared.connections.all();
    eventually(|| flows().iter().any(|c| c.flow().reads_queued == READS as u64)).await;
    clock.put_forward(2 * AGE_MAX);
    let mut out = BytesMut::new();
    v2::Request::Read(fence_request(6, -1, KEY)).encode(&mut out);
    client.send(&out).await;
    drop(memory);
    let (mut refused, mut fenced) = (0, 0);
    for _ in 0..=READS {
        match client.next_v2().await {
            OwnedV2::Read(ErrorCode::Ok, 6, -1, _) => fenced += 1,
            OwnedV2::Read(ErrorCode::TooManyRequests, ..) => refused += 1,
            other => panic!("{:?}", other.code()),
        }
    }
    assert_eq!((refused, fenced), (READS, 1));
    assert_eq!(bookie.shared.metrics.reads_too_old.get(), READS as u64);
    drop(client);
    bookie.stop().await;
}
