//! Locks with the interface of `parking_lot` that belong to the scheduler.

use shuttle::sync;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// As `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// As `parking_lot::MutexGuard`.
pub struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    /// Unlocked.
    pub fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Waits for the lock. A panic under it ends the whole run, so there is no poison to look at.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("absent only while waiting for a condition")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("absent only while waiting for a condition")
    }
}

/// As `parking_lot::Condvar`, without time-outs: a thread that is not notified waits for ever.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Wakes one that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Waits until notified.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
        let held = guard.0.take().expect("held by the caller");
        guard.0 = Some(self.0.wait(held).unwrap_or_else(|poisoned| poisoned.into_inner()));
    }
}
