//! Import: from a checked file into a store.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::format::Dump;
use super::walk::{Walk, patiently};
use crate::layout::IMPORT_MARKER as MARKER;
use crate::store::{CreateMode, MetadataStore, Op, StoreError};

/// Numbers that are used up one by one to move a counter: some seconds. Above, `idgen-long` takes over.
pub const COUNTER_STEPS_MAX: i64 = 100_000;

/// Nodes and bytes of one transaction: far below the 1 MiB that a server takes in a request.
const BATCH_NODES_MAX: usize = 200;
const BATCH_SIZE_BYTES_MAX: usize = 256 << 10;
const LAYOUT: &str = "/LAYOUT";

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportSummary {
    /// Nodes of the file, all of them there and equal.
    pub nodes: u64,
    /// Those that were there before: 0, unless this continued an earlier attempt.
    pub found: u64,
    /// The whole cluster was there before; nothing was changed.
    pub already_there: bool,
    /// Where generated ledger ids go on, in words.
    pub ids: String,
}

/// A node that is not as the file says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// In the file only.
    #[error("{0} is missing")]
    Missing(String),
    /// In the store only.
    #[error("{0} is not in the file")]
    Extra(String),
    /// In both, with other data.
    #[error("{0} has other data")]
    Data(String),
}

/// Why an import was refused or stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The root is somebody's; nothing was changed.
    #[error(
        "{root} exists in the target and is not empty: import into another root (--metadata); nothing was changed"
    )]
    NotEmpty {
        /// The ledgers root.
        root: String,
    },
    /// Another import was begun there; nothing was changed.
    #[error(
        "{root} holds half of an import of another file (checksum {checksum}): repeat that one, or remove {root} from \
         the target; nothing was changed"
    )]
    OtherImport {
        /// The ledgers root.
        root: String,
        /// Of the file that was being imported.
        checksum: String,
    },
    /// Somebody else wrote below the root meanwhile. The cluster stays closed.
    #[error(
        "{root} is not what the file says ({difference}): somebody else writes there; remove {root} from the target and \
         import again"
    )]
    Differs {
        /// The ledgers root.
        root: String,
        /// The first that was found.
        difference: Difference,
    },
    /// There is no upper half of ids left.
    #[error("no ledger ids are left above those of the source")]
    IdsExhausted,
    /// The store failed; repeating goes on where it stopped.
    #[error("import: {0}; repeat the command, it goes on where it stopped")]
    Store(#[from] StoreError),
}

struct Import<'a> {
    store: &'a Arc<dyn MetadataStore>,
    root: &'a str,
    dump: &'a Dump,
    found: u64,
}

/// Writes a checked file below `root`, which must be missing, empty or half of an earlier attempt with the same file.
///
/// Cancelled, it leaves such a half behind.
pub async fn import(
    store: &Arc<dyn MetadataStore>,
    root: &str,
    dump: &Dump,
) -> Result<ImportSummary, ImportError> {
    let mut import = Import { store, root, dump, found: 0 };
    let ids = import.ids()?;
    let summary = |import: &Import<'_>, already_there| ImportSummary {
        nodes: dump.nodes.len() as u64,
        found: import.found,
        already_there,
        ids: ids.in_words(),
    };
    if !import.begin().await? {
        import.found = dump.nodes.len() as u64;
        return Ok(summary(&import, true));
    }
    import.create_nodes().await?;
    match ids {
        Ids::Untouched => {}
        Ids::Count(next) => import.count_up(next).await?,
        Ids::High(high) => import.raise(high).await?,
    }
    if let Some(difference) = import.compare(&ids, false).await? {
        return Err(ImportError::Differs { root: root.into(), difference });
    }
    import.finish().await?;
    Ok(summary(&import, false))
}

/// How generated ids go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    /// None was ever generated.
    Untouched,
    /// The 31-bit counter goes on at this number.
    Count(i64),
    /// Ids with a new upper half.
    High(u32),
}

