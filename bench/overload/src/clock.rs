//! One clock for all threads of a run, in nanoseconds since it began.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static BEGIN: OnceLock<Instant> = OnceLock::new();

/// One second.
pub const SECOND: u64 = 1_000_000_000;
/// One millisecond.
pub const MILLI: u64 = 1_000_000;

/// Nanoseconds since the first call.
pub fn now() -> u64 {
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Sleeps until `due`.
pub fn sleep_until(due: u64) {
    let now = now();
    if due > now {
        std::thread::sleep(Duration::from_nanos(due - now));
    }
}

/// Seconds as nanoseconds.
pub fn seconds(seconds: f64) -> u64 {
    (seconds * SECOND as f64) as u64
}
