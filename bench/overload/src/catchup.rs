//! Readers that catch up through far more than memory holds, beside writers and readers of what was just written.

use crate::args::{Args, Target};
use crate::clock::{MILLI, now, seconds};
use crate::engine::{Engine, flows_json, run_all};
use crate::fill::fill;
use crate::flow::{ALWAYS, FlowSpec, Pace};
use crate::stats::Phases;
use crate::watch::{self, Watch};
use crate::work::{Filled, Work};
use anyhow::Result;
use serde_json::{Value, json};

/// Runs it.
pub fn run(mut args: Args) -> Result<Value> {
    let target = Target::take(&mut args)?;
    let fill_mib = args.or("fill-mib", 5120u64)?;
    let readers = args.or("catch-up", 4usize)?;
    let under_way = args.or("under-way", 100usize)?;
    let adds = args.or("adds-per-s", 2000.0)?;
    let (before, during) = (args.or("before", 6.0)?, args.or("during", 12.0)?);
    args.finish()?;
    let filled = Filled { first: 1_000_000, ledgers: 32, each: (fill_mib << 20) / 1024 / 32 };
    fill(&target, filled, 1024)?;
    drop_caches();

    let begin = now() + 300 * MILLI;
    let ends = [2.0, 2.0 + before, 2.0 + before + during, 2.0 + 2.0 * before + during];
    let names = ["warmup", "before", "during", "after"];
    let phases: Phases = names.into_iter().zip(ends.map(|end| begin + seconds(end))).collect();
    let mut engine = Engine::new(&target.bookie, begin, phases.clone())?;
    let writes = FlowSpec {
        name: "adds",
        work: Work::Add { ledgers: 16 },
        pace: Pace::Open(vec![(u64::MAX, adds)]),
        is_v3: false,
        connections: 2,
        first: 2_000_000,
        filled,
        entry_size_bytes: 1024,
        timeout: seconds(5.0),
        window: ALWAYS,
    };
    let writer = engine.add(writes.clone())?;
    let tail = FlowSpec { name: "tail", work: Work::Follow, pace: Pace::Followed, ..writes.clone() };
    let reader = engine.add(tail)?;
    engine.follow(writer, reader);
    let mut behind = Engine::new(&target.bookie, begin, phases.clone())?;
    behind.add(FlowSpec {
        name: "catch-up",
        work: Work::Sequential,
        pace: Pace::Closed(under_way),
        connections: readers,
        window: (phases[1].1, phases[2].1),
        ..writes
    })?;
    let counters = || watch::metrics(&target).unwrap_or_default();
    let metrics_before = counters();
    let watch = Watch::start(&target);
    let engines = run_all(vec![engine, behind], seconds(5.0))?;
    let samples = watch.finish();
    let metrics = counters();
    let changed = |name: &str| metrics.get(name).unwrap_or(&0.0) - metrics_before.get(name).unwrap_or(&0.0);
    let flows = flows_json(&engines);
    Ok(json!({
        "scenario": "catchup", "case": "L7", "label": target.label, "protocol": "v2", "fill_mib": fill_mib,
        "adds_per_s": adds, "readers": readers, "flows": flows, "machine": watch::machine(),
        "before": watch::summary(&samples, phases[0].1, phases[1].1),
        "during": watch::summary(&samples, phases[1].1, phases[2].1),
        "reads_without_wait": changed("bindery_reads_without_wait"),
        "ahead_hits": changed("bindery_cache_hits{kind=\"ahead\"}"),
        "ahead_misses": changed("bindery_cache_misses{kind=\"ahead\"}"),
    }))
}

/// Writes the page cache out and empties it; whether that was allowed.
pub fn drop_caches() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
