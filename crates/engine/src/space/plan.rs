//! A collection: finds out what each log is worth, drops the worthless, and plans rewrites. In steps.
//!
//! # Limits
//! A step weighs [`WORK_MAX`] runs, or reads as many index records or footer blocks of logs on disk, and goes on to the end of
//! what one run asks for: a block of each newer log on disk that has its entries. Runs that an index in memory weighs are
//! bounded by [`STEP_NS`] alone. Taking up a log in memory copies its extents.
//!
//! A log in memory is weighed in each collection: records are read for runs that newer ones overlap or of which a part was
//! let go, and for no others. A log on disk, which has many runs, is weighed when it was not before or when its dead bytes
//! (`dead`) call for it, by its index in memory; only a major compaction finds the copies in it that newer ones hide.

use super::dead::live_share;
use super::job::JOB_SOURCES_MAX;
use super::{Liveness, LogRef, Newer, Planned, Upkeep, Verdict};
use crate::directories::FlushError;
use crate::space_desk::{Cause, CompactionKind};
use bindery_storage::entry_log::{IndexRecord, RECORD_BYTES};
use bindery_storage::{EntryLog, Extent, Generation, IndexedRun, LogId, OverlapScan, ReadError};
use bindery_types::EntryId;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Runs weighed, or records looked up, in one step.
const WORK_MAX: u64 = 2048;
/// Longest step, and the runs between two readings of the clock.
const STEP_NS: u64 = 2_000_000;
const CLOCK_EVERY: u64 = 64;
/// Logs without live entries that are dropped in one commit before all are weighed.
const DEAD_MAX: usize = 32;
/// Records read at once.
const RECORDS_READ: u32 = 1024;
/// Runs of a log on disk that are taken from its index at once.
const RUNS_AT_ONCE: usize = 512;

/// A collection under way.
pub(super) struct Plan {
    kind: Option<CompactionKind>,
    /// Logs with a smaller live share are rewritten.
    threshold: f64,
    /// Logs to be weighed, of the first directory first.
    logs: VecDeque<LogRef>,
    weighing: Option<Weighing>,
    /// The directory being weighed, and what was found in it.
    directory: usize,
    dead: Vec<LogId>,
    /// They are dropped when there are so many: more where the last commit had no space.
    dead_max: usize,
    poor: Vec<Poor>,
    planned: usize,
}

/// A log worth rewriting; the poorest is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Poor {
    live_permille: u64,
    live: u64,
    log_id: LogId,
}

/// The runs of a log that are still to be weighed.
enum ToWeigh {
    InMemory(VecDeque<Extent>),
    /// And the number of the one behind those.
    OnDisk(VecDeque<IndexedRun>, usize),
}

/// A log being weighed.
struct Weighing {
    log_id: LogId,
    /// In the other logs, how far its runs on disk have come.
    scans: Vec<OverlapScan>,
    log: Arc<EntryLog>,
    runs: ToWeigh,
    run: Option<RunWeighing>,
    live: u64,
    total: u64,
}

/// A run that newer ones overlap, or of which a part was let go.
struct RunWeighing {
    run: Extent,
    /// Entries before it are dead.
    from: Option<EntryId>,
    newer: Newer,
    records: VecDeque<IndexRecord>,
    place: u32,
    last: Option<EntryId>,
    live: u64,
}

impl Plan {
    /// Logs that may turn out to be dropped or compacted.
    pub(super) fn undecided(&self) -> impl Iterator<Item = LogRef> {
        let weighing = self.weighing.iter().map(|weighing| weighing.log_id);
        let here = weighing.chain(self.dead.iter().copied()).chain(self.poor.iter().map(|poor| poor.log_id));
        self.logs.iter().copied().chain(here.map(|log_id| (self.directory, log_id)))
    }

