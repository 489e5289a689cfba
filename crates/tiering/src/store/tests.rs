use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bindery_io::{SystemClock, SystemRandom};
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::*;
use crate::ClusterId;

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
    /// Does what is asked and loses one answer of twenty, and refuses one request of fifty for want of time.
    Lossy,
    /// Lets a second creator win, in one race of a few.
    TwoWinners,
    /// Says of keys that were written that there are none, for ten requests.
    AwayForAWhile,
    /// Lists nothing.
    ListsNothing,
    /// Gives what was written before.
    Stale,
    /// Takes no deletion.
    DeniesDeletion,
    /// Takes nothing that is named `broken-promise`.
    TakesNoNote,
}

#[derive(Debug)]
struct Liar {
    lie: Lie,
    inner: InMemory,
    asked: AtomicUsize,
}

impl Liar {
    fn new(lie: Lie, seed: usize) -> Arc<Liar> {
        Arc::new(Liar { lie, inner: InMemory::new(), asked: AtomicUsize::new(seed * 7919) })
    }

    /// The fate of the next request that may be repeated: the client repeats it by itself, once here.
    fn fate_of_repeated(&self) -> (bool, bool) {
        if self.fate() == (false, false) { (false, false) } else { self.fate() }
    }

    /// What becomes of the next request: `(refused, its answer is lost)`.
    fn fate(&self) -> (bool, bool) {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) as u64;
        // A generator of its own (splitmix64), so that a seed repeats.
        let mut drawn = asked.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) ^ (drawn >> 31);
        let is_lossy = self.lie == Lie::Lossy;
        (is_lossy && drawn.is_multiple_of(50), is_lossy && drawn % 20 == 1)
    }
}

fn lost() -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: "connection reset".into() }
}

fn denied() -> object_store::Error {
    object_store::Error::PermissionDenied { path: "x".into(), source: "AccessDenied".into() }
}

