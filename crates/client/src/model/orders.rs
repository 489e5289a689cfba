//! Which orders of events come to the same, so that the explorer tries one of them.
//!
//! # Method
//! Two events at different places have the same result in either order, and an event that no other can disturb may be
//! done before all others, or be left until it matters. In each state `enough` returns events of which one may come
//! first without loss: the other possible events neither change their effect, nor are changed by them, nor prevent
//! them.
//!
//! # Invariants
//! 1. Nothing is moved across what it could disturb: while faults may still come, only what a fault undoes the same before
//!    and after.
//! 2. An add that a bookie stores is never moved: a check at the store counts copies, and an order in which they come later
//!    is the stricter one. An entry is confirmed, or an answer heard, early rather than late for the same reason.
//! 3. An event that is left until it matters is tried as soon as it does.

use super::bookie::Mode;
use super::event::Event;
use super::explore::Budget;
use super::network::{Flight, Link, Request, Stage};
use super::world::{Call, Core, WRITER, World};
use crate::writer::core::Step;

/// Events of which one comes first in some order of each kind that comes to the same. None: all must be tried.
pub(super) fn enough(world: &World, deliveries: &[Event], budget: &Budget) -> Option<Vec<Event>> {
    let alone = deliveries.iter().find(|event| {
        is_idle(world, event) || is_certain(world, event, budget) || is_mark(world, event, budget)
    });
    alone.map(|event| vec![event.clone()]).or_else(|| of_one_party(world, deliveries, budget))
}

/// The request that a bookie would do.
fn served<'a>(world: &'a World, event: &Event) -> Option<(usize, usize, &'a Flight)> {
    let Event::Serve { party, bookie, is_old, .. } = *event else { return None };
    let link = &world.links[&(party, bookie)];
    Some((party, bookie, &link.flights[link.next_sent(is_old).expect("a request to serve")]))
}

/// An event that changes nothing except that it is over, now or later: a request without a waiting caller that finds
/// its bookie in the state it asks for, or an answer that comes when everything is decided.
fn is_idle(world: &World, event: &Event) -> bool {
    if let Some((_, bookie, flight)) = served(world, event) {
        let memory = world.bookies[bookie].memory();
        return world.bookies[bookie].mode == Mode::Up
            && !flight.is_awaited
            && match &flight.request {
                Request::Read { fences, .. } => !fences || memory.is_fenced,
                Request::Add { entry, .. } => {
                    memory.entries.contains_key(&entry.get())
                        && world.ghost.acked.contains(&(bookie, entry.get()))
                }
                Request::WriteLac { .. } | Request::Force { .. } => false,
            };
    }
    let Event::Hear { party, bookie, flight, .. } = *event else { return false };
    let is_read = matches!(world.links[&(party, bookie)].flights[flight].request, Request::Read { .. });
    is_read && matches!(world.parties[party].core, Core::Recoverer(_)) && {
        let mut after = world.clone();
        after.apply(event);
        after.parties[party].fingerprint() == world.parties[party].fingerprint()
    }
}

/// A request whose answer, and what it does, no other order changes. A break or a crash loses the answer, given or not.
/// - An add of the writer at a fenced bookie is refused.
/// - A read of the only recovery there is, and will be, at a fenced bookie: only that recovery still adds there, behind it.
/// - Its fence, where nothing of others is under way or can come, and no fault either.
fn is_certain(world: &World, event: &Event, budget: &Budget) -> bool {
    let Some((party, bookie, flight)) = served(world, event) else { return false };
    let is_fenced = world.bookies[bookie].memory().is_fenced;
    let is_only_recovery = party != WRITER && budget.recoveries == 0 && world.recoverers() == 1;
    // What may be done there first: on other connections, for on its own it would come behind.
    let is_first = |may_come_first: fn(&Request) -> bool| {
        !world.links.iter().any(|(&(from, to), link)| {
            let comes_first = |flight: &Flight| {
                flight.stage == Stage::Sent
                    && (from != party || flight.is_old)
                    && may_come_first(&flight.request)
            };
            to == bookie && link.flights.iter().any(comes_first)
        })
    };
    world.bookies[bookie].mode == Mode::Up
        && match flight.request {
            Request::Add { is_recovery: false, .. } => is_fenced,
            Request::Read { .. } if flight.is_old || !is_only_recovery => false,
            Request::Read { .. } if is_fenced => {
                is_first(|request| matches!(request, Request::Add { is_recovery: true, .. }))
            }
            Request::Read { .. } => is_calm(world, budget) && budget.entries == 0 && is_first(|_| true),
            Request::Add { .. } | Request::WriteLac { .. } | Request::Force { .. } => false,
        }
}

