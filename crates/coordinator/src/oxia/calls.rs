//! The calls of the service: what each asks of the core, and how its answers are cut into messages.

use super::Caller;
use crate::core::oxia::{Failure, KeyRange, Page, SHARD};
use crate::core::{Core, Now, Output};
use crate::shared::{Progress, Shared};
use crate::tree::acl::Identity;
use bindery_oxia::NAMESPACE_DEFAULT;
use bindery_oxia::proto::oxia_client_server::OxiaClient;
use bindery_oxia::proto::{
    CloseSessionRequest, CloseSessionResponse, CreateSessionRequest, CreateSessionResponse, GetRequest,
    GetSequenceUpdatesRequest, GetSequenceUpdatesResponse, Int32HashRange, KeepAliveResponse, ListRequest,
    ListResponse, NamespaceShardsAssignment, NotificationBatch, NotificationsRequest, RangeScanRequest,
    RangeScanResponse, ReadRequest, ReadResponse, SessionHeartbeat, ShardAssignment, ShardAssignments,
    ShardAssignmentsRequest, ShardKeyRouter, WriteRequest, WriteResponse, shard_assignment,
};
use bindery_oxia::status::Reason;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use prost::Message;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

/// Bytes of a message of several records, keys or batches; one that is larger goes alone.
const MESSAGE_BYTES: usize = 64 << 10;
/// Names of the metadata of a stream of writes.
const METADATA_SHARD: &str = "shard-id";
const METADATA_NAMESPACE: &str = "namespace";

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The calls of one connection.
#[derive(Clone)]
pub(super) struct Calls {
    shared: Arc<Shared>,
    identities: Arc<[Identity]>,
}

impl Calls {
    pub(super) fn new(shared: Arc<Shared>, identities: Arc<[Identity]>) -> Calls {
        Calls { shared, identities }
    }

    /// Lets the core act; returns when everything that its answer shows is durable (invariant 1).
    async fn perform<T>(
        &self,
        act: impl FnOnce(&mut Core, Now, &mut Vec<Output>) -> Result<T, Failure>,
    ) -> Result<T, Status> {
        let mut progress = self.shared.progress();
        let (done, batch) = self.shared.perform(act).ok_or_else(unavailable)?;
        durable(&mut progress, batch).await?;
        done.map_err(|failure| status_of(&failure))
    }

    /// As [`Calls::perform`], for what has to be written: it waits until it may (invariant 4).
    async fn write<T>(
        &self,
        act: impl FnOnce(&mut Core, Now, &mut Vec<Output>) -> Result<T, Failure>,
    ) -> Result<T, Status> {
        let mut progress = self.shared.progress();
        while self.shared.is_behind() {
            progress.changed().await.map_err(|_| unavailable())?;
        }
        self.perform(act).await
    }

    /// As [`Calls::perform`], for what cannot fail by itself.
    async fn look<T>(&self, look: impl FnOnce(&Core) -> T) -> Result<T, Status> {
        self.perform(|core, _, _| Ok(look(core))).await
    }

    /// The pages of a range, one message each.
    fn pages<T: Message + Send + 'static, I: Send + 'static>(
        &self,
        caller: Caller,
        range: KeyRange,
        page: impl Fn(&Core, &[Identity], &KeyRange) -> Page<I> + Send + Sync + Copy + 'static,
        message: impl Fn(Vec<I>) -> T + Send + Sync + Copy + 'static,
    ) -> Answers<T> {
        let calls = self.clone();
        Box::pin(stream::try_unfold((Some(range), caller), move |(range, caller)| {
            let calls = calls.clone();
            async move {
                caller.account.answers(0);
                let Some(range) = range else { return Ok(None) };
                let identities = calls.identities.clone();
                let Page { items, rest } = calls.look(|core| page(core, &identities, &range)).await?;
                if items.is_empty() {
                    return Ok(None);
                }
                let message = message(items);
                caller.account.answers(message.encoded_len());
                Ok(Some((message, (rest, caller))))
            }
        }))
    }
}

#[tonic::async_trait]
impl OxiaClient for Calls {
    type GetShardAssignmentsStream = Answers<ShardAssignments>;
    type WriteStreamStream = Answers<WriteResponse>;
    type ReadStream = Answers<ReadResponse>;
    type ListStream = Answers<ListResponse>;
    type RangeScanStream = Answers<RangeScanResponse>;
    type GetSequenceUpdatesStream = Answers<GetSequenceUpdatesResponse>;
    type GetNotificationsStream = Answers<NotificationBatch>;

