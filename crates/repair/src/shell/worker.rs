//! The worker: lists what is marked, looks at its share of that and at some of others', and repairs some ledgers at a time, in the order of
//! the queue.
//!
//! While nothing is marked it waits for the watch of the marks, and asks the metadata store for nothing but that.
//!
//! # Limits     [`RepairConfig::parallel`](super::RepairConfig::parallel) ledgers under way; twice [`LEDGERS_MAX`] marks, and a page,
//! listed at a time

mod on_demand;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_types::LedgerId;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use self::on_demand::repair_ledgers;
use super::facts::Bookies;
use super::ledger::repair;
use super::ranking::{Ranked, ranked};
use super::report::{RepairReport, StuckLedger};
use super::{Common, stops};
use crate::core::queue::{Attempt, LEDGERS_MAX, RepairQueue};
use crate::core::shares::Shares;

/// Time between two looks while nothing is marked: the watch tells earlier.
const IDLE_LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Marks are listed less often, the more there are: so many are listed each interval.
const LISTED_EACH_INTERVAL: usize = 1000;
/// After the first mark the time between two listings grows from this part of the interval.
const FIRST_LOOKS: u32 = 8;
/// The longest time between two listings.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(30);
/// The shortest wait for a ledger that is due, and the wait while repair is disabled.
const DUE_MIN: Duration = Duration::from_millis(10);
const DISABLED_LOOK: Duration = Duration::from_secs(1);

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
        let has_looked_ahead = worker.look_ahead().await;
        worker.start(&stopped);
        // There may be more to look at.
        let due = if has_looked_ahead { Duration::ZERO } else { worker.due_in() };
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
type Firing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits for a watch; for ever where there is none.
async fn fires(watch: &mut Option<Firing>) {
    match watch {
        Some(firing) => firing.await,
        None => std::future::pending().await,
    }
    *watch = None;
}

struct Worker {
    common: Arc<Common>,
    /// Fires when the first ledger is marked. There is none while any is.
    marks: Option<Firing>,
    /// Nothing was marked when the marks were listed last, and that watch tells of the next one.
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
    /// Which marks it looks at.
    shares: Shares,
    /// Marks that were listed last, and where that ended, if not at the end.
    listed: usize,
    /// Of these, marks that this worker does not know, for want of time or room.
    unknown: usize,
    /// Looks since the first mark was made.
    looks: u32,
    listed_upto: Option<LedgerId>,
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
            shares: Shares::alone(),
            listed: 0,
            unknown: 0,
            looks: 0,
            listed_upto: None,
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
        // The first marks are soon followed by others, and shared out.
        let soon = interval / FIRST_LOOKS.checked_shr(self.looks).unwrap_or(0).max(1);
        if soon < interval && self.listed < LISTED_EACH_INTERVAL {
            return soon;
        }
        let times = u32::try_from(self.listed / LISTED_EACH_INTERVAL).unwrap_or(u32::MAX).max(1);
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
        let is_part = self.listed_upto.is_some();
        let marked = self.list().await?;
        let is_part = is_part || self.listed_upto.is_some();
        self.looks = if self.is_idle { 0 } else { self.looks.saturating_add(1) };
        if !self.is_idle && self.queue.is_empty() && marked.is_empty() {
            // For the watch. Where marks of others are left, pruning ends at the first one.
            self.common.layout().under_replication().prune().await?;
        }
        let live = self.common.bookies().await?;
        self.learn_votes(&marked).await;
        // Each that could not be repaired and comes in again is tried again.
        let max = if self.queue.is_clogged() { RANKED_WHEN_CLOGGED } else { RANKED_AT_ONCE };
        let mut unranked = self.shares.on_marks(&marked, is_part, |ledger| self.queue.knows(ledger), max);
        if self.shares.others_repaired() {
            self.queue.on_others_repaired(self.common.now());
        }
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
        self.unknown = marked.iter().filter(|ledger| !self.queue.knows(**ledger)).count();
        if self.queue.next_copies().is_none() {
            self.shares.on_idle_listing();
        }
        self.tell();
        Ok(())
    }

    /// Who shares the marks.
    async fn learn_votes(&mut self, marked: &BTreeSet<LedgerId>) {
        if self.only.is_some() || marked.is_empty() {
            return;
        }
        // Without an answer they stay as they were known last.
        if let Ok(votes) = self.common.facts.votes().await {
            self.shares.on_votes(&votes, self.common.vote.lock().as_deref());
        }
    }

    /// Looks at some marks of others' shares, if that is called for: whether it did.
    async fn look_ahead(&mut self) -> bool {
        if self.common.state.lock().is_disabled {
            return false;
        }
        let room = self.parallel().saturating_sub(self.tasks.len());
        let ahead = self.shares.look_ahead(self.queue.next_copies(), room);
        if ahead.is_empty() {
            return false;
        }
        let looked = match self.common.bookies().await {
            Ok(live) => self.rank(ahead, &live).await,
            Err(error) => Err(error),
        };
        // Those that were not read come with the next listing.
        if let Err(error) = looked {
            self.common.note_error("marks of ledgers", &error);
        }
        true
    }

    /// Lists what is marked, from where the last listing ended: more marks than fit are seen one part after the other.
    async fn list(&mut self) -> Result<BTreeSet<LedgerId>, StoreError> {
        let (after, mut upto) = (self.listed_upto.take(), None);
        let marks = self.common.layout().under_replication();
        let mut listing = match after {
            None => marks.list_and_watch(),
            Some(_) => marks.list_after(after),
        };
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
        (self.listed, self.listed_upto) = (marked.len(), upto);
        self.marks = listing.into_watch().map(|watch| Box::pin(watch.changed()) as Firing);
        self.is_idle = self.marks.is_some();
        self.queue.keep(self.common.now(), &marked, after, upto);
        let is_listed =
            |ledger| after.is_none_or(|after| ledger > after) && upto.is_none_or(|upto| ledger <= upto);
        self.common.open_since.lock().retain(|ledger, _| marked.contains(ledger) || !is_listed(*ledger));
        Ok(marked)
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
                        self.queue.put(self.common.now(), ledger, copies, since_ms, fit);
                    }
                }
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            }
        }
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
        if attempt == Attempt::Done {
            self.shares.on_repaired(ledger);
        }
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
        state.listed = self.listed as u64;
        state.waiting = self.queue.by_copies();
        state.left_out = self.queue.left_out();
        state.overdue = overdue;
        (state.stuck, state.stuck_count) = (stuck, stuck_count);
    }
}
