//! Numbers that are measured: one row is handle, name, help and exposition at once.
//!
//! # Data flow
//! ```text
//! hot paths -> Counter, Gauge, Summary, Log2Histogram (fields of a struct that numbers! made)
//!                                      \
//! other state, read at a scrape --------> Table of Rows -> Exposition -> text
//!                                              \---------> About: the reference of all names
//! ```
//!
//! # Invariants
//! 1. Each exposed series has a row: [`Exposition`] takes series from [`Table`]s only, so each name has its help.
//! 2. Nothing is looked up to record, and nothing is global: a process may have several structs of handles.
//! 3. Names of BookKeeper keep its shapes (protocol reference, section 8.2).

mod about;
mod counter;
mod exposition;
mod histogram;
mod summary;
mod table;

pub use about::{About, Kind};
pub use counter::{Counter, Gauge};
pub use exposition::{Exposition, Series};
pub use histogram::Log2Histogram;
pub use summary::{Summary, SummarySnapshot};
pub use table::{Handle, Row, Table, stand_in};
