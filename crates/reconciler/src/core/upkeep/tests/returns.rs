//! Checks of objects that wait end.

use super::*;

/// Invariant 4 of [`waiting`]: a bookie that joined the ensembles and is slow has to be told of everything while an object is checked.
#[test]
fn one_slow_bookie_does_not_hold_up_a_pass() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles)]);
    around.wait(1, Duration::from_secs(60));
    around.waiting[0].extents = 3000;
    around.moved = (0..3000).map(|of| moved(of, 0, 9, "a")).collect();
    around.cannot_release = true;
    around.settle();
    (0..3).for_each(|_| around.pass());
    assert!(around.told().iter().all(|bookie| bookie == "a"));
    // All are done, and the release is to be committed: now the ensembles change.
    (around.moved, around.cannot_release) = ((0..3000).map(|of| moved(of, 0, 9, "a b")).collect(), false);
    (around.slowness, around.done) = (Duration::from_secs(4), Vec::new());
    let mut passes = 0;
    while !around.waiting.is_empty() {
        let began = around.now.max(around.upkeep.wake_at().unwrap());
        around.pass();
        passes += 1;
        assert!(around.now < began + Duration::from_secs(120 + 40 + 4 + 11 * 4), "a pass ends");
        assert!(around.done.iter().any(|action| matches!(action, UpkeepAction::Scan { .. })));
        assert!(passes < 40, "{:?}", around.upkeep.status());
    }
    assert!(passes > 3 && around.told().iter().all(|bookie| bookie == "b"));
}

/// Invariant 4 of [`waiting`].
#[test]
fn a_check_that_takes_too_long_has_more_time_later() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.wait(1, Duration::from_secs(60));
    around.waiting[0].extents = 2000;
    around.moved = (0..2000).map(|of| moved(of, 0, 9, "a")).collect();
    around.of_extent = Duration::from_millis(400);
    around.settle();
    let (mut longest, mut passes) = (Duration::ZERO, 0);
    let mut has_said_so = false;
    while !around.waiting.is_empty() {
        let began = around.now.max(around.upkeep.wake_at().unwrap());
        around.pass();
        longest = longest.max(around.now - began);
        has_said_so |=
            around.upkeep.status().waits_for.as_ref().is_some_and(|why| why.contains("checking it"));
        passes += 1;
        assert!(passes < 40, "{:?}", around.upkeep.status());
    }
    assert!(has_said_so && longest < Duration::from_secs(1000), "{longest:?}");
}
