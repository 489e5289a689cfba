//! A metadata store that may lag behind, as a ZooKeeper follower does: it repeats its earlier answers until somebody syncs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_metadata::memory::MemoryStore;
use bindery_metadata::store::{
    CreateMode, MetadataStore, Node, Op, SessionCredentials, SessionState, Stat, StoreFuture, Version, Watch,
};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

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

impl MetadataStore for Lagging {
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
    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        self.inner.exists(path)
    }
    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        self.inner.exists_and_watch(path)
    }
    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        self.inner.children(path)
    }
    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)> {
        self.inner.children_and_watch(path)
    }
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, String> {
        self.inner.create(path, data, mode)
    }
    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        self.inner.set(path, data, expected)
    }
    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        self.inner.delete(path, expected)
    }
    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()> {
        self.inner.multi(ops)
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
    fn session(&self) -> watch::Receiver<SessionState> {
        self.inner.session()
    }
    fn session_credentials(&self) -> Option<SessionCredentials> {
        self.inner.session_credentials()
    }
    fn session_timeout(&self) -> Duration {
        self.inner.session_timeout()
    }
    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}
