//! Giving space back, and looking after what is kept: logs without live entries are dropped, logs with few are
//! rewritten, small ones merged, removed ledgers forgotten, all logs checked in the background.
//!
//! Runs in small steps on the owner of the directories, between two flushes, in the pauses of one, and, where merges are
//! behind, between two writes of one (`merge_time`). Each step ends soon, so a flush waits for one step at most otherwise.
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
//! damage known -> is there a newer copy of each damaged one? -> the log is rewritten without them (`heal`)
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
//!    the next collection; one with known damage only when that is made good, or a later pass of the scrub finds it sound (`heal`).
//! 5. The memory of a removed ledger goes from the shard first and from the tables afterwards; records that come in
//!    between say that the ledger exists, so a restart with the old memory applies them too. In the tables it goes last
//!    from the directory that has it, or an older record of the ledger elsewhere would come back. What is frozen in
//!    between is of a later life than that memory, so that it counts whether or not the tables forget.
//! 6. An output that cannot be written, or does not read back as it was written, is removed again; its sources stay,
//!    and another attempt comes later. Only a commit that fails is serious: then it is unknown which state is in force.
//! 7. Scrub and rewrites spend from one budget by turns, so that neither keeps the other from going on.
//! 8. A full volume has a way out: dropping a log needs a commit only, no rewrite is planned whose output takes more than is
//!    free for it, and flushes leave room for rewrites (`room`).
//! 9. A plan under way runs to its end, whatever collections are requested meanwhile: a request waits for it, and is
//!    dropped when the collection under way does as much and nothing was removed. Logs without live entries go while the
//!    others are still being weighed.
//! 10. A directory without space for a commit or an output keeps no other from being collected, and is tried again with
//!     the next collection.
//! 11. Merges and compactions take turns where there is no memory or room for both. The next compaction lets merges go first until
//!     those that began have as many bytes as it copies. From then on a merge begins beside a larger one only, so what is
//!     under way ends, and the compaction begins. Logs stay planned whatever collections come; those that turn out to be dead
//!     are dropped, and leave the queue.
//!
//! # Limits
//! Four jobs at a time, of which one makes a step, and only one where the index pool has no room for the runs of several outputs:
//! then merges that are due begin between two compactions;
//! bytes of a step and of a second, over compaction, merging and scrub together: [`SpaceConfig`].
//! Memory and work of a step: see `job`, `plan` and `scrub`.

mod budget;
mod dead;
mod heal;
mod job;
mod merge_time;
mod plan;
mod rewrite;
mod room;
mod scrub;
mod tiers;

use crate::config::SpaceConfig;
use crate::damage::{LogRef, Standing};
use crate::directories::{Directories, FlushError};
use crate::shared::Shared;
use crate::space_desk::{Cause, CompactionKind, CompactionKinds, WantedCollection};
use crate::stats::Counters;
use bindery_io::Clock;
use bindery_io::canary::Canary;
use bindery_storage::{
    Asked, DirectoryCommit, Extent, Generation, LogId, OverlapScan, ReadError, RunSearch, Source,
};
use bindery_types::{EntryId, LedgerId};
use budget::Budget;
use dead::DeadBytes;
use heal::Healing;
use job::Job;
use merge_time::MergeTime;
use plan::Plan;
use scrub::Scrub;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::time::Duration;

/// Adds that wait for room put steps off so long, and no longer: compaction is what gives a full disk room back.
const PUT_OFF_MAX: Duration = Duration::from_secs(1);
/// Between two steps that copy nothing.
const STEP_PAUSE: Duration = Duration::from_millis(1);
/// Most steps between two writes of a flush.
const STEPS_BEHIND_MAX: usize = 64;
/// Of so many steps of rewrites one goes to another than the smallest.
const OTHERS_EVERY: usize = 4;
/// Removed ledgers of one commit, those listed for one lock of a shard, and those forgotten for one.
const FORGET_AT_ONCE: usize = 512;
const LIST_LOCKED: usize = 64;
const FORGET_LOCKED: usize = 16;
/// Longest step of the search for their copies.
const FORGET_STEP_NS: u64 = 2_000_000;
/// Interval between queries of free space while files wait for their grace.
const SPACE_LOOK_NS: u64 = 1_000_000_000;

