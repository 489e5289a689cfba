//! Giving space back: logs without live entries are dropped, logs with few are rewritten, removed ledgers forgotten.
//!
//! Runs in small steps on the owner of the directories, between two flushes. Each step ends soon, so a flush waits for
//! one step at most.
//!
//! # Data flow
//! ```text
//! collection due -> usage of each log (extents, removals, newer copies)
//!                     |- nothing live -> one commit without them
//!                     '- live share below a threshold -> jobs, lowest share first
//! job: winners of the sources, verified -> output, with their generations -> one commit: output in, sources out
//! withdrawn files -> unlinked when no reader holds them
//! ```
//!
//! # Invariants
//! 1. A copy counts as dead only when a removal that is committed hides it, or a newer copy of its entry is in a
//!    committed log. What cannot be read to decide this counts as live (IB15).
//! 2. A copy keeps its generation, so it wins and loses against the same others as before.
//! 3. Sources leave in the commit that brings the output, and their files go after it (IB15, IB18).
//! 4. A log that cannot be read is skipped and reported, and the others go on (BookKeeper #4596). It is tried again in
//!    the next collection.
//! 5. The memory of a removed ledger goes from the shard first and from the tables afterwards; records that come in
//!    between say that the ledger exists, so a restart with the old memory applies them too. In the tables it goes last
//!    from the directory that has it, or an older record of the ledger elsewhere would come back.
//!
//! # Limits
//! One job at a time; bytes of a step and of a second: [`SpaceConfig`]. A job holds the index of one run of its sources
//! (or of as many as overlap), and the writer's buffer of 1 MiB. Planning reads the extents in memory, and from disk the
//! index of runs that newer ones overlap.

mod job;
mod status;

pub(crate) use status::SpaceDesk;
pub use status::{SpaceStatus, WantedCollection};

use crate::config::SpaceConfig;
use crate::machine::{FlushError, Flushing};
use bindery_io::canary::Canary;
use bindery_storage::{DirectoryCommit, EntryLog, Extent, LogId, ReadError, Source};
use bindery_types::LedgerId;
use job::Job;
use status::CompactionKind;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// What happens to a log that is not read: its directory and its id.
type LogRef = (usize, LogId);

/// Adds that wait for room put steps off so long, and no longer: compaction is what gives a full disk room back.
const PUT_OFF_MAX: Duration = Duration::from_secs(1);

/// Where collection and compaction stand.
pub(crate) struct Space {
    job: Option<Job>,
    /// Groups of logs still to be rewritten, each into one output.
    planned: VecDeque<(usize, Vec<LogId>)>,
    /// Not readable in this round.
    skipped: BTreeMap<LogRef, String>,
    /// Bytes that may be copied now.
    tokens: i64,
    refilled_ns: u64,
    stepped_ns: u64,
    collected_ns: u64,
    minor_ns: u64,
    major_ns: u64,
}

/// What a log holds, in bytes of runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    live: u64,
    total: u64,
}

impl Space {
    pub(crate) fn new(now_ns: u64, config: &SpaceConfig) -> Space {
        Space {
            job: None,
            planned: VecDeque::new(),
            skipped: BTreeMap::new(),
            tokens: i64::try_from(config.step_bytes).unwrap_or(i64::MAX),
            refilled_ns: now_ns,
            stepped_ns: now_ns,
            collected_ns: now_ns,
            minor_ns: now_ns,
            major_ns: now_ns,
        }
    }

    fn refill(&mut self, now_ns: u64, config: &SpaceConfig) {
        let elapsed = u128::from(now_ns.saturating_sub(self.refilled_ns));
        let earned = elapsed * u128::from(config.bytes_per_second) / 1_000_000_000;
        // What is less than a byte is not lost: the time it took is counted again.
        if earned > 0 {
            self.refilled_ns = now_ns;
            let most = i64::try_from(config.step_bytes).unwrap_or(i64::MAX);
            self.tokens = self.tokens.saturating_add(i64::try_from(earned).unwrap_or(i64::MAX)).min(most);
        }
    }

    /// How long until a step may copy again.
    fn pause(&self, config: &SpaceConfig) -> Duration {
        let missing = u128::from(self.tokens.min(0).unsigned_abs()) + 1;
        let ns = missing * 1_000_000_000 / u128::from(config.bytes_per_second.max(1));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).max(Duration::from_millis(1))
    }
}

