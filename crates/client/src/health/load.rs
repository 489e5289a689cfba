//! How many requests are under way at a bookie, and how many it answered, counted by many threads at once.
//!
//! One number would make every request of every thread write the same cache line, which costs more than all else about
//! counting. So each thread writes a line of its own, as in a striped counter, and who looks adds them up. (The lines of
//! all bookies side by side, one for each thread, were measured as well: looking at three bookies then costs twice as much
//! with 30 bookies, for each request of another thread invalidates what is known of all of them.)
//!
//! # Invariants
//! 1. No number is below zero: a guard gives back on the line it took from, on whatever thread it ends (C1).
//! 2. With nothing under way the sum is 0. A sum that is taken while threads change it is of no one moment, a little less or
//!    more than there ever was: it orders replicas, and limits nothing exactly.
//!
//! # Limits     [`LINES`] lines of 128 bytes for each bookie; of more threads than that some share a line

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// As many threads count without disturbing each other.
const LINES: usize = 8;

/// Two of x86's lines, which are fetched in pairs.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Line<T>(pub(super) T);

#[derive(Default)]
struct Counts {
    under_way: AtomicU64,
    answered: AtomicU64,
}

/// Of one bookie; see the module.
#[derive(Default)]
pub(super) struct Load([Line<Counts>; LINES]);

/// The line a request was counted on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    line: usize,
}

/// The line of this thread: the threads take turns as they come.
fn own_line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LINES;
    }
    OWN.with(|own| *own)
}

impl Load {
    /// Counts a request, until [`give_back`](Self::give_back).
    pub(super) fn take(&self) -> Taken {
        let line = own_line();
        self.0[line].0.under_way.fetch_add(1, Ordering::Relaxed);
        Taken { line }
    }

    /// A request is over.
    pub(super) fn give_back(&self, taken: Taken) {
        let before = self.0[taken.line].0.under_way.fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a guard gives back what it took, once (C1)");
    }

    /// A request was answered.
    pub(super) fn answer(&self, taken: Taken) {
        self.0[taken.line].0.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests under way (invariant 2). A thread that sees here that a request was given back sees all that the thread
    /// which gave it back did before.
    pub(super) fn under_way(&self) -> u64 {
        self.0.iter().map(|line| line.0.under_way.load(Ordering::Acquire)).sum()
    }

    /// Requests answered so far.
    pub(super) fn answered(&self) -> u64 {
        self.0.iter().map(|line| line.0.answered.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_on_another_thread_is_given_back_where_it_was_taken() {
        // Invariants 1 and 2.
        let load = Load::default();
        let taken: Vec<Taken> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2 * LINES).map(|_| scope.spawn(|| load.take())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(load.under_way(), 2 * LINES as u64);
        let mut lines: Vec<usize> = taken.iter().map(|taken| taken.line).collect();
        lines.sort_unstable();
        lines.dedup();
        assert!(lines.len() > LINES / 2, "threads spread over the lines: {lines:?}");
        std::thread::scope(|scope| {
            for taken in taken {
                let load = &load;
                scope.spawn(move || {
                    load.answer(taken);
                    load.give_back(taken);
                });
            }
        });
        assert_eq!((load.under_way(), load.answered()), (0, 2 * LINES as u64));
        assert!(load.0.iter().all(|line| line.0.under_way.load(Ordering::Relaxed) == 0));
    }

    #[test]
    #[should_panic(expected = "once (C1)")]
    fn what_was_not_taken_is_not_given_back() {
        Load::default().give_back(Taken { line: 0 });
    }

    #[test]
    fn a_sum_stays_within_what_was_under_way_while_threads_change_it() {
        // Invariant 2: four threads with at most one each.
        let (load, over) = (Load::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100_000 {
                        load.give_back(load.take());
                    }
                    over.fetch_add(1, Ordering::Release);
                });
            }
            while over.load(Ordering::Acquire) < 4 {
                assert!(load.under_way() <= 4);
            }
        });
        assert_eq!(load.under_way(), 0);
    }
}
