//! Every order of events of a small world, depth first: writer, recoverers, and a handful of faults.
//!
//! # Method
//! From each state every event that can happen is tried; a state that was seen before is not gone into again (told by a
//! hash of 64 bits of all there is to it, the faults left included). Only what users can see is checked, so that a bug is
//! found by what it does: what was confirmed, where the ledger ends, where its copies are. Where nothing is under way any
//! more, nobody may be waiting (IC18).
//!
//! Of orders that come to the same one is tried (`orders`). A test compares what users can see with and without that.
//!
//! # Limits     bookies answer in order and sync before they answer; replacements are the first that can be had; a
//! recovery reads one entry at a time; of each kind of fault as many as the scope says. A process that dies needs no event
//! of its own: whatever it does not do any more it also does later, and every state in between was checked.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bindery_io::canary::Canaries;
use bindery_types::{DigestType, EntryId, Quorum};

use super::bookie::Mode;
use super::event::{Event, StoreFate};
use super::orders::{self, Touched};
use super::part::Part;
use super::world::{Call, Setup, WRITER, World};

/// What may happen in a world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope {
    pub name: &'static str,
    pub quorum: (usize, usize, usize),
    pub bookies: usize,
    /// What happened before.
    pub start: fn(&mut World),
    /// Whether nothing did.
    pub is_fresh: bool,
    /// Whether orders that come to the same are tried once. Without, it is what a reduction is compared with.
    pub is_reduced: bool,
    pub budget: Budget,
}

/// What may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub entries: u8,
    pub recoveries: u8,
    pub closes: u8,
    /// Connections that break: requests sent on them arrive late.
    pub breaks: u8,
    pub crashes: u8,
    pub store_losses: u8,
}

/// What an exploration came to.
#[derive(Debug)]
pub(super) struct Explored {
    pub states: usize,
    pub events: u64,
    pub depth: usize,
    /// Whether every state was reached.
    pub is_complete: bool,
    /// What was broken, and the events that led to it.
    pub violation: Option<(String, Vec<Event>)>,
    /// What users could see in some state.
    pub seen: BTreeSet<Seen>,
}

/// What users see: what was confirmed, how many segments there are, which entries are on a disk together, whichever it is, and
/// where the ledger ends, with its length.
pub(super) type Seen = (i64, usize, Vec<Vec<i64>>, Option<(i64, u64)>);

fn seen(world: &World) -> Seen {
    let end = world.end().map(|(last, length_bytes)| (EntryId::to_wire(last), length_bytes));
    let on_disk = world.bookies.iter().map(|bookie| bookie.durable().entries.keys().copied().collect());
    let mut on_disks: Vec<Vec<i64>> = on_disk.collect();
    on_disks.sort_unstable();
    (world.ghost.confirmed, world.metadata().segments().len(), on_disks, end)
}

fn fingerprint(world: &World, budget: &Budget) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.bookies.iter().for_each(|bookie| hasher.write_u64(bookie.fingerprint()));
    for (between, link) in &world.links {
        between.hash(&mut hasher);
        hasher.write_u64(link.fingerprint());
    }
    world.parties.iter().for_each(|party| hasher.write_u64(party.fingerprint()));
    hasher.write_u64(world.history.last().map_or(0, Part::fingerprint));
    (world.version(), &world.marks, world.ghost.confirmed, &world.ghost.acked, budget).hash(&mut hasher);
    hasher.finish()
}

/// Nothing that can still happen can break anything: the ledger is closed, and nobody is left.
fn is_over(world: &World, budget: &Budget) -> bool {
    world.end().is_some() && world.writer().is_none() && world.recoverers() == 0 && budget.recoveries == 0
}

