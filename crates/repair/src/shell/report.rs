//! What repair says of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use bindery_types::LedgerId;
use serde::{Deserialize, Serialize};

use crate::core::queue::Attempt;

/// Auditor and worker of a process, at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RepairReport {
    /// Whether this process is the cluster's auditor.
    pub is_auditor: bool,
    /// Whether repair is disabled in metadata.
    pub is_disabled: bool,
    /// Whether the worker copies to other bookies than its own, too.
    pub copies_to_any: bool,
    /// Bookies that this auditor misses, and since when, in milliseconds since the epoch. One that was away before the auditor began has
    /// been so since then.
    pub away: BTreeMap<String, i64>,
    /// Scans of all ledgers that this auditor made to the end.
    pub scans: u64,
    /// Ledgers that it looked at in the last one.
    pub scanned: u64,
    /// Ledgers that it marked since it began.
    pub marked: u64,
    /// Ledgers that are marked in the whole cluster, by the worker's last listing: it lists 200,000 at a time.
    pub listed: u64,
    /// Of these, those that the worker has looked at (its share, and some of others' shares), by the number of live copies that their rarest entry has.
    pub waiting: BTreeMap<usize, u64>,
    /// Ledgers that it looked at and had no room for.
    pub left_out: u64,
    /// Ledgers under way.
    pub under_way: Vec<i64>,
    /// Ledgers that the worker made whole.
    pub repaired: u64,
    /// Marked ledgers that lacked nothing when they were looked at.
    pub found_whole: u64,
    /// Attempts that ended with a ledger whole, gone or no longer marked, and the time they took, in milliseconds.
    pub attempts: u64,
    /// See [`attempts`](Self::attempts).
    pub attempts_ms: u64,
    /// Attempts that failed, and the time they took, in milliseconds.
    pub failures: u64,
    /// See [`failures`](Self::failures).
    pub failures_ms: u64,
    /// Entries copied.
    pub entries: u64,
    /// Their bytes, as stored.
    pub bytes: u64,
    /// Those of these bytes that went into entry logs of this bookie past its journal.
    pub bytes_past_journal: u64,
    /// Entries that were not copied, because the bookie that lacked them was told their places in object storage.
    pub tiered_entries: u64,
    /// Copies that were dropped because the bookie they replaced came back.
    pub dropped: u64,
    /// Open ledgers that were closed to be repaired.
    pub closed: u64,
    /// Ledgers that could not be repaired when they were tried last, the most endangered first; at most
    /// [`STUCK_MAX`](Self::STUCK_MAX).
    pub stuck: Vec<StuckLedger>,
    /// All of them.
    pub stuck_count: u64,
    /// Bytes of copies under way.
    pub held_bytes: u64,
    /// Bytes that may be copied in a second now, if that is limited.
    pub bytes_per_second: Option<u64>,
    /// Whether that is less than configured, because adds of clients take longer or a bookie that is read from has too much to do.
    pub is_slowed_down: bool,
    /// The last failure of anything but a ledger.
    pub last_error: Option<String>,
    /// When it was, in milliseconds since the epoch.
    pub last_error_ms: Option<i64>,
    /// The auditor's check of all ledgers.
    pub check: CheckReport,
    /// The auditor's check of placement.
    pub placement: PlacementReport,
    /// Ledgers known to the worker that have been marked for longer than
    /// [`RepairConfig::mark_grace`](super::RepairConfig::mark_grace).
    pub overdue: u64,
}

/// What the check of all ledgers found: the one under way, or the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Whether one is under way.
    pub is_running: bool,
    /// Checks that this process made to the end.
    pub ended: u64,
    /// When the last one ended, whoever made it, in milliseconds since the epoch.
    pub ended_ms: Option<i64>,
    /// Ledgers whose bookies, as far as they are there, have what they should have.
    pub whole: u64,
    /// Ledgers that were marked because a bookie lacks entries or has damaged ones.
    pub lacking: u64,
    /// Ledgers of which that could not be found out: a bookie does not answer, is in limbo or fails, or metadata cannot be read.
    pub unchecked: u64,
    /// Of the last two kinds, the first [`STUCK_MAX`](RepairReport::STUCK_MAX), and why.
    pub problems: Vec<StuckLedger>,
}

/// What the last check of placement found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PlacementReport {
    /// Checks that this process made to the end.
    pub ended: u64,
    /// Ledgers judged.
    pub judged: u64,
    /// Those with an ensemble that is on fewer racks or regions than the policy wants.
    pub badly_placed: u64,
    /// Some of them, at most [`STUCK_MAX`](RepairReport::STUCK_MAX).
    pub problems: Vec<StuckLedger>,
}

impl RepairReport {
    /// Stuck ledgers that are listed.
    pub const STUCK_MAX: usize = 100;

    /// Takes the end of an attempt in.
    pub(super) fn ended(&mut self, ledger: LedgerId, attempt: &Attempt, took: Duration) {
        self.under_way.retain(|under_way| *under_way != ledger.get());
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let (count, sum_ms) = match attempt {
            Attempt::Done => (&mut self.attempts, &mut self.attempts_ms),
            Attempt::Failed(_) => (&mut self.failures, &mut self.failures_ms),
            Attempt::Elsewhere | Attempt::NotHere | Attempt::Later(..) => return,
        };
        *count += 1;
        *sum_ms = sum_ms.saturating_add(took_ms);
    }
}

/// A ledger that cannot be repaired now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckLedger {
    /// Its id.
    pub ledger: i64,
    /// What is in the way.
    pub why: String,
}
