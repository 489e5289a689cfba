//! Admission by bytes against admission by number of writes: the same engine, both admitting the same mean bytes.
//!
//!     cargo bench -p bindery-engine --bench admission -- --seconds 0.8 --rounds 5 --dir /some/disk --svg plot.svg
//!
//! The limit bounds the group that forms while the one before is written. The engine limits it by bytes
//! (`group_bytes_max`, 16 MiB by default); a limit by writes is a switch in the same place, with limit / mean size as
//! its number. One shard, so that the limit is one number. Closed loop, with more outstanding than both admit: a mix of
//! 90 % entries of 1 KiB and 10 % of 1 MiB (64 producers with 16 adds each), and 10 writers of 2 MiB with one each.
//! Both engines are open at the same time, and their rounds alternate. Latency begins when an add is offered, before it
//! waits for room.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and may panic"
)]

mod support;

use bindery_engine::{Admission, EngineConfig};
use std::fmt::Write;
use std::sync::Arc;
use support::driver::{Load, Mix, Outcome, Sink, run};
use support::machine::{Running, config};
use support::{Args, head, median, row, short};

const MIB: usize = 1 << 20;

struct Scenario {
    title: &'static str,
    mix: Mix,
    classes: &'static [&'static str],
    producers: usize,
    outstanding: usize,
    /// Limits in bytes.
    limits: [usize; 8],
}

fn scenarios() -> [Scenario; 2] {
    [
        Scenario {
            title: "90 % 1 KiB, 10 % 1 MiB",
            mix: Mix(vec![(1024, 9), (MIB, 1)]),
            classes: &["1 KiB", "1 MiB"],
            producers: 64,
            outstanding: 1024,
            limits: [MIB / 2, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 24 * MIB, 32 * MIB],
        },
        Scenario {
            title: "10 writers of 2 MiB",
            mix: Mix::of(2 * MIB),
            classes: &["2 MiB"],
            producers: 10,
            outstanding: 10,
            limits: [2, 4, 6, 8, 10, 12, 14, 16].map(|mib| mib * MIB),
        },
    ]
}

/// All rounds of one way at one limit.
#[derive(Default)]
struct Series(Vec<Outcome>);

impl Series {
    fn of(&self, value: impl Fn(&Outcome) -> f64) -> f64 {
        median(self.0.iter().map(value))
    }

    fn mib_per_s(&self) -> f64 {
        self.of(|o| o.bytes as f64 / o.seconds / MIB as f64)
    }

    fn p99_ms(&self) -> f64 {
        self.of(|o| o.latencies[0].at(0.99) / 1e3)
    }
}

/// The ways at each limit.
type Rows = Vec<(usize, [Series; 2])>;

const WAYS: [&str; 2] = ["bytes", "writes"];

fn measure(args: &Args, scenario: &Scenario, limit: usize) -> [Series; 2] {
    let writes = ((limit as f64 / scenario.mix.mean()).round() as usize).max(1);
    let sinks = [0, 1].map(|_| Sink::new(scenario.producers, scenario.classes.len()));
    let start = |way: usize| {
        let base = config(&args.dir.join(WAYS[way]), args.is_smoke);
        let config = EngineConfig {
            shard_count: 1,
            write_pool_bytes: args.size(256 * MIB as u64, 128 * MIB as u64),
            admission: if way == 0 { Admission::Bytes } else { Admission::Writes(writes) },
            group_bytes_max: limit,
            ..base
        };
        Running::start(config, sinks[way].clone())
    };
    let engines = [start(0), start(1)];
    let load = Load {
        mix: scenario.mix.clone(),
        producers: scenario.producers,
        ledgers: scenario.producers,
        outstanding: scenario.outstanding,
        seconds: args.seconds,
    };
    let mut series: [Series; 2] = Default::default();
    let mut ledgers = [Vec::new(), Vec::new()];
    for round in 0..args.rounds {
        for way in [round % 2, (round + 1) % 2] {
            let (outcome, used): (Outcome, _) = run(&engines[way].engine, &Arc::clone(&sinks[way]), &load);
            series[way].0.push(outcome);
            ledgers[way].extend(used);
            // The other way's round begins with a quiet disk.
            engines[way].wait_flushed();
        }
    }
    for (engine, ledgers) in engines.iter().zip(&ledgers) {
        engine.remove(ledgers);
    }
    series
}

