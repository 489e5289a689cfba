//! A store that moves from ZooKeeper to Oxia while it is used, as Pulsar moves its clusters (PIP-454).
//!
//! A broker coordinates the move by a node of the source, [`FLAG`], and by the children of [`PARTICIPANTS`], one of each process that
//! writes metadata. Each process follows by itself; nobody restarts, and no request is lost.
//!
//! # Data flow
//! ```text
//! reads  ---------------> source, or the target once the move is completed
//! writes -> gate ------->   the same; while the move is under way they wait, and fail after [`MOVE_WAIT`]
//!             ^
//! [`FLAG`] -> follower    prepare: shut the gate, let writes end, connect to the target, make our ephemeral nodes there, and delete our
//!             (a task)    participant, which acknowledges; switch: open the gate to the target; or go back: open it to the source
//! ```
//!
//! # Invariants
//! 1. A write to the source is sent under the session that owns our participant, and the flag was read since that was there, without a move
//!    under way. So the coordinator waits for it, or for the end of that session. A process that only reads has no participant.
//! 2. The acknowledgement is one transaction with a look at the flag that it answers, and takes all participants of our session. A preparation that
//!    did not succeed is not acknowledged, so the coordinator gives the move up and everyone stays on the source.
//! 3. Once the move is known to be completed nothing is read from the source. [`MetadataStore::sync`] knows the flag as it is behind the
//!    source's own sync, so what is read after it is not older than the move. It reads the flag with a watch, and again only when that fired:
//!    ZooKeeper tells a connection of a change before it answers a sync that sees the change.
//! 4. A watch that was armed at the source fires when the store moves.
//! 5. Numbers of sequential names, ledger ids among them, go on behind those of the source. The coordinator copies counts of writes, which have nothing
//!    to do with them: names at the target would begin anew.
//! 6. Ephemeral nodes that this store made exist at the target before its session is published, which is before the first request there.
//!    Locks do not: who holds one loses it, as with a session that ends.
//!
//! # Limits     writes that wait: [`WAITING_WRITES_MAX`]
//!
//! # Not here   the coordinator, which copies; processes on a URI of BookKeeper's own (`zk://`), which take no part in Pulsar either

mod follower;
mod phase;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::follower::Follower;
use self::phase::{Flag, Phase};
use crate::fault::ServerFaults;
use crate::layout::LOCKS_PARENT;
use crate::store::{
    CreateMode, Created, MetadataStore, Node, Op, SessionCredentials, SessionId, SessionState, Stat,
    StoreError, StoreFuture, Version, Watch,
};

/// Where the coordinator says how far it is, below the root of Pulsar's store.
pub const FLAG: &str = "/pulsar/migration-coordinator/migration";

/// Below which each process that writes has an ephemeral node.
pub const PARTICIPANTS: &str = "/pulsar/migration-coordinator/participants";

/// How long a write waits for the end of a move. Pulsar's coordinator waits 60 s for participants, and copies in about half of that.
pub const MOVE_WAIT: Duration = Duration::from_secs(90);

/// Writes that wait for the end of a move; the next one fails at once.
pub const WAITING_WRITES_MAX: usize = 1024;

/// Connects to the store that a URL of Pulsar's names, `oxia://HOST:PORT/NAMESPACE`.
pub type Connector = Arc<dyn Fn(&str) -> StoreFuture<'static, Arc<dyn MetadataStore>> + Send + Sync>;

/// Where requests go.
#[derive(Clone)]
enum StorePlace {
    /// The flag was not read yet.
    Unknown,
    /// Reads go to the source. Writes wait until we have a participant.
    SourceToRead,
    /// All requests go to the source. Writes go to this view of it, which is pinned to the session that owns our participant.
    Source(Arc<dyn MetadataStore>, SessionId),
    /// Reads go to the source. Writes wait for the end of the move.
    Moving,
    /// The target has everything, and we are not there yet: all requests wait.
    Switching,
    /// All requests go to the target. Final.
    Target(Arc<dyn MetadataStore>),
    /// Closed by this process.
    Closed,
}