impl Ids {
    fn plan(dump: &Dump, steps_max: i64) -> Result<Ids, ImportError> {
        let long = dump.nodes.iter().any(|(path, _)| path == "/idgen-long");
        let highs = dump
            .nodes
            .iter()
            .filter_map(|(path, _)| path.strip_prefix("/idgen-long/HOB-")?.parse::<u32>().ok());
        if let Some(high) = highs.max() {
            let next = high.checked_add(1).filter(|next| *next <= i32::MAX as u32);
            return Ok(Ids::High(next.ok_or(ImportError::IdsExhausted)?));
        }
        let counter = dump.counters.iter().find(|(path, _)| path == "/idgen").map_or(0, |(_, next)| *next);
        Ok(match counter {
            _ if long => Ids::High(1),
            0 => Ids::Untouched,
            next if next <= steps_max => Ids::Count(next),
            _ => Ids::High(1),
        })
    }

    fn in_words(self) -> String {
        match self {
            Ids::Untouched => "ledger ids begin at 0".into(),
            Ids::Count(next) => format!("ledger ids go on at {next}"),
            Ids::High(high) => format!("ledger ids go on at {}", i64::from(high) << 32),
        }
    }

    /// Nodes that the import makes although the file does not have them.
    fn makes(self, path: &str) -> bool {
        match self {
            Ids::High(high) => path == "/idgen-long" || path == format!("/idgen-long/HOB-{high:010}"),
            Ids::Untouched | Ids::Count(_) => false,
        }
    }
}

