//! A fair share of a byte pool for the reads of one class of a connection: deficit round robin.
//!
//! # Turns by bytes
//! A pool serves waiters in the order of arrival and lets none overtake (`bindery_flow`); each class of a connection
//! queues once. A turn brings [`FairShare::new`]'s `quantum` bytes, which are used for as many reads as they suffice for;
//! then the class queues again. A read larger than a quantum lets turns pass and saves a quantum from each until it has
//! enough. So connections that wait for a pool get equal bytes, whatever the size of their entries.
//!
//! # Invariants
//! 1. Waiting holds no bytes: a turn that passes is returned at once, and so is the rest of a turn without a read to use
//!    it for.
//! 2. While the pool has no waiters, no turn is needed: bytes are taken directly.

use bindery_flow::{AcquireError, ByteBudget, Permit};
use std::future::Future;
use std::pin::Pin;

type Place = Pin<Box<dyn Future<Output = Result<Permit, AcquireError>> + Send>>;

/// See the module. Keeps its place in the pool's queue while its owner does other things, above all writing, which may
/// free the bytes.
pub struct FairShare {
    quantum: u64,
    waiting: Option<Place>,
    /// The turn that comes next only counts towards a large read.
    is_passing: bool,
    /// Bytes saved from turns that passed.
    saved: u64,
    /// The rest of a turn.
    turn: Option<Permit>,
}

impl FairShare {
    /// A class whose turns are worth `quantum` bytes.
    pub fn new(quantum: usize) -> FairShare {
        FairShare { quantum: quantum as u64, waiting: None, is_passing: false, saved: 0, turn: None }
    }

    /// The worth of turns from the next one on.
    pub fn set_quantum(&mut self, quantum: usize) {
        self.quantum = quantum as u64;
    }

    /// A permit for `bytes` now, or a place in line. `backlog` says how many bytes of reads are there to use a turn.
    pub fn take(&mut self, pool: &ByteBudget, bytes: usize, backlog: usize) -> Option<Permit> {
        let bytes = bytes as u64;
        if let Some(turn) = &mut self.turn
            && turn.bytes() >= bytes
        {
            return Some(turn.split(bytes));
        }
        if self.waiting.is_some() {
            return None;
        }
        self.turn = None;
        if let Some(permit) = pool.try_acquire(bytes) {
            self.saved = 0;
            return Some(permit);
        }
        self.is_passing = bytes > self.saved + self.quantum;
        let asked = if self.is_passing { self.quantum } else { bytes.max(self.quantum.min(backlog as u64)) };
        let pool = pool.clone();
        self.waiting = Some(Box::pin(async move { pool.acquire(asked).await }));
        None
    }

    /// True while it stands in line.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// True while it has bytes of a turn.
    pub fn has_turn(&self) -> bool {
        self.turn.is_some()
    }

    /// Gives back what a turn left.
    pub fn end_turn(&mut self) {
        self.turn = None;
    }