impl Flushing {
    /// One step of giving space back. Returns after how long it wants to be called again, `None` when there is nothing
    /// to do before the next collection is due. After an error the engine is latched.
    pub fn tend(&mut self) -> Result<Option<Duration>, FlushError> {
        if self.engine.is_failed() {
            return Ok(None);
        }
        self.unlink_withdrawn();
        let now = self.clock.monotonic_ns();
        let config = self.engine.config.space.clone();
        self.space.refill(now, &config);
        let wanted = self.engine.space.take_wanted();
        let is_due = now.saturating_sub(self.space.collected_ns) >= as_ns(config.collection_interval);
        if wanted.is_some() || (is_due && self.space.job.is_none() && self.space.planned.is_empty()) {
            self.collect(now, wanted.unwrap_or_default())?;
        }
        if self.space.job.is_none() && self.space.planned.is_empty() {
            return Ok(None);
        }
        // Adds that wait for room want the disk for a flush.
        let is_put_off =
            now.saturating_sub(self.space.stepped_ns) < as_ns(PUT_OFF_MAX) && self.engine.adds_wait();
        if self.space.tokens <= 0 || is_put_off {
            return Ok(Some(self.space.pause(&config).max(Duration::from_millis(5))));
        }
        self.space.stepped_ns = now;
        self.step()?;
        let is_done = self.space.job.is_none() && self.space.planned.is_empty();
        if is_done {
            self.engine.space.set_compacting(None);
        }
        Ok((!is_done).then(|| self.space.pause(&config)))
    }

    /// Finds out what each log is worth, drops the worthless, and plans jobs.
    fn collect(&mut self, now: u64, wanted: WantedCollection) -> Result<(), FlushError> {
        let config = self.engine.config.space.clone();
        self.space.collected_ns = now;
        self.space.skipped.clear();
        self.engine.space.begin_skipping();
        self.forget_removed()?;
        let is_due = |last: u64, interval: Duration| {
            !interval.is_zero() && now.saturating_sub(last) >= as_ns(interval)
        };
        // A major run does what a minor one would.
        let kind = if wanted.major || is_due(self.space.major_ns, config.major_interval) {
            Some(CompactionKind::Major)
        } else if wanted.minor || is_due(self.space.minor_ns, config.minor_interval) {
            Some(CompactionKind::Minor)
        } else {
            None
        };
        let threshold = match kind {
            None => 0.0,
            Some(CompactionKind::Minor) => config.minor_threshold,
            Some(CompactionKind::Major) => config.major_threshold,
        };
        if kind.is_some() {
            self.space.minor_ns = now;
        }
        if kind == Some(CompactionKind::Major) {
            self.space.major_ns = now;
        }
        let in_work = self.space.job.as_ref().map(Job::sources).unwrap_or_default();
        self.space.planned.clear();
        for index in 0..self.directories.len() {
            let mut dead = Vec::new();
            let mut poor: Vec<(u64, u64, LogId)> = Vec::new();
            for log in self.engine.views[index].logs() {
                let log_id = log.log_id();
                if in_work.contains(&(index, log_id)) {
                    continue;
                }
                let usage = self.usage(index, log_id);
                if usage.live == 0 {
                    dead.push(log_id);
                } else if (usage.live as f64) < threshold * usage.total as f64 {
                    poor.push((usage.live * 1000 / usage.total, usage.live, log_id));
                }
            }
            self.drop_logs(index, &dead)?;
            poor.sort_unstable();
            self.plan(index, &poor, config.log_bytes_max);
        }
        self.engine.space.on_collected(kind, self.space.planned.iter().map(|(_, logs)| logs.len()).sum());
        Ok(())
    }

    /// Groups logs so that each group fits one output.
    fn plan(&mut self, index: usize, poor: &[(u64, u64, LogId)], log_bytes_max: u64) {
        let (mut group, mut bytes) = (Vec::new(), 0);
        for (_, live, log_id) in poor {
            if bytes + live > log_bytes_max && !group.is_empty() {
                self.space.planned.push_back((index, std::mem::take(&mut group)));
                bytes = 0;
            }
            group.push(*log_id);
            bytes += live;
        }
        if !group.is_empty() {
            self.space.planned.push_back((index, group));
        }
    }

