//! Looks at the bookie's process and the machine from outside while a scenario runs.

use crate::args::Target;
use crate::clock::{MILLI, SECOND, now};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The kernel's unit of process times on every Linux.
const TICKS_PER_S: f64 = 100.0;
const PERIOD: u64 = 100 * MILLI;

/// One look.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// When.
    pub at: u64,
    /// Resident bytes of the bookie.
    pub rss: u64,
    /// CPU seconds of the bookie so far.
    pub cpu: f64,
    /// CPU seconds of this program so far.
    pub own_cpu: f64,
    /// CPU seconds of the whole machine so far, without idle and waiting.
    pub all_cpu: f64,
    /// Bytes in TCP buffers of the whole machine.
    pub tcp: u64,
    /// Bytes in pools that hold what peers have not taken or not finished; none of a Java bookie.
    pub pools: Option<u64>,
}

/// A thread of the bookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadLook {
    /// Its name, 15 letters of it.
    pub name: String,
    /// The kernel function it waits in; empty when it runs.
    pub wchan: String,
    /// Context switches of both kinds.
    pub switches: u64,
    /// Those where it gave the processor away by itself: it waited, and was woken.
    pub voluntary: u64,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(label)).map(str::trim)
}

/// Resident bytes of a process.
pub fn rss(pid: u32) -> u64 {
    let status = read(&format!("/proc/{pid}/status"));
    let kib = after(&status, "VmRSS:").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The most bytes that were ever resident of a process.
pub fn rss_peak(pid: u32) -> u64 {
    let status = read(&format!("/proc/{pid}/status"));
    let kib = after(&status, "VmHWM:").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// CPU seconds of a process.
pub fn cpu(pid: &str) -> f64 {
    let stat = read(&format!("/proc/{pid}/stat"));
    // the name may hold spaces
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0.0 };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_S
}

fn all_cpu() -> f64 {
    let stat = read("/proc/stat");
    let line = after(&stat, "cpu ").unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    // user, nice, system, and from irq to steal
    let busy: u64 =
        fields.iter().enumerate().filter(|(at, _)| *at < 8 && *at != 3 && *at != 4).map(|(_, n)| n).sum();
    busy as f64 / TICKS_PER_S
}

fn tcp_bytes() -> u64 {
    let text = read("/proc/net/sockstat");
    let line = after(&text, "TCP:").unwrap_or_default();
    let pages = line.split_whitespace().skip_while(|word| *word != "mem").nth(1);
    pages.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Bytes that the kernel keeps for the bookie's side of its connections: sent and not taken, received and not read.
pub fn socket_bytes(port: u16) -> Option<(u64, u64)> {
    let out = Command::new("ss")
        .args(["-tmnH", &format!("sport = :{port}")])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let (mut sent, mut received) = (0, 0);
    for part in String::from_utf8_lossy(&out.stdout).split("skmem:(").skip(1) {
        for field in part.split(')').next().unwrap_or_default().split(',') {
            let number = |prefix: &str| field.strip_prefix(prefix)?.parse::<u64>().ok();
            if field.starts_with("rb") || field.starts_with("tb") || field.starts_with("bl") {
                continue;
            }
            received += number("r").unwrap_or(0);
            sent += number("w").unwrap_or(0);
        }
    }
    Some((sent, received))
}

/// A GET, within `wait`; `None` when there was no answer of status 200.
pub fn get(address: SocketAddr, path: &str, wait: Duration) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, wait).ok()?;
    stream.set_read_timeout(Some(wait)).ok()?;
    stream.set_write_timeout(Some(wait)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    head.lines().next()?.contains(" 200").then(|| body.to_owned())
}

/// Gauges and counters by name with labels.
pub fn metrics(target: &Target) -> Option<BTreeMap<String, f64>> {
    let text = get(target.admin?, "/metrics", Duration::from_secs(2))?;
    let pair = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    Some(text.lines().filter(|line| !line.starts_with('#')).filter_map(pair).collect())
}

/// Pools that are empty when no peer is there: not the write cache, the index, the cache, nor fixed costs.
const LASTING_POOLS: [&str; 6] = ["write", "index", "cache", "connections", "background", "libraries"];

/// Used bytes of each pool that must be empty without peers.
pub fn pools(target: &Target) -> Option<BTreeMap<String, u64>> {
    if target.is_java {
        return None;
    }
    let pool = |(name, value): (String, f64)| {
        let pool = name.strip_prefix("bindery_pool_used_bytes{pool=\"")?.split('"').next()?.to_owned();
        (!LASTING_POOLS.contains(&pool.as_str())).then_some((pool, value as u64))
    };
    Some(metrics(target)?.into_iter().filter_map(pool).collect())
}

/// All threads of a process.
pub fn threads(pid: u32) -> BTreeMap<u32, ThreadLook> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeMap::new() };
    let ids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    ids.map(|id| {
        let at = format!("/proc/{pid}/task/{id}");
        let status = read(&format!("{at}/status"));
        let count = |label| after(&status, label).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let wchan = read(&format!("{at}/wchan"));
        let look = ThreadLook {
            name: read(&format!("{at}/comm")).trim().to_owned(),
            wchan: if wchan == "0" { String::new() } else { wchan },
            switches: count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:"),
            voluntary: count("voluntary_ctxt_switches:"),
        };
        (id, look)
    })
    .collect()
}

