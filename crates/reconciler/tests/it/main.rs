//! The tierer against real bookies and a local directory, with a store that fails and bookies that keep registers in memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../client/tests/it/ledgers/bookies.rs"]
mod bookies;
mod cluster;
mod faulty;
mod joins;
mod rewrite;
mod sharing;
mod tiering;
mod upkeep;
