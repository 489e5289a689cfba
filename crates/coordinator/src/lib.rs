//! An embedded coordinator.

pub mod conformance;
