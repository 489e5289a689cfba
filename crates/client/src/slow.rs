//! How far each bookie is behind, over all ledgers of a client: which replica is slow (IC17).
//!
//! A writer knows what one bookie holds up in its ledger. With many ledgers each may hold little and all of them
//! everything, so the bytes are summed by bookie, and the limit is for the sum.
//!
//! # Invariants
//! 1. A bookie's sum is what the living [`Share`]s report for it.
//! 2. The ledger whose report raises a sum above the limit is told so, and lets go: a sum stays above the limit only as
//!    long as that takes.
//!
//! # Limits     a number for each bookie that ledgers being written name

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bindery_types::BookieId;
use parking_lot::Mutex;

/// The sums of a client.
pub(crate) struct SlowReplicas {
    bytes_max: u64,
    by_bookie: Mutex<HashMap<BookieId, Weak<AtomicU64>>>,
}

/// What one ledger reports of one bookie.
pub(crate) struct Share {
    sum: Arc<AtomicU64>,
    bytes: u64,
}

impl SlowReplicas {
    pub fn new(bytes_max: u64) -> SlowReplicas {
        SlowReplicas { bytes_max, by_bookie: Mutex::default() }
    }

    /// To be kept as long as a ledger is written to this bookie.
    pub fn share(&self, bookie: &BookieId) -> Share {
        let mut by_bookie = self.by_bookie.lock();
        if let Some(sum) = by_bookie.get(bookie).and_then(Weak::upgrade) {
            return Share { sum, bytes: 0 };
        }
        // Now and then, so that bookies long gone are forgotten.
        by_bookie.retain(|_, sum| sum.strong_count() > 0);
        let sum = Arc::new(AtomicU64::new(0));
        by_bookie.insert(bookie.clone(), Arc::downgrade(&sum));
        Share { sum, bytes: 0 }
    }

    /// Reports what a bookie holds up in one ledger now; the sum, when that is too much and this ledger has a part in it.
    pub fn report(&self, share: &mut Share, bytes: u64) -> Option<u64> {
        let sum = share.set(bytes);
        (bytes > 0 && sum > self.bytes_max).then_some(sum)
    }
}

impl Share {
    fn set(&mut self, bytes: u64) -> u64 {
        let before = std::mem::replace(&mut self.bytes, bytes);
        match bytes.checked_sub(before) {
            Some(0) => self.sum.load(Ordering::Relaxed),
            Some(more) => self.sum.fetch_add(more, Ordering::Relaxed) + more,
            None => self.sum.fetch_sub(before - bytes, Ordering::Relaxed) - (before - bytes),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledgers_that_hold_little_each_make_a_bookie_slow_together() {
        let slow = SlowReplicas::new(100);
        let (a, b) = (BookieId::new("a").unwrap(), BookieId::new("b").unwrap());
        let (mut one, mut two, mut other) = (slow.share(&a), slow.share(&a), slow.share(&b));
        assert_eq!(slow.report(&mut one, 60), None);
        assert_eq!(slow.report(&mut other, 100), None, "by bookie");
        assert_eq!(slow.report(&mut two, 41), Some(101), "invariant 2");
        assert_eq!(slow.report(&mut two, 0), None);
        assert_eq!(slow.report(&mut one, 101), Some(101));
        drop(one);
        assert_eq!(
            slow.report(&mut two, 100),
            None,
            "invariant 1: a writer that ends takes its part with it"
        );
        drop((two, other));
        let _again = slow.share(&b);
        assert_eq!(slow.by_bookie.lock().len(), 1, "bookies without a ledger are forgotten");
    }
}
