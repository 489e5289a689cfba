//! Giving space back, and looking after what is kept: logs without live entries are dropped, logs with few are
//! rewritten, small ones merged, removed ledgers forgotten, all logs checked in the background.
//!
//! Runs in small steps on the owner of the directories, between two flushes and in the pauses of one. Each step ends
//! soon, so a flush waits for one step at most.
//!
//! # Data flow
//! ```text
//! collection due -> plan, in steps: usage of each log (extents, removals, newer copies)
//!                     |- nothing live -> commits without them, some at a time
//!                     '- live share below a threshold -> jobs, lowest share first
//! many small logs -> job (`tiers`)
//! job: winners of the sources, verified -> output, with their order -> one commit: output in, sources out
//! dropped files -> unlinked when no reader holds them; replaced ones after a grace, and at once when space is short
//! time passes -> scrub: a piece of the next log, checked (`scrub`)
//! ```
//!
//! # Invariants
//! 1. A copy counts as dead only when a removal that is committed hides it (while a flush waits for space: one that is durable
//!    in the journal), a trim that is committed in every directory says that its entry is read from object storage (T9), or a
//!    newer copy of its entry is in a committed log. A copy that cannot be read to decide this counts as live (IB15).
//! 2. A copy wins and loses against the same others after a rewrite as before. It keeps its generation, or takes a
//!    higher one under the rule of `job`.
//! 3. Sources leave in the commit that brings the output, and their files go after it (IB15, IB18).
//! 4. A log that cannot be read is skipped and reported, and the others go on (BookKeeper #4596). It is tried again in
//!    the next collection; one that the scrub found damaged only when a later pass finds it sound.
//! 5. The memory of a removed ledger goes from the shard first and from the tables afterwards; records that come in
//!    between say that the ledger exists, so a restart with the old memory applies them too. In the tables it goes last
//!    from the directory that has it, or an older record of the ledger elsewhere would come back. What is frozen in
//!    between is of a later life than that memory, so that it counts whether or not the tables forget.
//! 6. An output that cannot be written, or does not read back as it was written, is removed again; its sources stay,
//!    and another attempt comes later. Only a commit that fails is serious: then nobody knows what is in force.
//! 7. Scrub and rewrites spend from one budget by turns, so that neither keeps the other from going on.
//! 8. A full volume has a way out: dropping a log needs a commit only, no rewrite is planned whose output takes more than is
//!    free for it, and flushes leave room for rewrites (`room`).
//! 9. A plan under way runs to its end, whatever collections are requested meanwhile: a request waits for it, and is
//!    dropped when the collection under way does as much and nothing was removed. Logs without live entries go while the
//!    others are still being weighed.
//! 10. A directory without space for a commit or an output keeps no other from being collected, and is tried again with
//!     the next collection.
//!
//! # Limits
//! One job at a time; bytes of a step and of a second, over compaction, merging and scrub together: [`SpaceConfig`].
//! Memory and work of a step: see `job`, `plan` and `scrub`.

mod budget;
mod job;
mod plan;
mod rewrite;
mod room;
mod scrub;
mod status;
mod tiers;

pub(crate) use status::SpaceDesk;
pub use status::{ScrubFinding, ScrubPass, ScrubStatus, SpaceStatus, WantedCollection};

use crate::config::SpaceConfig;
use crate::direct_fence::DIRECT_FENCE_PAUSE;
use crate::machine::{FlushError, Flushing};
use bindery_io::canary::Canary;
use bindery_storage::{DirectoryCommit, EntryLog, Extent, LogId, ReadError, Source};
use bindery_types::{EntryId, LedgerId};
use budget::Budget;
use job::{Cause, Job};
use plan::Plan;
use scrub::Scrub;
use status::CompactionKind;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What happens to a log that is not read: its directory and its id.
type LogRef = (usize, LogId);

/// Adds that wait for room put steps off so long, and no longer: compaction is what gives a full disk room back.
const PUT_OFF_MAX: Duration = Duration::from_secs(1);
/// Between two steps that copy nothing.
const STEP_PAUSE: Duration = Duration::from_millis(1);
/// Free space is asked for so often while files wait for their grace.
const SPACE_LOOK_NS: u64 = 1_000_000_000;

/// Logs of one directory to be rewritten into one output.
struct Planned {
    directory: usize,
    logs: Vec<LogId>,
    cause: Cause,
}