struct Gate {
    place: StorePlace,
    /// Writes that are under way at the source.
    writes: usize,
}

struct Shared {
    source: Arc<dyn MetadataStore>,
    /// The root of Pulsar's store in the source; empty when that is the root of ZooKeeper. The target has none.
    chroot: String,
    gate: watch::Sender<Gate>,
    /// True once the store has moved: watches of the source fire.
    has_moved: watch::Sender<bool>,
    /// Of the flag, from a read by which the move was not completed.
    not_completed: Mutex<Option<Watch>>,
    /// A first write waits for a participant.
    write_is_wanted: Notify,
    waiting: Semaphore,
    /// The ephemeral nodes that this store made at the source, each with the session under which it did. Some may be gone.
    ephemerals: Mutex<BTreeMap<String, SessionId>>,
    /// What a preparation connected to, by its URL.
    prepared: Mutex<Option<(String, Arc<dyn MetadataStore>)>>,
    /// A caller may go by transactions of the source.
    has_said_transactional: AtomicBool,
    session: watch::Sender<SessionState>,
    /// What keeps the flag from being followed, for the error of an opening that is given up.
    fault: Mutex<Option<StoreError>>,
}

/// See the [module](self). Dropping it leaves its sessions to time out.
pub struct MigratingStore {
    shared: Arc<Shared>,
    /// `None` once it was closed.
    follower: Mutex<Option<JoinHandle<()>>>,
}

/// A write under way at the source; the gate shuts once there is none.
struct SourceWrite<'a> {
    shared: &'a Shared,
    store: Arc<dyn MetadataStore>,
    session: SessionId,
}

impl Drop for SourceWrite<'_> {
    fn drop(&mut self) {
        self.shared.gate.send_if_modified(|gate| {
            gate.writes -= 1;
            gate.writes == 0
        });
    }
}

/// Where a write goes.
enum Admitted<'a> {
    Source(SourceWrite<'a>),
    Target(Arc<dyn MetadataStore>),
}

impl MigratingStore {
    /// Follows the migrations of the Pulsar cluster whose store has its root at `chroot` (`/p`, or empty) of `source`, which has
    /// [views](MetadataStore::pinned). A move that was completed earlier is followed before this returns, within `patience`.
    ///
    /// # Errors
    /// Of the source, of a target that cannot be reached, or [`StoreError::Protocol`] when the flag is not one.
    pub async fn open(
        source: Arc<dyn MetadataStore>,
        chroot: &str,
        connector: Connector,
        patience: Duration,
    ) -> Result<MigratingStore, StoreError> {
        let state = source.session().borrow().clone();
        let shared = Arc::new(Shared {
            source,
            chroot: chroot.to_owned(),
            gate: watch::Sender::new(Gate { place: StorePlace::Unknown, writes: 0 }),
            has_moved: watch::Sender::new(false),
            not_completed: Mutex::new(None),
            write_is_wanted: Notify::new(),
            waiting: Semaphore::new(WAITING_WRITES_MAX),
            ephemerals: Mutex::new(BTreeMap::new()),
            prepared: Mutex::new(None),
            has_said_transactional: AtomicBool::new(false),
            session: watch::Sender::new(state),
            fault: Mutex::new(None),
        });
        let mut gate = shared.gate.subscribe();
        let follower = tokio::spawn(Follower::new(shared.clone(), connector).run());
        let store = MigratingStore { shared, follower: Mutex::new(Some(follower)) };
        let is_known = |gate: &Gate| !matches!(gate.place, StorePlace::Unknown | StorePlace::Switching);
        let opened =
            tokio::time::timeout(patience, gate.wait_for(is_known)).await.is_ok_and(|known| known.is_ok());
        match opened {
            true => Ok(store),
            false => Err(store.shared.fault.lock().take().unwrap_or(StoreError::ConnectionLoss)),
        }
    }
}

