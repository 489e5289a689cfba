//! Bookies by luck alone.

use bindery_io::Random;

use super::weight::Lots;
use super::{Candidates, Choice, Placement, Wanted, spares};

/// At random: evenly, or in proportion to the weights of the candidates. Knows nothing of racks.
pub struct RandomPlacement<R>(pub R);

impl<R: Random + 'static> Placement for RandomPlacement<R> {
    fn choose(&self, candidates: &Candidates, wanted: Wanted<'_>) -> Choice {
        let (healthy, avoided) = spares(candidates, wanted);
        let lots = Lots::new(&candidates.weights);
        let mut bookies = Vec::with_capacity(wanted.positions.len());
        for pool in [healthy, avoided] {
            let mut drawn: Vec<_> =
                pool.into_iter().map(|bookie| (lots.draw(bookie, &self.0), bookie)).collect();
            drawn.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            let missing = wanted.positions.len() - bookies.len();
            bookies.extend(drawn.into_iter().take(missing).map(|(_, bookie)| bookie.clone()));
        }
        Choice { bookies, unmet: None }
    }

    fn wants_locations(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::choose_ensemble;
    use bindery_io::SeededRandom;
    use bindery_types::{BookieId, Quorum};
    use std::collections::{BTreeMap, BTreeSet};

    fn ids(names: &str) -> Vec<BookieId> {
        names.split(' ').map(|name| BookieId::new(name).unwrap()).collect()
    }

    fn quorum(size: usize) -> Quorum {
        Quorum::new(size, size, size).unwrap()
    }

    #[test]
    fn chosen_bookies_are_distinct_and_avoided_ones_come_last() {
        let placement = RandomPlacement(SeededRandom::new(1));
        let candidates = Candidates {
            writable: ids("a b c d d"),
            avoided: ids("a").into_iter().collect(),
            ..Candidates::default()
        };
        let ensemble = ids("b x y");
        for _ in 0..100 {
            let wanted = Wanted { quorum: quorum(3), ensemble: &ensemble, positions: &[2, 0] };
            let chosen = placement.choose(&candidates, wanted).bookies;
            assert_eq!(chosen.iter().collect::<BTreeSet<_>>(), ids("c d").iter().collect(), "invariant 2");
            let chosen = placement.choose(&candidates, Wanted { positions: &[0; 9], ..wanted }).bookies;
            assert_eq!(chosen.len(), 3, "invariant 1: {chosen:?}");
            assert_eq!(chosen[2], ids("a")[0], "invariant 2");
        }
        let error = choose_ensemble(&placement, &candidates, quorum(5)).unwrap_err().to_string();
        assert!(error.contains("not enough bookies: 5 needed, 4 available"), "{error}");
        assert!(!error.contains("read-only"), "{error}");
        let candidates = Candidates { read_only: ids("e f").into_iter().collect(), ..candidates };
        let error = choose_ensemble(&placement, &candidates, quorum(5)).unwrap_err().to_string();
        assert!(error.contains("not enough bookies: 5 needed, 4 available, 2 read-only"), "{error}");
        assert!(error.contains("readOnlyBecause") && error.contains("bindery bookie list"), "{error}");
    }

    #[test]
    fn every_bookie_is_chosen_about_equally_often() {
        let placement = RandomPlacement(SeededRandom::new(2));
        let candidates = Candidates { writable: ids("a b c d"), ..Candidates::default() };
        let mut counts = BTreeMap::<_, u32>::new();
        for _ in 0..4000 {
            for bookie in choose_ensemble(&placement, &candidates, quorum(2)).unwrap() {
                *counts.entry(bookie).or_default() += 1;
            }
        }
        assert!(counts.values().all(|count| (1800..2200).contains(count)), "{counts:?}");
    }
}
