//! Every order of events of a small world, depth first: two tierers, bookies that let copies go, and a handful of faults.
//!
//! # Method
//! From each state every event that can happen is tried; a state that was seen before is not gone into again (told by a hash of
//! 64 bits of all that decides what comes next, the faults left included; counts and measurements are no part of it). The world
//! checks itself after every step, as it does in the swarm. Where the time of the scope is over, and everybody lives, the world goes on
//! without faults for a while, and must end with everything tiered and told, or tidied up (IT8).
//!
//! A reader needs no event of its own. It asks a bookie, and of an entry without a copy the bookie knows an object that has it, in
//! each state (IT5): so has a reader whose object went away and who asks once more (T10).
//!
//! # Limits
//! An action arrives and is answered in one step, unless the scope has late answers left. A crash between the two is no separate
//! state: the tierer's next request, after the answer, may be lost as well. While something is under way no time passes, unless
//! the scope has pauses left. Of each kind of fault there are as many as the scope says. Objects are the extents in them: that their bytes
//! are those that were acknowledged (IT3) is a matter of other tests. The last look at an object and its deletion are one moment for a
//! bookie that returns to an ensemble.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::core::upkeep::UpkeepAction;

/// A world, and the events that may happen in it.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    pub name: &'static str,
    /// The world after its history, without tierers.
    pub start: fn() -> World,
    /// The work of each tierer.
    pub roles: &'static [Role],
    /// For so long.
    pub time: Duration,
    pub budget: Budget,
    /// A check of the world so long after the time of the scope.
    pub end: fn(&World),
    pub end_after: Duration,
    /// It has so many states at least, and less than twice as many.
    pub states: usize,
}

/// The parts of a tierer that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It moves ledgers into the tier.
    Builds,
    /// It removes, rewrites and deletes.
    Keeps,
}

/// Events that may still happen, of those that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// Requests that fail, with their effect or without.
    pub faults: u8,
    pub crashes: u8,
    /// Answers that are held back.
    pub late: u8,
    /// Pauses in which nothing arrives.
    pub pauses: u8,
    /// Bookies that let the copies of a ledger go.
    pub trims: u8,
    /// Bookies that go away, and come back.
    pub absences: u8,
    /// Bookies that leave the ensembles of a ledger for another one, and return.
    pub changes: u8,
}

pub(super) const NOTHING: Budget =
    Budget { faults: 0, crashes: 0, late: 0, pauses: 0, trims: 0, absences: 0, changes: 0 };

/// One step of the world.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// The action at this place arrives, or its answer does.
    Deliver {
        index: usize,
        fate: Fate,
        is_late: bool,
    },
    /// The action of the upkeep arrives and is answered.
    Keep {
        tierer: usize,
        fate: Fate,
    },
    /// An action of a tierer that died arrives.
    Stray(usize),
    Crash(usize),
    Start(usize),
    Trim(usize, LedgerId),
    Leave(usize),
    Return(usize),
    /// The bookie is replaced in the ledger's ensemble, or takes its place back.
    Swap {
        ledger: LedgerId,
        from: usize,
        to: usize,
    },
    /// Time passes, and nothing arrives.
    Pause,
    /// Time passes until there is something to do.
    Rest,
}

/// The outcome of an exploration.
#[derive(Debug)]
pub(super) struct Explored {
    pub states: usize,
    pub events: u64,
    pub depth: usize,
    /// States in which the time of the scope was over.
    pub ends: u64,
    /// Whether every state was reached.
    pub is_complete: bool,
    /// The invariant that was broken, and the events that led to it.
    pub violation: Option<(String, Vec<String>)>,
}

/// Longer than a request may take, and than a batch may be overdue.
const PAUSE: Duration = Duration::from_secs(11);

