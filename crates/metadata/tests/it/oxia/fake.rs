//! Oxia's servers in memory: shards with leaders that move, sessions that end when a test says so, answers that are lost. What a test needs
//! of the protocol, and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bindery_oxia::proto::oxia_client_server::{OxiaClient, OxiaClientServer};
use bindery_oxia::proto::shard_assignment::ShardBoundaries;
use bindery_oxia::proto::{
    self, CloseSessionRequest, CloseSessionResponse, CreateSessionRequest, CreateSessionResponse,
    DeleteResponse, GetResponse, GetSequenceUpdatesRequest, GetSequenceUpdatesResponse, Int32HashRange,
    KeepAliveResponse, ListRequest, ListResponse, NamespaceShardsAssignment, Notification, NotificationBatch,
    NotificationType, NotificationsRequest, PutRequest, PutResponse, RangeScanRequest, RangeScanResponse,
    ReadRequest, ReadResponse, SessionHeartbeat, ShardAssignment, ShardAssignments, ShardAssignmentsRequest,
    Status as Outcome, WriteRequest, WriteResponse,
};
use bindery_oxia::{VERSION_NOT_EXISTS, keys};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::tokio_stream::{self, Stream};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

pub const NAMESPACE: &str = "tests";

#[derive(Clone)]
struct Record {
    value: Bytes,
    version: proto::Version,
}

#[derive(Default)]
struct Shard {
    records: BTreeMap<String, Record>,
    sessions: BTreeSet<i64>,
    last_version: i64,
    offset: i64,
    subscribers: Vec<mpsc::Sender<Result<NotificationBatch, Status>>>,
    /// Streams of leaders of before, which are open and say nothing.
    abandoned: Vec<mpsc::Sender<Result<NotificationBatch, Status>>>,
}

/// What becomes of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is applied, and its answer is lost.
    Unanswered,
    /// The server says that it is not the leader.
    NotLeader,
    /// The server has no room.
    NoRoom,
}

#[derive(Default)]
struct World {
    shards: BTreeMap<i64, Shard>,
    last_session: i64,
    fault: Option<Fault>,
    /// Names that each shard lists instead of its own, and their size.
    listed_instead: Option<(usize, usize)>,
    /// Whether all writes have it, not only the next one.
    is_lasting: bool,
    /// Writes that were refused, to be seen by tests.
    refused: u64,
    /// Heartbeats, to be seen by tests.
    beats: u64,
    writes: u64,
}

/// The ranges of the shards and their leaders, by the number of a server.
type Leaders = BTreeMap<i64, (u32, u32, usize)>;

/// All servers of a cluster, and what they share.
pub struct Fake {
    world: Arc<Mutex<World>>,
    leaders: watch::Sender<Leaders>,
    addresses: Vec<SocketAddr>,
    /// Each server has a runtime of one thread, with which its connections end.
    running: Mutex<Vec<Option<Runtime>>>,
    /// Those that keep the threads of silent servers.
    silenced: Mutex<Vec<std::sync::mpsc::SyncSender<()>>>,
}

/// One server.
#[derive(Clone)]
struct Node {
    number: usize,
    addresses: Vec<SocketAddr>,
    world: Arc<Mutex<World>>,
    leaders: watch::Receiver<Leaders>,
}

