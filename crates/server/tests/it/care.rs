//! Care of connections over real sockets: which peers may come in, how long a peer may hold what it does not use, and
//! which work a stop finishes. A whole bookie, watched through its admin port.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::memory::MemoryCluster;
use bindery_metadata::{Layout, LedgerLayout, RegistrationMode, layout};
use bindery_server::bookie::{Bookie, Components, Ended, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_server::latch::Latch;
use bindery_server::limits::Limits;
use bindery_server::sockets::SocketOptions;
use bindery_types::MasterKey;
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Long enough for any machine; nothing is measured.
const PATIENCE: Duration = Duration::from_secs(120);

struct Running {
    address: SocketAddr,
    admin: SocketAddr,
    layout: Layout,
    stop: Arc<Latch>,
    task: tokio::task::JoinHandle<Ended>,
    _dir: tempfile::TempDir,
}

async fn start(limits: Limits) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let cluster = MemoryCluster::new();
    let store = cluster.open();
    layout::init_cluster(&store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
    let open = || async { Layout::open(Arc::new(cluster.open()), "/ledgers", None).await.unwrap() };
    let components = Components {
        disk: Arc::new(RealDisk::new()),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        metadata: Metadata::Layout(open().await),
    };
    let config = BookieConfig {
        journal_dirs: vec![dir.path().join("journal")],
        ledger_dirs: vec![dir.path().join("ledgers")],
        listen: "127.0.0.1:0".parse().unwrap(),
        admin: Some("127.0.0.1:0".parse().unwrap()),
        memory_limit: Some(128 << 20),
        preallocate: 0,
        journal_file_bytes: 16 << 20,
        allow_loopback: true,
        disks: DiskLimits { reserve_bytes: Some(0), ..DiskLimits::default() },
        limits,
        ..BookieConfig::default()
    };
    let bookie = Bookie::start(config, components).await.unwrap();
    let (address, admin) = (bookie.address(), bookie.admin_address().unwrap());
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { bookie.run(&stop).await }
    });
    Running { address, admin, layout: open().await, stop, task, _dir: dir }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection that sent a request and got its answer.
    async fn client(&self) -> TcpStream {
        let mut socket = self.connect().await;
        ask(&mut socket).await;
        socket
    }

    async fn get(&self, path: &str) -> String {
        let mut socket = TcpStream::connect(self.admin).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        let read = socket.read_to_string(&mut text);
        tokio::time::timeout(PATIENCE, read).await.expect("the admin port answers").unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        body.to_owned()
    }

    async fn metric(&self, name: &str) -> i64 {
        let text = self.get("/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    }

    async fn pool(&self, name: &str, what: &str) -> i64 {
        self.metric(&format!("bindery_pool_{what}{{pool=\"{name}\"}}")).await
    }

    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut(&Running) -> bool) {
        let seen = async {
            while !is_so(self).await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok(), "{what}");
    }

    async fn until_metric(&self, name: &str, value: i64) {
        self.until(&format!("{name} {value}"), async |running| running.metric(name).await == value).await;
    }

    /// Stops in order; by then no peer holds anything.
    async fn stop(self) {
        self.stop.set();
        assert_eq!(tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap(), Ended::Stopped);
    }
}

fn read_of(ledger_id: i64, entry_id: i64) -> BytesMut {
    let read = v2::Read { version: 2, flags: v2::Flags::NONE, ledger_id, entry_id, master_key: None };
    let mut out = BytesMut::new();
    v2::Request::Read(read).encode(&mut out);
    out
}

fn add_of(ledger: i64, entry: i64, size: usize) -> BytesMut {
    let mut body = Vec::new();
    for field in [ledger, entry, entry - 1, size as i64] {
        body.extend_from_slice(&field.to_be_bytes());
    }
    body.resize(32 + size, 7);
    let mut out = BytesMut::new();
    let add = v2::Add::new(v2::Flags::NONE, MasterKey::new([1; 20]), &body).unwrap();
    v2::Request::Add(add).encode(&mut out);
    out
}

async fn send(socket: &mut TcpStream, bytes: &[u8]) {
    tokio::time::timeout(PATIENCE, socket.write_all(bytes)).await.unwrap().unwrap();
}

