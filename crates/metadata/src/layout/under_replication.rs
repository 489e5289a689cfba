//! Ledgers that lack replicas: `underreplication/ledgers/<xxxx>/<xxxx>/<xxxx>/<xxxx>/urL<id>` (protocol reference,
//! section 5.6).
//!
//! BookKeeper's auditor marks ledgers of lost bookies so, and its replication workers, or whatever repairs a cluster,
//! take them up from there. A writer marks its own ledger when it stops sending entries to a bookie of the ensemble.
//!
//! # Invariants
//! 1. Marking keeps the replicas that others named; only whoever repaired the ledger removes a mark.
//! 2. A mark that gains a replica, or is marked again, has a new version: a worker that looked before cannot remove it.

use std::sync::Arc;

use bindery_types::{BookieId, LedgerId};
use bytes::Bytes;

use super::paths::create_parents;
use crate::codec::text::{self, Printer, TextError};
use crate::store::{CreateMode, MetadataStore, StoreError, Version};

/// How often a mark may change under the one that adds to it.
const CONFLICTS_MAX: u32 = 16;

/// The marks of a cluster.
#[derive(Clone)]
pub struct UnderReplication {
    store: Arc<dyn MetadataStore>,
    root: String,
}

impl UnderReplication {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> UnderReplication {
        UnderReplication { store, root: root.into() }
    }

    /// The path of a ledger's mark: the id in four parts of 16 bits, then in decimal.
    pub fn path(&self, ledger: LedgerId) -> String {
        let id = ledger.get();
        let part = |shift: u32| (id >> shift) & 0xffff;
        format!(
            "{}/underreplication/ledgers/{:04x}/{:04x}/{:04x}/{:04x}/urL{id:010}",
            self.root,
            part(48),
            part(32),
            part(16),
            part(0)
        )
    }

    /// Marks a ledger as lacking what these bookies should have. Repeating it is harmless.
    ///
    /// # Errors
    /// Of the store; also [`StoreError::Protocol`] when the mark that is there cannot be read.
    pub async fn mark(&self, ledger: LedgerId, replicas: &[BookieId]) -> Result<(), StoreError> {
        let path = self.path(ledger);
        for _ in 0..CONFLICTS_MAX {
            let (mut mark, version) = match self.get(&path).await? {
                Some((mark, version)) => (mark, Some(version)),
                None => (Mark::default(), None),
            };
            let known = &mut mark.replicas;
            for replica in replicas {
                if !known.iter().any(|known| known == replica.as_str()) {
                    known.push(replica.as_str().to_owned());
                }
            }
            let data = mark.write();
            // Written also when nothing is new: invariant 2.
            let outcome = match version {
                Some(version) => self.store.set(&path, data, Some(version)).await.map(drop),
                None => self.create(&path, data).await,
            };
            match outcome {
                Ok(()) => return Ok(()),
                // Somebody marked it, or repaired it, meanwhile.
                Err(
                    StoreError::NodeExists { .. } | StoreError::BadVersion { .. } | StoreError::NoNode { .. },
                ) => {}
                Err(other) => return Err(other),
            }
        }
        Err(StoreError::BadVersion { path })
    }

    async fn create(&self, path: &str, data: Bytes) -> Result<(), StoreError> {
        match self.store.create(path, data.clone(), CreateMode::Persistent).await {
            Err(StoreError::NoNode { .. }) => {}
            outcome => return outcome.map(drop),
        }
        create_parents(&*self.store, path, &self.root).await?;
        self.store.create(path, data, CreateMode::Persistent).await.map(drop)
    }

    /// The bookies that a ledger's mark names; `None` when it is not marked.
    ///
    /// # Errors
    /// As [`mark`](Self::mark).
    pub async fn replicas(&self, ledger: LedgerId) -> Result<Option<Vec<String>>, StoreError> {
        Ok(self.get(&self.path(ledger)).await?.map(|(mark, _)| mark.replicas))
    }

    async fn get(&self, path: &str) -> Result<Option<(Mark, Version)>, StoreError> {
        match self.store.get(path).await {
            Ok(node) => match Mark::read(&node.data) {
                Ok(mark) => Ok(Some((mark, node.stat.version))),
                Err(error) => Err(StoreError::Protocol(format!("{path} holds no mark: {error}"))),
            },
            Err(StoreError::NoNode { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// What a mark says.
#[derive(Default)]
struct Mark {
    replicas: Vec<String>,
    /// When it was made, in ms, as Java's auditor writes it if it is told to. It may have an alarm by it, so it stays.
    ctime_ms: Option<i64>,
}

impl Mark {
    fn write(&self) -> Bytes {
        let mut printer = Printer::default();
        for replica in &self.replicas {
            printer.bytes("replica", replica.as_bytes());
        }
        if let Some(ctime) = self.ctime_ms {
            printer.word("ctime", ctime);
        }
        Bytes::from(printer.finish())
    }

    fn read(text: &[u8]) -> Result<Mark, TextError> {
        let mut mark = Mark::default();
        for field in &text::parse(text)? {
            match &*field.name {
                "replica" => mark.replicas.push(field.string()?),
                "ctime" => mark.ctime_ms = Some(field.number()?),
                _ => {}
            }
        }
        Ok(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryCluster;

    #[tokio::test]
    async fn a_mark_has_javas_path_and_keeps_what_others_marked() {
        let store = Arc::new(MemoryCluster::new().open());
        store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let marks = UnderReplication::new(store.clone(), "/l");
        let ledger = LedgerId::new(0x1_0002_abcd).unwrap();
        let path = "/l/underreplication/ledgers/0000/0001/0002/abcd/urL4295142349";
        assert_eq!(marks.path(ledger), path);
        assert_eq!(
            marks.path(LedgerId::new(7).unwrap()),
            "/l/underreplication/ledgers/0000/0000/0000/0007/urL0000000007"
        );
        assert_eq!(marks.replicas(ledger).await.unwrap(), None);
        let id = |name: &str| BookieId::new(name).unwrap();
        marks.mark(ledger, &[id("b:1")]).await.unwrap();
        let node = store.get(path).await.unwrap();
        assert_eq!(node.data, "replica: \"b:1\"\n".as_bytes());
        // As Java writes it.
        let java = "replica: \"b:1\"\nreplica: \"b:9\"\nctime: 1700000000000\n";
        let version = store.set(path, java.into(), None).await.unwrap().version;
        marks.mark(ledger, &[id("b:2"), id("b:1")]).await.unwrap();
        assert_eq!(marks.replicas(ledger).await.unwrap().unwrap(), ["b:1", "b:9", "b:2"], "invariant 1");
        let node = store.get(path).await.unwrap();
        assert!(node.data.ends_with(b"replica: \"b:2\"\nctime: 1700000000000\n"), "{:?}", node.data);
        assert!(node.stat.version > version);
        marks.mark(ledger, &[id("b:2")]).await.unwrap();
        assert!(store.get(path).await.unwrap().stat.version > node.stat.version, "invariant 2");
        store.set(path, "replica: {".into(), None).await.unwrap();
        assert!(matches!(marks.mark(ledger, &[id("b:2")]).await, Err(StoreError::Protocol(_))));
        // Never written over: somebody else knows what it says.
        assert_eq!(store.get(path).await.unwrap().data, "replica: {".as_bytes());
    }
}
