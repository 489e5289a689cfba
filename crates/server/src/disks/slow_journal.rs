//! Grey failure: a journal that still works, but so slowly that every ledger it takes part in waits for it.
//!
//! # Data flow
//! ```text
//! counts of groups and slow groups, age of the one being written -> parts of a window -> slow? (reason)
//! ```
//! A part of the window is *slow* when the 99th percentile of its group writes (with their sync) is above the limit,
//! or a write lasts longer than that; *fast* when it is not; *silent* when nothing was written.
//!
//! # Invariants
//! 1. The bookie steps down when no part of a whole window was fast and at least half of them were slow: one spike,
//!    however long, leaves fast parts beside it.
//! 2. It comes back when no part of a whole window was slow and at least half of them were fast. While it is down an
//!    empty group is written when no other is, so that silence is not taken for health.
//! 3. Each journal is judged alone: a slow one writes few groups, which those of the others would hide.
//!
//! # Limits
//! [`PARTS`] parts for each journal.

use std::collections::VecDeque;
use std::time::Duration;

/// Parts of a window.
pub const PARTS: usize = 6;

/// When a journal is too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowLimits {
    /// The longest 99th percentile that is not slow (`journalSyncP99LimitMSec`); zero turns the check off.
    pub p99_max: Duration,
    /// For how long it must be longer, or shorter again, before that counts (`journalSyncP99WindowSec`).
    pub window: Duration,
}

impl Default for SlowLimits {
    fn default() -> SlowLimits {
        SlowLimits { p99_max: Duration::from_secs(1), window: Duration::from_secs(30) }
    }
}

/// Totals of one journal so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Groups written.
    pub groups: u64,
    /// Those that took longer than the limit.
    pub slow: u64,
    /// How long the one being written has taken; zero when none is.
    pub busy: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Fast,
    Slow,
    Silent,
}

#[derive(Default)]
struct JournalParts {
    /// Counts at the start of the part that is forming.
    before: Pulse,
    /// A write was seen lasting too long.
    was_stuck: bool,
    /// Newest last.
    parts: VecDeque<Part>,
    is_slow: bool,
}

/// Judges the journals of a bookie.
pub struct SlowJournalCore {
    limits: SlowLimits,
    journals: Vec<JournalParts>,
    part_begun: Option<Duration>,
}

impl SlowJournalCore {
    /// Nothing is slow yet.
    pub fn new(limits: SlowLimits) -> SlowJournalCore {
        SlowJournalCore { limits, journals: Vec::new(), part_begun: None }
    }

    /// Called several times in each part of the window. `now` counts from any origin. Returns why the bookie must be
    /// read-only, while it must.
    pub fn tick(&mut self, now: Duration, pulses: &[Pulse]) -> Option<String> {
        if self.limits.p99_max.is_zero() {
            return None;
        }
        let begun = *self.part_begun.get_or_insert(now);
        if self.journals.len() != pulses.len() {
            self.journals =
                pulses.iter().map(|p| JournalParts { before: *p, ..JournalParts::default() }).collect();
        }
        for (journal, pulse) in self.journals.iter_mut().zip(pulses) {
            journal.was_stuck |= pulse.busy > self.limits.p99_max;
        }
        if now.saturating_sub(begun) >= self.limits.window / PARTS as u32 {
            self.part_begun = Some(now);
            for (journal, pulse) in self.journals.iter_mut().zip(pulses) {
                journal.end_part(*pulse);
            }
        }
        self.reason()
    }

    /// Why the bookie is to be read-only, for operators: names the first slow journal only.
    fn reason(&self) -> Option<String> {
        let index = self.journals.iter().position(|journal| journal.is_slow)?;
        Some(format!(
            "journal {index} is slow: for {:?} (journalSyncP99WindowSec) the 99th percentile of its group writes was never below \
             {:?} (journalSyncP99LimitMSec) while it wrote: check its disk; this cause clears once they stay below it as long",
            self.limits.window, self.limits.p99_max
        ))
    }
}

