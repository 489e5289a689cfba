//! The unchanged swarm: many seeds, no promise broken; and a seed repeats exactly (K11).
//!
//! `BINDERY_SIM_SEEDS` sets the number of seeds (2,000 by default), `SEED` runs a single one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_io::canary::Canaries;
use bindery_sim::bookie::{MARKS, Outcome, Profile, run};
use std::collections::BTreeSet;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[test]
fn every_seed_keeps_every_promise() {
    let (first, count) = match setting("SEED") {
        Some(seed) => (seed, 1),
        None => (1, setting("BINDERY_SIM_SEEDS").unwrap_or(2000)),
    };
    let (mut restarts, mut compared, mut refused) = (0, 0, 0);
    let mut missing: BTreeSet<_> = MARKS.into_iter().collect();
    for seed in first..first + count {
        let report = run(Profile::draw(seed, Canaries::none()));
        match report.outcome {
            Outcome::Kept => {}
            Outcome::RefusedDamage(_) => refused += 1,
            Outcome::Violated(what) => {
                panic!("SEED={seed}: {what}\n{}", report.trace.join("\n"));
            }
        }
        restarts += report.restarts;
        compared += report.compared;
        missing.retain(|mark| !report.marks.contains_key(mark));
    }
    println!(
        "{count} seeds, {restarts} restarts, {compared} reads compared, {refused} runs refused planted damage"
    );
    assert!(compared > count && restarts > count, "a swarm that checks nothing proves nothing");
    assert!(count < 1000 || missing.is_empty(), "rare states that {count} seeds never met: {missing:?}");
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in 1..=20 {
        let once = run(Profile::draw(seed, Canaries::none()));
        let again = run(Profile::draw(seed, Canaries::none()));
        assert_eq!(
            (once.hash, once.outcome, once.compared),
            (again.hash, again.outcome, again.compared),
            "{seed}"
        );
    }
}
