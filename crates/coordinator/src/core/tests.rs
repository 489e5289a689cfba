use super::*;
use crate::wire::{Code, FRAME_SIZE_BYTES_MAX, opcode};
use bindery_io::SeededRandom;
use bytes::{Buf, BufMut, BytesMut};
use proptest::prelude::*;
use std::net::Ipv4Addr;

pub(super) const A: ConnectionId = ConnectionId(1);
pub(super) const B: ConnectionId = ConnectionId(2);

fn core() -> Core {
    let config = CoreConfig { sessions_max: 1000, ..CoreConfig::small() };
    Core::new(config, 0, at(0), Arc::new(SeededRandom::new(1)))
}

pub(super) fn at(monotonic_ms: u64) -> Now {
    Now { monotonic_ms, wall_ms: 1_700_000_000_000 }
}

fn connect_frame(session: i64, password: &[u8], timeout_ms: i32) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i32(0);
    out.put_i64(0);
    out.put_i32(timeout_ms);
    out.put_i64(session);
    put(&mut out, password);
    out.put_u8(0);
    out.freeze()
}

fn put(out: &mut BytesMut, bytes: &[u8]) {
    out.put_i32(bytes.len() as i32);
    out.put_slice(bytes);
}

/// (timeout, session, password)
pub(super) fn connect(
    core: &mut Core,
    id: ConnectionId,
    session: i64,
    password: &[u8],
) -> (i32, i64, Vec<u8>) {
    let mut out = Vec::new();
    core.on_connect(id, Ipv4Addr::LOCALHOST.into());
    core.on_connect_request(at(0), id, connect_frame(session, password, 5000), &mut out);
    let frames = frames(&out, id);
    let mut answer = frames[0].slice(8..);
    (answer.get_i32(), answer.get_i64(), answer.slice(4..20).to_vec())
}

pub(super) fn frames(out: &[Output], id: ConnectionId) -> Vec<Bytes> {
    let of_connection = |output: &Output| match output {
        Output::Frame(to, frame) if *to == id => Some(frame.clone()),
        Output::Frame(..) | Output::Close(_) | Output::Drop(_) => None,
    };
    out.iter().filter_map(of_connection).collect()
}

/// Sends a request; gives all outputs.
fn send(core: &mut Core, id: ConnectionId, opcode: i32, fill: impl FnOnce(&mut BytesMut)) -> Vec<Output> {
    let mut frame = BytesMut::new();
    frame.put_i32(1);
    frame.put_i32(opcode);
    fill(&mut frame);
    let mut out = Vec::new();
    core.on_request(at(0), id, frame.freeze(), &mut out);
    out
}

/// xid, zxid, error.
pub(super) fn header(frame: &Bytes) -> (i32, i64, i32) {
    let mut header = frame.slice(4..);
    (header.get_i32(), header.get_i64(), header.get_i32())
}

pub(super) fn create(core: &mut Core, id: ConnectionId, path: &str, flags: i32) -> Vec<Output> {
    send(core, id, opcode::CREATE, |out| {
        put(out, path.as_bytes());
        put(out, b"v");
        out.put_i32(1);
        out.put_i32(31);
        put(out, b"world");
        put(out, b"anyone");
        out.put_i32(flags);
    })
}

pub(super) fn read(core: &mut Core, id: ConnectionId, opcode: i32, path: &str, watch: bool) -> Vec<Output> {
    send(core, id, opcode, |out| {
        put(out, path.as_bytes());
        out.put_u8(watch.into());
    })
}

#[test]
fn a_notification_stands_before_the_reply_that_shows_its_change() {
    let mut core = core();
    connect(&mut core, A, 0, &[]);
    read(&mut core, A, opcode::EXISTS, "/a", true);
    let out = create(&mut core, A, "/a", 0);
    let xids: Vec<i32> = frames(&out, A).iter().map(|frame| header(frame).0).collect();
    assert_eq!(xids, [-1, 1], "core invariant 1");
}

