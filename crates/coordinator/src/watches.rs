//! Watches: who is told about which path. No I/O.
//!
//! # Invariants
//! 1. A standard watch fires once and is gone; a persistent one stays until removed or its connection ends.
//! 2. One change of one node notifies a connection once, however many of its watches it triggers.
//! 3. Watches belong to a connection, not to a session: a client sets them again after it reconnected.
//!
//! # Limits     the caller bounds [`Watches::len`] and [`Watches::path_bytes`]

use crate::tree::Event;
use crate::wire::{EventKind, WatchTarget};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Identifies a connection for as long as the process runs; later connections have higher numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// The kinds of watches a connection has on one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes(u8);

impl Modes {
    const NONE: Modes = Modes(0);
    pub(crate) const STANDARD: Modes = Modes(1);
    pub(crate) const PERSISTENT: Modes = Modes(2);
    pub(crate) const RECURSIVE: Modes = Modes(4);
    const ALL: Modes = Modes(7);

    fn has(self, other: Modes) -> bool {
        self.0 & other.0 != 0
    }
    fn with(self, other: Modes) -> Modes {
        Modes(self.0 | other.0)
    }
    fn without(self, other: Modes) -> Modes {
        Modes(self.0 & !other.0)
    }
}

/// The quantities that are limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Pairs of a path and a connection.
    Watches,
    /// Bytes of paths.
    PathBytes,
}

/// Watches of one kind: for values, or for children.
#[derive(Debug, Default)]
struct Table {
    paths: HashMap<Arc<str>, HashMap<ConnectionId, Modes>>,
    connections: HashMap<ConnectionId, HashSet<Arc<str>>>,
    /// Number of recursive watches: without any, there is no need to check parents.
    recursive: usize,
    len: usize,
    /// Bytes of the paths in `paths`.
    path_bytes: usize,
}

impl Table {
    fn modes(&self, path: &str, connection: ConnectionId) -> Modes {
        self.paths.get(path).and_then(|on_path| on_path.get(&connection)).copied().unwrap_or(Modes::NONE)
    }

    fn set(&mut self, path: &str, connection: ConnectionId, modes: Modes) {
        let before = self.modes(path, connection);
        self.recursive += usize::from(modes.has(Modes::RECURSIVE));
        self.recursive -= usize::from(before.has(Modes::RECURSIVE));
        match (before, modes) {
            (Modes::NONE, Modes::NONE) => {}
            (Modes::NONE, _) => {
                self.len += 1;
                let key = match self.paths.get_key_value(path) {
                    Some((key, _)) => key.clone(),
                    None => {
                        self.path_bytes += path.len();
                        path.into()
                    }
                };
                self.connections.entry(connection).or_default().insert(Arc::clone(&key));
                self.paths.entry(key).or_default().insert(connection, modes);
            }
            (_, Modes::NONE) => {
                self.len -= 1;
                if let Some(on_path) = self.paths.get_mut(path) {
                    on_path.remove(&connection);
                    if on_path.is_empty() {
                        self.paths.remove(path);
                        self.path_bytes -= path.len();
                    }
                }
                if let Some(of_connection) = self.connections.get_mut(&connection) {
                    of_connection.remove(path);
                    if of_connection.is_empty() {
                        self.connections.remove(&connection);
                    }
                }
            }
            (_, _) => {
                let on_path = self.paths.get_mut(path).expect("a path with watches is known");
                on_path.insert(connection, modes);
            }
        }
    }

    fn add(&mut self, path: &str, connection: ConnectionId, mode: Modes) {
        self.set(path, connection, self.modes(path, connection).with(mode));
    }

    /// True if there was one.
    fn remove(&mut self, path: &str, connection: ConnectionId, mode: Modes) -> bool {
        let before = self.modes(path, connection);
        self.set(path, connection, before.without(mode));
        before.has(mode)
    }

    fn forget(&mut self, connection: ConnectionId) {
        for path in self.connections.get(&connection).cloned().unwrap_or_default() {
            self.set(&path, connection, Modes::NONE);
        }
    }

