//! One bookie's cores on a simulated disk, driven by one seed.
//!
//! # Data flow
//! ```text
//! seed -> Profile (limits, faults) -> steps: requests, cut | write | finish, flush, crash, stop, damage
//!                                        |                                   |
//!                                        v                                   v
//!                                     Ghost (what clients were told) <- checks at every answer and after every restart
//! ```
//!
//! # Checked here
//! Of `docs/reference/reliability.md`, at every answer and after every restart:
//!
//! - IB1 a reopened durable image holds everything acknowledged; IB24 and everything that a FORCE covers, also when the
//!   journal runs without sync, where only that must outlive a power cut.
//! - IB2 IB7 IB8 reads give the bodies that were sent, never a negative or an older content for an entry that was
//!   acknowledged, or shown by an earlier read: a body seen once stays. At rest a list of entries names exactly the
//!   readable ones.
//! - IB3 IB4 IB5 fences; IB6 a wrong key of an add, an explicit LAC (last add confirmed) or a fence is refused, the
//!   right one is not.
//! - IB9 IB10 the last entry, the LAC and the body of the explicit LAC never go back, also over a restart, and are such
//!   as were sent.
//! - IB11 IB25 IB26 a prefix survives, a start that was interrupted finds what an undisturbed one finds, a second restart
//!   changes nothing (ledgers, marks, files), a clean stop leaves nothing to replay; also when the number of shards, of chunks and their size change between two starts.
//! - IB12 no durable mark goes back, and a journal file is overwritten only below all marks; IB15 no log is unlinked that
//!   its durable state table lists ([`watch`]).
//! - IB13 at rest every listed log, run and body verifies, by the code of `bindery verify` (K12).
//! - IB14 no call on a failed file, no good news from a group whose write failed; IB19 writes without high priority, and only they, are refused as read-only; IB20
//!   pools are empty after a stop.
//! - IB21 every request is answered, and a poll is ready or fires exactly when the LAC is beyond its own.
//! - IB22 IB23 one answer for each request; those to adds leave in the order of submission in each shard.
//!
//! - T1 T2 the last reconciled entry of a ledger never goes back, has no gap below it and is answered when it is durable; T9 its
//!   extents are found, also after any crash; copies at or above a trim stay, those below it are in object storage or here.
//!
//! Damage put on the medium only turns entries into errors and stops the comparison of lists. In one run of ten
//! the disk itself damages entry logs, in some of them the state table too; in one of ten it fills up between starts.
//! Journals are damaged between starts only, where a single bookie can notice.

mod facts;
mod ghost;
mod run;
mod watch;

pub use ghost::{Check, Ghost, Violation};
pub use run::{MARKS, Mark, Outcome, Profile, Report, run};
