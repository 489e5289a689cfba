//! Scope E of the explorer, in parts: the smallest worlds in which two tierers, bookies that let copies go and a few faults meet.

use bindery_io::canary::TIERER;

use super::explore::{Budget, Explored, NOTHING, Role, Scope, explore};
use super::*;

/// A world in which nothing happens by the hour: ledgers are listed and looked at when a tierer starts.
fn world(tierers: usize, bookies: usize) -> World {
    let mut world = World::new(1, tierers, bookies);
    let settings = &mut world.settings;
    settings.objects_max = 1;
    // What has failed for long is no part of the state that is compared.
    settings.unable_after = Duration::MAX;
    // Nor is what others may have said before it began: members of the scopes know nothing of each other.
    settings.doubt_kept = Duration::ZERO;
    (settings.list_interval, settings.revisit_interval) = (seconds(60), seconds(60));
    settings.look_interval = (seconds(60), seconds(60));
    (settings.upkeep.interval, settings.upkeep.delete_delay) = (seconds(40), seconds(20));
    world
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One closed ledger of two entries on two bookies that nobody has tiered.
fn one_ledger_for(tierers: usize) -> World {
    let mut world = world(tierers, 2);
    world.add_on(1, 2, true, (2, 2, 1), &[0, 1]);
    world
}

fn one_ledger() -> World {
    one_ledger_for(2)
}

/// An object has two ledgers, of which the larger one is deleted, and both bookies were told.
fn sparse(tierers: usize, bookies: usize) -> World {
    let mut world = world(tierers, bookies);
    world.add_on(1, 6, true, (2, 2, 1), &[0, 1]);
    world.add_on(2, 2, true, (2, 2, 1), &[0, 1]);
    world.start(0, Canaries::none());
    world.run(seconds(15));
    world.assert_complete();
    assert_eq!(world.bucket.len(), 1);
    world.end_history();
    world.delete_ledger(1);
    world
}

impl World {
    /// The tierer of the history goes, with all that it asked for.
    fn end_history(&mut self) {
        self.crash(0);
        self.pending.clear();
        self.estate.strays.clear();
    }
}

fn is_complete(world: &World) {
    world.assert_complete();
}

fn is_tidy(world: &World) {
    world.assert_complete();
    world.assert_tidy();
}

/// T2: somebody was told, and nothing of the ledger went on.
fn is_stopped(world: &World) {
    assert_eq!(
        world.tiered(ledger(1)),
        Some(entry(1)),
        "IT1: a ledger of which a bookie is ahead is stopped (T2)"
    );
    let is_told = |tierer: &Part<Tierer>| matches!(tierer.alarms[..], [Alarm::BookieAhead { .. }, ..]);
    assert!(world.tierers.iter().all(is_told), "IT1: an alarm says that a bookie is ahead (T2)");
}

/// Two tierers move one ledger, and something fails.
const PAIR: Scope = Scope {
    name: "two tierers, a fault",
    start: one_ledger,
    roles: &[Role::Builds, Role::Builds],
    time: seconds(20),
    budget: Budget { faults: 1, trims: 1, ..NOTHING },
    end: is_complete,
    end_after: seconds(140),
    states: 15_000,
};

/// One of them dies, and comes back.
const PAIR_CRASH: Scope =
    Scope { name: "two tierers, a crash", budget: Budget { crashes: 1, ..NOTHING }, states: 30_000, ..PAIR };

/// Answers come after what happened later, or after the deadline.
const PAIR_LATE: Scope = Scope {
    name: "two tierers, a late answer",
    budget: Budget { late: 1, trims: 1, ..NOTHING },
    states: 3000,
    ..PAIR
};
const PAIR_PAUSE: Scope =
    Scope { name: "two tierers, a pause", budget: Budget { pauses: 1, ..NOTHING }, states: 30_000, ..PAIR };

/// One tierer dies in the middle, something fails, and bookies let copies go.
const TAKE_OVER: Scope = Scope {
    name: "a tierer that starts again, a fault",
    start: || one_ledger_for(1),
    roles: &[Role::Builds],
    budget: Budget { faults: 1, crashes: 1, trims: 1, ..NOTHING },
    states: 8000,
    ..PAIR
};

/// T2.
const PUT_BACK: Scope = Scope {
    name: "an older catalogue, a fault and a crash",
    start: || put_back(2),
    budget: Budget { faults: 1, crashes: 1, ..NOTHING },
    end: is_stopped,
    states: 30_000,
    ..PAIR
};

/// T13.
const LOST: Scope = Scope {
    name: "a lost catalogue, a fault and a crash",
    start: lost,
    roles: &[Role::Keeps],
    time: seconds(150),
    budget: Budget { faults: 1, crashes: 1, absences: 1, ..NOTHING },
    end: |_| (),
    states: 16_000,
    ..PAIR
};

/// One tierer builds, and the other one looks for objects of nobody.
const SCAN: Scope = Scope {
    name: "a builder, a scan, a fault and a pause",
    roles: &[Role::Builds, Role::Keeps],
    budget: Budget { faults: 1, pauses: 1, ..NOTHING },
    end: is_tidy,
    states: 11_000,
    ..PAIR
};

/// Two tierers remove the same ledger, and rewrite the object that it was in.
const REWRITE: Scope = Scope {
    name: "two that remove and rewrite, a fault",
    start: || sparse(2, 2),
    roles: &[Role::Keeps, Role::Keeps],
    time: seconds(30),
    budget: Budget { faults: 1, ..NOTHING },
    end: is_tidy,
    end_after: seconds(240),
    states: 10_000,
};

/// Two tierers prove that the old object is needed by no reader, and delete it.
const DELETE: Scope = Scope {
    name: "two that prove and delete, a fault",
    start: || garbage(2, 2, 0.0),
    time: seconds(100),
    states: 4_000,
    ..REWRITE
};

/// One does, which dies in the middle, while bookies let copies go.
const DELETE_CRASH: Scope = Scope {
    name: "one that proves and deletes, a fault and a crash",
    start: || garbage(1, 2, 0.0),
    roles: &[Role::Keeps],
    budget: Budget { faults: 1, crashes: 1, trims: 1, ..NOTHING },
    states: 15_000,
    ..DELETE
};

/// What was rewritten is not what it should be, and bookies have let their copies go before.
const SPOILED: Scope = Scope {
    name: "one that deletes beside a copy that is another one, a fault and a crash",
    start: || garbage(1, 2, 1.0),
    roles: &[Role::Keeps],
    budget: Budget { faults: 1, crashes: 1, ..NOTHING },
    states: 4000,
    ..DELETE
};

/// A bookie is replaced in the ensemble, and is put back into it later, with places of entries that are no longer true.
const RETURN: Scope = Scope {
    name: "one that proves and deletes, a bookie that leaves and returns",
    start: || garbage(1, 3, 0.0),
    roles: &[Role::Keeps],
    budget: Budget { trims: 1, absences: 1, changes: 2, ..NOTHING },
    // No tierer is here that would tell a new member how far the ledger is.
    end: World::assert_tidy,
    states: 2_500,
    ..DELETE
};

/// Everything at once: `./test --full`.
const LARGE: [Scope; 3] = [
    Scope {
        name: "two tierers, a crash, copies that go",
        budget: Budget { crashes: 1, trims: 1, ..NOTHING },
        states: 60_000,
        ..PAIR
    },
    Scope {
        name: "two that remove, rewrite and delete",
        time: seconds(240),
        budget: NOTHING,
        states: 150_000,
        ..REWRITE
    },
    Scope {
        name: "one that removes, rewrites and deletes, a fault and a crash",
        start: || sparse(1, 2),
        roles: &[Role::Keeps],
        time: seconds(240),
        budget: Budget { faults: 1, crashes: 1, trims: 1, ..NOTHING },
        states: 230_000,
        ..REWRITE
    },
];

/// A catalogue that was put back to where the ledger had two entries, while bookies know four.
fn put_back(tierers: usize) -> World {
    let mut world = world(tierers, 2);
    world.settings.look_interval = (seconds(10), seconds(10));
    world.add_on(1, 2, false, (2, 2, 1), &[0, 1]);
    world.start(0, Canaries::none());
    world.run(seconds(20));
    let older = world.catalogue.clone();
    assert_eq!(world.tiered(ledger(1)), Some(entry(1)));
    world.grow(1, 2);
    world.run(seconds(30));
    assert_eq!(world.tiered(ledger(1)), Some(entry(3)));
    world.end_history();
    world.grow(1, 2);
    world.seal(1);
    (world.catalogue, world.was_put_back) = (older, true);
    world
}

/// The catalogue was lost, and a tierer takes it for an empty one: the object of one ledger has no row, is old, and bookies have let
/// their copies go.
fn lost() -> World {
    let mut world = world(1, 2);
    world.add_on(1, 2, true, (2, 2, 1), &[0, 1]);
    world.start(0, Canaries::none());
    world.run(seconds(30));
    world.assert_complete();
    world.end_history();
    (0..2).for_each(|name| world.trim(&bookie(name), ledger(1)));
    (world.catalogue, world.was_put_back, world.is_diverged) = (Catalogue::new(CLUSTER).into(), true, true);
    world
}

/// An object was rewritten, with other entries as likely as this, and its turn to be deleted has come. Bookies let their copies go before.
fn garbage(tierers: usize, bookies: usize, spoils: f64) -> World {
    let mut world = sparse(tierers, bookies);
    if spoils > 0.0 {
        (0..2).for_each(|name| world.trim(&bookie(name), ledger(2)));
    }
    world.estate.spoils = spoils;
    world.start(0, Canaries::none());
    world.tierers[0].core = None;
    let is_rewritten = |world: &World| {
        let is_it = |row: Option<ObjectRow>| matches!(row, Some(ObjectRow::Stored(stored)) if stored.replaced.is_some() && stored.unreferenced_ms.is_some());
        world.catalogue.objects_in_tail().any(|(_, row)| is_it(row))
    };
    while !is_rewritten(&world) {
        if !world.deliver_upkeep(0, Fate::Works) {
            world.pass(seconds(10));
        }
    }
    world.end_history();
    world
}

/// States of a scope that are gone through, at most, unless `BINDERY_TIER_STATES` says otherwise.
const STATES: usize = 5000;

/// Goes through a scope. With room for it, all of it is seen, and it is as large as it says.
fn go_through(scope: &Scope) {
    let given = std::env::var("BINDERY_TIER_STATES").ok().map(|text| text.parse().expect("a number"));
    let states_max: usize = given.unwrap_or(STATES);
    let Explored { states, events, depth, ends, is_complete, violation } =
        explore(scope, Canaries::none(), states_max);
    let name = scope.name;
    println!(
        "scope {name}: {states} states, {events} events, depth {depth}, {ends} ends, complete {is_complete}"
    );
    if let Some((what, path)) = violation {
        path.iter().for_each(|event| println!("  {event}"));
        panic!("scope {name}, {} events: {what}", path.len());
    }
    match is_complete {
        true => {
            assert!(states >= scope.states, "scope {name} has become smaller: {states} states");
            assert!(states < 2 * scope.states, "scope {name} has become larger: {states} states");
            assert!(ends > 0, "scope {name}: nowhere was it looked whether all ends well");
        }
        false => assert!(states_max < 2 * scope.states, "scope {name} is not complete with {states} states"),
    }
}

/// Nothing is done that breaks an invariant, and not all that has to be done: only the look at the end finds that.
#[test]
fn what_stays_undone_is_found_at_the_end() {
    let budget = Budget { faults: 1, ..NOTHING };
    let is_not_tiered = Scope { name: "nobody builds", roles: &[Role::Keeps], budget, ..TAKE_OVER };
    let is_not_deleted = Scope { name: "nobody deletes", roles: &[Role::Builds], budget, ..DELETE_CRASH };
    for (scope, rule) in [(is_not_tiered, "ledger 1"), (is_not_deleted, "T13")] {
        let unseen = explore(&Scope { end: |_| (), ..scope }, Canaries::none(), STATES);
        assert!(unseen.ends > 0 && unseen.violation.is_none(), "scope {}: {unseen:?}", scope.name);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let explored = explore(&scope, Canaries::none(), STATES);
        std::panic::set_hook(hook);
        let (what, _) = explored.violation.expect("the planted bug is found");
        assert!(what.contains(rule), "scope {}: {what}", scope.name);
    }
}

#[test]
fn explore_two_tierers() {
    [PAIR, PAIR_LATE].iter().for_each(go_through);
}

#[test]
fn explore_two_tierers_with_a_crash() {
    go_through(&PAIR_CRASH);
}

#[test]
fn explore_two_tierers_with_a_pause() {
    go_through(&PAIR_PAUSE);
}

#[test]
fn explore_a_tierer_that_starts_again_and_an_older_catalogue() {
    [TAKE_OVER, PUT_BACK, LOST].iter().for_each(go_through);
}

#[test]
fn explore_a_builder_and_a_scan() {
    go_through(&SCAN);
}

#[test]
fn explore_rewriting() {
    go_through(&REWRITE);
}

#[test]
fn explore_deletions() {
    [DELETE, DELETE_CRASH, SPOILED].iter().for_each(go_through);
}

#[test]
fn explore_bookies_that_leave_and_return() {
    go_through(&RETURN);
}

#[test]
fn explore_large_scopes() {
    LARGE.iter().for_each(go_through);
}

/// Every canary of the tierer is found in some scope, by the invariant that it breaks.
#[test]
fn every_canary_is_found_by_the_explorer() {
    // Of several that find it, one that is quick.
    let scopes = [
        ("M23", PAIR, "IT1"),
        ("T2", PUT_BACK, "IT1"),
        ("T3", PAIR, "IT1"),
        ("T13", SCAN, "IT2"),
        ("T13b", LOST, "IT5"),
        ("T16", SPOILED, "IT5"),
        ("T16b", SPOILED, "IT5"),
        ("T17", REWRITE, "IT1"),
    ];
    // Members of the scopes know nothing of each other: the swarm finds what goes wrong when they share.
    for (name, canary) in TIERER.into_iter().filter(|(name, _)| *name != "T20") {
        let (_, scope, rule) = scopes.iter().find(|(of, ..)| *of == name).expect("a scope for each canary");
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let explored = explore(scope, Canaries::only(canary), 2 * scope.states);
        std::panic::set_hook(hook);
        let Some((what, path)) = explored.violation else {
            panic!("{name} is not found in {} states", explored.states)
        };
        println!("canary {name} found after {} states, {} events: {what}", explored.states, path.len());
        assert!(what.starts_with(rule), "{name}: {what}");
    }
}
