//! The simulator: a disk that loses and damages, the real bookie cores on it, and checkers that own the truth.
//!
//! Everything runs in one thread from one seed: the same seed gives the same run. The cores are the ones the binary
//! constructs ([`bindery_engine::Machine`]); only the disk, the clock and the order of calls are the simulator's.

pub mod bookie;
pub mod disk;
