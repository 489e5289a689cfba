//! The client against real bookies and against peers that do what no bookie should.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledgers;
mod newcomer;
mod transport;
