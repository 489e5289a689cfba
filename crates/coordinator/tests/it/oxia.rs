//! Oxia's protocol over real sockets: every call, both names of the service, restarts, kills, and clients that read nothing or send nonsense.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_methods, reason = "a test that starts and kills processes")]

use crate::killed;
use crate::serving::word;
use bindery_coordinator::{Coordinator, CoordinatorConfig, StartError};
use bindery_io::{SeededRandom, SystemClock, SystemRandom};
use bindery_metadata::store::{CreateMode, MetadataStore, WatchEvent};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions, ZooKeeperStore};
use bindery_oxia::codec::ELEMENTS_MAX;
use bindery_oxia::proto::oxia_client_client::OxiaClientClient;
use bindery_oxia::proto::{
    CloseSessionRequest, CreateSessionRequest, DeleteRequest, GetRequest, GetResponse,
    GetSequenceUpdatesRequest, ListRequest, NotificationBatch, NotificationType, NotificationsRequest,
    PutRequest, PutResponse, RangeScanRequest, ReadRequest, SessionHeartbeat, ShardAssignmentsRequest,
    Status, WriteRequest,
};
use bindery_oxia::status::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Streaming};

const PATIENCE: Duration = Duration::from_secs(120);
const SHARD: i64 = 0;

type Client = OxiaClientClient<Channel>;

fn config(dir: &TempDir) -> CoordinatorConfig {
    let any = "127.0.0.1:0".parse().unwrap();
    let mut config = CoordinatorConfig::new(any, dir.path().join("data"));
    config.oxia = Some(any);
    config.tick = Duration::from_millis(200);
    config
}

async fn start(config: CoordinatorConfig) -> Coordinator {
    try_start(config).await.unwrap()
}

async fn try_start(config: CoordinatorConfig) -> Result<Coordinator, StartError> {
    Coordinator::start(config, Arc::new(SystemClock::new()), Arc::new(SystemRandom)).await
}

async fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

async fn client_of(coordinator: &Coordinator) -> Client {
    OxiaClientClient::new(channel(coordinator.oxia_addr().unwrap()).await)
}

async fn zookeeper_of(coordinator: &Coordinator) -> ZooKeeperStore {
    let address = coordinator.local_addr().to_string();
    zookeeper::connect(&[address], ZooKeeperOptions::default()).await.unwrap()
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it comes in time")
}

fn put_of(key: &str, value: &str) -> PutRequest {
    PutRequest { key: key.into(), value: value.to_owned().into(), ..PutRequest::default() }
}

fn writing(puts: Vec<PutRequest>) -> WriteRequest {
    WriteRequest { shard: Some(SHARD), puts, ..WriteRequest::default() }
}

async fn put(client: &mut Client, put: PutRequest) -> PutResponse {
    in_time(client.write(writing(vec![put]))).await.unwrap().into_inner().puts.remove(0)
}

async fn all<T>(mut stream: Streaming<T>) -> Vec<T> {
    let mut messages = Vec::new();
    while let Some(message) = in_time(stream.message()).await.unwrap() {
        messages.push(message);
    }
    messages
}

async fn get(client: &mut Client, key: &str) -> GetResponse {
    let get = GetRequest { key: key.into(), include_value: true, ..GetRequest::default() };
    let read = ReadRequest { shard: Some(SHARD), gets: vec![get] };
    all(client.read(read).await.unwrap().into_inner()).await.remove(0).gets.remove(0)
}

async fn list(client: &mut Client, start: &str, end: &str) -> Vec<String> {
    let list = ListRequest {
        shard: Some(SHARD),
        start_inclusive: start.into(),
        end_exclusive: end.into(),
        ..ListRequest::default()
    };
    all(client.list(list).await.unwrap().into_inner()).await.into_iter().flat_map(|page| page.keys).collect()
}

