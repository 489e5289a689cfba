//! Flags of `bindery standalone`.

use crate::args::{LogFormat, Switch};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// More would only slow each other down on one machine.
pub const BOOKIES_MAX: u8 = 16;

/// Flags of `bindery standalone`.
#[derive(Debug, Args)]
pub struct StandaloneArgs {
    /// Keep everything in DIR: DIR/coordinator, DIR/bookie-1 and so on
    #[arg(long, value_name = "DIR", default_value = "./bindery-data")]
    pub data: PathBuf,
    /// Number of bookies; 0: the coordinator alone
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=i64::from(BOOKIES_MAX)))]
    pub bookies: u8,
    /// Port of the first bookie, the others take the next ones; 0: ports chosen by the system
    #[arg(long, value_name = "PORT", default_value_t = 3181)]
    pub bookie_port: u16,
    /// Port of the coordinator; 0: chosen by the system
    #[arg(long, value_name = "PORT", default_value_t = 2181)]
    pub coordinator_port: u16,
    /// Port at which the coordinator speaks Oxia's protocol; 0: chosen by the system
    #[arg(long, value_name = "PORT", default_value_t = 6648)]
    pub oxia_port: u16,
    /// Port for health, state and metrics of the first bookie over HTTP, the others take the next ones; 0: chosen by
    /// the system
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub admin_port: u16,
    /// Bytes of all pools of all bookies together and of the coordinator, for example 1GiB; taken as they are used
    /// [default: a quarter of the machine or control group, at most 1GiB, at least 128MiB for each bookie]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// Sync the journal before an entry is acknowledged; off: acknowledged entries may be lost in a power cut
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub journal_sync: Switch,
    /// Keep ledgers in object storage: file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL", env = "BINDERY_TIER")]
    pub tier: Option<String>,
    /// off: with --tier, leave it to bindery tier run to move ledgers
    #[arg(long, value_name = "on|off", default_value = "on", requires = "tier")]
    pub tier_role: Switch,
    /// Local copies go this long after all of a ledger is in object storage [default: 240m]
    #[arg(long, value_name = "DURATION", value_parser = crate::parse::duration, requires = "tier")]
    pub tier_grace: Option<Duration>,
    /// off: do not replace copies that the cluster lost. It matters with several bookies
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub repair_role: Switch,
    /// Speak TLS with clients that ask for it: PEM file with the bookies' certificate, which is for 127.0.0.1
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// PEM file with the authority that signed --tls-cert, for the tierer and for the words about how to connect; without it,
    /// it is one that this system trusts
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
    /// Refuse clients that do not ask for TLS
    #[arg(long, requires = "tls_cert")]
    pub tls_required: bool,
    /// INSTANCEID of the cluster, in place of one that is drawn by lot at the first start: that of a cluster which is gone, for
    /// bindery tier restore. Tiering is paused until then
    #[arg(long, value_name = "INSTANCEID")]
    pub instance_id: Option<String>,
    /// Form of the log on standard error; json: from level info on, and no words about how to connect
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,
    /// Do not say how to connect
    #[arg(long)]
    pub quiet: bool,
}
