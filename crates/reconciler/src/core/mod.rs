//! The tierer's core: decides which ledgers go into which objects, and which bookies are told, when.
//!
//! # Data flow
//! ```text
//! listing ─► look (metadata, LAC) ─► locate (catalogue: next) ─► ask (bookies: registers)            once per ledger (T15)
//!                  │ again while it is open
//!                  ▼
//! due, by lag in time ─► round: objects of ~64 MiB ─► built and uploaded ─► commit ─► updates, batched per bookie
//!            plan             reserve │ next round begins as soon as there is a free place │
//! ```
//!
//! # Invariants
//! 1. No entry above what [`Event::Looked`] said may be tiered goes into an object (T4).
//! 2. A ledger is in at most one object that is not committed, and that object begins with the entry behind what the
//!    catalogue has (T3).
//! 3. Objects are built under reserved ids only, and an id is used once (T5).
//! 4. Bookies are told of what a commit reply or the catalogue said, never earlier and never more (T2, T7).
//! 5. A ledger of which a bookie is ahead of the catalogue is stopped, until the catalogue has caught up (T2).
//! 6. Nothing of a ledger is built or told while the catalogue has extents of another one that had its id before ([`Core::reborn`]).
//! 7. The slowest delays no other: a round ends with the entries that were delivered, updates are on their own, a ledger that
//!    fails is tried later.
//!
//! # Limits     ledgers watched: [`Settings::ledgers_max`], idle ones make room for the listing; objects: [`Settings::objects_max`]; looks
//! under way: [`Settings::looks_max`]; commits under way: one; updates: [`updates`]
//!
//! # Not here   bytes of entries (`assembly`), requests (`shell`), clocks. `now` is the time since an origin that lies far
//! enough back to express the age of every ledger.

mod done;
mod event;
pub mod interval;
mod ledger;
pub mod measure;
#[cfg(test)]
mod model;
pub mod plan;
mod quorum;
mod rounds;
mod status;
pub mod updates;
pub mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_io::canary::{Canaries, Canary};
use bindery_tiering::ObjectId;
use bindery_types::{EntryId, LedgerId};

use self::done::Done;
pub use self::event::{
    Action, Alarm, BuildLedger, BuildOrder, Built, CommitId, CommitReply, Event, Left, Look, Place, RoundId,
    Sighting,
};
use self::interval::{Interval, IntervalSettings};
use self::ledger::{Doubt, Ledger, Stage};
use self::measure::{Counts, Durations, Phases, Usage};
use self::rounds::{Commit, Round};
pub use self::status::{Lag, LedgerStatus, Limit, State, Status};
use self::updates::{Report, UpdateSettings, Updates};
use self::upkeep::UpkeepSettings;

/// Settings of a tierer.
#[derive(Debug, Clone)]
pub struct Settings {
    /// An object takes no more bytes than this.
    pub object_bytes_max: u64,
    /// The part of that at which it is finished.
    pub object_fill: f64,
    /// Objects under construction.
    pub objects_max: usize,
    /// The wait between rounds.
    pub interval: IntervalSettings,
    /// An open ledger is due when so many bytes of it are not in the tier,
    pub open_bytes_min: u64,
    /// or when its oldest such entry has been there for so long. Closed ledgers are always due.
    pub open_age_max: Duration,
    /// Updates of bookies.
    pub updates: UpdateSettings,
    /// Reserved ids are used within this, or not at all; the catalogue keeps them for twice as long.
    pub reservation_use: Duration,
    /// The pause before a commit is sent again: the first, and the longest.
    pub commit_retry: (Duration, Duration),
    /// A commit that was not answered by then is given up.
    pub commit_patience: Duration,
    /// Ledgers that are watched at once.
    pub ledgers_max: usize,
    /// Looks at ledgers under way.
    pub looks_max: usize,
    /// Time between two looks at an open ledger: while it grows, and at most.
    pub look_interval: (Duration, Duration),
    /// Time between two listings of all ledgers.
    pub list_interval: Duration,
    /// Time after which finished ledgers are visited again: repair may have given them new bookies.
    pub revisit_interval: Duration,
    /// What leaves the catalogue and the bucket.
    pub upkeep: UpkeepSettings,
    /// A planted bug, for tests.
    pub canaries: Canaries,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            object_bytes_max: 80 << 20,
            object_fill: 0.8,
            objects_max: 8,
            interval: IntervalSettings::default(),
            open_bytes_min: 1 << 20,
            open_age_max: Duration::from_secs(60),
            updates: UpdateSettings::default(),
            reservation_use: Duration::from_secs(30 * 60),
            commit_retry: (Duration::from_millis(100), Duration::from_secs(5)),
            commit_patience: Duration::from_secs(10 * 60),
            ledgers_max: 65_536,
            looks_max: 64,
            look_interval: (Duration::from_secs(1), Duration::from_secs(15)),
            list_interval: Duration::from_secs(10),
            revisit_interval: Duration::from_secs(3600),
            upkeep: UpkeepSettings::default(),
            canaries: Canaries::none(),
        }
    }
}

