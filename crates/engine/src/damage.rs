//! The damage register: which copies of entries in entry logs are known not to verify, until another copy has replaced them.
//!
//! # Data flow
//! ```text
//! scrub, reads, lists, rewrites -> note -> lists leave the copies out -> a repair adds the entries again (newer copies)
//!     -> the owner of the directories: a newer copy of each is on disk -> made good -> the log is rewritten without them -> forget
//! scrub: a log was checked -> ranges that it did not find again are sound, and leave the register
//! ```
//!
//! # Invariants
//! 1. What is noted is about copies in one log. A copy of the same entry that is newer, in memory or in another log, is not touched
//!    by it; an older one never takes the damaged one's place (the newest copy that may hold an entry decides).
//! 2. A range is made good only when each of its copies is hidden by a removal or a trim, or a newer copy of its entry is on disk, or
//!    when metadata says that nothing of its ledger is missing here. That stays true: the copies are dead from then on.
//! 3. A log that is not live is not in it.
//! 4. What did not fit is found again without anybody's help: of a log with such damage the ranges that are made good make way, and it is
//!    checked again, from the first damage that did not fit, once there is room. A rewrite that meets a forgotten copy that is dead for
//!    another reason than a newer one on disk fails and notes it.
//!
//! # Limits
//! [`RANGES_MAX`] ranges, and as many logs. Of what does not fit only the place of the first in its log is remembered.

use bindery_storage::{EntryLog, Generation, IndexedRun, LogId, LogView};
use bindery_types::{EntryId, LedgerId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A log, named by its directory and its id.
pub(crate) type LogRef = (usize, LogId);

/// Most ranges, and most logs.
const RANGES_MAX: usize = 4096;
/// Of these, how many are free before what did not fit is looked for again: a check reads a whole log.
const ROOM_MIN: usize = RANGES_MAX / 8;

/// Copies of entries that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedRange {
    /// The ledger.
    pub ledger: LedgerId,
    /// The first entry that may be damaged.
    pub first: EntryId,
    /// The last one. Of a run whose index is damaged not every entry between them need ever have been here.
    pub last: EntryId,
    /// The entry log with the damage.
    pub file: String,
    pub(crate) at: LogRef,
    pub(crate) generation: Generation,
}

/// Size of the damage register.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DamageSummary {
    /// Ranges of entries that wait for another copy.
    pub ranges: u64,
    /// Their ledgers.
    pub ledgers: u64,
    /// Live logs with any damage.
    pub logs: u64,
    /// Those of them with more damage than is registered: a later check finds it.
    pub logs_with_more: u64,
    /// Ranges that were made good since the start.
    pub made_good: u64,
    /// Logs that were replaced since the start because of damage in them.
    pub logs_renewed: u64,
}

/// Copies in a log that are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copies {
    pub(crate) ledger: LedgerId,
    pub(crate) first: EntryId,
    pub(crate) last: EntryId,
    pub(crate) generation: Generation,
}

/// Entries of a ledger of which no copy up to a generation can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) first: EntryId,
    pub(crate) last: EntryId,
    pub(crate) generation: Generation,
}

/// How a rewrite may treat a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No damage is known.
    Sound,
    /// It has to stay as it is: it may have the only copy of something.
    Damaged,
    /// All damage in it is made good, or nothing reads it: a rewrite leaves that behind.
    Renewable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: EntryId,
    last: EntryId,
    generation: Generation,
    is_good: bool,
    /// It is good because metadata needs nothing of it here, and nothing newer takes its place.
    is_needless: bool,
    /// Found since the check under way began.
    is_fresh: bool,
}

#[derive(Default)]
struct DamagedLog {
    file: String,
    /// Ascending by first entry.
    ledgers: BTreeMap<LedgerId, Vec<Range>>,
    /// There is damage that could not be named.
    has_more: bool,
    /// Where the first damage is that did not fit into the register, in bytes; 0 when that is not known.
    left_out: Option<u64>,
    /// The same of the check under way, which passes over what is in front of `resume`: it is known, or was made good and made way.
    left_out_now: Option<u64>,
    resume: u64,
    /// Ranges that were made good made way.
    has_forgotten: bool,
    /// A scrub was asked for because of that, and nothing was made good since.
    asked_for_scrub: bool,
    /// Header, footer or trailer.
    frame: Part,
    /// Zeros that nothing reads.
    padding: Part,
    /// No rewrite of it begins before.
    not_before_ns: u64,
}

