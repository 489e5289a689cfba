//! Tenants over their limits on the connections of a whole bookie. A tenant with a debt of minutes waits until a test raises its limit:
//! nothing here depends on how fast the machine is.

#![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

use crate::common::PATIENCE;
use crate::common::frames::{KEY, OwnedV2, add_frame, fence_request, framed, framed_v3, read_request};
use crate::common::whole::{Running, cluster, config, id, metadata, start};
use crate::common::wire::Client;
use bindery_server::config::BookieConfig;
use bindery_server::limits::Limits;
use bindery_server::tenants::TenantsConfig;
use bindery_types::{LedgerState, MasterKey};
use bindery_wire::v3::{Operation, proto};
use bindery_wire::{ErrorCode, v2};
use bytes::BytesMut;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpStream;

/// 64 s at the least limit.
const LARGE: usize = 4 << 20;
const GREEDY: i64 = 6;
const OTHER: i64 = 7;
const ORDINARY: v2::Flags = v2::Flags::NONE;

struct Shared {
    bookie: Running,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

fn rules(limits: &str) -> String {
    format!("tenant greedy {limits}\nproperty app greedy* greedy\n")
}

async fn start_shared(limits: &str) -> Shared {
    start_with(limits, Limits::default()).await
}

async fn start_with(limits: &str, of_bookie: Limits) -> Shared {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenants");
    std::fs::write(&file, rules(limits)).unwrap();
    let tenants = TenantsConfig { file: file.clone(), refresh: Duration::from_millis(10) };
    let config = BookieConfig { tenants: Some(tenants), limits: of_bookie, ..config(Path::new(dir.path())) };
    let cluster = cluster().await;
    let bookie = start(config, &cluster).await;
    let shared = Shared { bookie, file, _dir: dir };
    shared.create(GREEDY, "greedy-1").await;
    shared.create(OTHER, "modest").await;
    shared.make_known().await;
    shared
}

impl Shared {
    async fn create(&self, ledger: i64, app: &str) {
        let mut metadata = metadata("bookie-0", LedgerState::Open);
        metadata.custom.insert("app".to_owned(), app.into());
        self.bookie.layout.ledgers().create(id(ledger), &metadata).await.unwrap();
    }

    /// A number of a pool.
    async fn pool(&self, name: &str, number: &str) -> u64 {
        let view = self.bookie.json("/api/v1/bookie/flow").await;
        let pools = view["pools"].as_array().unwrap();
        pools.iter().find(|pool| pool["name"] == name).unwrap()[number].as_u64().unwrap()
    }

    /// Connections that have added to this ledger, from this entry on, and paid.
    async fn clients_that_paid(&self, ledger: i64, count: i64, entry: i64) -> Vec<Client> {
        let mut clients = Vec::new();
        for entry in entry..entry + count {
            let mut client = self.client().await;
            client.send(&add(ledger, entry, ORDINARY)).await;
            assert_eq!(ids(&client.next_v2().await), (ledger, entry));
            clients.push(client);
        }
        clients
    }

    /// A connection whose tenant owes for minutes from now on, which is longer than any test takes on a slow machine.
    async fn client_that_owes(&self) -> Client {
        // Connections that have paid may each take some more, whatever their tenant owes.
        let mut clients = self.clients_that_paid(GREEDY, 4, 900).await;
        for (entry, client) in (997..).zip(&mut clients) {
            client.send(&add_frame(GREEDY, entry, LARGE, ORDINARY, KEY)).await;
            assert_eq!(ids(&client.next_v2().await), (GREEDY, entry));
        }
        // Entry 1000 is its own.
        clients.pop().unwrap()
    }

    async fn client(&self) -> Client {
        Client::of(TcpStream::connect(self.bookie.address).await.unwrap())
    }

    /// A number of a tenant, as operators see it.
    async fn number(&self, tenant: &str, direction: &str, number: &str) -> u64 {
        let view = self.bookie.json("/api/v1/bookie/flow").await;
        let tenants = view["tenants"].as_array().unwrap();
        let of_it = tenants.iter().find(|of| of["name"] == tenant).unwrap();
        of_it[direction][number].as_u64().unwrap()
    }

