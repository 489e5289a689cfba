//! Rewrites, from the choice of their sources to the files that go.

use super::budget::urgency;
use super::job::{Job, JobError};
use super::tiers::{self, Candidate};
use super::{LogRef, Planned, SPACE_LOOK_NS, Upkeep, as_ns};
use crate::config::SpaceConfig;
use crate::directories::FlushError;
use crate::flush_routing::StorageFault;
use crate::space_desk::Cause;
use crate::stats::Counters;
use bindery_io::canary::Canary;
use bindery_storage::{DirectoryCommit, DirectoryError, EntryLog, IndexUse, LogId};
use std::sync::Arc;
use std::time::Duration;

/// Reads of the disk in one step, when little or nothing is copied.
const WORK_MAX: u64 = 4096;
/// Longest step, because a flush waits for one, and the pieces of work between two readings of the clock.
const STEP_NS: u64 = 3_000_000;
const CLOCK_EVERY: u64 = 32;
/// Rewrites under way at a time.
const JOBS_MAX: usize = 4;
/// A merge begins beside those that have so many times its bytes.
const SMALLER_BY: u64 = 4;
/// After a merge that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

impl Upkeep {
    /// Begins rewrites that are due, and copies on in one.
    pub(super) fn rewrite_on(&mut self, now: u64) -> Result<(), FlushError> {
        if !self.space.has_job(Cause::Compaction)
            && let Some(planned) = self.next_compaction()
        {
            self.space.merged_since = 0;
            self.begin_job(now, &planned);
            return Ok(());
        }
        let Some(mut job) = self.space.take_job() else { return Ok(()) };
        let directory = job.directory();
        if self.directories.routing().has_failed(directory) {
            job.give_up(&self.directories[directory]);
            return Ok(());
        }
        let (mut copied, mut footer, mut work, mut pieces) = (0, 0, 0, 0u64);
        // The budget may have bytes for several steps.
        let limit = self.space.budget.available().min(self.shared.config().space.step_bytes).max(1);
        let outcome = loop {
            match job.advance(self) {
                Ok(piece) => {
                    copied += piece.copied;
                    footer += piece.footer;
                    work += piece.work;
                    pieces += 1;
                    let is_long = (piece.is_long || pieces.is_multiple_of(CLOCK_EVERY))
                        && self.clock.monotonic_ns().saturating_sub(now) >= STEP_NS;
                    if piece.is_done || copied + footer >= limit || work >= WORK_MAX || is_long {
                        break Ok(piece.is_done);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.space.budget.spend(copied + footer);
        self.shared.space().on_copied(copied);
        match outcome {
            Ok(false) => self.space.jobs.push(job),
            Ok(true) => self.finish_job(now, job)?,
            Err(JobError::Source(log, error)) => {
                self.skip(log, &error.to_string());
                // The others are tried again without it; those of a merge are chosen again.
                let (cause, live) = (job.cause(), job.live());
                let rest = job.give_up(&self.directories[directory]);
                let rest: Vec<LogId> = rest.into_iter().filter(|log_id| *log_id != log.1).collect();
                if !rest.is_empty() && cause == Cause::Compaction {
                    self.space.planned.push_front(Planned { directory, logs: rest, cause, live });
                }
            }
            Err(JobError::PutOff(error)) => {
                job.give_up(&self.directories[directory]);
                self.put_off_rewrites(now, directory, error);
            }
        }
        Ok(())
    }

    /// Begins a merge when there are enough small logs and room for what it makes. One of small logs need not wait for one of
    /// large ones, which takes long. Directories take turns.
    pub(super) fn begin_merge(&mut self, now: u64, config: &SpaceConfig) {
        let backlog = self.begin_merge_if_due(now, config);
        // Merges may wait for a compaction, or for a collection that has not weighed their logs yet.
        let is_busy = !self.space.jobs.is_empty() || self.is_collecting();
        self.space.budget.set_urgency(if is_busy { urgency(backlog, config.merge_fan_in) } else { 0 });
    }

    /// Takes the next compaction, if it may begin now.
    fn next_compaction(&mut self) -> Option<Planned> {
        if !self.has_memory_for_planned() {
            return None;
        }
        let planned = self.space.planned.pop_front()?;
        let index = planned.directory;
        if self.room(index).takes(planned.live) {
            return Some(planned);
        }
        // The room that it had when it was planned is taken. It waits if rewrites under way will give room back; otherwise the next
        // collection looks again.
        if self.rewrites_beside(index).next().is_some() {
            self.space.planned.push_back(planned);
        } else {
            let (directory, live) = (self.shared.config().ledger_dirs[index].display(), planned.live);
            tracing::info!(%directory, live, "no room for a rewrite now: leaving it to the next collection");
        }
        None
    }

    /// The next compaction may begin. Without other rewrites it does in any case, and goes on beyond the index pool as indexes
    /// themselves do: where these have filled it nothing would be rewritten otherwise, and logs only become more.
    fn has_memory_for_planned(&self) -> bool {
        let Some(Planned { directory, logs, .. }) = self.space.planned.front() else { return false };
        self.space.jobs.is_empty() || self.has_memory_for(*directory, logs)
    }

    /// The index pool has room for the runs of what is made of these logs, beside those of the rewrites under way. Extents in
    /// memory make room with the next commit.
    fn has_memory_for(&self, directory: usize, logs: &[LogId]) -> bool {
        let view = &self.shared.views()[directory];
        let logs: Vec<Arc<EntryLog>> = logs.iter().filter_map(|log_id| view.log(*log_id)).collect();
        let expected = Job::memory_of(logs.iter().map(|log| &**log));
        let under_way: u64 = self.space.jobs.iter().map(Job::memory_bytes).sum();
        let indexes: u64 = self.shared.views().iter().map(|view| view.index_bytes()).sum();
        let pool = &self.shared.memory().index;
        pool.used(IndexUse::Ledgers) + indexes + under_way + expected <= pool.capacity()
    }

    /// Returns how many logs merges are behind, in the directory where it is most.
    fn begin_merge_if_due(&mut self, now: u64, config: &SpaceConfig) -> usize {
        let has_room = self.space.jobs.len() < JOBS_MAX;
        let (taken, mut backlog) = (self.space.taken(), 0);
        let count = self.directories.len();
        self.space.merge_not_before_ns.resize(count, 0);
        for step in 0..count {
            let index = (self.space.next_merge + step) % count;
            if self.directories.routing().has_failed(index) || now < self.space.merge_not_before_ns[index] {
                continue;
            }
            let at = |candidate: &Candidate| (index, candidate.log_id);
            let mut candidates = Vec::new();
            self.shared.views()[index]
                .visit_logs(|log, is_on_disk| candidates.push(Candidate::of(log, is_on_disk)));
            candidates.retain(|log| !self.is_left_out(at(log)));
            // Those that a rewrite has, or is planned for, are there until it ends.
            let of_others = backlog;
            backlog = backlog.max(tiers::backlog(&candidates, config));
            candidates.retain(|log| !taken.contains(&at(log)));
            let Some(chosen) = tiers::choose(&candidates, config).filter(|_| has_room) else { continue };
            let bytes: u64 = candidates.iter().filter(|c| chosen.contains(&c.log_id)).map(|c| c.bytes).sum();
            let directory = &self.directories[index];
            let merges = self.space.jobs.iter().filter(|job| job.cause() == Cause::Merge);
            if merges.map(Job::bytes).any(|running| running < bytes.saturating_mul(SMALLER_BY)) {
                continue;
            }
            // Beside others it must be smaller than they are, so what a compaction waits for comes to an end; alone it waits for its
            // turn.
            let may_begin = match self.space.jobs.is_empty() {
                true => !self.space.is_compactions_turn(),
                false => self.has_memory_for(index, &chosen),
            };
            if !may_begin {
                continue;
            }
            // The room that is left belongs to flushes and compaction.
            let under_way = self.still_needed(index);
            let has_room = directory.disk().space(directory.path()).is_ok_and(|space| {
                space.free > bytes.saturating_mul(2).max(space.total / 20).saturating_add(under_way)
            });
            if has_room {
                self.begin_job(
                    now,
                    &Planned { directory: index, logs: chosen, cause: Cause::Merge, live: bytes },
                );
                self.space.merged_since = self.space.merged_since.saturating_add(bytes);
                self.space.next_merge = (index + 1) % count;
                break;
            }
            // More time would let no merge begin here.
            backlog = of_others;
        }
        backlog
    }

    /// A commit that brings no log. `false`: it found no space and is tried again with the next collection; any other
    /// failure costs the directory.
    pub(super) fn commit_space(
        &mut self,
        index: usize,
        commit: &DirectoryCommit<'_>,
    ) -> Result<bool, FlushError> {
        let Err(error) = self.directories[index].commit(commit) else { return Ok(true) };
        match self.directories.fault_of(index, &error) {
            StorageFault::Failed(reason) => Err(self.directories.fail(index, reason)),
            StorageFault::Short(what, reason) => {
                let error = self.directories.error(index, reason.clone());
                tracing::warn!(%error, ?what, "no space is reclaimed in this directory while that is short");
                self.shared.space().on_error(reason);
                Ok(false)
            }
        }
    }

    fn begin_job(&mut self, now: u64, planned: &Planned) {
        let index = planned.directory;
        if self.directories.routing().has_failed(index) {
            return;
        }
        let (view, in_work) = (&self.shared.views()[index], self.space.in_work());
        let is_free = |at: LogRef| !in_work.contains(&at) && !self.is_left_out(at);
        let free = planned.logs.iter().filter(|log_id| is_free((index, **log_id)));
        let sources: Vec<Arc<EntryLog>> = free.filter_map(|log_id| view.log(*log_id)).collect();
        if planned.cause == Cause::Merge && sources.len() < 2 {
            return;
        }
        let Some(generation) = sources.iter().map(|log| log.generation()).max() else { return };
        match self.directories[index].begin_log(generation) {
            Ok(writer) => self.space.jobs.push(Job::new(index, planned.cause, planned.live, sources, writer)),
            Err(error) => self.put_off_rewrites(now, index, error.to_string()),
        }
    }

    fn finish_job(&mut self, now: u64, job: Job) -> Result<(), FlushError> {
        let (index, cause, output_id) = (job.directory(), job.cause(), job.output());
        let sources: Vec<LogId> = job.sources().into_iter().map(|(_, log_id)| log_id).collect();
        let freed = self.bytes_of(index, &sources);
        let (output, read_back) = job.into_output().unzip();
        if self.shared.config().canaries.has(Canary::M22UnlinkBeforeCommit) {
            self.directories[index].unlink_now(&sources);
        }
        let commit = DirectoryCommit { logs_removed: &sources, ..Default::default() };
        match self.directories[index].commit_read(&commit, read_back.into_iter().collect()) {
            Ok(()) => {}
            // Nothing was committed: the output does not read back as it was written. The sources are as they were.
            Err(DirectoryError::Log(error)) => {
                if let Err(error) = self.directories[index].discard(output_id) {
                    tracing::warn!(%error, "cannot delete an unfinished entry log: it stays until the next start");
                }
                self.put_off_rewrites(now, index, error.to_string());
                return Ok(());
            }
            Err(error) => {
                if self.directories.fault_of(index, &error).may_pass() {
                    // Not in force; nothing but space or a descriptor is missing.
                    let _ = self.directories[index].discard(output_id);
                    self.put_off_rewrites(now, index, error.to_string());
                    return Ok(());
                }
                return Err(self.directories.fail(index, error.to_string()));
            }
        }
        let grace = as_ns(self.shared.config().space.replaced_grace);
        self.on_replaced(now.saturating_add(grace), index, &sources);
        let made = output.map_or(0, |output| output.size);
        self.shared.space().on_rewritten(cause, sources.len() as u64, freed, made);
        let counters = self.shared.counters();
        let counter = match cause {
            Cause::Compaction => &counters.compacted_bytes,
            Cause::Merge => &counters.merged_bytes,
        };
        Counters::add(counter, made);
        self.unlink_replaced(now);
        Ok(())
    }

    /// An output could not be made in this directory. Compaction tries again with the next collection, merging after a
    /// while. The other directories go on: theirs may have room.
    fn put_off_rewrites(&mut self, now: u64, directory: usize, error: String) {
        tracing::error!(error, "an entry log rewrite failed and will be retried; the logs are unchanged");
        self.shared.space().on_error(error);
        self.space.planned.retain(|planned| planned.directory != directory);
        let pause = self.shared.config().space.collection_interval.min(RETRY_PAUSE);
        self.space.merge_not_before_ns.resize(self.directories.len(), 0);
        self.space.merge_not_before_ns[directory] = now.saturating_add(as_ns(pause));
    }

    /// `false`: there is no space for the commit, and they stay.
    pub(super) fn drop_logs(&mut self, index: usize, logs: &[LogId]) -> Result<bool, FlushError> {
        if logs.is_empty() {
            return Ok(true);
        }
        let freed = self.bytes_of(index, logs);
        let commit = DirectoryCommit { logs_removed: logs, ..Default::default() };
        if !self.commit_space(index, &commit)? {
            return Ok(false);
        }
        self.shared.space().on_dropped(logs.len() as u64, freed);
        self.space.unplan(index, logs);
        let now = self.clock.monotonic_ns();
        // Their contents are no longer needed.
        self.on_replaced(now, index, logs);
        self.unlink_replaced(now);
        Ok(true)
    }

    fn bytes_of(&self, index: usize, logs: &[LogId]) -> u64 {
        let live = self.shared.views()[index].logs();
        live.iter().filter(|log| logs.contains(&log.log_id())).map(|log| log.size()).sum()
    }

    fn on_replaced(&mut self, may_go_ns: u64, index: usize, logs: &[LogId]) {
        for log_id in logs {
            self.space.replaced.insert((index, *log_id), may_go_ns);
            self.space.scrub.forget((index, *log_id));
            self.shared.damage().forget((index, *log_id));
            self.space.dead.forget((index, *log_id));
        }
    }

    /// Removes the files of replaced logs whose grace is over, or all of them where space is short. A file that cannot be
    /// removed is removed by the next start.
    pub(super) fn unlink_replaced(&mut self, now: u64) {
        if self.space.replaced.is_empty() {
            return;
        }
        for index in 0..self.directories.len() {
            let is_short = self.is_short(now, index);
            let replaced = &self.space.replaced;
            let is_due = |log_id: LogId| {
                is_short || replaced.get(&(index, log_id)).is_none_or(|may_go| now >= *may_go)
            };
            let directory = &mut self.directories[index];
            if !directory.withdrawn().any(|(log_id, _)| is_due(log_id)) {
                continue;
            }
            if let Err(error) = directory.unlink_withdrawn_if(is_due) {
                tracing::warn!(%error, "cannot delete an entry log whose live entries are in other logs: it stays \
                 until the next start");
                self.shared.space().on_error(error.to_string());
            }
        }
        let directories = &self.directories;
        let withdrawn = |(index, log_id): &LogRef| {
            directories[*index].withdrawn().any(|(withdrawn, _)| withdrawn == *log_id)
        };
        self.space.replaced.retain(|log, _| withdrawn(log));
        let bytes =
            self.directories.iter().flat_map(|directory| directory.withdrawn()).map(|(_, bytes)| bytes);
        self.shared.space().set_replaced(self.space.replaced.len() as u64, bytes.sum());
    }

    /// Less than a twentieth of the volume is free: room matters more than grace.
    fn is_short(&mut self, now: u64, index: usize) -> bool {
        self.space.short.resize(self.directories.len(), (0, false));
        let (asked_ns, is_short) = self.space.short[index];
        if asked_ns > 0 && now.saturating_sub(asked_ns) < SPACE_LOOK_NS {
            return is_short;
        }
        let directory = &self.directories[index];
        let space = directory.disk().space(directory.path());
        let is_short = space.is_ok_and(|space| space.free < space.total / 20);
        self.space.short[index] = (now.max(1), is_short);
        is_short
    }
}
