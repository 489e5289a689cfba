//! Writes one object: at once, or in parts.
//!
//! # Invariants
//! 1. A key is written by the tierer that reserved it, and by no other: an object of the same length and with the same last bytes that is
//!    there after a lost answer is this one.
//! 2. Parts of an object that fails are given up. If that fails too, or the process ends, the bucket's rule for incomplete uploads
//!    has to (the library cannot list them).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bindery_tiering::store::{Arrived, Store, StoreError, Written};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, MultipartUpload, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult};

use super::meter::Meter;

/// For each request, with what the library retries: more than the store's own limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(75);
/// Tries of a write whose outcome is unknown.
const TRIES: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// One object that is being written.
pub(super) struct Upload {
    store: Store,
    key: Path,
    meter: Arc<Meter>,
    parts: Option<Box<dyn MultipartUpload>>,
    written: Written,
}

impl Upload {
    pub fn new(store: Store, name: &str, meter: Arc<Meter>) -> Upload {
        let key = store.key(name);
        Upload { store, key, meter, parts: None, written: Written::default() }
    }

    /// Writes the whole object, and returns its entity tag.
    pub async fn whole(&mut self, chunks: Vec<Bytes>) -> Result<Option<String>, StoreError> {
        self.written.add(&chunks);
        let payload = PutPayload::from_iter(chunks);
        let mut pause = RETRY_PAUSE;
        let mut tries = 0;
        loop {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            self.meter.put(payload.content_length());
            let put = self.store.inner().put_opts(&self.key, payload.clone(), options);
            let error = match limited(&self.key, put).await {
                Ok(PutResult { e_tag, .. }) => return Ok(e_tag),
                Err(error) => error,
            };
            tries += 1;
            let is_unknown = matches!(error, StoreError::Exists { .. } | StoreError::Unavailable { .. });
            if !is_unknown {
                return Err(error);
            }
            if let Some(Arrived { tag }) = self.found().await {
                return Ok(tag);
            }
            if tries >= TRIES || matches!(error, StoreError::Exists { .. }) {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// Whether the object is there after all.
    async fn found(&mut self) -> Option<Arrived> {
        self.meter.get();
        match tokio::time::timeout(REQUEST_TIMEOUT, self.written.find(self.store.inner(), &self.key)).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Writes the next part.
    pub async fn part(&mut self, chunks: Vec<Bytes>) -> Result<(), StoreError> {
        if self.parts.is_none() {
            self.meter.put_nothing();
            let begun = limited(&self.key, self.store.inner().put_multipart(&self.key)).await?;
            self.parts = Some(begun);
        }
        self.written.add(&chunks);
        let payload = PutPayload::from_iter(chunks);
        self.meter.put(payload.content_length());
        let parts = self.parts.as_mut().expect("it was just begun");
        let part = parts.put_part(payload);
        limited(&self.key, part).await
    }

    /// Writes the last part, puts the object together, and returns its entity tag.
    pub async fn last_part(&mut self, chunks: Vec<Bytes>) -> Result<Option<String>, StoreError> {
        self.part(chunks).await?;
        self.meter.put_nothing();
        let mut parts = self.parts.take().expect("a part was written");
        let completed = limited(&self.key, parts.complete()).await;
        self.parts = Some(parts);
        let error = match completed {
            Ok(PutResult { e_tag, .. }) => return Ok(e_tag),
            Err(error) => error,
        };
        // The library gave its list of parts away with the first try: a second one cannot succeed. But the first one may have, or may
        // do so any moment.
        let mut pause = RETRY_PAUSE;
        for _ in 0..TRIES {
            if let Some(Arrived { tag }) = self.found().await {
                return Ok(tag);
            }
            if !error.is_transient() {
                break;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(error)
    }

    /// Gives up the parts that were written.
    pub async fn abort(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        self.meter.delete();
        if let Err(error) = limited(&self.key, parts.abort()).await {
            tracing::warn!(%error, "cannot abort an upload: its parts stay, and take up space, until the bucket's \
             rule for incomplete uploads removes them");
        }
    }
}

pub(super) async fn limited<T>(
    key: &Path,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(outcome) => outcome.map_err(|error| StoreError::of(key, &error)),
        Err(_) => Err(StoreError::Unavailable {
            key: key.to_string(),
            reason: format!("no answer within {REQUEST_TIMEOUT:?}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use object_store::UploadPart;
    use object_store::memory::InMemory;

    use super::*;

    /// Parts whose completion is not answered, and cannot be repeated.
    #[derive(Debug)]
    struct Unanswered {
        inner: Box<dyn MultipartUpload>,
        completes: bool,
        tries: Arc<AtomicU32>,
    }

    #[async_trait::async_trait]
    impl MultipartUpload for Unanswered {
        fn put_part(&mut self, payload: PutPayload) -> UploadPart {
            self.inner.put_part(payload)
        }

        async fn complete(&mut self) -> object_store::Result<PutResult> {
            if self.tries.fetch_add(1, Ordering::Relaxed) == 0 && self.completes {
                self.inner.complete().await?;
            }
            Err(Error::Generic { store: "unanswered", source: "connection reset".into() })
        }

        async fn abort(&mut self) -> object_store::Result<()> {
            self.inner.abort().await
        }
    }

    /// The upload, how often it was completed, and the store.
    async fn upload(completes: bool) -> (Upload, Arc<AtomicU32>, Arc<InMemory>) {
        let inner = Arc::new(InMemory::new());
        let store = Store::new("s3://bucket".parse().unwrap(), inner.clone());
        let mut upload = Upload::new(store, "name", Arc::new(Meter::default()));
        let tries = Arc::new(AtomicU32::new(0));
        let parts = inner.put_multipart(&upload.key).await.unwrap();
        upload.parts = Some(Box::new(Unanswered { inner: parts, completes, tries: tries.clone() }));
        (upload, tries, inner)
    }

    #[tokio::test(start_paused = true)]
    async fn a_completion_whose_answer_is_lost_counts_when_the_object_is_there() {
        let (mut upload, tries, store) = upload(true).await;
        upload.part(vec![Bytes::from(vec![1; 1000])]).await.unwrap();
        let tag = upload.last_part(vec![Bytes::from_static(b"the end")]).await.unwrap();
        let found = store.head(&upload.key).await.unwrap();
        assert_eq!((found.size, found.e_tag), (1007, tag));
        assert_eq!(tries.load(Ordering::Relaxed), 1, "it is not completed twice");
    }

    /// Neither nothing nor something else of the same length.
    #[tokio::test(start_paused = true)]
    async fn a_completion_that_did_not_happen_is_an_error() {
        for other in [None, Some(vec![2; 1007])] {
            let (mut upload, tries, store) = upload(false).await;
            upload.part(vec![Bytes::from(vec![1; 1000])]).await.unwrap();
            if let Some(other) = other {
                store.put(&upload.key, other.into()).await.unwrap();
            }
            let error = upload.last_part(vec![Bytes::from_static(b"the end")]).await.unwrap_err();
            assert!(error.is_transient() && error.to_string().contains("connection reset"), "{error}");
            assert_eq!(tries.load(Ordering::Relaxed), 1);
        }
    }
}
