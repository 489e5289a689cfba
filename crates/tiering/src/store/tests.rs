use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bindery_io::{SystemClock, SystemRandom};
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::*;

/// What a [`Liar`] does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// Takes conditions for decoration, as several servers do.
    IgnoresConditions,
    /// Compares the version when a request comes, and not when it writes.
    LosesUpdates,
    /// Says that it deleted.
    KeepsWhatIsDeleted,
    /// Gives the beginning for every range.
    WrongRanges,
    /// Answers one conditional create of ten as if it had come too late, having done it.
    LosesAnswers,
    /// Has no compare and swap.
    OffersLess,
}

#[derive(Debug)]
struct Liar {
    lie: Lie,
    inner: InMemory,
    asked: AtomicUsize,
}

impl std::fmt::Display for Liar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.lie)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Liar {
    async fn put_opts(&self, key: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let is_update = matches!(options.mode, PutMode::Update(_));
        match self.lie {
            Lie::IgnoresConditions => options.mode = PutMode::Overwrite,
            Lie::LosesUpdates if is_update => options.mode = PutMode::Overwrite,
            Lie::OffersLess if is_update => {
                return Err(object_store::Error::NotImplemented {
                    operation: "update".into(),
                    implementer: "it".into(),
                });
            }
            Lie::LosesAnswers if options.mode == PutMode::Create && asked % 10 == 3 => {
                self.inner.put_opts(key, payload.clone(), options.clone()).await?;
            }
            _ => {}
        }
        tokio::task::yield_now().await;
        self.inner.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, mut options: GetOptions) -> Result<GetResult> {
        if let (Lie::WrongRanges, Some(object_store::GetRange::Bounded(range))) = (self.lie, &options.range) {
            options.range = Some(Range { start: 0, end: range.end - range.start }.into());
        }
        let result = self.inner.get_opts(key, options).await;
        tokio::task::yield_now().await;
        result
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        if self.lie == Lie::KeepsWhatIsDeleted { keys } else { self.inner.delete_stream(keys) }
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

async fn tried(inner: Arc<dyn ObjectStore>) -> (std::result::Result<(), CheckError>, Vec<Checked>, usize) {
    let store = Store::new("s3://bucket/some/prefix".parse().unwrap(), inner.clone());
    let mut passed = Vec::new();
    let outcome =
        check(&store, &SystemClock::new(), &SystemRandom, |checked| passed.push(checked.clone())).await;
    let left = futures_util::StreamExt::count(inner.list(None)).await;
    (outcome, passed, left)
}

async fn with(lie: Lie) -> (std::result::Result<(), CheckError>, Vec<Checked>) {
    let liar = Liar { lie, inner: InMemory::new(), asked: AtomicUsize::new(0) };
    let (outcome, passed, _) = tried(Arc::new(liar)).await;
    (outcome, passed)
}

/// Store invariant 3, and nothing is left.
#[tokio::test]
async fn a_store_that_keeps_its_promises_passes_and_is_left_as_it_was() {
    let (outcome, passed, left) = tried(Arc::new(InMemory::new())).await;
    outcome.unwrap();
    assert_eq!((passed.len(), left), (6, 0));
    assert!(
        passed.iter().all(|checked| checked.verdict == Verdict::Honoured && checked.requests > 0),
        "{passed:?}"
    );
}

#[tokio::test]
async fn a_local_directory_passes_without_compare_and_swap() {
    let dir = tempfile::tempdir().unwrap();
    let url: StoreUrl = format!("file://{}", dir.path().display()).parse().unwrap();
    let store = open(&url, &StoreOptions::default()).unwrap();
    let mut verdicts = Vec::new();
    check(&store, &SystemClock::new(), &SystemRandom, |checked| {
        verdicts.push((checked.check, checked.verdict.clone()))
    })
    .await
    .unwrap();
    let not_offered: Vec<Check> = verdicts
        .iter()
        .filter(|(_, verdict)| *verdict == Verdict::NotOffered)
        .map(|(check, _)| *check)
        .collect();
    assert_eq!((verdicts.len(), not_offered), (6, vec![Check::CompareAndSwap]));
}

/// Store invariant 3: each lie is found, and named.
#[tokio::test]
async fn a_store_that_breaks_a_promise_is_refused() {
    for (lie, check, words) in [
        (Lie::IgnoresConditions, Check::ConditionalCreate, "created again"),
        (Lie::LosesUpdates, Check::CompareAndSwap, "updates were acknowledged"),
        (Lie::KeepsWhatIsDeleted, Check::Delete, "still there"),
        (Lie::WrongRanges, Check::Read, "other bytes"),
    ] {
        let (outcome, _) = with(lie).await;
        match outcome {
            Err(CheckError::Dishonoured { check: found, ref what }) => {
                assert!(found == check && what.contains(words), "{lie:?}: {outcome:?}");
            }
            _ => panic!("{lie:?}: {outcome:?}"),
        }
    }
}

/// Lost answers, which happen everywhere, and missing operations are no broken promise.
#[tokio::test]
async fn lost_answers_and_missing_operations_are_no_lies() {
    let (outcome, _) = with(Lie::LosesAnswers).await;
    outcome.unwrap();
    let (outcome, passed) = with(Lie::OffersLess).await;
    outcome.unwrap();
    assert!(passed.iter().any(|checked| checked.verdict == Verdict::NotOffered));
}

#[tokio::test]
async fn a_directory_that_is_missing_is_said_at_once() {
    let error = open(&"file:///no/such/directory".parse().unwrap(), &StoreOptions::default()).unwrap_err();
    assert!(error.to_string().contains("make the directory first"), "{error}");
}

/// A server that is not there: an error that names it, within the limits.
#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let builder = object_store::aws::AmazonS3Builder::new()
        .with_endpoint("http://127.0.0.1:1")
        .with_allow_http(true)
        .with_bucket_name("bucket")
        .with_access_key_id("key")
        .with_secret_access_key("secret-words")
        .with_retry(object_store::RetryConfig { max_retries: 1, ..object_store::RetryConfig::default() });
    let url: StoreUrl = "s3://bucket/p".parse().unwrap();
    // Chooses the cryptography that the client needs.
    drop(open(&url, &StoreOptions::default()));
    let store = Store::new(url, Arc::new(builder.build().unwrap()));
    let outcome = check(&store, &SystemClock::new(), &SystemRandom, |checked| panic!("{checked:?}")).await;
    let error = outcome.unwrap_err();
    let CheckError::Failed { check: Check::Write, error: StoreError::Unavailable { .. } } = &error else {
        panic!("{error:?}");
    };
    let text = error.to_string();
    assert!(text.contains("cannot be reached") && !text.contains("secret-words"), "{text}");
}
