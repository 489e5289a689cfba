//! The workers: each does one action of one of its ledgers at a step, and tells the core what came of it, as the shell does.

use super::*;
use crate::core::absence::Absences;
use crate::core::audit::{Audit, Fit, audit, fit, missing_runs};
use crate::core::ledger::{
    Action, Copied, CopyTask, Facts, LedgerRepair, LockPlace, Named, Naming, Patience,
};
use crate::core::queue::{Attempt, RepairQueue};
use bindery_metadata::layout::Marked;
use bindery_metadata::store::Version;

const PARALLEL: usize = 2;
/// Between two looks at the end of an open ledger.
const ALIVE_LOOK: Duration = Duration::from_secs(2);

/// The version of a node after `writes` writes. As in Oxia, version ids are neither counts nor rising.
fn version(writes: u64) -> Version {
    let writes = writes.try_into().unwrap();
    Version::new((1 << 40) - 3 * writes, writes)
}

pub(super) struct Worker {
    index: usize,
    /// The bookie that it is part of.
    own: Option<usize>,
    /// The current session, and the one that the worker believes to have.
    session: u64,
    known_session: u64,
    began: Duration,
    view: View,
    ranked_by: BTreeSet<BookieId>,
    queue: RepairQueue,
    absences: Absences,
    open_since: BTreeMap<usize, Duration>,
    jobs: BTreeMap<usize, Job>,
    /// Ledgers in the queue that were not tried, with their copies (IR5).
    untried: BTreeMap<LedgerId, usize>,
    canaries: Canaries,
}

/// A ledger under repair.
struct Job {
    core: LedgerRepair,
    action: Action,
    /// The session that took the lock.
    session: u64,
    is_for_others: bool,
    /// What was last read of the lock, and whether the lost bookie was seen to be there at the last look at the facts.
    has_proven: bool,
    saw_return: bool,
    copying: Option<Copying>,
    /// The bookie that copies were brought to last.
    target: Option<BookieId>,
    /// The bookie whose copies these were.
    lost: Option<BookieId>,
    watching: Option<(Duration, i64)>,
}

/// Copies under way.
struct Copying {
    left: Vec<i64>,
    /// Starts of the target: the connection to it does not outlive one.
    starts: u64,
    /// Past the journal: not there before the commit.
    taken: Option<Vec<i64>>,
}

struct Waits<'a> {
    absences: &'a Absences,
    now: Duration,
    began: Duration,
    now_ms: i64,
    mark: Marked,
    are_members_there: bool,
}

impl Patience for Waits<'_> {
    fn awaited(&mut self, lost: &Audit) -> BTreeMap<BookieId, Duration> {
        let now = self.now - self.began;
        let ordered = self.mark.since_ms.map(|since_ms| {
            let age = Duration::from_millis((self.now_ms - since_ms).unsigned_abs());
            (now.saturating_sub(age), self.mark.replicas.as_slice())
        });
        self.absences.awaited(now, (DELAY, SETTLE), lost, ordered)
    }

    fn on_members_there(&mut self) {
        self.are_members_there = true;
    }
}

impl Worker {
    pub fn new(index: usize, own: Option<usize>, canaries: Canaries) -> Worker {
        Worker {
            index,
            own,
            session: 0,
            known_session: 0,
            began: Duration::from_secs(1000),
            view: View::default(),
            ranked_by: BTreeSet::new(),
            queue: RepairQueue::new(index as u64).with_canaries(canaries),
            canaries,
            absences: Absences::default(),
            open_since: BTreeMap::new(),
            jobs: BTreeMap::new(),
            untried: BTreeMap::new(),
        }
    }

    /// Why it did not repair a ledger, for messages.
    pub fn says_of(&self, ledger: LedgerId) -> Option<String> {
        let why = self.queue.stuck().find(|(stuck, _)| *stuck == ledger);
        let job = self.jobs.keys().any(|at| ledger_id(*at) == ledger);
        let knows = self.queue.knows(ledger);
        Some(format!("w{}: knows {knows}, job {job}, {:?}", self.index, why.map(|(_, why)| why)))
    }

    /// The process ends: its queue, jobs and session are lost.
    pub fn crash(&mut self) {
        let session = self.session + 1;
        *self =
            Worker { session, known_session: session, ..Worker::new(self.index, self.own, self.canaries) };
    }

    pub fn start(&mut self, now: Duration) {
        self.began = now;
    }

    fn facts<'a>(&'a self, job: &Job) -> Facts<'a> {
        Facts {
            live: &self.view.live,
            draining: &self.view.draining,
            is_stopped: false,
            is_disabled: self.view.is_disabled,
            may_hold_lock: self.known_session == job.session,
        }
    }
}

