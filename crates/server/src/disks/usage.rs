//! How full the ledger volumes are, and what follows: a synchronous core, free bytes in, verdict out.
//!
//! # Data flow
//! ```text
//! free and total bytes of each directory -> UsageCore::check -> Verdict: read-only? high priority? almost full?
//! ```
//!
//! # Invariants
//! 1. A directory becomes full above `usage` and stays so until it is at or below `usage` again and, when no directory
//!    is writable, all of them together are below `low_water`.
//! 2. A verdict depends on the readings and on which directories were full at the check before, on nothing that
//!    outlives the process (R38): a bookie that starts on empty disks is writable.
//! 3. The part of the reserve that is not held counts as used, so giving it up never makes a bookie writable.
//! 4. A directory that cannot be measured is full.

use bindery_io::Space;
use std::time::Duration;

/// BookKeeper's keys and defaults (protocol reference, section 4.7).
#[derive(Debug, Clone, PartialEq)]
pub struct DiskLimits {
    /// Above this share a directory takes no entries (`diskUsageThreshold`).
    pub usage: f64,
    /// Above this share it is almost full: no major compaction, or a forced collection (`diskUsageWarnThreshold`).
    pub warn: f64,
    /// Below this share of all directories together the bookie is writable again (`diskUsageLwmThreshold`).
    pub low_water: f64,
    /// Time between two checks (`diskCheckInterval`).
    pub interval: Duration,
    /// One full directory makes the bookie read-only; else only all of them do (`readOnlyModeOnAnyDiskFullEnabled`).
    pub is_any_enough: bool,
    /// False: the bookie stops instead of going read-only (`readOnlyModeEnabled`).
    pub may_be_read_only: bool,
    /// Writes of high priority need a directory with so many bytes free (`minUsableSizeForHighPriorityWrites`).
    pub high_priority_bytes_min: u64,
    /// Ask for a collection of space when a directory is almost full (`isForceGCAllowWhenNoSpace`).
    pub forces_collection: bool,
    /// Bytes of the reserve file of each volume (`diskReserveSizeMB`); `None` chooses by the volume, 0 for none.
    pub reserve_bytes: Option<u64>,
}

impl Default for DiskLimits {
    fn default() -> DiskLimits {
        DiskLimits {
            usage: 0.95,
            warn: 0.90,
            low_water: 0.95,
            interval: Duration::from_secs(10),
            is_any_enough: true,
            may_be_read_only: true,
            high_priority_bytes_min: 1 << 30,
            forces_collection: false,
            reserve_bytes: None,
        }
    }
}

/// What one check saw of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Size and free bytes of its volume, or why they are not known.
    pub space: Result<Space, String>,
    /// Bytes of the volume's reserve that are not held at the moment.
    pub reserve_lacking: u64,
}

impl Reading {
    /// Bytes that entries may take.
    fn usable(&self) -> u64 {
        self.space.as_ref().map_or(0, |space| space.free.saturating_sub(self.reserve_lacking))
    }

    /// The share in use, from 0 to 1.
    pub fn used(&self) -> f64 {
        match &self.space {
            Err(_) => 1.0,
            // Some network file systems do not say.
            Ok(space) if space.total == 0 => 0.0,
            Ok(space) => 1.0 - (self.usable() as f64 / space.total as f64).min(1.0),
        }
    }
}

/// What the disks allow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Directory by directory: takes no entries.
    pub full: Vec<bool>,
    /// Some directory is above the warning threshold.
    pub is_almost_full: bool,
    /// Why the bookie must be read-only; `None`: it need not.
    pub read_only: Option<String>,
    /// Writes of high priority find room, also when the bookie is read-only.
    pub takes_high_priority: bool,
}

/// Remembers which directories were full.
pub struct UsageCore {
    limits: DiskLimits,
    /// For messages.
    names: Vec<String>,
    full: Vec<bool>,
}

