//! The object store: opened by URL, with time limits of our own.
//!
//! # Data flow
//! ```text
//! "s3://bucket/prefix" ─► StoreUrl ─► open ─► Store (object_store behind it) ─► check: what it promises, tried out
//! ```
//!
//! # Invariants
//! 1. No request waits longer than [`StoreOptions::request_timeout`], retries included [`StoreOptions::retry_timeout`].
//! 2. A local directory is synced before a write counts, its parents too.
//! 3. A store that lets two creators of one key win, or loses an update, is refused by [`check`]: commits rest on it.
//! 4. Neither keys nor errors hold credentials.
//!
//! # Not here   what is stored ([`crate::object`])

mod check;
mod clusters;
mod open;
#[cfg(test)]
mod tests;
mod url;
mod written;

pub use check::{Check, CheckError, Checked, Verdict, check};
pub use clusters::clusters;
pub use open::{OpenError, Store, StoreError, StoreOptions, open};
pub use url::{InvalidStoreUrl, StoreKind, StoreUrl};
pub use written::{Arrived, Written};
