//! Time of the flush thread that merges are owed. A load that keeps the thread busy with flushes would leave its logs unmerged;
//! so where merges are behind, they take a share of the time that flushes take, between two writes.
//!
//! # Invariants
//! 1. Merges take a quarter of the time of flushes once they are so far behind that the rate of copying is whole whatever the
//!    journal does, more with each log, and twice that time at most. Nothing where they are not behind.
//! 2. A step that takes longer than what was owed is paid for by later writes, up to [`OWED_MAX_NS`].
//! 3. Time in which merges could have had the thread pays a debt: none of it is left for the next flush.

use super::budget::WHOLE;

/// Most that is owed either way: a flush's sync and commit come after its last write.
const OWED_MAX_NS: i64 = 2_000_000_000;
/// Most that merges take between two writes.
const AT_ONCE_NS: i64 = 20_000_000;

#[derive(Debug, Default)]
pub(super) struct MergeTime {
    /// Below zero: flushes are owed it.
    owed_ns: i64,
    /// Time before it is accounted for.
    at_ns: u64,
}

impl MergeTime {
    /// The time since the last call was a flush's; `urgency` in sixteenths, as the budget has it.
    pub(super) fn on_flushed(&mut self, now_ns: u64, urgency: u64) {
        let elapsed = self.elapsed(now_ns);
        // Sixteenths of it. Where merges are not behind, they only pay back.
        let (share, most) = if urgency < WHOLE { (1, 0) } else { (urgency / 4, OWED_MAX_NS) };
        let share = i64::try_from(share).unwrap_or(i64::MAX);
        self.owed_ns = self.owed_ns.saturating_add(elapsed.saturating_mul(share) / 16).min(most);
    }

    /// In the time since the last call merges could do what they had to.
    pub(super) fn on_rested(&mut self, now_ns: u64) {
        let elapsed = self.elapsed(now_ns);
        let paid = elapsed.min(self.owed_ns.saturating_abs());
        self.owed_ns -= paid * self.owed_ns.signum();
    }

    /// Merges took the time since the last call.
    pub(super) fn on_taken(&mut self, now_ns: u64) {
        let elapsed = self.elapsed(now_ns);
        self.owed_ns = self.owed_ns.saturating_sub(elapsed).max(-OWED_MAX_NS);
    }

    /// How long merges may keep a flush waiting now.
    pub(super) fn available_ns(&self) -> u64 {
        self.owed_ns.clamp(0, AT_ONCE_NS).unsigned_abs()
    }

    fn elapsed(&mut self, now_ns: u64) -> i64 {
        let elapsed = now_ns.saturating_sub(std::mem::replace(&mut self.at_ns, now_ns));
        i64::try_from(elapsed).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::urgency;
    use super::*;

    /// What 1,000 ns of a flush give, with so many logs behind.
    fn owed(logs: usize) -> u64 {
        let mut time = MergeTime::default();
        time.on_flushed(1000, urgency(logs, 16));
        time.available_ns()
    }

    #[test]
    fn merges_are_owed_a_share_that_rises_with_the_logs_behind() {
        assert_eq!([0, 2, 4, 8, 16, 1000].map(owed), [0, 0, 250, 500, 1000, 2000], "invariant 1");
    }

    #[test]
    fn what_took_too_long_is_paid_for_and_idle_time_pays_a_debt() {
        let mut time = MergeTime::default();
        let behind = urgency(1000, 16);
        time.on_flushed(1000, behind);
        time.on_taken(6000);
        assert_eq!((time.available_ns(), time.owed_ns), (0, -3000), "invariant 2");
        time.on_flushed(7000, behind);
        assert_eq!(time.owed_ns, -1000);
        time.on_flushed(20_007_000, behind);
        assert_eq!((time.available_ns(), time.owed_ns), (AT_ONCE_NS as u64, 39_999_000));
        time.on_rested(50_007_000);
        assert_eq!(time.owed_ns, 9_999_000, "invariant 3");
        time.on_flushed(50_008_000, urgency(2, 16));
        assert_eq!(time.owed_ns, 0, "they are not behind any more");
        time.on_flushed(u64::MAX, behind);
        assert_eq!(time.owed_ns, OWED_MAX_NS);
        time.on_rested(u64::MAX);
        assert_eq!(time.owed_ns, OWED_MAX_NS, "no time has passed");
    }
}
