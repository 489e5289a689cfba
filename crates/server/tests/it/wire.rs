//! A real engine on a temporary directory behind the real listener, driven with raw frames over loopback.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::frames::{
    BAD_FRAMES, KEY, OTHER_KEY, OwnedV2, add_frame, batch_request, body, fence_request, framed_v3,
    read_request,
};
use crate::common::wire::{Client, start, start_with};
use bindery_server::limits::Limits;
use bindery_server::memory::MemoryPlan;
use bindery_types::MasterKey;
use bindery_wire::entry::ExplicitLac;
use bindery_wire::v3::{self, Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeSet;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v2_adds_of_all_sizes_are_read_back_and_fencing_stops_the_writer() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    let sizes = [0, 1, 100, 4096, 65_000, 70_000, 1 << 20, 4 << 20, 10, 3 << 20, 0];
    let mut frames = BytesMut::new();
    for (entry, size) in sizes.iter().enumerate() {
        frames.extend_from_slice(&add_frame(5, entry as i64, *size, v2::Flags::NONE, KEY));
    }
    client.send(&frames).await;
    for entry in 0..sizes.len() as i64 {
        assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 5, entry));
    }
    for (entry, size) in sizes.iter().enumerate() {
        let entry = entry as i64;
        let expected = OwnedV2::Read(ErrorCode::Ok, 5, entry, body(5, entry, entry - 1, *size));
        assert!(client.v2(v2::Request::Read(read_request(5, entry))).await == expected, "entry {entry}");
    }
    let last = body(5, 10, 9, 0);
    let fenced = client.v2(v2::Request::Read(fence_request(5, -1, KEY))).await;
    assert_eq!(fenced, OwnedV2::Read(ErrorCode::Ok, 5, -1, last), "-1 is echoed");
    client.send(&add_frame(5, 11, 1, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Fenced, 5, 11));
    client.send(&add_frame(5, 11, 1, v2::Flags::RECOVERY_ADD, KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 5, 11));
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_carry_the_ids_and_codes_of_the_reference() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    client.send(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 0));
    client.send(&add_frame(1, 1, 10, v2::Flags::NONE, OTHER_KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Unauthorized, 1, 1));
    client.send(&add_frame(1, -5, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::BadRequest, 1, -5));
    let none = |code, ledger, entry| OwnedV2::Read(code, ledger, entry, Vec::new());
    let read = client.v2(v2::Request::Read(read_request(9, 0))).await;
    assert_eq!(read, none(ErrorCode::NoLedger, 9, 0));
    let read = client.v2(v2::Request::Read(read_request(1, 3))).await;
    assert_eq!(read, none(ErrorCode::NoEntry, 1, 3));
    let read = client.v2(v2::Request::Read(read_request(-1, 3))).await;
    assert_eq!(read, none(ErrorCode::BadRequest, -1, 3));
    let read = client.v2(v2::Request::Read(fence_request(1, -1, OTHER_KEY))).await;
    assert_eq!(read, none(ErrorCode::Unauthorized, 1, -1));
    // Version 1 has no key in its fencing reads.
    let old = v2::Read { version: 1, master_key: None, ..fence_request(1, -1, KEY) };
    assert_eq!(client.v2(v2::Request::Read(old)).await, none(ErrorCode::Unauthorized, 1, -1));
    // Fencing an unknown ledger creates it, empty and fenced; the answer still waits for the fence.
    let read = client.v2(v2::Request::Read(fence_request(77, -1, KEY))).await;
    assert_eq!(read, none(ErrorCode::NoEntry, 77, -1));
    client.send(&add_frame(77, 0, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Fenced, 77, 0));
    let mut auth = BytesMut::new();
    v3::put_frame(&v3::auth_disabled_message(), &mut auth);
    let request = v2::Auth { version: 2, flags: v2::Flags::NONE, message: &auth[4..] };
    let answer = client.v2(v2::Request::Auth(request)).await;
    assert_eq!(answer, OwnedV2::Auth("AuthDisabledPlugin".to_owned()));
    bookie.stop().await;
}

