//! What the tests of the server share: a whole bookie with its metadata in memory ([`whole`]), the connections alone in
//! front of a real engine ([`wire`]), and the frames that both are sent ([`frames`]).

#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod certificates;
pub mod frames;
pub mod users;
pub mod whole;
pub mod wire;

use std::time::Duration;

/// Longer than anything takes that ends at all.
pub const PATIENCE: Duration = Duration::from_secs(120);
