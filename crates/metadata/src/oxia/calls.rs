//! Requests: which server each goes to, how long it is tried, and what came of it.
//!
//! # Limits     requests under way: [`REQUESTS_MAX`], others wait for their turn within their time; a listing: [`LIST_SIZE_BYTES_MAX`]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bindery_oxia::keys;
use bindery_oxia::proto::oxia_client_client::OxiaClientClient;
use bindery_oxia::proto::{
    self, DeleteRequest, GetRequest, ListRequest, PutRequest, ReadRequest, Status as Outcome, WriteRequest,
};
use bytes::Bytes;
use futures_util::future::try_join_all;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

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
/// Largest sum of the names below one node. A million children of 20 bytes fit, as with ZooKeeper.
pub const LIST_SIZE_BYTES_MAX: usize = 64 << 20;
/// Pause before a request is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A client of one server.
pub(super) type Client = OxiaClientClient<Channel>;

/// A record.
pub(super) struct Stored {
    /// Empty when it was not asked for.
    pub value: Bytes,
    pub version: proto::Version,
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
    pub watches: parking_lot::Mutex<Watches>,
    /// Changes whenever the notifications of all shards have begun to come in.
    pub live: watch::Sender<u64>,
    is_unclean: AtomicBool,
    faults: parking_lot::Mutex<BTreeMap<String, Fault>>,
    channels: parking_lot::Mutex<BTreeMap<String, Channel>>,
    permits: Semaphore,
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
            watches: parking_lot::Mutex::default(),
            live: watch::Sender::new(0),
            is_unclean: AtomicBool::new(false),
            faults: parking_lot::Mutex::default(),
            channels: parking_lot::Mutex::default(),
            permits: Semaphore::new(REQUESTS_MAX),
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
                let endpoint = Endpoint::from_shared(format!("http://{server}")).map_err(not_an_address)?;
                let channel = endpoint.connect_timeout(self.timeout / 2).tcp_nodelay(true).connect_lazy();
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

