//! Rewritten objects that wait until all bookies know.

use super::*;

/// Invariant 1 of [`waiting`]: until all bookies said yes, and those that did are not asked again.
#[test]
fn a_rewritten_object_goes_when_every_bookie_knows() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[
        ("a", Ability::Reconciles),
        ("b", Ability::Reconciles),
        ("j", Ability::KeepsEverything),
    ]);
    around.wait(1, Duration::from_secs(60));
    around.moved = vec![moved(1, 0, 9, "a b j"), moved(1, 20, 29, "a b j"), moved(2, 0, 4, "a b j")];
    around.silent.insert(bookie("b"));
    around.settle();
    around.pass();
    assert_eq!(around.waiting.len(), 1, "b may refer to it");
    assert_eq!(around.upkeep.status().objects_waiting, 1);
    let why = around.upkeep.status().waits_for.clone().unwrap();
    assert!(why.contains("bookie b does not answer"), "{why}");
    // A ledger comes once in a request, so its second range comes in one of its own.
    assert_eq!(around.told(), ["a", "b", "a", "b", "b"]);
    around.done.clear();
    around.silent.clear();
    around.pass();
    assert_eq!(around.told(), ["b", "b"], "only those that did not say yes");
    assert_eq!((around.waiting.len(), around.upkeep.status().counts.objects_released), (0, 1));
    around.pass();
    assert_eq!((around.upkeep.status().objects_waiting, &around.upkeep.status().waits_for), (0, &None));
}

/// Invariant 1 of [`waiting`]: an extent that was done counts only with the ensemble of the pass that lets the object go.
#[test]
fn a_bookie_that_comes_back_to_an_ensemble_is_asked_before_the_object_goes() {
    for is_registered in [true, false] {
        let mut around = Around::new(0..5, 0..5);
        let all = ["a", "b", "c", "d", "e"].map(|name| (name, Ability::Reconciles));
        around.bookies(&all);
        around.wait(1, Duration::from_secs(60));
        // d left, and e does not answer for another extent.
        around.moved = vec![moved(1, 0, 9, "a b c"), moved(2, 0, 9, "a b c e")];
        around.silent.insert(bookie("e"));
        around.settle();
        around.pass();
        assert_eq!((around.waiting.len(), around.upkeep.waiting.left(object(1))), (1, Some(1000 - 3)));
        // d comes back, and e answers.
        around.moved[0] = moved(1, 0, 9, "a d c");
        around.silent.clear();
        around.done.clear();
        if !is_registered {
            around.bookies(&[&all[..3], &all[4..]].concat());
            around.pass();
            assert_eq!((around.told(), around.waiting.len()), (vec!["e".to_owned()], 1), "d refers to it");
            let why = around.upkeep.status().waits_for.clone().unwrap();
            assert!(why.contains("bookie d is not registered"), "{why}");
            around.done.clear();
            around.bookies(&all);
        }
        around.pass();
        let told = around.told();
        let expected: &[&str] = if is_registered { &["e", "d"] } else { &["d"] };
        assert_eq!(told, expected, "only those that did not say yes");
        assert_eq!((around.waiting.len(), around.upkeep.status().counts.objects_released), (0, 1));
    }
}

/// Invariant 1 of [`waiting`]: that a bookie keeps everything is no answer that is remembered.
#[test]
fn a_bookie_that_kept_everything_is_asked_once_it_does_not() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles), ("j", Ability::KeepsEverything)]);
    around.wait(1, Duration::from_secs(60));
    around.moved = vec![moved(1, 0, 9, "a j"), moved(2, 0, 9, "b")];
    around.settle();
    around.pass();
    assert_eq!((around.waiting.len(), around.told()), (1, vec!["a".to_owned()]));
    around.bookies(&["a", "b", "j"].map(|name| (name, Ability::Reconciles)));
    around.done.clear();
    around.pass();
    assert_eq!((around.waiting.len(), around.told()), (0, vec!["b".to_owned(), "j".to_owned()]));
}