impl Fake {
    /// Servers that lead the shards in turn. Each shard has as many hashes as the others.
    pub async fn start(servers: usize, shards: u32) -> Fake {
        let mut listeners = Vec::new();
        for _ in 0..servers {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listeners.push(listener.into_std().unwrap());
        }
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let size = u32::MAX / shards;
        let leaders: Leaders = (0..shards)
            .map(|at| {
                let max = if at == shards - 1 { u32::MAX } else { (at + 1) * size - 1 };
                (i64::from(at), (at * size, max, at as usize % servers))
            })
            .collect();
        let world = World {
            // Neither small nor equal to an offset.
            shards: leaders
                .keys()
                .map(|id| (*id, Shard { last_version: 70_000 + id * 1000, ..Shard::default() }))
                .collect(),
            ..World::default()
        };
        let fake = Fake {
            world: Arc::new(Mutex::new(world)),
            leaders: watch::Sender::new(leaders),
            addresses,
            running: Mutex::new(Vec::new()),
            silenced: Mutex::new(Vec::new()),
        };
        for (number, listener) in listeners.into_iter().enumerate() {
            let node = fake.node(number);
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.spawn(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let incoming = tonic::transport::server::TcpIncoming::from(listener);
                Server::builder().add_service(OxiaClientServer::new(node)).serve_with_incoming(incoming).await
            });
            fake.running.lock().push(Some(runtime));
        }
        fake
    }

    fn node(&self, number: usize) -> Node {
        let (addresses, world) = (self.addresses.clone(), self.world.clone());
        Node { number, addresses, world, leaders: self.leaders.subscribe() }
    }

    pub fn servers(&self) -> Vec<String> {
        self.addresses.iter().map(ToString::to_string).collect()
    }

    pub fn fail_next_write(&self, fault: Fault) {
        let mut world = self.world.lock();
        (world.fault, world.is_lasting) = (Some(fault), false);
    }

    /// All writes fail so, until another fault is chosen.
    pub fn fail_writes(&self, fault: Option<Fault>) {
        let mut world = self.world.lock();
        (world.fault, world.is_lasting) = (fault, true);
    }

    pub fn refused(&self) -> u64 {
        self.world.lock().refused
    }

    /// From now on each shard lists so many names of this size, whatever is there.
    pub fn list_instead(&self, count: usize, size_bytes: usize) {
        self.world.lock().listed_instead = Some((count, size_bytes));
    }

    pub fn beats(&self) -> u64 {
        self.world.lock().beats
    }

    pub fn writes(&self) -> u64 {
        self.world.lock().writes
    }

    /// The sessions of all shards.
    pub fn sessions(&self) -> Vec<(i64, i64)> {
        let world = self.world.lock();
        let of = |(id, shard): (&i64, &Shard)| {
            shard.sessions.iter().map(|session| (*id, *session)).collect::<Vec<_>>()
        };
        world.shards.iter().flat_map(of).collect()
    }

    /// Ends a session of a shard, with its records.
    pub fn expire(&self, shard: i64, session: i64) {
        self.world.lock().shards.get_mut(&shard).unwrap().end(session);
    }

    /// Ends the streams of notifications of a shard.
    pub fn break_notifications(&self, shard: i64) {
        self.world.lock().shards.get_mut(&shard).unwrap().subscribers.clear();
    }

    /// From now on another server leads a shard.
    pub fn lead(&self, shard: i64, server: usize) {
        self.world.lock().shards.get_mut(&shard).unwrap().subscribers.clear();
        self.leaders.send_modify(|leaders| leaders.get_mut(&shard).unwrap().2 = server);
    }

    /// From now on another server leads a shard, and the one before keeps its streams of notifications open.
    pub fn lead_without_a_word(&self, shard: i64, server: usize) {
        let mut world = self.world.lock();
        let of_shard = world.shards.get_mut(&shard).unwrap();
        let mut streams = std::mem::take(&mut of_shard.subscribers);
        of_shard.abandoned.append(&mut streams);
        self.leaders.send_modify(|leaders| leaders.get_mut(&shard).unwrap().2 = server);
    }

    /// A server keeps its connections, takes others, and says nothing any more.
    pub fn silence(&self, server: usize) {
        let (sender, end) = std::sync::mpsc::sync_channel::<()>(0);
        let (silent, is_silent) = std::sync::mpsc::sync_channel::<()>(1);
        let running = self.running.lock();
        let runtime = running[server].as_ref().unwrap();
        // It has one thread, which waits until the test ends.
        runtime.spawn(async move {
            silent.send(()).unwrap();
            end.recv().unwrap_err()
        });
        is_silent.recv().unwrap();
        self.silenced.lock().push(sender);
    }

    /// Splits a shard in two with other ids.
    pub fn split(&self, shard: i64) {
        let mut world = self.world.lock();
        let old = world.shards.remove(&shard).unwrap();
        self.leaders.send_modify(|leaders| {
            let (min, max, leader) = leaders.remove(&shard).unwrap();
            let half = min + (max - min) / 2;
            for (id, min, max) in [(100 + shard, min, half), (200 + shard, half + 1, max)] {
                let records = old.records.iter().filter(|(key, _)| (min..=max).contains(&keys::hash(key)));
                let records = records.map(|(key, record)| (key.clone(), record.clone())).collect();
                let part = Shard {
                    records,
                    sessions: old.sessions.clone(),
                    last_version: old.last_version,
                    ..Shard::default()
                };
                world.shards.insert(id, part);
                leaders.insert(id, (min, max, leader));
            }
        });
    }

    /// Stops a server and breaks its connections.
    pub fn stop(&self, server: usize) {
        if let Some(runtime) = self.running.lock()[server].take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.silenced.lock().clear();
        for runtime in self.running.lock().drain(..).flatten() {
            runtime.shutdown_background();
        }
    }
}

