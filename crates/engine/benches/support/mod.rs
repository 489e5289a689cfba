//! What the storage benchmarks share: arguments, a histogram, the process's own counters, a load driver, tables.
#![allow(dead_code, reason = "each benchmark uses a part")]

pub mod bare;
pub mod driver;
pub mod machine;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of a benchmark. Without `--seconds` it runs for a moment: that is what `cargo test` does.
pub struct Args {
    all: Vec<String>,
    /// Length of one round of one case.
    pub seconds: f64,
    /// Alternating rounds.
    pub rounds: usize,
    /// Where files go. Removed at the end.
    pub dir: PathBuf,
    /// Only to see that it works.
    pub is_smoke: bool,
}

impl Args {
    pub fn parse(name: &str) -> Args {
        let all: Vec<String> = std::env::args().collect();
        let value = |name: &str| all.iter().position(|a| a == name).and_then(|i| all.get(i + 1));
        let seconds = value("--seconds").map(|s| s.parse().unwrap());
        let rounds = value("--rounds").map_or(1, |s| s.parse().unwrap());
        let parent = value("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
        let dir = parent.join(format!("bindery-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Args { seconds: seconds.unwrap_or(0.02), rounds, dir, is_smoke: seconds.is_none(), all }
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        self.all.iter().position(|a| a == name).and_then(|i| self.all.get(i + 1)).map(String::as_str)
    }

    /// `full`, or `smoke` when it is only to see that it works.
    pub fn size<T>(&self, full: T, smoke: T) -> T {
        if self.is_smoke { smoke } else { full }
    }
}

impl Drop for Args {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Latencies in nanoseconds, with a precision of 1/64. Of fixed size: no fresh page during a run.
#[derive(Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u64,
    max: u64,
}

const STEPS: u64 = 64;

impl Histogram {
    pub fn new() -> Histogram {
        // Written, so that its pages are there.
        let mut counts = vec![1; (STEPS * 60) as usize];
        counts.fill(0);
        Histogram { counts, total: 0, sum: 0, max: 0 }
    }

    fn slot(ns: u64) -> usize {
        if ns < STEPS {
            return ns as usize;
        }
        let power = ns.ilog2() - STEPS.ilog2();
        (u64::from(power) * STEPS + (ns >> power)) as usize
    }

    pub fn record(&mut self, ns: u64, times: u64) {
        self.counts[Self::slot(ns)] += times;
        self.total += times;
        self.sum += ns * times;
        self.max = self.max.max(ns);
    }

    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.total += other.total;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.total, self.sum, self.max) = (0, 0, 0);
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Microseconds.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / 1e3 / self.total.max(1) as f64
    }

    /// Microseconds.
    pub fn max(&self) -> f64 {
        self.max as f64 / 1e3
    }

    /// Microseconds; 0 when nothing was recorded.
    pub fn at(&self, share: f64) -> f64 {
        let rank = ((self.total as f64 * share).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                let slot = slot as u64;
                let ns = match slot / STEPS {
                    0 => slot,
                    power => (STEPS + slot % STEPS) << (power - 1),
                };
                return ns.min(self.max) as f64 / 1e3;
            }
        }
        0.0
    }
}

/// Processor time of the whole process, load generator included.
pub fn cpu() -> Duration {
    // utime and stime in clock ticks of 10 ms; threads that ended count.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// Bytes that this process made the kernel send to the disk.
pub fn disk_bytes_written() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text.lines().find(|line| line.starts_with("write_bytes")).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Resident memory in MiB.
pub fn resident_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0 / f64::from(1 << 20)
}

/// Waits for something that happens soon; panics when it does not within a minute.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    if values.is_empty() {
        return 0.0;
    }
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

/// Three digits.
pub fn short(value: f64) -> String {
    let digits = if value >= 100.0 { 0 } else { 2 - value.max(1.0).log10() as usize };
    format!("{value:.digits$}")
}

/// A row of a Markdown table.
pub fn row(cells: impl IntoIterator<Item = String>) {
    println!("| {} |", cells.into_iter().collect::<Vec<_>>().join(" | "));
}

/// The head of a Markdown table.
pub fn head(cells: &[&str]) {
    row(cells.iter().map(|cell| (*cell).to_owned()));
    println!("|{}", "---|".repeat(cells.len()));
}
