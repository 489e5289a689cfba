//! Durable adds through the whole engine, flushing on, against a bare loop of copy, checksum, write and sync, and sorted
//! flush, in alternating rounds on the same disk.
//!
//!     cargo bench -p bindery-engine --bench storage_end_to_end -- --seconds 3 --rounds 3 --dir /some/disk
//!
//! The engine is driven in process by four producers over 64 ledgers, one producer at one outstanding add. The bare loop
//! is one thread that fills groups, of as many entries as are outstanding but 4 MiB at most, and a second that flushes
//! the arena before. Processor time is that of the whole process, load driver included. "Written" are the bytes that the
//! kernel was made to write, journal, entry logs and tables, for each byte of entries; all of it is flushed by then.
//! `--flush-spread 0` measures flushes that never pause, `--case " 1,000 outstanding"` only the cases whose name has that.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and may panic"
)]

mod support;

use std::time::Duration;
use support::bare::{Bare, BareRound};
use support::driver::{Load, Mix, Outcome, Sink, run};
use support::machine::{Running, config};
use support::{Args, Histogram, disk_bytes_written, head, median, row, short};

const LEDGERS: usize = 64;
const BARE_GROUP_BYTES: usize = 4 << 20;

struct Case {
    name: &'static str,
    entry_bytes: usize,
    outstanding: usize,
}

const CASES: [Case; 4] = [
    Case { name: "1 KiB, 20,000 outstanding", entry_bytes: 1024, outstanding: 20_000 },
    Case { name: "1 KiB, 1,000 outstanding", entry_bytes: 1024, outstanding: 1_000 },
    Case { name: "1 KiB, 1 outstanding", entry_bytes: 1024, outstanding: 1 },
    Case { name: "64 KiB, 320 outstanding", entry_bytes: 64 << 10, outstanding: 320 },
];

/// One round of one case.
struct Round {
    adds_per_s: f64,
    cpu_us_per_add: f64,
    latencies: Histogram,
    /// Of the engine: bytes on disk for each byte of entries, and KiB of a group.
    written: f64,
    group_kib: f64,
}

impl From<BareRound> for Round {
    fn from(round: BareRound) -> Round {
        Round {
            adds_per_s: round.adds as f64 / round.seconds,
            cpu_us_per_add: round.cpu.as_secs_f64() * 1e6 / round.adds as f64,
            latencies: round.latencies,
            written: 0.0,
            group_kib: 0.0,
        }
    }
}

impl Case {
    fn load(&self, seconds: f64) -> Load {
        let producers = self.outstanding.min(4);
        let outstanding = self.outstanding;
        Load { mix: Mix::of(self.entry_bytes), producers, ledgers: LEDGERS, outstanding, seconds }
    }

    fn engine(&self, running: &Running, sink: &std::sync::Arc<Sink>, seconds: f64) -> Round {
        let (before, stats) = (disk_bytes_written(), running.engine.stats());
        let (outcome, ledgers) = run(&running.engine, sink, &self.load(seconds));
        running.wait_flushed();
        let (written, done) = (disk_bytes_written() - before, running.engine.stats());
        let groups = (done.journal_groups - stats.journal_groups).max(1) as f64;
        let group_kib = (done.journal_bytes - stats.journal_bytes) as f64 / groups / 1024.0;
        let Outcome { bytes, .. } = outcome;
        running.remove(&ledgers);
        Round {
            adds_per_s: outcome.adds_per_s(),
            cpu_us_per_add: outcome.cpu_us_per_add(),
            written: written as f64 / bytes as f64,
            group_kib,
            latencies: outcome.latencies.into_iter().next().unwrap(),
        }
    }

    fn bare(&self, bare: &mut Bare, seconds: f64) -> Round {
        let group = self.outstanding.min(BARE_GROUP_BYTES / self.entry_bytes);
        bare.round(self.entry_bytes, group, LEDGERS as i64, seconds).into()
    }
}

fn main() {
    let args = Args::parse("storage");
    let sink = Sink::new(4, 1);
    let mut config = config(&args.dir, args.is_smoke);
    if let Some(spread) = args.value("--flush-spread") {
        config.flush_spread = Duration::from_secs_f64(spread.parse().unwrap());
    }
    let mut bare = Bare::new(&args.dir, args.size(128 << 20, 8 << 20), args.size(256 << 20, 16 << 20));
    let running = Running::start(config, sink.clone());
    let only = args.value("--case").unwrap_or("");
    let cases: Vec<&Case> = CASES.iter().filter(|case| case.name.contains(only)).collect();
    let mut rounds: Vec<[Vec<Round>; 2]> = cases.iter().map(|_| Default::default()).collect();
    // Everything that grows at first use has grown after this.
    CASES[0].engine(&running, &sink, args.seconds.min(2.0));
    for round in 0..args.rounds {
        for (case, rounds) in cases.iter().zip(&mut rounds) {
            for turn in [round % 2, (round + 1) % 2] {
                rounds[turn].push(match turn {
                    0 => case.bare(&mut bare, args.seconds),
                    _ => case.engine(&running, &sink, args.seconds),
                });
            }
        }
    }
    let resident = support::resident_mib();
    drop(running);

    head(&[
        "load",
        "writer",
        "adds/s",
        "of the loop",
        "p50 ms",
        "p95",
        "p99",
        "of the loop",
        "p99.9",
        "max",
        "CPU µs/add",
        "written",
        "KiB/group",
    ]);
    for (case, [bare, engine]) in cases.iter().zip(&rounds) {
        for (name, mine) in [("bare loop", bare), ("engine", engine)] {
            let of = |value: &dyn Fn(&Round) -> f64| median(mine.iter().map(value));
            let ms = |share: f64| short(of(&|r: &Round| r.latencies.at(share) / 1e3));
            // Neighbouring rounds are compared with each other: the machine drifts.
            let ratio = |value: &dyn Fn(&Round) -> f64| {
                format!("{:.2}", median(mine.iter().zip(bare).map(|(mine, bare)| value(mine) / value(bare))))
            };
            let of_engine = |value: f64, text: String| if value > 0.0 { text } else { String::new() };
            let (written, group) = (of(&|r| r.written), of(&|r| r.group_kib));
            row([
                case.name.to_owned(),
                name.to_owned(),
                format!("{:.0}", of(&|r| r.adds_per_s)),
                ratio(&|r| r.adds_per_s),
                ms(0.5),
                ms(0.95),
                ms(0.99),
                ratio(&|r| r.latencies.at(0.99)),
                ms(0.999),
                short(of(&|r| r.latencies.max() / 1e3)),
                short(of(&|r| r.cpu_us_per_add)),
                of_engine(written, format!("{written:.3}")),
                of_engine(group, short(group)),
            ]);
        }
    }
    println!("\nResident memory at the end, arenas of the bare loop included: {} MiB.", short(resident));
}
