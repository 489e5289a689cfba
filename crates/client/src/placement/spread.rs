//! Seats bookies at the positions of an ensemble so that its write sets are spread: a search without I/O, clock or luck.
//!
//! A *window* is a write set: Qw consecutive positions, of which an ensemble of E > Qw has E, and one of E = Qw has one.
//! Racks and regions are *domains*, known by number. Bookies of one rack are alike here, but for the order in which the
//! caller would like them (`key`).
//!
//! # How it searches
//! Position after position. Of the racks that have a bookie left, the one comes first that makes the least bad
//! end inevitable ([`Search::bound`]), then the one that suits the seat (the rack of the bookie that leaves), then the one
//! whose next bookie has the smallest key. The first descent is nearly always as good as can be. If it is not, it goes
//! back and tries the others, cutting off what cannot become better, then once more from the racks with most
//! bookies left, which is the order that finds tight solutions.
//!
//! # Invariants
//! 1. The result has distinct bookies, at most `avoided_max` avoided ones.
//! 2. A seating at the bound of the beginning is the best there is: no search is needed to know it. Any other is the best
//!    there is if the search was not cut short.
//!
//! # Limits     [`WORK_MAX`] steps for each of the two orders, some milliseconds; [`DEPTH_MAX`] seats, above which the
//! first descent stands

use std::cmp::Ordering;

/// Looks at a position of a window, in each of the two searches.
const WORK_MAX: u64 = 50_000;
/// Seats above which nothing is tried again.
const DEPTH_MAX: usize = 128;
/// Goals of a problem.
pub(super) const GOALS_MAX: usize = 3;

/// Number of the region, number of the rack.
pub(super) type Domains = [u32; 2];
/// Index of the region in [`Domains`].
pub(super) const REGION: usize = 0;
/// Index of the rack.
pub(super) const RACK: usize = 1;

/// What windows should be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// So many different domains. One window that lacks two is worse than all lacking one.
    Spread { domain: usize, target: usize },
    /// As many of one domain as of any other.
    Even { domain: usize },
}

/// A position that wants a bookie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub position: usize,
    /// Of the bookie that leaves.
    pub before: Option<Domains>,
    /// Whether another rack than that one is welcome.
    pub shuns_rack: bool,
}

/// A bookie that may be seated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spare {
    pub domains: Domains,
    pub is_avoided: bool,
    /// The smaller the sooner.
    pub key: f64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Problem<'a> {
    pub write_quorum_size: usize,
    /// By position; `None` where there is a seat.
    pub seated: &'a [Option<Domains>],
    pub seats: &'a [Seat],
    pub spares: &'a [Spare],
    /// The most important one first; at most [`GOALS_MAX`].
    pub goals: &'a [Goal],
    pub avoided_max: usize,
    /// Whether the region of the bookie that leaves comes before any rack.
    pub prefers_region: bool,
}

/// How far a seating is from its goals: zero is perfect for [`Goal::Spread`].
pub(super) type Cost = [u128; GOALS_MAX];

/// A way to seat bookies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seating {
    /// Indexes into the spares, by seat.
    pub spares: Vec<usize>,
    pub cost: Cost,
}

/// The best seating found; `None` when there are too few bookies.
pub(super) fn seat(problem: &Problem<'_>) -> Option<Seating> {
    let healthy = problem.spares.iter().filter(|spare| !spare.is_avoided).count();
    let avoided = (problem.spares.len() - healthy).min(problem.avoided_max);
    if healthy + avoided < problem.seats.len() {
        return None;
    }
    let mut search = Search::new(problem);
    let ideal = search.cost;
    search.first_descent();
    for is_by_room in [false, true] {
        if search.best.as_ref().is_some_and(|best| best.cost == ideal) || problem.seats.len() > DEPTH_MAX {
            break;
        }
        search.work_left = WORK_MAX;
        search.is_by_room = is_by_room;
        search.descend(0, ideal);
    }
    search.best
}

/// The spares of one kind, best last.
struct Kind {
    domains: Domains,
    is_avoided: bool,
    left: Vec<usize>,
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    kinds: Vec<Kind>,
    seated: Vec<Option<Domains>>,
    /// By window.
    bounds: Vec<Cost>,
    /// Their sum.
    cost: Cost,
    avoided_left: usize,
    chosen: Vec<usize>,
    best: Option<Seating>,
    is_by_room: bool,
    work_left: u64,
}

/// The choice made at a seat, and the bounds before it.
struct Placed {
    seat: Seat,
    kind: usize,
    before: (Cost, Vec<Cost>),
}

