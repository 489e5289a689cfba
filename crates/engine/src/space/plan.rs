//! A collection: finds out what each log is worth, drops the worthless, and plans rewrites. In steps.
//!
//! # Limits
//! A step weighs [`WORK_MAX`] runs, or reads as many index records or footer blocks of paged logs, and goes on to the end of what
//! one run asks for: a block of each newer paged log that has its ledger. Taking a log up copies its extents. The index
//! is read for runs that newer ones overlap or of which a part was let go, and for no others.

use super::job::{Cause, JOB_RUNS_MAX, JOB_SOURCES_MAX};
use super::status::CompactionKind;
use super::{Liveness, LogRef, Newer, Planned, Verdict};
use crate::machine::{FlushError, Flushing};
use bindery_storage::entry_log::{IndexRecord, RECORD_BYTES};
use bindery_storage::{EntryLog, Extent, LogId, ReadError};
use bindery_types::EntryId;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Runs weighed, or records looked up, in one step.
const WORK_MAX: u64 = 2048;
/// Logs without live entries that are dropped in one commit before all are weighed.
const DEAD_MAX: usize = 32;
/// Records read at once.
const RECORDS_READ: u32 = 1024;

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
    runs: u64,
}

/// A log being weighed.
struct Weighing {
    log_id: LogId,
    log: Arc<EntryLog>,
    runs: VecDeque<Extent>,
    run_count: u64,
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
    /// Of all live logs but those `in_work`.
    pub(super) fn new(
        flushing: &Flushing,
        kind: Option<CompactionKind>,
        threshold: f64,
        in_work: &[LogRef],
    ) -> Plan {
        let healthy = |(index, _): &(usize, _)| !flushing.placement.has_failed(*index);
        let views = flushing.engine.views.iter().enumerate().filter(healthy);
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

impl Flushing {
    /// Goes on with the collection under way; true when it is done.
    pub(super) fn plan_on(&mut self) -> Result<bool, FlushError> {
        let Some(mut plan) = self.space.plan.take() else { return Ok(true) };
        let mut work = 0;
        while work < WORK_MAX {
            if let Some(weighing) = &mut plan.weighing {
                if !self.weigh_on(plan.directory, weighing, &mut work) {
                    continue;
                }
                let Weighing { log_id, live, total, run_count, .. } = *weighing;
                plan.weighing = None;
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
                    plan.poor.push(Poor { live_permille, live, log_id, runs: run_count });
                }
                continue;
            }
            // They come directory by directory.
            let next = plan.logs.front().copied().filter(|(index, _)| *index == plan.directory);
            if let Some((index, log_id)) = next {
                plan.logs.pop_front();
                if let Some((log, runs)) = self.log_with_runs(index, log_id) {
                    work += 1;
                    let run_count = runs.len() as u64;
                    plan.weighing = Some(Weighing {
                        log_id,
                        log,
                        runs: runs.into(),
                        run_count,
                        run: None,
                        live: 0,
                        total: 0,
                    });
                }
                continue;
            }
            self.conclude(&mut plan)?;
            plan.directory += 1;
            if plan.directory == self.directories.len() {
                self.engine.space.on_collected(plan.kind, plan.planned);
                return Ok(true);
            }
            // A commit is enough for one step.
            break;
        }
        self.space.plan = Some(plan);
        Ok(false)
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
        let live: BTreeSet<LogId> = self.engine.views[index].logs().iter().map(|log| log.log_id()).collect();
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
        poor.retain(|poor| is_free(&poor.log_id) && !self.space.is_left_out((index, poor.log_id)));
        poor.sort_unstable();
        // A rewrite takes room for its output before it gives back that of its sources.
        let room = self.room(index);
        poor.retain(|poor| room.takes(poor.live));
        let log_bytes_max = self.engine.config.space.log_bytes_max.min(room.shared());
        let (mut group, mut bytes, mut runs) = (Vec::new(), 0, 0);
        for Poor { live, log_id, runs: of_log, .. } in poor {
            let is_full = group.len() == JOB_SOURCES_MAX
                || bytes + live > log_bytes_max
                || runs + of_log > JOB_RUNS_MAX;
            if is_full && !group.is_empty() {
                self.space.planned.push_back(Planned {
                    directory: index,
                    logs: std::mem::take(&mut group),
                    cause: Cause::Compaction,
                });
                (bytes, runs) = (0, 0);
            }
            group.push(log_id);
            (bytes, runs) = (bytes + live, runs + of_log);
            plan.planned += 1;
        }
        if !group.is_empty() {
            self.space.planned.push_back(Planned { directory: index, logs: group, cause: Cause::Compaction });
        }
        Ok(())
    }

    /// Weighs a log on; true when it is done.
    fn weigh_on(&mut self, index: usize, weighing: &mut Weighing, work: &mut u64) -> bool {
        *work += 1;
        if let Some(run) = &mut weighing.run {
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
        let Some(run) = weighing.runs.pop_front() else { return true };
        weighing.total += run.bytes();
        let from = match self.liveness(&run) {
            Liveness::Dead => return false,
            Liveness::From(entry) => Some(entry),
            Liveness::Live => None,
        };
        let newer = self.newer(&run);
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
            *place += u32::try_from(records.len()).expect("it is at most what was asked for");
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
