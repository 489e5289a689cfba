//! Names of the simulated disk: what lookups see, what is durable, and the changes between them.
//!
//! # Invariants
//! 1. A change becomes durable only by a sync of the directory of its (new) name.
//! 2. At a crash each pending change is kept or lost on its own; a rename is one change.
//! 3. A name whose parent directory is lost is lost with it.

use bindery_io::SeededRandom;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    Dir,
    File(u64),
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    Add { path: PathBuf, node: Node },
    Rename { from: PathBuf, to: PathBuf, inode: u64 },
    Remove { path: PathBuf, inode: u64 },
}

impl Change {
    /// The directory whose sync makes it durable.
    fn dir(&self) -> &Path {
        let (Change::Add { path, .. } | Change::Rename { to: path, .. } | Change::Remove { path, .. }) = self;
        path.parent().unwrap_or(path)
    }

    fn inode(&self) -> Option<u64> {
        match self {
            Change::Add { node: Node::File(inode), .. } => Some(*inode),
            Change::Add { node: Node::Dir, .. } => None,
            Change::Rename { inode, .. } | Change::Remove { inode, .. } => Some(*inode),
        }
    }

    /// Applies the change to names that may lack the changes before it.
    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        let forget = |names: &mut BTreeMap<PathBuf, Node>, path: &PathBuf, inode: u64| {
            if names.get(path) == Some(&Node::File(inode)) {
                names.remove(path);
            }
        };
        match self {
            Change::Add { path, node } => {
                names.insert(path.clone(), *node);
            }
            Change::Rename { from, to, inode } => {
                forget(names, from, *inode);
                names.insert(to.clone(), Node::File(*inode));
            }
            Change::Remove { path, inode } => forget(names, path, *inode),
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Names {
    live: BTreeMap<PathBuf, Node>,
    durable: BTreeMap<PathBuf, Node>,
    pending: Vec<Change>,
}

impl Names {
    pub(super) fn get(&self, path: &Path) -> Option<Node> {
        if is_root(path) { Some(Node::Dir) } else { self.live.get(path).copied() }
    }

    pub(super) fn is_dir(&self, path: &Path) -> bool {
        self.get(path) == Some(Node::Dir)
    }

    /// The content of a directory, sorted.
    pub(super) fn list<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = (&'a Path, Node)> {
        let below = self.live.range::<Path, _>((std::ops::Bound::Excluded(dir), std::ops::Bound::Unbounded));
        below
            .take_while(move |(path, _)| path.starts_with(dir))
            .filter(move |(path, _)| path.parent() == Some(dir))
            .map(|(path, node)| (path.as_path(), *node))
    }

    /// A change that lookups see at once.
    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    /// Makes the changes in `dir` durable, or, after a failure, those that `reached` says; the others count as clean
    /// and never become durable.
    pub(super) fn sync_dir(&mut self, dir: &Path, mut reached: impl FnMut() -> bool) {
        let mut kept: Vec<Change> = Vec::new();
        for change in std::mem::take(&mut self.pending) {
            if change.dir() != dir {
                kept.push(change);
                continue;
            }
            if !reached() {
                continue;
            }
            change.apply(&mut self.durable);
            if let Change::Rename { from, inode, .. } = &change {
                // Its creation in another directory must not come back when that directory is synced later.
                kept.retain(
                    |k| !matches!(k, Change::Add { path, node: Node::File(i) } if path == from && i == inode),
                );
            }
        }
        self.pending = kept;
    }

    /// True when a live or durable name, or a change that could give one back, still leads to the file.
    pub(super) fn mention(&self, inode: u64) -> bool {
        let node = Node::File(inode);
        self.live.values().any(|n| *n == node)
            || self.durable.values().any(|n| *n == node)
            || self.pending.iter().any(|change| change.inode() == Some(inode))
    }

    /// The names a restart finds when nothing pending survived.
    pub(super) fn durable_image(&self) -> Names {
        Names::restarted(self.durable.clone())
    }

    /// The names a restart after a power cut finds.
    pub(super) fn crash(&self, random: &SeededRandom) -> Names {
        let keep = [0.0, 0.5, 0.5, 1.0][random.below(4) as usize];
        let mut found = self.durable.clone();
        for change in &self.pending {
            if random.chance(keep) {
                change.apply(&mut found);
            }
        }
        Names::restarted(found)
    }

    /// The names of a restart that keeps the pending changes for which `keep` says so.
    pub(super) fn crash_choosing(&self, keep: &mut dyn FnMut() -> bool) -> Names {
        let mut found = self.durable.clone();
        for change in self.pending.iter().filter(|_| keep()) {
            change.apply(&mut found);
        }
        Names::restarted(found)
    }

    fn restarted(mut found: BTreeMap<PathBuf, Node>) -> Names {
        // Parents sort before what is in them, so one pass sees each parent's fate first.
        let mut dirs: Vec<PathBuf> = Vec::new();
        found.retain(|path, node| {
            let has_parent = path.parent().is_none_or(|p| is_root(p) || dirs.iter().any(|dir| dir == p));
            if has_parent && *node == Node::Dir {
                dirs.push(path.clone());
            }
            has_parent
        });
        Names { live: found.clone(), durable: found, pending: Vec::new() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, Node)> {
        self.live.iter().map(|(path, node)| (path.as_path(), *node))
    }
}

pub(super) fn is_root(path: &Path) -> bool {
    path.parent().is_none()
}
