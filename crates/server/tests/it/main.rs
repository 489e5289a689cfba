//! Bookies and connections as their peers see them; each module says which part it tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod absence;
mod admin_port;
mod age;
mod auth;
mod auth_files;
mod auth_tls;
mod batch_reads;
mod batching;
mod bookie_endpoints;
mod care;
mod cluster_endpoints;
mod comeback;
mod common;
mod console;
mod data_path;
mod disks;
mod flow;
mod garbage;
mod hung_disk;
mod ledger_endpoints;
mod lifecycle;
mod metrics;
mod openapi;
mod order;
mod ranges;
mod scripts;
mod stalled;
mod stalls;
mod storm;
mod tenants;
mod tier;
mod tls;
mod tls_hostile;
mod tls_reload;
mod wire;
