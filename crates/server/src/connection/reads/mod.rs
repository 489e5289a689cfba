//! Reads of a connection, from a decoded request to the bytes of its response.
//!
//! # Data flow
//! ```text
//! ingest ─► queue ─► bytes of the pool (fair_share) ─► load ─┬─ memory: now
//!                                                            ├─ disk: disk_queue ─► I/O thread
//!                                                            └─ object storage: tier fetcher
//! long_poll: reads that wait for an entry to be confirmed    └─► output
//! ```
//! The sender ([`super::output::sender`]) drives it: it alone takes reads out of the queue.

pub(super) mod disk_queue;
pub(super) mod fair_share;
pub(super) mod held;
pub(super) mod load;
pub(super) mod long_poll;
pub(super) mod queue;
pub(super) mod queue_memory;
