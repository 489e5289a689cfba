//! The concurrent parts of the request path under a scheduler.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod models;
