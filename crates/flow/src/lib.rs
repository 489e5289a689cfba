//! Byte budgets and owned permits: how memory and work are bounded. Also [`AdaptiveRate`], for background work that gives way.
//!
//! A [`ByteBudget`] is a named number of bytes. Code that wants to hold memory of a pool first takes a [`Permit`] for
//! it; the permit travels with the memory and gives the bytes back when it is dropped, on every path, once.
//!
//! # Data flow
//! ```text
//! acquire(bytes) -> [FIFO of waiters] -> Permit -> split / merge / shrink_to -> drop -> next waiter
//! ```
//!
//! # Invariants
//! 1. `used + available == capacity` at all times; used is the sum of all living permits.
//! 2. Waiters are served in the order they came. A small request never passes a large one that waits, so a large one
//!    cannot starve; `try_acquire` fails while anybody waits.
//! 3. A waiter that goes away (dropped future, deadline) leaves nothing behind, also when its grant was under way.
//!
//! # Limits
//! The number of waiters is bounded by the number of tasks that can await: one per connection in the server.

mod adaptive_rate;
mod budget;

pub use adaptive_rate::AdaptiveRate;
pub use budget::{AcquireError, BudgetGauge, BudgetWaits, ByteBudget, Permit};
