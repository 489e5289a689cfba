//! The object store: opened by URL, with time limits of our own.
//!
//! # Data flow
//! ```text
//! "s3://bucket/prefix" ─► StoreUrl ─► open ─► Store (object_store behind it) ─► check: what it promises, tried out
//! ```
//!
//! # Invariants
//! 1. No request waits longer than [`StoreOptions::request_timeout`], retries included [`StoreOptions::retry_timeout`].
//! 2. A local directory is synced before a write counts, its parents too. One that hangs takes a bounded number of threads.
//! 3. A store that lets two creators of one key win is refused by [`check`]: commits rest on it. It stays refused, in this process and
//!    in others, until an operator clears it ([`admit`]).
//! 4. Neither keys nor errors hold credentials.
//!
//! # Not here   what is stored ([`crate::object`])

mod check;
mod clusters;
mod error;
mod local;
mod open;
mod patient;
mod promise;
mod read_ahead;
#[cfg(test)]
mod tests;
mod url;
mod written;

pub use check::{Check, CheckError, CheckOptions, Checked, Verdict, check};
pub use clusters::clusters;
pub use error::StoreError;
pub use open::{OpenError, Store, StoreOptions, open};
pub use promise::{Broken, Gate, admit, forgive, known};
pub use url::{InvalidStoreUrl, StoreKind, StoreUrl};
pub use written::{Arrived, Written};
