//! Objects whose extents others took over stay until every bookie knows where these went (T16).
//!
//! # Data flow
//! ```text
//! rows of objects that wait ─► window of extents ─► where they are now ─► bookies of the ledgers' ensembles are told
//!                               ▲ the next extents that are not done                        │ yes: remembered
//!                               └───────────────────────────────────────────────────────────┤
//!                                  all extents are done: all are checked once more, from the first to the last ─► the catalogue lets the object
//!                                                        go, which after the delay comes here again, and is deleted
//! ```
//!
//! # Invariants
//! 1. An object is released when all of its extents are done. An extent is done when each bookie in an ensemble of its ledger, by the
//!    metadata of that time, took the extents that the catalogue has for the range, holds nothing of the ledger, or keeps everything
//!    (it does not advertise tiering). An unregistered bookie has done none of these. A ledger that has left the catalogue was
//!    deleted and needs no answer. A bookie that joins an ensemble for the first time later hears of the catalogue's new extents
//!    anyway. One that returns to an ensemble may still refer to the object, and only this module would tell it. So before a
//!    release all extents are checked once more in one pass, against the ensembles and registrations of that pass, and those that
//!    lack an answer are open again. Answers of bookies count whether or not they are members at the time; "keeps everything" and
//!    "deleted" are established anew in each check.
//! 2. An object is examined only [`UpkeepSettings::settle`](super::UpkeepSettings::settle) after this tierer saw the latest takeover of
//!    its extents in the log, by its own monotonic clock, and after the time stamped on that record: by then no tierer announces the
//!    old extents any more ([`EXTENTS_KEPT_FOR`]). So answers stay valid until more extents are taken over.
//! 3. A tierer that starts again, or finds the log shorter than before, tells all bookies again, which changes nothing.
//! 4. Bookies are told within [`EXTENTS_KEPT_FOR`] after the catalogue was read, for each window anew, and answers given by then are
//!    not asked for again. A pass goes on where the one before stopped. So an object of any number of extents is finished after
//!    finitely many passes, as long as bookies answer. The check of invariant 1 ends in the pass in which it began. It tells nobody: at
//!    the first extents that lack an answer it is over, and these and all behind them are examined as before, a part in each pass. A
//!    check that takes too long is given up, and has twice the time in a later pass.
//! 5. An object whose footer is damaged is never released unless it is repaired. Operators get one alarm, and it keeps no other object
//!    from being rewritten.
//! 6. When memory is short, the answers for the object nearest to its release are kept.
//! 7. An object that was released is examined and checked in the same way before it is deleted, at once after that. A bookie that was in
//!    no ensemble when the object was released, and is in one again, is told then, or keeps the object while it is not registered. A
//!    bookie that joins an ensemble again after the deletion is not found by that: it says so itself once a read has missed an entry
//!    (`bindery_server::tier`, invariant 7).
//!
//! # Limits
//! Objects in one page: [`WAITING_MAX`]. Extents in one window: [`WINDOW_MAX`]. Time of one pass: [`TIME_PER_PASS`], and the rest of a
//! step begun by then. Time of a check: [`CHECK_TIME`], at first. Ledgers in one request: [`TOLD_MAX`]. Answers remembered:
//! [`ANSWERS_BYTES_MAX`], or those for one object. Damaged objects remembered: [`DAMAGED_MAX`].
//!
//! # Not here   the memory of answers ([`super::answers`])

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bindery_io::canary::Canary;
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::StoredObject;
use bindery_types::tier::Reconciliation;
use bindery_types::{BookieId, EntryId, LedgerId};

use super::answers::{Answers, Settled};
use super::event::{Fault, Moved, SourceError, Told, WaitingPage, Whereabouts};
use super::{Phase, Upkeep};
use crate::core::updates::{Ability, EXTENTS_KEPT_FOR, UpdateStatus};
use crate::core::{Alarm, quorum};

