//! How many bytes of each log on disk are dead, as far as committed removals and trims say: which logs a collection looks at.
//!
//! A bookie with a million ledgers has millions of runs, too many to look at in each collection. A ledger that goes, or is
//! let go, has runs in a few logs, which their indexes name without a look at the disk.
//!
//! # Data flow
//! ```text
//! flush committed -> ledgers that are gone or were trimmed in it (queue) -> certain, perhaps with a later flush
//!     -> some of them, ascending: their runs in the index of each log that has a count, log by log -> bytes of the log
//! log weighed -> what was found
//! ```
//!
//! # Invariants
//! 1. A count is never below the bytes of the runs that are gone as a whole, as committed removals and trims say; it may be above,
//!    when a run is counted twice. Of a run that is let go in part it is an estimate. So a log that is worth a look gets one.
//! 2. Nothing is dropped or rewritten for what is counted here: a log is weighed first, run by run.
//! 3. A log without a count (after a start, when it is new, when a change found it in memory, after too many changes at once) is
//!    weighed in the next collection.
//! 4. A change that is being counted is certain: a log that is weighed meanwhile has it in what is found, whether or not the
//!    count gets to that log.
//!
//! # Limits
//! 16 bytes for each log, and [`CHANGES_MAX`] changes that wait. A step looks into one index after another until [`STEP_NS`]
//! are over, for [`CHANGES_AT_ONCE`] ledgers each.

use super::{Liveness, LogRef, Upkeep};
use crate::shard::Died;
use bindery_io::canary::Canary;
use bindery_storage::{Generation, IndexedRun};
use bindery_types::{EntryId, LedgerId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// With more changes than this waiting, every log is weighed again instead.
const CHANGES_MAX: usize = 1 << 20;
/// Most changes that go through the indexes together, most queued changes examined to collect them, and the longest step.
const CHANGES_AT_ONCE: usize = 256;
const LOOKED_AT_ONCE: usize = 16 * CHANGES_AT_ONCE;
const STEP_NS: u64 = 1_000_000;

/// Bytes of a run that the change is about. Which runs of a ledger that was removed are older says their extent: all count.
fn bytes_of(died: &Died, run: &IndexedRun) -> u64 {
    if died.hidden_below > Generation(0) {
        return run.bytes;
    }
    let Some((before, until)) = died.trimmed else { return 0 };
    if until >= run.last {
        // The part that went before may have been estimated: entries differ in size.
        return if before.is_some_and(|before| before >= run.last) { 0 } else { run.bytes };
    }
    let share = |until: EntryId| live_share(run, until);
    before.map_or(run.bytes, share).saturating_sub(share(until))
}

/// Bytes of a run behind the entry, with entries of one size.
pub(super) fn live_share(run: &IndexedRun, trimmed: EntryId) -> u64 {
    if trimmed < run.first {
        return run.bytes;
    }
    let entries = u128::from(run.last.get().abs_diff(run.first.get())) + 1;
    let left = u128::from(u64::try_from(run.last.get() - trimmed.get()).unwrap_or(0));
    u64::try_from(u128::from(run.bytes) * left / entries).unwrap_or(run.bytes)
}

/// Changes that are being counted.
struct Counting {
    /// The ledger of each, ascending strictly.
    ledgers: Vec<LedgerId>,
    changes: Vec<Died>,
    /// The last log whose index was searched for them.
    after: Bound<LogRef>,
}

#[derive(Default)]
pub(super) struct DeadBytes {
    of_log: BTreeMap<LogRef, u64>,
    changes: VecDeque<Died>,
    counting: Option<Counting>,
    /// Removals that hide copies of a generation which is not flushed yet: a log that is weighed meanwhile counts them as live.
    uncertain: Vec<Died>,
}

impl DeadBytes {
    /// What is counted of a log.
    pub(super) fn of(&self, log: LogRef) -> Option<u64> {
        self.of_log.get(&log).copied()
    }

    /// A log is being weighed: changes that come meanwhile are added to the result.
    pub(super) fn begin(&mut self, log: LogRef) {
        self.of_log.insert(log, 0);
    }

    pub(super) fn add(&mut self, log: LogRef, bytes: u64) {
        if let Some(dead) = self.of_log.get_mut(&log) {
            *dead += bytes;
        }
    }

    pub(super) fn forget(&mut self, log: LogRef) {
        self.of_log.remove(&log);
    }

    /// Every change is counted.
    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty() && self.counting.is_none()
    }

    fn push(&mut self, died: Died) {
        if self.changes.len() + self.uncertain.len() == CHANGES_MAX {
            self.changes.clear();
            self.uncertain.clear();
            self.of_log.clear();
        }
        self.changes.push_back(died);
    }

    /// A flush came to its end: removals that were uncertain may be certain now.
    fn reconsider(&mut self) {
        self.changes.extend(self.uncertain.drain(..));
    }
}

