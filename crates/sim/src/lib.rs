//! Simulated disk, simulator and checkers
