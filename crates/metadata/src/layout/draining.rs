//! Bookies that are being emptied: `underreplication/bindery-draining/<bookie id>` (protocol reference, section 6.1). While its node is
//! there, a bookie takes no writes, and workers replace its copies although it is there and is read from. The node outlives restarts of the
//! bookie and of whoever empties it; it is below `underreplication` for the reason that the marks of bookies are.
//!
//! # Invariants
//! 1. A cookie is removed only while its bookie's node stays. One step does both where the store has transactions. Elsewhere a
//!    conditional write comes first, after which the node says which version of the cookie goes
//!    ([`COOKIE_GOES`]); nobody ends the emptying while it says so and that version is there. Whoever stopped between the two repeats it. A
//!    cookie that was written since, or made by a new bookie of this id, cannot be removed by that removal and keeps nobody.

use std::collections::BTreeSet;

use bindery_types::BookieId;
use bytes::Bytes;

use super::paths::Root;
use super::registration::{Registration, RegistrationMode};
use crate::store::{Node, Op, StoreError, Version, Watch};

/// Below the root.
const PARENT: &str = "/underreplication/bindery-draining";

/// The beginning of a node's reason once the cookie is about to be removed; the cookie's version and [`REASON_FOLLOWS`] come next. It keeps the
/// emptying from being ended between the two steps.
const COOKIE_GOES: &str = "[its cookie is being removed: version ";
const REASON_FOLLOWS: &str = "] ";

/// The version of the cookie that goes, where a node says so, and the reason behind it.
fn announced(node: &[u8]) -> Option<(i64, &str)> {
    let said = std::str::from_utf8(node).ok()?.strip_prefix(COOKIE_GOES)?;
    let (version, why) = said.split_once(REASON_FOLLOWS)?;
    Some((version.parse().ok()?, why))
}

/// What keeps a bookie from writes, at one moment. Between two that are equal its node did not go, and it did not register anew, as it does
/// when it begins to take writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainStanding {
    /// When its emptying began, in milliseconds since 1970 by the store's clock, and the version of its node; `None` when it is not being
    /// emptied.
    pub begun: Option<(i64, Version)>,
    /// How it is registered, and since when, by the same clock.
    pub registered: Option<(RegistrationMode, i64)>,
}

/// The bookies of a cluster that are being emptied.
#[derive(Clone)]
pub struct Draining(pub(super) Root);

impl Draining {
    fn path(&self, id: &BookieId) -> String {
        format!("{}{PARENT}/{id}", self.0.path)
    }

    /// All of them. A name that is no bookie id is passed over.
    ///
    /// # Errors
    /// Of the store.
    pub async fn list(&self) -> Result<BTreeSet<BookieId>, StoreError> {
        match self.0.store.children(&format!("{}{PARENT}", self.0.path)).await {
            Ok(names) => Ok(names.into_iter().filter_map(|name| BookieId::new(name).ok()).collect()),
            Err(StoreError::NoNode { .. }) => Ok(BTreeSet::new()),
            Err(other) => Err(other),
        }
    }

    /// All of them, with a watch for the next change.
    ///
    /// # Errors
    /// Of the store.
    pub async fn watch_list(&self) -> Result<(BTreeSet<BookieId>, Watch), StoreError> {
        let parent = format!("{}{PARENT}", self.0.path);
        loop {
            let (found, watch) = self.0.store.exists_and_watch(&parent).await?;
            if found.is_none() {
                return Ok((BTreeSet::new(), watch));
            }
            match self.0.store.children_and_watch(&parent).await {
                Ok((names, watch)) => {
                    let ids = names.into_iter().filter_map(|name| BookieId::new(name).ok());
                    return Ok((ids.collect(), watch));
                }
                // It went meanwhile.
                Err(StoreError::NoNode { .. }) => {}
                Err(other) => return Err(other),
            }
        }
    }

    /// Why a bookie is being emptied, as whoever asked for it said; `None` when it is not. With a watch for the next change.
    ///
    /// # Errors
    /// Of the store.
    pub async fn watch(&self, id: &BookieId) -> Result<(Option<String>, Watch), StoreError> {
        let (found, watch) = self.0.store.exists_and_watch(&self.path(id)).await?;
        let why = match found {
            None => None,
            // It may have gone meanwhile; then the watch fires.
            Some(_) => self.0.find(&self.path(id)).await?,
        };
        Ok((why.map(|why| String::from_utf8_lossy(&why).into_owned()), watch))
    }

    /// What keeps a bookie from writes, with all that was written before this call.
    ///
    /// # Errors
    /// Of the store.
    pub async fn standing(&self, id: &BookieId) -> Result<DrainStanding, StoreError> {
        let path = self.path(id);
        // The server may lack what another one has already.
        self.0.store.sync(&path).await?;
        let node = self.0.store.exists(&path).await?;
        let registered = Registration::new(self.0.store.clone(), &self.0.path).since(id).await?;
        Ok(DrainStanding { begun: node.map(|node| (node.created_ms, node.version)), registered })
    }

