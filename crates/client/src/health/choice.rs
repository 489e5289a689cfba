//! In which order the replicas of an entry are asked.
//!
//! # Invariants
//! 1. An order only: every replica given is in it once (C7, C8).
//! 2. Every figure is read once, before sorting (C11). Ties are broken at random.
//! 3. Nearness decides between replicas against which there is the same: never for a slow, blocked or ill one.
//! 4. A ledger whose readers stay has a home among those that are nearest and against which there is nothing: the same one for all
//!    clients, with ledgers spread evenly. Health comes before it (C14).

use std::time::Duration;

use bindery_io::{Random, SeededRandom};
use bindery_types::LedgerId;

use super::condition::NodeState;
use super::node::{Node, Operation};
use crate::location::Distance;

/// Requests under way to a bookie from which on others are preferred.
pub(crate) const PENDING_MAX: u64 = 50;
/// A replica slower than the fastest by this factor comes after the others ...
const BAND: u32 = 3;
const BAND_OF: u32 = 2;
/// ... unless the difference is so small that it may be chance.
const BAND_MIN: Duration = Duration::from_millis(1);
/// Of a bookie on probation.
const PROBATION_SHARE: f64 = 0.1;

/// Why a replica is asked where it is, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Slow of late, or nothing is known of it; this request is to see how it does.
    Trial,
    /// Nothing against it.
    Ordinary,
    /// Others are faster.
    Slow,
    /// On probation, or it refuses much, and this request is not of its share.
    NotThisTime,
    /// Too much under way.
    Blocked,
    Suspect,
    Unhealthy,
    Forgotten,
}

struct Seen<'a> {
    node: &'a Node,
    place: Place,
    /// How long it has been well, of those that are not: the longest first.
    failed_at: Duration,
    distance: Distance,
    pending: u64,
    draw: u64,
    index: usize,
    mean: Option<Duration>,
}

/// An order of the indexes of what was given.
pub(super) struct Order {
    pub(super) indexes: Vec<usize>,
    /// Whether the first is one that would not be asked if there were another (C7).
    pub(super) is_fail_open: bool,
}