impl Upkeep {
    /// Notes what the commits of a flush say about ledgers.
    pub(crate) fn on_died(&mut self, mut died: Vec<Died>) {
        // Some at a time are sought in each log: neighbours are near each other there.
        died.sort_by_key(|died| died.ledger);
        self.space.dead.reconsider();
        if !self.shared.config().canaries.has(Canary::M47DeadBytesUncounted) {
            died.into_iter().for_each(|died| self.space.dead.push(died));
        }
    }

    /// Counts on.
    pub(super) fn count_dead_on(&mut self) {
        let begun = self.clock.monotonic_ns();
        while let Some(mut counting) = self.space.dead.counting.take().or_else(|| self.next_changes()) {
            loop {
                let of_log = &mut self.space.dead.of_log;
                let Some((&log, dead)) = of_log.range_mut((counting.after, Bound::Unbounded)).next() else {
                    break;
                };
                if self.clock.monotonic_ns().saturating_sub(begun) >= STEP_NS {
                    self.space.dead.counting = Some(counting);
                    return;
                }
                counting.after = Bound::Excluded(log);
                let (index, log_id) = log;
                let add = |place: usize, run| *dead += bytes_of(&counting.changes[place], &run);
                if !self.shared.views()[index].visit_indexed(log_id, &counting.ledgers, add) {
                    of_log.remove(&log);
                }
            }
        }
    }

    /// The next changes that are certain, one of a ledger at a time.
    fn next_changes(&mut self) -> Option<Counting> {
        let mut certain = BTreeMap::new();
        for _ in 0..LOOKED_AT_ONCE {
            if certain.len() == CHANGES_AT_ONCE {
                break;
            }
            let Some(died) = self.space.dead.changes.pop_front() else { break };
            if died.hidden_below.0 > self.directories.flushed_generation(self.shared.shard_of(died.ledger)) {
                self.space.dead.uncertain.push(died);
                continue;
            }
            match certain.entry(died.ledger) {
                Entry::Vacant(entry) => {
                    entry.insert(died);
                }
                Entry::Occupied(_) => {
                    self.space.dead.changes.push_front(died);
                    break;
                }
            }
        }
        let (ledgers, changes): (Vec<_>, Vec<_>) = certain.into_iter().unzip();
        (!ledgers.is_empty()).then_some(Counting { ledgers, changes, after: Bound::Unbounded })
    }
}

impl Upkeep {
    /// Checks invariant 1 of every log with a count, between two collections. Goes through all runs of all logs.
    ///
    /// # Errors
    /// The log that has more dead bytes than were counted.
    pub(crate) fn check_dead_bytes(&mut self) -> Result<(), String> {
        while !self.space.dead.is_settled() {
            self.count_dead_on();
        }
        if self.is_collecting() {
            return Ok(());
        }
        for (index, view) in self.shared.views().iter().enumerate() {
            for log in view.logs() {
                let log_id = log.log_id();
                let (Some(counted), Some(runs)) =
                    (self.space.dead.of((index, log_id)), view.indexed_runs(log_id, 0, usize::MAX))
                else {
                    continue;
                };
                let is_gone = |run: &&IndexedRun| {
                    let fate = self.fate(run.ledger);
                    log.generation() < fate.gone_below
                        || fate.of_entries(run.first, run.last) == Liveness::Dead
                };
                let found: u64 = runs.iter().filter(is_gone).map(|run| run.bytes).sum();
                if counted + runs.len() as u64 <= found {
                    return Err(format!("log {log_id} has {found} dead bytes, {counted} are counted"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(raw: i64) -> EntryId {
        EntryId::new(raw).unwrap()
    }

    /// Invariant 1, of one run.
    #[test]
    fn what_a_change_takes_of_a_run_is_what_is_not_live_behind_it() {
        let run = IndexedRun::new(LedgerId::new(1).unwrap(), id(10), id(19), 1000);
        assert_eq!(live_share(&run, id(9)), 1000);
        assert_eq!(live_share(&run, id(10)), 900);
        assert_eq!(live_share(&run, id(19)), 0);
        assert_eq!(live_share(&run, id(40)), 0);
        let died = |hidden_below, trimmed| Died {
            ledger: run.ledger,
            hidden_below: Generation(hidden_below),
            trimmed,
        };
        let bytes = |died: Died| bytes_of(&died, &run);
        assert_eq!(bytes(died(6, None)), 1000);
        assert_eq!(bytes(died(0, Some((None, id(12))))), 300);
        assert_eq!(bytes(died(0, Some((Some(id(12)), id(15))))), 300);
        assert_eq!(bytes(died(0, Some((Some(id(12)), id(30))))), 1000, "an estimate before");
        assert_eq!(bytes(died(0, Some((Some(id(30)), id(40))))), 0);
    }
}
