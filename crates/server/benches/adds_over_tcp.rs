//! Adds over loopback TCP through a whole bookie, flushing on, against a bare loop of receive, append, checksum, sync,
//! flush and reply, in alternating rounds on the same disk, with the same driver.
//!
//!     cargo bench -p bindery-server --bench adds_over_tcp -- --seconds 3 --rounds 3 --dir /some/disk
//!
//! The driver is one thread, v2, 1 KiB entries, 64 ledgers. Processor time is that of the process without the driver's
//! thread. `--only 0` picks a case by its place; `--batch 1` caps the bookie's batches of adds.
//! The goal: 70 % of the loop's rate, and twice its p99 at 1,000 outstanding.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and may panic"
)]

#[path = "../../engine/benches/support/mod.rs"]
mod support;
mod tcp;

use support::{Args, head, median, row, short};
use tcp::bookie::Running;
use tcp::driver::{self, Load, Outcome};
use tcp::looped::Looped;

const LEDGERS: usize = 64;

struct Case {
    name: &'static str,
    connections: usize,
    outstanding: usize,
}

const CASES: [Case; 4] = [
    Case { name: "20,000 outstanding, 4 connections", connections: 4, outstanding: 20_000 },
    Case { name: "1,000 outstanding, 4 connections", connections: 4, outstanding: 1_000 },
    Case { name: "64 outstanding, 4 connections", connections: 4, outstanding: 64 },
    Case { name: "1 outstanding", connections: 1, outstanding: 1 },
];

/// What is shared, of the bookie.
#[derive(Default)]
struct Sharing {
    adds: f64,
    batches: f64,
    groups: f64,
    reads: f64,
    writes: f64,
    wakes: f64,
}

impl Sharing {
    fn of(bookie: &Running) -> Sharing {
        let text = bookie.metrics();
        let value = |series: &str| tcp::bookie::value_of(&text, series);
        Sharing {
            adds: value("bindery_add_batch_entries_sum"),
            batches: value("bindery_add_batch_entries_count"),
            groups: value("bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES_count{success=\"true\""),
            reads: value("bindery_socket_reads"),
            writes: value("bindery_socket_writes"),
            wakes: value("bindery_journal_wakes") + value("bindery_reader_wakes"),
        }
    }

    fn since(&self, before: &Sharing) -> Sharing {
        Sharing {
            adds: self.adds - before.adds,
            batches: self.batches - before.batches,
            groups: self.groups - before.groups,
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            wakes: self.wakes - before.wakes,
        }
    }
}

struct Round {
    outcome: Outcome,
    sharing: Sharing,
}

fn main() {
    let args = Args::parse("adds");
    let only: Option<usize> = args.value("--only").map(|place| place.parse().unwrap());
    let batch_max = args.value("--batch").map_or(1000, |entries| entries.parse().unwrap());
    let cases: Vec<&Case> = CASES
        .iter()
        .enumerate()
        .filter(|(place, _)| only.is_none_or(|only| only == *place))
        .map(|(_, c)| c)
        .collect();
    let mut looped = Looped::new(&args.dir, args.size(192 << 20, 16 << 20), args.size(256 << 20, 16 << 20));
    let mut rounds: Vec<[Vec<Round>; 2]> = cases.iter().map(|_| Default::default()).collect();
    let mut next_ledger = 1;
    for round in 0..args.rounds {
        let bookie = Running::start(&args.dir, args.is_smoke, batch_max);
        let mut load_of = |case: &Case, seconds: f64| {
            let load = Load {
                entry_bytes: 1024,
                connections: case.connections,
                ledgers: LEDGERS,
                first_ledger: next_ledger,
                outstanding: case.outstanding,
                warmup_s: seconds / 4.0,
                seconds,
            };
            next_ledger += LEDGERS as i64;
            load
        };
        // Everything that grows at first use has grown after this.
        driver::run(bookie.address, load_of(cases[0], args.seconds.min(2.0)));
        for (case, rounds) in cases.iter().zip(&mut rounds) {
            for turn in [round % 2, (round + 1) % 2] {
                bookie.wait_flushed();
                let load = load_of(case, args.seconds);
                let done = match turn {
                    0 => {
                        let outcome = looped.serve(case.connections, |address| driver::run(address, load));
                        Round { outcome, sharing: Sharing::default() }
                    }
                    _ => {
                        let before = Sharing::of(&bookie);
                        let outcome = driver::run(bookie.address, load);
                        bookie.wait_flushed();
                        Round { outcome, sharing: Sharing::of(&bookie).since(&before) }
                    }
                };
                rounds[turn].push(done);
            }
        }
    }
    let resident = support::resident_mib();
    report(&cases, &rounds);
    println!("\nResident memory at the end, everything in one process: {} MiB.", short(resident));
}

fn report(cases: &[&Case], rounds: &[[Vec<Round>; 2]]) {
    head(&[
        "load",
        "server",
        "adds/s",
        "of the loop",
        "p50 ms",
        "p95",
        "p99",
        "of the loop",
        "max",
        "CPU µs/add",
        "driver µs/add",
        "adds/batch",
        "adds/group",
        "reads+writes/add",
        "wake-ups/add",
    ]);
    for (case, [looped, bookie]) in cases.iter().zip(rounds) {
        for (name, mine) in [("bare loop", looped), ("bookie", bookie)] {
            let of = |value: &dyn Fn(&Round) -> f64| median(mine.iter().map(value));
            // Neighbouring rounds are compared with each other: the machine drifts.
            let ratio = |value: &dyn Fn(&Round) -> f64| {
                format!(
                    "{:.2}",
                    median(mine.iter().zip(looped).map(|(mine, other)| value(mine) / value(other)))
                )
            };
            let ms = |share: f64| short(of(&|r: &Round| r.outcome.latencies.at(share) / 1e3));
            let rate = |r: &Round| r.outcome.adds as f64 / r.outcome.seconds;
            let shared = |value: &dyn Fn(&Sharing) -> f64| match of(&|r: &Round| value(&r.sharing)) {
                value if value.is_finite() && value > 0.0 => format!("{value:.3}"),
                _ => String::new(),
            };
            row([
                case.name.to_owned(),
                name.to_owned(),
                format!("{:.0}", of(&rate)),
                ratio(&rate),
                ms(0.5),
                ms(0.95),
                ms(0.99),
                ratio(&|r| r.outcome.latencies.at(0.99)),
                short(of(&|r| r.outcome.latencies.max() / 1e3)),
                short(of(&|r| r.outcome.cpu_us_per_add())),
                short(of(&|r| r.outcome.cpu_s * 1e6 / r.outcome.adds.max(1) as f64)),
                shared(&|s| s.adds / s.batches),
                shared(&|s| s.adds / s.groups),
                shared(&|s| (s.reads + s.writes) / s.adds),
                shared(&|s| s.wakes / s.adds),
            ]);
        }
    }
}
