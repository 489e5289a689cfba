//! Models of the request path's concurrent parts: the very sources of the byte budget (`flow::budget`), a connection's
//! outbox (`server::connection::output::outbox`), and the queue of adds that wait for room (`engine::admission_queue`, with its
//! signal), with
//! their locks and atomics exchanged for those of a scheduler that tries many interleavings (shuttle).
//!
//! # Data flow
//! ```text
//! sources --(build.rs: locks exchanged; one planted bug or none)--> variants --> scenarios --> tests/models.rs
//! ```
//!
//! # Invariants
//! 1. A scenario knows no time: nothing in it ends by a time-out, so a wake-up that is lost is a deadlock, and the
//!    scheduler reports it.
//! 2. Scenarios are proven to check what they promise: each planted bug is found by the unchanged scenario.
//!
//! # Limits
//! Interleavings are sequentially consistent: the effects of weaker memory are not tried. A switch can happen at each
//! lock, unlock, wait and atomic access, and not inside tokio's primitives, which have models of their own.

pub mod atomic;
pub mod lock;
pub mod world;

include!(concat!(env!("OUT_DIR"), "/variants.rs"));