    /// Of all live logs but those `in_work`.
    pub(super) fn new(
        upkeep: &Upkeep,
        kind: Option<CompactionKind>,
        threshold: f64,
        in_work: &[LogRef],
    ) -> Plan {
        let healthy = |(index, _): &(usize, _)| !upkeep.directories.routing().has_failed(*index);
        let views = upkeep.shared.views().iter().enumerate().filter(healthy);
        let all =
            views.flat_map(|(index, view)| view.logs().into_iter().map(move |log| (index, log.log_id())));
        Plan {
            kind,
            threshold,
            logs: all.filter(|log| !in_work.contains(log)).collect(),
            weighing: None,
            directory: 0,
            dead: Vec::new(),
            dead_max: DEAD_MAX,
            poor: Vec::new(),
            planned: 0,
        }
    }
}

impl Upkeep {
    /// Goes on with the collection under way; true when it is done.
    pub(super) fn plan_on(&mut self) -> Result<bool, FlushError> {
        let Some(mut plan) = self.space.plan.take() else { return Ok(true) };
        let begun = self.clock.monotonic_ns();
        let (mut work, mut rounds) = (0, 0u64);
        while work < WORK_MAX {
            rounds += 1;
            if rounds.is_multiple_of(CLOCK_EVERY)
                && self.clock.monotonic_ns().saturating_sub(begun) >= STEP_NS
            {
                break;
            }
            if let Some(weighing) = &mut plan.weighing {
                let is_major = plan.kind == Some(CompactionKind::Major);
                if !self.weigh_on(plan.directory, weighing, is_major, &mut work) {
                    continue;
                }
                let Weighing { log_id, live, total, .. } = *weighing;
                plan.weighing = None;
                self.space.dead.add((plan.directory, log_id), total - live.min(total));
                if live == 0 {
                    plan.dead.push(log_id);
                    if plan.dead.len() >= plan.dead_max {
                        // Where there are many logs the end is far, and a full volume needs the space now.
                        let dead = plan.dead.len();
                        let is_dropped = self.drop_dead(&mut plan)?;
                        plan.dead_max = if is_dropped { DEAD_MAX } else { dead + DEAD_MAX };
                        // A commit is enough for one step.
                        break;
                    }
                } else if (live as f64) < plan.threshold * total as f64 {
                    let live_permille = live * 1000 / total;
                    plan.poor.push(Poor { live_permille, live, log_id });
                }
                continue;
            }
            // They come directory by directory.
            let next = plan.logs.front().copied().filter(|(index, _)| *index == plan.directory);
            if let Some((index, log_id)) = next {
                plan.logs.pop_front();
                work += 1;
                plan.weighing = self.begin_weighing(index, log_id, plan.kind, plan.threshold);
                continue;
            }
            self.conclude(&mut plan)?;
            plan.directory += 1;
            if plan.directory == self.directories.len() {
                self.shared.space().on_collected(plan.kind, plan.planned, self.space.has_compaction());
                return Ok(true);
            }
            // A commit is enough for one step.
            break;
        }
        self.space.plan = Some(plan);
        Ok(false)
    }

    /// Takes a log up; `None` when there is nothing to find out about it.
    fn begin_weighing(
        &mut self,
        index: usize,
        log_id: LogId,
        kind: Option<CompactionKind>,
        threshold: f64,
    ) -> Option<Weighing> {
        let view = &self.shared.views()[index];
        let log = view.log(log_id)?;
        let runs = match view.resident_runs(log_id) {
            Some(runs) => ToWeigh::InMemory(runs.into()),
            None => {
                let total = view.bytes_on_disk(log_id)?;
                let is_worth_it =
                    |dead: u64| dead >= total || ((total - dead) as f64) < threshold * total as f64;
                // Removals that only the journal has are not counted.
                let is_left = kind != Some(CompactionKind::Major)
                    && !self.counts_journal()
                    && self.space.dead.of((index, log_id)).is_some_and(|dead| !is_worth_it(dead));
                if is_left {
                    return None;
                }
                self.space.dead.begin((index, log_id));
                ToWeigh::OnDisk(VecDeque::new(), 0)
            }
        };
        Some(Weighing { log_id, scans: Vec::new(), log, runs, run: None, live: 0, total: 0 })
    }