impl UsageCore {
    /// Nothing is known to be full yet (invariant 2). `names` are those of the directories, in the order of readings.
    pub fn new(limits: DiskLimits, names: Vec<String>) -> UsageCore {
        let full = vec![false; names.len()];
        UsageCore { limits, names, full }
    }

    /// Takes one reading for each directory.
    ///
    /// # Panics
    /// When there are more or fewer readings than directories.
    pub fn check(&mut self, readings: &[Reading]) -> Verdict {
        assert_eq!(readings.len(), self.names.len(), "one reading for each directory");
        let limits = &self.limits;
        let is_over: Vec<bool> =
            readings.iter().map(|r| r.used() > limits.usage || r.space.is_err()).collect();
        // Directories that were writable and are below the threshold stay so.
        let some_writable = is_over.iter().zip(&self.full).any(|(over, full)| !over && !full);
        let may_return = some_writable || total_used(readings) < limits.low_water;
        for (full, over) in self.full.iter_mut().zip(&is_over) {
            *full = *over || (*full && !may_return);
        }
        let (any, all) = (self.full.contains(&true), !self.full.contains(&false));
        let is_read_only = all || (any && limits.is_any_enough);
        Verdict {
            is_almost_full: readings.iter().any(|reading| reading.used() > limits.warn),
            read_only: is_read_only.then(|| self.reason(readings)),
            takes_high_priority: !all
                || readings.iter().any(|reading| reading.usable() >= limits.high_priority_bytes_min),
            full: self.full.clone(),
        }
    }

    fn reason(&self, readings: &[Reading]) -> String {
        let of = |index: usize| {
            let (name, reading) = (&self.names[index], &readings[index]);
            match &reading.space {
                Err(why) => format!("{name} cannot be measured: {why}"),
                Ok(_) => format!("{name} is {:.1} % full", reading.used() * 100.0),
            }
        };
        let full: Vec<String> = (0..readings.len()).filter(|i| self.full[*i]).map(of).collect();
        format!(
            "{}; writable up to {:.1} % (diskUsageThreshold): delete ledgers, which is noticed within seconds (bindery bookie gc \
             --major looks at once), or enlarge the volume",
            full.join(", "),
            self.limits.usage.min(self.limits.low_water) * 100.0
        )
    }
}

