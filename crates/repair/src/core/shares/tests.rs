use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::core::audit::Fit;
use crate::core::queue::{Attempt, RepairQueue};

fn id(id: i64) -> LedgerId {
    LedgerId::new(id).unwrap()
}

fn votes(count: usize) -> Vec<String> {
    (0..count).map(|vote| format!("V_{vote:010}")).collect()
}

fn of(all: &[String], own: usize) -> Shares {
    let mut shares = Shares::alone();
    shares.on_votes(all, all.get(own).map(String::as_str));
    shares
}

#[test]
fn each_ledger_is_in_one_share_and_has_each_place_once() {
    let all = votes(7);
    let workers: Vec<Shares> = (0..7).map(|own| of(&all, own)).collect();
    let mut sizes = [0; 7];
    for ledger in 0..7000 {
        let mut places: Vec<usize> = workers.iter().map(|worker| worker.place(id(ledger))).collect();
        sizes[places.iter().position(|place| *place == 0).unwrap()] += 1;
        places.sort_unstable();
        assert!(places.iter().copied().eq(0..7), "{places:?}");
    }
    assert!(sizes.iter().all(|size| (850..1150).contains(size)), "{sizes:?}");
}

#[test]
fn when_a_worker_goes_only_its_share_is_divided() {
    let all = votes(7);
    let left = [&all[..3], &all[4..]].concat();
    for own in [0, 6] {
        let before = of(&all, own);
        let mut after = of(&all, own);
        after.on_votes(&left, Some(&all[own]));
        for ledger in 0..1000 {
            let (before, after) = (before.place(id(ledger)), after.place(id(ledger)));
            assert!(after == before || after + 1 == before, "{before} {after}");
        }
    }
}

#[test]
fn a_worker_without_a_vote_has_no_share_and_one_alone_has_all() {
    let marked: BTreeSet<LedgerId> = (0..40).map(id).collect();
    let mut without = Shares::alone();
    without.on_votes(&votes(3), None);
    for _ in 0..4 {
        assert_eq!(without.on_marks(&marked, false, |_| false, 99), []);
    }
    assert_eq!(without.look_ahead(None, 99).len(), AHEAD);
    let mut nobody = Shares::alone();
    nobody.on_votes(&[], None);
    for _ in 0..4 {
        assert_eq!(nobody.on_marks(&marked, false, |_| false, 99), []);
    }
    assert_eq!(nobody.look_ahead(None, 99).len(), AHEAD, "its vote is on its way");
    let mut alone = Shares::alone();
    assert_eq!(alone.on_marks(&marked, false, |_| false, 99).len(), 40);
    assert_eq!(alone.look_ahead(None, 99), []);
}

#[test]
fn a_share_is_given_out_in_turns() {
    let marked: BTreeSet<LedgerId> = (0..10).map(id).collect();
    let mut alone = Shares::alone();
    let mut given = || -> Vec<i64> {
        alone
            .on_marks(&marked, false, |ledger| ledger == id(4), 4)
            .into_iter()
            .map(|ledger| ledger.get())
            .collect()
    };
    assert_eq!(given(), [0, 1, 2, 3]);
    assert_eq!(given(), [5, 6, 7, 8]);
    assert_eq!(given(), [9, 0, 1, 2]);
}

#[test]
fn new_marks_are_left_to_those_that_come_before() {
    let all = votes(3);
    let mut marked: BTreeSet<LedgerId> = (0..40).map(id).collect();
    let mut shares = of(&all, 0);
    let mut looked_at = |marked: &BTreeSet<LedgerId>| -> Vec<(i64, usize)> {
        shares.on_marks(marked, false, |_| false, 99);
        let looks = std::iter::from_fn(|| {
            shares.on_idle_listing();
            Some(shares.look_ahead(None, 3)).filter(|marks| !marks.is_empty())
        });
        let looks: Vec<Vec<LedgerId>> = looks.collect();
        assert!(looks.iter().all(|look| look.len() <= 3), "no more than it can begin");
        looks.concat().into_iter().map(|ledger| (ledger.get(), shares.place(ledger))).collect()
    };
    assert_eq!(looked_at(&marked), []);
    marked.extend((40..80).map(id));
    let found = looked_at(&marked);
    assert!(
        found.len() > 6 && found.iter().all(|(ledger, place)| (*ledger, *place) < (40, 9) && *place == 1)
    );
    let found = looked_at(&marked);
    assert!(found.iter().any(|(ledger, place)| *ledger < 40 && *place == 2), "{found:?}");
    assert!(found.iter().any(|(ledger, _)| *ledger >= 40), "{found:?}");
    assert!(found.iter().all(|(ledger, place)| *ledger < 40 || *place == 1), "{found:?}");
    // Parts of more marks than are listed at a time follow one another.
    let mut shares = of(&all, 0);
    shares.on_marks(&marked, true, |_| false, 99);
    assert_eq!(shares.look_ahead(None, 99).len(), AHEAD);
}

