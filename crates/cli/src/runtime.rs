//! The runtime that serves: a bookie's, and that of a standalone cluster.

use crate::exit::Failure;

/// Tasks that a thread runs before it looks for what the sockets brought. With tokio's own 61, and slices of reads of up
/// to a millisecond, a request waits for tens of milliseconds before anybody knows that it is there.
const EVENT_INTERVAL: u32 = 4;

/// Starts it.
///
/// # Errors
/// When the machine gives no threads.
pub fn start() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .thread_name("bindery-net")
        .event_interval(EVENT_INTERVAL)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start the runtime: {error}")))
}
