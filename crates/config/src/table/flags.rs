//! Flags of `bindery bookie`. The row of a key describes the flag that gives its value, and puts that value into the draft. The rules read
//! flags that give several keys.

use super::find;
use crate::parse::duration;
use crate::sources::environment::Naming;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What a key's row says, with the default as a flag has it.
fn help(key: &str) -> String {
    let key = find(key).expect("a key of the table");
    let default = match (key.default().as_str(), key.unit) {
        ("" | "false", _) => String::new(),
        ("true", _) => " [default: on]".to_owned(),
        (time, "s") => match time.parse::<u64>() {
            Ok(seconds) if seconds % 60 == 0 => format!(" [default: {}m]", seconds / 60),
            _ => format!(" [default: {time}s]"),
        },
        (other, unit) => format!(" [default: {other}{unit}]"),
    };
    format!("{}{default}", key.about)
}

/// Flags of `bindery bookie`. Each wins over the file of --config.
#[derive(Debug, Default, Args)]
pub struct BookieArgs {
    /// `metadataServiceUri`.
    #[arg(long, value_name = "URI", help = help("metadataServiceUri"))]
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
    /// `httpServerTokensFile`.
    #[arg(long, value_name = "FILE", help = help("httpServerTokensFile"))]
    pub admin_tokens: Option<PathBuf>,
    /// `jaasFile`.
    #[arg(long, value_name = "FILE", help = help("jaasFile"))]
    pub jaas_file: Option<PathBuf>,
    /// `usersFile`.
    #[arg(long, value_name = "FILE", help = help("usersFile"))]
    pub users_file: Option<PathBuf>,
    /// `tenantsFile`.
    #[arg(long, value_name = "FILE", help = help("tenantsFile"))]
    pub tenants_file: Option<PathBuf>,
    /// Bytes of all pools and connections together, for example 512MiB; at least 128MiB
    /// [default: a quarter of the machine or control group, at most 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// touched: pre-fault the write pool at start for steadier latency; lazy: take memory as it is used and give it
    /// back when nothing is added [default: touched]
    #[arg(long, value_name = "touched|lazy")]
    pub memory: Option<MemoryUse>,
    /// `journalSyncData`.
    #[arg(long, value_name = "on|off", help = help("journalSyncData"))]
    pub journal_sync: Option<Switch>,
    /// Journal files to zero-fill at start, in the background [default: 2; 4 without a number]
    #[arg(long, value_name = "FILES", num_args = 0..=1, default_missing_value = "4")]
    pub preallocate: Option<usize>,
    /// `bookieId`.
    #[arg(long, value_name = "ID", help = help("bookieId"))]
    pub bookie_id: Option<String>,
    /// Address that clients connect to [default: that of --listen, or this host's name]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// `allowLoopback`.
    #[arg(long, help = help("allowLoopback"))]
    pub allow_loopback: bool,
    /// `forceReadOnlyBookie`.
    #[arg(long, help = help("forceReadOnlyBookie"))]
    pub read_only: bool,
    /// Start although the journal is damaged where acknowledged entries may be: until they are repaired, what may be
    /// missing is answered as unknown
    #[arg(long)]
    pub accept_journal_damage: bool,
    /// `tierUrl`.
    #[arg(long, value_name = "URL", help = help("tierUrl"))]
    pub tier: Option<String>,
    /// BINDERY_TIER, which counts when neither --tier nor the file names a store.
    #[arg(skip)]
    pub tier_of_shell: Option<String>,
    /// `tierRole`.
    #[arg(long, value_name = "on|off", help = help("tierRole"))]
    pub tier_role: Option<Switch>,
    /// `tierTrimGraceSec`.
    #[arg(long, value_name = "DURATION", value_parser = duration, help = help("tierTrimGraceSec"))]
    pub tier_grace: Option<Duration>,
    /// `autoRecoveryDaemonEnabled`.
    #[arg(long, value_name = "on|off", help = help("autoRecoveryDaemonEnabled"))]
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

/// A part that is on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "clap would print them beside each word")]
pub enum Switch {
    On,
    Off,
}

impl From<Switch> for bool {
    fn from(switch: Switch) -> bool {
        switch == Switch::On
    }
}

/// When the memory of the write pool is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "clap would print them beside each word")]
pub enum MemoryUse {
    Touched,
    Lazy,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "clap would print them beside each word")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}