/// Objects of one page.
pub const WAITING_MAX: usize = 64;
/// Most extents in one window; a slow catalogue makes windows smaller.
const WINDOW_MAX: usize = 512;
/// After so long a pass goes on to other work.
const TIME_PER_PASS: Duration = Duration::from_secs(120);
/// A check of one object that takes longer is given up. It reads the catalogue and metadata, and asks no bookie.
const CHECK_TIME: Duration = Duration::from_secs(300);
/// And at most, however often it was given up.
const CHECK_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// Ledgers in one request, at most: a bookie looks at the objects of those that it let go. There are fewer for one that did not answer.
const TOLD_MAX: usize = 16;
/// A bookie that did not answer so often in a row is asked no more in this pass.
const SILENT_AFTER: u32 = 3;
/// Extents in one request: as many as one may carry.
const EXTENTS_MAX: usize = 4096;
/// Answers of bookies that are remembered.
const ANSWERS_BYTES_MAX: usize = 16 << 20;

/// Damaged objects that are remembered, and raise an alarm each.
const DAMAGED_MAX: usize = 1000;
/// The object under examination.
#[derive(Debug, Clone)]
struct Current {
    stored: StoredObject,
    /// All extents were done, and are being examined once more (invariant 1), until this time at most.
    is_check: bool,
    check_until: Duration,
    /// Extents before this one have been examined.
    from: u32,
    /// Extents under examination: their places in the footer, and what the catalogue has, as of `at`.
    window: Vec<u32>,
    at: Duration,
    moved: Vec<Moved>,
    /// For each of `moved`, the number of answers and conditions that it lacks before it is done.
    lacks: Vec<usize>,
    /// Places in `moved` of which each bookie is still to be told,
    todo: BTreeMap<BookieId, VecDeque<usize>>,
    /// and those that are on their way.
    sent: BTreeMap<BookieId, Vec<usize>>,
    /// A bookie said yes since the catalogue was asked.
    has_gained: bool,
    /// Why it cannot be released, if so.
    lacking: Option<String>,
}

/// What is going on.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    /// The object behind which the current page begins,
    after: Option<ObjectId>,
    /// where the next one begins,
    next: Option<ObjectId>,
    /// and the objects of it whose turn is over.
    had_turn: BTreeSet<ObjectId>,
    queue: VecDeque<StoredObject>,
    current: Option<Current>,
    /// An object that had no time left in the last pass, and where to go on.
    resume: Option<(ObjectId, u32)>,
    /// When this pass goes on to other work.
    until: Duration,
    settled: Settled,
    answers: Answers,
    /// How often in a row bookies did not answer in this pass, and objects that were told of then: others come first in the next one.
    failures: BTreeMap<BookieId, u32>,
    unanswered: BTreeSet<ObjectId>,
    /// Ledgers in a request to bookies that did not answer the last one.
    told_max: BTreeMap<BookieId, usize>,
    window_max: usize,
    released: Vec<(ObjectId, u64)>,
    /// The time of the next check.
    check_time: Duration,
    /// Objects that are to be deleted, and are looked at before (invariant 7): of this pass, and since the beginning of the table.
    last_looks: Vec<StoredObject>,
    looked_at: BTreeSet<ObjectId>,
    /// They come before the others in this pass.
    are_looks_first: bool,
    /// Those that are deleted, whose rows go at the end of the pass.
    deleted: Vec<ObjectId>,
    /// Objects are being examined, or deleted, in this pass.
    is_open: bool,
    /// Objects that were seen since the beginning of the table.
    seen: BTreeSet<ObjectId>,
    /// Objects whose footers are damaged, and in which way.
    damaged: BTreeMap<ObjectId, String>,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting {
            after: None,
            next: None,
            had_turn: BTreeSet::new(),
            queue: VecDeque::new(),
            current: None,
            resume: None,
            until: Duration::ZERO,
            settled: Settled::default(),
            answers: Answers::default(),
            failures: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            told_max: BTreeMap::new(),
            window_max: WINDOW_MAX,
            released: Vec::new(),
            check_time: CHECK_TIME,
            last_looks: Vec::new(),
            looked_at: BTreeSet::new(),
            are_looks_first: false,
            deleted: Vec::new(),
            is_open: false,
            seen: BTreeSet::new(),
            damaged: BTreeMap::new(),
        }
    }
}

impl Waiting {
    pub fn after(&self) -> Option<ObjectId> {
        self.after
    }

    /// A pass begins.
    pub fn begin_pass(&mut self) {
        self.last_looks.clear();
        self.deleted.clear();
        self.is_open = false;
    }

    /// An object that was released is to be deleted (invariant 7).
    pub fn look_at(&mut self, stored: StoredObject) {
        self.last_looks.push(stored);
    }