/// A kind, and what taking it comes to.
struct Choice {
    kind: usize,
    bound: Cost,
    tier: u8,
    left: usize,
    key: f64,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem<'a>) -> Search<'a> {
        let mut order: Vec<usize> = (0..problem.spares.len()).collect();
        let spares = problem.spares;
        order.sort_by(|&a, &b| spares[b].key.total_cmp(&spares[a].key));
        let mut kinds: Vec<Kind> = Vec::new();
        let mut by_domains = std::collections::BTreeMap::new();
        for index in order {
            let Spare { domains, is_avoided, .. } = spares[index];
            let at = *by_domains.entry((domains, is_avoided)).or_insert_with(|| {
                kinds.push(Kind { domains, is_avoided, left: Vec::new() });
                kinds.len() - 1
            });
            kinds[at].left.push(index);
        }
        let ensemble_size = problem.seated.len();
        let windows = if problem.write_quorum_size < ensemble_size { ensemble_size } else { 1 };
        let mut search = Search {
            problem,
            kinds,
            seated: problem.seated.to_vec(),
            bounds: vec![[0; GOALS_MAX]; windows],
            cost: [0; GOALS_MAX],
            avoided_left: problem.avoided_max,
            chosen: Vec::with_capacity(problem.seats.len()),
            best: None,
            is_by_room: false,
            work_left: WORK_MAX,
        };
        // Windows without a seat are as they are.
        for window in 0..windows {
            if search.positions(window).any(|at| problem.seats.iter().any(|seat| seat.position == at)) {
                search.renew(window);
            }
        }
        search
    }

    fn positions(&self, window: usize) -> impl Iterator<Item = usize> + use<> {
        let (ensemble_size, size) = (self.seated.len(), self.problem.write_quorum_size);
        (0..size.min(ensemble_size)).map(move |offset| (window + offset) % ensemble_size)
    }

    /// The windows that a position is in.
    fn windows(&self, position: usize) -> impl Iterator<Item = usize> + use<> {
        let windows = self.bounds.len();
        let size = if windows == 1 { 1 } else { self.problem.write_quorum_size };
        (0..size).map(move |offset| (position + windows - offset % windows) % windows)
    }

    fn renew(&mut self, window: usize) {
        let bound = self.bound(window);
        for (goal, bound) in bound.into_iter().enumerate() {
            self.cost[goal] = self.cost[goal] - self.bounds[window][goal] + bound;
        }
        self.bounds[window] = bound;
        self.work_left = self.work_left.saturating_sub(self.problem.write_quorum_size as u64);
    }

    /// What a window costs at least, whoever takes its free seats.
    fn bound(&self, window: usize) -> Cost {
        let mut cost = [0; GOALS_MAX];
        let mut labels: Vec<u32> = Vec::with_capacity(self.problem.write_quorum_size);
        for (goal, cost) in self.problem.goals.iter().zip(&mut cost) {
            let (Goal::Spread { domain, .. } | Goal::Even { domain }) = *goal;
            labels.clear();
            let mut free = 0;
            for position in self.positions(window) {
                match self.seated[position] {
                    Some(domains) => labels.push(domains[domain]),
                    None => free += 1,
                }
            }
            labels.sort_unstable();
            *cost = match *goal {
                Goal::Spread { target, .. } => {
                    labels.dedup();
                    self.lack(target.saturating_sub(labels.len() + free))
                }
                Goal::Even { .. } => self.unevenness(&labels, domain, free),
            };
        }
        cost
    }

    /// More than all windows lacking one domain less.
    fn lack(&self, count: usize) -> u128 {
        let base = self.bounds.len() as u128 + 1;
        // Sums of it stay in range: there are at most as many windows as positions, 2^16.
        base.saturating_pow(count as u32).min(1 << 100) - 1
    }

    /// The sum of the squares of how often each domain is there, with the free seats filled as evenly as the bookies
    /// left allow.
    fn unevenness(&self, labels: &[u32], domain: usize, free: usize) -> u128 {
        let mut domains: Vec<(u32, usize, usize)> = Vec::new();
        for run in labels.chunk_by(|a, b| a == b) {
            domains.push((run[0], run.len(), 0));
        }
        if free > 0 {
            for kind in &self.kinds {
                let label = kind.domains[domain];
                match domains.iter_mut().find(|(known, ..)| *known == label) {
                    Some((.., left)) => *left += kind.left.len(),
                    None => domains.push((label, 0, kind.left.len())),
                }
            }
            for _ in 0..free {
                let least =
                    domains.iter_mut().filter(|(.., left)| *left > 0).min_by_key(|(_, count, _)| *count);
                let Some((_, count, left)) = least else { break };
                *count += 1;
                *left -= 1;
            }
        }
        domains.iter().map(|(_, count, _)| (*count as u128).pow(2)).sum()
    }

