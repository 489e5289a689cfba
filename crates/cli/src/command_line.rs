//! The command line.

use crate::args::{BookieArgs, InspectArgs, OfflineArgs};
use crate::bench::args::BenchArgs;
use crate::bookie_gc::BookieGcArgs;
use crate::cluster::args::ClusterArgs;
use crate::config::args::ConfigArgs;
use crate::flow::args::FlowArgs;
use crate::ledger::args::{BookieHealthArgs, BookieListArgs, LedgerCommand};
use crate::repair::args::{BookieRecoverArgs, DecommissionArgs, DrainArgs, LedgerRepairArgs, RepairArgs};
use crate::shell::args::ShellArgs;
use crate::standalone::args::StandaloneArgs;
use crate::tier::args::TierArgs;
use crate::user::UserArgs;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Of `bindery help exit-codes` and of the man page.
pub const EXIT_CODES: &str = "Exit codes:
  0  done, or stopped on request in order
  1  failed; the message says why and what to do
  2  wrong command line or configuration
  3  a running bookie lost its registration for good and stopped
  4  stopped on request before all was done: a bookie replays at its next start, of an append the
     message names the last acknowledged entry
  5  the ledger cannot be written, or no longer; the message names the last acknowledged entry
  6  no such ledger, or no such entry
  7  the metadata store, or a bookie that is needed, cannot be reached
  8  the reader of standard output closed it (| head)
  9  bindery verify, ledger verify or tier verify found damage, and each finding says where and what to do;
     or ledger repair could not mend it all
  10 cluster safe-to-stop: stopping these bookies now would leave entries with too few copies
  130, 143  an append stopped by SIGINT or SIGTERM; all that was read is acknowledged

Data goes to standard output, everything else to standard error.";

/// A build that checks itself says so: it is slower, and has the planted bugs that the tests switch on.
const VERSION: &str = if bindery_io::canary::CAN_BE_PLANTED {
    concat!(env!("CARGO_PKG_VERSION"), " (debug build, with assertions and planted bugs for tests)")
} else {
    env!("CARGO_PKG_VERSION")
};

/// A ledger store that speaks Apache BookKeeper's protocols.
#[derive(Debug, Parser)]
#[command(name = "bindery", version = VERSION, arg_required_else_help = true)]
pub struct Cli {
    /// Show no progress on standard error
    #[arg(long, global = true)]
    pub quiet: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a coordinator and bookies in one process until SIGTERM or SIGINT
    Standalone(Box<StandaloneArgs>),
    /// Run a bookie until SIGTERM or SIGINT, or list those of a cluster
    Bookie(Box<BookieCli>),
    /// Create, append to, read, follow, list and delete ledgers
    Ledger(LedgerCli),
    /// Measure adds and reads
    Bench(BenchArgs),
    /// Check a bk_server.conf, show the settings in force, explain a key
    Config(Box<ConfigArgs>),
    /// Look after the metadata of a cluster
    Cluster(ClusterArgs),
    /// Keep ledgers in object storage
    Tier(Box<TierArgs>),
    /// Bring back copies that lost bookies had, until SIGTERM or SIGINT, for bookies that do not do it themselves
    Repair(Box<RepairArgs>),
    /// Show raw files, without a server
    Inspect(InspectArgs),
    /// Check everything a stopped bookie has on disk; changes nothing
    Verify(OfflineArgs),
    /// Show where the bytes of a stopped bookie are
    Disk(OfflineArgs),
    /// Show who holds which bytes of a running bookie, and who waits for what, live
    Flow(FlowArgs),
    /// Commands of BookKeeper's shell, for scripts and charts that call it
    Shell(ShellArgs),
    /// Make lines of a file of users
    User(UserArgs),
    /// Explain the exit codes
    #[command(long_about = EXIT_CODES)]
    ExitCodes,
    /// Write a completion script for a shell to standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages: this command's to standard output, or all into a directory
    Man {
        /// Write a page for each subcommand into this directory; it is created if need be
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// `bindery bookie` runs one; `bindery bookie list` lists them.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BookieCli {
    #[command(subcommand)]
    pub command: Option<BookieCommand>,
    #[command(flatten)]
    pub run: BookieArgs,
}

#[derive(Debug, Subcommand)]
pub enum BookieCommand {
    /// List the bookies of a cluster: id, state, address
    List(BookieListArgs),
    /// Ask the bookies of a cluster again and again: state, requests under way, latencies, hedges
    Health(BookieHealthArgs),
    /// Have bookies look now for ledgers that were deleted, and give back their space
    Gc(BookieGcArgs),
    /// Bring back now the copies that lost bookies had
    Recover(Box<BookieRecoverArgs>),
    /// Take a stopped bookie out of the cluster: copy what it had, prove that nothing refers to it, remove its cookie
    Decommission(Box<DecommissionArgs>),
    /// Empty a bookie that runs: it takes no writes, its copies are replaced while it serves reads, its cookie is removed. Repeated, it goes on
    Drain(Box<DrainArgs>),
}

/// `bindery ledger`.
#[derive(Debug, Args)]
pub struct LedgerCli {
    #[command(subcommand)]
    pub command: LedgerCliCommand,
}

#[derive(Debug, Subcommand)]
pub enum LedgerCliCommand {
    #[command(flatten)]
    Ledger(LedgerCommand),
    /// Bring back now the copies that ledgers lack, on bookies that run, too
    Repair(LedgerRepairArgs),
}
