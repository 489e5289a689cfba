//! How a journal does: how many groups it wrote, how many of them slowly, and how long the one under way has taken.
//! Written by the journal's thread, read by whoever judges it.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Totals of one journal since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalPulse {
    /// Groups written, empty ones included.
    pub groups: u64,
    /// Those whose write and sync took longer than [`EngineConfig::journal_slow`](crate::EngineConfig::journal_slow).
    pub slow: u64,
    /// How long the one being written has taken; zero when none is.
    pub busy: Duration,
    /// The next one waits for a journal file, which the end of a flush gives, or space.
    pub waits_for_file: bool,
}

pub(crate) struct PulseCounters {
    slow_ns: u64,
    groups: AtomicU64,
    slow: AtomicU64,
    /// When the write under way began, and one more; 0 when there is none.
    begun_ns: AtomicU64,
    is_probing: AtomicBool,
}

impl PulseCounters {
    pub(crate) fn new(slow: Duration) -> PulseCounters {
        PulseCounters {
            slow_ns: u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX),
            groups: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            begun_ns: AtomicU64::new(0),
            is_probing: AtomicBool::new(false),
        }
    }

    pub(crate) fn begin(&self, now_ns: u64) {
        self.begun_ns.store(now_ns + 1, Relaxed);
    }

    pub(crate) fn end(&self, now_ns: u64) {
        let took = (now_ns + 1).saturating_sub(self.begun_ns.swap(0, Relaxed));
        self.slow.fetch_add(u64::from(took > self.slow_ns), Relaxed);
        self.groups.fetch_add(1, Relaxed);
    }

    /// Whether this changes anything.
    pub(crate) fn set_probing(&self, is_probing: bool) -> bool {
        self.is_probing.swap(is_probing, Relaxed) != is_probing
    }

    pub(crate) fn is_probing(&self) -> bool {
        self.is_probing.load(Relaxed)
    }

    /// Identifies the write under way; `None` without one.
    pub(crate) fn write_under_way(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.begun_ns.load(Relaxed))
    }

    pub(crate) fn read(&self, now_ns: u64) -> JournalPulse {
        let begun = self.begun_ns.load(Relaxed);
        JournalPulse {
            groups: self.groups.load(Relaxed),
            slow: self.slow.load(Relaxed),
            busy: Duration::from_nanos(if begun == 0 { 0 } else { (now_ns + 1).saturating_sub(begun) }),
            waits_for_file: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_counted_when_they_end_and_seen_while_they_last() {
        let pulse = PulseCounters::new(Duration::from_nanos(10));
        pulse.begin(0);
        assert_eq!(
            pulse.read(7),
            JournalPulse { groups: 0, slow: 0, busy: Duration::from_nanos(7), ..JournalPulse::default() }
        );
        pulse.end(10);
        assert_eq!(pulse.read(20), JournalPulse { groups: 1, ..JournalPulse::default() });
        pulse.begin(20);
        pulse.end(31);
        assert_eq!(pulse.read(40), JournalPulse { groups: 2, slow: 1, ..JournalPulse::default() });
    }

    /// Journals were woken each time it was said, so often that none ever counted as idle: no seal was written, and a
    /// bookie that had stepped down for a slow journal stayed down (found by X7 against the real process).
    #[test]
    fn asking_for_probes_again_is_no_change() {
        let pulse = PulseCounters::new(Duration::from_nanos(10));
        assert!(!pulse.set_probing(false));
        assert!(pulse.set_probing(true) && pulse.is_probing());
        assert!(!pulse.set_probing(true) && pulse.is_probing());
        assert!(pulse.set_probing(false) && !pulse.is_probing());
    }
}
