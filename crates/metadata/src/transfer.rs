//! A cluster's metadata as a file: out of one metadata store, into another.
//!
//! # Data flow
//! ```text
//! source -> Export (walks the root) -> text -> Dump::read (checksum first) -> import -> target, compared at the end
//! ```
//!
//! # Invariants
//! 1. Only persistent nodes are carried. Ephemeral nodes and what stands below `available` (registrations) belong to
//!    processes that connect to the new store themselves; they are left out and counted.
//! 2. Nothing is written before the whole file was read and its checksum found right.
//! 3. Until everything is there and was compared, the target root holds a node `IMPORTING` and no `LAYOUT`, so that
//!    neither our client nor Java's takes half a cluster for a whole one. Both change in one transaction at the end; in a store without
//!    transactions `LAYOUT` comes first, and whoever repeats the import removes the node that was left. Until then ours opens no cluster
//!    there.
//! 4. An import that was interrupted is finished by repeating it with the same file: a node that is there with equal
//!    data is fine. A root that holds anything else is refused and not touched.
//! 5. After an import no generated ledger id is one that the source gave out, also not one whose ledger was deleted:
//!    bookies may still hold its entries. See below.
//! 6. The marks of bookies (`underreplication/bindery-marks`) are not carried, not even counted: a bookie that finds its mark
//!    takes the store for the one that it was, and an export may be an old one.
//!
//! # Ledger ids
//! Generated ids come from the store's counter of sequential names. While the source has only the 31-bit generator `idgen`, its next number is in
//! the file. A store without transactions is set to that; ZooKeeper's counter cannot be set, and is moved by creating and
//! deleting names, up to [`COUNTER_STEPS_MAX`]. Beyond that, and when the source uses `idgen-long` already, the target
//! gets a new `idgen-long/HOB-<high>` above all others: every client, Java's too, generates with the highest one, and
//! no id with that upper half was ever generated.
//! Ids that clients chose themselves are not counted: a generated id that meets one makes the creator take the next.
//!
//! # What does not survive
//! Versions and times of nodes start over (no client holds a version across a change of stores; a ledger's creation
//! time is in its metadata since BookKeeper 4.8). Access rules: every node becomes open to the world, as our driver
//! creates them. Counters other than those of ledger ids.
//!
//! # Limits     a file: [`DUMP_SIZE_BYTES_MAX`]; a transaction: 200 nodes and 256 KiB, without transactions a request for each node;
//! reads under way: 64
//!
//! # Not here   entries (they stay on the bookies), opening of files (the command line)

mod export;
mod format;
mod import;
mod walk;

pub use self::export::{Export, ExportSummary};
pub use self::format::{DUMP_SIZE_BYTES_MAX, Dump, DumpError};
pub use self::import::{COUNTER_STEPS_MAX, Difference, ImportError, ImportSummary, import};