/// Of a part of a log that no entry is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Sound,
    Damaged {
        is_fresh: bool,
    },
}

impl Part {
    fn is_damaged(self) -> bool {
        self != Part::Sound
    }

    fn begin_check(&mut self) {
        if self.is_damaged() {
            *self = Part::Damaged { is_fresh: false };
        }
    }

    fn end_check(&mut self) {
        if *self == (Part::Damaged { is_fresh: false }) {
            *self = Part::Sound;
        }
    }
}

impl DamagedLog {
    fn is_empty(&self) -> bool {
        self.ledgers.is_empty()
            && !self.is_more()
            && !self.has_forgotten
            && !self.frame.is_damaged()
            && !self.padding.is_damaged()
    }

    /// There is damage that is not in `ledgers`.
    fn is_more(&self) -> bool {
        self.has_more || self.left_out.is_some() || self.left_out_now.is_some()
    }

    fn ranges(&self) -> impl Iterator<Item = &Range> {
        self.ledgers.values().flatten()
    }

    fn standing(&self) -> Standing {
        match self.is_more() || self.ranges().any(|range| !range.is_good) {
            true => Standing::Damaged,
            false => Standing::Renewable,
        }
    }
}

#[derive(Default)]
struct State {
    logs: BTreeMap<LogRef, DamagedLog>,
    ranges: usize,
    /// There was no room for a log.
    has_left_out_logs: bool,
    made_good: u64,
    logs_renewed: u64,
}

impl State {
    /// Registers copies in a log that is here; false when there is no room.
    fn note(&mut self, at: LogRef, copies: Copies) -> bool {
        let is_full = self.ranges >= RANGES_MAX;
        let Some(log) = self.logs.get_mut(&at) else { return true };
        let before = log.ledgers.get(&copies.ledger).map_or(0, Vec::len);
        if is_full && !log.ledgers.get_mut(&copies.ledger).is_some_and(|ranges| touch(ranges, copies)) {
            return false;
        }
        let ranges = log.ledgers.entry(copies.ledger).or_default();
        add(ranges, copies);
        self.ranges = self.ranges + ranges.len() - before;
        true
    }
}

/// See the module.
pub(crate) struct DamageRegister {
    state: Mutex<State>,
    /// The registered logs, copied so that callers can examine them without the lock.
    logs: AtomicUsize,
    views: Vec<Arc<LogView>>,
}

impl DamageRegister {
    pub(crate) fn new(views: &[Arc<LogView>]) -> DamageRegister {
        DamageRegister { state: Mutex::default(), logs: AtomicUsize::new(0), views: views.to_vec() }
    }

    /// Nothing is known to be damaged.
    pub(crate) fn is_empty(&self) -> bool {
        self.logs.load(Ordering::Acquire) == 0
    }

    /// Copies in a log do not verify.
    pub(crate) fn note(&self, at: LogRef, file: &Path, copies: Copies) {
        self.change(at, file, |state| {
            let is_noted = state.note(at, copies);
            if !is_noted && let Some(log) = state.logs.get_mut(&at) {
                // Where it is in the log is not known; a check under way may have passed it.
                (log.left_out, log.left_out_now) = (Some(0), Some(0));
            }
        });
    }

    /// As [`DamageRegister::note`], by the check of the log that is under way, which found it at `offset`.
    pub(crate) fn note_checked(&self, at: LogRef, file: &Path, copies: Copies, offset: u64) {
        self.change(at, file, |state| {
            let Some(log) = state.logs.get_mut(&at) else { return };
            let is_passed_over = offset < log.resume
                && !log.ledgers.get_mut(&copies.ledger).is_some_and(|ranges| touch(ranges, copies));
            if !is_passed_over
                && !state.note(at, copies)
                && let Some(log) = state.logs.get_mut(&at)
            {
                log.left_out_now = Some(log.left_out_now.map_or(offset, |first| first.min(offset)));
                // Counts if this check does not end.
                log.left_out.get_or_insert(offset);
            }
        });
    }

