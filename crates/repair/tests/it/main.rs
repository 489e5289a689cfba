//! Auditor and worker on bookies in this process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "../../../client/tests/it/ledgers/bookies.rs"]
mod bookies;
mod checking;
mod cluster;
mod draining;
mod healing;
mod many;
mod repairing;
mod requests;
mod tiered;
