//! Auditor and worker on bookies in this process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod cluster;
mod repairing;