    async fn wait_for(&self, tenant: &str, direction: &str, number: &str, at_least: u64) {
        let reached = async {
            while self.number(tenant, direction, number).await < at_least {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap();
    }

    /// Whose the ledgers are is looked up beside the first requests.
    async fn make_known(&self) {
        let known = async {
            let mut entry = 0;
            while self.number("greedy", "adds", "requests").await == 0 {
                for ledger in [GREEDY, OTHER] {
                    assert_eq!(self.bookie.add(ledger, entry).await, ErrorCode::Ok);
                }
                entry += 1;
            }
        };
        tokio::time::timeout(PATIENCE, known).await.unwrap();
        assert_eq!(self.bookie.metric("bindery_tenants_look_ups").await, 2, "one for each ledger");
    }

    /// The limits are changed while all else goes on.
    fn allow(&self, limits: &str) {
        std::fs::write(&self.file, rules(limits)).unwrap();
    }

    async fn not_read_because(&self) -> Vec<String> {
        let view = self.bookie.json("/api/v1/bookie/flow").await;
        let connections = view["connections"].as_array().unwrap();
        connections.iter().filter_map(|of| of["notReadBecause"].as_str().map(str::to_owned)).collect()
    }
}

fn add(ledger: i64, entry: i64, flags: v2::Flags) -> BytesMut {
    add_frame(ledger, entry, 100, flags, KEY)
}

/// A connection whose own bytes are paid may take some more, and then waits for all that was taken before.
async fn stand_behind_the_debt(clients: &mut [Client]) {
    for (entry, client) in (7000..).zip(clients) {
        client.send(&add(GREEDY, entry, ORDINARY)).await;
        assert_eq!(ids(&client.next_v2().await), (GREEDY, entry));
    }
}

fn ids(answer: &OwnedV2) -> (i64, i64) {
    match answer {
        OwnedV2::Add(_, ledger, entry) | OwnedV2::Read(ErrorCode::Ok, ledger, entry, _) => (*ledger, *entry),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_over_the_limit_wait_and_nobody_elses_on_their_connection() {
    let shared = start_shared("adds=64Ki").await;
    let mut client = shared.client().await;
    client.send(&add_frame(GREEDY, 1000, LARGE, ORDINARY, KEY)).await;
    assert_eq!(client.next_v2().await.code(), ErrorCode::Ok, "who owes nothing is not held up");

    // What came with it, and what comes later.
    client.send(&[add(GREEDY, 1001, ORDINARY), add(OTHER, 1001, ORDINARY)].concat()).await;
    assert_eq!(ids(&client.next_v2().await), (OTHER, 1001));
    shared.wait_for("greedy", "adds", "waiting", 1).await;
    assert_eq!(shared.not_read_because().await, ["tenant"]);
    client.send(&add(OTHER, 1002, ORDINARY)).await;
    assert_eq!(ids(&client.next_v2().await), (OTHER, 1002), "others pass");
    client.send(&framed(v2::Request::Read(read_request(GREEDY, 1000)))).await;
    assert_eq!(ids(&client.next_v2().await), (GREEDY, 1000), "reads pass");
    client.send(&add(8, 0, v2::Flags::RECOVERY_ADD)).await;
    assert_eq!(ids(&client.next_v2().await), (8, 0), "recovery passes");
    client.send(&framed(v2::Request::Read(fence_request(OTHER, 1002, KEY)))).await;
    assert_eq!(ids(&client.next_v2().await), (OTHER, 1002), "fences pass");
    // Nobody of the tenant gets round it by another connection.
    let mut another = shared.client().await;
    another.send(&[add(GREEDY, 1002, ORDINARY), add(OTHER, 0, v2::Flags::RECOVERY_ADD)].concat()).await;
    assert_eq!(ids(&another.next_v2().await), (OTHER, 0));
    shared.wait_for("greedy", "adds", "waiting", 2).await;
    assert_eq!(shared.bookie.metric("bookkeeper_server_ADD_ENTRY_REJECTED").await, 0);

    shared.allow("adds=1G");
    assert_eq!(ids(&client.next_v2().await), (GREEDY, 1001));
    assert_eq!(ids(&another.next_v2().await), (GREEDY, 1002));
    shared.wait_for("greedy", "adds", "waits", 2).await;
    assert_eq!(shared.number("greedy", "adds", "waiting").await, 0);
    let text = shared.bookie.get("/metrics").await;
    assert!(text.contains("bindery_tenant_add_waits{tenant=\"greedy\"} 2"), "{text}");
    shared.bookie.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_over_the_limit_wait_in_their_order_and_nobody_elses_on_their_connection() {
    let shared = start_shared("reads=64Ki").await;
    let mut client = shared.client().await;
    client.send(&add_frame(GREEDY, 1000, LARGE, ORDINARY, KEY)).await;
    client.next_v2().await;
    let read = |ledger, entry| framed(v2::Request::Read(read_request(ledger, entry)));
    client.send(&read(GREEDY, 1000)).await;
    assert_eq!(ids(&client.next_v2().await), (GREEDY, 1000), "who owes nothing is not held up");

    client.send(&[read(GREEDY, 0), read(GREEDY, 1000), read(OTHER, 0)].concat()).await;
    assert_eq!(ids(&client.next_v2().await), (OTHER, 0), "others pass");
    shared.wait_for("greedy", "reads", "waiting", 1).await;
    client.send(&add(GREEDY, 1001, ORDINARY)).await;
    assert_eq!(ids(&client.next_v2().await), (GREEDY, 1001), "adds pass");
    // A fence of what waits takes that along, and comes behind it.
    client.send(&framed(v2::Request::Read(fence_request(GREEDY, 1000, KEY)))).await;
    for _ in 0..2 {
        assert_eq!(ids(&client.next_v2().await), (GREEDY, 1000), "fences pass");
    }
    assert_eq!(shared.number("greedy", "reads", "waiting").await, 1);

    shared.allow("reads=1G");
    assert_eq!(ids(&client.next_v2().await), (GREEDY, 0));
    shared.bookie.stop().await;
}

/// Tenants invariant 3: however many connections of a tenant wait, others find buffers, and new connections are no way round the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_wait_for_a_limit_leave_buffers_to_others() {
    let shared = start_shared("adds=64Ki").await;
    let capacity = shared.pool("inbound-adds", "capacityBytes").await;
    let (buffers, held) = (capacity / (64 << 10), (capacity + (64 << 10)) / (128 << 10));
    let mut greedy = shared.clients_that_paid(GREEDY, buffers as i64 + 8, 2000).await;
    drop(shared.client_that_owes().await);
    stand_behind_the_debt(&mut greedy).await;
    for (entry, client) in (3000..).zip(&mut greedy) {
        client.send(&add(GREEDY, entry, ORDINARY)).await;
    }
    shared.wait_for("greedy", "adds", "waiting", held).await;
    // The others are placed, and not read any more; each answers once.
    let mut other = shared.client().await;
    for entry in 0..20 {
        other.send(&add(OTHER, 3000 + entry, ORDINARY)).await;
        assert_eq!(ids(&other.next_v2().await), (OTHER, 3000 + entry));
    }
    // There is no room for one that has not paid for anything yet.
    let mut new = shared.client().await;
    new.send(&[add(GREEDY, 8000, ORDINARY), add(OTHER, 8000, ORDINARY)].concat()).await;
    let (mut refused, mut added) = (0, 0);
    for _ in 0..2 {
        match new.next_v2().await {
            OwnedV2::Add(ErrorCode::TooManyRequests, GREEDY, 8000) => refused += 1,
            OwnedV2::Add(ErrorCode::Ok, OTHER, 8000) => added += 1,
            answer => panic!("{answer:?}"),
        }
    }
    assert_eq!((refused, added), (1, 1));
    for client in &mut greedy {
        client.send(&add(GREEDY, 9000, ORDINARY)).await;
    }
    shared.wait_for("greedy", "adds", "waiting", greedy.len() as u64).await;
    other.send(&add(OTHER, 4000, ORDINARY)).await;
    assert_eq!(ids(&other.next_v2().await), (OTHER, 4000));

    shared.allow("");
    for client in &mut greedy {
        for _ in 0..2 {
            assert_eq!(client.next_v2().await.code(), ErrorCode::Ok);
        }
    }
    shared.bookie.stop().await;
}

/// Tenants invariant 3, of the pools for large frames and for strangers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_frames_and_first_requests_that_wait_for_a_limit_leave_memory_to_others() {
    let shared = start_shared("adds=64Ki").await;
    let large = shared.pool("inbound-large", "capacityBytes").await / LARGE as u64;
    let first = shared.pool("first", "capacityBytes").await / (15 << 10);
    let mut greedy = shared.clients_that_paid(GREEDY, large as i64 + 2, 2000).await;
    let _owes = shared.client_that_owes().await;
    let waits = shared.number("greedy", "adds", "waits").await;
    stand_behind_the_debt(&mut greedy).await;
    for (entry, client) in (3000..).zip(&mut greedy) {
        client.flood(add_frame(GREEDY, entry, LARGE, ORDINARY, KEY));
    }
    let mut new = Vec::new();
    for entry in 0..first as i64 + 8 {
        let mut client = shared.client().await;
        client.send(&add_frame(GREEDY, 4000 + entry, 15 << 10, ORDINARY, KEY)).await;
        new.push(client);
    }
    shared.wait_for("greedy", "adds", "waiting", 8).await;
    let mut other = shared.client().await;
    for entry in 3000..3004 {
        other.send(&add_frame(OTHER, entry, LARGE, ORDINARY, KEY)).await;
        assert_eq!(ids(&other.next_v2().await), (OTHER, entry));
    }
    let mut newcomer = shared.client().await;
    newcomer.send(&framed(v2::Request::Read(read_request(OTHER, 0)))).await;
    assert_eq!(ids(&newcomer.next_v2().await), (OTHER, 0));
    assert_eq!(shared.number("greedy", "adds", "waits").await, waits, "they all still wait");
    shared.allow("");
    shared.bookie.stop().await;
}

/// Whose a new ledger is, is not known when its first requests come: they do not wait for the limit of the default tenant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_ledger_does_not_wait_for_another_tenants_limit() {
    let shared = start_shared("\ntenant default adds=64Ki").await;
    let mut client = shared.client().await;
    client.send(&add_frame(OTHER, 1000, LARGE, ORDINARY, KEY)).await;
    client.next_v2().await;
    shared.create(20, "greedy-2").await;
    client.send(&[add(OTHER, 1001, ORDINARY), add(20, 0, ORDINARY), add(20, 1, ORDINARY)].concat()).await;
    for entry in 0..2 {
        assert_eq!(ids(&client.next_v2().await), (20, entry));
    }
    shared.wait_for("default", "adds", "waiting", 1).await;
    let known = async {
        let mut entry = 2;
        let before = shared.number("greedy", "adds", "requests").await;
        while shared.number("greedy", "adds", "requests").await == before {
            client.send(&add(20, entry, ORDINARY)).await;
            assert_eq!(ids(&client.next_v2().await), (20, entry));
            entry += 1;
        }
    };
    tokio::time::timeout(PATIENCE, known).await.unwrap();
    shared.allow("");
    assert_eq!(ids(&client.next_v2().await), (OTHER, 1001));
    shared.bookie.stop().await;
}

/// Without the key of a ledger nobody uses up its tenant's limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_that_are_refused_are_nobodys() {
    let shared = start_shared("adds=64Ki").await;
    let before = shared.number("greedy", "adds", "bytes").await;
    let mut stranger = shared.client().await;
    stranger.send(&add_frame(GREEDY, 500, LARGE, ORDINARY, MasterKey::new([9; 20]))).await;
    assert_eq!(stranger.next_v2().await.code(), ErrorCode::Unauthorized);
    assert_eq!(shared.number("greedy", "adds", "bytes").await, before);
    let mut client = shared.client().await;
    client.send(&add(GREEDY, 500, ORDINARY)).await;
    assert_eq!(ids(&client.next_v2().await), (GREEDY, 500));
    assert_eq!(shared.number("greedy", "adds", "waits").await, 0);
    shared.bookie.stop().await;
}

/// Requests with a flag that lets them pass the limit are paid for by the tenant's others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_waits_is_paid_by_what_does() {
    let shared = start_shared("adds=64Ki").await;
    let mut client = shared.client().await;
    let free = [500, 501].map(|entry| add_frame(GREEDY, entry, LARGE, v2::Flags::RECOVERY_ADD, KEY));
    let frames: Vec<_> = free.into_iter().chain([add(GREEDY, 502, ORDINARY)]).collect();
    client.flood(frames.concat().as_slice().into());
    for entry in 500..503 {
        assert_eq!(ids(&client.next_v2().await), (GREEDY, entry));
    }
    shared.wait_for("greedy", "adds", "waits", 1).await;
    shared.bookie.stop().await;
}

/// What others ask for on a connection passes, whatever else that connection has in hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_pass_beside_reads_that_wait_and_behind_large_first_requests() {
    let shared = start_shared("adds=64Ki reads=64Ki").await;
    let mut client = shared.client_that_owes().await;
    let read = |entry| framed(v2::Request::Read(read_request(GREEDY, entry)));
    client.send(&read(1000)).await;
    assert_eq!(ids(&client.next_v2().await), (GREEDY, 1000));
    // More than a connection decodes without turns.
    let reads: Vec<_> = (5000..6000).map(read).collect();
    client.send(&reads.concat()).await;
    shared.wait_for("greedy", "reads", "waiting", 1).await;
    client.send(&add(GREEDY, 1001, ORDINARY)).await;
    shared.wait_for("greedy", "adds", "waiting", 1).await;
    client.send(&add(OTHER, 1001, ORDINARY)).await;
    assert_eq!(ids(&client.next_v2().await), (OTHER, 1001));

