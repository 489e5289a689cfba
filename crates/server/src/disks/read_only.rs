//! Whether the bookie takes writes, and whether it should be sent any: the union of all reasons not to.
//!
//! # Invariants
//! 1. The bookie is read-only while there is a reason, and each reason goes only with its own cause: space that comes
//!    back does not undo `forceReadOnlyBookie`, nor a healthy journal a full disk.
//! 2. The engine refuses before the registration moves, and accepts before it moves back (IB19: it is never absent; a
//!    client that finds it writable is at worst refused once).
//! 3. A cause that only keeps new clients, or new ledgers, away moves the registration alone: adds to ledgers that are here are
//!    served.
//! 4. Nothing is persisted (R38), and no change writes to a ledger volume.

use bindery_engine::Engine;
use bindery_metadata::RegistrationMode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// Who wants the bookie read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The configuration (`forceReadOnlyBookie`).
    Configured,
    /// An operator, over the admin port, until they say otherwise or it restarts.
    Ordered,
    /// Its copies are being replaced, so that it can be taken out of the cluster.
    Draining,
    /// Journal or ledger storage failed.
    StorageFailed,
    /// A volume is above its threshold.
    DiskFull,
    /// A write found no space, whatever the thresholds say.
    NoSpace,
    /// A file could not be opened: too many are.
    NoDescriptor,
    /// New clients cannot connect, for want of file descriptors.
    NoConnections,
    /// The memory for states of ledgers is nearly full.
    TooManyLedgers,
    /// Syncs of the journal take too long.
    SlowJournal,
    /// The disk of a ledger directory does not answer.
    LedgersHang,
    /// The bookie is on its way out.
    Stopping,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 12] = [
        Cause::Configured,
        Cause::Ordered,
        Cause::Draining,
        Cause::StorageFailed,
        Cause::DiskFull,
        Cause::NoSpace,
        Cause::NoDescriptor,
        Cause::NoConnections,
        Cause::TooManyLedgers,
        Cause::SlowJournal,
        Cause::LedgersHang,
        Cause::Stopping,
    ];

    /// True when nothing is added for as long as it lasts (invariant 3).
    fn refuses_adds(self) -> bool {
        match self {
            Cause::NoConnections | Cause::TooManyLedgers => false,
            Cause::Configured
            | Cause::Ordered
            | Cause::Draining
            | Cause::StorageFailed
            | Cause::DiskFull
            | Cause::NoSpace
            | Cause::NoDescriptor
            | Cause::SlowJournal
            | Cause::LedgersHang
            | Cause::Stopping => true,
        }
    }

    /// Name in metrics and in the admin port's JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Configured => "configured",
            Cause::Ordered => "ordered",
            Cause::Draining => "draining",
            Cause::StorageFailed => "storage_failed",
            Cause::DiskFull => "disk_full",
            Cause::NoSpace => "no_space",
            Cause::NoDescriptor => "no_descriptor",
            Cause::NoConnections => "no_connections",
            Cause::TooManyLedgers => "too_many_ledgers",
            Cause::SlowJournal => "slow_journal",
            Cause::LedgersHang => "ledgers_hang",
            Cause::Stopping => "stopping",
        }
    }
}

/// The reasons, and who acts on them.
pub struct ReadOnlyReasons {
    engine: Arc<Engine>,
    reasons: Mutex<BTreeMap<Cause, String>>,
    takes_high_priority: AtomicBool,
    mode: watch::Sender<RegistrationMode>,
}

impl ReadOnlyReasons {
    /// Of a bookie without reasons.
    pub fn new(engine: Arc<Engine>) -> ReadOnlyReasons {
        let (mode, _) = watch::channel(RegistrationMode::Writable);
        ReadOnlyReasons {
            engine,
            reasons: Mutex::default(),
            takes_high_priority: AtomicBool::new(true),
            mode,
        }
    }

    /// Sets or clears the reason of one cause.
    pub fn set(&self, cause: Cause, reason: Option<String>) {
        let mut reasons = self.reasons.lock();
        let was_read_only = !reasons.is_empty();
        let before = match &reason {
            Some(reason) => reasons.insert(cause, reason.clone()),
            None => reasons.remove(&cause),
        };
        let is_read_only = !reasons.is_empty();
        // In the lock: two callers must not leave the engine with the older of their wishes.
        self.engine.set_read_only(reasons.keys().any(|cause| cause.refuses_adds()));
        let mode = if is_read_only { RegistrationMode::ReadOnly } else { RegistrationMode::Writable };
        self.mode.send_if_modified(|now| std::mem::replace(now, mode) != mode);
        match (before.is_some(), &reason) {
            (false, Some(reason)) if cause == Cause::Stopping => {
                tracing::info!(cause = cause.name(), reason, "now read-only");
            }
            (false, Some(reason)) => tracing::warn!(cause = cause.name(), reason, "now read-only"),
            (true, None) => {
                let others: Vec<&str> = reasons.keys().map(|cause| cause.name()).collect();
                // As loud as the beginning: a log that shows warnings only has to show the end, too.
                if was_read_only && !is_read_only {
                    tracing::warn!(cause = cause.name(), "writable again: this cause has cleared");
                } else {
                    tracing::warn!(
                        cause = cause.name(),
                        others = others.join(","),
                        "still read-only: this cause has cleared, others remain"
                    );
                }
            }
            _ => {}
        }
    }

    /// Whether writes of high priority pass while the bookie is read-only.
    pub fn set_high_priority(&self, takes: bool) {
        if self.takes_high_priority.swap(takes, Ordering::AcqRel) != takes {
            tracing::info!(takes, "changed whether high-priority writes are accepted while read-only");
        }
        self.engine.set_takes_high_priority(takes);
    }

    /// True when no reason keeps the bookie from taking adds.
    pub fn takes_adds(&self) -> bool {
        !self.reasons.lock().keys().any(|cause| cause.refuses_adds())
    }

    /// Why the bookie is read-only, by cause; empty when it is not.
    pub fn reasons(&self) -> BTreeMap<Cause, String> {
        self.reasons.lock().clone()
    }

    /// How the bookie should be registered now, and every change of that.
    pub fn mode(&self) -> watch::Receiver<RegistrationMode> {
        self.mode.subscribe()
    }
}