#[test]
fn a_listing_shows_whether_others_repaired_what_is_not_known() {
    let mut shares = of(&votes(3), 0);
    let marked: BTreeSet<LedgerId> = (0..90).map(id).collect();
    let own = shares.on_marks(&marked, false, |_| false, 99);
    let others: Vec<LedgerId> = marked.iter().copied().filter(|ledger| !own.contains(ledger)).collect();
    let listed = |shares: &mut Shares, gone: &[LedgerId], is_part| {
        let left = marked.iter().copied().filter(|ledger| !gone.contains(ledger)).collect();
        shares.on_marks(&left, is_part, |ledger| own.contains(&ledger), 99);
        shares.others_repaired()
    };
    assert!(!listed(&mut shares, &own[..1], false), "the queue knows of that");
    assert!(listed(&mut shares, &others[..1], false));
    assert!(!listed(&mut shares, &others[..1], false), "nothing since");
    shares.on_repaired(others[1]);
    assert!(!listed(&mut shares, &others[..2], false), "this worker did");
    assert!(!listed(&mut shares, &others[..9], true), "another part is listed");
}

#[test]
fn what_is_looked_at_ahead_is_paid_for() {
    let all = votes(4);
    let marked: BTreeSet<LedgerId> = (0..4000).map(id).collect();
    let mut shares = of(&all, 1);
    let share = shares.on_marks(&marked, false, |_| false, 9999).len();
    shares.on_marks(&marked, false, |_| false, 0);
    assert!((900..1100).contains(&share), "{share}");
    assert_eq!(shares.look_ahead(None, 0), [], "it has enough to do");
    let first = shares.look_ahead(Some(2), 99);
    assert_eq!(first.len(), AHEAD);
    assert!(first.iter().all(|ledger| shares.place(*ledger) == 1), "it is the next for these");
    shares.on_marks(&marked, false, |_| false, 0);
    let own: Vec<LedgerId> = marked.iter().copied().filter(|ledger| shares.place(*ledger) == 0).collect();
    let is_next = |shares: &mut Shares| shares.look_ahead(Some(2), 99).len();
    for repaired in &own[..REPAIRS_FOR_ONE * AHEAD] {
        assert_eq!(is_next(&mut shares), 0);
        shares.on_repaired(*repaired);
    }
    assert_eq!((is_next(&mut shares), is_next(&mut shares)), (AHEAD, 0));
    // Nothing to do: what it repaired of others pays for more, and each listing for some.
    assert_eq!(shares.look_ahead(None, 99), []);
    shares.on_repaired(first[0]);
    assert_eq!((is_next(&mut shares), shares.look_ahead(None, 99).len()), (0, FOR_A_REPAIR));
    shares.on_idle_listing();
    shares.on_idle_listing();
    assert_eq!(shares.look_ahead(None, 99).len(), AHEAD);
    assert_eq!(shares.look_ahead(None, 99), []);
    for repaired in &own {
        shares.on_repaired(*repaired);
    }
    assert_eq!(
        std::iter::from_fn(|| Some(is_next(&mut shares)).filter(|count| *count > 0)).sum::<usize>(),
        KEPT_MAX
    );
}

#[test]
fn when_the_danger_of_its_share_is_over_a_worker_looks_for_more() {
    let all = votes(4);
    let marked: BTreeSet<LedgerId> = (0..4000).map(id).collect();
    let mut shares = of(&all, 1);
    for _ in 0..4 {
        shares.on_marks(&marked, false, |_| false, 0);
    }
    let second = marked.iter().filter(|ledger| shares.place(**ledger) == 1).count();
    assert_eq!(shares.look_ahead(Some(1), 99), [], "none is in greater danger");
    let looked_at = |shares: &mut Shares| -> Vec<usize> {
        let looks =
            std::iter::from_fn(|| Some(shares.look_ahead(Some(2), 99)).filter(|marks| !marks.is_empty()));
        let looks: Vec<LedgerId> = looks.flatten().collect();
        looks.into_iter().map(|ledger| shares.place(ledger)).collect()
    };
    let places = looked_at(&mut shares);
    assert!(places.is_sorted(), "the second before others");
    assert_eq!(places.iter().filter(|place| **place == 1).count(), second);
    assert!((second + BEYOND_DANGER - places.len()) < AHEAD, "{}", places.len());
    // One was found, and repaired.
    assert_eq!(shares.look_ahead(Some(1), 99), []);
    assert!(looked_at(&mut shares).len() >= BEYOND_DANGER);
    assert_eq!(looked_at(&mut shares), [0_usize; 0]);
}

