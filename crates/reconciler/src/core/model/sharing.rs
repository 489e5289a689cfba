//! Tierers of which one lives and cannot do its part (T20).

use super::*;
use crate::core::upkeep::UpkeepAction;

/// Two that share, in a world of closed ledgers on all bookies.
fn world(ledgers: i64) -> World {
    let mut world = World::new(1, 2, 3);
    (0..ledgers).for_each(|id| world.add_ledger(id, 10, true));
    for tierer in 0..2 {
        world.start(tierer, Canaries::none());
    }
    (0..2).for_each(|tierer| world.tell_tierers(tierer));
    world
}

fn is_unable(world: &World) -> [bool; 2] {
    [0, 1].map(|tierer| world.core(tierer).unable().is_some())
}

/// The ledgers of one that does not reach the bucket are moved by the other, until it does again.
#[test]
fn what_one_cannot_move_the_other_moves() {
    let mut world = world(20);
    world.cut_off = Some(0);
    world.run_sharing(Duration::from_secs(15), true);
    let own = |world: &World, tierer: usize| {
        let is_own = |id: &i64| world.core(tierer).team().owns_ledger(ledger(*id));
        (0..20).filter(is_own).count()
    };
    assert_eq!((is_unable(&world), own(&world, 0) + own(&world, 1)), ([false, false], 20));
    world.run_sharing(Duration::from_secs(45), true);
    world.assert_complete();
    assert_eq!((is_unable(&world), own(&world, 1)), ([true, false], 20));
    // It moved a part, and cannot any more.
    world.cut_off = None;
    world.run_sharing(Duration::from_secs(20), true);
    assert_eq!((is_unable(&world), own(&world, 0) + own(&world, 1)), ([false, false], 20));
    (20..40).for_each(|id| world.add_ledger(id, 10, true));
    world.run_sharing(Duration::from_secs(30), true);
    assert!(
        (0..2).all(|tierer| world.core(tierer).status(world.now).counts.extents > 0),
        "each has a part again"
    );
    world.cut_off = Some(1);
    (40..60).for_each(|id| world.add_ledger(id, 10, true));
    world.run_sharing(Duration::from_secs(60), true);
    world.assert_complete();
    assert_eq!(is_unable(&world), [false, true]);
}

/// While nobody reaches the bucket, all keep their parts, and nothing is uploaded twice when it is back.
#[test]
fn if_none_can_work_nothing_changes_hands() {
    let mut world = world(20);
    world.run_sharing(Duration::from_secs(10), true);
    let parts = |world: &World| [0, 1].map(|tierer| world.core(tierer).status(world.now).own);
    let before = parts(&world);
    world.fault = Some("503".to_owned());
    (20..40).for_each(|id| world.add_ledger(id, 10, true));
    world.run_sharing(Duration::from_secs(90), true);
    assert_eq!(is_unable(&world), [true, true]);
    world.fault = None;
    world.run_sharing(Duration::from_secs(60), true);
    world.assert_complete();
    assert_eq!(is_unable(&world), [false, false]);
    assert!(before.iter().all(|part| *part > 0));
    let corrections = [0, 1].map(|tierer| world.core(tierer).status(world.now).counts.corrections);
    assert_eq!(corrections, [0, 0]);
}

/// Objects that one may not delete are deleted by the other, also after both were refused.
#[test]
fn what_one_may_not_delete_the_other_deletes() {
    let mut world = world(20);
    world.run_sharing(Duration::from_secs(30), true);
    let keeper = (0..2).find(|tierer| world.core(*tierer).team().owns_upkeep()).unwrap();
    let may_not = |world: &World| {
        [0, 1].map(|tierer| world.tierers[tierer].keeper.as_ref().unwrap().core.unable().is_some())
    };
    world.estate.denied_to = Some(keeper);
    (0..20).for_each(|id| world.delete_ledger(id));
    // So that the listing is believed.
    world.add_ledger(20, 5, true);
    world.run_sharing(Duration::from_secs(120), true);
    assert!(may_not(&world)[keeper] && !may_not(&world)[1 - keeper]);
    assert!(world.core(1 - keeper).team().owns_upkeep());
    world.assert_tidy();
    world.estate.denied_to = None;
    world.run_sharing(Duration::from_secs(30), true);
    assert_eq!(may_not(&world), [false, false], "it finds out that it may");
    assert!(world.core(keeper).team().owns_upkeep());
}