/// Logs of one directory to be rewritten into one output.
struct Planned {
    directory: usize,
    logs: Vec<LogId>,
    cause: Cause,
    /// Live bytes to copy, as far as they are known.
    live: u64,
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

/// What removals and trims say about the copies of a ledger, at one moment.
struct Fate {
    /// Copies of a lower generation are gone, by a removal that outlives a power cut.
    gone_below: Generation,
    /// The same by any removal, committed or not.
    hidden_below: Generation,
    /// Entries up to it are let go, by a trim that is committed.
    trimmed: Option<EntryId>,
}

impl Fate {
    fn of_run(&self, run: &Extent) -> Liveness {
        if run.generation < self.gone_below {
            return Liveness::Dead;
        }
        self.of_entries(run.first, run.last)
    }

    /// Of a run of these entries that is not newer than `newest`; more is not known of its age.
    fn of_lost(&self, newest: Generation, first: EntryId, last: EntryId) -> Liveness {
        if newest < self.gone_below {
            return Liveness::Dead;
        }
        self.of_entries(first, last)
    }

    /// What the trim says about a run of these entries.
    fn of_entries(&self, first: EntryId, last: EntryId) -> Liveness {
        match self.trimmed {
            Some(trimmed) if trimmed >= last => Liveness::Dead,
            Some(trimmed) if trimmed >= first => {
                Liveness::From(EntryId::new(trimmed.get() + 1).expect("it is below another entry"))
            }
            _ => Liveness::Live,
        }
    }

    /// No removal came after the run: its copies may take a higher generation.
    fn may_rise(&self, run: &Extent) -> bool {
        run.generation >= self.hidden_below
    }
}

/// Newer than a run, and overlapping it.
#[derive(Default)]
struct Newer {
    runs: Vec<Source>,
    /// Logs that cannot say what they have.
    unread: Vec<(LogRef, ReadError)>,
    /// Footers requested for it.
    reads: u64,
    /// Others were not: their logs could not be read before.
    is_partial: bool,
}

/// Progress through the removed ledgers, shard by shard.
#[derive(Debug, Default)]
struct Forgetting {
    shard: usize,
    /// Of that shard, the last one that was listed; `None` behind the end as well.
    after: Option<LedgerId>,
    /// Those that are being looked for, and how far, by directory.
    ledgers: Vec<LedgerId>,
    searches: Vec<RunSearch>,
}

impl Forgetting {
    fn is_done(&self, upkeep: &Upkeep) -> bool {
        self.shard >= upkeep.shared.shards().len()
    }
}

/// The ledger directories and their upkeep.
pub(crate) struct Upkeep {
    shared: Arc<Shared>,
    directories: Directories,
    clock: Arc<dyn Clock>,
    space: Space,
}

/// Where collection, compaction, merging and scrub stand.
struct Space {
    /// Rewrites under way: one compaction at most, and merges of which each is far larger than the next.
    jobs: Vec<Job>,
    /// Steps of them.
    job_steps: usize,
    /// Compactions to come.
    planned: VecDeque<Planned>,
    /// Bytes of the sources of merges that began since the last compaction did.
    merged_since: u64,
    /// The collection under way: removed ledgers are forgotten first, then logs are weighed.
    forgetting: Option<Forgetting>,
    plan: Option<Plan>,
    /// The last step was the collection's: the next is a rewrite's, if there is one.
    is_planned_last: bool,
    dead: DeadBytes,
    /// Not readable in this round.
    skipped: BTreeMap<LogRef, String>,
    /// Replaced logs whose files are still there, and from when on they may go.
    replaced: BTreeMap<LogRef, u64>,
    /// When free space was last queried, and whether it is short, for each directory.
    short: Vec<(u64, bool)>,
    budget: Budget,
    merge_time: MergeTime,
    scrub: Scrub,
    healing: Healing,
    /// The last step was the scrub's: the next is a rewrite's, if there is one.
    is_rewrites_turn: bool,
    stepped_ns: u64,
    collected_ns: u64,
    minor_ns: u64,
    major_ns: u64,
    /// Of each directory: after a merge that failed, no other before.
    merge_not_before_ns: Vec<u64>,
    /// The directory that is asked first for a merge.
    next_merge: usize,
}

impl Space {
    fn new(now_ns: u64, config: &SpaceConfig) -> Space {
        Space {
            jobs: Vec::new(),
            job_steps: 0,
            planned: VecDeque::new(),
            merged_since: 0,
            forgetting: None,
            plan: None,
            is_planned_last: false,
            dead: DeadBytes::default(),
            skipped: BTreeMap::new(),
            replaced: BTreeMap::new(),
            short: Vec::new(),
            budget: Budget::new(now_ns, config),
            merge_time: MergeTime::default(),
            scrub: Scrub::new(now_ns),
            healing: Healing::default(),
            is_rewrites_turn: false,
            stepped_ns: now_ns,
            collected_ns: now_ns,
            minor_ns: now_ns,
            major_ns: now_ns,
            merge_not_before_ns: Vec::new(),
            next_merge: 0,
        }
    }

