//! Adds in open loop below, at and above what the bookie can do, and how soon it is itself again.

use crate::args::{Args, Target};
use crate::clock::{MILLI, SECOND, now, seconds};
use crate::engine::Engine;
use crate::flow::{ALWAYS, FlowSpec, Pace};
use crate::stats::Phases;
use crate::watch::{self, Watch};
use crate::work::{Filled, Work};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::time::Duration;

/// Percent of capacity, and the name of its phase.
const STEPS: [(f64, &str); 6] =
    [(50.0, "50"), (80.0, "80"), (100.0, "100"), (120.0, "120"), (200.0, "200"), (50.0, "after")];

/// How much deeper the queue of the second closed loop is.
const DEEP: usize = 16;

/// Runs it.
pub fn run(mut args: Args) -> Result<Value> {
    let target = Target::take(&mut args)?;
    let is_v3 = args.or("protocol", "v2".to_owned())? == "v3";
    let connections = args.or("connections", 16usize)?;
    let under_way = args.or("under-way", 4000usize)?;
    let (warmup, length, step) =
        (args.or("warmup", 3.0)?, args.or("capacity-seconds", 4.0)?, args.or("seconds", 6.0)?);
    let entry_size_bytes = args.or("entry-size", 1024usize)?;
    // an answer later than this is worth nothing
    let timeout = args.or("timeout", 1.0)?;
    // the client itself gives up requests that the kernel has not taken by then
    let unsent_max = args.or("unsent-max", timeout / 4.0)?;
    let case = args.text("case").unwrap_or_else(|| "L2".to_owned());
    args.finish()?;

    let begin = now() + 200 * MILLI;
    let (capacity_begin, capacity_end) = (begin + seconds(warmup), begin + seconds(warmup + length));
    let phases: Phases = vec![("warmup", capacity_begin), ("capacity", capacity_end)];
    let mut engine = Engine::new(&target.bookie, begin, phases)?;
    engine.add(FlowSpec {
        name: "adds",
        work: Work::Add { ledgers: 50 },
        pace: Pace::Closed((under_way / connections).max(1)),
        is_v3,
        connections,
        first: 5_000_000,
        filled: Filled { first: 1_000_000, ledgers: 1, each: 1 },
        entry_size_bytes,
        timeout: seconds(10.0),
        window: ALWAYS,
    })?;
    let (closed, capacity) = closed_loop(&mut engine, capacity_begin, capacity_end)?;
    if capacity < 1.0 {
        bail!("nothing was added in closed loop: {closed}");
    }
    eprintln!("  capacity {capacity:.0} adds/s");
    std::thread::sleep(Duration::from_secs(2));

    // The same with the queue of an overloaded bookie: its capacity then, whichever clients send. It is lower: bytes
    // that waited are no longer in the processor's caches when they are copied.
    let begin = now() + 200 * MILLI;
    let (deep_begin, deep_end) = (begin + SECOND, begin + SECOND + seconds(length));
    engine.restart(begin, &vec![("fill", deep_begin), ("deep", deep_end)]);
    engine.flows[0].set_pace(Pace::Closed((DEEP * under_way / connections).max(1)));
    let (deep, deep_capacity) = closed_loop(&mut engine, deep_begin, deep_end)?;
    eprintln!("  {deep_capacity:.0} adds/s with {} under way", DEEP * under_way);
    std::thread::sleep(Duration::from_secs(2));

    let begin = now() + 200 * MILLI;
    let (mut phases, mut rates): (Phases, Vec<(u64, f64)>) = (Vec::new(), Vec::new());
    let mut end = begin;
    for (percent, name) in STEPS {
        // time enough to see the end of it
        end += seconds(if name == "after" { step + 6.0 } else { step });
        phases.push((name, end));
        rates.push((end, capacity * percent / 100.0));
    }
    engine.restart(begin, &phases);
    engine.flows[0].set_pace(Pace::Open(rates));
    engine.flows[0].set_timeout(seconds(timeout));
    engine.flows[0].set_unsent_max(seconds(unsent_max));
    let watch = Watch::start(&target);
    engine.run(seconds(timeout + 1.0))?;
    let samples = watch.finish();
    let flow = engine.flows[0].json();
    let calm = flow["phases"]["50"]["latency_ms"]["p99"].as_f64().unwrap_or(0.0);
    let drop_at = phases[phases.len() - 2].1;
    let back = engine.flows[0].stats.back_to(drop_at, (2.0 * calm).max(calm + 5.0));
    Ok(json!({
        "scenario": "rates", "case": case, "label": target.label, "protocol": if is_v3 { "v3" } else { "v2" },
        "capacity": capacity, "closed": closed["phases"]["capacity"], "deep": deep["phases"]["deep"],
        "deep_capacity": deep_capacity, "under_way": under_way, "deep_under_way": DEEP * under_way,
        "timeout_s": timeout, "unsent_max_s": unsent_max,
        "steps": STEPS.iter().map(|(percent, name)| json!([name, percent])).collect::<Value>(),
        "flows": { "adds": flow }, "machine": watch::machine(),
        "back_s": back.map(|took| took as f64 / 1e9),
        "during": watch::summary(&samples, begin, drop_at),
        "phase_ends": phases.iter().map(|(name, end)| json!([name, (end - begin) as f64 / 1e9])).collect::<Value>(),
        "rss": watch::rss_series(&samples, begin),
    }))
}

/// Runs a closed loop to its end: its figures, and the best second of that time, so that a disturbance does not pass for
/// the capacity.
fn closed_loop(engine: &mut Engine, from: u64, to: u64) -> Result<(Value, f64)> {
    engine.run(seconds(10.0))?;
    let flow = &engine.flows[0];
    Ok((flow.json(), flow.stats.peak_per_s(from, to)))
}