fn kinds(batch: &NotificationBatch) -> Vec<(&str, NotificationType)> {
    batch.notifications.iter().map(|(key, change)| (key.as_str(), change.r#type())).collect()
}

async fn subscribe(client: &mut Client, from: Option<i64>) -> Streaming<NotificationBatch> {
    let request = NotificationsRequest { shard: SHARD, start_offset_exclusive: from };
    in_time(client.get_notifications(request)).await.unwrap().into_inner()
}

async fn next<T>(stream: &mut Streaming<T>) -> T {
    in_time(stream.message()).await.unwrap().expect("the stream goes on")
}

/// A channel to the service under the name that it had before.
#[derive(Clone)]
struct Renamed(Channel);

impl tower_service::Service<http::Request<tonic::body::Body>> for Renamed {
    type Response = http::Response<tonic::body::Body>;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        tower_service::Service::poll_ready(&mut self.0, context)
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
        let renamed = request.uri().to_string().replace("io.oxia.proto.v1", "io.streamnative.oxia.proto");
        *request.uri_mut() = renamed.parse().unwrap();
        Box::pin(tower_service::Service::call(&mut self.0, request))
    }
}

#[tokio::test]
async fn one_shard_is_led_from_the_address_that_the_client_named() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(config(&dir)).await;
    let port = coordinator.oxia_addr().unwrap().port();
    let endpoint = Endpoint::from_shared(format!("http://localhost:{port}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut client = OxiaClientClient::new(channel.clone());
    for namespace in ["", "default"] {
        let request = ShardAssignmentsRequest { namespace: namespace.into() };
        let mut stream = client.get_shard_assignments(request).await.unwrap().into_inner();
        let all = next(&mut stream).await;
        let shards = &all.namespaces["default"].assignments;
        assert_eq!((shards.len(), shards[0].shard), (1, SHARD));
        assert_eq!(shards[0].leader, format!("localhost:{port}"));
        let more = tokio::time::timeout(Duration::from_millis(50), stream.message()).await;
        assert!(more.is_err(), "the stream stays open: {more:?}");
    }
    let request = ShardAssignmentsRequest { namespace: "other".into() };
    let refused = client.get_shard_assignments(request).await.unwrap_err();
    assert_eq!((Reason::of(&refused), refused.code()), (Some(Reason::NamespaceNotFound), Code::NotFound));
    let wrong = client.write(WriteRequest { shard: Some(1), ..WriteRequest::default() }).await.unwrap_err();
    assert_eq!(Reason::of(&wrong), Some(Reason::ShardNotFound));
    let none = client.write(WriteRequest::default()).await.unwrap_err();
    assert_eq!(none.code(), Code::InvalidArgument);
    let mut renamed = OxiaClientClient::new(Renamed(channel));
    let written = in_time(renamed.write(writing(vec![put_of("a", "1")]))).await.unwrap().into_inner();
    assert_eq!(written.puts[0].status(), Status::Ok);
    assert_eq!(get(&mut client, "a").await.value.as_deref(), Some(&b"1"[..]));
    coordinator.stop().await;
}

#[tokio::test]
async fn both_protocols_serve_one_tree_and_tell_each_other() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(config(&dir)).await;
    let (mut client, zookeeper) = (client_of(&coordinator).await, zookeeper_of(&coordinator).await);
    let mut notifications = subscribe(&mut client, None).await;
    assert_eq!(kinds(&next(&mut notifications).await), [], "the first one is empty");
    zookeeper.create("/p", "1".into(), CreateMode::Persistent).await.unwrap();
    assert_eq!(kinds(&next(&mut notifications).await), [("/p", NotificationType::KeyCreated)]);
    let found = get(&mut client, "/p").await;
    assert_eq!((found.status(), found.value.as_deref()), (Status::Ok, Some(&b"1"[..])));
    let (_, watch) = zookeeper.get_and_watch("/p").await.unwrap();
    let expected_version_id = found.version.map(|version| version.version_id);
    let changed = put(&mut client, PutRequest { expected_version_id, ..put_of("/p", "2") }).await;
    assert_eq!(changed.status(), Status::Ok);
    assert_eq!(in_time(watch.changed()).await, WatchEvent::DataChanged);
    assert_eq!(kinds(&next(&mut notifications).await), [("/p", NotificationType::KeyModified)]);
    assert_eq!(zookeeper.get("/p").await.unwrap().data, b"2"[..]);
    put(&mut client, put_of("/q/below", "3")).await;
    put(&mut client, put_of("no path", "4")).await;
    assert_eq!(zookeeper.children("/q").await.unwrap(), ["below"]);
    assert_eq!(list(&mut client, "", "").await, ["no path", "/p", "/q/below"]);
    coordinator.stop().await;
}

#[tokio::test]
async fn requests_are_counted_by_protocol_and_kind() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(config(&dir)).await;
    let (mut client, zookeeper) = (client_of(&coordinator).await, zookeeper_of(&coordinator).await);
    zookeeper.create("/p", "1".into(), CreateMode::Persistent).await.unwrap();
    zookeeper.get("/p").await.unwrap();
    zookeeper.children("/p").await.unwrap();
    in_time(client.write(writing(vec![put_of("/a", "1"), put_of("/b", "1")]))).await.unwrap();
    in_time(client.write(writing(Vec::new()))).await.unwrap();
    get(&mut client, "/a").await;
    list(&mut client, "", "").await;
    let counts = word(coordinator.local_addr(), "mntr").await;
    for (kind, count) in [
        ("zookeeper_create", 1),
        ("zookeeper_get", 1),
        ("zookeeper_children", 1),
        ("zookeeper_set", 0),
        ("oxia_put", 2),
        ("oxia_sync", 1),
        ("oxia_get", 1),
        ("oxia_list", 1),
        ("oxia_delete", 0),
    ] {
        assert!(counts.contains(&format!("\nbindery_requests_{kind}\t{count}\n")), "{kind}: {counts}");
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn ranges_come_in_pages_and_sequences_grow() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(config(&dir)).await;
    let mut client = client_of(&coordinator).await;
    let value = "v".repeat(20_000);
    let puts = (0..30).map(|number| put_of(&format!("/r/{number:02}"), &value)).collect();
    in_time(client.write(writing(puts))).await.unwrap();
    let scan = RangeScanRequest {
        shard: Some(SHARD),
        start_inclusive: "/r/".into(),
        end_exclusive: "/r//".into(),
        ..RangeScanRequest::default()
    };
    let pages = all(client.range_scan(scan).await.unwrap().into_inner()).await;
    assert!(pages.len() > 5, "{}", pages.len());
    let records: Vec<GetResponse> = pages.into_iter().flat_map(|page| page.records).collect();
    assert!(records.iter().all(|record| record.value.as_ref().is_some_and(|found| *found == value)));
    let keys: Vec<String> = records.into_iter().map(|record| record.key.unwrap()).collect();
    assert_eq!(keys, (0..30).map(|number| format!("/r/{number:02}")).collect::<Vec<_>>());
    let gets =
        keys.iter().rev().map(|key| GetRequest { key: key.clone(), ..GetRequest::default() }).collect();
    let reads = client.read(ReadRequest { shard: Some(SHARD), gets }).await.unwrap().into_inner();
    assert_eq!(all(reads).await.iter().map(|page| page.gets.len()).sum::<usize>(), 30);

    let request = GetSequenceUpdatesRequest { shard: SHARD, key: "s".into() };
    let mut updates = client.get_sequence_updates(request).await.unwrap().into_inner();
    for number in 1..4 {
        let sequential =
            PutRequest { partition_key: Some("p".into()), sequence_key_delta: vec![1], ..put_of("s", "") };
        let key = put(&mut client, sequential).await.key.unwrap();
        assert_eq!(key, format!("s-{number:020}"));
        assert_eq!(next(&mut updates).await.highest_sequence_key, key);
    }
    coordinator.stop().await;
}

async fn write_stream(
    client: &mut Client,
    requests: mpsc::Receiver<WriteRequest>,
) -> Result<Streaming<bindery_oxia::proto::WriteResponse>, tonic::Status> {
    let requests = futures_util::stream::unfold(requests, |mut requests| async move {
        requests.recv().await.map(|request| (request, requests))
    });
    let mut request = Request::new(requests);
    request.metadata_mut().insert("namespace", "default".parse().unwrap());
    request.metadata_mut().insert("shard-id", "0".parse().unwrap());
    client.write_stream(request).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn a_stream_of_writes_is_answered_in_its_order() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(config(&dir)).await;
    let mut client = client_of(&coordinator).await;
    let (sender, requests) = mpsc::channel(3000);
    for number in 0..2500 {
        sender.send(writing(vec![put_of(&format!("/w/{number}"), "v")])).await.unwrap();
    }
    drop(sender);
    let answers = all(write_stream(&mut client, requests).await.unwrap()).await;
    assert_eq!(answers.len(), 2500);
    let versions: Vec<i64> =
        answers.iter().map(|answer| answer.puts[0].version.as_ref().unwrap().version_id).collect();
    assert!(versions.is_sorted(), "in their order");
    assert_eq!(list(&mut client, "/w/", "/w//").await.len(), 2500);
    let mut without = Request::new(futures_util::stream::pending());
    without.metadata_mut().insert("namespace", "default".parse().unwrap());
    assert_eq!(client.write_stream(without).await.unwrap_err().code(), Code::InvalidArgument);
    coordinator.stop().await;
}

/// After a restart acknowledged records and sessions are there, and subscribers go on where they were.
#[tokio::test]
async fn a_restart_keeps_records_sessions_and_notifications() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(config(&dir)).await;
    let mut client = client_of(&coordinator).await;
    let create =
        CreateSessionRequest { shard: SHARD, session_timeout_ms: 2000, client_identity: "me".into() };
    let session_id = in_time(client.create_session(create)).await.unwrap().into_inner().session_id;
    let beat = SessionHeartbeat { shard: SHARD, session_id };
    let mut notifications = subscribe(&mut client, None).await;
    let seen = next(&mut notifications).await.offset;
    let ephemeral =
        PutRequest { session_id: Some(session_id), client_identity: Some("me".into()), ..put_of("/e", "v") };
    let before = put(&mut client, ephemeral).await.version.unwrap();
    put(&mut client, put_of("no path", "v")).await;
    put(&mut client, put_of("/deep/below", "v")).await;
    let offset = next(&mut notifications).await.offset;
    coordinator.stop().await;
    // Longer than the timeout: it counts from the restart.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let coordinator = start(config(&dir)).await;
    let mut client = client_of(&coordinator).await;
    in_time(client.keep_alive(beat)).await.unwrap();
    assert_eq!(list(&mut client, "", "").await, ["no path", "/e", "/deep/below"]);
    let version = get(&mut client, "/e").await.version.unwrap();
    assert_eq!(version, before);
    assert_eq!((version.session_id, version.client_identity.as_deref()), (Some(session_id), Some("me")));
    let mut all = subscribe(&mut client, Some(seen)).await;
    assert_eq!(kinds(&next(&mut all).await), [("/e", NotificationType::KeyCreated)]);
    let mut notifications = subscribe(&mut client, Some(offset)).await;
    assert_eq!(kinds(&next(&mut notifications).await), [("no path", NotificationType::KeyCreated)]);
    assert_eq!(kinds(&next(&mut notifications).await), [("/deep/below", NotificationType::KeyCreated)]);
    let after = put(&mut client, put_of("no path", "w")).await.version.unwrap();
    assert!(after.version_id > before.version_id + 2, "a version is never used again");
    next(&mut notifications).await;
    // No more beats.
    assert_eq!(kinds(&next(&mut notifications).await), [("/e", NotificationType::KeyDeleted)]);
    let gone = client.keep_alive(beat).await.unwrap_err();
    assert_eq!((Reason::of(&gone), gone.code()), (Some(Reason::SessionNotFound), Code::NotFound));
    let closed = client.close_session(CloseSessionRequest { shard: SHARD, session_id }).await.unwrap_err();
    assert_eq!(Reason::of(&closed), Some(Reason::SessionNotFound));
    let short = CreateSessionRequest { shard: SHARD, session_timeout_ms: 1, client_identity: String::new() };
    let refused = client.create_session(short).await.unwrap_err();
    assert_eq!(Reason::of(&refused), Some(Reason::InvalidSessionTimeout));
    coordinator.stop().await;
}