    /// Whether objects are being examined, or deleted, in this pass.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// These are gone.
    pub fn forget_later(&mut self, deleted: Vec<ObjectId>) {
        for object in &deleted {
            self.answers.of_objects.remove(object);
        }
        self.deleted.extend(deleted);
    }

    pub fn damaged(&self) -> &BTreeMap<ObjectId, String> {
        &self.damaged
    }

    /// Extents of an object that lack an answer, and answers that they have: how far it is.
    #[cfg(test)]
    pub fn left(&self, object: ObjectId) -> Option<usize> {
        let progress = self.answers.of_objects.get(&object)?;
        Some(progress.left as usize * 1000 - progress.answers_of_open())
    }
}

impl Current {
    fn new(stored: StoredObject, from: u32) -> Current {
        Current {
            stored,
            is_check: false,
            check_until: Duration::ZERO,
            from,
            window: Vec::new(),
            at: Duration::ZERO,
            moved: Vec::new(),
            lacks: Vec::new(),
            todo: BTreeMap::new(),
            sent: BTreeMap::new(),
            has_gained: false,
            lacking: None,
        }
    }

    /// Whom to tell of what (invariant 1).
    fn plan(&mut self, found: Whereabouts, bookies: &BTreeMap<BookieId, Ability>, answers: &mut Answers) {
        (self.at, self.moved, self.has_gained) = (found.at, found.moved, false);
        (self.lacks, self.todo) = (vec![0; self.moved.len()], BTreeMap::new());
        let mut of_catalogue: BTreeSet<u32> = BTreeSet::new();
        for (at, moved) in self.moved.iter().enumerate() {
            let Moved { ledger, place, .. } = *moved;
            of_catalogue.insert(place);
            let Some(metadata) = moved.metadata.as_ref().filter(|_| moved.is_covered()) else {
                self.lacking = Some(format!("ledger {ledger} is about to leave the catalogue"));
                self.lacks[at] += 1;
                continue;
            };
            if moved.extents.len() > EXTENTS_MAX {
                self.lacking = Some(format!("ledger {ledger} has too many extents there"));
                self.lacks[at] += 1;
                continue;
            }
            for bookie in quorum::members(metadata, EntryId::MAX) {
                match bookies.get(&bookie) {
                    Some(Ability::KeepsEverything) => {}
                    Some(Ability::Reconciles) => {
                        let number = answers.bookie(&bookie);
                        if !answers.of(&self.stored).has_said_yes(place, number) {
                            self.lacks[at] += 1;
                            self.todo.entry(bookie).or_default().push_back(at);
                        }
                    }
                    Some(Ability::Absent) | None => {
                        self.lacking = Some(format!("bookie {bookie} is not registered"));
                        self.lacks[at] += 1;
                    }
                }
            }
        }
        let progress = answers.of(&self.stored);
        for (moved, lacks) in self.moved.iter().zip(&self.lacks) {
            match lacks {
                0 => progress.finish(moved.place),
                _ => progress.reopen(moved.place),
            }
        }
        let deleted = self.window.iter().filter(|place| !of_catalogue.contains(place));
        deleted.for_each(|place| progress.finish(*place));
        if self.is_check && progress.left > 0 {
            // A bookie that lacks these may lack others. They are examined in as many passes as that takes (invariant 4).
            self.is_check = false;
            (self.behind()..self.stored.extents).for_each(|place| answers.of(&self.stored).reopen(place));
        }
    }

    /// The next requests, one to each bookie: a ledger once, within limits.
    fn requests(&mut self, told_max: &BTreeMap<BookieId, usize>) -> Vec<(BookieId, Vec<Reconciliation>)> {
        let mut requests = Vec::new();
        self.sent.clear();
        for (bookie, todo) in &mut self.todo {
            let told_max = told_max.get(bookie).copied().unwrap_or(TOLD_MAX);
            let (mut updates, mut sent, mut extents): (Vec<Reconciliation>, _, _) =
                (Vec::new(), Vec::new(), 0);
            while let Some(at) = todo.front().copied() {
                let Moved { ledger, extents: of_ledger, .. } = &self.moved[at];
                extents += of_ledger.len();
                let is_twice = updates.last().is_some_and(|update| update.ledger == *ledger);
                if updates.len() == told_max || extents > EXTENTS_MAX || is_twice {
                    break;
                }
                let last = of_ledger.last().map(|extent| extent.last);
                updates.push(Reconciliation { ledger: *ledger, last, extents: of_ledger.clone() });
                sent.push(at);
                todo.pop_front();
            }
            if !updates.is_empty() {
                requests.push((bookie.clone(), updates));
                self.sent.insert(bookie.clone(), sent);
            }
        }
        requests
    }