impl Settings {
    /// The length at which an object is finished.
    pub fn target_bytes(&self) -> u64 {
        ((self.object_bytes_max as f64 * self.object_fill) as u64).max(1)
    }
}

/// Where the listing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// It begins at this time.
    Waits(Duration),
    /// A page is on its way.
    Asked,
    /// The next page is read when there is room.
    Held,
}

/// How it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    No,
    Asked,
    Stopped,
}

/// Ledgers in one question to the catalogue.
const LOCATE_MAX: usize = 1024;
/// This part of the ledgers that are watched is left at a time to make room for others.
const ROOM_SHARE: usize = 16;
/// Between two attempts to begin a round, unless something has become free.
const PLAN_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at what is finished.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Over so long the stage that limits is measured.
const USAGE_WINDOW: Duration = Duration::from_secs(10);

/// The core of one tierer.
#[derive(Debug, Clone)]
pub struct Core {
    settings: Settings,
    ledgers: BTreeMap<LedgerId, Ledger>,
    done: Done,
    updates: Updates,
    interval: Interval,
    rounds: BTreeMap<RoundId, Round>,
    next_round: u64,
    next_round_at: Duration,
    plan_not_before: Duration,
    /// Due ledgers were left out of the last round.
    has_backlog: bool,
    /// Objects that are being built.
    building: BTreeMap<ObjectId, RoundId>,
    /// Ids that may be used, with the time until which.
    reserved: Vec<(ObjectId, Duration)>,
    is_reserving: bool,
    /// Uploads, and reservations, failed: none begins before this.
    store_failures: u32,
    store_not_before: Duration,
    /// Rounds whose objects are uploaded, in their order.
    to_commit: Vec<RoundId>,
    commit: Option<Commit>,
    next_commit: u64,
    /// Ledgers to look at, by time.
    looks: BTreeSet<(Duration, LedgerId)>,
    looking: usize,
    to_locate: BTreeSet<LedgerId>,
    /// Ledgers whose ids the catalogue has of others, which lived before.
    reborn: BTreeSet<LedgerId>,
    locating: BTreeSet<LedgerId>,
    locate_not_before: Duration,
    listing: Listing,
    /// The ledger that was left last to make room, behind which the next ones are looked for.
    left_last: LedgerId,
    /// There is no room for more ledgers, and none can be left.
    is_crowded: bool,
    /// Room is not sought before: none was found.
    room_at: Duration,
    revisit_at: Duration,
    is_paused: bool,
    ending: Ending,
    /// Ledgers of which a bookie is ahead of the catalogue, in words: those that are stopped.
    ahead: BTreeMap<LedgerId, String>,
    /// Ledgers that have a gap in the catalogue which a bookie needs, in words.
    gaps: BTreeMap<LedgerId, String>,
    /// Ledgers that may be finished.
    touched: BTreeSet<LedgerId>,
    sweep_at: Duration,
    counts: Counts,
    phases: Phases,
    lre_times: Durations,
    cycles: Durations,
    usage: Usage,
    usage_before: (Duration, Usage),
    limit: (measure::Stage, f64),
    last_error: Option<String>,
}

