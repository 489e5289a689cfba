//! Repair of some marked ledgers for a caller who waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_types::LedgerId;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Worker;
use crate::shell::report::{RepairReport, StuckLedger};
use crate::shell::{Common, RepairConfig};

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

impl Worker {
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
            let is_through = self.unknown == 0 && self.queue.ledgers().all(is_given_up);
            if has_looked && self.tasks.is_empty() && (is_still || is_through) {
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
}