impl World {
    /// The session of a worker ends: its locks go, and it learns that later.
    pub fn expire(&mut self, worker: usize) {
        let session = self.workers[worker].session;
        self.unlock(Holder::Worker(worker, session));
        self.workers[worker].session += 1;
    }

    /// Whether a worker is about to name this bookie, which acknowledged all copies. If it loses them just then, the check of all ledgers
    /// finds that, which this model does not run.
    pub fn is_about_to_be_named(&self, bookie: usize) -> bool {
        let id = bookie_id(bookie);
        let mut jobs = self.workers.iter().flat_map(|worker| worker.jobs.values());
        jobs.any(|job| job.copying.is_none() && job.target.as_ref() == Some(&id))
    }

    fn is_running(&self, worker: usize) -> bool {
        self.workers[worker].own.is_none_or(|own| self.bookies[own].is_up)
    }

    /// Lets a worker go on until its next action is to write the metadata of a ledger.
    pub fn until_about_to_name(&mut self, index: usize, ledger: usize) {
        loop {
            match self.workers[index].jobs.get(&ledger).map(|job| &job.action) {
                Some(Action::Name(_)) => return,
                Some(_) => self.step_job(index, ledger),
                None => {
                    self.now += Duration::from_millis(500);
                    self.step_worker(index);
                }
            }
        }
    }

    /// A step of a worker.
    pub fn step_worker(&mut self, index: usize) {
        if !self.is_running(index) {
            return;
        }
        let view = self.view();
        let worker = &mut self.workers[index];
        match self.random.below(10) {
            0 | 1 => {
                if worker.view != view {
                    worker.absences.on_bookies(self.now - worker.began, &view.live);
                    worker.view = view;
                }
                worker.known_session = worker.session;
            }
            2 => self.look(index),
            3 | 4 => self.start_job(index),
            _ => {
                let jobs: Vec<usize> = self.workers[index].jobs.keys().copied().collect();
                if !jobs.is_empty() {
                    let ledger = jobs[self.below(jobs.len())];
                    self.step_job(index, ledger);
                }
            }
        }
    }

    /// Lists what is marked, and ranks what is not known yet, or was ranked by other bookies.
    fn look(&mut self, index: usize) {
        if self.workers[index].view.live.is_empty() {
            return;
        }
        let marked = self.ledgers.iter().enumerate().filter(|(_, ledger)| ledger.mark.is_some());
        let marked: BTreeSet<LedgerId> = marked.map(|(ledger, _)| ledger_id(ledger)).collect();
        let worker = &mut self.workers[index];
        let now = self.now - worker.began;
        worker.queue.keep(now, &marked, None, None);
        worker.untried.retain(|ledger, _| marked.contains(ledger));
        let is_stale = worker.ranked_by != worker.view.live;
        worker.ranked_by = worker.view.live.clone();
        for id in marked {
            let worker = &self.workers[index];
            let is_known = worker.queue.knows(id);
            if is_known && !is_stale {
                continue;
            }
            let ledger = &self.ledgers[usize::try_from(id.get()).unwrap()];
            let mark = ledger.mark.as_ref().unwrap();
            let view = &worker.view;
            let found = audit(&ledger.metadata, |bookie| view.live.contains(bookie));
            let named = |bookie: &BookieId| mark.replicas.iter().any(|name| name == bookie.as_str());
            let stays = |bookie: &BookieId| {
                view.live.contains(bookie) && !(view.draining.contains(bookie) && named(bookie))
            };
            let fit = worker.own.map_or(Fit::Ours, |own| {
                let takes_writes = self.takes_writes(own);
                let lacking = audit(&ledger.metadata, stays);
                fit(&bookie_id(own), takes_writes, &ledger.metadata, &mark.replicas, &lacking)
            });
            let since_ms = mark.since_ms.unwrap_or(0);
            let worker = &mut self.workers[index];
            worker.queue.put(now, id, found.copies_min, since_ms, fit);
            if !is_known && fit == Fit::Ours {
                worker.untried.insert(id, found.copies_min);
            } else if let Some(copies) = worker.untried.get_mut(&id) {
                *copies = found.copies_min;
            }
        }
    }