/// The events that can happen, and what is left of the budget after each.
fn choices(world: &World, budget: &Budget, is_reduced: bool) -> Vec<(Event, Budget)> {
    if is_over(world, budget) {
        return Vec::new();
    }
    let deliveries = world.deliveries();
    if is_reduced && let Some(enough) = orders::enough(world, &deliveries, budget) {
        return enough.into_iter().map(|event| (event, *budget)).collect();
    }
    let mut choices: Vec<(Event, Budget)> = deliveries.into_iter().map(|event| (event, *budget)).collect();
    if budget.entries > 0 && world.writer().is_some() {
        choices.push((Event::Append, Budget { entries: budget.entries - 1, ..*budget }));
    }
    if budget.recoveries > 0 {
        choices.push((Event::StartRecovery, Budget { recoveries: budget.recoveries - 1, ..*budget }));
    }
    let can_close = |world: &World| {
        world.writer().is_some_and(|writer| !writer.has_unconfirmed() && writer.next_step().is_none())
    };
    if budget.closes > 0 && budget.entries == 0 && can_close(world) {
        choices.push((Event::BeginClose, Budget { closes: budget.closes - 1, ..*budget }));
    }
    if budget.breaks > 0 {
        let left = Budget { breaks: budget.breaks - 1, ..*budget };
        let awaited =
            world.links.iter().filter(|(_, link)| link.flights.iter().any(|flight| flight.is_awaited));
        choices.extend(awaited.map(|(&(party, bookie), _)| (Event::Break { party, bookie }, left)));
    }
    if budget.crashes > 0 {
        let left = Budget { crashes: budget.crashes - 1, ..*budget };
        choices.extend((0..world.bookies.len()).map(|bookie| (Event::Crash(bookie), left)));
    }
    let down = (0..world.bookies.len()).filter(|bookie| {
        world.bookies[*bookie].mode == Mode::Down
            && (!is_reduced || orders::is_return_due(world, *bookie, budget))
    });
    choices.extend(down.map(|bookie| (Event::Turn(bookie, Mode::Up), *budget)));
    if budget.store_losses > 0 {
        let left = Budget { store_losses: budget.store_losses - 1, ..*budget };
        for (party, state) in world.parties.iter().enumerate() {
            if let Call::Asked(_) = state.call {
                for fate in [StoreFate::LostBefore, StoreFate::LostAfter] {
                    choices.push((Event::AskStore { party, fate }, left));
                }
            }
        }
    }
    choices
}

/// Checks a state in which nothing is under way.
fn check_rest(world: &World) {
    let is_closed_for_all = world.end().is_some() && world.writer().is_none() && world.recoverers() == 0;
    if is_closed_for_all {
        world.check_end();
    }
    if !world.deliveries().is_empty() {
        return;
    }
    assert_eq!(world.recoverers(), 0, "IC18: a recovery waits for nothing");
    if let Some(writer) = world.writer() {
        assert!(!writer.has_unconfirmed(), "IC18: an entry waits for nothing");
    }
}

struct Frame {
    world: World,
    touched: Touched,
    choices: Vec<(Event, Budget)>,
    /// What led here.
    event: Option<Event>,
}

/// Goes through a scope, at most `states_max` states of it.
pub(super) fn explore(scope: &Scope, canaries: Canaries, states_max: usize) -> Explored {
    let (e, qw, qa) = scope.quorum;
    let mut world = World::new(Setup {
        quorum: Quorum::new(e, qw, qa).expect("a quorum"),
        bookies: scope.bookies,
        digest: DigestType::Dummy,
        is_prompt: true,
        is_deferred: false,
        only_outcomes: true,
        is_handed_over: false,
        slow_bytes_max: u64::MAX,
        keep_bytes_max: u64::MAX,
        read_ahead_entries: 1,
        canaries,
        budget: None,
        random: None,
    });
    (scope.start)(&mut world);
    // What happened before the exploration begins happened at all of them, for all we know.
    let touched = if scope.is_fresh && scope.is_reduced { Touched::default() } else { Touched::ALL };
    let mut known = HashSet::from([fingerprint(&world, &scope.budget)]);
    let choices_of_first = choices(&world, &scope.budget, scope.is_reduced);
    let mut stack = vec![Frame { world, touched, choices: choices_of_first, event: None }];
    let mut explored = Explored {
        states: 1,
        events: 0,
        depth: 0,
        is_complete: true,
        violation: None,
        seen: BTreeSet::new(),
    };
    while let Some(frame) = stack.last_mut() {
        let Some((event, budget)) = frame.choices.pop() else {
            stack.pop();
            continue;
        };
        if !frame.touched.is_tried(&frame.world, &event) {
            continue;
        }
        let touched = frame.touched.with(&event);
        let mut world = frame.world.clone();
        explored.events += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            world.apply(&event);
            check_rest(&world);
        }));
        if let Err(panic) = outcome {
            let mut path: Vec<Event> = stack.iter().filter_map(|frame| frame.event.clone()).collect();
            path.push(event);
            explored.violation = Some((super::text_of(&*panic), path));
            explored.is_complete = false;
            break;
        }
        if !known.insert(fingerprint(&world, &budget)) {
            continue;
        }
        if known.len() > states_max {
            explored.is_complete = false;
            break;
        }
        explored.seen.insert(seen(&world));
        let choices = choices(&world, &budget, scope.is_reduced);
        stack.push(Frame { world, touched, choices, event: Some(event) });
        explored.depth = explored.depth.max(stack.len());
    }
    explored.states = known.len();
    explored
}

pub(super) const NOTHING: Budget =
    Budget { entries: 0, recoveries: 0, closes: 0, breaks: 0, crashes: 0, store_losses: 0 };

/// Scope A: all bookies have all entries; a fence is lost, a bookie crashes.
pub(super) const A: Scope = Scope {
    name: "A",
    quorum: (3, 3, 2),
    bookies: 3,
    start: |_| {},
    is_fresh: true,
    is_reduced: true,
    budget: Budget { entries: 2, recoveries: 1, breaks: 1, crashes: 1, ..NOTHING },
};