impl Drop for MigratingStore {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.get_mut() {
            follower.abort();
        }
    }
}

impl Shared {
    fn target(&self) -> Option<Arc<dyn MetadataStore>> {
        match &self.gate.borrow().place {
            StorePlace::Target(target) => Some(target.clone()),
            _ => None,
        }
    }

    /// Never leaves [`StorePlace::Closed`].
    fn set_place(&self, place: StorePlace) {
        self.gate.send_modify(|gate| {
            if !matches!(gate.place, StorePlace::Closed) {
                gate.place = place;
            }
        });
    }

    /// The path at the target of one at the source.
    fn path_at_target<'a>(&self, path: &'a str) -> &'a str {
        match path.strip_prefix(&*self.chroot) {
            Some(rest) if rest.starts_with('/') => rest,
            Some("") => "/",
            // Not below the root of Pulsar's store: nothing of ours is there, and nothing was copied.
            _ => path,
        }
    }

    /// The path at the source of one at the target.
    fn path_at_source(&self, path: &str) -> String {
        format!("{}{path}", self.chroot)
    }

    /// An error of the target, with its path as the caller knows it.
    fn outward(&self, mut error: StoreError) -> StoreError {
        if let Some(path) = error.path_mut() {
            *path = self.path_at_source(path);
        }
        error
    }

    /// The flag of the source, and a watch for its next change.
    async fn read_flag(&self) -> Result<(Flag, Watch), StoreError> {
        let path = self.path_at_source(FLAG);
        match self.source.get_and_watch(&path).await {
            Ok((node, watch)) => Ok((Flag::read(&path, &node), watch)),
            Err(StoreError::NoNode { .. }) => match self.source.exists_and_watch(&path).await? {
                (None, watch) => Ok((Flag::MISSING, watch)),
                // Made just now: the watch would miss what it says.
                (Some(_), _) => Err(StoreError::ConnectionLoss),
            },
            Err(other) => Err(other),
        }
    }

    /// Whether the move is completed, as far as the last answered sync of the source sees (invariant 3).
    async fn is_completed(&self) -> Result<bool, StoreError> {
        if self.not_completed.lock().as_mut().is_some_and(|watch| !watch.has_fired()) {
            return Ok(false);
        }
        let (flag, watch) = self.read_flag().await?;
        let is_completed = flag.migration.is_ok_and(|migration| migration.phase == Phase::Completed);
        if !is_completed {
            *self.not_completed.lock() = Some(watch);
        }
        Ok(is_completed)
    }

    /// Waits until the place is one that `is_there` accepts, for as long as a write waits.
    async fn place_when(&self, is_there: impl Fn(&StorePlace) -> bool) -> Result<StorePlace, StoreError> {
        let mut gate = self.gate.subscribe();
        let is_there = |gate: &Gate| is_there(&gate.place) || matches!(gate.place, StorePlace::Closed);
        let there = tokio::time::timeout(MOVE_WAIT, gate.wait_for(is_there)).await;
        match there.map_err(|_| StoreError::Moving)?.map_err(|_| StoreError::Closed)?.place.clone() {
            StorePlace::Closed => Err(StoreError::Closed),
            place => Ok(place),
        }
    }

    /// The target, if reads go there. Waits until that is known.
    async fn target_of_reads(&self) -> Result<Option<Arc<dyn MetadataStore>>, StoreError> {
        let is_known = |place: &StorePlace| !matches!(place, StorePlace::Unknown | StorePlace::Switching);
        match self.place_when(is_known).await? {
            StorePlace::Target(target) => Ok(Some(target)),
            _ => Ok(None),
        }
    }

    /// Waits for a place that takes writes.
    async fn admit(&self) -> Result<Admitted<'_>, StoreError> {
        if let Some(admitted) = self.try_admit() {
            return admitted;
        }
        let Ok(_waiting) = self.waiting.try_acquire() else { return Err(StoreError::Moving) };
        let (mut begun, mut was_moving) = (Instant::now(), false);
        let mut gate = self.gate.subscribe();
        loop {
            // Seen before it is acted upon: a change that follows ends the wait below.
            let is_moving =
                matches!(gate.borrow_and_update().place, StorePlace::Moving | StorePlace::Switching);
            if let Some(admitted) = self.try_admit() {
                return admitted;
            }
            if !is_moving {
                self.write_is_wanted.notify_one();
            }
            // A move that is given up leaves each write the time that it would have had without one.
            if std::mem::replace(&mut was_moving, is_moving) != is_moving {
                begun = Instant::now();
            }
            let patience = if is_moving { MOVE_WAIT } else { self.source.session_timeout() };
            match tokio::time::timeout_at(begun + patience, gate.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(StoreError::Closed),
                Err(_) if is_moving => return Err(StoreError::Moving),
                // Nothing was sent.
                Err(_) => {
                    let faults = ServerFaults::default();
                    let fault = self.fault.lock().clone();
                    return Err(fault.unwrap_or(StoreError::Unreachable { waited: patience, faults }));
                }
            }
        }
    }

    fn try_admit(&self) -> Option<Result<Admitted<'_>, StoreError>> {
        let mut admitted = None;
        let current = self.source.session().borrow().clone();
        // The count changes under the lock of the place, so that no write begins once the gate is shut.
        self.gate.send_if_modified(|gate| {
            match &gate.place {
                // It waits for a participant under the new session.
                StorePlace::Source(_, session)
                    if matches!(current, SessionState::Connected(current) if current != *session) => {}
                StorePlace::Source(store, session) => {
                    gate.writes += 1;
                    let write = SourceWrite { shared: self, store: store.clone(), session: *session };
                    admitted = Some(Ok(Admitted::Source(write)));
                }
                StorePlace::Target(target) => admitted = Some(Ok(Admitted::Target(target.clone()))),
                StorePlace::Closed => admitted = Some(Err(StoreError::Closed)),
                StorePlace::Unknown
                | StorePlace::SourceToRead
                | StorePlace::Moving
                | StorePlace::Switching => {}
            }
            false
        });
        admitted
    }

    /// Notes an ephemeral node of the source that the target has to have, too. Returns whether it is new.
    fn note_ephemeral(&self, path: &str, session: SessionId) -> bool {
        !path.contains(LOCKS_PARENT) && self.ephemerals.lock().insert(path.to_owned(), session).is_none()
    }

    /// Notes a node that was read and is our session's: an earlier process may have made it.
    fn note_own(&self, path: &str, owner: Option<SessionId>) {
        if let Some(owner) = owner
            && let SessionState::Connected(session) | SessionState::Suspended(session) =
                *self.source.session().borrow()
            && owner == session
        {
            self.note_ephemeral(path, session);
        }
    }
}

