//! Objects that take too long to be rewritten (invariant 6 of [`rewrite`]).

use super::*;

impl Around {
    /// Copies extents one behind the other, and the last one by half.
    pub(super) fn copy_in_time(&mut self, order: RewriteOrder) -> UpkeepEvent {
        let mut room = self.in_time.unwrap();
        let (mut extents, mut left) = (Vec::new(), Vec::new());
        for (wanted, pieces) in order.order.ledgers.iter().zip(&order.pieces) {
            let whole = pieces.len().min(room);
            room -= whole;
            let last = match pieces.get(whole) {
                None => wanted.last,
                Some(piece) => entry(piece.last.get() - 1),
            };
            if whole < pieces.len() {
                left.push((wanted.ledger, Left::OutOfTime));
            }
            if whole == pieces.len() || left.len() == 1 {
                extents.push(NewExtent {
                    ledger: wanted.ledger,
                    first: wanted.first,
                    last,
                    bytes: 7,
                    created_ms: None,
                });
            }
        }
        let new = NewObject { object: reference(order.order.object, 50), extents };
        self.order = Some(order);
        let built = Built { outcome: Ok(Some(new)), left, times: BuildTimes::default() };
        UpkeepEvent::Rewritten(built, Vec::new())
    }

    /// As the catalogue does it: whole extents are replaced, others are dropped.
    pub(super) fn replace_whole(&mut self, object: &NewObject) -> UpkeepEvent {
        let order = self.order.take().unwrap();
        let pieces = || order.pieces.iter().flatten();
        let is_whole = |extent: &NewExtent| pieces().any(|piece| piece.last == extent.last);
        for extent in object.extents.iter().filter(|extent| is_whole(extent)) {
            for live in self.live.values_mut() {
                live.retain(|live| {
                    live.ledger != extent.ledger || live.first < extent.first || live.last > extent.last
                });
            }
        }
        self.rows.retain(|row| self.live.get(&row.object.id).is_some_and(|live| !live.is_empty()));
        let outcome = |extent: &NewExtent| ExtentOutcome {
            ledger: extent.ledger,
            verdict: if is_whole(extent) { Verdict::Accepted } else { Verdict::NotReplaceable },
            next: extent.last,
        };
        UpkeepEvent::Replaced(Ok(Ok(object.extents.iter().map(outcome).collect())))
    }

    fn orders(&self) -> Vec<&RewriteOrder> {
        let orders = self.done.iter().filter_map(|action| match action {
            UpkeepAction::Rewrite(order) => Some(order),
            _ => None,
        });
        orders.collect()
    }
}

/// An object with five extents of one ledger, which would be joined.
fn around(in_time: usize) -> Around {
    let mut around = Around::new(0..5, 0..5);
    around.rows = vec![stored(object(1), 10 << 20, 0.3)];
    around.live.insert(object(1), (0..5).map(|n| live(1, n * 10, n * 10 + 9)).collect());
    around.in_time = Some(in_time);
    around
}

#[test]
fn what_takes_too_long_is_rewritten_in_parts_that_count() {
    let mut around = around(2);
    let mut passes = 0;
    while !around.rows.is_empty() {
        around.pass();
        passes += 1;
        assert!(passes < 10, "{:?}", around.upkeep.status());
    }
    // The joined range was cut; then two extents each time.
    let pieces: Vec<usize> = around.orders().iter().map(|order| order.pieces.len()).collect();
    assert_eq!((pieces, passes), (vec![1, 5, 3, 1], 4), "one attempt in each pass");
    assert_eq!(around.upkeep.status().counts.objects_rewritten, 1);
    assert!(around.alarms.is_empty(), "{:?}", around.alarms);
}

#[test]
fn a_source_of_which_no_extent_can_be_copied_is_one_alarm_and_has_more_time_then() {
    let mut around = around(0);
    for _ in 0..6 {
        around.pass();
        around.now += Duration::from_secs(2 * 3600);
    }
    assert!(
        matches!(around.alarms[..], [Alarm::RewriteTooSlow { object: of, .. }] if of == object(1)),
        "{:?}",
        around.alarms
    );
    let times: Vec<bool> = around.orders().iter().map(|order| order.has_more_time).collect();
    assert!(
        times.len() > 2 && times[..2] == [false, false] && times[2..].iter().all(|more| *more),
        "{times:?}"
    );
    // Others are not held up.
    around.rows.push(stored(object(2), 1 << 20, 0.1));
    around.live.insert(object(2), vec![live(2, 0, 9)]);
    around.in_time = None;
    around.now += Duration::from_secs(24 * 3600);
    (0..2).for_each(|_| around.pass());
    assert_eq!((around.upkeep.status().counts.objects_rewritten, around.alarms.len()), (2, 1));
}