    async fn get_shard_assignments(
        &self,
        request: Request<ShardAssignmentsRequest>,
    ) -> Result<Response<Self::GetShardAssignmentsStream>, Status> {
        let caller = caller(&request)?;
        let namespace = request.into_inner().namespace;
        if !matches!(namespace.as_str(), "" | NAMESPACE_DEFAULT) {
            return Err(Reason::NamespaceNotFound.status(""));
        }
        let assignment = ShardAssignment {
            shard: SHARD,
            leader: caller.authority.to_string(),
            shard_boundaries: Some(shard_assignment::ShardBoundaries::Int32HashRange(Int32HashRange {
                min_hash_inclusive: 0,
                max_hash_inclusive: u32::MAX,
            })),
        };
        let assignments = NamespaceShardsAssignment {
            assignments: vec![assignment],
            shard_key_router: ShardKeyRouter::Xxhash3.into(),
        };
        let namespaces = BTreeMap::from([(NAMESPACE_DEFAULT.to_owned(), assignments)]);
        let all = ShardAssignments { namespaces, allowed_authorities: Vec::new() };
        // Nothing ever changes; the end of the stream would make the client ask again.
        Ok(Response::new(Box::pin(stream::iter([Ok(all)]).chain(stream::pending()))))
    }

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        check_shard(request.shard)?;
        let identities = self.identities.clone();
        let written = self.write(|core, now, out| core.oxia_write(now, &identities, request, out)).await;
        caller.account.executed();
        written.map(Response::new)
    }

    async fn write_stream(
        &self,
        request: Request<Streaming<WriteRequest>>,
    ) -> Result<Response<Self::WriteStreamStream>, Status> {
        let caller = caller(&request)?;
        let named = |name| request.metadata().get(name).and_then(|value| value.to_str().ok());
        let shard = named(METADATA_SHARD)
            .ok_or_else(|| Status::invalid_argument("shard-id is not in the metadata"))?;
        check_shard(Some(shard.parse().map_err(|_| Status::invalid_argument("shard-id is no number"))?))?;
        if named(METADATA_NAMESPACE).is_none() {
            return Err(Status::invalid_argument("namespace is not in the metadata"));
        }
        let progress = self.shared.progress();
        let writes = Writes {
            calls: self.clone(),
            caller,
            requests: Some(request.into_inner()),
            progress,
            answers: VecDeque::new(),
            bytes: 0,
        };
        Ok(Response::new(Box::pin(stream::try_unfold(writes, Writes::next))))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        check_shard(request.shard)?;
        let calls = self.clone();
        let gets = request.gets.into_iter();
        let reads = stream::try_unfold((gets, caller), move |(mut gets, caller)| {
            let calls = calls.clone();
            async move {
                caller.account.answers(0);
                let identities = calls.identities.clone();
                let found = calls.perform(|core, _, _| next_reads(core, &identities, &mut gets)).await?;
                if found.is_empty() {
                    return Ok(None);
                }
                let message = ReadResponse { gets: found };
                caller.account.answers(message.encoded_len());
                Ok(Some((message, (gets, caller))))
            }
        });
        Ok(Response::new(Box::pin(reads)))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        check_shard(request.shard)?;
        let (start, end) = (request.start_inclusive, request.end_exclusive);
        let index = request.secondary_index_name.as_deref();
        let range = KeyRange::new(start, end, request.include_internal_keys, index);
        let pages = self.pages(
            caller,
            range,
            |core, identities, range| core.oxia_list(identities, range, MESSAGE_BYTES),
            |keys| ListResponse { keys },
        );
        Ok(Response::new(pages))
    }

    async fn range_scan(
        &self,
        request: Request<RangeScanRequest>,
    ) -> Result<Response<Self::RangeScanStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        check_shard(request.shard)?;
        let (start, end) = (request.start_inclusive, request.end_exclusive);
        let index = request.secondary_index_name.as_deref();
        let range = KeyRange::new(start, end, request.include_internal_keys, index);
        let pages = self.pages(
            caller,
            range,
            |core, identities, range| core.oxia_scan(identities, range, MESSAGE_BYTES),
            |records| RangeScanResponse { records },
        );
        Ok(Response::new(pages))
    }

    async fn get_sequence_updates(
        &self,
        request: Request<GetSequenceUpdatesRequest>,
    ) -> Result<Response<Self::GetSequenceUpdatesStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        check_shard(Some(request.shard))?;
        let calls = self.clone();
        let state = (self.shared.progress(), String::new(), caller);
        let updates = stream::try_unfold(state, move |(mut progress, told, caller)| {
            let (calls, prefix) = (calls.clone(), request.key.clone());
            async move {
                loop {
                    // Marked as seen before the look, so that no later change is slept through.
                    progress.borrow_and_update();
                    let highest = calls.look(|core| core.oxia_highest_in_sequence(&prefix)).await?;
                    // Only the newest one counts, and none goes back.
                    if let Some(highest) = highest.filter(|highest| *highest > told) {
                        let message = GetSequenceUpdatesResponse { highest_sequence_key: highest.clone() };
                        caller.account.answers(message.encoded_len());
                        return Ok(Some((message, (progress, highest, caller))));
                    }
                    caller.account.answers(0);
                    progress.changed().await.map_err(|_| unavailable())?;
                }
            }
        });
        Ok(Response::new(Box::pin(updates)))
    }

    async fn get_notifications(
        &self,
        request: Request<NotificationsRequest>,
    ) -> Result<Response<Self::GetNotificationsStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        check_shard(Some(request.shard))?;
        let subscription = Subscription {
            calls: self.clone(),
            caller,
            progress: self.shared.progress(),
            offset: request.start_offset_exclusive,
            batches: VecDeque::new(),
        };
        Ok(Response::new(Box::pin(stream::try_unfold(subscription, Subscription::next))))
    }

    async fn create_session(
        &self,
        request: Request<CreateSessionRequest>,
    ) -> Result<Response<CreateSessionResponse>, Status> {
        let request = request.into_inner();
        check_shard(Some(request.shard))?;
        let (timeout_ms, identity) = (request.session_timeout_ms, request.client_identity);
        let created = self.write(|core, now, _| core.oxia_create_session(now, timeout_ms, &identity)).await;
        created.map(|session_id| Response::new(CreateSessionResponse { session_id }))
    }

    async fn keep_alive(
        &self,
        request: Request<SessionHeartbeat>,
    ) -> Result<Response<KeepAliveResponse>, Status> {
        let request = request.into_inner();
        check_shard(Some(request.shard))?;
        self.perform(|core, now, _| core.oxia_keep_alive(now, request.session_id)).await?;
        Ok(Response::new(KeepAliveResponse {}))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let request = request.into_inner();
        check_shard(Some(request.shard))?;
        self.write(|core, now, out| core.oxia_close_session(now, request.session_id, out)).await?;
        Ok(Response::new(CloseSessionResponse {}))
    }
}

