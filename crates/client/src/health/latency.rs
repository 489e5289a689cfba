//! How long requests took lately: a histogram without a lock.
//!
//! # Invariants
//! 1. A figure is of the last 5 to 10 s; nothing older counts, nor what was forgotten.
//!
//! # Limits     relative error of a percentile: a quarter; samples that come while a window begins may be missed

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

const WINDOW_SECS: u64 = 5;
/// Four for each power of two, up to 134 s in microseconds.
const BUCKETS: usize = 108;

struct Window {
    /// Which five seconds, from 1 on; 0 before its first use.
    number: AtomicU32,
    count: AtomicU64,
    sum_us: AtomicU64,
    buckets: [AtomicU32; BUCKETS],
}

impl Default for Window {
    fn default() -> Window {
        Window {
            number: AtomicU32::new(0),
            count: AtomicU64::new(0),
            sum_us: AtomicU64::new(0),
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
        }
    }
}

/// See the module. `now` counts from any fixed moment.
#[derive(Default)]
pub(crate) struct Latency([Window; 2]);

fn number_at(now: Duration) -> u32 {
    (now.as_secs() / WINDOW_SECS) as u32 + 1
}

fn bucket_of(us: u64) -> usize {
    let exponent = 63 - (us | 1).leading_zeros() as usize;
    match exponent {
        0 | 1 => us as usize,
        _ => ((exponent - 1) * 4 + (us >> (exponent - 2)) as usize % 4).min(BUCKETS - 1),
    }
}

/// The largest value of a bucket.
fn top_of(bucket: usize) -> u64 {
    match bucket / 4 {
        0 => bucket as u64,
        octave => ((bucket as u64 % 4 + 5) << (octave - 1)) - 1,
    }
}

impl Latency {
    pub(crate) fn record(&self, now: Duration, latency: Duration) {
        let number = number_at(now);
        let window = &self.0[number as usize % 2];
        let before = window.number.load(Ordering::Acquire);
        if before < number
            && window.number.compare_exchange(before, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            window.count.store(0, Ordering::Relaxed);
            window.sum_us.store(0, Ordering::Relaxed);
            for bucket in &window.buckets {
                bucket.store(0, Ordering::Relaxed);
            }
        }
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX >> 20);
        window.buckets[bucket_of(us)].fetch_add(1, Ordering::Relaxed);
        window.sum_us.fetch_add(us, Ordering::Relaxed);
        window.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets all that was recorded.
    pub(crate) fn forget(&self) {
        self.0.iter().for_each(|window| window.number.store(0, Ordering::Release));
    }

    fn recent(&self, now: Duration) -> impl Iterator<Item = &Window> {
        let number = number_at(now);
        self.0.iter().filter(move |window| window.number.load(Ordering::Acquire) + 1 >= number.max(2))
    }

    /// Requests.
    pub(crate) fn count(&self, now: Duration) -> u64 {
        self.recent(now).map(|window| window.count.load(Ordering::Relaxed)).sum()
    }

    /// Their mean; `None` without requests.
    pub(crate) fn mean(&self, now: Duration) -> Option<Duration> {
        let (mut sum_us, mut count) = (0, 0);
        for window in self.recent(now) {
            sum_us += window.sum_us.load(Ordering::Relaxed);
            count += window.count.load(Ordering::Relaxed);
        }
        (count > 0).then(|| Duration::from_micros(sum_us / count))
    }

    /// What `share` (0 to 1) of them did not exceed; `None` without requests.
    pub(crate) fn percentile(&self, now: Duration, share: f64) -> Option<Duration> {
        let mut sums = [0u64; BUCKETS];
        for window in self.recent(now) {
            for (sum, bucket) in sums.iter_mut().zip(&window.buckets) {
                *sum += u64::from(bucket.load(Ordering::Relaxed));
            }
        }
        let total: u64 = sums.iter().sum();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = sums.iter().position(|sum| {
            seen += sum;
            seen >= rank
        })?;
        Some(Duration::from_micros(top_of(bucket)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_values_in_order() {
        let mut last = 0;
        for us in (0..5000).chain((13..27).map(|bit| (1 << bit) + 1)) {
            let bucket = bucket_of(us);
            assert!(bucket >= last && top_of(bucket) >= us, "{us}");
            assert!(bucket == 0 || top_of(bucket - 1) < us, "{us}");
            last = bucket;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn figures_are_of_the_last_seconds() {
        let (latency, at, ms) = (Latency::default(), Duration::from_secs, Duration::from_millis);
        assert_eq!((latency.mean(at(0)), latency.percentile(at(0), 0.5)), (None, None));
        for n in 1..=100 {
            latency.record(at(7), ms(n));
        }
        assert_eq!((latency.count(at(9)), latency.mean(at(9))), (100, Some(Duration::from_micros(50_500))));
        let p95 = latency.percentile(at(9), 0.95).unwrap();
        assert!(p95 >= ms(95) && p95 <= ms(95) * 5 / 4, "{p95:?}");
        latency.record(at(12), ms(1));
        assert_eq!(latency.count(at(14)), 101, "two windows");
        assert_eq!(latency.count(at(15)), 1, "invariant 1");
        assert_eq!(latency.mean(at(25)), None, "invariant 1");
        latency.record(at(27), ms(3));
        assert_eq!(latency.count(at(27)), 1, "a window is cleared before it is used again");
        latency.forget();
        assert_eq!((latency.count(at(27)), latency.mean(at(27))), (0, None));
        latency.record(at(27), ms(5));
        assert_eq!((latency.count(at(27)), latency.mean(at(27))), (1, Some(ms(5))));
    }
}
