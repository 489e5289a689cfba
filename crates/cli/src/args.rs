//! Flags of commands that have no module for their flags, and those that several commands share.

pub use bindery_config::table::flags::{BookieArgs, LogFormat, Switch};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The cluster of `bindery standalone` with its default ports.
pub const DEFAULT_METADATA: &str = "zk://127.0.0.1:2181/ledgers";

#[derive(Debug, Args)]
pub struct InitArgs {
    #[command(flatten)]
    pub metadata: MetadataArgs,
    /// INSTANCEID of the cluster, in place of one that is drawn by lot: that of a cluster which is gone, for
    /// bindery tier restore. Tiering is paused until then
    #[arg(long, value_name = "INSTANCEID")]
    pub instance_id: Option<String>,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    pub metadata: MetadataArgs,
    /// The file, which must not exist; - for standard output
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    #[command(flatten)]
    pub metadata: MetadataArgs,
    /// The file; - for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub struct MetadataArgs {
    /// The cluster: zk://HOST:PORT/ledgers
    #[arg(long, value_name = "URI", env = "BINDERY_METADATA", default_value = DEFAULT_METADATA)]
    pub metadata: String,
    /// A file that says how to connect to it: zkTlsEnable, zkEnableSecurity and the other keys of a bk_server.conf about the
    /// metadata store. That of a bookie will do
    #[arg(long, value_name = "FILE", env = "BINDERY_METADATA_CONFIG")]
    pub metadata_config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CookieArgs {
    #[command(subcommand)]
    pub command: CookieCommand,
}

#[derive(Debug, Subcommand)]
pub enum CookieCommand {
    /// Ids of all bookies that have a cookie, one on each line
    List(MetadataArgs),
    /// The cookie of one bookie
    Show {
        #[command(flatten)]
        metadata: MetadataArgs,
        /// The bookie
        bookie_id: String,
    },
    /// Remove the cookie of a bookie that has lost its data permanently. Asks, unless --yes
    Delete {
        #[command(flatten)]
        metadata: MetadataArgs,
        /// The bookie
        bookie_id: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// Flags of the commands that look at a stopped bookie's directories.
#[derive(Debug, Args)]
pub struct OfflineArgs {
    /// Data directory, as passed to --data of a bookie or a standalone; or all of its journal and ledger directories
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<PathBuf>,
    /// Lines of JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    #[command(subcommand)]
    pub command: InspectCommand,
}

#[derive(Debug, Subcommand)]
pub enum InspectCommand {
    /// Header, groups and records of a journal file
    Journal {
        /// The file
        file: PathBuf,
    },
    /// Header, extents and totals of an entry log
    EntryLog {
        /// The file
        file: PathBuf,
    },
    /// Header and extents of an object of the tier; reads all of it, and checks every checksum
    Object {
        /// The file, or where it is in an object store: s3://bucket/prefix/INSTANCEID/objects/ID, for example
        #[arg(value_name = "FILE|URL")]
        file: PathBuf,
    },
    /// Where a ledger's entries are in a ledger directory, and what is known of it
    Ledger {
        /// A ledger directory, as configured
        dir: PathBuf,
        /// The ledger
        #[arg(long, value_name = "ID")]
        ledger: i64,
    },
}
