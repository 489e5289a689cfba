//! The worker: knows what is marked, and repairs some ledgers at a time, in the order of the queue.
//!
//! # Limits     [`RepairConfig::parallel`](super::RepairConfig::parallel) ledgers under way; twice [`LEDGERS_MAX`] marks listed

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_metadata::layout::LedgerError;
use bindery_types::{BookieId, LedgerId};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::ledger::repair;
use super::report::{RepairReport, StuckLedger};
use super::{Common, RepairConfig, stops};
use crate::core::audit::audit;
use crate::core::queue::{Attempt, LEDGERS_MAX, RepairQueue};

/// Runs until it is told to stop.
pub(super) async fn run(common: Arc<Common>, mut stopped: watch::Receiver<bool>) {
    let mut worker = Worker::new(common);
    let mut look_at = Instant::now();
    while !*stopped.borrow() {
        if Instant::now() >= look_at {
            look_at = Instant::now() + worker.common.config.look_interval;
            if let Err(error) = worker.look().await {
                if error == StoreError::Closed {
                    break;
                }
                worker.common.note_error("marks of ledgers", &error);
            }
        }
        worker.start(&stopped);
        tokio::select! {
            () = stops(&mut stopped) => {}
            () = worker.end_one() => {}
            () = tokio::time::sleep_until(look_at) => {}
        }
    }
    while !worker.tasks.is_empty() {
        worker.end_one().await;
    }
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
    let common = Common { is_on_demand: true, ..Common::new(config, client, clock) };
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
}

struct Worker {
    common: Arc<Common>,
    queue: RepairQueue,
    tasks: JoinSet<(LedgerId, Attempt)>,
    /// Of [`repair_ledgers`]: no others are repaired, and those that are repaired or fail are noted in `ended`.
    only: Option<BTreeSet<LedgerId>>,
    /// Ledgers, and whether they failed.
    ended: Vec<(LedgerId, bool)>,
    /// The bookies by which the known ledgers were ranked, or are being ranked.
    ranked_by: Arc<BTreeSet<BookieId>>,
    /// Of a ranking under way: the last ledger that was ranked, `None` at its beginning.
    ranking: Option<Option<LedgerId>>,
}

/// Metadata of ledgers read at one look, and at a time: a look is to be short, and there is one each second.
const RANKED_AT_ONCE: usize = 500;
const RANK_READS_MAX: usize = 32;

impl Worker {
    fn new(common: Arc<Common>) -> Worker {
        Worker {
            common,
            queue: RepairQueue::default(),
            tasks: JoinSet::new(),
            only: None,
            ended: Vec::new(),
            ranked_by: Arc::default(),
            ranking: None,
        }
    }

    fn stuck(&self) -> impl Iterator<Item = StuckLedger> + '_ {
        self.queue.stuck().map(|(ledger, why)| StuckLedger { ledger: ledger.get(), why: why.to_owned() })
    }

    /// Looks at what is marked, and how endangered it is.
    async fn look(&mut self) -> Result<(), StoreError> {
        let is_disabled = self.common.layout().repair_settings().is_disabled().await?;
        self.common.state.lock().is_disabled = is_disabled;
        let mut listing = self.common.layout().under_replication().list();
        let mut marked = BTreeSet::new();
        while marked.len() < 2 * LEDGERS_MAX
            && let Some(page) = listing.next().await?
        {
            let is_wanted = |ledger: &LedgerId| self.only.as_ref().is_none_or(|only| only.contains(ledger));
            marked.extend(page.into_iter().filter(is_wanted));
        }
        self.queue.keep(&marked);
        self.common.open_since.lock().retain(|ledger, _| marked.contains(ledger));
        let live = self.common.live().await?;
        let mut unranked: Vec<LedgerId> =
            marked.into_iter().filter(|ledger| !self.queue.knows(*ledger)).take(RANKED_AT_ONCE).collect();
        // What is known is ranked again when other bookies are there, some at a time.
        if self.ranked_by != live {
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

    /// Reads marks and metadata of ledgers, and puts them into the queue by their danger.
    async fn rank(
        &mut self,
        ledgers: Vec<LedgerId>,
        live: &Arc<BTreeSet<BookieId>>,
    ) -> Result<(), StoreError> {
        let mut ledgers = ledgers.into_iter();
        let mut reads: JoinSet<Result<Option<Ranked>, StoreError>> = JoinSet::new();
        loop {
            while reads.len() < RANK_READS_MAX
                && let Some(ledger) = ledgers.next()
            {
                let (layout, live) = (self.common.layout().clone(), live.clone());
                reads.spawn(async move {
                    let since_ms = match layout.under_replication().marked(ledger).await {
                        Ok(Some(mark)) => mark.since_ms.unwrap_or(0),
                        Ok(None) => return Ok(None),
                        // The attempt to repair it says what is wrong with it.
                        Err(StoreError::Protocol(_)) => 0,
                        Err(error) => return Err(error),
                    };
                    let copies = match layout.ledgers().get(ledger).await {
                        Ok(stored) => audit(&stored.metadata, |bookie| live.contains(bookie)).copies_min,
                        Err(LedgerError::Store(error)) => return Err(error),
                        // Deleted: its mark is to go. Or nothing is known of it.
                        Err(_) => usize::MAX,
                    };
                    Ok(Some(Ranked { ledger, copies, since_ms }))
                });
            }
            match reads.join_next().await {
                None => return Ok(()),
                Some(Ok(read)) => {
                    if let Some(Ranked { ledger, copies, since_ms }) = read? {
                        self.queue.put(ledger, copies, since_ms);
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
        while self.tasks.len() < self.common.config.parallel.max(1) {
            let now = match &self.only {
                // A caller who waits for them wants to know soon.
                Some(_) => self.common.now() + Duration::from_secs(1),
                None => self.common.now(),
            };
            let Some(ledger) = self.queue.take(now) else { break };
            let (common, stopped) = (self.common.clone(), stopped.clone());
            self.common.state.lock().under_way.push(ledger.get());
            self.tasks.spawn(async move { (ledger, repair(&common, ledger, &stopped).await) });
        }
    }

    /// Waits for a repair to end. Never ends while there is none.
    async fn end_one(&mut self) {
        let Some(ended) = self.tasks.join_next().await else { return std::future::pending().await };
        let (ledger, attempt) = match ended {
            Ok(ended) => ended,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        self.common.state.lock().under_way.retain(|under_way| *under_way != ledger.get());
        let is_failure = matches!(attempt, Attempt::Failed(_));
        if let Attempt::Failed(why) = &attempt {
            tracing::warn!(%ledger, why, "cannot be repaired now");
        }
        let is_waiting = matches!(attempt, Attempt::Later(..) | Attempt::Elsewhere);
        self.queue.came(self.common.now(), ledger, attempt);
        if self.only.is_some() && !is_waiting {
            self.ended.push((ledger, is_failure));
        }
    }

    /// Puts the state of the queue into the report. It walks the queue, so it is for each look and not for each ledger.
    fn tell(&self) {
        let stuck: Vec<StuckLedger> = self.stuck().take(RepairReport::STUCK_MAX).collect();
        let stuck_count = self.queue.stuck().count() as u64;
        let mut state = self.common.state.lock();
        state.waiting = self.queue.by_copies();
        state.left_out = self.queue.left_out();
        (state.stuck, state.stuck_count) = (stuck, stuck_count);
    }
}
