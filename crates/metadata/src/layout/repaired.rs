//! The end of a ledger's repair in one transaction: metadata that names the new member, the mark that goes, and the lock that is given
//! back (protocol reference, section 5.6). BookKeeper's workers make a request for each, and so do ours where the store has no
//! transactions.

use bindery_types::{LedgerId, LedgerMetadata};
use bytes::Bytes;

use super::Layout;
use super::replication_locks::ReplicationLock;
use crate::codec::ledger;
use crate::store::{Op, StoreError, Version};

/// What a worker read of a ledger that it made whole.
#[derive(Debug)]
pub struct Repaired<'a> {
    /// The ledger.
    pub ledger: LedgerId,
    /// Its new metadata.
    pub metadata: &'a LedgerMetadata,
    /// The version of the metadata that these follow.
    pub version: Version,
    /// The version of its mark.
    pub mark: Version,
    /// Its lock, which this session holds.
    pub lock: &'a ReplicationLock,
}

impl Layout {
    /// Writes metadata, removes the mark and gives the lock back. False, and nothing is done, when any of these is not there or is
    /// not as it was read, or where the store has no transactions: the caller makes a request for each.
    ///
    /// # Errors
    /// Of the store. After [`StoreError::ConnectionLoss`] it may have been done.
    pub async fn commit_repair(&self, repaired: &Repaired<'_>) -> Result<bool, StoreError> {
        let locks = self.replication_locks();
        if !self.store.is_transactional() || !locks.may_hold(repaired.lock) {
            return Ok(false);
        }
        let mut ops = vec![Op::Set {
            path: self.ledgers().path(repaired.ledger),
            data: Bytes::from(ledger::encode(repaired.metadata)),
            expected: Some(repaired.version),
        }];
        ops.extend(self.under_replication().unmarking(repaired.ledger, repaired.mark));
        ops.push(locks.unlocking(repaired.lock));
        match self.store.multi(ops).await {
            Ok(()) => Ok(true),
            Err(StoreError::NoNode { .. } | StoreError::BadVersion { .. } | StoreError::NotEmpty { .. }) => {
                Ok(false)
            }
            Err(other) => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{LedgerLayout, init_cluster};
    use crate::memory::MemoryCluster;
    use bindery_types::{BookieId, DigestType, EntryId, LedgerSecret, Quorum, Segment};
    use std::sync::Arc;

    #[tokio::test]
    async fn all_of_it_is_done_or_nothing() {
        let cluster = MemoryCluster::new();
        let store = Arc::new(cluster.open());
        init_cluster(&*store, "/l", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = Layout::open(store, "/l", None).await.unwrap();
        let (id, name) = (LedgerId::new(9).unwrap(), BookieId::new("b:1").unwrap());
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut old = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
        old.push_segment(Segment { first_entry: EntryId::FIRST, ensemble: vec![name.clone()] }).unwrap();
        let new = old.clone();
        let (ledgers, marks, locks) =
            (layout.ledgers(), layout.under_replication(), layout.replication_locks());
        let version = ledgers.create(id, &old).await.unwrap();
        marks.mark(id, std::slice::from_ref(&name)).await.unwrap();
        let first = marks.marked(id).await.unwrap().unwrap().version;
        let lock = locks.try_lock(id, &name).await.unwrap().unwrap();
        marks.mark(id, std::slice::from_ref(&name)).await.unwrap();
        let mark = marks.marked(id).await.unwrap().unwrap().version;
        let commit = async |version, mark, lock: &ReplicationLock| {
            let repaired = Repaired { ledger: id, metadata: &new, version, mark, lock };
            layout.commit_repair(&repaired).await.unwrap()
        };
        assert!(!commit(version, first, &lock).await, "it was marked again");
        assert!(!commit(Version::counted(99), mark, &lock).await, "its metadata changed");
        assert_eq!(ledgers.get(id).await.unwrap().version, version);
        assert!(locks.holds(&lock).await.unwrap() && marks.marked(id).await.unwrap().is_some());
        locks.unlock(lock).await.unwrap();
        let lock = locks.try_lock(id, &name).await.unwrap().unwrap();
        layout.store().delete(&locks.path(id), None).await.unwrap();
        assert!(!commit(version, mark, &lock).await, "its lock was deleted");
        let lock = locks.try_lock(id, &name).await.unwrap().unwrap();
        assert!(commit(version, mark, &lock).await);
        assert_ne!(ledgers.get(id).await.unwrap().version, version);
        assert!(!locks.holds(&lock).await.unwrap() && marks.marked(id).await.unwrap().is_none());
        marks.prune().await.unwrap();
        assert_eq!(
            layout.store().children("/l/underreplication/ledgers").await.unwrap(),
            [""; 0],
            "nothing is left"
        );
    }
}