/// What the newer runs say about a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// None of them holds the entry: each was read.
    Winner,
    /// One cannot be read, or a log cannot say what it has, and none is known to hold it: it counts as live.
    InDoubt,
    /// One of them holds the entry.
    Loser,
}

/// What is certain of a run without looking at newer copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Liveness {
    /// A removal hides it, or all of it was let go because it is in object storage.
    Dead,
    /// Its entries from this one on are live; the others were let go.
    From(EntryId),
    /// All of it.
    Live,
}

/// Newer than a run, and overlapping it.
#[derive(Default)]
struct Newer {
    runs: Vec<Source>,
    /// Logs that cannot say what they have.
    unread: Vec<(LogRef, ReadError)>,
    /// Footers that were asked for it.
    reads: u64,
    /// Others were not: their logs could not be read before.
    is_partial: bool,
}

/// Where collection, compaction, merging and scrub stand.
pub(crate) struct Space {
    job: Option<Job>,
    /// Still to be rewritten.
    planned: VecDeque<Planned>,
    /// The collection under way.
    plan: Option<Plan>,
    /// Not readable in this round.
    skipped: BTreeMap<LogRef, String>,
    /// Replaced logs whose files are still there, and from when on they may go.
    replaced: BTreeMap<LogRef, u64>,
    /// When free space was asked for last, and whether it is short, for each directory.
    short: Vec<(u64, bool)>,
    budget: Budget,
    scrub: Scrub,
    /// The last step was the scrub's: the next is a rewrite's, if there is one.
    is_rewrites_turn: bool,
    stepped_ns: u64,
    collected_ns: u64,
    minor_ns: u64,
    major_ns: u64,
    /// After a merge that failed, no other before.
    merge_not_before_ns: u64,
}

impl Space {
    pub(crate) fn new(now_ns: u64, config: &SpaceConfig) -> Space {
        Space {
            job: None,
            planned: VecDeque::new(),
            plan: None,
            skipped: BTreeMap::new(),
            replaced: BTreeMap::new(),
            short: Vec::new(),
            budget: Budget::new(now_ns, config),
            scrub: Scrub::new(now_ns),
            is_rewrites_turn: false,
            stepped_ns: now_ns,
            collected_ns: now_ns,
            minor_ns: now_ns,
            major_ns: now_ns,
            merge_not_before_ns: now_ns,
        }
    }

    /// Logs that the job under way reads.
    fn in_work(&self) -> Vec<LogRef> {
        self.job.as_ref().map(Job::sources).unwrap_or_default()
    }

    /// True of a log that cannot be read, as far as known.
    fn is_left_out(&self, log: LogRef) -> bool {
        self.skipped.contains_key(&log) || self.scrub.is_damaged(log)
    }

    /// A compaction is planned or under way.
    fn is_compacting(&self) -> bool {
        let is_compaction = |cause: Cause| cause == Cause::Compaction;
        self.job.as_ref().is_some_and(|job| is_compaction(job.cause()))
            || self.planned.iter().any(|planned| is_compaction(planned.cause))
    }
}

impl Flushing {
    /// One step. Returns after how long it wants to be called again, `None` when there is nothing to do before the next
    /// collection is due. After an error the engine is latched.
    pub fn tend(&mut self) -> Result<Option<Duration>, FlushError> {
        let is_failed = self.engine.is_failed();
        if is_failed {
            self.fence_directly();
        }
        let soon = self.tend_space()?;
        let retry = self.is_waiting().then_some(self.engine.config.space_retry_interval);
        Ok(soon.into_iter().chain(retry).chain(is_failed.then_some(DIRECT_FENCE_PAUSE)).min())
    }

