//! A local directory, with a bound on the threads that wait for it.
//!
//! A directory may be on a mount that hangs (NFS). Then a request is given up and its thread stays in the system call; without a bound,
//! requests that follow would take every thread that the process has for work that blocks.

use std::fmt;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Requests that may be under way at once, abandoned ones included.
const AT_ONCE_MAX: usize = 6;
/// Keys of a list that are read ahead.
const LISTED_AHEAD: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    inner: Arc<S>,
    places: Arc<Semaphore>,
}

impl Bounded<LocalFileSystem> {
    pub fn new(inner: LocalFileSystem) -> Self {
        Bounded::around(Arc::new(inner))
    }
}

impl<S> Bounded<S> {
    fn around(inner: Arc<S>) -> Bounded<S> {
        Bounded { inner, places: Arc::new(Semaphore::new(AT_ONCE_MAX)) }
    }

    /// Does a request in a task of its own, which keeps its place until the system has answered, also when the caller has gone.
    async fn within<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        within(self.places.clone(), request).await
    }
}

async fn place(places: Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
    places.acquire_owned().await.map_err(|closed| generic(closed.into()))
}

async fn within<T: Send + 'static>(
    places: Arc<Semaphore>,
    request: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let place = place(places).await?;
    let task = tokio::spawn(async move {
        let outcome = request.await;
        drop(place);
        outcome
    });
    match task.await {
        Ok(outcome) => outcome,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime ends.
        Err(error) => Err(generic(error.into())),
    }
}

fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic { store: "LocalFileSystem", source }
}

impl<S: fmt::Display> fmt::Display for Bounded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait::async_trait]
impl<S: ObjectStore> ObjectStore for Bounded<S> {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let (inner, key) = (self.inner.clone(), key.clone());
        self.within(async move { inner.put_opts(&key, payload, options).await }).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (inner, key) = (self.inner.clone(), key.clone());
        let inner = self.within(async move { inner.put_multipart_opts(&key, options).await }).await?;
        Ok(Box::new(BoundedUpload { inner, places: self.places.clone() }))
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        let (inner, key) = (self.inner.clone(), key.clone());
        self.within(async move { inner.get_opts(&key, options).await }).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, places) = (self.inner.clone(), self.places.clone());
        let deleted = keys.then(move |key| {
            let (inner, places) = (inner.clone(), places.clone());
            async move {
                let key = key?;
                let of_task = key.clone();
                within(places, async move { inner.delete(&of_task).await }).await?;
                Ok(key)
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (inner, places, prefix) = (self.inner.clone(), self.places.clone(), prefix.cloned());
        let listing = async move {
            let place = match place(places).await {
                Ok(place) => place,
                Err(error) => return futures_util::stream::once(async { Err(error) }).boxed(),
            };
            let (found, mut listed) = mpsc::channel(LISTED_AHEAD);
            // Ends with the list, or when nobody reads it any more.
            tokio::spawn(async move {
                let mut listing = inner.list(prefix.as_ref());
                while let Some(next) = listing.next().await
                    && found.send(next).await.is_ok()
                {}
                drop(place);
            });
            futures_util::stream::poll_fn(move |context| listed.poll_recv(context)).boxed()
        };
        futures_util::stream::once(listing).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (inner, prefix) = (self.inner.clone(), prefix.cloned());
        self.within(async move { inner.list_with_delimiter(prefix.as_ref()).await }).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (inner, from, to) = (self.inner.clone(), from.clone(), to.clone());
        self.within(async move { inner.copy_opts(&from, &to, options).await }).await
    }
}

/// An upload whose parts are bounded with everything else; its end is as many as there are uploads.
#[derive(Debug)]
struct BoundedUpload {
    inner: Box<dyn MultipartUpload>,
    places: Arc<Semaphore>,
}

#[async_trait::async_trait]
impl MultipartUpload for BoundedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.inner.put_part(data);
        Box::pin(within(self.places.clone(), part))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// A mount that hangs: a request never ends.
    #[derive(Debug, Default)]
    struct Hung {
        under_way: AtomicUsize,
    }

    impl fmt::Display for Hung {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("hung")
        }
    }

    impl Hung {
        async fn hang<T>(&self) -> T {
            self.under_way.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        }
    }

    #[async_trait::async_trait]
    impl ObjectStore for Hung {
        async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
            self.hang().await
        }
        async fn put_multipart_opts(
            &self,
            _: &Path,
            _: PutMultipartOptions,
        ) -> Result<Box<dyn MultipartUpload>> {
            self.hang().await
        }
        async fn get_opts(&self, _: &Path, _: GetOptions) -> Result<GetResult> {
            self.hang().await
        }
        fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
            self.under_way.fetch_add(1, Ordering::SeqCst);
            keys.chain(futures_util::stream::pending()).skip(1).boxed()
        }
        fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            self.under_way.fetch_add(1, Ordering::SeqCst);
            futures_util::stream::pending().boxed()
        }
        async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
            self.hang().await
        }
        async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
            self.hang().await
        }
    }

    /// However many requests are given up, no more than the bound wait for the system.
    #[tokio::test(start_paused = true)]
    async fn a_mount_that_hangs_takes_no_more_threads_than_the_bound() {
        let store = Bounded::around(Arc::new(Hung::default()));
        let key = Path::from("key");
        for _ in 0..20 {
            let impatient = Duration::from_secs(75);
            assert!(tokio::time::timeout(impatient, store.get(&key)).await.is_err());
            assert!(tokio::time::timeout(impatient, store.put(&key, "x".into())).await.is_err());
            assert!(tokio::time::timeout(impatient, store.delete(&key)).await.is_err());
            assert!(tokio::time::timeout(impatient, store.list(None).next()).await.is_err());
        }
        assert_eq!(store.inner.under_way.load(Ordering::SeqCst), AT_ONCE_MAX);
    }

    #[tokio::test]
    async fn a_directory_is_as_it_is_without_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        let store = Bounded::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap());
        for number in 0..1000 {
            store.put(&Path::from(format!("a/{number:04}")), "x".into()).await.unwrap();
        }
        // A list that is not read to its end gives its place back.
        for _ in 0..20 {
            assert!(store.list(None).next().await.unwrap().is_ok());
        }
        assert_eq!(store.list(Some(&Path::from("a"))).count().await, 1000);
        store.delete(&Path::from("a/0007")).await.unwrap();
        assert!(matches!(store.get(&Path::from("a/0007")).await, Err(Error::NotFound { .. })));
        let mut upload = store.put_multipart(&Path::from("b")).await.unwrap();
        upload.put_part("one".into()).await.unwrap();
        upload.put_part("two".into()).await.unwrap();
        upload.complete().await.unwrap();
        assert_eq!(store.get(&Path::from("b")).await.unwrap().bytes().await.unwrap(), "onetwo");
    }
}
