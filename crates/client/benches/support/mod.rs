//! What the benchmarks of the client share.

use std::time::Duration;

/// What all threads of this process used so far, in steps of 10 ms.
pub fn cpu_used() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "a file of the kernel's, read on a thread of its own")]
    let stat = String::from_utf8(std::fs::read("/proc/self/stat").unwrap()).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}
