//! What is decided, without I/O.

pub mod absence;
pub mod audit;
pub mod auditor;
pub mod check;
pub mod danger;
pub mod drain;
pub mod ledger;
pub mod pace;
pub mod queue;
pub mod safety;
pub mod shares;
pub mod tiered;

#[cfg(test)]
mod model;
