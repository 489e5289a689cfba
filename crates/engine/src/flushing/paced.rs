//! The pauses of a flush.

use super::Flushing;
use crate::pacing::FlushPace;
use crate::shared::Shared;
use crate::tickets::FreezeTicket;
use bindery_io::Clock;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Carries out what [`FlushPace`] says, between the writes of one flush.
pub(super) struct PacedWrites {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    pause: Option<fn(Duration)>,
    pace: FlushPace,
    total: u64,
    /// Bytes of the logs that are finished, and of the one under way.
    finished: u64,
    current: u64,
}

impl PacedWrites {
    pub(super) fn begin(flushing: &Flushing, ticket: &FreezeTicket, now_ns: u64) -> PacedWrites {
        let total = ticket.frozen.iter().map(|(_, frozen)| frozen.bytes).sum();
        let config = flushing.shared.config();
        PacedWrites {
            shared: flushing.shared.clone(),
            clock: flushing.clock.clone(),
            pause: flushing.pause,
            pace: FlushPace::begin(config.room(), total, now_ns, config.flush_spread),
            total,
            finished: 0,
            current: 0,
        }
    }

    /// The log under way has `bytes` on disk: tells those who wait for room if that is news, and says so.
    pub(super) fn on_written(&mut self, bytes: u64) -> bool {
        if bytes == self.current {
            return false;
        }
        self.current = bytes;
        let shared = &self.shared;
        shared.pacing().written.store((self.finished + bytes).min(self.total), Ordering::Release);
        if shared.adds_wait() {
            shared.wake_journals();
        }
        true
    }

    /// Pauses when the next write is early. `aside` does something else in the pause, and says whether it did.
    pub(super) fn pause(&self, mut aside: impl FnMut() -> bool) {
        let (Some(pause), shared) = (self.pause, &self.shared) else { return };
        while !shared.pacing().is_hurried.load(Ordering::Acquire) {
            let wait = self.pace.wait(self.clock.monotonic_ns(), shared.load());
            if wait.is_zero() {
                return;
            }
            if !aside() {
                pause(wait);
            }
        }
    }

    pub(super) fn end_log(&mut self) {
        self.finished += std::mem::take(&mut self.current);
    }
}
