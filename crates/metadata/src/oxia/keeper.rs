//! The task that keeps the store's session: who leads the shards, a session and a stream of notifications for each, and what becomes of them.
//!
//! # Data flow
//! ```text
//! assignments of any server -> shards                      a doubt (a request or a stream that failed) -> assignments of the next server
//! shards -> a session of each (opened, or taken up again) -> published -> kept by a task for each shard -> gone? -> the next ones
//! a task for each shard: heartbeats of its session; its notifications, from its leader of the moment
//! ```
//!
//! # Invariants
//! 1. All tasks are in one of two sets of this task, which end with it. However it ends, the store is closed then.
//! 2. A shard's session is kept by a heartbeat each third of its timeout. One that fails suspends the store, fires its watches and is
//!    repeated until a server answers; only a server says that the session is gone.
//! 3. Before the next session is opened, those shards' sessions of the last one that may live are closed.
//! 4. Notifications come from the server that leads the shard by the last assignments. When another one does, when they break off, and when
//!    a heartbeat fails, all watches fire and the store subscribes again.
//! 5. No stream stays open to a server that is silent: its connection ends by its pings ([`calls`](super::calls)), or is left after a heartbeat
//!    that failed. Streams are opened again after a pause, which grows up to [`RETRY_PAUSE_MAX`] while they do not last.
//!
//! # Limits     answers of shards' tasks: a channel of [`BEATS_QUEUED_MAX`]

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bindery_oxia::proto::{
    CloseSessionRequest, CreateSessionRequest, NotificationBatch, NotificationsRequest, SessionHeartbeat,
    ShardAssignments, ShardAssignmentsRequest,
};
use futures_util::future::{FutureExt, join_all};
use tokio::sync::{Notify, mpsc, watch};
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
/// A stream that was open for so long was opened with success: the pause before the next attempt is short again.
const LASTING: Duration = Duration::from_secs(5);

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

/// The pause before the next attempt at a stream.
struct Pause(Duration);

impl Pause {
    fn new() -> Pause {
        Pause(RETRY_PAUSE_MIN)
    }