    /// Logs that are being rewritten.
    fn in_work(&self) -> Vec<LogRef> {
        self.jobs.iter().flat_map(Job::sources).collect()
    }

    /// Logs that are being rewritten, or will be, or may go with the collection under way.
    fn taken(&self) -> BTreeSet<LogRef> {
        let undecided = self.plan.iter().flat_map(Plan::undecided);
        self.queued().chain(self.in_work()).chain(undecided).collect()
    }

    /// Logs of compactions to come.
    fn queued(&self) -> impl Iterator<Item = LogRef> {
        self.planned.iter().flat_map(|p| p.logs.iter().map(|log_id| (p.directory, *log_id)))
    }

    /// Takes logs that are gone from the compactions to come.
    fn unplan(&mut self, directory: usize, gone: &[LogId]) {
        for planned in self.planned.iter_mut().filter(|planned| planned.directory == directory) {
            planned.logs.retain(|log_id| !gone.contains(log_id));
        }
        self.planned.retain(|planned| !planned.logs.is_empty());
    }

    fn has_job(&self, cause: Cause) -> bool {
        self.jobs.iter().any(|job| job.cause() == cause)
    }

    /// Takes out the rewrite whose turn it is: mostly the smallest, because small logs come fastest, and each of the others
    /// now and then.
    fn take_job(&mut self) -> Option<Job> {
        self.job_steps += 1;
        let at = match self.job_steps.is_multiple_of(OTHERS_EVERY) {
            true => (self.job_steps / OTHERS_EVERY) % self.jobs.len().max(1),
            false => (0..self.jobs.len()).min_by_key(|at| self.jobs[*at].bytes())?,
        };
        (at < self.jobs.len()).then(|| self.jobs.swap_remove(at))
    }

    /// A compaction is planned or under way.
    fn has_compaction(&self) -> bool {
        self.has_job(Cause::Compaction) || !self.planned.is_empty()
    }

    /// The next compaction has let enough merges go first: none begins any more when nothing is under way.
    fn is_compactions_turn(&self) -> bool {
        self.planned.front().is_some_and(|planned| self.merged_since >= planned.live.max(1))
    }
}

impl Upkeep {
    pub(crate) fn new(shared: Arc<Shared>, directories: Directories, clock: Arc<dyn Clock>) -> Upkeep {
        let space = Space::new(clock.monotonic_ns(), &shared.config().space);
        Upkeep { shared, directories, clock, space }
    }

    pub(crate) fn directories(&self) -> &Directories {
        &self.directories
    }

    pub(crate) fn directories_mut(&mut self) -> &mut Directories {
        &mut self.directories
    }

