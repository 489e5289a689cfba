//! The process, as the kernel counts it, under the names that Prometheus' clients give such numbers; and stand-ins for those of a JVM.

use bindery_metrics::{Kind, Row, Table, stand_in};

/// The kernel's numbers of this process, in bytes. Those that it does not give are left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Process {
    cpu_seconds: Option<f64>,
    start_seconds: Option<f64>,
    resident: Option<u64>,
    anonymous: Option<u64>,
    private: Option<u64>,
    virtual_bytes: Option<u64>,
    threads: Option<u64>,
    open_files: Option<u64>,
    open_files_max: Option<u64>,
}

impl Process {
    /// Reads `/proc`. Blocks, though on no disk.
    pub fn read() -> Process {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second();
        let mut process = Process::of(&text("/proc/self/stat"), &text("/proc/self/status"), ticks);
        let boot =
            text("/proc/stat").lines().find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok());
        process.start_seconds = process.start_seconds.zip(boot).map(|(since, boot)| since + boot);
        // The one that lists them is open, too.
        process.open_files =
            std::fs::read_dir("/proc/self/fd").ok().map(|files| (files.count() as u64).saturating_sub(1));
        process.open_files_max = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        process
    }

    /// From the text of `stat` and `status`; the start is since the boot.
    fn of(stat: &str, status: &str, ticks_per_second: u64) -> Process {
        // Behind the name, which may hold anything: state is the third field.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let ticks = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let seconds = |ticks: u64| ticks as f64 / ticks_per_second as f64;
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().trim_end_matches(" kB").parse::<u64>().ok()
        };
        let bytes = |name: &str| kib(name).map(|kib| kib << 10);
        Process {
            cpu_seconds: ticks(14).zip(ticks(15)).map(|(user, system)| seconds(user + system)),
            start_seconds: ticks(22).map(seconds),
            resident: bytes("VmRSS"),
            anonymous: bytes("RssAnon"),
            private: bytes("VmData"),
            virtual_bytes: bytes("VmSize"),
            threads: kib("Threads"),
            ..Process::default()
        }
    }
}

/// The names of Prometheus' own clients.
pub const PROCESS: Table<Process> = Table::new(&[
    Row::each(
        Kind::Counter,
        "process_cpu_seconds_total",
        &[],
        "Seconds of processor time of all threads.",
        |process, series| {
            if let Some(seconds) = process.cpu_seconds {
                series.real(&[], seconds);
            }
        },
    ),
    Row::each(
        Kind::Gauge,
        "process_start_time_seconds",
        &[],
        "When the process began, in seconds since 1970.",
        |process, series| {
            if let Some(seconds) = process.start_seconds {
                series.real(&[], seconds);
            }
        },
    ),
    Row::each(
        Kind::Gauge,
        "process_resident_memory_bytes",
        &[],
        "Memory that the process has (RSS).",
        |of, series| {
            of.resident.into_iter().for_each(|bytes| series.count(&[], bytes));
        },
    ),
    Row::each(
        Kind::Gauge,
        "process_virtual_memory_bytes",
        &[],
        "Addresses that the process has.",
        |of, series| {
            of.virtual_bytes.into_iter().for_each(|bytes| series.count(&[], bytes));
        },
    ),
    Row::each(Kind::Gauge, "process_open_fds", &[], "File descriptors in use.", |of, series| {
        of.open_files.into_iter().for_each(|count| series.count(&[], count));
    }),
    Row::each(Kind::Gauge, "process_max_fds", &[], "File descriptors that may be in use.", |of, series| {
        of.open_files_max.into_iter().for_each(|count| series.count(&[], count));
    }),
    stand_in(Row::each(
        Kind::Gauge,
        "jvm_memory_bytes_used",
        &["area"],
        "There is no JVM. heap: anonymous memory of the process, byte pools included; nonheap: the rest of its resident memory (program, \
         mapped files).",
        |of, series| {
            if let (Some(resident), Some(anonymous)) = (of.resident, of.anonymous) {
                series.count(&[("area", "heap")], anonymous);
                series.count(&[("area", "nonheap")], resident.saturating_sub(anonymous));
            }
        },
    )),
    stand_in(Row::each(
        Kind::Gauge,
        "jvm_memory_bytes_committed",
        &["area"],
        "There is no JVM. heap: private memory for which the process has asked the kernel, used or not.",
        |of, series| of.private.into_iter().for_each(|bytes| series.count(&[("area", "heap")], bytes)),
    )),
    stand_in(Row::each(
        Kind::Gauge,
        "jvm_threads_current",
        &[],
        "There is no JVM: threads of the process.",
        |of, series| of.threads.into_iter().for_each(|count| series.count(&[], count)),
    )),
]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        let fields: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let stat = format!("7 (a) 1 b)) S {}", fields.join(" "));
        let status = "Name:\ta)\nVmSize:\t    9000 kB\nVmRSS:\t    200 kB\nRssAnon:\t  150 kB\nVmData:\t700 kB\nThreads:\t12\n";
        let process = Process::of(&stat, status, 100);
        assert_eq!((process.cpu_seconds, process.start_seconds), (Some(0.29), Some(0.22)));
        assert_eq!((process.resident, process.anonymous), (Some(200 << 10), Some(150 << 10)));
        assert_eq!((process.private, process.threads), (Some(700 << 10), Some(12)));
        assert_eq!(Process::of("", "", 100), Process::default());
    }

    #[test]
    fn this_process_has_used_time_memory_and_files() {
        let process = Process::read();
        assert!(process.cpu_seconds.is_some() && process.resident > Some(1 << 20), "{process:?}");
        assert!(process.open_files > Some(1) && process.open_files_max >= process.open_files, "{process:?}");
        assert!(process.start_seconds > Some(1e9), "{process:?}");
    }
}