impl Core {
    /// A tierer that knows nothing yet.
    pub fn new(now: Duration, settings: Settings) -> Core {
        Core {
            ledgers: BTreeMap::new(),
            done: Done::default(),
            updates: Updates::new(settings.updates),
            interval: Interval::new(settings.interval),
            rounds: BTreeMap::new(),
            next_round: 0,
            next_round_at: now,
            plan_not_before: now,
            has_backlog: false,
            building: BTreeMap::new(),
            reserved: Vec::new(),
            is_reserving: false,
            store_failures: 0,
            store_not_before: now,
            to_commit: Vec::new(),
            commit: None,
            next_commit: 0,
            looks: BTreeSet::new(),
            looking: 0,
            to_locate: BTreeSet::new(),
            reborn: BTreeSet::new(),
            locating: BTreeSet::new(),
            locate_not_before: now,
            listing: Listing::Waits(now),
            left_last: LedgerId::MAX,
            is_crowded: false,
            room_at: now,
            revisit_at: now + settings.revisit_interval,
            is_paused: false,
            ending: Ending::No,
            ahead: BTreeMap::new(),
            gaps: BTreeMap::new(),
            touched: BTreeSet::new(),
            sweep_at: now,
            counts: Counts::default(),
            phases: Phases::default(),
            lre_times: Durations::default(),
            cycles: Durations::default(),
            usage: Usage::default(),
            usage_before: (now, Usage::default()),
            limit: (measure::Stage::Read, 0.0),
            last_error: None,
            settings,
        }
    }

    /// Takes an event in and says what is to be done.
    pub fn on_event(&mut self, now: Duration, event: Event, actions: &mut Vec<Action>) {
        let mut reports = Vec::new();
        match event {
            Event::Time => {}
            Event::Listed { ledgers, is_last } => self.on_listed(now, &ledgers, is_last),
            Event::ListFailed(why) => {
                self.last_error = Some(why);
                self.listing = Listing::Waits(now + Duration::from_secs(1));
            }
            Event::Looked { ledger, look } => self.on_looked(now, ledger, look, actions),
            Event::Located(found) => self.on_located(now, found, &mut reports, actions),
            Event::Extents { ledger, extents } => self.updates.extents(now, ledger, extents, &mut reports),
            Event::Reserved(outcome) => self.on_reserved(now, outcome),
            Event::Built { object, built } => self.on_built(now, object, built, &mut reports),
            Event::Committed { commit, outcome } => self.on_committed(now, commit, outcome, &mut reports),
            Event::Updated { request, answer } => {
                self.updates.on_answer(now, request, answer, &mut reports);
            }
            Event::Bookies(abilities) => self.updates.set_bookies(now, &abilities, &mut reports),
            Event::Pressure => reports.push(Report::Pressure),
            Event::Paused(is_paused) => self.is_paused = is_paused,
            Event::CatalogueReplaced => self.on_catalogue_replaced(now),
            Event::Now(ledger) => self.on_now(now, ledger),
            Event::Stop => self.ending = self.ending.max(Ending::Asked),
            Event::StopNow => {
                self.ending = self.ending.max(Ending::Asked);
                actions.extend(self.building.keys().map(|object| Action::Abandon(*object)));
            }
        }
        let mut given_up = Vec::new();
        self.updates.on_time(now, &mut given_up, &mut reports);
        actions.extend(given_up.into_iter().map(Action::GiveUp));
        self.on_reports(now, reports, actions);
        self.go_on(now, actions);
    }

    /// When [`Event::Time`] is due, at the latest.
    pub fn wake_at(&self, now: Duration) -> Duration {
        let mut at = self.sweep_at;
        let mut sooner = |other: Option<Duration>| at = other.map_or(at, |other| at.min(other));
        sooner(self.updates.wake_at(now));
        if self.looking < self.settings.looks_max {
            sooner(self.looks.first().map(|(at, _)| *at));
        }
        if let Listing::Waits(begin) = self.listing {
            sooner(Some(begin));
        }
        sooner(self.commit.as_ref().and_then(|commit| commit.again_at));
        if !self.to_locate.is_empty() && self.locating.is_empty() {
            sooner(Some(self.locate_not_before));
        }
        let has_room =
            self.building.len() < self.settings.objects_max && !self.is_reserving && !self.is_paused;
        if has_room && self.ending == Ending::No {
            let begin = if self.has_backlog { now } else { self.next_round_at };
            sooner(Some(begin.max(self.plan_not_before).max(self.store_not_before)));
        }
        at.max(now + Duration::from_millis(1))
    }

