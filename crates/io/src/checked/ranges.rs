//! Sets of byte ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges that do not touch: the end of each by its start.
#[derive(Debug, Default, Clone)]
pub(super) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut begin, mut end) = (range.start, range.end);
        while let Some((&b, &e)) = self.0.range(..=end).next_back().filter(|&(_, &e)| e >= begin) {
            self.0.remove(&b);
            begin = begin.min(b);
            end = end.max(e);
        }
        self.0.insert(begin, end);
    }

    pub(super) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&b, &e)) = self.0.range(..range.end).next_back().filter(|&(_, &e)| e > range.start) {
            self.0.remove(&b);
            if b < range.start {
                self.0.insert(b, range.start);
            }
            if e > range.end {
                self.0.insert(range.end, e);
            }
        }
    }

    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && self.0.range(..range.end).next_back().is_some_and(|(_, &e)| e > range.start)
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(b, e)| e - b).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&b, &e)| b..e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_set_agrees_with_a_bitmap(steps in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 0..40)) {
            let mut set = RangeSet::default();
            let mut bits = [false; 64];
            for (add, begin, len) in steps {
                let range = begin..begin + len;
                prop_assert_eq!(set.overlaps(&range), bits[begin as usize..(begin + len) as usize].contains(&true));
                if add { set.insert(range.clone()) } else { set.remove(range.clone()) }
                bits[begin as usize..(begin + len) as usize].fill(add);
                prop_assert_eq!(set.total(), bits.iter().filter(|&&b| b).count() as u64);
            }
            let ends: Vec<Range<u64>> = set.iter().collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ends);
        }
    }
}
