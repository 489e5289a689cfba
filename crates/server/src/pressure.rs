//! Since when memory for requests is short. Requests grow too old only while it is: a process that was paused, on a machine
//! that was suspended or whose threads stood still, finds old requests and room for all of them.
//!
//! # Invariants
//! 1. A shortage lasts from the first wait for memory until [`CALM`] has passed without one. So it covers an overload, in
//!    which waits follow each other, and not the time before the first of them.
//! 2. Unobserved time does not count: a process that stood still finds requests that came in the meantime, and those
//!    that waited before. After more than [`CALM`] without a reading of the clock a shortage starts over;
//!    [`Pressure::observe`] reads it often enough while the process runs.

use bindery_io::Clock;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::time::Duration;

/// After so long without a wait the next one begins another shortage.
const CALM: Duration = Duration::from_secs(1);
/// How often the clock is read.
const TICK: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    /// Waits under way.
    waiting: usize,
    /// When the shortage began.
    since_ns: u64,
    /// When the last wait ended.
    ended_ns: Option<u64>,
    /// When the clock was last read.
    seen_ns: u64,
}

impl State {
    /// To be told the time before anything else (invariant 2).
    fn see(&mut self, now_ns: u64) {
        if Duration::from_nanos(now_ns.saturating_sub(self.seen_ns)) > CALM {
            self.since_ns = now_ns;
        }
        self.seen_ns = self.seen_ns.max(now_ns);
    }

    fn is_short(&self, now_ns: u64) -> bool {
        let is_recent = |ended_ns| Duration::from_nanos(now_ns.saturating_sub(ended_ns)) <= CALM;
        self.waiting > 0 || self.ended_ns.is_some_and(is_recent)
    }
}

/// See the module.
#[derive(Default)]
pub struct Pressure(Mutex<State>);

impl Pressure {
    /// Looks at the clock for as long as it is polled. Cancel safe.
    pub async fn observe(&self, clock: &dyn Clock) -> Infallible {
        loop {
            self.0.lock().see(clock.monotonic_ns());
            tokio::time::sleep(TICK).await;
        }
    }

    /// A task begins to wait for memory.
    pub fn begin(&self, now_ns: u64) {
        let mut state = self.0.lock();
        state.see(now_ns);
        if !state.is_short(now_ns) {
            state.since_ns = now_ns;
        }
        state.waiting += 1;
    }

    /// A task has waited.
    pub fn end(&self, now_ns: u64) {
        let mut state = self.0.lock();
        state.see(now_ns);
        assert!(state.waiting > 0, "a wait that ends has begun");
        state.waiting -= 1;
        state.ended_ns = state.ended_ns.max(Some(now_ns));
    }

    /// How long memory has been short; zero when it is not.
    pub fn lasts(&self, now_ns: u64) -> Duration {
        let mut state = self.0.lock();
        state.see(now_ns);
        if state.is_short(now_ns) {
            Duration::from_nanos(now_ns.saturating_sub(state.since_ns))
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_shortage_covers_waits_that_follow_each_other_and_ends_when_none_comes() {
        let pressure = Pressure::default();
        let seen = |from_s: u64, to_s: u64| (from_s..=to_s).for_each(|s| pressure.0.lock().see(s * S));
        let lasts = |now_s: u64| pressure.lasts(now_s * S).as_secs();
        assert_eq!(lasts(100), 0);
        pressure.begin(100 * S);
        seen(101, 103);
        pressure.begin(103 * S);
        pressure.end(104 * S);
        seen(105, 110);
        assert_eq!(lasts(110), 10, "one still waits");
        pressure.end(110 * S);
        assert_eq!(lasts(111), 11);
        pressure.begin(111 * S);
        pressure.end(111 * S);
        assert_eq!(lasts(112), 12, "the same shortage");
        assert_eq!(lasts(113), 0, "it is over");
        // As after a pause: requests from before the wait did not grow old for want of memory.
        pressure.begin(120 * S);
        assert_eq!(lasts(121), 1);
        pressure.end(121 * S);
        assert_eq!(pressure.lasts(120 * S), Duration::ZERO, "clocks of two threads may differ a little");
    }

    /// Invariant 2: somebody waited when the process was paused, and what came meanwhile is not too old.
    #[test]
    fn a_pause_in_the_middle_of_a_shortage_does_not_count() {
        let pressure = Pressure::default();
        pressure.begin(100 * S);
        assert_eq!(pressure.lasts(101 * S).as_secs(), 1);
        assert_eq!(pressure.lasts(131 * S), Duration::ZERO);
        pressure.begin(132 * S);
        assert_eq!(pressure.lasts(133 * S).as_secs(), 2, "it goes on from there");
    }
}
