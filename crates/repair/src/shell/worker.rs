//! The worker: knows what is marked, and repairs some ledgers at a time, in the order of the queue.
//!
//! # Limits     [`RepairConfig::parallel`](super::RepairConfig::parallel) ledgers under way; a page of [`MARKS_PAGE`] marks

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_metadata::layout::LedgerError;
use bindery_types::LedgerId;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::ledger::repair;
use super::report::{RepairReport, StuckLedger};
use super::{Common, RepairConfig, pause, stops};
use crate::core::audit::audit;
use crate::core::queue::{Attempt, LEDGERS_MAX, RepairQueue};

/// Marks listed at a time.
const MARKS_PAGE: usize = 1000;
/// How often ledgers that are known are ranked again.
const RANK_INTERVAL: Duration = Duration::from_secs(60);

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

/// Repairs what is marked, once, for those who wait for it: ends when nothing of `ledgers` is marked any more, or when each that is left
/// could not be repaired `attempts` times in a row; these are returned, with their reasons. `progress` is called from time to time.
///
/// # Errors
/// Of the metadata store, when it fails for good.
pub async fn repair_ledgers(
    config: RepairConfig,
    client: bindery_client::Client,
    clock: Arc<dyn bindery_io::Clock>,
    ledgers: &BTreeSet<LedgerId>,
    attempts: u32,
    mut progress: impl FnMut(&RepairReport),
) -> Result<Vec<StuckLedger>, StoreError> {
    let (stop, stopped) = watch::channel(false);
    let mut worker = Worker::new(Arc::new(Common::new(config, client, clock)));
    worker.only = Some(ledgers.clone());
    let mut failed = std::collections::BTreeMap::<LedgerId, u32>::new();
    let mut waiting = stopped.clone();
    let outcome = loop {
        if let Err(error) = worker.look().await
            && !error.is_transient()
        {
            break Err(error);
        }
        worker.is_eager = true;
        worker.start(&stopped);
        progress(&worker.common.state.lock().clone());
        if worker.tasks.is_empty() {
            let left: Vec<StuckLedger> = worker.stuck().collect();
            let is_over = worker.queue.is_empty()
                || failed.len() == worker.queue.len() && failed.values().all(|count| *count >= attempts);
            if is_over {
                break Ok(left);
            }
            pause(&mut waiting, worker.common.config.look_interval).await;
            continue;
        }
        let look_interval = worker.common.config.look_interval;
        tokio::select! {
            () = worker.end_one() => {}
            () = tokio::time::sleep(look_interval) => {}
        }
        for (ledger, is_failure) in worker.ended.drain(..) {
            match is_failure {
                true => *failed.entry(ledger).or_insert(0) += 1,
                false => drop(failed.remove(&ledger)),
            }
        }
    };
    stop.send_replace(true);
    while !worker.tasks.is_empty() {
        worker.end_one().await;
    }
    outcome
}

struct Worker {
    common: Arc<Common>,
    queue: RepairQueue,
    tasks: JoinSet<(LedgerId, Attempt)>,
    /// Of [`repair_ledgers`].
    only: Option<BTreeSet<LedgerId>>,
    is_eager: bool,
    ended: Vec<(LedgerId, bool)>,
    ranked_at: Instant,
}

impl Worker {
    fn new(common: Arc<Common>) -> Worker {
        Worker {
            common,
            queue: RepairQueue::default(),
            tasks: JoinSet::new(),
            only: None,
            is_eager: false,
            ended: Vec::new(),
            ranked_at: Instant::now(),
        }
    }

    fn stuck(&self) -> impl Iterator<Item = StuckLedger> + '_ {
        self.queue.stuck().map(|(ledger, why)| StuckLedger { ledger: ledger.get(), why: why.to_owned() })
    }

    /// Looks at what is marked, and how endangered it is.
    async fn look(&mut self) -> Result<(), StoreError> {
        let is_disabled = self.common.layout().repair_settings().is_disabled().await?;
        self.common.state.lock().is_disabled = is_disabled;
        let marks = self.common.layout().under_replication();
        let mut marked = BTreeSet::new();
        let mut after = None;
        loop {
            let page = marks.after(after, MARKS_PAGE).await?;
            after = page.last().copied();
            let is_last = page.len() < MARKS_PAGE;
            marked.extend(page);
            if is_last || marked.len() >= 2 * LEDGERS_MAX {
                break;
            }
        }
        if let Some(only) = &self.only {
            marked.retain(|ledger| only.contains(ledger));
        }
        self.queue.keep(&marked);
        let ranks_all = self.ranked_at.elapsed() >= RANK_INTERVAL;
        if ranks_all {
            self.ranked_at = Instant::now();
        }
        let live = self.common.live().await?;
        for ledger in marked {
            if self.queue.knows(ledger) && !ranks_all {
                continue;
            }
            let Some(mark) = marks.marked(ledger).await? else { continue };
            let copies = match self.common.layout().ledgers().get(ledger).await {
                Ok(stored) => audit(&stored.metadata, |bookie| live.contains(bookie)).copies_min,
                // Its mark is to go.
                Err(LedgerError::NotFound(_)) => usize::MAX,
                Err(LedgerError::Store(error)) => return Err(error),
                Err(_) => usize::MAX,
            };
            self.queue.put(ledger, copies, mark.since_ms.unwrap_or(0));
        }
        self.tell();
        Ok(())
    }

    /// Starts repairs as far as there is room.
    fn start(&mut self, stopped: &watch::Receiver<bool>) {
        if self.common.state.lock().is_disabled {
            return;
        }
        while self.tasks.len() < self.common.config.parallel.max(1) {
            let now = match self.is_eager {
                // Those who wait want to know soon.
                true => self.common.now() + Duration::from_secs(1),
                false => self.common.now(),
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
        self.queue.came(self.common.now(), ledger, attempt);
        if self.only.is_some() {
            self.ended.push((ledger, is_failure));
        }
        self.tell();
    }

    fn tell(&self) {
        let stuck: Vec<StuckLedger> = self.stuck().take(RepairReport::STUCK_MAX).collect();
        let stuck_count = self.queue.stuck().count() as u64;
        let mut state = self.common.state.lock();
        state.waiting = self.queue.by_copies();
        state.left_out = self.queue.left_out();
        (state.stuck, state.stuck_count) = (stuck, stuck_count);
    }
}