    /// The connections to notify of a change of the node; removes its standard watches (watches invariant 1).
    fn fire(&mut self, path: &str) -> BTreeSet<ConnectionId> {
        let told: Vec<(ConnectionId, Modes)> =
            self.paths.get(path).into_iter().flatten().map(|(id, modes)| (*id, *modes)).collect();
        for (connection, modes) in &told {
            self.set(path, *connection, modes.without(Modes::STANDARD));
        }
        let mut told: BTreeSet<ConnectionId> = told.into_iter().map(|(connection, _)| connection).collect();
        let mut below = path;
        while self.recursive > 0 && below != "/" {
            below = match below.rfind('/') {
                Some(0) => "/",
                Some(end) => &below[..end],
                None => break,
            };
            let on_parent = self.paths.get(below).into_iter().flatten();
            told.extend(on_parent.filter(|(_, modes)| modes.has(Modes::RECURSIVE)).map(|(id, _)| *id));
        }
        told
    }
}

/// All watches.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    data: Table,
    children: Table,
}

impl Watches {
    /// Number of (path, connection) pairs.
    pub(crate) fn len(&self) -> usize {
        self.data.len + self.children.len
    }

    /// Bytes of the paths watched: a client may watch what does not exist, under names as long as a frame.
    pub(crate) fn path_bytes(&self) -> usize {
        self.data.path_bytes + self.children.path_bytes
    }

    /// Watches value, creation and deletion.
    pub(crate) fn add_data(&mut self, path: &str, connection: ConnectionId) {
        self.data.add(path, connection, Modes::STANDARD);
    }

    /// Watches children and deletion.
    pub(crate) fn add_children(&mut self, path: &str, connection: ConnectionId) {
        self.children.add(path, connection, Modes::STANDARD);
    }

    /// Watches everything about the node, until removed.
    pub(crate) fn add_persistent(&mut self, path: &str, connection: ConnectionId) {
        self.data.add(path, connection, Modes::PERSISTENT);
        self.children.add(path, connection, Modes::PERSISTENT);
    }

    /// Watches the node and everything below it, until removed. Changes of children are reported as creations and deletions only.
    pub(crate) fn add_recursive(&mut self, path: &str, connection: ConnectionId) {
        self.data.add(path, connection, Modes::RECURSIVE);
    }

    /// True when the connection has such a watch on the path.
    pub(crate) fn contains(&self, path: &str, connection: ConnectionId, target: WatchTarget) -> bool {
        let (data, children) = (self.data.modes(path, connection), self.children.modes(path, connection));
        match target {
            WatchTarget::Children => children.has(Modes::STANDARD),
            WatchTarget::Data => data.has(Modes::STANDARD),
            WatchTarget::Persistent => data.has(Modes::PERSISTENT),
            WatchTarget::Recursive => data.has(Modes::RECURSIVE),
            WatchTarget::Any => data.has(Modes::ALL) || children.has(Modes::ALL),
        }
    }

    /// Removes such watches; true when there was one.
    pub(crate) fn remove(&mut self, path: &str, connection: ConnectionId, target: WatchTarget) -> bool {
        let (data, children) = match target {
            WatchTarget::Children => (Modes::NONE, Modes::STANDARD),
            WatchTarget::Data => (Modes::STANDARD, Modes::NONE),
            WatchTarget::Persistent => (Modes::PERSISTENT, Modes::PERSISTENT),
            WatchTarget::Recursive => (Modes::RECURSIVE, Modes::NONE),
            WatchTarget::Any => (Modes::ALL, Modes::ALL),
        };
        let from_data = self.data.remove(path, connection, data);
        self.children.remove(path, connection, children) || from_data
    }

    /// The connection with the most watches, or with the most bytes of watched paths, and how many it has; of several with as many,
    /// the newest. `None` without watches. By bytes it goes through all watches.
    pub(crate) fn heaviest(&self, by: Weight) -> Option<(ConnectionId, usize)> {
        let mut weights: HashMap<ConnectionId, usize> = HashMap::new();
        for (connection, paths) in self.data.connections.iter().chain(&self.children.connections) {
            *weights.entry(*connection).or_default() += match by {
                Weight::Watches => paths.len(),
                Weight::PathBytes => paths.iter().map(|path| path.len()).sum(),
            };
        }
        weights.into_iter().max_by_key(|(connection, weight)| (*weight, *connection))
    }