    /// Ledgers whose ids the catalogue has of others, which lived before: those are to be removed from it.
    pub fn reborn(&self) -> &BTreeSet<LedgerId> {
        &self.reborn
    }

    /// Everything that can begin now.
    fn go_on(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.measure(now);
        self.sweep(now);
        if self.ending == Ending::No {
            self.list(now, actions);
            self.look(now, actions);
            self.begin_round(now, actions);
        }
        self.locate(now, actions);
        self.begin_commit(now, actions);
        let mut requests = Vec::new();
        self.updates.dispatch(now, &mut requests);
        actions.extend(requests.into_iter().map(Action::Update));
        if self.ending == Ending::Asked
            && self.building.is_empty()
            && self.to_commit.is_empty()
            && self.commit.is_none()
            && self.updates.in_flight() == 0
        {
            self.ending = Ending::Stopped;
            actions.push(Action::Stopped);
        }
    }

    fn list(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if now >= self.revisit_at {
            self.revisit_at = now + self.settings.revisit_interval;
            self.done.clear();
        }
        let is_due = match self.listing {
            Listing::Waits(begin) => now >= begin,
            Listing::Held => true,
            Listing::Asked => false,
        };
        if is_due && self.ledgers.len() >= self.settings.ledgers_max && now >= self.room_at {
            self.make_room(now);
        }
        if is_due && self.ledgers.len() < self.settings.ledgers_max {
            self.listing = Listing::Asked;
            actions.push(Action::List);
        }
    }

    /// Leaves ledgers with which nothing is to be done at the moment: open ones that do not grow, mostly. The listing comes to them again
    /// after all others, so that any number of ledgers have their turn. When none can be left, the listing waits, which shows
    /// ([`Status::is_crowded`]).
    fn make_room(&mut self, now: Duration) {
        let is_idle = |(id, ledger): &(&LedgerId, &Ledger)| {
            ledger.stage == Stage::Idle
                && !ledger.is_looking
                && !ledger.is_locating
                && !ledger.is_asking
                && !ledger.is_urgent
                && !ledger.is_stale
                && (ledger.is_asked || ledger.available.is_none())
                && ledger.doubt.is_none()
                && ledger.stopped.is_none()
                && ledger.tiered.is_some()
                && ledger.untiered().is_none()
                // It did not grow between the last two looks.
                && ledger.look_pause > self.settings.look_interval.0
                && self.updates.is_settled(**id)
        };
        let wanted = (self.settings.ledgers_max / ROOM_SHARE).max(1);
        let behind = self.ledgers.range(self.left_last..).filter(is_idle);
        let before = self.ledgers.range(..self.left_last).filter(is_idle);
        let left: Vec<LedgerId> = behind.chain(before).take(wanted).map(|(id, _)| *id).collect();
        self.is_crowded = left.is_empty();
        if self.is_crowded {
            // All of them were gone through: not with each event.
            self.room_at = now + SWEEP_INTERVAL;
        }
        for ledger in left {
            self.left_last = ledger;
            self.leave(now, ledger);
        }
    }

    fn on_listed(&mut self, now: Duration, ledgers: &[LedgerId], is_last: bool) {
        for ledger in ledgers {
            if !self.done.contains(*ledger) {
                self.watch(now, *ledger);
            }
        }
        self.listing =
            if is_last { Listing::Waits(now + self.settings.list_interval) } else { Listing::Held };
    }

    fn watch(&mut self, now: Duration, ledger: LedgerId) {
        self.ledgers.entry(ledger).or_insert_with(|| {
            self.looks.insert((now, ledger));
            Ledger::new(now)
        });
    }

