//! The network, but for updates of bookies, which wait before they leave: a bookie with a slow journal, or far away. And a bucket that is far away for those
//! who write.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bindery_client::connection::Bookies;
use bindery_client::transport::{Answer, Transport, TransportLayer};
use bindery_client::{BookieId, LedgerId, Reconcile, Reconciled};
use bindery_types::TierSecret;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// See the module.
pub struct SlowUpdates {
    /// The network.
    pub bookies: Arc<Bookies>,
    /// How long each request waits.
    pub latency: Duration,
    /// Requests with one of these are never sent.
    pub hanging: HashSet<LedgerId>,
}

impl TransportLayer for SlowUpdates {
    fn beneath(&self) -> &dyn Transport {
        &*self.bookies
    }

    fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        secret: Option<TierSecret>,
        deadline: Duration,
    ) -> Answer<'_, Vec<Reconciled>> {
        let bookie = bookie.clone();
        Box::pin(async move {
            // Registers are read at the start, with requests that have no extents: these are no updates.
            if request.ledgers.iter().any(|update| !update.extents.is_empty()) {
                if request.ledgers.iter().any(|update| self.hanging.contains(&update.ledger)) {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(self.latency).await;
            }
            self.bookies.reconcile(&bookie, request, secret, deadline).await
        })
    }
}

/// A store whose requests wait before they are sent.
#[derive(Debug)]
pub struct SlowStore {
    /// The store.
    pub inner: Arc<dyn ObjectStore>,
    /// How long each waits that writes,
    pub writes: Duration,
    /// and each that reads an object.
    pub reads: Duration,
    /// Requests that read an object.
    pub gets: Arc<AtomicU64>,
}

impl fmt::Display for SlowStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {:?} away for those who write, {:?} for those who read",
            self.inner, self.writes, self.reads
        )
    }
}

#[async_trait::async_trait]
impl ObjectStore for SlowStore {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        tokio::time::sleep(self.writes).await;
        self.inner.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        tokio::time::sleep(self.writes).await;
        let inner = self.inner.put_multipart_opts(key, options).await?;
        Ok(Box::new(SlowUpload { inner, delay: self.writes }))
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.reads).await;
        self.inner.get_opts(key, options).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct SlowUpload {
    inner: Box<dyn MultipartUpload>,
    delay: Duration,
}

#[async_trait::async_trait]
impl MultipartUpload for SlowUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let (put, delay) = (self.inner.put_part(payload), self.delay);
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            put.await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        tokio::time::sleep(self.delay).await;
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
