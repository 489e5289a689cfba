//! Ledgers that are being taken for appending, so that a call that is dropped leaves none behind that looks taken.
//!
//! # Data flow
//! ```text
//! open_for_append ──► task: claims, whatever becomes of the call ──► Claimed ──► the call
//!                                                                       └─ dropped ──► task: hands the ledger over again
//! ```
//!
//! # Invariants
//! 1. A claimed ledger becomes a writer that a caller has, or is handed over again. Only the end of the runtime, of the
//!    process or of the session leaves it taken.
//! 2. A client that closes waits for both, up to [`CLOSE_WAIT`].
//!
//! # Limits     a task for each call under way, and for each hand-over of a dropped one

use std::time::Duration;

use tokio::sync::watch;

/// How long a client that closes waits. A hand-over takes a write of metadata and an announcement.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// How many are under way.
pub(crate) struct Claims(watch::Sender<usize>);

/// One of them; until it is dropped.
pub(crate) struct UnderWay(watch::Sender<usize>);

impl Claims {
    pub fn new() -> Claims {
        Claims(watch::Sender::new(0))
    }

    pub fn begin(&self) -> UnderWay {
        self.0.send_modify(|count| *count += 1);
        UnderWay(self.0.clone())
    }

    /// Waits until none is under way, but not for ever (invariant 2).
    pub async fn ended(&self) {
        let mut count = self.0.subscribe();
        // In time or not: the session ends now.
        let _ = tokio::time::timeout(CLOSE_WAIT, count.wait_for(|count| *count == 0)).await;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
