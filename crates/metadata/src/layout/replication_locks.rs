//! Locks on ledgers that are being replicated: `underreplication/locks/urL<id>` (protocol reference, section 5.6).
//!
//! BookKeeper's replication workers hold one while they copy a ledger; a bookie holds one while it removes a ledger that
//! it should not have, so that nobody copies to it meanwhile. A lock goes with the session of its holder.

use std::sync::Arc;

use bindery_types::{BookieId, LedgerId};
use bytes::Bytes;

use crate::codec::text::Printer;
use crate::store::{CreateMode, MetadataStore, Op, SessionId, Stat, StoreError, Version};

/// The node above them, below the ledgers root.
pub(crate) const PARENT: &str = "underreplication/locks";

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
    /// The lock is this session's, and goes with it.
    session: SessionId,
    /// A lock is never written again.
    version: Version,
}

impl ReplicationLocks {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> ReplicationLocks {
        ReplicationLocks { store, root: root.into() }
    }

    /// The path of a ledger's lock.
    pub fn path(&self, ledger: LedgerId) -> String {
        format!("{}/{PARENT}/urL{:010}", self.root, ledger.get())
    }

    /// Takes the lock of a ledger; `None` when another session has it. Of one session at most one task works on a ledger: two
    /// that ask are both told that it is theirs.
    pub async fn try_lock(
        &self,
        ledger: LedgerId,
        holder: &BookieId,
    ) -> Result<Option<ReplicationLock>, StoreError> {
        let path = self.path(ledger);
        let before = self.session()?;
        let mut printer = Printer::default();
        printer.bytes("bookieId", holder.as_str().as_bytes());
        let data = Bytes::from(printer.finish());
        let mut created = self.store.create(&path, data.clone(), CreateMode::Ephemeral).await;
        if matches!(created, Err(StoreError::NoNode { .. })) {
            for parent in ["underreplication", PARENT] {
                let parent = format!("{}/{parent}", self.root);
                match self.store.create(&parent, Bytes::new(), CreateMode::Persistent).await {
                    Ok(_) | Err(StoreError::NodeExists { .. }) => {}
                    Err(other) => return Err(other),
                }
            }
            created = self.store.create(&path, data, CreateMode::Ephemeral).await;
        }
        match created {
            Ok(created) if self.session() == Ok(before) => {
                Ok(Some(ReplicationLock { path, session: before, version: created.version }))
            }
            // Created or not, and under which session: only the node tells. If it is ours, it must not stay; so one that an
            // earlier call made, or did not give back, because its answer was lost, is found again by the next.
            Ok(_) | Err(StoreError::ConnectionLoss | StoreError::NodeExists { .. }) => {
                // The server that answers after a lost connection may be behind.
                self.store.sync(&path).await?;
                let found = self.store.exists(&path).await?;
                let session = self.session()?;
                let own = found.filter(|Stat { owner, .. }| *owner == Some(session));
                Ok(own.map(|Stat { version, .. }| ReplicationLock { path, session, version }))
            }
            Err(other) => Err(other),
        }
    }

    /// Whether the session that took the lock is still the current one. This sends no request, so a caller may ask it often; that the lock
    /// is there only [`holds`](Self::holds) shows.
    pub fn may_hold(&self, lock: &ReplicationLock) -> bool {
        self.session() == Ok(lock.session)
    }

    /// Whether the lock is there and this session's, read now.
    pub async fn holds(&self, lock: &ReplicationLock) -> Result<bool, StoreError> {
        let owner = self.store.exists(&lock.path).await?.and_then(|stat| stat.owner);
        Ok(owner == Some(lock.session) && self.may_hold(lock))
    }

