//! The registration nodes: `available/<id>` and `available/readonly/<id>` (protocol reference, section 5.2).
//!
//! # Invariants
//! 1. A bookie that changes between writable and read-only is visible at every moment: the new node comes before the
//!    old one goes.
//! 2. A node that another session owns is never deleted or overwritten. Registration waits for it to go for as long as
//!    a dead session can last (its timeout and a margin), then fails: its owner may be a live bookie under the same id.
//! 3. [`Registration::register`] returns `Ok(session)` only when the node belongs to `session`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_types::BookieId;
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use tracing::info;

use crate::codec::service_info::{BookieServiceInfo, ServiceInfoError};
use crate::store::{CreateMode, MetadataStore, SessionId, Stat, StoreError, Watch};

/// The longest that a session outlives its timeout at a server with a tick of 2 s, ZooKeeper's default: to the next step,
/// and to the look that finds it there; and a second to say so.
const EXPIRY_DELAY: Duration = Duration::from_secs(5);

/// How often the nodes above a registration are made, while others may remove them.
const PARENTS_ATTEMPTS_MAX: usize = 3;

/// Which of its two nodes a bookie has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationMode {
    /// `available/<id>`: takes reads and writes.
    Writable,
    /// `available/readonly/<id>`: takes reads.
    ReadOnly,
}

/// Why a bookie is not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// Another session owns a node of this id and kept it for longer than a dead session lasts.
    #[error(
        "bookie {bookie_id} is registered by another process (session {owner}, node {path}) and stayed so for {waited:?}: \
         stop that process, or give this bookie another --bookie-id"
    )]
    Owned {
        /// The id.
        bookie_id: BookieId,
        /// The node.
        path: String,
        /// Who owns it.
        owner: SessionId,
        /// How long registration waited for it to go.
        waited: Duration,
    },
    /// A node of this id exists that no session owns: somebody made it by hand.
    #[error("{path} exists and is not ephemeral: no bookie made it; delete it")]
    NotEphemeral {
        /// The node.
        path: String,
    },
    /// The session changed while registering: register again under the new one.
    #[error("the session with the metadata store changed while registering")]
    SessionChanged,
    /// The metadata store now has another cluster than the one in which the bookie started.
    #[error(
        "the metadata store now has another cluster at {root}: its instance id is {}, this bookie's is {}. Its ledgers \
         are not those of this bookie: look at --metadata and at the store before it is started again",
        found.as_deref().unwrap_or("missing"), expected.as_deref().unwrap_or("missing")
    )]
    OtherCluster {
        /// The ledgers root.
        root: String,
        /// The instance id when the bookie started.
        expected: Option<String>,
        /// And now.
        found: Option<String>,
    },
    /// The bookie's cookie was deleted or replaced while it ran.
    #[error(
        "the cookie of bookie {bookie_id} in the metadata store is not what it was when the bookie started: it was removed \
         from the cluster, or replaced (see: bindery cluster cookie show {bookie_id})"
    )]
    CookieChanged {
        /// The id.
        bookie_id: BookieId,
    },
    /// The ledgers root is missing, or keeps losing the node below which bookies register.
    #[error(
        "{root}/available cannot be made in the metadata store, where bookies register, because {root} is missing: look at --metadata and \
         at the store before this bookie is started again"
    )]
    NotInitialised {
        /// The ledgers root.
        root: String,
    },
    /// The store failed.
    #[error("register: {0}")]
    Store(StoreError),
}

/// A bookie found in the registration nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredBookie {
    /// Its id.
    pub bookie_id: BookieId,
    /// Which node it has; during a change between the two it is listed under both.
    pub mode: RegistrationMode,
}

/// The registration nodes of a cluster.
#[derive(Clone)]
pub struct Registration {
    store: Arc<dyn MetadataStore>,
    root: String,
}

impl Registration {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> Registration {
        Registration { store, root: root.into() }
    }