/// S4: keys that are wrong, of another length or none, on all that needs one. The ledger stays what it was, and none is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_form_opens_nothing() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    assert_eq!(client.v3(1, v3_add(1, 0, -1)).await.status, 0);
    let fence = Some(proto::read_request::Flag::FenceLedger as i32);
    let longer = [KEY.as_bytes(), &[7][..]].concat();
    let short = &KEY.as_bytes()[..19];
    let zeros = [0; 20];
    let forms: [(&[u8], bool); 5] =
        [(OTHER_KEY.as_bytes(), false), (&zeros, false), (short, true), (&longer, true), (&[], true)];
    for (key, makes_none) in forms {
        let key = Bytes::copy_from_slice(key);
        let mut lac = BytesMut::new();
        ExplicitLac { ledger_id: 1, last_add_confirmed: 0 }.put(&mut lac);
        let Operation::Add(add) = v3_add(1, 1, 0) else { unreachable!() };
        let mut refused = vec![
            Operation::Add(proto::AddRequest { master_key: key.clone(), ..add.clone() }),
            Operation::Read(proto::ReadRequest {
                flag: fence,
                master_key: Some(key.clone()),
                ..v3_read(1, -1)
            }),
            Operation::WriteLac(proto::WriteLacRequest {
                ledger_id: 1,
                lac: 0,
                master_key: key.clone(),
                body: lac.freeze(),
            }),
        ];
        if makes_none {
            let body = body(50, 0, -1, 50).into();
            let on_another = proto::AddRequest { ledger_id: 50, entry_id: 0, body, ..add };
            refused.push(Operation::Add(proto::AddRequest { master_key: key, ..on_another }));
        }
        for operation in refused {
            let kind = operation.kind();
            assert_eq!(client.v3(2, operation).await.status, ErrorCode::Unauthorized.v3(), "{kind:?}");
        }
    }
    let none = Operation::Read(proto::ReadRequest { flag: fence, master_key: None, ..v3_read(1, -1) });
    assert_eq!(client.v3(3, none).await.status, ErrorCode::Unauthorized.v3());
    assert_eq!(client.v3(4, Operation::Read(v3_read(50, 0))).await.status, ErrorCode::NoLedger.v3());
    assert_eq!(client.v3(5, v3_add(1, 1, 0)).await.status, 0, "not fenced, and the key is what it was");
    // Zeros stand for no key yet: they give way to the first real one, once.
    let (zeros, ok, no) = (MasterKey::new(zeros), ErrorCode::Ok, ErrorCode::Unauthorized);
    for (entry, (key, code)) in (0..).zip([(zeros, ok), (KEY, ok), (zeros, no), (OTHER_KEY, no), (KEY, ok)]) {
        client.send(&add_frame(2, entry, 10, v2::Flags::NONE, key)).await;
        assert_eq!(client.next_v2().await, OwnedV2::Add(code, 2, entry));
    }
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_read_ends_at_its_limits() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    let mut frames = BytesMut::new();
    for entry in 0..20 {
        frames.extend_from_slice(&add_frame(3, entry, 1000, v2::Flags::NONE, KEY));
    }
    client.send(&frames).await;
    for _ in 0..20 {
        client.next_v2().await;
    }
    let batch = |start_entry_id, max_count, max_size_bytes, request_id| {
        v2::Request::BatchRead(v2::BatchRead {
            version: 2,
            flags: v2::Flags::NONE,
            ledger_id: 3,
            start_entry_id,
            request_id,
            max_count,
            max_size_bytes,
            master_key: None,
            stride: 1,
        })
    };
    let entries = |from: i64, to: i64| (from..to).map(|e| body(3, e, e - 1, 1000)).collect::<Vec<_>>();
    let all = client.v2(batch(0, 0, 1 << 20, 100)).await;
    assert_eq!(all, OwnedV2::Batch(ErrorCode::Ok, 100, entries(0, 20)));
    let three = client.v2(batch(5, 3, 1 << 20, 101)).await;
    assert_eq!(three, OwnedV2::Batch(ErrorCode::Ok, 101, entries(5, 8)));
    let first_only = client.v2(batch(5, 3, 10, 102)).await;
    assert_eq!(first_only, OwnedV2::Batch(ErrorCode::Ok, 102, entries(5, 6)));
    // 36 bytes of head, then 4 + 1032 for each.
    let two = client.v2(batch(5, 10, 36 + 2 * 1036, 103)).await;
    assert_eq!(two, OwnedV2::Batch(ErrorCode::Ok, 103, entries(5, 7)));
    let beyond = client.v2(batch(20, 10, 10_000, 104)).await;
    assert_eq!(beyond, OwnedV2::Batch(ErrorCode::NoEntry, 104, Vec::new()));
    bookie.stop().await;
}

