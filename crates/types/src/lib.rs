//! Identifiers, quorum arithmetic, digests and ledger metadata of the BookKeeper model.
//!
//! This crate does no I/O, reads no clock and holds no global state.

mod id;

pub use id::{BookieId, EntryId, InvalidBookieId, LedgerId, MASTER_KEY_SIZE_BYTES, MasterKey};