/// The next answer's payload; `None` when the bookie closed the connection.
async fn answer(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let read = async {
        let length = socket.read_u32().await.ok()?;
        let mut payload = vec![0; length as usize];
        socket.read_exact(&mut payload).await.ok()?;
        Some(payload)
    };
    tokio::time::timeout(PATIENCE, read).await.expect("an answer, or a close")
}

/// Asks for an entry that is not there.
async fn ask(socket: &mut TcpStream) {
    send(socket, &read_of(999, 0)).await;
    assert!(answer(socket).await.is_some(), "answered");
}

async fn add(socket: &mut TcpStream, ledger: i64, entry: i64, size: usize) {
    send(socket, &add_of(ledger, entry, size)).await;
    let payload = answer(socket).await.expect("answered");
    let response = v2::Response::decode(&payload).unwrap();
    assert!(matches!(response, v2::Response::Add { code: ErrorCode::Ok, .. }), "{response:?}");
}

async fn is_closed(socket: &mut TcpStream) {
    let mut byte = [0; 1];
    let read = socket.read(&mut byte);
    let read = tokio::time::timeout(PATIENCE, read).await.expect("the bookie closes it");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

/// Listener invariant 3 (S8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_no_more_connections_than_it_may() {
    let bookie = start(Limits { connections_per_address_max: Some(2), ..Limits::default() }).await;
    let (mut first, mut second) = (bookie.client().await, bookie.client().await);
    is_closed(&mut bookie.connect().await).await;
    is_closed(&mut bookie.connect().await).await;
    assert_eq!(bookie.metric("bindery_connections_refused").await, 2);
    ask(&mut first).await;
    ask(&mut second).await;
    drop(first);
    bookie.until_metric("bindery_connections", 1).await;
    // The place is given back a moment after the connection is gone.
    let again = async {
        loop {
            let mut socket = bookie.connect().await;
            send(&mut socket, &read_of(999, 0)).await;
            if answer(&mut socket).await.is_some() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("a place that was given back is taken");
    bookie.stop().await;
}

/// Listener invariant 2 (S8).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_places_taken_the_oldest_silent_connection_makes_room_and_clients_stay() {
    let bookie = start(Limits { connections_max: 3, ..Limits::default() }).await;
    let mut older = bookie.connect().await;
    bookie.until_metric("bindery_connections", 1).await;
    let mut client = bookie.client().await;
    // A part of a request is not a request.
    let mut younger = bookie.connect().await;
    send(&mut younger, &read_of(999, 0)[..10]).await;
    bookie.until_metric("bindery_connections", 3).await;
    assert_eq!(bookie.metric("bindery_connections_silent").await, 2);

    let mut second = bookie.client().await;
    is_closed(&mut older).await;
    let third = bookie.client().await;
    is_closed(&mut younger).await;
    assert_eq!(bookie.metric("bindery_connections_closed_silent").await, 2);
    assert_eq!(bookie.metric("bindery_connections_silent").await, 0);

    // All are clients now: one more waits until one of them goes.
    let mut waiting = bookie.connect().await;
    send(&mut waiting, &read_of(999, 0)).await;
    ask(&mut client).await;
    ask(&mut second).await;
    assert_eq!(bookie.metric("bindery_connections").await, 3);
    drop(third);
    assert!(answer(&mut waiting).await.is_some(), "served as soon as there is a place");
    assert_eq!(bookie.metric("bindery_connections_closed_silent").await, 2, "no client was closed");
    bookie.stop().await;
}

/// Listener invariant 2: clients that ask for nothing cannot keep everybody else out, and one that waits for something is not taken
/// for idle. While nobody can make room, gauge and alarm say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_places_taken_the_longest_idle_client_makes_room_and_one_that_waits_does_not() {
    use crate::common::frames::framed_v3;
    use bindery_wire::v3::{Operation, proto};
    let limits = Limits { connections_max: 3, idle_client_min: Duration::ZERO, ..Limits::default() };
    let bookie = start(limits).await;
    let parks = async |parked| {
        let mut socket = bookie.connect().await;
        add(&mut socket, 4, 0, 10).await;
        let time_out = Some(600_000);
        let poll = proto::ReadRequest {
            ledger_id: 4,
            entry_id: -1,
            previous_lac: Some(-1),
            time_out,
            ..Default::default()
        };
        send(&mut socket, &framed_v3(1, Operation::Read(poll))).await;
        bookie.until_metric("bindery_long_polls_parked", parked).await;
        socket
    };
    let first = parks(1).await;
    let (mut idle, mut used) = (bookie.client().await, bookie.client().await);
    ask(&mut idle).await;
    ask(&mut used).await;
    assert_eq!(bookie.metric("bindery_connections_max").await, 3);

    let second = parks(2).await;
    is_closed(&mut idle).await;
    ask(&mut used).await;
    let third = parks(3).await;
    is_closed(&mut used).await;
    assert_eq!(bookie.metric("bindery_connections_closed_idle").await, 2);
    assert_eq!(bookie.metric("bindery_connections_crowded").await, 0);

    let mut waiting = bookie.connect().await;
    send(&mut waiting, &read_of(999, 0)).await;
    bookie.until_metric("bindery_connections_crowded", 1).await;
    let state = bookie.get("/api/v1/bookie/state").await;
    assert!(state.contains("all 3 places for connections (maxConnections) are taken"), "{state}");
    let told = async |status: &str| {
        let told = async {
            loop {
                let (found, why) =
                    crate::common::frames::http(bookie.admin, "GET", "/api/v1/bookie/is_ready", "").await;
                if found.contains(status) {
                    return why;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, told).await.unwrap()
    };
    // When that has lasted for a while, readiness probes are told; a restart would end all who are served.
    assert!(told("503").await.contains("maxConnections"));
    assert!(bookie.get("/api/v1/bookie/is_alive").await.contains("OK"));
    drop(second);
    assert!(answer(&mut waiting).await.is_some(), "served as soon as there is a place");
    bookie.until_metric("bindery_connections_crowded", 0).await;
    told("200").await;
    assert!(!bookie.get("/api/v1/bookie/state").await.contains("places for connections"));
    drop((first, third));
    bookie.stop().await;
}

/// Listener invariant 2: the connection that takes the last place is the only silent one, and is found as well, though it was
/// accepted a moment before anybody looks for one. On one thread the listener always looks before it is served.
#[tokio::test]
async fn the_last_place_is_not_kept_by_a_silent_connection() {
    let bookie = start(Limits { connections_max: 2, ..Limits::default() }).await;
    let mut client = bookie.client().await;
    let mut silent = bookie.connect().await;
    bookie.until_metric("bindery_connections_silent", 1).await;
    let mut newcomer = bookie.client().await;
    is_closed(&mut silent).await;
    ask(&mut client).await;
    ask(&mut newcomer).await;
    bookie.stop().await;
}

/// Reader invariant 5 (S7).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_request_must_come_in_time_and_later_ones_may_take_theirs() {
    let limits = Limits { first_request_max: Duration::from_millis(300), ..Limits::default() };
    let bookie = start(limits).await;
    let mut client = bookie.client().await;
    let later = read_of(999, 0);
    send(&mut client, &later[..10]).await;
    // Nothing but a length; a large one; a byte now and then.
    let mut short = bookie.connect().await;
    send(&mut short, &later[..4]).await;
    let mut large = bookie.connect().await;
    send(&mut large, &(4u32 << 20).to_be_bytes()).await;
    let mut trickle = bookie.connect().await;
    let trickled = async {
        for byte in &later[..later.len() - 1] {
            if trickle.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        is_closed(&mut trickle).await;
    };
    tokio::join!(trickled, is_closed(&mut short), is_closed(&mut large));
    bookie.until_metric("bindery_connections_closed_silent", 3).await;
    // A peer that sent nothing is not in the middle of a request.
    let mut quiet = bookie.connect().await;
    send(&mut client, &later[10..]).await;
    assert!(answer(&mut client).await.is_some(), "a client's request may take longer");
    ask(&mut quiet).await;
    for pool in ["first", "first-large"] {
        bookie.until(pool, async |bookie| bookie.pool(pool, "used_bytes").await == 0).await;
    }
    bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_says_nothing_at_all_is_closed_after_a_while() {
    let limits = Limits { silent_max: Some(Duration::from_millis(300)), ..Limits::default() };
    let bookie = start(limits).await;
    let mut client = bookie.client().await;
    is_closed(&mut bookie.connect().await).await;
    bookie.until_metric("bindery_connections_closed_silent", 1).await;
    ask(&mut client).await;
    bookie.stop().await;
}

/// Reader invariant 5: the pools of first requests are full of peers that do not go on; clients notice nothing, and a
/// newcomer is served, since those give way. Also a first request above the small buffer, and one behind the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_fill_their_own_pools_only() {
    let bookie = start(Limits { first_request_max: Duration::from_secs(600), ..Limits::default() }).await;
    let mut client = bookie.client().await;
    let mut strangers = Vec::new();
    let places = bookie.pool("first", "capacity_bytes").await / (16 << 10);
    for _ in 0..places + 5 {
        let mut stranger = bookie.connect().await;
        send(&mut stranger, &read_of(999, 0)[..10]).await;
        strangers.push(stranger);
    }
    bookie.until("somebody waits", async |bookie| bookie.pool("first", "waits").await > 0).await;
    add(&mut client, 1, 0, 100_000).await;
    let mut newcomer = bookie.connect().await;
    add(&mut newcomer, 1, 1, 100_000).await;
    add(&mut newcomer, 1, 2, 10).await;
    let mut pipelining = bookie.connect().await;
    let requests: Vec<u8> = (3..2003).flat_map(|entry| add_of(1, entry, 100)).collect();
    send(&mut pipelining, &requests).await;
    for _ in 3..2003 {
        assert!(answer(&mut pipelining).await.is_some());
    }
    assert!(bookie.metric("bindery_connections_closed_stalled").await > 0);
    assert!(bookie.pool("first", "waited_ms").await > 0);
    drop(strangers);
    bookie.stop().await;
}

/// Reader invariants 1 and 6 (S6): of frames whose length is announced only as many get memory as the pool has, the
/// others wait; small frames go on; the admin port answers; who does not go on gives way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_alone_takes_no_memory_that_is_not_there_and_holds_up_no_small_frame() {
    let bookie = start(Limits { stall_max: Duration::from_millis(500), ..Limits::default() }).await;
    let mut client = bookie.client().await;
    let mut announcers = Vec::new();
    for _ in 0..20 {
        let mut announcer = bookie.client().await;
        send(&mut announcer, &(5u32 << 20).saturating_sub(4).to_be_bytes()).await;
        announcers.push(announcer);
    }
    bookie.until("large frames wait", async |bookie| bookie.pool("inbound-large", "waits").await >= 15).await;
    let (used, capacity) = (
        bookie.pool("inbound-large", "used_bytes").await,
        bookie.pool("inbound-large", "capacity_bytes").await,
    );
    assert!(used <= capacity && capacity < 20 * (5 << 20), "{used} of {capacity}");
    for entry in 0..50 {
        add(&mut client, 2, entry, 1000).await;
    }
    for path in ["/heartbeat", "/api/v1/bookie/is_ready", "/api/v1/bookie/state"] {
        bookie.get(path).await;
    }
    // A frame that is really sent gets through, behind those that give way.
    add(&mut client, 2, 50, 1 << 20).await;
    drop(announcers);
    for pool in ["inbound", "inbound-large"] {
        bookie.until(pool, async |bookie| bookie.pool(pool, "used_bytes").await == 0).await;
    }
    bookie.stop().await;
}

/// Many peers that read nothing: whatever is full, admin and clients get their answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_port_answers_while_every_connection_is_stalled() {
    let bookie = start(Limits { stall_max: Duration::from_secs(600), ..Limits::default() }).await;
    let mut client = bookie.client().await;
    for entry in 0..8 {
        add(&mut client, 3, entry, 1 << 20).await;
    }
    let mut stalled = Vec::new();
    let reads: Vec<u8> = (0..500).flat_map(|i| read_of(3, i % 8)).collect();
    for _ in 0..40 {
        let mut peer = bookie.connect().await;
        send(&mut peer, &reads).await;
        stalled.push(peer);
    }
    bookie.until("readers wait", async |bookie| bookie.pool("outbound", "waiting").await > 0).await;
    for _ in 0..3 {
        bookie.get("/heartbeat").await;
        bookie.get("/api/v1/bookie/is_ready").await;
        bookie.get("/api/v1/bookie/state").await;
        bookie.get("/metrics").await;
    }
    add(&mut client, 3, 8, 10).await;
    drop(stalled);
    for pool in ["outbound", "control"] {
        bookie.until(pool, async |bookie| bookie.pool(pool, "used_bytes").await == 0).await;
    }
    bookie.stop().await;
}

