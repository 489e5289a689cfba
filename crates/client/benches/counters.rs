//! The counter of requests under way: the cost of counting one request, in three forms.
//!
//! ```text
//! cargo bench -p bindery-client --bench counters -- [seconds for each figure] [processes]
//! ```
//! One operation is one request: the node's counter is found, goes up, and goes down again, not below zero, on the same
//! node. Nodes are drawn at random. The forms:
//!
//! ```text
//! slot      the client's own: the node by entry and position in the ledger's ensemble, a guard
//! atomics   an unchanging hash map from bookie id to an atomic number
//! locked    16 hash maps from bookie id to a number, each under a lock
//! chosen    a slot, of the node with the least under way of three drawn: what looking costs beside counting
//! ```
//! Every process measures everything once; the figures are medians over the processes, with the lowest and the highest.
//! `--bench transport` shows the client's cost of a whole request; the savings here are relative to that. Given no
//! `--bench` (as by `cargo test --benches`), each measurement is short.

#![allow(clippy::unwrap_used, reason = "a measurement fails by panicking")]

mod support;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bindery_client::health::{LedgerNodes, NodeHealth};
use bindery_io::{Random, SeededRandom, SystemRandom};
use bindery_types::{BookieId, DigestType, EntryId, LedgerMetadata, LedgerSecret, Quorum, Segment};
use parking_lot::Mutex;
use support::cpu_used;
use tokio::time::Instant;

const THREADS: [usize; 4] = [1, 4, 16, 32];
const NODES: [usize; 2] = [3, 30];
const FORMS: [&str; 4] = ["slot", "atomics", "locked", "chosen"];
const SHARDS: usize = 16;
/// Between looks at the clock.
const BATCH: u64 = 256;

trait Counters: Sync {
    /// One request to the node.
    fn request(&self, node: usize);
    /// After the measurement.
    fn assert_idle(&self);
}

struct Slots {
    nodes: LedgerNodes,
    entry: EntryId,
}

impl Counters for Slots {
    fn request(&self, node: usize) {
        let pending = self.nodes.ensemble(black_box(self.entry))[node].begin();
        black_box(&pending);
    }

    fn assert_idle(&self) {
        assert!(self.nodes.last_ensemble().iter().all(|node| node.pending() == 0));
    }
}

struct Chosen(Slots);

impl Counters for Chosen {
    fn request(&self, node: usize) {
        let nodes = self.0.nodes.ensemble(black_box(self.0.entry));
        let three = (0..3).map(|next| &nodes[(node + next) % nodes.len()]);
        let pending = three.min_by_key(|node| node.pending()).unwrap().begin();
        black_box(&pending);
    }

    fn assert_idle(&self) {
        self.0.assert_idle();
    }
}

struct Atomics {
    ids: Vec<BookieId>,
    map: HashMap<BookieId, AtomicI64>,
}

impl Counters for Atomics {
    fn request(&self, node: usize) {
        let id = black_box(&self.ids[node]);
        self.map[id].fetch_add(1, Ordering::Relaxed);
        let down = |value: i64| (value > 0).then(|| value - 1);
        black_box(self.map[id].fetch_update(Ordering::Relaxed, Ordering::Relaxed, down).is_ok());
    }

    fn assert_idle(&self) {
        assert!(self.map.values().all(|value| value.load(Ordering::Relaxed) == 0));
    }
}

struct Locked {
    ids: Vec<BookieId>,
    hasher: RandomState,
    shards: Vec<Mutex<HashMap<BookieId, u64>>>,
}

impl Locked {
    fn change(&self, id: &BookieId, change: impl FnOnce(&mut u64)) {
        let shard = self.hasher.hash_one(id) as usize % SHARDS;
        change(self.shards[shard].lock().get_mut(id).unwrap());
    }
}

impl Counters for Locked {
    fn request(&self, node: usize) {
        let id = black_box(&self.ids[node]);
        self.change(id, |value| *value += 1);
        self.change(id, |value| *value = value.saturating_sub(1));
    }

    fn assert_idle(&self) {
        assert!(self.shards.iter().all(|shard| shard.lock().values().all(|value| *value == 0)));
    }
}

