//! How fast entries may be read: a limit in bytes per second, and less of it while bookies report pressure.
//!
//! # Invariants
//! 1. Over any time, no more is taken than the rate allows and one read beyond.
//! 2. Each report of pressure halves the rate, at most once in [`STEP`]; without reports it grows by a quarter in that time,
//!    until it is as configured again.

use std::time::Duration;

/// How often the rate changes.
const STEP: Duration = Duration::from_secs(1);
/// Never slower: a tierer that stands still would fill the disks.
const BYTES_PER_SECOND_MIN: f64 = 256.0 * 1024.0;
/// With no limit configured, this is as good as none.
const UNLIMITED: f64 = 16.0 * 1024.0 * 1024.0 * 1024.0;

/// The bytes that may be read now.
#[derive(Debug, Clone)]
pub struct Rate {
    limit: f64,
    allowed: f64,
    /// Bytes that may be taken; negative after a read that was larger.
    tokens: f64,
    filled_at: Duration,
    changed_at: Duration,
    pressed_at: Option<Duration>,
    taken_since_change: u64,
    waited: Duration,
}

impl Rate {
    /// A limit in bytes per second, or none.
    pub fn new(limit: Option<u64>) -> Rate {
        let limit = limit.map_or(UNLIMITED, |bytes| (bytes as f64).max(BYTES_PER_SECOND_MIN));
        Rate {
            limit,
            allowed: limit,
            tokens: 0.0,
            filled_at: Duration::ZERO,
            changed_at: Duration::ZERO,
            pressed_at: None,
            taken_since_change: 0,
            waited: Duration::ZERO,
        }
    }

    /// Asks for `bytes`: zero when they may be read now, and are taken; else how long to wait before asking again.
    pub fn take(&mut self, now: Duration, bytes: u64) -> Duration {
        self.recover(now);
        let elapsed = now.saturating_sub(self.filled_at).as_secs_f64();
        // What was not used within a second is gone.
        self.tokens = (self.tokens + elapsed * self.allowed).min(self.allowed);
        self.filled_at = now;
        if self.tokens < 0.0 {
            let wait = Duration::from_secs_f64(-self.tokens / self.allowed).max(Duration::from_millis(1));
            self.waited += wait;
            return wait;
        }
        self.tokens -= bytes as f64;
        self.taken_since_change += bytes;
        Duration::ZERO
    }

    /// A bookie reported that it has too much to do.
    pub fn press(&mut self, now: Duration) {
        if self.pressed_at.is_some_and(|at| now < at + STEP) {
            return;
        }
        self.pressed_at = Some(now);
        let elapsed = now.saturating_sub(self.changed_at).as_secs_f64().max(0.001);
        // Without a limit the rate that led here is what counts.
        let actual = (self.taken_since_change as f64 / elapsed).max(BYTES_PER_SECOND_MIN);
        self.change(now, self.allowed.min(actual) / 2.0);
    }

    fn recover(&mut self, now: Duration) {
        let since = self.pressed_at.map_or(self.changed_at, |at| at.max(self.changed_at));
        if self.allowed < self.limit && now >= since + STEP {
            self.change(now, self.allowed * 1.25);
        } else if self.allowed >= self.limit && now >= self.changed_at + STEP {
            self.change(now, self.limit);
        }
    }

    fn change(&mut self, now: Duration, to: f64) {
        self.allowed = to.clamp(BYTES_PER_SECOND_MIN, self.limit);
        self.changed_at = now;
        self.taken_since_change = 0;
        self.tokens = self.tokens.min(self.allowed);
    }

    /// Bytes per second now; `None` without a limit.
    pub fn allowed(&self) -> Option<u64> {
        (self.allowed < UNLIMITED).then_some(self.allowed as u64)
    }

    /// Whether it is below what is configured, because of pressure.
    pub fn is_pressed(&self) -> bool {
        self.allowed < self.limit
    }

    /// How long reads have been made to wait, together.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Takes as much as it can for so long, a MiB at a time.
    fn run(rate: &mut Rate, from: Duration, seconds: u64) -> u64 {
        let (mut now, mut taken) = (from, 0);
        while now < from + Duration::from_secs(seconds) {
            match rate.take(now, MIB) {
                Duration::ZERO => taken += MIB,
                wait => now += wait,
            }
        }
        taken
    }

    #[test]
    fn no_more_is_taken_than_the_limit() {
        let mut rate = Rate::new(Some(10 * MIB));
        let taken = run(&mut rate, Duration::from_secs(1), 20);
        assert!((200 * MIB..=211 * MIB).contains(&taken), "{} MiB", taken / MIB);
        assert!(!rate.is_pressed());
    }

    #[test]
    fn pressure_halves_it_and_it_recovers() {
        let mut rate = Rate::new(Some(10 * MIB));
        run(&mut rate, Duration::ZERO, 5);
        rate.press(Duration::from_secs(5));
        rate.press(Duration::from_millis(5001));
        let pressed = rate.allowed().unwrap();
        assert!(rate.is_pressed() && pressed <= 6 * MIB && pressed >= 3 * MIB, "{pressed}");
        let taken = run(&mut rate, Duration::from_secs(5), 1);
        assert!(taken <= 7 * MIB, "{taken}");
        run(&mut rate, Duration::from_secs(6), 10);
        assert!(!rate.is_pressed(), "{:?}", rate.allowed());
    }

    #[test]
    fn without_a_limit_pressure_makes_one_from_what_was_read() {
        let mut rate = Rate::new(None);
        assert_eq!(rate.allowed(), None);
        for ms in 0..500 {
            assert_eq!(rate.take(Duration::from_millis(ms), MIB / 10), Duration::ZERO);
        }
        rate.press(Duration::from_millis(500));
        let allowed = rate.allowed().unwrap();
        assert!(allowed > 20 * MIB && allowed < 60 * MIB, "{allowed}");
    }
}