fn v3_add(ledger_id: i64, entry_id: i64, lac: i64) -> Operation {
    Operation::Add(proto::AddRequest {
        ledger_id,
        entry_id,
        master_key: Bytes::copy_from_slice(KEY.as_bytes()),
        body: body(ledger_id, entry_id, lac, 50).into(),
        ..Default::default()
    })
}

fn v3_read(ledger_id: i64, entry_id: i64) -> proto::ReadRequest {
    proto::ReadRequest { ledger_id, entry_id, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v3_operations_answer_as_the_reference_says() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    for entry in 0..3 {
        let answer = client.v3(entry as u64, v3_add(8, entry, entry - 1)).await;
        assert_eq!((answer.status, answer.header.txn_id), (0, entry as u64));
        assert_eq!(answer.add_response.unwrap().entry_id, entry);
    }
    // Ids of message and body must agree.
    let Operation::Add(mut mismatch) = v3_add(8, 3, 2) else { unreachable!() };
    mismatch.entry_id = 4;
    assert_eq!(client.v3(9, Operation::Add(mismatch)).await.status, ErrorCode::BadRequest.v3());

    let read = client.v3(10, Operation::Read(v3_read(8, 1))).await.read_response.unwrap();
    assert_eq!(read.body.as_deref(), Some(&body(8, 1, 0, 50)[..]));
    assert_eq!(read.max_lac, Some(1), "entry 2 carried LAC 1");
    let missing = client.v3(11, Operation::Read(v3_read(8, 7))).await;
    assert_eq!(missing.status, ErrorCode::NoEntry.v3());
    assert_eq!(missing.read_response.unwrap().entry_id, 7, "ids also on failure");

    let mut lac_body = BytesMut::new();
    bindery_wire::entry::ExplicitLac { ledger_id: 8, last_add_confirmed: 2 }.put(&mut lac_body);
    let write = proto::WriteLacRequest {
        ledger_id: 8,
        lac: 2,
        master_key: Bytes::copy_from_slice(KEY.as_bytes()),
        body: lac_body.clone().freeze(),
    };
    assert_eq!(client.v3(12, Operation::WriteLac(write)).await.status, 0);
    let answer = client.v3(13, Operation::ReadLac(proto::ReadLacRequest { ledger_id: 8 })).await;
    let lac = answer.read_lac_response.unwrap();
    assert_eq!(lac.lac_body.as_deref(), Some(&lac_body[..]));
    assert_eq!(lac.last_entry_body.as_deref(), Some(&body(8, 2, 1, 50)[..]));
    let unknown = client.v3(14, Operation::ReadLac(proto::ReadLacRequest { ledger_id: 80 })).await;
    assert_eq!(unknown.status, ErrorCode::NoLedger.v3());

    let force = Operation::ForceLedger(proto::ForceLedgerRequest { ledger_id: 8 });
    assert_eq!(client.v3(15, force).await.status, 0);
    let info = proto::GetBookieInfoRequest { requested: Some(3) };
    let info = client.v3(16, Operation::GetBookieInfo(info)).await.get_bookie_info_response.unwrap();
    assert!(info.total_disk_capacity.unwrap() >= info.free_disk_space.unwrap());
    let list = proto::GetListOfEntriesOfLedgerRequest { ledger_id: 8 };
    let list = client.v3(17, Operation::GetListOfEntries(list)).await;
    let list = list.get_list_of_entries_of_ledger_response.unwrap().availability_of_entries_of_ledger;
    let list = bindery_wire::EntryAvailability::decode(&list.unwrap()).unwrap();
    assert_eq!(list.entry_count(), 3);
    assert_eq!(client.v3(18, Operation::StartTls).await.status, ErrorCode::BadRequest.v3());
    let auth = client.v3(19, Operation::Auth(v3::auth_disabled_message())).await;
    assert_eq!(auth.auth_response.unwrap().auth_plugin_name, "AuthDisabledPlugin");

    let fence = proto::ReadRequest {
        master_key: Some(Bytes::copy_from_slice(KEY.as_bytes())),
        flag: Some(proto::read_request::Flag::FenceLedger as i32),
        ..v3_read(8, -1)
    };
    let fence = client.v3(20, Operation::Read(fence)).await.read_response.unwrap();
    assert_eq!((fence.status, fence.entry_id, fence.max_lac), (0, -1, None));
    assert_eq!(client.v3(21, v3_add(8, 3, 2)).await.status, ErrorCode::Fenced.v3());
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_poll_wakes_on_an_advance_and_times_out_without_one() {
    let bookie = start(Limits::default()).await;
    let (mut writer, mut reader) = (Client::new(&bookie).await, Client::new(&bookie).await);
    writer.v3(0, v3_add(4, 0, -1)).await;
    let poll = |time_out, previous| {
        Operation::Read(proto::ReadRequest {
            previous_lac: Some(previous),
            time_out: Some(time_out),
            flag: Some(proto::read_request::Flag::EntryPiggyback as i32),
            ..v3_read(4, -1)
        })
    };
    let timed_out = reader.v3(1, poll(50, -1)).await.read_response.unwrap();
    assert_eq!((timed_out.status, timed_out.entry_id, timed_out.max_lac), (0, -1, Some(-1)));
    assert_eq!((timed_out.body, timed_out.lac_update_timestamp), (None, None));

    reader.send(&framed_v3(2, poll(10_000, -1))).await;
    let parked = async {
        while bookie.shared.metrics.long_polls_parked.get() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, parked).await.unwrap();
    writer.v3(3, v3_add(4, 1, 0)).await;
    let woken = reader.next_v3().await.read_response.unwrap();
    assert_eq!((woken.status, woken.entry_id, woken.max_lac), (0, 0, Some(0)));
    assert_eq!(woken.body.as_deref(), Some(&body(4, 0, -1, 50)[..]));
    assert!(woken.lac_update_timestamp.is_some());
    let at_once = reader.v3(4, poll(10_000, -1)).await.read_response.unwrap();
    assert_eq!((at_once.entry_id, at_once.max_lac), (0, Some(0)));
    assert_eq!(
        reader
            .v3(5, {
                let Operation::Read(mut read) = poll(10, -1) else { unreachable!() };
                read.ledger_id = 44;
                Operation::Read(read)
            })
            .await
            .status,
        ErrorCode::NoLedger.v3()
    );
    // A poll left behind by a closed connection is taken back: `stop` checks the gauge.
    reader.send(&framed_v3(6, poll(10_000, 5))).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(reader);
    bookie.stop().await;
}

/// More than the sender ends in one turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_that_time_out_together_are_all_answered() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    client.v3(0, v3_add(4, 0, -1)).await;
    let poll = || proto::ReadRequest { previous_lac: Some(-1), time_out: Some(300), ..v3_read(4, -1) };
    let mut sent = BytesMut::new();
    for txn in 1..=1000 {
        sent.extend_from_slice(&framed_v3(txn, Operation::Read(poll())));
    }
    client.send(&sent).await;
    let mut answered = BTreeSet::new();
    while answered.len() < 1000 {
        let response = client.next_v3().await;
        assert_eq!(response.status, 0);
        assert!(answered.insert(response.header.txn_id), "it is answered once");
    }
    assert_eq!(answered, (1..=1000).collect());
    bookie.stop().await;
}

/// S11: polls above what a connection may have parked are refused at once, and those parked stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_parks_no_more_long_polls_than_it_may() {
    const PARKED: u64 = 10;
    const ASKED: u64 = 1000;
    let limits = Limits { long_polls_per_connection_max: PARKED as usize, ..Limits::default() };
    let bookie = start(limits).await;
    let (mut client, mut writer) = (Client::new(&bookie).await, Client::new(&bookie).await);
    client.v3(0, v3_add(4, 0, -1)).await;
    let poll = || proto::ReadRequest { previous_lac: Some(-1), time_out: Some(600_000), ..v3_read(4, -1) };
    let mut sent = BytesMut::new();
    for txn in 1..=ASKED {
        sent.extend_from_slice(&framed_v3(txn, Operation::Read(poll())));
    }
    client.send(&sent).await;
    for _ in PARKED..ASKED {
        assert_eq!(client.next_v3().await.status, ErrorCode::TooManyRequests.v3());
    }
    let metrics = &bookie.shared.metrics;
    assert_eq!(metrics.long_polls_refused.get(), ASKED - PARKED);
    assert_eq!(metrics.long_polls_parked.get(), PARKED as i64);
    writer.v3(1, v3_add(4, 1, 0)).await;
    for _ in 0..PARKED {
        assert_eq!(client.next_v3().await.status, 0);
    }
    bookie.stop().await;
}

