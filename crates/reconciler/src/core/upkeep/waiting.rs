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
//! 1. An object is released when all of its extents are done. An extent is done when each bookie in an ensemble of its
//!    ledger, by the metadata of that time, took the extents that the catalogue has for the range, holds nothing of the
//!    ledger, or keeps everything (it does not advertise tiering). An unregistered bookie has done none of these. A
//!    ledger that has left the catalogue was deleted and needs no answer. A bookie that joins an ensemble for the first
//!    time later hears of the catalogue's new extents anyway. One that returns to an ensemble may still refer to the
//!    object, and only this module would tell it. So before a release all extents are checked once more in one pass,
//!    against the ensembles and registrations of that pass, and those that lack an answer are open again. Answers of
//!    bookies count whether or not they are members at the time; "keeps everything" and "deleted" are determined again
//!    in each check.
//! 2. An object is examined only [`UpkeepSettings::settle`](super::UpkeepSettings::settle) after this tierer saw the latest takeover of
//!    its extents in the log, by its own monotonic clock, and after the time stamped on that record: by then no tierer announces the
//!    old extents any more ([`EXTENTS_KEPT_FOR`]). So answers stay valid until more extents are taken over.
//! 3. A tierer that starts again, or finds the log shorter than before, tells all bookies again, which changes nothing.
//! 4. Bookies are told within [`EXTENTS_KEPT_FOR`] after the catalogue was read, a period that starts over with each
//!    window, and answers given by then are not requested again. Where the catalogue took so long that it is too late
//!    to tell any bookie, the same extents come again in smaller windows, whatever other objects did to these
//!    meanwhile. A pass goes on where the one before stopped. So an object of any number of extents is finished after
//!    finitely many passes, as long as bookies answer. The check of invariant 1 ends in the pass in which it began. It
//!    tells no bookie: at the first extents that lack an answer it is over, and these and all behind them are examined
//!    as before, a part in each pass. A check that takes too long is given up, and that of the same object has twice
//!    the time in a later pass, as often as that takes, up to [`CHECK_TIME_MAX`]. One that takes even longer is an
//!    alarm, and is tried again.
//! 5. An object whose footer is damaged is never released unless it is repaired. Operators get one alarm, and it keeps no other object
//!    from being rewritten.
//! 6. When memory is short, the answers for the object nearest to its release are kept.
//! 7. An object that was released is examined and checked in the same way before it is deleted, at once after that. A bookie that was in
//!    no ensemble when the object was released, and is in one again, is told then, or keeps the object while it is not registered. A
//!    bookie that joins an ensemble again after the deletion is not found by that: it says so itself once a read has missed an entry
//!    (`bindery_server::tier`, invariant 7). An object is believed to be gone when two passes found it so: stores
//!    say the same of an access key that they do not know at the moment, and whoever deletes it then has told nobody.
//! 8. Objects that are held before their deletion count as those that wait for bookies.
//! 9. Objects without a row are examined and checked as those that were released, and wait for nobody's release: see
//!    [`super::orphans`]. They do not count as waiting.
//!
//! # Limits
//! Objects in one page: [`WAITING_MAX`]; objects looked at before their deletion beside one: [`LOOKS_MAX`]. Extents in one window:
//! [`WINDOW_MAX`]. Time of one pass: [`TIME_PER_PASS`], and the rest of a step begun by then. Time of a check: [`CHECK_TIME`], at first, and [`CHECK_TIME_MAX`]. Answers remembered: [`ANSWERS_BYTES_MAX`], or those
//! for one object. Damaged objects remembered: [`DAMAGED_MAX`].
//!
//! # Not here   whom to tell of an object's extents ([`super::current`]), the memory of answers ([`super::answers`])

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bindery_io::canary::Canary;
use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::StoredObject;
use bindery_types::{BookieId, LedgerId};

use super::answers::{Answers, Settled};
use super::current::{Current, TOLD_MAX};
use super::event::{Fault, Moved, SourceError, Told, WaitingPage, Whereabouts};
use super::orphans::Orphans;
use super::{Phase, Upkeep, UpkeepStatus};
use crate::core::Alarm;
use crate::core::updates::{EXTENTS_KEPT_FOR, UpdateStatus};

