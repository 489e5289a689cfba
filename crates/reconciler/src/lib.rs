//! The tierer: moves ledgers from bookies to object storage, and tells the bookies.
//!
//! # Parts
//! [`core`] decides: which ledgers, which objects, which bookies, when
//! [`assembly`] decides for one object: which ledger is read, what goes in, when it is finished

pub mod assembly;
pub mod core;
