//! Requests to the store, each with a limit of its own in time, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use super::manifest::RunName;
use super::{CatalogueError, REQUESTS_AT_ONCE};
use crate::store::{Store, StoreError, Written};
use crate::{ClusterId, ObjectId};

/// Keys of one listing; further ones are left out. Manifests of 300 years. Objects are not listed so: [`Bucket::all_objects`].
pub(super) const LISTED_MAX: usize = if cfg!(test) { 256 } else { 1_000_000 };

/// Parts of a run that is uploaded as it is written.
const MULTIPART_BYTES: usize = 8 << 20;

/// The key of an object of the tier, below the store's prefix.
pub fn object_key(cluster: ClusterId, object: ObjectId) -> String {
    format!("{cluster}/objects/{object}")
}

/// Requests that were sent, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requests {
    /// Objects written, or parts of them.
    pub puts: u64,
    /// Objects read, whole or in part, or asked for.
    pub gets: u64,
    /// Pages listed.
    pub lists: u64,
    /// Objects deleted.
    pub deletes: u64,
    /// Bytes written.
    pub bytes_put: u64,
    /// Bytes read.
    pub bytes_got: u64,
}

#[derive(Debug, Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    bytes_put: AtomicU64,
    bytes_got: AtomicU64,
}

/// What became of a conditional create.
#[derive(Debug)]
pub(super) enum Created {
    /// The key has these bytes, and the caller's request or an earlier try of it made it so.
    Own,
    /// The key has other bytes.
    Other(Bytes),
    /// It is not known whether the create took effect, now or later.
    Unknown(StoreError),
}

/// The part of a store that holds the catalogue of one cluster.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    store: Store,
    cluster: ClusterId,
    timeout: Duration,
    counters: Arc<Counters>,
}

impl Bucket {
    pub(super) fn new(store: Store, cluster: ClusterId, timeout: Duration) -> Bucket {
        Bucket { store, cluster, timeout, counters: Arc::default() }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn cluster(&self) -> ClusterId {
        self.cluster
    }

    pub(super) fn requests(&self) -> Requests {
        let counters = &self.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Requests {
            puts: of(&counters.puts),
            gets: of(&counters.gets),
            lists: of(&counters.lists),
            deletes: of(&counters.deletes),
            bytes_put: of(&counters.bytes_put),
            bytes_got: of(&counters.bytes_got),
        }
    }

    pub(super) fn key(&self, name: &str) -> Path {
        self.store.key(&format!("{}/catalogue/{name}", self.cluster))
    }

    pub(super) fn everything(&self) -> Path {
        self.store.key(&format!("{}/catalogue", self.cluster))
    }

    pub(super) fn marker(&self) -> Path {
        self.key("format")
    }

    pub(super) fn log(&self) -> Path {
        self.key("log")
    }

    pub(super) fn record(&self, number: u64) -> Path {
        self.key(&format!("log/{number:020}"))
    }

    pub(super) fn manifests(&self) -> Path {
        self.key("snapshots/manifests")
    }

    pub(super) fn manifest(&self, number: u64) -> Path {
        self.key(&format!("snapshots/manifests/{number:020}"))
    }

    pub(super) fn runs(&self) -> Path {
        self.key("snapshots/runs")
    }

    pub(super) fn run(&self, name: RunName) -> Path {
        self.key(&format!("snapshots/runs/{:020}-{:016x}", name.manifest, name.nonce))
    }

    /// Keys of up to `most` objects of the cluster, behind this one; which, a store that lists in no order decides.
    pub(super) async fn some_objects(
        &self,
        after: Option<ObjectId>,
        most: usize,
    ) -> Result<Vec<String>, StoreError> {
        let prefix = self.store.key(&format!("{}/objects", self.cluster));
        let after = after.map(|after| self.store.key(&object_key(self.cluster, after)));
        self.counters.lists.fetch_add(1, Ordering::Relaxed);
        let store = self.store.inner();
        let found = match &after {
            Some(after) => store.list_with_offset(Some(&prefix), after),
            None => store.list(Some(&prefix)),
        };
        let found: Vec<ObjectMeta> = self.limited(&prefix, found.take(most).try_collect()).await?;
        Ok(found.into_iter().map(|found| found.location.to_string()).collect())
    }

    /// All objects of the cluster, page by page as the store gives them. Ends with the first error.
    pub(super) fn all_objects(&self) -> BoxStream<'_, Result<ObjectMeta, StoreError>> {
        let prefix = self.store.key(&format!("{}/objects", self.cluster));
        let listing = self.store.inner().list(Some(&prefix));
        self.counters.lists.fetch_add(1, Ordering::Relaxed);
        futures_util::stream::try_unfold((listing, 0_u64), move |(mut listing, count)| {
            let prefix = prefix.clone();
            async move {
                let next = self.limited(&prefix, async { listing.next().await.transpose() }).await?;
                self.counters.lists.fetch_add(u64::from(count % 1000 == 999), Ordering::Relaxed);
                Ok(next.map(|found| (found, (listing, count + 1))))
            }
        })
        .boxed()
    }