    pub(crate) fn store(&self) -> &Arc<dyn MetadataStore> {
        &self.store
    }

    fn parent(&self, mode: RegistrationMode) -> String {
        match mode {
            RegistrationMode::Writable => format!("{}/available", self.root),
            RegistrationMode::ReadOnly => format!("{}/available/readonly", self.root),
        }
    }

    pub(crate) fn path(&self, id: &BookieId, mode: RegistrationMode) -> String {
        format!("{}/{id}", self.parent(mode))
    }

    /// Registers, or moves between writable and read-only. Repeating it is harmless; after any error the nodes are
    /// either as before or as wanted, and a repetition finishes the change.
    pub async fn register(
        &self,
        id: &BookieId,
        mode: RegistrationMode,
        info: &BookieServiceInfo,
    ) -> Result<SessionId, RegistrationError> {
        let session = self.session()?;
        let other = match mode {
            RegistrationMode::Writable => RegistrationMode::ReadOnly,
            RegistrationMode::ReadOnly => RegistrationMode::Writable,
        };
        // Both nodes: whichever a foreign session owns, a bookie of this id may be alive.
        let deadline = Instant::now() + self.foreign_wait();
        let mine = self.wait_until_not_foreign(id, mode, session, deadline).await?;
        let others = self.wait_until_not_foreign(id, other, session, deadline).await?;
        let data = Bytes::from(info.encode());
        match mine {
            // Ours from before a restart or a lost connection; the info may have changed.
            Some(_) => self.refresh(id, mode, data).await?,
            None => self.create(id, mode, data, session).await?,
        }
        // Cancelled or failed here: visible under both nodes, which clients take as read-only; repeating removes it.
        if let Some(stat) = others {
            match self.store.delete(&self.path(id, other), Some(stat.version)).await {
                Ok(()) | Err(StoreError::NoNode { .. }) => {}
                Err(error) => return Err(RegistrationError::Store(error)),
            }
        }
        match self.session()? == session {
            true => Ok(session),
            false => Err(RegistrationError::SessionChanged),
        }
    }

    /// Removes this session's nodes of a bookie. Those of other sessions stay.
    pub async fn unregister(&self, id: &BookieId) -> Result<(), RegistrationError> {
        let session = self.session()?;
        for mode in [RegistrationMode::Writable, RegistrationMode::ReadOnly] {
            let path = self.path(id, mode);
            let stat = self.store.exists(&path).await.map_err(RegistrationError::Store)?;
            let Some(own) = stat.filter(|stat| stat.owner == Some(session)) else { continue };
            // Another version is another's, who registered after this session ended. Left open, where versions count the writes of a node:
            // theirs is the same.
            match self.store.delete(&path, Some(own.version)).await {
                Ok(()) | Err(StoreError::NoNode { .. } | StoreError::BadVersion { .. }) => {}
                Err(error) => return Err(RegistrationError::Store(error)),
            }
        }
        Ok(())
    }

    /// All registered bookies, writable first, each part sorted by id. One that is moving between its nodes may be in both
    /// parts.
    pub async fn list(&self) -> Result<Vec<RegisteredBookie>, StoreError> {
        let mut writable = self.ids(RegistrationMode::Writable).await?;
        let read_only = self.ids(RegistrationMode::ReadOnly).await?;
        // One that became writable between the two was in neither: where it came from is read last (invariant 1).
        writable.extend(self.ids(RegistrationMode::Writable).await?);
        let writable = writable.into_iter().map(|id| (id, RegistrationMode::Writable));
        let all = writable.chain(read_only.into_iter().map(|id| (id, RegistrationMode::ReadOnly)));
        Ok(all.map(|(bookie_id, mode)| RegisteredBookie { bookie_id, mode }).collect())
    }

    /// The ids of all registered bookies, in whatever mode.
    pub async fn registered(&self) -> Result<BTreeSet<BookieId>, StoreError> {
        Ok(self.list().await?.into_iter().map(|bookie| bookie.bookie_id).collect())
    }