#[tokio::test]
async fn a_start_that_cannot_be_says_why() {
    let dir = TempDir::new().unwrap();
    let open = CoordinatorConfig { oxia: Some("0.0.0.0:0".parse().unwrap()), ..config(&dir) };
    assert!(matches!(try_start(open).await.err(), Some(StartError::NotLoopback { .. })));
    let coordinator = start(config(&dir)).await;
    let (other, taken) = (TempDir::new().unwrap(), coordinator.oxia_addr().unwrap());
    let error = try_start(CoordinatorConfig { oxia: Some(taken), ..config(&other) }).await.err().unwrap();
    assert!(matches!(error, StartError::AddressInUse { address } if address == taken), "{error}");
    coordinator.stop().await;
    start(CoordinatorConfig { oxia: Some(taken), ..config(&other) }).await.stop().await;
}

/// Invariants 2 and 3 of the module: one that opens scans and reads none of them holds no more than a connection may, and others are served.
#[tokio::test]
async fn a_client_that_reads_nothing_hinders_nobody() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(CoordinatorConfig { outbox_bytes_max: 8 << 20, ..config(&dir) }).await;
    let mut client = client_of(&coordinator).await;
    for number in 0..20 {
        put(&mut client, put_of(&format!("/large/{number:02}"), &"v".repeat(1 << 20))).await;
    }
    let address = coordinator.oxia_addr().unwrap();
    // Windows that are never enlarged, as those of a client that takes nothing.
    let narrow = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let greedy = narrow.initial_stream_window_size(1024).initial_connection_window_size(1024);
    let mut greedy = OxiaClientClient::new(greedy.connect().await.unwrap());
    let mut scans = Vec::new();
    let refused = loop {
        let scan = RangeScanRequest {
            shard: Some(SHARD),
            start_inclusive: "/large/".into(),
            end_exclusive: "/large//".into(),
            ..RangeScanRequest::default()
        };
        match in_time(greedy.range_scan(scan)).await {
            Ok(scan) => scans.push(scan),
            Err(status) => break status,
        }
        // Each holds a message of a mebibyte.
        assert!(scans.len() < 100, "it is disconnected");
        assert_eq!(get(&mut client, "/large/00").await.status(), Status::Ok);
    };
    println!("{} scans were begun: {refused}", scans.len());
    assert!(scans.len() >= 2, "some are let be");
    assert_eq!(list(&mut client, "/large/", "/large//").await.len(), 20);
    coordinator.stop().await;
}

