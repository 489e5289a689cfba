//! The figures of a run, and their tables.

use crate::MODES;
use crate::adds::Case;
use crate::reads::Took;
use crate::support::{head, median, row, short};

/// What adds took, in one round.
pub struct Round {
    pub adds_per_s: f64,
    pub writer_us: f64,
    pub keeper_us: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// For each byte of entries.
    pub journal: f64,
    pub logs: f64,
    pub tables: f64,
    pub zeros: f64,
    pub allocated: f64,
}

impl Round {
    pub fn cpu_us(&self) -> f64 {
        self.writer_us + self.keeper_us
    }

    pub fn written(&self) -> f64 {
        self.journal + self.logs + self.tables + self.zeros
    }
}

/// What reads of some logs took.
pub struct Reads {
    pub what: &'static str,
    pub cold: Took,
    pub warm: Took,
    pub random_us: f64,
    pub start_ms: f64,
    pub start_cpu_ms: f64,
    /// Looks that found in memory what the kernel was told to forget.
    pub still_cached: (usize, usize),
}

/// What comes after the adds.
pub struct After {
    pub reads: Vec<Reads>,
    pub scan_ms: f64,
    pub keep_ms: f64,
    pub restart_cpu_ms: f64,
    pub space: f64,
    pub sort: Option<Sort>,
}

pub struct Sort {
    pub cpu_us: f64,
    pub mb_s: f64,
    pub read: f64,
    pub written: f64,
}

/// A case, the rounds of each mode, and the rest for today and once.
pub type Done = (Case, [Vec<Round>; 4], Vec<After>);

pub fn tell_adds(done: &[Done]) {
    head(&[
        "load",
        "mode",
        "adds/s",
        "of today",
        "CPU µs/add",
        "of today",
        "of it logs",
        "group p50 ms",
        "p99",
        "written, journal",
        "logs or indexes",
        "tables",
        "zeros",
        "all",
        "allocated",
    ]);
    for (case, rounds, _) in done {
        for (mode, mine) in MODES.iter().zip(rounds) {
            let of = |value: &dyn Fn(&Round) -> f64| median(mine.iter().map(value));
            // Neighbouring rounds are compared with each other: the machine drifts.
            let ratio = |value: &dyn Fn(&Round) -> f64| {
                let pairs = mine.iter().zip(&rounds[0]);
                format!("{:.2}", median(pairs.map(|(mine, today)| value(mine) / value(today))))
            };
            let bytes = |value: &dyn Fn(&Round) -> f64| format!("{:.3}", of(value));
            row([
                case.name.to_owned(),
                mode.name().to_owned(),
                format!("{:.0}", of(&|r| r.adds_per_s)),
                ratio(&|r| r.adds_per_s),
                format!("{:.3}", of(&|r| r.cpu_us())),
                ratio(&|r| r.cpu_us()),
                format!("{:.3}", of(&|r| r.keeper_us)),
                format!("{:.2}", of(&|r| r.p50_ms)),
                format!("{:.2}", of(&|r| r.p99_ms)),
                bytes(&|r| r.journal),
                bytes(&|r| r.logs),
                bytes(&|r| r.tables),
                bytes(&|r| r.zeros),
                bytes(&|r| r.written()),
                bytes(&|r| r.allocated),
            ]);
        }
    }
    println!();
}

pub fn tell_reads(done: &[Done]) {
    head(&[
        "load",
        "logs",
        "entries",
        "cold MB/s",
        "CPU µs/entry",
        "calls/entry",
        "warm MB/s",
        "CPU µs/entry",
        "calls/entry",
        "random warm CPU µs",
        "start ms",
        "CPU ms",
        "not forgotten",
    ]);
    for (case, _, after) in done {
        for reads in after.iter().flat_map(|after| &after.reads) {
            row([
                case.name.to_owned(),
                reads.what.to_owned(),
                reads.cold.entries.to_string(),
                short(reads.cold.mb_s),
                format!("{:.2}", reads.cold.cpu_us),
                format!("{:.3}", reads.cold.calls),
                short(reads.warm.mb_s),
                format!("{:.2}", reads.warm.cpu_us),
                format!("{:.3}", reads.warm.calls),
                format!("{:.2}", reads.random_us),
                format!("{:.1}", reads.start_ms),
                format!("{:.1}", reads.start_cpu_ms),
                format!("{} of {}", reads.still_cached.0, reads.still_cached.1),
            ]);
        }
    }
    println!();
}

pub fn tell_rest(done: &[Done]) {
    head(&[
        "load",
        "mode",
        "space before sorting",
        "restart, read ms",
        "log ms",
        "CPU ms",
        "sorting CPU µs/entry",
        "MB/s",
        "read",
        "written",
    ]);
    for (case, _, after) in done {
        for after in after {
            let of_sort = |value: &dyn Fn(&Sort) -> String| after.sort.as_ref().map_or(String::new(), value);
            row([
                case.name.to_owned(),
                if after.sort.is_some() { "once" } else { "today" }.to_owned(),
                format!("{:.3}", after.space),
                short(after.scan_ms),
                short(after.keep_ms),
                short(after.restart_cpu_ms),
                of_sort(&|s| format!("{:.3}", s.cpu_us)),
                of_sort(&|s| short(s.mb_s)),
                of_sort(&|s| format!("{:.3}", s.read)),
                of_sort(&|s| format!("{:.3}", s.written)),
            ]);
        }
    }
}
