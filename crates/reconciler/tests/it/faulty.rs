//! A store that fails as stores do: before it did something, or after.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bindery_io::SeededRandom;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// Which requests fail.
#[derive(Debug, Default)]
pub struct Faults {
    /// One request of so many fails before it has an effect; 0 for none.
    pub fail_every: AtomicU64,
    /// One request of so many fails after its effect.
    pub lose_every: AtomicU64,
    /// Each of the four steps of an upload in parts fails once, in turn: the beginning, a part, the completion, giving up.
    pub steps: AtomicBool,
    /// Nothing answers.
    pub hangs: AtomicBool,
    /// Objects cannot be deleted.
    pub denies_deletions: AtomicBool,
    pub failed: AtomicU64,
    begun: AtomicU64,
}

#[derive(Debug)]
pub struct Faulty {
    pub inner: Arc<dyn ObjectStore>,
    pub faults: Arc<Faults>,
    pub random: SeededRandom,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that fails")
    }
}

fn failure() -> Error {
    Error::Generic { store: "faulty", source: "503 SlowDown".into() }
}

#[derive(PartialEq)]
enum Fate {
    Works,
    Fails,
    Lost,
}

impl Faulty {
    async fn fate(&self) -> Fate {
        if self.faults.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let is_one = |every: &AtomicU64| match every.load(Ordering::Relaxed) {
            0 => false,
            every => self.random.below(every) == 0,
        };
        let fate = match (is_one(&self.faults.fail_every), is_one(&self.faults.lose_every)) {
            (true, _) => Fate::Fails,
            (false, true) => Fate::Lost,
            (false, false) => Fate::Works,
        };
        if fate != Fate::Works {
            self.faults.failed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(self.random.below(20))).await;
        }
        fate
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let fate = self.fate().await;
        if fate == Fate::Fails {
            return Err(failure());
        }
        let result = self.inner.put_opts(key, payload, options).await;
        if fate == Fate::Lost { Err(failure()) } else { result }
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let turn = match self.faults.steps.load(Ordering::Relaxed) {
            true => self.faults.begun.fetch_add(1, Ordering::Relaxed),
            false => u64::MAX,
        };
        if turn == 0 || self.fate().await == Fate::Fails {
            self.faults.failed.fetch_add(1, Ordering::Relaxed);
            return Err(failure());
        }
        let inner = self.inner.put_multipart_opts(key, options).await?;
        Ok(Box::new(Upload { inner, turn, faults: self.faults.clone() }))
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        match self.fate().await {
            Fate::Works => self.inner.get_opts(key, options).await,
            Fate::Fails | Fate::Lost => Err(failure()),
        }
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        if !self.faults.denies_deletions.load(Ordering::Relaxed) {
            return self.inner.delete_stream(keys);
        }
        let denied = |key: Path| Error::PermissionDenied { path: key.to_string(), source: "403".into() };
        keys.map(move |key| key.and_then(|key| Err(denied(key)))).boxed()
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
struct Upload {
    inner: Box<dyn MultipartUpload>,
    turn: u64,
    faults: Arc<Faults>,
}

impl Upload {
    fn fails(&self, turn: u64) -> bool {
        let fails = self.turn == turn;
        self.faults.failed.fetch_add(u64::from(fails), Ordering::Relaxed);
        fails
    }
}

#[async_trait::async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        // Turn 3 is for giving up, which a failed part leads to.
        if self.fails(1) || self.turn == 3 {
            return Box::pin(async { Err(failure()) });
        }
        self.inner.put_part(payload)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if self.fails(2) {
            // It was done, and nobody hears of it.
            self.inner.complete().await?;
            return Err(failure());
        }
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        if self.fails(3) {
            return Err(failure());
        }
        self.inner.abort().await
    }
}