    // A wait takes memory to look ahead only while there is something to look at.
    let given_back = async {
        while shared.pool("ahead", "usedBytes").await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, given_back).await.unwrap();
    assert_eq!(shared.number("greedy", "adds", "waiting").await, 1, "it still waits");

    let mut new = shared.client().await;
    new.send(&add_frame(GREEDY, 1002, LARGE, ORDINARY, KEY)).await;
    shared.wait_for("greedy", "adds", "waiting", 2).await;
    new.send(&[add(OTHER, 1002, ORDINARY), add(GREEDY, 1003, ORDINARY), add(OTHER, 1003, ORDINARY)].concat())
        .await;
    for entry in [1002, 1003] {
        assert_eq!(ids(&new.next_v2().await), (OTHER, entry));
    }
    shared.allow("");
    for entry in [1002, 1003] {
        assert_eq!(ids(&new.next_v2().await), (GREEDY, entry));
    }
    shared.bookie.stop().await;
}

/// Bytes beyond the usual look-ahead that were read together with waiting adds are examined, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_pass_a_force_of_a_ledger_whose_adds_wait() {
    let shared = start_shared("adds=64Ki").await;
    let mut client = shared.client_that_owes().await;
    let force = framed_v3(1, Operation::ForceLedger(proto::ForceLedgerRequest { ledger_id: GREEDY }));
    let others = (0..40).map(|entry| add_frame(OTHER, 1000 + entry, 1000, ORDINARY, KEY));
    let frames: Vec<_> = [add(GREEDY, 1001, ORDINARY), force].into_iter().chain(others).collect();
    client.send(&frames.concat()).await;
    for entry in 0..40 {
        assert_eq!(ids(&client.next_v2().await), (OTHER, 1000 + entry));
    }
    assert_eq!(shared.number("greedy", "adds", "waiting").await, 1, "it still waits");
    shared.allow("");
    for _ in 0..2 {
        client.next().await.unwrap();
    }
    shared.bookie.stop().await;
}

