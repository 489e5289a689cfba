//! Policies that know where bookies stand: write sets are spread over racks, and over regions.
//!
//! # What operators know from BookKeeper
//! | here | there |
//! |---|---|
//! | [`RackAware`] | `RackawareEnsemblePlacementPolicy` |
//! | [`RackAware::racks_min`] | `minNumRacksPerWriteQuorum` |
//! | [`RackAware::enforced`] | `enforceMinNumRacksPerWriteQuorum`: bookies in the default rack are not used then |
//! | [`RegionAware`] | `RegionAwareEnsemblePlacementPolicy` |
//! | [`RegionAware::regions_min`] | `reppMinimumRegionsForDurability` |
//! | [`RegionAware::regions`] | `reppRegionsToWrite` |
//!
//! The order of what matters: enforced spread; then that avoided bookies are not used; then spread that is not enforced;
//! then, of a replacement, the rack of the bookie that leaves, unless most bookies of that rack are avoided; then weights.
//! BookKeeper has the same order, finds a spread only by luck, and then does without.

use std::collections::{BTreeMap, BTreeSet};

use bindery_io::Random;
use bindery_types::{BookieId, Quorum};

use super::spread::{Domains, Goal, Problem, RACK, REGION, Seat, Spare, seat};
use super::weight::Lots;
use super::{Candidates, Choice, Location, Placement, Unmet, Wanted, spares};

/// Default of [`RackAware::racks_min`] and [`RegionAware::regions_min`].
const SPREAD_DEFAULT: usize = 2;

/// Every write set has bookies of several racks, as far as there are several.
#[derive(Debug, Clone)]
pub struct RackAware<R> {
    random: R,
    rules: Rules,
}

impl<R: Random> RackAware<R> {
    /// Two racks, not enforced.
    pub fn new(random: R) -> RackAware<R> {
        RackAware { random, rules: Rules { racks_min: SPREAD_DEFAULT, ..Rules::default() } }
    }

    /// Racks that each write set is to have: at most as many as it has bookies, and at most as many as there are.
    pub fn racks_min(mut self, racks: usize) -> Self {
        self.rules.racks_min = racks;
        self
    }

    /// Whether a ledger that cannot be spread is not created, and a failed bookie is not replaced by one that would break
    /// the spread: the ledger goes on with its ack quorum instead, marked as under-replicated. Bookies of which no rack is
    /// known are not used.
    pub fn enforced(mut self, is_enforced: bool) -> Self {
        self.rules.is_enforced = is_enforced;
        self
    }
}

impl<R: Random + 'static> Placement for RackAware<R> {
    fn choose(&self, candidates: &Candidates, wanted: Wanted<'_>) -> Choice {
        choose(&self.rules, candidates, wanted, &self.random)
    }

    fn lacking(&self, candidates: &Candidates, quorum: Quorum, ensemble: &[BookieId]) -> Option<Unmet> {
        self.rules.lacking_of(candidates, quorum, ensemble)
    }
}

/// Every write set has bookies of several regions, evenly, and inside them of several racks. A failed bookie is replaced
/// by one of its region.
#[derive(Debug, Clone)]
pub struct RegionAware<R> {
    random: R,
    rules: Rules,
}

impl<R: Random> RegionAware<R> {
    /// Two regions, two racks, not enforced, all regions.
    pub fn new(random: R) -> RegionAware<R> {
        let rules =
            Rules { racks_min: SPREAD_DEFAULT, regions_min: Some(SPREAD_DEFAULT), ..Rules::default() };
        RegionAware { random, rules }
    }

    /// Racks that each write set is to have, see [`RackAware::racks_min`].
    pub fn racks_min(mut self, racks: usize) -> Self {
        self.rules.racks_min = racks;
        self
    }

    /// Regions that each write set is to have: at most as many as it has bookies, and at most as many as there are.
    pub fn regions_min(mut self, regions: usize) -> Self {
        self.rules.regions_min = Some(regions);
        self
    }

    /// Regions to write to; bookies elsewhere are not used. All when none is named.
    pub fn regions(mut self, regions: impl IntoIterator<Item = String>) -> Self {
        self.rules.regions = regions.into_iter().collect();
        self
    }

    /// See [`RackAware::enforced`]; here also of regions.
    pub fn enforced(mut self, is_enforced: bool) -> Self {
        self.rules.is_enforced = is_enforced;
        self
    }
}

impl<R: Random + 'static> Placement for RegionAware<R> {
    fn choose(&self, candidates: &Candidates, wanted: Wanted<'_>) -> Choice {
        choose(&self.rules, candidates, wanted, &self.random)
    }

    fn lacking(&self, candidates: &Candidates, quorum: Quorum, ensemble: &[BookieId]) -> Option<Unmet> {
        self.rules.lacking_of(candidates, quorum, ensemble)
    }
}

#[derive(Debug, Clone, Default)]
struct Rules {
    racks_min: usize,
    /// `None` when regions do not matter.
    regions_min: Option<usize>,
    /// Empty for all.
    regions: BTreeSet<String>,
    is_enforced: bool,
}

