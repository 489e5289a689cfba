//! One bookie's cores on a simulated disk, driven by one seed.
//!
//! # Data flow
//! ```text
//! seed -> Profile (limits, faults) -> steps: requests, cut | write | finish, flush, crash, stop, damage
//!                                        |                                   |
//!                                        v                                   v
//!                                     Ghost (what clients were told) <- checks at every answer and after every restart
//! ```
//!
//! # Checked here
//! IB1 to IB11 and IB14 of `docs/reference/reliability.md`: the ghost's checks, plus: a reopened durable image holds
//! everything acknowledged (IB1), the fence of every answered fence request (IB4), a second restart changes nothing
//! (IB11, IB25), pools are empty after a stop (IB20).

mod ghost;
mod run;

pub use ghost::{Check, Ghost, Violation};
pub use run::{Outcome, Profile, Report, run};