/// Scope A without the crash, or of one entry: what can be gone through as a whole.
pub(super) const A_WITHOUT_CRASH: Scope =
    Scope { name: "A, no crash", budget: Budget { crashes: 0, ..A.budget }, ..A };
pub(super) const A_ONE_ENTRY: Scope =
    Scope { name: "A, one entry, all faults", budget: Budget { entries: 1, ..A.budget }, ..A };

/// Scope B: the same with a spare bookie, so that the ensemble changes, and a lost answer of the metadata store.
pub(super) const B: Scope = Scope {
    name: "B",
    quorum: (3, 3, 2),
    bookies: 4,
    start: |_| {},
    is_fresh: true,
    is_reduced: true,
    budget: Budget { entries: 2, recoveries: 1, crashes: 1, breaks: 1, store_losses: 1, ..NOTHING },
};

/// Scope B of one entry, with the crash or without: what can be gone through as a whole.
pub(super) const B_ONE_ENTRY: [Scope; 2] = [
    Scope {
        name: "B, one entry, a crash",
        budget: Budget { entries: 1, breaks: 0, store_losses: 0, ..B.budget },
        ..B
    },
    Scope { name: "B, one entry, no crash", budget: Budget { entries: 1, crashes: 0, ..B.budget }, ..B },
];

/// Scope C: entries are striped over the bookies.
pub(super) const C: Scope = Scope {
    name: "C",
    quorum: (3, 2, 2),
    bookies: 3,
    start: |_| {},
    is_fresh: true,
    is_reduced: true,
    budget: Budget { entries: 2, recoveries: 1, breaks: 1, crashes: 1, ..NOTHING },
};

/// The parts of the scopes that can be gone through at once.
pub(super) const SMALL: [Scope; 6] = [
    Scope { name: "A, one entry", budget: Budget { entries: 1, recoveries: 1, ..NOTHING }, ..A },
    FENCE_LOST,
    Scope {
        name: "B, two bookies of three, acknowledged by one",
        quorum: (2, 2, 1),
        bookies: 3,
        budget: FENCE_LOST.budget,
        ..B
    },
    Scope {
        name: "B, two bookies of three, an answer of the store lost",
        quorum: (2, 2, 2),
        bookies: 3,
        budget: Budget { store_losses: 1, ..FENCE_LOST.budget },
        ..B
    },
    EMPTY_LAST_ENSEMBLE,
    Scope { name: "C, one entry", budget: Budget { entries: 1, recoveries: 1, ..NOTHING }, ..C },
];

/// The part of scope A that has #2614: two bookies, one of which the fence may not reach.
pub(super) const FENCE_LOST: Scope = Scope {
    name: "A, two bookies, a fence lost",
    quorum: (2, 2, 2),
    bookies: 2,
    budget: Budget { entries: 1, recoveries: 1, breaks: 1, ..NOTHING },
    ..A
};

/// The part of scope B that has #2615: the ensemble changed behind entry 0, and the next one did not arrive yet.
pub(super) const EMPTY_LAST_ENSEMBLE: Scope = Scope {
    name: "B, an empty last ensemble",
    quorum: (2, 2, 2),
    bookies: 3,
    is_fresh: false,
    is_reduced: true,
    start: |world| {
        world.apply(&Event::Append);
        for bookie in [0, 1] {
            world.apply(&Event::Serve { party: WRITER, bookie, is_old: false, refusal: None });
            world.apply(&Event::Hear { party: WRITER, bookie, flight: 0, is_damaged: false });
        }
        world.apply(&Event::Append);
        world.apply(&Event::TimeOut { party: WRITER, bookie: 1, flight: 0 });
        world.apply(&Event::AskStore { party: WRITER, fate: StoreFate::Done });
        world.apply(&Event::HearStore { party: WRITER, gives_up: false });
        assert_eq!(world.metadata().segments().len(), 2, "the ensemble changed");
    },
    budget: Budget { recoveries: 1, breaks: 1, ..NOTHING },
};

/// A scope in numbers: ensemble, write quorum, ack quorum, bookies; entries, recoveries, closes, breaks, crashes, losses.
pub(super) fn scope_of(numbers: &[u8]) -> Scope {
    let [e, qw, qa, bookies, entries, recoveries, closes, breaks, crashes, store_losses] = *numbers else {
        panic!("a scope is ten numbers")
    };
    Scope {
        name: "given",
        quorum: (usize::from(e), usize::from(qw), usize::from(qa)),
        bookies: usize::from(bookies),
        start: |_| {},
        is_fresh: true,
        is_reduced: true,
        budget: Budget { entries, recoveries, closes, breaks, crashes, store_losses },
    }
}
