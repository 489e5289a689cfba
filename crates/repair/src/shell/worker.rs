//! The worker: knows what is marked, and repairs some ledgers at a time, in the order of the queue.
//!
//! While nothing is marked it waits for the watch of the marks, and asks the metadata store for nothing but that.
//!
//! # Limits     [`RepairConfig::parallel`](super::RepairConfig::parallel) ledgers under way; twice [`LEDGERS_MAX`] marks, and a page,
//! listed at a time

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_metadata::layout::LedgerError;
use bindery_metadata::store::WatchEvent;
use bindery_types::{BookieId, LedgerId};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::facts::Bookies;
use super::ledger::repair;
use super::report::{RepairReport, StuckLedger};
use super::{Common, RepairConfig, Targets, stops};
use crate::core::audit::{Fit, audit, fit};
use crate::core::queue::{Attempt, LEDGERS_MAX, RepairQueue};

/// Time between two looks while nothing is marked: the watch tells earlier.
const IDLE_LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Marks are listed less often, the more there are: so many are listed each interval.
const LISTED_EACH_INTERVAL: usize = 1000;
/// The longest time between two listings.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(30);
/// The shortest wait for a ledger that is due, and the wait while repair is disabled.
const DUE_MIN: Duration = Duration::from_millis(10);
const DISABLED_LOOK: Duration = Duration::from_secs(1);
/// How long a ledger is left to other workers whose bookies could take the copies.
const OTHERS_FIRST: Duration = Duration::from_secs(4);
/// How long one is left alone whose copies this bookie cannot take. Then an attempt says why it is repaired nowhere, if it is not.
const NOT_HERE: Duration = Duration::from_secs(16);

/// Runs until it is told to stop.
pub(super) async fn run(common: Arc<Common>, mut stopped: watch::Receiver<bool>) {
    let mut worker = Worker::new(common);
    let mut look_at = Instant::now();
    while !*stopped.borrow() {
        if Instant::now() >= look_at {
            let looked = worker.look().await;
            look_at = Instant::now() + worker.look_interval();
            if let Err(error) = looked {
                if error == StoreError::Closed {
                    break;
                }
                worker.common.note_error("marks of ledgers", &error);
                look_at = Instant::now() + worker.common.config.look_interval;
            }
        }
        worker.learn_disabled().await;
        worker.start(&stopped);
        let due = worker.due_in();
        let mut marks = worker.marks.take();
        tokio::select! {
            () = stops(&mut stopped) => {}
            () = worker.end_one() => {}
            () = tokio::time::sleep_until(look_at) => {}
            () = tokio::time::sleep(due) => {}
            () = fires(&mut marks) => look_at = Instant::now(),
        }
        worker.marks = marks;
    }
    while !worker.tasks.is_empty() {
        worker.end_one().await;
    }
}

/// A watch that is being waited for.
type Firing = Pin<Box<dyn Future<Output = WatchEvent> + Send>>;

/// Waits for a watch; for ever where there is none.
async fn fires(watch: &mut Option<Firing>) {
    match watch {
        Some(firing) => drop(firing.await),
        None => std::future::pending().await,
    }
    *watch = None;
}

/// Failures of the metadata store in a row, and time without any progress, after which [`repair_ledgers`] gives up.
const LOOK_FAILURES_MAX: u32 = 30;
const STANDSTILL_MAX: Duration = Duration::from_secs(600);

/// Repairs marked ledgers for a caller who waits: ends when none of `ledgers` is marked any more, or when each that is left could not be
/// repaired `attempts` times in a row, or nothing went on for ten minutes, or repair is disabled. Those that are left are returned, with their
/// reasons. `progress` is called from time to time.
///
/// # Errors
/// Of the metadata store, when it fails for long.
pub async fn repair_ledgers(
    config: RepairConfig,
    client: bindery_client::Client,
    clock: Arc<dyn bindery_io::Clock>,
    ledgers: &BTreeSet<LedgerId>,
    attempts: u32,
    mut progress: impl FnMut(&RepairReport),
) -> Result<Vec<StuckLedger>, StoreError> {
    let (stop, stopped) = watch::channel(false);
    let common = Common { is_on_demand: true, ..Common::new(config, client, None, clock) };
    let mut worker = Worker::new(Arc::new(common));
    worker.only = Some(ledgers.clone());
    let outcome = worker.work_off(&stopped, attempts, &mut progress).await;
    stop.send_replace(true);
    while !worker.tasks.is_empty() {
        worker.end_one().await;
    }
    outcome
}

/// What a ledger is ordered by.
struct Ranked {
    ledger: LedgerId,
    copies: usize,
    since_ms: i64,
    /// Whose it is to repair.
    fit: Fit,
}