fn fingerprint(world: &World, budget: &Budget) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.tierers.iter().for_each(|tierer| hasher.write_u64(tierer.fingerprint()));
    // Their order decides nothing.
    let of_pending = |pending: &Part<Pending>| (world.is_of_this_life(pending), pending.fingerprint());
    let mut pending: Vec<(bool, u64)> = world.pending.iter().map(of_pending).collect();
    pending.sort_unstable();
    pending.hash(&mut hasher);
    for part in [
        world.catalogue.fingerprint(),
        world.committed.fingerprint(),
        world.ledgers.fingerprint(),
        world.bookies.fingerprint(),
        world.bucket.fingerprint(),
        world.begun.fingerprint(),
        world.estate.fingerprint(),
    ] {
        hasher.write_u64(part);
    }
    // By these the scan tells which objects of nobody are old enough.
    world.bucket.keys().for_each(|object| world.written.get(object).hash(&mut hasher));
    (world.now, world.ids, world.was_put_back, budget).hash(&mut hasher);
    hasher.finish()
}

/// Everything that decides what comes next: counts and measurements do not.
impl Debug for Tierer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(core) = &self.core {
            // All entries have one length: so does their average, once there is one.
            let of_ledgers = (&core.ledgers, &core.done, core.updates.essence(), core.counts.entries > 0);
            let of_plan = (core.next_round, core.next_round_at, core.plan_not_before, core.has_backlog);
            let of_rounds = (of_plan, &core.rounds, &core.building, &core.to_commit, &core.commit);
            let of_ids = (&core.reserved, core.is_reserving, core.store_failures, core.store_not_before);
            let of_looks =
                (&core.looks, core.looking, &core.to_locate, &core.locating, core.locate_not_before);
            let of_listing = (self.listed, core.listing, core.visits.essence(), &core.touched, core.sweep_at);
            let rest = (core.interval.current(), core.next_commit, core.is_paused, core.ending);
            (of_ledgers, of_rounds, of_ids, of_looks, of_listing, rest).fmt(f)?;
        }
        if let Some(keeper) = &self.keeper {
            (keeper.core.essence(), &keeper.work, &keeper.listed, keeper.is_wiped).fmt(f)?;
        }
        Ok(())
    }
}

impl Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (self.tierer, &self.action, &self.step, self.sent_at).fmt(f)
    }
}

impl World {
    fn is_of_this_life(&self, pending: &Pending) -> bool {
        let tierer = &self.tierers[pending.tierer];
        tierer.core.is_some() && tierer.life == pending.life
    }

    fn is_up(&self, tierer: usize) -> bool {
        self.tierers[tierer].core.is_some() || self.tierers[tierer].keeper.is_some()
    }

    /// Starts a tierer with the parts that its role wants.
    fn start_as(&mut self, tierer: usize, role: Role, canaries: Canaries) {
        self.start(tierer, canaries);
        match role {
            Role::Builds => self.tierers[tierer].keeper = None,
            Role::Keeps => {
                self.tierers[tierer].core = None;
                let life = self.tierers[tierer].life;
                self.pending.retain(|pending| (pending.tierer, pending.life) != (tierer, life));
            }
        }
    }

    /// Whether something of a tierer that lives can arrive.
    fn is_busy(&self) -> bool {
        let is_kept =
            |tierer: &Part<Tierer>| tierer.keeper.as_ref().is_some_and(|keeper| keeper.work.is_some());
        self.tierers.iter().any(is_kept) || self.pending.iter().any(|pending| self.is_of_this_life(pending))
    }

    /// Whether the bookie has copies that it would let go.
    fn would_trim(&self, name: usize, id: LedgerId) -> bool {
        let told = |world: &World| world.bookies[&bookie(name)].told.get(&id).map(|told| told.trimmed);
        let mut after = self.clone();
        after.trim(&bookie(name), id);
        told(&after) != told(self)
    }

    /// Whether a deletion is on its way.
    fn is_deleting(&self) -> bool {
        let is_it = |action: &UpkeepAction| matches!(action, UpkeepAction::Delete(_));
        let under_way = self.tierers.iter().filter_map(|tierer| tierer.keeper.as_ref()?.work.as_ref());
        under_way.map(|(action, _)| action).chain(self.estate.strays.iter()).any(is_it)
    }