/// Switches in each half of the calm time that make a pool of threads one that always has something to do.
const SWITCHES_MIN: u64 = 10;

/// Threads of pools that were at work all the time before, of which no thread runs at all between two looks during a
/// stall. A pool is all threads of one name, numbers aside: that one thread of several has nothing to do says nothing.
pub fn stopped(
    before: &[BTreeMap<u32, ThreadLook>; 3],
    during: &[BTreeMap<u32, ThreadLook>; 2],
) -> Vec<ThreadLook> {
    type Look = BTreeMap<u32, ThreadLook>;
    let pool =
        |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit() || "-#: ".contains(c)).to_owned();
    let moved = |from: &Look, to: &Look| {
        let mut pools: BTreeMap<String, u64> = BTreeMap::new();
        for (id, look) in to {
            let before = from.get(id).map_or(0, |before| before.switches);
            *pools.entry(pool(&look.name)).or_default() += look.switches.saturating_sub(before);
        }
        pools
    };
    let calm = [moved(&before[0], &before[1]), moved(&before[1], &before[2])];
    let stalled = moved(&during[0], &during[1]);
    let is_stopped = |look: &&ThreadLook| {
        let name = pool(&look.name);
        calm.iter().all(|half| half.get(&name) >= Some(&SWITCHES_MIN)) && stalled.get(&name) == Some(&0)
    };
    during[1].values().filter(is_stopped).cloned().collect()
}

/// Threads that wait in the kernel for a peer to take bytes.
pub fn waits_for_peer(threads: &BTreeMap<u32, ThreadLook>) -> usize {
    let waits = |look: &&ThreadLook| {
        ["sk_stream_wait_memory", "tcp_sendmsg", "sock_sendmsg", "wait_woken"]
            .iter()
            .any(|f| look.wchan.contains(f))
    };
    threads.values().filter(waits).count()
}

/// How many threads of a Java bookie wait in a semaphore, or for a peer to take an answer; `None` without a dump.
pub fn java_stacks(pid: u32) -> Option<(usize, usize, Vec<String>)> {
    let out = Command::new("timeout")
        .args(["10", "jstack", &pid.to_string()])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !text.contains("Full thread dump") {
        return None;
    }
    let (mut acquire, mut send, mut names) = (0, 0, Vec::new());
    for thread in text.split("\n\"").skip(1) {
        let is_acquire = thread.contains("Semaphore.acquire");
        let is_send = thread.contains("sendResponseAndWait");
        acquire += usize::from(is_acquire);
        send += usize::from(is_send && !is_acquire);
        if is_acquire || is_send {
            names.push(thread.split('"').next().unwrap_or_default().to_owned());
        }
    }
    Some((acquire, send, names))
}

