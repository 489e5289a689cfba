//! The last check of an object before its deletion, and the time limits of checks.

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

    fn is_waiting(&self, n: u8) -> bool {
        self.waiting.iter().any(|stored| stored.object.id == object(n))
    }

    fn has_rewritten(&self) -> bool {
        self.done.iter().any(|action| matches!(action, UpkeepAction::Rewrite(_)))
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
fn an_object_of_deleted_ledgers_needs_no_answer() {
    let mut around = Around::new(0..5, 0..5);
    around.release(1);
    around.pass();
    assert!(around.is_deleted(1) && around.told().is_empty());
}

/// Invariant 7 of [`waiting`].
#[test]
fn an_object_is_gone_when_two_passes_in_a_row_found_it_so() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.moved = vec![moved(1, 0, 9, "a b")];
    around.release(1);
    around.are_gone = true;
    around.pass();
    let status = around.upkeep.status();
    assert!(!around.is_deleted(1) && status.waits_for.as_ref().unwrap().contains("it is not there"));
    // The store did not know the access key for a moment.
    around.are_gone = false;
    around.pass();
    assert!(!around.is_deleted(1), "b may refer to it");
    around.are_gone = true;
    around.pass();
    assert!(!around.is_deleted(1));
    around.pass();
    assert!(around.is_deleted(1) && around.told() == ["a"]);
}

/// Invariant 8 of [`waiting`].
#[test]
fn objects_that_are_held_before_their_deletion_wait_for_bookies() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.moved = vec![moved(1, 0, 9, "a b")];
    (10..80).for_each(|n| around.release(n));
    let sparse = stored(object(1), 100, 0.3);
    around.rows = vec![sparse];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    around.pass();
    let status = around.upkeep.status();
    assert_eq!(status.objects_waiting, 70);
    assert!(status.waits_for.as_ref().unwrap().contains("bookie b is not registered"), "{status:?}");
    assert!(!around.has_rewritten(), "they take space beside those that were made of them");
    around.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles)]);
    around.pass();
    assert!(around.garbage.is_empty() && around.has_rewritten());
    assert_eq!(around.upkeep.status().objects_waiting, 0);
    around.pass();
    assert_eq!(around.upkeep.status().waits_for, None);
}

/// A damaged one makes room for one more, and for none where it did not count.
#[test]
fn damaged_objects_that_are_held_make_no_room_for_others() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.moved = vec![moved(1, 0, 9, "a b")];
    (10..74).for_each(|n| around.wait(n, Duration::from_secs(60)));
    for n in 80..90 {
        around.release(n);
        around.damaged.insert(object(n), true);
    }
    around.rows = vec![stored(object(1), 100, 0.3)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    for _ in 0..4 {
        around.pass();
        assert!(!around.has_rewritten());
    }
    assert_eq!(around.upkeep.status().objects_waiting, 74);
    around.waiting.pop();
    (0..4).for_each(|_| around.pass());
    assert!(around.has_rewritten(), "63 wait for bookies");
}

/// However many objects are held up, garbage behind them is deleted and waiting objects are checked.
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

/// The same with more of them than one pass checks: each pass goes through all garbage once, and checks the others by turns.
#[test]
fn more_objects_than_fit_that_cannot_be_deleted_hold_up_no_other() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.moved = (0..10).map(|of| moved(of, 0, 9, if of < 5 { "a" } else { "a b" })).collect();
    around.release(255);
    let held = around.released[&object(255)];
    for n in 0..17_000_u32 {
        let mut random = [9; 10];
        random[..4].copy_from_slice(&n.to_be_bytes());
        let id = ObjectId::new(6, random);
        around.garbage.insert(id);
        around.released.insert(id, StoredObject { object: reference(id, 100), ..held });
    }
    let last = ObjectId::new(9, [9; 10]);
    around.garbage.insert(last);
    around.released.get_mut(&object(255)).unwrap().extents = 5;
    around.pass();
    assert!(!around.garbage.contains(&last) && !around.is_deleted(255));
    let is_search = |action: &&UpkeepAction| matches!(action, UpkeepAction::FindGarbage { .. });
    assert!(around.done.iter().filter(is_search).count() < 80);
    around.pass();
    assert!(around.is_deleted(255) && around.garbage.len() == 17_000);
    around.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles)]);
    (0..3).for_each(|_| around.pass());
    assert!(around.garbage.is_empty());
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

/// One object waits for one bookie, which knows of it, and each of its extents takes that long to check.
fn around_a_large_object(extents: u32, of_extent: Duration) -> Around {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.wait(1, Duration::from_secs(60));
    around.waiting[0].extents = extents;
    around.moved = (0..i64::from(extents)).map(|of| moved(of, 0, 9, "a")).collect();
    around.of_extent = of_extent;
    around.settle();
    around
}

/// Invariant 4 of [`waiting`].
#[test]
fn a_check_that_takes_too_long_has_more_time_later() {
    let mut around = around_a_large_object(2000, Duration::from_millis(400));
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

/// Invariant 4 of [`waiting`]: that others are let go meanwhile changes nothing for an object whose check takes long.
#[test]
fn each_object_has_the_time_that_its_own_check_takes() {
    let mut around = around_a_large_object(2000, Duration::from_millis(400));
    let mut small = 1;
    while around.is_waiting(1) {
        small += 1;
        assert!(small < 120, "{:?}", around.upkeep.status());
        around.wait(small, Duration::from_secs(60));
        around.pass();
    }
    assert!(!around.is_waiting(2) && around.alarms.is_empty());
}

/// Invariant 4 of [`waiting`].
#[test]
fn a_check_that_takes_longer_than_any_may_is_one_alarm() {
    let mut around = around_a_large_object(1000, Duration::from_secs(4));
    let (mut longest, mut passes) = (Duration::ZERO, 0);
    while passes < 10 || around.alarms.is_empty() {
        let began = around.now.max(around.upkeep.wake_at().unwrap());
        around.pass();
        longest = longest.max(around.now - began);
        passes += 1;
        assert!(passes < 200, "{:?}", around.upkeep.status());
    }
    (0..10).for_each(|_| around.pass());
    let is_it = |alarm: &Alarm| matches!(alarm, Alarm::CheckTooSlow { object: of, .. } if *of == object(1));
    assert!(around.alarms.len() == 1 && is_it(&around.alarms[0]), "{:?}", around.alarms);
    assert!(longest < Duration::from_secs(3600 + 300), "{longest:?}");
    assert!(around.is_waiting(1));
    around.of_extent = Duration::from_secs(1);
    (0..3).for_each(|_| around.pass());
    assert!(!around.is_waiting(1), "{:?}", around.upkeep.status());
}

/// Which of them comes first differs from pass to pass: each goes on where it was.
#[test]
fn two_large_objects_that_lack_a_bookie_hold_up_no_other() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.moved = (0..3000).map(|of| moved(of, 0, 9, if of < 10 { "a" } else { "a b" })).collect();
    around.of_extent = Duration::from_millis(200);
    (1..3).for_each(|n| around.wait(n, Duration::from_secs(60)));
    around.waiting[0].extents = 3000;
    around.release(3);
    around.released.get_mut(&object(3)).unwrap().extents = 3000;
    let mut passes = 0;
    while around.is_waiting(2) {
        around.pass();
        passes += 1;
        assert!(passes < 30, "{:?}", around.upkeep.status());
    }
    assert!(around.is_waiting(1) && !around.is_deleted(3));
}
