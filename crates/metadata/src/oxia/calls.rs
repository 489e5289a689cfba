//! Requests: which server each goes to, how long it is tried, and what came of it.
//!
//! # Limits     requests under way: [`REQUESTS_MAX`], others wait for their turn within their time; listings under way: [`LISTINGS_MAX`]; what one
//! holds: [`LIST_SIZE_BYTES_MAX`], beside the answers of [`ASKED_SHARDS_MAX`] shards; reads that go together: `reads`

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bindery_oxia::keys;
use bindery_oxia::proto::oxia_client_client::OxiaClientClient;
use bindery_oxia::proto::{
    self, DeleteRequest, GetRequest, GetResponse, ListRequest, PutRequest, ReadRequest, Status as Outcome,
    WriteRequest,
};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::reads::Reads;
use super::session::OpenSession;
use super::shards::{Shard, Shards};
use super::status::{Failure, failure_of};
use super::watches::{Armed, Watches};
use super::{Deleted, Put};
use crate::fault::{Fault, ServerFaults};
use crate::store::{SessionState, StoreError, Watch};

/// Requests under way; more wait in their callers.
pub const REQUESTS_MAX: usize = 256;
/// Largest message of a server: Oxia's end a batch at 2 MiB, plus one value.
pub const MESSAGE_SIZE_BYTES_MAX: usize = 8 << 20;
/// The most memory for the names below one node, over all shards. A million children of 20 bytes fit, as with ZooKeeper.
pub const LIST_SIZE_BYTES_MAX: usize = 64 << 20;
/// Listings under way; more wait in their callers.
pub const LISTINGS_MAX: usize = 16;
/// The memory of a name besides its bytes: its place in the list, and the allocator's overhead.
const LIST_NAME_OVERHEAD_BYTES: usize = size_of::<String>() + 16;
const _: () = assert!(1_000_000 * (20 + LIST_NAME_OVERHEAD_BYTES) <= LIST_SIZE_BYTES_MAX);
/// Requests under way at once when all shards are asked. In a listing each holds an answer of up to [`MESSAGE_SIZE_BYTES_MAX`].
const ASKED_SHARDS_MAX: usize = 8;
/// Pause before a request is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// A server that says nothing for so long is pinged, as Oxia's own clients do it. Its servers end a connection with more than one ping in
/// five seconds.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The connection ends when the answer to a ping takes longer, and with it all of its requests and streams.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
const _: () = assert!(PING_INTERVAL.as_secs() > 5, "Oxia's servers end a connection that pings more often");

/// A client of one server.
pub(super) type Client = OxiaClientClient<Channel>;

/// A record.
pub(super) struct Stored {
    /// Its shard, in which its version and its session are numbered.
    pub shard: i64,
    /// Empty when it was not asked for.
    pub value: Bytes,
    pub version: proto::Version,
}

/// The memory that the names of one listing take, over all shards.
#[derive(Default)]
struct Listing {
    size_bytes: AtomicUsize,
}

impl Listing {
    fn part(&self) -> Part<'_> {
        Part { names: Vec::new(), size_bytes: 0, listing: self }
    }
}

/// Names of one shard. They count until they are dropped, as when an attempt fails half way.
struct Part<'a> {
    names: Vec<String>,
    size_bytes: usize,
    listing: &'a Listing,
}

impl Part<'_> {
    /// Adds a name. Whether there was room for it.
    fn push(&mut self, name: &str) -> bool {
        let size = name.len() + LIST_NAME_OVERHEAD_BYTES;
        let before = self.listing.size_bytes.fetch_add(size, Ordering::Relaxed);
        self.size_bytes += size;
        if before + size > LIST_SIZE_BYTES_MAX {
            return false;
        }
        self.names.push(name.to_owned());
        true
    }

    /// Takes the names out, and leaves them counted.
    fn into_names(mut self) -> Vec<String> {
        self.size_bytes = 0;
        std::mem::take(&mut self.names)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.listing.size_bytes.fetch_sub(self.size_bytes, Ordering::Relaxed);
    }
}

