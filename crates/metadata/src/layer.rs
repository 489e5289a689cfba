//! A [`MetadataStore`] wrapped around another one: calls that the layer does not override are forwarded. For wrappers that delay a
//! few calls, or make them fail.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::store::{
    CreateMode, Created, MetadataStore, Node, Op, SessionCredentials, SessionId, SessionState, Stat,
    StoreFuture, Version, Watch,
};

/// Forwards every call to the store beneath unless it is overridden. Every implementation is a [`MetadataStore`].
#[expect(missing_docs, reason = "`MetadataStore` documents each call")]
pub trait StoreLayer: Send + Sync + 'static {
    /// The wrapped store, to which calls are forwarded.
    fn beneath(&self) -> &dyn MetadataStore;
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        self.beneath().get(path)
    }
    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        self.beneath().get_and_watch(path)
    }
    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        self.beneath().exists(path)
    }
    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        self.beneath().exists_and_watch(path)
    }
    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        self.beneath().children(path)
    }
    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)> {
        self.beneath().children_and_watch(path)
    }
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
        self.beneath().create(path, data, mode)
    }
    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        self.beneath().set(path, data, expected)
    }
    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        self.beneath().delete(path, expected)
    }
    fn is_transactional(&self) -> bool {
        self.beneath().is_transactional()
    }
    fn pinned(&self, session: SessionId) -> Option<Arc<dyn MetadataStore>> {
        self.beneath().pinned(session)
    }
    fn skip_sequence(&self, parent: &str, next: u32) -> StoreFuture<'_, ()> {
        self.beneath().skip_sequence(parent, next)
    }
    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()> {
        self.beneath().multi(ops)
    }
    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        self.beneath().sync(path)
    }
    fn session(&self) -> watch::Receiver<SessionState> {
        self.beneath().session()
    }
    fn session_credentials(&self) -> Option<SessionCredentials> {
        self.beneath().session_credentials()
    }
    fn session_timeout(&self) -> Duration {
        self.beneath().session_timeout()
    }
    fn close(&self) -> StoreFuture<'_, ()> {
        self.beneath().close()
    }
}

impl<L: StoreLayer> MetadataStore for L {
    fn get(&self, path: &str) -> StoreFuture<'_, Node> {
        StoreLayer::get(self, path)
    }
    fn get_and_watch(&self, path: &str) -> StoreFuture<'_, (Node, Watch)> {
        StoreLayer::get_and_watch(self, path)
    }
    fn exists(&self, path: &str) -> StoreFuture<'_, Option<Stat>> {
        StoreLayer::exists(self, path)
    }
    fn exists_and_watch(&self, path: &str) -> StoreFuture<'_, (Option<Stat>, Watch)> {
        StoreLayer::exists_and_watch(self, path)
    }
    fn children(&self, path: &str) -> StoreFuture<'_, Vec<String>> {
        StoreLayer::children(self, path)
    }
    fn children_and_watch(&self, path: &str) -> StoreFuture<'_, (Vec<String>, Watch)> {
        StoreLayer::children_and_watch(self, path)
    }
    fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> StoreFuture<'_, Created> {
        StoreLayer::create(self, path, data, mode)
    }
    fn set(&self, path: &str, data: Bytes, expected: Option<Version>) -> StoreFuture<'_, Stat> {
        StoreLayer::set(self, path, data, expected)
    }
    fn delete(&self, path: &str, expected: Option<Version>) -> StoreFuture<'_, ()> {
        StoreLayer::delete(self, path, expected)
    }
    fn is_transactional(&self) -> bool {
        StoreLayer::is_transactional(self)
    }
    fn pinned(&self, session: SessionId) -> Option<Arc<dyn MetadataStore>> {
        StoreLayer::pinned(self, session)
    }
    fn skip_sequence(&self, parent: &str, next: u32) -> StoreFuture<'_, ()> {
        StoreLayer::skip_sequence(self, parent, next)
    }
    fn multi(&self, ops: Vec<Op>) -> StoreFuture<'_, ()> {
        StoreLayer::multi(self, ops)
    }
    fn sync(&self, path: &str) -> StoreFuture<'_, ()> {
        StoreLayer::sync(self, path)
    }
    fn session(&self) -> watch::Receiver<SessionState> {
        StoreLayer::session(self)
    }
    fn session_credentials(&self) -> Option<SessionCredentials> {
        StoreLayer::session_credentials(self)
    }
    fn session_timeout(&self) -> Duration {
        StoreLayer::session_timeout(self)
    }
    fn close(&self) -> StoreFuture<'_, ()> {
        StoreLayer::close(self)
    }
}
