//! Durable adds through the engine, beside the bare loop (copy, write, sync) on the same disk, in alternating rounds.
//!
//!     cargo bench -p bindery-engine --bench adds -- --seconds 3 --rounds 3 --dir /some/disk
//!
//! Without arguments, or under `cargo test`, it runs for a moment only, so that it does not rot. It asserts nothing
//! about time. Figures: median over the rounds; CPU is that of the whole process, load generator included.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and may panic"
)]

use bindery_engine::{Add, AddDone, AddSink, EngineConfig, Machine, Origin};
use bindery_io::chunk::AlignedBuf;
use bindery_io::{Disk, OpenMode, RealDisk, SystemClock, SystemRandom};
use bindery_types::{EntryId, LedgerId, MasterKey};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const ENTRY: usize = 1024;
const LEDGERS: i64 = 50;

struct Settings {
    seconds: f64,
    rounds: usize,
    dir: PathBuf,
}

fn settings() -> Settings {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned();
    Settings {
        seconds: value("--seconds").map_or(0.1, |s| s.parse().unwrap()),
        rounds: value("--rounds").map_or(1, |s| s.parse().unwrap()),
        dir: value("--dir").map_or_else(std::env::temp_dir, PathBuf::from),
    }
}

/// One round of one case.
struct Figures {
    adds_per_s: f64,
    cpu_us_per_add: f64,
    latencies_us: Vec<u32>,
}