struct Worker {
    common: Arc<Common>,
    /// Fires when the first ledger is marked.
    marks: Option<Firing>,
    /// Nothing was marked when that watch was armed. Otherwise it may not fire with the next mark.
    is_idle: bool,
    queue: RepairQueue,
    /// Each with the time that it took.
    tasks: JoinSet<(LedgerId, Attempt, Duration)>,
    /// Of [`repair_ledgers`]: no others are repaired, and those that are repaired or fail are noted in `ended`.
    only: Option<BTreeSet<LedgerId>>,
    /// Ledgers, and whether they failed.
    ended: Vec<(LedgerId, bool)>,
    /// The bookies by which the known ledgers were ranked, or are being ranked.
    ranked_by: Arc<Bookies>,
    /// While known ledgers are ranked again: the last one that was, or `None` at the beginning.
    ranking: Option<Option<LedgerId>>,
    /// Where the last listing of marks ended, if that was not at the end.
    listed_upto: Option<LedgerId>,
    /// The last ledger that was offered to the queue.
    offered_upto: Option<LedgerId>,
}

/// Reads what a marked ledger is ordered by; `None` when it is not marked any more.
async fn ranked(common: &Common, ledger: LedgerId, live: &Bookies) -> Result<Option<Ranked>, StoreError> {
    let (since_ms, replicas) = match common.layout().under_replication().marked(ledger).await {
        Ok(Some(mark)) => (mark.since_ms.unwrap_or(0), mark.replicas),
        Ok(None) => {
            common.layout().under_replication().clear(ledger).await?;
            return Ok(None);
        }
        // The attempt to repair it says what is wrong with it.
        Err(StoreError::Protocol(_)) => (0, Vec::new()),
        Err(error) => return Err(error),
    };
    match common.layout().ledgers().get(ledger).await {
        Ok(stored) => {
            let found = audit(&stored.metadata, |bookie| live.ids.contains(bookie));
            let fit = match &common.config.targets {
                Targets::Any => Fit::Ours,
                Targets::Own(own) => {
                    let leaving = common.leaving(&replicas).await?;
                    let is_there = |bookie: &BookieId| live.ids.contains(bookie) && !leaving.contains(bookie);
                    let lacking = audit(&stored.metadata, is_there);
                    let takes_writes = common.takes_writes(own, live).await?;
                    fit(own, takes_writes, &stored.metadata, &replicas, &lacking)
                }
            };
            Ok(Some(Ranked { ledger, copies: found.copies_min, since_ms, fit }))
        }
        Err(LedgerError::Store(error)) => Err(error),
        // Deleted: its mark is to go. Or nothing is known of it.
        Err(_) => Ok(Some(Ranked { ledger, copies: usize::MAX, since_ms, fit: Fit::Ours })),
    }
}

/// Metadata of ledgers read at one look, and at a time: a look is to be short, and there is one each second.
const RANKED_AT_ONCE: usize = 500;
const RANKED_WHEN_CLOGGED: usize = 50;
const RANK_READS_MAX: usize = 32;

impl Worker {
    fn new(common: Arc<Common>) -> Worker {
        let mut salt = DefaultHasher::new();
        common.config.name.as_str().hash(&mut salt);
        Worker {
            common,
            marks: None,
            is_idle: false,
            queue: RepairQueue::new(salt.finish()),
            tasks: JoinSet::new(),
            only: None,
            ended: Vec::new(),
            ranked_by: Arc::default(),
            ranking: None,
            listed_upto: None,
            offered_upto: None,
        }
    }

