//! What every repair has to know now, read again only when a watch says that it changed: which bookies are registered, how long one
//! may be away, which are being emptied, and whether repair is disabled.
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

/// How old a value may get whose watch does not fire.
const AGE_MAX: Duration = Duration::from_secs(30);

/// The bookies of a cluster, at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Bookies {
    /// As they are registered.
    pub registered: Vec<RegisteredBookie>,
    /// Their ids.
    pub ids: BTreeSet<BookieId>,
}

struct Kept<T> {
    value: T,
    read_at: Instant,
    watches: Vec<Watch>,
}

impl<T: Clone> Kept<T> {
    fn current(kept: &Mutex<Option<Kept<T>>>) -> Option<T> {
        let mut kept = kept.lock();
        let kept = kept.as_mut()?;
        let is_current = kept.read_at.elapsed() < AGE_MAX && !kept.watches.iter_mut().any(Watch::has_fired);
        is_current.then(|| kept.value.clone())
    }
}

pub(super) struct Facts {
    layout: Layout,
    bookies: Mutex<Option<Kept<Arc<Bookies>>>>,
    is_disabled: Mutex<Option<Kept<bool>>>,
    delay: Mutex<Option<Kept<Option<Duration>>>>,
    draining: Mutex<Option<Kept<Arc<BTreeSet<BookieId>>>>>,
}

impl Facts {
    pub fn new(layout: Layout) -> Facts {
        Facts {
            layout,
            bookies: Mutex::default(),
            is_disabled: Mutex::default(),
            delay: Mutex::default(),
            draining: Mutex::default(),
        }
    }

    /// The registered bookies.
    pub async fn bookies(&self) -> Result<Arc<Bookies>, StoreError> {
        if let Some(value) = Kept::current(&self.bookies) {
            return Ok(value);
        }
        let registration = self.layout.registration();
        let read_at = Instant::now();
        let (writable, read_only) = registration.watch_lists().await?;
        let registered = registration.list().await?;
        let ids = registered.iter().map(|bookie| bookie.bookie_id.clone()).collect();
        let value = Arc::new(Bookies { registered, ids });
        *self.bookies.lock() =
            Some(Kept { value: value.clone(), read_at, watches: vec![writable, read_only] });
        Ok(value)
    }

    /// Whether repair is disabled in metadata.
    pub async fn is_disabled(&self) -> Result<bool, StoreError> {
        if let Some(value) = Kept::current(&self.is_disabled) {
            return Ok(value);
        }
        let read_at = Instant::now();
        let (value, watch) = self.layout.repair_settings().watch_disabled().await?;
        *self.is_disabled.lock() = Some(Kept { value, read_at, watches: vec![watch] });
        Ok(value)
    }
}

impl Facts {
    /// The bookies that are being emptied.
    pub async fn draining(&self) -> Result<Arc<BTreeSet<BookieId>>, StoreError> {
        if let Some(value) = Kept::current(&self.draining) {
            return Ok(value);
        }
        let read_at = Instant::now();
        let (value, watch) = self.layout.draining().watch_list().await?;
        let value = Arc::new(value);
        *self.draining.lock() = Some(Kept { value: value.clone(), read_at, watches: vec![watch] });
        Ok(value)
    }

    /// How long a bookie may be away, if metadata say it.
    pub async fn delay(&self) -> Result<Option<Duration>, StoreError> {
        if let Some(value) = Kept::current(&self.delay) {
            return Ok(value);
        }
        let read_at = Instant::now();
        let (stored, watch) = self.layout.repair_settings().watch_delay().await?;
        // What is no number of seconds the auditor reports.
        let value = stored.and_then(|stored| stored.delay);
        *self.delay.lock() = Some(Kept { value, read_at, watches: vec![watch] });
        Ok(value)
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
