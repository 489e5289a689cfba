//! The memory driver: a metadata store for tests, deterministic, with faults on request.
//!
//! A [`MemoryCluster`] holds the tree; each [`MemoryStore`] opened on it is one client with its own session. Nothing
//! happens by itself: no session expires, no connection breaks unless a test says so. It runs the same
//! [`conformance`](crate::conformance) suite as the real drivers.
//!
//! A cluster is [of ZooKeeper's kind or of Oxia's](Kind), which differ in all that the trait leaves open; tests of layouts run on both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::fault::ServerFaults;
use crate::store::{
    CreateMode, Created, MetadataStore, Node, Op, SessionCredentials, SessionId, SessionState, Stat,
    StoreError, StoreFuture, VALUE_SIZE_BYTES_MAX, Version, Watch, WatchEvent, parent_of,
};

/// Whose properties a cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kind {
    /// Versions count the writes of a node from 0 on, sequences the children from 0 on, and there are transactions.
    #[default]
    OfZooKeeper,
    /// Versions are those of one counter for all nodes, sequences count the writes of the parent from 1 on, nothing counts children, and
    /// there are no transactions.
    OfOxia,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 2] = [Kind::OfZooKeeper, Kind::OfOxia];
}

struct Entry {
    data: Bytes,
    version: Version,
    /// Since it was created.
    writes: i64,
    owner: Option<SessionId>,
    created_ms: i64,
    /// What the name of the next sequential child ends with.
    sequence: u32,
}

#[derive(Default)]
struct Tree {
    kind: Kind,
    /// The last version that was given; for Oxia's kind.
    last_version: i64,
    nodes: BTreeMap<String, Entry>,
    data_watches: BTreeMap<String, Vec<(SessionId, oneshot::Sender<WatchEvent>)>>,
    child_watches: BTreeMap<String, Vec<(SessionId, oneshot::Sender<WatchEvent>)>>,
    clients: BTreeMap<SessionId, Weak<Client>>,
    live: BTreeMap<SessionId, ()>,
    last_session: i64,
    /// Milliseconds; moves by one with each write, so that creation times are distinct and repeatable.
    now_ms: i64,
}

struct Client {
    state: watch::Sender<SessionState>,
    /// A fault and how many writes pass before it.
    fault: Mutex<Option<(usize, Fault)>>,
    /// A change that another client makes just before a read of this one, and how many reads come before that.
    interleaved: Mutex<Option<(usize, Change)>>,
    /// As `interleaved`, within a write.
    interleaved_write: Mutex<Option<(usize, Change)>>,
    is_hanging: AtomicBool,
}

type Change = Box<dyn FnOnce() + Send>;

/// Takes what waits until it is due, and counts down to it before that.
fn take_due<T>(waiting: &Mutex<Option<(usize, T)>>) -> Option<T> {
    let mut waiting = waiting.lock();
    match waiting.take() {
        Some((0, due)) => Some(due),
        Some((left, later)) => {
            *waiting = Some((left - 1, later));
            None
        }
        None => None,
    }
}

/// A fault to inject into the next write of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks before the write is applied; the caller sees [`StoreError::ConnectionLoss`].
    LossBeforeApply,
    /// The write is applied, then the connection breaks; the caller sees [`StoreError::ConnectionLoss`].
    LossAfterApply,
}

/// A tree that several clients share.
#[derive(Clone, Default)]
pub struct MemoryCluster {
    tree: Arc<Mutex<Tree>>,
}

/// Session timeout that memory stores report: short, because tests wait for it.
pub const MEMORY_SESSION_TIMEOUT: Duration = Duration::from_millis(200);

impl MemoryCluster {
    /// An empty tree.
    pub fn new() -> MemoryCluster {
        MemoryCluster::default()
    }

    /// An empty tree of this kind.
    pub fn of(kind: Kind) -> MemoryCluster {
        let cluster = MemoryCluster::new();
        // Neither small nor equal to a count of anything.
        *cluster.tree.lock() = Tree { kind, last_version: 5_000_000_000, ..Tree::default() };
        cluster
    }