    /// Waits no longer than the limit. A request that is given up may still take effect.
    async fn limited<T>(
        &self,
        key: &Path,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.timeout, request).await {
            Ok(outcome) => outcome.map_err(|error| StoreError::of(key, &error)),
            Err(_) => Err(StoreError::Unavailable {
                key: key.to_string(),
                reason: format!("no answer within {} s", self.timeout.as_secs_f32()),
            }),
        }
    }

    /// The whole object, or `None` when there is none of this key, **or no such bucket**.
    pub(super) async fn get(&self, key: &Path) -> Result<Option<Bytes>, StoreError> {
        Ok(self.get_with_meta(key, GetOptions::default()).await?.map(|(bytes, _)| bytes))
    }

    pub(super) async fn get_with_meta(
        &self,
        key: &Path,
        options: GetOptions,
    ) -> Result<Option<(Bytes, ObjectMeta)>, StoreError> {
        self.counters.gets.fetch_add(1, Ordering::Relaxed);
        let outcome = self
            .limited(key, async {
                let result = self.store.inner().get_opts(key, options).await?;
                let meta = result.meta.clone();
                Ok((result.bytes().await?, meta))
            })
            .await;
        match outcome {
            Ok((bytes, meta)) => {
                self.counters.bytes_got.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Ok(Some((bytes, meta)))
            }
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A part of an object that is there.
    pub(super) async fn get_range(&self, key: &Path, offset: u64, size: u64) -> Result<Bytes, StoreError> {
        let range = Some(GetRange::Bounded(offset..offset + size));
        let options = GetOptions { range, ..GetOptions::default() };
        match self.get_with_meta(key, options).await? {
            Some((bytes, _)) => Ok(bytes),
            None => Err(StoreError::NotFound { key: key.to_string() }),
        }
    }

    pub(super) async fn put(&self, key: &Path, bytes: Bytes) -> Result<(), StoreError> {
        self.count_put(bytes.len());
        self.limited(key, self.store.inner().put(key, PutPayload::from_bytes(bytes))).await.map(drop)
    }

    fn count_put(&self, bytes: usize) {
        self.counters.puts.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_put.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Creates a key, with bytes that are the caller's alone. A store may say that the key exists because of the caller's own first try,
    /// and may take a request whose answer is lost: in both cases the bytes that are there decide.
    pub(super) async fn create(&self, key: &Path, bytes: Bytes) -> Result<Created, StoreError> {
        self.count_put(bytes.len());
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let payload = PutPayload::from_bytes(bytes.clone());
        let error = match self.limited(key, self.store.inner().put_opts(key, payload, options)).await {
            Ok(_) => return Ok(Created::Own),
            Err(error @ (StoreError::Exists { .. } | StoreError::Unavailable { .. })) => error,
            Err(error) => return Err(error),
        };
        match self.get(key).await {
            Ok(Some(found)) if found == bytes => Ok(Created::Own),
            Ok(Some(found)) => Ok(Created::Other(found)),
            // The write has not arrived, or the key existed and is gone: somebody cleans up.
            Ok(None) | Err(_) => Ok(Created::Unknown(error)),
        }
    }

    /// Writes a key that is the caller's alone, in parts when it is long.
    pub(super) fn upload(&self, key: &Path) -> Upload<'_> {
        Upload {
            bucket: self,
            key: key.clone(),
            parts: None,
            held: Vec::new(),
            held_bytes: 0,
            written: Written::default(),
        }
    }

    pub(super) async fn delete_all(&self, keys: Vec<Path>) -> Result<(), StoreError> {
        futures_util::stream::iter(keys)
            .map(|key| async move { self.delete(&key).await })
            .buffer_unordered(REQUESTS_AT_ONCE)
            .try_collect()
            .await
    }

    pub(super) async fn delete(&self, key: &Path) -> Result<(), StoreError> {
        self.counters.deletes.fetch_add(1, Ordering::Relaxed);
        match self.limited(key, self.store.inner().delete(key)).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn head(&self, key: &Path) -> Result<Option<ObjectMeta>, StoreError> {
        self.counters.gets.fetch_add(1, Ordering::Relaxed);
        match self.limited(key, self.store.inner().head(key)).await {
            Ok(meta) => Ok(Some(meta)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Up to [`LISTED_MAX`] keys below `prefix` that lie behind `after`, in no order that could be relied on.
    pub(super) async fn list(
        &self,
        prefix: &Path,
        after: Option<&Path>,
    ) -> Result<Vec<ObjectMeta>, StoreError> {
        self.counters.lists.fetch_add(1, Ordering::Relaxed);
        let store = self.store.inner();
        let found = match after {
            Some(after) => store.list_with_offset(Some(prefix), after),
            None => store.list(Some(prefix)),
        };
        let found: Vec<ObjectMeta> = self.limited(prefix, found.take(LISTED_MAX).try_collect()).await?;
        self.counters.lists.fetch_add(found.len() as u64 / 1000, Ordering::Relaxed);
        Ok(found)
    }
}

/// An object that is written as its bytes come, holding one part of them.
pub(super) struct Upload<'a> {
    bucket: &'a Bucket,
    key: Path,
    parts: Option<Box<dyn object_store::MultipartUpload>>,
    held: Vec<Bytes>,
    held_bytes: usize,
    written: Written,
}

impl Upload<'_> {
    pub(super) async fn push(&mut self, chunks: Vec<Bytes>) -> Result<(), StoreError> {
        self.held_bytes += chunks.iter().map(Bytes::len).sum::<usize>();
        self.held.extend(chunks);
        if self.held_bytes < MULTIPART_BYTES {
            return Ok(());
        }
        self.part().await
    }

    async fn part(&mut self) -> Result<(), StoreError> {
        self.written.add(&self.held);
        let payload: PutPayload = std::mem::take(&mut self.held).into_iter().collect();
        self.bucket.count_put(std::mem::take(&mut self.held_bytes));
        if self.parts.is_none() {
            let begun = self.bucket.store.inner().put_multipart(&self.key);
            self.parts = Some(self.bucket.limited(&self.key, begun).await?);
        }
        let parts = self.parts.as_mut().expect("begun above");
        self.bucket.limited(&self.key, parts.put_part(payload)).await
    }

    /// Makes the object whole. On an error nothing, or the whole object, is there; parts that are left are the bucket's to
    /// remove.
    pub(super) async fn finish(mut self) -> Result<(), StoreError> {
        if self.parts.is_none() {
            let bytes: Bytes = std::mem::take(&mut self.held).concat().into();
            return self.bucket.put(&self.key, bytes).await;
        }
        if self.held_bytes > 0 {
            self.part().await?;
        }
        let mut parts = self.parts.take().expect("looked at above");
        self.bucket.counters.puts.fetch_add(1, Ordering::Relaxed);
        let Err(error) = self.bucket.limited(&self.key, parts.complete()).await else { return Ok(()) };
        // Its answer may be lost; the library cannot complete it twice.
        self.bucket.counters.gets.fetch_add(1, Ordering::Relaxed);
        let find = self.written.find(self.bucket.store.inner(), &self.key);
        match tokio::time::timeout(self.bucket.timeout, find).await {
            Ok(Ok(Some(_))) => Ok(()),
            _ => Err(error),
        }
    }

    /// Gives up what was begun, as well as the store lets it.
    pub(super) async fn abort(mut self) {
        if let Some(mut parts) = self.parts.take() {
            let _ = self.bucket.limited(&self.key, parts.abort()).await;
        }
    }
}

/// The number that a key of the log or a manifest ends in.
pub(super) fn number_of(key: &Path) -> Option<u64> {
    let name = key.filename()?;
    (name.len() == 20).then(|| name.parse().ok()).flatten()
}

/// The name of a run, from its key.
pub(super) fn run_name_of(key: &Path) -> Option<RunName> {
    let (manifest, nonce) = key.filename()?.split_once('-')?;
    let is_name = manifest.len() == 20 && nonce.len() == 16;
    let name = RunName { manifest: manifest.parse().ok()?, nonce: u64::from_str_radix(nonce, 16).ok()? };
    is_name.then_some(name)
}

/// Bytes of `key` that contradict themselves.
pub(super) fn damaged(key: &Path, damage: super::CatalogueDamage) -> CatalogueError {
    CatalogueError::Damaged { key: key.to_string(), damage }
}
