//! Sparse and damaged objects that are rewritten.

use super::*;

/// T16, and invariant 1 of [`rewrite`].
#[test]
fn sparse_objects_go_into_one_in_the_order_of_their_entries() {
    let mut around = Around::new(0..5, 0..5);
    around.rows = vec![
        stored(object(1), 10 << 20, 0.3),
        stored(object(2), 10 << 20, 0.1),
        stored(object(3), 10 << 20, 0.5),
        stored(object(4), 10 << 20, 0.4),
    ];
    around.live.insert(object(1), vec![live(2, 0, 4), live(1, 10, 19)]);
    around.live.insert(object(2), vec![live(1, 0, 9), live(1, 30, 39)]);
    around.pass();
    let order = around.done.iter().find_map(|action| match action {
        UpkeepAction::Rewrite(order) => Some(order.clone()),
        _ => None,
    });
    let order = order.unwrap();
    let ranges: Vec<_> = order
        .order
        .ledgers
        .iter()
        .map(|wanted| (wanted.ledger.get(), wanted.first.get(), wanted.last.get(), wanted.bytes))
        .collect();
    assert_eq!(ranges, [(1, 0, 19, 14), (1, 30, 39, 7), (2, 0, 4, 7)]);
    let pieces: Vec<Vec<ObjectId>> =
        order.pieces.iter().map(|pieces| pieces.iter().map(|piece| piece.object.id).collect()).collect();
    assert_eq!(pieces, [vec![object(2), object(1)], vec![object(2)], vec![object(1)]]);
    let replaced = around.done.iter().find_map(|action| match action {
        UpkeepAction::Replace { sources, .. } => Some(sources.clone()),
        _ => None,
    });
    // The one whose ledger is gone is left for another time; half is not less than half.
    assert_eq!(replaced, Some(vec![object(2), object(1)]));
    let counts = around.upkeep.status().counts;
    assert_eq!((counts.rewrites, counts.objects_rewritten, counts.rewritten_bytes), (1, 2, 28));
    around.done.clear();
    around.rows.retain(|row| row.object.id == object(4));
    around.pass();
    assert!(!around.done.iter().any(|action| matches!(action, UpkeepAction::Survey { .. })), "not at once");
    around.now += UpkeepSettings::default().rewrite_pause;
    around.pass();
    assert!(around.done.iter().any(|action| matches!(action, UpkeepAction::Survey { .. })));
}

