//! The tree as Oxia's clients see it: records under keys that are any strings, in Oxia's order.
//!
//! # Keys and nodes
//! A key that is a path to ZooKeeper ([`is_shared`]) is the node at that path. Any other key is a node that only Oxia's clients see: it is
//! kept under its name behind a NUL, has no parent, and no watch fires for it. Oxia has no parents: a record whose path has nodes missing
//! above it gets them as *implied* nodes, which Oxia's clients do not see, and which go with the last node below them. A record that is
//! deleted while others are below it becomes an implied node.
//!
//! # Numbers of children
//! Clients of both protocols take numbers from a parent: ZooKeeper's from its cversion, by sequential nodes, Oxia's from its count of changes,
//! by puts. A put skips what sequential nodes may have, and they what puts were told (tree invariant 3). The put that makes a record is told 0,
//! as on Oxia's servers, and takes no number, but for the key of the root: writers take numbers for children of `/` from it without making it.
//!
//! # Limits     [`SHARED_PARTS_MAX`] and [`SHARED_BYTES_MAX`] of a path that is shared

use super::acl::{self, Identity, PERM_CREATE, PERM_DELETE, PERM_READ, PERM_WRITE};
use super::secondary::{self, Entry, IndexKey, IndexRange};
use super::{Change, Event, NODE_OVERHEAD_BYTES, NodeRecord, ROOT, Tree, Txn, next_version, path};
use crate::wire::{Acl, EventKind};
use bindery_oxia::keys;
use bytes::Bytes;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

/// Before the key of a record that is no path. No path has it.
const LOOSE: char = '\0';

/// The most parts of a path that both protocols see. Each part may need an implied node, and one request must not make a million of them.
const SHARED_PARTS_MAX: usize = 100;
/// The most bytes of a path that both protocols see: a name that is longer than a frame of ZooKeeper's keeps its clients from listing the parent.
const SHARED_BYTES_MAX: usize = 16 << 10;

/// The part of the tree that ZooKeeper keeps for itself.
const ZOOKEEPERS: &str = "/zookeeper";

/// True for a key that is a node to ZooKeeper's clients.
pub(crate) fn is_shared(key: &str) -> bool {
    let is_zookeepers =
        key.strip_prefix(ZOOKEEPERS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    key.len() <= SHARED_BYTES_MAX
        && key != ROOT
        && !is_zookeepers
        && path::is_valid(key)
        && key.bytes().filter(|byte| *byte == b'/').count() <= SHARED_PARTS_MAX
}

/// True for the name of a node that ZooKeeper's clients do not see.
pub(super) fn is_loose(path: &str) -> bool {
    path.starts_with(LOOSE)
}

/// The key of a node, for Oxia's clients; `None` for a node of ZooKeeper's own.
pub(crate) fn key_of(path: &str) -> Option<&str> {
    path.strip_prefix(LOOSE).or_else(|| is_shared(path).then_some(path))
}

/// The name of the node that has a key.
fn path_of(key: &str) -> Cow<'_, str> {
    if is_shared(key) { key.into() } else { format!("{LOOSE}{key}").into() }
}

/// The name of a node that has a key, in the order of keys.
#[derive(Debug, Clone)]
pub(crate) struct Key(Arc<str>);

impl Key {
    /// `None` for a node of ZooKeeper's own.
    pub(super) fn of_node(path: Arc<str>) -> Option<Key> {
        key_of(&path).is_some().then_some(Key(path))
    }

    /// For a look-up.
    pub(crate) fn new(key: &str) -> Key {
        Key(path_of(key).into())
    }

    /// What Oxia's clients call it.
    pub(crate) fn as_str(&self) -> &str {
        self.0.strip_prefix(LOOSE).unwrap_or(&self.0)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        keys::compare(self.as_str(), other.as_str())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Key {}

/// A value to be put under a key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Put {
    pub(crate) value: Bytes,
    /// The record goes with this session.
    pub(crate) session: Option<i64>,
    pub(crate) identity: Option<Arc<str>>,
    pub(crate) index_keys: Option<Arc<[IndexKey]>>,
    /// In place of the number of this write.
    pub(crate) version_id: Option<i64>,
    /// In place of the count of changes.
    pub(crate) modifications: Option<i64>,
}

impl Put {
    fn size_bytes(&self) -> usize {
        let identity_len = self.identity.as_ref().map_or(0, |identity| identity.len());
        let index_keys = self.index_keys.as_ref().map_or(0, |keys| secondary::size_bytes(keys));
        self.value.len() + identity_len + index_keys
    }
}

/// Why a write of a record had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such record.
    NotFound,
    /// The record has another version, or none.
    UnexpectedVersion,
    /// The tree is full.
    NoRoom,
    /// The rules of ZooKeeper's side do not allow it.
    NoAuth,
}