    /// As [`DamageRegister::note`], of a log as readers have it.
    pub(crate) fn note_read(&self, log: &Arc<EntryLog>, copies: Copies) {
        if let Some(at) = self.place_of(log) {
            self.note(at, log.path(), copies);
        }
    }

    /// Nothing but the index in memory knows of a run any more: its block of the footer cannot be read. All of the run counts as
    /// damaged, and as old as its log, because a read that meets the block does not find older copies either.
    pub(crate) fn note_unlisted(&self, at: LogRef, log: &EntryLog, run: &IndexedRun) {
        let IndexedRun { ledger, first, last, .. } = *run;
        self.note(at, log.path(), Copies { ledger, first, last, generation: log.generation() });
        self.note_frame(at, log.path());
    }

    /// As [`DamageRegister::note_unlisted`], of a log as readers have it.
    pub(crate) fn note_unlisted_read(&self, log: &Arc<EntryLog>, run: &IndexedRun) {
        if let Some(at) = self.place_of(log) {
            self.note_unlisted(at, log, run);
        }
    }

    /// A log has more damage than a scrub could name.
    pub(crate) fn note_more(&self, at: LogRef, file: &Path) {
        self.change(at, file, |state| {
            if let Some(log) = state.logs.get_mut(&at) {
                log.has_more = true;
            }
        });
    }

    /// Header, footer or trailer of a log is damaged.
    pub(crate) fn note_frame(&self, at: LogRef, file: &Path) {
        self.change(at, file, |state| {
            if let Some(log) = state.logs.get_mut(&at) {
                log.frame = Part::Damaged { is_fresh: true };
            }
        });
    }

    /// The zeros behind the footer of a log are none any more.
    pub(crate) fn note_padding(&self, at: LogRef, file: &Path) {
        self.change(at, file, |state| {
            if let Some(log) = state.logs.get_mut(&at) {
                log.padding = Part::Damaged { is_fresh: true };
            }
        });
    }

    /// Changes the record of a live log, which is made if it is not there.
    fn change(&self, at: LogRef, file: &Path, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        // Under the lock: whoever takes the log out of sight calls `forget` afterwards (invariant 3).
        let is_live = self.views.get(at.0).is_some_and(|view| view.log(at.1).is_some());
        if !is_live {
            return;
        }
        if !state.logs.contains_key(&at) && state.logs.len() >= RANGES_MAX {
            state.has_left_out_logs = true;
            return;
        }
        let fresh = || DamagedLog { file: file.display().to_string(), ..DamagedLog::default() };
        state.logs.entry(at).or_insert_with(fresh);
        change(&mut state);
        self.logs.store(state.logs.len(), Ordering::Release);
    }

    /// Where a log is live that a reader has.
    fn place_of(&self, log: &Arc<EntryLog>) -> Option<LogRef> {
        let log_id = log.log_id();
        let is_it = |view: &Arc<LogView>| view.log(log_id).is_some_and(|live| Arc::ptr_eq(&live, log));
        self.views.iter().position(is_it).map(|index| (index, log_id))
    }

    /// The scrub begins to check a log.
    pub(crate) fn begin_check(&self, at: LogRef) {
        if let Some(log) = self.state.lock().logs.get_mut(&at) {
            log.ledgers.values_mut().flatten().for_each(|range| range.is_fresh = false);
            log.has_more = false;
            (log.resume, log.left_out_now) = (log.left_out.unwrap_or(0), None);
            log.frame.begin_check();
            log.padding.begin_check();
        }
    }

