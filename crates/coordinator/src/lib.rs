//! An embedded coordinator.