/// Over all directories, each counted once, as in BookKeeper.
fn total_used(readings: &[Reading]) -> f64 {
    let sums =
        readings.iter().filter_map(|reading| Some((reading.usable(), reading.space.as_ref().ok()?.total)));
    let (usable, total) =
        sums.fold((0.0, 0.0), |(u, t), (usable, total)| (u + usable as f64, t + total as f64));
    if total == 0.0 { 0.0 } else { 1.0 - usable / total }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reading(free: u64) -> Reading {
        Reading { space: Ok(Space { total: 1000, free }), reserve_lacking: 0 }
    }

    fn core(limits: DiskLimits, dirs: usize) -> UsageCore {
        UsageCore::new(limits, (0..dirs).map(|i| format!("/l{i}")).collect())
    }

    fn limits(usage: f64, low_water: f64) -> DiskLimits {
        DiskLimits { usage, low_water, high_priority_bytes_min: 20, ..DiskLimits::default() }
    }

    #[test]
    fn above_the_threshold_it_is_read_only_and_says_why_and_comes_back_by_itself() {
        let mut core = core(limits(0.95, 0.95), 1);
        assert_eq!(core.check(&[reading(50)]).read_only, None, "exactly at the threshold");
        let full = core.check(&[reading(49)]);
        let why = full.read_only.unwrap();
        assert!(why.contains("/l0 is 95.1 % full") && why.contains("95.0 %"), "{why}");
        assert!(full.takes_high_priority && full.is_almost_full);
        assert!(!core.check(&[reading(19)]).takes_high_priority, "less than high priority needs");
        assert_eq!(core.check(&[reading(51)]).read_only, None);
        assert!(core.check(&[reading(99)]).is_almost_full);
        assert!(!core.check(&[reading(100)]).is_almost_full, "exactly at the threshold");
        assert!(!core.check(&[reading(101)]).is_almost_full);
    }

    #[test]
    fn the_low_water_mark_holds_a_full_bookie_back() {
        let mut core = core(limits(0.95, 0.80), 1);
        assert!(core.check(&[reading(10)]).read_only.is_some());
        assert!(core.check(&[reading(150)]).read_only.is_some(), "below the threshold, above the mark");
        assert!(core.check(&[reading(200)]).read_only.is_some(), "exactly at the mark");
        assert_eq!(core.check(&[reading(201)]).read_only, None);
        assert_eq!(core.check(&[reading(60)]).read_only, None, "the mark is for those that were full");
    }

    #[test]
    fn one_of_several_is_enough_unless_told_otherwise() {
        let dirs = [reading(10), reading(900)];
        assert!(core(limits(0.95, 0.95), 2).check(&dirs).read_only.is_some());
        let lenient = DiskLimits { is_any_enough: false, ..limits(0.95, 0.95) };
        let mut core = core(lenient, 2);
        let verdict = core.check(&dirs);
        assert_eq!((verdict.read_only, verdict.full), (None, vec![true, false]));
        assert!(core.check(&[reading(10), reading(20)]).read_only.is_some());
    }

    #[test]
    fn what_cannot_be_measured_is_full() {
        let bad = Reading { space: Err("I/O error".to_owned()), reserve_lacking: 0 };
        let why = core(limits(0.95, 0.95), 1).check(&[bad]).read_only.unwrap();
        assert!(why.contains("/l0 cannot be measured: I/O error"), "{why}");
    }

    #[test]
    fn a_reserve_that_was_given_up_is_not_free() {
        let mut core = core(limits(0.95, 0.95), 1);
        assert!(core.check(&[reading(30)]).read_only.is_some());
        let given_up = Reading { reserve_lacking: 100, ..reading(130) };
        assert!(core.check(&[given_up]).read_only.is_some());
    }

    prop_compose! {
        fn checks()(dirs in 1usize..4)(
            free in prop::collection::vec(prop::collection::vec(0u64..=1000, dirs), 1..30)
        ) -> Vec<Vec<u64>> { free }
    }

    proptest! {
        /// Usage invariants 1 and 2, against the rule written out over the history.
        #[test]
        fn verdicts_follow_the_rule(
            checks in checks(), usage in 0.5f64..1.0, low in 0.3f64..1.0, is_any_enough: bool,
        ) {
            let limits = DiskLimits { is_any_enough, ..limits(usage, low.min(usage)) };
            let mut core = core(limits.clone(), checks[0].len());
            let mut full = vec![false; checks[0].len()];
            for frees in &checks {
                let readings: Vec<Reading> = frees.iter().map(|free| reading(*free)).collect();
                let verdict = core.check(&readings);
                let used = |free: u64| 1.0 - free as f64 / 1000.0;
                let total = 1.0 - frees.iter().sum::<u64>() as f64 / (1000.0 * frees.len() as f64);
                let others = (0..frees.len()).any(|i| !full[i] && used(frees[i]) <= usage);
                for (i, free) in frees.iter().enumerate() {
                    full[i] = if full[i] && used(*free) <= usage {
                        !(others || total < limits.low_water)
                    } else {
                        used(*free) > usage
                    };
                }
                prop_assert_eq!(&verdict.full, &full);
                let expected = full.iter().all(|f| *f) || (is_any_enough && full.contains(&true));
                prop_assert_eq!(verdict.read_only.is_some(), expected);
                // The same readings again change nothing (no flapping), and empty disks need one check.
                prop_assert_eq!(core.check(&readings), verdict);
            }
            let empty = vec![reading(1000); checks[0].len()];
            prop_assert_eq!(core.check(&empty).read_only, None);
        }
    }
}
