//! The index pool: the bytes of extents and ledger states in memory, and of the runs of logs that are being written, counted
//! against one limit.
//!
//! # Invariants
//! 1. Every charge is released, exactly once; releasing more than was charged is a bug and panics.
//! 2. The pool refuses nothing: code that charges extents asks [`IndexPool::is_over`] and pages out what can be read
//!    back.
//!    Ledger states and the runs of logs that are being written cannot be paged out and have precedence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kinds of charge to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexUse {
    /// Extents in memory, and what finds the others.
    Extents,
    /// States of ledgers.
    Ledgers,
    /// Runs of logs that are being written, or read back.
    Writing,
}

impl IndexUse {
    const COUNT: usize = 3;
}

/// See the module.
#[derive(Debug)]
pub struct IndexPool {
    capacity: u64,
    used: [AtomicU64; IndexUse::COUNT],
}

impl IndexPool {
    /// A pool of `capacity` bytes.
    pub fn new(capacity: u64) -> IndexPool {
        IndexPool { capacity, used: Default::default() }
    }

    /// Counts bytes in.
    pub fn charge(&self, what: IndexUse, bytes: u64) {
        self.used[what as usize].fetch_add(bytes, Relaxed);
    }

    /// Counts bytes out.
    ///
    /// # Panics
    /// When fewer are charged.
    pub fn release(&self, what: IndexUse, bytes: u64) {
        let before = self.used[what as usize].fetch_sub(bytes, Relaxed);
        assert!(before >= bytes, "{bytes} bytes of {what:?} are released, {before} are charged");
    }

    /// Bytes charged.
    pub fn used(&self, what: IndexUse) -> u64 {
        self.used[what as usize].load(Relaxed)
    }

    /// The limit.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes charged, for whatever.
    pub fn used_in_all(&self) -> u64 {
        self.used.iter().map(|used| used.load(Relaxed)).sum()
    }

    /// Bytes above the limit; 0 when it holds.
    pub fn excess(&self) -> u64 {
        self.used_in_all().saturating_sub(self.capacity)
    }

    /// True when more is charged than the limit allows.
    pub fn is_over(&self) -> bool {
        self.excess() > 0
    }
}

/// Bytes that change, and are released when this goes.
pub(crate) struct IndexCharge {
    pool: Arc<IndexPool>,
    what: IndexUse,
    bytes: u64,
}

impl IndexCharge {
    /// Nothing yet.
    pub(crate) fn new(pool: &Arc<IndexPool>, what: IndexUse) -> IndexCharge {
        IndexCharge { pool: pool.clone(), what, bytes: 0 }
    }

    /// So many bytes are charged from now on.
    pub(crate) fn set(&mut self, bytes: u64) {
        self.pool.charge(self.what, bytes.saturating_sub(self.bytes));
        self.pool.release(self.what, self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
    }
}

impl Drop for IndexCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}