#[test]
fn failed_writes_take_zxids_that_are_never_used_again() {
    let mut core = core();
    connect(&mut core, A, 0, &[]);
    create(&mut core, A, "/a", 0);
    let ceiling = core.take_batch().zxid_ceiling;
    let mut last = core.zxid;
    let mut commits = 0;
    for _ in 0..(2 * ZXID_RESERVE + 2) {
        let out = create(&mut core, A, "/a", 0);
        let (_, zxid, error) = header(&frames(&out, A)[0]);
        assert_eq!((zxid, error), (last + 1, Code::NodeExists.number()));
        last = zxid;
        if zxid <= ceiling {
            assert!(!core.has_changes(), "a failure alone costs no commit");
        }
        if core.has_changes() {
            commits += 1;
            assert!(core.take_batch().zxid_ceiling > zxid, "core invariant 2");
        }
    }
    assert_eq!(commits, 2);
}

#[test]
fn an_expired_session_goes_with_its_nodes_in_one_batch() {
    let mut core = core();
    let (timeout, session, password) = connect(&mut core, A, 0, &[]);
    assert_eq!(timeout, 5000);
    connect(&mut core, B, 0, &[]);
    create(&mut core, A, "/e1", 1);
    create(&mut core, A, "/e2", 1);
    read(&mut core, B, opcode::EXISTS, "/e1", true);
    core.take_batch();
    let mut out = Vec::new();
    for tick in 1..=5 {
        core.on_tick(at(tick * 1000), false, &mut out);
        // Only one of the two clients sends pings.
        let mut ping = BytesMut::new();
        ping.put_i32(-2);
        ping.put_i32(opcode::PING);
        core.on_request(at(tick * 1000), B, ping.freeze(), &mut Vec::new());
    }
    assert_eq!(out, []);
    core.on_tick(at(6000), false, &mut out);
    assert!(out.contains(&Output::Drop(A)));
    assert_eq!(header(&frames(&out, B)[0]).0, -1, "the other one is told");
    let batch = core.take_batch();
    assert_eq!(batch.sessions, BTreeMap::from([(session, None)]), "core invariant 3");
    let gone: Vec<&str> =
        batch.nodes.iter().filter(|(_, record)| record.is_none()).map(|(path, _)| &**path).collect();
    assert_eq!(gone, ["/e1", "/e2"]);
    assert_eq!(connect(&mut core, ConnectionId(3), session, &password), (0, 0, vec![0; 16]));
}

#[test]
fn a_resumed_session_moves_and_takes_no_watches_along() {
    let mut core = core();
    let (_, session, password) = connect(&mut core, A, 0, &[]);
    create(&mut core, A, "/a", 0);
    read(&mut core, A, opcode::GET_DATA, "/a", true);
    assert_eq!(core.watches.len(), 1);
    core.on_connect(B, Ipv4Addr::LOCALHOST.into());
    let mut out = Vec::new();
    core.on_connect_request(at(0), B, connect_frame(session, &[0; 16], 5000), &mut out);
    assert!(out.contains(&Output::Close(B)), "a wrong secret");
    assert_eq!(core.watches.len(), 1, "and the client with the right one stays");
    core.on_disconnect(B);
    core.on_connect(B, Ipv4Addr::LOCALHOST.into());
    let mut out = Vec::new();
    core.on_connect_request(at(0), B, connect_frame(session, &password, 5000), &mut out);
    assert!(out.contains(&Output::Drop(A)));
    assert_eq!(core.watches.len(), 0);
    assert!(send(&mut core, A, opcode::PING, |_| {}).is_empty(), "the old connection is not heard");
}

#[test]
fn a_client_from_the_future_is_sent_away() {
    let mut core = core();
    core.on_connect(A, Ipv4Addr::LOCALHOST.into());
    let mut frame = BytesMut::from(&connect_frame(0, &[], 5000)[..]);
    frame[4..12].copy_from_slice(&1i64.to_be_bytes());
    let mut out = Vec::new();
    core.on_connect_request(at(0), A, frame.freeze(), &mut out);
    assert_eq!(out, [Output::Drop(A)]);
}

