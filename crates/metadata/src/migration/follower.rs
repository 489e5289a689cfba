//! The task that follows the flag of a migration and moves the gate. [`super`] states the invariants that it keeps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::phase::{Flag, Migration, Phase};
use super::{Connector, FLAG, Gate, PARTICIPANTS, Shared, StorePlace, WAITING_WRITES_MAX};
use crate::layout::{create_parents, sequences};
use crate::store::{CreateMode, MetadataStore, Op, SessionId, SessionState, StoreError, Version, Watch};

/// The ledgers root below the root of Pulsar's store.
const ROOT: &str = "/ledgers";
/// Before something that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at the flag while writes end.
const WRITES_PAUSE: Duration = Duration::from_millis(100);
/// How long a target has to accept a connection. The coordinator waits 60 s in all.
const CONNECT_WAIT: Duration = Duration::from_secs(20);
/// How long the source stays open after the move, because participants that have not heard of it yet look for our nodes there. A source that
/// fails after the move was completed is asked again for as long.
const SOURCE_LINGER: Duration = Duration::from_secs(30);

pub(super) struct Follower {
    shared: Arc<Shared>,
    connector: Connector,
    /// This process has something to write. One that only reads leaves nothing at the source.
    is_writer: bool,
    /// The session that was seen to own our participant. `None` when that may have changed.
    participates_under: Option<SessionId>,
    /// The version of the flag that was acknowledged.
    acknowledged: Option<Version>,
    /// Where the metadata has moved, and since when that is known. Final.
    completed: Option<(String, Instant)>,
    /// The phase, and the failure, that were logged last.
    told: Option<Phase>,
    told_failure: String,
}

/// What a look at the flag leads to.
enum Followed {
    /// Look again when something changes.
    Waiting(Watch),
    /// Look again at once: the flag may have changed since it was read.
    Again,
    /// The store has moved.
    Moved,
}

impl Follower {
    pub fn new(shared: Arc<Shared>, connector: Connector) -> Follower {
        Follower {
            shared,
            connector,
            is_writer: false,
            participates_under: None,
            acknowledged: None,
            completed: None,
            told: None,
            told_failure: String::new(),
        }
    }

    pub async fn run(mut self) {
        let shared = self.shared.clone();
        let forward = forward_session(&shared);
        tokio::pin!(forward);
        tokio::select! {
            () = self.follow() => {}
            () = &mut forward => return,
        }
        info!(
            "the metadata has moved: put the new store into the configuration before ZooKeeper is shut down"
        );
        let end_of_source = async {
            tokio::time::sleep(SOURCE_LINGER).await;
            // Its ephemeral nodes go with its session; the target has everything.
            let _ = shared.source.close().await;
        };
        tokio::select! {
            () = end_of_source => {}
            () = &mut forward => return,
        }
        forward.await;
    }