    /// The same tree, whose next node is created at `now_ms`, milliseconds since 1970: for those who compare creation times with the wall
    /// clock.
    pub fn at(self, now_ms: i64) -> MemoryCluster {
        self.tree.lock().now_ms = now_ms;
        self
    }

    /// Whose properties it has.
    pub fn kind(&self) -> Kind {
        self.tree.lock().kind
    }

    /// An empty tree whose first node is created [at](Self::at) that time.
    pub fn starting_at(now_ms: i64) -> MemoryCluster {
        MemoryCluster::new().at(now_ms)
    }

    /// A client with a new session.
    pub fn open(&self) -> MemoryStore {
        self.open_session(None)
    }

    /// A client that resumes the session of `credentials`, as a restarted process does; it gets a new one if that has ended.
    pub fn resume(&self, credentials: &SessionCredentials) -> MemoryStore {
        self.open_session(Some(credentials.id))
    }

    fn open_session(&self, wanted: Option<SessionId>) -> MemoryStore {
        let mut tree = self.tree.lock();
        let id = match wanted {
            Some(id) if tree.live.contains_key(&id) => id,
            _ => tree.new_session(),
        };
        let (state, receiver) = watch::channel(SessionState::Connected(id));
        let client = Arc::new(Client {
            state,
            fault: Mutex::default(),
            interleaved: Mutex::default(),
            interleaved_write: Mutex::default(),
            is_hanging: AtomicBool::default(),
        });
        tree.clients.insert(id, Arc::downgrade(&client));
        drop(tree);
        MemoryStore { cluster: self.clone(), client, receiver, pinned: None }
    }

    /// Sets the counter of a node's next sequential child, to reach its end without counting up to it.
    pub fn set_sequence(&self, path: &str, next: u32) {
        if let Some(entry) = self.tree.lock().nodes.get_mut(path) {
            entry.sequence = next;
        }
    }

    /// Ends a session on the server's side while its client is disconnected: the client finds out when it reconnects.
    pub fn expire_quietly(&self, id: SessionId) {
        self.tree.lock().end_session(id);
    }

    /// Ends a session on the server's side: its ephemeral nodes go, and its client, if it still runs, learns of the
    /// expiry and gets a new session.
    pub fn expire(&self, id: SessionId) {
        let mut tree = self.tree.lock();
        tree.end_session(id);
        let client = tree.clients.remove(&id).and_then(|client| client.upgrade());
        let Some(client) = client else { return };
        let new = tree.new_session();
        tree.clients.insert(new, Arc::downgrade(&client));
        client.state.send_replace(SessionState::Expired(id));
        client.state.send_replace(SessionState::Connected(new));
    }
}

/// One client of a [`MemoryCluster`]. Dropping it leaves its session alive; [`MetadataStore::close`] ends it.
pub struct MemoryStore {
    cluster: MemoryCluster,
    client: Arc<Client>,
    receiver: watch::Receiver<SessionState>,
    /// Requests are applied under this session or not at all.
    pinned: Option<SessionId>,
}

impl MemoryStore {
    /// Injects a fault into the next write.
    pub fn inject(&self, fault: Fault) {
        self.inject_at(0, fault);
    }

    /// Injects a fault into the write that follows the next `writes` ones.
    pub fn inject_at(&self, writes: usize, fault: Fault) {
        *self.client.fault.lock() = Some((writes, fault));
    }

    /// Makes `change`, on behalf of another client, happen just before the read that follows this client's next `reads` ones.
    pub fn interleave(&self, reads: usize, change: impl FnOnce() + Send + 'static) {
        *self.client.interleaved.lock() = Some((reads, Box::new(change)));
    }

    /// Makes `change`, on behalf of another client, happen within the write of one node that follows this client's next `writes` ones. On
    /// Oxia's kind it comes after the write looked at parents and children and drew its number, and before it is applied, as the
    /// [trait](MetadataStore::is_transactional) allows; on ZooKeeper's kind it comes before the write.
    pub fn interleave_write(&self, writes: usize, change: impl FnOnce() + Send + 'static) {
        *self.client.interleaved_write.lock() = Some((writes, Box::new(change)));
    }

    /// From now on no `get` of this client is answered, as when the servers are unreachable for a long time.
    pub fn hang(&self) {
        self.client.is_hanging.store(true, Ordering::Relaxed);
    }

