//! The tree: nodes, their versions and access rules, and transactions that change them. No I/O, no clock.
//!
//! # Invariants
//! 1. A transaction changes the tree entirely or not at all: [`Tree::rollback`] puts back exactly what was there.
//! 2. A node's parent exists, is not ephemeral, and lists it; nobody lists a node that does not exist.
//! 3. A node's version counts its values, its aversion its access rules; a parent's cversion counts the creations
//!    below it and never goes back, so a sequential name is never given out twice by one parent.
//! 4. [`Tree::take_changed`] returns each node that a committed transaction touched once, with its final state.
//!
//! # Limits
//! `size_bytes_max` over paths, values, access rules and [`NODE_OVERHEAD_BYTES`] per node; beyond it creations, larger
//! values and longer rules are refused, but for [`RESERVE_NODES`] small ephemeral nodes. [`acl::RULES_MAX`] per node. No quotas:
//! nodes that would set one are refused.

pub(crate) mod acl;
pub(crate) mod path;
#[cfg(test)]
mod tests;

use crate::wire::{Acl, Code, EventKind, Stat};
use acl::{Identity, PERM_ADMIN, PERM_CREATE, PERM_DELETE, PERM_READ, PERM_WRITE};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Owner of a container: a node that goes when its last child has gone.
pub(crate) const CONTAINER_OWNER: i64 = i64::MIN;

/// Highest byte of the owner of a node with a time to live; the lower five bytes are the time in ms.
const TTL_OWNER: i64 = 0xff << 56;
const TTL_MS_MAX: i64 = (1 << 40) - 1;

/// The session that is meant by an owner; none by that of a node that stays, or goes by itself.
fn session_of(owner: i64) -> Option<i64> {
    let goes_by_itself = owner == CONTAINER_OWNER || owner & TTL_OWNER == TTL_OWNER;
    (owner != 0 && !goes_by_itself).then_some(owner)
}

/// The owner of a node that goes when it has no children and was not set for `ttl_ms`; `None` for a time that cannot
/// be.
pub(crate) fn ttl_owner(ttl_ms: i64) -> Option<i64> {
    (1..=TTL_MS_MAX).contains(&ttl_ms).then_some(TTL_OWNER | ttl_ms)
}

/// What a node costs besides its path and value, roughly.
pub(crate) const NODE_OVERHEAD_BYTES: usize = 256;

/// So many ephemeral nodes, each of so many bytes at most, are made whatever the tree holds.
const RESERVE_NODES: usize = 1000;
const RESERVE_BYTES_MAX: usize = 4 << 10;

const ROOT: &str = "/";
/// They exist from the beginning, are not deleted, and have no transaction of their own.
const SPECIAL: [&str; 4] = [ROOT, "/zookeeper", QUOTA, "/zookeeper/config"];
/// Clients set a quota by nodes below it, and read there what a server counted.
const QUOTA: &str = "/zookeeper/quota";

/// What is kept of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeRecord {
    /// Null and empty are different to Java.
    pub(crate) data: Option<Bytes>,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) pzxid: i64,
    pub(crate) ctime_ms: i64,
    pub(crate) mtime_ms: i64,
    pub(crate) version: i32,
    /// Creations below this node.
    pub(crate) cversion: i32,
    pub(crate) aversion: i32,
    /// 0, a session, [`CONTAINER_OWNER`], or a [`ttl_owner`].
    pub(crate) owner: i64,
}

impl NodeRecord {
    fn special(acl: Arc<[Acl]>, aversion: i32) -> NodeRecord {
        NodeRecord {
            data: Some(Bytes::new()),
            acl,
            czxid: 0,
            mzxid: 0,
            pzxid: 0,
            ctime_ms: 0,
            mtime_ms: 0,
            version: 0,
            cversion: 0,
            aversion,
            owner: 0,
        }
    }

    /// The session that the node goes with.
    pub(crate) fn session(&self) -> Option<i64> {
        session_of(self.owner)
    }

    /// True for a container and for a node with a time to live.
    fn goes_by_itself(&self) -> bool {
        self.owner == CONTAINER_OWNER || self.ttl_ms().is_some()
    }

    fn ttl_ms(&self) -> Option<i64> {
        (self.owner & TTL_OWNER == TTL_OWNER).then_some(self.owner & TTL_MS_MAX)
    }

