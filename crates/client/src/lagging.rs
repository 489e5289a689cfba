//! A metadata store that may lag behind, as a ZooKeeper follower does: it repeats its earlier answers until somebody syncs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bindery_metadata::memory::MemoryStore;
use bindery_metadata::store::{MetadataStore, Node, StoreFuture, Watch};
use bindery_metadata::{StoreError, StoreLayer};
use parking_lot::Mutex;

pub(crate) struct Lagging {
    inner: MemoryStore,
    read: Mutex<BTreeMap<String, Node>>,
    is_behind: AtomicBool,
    is_away: AtomicBool,
    syncs: AtomicUsize,
}

impl Lagging {
    pub fn new(inner: MemoryStore) -> Lagging {
        Lagging {
            inner,
            read: Mutex::default(),
            is_behind: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            syncs: AtomicUsize::new(0),
        }
    }

    /// From now on until the next sync.
    pub fn lag(&self) {
        self.is_behind.store(true, Ordering::Relaxed);
    }

    /// Reads and syncs fail from now on, as without a connection.
    pub fn leave(&self) {
        self.is_away.store(true, Ordering::Relaxed);
    }

    /// How many syncs were requested.
    pub fn syncs(&self) -> usize {
        self.syncs.load(Ordering::Relaxed)
    }
}

impl StoreLayer for Lagging {
    fn beneath(&self) -> &dyn MetadataStore {
        &self.inner
    }
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(async { Err(StoreError::ConnectionLoss) });
        }
        let path = path.to_owned();
        Box::pin(async move {
            let before = self.read.lock().get(&path).cloned();
            if let Some(node) = before.filter(|_| self.is_behind.load(Ordering::Relaxed)) {
                return Ok(node);
            }
            let node = self.inner.get(&path).await?;
            self.read.lock().insert(path, node.clone());
            Ok(node)
        })
    }
    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(async { Err(StoreError::ConnectionLoss) });
        }
        self.inner.get_and_watch(path)
    }
    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(async { Err(StoreError::ConnectionLoss) });
        }
        let path = path.to_owned();
        Box::pin(async move {
            // A round trip.
            tokio::task::yield_now().await;
            self.is_behind.store(false, Ordering::Relaxed);
            self.inner.sync(&path).await
        })
    }
}