    fn set_ability(&mut self, name: usize, ability: Ability) {
        let name = bookie(name);
        self.bookies.get_mut(&name).unwrap().ability = ability;
        // Requests to it are lost.
        self.pending
            .retain(|pending| !matches!(&pending.action, Action::Update(sent) if sent.bookie == name));
        (0..self.tierers.len()).for_each(|tierer| self.tell_bookies(tierer));
    }

    /// Repair puts a bookie into the place of another one, with copies or with what it has in the tier.
    fn swap(&mut self, id: LedgerId, from: usize, to: usize) {
        let ghost = self.ledgers.get_mut(&id).unwrap();
        let segment = Segment {
            first_entry: EntryId::FIRST,
            ensemble: (ghost.metadata.segments()[0].ensemble.iter())
                .map(|member| if *member == bookie(from) { bookie(to) } else { member.clone() })
                .collect(),
        };
        let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
        let mut metadata = LedgerMetadata::new(ghost.metadata.quorum, secret);
        metadata.push_segment(segment).unwrap();
        metadata.state = ghost.metadata.state;
        ghost.metadata = metadata;
    }

    fn apply(&mut self, event: &Event, explorer: &Explorer<'_>) {
        match *event {
            Event::Deliver { index, fate, is_late } => {
                let is_alive = self.is_of_this_life(&self.pending[index]);
                let count = self.pending.len();
                let was_answered = matches!(self.pending[index].step, Step::Answered(_));
                self.deliver(index, fate);
                let is_answered = is_alive
                    && !was_answered
                    && self.pending.len() == count
                    && matches!(self.pending[index].step, Step::Answered(_));
                if is_answered && !is_late {
                    self.deliver(index, Fate::Works);
                }
            }
            Event::Keep { tierer, fate } => {
                self.deliver_upkeep(tierer, fate);
                self.deliver_upkeep(tierer, Fate::Works);
            }
            Event::Stray(index) => {
                let last = self.estate.strays.len() - 1;
                self.estate.strays.swap(index, last);
                self.deliver_stray();
            }
            Event::Crash(tierer) => self.crash(tierer),
            Event::Start(tierer) => self.start_as(tierer, explorer.scope.roles[tierer], explorer.canaries),
            Event::Trim(name, id) => self.trim(&bookie(name), id),
            Event::Leave(name) => self.set_ability(name, Ability::Absent),
            Event::Return(name) => self.set_ability(name, Ability::Reconciles),
            Event::Swap { ledger, from, to } => self.swap(ledger, from, to),
            Event::Pause => {
                let end = self.now + PAUSE;
                while self.now < end {
                    self.pass(end - self.now);
                }
            }
            Event::Rest => {
                while self.now < explorer.end && !self.is_busy() {
                    self.pass(explorer.end - self.now);
                }
            }
        }
        self.check();
    }
}

/// Whether a request that fails may have had its effect.
fn has_effect(action: &Action) -> bool {
    matches!(action, Action::Reserve(_) | Action::Build(_) | Action::Commit { .. } | Action::Update(_))
}

fn is_change(action: &UpkeepAction) -> bool {
    match action {
        UpkeepAction::Remove(_)
        | UpkeepAction::Mark
        | UpkeepAction::Delete(_)
        | UpkeepAction::Forget(_)
        | UpkeepAction::Reserve
        | UpkeepAction::Rewrite(_)
        | UpkeepAction::Replace { .. } => true,
        UpkeepAction::Ledgers
        | UpkeepAction::Prove
        | UpkeepAction::List { .. }
        | UpkeepAction::LookAgain(_)
        | UpkeepAction::FindGarbage { .. }
        | UpkeepAction::TryDeletion
        | UpkeepAction::Scan { .. }
        | UpkeepAction::AskFor(_)
        | UpkeepAction::ReadFooters(_)
        | UpkeepAction::WhereTo(..)
        | UpkeepAction::Survey { .. } => false,
    }
}

