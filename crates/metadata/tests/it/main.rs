//! Codecs, drivers, registration and transfer of metadata.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod codec_properties;
mod cookie_checks;
mod java_vectors;
mod memory;
mod migration;
mod oxia;
mod registration;
mod transfer;
mod zookeeper;
mod zookeeper_faults;
mod zookeeper_secured;
