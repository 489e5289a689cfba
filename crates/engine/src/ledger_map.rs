//! A map by ledger id with a hash of one multiplication: every add and every read looks its ledger up, some several times.
//!
//! Ids are chosen by clients, so the hash has a random seed, as the standard one; ids that collide under one are spread
//! under another. Nothing depends on the order of the map.

use bindery_types::LedgerId;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// See the module.
pub(crate) type LedgerMap<T> = HashMap<LedgerId, T, LedgerHash>;

/// Makes hashers of one seed.
#[derive(Clone)]
pub(crate) struct LedgerHash {
    seed: u64,
}

impl Default for LedgerHash {
    fn default() -> LedgerHash {
        LedgerHash { seed: RandomState::new().hash_one(0) }
    }
}

impl BuildHasher for LedgerHash {
    type Hasher = LedgerHasher;
    fn build_hasher(&self) -> LedgerHasher {
        LedgerHasher(self.seed)
    }
}

/// 2^64 divided by the golden ratio: odd, and without a pattern of bits.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Folds what it is given into one number.
pub(crate) struct LedgerHasher(u64);

impl LedgerHasher {
    fn fold(&mut self, value: u64) {
        // Both halves of the product: the map uses the highest bits of the hash, and the lowest.
        let product = u128::from(self.0 ^ value) * u128::from(MULTIPLIER);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for LedgerHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.fold(u64::from(*byte)));
    }

    fn write_i64(&mut self, value: i64) {
        self.fold(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        self.fold(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Ids as generators make them: in a row, in strides, with a constant low or high half. 4,096 of them thrown at random
    /// into 65,536 places take 3,970; all tags of the map, which are the highest 7 bits, are used.
    #[test]
    fn ids_of_any_pattern_spread_over_the_places_and_tags_of_a_map() {
        let seeds = [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 0xdead_beef_0000_0001];
        let patterns: [fn(i64) -> i64; 5] =
            [|i| i, |i| i * 50, |i| i << 16, |i| (i << 32) + 7, |i| (1 << 40) + i * 4096];
        for seed in seeds {
            let hash = LedgerHash { seed };
            for (place, pattern) in patterns.iter().enumerate() {
                let hashes = || (0..4096).map(|i| hash.hash_one(LedgerId::new(pattern(i)).unwrap()));
                let low: HashSet<u64> = hashes().map(|hash| hash & 0xffff).collect();
                let tags: HashSet<u64> = hashes().map(|hash| hash >> 57).collect();
                assert!(low.len() > 3300, "seed {seed:x}, pattern {place}: {} places", low.len());
                assert!(tags.len() > 100, "seed {seed:x}, pattern {place}: {} tags", tags.len());
            }
        }
    }
}
