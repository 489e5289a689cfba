//! The journal (write-ahead log): makes records durable before they are acknowledged.
//!
//! # Data flow
//! ```text
//! record::encode into an open chunk -> Part (filled piece of a chunk) -> Journal::write(group of parts)
//!     -> one positioned write + sync -> durable
//! restart: Journal::open -> Journal::replay -> records in the order they were written
//! ```
//!
//! # Invariants
//! 1. `Journal::write` returns `Ok` only after the bytes of the whole group are durable (or written, when told not to
//!    sync).
//! 2. Groups are numbered without gaps; a group is replayed as a whole or not at all.
//! 3. The header of a journal file is durable before its first group, and names the group it starts with.
//! 4. After the first failed write or sync nothing is written any more; the first reason is kept.
//! 5. A file is reused only after [`Journal::release_up_to`] covered its last group. A group of an earlier use never
//!    replays: file id, nonce, sequence and offset must all match.
//! 6. One function ([`group::layout`]) computes where a group's bytes lie, for the writer and for the reader.
//!
//! # Limits
//! Parts per group: [`group::PARTS_MAX`]. A group must fit a journal file. Files: [`JournalConfig`].
//!
//! # Not here
//! Which records there are to write (engine), when a group forms (engine), where entries go afterwards (storage).

mod file;
pub mod group;
pub mod inspect;
mod reader;
pub mod record;
mod replay;
pub mod survey;
mod writer;

pub use file::{FILE_FORMAT_VERSION, FileHeader, HeaderProblem};
pub use reader::{Damage, OpenError};
pub use replay::{ReplayError, Replayed};
pub use writer::{Group, Journal, JournalConfig, JournalError, Part, PreparedFile};
