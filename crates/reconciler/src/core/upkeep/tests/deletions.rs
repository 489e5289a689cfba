//! The proof before an object is deleted.

use super::*;

fn many(n: u32) -> ObjectId {
    let mut random = [9; 10];
    random[..4].copy_from_slice(&n.to_be_bytes());
    ObjectId::new(6, random)
}

fn kept_for(around: &Around) -> &str {
    around.upkeep.status().kept_for.as_deref().unwrap_or("nothing is kept")
}

/// Invariants 1, 2 and 6 of [`examine`].
#[test]
fn an_object_goes_right_after_each_range_was_found_elsewhere_or_its_ledger_was_deleted() {
    let mut around = Around::new(0..5, 0..5);
    around.garbage.insert(object(1));
    around.moved = vec![moved(1, 0, 9), moved(1, 10, 19), moved(2, 0, 9)];
    around.absent = vec![id(7)];
    around.pass();
    assert!(around.is_deleted(1));
    let at = |is_it: fn(&UpkeepAction) -> bool| around.done.iter().position(is_it).unwrap();
    let look = at(|action| matches!(action, UpkeepAction::WhereTo(..)));
    assert_eq!(at(|action| matches!(action, UpkeepAction::Delete(_))), look + 1, "at once");
    assert_eq!(at(|action| matches!(action, UpkeepAction::Forget(_))), look + 2);
    let status = around.upkeep.status();
    assert_eq!((status.counts.objects_deleted, status.counts.objects_forgotten), (1, 1));
    assert_eq!((status.garbage_kept, &status.kept_for), (0, &None));
}

/// Invariants 1 and 4 of [`examine`].
#[test]
fn an_object_that_a_range_may_be_needed_of_stays_and_says_why() {
    let of_itself = Moved {
        extents: vec![TierExtent { first: entry(0), last: entry(9), object: reference(object(1), 50) }],
        ..moved(3, 0, 9)
    };
    let differs = Some("entry 4 of ledger 3 is another one in object 9".to_owned());
    let cases = [
        (Moved { extents: Vec::new(), ..moved(3, 0, 9) }, "does not have entries 0 to 9 of ledger 3"),
        (Moved { last: entry(12), ..moved(3, 0, 9) }, "does not have entries 0 to 12 of ledger 3"),
        (Moved { first: entry(0), ..moved(3, 2, 9) }, "does not have entries 0 to 9 of ledger 3"),
        (of_itself, "has entries 0 to 9 of ledger 3 in it"),
        (Moved { differs, ..moved(3, 0, 9) }, "is another one"),
    ];
    for (needed, why) in cases {
        let mut around = Around::new(0..5, 0..5);
        around.garbage.insert(object(1));
        around.moved = vec![moved(1, 0, 9), needed];
        (0..2).for_each(|_| around.pass());
        assert!(!around.is_deleted(1), "{why}");
        assert!(kept_for(&around).contains(why), "{why}: {}", kept_for(&around));
        assert_eq!((around.upkeep.status().garbage_kept, around.alarms.len()), (1, 0));
        around.moved.pop();
        (0..2).for_each(|_| around.pass());
        assert!(around.is_deleted(1));
        assert_eq!((around.upkeep.status().garbage_kept, &around.upkeep.status().kept_for), (0, &None));
    }
}

/// All windows have to pass, not the first ones.
#[test]
fn the_last_extents_of_a_large_object_count_as_the_first() {
    let mut around = Around::new(0..5, 0..5);
    around.garbage.insert(object(1));
    around.extents.insert(object(1), 2000);
    around.moved = (0..2000).map(|of| moved(of, 0, 9)).collect();
    around.moved[1999].extents.clear();
    around.pass();
    assert!(!around.is_deleted(1) && kept_for(&around).contains("of ledger 1999"), "{}", kept_for(&around));
    around.moved.pop();
    around.pass();
    assert!(around.is_deleted(1));
}

/// Of an id that was reserved in vain the row goes, and nothing is examined or deleted.
#[test]
fn an_id_that_was_reserved_in_vain_loses_its_row_alone() {
    let mut around = Around::new(0..5, 0..5);
    around.garbage.insert(object(1));
    around.reserved.insert(object(1));
    around.pass();
    assert!(around.is_deleted(1));
    let is_of_object =
        |action: &UpkeepAction| matches!(action, UpkeepAction::Delete(_) | UpkeepAction::WhereTo(..));
    assert!(!around.done.iter().any(is_of_object));
}

/// Invariant 5 of [`examine`].
#[test]
fn the_row_of_an_object_goes_when_two_passes_found_the_object_gone() {
    let mut around = Around::new(0..5, 0..5);
    around.moved = vec![Moved { extents: Vec::new(), ..moved(1, 0, 9) }];
    around.garbage.insert(object(1));
    around.are_gone = true;
    around.pass();
    assert!(!around.is_deleted(1));
    assert!(around.upkeep.status().last_error.as_ref().unwrap().contains("it is not there"));
    around.pass();
    assert!(around.is_deleted(1));
    // Another one: the store did not know the access key for a moment, twice.
    around.garbage.insert(object(2));
    for _ in 0..3 {
        around.are_gone = true;
        around.pass();
        around.are_gone = false;
        around.pass();
        assert!(!around.is_deleted(2) && kept_for(&around).contains("does not have entries"));
    }
    assert!(
        !around.done.iter().any(|action| matches!(action, UpkeepAction::Delete(_))),
        "nothing was seen of it"
    );
}