/// Marks are of interest to the writer alone.
fn is_mark(world: &World, event: &Event, budget: &Budget) -> bool {
    let Event::AskStore { party, .. } = *event else { return false };
    budget.store_losses == 0 && matches!(world.parties[party].call, Call::Asked(Step::Mark { .. }))
}

/// No fault can come any more, no other party can join, and no ensemble can change.
fn is_calm(world: &World, budget: &Budget) -> bool {
    budget.breaks == 0
        && budget.crashes == 0
        && budget.store_losses == 0
        && budget.recoveries == 0
        && world.setup.bookies == world.setup.quorum.ensemble_size()
}

/// The events that a party hears next, when all the answers it waits for are there: no other event can reach it first,
/// and the others are not affected before it has sent something.
fn of_one_party(world: &World, deliveries: &[Event], budget: &Budget) -> Option<Vec<Event>> {
    let is_open =
        |link: &Link| link.flights.iter().any(|f| f.is_awaited && !matches!(f.stage, Stage::Answered(_)));
    // The application may append, or close; whether bookies that failed are back is looked up when one fails.
    let may_do_else = |party: usize| {
        let is_any_down = world.bookies.iter().any(|bookie| bookie.mode != Mode::Up);
        party == WRITER && (budget.entries > 0 || budget.closes > 0 || is_any_down)
    };
    let own = |party: usize| {
        let is_own = |event: &&Event| match **event {
            Event::Hear { party: to, .. } | Event::HearStore { party: to, .. } => to == party,
            _ => false,
        };
        deliveries.iter().filter(is_own).cloned().collect::<Vec<Event>>()
    };
    let mut complete = (0..world.parties.len()).filter(|&party| {
        !may_do_else(party)
            && !matches!(world.parties[party].call, Call::Asked(_))
            && !world.links.iter().any(|(&(from, _), link)| from == party && is_open(link))
    });
    is_calm(world, budget)
        .then(|| complete.find_map(|party| Some(own(party)).filter(|own| !own.is_empty())))
        .flatten()
}

/// Whether a bookie that is down may come back now: not before somebody wants something of it. That is who has sent it
/// a request, and a writer that is about to hear of a failure, for it asks whether others are there.
pub(super) fn is_return_due(world: &World, bookie: usize, budget: &Budget) -> bool {
    let wants = |(&(from, to), link): (&(usize, usize), &Link)| {
        let is_failure =
            |flight: &Flight| flight.is_awaited && matches!(flight.stage, Stage::Answered(Err(_)));
        (to == bookie && link.flights.iter().any(|flight| flight.stage == Stage::Sent))
            || (from == WRITER && link.flights.iter().any(is_failure))
    };
    !is_calm(world, budget) || world.links.iter().any(|(between, link)| wants((between, link)))
}

/// Where an event happens, if it is at a bookie.
fn place(event: &Event) -> Option<usize> {
    match *event {
        Event::Serve { bookie, .. }
        | Event::Hear { bookie, .. }
        | Event::TimeOut { bookie, .. }
        | Event::Break { bookie, .. }
        | Event::Sync(bookie)
        | Event::Crash(bookie)
        | Event::LoseDisks(bookie)
        | Event::Turn(bookie, _)
        | Event::TurnReadOnly(bookie, _) => Some(bookie),
        Event::Append
        | Event::StartRecovery
        | Event::BeginClose
        | Event::HandOver
        | Event::TakeOver
        | Event::Tick
        | Event::LosePatience(_)
        | Event::Kill(_)
        | Event::Retry
        | Event::ReportSlow
        | Event::Announce
        | Event::Force
        | Event::Repair
        | Event::AskStore { .. }
        | Event::HearStore { .. } => None,
    }
}

/// Bookies of the first ensemble at which something happened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Touched(u64);

impl Touched {
    pub const ALL: Touched = Touched(u64::MAX);

    pub fn with(self, event: &Event) -> Touched {
        Touched(self.0 | place(event).map_or(0, |bookie| 1 << bookie))
    }

    /// Where every entry goes to all bookies of the ensemble, those at which nothing happened yet are alike: what begins
    /// at one of them would begin at any, so it is tried at the first of them only. Not so with a spare: of several that
    /// failed the first in the ensemble gets it.
    pub fn is_tried(self, world: &World, event: &Event) -> bool {
        let quorum = world.setup.quorum;
        let Some(bookie) = place(event) else { return true };
        let first = (0..quorum.ensemble_size()).find(|bookie| self.0 >> bookie & 1 == 0);
        quorum.ensemble_size() != quorum.write_quorum_size()
            || world.setup.bookies > quorum.ensemble_size()
            || self.0 >> bookie & 1 == 1
            || Some(bookie) == first
    }
}