/// A worker of a cluster that is run here, and its bookie.
struct Worker {
    shares: Shares,
    queue: RepairQueue,
    bookie: usize,
    listed_at: usize,
}

struct Cluster {
    /// Marked ledgers: live copies, and members.
    marks: BTreeMap<LedgerId, (usize, Vec<usize>)>,
    workers: Vec<Worker>,
    /// Ticks between two listings of a worker, and for a repair.
    listing: usize,
    pace: usize,
    reads: usize,
    /// Locks that were taken and given back for nothing, and ledgers that a worker repaired on another's bookie.
    in_vain: usize,
    sent: usize,
    tick: usize,
}

/// What became of a cluster.
#[derive(Debug)]
struct Run {
    /// Reads of marks and metadata for each ledger.
    reads: f64,
    in_vain: usize,
    sent: usize,
    /// When the ledgers with a single copy were repaired, ascending.
    singles_at: Vec<usize>,
    ended_at: usize,
}

/// A second has so many ticks; in each a worker repairs a ledger.
const TICKS: usize = 10;

impl Cluster {
    /// `lost` bookies of `bookies` are lost, and `hung` of those that are left have workers that vote and repair nothing. Where two are lost,
    /// half of the ledgers have lost two copies.
    fn new(bookies: usize, lost: usize, hung: usize, ledgers: i64) -> Cluster {
        let mut seed = 7_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let all = votes(bookies - lost);
        let mut marks = BTreeMap::new();
        for ledger in 0..ledgers {
            let copies = if lost == 2 && random(2) == 0 { 1 } else { 2 };
            let mut members: Vec<usize> = Vec::new();
            while members.len() < copies {
                let member = random(bookies - lost);
                if !members.contains(&member) {
                    members.push(member);
                }
            }
            marks.insert(id(ledger), (copies, members));
        }
        let worker = |own: usize| Worker {
            shares: of(&all, own),
            queue: RepairQueue::new(own as u64 + 1),
            bookie: own,
            listed_at: own % TICKS,
        };
        // The first ones hang.
        let workers = (hung..bookies - lost).map(worker).collect();
        Cluster { marks, workers, listing: TICKS, pace: 1, reads: 0, in_vain: 0, sent: 0, tick: 0 }
    }

    /// All ledgers are on all bookies but the last one, which takes a copy in `pace` ticks.
    fn with_one_taker(bookies: usize, ledgers: i64, pace: usize) -> Cluster {
        let mut cluster = Cluster { pace, ..Cluster::new(bookies, 1, 0, ledgers) };
        for (_, members) in cluster.marks.values_mut() {
            *members = (0..bookies - 2).collect();
        }
        cluster
    }

    fn now(&self) -> Duration {
        Duration::from_millis((self.tick * 1000 / TICKS) as u64)
    }

    /// As the shell of a worker does.
    fn look_at(&mut self, worker: &mut Worker, ledgers: &[LedgerId]) {
        for ledger in ledgers {
            self.reads += 1;
            let Some((copies, members)) = self.marks.get(ledger) else { continue };
            let fit = if members.contains(&worker.bookie) { Fit::Never } else { Fit::Ours };
            worker.queue.put(self.now(), *ledger, *copies, 1, fit);
        }
    }

    fn step(&mut self, worker: &mut Worker, repaired: &mut BTreeSet<LedgerId>) {
        if self.tick % self.listing == worker.listed_at {
            let marked = self.marks.keys().copied().collect();
            worker.queue.keep(self.now(), &marked, None, None);
            let share = worker.shares.on_marks(&marked, false, |ledger| worker.queue.knows(ledger), 500);
            if worker.shares.others_repaired() {
                worker.queue.on_others_repaired(self.now());
            }
            self.look_at(worker, &share);
            if worker.queue.next_copies().is_none() {
                worker.shares.on_idle_listing();
            }
        }
        loop {
            let ahead = worker.shares.look_ahead(worker.queue.next_copies(), 1);
            if ahead.is_empty() {
                break;
            }
            self.look_at(worker, &ahead);
        }
        let may_repair = worker.queue.next_copies().is_some();
        if may_repair && !self.tick.is_multiple_of(self.pace) {
            return;
        }
        let Some(ledger) = worker.queue.take(self.now()) else { return };
        let attempt = match self.marks.get(&ledger) {
            _ if repaired.contains(&ledger) => Attempt::Elsewhere,
            None => Attempt::Done,
            Some((_, members)) if members.contains(&worker.bookie) && !worker.queue.is_left_over(ledger) => {
                self.reads += 2;
                self.in_vain += 1;
                Attempt::NotHere
            }
            Some((_, members)) => {
                self.reads += 2;
                self.sent += usize::from(members.contains(&worker.bookie));
                repaired.insert(ledger);
                worker.shares.on_repaired(ledger);
                Attempt::Done
            }
        };
        worker.queue.came(self.now(), ledger, attempt);
    }

