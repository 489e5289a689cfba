//! Whether a bookie that was slow still is: now and then it is asked first, and a few good answers in a row clear its name.
//!
//! Latencies are remembered for seconds, and who is slow is asked by nobody meanwhile: without trials it would come back only
//! when all of them are forgotten.
//!
//! # Invariants
//! 1. Of the requests that might go to a slow bookie, one in [`REQUESTS_MIN`] at most is a trial, and one each
//!    [`INTERVAL`]: whatever it costs, most requests do not notice.
//! 2. [`GOOD_MIN`] answers in a row clear it, each in less than half of its mean.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Between two trials.
const INTERVAL: Duration = Duration::from_secs(1);
/// Requests for each trial.
const REQUESTS_MIN: u32 = 200;
/// Good answers that end it.
const GOOD_MIN: u32 = 3;

/// Of one bookie and kind of request. `now` counts from any fixed moment.
#[derive(Default)]
pub(super) struct Trial {
    /// Requests that went elsewhere since the last one.
    passed_over: AtomicU32,
    /// When the first of these came, in milliseconds.
    since_ms: AtomicU64,
    /// Its answer is awaited.
    is_under_way: AtomicBool,
    good: AtomicU32,
}

impl Trial {
    /// A request is on its way past a slow bookie: whether it is to go there instead.
    pub(super) fn begins(&self, now: Duration) -> bool {
        let passed_over = self.passed_over.fetch_add(1, Ordering::Relaxed) + 1;
        let now_ms = now.as_millis() as u64;
        if passed_over == 1 {
            self.since_ms.store(now_ms, Ordering::Relaxed);
        }
        if passed_over < REQUESTS_MIN {
            return false;
        }
        let since_ms = self.since_ms.load(Ordering::Relaxed);
        let is_due = now_ms >= since_ms + INTERVAL.as_millis() as u64;
        // One of those that see it at once.
        let begins = is_due
            && self.since_ms.compare_exchange(since_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if begins {
            self.passed_over.store(0, Ordering::Relaxed);
            self.is_under_way.store(true, Ordering::Relaxed);
        }
        begins
    }

    /// Takes an answer of a bookie whose mean was `mean` before it: whether what is known of its latency is to be forgotten.
    pub(super) fn ends(&self, latency: Duration, mean: impl FnOnce() -> Option<Duration>) -> bool {
        // Nearly always: not written, so that the line stays where it is read.
        if !self.is_under_way.load(Ordering::Relaxed) || !self.is_under_way.swap(false, Ordering::Relaxed) {
            return false;
        }
        let is_good = mean().is_none_or(|mean| latency * 2 < mean);
        let good = if is_good { self.good.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        let is_clear = good >= GOOD_MIN;
        if is_clear || !is_good {
            self.good.store(0, Ordering::Relaxed);
        }
        is_clear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begins_after(trial: &Trial, now: Duration) -> Option<u32> {
        (1..=5 * REQUESTS_MIN).find(|_| trial.begins(now))
    }

    #[test]
    fn one_in_many_is_a_trial_and_one_a_second() {
        let (trial, ms) = (Trial::default(), Duration::from_millis);
        assert_eq!(begins_after(&trial, ms(1000)), None, "it was not slow before");
        assert_eq!(begins_after(&trial, ms(1999)), None, "invariant 1");
        assert_eq!(begins_after(&trial, ms(2000)), Some(1), "many passed it over");
        assert!(!trial.begins(ms(2000)));
        assert_eq!(begins_after(&trial, ms(9000)), Some(REQUESTS_MIN - 1), "invariant 1");
    }

    #[test]
    fn good_answers_in_a_row_clear_it() {
        let (trial, ms) = (Trial::default(), Duration::from_millis);
        let mut now = ms(0);
        let mut answer = |latency| {
            assert!(!trial.begins(now));
            now += INTERVAL;
            assert!(begins_after(&trial, now).is_some());
            let clears = trial.ends(ms(latency), || Some(ms(100)));
            assert!(!trial.ends(ms(1), || panic!("of no trial")), "one answer for each");
            clears
        };
        assert_eq!(
            [2, 2, 50, 2, 49, 2, 2, 2, 2].map(&mut answer),
            [false, false, false, false, false, true, false, false, true]
        );
    }
}