/// Sends a read now and then to a replica without a recent latency that otherwise equals the home. A reader that stays with its home
/// measures no other replica, and would not see that its home is the slow one.
fn look_around(seen: &mut [Seen<'_>], operation: Operation, now: Duration) {
    let ordinary = seen.iter().filter(|seen| seen.place == Place::Ordinary);
    let Some((distance, home)) = ordinary.map(|seen| (seen.distance, seen.draw)).min() else { return };
    let unknown = seen.iter_mut().filter(|seen| {
        seen.place == Place::Ordinary && seen.mean.is_none() && seen.distance == distance && seen.draw != home
    });
    for seen in unknown {
        if seen.node.tries(operation, now) {
            seen.place = Place::Trial;
            // One of them at a time.
            return;
        }
    }
}

/// Orders replicas; `stays_with` is the ledger, if its readers stay with one replica (invariant 4).
pub(super) fn order<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    operation: Operation,
    now: Duration,
    random: &SeededRandom,
    stays_with: Option<LedgerId>,
) -> Order {
    let mut seen: Vec<Seen<'a>> = nodes
        .enumerate()
        .map(|(index, node)| {
            node.settle(now);
            let (state, pending) = (node.state(), node.pending());
            let place = match state {
                NodeState::Forgotten => Place::Forgotten,
                NodeState::Unhealthy => Place::Unhealthy,
                NodeState::Suspect => Place::Suspect,
                _ if pending >= PENDING_MAX => Place::Blocked,
                NodeState::Probation if !random.chance(PROBATION_SHARE) => Place::NotThisTime,
                NodeState::Probation | NodeState::Healthy => match random.chance(node.reject_ratio(now)) {
                    true => Place::NotThisTime,
                    false => Place::Ordinary,
                },
            };
            let failed_at = match place {
                Place::Suspect | Place::Unhealthy | Place::Forgotten => {
                    node.last_failure().unwrap_or_default()
                }
                _ => Duration::ZERO,
            };
            let mean = node.latency(operation).mean(now);
            // Those who stay go by the home alone, however much is under way there, until it is blocked.
            let (pending, draw) = match stays_with {
                Some(ledger) => (0, node.rank(ledger)),
                None => (pending, random.next_u64()),
            };
            let distance = node.distance();
            Seen { node, place, failed_at, distance, pending, draw, index, mean }
        })
        .collect();
    let ordinary = seen.iter().filter(|seen| seen.place == Place::Ordinary);
    let mut is_trial = false;
    if let Some(best) = ordinary.filter_map(|seen| seen.mean).min() {
        let band = (best * BAND / BAND_OF).max(best + BAND_MIN);
        for seen in &mut seen {
            if seen.place == Place::Ordinary && seen.mean.is_some_and(|mean| mean > band) {
                // One of them at a time.
                let tries = !is_trial && seen.node.tries(operation, now);
                is_trial |= tries;
                seen.place = if tries { Place::Trial } else { Place::Slow };
            }
        }
    }
    if stays_with.is_some() && !is_trial {
        look_around(&mut seen, operation, now);
    }
    seen.sort_unstable_by_key(|seen| (seen.place, seen.failed_at, seen.distance, seen.pending, seen.draw));
    let is_fail_open = seen.first().is_some_and(|first| first.place >= Place::Blocked);
    Order { indexes: seen.into_iter().map(|seen| seen.index).collect(), is_fail_open }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::condition::Event;
    use crate::health::node::Outcome;
    use bindery_types::BookieId;

    fn nodes() -> Vec<Node> {
        ["a", "b", "c"].map(|name| Node::new(BookieId::new(name).unwrap())).into()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn took(node: &Node, ms: u64, now: Duration) {
        node.finished(node.begin(), Operation::Read, Duration::from_millis(ms), Outcome::Answered, now);
    }

    /// How often each was first, of a thousand.
    fn firsts(nodes: &[Node], now: Duration) -> [usize; 3] {
        let random = SeededRandom::new(1);
        let mut firsts = [0; 3];
        for _ in 0..1000 {
            let order = order(nodes.iter(), Operation::Read, now, &random, None);
            let mut sorted = order.indexes.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2], "invariant 1");
            firsts[order.indexes[0]] += 1;
        }
        firsts
    }

    #[test]
    fn the_least_loaded_inside_the_band_is_first_and_ties_are_random() {
        let nodes = nodes();
        assert!(firsts(&nodes, at(0)).iter().all(|count| (250..420).contains(count)));
        // 12 ms is within 1.5 times 10 ms, 16 ms is not; an unknown one is.
        took(&nodes[0], 10, at(1));
        took(&nodes[1], 16, at(1));
        let [a, b, c] = firsts(&nodes, at(1));
        assert!(b == 0 && a > 400 && c > 400, "{a} {b} {c}");
        took(&nodes[2], 12, at(1));
        let _busy = nodes[0].begin();
        assert_eq!(firsts(&nodes, at(1)), [0, 0, 1000], "least pending");
        let _busy = (nodes[2].begin(), nodes[2].begin());
        assert_eq!(firsts(&nodes, at(1)), [1000, 0, 0], "the slow one is not asked although it is idle");
        assert_eq!(firsts(&nodes, at(20)), [0, 1000, 0], "what it was is forgotten");
        // Latencies of batches say nothing about single reads, and a fraction of a millisecond says nothing at all.
        let nodes = self::nodes();
        for (node, us) in nodes.iter().zip([100, 700, 100_000]) {
            let latency = Duration::from_micros(us);
            let operation = if us > 1000 { Operation::BatchRead } else { Operation::Read };
            node.finished(node.begin(), operation, latency, Outcome::Answered, at(0));
        }
        assert!(firsts(&nodes, at(0)).iter().all(|count| *count > 250));
    }

    #[test]
    fn a_slow_one_is_tried_each_second_and_is_back_once_it_answers_well() {
        let nodes = nodes();
        for (node, ms) in nodes.iter().zip([10, 12, 100]) {
            took(node, ms, at(1));
        }
        let seconds = 2..=6;
        let tried = seconds.map(|second| {
            let [_, _, slow] = firsts(&nodes, at(second));
            // The fast ones go on being fast, and so does this one from the third second on.
            nodes[..2].iter().for_each(|node| took(node, 10, at(second)));
            took(&nodes[2], if second < 4 { 100 } else { 11 }, at(second));
            slow
        });
        let tried: Vec<usize> = tried.collect();
        assert_eq!(tried, [0, 1, 1, 1, 1], "the first second is without; in the sixth it is cleared");
        let [_, _, back] = firsts(&nodes, at(6));
        assert!(back > 250, "inside the band again, six seconds before all would be forgotten: {back}");
    }

    #[test]
    fn of_those_inside_the_band_the_nearest_is_first_unless_it_is_not_well() {
        // Invariant 3.
        let nodes = nodes();
        nodes[1].is_at(Distance::Region);
        assert_eq!(firsts(&nodes, at(0)), [0, 1000, 0], "nobody is nearer than its region");
        nodes[2].is_at(Distance::Rack);
        let busy = (nodes[2].begin(), nodes[2].begin());
        assert_eq!(firsts(&nodes, at(0)), [0, 0, 1000], "also with more under way");
        drop(busy);
        for (node, ms) in nodes.iter().zip([10, 10, 16]) {
            took(node, ms, at(1));
        }
        assert_eq!(firsts(&nodes, at(1)), [0, 1000, 0], "outside of the band");
        let busy: Vec<_> = (0..PENDING_MAX).map(|_| nodes[1].begin()).collect();
        assert_eq!(firsts(&nodes, at(1)), [1000, 0, 0], "blocked, though it is nearer");
        drop(busy);
        nodes[1].on(Event::Unreachable, at(1));
        assert_eq!(firsts(&nodes, at(1)), [1000, 0, 0], "suspect, though it is nearer");
        assert_eq!(firsts(&nodes, at(20)), [0, 0, 1000], "the nearest, which was slow long ago");
    }

    #[test]
    fn fifty_pending_block_and_a_release_unblocks() {
        let nodes = nodes();
        let mut busy: Vec<_> = (0..PENDING_MAX).map(|_| nodes[0].begin()).collect();
        // Slow, but not blocked.
        for (node, ms) in nodes.iter().zip([1, 100, 100]) {
            took(node, ms, at(0));
        }
        let [a, b, c] = firsts(&nodes, at(0));
        assert!(a == 0 && b > 0 && c > 0, "the 51st goes elsewhere");
        busy.pop();
        assert_eq!(firsts(&nodes, at(0)), [1000, 0, 0]);
    }

    #[test]
    fn ill_bookies_come_last_and_the_least_bad_of_them_is_asked() {
        // C7, C9.
        let nodes = nodes();
        for _ in 0..3 {
            nodes[0].finished(nodes[0].begin(), Operation::Read, at(0), Outcome::Failed, at(1));
        }
        let [a, b, c] = firsts(&nodes, at(1));
        assert!(a == 0 && b > 0 && c > 0, "out after three errors");
        nodes[1].on(Event::Unreachable, at(2));
        nodes[2].on(Event::Unreachable, at(3));
        nodes[1].on(Event::ProbeFailed, at(4));
        nodes[1].on(Event::ProbeFailed, at(5));
        let random = SeededRandom::new(1);
        let order = |now| order(nodes.iter(), Operation::Read, now, &random, None);
        assert_eq!((order(at(6)).indexes, order(at(6)).is_fail_open), (vec![0, 2, 1], true));
        nodes[2].on(Event::Left, at(6));
        assert_eq!(order(at(6)).indexes, [0, 1, 2], "one that left comes last");
    }

    #[test]
    fn probation_is_a_tenth_and_refusals_take_their_share() {
        let nodes = nodes();
        for event in [Event::Unreachable, Event::ProbeFailed, Event::ProbeFailed] {
            nodes[0].on(event, at(1));
        }
        for _ in 0..2 {
            nodes[0].on(Event::ProbeAnswered, at(2));
        }
        let [a, ..] = firsts(&nodes, at(3));
        assert!((15..60).contains(&a), "a tenth of a third: {a}");
        let [a, ..] = firsts(&nodes, at(12));
        assert!(a > 250, "the probation is over: {a}");
        for _ in 0..1000 {
            nodes[1].note(Outcome::Rejected, at(12));
        }
        let [_, b, _] = firsts(&nodes, at(12));
        assert!((15..60).contains(&b), "C6: a tenth of a third: {b}");
    }

    /// The first of each of so many orders for one ledger.
    fn first_of(nodes: &[Node], ledger: i64, now: Duration) -> usize {
        let (random, ledger) = (SeededRandom::new(1), LedgerId::new(ledger));
        order(nodes.iter(), Operation::Read, now, &random, ledger).indexes[0]
    }

    #[test]
    fn a_ledger_has_one_home_and_ledgers_are_spread() {
        // Invariant 4, C14.
        let (nodes, others) = (nodes(), nodes());
        let mut homes = [0; 3];
        for ledger in 0..3000 {
            let home = first_of(&nodes, ledger, at(0));
            let busy: Vec<_> = (1..PENDING_MAX).map(|_| nodes[home].begin()).collect();
            assert_eq!(first_of(&nodes, ledger, at(0)), home, "also with much under way");
            drop(busy);
            assert_eq!(first_of(&others, ledger, at(0)), home, "for every client");
            homes[home] += 1;
        }
        assert!(homes.iter().all(|homes| (900..1100).contains(homes)), "{homes:?}");
    }

    #[test]
    fn health_and_nearness_come_before_the_home() {
        // C14.
        let nodes = nodes();
        let home = first_of(&nodes, 1, at(0));
        let (second, third) = ((home + 1) % 3, (home + 2) % 3);
        for (node, ms) in [(home, 16), (second, 10), (third, 10)] {
            took(&nodes[node], ms, at(1));
        }
        let next = first_of(&nodes, 1, at(1));
        assert_ne!(next, home, "it is slow");
        assert_eq!(first_of(&nodes, 1, at(20)), home, "what it was is forgotten");
        nodes[home].on(Event::Unreachable, at(20));
        assert_eq!(first_of(&nodes, 1, at(20)), next, "the one that all clients take next");
        nodes[home].on(Event::ProbeAnswered, at(21));
        assert_eq!(first_of(&nodes, 1, at(21)), home);
        let busy: Vec<_> = (0..PENDING_MAX).map(|_| nodes[home].begin()).collect();
        assert_eq!(first_of(&nodes, 1, at(21)), next, "blocked");
        drop(busy);
        nodes[third].is_at(Distance::Rack);
        assert_eq!(first_of(&nodes, 1, at(21)), third, "nearer");
    }

    #[test]
    fn who_stays_looks_around_and_leaves_a_home_that_is_the_slow_one() {
        let nodes = nodes();
        let home = first_of(&nodes, 1, at(0));
        let took_as_it_takes = |node: usize, now| took(&nodes[node], if node == home { 80 } else { 2 }, now);
        let mut asked = [0; 3];
        // 50 reads a second.
        for read in 0..2000_u32 {
            let now = at(0) + Duration::from_millis(20) * read;
            let first = first_of(&nodes, 1, now);
            took_as_it_takes(first, now);
            asked[first] += 1;
        }
        // Of some 200 reads before the first look; then one of 200 asks whether it is still slow.
        assert!((200..280).contains(&asked[home]), "{asked:?}");
        // With all alike those who look are few.
        let nodes = self::nodes();
        let mut asked = [0; 3];
        for read in 0..2000_u32 {
            let now = at(0) + Duration::from_millis(20) * read;
            let first = first_of(&nodes, 1, now);
            took(&nodes[first], 2, now);
            asked[first] += 1;
        }
        assert!(asked[home] >= 1980 && asked.iter().all(|asked| *asked > 0), "{asked:?}");
    }
}