    /// Bytes of value and rules.
    fn size_bytes(&self) -> usize {
        self.data_len() + acl::size_bytes(&self.acl)
    }

    fn data_len(&self) -> usize {
        self.data.as_ref().map_or(0, Bytes::len)
    }
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) record: NodeRecord,
    children: BTreeSet<Box<str>>,
    /// Nodes below it: counted as they come and go, because a tree of a million nodes takes long to walk.
    below: usize,
}

impl Node {
    /// Names of the children, ascending.
    pub(crate) fn children(&self) -> impl ExactSizeIterator<Item = &str> {
        self.children.iter().map(|name| &**name)
    }

    /// The stat that clients get. The cversion shown counts creations and deletions; to clients a container has no
    /// owner.
    pub(crate) fn stat(&self) -> Stat {
        let record = &self.record;
        let small = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let children = small(self.children.len());
        Stat {
            czxid: record.czxid,
            mzxid: record.mzxid,
            ctime_ms: record.ctime_ms,
            mtime_ms: record.mtime_ms,
            version: record.version,
            cversion: record.cversion.wrapping_mul(2).wrapping_sub(children),
            aversion: record.aversion,
            ephemeral_owner: record.session().unwrap_or(0),
            data_size: small(record.data_len()),
            children,
            pzxid: record.pzxid,
        }
    }
}

/// Something that watches are told, with the rules that say who may know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) path: Arc<str>,
    pub(crate) acl: Arc<[Acl]>,
}

/// How to take one step back.
#[derive(Debug)]
enum Undo {
    /// Remove the node; the parent had this cversion and pzxid.
    Create { path: Arc<str>, parent: (i32, i64) },
    /// Put the node back; the parent had this pzxid.
    Delete { path: Arc<str>, node: Node, parent_pzxid: i64 },
    /// The node's own record before.
    Update { path: Arc<str>, record: NodeRecord },
}

/// One transaction: either [`Tree::commit`] or [`Tree::rollback`] ends it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Txn {
    pub(crate) zxid: i64,
    pub(crate) time_ms: i64,
    undo: Vec<Undo>,
    events: Vec<Event>,
}

impl Txn {
    pub(crate) fn new(zxid: i64, time_ms: i64) -> Txn {
        Txn { zxid, time_ms, undo: Vec::new(), events: Vec::new() }
    }
}

/// A node to be made.
pub(crate) struct NewNode<'a> {
    pub(crate) path: &'a str,
    pub(crate) data: Option<Bytes>,
    pub(crate) acl: Vec<Acl>,
    /// 0, a session, [`CONTAINER_OWNER`], or a [`ttl_owner`].
    pub(crate) owner: i64,
    pub(crate) is_sequential: bool,
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: HashMap<Arc<str>, Node>,
    /// Nodes of each session.
    ephemerals: HashMap<i64, BTreeSet<Arc<str>>>,
    /// Containers, and nodes with a time to live.
    transient: BTreeSet<Arc<str>>,
    changed: HashSet<Arc<str>>,
    /// Most nodes share these rules.
    open_acl: Arc<[Acl]>,
    /// Bytes of paths, values and rules.
    size_bytes: usize,
    size_bytes_max: usize,
}

impl Tree {
    /// The tree of a new ensemble.
    pub(crate) fn new(size_bytes_max: usize) -> Tree {
        let open_acl = acl::open_to_all();
        let mut tree = Tree {
            nodes: HashMap::new(),
            ephemerals: HashMap::new(),
            transient: BTreeSet::new(),
            changed: HashSet::new(),
            open_acl: open_acl.clone(),
            size_bytes: 0,
            size_bytes_max,
        };
        for path in SPECIAL {
            // ZooKeeper sets the rules of the configuration with version -1.
            let record = match path {
                "/zookeeper/config" => NodeRecord::special(acl::read_only(), -1),
                _ => NodeRecord::special(open_acl.clone(), 0),
            };
            tree.link(path.into(), Node { record, children: BTreeSet::new(), below: 0 });
        }
        tree
    }

