//! The commands of `bindery cluster`.

use crate::args::{CookieArgs, ExportArgs, ImportArgs, InitArgs};
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
    /// Settings of repair for the whole cluster, BookKeeper's AutoRecovery included
    Repair(ClusterRepairArgs),
    /// Write the cluster's metadata to a file, to move it to another metadata store
    Export(ExportArgs),
    /// Read what export wrote into a metadata store where the root is missing or empty; repeat it if it stops
    Import(ImportArgs),
}
