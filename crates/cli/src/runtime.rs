//! Runtimes: of what serves (a bookie, a standalone cluster, a tierer), and of commands that send a handful of requests.

use crate::exit::Failure;
use tokio::runtime::{Builder, Runtime};

/// Tasks that a thread runs before it looks for what the sockets brought. With tokio's own 61, and slices of reads of up
/// to a millisecond, a request waits for tens of milliseconds before anybody knows that it is there.
const EVENT_INTERVAL: u32 = 4;

/// Starts one that serves.
///
/// # Errors
/// When the machine gives no threads.
pub fn start() -> Result<Runtime, Failure> {
    build(Builder::new_multi_thread().event_interval(EVENT_INTERVAL))
}

/// Starts one of several threads, for a command that moves data.
///
/// # Errors
/// When the machine gives no threads.
pub fn for_data() -> Result<Runtime, Failure> {
    build(&mut Builder::new_multi_thread())
}

/// Starts one on the calling thread, for a command that asks and prints.
///
/// # Errors
/// When the machine gives no descriptors.
pub fn single() -> Result<Runtime, Failure> {
    build(&mut Builder::new_current_thread())
}

fn build(builder: &mut Builder) -> Result<Runtime, Failure> {
    let built = builder.thread_name("bindery-net").enable_all().build();
    built.map_err(|error| Failure::new(format!("cannot start the runtime: {error}")))
}