/// Whom a record belongs to.
pub(super) enum Owner<'a> {
    /// Nobody: it lives until it is deleted.
    None,
    /// The session of the store.
    Session(&'a OpenSession),
    /// Whoever owns the record that it replaces, in the shard where that was found.
    Former(&'a Stored),
}

impl Owner<'_> {
    /// The session that a record gets in a shard. An error when the owner has none there.
    fn session_in(&self, shard: i64) -> Result<Option<i64>, StoreError> {
        match self {
            Owner::None => Ok(None),
            Owner::Session(session) => session.of_shard(shard).map(Some).ok_or(StoreError::SessionExpired),
            Owner::Former(stored) if stored.shard == shard => Ok(stored.version.session_id),
            Owner::Former(_) => Err(StoreError::SessionExpired),
        }
    }

    fn identity(&self) -> Option<String> {
        match self {
            Owner::None => None,
            Owner::Session(session) => Some(session.identity()),
            Owner::Former(stored) => stored.version.client_identity.clone(),
        }
    }
}

/// What the store, its requests and its keeper share.
pub(super) struct Shared {
    pub servers: Vec<String>,
    pub namespace: String,
    /// Of sessions, and the time that a request has.
    pub timeout: Duration,
    pub state: watch::Sender<SessionState>,
    /// The shards, once a server named them.
    pub shards: watch::Sender<Option<Arc<Shards>>>,
    /// The sessions of the shards that stand for the session which `state` shows.
    pub session: watch::Sender<Option<Arc<OpenSession>>>,
    /// A session that a server said is gone.
    pub gone: watch::Sender<Option<i64>>,
    pub closing: watch::Sender<bool>,
    /// Counts the rounds in which no server named the shards.
    pub rounds: watch::Sender<u64>,
    /// Counts failures that suggest that other servers lead the shards than the last assignments say. The next server is asked then.
    pub doubts: watch::Sender<u64>,
    pub watches: parking_lot::Mutex<Watches>,
    /// Changes whenever the notifications of all shards have begun to come in.
    pub live: watch::Sender<u64>,
    is_unclean: AtomicBool,
    faults: parking_lot::Mutex<BTreeMap<String, Fault>>,
    channels: parking_lot::Mutex<BTreeMap<String, Channel>>,
    permits: Semaphore,
    listings: Semaphore,
    reads: Reads,
}

impl Shared {
    pub(super) fn new(servers: &[String], namespace: &str, timeout: Duration) -> Shared {
        assert!(!servers.is_empty(), "a URI names at least one server");
        Shared {
            servers: servers.to_vec(),
            namespace: namespace.to_owned(),
            timeout,
            state: watch::Sender::new(SessionState::Connecting),
            shards: watch::Sender::new(None),
            session: watch::Sender::new(None),
            gone: watch::Sender::new(None),
            closing: watch::Sender::new(false),
            rounds: watch::Sender::new(0),
            doubts: watch::Sender::new(0),
            watches: parking_lot::Mutex::default(),
            live: watch::Sender::new(0),
            is_unclean: AtomicBool::new(false),
            faults: parking_lot::Mutex::default(),
            channels: parking_lot::Mutex::default(),
            permits: Semaphore::new(REQUESTS_MAX),
            listings: Semaphore::new(LISTINGS_MAX),
            reads: Reads::default(),
        }
    }

    /// What is wrong with each server of the URI, and with leaders of shards.
    pub(super) fn faults(&self) -> ServerFaults {
        let faults = self.faults.lock();
        let fault = |server: &String| faults.get(server).cloned().unwrap_or(Fault::NotTried);
        let mut all: Vec<_> = self.servers.iter().map(|server| (server.clone(), fault(server))).collect();
        let leaders = faults.iter().filter(|(server, _)| !self.servers.contains(server));
        all.extend(leaders.map(|(server, fault)| (server.clone(), fault.clone())));
        ServerFaults(all)
    }

    pub(super) fn note_fault(&self, server: &str, fault: Fault) {
        self.faults.lock().insert(server.to_owned(), fault);
    }

    pub(super) fn clear_faults(&self) {
        self.faults.lock().clear();
    }

    /// Doubts that the shards are led by those who were named.
    pub(super) fn doubt(&self) {
        self.doubts.send_modify(|doubts| *doubts += 1);
    }

    /// Notes that a session could not be closed.
    pub(super) fn note_unclean(&self) {
        self.is_unclean.store(true, Ordering::Relaxed);
    }