/// S11: a client that parks all it can leaves places to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holder_leaves_places_for_long_polls_to_others() {
    let bookie = start(Limits { long_polls_max: 100, ..Limits::default() }).await;
    let (mut greedy, mut other) = (Client::new(&bookie).await, Client::new(&bookie).await);
    greedy.v3(0, v3_add(4, 0, -1)).await;
    let poll = || {
        let read = proto::ReadRequest { previous_lac: Some(-1), time_out: Some(600_000), ..v3_read(4, -1) };
        Operation::Read(read)
    };
    for txn in 1..=100 {
        greedy.send(&framed_v3(txn, poll())).await;
    }
    for _ in 0..50 {
        assert_eq!(greedy.next_v3().await.status, ErrorCode::TooManyRequests.v3());
    }
    other.send(&framed_v3(1, poll())).await;
    let parked = async {
        while bookie.shared.metrics.long_polls_parked.get() < 51 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, parked).await.unwrap();
    // They come back with the connection.
    drop(greedy);
    let back = async {
        while bookie.shared.metrics.long_polls_parked.get() > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, back).await.unwrap();
    drop(other);
    bookie.stop().await;
}

/// ENTRY_PIGGYBACK without previousLAC is an ordinary read, as in Java.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_with_piggyback_and_no_previous_lac_is_an_ordinary_one() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    client.v3(0, v3_add(4, 0, -1)).await;
    for (txn, entry) in [(1, 0), (2, -1)] {
        let flag = Some(proto::read_request::Flag::EntryPiggyback as i32);
        let read = proto::ReadRequest { flag, ..v3_read(4, entry) };
        let answer = client.v3(txn, Operation::Read(read)).await.read_response.unwrap();
        assert_eq!((answer.status, answer.body.as_deref()), (0, Some(&body(4, 0, -1, 50)[..])));
    }
    drop(client);
    bookie.stop().await;
}

