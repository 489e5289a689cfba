//! The cookie nodes: `cookies/<bookie id>` (protocol reference, section 5.3).

use std::sync::Arc;

use bindery_types::BookieId;
use bytes::Bytes;

use crate::cookie::{Cookie, CookieError};
use crate::store::{CreateMode, MetadataStore, StoreError, Version};

/// The cookies of all bookies of a cluster. Clients take their list as the list of all bookies.
#[derive(Clone)]
pub struct Cookies {
    store: Arc<dyn MetadataStore>,
    parent: String,
}

/// A cookie as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCookie {
    /// The cookie.
    pub cookie: Cookie,
    /// What [`Cookies::update`] and [`Cookies::delete`] expect.
    pub version: Version,
    /// Its text, for people.
    pub text: String,
}

/// Why an operation on cookies failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CookiesError {
    /// There is none under this id.
    #[error("the cluster has no cookie of bookie {bookie_id} (see: bindery cluster cookie list)")]
    NotFound {
        /// The id asked for.
        bookie_id: BookieId,
    },
    /// There is one already: two processes start as the same bookie, or a former start was not seen.
    #[error(
        "the cluster has a cookie of bookie {bookie_id} already (see: bindery cluster cookie show {bookie_id})"
    )]
    Exists {
        /// The id.
        bookie_id: BookieId,
    },
    /// It was changed since it was read.
    #[error(
        "the cookie of bookie {bookie_id} was changed by somebody else: look again (bindery cluster cookie show {bookie_id})"
    )]
    Changed {
        /// The id.
        bookie_id: BookieId,
    },
    /// It cannot be read.
    #[error(
        "the cookie of bookie {bookie_id} in the metadata store cannot be used: {error} (see it with: bindery cluster cookie show {bookie_id}). \
         If the bookie's data is gone, or it never had any, remove it: bindery cluster cookie delete {bookie_id}"
    )]
    Malformed {
        /// The id.
        bookie_id: BookieId,
        /// Why.
        error: CookieError,
    },
    /// The store failed.
    #[error("cookies: {0}")]
    Store(StoreError),
}

impl Cookies {
    pub(super) fn new(store: Arc<dyn MetadataStore>, root: &str) -> Cookies {
        Cookies { store, parent: format!("{root}/cookies") }
    }

    fn path(&self, id: &BookieId) -> String {
        format!("{}/{id}", self.parent)
    }

    /// The ids of all bookies that have a cookie, sorted. Names that are no bookie ids are left out.
    pub async fn list(&self) -> Result<Vec<BookieId>, CookiesError> {
        match self.store.children(&self.parent).await {
            Ok(names) => Ok(names.into_iter().filter_map(|name| BookieId::new(name).ok()).collect()),
            Err(StoreError::NoNode { .. }) => Ok(Vec::new()),
            Err(other) => Err(CookiesError::Store(other)),
        }
    }

    /// The version and the bytes of a bookie's cookie, whatever they are; `None` when it has none.
    pub async fn raw(&self, id: &BookieId) -> Result<Option<(Version, Bytes)>, CookiesError> {
        match self.store.get(&self.path(id)).await {
            Ok(node) => Ok(Some((node.stat.version, node.data))),
            Err(StoreError::NoNode { .. }) => Ok(None),
            Err(other) => Err(CookiesError::Store(other)),
        }
    }

    /// The cookie of a bookie, `None` when it has none.
    pub async fn get(&self, id: &BookieId) -> Result<Option<StoredCookie>, CookiesError> {
        let Some((version, data)) = self.raw(id).await? else { return Ok(None) };
        let malformed = |error| CookiesError::Malformed { bookie_id: id.clone(), error };
        let cookie = Cookie::parse(&data).map_err(malformed)?;
        let text = String::from_utf8_lossy(&data).into_owned();
        Ok(Some(StoredCookie { cookie, version, text }))
    }

    /// Creates a bookie's first cookie.
    pub async fn create(&self, id: &BookieId, cookie: &Cookie) -> Result<(), CookiesError> {
        let (path, data) = (self.path(id), Bytes::from(cookie.to_text()));
        let mut outcome = self.store.create(&path, data.clone(), CreateMode::Persistent).await;
        if matches!(outcome, Err(StoreError::NoNode { .. })) {
            match self.store.create(&self.parent, Bytes::new(), CreateMode::Persistent).await {
                Ok(_) | Err(StoreError::NodeExists { .. }) => {}
                Err(other) => return Err(CookiesError::Store(other)),
            }
            outcome = self.store.create(&path, data, CreateMode::Persistent).await;
        }
        match outcome {
            Ok(_) => Ok(()),
            Err(StoreError::NodeExists { .. }) => Err(CookiesError::Exists { bookie_id: id.clone() }),
            Err(other) => Err(CookiesError::Store(other)),
        }
    }

    /// Replaces a cookie that still has `expected`.
    pub async fn update(
        &self,
        id: &BookieId,
        cookie: &Cookie,
        expected: Version,
    ) -> Result<(), CookiesError> {
        let outcome = self.store.set(&self.path(id), cookie.to_text().into(), Some(expected)).await;
        outcome.map(drop).map_err(|error| changed(id, error))
    }

    /// Deletes a cookie: the bookie is no longer part of the cluster. `expected` = `None` deletes any version, also
    /// one that cannot be read.
    pub async fn delete(&self, id: &BookieId, expected: Option<Version>) -> Result<(), CookiesError> {
        self.store.delete(&self.path(id), expected).await.map_err(|error| changed(id, error))
    }
}

fn changed(id: &BookieId, error: StoreError) -> CookiesError {
    let bookie_id = id.clone();
    match error {
        StoreError::NoNode { .. } => CookiesError::NotFound { bookie_id },
        StoreError::BadVersion { .. } => CookiesError::Changed { bookie_id },
        other => CookiesError::Store(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Kind, MemoryCluster};

    #[tokio::test]
    async fn a_cookie_is_created_once_replaced_by_version_and_deleted() {
        for kind in Kind::ALL {
            let store: Arc<dyn MetadataStore> = Arc::new(MemoryCluster::of(kind).open());
            store.create("/l", Bytes::new(), CreateMode::Persistent).await.unwrap();
            let cookies = Cookies::new(store, "/l");
            let id = BookieId::new("b:1").unwrap();
            assert_eq!(cookies.list().await, Ok(vec![]));
            assert_eq!(cookies.get(&id).await, Ok(None));
            let cookie = Cookie::new(&id, &["/j".into()], &["/d".into()], None, Some("i"));
            cookies.create(&id, &cookie).await.unwrap();
            assert_eq!(
                cookies.create(&id, &cookie).await,
                Err(CookiesError::Exists { bookie_id: id.clone() })
            );
            let stored = cookies.get(&id).await.unwrap().unwrap();
            assert_eq!((&stored.cookie, &stored.text), (&cookie, &cookie.to_text()));
            let larger = Cookie::new(&id, &["/j".into()], &["/d".into(), "/e".into()], None, Some("i"));
            cookies.update(&id, &larger, stored.version).await.unwrap();
            let stale = cookies.update(&id, &cookie, stored.version).await;
            assert_eq!(stale, Err(CookiesError::Changed { bookie_id: id.clone() }));
            assert_eq!(cookies.get(&id).await.unwrap().unwrap().cookie, larger);
            assert_eq!(cookies.list().await, Ok(vec![id.clone()]));
            cookies.delete(&id, None).await.unwrap();
            assert_eq!(cookies.delete(&id, None).await, Err(CookiesError::NotFound { bookie_id: id }));
        }
    }
}