/// A peer that acknowledges nothing holds its bytes for `unanswered_max`, though no other peer wants them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_nothing_is_given_up_by_the_kernel() {
    let socket = SocketOptions { unanswered_max: Some(Duration::from_secs(1)), ..SocketOptions::default() };
    let bookie = start(Limits { socket, ..Limits::default() }).await;
    let mut client = bookie.client().await;
    for entry in 0..4 {
        add(&mut client, 3, entry, 1 << 20).await;
    }
    let mut gone = bookie.connect().await;
    let reads: Vec<u8> = (0..100).flat_map(|i| read_of(3, i % 4)).collect();
    send(&mut gone, &reads).await;
    bookie.until("it holds bytes", async |bookie| bookie.pool("outbound", "used_bytes").await > 0).await;
    bookie.until_metric("bindery_connections", 1).await;
    bookie.until("bytes", async |bookie| bookie.pool("outbound", "used_bytes").await == 0).await;
    ask(&mut client).await;
    drop(gone);
    bookie.stop().await;
}

/// Listener invariant 4: everything that had been received is answered, then the connection is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_answers_what_was_received() {
    // The stop does not wait for a peer in the middle of a frame.
    let limits = Limits { drain_max: Duration::from_secs(600), ..Limits::default() };
    let bookie = start(limits).await;
    let mut client = bookie.client().await;
    const ADDS: i64 = 300;
    let requests: Vec<u8> = (0..ADDS).flat_map(|entry| add_of(4, entry, 50)).collect();
    send(&mut client, &requests).await;
    let mut partial = bookie.client().await;
    send(&mut partial, &requests[..10]).await;
    bookie.stop.set();
    let mut answers = 0;
    while let Some(payload) = answer(&mut client).await {
        let response = v2::Response::decode(&payload).unwrap();
        let is_answer =
            matches!(response, v2::Response::Add { code: ErrorCode::Ok | ErrorCode::ReadOnly, .. });
        assert!(is_answer, "{response:?}");
        answers += 1;
    }
    assert_eq!(answers, ADDS);
    is_closed(&mut partial).await;
    bookie.stop().await;
}