/// What the upkeep of one fails to do, pass after pass, the other does, until the first can do it again. Nobody has to help.
#[test]
fn what_fails_in_the_upkeep_of_one_the_other_does() {
    let kinds: [(&str, upkeep::ActionKind); 7] = [
        ("ledgers", |action| matches!(action, UpkeepAction::Ledgers)),
        ("prove", |action| matches!(action, UpkeepAction::Prove)),
        ("look again", |action| matches!(action, UpkeepAction::LookAgain(_))),
        ("garbage", |action| matches!(action, UpkeepAction::FindGarbage { .. })),
        ("delete", |action| matches!(action, UpkeepAction::Delete(_) | UpkeepAction::TryDeletion)),
        ("change", |action| matches!(action, UpkeepAction::Remove(_) | UpkeepAction::Forget(_))),
        ("scan", |action| matches!(action, UpkeepAction::Scan { .. })),
    ];
    for (name, is_it) in kinds {
        let mut world = world(20);
        world.run_sharing(Duration::from_secs(30), true);
        let keeper = (0..2).find(|tierer| world.core(*tierer).team().owns_upkeep()).unwrap();
        let cannot = |world: &World| {
            let of = |tierer: usize| world.tierers[tierer].keeper.as_ref();
            [0, 1].map(|tierer| of(tierer).is_some_and(|keeper| keeper.core.unable().is_some()))
        };
        world.estate.failing = Some((keeper, is_it));
        (0..20).for_each(|id| world.delete_ledger(id));
        world.add_ledger(20, 5, true);
        world.run_sharing(Duration::from_secs(150), true);
        assert!(cannot(&world)[keeper] && !cannot(&world)[1 - keeper], "{name}: {:?}", cannot(&world));
        assert!(world.core(1 - keeper).team().owns_upkeep(), "{name}");
        assert_eq!(is_unable(&world), [false, false], "{name}: ledgers are another matter");
        world.assert_tidy();
        // The other one dies: the first goes on trying, and does it as soon as it can.
        world.crash(1 - keeper);
        world.delete_ledger(20);
        world.add_ledger(21, 5, true);
        world.run_sharing(Duration::from_secs(60), true);
        assert!(world.core(keeper).team().owns_upkeep() && cannot(&world)[keeper], "{name}");
        world.start(1 - keeper, Canaries::none());
        world.run_sharing(Duration::from_secs(10), true);
        assert!(!world.core(keeper).team().owns_upkeep(), "{name}: it is known to fail");
        world.estate.failing = None;
        world.run_sharing(Duration::from_secs(60), true);
        assert_eq!(cannot(&world), [false, false], "{name}: it finds out that it works");
        world.assert_tidy();
    }
}

/// A doubt that one has stops the deletions of both, and for a time after it was heard last.
#[test]
fn the_doubt_of_one_stops_the_deletions_of_all() {
    let mut world = world(6);
    world.run_sharing(Duration::from_secs(30), true);
    let keeper = (0..2).find(|tierer| world.core(*tierer).team().owns_upkeep()).unwrap();
    let deleted =
        |world: &World| world.tierers[keeper].keeper.as_ref().unwrap().core.status().counts.objects_deleted;
    let other = world.tierers[1 - keeper].core.as_mut().unwrap();
    other.gaps.insert(ledger(0), "ledger 0 has a gap".to_owned());
    (0..6).for_each(|id| world.delete_ledger(id));
    world.add_ledger(6, 5, true);
    world.run_sharing(Duration::from_secs(60), true);
    assert_eq!(deleted(&world), 0);
    // Neither that the doubt cannot be asked for any more ends it,
    world.event(keeper, Event::TierersUnknown("no session".to_owned()));
    world.tierers[1 - keeper].core.as_mut().unwrap().gaps.clear();
    world.run(Duration::from_secs(120));
    assert_eq!(deleted(&world), 0);
    // nor that it is not there at this moment.
    world.tell_tierers(keeper);
    world.run(Duration::from_secs(9));
    assert_eq!(deleted(&world), 0);
    world.run_sharing(Duration::from_secs(60), true);
    assert!(deleted(&world) > 0);
    world.assert_tidy();
}

