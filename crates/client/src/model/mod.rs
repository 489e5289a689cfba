//! Writer and recovery against simulated bookies, network and metadata store: by seeds.
//!
//! # Goal and method
//! One writer appends, announces, closes, or leaves the ledger to the next; recoverers come at random, several at once. Bookies
//! crash and lose what they had not synced, stand still, refuse, turn read-only, answer late, in any order, and with damage;
//! Java's re-replication moves copies, which it packs again, and edits the segments of ledgers that are open or closed
//! (`repair`); connections break while requests on them still arrive; the store loses answers of writes that it did and of
//! writes that it did not do, and shows old versions. Everything happens in an order drawn from a seed (`swarm`). The cores are those of the client; their
//! shells are imitated in `world`. After every event `checks` looks at the whole.
//!
//! # What is checked (numbers: reliability reference)
//! | id | how |
//! |---|---|
//! | IC1 | an entry that becomes confirmed was acknowledged by Qa of the write set that the store's metadata names |
//! | IC2 | entries are confirmed one after the other, each once |
//! | IC3 | the LAC (last add confirmed) only grows; in an entry or an announcement it was confirmed when that left |
//! | IC4, IC5 | a recoverer's first read of an entry comes when the fences cover the ensemble, by definition; all fence |
//! | IC6 | a recovery closes behind Qw - Qa + 1 negatives for the next entry, and no positive |
//! | IC7 | closed at n: nothing above n is or becomes confirmed |
//! | IC8 | nothing follows the close; all parties tell one end; the bytes and the length are the writer's |
//! | IC9 | a confirmed entry keeps Qa durable copies where metadata says, after every change of it, those of repair too |
//! | IC10 | the same for every entry of the ledger when it is closed, and at the end |
//! | IC11 | a segment that the writer publishes begins at the LAC + 1 of that moment, only the last one is replaced |
//! | IC12 | recoveries publish nothing but the mark and the end, and leave the segments before the last alone |
//! | IC13 | the states follow one another as they may |
//! | IC14 | a write with an unknown outcome is followed by a read |
//! | IC15 | each entry that a recovery added has Qa acknowledgements of its own when it closes |
//! | IC1, IC9 with deferred sync | what a force confirms has Qa durable copies; bookies acknowledge before they sync, and a crash takes what was not forced |
//! | IC16 | a bookie whose disks were lost comes back under its name, in limbo: all of this table holds, copies that were destroyed counted as copies |
//! | IC19 | a closed ledger is read while answers are lost: one read asks no replica for an entry twice; when an append returns, its entry is on an ack quorum of the bookies that metadata names (`shells`) |
//! | IC17 | when a writer closes or hands over, marks name all bookies that lack something; when a recovery closes, those that lack what it added; a writer that is quiet holds nothing |
//! | IC18, IC20 | when faults end, all is confirmed or a recovery succeeds, in a bounded number of events |
//! | IC22 | a recovery, which is the only repair the client has, makes a bookie the member for those entries only that it added again |
//! | IC23 | when a writer closes or hands over, and when a recovery closes, every run of entries that a member lacks touches an end of its segment: of what a recovery did not add, if it did before |
//!
//! # Not here
//! Incarnations as such: the client does not tell them apart, bookies do (IB28).

mod bookie;
mod checks;
mod event;
mod explore;
mod network;
mod orders;
mod part;
mod regressions;
mod repair;
mod shells;
mod swarm;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bindery_io::canary::Canaries;

use self::checks::Summary;

/// Seeds of a run without another word.
const SEEDS: u64 = 500;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// What a failed assertion said.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
}