    /// Behind the window.
    fn behind(&self) -> u32 {
        self.window.last().map_or(self.from, |last| last + 1)
    }
}

impl Upkeep {
    pub(super) fn on_waiting(&mut self, now: Duration, page: Result<WaitingPage, String>) -> Phase {
        let page = match page {
            Ok(page) => page,
            Err(why) => {
                self.status.last_error = Some(why);
                return Phase::Scan;
            }
        };
        self.waiting.is_open = true;
        let settle_ms = u64::try_from(self.settings.settle.as_millis()).unwrap_or(u64::MAX);
        let waiting = &mut self.waiting;
        (waiting.current, waiting.until) = (None, now + TIME_PER_PASS);
        waiting.failures.clear();
        waiting.seen.extend(page.objects.iter().map(|stored| stored.object.id));
        let is_last = page.objects.len() < WAITING_MAX;
        waiting.next = page.objects.last().map(|stored| stored.object.id).filter(|_| !is_last);
        if is_last && waiting.after.is_none() {
            self.status.objects_waiting = page.objects.len() as u64;
        } else {
            self.status.objects_waiting = self.status.objects_waiting.max(waiting.seen.len() as u64);
        }
        if self.status.objects_waiting == 0 {
            self.status.waits_for = None;
        }
        // Invariant 2. The time of the record is another machine's.
        if waiting.settled.see(now, page.log_length, self.settings.settle) {
            // The same number may stand for something else by now (invariant 3).
            waiting.answers = Answers::default();
        }
        let is_settled = |stored: &StoredObject| {
            stored.replaced.is_some_and(|replaced| {
                let was_long_ago = replaced.at_ms.saturating_add(settle_ms) <= page.now_ms;
                was_long_ago && replaced.number <= waiting.settled.through
            })
        };
        let is_due =
            |stored: &StoredObject| is_settled(stored) && !waiting.had_turn.contains(&stored.object.id);
        let mut due: Vec<StoredObject> = page.objects.into_iter().filter(is_due).collect();
        let unanswered = std::mem::take(&mut waiting.unanswered);
        due.sort_by_key(|stored| unanswered.contains(&stored.object.id));
        let mut looks = std::mem::take(&mut waiting.last_looks);
        looks.retain(|stored| !waiting.had_turn.contains(&stored.object.id));
        waiting.looked_at.extend(looks.iter().map(|stored| stored.object.id));
        // Neither keeps the other from its turn.
        waiting.are_looks_first = !waiting.are_looks_first;
        let (first, then) = if waiting.are_looks_first { (looks, due) } else { (due, looks) };
        waiting.queue = first.into_iter().chain(then).collect();
        self.next_waiting(now)
    }

    pub(super) fn next_waiting(&mut self, now: Duration) -> Phase {
        let waiting = &mut self.waiting;
        waiting.current = None;
        waiting.answers.bound(ANSWERS_BYTES_MAX);
        if let Some(stored) = waiting.queue.pop_front() {
            let resume = waiting.resume.take_if(|(object, _)| *object == stored.object.id);
            waiting.current = Some(Current::new(stored, resume.map_or(0, |(_, from)| from)));
            return self.next_window(now);
        }
        // The page is over.
        waiting.had_turn.clear();
        waiting.resume = None;
        waiting.after = waiting.next;
        if waiting.after.is_none() {
            let (seen, looked_at) =
                (std::mem::take(&mut waiting.seen), std::mem::take(&mut waiting.looked_at));
            let is_seen = |object: &ObjectId| seen.contains(object) || looked_at.contains(object);
            waiting.answers.of_objects.retain(|object, _| is_seen(object));
            waiting.damaged.retain(|object, _| is_seen(object));
            self.status.objects_waiting = seen.len() as u64;
        }
        self.end_waiting()
    }

    /// Rows of objects that were deleted go, and those that need not wait any more are let go.
    pub(super) fn end_waiting(&mut self) -> Phase {
        let waiting = &mut self.waiting;
        let is_open = std::mem::replace(&mut waiting.is_open, !waiting.deleted.is_empty());
        match () {
            () if is_open && !waiting.deleted.is_empty() => {
                Phase::Forget(std::mem::take(&mut waiting.deleted))
            }
            () if !waiting.released.is_empty() => Phase::Release(std::mem::take(&mut waiting.released)),
            () => Phase::Scan,
        }
    }

