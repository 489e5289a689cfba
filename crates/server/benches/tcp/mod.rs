//! What the benchmarks over loopback share: a load driver, the bare loop, a bookie in process.
#![allow(dead_code, reason = "each benchmark uses a part")]

pub mod bookie;
pub mod driver;
pub mod looped;

/// Processor time of the calling thread so far, in seconds.
pub fn thread_cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
}
