//! Export: from a store to text.

use bytes::Bytes;

use super::format::Writer;
use super::walk::{Walk, patiently};
use crate::layout::Layout;
use crate::store::{CreateMode, StoreError};

/// The contents of an export, and the nodes that it leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExportSummary {
    /// Nodes in the file.
    pub nodes: u64,
    /// Ephemeral nodes that were left out (locks, votes): they belong to running processes.
    pub ephemeral_left_out: u64,
    /// Registrations of bookies that were left out. Not 0: bookies run, and what changes now is not in the file.
    pub registrations_left_out: u64,
}

enum Stage {
    Begin,
    Nodes,
    End,
    Done,
}

/// An export under way. It changes nothing but, once, the counter of ledger ids: one id is skipped.
///
/// It is no snapshot: a change made while it runs may be in it or not. Stop writers and bookies first.
pub struct Export {
    layout: Layout,
    walk: Walk,
    writer: Writer,
    stage: Stage,
    nodes: u64,
    has_layout_node: bool,
}

impl Export {
    /// An export of everything below the root of `layout`.
    pub fn new(layout: &Layout) -> Export {
        let walk = Walk::new(layout.store().clone(), layout.root());
        Export {
            layout: layout.clone(),
            walk,
            writer: Writer::new(),
            stage: Stage::Begin,
            nodes: 0,
            has_layout_node: false,
        }
    }

    /// The next part of the text, some lines; `None` when all was returned. After an error, or when it is cancelled, the
    /// export has to be begun again.
    pub async fn next(&mut self) -> Result<Option<String>, StoreError> {
        match self.stage {
            Stage::Begin => {
                self.stage = Stage::Nodes;
                Ok(Some(self.writer.begin(self.layout.root())))
            }
            Stage::Nodes => match self.walk.next().await? {
                Some(nodes) => {
                    self.nodes += nodes.len() as u64;
                    self.has_layout_node |= nodes.iter().any(|(path, _)| path == "/LAYOUT");
                    Ok(Some(nodes.iter().map(|(path, node)| self.writer.node(path, &node.data)).collect()))
                }
                None => {
                    self.stage = Stage::End;
                    let mut text = String::new();
                    if !self.has_layout_node {
                        // Pulsar's driver writes none. An import, and whoever opens the copy, look for one.
                        self.nodes += 1;
                        text += &self.writer.node("/LAYOUT", self.layout.layout_text().as_bytes());
                    }
                    if let Some(next) = self.next_number().await? {
                        text += &self.writer.counter("/idgen", next);
                    }
                    Ok(Some(text))
                }
            },
            Stage::End => {
                self.stage = Stage::Done;
                Ok(Some(self.writer.end()))
            }
            Stage::Done => Ok(None),
        }
    }

    /// What was exported so far.
    pub fn summary(&self) -> ExportSummary {
        ExportSummary {
            nodes: self.nodes,
            ephemeral_left_out: self.walk.left_out.ephemeral,
            registrations_left_out: self.walk.left_out.registrations,
        }
    }

    /// The next number of the 31-bit generator, where that one is in use. Asking takes one number.
    async fn next_number(&self) -> Result<Option<i64>, StoreError> {
        let (store, root) = (self.layout.store(), self.layout.root());
        let exists = |path: String| async move { Ok::<_, StoreError>(store.exists(&path).await?.is_some()) };
        let long = patiently(|| exists(format!("{root}/idgen-long"))).await?;
        if long || !patiently(|| exists(format!("{root}/idgen"))).await? {
            return Ok(None);
        }
        let prefix = format!("{root}/idgen/ID-");
        let path =
            patiently(|| store.create(&prefix, Bytes::new(), CreateMode::EphemeralSequential)).await?.path;
        // If this fails the name goes with the session.
        let _ = store.delete(&path, None).await;
        let number = path.strip_prefix(&prefix).and_then(|number| number.parse::<i64>().ok());
        // A counter that turned negative is used up: as good as its end.
        Ok(Some(number.filter(|number| *number >= 0).map_or(i64::from(i32::MAX), |number| number + 1)))
    }
}
