//! Finds where entries are in object storage, for a bookie: a catalogue that is opened when something is asked, and followed as far
//! as answers need.
//!
//! # Data flow
//! ```text
//! locate ─► bounded line ─► questions that wait, together ─► log followed, if an answer has to be newer ─► blocks of runs, all
//!           at once ─► extents of each
//! ```
//!
//! # Invariants
//! 1. Without a question no request is sent.
//! 2. An answer is that of the log as it was followed no longer before the question than the question allows. That no object has the entry, or
//!    that another ledger of the same id is in the catalogue, is answered only once the log was followed after the question.
//! 3. A catalogue that cannot be opened or followed is tried again after [`RETRY_PAUSE`]; questions meanwhile get the same error.
//! 4. A catalogue that was replaced by another copy is read from its beginning, or its questions fail.
//!
//! # Limits
//! Questions that wait: [`QUESTIONS_MAX`]. Memory: [`CatalogueOptions::cache_bytes_max`] and `facts_max`, the indexes of runs (a megabyte
//! for ten million extents), and the log behind the newest snapshot ([`CatalogueOptions::snapshot_rows`]).

use std::sync::Arc;
use std::time::Duration;

use bindery_io::{Clock, Random};
use bindery_types::tier::TierExtent;
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::{Catalogue, CatalogueError, CatalogueOptions, OpenMode, Requests};
use crate::ClusterId;
use crate::store::Store;

/// How many questions may wait. A further one is refused.
const QUESTIONS_MAX: usize = 1024;
/// How many questions load their blocks together: with seven runs, and in each a block for the row and one for the extents, 7 MiB.
const TOGETHER: usize = 8;
/// The pause between two tries to open or follow the catalogue.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The most extents in one answer. A reader that goes through a ledger asks once for so many.
pub const LOCATED_MAX: usize = 64;

/// Why it was not found out where an entry is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    /// Too many questions wait.
    #[error("too many look-ups in the catalogue wait already")]
    Busy,
    /// The process ends.
    #[error("it is being stopped")]
    Stopped,
    /// The caller's own limit: there was no answer within this time.
    #[error("no answer from the catalogue within {after:?}")]
    Late {
        /// The limit.
        after: Duration,
    },
    /// The catalogue has no object with the entry.
    #[error(
        "the catalogue has no object with entry {entry} of ledger {ledger}: bring the object back from a copy and rebuild the \
         catalogue (bindery tier rebuild), or delete the ledger"
    )]
    Absent {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
    },
    /// The catalogue has another ledger of this id, created at another time.
    #[error("the catalogue has another ledger of the id {ledger}, created at {found_ms} ms since 1970")]
    OtherLedger {
        /// The id.
        ledger: LedgerId,
        /// When that one was created.
        found_ms: i64,
    },
    /// The rows of the ledger cannot be read.
    #[error("where ledger {ledger} is in object storage cannot be read: {error}")]
    Damaged {
        /// The ledger.
        ledger: LedgerId,
        /// Why.
        error: Arc<CatalogueError>,
    },
    /// The catalogue cannot be read.
    #[error("{0}")]
    Catalogue(Arc<CatalogueError>),
}

impl LocateError {
    /// True when the catalogue can be read, and what it has of this ledger is the reason.
    pub fn is_of_ledger(&self) -> bool {
        match self {
            LocateError::Absent { .. } | LocateError::OtherLedger { .. } | LocateError::Damaged { .. } => {
                true
            }
            LocateError::Busy
            | LocateError::Stopped
            | LocateError::Late { .. }
            | LocateError::Catalogue(_) => false,
        }
    }
}

struct Question {
    ledger: LedgerId,
    entry: EntryId,
    created_ms: Option<i64>,
    /// The log has to have been followed at this time, or later.
    followed_from_ns: u64,
    asked_ns: u64,
    answer: oneshot::Sender<Result<Vec<TierExtent>, LocateError>>,
}

/// See the module. Dropping it ends its task.
pub struct Locator {
    questions: mpsc::Sender<Question>,
    requests: Arc<Mutex<Requests>>,
    clock: Arc<dyn Clock>,
}

impl Locator {
    /// Starts a task on `runtime` that opens the catalogue of `cluster` when it is asked something.
    pub fn start(
        store: Store,
        cluster: ClusterId,
        options: CatalogueOptions,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        runtime: &Handle,
    ) -> Locator {
        let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
        let of_task = clock.clone();
        let requests = Arc::new(Mutex::new(Requests::default()));
        let task = Task {
            requests: requests.clone(),
            store,
            cluster,
            options,
            clock: of_task,
            random,
            catalogue: None,
            followed_ns: 0,
            failed: None,
        };
        runtime.spawn(task.run(asked));
        Locator { questions, requests, clock }
    }

    /// Requests to the store since the catalogue was opened.
    pub fn requests(&self) -> Requests {
        *self.requests.lock()
    }

    /// Where `entry` of the ledger that was created at `created_ms` is, and entries behind it: extents that ascend without gaps, at most
    /// [`LOCATED_MAX`], of which the first has the entry. `None` for a creation time that is not known. The answer may be as old as
    /// `age_max`, unless it would be that the entry is in no object.
    ///
    /// Dropping the future withdraws the question.
    pub async fn locate(
        &self,
        ledger: LedgerId,
        entry: EntryId,
        created_ms: Option<i64>,
        age_max: Duration,
    ) -> Result<Vec<TierExtent>, LocateError> {
        let asked_ns = self.clock.monotonic_ns();
        let age_max_ns = u64::try_from(age_max.as_nanos()).unwrap_or(u64::MAX);
        let followed_from_ns = asked_ns.saturating_sub(age_max_ns);
        let (answer, answered) = oneshot::channel();
        let question = Question { ledger, entry, created_ms, followed_from_ns, asked_ns, answer };
        self.questions.try_send(question).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => LocateError::Busy,
            mpsc::error::TrySendError::Closed(_) => LocateError::Stopped,
        })?;
        answered.await.unwrap_or(Err(LocateError::Stopped))
    }
}