    /// True of a log that cannot be read, as far as known.
    fn is_left_out(&self, log: LogRef) -> bool {
        match self.shared.damage().standing(log) {
            Standing::Sound => self.space.skipped.contains_key(&log),
            Standing::Damaged => true,
            // What could not be read is not needed any more.
            Standing::Renewable => false,
        }
    }

    /// One step. Returns after how long it wants to be called again, `None` when there is nothing to do before the next
    /// collection is due. After an error the engine is latched.
    pub(crate) fn tend(&mut self) -> Result<Option<Duration>, FlushError> {
        let now = self.clock.monotonic_ns();
        let config = self.shared.config().space.clone();
        let counters = self.shared.counters();
        let journal = (counters.journal_groups.load(Relaxed), counters.journal_write_ns.load(Relaxed));
        self.space.budget.refill(now, &config, journal);
        if self.shared.is_failed() {
            // Nothing is written any more; whether it is sound is worth knowing all the more.
            return Ok(self.scrub_on(now, &config));
        }
        self.unlink_replaced(now);
        self.count_dead_on();
        let heals = self.heal_on(now);
        // Requests meanwhile wait: a plan that restarted each time would not end where there are many logs.
        if !self.is_collecting() {
            let wanted = self.shared.space().take_wanted(|| self.are_removals_flushed());
            // A periodic one begins when all changes are counted.
            let is_due = self.space.dead.is_settled()
                && now.saturating_sub(self.space.collected_ns) >= as_ns(config.collection_interval);
            // Compactions that wait do not hold a collection off: the space that it frees may be the space they wait for.
            if wanted.is_some() || (is_due && !self.space.has_job(Cause::Compaction)) {
                self.collect(now, wanted.unwrap_or_default());
            }
        }
        self.begin_merge(now, &config);
        // In turns: where there are many logs a collection takes long, and merges keep their number small.
        let has_rewrite = !self.space.jobs.is_empty() || !self.space.planned.is_empty();
        let is_rewrites_turn = has_rewrite && self.space.is_planned_last;
        if self.is_collecting() && !is_rewrites_turn {
            self.space.is_planned_last = true;
            self.collect_on(now)?;
            if self.is_collecting() {
                return Ok(Some(STEP_PAUSE));
            }
        }
        self.space.is_planned_last = false;
        let has_rewrite = !self.space.jobs.is_empty() || !self.space.planned.is_empty();
        // Both spend from one budget: in turns, a scrub in a hurry keeps no space from coming back.
        let scrub =
            if has_rewrite && self.space.is_rewrites_turn { None } else { self.scrub_on(now, &config) };
        let sooner = |pause: Duration| Some(scrub.map_or(pause, |scrub| scrub.min(pause)));
        if !has_rewrite {
            return Ok(if self.space.dead.is_settled() && !heals { scrub } else { sooner(STEP_PAUSE) });
        }
        if self.space.budget.available() == 0 || self.is_put_off(now) {
            return Ok(sooner(self.space.budget.pause(&config).max(Duration::from_millis(5))));
        }
        self.space.stepped_ns = now;
        self.space.is_rewrites_turn = false;
        self.rewrite_on(now)?;
        if !self.space.has_compaction() && !self.is_collecting() {
            self.shared.space().end_compacting();
        }
        // Also behind the last one: what it made, or could not, may call for the next.
        Ok(sooner(self.space.budget.pause(&config)))
    }

    /// A step of the scrub only.
    pub(crate) fn scrub_alone(&mut self) {
        let now = self.clock.monotonic_ns();
        let config = self.shared.config().space.clone();
        self.space.budget.refill(now, &config, (0, 0));
        self.scrub_on(now, &config);
    }

    /// Bytes that steps read and wrote so far.
    pub(crate) fn spent(&self) -> u64 {
        self.space.budget.spent()
    }

    /// Until now the thread was free for merges: a flush begins, or its pause is over.
    pub(crate) fn on_rested(&mut self) {
        self.space.merge_time.on_rested(self.clock.monotonic_ns());
    }

