//! Scripts of the deletion: the rows of its part of the crash matrix (docs/reference/tiering.md). After each, nothing is left of the
//! deleted ledger, and everything of the others is there.

use super::*;
use crate::core::upkeep::UpkeepAction;

const LEFT: i64 = 2;

/// Two ledgers in the tier, of which the first is deleted. Objects hold one ledger each.
fn world() -> World {
    let mut world = World::new(1, 1, 3);
    world.settings.object_bytes_max = 25 * ENTRY_BYTES;
    world.start(0, Canaries::none());
    world.add_ledger(1, 20, true);
    world.add_ledger(LEFT, 20, true);
    world.run(Duration::from_secs(30));
    world.assert_complete();
    assert_eq!(world.bucket.len(), 2);
    world.delete_ledger(1);
    world
}

impl World {
    /// Goes on until the upkeep has asked for something like this, which has not arrived.
    fn until_upkeep(&mut self, is_it: impl Fn(&UpkeepAction) -> bool) {
        for _ in 0..10_000 {
            let work = self.tierers[0].keeper.as_ref().and_then(|keeper| keeper.work.as_ref());
            if work.is_some_and(|(action, event)| event.is_none() && is_it(action)) {
                return;
            }
            if !self.deliver_upkeep(0, Fate::Works) {
                self.pass(Duration::from_secs(1));
            }
        }
        panic!("the upkeep does not come to it");
    }

    /// It dies, with what it asked for last on its way or not; another one does the rest.
    fn die_and_start(&mut self, arrives: bool) {
        self.crash(0);
        match arrives {
            true => self.deliver_stray(),
            false => self.estate.strays.clear(),
        }
        self.start(0, Canaries::none());
        self.run(Duration::from_secs(120));
        self.assert_tidy();
        self.assert_complete();
        let of_left = self.bucket.values().filter(|new| new.extents.iter().all(|e| e.ledger == ledger(LEFT)));
        assert_eq!((of_left.count(), self.bucket.len()), (1, 1));
        assert_eq!(self.catalogue.totals().unreferenced, 0);
    }
}

#[test]
fn before_the_removal_is_committed_or_during_that() {
    for arrives in [false, true] {
        let mut world = world();
        world.until_upkeep(|action| matches!(action, UpkeepAction::Remove(_)));
        assert_eq!(world.bucket.len(), 2, "nothing goes before its reference");
        world.die_and_start(arrives);
    }
}

#[test]
fn after_the_removal() {
    let mut world = world();
    world.until_upkeep(|action| matches!(action, UpkeepAction::Remove(_)));
    world.until_upkeep(|action| matches!(action, UpkeepAction::FindGarbage { .. }));
    assert_eq!((world.tiered(ledger(1)), world.bucket.len()), (None, 2));
    world.die_and_start(false);
}

#[test]
fn objects_wait_for_the_delay() {
    let mut world = world();
    world.until_upkeep(|action| matches!(action, UpkeepAction::Remove(_)));
    let since = world.now;
    world.until_upkeep(|action| matches!(action, UpkeepAction::Delete(_)));
    assert!(world.now >= since + world.settings.upkeep.delete_delay);
    world.die_and_start(false);
}

#[test]
fn during_the_deletion_of_an_object() {
    for arrives in [false, true] {
        let mut world = world();
        world.until_upkeep(|action| matches!(action, UpkeepAction::Delete(_)));
        world.die_and_start(arrives);
    }
}

#[test]
fn after_the_deletion_before_its_row_is_forgotten_or_during_that() {
    for arrives in [false, true] {
        let mut world = world();
        world.until_upkeep(|action| matches!(action, UpkeepAction::Forget(_)));
        assert_eq!(world.bucket.len(), 1);
        assert_eq!(world.catalogue.totals().unreferenced, 1, "the row goes after its object");
        world.die_and_start(arrives);
    }
}

/// A dead tierer's commit of the first entries of a ledger arrives after the ledger was removed.
#[test]
fn a_late_commit_of_a_removed_ledger_is_removed_again() {
    let mut world = world();
    let id = world.draw(1)[0];
    world.commit(&[], &[id]);
    world.until_upkeep(|action| matches!(action, UpkeepAction::Remove(_)));
    world.until_upkeep(|action| matches!(action, UpkeepAction::FindGarbage { .. }));
    let extent = NewExtent {
        ledger: ledger(1),
        first: entry(0),
        last: entry(4),
        bytes: 5 * ENTRY_BYTES,
        created_ms: None,
    };
    let object = ObjectRef { id, length_bytes: 9, footer_offset: 1, footer_crc: 1, etag_crc: 1 };
    let new = NewObject { object, extents: vec![extent] };
    world.bucket.insert(id, new.clone());
    world.written.insert(id, world.now);
    world.commit(&[new], &[]);
    assert_eq!(world.tiered(ledger(1)), Some(entry(4)));
    world.die_and_start(false);
}

