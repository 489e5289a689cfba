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
//!                         between two flushes: logs dropped, rewritten, merged and checked (space); copies of a repair,
//!                         which `Ingest` wrote past the journal, committed
//! restart:   Machine::open: directories -> replay behind their marks -> flush -> ready
//! ```
//!
//! The cores do no I/O of their own, read no clock and spawn nothing; [`Machine`] is stepped by the threads of
//! [`threads`] in the binary and by the scheduler in the simulator.
//!
//! # Modules
//! Each knows those below it only (`.ci/modules` checks that):
//! ```text
//! threads                                   what runs the steps
//! open                                      Machine
//! engine · journaling · flushing            requests; the steps of a journal; the steps of the ledger directories
//! space                                     upkeep of the directories, between two flushes
//! directories                               which of them failed
//! shared                                    the state that all of these have in common
//! shard                                     ledgers, under one lock
//! ledger · lookup                           one ledger; reads that memory does not answer
//! write_cache · tier · tickets · api · ...  what passes between them
//! ```
//!
//! Invariants and limits stand with the part that keeps them: `shard`, `engine::ingest`, `admission_queue`, `journaling`, `flushing`, `flush_routing`,
//! `direct_fence`, `flushing::ingest`, `open`, `write_cache`, `ledger_budget`, `lagging`, `pacing`, `space`, `tier`.
//!
//! # Not here
//! Sockets, protocols and metadata (server). Which ledgers are garbage is decided here (`GarbageRound`), on what the
//! server reads in metadata.

mod admission_queue;
mod api;
mod completions;
mod config;
mod damage;
mod direct_fence;
mod directories;
mod engine;
mod fair_queue;
mod fault_log;
mod flush_routing;
mod flushing;
mod garbage;
mod hung;
mod ingest_desk;
mod journaling;
mod journals;
mod lagging;
mod ledger;
mod ledger_budget;
mod ledger_map;
mod lookup;
mod open;
mod pacing;
mod polls;
mod pulse;
mod rare;
mod run_set;
mod shard;
mod shared;
mod signal;
mod space;
mod space_desk;
mod stats;
pub mod threads;
mod tickets;
mod tier;
mod write_cache;

pub use admission_queue::{AdmissionGrant, Admittance, RoomWaiter};
pub use api::{
    Add, AddDone, AddSink, Changes, DurablePoint, EntryRef, EntryRun, GroupTimes, LedgerPresence,
    MetadataVerdict, Origin, Poll, PollId, Refusal, Status, Unplaced, Waiter,
};
pub use completions::Completions;
pub use config::{Admission, ConfigFaults, EngineConfig, JOURNAL_FILES_MIN, PoolMemory, SpaceConfig};
pub use damage::{DamageSummary, DamagedRange};
pub use directories::FlushError;
pub use engine::{Engine, Ingest, SealedIngest};
pub use fair_queue::Share;
pub use flushing::Flushing;
pub use garbage::{Doubt, Evidence, GarbageLimits, GarbageRound, Listed, SecondLook};
pub use ingest_desk::{
    INGEST_BYTES_MAX, INGEST_ENTRIES_MAX, INGEST_LEDGERS_MAX, INGEST_LOGS_MAX, INGESTS_MAX, IngestError,
    IngestWaiter,
};
pub use journaling::{InFlight, Journaling};
pub use journals::JournalStats;
pub use ledger_budget::{EXPLICIT_LAC_BYTES_MAX, LedgerMemory};
pub use lookup::{DiskRead, Lookup};
pub use open::{Machine, OpenError, ReplayFault, WantOfSpace};
pub use pulse::JournalPulse;
pub use space_desk::{CompactionKinds, ScrubFinding, ScrubPass, ScrubStatus, SpaceStatus, WantedCollection};
pub use stats::{DirectoryStats, EngineStats};
pub use threads::{EngineThreads, StopError};
pub use tickets::{Flushed, FreezeTicket};
pub use tier::{Compared, LocalChecksum, ReconcileWaiter, Reconciled, Tiered, TieredRead, TrimError};

pub use bindery_storage::{Ahead, FoundRun, Patience, TOGETHER_ENTRIES_MAX};
