//! The tierer: moves ledgers from bookies to object storage, and tells the bookies.
//!
//! # Parts
//! [`core`] decides: which ledgers, which objects, which bookies, when
//! [`assembly`] decides for one object: which ledger is read, what goes in, when it is finished
//! [`Tierer`] is the shell around both: reads from bookies, writes to the store and the catalogue

pub mod assembly;
pub mod core;
mod shell;

pub use shell::{
    Components, CostReport, DurationsReport, LagReport, LedgerReport, MEMORY_MIN, Prices, RequestsReport,
    Shown, StageReport, StartError, TierReport, Tierer, TiererConfig, TiererHandle,
};