    fn on_now(&mut self, now: Duration, ledger: LedgerId) {
        self.watch(now, ledger);
        let watched = self.ledgers.get_mut(&ledger).expect("it was just put there");
        (watched.is_urgent, watched.is_stale) = (true, true);
        watched.not_before = now;
        if !watched.is_looking {
            self.looks.remove(&(watched.look_at, ledger));
            watched.look_at = now;
            self.looks.insert((now, ledger));
        }
        self.plan_not_before = now;
    }

    fn look(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while self.looking < self.settings.looks_max
            && let Some((at, ledger)) = self.looks.first().copied().filter(|(at, _)| *at <= now)
        {
            self.looks.remove(&(at, ledger));
            if let Some(watched) = self.ledgers.get_mut(&ledger) {
                watched.is_looking = true;
                self.looking += 1;
                actions.push(Action::Look(ledger));
            }
        }
    }

    fn on_looked(&mut self, now: Duration, ledger: LedgerId, look: Look, actions: &mut Vec<Action>) {
        self.looking = self.looking.saturating_sub(1);
        let Some(watched) = self.ledgers.get_mut(&ledger) else { return };
        let (least, most) = self.settings.look_interval;
        watched.is_looking = false;
        match look {
            Look::Found(sighting) => {
                let metadata = sighting.metadata.clone();
                let has_grown = watched.see(now, sighting);
                watched.is_stale = false;
                watched.is_urgent &= watched.tiered.is_none() || watched.untiered().is_some();
                // With nothing to read, an error of a read is history.
                if watched.stage == Stage::Idle
                    && watched.last_error.is_some()
                    && watched.untiered().is_none()
                {
                    (watched.failures, watched.last_error) = (0, None);
                }
                watched.look_pause = match has_grown {
                    true => least,
                    false => (watched.look_pause * 2).clamp(least, most),
                };
                let is_to_be_asked = watched.available.is_some() && !watched.is_asking && !watched.is_asked;
                if watched.tiered.is_none() || watched.stopped.is_some() || is_to_be_asked {
                    self.to_locate.insert(ledger);
                }
                if let Some(looks) = watched.doubt.as_mut().and_then(|doubt| doubt.looks_left.as_mut()) {
                    *looks = looks.saturating_sub(1);
                    watched.look_pause = least;
                    self.to_locate.insert(ledger);
                }
                let last = watched.available.max(watched.tiered.flatten());
                if let Some(last) = last.filter(|_| watched.is_asked) {
                    self.updates.know(now, ledger, &metadata, last);
                }
            }
            Look::Gone => watched.is_gone = true,
            Look::Failed(why) => {
                watched.look_pause = (watched.look_pause * 2).clamp(least, most);
                if watched.failures == UNREADABLE_ALARM {
                    actions.push(Action::Alarm(Alarm::Unreadable { ledger, why: why.clone() }));
                }
                watched.fail(now, why);
            }
        }
        watched.look_at = now + watched.look_pause;
        self.looks.insert((watched.look_at, ledger));
        self.touched.insert(ledger);
    }

    fn locate(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if !self.locating.is_empty() || self.to_locate.is_empty() || now < self.locate_not_before {
            return;
        }
        while self.locating.len() < LOCATE_MAX
            && let Some(ledger) = self.to_locate.pop_first()
        {
            let Some(watched) = self.ledgers.get_mut(&ledger) else { continue };
            watched.is_locating = true;
            if let Some(doubt) = &mut watched.doubt {
                doubt.is_asked = true;
            }
            self.locating.insert(ledger);
        }
        if !self.locating.is_empty() {
            actions.push(Action::Locate(self.locating.iter().copied().collect()));
        }
    }

