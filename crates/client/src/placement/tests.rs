//! Policies over random topologies, against trying everything.

use std::collections::{BTreeMap, BTreeSet};

use bindery_io::{Random, SeededRandom};
use bindery_types::{BookieId, Quorum};
use proptest::prelude::*;

use super::*;

/// Bookies named `b0`, `b1` ... at these places.
fn candidates(places: &[&str]) -> Candidates {
    let writable: Vec<BookieId> =
        (0..places.len()).map(|index| BookieId::new(format!("b{index}")).unwrap()).collect();
    let locations = writable.iter().cloned().zip(places.iter().map(|place| Location::new(place).unwrap()));
    Candidates { locations: locations.collect(), writable, ..Candidates::default() }
}

fn quorum(ensemble_size: usize, write_quorum_size: usize) -> Quorum {
    Quorum::new(ensemble_size, write_quorum_size, 1).unwrap()
}

fn avoid(mut candidates: Candidates, indexes: &[usize]) -> Candidates {
    candidates.avoided = indexes.iter().map(|&index| candidates.writable[index].clone()).collect();
    candidates
}

fn create(placement: &dyn Placement, candidates: &Candidates, quorum: Quorum) -> Choice {
    let positions: Vec<usize> = (0..quorum.ensemble_size()).collect();
    placement.choose(candidates, Wanted { quorum, ensemble: &[], positions: &positions })
}

/// The fewest domains that a write set has.
fn least(
    candidates: &Candidates,
    quorum: Quorum,
    ensemble: &[BookieId],
    of: impl Fn(&Location) -> &str,
) -> usize {
    let size = ensemble.len();
    let in_set = |first: usize| {
        let set = (0..quorum.write_quorum_size()).map(|offset| &ensemble[(first + offset) % size]);
        set.map(|bookie| of(&candidates.locations[bookie])).collect::<BTreeSet<_>>().len()
    };
    (0..size).map(in_set).min().unwrap()
}

/// The best that any choice of bookies for the free positions gives: by trying all.
fn best_by_trying(candidates: &Candidates, quorum: Quorum, ensemble: &mut Vec<Option<BookieId>>) -> usize {
    let Some(free) = ensemble.iter().position(Option::is_none) else {
        let whole: Vec<BookieId> = ensemble.iter().flatten().cloned().collect();
        return least(candidates, quorum, &whole, Location::rack);
    };
    let mut best = 0;
    // One bookie of each rack: the others are like it.
    let mut seen = BTreeSet::new();
    for bookie in &candidates.writable {
        if !ensemble.contains(&Some(bookie.clone())) && seen.insert(&candidates.locations[bookie]) {
            ensemble[free] = Some(bookie.clone());
            best = best.max(best_by_trying(candidates, quorum, ensemble));
            ensemble[free] = None;
        }
    }
    best
}

const RACKS: [&str; 4] = ["/r0", "/r1", "/r2", "/r3"];

