//! How many extra requests may be sent: a share of the original ones (C5).
//!
//! # Invariants
//! 1. In the minute before any extra request, extra ones were at most the share of the originals, both in entries;
//!    besides so many requests as are free in every minute, of any size: the first batch that fails is no worse off than
//!    the first entry.
//! 2. In one second at most what five seconds allow, on average of the minute, besides what is free.
//!
//! # Limits     a counter for each second of a minute; originals are counted without a lock

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

const SECONDS: u64 = 60;
const SLOTS: usize = 64;
const BURST_SECS: f64 = 5.0;
const COUNT_BITS: u32 = 32;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Counts by second: the second in the upper bits, so that a slot of an earlier minute is told from this one's.
struct Seconds([AtomicU64; SLOTS]);

impl Default for Seconds {
    fn default() -> Seconds {
        Seconds([const { AtomicU64::new(0) }; SLOTS])
    }
}

/// The second as a slot has it; 0 is a slot never used.
fn tag_of(now: Duration) -> u64 {
    (now.as_secs() + 1) & (u64::MAX >> COUNT_BITS)
}

impl Seconds {
    fn add(&self, now: Duration, count: u64) {
        let tag = tag_of(now);
        let slot = &self.0[tag as usize % SLOTS];
        let seen = slot.load(Ordering::Relaxed);
        // Or newer, when `now` was taken a moment ago.
        if seen >> COUNT_BITS >= tag {
            slot.fetch_add(count, Ordering::Relaxed);
            return;
        }
        // The second is new. Whoever loses this race adds to what the winner made of the slot.
        if slot
            .compare_exchange(seen, tag << COUNT_BITS | count, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            slot.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The sum of the last `seconds`, the present one included.
    fn sum(&self, now: Duration, seconds: u64) -> u64 {
        let tag = tag_of(now);
        let counts = self.0.iter().map(|slot| slot.load(Ordering::Relaxed));
        counts
            .filter(|slot| (slot >> COUNT_BITS) <= tag && (slot >> COUNT_BITS) + seconds > tag)
            .map(|slot| slot & COUNT_MAX)
            .sum()
    }
}

#[derive(Default)]
struct Extras {
    /// Entries of those within the share.
    entries: Seconds,
    /// Requests of the others.
    free: Seconds,
}

/// See the module. `now` counts from any fixed moment.
pub(crate) struct Allowance {
    share: f64,
    free: u64,
    originals: Seconds,
    extras: Mutex<Extras>,
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Allowance {
    /// `share` of the originals, and `free` requests in any minute.
    pub(crate) fn new(share: f64, free: u64) -> Allowance {
        Allowance {
            share,
            free,
            originals: Seconds::default(),
            extras: Mutex::default(),
            taken: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Counts an original request for so many entries.
    pub(crate) fn original(&self, now: Duration, entries: u64) {
        self.originals.add(now, entries);
    }

    /// Whether an extra request for so many entries may be sent; if so, it counts.
    pub(crate) fn take(&self, now: Duration, entries: u64) -> bool {
        let extras = self.extras.lock();
        let originals = self.originals.sum(now, SECONDS) as f64;
        let in_minute = (originals * self.share) as u64;
        let in_second = (originals / SECONDS as f64 * self.share * BURST_SECS) as u64;
        let in_share = extras.entries.sum(now, SECONDS) + entries <= in_minute
            // The first of a second may be larger.
            && (extras.entries.sum(now, 1) == 0 || extras.entries.sum(now, 1) + entries <= in_second);
        let is_allowed = in_share || extras.free.sum(now, SECONDS) < self.free;
        match (in_share, is_allowed) {
            (true, _) => extras.entries.add(now, entries),
            (false, true) => extras.free.add(now, 1),
            (false, false) => {}
        }
        let counter = if is_allowed { &self.taken } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        is_allowed
    }

    /// Entries that extra requests may still ask for in this minute; one for each request that is free.
    pub(crate) fn left(&self, now: Duration) -> u64 {
        let extras = self.extras.lock();
        let in_share = (self.originals.sum(now, SECONDS) as f64 * self.share) as u64;
        in_share.saturating_sub(extras.entries.sum(now, SECONDS))
            + self.free.saturating_sub(extras.free.sum(now, SECONDS))
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindery_io::SeededRandom;

    #[test]
    fn extras_are_at_most_a_tenth_of_any_minute() {
        // C5, with a load that comes and goes, asked for an extra with every request.
        let (allowance, random) = (Allowance::new(0.1, 0), SeededRandom::new(3));
        let (mut originals, mut extras) = (vec![0u64; 600], vec![0u64; 600]);
        for second in 0..600 {
            let now = Duration::from_secs(second as u64);
            let load = [0, 1, 20, 1000][random.below(4) as usize];
            for _ in 0..load {
                let entries = 1 + random.below(3);
                allowance.original(now, entries);
                originals[second] += entries;
                if allowance.take(now, entries) {
                    extras[second] += entries;
                }
            }
            if extras[second] > 0 {
                let minute = second.saturating_sub(59)..=second;
                let sum = |of: &[u64]| of[minute.clone()].iter().sum::<u64>();
                assert!(sum(&extras) * 10 <= sum(&originals), "second {second}");
            }
        }
        assert!(
            extras.iter().sum::<u64>() * 20 > originals.iter().sum::<u64>(),
            "most of the allowance is used"
        );
    }

    #[test]
    fn idle_minutes_do_not_freeze_it() {
        let (allowance, at) = (Allowance::new(0.1, 0), Duration::from_secs);
        allowance.original(at(0), 100);
        assert!(allowance.take(at(0), 1));
        // Two windows of nothing, then load.
        assert!(!allowance.take(at(130), 1), "what was allowed then is not now");
        allowance.original(at(130), 1000);
        assert!(allowance.take(at(130), 1));
        assert_eq!((allowance.taken(), allowance.refused(), allowance.left(at(130))), (2, 1, 99));
    }

    #[test]
    fn large_batches_count_by_their_entries() {
        // One request a second of 500 entries, asked for an extra each time.
        let allowance = Allowance::new(0.1, 0);
        let taken = (0..120).filter(|second| {
            let now = Duration::from_secs(*second);
            allowance.original(now, 500);
            allowance.take(now, 500)
        });
        assert_eq!(taken.count(), 12);
    }

    #[test]
    fn a_burst_takes_five_seconds_worth_at_most() {
        let (allowance, at) = (Allowance::new(0.1, 0), Duration::from_secs);
        (0..60).for_each(|second| allowance.original(at(second), 1000));
        let taken = (0..100_000).filter(|_| allowance.take(at(59), 1)).count();
        assert_eq!(taken, 500);
    }

    #[test]
    fn what_is_free_is_counted_in_requests_of_any_size() {
        let (allowance, at) = (Allowance::new(0.2, 20), Duration::from_secs);
        allowance.original(at(0), 4096);
        assert_eq!(allowance.left(at(0)), 819 + 20);
        let taken = (0..100).filter(|_| allowance.take(at(0), 4096)).count();
        assert_eq!(taken, 20, "a whole batch each");
        assert_eq!(allowance.left(at(0)), 819, "the share is not used up by them");
        assert!(allowance.take(at(0), 819) && !allowance.take(at(0), 1));
        assert!(allowance.take(at(60), 4096), "in every minute");
    }
}