    /// Whether all sessions were closed; said once.
    pub(super) fn is_closed_cleanly(&self) -> bool {
        !self.is_unclean.swap(false, Ordering::Relaxed)
    }

    /// Fails once the store is closed, or about to be.
    pub(super) fn check_open(&self) -> Result<(), StoreError> {
        if *self.closing.borrow() { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// A client of a server. Its connection is made by the first request, and again when it broke.
    pub(super) fn client(&self, server: &str) -> Result<Client, Failure> {
        let mut channels = self.channels.lock();
        let channel = match channels.get(server) {
            Some(channel) => channel.clone(),
            None => {
                let not_an_address = |error: tonic::transport::Error| {
                    Failure::NotSent(format!(
                        "{server:?} is no address of a server ({error}); tls:// is not supported"
                    ))
                };
                // A request waits longer than its connection is tried, and so learns that nothing was sent.
                let endpoint = endpoint(server, self.timeout / 4, (PING_INTERVAL, PING_TIMEOUT))
                    .map_err(not_an_address)?;
                let channel = endpoint.connect_lazy();
                channels.insert(server.to_owned(), channel.clone());
                channel
            }
        };
        Ok(Client::new(channel).max_decoding_message_size(MESSAGE_SIZE_BYTES_MAX))
    }

    /// Forgets the connection to a server that does not answer: the next request makes another.
    pub(super) fn forget(&self, server: &str) {
        self.channels.lock().remove(server);
    }

    /// Forgets the connections to servers that lead nothing any more.
    pub(super) fn forget_all_but(&self, shards: &Shards) {
        let is_wanted = |server: &String| shards.has_leader(server) || self.servers.contains(server);
        self.channels.lock().retain(|server, _| is_wanted(server));
        self.faults.lock().retain(|server, _| is_wanted(server));
    }

    fn unreachable(&self) -> StoreError {
        let mut faults = self.faults();
        // Servers of the URI are asked for the leaders only.
        if faults.0.iter().any(|(_, fault)| *fault != Fault::NotTried) {
            faults.0.retain(|(_, fault)| *fault != Fault::NotTried);
        }
        StoreError::Unreachable { waited: self.timeout, faults }
    }

    /// Waits until `found` gives something of a state, within the time; `Unreachable` then, and `Closed` once the store is.
    async fn wait<S, T>(
        &self,
        states: &watch::Sender<S>,
        deadline: Instant,
        mut found: impl FnMut(&S) -> Option<T>,
    ) -> Result<T, StoreError> {
        let (mut states, mut closing) = (states.subscribe(), self.closing.subscribe());
        loop {
            self.check_open()?;
            if let Some(found) = found(&states.borrow_and_update()) {
                return Ok(found);
            }
            tokio::select! {
                changed = states.changed() => changed.map_err(|_| StoreError::Closed)?,
                _ = closing.changed() => {}
                () = tokio::time::sleep_until(deadline) => return Err(self.unreachable()),
            }
        }
    }

    pub(super) async fn shards(&self, deadline: Instant) -> Result<Arc<Shards>, StoreError> {
        self.wait(&self.shards, deadline, Clone::clone).await
    }

    /// Arms a watch as soon as the notifications of all shards come in.
    pub(super) async fn armed(
        &self,
        arm: impl Fn(&mut Watches) -> Option<(Armed, Watch)>,
        deadline: Instant,
    ) -> Result<(Armed, Watch), StoreError> {
        self.wait(&self.live, deadline, |_| arm(&mut self.watches.lock())).await
    }

    /// Sends a request about a node to the leader of a shard, until one answers ([`super`], invariant 1). `route` names the shard before each
    /// attempt, with what the request needs of that one, or says why there is none.
    async fn call<T, Q, R>(
        &self,
        path: &str,
        is_write: bool,
        deadline: Instant,
        route: impl Fn(&Shards) -> Result<(&Shard, Q), StoreError>,
        request: impl Fn(Client, i64, Q) -> R,
    ) -> Result<T, StoreError>
    where
        R: Future<Output = Result<T, Status>>,
    {
        let permit = timeout_at(deadline, self.permits.acquire()).await;
        // Held to the end. The semaphore is never closed.
        let _permit = permit.map_err(|_| self.unreachable())?.map_err(|_| StoreError::Closed)?;
        loop {
            let shards = self.shards(deadline).await?;
            let (shard, of_shard) = route(&shards)?;
            // Half of the time for one attempt: a server that is silent must not use up what another one needs.
            let attempt_end = deadline.min(Instant::now() + self.timeout / 2);
            let outcome = match self.client(&shard.leader) {
                Ok(client) => match timeout_at(attempt_end, request(client, shard.id, of_shard)).await {
                    Ok(answer) => answer.map_err(|status| failure_of(&status)),
                    Err(_) => Err(Failure::Unknown(format!("no answer within {:?}", self.timeout / 2))),
                },
                Err(failure) => Err(failure),
            };
            let failure = match outcome {
                Ok(answer) => {
                    self.faults.lock().remove(&shard.leader);
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            tracing::debug!(
                server = shard.leader,
                shard = shard.id,
                ?failure,
                "a request to the metadata store"
            );
            match failure {
                Failure::NoSession => return Err(StoreError::SessionExpired),
                Failure::Full(_) => return Err(StoreError::Full { path: path.to_owned() }),
                Failure::Refused(why) | Failure::NotOxia(why) => return Err(StoreError::Protocol(why)),
                Failure::NoNamespace => {
                    return Err(StoreError::Protocol(format!(
                        "there is no namespace {:?} any more",
                        self.namespace
                    )));
                }
                Failure::Unknown(why) => {
                    self.forget(&shard.leader);
                    self.doubt();
                    self.note_fault(&shard.leader, Fault::Other(why));
                    if is_write {
                        return Err(StoreError::ConnectionLoss);
                    }
                }
                Failure::NotSent(why) | Failure::NotHere(why) => {
                    self.doubt();
                    self.note_fault(&shard.leader, Fault::Other(why));
                }
            }
            let again = Instant::now() + RETRY_PAUSE;
            if again >= deadline {
                return Err(self.unreachable());
            }
            tokio::time::sleep_until(again).await;
        }
    }

    /// Reads a record; `None` where there is none.
    pub(super) async fn find(
        &self,
        key: &str,
        with_value: bool,
        deadline: Instant,
    ) -> Result<Option<Stored>, StoreError> {
        let get = GetRequest { key: key.to_owned(), include_value: with_value, ..GetRequest::default() };
        let shard = self.shards(deadline).await?.of_key(key).id;
        let send = |gets| async move { Ok(self.read(key, Some(shard), gets, deadline).await?.1) };
        let together =
            self.reads.of_shard(shard).read(get.clone(), deadline, send, || self.unreachable()).await;
        let (shard, got) = match together {
            Ok(got) => (shard, got),
            // Another one of them may be what the server refuses, or be in another shard now.
            Err(StoreError::Protocol(_)) => {
                let (shard, mut answers) = self.read(key, None, vec![get], deadline).await?;
                let got = answers.pop();
                (shard, got.ok_or_else(|| StoreError::Protocol("a read without an answer".to_owned()))?)
            }
            Err(error) => return Err(error),
        };
        match outcome_of(got.status)? {
            Outcome::Ok => {
                let version = got
                    .version
                    .ok_or_else(|| StoreError::Protocol("a record without a version".to_owned()))?;
                Ok(Some(Stored { shard, value: got.value.unwrap_or_default(), version }))
            }
            Outcome::KeyNotFound => Ok(None),
            other => Err(unexpected("a read", other)),
        }
    }

    /// Asks for records; gives their shard, and the answers in their order. `key` is that of one of them. `shard` is theirs, as far as is known; fails
    /// when it is no longer that of all. Without it the records are those of the key's shard.
    async fn read(
        &self,
        key: &str,
        shard: Option<i64>,
        gets: Vec<GetRequest>,
        deadline: Instant,
    ) -> Result<(i64, Vec<GetResponse>), StoreError> {
        let request = |mut client: Client, shard, ()| {
            let request = ReadRequest { shard: Some(shard), gets: gets.clone() };
            async move {
                let mut answers = client.read(request).await?.into_inner();
                let mut found = Vec::new();
                while let Some(answer) = answers.message().await? {
                    found.extend(answer.gets);
                }
                Ok((shard, found))
            }
        };
        let keys = || gets.iter().map(|get| get.key.as_str());
        self.call(
            key,
            false,
            deadline,
            |shards| match shard {
                Some(shard) => Ok((shards.of_keys(shard, keys()).ok_or_else(resharded)?, ())),
                None => Ok((shards.of_key(key), ())),
            },
            request,
        )
        .await
    }

    /// The names of a node's children, sorted: of all shards.
    pub(super) async fn children(&self, path: &str, deadline: Instant) -> Result<Vec<String>, StoreError> {
        let range = range_below(path);
        let permit = timeout_at(deadline, self.listings.acquire()).await;
        // The semaphore is never closed.
        let _permit = permit.map_err(|_| self.unreachable())?.map_err(|_| StoreError::Closed)?;
        let listing = Listing::default();
        let mut names = Vec::new();
        let list = |shard| self.list(path, shard, &range, &listing, usize::MAX, deadline);
        for part in self.on_all(deadline, list).await? {
            names.append(&mut part.into_names());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether a node has children. No more than one name of a shard is held.
    pub(super) async fn has_children(&self, path: &str, deadline: Instant) -> Result<bool, StoreError> {
        let (range, listing) = (range_below(path), Listing::default());
        let list = |shard| self.list(path, shard, &range, &listing, 1, deadline);
        let parts = self.on_all(deadline, list).await?;
        Ok(parts.iter().any(|part| !part.names.is_empty()))
    }

    /// Asks all shards. Keys move when shards are split: one may have been in none of those that were asked, and all are asked again.
    async fn on_all<T, R>(&self, deadline: Instant, ask: impl Fn(i64) -> R) -> Result<Vec<T>, StoreError>
    where
        R: Future<Output = Result<T, StoreError>>,
    {
        loop {
            let shards = self.shards(deadline).await?;
            let asked = stream::iter(shards.ids().map(&ask)).buffer_unordered(ASKED_SHARDS_MAX);
            let answers = asked.try_collect().await;
            if self.shards(deadline).await?.are_those_of(&shards) {
                return answers;
            }
            if Instant::now() >= deadline {
                return Err(self.unreachable());
            }
        }
    }

    /// Returns once reads see all that was written before. A leader that was deposed and does not know it goes on to answer reads. It cannot
    /// complete a write, be it one of nothing, because its followers do not acknowledge it.
    pub(super) async fn sync(&self, path: &str, deadline: Instant) -> Result<(), StoreError> {
        let request = |mut client: Client, shard, ()| {
            let write = WriteRequest { shard: Some(shard), ..WriteRequest::default() };
            async move { client.write(write).await.map(drop) }
        };
        // It may be repeated whatever became of it.
        let route_to = |shard| {
            self.call(
                path,
                false,
                deadline,
                move |shards| Ok((shards.get(shard).ok_or_else(resharded)?, ())),
                request,
            )
        };
        self.on_all(deadline, route_to).await.map(drop)
    }

    /// The names below a node in one shard, the first `count_max` of them.
    async fn list<'a>(
        &self,
        path: &str,
        shard: i64,
        range: &Range<String>,
        listing: &'a Listing,
        count_max: usize,
        deadline: Instant,
    ) -> Result<Part<'a>, StoreError> {
        let request = |mut client: Client, shard, ()| {
            let request = ListRequest {
                shard: Some(shard),
                start_inclusive: range.start.clone(),
                end_exclusive: range.end.clone(),
                ..ListRequest::default()
            };
            async move {
                let mut answers = client.list(request).await?.into_inner();
                let mut part = listing.part();
                while let Some(answer) = answers.message().await? {
                    for key in answer.keys {
                        // The record of the root, which sequential children of it make, has an empty name.
                        let name = key.strip_prefix(&range.start).unwrap_or_default();
                        if part.names.len() == count_max {
                            return Ok(part);
                        }
                        if !name.is_empty() && !part.push(name) {
                            return Err(Status::out_of_range(format!(
                                "more than {LIST_SIZE_BYTES_MAX} bytes of names"
                            )));
                        }
                    }
                }
                Ok(part)
            }
        };
        self.call(path, false, deadline, |shards| Ok((shards.get(shard).ok_or_else(resharded)?, ())), request)
            .await
    }

    /// Writes a record for `owner`, whose session and identity it gets.
    pub(super) async fn put(
        &self,
        record: PutRequest,
        owner: Owner<'_>,
        deadline: Instant,
    ) -> Result<Put, StoreError> {
        let key = record.key.clone();
        let request = |mut client: Client, shard, session_id| {
            let puts = vec![PutRequest { session_id, client_identity: owner.identity(), ..record.clone() }];
            let write = WriteRequest { shard: Some(shard), puts, ..WriteRequest::default() };
            async move { Ok(client.write(write).await?.into_inner().puts.pop()) }
        };
        let sent = self.call(
            &key,
            true,
            deadline,
            |shards| {
                // Sessions are numbered by each shard: that of another one may be another client's there.
                let shard = shards.of_key(&key);
                Ok((shard, owner.session_in(shard.id)?))
            },
            request,
        );
        let answer = match sent.await {
            Err(StoreError::SessionExpired) => return Ok(Put::NoSession),
            answer => answer?,
        };
        let put = answer.ok_or_else(|| StoreError::Protocol("a write without an answer".to_owned()))?;
        match outcome_of(put.status)? {
            Outcome::Ok => put
                .version
                .map(Put::Done)
                .ok_or_else(|| StoreError::Protocol("a write without a version".to_owned())),
            Outcome::UnexpectedVersionId => Ok(Put::OtherVersion),
            Outcome::SessionDoesNotExist => Ok(Put::NoSession),
            other @ Outcome::KeyNotFound => Err(unexpected("a write", other)),
        }
    }

    /// The session that a state shows to be open: no request uses one before it is published.
    fn session_shown_by(&self, state: &SessionState) -> Option<Arc<OpenSession>> {
        match state {
            SessionState::Connected(id) | SessionState::Suspended(id) => {
                self.session.borrow().clone().filter(|session| session.id == *id)
            }
            _ => None,
        }
    }

    /// Writes a record of the session that `state` shows.
    pub(super) async fn put_ephemeral(
        &self,
        record: PutRequest,
        deadline: Instant,
    ) -> Result<Put, StoreError> {
        let session = self.wait(&self.state, deadline, |state| self.session_shown_by(state)).await?;
        let put = self.put(record, Owner::Session(&session), deadline).await?;
        if let Put::NoSession = put {
            self.gone.send_replace(Some(session.id.0));
        }
        Ok(put)
    }

    /// Deletes a record.
    pub(super) async fn delete(
        &self,
        key: &str,
        expected: Option<i64>,
        deadline: Instant,
    ) -> Result<Deleted, StoreError> {
        let request = |mut client: Client, shard, ()| {
            let delete = DeleteRequest {
                key: key.to_owned(),
                expected_version_id: expected,
                ..DeleteRequest::default()
            };
            let write = WriteRequest { shard: Some(shard), deletes: vec![delete], ..WriteRequest::default() };
            async move { Ok(client.write(write).await?.into_inner().deletes.pop()) }
        };
        let answer = self.call(key, true, deadline, |shards| Ok((shards.of_key(key), ())), request).await?;
        let deleted =
            answer.ok_or_else(|| StoreError::Protocol("a deletion without an answer".to_owned()))?;
        match outcome_of(deleted.status)? {
            Outcome::Ok => Ok(Deleted::Done),
            Outcome::KeyNotFound => Ok(Deleted::NotThere),
            Outcome::UnexpectedVersionId => Ok(Deleted::OtherVersion),
            other @ Outcome::SessionDoesNotExist => Err(unexpected("a deletion", other)),
        }
    }
}

fn outcome_of(status: i32) -> Result<Outcome, StoreError> {
    Outcome::try_from(status)
        .map_err(|_| StoreError::Protocol(format!("an answer has the unknown status {status}")))
}

/// The keys of a node's children.
fn range_below(path: &str) -> Range<String> {
    keys::children(if path == "/" { "" } else { path })
}

fn resharded() -> StoreError {
    StoreError::Protocol("the shards of the namespace changed meanwhile".to_owned())
}

fn unexpected(what: &str, outcome: Outcome) -> StoreError {
    StoreError::Protocol(format!("{what} ended with {}", outcome.as_str_name()))
}

/// How a server is connected to. `pings` are the silence before one, and how long its answer may take: without them a server that is cut off
/// would leave its streams open for ever.
fn endpoint(
    server: &str,
    connect_timeout: Duration,
    pings: (Duration, Duration),
) -> Result<Endpoint, tonic::transport::Error> {
    let (interval, timeout) = pings;
    let endpoint =
        Endpoint::from_shared(format!("http://{server}"))?.connect_timeout(connect_timeout).tcp_nodelay(true);
    Ok(endpoint.http2_keep_alive_interval(interval).keep_alive_timeout(timeout).keep_alive_while_idle(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_oxia::proto::ShardAssignmentsRequest;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    /// It takes the connection and whatever is sent, and answers nothing; nor does it close the connection.
    #[tokio::test]
    async fn a_connection_ends_when_its_server_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let silent = tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut taken = [0; 4096];
            while connection.read(&mut taken).await.is_ok_and(|count| count > 0) {}
        });
        let pings = (Duration::from_millis(50), Duration::from_millis(50));
        let channel = endpoint(&address, Duration::from_secs(60), pings).unwrap().connect_lazy();
        let mut client = Client::new(channel);
        let asked = client.get_shard_assignments(ShardAssignmentsRequest::default());
        let status = tokio::time::timeout(Duration::from_secs(60), asked).await.expect("its pings end it");
        assert!(matches!(failure_of(&status.unwrap_err()), Failure::Unknown(_)), "it may have been applied");
        silent.abort();
    }

    #[test]
    fn a_session_is_used_once_it_is_published() {
        let shared = Shared::new(&["h:1".to_owned()], "n", Duration::from_secs(2));
        let (session, former) = (Arc::new(OpenSession::new()), OpenSession::new());
        shared.session.send_replace(Some(session.clone()));
        for state in
            [SessionState::Connecting, SessionState::Connected(former.id), SessionState::Expired(former.id)]
        {
            assert_eq!(shared.session_shown_by(&state), None, "{state:?}");
        }
        for state in [SessionState::Connected(session.id), SessionState::Suspended(session.id)] {
            assert_eq!(shared.session_shown_by(&state), Some(session.clone()), "{state:?}");
        }
    }

    #[test]
    fn a_listing_is_bounded_over_all_shards_with_what_names_take_beside_their_bytes() {
        let listing = Listing::default();
        let fill = |name: &str| {
            let mut part = listing.part();
            while part.push(name) {}
            part
        };
        // Small names count, too.
        let small = fill("n");
        assert_eq!(small.names.len(), LIST_SIZE_BYTES_MAX / (1 + LIST_NAME_OVERHEAD_BYTES));
        assert!(!listing.part().push("in another shard"));
        // An attempt that failed counts no more.
        drop(small);
        assert_eq!(listing.size_bytes.load(Ordering::Relaxed), 0);
        let large = fill(&"n".repeat(LIST_SIZE_BYTES_MAX / 2));
        assert_eq!(large.names.len(), 1);
        assert_eq!(large.into_names().len(), 1);
        assert!(
            !listing.part().push(&"n".repeat(LIST_SIZE_BYTES_MAX / 2)),
            "names that were taken out count"
        );
    }

    #[test]
    fn a_record_gets_the_session_of_the_shard_that_it_is_sent_to() {
        let mut session = OpenSession::new();
        session.of_shards = [(0, 17), (1, 4)].into();
        let of_session = Owner::Session(&session);
        assert_eq!((of_session.session_in(0), of_session.session_in(1)), (Ok(Some(17)), Ok(Some(4))));
        assert_eq!(of_session.session_in(2), Err(StoreError::SessionExpired));
        let version = proto::Version { session_id: Some(17), ..proto::Version::default() };
        let stored = Stored { shard: 0, value: Bytes::new(), version };
        assert_eq!(Owner::Former(&stored).session_in(0), Ok(Some(17)));
        assert_eq!(Owner::Former(&stored).session_in(1), Err(StoreError::SessionExpired));
        assert_eq!(Owner::None.session_in(7), Ok(None));
    }
}