    fn before_read(&self) {
        if let Some(change) = take_due(&self.client.interleaved) {
            change();
        }
    }

    /// Takes the connection down: watches fire `Lost`, requests fail with [`StoreError::Unreachable`].
    pub fn disconnect(&self) {
        // The tree's lock is always taken before the state channel's.
        let mut tree = self.cluster.tree.lock();
        let current = self.client.state.borrow().clone();
        if let SessionState::Connected(id) = current {
            self.client.state.send_replace(SessionState::Suspended(id));
            tree.lose_watches(id);
        }
    }

    /// Brings the connection back under the same session, or under a new one if that was expired meanwhile.
    pub fn reconnect(&self) {
        let mut tree = self.cluster.tree.lock();
        let current = self.client.state.borrow().clone();
        if let SessionState::Suspended(id) = current {
            let id = if tree.live.contains_key(&id) { id } else { tree.new_session() };
            tree.clients.insert(id, Arc::downgrade(&self.client));
            self.client.state.send_replace(SessionState::Connected(id));
        }
    }

    fn read<T>(
        &self,
        request: impl FnOnce(&mut Tree, SessionId) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.before_read();
        self.with_tree(request)
    }

    /// Runs `request` under the current session, or says why there is none.
    fn with_tree<T>(
        &self,
        request: impl FnOnce(&mut Tree, SessionId) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut tree = self.cluster.tree.lock();
        let state = self.client.state.borrow().clone();
        match state {
            SessionState::Connected(id) if self.pinned.is_some_and(|pinned| pinned != id) => {
                Err(StoreError::SessionExpired)
            }
            SessionState::Connected(id) => request(&mut tree, id),
            SessionState::Closed => Err(StoreError::Closed),
            SessionState::AuthFailed(why) => Err(StoreError::AuthFailed { why }),
            SessionState::Connecting | SessionState::Suspended(_) | SessionState::Expired(_) => {
                Err(StoreError::Unreachable { waited: Duration::ZERO, faults: ServerFaults::default() })
            }
        }
    }

    fn write<T>(
        &self,
        request: impl FnOnce(&mut Tree, SessionId) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let outcome = match take_due(&self.client.fault) {
            Some(Fault::LossBeforeApply) => Err(StoreError::ConnectionLoss),
            Some(Fault::LossAfterApply) => {
                self.with_tree(request).and_then(|_| Err(StoreError::ConnectionLoss))
            }
            None => return self.with_tree(request),
        };
        self.disconnect();
        self.reconnect();
        outcome
    }

    /// Writes one node: `answer` reads what the caller is told, of the path that was written.
    fn write_node<T>(&self, op: &Op, answer: impl FnOnce(&Tree, String) -> T) -> Result<T, StoreError> {
        let mut begun = None;
        if let Some(change) = take_due(&self.client.interleaved_write) {
            if !self.is_transactional() {
                begun = Some(self.with_tree(|tree, _| tree.begin(op))?);
            }
            change();
        }
        self.write(|tree, session| {
            let number = match begun {
                Some(number) => {
                    tree.check_node(op)?;
                    number
                }
                None => tree.begin(op)?,
            };
            let path = tree.finish(op, number, session);
            Ok(answer(tree, path))
        })
    }
}

fn fire(watches: Vec<(SessionId, oneshot::Sender<WatchEvent>)>, event: WatchEvent) {
    for (_, sender) in watches {
        let _ = sender.send(event);
    }
}

impl Tree {
    fn new_session(&mut self) -> SessionId {
        self.last_session += 1;
        let id = SessionId(self.last_session);
        self.live.insert(id, ());
        id
    }