    fn on_located(
        &mut self,
        now: Duration,
        found: Result<Vec<Place>, String>,
        reports: &mut Vec<Report>,
        actions: &mut Vec<Action>,
    ) {
        let asked = std::mem::take(&mut self.locating);
        for ledger in &asked {
            if let Some(watched) = self.ledgers.get_mut(ledger) {
                watched.is_locating = false;
            }
        }
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                self.last_error = Some(why);
                self.locate_not_before = now + Duration::from_secs(1);
                self.to_locate.extend(asked);
                return;
            }
        };
        for Place { ledger, last: tiered, created_ms } in found {
            let Some(watched) = self.ledgers.get_mut(&ledger) else { continue };
            if watched.creation.is_some_and(|creation| creation.is_anothers(created_ms)) {
                // Looks ask again until the upkeep has removed them.
                watched.tiered = None;
                self.reborn.insert(ledger);
                continue;
            }
            self.reborn.remove(&ledger);
            watched.note(created_ms);
            watched.tier(tiered);
            if let Some(stopped) = &watched.stopped
                && tiered >= Some(stopped.register)
            {
                watched.stopped = None;
                self.ahead.remove(&ledger);
            }
            if let Some(mut doubt) = watched.doubt.take_if(|doubt| doubt.is_asked)
                && Some(doubt.register) > tiered
            {
                if tiered.is_none() && doubt.looks_left != Some(0) {
                    // A look under way may have seen it before it was deleted.
                    doubt.looks_left.get_or_insert(if watched.is_looking { 2 } else { 1 });
                    doubt.is_asked = false;
                    watched.doubt = Some(doubt);
                    if !watched.is_looking {
                        self.looks.remove(&(watched.look_at, ledger));
                        watched.look_at = now;
                        self.looks.insert((now, ledger));
                    }
                } else if self.settings.canaries.has(Canary::T2AheadIsSkipped) {
                    watched.tier(Some(doubt.register));
                } else {
                    self.counts.stopped += 1;
                    let Doubt { bookie, register, .. } = doubt.clone();
                    let alarm = Alarm::BookieAhead { ledger, bookie, register, tiered };
                    self.ahead.insert(ledger, alarm.to_string());
                    actions.push(Action::Alarm(alarm));
                    watched.stopped = Some(doubt);
                }
            }
            let last = watched.available.max(tiered);
            if let (Some(last), Some(metadata)) = (last, watched.metadata.clone()) {
                self.updates.know(now, ledger, &metadata, last);
                if let Some(tiered) = tiered {
                    self.updates.advance(now, ledger, tiered, (&[], now), reports);
                }
                if !watched.is_asking && !watched.is_asked {
                    watched.is_asking = true;
                    self.updates.ask(now, ledger, reports);
                }
            }
            self.touched.insert(ledger);
        }
    }

    fn on_reports(&mut self, now: Duration, reports: Vec<Report>, actions: &mut Vec<Action>) {
        let mut pressed = false;
        for report in reports {
            match report {
                Report::Asked(ledger) => {
                    if let Some(watched) = self.ledgers.get_mut(&ledger) {
                        (watched.is_asking, watched.is_asked) = (false, true);
                    }
                    self.touched.insert(ledger);
                }
                Report::Reconciled { ledger, took } => {
                    self.lre_times.record(took);
                    self.settle(now, ledger);
                }
                Report::Late(ledger) => self.settle(now, ledger),
                Report::Ahead { ledger, bookie, register } => self.on_ahead(ledger, bookie, register),
                Report::WantsExtents { ledger, from } => actions.push(Action::FindExtents { ledger, from }),
                Report::Gap { ledger, first, next } => {
                    let alarm = Alarm::CatalogueGap { ledger, first, next };
                    self.gaps.insert(ledger, alarm.to_string());
                    actions.push(Action::Alarm(alarm));
                }
                Report::GapClosed(ledger) => drop(self.gaps.remove(&ledger)),
                Report::Pressure => pressed = true,
            }
        }
        if pressed {
            self.counts.pressure += 1;
            actions.push(Action::SlowDown);
        }
    }

    /// A bookie is ahead of what is known of the catalogue. Another tierer may have committed; the catalogue decides.
    fn on_ahead(&mut self, ledger: LedgerId, bookie: bindery_types::BookieId, register: EntryId) {
        let Some(watched) = self.ledgers.get_mut(&ledger) else { return };
        if Some(register) <= watched.tiered.flatten() || watched.stopped.is_some() {
            return;
        }
        let is_higher = watched.doubt.as_ref().is_none_or(|doubt| doubt.register < register);
        if is_higher {
            watched.doubt = Some(Doubt { bookie, register, is_asked: false, looks_left: None });
            self.to_locate.insert(ledger);
        }
    }

    /// Everything is asked again: where ledgers end, and what bookies know.
    fn on_catalogue_replaced(&mut self, now: Duration) {
        self.done.clear();
        self.reserved.clear();
        // Those of the other one; whether this one has any shows when bookies are told.
        self.gaps.clear();
        for (ledger, watched) in &mut self.ledgers {
            watched.tiered = None;
            (watched.is_asking, watched.is_asked, watched.doubt) = (false, false, None);
            self.updates.forget(*ledger);
            self.to_locate.insert(*ledger);
        }
        // Rounds do not wait for bookies that are told of nothing now.
        let ledgers: Vec<LedgerId> = self.ledgers.keys().copied().collect();
        ledgers.into_iter().for_each(|ledger| self.settle(now, ledger));
    }

    /// Why the catalogue is not believed, by what bookies say of a ledger.
    pub fn doubt_of_ledgers(&self) -> Option<String> {
        self.ahead.values().chain(self.gaps.values()).next().cloned()
    }

    /// Forgets ledgers with which nothing is left to do.
    fn sweep(&mut self, now: Duration) {
        let touched = std::mem::take(&mut self.touched);
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_INTERVAL;
            let all: Vec<LedgerId> = self.ledgers.keys().copied().collect();
            all.into_iter().for_each(|ledger| self.finish(now, ledger));
        } else {
            touched.into_iter().for_each(|ledger| self.finish(now, ledger));
        }
    }

    fn finish(&mut self, now: Duration, ledger: LedgerId) {
        let Some(watched) = self.ledgers.get(&ledger) else { return };
        let is_free = watched.stage == Stage::Idle && !watched.is_looking && !watched.is_locating;
        let is_empty = watched.is_sealed() && watched.available.is_none();
        let is_tiered = watched.is_sealed()
            && watched.is_asked
            && watched.doubt.is_none()
            && watched.stopped.is_none()
            && watched.tiered.is_some_and(|tiered| tiered >= watched.available)
            && self.updates.is_settled(ledger);
        let is_empty = is_empty && !self.reborn.contains(&ledger);
        if !is_free || !(watched.is_gone || is_empty || is_tiered) {
            return;
        }
        let is_done = !watched.is_gone;
        self.leave(now, ledger);
        if is_done {
            self.done.insert(ledger);
        }
    }

    /// Watches it no longer.
    fn leave(&mut self, now: Duration, ledger: LedgerId) {
        let Some(watched) = self.ledgers.remove(&ledger) else { return };
        self.looks.remove(&(watched.look_at, ledger));
        self.to_locate.remove(&ledger);
        self.reborn.remove(&ledger);
        self.ahead.remove(&ledger);
        self.gaps.remove(&ledger);
        self.updates.forget(ledger);
        // A round does not go on for a ledger that was deleted while its bookies were told.
        self.settle(now, ledger);
    }

    /// Bytes of an entry, on average.
    fn entry_bytes(&self) -> u64 {
        self.counts.entry_bytes.checked_div(self.counts.entries).unwrap_or(1024)
    }

    /// Whether entries of the ledger are to be tiered now.
    fn is_due(&self, now: Duration, ledger: &Ledger) -> bool {
        ledger.is_sealed()
            || ledger.is_urgent
            || ledger.lag_bytes(self.entry_bytes()) >= self.settings.open_bytes_min
            || ledger.behind_since().is_some_and(|since| now >= since + self.settings.open_age_max)
    }
}

