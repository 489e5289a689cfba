//! The kernel's figures for this process, and the page cache.

use rustix::fs::Advice;
use std::path::Path;

/// CPU time of all threads, in microseconds.
pub fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").ok();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_task = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    let running: f64 = tasks.filter_map(|task| of_task(task.path())).sum();
    if stat.is_some() && running > 0.0 {
        return running / 1e3;
    }
    // Clock ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").expect("there is /proc");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) * 1e4
}

/// Anonymous memory, in MiB.
pub fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is /proc");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a kernel since 4.5");
    let kib: f64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kib / 1024.0
}

fn each_file(dir: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(dir).expect("the directory is there").flatten() {
        let path = entry.path();
        if path.is_dir() { each_file(&path, visit) } else { visit(&path) }
    }
}

/// Bytes of all files.
pub fn bytes_below(dir: &Path) -> u64 {
    let mut bytes = 0;
    each_file(dir, &mut |path| bytes += std::fs::metadata(path).map_or(0, |about| about.len()));
    bytes
}

/// Makes the kernel forget what it holds of these files.
pub fn drop_pages(dir: &Path) {
    each_file(dir, &mut |path| {
        let file = std::fs::File::open(path).expect("the file is there");
        file.sync_all().expect("it syncs");
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("it may be forgotten");
    });
}

/// Percentiles of durations in nanoseconds, in microseconds: median, p99, maximum.
pub fn percentiles(mut ns: Vec<u64>) -> (f64, f64, f64) {
    ns.sort_unstable();
    let at = |share: f64| ns[((ns.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    (at(0.5), at(0.99), at(1.0))
}