impl Tree {
    /// The record of a key.
    pub(crate) fn record(&self, key: &str) -> Option<&NodeRecord> {
        let node = self.nodes.get(&*path_of(key))?;
        (!node.record.is_implied).then_some(&node.record)
    }

    /// The records of a range, in the order of keys.
    pub(crate) fn records(
        &self,
        from: Bound<&str>,
        to: Bound<&str>,
    ) -> impl DoubleEndedIterator<Item = (&str, &NodeRecord)> {
        let found = self.index.keys(from.map(Key::new), to.map(Key::new));
        found.map(move |(key, _)| (key.as_str(), &self.nodes[&key.0].record))
    }

    /// The keys of a range, in their order, with the rules of each record.
    pub(crate) fn keys(&self, from: Bound<&str>, to: Bound<&str>) -> impl Iterator<Item = (&str, &[Acl])> {
        let found = self.index.keys(from.map(Key::new), to.map(Key::new));
        found.map(|(key, rules)| (key.as_str(), &**rules))
    }

    /// The records of a range of a secondary index, with their entries.
    pub(crate) fn indexed(
        &self,
        range: &IndexRange,
    ) -> impl DoubleEndedIterator<Item = (&Entry, &str, &NodeRecord)> {
        let found = self.index.secondary(range);
        found.filter_map(move |entry| {
            let key = entry.record()?;
            Some((entry, key.as_str(), &self.nodes[&key.0].record))
        })
    }

    /// Fails unless a client may put the record. To be asked before anything about the record is told.
    pub(crate) fn check_put(&self, identities: &[Identity], key: &str) -> Result<(), Refused> {
        // Numbers are taken from the root by writing the record of its key.
        if key == ROOT {
            acl::check(&self.nodes[ROOT].record.acl, PERM_CREATE, identities).map_err(|_| Refused::NoAuth)?;
        }
        let path = path_of(key);
        let (mut at, mut perm) = (&*path, PERM_WRITE);
        loop {
            if let Some(node) = self.nodes.get(at) {
                return acl::check(&node.record.acl, perm, identities).map_err(|_| Refused::NoAuth);
            }
            // What is missing would be made below the first one that is there.
            let Some((above, _)) = path::split(at) else { return Ok(()) };
            (at, perm) = (path::key(above), PERM_CREATE);
        }
    }

    /// Fails unless a client may delete the record. To be asked before anything about the record is told.
    pub(crate) fn check_delete(&self, identities: &[Identity], key: &str) -> Result<(), Refused> {
        let path = path_of(key);
        let parent = path::split(&path).and_then(|(parent, _)| self.nodes.get(path::key(parent)));
        match parent {
            Some(parent) => {
                acl::check(&parent.record.acl, PERM_DELETE, identities).map_err(|_| Refused::NoAuth)
            }
            None => Ok(()),
        }
    }

    /// Fails unless the record has this version; -1 for none.
    pub(crate) fn expect(&self, key: &str, expected: Option<i64>) -> Result<(), Refused> {
        let current = self.record(key).map_or(bindery_oxia::VERSION_NOT_EXISTS, |record| record.version_id);
        match expected {
            Some(expected) if expected != current => Err(Refused::UnexpectedVersion),
            _ => Ok(()),
        }
    }

    /// Puts a record, whatever is there. Gives it as it is now.
    pub(crate) fn put(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        key: &str,
        put: Put,
    ) -> Result<&NodeRecord, Refused> {
        self.check_put(identities, key)?;
        let path = path_of(key);
        match self.nodes.get(&*path) {
            Some(node) => {
                let record = &node.record;
                let added = put.size_bytes().saturating_sub(record.data_len());
                if added > 0 {
                    self.check_room(added).map_err(|_| Refused::NoRoom)?;
                }
                let change = if record.is_implied { Change::Created } else { Change::Modified };
                let next = next_version(record.version, -1).expect("any version is accepted");
                let (zxid, time_ms) = (txn.zxid, txn.time_ms);
                let (event, _) = self.update(txn, &path, |record| {
                    record.set_value(Some(put.value.clone()), next, zxid, time_ms);
                    record.take_on(&put);
                });
                self.announce(txn, event, change);
            }
            None => self.put_new(txn, &path, &put)?,
        }
        if key == ROOT {
            self.number_by_root(txn, &path);
        }
        Ok(&self.nodes[&*path].record)
    }

