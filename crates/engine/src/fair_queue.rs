//! A queue of batches that takes them from several tenants by weight: start-time fair queueing. Those of a tenant keep their order.
//!
//! # Data flow
//! ```text
//! push(share, cost) ─► the line of its tenant ─► pop(room): the first of the line that is furthest behind its share
//! ```
//! A grant moves its tenant forward in virtual time by cost / weight, and the tenant that is furthest behind is next. One
//! that was idle begins where the others are: it has no share saved up, and no debt from times when it was alone.
//!
//! # Invariants
//! 1. Each batch that is pushed is popped once, those of a tenant in the order of arrival.
//! 2. The grants of two tenants that wait all the time, divided by their weights, differ by at most one largest grant of each.
//! 3. Whoever waits is granted something after at most one grant to each other tenant beyond its share.
//!
//! # Limits     lines: as many as tenants that wait, or that were granted something in this busy period

use std::collections::VecDeque;

/// Whose something is, and what its share is worth where there is not enough for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The tenant.
    pub tenant: u32,
    /// Against the weights of others; at least 1.
    pub weight: u32,
}

impl Share {
    /// Of whoever has no tenant.
    pub const DEFAULT: Share = Share { tenant: 0, weight: 1 };
}

/// Virtual time per unit of cost and weight: weights divide it without much loss.
const SCALE: u64 = 1 << 16;

struct Line<T> {
    tenant: u32,
    weight: u32,
    /// Virtual time at which its first one starts, or, when it is empty, at which its last one ended.
    start: u64,
    waiting: VecDeque<(usize, T)>,
}

/// See the module.
pub(crate) struct FairQueue<T> {
    lines: Vec<Line<T>>,
    /// Virtual time: the start of what was granted last.
    now: u64,
    len: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue { lines: Vec::new(), now: 0, len: 0 }
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The costs of all that wait.
    pub(crate) fn cost(&self) -> usize {
        self.lines.iter().flat_map(|line| &line.waiting).map(|(cost, _)| cost).sum()
    }

    /// To the end of its tenant's line.
    pub(crate) fn push(&mut self, share: Share, cost: usize, item: T) {
        self.len += 1;
        let at = self.lines.iter().position(|line| line.tenant == share.tenant);
        let line = match at {
            Some(at) => &mut self.lines[at],
            None => {
                let line =
                    Line { tenant: share.tenant, weight: 1, start: self.now, waiting: VecDeque::new() };
                self.lines.push(line);
                self.lines.last_mut().expect("it was just pushed")
            }
        };
        // The weight may have changed while the bookie runs.
        line.weight = share.weight.max(1);
        if line.waiting.is_empty() {
            line.start = line.start.max(self.now);
        }
        line.waiting.push_back((cost, item));
    }

    /// The next one and what of `room` it is granted: its cost, or all there is if that is less.
    pub(crate) fn pop(&mut self, room: usize) -> Option<(usize, T)> {
        let waits = |line: &&mut Line<T>| !line.waiting.is_empty();
        let line = self.lines.iter_mut().filter(waits).min_by_key(|line| line.start)?;
        let (cost, item) = line.waiting.pop_front().expect("it waits");
        let granted = cost.clamp(1, room.max(1));
        self.now = line.start;
        line.start += granted as u64 * SCALE / u64::from(line.weight);
        self.len -= 1;
        if self.len == 0 && granted >= cost {
            // Nobody was short: the next who waits begin as equals.
            self.rest();
        }
        Some((granted, item))
    }

    /// The one that has waited in the longest line for longest.
    pub(crate) fn pop_of_longest(&mut self) -> Option<T> {
        let line = self.lines.iter_mut().max_by_key(|line| line.waiting.len())?;
        let (_, item) = line.waiting.pop_front()?;
        self.len -= 1;
        Some(item)
    }

    /// All of them.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.len = 0;
        self.now = 0;
        let lines = std::mem::take(&mut self.lines);
        lines.into_iter().flat_map(|line| line.waiting).map(|(_, item)| item)
    }

    fn rest(&mut self) {
        // One line, which nearly always is the only one, keeps its memory.
        self.lines.truncate(1);
        self.now = 0;
        self.lines.iter_mut().for_each(|line| line.start = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const fn share(tenant: u32, weight: u32) -> Share {
        Share { tenant, weight }
    }

    #[test]
    fn one_tenant_is_served_in_the_order_of_arrival() {
        let mut queue = FairQueue::default();
        (0..5).for_each(|number| queue.push(Share::DEFAULT, 10, number));
        assert_eq!((queue.len(), queue.cost()), (5, 50));
        assert_eq!(queue.pop(100), Some((10, 0)));
        assert_eq!(queue.pop(4), Some((4, 1)), "what there is");
        assert_eq!(queue.drain().collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!((queue.len(), queue.pop(100)), (0, None));
    }

    #[test]
    fn one_who_comes_late_is_next_and_saves_nothing_up() {
        let mut queue = FairQueue::default();
        (0..100).for_each(|_| queue.push(share(1, 1), 10, 'a'));
        for _ in 0..50 {
            queue.pop(10);
        }
        (0..10).for_each(|_| queue.push(share(2, 1), 10, 'b'));
        let next: String = (0..20).filter_map(|_| queue.pop(10)).map(|(_, who)| who).collect();
        assert_eq!(next.matches('b').count(), 10, "{next}");
        assert!(next[..4].contains('b') && next[..4].contains('a'), "{next}");
    }

    proptest! {
        /// Invariants 1 to 3.
        #[test]
        fn those_that_wait_get_their_shares_and_nothing_is_lost(
            weights in prop::collection::vec(1u32..10, 1..6),
            costs in prop::collection::vec(1usize..1000, 8..40),
            rooms in prop::collection::vec(1usize..1000, 100..400),
        ) {
            let most = costs.iter().copied().max().unwrap_or(1);
            let mut queue = FairQueue::default();
            let mut next: BTreeMap<u32, usize> = BTreeMap::new();
            let mut pushed = 0usize;
            let mut push = |queue: &mut FairQueue<(u32, usize)>, tenant: u32, weight: u32| {
                let number = next.entry(tenant).or_default();
                queue.push(share(tenant, weight), costs[*number % costs.len()], (tenant, *number));
                *number += 1;
                pushed += 1;
            };
            for (tenant, weight) in (0..).zip(&weights) {
                (0..3).for_each(|_| push(&mut queue, tenant, *weight));
            }
            let mut granted = vec![0usize; weights.len()];
            let mut seen = vec![0usize; weights.len()];
            for room in rooms {
                let (cost, (tenant, number)) = queue.pop(room).unwrap();
                let at = tenant as usize;
                prop_assert!(cost <= room.max(1));
                prop_assert_eq!(seen[at], number, "in the order of arrival");
                seen[at] += 1;
                granted[at] += cost;
                // Whoever waits goes on waiting.
                push(&mut queue, tenant, weights[at]);
                for a in 0..weights.len() {
                    for b in 0..weights.len() {
                        let by_weight = |at: usize| granted[at] as f64 / f64::from(weights[at]);
                        let bound = most as f64 / f64::from(weights[a]) + most as f64 / f64::from(weights[b]) + 1.0;
                        prop_assert!(
                            (by_weight(a) - by_weight(b)).abs() <= bound,
                            "{:?} by {:?}", granted, weights
                        );
                    }
                }
            }
            let left = queue.drain().count();
            prop_assert_eq!(left + seen.iter().sum::<usize>(), pushed);
        }
    }
}
