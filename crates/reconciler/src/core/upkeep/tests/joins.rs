//! Objects of small extents that are joined: invariant 7 of [`rewrite`].

use super::*;

/// So many ledgers have ten entries in each object, of seven bytes together.
const LEDGERS: i64 = 6;

/// An object that has entries `10 * n..10 * n + 10` of all ledgers.
fn add(around: &mut Around, n: u8) {
    let first = i64::from(n) * 10;
    around.rows.push(stored(object(n), 1000, 1.0));
    around.live.insert(object(n), (0..LEDGERS).map(|of| live(of, first, first + 9)).collect());
}

/// So many such objects, and new ones with room for so many bytes.
fn world(objects: u8, target_bytes: u64) -> Around {
    let mut around = Around::new(0..LEDGERS, 0..LEDGERS);
    let settings = UpkeepSettings::default();
    around.upkeep = Upkeep::new(around.now, settings, target_bytes, OURS.to_owned(), Canaries::none());
    around.next_id = object(99);
    (0..objects).for_each(|n| add(&mut around, n));
    around
}

/// Ranges of the objects that were ordered since this was asked last: ledger, first and last entry, pieces.
fn orders(around: &mut Around) -> Vec<Vec<(i64, i64, i64, usize)>> {
    let range = |(of, pieces): (&crate::core::BuildLedger, &Vec<Piece>)| {
        (of.ledger.get(), of.first.get(), of.last.get(), pieces.len())
    };
    let done = std::mem::take(&mut around.done);
    let orders = done.iter().filter_map(|action| match action {
        UpkeepAction::Rewrite(order) => Some(order),
        _ => None,
    });
    orders.map(|order| order.order.ledgers.iter().zip(&order.pieces).map(range).collect()).collect()
}

#[test]
fn small_extents_become_one_for_each_ledger_in_objects_by_ledgers() {
    // Two ledgers of eight extents fit into an object.
    let mut around = world(8, 120);
    around.pass();
    let whole = |of| (of, 0, 79, 8);
    assert_eq!(
        orders(&mut around),
        [vec![whole(0), whole(1)], vec![whole(2), whole(3)], vec![whole(4), whole(5)]]
    );
    let counts = around.upkeep.status().counts;
    assert_eq!((counts.rewrites, counts.objects_rewritten, counts.extents_joined), (3, 8, 48));
    around.pass();
    assert!(orders(&mut around).is_empty());
}

/// Before their time, more are wanted; and the limit can be 0.
#[test]
fn a_few_objects_wait_until_they_are_old() {
    let mut around = world(5, 1000);
    around.pass();
    assert!(orders(&mut around).is_empty());
    around.now += UpkeepSettings::default().join_after;
    around.pass();
    assert_eq!(orders(&mut around), [(0..LEDGERS).map(|of| (of, 0, 49, 5)).collect::<Vec<_>>()]);
    let mut around = world(8, 1000);
    let settings = UpkeepSettings { join_below_bytes: 0, ..UpkeepSettings::default() };
    around.upkeep = Upkeep::new(around.now, settings, 1000, OURS.to_owned(), Canaries::none());
    around.pass();
    assert!(orders(&mut around).is_empty());
}

/// Each has ledgers of its own, as closed ledgers lie in objects: to copy them would be in vain.
#[test]
fn extents_that_do_not_follow_each_other_are_left_where_they_are() {
    let mut around = world(0, 1000);
    (around.catalogue, around.metadata) = ((0..80).map(id).collect(), (0..80).map(id).collect());
    for n in 0..8 {
        around.rows.push(stored(object(n), 1000, 1.0));
        let own = i64::from(n) * 10..i64::from(n) * 10 + 10;
        around.live.insert(object(n), own.map(|of| live(of, 0, 9)).collect());
    }
    around.pass();
    let surveys = |around: &mut Around| {
        let done = std::mem::take(&mut around.done);
        done.iter().filter(|action| matches!(action, UpkeepAction::Survey { .. })).count()
    };
    assert_eq!(surveys(&mut around), 1);
    let status = around.upkeep.status();
    assert_eq!((status.counts.rewrites, status.counts.rewrite_failures), (0, 0), "that is no failure");
    around.pass();
    assert_eq!(surveys(&mut around), 0, "not at once");
    // It is known which ledgers are in which.
    around.now += UpkeepSettings::default().rewrite_pause;
    around.pass();
    assert_eq!(surveys(&mut around), 0);
}

