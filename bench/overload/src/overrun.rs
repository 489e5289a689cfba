//! Many writers that ask for more than the journal takes, and what other connections wait for meanwhile: bookie info, reads of
//! entries in memory, and fences.
//!
//! A fence is answered when its record is durable, so it cannot take less than a write of the journal, and waits for the one
//! under way before that. A fence of a ledger that is fenced already needs no write.
//!
//! Phases: warm-up, before, during (the writers write). The probes run in all of them.

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

const FENCED_FIRST: i64 = 4_000_000;

/// Runs it.
pub fn run(mut args: Args) -> Result<Value> {
    let target = Target::take(&mut args)?;
    let writers = args.or("writers", 150usize)?;
    let under_way = args.or("under-way", 100usize)?;
    let entry_size_bytes = args.or("entry-size", 4096usize)?;
    // of each kind of probe
    let rate = args.or("probes-per-s", 50.0)?;
    let lengths: [f64; 3] = [args.or("warmup", 8.0)?, args.or("before", 10.0)?, args.or("during", 20.0)?];
    let timeout = args.or("timeout", 5.0)?;
    args.finish()?;
    let total: f64 = lengths.iter().sum();
    let filled = Filled { first: 1_000_000, ledgers: 16, each: 500 };
    let unfenced = Filled { first: 3_000_000, ledgers: (rate * total) as u64 + 100, each: 1 };
    // Each of them for the first time in the warm-up, and no two fences of one under way: on v2 answers are told apart by ids.
    let round_s = lengths[0] * 0.8;
    let fenced = Filled { first: FENCED_FIRST, ledgers: (rate * round_s) as u64, each: 1 };
    fill(&target, filled, 1024)?;
    fill(&target, unfenced, 64)?;
    fill(&target, fenced, 64)?;

    let begin = now() + 300 * MILLI;
    let mut phases: Phases = Vec::new();
    for (name, length) in ["warmup", "before", "during"].into_iter().zip(lengths) {
        phases.push((name, phases.last().map_or(begin, |(_, end)| *end) + seconds(length)));
    }
    let [warm, before, during] = [phases[0].1, phases[1].1, phases[2].1];
    let probe = |name, work, filled| FlowSpec {
        name,
        work,
        pace: Pace::Open(vec![(u64::MAX, rate)]),
        is_v3: work == Work::Info,
        connections: 1,
        first: 0,
        filled,
        entry_size_bytes: 1024,
        timeout: seconds(timeout),
        window: ALWAYS,
    };
    let mut probes = Engine::new(&target.bookie, begin, phases.clone())?;
    probes.add(probe("info", Work::Info, filled))?;
    probes.add(probe("reads", Work::Random, filled))?;
    probes.add(probe("fences", Work::Fence, unfenced))?;
    probes.add(probe("fences again", Work::Fence, fenced))?;
    let mut load = Engine::new(&target.bookie, begin, phases.clone())?;
    load.add(FlowSpec {
        work: Work::Add { ledgers: writers as u64 },
        pace: Pace::Closed(under_way),
        is_v3: false,
        connections: writers,
        first: 2_000_000,
        entry_size_bytes,
        timeout: seconds(60.0),
        window: (before, during),
        ..probe("writers", Work::Random, filled)
    })?;
    let counters = || watch::metrics(&target).unwrap_or_default();
    let watch = Watch::start(&target);
    let metrics_before = counters();
    let engines = run_all(vec![probes, load], seconds(timeout))?;
    let metrics = counters();
    let samples = watch.finish();
    let changed = |name: &str| {
        let of = |metrics: &std::collections::BTreeMap<String, f64>| {
            metrics.iter().filter(|(key, _)| key.starts_with(name)).map(|(_, value)| value).sum::<f64>()
        };
        of(&metrics) - of(&metrics_before)
    };
    let syncs = changed("bookie_journal_JOURNAL_SYNC_count");
    Ok(json!({
        "scenario": "overrun", "case": "F1", "label": target.label, "protocol": "v2",
        "writers": writers, "under_way": under_way, "entry_size_bytes": entry_size_bytes, "probes_per_s": rate,
        "flows": flows_json(&engines), "machine": watch::machine(),
        "write_pool_full": changed("bindery_write_pool_full"),
        "inbound_waits": changed("bindery_pool_waits{pool=\"inbound"),
        "journal_write_ms": (syncs > 0.0).then(|| changed("bookie_journal_JOURNAL_SYNC_sum") / syncs),
        "before": watch::summary(&samples, warm, before), "during": watch::summary(&samples, before, during),
        "rss_peak_mib": watch::rss_peak(target.pid) as f64 / 1048576.0,
        "pools_end": crate::stall::empty_pools(&target, seconds(5.0)),
    }))
}
