//! Command line of `bindery bench`.

use crate::ledger::args::{AccessArgs, Digest, PasswordArgs, QuorumArgs};
use crate::ledger::placement::PlacementArgs;
use crate::parse::{ledger_id, some_seconds, whole_seconds};
use bindery_types::LedgerId;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `bindery bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Add entries to many ledgers from one sender, as fast as they are acknowledged or at a fixed rate
    Add(BenchAddArgs),
    /// Read entries of ledgers that it fills first, or of a ledger that exists
    Read(BenchReadArgs),
}

/// Arguments that both workloads have.
#[derive(Debug, Clone, Args)]
pub struct BenchCommonArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub quorum: QuorumArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Checksum of each entry
    #[arg(long, value_name = "TYPE", default_value = "crc32c")]
    pub digest: Digest,
    /// Bytes of an entry
    #[arg(long, value_name = "BYTES", default_value = "1024", value_parser = clap::value_parser!(u32).range(0..=4 * 1024 * 1024))]
    pub entry_size: u32,
    /// Seconds before the measured ones
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = whole_seconds)]
    pub warmup: u32,
    /// Measured seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = some_seconds)]
    pub seconds: u32,
    /// Operations each second, spread evenly; latency then counts from the time an operation was due
    /// [default: the next one as soon as one is done]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Processes whose CPU time, memory and disk writes to report, separated by commas
    #[arg(long, value_name = "PID,PID", value_delimiter = ',')]
    pub bookie_pids: Vec<u32>,
    /// Text to find in the result
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub label: String,
    /// Leave the ledgers that it made
    #[arg(long)]
    pub keep: bool,
    /// Draw rate and latencies of each second behind the result, or into a FILE that ends in .svg
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub plot: Option<PathBuf>,
    /// One object with the fields of the Java load driver (tests/interop/peer)
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BenchAddArgs {
    #[command(flatten)]
    pub common: BenchCommonArgs,
    /// Ledgers to add to, a random one for each entry
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub ledgers: u32,
    /// Most adds that wait for their acknowledgement, over all ledgers
    #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub outstanding: u32,
}

#[derive(Debug, Args)]
pub struct BenchReadArgs {
    #[command(flatten)]
    pub common: BenchCommonArgs,
    /// Read this closed or open ledger instead of filling some
    #[arg(long, value_name = "ID", value_parser = ledger_id, conflicts_with_all = ["fill_ledgers", "entries", "entry_size"])]
    pub ledger: Option<LedgerId>,
    #[command(flatten)]
    pub password: PasswordArgs,
    /// Ledgers to fill
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub fill_ledgers: u32,
    /// Entries in each
    #[arg(long, value_name = "N", default_value = "5000", value_parser = clap::value_parser!(u32).range(1..))]
    pub entries: u32,
    /// Seconds between filling and reading
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = whole_seconds)]
    pub settle: u32,
    /// Readers, each of which makes one call at a time: with --rate so many calls under way at most
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub readers: u32,
    /// Which entries a call reads
    #[arg(long, value_name = "random|seq", default_value = "random")]
    pub mode: ReadMode,
    /// Entries of one call
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Before the result a line for each call (when it was due in seconds since 1970, milliseconds, ok or the error), and,
    /// each tenth of a second, for each bookie (its state, reads sent to it so far) and all reads (hedges, retries)
    #[arg(long)]
    pub log: bool,
}

/// `--mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReadMode {
    Random,
    Seq,
}