/// Runs seeds on all cores until one fails; the lowest that was seen to fail, with what it said.
fn run_all(seeds: std::ops::Range<u64>, canaries: Canaries) -> (Summary, Option<(u64, String)>) {
    let total = Mutex::new(Summary::default());
    let failed: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || failed.lock().unwrap().is_some() {
                        return;
                    }
                    match std::panic::catch_unwind(|| swarm::run(seed, canaries)) {
                        Ok(summary) => total.lock().unwrap().add(&summary),
                        Err(panic) => {
                            let text = text_of(&*panic);
                            let mut failed = failed.lock().unwrap();
                            if failed.as_ref().is_none_or(|(lowest, _)| seed < *lowest) {
                                *failed = Some((seed, text));
                            }
                        }
                    }
                }
            });
        }
    });
    (total.into_inner().unwrap(), failed.into_inner().unwrap())
}

#[test]
fn whatever_fails_confirmed_entries_survive_and_all_recoveries_agree() {
    if let Some(seed) = number("BINDERY_CLIENT_SEED") {
        println!("{:?}", swarm::run(seed, Canaries::none()));
        return;
    }
    let seeds = number("BINDERY_CLIENT_SEEDS").unwrap_or(SEEDS);
    let (total, failed) = run_all(1..seeds + 1, Canaries::none());
    if let Some((seed, what)) = failed {
        panic!(
            "{what}\nagain: BINDERY_CLIENT_SEED={seed} cargo test -p bindery-client --lib model::whatever"
        );
    }
    println!("{seeds} seeds: {total:?}");
    // The swarm reaches what it is about.
    let met = [
        ("confirmed", total.confirmed, 20),
        ("ensemble changes", total.ensemble_changes, 1),
        ("segments by recoveries", total.segments_by_recovery, 20),
        ("closed by the writer", total.closed_by_writer, 10),
        ("fenced", total.fenced, 10),
        ("recoveries", total.recoveries, 2),
        ("failed recoveries", total.failed_recoveries, 20),
        ("recovered behind the LAC", total.recovered_behind_lac, 10),
        ("answers of the store lost", total.lost_store_answers, 15),
        ("holds", total.holds, 10),
        ("rejoins", total.rejoins, 50),
        ("closed with gaps", total.closed_with_gaps, 100),
        ("announced", total.announced, 10),
        ("crashes", total.crashes, 2),
        ("writers that came to rest", total.quiet_writers, 40),
        ("forces that confirmed entries", total.forced, 10),
        ("forces that failed", total.failed_forces, 100),
        ("answered over another connection", total.reconnected, 500),
        ("disks lost", total.lost_disks, 10),
        ("answers out of limbo", total.limbo_answers, 20),
        ("repairs of an open ledger", total.repairs_of_open, 10),
        ("repairs of a closed ledger", total.repairs_of_closed, 10),
        ("copies packed again that a recovery heard", total.packed_again, 100),
        ("handed over", total.handed_over, 5),
        ("copies let go of", total.copies_missing, 5),
        ("copies filled", total.copies_filled, 5),
        ("gaps", total.gaps, 25),
        ("segments split", total.splits, 100),
    ];
    for (what, count, seeds_for_one) in met {
        assert!(count >= seeds / seeds_for_one, "{what}: {count} in {seeds} seeds");
    }
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    assert_eq!(swarm::run(7, Canaries::none()), swarm::run(7, Canaries::none()));
}

/// The same question for the whole client: see `shells`.
#[test]
fn whatever_fails_readers_see_what_was_confirmed_and_every_call_ends() {
    if let Some(seed) = number("BINDERY_CLIENT_SEED") {
        println!("{:?}", shells::run(seed, Canaries::none()));
        return;
    }
    let seeds = (number("BINDERY_CLIENT_SEEDS").unwrap_or(SEEDS) / 10).max(1);
    let mut total = shells::Seen::default();
    for seed in 1..=seeds {
        let seen = std::panic::catch_unwind(|| shells::run(seed, Canaries::none())).unwrap_or_else(|panic| {
            eprintln!("seed {seed} of the shells");
            std::panic::resume_unwind(panic)
        });
        total.entries += seen.entries;
        total.followed += seen.followed;
        total.runs += seen.runs;
        total.closed_by_writer += seen.closed_by_writer;
        total.forced += seen.forced;
        total.ensemble_changes += seen.ensemble_changes;
        total.writers_failed += seen.writers_failed;
        total.asked_again += seen.asked_again;
        total.repairs += seen.repairs;
        total.repairs_of_closed += seen.repairs_of_closed;
    }
    println!("{seeds} seeds of the shells: {total:?}");
    assert!(total.forced >= seeds / 4, "forces");
    assert!(total.ensemble_changes >= seeds / 4 && total.writers_failed >= seeds / 100, "{total:?}");
    assert!(total.entries > 40 * seeds as i64 && total.followed > total.entries && total.runs > seeds as i64);
    assert!(total.repairs >= seeds / 10 && total.repairs_of_closed >= seeds, "{total:?}");
    assert!(total.asked_again > 5 * seeds, "hedges and retries are what IC19 is about");
}

