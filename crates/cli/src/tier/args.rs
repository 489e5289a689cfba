//! Flags of `bindery tier`.

use crate::admin_port::AdminPortArgs;
use crate::args::{LogFormat, MetadataArgs};
use crate::bookie_security::args::BookieSecurityArgs;
use crate::parse::{ledger_id, seconds};
use bindery_config::tier::tuning::TierTuning;
use bindery_types::LedgerId;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `bindery tier --store URL` runs a tierer, as `bindery tier run` does; the others look and ask.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TierArgs {
    #[command(subcommand)]
    pub command: Option<TierCommand>,
    #[command(flatten)]
    pub run: TierRunArgs,
}

#[derive(Debug, Subcommand)]
pub enum TierCommand {
    /// Move ledgers to object storage until SIGTERM or SIGINT. Any number of them may run
    Run(TierRunArgs),
    /// Show how far ledgers are behind, what holds that up, and what it costs, live
    Status(TierStatusArgs),
    /// Move a ledger now, whatever its age, and wait until it is done
    Now(TierNowArgs),
    /// Let all tierers of the cluster finish what they are at and begin nothing, until resume
    Pause(TierPauseArgs),
    /// End a pause
    Resume(MetadataArgs),
    /// Try out whether an object store does what a tier needs: conditional creates above all. Leaves nothing there, but a note
    /// about a promise that it broke: tierers refuse it from then on
    Check(TierCheckArgs),
    /// Read back everything that the tier holds, and compare it with the catalogue; changes nothing
    Verify(TierVerifyArgs),
    /// Rebuild a catalogue that was lost, damaged, or put back from an older copy, from the objects of a cluster that lives. Bookies and
    /// tierers may run; changes no ledger and no object
    Rebuild(TierRebuildArgs),
    /// Make the ledgers of a bucket readable again in a cluster that has nothing of them. Changes no ledger that exists
    Restore(TierRestoreArgs),
}

/// Flags of `bindery tier check`.
#[derive(Debug, Args)]
pub struct TierCheckArgs {
    /// file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    pub url: String,
    /// Write below the keys of this cluster, by its INSTANCEID, as its tierers do: for credentials that allow nothing else
    #[arg(long, value_name = "INSTANCEID")]
    pub cluster: Option<String>,
    /// Remove notes about promises that the store broke before, of all clusters or of the one that is named: it was mended, or is
    /// another one. It is tried out then
    #[arg(long)]
    pub clear: bool,
}

/// Flags of `bindery tier restore`.
#[derive(Debug, Args)]
pub struct TierRestoreArgs {
    #[command(flatten)]
    pub metadata: MetadataArgs,
    /// The object store: file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL", env = "BINDERY_TIER")]
    pub store: String,
    /// INSTANCEID of the cluster that wrote the objects; the cluster to restore into must have the same one: see
    /// bindery cluster init --instance-id
    #[arg(long, value_name = "INSTANCEID")]
    pub from: Option<String>,
    /// Rebuild the catalogue from the objects first, even one that can be read. In a cluster that lives, bindery tier rebuild does that
    /// alone
    #[arg(long)]
    pub rebuild: bool,
    /// An object for each ledger, and one for the sums, on a line each
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub security: BookieSecurityArgs,
    /// The ledgers [default: all of the bucket]
    #[arg(value_name = "LEDGER", value_parser = ledger_id)]
    pub ledgers: Vec<LedgerId>,
}

/// Flags of `bindery tier rebuild`.
#[derive(Debug, Args)]
pub struct TierRebuildArgs {
    #[command(flatten)]
    pub metadata: MetadataArgs,
    /// The object store: file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL", env = "BINDERY_TIER")]
    pub store: String,
    /// The sums as an object on a line
    #[arg(long)]
    pub json: bool,
}

/// Flags of `bindery tier verify`.
#[derive(Debug, Args)]
pub struct TierVerifyArgs {
    /// The object store: file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL", env = "BINDERY_TIER")]
    pub store: String,
    /// The cluster whose objects to verify. Without it, --cluster or the store itself says which
    #[arg(long, value_name = "URI")]
    pub metadata: Option<String>,
    /// A file that says how to connect to it, such as a bookie's: zkTlsEnable, zkEnableSecurity and so on
    #[arg(long, value_name = "FILE", env = "BINDERY_METADATA_CONFIG")]
    pub metadata_config: Option<PathBuf>,
    /// INSTANCEID of the cluster [default: the only one in the store]
    #[arg(long, value_name = "INSTANCEID", conflicts_with = "metadata")]
    pub cluster: Option<String>,
    /// Objects that are read at once, each with some 8 MiB of memory
    #[arg(long, value_name = "N", default_value = "4", value_parser = at_once)]
    pub at_once: usize,
    /// An object for each finding, and one for the sums, on a line each
    #[arg(long)]
    pub json: bool,
}

fn at_once(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=64).contains(n)).ok_or_else(|| "give a number from 1 to 64".to_owned())
}

/// Flags of `bindery tier run`.
#[derive(Debug, Clone, Args)]
pub struct TierRunArgs {
    #[command(flatten)]
    pub metadata: MetadataArgs,
    /// The object store: file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL", env = "BINDERY_TIER")]
    pub store: Option<String>,
    #[command(flatten)]
    pub admin: AdminPortArgs,
    #[command(flatten)]
    pub tuning: TierTuning,
    #[command(flatten)]
    pub security: BookieSecurityArgs,
    /// Form of the log on standard error
    #[arg(long, value_name = "text|json", default_value = "text")]
    pub log_format: LogFormat,
}

/// Where a tierer answers.
#[derive(Debug, Clone, Args)]
pub struct TierAdminArgs {
    /// The admin port of a tierer, or of a bookie with one [default: that of the first registered bookie with a tierer]
    #[arg(long, value_name = "URL", env = "BINDERY_ADMIN")]
    pub admin: Option<String>,
    #[command(flatten)]
    pub metadata: MetadataArgs,
}

/// Flags of `bindery tier status`.
#[derive(Debug, Args)]
pub struct TierStatusArgs {
    #[command(flatten)]
    pub admin: TierAdminArgs,
    /// Print it once and end; as when standard output is no terminal
    #[arg(long)]
    pub once: bool,
    /// Print what the tierer answers, JSON, and end
    #[arg(long)]
    pub json: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: f64,
}

/// Flags of `bindery tier now`.
#[derive(Debug, Args)]
pub struct TierNowArgs {
    /// The ledger
    #[arg(value_name = "LEDGER", value_parser = ledger_id)]
    pub ledger: LedgerId,
    #[command(flatten)]
    pub admin: TierAdminArgs,
    /// Seconds to wait until it is done; 0: do not wait
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = wait_seconds)]
    pub timeout: f64,
}

/// Flags of `bindery tier pause`.
#[derive(Debug, Args)]
pub struct TierPauseArgs {
    #[command(flatten)]
    pub metadata: MetadataArgs,
    /// Why, for whoever finds tiering paused
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

fn wait_seconds(text: &str) -> Result<f64, String> {
    if text == "0" { Ok(0.0) } else { seconds(text) }
}