    fn run(mut self) -> Run {
        let ledgers = self.marks.len();
        let mut singles_at = Vec::new();
        while !self.marks.is_empty() {
            self.tick += 1;
            assert!(self.tick < (40 + self.pace) * ledgers, "{} are left", self.marks.len());
            let mut repaired = BTreeSet::new();
            for mut worker in std::mem::take(&mut self.workers) {
                self.step(&mut worker, &mut repaired);
                self.workers.push(worker);
            }
            for ledger in repaired {
                if self.marks.remove(&ledger).unwrap().0 == 1 {
                    singles_at.push(self.tick);
                }
            }
        }
        let (reads, in_vain, sent) = (self.reads as f64 / ledgers as f64, self.in_vain, self.sent);
        Run { reads, in_vain, sent, singles_at, ended_at: self.tick }
    }
}

#[test]
fn the_cost_of_a_ledger_does_not_grow_with_the_number_of_workers() {
    for (bookies, ledgers) in [(4, 2000), (9, 2000), (31, 3000), (101, 3000)] {
        let run = Cluster::new(bookies, 1, 0, ledgers).run();
        println!("{bookies} bookies: {:.2} reads for a ledger, {} ticks", run.reads, run.ended_at);
        assert!(run.reads <= 5.0, "{bookies} bookies: {run:?}");
        let best = ledgers as usize / (bookies - 1);
        // Shares differ in size, and help comes with the second listing.
        let slack = best / 5 + 2 * TICKS;
        assert!(run.ended_at <= best + slack, "{bookies} bookies: {run:?}, at best {best}");
    }
}

#[test]
fn single_copies_come_first_in_the_whole_cluster() {
    // Where many workers hang, few ledgers come late: those for which several in a row hang.
    for (bookies, hung, ledgers, in_time) in
        [(5, 0, 1000, 1.0), (8, 0, 2000, 1.0), (10, 1, 2000, 1.0), (10, 3, 2000, 0.99), (52, 10, 5000, 0.99)]
    {
        let run = Cluster::new(bookies, 2, hung, ledgers).run();
        let singles = run.singles_at.len();
        let last = run.singles_at[(singles as f64 * in_time) as usize - 1];
        let best = singles.div_ceil(bookies - 2 - hung);
        println!(
            "{bookies} bookies, {hung} hang: {:.2} reads for a ledger, single copies until {last} and {:?}, at best {best}, {} \
             ticks",
            run.reads,
            run.singles_at.last(),
            run.ended_at
        );
        assert!(last as f64 <= 1.3 * best as f64, "{bookies} bookies, {hung} hang: {last}, at best {best}");
        assert!(run.reads <= 5.0, "{bookies} bookies, {hung} hang: {}", run.reads);
    }
}

#[test]
fn nothing_is_left_when_all_others_hang() {
    let run = Cluster::new(12, 2, 9, 300).run();
    // Most of it the one worker takes at once, and what needs another bookie when it seems that nobody takes it.
    assert!(run.ended_at < 300 + 120 * TICKS, "{}", run.ended_at);
}

#[test]
fn workers_leave_what_one_bookie_alone_can_take_to_it() {
    // Ten a second; one in four seconds; ten a second, listed as rarely as many marks are.
    for (bookies, ledgers, pace, listing) in
        [(4, 3000, 1, 1), (4, 200, 40, 1), (9, 3000, 1, 1), (4, 3000, 1, 30)]
    {
        let cluster = Cluster { listing: listing * TICKS, ..Cluster::with_one_taker(bookies, ledgers, pace) };
        let run = cluster.run();
        let minutes = run.ended_at / TICKS / 60;
        println!(
            "{bookies} bookies, {ledgers} ledgers, {minutes} minutes: {:.2} reads for a ledger, {} attempts in vain, {} sent",
            run.reads, run.in_vain, run.sent
        );
        // Each worker looks at each mark at most, as they have the time.
        assert!(run.reads <= (bookies - 1) as f64 + 2.1, "{bookies} bookies: {run:?}");
        // One in five minutes of each worker, which may be there a minute later.
        let most = 2 * (bookies - 2) * (minutes / 5 + 1);
        assert!(run.in_vain + run.sent <= most, "{bookies} bookies: {run:?}");
    }
}
