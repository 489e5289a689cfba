//! How much the writers of a client keep for bookies that lack it: a part of what they may have in flight.
//!
//! # Invariants
//! 1. The sum is what the living [`KeptShare`]s say.
//! 2. A writer is told what the others leave of the maximum, so they exceed it together by no more than what becomes known at
//!    the same moment. All of it is counted by the budget for entries in flight as well, whose limit holds in any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// This part of the memory limit: half of what a bookie may hold up by default, so that the others go on.
const KEPT_PART: u64 = 4;

/// Of a client.
pub(crate) struct KeptBytes {
    bytes: AtomicU64,
    max: u64,
}

/// Of one writer.
pub(crate) struct KeptShare {
    of_client: Arc<KeptBytes>,
    bytes: u64,
}

impl KeptBytes {
    pub fn new(memory_limit: u64) -> KeptBytes {
        KeptBytes { bytes: AtomicU64::new(0), max: memory_limit / KEPT_PART }
    }
}

impl KeptShare {
    pub fn new(of_client: Arc<KeptBytes>) -> KeptShare {
        KeptShare { of_client, bytes: 0 }
    }

    /// How much this writer may keep now.
    pub fn bytes_max(&self) -> u64 {
        let all = self.of_client.bytes.load(Ordering::Relaxed);
        self.of_client.max.saturating_sub(all.saturating_sub(self.bytes))
    }

    /// It keeps so much.
    pub fn set(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.of_client.bytes.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else if bytes < self.bytes {
            self.of_client.bytes.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for KeptShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_share_what_may_be_kept() {
        let all = Arc::new(KeptBytes::new(400));
        let (mut one, mut two) = (KeptShare::new(all.clone()), KeptShare::new(all.clone()));
        one.set(60);
        assert_eq!((one.bytes_max(), two.bytes_max()), (100, 40));
        two.set(40);
        one.set(10);
        assert_eq!((one.bytes_max(), two.bytes_max()), (60, 90));
        drop(one);
        assert_eq!(two.bytes_max(), 100, "invariant 1");
    }
}