    fn start_job(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let knows_bookies = !worker.view.live.is_empty();
        if worker.jobs.len() >= PARALLEL || worker.view.is_disabled || !knows_bookies {
            return;
        }
        let now = self.now - worker.began;
        let Some(id) = worker.queue.take(now) else { return };
        if let Some(copies) = worker.untried.remove(&id) {
            let first = worker.untried.values().min();
            assert!(
                first.is_none_or(|first| copies <= *first),
                "IR5: {id} has {copies} copies, another {first:?}"
            );
        }
        let is_for_others = worker.queue.is_left_over(id);
        let index_of_ledger = usize::try_from(id.get()).unwrap();
        let ledger = &mut self.ledgers[index_of_ledger];
        let holder = Holder::Worker(index, worker.session);
        if ledger.lock.is_some_and(|other| other != holder) {
            self.met.elsewhere += 1;
            worker.queue.came(now, id, Attempt::Elsewhere);
            return;
        }
        worker.known_session = worker.session;
        ledger.lock = Some(holder);
        let Some(mark) = &ledger.mark else {
            ledger.lock = None;
            worker.queue.came(now, id, Attempt::Done);
            return;
        };
        let mark = Marked {
            replicas: mark.replicas.clone(),
            since_ms: mark.since_ms,
            danger: None,
            version: version(mark.version),
        };
        let core = LedgerRepair::new(mark, GRACE, self.canaries);
        let action = core.begin();
        let job = Job {
            core,
            action,
            session: worker.session,
            is_for_others,
            has_proven: false,
            saw_return: false,
            copying: None,
            target: None,
            lost: None,
            watching: None,
        };
        worker.jobs.insert(index_of_ledger, job);
    }

    /// Whether a request to the metadata store fails without an effect, or with it.
    fn fate(&mut self) -> (bool, bool) {
        if !self.random.chance(self.loss) {
            return (true, true);
        }
        self.met.lost_answers += 1;
        (self.random.chance(0.5), false)
    }

    pub fn step_job(&mut self, index: usize, ledger: usize) {
        let mut job = self.workers[index].jobs.remove(&ledger).unwrap();
        let action = job.action.clone();
        self.note(|| format!("w{index} ledger {ledger}: {action:?}"));
        let next = match action {
            Action::End(attempt) => return self.end_job(index, ledger, &job, attempt),
            Action::Look { proves_lock } => self.do_look(index, ledger, &mut job, proves_lock),
            Action::List(bookie) => self.do_list(ledger, &mut job, &bookie),
            Action::Choose(_) => self.do_choose(index, &mut job),
            Action::Copy(task) => match self.do_copy(index, ledger, &mut job, &task) {
                Some(next) => Ok(next),
                None => {
                    self.workers[index].jobs.insert(ledger, job);
                    return;
                }
            },
            Action::Check => {
                let facts = self.workers[index].facts(&job);
                let stays =
                    |bookie: &BookieId| facts.live.contains(bookie) && !facts.draining.contains(bookie);
                job.saw_return = job.lost.as_ref().is_some_and(stays);
                let next = job.core.on_check(facts);
                if matches!(next, Action::Look { .. }) {
                    self.met.dropped += 1;
                }
                Ok(next)
            }
            Action::ProveLock => {
                let holder = Holder::Worker(index, job.session);
                let worker = &mut self.workers[index];
                worker.known_session = worker.session;
                job.has_proven = self.ledgers[ledger].lock == Some(holder) && worker.session == job.session;
                Ok(job.core.on_lock(job.has_proven))
            }
            Action::Name(naming) => Ok(self.do_name(index, ledger, &mut job, &naming, None)),
            Action::NameLast(naming, mark) => Ok(self.do_name(index, ledger, &mut job, &naming, Some(mark))),
            Action::Unmark(at) => self.do_unmark(ledger, &mut job, at),
            Action::Age => {
                let now = self.now;
                let since = *self.workers[index].open_since.entry(ledger).or_insert(now);
                Ok(job.core.on_age(now - since))
            }
            Action::Watch => match job.watching {
                None => {
                    job.watching = Some((self.now, self.ledgers[ledger].acked));
                    self.workers[index].jobs.insert(ledger, job);
                    return;
                }
                Some((since, _)) if self.now < since + ALIVE_LOOK => {
                    self.workers[index].jobs.insert(ledger, job);
                    return;
                }
                Some((_, before)) => {
                    job.watching = None;
                    let has_grown = self.ledgers[ledger].acked > before;
                    self.met.spared += u64::from(has_grown);
                    let next = job.core.on_growth(Ok(has_grown));
                    let ends = matches!(next, Action::End(_));
                    assert!(ends || !has_grown, "IR6: ledger {ledger} is closed under its writer");
                    Ok(next)
                }
            },
            Action::Close => {
                let is_closed = matches!(self.ledgers[ledger].metadata.state, LedgerState::Closed { .. });
                let closed = is_closed || self.recover(ledger);
                self.met.closed += u64::from(closed);
                Ok(job.core.on_closed(if closed { Ok(()) } else { Err("too few answer".into()) }))
            }
        };
        match next {
            Ok(action) => {
                job.action = action;
                self.workers[index].jobs.insert(ledger, job);
            }
            // The metadata store failed.
            Err(attempt) => self.end_job(index, ledger, &job, attempt),
        }
    }

