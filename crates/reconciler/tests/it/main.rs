//! The tierer against real bookies and a local directory, with a store that fails and bookies that keep registers in memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod faulty;
mod rewrite;
mod tiering;
mod upkeep;
