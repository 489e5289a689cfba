//! Reads in closed loop: single ones all over, ranges of 100 as single reads in a row, batch reads of 100; from memory and
//! from disk. With `--many` the entries are small and lie in many ledgers, one entry of each in turn.

use crate::args::{Args, Target};
use crate::catchup::drop_caches;
use crate::clock::{MILLI, SECOND, now, seconds};
use crate::engine::Engine;
use crate::fill::fill;
use crate::flow::{ALWAYS, FlowSpec, Pace};
use crate::stats::Phases;
use crate::watch::{self, Watch};
use crate::work::{Filled, Work};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::time::Duration;

const COUNT: u64 = 100;

/// Merges and compactions behind a fill count as work of its adds, as far as they end within this time.
const SETTLE: Duration = Duration::from_secs(10);

/// Runs it. With `--fill-only` the entries are written and nothing is read, with `--no-fill` the other way round, so that
/// the bookie can be restarted in between; `--start-ms` says how long that took.
pub fn run(mut args: Args) -> Result<Value> {
    let target = Target::take(&mut args)?;
    let kind = args.or("kind", "random".to_owned())?;
    let is_v3 = args.or("protocol", "v2".to_owned())? == "v3";
    let readers = args.or("readers", 4usize)?;
    let is_cold = args.or("cold", false)?;
    let (warmup, length) = (args.or("warmup", 3.0)?, args.or("seconds", 5.0)?);
    let is_many = args.or("many", false)?;
    let filled =
        Filled { first: 1_000_000, ledgers: args.or("ledgers", 32)?, each: args.or("entries", 3000)? };
    let entry_size_bytes = args.or("entry-size", 1024usize)?;
    let start_ms = args.or("start-ms", 0u64)?;
    let (fill_only, no_fill) = (args.or("fill-only", false)?, args.or("no-fill", false)?);
    args.finish()?;
    let entries_filled = filled.ledgers * filled.each;
    let (cpu, fill_began) = (process_cpu(&target), now());
    if !no_fill {
        fill(&target, filled, entry_size_bytes)?;
    }
    if fill_only {
        let took = (now() - fill_began) as f64 / SECOND as f64;
        std::thread::sleep(SETTLE);
        return Ok(json!({
            "scenario": if is_many { "many" } else { "fill" }, "case": "adds", "label": target.label,
            "ledgers": filled.ledgers, "entries_filled": entries_filled, "calls_per_s": entries_filled as f64 / took,
            "cpu_us_per_call": (process_cpu(&target) - cpu) * 1e6 / entries_filled as f64,
            "rss_mib": watch::rss(target.pid) as f64 / f64::from(1 << 20), "logs": entry_logs(&target),
            "machine": watch::machine(),
        }));
    }
    let (work, pace) = match kind.as_str() {
        "random" => (Work::Random, Pace::Closed(1)),
        "range" => (Work::Sequential, Pace::Groups(COUNT as usize)),
        "batch" if !is_v3 => (Work::Batch(COUNT), Pace::Closed(1)),
        _ => bail!("--kind takes random, range or batch; batch only with v2"),
    };
    let flow = |filled| FlowSpec {
        name: "reads",
        work,
        pace: pace.clone(),
        is_v3,
        connections: readers,
        first: 0,
        filled,
        entry_size_bytes,
        timeout: 10 * SECOND,
        window: ALWAYS,
    };
    if is_cold {
        // the code is warm (a Java bookie compiles while it runs), the entries but for the first few are not
        let begin = now();
        let mut engine = Engine::new(&target.bookie, begin, vec![("code", begin + seconds(warmup))])?;
        engine.add(flow(Filled { each: COUNT.min(filled.each), ..filled }))?;
        engine.run(10 * SECOND)?;
        if !drop_caches() {
            bail!("the page cache cannot be dropped: cold reads need root");
        }
    }
    let begin = now() + 200 * MILLI;
    let warmup = if is_cold { 0.1 } else { warmup };
    let phases: Phases =
        vec![("warmup", begin + seconds(warmup)), ("measured", begin + seconds(warmup + length))];
    let mut engine = Engine::new(&target.bookie, begin, phases.clone())?;
    engine.add(flow(filled))?;
    let watch = Watch::start(&target);
    engine.run(10 * SECOND)?;
    std::thread::sleep(Duration::from_millis(200));
    let samples = watch.finish();
    let flow = engine.flows[0].json();
    let phase = &flow["phases"]["measured"];
    let calls = phase["ok_per_s"].as_f64().unwrap_or(0.0);
    let entries = phase["bytes"].as_f64().unwrap_or(0.0) / entry_size_bytes as f64 / length;
    let summary = watch::summary(&samples, phases[0].1, phases[1].1);
    let cpu = summary["bookie_cores"].as_f64().unwrap_or(0.0) * 1e6;
    Ok(json!({
        "scenario": if is_many { "many" } else { "reads" }, "case": kind, "label": target.label, "protocol": if is_v3 { "v3" } else { "v2" },
        "cold": is_cold, "readers": readers, "ledgers": filled.ledgers, "entries_filled": entries_filled, "start_ms": start_ms,
        "calls_per_s": calls, "entries_per_s": entries, "latency_ms": phase["latency_ms"],
        "cpu_us_per_call": if calls > 0.0 { cpu / calls } else { 0.0 },
        "cpu_us_per_entry": if entries > 0.0 { cpu / entries } else { 0.0 },
        "flows": { "reads": flow }, "during": summary, "machine": watch::machine(),
    }))
}

fn process_cpu(target: &Target) -> f64 {
    watch::cpu(&target.pid.to_string())
}

/// Entry logs of one of our bookies; a Java bookie does not tell.
fn entry_logs(target: &Target) -> Option<f64> {
    watch::metrics(target)?.get("bindery_entry_logs").copied()
}
