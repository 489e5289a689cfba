//! Reads all nodes below a root, parents before children, many at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::layout::{STORE_MARKS_NAME, STORE_MARKS_PARENT, TIER_SECRET_NAME};
use crate::store::{MetadataStore, Node, StoreError};

/// Reads under way at once.
const READS_MAX: usize = 64;
/// How often a read is tried, and the pause in between, which gives a server time to restart.
const ATTEMPTS_MAX: u32 = 8;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(500);

/// What was left out, and how much of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub ephemeral: u64,
    pub registrations: u64,
}

pub(super) struct Walk {
    store: Arc<dyn MetadataStore>,
    root: String,
    /// Nodes, relative to the root, whose children are still to be listed.
    parents: Vec<String>,
    /// Nodes that are listed, but not yet read.
    listed: VecDeque<String>,
    started: bool,
    pub left_out: LeftOut,
}

impl Walk {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> Walk {
        Walk {
            store,
            root: root.into(),
            parents: Vec::new(),
            listed: VecDeque::new(),
            started: false,
            left_out: LeftOut::default(),
        }
    }

    /// Some more nodes, by path relative to the root (the root itself is ""); `None` at the end. A node that goes while
    /// it is read is not there. If this is cancelled, it skips the nodes it was reading: do not continue such a walk.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<(String, Node)>>, StoreError> {
        if !self.started {
            self.started = true;
            self.listed.push_back(String::new());
        }
        while self.listed.is_empty() {
            let Some(parent) = self.parents.pop() else { return Ok(None) };
            self.list(&parent).await?;
        }
        let count = self.listed.len().min(READS_MAX);
        let paths: Vec<String> = self.listed.drain(..count).collect();
        let mut nodes = Vec::with_capacity(count);
        let mut with_children = Vec::new();
        for (path, node) in self.read(paths).await? {
            let Some(node) = node else { continue };
            if node.stat.owner.is_some() {
                self.left_out.ephemeral += 1;
                continue;
            }
            // Where the store does not count them, a listing tells.
            if node.stat.children_count != Some(0) {
                with_children.push(path.clone());
            }
            nodes.push((path, node));
        }
        self.parents.extend(with_children.into_iter().rev());
        Ok(Some(nodes))
    }

    async fn list(&mut self, parent: &str) -> Result<(), StoreError> {
        let path = format!("{}{parent}", self.root);
        let names = match patiently(|| self.store.children(&path)).await {
            Ok(names) => names,
            Err(StoreError::NoNode { .. }) => return Ok(()),
            Err(other) => return Err(other),
        };
        for name in names {
            // A bookie knows the store that it left its mark in by it: a copy is another store.
            if parent == STORE_MARKS_PARENT && name == STORE_MARKS_NAME {
                continue;
            }
            // Whoever reads a copy is not to be taken for a tierer of this cluster.
            if parent == STORE_MARKS_PARENT && name == TIER_SECRET_NAME {
                continue;
            }
            let registration = match parent {
                "/available" => name != "readonly",
                "/available/readonly" => true,
                _ => false,
            };
            match registration {
                true => self.left_out.registrations += 1,
                false => self.listed.push_back(format!("{parent}/{name}")),
            }
        }
        Ok(())
    }

    /// Reads all of `paths` at once and returns them in their order.
    async fn read(&self, paths: Vec<String>) -> Result<Vec<(String, Option<Node>)>, StoreError> {
        let mut reads = JoinSet::new();
        for (index, path) in paths.iter().enumerate() {
            let (store, path) = (self.store.clone(), format!("{}{path}", self.root));
            reads.spawn(async move {
                match patiently(|| store.get(&path)).await {
                    Ok(node) => Ok((index, Some(node))),
                    Err(StoreError::NoNode { .. }) => Ok((index, None)),
                    Err(other) => Err(other),
                }
            });
        }
        let mut nodes: Vec<(String, Option<Node>)> = paths.into_iter().map(|path| (path, None)).collect();
        while let Some(read) = reads.join_next().await {
            let (index, node) = read.expect("a read neither panics nor is aborted")?;
            nodes[index].1 = node;
        }
        Ok(nodes)
    }
}

/// Repeats a request that may be repeated while it fails for a reason that passes.
pub(super) async fn patiently<T, F>(mut request: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut attempts = 1;
    loop {
        match request().await {
            Err(error) if error.is_transient() && attempts < ATTEMPTS_MAX => {
                attempts += 1;
                tokio::time::sleep(ATTEMPT_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}
