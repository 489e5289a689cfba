//! Latencies, recorded in microseconds with three digits.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::sync::{Mutex, MutexGuard};

/// Longer ones count as this.
const LATENCY_US_MAX: u64 = 3_600_000_000;

/// Histograms that several threads record into, a batch at a time.
pub struct Latencies(Mutex<Laps>);

/// Each latency is in one of them.
struct Laps {
    now: Histogram<u64>,
    before: Histogram<u64>,
}

/// Percentiles in milliseconds. Null when nothing was recorded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Percentiles {
    pub mean_ms: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub p999_ms: Option<f64>,
    pub max_ms: Option<f64>,
}

impl Latencies {
    /// Empty.
    pub fn new() -> Latencies {
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("fixed bounds are valid");
        Latencies(Mutex::new(Laps { now: histogram.clone(), before: histogram }))
    }

    fn lock(&self) -> MutexGuard<'_, Laps> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Records a batch under one lock.
    pub fn record(&self, latencies_us: impl Iterator<Item = u64>) {
        let histogram = &mut self.lock().now;
        for us in latencies_us {
            histogram.saturating_record(us);
        }
    }

    /// Forgets what was recorded.
    pub fn reset(&self) {
        let mut laps = self.lock();
        laps.now.reset();
        laps.before.reset();
    }

    /// Percentiles of the latencies recorded since the last lap.
    pub fn lap(&self) -> Percentiles {
        let mut laps = self.lock();
        let Laps { now, before } = &mut *laps;
        let percentiles = Percentiles::of(now);
        *before += &*now;
        now.reset();
        percentiles
    }

    /// Percentiles of all latencies recorded so far, of all laps.
    pub fn percentiles(&self) -> Percentiles {
        let laps = self.lock();
        let mut all = laps.before.clone();
        all += &laps.now;
        Percentiles::of(&all)
    }
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Percentiles {
        let is_empty = histogram.is_empty();
        let ms = |us: f64| (!is_empty).then_some(round(us / 1000.0));
        let at = |quantile: f64| ms(histogram.value_at_quantile(quantile) as f64);
        Percentiles {
            mean_ms: ms(histogram.mean()),
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: ms(histogram.max() as f64),
        }
    }
}

/// To three decimals, as the Java driver prints them.
pub fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded_since_the_reset() {
        let latencies = Latencies::new();
        assert_eq!(latencies.percentiles().p50_ms, None);
        latencies.record(std::iter::once(u64::MAX));
        latencies.reset();
        latencies.record((1..=1000).map(|ms| ms * 1000));
        let percentiles = latencies.percentiles();
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() <= expected / 500.0;
        assert!(near(percentiles.p50_ms, 500.0) && near(percentiles.p99_ms, 990.0), "{percentiles:?}");
        assert!(near(percentiles.max_ms, 1000.0) && near(percentiles.mean_ms, 500.5), "{percentiles:?}");
    }

    #[test]
    fn a_lap_has_its_own_latencies_and_the_sum_those_of_all() {
        let latencies = Latencies::new();
        latencies.record([1000, 1000, 1000].into_iter());
        assert_eq!(latencies.lap().max_ms, Some(1.0));
        assert_eq!(latencies.lap().max_ms, None, "nothing came");
        latencies.record([2000].into_iter());
        assert_eq!(latencies.percentiles().max_ms, Some(2.0));
        assert_eq!(latencies.lap().p50_ms, Some(2.0));
        let all = latencies.percentiles();
        assert_eq!((all.p50_ms, all.max_ms), (Some(1.0), Some(2.0)));
        latencies.reset();
        assert_eq!(latencies.percentiles().max_ms, None);
    }
}