impl SourceWrite<'_> {
    fn forget_ephemeral(&self, path: &str) {
        self.shared.ephemerals.lock().remove(path);
    }

    async fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> Result<Created, StoreError> {
        // Noted before it may be there: a lost answer leaves a node that the target needs.
        let is_new = mode == CreateMode::Ephemeral && self.shared.note_ephemeral(path, self.session);
        let created = self.store.create(path, data, mode).await;
        match &created {
            Ok(created) if mode == CreateMode::EphemeralSequential => {
                self.shared.note_ephemeral(&created.path, self.session);
            }
            Err(error) if is_new && !error.is_transient() => self.forget_ephemeral(path),
            Ok(_) | Err(_) => {}
        }
        created
    }

    async fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> Result<Stat, StoreError> {
        let stat = self.store.set(path, data, expected).await?;
        // Of an earlier process whose session this one took up.
        if stat.owner == Some(self.session) {
            self.shared.note_ephemeral(path, self.session);
        }
        Ok(stat)
    }

    async fn delete(&self, path: &str, expected: Option<Version>) -> Result<(), StoreError> {
        self.store.delete(path, expected).await?;
        self.forget_ephemeral(path);
        Ok(())
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<(), StoreError> {
        let mut deleted = Vec::new();
        for op in &ops {
            match op {
                Op::Create { path, mode: CreateMode::Ephemeral, .. } => {
                    self.shared.note_ephemeral(path, self.session);
                }
                Op::Delete { path, .. } => deleted.push(path.clone()),
                Op::Create { .. } | Op::Set { .. } | Op::Check { .. } => {}
            }
        }
        self.store.multi(ops).await?;
        deleted.iter().for_each(|path| self.forget_ephemeral(path));
        Ok(())
    }
}

