//! The tree: nodes, their versions and access rules, and transactions that change them. No I/O, no clock.
//!
//! # Invariants
//! 1. A transaction changes the tree entirely or not at all: [`Tree::rollback`] puts back exactly what was there.
//! 2. A node's parent exists and lists it; nobody lists a node that does not exist. No child of an ephemeral node is made by
//!    ZooKeeper's clients. An implied node has children.
//! 3. A node's version counts its values, its aversion its access rules; a parent's cversion counts the creations
//!    below it and never goes back, so a sequential name is never given out twice by one parent. Oxia's clients take numbers from the
//!    changes of the parent: sequential names skip those, and a put skips what clients of ZooKeeper may have.
//! 4. [`Tree::take_changed`] returns each node that a committed transaction touched once, with its final state.
//!
//! Oxia's clients see the same nodes as records under keys: [`records`] says which, and has their reads and writes.
//!
//! # Limits
//! `size_bytes_max` over paths, values, access rules and [`NODE_OVERHEAD_BYTES`] per node; beyond it creations, larger
//! values and longer rules are refused, but for [`RESERVE_NODES`] small ephemeral nodes. [`acl::RULES_MAX`] per node. No quotas:
//! nodes that would set one are refused.

pub(crate) mod acl;
mod index;
pub(crate) mod path;
pub(crate) mod records;
pub(crate) mod secondary;
#[cfg(test)]
mod tests;

use crate::wire::{Acl, Code, EventKind, Stat};
use acl::{Identity, PERM_ADMIN, PERM_CREATE, PERM_DELETE, PERM_READ, PERM_WRITE};
use bytes::Bytes;
use index::Index;
use records::is_loose;
use secondary::IndexKey;
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
    /// Creations below this node, and numbers that sequential children skipped.
    pub(crate) cversion: i32,
    /// Lower numbers may have been given to children of ZooKeeper's clients: the cversion without what Oxia's clients made since.
    pub(crate) sequence: i32,
    /// Lower numbers may have been told to puts of Oxia's clients; 0 without any.
    pub(crate) counted: i64,
    pub(crate) aversion: i32,
    /// 0, a session, [`CONTAINER_OWNER`], or a [`ttl_owner`].
    pub(crate) owner: i64,
    /// The version to Oxia's clients: the zxid of the last write of the value, unless its writer chose one.
    pub(crate) version_id: i64,
    /// Changes of the value since there is a record to Oxia's clients. Some are skipped (tree invariant 3).
    pub(crate) modifications: i64,
    /// The last writer, as it calls itself; none of ZooKeeper's.
    pub(crate) identity: Option<Arc<str>>,
    /// Its keys in indexes, if it has any.
    pub(crate) index_keys: Option<Arc<[IndexKey]>>,
    /// It is there only for what is below it, and no record to Oxia's clients.
    pub(crate) is_implied: bool,
}

impl NodeRecord {
    /// A node without a value that is made now.
    fn new(acl: Arc<[Acl]>, zxid: i64, time_ms: i64) -> NodeRecord {
        NodeRecord {
            data: None,
            acl,
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime_ms: time_ms,
            mtime_ms: time_ms,
            version: 0,
            cversion: 0,
            sequence: 0,
            counted: 0,
            aversion: 0,
            owner: 0,
            version_id: zxid,
            modifications: 0,
            identity: None,
            index_keys: None,
            is_implied: false,
        }
    }

    fn special(acl: Arc<[Acl]>, aversion: i32) -> NodeRecord {
        NodeRecord { data: Some(Bytes::new()), aversion, ..NodeRecord::new(acl, 0, 0) }
    }

    /// Gives it a value; a node that was implied begins with it.
    fn set_value(&mut self, data: Option<Bytes>, version: i32, zxid: i64, time_ms: i64) {
        if std::mem::take(&mut self.is_implied) {
            (self.czxid, self.ctime_ms, self.modifications) = (zxid, time_ms, 0);
        } else {
            self.modifications = self.modifications.wrapping_add(1);
        }
        self.data = data;
        self.version = version;
        // A migration may have chosen this very number for the value that is replaced. The one before was no version of this record then.
        let is_chosen = self.version_id == zxid && self.mzxid != zxid;
        self.version_id = if is_chosen { zxid - 1 } else { zxid };
        (self.mzxid, self.mtime_ms) = (zxid, time_ms);
        (self.identity, self.index_keys) = (None, None);
    }