    /// The next extents of the object, or what becomes of it when there are none.
    fn next_window(&mut self, now: Duration) -> Phase {
        let waiting = &mut self.waiting;
        let Some(current) = &mut waiting.current else { return self.next_waiting(now) };
        let object = current.stored.object.id;
        let progress = waiting.answers.of(&current.stored);
        let extents = current.stored.extents;
        // A check that found an open extent is over; another one will cover the rest.
        current.is_check &= progress.left == 0;
        let is_begun = current.is_check;
        if progress.left == 0 && !is_begun {
            (current.is_check, current.from) = (true, 0);
            current.check_until = now + waiting.check_time;
        }
        let window: Vec<u32> = match current.is_check {
            true => (current.from..extents).take(waiting.window_max).collect(),
            false => progress.window(extents, current.from, waiting.window_max),
        };
        let goes_on = || "telling bookies takes long, and goes on".to_owned();
        let is_in_time = if is_begun { now < current.check_until } else { now < waiting.until };
        if !window.is_empty() && is_in_time {
            current.window = window;
            return Phase::WhereTo(current.stored.object, current.window.clone());
        }
        if !window.is_empty() && is_begun {
            let took = waiting.check_time;
            waiting.check_time = (took * 2).min(CHECK_TIME_MAX);
            self.status.waits_for = Some(format!(
                "object {object}: checking it takes longer than {took:?}; it has more time when its turn comes again"
            ));
            waiting.had_turn.insert(object);
            return self.next_waiting(now);
        }
        if !window.is_empty() {
            let why = current.lacking.take().unwrap_or_else(goes_on);
            self.status.waits_for = Some(format!("object {object}: {why}"));
            waiting.resume = Some((object, current.from));
            waiting.current = None;
            waiting.queue.clear();
            return self.end_waiting();
        }
        match current.stored.replaced.filter(|_| progress.left == 0) {
            Some(_) if current.stored.was_released() => {
                waiting.check_time = CHECK_TIME;
                waiting.had_turn.insert(object);
                return Phase::Delete(vec![object]);
            }
            // The answers are kept until the release was committed.
            Some(replaced) => {
                waiting.check_time = CHECK_TIME;
                waiting.released.push((object, replaced.number));
            }
            None => {
                let why = current.lacking.take().unwrap_or_else(goes_on);
                self.status.waits_for = Some(format!("object {object}: {why}"));
            }
        }
        waiting.had_turn.insert(object);
        self.next_waiting(now)
    }

    pub(super) fn on_whereabouts(
        &mut self,
        now: Duration,
        found: Result<Whereabouts, SourceError>,
        alarms: &mut Vec<Alarm>,
    ) -> Phase {
        let waiting = &mut self.waiting;
        let Some(current) = &mut waiting.current else { return self.next_waiting(now) };
        match found {
            Ok(found) => {
                waiting.damaged.remove(&current.stored.object.id);
                let took = now.saturating_sub(found.at);
                let window_max = match () {
                    // Nobody can be told any more.
                    () if took > EXTENTS_KEPT_FOR => waiting.window_max / 2,
                    () if took > EXTENTS_KEPT_FOR / 4 => waiting.window_max,
                    () => waiting.window_max * 2,
                };
                waiting.window_max = window_max.clamp(1, WINDOW_MAX);
                current.plan(found, &self.bookies, &mut waiting.answers);
                self.go_on_telling(now)
            }
            Err(SourceError { fault: Fault::Gone, .. }) if current.stored.was_released() => {
                // Somebody deleted it, and its row is left.
                let object = current.stored.object.id;
                waiting.had_turn.insert(object);
                Phase::Delete(vec![object])
            }
            Err(SourceError { why, fault }) => {
                let object = current.stored.object.id;
                let is_damage = fault == Fault::Damage;
                let is_new = !waiting.damaged.contains_key(&object) && waiting.damaged.len() < DAMAGED_MAX;
                if is_damage && is_new {
                    waiting.damaged.insert(object, why.clone());
                    alarms.push(Alarm::ObjectDamaged { object, why: why.clone() });
                }
                self.status.waits_for = Some(format!("object {object}: {why}"));
                waiting.had_turn.insert(object);
                self.next_waiting(now)
            }
        }
    }

