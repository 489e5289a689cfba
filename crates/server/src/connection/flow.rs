//! Memory and activity of one connection, for the flow view.

use super::activity::{Class, Wait};
use serde::{Deserialize, Serialize};

/// A connection whose peer has taken nothing for so long, in ms, while something waits for it is called stalled.
pub const STALLED_MS: u64 = 1000;

/// One connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionFlow {
    /// Where it comes from.
    pub peer: String,
    /// `v2`, `v3`, `v2+v3`, or `-` before the first request.
    pub protocol: String,
    /// Its use in the last minute.
    pub class: Class,
    /// Since it was opened.
    pub open_ms: u64,
    /// The sum of what it holds of pools.
    pub held_bytes: u64,
    /// Of the pool `inbound`.
    pub inbound_bytes: u64,
    /// Of `inbound-large`.
    pub inbound_large_bytes: u64,
    /// Of `outbox`.
    pub outbox_bytes: u64,
    /// Of `outbound`: loads under way and entries the kernel has not taken.
    pub outbound_bytes: u64,
    /// Of `outbound-priority`.
    pub outbound_priority_bytes: u64,
    /// What `outboundBytes`, and `outboundPriorityBytes`, may be, unless one entry is larger.
    pub window_bytes: u64,
    /// Bytes ready for the peer that the kernel has not taken.
    pub unsent_bytes: u64,
    /// Reads that are not answered.
    pub reads_queued: u64,
    /// Loads under way.
    pub loads: u64,
    /// Parked long polls.
    pub long_polls: u64,
    /// Adds that are not answered.
    pub adds_owed: u64,
    /// Room promised for answers that are still owed.
    pub answer_bytes_owed: u64,
    /// While something waits for the peer: how long ago it took something, or that came.
    pub progress_ms: Option<u64>,
    /// Its reads wait until the peer takes what was loaded.
    pub is_window_full: bool,
    /// Why it is not read now.
    pub not_read_because: Option<Wait>,
    /// Since when.
    pub not_read_ms: Option<u64>,
    /// Adds received.
    pub adds: u64,
    /// Reads received.
    pub reads: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
}

impl ConnectionFlow {
    /// How long, in ms, its peer has taken nothing, when that is worth a word.
    pub fn stalled_ms(&self) -> Option<u64> {
        self.progress_ms.filter(|ms| *ms >= STALLED_MS)
    }

    pub(crate) fn sum_held(&self) -> u64 {
        self.inbound_bytes
            + self.inbound_large_bytes
            + self.outbox_bytes
            + self.outbound_bytes
            + self.outbound_priority_bytes
    }
}