    fn end_job(&mut self, index: usize, ledger: usize, job: &Job, attempt: Attempt) {
        let holder = Holder::Worker(index, job.session);
        let is_there = self.ledgers[ledger].lock == Some(holder);
        // As for any other request: it may be lost, and then the lock stays until this session finds it again, or ends.
        let (works, _) = self.fate();
        if job.core.lock_place() != LockPlace::GivenBack && is_there && works {
            self.ledgers[ledger].lock = None;
        }
        self.met.failed += u64::from(matches!(attempt, Attempt::Failed(_)));
        let worker = &mut self.workers[index];
        let now = self.now - worker.began;
        worker.queue.came(now, ledger_id(ledger), attempt);
    }

    fn do_look(
        &mut self,
        index: usize,
        ledger: usize,
        job: &mut Job,
        proves_lock: bool,
    ) -> Result<Action, Attempt> {
        job.target = None;
        let (_, answers) = self.fate();
        if !answers {
            return Err(Attempt::Failed("no answer".into()));
        }
        let holder = Holder::Worker(index, job.session);
        let holds = !proves_lock || self.ledgers[ledger].lock == Some(holder);
        let (metadata, at) = (self.ledgers[ledger].metadata.clone(), self.ledgers[ledger].version);
        let (now, now_ms) = (self.now, self.now_ms());
        let worker = &self.workers[index];
        let mut waits = Waits {
            absences: &worker.absences,
            now,
            began: worker.began,
            now_ms,
            mark: job.core.mark().clone(),
            are_members_there: false,
        };
        let facts = worker.facts(job);
        let next = job.core.on_look((metadata, version(at)), facts, holds, &mut waits);
        if waits.are_members_there {
            self.workers[index].open_since.remove(&ledger);
        }
        Ok(next)
    }

    fn do_list(&mut self, ledger: usize, job: &mut Job, bookie: &BookieId) -> Result<Action, Attempt> {
        let at = self.index_of(bookie);
        if !self.bookies[at].is_up {
            return Ok(job.core.on_list(Err("it is away".into())));
        }
        let held = self.bookies[at].ledgers.get(&ledger).filter(|held| !held.is_limbo);
        let entries = held.map(|held| held.entries.clone()).unwrap_or_default();
        Ok(job.core.on_list(Ok(&|entry: EntryId| entries.contains(&entry.get()))))
    }

    fn do_choose(&mut self, index: usize, job: &mut Job) -> Result<Action, Attempt> {
        let Action::Choose(lack) = &job.action else { unreachable!() };
        let segment = job.core.metadata().segments().iter().find(|at| at.first_entry == lack.first).unwrap();
        let may_join = |at: &usize| self.takes_writes(*at) && !segment.ensemble.contains(&bookie_id(*at));
        let any = (0..self.bookies.len()).find(may_join);
        let choice = match self.workers[index].own {
            Some(own) if may_join(&own) => Ok(bookie_id(own)),
            own => match any {
                None => Err(Attempt::Failed("no bookie can take it".into())),
                Some(_) if own.is_some() && !job.is_for_others => Err(Attempt::NotHere),
                Some(other) => Ok(bookie_id(other)),
            },
        };
        Ok(job.core.on_choice(choice))
    }

