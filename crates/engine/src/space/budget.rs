//! How many bytes background work may read and write now: a token bucket, and how it yields to adds.
//!
//! The bucket fills at `bytes_per_second`. While the journal's writes take more than twice as long as the quickest
//! lately, and half a millisecond more, the rate is halved every [`WINDOW_NS`], down to a sixteenth; while they do not,
//! it comes back a sixteenth at a time. The quickest is the lowest mean of a window, and rises slowly, so that a
//! journal that became slow for other reasons does not hold background work back for good.
//!
//! Logs that wait to be merged are a debt that reads, starts and descriptors pay for: where there are many, the rate rises
//! with their number whatever the journal does, to eight times `bytes_per_second`, so that adds slow down instead; `merge_time`
//! has the time for it.

use crate::config::SpaceConfig;
use std::time::Duration;

const WINDOW_NS: u64 = 200_000_000;
/// Groups in a window below which its mean says nothing.
const GROUPS_MIN: u64 = 4;
/// Shares of the rate are sixteenths.
pub(super) const WHOLE: u64 = 16;
const SLACK_NS: u64 = 500_000;
/// Most sixteenths of the rate, for a debt.
const URGENT_MAX: u64 = 8 * WHOLE;

/// Sixteenths of the rate that a backlog of so many logs calls for, with `fan_in` of them in each merge.
pub(super) fn urgency(backlog: usize, fan_in: usize) -> u64 {
    (backlog as u64 * WHOLE / (fan_in as u64 / 4).max(1)).min(URGENT_MAX)
}

pub(super) struct Budget {
    /// Bytes that may be copied now; below zero after a step that needed more.
    tokens: i64,
    refilled_ns: u64,
    /// Bytes since the start.
    spent: u64,
    share: u64,
    /// Sixteenths of the rate that a debt of merges calls for.
    urgency: u64,
    window_ns: u64,
    /// Groups and time of journal writes when the window began.
    seen: (u64, u64),
    quickest_ns: Option<u64>,
}

impl Budget {
    pub(super) fn new(now_ns: u64, config: &SpaceConfig) -> Budget {
        Budget {
            tokens: i64::try_from(config.step_bytes).unwrap_or(i64::MAX),
            refilled_ns: now_ns,
            spent: 0,
            share: WHOLE,
            urgency: 0,
            window_ns: now_ns,
            seen: (0, 0),
            quickest_ns: None,
        }
    }

    /// `journal`: groups written since the start, and nanoseconds that took.
    pub(super) fn refill(&mut self, now_ns: u64, config: &SpaceConfig, journal: (u64, u64)) {
        if now_ns.saturating_sub(self.window_ns) >= WINDOW_NS {
            self.window_ns = now_ns;
            self.watch(journal);
        }
        let elapsed = u128::from(now_ns.saturating_sub(self.refilled_ns));
        let earned = elapsed * u128::from(self.rate(config)) / 1_000_000_000;
        // A fraction of a byte is not lost: the time it took is counted again.
        if earned > 0 {
            self.refilled_ns = now_ns;
            // Between two writes of a flush there is time for several steps.
            let most = config.step_bytes.saturating_mul((self.urgency / WHOLE).max(1));
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            self.tokens = self.tokens.saturating_add(i64::try_from(earned).unwrap_or(i64::MAX)).min(most);
        }
    }

    /// What merges call for from now on: see [`urgency`].
    pub(super) fn set_urgency(&mut self, urgency: u64) {
        self.urgency = urgency;
    }

    /// Sixteenths of the rate that merges call for.
    pub(super) fn urgency(&self) -> u64 {
        self.urgency
    }

    /// Adds have to wait for merges.
    pub(super) fn is_urgent(&self) -> bool {
        self.urgency >= WHOLE
    }

    fn watch(&mut self, journal: (u64, u64)) {
        let (groups, ns) = (journal.0.saturating_sub(self.seen.0), journal.1.saturating_sub(self.seen.1));
        self.seen = journal;
        if groups < GROUPS_MIN {
            self.share = (self.share + 1).min(WHOLE);
            return;
        }
        let mean = ns / groups;
        let quickest = self.quickest_ns.map_or(mean, |before| mean.min(before + before / 64 + 1));
        self.quickest_ns = Some(quickest);
        let is_slow = mean > 2 * quickest + SLACK_NS;
        self.share = if is_slow { (self.share / 2).max(1) } else { (self.share + 1).min(WHOLE) };
    }

    fn rate(&self, config: &SpaceConfig) -> u64 {
        (config.bytes_per_second / WHOLE).saturating_mul(self.share.max(self.urgency)).max(1)
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        self.spent += bytes;
        self.tokens = self.tokens.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Bytes since the start.
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    /// Bytes that a step may take, 0 for none now.
    pub(super) fn available(&self) -> u64 {
        u64::try_from(self.tokens).unwrap_or(0)
    }

    /// How long until a step may go on.
    pub(super) fn pause(&self, config: &SpaceConfig) -> Duration {
        let missing = u128::from(self.tokens.min(0).unsigned_abs()) + 1;
        let ns = missing * 1_000_000_000 / u128::from(self.rate(config));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes earned in ten seconds of windows in which each of 100 groups took `ns`.
    fn earned(budget: &mut Budget, begin_s: u64, ns: u64) -> u64 {
        let config = SpaceConfig::default();
        let (mut bytes, from) = (0, budget.seen);
        for window in 1..=50 {
            let journal = (from.0 + window * 100, from.1 + window * 100 * ns);
            // Often enough that the bucket, which holds one step, never runs over.
            for step in 0..40 {
                let now = begin_s * 1_000_000_000 + (window - 1) * WINDOW_NS + (step + 1) * WINDOW_NS / 40;
                budget.refill(now, &config, journal);
                bytes += budget.available();
                budget.spend(budget.available());
            }
        }
        bytes
    }

    #[test]
    fn a_debt_of_merges_raises_the_rate_whatever_the_journal_does() {
        assert_eq!([0, 2, 4, 8, 1000].map(|logs| urgency(logs, 16)), [0, 8, 16, 32, 128]);
        let config = SpaceConfig { step_bytes: 8 << 20, ..SpaceConfig::default() };
        let mut budget = Budget::new(0, &config);
        budget.spend(budget.available());
        let whole = 10 * config.bytes_per_second;
        earned(&mut budget, 0, 200_000);
        budget.set_urgency(urgency(8, 16));
        let slow = earned(&mut budget, 10, 3_000_000);
        // A step of each 5 ms has 256 KiB at most.
        assert!(slow > whole * 3 / 2 && slow <= 2 * whole, "{slow} of {whole}");
    }

    #[test]
    fn a_slow_journal_takes_the_rate_down_and_a_quick_one_brings_it_back() {
        let config = SpaceConfig { step_bytes: 8 << 20, ..SpaceConfig::default() };
        let mut budget = Budget::new(0, &config);
        budget.spend(budget.available());
        let whole = 10 * config.bytes_per_second;
        let quick = earned(&mut budget, 0, 200_000);
        assert!(quick > whole * 9 / 10 && quick <= whole, "{quick} of {whole}");
        let slow = earned(&mut budget, 10, 3_000_000);
        assert!(slow < whole / 4 && slow > 0, "{slow} of {whole}");
        let quick = earned(&mut budget, 20, 200_000);
        assert!(quick > whole / 2, "{quick} of {whole}");
    }
}