    /// The pause after a stream that was tried or open since `begun`.
    fn after(&mut self, begun: Instant) -> Duration {
        let pause = if begun.elapsed() >= LASTING { RETRY_PAUSE_MIN } else { self.0 };
        self.0 = (pause * 2).min(RETRY_PAUSE_MAX);
        pause
    }
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
            // In this order: whoever sees the state has its credentials. Requests use no session that the state does not show.
            self.shared.session.send_replace(Some(session.clone()));
            self.publish(SessionState::Connected(session.id));
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
    }

    fn publish(&self, state: SessionState) {
        set(&self.shared.state, state);
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
                // A shard's task ends with the shard's session.
                Some(_) = tasks.join_next() => break End::Gone,
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

impl Drop for Keeper {
    /// Invariant 1: whoever waits for the keeper would wait for ever otherwise, because the channels are the store's.
    fn drop(&mut self) {
        self.shared.closing.send_replace(true);
        self.shared.session.send_replace(None);
        self.shared.watches.lock().begin(BTreeSet::new());
        self.publish(SessionState::Closed);
    }
}

/// Publishes a value unless it is there already.
fn set<T: PartialEq>(channel: &watch::Sender<T>, value: T) {
    channel.send_if_modified(|current| {
        let is_new = *current != value;
        *current = value;
        is_new
    });
}

/// Who leads a shard, by the last assignments.
fn leader_of(known: &Option<Arc<Shards>>, shard: i64) -> Option<&str> {
    Some(&known.as_ref()?.get(shard)?.leader)
}

/// Sends a request to the leader of a shard once, for a third of the session timeout at most.
async fn once<T, R>(shared: &Shared, shard: i64, request: impl FnOnce(Client) -> R) -> Result<T, Failure>
where
    R: Future<Output = Result<tonic::Response<T>, Status>>,
{
    let leader = leader_of(&shared.shards.borrow(), shard).map(str::to_owned);
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
    if let Failure::Unknown(_) | Failure::NotHere(_) | Failure::NotSent(_) = failure {
        shared.doubt();
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

/// What the two sides of a shard's task tell each other.
#[derive(Default)]
struct Signs {
    /// A heartbeat was missed: notifications that are silent because their server is would stay so.
    missed: Notify,
    /// The notifications broke off: a heartbeat goes out at once.
    broken: Notify,
}

/// Keeps the session of a shard, and hands its notifications to the watches, until it is aborted or the session is gone.
async fn tend(shared: Arc<Shared>, shard: i64, session: i64, beats: mpsc::Sender<(i64, Beat)>) {
    let signs = Signs::default();
    tokio::select! {
        () = keep_alive(&shared, shard, session, &beats, &signs) => {}
        never = follow_notifications(&shared, shard, &signs) => match never {},
    }
}

/// Sends the heartbeats of a shard's session, until it is gone, or the keeper.
async fn keep_alive(
    shared: &Shared,
    shard: i64,
    session: i64,
    beats: &mpsc::Sender<(i64, Beat)>,
    signs: &Signs,
) {
    let interval = shared.timeout / 3;
    // The first one at once: sessions of other shards may have been opened long after this one.
    let mut beat_at = Instant::now();
    loop {
        tokio::select! {
            () = sleep_until(beat_at) => {}
            () = signs.broken.notified() => {}
        }
        let outcome = beat(shared, shard, session).await;
        let pause = match outcome {
            Beat::Heard | Beat::Gone => interval,
            Beat::Missed => {
                signs.missed.notify_one();
                RETRY_PAUSE_MAX.min(interval)
            }
        };
        beat_at = Instant::now() + pause;
        if beats.send((shard, outcome)).await.is_err() || outcome == Beat::Gone {
            return;
        }
    }
}

/// Hands the notifications of a shard to the watches, from whichever server leads it (invariant 4).
async fn follow_notifications(shared: &Shared, shard: i64, signs: &Signs) -> Infallible {
    let mut shards = shared.shards.subscribe();
    let mut pause = Pause::new();
    loop {
        let leader = leader_of(&shards.borrow_and_update(), shard).map(str::to_owned);
        // A heartbeat that was missed before says nothing of the stream to be opened.
        let _ = signs.missed.notified().now_or_never();
        let begun = Instant::now();
        let has_moved = tokio::select! {
            () = hand_on_notifications(shared, shard, signs) => false,
            () = signs.missed.notified() => false,
            () = moved(&mut shards, shard, leader.as_deref()) => true,
        };
        shared.watches.lock().on_broken(shard);
        if has_moved {
            pause = Pause::new();
            continue;
        }
        tokio::select! {
            () = sleep(pause.after(begun)) => {}
            () = moved(&mut shards, shard, leader.as_deref()) => {}
        }
    }
}

/// Waits until another server leads the shard.
async fn moved(shards: &mut watch::Receiver<Option<Arc<Shards>>>, shard: i64, leader: Option<&str>) {
    let moved = shards.wait_for(|known| leader_of(known, shard) != leader).await.is_ok();
    if !moved {
        // The store is gone, and this task is about to be.
        std::future::pending::<()>().await;
    }
}

/// Hands the notifications of a shard on, until they break off.
async fn hand_on_notifications(shared: &Shared, shard: i64, signs: &Signs) {
    let Some(mut notifications) = subscribe(shared, shard).await else { return };
    let are_all_live = shared.watches.lock().on_live(shard);
    if are_all_live {
        shared.live.send_modify(|count| *count += 1);
    }
    while let Ok(Some(batch)) = notifications.message().await {
        let mut watches = shared.watches.lock();
        for (key, notification) in &batch.notifications {
            watches.notify(key, notification);
        }
    }
    signs.broken.notify_one();
    shared.doubt();
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

/// A server that says who leads the shards, and goes on to say it whenever that changes.
struct Source<'a> {
    server: &'a str,
    assignments: Streaming<ShardAssignments>,
}

/// Learns who leads the shards, until it is aborted. When that is in doubt, the next server is asked, and the last one is listened to until
/// that one speaks.
async fn follow_assignments(shared: Arc<Shared>) {
    let mut doubts = shared.doubts.subscribe();
    let mut pause = Pause::new();
    let mut source = None;
    let mut hold = RETRY_PAUSE_MIN;
    loop {
        let mut are_named = false;
        for server in &shared.servers {
            let Some(next) = while_heard(&shared, &mut source, ask(&shared, server)).await else { continue };
            source = Some(next);
            are_named = true;
            // Its answer settles the doubts before it.
            doubts.borrow_and_update();
            let begun = Instant::now();
            let doubted = async {
                sleep(hold).await;
                // The sender is the store's, which ends this task.
                let _ = doubts.changed().await;
            };
            while_heard(&shared, &mut source, doubted).await;
            hold = pause.after(begun);
        }
        if !are_named {
            shared.rounds.send_modify(|rounds| *rounds += 1);
            while_heard(&shared, &mut source, sleep(pause.after(Instant::now()))).await;
        }
    }
}

/// Waits for `work`, and learns what the source says meanwhile. One that breaks off leaves a doubt.
async fn while_heard<'a, T>(
    shared: &Shared,
    source: &mut Option<Source<'a>>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    loop {
        let heard = async {
            match source.as_mut() {
                Some(source) => learn(shared, source.assignments.message().await),
                None => std::future::pending().await,
            }
        };
        let failure = tokio::select! {
            done = &mut work => return done,
            heard = heard => match heard {
                Ok(()) => continue,
                Err(failure) => failure,
            },
        };
        let server = source.take().map_or("", |source| source.server);
        tracing::debug!(server, ?failure, "assignments of shards");
        if let Failure::Unknown(_) = failure {
            shared.forget(server);
        }
        shared.doubt();
    }
}

/// Asks a server who leads the shards; `None` when it does not say.
async fn ask<'a>(shared: &Shared, server: &'a str) -> Option<Source<'a>> {
    let wait = shared.timeout / 3;
    // The first word comes at once, the others when something changes.
    let asked = async {
        let mut client = shared.client(server)?;
        let request = ShardAssignmentsRequest { namespace: shared.namespace.clone() };
        let assignments = client.get_shard_assignments(request).await;
        let mut assignments = assignments.map_err(|status| failure_of(&status))?.into_inner();
        learn(shared, assignments.message().await)?;
        Ok(Source { server, assignments })
    };
    let asked = timeout(wait, asked).await;
    let failure = match asked.unwrap_or_else(|_| Err(Failure::Unknown(format!("no shards within {wait:?}"))))
    {
        Ok(source) => return Some(source),
        Err(failure) => failure,
    };
    tracing::debug!(server, ?failure, "assignments of shards");
    if let Failure::Unknown(_) = failure {
        shared.forget(server);
    }
    let fault = match failure {
        Failure::NoNamespace => Fault::WrongProtocol(format!("it has no namespace {:?}", shared.namespace)),
        failure => fault_of(server, &failure, wait).await,
    };
    shared.note_fault(server, fault);
    None
}