    /// One entry of a copy, or its end; `None` while it goes on.
    fn do_copy(&mut self, index: usize, ledger: usize, job: &mut Job, task: &CopyTask) -> Option<Action> {
        let target = self.index_of(&task.target);
        (job.target, job.lost) = (Some(task.target.clone()), Some(task.lack.bookie.clone()));
        let is_own = self.workers[index].own == Some(target);
        if !self.bookies[target].is_up {
            job.copying = None;
            return Some(job.core.on_copied(Copied::Failed("the target is away".into())));
        }
        let Some(copying) = &mut job.copying else {
            let held = self.bookies[target].ledgers.get(&ledger);
            // One in limbo does not say what it has, except to its own worker.
            let held = held.filter(|held| is_own || !held.is_limbo);
            let has = |id: EntryId| held.is_some_and(|held| held.entries.contains(&id.get()));
            let runs = missing_runs(job.core.metadata(), &task.lack, has);
            let quorum = job.core.metadata().quorum;
            let ids = runs.iter().flat_map(|(first, last)| first.get()..=last.get());
            let mut left: Vec<i64> =
                ids.filter(|id| quorum.is_in_write_set(entry(*id), task.lack.position)).collect();
            left.reverse();
            let is_past = is_own && !runs.is_empty() && job.core.goes_past_journal(&runs, false);
            if is_past {
                let held = self.bookies[target].ledgers.entry(ledger).or_default();
                held.is_fenced = true;
                held.changes += 1;
            }
            let starts = self.bookies[target].starts;
            job.copying = Some(Copying { left, starts, taken: is_past.then(Vec::new) });
            return None;
        };
        if copying.starts != self.bookies[target].starts {
            job.copying = None;
            return Some(job.core.on_copied(Copied::Failed("the target was restarted".into())));
        }
        if let Some(id) = copying.left.pop() {
            let has_source = job.core.metadata().write_set(entry(id)).any(|source| {
                let source = self.index_of(source);
                source != target && self.bookies[source].is_up && self.has(source, ledger, id)
            });
            if !has_source {
                job.copying = None;
                return Some(job.core.on_copied(Copied::Failed(format!("no copy of entry {id}"))));
            }
            match &mut copying.taken {
                Some(taken) => taken.push(id),
                None => self.put(target, ledger, id),
            }
            let facts = self.workers[index].facts(job);
            if let Some(stopped) = job.core.unwanted(facts) {
                self.met.dropped += u64::from(stopped == Copied::CameBack);
                job.copying = None;
                return Some(job.core.on_copied(stopped));
            }
            return None;
        }
        if let Some(taken) = copying.taken.take() {
            self.met.past_journal += 1;
            for id in taken {
                self.put(target, ledger, id);
            }
        }
        job.copying = None;
        self.met.filled += u64::from(task.target == task.lack.bookie);
        Some(job.core.on_copied(Copied::Whole))
    }

    /// Metadata are written; at `mark`, together with the end of the mark and the lock.
    fn do_name(
        &mut self,
        index: usize,
        ledger: usize,
        job: &mut Job,
        naming: &Naming,
        mark: Option<Version>,
    ) -> Action {
        let (works, answers) = self.fate();
        let found = &self.ledgers[ledger];
        let is_same = version(found.version) == naming.version;
        let is_whole = mark.is_none_or(|mark| {
            let may_hold = self.workers[index].known_session == job.session;
            // The transaction sees that a lock is there, not whose it is.
            may_hold
                && found.lock.is_some()
                && found.mark.as_ref().is_some_and(|at| version(at.version) == mark)
        });
        if works && is_same && is_whole {
            assert!(!job.saw_return, "IR2: {} was there, and is replaced", naming.copy.lack.bookie);
            assert!(mark.is_some() || job.has_proven, "IR3: ledger {ledger} is changed without its lock");
            let CopyTask { lack, target } = &naming.copy;
            let at = self.index_of(target);
            // The bookie marks entries that it loses after it acknowledged them.
            let marked = self.ledgers[ledger].mark.as_ref();
            let is_marked = marked.is_some_and(|mark| {
                mark.replicas.iter().any(|name| name == target.as_str())
                    && version(mark.version).is_later_than(job.core.mark().version)
            });
            for id in World::entries_of(&naming.metadata, lack.first, lack.position) {
                let is_there = is_marked || self.has(at, ledger, id);
                assert!(is_there, "IR1: {target} is named without entry {id} of ledger {ledger}");
            }
            self.set_metadata(ledger, naming.metadata.clone());
            self.met.named += 1;
            if mark.is_some() {
                self.met.named_last += 1;
                (self.ledgers[ledger].mark, self.ledgers[ledger].lock) = (None, None);
            }
        }
        job.has_proven = false;
        job.core.on_named(match (answers, is_same && is_whole) {
            (false, _) => Named::Unknown,
            (true, true) => Named::Done,
            (true, false) => Named::Refused,
        })
    }

    fn do_unmark(&mut self, ledger: usize, job: &mut Job, at: Version) -> Result<Action, Attempt> {
        let (works, answers) = self.fate();
        assert!(job.has_proven, "IR3: the mark of ledger {ledger} goes without its lock");
        let is_same = self.ledgers[ledger].mark.as_ref().is_none_or(|mark| version(mark.version) == at);
        if works && is_same {
            self.ledgers[ledger].mark = None;
            self.met.unmarked += 1;
        }
        self.met.marked_again += u64::from(!is_same);
        if !answers {
            return Err(Attempt::Failed("no answer".into()));
        }
        Ok(job.core.on_unmarked(is_same))
    }
}
