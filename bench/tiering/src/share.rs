//! `share`: tierers that share what there is, on a store whose writes take as long as is asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bindery_client::Client;
use bindery_io::{SystemClock, SystemRandom};
use bindery_metadata::Layout;
use bindery_reconciler::{Components, TierReport, Tierer};
use bindery_tiering::store::Store;
use clap::Args;
use serde_json::{Value, json};

use crate::slow::SlowStore;
use crate::{Place, close, cpu_seconds, tierer_config};

#[derive(Args)]
pub struct ShareArgs {
    #[command(flatten)]
    place: Place,
    /// Tierers, each with a session of its own
    #[arg(long, default_value_t = 2)]
    tierers: usize,
    /// Milliseconds that each request that writes waits before it is sent
    #[arg(long, default_value_t = 500)]
    delay_ms: u64,
    /// Size of an object, in MiB
    #[arg(long, default_value_t = 20)]
    object_mib: u64,
    /// Memory limit of each, in MiB: it decides how many objects are built at once
    #[arg(long, default_value_t = 64)]
    memory_mib: u64,
}

struct Member {
    tierer: Tierer,
    client: Client,
    layout: Layout,
}

impl Member {
    async fn start(args: &ShareArgs) -> anyhow::Result<Member> {
        let layout = args.place.layout().await?;
        let client = Client::builder().layout(layout.clone()).connect().await?;
        let mut config = tierer_config(args.memory_mib, args.object_mib);
        config.settings.handover = Duration::from_secs(1);
        let store = args.place.store()?;
        let delay = Duration::from_millis(args.delay_ms);
        let (inner, reads) = (store.inner().clone(), Duration::ZERO);
        let slow = SlowStore { inner, writes: delay, reads, gets: Arc::default() };
        let components = Components {
            layout: layout.clone(),
            client: client.clone(),
            store: Store::new(store.url().clone(), Arc::new(slow)),
            gate: Arc::default(),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
        };
        let tierer = Tierer::start(config, components).await.context("start a tierer")?;
        Ok(Member { tierer, client, layout })
    }
}

async fn reports(members: &[Member]) -> anyhow::Result<Vec<TierReport>> {
    let mut reports = Vec::new();
    for member in members {
        reports.push(member.tierer.handle().report().await.context("a tierer ended")?);
    }
    Ok(reports)
}

fn sum(reports: &[TierReport], of: fn(&TierReport) -> u64) -> u64 {
    reports.iter().map(of).sum()
}

/// Moves everything, from the moment on at which all know each other and what there is.
pub async fn run(args: ShareArgs) -> anyhow::Result<Value> {
    let layout = args.place.layout().await?;
    let pause = layout.tier_pause();
    pause.pause("a measurement").await.context("pause tiering")?;
    let mut members = Vec::new();
    for _ in 0..args.tierers {
        members.push(Member::start(&args).await?);
    }
    let began = Instant::now();
    let first = loop {
        let first = reports(&members).await?;
        let know_each_other =
            first.iter().all(|of| of.tierers == args.tierers as u64 && of.ledgers_listed > 0);
        let own = sum(&first, |of| of.ledgers_own);
        let are_watched =
            sum(&first, |of| of.ledgers_watched) == own && sum(&first, |of| of.ledgers_waiting) == 0;
        if know_each_other
            && own == first[0].ledgers_listed
            && are_watched
            && first.iter().all(|of| of.lag.bytes > 0)
        {
            break first;
        }
        ensure!(began.elapsed() < Duration::from_secs(120), "they do not find what there is: {first:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    // Bookies are asked what they know.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let entries = sum(&reports(&members).await?, |of| of.lag.entries);
    let (t0, cpu0) = (Instant::now(), cpu_seconds()?);
    pause.resume().await.context("resume tiering")?;
    let last = loop {
        let last = reports(&members).await?;
        if sum(&last, |of| of.entries) >= entries {
            break last;
        }
        ensure!(t0.elapsed() < Duration::from_secs(600), "it takes too long: {last:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let (seconds, cpu) = (t0.elapsed().as_secs_f64(), cpu_seconds()? - cpu0);
    let bytes = sum(&last, |of| of.entry_bytes);
    let uploaded = sum(&last, |of| of.requests.bytes_put) - sum(&first, |of| of.requests.bytes_put);
    let parts: Vec<u64> = last.iter().map(|of| of.entry_bytes).collect();
    for Member { tierer, client, layout } in members {
        tierer.stop().await;
        close(client, layout).await;
    }
    let _ = layout.store().close().await;
    Ok(json!({
        "tierers": args.tierers, "seconds": seconds, "bytes": bytes, "mbPerSecond": bytes as f64 / seconds / 1e6,
        "parts": parts, "uploaded": uploaded, "uploadedPerByte": uploaded as f64 / bytes as f64,
        "corrections": sum(&last, |of| of.corrections), "cpuSeconds": cpu,
    }))
}