/// Invariant 2 of [`examine`]: what a metadata store lacks that did not prove to be the cluster's was not deleted.
#[test]
fn a_ledger_counts_as_deleted_only_in_a_pass_with_a_proof() {
    let mut around = Around::new(0..5, 0..5);
    around.garbage.insert(object(1));
    around.absent = vec![id(7)];
    around.proof.instance_id = "another".to_owned();
    around.pass();
    assert!(!around.is_deleted(1) && kept_for(&around).contains("ledger 7 was deleted is not proved"));
    around.proof.instance_id = OURS.to_owned();
    around.pass();
    assert!(around.is_deleted(1));
    // Also when the catalogue has no ledger any more.
    let mut around = Around::new(0..0, 0..5);
    around.pass();
    around.garbage.insert(object(1));
    around.absent = vec![id(7)];
    around.pass();
    assert!(around.is_deleted(1));
}

/// What was not examined may be needed.
#[test]
fn a_footer_with_more_extents_than_were_committed_keeps_its_object() {
    let mut around = Around::new(0..5, 0..5);
    around.garbage.insert(object(1));
    around.more_extents = 1;
    around.pass();
    assert!(!around.is_deleted(1) && kept_for(&around).contains("11 extents, and 10 were committed"));
}

/// Invariant 4 of [`examine`].
#[test]
fn damaged_objects_are_one_alarm_each_and_hold_up_no_other() {
    let mut around = Around::new(0..5, 0..5);
    for n in 10..80 {
        around.garbage.insert(object(n));
        around.damaged.insert(object(n), true);
    }
    around.garbage.insert(object(90));
    around.rows = vec![stored(object(1), 100, 0.3)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    (0..3).for_each(|_| around.pass());
    let is_it = |alarm: &Alarm| matches!(alarm, Alarm::ObjectDamaged { .. });
    assert!(around.alarms.len() == 70 && around.alarms.iter().all(is_it), "{:?}", around.alarms.len());
    let status = around.upkeep.status();
    assert_eq!((status.objects_damaged, status.garbage_kept), (70, 70));
    assert!(around.is_deleted(90) && around.has_rewritten(), "they wait for an operator");
    around.damaged.clear();
    (0..2).for_each(|_| around.pass());
    assert!(around.garbage.is_empty());
    assert_eq!((around.upkeep.status().objects_damaged, around.alarms.len()), (0, 70));
}

/// They take space beside those that were made of them.
#[test]
fn nothing_is_rewritten_for_its_size_while_many_objects_are_kept() {
    let mut around = Around::new(0..5, 0..5);
    around.moved = vec![Moved { extents: Vec::new(), ..moved(1, 0, 9) }];
    around.garbage.extend((10..80).map(object));
    around.rows = vec![stored(object(1), 100, 0.3)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    around.pass();
    assert_eq!(around.upkeep.status().garbage_kept, 70);
    assert!(!around.has_rewritten());
    around.moved.clear();
    (0..2).for_each(|_| around.pass());
    assert!(around.garbage.is_empty() && around.has_rewritten());
}

/// However many objects are kept, those behind them are deleted, and the pass goes on.
#[test]
fn objects_that_are_kept_hold_up_no_other() {
    let mut around = Around::new(0..5, 0..5);
    around.moved = vec![Moved { extents: Vec::new(), ..moved(1, 0, 9) }];
    around.garbage.extend((0..3000).map(many));
    let last = ObjectId::new(9, [9; 10]);
    around.garbage.insert(last);
    around.reserved.insert(last);
    around.pass();
    assert!(!around.garbage.contains(&last) && around.garbage.len() == 3000);
    assert!(around.done.iter().any(|action| matches!(action, UpkeepAction::Scan { .. })), "the pass goes on");
    let is_search = |action: &&UpkeepAction| matches!(action, UpkeepAction::FindGarbage { .. });
    assert!(around.done.iter().filter(is_search).count() < 20);
    around.moved.clear();
    around.pass();
    assert!(around.garbage.is_empty());
}

/// A pass that has no time left goes on to other work, and the next one goes on behind what was examined, also when an object takes longer
/// than a pass has.
#[test]
fn slow_looks_end_no_pass_late_and_every_object_has_its_turn() {
    let mut around = Around::new(0..5, 0..5);
    around.moved = vec![Moved { extents: Vec::new(), ..moved(1, 0, 9) }];
    around.garbage.extend((0..100).map(many));
    around.slowness = Duration::from_secs(5);
    let looked_at = |around: &Around| -> BTreeSet<ObjectId> {
        let looks = around.done.iter().filter_map(|action| match action {
            UpkeepAction::WhereTo(object, _) => Some(object.id),
            _ => None,
        });
        looks.collect()
    };
    for pass in 1..=5 {
        let began = around.now.max(around.upkeep.wake_at().unwrap());
        around.pass();
        assert!(around.now <= began + Duration::from_secs(130), "pass {pass} ends");
        assert!(around.done.iter().any(|action| matches!(action, UpkeepAction::Scan { .. })));
    }
    assert_eq!(looked_at(&around).len(), 100);
    let age = |around: &Around| {
        let at = |is_it: fn(&UpkeepAction) -> bool| around.done.iter().filter(|action| is_it(action)).count();
        (
            at(|action| matches!(action, UpkeepAction::WhereTo(..))),
            at(|action| matches!(action, UpkeepAction::Delete(_))),
        )
    };
    let (looks, deletions) = age(&around);
    // One of many windows.
    around.extents.insert(many(50), 512 * 60);
    around.moved.clear();
    (0..8).for_each(|_| around.pass());
    assert!(around.garbage.is_empty(), "{} left", around.garbage.len());
    // Invariant 6: proofs do not wait for others for long.
    let (looks, deletions) = (age(&around).0 - looks, age(&around).1 - deletions);
    assert!(looks == 99 + 60 && deletions >= 30, "{looks} looks, {deletions} deletions");
}