/// Bytes that are no protocol, and frames of HTTP/2 that are cut or mangled: each connection ends, and the server goes on.
#[tokio::test]
async fn nonsense_ends_its_connection_only() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let dir = TempDir::new().unwrap();
    let config = CoordinatorConfig { handshake_timeout: Duration::from_millis(500), ..config(&dir) };
    let coordinator = start(config).await;
    let address = coordinator.oxia_addr().unwrap();
    let random = SeededRandom::new(5);
    let mut connections = tokio::task::JoinSet::new();
    for number in 0..200u64 {
        let mut bytes = if number % 4 == 0 { Vec::new() } else { PREFACE.to_vec() };
        for _ in 0..random.below(20) {
            let len = random.below(100) as usize;
            bytes.extend_from_slice(&[
                0,
                0,
                len as u8,
                random.below(11) as u8,
                random.below(256) as u8,
                0,
                0,
                0,
            ]);
            bytes.push(random.below(5) as u8);
            bytes.extend((0..len).map(|_| random.below(256) as u8));
        }
        connections.spawn(async move {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let _ = socket.write_all(&bytes).await;
            let _ = socket.shutdown().await;
            let mut rest = Vec::new();
            let _ = in_time(socket.read_to_end(&mut rest)).await;
        });
    }
    while let Some(ended) = connections.join_next().await {
        ended.unwrap();
    }
    let mut client = client_of(&coordinator).await;
    assert_eq!(put(&mut client, put_of("/still", "here")).await.status(), Status::Ok);
    coordinator.stop().await;
}