    /// Gives a lock back. One that went with its session may be somebody else's by now, and stays.
    pub async fn unlock(&self, lock: ReplicationLock) -> Result<(), StoreError> {
        if !self.may_hold(&lock) {
            return Ok(());
        }
        // While this session lives, no other client gets the lock. Left open, where versions count the writes of a node: that it ends
        // before the request and another takes the lock, whose version is the same.
        match self.store.delete(&lock.path, Some(lock.version)).await {
            Ok(()) | Err(StoreError::NoNode { .. }) => Ok(()),
            // It went with its session, and another has it.
            Err(StoreError::BadVersion { .. }) if !self.may_hold(&lock) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// The operation that [`unlock`](Self::unlock) consists of, for a transaction with others. It fails where the lock is gone.
    pub(super) fn unlocking(&self, lock: &ReplicationLock) -> Op {
        Op::Delete { path: lock.path.clone(), expected: Some(lock.version) }
    }

    fn session(&self) -> Result<SessionId, StoreError> {
        self.store.session().borrow().clone().connected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Fault, Kind, MemoryCluster, MemoryStore};

    /// A client's store, its locks, and those of another client.
    async fn two_clients(cluster: &MemoryCluster) -> (Arc<MemoryStore>, ReplicationLocks, ReplicationLocks) {
        let (one, two) = (Arc::new(cluster.open()), Arc::new(cluster.open()));
        one.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
        (one.clone(), ReplicationLocks::new(one, "/l"), ReplicationLocks::new(two, "/l"))
    }

    #[tokio::test]
    async fn one_holds_a_lock_until_it_is_given_back_or_its_session_ends() {
        for kind in Kind::ALL {
            let cluster = MemoryCluster::of(kind);
            let (one, ours, theirs) = two_clients(&cluster).await;
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

    #[tokio::test]
    async fn a_lock_that_went_with_its_session_is_not_taken_from_the_next_holder() {
        for kind in Kind::ALL {
            let cluster = MemoryCluster::of(kind);
            let (one, ours, theirs) = two_clients(&cluster).await;
            // Bookies of the same name, so that nothing but the session tells their locks apart.
            let (ledger, id) = (LedgerId::new(42).unwrap(), BookieId::new("b:1").unwrap());
            let lock = ours.try_lock(ledger, &id).await.unwrap().unwrap();
            assert!(ours.holds(&lock).await.unwrap());
            cluster.expire(lock.session);
            assert!(!ours.may_hold(&lock) && !ours.holds(&lock).await.unwrap());
            let kept = theirs.try_lock(ledger, &id).await.unwrap().unwrap();
            ours.unlock(lock).await.unwrap();
            assert!(ours.try_lock(ledger, &id).await.unwrap().is_none(), "it is still theirs");
            one.inject(Fault::LossBeforeApply);
            assert!(
                ours.try_lock(ledger, &id).await.unwrap().is_none(),
                "a lost answer does not make it ours"
            );
            theirs.unlock(kept).await.unwrap();
            one.inject(Fault::LossAfterApply);
            let lock = ours.try_lock(ledger, &id).await.unwrap().unwrap();
            assert!(theirs.try_lock(ledger, &id).await.unwrap().is_none());
            ours.unlock(lock).await.unwrap();
            assert!(theirs.try_lock(ledger, &id).await.unwrap().is_some());
        }
    }

    #[tokio::test]
    async fn a_lock_that_was_made_or_not_given_back_unheard_is_found_again() {
        for kind in Kind::ALL {
            let cluster = MemoryCluster::of(kind);
            let (one, ours, theirs) = two_clients(&cluster).await;
            let (ledger, id) = (LedgerId::new(42).unwrap(), BookieId::new("b:1").unwrap());
            let lock = ours.try_lock(ledger, &id).await.unwrap().unwrap();
            one.inject(Fault::LossBeforeApply);
            assert_eq!(ours.unlock(lock).await, Err(StoreError::ConnectionLoss));
            assert!(theirs.try_lock(ledger, &id).await.unwrap().is_none());
            let lock = ours.try_lock(ledger, &id).await.unwrap().expect("it is this session's still");
            ours.unlock(lock).await.unwrap();
            let lock = theirs.try_lock(ledger, &id).await.unwrap().expect("given back");
            assert!(ours.try_lock(ledger, &id).await.unwrap().is_none());
            theirs.unlock(lock).await.unwrap();
        }
    }
}