    /// Removes a bookie's cookie of this version while its node is as it was in `begun` (invariant 1). False when the node is not, and
    /// nothing was changed then.
    ///
    /// # Errors
    /// Of the store; [`StoreError::BadVersion`] and [`StoreError::NoNode`] when the cookie is another one.
    pub async fn remove_cookie(
        &self,
        id: &BookieId,
        cookie: Version,
        begun: (i64, Version),
    ) -> Result<bool, StoreError> {
        let (node, store) = (self.path(id), &self.0.store);
        if !store.is_transactional() {
            if !self.announce_removal(&node, begun.1, cookie).await? {
                return Ok(false);
            }
            return store.delete(&self.cookie(id), Some(cookie)).await.map(|()| true);
        }
        let ops = vec![
            Op::Check { path: node.clone(), expected: begun.1 },
            Op::Delete { path: self.cookie(id), expected: Some(cookie) },
        ];
        match store.multi(ops).await {
            Ok(()) => Ok(true),
            Err(StoreError::NoNode { path } | StoreError::BadVersion { path }) if path == node => Ok(false),
            Err(other) => Err(other),
        }
    }

    fn cookie(&self, id: &BookieId) -> String {
        format!("{}/cookies/{id}", self.0.path)
    }

    /// Writes that this version of the cookie goes to a node that has this `version`. False when it has another, or is not there.
    async fn announce_removal(
        &self,
        node: &str,
        version: Version,
        cookie: Version,
    ) -> Result<bool, StoreError> {
        let Some(found) = self.0.find(node).await? else { return Ok(false) };
        // Of a removal that was cut short.
        let why = announced(&found).map_or(&found[..], |(_, why)| why.as_bytes());
        let goes = format!("{COOKIE_GOES}{}{REASON_FOLLOWS}", cookie.id());
        let said = Bytes::from([goes.as_bytes(), why].concat());
        match self.0.store.set(node, said, Some(version)).await {
            Ok(_) => Ok(true),
            Err(StoreError::NoNode { .. } | StoreError::BadVersion { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Begins to empty a bookie. False when that had begun before, and stays so with the reason it had.
    ///
    /// # Errors
    /// Of the store.
    pub async fn begin(&self, id: &BookieId, why: &str) -> Result<bool, StoreError> {
        self.0.create(&self.path(id), Bytes::copy_from_slice(why.as_bytes())).await
    }

    /// Ends it: a bookie that is there takes writes again. False when it was not being emptied.
    ///
    /// # Errors
    /// Of the store; [`StoreError::Unsupported`] while its cookie is being removed and the store has no transactions (invariant 1).
    pub async fn end(&self, id: &BookieId) -> Result<bool, StoreError> {
        let (path, store) = (self.path(id), &self.0.store);
        if store.is_transactional() {
            return gone(store.delete(&path, None).await);
        }
        loop {
            let Node { data, stat } = match store.get(&path).await {
                Ok(node) => node,
                Err(StoreError::NoNode { .. }) => return Ok(false),
                Err(other) => return Err(other),
            };
            // The node was read before the cookie: if the announced version is gone by now, the removal is complete.
            if let Some((goes, _)) = announced(&data)
                && store.exists(&self.cookie(id)).await?.is_some_and(|cookie| cookie.version.id() == goes)
            {
                return Err(StoreError::Unsupported(COOKIE_BEING_REMOVED));
            }
            match gone(store.delete(&path, Some(stat.version)).await) {
                // It was written meanwhile.
                Err(StoreError::BadVersion { .. }) => {}
                outcome => return outcome,
            }
        }
    }
}

/// What [`StoreError::Unsupported`] says there.
const COOKIE_BEING_REMOVED: &str =
    "the end of the emptying of a bookie whose cookie is being removed: repeat the command that removes it";

/// False for a node that was not there.
fn gone(deleted: Result<(), StoreError>) -> Result<bool, StoreError> {
    match deleted {
        Ok(()) => Ok(true),
        Err(StoreError::NoNode { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Fault, Kind, MemoryCluster};
    use crate::store::{CreateMode, MetadataStore};
    use std::sync::Arc;

    #[tokio::test]
    async fn a_bookie_is_emptied_until_that_is_ended() {
        for kind in Kind::ALL {
            let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let draining = Draining(Root::new(store.clone(), "/l"));
            let (one, two) = (BookieId::new("b1:3181").unwrap(), BookieId::new("b2").unwrap());
            let (all, first) = draining.watch_list().await.unwrap();
            assert_eq!((all, draining.list().await), (BTreeSet::new(), Ok(BTreeSet::new())));
            let (why, watch) = draining.watch(&one).await.unwrap();
            assert!(why.is_none() && draining.end(&one).await == Ok(false));
            assert_eq!(draining.begin(&one, "new disks").await, Ok(true));
            watch.changed().await;
            assert_eq!(draining.begin(&one, "again").await, Ok(false));
            first.changed().await;
            let (all, second) = draining.watch_list().await.unwrap();
            assert_eq!(all, BTreeSet::from([one.clone()]));
            assert_eq!(draining.begin(&two, "").await, Ok(true));
            second.changed().await;
            assert_eq!(draining.watch(&one).await.unwrap().0.as_deref(), Some("new disks"));
            store
                .create("/l/underreplication/bindery-draining/a b", Bytes::new(), CreateMode::Persistent)
                .await
                .unwrap();
            assert_eq!(draining.list().await, Ok(BTreeSet::from([one.clone(), two.clone()])));
            let (_, watch) = draining.watch(&one).await.unwrap();
            assert_eq!(draining.end(&one).await, Ok(true));
            watch.changed().await;
            assert_eq!(draining.watch(&one).await.unwrap().0, None);
            assert_eq!(draining.list().await, Ok(BTreeSet::from([two])));
        }
    }

    #[tokio::test]
    async fn a_cookie_goes_only_while_its_bookie_is_emptied_without_a_gap() {
        for kind in Kind::ALL {
            let cut = Arc::new(MemoryCluster::of(kind).open());
            let store: Arc<dyn MetadataStore> = cut.clone();
            for path in ["/l", "/l/cookies", "/l/available", "/l/available/readonly"] {
                store.create(path, Bytes::new(), CreateMode::Persistent).await.unwrap();
            }
            let (draining, bookie) =
                (Draining(Root::new(store.clone(), "/l")), BookieId::new("b1:3181").unwrap());
            let create =
                async |path: &str| store.create(path, Bytes::new(), CreateMode::Persistent).await.unwrap();
            let cookie = create("/l/cookies/b1:3181").await.version;
            let nothing = DrainStanding { begun: None, registered: None };
            assert_eq!(draining.standing(&bookie).await, Ok(nothing));

            draining.begin(&bookie, "new disks").await.unwrap();
            create("/l/available/readonly/b1:3181").await;
            let before = draining.standing(&bookie).await.unwrap();
            assert!(
                before.begun.is_some() && matches!(before.registered, Some((RegistrationMode::ReadOnly, _)))
            );
            assert_eq!(draining.standing(&bookie).await, Ok(before));
            // A drain that was ended and begun again is another drain.
            draining.end(&bookie).await.unwrap();
            let begun = before.begun.unwrap();
            assert_eq!(draining.remove_cookie(&bookie, cookie, begun).await, Ok(false));
            draining.begin(&bookie, "new disks").await.unwrap();
            let again = draining.standing(&bookie).await.unwrap();
            assert!(again.begun.is_some() && again.begun != before.begun, "{again:?}");
            // So is what took writes in between.
            store.delete("/l/available/readonly/b1:3181", None).await.unwrap();
            create("/l/available/b1:3181").await;
            let writable = draining.standing(&bookie).await.unwrap();
            assert!(matches!(writable.registered, Some((RegistrationMode::Writable, _))), "{writable:?}");
            store.delete("/l/available/b1:3181", None).await.unwrap();
            create("/l/available/readonly/b1:3181").await;
            let back = draining.standing(&bookie).await.unwrap();
            assert!(back.begun == again.begun && back.registered != again.registered, "{back:?}");

            let begun = back.begun.unwrap();
            let other = draining.remove_cookie(&bookie, Version::counted(99), begun).await;
            assert!(matches!(other, Err(StoreError::BadVersion { .. })), "{other:?}");
            assert!(store.exists("/l/cookies/b1:3181").await.unwrap().is_some());
            // Without transactions it was announced, which keeps nobody: that version is not there.
            assert_eq!(draining.end(&bookie).await, Ok(true));
            draining.begin(&bookie, "new disks").await.unwrap();
            let standing = async || draining.standing(&bookie).await.unwrap().begun.unwrap();
            if kind == Kind::OfOxia {
                // Cut short between the two, it stays so until the command is repeated, or the cookie is another one (invariant 1).
                for _ in 0..2 {
                    cut.inject_at(1, Fault::LossBeforeApply);
                    let removed = draining.remove_cookie(&bookie, cookie, standing().await).await;
                    assert_eq!(removed, Err(StoreError::ConnectionLoss));
                    let ended = draining.end(&bookie).await;
                    assert!(matches!(ended, Err(StoreError::Unsupported(_))), "{ended:?}");
                }
                let why = draining.watch(&bookie).await.unwrap().0.unwrap();
                assert_eq!(why, format!("[its cookie is being removed: version {}] new disks", cookie.id()));
            }
            let begun = standing().await;
            assert_eq!(draining.remove_cookie(&bookie, cookie, begun).await, Ok(true));
            assert!(store.exists("/l/cookies/b1:3181").await.unwrap().is_none());
            // A new bookie of this id is there before the node was ended.
            create("/l/cookies/b1:3181").await;
            assert_eq!(draining.end(&bookie).await, Ok(true));
            assert_eq!(draining.end(&bookie).await, Ok(false));
        }
    }
}