impl Rules {
    fn admits(&self, location: &Location) -> bool {
        let is_known = !(self.is_enforced && location.is_default());
        is_known && (self.regions.is_empty() || self.regions.contains(location.region()))
    }

    /// Domain, its name, and how many of it each write set should have.
    fn spreads(&self, write_quorum_size: usize) -> Vec<(usize, &'static str, usize)> {
        let regions = self.regions_min.map(|min| (REGION, "regions", min.min(write_quorum_size)));
        let racks = (RACK, "racks", self.racks_min.min(write_quorum_size));
        regions.into_iter().chain([racks]).collect()
    }

    /// The first spread that the worst write set of an ensemble lacks, by the domains of its members.
    fn lacking(&self, quorum: Quorum, ensemble: &[Domains], left_out: usize) -> Option<Unmet> {
        let write_set = |first: usize| {
            (0..quorum.write_quorum_size()).map(move |offset| (first + offset) % quorum.ensemble_size())
        };
        self.spreads(quorum.write_quorum_size()).into_iter().find_map(|(domain, name, needed)| {
            let of = |first| write_set(first).map(|at| ensemble[at][domain]).collect::<BTreeSet<_>>().len();
            let available = (0..quorum.ensemble_size()).map(of).min().unwrap_or(0);
            (available < needed).then_some(Unmet { domain: name, needed, available, left_out })
        })
    }

    /// The same by their places.
    fn lacking_of(&self, candidates: &Candidates, quorum: Quorum, ensemble: &[BookieId]) -> Option<Unmet> {
        let (mut numbers, unknown) = (Numbers::default(), Location::default());
        let domains = |bookie| numbers.of(candidates.locations.get(bookie).unwrap_or(&unknown));
        let domains: Vec<Domains> = ensemble.iter().map(domains).collect();
        (domains.len() == quorum.ensemble_size()).then(|| self.lacking(quorum, &domains, 0)).flatten()
    }
}

/// Gives regions and racks their numbers.
#[derive(Default)]
struct Numbers<'a>([BTreeMap<&'a str, u32>; 2]);

impl<'a> Numbers<'a> {
    fn of(&mut self, location: &'a Location) -> Domains {
        let names = [location.region(), location.rack()];
        std::array::from_fn(|domain| {
            let next = self.0[domain].len() as u32;
            *self.0[domain].entry(names[domain]).or_insert(next)
        })
    }
}

fn choose(rules: &Rules, candidates: &Candidates, wanted: Wanted<'_>, random: &dyn Random) -> Choice {
    let unknown = Location::default();
    let location = |bookie: &BookieId| candidates.locations.get(bookie).unwrap_or(&unknown);
    let (healthy, avoided) = spares(candidates, wanted);
    let all = healthy.len() + avoided.len();
    let usable: Vec<(&BookieId, bool)> = (healthy.into_iter().map(|bookie| (bookie, false)))
        .chain(avoided.into_iter().map(|bookie| (bookie, true)))
        .filter(|(bookie, _)| rules.admits(location(bookie)))
        .collect();
    let (mut numbers, lots) = (Numbers::default(), Lots::new(&candidates.weights));
    let spares: Vec<Spare> = usable
        .iter()
        .map(|&(bookie, is_avoided)| {
            let domains = numbers.of(location(bookie));
            Spare { domains, is_avoided, key: lots.draw(bookie, random) }
        })
        .collect();
    let members: Vec<Domains> = wanted.ensemble.iter().map(|bookie| numbers.of(location(bookie))).collect();
    let chooser =
        Chooser { rules, wanted, spares: &spares, members: &members, ill: ill_racks(candidates, &numbers) };
    let count_max = wanted.positions.len().min(spares.len());
    let is_new = wanted.ensemble.is_empty();
    if is_new && count_max < wanted.positions.len() && !rules.is_enforced {
        return Choice {
            bookies: usable.into_iter().map(|(bookie, _)| bookie.clone()).collect(),
            unmet: None,
        };
    }
    // As many as can be; an ensemble is whole from the beginning.
    let counts = if is_new { wanted.positions.len()..=count_max } else { 1..=count_max };
    for count in counts.rev() {
        if let Some(chosen) = chooser.choose(count) {
            let bookies = chosen.iter().map(|&spare| usable[spare].0.clone()).collect();
            return Choice { bookies, unmet: chooser.unmet(&chosen, all - spares.len()) };
        }
    }
    let is_short_anyway = all < wanted.positions.len();
    let unmet = (!is_short_anyway).then(|| chooser.unmet_in_all(all - spares.len())).flatten();
    let bookies = usable.into_iter().map(|(bookie, _)| bookie.clone());
    Choice { bookies: bookies.take(if is_new && unmet.is_none() { all } else { 0 }).collect(), unmet }
}