/// Looks or reads of one ledger that fail in a row before a person should know.
const UNREADABLE_ALARM: u32 = 8;

#[cfg(test)]
mod crowd_tests {
    use std::sync::Arc;

    use bindery_types::{Creation, DigestType, LedgerMetadata, LedgerSecret, Quorum};

    use super::*;

    fn open_ledger(available: Option<EntryId>) -> Look {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
        let age = Duration::from_secs(1000);
        let creation = Creation { ms: 1, proves_from_ms: i64::MIN };
        Look::Found(Sighting { metadata: Arc::new(metadata), available, length_bytes: None, age, creation })
    }

    /// A cluster of 100 ledgers before a tierer that watches 10: which of them it looked at in 200 s.
    fn looked_at(available: Option<EntryId>) -> (BTreeSet<LedgerId>, Status) {
        let settings = Settings { ledgers_max: 10, ..Settings::default() };
        let mut core = Core::new(Duration::ZERO, settings);
        let (mut seen, mut next, mut now) = (BTreeSet::new(), 0, Duration::ZERO);
        let mut events = std::collections::VecDeque::from([Event::Time]);
        while now < Duration::from_secs(200) {
            let Some(event) = events.pop_front() else {
                now = core.wake_at(now);
                events.push_back(Event::Time);
                continue;
            };
            let mut actions = Vec::new();
            core.on_event(now, event, &mut actions);
            for action in actions {
                match action {
                    Action::List => {
                        let page: Vec<LedgerId> = (next..next + 5).filter_map(LedgerId::new).collect();
                        next = (next + 5) % 100;
                        events.push_back(Event::Listed { ledgers: page, is_last: next == 0 });
                    }
                    Action::Look(ledger) => {
                        seen.insert(ledger);
                        events.push_back(Event::Looked { ledger, look: open_ledger(available) });
                    }
                    Action::Locate(ledgers) => {
                        let found = ledgers
                            .into_iter()
                            .map(|ledger| Place { ledger, last: None, created_ms: None })
                            .collect();
                        events.push_back(Event::Located(Ok(found)));
                    }
                    _ => {}
                }
            }
        }
        (seen, core.status(now))
    }

