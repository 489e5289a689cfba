//! Identifiers, quorum arithmetic, digests and ledger metadata of the BookKeeper model.
//!
//! This crate does no I/O, reads no clock and holds no global state.

pub mod codec;
mod digest;
mod host;
mod id;
mod ledger_metadata;
mod quorum;
pub mod tier;
mod tier_secret;

pub use digest::{DIGEST_SIZE_BYTES_MAX, DigestType, DigestValue, Digester, ENTRY_HEADER_SIZE_BYTES};
pub use host::{bare_host, host_and_port};
pub use id::{
    BookieId, EntryId, InvalidBookieId, LedgerId, MASTER_KEY_SIZE_BYTES, MasterKey, are_equal_secrets,
};
pub use ledger_metadata::{
    Creation, InvalidSegment, LedgerMetadata, LedgerSecret, LedgerState, MetadataFormatVersion, Segment,
};
pub use quorum::{ENSEMBLE_SIZE_MAX, InvalidQuorum, Quorum, QuorumSizes};
pub use tier_secret::TierSecret;
