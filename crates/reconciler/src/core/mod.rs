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
//! 7. A ledger that another tierer owns is left to it, but not while it is in an object ([`listing`]). Who owns it is a matter of efficiency:
//!    two tierers that both take themselves for the owner are harmless (T11).
//! 8. What other tierers think of the catalogue counts as a doubt while it is not known, and for a time after it was known last to be one or was
//!    not known ([`others`]).
//! 9. The slowest delays no other: a round ends with the entries that were delivered, updates are on their own, a ledger that
//!    fails is tried later.
//!
//! # Limits     ledgers watched: [`Settings::ledgers_max`], others have their turn ([`visits`]); an event costs what it changes, and a look at [`SWEEP_MAX`]
//! ledgers a second; objects: [`Settings::objects_max`]; looks
//! under way: [`Settings::looks_max`]; commits under way: one; updates: [`updates`]
//!
//! # Not here   bytes of entries (`assembly`), requests (`shell`), clocks. `now` is the time since an origin that lies far
//! enough back to express the age of every ledger.

mod due;
mod event;
mod ids;
pub mod interval;
mod ledger;
mod listing;
pub mod measure;
#[cfg(test)]
mod model;
mod others;
pub mod plan;
mod quorum;
mod rounds;
mod status;
mod team;
mod trouble;
pub mod updates;
pub mod upkeep;
mod visits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::time::Duration;

use bindery_io::canary::{Canaries, Canary};
use bindery_tiering::ObjectId;
use bindery_types::{EntryId, LedgerId};

use self::due::{Due, DueLedgers, Rank};
pub use self::event::{
    Action, Alarm, BuildLedger, BuildOrder, Built, CommitId, CommitReply, Event, HeardDoubts, Left, Look,
    Place, RoundId, Sighting,
};
use self::ids::LedgerSet;
use self::interval::{Interval, IntervalSettings};
use self::ledger::{Doubt, Ledger, Stage};
use self::listing::{Listed, Listing};
use self::measure::{Counts, Durations, Phases, Usage};
use self::others::Others;
use self::rounds::{Commit, Round};
pub use self::status::{Lag, LedgerStatus, Limit, State, Status, Unwatched};
pub use self::team::{Member, Team};
use self::trouble::{Kind, Troubles};
use self::updates::{Report, UpdateSettings, Updates};
use self::upkeep::UpkeepSettings;
use self::visits::Visits;

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
    /// Ledgers that are watched at once,
    pub ledgers_max: usize,
    /// and those beside them that are looked at for the first time, or again long after they were done.
    pub visits_max: usize,
    /// Looks at ledgers under way.
    pub looks_max: usize,
    /// Time between two looks at an open ledger: while it grows, and at most.
    pub look_interval: (Duration, Duration),
    /// Time between two listings of all ledgers.
    pub list_interval: Duration,
    /// A tierer that joins others begins after this: they hear of it, and finish what they have begun.
    pub handover: Duration,
    /// A tierer that cannot do its work for so long, and has tried, says so, and others do its part as well.
    pub unable_after: Duration,
    /// A doubt of another tierer about the catalogue counts for so long after it was there last, or may have been, and for as long as a look at
    /// all ledgers takes: those that take over the ledgers of a tierer that is gone have asked their bookies by then.
    pub doubt_kept: Duration,
    /// How long a ledger of another tierer is watched after it was asked for.
    pub asked_kept: Duration,
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
            visits_max: 4096,
            looks_max: 64,
            look_interval: (Duration::from_secs(1), Duration::from_secs(15)),
            list_interval: Duration::from_secs(10),
            handover: Duration::from_secs(10),
            unable_after: Duration::from_secs(5 * 60),
            doubt_kept: Duration::from_secs(5 * 60),
            asked_kept: Duration::from_secs(60),
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

    /// Objects go after `delay` ([`UpkeepSettings::set_delete_delay`]). With a short one doubts of other tierers are kept no longer than that.
    pub fn set_delete_delay(&mut self, delay: Duration) {
        self.upkeep.set_delete_delay(delay);
        self.doubt_kept = self.doubt_kept.min(delay.max(Duration::from_secs(1)));
    }
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
/// Between two attempts to begin a round, unless something has become free.
const PLAN_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at ledgers of which nothing was heard: some are finished by time alone.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Ledgers in one such look.
const SWEEP_MAX: usize = 4096;
/// Ledgers that were asked for in vain, and are remembered.
const ASKED_IN_VAIN_MAX: usize = 64;
/// Over so long the stage that limits is measured.
const USAGE_WINDOW: Duration = Duration::from_secs(10);