    fn stuck(&self) -> impl Iterator<Item = StuckLedger> + '_ {
        self.queue.stuck().map(|(ledger, why)| StuckLedger { ledger: ledger.get(), why: why.to_owned() })
    }

    /// Time to the next look at the marks.
    fn look_interval(&self) -> Duration {
        let interval = self.common.config.look_interval;
        if self.is_idle && self.only.is_none() {
            return interval.max(IDLE_LOOK_INTERVAL);
        }
        let times = u32::try_from(self.queue.len() / LISTED_EACH_INTERVAL).unwrap_or(u32::MAX).max(1);
        interval.saturating_mul(times).min(LOOK_INTERVAL_MAX.max(interval))
    }

    /// Time until a ledger that waits may be taken.
    fn due_in(&self) -> Duration {
        if self.common.state.lock().is_disabled {
            return DISABLED_LOOK;
        }
        match self.queue.wake_at() {
            Some(at) if self.tasks.len() < self.parallel() => {
                at.saturating_sub(self.common.now()).max(DUE_MIN)
            }
            // One that ends makes room.
            _ => IDLE_LOOK_INTERVAL,
        }
    }

    fn parallel(&self) -> usize {
        self.common.config.parallel.max(1)
    }

    async fn learn_disabled(&mut self) {
        // Without an answer it stays as it was known last.
        if let Ok(is_disabled) = self.common.facts.is_disabled().await {
            self.common.state.lock().is_disabled = is_disabled;
        }
    }

    /// Looks at what is marked, and how endangered it is.
    async fn look(&mut self) -> Result<(), StoreError> {
        let marks = self.common.layout().under_replication();
        let (may_be_marked, watch) = marks.watch().await?;
        self.marks = Some(Box::pin(watch.changed()));
        self.is_idle = !may_be_marked;
        let marked = self.list().await?;
        if may_be_marked && self.queue.is_empty() && marked.is_empty() {
            // The watch must not miss the next mark. Where marks of others are left, pruning ends at the first one.
            marks.prune().await?;
        }
        let live = self.common.bookies().await?;
        let mut unranked = self.unranked(&marked);
        // What is known is ranked again when other bookies are there, some at a time.
        if self.ranked_by.ids != live.ids {
            (self.ranked_by, self.ranking) = (live.clone(), Some(None));
        }
        if let Some(upto) = self.ranking
            && unranked.len() < RANKED_AT_ONCE
        {
            let again = self.queue.ledgers_after(upto, RANKED_AT_ONCE - unranked.len());
            self.ranking = again.last().map(|last| Some(*last));
            unranked.extend(again);
        }
        self.rank(unranked, &live).await?;
        self.tell();
        Ok(())
    }

    /// Lists what is marked, from where the last listing ended: more marks than fit are seen one part after the other.
    async fn list(&mut self) -> Result<BTreeSet<LedgerId>, StoreError> {
        let (after, mut upto) = (self.listed_upto.take(), None);
        let mut listing = self.common.layout().under_replication().list_after(after);
        let mut marked = BTreeSet::new();
        while let Some(page) = listing.next().await? {
            let last = page.last().copied();
            let is_wanted = |ledger: &LedgerId| self.only.as_ref().is_none_or(|only| only.contains(ledger));
            marked.extend(page.into_iter().filter(is_wanted));
            if marked.len() >= 2 * LEDGERS_MAX {
                upto = last;
                break;
            }
        }
        self.listed_upto = upto;
        self.queue.keep(&marked, after, upto);
        let is_listed =
            |ledger| after.is_none_or(|after| ledger > after) && upto.is_none_or(|upto| ledger <= upto);
        self.common.open_since.lock().retain(|ledger, _| marked.contains(ledger) || !is_listed(*ledger));
        Ok(marked)
    }

    /// Ledgers that are not known yet, and those that there was no room for, in turns.
    fn unranked(&mut self, marked: &BTreeSet<LedgerId>) -> Vec<LedgerId> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let behind = self.offered_upto.map_or(Unbounded, Excluded);
        let before = self.offered_upto.map(|upto| marked.range((Unbounded, Included(upto))));
        let in_turns = marked.range((behind, Unbounded)).chain(before.into_iter().flatten());
        // Each that comes in again is tried again.
        let max = if self.queue.is_clogged() { RANKED_WHEN_CLOGGED } else { RANKED_AT_ONCE };
        let unranked = in_turns.filter(|ledger| !self.queue.knows(**ledger)).take(max);
        let unranked: Vec<LedgerId> = unranked.copied().collect();
        self.offered_upto = unranked.last().copied().or(self.offered_upto);
        unranked
    }

    /// Reads marks and metadata of ledgers, and puts them into the queue by their danger.
    async fn rank(&mut self, ledgers: Vec<LedgerId>, live: &Arc<Bookies>) -> Result<(), StoreError> {
        let mut ledgers = ledgers.into_iter();
        let mut reads: JoinSet<Result<Option<Ranked>, StoreError>> = JoinSet::new();
        loop {
            while reads.len() < RANK_READS_MAX
                && let Some(ledger) = ledgers.next()
            {
                let (common, live) = (self.common.clone(), live.clone());
                reads.spawn(async move { ranked(&common, ledger, &live).await });
            }
            match reads.join_next().await {
                None => return Ok(()),
                Some(Ok(read)) => {
                    if let Some(Ranked { ledger, copies, since_ms, fit }) = read? {
                        let now = self.common.now();
                        let not_before = match fit {
                            Fit::Ours => None,
                            Fit::Others => Some(now + OTHERS_FIRST),
                            Fit::Never => Some(now + NOT_HERE),
                        };
                        self.queue.put(ledger, copies, since_ms, not_before);
                    }
                }
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }

    /// See [`repair_ledgers`].
    async fn work_off(
        &mut self,
        stopped: &watch::Receiver<bool>,
        attempts: u32,
        progress: &mut impl FnMut(&RepairReport),
    ) -> Result<Vec<StuckLedger>, StoreError> {
        let mut failed = BTreeMap::<LedgerId, u32>::new();
        let (mut look_failures, mut has_looked) = (0, false);
        let (mut bytes, mut moved_at) = (0, Instant::now());
        let mut look_at = Instant::now();
        loop {
            if Instant::now() >= look_at {
                look_at = Instant::now() + self.common.config.look_interval;
                match self.look().await {
                    Ok(()) => (look_failures, has_looked) = (0, true),
                    Err(error) if error.is_transient() && look_failures < LOOK_FAILURES_MAX => {
                        look_failures += 1;
                    }
                    Err(error) => return Err(error),
                }
            }
            self.start(stopped);
            let report = self.common.state.lock().clone();
            progress(&report);
            if report.bytes != bytes {
                (bytes, moved_at) = (report.bytes, Instant::now());
            }
            let is_given_up = |ledger| failed.get(&ledger).is_some_and(|count| *count >= attempts);
            let is_still = moved_at.elapsed() >= STANDSTILL_MAX || report.is_disabled;
            if has_looked && self.tasks.is_empty() && (is_still || self.queue.ledgers().all(is_given_up)) {
                return Ok(self.left(report.is_disabled));
            }
            tokio::select! {
                () = self.end_one() => {}
                () = tokio::time::sleep_until(look_at) => {}
            }
            for (ledger, is_failure) in self.ended.drain(..) {
                match is_failure {
                    true => *failed.entry(ledger).or_insert(0) += 1,
                    false => {
                        failed.remove(&ledger);
                        moved_at = Instant::now();
                    }
                }
            }
        }
    }

    /// All that are marked still, with reasons.
    fn left(&self, is_disabled: bool) -> Vec<StuckLedger> {
        let reasons: BTreeMap<LedgerId, &str> = self.queue.stuck().collect();
        let why = |ledger| match is_disabled {
            true => "repair is disabled",
            false => reasons.get(&ledger).copied().unwrap_or("another worker has it"),
        };
        let left = self.queue.ledgers();
        left.map(|ledger| StuckLedger { ledger: ledger.get(), why: why(ledger).to_owned() }).collect()
    }

    /// Starts repairs as far as there is room.
    fn start(&mut self, stopped: &watch::Receiver<bool>) {
        if self.common.state.lock().is_disabled {
            return;
        }
        while self.tasks.len() < self.parallel() {
            let now = match &self.only {
                // A caller who waits for them wants to know soon.
                Some(_) => self.common.now() + Duration::from_secs(1),
                None => self.common.now(),
            };
            let Some(ledger) = self.queue.take(now) else { break };
            let (common, stopped) = (self.common.clone(), stopped.clone());
            let is_for_others = self.queue.is_left_over(ledger);
            self.common.state.lock().under_way.push(ledger.get());
            self.tasks.spawn(async move {
                let began = Instant::now();
                (ledger, repair(&common, ledger, is_for_others, &stopped).await, began.elapsed())
            });
        }
    }

    /// Waits for a repair to end. Never ends while there is none.
    async fn end_one(&mut self) {
        let Some(ended) = self.tasks.join_next().await else { return std::future::pending().await };
        let (ledger, attempt, took) = match ended {
            Ok(ended) => ended,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        self.common.state.lock().ended(ledger, &attempt, took);
        let is_failure = matches!(attempt, Attempt::Failed(_));
        if let Attempt::Failed(why) = &attempt {
            tracing::warn!(%ledger, why, "cannot be repaired now");
        }
        let is_waiting = matches!(attempt, Attempt::Later(..) | Attempt::Elsewhere | Attempt::NotHere);
        self.queue.came(self.common.now(), ledger, attempt);
        if self.only.is_some() && !is_waiting {
            self.ended.push((ledger, is_failure));
        }
    }

    /// Puts the state of the queue into the report. It walks the queue, so it is for each look and not for each ledger.
    fn tell(&self) {
        let stuck: Vec<StuckLedger> = self.stuck().take(RepairReport::STUCK_MAX).collect();
        let stuck_count = self.queue.stuck_count();
        let grace_ms =
            self.common.config.mark_grace.map(|grace| i64::try_from(grace.as_millis()).unwrap_or(i64::MAX));
        let now_ms = self.common.clock.wall_ms();
        let overdue =
            grace_ms.map_or(0, |grace_ms| self.queue.marked_before(now_ms.saturating_sub(grace_ms)));
        let mut state = self.common.state.lock();
        state.waiting = self.queue.by_copies();
        state.left_out = self.queue.left_out();
        state.overdue = overdue;
        (state.stuck, state.stuck_count) = (stuck, stuck_count);
    }
}
