//! Ledger metadata nodes: create, read, replace by version, delete, list (protocol reference, sections 5.1 and 5.4).

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use bindery_types::{Creation, LedgerId, LedgerMetadata};
use bytes::Bytes;

use super::LedgerLayout;
use super::paths::{LONG_PATHS_FROM, Shape, create_parents, digits_of, ledger_path};
use crate::codec::ledger::{self, LedgerMetadataError};
use crate::store::{CreateMode, MetadataStore, Node, StoreError, Version, Watch, parent_of};

/// The ledgers of a cluster.
#[derive(Clone)]
pub struct Ledgers {
    store: Arc<dyn MetadataStore>,
    root: String,
    layout: LedgerLayout,
}

/// A ledger's metadata as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLedger {
    /// The metadata.
    pub metadata: LedgerMetadata,
    /// What [`Ledgers::update`] and [`Ledgers::delete`] expect.
    pub version: Version,
    /// When the node was created, by the store's clock: the creation time where the metadata has none.
    pub created_ms: i64,
}

impl StoredLedger {
    /// When the ledger was created, in a cluster that was made at `cluster_ms` ([`Layout::made_ms`](super::Layout::made_ms)).
    pub fn creation(&self, cluster_ms: Option<i64>) -> Creation {
        Creation::of(&self.metadata, self.created_ms, cluster_ms)
    }
}

/// Why an operation on a ledger's metadata failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// No such ledger: deleted, or never created.
    #[error("ledger {0} does not exist")]
    NotFound(LedgerId),
    /// The id is taken: take the next one.
    #[error("ledger {0} exists already")]
    Exists(LedgerId),
    /// Another client changed it: read it again and decide again (protocol reference, section 7.8).
    #[error("ledger {0} was changed by somebody else")]
    Changed(LedgerId),
    /// Its bytes cannot be read: a newer format, or damage. Never to be taken for a missing ledger.
    #[error("ledger {id}: {error}")]
    Malformed {
        /// The ledger.
        id: LedgerId,
        /// Why.
        error: LedgerMetadataError,
    },
    /// The store failed.
    #[error("ledger metadata: {0}")]
    Store(#[from] StoreError),
}

impl LedgerError {
    /// True when the same request may succeed later without anybody acting.
    pub fn is_transient(&self) -> bool {
        matches!(self, LedgerError::Store(error) if error.is_transient())
    }
}

