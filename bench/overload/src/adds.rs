//! The cost that a batch shares: adds in closed loop over numbers of ledgers and connections; system calls, wake-ups
//! and CPU of each add, and the sizes of batches that the bookie's own metrics tell.

use crate::args::{Args, Target};
use crate::clock::{MILLI, now, seconds, sleep_until};
use crate::engine::Engine;
use crate::flow::{ALWAYS, FlowSpec, Pace};
use crate::stats::Phases;
use crate::watch::{self, ThreadLook};
use crate::work::{Filled, Work};
use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Command;

/// Runs it.
pub fn run(mut args: Args) -> Result<Value> {
    let target = Target::take(&mut args)?;
    let is_v3 = args.or("protocol", "v2".to_owned())? == "v3";
    let ledgers = args.or("ledgers", 50u64)?;
    let connections = args.or("connections", 16usize)?;
    let under_way = args.or("under-way", 4096usize)?;
    let (warmup, length) = (args.or("warmup", 2.0)?, args.or("seconds", 4.0)?);
    let entry_size_bytes = args.or("entry-size", 1024usize)?;
    let first = args.or("first", 10_000_000i64)?;
    let cap = args.text("cap");
    let trace = args.or("trace", true)?;
    args.finish()?;

    let begin = now() + 200 * MILLI;
    // system calls are counted apart, since that slows the bookie
    let traced = if trace { 2.0 } else { 0.0 };
    let ends = [warmup, warmup + length, warmup + length + traced];
    let phases: Phases =
        ["warmup", "measured", "traced"].into_iter().zip(ends.map(|end| begin + seconds(end))).collect();
    let mut engine = Engine::new(&target.bookie, begin, phases.clone())?;
    engine.add(FlowSpec {
        name: "adds",
        work: Work::Add { ledgers },
        pace: Pace::Closed((under_way / connections).max(1)),
        is_v3,
        connections,
        first,
        filled: Filled { first: 1_000_000, ledgers: 1, each: 1 },
        entry_size_bytes,
        timeout: seconds(10.0),
        window: ALWAYS,
    })?;
    let engine = std::thread::spawn(move || engine.run(seconds(10.0)).map(|()| engine));
    sleep_until(phases[0].1);
    let before = Counters::of(&target);
    sleep_until(phases[1].1);
    let after = Counters::of(&target);
    let calls = if trace { count_calls(target.pid, phases[2].1) } else { None };
    let engine = engine.join().map_err(|_| anyhow!("the engine's thread panicked"))??;
    let flow = engine.flows[0].json();
    let rate = |phase: &str| flow["phases"][phase]["ok_per_s"].as_f64().unwrap_or(0.0);
    let added = rate("measured") * length;
    let each = |after: f64, before: f64| if added > 0.0 { (after - before) / added } else { 0.0 };
    let (mut wakes, mut reads, mut writes) = (0.0, 0.0, 0.0);
    for (id, look) in &after.threads {
        wakes += look.saturating_sub(*before.threads.get(id).unwrap_or(&0)) as f64;
    }
    for (name, into) in [("syscr", &mut reads), ("syscw", &mut writes)] {
        *into = each(after.io[name] as f64, before.io[name] as f64);
    }
    let batches: BTreeMap<&String, f64> = (after.metrics.iter())
        .filter(|(name, _)| name.to_ascii_lowercase().contains("batch") || name.contains("_answers_"))
        .map(|(name, value)| (name, value - before.metrics.get(name).unwrap_or(&0.0)))
        .collect();
    let groups = |part: &str| -> f64 {
        let of = |name: &str| name.contains("JOURNAL_FORCE_WRITE_BATCH_ENTRIES") && name.contains(part);
        batches.iter().filter(|(name, _)| of(name)).map(|(_, value)| value).sum()
    };
    let group_entries =
        Some(groups("_sum") / groups("_count")).filter(|mean| mean.is_finite() && *mean > 0.0);
    let batch = |q: f64| quantile(&batches, "bindery_add_batch_entries_bucket{le=\"", q);
    let answers = |q: f64| quantile(&batches, "bindery_add_answers_per_connection_and_group_bucket{le=\"", q);
    Ok(json!({
        "scenario": "adds", "case": "batching", "label": target.label, "protocol": if is_v3 { "v3" } else { "v2" },
        "ledgers": ledgers, "connections": connections, "under_way": under_way, "cap": cap,
        "adds_per_s": rate("measured"), "latency_ms": flow["phases"]["measured"]["latency_ms"],
        "cpu_us_per_add": each(after.cpu * 1e6, before.cpu * 1e6),
        "wakes_per_add": if added > 0.0 { wakes / added } else { 0.0 },
        "reads_per_add": reads, "writes_per_add": writes,
        "calls_per_add": calls.map(|(count, took)| count / (rate("traced") * took).max(1.0)),
        "group_entries": group_entries, "batch_p50": batch(0.5), "batch_p90": batch(0.9),
        "answers_p50": answers(0.5), "answers_p90": answers(0.9), "batch_metrics": batches, "machine": watch::machine(),
        "flows": { "adds": flow },
    }))
}

