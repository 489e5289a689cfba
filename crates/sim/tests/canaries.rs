//! Each planted bug is found by the unchanged swarm within 2,000 seeds (reliability c.8).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bindery_io::canary::{ALL, Canaries};
use bindery_sim::bookie::{Outcome, Profile, run};

#[test]
fn every_canary_is_found() {
    // A canary often ends in a failed assertion of the code under test: that is caught, so keep it off the screen.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for (name, canary) in ALL {
        let found =
            (1..=2000).find_map(|seed| match run(Profile::draw(seed, Canaries::only(canary))).outcome {
                Outcome::Violated(what) => Some((seed, what)),
                Outcome::Kept | Outcome::RefusedDamage(_) => None,
            });
        match found {
            Some((seed, what)) => println!("{name} found by seed {seed}: {what}"),
            None => missed.push(name),
        }
    }
    let _ = std::panic::take_hook();
    assert_eq!(missed, Vec::<&str>::new(), "canaries the swarm does not find");
}