    fn end_session(&mut self, id: SessionId) {
        self.live.remove(&id);
        self.lose_watches(id);
        let owned: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, entry)| entry.owner == Some(id))
            .map(|(path, _)| path.clone())
            .collect();
        for path in owned {
            self.remove(&path);
        }
    }

    fn lose_watches(&mut self, id: SessionId) {
        for watches in self.data_watches.values_mut().chain(self.child_watches.values_mut()) {
            let (lost, kept) = std::mem::take(watches).into_iter().partition(|(owner, _)| *owner == id);
            *watches = kept;
            fire(lost, WatchEvent::Lost);
        }
    }

    fn exists(&self, path: &str) -> bool {
        path == "/" || self.nodes.contains_key(path)
    }

    fn children(&self, path: &str) -> Vec<String> {
        let prefix = if path == "/" { "/".to_string() } else { format!("{path}/") };
        self.nodes
            .range(prefix.clone()..)
            .map_while(|(child, _)| child.strip_prefix(&prefix))
            .filter(|name| !name.contains('/'))
            .map(String::from)
            .collect()
    }

    fn stat(&self, path: &str) -> Option<Stat> {
        let entry = self.nodes.get(path)?;
        Some(Stat {
            version: entry.version,
            owner: entry.owner,
            created_ms: entry.created_ms,
            children_count: match self.kind {
                Kind::OfZooKeeper => Some(self.children(path).len() as u32),
                Kind::OfOxia => None,
            },
            next_sequence: entry.sequence,
        })
    }

    fn node(&self, path: &str) -> Result<Node, StoreError> {
        match (self.nodes.get(path), self.stat(path)) {
            (Some(entry), Some(stat)) => Ok(Node { data: entry.data.clone(), stat }),
            _ => Err(StoreError::NoNode { path: path.into() }),
        }
    }

    fn check_version(&self, path: &str, expected: Option<Version>) -> Result<(), StoreError> {
        let entry = self.nodes.get(path).ok_or_else(|| StoreError::NoNode { path: path.into() })?;
        match expected {
            Some(version) if version != entry.version => Err(StoreError::BadVersion { path: path.into() }),
            _ => Ok(()),
        }
    }

    /// Checks one operation without applying it.
    fn check(&self, op: &Op) -> Result<(), StoreError> {
        match op {
            Op::Create { path, data, .. } => {
                check_size(path, data)?;
                let parent = parent_of(path);
                if !self.exists(parent) {
                    return Err(StoreError::NoNode { path: path.clone() });
                }
                if self.nodes.get(parent).is_some_and(|entry| entry.owner.is_some()) {
                    return Err(StoreError::NoChildrenForEphemerals { path: path.clone() });
                }
            }
            Op::Set { path, data, .. } => check_size(path, data)?,
            Op::Check { .. } => {}
            Op::Delete { path, expected } => {
                self.check_version(path, *expected)?;
                if !self.children(path).is_empty() {
                    return Err(StoreError::NotEmpty { path: path.clone() });
                }
            }
        }
        self.check_node(op)
    }

    /// Checks an operation against its own node: the part of the check that is atomic with the write in a store without transactions.
    fn check_node(&self, op: &Op) -> Result<(), StoreError> {
        match op {
            Op::Create { path, mode, .. } => match self.exists(path) && !is_sequential(*mode) {
                true => Err(StoreError::NodeExists { path: path.clone() }),
                false => Ok(()),
            },
            Op::Set { path, expected, .. } | Op::Delete { path, expected } => {
                self.check_version(path, *expected)
            }
            Op::Check { path, expected } => self.check_version(path, Some(*expected)),
        }
    }

    /// Checks an operation, and draws the number of a node that it creates.
    fn begin(&mut self, op: &Op) -> Result<u32, StoreError> {
        self.check(op)?;
        Ok(match op {
            Op::Create { path, mode, .. } => self.take_sequence(parent_of(path), is_sequential(*mode)),
            Op::Set { .. } | Op::Check { .. } | Op::Delete { .. } => 0,
        })
    }

    /// The version of a value after this many writes of its node.
    fn version_after(&mut self, writes: i64) -> Version {
        match self.kind {
            Kind::OfZooKeeper => Version::counted(writes),
            Kind::OfOxia => {
                self.last_version += 1;
                Version::new(self.last_version, writes)
            }
        }
    }

    /// Counts a write of a node, which gets another version.
    fn write(&mut self, path: &str) {
        let writes = self.nodes.get(path).map_or(0, |entry| entry.writes + 1);
        let (version, kind) = (self.version_after(writes), self.kind);
        if let Some(entry) = self.nodes.get_mut(path) {
            (entry.version, entry.writes) = (version, writes);
            entry.sequence += u32::from(kind == Kind::OfOxia);
        }
    }

    /// The number of a child that is created now.
    fn take_sequence(&mut self, parent: &str, is_sequential: bool) -> u32 {
        let sequence = self.nodes.get(parent).map_or(0, |entry| entry.sequence);
        match (self.kind, self.nodes.get_mut(parent)) {
            (Kind::OfZooKeeper, Some(entry)) => entry.sequence += 1,
            (Kind::OfOxia, Some(_)) if is_sequential => self.write(parent),
            (Kind::OfOxia, Some(_)) | (_, None) => {}
        }
        sequence
    }

    /// Applies one operation, with the number that [`begin`](Self::begin) drew for it, and returns the path of its node.
    fn finish(&mut self, op: &Op, sequence: u32, session: SessionId) -> String {
        self.now_ms += 1;
        match op {
            Op::Create { path, data, mode } => {
                let parent = parent_of(path).to_string();
                let (suffix, owner) = match mode {
                    CreateMode::Persistent => (None, None),
                    CreateMode::Ephemeral => (None, Some(session)),
                    CreateMode::PersistentSequential => (Some(sequence), None),
                    CreateMode::EphemeralSequential => (Some(sequence), Some(session)),
                };
                let path = suffix.map_or_else(|| path.clone(), |suffix| format!("{path}{suffix:010}"));
                let entry = Entry {
                    data: data.clone(),
                    version: self.version_after(0),
                    writes: 0,
                    owner,
                    created_ms: self.now_ms,
                    sequence: u32::from(self.kind == Kind::OfOxia),
                };
                self.nodes.insert(path.clone(), entry);
                fire(self.data_watches.remove(&path).unwrap_or_default(), WatchEvent::Created);
                fire(self.child_watches.remove(&parent).unwrap_or_default(), WatchEvent::ChildrenChanged);
                path
            }
            Op::Set { path, data, .. } => {
                self.write(path);
                let entry = self.nodes.get_mut(path).expect("check() found the node");
                entry.data = data.clone();
                fire(self.data_watches.remove(path).unwrap_or_default(), WatchEvent::DataChanged);
                path.clone()
            }
            Op::Delete { path, .. } => {
                self.remove(path);
                path.clone()
            }
            Op::Check { path, .. } => path.clone(),
        }
    }

    fn remove(&mut self, path: &str) {
        self.nodes.remove(path);
        fire(self.data_watches.remove(path).unwrap_or_default(), WatchEvent::Deleted);
        fire(self.child_watches.remove(path).unwrap_or_default(), WatchEvent::Deleted);
        fire(self.child_watches.remove(parent_of(path)).unwrap_or_default(), WatchEvent::ChildrenChanged);
    }

    /// All or nothing: tries the operations on a copy of the nodes that they look at before it applies them.
    fn transact(&mut self, ops: &[Op], session: SessionId) -> Result<(), StoreError> {
        let mut trial = Tree { now_ms: self.now_ms, ..Tree::default() };
        let mut paths = BTreeSet::new();
        for op in ops {
            let (Op::Create { path, .. }
            | Op::Set { path, .. }
            | Op::Check { path, .. }
            | Op::Delete { path, .. }) = op;
            paths.extend([path.clone(), parent_of(path).to_owned()]);
            if matches!(op, Op::Delete { .. }) {
                paths.extend(self.children(path).iter().map(|name| format!("{path}/{name}")));
            }
        }
        for path in paths {
            let Some(entry) = self.nodes.get(&path) else { continue };
            let copy = Entry { data: entry.data.clone(), ..*entry };
            trial.nodes.insert(path, copy);
        }
        for op in ops {
            let number = trial.begin(op)?;
            trial.finish(op, number, session);
        }
        for op in ops {
            let number = self.begin(op)?;
            self.finish(op, number, session);
        }
        Ok(())
    }
}

