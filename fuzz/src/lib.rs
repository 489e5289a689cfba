//! The questions the fuzz targets ask: those of `crates/wire/tests/it/mutate.rs`, which asks them on stable Rust.
//!
//! ```text
//! cargo +nightly fuzz run v2_request        also: v2_response, v3_request, v3_response, bodies, frames
//! cargo +nightly fuzz run digest_md5        also: plain, jaas (of `bindery-sasl`, with questions of their own)
//! cargo +nightly fuzz run stores            (of `bindery-tls`; crates/tls/testdata has stores to begin with)
//! ```
#![allow(missing_docs, reason = "shared test code")]

#[path = "../../crates/wire/tests/it/common/checks.rs"]
pub mod checks;
#[path = "../../crates/wire/tests/it/common/slow.rs"]
pub mod slow;