    /// The record of the root's key is no node to ZooKeeper's clients: the root itself has the numbers that they were given.
    fn number_by_root(&mut self, txn: &mut Txn, path: &str) {
        let given = self.nodes[ROOT].record.given();
        let record = &mut self.nodes.get_mut(path).expect("it was put").record;
        // Its own step back was noted when it was put.
        record.modifications = record.modifications.max(given);
        let behind = record.modifications.saturating_add(1);
        let (_no_event, _) = self.update(txn, ROOT, |root| root.counted = root.counted.max(behind));
    }

    fn put_new(&mut self, txn: &mut Txn, path: &str, put: &Put) -> Result<(), Refused> {
        let mut missing = Vec::new();
        let mut above = path;
        while let Some((parent, _)) = path::split(above) {
            above = path::key(parent);
            if self.nodes.contains_key(above) {
                break;
            }
            missing.push(above);
        }
        let cost = |path: &str| path.len() + NODE_OVERHEAD_BYTES;
        let added = cost(path) + put.size_bytes() + missing.iter().map(|path| cost(path)).sum::<usize>();
        if !(put.session.is_some() && self.has_reserve(added)) {
            self.check_room(added).map_err(|_| Refused::NoRoom)?;
        }
        for above in missing.into_iter().rev() {
            let record = NodeRecord { is_implied: true, data: None, ..self.new_record(txn) };
            self.insert(txn, above.into(), record);
        }
        let mut record = NodeRecord { data: Some(put.value.clone()), ..self.new_record(txn) };
        record.take_on(put);
        self.insert(txn, path.into(), record);
        Ok(())
    }

    fn new_record(&self, txn: &Txn) -> NodeRecord {
        NodeRecord::new(self.open_acl.clone(), txn.zxid, txn.time_ms)
    }

    /// Deletes a record. Records below it stay.
    pub(crate) fn delete_record(
        &mut self,
        txn: &mut Txn,
        identities: &[Identity],
        key: &str,
    ) -> Result<(), Refused> {
        self.check_delete(identities, key)?;
        if self.record(key).is_none() {
            return Err(Refused::NotFound);
        }
        self.retire(txn, &path_of(key));
        Ok(())
    }

    /// Removes a record: its node, too, unless others are below it.
    pub(super) fn retire(&mut self, txn: &mut Txn, path: &str) {
        if self.nodes.get(path).is_none_or(|node| node.children.is_empty()) {
            return self.remove(txn, path);
        }
        let zxid = txn.zxid;
        let (event, _) = self.update(txn, path, |record| {
            record.is_implied = true;
            (record.data, record.identity, record.index_keys, record.owner) = (None, None, None, 0);
            // To ZooKeeper's clients this is a change of the value.
            record.mzxid = zxid;
            record.version = next_version(record.version, -1).expect("any version is accepted");
        });
        self.announce(txn, event, Change::Deleted);
    }

    /// Tells watches, where there can be any, and subscribers to notifications.
    fn announce(&mut self, txn: &mut Txn, event: Event, change: Change) {
        debug_assert_eq!(event.kind, EventKind::DataChanged);
        txn.note(&event.path, change, &event.acl);
        if !is_loose(&event.path) {
            txn.events.push(event);
        }
    }
}

impl NodeRecord {
    /// True when the rules of ZooKeeper's side let a client read it.
    pub(crate) fn is_readable(&self, identities: &[Identity]) -> bool {
        acl::allows(&self.acl, PERM_READ, identities)
    }

    /// What Oxia's writers say besides the value.
    fn take_on(&mut self, put: &Put) {
        self.owner = put.session.unwrap_or(0);
        self.identity.clone_from(&put.identity);
        self.index_keys.clone_from(&put.index_keys);
        self.version_id = put.version_id.unwrap_or(self.version_id);
        let before = self.modifications.saturating_sub(1).max(0);
        self.modifications = match (put.modifications, self.modifications) {
            // A count that a migration chooses is raised to one that repeats no number.
            (Some(chosen), _) => chosen.max(before).max(self.given()),
            (None, 0) => 0,
            (None, counted) => counted.max(self.given()),
        };
        if self.modifications > 0 {
            self.counted = self.counted.max(self.modifications.saturating_add(1));
        }
    }

    /// No client of ZooKeeper's was given this number for a child, or a higher one.
    fn given(&self) -> i64 {
        // Below zero the counter has passed all of its numbers.
        self.sequence.try_into().map_or(1 << 31, |given: u32| given.into())
    }
}

#[cfg(test)]
mod tests;
