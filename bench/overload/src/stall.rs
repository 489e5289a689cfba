//! Healthy readers and writers in open loop, beside consumers that ask for much and drain slowly or never; or, with `--heads`,
//! beside peers of the HTTP port that send heads without an end.
//!
//! With `--consumers-at` the consumers, or those peers, connect to another bookie of the machine: the control. Any
//! longer wait of healthy clients then comes from the CPU time that the peers and that bookie take on the shared
//! machine.
//!
//! Phases: warm-up, before, during (consumers connect at its begin), after (their sockets close at its begin).

use crate::args::{Args, Target};
use crate::clock::{MILLI, SECOND, now, seconds, sleep_until};
use crate::consumers::{self, ConsumerSpec};
use crate::engine::Engine;
use crate::fill::fill;
use crate::flow::{ALWAYS, FlowSpec, Pace};
use crate::heads::{self, HeadsSpec};
use crate::link::Endpoint;
use crate::probe::{Probes, fences_needed};
use crate::stats::Phases;
use crate::watch::{self, Watch};
use crate::work::{Filled, Work};
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const FILL_FIRST: i64 = 1_000_000;
const WRITER_FIRST: i64 = 2_000_000;
const FENCE_FIRST: i64 = 3_000_000;

/// The peers beside the healthy clients.
#[derive(Debug, Clone)]
enum Crowd {
    Consumers(ConsumerSpec),
    Heads(HeadsSpec),
}

impl Crowd {
    fn run(&self, at: &Endpoint, stop: &Arc<AtomicBool>) -> Result<Value> {
        match self {
            Crowd::Consumers(spec) => Ok(consumers::run(at, spec, stop)?.json()),
            Crowd::Heads(spec) => Ok(heads::run(at.address, spec, stop)?.json()),
        }
    }
}

