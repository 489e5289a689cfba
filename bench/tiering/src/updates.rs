//! `updates`: a tierer for some seconds.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::{Client, LedgerId};
use bindery_io::{SystemClock, SystemRandom};
use bindery_reconciler::core::updates::UpdateMode;
use bindery_reconciler::{Components, TierReport, Tierer};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::slow::SlowUpdates;
use crate::{Place, close, cpu_seconds, peak_mib, tierer_config};

#[derive(Args)]
pub struct UpdatesArgs {
    #[command(flatten)]
    place: Place,
    /// Requests to bookies in flight
    #[arg(long, default_value_t = 32)]
    updates: usize,
    /// One ledger in a request, or many
    #[arg(long, default_value = "batched")]
    mode: Mode,
    /// Milliseconds that each request to a bookie waits before it is sent
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
    /// Updates of this ledger are never answered
    #[arg(long)]
    hang: Vec<i64>,
    /// Measured seconds
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Seconds before them
    #[arg(long, default_value_t = 5)]
    warmup: u64,
    /// An open ledger is due when its oldest entry that is not in the tier has waited for so many milliseconds
    #[arg(long, default_value_t = 500)]
    age_ms: u64,
    /// Ends, before the seconds are over, when nothing is behind
    #[arg(long)]
    until_done: bool,
    /// Size of an object, in MiB
    #[arg(long, default_value_t = 80)]
    object_mib: u64,
    /// Memory limit, in MiB
    #[arg(long, default_value_t = 256)]
    memory_mib: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Single,
    Batched,
}

/// Runs it and returns what it says, with the CPU time that it took.
pub async fn run(args: UpdatesArgs) -> anyhow::Result<Value> {
    let layout = args.place.layout().await?;
    let bookies = Arc::new(Bookies::new(layout.registration(), ConnectionOptions::default()));
    let hanging: HashSet<LedgerId> = args.hang.iter().filter_map(|id| LedgerId::new(*id)).collect();
    let latency = Duration::from_millis(args.latency_ms);
    let transport = Arc::new(SlowUpdates { bookies, latency, hanging });
    let client = Client::builder().layout(layout.clone()).transport(transport).connect().await?;
    let mut config = tierer_config(args.memory_mib, args.object_mib);
    config.settings.open_age_max = Duration::from_millis(args.age_ms);
    config.settings.updates.in_flight_max = args.updates;
    config.settings.updates.mode = match args.mode {
        Mode::Single => UpdateMode::Single,
        Mode::Batched => UpdateMode::Batched,
    };
    let components = Components {
        layout: layout.clone(),
        client: client.clone(),
        store: args.place.store()?,
        gate: Arc::default(),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
    };
    let tierer = Tierer::start(config, components).await.context("start the tierer")?;
    let handle = tierer.handle();
    tokio::time::sleep(Duration::from_secs(args.warmup)).await;
    let first = handle.report().await.context("the tierer ended")?;
    let (t0, cpu0) = (Instant::now(), cpu_seconds()?);
    let mut lags = Vec::new();
    let mut last = first.clone();
    while t0.elapsed() < Duration::from_secs(args.seconds) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        last = handle.report().await.context("the tierer ended")?;
        lags.push(last.lag.seconds);
        if args.until_done && last.lag.entries == 0 && last.ledgers_done == last.ledgers_watched {
            break;
        }
    }
    let (seconds, cpu) = (t0.elapsed().as_secs_f64(), cpu_seconds()? - cpu0);
    let report = summary(&first, &last, seconds, cpu, &lags, peak_mib()?);
    tierer.stop().await;
    close(client, layout).await;
    Ok(report)
}

fn summary(
    first: &TierReport,
    last: &TierReport,
    seconds: f64,
    cpu: f64,
    lags: &[f64],
    peak_mib: f64,
) -> Value {
    let stage = |report: &TierReport, name: &str| -> f64 {
        report.stages.iter().find(|stage| stage.stage == name).map_or(0.0, |stage| stage.took.sum_seconds)
    };
    let cycles = last.cycles.count - first.cycles.count;
    let cycle_seconds = last.cycles.sum_seconds - first.cycles.sum_seconds;
    let mut stages = serde_json::Map::new();
    for named in &last.stages {
        let took = stage(last, &named.stage) - stage(first, &named.stage);
        let mean_ms = took * 1000.0 / cycles.max(1) as f64;
        stages.insert(
            named.stage.clone(),
            json!({ "meanMs": mean_ms, "share": took / cycle_seconds.max(1e-9) }),
        );
    }
    let half = lags.len() / 2;
    let mean = |lags: &[f64]| lags.iter().sum::<f64>() / lags.len().max(1) as f64;
    let bytes = last.entry_bytes - first.entry_bytes;
    json!({
        "seconds": seconds,
        "cycles": cycles,
        "cyclesPerMinute": cycles as f64 * 60.0 / seconds,
        "cycleMs": cycle_seconds * 1000.0 / cycles.max(1) as f64,
        "stages": stages,
        "updatesPerCycle": (last.update_ledgers - first.update_ledgers) as f64 / cycles.max(1) as f64,
        "updateRequests": last.update_requests - first.update_requests,
        "updateFailures": last.update_failures - first.update_failures,
        "reconciled": last.reconciled - first.reconciled,
        "lreP50Ms": last.lre.p50_seconds * 1000.0,
        "lreP99Ms": last.lre.p99_seconds * 1000.0,
        "bytes": bytes,
        "mbPerSecond": bytes as f64 / seconds / 1e6,
        "entries": last.entries - first.entries,
        "lagSecondsFirstHalf": mean(&lags[..half]),
        "lagSecondsSecondHalf": mean(&lags[half..]),
        "lagEntriesEnd": last.lag.entries,
        "limit": last.limit,
        "cpuSeconds": cpu,
        "bytesPerCpuSecond": bytes as f64 / cpu.max(0.01),
        "peakMib": peak_mib,
        "requestsPerGib": last.requests.per_gib,
        "requestsPerIdleHour": last.requests.per_idle_hour,
        "lastError": last.last_error,
    })
}
