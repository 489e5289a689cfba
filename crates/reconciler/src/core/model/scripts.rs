//! Scripts: the acceptance tests of the tierer, and the rows of its crash matrix (docs/reference/tiering.md). After each, everything
//! that is closed is in the tier, and `World::check` held after every step.

use super::*;

fn no_canary() -> Canaries {
    Canaries::none()
}

fn world() -> World {
    let mut world = World::new(1, 1, 3);
    world.start(0, no_canary());
    world
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn is_build(action: &Action) -> bool {
    matches!(action, Action::Build(_))
}

fn is_commit(action: &Action) -> bool {
    matches!(action, Action::Commit { .. })
}

fn is_update(action: &Action) -> bool {
    matches!(action, Action::Update(request) if request.ledgers.iter().any(|update| update.last.is_some()))
}

impl World {
    /// Takes a sent action one step: it has its effect, and its answer stays pending until the script drops it or crashes its tierer.
    fn arrive_only(&mut self, index: usize) {
        self.deliver(index, Fate::Works);
    }

    fn answer_with(&mut self, index: usize, fate: Fate) {
        let action = self.pending[index].action.clone();
        self.deliver(index, fate);
        let is_it = |pending: &Part<Pending>| pending.action == action && pending.step != Step::Sent;
        if let Some(index) = self.pending.iter().position(is_it) {
            self.deliver(index, Fate::Works);
        }
    }

    fn objects(&self) -> usize {
        self.bucket.len()
    }

    fn counts(&self) -> measure::Counts {
        self.core(0).status(self.now).counts
    }

    fn register(&self, name: usize, id: i64) -> Option<EntryId> {
        self.bookies[&bookie(name)].told.get(&ledger(id)).and_then(|told| told.register)
    }
}

// Acceptance tests.

#[test]
fn an_empty_cluster_uploads_and_reserves_nothing() {
    let mut world = world();
    world.add_ledger(1, 0, true);
    world.add_ledger(2, 0, false);
    world.run(seconds(60));
    assert_eq!((world.objects(), world.catalogue.position().number), (0, 0));
    assert_eq!(world.core(0).status(world.now).done, 1, "a closed ledger without entries is done");
}

#[test]
fn rounds_in_which_nothing_is_due_upload_and_reserve_nothing() {
    let mut world = world();
    world.add_ledger(1, 10, true);
    world.run(seconds(30));
    let (objects, number) = (world.objects(), world.catalogue.position().number);
    world.run(seconds(600));
    assert_eq!((world.objects(), world.catalogue.position().number), (objects, number));
    assert!(world.counts().idle_rounds > 10);
}

#[test]
fn one_ledger_is_tiered_and_its_bookies_are_told() {
    let mut world = world();
    world.add_ledger(1, 10, true);
    world.run(seconds(30));
    world.assert_complete();
    assert_eq!((world.objects(), world.counts().entries), (1, 10));
    let status = world.core(0).status(world.now);
    assert_eq!((status.watched, status.done, status.lag), (0, 1, Lag::default()));
    assert_eq!((status.updates.requests, status.updates.reconciled), (6, 1), "asked, then told");
}

#[test]
fn several_ledgers_share_an_object_and_a_commit() {
    let mut world = world();
    (0..8).for_each(|id| world.add_ledger(id, 10, true));
    world.run(seconds(30));
    world.assert_complete();
    assert_eq!(world.objects(), 1, "80 entries are an object");
    assert_eq!((world.counts().commits, world.counts().extents), (1, 8));
}

#[test]
fn what_is_more_than_an_object_takes_several_rounds() {
    let mut world = world();
    world.settings.objects_max = 1;
    world.start(0, no_canary());
    world.add_ledger(1, 500, true);
    world.run(seconds(60));
    world.assert_complete();
    assert!(world.objects() >= 7, "{} objects of 80 entries", world.objects());
    assert!(world.bucket.values().all(|new| new.object.length_bytes <= world.settings.object_bytes_max));
}

/// T14.
#[test]
fn of_two_large_ledgers_each_has_its_turn() {
    let mut world = world();
    world.settings.objects_max = 1;
    world.start(0, no_canary());
    world.add_ledger(1, 300, true);
    world.add_ledger(2, 300, true);
    let mut turns = Vec::new();
    while turns.len() < 6 {
        let index = world.until("build", is_build);
        let Action::Build(order) = &world.pending[index].action else { unreachable!() };
        turns.push(order.ledgers[0].ledger.get());
        world.answer_with(index, Fate::Works);
    }
    assert_eq!(turns, [1, 2, 1, 2, 1, 2]);
}

#[test]
fn one_ledger_that_cannot_be_read_leaves_the_others() {
    let mut world = world();
    (0..4).for_each(|id| world.add_ledger(id, 10, true));
    world.ledgers.get_mut(&ledger(2)).unwrap().is_unreadable = true;
    world.run(seconds(60));
    world.assert_complete();
    assert_eq!(world.tiered(ledger(2)), None);
    let status = world.core(0).ledger(world.now, ledger(2)).unwrap();
    assert!(matches!(status.state, State::Failing(_)), "{status:?}");
    world.ledgers.get_mut(&ledger(2)).unwrap().is_unreadable = false;
    world.run(seconds(120));
    world.assert_complete();
}

/// T7.
#[test]
fn a_commit_that_fails_moves_no_lre() {
    let mut world = world();
    world.add_ledger(1, 10, true);
    world.settings.commit_patience = seconds(3);
    world.start(0, no_canary());
    for _ in 0..4 {
        let index = world.until("commit", is_commit);
        world.answer_with(index, Fate::Fails);
        world.pass(seconds(1));
        assert_eq!(world.register(0, 1), None);
    }
    world.run(seconds(60));
    world.assert_complete();
}

/// T6.
#[test]
fn a_commit_that_fails_for_a_moment_is_sent_again() {
    for fate in [Fate::Fails, Fate::AnswerLost] {
        let mut world = world();
        world.add_ledger(1, 10, true);
        let index = world.until("commit", is_commit);
        world.answer_with(index, fate);
        world.run(seconds(30));
        world.assert_complete();
        assert_eq!((world.objects(), world.counts().commit_retries, world.counts().corrections), (1, 1, 0));
    }
}

#[test]
fn an_upload_that_fails_is_made_again_under_another_id() {
    for fate in [Fate::Fails, Fate::AnswerLost] {
        let mut world = world();
        world.add_ledger(1, 10, true);
        let index = world.until("build", is_build);
        world.deliver(index, Fate::Works);
        let index = world.pending.iter().position(|pending| pending.step == Step::Begun).unwrap();
        world.deliver(index, fate);
        world.run(seconds(30));
        world.assert_complete();
        assert_eq!((world.begun.len(), world.counts().upload_failures), (2, 1));
    }
}

#[test]
fn an_lre_that_fails_catches_up_without_another_upload() {
    let mut world = world();
    (0..3).for_each(|id| world.add_ledger(id, 10, true));
    world.until("update", is_update);
    // Ledger 1 hangs, at two of its three bookies.
    for index in [0, 1] {
        world.bookies.get_mut(&bookie(index)).unwrap().hangs_on.insert(ledger(1));
    }
    world.run(seconds(20));
    assert_eq!([0, 1, 2].map(|id| world.register(2, id)), [Some(entry(9)); 3]);
    assert_eq!((world.register(0, 0), world.register(0, 2)), (Some(entry(9)), Some(entry(9))));
    assert_eq!(world.register(0, 1), None);
    assert_eq!(world.core(0).status(world.now).updates.late, 1);
    let objects = world.objects();
    world.bookies.values_mut().for_each(|bookie| bookie.hangs_on.clear());
    world.run(seconds(60));
    world.assert_complete();
    assert_eq!((world.objects(), world.core(0).status(world.now).watched), (objects, 0));
}

#[test]
fn a_ledger_that_is_deleted_during_a_round_leaves_no_state() {
    let mut world = world();
    (0..2).for_each(|id| world.add_ledger(id, 10, true));
    let index = world.until("build", is_build);
    world.deliver(index, Fate::Works);
    world.ledgers.get_mut(&ledger(1)).unwrap().is_deleted = true;
    world.run(seconds(60));
    world.assert_complete();
    let status = world.core(0).status(world.now);
    assert_eq!((status.watched, status.rounds, status.objects_building), (0, 0, 0));
}

#[test]
fn ledgers_that_are_not_due_wait() {
    let mut world = world();
    world.settings.look_interval = (seconds(1), seconds(1));
    world.settings.interval.max = seconds(1);
    world.start(0, no_canary());
    world.add_ledger(1, 2, false);
    world.run(seconds(2));
    // Four entries are below the least for an open ledger.
    world.grow(1, 2);
    world.run(seconds(10));
    assert_eq!(world.tiered(ledger(1)), Some(entry(3)), "old enough");
    world.grow(1, 1);
    world.run(seconds(4));
    assert_eq!(world.tiered(ledger(1)), Some(entry(3)));
    assert_eq!(world.core(0).ledger(world.now, ledger(1)).unwrap().state, State::Waiting);
    world.grow(1, 5);
    world.run(seconds(3));
    assert_eq!(world.tiered(ledger(1)), Some(entry(9)), "enough of it is due at once");
    world.grow(1, 1);
    world.run(seconds(20));
    assert_eq!(world.tiered(ledger(1)), Some(entry(10)), "and so is a little of it, after a while");
}

#[test]
fn somebody_who_asks_for_a_ledger_does_not_wait_until_it_is_due() {
    let mut world = world();
    world.settings.open_age_max = seconds(10_000_000);
    world.start(0, no_canary());
    world.add_ledger(1, 2, false);
    world.run(seconds(30));
    assert_eq!(world.tiered(ledger(1)), None);
    world.event(0, Event::Now(ledger(1)));
    world.run(seconds(1));
    assert_eq!(world.tiered(ledger(1)), Some(entry(1)));
}

#[test]
fn a_pause_begins_nothing_and_loses_nothing() {
    let mut world = world();
    world.event(0, Event::Paused(true));
    world.add_ledger(1, 10, true);
    world.run(seconds(60));
    assert_eq!((world.objects(), world.core(0).status(world.now).lag.entries), (0, 10));
    world.event(0, Event::Paused(false));
    world.run(seconds(30));
    world.assert_complete();
}

#[test]
fn a_stop_ends_what_is_under_way_and_begins_nothing() {
    let mut world = world();
    world.add_ledger(1, 10, true);
    world.until("build", is_build);
    world.event(0, Event::Stop);
    world.add_ledger(2, 10, true);
    world.run(seconds(30));
    assert!(world.tierers[0].is_stopped);
    assert_eq!((world.register(0, 1), world.tiered(ledger(2))), (Some(entry(9)), None));
    // At once: the object is given up.
    let mut world = World::new(1, 1, 3);
    world.start(0, no_canary());
    world.add_ledger(1, 10, true);
    world.until("build", is_build);
    world.event(0, Event::StopNow);
    world.drain();
    assert!(world.tierers[0].is_stopped);
    assert_eq!(world.objects(), 0);
}

/// While updates are in flight, and bookies hang, the next rounds build and commit.
#[test]
fn rounds_do_not_wait_for_updates() {
    let mut world = world();
    world.add_ledger(1, 10, true);
    world.until("update", is_update);
    world.bookies.values_mut().for_each(|bookie| bookie.is_hanging = true);
    (2..6).for_each(|id| world.add_ledger(id, 10, true));
    world.bookies.get_mut(&bookie(2)).unwrap().is_hanging = false;
    world.run(seconds(15));
    assert!((2..6).all(|id| world.tiered(ledger(id)) == Some(entry(9))));
}

#[test]
fn no_more_updates_are_in_flight_than_allowed() {
    for (mode, most) in [(UpdateMode::Single, 4), (UpdateMode::Single, 1), (UpdateMode::Batched, 32)] {
        let mut world = World::new(1, 1, 3);
        world.settings.updates.mode = mode;
        world.settings.updates.in_flight_max = most;
        world.start(0, no_canary());
        (0..50).for_each(|id| world.add_ledger(id, 1, true));
        world.run(seconds(60));
        world.assert_complete();
        assert!(world.updates_in_flight_max <= most, "{} of {most}", world.updates_in_flight_max);
        let requests = world.core(0).status(world.now).updates.requests;
        assert!(if mode == UpdateMode::Single { requests == 300 } else { requests < 30 }, "{requests}");
    }
}

#[test]
fn lag_is_told_in_entries_bytes_and_seconds() {
    let mut world = world();
    world.event(0, Event::Paused(true));
    world.add_ledger(1, 10, false);
    world.run(seconds(5));
    // By the age of the ledger, before it was ever seen.
    let lag = world.core(0).status(world.now).lag;
    assert_eq!(lag.entries, 10);
    assert!(lag.bytes >= 10 * ENTRY_BYTES && lag.age > seconds(900_000), "{lag:?}");
    world.event(0, Event::Paused(false));
    world.run(seconds(20));
    world.event(0, Event::Paused(true));
    world.grow(1, 3);
    world.run(seconds(60));
    let lag = world.core(0).status(world.now).lag;
    assert_eq!(lag.entries, 3);
    assert!(lag.age >= seconds(45) && lag.age <= seconds(60), "{lag:?}");
}

// The crash matrix. Each row by its name there.

/// The tierer crashes, and another one does what is left. The bucket must hold `objects` in the end, `waste` of which the catalogue does
/// not refer to.
fn take_over(mut world: World, objects: usize, waste: usize) -> World {
    world.crash(0);
    world.start(0, no_canary());
    world.run(seconds(60));
    world.assert_complete();
    let referenced: BTreeSet<ObjectId> = world
        .ledgers
        .keys()
        .flat_map(|id| world.extents_from(*id, EntryId::FIRST, 99))
        .map(|e| e.object.id)
        .collect();
    assert_eq!(
        (world.objects(), world.objects() - referenced.len()),
        (objects, waste),
        "objects, and those in vain"
    );
    assert_eq!(world.core(0).status(world.now).watched, 0);
    world
}

fn one_ledger() -> World {
    let mut world = world();
    world.add_ledger(1, 10, true);
    world
}

#[test]
fn crash_before_reserve() {
    let mut world = one_ledger();
    world.until("reserve", |action| matches!(action, Action::Reserve(_)));
    take_over(world, 1, 0);
}

#[test]
fn crash_after_reserve() {
    let mut world = one_ledger();
    let index = world.until("reserve", |action| matches!(action, Action::Reserve(_)));
    world.arrive_only(index);
    take_over(world, 1, 0);
}

#[test]
fn crash_during_upload() {
    let mut world = one_ledger();
    let index = world.until("build", is_build);
    world.deliver(index, Fate::Works);
    let world = take_over(world, 1, 0);
    assert_eq!(world.begun.len(), 2, "parts of one object are left");
}

#[test]
fn crash_after_upload_before_commit() {
    let mut world = one_ledger();
    world.until("commit", is_commit);
    world.pending.clear();
    take_over(world, 2, 1);
}

#[test]
fn crash_during_commit_that_arrives() {
    let mut world = one_ledger();
    let index = world.until("commit", is_commit);
    world.arrive_only(index);
    let world = take_over(world, 1, 0);
    assert_eq!(world.counts().objects, 0, "what is committed is not uploaded again (T15)");
}

/// The commit of a dead tierer arrives while its successor builds the same entries.
#[test]
fn old_tierer_commits_after_take_over() {
    let mut world = one_ledger();
    // Objects made in vain stay where they can be counted.
    world.settings.upkeep.delete_delay = seconds(3600);
    world.until("commit", is_commit);
    world.crash(0);
    world.start(0, no_canary());
    let is_new =
        |world: &World| world.pending.iter().any(|p| p.life == world.tierers[0].life && is_commit(&p.action));
    while !is_new(&world) {
        let next = world.pending.iter().position(|pending| !is_commit(&pending.action));
        match next {
            Some(index) => world.deliver(index, Fate::Works),
            None => world.pass(seconds(1)),
        }
    }
    let old =
        world.pending.iter().position(|p| p.life != world.tierers[0].life && is_commit(&p.action)).unwrap();
    world.deliver(old, Fate::Works);
    world.run(seconds(30));
    world.assert_complete();
    assert_eq!((world.objects(), world.counts().corrections), (2, 1), "one object at most is in vain");
}

#[test]
fn after_commit_reply_lost() {
    let mut world = one_ledger();
    let index = world.until("commit", is_commit);
    world.answer_with(index, Fate::AnswerLost);
    world.run(seconds(30));
    world.assert_complete();
    assert_eq!((world.objects(), world.counts().corrections), (1, 0));
}

#[test]
fn crash_after_commit_before_lre() {
    let mut world = one_ledger();
    world.until("update", is_update);
    world.pending.clear();
    let world = take_over(world, 1, 0);
    assert_eq!(
        (world.counts().objects, world.counts().rounds),
        (0, 0),
        "LRE is moved before anything is built (T15)"
    );
}

#[test]
fn crash_during_lre_updates() {
    let mut world = one_ledger();
    world.add_ledger(2, 10, true);
    let index = world.until("update", is_update);
    world.arrive_only(index);
    world.pending.clear();
    let told = (0..3).filter(|index| world.register(*index, 1).is_some()).count();
    assert_eq!(told, 1, "some are done");
    take_over(world, 1, 0);
}

/// Rows "before trim" and "during trim": nothing is left for a tierer to do.
#[test]
fn crash_after_lre() {
    let mut world = one_ledger();
    world.run(seconds(30));
    let number = world.catalogue.position().number;
    let world = take_over(world, 1, 0);
    assert_eq!(world.catalogue.position().number, number, "nothing is reserved or committed");
}

#[test]
fn an_lre_update_that_times_out_but_applied_changes_nothing_later() {
    let mut world = one_ledger();
    let index = world.until("update", is_update);
    let Action::Update(request) = world.pending[index].action.clone() else { unreachable!() };
    world.arrive_only(index);
    // Its answer never comes.
    world.pending.retain(|pending| pending.action != Action::Update(request.clone()));
    world.run(seconds(60));
    world.assert_complete();
    assert!(world.core(0).status(world.now).updates.timeouts > 0);
    assert_eq!(world.core(0).status(world.now).watched, 0);
}

/// A catalogue that was rebuilt has a ledger in an object with an earlier id than the one that bookies know: they refuse it, and what
/// comes after it. The object is rewritten, and bookies take the new one.
#[test]
fn bookies_take_what_a_rebuilt_catalogue_has_once_it_is_rewritten() {
    let mut world = world();
    world.add_ledger(1, 13, true);
    world.add_ledger(2, 5, true);
    let of = |id: i64, last: i64| NewExtent {
        ledger: ledger(id),
        first: EntryId::FIRST,
        last: entry(last),
        bytes: (last as u64 + 1) * ENTRY_BYTES,
        created_ms: None,
    };
    let ids = world.draw(3);
    let put = |world: &mut World, at: usize, extents: Vec<NewExtent>| {
        let bytes: u64 = extents.iter().map(|extent| extent.bytes).sum();
        let object = ObjectRef {
            id: ids[at],
            length_bytes: bytes + 1000,
            footer_offset: bytes,
            footer_crc: 0,
            etag_crc: 1,
        };
        let new = NewObject { object, extents };
        world.written.insert(ids[at], world.now);
        world.bucket.insert(ids[at], new.clone());
        new
    };
    let reaching_further = put(&mut world, 0, vec![of(1, 12), of(2, 4)]);
    let known = put(&mut world, 1, vec![of(1, 9)]);
    let other = put(&mut world, 2, vec![of(2, 4)]);
    // Bookies were told of this one before the catalogue was lost.
    for told in world.bookies.values_mut() {
        let extent = TierExtent { first: EntryId::FIRST, last: entry(9), object: known.object };
        let of_ledger = told.told.entry(ledger(1)).or_default();
        of_ledger.extents.insert(EntryId::FIRST, (entry(9), extent));
        of_ledger.register = Some(entry(9));
    }
    world.committed.insert((ledger(1), EntryId::FIRST, entry(9), known.object.id));
    // The catalogue marks the object: an extent of it was taken over, and another one is referred to.
    world.commit(&[], &ids);
    world.commit(&[reaching_further], &[]);
    world.record(vec![Change::Replace { object: other, sources: vec![ids[0]] }]);
    let row = world.catalogue.object(&Facts::nothing_below(), ids[0]).unwrap();
    let Some(ObjectRow::Stored(row)) = row else { panic!("{row:?}") };
    assert!(row.is_outranked() && row.live_ratio() > world.settings.upkeep.rewrite_below);
    world.start(0, no_canary());
    world.run(seconds(120));
    world.assert_complete();
    let objects: BTreeSet<ObjectId> = (0..3)
        .flat_map(|name| world.bookies[&bookie(name)].told[&ledger(1)].extents.values())
        .map(|(_, extent)| extent.object.id)
        .collect();
    assert!(objects.len() == 1 && objects.iter().all(|object| *object > ids[1]), "{objects:?}");
}

/// The catalogue is put back to what it was after the first ledger's first 10 entries, when bookies know of 20.
fn put_back(canaries: Canaries) -> World {
    let mut world = World::new(1, 1, 3);
    world.add_ledger(1, 10, false);
    world.add_ledger(2, 10, true);
    world.start(0, no_canary());
    world.run(seconds(30));
    let older = world.catalogue.clone();
    assert_eq!(world.tiered(ledger(1)), Some(entry(9)));
    world.grow(1, 10);
    world.run(seconds(30));
    assert_eq!(world.register(0, 1), Some(entry(19)));
    world.crash(0);
    (world.catalogue, world.was_put_back) = (older, true);
    world.grow(1, 10);
    world.seal(1);
    world.start(0, canaries);
    world.run(seconds(60));
    world
}

/// T2: alarm, stop, skip nothing.
#[test]
fn tier_metadata_restored_from_an_older_backup() {
    let mut world = put_back(no_canary());
    let alarm = world.tierers[0].alarms.first().expect("a person must look");
    let Alarm::BookieAhead { ledger: of, register, tiered, .. } = alarm else { panic!("{alarm:?}") };
    assert_eq!((of.get(), *register, *tiered), (1, entry(19), Some(entry(9))));
    assert_eq!(world.tiered(ledger(1)), Some(entry(9)), "nothing is tiered any further");
    let status = world.core(0).ledger(world.now, ledger(1)).unwrap();
    assert!(matches!(status.state, State::Stopped { .. }), "{status:?}");
    assert_eq!(world.core(0).status(world.now).stopped, 1);
    assert_eq!(world.tierers[0].alarms.len(), 1, "once");
    // Other ledgers are not concerned.
    world.add_ledger(3, 10, true);
    world.run(seconds(30));
    assert_eq!(world.tiered(ledger(3)), Some(entry(9)));
}

/// The canary T2 makes the tierer go on after the bookie's register: its object has a gap before it, which the catalogue refuses,
/// and it believes the gap to be tiered.
#[test]
#[should_panic(expected = "IT1: ledger 1 goes on with entry 20, and 10 is next")]
fn canary_t2_is_found() {
    put_back(Canaries::only(bindery_io::canary::Canary::T2AheadIsSkipped));
}

/// A bookie that is ahead because another tierer committed is no reason to stop.
#[test]
fn another_tierers_commit_is_no_restored_catalogue() {
    let mut world = World::new(1, 2, 3);
    world.add_ledger(1, 10, true);
    world.start(0, no_canary());
    world.start(1, no_canary());
    world.run(seconds(60));
    world.assert_complete();
    assert!(world.tierers.iter().all(|tierer| tierer.alarms.is_empty()));
}