/// T17.
#[test]
fn a_metadata_store_that_lost_everything_removes_nothing() {
    let mut world = world();
    world.run(Duration::from_secs(60));
    world.estate.wiped = 1.0;
    world.run(Duration::from_secs(60));
    let keeper = world.tierers[0].keeper.as_ref().unwrap();
    assert!(matches!(keeper.alarms[..], [Alarm::LedgersNotRemoved { .. }]), "{:?}", keeper.alarms);
    assert!(world.tiered(ledger(LEFT)).is_some());
    world.estate.wiped = 0.0;
    world.die_and_start(false);
}

#[test]
fn without_permission_to_delete_rows_and_objects_stay() {
    let mut world = world();
    world.estate.is_denied = true;
    world.run(Duration::from_secs(120));
    assert_eq!((world.bucket.len(), world.catalogue.totals().unreferenced), (2, 1));
    let keeper = world.tierers[0].keeper.as_ref().unwrap();
    assert!(matches!(keeper.alarms[..], [Alarm::CannotDelete { .. }]), "{:?}", keeper.alarms);
    world.estate.is_denied = false;
    world.die_and_start(false);
}

/// An upload that ends after its id was forgotten: the scan finds it, and it goes on the word of its footer.
fn orphan(world: &mut World, of: i64, first: i64, last: i64) -> ObjectId {
    let id = world.draw(1)[0];
    let object = ObjectRef { id, length_bytes: 9, footer_offset: 1, footer_crc: 1, etag_crc: 1 };
    let bytes = (last - first + 1) as u64 * ENTRY_BYTES;
    let extents = vec![NewExtent {
        ledger: ledger(of),
        first: entry(first),
        last: entry(last),
        bytes,
        created_ms: None,
    }];
    world.bucket.insert(id, NewObject { object, extents });
    world.written.insert(id, world.now);
    id
}

#[test]
fn an_object_without_a_row_goes_after_the_delay_when_others_have_its_entries_or_its_ledger_is_gone() {
    // Ledger 1 was deleted.
    for of in [LEFT, 1] {
        let mut world = world();
        let id = orphan(&mut world, of, 0, 9);
        let since = world.now;
        world.until_upkeep(|action| matches!(action, UpkeepAction::Delete(objects) if objects.contains(&id)));
        assert!(world.now >= since + world.settings.upkeep.delete_delay);
        world.die_and_start(false);
    }
}

/// The catalogue has no row for it, and lacks its entries: they may be nowhere else.
#[test]
fn an_object_whose_entries_no_other_has_stays() {
    let mut world = world();
    world.grow(LEFT, 0);
    let id = orphan(&mut world, LEFT, 15, 24);
    world.run(Duration::from_secs(300));
    let keeper = world.tierers[0].keeper.as_ref().unwrap();
    let status = keeper.core.status();
    assert!(world.bucket.contains_key(&id) && status.scan.orphans_kept == 1, "{status:?}");
    assert!(status.orphan_kept.as_ref().unwrap().contains("entries 15 to 24 of ledger 2"), "{status:?}");
    assert!(status.deletions_stopped.is_none(), "it holds up nothing else: {status:?}");
}

/// A bookie that knows it, and is away, does not keep it: it asks the catalogue when it finds the object gone.
#[test]
fn an_object_without_a_row_goes_while_a_bookie_is_away() {
    let mut world = world();
    let id = orphan(&mut world, LEFT, 0, 9);
    world.bookies.get_mut(&bookie(1)).unwrap().ability = Ability::Absent;
    world.tell_bookies(0);
    world.run(Duration::from_secs(120));
    assert!(!world.bucket.contains_key(&id));
}

