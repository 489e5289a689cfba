//! How often bookies are chosen: evenly, or in proportion to their free disk space.
//!
//! # Invariants
//! 1. No weight is above a multiple of the median, so that an empty bookie is not flooded.
//! 2. A bookie of which nothing is known counts as the median; one without space counts as the smallest that has some.

use std::collections::BTreeMap;

use bindery_io::Random;
use bindery_types::BookieId;

/// Weights from free bytes. With a multiple of zero nothing is capped.
pub(crate) fn weights(free_bytes: &BTreeMap<BookieId, u64>, multiple_max: u32) -> BTreeMap<BookieId, u64> {
    let mut sorted: Vec<u64> = free_bytes.values().copied().collect();
    sorted.sort_unstable();
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0).max(1);
    let least = sorted.into_iter().find(|&free| free > 0).unwrap_or(1);
    let max = match multiple_max {
        0 => u64::MAX,
        multiple => median.saturating_mul(u64::from(multiple)),
    };
    free_bytes
        .iter()
        .map(|(bookie, &free)| (bookie.clone(), if free > 0 { free.min(max) } else { least.min(max) }))
        .collect()
}

/// Keys for choosing by weight: in ascending order of the keys bookies come as if drawn one after the other, each time
/// in proportion to the weights of those left.
pub(super) struct Lots<'a> {
    weights: &'a BTreeMap<BookieId, u64>,
    /// Of those whose weight is not known.
    median: f64,
}

impl<'a> Lots<'a> {
    pub fn new(weights: &'a BTreeMap<BookieId, u64>) -> Lots<'a> {
        let mut sorted: Vec<u64> = weights.values().copied().collect();
        sorted.sort_unstable();
        Lots { weights, median: sorted.get(sorted.len() / 2).map_or(1.0, |&median| median.max(1) as f64) }
    }

    /// The key of one bookie.
    pub fn draw(&self, bookie: &BookieId, random: &dyn Random) -> f64 {
        let weight = self.weights.get(bookie).map_or(self.median, |&weight| weight.max(1) as f64);
        // Above 0, at most 1.
        let unit = ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        // The first of independent exponential clocks is each one's in proportion to its rate.
        -unit.ln() / weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::SeededRandom;

    fn id(name: &str) -> BookieId {
        BookieId::new(name).unwrap()
    }

    fn free(of: &[(&str, u64)]) -> BTreeMap<BookieId, u64> {
        of.iter().map(|&(name, bytes)| (id(name), bytes)).collect()
    }

    #[test]
    fn weights_are_bounded_by_a_multiple_of_the_median() {
        let bytes = free(&[("a", 100), ("b", 200), ("c", 10_000), ("d", 0), ("e", 300)]);
        let bounded = free(&[("a", 100), ("b", 200), ("c", 600), ("d", 100), ("e", 300)]);
        assert_eq!(weights(&bytes, 3), bounded, "invariants 1 and 2");
        assert_eq!(weights(&bytes, 0)[&id("c")], 10_000, "no bound");
        assert_eq!(weights(&free(&[("a", 0), ("b", 0)]), 3), free(&[("a", 1), ("b", 1)]), "all full: evenly");
        assert_eq!(weights(&free(&[]), 3), free(&[]));
    }

    #[test]
    fn the_smallest_key_is_each_ones_in_proportion_to_its_weight() {
        let weights = free(&[("a", 100), ("b", 200), ("c", 500)]);
        let (lots, random) = (Lots::new(&weights), SeededRandom::new(3));
        let names = ["a", "b", "c", "unknown"].map(id);
        let mut counts = [0u32; 4];
        for _ in 0..10_000 {
            let keys = names.each_ref().map(|name| lots.draw(name, &random));
            let least = (0..4).min_by(|&a, &b| keys[a].total_cmp(&keys[b])).unwrap();
            counts[least] += 1;
        }
        // The unknown one counts as the median, 200.
        for (count, expected) in counts.into_iter().zip([1000, 2000, 5000, 2000]) {
            assert!(count.abs_diff(expected) < expected / 8, "invariant 2: {counts:?}");
        }
    }
}