/// One that begins has heard of no doubt, which does not say that there is none.
#[test]
fn one_that_begins_deletes_nothing_before_others_could_have_told_their_doubts() {
    let mut world = world(6);
    world.run_sharing(Duration::from_secs(30), true);
    let keeper = (0..2).find(|tierer| world.core(*tierer).team().owns_upkeep()).unwrap();
    let other = world.tierers[1 - keeper].core.as_mut().unwrap();
    other.gaps.insert(ledger(0), "ledger 0 has a gap".to_owned());
    (0..6).for_each(|id| world.delete_ledger(id));
    world.add_ledger(6, 5, true);
    world.run_sharing(Duration::from_secs(60), true);
    let deleted =
        |world: &World| world.tierers[keeper].keeper.as_ref().unwrap().core.status().counts.ledgers_removed;
    assert_eq!(deleted(&world), 0);
    world.crash(keeper);
    world.start(keeper, Canaries::none());
    world.run(Duration::from_secs(9));
    assert_eq!(deleted(&world), 0, "it knows of nobody yet");
    world.run_sharing(Duration::from_secs(30), true);
    assert_eq!(deleted(&world), 0, "and now of the doubt");
    // The other one takes its doubt along.
    world.crash(1 - keeper);
    world.run_sharing(Duration::from_secs(60), true);
    assert!(deleted(&world) > 0);
    world.assert_tidy();
}

/// An object that one finds missing stops the deletions of the other, also once the first is gone. To delete its ledgers stays the remedy.
#[test]
fn a_missing_object_is_known_to_all_and_its_ledgers_can_be_removed() {
    let mut world = world(1);
    world.run_sharing(Duration::from_secs(30), true);
    let lost = *world.bucket.keys().next().unwrap();
    // Each scans by itself: only the first one is told here that the object is not there.
    let keeper = |world: &World, tierer: usize| world.tierers[tierer].keeper.clone().unwrap().core;
    let first = (0..2).find(|tierer| !world.core(*tierer).team().owns_upkeep()).unwrap();
    let length = world.bucket[&lost].object.length_bytes;
    let find = |world: &mut World, missing: &[ObjectId]| {
        let found = world.tierers[first].keeper.as_mut().unwrap();
        found.core.note_missing(&[(lost, length)], missing);
    };
    find(&mut world, &[lost]);
    world.tell_tierers(1 - first);
    world.event(1 - first, Event::Time);
    let status = keeper(&world, 1 - first).status().deletions_stopped.clone();
    assert!(status.unwrap().contains(&lost.to_string()));
    // It is heard, and not found: nothing is told on.
    assert_eq!(
        (keeper(&world, 1 - first).own_missing(9), keeper(&world, 1 - first).own_doubt()),
        (vec![], None)
    );
    assert!(keeper(&world, 1 - first).may_remove_ledgers());
    // It looks for itself, and the object is there.
    find(&mut world, &[]);
    world.run_sharing(Duration::from_secs(30), true);
    assert_eq!(keeper(&world, 1 - first).status().deletions_stopped, None);
    // It is not there, and the one that found that dies.
    find(&mut world, &[lost]);
    world.tell_tierers(1 - first);
    world.bucket.remove(&lost);
    world.is_diverged = true;
    world.crash(first);
    world.run_sharing(Duration::from_secs(60), true);
    assert_eq!(keeper(&world, 1 - first).own_missing(9), [(lost, length)]);
    assert!(keeper(&world, 1 - first).status().deletions_stopped.is_some());
    world.delete_ledger(0);
    world.add_ledger(1, 5, true);
    world.run_sharing(Duration::from_secs(60), true);
    assert_eq!(world.tiered(ledger(0)), None);
    assert_eq!(keeper(&world, 1 - first).status().deletions_stopped, None);
}