/// Invariant 6 of the module: peers that begin and do not go on, each of which would keep its connection for ever.
#[tokio::test]
async fn who_does_not_begin_in_time_has_no_connection() {
    const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x03\0";
    let dir = TempDir::new().unwrap();
    let handshake_timeout = Duration::from_millis(300);
    let config = CoordinatorConfig { handshake_timeout, connections_max: 6, ..config(&dir) };
    let coordinator = start(config).await;
    let mut sockets = Vec::new();
    for (port, len) in [(0, 0), (0, 1), (0, 24), (0, BEGINNING.len()), (1, 1), (1, 3)] {
        let address = [coordinator.oxia_addr().unwrap(), coordinator.local_addr()][port];
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(&BEGINNING[..len]).await.unwrap();
        sockets.push(socket);
    }
    for mut socket in sockets {
        let mut rest = Vec::new();
        // Closed by the server: the socket is still open on this side. It may have said what it can, and may reset what it did not read.
        let _ = in_time(socket.read_to_end(&mut rest)).await;
    }
    // All connections there may be are free again, as soon as the server knows, and one that has begun stays.
    let endpoint = Endpoint::from_shared(format!("http://{}", coordinator.oxia_addr().unwrap())).unwrap();
    let client = async {
        loop {
            let mut client = OxiaClientClient::new(endpoint.connect_lazy());
            if client.write(writing(vec![put_of("/still", "here")])).await.is_ok() {
                return client;
            }
        }
    };
    let mut client = in_time(client).await;
    tokio::time::sleep(2 * handshake_timeout).await;
    assert_eq!(put(&mut client, put_of("/still", "there")).await.status(), Status::Ok);
    coordinator.stop().await;
}