/// Its ledgers are about to leave the catalogue, so a survey finds nothing in it.
#[test]
fn an_object_in_which_a_survey_finds_nothing_is_not_surveyed_again_at_once() {
    let mut around = world(1, 1000);
    around.live.insert(object(0), Vec::new());
    around.now += UpkeepSettings::default().join_after;
    around.pass();
    let surveys = around.done.iter().filter(|action| matches!(action, UpkeepAction::Survey { .. }));
    assert_eq!(surveys.count(), 1);
}

/// An object that is full before all of it is in it leaves the rest to the next one.
#[test]
fn what_an_object_is_too_short_for_is_in_the_next_one() {
    let mut around = world(8, 1000);
    around.full_after = Some((4, 3));
    around.pass();
    let whole = |of| (of, 0, 79, 8);
    // Three of the eight extents of ledger 4 were in it.
    assert_eq!(
        orders(&mut around),
        [(0..LEDGERS).map(whole).collect::<Vec<_>>(), vec![(4, 30, 79, 5), whole(5)]]
    );
    let counts = around.upkeep.status().counts;
    assert_eq!((counts.rewrites, counts.objects_rewritten, counts.extents_joined), (2, 8, 48));
}

/// It would never be whole, and those behind it would wait for it.
#[test]
fn a_range_that_is_longer_than_an_object_becomes_several() {
    let mut around = world(8, 30);
    around.pass();
    let halves = |of| [vec![(of, 0, 39, 4)], vec![(of, 40, 79, 4)]];
    assert_eq!(orders(&mut around), (0..LEDGERS).flat_map(halves).collect::<Vec<_>>());
    assert_eq!(around.upkeep.status().counts.objects_rewritten, 8);
}

/// Ledgers that were closed stand alone among those that go on.
#[test]
fn extents_that_stand_alone_keep_the_others_from_nothing() {
    let mut around = world(2, 1000);
    for n in 0..2 {
        let alone = (0..LEDGERS).map(|of| live(100 + of * 2 + n, 0, 9));
        around.live.get_mut(&object(n as u8)).unwrap().extend(alone);
    }
    around.now += UpkeepSettings::default().join_after;
    around.pass();
    assert_eq!(around.upkeep.status().counts.extents_joined, 2 * LEDGERS as u64);
    // More of them than of the others.
    let mut around = world(2, 1000);
    for n in 0..2 {
        let alone = (0..=LEDGERS).map(|of| live(100 + of * 2 + n, 0, 9));
        around.live.get_mut(&object(n as u8)).unwrap().extend(alone);
    }
    around.now += UpkeepSettings::default().join_after;
    around.pass();
    assert_eq!(around.upkeep.status().counts.rewrites, 0);
}

/// The time for an object was up: those that follow are shorter, and what was copied counts.
#[test]
fn after_an_object_that_took_too_long_they_are_shorter() {
    let mut around = world(8, 48 << 20);
    for extents in around.live.values_mut() {
        extents.iter_mut().for_each(|extent| extent.bytes = 1 << 20);
    }
    // Two ledgers, and a part of the third.
    around.in_time = Some(18);
    around.pass();
    assert_eq!(orders(&mut around).iter().map(Vec::len).collect::<Vec<_>>(), [6]);
    assert_eq!(around.upkeep.status().counts.rewrites, 1);
    around.pass();
    assert_eq!(orders(&mut around)[0].len(), 3, "of half the bytes");
}

/// Only the tierer that has the upkeep joins. What it is at is joined further, and is rewritten by nobody for a while.
#[test]
fn objects_that_are_being_joined_are_not_rewritten_one_by_one() {
    let (own, other) = (Member::able("own"), Member::able("other"));
    let teams = ["own", "other"].map(|of| Team::new(of, [own.clone(), other.clone()]));
    for team in teams {
        let mut around = world(8, 1000);
        around.upkeep.set_team(&team);
        // Something was taken over of all of them just now.
        let replaced = Some(Replaced { number: 3, at_ms: around.now.as_millis() as u64 });
        around.rows.iter_mut().for_each(|row| row.replaced = replaced);
        around.pass();
        match team.owns_upkeep() {
            true => assert_eq!(around.upkeep.status().counts.extents_joined, 48),
            false => {
                assert!(orders(&mut around).is_empty());
                around.now += 3 * UpkeepSettings::default().interval;
                around.pass();
                assert!(!orders(&mut around).is_empty(), "nobody goes on with it");
            }
        }
    }
}
