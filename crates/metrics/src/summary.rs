//! A summary: quantiles over the last minute, count and sum since the start, for both outcomes.
//!
//! The minute is six histograms of ten seconds each that are reused in turn, so a scrape sees the last 50 to 60 s and
//! never an empty window right after a roll-over (Java shows the previous whole minute).

use hdrhistogram::Histogram;
use parking_lot::{Mutex, MutexGuard};

const SLOT_NS: u64 = 10_000_000_000;
const SLOTS: usize = 6;
/// Longest latency told apart: ten minutes, in microseconds. Longer ones count as this.
const LATENCY_US_MAX: u64 = 600_000_000;
/// Two digits: 1 % error, 12 KiB per histogram.
const DIGITS: u8 = 2;

/// The quantiles that BookKeeper shows.
pub(super) const QUANTILES: [(f64, &str); 7] = [
    (0.5, "0.5"),
    (0.75, "0.75"),
    (0.95, "0.95"),
    (0.99, "0.99"),
    (0.999, "0.999"),
    (0.9999, "0.9999"),
    (1.0, "1.0"),
];

struct Slot {
    /// Which ten seconds it holds.
    turn: u64,
    histogram: Histogram<u32>,
}

/// One outcome of one shard.
struct Window {
    slots: [Option<Slot>; SLOTS],
    count: u64,
    sum: u64,
}

impl Window {
    fn new() -> Window {
        Window { slots: [const { None }; SLOTS], count: 0, sum: 0 }
    }

    #[inline]
    fn record(&mut self, turn: u64, value: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        let slot = self.slots[turn as usize % SLOTS]
            .get_or_insert_with(|| Slot { turn, histogram: new_histogram() });
        if slot.turn != turn {
            slot.turn = turn;
            slot.histogram.reset();
        }
        slot.histogram.saturating_record(value);
    }
}

fn new_histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS).expect("the bounds are valid constants")
}

struct Shard {
    success: Mutex<Window>,
    failure: Mutex<Window>,
}

/// Latencies (kept in microseconds, shown in milliseconds) of one kind of request, or sizes.
pub struct Summary {
    shards: Box<[Shard]>,
    unit: Unit,
}

#[derive(Debug, Clone, Copy)]
enum Unit {
    Latency,
    Size,
}

impl Unit {
    /// How many units of what is recorded (ns) make one of what is kept (us).
    #[inline]
    fn kept(self) -> u64 {
        match self {
            Unit::Latency => 1000,
            Unit::Size => 1,
        }
    }

    /// How many units of what is kept (us) make one of what is shown (ms).
    fn shown(self) -> f64 {
        match self {
            Unit::Latency => 1000.0,
            Unit::Size => 1.0,
        }
    }
}

/// Records many values of one outcome under one lock.
pub struct Recorder<'a> {
    turn: u64,
    unit: Unit,
    window: MutexGuard<'a, Window>,
}

impl Recorder<'_> {
    /// One latency, in nanoseconds, or one size.
    #[inline]
    pub fn record_ns(&mut self, latency_ns: u64) {
        self.window.record(self.turn, latency_ns / self.unit.kept());
    }
}

impl Summary {
    /// A summary for `shards` groups of threads.
    pub fn latency(shards: usize) -> Summary {
        Summary::new(shards, Unit::Latency)
    }

    /// As [`Summary::latency`], of sizes or numbers, which are shown as they are recorded. Above 600 million they
    /// count as that.
    pub fn sizes(shards: usize) -> Summary {
        Summary::new(shards, Unit::Size)
    }

    fn new(shards: usize, unit: Unit) -> Summary {
        let shard = || Shard { success: Mutex::new(Window::new()), failure: Mutex::new(Window::new()) };
        Summary { shards: (0..shards.max(1)).map(|_| shard()).collect(), unit }
    }