/// Reads that wait for a limit grow old as others do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_over_the_limit_are_refused_at_the_maximum_age() {
    let limits = Limits { request_age_max: Duration::from_secs(5), ..Limits::default() };
    let shared = start_with("reads=64Ki", limits).await;
    let mut client = shared.client_that_owes().await;
    let read = |entry| framed(v2::Request::Read(read_request(GREEDY, entry)));
    client.send(&read(1000)).await;
    assert_eq!(ids(&client.next_v2().await), (GREEDY, 1000));
    client.send(&[read(1000), read(0), read(1000)].concat()).await;
    for _ in 0..3 {
        assert_eq!(client.next_v2().await.code(), ErrorCode::TooManyRequests);
    }
    assert_eq!(shared.number("greedy", "reads", "waiting").await, 0);
    shared.bookie.stop().await;
}

/// A peer that takes little at a time gets what waited for the limit in the order in which it asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_waited_for_a_limit_keep_their_order_when_their_peer_is_slow() {
    const READS: i64 = 60;
    let shared = start_shared("reads=64Ki").await;
    let mut writer = shared.client_that_owes().await;
    for entry in 0..READS {
        writer.send(&add_frame(GREEDY, 2000 + entry, 200_000, ORDINARY, KEY)).await;
        assert_eq!(ids(&writer.next_v2().await), (GREEDY, 2000 + entry));
    }
    let mut client = shared.client().await;
    let read = |entry| framed(v2::Request::Read(read_request(GREEDY, entry)));
    client.send(&read(1000)).await;
    client.next_v2().await;
    let reads: Vec<_> = (0..READS).map(|entry| read(2000 + entry)).collect();
    client.send(&reads.concat()).await;
    shared.wait_for("greedy", "reads", "waiting", 1).await;
    shared.allow("reads=10G");
    for entry in 0..READS {
        assert_eq!(ids(&client.next_v2().await), (GREEDY, 2000 + entry));
    }
    shared.bookie.stop().await;
}

/// A stop does not wait for a limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_places_what_waits_for_a_limit() {
    let shared = start_shared("adds=64Ki").await;
    let mut client = shared.client().await;
    client.send(&[add_frame(GREEDY, 1000, LARGE, ORDINARY, KEY), add(GREEDY, 1001, ORDINARY)].concat()).await;
    assert_eq!(ids(&client.next_v2().await), (GREEDY, 1000));
    shared.wait_for("greedy", "adds", "waiting", 1).await;
    let stopping = tokio::spawn(async move { shared.bookie.stop().await });
    let answer = client.next_v2().await;
    assert_eq!(ids(&answer), (GREEDY, 1001));
    tokio::time::timeout(PATIENCE, stopping).await.unwrap().unwrap();
}