/// Takes over what a server says of the shards.
fn learn(shared: &Shared, said: Result<Option<ShardAssignments>, Status>) -> Result<(), Failure> {
    let said = said.map_err(|status| failure_of(&status))?;
    let said = said.ok_or_else(|| Failure::NotHere("it names no shards any more".to_owned()))?;
    let shards = shards_of(&shared.namespace, said).map_err(Failure::NotHere)?;
    shared.forget_all_but(&shards);
    set(&shared.shards, Some(Arc::new(shards)));
    Ok(())
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
        Failure::Full(why) => Fault::Other(format!("it has no room: {why}")),
        Failure::Refused(why) => Fault::WrongProtocol(format!("it refuses the request: {why}")),
        Failure::NotHere(why) | Failure::Unknown(why) => Fault::Other(why.clone()),
        Failure::NoNamespace => Fault::WrongProtocol("it has no such namespace".to_owned()),
        Failure::NoSession => Fault::Other("it does not know the session".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_store_is_closed_however_its_keeper_ends() {
        let shared = Arc::new(Shared::new(&["h:1".to_owned()], "n", Duration::from_secs(2)));
        drop(Keeper::new(shared.clone(), None));
        assert_eq!(*shared.state.borrow(), SessionState::Closed);
        let refused = shared.find("/n", true, Instant::now() + Duration::from_secs(60)).await;
        assert_eq!(refused.err(), Some(crate::store::StoreError::Closed));
    }

    #[tokio::test]
    async fn pauses_grow_to_a_bound_and_are_short_again_after_what_lasted() {
        let (mut pause, now) = (Pause::new(), Instant::now());
        let mut before = Duration::ZERO;
        for _ in 0..10 {
            let next = pause.after(now + LASTING);
            assert!(before < next || next == RETRY_PAUSE_MAX, "{next:?}");
            before = next;
        }
        assert_eq!(before, RETRY_PAUSE_MAX);
        let lasted = now.checked_sub(LASTING).expect("a clock that is not new");
        assert_eq!(pause.after(lasted), RETRY_PAUSE_MIN);
        assert_eq!(pause.after(now + LASTING), 2 * RETRY_PAUSE_MIN);
    }
}