/// The core of one tierer.
#[derive(Debug, Clone)]
pub struct Core {
    settings: Settings,
    /// Who shares the work, and whether that was said yet.
    team: Team,
    has_team: bool,
    /// What the others say of the catalogue.
    others: Others,
    /// What fails, and whether that has lasted.
    troubles: Troubles,
    unable: Option<String>,
    ledgers: BTreeMap<LedgerId, Ledger>,
    due: DueLedgers,
    /// Closed ledgers that are in the tier as a whole, and whose bookies know.
    done: LedgerSet,
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
    /// Of the listing as far as it is, and of the last one that was complete.
    listed: Listed,
    listed_before: Listed,
    visits: Visits,
    /// The ledger that was left last to make room, behind which the next ones are looked for.
    left_last: LedgerId,
    /// There is no room for more ledgers, and none can be left.
    is_crowded: bool,
    /// The most recent ledgers that an operator asked for and that do not exist.
    asked_in_vain: VecDeque<LedgerId>,
    is_paused: bool,
    ending: Ending,
    /// Ledgers of which a bookie is ahead of the catalogue, in words: those that are stopped.
    ahead: BTreeMap<LedgerId, String>,
    /// Ledgers that have a gap in the catalogue which a bookie needs, in words.
    gaps: BTreeMap<LedgerId, String>,
    /// Ledgers of which something changed: they may be finished, or due.
    touched: BTreeSet<LedgerId>,
    sweep_at: Duration,
    /// Behind this one the next sweep begins.
    swept: LedgerId,
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
            team: Team::alone(),
            has_team: false,
            others: Others::new(now, settings.doubt_kept),
            troubles: Troubles::new(settings.unable_after),
            unable: None,
            ledgers: BTreeMap::new(),
            due: DueLedgers::default(),
            done: LedgerSet::default(),
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
            listed: Listed::default(),
            listed_before: Listed::default(),
            visits: Visits::new(now, now + settings.revisit_interval),
            left_last: LedgerId::MAX,
            is_crowded: false,
            asked_in_vain: VecDeque::new(),
            is_paused: false,
            ending: Ending::No,
            ahead: BTreeMap::new(),
            gaps: BTreeMap::new(),
            touched: BTreeSet::new(),
            sweep_at: now,
            swept: LedgerId::MAX,
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
            Event::Listed { ledgers, is_last } => {
                // A page that cannot be read fails behind others that can.
                if is_last {
                    self.troubles.note(now, Kind::List, Ok(()));
                }
                self.on_listed(now, &ledgers, is_last);
            }
            Event::ListFailed(why) => {
                self.troubles.note(now, Kind::List, Err(&why));
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
            Event::Tierers { team, doubts } => {
                self.others.on_heard(now, doubts);
                self.on_tierers(now, team);
            }
            Event::TierersUnknown(why) => self.others.on_unknown(why),
            Event::CatalogueReplaced => self.on_catalogue_replaced(now),
            Event::Now(ledger) => self.on_now(now, ledger),
            Event::Stop => self.ending = self.ending.max(Ending::Asked),
            Event::StopNow => {
                self.ending = self.ending.max(Ending::Asked);
                actions.extend(self.building.keys().map(|object| Action::Abandon(*object)));
            }
        }
        self.others.on_time(now, self.settings.doubt_kept, self.visits.looked_since());
        self.note_ability();
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
        let has_room = self.building.len() < self.objects_max() && !self.is_reserving && !self.is_paused;
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
            self.visit(now);
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

