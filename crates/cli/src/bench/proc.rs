//! The kernel's figures for processes: CPU time, memory, bytes written (Linux, `/proc`).

use super::latency::round;
use crate::exit::Failure;
use serde::Serialize;

/// `sysconf(_SC_CLK_TCK)`: 100 on every Linux since 2.6.
const TICKS_PER_SECOND: f64 = 100.0;

/// The bookies whose processes were named, and this process.
pub struct Watched {
    bookies: Vec<u32>,
}

/// Counters at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Counters {
    client_cpu_s: f64,
    bookie_cpu_s: f64,
    bookie_written_mb: f64,
}

/// Resources used between two moments. The fields of bookies are there only if their processes were named.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Used {
    pub client_cpu_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_cpu_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_cpu_cores: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_disk_write_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_rss_mib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bookie_hwm_mib: Option<f64>,
}

impl Watched {
    /// Fails for a process that is not there: a wrong id must not become a wrong figure.
    pub fn new(bookies: &[u32]) -> Result<Watched, Failure> {
        for pid in bookies {
            if cpu_s(&pid.to_string()).is_none() {
                return Err(Failure::usage(format!(
                    "--bookie-pids: there is no process {pid} on this machine"
                )));
            }
        }
        Ok(Watched { bookies: bookies.to_vec() })
    }

    /// A figure summed over the bookies. One whose figure cannot be read counts as 0.
    fn sum(&self, of: impl Fn(&str) -> Option<f64>) -> f64 {
        self.bookies.iter().filter_map(|pid| of(&pid.to_string())).sum()
    }

    /// Resident memory of the bookies now.
    pub fn rss_mib(&self) -> f64 {
        self.sum(|pid| field(pid, "status", "VmRSS:").map(|kib| kib / 1024.0))
    }

    /// The counters now.
    pub fn counters(&self) -> Counters {
        Counters {
            client_cpu_s: cpu_s("self").unwrap_or(0.0),
            bookie_cpu_s: self.sum(cpu_s),
            bookie_written_mb: self.sum(|pid| field(pid, "io", "write_bytes:").map(|bytes| bytes / 1e6)),
        }
    }

    /// Resources used since `before`, `elapsed_s` ago.
    pub fn used(&self, before: Counters, elapsed_s: f64) -> Used {
        let now = self.counters();
        let bookie = |value: f64| (!self.bookies.is_empty()).then_some(round(value));
        let cpu = now.bookie_cpu_s - before.bookie_cpu_s;
        let memory = |name: &str| self.sum(|pid| field(pid, "status", name).map(|kib| kib / 1024.0));
        Used {
            client_cpu_s: round(now.client_cpu_s - before.client_cpu_s),
            bookie_cpu_s: bookie(cpu),
            bookie_cpu_cores: bookie(cpu / elapsed_s),
            bookie_disk_write_mb: bookie(now.bookie_written_mb - before.bookie_written_mb),
            bookie_rss_mib: bookie(memory("VmRSS:")),
            bookie_hwm_mib: bookie(memory("VmHWM:")),
        }
    }
}

/// User and system time of all threads of a process, in seconds.
fn cpu_s(pid: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

/// The number after `name` in `/proc/PID/FILE`, in the kernel's unit: kB in `status`, bytes in `io`. `None` if the file cannot be read
/// (`io` of another user's process, for example) or has no such line.
fn field(pid: &str, file: &str, name: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_understood_and_a_wrong_process_is_refused() {
        let own = std::process::id();
        let watched = Watched::new(&[own]).unwrap();
        let before = watched.counters();
        let mut sum = 0u64;
        // Ends, because both count what this loop takes.
        let used = loop {
            let used = watched.used(before, 1.0);
            if used.client_cpu_s >= 0.05 && used.bookie_cpu_s.unwrap() >= 0.05 {
                break used;
            }
            (0..1_000_000).for_each(|n| sum = std::hint::black_box(sum ^ n));
        };
        assert!(used.bookie_rss_mib.unwrap() > 0.5 && used.bookie_hwm_mib >= used.bookie_rss_mib, "{used:?}");
        assert!(Watched::new(&[u32::MAX]).is_err());
        assert_eq!(Watched::new(&[]).unwrap().used(before, 1.0).bookie_cpu_s, None);
    }
}