    /// Tells bookies what they have not said to know, or goes on to the next extents when all were told.
    fn go_on_telling(&mut self, now: Duration) -> Phase {
        let waiting = &mut self.waiting;
        let Some(current) = &mut waiting.current else { return self.next_waiting(now) };
        for (bookie, _) in waiting.failures.iter().filter(|(_, times)| **times >= SILENT_AFTER) {
            if current.todo.remove(bookie).is_some_and(|todo| !todo.is_empty()) {
                current.lacking = Some(format!("bookie {bookie} does not answer"));
            }
        }
        // An answer of the catalogue that others may not use any more is too old here, too (invariants 2 and 4).
        let is_fresh = now <= current.at + EXTENTS_KEPT_FOR;
        let requests = if is_fresh { current.requests(&waiting.told_max) } else { Vec::new() };
        if !requests.is_empty() {
            return Phase::Tell(requests);
        }
        let is_told = current.todo.values().all(VecDeque::is_empty);
        // Without an answer another look would not get further, either.
        if is_told || !current.has_gained {
            if !is_told {
                current.lacking = Some("the catalogue or bookies are slow".to_owned());
            }
            current.from = current.behind();
        }
        self.next_window(now)
    }

    pub(super) fn on_told(&mut self, now: Duration, answers: Vec<Told>) -> Phase {
        let is_blind = self.canaries.has(Canary::T16BookiesNotAwaited);
        let mut answers: BTreeMap<BookieId, _> = answers.into_iter().collect();
        let waiting = &mut self.waiting;
        let Some(current) = &mut waiting.current else { return self.next_waiting(now) };
        for (bookie, sent) in std::mem::take(&mut current.sent) {
            let number = waiting.answers.bookie(&bookie);
            let results = match answers.remove(&bookie) {
                Some(Ok(results)) => {
                    waiting.failures.remove(&bookie);
                    if let Some(told_max) = waiting.told_max.remove(&bookie).filter(|max| max * 2 < TOLD_MAX)
                    {
                        waiting.told_max.insert(bookie.clone(), told_max * 2);
                    }
                    results
                }
                Some(Err(_)) | None => {
                    waiting.told_max.insert(bookie.clone(), (sent.len() / 2).max(1));
                    if !is_blind {
                        current.lacking = Some(format!("bookie {bookie} does not answer"));
                        waiting.unanswered.insert(current.stored.object.id);
                        *waiting.failures.entry(bookie.clone()).or_default() += 1;
                        // Again, with fewer.
                        let todo = current.todo.entry(bookie).or_default();
                        sent.into_iter().rev().for_each(|at| todo.push_front(at));
                        continue;
                    }
                    Vec::new()
                }
            };
            let by_ledger: BTreeMap<LedgerId, _> =
                results.into_iter().map(|result| (result.ledger, result)).collect();
            let progress = waiting.answers.of(&current.stored);
            for at in sent {
                let Moved { ledger, place, extents, .. } = &current.moved[at];
                let last = extents.last().map(|extent| extent.last);
                let is_told = by_ledger.get(ledger).is_some_and(|result| match result.status {
                    UpdateStatus::Done => result.is_durable && result.register >= last,
                    UpdateStatus::NoLedger => true,
                    UpdateStatus::Behind | UpdateStatus::Busy | UpdateStatus::Failed => false,
                });
                if is_told || is_blind {
                    current.has_gained = true;
                    progress.say_yes(*place, number);
                    current.lacks[at] -= 1;
                    if current.lacks[at] == 0 {
                        progress.finish(*place);
                    }
                } else {
                    current.lacking = Some(format!("bookie {bookie} did not take ledger {ledger}"));
                }
            }
        }
        self.go_on_telling(now)
    }

    pub(super) fn on_released(&mut self, released: Result<u64, String>) -> Phase {
        match released {
            Ok(count) => {
                self.status.counts.objects_released += count;
                if let Phase::Release(objects) = &self.phase {
                    objects
                        .iter()
                        .for_each(|(object, _)| drop(self.waiting.answers.of_objects.remove(object)));
                }
            }
            // The next pass finds what is left, and tells nobody again.
            Err(why) => self.status.last_error = Some(why),
        }
        Phase::Scan
    }
}
