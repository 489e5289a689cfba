//! A cluster replaces the copies that it lost: the auditor finds them, replication workers bring them back (protocol reference,
//! section 5.6). Works beside BookKeeper's AutoRecovery, on the same marks, locks and settings in metadata.
//!
//! # Data flow
//! ```text
//! bookies that are registered --> AuditorCore --(scan due)--> metadata of all ledgers --> audit --> marks
//! lists of entries, copies of some -------------------> check of all ledgers, each week --------------> |
//!      metadata names the new copy <-- copies, verified <-- lock <-- RepairQueue <-- fewest copies first
//! ```
//! The cores ([`core`]) are synchronous: they see facts and times, and do no I/O. The shells ([`Repair`], [`repair_ledgers`]) read and
//! write metadata, copy entries through the ledger client, and decide nothing that a core decides.
//!
//! # Invariants
//! 1. Metadata names a bookie only when it has acknowledged every entry that it should have there, or knows its place in object storage.
//! 2. A ledger is worked on under its lock, and its mark goes only at the version that was read under the lock.
//! 3. Who is away is looked at again before each copy and before metadata is changed: what came back is not replaced.
//! 4. A ledger that cannot be repaired is named with its reason, tried again ever more rarely, and holds up no other.
//! 5. An open ledger is closed only after its grace, and not while its entries are seen to grow.
//! 6. Nothing is deleted from a bookie here.
//!
//! # Limits     [`RepairConfig::memory_limit`] for copies under way; ledgers known as marked: [`core::queue::LEDGERS_MAX`]

pub mod core;
mod shell;

pub use self::shell::{
    AddTimes, CheckReport, CheckSettings, LedgersOf, LetsGo, OwnBookie, OwnTier, PlacementReport, Repair,
    RepairConfig, RepairHandle, RepairReport, StuckLedger, Targets, for_each_ledger, mark_ledgers,
    mark_ledgers_of, repair_ledgers,
};
