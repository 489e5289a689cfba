//! The commands of `bindery cluster`.

use crate::args::{CookieArgs, ExportArgs, ImportArgs, InitArgs};
use crate::ledger::args::AccessArgs;
use crate::live::DrawArgs;
use crate::parse::seconds;
use crate::repair::args::{ClusterRepairArgs, SafeToStopArgs, UnderReplicatedArgs};
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    pub command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Create the cluster's metadata; harmless when it is there
    Init(InitArgs),
    /// Cookies: which bookies belong to the cluster, with which directories
    Cookie(CookieArgs),
    /// Whether bookies may be stopped now without leaving an entry with fewer copies than its ack quorum, or with one
    SafeToStop(SafeToStopArgs),
    /// List the ledgers that are marked as lacking copies
    UnderReplicated(UnderReplicatedArgs),
    /// Bookies, missing copies, the progress of repair, and what is in its way: again and again on a terminal
    Status(StatusArgs),
    /// Settings of repair for the whole cluster, BookKeeper's AutoRecovery included
    Repair(ClusterRepairArgs),
    /// Write the cluster's metadata to a file, to move it to another metadata store
    Export(ExportArgs),
    /// Read what export wrote into a metadata store where the root is missing or empty; repeat it if it stops
    Import(ImportArgs),
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    /// Print one picture and end; as when standard output is no terminal
    #[arg(long)]
    pub once: bool,
    /// The same, as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Seconds between two pictures
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub interval: f64,
    #[command(flatten)]
    pub draw: DrawArgs,
}