/// How many states of a scope are gone into without another word.
const STATES: u64 = 10_000;

/// `states_needed`: with room for so many the scope is gone through.
fn explore_scope(scope: &explore::Scope, canaries: Canaries, states_needed: u64) -> Option<String> {
    let states_max = number("BINDERY_CLIENT_STATES").unwrap_or(STATES);
    let explored = explore::explore(scope, canaries, states_max as usize);
    let explore::Explored { states, events, depth, is_complete, violation, .. } = explored;
    let name = scope.name;
    println!("scope {name}: {states} states, {events} events, depth {depth}, complete {is_complete}");
    assert!(
        is_complete || violation.is_some() || states_max < states_needed,
        "{} is not complete",
        scope.name
    );
    violation.map(|(what, path)| format!("{what}\nscope {}, {} events: {path:?}", scope.name, path.len()))
}

/// `BINDERY_CLIENT_SCOPE`: see [`explore::scope_of`].
#[test]
fn explore_small_scopes_or_the_one_that_is_given() {
    let given = std::env::var("BINDERY_CLIENT_SCOPE").ok().map(|text| {
        let numbers: Vec<u8> = text.split(',').map(|number| number.parse().expect("a number")).collect();
        explore::scope_of(&numbers)
    });
    let states_needed = if given.is_some() { u64::MAX } else { 200_000 };
    for scope in given.map_or(explore::SMALL.to_vec(), |scope| vec![scope]) {
        assert_eq!(explore_scope(&scope, planted(), states_needed), None);
    }
}

/// The canary that `BINDERY_CLIENT_CANARY` names.
fn planted() -> Canaries {
    #[cfg(debug_assertions)]
    if let Ok(name) = std::env::var("BINDERY_CLIENT_CANARY") {
        let known = bindery_io::canary::CLIENT.iter().find(|(known, _)| *known == name);
        return Canaries::only(known.expect("a canary of the client").1);
    }
    Canaries::none()
}

/// Scopes small enough to be gone through without reductions; all kinds of events are in some of them. The one that is not so
/// small takes as long as all others: it wants `BINDERY_CLIENT_STATES` (`./test --full`).
#[test]
fn explore_less_and_see_the_same() {
    use explore::{Budget, NOTHING, Scope};

    let two = Scope { name: "two bookies", quorum: (2, 2, 1), bookies: 2, ..explore::A };
    let three = Scope { name: "three bookies", ..explore::A };
    let large = Scope { budget: Budget { entries: 1, recoveries: 2, ..NOTHING }, ..two };
    let is_large_wanted = number("BINDERY_CLIENT_STATES").is_some_and(|states| states >= 600_000);
    for scope in is_large_wanted.then_some(large).into_iter().chain([
        Scope { budget: Budget { entries: 1, recoveries: 1, ..NOTHING }, ..three },
        Scope { budget: Budget { entries: 1, breaks: 1, crashes: 1, ..NOTHING }, ..three },
        Scope { budget: Budget { entries: 2, closes: 1, crashes: 1, ..NOTHING }, ..two },
        Scope { budget: Budget { entries: 1, recoveries: 1, ..NOTHING }, ..explore::C },
        Scope { budget: Budget { entries: 1, recoveries: 1, crashes: 1, ..NOTHING }, ..two },
        Scope { budget: Budget { entries: 1, recoveries: 1, store_losses: 1, ..NOTHING }, ..two },
        Scope { bookies: 3, budget: Budget { entries: 1, recoveries: 1, breaks: 1, ..NOTHING }, ..two },
        Scope { bookies: 3, budget: Budget { entries: 2, breaks: 1, crashes: 1, ..NOTHING }, ..two },
    ]) {
        let explore = |is_reduced| {
            let explored = explore::explore(&Scope { is_reduced, ..scope }, Canaries::none(), 1_000_000);
            assert!(explored.is_complete && explored.violation.is_none(), "{scope:?}");
            explored
        };
        let (reduced, whole) = (explore(true), explore(false));
        println!(
            "{}, {:?}: {} states instead of {}, {} seen",
            scope.name,
            scope.budget,
            reduced.states,
            whole.states,
            whole.seen.len()
        );
        assert_eq!(reduced.seen, whole.seen, "{scope:?}");
        assert!(reduced.states <= whole.states);
    }
}