/// A stream of writes: executed as they come, answered in their order as they become durable.
struct Writes {
    calls: Calls,
    caller: Caller,
    /// `None` when no more come.
    requests: Option<Streaming<WriteRequest>>,
    progress: watch::Receiver<Progress>,
    /// Each with the batch that it waits for.
    answers: VecDeque<(u64, Result<WriteResponse, Status>)>,
    /// Of the answers.
    bytes: usize,
}

impl Writes {
    /// The next answer. A dropped future leaves requests unread or answers unsent; neither is acknowledged.
    async fn next(mut self) -> Result<Option<(WriteResponse, Writes)>, Status> {
        self.caller.account.answers(self.bytes);
        loop {
            let now = self.progress.borrow_and_update().clone();
            let is_first_durable = self.answers.front().is_some_and(|(batch, _)| *batch <= now.durable);
            if is_first_durable && let Some((_, answer)) = self.answers.pop_front() {
                let answer = answer?;
                self.bytes -= answer.encoded_len();
                return Ok(Some((answer, self)));
            }
            if now.failure.is_some() {
                return Err(unavailable());
            }
            let config = &self.calls.shared.config;
            let is_full = self.answers.len() >= config.replies_max || self.bytes >= config.replies_bytes_max;
            let may_read = !is_full && !self.calls.shared.is_behind();
            let request = match &mut self.requests {
                None if self.answers.is_empty() => return Ok(None),
                Some(requests) if may_read => {
                    tokio::select! {
                        request = requests.message() => request?,
                        changed = self.progress.changed() => {
                            changed.map_err(|_| unavailable())?;
                            continue;
                        }
                    }
                }
                _ => {
                    self.progress.changed().await.map_err(|_| unavailable())?;
                    continue;
                }
            };
            match request {
                Some(request) => self.execute(request)?,
                None => self.requests = None,
            }
        }
    }

