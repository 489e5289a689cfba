//! The whole engine on real files: faults of its disks, several journals, restarts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod disk_faults;
mod faults;
mod ingest;
mod journals;
mod restart;