    /// Until now the thread flushed: a write is done, or the commit.
    pub(crate) fn on_flushed(&mut self) {
        let urgency = self.space.budget.urgency();
        self.space.merge_time.on_flushed(self.clock.monotonic_ns(), urgency);
    }

    /// Between two writes of a flush: where merges are behind, steps of them for the time that they are owed (`merge_time`).
    pub(crate) fn tend_behind(&mut self) {
        self.on_flushed();
        let (begun, time) = (self.clock.monotonic_ns(), self.space.merge_time.available_ns());
        let spent = self.spent();
        // A flush that a stop waits for, or direct fences, is not held up.
        if time == 0 || self.shared.is_failed() || self.shared.pacing().is_hurried.load(Ordering::Acquire) {
            return;
        }
        for _ in 0..STEPS_BEHIND_MAX {
            // A pause that is longer than one between two steps: nothing is to be done now.
            let goes_on = matches!(self.tend(), Ok(Some(pause)) if pause <= STEP_PAUSE);
            let took = self.clock.monotonic_ns().saturating_sub(begun);
            if !goes_on || took >= time || !self.space.budget.is_urgent() {
                break;
            }
        }
        let now = self.clock.monotonic_ns();
        self.space.merge_time.on_taken(now);
        if self.spent() > spent {
            Counters::add(&self.shared.counters().merge_in_flush_ns, now.saturating_sub(begun));
        }
    }

    /// Adds that wait for room want the disk for a flush, unless merges are behind.
    fn is_put_off(&self, now: u64) -> bool {
        let is_fresh = now.saturating_sub(self.space.stepped_ns) < as_ns(PUT_OFF_MAX);
        is_fresh && !self.space.budget.is_urgent() && self.shared.adds_wait()
    }

    fn is_collecting(&self) -> bool {
        self.space.forgetting.is_some() || self.space.plan.is_some()
    }

    /// Goes on with the collection under way.
    fn collect_on(&mut self, now: u64) -> Result<(), FlushError> {
        if let Some(mut forgetting) = self.space.forgetting.take() {
            let forgotten = self.forget_on(&mut forgetting)?;
            if !forgetting.is_done(self) {
                self.space.forgetting = Some(forgetting);
                return Ok(());
            }
            // A commit is enough for one step.
            if forgotten > 0 {
                return Ok(());
            }
        }
        if self.plan_on()? {
            // One that takes longer than the interval is not begun again at once.
            self.space.collected_ns = now;
        }
        Ok(())
    }