    /// Takes in a node read from disk; parents come before their children.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn restore(&mut self, path: &str, mut record: NodeRecord) -> Result<(), &'static str> {
        if !path::is_valid(path) {
            return Err("a node has no valid path");
        }
        if record.acl == self.open_acl {
            record.acl = self.open_acl.clone();
        }
        if SPECIAL.contains(&path) {
            let node = self.nodes.get_mut(path).expect("special nodes always exist");
            self.size_bytes = self.size_bytes - node.record.size_bytes() + record.size_bytes();
            node.record = record;
            return Ok(());
        }
        let (parent, _) = path::split(path).ok_or("a node has no parent")?;
        let parent = self.nodes.get(path::key(parent)).ok_or("the parent of a node is missing")?;
        if parent.record.session().is_some() {
            return Err("the parent of a node is ephemeral");
        }
        self.link(path.into(), Node { record, children: BTreeSet::new(), below: 0 });
        Ok(())
    }

    /// The node at a path.
    pub(crate) fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path::key(path))
    }

    /// The node at a path, for someone who must be allowed `perm` on it.
    pub(crate) fn node_for(&self, path: &str, perm: i32, identities: &[Identity]) -> Result<&Node, Code> {
        let node = self.node(path).ok_or(Code::NoNode)?;
        acl::check(&node.record.acl, perm, identities)?;
        Ok(node)
    }

    /// Number of nodes, the root included once.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of paths, values and rules.
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Number of ephemeral nodes.
    pub(crate) fn ephemerals_count(&self) -> usize {
        self.ephemerals.values().map(BTreeSet::len).sum()
    }

    /// The nodes of a session, ascending.
    pub(crate) fn ephemerals_of(&self, session: i64) -> impl Iterator<Item = &Arc<str>> {
        self.ephemerals.get(&session).into_iter().flatten()
    }

    /// The sessions that own nodes.
    pub(crate) fn owners(&self) -> impl Iterator<Item = i64> {
        self.ephemerals.keys().copied()
    }

    /// Number of nodes below a path.
    pub(crate) fn descendants(&self, path: &str) -> usize {
        self.nodes.get(path::key(path)).map_or(0, |node| node.below)
    }

    /// Counts a node that comes or goes in each that is above it.
    fn count_below(&mut self, path: &str, count: impl Fn(&mut usize)) {
        let mut path = path;
        while let Some((above, _)) = path::split(path).filter(|(_, name)| !name.is_empty()) {
            let node = self.nodes.get_mut(path::key(above)).expect("tree invariant 2: a parent exists");
            count(&mut node.below);
            path = path::key(above);
        }
    }

    /// Nodes that go by themselves now: containers that had children and have none, and nodes without children whose
    /// time to live has passed since their value was set.
    pub(crate) fn abandoned(&self, wall_ms: i64) -> Vec<Arc<str>> {
        let is_abandoned = |path: &&Arc<str>| {
            let Node { record, children, .. } = &self.nodes[&***path];
            children.is_empty()
                && match record.ttl_ms() {
                    Some(ttl_ms) => wall_ms.saturating_sub(record.mtime_ms) > ttl_ms,
                    None => record.cversion > 0,
                }
        };
        self.transient.iter().filter(is_abandoned).cloned().collect()
    }

    /// Makes a node; gives its path, which a sequential one learns only now, and its stat.
    pub(crate) fn create(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        new: NewNode<'_>,
    ) -> Result<(Arc<str>, Stat), Code> {
        // The order of the checks decides which error a wrong request gets; it is ZooKeeper's.
        let (parent_path, _) = path::split(new.path).ok_or(Code::BadArguments)?;
        let acl = acl::settle(new.acl, identities)?;
        let parent_path = path::key(parent_path);
        let parent = self.node_for(parent_path, PERM_CREATE, identities)?;
        let path: Arc<str> = match new.is_sequential {
            // Negative numbers take part in the width, as with Java's %010d.
            true => format!("{}{:010}", new.path, parent.record.cversion).into(),
            false => new.path.into(),
        };
        if !path::is_valid(&path) {
            return Err(Code::BadArguments);
        }
        if self.nodes.contains_key(&path) {
            return Err(Code::NodeExists);
        }
        // Nothing is counted and nobody is held to a limit here: a quota that could be set would look as if it held.
        if path.strip_prefix(QUOTA).is_some_and(|below| below.starts_with('/')) {
            return Err(Code::Unimplemented);
        }
        if parent.record.session().is_some() {
            return Err(Code::NoChildrenForEphemerals);
        }
        let data_len = new.data.as_ref().map_or(0, Bytes::len);
        let added = path.len() + data_len + acl::size_bytes(&acl) + NODE_OVERHEAD_BYTES;
        if !(session_of(new.owner).is_some() && self.has_reserve(added)) {
            self.check_room(added)?;
        }
        let acl: Arc<[Acl]> = if acl[..] == self.open_acl[..] { self.open_acl.clone() } else { acl.into() };
        let parent_acl = parent.record.acl.clone();
        let parent_before = (parent.record.cversion, parent.record.pzxid);
        let (parent_key, _) = self.nodes.get_key_value(parent_path).expect("the parent was found");
        let parent_key = parent_key.clone();
        let parent = &mut self.nodes.get_mut(parent_path).expect("the parent was found").record;
        parent.cversion = parent.cversion.wrapping_add(1);
        parent.pzxid = txn.zxid;
        let record = NodeRecord {
            data: new.data,
            acl: acl.clone(),
            czxid: txn.zxid,
            mzxid: txn.zxid,
            pzxid: txn.zxid,
            ctime_ms: txn.time_ms,
            mtime_ms: txn.time_ms,
            version: 0,
            cversion: 0,
            aversion: 0,
            owner: new.owner,
        };
        let node = Node { record, children: BTreeSet::new(), below: 0 };
        let stat = node.stat();
        self.link(path.clone(), node);
        txn.undo.push(Undo::Create { path: path.clone(), parent: parent_before });
        txn.events.push(Event { kind: EventKind::Created, path: path.clone(), acl });
        txn.events.push(Event { kind: EventKind::ChildrenChanged, path: parent_key, acl: parent_acl });
        Ok((path, stat))
    }

    /// Removes a node without children. Version -1 is any.
    pub(crate) fn delete(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        path: &str,
        version: i32,
    ) -> Result<(), Code> {
        let parent = deletable_parent(path)?;
        self.node_for(parent, PERM_DELETE, identities)?;
        let node = self.node(path).ok_or(Code::NoNode)?;
        next_version(node.record.version, version)?;
        if !node.children.is_empty() {
            return Err(Code::NotEmpty);
        }
        self.remove(txn, path);
        Ok(())
    }

    /// Removes a node without children that is not ephemeral, whoever asks.
    pub(crate) fn delete_container(&mut self, txn: &mut Txn, path: &str) -> Result<(), Code> {
        deletable_parent(path)?;
        let node = self.node(path).ok_or(Code::NoNode)?;
        if !node.children.is_empty() {
            return Err(Code::NotEmpty);
        }
        if node.record.session().is_some() {
            return Err(Code::BadVersion);
        }
        self.remove(txn, path);
        Ok(())
    }

    /// Removes the nodes of a session.
    pub(crate) fn delete_ephemerals(&mut self, txn: &mut Txn, session: i64) {
        let paths: Vec<Arc<str>> = self.ephemerals_of(session).cloned().collect();
        for path in paths {
            self.remove(txn, &path);
        }
    }

    /// Replaces a value. Version -1 is any.
    pub(crate) fn set_data(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        path: &str,
        data: Option<Bytes>,
        version: i32,
    ) -> Result<Stat, Code> {
        if !path::is_valid(path) {
            return Err(Code::BadArguments);
        }
        let node = self.node_for(path, PERM_WRITE, identities)?;
        let next = next_version(node.record.version, version)?;
        let (before, after) = (node.record.data_len(), data.as_ref().map_or(0, Bytes::len));
        if after > before {
            self.check_room(after - before)?;
        }
        self.size_bytes = self.size_bytes - before + after;
        let (zxid, time_ms) = (txn.zxid, txn.time_ms);
        let (event, stat) = self.update(txn, path, |record| {
            record.data = data;
            record.version = next;
            record.mtime_ms = time_ms;
            record.mzxid = zxid;
        });
        txn.events.push(event);
        Ok(stat)
    }

    /// Replaces the access rules. Version -1 is any.
    pub(crate) fn set_acl(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        path: &str,
        wanted: Vec<Acl>,
        version: i32,
    ) -> Result<Stat, Code> {
        if !path::is_valid(path) {
            return Err(Code::BadArguments);
        }
        let acl = acl::settle(wanted, identities)?;
        let node = self.node_for(path, PERM_ADMIN, identities)?;
        let next = next_version(node.record.aversion, version)?;
        let (before, after) = (acl::size_bytes(&node.record.acl), acl::size_bytes(&acl));
        if after > before {
            self.check_room(after - before)?;
        }
        self.size_bytes = self.size_bytes - before + after;
        let (_no_event, stat) = self.update(txn, path, |record| {
            record.acl = acl.into();
            record.aversion = next;
        });
        Ok(stat)
    }

    /// Fails unless the node has this version. Version -1 is any.
    pub(crate) fn check(&self, identities: &[Identity], path: &str, version: i32) -> Result<(), Code> {
        if !path::is_valid(path) {
            return Err(Code::BadArguments);
        }
        let node = self.node_for(path, PERM_READ, identities)?;
        next_version(node.record.version, version).map(drop)
    }

    /// Ends a transaction that is in force; gives what watches are told, in order.
    pub(crate) fn commit(&mut self, txn: Txn) -> Vec<Event> {
        for step in txn.undo {
            match step {
                Undo::Create { path, .. } | Undo::Delete { path, .. } => {
                    let (parent, _) = path::split(&path).expect("a node that changed has a parent");
                    let parent = self.nodes.get_key_value(path::key(parent));
                    // Without it the parent was deleted later in the same transaction, by another step.
                    if let Some((parent, _)) = parent {
                        self.changed.insert(parent.clone());
                    }
                    self.changed.insert(path);
                }
                Undo::Update { path, .. } => {
                    self.changed.insert(path);
                }
            }
        }
        txn.events
    }

    /// Ends a transaction that failed (tree invariant 1).
    pub(crate) fn rollback(&mut self, txn: Txn) {
        for step in txn.undo.into_iter().rev() {
            match step {
                Undo::Create { path, parent: (cversion, pzxid) } => {
                    self.unlink(&path);
                    let parent = self.parent_record(&path);
                    parent.cversion = cversion;
                    parent.pzxid = pzxid;
                }
                Undo::Delete { path, node, parent_pzxid } => {
                    self.link(path.clone(), node);
                    self.parent_record(&path).pzxid = parent_pzxid;
                }
                Undo::Update { path, record } => {
                    let node = self.nodes.get_mut(&path).expect("an updated node exists");
                    self.size_bytes = self.size_bytes - node.record.size_bytes() + record.size_bytes();
                    node.record = record;
                }
            }
        }
    }

    /// True when [`Tree::take_changed`] would give something.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// What changed since the last call: the node as it is now, or `None` for one that is gone.
    pub(crate) fn take_changed(&mut self) -> BTreeMap<Arc<str>, Option<NodeRecord>> {
        let changed = std::mem::take(&mut self.changed);
        let now = |path: Arc<str>| {
            let record = self.nodes.get(&path).map(|node| node.record.clone());
            (path, record)
        };
        changed.into_iter().map(now).collect()
    }

    fn check_room(&self, added: usize) -> Result<(), Code> {
        let used = self.size_bytes + self.nodes.len() * NODE_OVERHEAD_BYTES;
        if used + added > self.size_bytes_max { Err(Code::QuotaExceeded) } else { Ok(()) }
    }

    /// The registration of a process has room even in a full tree: without it a bookie could not even go read-only, and
    /// no process could delete the nodes that fill the tree.
    fn has_reserve(&self, added: usize) -> bool {
        let ephemerals = || self.ephemerals.values().map(BTreeSet::len).sum::<usize>();
        added <= RESERVE_BYTES_MAX && ephemerals() < RESERVE_NODES
    }

    fn parent_record(&mut self, path: &str) -> &mut NodeRecord {
        let (parent, _) = path::split(path).expect("a linked node has a parent");
        &mut self.nodes.get_mut(path::key(parent)).expect("tree invariant 2: a parent exists").record
    }

    /// Adds a node and everything that leads to it; versions are the caller's.
    fn link(&mut self, path: Arc<str>, node: Node) {
        if let Some((parent, name)) = path::split(&path).filter(|(_, name)| !name.is_empty()) {
            let parent = self.nodes.get_mut(path::key(parent)).expect("tree invariant 2: a parent exists");
            let is_new = parent.children.insert(name.into());
            assert!(is_new, "tree invariant 2: {path} is listed once");
        }
        if let Some(session) = node.record.session() {
            self.ephemerals.entry(session).or_default().insert(path.clone());
        } else if node.record.goes_by_itself() {
            self.transient.insert(path.clone());
        }
        self.size_bytes += path.len() + node.record.size_bytes();
        self.count_below(&path, |below| *below += 1);
        self.nodes.insert(path, node);
    }

    fn unlink(&mut self, path: &str) -> (Arc<str>, Node) {
        let (path, node) = self.nodes.remove_entry(path).expect("an unlinked node exists");
        assert!(node.children.is_empty(), "tree invariant 2: {path} has no children");
        let (parent, name) = path::split(&path).expect("a linked node has a parent");
        let parent = self.nodes.get_mut(path::key(parent)).expect("tree invariant 2: a parent exists");
        assert!(parent.children.remove(name), "tree invariant 2: {path} is listed");
        if let Some(session) = node.record.session() {
            if let Some(of_session) = self.ephemerals.get_mut(&session) {
                of_session.remove(&path);
                if of_session.is_empty() {
                    self.ephemerals.remove(&session);
                }
            }
        } else if node.record.goes_by_itself() {
            self.transient.remove(&path);
        }
        self.size_bytes -= path.len() + node.record.size_bytes();
        self.count_below(&path, |below| *below -= 1);
        (path, node)
    }

    /// Removes a node that was checked.
    fn remove(&mut self, txn: &mut Txn, path: &str) {
        let (path, node) = self.unlink(path);
        let (parent_path, _) = path::split(&path).expect("a linked node has a parent");
        let (parent_key, parent) =
            self.nodes.get_key_value(path::key(parent_path)).expect("tree invariant 2: a parent exists");
        let (parent_key, parent_acl) = (parent_key.clone(), parent.record.acl.clone());
        let parent_pzxid = parent.record.pzxid;
        self.parent_record(&path).pzxid = txn.zxid;
        let acl = node.record.acl.clone();
        txn.events.push(Event { kind: EventKind::Deleted, path: path.clone(), acl });
        txn.events.push(Event { kind: EventKind::ChildrenChanged, path: parent_key, acl: parent_acl });
        txn.undo.push(Undo::Delete { path, node, parent_pzxid });
    }

    /// Changes the record of a node that was found. The event is the one of a changed value.
    fn update(&mut self, txn: &mut Txn, path: &str, change: impl FnOnce(&mut NodeRecord)) -> (Event, Stat) {
        let (key, _) = self.nodes.get_key_value(path).expect("an updated node exists");
        let key = key.clone();
        let node = self.nodes.get_mut(path).expect("an updated node exists");
        let event = Event { kind: EventKind::DataChanged, path: key.clone(), acl: node.record.acl.clone() };
        txn.undo.push(Undo::Update { path: key, record: node.record.clone() });
        change(&mut node.record);
        (event, node.stat())
    }

    /// Tree invariant 2 and the counters.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let mut size = 0;
        for (path, node) in &self.nodes {
            size += path.len() + node.record.size_bytes();
            let prefix = if &**path == ROOT { "" } else { path };
            for child in node.children() {
                assert!(
                    self.nodes.contains_key(format!("{prefix}/{child}").as_str()),
                    "{path} lists {child}"
                );
            }
            let is_below = |other: &&Arc<str>| {
                other.strip_prefix(prefix).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
            };
            assert_eq!(node.below, self.nodes.keys().filter(is_below).count(), "nodes below {path}");
            if &**path != ROOT {
                let (parent, name) = path::split(path).expect("a node has a parent");
                let parent = self.node(parent).expect("tree invariant 2: a parent exists");
                assert!(parent.children.contains(name), "{path} is listed");
                assert!(parent.record.session().is_none(), "an ephemeral node has no children");
            }
            if let Some(session) = node.record.session() {
                assert!(self.ephemerals[&session].contains(path), "{path} is known to its session");
            }
            assert_eq!(node.record.goes_by_itself(), self.transient.contains(path));
        }
        assert_eq!(size, self.size_bytes);
        for path in self.ephemerals.values().flatten() {
            assert!(self.nodes.contains_key(path));
        }
    }
}

/// The parent's key, for a path that may be deleted.
fn deletable_parent(path: &str) -> Result<&str, Code> {
    match path::split(path) {
        Some((parent, _)) if !SPECIAL.contains(&path) => Ok(path::key(parent)),
        _ => Err(Code::BadArguments),
    }
}

/// The version after `current`, when `expected` accepts it. -1 means "any", so no node ever has it.
fn next_version(current: i32, expected: i32) -> Result<i32, Code> {
    if expected != -1 && expected != current {
        return Err(Code::BadVersion);
    }
    match current.wrapping_add(1) {
        -1 => Ok(0),
        next => Ok(next),
    }
}
