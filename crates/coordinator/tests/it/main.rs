//! The coordinator as clients of the ZooKeeper protocol see it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod kill;
mod killed;
mod oxia;
mod oxia_driver;
mod serving;