    /// Begins a collection.
    fn collect(&mut self, now: u64, wanted: WantedCollection) {
        let config = self.shared.config().space.clone();
        self.space.collected_ns = now;
        self.space.skipped.clear();
        self.shared.space().begin_skipping();
        self.space.forgetting = Some(Forgetting::default());
        let is_due = |last: u64, interval: Duration| {
            !interval.is_zero() && now.saturating_sub(last) >= as_ns(interval)
        };
        let suspended = self.suspended();
        // A major run does what a minor one would.
        let kind = if !suspended.major && (wanted.major || is_due(self.space.major_ns, config.major_interval))
        {
            Some(CompactionKind::Major)
        } else if !suspended.minor && (wanted.minor || is_due(self.space.minor_ns, config.minor_interval)) {
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
        self.shared.space().on_begun(kind, self.space.has_compaction());
        let in_work = self.space.in_work();
        self.space.plan = Some(Plan::new(self, kind, threshold, &in_work));
    }

    /// The kinds of compactions that are suspended. That ends when space runs short: nobody may remember that they are.
    fn suspended(&self) -> CompactionKinds {
        let suspended = self.shared.space().suspended();
        let is_short =
            self.directories.routing().is_waiting() || self.shared.full_directories().contains(&true);
        if is_short && suspended != CompactionKinds::default() {
            tracing::warn!("space is short: compactions that were suspended are resumed");
            self.shared.space().resume(suspended);
            return CompactionKinds::default();
        }
        suspended
    }

    /// All removals so far count: they are in the state tables, or nothing gets there for want of space.
    fn are_removals_flushed(&self) -> bool {
        if self.counts_journal() {
            return true;
        }
        let is_flushed = |index: usize| {
            self.shared.lock(index).last_removal() <= self.directories.flushed_generation(index)
        };
        (0..self.shared.shards().len()).all(is_flushed)
    }

    /// While a flush waits for space, the removals behind it count as soon as the journal has them: dropping what they hide is
    /// what gives the flush its space. A journal without sync has nothing for certain.
    fn counts_journal(&self) -> bool {
        self.directories.routing().is_waiting() && self.shared.config().journal_sync
    }

    /// What removals and trims say about the copies of a ledger now.
    fn fate(&self, ledger: LedgerId) -> Fate {
        let index = self.shared.shard_of(ledger);
        let canaries = &self.shared.config().canaries;
        let flushed = match canaries.has(Canary::M27UncommittedRemovalCounts) {
            true => u64::MAX,
            false => self.directories.flushed_generation(index),
        };
        let in_journal = self.counts_journal();
        let shard = self.shared.lock(index);
        Fate {
            gone_below: Generation(shard.hidden_for_good(ledger, flushed, in_journal)),
            hidden_below: Generation(shard.hidden_below(ledger)),
            trimmed: shard.trimmed_for_good(ledger, canaries.has(Canary::M43UncommittedTrimCounts)),
        }
    }

    /// As [`bindery_storage::LogView::overlaps`], in all directories, with a scan for each.
    fn is_overlapped(
        &self,
        scans: &mut Vec<OverlapScan>,
        ledger: LedgerId,
        (first, last): (EntryId, EntryId),
        asked: impl Fn(LogRef, Generation) -> bool,
    ) -> bool {
        let views = self.shared.views();
        scans.resize_with(views.len(), OverlapScan::default);
        let mut views = views.iter().zip(scans).enumerate();
        views.any(|(index, (view, scan))| {
            view.overlaps(scan, ledger, first, last, |log_id, newest| asked((index, log_id), newest))
        })
    }

    /// The newer runs that may hold an entry of this one, but for those in logs that are `known`.
    fn newer(&self, extent: &Extent, known: impl Fn(LogRef) -> bool) -> Newer {
        let mut newer = Newer::default();
        for (index, view) in self.shared.views().iter().enumerate() {
            let asked = |log_id: LogId| {
                let log = (index, log_id);
                match known(log) {
                    true => Asked::Known,
                    // A footer on bad sectors takes the disk long to give up on, and is asked once in a collection.
                    false if self.space.skipped.contains_key(&log) => Asked::LeftOut,
                    false => Asked::Yes,
                }
            };
            let found = view.newer(extent, asked);
            newer.runs.extend(found.runs);
            newer.reads += found.reads;
            newer.is_partial |= found.is_partial;
            newer.unread.extend(found.unread.into_iter().map(|(log_id, error)| ((index, log_id), error)));
        }
        newer
    }

    /// What the newer runs say, and how many of them were read.
    fn judge(&self, newer: &Newer, entry: EntryId) -> (Verdict, u64) {
        if self.shared.config().canaries.has(Canary::M26CompactionKeepsLosers) {
            return (Verdict::Winner, 0);
        }
        // An unreadable log proves nothing (IB15).
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
            let directory = self.shared.config().ledger_dirs[index].display().to_string();
            tracing::error!(directory, %log_id, reason, "space collection skips an entry log");
            self.shared.space().on_skipped(format!("{directory}/{log_id}"), reason);
        }
    }

    /// Forgets the removed ledgers that nothing mentions any more; returns how many: none when a directory has no space
    /// for it. After an error the engine is latched.
    pub(crate) fn forget_removed(&mut self) -> Result<usize, FlushError> {
        let mut forgetting = Forgetting::default();
        let mut count = 0;
        while !forgetting.is_done(self) {
            count += self.forget_on(&mut forgetting)?;
        }
        Ok(count)
    }