/// The events that can happen, and what is left of the budget after each.
fn choices(world: &World, budget: &Budget, end: Duration) -> Vec<(Event, Budget)> {
    let mut choices = Vec::new();
    let is_over = world.now >= end;
    let fates = |has_effect: bool| match (budget.faults, has_effect) {
        (0, _) => &[][..],
        (_, false) => &[Fate::Fails][..],
        (_, true) => &[Fate::Fails, Fate::AnswerLost][..],
    };
    let fewer_faults = Budget { faults: budget.faults.saturating_sub(1), ..*budget };
    for (index, pending) in world.pending.iter().enumerate() {
        let works = Event::Deliver { index, fate: Fate::Works, is_late: false };
        choices.push((works, *budget));
        if !world.is_of_this_life(pending) || matches!(pending.step, Step::Answered(_)) {
            continue;
        }
        if !(matches!(pending.action, Action::Build(_)) && pending.step == Step::Sent) {
            for &fate in fates(has_effect(&pending.action)) {
                choices.push((Event::Deliver { index, fate, is_late: false }, fewer_faults));
            }
            if budget.late > 0 {
                let left = Budget { late: budget.late - 1, ..*budget };
                choices.push((Event::Deliver { index, fate: Fate::Works, is_late: true }, left));
            }
        }
    }
    for (tierer, place) in world.tierers.iter().enumerate() {
        let Some((action, None)) = place.keeper.as_ref().and_then(|keeper| keeper.work.as_ref()) else {
            continue;
        };
        choices.push((Event::Keep { tierer, fate: Fate::Works }, *budget));
        for &fate in fates(is_change(action)) {
            choices.push((Event::Keep { tierer, fate }, fewer_faults));
        }
    }
    choices.extend((0..world.estate.strays.len()).map(|index| (Event::Stray(index), *budget)));
    for tierer in 0..world.tierers.len() {
        if !world.is_up(tierer) {
            choices.push((Event::Start(tierer), *budget));
        } else if budget.crashes > 0 && !is_over {
            choices.push((Event::Crash(tierer), Budget { crashes: budget.crashes - 1, ..*budget }));
        }
    }
    if budget.trims > 0 && !is_over {
        let left = Budget { trims: budget.trims - 1, ..*budget };
        for name in 0..world.bookies.len() {
            let ids = world.ledgers.keys().copied().filter(|id| world.would_trim(name, *id));
            choices.extend(ids.map(|id| (Event::Trim(name, id), left)));
        }
    }
    for name in 0..world.bookies.len() {
        if world.bookies[&bookie(name)].ability == Ability::Absent {
            choices.push((Event::Return(name), *budget));
        } else if budget.absences > 0 && !is_over {
            choices.push((Event::Leave(name), Budget { absences: budget.absences - 1, ..*budget }));
        }
    }
    if budget.changes > 0 && !is_over && !world.is_deleting() {
        let left = Budget { changes: budget.changes - 1, ..*budget };
        for (id, ghost) in world.ledgers.iter().filter(|(_, ghost)| !ghost.is_deleted) {
            let is_in = |name: usize| ghost.metadata.segments()[0].ensemble.contains(&bookie(name));
            let names = 0..world.bookies.len();
            for (from, to) in names.clone().flat_map(|from| names.clone().map(move |to| (from, to))) {
                if is_in(from) && !is_in(to) {
                    choices.push((Event::Swap { ledger: *id, from, to }, left));
                }
            }
        }
    }
    match world.is_busy() {
        true if budget.pauses > 0 && !is_over => {
            choices.push((Event::Pause, Budget { pauses: budget.pauses - 1, ..*budget }));
        }
        false if !is_over => choices.push((Event::Rest, *budget)),
        _ => {}
    }
    choices
}

/// Tierers that are woken so rarely come to the same end.
const STRIDE: Duration = Duration::from_secs(5);

