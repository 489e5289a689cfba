//! Current facts that every repair needs: the registered bookies, those being emptied, how long one may be away, whether repair is
//! disabled, and who repairs. Each is read again only when a watch says that it changed.
//!
//! # Invariants
//! 1. The watches are armed before the values are read, so no change is missed. A value is as old as the metadata store's notice of its
//!    change at most, which is what a read would return, too.
//! 2. A value is read again after [`AGE_MAX`] in any case.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::layout::RegisteredBookie;
use bindery_metadata::store::Watch;
use bindery_metadata::{Layout, StoreError};
use bindery_types::BookieId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::core::danger::hash_of;

/// How old a value may get whose watch does not fire.
const AGE_MAX: Duration = Duration::from_secs(30);

/// The bookies of a cluster, at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Bookies {
    /// As they are registered.
    pub registered: Vec<RegisteredBookie>,
    /// Their ids.
    pub ids: BTreeSet<BookieId>,
    /// A hash of these, as marks have it.
    pub hash: u64,
}

impl Bookies {
    fn new(registered: Vec<RegisteredBookie>) -> Bookies {
        let ids = registered.iter().map(|bookie| bookie.bookie_id.clone()).collect();
        Bookies { registered, hash: hash_of(&ids), ids }
    }
}

/// A value that was read, and the watches that say when it is out of date.
struct Kept<T>(Mutex<Option<Read<T>>>);

struct Read<T> {
    value: T,
    read_at: Instant,
    watches: Vec<Watch>,
}

impl<T> Default for Kept<T> {
    fn default() -> Kept<T> {
        Kept(Mutex::default())
    }
}

impl<T: Clone> Kept<T> {
    /// The value, which `read` reads, with watches armed before it, unless what is kept is current.
    async fn get(
        &self,
        read: impl Future<Output = Result<(T, Vec<Watch>), StoreError>>,
    ) -> Result<T, StoreError> {
        if let Some(value) = self.current() {
            return Ok(value);
        }
        let read_at = Instant::now();
        let (value, watches) = read.await?;
        *self.0.lock() = Some(Read { value: value.clone(), read_at, watches });
        Ok(value)
    }

    fn current(&self) -> Option<T> {
        let mut kept = self.0.lock();
        let kept = kept.as_mut()?;
        let is_current = kept.read_at.elapsed() < AGE_MAX && !kept.watches.iter_mut().any(Watch::has_fired);
        is_current.then(|| kept.value.clone())
    }
}

pub(super) struct Facts {
    layout: Layout,
    bookies: Kept<Arc<Bookies>>,
    is_disabled: Kept<bool>,
    delay: Kept<Option<Duration>>,
    draining: Kept<Arc<BTreeSet<BookieId>>>,
    votes: Kept<Arc<Vec<String>>>,
}

impl Facts {
    pub fn new(layout: Layout) -> Facts {
        Facts {
            layout,
            bookies: Kept::default(),
            is_disabled: Kept::default(),
            delay: Kept::default(),
            draining: Kept::default(),
            votes: Kept::default(),
        }
    }

    /// The registered bookies.
    pub async fn bookies(&self) -> Result<Arc<Bookies>, StoreError> {
        let registration = self.layout.registration();
        let read = async {
            let (writable, read_only) = registration.watch_lists().await?;
            let registered = registration.list().await?;
            Ok((Arc::new(Bookies::new(registered)), vec![writable, read_only]))
        };
        self.bookies.get(read).await
    }

    /// Whether repair is disabled in metadata.
    pub async fn is_disabled(&self) -> Result<bool, StoreError> {
        let settings = self.layout.repair_settings();
        let read = async {
            let (is_disabled, watch) = settings.watch_disabled().await?;
            Ok((is_disabled, vec![watch]))
        };
        self.is_disabled.get(read).await
    }

    /// The bookies that are being emptied.
    pub async fn draining(&self) -> Result<Arc<BTreeSet<BookieId>>, StoreError> {
        let draining = self.layout.draining();
        let read = async {
            let (bookies, watch) = draining.watch_list().await?;
            Ok((Arc::new(bookies), vec![watch]))
        };
        self.draining.get(read).await
    }

    /// The votes of all processes that repair.
    pub async fn votes(&self) -> Result<Arc<Vec<String>>, StoreError> {
        let votes = self.layout.auditor_votes();
        let read = async {
            let (names, watch) = votes.watch_all().await?;
            Ok((Arc::new(names), vec![watch]))
        };
        self.votes.get(read).await
    }

    /// How long a bookie may be away, if metadata say it. The auditor reports a node that holds no number of seconds.
    pub async fn delay(&self) -> Result<Option<Duration>, StoreError> {
        let settings = self.layout.repair_settings();
        let read = async {
            let (stored, watch) = settings.watch_delay().await?;
            Ok((stored.and_then(|stored| stored.delay), vec![watch]))
        };
        self.delay.get(read).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_metadata::memory::MemoryCluster;
    use bindery_metadata::store::{CreateMode, MetadataStore as _};
    use bindery_metadata::{LedgerLayout, layout};

    #[tokio::test]
    async fn a_value_is_read_again_when_it_changed_and_not_before() {
        let cluster = MemoryCluster::new();
        let store = Arc::new(cluster.open());
        layout::init_cluster(&*store, "/ledgers", LedgerLayout::Hierarchical, [1; 16]).await.unwrap();
        let layout = Layout::open(store.clone(), "/ledgers", None).await.unwrap();
        let facts = Facts::new(layout.clone());
        assert!(!facts.is_disabled().await.unwrap());
        assert_eq!(facts.bookies().await.unwrap().ids, BTreeSet::new());
        for name in ["b:1", "b:2"] {
            let before = facts.bookies().await.unwrap();
            assert!(Arc::ptr_eq(&before, &facts.bookies().await.unwrap()), "nothing was read");
            let path = format!("/ledgers/available/{name}");
            store.create(&path, "".into(), CreateMode::Ephemeral).await.unwrap();
            let now = facts.bookies().await.unwrap();
            assert!(now.ids.contains(&BookieId::new(name).unwrap()));
        }
        store.delete("/ledgers/available/b:1", None).await.unwrap();
        assert_eq!(facts.bookies().await.unwrap().registered.len(), 1);
        layout.repair_settings().disable().await.unwrap();
        assert!(facts.is_disabled().await.unwrap());
        layout.repair_settings().enable().await.unwrap();
        assert!(!facts.is_disabled().await.unwrap());
    }
}