fn is_sequential(mode: CreateMode) -> bool {
    match mode {
        CreateMode::PersistentSequential | CreateMode::EphemeralSequential => true,
        CreateMode::Persistent | CreateMode::Ephemeral => false,
    }
}

fn check_size(path: &str, data: &[u8]) -> Result<(), StoreError> {
    match data.len() > VALUE_SIZE_BYTES_MAX {
        true => Err(StoreError::TooLarge { path: path.into(), size_bytes: data.len() }),
        false => Ok(()),
    }
}

/// The memory store answers at once; the trait wants a future.
fn ready<'a, T: Send + 'a>(result: Result<T, StoreError>) -> StoreFuture<'a, T> {
    Box::pin(std::future::ready(result))
}

impl MetadataStore for MemoryStore {
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        if self.client.is_hanging.load(Ordering::Relaxed) {
            return Box::pin(std::future::pending());
        }
        ready(self.read(|tree, _| tree.node(path)))
    }

    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        ready(self.read(|tree, session| {
            let node = tree.node(path)?;
            let (sender, watch) = Watch::new();
            tree.data_watches.entry(path.into()).or_default().push((session, sender));
            Ok((node, watch))
        }))
    }

    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        ready(self.read(|tree, _| Ok(tree.stat(path))))
    }

    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        ready(self.read(|tree, session| {
            let (sender, watch) = Watch::new();
            tree.data_watches.entry(path.into()).or_default().push((session, sender));
            Ok((tree.stat(path), watch))
        }))
    }

    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        ready(self.read(|tree, _| match tree.exists(path) {
            true => Ok(tree.children(path)),
            false => Err(StoreError::NoNode { path: path.into() }),
        }))
    }

    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)> {
        ready(self.read(|tree, session| {
            if !tree.exists(path) {
                return Err(StoreError::NoNode { path: path.into() });
            }
            let (sender, watch) = Watch::new();
            tree.child_watches.entry(path.into()).or_default().push((session, sender));
            Ok((tree.children(path), watch))
        }))
    }

    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
        let op = Op::Create { path: path.into(), data, mode };
        ready(self.write_node(&op, |tree, path| {
            let version = tree.nodes[&path].version;
            Created { path, version }
        }))
    }

    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        let op = Op::Set { path: path.into(), data, expected };
        ready(self.write_node(&op, |tree, path| tree.stat(&path).expect("a node just set exists")))
    }

    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        let op = Op::Delete { path: path.into(), expected };
        ready(self.write_node(&op, |_, _| ()))
    }

    fn is_transactional(&self) -> bool {
        self.cluster.kind() == Kind::OfZooKeeper
    }

    fn pinned(&self, session: SessionId) -> Option<Arc<dyn MetadataStore>> {
        Some(Arc::new(MemoryStore {
            cluster: self.cluster.clone(),
            client: self.client.clone(),
            receiver: self.receiver.clone(),
            pinned: Some(session),
        }))
    }

    fn skip_sequence(&self, parent: &str, next: u32) -> StoreFuture<'_, ()> {
        if self.is_transactional() {
            return ready(Err(StoreError::Unsupported("skipping numbers of sequential names")));
        }
        ready(self.write(|tree, _| {
            let entry =
                tree.nodes.get(parent).ok_or_else(|| StoreError::NoNode { path: parent.to_owned() })?;
            if entry.sequence < next {
                tree.write(parent);
                if let Some(entry) = tree.nodes.get_mut(parent) {
                    entry.sequence = next;
                }
            }
            Ok(())
        }))
    }

    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()> {
        if !self.is_transactional() {
            return ready(Err(StoreError::Unsupported("transactions")));
        }
        ready(self.write(|tree, session| tree.transact(&ops, session)))
    }

    fn sync(&self, _path: &str) -> StoreFuture<'_, ()> {
        ready(self.with_tree(|_, _| Ok(())))
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.receiver.clone()
    }

    fn session_credentials(&self) -> Option<SessionCredentials> {
        match *self.receiver.borrow() {
            SessionState::Connected(id) | SessionState::Suspended(id) => {
                Some(SessionCredentials { id, password: Vec::new() })
            }
            _ => None,
        }
    }

    fn session_timeout(&self) -> Duration {
        MEMORY_SESSION_TIMEOUT
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        let mut tree = self.cluster.tree.lock();
        let state = self.client.state.send_replace(SessionState::Closed);
        if let SessionState::Connected(id) | SessionState::Suspended(id) = state {
            tree.end_session(id);
            tree.clients.remove(&id);
        }
        ready(Ok(()))
    }
}