fn table(scenario: &Scenario, measured: &[(usize, [Series; 2])]) {
    println!("#### {}\n", scenario.title);
    head(&[
        "limit MiB",
        "admission by",
        "MiB/s",
        "class",
        "adds/s",
        "mean ms",
        "p50",
        "p95",
        "p99",
        "p99.9",
        "max",
        "CPU µs/add",
    ]);
    for (limit, ways) in measured {
        for (way, series) in WAYS.iter().zip(ways) {
            for (class, name) in scenario.classes.iter().enumerate() {
                let ms = |share: f64| short(series.of(|o| o.latencies[class].at(share) / 1e3));
                row([
                    short(*limit as f64 / MIB as f64),
                    (*way).to_owned(),
                    format!("{:.0}", series.mib_per_s()),
                    (*name).to_owned(),
                    format!("{:.0}", series.of(|o| o.latencies[class].total() as f64 / o.seconds)),
                    short(series.of(|o| o.latencies[class].mean() / 1e3)),
                    ms(0.5),
                    ms(0.95),
                    ms(0.99),
                    ms(0.999),
                    short(series.of(|o| o.latencies[class].max() / 1e3)),
                    short(series.of(Outcome::cpu_us_per_add)),
                ]);
            }
        }
    }
    let (limit, [bytes, writes]) =
        measured.iter().find(|(limit, _)| *limit == 8 * MIB).unwrap_or(measured.last().unwrap());
    let ratio = |value: &dyn Fn(&Outcome) -> f64| {
        median(bytes.0.iter().zip(&writes.0).map(|(bytes, writes)| value(bytes) / value(writes)))
    };
    println!(
        "\nAt {} MiB, by bytes / by writes, {}: throughput {:.2}, p50 {:.2}, p99 {:.2}, p99.9 {:.2}.\n",
        limit / MIB,
        scenario.classes[0],
        ratio(&|o| o.latencies[0].total() as f64 / o.seconds),
        ratio(&|o| o.latencies[0].at(0.5)),
        ratio(&|o| o.latencies[0].at(0.99)),
        ratio(&|o| o.latencies[0].at(0.999)),
    );
}

/// Throughput to the right, p99 of the first class upwards, a line for each way, a point for each limit.
fn plot(measured: &[(Scenario, Rows)]) -> String {
    let (w, h, margin, bottom) = (440.0, 300.0, 60.0, 250.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{h}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        w * 2.0
    );
    for (panel, (scenario, rows)) in measured.iter().enumerate() {
        let all = || rows.iter().flat_map(|(_, ways)| ways);
        let x_max = all().map(Series::mib_per_s).fold(1.0, f64::max) * 1.05;
        let y_max = all().map(Series::p99_ms).fold(0.1, f64::max) * 1.1;
        let left = margin + w * panel as f64;
        let (width, height) = (w - margin - 30.0, bottom - 40.0);
        let x = |value: f64| left + value / x_max * width;
        let y = |value: f64| bottom - value / y_max * height;
        let mut text = |x: f64, y: f64, anchor: &str, color: &str, what: &str| {
            writeln!(
                svg,
                "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\" fill=\"{color}\">{what}</text>"
            )
            .unwrap();
        };
        text(left, 18.0, "start", "black", scenario.title);
        text(left + width, bottom + 35.0, "end", "black", "MiB/s");
        text(left - 6.0, 34.0, "end", "black", &format!("p99 ms, {}", scenario.classes[0]));
        for step in 0..=4 {
            let share = f64::from(step) / 4.0;
            text(x(x_max * share), bottom + 18.0, "middle", "black", &format!("{:.0}", x_max * share));
            text(left - 6.0, y(y_max * share), "end", "black", &short(y_max * share));
        }
        for (way, color) in ["#1f6fb4", "#c0392b"].into_iter().enumerate() {
            text(left + 10.0, 54.0 + 16.0 * way as f64, "start", color, &format!("by {}", WAYS[way]));
            for (limit, ways) in rows {
                let (at_x, at_y) = (x(ways[way].mib_per_s()), y(ways[way].p99_ms()));
                text(at_x + 4.0, at_y - 4.0, "start", color, &short(*limit as f64 / MIB as f64));
            }
        }
        writeln!(svg, "<path d=\"M{left} 40V{bottom}H{}\" fill=\"none\" stroke=\"black\"/>", left + width)
            .unwrap();
        for (way, color) in ["#1f6fb4", "#c0392b"].into_iter().enumerate() {
            let points: Vec<(f64, f64)> =
                rows.iter().map(|(_, ways)| (x(ways[way].mib_per_s()), y(ways[way].p99_ms()))).collect();
            let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\"/>", line.join(" "))
                .unwrap();
            for (x, y) in points {
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>").unwrap();
            }
        }
    }
    svg + "</svg>\n"
}

fn main() {
    let args = Args::parse("admission");
    let mut measured = Vec::new();
    for scenario in scenarios() {
        let limits = &scenario.limits[args.size(0, 6)..];
        let rows: Rows = limits.iter().map(|limit| (*limit, measure(&args, &scenario, *limit))).collect();
        table(&scenario, &rows);
        measured.push((scenario, rows));
    }
    let svg = plot(&measured);
    assert!(svg.matches("<polyline").count() == 4, "two lines in each panel");
    if let Some(path) = args.value("--svg") {
        std::fs::write(path, svg).unwrap();
    }
}