/// Racks most bookies of which are avoided: whoever leaves one is better replaced from another.
fn ill_racks(candidates: &Candidates, numbers: &Numbers<'_>) -> BTreeSet<u32> {
    let mut counts: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for bookie in candidates.writable.iter().collect::<BTreeSet<_>>() {
        let rack = candidates.locations.get(bookie).and_then(|known| numbers.0[RACK].get(known.rack()));
        if let Some(&rack) = rack {
            let (all, avoided) = counts.entry(rack).or_default();
            *all += 1;
            *avoided += usize::from(candidates.avoided.contains(bookie));
        }
    }
    counts.into_iter().filter(|(_, (all, avoided))| avoided * 2 > *all).map(|(rack, _)| rack).collect()
}

struct Chooser<'a> {
    rules: &'a Rules,
    wanted: Wanted<'a>,
    spares: &'a [Spare],
    /// Of the ensemble as it is.
    members: &'a [Domains],
    ill: BTreeSet<u32>,
}

impl Chooser<'_> {
    /// Spares for the first `count` positions; `None` when an enforced spread cannot be had so.
    fn choose(&self, count: usize) -> Option<Vec<usize>> {
        let healthy = self.spares.iter().filter(|spare| !spare.is_avoided).count();
        let least = count.saturating_sub(healthy);
        let found = self.choose_with(count, least);
        if found.is_some() || !self.rules.is_enforced {
            return found;
        }
        // Avoided ones may make a spread possible: as few as that takes.
        let most = (self.spares.len() - healthy).min(count);
        let mut found = self.choose_with(count, most)?;
        for avoided_max in least + 1..most {
            if let Some(fewer) = self.choose_with(count, avoided_max) {
                found = fewer;
                break;
            }
        }
        Some(found)
    }

    fn choose_with(&self, count: usize, avoided_max: usize) -> Option<Vec<usize>> {
        let quorum = self.wanted.quorum;
        let (seated_now, left_as_they_are) = self.wanted.positions.split_at(count);
        let mut seated: Vec<Option<Domains>> = match self.members {
            [] => vec![None; quorum.ensemble_size()],
            members => members.iter().copied().map(Some).collect(),
        };
        debug_assert!(self.members.is_empty() <= left_as_they_are.is_empty(), "a new ensemble is whole");
        let mut seats = Vec::with_capacity(count);
        for &position in seated_now {
            let before = seated[position].take();
            let shuns_rack = before.is_some_and(|domains| self.ill.contains(&domains[RACK]));
            seats.push(Seat { position, before, shuns_rack });
        }
        let spreads = self.rules.spreads(quorum.write_quorum_size());
        let mut goals: Vec<Goal> = spreads
            .iter()
            .map(|&(domain, _, target)| {
                // A spread that is out of reach is not aimed for, so the search knows when it has the best one.
                let there =
                    if self.rules.is_enforced { target } else { self.count(domain, &seated, avoided_max) };
                Goal::Spread { domain, target: target.min(there) }
            })
            .collect();
        if self.rules.regions_min.is_some() {
            goals.push(Goal::Even { domain: REGION });
        }
        let seating = seat(&Problem {
            write_quorum_size: quorum.write_quorum_size(),
            seated: &seated,
            seats: &seats,
            spares: self.spares,
            goals: &goals,
            avoided_max,
            prefers_region: self.rules.regions_min.is_some(),
        })?;
        let is_spread = seating.cost[..spreads.len()].iter().all(|&cost| cost == 0);
        (is_spread || !self.rules.is_enforced).then_some(seating.spares)
    }

    /// Domains of the members that stay and of the spares.
    fn count(&self, domain: usize, seated: &[Option<Domains>], avoided_max: usize) -> usize {
        let staying = seated.iter().flatten().map(|domains| domains[domain]);
        let spares = self.spares.iter().filter(|spare| !spare.is_avoided || avoided_max > 0);
        staying.chain(spares.map(|spare| spare.domains[domain])).collect::<BTreeSet<_>>().len()
    }

    /// The first spread that the worst write set of the new ensemble lacks.
    fn unmet(&self, chosen: &[usize], left_out: usize) -> Option<Unmet> {
        let quorum = self.wanted.quorum;
        let mut ensemble = match self.members {
            [] => vec![Domains::default(); quorum.ensemble_size()],
            members => members.to_vec(),
        };
        for (&position, &spare) in self.wanted.positions.iter().zip(chosen) {
            ensemble[position] = self.spares[spare].domains;
        }
        self.rules.lacking(quorum, &ensemble, left_out)
    }

    /// The spread that cannot be had with all spares; the last one when each could be had alone.
    fn unmet_in_all(&self, left_out: usize) -> Option<Unmet> {
        let spreads = self.rules.spreads(self.wanted.quorum.write_quorum_size());
        let staying: Vec<Option<Domains>> = self.members.iter().copied().map(Some).collect();
        let there = |&(domain, name, needed): &(usize, &'static str, usize)| {
            let available = self.count(domain, &staying, usize::MAX);
            Unmet { domain: name, needed, available, left_out }
        };
        let all: Vec<Unmet> = spreads.iter().map(there).collect();
        all.iter().find(|unmet| unmet.available < unmet.needed).or(all.last()).copied()
    }
}
