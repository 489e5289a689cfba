//! Connections, lifecycle, admin HTTP and metrics of a bookie.
//!
//! The server owns sockets and answers; the engine owns ledgers, memory for entries and disks. Between them go batches
//! of adds, waiters and look-ups (see [`connection`]). [`bookie`] is the life of the whole.

pub mod admin;
pub mod auth;
pub mod bookie;
pub mod cluster_record;
pub mod config;
pub mod connection;
pub mod data_dirs;
pub mod descriptors;
pub mod disks;
pub mod draining;
pub mod flow_view;
pub mod health;
pub mod io_pool;
pub mod latch;
pub mod limits;
pub mod listener;
pub mod log_limit;
pub mod maintenance;
pub mod memory;
pub mod metadata_check;
pub mod metrics;
pub mod pressure;
pub mod read_class;
mod reload;
pub mod shares;
pub mod slow_log;
pub mod sockets;
pub mod tenants;
pub mod tier;
pub mod tls;
pub mod turns;
pub mod volumes;
mod yielding;

pub use connection::shared;

/// For unit tests, as integration tests have it.
#[cfg(test)]
#[path = "../tests/it/common/certificates.rs"]
mod certificates;