#[test]
fn explore_a() {
    assert_eq!(explore_scope(&explore::A, Canaries::none(), u64::MAX), None);
}

#[test]
fn explore_a_without_crash() {
    assert_eq!(explore_scope(&explore::A_WITHOUT_CRASH, Canaries::none(), 15_000_000), None);
}

#[test]
fn explore_a_of_one_entry() {
    assert_eq!(explore_scope(&explore::A_ONE_ENTRY, Canaries::none(), 15_000_000), None);
}

#[test]
fn explore_b_of_one_entry() {
    for scope in explore::B_ONE_ENTRY {
        assert_eq!(explore_scope(&scope, Canaries::none(), 15_000_000), None);
    }
}

#[test]
fn explore_b() {
    assert_eq!(explore_scope(&explore::B, Canaries::none(), u64::MAX), None);
}

#[test]
fn explore_c() {
    assert_eq!(explore_scope(&explore::C, Canaries::none(), 10_000_000), None);
}

/// Each planted bug of the client is found by the unchanged swarm.
#[cfg(debug_assertions)]
#[test]
fn every_canary_is_found() {
    let mut missed = Vec::new();
    for (name, canary) in bindery_io::canary::CLIENT {
        match run_all(1..2001, Canaries::only(canary)).1 {
            Some((seed, what)) => println!("{name} found by seed {seed}: {what}"),
            None => missed.push(name),
        }
    }
    assert_eq!(missed, Vec::<&str>::new(), "canaries the swarm does not find");
}

/// The same for what is not in the cores: the readers'.
#[cfg(debug_assertions)]
#[test]
fn every_canary_of_the_readers_is_found() {
    use bindery_io::canary::Canary;

    let planted = Canaries::only(Canary::M36HedgeToTheSame);
    let found = (1..201).find_map(|seed| {
        let panic = std::panic::catch_unwind(|| shells::run(seed, planted)).err()?;
        Some((seed, text_of(&*panic)))
    });
    let (seed, what) = found.expect("a canary the readers' seeds do not find");
    println!("M36 found by seed {seed}: {what}");
    assert!(what.contains("IC19"), "{what}");
}

/// With the fixes of #2614 and #2615 off the explorer finds what they mend, by what comes of it.
#[cfg(debug_assertions)]
#[test]
fn every_canary_of_the_explorer_is_found() {
    use bindery_io::canary::Canary;

    let mut missed = Vec::new();
    for (canary, scope) in [
        (Canary::M16ReadsWithoutFence, explore::FENCE_LOST),
        (Canary::M32BeginsBelowSegment, explore::EMPTY_LAST_ENSEMBLE),
    ] {
        let explored = explore::explore(&scope, Canaries::only(canary), 300_000);
        match explored.violation {
            Some((what, path)) => {
                println!("{canary:?} found after {} states, {} events: {what}", explored.states, path.len());
            }
            None => missed.push(canary),
        }
    }
    assert_eq!(missed, Vec::<Canary>::new(), "canaries the explorer does not find");
}
