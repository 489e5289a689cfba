//! How fast copies may come into a bookie: as configured, and slower while the adds of its clients take longer than without copies, or
//! bookies that are read from have too much to do.
//!
//! ```text
//! each second: adds and their time, bytes copied --> Pace --> bytes per second
//! ```
//!
//! # Invariants
//! 1. The *calm* time of an add is the mean of seconds in which nothing was copied, recent ones counting most. A second of copies in which adds
//!    took longer than [`LONGER`] of that halves the rate; others let it grow by a quarter (`bindery_flow::AdaptiveRate`).
//! 2. Copies that go on where no calm time is known, or an old one, and adds come, are held back until a second has shown it.
//! 3. Too few adds say nothing.

use std::time::Duration;

use bindery_flow::AdaptiveRate;

/// Times of the calm time that an add may take while copies come. Its p99 rises more than its mean does.
const LONGER: f64 = 1.15;
/// Beyond what the clock and the scheduler add now and then.
const NOISE_US: f64 = 100.0;
/// Adds in a second that say something.
const ADDS_MIN: u64 = 20;
/// Bytes in a second that are no copies worth speaking of.
const COPIED_MIN: u64 = 64 << 10;
/// How much a calm second counts.
const WEIGHT: f64 = 0.3;
/// How old a calm time may be while copies go on.
const CALM_AGE_MAX: Duration = Duration::from_secs(60);
/// Bytes per second of copies that are held back.
const HELD_BACK: u64 = 16 << 10;

/// What was counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PaceSample {
    /// Adds that this bookie answered.
    pub adds: u64,
    /// Time that they took, in microseconds.
    pub add_us: u64,
    /// Bytes copied.
    pub copied: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Pace {
    rate: AdaptiveRate,
    before: PaceSample,
    /// In microseconds, and since when.
    calm: Option<(f64, Duration)>,
    is_held: bool,
}

impl Pace {
    /// A limit in bytes per second, or none.
    pub fn new(now: Duration, limit: Option<u64>) -> Pace {
        Pace {
            rate: AdaptiveRate::new(now, limit),
            before: PaceSample::default(),
            calm: None,
            is_held: false,
        }
    }

    /// To be called each second. `is_busy`: a bookie that is read from had too much to do.
    pub fn step(&mut self, now: Duration, sample: PaceSample, is_busy: bool) {
        let adds = sample.adds.saturating_sub(self.before.adds);
        let add_us = sample.add_us.saturating_sub(self.before.add_us) as f64;
        let is_calm = sample.copied.saturating_sub(self.before.copied) < COPIED_MIN;
        self.before = sample;
        let mean = (adds >= ADDS_MIN).then(|| add_us / adds as f64);
        let known = self.calm.filter(|(_, at)| now.saturating_sub(*at) <= CALM_AGE_MAX);
        match mean {
            Some(mean) if is_calm => {
                let calm = known.map_or(mean, |(known, _)| known + WEIGHT * (mean - known));
                self.calm = Some((calm, now));
                self.is_held = false;
                self.rate.step(now, sample.copied, is_busy);
            }
            Some(mean) => {
                let is_longer = known.is_some_and(|(calm, _)| mean > LONGER * calm + NOISE_US);
                self.is_held = known.is_none();
                self.rate.step(now, sample.copied, is_longer || is_busy);
            }
            None => {
                self.is_held = false;
                self.rate.step(now, sample.copied, is_busy);
            }
        }
    }

    /// Bytes per second from now on; `None` for no limit.
    pub fn allowed(&self) -> Option<u64> {
        if self.is_held { Some(HELD_BACK) } else { self.rate.allowed() }
    }

    /// Whether copies are slower than configured.
    pub fn is_slowed_down(&self) -> bool {
        self.is_held || self.rate.is_pressed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A bookie whose adds take `calm_us`, and longer the faster copies come.
    struct Bookie {
        pace: Pace,
        second: u64,
        sample: PaceSample,
    }

    impl Bookie {
        fn new(limit: Option<u64>) -> Bookie {
            Bookie { pace: Pace::new(Duration::ZERO, limit), second: 0, sample: PaceSample::default() }
        }

        /// A second with so many adds, while as much is copied as is allowed, and wanted.
        fn second(&mut self, adds: u64, add_us: impl Fn(u64) -> u64, wanted: u64) -> u64 {
            let copied = self.pace.allowed().map_or(wanted, |allowed| allowed.min(wanted));
            self.second += 1;
            self.sample.adds += adds;
            self.sample.add_us += adds * add_us(copied);
            self.sample.copied += copied;
            self.pace.step(Duration::from_secs(self.second), self.sample, false);
            copied
        }
    }

    /// Half a millisecond, and as much again for each 10 MiB/s.
    fn disk(copied: u64) -> u64 {
        500 + 500 * copied / (10 * MIB)
    }

    #[test]
    fn copies_give_way_to_adds_that_take_longer() {
        let mut bookie = Bookie::new(None);
        for _ in 0..10 {
            bookie.second(2000, disk, 0);
        }
        let first = bookie.second(2000, disk, 100 * MIB);
        assert_eq!(first, 100 * MIB, "nothing speaks against it");
        let settled: Vec<u64> = (0..60).map(|_| bookie.second(2000, disk, 100 * MIB)).collect();
        assert!(bookie.pace.is_slowed_down());
        // At 3.5 MiB/s adds take 1.15 times as long, and the noise more.
        let mean = settled[20..].iter().sum::<u64>() / 40;
        assert!((2 * MIB..8 * MIB).contains(&mean), "{mean}: {settled:?}");
        for _ in 0..40 {
            bookie.second(0, disk, 100 * MIB);
        }
        assert_eq!(bookie.pace.allowed(), None, "no client is in the way any more");
    }

    #[test]
    fn adds_that_copies_do_not_slow_down_do_not_slow_down_copies() {
        let mut bookie = Bookie::new(Some(40 * MIB));
        for _ in 0..10 {
            bookie.second(2000, |_| 700, 0);
        }
        for _ in 0..50 {
            assert_eq!(bookie.second(2000, |_| 720, 100 * MIB), 40 * MIB);
        }
        assert!(!bookie.pace.is_slowed_down());
    }

    #[test]
    fn what_adds_take_without_copies_is_found_out_while_copies_go_on() {
        let mut bookie = Bookie::new(None);
        for _ in 0..10 {
            bookie.second(0, disk, 50 * MIB);
        }
        bookie.second(1000, disk, 50 * MIB);
        assert_eq!(bookie.second(1000, disk, 50 * MIB), HELD_BACK);
        let settled: Vec<u64> = (0..130).map(|_| bookie.second(1000, disk, 50 * MIB)).collect();
        let held = settled.iter().filter(|copied| **copied == HELD_BACK).count();
        assert!((1..=3).contains(&held), "about once a minute: {settled:?}");
        assert!(settled[100] < 10 * MIB, "{settled:?}");
    }

    #[test]
    fn busy_sources_slow_copies_down_and_few_adds_say_nothing() {
        let mut bookie = Bookie::new(Some(64 * MIB));
        for second in 1..20 {
            bookie.second(second % 19, |_| 1_000_000, 64 * MIB);
        }
        assert!(!bookie.pace.is_slowed_down());
        let sample = PaceSample { copied: 3000 * MIB, ..bookie.sample };
        bookie.pace.step(Duration::from_secs(30), sample, true);
        assert!(bookie.pace.is_slowed_down());
    }
}