    /// Drops the dead that were found so far. `false`: there is no space for the commit.
    fn drop_dead(&mut self, plan: &mut Plan) -> Result<bool, FlushError> {
        let index = plan.directory;
        let is_free = self.is_free(index);
        plan.dead.retain(is_free);
        if !self.drop_logs(index, &plan.dead)? {
            return Ok(false);
        }
        plan.dead.clear();
        Ok(true)
    }

    /// Tells the logs that are there and that no rewrite has taken: one that was under way may have, meanwhile.
    fn is_free(&self, index: usize) -> impl Fn(&LogId) -> bool + use<> {
        let in_work = self.space.in_work();
        let live: BTreeSet<LogId> =
            self.shared.views()[index].logs().iter().map(|log| log.log_id()).collect();
        move |log_id: &LogId| live.contains(log_id) && !in_work.contains(&(index, *log_id))
    }

    /// What was found in one directory: the dead go, the poor are planned.
    fn conclude(&mut self, plan: &mut Plan) -> Result<(), FlushError> {
        let index = plan.directory;
        let mut poor = std::mem::take(&mut plan.poor);
        let are_dropped = self.drop_dead(plan)?;
        plan.dead.clear();
        plan.dead_max = DEAD_MAX;
        if !are_dropped {
            // A rewrite would end in the same commit.
            return Ok(());
        }
        let is_free = self.is_free(index);
        poor.retain(|poor| is_free(&poor.log_id) && !self.is_left_out((index, poor.log_id)));
        poor.sort_unstable();
        // A rewrite takes room for its output before it gives back that of its sources.
        let room = self.room(index);
        poor.retain(|poor| room.takes(poor.live));
        // Some are planned since an earlier collection, and stay so.
        let queued: BTreeSet<LogRef> = self.space.queued().collect();
        let found = poor.len();
        poor.retain(|poor| !queued.contains(&(index, poor.log_id)));
        plan.planned += found - poor.len();
        let log_bytes_max = self.shared.config().space.log_bytes_max.min(room.shared());
        let (mut group, mut bytes) = (Vec::new(), 0);
        for Poor { live, log_id, .. } in poor {
            let is_full = group.len() == JOB_SOURCES_MAX || bytes + live > log_bytes_max;
            if is_full && !group.is_empty() {
                self.space.planned.push_back(Planned {
                    directory: index,
                    logs: std::mem::take(&mut group),
                    cause: Cause::Compaction,
                    live: bytes,
                });
                bytes = 0;
            }
            group.push(log_id);
            bytes += live;
            plan.planned += 1;
        }
        if !group.is_empty() {
            self.space.planned.push_back(Planned {
                directory: index,
                logs: group,
                cause: Cause::Compaction,
                live: bytes,
            });
        }
        Ok(())
    }

    /// Weighs a log on; true when it is done.
    fn weigh_on(&mut self, index: usize, weighing: &mut Weighing, is_major: bool, work: &mut u64) -> bool {
        if let Some(run) = &mut weighing.run {
            *work += 1;
            match self.weigh_run(&weighing.log, run, work) {
                Ok(false) => {}
                Ok(true) => {
                    weighing.live += run.live;
                    weighing.run = None;
                }
                Err(error) => {
                    weighing.live += run.run.bytes();
                    weighing.run = None;
                    self.skip((index, weighing.log_id), &error.to_string());
                }
            }
            return false;
        }
        let run = match &mut weighing.runs {
            ToWeigh::InMemory(runs) => match runs.pop_front() {
                Some(run) => run,
                None => return true,
            },
            ToWeigh::OnDisk(..) => match self.weigh_indexed(index, weighing, is_major) {
                Some(Some(run)) => run,
                // No lock but that of a shard, and no read: the clock bounds how many.
                Some(None) => return false,
                None => return true,
            },
        };
        *work += 1;
        weighing.total += run.bytes();
        let from = match self.fate(run.ledger).of_run(&run) {
            Liveness::Dead => return false,
            Liveness::From(entry) => Some(entry),
            Liveness::Live => None,
        };
        let newer = self.newer(&run, |_| false);
        *work += newer.reads;
        // The log that cannot be read is left out, not this one.
        for (log, error) in &newer.unread {
            self.skip(*log, &error.to_string());
        }
        if newer.runs.is_empty() && from.is_none() {
            weighing.live += run.bytes();
        } else {
            weighing.run = Some(RunWeighing {
                run,
                from,
                newer,
                records: VecDeque::new(),
                place: 0,
                last: None,
                live: 0,
            });
        }
        false
    }