fn counters(form: &str, nodes: usize) -> Box<dyn Counters> {
    let ids: Vec<BookieId> =
        (0..nodes).map(|n| BookieId::new(format!("bookie-{n}.example.com:3181")).unwrap()).collect();
    match form {
        "slot" | "chosen" => {
            let secret = LedgerSecret { digest_type: DigestType::Crc32c, password: Vec::new() };
            let mut metadata = LedgerMetadata::new(Quorum::new(nodes, nodes, nodes).unwrap(), secret);
            metadata.push_segment(Segment { first_entry: EntryId::FIRST, ensemble: ids }).unwrap();
            let nodes = LedgerNodes::new(&metadata, &NodeHealth::new(1));
            let slots = Slots { nodes, entry: EntryId::FIRST };
            if form == "slot" { Box::new(slots) } else { Box::new(Chosen(slots)) }
        }
        "atomics" => {
            let map = ids.iter().map(|id| (id.clone(), AtomicI64::new(0))).collect();
            Box::new(Atomics { ids, map })
        }
        _ => {
            let hasher = RandomState::new();
            let mut shards: Vec<HashMap<BookieId, u64>> = vec![HashMap::new(); SHARDS];
            for id in &ids {
                shards[hasher.hash_one(id) as usize % SHARDS].insert(id.clone(), 0);
            }
            Box::new(Locked { ids, hasher, shards: shards.into_iter().map(Mutex::new).collect() })
        }
    }
}

/// Nanoseconds of the clock in each thread, and of CPU, for one operation.
fn measure(form: &str, nodes: usize, threads: usize, duration: Duration) -> (f64, f64) {
    let counters = counters(form, nodes);
    let (barrier, is_over, operations) =
        (Barrier::new(threads + 1), AtomicBool::new(false), AtomicU64::new(0));
    let mut figures = (0.0, 0.0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let random = SeededRandom::new(SystemRandom.next_u64());
                let order: Vec<usize> = (0..4096).map(|_| random.below(nodes as u64) as usize).collect();
                let mut next = random.below(4096) as usize;
                let mut count = 0;
                barrier.wait();
                while !is_over.load(Ordering::Relaxed) {
                    for _ in 0..BATCH {
                        counters.request(order[next]);
                        next = (next + 1) % order.len();
                    }
                    count += BATCH;
                }
                operations.fetch_add(count, Ordering::Relaxed);
            });
        }
        barrier.wait();
        let (started, cpu) = (Instant::now(), cpu_used());
        std::thread::sleep(duration);
        is_over.store(true, Ordering::Relaxed);
        figures = (started.elapsed().as_nanos() as f64, (cpu_used() - cpu).as_nanos() as f64);
    });
    counters.assert_idle();
    let count = operations.load(Ordering::Relaxed) as f64;
    (figures.0 * threads as f64 / count, figures.1 / count)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<f64>().ok());
    let seconds = numbers.next().unwrap_or(if is_bench { 1.0 } else { 0.02 });
    let processes = numbers.next().unwrap_or(if is_bench { 5.0 } else { 1.0 }) as usize;
    let cells =
        || NODES.into_iter().flat_map(|nodes| THREADS.into_iter().map(move |threads| (nodes, threads)));
    if args.iter().any(|arg| arg == "child") {
        for (nodes, threads) in cells() {
            for form in FORMS {
                let (clock, cpu) = measure(form, nodes, threads, Duration::from_secs_f64(seconds));
                println!("{clock} {cpu}");
            }
        }
        return;
    }
    let runs: Vec<Vec<(f64, f64)>> = (0..processes)
        .map(|_| {
            let this = std::env::current_exe().unwrap();
            let child = Command::new(this).args(["child", &seconds.to_string()]).output().unwrap();
            assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
            let text = String::from_utf8(child.stdout).unwrap();
            let figures = text.lines().map(|line| line.split_once(' ').unwrap());
            figures.map(|(clock, cpu)| (clock.parse().unwrap(), cpu.parse().unwrap())).collect()
        })
        .collect();
    println!(
        "ns of CPU for one request: median (lowest to highest) of {processes} processes, {seconds} s each"
    );
    println!("ns/op by the clock of a thread in brackets; factors: locked / slot, CPU and clock");
    println!(
        "{:>5} {:>7}  {:<32} {:<32} {:<32} {:<32} {:>7}",
        "nodes", "threads", FORMS[0], FORMS[1], FORMS[2], FORMS[3], "factors"
    );
    for (cell, (nodes, threads)) in cells().enumerate() {
        let mut line = format!("{nodes:>5} {threads:>7} ");
        let mut medians = [(0.0, 0.0); FORMS.len()];
        for (form, median) in medians.iter_mut().enumerate() {
            let of = |pick: fn(&(f64, f64)) -> f64| {
                let mut figures: Vec<f64> =
                    runs.iter().map(|run| pick(&run[cell * FORMS.len() + form])).collect();
                figures.sort_unstable_by(f64::total_cmp);
                figures
            };
            let (cpu, clock) = (of(|figure| figure.1), of(|figure| figure.0));
            *median = (cpu[cpu.len() / 2], clock[clock.len() / 2]);
            let (low, high) = (cpu[0], cpu[cpu.len() - 1]);
            let text = format!("{:.1} ({low:.1} to {high:.1}) [{:.0}]", median.0, median.1);
            line += &format!(" {text:<32}");
        }
        let (slot, locked) = (medians[0], medians[2]);
        println!("{line} {:.1} {:.1}", locked.0 / slot.0, locked.1 / slot.1);
    }
}
