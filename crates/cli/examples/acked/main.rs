//! A load that remembers what it was promised, and checks it afterwards: the verifier V of the fault scripts
//! (`tests/faults`).
//!
//! # Data flow
//! ```text
//! load:    writers -> client -> bookies      confirmed entries -> log file (on a disk that is not the fault's)
//! verify:  log file -> every ledger recovered, read, compared with the log; read again by a second client
//! census:  log file -> what one bookie answers for each entry, before a fault
//! recheck: the same questions after it: the same bytes or an error, never "no such entry", never other bytes
//! fence:   every open ledger is fenced at one bookie, and each fence that it granted must hold from then on
//! ```
//!
//! # Invariants
//! 1. A line is in the log before its content is used in any other way; a log line is never taken back.
//! 2. An entry's content follows from ledger and entry, and the log has its hash: two ways to notice other bytes.
//!
//! Each command prints one line of `key=value`, and ends with 1 when the promise is broken.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test program: it has no Disk or Clock to go through, and a failure of its own may end it"
)]

mod census;
mod load;
mod log;
mod verify;

use bindery_client::{Client, MetadataUri};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes, fences, closes and deletes ledgers, and logs what was acknowledged
    Load(load::LoadArgs),
    /// Checks everything in the log against the cluster
    Verify(verify::VerifyArgs),
    /// Writes down what one bookie has of what was acknowledged
    Census(census::CensusArgs),
    /// Asks one bookie for what the census found
    Recheck(census::CensusArgs),
    /// Fences every open ledger of the log at one bookie
    Fence(census::FenceArgs),
    /// Inverts bits of a file, or writes noise over it
    Damage(log::DamageArgs),
}

/// Where the cluster and the log are.
#[derive(clap::Args, Clone)]
struct Common {
    /// The cluster
    #[arg(long, env = "BINDERY_METADATA")]
    metadata: String,
    /// What was acknowledged
    #[arg(long)]
    log: PathBuf,
    /// Longest wait for one answer of a bookie, in ms
    #[arg(long, default_value_t = 3000)]
    timeout_ms: u64,
}

impl Common {
    fn uri(&self) -> MetadataUri {
        self.metadata.parse().unwrap_or_else(|error| panic!("{}: {error}", self.metadata))
    }

    async fn client(&self) -> Client {
        let builder = Client::builder().metadata(self.uri()).memory_limit(8 << 20);
        builder.request_timeout(Duration::from_millis(self.timeout_ms)).connect().await.unwrap()
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let is_kept = match args.command {
        Command::Load(args) => runtime.block_on(load::run(args)),
        Command::Verify(args) => runtime.block_on(verify::run(args)),
        Command::Census(args) => runtime.block_on(census::take(args)),
        Command::Recheck(args) => runtime.block_on(census::recheck(args)),
        Command::Fence(args) => runtime.block_on(census::fence(args)),
        Command::Damage(args) => log::damage(&args),
    };
    runtime.shutdown_background();
    if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