    /// Removes all watches of a connection (watches invariant 3).
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.data.forget(connection);
        self.children.forget(connection);
    }

    /// The connections to notify of an event (watches invariant 2).
    pub(crate) fn fire(&mut self, event: &Event) -> BTreeSet<ConnectionId> {
        match event.kind {
            EventKind::Created | EventKind::DataChanged => self.data.fire(&event.path),
            EventKind::ChildrenChanged => self.children.fire(&event.path),
            EventKind::Deleted => {
                let mut told = self.data.fire(&event.path);
                told.extend(self.children.fire(&event.path));
                told
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::acl::open_to_all;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    fn fire(watches: &mut Watches, kind: EventKind, path: &str) -> Vec<ConnectionId> {
        watches.fire(&Event { kind, path: path.into(), acl: open_to_all() }).into_iter().collect()
    }

    #[test]
    fn a_standard_watch_fires_once_and_a_persistent_one_stays() {
        let mut watches = Watches::default();
        watches.add_data("/a", A);
        watches.add_persistent("/a", B);
        assert_eq!(fire(&mut watches, EventKind::DataChanged, "/a"), [A, B]);
        assert_eq!(fire(&mut watches, EventKind::DataChanged, "/a"), [B], "watches invariant 1");
        assert_eq!(fire(&mut watches, EventKind::ChildrenChanged, "/a"), [B]);
        assert_eq!(fire(&mut watches, EventKind::ChildrenChanged, "/"), []);
        assert_eq!(fire(&mut watches, EventKind::DataChanged, "/a/b"), []);
    }

    #[test]
    fn a_deletion_tells_a_connection_once() {
        let mut watches = Watches::default();
        watches.add_data("/a", A);
        watches.add_children("/a", A);
        watches.add_children("/a", B);
        assert_eq!(watches.path_bytes(), 4, "each path once for values and once for children");
        assert_eq!(fire(&mut watches, EventKind::Deleted, "/a"), [A, B], "watches invariant 2");
        assert_eq!(watches.len(), 0);
    }

    #[test]
    fn a_recursive_watch_sees_everything_below_but_no_lists() {
        let mut watches = Watches::default();
        watches.add_recursive("/a", A);
        watches.add_recursive("/", B);
        assert_eq!(fire(&mut watches, EventKind::Created, "/a/b/c"), [A, B]);
        assert_eq!(fire(&mut watches, EventKind::DataChanged, "/a"), [A, B]);
        assert_eq!(fire(&mut watches, EventKind::Created, "/ab"), [B]);
        assert_eq!(fire(&mut watches, EventKind::ChildrenChanged, "/a"), []);
        assert!(watches.remove("/a", A, WatchTarget::Recursive));
        assert!(!watches.remove("/a", A, WatchTarget::Recursive));
        assert_eq!(fire(&mut watches, EventKind::Created, "/a/b/c"), [B]);
        watches.forget(B);
        assert_eq!((watches.len(), watches.data.recursive), (0, 0), "watches invariant 3");
        assert_eq!(watches.path_bytes(), 0);
    }

    #[test]
    fn watches_are_checked_and_removed_by_kind() {
        let mut watches = Watches::default();
        watches.add_data("/a", A);
        watches.add_persistent("/a", A);
        watches.add_children("/a", A);
        for target in [WatchTarget::Data, WatchTarget::Children, WatchTarget::Persistent, WatchTarget::Any] {
            assert!(watches.contains("/a", A, target), "{target:?}");
            assert!(!watches.contains("/a", B, target));
        }
        assert!(!watches.contains("/a", A, WatchTarget::Recursive));
        assert!(watches.remove("/a", A, WatchTarget::Data));
        assert!(!watches.contains("/a", A, WatchTarget::Data));
        assert!(watches.contains("/a", A, WatchTarget::Children));
        assert!(watches.remove("/a", A, WatchTarget::Any));
        assert!(!watches.remove("/a", A, WatchTarget::Any));
        assert_eq!(watches.len(), 0);
    }
}