/// Racks of the bookies, ensemble size that leaves `spare` of them, write quorum, racks asked for, seed.
fn topology(spare: usize) -> impl Strategy<Value = (Vec<usize>, usize, usize, usize, u64)> {
    let racks = proptest::collection::vec(0..4usize, 1 + spare..9);
    (racks, 0..6usize, 0..6usize, 1..4usize, any::<u64>()).prop_map(move |(racks, e, qw, min, seed)| {
        let e = 1 + e % (racks.len() - spare);
        (racks, e, 1 + qw % e, min, seed)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_new_ensemble_is_spread_as_well_as_any((racks, e, qw, min, seed) in topology(0)) {
        let places: Vec<&str> = racks.iter().map(|&rack| RACKS[rack]).collect();
        let candidates = candidates(&places);
        let quorum = quorum(e, qw);
        let best = best_by_trying(&candidates, quorum, &mut vec![None; e]);
        let wanted = min.min(qw);

        let choice = create(&RackAware::new(SeededRandom::new(seed)).racks_min(min), &candidates, quorum);
        prop_assert_eq!(choice.bookies.iter().collect::<BTreeSet<_>>().len(), e, "invariant 1");
        let found = least(&candidates, quorum, &choice.bookies, Location::rack);
        prop_assert!(found >= wanted.min(best), "invariant 3: {found} of {best}: {choice:?}");
        prop_assert_eq!(choice.unmet.map(|unmet| unmet.available), (found < wanted).then_some(found));

        let enforced = RackAware::new(SeededRandom::new(seed)).racks_min(min).enforced(true);
        let choice = create(&enforced, &candidates, quorum);
        if best >= wanted {
            prop_assert_eq!(choice.bookies.len(), e, "invariant 3: there is a way");
            prop_assert!(least(&candidates, quorum, &choice.bookies, Location::rack) >= wanted, "{choice:?}");
        } else {
            prop_assert!(choice.bookies.is_empty() && choice.unmet.is_some(), "{choice:?}");
        }
    }

    #[test]
    fn replacements_keep_the_spread_as_well_as_any(
        (racks, e, qw, min, seed) in topology(2),
        leaving in proptest::collection::vec(0..6usize, 1..3),
    ) {
        let places: Vec<&str> = racks.iter().map(|&rack| RACKS[rack]).collect();
        let candidates = candidates(&places);
        let positions: BTreeSet<usize> = leaving.into_iter().map(|position| position % e).collect();
        let positions = Vec::from_iter(positions);
        let quorum = quorum(e, qw);
        let random = SeededRandom::new(seed);
        let ensemble = create(&RandomPlacement(SeededRandom::new(seed)), &candidates, quorum).bookies;
        // Those that leave are not chosen again.
        let mut rest = candidates.clone();
        rest.writable.retain(|bookie| !ensemble.contains(bookie));
        let mut staying: Vec<Option<BookieId>> = ensemble.iter().cloned().map(Some).collect();
        positions.iter().for_each(|&position| staying[position] = None);
        let best = best_by_trying(&rest, quorum, &mut staying);

        let placement = RackAware::new(SeededRandom::new(random.next_u64())).racks_min(min);
        let wanted = Wanted { quorum, ensemble: &ensemble, positions: &positions };
        let replace = |choice: &Choice| {
            let mut replaced = ensemble.clone();
            for (&position, bookie) in positions.iter().zip(&choice.bookies) {
                replaced[position] = bookie.clone();
            }
            replaced
        };
        let choice = placement.choose(&candidates, wanted);
        prop_assert_eq!(choice.bookies.len(), positions.len());
        prop_assert!(choice.bookies.iter().all(|bookie| !ensemble.contains(bookie)), "invariant 1");
        let found = least(&candidates, quorum, &replace(&choice), Location::rack);
        prop_assert!(found >= best.min(min.min(qw)), "invariant 3: {found} of {best}: {choice:?}");

        let choice = placement.enforced(true).choose(&candidates, wanted);
        if best >= min.min(qw) {
            prop_assert_eq!(choice.bookies.len(), positions.len(), "invariant 3: there is a way");
            prop_assert!(least(&candidates, quorum, &replace(&choice), Location::rack) >= min.min(qw));
        } else if choice.bookies.len() == positions.len() {
            // Write sets without a position that is replaced stay as they are.
            let touched = |first: usize| (0..qw).any(|offset| positions.contains(&((first + offset) % e)));
            let replaced = replace(&choice);
            for first in (0..e).filter(|&first| touched(first)) {
                let racks: BTreeSet<&Location> =
                    (0..qw).map(|offset| &candidates.locations[&replaced[(first + offset) % e]]).collect();
                prop_assert!(racks.len() >= min.min(qw), "invariant 3: {choice:?}");
            }
        }
    }

    #[test]
    fn avoided_bookies_are_used_only_when_needed(
        (racks, e, qw, min, seed) in topology(0),
        avoided in proptest::collection::btree_set(0..8usize, 0..8),
    ) {
        let places: Vec<&str> = racks.iter().map(|&rack| RACKS[rack]).collect();
        let avoided: Vec<usize> = avoided.into_iter().filter(|&index| index < places.len()).collect();
        let candidates = avoid(candidates(&places), &avoided);
        let quorum = quorum(e, qw);
        let used = |choice: &Choice| {
            choice.bookies.iter().filter(|bookie| candidates.avoided.contains(*bookie)).count()
        };
        let healthy = places.len() - avoided.len();
        let placement = RackAware::new(SeededRandom::new(seed)).racks_min(min);
        prop_assert_eq!(used(&create(&placement, &candidates, quorum)), e.saturating_sub(healthy), "invariant 2");
        let choice = create(&placement.enforced(true), &candidates, quorum);
        // The fewest with which the spread can be had.
        let fewest = (0..1u32 << avoided.len())
            .filter(|taken| {
                let mut some = candidates.clone();
                some.writable.retain(|bookie| {
                    let at = avoided.iter().position(|&index| candidates.writable[index] == *bookie);
                    at.is_none_or(|at| taken & (1 << at) != 0)
                });
                some.writable.len() >= e && best_by_trying(&some, quorum, &mut vec![None; e]) >= min.min(qw)
            })
            .map(u32::count_ones)
            .min();
        prop_assert_eq!((choice.bookies.len() == e).then(|| used(&choice)), fewest.map(|count| count as usize));
    }

    #[test]
    fn regions_are_used_evenly(sizes in proptest::collection::vec(1..5usize, 2..4), e in 2..7usize, seed in any::<u64>()) {
        let places: Vec<String> = sizes.iter().enumerate()
            .flat_map(|(region, &size)| (0..size).map(move |rack| format!("/region{region}/r{rack}")))
            .collect();
        let candidates = candidates(&places.iter().map(String::as_str).collect::<Vec<_>>());
        let e = e.min(places.len());
        let choice = create(&RegionAware::new(SeededRandom::new(seed)), &candidates, quorum(e, e));
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for bookie in &choice.bookies {
            *counts.entry(candidates.locations[bookie].region()).or_default() += 1;
        }
        // Nobody has two more than another one that has a bookie left.
        for (region, &size) in sizes.iter().enumerate() {
            let count = counts.get(format!("region{region}").as_str()).copied().unwrap_or(0);
            let most = counts.values().copied().max().unwrap();
            prop_assert!(count + 1 >= most || count == size, "{counts:?} of {sizes:?}");
        }
        prop_assert_eq!(choice.unmet, None);
    }
}

#[test]
fn a_tight_topology_is_found_at_every_seed() {
    // Six bookies of one rack and six of others: with Qw 2 they must alternate, and luck alone seldom does.
    let mut places = vec!["/big"; 6];
    places.extend(["/r1", "/r2", "/r3", "/r1", "/r2", "/r3"]);
    let candidates = candidates(&places);
    for seed in 0..500 {
        let placement = RackAware::new(SeededRandom::new(seed)).enforced(true);
        let choice = create(&placement, &candidates, quorum(12, 2));
        assert_eq!(choice.bookies.len(), 12, "seed {seed}");
        assert_eq!(least(&candidates, quorum(12, 2), &choice.bookies, Location::rack), 2);
    }
}

#[test]
fn a_replacement_comes_from_the_same_rack_unless_that_rack_is_ill() {
    let candidates = candidates(&["/a", "/b", "/a", "/b", "/a", "/c"]);
    let ensemble = candidates.writable[..2].to_vec();
    let replace = |candidates: &Candidates, seed| {
        let wanted = Wanted { quorum: quorum(2, 2), ensemble: &ensemble, positions: &[0] };
        let choice = RackAware::new(SeededRandom::new(seed)).choose(candidates, wanted);
        candidates.locations[&choice.bookies[0]].clone()
    };
    let ill = avoid(candidates.clone(), &[0, 2]);
    for seed in 0..100 {
        assert_eq!(replace(&candidates, seed).rack(), "/a");
        assert_eq!(
            replace(&ill, seed).rack(),
            "/c",
            "two of three bookies of /a are avoided, and /b is taken"
        );
    }
}

#[test]
fn a_replacement_stays_in_the_region() {
    let candidates = candidates(&["/eu/1", "/us/1", "/eu/2", "/us/2", "/us/3"]);
    let ensemble = candidates.writable[..2].to_vec();
    for seed in 0..100 {
        let wanted = Wanted { quorum: quorum(2, 2), ensemble: &ensemble, positions: &[0] };
        let choice = RegionAware::new(SeededRandom::new(seed)).choose(&candidates, wanted);
        assert_eq!(candidates.locations[&choice.bookies[0]].rack(), "/eu/2");
    }
}

#[test]
fn enforced_a_spread_that_cannot_be_had_is_an_error_that_says_why() {
    let candidates = candidates(&["/r1", "/r1", "/default-rack", "/default-region/default-rack"]);
    let placement = RackAware::new(SeededRandom::new(1));
    let ensemble = choose_ensemble(&placement, &candidates, quorum(3, 3)).unwrap();
    assert_eq!(ensemble.len(), 3, "not enforced, anything will do");
    let placement = placement.enforced(true);
    let error = choose_ensemble(&placement, &candidates, quorum(2, 2)).unwrap_err();
    let unmet = Unmet { domain: "racks", needed: 2, available: 1, left_out: 2 };
    assert_eq!(error, CreateError::CannotSpread { unmet, places: None });
    let message = error.to_string();
    assert!(message.contains("every write set on 2 racks, 1 can be had (2 bookies left out"), "{message}");
    assert!(message.contains("Start bookies on other racks"), "{message}");
    let error = choose_ensemble(&placement, &candidates, quorum(5, 2)).unwrap_err();
    assert!(matches!(error, CreateError::NotEnoughBookies(_)), "{error}");
    let regions = RegionAware::new(SeededRandom::new(1)).regions(["r1".into()]).enforced(true);
    let error = choose_ensemble(&regions, &candidates, quorum(2, 2)).unwrap_err();
    assert!(
        matches!(error, CreateError::CannotSpread { unmet: Unmet { domain: "regions", .. }, .. }),
        "{error}"
    );
    assert_eq!(create(&regions.regions_min(1).racks_min(1), &candidates, quorum(2, 2)).bookies.len(), 2);
}

#[test]
fn enforced_a_failed_bookie_without_a_replacement_elsewhere_is_not_replaced() {
    let candidates = candidates(&["/a", "/b", "/c", "/a", "/c"]);
    let ensemble = candidates.writable[..3].to_vec();
    let placement = RackAware::new(SeededRandom::new(1)).racks_min(3).enforced(true);
    let replace = |positions: &[usize]| {
        placement.choose(&candidates, Wanted { quorum: quorum(3, 3), ensemble: &ensemble, positions })
    };
    let choice = replace(&[1]);
    assert_eq!((choice.bookies.len(), choice.unmet.is_some()), (0, true), "nobody else is on /b");
    assert_eq!(replace(&[0, 2]).bookies.len(), 2);
    assert_eq!(replace(&[0, 1]).bookies, candidates.writable[3..4], "the first, and the other one stays");
}

/// Shares in percent over many ensembles of one bookie.
fn shares(candidates: &Candidates, placement: &dyn Placement) -> Vec<u32> {
    let mut counts: BTreeMap<BookieId, u32> = BTreeMap::new();
    for _ in 0..10_000 {
        for bookie in create(placement, candidates, quorum(1, 1)).bookies {
            *counts.entry(bookie).or_default() += 1;
        }
    }
    candidates.writable.iter().map(|bookie| counts.get(bookie).copied().unwrap_or(0) / 100).collect()
}

#[test]
fn bookies_are_chosen_by_weight_whatever_the_racks() {
    let mut candidates = candidates(&["/a", "/a", "/b", "/c"]);
    let free = candidates.writable.iter().cloned().zip([100, 200, 300, 400]).collect();
    candidates.weights = weight::weights(&free, 3);
    let placements: [Box<dyn Placement>; 3] = [
        Box::new(RandomPlacement(SeededRandom::new(5))),
        Box::new(RackAware::new(SeededRandom::new(6))),
        Box::new(RegionAware::new(SeededRandom::new(7))),
    ];
    for placement in placements {
        for (share, expected) in shares(&candidates, &*placement).into_iter().zip([10u32, 20, 30, 40]) {
            assert!(share.abs_diff(expected) <= 2, "{:?}", shares(&candidates, &*placement));
        }
    }
}

#[test]
fn equal_bookies_of_unequal_racks_share_what_their_racks_allow() {
    // Three racks of two: an ensemble of two on two racks leaves everybody the same share.
    let candidates = candidates(&["/a", "/a", "/b", "/b", "/c", "/c"]);
    let placement = RackAware::new(SeededRandom::new(9));
    let mut counts: BTreeMap<BookieId, u32> = BTreeMap::new();
    for _ in 0..6000 {
        for bookie in create(&placement, &candidates, quorum(2, 2)).bookies {
            *counts.entry(bookie).or_default() += 1;
        }
    }
    assert!(counts.values().all(|count| (1850..2150).contains(count)), "{counts:?}");
}

#[test]
fn a_large_ensemble_that_cannot_be_spread_ends_soon() {
    // 60 of one rack, 8 of others: no perfect solution, and far too many to try.
    let mut places = vec!["/big"; 60];
    places.extend(["/r1", "/r2", "/r3", "/r4", "/r5", "/r6", "/r7", "/r8"]);
    let candidates = candidates(&places);
    let choice = create(&RackAware::new(SeededRandom::new(1)), &candidates, quorum(40, 3));
    assert_eq!(choice.bookies.len(), 40);
    assert!(choice.unmet.is_some());
    let used = choice.bookies.iter().filter(|bookie| candidates.locations[*bookie].rack() != "/big").count();
    assert_eq!(used, 8, "all that help");
    // More seats than are ever tried again.
    let places: Vec<String> = (0..400).map(|index| format!("/r{}", index % 3)).collect();
    let candidates = self::candidates(&places.iter().map(String::as_str).collect::<Vec<_>>());
    let choice = create(&RackAware::new(SeededRandom::new(1)), &candidates, quorum(300, 3));
    assert_eq!(choice.bookies.iter().collect::<BTreeSet<_>>().len(), 300);
}

#[test]
fn an_ensemble_is_judged_by_its_worst_write_set() {
    let candidates = candidates(&["/a/r0", "/a/r0", "/a/r1", "/b/r2"]);
    let ensemble = |indexes: &[usize]| -> Vec<BookieId> {
        indexes.iter().map(|&index| candidates.writable[index].clone()).collect()
    };
    let racks = RackAware::new(SeededRandom::new(1));
    assert_eq!(racks.lacking(&candidates, quorum(3, 3), &ensemble(&[0, 1, 2])), None);
    let found = racks.lacking(&candidates, quorum(3, 2), &ensemble(&[0, 1, 2])).unwrap();
    assert_eq!((found.domain, found.needed, found.available), ("racks", 2, 1), "entries of the first two");
    assert_eq!(racks.lacking(&candidates, quorum(1, 1), &ensemble(&[0])), None, "one bookie has one rack");
    let regions = RegionAware::new(SeededRandom::new(1));
    let found = regions.lacking(&candidates, quorum(3, 3), &ensemble(&[0, 1, 2])).unwrap();
    assert_eq!((found.domain, found.available), ("regions", 1));
    assert_eq!(regions.lacking(&candidates, quorum(3, 3), &ensemble(&[0, 2, 3])), None);
    assert_eq!(
        RandomPlacement(SeededRandom::new(1)).lacking(&candidates, quorum(2, 2), &ensemble(&[0, 1])),
        None
    );
}
