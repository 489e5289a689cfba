//! The rate of one tenant: which bytes are paid for, and when the next ones will be. No clock, no waiting.
//!
//! # How it counts
//! Bytes are taken first and paid later, at the rate of the tenant. A [`Position`] is a place in the sum of everything that was taken;
//! it is paid when what was paid has come so far. Whoever took bytes waits until its own are paid before it takes more. So a tenant's
//! connections share its rate alike, each wait is known beforehand, and there is neither a queue nor a timer for each of them.
//!
//! # Invariants
//! 1. Over any time the bytes taken exceed rate × time by no more than the burst and one taking of each taker. Free bytes are no taking;
//!    they raise the debt to [`FREE_DEBT`] at most.
//! 2. No byte is lost or made: the sum paid is rate × time, less what was not needed while nothing was owed for longer than a burst.
//! 3. Bytes that were taken and paid stay paid, whatever the rate becomes. Savings never exceed the burst of the present rate.

use std::time::Duration;

const NS: u128 = 1_000_000_000;
/// Free bytes make other requests of the tenant wait no longer than this.
const FREE_DEBT: Duration = Duration::from_secs(1);
/// An idle tenant may have so much of its rate saved up.
const BURST: Duration = Duration::from_millis(100);

/// A position in the stream of all bytes taken so far: their number up to there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

/// See the module.
#[derive(Debug, Default)]
pub struct Meter {
    /// Bytes a second; `None` without a limit.
    rate: Option<u64>,
    /// Ever.
    taken: u64,
    /// Of these and of those to come, in bytes × 10⁹, so that no part of a byte gets lost.
    paid: u128,
    /// When that was.
    at_ns: u64,
}

impl Meter {
    /// From now on with this rate in bytes a second.
    pub fn set_rate(&mut self, rate: Option<u64>, now_ns: u64) {
        self.pay(now_ns);
        self.rate = rate;
        match rate {
            None => self.pay(now_ns),
            Some(rate) => self.paid = self.paid.min(self.saved_max(rate)),
        }
    }

    /// The most that may be paid now, of what was taken and beforehand.
    fn saved_max(&self, rate: u64) -> u128 {
        u128::from(self.taken) * NS + u128::from(rate) * BURST.as_nanos()
    }

    /// The place at which somebody stands who took nothing yet: behind all that was taken.
    pub fn position(&self) -> Position {
        Position(self.taken)
    }

    /// Takes bytes; the position says when they are paid.
    pub fn take(&mut self, bytes: u64, now_ns: u64) -> Position {
        self.pay(now_ns);
        self.taken += bytes;
        if self.rate.is_none() {
            self.paid = u128::from(self.taken) * NS;
        }
        Position(self.taken)
    }

    /// As [`Meter::take`], for bytes that wait for no limit. They count only as far as the debt stays within [`FREE_DEBT`].
    pub fn take_free(&mut self, bytes: u64, now_ns: u64) -> Position {
        let most = self.rate.map_or(u64::MAX, |rate| rate * FREE_DEBT.as_secs());
        let left = most.saturating_sub(self.owed(now_ns));
        self.take(bytes.min(left), now_ns)
    }

    /// How long until a position is paid at this rate; `None` when it is.
    pub fn until_paid(&mut self, position: Position, now_ns: u64) -> Option<Duration> {
        self.pay(now_ns);
        let owed = (u128::from(position.0) * NS).checked_sub(self.paid).filter(|owed| *owed > 0)?;
        let rate = u128::from(self.rate?);
        Some(Duration::from_nanos(u64::try_from(owed.div_ceil(rate)).unwrap_or(u64::MAX)))
    }

    /// Bytes that were taken and are not paid yet.
    pub fn owed(&mut self, now_ns: u64) -> u64 {
        self.pay(now_ns);
        let owed = (u128::from(self.taken) * NS).saturating_sub(self.paid);
        u64::try_from(owed.div_ceil(NS)).unwrap_or(u64::MAX)
    }