    /// Opens a shard for many records at the time `now_ns`. `key` picks the shard.
    #[inline]
    pub fn recorder(&self, key: u64, now_ns: u64, is_success: bool) -> Recorder<'_> {
        let shard = &self.shards[key as usize % self.shards.len()];
        let window = if is_success { &shard.success } else { &shard.failure };
        Recorder { turn: now_ns / SLOT_NS, unit: self.unit, window: window.lock() }
    }

    /// Records one latency in nanoseconds, which ended at `now_ns`, or one size. `key` picks the shard.
    #[inline]
    pub fn record(&self, key: u64, now_ns: u64, latency_ns: u64, is_success: bool) {
        self.recorder(key, now_ns, is_success).record_ns(latency_ns);
    }

    /// How many were recorded since the start, both outcomes.
    pub fn count(&self) -> u64 {
        self.totals().0
    }

    /// Count and sum since the start, both outcomes, without the quantiles. Latencies in microseconds.
    pub fn totals(&self) -> (u64, u64) {
        let windows = self.shards.iter().flat_map(|shard| [&shard.success, &shard.failure]);
        windows.fold((0, 0), |(count, sum), window| {
            let window = window.lock();
            (count + window.count, sum.saturating_add(window.sum))
        })
    }

    /// Everything a scrape shows.
    pub fn snapshot(&self, now_ns: u64) -> SummarySnapshot {
        self.snapshot_of(&self.shards, now_ns)
    }

    /// The same of one shard; nothing was recorded into one that is not there.
    pub fn shard(&self, number: usize, now_ns: u64) -> SummarySnapshot {
        self.snapshot_of(self.shards.get(number..=number).unwrap_or_default(), now_ns)
    }

    fn snapshot_of(&self, shards: &[Shard], now_ns: u64) -> SummarySnapshot {
        let (turn, shown) = (now_ns / SLOT_NS, self.unit.shown());
        let outcome = |pick: fn(&Shard) -> &Mutex<Window>| {
            let mut merged = new_histogram();
            let (mut count, mut sum) = (0, 0u64);
            for shard in shards {
                let window = pick(shard).lock();
                count += window.count;
                sum = sum.saturating_add(window.sum);
                for slot in window.slots.iter().flatten() {
                    if slot.turn <= turn && turn - slot.turn < SLOTS as u64 {
                        merged.add(&slot.histogram).expect("all histograms have the same bounds");
                    }
                }
            }
            let quantiles = QUANTILES.map(|(quantile, _)| {
                if merged.is_empty() { f64::NAN } else { merged.value_at_quantile(quantile) as f64 / shown }
            });
            OutcomeSnapshot { quantiles, count, sum: sum as f64 / shown }
        };
        SummarySnapshot { failure: outcome(|s| &s.failure), success: outcome(|s| &s.success) }
    }
}

/// One outcome at one moment, in the unit it is shown in.
#[derive(Debug, Clone, Copy)]
pub struct OutcomeSnapshot {
    pub(super) quantiles: [f64; QUANTILES.len()],
    pub(super) count: u64,
    pub(super) sum: f64,
}

/// Both outcomes at one moment.
#[derive(Debug, Clone, Copy)]
pub struct SummarySnapshot {
    pub(super) failure: OutcomeSnapshot,
    pub(super) success: OutcomeSnapshot,
}

impl Default for Summary {
    fn default() -> Summary {
        Summary::latency(1)
    }
}

impl SummarySnapshot {
    /// From plain sums, for sources that keep no histogram: quantiles are not known (NaN).
    pub fn of_sums(success_count: u64, success_sum: f64) -> SummarySnapshot {
        let empty = OutcomeSnapshot { quantiles: [f64::NAN; QUANTILES.len()], count: 0, sum: 0.0 };
        SummarySnapshot {
            failure: empty,
            success: OutcomeSnapshot { count: success_count, sum: success_sum, ..empty },
        }
    }

    /// The same, with failures.
    #[must_use]
    pub fn with_failures(mut self, count: u64, sum: f64) -> SummarySnapshot {
        (self.failure.count, self.failure.sum) = (count, sum);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_forget_after_a_minute_and_sums_do_not() {
        let summary = Summary::latency(2);
        summary.record(0, 0, 1_000_000, true);
        summary.record(1, 0, 3_000_000, true);
        let now = summary.snapshot(59_000_000_000).success;
        assert_eq!(now.count, 2);
        assert_eq!(now.sum, 4.0);
        assert!((now.quantiles[0] - 1.0).abs() < 0.02, "p50 {}", now.quantiles[0]);
        assert!((now.quantiles[6] - 3.0).abs() < 0.05, "max {}", now.quantiles[6]);
        let later = summary.snapshot(60_000_000_000).success;
        assert!(later.quantiles[0].is_nan());
        assert_eq!((later.count, later.sum), (2, 4.0));
        summary.record(0, 60_000_000_000, 9_000_000, true);
        let reused = summary.snapshot(61_000_000_000).success;
        assert!((reused.quantiles[0] - 9.0).abs() < 0.1, "the slot was emptied before reuse");
    }
}