    /// The scrub has checked all of the log: what was not found again is sound.
    pub(crate) fn end_check(&self, at: LogRef) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(log) = state.logs.get_mut(&at) else { return };
        let before = log.ranges().count();
        // A check that began behind it did not look for it.
        let is_part = log.resume > 0;
        log.ledgers.retain(|_, ranges| {
            ranges.retain(|range| range.is_fresh || (is_part && range.is_needless));
            !ranges.is_empty()
        });
        (log.resume, log.left_out) = (0, log.left_out_now.take());
        log.frame.end_check();
        log.padding.end_check();
        state.ranges -= before - log.ranges().count();
        if log.is_empty() {
            state.logs.remove(&at);
        }
        self.logs.store(state.logs.len(), Ordering::Release);
    }

    /// A log is not live any more. Call it once no view shows the log.
    pub(crate) fn forget(&self, at: LogRef) {
        let mut state = self.state.lock();
        if let Some(log) = state.logs.remove(&at) {
            state.ranges -= log.ranges().count();
            state.logs_renewed += 1;
        }
        self.logs.store(state.logs.len(), Ordering::Release);
    }

    /// How a rewrite may treat this log.
    pub(crate) fn standing(&self, at: LogRef) -> Standing {
        if self.is_empty() {
            return Standing::Sound;
        }
        self.state.lock().logs.get(&at).map_or(Standing::Sound, DamagedLog::standing)
    }

    /// Entries of a ledger that no copy up to a generation can answer for.
    pub(crate) fn unreadable(&self, ledger: LedgerId) -> Vec<Unreadable> {
        if self.is_empty() {
            return Vec::new();
        }
        let state = self.state.lock();
        let ranges = state.logs.values().filter_map(|log| log.ledgers.get(&ledger)).flatten();
        ranges
            .map(|Range { first, last, generation, .. }| Unreadable {
                first: *first,
                last: *last,
                generation: *generation,
            })
            .collect()
    }

    /// Ranges that wait to be made good, of the ledgers above `after`, at most about `most`: those of a ledger stay together.
    pub(crate) fn waiting(&self, after: Option<LedgerId>, most: usize) -> Vec<DamagedRange> {
        if self.is_empty() {
            return Vec::new();
        }
        let state = self.state.lock();
        let mut found: Vec<DamagedRange> = Vec::new();
        for (at, log) in &state.logs {
            for (ledger, ranges) in &log.ledgers {
                if after.is_none_or(|after| *ledger > after) {
                    let waiting = ranges.iter().filter(|range| !range.is_good);
                    found.extend(waiting.map(|range| damaged(*at, &log.file, *ledger, range)));
                }
            }
        }
        found.sort_by_key(|range| (range.ledger, range.first));
        if let Some(last) = found.get(most).map(|range| range.ledger) {
            // The first ledger is whole, however many it has.
            let first = found[0].ledger;
            found.retain(|range| range.ledger < last || range.ledger == first);
        }
        found
    }

    /// Ranges of a ledger that wait to be made good.
    pub(crate) fn waiting_of(&self, ledger: LedgerId) -> Vec<DamagedRange> {
        if self.is_empty() {
            return Vec::new();
        }
        let state = self.state.lock();
        let mut found = Vec::new();
        for (at, log) in &state.logs {
            let ranges = log.ledgers.get(&ledger).into_iter().flatten().filter(|range| !range.is_good);
            found.extend(ranges.map(|range| damaged(*at, &log.file, ledger, range)));
        }
        found
    }

    /// The copies in these ranges are dead (invariant 2). `is_needless`: metadata need no copy here, and no newer copy takes their place.
    pub(crate) fn make_good(&self, ranges: &[DamagedRange], is_needless: bool) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for good in ranges {
            let Some(log) = state.logs.get_mut(&good.at) else { continue };
            for range in log.ledgers.get_mut(&good.ledger).into_iter().flatten() {
                let is_it =
                    (range.first, range.last, range.generation) == (good.first, good.last, good.generation);
                if is_it && !range.is_good {
                    (range.is_good, range.is_needless) = (true, is_needless);
                    log.asked_for_scrub = false;
                    state.made_good += 1;
                }
            }
        }
    }

    /// Every copy that the log has of these entries is dead.
    pub(crate) fn is_made_good(&self, at: LogRef, ledger: LedgerId, first: EntryId, last: EntryId) -> bool {
        if self.is_empty() {
            return false;
        }
        let state = self.state.lock();
        let ranges = state.logs.get(&at).and_then(|log| log.ledgers.get(&ledger));
        let covers = |range: &Range| range.is_good && range.first <= first && last <= range.last;
        ranges.is_some_and(|ranges| ranges.iter().any(covers))
    }

    /// True of a log of which the frame is damaged.
    pub(crate) fn has_bad_frame(&self, at: LogRef) -> bool {
        !self.is_empty() && self.state.lock().logs.get(&at).is_some_and(|log| log.frame.is_damaged())
    }

    /// Takes the logs whose rewrite is due, of those that `is_free` says; they are due again after the pause, if they are still there.
    pub(crate) fn take_renewable(
        &self,
        now_ns: u64,
        pause_ns: u64,
        is_free: impl Fn(LogRef) -> bool,
    ) -> Vec<LogRef> {
        let mut state = self.state.lock();
        let mut due = Vec::new();
        for (at, log) in &mut state.logs {
            if log.standing() == Standing::Renewable && log.not_before_ns <= now_ns && is_free(*at) {
                log.not_before_ns = now_ns.saturating_add(pause_ns);
                due.push(*at);
            }
        }
        due
    }

    /// Takes the logs that are to be checked again because damage in them did not fit, now that there is room and nothing else to be done
    /// for them. Ranges with newer copies make way (invariant 4); needless ones stay, so that no list of entries has them.
    pub(crate) fn take_left_out(&self) -> Vec<LogRef> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        let mut due = Vec::new();
        for (at, log) in &mut state.logs {
            if log.left_out.is_some() && log.ranges().all(|range| range.is_good) {
                let before = log.ranges().count();
                log.ledgers.retain(|_, ranges| {
                    ranges.retain(|range| range.is_needless);
                    !ranges.is_empty()
                });
                let forgotten = before - log.ranges().count();
                log.has_forgotten |= forgotten > 0;
                state.ranges -= forgotten;
                due.push(*at);
            }
        }
        if state.ranges + ROOM_MIN > RANGES_MAX {
            due.clear();
        }
        due
    }

    /// Whether to scrub because of a log that has damage which could not be named, and nothing else to be done for it. Once for each log, and
    /// again when something in it was made good since: without that, another scrub would find the same, so the periodic one does. Also
    /// when there was no room for logs, and there is again.
    pub(crate) fn take_scrub_wish(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut state = self.state.lock();
        let has_room = state.logs.len() + ROOM_MIN <= RANGES_MAX;
        let mut is_wanted = state.has_left_out_logs && has_room;
        state.has_left_out_logs &= !has_room;
        for log in state.logs.values_mut() {
            if log.has_more && !log.asked_for_scrub && log.ranges().all(|range| range.is_good) {
                (log.asked_for_scrub, is_wanted) = (true, true);
            }
        }
        is_wanted
    }

    /// Logs with damage to anything that is read.
    pub(crate) fn damaged_logs(&self) -> u64 {
        let is_damaged = |log: &&DamagedLog| {
            log.is_more() || log.has_forgotten || log.frame.is_damaged() || !log.ledgers.is_empty()
        };
        self.state.lock().logs.values().filter(is_damaged).count() as u64
    }

    pub(crate) fn summary(&self) -> DamageSummary {
        let state = self.state.lock();
        let (mut ranges, mut ledgers, mut logs_with_more) = (0, std::collections::BTreeSet::new(), 0);
        for log in state.logs.values() {
            logs_with_more += u64::from(log.is_more());
            for (ledger, of_ledger) in &log.ledgers {
                let waiting = of_ledger.iter().filter(|range| !range.is_good).count() as u64;
                ranges += waiting;
                if waiting > 0 {
                    ledgers.insert(*ledger);
                }
            }
        }
        DamageSummary {
            ranges,
            ledgers: ledgers.len() as u64,
            logs: state.logs.len() as u64,
            logs_with_more,
            made_good: state.made_good,
            logs_renewed: state.logs_renewed,
        }
    }
}