/// S9: frames of a million fields that mean nothing, and of as much logging context as fits. They are skipped, and others are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_tiny_fields_cost_their_bytes() {
    let bookie = start(Limits::default()).await;
    let (mut client, mut healthy) = (Client::new(&bookie).await, Client::new(&bookie).await);
    let unknown = [0xf8, 0x3f, 0].repeat(1_000_000);
    let context = [0xc2, 0x0c, 4, 0x0a, 0, 0x12, 0].repeat(600_000);
    for (txn, fields) in (1..).zip([unknown, context]) {
        let read = framed_v3(txn, Operation::Read(v3_read(77, 0)));
        let size_bytes = (read.len() - 4 + fields.len()) as u32;
        client.flood([&size_bytes.to_be_bytes()[..], &read[4..], &fields].concat()[..].into());
        for entry in 0..20 {
            healthy.send(&add_frame(txn as i64, entry, 10, v2::Flags::NONE, KEY)).await;
            assert_eq!(healthy.next_v2().await.code(), ErrorCode::Ok);
        }
        let answer = client.next_v3().await;
        assert_eq!((answer.header.txn_id, answer.status), (txn, ErrorCode::NoLedger.v3()));
    }
    drop((client, healthy));
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_client_sends_closes_that_connection_only() {
    let bookie = start(Limits::default()).await;
    let mut healthy = Client::new(&bookie).await;
    for bytes in BAD_FRAMES {
        let mut client = Client::new(&bookie).await;
        client.send(bytes).await;
        assert_eq!(client.next().await, None, "{bytes:?}");
    }
    assert_eq!(bookie.shared.metrics.closed_bad_frame.get(), BAD_FRAMES.len() as u64);
    healthy.send(&add_frame(1, 0, 10, v2::Flags::NONE, KEY)).await;
    assert_eq!(healthy.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 1, 0));
    // A large frame that is announced and never comes holds only its permit, and goes with its peer. The permit of a
    // stranger is of a pool of its own.
    let announced = [0, 0x40, 0, 0, 2, 1, 0, 0];
    let mut bomb = Client::new(&bookie).await;
    bomb.send(&announced).await;
    healthy.send(&announced).await;
    let pools = &bookie.shared.pools;
    let held = async {
        while [&pools.first_large, &pools.inbound_large].iter().any(|pool| pool.gauge().used < 4 << 20) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, held).await.is_ok());
    drop((bomb, healthy));
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_is_bounded_and_does_not_stall_others() {
    let limits = Limits { read_window_bytes: 256 * 1024, answers_bytes_max: 64 * 1024, ..Limits::default() };
    let bookie = start(limits).await;
    let mut healthy = Client::new(&bookie).await;
    let mut frames = BytesMut::new();
    for entry in 0..100 {
        frames.extend_from_slice(&add_frame(6, entry, 60_000, v2::Flags::NONE, KEY));
    }
    healthy.send(&frames).await;
    for entry in 0..100 {
        assert_eq!(healthy.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 6, entry));
    }
    // It asks for 30,000 entries of 60 KB, 1.8 GB, and reads none of them.
    let mut deaf = Client::new(&bookie).await;
    let mut flood = BytesMut::new();
    for i in 0..30_000 {
        v2::Request::Read(read_request(6, i % 100)).encode(&mut flood);
    }
    deaf.flood(flood);
    for round in 0..50 {
        let entry = round % 100;
        let read = healthy.v2(v2::Request::Read(read_request(6, entry))).await;
        assert!(matches!(read, OwnedV2::Read(ErrorCode::Ok, 6, e, _) if e == entry));
        healthy.send(&add_frame(6, 100 + round, 10, v2::Flags::NONE, KEY)).await;
        assert_eq!(healthy.next_v2().await, OwnedV2::Add(ErrorCode::Ok, 6, 100 + round));
        let outbound = bookie.shared.pools.outbound.gauge();
        // Its window, the healthy one's, and one entry each that goes alone.
        assert!(outbound.used <= 2 * (256 * 1024 + 100_000), "{outbound:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(bookie.shared.metrics.read_rejected.get() < 30_000);
    drop(deaf);
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_keys_are_answered_in_request_order_even_when_fencing_overtakes() {
    let bookie = start(Limits::default()).await;
    let mut client = Client::new(&bookie).await;
    client.send(&add_frame(2, 0, 100, v2::Flags::NONE, KEY)).await;
    client.next_v2().await;
    for _ in 0..20 {
        let mut out = BytesMut::new();
        for _ in 0..10 {
            v2::Request::Read(read_request(2, 0)).encode(&mut out);
        }
        v2::Request::Read(read_request(2, -1)).encode(&mut out);
        // With a wrong key the answer tells the fencing read from the plain ones around it.
        v2::Request::Read(fence_request(2, -1, OTHER_KEY)).encode(&mut out);
        v2::Request::Read(read_request(2, -1)).encode(&mut out);
        client.send(&out).await;
        let mut last_entry_codes = Vec::new();
        for _ in 0..13 {
            if let OwnedV2::Read(code, 2, -1, _) = client.next_v2().await {
                last_entry_codes.push(code);
            }
        }
        assert_eq!(last_entry_codes, [ErrorCode::Ok, ErrorCode::Unauthorized, ErrorCode::Ok]);
    }
    bookie.stop().await;
}

/// Sender invariant 4: an entry that was accepted with a larger limit on frames than the bookie has now. Its read ends,
/// whatever asks for it, and those behind it on the connection are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_larger_than_its_pool_is_refused_and_holds_nobody_up() {
    let limits = Limits::default();
    let plan = MemoryPlan::new(256 << 20, &limits).unwrap();
    let plan = MemoryPlan { outbound: 100_000, outbound_priority: 100_000, ..plan };
    let bookie = start_with(limits, plan).await;
    let mut client = Client::new(&bookie).await;
    for (entry, size) in [(0, 1000), (1, 200_000), (2, 1000)] {
        client.send(&add_frame(9, entry, size, v2::Flags::NONE, KEY)).await;
        assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
    }
    let mut asked = BytesMut::new();
    for entry in [1, 0, 1, 2] {
        v2::Request::Read(read_request(9, entry)).encode(&mut asked);
    }
    v2::Request::Read(fence_request(9, 1, KEY)).encode(&mut asked);
    batch_request(9, 1, 77, 10, 50_000).encode(&mut asked);
    batch_request(9, 0, 78, 10, 50_000).encode(&mut asked);
    client.send(&asked).await;
    let mut codes = Vec::new();
    for _ in 0..7 {
        codes.push(match client.next_v2().await {
            OwnedV2::Read(code, 9, entry, _) => (entry, code),
            OwnedV2::Batch(code, id, entries) => {
                assert_eq!(entries.len(), usize::from(code == ErrorCode::Ok));
                (id, code)
            }
            other => panic!("{other:?}"),
        });
    }
    codes.sort_by_key(|(id, _)| *id);
    let (ok, io) = (ErrorCode::Ok, ErrorCode::Io);
    assert_eq!(codes, [(0, ok), (1, io), (1, io), (1, io), (2, ok), (77, io), (78, ok)]);
    drop(client);
    bookie.stop().await;
}
