//! Which bookies get a ledger's entries (protocol reference, section 7.1).
//!
//! # Invariants
//! 1. An ensemble has distinct, writable bookies; a replacement is none of those that stay and none of those that go.
//! 2. Avoided bookies are chosen only when there are not enough others.
//!
//! # Not here   racks, load, quarantine: a policy sees only candidates and random numbers

use std::collections::BTreeSet;

use bindery_io::Random;
use bindery_types::BookieId;

use crate::error::{BookieAnswers, NotEnoughBookies};

/// The writable bookies at one moment, and those that were seen failing lately.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    /// All that take writes.
    pub writable: Vec<BookieId>,
    /// Those to be used only when the others do not suffice.
    pub avoided: BTreeSet<BookieId>,
    /// Those that are registered and take no writes, for whoever wonders where they are.
    pub read_only: BTreeSet<BookieId>,
}

/// Chooses bookies.
pub trait Placement: Send + Sync {
    /// Up to `count` distinct bookies of `candidates` that are not in `excluded`, the best first. Fewer when there are
    /// fewer.
    fn choose(&self, candidates: &Candidates, excluded: &BTreeSet<BookieId>, count: usize) -> Vec<BookieId>;
}

/// Evenly at random.
pub struct RandomPlacement<R>(pub R);

impl<R: Random> Placement for RandomPlacement<R> {
    fn choose(&self, candidates: &Candidates, excluded: &BTreeSet<BookieId>, count: usize) -> Vec<BookieId> {
        // Through a set: a bookie that changes its registration is listed twice for a moment.
        let usable: BTreeSet<&BookieId> =
            candidates.writable.iter().filter(|bookie| !excluded.contains(*bookie)).collect();
        let (avoided, healthy): (Vec<&BookieId>, Vec<&BookieId>) =
            usable.into_iter().partition(|bookie| candidates.avoided.contains(*bookie));
        let mut chosen = Vec::with_capacity(count);
        for mut pool in [healthy, avoided] {
            while chosen.len() < count && !pool.is_empty() {
                let at = (self.0.next_u64() % pool.len() as u64) as usize;
                chosen.push(pool.swap_remove(at).clone());
            }
        }
        chosen
    }
}

/// A whole ensemble, or an error that says how many bookies there are.
pub(crate) fn choose_ensemble(
    placement: &dyn Placement,
    candidates: &Candidates,
    ensemble_size: usize,
) -> Result<Vec<BookieId>, NotEnoughBookies> {
    let chosen = placement.choose(candidates, &BTreeSet::new(), ensemble_size);
    if chosen.len() < ensemble_size {
        return Err(NotEnoughBookies {
            needed: ensemble_size,
            available: chosen.len(),
            read_only: candidates.read_only.len(),
            failed: BookieAnswers::default(),
        });
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::SeededRandom;

    fn ids(names: &str) -> Vec<BookieId> {
        names.split(' ').map(|name| BookieId::new(name).unwrap()).collect()
    }

    #[test]
    fn chosen_bookies_are_distinct_and_avoided_ones_come_last() {
        let placement = RandomPlacement(SeededRandom::new(1));
        let candidates = Candidates {
            writable: ids("a b c d d"),
            avoided: ids("a").into_iter().collect(),
            ..Candidates::default()
        };
        for _ in 0..100 {
            let excluded = ids("b").into_iter().collect();
            let chosen = placement.choose(&candidates, &excluded, 2);
            assert_eq!(chosen.iter().collect::<BTreeSet<_>>(), ids("c d").iter().collect(), "invariant 2");
            let chosen = placement.choose(&candidates, &excluded, 9);
            assert_eq!(chosen.len(), 3, "invariant 1: {chosen:?}");
            assert_eq!(chosen[2], ids("a")[0], "invariant 2");
        }
        let error = choose_ensemble(&placement, &candidates, 5).unwrap_err();
        assert_eq!((error.needed, error.available, error.read_only), (5, 4, 0));
        assert!(!error.to_string().contains("read-only"), "{error}");
        let candidates = Candidates { read_only: ids("e f").into_iter().collect(), ..candidates };
        let error = choose_ensemble(&placement, &candidates, 5).unwrap_err().to_string();
        assert!(error.starts_with("not enough bookies: 5 needed, 4 available, 2 read-only"), "{error}");
        assert!(error.contains("readOnlyBecause") && error.contains("bindery bookie list"), "{error}");
    }

    #[test]
    fn every_bookie_is_chosen_about_equally_often() {
        let placement = RandomPlacement(SeededRandom::new(2));
        let candidates = Candidates { writable: ids("a b c d"), ..Candidates::default() };
        let mut counts = std::collections::BTreeMap::<_, u32>::new();
        for _ in 0..4000 {
            for bookie in placement.choose(&candidates, &BTreeSet::new(), 2) {
                *counts.entry(bookie).or_default() += 1;
            }
        }
        assert!(counts.values().all(|count| (1800..2200).contains(count)), "{counts:?}");
    }
}