    fn tend_space(&mut self) -> Result<Option<Duration>, FlushError> {
        let now = self.clock.monotonic_ns();
        let config = self.engine.config.space.clone();
        let counters = &self.engine.counters;
        let journal = (counters.journal_groups.load(Relaxed), counters.journal_write_ns.load(Relaxed));
        self.space.budget.refill(now, &config, journal);
        if self.engine.is_failed() {
            // Nothing is written any more; whether it is sound is worth knowing all the more.
            return Ok(self.scrub_on(now, &config));
        }
        self.unlink_replaced(now);
        // Requests meanwhile wait: a plan that restarted each time would not end where there are many logs.
        if self.space.plan.is_none() {
            let wanted = self.engine.space.take_wanted(|| self.are_removals_flushed());
            let is_due = now.saturating_sub(self.space.collected_ns) >= as_ns(config.collection_interval);
            if wanted.is_some() || (is_due && !self.space.is_compacting()) {
                self.collect(now, wanted.unwrap_or_default())?;
            }
        }
        if self.space.plan.is_some() {
            self.plan_on()?;
            if self.space.plan.is_some() {
                return Ok(Some(STEP_PAUSE));
            }
        }
        if self.space.job.is_none() && self.space.planned.is_empty() {
            self.plan_merge(now, &config);
        }
        let has_rewrite = self.space.job.is_some() || !self.space.planned.is_empty();
        // Both spend from one budget: in turns, a scrub in a hurry keeps no space from coming back.
        let scrub =
            if has_rewrite && self.space.is_rewrites_turn { None } else { self.scrub_on(now, &config) };
        let sooner = |pause: Duration| Some(scrub.map_or(pause, |scrub| scrub.min(pause)));
        if !has_rewrite {
            return Ok(scrub);
        }
        if self.space.budget.available() == 0 || self.is_put_off(now) {
            return Ok(sooner(self.space.budget.pause(&config).max(Duration::from_millis(5))));
        }
        self.space.stepped_ns = now;
        self.space.is_rewrites_turn = false;
        self.rewrite_on(now)?;
        if !self.space.is_compacting() {
            self.engine.space.set_compacting(None);
        }
        // Also behind the last one: what it made, or could not, may call for the next.
        Ok(sooner(self.space.budget.pause(&config)))
    }

    /// A step of the scrub and of nothing else.
    pub fn scrub_alone(&mut self) {
        let now = self.clock.monotonic_ns();
        let config = self.engine.config.space.clone();
        self.space.budget.refill(now, &config, (0, 0));
        self.scrub_on(now, &config);
    }

    /// A step in a pause of a flush, whose log is not committed yet; true when it read or wrote anything. An error
    /// latches the engine, as the flush will find.
    pub(crate) fn tend_aside(&mut self) -> bool {
        let before = self.space.budget.spent();
        let _ = self.tend();
        self.space.budget.spent() > before
    }

    /// Adds that wait for room want the disk for a flush.
    fn is_put_off(&self, now: u64) -> bool {
        now.saturating_sub(self.space.stepped_ns) < as_ns(PUT_OFF_MAX) && self.engine.adds_wait()
    }