/// A request of many tiny operations is refused before it is decoded, in a call and in a stream.
#[tokio::test]
async fn requests_of_too_many_operations_are_refused() {
    let dir = TempDir::new().unwrap();
    let coordinator = start(config(&dir)).await;
    let mut client = client_of(&coordinator).await;
    let many = || writing(vec![PutRequest::default(); ELEMENTS_MAX + 1]);
    let refused = in_time(client.write(many())).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let (sender, requests) = mpsc::channel(1);
    sender.send(many()).await.unwrap();
    let mut answers = write_stream(&mut client, requests).await.unwrap();
    let refused = in_time(answers.message()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let gets = vec![GetRequest::default(); ELEMENTS_MAX + 1];
    let refused = in_time(client.read(ReadRequest { shard: Some(SHARD), gets })).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert_eq!(list(&mut client, "", "").await, [] as [&str; 0]);
    let puts = (0..ELEMENTS_MAX).map(|number| put_of(&number.to_string(), "")).collect();
    let written = in_time(client.write(writing(puts))).await.unwrap().into_inner();
    assert_eq!(written.puts.len(), ELEMENTS_MAX);
    coordinator.stop().await;
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The next frame's kind and stream; an error when the server has closed the connection.
async fn read_frame(socket: &mut TcpStream) -> std::io::Result<(u8, u32)> {
    let mut head = [0; 9];
    socket.read_exact(&mut head).await?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    socket.read_exact(&mut payload).await?;
    Ok((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]])))
}

/// Invariant 2 of the module: the answers of single calls count until the socket has them. The client here takes no bytes of any.
#[tokio::test]
async fn answers_that_are_not_read_are_counted() {
    const HEADERS: u8 = 1;
    let dir = TempDir::new().unwrap();
    let coordinator = start(CoordinatorConfig { outbox_bytes_max: 2 << 20, ..config(&dir) }).await;
    let mut socket = TcpStream::connect(coordinator.oxia_addr().unwrap()).await.unwrap();
    // Settings: windows of nothing for the answers.
    let beginning = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])[..]].concat();
    socket.write_all(&beginning).await.unwrap();
    let text = |text: &[u8]| [&[text.len() as u8], text].concat();
    let headers = [
        // Of the static table: POST, http; then path, authority and type as they are, and `te`.
        &[0x83, 0x86, 0x04][..],
        &text(b"/io.oxia.proto.v1.OxiaClient/Write"),
        &[0x01],
        &text(b"localhost"),
        &[0x0f, 0x10],
        &text(b"application/grpc"),
        &[0x00],
        &text(b"te"),
        &text(b"trailers"),
    ]
    .concat();
    // Each answer names the writer of each record.
    let put = |number: u32| PutRequest {
        client_identity: Some("i".repeat(1000)),
        ..put_of(&format!("/a/{number}"), "")
    };
    let request = prost::Message::encode_to_vec(&writing((0..40).map(put).collect()));
    let message = [&[0][..], &(request.len() as u32).to_be_bytes(), &request].concat();
    let mut answered = 0;
    let ended = 'calls: loop {
        let stream = 1 + 2 * answered;
        let mut call = frame(HEADERS, 4, stream, &headers);
        for (at, part) in message.chunks(16_000).enumerate() {
            let is_last = (at + 1) * 16_000 >= message.len();
            call.extend(frame(0, u8::from(is_last), stream, part));
        }
        if let Err(error) = socket.write_all(&call).await {
            break error;
        }
        loop {
            match in_time(read_frame(&mut socket)).await {
                Ok((HEADERS, of)) if of == stream => break,
                Ok(_) => {}
                Err(error) => break 'calls error,
            }
        }
        answered += 1;
        // What is counted of each call besides its answer would be 250 of them.
        assert!(answered < 100, "it is disconnected");
    };
    println!("{answered} calls were answered: {ended}");
    assert!(answered > 10, "some are let be");
    let mut client = client_of(&coordinator).await;
    assert_eq!(list(&mut client, "/a/", "/a//").await.len(), 40);
    coordinator.stop().await;
}

