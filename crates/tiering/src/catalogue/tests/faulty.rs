//! A store whose network is bad: requests fail before or behind their effect, are answered wrongly after a retry, hang, and arrive
//! late. And a power cut after so many requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bindery_io::{Random, SeededRandom};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Records that took effect, by their numbers: the first of each, so that one that is written where a record was deleted shows.
pub(super) type Written = Arc<Mutex<BTreeMap<u64, Bytes>>>;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    /// An error, and no effect.
    Refused,
    /// An error, and the effect.
    AnswerLost,
    /// The effect, and the answer of a second try.
    AnsweredTwice,
    /// No answer, and no effect.
    Hangs,
    /// An error, and the effect later.
    ArrivesLate,
}

#[derive(Debug)]
pub(super) enum Plan {
    /// Nothing goes wrong.
    Calm,
    /// Of a hundred requests, so many go wrong; all take their time.
    Bad(SeededRandom, u64),
    /// So many requests are done. The next one is done or not; of all behind it, none.
    Cut { left: usize, is_last_done: bool },
}

#[derive(Debug)]
pub(super) struct Faulty {
    pub inner: Arc<dyn ObjectStore>,
    pub written: Written,
    pub plan: Mutex<Plan>,
    pub asked: Mutex<usize>,
}

impl Faulty {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, written: Written, plan: Plan) -> Arc<Faulty> {
        Arc::new(Faulty { inner, written, plan: Mutex::new(plan), asked: Mutex::new(0) })
    }

    async fn fate(&self) -> Fate {
        let (fate, pause_ms) = self.drawn();
        if pause_ms > 0 {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
        if fate == Fate::Hangs {
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        fate
    }

    fn drawn(&self) -> (Fate, u64) {
        *self.asked.lock().unwrap() += 1;
        match &mut *self.plan.lock().unwrap() {
            Plan::Calm => (Fate::Done, 0),
            Plan::Bad(random, percent) => {
                let draw = random.next_u64();
                let pause_ms = draw >> 32 & 31;
                if draw % 100 >= *percent {
                    return (Fate::Done, pause_ms);
                }
                let fates =
                    [Fate::Refused, Fate::AnswerLost, Fate::AnsweredTwice, Fate::Hangs, Fate::ArrivesLate];
                (fates[(draw >> 16) as usize % fates.len()], pause_ms)
            }
            Plan::Cut { left: 0, is_last_done } => {
                let fate = if std::mem::take(is_last_done) { Fate::AnswerLost } else { Fate::Refused };
                (fate, 0)
            }
            Plan::Cut { left, .. } => {
                *left -= 1;
                (Fate::Done, 0)
            }
        }
    }
}

fn failure() -> Error {
    Error::Generic { store: "faulty", source: "500 internal error".into() }
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty")
    }
}

async fn put(
    inner: &dyn ObjectStore,
    written: &Written,
    key: &Path,
    payload: PutPayload,
    options: PutOptions,
) -> Result<PutResult> {
    let bytes = Bytes::from(payload.clone());
    let outcome = inner.put_opts(key, payload, options).await?;
    let number = key.as_ref().contains("/catalogue/log/").then(|| key.filename()?.parse().ok()).flatten();
    if let Some(number) = number {
        written.lock().unwrap().entry(number).or_insert(bytes);
    }
    Ok(outcome)
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let fate = self.fate().await;
        match fate {
            Fate::Refused | Fate::Hangs => return Err(failure()),
            Fate::ArrivesLate => {
                let (inner, written, key) = (self.inner.clone(), self.written.clone(), key.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    let _ = put(&*inner, &written, &key, payload, options).await;
                });
                return Err(failure());
            }
            Fate::Done | Fate::AnswerLost | Fate::AnsweredTwice => {}
        }
        let is_create = options.mode == PutMode::Create;
        let outcome = put(&*self.inner, &self.written, key, payload, options).await;
        match fate {
            Fate::AnswerLost => Err(failure()),
            Fate::AnsweredTwice if is_create => {
                Err(Error::AlreadyExists { path: key.to_string(), source: "412 precondition failed".into() })
            }
            _ => outcome,
        }
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        match self.fate().await {
            Fate::Done | Fate::AnsweredTwice => self.inner.put_multipart_opts(key, options).await,
            _ => Err(failure()),
        }
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        match self.fate().await {
            Fate::Done | Fate::AnsweredTwice => self.inner.get_opts(key, options).await,
            _ => Err(failure()),
        }
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.drawn().0 {
            Fate::Done | Fate::AnsweredTwice => self.inner.delete_stream(keys),
            Fate::AnswerLost => self.inner.delete_stream(keys).map(|_| Err(failure())).boxed(),
            _ => keys.map(|_| Err(failure())).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.drawn().0 {
            Fate::Done | Fate::AnsweredTwice => self.inner.list(prefix),
            _ => futures_util::stream::once(async { Err(failure()) }).boxed(),
        }
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.drawn().0 {
            Fate::Done | Fate::AnsweredTwice => self.inner.list_with_offset(prefix, offset),
            _ => futures_util::stream::once(async { Err(failure()) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
