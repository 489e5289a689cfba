//! Ledgers with which a tierer is done: ranges of ids, because ledgers are numbered one by one and end in about that order.

use std::collections::BTreeMap;

use bindery_types::LedgerId;

/// Ranges at most; when there are more, the set is emptied, and its ledgers are visited once more.
const RANGES_MAX: usize = 1 << 20;

/// A set of ledgers.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Last id by first id. Ranges neither overlap nor touch.
    ranges: BTreeMap<i64, i64>,
    count: u64,
}

impl Done {
    /// Whether it is in.
    pub fn contains(&self, ledger: LedgerId) -> bool {
        self.ranges.range(..=ledger.get()).next_back().is_some_and(|(_, last)| *last >= ledger.get())
    }

    /// Ledgers in it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Puts one in.
    pub fn insert(&mut self, ledger: LedgerId) {
        if self.contains(ledger) {
            return;
        }
        if self.ranges.len() >= RANGES_MAX {
            self.clear();
        }
        self.count += 1;
        let id = ledger.get();
        let (mut first, mut last) = (id, id);
        if let Some((before, end)) = self.ranges.range(..id).next_back().map(|(first, last)| (*first, *last))
            && end + 1 == id
        {
            self.ranges.remove(&before);
            first = before;
        }
        if let Some(end) = id.checked_add(1).and_then(|behind| self.ranges.remove(&behind)) {
            last = end;
        }
        self.ranges.insert(first, last);
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bindery_io::SeededRandom;

    use super::*;

    #[test]
    fn it_is_a_set() {
        let random = SeededRandom::new(1);
        let (mut done, mut model) = (Done::default(), BTreeSet::new());
        for _ in 0..2000 {
            let id = random.below(500) as i64;
            done.insert(LedgerId::new(id).unwrap());
            model.insert(id);
            let probe = random.below(510) as i64;
            assert_eq!(done.contains(LedgerId::new(probe).unwrap()), model.contains(&probe));
        }
        assert_eq!(done.count(), model.len() as u64);
        let gaps = model.iter().filter(|id| !model.contains(&(**id - 1))).count();
        assert_eq!(done.ranges.len(), gaps);
        done.insert(LedgerId::MAX);
        assert!(done.contains(LedgerId::MAX));
    }
}
