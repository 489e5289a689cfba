//! Writes one object: at once, or in parts.
//!
//! # Invariants
//! 1. A key is written by the tierer that reserved it, and by no other: an object of the same length that is there after a lost
//!    answer is this one.
//! 2. Parts of an object that fails are given up. If that fails too, or the process ends, the bucket's rule for incomplete uploads
//!    has to (the library cannot list them).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bindery_tiering::store::{Store, StoreError};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, MultipartUpload, ObjectStoreExt, PutMode, PutOptions, PutPayload, PutResult,
};

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
    size_bytes: u64,
}

impl Upload {
    pub fn new(store: Store, name: &str, meter: Arc<Meter>) -> Upload {
        let key = store.key(name);
        Upload { store, key, meter, parts: None, size_bytes: 0 }
    }

    /// Writes the whole object, and returns its entity tag.
    pub async fn whole(&mut self, chunks: Vec<Bytes>) -> Result<Option<String>, StoreError> {
        self.size_bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
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
            if let Some(tag) = self.found().await {
                return Ok(tag);
            }
            if tries >= TRIES || matches!(error, StoreError::Exists { .. }) {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// Whether the object is there after all: its tag.
    async fn found(&mut self) -> Option<Option<String>> {
        self.meter.get();
        let options = GetOptions { head: true, ..GetOptions::default() };
        let found = limited(&self.key, self.store.inner().get_opts(&self.key, options)).await.ok()?;
        (found.meta.size == self.size_bytes).then_some(found.meta.e_tag)
    }

    /// Writes the next part.
    pub async fn part(&mut self, chunks: Vec<Bytes>) -> Result<(), StoreError> {
        if self.parts.is_none() {
            self.meter.put_nothing();
            let begun = limited(&self.key, self.store.inner().put_multipart(&self.key)).await?;
            self.parts = Some(begun);
        }
        let payload = PutPayload::from_iter(chunks);
        self.meter.put(payload.content_length());
        self.size_bytes += payload.content_length() as u64;
        let parts = self.parts.as_mut().expect("it was just begun");
        let part = parts.put_part(payload);
        limited(&self.key, part).await
    }

    /// Writes the last part, puts the object together, and returns its entity tag.
    pub async fn last_part(&mut self, chunks: Vec<Bytes>) -> Result<Option<String>, StoreError> {
        self.part(chunks).await?;
        let mut pause = RETRY_PAUSE;
        let mut tries = 0;
        loop {
            self.meter.put_nothing();
            let mut parts = self.parts.take().expect("a part was written");
            let completed = limited(&self.key, parts.complete()).await;
            self.parts = Some(parts);
            let error = match completed {
                Ok(PutResult { e_tag, .. }) => return Ok(e_tag),
                Err(error) => error,
            };
            tries += 1;
            if let Some(tag) = self.found().await {
                return Ok(tag);
            }
            if tries >= TRIES || !error.is_transient() {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// Gives up the parts that were written.
    pub async fn abort(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        self.meter.delete();
        if let Err(error) = limited(&self.key, parts.abort()).await {
            tracing::warn!(%error, "parts of an object that was given up stay until the bucket's rule removes them");
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