/// A thread that looks every 100 ms.
pub struct Watch {
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts sampling. Metrics are read every fifth time, so that reading them has no visible cost.
    pub fn start(target: &Target) -> Watch {
        let (samples, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (into, until, target) = (Arc::clone(&samples), Arc::clone(&stop), target.clone());
        let thread = std::thread::spawn(move || {
            let mut count = 0u64;
            let mut due = now();
            while !until.load(Ordering::Relaxed) {
                let mut sample = look(&target);
                if !target.is_java && count.is_multiple_of(5) {
                    sample.pools = pools(&target).map(|pools| pools.values().sum());
                }
                if let Ok(mut samples) = into.lock() {
                    samples.push(sample);
                }
                count += 1;
                due = (due + PERIOD).max(now());
                crate::clock::sleep_until(due);
            }
        });
        Watch { samples, stop, thread: Some(thread) }
    }

    /// The most that the pools held between two moments; `None` when that is not known.
    pub fn pools_max(&self, begin: u64, end: u64) -> Option<u64> {
        let samples = self.samples.lock().ok()?;
        samples.iter().filter(|s| s.at >= begin && s.at < end).filter_map(|s| s.pools).max()
    }

    /// Ends and gives all looks.
    pub fn finish(mut self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.samples.lock().map(|samples| samples.clone()).unwrap_or_default()
    }
}

/// One look, without pools.
pub fn look(target: &Target) -> Sample {
    Sample {
        at: now(),
        rss: rss(target.pid),
        cpu: cpu(&target.pid.to_string()),
        own_cpu: cpu("self"),
        all_cpu: all_cpu(),
        tcp: tcp_bytes(),
        pools: None,
    }
}

/// The samples between two moments, summarized.
pub fn summary(samples: &[Sample], begin: u64, end: u64) -> Value {
    let within: Vec<&Sample> = samples.iter().filter(|s| s.at >= begin && s.at < end).collect();
    let (Some(first), Some(last)) = (within.first(), within.last()) else { return Value::Null };
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let wall = ((last.at - first.at) as f64 / SECOND as f64).max(0.001);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()) as f64;
    let (bookie, own) = (last.cpu - first.cpu, last.own_cpu - first.own_cpu);
    json!({
        "rss_mib_max": within.iter().map(|s| mib(s.rss)).fold(0.0, f64::max),
        "rss_mib_end": mib(last.rss),
        "tcp_mib_max": within.iter().map(|s| mib(s.tcp)).fold(0.0, f64::max),
        "pools_mib_max": within.iter().filter_map(|s| s.pools).map(mib).fold(0.0, f64::max),
        "bookie_cpu_s": bookie, "bookie_cores": bookie / wall, "client_cores": own / wall,
        "other_cores": ((last.all_cpu - first.all_cpu - bookie - own) / wall).max(0.0), "cores": cores,
    })
}

/// RSS over time, MiB, for plots.
pub fn rss_series(samples: &[Sample], begin: u64) -> Value {
    let point = |s: &Sample| {
        json!([s.at.saturating_sub(begin) as f64 / 1e9, s.rss as f64 / 1048576.0, s.tcp as f64 / 1048576.0])
    };
    samples.iter().filter(|s| s.at >= begin).map(point).collect()
}

/// The machine as it is.
pub fn machine() -> Value {
    let model = read("/proc/cpuinfo")
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()));
    json!({
        "cores": std::thread::available_parallelism().map_or(0, |n| n.get()),
        "model": model, "linux": read("/proc/sys/kernel/osrelease").split('-').next().unwrap_or_default().trim(),
        "load": read("/proc/loadavg").split(' ').next().unwrap_or_default(),
        "tcp_wmem": read("/proc/sys/net/ipv4/tcp_wmem").split_whitespace().collect::<Vec<_>>().join(" "),
        "tcp_rmem": read("/proc/sys/net/ipv4/tcp_rmem").split_whitespace().collect::<Vec<_>>().join(" "),
    })
}
