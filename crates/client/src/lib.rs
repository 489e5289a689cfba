//! The ledger client.

pub mod transport;