/// Runs it.
pub fn run(mut args: Args) -> Result<Value> {
    let target = Target::take(&mut args)?;
    let is_v3 = args.or("protocol", "v2".to_owned())? == "v3";
    let entry_size_bytes = args.or("entry-size", 1024usize)?;
    let filled =
        Filled { first: FILL_FIRST, ledgers: args.or("ledgers", 32)?, each: args.or("entries", 3000)? };
    let spec = ConsumerSpec {
        count: args.or("consumers", 1)?,
        pipeline: args.or("pipeline", 20_000)?,
        is_v3,
        filled,
        drain_per_s: args.or("drain", 0)?,
        half_close: args.or("half-close", false)?,
    };
    let heads = HeadsSpec {
        count: args.or("heads", 0)?,
        head_bytes: args.or("head-bytes", 390_000)?,
        again_after: seconds(args.or("again-after", 0.0)?),
    };
    let is_of_heads = heads.count > 0;
    let (readers, reads) = (args.or("readers", 4usize)?, args.or("reads-per-s", 1000.0)?);
    let (writers, adds) = (args.or("writers", 2usize)?, args.or("adds-per-s", 500.0)?);
    let lengths: [f64; 4] =
        [args.or("warmup", 3.0)?, args.or("before", 6.0)?, args.or("during", 10.0)?, args.or("after", 6.0)?];
    let settle = args.or("settle", 0.0)?;
    let timeout = args.or("timeout", 5.0)?;
    let case = args.text("case").unwrap_or_else(|| "D".to_owned());
    let elsewhere: Option<SocketAddr> =
        args.text("consumers-at").map(|text| text.parse()).transpose().context("--consumers-at")?;
    let elsewhere = elsewhere.map(|address| Endpoint { address, ..target.bookie.clone() });
    args.finish()?;

    fill(&target, filled, entry_size_bytes)?;
    if let Some(bookie) = elsewhere.clone().filter(|_| !is_of_heads) {
        fill(&Target { bookie, ..target.clone() }, filled, entry_size_bytes)?;
    }
    let total: f64 = lengths.iter().sum();
    let fences = fences_needed(total);
    fill(&target, Filled { first: FENCE_FIRST, ledgers: fences, each: 1 }, 64)?;
    std::thread::sleep(Duration::from_secs_f64(settle));

    let begin = now() + 300 * MILLI;
    let mut phases: Phases = Vec::new();
    for (name, length) in ["warmup", "before", "during", "after"].into_iter().zip(lengths) {
        phases.push((name, phases.last().map_or(begin, |(_, end)| *end) + seconds(length)));
    }
    let [warm, before, during, after] = [phases[0].1, phases[1].1, phases[2].1, phases[3].1];
    let mut engine = Engine::new(&target.bookie, begin, phases.clone())?;
    let flow = |name, work, rate, connections| FlowSpec {
        name,
        work,
        pace: Pace::Open(vec![(u64::MAX, rate)]),
        is_v3,
        connections,
        first: WRITER_FIRST,
        filled,
        entry_size_bytes,
        timeout: seconds(timeout),
        window: ALWAYS,
    };
    engine.add(flow("reads", Work::Random, reads, readers))?;
    engine.add(flow("adds", Work::Add { ledgers: writers as u64 * 4 }, adds, writers))?;

    let watch = Watch::start(&target);
    let wait = Duration::from_secs_f64(timeout);
    let probes = Probes::start(&target, begin, after, FENCE_FIRST, fences, wait);
    let engine = std::thread::spawn(move || engine.run(seconds(timeout)).map(|()| engine));

    // the threads' activity before and during the stall
    let look = |at: u64| {
        sleep_until(at);
        watch::threads(target.pid)
    };
    let calm = [look(warm), look(warm + (before - warm) / 2), look(before - 50 * MILLI)];
    sleep_until(before);
    let stop = Arc::new(AtomicBool::new(false));
    let crowd = if is_of_heads { Crowd::Heads(heads.clone()) } else { Crowd::Consumers(spec.clone()) };
    let mut here = target.bookie.clone();
    if is_of_heads {
        here = Endpoint { address: target.admin.context("--admin is needed with --heads")?, tls: None };
    }
    let (until, at) = (Arc::clone(&stop), elsewhere.clone().unwrap_or(here));
    let consumers = std::thread::spawn(move || crowd.run(&at, &until));
    let middle = look(before + (during - before) / 2);
    let pid = target.is_java.then_some(target.pid);
    let stacks = std::thread::spawn(move || watch::java_stacks(pid?));
    let stalled = [middle, look(during.saturating_sub(300 * MILLI).max(before))];
    let (sent, received) = watch::socket_bytes(target.bookie.address.port()).unwrap_or((0, 0));
    let tls_connections = watch::metrics(&target).and_then(|all| all.get("bindery_tls_connections").copied());
    sleep_until(during);
    stop.store(true, Ordering::Relaxed);
    let seen = consumers.join().map_err(|_| anyhow!("the consumers' thread panicked"))??;
    let closed = now();
    let calm_bytes = watch.pools_max(warm, before);
    let back = calm_bytes.and_then(|calm| bytes_back(&target, closed, calm));

    let engine = engine.join().map_err(|_| anyhow!("the engine's thread panicked"))?.context("run")?;
    let stacks = stacks.join().ok().flatten();
    let probes = probes.finish(begin, &phases);
    let samples = watch.finish();
    let pools_end = empty_pools(&target, 5 * SECOND);
    let flows: serde_json::Map<String, Value> =
        engine.flows.iter().map(|flow| (flow.name().to_owned(), flow.json())).collect();
    let stopped = watch::stopped(&calm, &stalled);
    let names = stopped
        .iter()
        .map(|look| format!("{} in {}", look.name, if look.wchan.is_empty() { "?" } else { &look.wchan }));
    Ok(json!({
        "scenario": "stall", "case": case, "label": target.label, "protocol": if is_v3 { "v3" } else { "v2" },
        "is_encrypted": target.bookie.tls.is_some(), "tls_connections": tls_connections,
        "consumers": if is_of_heads { heads.count } else { spec.count }, "pipeline": spec.pipeline,
        "drain_per_s": spec.drain_per_s, "half_close": spec.half_close,
        "head_bytes": is_of_heads.then_some(heads.head_bytes), "again_after_s": heads.again_after as f64 / 1e9, "elsewhere": elsewhere.is_some(), "entry_size_bytes": entry_size_bytes,
        "reads_per_s": reads, "adds_per_s": adds,
        "machine": watch::machine(), "flows": flows, "probes": probes, "seen": seen,
        "before": watch::summary(&samples, warm, before),
        "during": watch::summary(&samples, before, during),
        "after": watch::summary(&samples, during, after),
        "rss": watch::rss_series(&samples, begin), "rss_peak_mib": watch::rss_peak(target.pid) as f64 / 1048576.0,
        "phase_ends": phases.iter().map(|(name, end)| json!([name, (end - begin) as f64 / 1e9])).collect::<Value>(),
        "socket_sent_mib": sent as f64 / 1048576.0, "socket_received_mib": received as f64 / 1048576.0,
        "bytes_back_ms": back.map(|took| took as f64 / 1e6), "pools_end": pools_end,
        "threads": stalled[1].len(), "threads_stopped": names.collect::<Vec<_>>(),
        "threads_wait_for_peer": watch::waits_for_peer(&stalled[1]),
        "java_acquire": stacks.as_ref().map(|s| s.0), "java_send": stacks.as_ref().map(|s| s.1),
        "java_threads": stacks.map(|s| s.2),
    }))
}

/// Time from `closed` until the pools hold no more than in calm times; `None` when that takes more than 10 s.
fn bytes_back(target: &Target, closed: u64, calm: u64) -> Option<u64> {
    loop {
        let used: u64 = watch::pools(target)?.values().sum();
        let took = now() - closed;
        if used <= calm {
            return Some(took);
        }
        if took > 10 * SECOND {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The bytes held in the pools once no peer is there, after at most `wait`.
pub fn empty_pools(target: &Target, wait: u64) -> Value {
    let until = now() + wait;
    loop {
        let Some(pools) = watch::pools(target) else { return Value::Null };
        if pools.values().all(|used| *used == 0) || now() > until {
            return json!(pools);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
