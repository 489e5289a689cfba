//! Locks on ledgers that are being replicated: `underreplication/locks/urL<id>` (protocol reference, section 5.6).
//!
//! BookKeeper's replication workers hold one while they copy a ledger; a bookie holds one while it removes a ledger that
//! it should not have, so that nobody copies to it meanwhile. A lock goes with the session of its holder.

use std::sync::Arc;

use bindery_types::{BookieId, LedgerId};
use bytes::Bytes;

use crate::codec::text::Printer;
use crate::store::{CreateMode, MetadataStore, StoreError};

/// The locks of a cluster.
#[derive(Clone)]
pub struct ReplicationLocks {
    store: Arc<dyn MetadataStore>,
    root: String,
}

/// A lock that is held. Give it back with [`ReplicationLocks::unlock`]; else it goes with the session.
#[derive(Debug)]
#[must_use = "a lock that is dropped stays until the session ends"]
pub struct ReplicationLock {
    path: String,
}

impl ReplicationLocks {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> ReplicationLocks {
        ReplicationLocks { store, root: root.into() }
    }

    /// The path of a ledger's lock.
    pub fn path(&self, ledger: LedgerId) -> String {
        format!("{}/underreplication/locks/urL{:010}", self.root, ledger.get())
    }

    /// Takes the lock of a ledger; `None` when somebody has it.
    pub async fn try_lock(
        &self,
        ledger: LedgerId,
        holder: &BookieId,
    ) -> Result<Option<ReplicationLock>, StoreError> {
        let path = self.path(ledger);
        let mut printer = Printer::default();
        printer.bytes("bookieId", holder.as_str().as_bytes());
        let data = Bytes::from(printer.finish());
        let mut created = self.store.create(&path, data.clone(), CreateMode::Ephemeral).await;
        if matches!(created, Err(StoreError::NoNode { .. })) {
            for parent in ["underreplication", "underreplication/locks"] {
                let parent = format!("{}/{parent}", self.root);
                match self.store.create(&parent, Bytes::new(), CreateMode::Persistent).await {
                    Ok(_) | Err(StoreError::NodeExists { .. }) => {}
                    Err(other) => return Err(other),
                }
            }
            created = self.store.create(&path, data.clone(), CreateMode::Ephemeral).await;
        }
        match created {
            Ok(_) => Ok(Some(ReplicationLock { path })),
            Err(StoreError::NodeExists { .. }) => Ok(None),
            // Created or not: if it is there and ours, it must not stay.
            Err(StoreError::ConnectionLoss) => match self.store.get(&path).await {
                Ok(node) if node.data == data => Ok(Some(ReplicationLock { path })),
                Ok(_) | Err(StoreError::NoNode { .. }) => Ok(None),
                Err(other) => Err(other),
            },
            Err(other) => Err(other),
        }
    }

    /// Gives a lock back.
    pub async fn unlock(&self, lock: ReplicationLock) -> Result<(), StoreError> {
        match self.store.delete(&lock.path, None).await {
            Ok(()) | Err(StoreError::NoNode { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryCluster;

    #[tokio::test]
    async fn one_holds_a_lock_until_it_is_given_back_or_its_session_ends() {
        let cluster = MemoryCluster::new();
        let (one, two) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
        one.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let (ours, theirs) =
            (ReplicationLocks::new(one.clone(), "/l"), ReplicationLocks::new(two.clone(), "/l"));
        let (ledger, id) = (LedgerId::new(42).unwrap(), BookieId::new("b:1").unwrap());
        assert_eq!(ours.path(ledger), "/l/underreplication/locks/urL0000000042");
        let lock = ours.try_lock(ledger, &id).await.unwrap().unwrap();
        assert_eq!(one.get(&ours.path(ledger)).await.unwrap().data, "bookieId: \"b:1\"\n".as_bytes());
        assert!(theirs.try_lock(ledger, &id).await.unwrap().is_none());
        ours.unlock(lock).await.unwrap();
        let _kept = ours.try_lock(ledger, &id).await.unwrap().unwrap();
        one.close().await.unwrap();
        assert!(theirs.try_lock(ledger, &id).await.unwrap().is_some());
    }
}