    fn on_now(&mut self, now: Duration, ledger: LedgerId) {
        self.asked_in_vain.retain(|asked| *asked != ledger);
        self.watch(now, ledger);
        let watched = self.ledgers.get_mut(&ledger).expect("it was just put there");
        (watched.is_urgent, watched.is_stale) = (true, true);
        watched.not_before = now;
        // What failed before says nothing of the attempt that is asked for.
        (watched.failures, watched.last_error) = (0, None);
        watched.kept_until = now + self.settings.asked_kept;
        if !watched.is_looking {
            self.looks.remove(&(watched.look_at, ledger));
            watched.look_at = now;
            self.looks.insert((now, ledger));
        }
        self.touched.insert(ledger);
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
        self.troubles.note(now, Kind::Look, if let Look::Failed(why) = &look { Err(why) } else { Ok(()) });
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
            Look::Gone => {
                watched.is_gone = true;
                if watched.is_stale {
                    if self.asked_in_vain.len() >= ASKED_IN_VAIN_MAX {
                        self.asked_in_vain.pop_front();
                    }
                    self.asked_in_vain.push_back(ledger);
                }
            }
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
        self.troubles.note(now, Kind::Locate, found.as_ref().map(drop).map_err(String::as_str));
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
                self.touched.insert(ledger);
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
            self.touched.insert(ledger);
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

    /// Why the catalogue is not believed, by what bookies say of ledgers: here, or as other tierers said.
    pub fn doubt_of_ledgers(&self) -> Option<String> {
        self.own_doubt().or_else(|| self.others.doubt().map(ToOwned::to_owned))
    }

    /// What other tierers say of objects that are missing in the bucket, and the objects.
    pub fn missing_elsewhere(&self) -> (Option<&str>, &[(ObjectId, u64)]) {
        self.others.missing()
    }

    /// Why it is not known whether other tierers believe the catalogue, if so.
    pub fn unknown_doubt(&self) -> Option<&str> {
        self.others.unknown()
    }

    /// Why this tierer cannot do its work, when that has been so for long. Others are to be told.
    pub fn unable(&self) -> Option<&str> {
        self.unable.as_deref()
    }

    /// Notes whether this tierer can do its work. Others have done its part since it could not: where ledgers end is to be asked again.
    fn note_ability(&mut self) {
        let before = std::mem::replace(&mut self.unable, self.troubles.lasting());
        self.counts.unable += u64::from(before.is_none() && self.unable.is_some());
        if before.is_none() || self.unable.is_some() {
            return;
        }
        for (ledger, watched) in &mut self.ledgers {
            if watched.stage == Stage::Idle && watched.tiered.take().is_some() {
                self.to_locate.insert(*ledger);
                self.touched.insert(*ledger);
            }
        }
    }

    /// Objects that may be built at once: one is enough to find out whether that works.
    fn objects_max(&self) -> usize {
        if self.unable.is_some() { 1 } else { self.settings.objects_max }
    }

    /// The part of it that this tierer found. Others ask bookies of other ledgers, and are to be told.
    pub fn own_doubt(&self) -> Option<String> {
        self.ahead.values().chain(self.gaps.values()).next().cloned()
    }

    /// The tierers that share the work.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Looks at the ledgers of which something changed, and at some others: those with which nothing is left to do are forgotten, and the
    /// others have their place among those that are due.
    fn sweep(&mut self, now: Duration) {
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_INTERVAL;
            let behind = self.ledgers.range((Bound::Excluded(self.swept), Bound::Unbounded));
            let all = behind.chain(self.ledgers.range(..=self.swept));
            let next: Vec<LedgerId> = all.map(|(id, _)| *id).take(SWEEP_MAX).collect();
            self.swept = next.last().copied().unwrap_or(self.swept);
            self.touched.extend(next);
            self.make_room(now);
        }
        self.touched.extend(self.due.take_ripe(now));
        for ledger in std::mem::take(&mut self.touched) {
            self.end_visit(ledger);
            self.finish(now, ledger);
            self.place(now, ledger);
        }
    }