#[test]
fn a_client_with_too_many_watches_is_dropped() {
    let mut core = core();
    connect(&mut core, A, 0, &[]);
    let dropped = (0..200)
        .position(|n| read(&mut core, A, opcode::EXISTS, &format!("/{n}"), true).contains(&Output::Drop(A)));
    assert_eq!((dropped, core.watches.len()), (Some(100), 0));
}

#[test]
fn rules_hide_changes_from_whom_they_shut_out() {
    let mut core = core();
    connect(&mut core, A, 0, &[]);
    connect(&mut core, B, 0, &[]);
    send(&mut core, A, opcode::AUTH, |out| {
        out.put_i32(0);
        put(out, b"digest");
        put(out, b"me:secret");
    });
    for id in [A, B] {
        read(&mut core, id, opcode::EXISTS, "/mine", true);
    }
    let out = send(&mut core, A, opcode::CREATE, |out| {
        put(out, b"/mine");
        put(out, b"");
        out.put_i32(1);
        out.put_i32(31);
        put(out, b"auth");
        put(out, b"");
        out.put_i32(0);
    });
    assert_eq!((frames(&out, A).len(), frames(&out, B).len()), (2, 0));
    let refused = read(&mut core, B, opcode::GET_DATA, "/mine", false);
    assert_eq!(header(&frames(&refused, B)[0]).2, Code::NoAuth.number());
}

/// Well-formed requests to start from: every opcode, with paths that exist and paths that do not.
fn seeds() -> Vec<(i32, Bytes)> {
    let mut seeds = Vec::new();
    let mut add = |opcode: i32, fill: &dyn Fn(&mut BytesMut)| {
        let mut record = BytesMut::new();
        fill(&mut record);
        seeds.push((opcode, record.freeze()));
    };
    for path in ["/a", "/a/b", "/", "", "/zookeeper/config", "/e"] {
        for opcode in (-2..=25).chain(99..=110).chain([-10, -11]) {
            add(opcode, &|out| {
                put(out, path.as_bytes());
                put(out, b"data");
                out.put_i32(1);
                out.put_i32(31);
                put(out, b"world");
                put(out, b"anyone");
                out.put_i32(2);
                out.put_i64(5);
            });
            add(opcode, &|out| {
                put(out, path.as_bytes());
                out.put_i32(1);
            });
        }
        for (outer, inner) in [(opcode::MULTI, opcode::DELETE), (opcode::MULTI_READ, opcode::GET_DATA)] {
            add(outer, &|out| {
                for _ in 0..2 {
                    out.put_i32(inner);
                    out.put_u8(0);
                    out.put_i32(-1);
                    put(out, path.as_bytes());
                    out.put_i32(0);
                }
                out.put_i32(-1);
                out.put_u8(1);
                out.put_i32(-1);
            });
        }
    }
    seeds
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Bytes from the wire never panic, and each frame is answered exactly once or ends its connection.
    #[test]
    fn mutated_requests_are_answered_or_end_the_connection(
        picks in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), any::<prop::sample::Index>()), 1..60),
    ) {
        let (mut core, seeds) = (core(), seeds());
        let mut next = 1;
        let mut id = ConnectionId(next);
        connect(&mut core, id, 0, &[]);
        create(&mut core, id, "/a", 0);
        create(&mut core, id, "/e", 1);
        for (seed, flips, cut) in picks {
            let (opcode, record) = seed.get(&seeds);
            let mut frame = BytesMut::new();
            frame.put_i32(77);
            frame.put_i32(*opcode);
            frame.put_slice(record);
            for (place, value) in flips {
                let place = place.index(frame.len());
                frame[place] = value;
            }
            if value_of(&cut).is_multiple_of(3) {
                frame.truncate(cut.index(frame.len() + 1));
            }
            let mut out = Vec::new();
            core.on_request(at(0), id, frame.freeze(), &mut out);
            core.tree.check_invariants();
            let replies = frames(&out, id).iter().filter(|frame| header(frame).0 != -1 || header(frame).2 != 0).count();
            let ended = out.contains(&Output::Drop(id)) || out.contains(&Output::Close(id));
            // A request that chose the notifications' xid looks like one.
            let looks = frames(&out, id).iter().any(|frame| header(frame).0 == -1);
            prop_assert!(replies == 1 || ended || looks, "{:?}", out);
            if ended {
                core.on_disconnect(id);
                next += 1;
                id = ConnectionId(next);
                connect(&mut core, id, 0, &[]);
            }
        }
        prop_assert_eq!(FRAME_SIZE_BYTES_MAX, 0xf_ffff);
    }

    #[test]
    fn any_bytes_are_no_connect_request_or_one(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut core = core();
        core.on_connect(A, Ipv4Addr::LOCALHOST.into());
        let mut out = Vec::new();
        core.on_connect_request(at(0), A, bytes.into(), &mut out);
        prop_assert!(!out.is_empty());
    }
}