impl Import<'_> {
    fn path(&self, relative: &str) -> String {
        format!("{}{relative}", self.root)
    }

    /// How generated ids go on in this store.
    fn ids(&self) -> Result<Ids, ImportError> {
        let steps_max = match self.store.is_transactional() {
            true => COUNTER_STEPS_MAX,
            // Such a store sets the counter, which has 31 bits.
            false => i64::from(i32::MAX) - 1,
        };
        Ids::plan(self.dump, steps_max)
    }

    /// Applies all of it or, where the store has no transactions, one after the other. What a failure leaves half done the next attempt
    /// finds ([`transfer`](super), invariant 3).
    async fn apply(&self, ops: Vec<Op>) -> Result<(), StoreError> {
        if self.store.is_transactional() {
            return self.store.multi(ops).await;
        }
        for op in ops {
            match op {
                Op::Create { path, data, mode } => self.store.create(&path, data, mode).await.map(drop)?,
                Op::Set { path, data, expected } => self.store.set(&path, data, expected).await.map(drop)?,
                Op::Delete { path, expected } => self.store.delete(&path, expected).await?,
                Op::Check { .. } => unreachable!("an import makes no such step"),
            }
        }
        Ok(())
    }

    fn create(&self, relative: &str, data: &Bytes) -> Op {
        Op::Create { path: self.path(relative), data: data.clone(), mode: CreateMode::Persistent }
    }

    /// Marks the root as being imported to. False when the whole cluster is there already.
    async fn begin(&mut self) -> Result<bool, ImportError> {
        patiently(|| self.store.sync("/")).await?;
        let marker = Bytes::from(self.dump.checksum.clone());
        let (root_path, marker_path) = (self.path(""), self.path(MARKER));
        for attempt in 0.. {
            match patiently(|| self.store.get(&marker_path)).await {
                // LAYOUT beside the marker: all was compared, and an end kept the last step from being made.
                Ok(node) if node.data == marker => {
                    match patiently(|| self.store.get(&self.path(LAYOUT))).await {
                        Err(StoreError::NoNode { .. }) => {
                            self.take_up_root().await?;
                            return Ok(true);
                        }
                        Err(other) => return Err(other.into()),
                        Ok(_) => {
                            self.finish().await?;
                            return Ok(false);
                        }
                    }
                }
                Ok(node) => {
                    let checksum = String::from_utf8_lossy(&node.data).chars().take(64).collect();
                    return Err(ImportError::OtherImport { root: self.root.into(), checksum });
                }
                Err(StoreError::NoNode { .. }) => {}
                Err(other) => return Err(other.into()),
            }
            let mark =
                Op::Create { path: marker_path.clone(), data: marker.clone(), mode: CreateMode::Persistent };
            let root_data = self.dump.data("").cloned().unwrap_or_default();
            let ops = match patiently(|| self.store.children(&root_path)).await {
                Ok(names) if names.is_empty() => {
                    vec![mark, Op::Set { path: root_path.clone(), data: root_data, expected: None }]
                }
                Ok(_) => {
                    let there = self.compare(&self.ids()?, true).await?.is_none();
                    return if there {
                        Ok(false)
                    } else {
                        Err(ImportError::NotEmpty { root: self.root.into() })
                    };
                }
                Err(StoreError::NoNode { .. }) => {
                    self.create_parents().await?;
                    vec![self.create("", &root_data), mark]
                }
                Err(other) => return Err(other.into()),
            };
            match self.apply(ops).await {
                Ok(()) => return Ok(true),
                // Somebody was faster, or it was applied and the answer lost: look again.
                Err(error)
                    if attempt < 8
                        && (error.is_transient() || matches!(error, StoreError::NodeExists { .. })) => {}
                Err(other) => return Err(other.into()),
            }
        }
        unreachable!("the loop ends by its last attempt")
    }

    /// Writes the value of a root that was there before. Without transactions an earlier attempt may have been cut off between the marker
    /// and this. The marker comes first, because a root that has it is no other import's.
    async fn take_up_root(&self) -> Result<(), StoreError> {
        if self.store.is_transactional() {
            return Ok(());
        }
        let (path, data) = (self.path(""), self.dump.data("").cloned().unwrap_or_default());
        if patiently(|| self.store.get(&path)).await?.data == data {
            return Ok(());
        }
        patiently(|| self.store.set(&path, data.clone(), None)).await.map(drop)
    }

    async fn create_parents(&self) -> Result<(), StoreError> {
        for (at, _) in self.root.match_indices('/').skip(1) {
            let created =
                patiently(|| self.store.create(&self.root[..at], Bytes::new(), CreateMode::Persistent)).await;
            match created {
                Ok(_) | Err(StoreError::NodeExists { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// All nodes but the root, which is there, and LAYOUT, which comes last.
    async fn create_nodes(&mut self) -> Result<(), ImportError> {
        let (mut batch, mut size) = (Vec::new(), 0);
        for node @ (path, data) in
            self.dump.nodes.iter().filter(|(path, _)| !path.is_empty() && path != LAYOUT)
        {
            let cost = path.len() + self.root.len() + data.len() + 64;
            if batch.len() == BATCH_NODES_MAX || (!batch.is_empty() && size + cost > BATCH_SIZE_BYTES_MAX) {
                self.create_batch(&batch).await?;
                (batch, size) = (Vec::new(), 0);
            }
            batch.push(node);
            size += cost;
        }
        if batch.is_empty() { Ok(()) } else { self.create_batch(&batch).await }
    }

    async fn create_batch(&mut self, batch: &[&(String, Bytes)]) -> Result<(), ImportError> {
        if self.store.is_transactional() {
            let ops = batch.iter().map(|(path, data)| self.create(path, data)).collect();
            match self.store.multi(ops).await {
                Ok(()) => return Ok(()),
                // An earlier attempt got as far as here, or this one did and the answer is lost: one by one, then.
                Err(StoreError::NodeExists { .. }) => {}
                Err(error) if error.is_transient() => {}
                Err(other) => return Err(other.into()),
            }
        }
        for (relative, data) in batch {
            let path = self.path(relative);
            match patiently(|| self.store.create(&path, data.clone(), CreateMode::Persistent)).await {
                Ok(_) => continue,
                Err(StoreError::NodeExists { .. }) => {}
                Err(other) => return Err(other.into()),
            }
            if patiently(|| self.store.get(&path)).await?.data != *data {
                let difference = Difference::Data(path);
                return Err(ImportError::Differs { root: self.root.into(), difference });
            }
            self.found += 1;
        }
        Ok(())
    }

    /// Makes ids go on at `next`: sets the counter of `idgen` or, where that cannot be set, uses up its numbers.
    async fn count_up(&self, next: i64) -> Result<(), ImportError> {
        let parent = self.path("/idgen");
        if !self.store.is_transactional() {
            let next = u32::try_from(next).map_err(|_| ImportError::IdsExhausted)?;
            return Ok(patiently(|| self.store.skip_sequence(&parent, next)).await?);
        }
        let prefix = format!("{parent}/ID-");
        let mut reached = 0;
        while reached < next {
            // The first round takes one number, to see where the counter is.
            let steps = if reached == 0 { 1 } else { (next - reached).min(BATCH_NODES_MAX as i64) };
            let ops = (0..steps).map(|_| Op::Create {
                path: prefix.clone(),
                data: Bytes::new(),
                mode: CreateMode::EphemeralSequential,
            });
            match self.apply(ops.collect()).await {
                Ok(()) => {}
                // It may have been applied: what is there now tells.
                Err(error) if error.is_transient() => {}
                Err(other) => return Err(other.into()),
            }
            let names = patiently(|| self.store.children(&parent)).await?;
            let numbers = names.iter().filter_map(|name| name.strip_prefix("ID-")?.parse::<i64>().ok());
            reached = reached.max(numbers.max().map_or(0, |last| last + 1));
            for names in names.chunks(BATCH_NODES_MAX) {
                let ops =
                    names.iter().map(|name| Op::Delete { path: format!("{parent}/{name}"), expected: None });
                match self.apply(ops.collect()).await {
                    // Names that stay go with the session.
                    Ok(()) | Err(StoreError::NoNode { .. }) => {}
                    Err(error) if error.is_transient() => {}
                    Err(other) => return Err(other.into()),
                }
            }
        }
        Ok(())
    }

    /// Gives the 63-bit generator an upper half that no id has.
    async fn raise(&self, high: u32) -> Result<(), ImportError> {
        for path in [self.path("/idgen-long"), self.path(&format!("/idgen-long/HOB-{high:010}"))] {
            match patiently(|| self.store.create(&path, Bytes::new(), CreateMode::Persistent)).await {
                Ok(_) | Err(StoreError::NodeExists { .. }) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Ok(())
    }

    /// The first difference between the store and the file. `whole`: LAYOUT has to be there, too.
    async fn compare(&self, ids: &Ids, whole: bool) -> Result<Option<Difference>, ImportError> {
        let mut expected: HashMap<&str, &Bytes> =
            self.dump.nodes.iter().map(|(path, data)| (path.as_str(), data)).collect();
        if !whole {
            expected.remove(LAYOUT);
        }
        let mut walk = Walk::new(self.store.clone(), self.root);
        while let Some(nodes) = walk.next().await? {
            for (path, node) in nodes {
                match expected.remove(path.as_str()) {
                    Some(data) if *data == node.data => {}
                    Some(_) => return Ok(Some(Difference::Data(self.path(&path)))),
                    None if path == MARKER || ids.makes(&path) => {}
                    None => return Ok(Some(Difference::Extra(self.path(&path)))),
                }
            }
        }
        Ok(expected.keys().min().map(|path| Difference::Missing(self.path(path))))
    }

    /// Opens the cluster.
    async fn finish(&self) -> Result<(), ImportError> {
        let data = self.dump.data(LAYOUT).expect("a file without LAYOUT is refused when it is read");
        let ops = vec![self.create(LAYOUT, data), Op::Delete { path: self.path(MARKER), expected: None }];
        match patiently(|| self.apply(ops.clone())).await {
            Ok(()) => return Ok(()),
            // Repeated after a lost answer, or the end of an earlier attempt: it was applied, or its first step.
            Err(StoreError::NodeExists { .. } | StoreError::NoNode { .. }) => {}
            Err(other) => return Err(other.into()),
        }
        let layout = patiently(|| self.store.get(&self.path(LAYOUT))).await?;
        if layout.data != *data {
            let difference = Difference::Data(self.path(LAYOUT));
            return Err(ImportError::Differs { root: self.root.into(), difference });
        }
        match patiently(|| self.store.delete(&self.path(MARKER), None)).await {
            Ok(()) | Err(StoreError::NoNode { .. }) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }
}