impl std::fmt::Display for Liar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.lie)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Liar {
    async fn put_opts(&self, key: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        let (is_refused, is_lost) = match options.mode {
            PutMode::Overwrite => self.fate_of_repeated(),
            PutMode::Create | PutMode::Update(_) => self.fate(),
        };
        let asked = self.asked.load(Ordering::Relaxed);
        if is_refused {
            return Err(lost());
        }
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
            Lie::TwoWinners if options.mode == PutMode::Create && asked % 37 == 5 => {
                options.mode = PutMode::Overwrite;
            }
            Lie::Stale if options.mode == PutMode::Overwrite && self.inner.head(key).await.is_ok() => {
                return Ok(PutResult { e_tag: None, version: None, extensions: Default::default() });
            }
            Lie::TakesNoNote if key.as_ref().ends_with("broken-promise") => return Err(denied()),
            Lie::TakesNoNote => options.mode = PutMode::Overwrite,
            _ => {}
        }
        tokio::task::yield_now().await;
        let done = self.inner.put_opts(key, payload, options).await;
        if is_lost { Err(lost()) } else { done }
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
        let (is_refused, is_lost) = self.fate_of_repeated();
        let asked = self.asked.load(Ordering::Relaxed);
        if self.lie == Lie::AwayForAWhile && (2..12).contains(&asked) {
            return Err(object_store::Error::NotFound { path: key.to_string(), source: "NoSuchKey".into() });
        }
        let result = self.inner.get_opts(key, options).await;
        tokio::task::yield_now().await;
        if is_refused || is_lost { Err(lost()) } else { result }
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        use futures_util::StreamExt;
        match self.lie {
            Lie::KeepsWhatIsDeleted => keys,
            Lie::DeniesDeletion => keys.map(|_| Err(denied())).boxed(),
            Lie::Lossy => {
                let (is_refused, is_lost) = self.fate_of_repeated();
                if is_refused {
                    return futures_util::stream::once(async { Err(lost()) }).boxed();
                }
                let deleted = self.inner.delete_stream(keys);
                if is_lost { deleted.map(|_| Err(lost())).boxed() } else { deleted }
            }
            _ => self.inner.delete_stream(keys),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        use futures_util::StreamExt;
        match self.lie {
            Lie::ListsNothing => futures_util::stream::empty().boxed(),
            Lie::Lossy if self.fate_of_repeated() != (false, false) => {
                futures_util::stream::once(async { Err(lost()) }).boxed()
            }
            _ => self.inner.list(prefix),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn url() -> StoreUrl {
    "s3://bucket/some/prefix".parse().unwrap()
}

const ALL: CheckOptions = CheckOptions { cluster: None, compare_and_swap: true };

async fn left(inner: &dyn ObjectStore) -> Vec<String> {
    let listed: Vec<_> = futures_util::StreamExt::collect(inner.list(None)).await;
    listed.into_iter().map(|found: Result<ObjectMeta>| found.unwrap().location.to_string()).collect()
}

async fn tried(inner: Arc<dyn ObjectStore>) -> (std::result::Result<(), CheckError>, Vec<Checked>) {
    let store = Store::new(url(), inner);
    let mut passed = Vec::new();
    let outcome =
        check(&store, &ALL, &SystemClock::new(), &SystemRandom, |checked| passed.push(checked.clone())).await;
    (outcome, passed)
}

async fn with(lie: Lie) -> (std::result::Result<(), CheckError>, Vec<Checked>) {
    tried(Liar::new(lie, 0)).await
}

/// Store invariant 3, and nothing is left.
#[tokio::test]
async fn a_store_that_keeps_its_promises_passes_and_is_left_as_it_was() {
    let inner = Arc::new(InMemory::new());
    let (outcome, passed) = tried(inner.clone()).await;
    outcome.unwrap();
    assert_eq!((passed.len(), left(&*inner).await), (6, Vec::new()));
    assert!(
        passed.iter().all(|checked| checked.verdict == Verdict::Honoured && checked.requests > 0),
        "{passed:?}"
    );
}

/// Rights may be limited to the keys of one cluster.
#[tokio::test]
async fn everything_lies_below_the_cluster() {
    let liar = Liar::new(Lie::DeniesDeletion, 0);
    let cluster: ClusterId = "00112233-4455-6677-8899-aabbccddeeff".parse().unwrap();
    let store = Store::new(url(), liar.clone());
    let options = CheckOptions { cluster: Some(cluster), compare_and_swap: false };
    let mut verdicts = Vec::new();
    let seen = |checked: &Checked| verdicts.push((checked.check, checked.verdict.clone()));
    check(&store, &options, &SystemClock::new(), &SystemRandom, seen).await.unwrap();
    assert!(matches!(verdicts.last(), Some((Check::Delete, Verdict::NotPermitted(_)))), "{verdicts:?}");
    assert_eq!(verdicts.len(), 5, "{verdicts:?}");
    let below = format!("some/prefix/{cluster}/check/");
    let left = left(&liar.inner).await;
    assert!(!left.is_empty() && left.iter().all(|key| key.starts_with(&below)), "{left:?}");
}

#[tokio::test]
async fn a_local_directory_passes_without_compare_and_swap() {
    let dir = tempfile::tempdir().unwrap();
    let url: StoreUrl = format!("file://{}", dir.path().display()).parse().unwrap();
    let store = open(&url, &StoreOptions::default()).unwrap();
    let mut verdicts = Vec::new();
    check(&store, &ALL, &SystemClock::new(), &SystemRandom, |checked| {
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

/// Store invariant 3: each lie is found, and named, and nothing is left.
#[tokio::test(start_paused = true)]
async fn a_store_that_breaks_a_promise_is_refused() {
    for (lie, check, words) in [
        (Lie::IgnoresConditions, Check::ConditionalCreate, "created again"),
        (Lie::TwoWinners, Check::ConditionalCreate, "of 16 creators of one key, 2"),
        (Lie::KeepsWhatIsDeleted, Check::Delete, "still there"),
        (Lie::WrongRanges, Check::Read, "other bytes"),
        (Lie::Stale, Check::Read, "earlier write"),
        (Lie::ListsNothing, Check::List, "the list has 0"),
    ] {
        let liar = Liar::new(lie, 0);
        let (outcome, _) = tried(liar.clone()).await;
        match outcome {
            Err(CheckError::Dishonoured { check: found, ref what }) => {
                assert!(found == check && what.contains(words), "{lie:?}: {outcome:?}");
            }
            _ => panic!("{lie:?}: {outcome:?}"),
        }
        if lie != Lie::KeepsWhatIsDeleted {
            assert_eq!(left(&liar.inner).await, Vec::<String>::new(), "{lie:?}");
        }
    }
}

/// The tier does not use compare and swap.
#[tokio::test(start_paused = true)]
async fn a_store_that_loses_updates_is_not_refused() {
    let (outcome, passed) = with(Lie::LosesUpdates).await;
    outcome.unwrap();
    let said = passed.iter().find(|checked| checked.check == Check::CompareAndSwap).unwrap();
    assert!(matches!(&said.verdict, Verdict::NotKept(what) if what.contains("acknowledged")), "{said:?}");
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

/// With one answer of twenty lost and one request of fifty refused, every check passes, and leaves nothing.
#[tokio::test(start_paused = true)]
async fn faults_fail_no_check() {
    for seed in 0..100 {
        let liar = Liar::new(Lie::Lossy, seed);
        let (outcome, _) = tried(liar.clone()).await;
        outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(left(&liar.inner).await, Vec::<String>::new(), "seed {seed}");
    }
}

/// A bucket of which a proxy says for a while that it has no keys has broken nothing.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_a_while_is_no_liar() {
    let (outcome, _) = with(Lie::AwayForAWhile).await;
    outcome.unwrap();
}

async fn admitted(
    inner: Arc<dyn ObjectStore>,
    gate: &Gate,
    cluster: Option<ClusterId>,
) -> std::result::Result<(), CheckError> {
    let options = CheckOptions { cluster, compare_and_swap: false };
    admit(&Store::new(url(), inner), &options, gate, &SystemClock::new(), &SystemRandom, |_| ()).await
}

/// The finding of one check holds for later ones, in this process and in others, until an operator clears it.
#[tokio::test(start_paused = true)]
async fn a_broken_promise_stays_until_it_is_cleared() {
    let of = |id: &str| Some(id.parse::<ClusterId>().unwrap());
    let cluster = of("00112233-4455-6677-8899-aabbccddeeff");
    let liar = Liar::new(Lie::IgnoresConditions, 0);
    let gate = Gate::default();
    let error = admitted(liar.clone(), &gate, cluster).await.unwrap_err();
    assert!(matches!(error, CheckError::Dishonoured { .. }), "{error}");
    // The same bucket, in which a race would go well now.
    let honest = Arc::new(liar.inner.fork());
    for gate in [&gate, &Gate::default()] {
        let error = admitted(honest.clone(), gate, cluster).await.unwrap_err();
        assert!(
            matches!(&error, CheckError::Known(broken) if broken.what.contains("created again")),
            "{error}"
        );
        assert!(error.to_string().contains("--clear"), "{error}");
    }
    admitted(honest.clone(), &Gate::default(), of("ffffffff-4455-6677-8899-aabbccddeeff")).await.unwrap();
    let store = Store::new(url(), honest.clone());
    assert_eq!(forgive(&store, None).await, Ok(1));
    assert_eq!(forgive(&store, cluster).await, Ok(0));
    admitted(honest.clone(), &gate, cluster).await.unwrap();
    assert_eq!(left(&*honest).await, Vec::<String>::new());
}

/// A check without a cluster speaks for all of them.
#[tokio::test(start_paused = true)]
async fn a_note_about_all_clusters_counts_for_each() {
    let liar = Liar::new(Lie::IgnoresConditions, 0);
    admitted(liar.clone(), &Gate::default(), None).await.unwrap_err();
    let cluster = "00112233-4455-6677-8899-aabbccddeeff".parse().unwrap();
    let error = admitted(Arc::new(liar.inner.fork()), &Gate::default(), Some(cluster)).await.unwrap_err();
    assert!(matches!(error, CheckError::Known(_)), "{error}");
}

/// Where the note cannot be written, the process remembers.
#[tokio::test(start_paused = true)]
async fn a_broken_promise_is_remembered_without_a_note() {
    let (liar, gate) = (Liar::new(Lie::TakesNoNote, 0), Gate::default());
    let error = admitted(liar.clone(), &gate, None).await.unwrap_err();
    assert!(matches!(error, CheckError::Dishonoured { .. }), "{error}");
    let honest = Arc::new(liar.inner.fork());
    for _ in 0..2 {
        let error = admitted(honest.clone(), &gate, None).await.unwrap_err();
        assert!(matches!(error, CheckError::Known(_)), "{error}");
    }
    // Now it could be written.
    assert!(left(&*honest).await.iter().any(|key| key.ends_with("broken-promise")));
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
    let outcome =
        check(&store, &ALL, &SystemClock::new(), &SystemRandom, |checked| panic!("{checked:?}")).await;
    let error = outcome.unwrap_err();
    let CheckError::Failed { check: Check::Write, error: StoreError::Unavailable { .. } } = &error else {
        panic!("{error:?}");
    };
    let text = error.to_string();
    assert!(text.contains("cannot be reached") && !text.contains("secret-words"), "{text}");
}