/// When time is over and every process lives, all ends well. True when that was checked.
fn check_end(world: &World, explorer: &Explorer<'_>) -> bool {
    let is_up = (0..world.tierers.len()).all(|tierer| world.is_up(tierer));
    let is_here = world.bookies.values().all(|bookie| bookie.ability != Ability::Absent);
    if world.now < explorer.end || !is_up || !is_here || world.is_busy() {
        return false;
    }
    let mut after = world.clone();
    let until = after.now + explorer.scope.end_after;
    while after.now < until {
        after.drain();
        after.now += STRIDE;
        (0..after.tierers.len()).for_each(|tierer| after.event(tierer, crate::core::Event::Time));
    }
    after.drain();
    (explorer.scope.end)(&after);
    true
}

/// A scope that is being gone through.
#[derive(Clone, Copy)]
struct Explorer<'a> {
    scope: &'a Scope,
    canaries: Canaries,
    /// When the time of the scope is over.
    end: Duration,
}

struct Frame {
    world: World,
    choices: Vec<(Event, Budget)>,
    /// The event that led here.
    event: Option<Event>,
}

impl Frame {
    /// The event with what it concerned, for a reader.
    fn describe(&self, event: &Event) -> String {
        match event {
            Event::Deliver { index, fate, is_late } => {
                let Pending { tierer, action, step, .. } = &*self.world.pending[*index];
                let what = format!("{action:?}");
                let what: String = what.chars().take(100).collect();
                let step = if matches!(step, Step::Answered(_)) { " answered" } else { "" };
                let is_late = if *is_late { ", answer held back" } else { "" };
                format!("tierer {tierer}: {what}{step} {fate:?}{is_late}")
            }
            Event::Keep { tierer, fate } => {
                let work =
                    self.world.tierers[*tierer].keeper.as_ref().and_then(|keeper| keeper.work.as_ref());
                let what: String =
                    format!("{:?}", work.map(|(action, _)| action)).chars().take(100).collect();
                format!("upkeep {tierer}: {what} {fate:?}")
            }
            other => format!("{other:?}"),
        }
    }
}

/// Goes through a scope, at most `states_max` states of it.
pub(super) fn explore(scope: &Scope, canaries: Canaries, states_max: usize) -> Explored {
    let mut world = (scope.start)();
    let explorer = Explorer { scope, canaries, end: world.now + scope.time };
    for (tierer, role) in scope.roles.iter().enumerate() {
        world.start_as(tierer, *role, canaries);
    }
    let mut known = HashSet::from([fingerprint(&world, &scope.budget)]);
    let first = choices(&world, &scope.budget, explorer.end);
    let mut stack = vec![Frame { world, choices: first, event: None }];
    let mut ended = HashSet::new();
    let mut explored =
        Explored { states: 1, events: 0, depth: 0, ends: 0, is_complete: true, violation: None };
    while let Some(frame) = stack.last_mut() {
        let Some((event, budget)) = frame.choices.pop() else {
            stack.pop();
            continue;
        };
        let mut world = frame.world.clone();
        explored.events += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| world.apply(&event, &explorer)));
        let outcome = outcome.and_then(|()| {
            if !known.insert(fingerprint(&world, &budget)) {
                return Ok(false);
            }
            // The rest of the budget changes nothing any more.
            let is_new = ended.insert(fingerprint(&world, &NOTHING));
            let is_end = is_new && catch_unwind(AssertUnwindSafe(|| check_end(&world, &explorer)))?;
            explored.ends += u64::from(is_end);
            Ok(true)
        });
        match outcome {
            Ok(false) => {}
            Ok(true) if known.len() > states_max => {
                explored.is_complete = false;
                break;
            }
            Ok(true) => {
                let choices = choices(&world, &budget, explorer.end);
                stack.push(Frame { world, choices, event: Some(event) });
                explored.depth = explored.depth.max(stack.len());
            }
            Err(panic) => {
                let led = stack.windows(2).filter_map(|two| Some(two[0].describe(two[1].event.as_ref()?)));
                let mut path: Vec<String> = led.collect();
                path.extend(stack.last().map(|frame| frame.describe(&event)));
                explored.violation = Some((text_of(&*panic), path));
                explored.is_complete = false;
                break;
            }
        }
    }
    explored.states = known.len();
    explored
}

/// The text of a failed assertion.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
}
