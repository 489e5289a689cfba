//! The calls of the service: what each asks of the core, and how its answers are cut into messages.

use super::Caller;
use crate::core::oxia::{Failure, KeyRange, Page, SHARD, parts, readable};
use crate::core::{Core, Now, Output};
use crate::requests::Kind;
use crate::shared::{Progress, Shared};
use crate::tree::acl::Identity;
use bindery_oxia::NAMESPACE_DEFAULT;
use bindery_oxia::proto::oxia_client_server::OxiaClient;
use bindery_oxia::proto::{
    CloseSessionRequest, CloseSessionResponse, CreateSessionRequest, CreateSessionResponse,
    DeleteRangeRequest, DeleteRangeResponse, DeleteRequest, DeleteResponse, GetRequest,
    GetSequenceUpdatesRequest, GetSequenceUpdatesResponse, Int32HashRange, KeepAliveResponse, ListRequest,
    ListResponse, NamespaceShardsAssignment, Notification, NotificationBatch, NotificationsRequest,
    PutRequest, PutResponse, RangeScanRequest, RangeScanResponse, ReadRequest, ReadResponse, SecondaryIndex,
    SessionHeartbeat, ShardAssignment, ShardAssignments, ShardAssignmentsRequest, ShardKeyRouter,
    WriteRequest, WriteResponse, shard_assignment,
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
/// A frame of HTTP/2.
const FRAME_BYTES: usize = 16 << 10;
/// Notifications of a message. Clients take 4 MiB unless told otherwise.
const NOTIFICATIONS_BYTES_MAX: usize = 1 << 20;
/// Answers of a message of reads: everybody waits while they are looked up.
const MESSAGE_GETS_MAX: usize = 100;
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

    /// As [`Calls::perform`], for what has to be written: it waits until it may.
    async fn write<T>(
        &self,
        act: impl FnOnce(&mut Core, Now, &mut Vec<Output>) -> Result<T, Failure>,
    ) -> Result<T, Status> {
        self.may_write().await?;
        self.perform(act).await
    }

    /// Waits until more may be written (invariant 4).
    async fn may_write(&self) -> Result<(), Status> {
        let mut progress = self.shared.progress();
        loop {
            // Marked as seen before the look, so that no later change is slept through.
            if progress.borrow_and_update().failure.is_some() {
                return Err(unavailable());
            }
            if !self.shared.is_behind() {
                return Ok(());
            }
            progress.changed().await.map_err(|_| unavailable())?;
        }
    }

    /// As [`Calls::perform`], for large answers that cannot fail by themselves: they are counted while they wait (invariant 2).
    async fn look<T>(
        &self,
        caller: &Caller,
        look: impl FnOnce(&Core) -> T,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Result<T, Status> {
        let mut progress = self.shared.progress();
        let (found, batch) = self.shared.perform(|core, _, _| look(core)).ok_or_else(unavailable)?;
        caller.account.waits(bytes(&found));
        durable(&mut progress, batch).await?;
        caller.account.waits(0);
        Ok(found)
    }

    /// Executes a write; gives the batch that has to be durable before its answer is given.
    fn execute(
        &self,
        caller: &Caller,
        request: WriteRequest,
    ) -> Result<(Result<WriteResponse, Status>, u64), Status> {
        self.shared.requests.count_write(&request);
        let act = |core: &mut Core, now, out: &mut Vec<Output>| {
            core.oxia_write(now, &self.identities, request, out)
        };
        let (written, batch) = self.shared.perform(act).ok_or_else(unavailable)?;
        caller.account.executed();
        Ok((written.map_err(|failure| status_of(&failure)), batch))
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
                let mut range = range;
                while let Some(part) = range {
                    let look = |core: &Core| {
                        let Page { items, rest } = page(core, &calls.identities, &part);
                        let is_empty = items.is_empty();
                        (message(items), is_empty, rest)
                    };
                    let (message, is_empty, rest) =
                        calls.look(&caller, look, |(message, ..)| message.encoded_len()).await?;
                    if !is_empty {
                        return Ok(Some((message, (rest, caller))));
                    }
                    // Nothing of that part is the client's to read.
                    range = rest;
                }
                Ok(None)
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
        self.shared.requests.count(Kind::OxiaSubscription, 1);
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
        caller.account.received(decoded_bytes(&request));
        self.may_write().await?;
        let mut progress = self.shared.progress();
        let (written, batch) = self.execute(&caller, request)?;
        caller.account.waits(written.as_ref().map_or(0, answer_bytes));
        durable(&mut progress, batch).await?;
        caller.account.waits(0);
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
        // The executed request releases all received bytes, also those of the next one, of which a frame may have come.
        caller.account.grows(FRAME_BYTES);
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
        caller.account.received(request.gets.len() * size_of::<GetRequest>());
        self.shared.requests.count(Kind::OxiaGet, request.gets.len());
        let calls = self.clone();
        let gets = request.gets.into_iter();
        let reads = stream::try_unfold((gets, caller), move |(mut gets, caller)| {
            let calls = calls.clone();
            async move {
                let look = |core: &Core| next_reads(core, &calls.identities, &mut gets);
                let bytes = |found: &Result<ReadResponse, _>| found.as_ref().map_or(0, Message::encoded_len);
                let found = calls.look(&caller, look, bytes).await?;
                let message = found.map_err(|failure| status_of(&failure))?;
                Ok((!message.gets.is_empty()).then_some((message, (gets, caller))))
            }
        });
        Ok(Response::new(Box::pin(reads)))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        check_shard(request.shard)?;
        self.shared.requests.count(Kind::OxiaList, 1);
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
        self.shared.requests.count(Kind::OxiaScan, 1);
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
        self.shared.requests.count(Kind::OxiaSubscription, 1);
        let calls = self.clone();
        let state = (self.shared.progress(), String::new(), caller);
        let updates = stream::try_unfold(state, move |(mut progress, told, caller)| {
            let (calls, prefix) = (calls.clone(), request.key.clone());
            async move {
                loop {
                    // Marked as seen before the look, so that no later change is slept through.
                    progress.borrow_and_update();
                    let look = |core: &Core| core.oxia_highest_in_sequence(&calls.identities, &prefix);
                    let highest =
                        calls.look(&caller, look, |highest| highest.as_ref().map_or(0, String::len)).await?;
                    // Only the newest one counts, and none goes back.
                    if let Some(highest) = highest.filter(|highest| *highest > told) {
                        let message = GetSequenceUpdatesResponse { highest_sequence_key: highest.clone() };
                        return Ok(Some((message, (progress, highest, caller))));
                    }
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
        self.shared.requests.count(Kind::OxiaSubscription, 1);
        let subscription = Subscription {
            calls: self.clone(),
            caller,
            progress: self.shared.progress(),
            offset: request.start_offset_exclusive,
            batches: VecDeque::new(),
            bytes: 0,
            parts: VecDeque::new(),
        };
        Ok(Response::new(Box::pin(stream::try_unfold(subscription, Subscription::next))))
    }

    async fn create_session(
        &self,
        request: Request<CreateSessionRequest>,
    ) -> Result<Response<CreateSessionResponse>, Status> {
        let request = request.into_inner();
        check_shard(Some(request.shard))?;
        self.shared.requests.count(Kind::OxiaSession, 1);
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
        self.shared.requests.count(Kind::OxiaKeepAlive, 1);
        self.perform(|core, now, _| core.oxia_keep_alive(now, request.session_id)).await?;
        Ok(Response::new(KeepAliveResponse {}))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let request = request.into_inner();
        check_shard(Some(request.shard))?;
        self.shared.requests.count(Kind::OxiaSession, 1);
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
        self.caller.account.waits(self.bytes);
        loop {
            let now = self.progress.borrow_and_update().clone();
            let is_first_durable = self.answers.front().is_some_and(|(batch, _)| *batch <= now.durable);
            if is_first_durable && let Some((_, answer)) = self.answers.pop_front() {
                let answer = answer?;
                self.bytes -= answer_bytes(&answer);
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
        let (written, batch) = self.calls.execute(&self.caller, request)?;
        self.bytes += written.as_ref().map_or(0, answer_bytes);
        self.caller.account.waits(self.bytes);
        self.answers.push_back((batch, written));
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
    /// Of the batches.
    bytes: usize,
    /// The rest of a batch that is sent in parts.
    parts: VecDeque<NotificationBatch>,
}

impl Subscription {
    async fn next(mut self) -> Result<Option<(NotificationBatch, Subscription)>, Status> {
        let Some(mut offset) = self.offset else {
            // The first one is empty: it says where the stream begins.
            let offset = self.calls.look(&self.caller, Core::oxia_offset, |_| 0).await?;
            self.offset = Some(offset);
            let first = NotificationBatch { shard: SHARD, offset, ..NotificationBatch::default() };
            return Ok(Some((first, self)));
        };
        loop {
            if let Some(part) = self.parts.pop_front() {
                let left: usize = self.parts.iter().map(notification_bytes).sum();
                self.caller.account.waits(self.bytes + left);
                self.offset = Some(offset);
                return Ok(Some((part, self)));
            }
            if let Some(encoded) = self.batches.pop_front() {
                self.bytes -= encoded.len();
                let batch = readable(&encoded, &self.calls.identities);
                // Of some the client may know nothing.
                if let Some(batch) = batch.map_err(|error| Status::internal(error.to_string()))? {
                    self.parts = parts(batch, NOTIFICATIONS_BYTES_MAX);
                }
                continue;
            }
            // Marked as seen before the look, so that no later change is slept through.
            self.progress.borrow_and_update();
            let look = |core: &Core| core.oxia_notifications(offset, MESSAGE_BYTES);
            let bytes =
                |batches: &Vec<(i64, Bytes)>| batches.iter().map(|(_, batch)| batch.len()).sum::<usize>();
            let found = self.calls.look(&self.caller, look, bytes).await?;
            let Some((last, _)) = found.last() else {
                self.progress.changed().await.map_err(|_| unavailable())?;
                continue;
            };
            offset = *last;
            self.bytes = bytes(&found);
            self.batches.extend(found.into_iter().map(|(_, batch)| batch));
        }
    }
}

/// The answers of the next message.
fn next_reads(
    core: &Core,
    identities: &[Identity],
    gets: &mut impl Iterator<Item = GetRequest>,
) -> Result<ReadResponse, Failure> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    for get in gets.take(MESSAGE_GETS_MAX) {
        let answer = core.oxia_get(identities, &get)?;
        bytes += answer.encoded_len();
        found.push(answer);
        if bytes >= MESSAGE_BYTES {
            break;
        }
    }
    Ok(ReadResponse { gets: found })
}

/// An estimate of the memory that the operations of a request take besides their bytes.
fn decoded_bytes(request: &WriteRequest) -> usize {
    let index_keys: usize = request.puts.iter().map(|put| put.secondary_indexes.len()).sum();
    let numbers: usize = request.puts.iter().map(|put| put.sequence_key_delta.len()).sum();
    request.puts.len() * size_of::<PutRequest>()
        + request.deletes.len() * size_of::<DeleteRequest>()
        + request.delete_ranges.len() * size_of::<DeleteRangeRequest>()
        + index_keys * size_of::<SecondaryIndex>()
        + numbers * size_of::<u64>()
}

/// An estimate of the memory that a batch of notifications takes.
fn notification_bytes(batch: &NotificationBatch) -> usize {
    batch.encoded_len() + batch.notifications.len() * size_of::<(String, Notification)>()
}

/// An estimate of the memory that an answer takes.
fn answer_bytes(answer: &WriteResponse) -> usize {
    answer.encoded_len()
        + answer.puts.len() * size_of::<PutResponse>()
        + answer.deletes.len() * size_of::<DeleteResponse>()
        + answer.delete_ranges.len() * size_of::<DeleteRangeResponse>()
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
