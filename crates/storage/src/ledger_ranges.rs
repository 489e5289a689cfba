//! A set of ledger ids in a bounded number of ranges. It never loses an id, and may hold more than were put into it.
//!
//! # Limits
//! [`LedgerRanges::RANGES_MAX`] ranges, 16 bytes each: beyond, the two with the fewest ids between them become one.

use crate::codec::{Put, Take};
use bindery_types::LedgerId;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerRanges {
    /// First and last, ascending, with ids between them.
    ranges: Vec<(LedgerId, LedgerId)>,
}

impl LedgerRanges {
    /// Most ranges of a set.
    pub const RANGES_MAX: usize = 256;

    /// Puts an id into the set.
    pub fn insert(&mut self, ledger: LedgerId) {
        self.insert_range(ledger, ledger);
    }

    /// Puts everything of another set into this one.
    pub fn join(&mut self, other: &LedgerRanges) {
        other.ranges.iter().for_each(|(first, last)| self.insert_range(*first, *last));
    }

    /// True for each id that was put into the set, and perhaps for others.
    pub fn contains(&self, ledger: LedgerId) -> bool {
        let at = self.ranges.partition_point(|(_, last)| *last < ledger);
        self.ranges.get(at).is_some_and(|(first, _)| *first <= ledger)
    }

    /// True when nothing was put into the set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn insert_range(&mut self, first: LedgerId, last: LedgerId) {
        // Those that it meets, or that end or begin right beside it.
        let begin = self.ranges.partition_point(|(_, before)| before.get() < first.get() - 1);
        let end = self.ranges.partition_point(|(after, _)| after.get() <= last.get().saturating_add(1));
        let met = &self.ranges[begin..end];
        let whole = (
            met.first().map_or(first, |met| met.0.min(first)),
            met.last().map_or(last, |met| met.1.max(last)),
        );
        self.ranges.splice(begin..end, [whole]);
        if self.ranges.len() > LedgerRanges::RANGES_MAX {
            let gap = |at: &usize| self.ranges[at + 1].0.get() - self.ranges[*at].1.get();
            let at = (0..self.ranges.len() - 1).min_by_key(gap).expect("there are several");
            let (_, last) = self.ranges.remove(at + 1);
            self.ranges[at].1 = last;
        }
    }

    pub(crate) fn put(&self, put: &mut Put<'_>) {
        for (first, last) in &self.ranges {
            put.i64(first.get()).i64(last.get());
        }
    }

    /// Takes all that is left.
    pub(crate) fn take(take: &mut Take<'_>) -> Option<LedgerRanges> {
        let mut ranges: Vec<(LedgerId, LedgerId)> = Vec::new();
        while !take.is_empty() {
            let (first, last) = (LedgerId::new(take.i64()?)?, LedgerId::new(take.i64()?)?);
            let is_above = ranges.last().is_none_or(|(_, before)| *before < first);
            if first > last || !is_above || ranges.len() == LedgerRanges::RANGES_MAX {
                return None;
            }
            ranges.push((first, last));
        }
        Some(LedgerRanges { ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id(raw: i64) -> LedgerId {
        LedgerId::new(raw).unwrap()
    }

    proptest! {
        #[test]
        fn a_set_loses_no_id_and_is_read_back(
            ids in prop::collection::vec(prop_oneof![0..2000i64, any::<i64>().prop_map(|id| id & i64::MAX)], 0..900),
            few in prop::collection::btree_set(0..400i64, 0..200),
        ) {
            let mut all = LedgerRanges::default();
            ids.iter().for_each(|ledger| all.insert(id(*ledger)));
            prop_assert!(ids.iter().all(|ledger| all.contains(id(*ledger))));
            prop_assert!(all.ranges.len() <= LedgerRanges::RANGES_MAX);
            let mut bytes = Vec::new();
            all.put(&mut Put(&mut bytes));
            prop_assert_eq!(LedgerRanges::take(&mut Take(&bytes)), Some(all.clone()));
            let cut = LedgerRanges::take(&mut Take(&bytes[..bytes.len().saturating_sub(1)]));
            prop_assert_eq!(cut.is_some(), bytes.is_empty());

            // While they fit it is exact.
            let mut exact = LedgerRanges::default();
            few.iter().for_each(|ledger| exact.insert(id(*ledger)));
            let held: BTreeSet<i64> = (0..400).filter(|ledger| exact.contains(id(*ledger))).collect();
            prop_assert_eq!(held, few);
            all.join(&exact);
            prop_assert!((0..400).all(|ledger| !exact.contains(id(ledger)) || all.contains(id(ledger))));
        }
    }

    #[test]
    fn the_ends_of_all_ids_and_the_smallest_gaps() {
        let mut set = LedgerRanges::default();
        for ledger in [i64::MAX, 0, 1, i64::MAX - 1] {
            set.insert(id(ledger));
        }
        assert_eq!(set.ranges, [(id(0), id(1)), (id(i64::MAX - 1), id(i64::MAX))]);
        (0..100_000).for_each(|ledger| set.insert(id(ledger * 10)));
        assert!(set.contains(id(999_990)) && !set.contains(id(999_991)) && !set.contains(id(1 << 62)));
        for (first, last) in [(2, 1), (0, 5)] {
            let mut bytes = Vec::new();
            Put(&mut bytes).i64(0).i64(3).i64(first).i64(last);
            assert_eq!(LedgerRanges::take(&mut Take(&bytes)), None);
        }
    }
}
