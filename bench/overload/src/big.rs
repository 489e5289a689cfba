//! The largest adds over many connections, the smallest adds as fast as they go, batch reads of many at once; beside each a
//! few healthy readers and writers.

use crate::args::{Args, Target};
use crate::clock::{MILLI, now, seconds};
use crate::engine::{Engine, flows_json, run_all};
use crate::fill::fill;
use crate::flow::{ALWAYS, FlowSpec, Pace};
use crate::stats::Phases;
use crate::watch::{self, Watch};
use crate::work::{Filled, Work};
use anyhow::{Result, bail};
use bindery_wire::FrameLimit;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

/// Runs it.
pub fn run(mut args: Args) -> Result<Value> {
    let target = Target::take(&mut args)?;
    let kind = args.or("kind", "frames".to_owned())?;
    let (work, entry_size_bytes, connections, under_way) = match kind.as_str() {
        "frames" => (Work::Add { ledgers: 1000 }, FrameLimit::DEFAULT.entry_size_bytes_max(), 1000, 1),
        "empty" => (Work::Add { ledgers: 50 }, 32, 16, 1000),
        "batch" => (Work::Batch(500), 1024, 100, 1),
        _ => bail!("--kind takes frames, empty or batch"),
    };
    let connections = args.or("connections", connections)?;
    let (before, length) = (args.or("before", 4.0)?, args.or("seconds", 10.0)?);
    let (reads, adds) = (args.or("reads-per-s", 200.0)?, args.or("adds-per-s", 200.0)?);
    args.finish()?;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;

    let filled = Filled { first: 1_000_000, ledgers: 20, each: 2000 };
    fill(&target, filled, 1024)?;
    let begin = now() + 300 * MILLI;
    let ends = [1.0, 1.0 + before, 1.0 + before + length, 1.0 + before + length + 4.0];
    let names = ["warmup", "before", "during", "after"];
    let phases: Phases = names.into_iter().zip(ends.map(|end| begin + seconds(end))).collect();
    let mut engine = Engine::new(&target.bookie, begin, phases.clone())?;
    let healthy = |name, work, rate| FlowSpec {
        name,
        work,
        pace: Pace::Open(vec![(u64::MAX, rate)]),
        is_v3: false,
        connections: 2,
        first: 2_000_000,
        filled,
        entry_size_bytes: 1024,
        timeout: seconds(5.0),
        window: ALWAYS,
    };
    engine.add(healthy("reads", Work::Random, reads))?;
    engine.add(healthy("adds", Work::Add { ledgers: 4 }, adds))?;
    let mut load = Engine::new(&target.bookie, begin, phases.clone())?;
    load.add(FlowSpec {
        name: "load",
        work,
        pace: Pace::Closed(under_way),
        connections,
        first: 6_000_000,
        entry_size_bytes,
        timeout: seconds(60.0),
        window: (phases[1].1, phases[2].1),
        ..healthy("load", work, 0.0)
    })?;
    let watch = Watch::start(&target);
    let engines = run_all(vec![engine, load], seconds(5.0))?;
    let samples = watch.finish();
    let flows = flows_json(&engines);
    drop(engines);
    Ok(json!({
        "scenario": "big", "case": "L6", "kind": kind, "label": target.label, "protocol": "v2",
        "connections": connections, "entry_size_bytes": entry_size_bytes, "flows": flows, "machine": watch::machine(),
        "before": watch::summary(&samples, phases[0].1, phases[1].1),
        "during": watch::summary(&samples, phases[1].1, phases[2].1),
        "pools_end": crate::stall::empty_pools(&target, seconds(5.0)),
    }))
}