impl Shard {
    fn end(&mut self, session: i64) {
        self.sessions.remove(&session);
        let is_its = |record: &Record| record.version.session_id == Some(session);
        let gone: Vec<String> =
            self.records.iter().filter(|(_, record)| is_its(record)).map(|(key, _)| key.clone()).collect();
        let mut changes = BTreeMap::new();
        for key in gone {
            self.records.remove(&key);
            changes.insert(key, change(NotificationType::KeyDeleted, None));
        }
        changes.insert(format!("__oxia/session/{session:016x}"), change(NotificationType::KeyDeleted, None));
        self.notify(changes);
    }

    fn notify(&mut self, notifications: BTreeMap<String, Notification>) {
        self.offset += 1;
        let batch = NotificationBatch { offset: self.offset, notifications, ..NotificationBatch::default() };
        self.subscribers.retain(|subscriber| subscriber.try_send(Ok(batch.clone())).is_ok());
    }

    fn has_version(&self, key: &str, expected: Option<i64>) -> bool {
        let found = self.records.get(key).map_or(VERSION_NOT_EXISTS, |record| record.version.version_id);
        expected.is_none_or(|expected| expected == found)
    }

    fn put(&mut self, put: PutRequest, changes: &mut BTreeMap<String, Notification>) -> PutResponse {
        let refused = |status: Outcome| PutResponse { status: status.into(), ..PutResponse::default() };
        if !self.has_version(&put.key, put.expected_version_id) {
            return refused(Outcome::UnexpectedVersionId);
        }
        if put.session_id.is_some_and(|session| !self.sessions.contains(&session)) {
            return refused(Outcome::SessionDoesNotExist);
        }
        self.last_version += 3;
        let old = self.records.get(&put.key).map(|record| &record.version);
        let version = proto::Version {
            version_id: self.last_version,
            modifications_count: put
                .override_modifications_count
                .unwrap_or(old.map_or(0, |old| old.modifications_count + 1)),
            created_timestamp: old
                .map_or(1_700_000_000_000 + self.last_version as u64, |old| old.created_timestamp),
            modified_timestamp: 1_700_000_000_000 + self.last_version as u64,
            session_id: put.session_id,
            client_identity: put.client_identity,
        };
        let kind = if old.is_some() { NotificationType::KeyModified } else { NotificationType::KeyCreated };
        changes.insert(put.key.clone(), change(kind, Some(version.version_id)));
        self.records.insert(put.key, Record { value: put.value, version: version.clone() });
        PutResponse { version: Some(version), ..PutResponse::default() }
    }
}

