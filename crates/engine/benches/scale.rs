//! Many ledgers: small entries to random ledgers, some of which are removed on the way, while a reader reads random entries.
//!
//!     cargo bench -p bindery-engine --bench scale -- --seconds 1 --ledgers 1000000 --entries 50000000 --dir /some/disk
//!
//! The engine is driven in process with the pools of a bookie that may take 1 GiB. Four producers with 5,000 outstanding
//! adds each add entries of 100 bytes, each to a ledger picked at random. After each tenth of the entries a tenth of the
//! ledgers that go (`--removed`, percent, 30 by default) are removed, and a collection of space is requested. The reader
//! takes a pause of 2 ms between two reads. A row for each tenth; then, without adds: reads of entries in random order, cold
//! to the caches of the engine and warm, the time of a start, and what the logs take beside what is live in them.
//!
//! Processor time of adds is that of the process without the reader's: driver, flushes, merges and collection included.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and may panic"
)]

mod support;

use bindery_engine::{Engine, EngineConfig, EntryRef, Lookup, Machine, WantedCollection};
use bindery_io::{Disk, RealDisk, SystemClock, SystemRandom};
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::driver::{Load, Mix, Pick, Sink, run_picked};
use support::machine::{Running, config};
use support::{Args, Histogram, head, row, short};

const ENTRY_BYTES: usize = 100;
const PRODUCERS: usize = 4;
const STEPS: u64 = 10;
/// Index record of an entry.
const RECORD_BYTES: u64 = 28;
/// Longest wait for merges and collection after the last add.
const SETTLE_MAX: Duration = Duration::from_secs(300);
/// It is settled when nothing was copied for so long: a collection weighs many logs before it says anything.
const QUIET_MIN: Duration = Duration::from_secs(25);

/// A generator of its own, so that a run can be repeated (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % n
    }
}

/// The entries of each ledger, by its number; ledgers are removed in the order of their numbers.
struct Ledgers {
    entries: Vec<AtomicU32>,
    /// Ledgers below it are removed.
    removed: AtomicU64,
}

impl Ledgers {
    fn id(number: u64) -> LedgerId {
        // Spread as ids of clusters are: neighbours belong to other bookies.
        LedgerId::new(number as i64 * 3 + 1).unwrap()
    }

    fn random(&self, random: &mut Random) -> u64 {
        let removed = self.removed.load(Relaxed);
        removed + random.below(self.entries.len() as u64 - removed)
    }

    fn live_entries(&self) -> u64 {
        let removed = self.removed.load(Relaxed) as usize;
        self.entries[removed..].iter().map(|entries| u64::from(entries.load(Relaxed))).sum()
    }
}

/// Of this thread, in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Reads one random entry; false when it was removed meanwhile, or is one of the last, which may be on their way.
fn read(engine: &Engine, ledgers: &Ledgers, random: &mut Random) -> bool {
    let number = ledgers.random(random);
    let count = ledgers.entries[number as usize].load(Relaxed);
    if count == 0 {
        return false;
    }
    let (ledger, entry) = (Ledgers::id(number), random.below(u64::from(count)) as i64);
    let wanted = EntryId::new(entry).unwrap();
    let body = match engine.read(ledger, EntryRef::At(wanted)) {
        Ok(Lookup::Memory(slice)) => slice.to_vec(),
        Ok(Lookup::Disk(read)) => read.load().unwrap_or_default(),
        Ok(Lookup::Undurable(_) | Lookup::Tiered(_)) => return false,
        Err(_) => Vec::new(),
    };
    if body.is_empty() {
        let may_be_missing = number < ledgers.removed.load(Relaxed) || entry + 16 >= i64::from(count);
        assert!(may_be_missing, "{ledger}:{entry} of {count} is missing");
        return false;
    }
    assert_eq!(body[8..16], entry.to_be_bytes());
    true
}

