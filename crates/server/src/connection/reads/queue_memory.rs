//! Memory for the descriptors of a connection's waiting reads: some are part of its fixed cost, more are leased from the
//! control pool. Parked long polls have a share of the memory limit of their own
//! ([`crate::memory::MemoryPlan::long_polls_max`]).
//!
//! # Invariants
//! 1. No more reads wait than there is memory for, except those of the priority class, which have a reserve of their own in
//!    the queue: a full pool never keeps a recovery out.
//! 2. Half of the pool is for first steps. A connection that pipelines more takes further steps only from the other half,
//!    and no more than it leaves free of that: however deeply some peers pipeline without reading, the next one gets its
//!    first step as long as half of the pool has one for each.
//! 3. Memory that is not needed any more goes back, except one step.

use bindery_flow::{ByteBudget, Permit};

/// Reads that may wait without a lease.
pub const FREE: usize = 16;
/// Reads that a lease is taken for at a time.
pub const STEP: usize = 32;
/// Memory of a waiting read: its descriptor, with the slack of a deque, and its place among those of equal key.
const READ_BYTES: usize = 320;

/// See the module.
pub struct QueueMemory {
    pool: ByteBudget,
    lease: Option<Permit>,
}

impl QueueMemory {
    /// Covers [`FREE`] reads, and more from `pool`.
    pub fn new(pool: ByteBudget) -> QueueMemory {
        QueueMemory { pool, lease: None }
    }

    /// The pool it is leased from.
    pub fn pool(&self) -> ByteBudget {
        self.pool.clone()
    }

    /// Bytes of the pool that it has.
    pub fn leased_bytes(&self) -> u64 {
        self.lease.as_ref().map_or(0, Permit::bytes)
    }

    /// How many reads may wait, after an attempt to make it more than `held`.
    pub fn reach(&mut self, held: usize) -> usize {
        if held < FREE {
            return FREE;
        }
        let covered = FREE + self.lease.as_ref().map_or(0, |lease| steps(lease) * STEP);
        if held < covered {
            return covered;
        }
        let step = (STEP * READ_BYTES) as u64;
        let gauge = self.pool.gauge();
        let leased = self.leased_bytes();
        // Invariant 2; a race with others only makes it a little more or less.
        let free_of_half = (gauge.capacity / 2).saturating_sub(gauge.used);
        if leased > 0 && leased + step > free_of_half {
            return covered;
        }
        match (self.pool.try_acquire(step), &mut self.lease) {
            (None, _) => return covered,
            (Some(more), Some(lease)) => lease.merge(more),
            (Some(more), none) => *none = Some(more),
        }
        covered + STEP
    }

    /// Gives back what `held` waiting reads do not need.
    pub fn release(&mut self, held: usize) {
        let Some(permit) = self.lease.as_mut() else { return };
        if held <= FREE {
            self.lease = None;
        } else if held + 2 * STEP <= FREE + steps(permit) * STEP {
            let needed = (held - FREE).div_ceil(STEP) + 1;
            permit.shrink_to((needed * STEP * READ_BYTES) as u64);
        }
    }
}

fn steps(permit: &Permit) -> usize {
    permit.bytes() as usize / (STEP * READ_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(steps: usize) -> ByteBudget {
        ByteBudget::new("control", (steps * STEP * READ_BYTES) as u64)
    }

    #[test]
    fn a_few_reads_cost_nothing_and_more_are_leased_and_given_back() {
        let pool = pool(100);
        let mut cover = QueueMemory::new(pool.clone());
        assert_eq!(cover.reach(FREE - 1), FREE);
        assert_eq!(pool.gauge().used, 0);
        assert_eq!(cover.reach(FREE), FREE + STEP);
        for held in FREE..FREE + 5 * STEP {
            assert!(cover.reach(held) > held, "invariant 1");
        }
        cover.release(FREE + 3 * STEP + 1);
        assert_eq!(steps(cover.lease.as_ref().unwrap()), 5, "four in use and one more");
        cover.release(FREE + 3 * STEP);
        assert_eq!(steps(cover.lease.as_ref().unwrap()), 4, "three in use and one more");
        cover.release(FREE + 1);
        assert_eq!(steps(cover.lease.as_ref().unwrap()), 2, "one in use and one more (invariant 3)");
        cover.release(FREE);
        assert_eq!(pool.gauge().used, 0);
    }

    #[test]
    fn a_step_is_taken_for_what_is_not_covered_and_within_half_of_the_pool() {
        let pool = pool(6);
        let mut cover = QueueMemory::new(pool.clone());
        for _ in 0..2 {
            assert_eq!(cover.reach(FREE), FREE + STEP);
            assert_eq!(pool.gauge().used, pool.gauge().capacity / 6, "it is covered already");
        }
        assert_eq!(cover.reach(FREE + STEP), FREE + 2 * STEP, "as much of that half stays free");
        assert_eq!(cover.reach(FREE + 2 * STEP), FREE + 2 * STEP, "invariant 2");
    }

    #[test]
    fn greedy_connections_leave_a_first_step_to_the_next_ones() {
        let pool = pool(1000);
        let take_all = |cover: &mut QueueMemory| {
            let mut held = 0;
            while cover.reach(held) > held {
                held = cover.reach(held);
            }
            held
        };
        let mut covers: Vec<QueueMemory> = (0..64).map(|_| QueueMemory::new(pool.clone())).collect();
        assert!(take_all(&mut covers[0]) >= FREE + 100 * STEP, "one alone may pipeline deeply");
        for _ in 0..10 {
            for cover in &mut covers {
                take_all(cover);
            }
        }
        let mut next: Vec<QueueMemory> = (0..400).map(|_| QueueMemory::new(pool.clone())).collect();
        for cover in &mut next {
            assert!(take_all(cover) >= FREE + STEP, "invariant 2: {:?}", pool.gauge());
        }
        let mut none: Vec<QueueMemory> = (0..100).map(|_| QueueMemory::new(pool.clone())).collect();
        assert!(none.iter_mut().any(|cover| take_all(cover) == FREE), "a full pool covers no more");
        drop((covers, next, none));
        assert_eq!(pool.gauge().used, 0);
    }
}
