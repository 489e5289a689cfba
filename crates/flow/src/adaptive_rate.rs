//! How fast background work may go: as configured, and less while others report pressure.
//!
//! # Invariants
//! 1. The rate is never above what is configured, and never below [`BYTES_PER_SECOND_MIN`].
//! 2. Reports of pressure halve it, at most once in [`STEP`]; without them it grows by a quarter in that time, until it is as
//!    configured again.

use std::time::Duration;

/// How often the rate changes.
const STEP: Duration = Duration::from_secs(1);
/// Never slower: background work that stands still is never done.
const BYTES_PER_SECOND_MIN: f64 = 256.0 * 1024.0;
/// With no limit configured, a rate that has grown to this is as good as none.
const UNLIMITED: f64 = 8.0 * 1024.0 * 1024.0 * 1024.0;

/// The rate, as pressure changes it.
#[derive(Debug, Clone)]
pub struct AdaptiveRate {
    limit: f64,
    allowed: f64,
    changed_at: Duration,
    /// Bytes that had been moved when the rate changed.
    read_before: u64,
}

impl AdaptiveRate {
    /// A limit in bytes per second, or none.
    pub fn new(now: Duration, limit: Option<u64>) -> AdaptiveRate {
        let limit = limit.map_or(UNLIMITED, |bytes| (bytes as f64).max(BYTES_PER_SECOND_MIN));
        AdaptiveRate { limit, allowed: limit, changed_at: now, read_before: 0 }
    }

    /// To be called about every second. `read` are the bytes moved since the start, `is_pressed` whether others suffer from it. True when the rate changed.
    pub fn step(&mut self, now: Duration, read: u64, is_pressed: bool) -> bool {
        let elapsed = now.saturating_sub(self.changed_at);
        if elapsed < STEP {
            return false;
        }
        // Without a limit, the rate that led here is what counts.
        let actual =
            (read.saturating_sub(self.read_before) as f64 / elapsed.as_secs_f64()).max(BYTES_PER_SECOND_MIN);
        let before = self.allowed;
        self.allowed = match is_pressed {
            true => self.allowed.min(actual) / 2.0,
            false => self.allowed * 1.25,
        };
        self.allowed = self.allowed.clamp(BYTES_PER_SECOND_MIN, self.limit);
        (self.changed_at, self.read_before) = (now, read);
        self.allowed != before
    }

    /// Bytes per second now; `None` without a limit.
    pub fn allowed(&self) -> Option<u64> {
        (self.allowed < UNLIMITED).then_some(self.allowed as u64)
    }

    /// Whether it is below what is configured, because of pressure.
    pub fn is_pressed(&self) -> bool {
        self.allowed < self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn pressure_halves_it_and_it_recovers_to_what_is_configured() {
        let mut rate = AdaptiveRate::new(seconds(0), Some(10 * MIB));
        assert!(!rate.step(seconds(1), 10 * MIB, false));
        assert_eq!((rate.allowed(), rate.is_pressed()), (Some(10 * MIB), false));
        assert!(rate.step(seconds(2), 20 * MIB, true));
        assert_eq!((rate.allowed(), rate.is_pressed()), (Some(5 * MIB), true));
        assert!(!rate.step(seconds(2) + STEP / 2, 25 * MIB, true), "once in a second");
        for second in 3..10 {
            rate.step(seconds(second), 25 * MIB, false);
        }
        assert_eq!((rate.allowed(), rate.is_pressed()), (Some(10 * MIB), false));
    }

    #[test]
    fn without_a_limit_pressure_makes_one_from_what_was_read() {
        let mut rate = AdaptiveRate::new(seconds(0), None);
        assert_eq!(rate.allowed(), None);
        rate.step(seconds(1), 100 * MIB, true);
        assert_eq!(rate.allowed(), Some(50 * MIB));
        for second in 2..60 {
            rate.step(seconds(second), 100 * MIB, false);
        }
        assert_eq!(rate.allowed(), None);
    }

    #[test]
    fn it_never_stands_still() {
        let mut rate = AdaptiveRate::new(seconds(0), Some(1));
        for second in 1..60 {
            rate.step(seconds(second), 0, true);
        }
        assert_eq!(rate.allowed(), Some(BYTES_PER_SECOND_MIN as u64));
    }
}