/// Invariants 2 to 4 of [`rewrite`].
#[test]
fn a_rewrite_that_is_in_vain_changes_nothing_and_is_tried_again_later() {
    let mut around = Around::new(0..5, 0..5);
    around.rows = vec![stored(object(1), 10 << 20, 0.3)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    around.next_id = object(0);
    around.pass();
    assert!(!around.done.iter().any(|action| matches!(action, UpkeepAction::Rewrite(_))), "an older id");
    assert_eq!(around.upkeep.status().counts.rewrite_failures, 1);
    // The other tierer was faster.
    (around.next_id, around.verdict) = (object(8), Verdict::NotReplaceable);
    around.now += UpkeepSettings::default().rewrite_pause;
    around.pass();
    let counts = around.upkeep.status().counts;
    assert_eq!((counts.rewrites, counts.objects_rewritten), (0, 0));
    around.done.clear();
    around.now += UpkeepSettings::default().rewrite_pause;
    around.pass();
    assert!(!around.done.iter().any(|action| matches!(action, UpkeepAction::Survey { .. })), "ever longer");
    around.verdict = Verdict::Accepted;
    around.now += UpkeepSettings::default().rewrite_pause;
    around.pass();
    assert_eq!(around.upkeep.status().counts.objects_rewritten, 1);
}

/// Invariant 5 of [`rewrite`].
#[test]
fn an_object_that_bookies_may_refuse_is_rewritten_whatever_else_is_so() {
    let mut around = Around::new(0..5, 0..5);
    let settings = UpkeepSettings { rewrite_below: 0.0, ..UpkeepSettings::default() };
    around.upkeep = Upkeep::new(around.now, settings, 64 << 20, OURS.to_owned(), Canaries::none());
    let replaced = Some(Replaced { number: 3, at_ms: 0 });
    around.rows =
        vec![StoredObject { replaced, ..stored(object(1), 10 << 20, 1.0) }, stored(object(2), 10 << 20, 0.1)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    // More objects are kept than there may be.
    around.moved = vec![Moved { extents: Vec::new(), ..moved(1, 0, 9) }];
    around.garbage.extend((10..80).map(object));
    around.pass();
    let counts = around.upkeep.status().counts;
    assert_eq!((counts.rewrites, counts.objects_rewritten), (1, 1));
}

/// Invariant 2 of [`rewrite`]: bookies may know any object of the catalogue in place of a source that they refuse.
#[test]
fn an_object_that_bookies_may_refuse_waits_for_an_id_above_all_others() {
    for is_outranked in [true, false] {
        let mut around = Around::new(0..5, 0..5);
        let replaced = Some(Replaced { number: 3, at_ms: 0 }).filter(|_| is_outranked);
        around.rows = vec![StoredObject { replaced, ..stored(object(1), 10 << 20, 0.1) }];
        around.live.insert(object(1), vec![live(1, 0, 9)]);
        around.later = Some(object(9));
        around.pass();
        let status = around.upkeep.status();
        let counts = status.counts;
        assert_eq!((counts.rewrites, counts.rewrite_failures), if is_outranked { (0, 1) } else { (1, 0) });
        if is_outranked {
            let why = status.last_error.as_ref().unwrap();
            assert!(why.contains(&object(9).to_string()), "{why}");
            (around.next_id, around.later) = (object(10), None);
            around.now += UpkeepSettings::default().rewrite_pause;
            around.pass();
            assert_eq!(around.upkeep.status().counts.rewrites, 1);
        }
    }
}

#[test]
fn a_range_is_covered_by_extents_without_a_gap() {
    let covered = |extents: &[(i64, i64)]| {
        let extent = |(first, last): &(i64, i64)| TierExtent {
            first: entry(*first),
            last: entry(*last),
            object: reference(object(9), 50),
        };
        Moved { extents: extents.iter().map(extent).collect(), ..moved(1, 10, 29) }.is_covered()
    };
    assert!(covered(&[(10, 29)]) && covered(&[(0, 50)]) && covered(&[(5, 14), (15, 19), (20, 40)]));
    assert!(!covered(&[]) && !covered(&[(10, 28)]) && !covered(&[(11, 29)]));
    assert!(!covered(&[(10, 14), (16, 29)]), "a gap");
    assert!(!covered(&[(0, 9), (15, 29)]) && !covered(&[(10, 14)]));
}

/// Invariant 4 of [`rewrite`]: one damaged object of a group is left alone, and the others are rewritten.
#[test]
fn a_damaged_object_keeps_no_other_from_being_rewritten() {
    for is_named in [true, false] {
        let mut around = Around::new(0..5, 0..5);
        // Parts of one ledger in all of them, so that they become one range.
        around.rows = (0..8).map(|n| stored(object(n), 1 << 20, 0.1)).collect();
        for n in 0..8 {
            let first = i64::from(n) * 10;
            around.live.insert(object(n), vec![live(1, first, first + 9)]);
        }
        around.next_id = object(99);
        around.damaged.insert(object(3), is_named);
        let mut passes = 0;
        while around.upkeep.status().counts.objects_rewritten < 7 {
            around.pass();
            passes += 1;
            assert!(passes < 40, "{is_named}: {:?}", around.upkeep.status());
        }
        let status = around.upkeep.status();
        assert_eq!(status.counts.objects_rewritten, 7, "{status:?}");
        if is_named {
            assert!(passes <= 3, "the others do not wait");
            assert_eq!(around.alarms.len(), 1, "{:?}", around.alarms);
            assert!(
                matches!(&around.alarms[0], Alarm::ObjectDamaged { object: damaged, .. } if *damaged == object(3))
            );
            let damaged = status.damaged.as_ref().unwrap();
            assert!(status.objects_damaged == 1 && damaged.contains(&object(3).to_string()), "{damaged}");
        }
        // Brought back, it is rewritten as well.
        around.damaged.clear();
        around.now += Duration::from_secs(24 * 3600);
        (0..2).for_each(|_| around.pass());
        let status = around.upkeep.status();
        assert_eq!((status.counts.objects_rewritten, status.objects_damaged), (8, 0), "{status:?}");
    }
}

#[test]
fn nothing_is_rewritten_when_that_is_switched_off() {
    let mut around = Around::new(0..5, 0..5);
    let settings = UpkeepSettings { rewrite_below: 0.0, ..UpkeepSettings::default() };
    around.upkeep = Upkeep::new(around.now, settings, 64 << 20, OURS.to_owned(), Canaries::none());
    around.rows = vec![stored(object(1), 10 << 20, 0.1)];
    around.live.insert(object(1), vec![live(1, 0, 9)]);
    around.pass();
    assert!(!around.done.iter().any(|action| matches!(action, UpkeepAction::Survey { .. })));
}

/// What another tierer keeps holds up rewriting, but not what it keeps because it is damaged.
#[test]
fn damaged_objects_that_another_one_keeps_hold_up_no_rewriting() {
    let mut around = Around::new(0..5, 0..5);
    let own = (0..).map(|n| Member::able(format!("own{n}")));
    let mut teams = own.map(|own| Team::new(&own.name.clone(), [own, Member::able("other")]));
    let team = teams.find(|team| !team.owns_upkeep() && team.owns_object(&object(200))).unwrap();
    around.upkeep.set_team(&team);
    around.next_id = object(201);
    around.garbage = (0..64).map(object).collect();
    around.rows = vec![stored(object(200), 10 << 20, 0.3)];
    around.live.insert(object(200), vec![live(1, 0, 9)]);
    around.pass();
    assert!(!around.has_rewritten(), "that many wait for the other one");
    around.damaged = (0..64).map(|n| (object(n), true)).collect();
    around.pass();
    assert!(around.has_rewritten());
    around.done.clear();
    around.pass();
    let is_read = |action: &UpkeepAction| matches!(action, UpkeepAction::ReadFooters(_));
    assert!(!around.done.iter().any(is_read), "once each");
}