fn change(kind: NotificationType, version_id: Option<i64>) -> Notification {
    Notification { r#type: kind.into(), version_id, ..Notification::default() }
}

fn not_leader() -> Status {
    Status::aborted("oxia: node is not leader for shard")
}

impl Node {
    /// Works on a shard that this server leads.
    fn on<T>(
        &self,
        shard: Option<i64>,
        work: impl FnOnce(&mut World, i64) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let shard = shard.ok_or_else(|| Status::invalid_argument("shard id is required"))?;
        // The world first, as a split takes both.
        let mut world = self.world.lock();
        match self.leaders.borrow().get(&shard) {
            None => return Err(Status::not_found("oxia: shard not found")),
            Some((_, _, leader)) if *leader != self.number => return Err(not_leader()),
            Some(_) => {}
        }
        work(&mut world, shard).map(Response::new)
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn one_by_one<T: Send + 'static>(answers: Vec<T>) -> Answers<T> {
    Box::pin(tokio_stream::iter(answers.into_iter().map(Ok)))
}

#[tonic::async_trait]
impl OxiaClient for Node {
    type GetShardAssignmentsStream = ReceiverStream<Result<ShardAssignments, Status>>;
    type WriteStreamStream = Answers<WriteResponse>;
    type ReadStream = Answers<ReadResponse>;
    type ListStream = Answers<ListResponse>;
    type RangeScanStream = Answers<RangeScanResponse>;
    type GetSequenceUpdatesStream = Answers<GetSequenceUpdatesResponse>;
    type GetNotificationsStream = ReceiverStream<Result<NotificationBatch, Status>>;

    async fn get_shard_assignments(
        &self,
        request: Request<ShardAssignmentsRequest>,
    ) -> Result<Response<Self::GetShardAssignmentsStream>, Status> {
        let namespace = request.into_inner().namespace;
        if namespace != NAMESPACE {
            return Err(Status::not_found("oxia: namespace not found"));
        }
        let (sender, receiver) = mpsc::channel(4);
        let (mut leaders, addresses) = (self.leaders.clone(), self.addresses.clone());
        // It ends with its client.
        tokio::spawn(async move {
            loop {
                let assignment = |(shard, (min, max, leader)): (&i64, &(u32, u32, usize))| ShardAssignment {
                    shard: *shard,
                    leader: addresses[*leader].to_string(),
                    shard_boundaries: Some(ShardBoundaries::Int32HashRange(Int32HashRange {
                        min_hash_inclusive: *min,
                        max_hash_inclusive: *max,
                    })),
                };
                let assignments = leaders.borrow_and_update().iter().map(assignment).collect();
                let assigned =
                    NamespaceShardsAssignment { assignments, ..NamespaceShardsAssignment::default() };
                let said = ShardAssignments {
                    namespaces: [(NAMESPACE.to_owned(), assigned)].into(),
                    ..ShardAssignments::default()
                };
                if sender.send(Ok(said)).await.is_err() || leaders.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let request = request.into_inner();
        self.on(request.shard, |world, shard| {
            let fault = world.fault;
            if !world.is_lasting {
                world.fault = None;
            }
            let refused = match fault {
                Some(Fault::NotLeader) => Some(not_leader()),
                Some(Fault::NoRoom) => Some(Status::resource_exhausted("the tree is full")),
                Some(Fault::Unanswered) | None => None,
            };
            if let Some(refused) = refused {
                world.refused += 1;
                return Err(refused);
            }
            world.writes += 1;
            let shard = world.shards.get_mut(&shard).unwrap();
            let (mut answer, mut changes) = (WriteResponse::default(), BTreeMap::new());
            for put in request.puts {
                answer.puts.push(shard.put(put, &mut changes));
            }
            for delete in request.deletes {
                let status = match shard.has_version(&delete.key, delete.expected_version_id) {
                    false => Outcome::UnexpectedVersionId,
                    true if shard.records.remove(&delete.key).is_some() => {
                        changes.insert(delete.key, change(NotificationType::KeyDeleted, None));
                        Outcome::Ok
                    }
                    true => Outcome::KeyNotFound,
                };
                answer.deletes.push(DeleteResponse { status: status.into() });
            }
            if !changes.is_empty() {
                shard.notify(changes);
            }
            match fault {
                Some(_) => Err(Status::unavailable("the connection broke")),
                None => Ok(answer),
            }
        })
    }

    async fn write_stream(
        &self,
        _request: Request<Streaming<WriteRequest>>,
    ) -> Result<Response<Self::WriteStreamStream>, Status> {
        Err(Status::unimplemented("write_stream"))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        self.on(request.shard, |world, shard| {
            let shard = &world.shards[&shard];
            let get = |get: &proto::GetRequest| match shard.records.get(&get.key) {
                Some(record) => GetResponse {
                    version: Some(record.version.clone()),
                    value: get.include_value.then(|| record.value.clone()),
                    ..GetResponse::default()
                },
                None => GetResponse { status: Outcome::KeyNotFound.into(), ..GetResponse::default() },
            };
            let answers = request.gets.iter().map(|one| ReadResponse { gets: vec![get(one)] });
            Ok(one_by_one(answers.collect()))
        })
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let request = request.into_inner();
        self.on(request.shard, |world, shard| {
            let (start, end) = (&request.start_inclusive, &request.end_exclusive);
            if let Some((count, size_bytes)) = world.listed_instead {
                let key = |number| format!("{start}{:0size_bytes$}", i64::from(number) + shard * 1_000_000);
                let answers = (0..u32::try_from(count).unwrap()).map(|number| vec![key(number)]);
                return Ok(one_by_one(answers.map(|keys| ListResponse { keys }).collect()));
            }
            let is_in = |key: &&String| keys::compare(start, key).is_le() && keys::compare(key, end).is_lt();
            let mut found: Vec<String> = world.shards[&shard].records.keys().filter(is_in).cloned().collect();
            found.sort_by(|one, other| keys::compare(one, other));
            Ok(one_by_one(found.chunks(2).map(|keys| ListResponse { keys: keys.to_vec() }).collect()))
        })
    }

    async fn range_scan(
        &self,
        _request: Request<RangeScanRequest>,
    ) -> Result<Response<Self::RangeScanStream>, Status> {
        Err(Status::unimplemented("range_scan"))
    }

    async fn get_sequence_updates(
        &self,
        _request: Request<GetSequenceUpdatesRequest>,
    ) -> Result<Response<Self::GetSequenceUpdatesStream>, Status> {
        Err(Status::unimplemented("get_sequence_updates"))
    }

    async fn get_notifications(
        &self,
        request: Request<NotificationsRequest>,
    ) -> Result<Response<Self::GetNotificationsStream>, Status> {
        let request = request.into_inner();
        self.on(Some(request.shard), |world, shard| {
            let shard = world.shards.get_mut(&shard).unwrap();
            let (sender, receiver) = mpsc::channel(4096);
            let first = NotificationBatch { offset: shard.offset, ..NotificationBatch::default() };
            sender.try_send(Ok(first)).unwrap();
            shard.subscribers.push(sender);
            Ok(ReceiverStream::new(receiver))
        })
    }

    async fn create_session(
        &self,
        request: Request<CreateSessionRequest>,
    ) -> Result<Response<CreateSessionResponse>, Status> {
        let request = request.into_inner();
        let timeout = Duration::from_millis(request.session_timeout_ms.into());
        if !(Duration::from_secs(2)..=Duration::from_secs(300)).contains(&timeout) {
            return Err(Status::invalid_argument("oxia: invalid session timeout"));
        }
        self.on(Some(request.shard), |world, shard| {
            world.last_session += 1;
            let session_id = world.last_session;
            world.shards.get_mut(&shard).unwrap().sessions.insert(session_id);
            Ok(CreateSessionResponse { session_id })
        })
    }

    async fn keep_alive(
        &self,
        request: Request<SessionHeartbeat>,
    ) -> Result<Response<KeepAliveResponse>, Status> {
        let request = request.into_inner();
        self.on(Some(request.shard), |world, shard| {
            world.beats += 1;
            match world.shards[&shard].sessions.contains(&request.session_id) {
                true => Ok(KeepAliveResponse {}),
                false => Err(Status::not_found("oxia: session not found")),
            }
        })
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let request = request.into_inner();
        self.on(Some(request.shard), |world, shard| {
            let shard = world.shards.get_mut(&shard).unwrap();
            match shard.sessions.contains(&request.session_id) {
                true => {
                    shard.end(request.session_id);
                    Ok(CloseSessionResponse {})
                }
                false => Err(Status::not_found("oxia: session not found")),
            }
        })
    }
}
