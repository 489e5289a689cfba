//! The task that keeps the store's session: who leads the shards, a session and a stream of notifications for each, and what becomes of them.
//!
//! # Data flow
//! ```text
//! assignments of any server -> shards
//! shards -> a session of each (opened, or taken up again) -> published -> kept by a task for each shard -> gone? -> the next ones
//! ```
//!
//! # Invariants
//! 1. All tasks are in one of two sets of this task, which end with it.
//! 2. A shard's session is kept by a heartbeat each third of its timeout. One that fails suspends the store, fires its watches and is
//!    repeated until a server answers; only a server says that the session is gone.
//! 3. Before the next session is opened, those shards' sessions of the last one that may live are closed.
//!
//! # Limits     answers of shards' tasks: a channel of [`BEATS_QUEUED_MAX`]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_oxia::proto::{
    CloseSessionRequest, CreateSessionRequest, NotificationBatch, NotificationsRequest, SessionHeartbeat,
    ShardAssignments, ShardAssignmentsRequest,
};
use futures_util::future::join_all;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::{Status, Streaming};
use tracing::{info, warn};

use super::calls::{Client, Shared};
use super::session::OpenSession;
use super::shards::Shards;
use super::status::{Failure, failure_of};
use crate::fault::{Fault, connect_tcp};
use crate::store::{SessionCredentials, SessionState};

const BEATS_QUEUED_MAX: usize = 64;
/// Pause after an attempt that failed, growing to the maximum.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a shard's task says of the shard's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beat {
    /// The server knows it.
    Heard,
    /// No answer.
    Missed,
    /// The server does not know it any more.
    Gone,
}

/// How the keeping of a session ended.
enum End {
    /// One of its shards' sessions is gone.
    Gone,
    /// The shards are others.
    Resharded,
    /// The store is to be closed.
    Closed,
}