fn value_of(index: &prop::sample::Index) -> usize {
    index.index(1000)
}

fn is_dropped(out: &[Output], id: ConnectionId) -> bool {
    out.contains(&Output::Drop(id))
}

/// Core's limits: a watch may have a name as long as a frame, and the number of watches says nothing then.
#[test]
fn watches_on_long_names_end_the_connection_before_they_fill_the_memory() {
    let mut core = core();
    connect(&mut core, A, 0, &[]);
    let name = "x".repeat(400 << 10);
    for number in 0..2 {
        let out = read(&mut core, A, opcode::EXISTS, &format!("/{number}{name}"), true);
        assert!(!is_dropped(&out, A), "{number}");
    }
    assert!(is_dropped(&read(&mut core, A, opcode::EXISTS, &format!("/2{name}"), true), A));
    assert_eq!((core.watches.len(), core.watches.path_bytes()), (0, 0), "nothing is left of it");
}

/// Core's limits: the connection that used up the watches is dropped, not the one that asks next.
#[test]
fn the_connection_with_most_watches_goes() {
    for by_bytes in [false, true] {
        let mut core = core();
        connect(&mut core, A, 0, &[]);
        connect(&mut core, B, 0, &[]);
        let long = "x".repeat(if by_bytes { 300 << 10 } else { 0 });
        let most = if by_bytes { 3 } else { 60 };
        for number in 0..most {
            read(&mut core, A, opcode::EXISTS, &format!("/a{number}{long}"), true);
        }
        // More of them, or more bytes, but not both.
        let fewer = if by_bytes { 50 } else { 40 };
        for number in 0..fewer {
            assert!(read(&mut core, B, opcode::EXISTS, &format!("/b{number}"), true).len() == 1);
        }
        let last = format!("/b-last{}", "x".repeat(if by_bytes { 200 << 10 } else { 0 }));
        let out = read(&mut core, B, opcode::EXISTS, &last, true);
        assert!(is_dropped(&out, A) && !is_dropped(&out, B), "{by_bytes}: {out:?}");
        assert_eq!(core.watches.len(), fewer + 1);
        assert!(!is_dropped(&read(&mut core, B, opcode::EXISTS, "/more", true), B));
    }
}

#[test]
fn sessions_of_clients_that_went_are_bounded() {
    let mut core = core();
    core.config.sessions_max = 10;
    for number in 0..10 {
        connect(&mut core, ConnectionId(number), 0, &[]);
        core.on_disconnect(ConnectionId(number));
    }
    assert!(core.pending_bytes() > 0, "they wait to become durable like any other request");
    core.on_connect(A, Ipv4Addr::LOCALHOST.into());
    let mut out = Vec::new();
    core.on_connect_request(at(0), A, connect_frame(0, &[], 5000), &mut out);
    assert_eq!(out, [Output::Drop(A)]);
    core.on_disconnect(A);
    core.on_tick(at(900), false, &mut out);
    (1..=10).for_each(|second| core.on_tick(at(second * 1000), false, &mut out));
    assert_ne!(connect(&mut core, B, 0, &[]).1, 0, "when their time is up there is room again");
}

