//! What is measured from the first day: the time of each phase of a round, and counts.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The stages through which entries go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Reading from bookies.
    Read,
    /// Putting objects together: checksums, compression.
    Build,
    /// Writing objects.
    Upload,
    /// Writing to the catalogue.
    Commit,
    /// Telling bookies.
    Update,
}

impl Stage {
    /// All, in their order.
    pub const ALL: [Stage; 5] = [Stage::Read, Stage::Build, Stage::Upload, Stage::Commit, Stage::Update];

    /// For metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Read => "read",
            Stage::Build => "build",
            Stage::Upload => "upload",
            Stage::Commit => "commit",
            Stage::Update => "update",
        }
    }
}

/// What one object took, as it was built: its stages overlap only with those of other objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BuildTimes {
    /// Time without entries to put into it.
    pub read: Duration,
    /// Time of putting entries into it.
    pub build: Duration,
    /// Time in which nothing could go on before a part was written.
    pub upload: Duration,
}

/// How long things took: percentiles of all since the start.
#[derive(Debug, Clone)]
pub struct Durations {
    histogram: Histogram<u64>,
    sum: Duration,
    last: Duration,
}

impl Default for Durations {
    fn default() -> Durations {
        // Up to an hour, in microseconds, within 1 %.
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("valid constants");
        Durations { histogram, sum: Duration::ZERO, last: Duration::ZERO }
    }
}

impl Durations {
    /// One more.
    pub fn record(&mut self, took: Duration) {
        self.histogram.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.sum += took;
        self.last = took;
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Of all together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The last one.
    pub fn last(&self) -> Duration {
        self.last
    }

    /// The time within which this share of them ended.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.histogram.value_at_quantile(share))
    }
}

/// Phases of rounds, by [`Stage`]; each is the time that the round spent in it, whatever other rounds did meanwhile.
#[derive(Debug, Clone, Default)]
pub struct Phases([Durations; 5]);

impl Phases {
    /// One.
    pub fn of(&self, stage: Stage) -> &Durations {
        &self.0[stage as usize]
    }

    pub(super) fn record(&mut self, stage: Stage, took: Duration) {
        self.0[stage as usize].record(took);
    }
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ledgers that were left to another tierer, who owns them.
    pub handed_over: u64,
    /// Times that this tierer could not do its work for long.
    pub unable: u64,
    /// Rounds that began objects.
    pub rounds: u64,
    /// Times that nothing was due.
    pub idle_rounds: u64,
    /// Objects that were committed.
    pub objects: u64,
    /// Their lengths together.
    pub object_bytes: u64,
    /// Extents that the catalogue took.
    pub extents: u64,
    /// Entries in them.
    pub entries: u64,
    /// Bytes of those entries.
    pub entry_bytes: u64,
    /// Objects that were not uploaded.
    pub upload_failures: u64,
    /// Ledgers that gave nothing, or not all, to an object because reading failed or took too long.
    pub read_failures: u64,
    /// Commits that were answered.
    pub commits: u64,
    /// Commits that were sent again.
    pub commit_retries: u64,
    /// Objects that the catalogue refused.
    pub refused_objects: u64,
    /// Extents that the catalogue dropped because they did not continue their ledgers (near 0 with one tierer).
    pub corrections: u64,
    /// Ledgers that were stopped because a bookie is ahead of the catalogue (T2).
    pub stopped: u64,
    /// Ids that were reserved.
    pub reserved: u64,
    /// Reserved ids that were not used in time.
    pub expired: u64,
    /// Times a bookie said that it has too much to do.
    pub pressure: u64,
}

/// How much of the time each stage was the one that others waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Usage([f64; 5]);

impl Usage {
    pub fn add(&mut self, stage: Stage, time: Duration) {
        self.0[stage as usize] += time.as_secs_f64();
    }

    pub fn set(&mut self, stage: Stage, time: Duration) {
        self.0[stage as usize] = time.as_secs_f64();
    }

    /// The stage that took the largest part of what it could have taken since `before`, and that part. Objects are built side
    /// by side, so the first three could have taken that many times the time.
    pub fn largest_since(&self, before: &Usage, elapsed: Duration, objects: usize) -> (Stage, f64) {
        let elapsed = elapsed.as_secs_f64().max(0.001);
        let share = |stage: Stage| {
            let room = match stage {
                Stage::Read | Stage::Build | Stage::Upload => elapsed * objects as f64,
                Stage::Commit | Stage::Update => elapsed,
            };
            ((self.0[stage as usize] - before.0[stage as usize]) / room).clamp(0.0, 1.0)
        };
        let shares = Stage::ALL.map(|stage| (stage, share(stage)));
        shares.into_iter().fold((Stage::Read, 0.0), |most, next| if next.1 > most.1 { next } else { most })
    }
}