    /// Waits for the turn; for ever when there is none to wait for. Cancel safe: the place is kept.
    pub async fn granted(&mut self) {
        let Some(waiting) = &mut self.waiting else { return std::future::pending().await };
        let result = waiting.await;
        self.waiting = None;
        if self.is_passing {
            drop(result);
            self.saved += self.quantum;
        } else {
            self.saved = 0;
            // Larger than the pool cannot be: every pool holds two of the largest frames.
            self.turn = result.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::task::{Context, Waker};

    const QUANTUM: usize = 64 * 1024;

    fn poll(claim: &mut FairShare) {
        let mut granted = Box::pin(claim.granted());
        let _ = granted.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    #[test]
    fn a_turn_serves_several_small_reads_and_what_is_left_goes_back() {
        let pool = ByteBudget::new("test", 1 << 20);
        let held = pool.try_acquire(1 << 20).unwrap();
        let mut claim = FairShare::new(QUANTUM);
        assert!(!claim.is_waiting() && !claim.has_turn());
        assert!(claim.take(&pool, 1000, 10_000).is_none());
        assert!(claim.is_waiting() && claim.take(&pool, 1000, 10_000).is_none());
        drop(held);
        poll(&mut claim);
        assert!(!claim.is_waiting() && claim.has_turn());
        let reads: Vec<_> = (0..10).map(|_| claim.take(&pool, 1000, 10_000).unwrap()).collect();
        assert_eq!(pool.gauge().used, 10_000);
        let held = pool.try_acquire((1 << 20) - 10_000).unwrap();
        assert!(claim.take(&pool, 1000, 1000).is_none(), "the turn is used up");
        drop(held);
        poll(&mut claim);
        assert_eq!(pool.gauge().used, 11_000);
        claim.end_turn();
        assert!(!claim.has_turn());
        drop(reads);
        assert_eq!(pool.gauge().used, 0, "invariant 1");
    }

    /// Goal: bytes in about equal parts when a pool is short. Method: connections with entries of 500 B, 8 KiB, 1 MiB
    /// and 4 MiB take all they can, up to a window; their bytes leave in the order in which they came, as over one
    /// network. The windows are larger than each one's part of the pool; otherwise they would decide the shares.
    #[test]
    fn connections_get_equal_bytes_whatever_the_size_of_their_entries() {
        const WINDOW: u64 = 4 << 20;
        let sizes = [500usize, 8 << 10, 1 << 20, 4 << 20];
        let pool = ByteBudget::new("test", 10 << 20);
        let mut claims: Vec<FairShare> = sizes.iter().map(|_| FairShare::new(QUANTUM)).collect();
        let (mut held, mut served) = ([0u64; 4], [0u64; 4]);
        let mut leaving: VecDeque<(usize, Permit)> = VecDeque::new();
        // Somebody else has half of it, so that the windows together never fit.
        let _strangers = pool.try_acquire(5 << 20).unwrap();
        for _ in 0..400_000 {
            for (who, claim) in claims.iter_mut().enumerate() {
                poll(claim);
                let size = sizes[who];
                while held[who] == 0 || held[who] + size as u64 <= WINDOW {
                    let Some(permit) = claim.take(&pool, size, usize::MAX) else { break };
                    held[who] += permit.bytes();
                    leaving.push_back((who, permit));
                }
                if held[who] > 0 && held[who] + size as u64 > WINDOW {
                    claim.end_turn();
                }
            }
            let (who, permit) =
                leaving.pop_front().expect("somebody always holds bytes: no wait is for ever");
            held[who] -= permit.bytes();
            served[who] += permit.bytes();
        }
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        assert!(*least > 10 << 20, "{served:?}");
        // A connection that asks at a moment when no other waits gets more than a turn. Counted by entries it would be
        // 8,000 to 1.
        assert!(*most <= least * 3, "within a factor of 3: {served:?}");
    }

    #[test]
    fn a_read_as_large_as_a_quantum_lets_no_turn_pass() {
        let pool = ByteBudget::new("test", 1 << 20);
        let held = pool.try_acquire(1 << 20).unwrap();
        let mut claim = FairShare::new(QUANTUM);
        assert!(claim.take(&pool, QUANTUM, QUANTUM).is_none());
        drop(held);
        poll(&mut claim);
        assert!(claim.has_turn());
    }

    #[test]
    fn a_large_read_saves_turns_without_holding_them() {
        let pool = ByteBudget::new("test", 4 << 20);
        let held = pool.try_acquire(4 << 20).unwrap();
        let (mut large, mut small) = (FairShare::new(QUANTUM), FairShare::new(QUANTUM));
        assert!(large.take(&pool, 4 * QUANTUM, 4 * QUANTUM).is_none());
        assert!(small.take(&pool, 100, usize::MAX).is_none());
        drop(held);
        let mut turns = 0;
        let permit = loop {
            poll(&mut large);
            assert!(pool.gauge().used <= QUANTUM as u64, "invariant 1");
            match large.take(&pool, 4 * QUANTUM, 4 * QUANTUM) {
                Some(permit) => break permit,
                None => turns += 1,
            }
            poll(&mut small);
            while small.take(&pool, 100, usize::MAX).is_some() && !small.is_waiting() {
                // The other one stays in line: it takes a turn after each of the large one's.
                if turns > 3 {
                    break;
                }
            }
        };
        assert_eq!(permit.bytes(), 4 * QUANTUM as u64);
    }
}
