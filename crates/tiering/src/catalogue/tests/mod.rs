mod codec;
mod faulty;
mod genuine;
mod locator;
pub(crate) mod rebuild;
mod rules;
mod shared;
mod upkeep;

use std::collections::BTreeMap;

use bindery_types::tier::ObjectRef;
use bindery_types::{EntryId, LedgerId};
use proptest::prelude::*;

use super::*;
use crate::{ClusterId, ObjectId};

pub(crate) const CLUSTER: ClusterId = ClusterId::from_bytes([9; 16]);

pub(crate) fn ledger(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

pub(crate) fn entry(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

pub(crate) fn id(number: u64) -> ObjectId {
    ObjectId::new(number, [number as u8; 10])
}

fn reference(number: u64) -> ObjectRef {
    ObjectRef {
        id: id(number),
        length_bytes: 1000 + number,
        footer_offset: 900,
        footer_crc: number as u32,
        etag_crc: 7,
    }
}

/// The same, of a ledger that was created then.
fn created(mut change: Change, created_ms: i64) -> Change {
    if let Change::Commit(object) | Change::Replace { object, .. } = &mut change {
        object.extents.iter_mut().for_each(|extent| extent.created_ms = Some(created_ms));
    }
    change
}

/// An extent with ten bytes for each entry.
fn extent(of: i64, first: i64, last: i64) -> NewExtent {
    let bytes = (last - first + 1) as u64 * 10;
    NewExtent { ledger: ledger(of), first: entry(first), last: entry(last), bytes, created_ms: None }
}

fn object(number: u64, extents: &[(i64, i64, i64)]) -> NewObject {
    let extents = extents.iter().map(|(of, first, last)| extent(*of, *first, *last)).collect();
    NewObject { object: reference(number), extents }
}

fn reserve(numbers: &[u64]) -> Change {
    Change::Reserve { objects: numbers.iter().map(|number| id(*number)).collect(), ttl_ms: 1000 }
}

fn commit(number: u64, extents: &[(i64, i64, i64)]) -> Change {
    Change::Commit(object(number, extents))
}

fn replace(number: u64, sources: &[u64], extents: &[(i64, i64, i64)]) -> Change {
    let sources = sources.iter().map(|number| id(*number)).collect();
    Change::Replace { object: object(number, extents), sources }
}

/// Rows of a core that holds everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Rows {
    ledgers: BTreeMap<LedgerId, LedgerRow>,
    extents: BTreeMap<(LedgerId, EntryId), ExtentRow>,
    objects: BTreeMap<ObjectId, ObjectRow>,
    totals: Totals,
}

impl Rows {
    fn of(core: &Core) -> Rows {
        let tail = core.tail();
        let extents = tail.extents.iter().filter_map(|(key, (_, row))| Some((*key, (*row)?))).collect();
        Rows {
            ledgers: core.ledgers_in_tail().filter_map(|(id, row)| Some((id, row?))).collect(),
            extents,
            objects: core.objects_in_tail().filter_map(|(id, row)| Some((id, row?))).collect(),
            totals: core.totals(),
        }
    }

    /// Invariant 2 (T3, IT1), and that all counts are those of the rows.
    fn check(&self) {
        let mut totals = Totals::default();
        let mut live: BTreeMap<ObjectId, (u32, u64)> = BTreeMap::new();
        for (ledger, row) in &self.ledgers {
            let of_ledger: Vec<_> =
                self.extents.range((*ledger, EntryId::FIRST)..=(*ledger, EntryId::MAX)).collect();
            let mut next = row.first.get();
            for ((_, first), extent) in &of_ledger {
                assert_eq!(first.get(), next, "no gap and no overlap in ledger {ledger}: {self:?}");
                next = extent.last.get() + 1;
                let live = live.entry(extent.object.id).or_default();
                *live = (live.0 + 1, live.1 + extent.bytes);
            }
            assert_eq!(row.next.get(), next, "next of {ledger}");
            assert_eq!(row.extents, of_ledger.len() as u64);
            assert_eq!(row.bytes, of_ledger.iter().map(|(_, extent)| extent.bytes).sum::<u64>());
            assert!(row.is_removed || row.first == EntryId::FIRST, "a ledger begins at its first entry");
            totals.ledgers += 1;
            totals.extents += row.extents;
            totals.bytes += row.bytes;
        }
        assert_eq!(totals.extents, self.extents.len() as u64, "an extent without ledger");
        for (id, row) in &self.objects {
            match row {
                ObjectRow::Reserved { .. } => totals.reserved += 1,
                ObjectRow::Stored(stored) => {
                    let live = live.remove(id).unwrap_or_default();
                    assert_eq!((stored.live_extents, stored.live_bytes), live, "{id}");
                    assert_eq!(stored.unreferenced_ms.is_some(), live.0 == 0, "{id}");
                    assert!(stored.live_bytes <= stored.bytes);
                    totals.objects += 1;
                    totals.object_bytes += stored.object.length_bytes;
                    if live.0 == 0 {
                        totals.unreferenced += 1;
                        totals.unreferenced_bytes += stored.object.length_bytes;
                    }
                }
            }
        }
        assert!(live.is_empty(), "an extent points to an object that the catalogue does not have (IT2)");
        assert_eq!(totals, self.totals);
    }
}

/// Changes as several tierers make them, some of them late, some wrong.
fn change() -> impl Strategy<Value = Change> {
    let number = 0_u64..12;
    // Ledger, place in units of four entries, length in units.
    let extents = prop::collection::vec((0_i64..4, 0_i64..6, 1_i64..3), 0..4).prop_map(|extents| {
        extents.iter().map(|(of, at, units)| (*of, at * 4, (at + units) * 4 - 1)).collect::<Vec<_>>()
    });
    prop_oneof![
        3 => prop::collection::vec(number.clone(), 1..4).prop_map(|numbers| reserve(&numbers)),
        6 => (number.clone(), extents.clone()).prop_map(|(number, extents)| commit(number, &extents)),
        3 => (number.clone(), prop::collection::vec(number.clone(), 0..8), extents)
            .prop_map(|(number, sources, extents)| replace(number, &sources, &extents)),
        1 => (0_i64..4).prop_map(|of| Change::RemoveLedger { ledger: ledger(of), created_ms: None }),
        1 => number.clone().prop_map(|number| Change::ForgetObject(id(number))),
        2 => (number, 1_u64..40).prop_map(|(number, replaced)| Change::Release { object: id(number), replaced }),
    ]
}

/// Records by one of three writers, with times that jump back and forth.
fn changes() -> impl Strategy<Value = Vec<(u64, u64, Vec<Change>)>> {
    prop::collection::vec((0_u64..3, 0_u64..3000, prop::collection::vec(change(), 0..4)), 1..40)
}

fn record(number: u64, writer: u64, time_ms: u64, changes: Vec<Change>) -> Record {
    Record { cluster: CLUSTER, number, writer: WriterId(writer), time_ms, changes }
}
