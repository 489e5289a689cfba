//! How long a tierer waits between two rounds: long enough for objects to fill, short enough for readers of its lag.

use std::time::Duration;

/// Limits and pace of the interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntervalSettings {
    /// Never shorter.
    pub min: Duration,
    /// Never longer, and what it tends to when there is nothing to do.
    pub max: Duration,
    /// The share of the way to the ideal that one step goes when the interval shrinks.
    pub speed_up: f64,
    /// The same when it grows.
    pub slow_down: f64,
}

impl Default for IntervalSettings {
    fn default() -> IntervalSettings {
        IntervalSettings {
            min: Duration::from_millis(250),
            max: Duration::from_secs(10),
            speed_up: 0.9,
            slow_down: 0.4,
        }
    }
}

/// The interval, adapted to how full the objects of the last round became.
#[derive(Debug, Clone)]
pub struct Interval {
    settings: IntervalSettings,
    current: Duration,
}

impl Interval {
    /// Begins with the longest: there may be nothing to do.
    pub fn new(settings: IntervalSettings) -> Interval {
        Interval { settings, current: settings.max }
    }

    /// The wait before the next round.
    pub fn current(&self) -> Duration {
        self.current
    }

    /// A round ended whose largest object had `largest` bytes; 0 when it produced none. `target` is what an object should have.
    pub fn adapt(&mut self, largest: u64, target: u64) {
        let IntervalSettings { min, max, speed_up, slow_down } = self.settings;
        let current = self.current.as_secs_f64();
        let ideal = match largest {
            0 => max.as_secs_f64(),
            // Ten times the longest is enough to say which way to go.
            _ => (current * target as f64 / largest as f64).min(10.0 * max.as_secs_f64()),
        };
        let blend = if ideal < current { speed_up } else { slow_down };
        let next = (1.0 - blend) * current + blend * ideal;
        self.current = Duration::from_secs_f64(next.max(0.0)).clamp(min, max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: u64 = 64 << 20;

    #[test]
    fn it_settles_where_objects_are_full() {
        let mut interval = Interval::new(IntervalSettings::default());
        // 16 MiB arrive in a second: the target fills in 4 s.
        for _ in 0..50 {
            let filled = (interval.current().as_secs_f64() * f64::from(16 << 20)) as u64;
            interval.adapt(filled, TARGET);
        }
        assert!((interval.current().as_secs_f64() - 4.0).abs() < 0.1, "{:?}", interval.current());
    }

    #[test]
    fn it_speeds_up_faster_than_it_slows_down_and_stays_within_its_limits() {
        let mut interval = Interval::new(IntervalSettings::default());
        interval.adapt(2 * TARGET, TARGET);
        assert_eq!(interval.current(), Duration::from_millis(5500));
        interval.adapt(0, TARGET);
        assert_eq!(interval.current(), Duration::from_millis(7300));
        for _ in 0..100 {
            interval.adapt(u64::MAX, TARGET);
        }
        assert_eq!(interval.current(), Duration::from_millis(250));
        interval.adapt(1, TARGET);
        assert_eq!(interval.current(), Duration::from_secs(10));
    }
}