/// The test that is the process.
const SERVER: &str = "oxia::the_process_that_is_killed";
const KILLS: u64 = 15;

/// Not a test of its own: the process that is killed.
#[test]
#[ignore = "started by the test in this file"]
fn the_process_that_is_killed() {
    let config = |dir, address| {
        let mut config = CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), dir);
        config.oxia = Some(address);
        config
    };
    killed::serve(config, |coordinator| coordinator.oxia_addr().unwrap());
}

/// Goal: kill -9 at any moment loses no acknowledged write, and no version comes twice.
/// Method: a stream of puts and deletes as fast as it goes; the process is killed at random moments and started again on the same directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_kill_loses_what_was_acknowledged() {
    let dir = TempDir::new().unwrap();
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    let random = SeededRandom::new(seed);
    let (mut child, address) = killed::start(SERVER, dir.path(), "127.0.0.1:0".parse().unwrap());
    let (mut there, mut versions) = (BTreeMap::new(), BTreeSet::new());
    for kill in 0..KILLS {
        let mut client = OxiaClientClient::new(channel(address).await);
        let (sender, requests) = mpsc::channel(64);
        let writer = tokio::spawn(async move {
            let mut sent = 0u64;
            loop {
                let key = format!("/k/{kill}/{sent}");
                let deletes = match sent.checked_sub(7) {
                    Some(old) if old % 3 == 0 => {
                        vec![DeleteRequest { key: format!("/k/{kill}/{old}"), ..DeleteRequest::default() }]
                    }
                    _ => Vec::new(),
                };
                let request = WriteRequest { deletes, ..writing(vec![put_of(&key, &key)]) };
                if sender.send(request).await.is_err() {
                    return;
                }
                sent += 1;
            }
        });
        let reader = tokio::spawn(async move {
            let mut answered = Vec::new();
            let Ok(mut answers) = write_stream(&mut client, requests).await else { return answered };
            while let Ok(Some(answer)) = answers.message().await {
                answered.push(answer);
            }
            answered
        });
        tokio::time::sleep(Duration::from_micros(random.below(150_000))).await;
        drop(child);
        let answered = in_time(reader).await.unwrap();
        writer.abort();
        (child, _) = killed::start(SERVER, dir.path(), address);
        for (number, answer) in (0u64..).zip(&answered) {
            let version = answer.puts[0].version.as_ref().unwrap().version_id;
            assert!(versions.insert(version), "SEED={seed} kill {kill}: version {version} came twice");
            there.insert(format!("/k/{kill}/{number}"), true);
            if let Some(old) = number.checked_sub(7).filter(|old| old % 3 == 0) {
                there.insert(format!("/k/{kill}/{old}"), false);
            }
        }
        let mut client = OxiaClientClient::new(channel(address).await);
        let found: BTreeSet<String> = list(&mut client, "/k/", "").await.into_iter().collect();
        // Deletions behind the last answer may have happened.
        let unanswered = |key: &str| {
            let number = key.rsplit('/').next().and_then(|number| number.parse::<u64>().ok()).unwrap();
            key.starts_with(&format!("/k/{kill}/")) && number + 7 >= answered.len() as u64
        };
        for (key, is_there) in &mut there {
            match (*is_there, found.contains(key)) {
                (true, false) if unanswered(key) => *is_there = false,
                (expected, is_found) => {
                    assert_eq!(is_found, expected, "SEED={seed} kill {kill}: {key}");
                }
            }
        }
    }
    println!("kills={KILLS} acknowledged={} SEED={seed}", versions.len());
    assert!(versions.len() > 100);
    drop(child);
}