    /// Gives what [`unplace`](Self::unplace) needs.
    fn place(&mut self, seat: Seat, kind: usize) -> Placed {
        let taken = &mut self.kinds[kind];
        let spare = taken.left.pop().expect("a kind with a bookie left");
        self.seated[seat.position] = Some(taken.domains);
        self.avoided_left -= usize::from(taken.is_avoided);
        self.chosen.push(spare);
        let before = (self.cost, self.windows(seat.position).map(|window| self.bounds[window]).collect());
        for window in self.windows(seat.position) {
            self.renew(window);
        }
        Placed { seat, kind, before }
    }

    fn unplace(&mut self, placed: Placed) {
        let Placed { seat, kind, before: (cost, bounds) } = placed;
        let spare = self.chosen.pop().expect("a bookie was seated");
        let taken = &mut self.kinds[kind];
        taken.left.push(spare);
        self.seated[seat.position] = None;
        self.avoided_left += usize::from(taken.is_avoided);
        for (window, bound) in self.windows(seat.position).zip(bounds) {
            self.bounds[window] = bound;
        }
        self.cost = cost;
    }

    /// How well a rack suits the seat of a bookie that leaves: its own rack, then one that no write set with this seat has.
    fn tier(&self, seat: Seat, domains: Domains) -> u8 {
        let Some(before) = seat.before else { return 0 };
        let is_elsewhere = self.problem.prefers_region && before[REGION] != domains[REGION];
        let by_rack = if before[RACK] == domains[RACK] {
            if seat.shuns_rack { 2 } else { 0 }
        } else {
            let mut mates = self.windows(seat.position).flat_map(|window| self.positions(window));
            let is_new = mates.all(|at| self.seated[at].is_none_or(|mate| mate[RACK] != domains[RACK]));
            if is_new { 1 } else { 2 }
        };
        by_rack + if is_elsewhere { 3 } else { 0 }
    }

    /// What can be done about a seat, the most promising first. Whatever is taken, there remain enough for the other seats.
    fn choices(&mut self, seat: Seat) -> Vec<Choice> {
        let mut choices = Vec::with_capacity(self.kinds.len());
        for kind in 0..self.kinds.len() {
            let Kind { domains, is_avoided, ref left } = self.kinds[kind];
            let Some(&next) = left.last() else { continue };
            if is_avoided && self.avoided_left == 0 {
                continue;
            }
            let (left, tier) = (left.len(), self.tier(seat, domains));
            let placed = self.place(seat, kind);
            let bound = self.cost;
            self.unplace(placed);
            choices.push(Choice { kind, bound, tier, left, key: self.problem.spares[next].key });
        }
        choices.sort_by(|a, b| {
            let by_room = if self.is_by_room { b.left.cmp(&a.left) } else { Ordering::Equal };
            let by_luck = a.key.total_cmp(&b.key);
            a.bound.cmp(&b.bound).then(a.tier.cmp(&b.tier)).then(by_room).then(by_luck)
        });
        choices
    }

    /// Takes the most promising choice at every seat.
    fn first_descent(&mut self) {
        let mut path = Vec::with_capacity(self.problem.seats.len());
        for &seat in self.problem.seats {
            let choice = self.choices(seat).into_iter().next().expect("there are enough bookies");
            path.push(self.place(seat, choice.kind));
        }
        self.best = Some(Seating { spares: self.chosen.clone(), cost: self.cost });
        while let Some(placed) = path.pop() {
            self.unplace(placed);
        }
    }

    /// Tries everything that may be better than the best. True when nothing can be.
    fn descend(&mut self, depth: usize, ideal: Cost) -> bool {
        let Some(&seat) = self.problem.seats.get(depth) else {
            self.best = Some(Seating { spares: self.chosen.clone(), cost: self.cost });
            return self.cost == ideal;
        };
        for choice in self.choices(seat) {
            if self.best.as_ref().is_some_and(|best| choice.bound >= best.cost) {
                // Those behind it are no better.
                return false;
            }
            if self.work_left == 0 {
                return true;
            }
            let placed = self.place(seat, choice.kind);
            let is_over = self.descend(depth + 1, ideal);
            self.unplace(placed);
            if is_over {
                return true;
            }
        }
        false
    }
}
