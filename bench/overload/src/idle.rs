//! Many connections that say nothing, then one add of each every second.

use crate::args::{Args, Target};
use crate::clock::{MILLI, now, seconds};
use crate::engine::Engine;
use crate::flow::{ALWAYS, FlowSpec, Pace};
use crate::watch::{self, Watch};
use crate::work::{Filled, Work};
use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::time::Duration;

/// Runs it.
pub fn run(mut args: Args) -> Result<Value> {
    let target = Target::take(&mut args)?;
    let is_v3 = args.or("protocol", "v2".to_owned())? == "v3";
    // ours takes 10,000 in all by default, and the HTTP port and probes need some
    let connections = args.or("connections", 9_900usize)?;
    let rate = args.or("adds-per-s", connections as f64)?;
    let length = args.or("seconds", 10.0)?;
    let entry_size_bytes = args.or("entry-size", 1024usize)?;
    args.finish()?;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("raise the limit of files")?;

    let rss_before = settled_rss(&target);
    let tcp_before = watch::look(&target).tcp;
    let filled = Filled { first: 1_000_000, ledgers: 1, each: 1 };
    let mut engine = Engine::new(&target.bookie, u64::MAX, vec![("idle", u64::MAX)])?;
    let connect_begin = now();
    engine.add(FlowSpec {
        name: "adds",
        work: Work::Add { ledgers: 100 },
        pace: Pace::Open(vec![(u64::MAX, rate)]),
        is_v3,
        connections,
        first: 4_000_000,
        filled,
        entry_size_bytes,
        timeout: seconds(5.0),
        window: ALWAYS,
    })?;
    let connect_s = (now() - connect_begin) as f64 / 1e9;
    // until the bookie has taken them all from the kernel, as far as it says
    let accepted_begin = now();
    let accepted = loop {
        let Some(metrics) = watch::metrics(&target).filter(|_| !target.is_java) else { break None };
        let open = metrics.get("bindery_connections").copied().unwrap_or(0.0);
        if open as usize >= connections {
            break Some((now() - accepted_begin) as f64 / 1e9 + connect_s);
        }
        if now() - accepted_begin > seconds(10.0) {
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    std::thread::sleep(Duration::from_secs(2));
    let rss_idle = watch::rss(target.pid);
    let tcp_idle = watch::look(&target).tcp;

    let begin = now() + 100 * MILLI;
    let phases = vec![("warmup", begin + seconds(2.0)), ("adds", begin + seconds(2.0 + length))];
    engine.restart(begin, &phases);
    let watch = Watch::start(&target);
    engine.run(seconds(5.0))?;
    let samples = watch.finish();
    let each = |bytes: u64, before: u64| bytes.saturating_sub(before) as f64 / 1024.0 / connections as f64;
    let flow = engine.flows[0].json();
    drop(engine);
    Ok(json!({
        "scenario": "idle", "case": "L1", "label": target.label, "protocol": if is_v3 { "v3" } else { "v2" },
        "connections": connections, "connect_s": connect_s, "accepted_s": accepted,
        "idle_kib_each": each(rss_idle, rss_before), "idle_socket_kib_each": each(tcp_idle, tcp_before),
        "rss_idle_mib": rss_idle as f64 / 1048576.0, "machine": watch::machine(),
        "flows": { "adds": flow }, "during": watch::summary(&samples, phases[0].1, phases[1].1),
        "pools_end": crate::stall::empty_pools(&target, seconds(5.0)),
    }))
}

/// Resident bytes once they stay as they are: a bookie that has just started still touches its memory.
fn settled_rss(target: &Target) -> u64 {
    let until = now() + seconds(15.0);
    let mut last = watch::rss(target.pid);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let rss = watch::rss(target.pid);
        if rss.abs_diff(last) < 1 << 20 || now() > until {
            return rss;
        }
        last = rss;
    }
}
