//! Responses of a connection, from an answer to the kernel.
//!
//! # Data flow
//! ```text
//! engine ─► completion ─┐
//! ingest, reads ────────┴─► outbox: segments, windows, promised answers ─► sender ─► transport
//!                                 stall: drop responses or close ◄── peer_time
//! ```

pub(super) mod completion;
pub(super) mod outbox;
pub(super) mod peer_time;
pub(super) mod sender;
pub(super) mod stall;