fn cpu() -> Duration {
    // utime and stime of the process in clock ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

/// Copies entries into a buffer, writes it durably into a file that was written before; nothing else.
fn bare(dir: &Path, seconds: f64) -> Figures {
    const FILE: u64 = 256 << 20;
    const GROUP: usize = 4 << 20;
    let disk = RealDisk::new();
    let path = dir.join("bare");
    let file = disk.open(&path, OpenMode::CreateDirect).unwrap();
    let mut buffer = AlignedBuf::zeroed(GROUP);
    for at in (0..FILE).step_by(GROUP) {
        file.write_all_at(&mut [IoSlice::new(&buffer)], at).unwrap();
    }
    file.sync().unwrap();
    let entry = vec![7u8; ENTRY];
    let (begun, cpu_before, mut groups, mut latencies_us) = (Instant::now(), cpu(), 0u64, Vec::new());
    while begun.elapsed().as_secs_f64() < seconds {
        let group = Instant::now();
        for place in buffer.chunks_exact_mut(ENTRY) {
            place.copy_from_slice(&entry);
        }
        let at = groups * GROUP as u64 % FILE;
        file.write_all_durable_at(&mut [IoSlice::new(&buffer)], at).unwrap();
        latencies_us.push(group.elapsed().as_micros() as u32);
        groups += 1;
    }
    let adds = groups as f64 * (GROUP / ENTRY) as f64;
    let figures = Figures {
        adds_per_s: adds / begun.elapsed().as_secs_f64(),
        cpu_us_per_add: (cpu() - cpu_before).as_secs_f64() * 1e6 / adds,
        latencies_us,
    };
    std::fs::remove_file(path).unwrap();
    figures
}

/// Counts answers, keeps latencies, wakes the producer when the window has room again.
struct Window {
    origin: Instant,
    answered: AtomicU64,
    latencies_us: Mutex<Vec<u32>>,
    room: Condvar,
}

impl AddSink for Window {
    fn on_adds_done(&self, done: &[AddDone]) {
        let now = self.origin.elapsed().as_nanos() as u64;
        let mut latencies = self.latencies_us.lock().unwrap();
        for d in done {
            assert_eq!(d.result, Ok(()));
            latencies.push(((now - d.origin.tag) / 1000) as u32);
        }
        self.answered.fetch_add(done.len() as u64, Ordering::Release);
        self.room.notify_one();
    }
}

fn engine(dir: &Path, seconds: f64, outstanding: u64) -> Figures {
    let dir = dir.join("engine");
    let config = EngineConfig {
        journal_dir: dir.join("journal"),
        ledger_dirs: vec![dir.join("ledgers")],
        write_pool_bytes: 512 << 20,
        ..EngineConfig::default()
    };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let machine =
        Machine::open(config, disk.clone(), Arc::new(SystemClock::new()), Arc::new(SystemRandom)).unwrap();
    let engine = machine.engine.clone();
    let window = Arc::new(Window {
        origin: Instant::now(),
        answered: AtomicU64::new(0),
        latencies_us: Mutex::new(Vec::new()),
        room: Condvar::new(),
    });
    let threads = machine.start(disk, window.clone());
    // Journal files and chunks are prepared in the background: a running bookie has long done so.
    std::thread::sleep(Duration::from_secs_f64(seconds.min(1.0) * 5.0));

    let mut bodies: Vec<Vec<u8>> = (0..LEDGERS)
        .map(|ledger| {
            let mut body = [ledger, 0, -1, 0].map(i64::to_be_bytes).concat();
            body.resize(ENTRY, 7);
            body
        })
        .collect();
    let (begun, cpu_before, mut sent, mut entry) = (Instant::now(), cpu(), 0u64, 0i64);
    while begun.elapsed().as_secs_f64() < seconds {
        for body in &mut bodies {
            body[8..16].copy_from_slice(&entry.to_be_bytes());
        }
        let adds = |shard: usize| -> Vec<Add<'_>> {
            let id = |ledger: i64| LedgerId::new(ledger).unwrap();
            let mine = (0..LEDGERS).filter(|ledger| engine.shard_of(id(*ledger)) == shard);
            let add = |ledger: i64| Add {
                origin: Origin { connection: 0, txn: 0, tag: 0 },
                ledger: id(ledger),
                entry: EntryId::new(entry).unwrap(),
                last_add_confirmed: EntryId::new(entry - 1),
                key: MasterKey::new([1; 20]),
                body: &bodies[ledger as usize],
                is_recovery: false,
                is_high_priority: false,
            };
            mine.map(add).collect()
        };
        for shard in 0..engine.shard_count() {
            let mut batch = adds(shard);
            let mut taken = 0;
            while taken < batch.len() {
                let now = window.origin.elapsed().as_nanos() as u64;
                batch[taken..].iter_mut().for_each(|add| add.origin.tag = now);
                let end = if outstanding == 1 { taken + 1 } else { batch.len() };
                let n = engine.add_batch(shard, &batch[taken..end]);
                taken += n;
                sent += n as u64;
                let mut guard = window.latencies_us.lock().unwrap();
                while sent - window.answered.load(Ordering::Acquire) >= outstanding {
                    guard = window.room.wait_timeout(guard, Duration::from_millis(10)).unwrap().0;
                }
                drop(guard);
                if n == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
        entry += 1;
    }
    while window.answered.load(Ordering::Acquire) < sent {
        std::thread::sleep(Duration::from_millis(1));
    }
    let elapsed = begun.elapsed().as_secs_f64();
    let cpu_us_per_add = (cpu() - cpu_before).as_secs_f64() * 1e6 / sent as f64;
    threads.stop().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
    let latencies_us = std::mem::take(&mut *window.latencies_us.lock().unwrap());
    Figures { adds_per_s: sent as f64 / elapsed, cpu_us_per_add, latencies_us }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let settings = settings();
    let dir = settings.dir.join(format!("bindery-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let cases = ["bare loop, groups of 4 MiB", "engine, 20,000 outstanding", "engine, 1 outstanding"];
    let mut figures: [Vec<Figures>; 3] = Default::default();
    for _ in 0..settings.rounds {
        figures[0].push(bare(&dir, settings.seconds));
        figures[1].push(engine(&dir, settings.seconds, 20_000));
        figures[2].push(engine(&dir, settings.seconds, 1));
    }
    std::fs::remove_dir_all(&dir).unwrap();
    println!("| 1 KiB, durable | adds/s | CPU us/add | p50 us | p99 us | max us |");
    println!("|---|---|---|---|---|---|");
    for (case, rounds) in cases.iter().zip(&mut figures) {
        let percentile = |share: f64| {
            let of = |f: &Figures| {
                let mut sorted = f.latencies_us.clone();
                sorted.sort_unstable();
                f64::from(sorted[((sorted.len() - 1) as f64 * share) as usize])
            };
            median(rounds.iter().map(of).collect())
        };
        println!(
            "| {case} | {:.0} | {:.2} | {:.0} | {:.0} | {:.0} |",
            median(rounds.iter().map(|f| f.adds_per_s).collect()),
            median(rounds.iter().map(|f| f.cpu_us_per_add).collect()),
            percentile(0.5),
            percentile(0.99),
            percentile(1.0),
        );
    }
}