/// What a read of the source gives.
trait Found {
    /// What the caller gets of it: our ephemeral nodes are noted, and watches also fire when the store moves.
    fn taken_in(self, shared: &Shared, path: &str) -> Self;
}

impl Found for Node {
    fn taken_in(self, shared: &Shared, path: &str) -> Node {
        shared.note_own(path, self.stat.owner);
        self
    }
}

impl Found for Option<Stat> {
    fn taken_in(self, shared: &Shared, path: &str) -> Option<Stat> {
        shared.note_own(path, self.and_then(|stat| stat.owner));
        self
    }
}

impl Found for Vec<String> {
    fn taken_in(self, _shared: &Shared, _path: &str) -> Vec<String> {
        self
    }
}

impl<T: Found> Found for (T, Watch) {
    fn taken_in(self, shared: &Shared, path: &str) -> (T, Watch) {
        (self.0.taken_in(shared, path), self.1.or_when(shared.has_moved.subscribe()))
    }
}

/// A read of the store where reads go, by this method of the trait.
macro_rules! read {
    ($self:ident, $method:ident, $path:ident) => {{
        let (shared, path) = (&*$self.shared, $path.to_owned());
        Box::pin(async move {
            match shared.target_of_reads().await? {
                Some(target) => {
                    let found = target.$method(shared.path_at_target(&path)).await;
                    found.map_err(|error| shared.outward(error))
                }
                None => Ok(shared.source.$method(&path).await?.taken_in(shared, &path)),
            }
        })
    }};
}