impl Ledgers {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str, layout: LedgerLayout) -> Ledgers {
        Ledgers { store, root: root.into(), layout }
    }

    /// The path of a ledger's node.
    pub fn path(&self, id: LedgerId) -> String {
        format!("{}{}", self.root, ledger_path(self.layout, id))
    }

    /// Reads a ledger's metadata.
    pub async fn get(&self, id: LedgerId) -> Result<StoredLedger, LedgerError> {
        let Node { data, stat } = self.store.get(&self.path(id)).await.map_err(|error| of(id, error))?;
        let metadata = ledger::decode(&data).map_err(|error| LedgerError::Malformed { id, error })?;
        Ok(StoredLedger { metadata, version: stat.version, created_ms: stat.created_ms })
    }

    /// As [`get`](Self::get), and sees every write that completed before this call. A plain read may be answered by a server
    /// that lags behind.
    pub async fn get_latest(&self, id: LedgerId) -> Result<StoredLedger, LedgerError> {
        self.store.sync(&self.path(id)).await?;
        self.get(id).await
    }

    /// Arms a watch for a ledger's next change or deletion; read it after arming.
    pub async fn watch(&self, id: LedgerId) -> Result<Watch, LedgerError> {
        Ok(self.store.exists_and_watch(&self.path(id)).await?.1)
    }

    /// Whether a ledger exists, without reading its metadata.
    pub async fn exists(&self, id: LedgerId) -> Result<bool, LedgerError> {
        Ok(self.store.exists(&self.path(id)).await?.is_some())
    }

    /// Whether the nodes of two ledgers lie in one directory: [`exist_together`](Self::exist_together).
    pub fn are_together(&self, one: LedgerId, other: LedgerId) -> bool {
        parent_of(&self.path(one)) == parent_of(&self.path(other))
    }

    /// Which of these ledgers exist, by one read for each directory of their nodes. `ids` ascend.
    pub async fn exist(&self, ids: &[LedgerId]) -> Result<BTreeSet<LedgerId>, LedgerError> {
        let mut found = BTreeSet::new();
        for together in ids.chunk_by(|one, other| self.are_together(*one, *other)) {
            found.extend(self.exist_together(together).await?);
        }
        Ok(found)
    }

    /// Which of these ledgers exist, by one read. Their nodes lie in one directory ([`are_together`](Self::are_together)), which is
    /// listed when there are several.
    pub async fn exist_together(&self, ids: &[LedgerId]) -> Result<BTreeSet<LedgerId>, LedgerError> {
        match ids {
            [] => return Ok(BTreeSet::new()),
            [id] => return Ok(self.exists(*id).await?.then_some(*id).into_iter().collect()),
            _ => {}
        }
        let path = self.path(ids[0]);
        let names = match self.store.children(parent_of(&path)).await {
            Ok(names) => names.into_iter().collect::<HashSet<String>>(),
            Err(StoreError::NoNode { .. }) => HashSet::new(),
            Err(other) => return Err(other.into()),
        };
        let is_there = |id: &&LedgerId| {
            let path = self.path(**id);
            debug_assert!(self.are_together(ids[0], **id), "ledgers of one directory");
            path.rsplit('/').next().is_some_and(|name| names.contains(name))
        };
        Ok(ids.iter().filter(is_there).copied().collect())
    }

    /// Creates a ledger and returns its version.
    ///
    /// It may be repeated after an error: a ledger that is there with this creation's token (version 3) was created by it.
    /// One that somebody has written to since is theirs to tell of: it exists.
    /// After a lost connection it is repeated once right away.
    pub async fn create(&self, id: LedgerId, metadata: &LedgerMetadata) -> Result<Version, LedgerError> {
        let (path, data) = (self.path(id), Bytes::from(ledger::encode(metadata)));
        let mut created = self.create_with_parents(&path, data.clone()).await;
        if created == Err(StoreError::ConnectionLoss) {
            created = self.create_with_parents(&path, data).await;
        }
        match created.map_err(|error| of(id, error)) {
            Err(LedgerError::Exists(_)) if metadata.creation_token.is_some() => match self.get(id).await {
                // Whoever got a later version with the metadata as it was created could undo a recovery.
                Ok(stored)
                    if stored.metadata.creation_token == metadata.creation_token
                        && stored.version.is_initial() =>
                {
                    Ok(stored.version)
                }
                Err(LedgerError::Store(error)) => Err(error.into()),
                // Somebody else's, whatever can be read of it.
                Ok(_) | Err(_) => Err(LedgerError::Exists(id)),
            },
            outcome => outcome,
        }
    }

    /// Replaces a ledger's metadata if it still has `expected`, and returns its new version.
    pub async fn update(
        &self,
        id: LedgerId,
        metadata: &LedgerMetadata,
        expected: Version,
    ) -> Result<Version, LedgerError> {
        let data = Bytes::from(ledger::encode(metadata));
        let stat = self.store.set(&self.path(id), data, Some(expected)).await;
        Ok(stat.map_err(|error| of(id, error))?.version)
    }

    /// Deletes a ledger; `expected` = `None` deletes any version. Directories left empty go too, as far as they can, where the store is
    /// transactional. Elsewhere a ledger that is created in one at that moment would be in no listing, and bookies would take it for
    /// deleted; directories of 10,000 ledgers each may as well stay, as they do with Pulsar's driver.
    pub async fn delete(&self, id: LedgerId, expected: Option<Version>) -> Result<(), LedgerError> {
        let path = self.path(id);
        self.store.delete(&path, expected).await.map_err(|error| of(id, error))?;
        let mut parent = path.as_str();
        while let Some(at) = parent.rfind('/') {
            parent = &parent[..at];
            // In each round: a cluster may move to a store without transactions.
            if parent == self.root
                || !self.store.is_transactional()
                || self.store.delete(parent, None).await.is_err()
            {
                break;
            }
        }
        Ok(())
    }

    /// All ledgers, in ranges of ascending ids, one directory at a time.
    pub fn list(&self) -> LedgerListing {
        self.list_after(None)
    }

    /// As [`list`](Self::list), of the ids above `after`. Directories of lower ids are not read.
    pub fn list_after(&self, after: Option<LedgerId>) -> LedgerListing {
        let shapes = match self.layout {
            LedgerLayout::Hierarchical => [Shape::Short, Shape::Long].as_slice(),
            LedgerLayout::LongHierarchical => &[Shape::Long],
        };
        let start = |shape: &Shape| Directory {
            shape: *shape,
            digits: String::new(),
            path: self.root.clone(),
            level: 0,
        };
        LedgerListing { store: self.store.clone(), pending: shapes.iter().map(start).collect(), after }
    }

    /// Creates a node and, if needed, the directories above it. A deletion that removes them in between is tried
    /// against a few times.
    async fn create_with_parents(&self, path: &str, data: Bytes) -> Result<Version, StoreError> {
        const ATTEMPTS_MAX: usize = 10;
        for _ in 1..ATTEMPTS_MAX {
            match self.store.create(path, data.clone(), CreateMode::Persistent).await {
                Err(StoreError::NoNode { .. }) => {}
                outcome => return outcome.map(|created| created.version),
            }
            match create_parents(&*self.store, path, &self.root).await {
                // One was removed again by a deletion of its last ledger: from the top.
                Ok(()) | Err(StoreError::NoNode { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(self.store.create(path, data, CreateMode::Persistent).await?.version)
    }
}

fn of(id: LedgerId, error: StoreError) -> LedgerError {
    match error {
        StoreError::NoNode { .. } => LedgerError::NotFound(id),
        StoreError::NodeExists { .. } => LedgerError::Exists(id),
        StoreError::BadVersion { .. } => LedgerError::Changed(id),
        other => LedgerError::Store(other),
    }
}

struct Directory {
    shape: Shape,
    /// The digits of the path so far.
    digits: String,
    path: String,
    level: usize,
}

impl Directory {
    /// Whether an id above `after` may be below it.
    fn may_be_above(&self, after: LedgerId) -> bool {
        let width = self.shape.parts().iter().sum();
        let last = format!("{:9<width$}", self.digits).parse::<i64>();
        // More digits than an id has, all of them nines: no id is above that.
        last.map_or(true, |last| last > after.get())
    }
}

/// A listing in progress. Ledgers created or deleted meanwhile may or may not be in it; all others are, once each.
pub struct LedgerListing {
    store: Arc<dyn MetadataStore>,
    /// Directories still to be read, lowest ids first.
    pending: VecDeque<Directory>,
    /// Only ids above it are listed.
    after: Option<LedgerId>,
}

impl LedgerListing {
    /// The next range: ids ascending, all above those of the ranges before, never empty. `None` at the end. After an
    /// error the same range is read again.
    pub async fn next(&mut self) -> Result<Option<Vec<LedgerId>>, StoreError> {
        while let Some(directory) = self.pending.front() {
            let names = match self.store.children(&directory.path).await {
                Ok(names) => names,
                // Its last ledger was deleted meanwhile.
                Err(StoreError::NoNode { .. }) => Vec::new(),
                Err(other) => return Err(other),
            };
            let directory = self.pending.pop_front().expect("it was just looked at");
            let Directory { shape, digits, path, level } = directory;
            // Sorted names of equal length are in ascending order of their numbers.
            let parts = names.iter().filter_map(|name| Some((name, digits_of(shape, level, name)?)));
            if level + 1 == shape.parts().len() {
                let in_range = |id: &i64| shape == Shape::Long || *id < LONG_PATHS_FROM;
                let after = self.after;
                let ids: Vec<LedgerId> = parts
                    .filter_map(|(_, part)| format!("{digits}{part}").parse().ok().filter(in_range))
                    .filter_map(LedgerId::new)
                    .filter(|id| after.is_none_or(|after| *id > after))
                    .collect();
                if !ids.is_empty() {
                    return Ok(Some(ids));
                }
                continue;
            }
            let below: Vec<Directory> = parts
                .map(|(name, part)| Directory {
                    shape,
                    digits: format!("{digits}{part}"),
                    path: format!("{path}/{name}"),
                    level: level + 1,
                })
                .filter(|directory| self.after.is_none_or(|after| directory.may_be_above(after)))
                .collect();
            for directory in below.into_iter().rev() {
                self.pending.push_front(directory);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use bindery_types::{BookieId, DigestType, EntryId, LedgerSecret, LedgerState, Quorum, Segment};

    use super::*;
    use crate::memory::{Fault, Kind, MemoryCluster, MemoryStore};

    fn metadata(token: i64) -> LedgerMetadata {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: b"p".to_vec() };
        let mut metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
        metadata.creation_token = Some(token);
        let ensemble = vec![BookieId::new("b:1").unwrap()];
        metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble }).unwrap();
        metadata
    }

    fn id(raw: i64) -> LedgerId {
        LedgerId::new(raw).unwrap()
    }

    async fn ledgers(kind: Kind, layout: LedgerLayout) -> (Arc<MemoryStore>, Ledgers) {
        let store = Arc::new(MemoryCluster::of(kind).open());
        store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        store.create("/l/idgen", Bytes::new(), CreateMode::Persistent).await.unwrap();
        (store.clone(), Ledgers::new(store, "/l", layout))
    }

    #[tokio::test]
    async fn ledgers_of_one_directory_are_looked_up_together() {
        for kind in Kind::ALL {
            let (_, ledgers) = ledgers(kind, LedgerLayout::Hierarchical).await;
            for raw in [7, 9, 9_999, 10_000, LONG_PATHS_FROM, LONG_PATHS_FROM + 3] {
                ledgers.create(id(raw), &metadata(1)).await.unwrap();
            }
            let found = async |raw: &[i64]| -> Vec<i64> {
                let ids: Vec<LedgerId> = raw.iter().map(|raw| id(*raw)).collect();
                assert!(ids.iter().all(|other| ledgers.are_together(ids[0], *other)));
                ledgers.exist_together(&ids).await.unwrap().into_iter().map(LedgerId::get).collect()
            };
            assert_eq!(found(&[7, 8, 9, 9_999]).await, [7, 9, 9_999]);
            assert_eq!(found(&[8]).await, [0_i64; 0]);
            assert_eq!(found(&[10_000]).await, [10_000]);
            assert_eq!(found(&[20_000, 20_001]).await, [0_i64; 0], "without a directory");
            let long = [LONG_PATHS_FROM, LONG_PATHS_FROM + 1, LONG_PATHS_FROM + 3];
            assert_eq!(found(&long).await, [LONG_PATHS_FROM, LONG_PATHS_FROM + 3]);
            assert!(!ledgers.are_together(id(9_999), id(10_000)));
            assert!(ledgers.exist_together(&[]).await.unwrap().is_empty());
            let all = [7, 8, 9_999, 10_000, 20_000].map(id);
            let found = ledgers.exist(&all).await.unwrap();
            assert_eq!(found.into_iter().collect::<Vec<_>>(), [7, 9_999, 10_000].map(id));
        }
    }

    #[tokio::test]
    async fn a_ledger_is_created_once_changed_by_version_and_deleted_with_its_directories() {
        for kind in Kind::ALL {
            let (store, ledgers) = ledgers(kind, LedgerLayout::Hierarchical).await;
            let mut changed = metadata(1);
            let version = ledgers.create(id(7), &changed).await.unwrap();
            assert_eq!(ledgers.create(id(7), &metadata(2)).await, Err(LedgerError::Exists(id(7))));
            changed.state = LedgerState::Closed { last_entry: Some(EntryId::FIRST), length_bytes: 5 };
            let newer = ledgers.update(id(7), &changed, version).await.unwrap();
            assert_eq!(ledgers.update(id(7), &changed, version).await, Err(LedgerError::Changed(id(7))));
            let stored = ledgers.get(id(7)).await.unwrap();
            assert_eq!((stored.metadata, stored.version), (changed, newer));
            assert_eq!(ledgers.delete(id(7), Some(version)).await, Err(LedgerError::Changed(id(7))));
            ledgers.delete(id(7), Some(newer)).await.unwrap();
            assert_eq!(ledgers.get(id(7)).await, Err(LedgerError::NotFound(id(7))));
            let left = store.children("/l").await.unwrap();
            match kind {
                Kind::OfZooKeeper => assert_eq!(left, ["idgen"]),
                Kind::OfOxia => {
                    assert_eq!(left, ["00", "idgen"], "where it could take another ledger with it")
                }
            }
        }
    }

    #[tokio::test]
    async fn a_creator_whose_answer_was_lost_recognises_its_own_ledger() {
        for kind in Kind::ALL {
            let (store, ledgers) = ledgers(kind, LedgerLayout::Hierarchical).await;
            ledgers.create(id(1), &metadata(1)).await.unwrap();
            store.inject(Fault::LossAfterApply);
            let version = async |raw| ledgers.get(id(raw)).await.unwrap().version;
            let created = ledgers.create(id(2), &metadata(2)).await.unwrap();
            assert_eq!(created, version(2).await);
            store.inject(Fault::LossBeforeApply);
            let created = ledgers.create(id(3), &metadata(3)).await.unwrap();
            assert_eq!(created, version(3).await);
            store.inject(Fault::LossBeforeApply);
            assert_eq!(ledgers.create(id(3), &metadata(4)).await, Err(LedgerError::Exists(id(3))));
            assert_eq!(ledgers.get(id(3)).await.unwrap().metadata, metadata(3));
            // Lost twice, then repeated by the caller.
            store.inject(Fault::LossAfterApply);
            store.interleave(0, {
                let store = store.clone();
                move || store.disconnect()
            });
            assert_eq!(
                ledgers.create(id(4), &metadata(4)).await.map_err(|error| error.is_transient()),
                Err(true)
            );
            store.reconnect();
            let created = ledgers.create(id(4), &metadata(4)).await.unwrap();
            assert_eq!(created, version(4).await);
            // Somebody recovered it in between: its version with the metadata of its creation would undo that.
            let mut recovered = metadata(5);
            let created = ledgers.create(id(5), &recovered).await.unwrap();
            recovered.state = LedgerState::Closed { last_entry: None, length_bytes: 0 };
            ledgers.update(id(5), &recovered, created).await.unwrap();
            assert_eq!(ledgers.create(id(5), &metadata(5)).await, Err(LedgerError::Exists(id(5))));
        }
    }

    #[tokio::test]
    async fn ledgers_of_both_id_ranges_are_listed_in_ascending_order() {
        for kind in Kind::ALL {
            for layout in [LedgerLayout::Hierarchical, LedgerLayout::LongHierarchical] {
                let (store, ledgers) = ledgers(kind, layout).await;
                let all = [
                    0,
                    1,
                    9_999,
                    10_000,
                    99_999_999,
                    i64::from(i32::MAX) - 1,
                    i64::from(i32::MAX),
                    1 << 40,
                    i64::MAX,
                ];
                for raw in all.iter().rev() {
                    ledgers.create(id(*raw), &metadata(1)).await.unwrap();
                }
                store.create("/l/available", Bytes::new(), CreateMode::Persistent).await.unwrap();
                let (mut listing, mut found) = (ledgers.list(), Vec::new());
                while let Some(range) = listing.next().await.unwrap() {
                    assert!(!range.is_empty());
                    found.extend(range.iter().map(|id| id.get()));
                }
                assert_eq!(found, all, "{layout}");
                for after in all.into_iter().chain([2, 10_001, 1 << 33, i64::MAX - 1]) {
                    let (mut listing, mut found) = (ledgers.list_after(Some(id(after))), Vec::new());
                    while let Some(range) = listing.next().await.unwrap() {
                        found.extend(range.iter().map(|id| id.get()));
                    }
                    let above: Vec<i64> = all.into_iter().filter(|id| *id > after).collect();
                    assert_eq!(found, above, "{layout} after {after}");
                }
            }
        }
    }

    #[tokio::test]
    async fn metadata_that_cannot_be_read_is_not_a_missing_ledger() {
        for kind in Kind::ALL {
            let (store, ledgers) = ledgers(kind, LedgerLayout::Hierarchical).await;
            ledgers.create(id(1), &metadata(1)).await.unwrap();
            store.set(&ledgers.path(id(1)), "BookieMetadataFormatVersion\t9\n".into(), None).await.unwrap();
            let outcome = ledgers.get(id(1)).await;
            assert_eq!(
                outcome,
                Err(LedgerError::Malformed { id: id(1), error: LedgerMetadataError::Version(9) })
            );
        }
    }
}