#[test]
fn answers_are_kept_until_the_object_is_let_go_and_not_across_a_catalogue_that_is_put_back() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.wait(1, Duration::from_secs(60));
    around.moved = vec![moved(1, 0, 9, "a")];
    around.log_length = 9;
    around.settle();
    around.cannot_release = true;
    (0..3).for_each(|_| around.pass());
    assert_eq!((around.waiting.len(), around.told()), (1, vec!["a".to_owned()]), "nobody is told again");
    (around.cannot_release, around.log_length) = (false, 7);
    around.done.clear();
    around.settle();
    around.pass();
    assert_eq!((around.waiting.len(), around.told()), (0, vec!["a".to_owned()]));
    assert_eq!(around.upkeep.waiting.left(object(1)), None, "nothing is remembered of it");
}

/// Invariant 5 of [`waiting`].
#[test]
fn an_object_that_waits_and_is_damaged_is_one_alarm_and_keeps_no_other_from_being_rewritten() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.moved = vec![moved(1, 0, 9, "a")];
    for n in 10..80 {
        around.wait(n, Duration::from_secs(60));
        around.damaged.insert(object(n), true);
    }
    around.settle();
    around.rows = vec![stored(object(1), 10 << 20, 0.1)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    around.next_id = object(99);
    (0..6).for_each(|_| around.pass());
    let status = around.upkeep.status();
    assert_eq!((around.waiting.len(), around.alarms.len(), status.objects_damaged), (70, 70, 70));
    assert!(status.damaged.as_ref().unwrap().contains("footer"), "{status:?}");
    assert_eq!(status.counts.rewrites, 1, "{status:?}");
    // Brought back, they go.
    around.damaged.clear();
    (0..6).for_each(|_| around.pass());
    assert_eq!((around.waiting.len(), around.alarms.len()), (0, 70));
    around.pass();
    assert_eq!((around.upkeep.status().objects_damaged, &around.upkeep.status().damaged), (0, &None));
}

/// Invariant 1 of [`waiting`].
#[test]
fn a_rewritten_object_stays_for_a_bookie_that_is_down_or_refuses_and_for_a_ledger_in_doubt() {
    let mut around = Around::new(0..5, 0..5);
    let all = [("a", Ability::Reconciles), ("b", Ability::Reconciles)];
    around.wait(1, Duration::from_secs(60));
    around.moved = vec![moved(1, 0, 9, "a b"), Moved { metadata: None, ..moved(2, 0, 9, "a") }];
    around.settle();
    around.pass();
    assert_eq!((around.waiting.len(), around.told().len()), (1, 0), "nobody is known to be registered");
    around.bookies(&all[..1]);
    around.pass();
    assert_eq!((around.waiting.len(), around.told()), (1, vec!["a".to_owned()]), "b is down");
    around.bookies(&all);
    for status in [UpdateStatus::Busy, UpdateStatus::Failed, UpdateStatus::Behind] {
        around.status = status;
        around.pass();
        assert_eq!(around.waiting.len(), 1, "{status:?}");
    }
    around.status = UpdateStatus::NoLedger;
    around.pass();
    assert_eq!(around.waiting.len(), 1, "its ledger may be removed, or not");
    around.moved[1] = Moved { extents: Vec::new(), ..moved(2, 0, 9, "a") };
    around.pass();
    assert_eq!(around.waiting.len(), 1, "nobody knows where it is");
    around.moved.pop();
    around.pass();
    assert_eq!(around.waiting.len(), 0);
}

/// Invariant 4 of [`waiting`]: however many ledgers there are, and however slow it all is.
#[test]
fn an_object_of_thousands_of_ledgers_goes_after_some_passes() {
    let all = [("a", Ability::Reconciles), ("b", Ability::Reconciles), ("c", Ability::Reconciles)];
    let told = |around: &Around| {
        let requests = around.done.iter().filter_map(|action| match action {
            UpkeepAction::Tell(requests) => Some(requests),
            _ => None,
        });
        requests.flatten().map(|(_, updates)| updates.len()).sum::<usize>()
    };
    for (slowness, unanswered, ledgers, most) in
        [(4, None, 5500, 25), (19, None, 5500, 150), (4, Some(0), 600, 300)]
    {
        let mut around = Around::new(0..5, 0..5);
        around.bookies(&all);
        around.wait(1, Duration::from_secs(60));
        around.waiting[0].extents = ledgers as u32;
        around.moved = (0..ledgers).map(|of| moved(of, 0, 9, "a b c")).collect();
        around.settle();
        (around.slowness, around.unanswered) = (Duration::from_secs(slowness), unanswered);
        let (mut passes, mut before) = (0, usize::MAX);
        while !around.waiting.is_empty() {
            let waits = around.upkeep.waiting.left(object(1)).unwrap_or(usize::MAX - 1);
            assert!(
                waits < before || unanswered.is_some(),
                "pass {passes} of {slowness} s: {waits} are left"
            );
            (passes, before) = (passes + 1, waits);
            assert!(passes < most, "{waits} are left after {passes} passes of {slowness} s");
            let began = around.now.max(around.upkeep.wake_at().unwrap());
            around.pass();
            // The last one has the check, which goes on until its end.
            let checks = if around.waiting.is_empty() { 11 * slowness } else { 0 };
            assert!(around.now < began + Duration::from_secs(120 + 40 + slowness + checks), "a pass ends");
        }
        if unanswered.is_none() {
            assert_eq!(told(&around), 3 * ledgers as usize, "nobody is told twice of the same");
        }
    }
}

