//! A one-way switch that tasks can wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Off until [`Latch::set`], then on for good.
#[derive(Default)]
pub struct Latch {
    is_set: AtomicBool,
    changed: Notify,
}

impl Latch {
    /// Switches it on; true the first time.
    pub fn set(&self) -> bool {
        let first = !self.is_set.swap(true, Ordering::AcqRel);
        if first {
            self.changed.notify_waiters();
        }
        first
    }

    /// True once it was switched on.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits until it is on. Cancel safe.
    pub async fn wait(&self) {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        // Registered before the flag is read: a set in between is not missed.
        changed.as_mut().enable();
        if !self.is_set() {
            changed.await;
        }
    }
}
