//! Flags of `bindery bookie`, of commands that have no module for their flags, and those that several commands share.

use crate::parse::{duration, seconds};
use crate::sources::environment::Naming;
use bindery_server::flow_view::Sort;
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The cluster of `bindery standalone` with its default ports.
pub const DEFAULT_METADATA: &str = "zk+hierarchical://127.0.0.1:2181/ledgers";

/// Flags of `bindery bookie`. Each wins over the file of --config.
#[derive(Debug, Default, Args)]
pub struct BookieArgs {
    /// The cluster: zk+hierarchical://HOST:PORT/ledgers; several servers separated by ; or ,
    #[arg(long, value_name = "URI")]
    pub metadata: Option<String>,
    /// BINDERY_METADATA, which counts when neither --metadata nor the file names a cluster: a shell in which it is set for other
    /// commands must not send a bookie to another cluster than its file says.
    #[arg(skip)]
    pub metadata_of_shell: Option<String>,
    /// Keep the journal in DIR/journal and ledgers in DIR/ledgers
    #[arg(long, value_name = "DIR", conflicts_with_all = ["journal_dir", "ledger_dir"])]
    pub data: Option<PathBuf>,
    /// Journal directory, best on a disk of its own; may be repeated, and keeps its place in the order
    #[arg(long, value_name = "DIR", requires = "ledger_dir")]
    pub journal_dir: Vec<PathBuf>,
    /// Ledger directory; may be repeated, one for each disk
    #[arg(long, value_name = "DIR", requires = "journal_dir")]
    pub ledger_dir: Vec<PathBuf>,
    /// Address to listen on for clients [default: [::]:3181, IPv4 and IPv6]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<SocketAddr>,
    /// Address for health, state and metrics over HTTP; none without it
    #[arg(long, value_name = "IP:PORT")]
    pub admin: Option<SocketAddr>,
    /// A file with the tokens, one in a line, that allow changes over the admin port from other machines; without it only
    /// this machine may change anything there
    #[arg(long, value_name = "FILE")]
    pub admin_tokens: Option<PathBuf>,
    /// A JAAS file with the users who may log in, which needs bookieAuthProviderFactoryClass in the file of --config, and with
    /// the login to ZooKeeper; in place of Java's -Djava.security.auth.login.config
    #[arg(long, value_name = "FILE")]
    pub jaas_file: Option<PathBuf>,
    /// A file of users, their roles and what their passwords are compared with (bindery user hash): clients have to log in
    #[arg(long, value_name = "FILE")]
    pub users_file: Option<PathBuf>,
    /// Bytes of all pools and connections together, for example 512MiB; at least 128MiB
    /// [default: a quarter of the machine or control group, at most 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// touched: pre-fault the write pool at start for steadier latency; lazy: take memory as it is used and give it
    /// back when nothing is added [default: touched]
    #[arg(long, value_name = "touched|lazy")]
    pub memory: Option<MemoryUse>,
    /// Sync the journal before an entry is acknowledged; off: acknowledged entries may be lost in a power cut
    /// [default: on]
    #[arg(long, value_name = "on|off")]
    pub journal_sync: Option<Switch>,
    /// Journal files to zero-fill at start, in the background [default: 2; 4 without a number]
    #[arg(long, value_name = "FILES", num_args = 0..=1, default_missing_value = "4")]
    pub preallocate: Option<usize>,
    /// Fixed name of this bookie in the cluster [default: the advertised HOST:PORT]
    #[arg(long, value_name = "ID")]
    pub bookie_id: Option<String>,
    /// Address that clients connect to [default: that of --listen, or this host's name]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// A loopback address is fine: all clients are on this machine
    #[arg(long)]
    pub allow_loopback: bool,
    /// Take no writes
    #[arg(long)]
    pub read_only: bool,
    /// Start although the journal is damaged where acknowledged entries may be: until they are repaired, what may be
    /// missing is answered as unknown
    #[arg(long)]
    pub accept_journal_damage: bool,
    /// Keep ledgers in object storage: read entries from there whose copies here were let go, and move ledgers there.
    /// file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL")]
    pub tier: Option<String>,
    /// BINDERY_TIER, which counts when neither --tier nor the file names a store.
    #[arg(skip)]
    pub tier_of_shell: Option<String>,
    /// off: with --tier, leave it to others to move ledgers [default: on]
    #[arg(long, value_name = "on|off")]
    pub tier_role: Option<Switch>,
    /// Local copies go this long after all of a ledger is in object storage [default: 240m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub tier_grace: Option<Duration>,
    /// off: leave it to others to replace copies that the cluster lost [default: on]
    #[arg(long, value_name = "on|off")]
    pub repair_role: Option<Switch>,
    /// Form of the log on standard error
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,
    /// Read a bk_server.conf; flags win, unknown keys are warned about
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Take settings from the environment, too; they win over the file. bk: BK_key, as BookKeeper's image does; pulsar:
    /// PULSAR_PREFIX_key, and key alone where it is a known one, as Pulsar's image does
    #[arg(long, value_name = "none|bk|pulsar", env = "BINDERY_CONFIG_ENV", default_value = "none")]
    pub config_env: Naming,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MemoryUse {
    Touched,
    Lazy,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

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
    /// The cluster: zk+hierarchical://HOST:PORT/ledgers
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

/// Flags of `bindery flow`.
#[derive(Debug, Args)]
#[command(after_help = FLOW_HELP)]
pub struct FlowArgs {
    /// The bookie's admin port
    #[arg(long, value_name = "URL", env = "BINDERY_ADMIN", default_value = "http://127.0.0.1:8080")]
    pub admin: String,
    /// Look twice, an interval apart, print one table and end; as when standard output is no terminal
    #[arg(long)]
    pub once: bool,
    /// Print what the bookie answers, JSON, and end
    #[arg(long)]
    pub json: bool,
    /// Order of the list: held, stalled, queued, owed, adds, reads, in, out
    #[arg(long, value_name = "ORDER", default_value = "held")]
    pub sort: Sort,
    /// Connections shown at most [default: as many as fit the screen, or 50]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: f64,
}

const FLOW_HELP: &str = "Columns:
  HELD     bytes of all pools that the connection holds
  WINDOW   how much of its read window is taken: loads under way, entries its peer has not taken
  UNSENT   bytes ready for the peer that the kernel has not taken
  READS    reads that are not answered; ADDS likewise; POLLS parked long polls
  STATE    STALLED: the peer takes nothing of what is ready for it; not read: why its requests wait

Keys: s takes another order, q quits, any other looks again.";

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