struct Task {
    requests: Arc<Mutex<Requests>>,
    store: Store,
    cluster: ClusterId,
    options: CatalogueOptions,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    catalogue: Option<Catalogue>,
    /// When the log was followed to its end last: the time before its requests.
    followed_ns: u64,
    /// When it could not be opened or followed last, and why.
    failed: Option<(u64, Arc<CatalogueError>)>,
}

impl Task {
    async fn run(mut self, mut asked: mpsc::Receiver<Question>) {
        let mut together = Vec::with_capacity(TOGETHER);
        while asked.recv_many(&mut together, TOGETHER).await > 0 {
            together.retain(|question| !question.answer.is_closed());
            let mut waiting = std::mem::take(&mut together);
            // A second time for those whose answer has to be newer.
            while !waiting.is_empty() {
                waiting = self.answer(waiting).await;
            }
            if let Some(catalogue) = &self.catalogue {
                *self.requests.lock() = catalogue.requests();
            }
        }
    }

    /// Answers questions; returns those for which the log has to be followed once more.
    async fn answer(&mut self, questions: Vec<Question>) -> Vec<Question> {
        let newest = questions.iter().map(|question| question.followed_from_ns).max().unwrap_or(0);
        let followed = match newest > self.followed_ns || self.catalogue.is_none() {
            true => self.follow().await,
            false => Ok(()),
        };
        let mut answerable = Vec::with_capacity(questions.len());
        for question in questions {
            match &followed {
                Err(error) if self.catalogue.is_none() || question.followed_from_ns > self.followed_ns => {
                    question.end(Err(LocateError::Catalogue(error.clone())));
                }
                _ => answerable.push(question),
            }
        }
        let Some(catalogue) = &mut self.catalogue else { return Vec::new() };
        let wanted: Vec<_> = answerable.iter().map(|question| (question.ledger, question.entry)).collect();
        catalogue.preload(&wanted).await;
        let mut again = Vec::new();
        for mut question in answerable.into_iter().filter(|question| !question.answer.is_closed()) {
            let found = locate(catalogue, &question).await;
            let is_denied =
                matches!(found, Err(LocateError::Absent { .. } | LocateError::OtherLedger { .. }));
            if is_denied && self.followed_ns < question.asked_ns {
                // Invariant 2.
                question.followed_from_ns = question.asked_ns;
                again.push(question);
            } else {
                question.end(found);
            }
        }
        again
    }

    /// Follows the log to its end; opens the catalogue first, if it is not open.
    async fn follow(&mut self) -> Result<(), Arc<CatalogueError>> {
        let now_ns = self.clock.monotonic_ns();
        if let Some((at_ns, error)) = &self.failed
            && now_ns.saturating_sub(*at_ns) < RETRY_PAUSE.as_nanos() as u64
        {
            return Err(error.clone());
        }
        match self.follow_now().await {
            Ok(()) => {
                (self.followed_ns, self.failed) = (now_ns, None);
                Ok(())
            }
            Err(error) => {
                let error = Arc::new(error);
                self.failed = Some((self.clock.monotonic_ns(), error.clone()));
                Err(error)
            }
        }
    }

    async fn follow_now(&mut self) -> Result<(), CatalogueError> {
        let Some(catalogue) = &mut self.catalogue else {
            let opened = Catalogue::open(
                &self.store,
                self.cluster,
                OpenMode::Read,
                self.options.clone(),
                self.clock.clone(),
                self.random.clone(),
            );
            self.catalogue = Some(opened.await?);
            return Ok(());
        };
        match catalogue.refresh().await {
            // Invariant 4.
            Err(error) if error.is_tampered() => catalogue.reload().await,
            followed => followed,
        }
    }
}

impl Question {
    fn end(self, outcome: Result<Vec<TierExtent>, LocateError>) {
        // On an error the question was withdrawn.
        drop(self.answer.send(outcome));
    }
}

async fn locate(catalogue: &mut Catalogue, question: &Question) -> Result<Vec<TierExtent>, LocateError> {
    let Question { ledger, entry, .. } = *question;
    let failed = |error: CatalogueError| match error.is_tampered() {
        true => LocateError::Damaged { ledger, error: Arc::new(error) },
        false => LocateError::Catalogue(Arc::new(error)),
    };
    let absent = LocateError::Absent { ledger, entry };
    let Some(row) = catalogue.ledger(ledger).await.map_err(failed)? else { return Err(absent) };
    if let Some((known_ms, found_ms)) = question.created_ms.zip(row.created_ms)
        && known_ms != found_ms
    {
        return Err(LocateError::OtherLedger { ledger, found_ms });
    }
    let rows = catalogue.extents(ledger, entry, LOCATED_MAX).await.map_err(failed)?;
    let mut extents: Vec<TierExtent> = Vec::with_capacity(rows.len());
    for extent in rows.into_iter().map(|(first, row)| row.tier_extent(first)) {
        let is_next = match extents.last() {
            None => extent.contains(entry),
            Some(before) => before.last.get().checked_add(1) == Some(extent.first.get()),
        };
        // A catalogue that was rebuilt may have gaps.
        if !is_next {
            break;
        }
        extents.push(extent);
    }
    if extents.is_empty() { Err(absent) } else { Ok(extents) }
}
