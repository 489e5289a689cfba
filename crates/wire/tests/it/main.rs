//! The codecs against captures of the Java client and server, generated messages and mutations of both.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod golden_java;
mod mutate;
mod reconcile;
mod v2;
mod v3;