    fn usage(&mut self, index: usize, log_id: LogId) -> Usage {
        let Some((log, extents)) = self.engine.views[index].log(log_id) else { return Usage::default() };
        let mut usage = Usage::default();
        for extent in &extents {
            usage.total += extent.bytes();
            usage.live += match self.winners_bytes(&log, extent) {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.skip((index, log_id), &error.to_string());
                    extent.bytes()
                }
            };
        }
        usage
    }

    /// Bytes that a rewrite of the run would keep.
    fn winners_bytes(&self, log: &EntryLog, extent: &Extent) -> Result<u64, ReadError> {
        if self.is_hidden(extent) {
            return Ok(0);
        }
        let newer = self.newer(extent);
        if newer.is_empty() {
            return Ok(extent.bytes());
        }
        let mut bytes = 0;
        for record in log.entries(extent)? {
            if self.is_winner(&newer, record.entry) {
                bytes += u64::from(record.location.length) + bindery_storage::entry_log::RECORD_BYTES;
            }
        }
        Ok(bytes)
    }

    /// A committed removal says that the run is gone.
    fn is_hidden(&self, extent: &Extent) -> bool {
        let index = self.engine.shard_of(extent.ledger);
        let shard = &self.engine.shards[index];
        let believes_all = self.engine.config.canaries.has(Canary::M27UncommittedRemovalCounts);
        let flushed = if believes_all { u64::MAX } else { self.flushed_generation(index) };
        extent.generation.0 < shard.lock().hidden_for_good(extent.ledger, flushed)
    }

    fn newer(&self, extent: &Extent) -> Vec<Source> {
        self.engine.views.iter().flat_map(|view| view.newer(extent)).collect()
    }

    /// True unless one of the newer runs certainly holds the entry.
    fn is_winner(&self, newer: &[Source], entry: bindery_types::EntryId) -> bool {
        if self.engine.config.canaries.has(Canary::M26CompactionKeepsLosers) {
            return true;
        }
        // What cannot be read proves nothing (IB15).
        !newer.iter().any(|Source { log, extent }| {
            extent.may_hold(entry) && matches!(log.lookup(extent, entry), Ok(Some(_)))
        })
    }

    fn drop_logs(&mut self, index: usize, logs: &[LogId]) -> Result<(), FlushError> {
        if logs.is_empty() {
            return Ok(());
        }
        let freed = self.bytes_of(index, logs);
        let commit = DirectoryCommit { logs_removed: logs, ..Default::default() };
        self.directories[index].commit(&commit).map_err(|error| self.fail(index, error.to_string()))?;
        self.engine.space.on_dropped(logs.len() as u64, freed);
        self.unlink_withdrawn();
        Ok(())
    }

    fn bytes_of(&self, index: usize, logs: &[LogId]) -> u64 {
        logs.iter().filter_map(|log_id| Some(self.engine.views[index].log(*log_id)?.0.size())).sum()
    }

    fn skip(&mut self, log: LogRef, reason: &str) {
        let (index, log_id) = log;
        if self.space.skipped.insert(log, reason.to_owned()).is_none() {
            let directory = self.engine.config.ledger_dirs[index].display().to_string();
            tracing::error!(directory, %log_id, reason, "an entry log is left out of the collection of space");
            self.engine.space.on_skipped(format!("{directory}/{log_id}"), reason);
        }
    }

    /// Begins the next job, or copies on.
    fn step(&mut self) -> Result<(), FlushError> {
        let Some(mut job) = self.space.job.take() else {
            if let Some((index, logs)) = self.space.planned.pop_front() {
                self.begin_job(index, &logs);
            }
            return Ok(());
        };
        let mut copied = 0;
        let limit = u64::try_from(self.space.tokens).unwrap_or(0).max(1);
        let outcome = loop {
            match job.copy_next(self) {
                Ok(Some(bytes)) => {
                    copied += bytes;
                    if copied >= limit {
                        break Ok(false);
                    }
                }
                Ok(None) => break Ok(true),
                Err(error) => break Err(error),
            }
        };
        self.space.tokens -= i64::try_from(copied).unwrap_or(i64::MAX);
        self.engine.space.on_copied(copied);
        match outcome {
            Ok(false) => self.space.job = Some(job),
            Ok(true) => self.finish_job(job)?,
            Err(job::JobError::Source(log, error)) => {
                self.skip(log, &error.to_string());
                // The others are tried again without it.
                let (index, rest) = job.give_up();
                let rest: Vec<LogId> = rest.into_iter().filter(|log_id| *log_id != log.1).collect();
                if !rest.is_empty() {
                    self.space.planned.push_front((index, rest));
                }
            }
            Err(job::JobError::Output(error)) => {
                tracing::error!(error, "compaction cannot write; it is tried again with the next collection");
                self.engine.space.on_error(error);
                job.give_up();
                self.space.planned.clear();
            }
        }
        Ok(())
    }

    fn begin_job(&mut self, index: usize, logs: &[LogId]) {
        let sources: Vec<(Arc<EntryLog>, Vec<Extent>)> =
            logs.iter().filter_map(|log_id| self.engine.views[index].log(*log_id)).collect();
        let Some(generation) = sources.iter().map(|(log, _)| log.generation()).max() else { return };
        match self.directories[index].begin_log(generation) {
            Ok(writer) => self.space.job = Some(Job::new(index, sources, writer)),
            Err(error) => {
                tracing::error!(%error, "compaction cannot write; it is tried again with the next collection");
                self.engine.space.on_error(error.to_string());
                self.space.planned.clear();
            }
        }
    }

    fn finish_job(&mut self, job: Job) -> Result<(), FlushError> {
        let index = job.directory();
        let sources: Vec<LogId> = job.sources().into_iter().map(|(_, log_id)| log_id).collect();
        let freed = self.bytes_of(index, &sources);
        let output = match job.finish() {
            Ok(output) => output,
            Err(error) => {
                tracing::error!(error, "compaction cannot write; it is tried again with the next collection");
                self.engine.space.on_error(error);
                self.space.planned.clear();
                return Ok(());
            }
        };
        if self.engine.config.canaries.has(Canary::M22UnlinkBeforeCommit) {
            self.directories[index].unlink_now(&sources);
        }
        let commit =
            DirectoryCommit { logs_added: output.as_slice(), logs_removed: &sources, ..Default::default() };
        self.directories[index].commit(&commit).map_err(|error| self.fail(index, error.to_string()))?;
        self.engine.space.on_rewritten(sources.len() as u64, freed, output.map_or(0, |output| output.size));
        self.unlink_withdrawn();
        Ok(())
    }

    /// A file that cannot be removed is removed by the next start.
    fn unlink_withdrawn(&mut self) {
        for directory in &mut self.directories {
            if let Err(error) = directory.unlink_withdrawn() {
                tracing::warn!(%error, "a file of entries that live elsewhere stays until the next start");
                self.engine.space.on_error(error.to_string());
            }
        }
    }

    /// Forgets the removed ledgers that nothing mentions any more; returns how many. After an error the engine is
    /// latched.
    pub fn forget_removed(&mut self) -> Result<usize, FlushError> {
        if self.engine.is_failed() {
            return Ok(0);
        }
        let directory_count = self.directories.len();
        // Of each directory, the ledgers whose memory it has.
        let mut forgotten: Vec<Vec<LedgerId>> = vec![Vec::new(); directory_count];
        for (index, shard) in self.engine.shards.iter().enumerate() {
            let has_copies = |ledger| self.engine.views.iter().any(|view| view.last_entry(ledger).is_some());
            let flushed = self.flushed_generation(index);
            forgotten[index % directory_count].append(&mut shard.lock().forget(flushed, has_copies));
        }
        let total = forgotten.iter().map(Vec::len).sum();
        for is_last in [false, true] {
            for index in 0..directory_count {
                let of_others =
                    || (0..directory_count).filter(|other| *other != index).flat_map(|i| &forgotten[i]);
                let ledgers: Vec<LedgerId> =
                    if is_last { forgotten[index].clone() } else { of_others().copied().collect() };
                if ledgers.is_empty() {
                    continue;
                }
                let commit = DirectoryCommit { ledgers_forgotten: &ledgers, ..Default::default() };
                let committed = self.directories[index].commit(&commit);
                committed.map_err(|error| self.fail(index, error.to_string()))?;
            }
        }
        Ok(total)
    }
}

fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