/// Objects of one page.
pub const WAITING_MAX: usize = 64;
/// Most objects checked before their deletion while one page lasts; the others follow with the next page.
const LOOKS_MAX: usize = 16_384;
/// Most extents in one window; a slow catalogue makes windows smaller.
const WINDOW_MAX: usize = 512;
/// After so long a pass goes on to other work.
const TIME_PER_PASS: Duration = Duration::from_secs(120);
/// A check of one object that takes longer is given up. It reads the catalogue and metadata, and asks no bookie.
const CHECK_TIME: Duration = Duration::from_secs(300);
/// Its limit, however often it was given up: a check holds up all other work of a pass.
const CHECK_TIME_MAX: Duration = Duration::from_secs(3600);
/// A bookie that did not answer so often in a row is asked no more in this pass.
const SILENT_AFTER: u32 = 3;
/// Answers of bookies that are remembered.
const ANSWERS_BYTES_MAX: usize = 16 << 20;

/// Damaged objects that are remembered, and raise an alarm each.
const DAMAGED_MAX: usize = 1000;
/// An object whose check took too long.
#[derive(Debug, Clone, Copy)]
struct Slow {
    /// The time of its next check.
    time: Duration,
    /// It took longer than a check may ever take, which was said.
    is_known: bool,
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
    /// Objects of the page that had no time left in an earlier pass, and where to go on. Which one comes first differs from pass to pass.
    resume: BTreeMap<ObjectId, u32>,
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
    slow: BTreeMap<ObjectId, Slow>,
    /// Alarms not yet raised.
    alarms: Vec<Alarm>,
    /// Objects about to be deleted, which are checked first (invariant 7),
    last_looks: Vec<StoredObject>,
    /// behind this one while there are too many,
    looks_after: Option<ObjectId>,
    /// and whether there are more behind the last one.
    has_more_looks: bool,
    last_look: Option<ObjectId>,
    /// Objects without a row, which come last.
    orphans: Vec<StoredObject>,
    /// Objects that the last check did not find in the bucket.
    gone: BTreeSet<ObjectId>,
    /// They come before the others in this pass.
    are_looks_first: bool,
    /// Those that are deleted, whose rows go at the end of the pass.
    deleted: Vec<ObjectId>,
    /// Objects are being examined, or deleted, in this pass.
    is_open: bool,
    /// Objects that wait or are held before their deletion: of the table from its beginning on, and of all of it when it was gone through last.
    seen: BTreeSet<ObjectId>,
    seen_before: BTreeSet<ObjectId>,
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
            resume: BTreeMap::new(),
            until: Duration::ZERO,
            settled: Settled::default(),
            answers: Answers::default(),
            failures: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            told_max: BTreeMap::new(),
            window_max: WINDOW_MAX,
            released: Vec::new(),
            slow: BTreeMap::new(),
            alarms: Vec::new(),
            last_looks: Vec::new(),
            looks_after: None,
            has_more_looks: false,
            last_look: None,
            orphans: Vec::new(),
            gone: BTreeSet::new(),
            are_looks_first: false,
            deleted: Vec::new(),
            is_open: false,
            seen: BTreeSet::new(),
            seen_before: BTreeSet::new(),
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
        self.has_more_looks = false;
        self.deleted.clear();
        self.is_open = false;
    }

    /// An object that was released is to be deleted (invariant 7).
    pub fn look_at(&mut self, stored: StoredObject) {
        if Some(stored.object.id) <= self.looks_after {
            return;
        }
        match self.last_looks.len() < LOOKS_MAX {
            true => self.last_looks.push(stored),
            false => self.has_more_looks = true,
        }
    }

    /// Objects without a row are to be examined in this pass (invariant 9).
    pub fn examine(&mut self, orphans: Vec<StoredObject>) {
        self.orphans = orphans;
    }

    /// Whether objects are being examined, or deleted, in this pass.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// These are gone.
    pub fn forget_later(&mut self, deleted: Vec<ObjectId>) {
        for object in &deleted {
            self.answers.of_objects.remove(object);
            self.seen.remove(object);
            self.seen_before.remove(object);
        }
        self.deleted.extend(deleted);
    }

    pub fn damaged(&self) -> &BTreeMap<ObjectId, String> {
        &self.damaged
    }

    /// Takes the alarms since the last call.
    pub fn take_alarms(&mut self) -> Vec<Alarm> {
        std::mem::take(&mut self.alarms)
    }

    /// Objects that wait (invariant 8): of the table as far as it was gone through, or of all of it before, whichever is more.
    pub fn count(&self) -> u64 {
        self.seen.len().max(self.seen_before.len()) as u64
    }

    /// Those that are not damaged: these wait for an operator.
    pub fn count_undamaged(&self) -> u64 {
        let of = |seen: &BTreeSet<ObjectId>| {
            seen.iter().filter(|object| !self.damaged.contains_key(object)).count() as u64
        };
        of(&self.seen).max(of(&self.seen_before))
    }

    /// Objects of this page, and those that are to be deleted, are seen.
    fn see(&mut self, page: &[StoredObject], is_last: bool) {
        if self.after.is_none() {
            self.seen.clear();
        }
        if self.after.is_none() && is_last {
            self.seen_before.clear();
        }
        self.seen.extend(page.iter().chain(&self.last_looks).map(|stored| stored.object.id));
    }

    /// Ends the page; after the last page, forgets objects that were not seen.
    fn end_page(&mut self) {
        self.had_turn.clear();
        self.resume.clear();
        self.after = self.next;
        let are_all_seen = self.looks_after.is_none() && !self.has_more_looks;
        self.looks_after = match self.has_more_looks {
            true => self.last_look,
            false => None,
        };
        if self.after.is_none() {
            self.seen_before = std::mem::take(&mut self.seen);
            let seen = &self.seen_before;
            if !are_all_seen {
                return;
            }
            let orphans: BTreeSet<ObjectId> = self.orphans.iter().map(|stored| stored.object.id).collect();
            let seen = |object: &ObjectId| seen.contains(object) || orphans.contains(object);
            self.answers.of_objects.retain(|object, _| seen(object));
            self.damaged.retain(|object, _| seen(object));
            self.slow.retain(|object, _| seen(object));
            self.gone.retain(seen);
        }
    }

    /// The check of an object took too long: for how long it went on, and whether the next one may take longer.
    fn note_slow(&mut self, object: ObjectId) -> (Duration, bool) {
        let slow = self.slow.entry(object).or_insert(Slow { time: CHECK_TIME, is_known: false });
        let took = slow.time;
        let may_take_longer = took < CHECK_TIME_MAX;
        slow.time = (took * 2).min(CHECK_TIME_MAX);
        if !may_take_longer && !std::mem::replace(&mut slow.is_known, true) {
            self.alarms.push(Alarm::CheckTooSlow { object, took });
        }
        (took, may_take_longer)
    }

    /// Extents of an object that lack an answer, and answers that they have: how far it is.
    #[cfg(test)]
    pub fn left(&self, object: ObjectId) -> Option<usize> {
        let progress = self.answers.of_objects.get(&object)?;
        Some(progress.left as usize * 1000 - progress.answers_of_open())
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
        waiting.answers.bound(ANSWERS_BYTES_MAX);
        waiting.failures.clear();
        let is_last = page.objects.len() < WAITING_MAX;
        waiting.next = page.objects.last().map(|stored| stored.object.id).filter(|_| !is_last);
        waiting.see(&page.objects, is_last);
        self.status.objects_waiting = waiting.count();
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
        waiting.last_look = looks.last().map(|stored| stored.object.id);
        looks.retain(|stored| !waiting.had_turn.contains(&stored.object.id));
        // Neither keeps the other from its turn.
        waiting.are_looks_first = !waiting.are_looks_first;
        let (first, then) = if waiting.are_looks_first { (looks, due) } else { (due, looks) };
        let orphans = waiting.orphans.iter().filter(|stored| !waiting.had_turn.contains(&stored.object.id));
        waiting.queue = first.into_iter().chain(then).chain(orphans.copied()).collect();
        self.next_waiting(now)
    }

    pub(super) fn next_waiting(&mut self, now: Duration) -> Phase {
        let waiting = &mut self.waiting;
        if let Some(examined) = waiting.current.take() {
            waiting.answers.bound_after(examined.stored.object.id, ANSWERS_BYTES_MAX);
        }
        if let Some(stored) = waiting.queue.pop_front() {
            let from = waiting.resume.remove(&stored.object.id).unwrap_or(0);
            waiting.current = Some(Current::new(stored, from));
            return self.next_window(now);
        }
        waiting.end_page();
        self.status.objects_waiting = waiting.count();
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
            current.check_until = now + waiting.slow.get(&object).map_or(CHECK_TIME, |slow| slow.time);
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
            let (took, may_take_longer) = waiting.note_slow(object);
            let then = match may_take_longer {
                true => "it has more time when its turn comes again",
                false => "it is tried again",
            };
            let why = format!("checking it takes longer than {took:?}; {then}");
            say(&mut self.status, &self.orphans, object, &why);
            waiting.had_turn.insert(object);
            return self.next_waiting(now);
        }
        if !window.is_empty() {
            let why = current.lacking.take().unwrap_or_else(goes_on);
            say(&mut self.status, &self.orphans, object, &why);
            waiting.resume.insert(object, current.from);
            waiting.current = None;
            waiting.queue.clear();
            return self.end_waiting();
        }
        match current.stored.replaced.filter(|_| progress.left == 0) {
            Some(_) if current.stored.was_released() => {
                waiting.slow.remove(&object);
                waiting.had_turn.insert(object);
                return Phase::Delete(vec![object]);
            }
            // The answers are kept until the release was committed.
            Some(replaced) => {
                waiting.slow.remove(&object);
                waiting.released.push((object, replaced.number));
            }
            None => {
                let why = current.lacking.take().unwrap_or_else(goes_on);
                say(&mut self.status, &self.orphans, object, &why);
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
                waiting.gone.remove(&current.stored.object.id);
                let took = now.saturating_sub(found.at);
                let window_max = match () {
                    // Nobody can be told any more.
                    () if took > EXTENTS_KEPT_FOR => waiting.window_max / 2,
                    () if took > EXTENTS_KEPT_FOR / 4 => waiting.window_max,
                    () => waiting.window_max * 2,
                };
                waiting.window_max = window_max.clamp(1, WINDOW_MAX);
                let is_orphan = self.orphans.has(current.stored.object.id);
                let proven = is_orphan.then(|| self.orphans.gone());
                current.plan(found, &self.bookies, &mut waiting.answers, proven);
                let is_too_late = took > EXTENTS_KEPT_FOR && !current.todo.is_empty();
                if is_too_late && !current.is_check && current.window.len() > 1 {
                    // Again with fewer extents, and not with others: the next look from here on would have as many.
                    return self.next_window(now);
                }
                self.go_on_telling(now)
            }
            Err(SourceError { why, fault: Fault::Gone }) if current.stored.was_released() => {
                let object = current.stored.object.id;
                waiting.had_turn.insert(object);
                if waiting.gone.insert(object) {
                    let why = format!("{why}; another pass looks whether that is so");
                    say(&mut self.status, &self.orphans, object, &why);
                    return self.next_waiting(now);
                }
                // Somebody deleted it, and its row is left.
                Phase::Delete(vec![object])
            }
            Err(SourceError { why, fault }) => {
                let object = current.stored.object.id;
                if self.orphans.has(object) && fault == Fault::Damage {
                    self.orphans.damage(object, why, alarms);
                    waiting.had_turn.insert(object);
                    return self.next_waiting(now);
                }
                let is_damage = fault == Fault::Damage;
                let is_new = !waiting.damaged.contains_key(&object) && waiting.damaged.len() < DAMAGED_MAX;
                if is_damage && is_new {
                    waiting.damaged.insert(object, why.clone());
                    alarms.push(Alarm::ObjectDamaged { object, why: why.clone() });
                }
                say(&mut self.status, &self.orphans, object, &why);
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
                let Moved { ledger, place, extents, end, .. } = &current.moved[at];
                let last = extents.last().map(|extent| extent.last);
                let ahead =
                    by_ledger.get(ledger).and_then(|result| result.register).filter(|at| Some(*at) > *end);
                if let Some(register) = ahead {
                    // Another tierer may just have committed: the ledger is looked at anew, and that decides.
                    self.doubts.note_ahead(
                        now,
                        format!("bookie {bookie} says that ledger {ledger} is in the tier up to entry {register}, and the catalogue ends before"),
                    );
                    self.ahead_ledgers.push(*ledger);
                }
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

/// Why an object stays.
fn say(status: &mut UpkeepStatus, orphans: &Orphans, object: ObjectId, why: &str) {
    let of_object = format!("object {object}: {why}");
    match orphans.has(object) {
        true => status.orphan_kept = Some(of_object),
        false => status.waits_for = Some(of_object),
    }
}
