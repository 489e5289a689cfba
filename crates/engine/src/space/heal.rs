//! What becomes of logs with damage: once newer copies have taken the place of all that is damaged in one, it is rewritten without that.
//!
//! # Data flow
//! ```text
//! damage register -> ranges that wait, some at a time -> is each copy dead: removed, let go, or is a newer one on disk? -> made good
//! logs with nothing left that waits -> a compaction of each -> the log is gone, and with it what the register has of it
//! ```
//!
//! # Invariants
//! 1. Nothing damaged is left behind before it is made good: until then its entry is answered with an error, not as absent (IB7).
//! 2. Made good by what is on disk, in logs that are committed; what is in memory alone counts with a later step.
//! 3. Without damage none of this costs anything but a look at one number.
//!
//! # Limits
//! A step looks at [`WORK_MAX`] entries, or at the runs of one range. [`WAITING_MAX`] ranges at a time, and those of one ledger beyond.

use super::{Liveness, Planned, Upkeep, Verdict, as_ns};
use crate::damage::DamagedRange;
use crate::space_desk::Cause;
use bindery_io::canary::Canary;
use bindery_storage::{EntryLog, Extent, ReadError, Source};
use bindery_types::{EntryId, LedgerId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Entries looked for in one step.
const WORK_MAX: u64 = 512;
/// Ranges taken from the register at once.
const WAITING_MAX: usize = 64;
/// Between two looks at the register.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause before a failed rewrite of a log is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(600);

#[derive(Default)]
pub(super) struct Healing {
    not_before_ns: u64,
    scrub_not_before_ns: u64,
    /// Ranges to look at.
    ranges: VecDeque<DamagedRange>,
    /// The last ledger of those taken from the register.
    after: Option<LedgerId>,
    /// Of the first range, runs that are still to be looked at, and how far in the first of them.
    runs: Option<VecDeque<Source>>,
    from: Option<EntryId>,
}

impl Upkeep {
    /// A step, when it is time for one. True when the next one is due at once.
    pub(super) fn heal_on(&mut self, now: u64) -> bool {
        if self.shared.damage().is_empty() || now < self.space.healing.not_before_ns {
            return false;
        }
        let mut work = 0;
        while work < WORK_MAX {
            let Some(range) = self.next_damaged() else {
                let interval = self.shared.config().space.collection_interval;
                self.space.healing.not_before_ns = now.saturating_add(as_ns(PAUSE.min(interval)));
                self.renew(now, RETRY_PAUSE.min(interval));
                return false;
            };
            let is_made_good = match self.shared.config().canaries.has(Canary::M55DamageForgotten) {
                true => Some(true),
                false => self.is_overtaken(&range, &mut work),
            };
            let Some(is_made_good) = is_made_good else { break };
            if is_made_good {
                self.shared.damage().make_good(std::slice::from_ref(&range), false);
            }
            let healing = &mut self.space.healing;
            healing.ranges.pop_front();
            (healing.runs, healing.from) = (None, None);
            work += 1;
        }
        true
    }

    /// The range that is being looked at, or the next one; `None` when all were.
    fn next_damaged(&mut self) -> Option<DamagedRange> {
        let healing = &mut self.space.healing;
        if healing.ranges.is_empty() {
            healing.ranges = self.shared.damage().waiting(healing.after, WAITING_MAX).into();
            healing.after = healing.ranges.back().map(|range| range.ledger);
        }
        healing.ranges.front().cloned()
    }

    /// Plans rewrites of logs in which nothing damaged is needed any more.
    fn renew(&mut self, now: u64, pause: Duration) {
        let taken = self.space.taken();
        let is_free = |at| !taken.contains(&at) && !self.directories.routing().has_failed(at.0);
        let due = self.shared.damage().take_renewable(now, as_ns(pause), is_free);
        for (directory, log_id) in due {
            let Some(log) = self.shared.views()[directory].log(log_id) else { continue };
            tracing::info!(file = %log.path().display(), "a log with damage that is made good is rewritten");
            let planned =
                Planned { directory, logs: vec![log_id], cause: Cause::Compaction, live: log.size() };
            self.space.planned.push_back(planned);
        }
        if now >= self.space.healing.scrub_not_before_ns && self.shared.damage().take_scrub_wish() {
            self.space.healing.scrub_not_before_ns = now.saturating_add(as_ns(pause));
            self.shared.space().want_scrub();
        }
    }

    /// Whether every copy of the range is dead. `None`: this step is over, and the next one goes on.
    fn is_overtaken(&mut self, range: &DamagedRange, work: &mut u64) -> Option<bool> {
        let DamagedRange { ledger, first, last, at, generation, .. } = *range;
        let mut runs = match self.space.healing.runs.take() {
            Some(runs) => runs,
            None => {
                let Ok(runs) = self.shared.views()[at.0].runs_within(ledger, first, last) else {
                    // What cannot be found any more may be gone all the same. Else metadata has to say which entries there were.
                    return Some(self.fate(ledger).of_lost(generation, first, last) == Liveness::Dead);
                };
                // The range is as old as the log where its run could not be found, and the run may be older.
                let is_it =
                    |source: &Source| source.log.log_id() == at.1 && source.extent.generation <= generation;
                runs.into_iter().filter(is_it).collect()
            }
        };
        let mut has_judged = false;
        while let Some(Source { log, extent }) = runs.front() {
            let fate = self.fate(ledger);
            let from = match fate.of_run(extent) {
                Liveness::Dead => None,
                Liveness::From(from) => Some(from.max(first)),
                Liveness::Live => Some(first),
            };
            if let Some(from) = from.map(|from| self.space.healing.from.map_or(from, |done| done.max(from))) {
                // Which entries are damaged only metadata can say then.
                let Ok(ids) = ids_within(log, extent, from, last) else { return Some(false) };
                let newer = self.newer(extent, |_| false);
                *work += newer.reads;
                for id in ids {
                    // One at least in each call, however many footers it took: the next call requests them all again.
                    if *work >= WORK_MAX && has_judged {
                        self.space.healing.from = Some(id);
                        self.space.healing.runs = Some(runs);
                        return None;
                    }
                    let (verdict, reads) = self.judge(&newer, id);
                    *work += 1 + reads;
                    has_judged = true;
                    if verdict != Verdict::Loser {
                        return Some(false);
                    }
                }
            }
            self.space.healing.from = None;
            runs.pop_front();
        }
        Some(true)
    }
}

/// The entries of a run from `first` to `last`.
fn ids_within(
    log: &Arc<EntryLog>,
    run: &Extent,
    first: EntryId,
    last: EntryId,
) -> Result<Vec<EntryId>, ReadError> {
    if first == last {
        return Ok(vec![first]);
    }
    if let Some(ids) = run.regular_ids_within(first, last) {
        return Ok(ids.collect());
    }
    let ids = log.entry_ids(run)?.into_iter();
    Ok(ids.filter(|id| *id >= first && *id <= last).collect())
}