/// More than the limit: the catalogue is not believed, and nothing goes, neither they nor what nothing refers to.
#[test]
fn many_objects_without_a_row_stop_all_deletions() {
    let mut world = world();
    world.settings.upkeep.orphan_limits.always = 2;
    world.crash(0);
    world.start(0, Canaries::none());
    let ids: Vec<ObjectId> = (0..3).map(|_| orphan(&mut world, LEFT, 0, 9)).collect();
    // All of them are old enough at once.
    world.written.extend(ids.iter().map(|id| (*id, ORIGIN)));
    world.run(Duration::from_secs(300));
    let keeper = world.tierers[0].keeper.as_ref().unwrap();
    let stopped = keeper.core.status().deletions_stopped.clone().unwrap();
    assert!(stopped.contains("3 of ") && stopped.contains("bindery tier rebuild"), "{stopped}");
    let is_alarm = |alarm: &Alarm| matches!(alarm, Alarm::DeletionsStopped { .. });
    assert_eq!(keeper.alarms.iter().filter(|alarm| is_alarm(alarm)).count(), 1, "{:?}", keeper.alarms);
    assert!(ids.iter().all(|id| world.bucket.contains_key(id)));
    // Another ledger that is deleted stays in the catalogue.
    world.add_ledger(3, 20, true);
    world.run(Duration::from_secs(30));
    world.delete_ledger(3);
    world.add_ledger(4, 20, true);
    world.run(Duration::from_secs(120));
    assert!(world.tiered(ledger(3)).is_some() && world.tiered(ledger(4)).is_some());
    // Fewer, and all of it goes.
    world.bucket.remove(&ids[0]);
    world.run(Duration::from_secs(120));
    assert!(world.tiered(ledger(3)).is_none());
    assert!(ids.iter().all(|id| !world.bucket.contains_key(id)));
    assert!(world.tierers[0].keeper.as_ref().unwrap().core.status().deletions_stopped.is_none());
}

/// A large set of objects without a row may be as it should be. It ends by itself: each goes that is proved to be needed by nobody.
#[test]
fn many_objects_without_a_row_go_on_their_own_proof_in_the_end() {
    let mut world = world();
    world.settings.upkeep.orphan_limits.always = 2;
    world.settings.upkeep.orphan_hold = Duration::from_secs(200);
    world.crash(0);
    world.start(0, Canaries::none());
    let mut ids: Vec<ObjectId> = (0..3).map(|_| orphan(&mut world, LEFT, 0, 9)).collect();
    ids.push(orphan(&mut world, 1, 0, 9));
    let needed: Vec<ObjectId> = (0..3).map(|_| orphan(&mut world, LEFT, 15, 25)).collect();
    world.add_ledger(3, 20, true);
    world.run(Duration::from_secs(60));
    world.delete_ledger(3);
    world.run(Duration::from_secs(90));
    assert!(ids.iter().chain(&needed).all(|id| world.bucket.contains_key(id)));
    assert!(world.tiered(ledger(3)).is_some(), "it was deleted, and that waits");
    world.run(Duration::from_secs(200));
    assert!(world.tiered(ledger(3)).is_none());
    assert!(ids.iter().all(|id| !world.bucket.contains_key(id)));
    assert!(
        needed.iter().all(|id| world.bucket.contains_key(id)),
        "the catalogue has no other place of their entries"
    );
}

/// A catalogue that cannot be followed, and a ledger that a bookie knows better, stop everything that deletes, until that is over.
#[test]
fn a_catalogue_in_doubt_stops_all_deletions() {
    let mut world = world();
    world.until_upkeep(|action| matches!(action, UpkeepAction::Delete(_)));
    world.crash(0);
    world.estate.strays.clear();
    world.fault = Some("a record is missing".to_owned());
    world.start(0, Canaries::none());
    world.run(Duration::from_secs(120));
    assert_eq!(world.bucket.len(), 2);
    world.fault = None;
    world.run(Duration::from_secs(60));
    assert_eq!(world.bucket.len(), 1);
    let mut world = self::world();
    world.bookies.get_mut(&bookie(0)).unwrap().told.get_mut(&ledger(LEFT)).unwrap().register =
        Some(entry(25));
    world.was_put_back = true;
    world.crash(0);
    world.start(0, Canaries::none());
    world.run(Duration::from_secs(120));
    assert_eq!((world.bucket.len(), world.tierers[0].alarms.len()), (2, 1), "T2");
    assert!(world.tierers[0].keeper.as_ref().unwrap().core.status().deletions_stopped.is_some());
}