/// A write that fails takes a transaction number and leaves nothing to be made durable: no batch would come that takes
/// its bytes off again, and enough of them would stop all reading.
#[test]
fn writes_that_fail_do_not_wait_for_anything() {
    let mut core = core();
    connect(&mut core, A, 0, &[]);
    core.take_batch();
    let before = core.zxid;
    for _ in 0..100 {
        send(&mut core, A, opcode::DELETE, |out| {
            put(out, b"/nothing");
            out.put_i32(-1);
        });
    }
    assert!(core.zxid > before, "they were tried");
    assert!(!core.has_changes());
    assert_eq!(core.pending_bytes(), 0);
}

fn auth(core: &mut Core, id: ConnectionId, credentials: &str) -> Vec<Output> {
    send(core, id, opcode::AUTH, |out| {
        out.put_i32(0);
        put(out, b"digest");
        put(out, credentials.as_bytes());
    })
}

#[test]
fn a_connection_proves_a_bounded_number_of_small_identities() {
    let mut core = core();
    connect(&mut core, A, 0, &[]);
    // One is the address.
    for number in 1..IDENTITIES_MAX {
        let out = auth(&mut core, A, &format!("user{number}:p"));
        assert_eq!(header(&frames(&out, A)[0]).2, 0, "{number}");
    }
    assert_eq!(header(&frames(&auth(&mut core, A, "user1:p"), A)[0]).2, 0, "one that is known costs nothing");
    let refused = auth(&mut core, A, "another:p");
    assert_eq!(header(&frames(&refused, A)[0]).2, Code::AuthFailed.number());
    assert!(refused.contains(&Output::Close(A)));
    connect(&mut core, B, 0, &[]);
    let refused = auth(&mut core, B, &"x".repeat(CREDENTIALS_SIZE_MAX + 1));
    assert_eq!(header(&frames(&refused, B)[0]).2, Code::AuthFailed.number());
}

/// A frame names a node some 50,000 times: the answer would have been gigabytes, or a panic beyond 4 GiB.
#[test]
fn a_multi_read_does_not_multiply_a_large_value() {
    let mut core = core();
    connect(&mut core, A, 0, &[]);
    send(&mut core, A, opcode::CREATE, |out| {
        put(out, b"/big");
        put(out, &vec![7; 900 << 10]);
        out.put_i32(1);
        out.put_i32(31);
        put(out, b"world");
        put(out, b"anyone");
        out.put_i32(0);
    });
    let mut reads = |opcode, path: &str, count: usize| {
        let out = send(&mut core, A, opcode::MULTI_READ, |out| {
            for _ in 0..count {
                out.put_i32(opcode);
                out.put_u8(0);
                out.put_i32(-1);
                put(out, path.as_bytes());
                out.put_u8(0);
            }
            out.put_i32(-1);
            out.put_u8(1);
            out.put_i32(-1);
        });
        let frame = frames(&out, A).remove(0);
        (header(&frame).2, frame.len())
    };
    let (error, size) = reads(opcode::GET_DATA, "/big", 4);
    assert!(error == 0 && size > 4 * (900 << 10), "{error} {size}");
    assert_eq!(reads(opcode::GET_DATA, "/big", 5), (Code::Marshalling.number(), 20));
    assert_eq!(reads(opcode::GET_DATA, "/big", 50_000), (Code::Marshalling.number(), 20));
    // "big" and "zookeeper": 20 bytes with their lengths.
    assert_eq!(reads(opcode::GET_CHILDREN, "/", READS_BYTES_MAX / 20 / 10).0, 0);
}
