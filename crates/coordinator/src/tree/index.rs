//! Indexes of nodes: by session, by life time, by Oxia's key, and by secondary key.

use super::NodeRecord;
use super::records::Key;
use super::secondary::{Entry, IndexRange};
use crate::wire::Acl;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// Follows what the records of all nodes say; whoever changes one tells it.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Nodes of each session.
    ephemerals: HashMap<i64, BTreeSet<Arc<str>>>,
    /// Paths of containers and of nodes with a time to live.
    transient: BTreeSet<Arc<str>>,
    /// Keys of the records that Oxia's clients see, in Oxia's order, with the rules of each: a listing asks no node, which the processor's caches
    /// would not have.
    keys: BTreeMap<Key, Arc<[Acl]>>,
    /// Entries of all secondary indexes.
    secondary: BTreeSet<Entry>,
    /// Bytes of paths and of what records hold.
    size_bytes: usize,
}

impl Index {
    /// A node was added.
    pub(super) fn enter(&mut self, path: &Arc<str>, record: &NodeRecord) {
        self.size_bytes += path.len() + record.size_bytes();
        if let Some(session) = record.session() {
            self.ephemerals.entry(session).or_default().insert(path.clone());
        }
        if record.goes_by_itself() {
            self.transient.insert(path.clone());
        }
        if !record.is_implied
            && let Some(key) = Key::of_node(path.clone())
        {
            for of in record.index_keys.iter().flat_map(|keys| keys.iter()) {
                self.secondary.insert(Entry::new(of, key.clone()));
            }
            self.keys.insert(key, record.acl.clone());
        }
    }

    /// A node was removed.
    pub(super) fn leave(&mut self, path: &Arc<str>, record: &NodeRecord) {
        self.size_bytes -= path.len() + record.size_bytes();
        if let Some(session) = record.session()
            && let Some(of_session) = self.ephemerals.get_mut(&session)
        {
            of_session.remove(path);
            if of_session.is_empty() {
                self.ephemerals.remove(&session);
            }
        }
        if record.goes_by_itself() {
            self.transient.remove(path);
        }
        if !record.is_implied
            && let Some(key) = Key::of_node(path.clone())
        {
            for of in record.index_keys.iter().flat_map(|keys| keys.iter()) {
                self.secondary.remove(&Entry::new(of, key.clone()));
            }
            self.keys.remove(&key);
        }
    }

    /// The record of a node changed.
    pub(super) fn change(&mut self, path: &Arc<str>, before: &NodeRecord, after: &NodeRecord) {
        let is_found_alike = (before.owner, before.is_implied, &before.index_keys)
            == (after.owner, after.is_implied, &after.index_keys)
            && Arc::ptr_eq(&before.acl, &after.acl);
        if is_found_alike {
            self.size_bytes = self.size_bytes - before.size_bytes() + after.size_bytes();
        } else {
            self.leave(path, before);
            self.enter(path, after);
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Number of ephemeral nodes.
    pub(super) fn ephemerals_count(&self) -> usize {
        self.ephemerals.values().map(BTreeSet::len).sum()
    }

    /// The nodes of a session, ascending.
    pub(super) fn ephemerals_of(&self, session: i64) -> impl Iterator<Item = &Arc<str>> {
        self.ephemerals.get(&session).into_iter().flatten()
    }

    /// The sessions that own nodes.
    pub(super) fn owners(&self) -> impl Iterator<Item = i64> {
        self.ephemerals.keys().copied()
    }

    /// The paths of containers and of nodes with a time to live.
    pub(super) fn transient(&self) -> impl Iterator<Item = &Arc<str>> {
        self.transient.iter()
    }

    /// What Oxia's clients see of a range, in their order, with the rules of each; nothing of one that ends before it begins.
    pub(super) fn keys(
        &self,
        from: Bound<Key>,
        to: Bound<Key>,
    ) -> impl DoubleEndedIterator<Item = (&Key, &Arc<[Acl]>)> {
        let is_empty = match (&from, &to) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
                from >= to
            }
        };
        (!is_empty).then(|| self.keys.range((from, to))).into_iter().flatten()
    }

    /// Entries of a secondary index, in their order; none of a range that ends before it begins.
    pub(super) fn secondary(&self, range: &IndexRange) -> impl DoubleEndedIterator<Item = &Entry> {
        let is_empty = match &range.from {
            Bound::Included(from) | Bound::Excluded(from) => *from >= range.to,
            Bound::Unbounded => false,
        };
        let bounds = (range.from.clone(), Bound::Excluded(range.to.clone()));
        (!is_empty).then(|| self.secondary.range(bounds)).into_iter().flatten()
    }

    /// True when a node is in each part in which it has to be.
    #[cfg(test)]
    pub(super) fn has(&self, path: &Arc<str>, record: &NodeRecord) -> bool {
        record.session().is_none_or(|session| self.ephemerals[&session].contains(path))
            && record.goes_by_itself() == self.transient.contains(path)
            && Key::of_node(path.clone()).is_none_or(|key| {
                let mut index_keys = record.index_keys.iter().flat_map(|keys| keys.iter());
                let rules = self.keys.get(&key);
                let is_listed = rules.is_some_and(|rules| Arc::ptr_eq(rules, &record.acl));
                (if record.is_implied { rules.is_none() } else { is_listed })
                    && index_keys.all(|of| self.secondary.contains(&Entry::new(of, key.clone())))
            })
    }

    /// Entries of the four parts.
    #[cfg(test)]
    pub(super) fn lens(&self) -> [usize; 4] {
        [self.ephemerals_count(), self.transient.len(), self.keys.len(), self.secondary.len()]
    }
}