    /// Puts the ledger into its place among those that are due.
    fn place(&mut self, now: Duration, id: LedgerId) {
        let due = self.ledgers.get(&id).filter(|ledger| ledger.may_build_at(ledger.not_before));
        let due = due.and_then(|ledger| {
            let at = match self.has_enough(ledger) {
                true => ledger.not_before,
                false => (ledger.behind_since()? + self.settings.open_age_max).max(ledger.not_before),
            };
            let since = ledger.behind_since().unwrap_or(at);
            let rank = Rank::new(id, since, ledger.is_urgent, ledger.was_left_out, ledger.is_sealed());
            Some(if at <= now { Due::Now(rank) } else { Due::At(at) })
        });
        self.due.set(id, due);
    }

    fn finish(&mut self, now: Duration, ledger: LedgerId) {
        let Some(watched) = self.ledgers.get(&ledger) else { return };
        let is_free = watched.stage == Stage::Idle && !watched.is_looking && !watched.is_locating;
        let is_empty = watched.is_sealed() && watched.available.is_none();
        let is_tiered = watched.is_sealed()
            && watched.is_asked
            && watched.doubt.is_none()
            && watched.stopped.is_none()
            && !self.gaps.contains_key(&ledger)
            && watched.tiered.is_some_and(|tiered| tiered >= watched.available)
            && self.updates.is_settled(ledger);
        let is_empty = is_empty && !self.reborn.contains(&ledger);
        let is_done = is_free && !watched.is_gone && (is_empty || is_tiered);
        let is_handed_over = self.is_handed_over(now, ledger, watched);
        if is_done || is_handed_over || (is_free && watched.is_gone) {
            self.leave(now, ledger);
        }
        if is_done {
            self.done.insert(ledger);
        } else if is_handed_over {
            self.counts.handed_over += 1;
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
        self.visits.end(ledger);
        self.due.set(ledger, None);
        self.updates.forget(ledger);
        // A round does not go on for a ledger that was deleted while its bookies were told.
        self.settle(now, ledger);
    }

    /// Bytes of an entry, on average.
    fn entry_bytes(&self) -> u64 {
        self.counts.entry_bytes.checked_div(self.counts.entries).unwrap_or(1024)
    }

    /// Whether entries of the ledger are to be tiered, whatever their age.
    fn has_enough(&self, ledger: &Ledger) -> bool {
        ledger.is_sealed()
            || ledger.is_urgent
            || ledger.lag_bytes(self.entry_bytes()) >= self.settings.open_bytes_min
    }

    /// Whether entries of the ledger are to be tiered now.
    fn is_due(&self, now: Duration, ledger: &Ledger) -> bool {
        self.has_enough(ledger)
            || ledger.behind_since().is_some_and(|since| now >= since + self.settings.open_age_max)
    }
}

#[cfg(test)]
impl Core {
    /// Checks that the ledgers that are due are those that a look at all of them would find.
    fn check_due(&self, now: Duration) {
        for (id, ledger) in self.ledgers.iter().filter(|(id, _)| !self.touched.contains(id)) {
            let is_old = ledger.behind_since().is_some_and(|at| now >= at + self.settings.open_age_max);
            let (may_build, is_there) = (ledger.may_build_at(now), self.due.contains(*id));
            let is_due = may_build && (ledger.is_sealed() || ledger.is_urgent || is_old);
            assert!(is_there || !is_due, "ledger {id} is due, and in no place");
            assert!(may_build || !is_there, "ledger {id} cannot be built, and counts as due");
        }
    }
}

/// Looks or reads of one ledger that fail in a row before a person should know.
const UNREADABLE_ALARM: u32 = 8;

#[cfg(test)]
mod crowd_tests {
    use std::sync::Arc;

    use bindery_types::{Creation, DigestType, LedgerMetadata, LedgerSecret, LedgerState, Quorum};

    use super::*;

    fn open_ledger(available: Option<EntryId>) -> Look {
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let metadata = LedgerMetadata::new(Quorum::new(1, 1, 1).unwrap(), secret);
        let age = Duration::from_secs(1000);
        let creation = Creation { ms: 1, proves_from_ms: i64::MIN };
        Look::Found(Sighting { metadata: Arc::new(metadata), available, length_bytes: None, age, creation })
    }