    /// How a bookie is registered, and since when, in milliseconds since 1970 by the store's clock. `None` when it is not.
    ///
    /// # Errors
    /// Of the store.
    pub async fn since(&self, id: &BookieId) -> Result<Option<(RegistrationMode, i64)>, StoreError> {
        // Twice for one that becomes writable meanwhile, as in `list`.
        for mode in [RegistrationMode::Writable, RegistrationMode::ReadOnly, RegistrationMode::Writable] {
            if let Some(stat) = self.store.exists(&self.path(id, mode)).await? {
                return Ok(Some((mode, stat.created_ms)));
            }
        }
        Ok(None)
    }

    /// Watches of bookies that come and go: of those that take writes, and of those that are read-only. A list that is read after this
    /// call misses nothing that happens before they fire.
    pub async fn watch_lists(&self) -> Result<(Watch, Watch), StoreError> {
        Ok((
            self.watch_list(RegistrationMode::Writable).await?,
            self.watch_list(RegistrationMode::ReadOnly).await?,
        ))
    }

    async fn watch_list(&self, mode: RegistrationMode) -> Result<Watch, StoreError> {
        let path = self.parent(mode);
        match self.store.children_and_watch(&path).await {
            Ok((_, watch)) => Ok(watch),
            // No bookie has made it yet.
            Err(StoreError::NoNode { .. }) => Ok(self.store.exists_and_watch(&path).await?.1),
            Err(other) => Err(other),
        }
    }

    async fn ids(&self, mode: RegistrationMode) -> Result<BTreeSet<BookieId>, StoreError> {
        match self.store.children(&self.parent(mode)).await {
            // "readonly" itself is no bookie id.
            Ok(names) => Ok(names.into_iter().filter_map(|name| BookieId::new(name).ok()).collect()),
            Err(StoreError::NoNode { .. }) => Ok(BTreeSet::new()),
            Err(other) => Err(other),
        }
    }

