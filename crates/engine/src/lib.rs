//! The bookie's state machine over journals and storage.
//!
//! # Data flow
//! ```text
//! request -> Engine -> Shard (under its lock: check, place in the open journal chunk, index)
//!                        |                                              |-> sink, waiters
//!                        v                                              |
//!            Journaling (one for each journal): cut -> one write and sync -> finish
//!                                                       |
//!                                                       v
//!            Flushing: frozen write caches -> entry log per directory -> commit with the mark -> journal files free
//!                         between two flushes: logs dropped, rewritten, merged and checked (space)
//! restart:   Machine::open: directories -> replay behind their marks -> flush -> ready
//! ```
//!
//! The cores do no I/O of their own, read no clock and spawn nothing; [`Machine`] is stepped by the threads of
//! [`threads`] in the binary and by the scheduler in the simulator.
//!
//! Invariants and limits stand with the part that keeps them: `shard`, `admission_queue`, `machine`, `open`, `write_cache`, `lagging`,
//! `pacing`, `space`, `tier`.
//!
//! # Not here
//! Sockets, protocols and metadata (server). Which ledgers are garbage is decided here (`GarbageRound`), on what the
//! server reads in metadata.

mod admission_queue;
mod api;
mod config;
mod direct_fence;
mod engine;
mod flush_routing;
mod garbage;
mod hung;
mod journals;
mod lagging;
mod ledger;
mod ledger_map;
mod lookup;
mod machine;
mod open;
mod pacing;
mod polls;
mod pulse;
mod rare;
mod shard;
mod signal;
mod space;
mod stats;
pub mod threads;
mod tier;
mod write_cache;

pub use admission_queue::{AdmissionGrant, Admittance, RoomWaiter};
pub use api::{
    Add, AddDone, AddSink, Changes, DurablePoint, EntryRef, EntryRun, GroupTimes, LedgerPresence, Lookup,
    MetadataVerdict, Origin, Poll, PollId, Refusal, Waiter,
};
pub use config::{Admission, ConfigFaults, EngineConfig, JOURNAL_FILES_MIN, PoolMemory, SpaceConfig};
pub use engine::{Engine, Status};
pub use garbage::{AcceptedGap, Doubt, Evidence, GarbageLimits, GarbageRound, Listed, SecondLook};
pub use journals::JournalStats;
pub use lookup::DiskRead;
pub use machine::{Completions, FlushError, Flushed, Flushing, FreezeTicket, InFlight, Journaling};
pub use open::{Machine, OpenError, ReplayFault, WantOfSpace};
pub use pulse::JournalPulse;
pub use space::{ScrubFinding, ScrubPass, ScrubStatus, SpaceStatus, WantedCollection};
pub use stats::EngineStats;
pub use threads::{EngineThreads, StopError};
pub use tier::{Compared, LocalChecksum, ReconcileWaiter, Reconciled, Tiered, TieredRead, TrimError};

pub use bindery_storage::{Ahead, FoundRun, Patience, TOGETHER_ENTRIES_MAX};