    fn execute(&mut self, request: WriteRequest) -> Result<(), Status> {
        let identities = self.calls.identities.clone();
        let act =
            |core: &mut Core, now, out: &mut Vec<Output>| core.oxia_write(now, &identities, request, out);
        let (written, batch) = self.calls.shared.perform(act).ok_or_else(unavailable)?;
        self.caller.account.executed();
        self.bytes += written.as_ref().map_or(0, Message::encoded_len);
        self.caller.account.answers(self.bytes);
        self.answers.push_back((batch, written.map_err(|failure| status_of(&failure))));
        Ok(())
    }
}

/// A stream of notifications.
struct Subscription {
    calls: Calls,
    caller: Caller,
    progress: watch::Receiver<Progress>,
    /// Of the last batch that was read; `None` before the first one, when the client has named none.
    offset: Option<i64>,
    /// Read, and not given yet.
    batches: VecDeque<Bytes>,
}

impl Subscription {
    async fn next(mut self) -> Result<Option<(NotificationBatch, Subscription)>, Status> {
        self.caller.account.answers(0);
        let Some(mut offset) = self.offset else {
            // The first one is empty: it says where the stream begins.
            let offset = self.calls.look(Core::oxia_offset).await?;
            self.offset = Some(offset);
            let first = NotificationBatch { shard: SHARD, offset, ..NotificationBatch::default() };
            return Ok(Some((first, self)));
        };
        while self.batches.is_empty() {
            // Marked as seen before the look, so that no later change is slept through.
            self.progress.borrow_and_update();
            for (at, batch) in self.calls.look(|core| core.oxia_notifications(offset, MESSAGE_BYTES)).await? {
                offset = at;
                self.batches.push_back(batch);
            }
            if self.batches.is_empty() {
                self.progress.changed().await.map_err(|_| unavailable())?;
            }
        }
        self.offset = Some(offset);
        let Some(encoded) = self.batches.pop_front() else { return Ok(None) };
        self.caller.account.answers(encoded.len());
        let batch =
            NotificationBatch::decode(encoded).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some((batch, self)))
    }
}

/// The answers of the next message.
fn next_reads(
    core: &Core,
    identities: &[Identity],
    gets: &mut impl Iterator<Item = GetRequest>,
) -> Result<Vec<bindery_oxia::proto::GetResponse>, Failure> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    while bytes < MESSAGE_BYTES
        && let Some(get) = gets.next()
    {
        let answer = core.oxia_get(identities, &get)?;
        bytes += answer.encoded_len();
        found.push(answer);
    }
    Ok(found)
}

/// Waits until a batch is durable.
async fn durable(progress: &mut watch::Receiver<Progress>, batch: u64) -> Result<(), Status> {
    let reached = progress.wait_for(|progress| progress.durable >= batch || progress.failure.is_some()).await;
    match reached {
        Ok(progress) if progress.durable >= batch => Ok(()),
        Ok(_) | Err(_) => Err(unavailable()),
    }
}

fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::internal("the call has no connection"))
}

fn check_shard(shard: Option<i64>) -> Result<(), Status> {
    match shard {
        Some(SHARD) => Ok(()),
        Some(_) => Err(Reason::ShardNotFound.status("")),
        None => Err(Status::invalid_argument("shard id is required")),
    }
}

fn unavailable() -> Status {
    Reason::ResourceUnavailable.status("")
}

fn status_of(failure: &Failure) -> Status {
    match failure {
        Failure::Invalid(why) => Status::invalid_argument(*why),
        Failure::NotAllowed => {
            Status::permission_denied("access rules of a ZooKeeper client do not allow it")
        }
        Failure::NoRoom => Status::resource_exhausted("the coordinator's tree is full"),
        Failure::TooManySessions => Status::resource_exhausted("there are as many sessions as may be"),
        Failure::SessionTimeout(ms) => Reason::InvalidSessionTimeout.status(&format!("timeoutMs={ms}")),
        Failure::NoSession => Reason::SessionNotFound.status(""),
    }
}