    /// Looks at some removed ledgers, of one shard when any are forgotten; returns how many were.
    fn forget_on(&mut self, forgetting: &mut Forgetting) -> Result<usize, FlushError> {
        // A failed directory could bring what the others forget back at the next start.
        if self.shared.is_failed() || self.directories.routing().has_any_failed() {
            forgetting.shard = self.shared.shards().len();
            return Ok(0);
        }
        let begun = self.clock.monotonic_ns();
        let has_time = || self.clock.monotonic_ns().saturating_sub(begun) < FORGET_STEP_NS;
        forgetting.searches.resize_with(self.shared.views().len(), RunSearch::default);
        let (forgotten, fenced, index) = loop {
            if forgetting.ledgers.is_empty() {
                self.list_removed(forgetting, has_time);
            }
            // Under no lock: there may be thousands of logs. Those that come before the last one is asked are asked as well
            // (`RunSearch`); none comes behind that, because this is the owner of the directories.
            let mut searches = self.shared.views().iter().zip(&mut forgetting.searches);
            if !searches.all(|(view, search)| view.retain_absent(search, &mut forgetting.ledgers, has_time)) {
                return Ok(0);
            }
            let index = forgetting.shard;
            let flushed = self.directories.flushed_generation(index);
            let (mut forgotten, mut fenced) = (Vec::new(), Vec::new());
            for some in std::mem::take(&mut forgetting.ledgers).chunks(FORGET_LOCKED) {
                forgotten.extend(self.shared.lock(index).forget(flushed, some, &mut fenced));
            }
            if forgetting.after.is_none() {
                forgetting.shard += 1;
            }
            if !forgotten.is_empty() {
                break (forgotten, fenced, index);
            }
            if forgetting.is_done(self) || !has_time() {
                return Ok(0);
            }
        };
        let count = forgotten.len();
        let mut of_directory: Vec<Vec<LedgerId>> = vec![Vec::new(); self.directories.len()];
        of_directory[index % self.directories.len()] = forgotten;
        let committed = self.commit_forgetting(&of_directory, &fenced);
        self.shared.lock(index).end_forgetting(matches!(committed, Ok(true)));
        if matches!(committed, Ok(false)) {
            // The others find no space either.
            forgetting.shard = self.shared.shards().len();
        }
        committed.map(|is_committed| if is_committed { count } else { 0 })
    }

    /// Lists the next removed ledgers of the shard.
    fn list_removed(&self, forgetting: &mut Forgetting, has_time: impl Fn() -> bool) {
        let index = forgetting.shard;
        let flushed = self.directories.flushed_generation(index);
        forgetting.searches.iter_mut().for_each(RunSearch::begin_again);
        loop {
            let (some, last) = self.shared.lock(index).forgettable(flushed, forgetting.after, LIST_LOCKED);
            forgetting.ledgers.extend(some);
            forgetting.after = last;
            if last.is_none() || forgetting.ledgers.len() >= FORGET_AT_ONCE || !has_time() {
                return;
            }
        }
    }

    /// Of each directory, the ledgers whose memory it has: that goes from the others first (invariant 5). `false`: one
    /// of them has no space for it.
    fn commit_forgetting(
        &mut self,
        forgotten: &[Vec<LedgerId>],
        fenced: &[LedgerId],
    ) -> Result<bool, FlushError> {
        let directory_count = forgotten.len();
        let is_planted = self.shared.config().canaries.has(Canary::M50FencesForgotten);
        let fences_forgotten = if is_planted { &[] } else { fenced };
        for is_last in [false, true] {
            for index in 0..directory_count {
                let of_others =
                    || (0..directory_count).filter(|other| *other != index).flat_map(|i| &forgotten[i]);
                let ledgers: Vec<LedgerId> =
                    if is_last { forgotten[index].clone() } else { of_others().copied().collect() };
                if ledgers.is_empty() {
                    continue;
                }
                let commit =
                    DirectoryCommit { ledgers_forgotten: &ledgers, fences_forgotten, ..Default::default() };
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