/// The task.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    resume: Option<OpenSession>,
    shards: watch::Receiver<Option<Arc<Shards>>>,
    closing: watch::Receiver<bool>,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>, resume: Option<SessionCredentials>) -> Keeper {
        let resume = resume.as_ref().and_then(OpenSession::of_credentials);
        let (shards, closing) = (shared.shards.subscribe(), shared.closing.subscribe());
        Keeper { shared, resume, shards, closing }
    }

    pub(super) async fn run(mut self) {
        let mut assignments = JoinSet::new();
        assignments.spawn(follow_assignments(self.shared.clone()));
        let mut is_first = true;
        loop {
            let Some(session) = self.open().await else { break };
            self.shared.clear_faults();
            info!(session = %session.id, shards = session.of_shards.len(), "connected to the metadata store");
            is_first = false;
            let session = Arc::new(session);
            // In this order: whoever uses the session finds it published.
            self.publish(SessionState::Connected(session.id));
            self.shared.session.send_replace(Some(session.clone()));
            let end = self.keep(&session).await;
            self.shared.session.send_replace(None);
            self.shared.watches.lock().begin(BTreeSet::new());
            match end {
                End::Gone => {
                    warn!(session = %session.id, "the metadata store no longer knows our session; opening a new one");
                }
                End::Resharded => {
                    warn!(session = %session.id, "the shards of the metadata store are others; opening a new session");
                }
                End::Closed => {
                    if !self.close(&session).await {
                        self.shared.note_unclean();
                    }
                    break;
                }
            }
            self.publish(SessionState::Expired(session.id));
            // Invariant 3. One that cannot be closed ends by its timeout, and nothing is created under it.
            self.close(&session).await;
        }
        assignments.shutdown().await;
        if is_first {
            info!("the metadata store was closed before it was connected");
        }
        self.shared.watches.lock().begin(BTreeSet::new());
        self.publish(SessionState::Closed);
    }

    fn publish(&self, state: SessionState) {
        self.shared.state.send_if_modified(|current| {
            let is_new = *current != state;
            *current = state;
            is_new
        });
    }

    /// Takes up the session of an earlier process, or opens one on every shard; `None` when the store is to be closed first.
    async fn open(&mut self) -> Option<OpenSession> {
        let mut pause = RETRY_PAUSE_MIN;
        let mut session = self.resume.take();
        loop {
            let shards = self.known_shards().await?;
            let opening = async {
                let former = session.take();
                match former {
                    Some(former) if former.is_for(&shards) => self.take_up(former).await,
                    // Those of other shards end by their timeouts.
                    Some(_) | None => self.open_missing(OpenSession::new(), &shards).await,
                }
            };
            let mut closing = self.closing.clone();
            // Cancelled here: sessions that were opened end by their timeouts, and nothing was created under them.
            let opened = tokio::select! {
                opened = opening => opened,
                _ = closing.wait_for(|closing| *closing) => return None,
            };
            match opened {
                Ok(open) => return Some(open),
                Err(part) => session = part,
            }
            tokio::select! {
                () = sleep(pause) => {}
                _ = closing.wait_for(|closing| *closing) => return None,
            }
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    async fn known_shards(&mut self) -> Option<Arc<Shards>> {
        let mut closing = self.closing.clone();
        tokio::select! {
            known = self.shards.wait_for(Option::is_some) => known.ok()?.clone(),
            _ = closing.wait_for(|closing| *closing) => None,
        }
    }

    /// A session whose shards' sessions all live. The error is what to try next: the same when a server did not answer, none when one of
    /// them is gone.
    async fn take_up(&self, former: OpenSession) -> Result<OpenSession, Option<OpenSession>> {
        let beats = former.of_shards.iter().map(|(shard, session)| beat(&self.shared, *shard, *session));
        let beats = join_all(beats).await;
        if beats.contains(&Beat::Gone) {
            // Those that live would keep what the former process left behind.
            self.close(&former).await;
            return Err(None);
        }
        if beats.contains(&Beat::Missed) { Err(Some(former)) } else { Ok(former) }
    }

    /// Opens a session on each shard. An error when one did not answer: what was opened on the others is closed again.
    async fn open_missing(
        &self,
        mut session: OpenSession,
        shards: &Shards,
    ) -> Result<OpenSession, Option<OpenSession>> {
        let identity = session.identity();
        let opened = join_all(shards.ids().map(|shard| open_on(&self.shared, shard, &identity))).await;
        let all = shards.ids().zip(&opened);
        session.of_shards = all.filter_map(|(shard, opened)| Some((shard, (*opened)?))).collect();
        if session.is_for(shards) {
            return Ok(session);
        }
        self.close(&session).await;
        Err(None)
    }

    /// Keeps a session until it ends.
    async fn keep(&mut self, session: &Arc<OpenSession>) -> End {
        let (sender, mut beats) = mpsc::channel(BEATS_QUEUED_MAX);
        let mut tasks = JoinSet::new();
        self.shared.watches.lock().begin(session.of_shards.keys().copied().collect());
        for (shard, own) in &session.of_shards {
            tasks.spawn(tend(self.shared.clone(), *shard, *own, sender.clone()));
        }
        let (mut closing, mut gone) = (self.closing.clone(), self.shared.gone.subscribe());
        let mut missed = BTreeSet::new();
        let end = loop {
            tokio::select! {
                beat = beats.recv() => match beat {
                    Some((_, Beat::Gone)) | None => break End::Gone,
                    Some((shard, Beat::Missed)) => {
                        missed.insert(shard);
                        self.publish(SessionState::Suspended(session.id));
                    }
                    Some((shard, Beat::Heard)) => {
                        missed.remove(&shard);
                        if missed.is_empty() {
                            self.publish(SessionState::Connected(session.id));
                        }
                    }
                },
                known = self.shards.changed() => {
                    let is_other = self.shards.borrow_and_update().as_ref().is_some_and(|shards| !session.is_for(shards));
                    if known.is_err() || is_other {
                        break End::Resharded;
                    }
                }
                _ = gone.wait_for(|gone| *gone == Some(session.id.0)) => break End::Gone,
                _ = closing.wait_for(|closing| *closing) => break End::Closed,
            }
        };
        tasks.shutdown().await;
        end
    }

    /// Closes the sessions of all shards. Whether all of them are closed.
    async fn close(&self, session: &OpenSession) -> bool {
        let shared = &self.shared;
        let closing = session.of_shards.iter().map(|(shard, own)| close_on(shared, *shard, *own));
        join_all(closing).await.into_iter().all(|is_closed| is_closed)
    }
}

/// Sends a request to the leader of a shard once, for a third of the session timeout at most.
async fn once<T, R>(shared: &Shared, shard: i64, request: impl FnOnce(Client) -> R) -> Result<T, Failure>
where
    R: Future<Output = Result<tonic::Response<T>, Status>>,
{
    let leader = shared.shards.borrow().as_ref().and_then(|shards| Some(shards.get(shard)?.leader.clone()));
    let leader = leader.ok_or_else(|| Failure::NotHere(format!("there is no shard {shard}")))?;
    let client = shared.client(&leader)?;
    let wait = shared.timeout / 3;
    let failure = match timeout(wait, request(client)).await {
        Ok(Ok(answer)) => return Ok(answer.into_inner()),
        Ok(Err(status)) => failure_of(&status),
        Err(_) => Failure::Unknown(format!("no answer within {wait:?}")),
    };
    if let Failure::Unknown(_) = failure {
        shared.forget(&leader);
    }
    if failure != Failure::NoSession {
        shared.note_fault(&leader, fault_of(&leader, &failure, wait).await);
    }
    Err(failure)
}

/// Opens a session of a shard; `None` when that cannot be done now.
async fn open_on(shared: &Shared, shard: i64, identity: &str) -> Option<i64> {
    let session_timeout_ms = u32::try_from(shared.timeout.as_millis()).unwrap_or(u32::MAX);
    let request = CreateSessionRequest { shard, session_timeout_ms, client_identity: identity.to_owned() };
    let created = once(shared, shard, |mut client| async move { client.create_session(request).await }).await;
    created.ok().map(|created| created.session_id)
}

/// Closes the session of a shard. Whether it is gone.
async fn close_on(shared: &Shared, shard: i64, session_id: i64) -> bool {
    let request = CloseSessionRequest { shard, session_id };
    let closed = once(shared, shard, |mut client| async move { client.close_session(request).await }).await;
    matches!(closed, Ok(_) | Err(Failure::NoSession))
}

/// A heartbeat of a shard's session.
async fn beat(shared: &Shared, shard: i64, session_id: i64) -> Beat {
    let request = SessionHeartbeat { shard, session_id };
    match once(shared, shard, |mut client| async move { client.keep_alive(request).await }).await {
        Ok(_) => Beat::Heard,
        Err(Failure::NoSession) => Beat::Gone,
        Err(_) => Beat::Missed,
    }
}

/// Keeps the session of a shard, and hands its notifications to the watches, until it is aborted or the session is gone.
async fn tend(shared: Arc<Shared>, shard: i64, session: i64, beats: mpsc::Sender<(i64, Beat)>) {
    let interval = shared.timeout / 3;
    let mut notifications: Option<Streaming<NotificationBatch>> = None;
    let mut beat_at = Instant::now() + interval;
    loop {
        if notifications.is_none() {
            notifications = subscribe(&shared, shard).await;
            match notifications {
                Some(_) if shared.watches.lock().on_live(shard) => {
                    shared.live.send_modify(|count| *count += 1)
                }
                Some(_) => {}
                None => beat_at = beat_at.min(Instant::now() + RETRY_PAUSE_MAX),
            }
        }
        let next = async {
            match &mut notifications {
                Some(stream) => stream.message().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            batch = next => match batch {
                Ok(Some(batch)) => {
                    let mut watches = shared.watches.lock();
                    for (key, notification) in &batch.notifications {
                        watches.notify(key, notification);
                    }
                }
                // Whether the session lives is asked at once.
                Ok(None) | Err(_) => {
                    notifications = None;
                    beat_at = Instant::now();
                }
            },
            () = sleep_until(beat_at) => {
                let outcome = beat(&shared, shard, session).await;
                beat_at = Instant::now() + match outcome {
                    Beat::Heard => interval,
                    // A stream that is silent because the server is would never end.
                    Beat::Missed => {
                        notifications = None;
                        RETRY_PAUSE_MAX.min(interval)
                    }
                    Beat::Gone => interval,
                };
                // The keeper is gone, or the session: this task ends with either.
                if beats.send((shard, outcome)).await.is_err() || outcome == Beat::Gone {
                    return;
                }
            }
        }
        if notifications.is_none() {
            shared.watches.lock().on_broken(shard);
        }
    }
}

/// Subscribes to the notifications of a shard. The first batch says that they come in from now on.
async fn subscribe(shared: &Shared, shard: i64) -> Option<Streaming<NotificationBatch>> {
    let request = NotificationsRequest { shard, start_offset_exclusive: None };
    let subscribed = once(shared, shard, |mut client| async move {
        let mut response = client.get_notifications(request).await?;
        match response.get_mut().message().await? {
            Some(_) => Ok(response),
            None => Err(Status::unavailable("the notifications ended at once")),
        }
    });
    subscribed.await.ok()
}

/// Learns who leads the shards, from whichever server says it, until it is aborted.
async fn follow_assignments(shared: Arc<Shared>) {
    let mut pause = RETRY_PAUSE_MIN;
    loop {
        for server in shared.servers.clone() {
            if follow_one(&shared, &server).await {
                pause = RETRY_PAUSE_MIN;
            }
        }
        shared.rounds.send_modify(|rounds| *rounds += 1);
        sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

/// Follows what one server says, until it stops. Whether it said anything.
async fn follow_one(shared: &Shared, server: &str) -> bool {
    let wait = shared.timeout / 3;
    let mut has_spoken = false;
    let failure = match listen(shared, server, wait).await {
        Ok(mut stream) => loop {
            // The first comes at once, the others when something changes.
            let said = match has_spoken {
                false => match timeout(wait, stream.message()).await {
                    Ok(said) => said,
                    Err(_) => break Failure::Unknown(format!("no shards within {wait:?}")),
                },
                true => stream.message().await,
            };
            match said {
                Ok(Some(said)) => match shards_of(&shared.namespace, said) {
                    Ok(shards) => {
                        has_spoken = true;
                        shared.forget_all_but(&shards);
                        shared.shards.send_replace(Some(Arc::new(shards)));
                    }
                    Err(why) => break Failure::NotHere(why),
                },
                Ok(None) => break Failure::NotHere("it names no shards any more".to_owned()),
                Err(status) => break failure_of(&status),
            }
        },
        Err(failure) => failure,
    };
    tracing::debug!(server, ?failure, "assignments of shards");
    if let Failure::Unknown(_) = failure {
        shared.forget(server);
    }
    if !has_spoken {
        let fault = match failure {
            Failure::NoNamespace => {
                Fault::WrongProtocol(format!("it has no namespace {:?}", shared.namespace))
            }
            failure => fault_of(server, &failure, wait).await,
        };
        shared.note_fault(server, fault);
    }
    has_spoken
}

async fn listen(
    shared: &Shared,
    server: &str,
    wait: Duration,
) -> Result<Streaming<ShardAssignments>, Failure> {
    let mut client = shared.client(server)?;
    let request = ShardAssignmentsRequest { namespace: shared.namespace.clone() };
    match timeout(wait, client.get_shard_assignments(request)).await {
        Ok(Ok(stream)) => Ok(stream.into_inner()),
        Ok(Err(status)) => Err(failure_of(&status)),
        Err(_) => Err(Failure::Unknown(format!("no answer within {wait:?}"))),
    }
}

/// The shards of a namespace; why there are none.
fn shards_of(namespace: &str, mut said: ShardAssignments) -> Result<Shards, String> {
    let assigned = said.namespaces.remove(namespace);
    Shards::of(assigned.ok_or_else(|| format!("it says nothing of namespace {namespace:?}"))?)
}

/// What an operator does about it. A connection that was not made is made once more, by TCP alone, which says why.
async fn fault_of(server: &str, failure: &Failure, wait: Duration) -> Fault {
    match failure {
        Failure::NotSent(why) => match timeout(wait, connect_tcp(server)).await {
            Ok(Err(fault)) => fault,
            Ok(Ok(_)) => Fault::Closed(format!("it accepts connections, and makes none of gRPC ({why})")),
            Err(_) => Fault::Silent(wait),
        },
        Failure::NotOxia(why) => Fault::WrongProtocol(format!("a gRPC server, and none of Oxia ({why})")),
        Failure::Refused(why) => Fault::WrongProtocol(format!("it refuses the request: {why}")),
        Failure::NotHere(why) | Failure::Unknown(why) => Fault::Other(why.clone()),
        Failure::NoNamespace => Fault::WrongProtocol("it has no such namespace".to_owned()),
        Failure::NoSession => Fault::Other("it does not know the session".to_owned()),
    }
}