impl JournalParts {
    fn end_part(&mut self, pulse: Pulse) {
        let groups = pulse.groups.saturating_sub(self.before.groups);
        let slow = pulse.slow.saturating_sub(self.before.slow);
        self.before = pulse;
        // More than one of a hundred above the limit is what a 99th percentile above it means.
        let part = if std::mem::take(&mut self.was_stuck) || slow * 100 > groups {
            Part::Slow
        } else if groups > 0 {
            Part::Fast
        } else {
            Part::Silent
        };
        if self.parts.len() == PARTS {
            self.parts.pop_front();
        }
        self.parts.push_back(part);
        let count = |wanted| self.parts.iter().filter(|part| **part == wanted).count();
        let (fast, slow) = (count(Part::Fast), count(Part::Slow));
        if self.parts.len() == PARTS {
            if fast == 0 && slow >= PARTS / 2 {
                self.is_slow = true;
            } else if slow == 0 && fast >= PARTS / 2 {
                self.is_slow = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_secs(1);

    /// A journal on a simulated clock: what it wrote in each second, ticked twice a second.
    struct Clocked {
        core: SlowJournalCore,
        now: Duration,
        pulse: Pulse,
    }

    impl Clocked {
        fn new() -> Clocked {
            let core = SlowJournalCore::new(SlowLimits::default());
            Clocked { core, now: Duration::from_secs(1000), pulse: Pulse::default() }
        }

        /// Runs for some seconds with so many groups a second, of which so many are slow. The second it became
        /// read-only, or writable again.
        fn run(&mut self, seconds: u64, groups: u64, slow: u64, busy: Duration) -> Option<String> {
            let mut reason = None;
            for _ in 0..seconds * 2 {
                self.now += Duration::from_millis(500);
                if self.now.subsec_millis() == 0 {
                    self.pulse.groups += groups;
                    self.pulse.slow += slow;
                }
                self.pulse.busy = busy;
                reason = self.core.tick(self.now, &[self.pulse]);
            }
            reason
        }
    }

    #[test]
    fn a_journal_that_stays_slow_steps_down_and_comes_back_when_it_stays_fast() {
        let mut journal = Clocked::new();
        assert_eq!(journal.run(120, 1000, 0, Duration::ZERO), None);
        assert_eq!(journal.run(20, 1, 1, Duration::ZERO), None, "not for a whole window yet");
        let why = journal.run(20, 1, 1, Duration::ZERO).unwrap();
        assert!(why.contains("journal 0") && why.contains("1s") && why.contains("30s"), "{why}");
        assert!(journal.run(20, 2, 0, Duration::ZERO).is_some(), "healthy, not for long enough");
        assert_eq!(journal.run(20, 2, 0, Duration::ZERO), None);
    }

    #[test]
    fn spikes_and_silence_are_not_slowness() {
        let mut journal = Clocked::new();
        for _ in 0..20 {
            assert_eq!(journal.run(9, 100, 0, Duration::ZERO), None);
            assert_eq!(journal.run(1, 1, 1, Duration::from_millis(900)), None, "a spike every ten seconds");
        }
        assert_eq!(journal.run(300, 0, 0, Duration::ZERO), None, "idle");
        // One slow group an hour of an idle bookie.
        assert_eq!(journal.run(1, 1, 1, LIMIT * 3), None);
        assert_eq!(journal.run(300, 0, 0, Duration::ZERO), None);
        // Just below one in a hundred.
        assert_eq!(journal.run(300, 1000, 10, Duration::ZERO), None);
        assert!(journal.run(300, 1000, 11, Duration::ZERO).is_some());
        // Nothing written proves nothing.
        assert!(journal.run(300, 0, 0, Duration::ZERO).is_some());
    }

    #[test]
    fn a_write_that_never_ends_is_slow_though_nothing_is_counted() {
        let mut journal = Clocked::new();
        assert_eq!(journal.run(60, 100, 0, Duration::ZERO), None);
        assert_eq!(journal.run(40, 0, 0, LIMIT), None, "as long as a write may last");
        assert!(journal.run(40, 0, 0, LIMIT * 10).is_some());
    }

    /// Of the three slow parts that make half of a window, one would be of the time before the first look.
    #[test]
    fn what_was_written_before_the_first_look_does_not_count() {
        let mut journal = Clocked::new();
        journal.pulse = Pulse { groups: 1000, slow: 1000, busy: Duration::ZERO };
        journal.core.tick(journal.now, &[journal.pulse]);
        assert_eq!(journal.run(5, 0, 0, Duration::ZERO), None);
        assert_eq!(journal.run(10, 1, 1, Duration::ZERO), None);
        assert_eq!(journal.run(30, 0, 0, Duration::ZERO), None);
    }

    #[test]
    fn one_slow_journal_is_not_hidden_by_a_busy_one() {
        let mut core = SlowJournalCore::new(SlowLimits::default());
        let mut reason = None;
        for second in 0..60u64 {
            let busy = Pulse { groups: second * 5000, ..Pulse::default() };
            let slow = Pulse { groups: second, slow: second, ..Pulse::default() };
            reason = core.tick(Duration::from_secs(second), &[busy, slow]);
        }
        assert!(reason.unwrap().contains("journal 1"));
    }

    #[test]
    fn zero_switches_it_off() {
        let limits = SlowLimits { p99_max: Duration::ZERO, ..SlowLimits::default() };
        let mut core = SlowJournalCore::new(limits);
        let stuck = Pulse { busy: LIMIT * 100, ..Pulse::default() };
        assert!((0..100).all(|second| core.tick(Duration::from_secs(second), &[stuck]).is_none()));
    }

    proptest! {
        /// Invariants 1 and 2, against the parts written out.
        #[test]
        fn it_follows_the_parts(parts in prop::collection::vec((0u64..3, 0u64..3), 1..60)) {
            let mut journal = Clocked::new();
            journal.core.tick(journal.now, &[journal.pulse]);
            let mut seen: Vec<(bool, bool)> = Vec::new();
            let mut is_slow = false;
            for (groups, slow) in parts {
                let slow = slow.min(groups);
                // Five seconds: exactly one part ends in it.
                let reason = journal.run(5, groups, slow, Duration::ZERO);
                seen.push((groups > 0 && slow == 0, slow > 0));
                if let Some(window) = seen.len().checked_sub(PARTS).map(|from| &seen[from..]) {
                    let fast = window.iter().filter(|part| part.0).count();
                    let slow = window.iter().filter(|part| part.1).count();
                    is_slow = match is_slow {
                        false => fast == 0 && slow >= PARTS / 2,
                        true => !(slow == 0 && fast >= PARTS / 2),
                    };
                }
                prop_assert_eq!(reason.is_some(), is_slow);
            }
        }
    }
}