/// Reads so many entries; the histogram is of their times, and the second value the processor time of one in µs.
fn reads(engine: &Engine, ledgers: &Ledgers, seed: u64, count: u64) -> (Histogram, f64) {
    let (mut random, mut times) = (Random(seed), Histogram::new());
    let cpu = thread_cpu_ns();
    for _ in 0..count {
        let begun = Instant::now();
        if read(engine, ledgers, &mut random) {
            times.record(begun.elapsed().as_nanos() as u64, 1);
        }
    }
    let each = (thread_cpu_ns() - cpu) as f64 / 1e3 / times.total().max(1) as f64;
    (times, each)
}

/// What the reader beside the adds found.
#[derive(Default)]
struct Beside {
    times: Option<Histogram>,
    cpu_ns: u64,
}

fn read_beside(engine: &Engine, ledgers: &Ledgers, is_over: &AtomicBool) -> Beside {
    let (mut random, mut times) = (Random(7), Histogram::new());
    let cpu = thread_cpu_ns();
    while !is_over.load(Relaxed) {
        let begun = Instant::now();
        if read(engine, ledgers, &mut random) {
            times.record(begun.elapsed().as_nanos() as u64, 1);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Beside { times: Some(times), cpu_ns: thread_cpu_ns() - cpu }
}

fn logs_bytes(config: &EngineConfig) -> u64 {
    let files = config.ledger_dirs.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let length = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let is_log = entry.path().extension().is_some_and(|extension| extension == "elog");
        if is_log { entry.metadata().map_or(0, |metadata| metadata.len()) } else { 0 }
    };
    files.map(length).sum()
}

/// Waits until nothing is flushed, copied or dropped any more.
fn settle(running: &Running) -> Duration {
    let begun = Instant::now();
    let mut seen = (0, Instant::now());
    while begun.elapsed() < SETTLE_MAX && seen.1.elapsed() < QUIET_MIN {
        let status = running.engine.space_status();
        let flushed = running.engine.stats().flushed_entries;
        let state = status.bytes_copied + status.logs_dropped + status.collections + flushed;
        if state != seen.0 {
            seen = (state, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    begun.elapsed().saturating_sub(seen.1.elapsed())
}

fn main() {
    let args = Args::parse("scale");
    let number = |name: &str, full: u64, smoke: u64| {
        args.value(name).map_or(args.size(full, smoke), |value| value.parse().unwrap())
    };
    let ledger_count = number("--ledgers", 1_000_000, 2_000);
    let entries = number("--entries", 50_000_000, 40_000);
    let removed_percent = number("--removed", 30, 30);
    let read_count = number("--reads", 20_000, 200);
    let mut config = config(&args.dir, args.is_smoke);
    if !args.is_smoke {
        config.write_pool_bytes = 440 << 20;
        config.index_pool_bytes = 80 << 20;
        config.cache_pool_bytes = 54 << 20;
        config.flush_interval = Duration::from_secs(2);
        // Files of replaced logs would count as space.
        config.space.replaced_grace = Duration::from_secs(1);
    }
    let pools = config.write_pool_bytes + config.index_pool_bytes + config.cache_pool_bytes;
    let ledgers = Ledgers {
        entries: (0..ledger_count).map(|_| AtomicU32::new(0)).collect(),
        removed: AtomicU64::new(0),
    };
    let sink = Sink::new(PRODUCERS, 1);
    let running = Running::start(config.clone(), sink.clone());
    let mut rows = Vec::new();
    let mut resident: f64 = 0.0;
    for step in 1..=STEPS {
        let left = AtomicU64::new(entries / STEPS);
        let pick = |producer: usize| -> Pick<'_> {
            let (ledgers, left) = (&ledgers, &left);
            let mut random = Random(step * 1000 + producer as u64);
            Box::new(move || {
                left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
                // A ledger belongs to one producer, so that its entries come in order.
                let number = loop {
                    let number = ledgers.random(&mut random);
                    if number % PRODUCERS as u64 == producer as u64 {
                        break number;
                    }
                };
                let entry = ledgers.entries[number as usize].fetch_add(1, Relaxed);
                Some((Ledgers::id(number), i64::from(entry)))
            })
        };
        let load = Load {
            mix: Mix::of(ENTRY_BYTES),
            producers: PRODUCERS,
            ledgers: 0,
            outstanding: 20_000,
            seconds: f64::MAX,
        };
        let is_over = AtomicBool::new(false);
        let (outcome, beside) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| read_beside(&running.engine, &ledgers, &is_over));
            let outcome = run_picked(&running.engine, &sink, &load, (0..PRODUCERS).map(pick).collect());
            is_over.store(true, Relaxed);
            (outcome, reader.join().unwrap())
        });
        let stats = running.engine.stats();
        let status = running.engine.space_status();
        let times = beside.times.unwrap();
        resident = resident.max(support::resident_mib());
        let cpu = outcome.cpu.as_secs_f64() * 1e6 - beside.cpu_ns as f64 / 1e3;
        rows.push([
            format!("{:.1}", (step * (entries / STEPS)) as f64 / 1e6),
            format!("{:.0}", outcome.adds_per_s()),
            short(cpu / outcome.adds as f64),
            short(outcome.latencies[0].at(0.99) / 1e3),
            stats.entry_logs.to_string(),
            format!("{}, {}", status.merges, status.logs_rewritten),
            format!("{}, {}", stats.merge_in_flush_ns / 1_000_000_000, stats.flush_ns / 1_000_000_000),
            short(beside.cpu_ns as f64 / 1e3 / times.total().max(1) as f64),
            short(times.at(0.5) / 1e3),
            short(times.at(0.99) / 1e3),
            format!("{:.0}", support::resident_mib()),
        ]);
        eprintln!("{}", rows.last().unwrap().join("\t"));
        let removed = ledger_count * removed_percent / 100 * step / STEPS;
        for number in ledgers.removed.swap(removed, Relaxed)..removed {
            running.engine.remove_ledger(Ledgers::id(number), Box::new(|_| {}));
        }
        running.engine.want_collection_after_removals(WantedCollection { minor: true, major: false });
    }
    head(&[
        "million entries",
        "adds/s",
        "CPU µs/add",
        "p99 ms",
        "logs",
        "merges, logs rewritten",
        "s in flushes, of flushes",
        "CPU µs/read",
        "read p50 ms",
        "p99",
        "MiB",
    ]);
    rows.into_iter().for_each(row);
    running.engine.want_collection_after_removals(WantedCollection { minor: false, major: true });
    let settled = settle(&running);
    let (_, cold) = reads(&running.engine, &ledgers, 11, read_count);
    let (times, warm) = reads(&running.engine, &ledgers, 11, read_count);
    let stats = running.engine.stats();
    let live = ledgers.live_entries() * (ENTRY_BYTES as u64 + RECORD_BYTES);
    let taken = logs_bytes(&config);
    resident = resident.max(support::resident_mib());
    drop(running);
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let begun = Instant::now();
    let machine = Machine::open(config, disk, Arc::new(SystemClock::new()), Arc::new(SystemRandom)).unwrap();
    let start = begun.elapsed();
    let (_, after) = reads(&machine.engine, &ledgers, 13, read_count.min(1000));
    println!(
        "\n{ledger_count} ledgers, {:.1} million entries, {removed_percent} % of the ledgers removed. Then: {} logs, settled \
         after {:.1} s; a read takes {} µs of processor time cold, {} warm (p50 {} µs, p99 {} µs), {} after the start; start \
         {:.2} s; logs take {:.2} times the live bytes; at most {:.0} MiB resident, pools {:.0} MiB.",
        entries as f64 / 1e6,
        stats.entry_logs,
        settled.as_secs_f64(),
        short(cold),
        short(warm),
        short(times.at(0.5)),
        short(times.at(0.99)),
        short(after),
        start.as_secs_f64(),
        taken as f64 / live.max(1) as f64,
        resident,
        pools as f64 / f64::from(1 << 20),
    );
}