    fn pay(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        match self.rate {
            None => self.paid = self.paid.max(u128::from(self.taken) * NS),
            Some(rate) => {
                let most = self.saved_max(rate);
                self.paid = (self.paid + u128::from(rate) * u128::from(passed_ns)).min(most);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;

    fn meter(rate: u64) -> Meter {
        let mut meter = Meter::default();
        meter.set_rate(Some(rate), 0);
        meter
    }

    #[test]
    fn who_took_waits_until_it_is_paid() {
        let mut meter = meter(1000);
        let first = meter.take(500, S);
        // A burst of 100 bytes was saved up.
        assert_eq!(meter.until_paid(first, S), Some(Duration::from_millis(400)));
        assert_eq!(meter.owed(S), 400);
        let second = meter.take(100, S);
        assert_eq!(meter.until_paid(second, S), Some(Duration::from_millis(500)));
        assert_eq!(meter.until_paid(first, S + 400 * MS), None);
        assert_eq!(meter.until_paid(second, S + 400 * MS), Some(Duration::from_millis(100)));
        meter.set_rate(Some(10_000), S + 400 * MS);
        assert_eq!(
            meter.until_paid(second, S + 400 * MS),
            Some(Duration::from_millis(10)),
            "a new rate counts at once"
        );
        meter.set_rate(None, S + 400 * MS);
        assert_eq!((meter.until_paid(second, S + 400 * MS), meter.owed(S + 400 * MS)), (None, 0));
    }

    #[test]
    fn without_a_limit_nothing_is_owed_and_nothing_saved_up() {
        let mut meter = Meter::default();
        let position = meter.take(1 << 40, 0);
        assert_eq!(meter.until_paid(position, 0), None);
        meter.set_rate(Some(1000), S);
        let position = meter.take(1000, S);
        assert_eq!(meter.until_paid(position, S), Some(Duration::from_secs(1)));
        assert_eq!(
            meter.until_paid(position, 0),
            Some(Duration::from_secs(1)),
            "clocks of two threads may differ a little"
        );
    }

    /// Invariant 3: else a tenant whose limit falls from a gigabyte to 64 KiB a second would go on as before for half an hour.
    #[test]
    fn savings_are_no_more_than_a_lowered_rate_brings() {
        let mut meter = meter(1 << 30);
        let paid = meter.take(1000, S);
        meter.set_rate(Some(1000), S);
        let position = meter.take(1000, S);
        assert_eq!(meter.until_paid(paid, S), None);
        assert_eq!(meter.until_paid(position, S), Some(Duration::from_millis(900)));
        meter.set_rate(Some(1 << 30), S);
        assert_eq!(meter.until_paid(paid, S), None);
    }

    #[test]
    fn what_is_free_makes_others_wait_for_a_second_at_most() {
        let mut meter = meter(1000);
        let position = meter.take_free(300, S);
        assert_eq!(meter.until_paid(position, S), Some(Duration::from_millis(200)));
        let position = meter.take_free(1 << 40, S);
        assert_eq!(meter.until_paid(position, S), Some(FREE_DEBT));
        let position = meter.take(500, S);
        assert_eq!(meter.until_paid(position, S), Some(Duration::from_millis(1500)));
        assert_eq!(meter.take_free(1 << 40, S), position, "more is owed already");
        let mut unlimited = Meter::default();
        let position = unlimited.take_free(1 << 40, S);
        assert_eq!(unlimited.until_paid(position, S), None);
    }

    proptest! {
        /// Invariants 1 to 3, with takers that take again as soon as their own bytes are paid.
        #[test]
        fn takers_get_the_rate_together_and_alike(
            takers in 1usize..8, rate in 1_000u64..1_000_000, size in 1u64..5_000, steps in 100usize..1000,
        ) {
            let mut meter = meter(rate);
            let mut positions = vec![meter.position(); takers];
            let mut taken = vec![0u64; takers];
            let mut now_ns = 0;
            for _ in 0..steps {
                let waits = positions.iter().map(|at| meter.until_paid(*at, now_ns).unwrap_or_default());
                let (who, wait) = waits.enumerate().min_by_key(|(_, wait)| *wait).unwrap();
                now_ns += wait.as_nanos() as u64;
                prop_assert_eq!(meter.until_paid(positions[who], now_ns), None, "a wait is as long as it was said to be");
                positions[who] = meter.take(size, now_ns);
                taken[who] += size;
                let most = rate as f64 * (now_ns as f64 / 1e9 + BURST.as_secs_f64()) + (takers as u64 * size) as f64 + 1.0;
                let sum: u64 = taken.iter().sum();
                prop_assert!(sum as f64 <= most, "{sum} of {most}");
            }
            // Everybody always wanted more, so all of the rate was used.
            let sum: u64 = taken.iter().sum();
            prop_assert!(sum as f64 + 1.0 >= rate as f64 * now_ns as f64 / 1e9, "{sum}");
            let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
            let burst = (rate as f64 * BURST.as_secs_f64()) as u64;
            prop_assert!(*most <= least + 2 * size + burst, "{taken:?}");
        }

        /// Invariant 2: the order and the number of looks change nothing.
        #[test]
        fn nothing_is_lost_by_looking_often(rate in 1u64..10_000, looks in prop::collection::vec(1u64..MS, 1..300)) {
            let (mut often, mut once) = (meter(rate), meter(rate));
            often.take(1 << 40, 0);
            once.take(1 << 40, 0);
            let mut now_ns = 0;
            for look in looks {
                now_ns += look;
                often.owed(now_ns);
            }
            prop_assert_eq!(often.owed(now_ns), once.owed(now_ns));
        }
    }
}
