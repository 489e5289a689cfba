//! The questions the fuzz targets ask: those of `crates/wire/tests/mutate.rs`, which asks them on stable Rust.
//!
//! ```text
//! cargo +nightly fuzz run v2_request        also: v2_response, v3_request, frames
//! ```
#![allow(missing_docs, reason = "shared test code")]

#[path = "../../crates/wire/tests/common/checks.rs"]
pub mod checks;
#[path = "../../crates/wire/tests/common/slow.rs"]
pub mod slow;
