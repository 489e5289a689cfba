//! The connections to bookies, against a real bookie and against peers that do what no bookie should.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bookie;
mod hooks;
mod peer;
mod reconcile;
mod soak;
mod strides;
mod support;
mod tls;