    /// The number of the next sequential child (tree invariant 3). Below zero the cversion has passed all numbers, and so has what it skips
    /// when that is too large for it.
    fn next_number(&self) -> i32 {
        match self.cversion {
            0.. => i32::try_from(self.counted).map_or(i32::MIN, |counted| counted.max(self.cversion)),
            passed => passed,
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

    /// Bytes of value, rules, writer and keys in indexes.
    fn size_bytes(&self) -> usize {
        let identity_len = self.identity.as_ref().map_or(0, |identity| identity.len());
        let index_keys = self.index_keys.as_ref().map_or(0, |keys| secondary::size_bytes(keys));
        self.data_len() + acl::size_bytes(&self.acl) + identity_len + index_keys
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

/// What became of a record, for subscribers to notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Created,
    Modified,
    Deleted,
}

/// A record that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) path: Arc<str>,
    pub(crate) change: Change,
    /// The rules that say who may know, as they stood then.
    pub(crate) acl: Arc<[Acl]>,
}

/// How to take one step back.
#[derive(Debug)]
enum Undo {
    /// Remove the node; the parent, if it has one, had this cversion, sequence and pzxid.
    Create { path: Arc<str>, parent: Option<(i32, i32, i64)> },
    /// Put the node back; the parent, if it has one, had this pzxid.
    Delete { path: Arc<str>, node: Node, parent_pzxid: Option<i64> },
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
    /// In order.
    pub(crate) changes: Vec<Changed>,
}

impl Txn {
    pub(crate) fn new(zxid: i64, time_ms: i64) -> Txn {
        Txn { zxid, time_ms, undo: Vec::new(), events: Vec::new(), changes: Vec::new() }
    }

    /// Nodes that were made, changed or removed so far.
    pub(crate) fn steps(&self) -> usize {
        self.undo.len()
    }

    fn note(&mut self, path: &Arc<str>, change: Change, acl: &Arc<[Acl]>) {
        self.changes.push(Changed { path: path.clone(), change, acl: acl.clone() });
    }
}

/// What a transaction did.
pub(crate) struct Committed {
    /// Events for watches, in order.
    pub(crate) events: Vec<Event>,
    /// Records that changed, in order.
    pub(crate) changes: Vec<Changed>,
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
    index: Index,
    changed: HashSet<Arc<str>>,
    /// Most nodes share these rules.
    open_acl: Arc<[Acl]>,
    size_bytes_max: usize,
    /// Nodes that ZooKeeper's clients do not see.
    loose: usize,
}

impl Tree {
    /// The tree of a new ensemble.
    pub(crate) fn new(size_bytes_max: usize) -> Tree {
        let open_acl = acl::open_to_all();
        let mut tree = Tree {
            nodes: HashMap::new(),
            index: Index::default(),
            changed: HashSet::new(),
            open_acl: open_acl.clone(),
            size_bytes_max,
            loose: 0,
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
        let is_sound = match records::key_of(path) {
            Some(key) if is_loose(path) => !records::is_shared(key),
            _ => path::is_valid(path),
        };
        if !is_sound {
            return Err("a node has no valid path");
        }
        if record.acl == self.open_acl {
            record.acl = self.open_acl.clone();
        }
        if SPECIAL.contains(&path) {
            let (key, _) = self.nodes.get_key_value(path).expect("special nodes always exist");
            let key = key.clone();
            let node = self.nodes.get_mut(path).expect("special nodes always exist");
            self.index.change(&key, &node.record, &record);
            node.record = record;
            return Ok(());
        }
        if let Some((parent, _)) = path::split(path)
            && !self.nodes.contains_key(path::key(parent))
        {
            return Err("the parent of a node is missing");
        }
        self.link(path.into(), Node { record, children: BTreeSet::new(), below: 0 });
        Ok(())
    }

    /// The node at a path, as ZooKeeper's clients see it.
    pub(crate) fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(path::key(path)).filter(|_| !is_loose(path))
    }

    /// The node at a path, for someone who must be allowed `perm` on it.
    pub(crate) fn node_for(&self, path: &str, perm: i32, identities: &[Identity]) -> Result<&Node, Code> {
        let node = self.node(path).ok_or(Code::NoNode)?;
        acl::check(&node.record.acl, perm, identities)?;
        Ok(node)
    }

    /// Number of nodes that ZooKeeper's clients see, the root included once.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.loose
    }

    /// Bytes of paths, values and rules.
    pub(crate) fn size_bytes(&self) -> usize {
        self.index.size_bytes()
    }

    /// Number of ephemeral nodes.
    pub(crate) fn ephemerals_count(&self) -> usize {
        self.index.ephemerals_count()
    }

    /// The nodes of a session, ascending.
    pub(crate) fn ephemerals_of(&self, session: i64) -> impl Iterator<Item = &Arc<str>> {
        self.index.ephemerals_of(session)
    }

    /// The sessions that own nodes.
    pub(crate) fn owners(&self) -> impl Iterator<Item = i64> {
        self.index.owners()
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
        self.index.transient().filter(is_abandoned).cloned().collect()
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
        let number = parent.record.next_number();
        let path: Arc<str> = match new.is_sequential {
            // Negative numbers take part in the width, as with Java's %010d.
            true => format!("{}{number:010}", new.path).into(),
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
        let record =
            NodeRecord { data: new.data, owner: new.owner, ..NodeRecord::new(acl, txn.zxid, txn.time_ms) };
        let stat = self.insert(txn, path.clone(), record);
        let parent = self.parent_record(&path).expect("tree invariant 2: a parent exists");
        if new.is_sequential {
            parent.cversion = number.wrapping_add(1);
        }
        parent.sequence = parent.cversion;
        Ok((path, stat))
    }

    /// Adds a node whose parent exists.
    fn insert(&mut self, txn: &mut Txn, path: Arc<str>, record: NodeRecord) -> Stat {
        let acl = record.acl.clone();
        if !record.is_implied {
            txn.note(&path, Change::Created, &acl);
        }
        let node = Node { record, children: BTreeSet::new(), below: 0 };
        let stat = node.stat();
        self.link(path.clone(), node);
        let Some((parent_path, _)) = path::split(&path) else {
            txn.undo.push(Undo::Create { path, parent: None });
            return stat;
        };
        let (parent_key, _) =
            self.nodes.get_key_value(path::key(parent_path)).expect("tree invariant 2: a parent exists");
        let parent_key = parent_key.clone();
        let parent = self.parent_record(&path).expect("tree invariant 2: a parent exists");
        let parent_acl = parent.acl.clone();
        let parent_before = (parent.cversion, parent.sequence, parent.pzxid);
        parent.cversion = parent.cversion.wrapping_add(1);
        parent.pzxid = txn.zxid;
        txn.undo.push(Undo::Create { path: path.clone(), parent: Some(parent_before) });
        txn.events.push(Event { kind: EventKind::Created, path, acl });
        txn.events.push(Event { kind: EventKind::ChildrenChanged, path: parent_key, acl: parent_acl });
        stat
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
            self.retire(txn, &path);
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
        let change = if node.record.is_implied { Change::Created } else { Change::Modified };
        let (zxid, time_ms) = (txn.zxid, txn.time_ms);
        let (event, stat) = self.update(txn, path, |record| record.set_value(data, next, zxid, time_ms));
        txn.note(&event.path, change, &event.acl);
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
        // Rules are kept: a node that is there only for what is below it would go, and they with it.
        let is_new = node.record.is_implied;
        let zxid = txn.zxid;
        let (Event { path, .. }, stat) = self.update(txn, path, |record| {
            record.acl = acl.into();
            record.aversion = next;
            if is_new {
                (record.is_implied, record.modifications) = (false, 0);
                (record.mzxid, record.version_id) = (zxid, zxid);
            }
        });
        if is_new {
            let acl = self.nodes[&path].record.acl.clone();
            txn.note(&path, Change::Created, &acl);
        }
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

    /// Ends a transaction that is in force.
    pub(crate) fn commit(&mut self, txn: Txn) -> Committed {
        for step in txn.undo {
            match step {
                Undo::Create { path, .. } | Undo::Delete { path, .. } => {
                    let parent = path::split(&path);
                    let parent = parent.and_then(|(parent, _)| self.nodes.get_key_value(path::key(parent)));
                    // Without it the parent was deleted later in the same transaction, by another step, or there never was one.
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
        Committed { events: txn.events, changes: txn.changes }
    }

    /// Ends a transaction that failed (tree invariant 1).
    pub(crate) fn rollback(&mut self, txn: Txn) {
        for step in txn.undo.into_iter().rev() {
            match step {
                Undo::Create { path, parent: before } => {
                    self.unlink(&path);
                    if let (Some(parent), Some(before)) = (self.parent_record(&path), before) {
                        (parent.cversion, parent.sequence, parent.pzxid) = before;
                    }
                }
                Undo::Delete { path, node, parent_pzxid: before } => {
                    self.link(path.clone(), node);
                    if let (Some(parent), Some(before)) = (self.parent_record(&path), before) {
                        parent.pzxid = before;
                    }
                }
                Undo::Update { path, record } => {
                    let node = self.nodes.get_mut(&path).expect("an updated node exists");
                    self.index.change(&path, &node.record, &record);
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
        let used = self.size_bytes() + self.nodes.len() * NODE_OVERHEAD_BYTES;
        if used + added > self.size_bytes_max { Err(Code::QuotaExceeded) } else { Ok(()) }
    }

    /// The registration of a process has room even in a full tree: without it a bookie could not even go read-only, and
    /// no process could delete the nodes that fill the tree.
    fn has_reserve(&self, added: usize) -> bool {
        added <= RESERVE_BYTES_MAX && self.ephemerals_count() < RESERVE_NODES
    }

    /// `None` for a node without a parent.
    fn parent_record(&mut self, path: &str) -> Option<&mut NodeRecord> {
        let (parent, _) = path::split(path)?;
        Some(&mut self.nodes.get_mut(path::key(parent)).expect("tree invariant 2: a parent exists").record)
    }

    /// Adds a node and everything that leads to it; versions are the caller's.
    fn link(&mut self, path: Arc<str>, node: Node) {
        if let Some((parent, name)) = path::split(&path).filter(|(_, name)| !name.is_empty()) {
            let parent = self.nodes.get_mut(path::key(parent)).expect("tree invariant 2: a parent exists");
            let is_new = parent.children.insert(name.into());
            assert!(is_new, "tree invariant 2: {path} is listed once");
        }
        self.index.enter(&path, &node.record);
        self.loose += usize::from(is_loose(&path));
        self.count_below(&path, |below| *below += 1);
        self.nodes.insert(path, node);
    }

    fn unlink(&mut self, path: &str) -> (Arc<str>, Node) {
        let (path, node) = self.nodes.remove_entry(path).expect("an unlinked node exists");
        assert!(node.children.is_empty(), "tree invariant 2: {path} has no children");
        if let Some((parent, name)) = path::split(&path) {
            let parent = self.nodes.get_mut(path::key(parent)).expect("tree invariant 2: a parent exists");
            assert!(parent.children.remove(name), "tree invariant 2: {path} is listed");
        }
        self.index.leave(&path, &node.record);
        self.loose -= usize::from(is_loose(&path));
        self.count_below(&path, |below| *below -= 1);
        (path, node)
    }

    /// Removes a node without children, and each node above it that was there for it only.
    fn remove(&mut self, txn: &mut Txn, path: &str) {
        let (path, node) = self.unlink(path);
        if !node.record.is_implied {
            txn.note(&path, Change::Deleted, &node.record.acl);
        }
        let Some((parent_path, _)) = path::split(&path) else {
            txn.undo.push(Undo::Delete { path, node, parent_pzxid: None });
            return;
        };
        let (parent_key, parent) =
            self.nodes.get_key_value(path::key(parent_path)).expect("tree invariant 2: a parent exists");
        let (parent_key, parent_acl) = (parent_key.clone(), parent.record.acl.clone());
        let is_needless = parent.record.is_implied && parent.children.is_empty();
        let zxid = txn.zxid;
        let parent = self.parent_record(&path).expect("tree invariant 2: a parent exists");
        let parent_pzxid = Some(std::mem::replace(&mut parent.pzxid, zxid));
        let acl = node.record.acl.clone();
        txn.events.push(Event { kind: EventKind::Deleted, path: path.clone(), acl });
        txn.events.push(Event {
            kind: EventKind::ChildrenChanged,
            path: parent_key.clone(),
            acl: parent_acl,
        });
        txn.undo.push(Undo::Delete { path, node, parent_pzxid });
        // As deep as a shared path may be: only such paths have implied nodes.
        if is_needless {
            self.remove(txn, &parent_key);
        }
    }

    /// Changes the record of a node that was found. The event is the one of a changed value.
    fn update(&mut self, txn: &mut Txn, path: &str, change: impl FnOnce(&mut NodeRecord)) -> (Event, Stat) {
        let (key, _) = self.nodes.get_key_value(path).expect("an updated node exists");
        let key = key.clone();
        let node = self.nodes.get_mut(path).expect("an updated node exists");
        let event = Event { kind: EventKind::DataChanged, path: key.clone(), acl: node.record.acl.clone() };
        let before = node.record.clone();
        change(&mut node.record);
        self.index.change(&key, &before, &node.record);
        let stat = node.stat();
        txn.undo.push(Undo::Update { path: key, record: before });
        (event, stat)
    }

    /// Tree invariant 2, the index and the counters.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let (mut size, mut loose) = (0, 0);
        let mut lens = [0; 4];
        for (path, node) in &self.nodes {
            size += path.len() + node.record.size_bytes();
            loose += usize::from(is_loose(path));
            assert!(self.index.has(path, &node.record), "the index has {path}");
            lens[0] += usize::from(node.record.session().is_some());
            lens[1] += usize::from(node.record.goes_by_itself());
            lens[2] += usize::from(!node.record.is_implied && records::key_of(path).is_some());
            lens[3] += node.record.index_keys.as_ref().map_or(0, |keys| keys.len());
            assert!(!(node.record.is_implied && node.children.is_empty()), "{path} is implied by nothing");
            if is_loose(path) {
                assert!(node.children.is_empty(), "{path:?} is no path");
                continue;
            }
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
            }
        }
        assert_eq!((size, loose), (self.size_bytes(), self.loose));
        assert_eq!(lens, self.index.lens());
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