/// Invariant 4 of [`waiting`]: a catalogue that takes longer for more extents.
#[test]
fn fewer_extents_are_looked_at_while_the_catalogue_is_slow() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.wait(1, Duration::from_secs(60));
    around.waiting[0].extents = 3000;
    around.moved = (0..3000).map(|of| moved(of, 0, 9, "a")).collect();
    around.of_extent = Duration::from_millis(300);
    let mut passes = 0;
    while !around.waiting.is_empty() {
        around.pass();
        passes += 1;
        assert!(passes < 40, "{:?}", around.upkeep.status());
    }
}

/// A bookie that is down, and one that hangs, keep neither the time of the others nor what they said.
#[test]
fn objects_that_wait_for_a_bookie_hold_up_no_other() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    around.slowness = Duration::from_secs(4);
    for n in 1..=3 {
        around.wait(n, Duration::from_secs(60));
        around.waiting.last_mut().unwrap().extents = 3000;
    }
    around.moved = (0..3000).map(|of| moved(of, 0, 9, "a b")).collect();
    around.settle();
    (0..60).for_each(|_| around.pass());
    let status = around.upkeep.status();
    assert!(status.waits_for.as_ref().unwrap().contains("bookie b is not registered"), "{status:?}");
    let told = around.told().len();
    (0..10).for_each(|_| around.pass());
    assert_eq!((around.told().len(), around.waiting.len()), (told, 3), "a said all of it");
    around.done.clear();
    around.bookies(&[("a", Ability::Reconciles), ("b", Ability::Reconciles)]);
    (0..60).for_each(|_| around.pass());
    assert!(around.told().iter().all(|bookie| bookie == "b"));
    assert_eq!((around.waiting.len(), around.upkeep.status().objects_waiting), (0, 0));
}

/// Invariant 2 of [`waiting`].
#[test]
fn bookies_are_told_when_nobody_tells_them_of_the_old_object_any_more() {
    let mut around = Around::new(0..5, 0..5);
    around.bookies(&[("a", Ability::Reconciles)]);
    let settle = UpkeepSettings::default().settle;
    assert!(settle > crate::core::updates::EXTENTS_KEPT_FOR + UpdateSettings::default().timeout);
    around.wait(1, settle - Duration::from_secs(1));
    around.moved = vec![moved(1, 0, 9, "a")];
    around.settle();
    around.pass();
    assert_eq!((around.waiting.len(), around.told().len()), (0, 1));
}

/// Invariant 2 of [`waiting`]: a clock that is behind does not shorten it, nor one that is ahead.
#[test]
fn bookies_are_told_when_this_tierer_has_seen_it_for_long_enough() {
    let settle = UpkeepSettings::default().settle;
    let mut around = Around::new(0..5, 0..5);
    let interval = Duration::from_secs(1);
    let settings = UpkeepSettings { interval, ..UpkeepSettings::default() };
    around.upkeep = Upkeep::new(around.now, settings, 64 << 20, OURS.to_owned(), Canaries::none());
    around.bookies(&[("a", Ability::Reconciles)]);
    around.wait(1, Duration::from_secs(900));
    around.moved = vec![moved(1, 0, 9, "a")];
    let began = around.now;
    while !around.waiting.is_empty() {
        around.pass();
    }
    assert_eq!(around.now, began + settle, "the record says that it was long ago");
    around.wait(2, Duration::ZERO);
    let began = around.now;
    while !around.waiting.is_empty() {
        around.pass();
    }
    assert_eq!(around.now, began + settle, "the record says that it was just now, and was seen before");
}
