//! The catalogue: which objects the tier holds, which extents are in them, which ids are reserved.
//!
//! It is a log in the bucket. A tierer commits by creating the next number of the log, and the store lets one creator of a key
//! win; every reader applies the records in the order of their numbers, by the same rules, and so comes to the same state. There
//! is no elected writer, and nothing to fail over: a tierer that was away for an hour loses the race for the next number, reads
//! what came in between, and its record is judged by the state in which it arrives.
//!
//! # Data flow
//! ```text
//! changes ─► Record at the next number ─► conditional create ─► apply ─► Outcome, the same for every reader
//!                                                                 │
//!                        tail in memory ─► sorted run ─► manifest names it ─► records behind it may go
//!                                            └─► merged with others, in the background
//! ```
//! [`Core`] has the rules, synchronously and without I/O: it holds the tail of the log, and asks for what lies below it
//! ([`Needs`], answered by [`Facts`]). [`Catalogue`] is the shell around it.
//!
//! # Invariants
//! 1. The state at a number depends on the records up to that number alone (IT1): not on who reads, when, or which snapshots
//!    were taken.
//! 2. Extents of a ledger are contiguous, without gap and overlap (T3). An extent that does not begin at the ledger's next entry is
//!    dropped, by itself; the outcome says what the next entry is.
//! 3. An object is committed under an id that was reserved and has not expired (T5), as a whole (T6). The same commit again
//!    changes nothing and has the same outcome; another one for the same id is refused.
//! 4. A row of an object goes after the object, and only when it was unreferenced or its reservation had expired (T13).
//! 5. The log's time is the highest time of its records: it never goes back, and every reader has the same. Records carry
//!    the time of the *store*, which each tierer compares with its own once ([`Catalogue::open`]); a tierer's clock that is off
//!    does no harm. Should a record's time be ahead, reservations expire early (commits are refused and repeated) and
//!    unreferenced objects go early (a reader finds the entries elsewhere); if it is behind, it counts for nothing.
//! 6. A snapshot changes no state. Its rows are whole values, so snapshots that overlap agree.
//! 7. A run counts when a manifest names it, and is named for one stretch of manifests only. Manifests are created conditionally, one behind the other, and are kept: each says
//!    which records and runs may be deleted once it is there, so nothing that is needed is deleted, whoever is slow.
//! 8. A commit counts when its record was created **and** the newest manifest that is there after that does not let its
//!    number be deleted: a process that was away for so long that its number was written, covered and deleted would
//!    otherwise create it again. No clock is asked.
//! 9. `NotFound` is never the proof of an empty catalogue: a marker says that there is one, and that there is no object.
//!    [`genuine`] has what a process does to find that the catalogue was lost, cut, or replaced by an older copy.
//!
//! # The bytes
//! Below `<prefix>/<INSTANCEID>/catalogue/`; numbers in keys have 20 digits. All numbers are little-endian, except in keys of
//! rows. A frame is: magic 8 | version u32 | length of the whole u32 | body | CRC32C of everything before it u32.
//! ```text
//! format                             frame "BNDRTFMT": cluster 16 | created at, ms u64
//! log/NUMBER                         frame "BNDRTLOG": cluster 16 | number u64 | writer u64 | time, ms u64 | changes u32, then each:
//!                                      1 u8 | ttl ms u64 | ids u32 | ids                                reserve
//!                                      2 u8 | object                                                    commit
//!                                      3 u8 | object | sources u32 | ids                                replace
//!                                      4 u8 | ledger i64                                                remove ledger
//!                                      5 u8 | id                                                        forget object
//!                                      6 u8 | id | number of the record that took extents over u64      release
//!                                    object: reference 40 | extents u32, then each: ledger i64 | first i64 | last i64 | bytes u64
//! snapshots/manifests/NUMBER         frame "BNDRTMAN": cluster 16 | number u64 | covered number u64 | log's time u64
//!                                      log floor u64 | run floor u64 | 8 sums u64 | runs u32, then each, the newest first:
//!                                      name: manifest u64, nonce u64 | shape
//! snapshots/runs/MANIFEST-NONCE      blocks | index | trailer
//!   block    one zstd frame: rows, ascending: key 17 | length of the value u8, 255: the row is gone | value
//!   index    per block: first key 17 | last key 17 | offset u64 | stored length u32 | raw length u32 | CRC32C as stored u32
//!   shape    rows u64 | length of the run u64 | offset of the index u64 | its length u32 | its CRC32C u32
//!   trailer  magic "BNDRTRUN" | version u32 | cluster 16 | shape | CRC32C of everything before it in the trailer u32
//! clock/WRITER                       for a moment, when a tierer starts
//! ```
//!
//! # Limits
//! Record: [`RECORD_BYTES_MAX`]. Extents taken by one removal of a ledger: [`REMOVED_EXTENTS_MAX`]; replaced by one new extent:
//! [`REPLACED_EXTENTS_MAX`].

mod base;
mod bucket;
mod core;
mod error;
mod facts;
mod genuine;
mod locator;
mod manifest;
mod rebuild;
mod record;
mod row;
mod run;
mod shell;
#[cfg(test)]
pub(crate) mod tests;
mod upkeep;

pub use self::core::{ChangeOutcome, Core, ExtentOutcome, Outcome, Position, Refusal, Totals, Verdict};
pub use bucket::{Requests, object_key};
pub use error::CatalogueError;
pub use facts::{
    ExtentRow, Facts, LedgerRow, Needs, ObjectRow, REMOVED_EXTENTS_MAX, REPLACED_EXTENTS_MAX, Replaced,
    StoredObject, WantedExtents,
};
pub use locator::{LOCATED_MAX, LocateError, Locator};
pub use rebuild::{CreationOf, Gap, Rebuilt, rebuild};
pub use record::{Change, NewExtent, NewObject, RESERVATION_TTL_MS_MAX, Record, RecordTooLarge, WriterId};
pub use shell::{Catalogue, CatalogueOptions, OpenMode};
pub use upkeep::{Cleaned, Installed, UpkeepDone, UpkeepJob, UpkeepKind};

use crate::ClusterId;

/// Requests of one process at once, when many are to be made.
const REQUESTS_AT_ONCE: usize = 16;

/// The version this build writes, and the newest it reads. 1: first. 3: creation times of ledgers.
pub const FORMAT_VERSION: u32 = 3;

/// Longest record: 500,000 extents. A round has a few thousand.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// Why bytes are no part of this catalogue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueDamage {
    /// Cut short, extended, or longer than anything that is written here.
    #[error("it has {found} bytes, which is not the length that it should have")]
    Length {
        /// The length.
        found: usize,
    },
    /// Something else.
    #[error("it begins with another magic: a different kind of file")]
    Magic,
    /// A bit or more is not as it was written.
    #[error("its checksum does not match")]
    Checksum,
    /// Written by a newer release.
    #[error("its format {found} is newer than this release reads (up to {newest}): upgrade", newest = FORMAT_VERSION)]
    NewerFormat {
        /// The version.
        found: u32,
    },
    /// The checksum matches, and the fields make no sense.
    #[error("its fields contradict each other")]
    Malformed,
    /// It stands at another number than the one it was written for.
    #[error("it was written for number {found}, and stands at {expected}")]
    Misplaced {
        /// In it.
        found: u64,
        /// In its key.
        expected: u64,
    },
    /// It belongs to another cluster (T18).
    #[error("it belongs to the cluster {found}, and this is the catalogue of {expected}")]
    OtherCluster {
        /// In it.
        found: ClusterId,
        /// The cluster whose catalogue is read.
        expected: ClusterId,
    },
}