    /// Where a registered bookie can be reached; `None` when it is not registered.
    pub async fn service_info(
        &self,
        id: &BookieId,
    ) -> Result<Option<Result<BookieServiceInfo, ServiceInfoError>>, StoreError> {
        // Twice for one that becomes writable meanwhile, as in `list`.
        for mode in [RegistrationMode::Writable, RegistrationMode::ReadOnly, RegistrationMode::Writable] {
            match self.store.get(&self.path(id, mode)).await {
                Ok(node) => return Ok(Some(BookieServiceInfo::decode(&node.data))),
                Err(StoreError::NoNode { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }

    /// As [`service_info`](Self::service_info), and arms a watch for the next change of what it says. It fires also when the
    /// bookie moves between writable and read-only.
    pub async fn service_info_and_watch(
        &self,
        id: &BookieId,
    ) -> Result<Option<(Result<BookieServiceInfo, ServiceInfoError>, Watch)>, StoreError> {
        for mode in [RegistrationMode::Writable, RegistrationMode::ReadOnly, RegistrationMode::Writable] {
            match self.store.get_and_watch(&self.path(id, mode)).await {
                // By invariant 1 a node that it moves away from goes.
                Ok((node, watch)) => return Ok(Some((BookieServiceInfo::decode(&node.data), watch))),
                Err(StoreError::NoNode { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }

    /// Watches the node of a registered bookie.
    pub(crate) async fn watch(
        &self,
        id: &BookieId,
        mode: RegistrationMode,
    ) -> Result<(Option<Stat>, Watch), StoreError> {
        self.store.exists_and_watch(&self.path(id, mode)).await
    }

    /// One session timeout, and half of one more, or [`EXPIRY_DELAY`]: servers end sessions in steps of their tick, which
    /// may be half of the timeout, and a wait cut off just before the step would refuse a bookie after every crash.
    fn foreign_wait(&self) -> Duration {
        let timeout = self.store.session_timeout();
        timeout + (timeout / 2).max(EXPIRY_DELAY)
    }

    fn session(&self) -> Result<SessionId, RegistrationError> {
        self.store.session().borrow().clone().connected().map_err(RegistrationError::Store)
    }

    /// The node when it is ours, `None` when there is none; waits for another session's node to go (invariant 2).
    async fn wait_until_not_foreign(
        &self,
        id: &BookieId,
        mode: RegistrationMode,
        session: SessionId,
        deadline: Instant,
    ) -> Result<Option<Stat>, RegistrationError> {
        let path = self.path(id, mode);
        loop {
            let (stat, watch) = self.store.exists_and_watch(&path).await.map_err(RegistrationError::Store)?;
            let owner = match stat {
                None => return Ok(None),
                Some(stat) => stat.owner,
            };
            match owner {
                Some(owner) if owner == session => return Ok(stat),
                None => return Err(RegistrationError::NotEphemeral { path }),
                Some(owner) => {
                    info!(bookie_id = %id, %owner, "waiting for another session's registration to disappear");
                    if timeout_at(deadline, watch.changed()).await.is_err() {
                        let (bookie_id, waited) = (id.clone(), self.foreign_wait());
                        return Err(RegistrationError::Owned { bookie_id, path, owner, waited });
                    }
                }
            }
        }
    }

    async fn refresh(
        &self,
        id: &BookieId,
        mode: RegistrationMode,
        data: Bytes,
    ) -> Result<(), RegistrationError> {
        let path = self.path(id, mode);
        let node = self.store.get(&path).await.map_err(RegistrationError::Store)?;
        if node.data == data {
            return Ok(());
        }
        let set = self.store.set(&path, data, Some(node.stat.version)).await;
        set.map(drop).map_err(RegistrationError::Store)
    }

    async fn create(
        &self,
        id: &BookieId,
        mode: RegistrationMode,
        data: Bytes,
        session: SessionId,
    ) -> Result<(), RegistrationError> {
        let path = self.path(id, mode);
        let mut outcome = self.store.create(&path, data.clone(), CreateMode::Ephemeral).await;
        for _ in 0..PARENTS_ATTEMPTS_MAX {
            if !matches!(outcome, Err(StoreError::NoNode { .. })) {
                break;
            }
            // Clusters made by old versions lack the one for readers; those of Pulsar's driver lose both with their last bookie; and
            // somebody may have deleted them. Whether this is still the cluster was asked before.
            let parents: &[RegistrationMode] = match mode {
                RegistrationMode::Writable => &[RegistrationMode::Writable],
                RegistrationMode::ReadOnly => &[RegistrationMode::Writable, RegistrationMode::ReadOnly],
            };
            for parent in parents {
                match self.store.create(&self.parent(*parent), Bytes::new(), CreateMode::Persistent).await {
                    Ok(_) | Err(StoreError::NodeExists { .. } | StoreError::NoNode { .. }) => {}
                    Err(error) => return Err(RegistrationError::Store(error)),
                }
            }
            outcome = self.store.create(&path, data.clone(), CreateMode::Ephemeral).await;
        }
        match outcome {
            Ok(_) => {}
            Err(StoreError::NoNode { .. }) => {
                return Err(RegistrationError::NotInitialised { root: self.root.clone() });
            }
            // Ours by a request whose answer was lost, or somebody else's just now: the check below tells.
            Err(StoreError::NodeExists { .. }) => {}
            Err(error) => return Err(RegistrationError::Store(error)),
        }
        // The request may have run under a session that followed `session`: believe only the node (invariant 3).
        let stat = self.store.exists(&path).await.map_err(RegistrationError::Store)?;
        match stat.and_then(|stat| stat.owner) {
            Some(owner) if owner == session => Ok(()),
            Some(_) | None => Err(RegistrationError::SessionChanged),
        }
    }
}