impl World {
    /// The check of the world would see that an object is missing: only the upkeep acts, for a while. Returns its alarms.
    fn only_keep_up(&mut self) -> Vec<Alarm> {
        let mut alarms = Vec::new();
        for _ in 0..200 {
            let keeper = self.tierers[0].keeper.as_mut().unwrap();
            let Some((action, _)) = keeper.work.take() else {
                self.now += Duration::from_secs(1);
                self.keep_up(0);
                continue;
            };
            let event = self.arrive_upkeep(Some(0), &action, Fate::Works);
            let keeper = self.tierers[0].keeper.as_mut().unwrap();
            keeper.core.on_event(self.now, event, &mut alarms);
            self.keep_up(0);
        }
        alarms
    }
}

fn stopped(world: &World) -> Option<String> {
    world.tierers[0].keeper.as_ref().unwrap().core.status().deletions_stopped.clone()
}

/// What the doubt about a missing object names ends it: the ledgers in it are deleted. Nothing else goes before.
#[test]
fn ledgers_of_a_missing_object_can_be_deleted() {
    let mut world = world();
    world.until_upkeep(|action| matches!(action, UpkeepAction::Ledgers));
    world.add_ledger(3, 20, true);
    world.run(Duration::from_secs(15));
    let of = |world: &World, id: i64| {
        let is_of = |new: &NewObject| new.extents.iter().all(|extent| extent.ledger == ledger(id));
        world.bucket.iter().find(|(_, new)| is_of(new)).map(|(id, _)| *id)
    };
    let lost = of(&world, 3).unwrap();
    world.bucket.remove(&lost);
    assert!(world.only_keep_up().contains(&Alarm::ObjectMissing { object: lost }));
    assert!(stopped(&world).unwrap().contains(&lost.to_string()));
    world.delete_ledger(3);
    world.only_keep_up();
    assert_eq!((world.tiered(ledger(3)), stopped(&world)), (None, None));
    assert!(world.tiered(ledger(LEFT)).is_some() && of(&world, LEFT).is_some());
}

/// An object that somebody else deleted is one alarm.
#[test]
fn an_object_that_is_missing_is_an_alarm() {
    let mut world = World::new(1, 1, 3);
    world.start(0, Canaries::none());
    world.add_ledger(LEFT, 20, true);
    world.run(Duration::from_secs(30));
    let id = *world.bucket.keys().next().unwrap();
    let kept = world.bucket.remove(&id).unwrap();
    assert_eq!(world.only_keep_up(), [Alarm::ObjectMissing { object: id }]);
    assert!(stopped(&world).unwrap().contains(&id.to_string()), "nothing is deleted meanwhile");
    world.bucket.insert(id, kept);
    world.run(Duration::from_secs(30));
    assert_eq!(stopped(&world), None, "it is back");
    world.check();
}

/// An id that is used again: the extents of the ledger before go first, whatever they are, and the new one begins with its first entry.
#[test]
fn a_ledger_that_was_created_again_is_tiered_from_its_beginning() {
    for (before, after) in [(20, 20), (20, 5), (5, 20)] {
        let mut world = World::new(1, 1, 3);
        world.settings.object_bytes_max = 25 * ENTRY_BYTES;
        world.start(0, Canaries::none());
        for (id, entries) in [(1, before), (LEFT, 20)] {
            world.add_ledger(id, entries, false);
            world.ledgers.get_mut(&ledger(id)).unwrap().metadata.created_ms = Some(100);
            world.seal(id);
        }
        world.run(Duration::from_secs(30));
        world.assert_complete();
        let of_before: Vec<ObjectId> = world
            .bucket
            .iter()
            .filter(|(_, new)| new.extents.iter().all(|extent| extent.ledger == ledger(1)))
            .map(|(id, _)| *id)
            .collect();
        world.add_ledger(1, after, false);
        world.ledgers.get_mut(&ledger(1)).unwrap().metadata.created_ms = Some(200);
        world.seal(1);
        // A tierer that has known the ledger hears that it was deleted; one that starts does not.
        world.crash(0);
        world.estate.strays.clear();
        world.start(0, Canaries::none());
        world.run(Duration::from_secs(300));
        world.assert_complete();
        assert_eq!(world.place(ledger(1)).created_ms, Some(200));
        assert!(
            of_before.iter().all(|object| !world.bucket.contains_key(object)),
            "{before} and {after} entries"
        );
        assert_eq!(world.place(ledger(LEFT)).created_ms, Some(100), "the other one is as it was");
    }
}