    /// Ledgers with which nothing is to be done make room for others.
    #[test]
    fn idle_ledgers_hold_up_nobody() {
        let (seen, status) = looked_at(None);
        assert_eq!((seen.len(), status.is_crowded), (100, false));
        assert!(status.watched <= 14, "a page above the limit at most: {}", status.watched);
    }

    /// A gap is the catalogue's: it goes with it, and with the ledger, and says nothing of bookies that are ahead.
    #[test]
    fn gaps_are_no_stops_and_go_with_the_catalogue_that_had_them() {
        let (now, mut actions) = (Duration::ZERO, Vec::new());
        let mut core = Core::new(now, Settings::default());
        let ids = [1, 2].map(|id| LedgerId::new(id).unwrap());
        let gap = |ledger| Report::Gap { ledger, first: EntryId::FIRST, next: EntryId::MAX };
        core.on_reports(now, ids.map(gap).to_vec(), &mut actions);
        assert!(core.doubt_of_ledgers().unwrap().contains("ledger 1"), "{:?}", core.doubt_of_ledgers());
        core.on_reports(now, vec![Report::GapClosed(ids[0])], &mut actions);
        assert!(core.doubt_of_ledgers().unwrap().contains("ledger 2"));
        core.on_event(now, Event::CatalogueReplaced, &mut actions);
        assert_eq!(core.doubt_of_ledgers(), None, "whether this one has it shows later");
        // Watched, and left to make room.
        core.watch(now, ids[0]);
        core.on_reports(now, vec![gap(ids[0])], &mut actions);
        core.leave(now, ids[0]);
        assert_eq!(core.doubt_of_ledgers(), None);
        // A bookie that is ahead stays so when a gap of the same ledger closes.
        core.ahead.insert(ids[1], "ahead".to_owned());
        core.on_reports(now, vec![gap(ids[1]), Report::GapClosed(ids[1])], &mut actions);
        assert_eq!(core.doubt_of_ledgers().as_deref(), Some("ahead"));
    }

    /// Where each has something to do that is not done, that shows.
    #[test]
    fn a_crowd_that_cannot_be_left_shows() {
        let (seen, status) = looked_at(EntryId::new(5));
        assert_eq!((seen.len(), status.is_crowded), (10, true));
    }
}