    /// A cluster of 100 ledgers before a tierer that watches 10.
    struct Crowd {
        core: Core,
        now: Duration,
        events: VecDeque<Event>,
        /// Looks that take their time.
        looks: VecDeque<(Duration, Event)>,
        listed: i64,
        seen: BTreeSet<LedgerId>,
        look: fn(LedgerId) -> Look,
    }

    impl Crowd {
        /// Entries are due at this age.
        fn new(look: fn(LedgerId) -> Look, open_age_max: Duration) -> Crowd {
            let settings = Settings { ledgers_max: 10, visits_max: 4, open_age_max, ..Settings::default() };
            let core = Core::new(Duration::ZERO, settings);
            let events = VecDeque::from([Event::Bookies(BTreeMap::new())]);
            let (now, looks, seen) = (Duration::ZERO, VecDeque::new(), BTreeSet::new());
            Crowd { core, now, events, looks, listed: 0, seen, look }
        }

        /// For so long, with a check after each event.
        fn run(&mut self, time: Duration, check: impl Fn(&Core)) {
            let end = self.now + time;
            while self.now < end {
                let Some(event) = self.events.pop_front() else {
                    let wake_at = self.core.wake_at(self.now);
                    let looked = self.looks.pop_front_if(|(at, _)| *at <= wake_at);
                    let (at, event) = looked.unwrap_or((wake_at, Event::Time));
                    self.now = self.now.max(at);
                    self.events.push_back(event);
                    continue;
                };
                let mut actions = Vec::new();
                self.core.on_event(self.now, event, &mut actions);
                check(&self.core);
                for action in actions {
                    self.answer(action);
                }
            }
        }

        fn answer(&mut self, action: Action) {
            self.events.extend(match action {
                Action::List => {
                    let page = (self.listed..self.listed + 5).filter_map(LedgerId::new).collect();
                    self.listed = (self.listed + 5) % 100;
                    Some(Event::Listed { ledgers: page, is_last: self.listed == 0 })
                }
                Action::Look(ledger) => {
                    self.seen.insert(ledger);
                    let looked = Event::Looked { ledger, look: (self.look)(ledger) };
                    self.looks.push_back((self.now + Duration::from_millis(1500), looked));
                    None
                }
                Action::Locate(ledgers) => {
                    let place = |ledger| Place { ledger, last: None, created_ms: None };
                    Some(Event::Located(Ok(ledgers.into_iter().map(place).collect())))
                }
                _ => None,
            });
        }
    }

    /// Which ledgers it looked at in 200 s.
    fn looked_at(look: fn(LedgerId) -> Look) -> (BTreeSet<LedgerId>, Status) {
        let mut crowd = Crowd::new(look, Duration::ZERO);
        crowd.run(Duration::from_secs(200), |_| {});
        (crowd.seen, crowd.core.status(crowd.now))
    }

    fn id(ledger: i64) -> LedgerId {
        LedgerId::new(ledger).unwrap()
    }