/// The order of the stop, and its bound: read-only for all to see while answers are owed, and gone when a peer takes
/// none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_is_read_only_first_and_waits_for_no_peer_for_ever() {
    for drain_max in [Duration::from_secs(600), Duration::from_secs(2)] {
        let bookie = start(Limits { drain_max, ..Limits::default() }).await;
        let mut client = bookie.client().await;
        for entry in 0..4 {
            add(&mut client, 5, entry, 1 << 20).await;
        }
        let mut slow = bookie.connect().await;
        let reads: Vec<u8> = (0..100).flat_map(|i| read_of(5, i % 4)).collect();
        send(&mut slow, &reads).await;
        bookie.until("it holds bytes", async |bookie| bookie.pool("outbound", "used_bytes").await > 0).await;
        bookie.stop.set();
        let registration = bookie.layout.registration();
        let read_only = async {
            loop {
                let listed = registration.list().await.unwrap();
                if listed.iter().any(|bookie| bookie.mode == RegistrationMode::ReadOnly) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, read_only).await.expect("registered as read-only");
        if drain_max > PATIENCE {
            assert!(bookie.get("/api/v1/bookie/state").await.contains("\"stopping\""));
            let mut answers = 0;
            while answer(&mut slow).await.is_some() {
                answers += 1;
            }
            assert_eq!(answers, 100, "a slow peer gets everything that it asked for");
        }
        let listed = bookie.layout.clone();
        bookie.stop().await;
        assert!(listed.registration().list().await.unwrap().is_empty());
        drop(slow);
    }
}