fn damaged(at: LogRef, file: &str, ledger: LedgerId, range: &Range) -> DamagedRange {
    let Range { first, last, generation, .. } = *range;
    DamagedRange { ledger, first, last, file: file.to_owned(), at, generation }
}

/// Notes that the copies were found again; false when they are not known.
fn touch(ranges: &mut [Range], copies: Copies) -> bool {
    let Copies { first, last, generation, .. } = copies;
    let covers =
        |range: &&mut Range| range.generation == generation && range.first <= first && last <= range.last;
    let mut known = ranges.iter_mut().filter(covers).peekable();
    let is_known = known.peek().is_some();
    known.for_each(|range| range.is_fresh = true);
    is_known
}

/// Adds copies, and joins them with what touches them and is in the same state.
fn add(ranges: &mut Vec<Range>, copies: Copies) {
    if touch(ranges, copies) {
        return;
    }
    let Copies { mut first, mut last, generation, .. } = copies;
    ranges.retain(|range| {
        let touches = range.first.get() <= last.get().saturating_add(1)
            && first.get() <= range.last.get().saturating_add(1);
        // What was found before the check under way is judged by itself: it may be sound.
        let joins = touches && range.generation == generation && !range.is_good && range.is_fresh;
        if joins {
            (first, last) = (first.min(range.first), last.max(range.last));
        }
        !joins
    });
    let at = ranges.partition_point(|range| range.first <= first);
    let (is_good, is_needless, is_fresh) = (false, false, true);
    ranges.insert(at, Range { first, last, generation, is_good, is_needless, is_fresh });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id(entry: i64) -> EntryId {
        EntryId::new(entry).unwrap()
    }

    fn copies(first: i64, last: i64) -> Copies {
        let (ledger, generation) = (LedgerId::new(1).unwrap(), Generation(1));
        Copies { ledger, first: id(first), last: id(last), generation }
    }

    proptest! {
        /// Against a set of entries.
        #[test]
        fn ranges_say_what_was_noted(noted in prop::collection::vec((0i64..40, 0i64..4), 0..30)) {
            let (mut ranges, mut expected) = (Vec::new(), BTreeSet::new());
            for (first, more) in noted {
                add(&mut ranges, copies(first, first + more));
                expected.extend(first..=first + more);
            }
            let found: BTreeSet<i64> = ranges.iter().flat_map(|r| r.first.get()..=r.last.get()).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(ranges.windows(2).all(|two| two[0].last.get() + 1 < two[1].first.get()), "{:?}", ranges);
        }
    }

    #[test]
    fn a_log_with_more_damage_asks_for_one_scrub_until_something_is_made_good() {
        let (register, at) = (DamageRegister::new(&[]), (0, LogId(1)));
        let mut ranges = Vec::new();
        add(&mut ranges, copies(3, 5));
        let ledgers = [(copies(3, 5).ledger, ranges)].into();
        register
            .state
            .lock()
            .logs
            .insert(at, DamagedLog { ledgers, has_more: true, ..DamagedLog::default() });
        register.logs.store(1, Ordering::Release);
        assert!(!register.take_scrub_wish(), "there is something to be made good");
        register.make_good(&register.waiting(None, 1), false);
        assert_eq!((register.take_scrub_wish(), register.take_scrub_wish()), (true, false));
        // The scrub finds as much again.
        register.begin_check(at);
        assert!(!register.take_scrub_wish(), "nothing more is known");
        if let Some(log) = register.state.lock().logs.get_mut(&at) {
            log.has_more = true;
        }
        assert!(!register.take_scrub_wish());
    }

    #[test]
    fn what_is_made_good_is_not_joined_and_what_is_found_again_stays_good() {
        let mut ranges = Vec::new();
        add(&mut ranges, copies(3, 5));
        ranges[0].is_good = true;
        add(&mut ranges, copies(4, 4));
        assert_eq!(ranges.len(), 1);
        add(&mut ranges, copies(6, 6));
        let found: Vec<_> = ranges.iter().map(|r| (r.first.get(), r.last.get(), r.is_good)).collect();
        assert_eq!(found, [(3, 5, true), (6, 6, false)]);
    }
}
