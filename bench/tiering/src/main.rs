//! Runs a tierer next to real bookies, with updates of bookies that take as long as is asked, and the bare loops it is compared
//! with. Each command prints one JSON object; `run` beside this crate drives them and draws the tables.

mod bare;
mod join;
mod share;
mod slow;
mod updates;

use std::time::Duration;

use anyhow::Context;
use bindery_client::{Client, MetadataUri};
use bindery_metadata::{ConnectOptions, Layout};
use bindery_reconciler::TiererConfig;
use bindery_tiering::store::{Store, StoreOptions, StoreUrl, open};
use clap::{Args, Parser, Subcommand};

/// Measures tiering; see bench/tiering/run.
#[derive(Parser)]
#[command(name = "tiering-bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tiers for some seconds and reports rounds, stages, updates, lag and CPU time
    Updates(updates::UpdatesArgs),
    /// Tierers that share closed ledgers, from a pause on until all is moved
    Share(share::ShareArgs),
    /// What ledgers of many small extents cost to trim and to read, before and after these are joined
    Join(join::JoinArgs),
    /// The bare loop of a tierer: reads closed ledgers through the client and puts their bytes into objects
    Copy(bare::CopyArgs),
    /// The bare loop of a read: gets each object of the catalogue, one after the other
    Fetch(bare::FetchArgs),
}

/// Where everything is.
#[derive(Args, Clone)]
struct Place {
    /// The cluster
    #[arg(long)]
    metadata: String,
    /// The object store
    #[arg(long)]
    store: String,
}

impl Place {
    async fn layout(&self) -> anyhow::Result<Layout> {
        let uri: MetadataUri = self.metadata.parse().context("--metadata")?;
        bindery_metadata::connect(&uri, ConnectOptions::default()).await.context("reach the metadata store")
    }

    fn store(&self) -> anyhow::Result<Store> {
        let url: StoreUrl = self.store.parse().context("--store")?;
        open(&url, &StoreOptions::default()).context("open the object store")
    }
}

/// A tierer that is measured: a store of the benchmark's own needs no check, and an end no patience.
fn tierer_config(memory_mib: u64, object_mib: u64) -> TiererConfig {
    let mut config = TiererConfig {
        memory_limit: memory_mib << 20,
        checks_store: false,
        stop_patience: Duration::from_secs(2),
        ..TiererConfig::default()
    };
    config.settings.object_bytes_max = object_mib << 20;
    config
}

/// CPU time of this process so far, in seconds: all of its threads, in user space and in the kernel.
fn cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().context("no fields in /proc/self/stat")?;
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>()).sum::<Result<_, _>>()?;
    // USER_HZ is 100 on every architecture that Linux has today.
    Ok(ticks as f64 / 100.0)
}

/// Most memory that this process had, in MiB.
fn peak_mib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.split_whitespace().next().context("no number in VmHWM")?.parse::<f64>()? / 1024.0)
}

async fn close(client: Client, layout: Layout) {
    client.close().await;
    let _ = layout.store().close().await;
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let report = match Cli::parse().command {
        Command::Updates(args) => updates::run(args).await?,
        Command::Share(args) => share::run(args).await?,
        Command::Join(args) => join::run(args).await?,
        Command::Copy(args) => bare::copy(args).await?,
        Command::Fetch(args) => bare::fetch(args).await?,
    };
    println!("{report}");
    Ok(())
}
