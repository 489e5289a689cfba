//! The tierer: moves ledgers from bookies to object storage, and tells the bookies.
//!
//! # Parts
//! [`core`] decides: which ledgers, which objects, which bookies, when

pub mod core;