    /// Begins a collection.
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
        self.space.planned.clear();
        self.engine.space.on_begun(kind);
        let in_work = self.space.in_work();
        self.space.plan = Some(Plan::new(self, kind, threshold, &in_work));
        Ok(())
    }

    /// All removals so far count: they are in the state tables, or nothing gets there for want of space.
    fn are_removals_flushed(&self) -> bool {
        if self.counts_journal() {
            return true;
        }
        let is_flushed =
            |index: usize| self.engine.shards[index].lock().last_removal() <= self.flushed_generation(index);
        (0..self.engine.shards.len()).all(is_flushed)
    }

    /// While a flush waits for space, the removals behind it count as soon as the journal has them: dropping what they hide is
    /// what gives the flush its space. A journal without sync has nothing for certain.
    fn counts_journal(&self) -> bool {
        self.is_waiting() && self.engine.config.journal_sync
    }

    /// A removal that outlives a power cut says that the run is gone.
    fn is_hidden(&self, extent: &Extent) -> bool {
        let index = self.engine.shard_of(extent.ledger);
        let shard = &self.engine.shards[index];
        let believes_all = self.engine.config.canaries.has(Canary::M27UncommittedRemovalCounts);
        let flushed = if believes_all { u64::MAX } else { self.flushed_generation(index) };
        let in_journal = self.counts_journal();
        extent.generation.0 < shard.lock().hidden_for_good(extent.ledger, flushed, in_journal)
    }

    /// What is certain of a run: what is committed says it.
    fn liveness(&self, extent: &Extent) -> Liveness {
        if self.is_hidden(extent) {
            return Liveness::Dead;
        }
        let shard = &self.engine.shards[self.engine.shard_of(extent.ledger)];
        let believes_all = self.engine.config.canaries.has(Canary::M43UncommittedTrimCounts);
        let trimmed = shard.lock().trimmed_for_good(extent.ledger, believes_all);
        match trimmed {
            Some(trimmed) if trimmed >= extent.last => Liveness::Dead,
            Some(trimmed) if trimmed >= extent.first => {
                Liveness::From(EntryId::new(trimmed.get() + 1).expect("it is below another entry"))
            }
            _ => Liveness::Live,
        }
    }

    /// No removal came after the run, committed or not: its copies may take a higher generation.
    fn may_rise(&self, extent: &Extent) -> bool {
        let shard = &self.engine.shards[self.engine.shard_of(extent.ledger)];
        extent.generation.0 >= shard.lock().hidden_below(extent.ledger)
    }

    /// A live log and its runs. One whose runs cannot be read is skipped: it counts as live.
    fn log_with_runs(&mut self, index: usize, log_id: LogId) -> Option<(Arc<EntryLog>, Vec<Extent>)> {
        let log = self.engine.views[index].log(log_id)?;
        match self.engine.views[index].runs_of_log(&log) {
            Ok(runs) => Some((log, runs)),
            Err(error) => {
                self.skip((index, log_id), &error.to_string());
                None
            }
        }
    }

    fn newer(&self, extent: &Extent) -> Newer {
        let mut newer = Newer::default();
        for (index, view) in self.engine.views.iter().enumerate() {
            // A footer on bad sectors takes the disk long to give up on, and is asked once in a collection.
            let found = view.newer(extent, |log_id| self.space.skipped.contains_key(&(index, log_id)));
            newer.runs.extend(found.runs);
            newer.reads += found.reads;
            newer.is_partial |= found.is_partial;
            newer.unread.extend(found.unread.into_iter().map(|(log_id, error)| ((index, log_id), error)));
        }
        newer
    }

    /// What the newer runs say, and how many of them were read.
    fn judge(&self, newer: &Newer, entry: EntryId) -> (Verdict, u64) {
        if self.engine.config.canaries.has(Canary::M26CompactionKeepsLosers) {
            return (Verdict::Winner, 0);
        }
        // What cannot be read proves nothing (IB15).
        let is_proven = newer.unread.is_empty() && !newer.is_partial;
        let unproven = if is_proven { Verdict::Winner } else { Verdict::InDoubt };
        let (mut verdict, mut reads) = (unproven, 0);
        for Source { log, extent } in newer.runs.iter().filter(|source| source.extent.may_hold(entry)) {
            reads += 1;
            match log.lookup(extent, entry) {
                Ok(Some(_)) => return (Verdict::Loser, reads),
                Ok(None) => {}
                Err(_) => verdict = Verdict::InDoubt,
            }
        }
        (verdict, reads)
    }

    fn skip(&mut self, log: LogRef, reason: &str) {
        let (index, log_id) = log;
        if self.space.skipped.insert(log, reason.to_owned()).is_none() {
            let directory = self.engine.config.ledger_dirs[index].display().to_string();
            tracing::error!(directory, %log_id, reason, "an entry log is left out of the collection of space");
            self.engine.space.on_skipped(format!("{directory}/{log_id}"), reason);
        }
    }

    /// Forgets the removed ledgers that nothing mentions any more; returns how many: none when a directory has no space
    /// for it. After an error the engine is latched.
    pub fn forget_removed(&mut self) -> Result<usize, FlushError> {
        // A failed directory could bring what the others forget back at the next start.
        if self.engine.is_failed() || self.placement.has_any_failed() {
            return Ok(0);
        }
        let directory_count = self.directories.len();
        // Of each directory, the ledgers whose memory it has.
        let mut forgotten: Vec<Vec<LedgerId>> = vec![Vec::new(); directory_count];
        for (index, shard) in self.engine.shards.iter().enumerate() {
            let has_copies = |ledger| self.engine.views.iter().any(|view| view.may_have(ledger));
            let flushed = self.flushed_generation(index);
            forgotten[index % directory_count].extend(shard.lock().forget(flushed, has_copies));
        }
        let committed = self.commit_forgetting(&forgotten);
        for shard in &self.engine.shards {
            shard.lock().end_forgetting(matches!(committed, Ok(true)));
        }
        let count = forgotten.iter().map(Vec::len).sum();
        committed.map(|is_committed| if is_committed { count } else { 0 })
    }

    /// Of each directory, the ledgers whose memory it has: that goes from the others first (invariant 5). `false`: one
    /// of them has no space for it.
    fn commit_forgetting(&mut self, forgotten: &[Vec<LedgerId>]) -> Result<bool, FlushError> {
        let directory_count = forgotten.len();
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
                if !self.commit_space(index, &commit)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