    /// Until the store has moved.
    async fn follow(&mut self) {
        let mut session = self.shared.source.session();
        loop {
            session.borrow_and_update();
            match self.look().await {
                Ok(Followed::Moved) => return,
                Ok(Followed::Again) => {}
                Ok(Followed::Waiting(watch)) => {
                    *self.shared.fault.lock() = None;
                    self.told_failure.clear();
                    let shared = self.shared.clone();
                    tokio::select! {
                        _ = watch.changed() => {}
                        () = shared.write_is_wanted.notified() => {}
                        // A new session has no participant.
                        changed = session.changed() => if changed.is_err() { return std::future::pending().await },
                    }
                }
                Err(failure) => {
                    self.participates_under = None;
                    let text = failure.to_string();
                    if self.told_failure != text {
                        warn!(
                            error = text,
                            "cannot follow a migration of the metadata, and do not acknowledge one; it is tried again"
                        );
                        self.told_failure = text;
                    }
                    *self.shared.fault.lock() = Some(failure);
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    async fn look(&mut self) -> Result<Followed, StoreError> {
        if self.completed.is_none() {
            let (migration, version, watch) = self.read_flag().await?;
            self.tell(&migration);
            match migration.phase {
                Phase::NotStarted | Phase::Failed => return self.stay(watch).await,
                Phase::Preparation => return self.prepare(migration.target(FLAG)?, version, watch).await,
                Phase::Copying => {
                    self.shared.set_place(StorePlace::Moving);
                    return Ok(Followed::Waiting(watch));
                }
                Phase::Completed => {
                    self.shared.set_place(StorePlace::Switching);
                    self.completed = Some((migration.target(FLAG)?.to_owned(), Instant::now()));
                }
            }
        }
        let Some((url, since)) = self.completed.clone() else { return Ok(Followed::Again) };
        self.switch(&url, since.elapsed() > SOURCE_LINGER).await?;
        Ok(Followed::Moved)
    }

    /// The flag as it is after everything that this process did, its version, and a watch for its next change.
    async fn read_flag(&self) -> Result<(Migration, Version, Watch), StoreError> {
        self.shared.source.sync(&self.shared.path_at_source(FLAG)).await?;
        let (Flag { migration, version }, watch) = self.shared.read_flag().await?;
        Ok((migration?, version, watch))
    }

    fn tell(&mut self, migration: &Migration) {
        if self.told.replace(migration.phase) == Some(migration.phase) {
            return;
        }
        let target = migration.target_url.as_deref().unwrap_or_default();
        match migration.phase {
            Phase::NotStarted => {}
            Phase::Preparation => info!(target, "the metadata is to be moved: writes of it wait"),
            Phase::Copying => info!(target, "the metadata is being copied: writes of it wait"),
            Phase::Completed => info!(target, "the metadata was copied"),
            Phase::Failed => warn!(target, "the move of the metadata was given up: it stays where it is"),
        }
    }

    /// No move is under way.
    async fn stay(&mut self, watch: Watch) -> Result<Followed, StoreError> {
        // What kept an attempt from succeeding keeps nothing from being written now.
        *self.shared.fault.lock() = None;
        self.acknowledged = None;
        // Whoever waits to write holds a permit.
        self.is_writer |= self.shared.waiting.available_permits() < WAITING_WRITES_MAX;
        if !self.is_writer {
            self.shared.set_place(StorePlace::SourceToRead);
            return Ok(Followed::Waiting(watch));
        }
        let session = self.source_session()?;
        if self.participates_under != Some(session) {
            // Writes under the session before fail by themselves; new ones wait.
            self.shared.set_place(StorePlace::SourceToRead);
            self.take_part(session).await?;
            return Ok(Followed::Again);
        }
        self.shared.set_place(StorePlace::Source(self.view(session)?, session));
        let prepared = self.shared.prepared.lock().clone();
        if let Some((_, target)) = prepared {
            // Its ephemeral nodes go with its session, so that a later attempt finds none of an earlier one.
            let _ = target.close().await;
            self.shared.prepared.lock().take();
        }
        Ok(Followed::Waiting(watch))
    }

    /// Sees to it that one participant is ours. The flag that was read before that does not count.
    async fn take_part(&mut self, session: SessionId) -> Result<(), StoreError> {
        // The nodes of an earlier session are gone.
        self.shared.ephemerals.lock().retain(|_, owner| *owner == session);
        let view = self.view(session)?;
        // One may be left by an earlier process with this session, or by a creation whose answer was lost.
        let own = self.own_participants(session).await?;
        if own.is_empty() {
            let prefix = self.shared.path_at_source(&format!("{PARTICIPANTS}/id-"));
            let mut made = view.create(&prefix, Bytes::new(), CreateMode::EphemeralSequential).await;
            if matches!(made, Err(StoreError::NoNode { .. })) {
                create_parents(&*view, &prefix, "").await?;
                made = view.create(&prefix, Bytes::new(), CreateMode::EphemeralSequential).await;
            }
            made?;
        }
        for path in own.iter().skip(1) {
            match view.delete(path, None).await {
                Ok(()) | Err(StoreError::NoNode { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        self.participates_under = Some(session);
        Ok(())
    }

    /// The paths of all participants of our session.
    async fn own_participants(&self, session: SessionId) -> Result<Vec<String>, StoreError> {
        let (source, parent) = (&*self.shared.source, self.shared.path_at_source(PARTICIPANTS));
        let names = match source.children(&parent).await {
            Err(StoreError::NoNode { .. }) => Vec::new(),
            names => names?,
        };
        let mut own = Vec::new();
        for name in names {
            let path = format!("{parent}/{name}");
            if source.exists(&path).await?.is_some_and(|stat| stat.owner == Some(session)) {
                own.push(path);
            }
        }
        Ok(own)
    }

    /// Shuts the gate, brings our ephemeral nodes to the target, and acknowledges.
    async fn prepare(&mut self, url: &str, flag: Version, mut watch: Watch) -> Result<Followed, StoreError> {
        self.shared.set_place(StorePlace::Moving);
        self.participates_under = None;
        if self.acknowledged == Some(flag) {
            return Ok(Followed::Waiting(watch));
        }
        if !self.is_writer {
            // The coordinator also waits for a participant that an earlier process left with the session.
            self.is_writer = !self.own_participants(self.source_session()?).await?.is_empty();
        }
        if !self.is_writer {
            return Ok(Followed::Waiting(watch));
        }
        let until = Instant::now() + 2 * self.shared.source.session_timeout();
        let mut gate = self.shared.gate.subscribe();
        while !self.shared.no_writes(&mut gate).await? {
            if watch.has_fired() {
                return Ok(Followed::Again);
            }
            if Instant::now() > until {
                return Err(StoreError::Moving);
            }
        }
        let session = self.source_session()?;
        let own = self.own_participants(session).await?;
        if own.is_empty() {
            // Acknowledged to an attempt before this one, or gone with a session: the coordinator has to wait for us.
            self.take_part(session).await?;
            return Ok(Followed::Again);
        }
        self.bring_ephemerals(url, false).await?;
        let mut ops = vec![Op::Check { path: self.shared.path_at_source(FLAG), expected: flag }];
        ops.extend(own.into_iter().map(|path| Op::Delete { path, expected: None }));
        match self.view(session)?.multi(ops).await {
            Ok(()) => {
                self.acknowledged = Some(flag);
                Ok(Followed::Waiting(watch))
            }
            // The flag says something else now.
            Err(StoreError::BadVersion { .. } | StoreError::NoNode { .. }) => Ok(Followed::Again),
            Err(other) => Err(other),
        }
    }

    /// Sends all requests to the target from now on. With `is_alone`, failures of the source no longer stop that.
    async fn switch(&mut self, url: &str, is_alone: bool) -> Result<(), StoreError> {
        let target = self.bring_ephemerals(url, is_alone).await?;
        match self.skip_sequences(&*target).await {
            Err(error) if error.is_transient() && !is_alone => return Err(error),
            // Without it creating a ledger takes an attempt for each number that is taken.
            Err(error) => warn!(%error, "sequential names may begin with low numbers"),
            Ok(()) => {}
        }
        // Before any request is made under it.
        self.shared.publish(target.session().borrow().clone());
        self.shared.set_place(StorePlace::Target(target));
        self.shared.has_moved.send_replace(true);
        self.shared.prepared.lock().take();
        Ok(())
    }

    /// Makes sequential names go on behind those of the source. Each process does, because the coordinator does not.
    async fn skip_sequences(&self, target: &dyn MetadataStore) -> Result<(), StoreError> {
        let source = &*self.shared.source;
        // A source that is gone is not waited for: each request would take a session timeout.
        self.source_session()?;
        for parent in sequences(source, &self.shared.path_at_source(ROOT)).await? {
            let Some(stat) = source.exists(&parent).await? else { continue };
            match target.skip_sequence(self.shared.path_at_target(&parent), stat.next_sequence).await {
                // What nobody counted in, the target need not have.
                Ok(()) | Err(StoreError::NoNode { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// Makes our ephemeral nodes at the target. With `is_alone`, those that the source does not show are left out: their owners make them again
    /// in the new session.
    async fn bring_ephemerals(
        &mut self,
        url: &str,
        is_alone: bool,
    ) -> Result<Arc<dyn MetadataStore>, StoreError> {
        let target = self.connected(url).await?;
        let paths: Vec<String> = self.shared.ephemerals.lock().keys().cloned().collect();
        for path in paths {
            if is_alone && self.source_session().is_err() {
                warn!(path, "it is not brought to the target: the source is gone");
                continue;
            }
            let node = match (self.shared.source.get(&path).await, self.source_session()) {
                (Ok(node), Ok(session)) if node.stat.owner == Some(session) => node,
                // Gone, or made by others since.
                (Ok(_), Ok(_)) | (Err(StoreError::NoNode { .. }), _) => continue,
                (Err(error), _) | (_, Err(error)) if is_alone => {
                    warn!(path, %error, "it is not brought to the target");
                    continue;
                }
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            let at_target = self.shared.path_at_target(&path);
            create_parents(&*target, at_target, "").await?;
            match target.create(at_target, node.data, CreateMode::Ephemeral).await {
                // One that is there is ours, from an attempt before; if it is not, its session tells it apart, as at a start.
                Ok(_) | Err(StoreError::NodeExists { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(target)
    }

    async fn connected(&mut self, url: &str) -> Result<Arc<dyn MetadataStore>, StoreError> {
        let prepared = self.shared.prepared.lock().take();
        match prepared {
            Some((connected, target)) if connected == url => {
                *self.shared.prepared.lock() = Some((connected, target.clone()));
                return Ok(target);
            }
            Some((_, other)) => drop(other.close().await),
            None => {}
        }
        let connecting = (self.connector)(url);
        let connected = tokio::time::timeout(CONNECT_WAIT, connecting).await;
        let target = connected.unwrap_or(Err(StoreError::ConnectionLoss))?;
        *self.shared.prepared.lock() = Some((url.to_owned(), target.clone()));
        Ok(target)
    }

    fn source_session(&self) -> Result<SessionId, StoreError> {
        self.shared.source.session().borrow().clone().connected()
    }

    fn view(&self, session: SessionId) -> Result<Arc<dyn MetadataStore>, StoreError> {
        let view = self.shared.source.pinned(session);
        view.ok_or(StoreError::Unsupported(
            "requests that are pinned to a session, which a move of metadata needs",
        ))
    }
}

/// Publishes the session of the source, and that of the target once the store has moved. Ends when that is closed.
async fn forward_session(shared: &Shared) {
    let mut has_moved: watch::Receiver<bool> = shared.has_moved.subscribe();
    let mut session = shared.source.session();
    loop {
        has_moved.borrow_and_update();
        if let Some(target) = shared.target() {
            return forward_all(shared, target.session()).await;
        }
        shared.publish(session.borrow_and_update().clone());
        tokio::select! {
            _ = has_moved.changed() => {}
            changed = session.changed() => if changed.is_err() { return },
        }
    }
}

async fn forward_all(shared: &Shared, mut session: watch::Receiver<SessionState>) {
    loop {
        shared.publish(session.borrow_and_update().clone());
        if session.changed().await.is_err() {
            return;
        }
    }
}

impl Shared {
    /// Waits a while for the writes at the source to end.
    async fn no_writes(&self, gate: &mut watch::Receiver<Gate>) -> Result<bool, StoreError> {
        let ended = tokio::time::timeout(WRITES_PAUSE, gate.wait_for(|gate| gate.writes == 0)).await;
        ended.map_or(Ok(false), |ended| ended.map(|_| true).map_err(|_| StoreError::Closed))
    }

    /// Nothing follows [`SessionState::Closed`].
    pub(super) fn publish(&self, state: SessionState) {
        self.session.send_if_modified(|published| {
            let is_new = *published != state && *published != SessionState::Closed;
            if is_new {
                *published = state;
            }
            is_new
        });
    }
}
