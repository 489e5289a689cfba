//! Objects that are looked at once more before they are deleted, and checks that end.

use super::*;

impl Around {
    /// An object that was released, and whose delay is over.
    fn release(&mut self, n: u8) {
        let replaced = Some(Replaced { number: 5, at_ms: 0 });
        let stored = StoredObject { replaced, unreferenced_ms: Some(1), ..stored(object(n), 100, 0.0) };
        assert!(stored.was_released() && !stored.is_waiting());
        self.garbage.insert(object(n));
        self.released.insert(object(n), stored);
    }

    fn is_deleted(&self, n: u8) -> bool {
        !self.garbage.contains(&object(n))
    }
}

/// Invariant 7 of [`waiting`].
#[test]
fn a_bookie_that_returned_is_told_before_the_object_is_deleted() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.release(1);
    // Nobody referred to this one.
    around.garbage.insert(object(2));
    around.moved = vec![moved(1, 0, 9, "a b")];
    around.pass();
    assert!(!around.is_deleted(1) && around.is_deleted(2), "b is in the ensemble, and not registered");
    let status = around.upkeep.status();
    assert!(status.waits_for.as_ref().unwrap().contains("bookie b is not registered"), "{status:?}");
    around.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles)]);
    around.silent.insert(bookie("b"));
    around.pass();
    assert!(!around.is_deleted(1), "b does not answer");
    around.silent.clear();
    around.done.clear();
    around.pass();
    assert!(around.is_deleted(1));
    assert_eq!(around.told(), ["b"], "a has said that it knows");
    let at = |is_it: fn(&UpkeepAction) -> bool| around.done.iter().position(is_it).unwrap();
    let last_look =
        around.done.iter().rposition(|action| matches!(action, UpkeepAction::WhereTo(..))).unwrap();
    assert_eq!(at(|action| matches!(action, UpkeepAction::Delete(_))), last_look + 1, "at once");
    assert!(at(|action| matches!(action, UpkeepAction::Forget(_))) > last_look + 1);
    let counts = around.upkeep.status().counts;
    assert_eq!((counts.objects_deleted, counts.objects_forgotten, counts.objects_released), (2, 2, 0));
}

#[test]
fn an_object_that_is_gone_already_and_one_of_deleted_ledgers_need_no_answer() {
    for are_gone in [true, false] {
        let mut around = Around::new(0..5, 0..5);
        around.release(1);
        around.are_gone = are_gone;
        around.pass();
        assert!(around.is_deleted(1) && around.told().is_empty());
    }
}

/// However many objects are held up, what lies behind them goes, and what waits is looked at.
#[test]
fn objects_that_cannot_be_deleted_yet_hold_up_no_other() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.moved = vec![moved(1, 0, 9, "a b")];
    for n in 0..200 {
        around.release(n);
    }
    let many = |n: u16| {
        let mut random = [9; 10];
        random[..2].copy_from_slice(&n.to_be_bytes());
        ObjectId::new(8, random)
    };
    for n in 0..500 {
        let stored = around.released[&object(0)];
        around.garbage.insert(many(n));
        around.released.insert(many(n), StoredObject { object: reference(many(n), 100), ..stored });
    }
    let last = ObjectId::new(9, [9; 10]);
    around.garbage.insert(last);
    around.wait(1, Duration::from_secs(60));
    around.pass();
    assert!(!around.garbage.contains(&last) && around.garbage.len() == 700);
    assert!(around.done.iter().any(|action| matches!(action, UpkeepAction::Scan { .. })), "the pass goes on");
    around.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles)]);
    around.now += UpkeepSettings::default().settle;
    (0..3).for_each(|_| around.pass());
    assert!(around.garbage.is_empty() && around.waiting.is_empty());
}

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