    /// Ledgers with which nothing is to be done make room for others.
    #[test]
    fn idle_ledgers_hold_up_nobody() {
        let (seen, status) = looked_at(|_| open_ledger(None));
        assert_eq!((seen.len(), status.is_crowded), (100, false));
        assert!(status.watched <= 14, "the visits above the limit at most: {}", status.watched);
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

    /// All that can be told of a ledger was told while the bookie was away that needs what is missing in a gap: the doubt stays.
    #[test]
    fn a_ledger_with_a_gap_is_not_done() {
        let (now, mut actions, id) = (Duration::ZERO, Vec::new(), id(1));
        let mut core = Core::new(now, Settings::default());
        core.watch(now, id);
        let Look::Found(mut sighting) = open_ledger(Some(EntryId::FIRST)) else {
            unreachable!("it is found")
        };
        let mut metadata = (*sighting.metadata).clone();
        metadata.state = LedgerState::Closed { last_entry: Some(EntryId::FIRST), length_bytes: 1 };
        sighting.metadata = Arc::new(metadata);
        let watched = core.ledgers.get_mut(&id).unwrap();
        watched.see(now, sighting);
        watched.tier(Some(EntryId::FIRST));
        watched.is_asked = true;
        let gap = Report::Gap { ledger: id, first: EntryId::FIRST, next: EntryId::MAX };
        core.on_reports(now, vec![gap], &mut actions);
        core.finish(now, id);
        assert!(core.is_watched(id) && core.own_doubt().is_some());
        core.on_reports(now, vec![Report::GapClosed(id)], &mut actions);
        core.finish(now, id);
        assert!(core.done.contains(id) && core.own_doubt().is_none());
    }

    /// Who wants objects to go soon does not wait for doubts that were told minutes ago.
    #[test]
    fn doubts_are_kept_no_longer_than_objects() {
        let mut settings = Settings::default();
        let kept = settings.doubt_kept;
        settings.set_delete_delay(Duration::from_secs(3600));
        assert_eq!(settings.doubt_kept, kept);
        settings.set_delete_delay(Duration::from_secs(10));
        assert_eq!(
            (settings.doubt_kept, settings.upkeep.delete_delay),
            (Duration::from_secs(10), Duration::from_secs(10))
        );
        settings.set_delete_delay(Duration::ZERO);
        assert_eq!(settings.doubt_kept, Duration::from_secs(1));
    }

    /// One that is asked for shows what comes of that, not what failed before.
    #[test]
    fn a_ledger_that_is_asked_for_no_longer_shows_an_old_failure() {
        let mut core = Core::new(Duration::ZERO, Settings::default());
        core.watch(Duration::ZERO, id(1));
        core.ledgers.get_mut(&id(1)).unwrap().fail(Duration::ZERO, "an old one".to_owned());
        let state = |core: &Core| core.ledger(Duration::ZERO, id(1)).unwrap().state;
        assert_eq!(state(&core), State::Failing("an old one".to_owned()));
        core.on_event(Duration::ZERO, Event::Now(id(1)), &mut Vec::new());
        assert_eq!(state(&core), State::Opening);
        let looked = Event::Looked { ledger: id(1), look: Look::Failed("a new one".to_owned()) };
        core.on_event(Duration::ZERO, looked, &mut Vec::new());
        assert_eq!(state(&core), State::Failing("a new one".to_owned()));
    }

    /// Closed ledgers have their second visit although more open ones wait at every moment than there is room for.
    #[test]
    fn a_crowd_of_open_ledgers_holds_up_no_second_visit() {
        let is_closed = |ledger: &LedgerId| ledger.get() % 2 == 0;
        let mut crowd = Crowd::new(
            |ledger| match ledger.get() % 2 {
                0 => ten_of_a_hundred(id(1)),
                _ => open_ledger(None),
            },
            Duration::ZERO,
        );
        crowd.run(Duration::from_secs(3600), |_| {});
        assert_eq!(crowd.core.done.count(), 50);
        assert!(crowd.core.visits.waiting() > 10, "there is a crowd");
        crowd.seen.clear();
        crowd.run(Duration::from_secs(500), |_| {});
        assert_eq!(crowd.seen.iter().filter(|ledger| is_closed(ledger)).count(), 50);
    }

    /// Where each has something to do that is not done, that shows.
    #[test]
    fn a_crowd_that_cannot_be_left_shows() {
        let (seen, status) = looked_at(|_| open_ledger(EntryId::new(5)));
        assert_eq!((seen.len(), status.is_crowded), (14, true));
        assert_eq!((status.waiting, status.listed, status.own), (86, 100, 100), "and how many have no room");
    }

    /// Ten that have something, and do not have enough yet; the others are closed and empty.
    fn ten_of_a_hundred(ledger: LedgerId) -> Look {
        let Look::Found(mut sighting) = open_ledger(EntryId::new(5)) else { unreachable!("it is found") };
        sighting.age = Duration::ZERO;
        if ledger.get() % 10 != 0 {
            let mut metadata = (*sighting.metadata).clone();
            metadata.state = LedgerState::Closed { last_entry: None, length_bytes: 0 };
            (sighting.metadata, sighting.available) = (Arc::new(metadata), None);
        }
        Look::Found(sighting)
    }

    /// Closed ledgers come again in times, and from a tierer that goes: those with which something is to be done stay.
    #[test]
    fn closed_ledgers_push_out_none_that_is_active() {
        let mut crowd = Crowd::new(ten_of_a_hundred, Duration::from_secs(900));
        let team = |members: &[&str]| Event::Tierers {
            team: Team::new("own", members.iter().copied().map(Member::able)),
            doubts: HeardDoubts::default(),
        };
        crowd.events.push_back(team(&["own", "other"]));
        crowd.run(Duration::from_secs(60), |_| {});
        let active: Vec<LedgerId> = (0..100).step_by(10).map(id).collect();
        let own =
            active.iter().filter(|ledger| crowd.core.team.owns_ledger(**ledger)).copied().collect::<Vec<_>>();
        assert!((1..10).contains(&own.len()));
        let are_watched = |of: &[LedgerId], core: &Core| {
            assert!(of.iter().all(|ledger| core.is_watched(*ledger)), "an active one was left");
            assert!(core.ledgers.len() <= 14);
        };
        crowd.seen.clear();
        crowd.events.push_back(team(&["own"]));
        crowd.run(Duration::from_secs(60), |core| are_watched(&own, core));
        assert!(crowd.seen.len() > 20, "it took over what the other one had");
        crowd.seen.clear();
        crowd.run(Duration::from_secs(3400), |core| are_watched(&active, core));
        assert_eq!(crowd.core.done.count(), 90);
        assert!(crowd.seen.iter().all(|ledger| active.contains(ledger)), "the others had their look");
        crowd.run(Duration::from_secs(200), |core| are_watched(&active, core));
        assert_eq!((crowd.seen.len(), crowd.core.done.count()), (100, 90), "all were visited again");
    }

    /// A ledger that has a gap keeps its place, and with it the doubt.
    #[test]
    fn a_ledger_with_a_gap_makes_no_room() {
        let mut crowd = Crowd::new(|_| open_ledger(None), Duration::ZERO);
        crowd.run(Duration::from_secs(30), |_| {});
        let first = *crowd.core.ledgers.keys().next().unwrap();
        let gap = Report::Gap { ledger: first, first: EntryId::FIRST, next: EntryId::MAX };
        crowd.core.on_reports(crowd.now, vec![gap], &mut Vec::new());
        crowd.seen.clear();
        crowd.run(Duration::from_secs(200), |core| assert!(core.own_doubt().is_some()));
        assert_eq!(
            (crowd.seen.len(), crowd.core.is_watched(first)),
            (100, true),
            "the others have their turn"
        );
    }

    /// Whoever asks a tierer for a ledger of another one gets to know what became of it.
    #[test]
    fn what_became_of_a_ledger_that_was_asked_for_is_known() {
        let look = |ledger: LedgerId| match ledger.get() {
            50.. => Look::Gone,
            _ => open_ledger(None),
        };
        let mut crowd = Crowd::new(look, Duration::ZERO);
        let members = ["own", "other"].map(Member::able);
        crowd.core.on_event(
            crowd.now,
            Event::Tierers { team: Team::new("own", members), doubts: HeardDoubts::default() },
            &mut Vec::new(),
        );
        let others = |from: i64| {
            let is_others = |ledger: &LedgerId| !crowd.core.team.owns_ledger(*ledger);
            (from..).map(id).find(is_others).unwrap()
        };
        let (open, gone) = (others(0), others(50));
        crowd.events.extend([Event::Now(open), Event::Now(gone)]);
        crowd.run(Duration::from_secs(5), |_| {});
        assert_eq!(crowd.core.unwatched(gone), Unwatched::Gone);
        // While somebody asks it stays,
        for _ in 0..10 {
            crowd.core.keep(crowd.now, open);
            crowd.run(Duration::from_secs(30), |_| {});
            assert_eq!(crowd.core.ledger(crowd.now, open).unwrap().state, State::Tiered);
        }
        // and then it is left to its owner.
        crowd.run(Duration::from_secs(90), |_| {});
        assert_eq!(crowd.core.ledger(crowd.now, open), None);
        assert_eq!(
            (crowd.core.unwatched(open), crowd.core.team.owner(open)),
            (Unwatched::Elsewhere, "other")
        );
    }
}