    /// Weighs the next run of a log on disk by its index. `None`: there is none; a run whose extent must be examined is
    /// given back.
    fn weigh_indexed(
        &mut self,
        index: usize,
        weighing: &mut Weighing,
        is_major: bool,
    ) -> Option<Option<Extent>> {
        let Weighing { log_id, log, scans, runs: ToWeigh::OnDisk(runs, next), .. } = weighing else {
            return None;
        };
        let view = &self.shared.views()[index];
        if runs.is_empty() {
            let Some(read) = view.indexed_runs(*log_id, *next, RUNS_AT_ONCE) else {
                // Brought into memory, or gone, meanwhile: it is no candidate until the next collection.
                weighing.live = u64::MAX;
                self.space.dead.forget((index, *log_id));
                return None;
            };
            *next += read.len();
            *runs = read.into();
        }
        let run = runs.pop_front()?;
        let fate = self.fate(run.ledger);
        let gone_below = fate.gone_below;
        let is_other = |log, _| log != (index, *log_id);
        let mut is_overlapped =
            || is_major && self.is_overlapped(scans, run.ledger, (run.first, run.last), is_other);
        // Runs are as old as their log, or older: by how much says the extent.
        let is_older_in_part = gone_below > Generation(0) && log.generation() >= gone_below;
        let at = (index, *log_id);
        let is_readable = !self.space.skipped.contains_key(&at);
        if log.generation() >= gone_below && (is_older_in_part || is_overlapped()) && is_readable {
            match view.run_on_disk(*log_id, &run) {
                Some(Ok(extent)) => return Some(Some(extent)),
                Some(Err(error)) => self.skip(at, &error.to_string()),
                None => {}
            }
            weighing.total += run.bytes;
            weighing.live += match fate.of_entries(run.first, run.last) {
                // Whatever its extent says, it was let go as a whole.
                Liveness::Dead => 0,
                Liveness::From(_) | Liveness::Live => run.bytes,
            };
            return Some(None);
        }
        weighing.total += run.bytes;
        weighing.live += match fate.of_entries(run.first, run.last) {
            _ if log.generation() < gone_below => 0,
            Liveness::Dead => 0,
            // The last entry of a run is there.
            Liveness::From(entry) => {
                let trimmed = EntryId::new(entry.get() - 1).unwrap_or(EntryId::FIRST);
                live_share(&run, trimmed).max(1)
            }
            Liveness::Live => run.bytes,
        };
        Some(None)
    }

    /// Weighs the next records of a run; true when it is done.
    fn weigh_run(
        &self,
        log: &EntryLog,
        weighing: &mut RunWeighing,
        work: &mut u64,
    ) -> Result<bool, ReadError> {
        let RunWeighing { run, from, newer, records, place, last, live } = weighing;
        if records.is_empty() {
            if *place == run.count {
                return Ok(true);
            }
            *records = log.records_from(run, *place, RECORDS_READ, *last)?.into();
            *place += u32::try_from(records.len()).expect("at most as many as requested");
            *last = records.back().map(|record| record.entry);
        }
        while *work < WORK_MAX
            && let Some(record) = records.pop_front()
        {
            if *from > Some(record.entry) {
                *work += 1;
                continue;
            }
            let (verdict, reads) = self.judge(newer, record.entry);
            *work += 1 + reads;
            if verdict != Verdict::Loser {
                *live += u64::from(record.location.length) + RECORD_BYTES;
            }
        }
        Ok(false)
    }
}