    /// Sends a request to the leader of a shard, which `route` names, until one answers ([`super`], invariant 1).
    async fn call<T, R>(
        &self,
        is_write: bool,
        deadline: Instant,
        route: impl Fn(&Shards) -> Option<&Shard>,
        request: impl Fn(Client, i64) -> R,
    ) -> Result<T, StoreError>
    where
        R: Future<Output = Result<T, Status>>,
    {
        let permit = timeout_at(deadline, self.permits.acquire()).await;
        // Held to the end. The semaphore is never closed.
        let _permit = permit.map_err(|_| self.unreachable())?.map_err(|_| StoreError::Closed)?;
        loop {
            let shards = self.shards(deadline).await?;
            let Some(shard) = route(&shards) else {
                return Err(StoreError::Protocol("the shards of the namespace changed meanwhile".to_owned()));
            };
            // Half of the time for one attempt: a server that is silent must not use up what another one needs.
            let attempt_end = deadline.min(Instant::now() + self.timeout / 2);
            let outcome = match self.client(&shard.leader) {
                Ok(client) => timeout_at(attempt_end, request(client, shard.id)).await,
                Err(failure) => Ok(Err(failure_status(&failure))),
            };
            let failure = match outcome {
                Ok(Ok(answer)) => {
                    self.faults.lock().remove(&shard.leader);
                    return Ok(answer);
                }
                Ok(Err(status)) => failure_of(&status),
                Err(_) => Failure::Unknown(format!("no answer within {:?}", self.timeout / 2)),
            };
            tracing::debug!(
                server = shard.leader,
                shard = shard.id,
                ?failure,
                "a request to the metadata store"
            );
            match failure {
                Failure::NoSession => return Err(StoreError::SessionExpired),
                Failure::Refused(why) | Failure::NotOxia(why) => return Err(StoreError::Protocol(why)),
                Failure::NoNamespace => {
                    return Err(StoreError::Protocol(format!(
                        "there is no namespace {:?} any more",
                        self.namespace
                    )));
                }
                Failure::Unknown(why) => {
                    self.forget(&shard.leader);
                    self.note_fault(&shard.leader, Fault::Other(why));
                    if is_write {
                        return Err(StoreError::ConnectionLoss);
                    }
                }
                Failure::NotSent(why) | Failure::NotHere(why) => {
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
        let request = |mut client: Client, shard| {
            let get = GetRequest { key: key.to_owned(), include_value: with_value, ..GetRequest::default() };
            async move {
                let answers = client.read(ReadRequest { shard: Some(shard), gets: vec![get] }).await?;
                let mut answers = answers.into_inner();
                while let Some(mut answer) = answers.message().await? {
                    if let Some(got) = answer.gets.pop() {
                        return Ok(Some(got));
                    }
                }
                Ok(None)
            }
        };
        let answer = self.call(false, deadline, |shards| Some(shards.of_key(key)), request).await?;
        let got = answer.ok_or_else(|| StoreError::Protocol("a read without an answer".to_owned()))?;
        match outcome_of(got.status)? {
            Outcome::Ok => {
                let version = got
                    .version
                    .ok_or_else(|| StoreError::Protocol("a record without a version".to_owned()))?;
                Ok(Some(Stored { value: got.value.unwrap_or_default(), version }))
            }
            Outcome::KeyNotFound => Ok(None),
            other => Err(unexpected("a read", other)),
        }
    }

    /// The names of a node's children, sorted: of all shards.
    pub(super) async fn children(&self, path: &str, deadline: Instant) -> Result<Vec<String>, StoreError> {
        let parent = if path == "/" { "" } else { path };
        let range = keys::children(parent);
        loop {
            let shards = self.shards(deadline).await?;
            let lists = shards.ids().map(|shard| self.list(shard, &range.start, &range.end, deadline));
            let listed = try_join_all(lists).await;
            // Keys move when shards are split: one may have been in none of those that were asked.
            let is_whole = self.shards(deadline).await?.are_those_of(&shards);
            if !is_whole {
                continue;
            }
            let mut keys = listed?.concat();
            keys.sort_unstable();
            // The record of the root, which sequential children of it make, has an empty name.
            let names = keys.iter().filter_map(|key| key.strip_prefix(&range.start));
            return Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect());
        }
    }

    async fn list(
        &self,
        shard: i64,
        start: &str,
        end: &str,
        deadline: Instant,
    ) -> Result<Vec<String>, StoreError> {
        let request = |mut client: Client, shard| {
            let request = ListRequest {
                shard: Some(shard),
                start_inclusive: start.to_owned(),
                end_exclusive: end.to_owned(),
                ..ListRequest::default()
            };
            async move {
                let (mut answers, mut keys, mut size) =
                    (client.list(request).await?.into_inner(), Vec::new(), 0);
                while let Some(answer) = answers.message().await? {
                    size += answer.keys.iter().map(String::len).sum::<usize>();
                    if size > LIST_SIZE_BYTES_MAX {
                        return Err(Status::out_of_range(format!(
                            "more than {LIST_SIZE_BYTES_MAX} bytes of keys"
                        )));
                    }
                    keys.extend(answer.keys);
                }
                Ok(keys)
            }
        };
        self.call(false, deadline, |shards| shards.get(shard), request).await
    }

    /// Writes a record.
    pub(super) async fn put(&self, record: PutRequest, deadline: Instant) -> Result<Put, StoreError> {
        let key = record.key.clone();
        let request = |mut client: Client, shard| {
            let puts = vec![record.clone()];
            let write = WriteRequest { shard: Some(shard), puts, ..WriteRequest::default() };
            async move { Ok(client.write(write).await?.into_inner().puts.pop()) }
        };
        let answer = self.call(true, deadline, |shards| Some(shards.of_key(&key)), request).await?;
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

    /// Writes a record of the session that `state` shows.
    pub(super) async fn put_ephemeral(
        &self,
        record: PutRequest,
        deadline: Instant,
    ) -> Result<Put, StoreError> {
        let session = self.wait(&self.session, deadline, Clone::clone).await?;
        let shards = self.shards(deadline).await?;
        let Some(own) = session.of_shard(shards.of_key(&record.key).id) else {
            // The keeper learns it, too, and opens another session.
            return Err(StoreError::SessionExpired);
        };
        let record =
            PutRequest { session_id: Some(own), client_identity: Some(session.identity()), ..record };
        let put = self.put(record, deadline).await?;
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
        let request = |mut client: Client, shard| {
            let delete = DeleteRequest {
                key: key.to_owned(),
                expected_version_id: expected,
                ..DeleteRequest::default()
            };
            let write = WriteRequest { shard: Some(shard), deletes: vec![delete], ..WriteRequest::default() };
            async move { Ok(client.write(write).await?.into_inner().deletes.pop()) }
        };
        let answer = self.call(true, deadline, |shards| Some(shards.of_key(key)), request).await?;
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

fn unexpected(what: &str, outcome: Outcome) -> StoreError {
    StoreError::Protocol(format!("{what} ended with {}", outcome.as_str_name()))
}

/// For an address that cannot be one.
fn failure_status(failure: &Failure) -> Status {
    let Failure::NotSent(why) = failure else { return Status::unknown("") };
    Status::from_error(Box::new(tonic::ConnectError(why.clone().into())))
}
