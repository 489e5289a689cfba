//! Settings of a bookie: every key of BookKeeper's `bk_server.conf` and our own, and what becomes of a file, flags and the
//! environment.
//!
//! ```text
//! sources: a file, variables, this machine
//!    │
//! table: a row for each key puts its value into the draft    ◄── flags
//!    │
//! rules: what several keys say together
//!    │
//! settings: the settings that a bookie starts with, or all the faults in them
//! ```
//!
//! `bookie_security`, `tier` and `repair` are the settings of what is beside the bookie in its process. Absent: commands, and files other
//! than the configuration's.

pub mod bookie_security;
pub mod parse;
pub mod repair;
pub mod rules;
pub mod settings;
pub mod sources;
pub mod table;
pub mod tier;