impl MetadataStore for MigratingStore {
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        read!(self, get, path)
    }

    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        read!(self, get_and_watch, path)
    }

    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        read!(self, exists, path)
    }

    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        read!(self, exists_and_watch, path)
    }

    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        read!(self, children, path)
    }

    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)> {
        read!(self, children_and_watch, path)
    }

    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
        let path = path.to_owned();
        Box::pin(async move {
            match self.shared.admit().await? {
                Admitted::Source(write) => write.create(&path, data, mode).await,
                Admitted::Target(target) => {
                    let created = target.create(self.shared.path_at_target(&path), data, mode).await;
                    let created = created.map_err(|error| self.shared.outward(error))?;
                    Ok(Created { path: self.shared.path_at_source(&created.path), ..created })
                }
            }
        })
    }

    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        let path = path.to_owned();
        Box::pin(async move {
            match self.shared.admit().await? {
                Admitted::Source(write) => write.set(&path, data, expected).await,
                Admitted::Target(target) => {
                    let set = target.set(self.shared.path_at_target(&path), data, expected).await;
                    set.map_err(|error| self.shared.outward(error))
                }
            }
        })
    }

    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        let path = path.to_owned();
        Box::pin(async move {
            let was_at_target = self.shared.target().is_some();
            match self.shared.admit().await? {
                Admitted::Source(write) => write.delete(&path, expected).await,
                // The caller may rely on the source's transactions. At the target a child that is created now would lose its parent.
                Admitted::Target(_) if !was_at_target && expected.is_none() => Err(StoreError::Moving),
                Admitted::Target(target) => {
                    let deleted = target.delete(self.shared.path_at_target(&path), expected).await;
                    deleted.map_err(|error| self.shared.outward(error))
                }
            }
        })
    }

    fn is_transactional(&self) -> bool {
        let is_transactional = match self.shared.target() {
            Some(target) => target.is_transactional(),
            None => self.shared.source.is_transactional(),
        };
        self.shared.has_said_transactional.fetch_or(is_transactional, Ordering::Relaxed);
        is_transactional
    }

    fn skip_sequence(&self, parent: &str, next: u32) -> StoreFuture<'_, ()> {
        let parent = parent.to_owned();
        Box::pin(async move {
            match self.shared.admit().await? {
                Admitted::Source(write) => write.store.skip_sequence(&parent, next).await,
                Admitted::Target(target) => {
                    let skipped = target.skip_sequence(self.shared.path_at_target(&parent), next).await;
                    skipped.map_err(|error| self.shared.outward(error))
                }
            }
        })
    }

    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self.shared.admit().await? {
                Admitted::Source(write) => write.multi(ops).await,
                // The store may have moved since the caller asked for this: the next attempt goes without.
                Admitted::Target(target)
                    if !target.is_transactional()
                        && self.shared.has_said_transactional.load(Ordering::Relaxed) =>
                {
                    Err(StoreError::Moving)
                }
                Admitted::Target(target) => {
                    let shared = &*self.shared;
                    let applied =
                        target.multi(ops.into_iter().map(|op| shared.at_target(op)).collect()).await;
                    applied.map_err(|error| shared.outward(error))
                }
            }
        })
    }

    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        let path = path.to_owned();
        Box::pin(async move {
            let shared = &*self.shared;
            let mut target = shared.target_of_reads().await?;
            if target.is_none() {
                shared.source.sync(&path).await?;
                // Others may be at the target already.
                if shared.is_completed().await? {
                    let is_moved = |place: &StorePlace| matches!(place, StorePlace::Target(_));
                    let StorePlace::Target(moved) = shared.place_when(is_moved).await? else {
                        unreachable!("it waits for this place")
                    };
                    target = Some(moved);
                }
            }
            let Some(target) = target else { return Ok(()) };
            target.sync(shared.path_at_target(&path)).await.map_err(|error| shared.outward(error))
        })
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.shared.session.subscribe()
    }

    fn session_credentials(&self) -> Option<SessionCredentials> {
        match self.shared.target() {
            Some(target) => target.session_credentials(),
            None => self.shared.source.session_credentials(),
        }
    }

    fn session_timeout(&self) -> Duration {
        match self.shared.target() {
            Some(target) => target.session_timeout(),
            None => self.shared.source.session_timeout(),
        }
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let mut at_target = None;
            self.shared.gate.send_modify(|gate| {
                if let StorePlace::Target(target) = std::mem::replace(&mut gate.place, StorePlace::Closed) {
                    at_target = Some(target);
                }
            });
            self.shared.publish(SessionState::Closed);
            // Whatever it has connected to by its end is noted.
            let follower = self.follower.lock().take();
            if let Some(follower) = follower {
                follower.abort();
                let _ = follower.await;
            }
            let prepared = self.shared.prepared.lock().take().map(|(_, prepared)| prepared);
            let closed = match at_target.or(prepared) {
                Some(target) => target.close().await,
                None => Ok(()),
            };
            self.shared.source.close().await.and(closed)
        })
    }
}

impl Shared {
    fn at_target(&self, op: Op) -> Op {
        let at = |path: String| self.path_at_target(&path).to_owned();
        match op {
            Op::Create { path, data, mode } => Op::Create { path: at(path), data, mode },
            Op::Set { path, data, expected } => Op::Set { path: at(path), data, expected },
            Op::Delete { path, expected } => Op::Delete { path: at(path), expected },
            Op::Check { path, expected } => Op::Check { path: at(path), expected },
        }
    }
}
