//! Peers that do not read, and the rest of the bookie: R16, R17 (IB20, IB21). The tests assert that answers come, and
//! how much is held in the meantime; a bookie that waits for such a peer anywhere gives no answer at all.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{
    KEY, OwnedV2, add_frame, batch_request, body, fence_request, framed, framed_v3, read_request, strided,
};
use crate::common::wire::{Bookie, Client, start, start_with};
use bindery_server::connection::{StallRules, StalledClose};
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_wire::v3::{Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::time::Duration;

const LEDGER: i64 = 1;
const ENTRIES: i64 = 64;
const ENTRY_BYTES: usize = 4096;

async fn fill(bookie: &Bookie) {
    let mut client = Client::new(bookie).await;
    for entry in 0..ENTRIES {
        client.send(&add_frame(LEDGER, entry, ENTRY_BYTES, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, LEDGER, entry));
    }
}

fn reads_v2(count: i64) -> BytesMut {
    let mut out = BytesMut::new();
    for i in 0..count {
        out.extend_from_slice(&framed(v2::Request::Read(read_request(LEDGER, i % ENTRIES))));
    }
    out
}

fn reads_v3(count: i64) -> BytesMut {
    let mut out = BytesMut::new();
    for i in 0..count {
        let read =
            proto::ReadRequest { ledger_id: LEDGER, entry_id: i % ENTRIES, ..proto::ReadRequest::default() };
        out.extend_from_slice(&framed_v3(i as u64, Operation::Read(read)));
    }
    out
}

fn batches(count: i64) -> BytesMut {
    let mut out = BytesMut::new();
    for i in 0..count {
        let plain = batch_request(LEDGER, i % ENTRIES, i, 16, 1 << 20);
        out.extend_from_slice(&framed(if i % 2 == 0 { plain } else { strided(plain, 3) }));
    }
    out
}

/// One of each request that must be answered whatever others do: adds, reads, a fence, and a look at the bookie.
async fn healthy_round(bookie: &Bookie, round: i64) {
    let (mut client, own) = (Client::new(bookie).await, 1000 + round);
    client.send(&add_frame(own, 0, 100, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, own, 0));
    for entry in [round % ENTRIES, -1] {
        let answer = client.v2(v2::Request::Read(read_request(LEDGER, entry))).await;
        assert_eq!(answer.code(), ErrorCode::Ok, "entry {entry}");
    }
    let fence = client.v2(v2::Request::Read(fence_request(own, -1, KEY))).await;
    assert_eq!(fence, OwnedV2::Read(ErrorCode::Ok, own, -1, body(own, 0, -1, 100)));
    client.send(&add_frame(own, 1, 100, v2::Flags::RECOVERY_ADD, KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, own, 1));
    let info = Operation::GetBookieInfo(proto::GetBookieInfoRequest { requested: Some(3) });
    assert_eq!(client.v3(1, info).await.status, ErrorCode::Ok.v3());
}

/// Waits until no entry is loaded for any peer.
async fn until_returned(bookie: &Bookie) {
    let returned = async {
        while bookie.shared.pools.gauges().iter().any(|(_, gauge)| (gauge.used, gauge.waiting) != (0, 0)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let done = tokio::time::timeout(PATIENCE, returned).await;
    assert!(done.is_ok(), "IB20: {:?}", bookie.shared.pools.gauges());
}

/// A thread of the runtime that waited for a peer would be the only one.
fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// R16: peers that ask for 10,000 entries each and read none of them hold only their windows. Everything else is
/// answered, on a runtime of one thread, and the bytes come back when they are gone.
#[test]
fn r16_bk_4730_4827_peers_that_read_nothing_hold_their_windows_only() {
    const DEAF: usize = 12;
    let limits = Limits { read_window_bytes: 256 * 1024, ..Limits::default() };
    let window = limits.read_window_bytes as u64;
    one_thread().block_on(async {
        let bookie = start(limits).await;
        fill(&bookie).await;
        let mut deaf = Vec::new();
        for i in 0..DEAF {
            let mut client = Client::deaf(&bookie).await;
            let requests = match i % 3 {
                0 => reads_v2(10_000),
                1 => reads_v3(10_000),
                _ => batches(10_000),
            };
            client.flood(requests);
            deaf.push(client);
        }
        for round in 0..100 {
            healthy_round(&bookie, round).await;
            let held = bookie.shared.pools.outbound.gauge().used;
            // An entry may go beyond a window when it goes alone; the healthy one has a window, too.
            assert!(held <= (DEAF as u64 + 1) * (window + 64 * 1024), "invariant 5 of the outbox: {held}");
        }
        assert!(bookie.shared.pools.outbound.gauge().used > 0, "they do hold something");
        drop(deaf);
        until_returned(&bookie).await;
        healthy_round(&bookie, 100).await;
        bookie.stop().await;
    });
}

/// R17: a thread that fills a bounded queue never waits for it to drain. The completion thread fills the outboxes of
/// peers that add, force and write LACs; the I/O threads those of peers that read from disk. With outboxes that are
/// full it goes on for all other peers, and the peers that filled them get every answer, in order, once they read.
#[test]
fn r17_bk_2962_who_fills_an_outbox_does_not_wait_for_it() {
    const ADDS: i64 = 30_000;
    let limits = Limits { answers_bytes_max: 16 * 1024, ..Limits::default() };
    one_thread().block_on(async {
        let bookie = start(limits).await;
        fill(&bookie).await;
        let mut deaf = Vec::new();
        for ledger in 10..14 {
            let mut adds = BytesMut::new();
            for entry in 0..ADDS {
                adds.extend_from_slice(&add_frame(ledger, entry, 0, v2::Flags::NONE, KEY));
            }
            let mut client = Client::deaf(&bookie).await;
            client.flood(adds);
            deaf.push(client);
        }
        let forces: BytesMut = (0..ADDS as u64)
            .flat_map(|txn| {
                let force = proto::ForceLedgerRequest { ledger_id: LEDGER };
                framed_v3(txn, Operation::ForceLedger(force))
            })
            .collect();
        let mut forcing = Client::deaf(&bookie).await;
        forcing.flood(forces);
        for round in 0..100 {
            healthy_round(&bookie, round).await;
        }
        for (ledger, mut client) in (10..).zip(deaf) {
            for entry in 0..ADDS {
                assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, entry));
            }
        }
        for txn in 0..ADDS as u64 {
            let answer = forcing.next_v3().await;
            assert_eq!((answer.header.txn_id, answer.status), (txn, ErrorCode::Ok.v3()));
        }
        drop(forcing);
        until_returned(&bookie).await;
        bookie.stop().await;
    });
}

/// Peers are not closed for taking or sending nothing.
fn patient() -> Limits {
    let limits = Limits::default();
    let stall = StallRules { close: StalledClose::Never, ..limits.stall };
    Limits { stall_max: Duration::from_secs(3600), stall, ..limits }
}

/// L3, R16: more deaf peers than there are read buffers, each with so many requests that its answers find no room. A
/// reader that waits for room must not keep what others are read with.
#[test]
fn deaf_peers_that_wait_for_room_do_not_keep_the_read_buffers() {
    let limits = patient();
    let buffers = 8;
    let plan = MemoryPlan {
        inbound: buffers * limits.read_buffer_bytes as u64,
        outbox: 4 * 64 * 1024,
        ..MemoryPlan::new(256 << 20, &limits).unwrap()
    };
    one_thread().block_on(async {
        let bookie = start_with(limits, plan).await;
        fill(&bookie).await;
        let mut deaf = Vec::new();
        for _ in 0..2 * buffers {
            let mut client = Client::deaf(&bookie).await;
            client.flood(reads_v2(20_000));
            deaf.push(client);
        }
        for round in 0..50 {
            healthy_round(&bookie, round).await;
        }
        drop(deaf);
        until_returned(&bookie).await;
        bookie.stop().await;
    });
}

/// L6: more peers in the middle of a large frame than there are read buffers, and memory for two such frames. Every
/// other one is not known as a client yet.
#[test]
fn peers_in_line_for_a_large_frame_do_not_keep_the_read_buffers() {
    let limits = patient();
    let (buffers, size) = (8, 4 << 20);
    let plan = MemoryPlan {
        inbound: buffers * limits.read_buffer_bytes as u64,
        inbound_large: 10 << 20,
        ..MemoryPlan::new(256 << 20, &limits).unwrap()
    };
    one_thread().block_on(async {
        let bookie = start_with(limits, plan).await;
        fill(&bookie).await;
        let mut slow = Vec::new();
        for ledger in 0..4 * buffers as i64 {
            let mut client = Client::new(&bookie).await;
            if ledger % 2 == 0 {
                client.send(&add_frame(200 + ledger, 0, 10, v2::Flags::NONE, KEY)).await;
                assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 200 + ledger, 0));
            }
            let mut add = add_frame(100 + ledger, 0, size, v2::Flags::NONE, KEY);
            add.truncate(size / 2);
            client.flood(add);
            slow.push(client);
        }
        for round in 0..50 {
            healthy_round(&bookie, round).await;
        }
        drop(slow);
        until_returned(&bookie).await;
        bookie.stop().await;
    });
}
