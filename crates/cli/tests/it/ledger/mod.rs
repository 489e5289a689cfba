//! `bindery ledger`, `bookie list`, `bench` and the generated texts as a shell sees them: data, messages, exit codes.
//! Each test that needs a cluster starts a standalone one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes on real files, in real time")]

mod append;
mod bench;
mod metadata;
mod offline;
mod over_admin;
mod placement;
mod read;
mod recover;
pub mod shell;
mod verify;