/// The bound of the bucket in which a quantile of a histogram lies; `prefix` is everything up to the bound.
fn quantile(changes: &BTreeMap<&String, f64>, prefix: &str, q: f64) -> Option<f64> {
    let bound = |name: &str| name.strip_prefix(prefix)?.split('"').next()?.parse::<f64>().ok();
    let mut buckets: Vec<(f64, f64)> =
        changes.iter().filter_map(|(name, count)| Some((bound(name)?, *count))).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all = buckets.last()?.1;
    buckets.iter().find(|(_, below)| all > 0.0 && *below >= q * all).map(|(bound, _)| *bound)
}

/// Counters of a bookie.
struct Counters {
    cpu: f64,
    threads: BTreeMap<u32, u64>,
    io: BTreeMap<String, u64>,
    metrics: BTreeMap<String, f64>,
}

impl Counters {
    fn of(target: &Target) -> Counters {
        let io = std::fs::read_to_string(format!("/proc/{}/io", target.pid)).unwrap_or_default();
        let mut io: BTreeMap<String, u64> = (io.lines())
            .filter_map(|line| {
                line.split_once(": ").and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)))
            })
            .collect();
        for name in ["syscr", "syscw"] {
            io.entry(name.to_owned()).or_default();
        }
        let voluntary = |look: ThreadLook| look.voluntary;
        Counters {
            cpu: watch::cpu(&target.pid.to_string()),
            threads: watch::threads(target.pid).into_iter().map(|(id, look)| (id, voluntary(look))).collect(),
            io,
            metrics: watch::metrics(target).unwrap_or_default(),
        }
    }
}

/// System calls of a process and the seconds they were counted in; `None` when nothing here can count them.
fn count_calls(pid: u32, until: u64) -> Option<(f64, f64)> {
    let length = until.saturating_sub(now()).saturating_sub(300 * MILLI) as f64 / 1e9;
    if length < 0.5 {
        return None;
    }
    let out = Command::new("perf")
        .args([
            "stat",
            "-x,",
            "-e",
            "raw_syscalls:sys_enter",
            "-p",
            &pid.to_string(),
            "--",
            "sleep",
            &length.to_string(),
        ])
        .output();
    let counted = out.ok().and_then(|out| {
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        text.lines().find(|line| line.contains("raw_syscalls"))?.split(',').next()?.parse::<f64>().ok()
    });
    // counted while the sleep ran: starting and ending perf is not in it
    counted.map(|count| (count, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let names: Vec<String> =
            ["1", "2", "4", "+Inf"].iter().map(|le| format!("sizes{{le=\"{le}\"}}")).collect();
        let changes: BTreeMap<&String, f64> = names.iter().zip([10.0, 10.0, 90.0, 100.0]).collect();
        let at = |q| quantile(&changes, "sizes{le=\"", q);
        assert_eq!((at(0.1), at(0.11), at(0.9)), (Some(1.0), Some(4.0), Some(4.0)));
        assert_eq!(at(0.95), Some(f64::INFINITY));
        assert_eq!(quantile(&changes, "others{le=\"", 0.5), None);
    }
}
