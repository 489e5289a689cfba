//! Wakes one thread; raising it again before the thread looked costs one atomic operation.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[derive(Default)]
pub(crate) struct Signal {
    is_raised: AtomicBool,
    lock: Mutex<()>,
    condition: Condvar,
    wakes: AtomicU64,
}

impl Signal {
    pub(crate) fn raise(&self) {
        if !self.is_raised.swap(true, Ordering::AcqRel) {
            // Taking the lock orders this before or after the sleeper's check, so the wake-up is never lost.
            drop(self.lock.lock());
            self.wakes.fetch_add(1, Ordering::Relaxed);
            self.condition.notify_one();
        }
    }

    /// Times it was raised after its thread had looked.
    pub(crate) fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    /// Waits until raised, at most `timeout`; lowers it. False on a time-out.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        if self.is_raised.swap(false, Ordering::AcqRel) {
            return true;
        }
        let mut guard = self.lock.lock();
        if !self.is_raised.load(Ordering::Acquire) {
            self.condition.wait_for(&mut guard, timeout);
        }
        self.is_raised.swap(false, Ordering::AcqRel)
    }
}
