//! Arguments of the commands about repair.

use crate::admin_port::AdminPortArgs;
use crate::args::{LogFormat, MetadataArgs};
use crate::ledger::args::{AccessArgs, StoredPasswordArgs};
use crate::ledger::placement::PlacementArgs;
use crate::parse::{duration, ledger_id, parse_size};
use bindery_types::LedgerId;
use clap::{Args, Subcommand};
use std::time::Duration;

/// How the cluster is reached, how copies are made, and which bookies get them.
#[derive(Debug, Clone, Args)]
pub struct WorkerArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub copies: CopyArgs,
    #[command(flatten)]
    pub placement: PlacementArgs,
}

/// How copies are made.
#[derive(Debug, Clone, Args)]
pub struct CopyArgs {
    /// Bytes copied in a second [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub rate: Option<u64>,
    /// Memory for copies under way
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "16MiB")]
    pub memory_limit: u64,
    /// Ledgers under way
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), default_value_t = 4)]
    pub parallel: u16,
    /// How long a ledger that is not closed, and whose last ensemble has lost a bookie, is left to its writer
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "30s")]
    pub open_grace: Duration,
}

/// A time that may be none.
fn span(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        other => duration(other),
    }
}

/// A time between two checks that take long: hours and days are its units, too.
fn interval(text: &str) -> Result<Duration, String> {
    let hours = |number: &str, hours: u32| number.trim().parse::<u32>().ok()?.checked_mul(hours);
    let whole = match (text.strip_suffix('d'), text.strip_suffix('h')) {
        (Some(days), _) => hours(days, 24),
        (_, Some(number)) => hours(number, 1),
        _ => return span(text),
    };
    let seconds = whole.filter(|hours| (1..=24 * 366).contains(hours)).map(|hours| u64::from(hours) * 3600);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| "give 0, or a time up to 366d, for example 7d or 12h".to_owned())
}

fn rate(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).filter(|bytes| *bytes >= 64 << 10);
    bytes.ok_or_else(|| "give a size of 64KiB or more, for example 20MiB".to_owned())
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).filter(|bytes| (2 << 20..=1 << 40).contains(bytes));
    bytes.ok_or_else(|| "give a size from 2MiB to 1TiB, for example 16MiB".to_owned())
}

#[derive(Debug, Args)]
pub struct RepairArgs {
    #[command(flatten)]
    pub worker: WorkerArgs,
    /// Name of this process in elections and locks [default: repair-PID on this host]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How long a bookie may be away before its ledgers are repaired, where the cluster has no lostBookieRecoveryDelay yet
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "15m")]
    pub lost_after: Duration,
    /// Time between two scans of all ledgers
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1440m")]
    pub scan_interval: Duration,
    /// Time between two checks of all ledgers: whether bookies have the entries that metadata say they have; 0 for never
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "7d")]
    pub check_interval: Duration,
    /// Time between two counts of ledgers whose copies are not spread as --placement wants; 0 for never
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "0")]
    pub placement_check_interval: Duration,
    #[command(flatten)]
    pub admin: AdminPortArgs,
    /// Form of log lines on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

#[derive(Debug, Args)]
pub struct BookieRecoverArgs {
    #[command(flatten)]
    pub worker: WorkerArgs,
    /// Only say which ledgers lack copies
    #[arg(long)]
    pub dry_run: bool,
    /// Bookies that are gone
    #[arg(value_name = "BOOKIE_ID", required = true)]
    pub bookie_ids: Vec<String>,
}

#[derive(Debug, Args)]
pub struct LedgerRepairArgs {
    #[command(flatten)]
    pub worker: WorkerArgs,
    #[command(flatten)]
    pub password: StoredPasswordArgs,
    /// Ledgers
    #[arg(value_name = "LEDGER_ID", required = true, value_parser = ledger_id)]
    pub ledgers: Vec<LedgerId>,
}

#[derive(Debug, Args)]
pub struct DecommissionArgs {
    #[command(flatten)]
    pub worker: WorkerArgs,
    /// Copy here and wait until nothing refers to the bookie, then remove its cookie; without it the ledgers are marked, and whoever
    /// repairs the cluster copies them
    #[arg(long)]
    pub wait: bool,
    /// Only say which ledgers refer to it
    #[arg(long, conflicts_with = "wait")]
    pub dry_run: bool,
    /// The bookie, which is stopped
    #[arg(value_name = "BOOKIE_ID")]
    pub bookie_id: String,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    #[command(flatten)]
    pub worker: WorkerArgs,
    /// How long ledgers that are open are waited for, until their writers leave the bookie or close them
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "10m")]
    pub writers_max: Duration,
    /// Only say what the bookie has, and what would be in the way
    #[arg(long)]
    pub dry_run: bool,
    /// End it: the bookie takes writes again, and what was copied stays where it is
    #[arg(long, conflicts_with = "dry_run")]
    pub cancel: bool,
    /// The bookie, which runs
    #[arg(value_name = "BOOKIE_ID")]
    pub bookie_id: String,
}

#[derive(Debug, Args)]
pub struct SafeToStopArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    /// A line of JSON
    #[arg(long)]
    pub json: bool,
    /// Bookies that are to be stopped at the same time
    #[arg(value_name = "BOOKIE_ID", required = true)]
    pub bookie_ids: Vec<String>,
}

#[derive(Debug, Args)]
pub struct UnderReplicatedArgs {
    #[command(flatten)]
    pub access: AccessArgs,
    /// A line of JSON for each ledger
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ClusterRepairArgs {
    #[command(subcommand)]
    pub command: ClusterRepairCommand,
}

#[derive(Debug, Subcommand)]
pub enum ClusterRepairCommand {
    /// Whether repair is enabled, who is the auditor, how long a bookie may be away, how many ledgers are marked
    Status {
        #[command(flatten)]
        metadata: MetadataArgs,
        /// A line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Let repair go on
    Enable(MetadataArgs),
    /// Stop all auditors and replication workers, BookKeeper's too, until it is enabled: before planned work
    Disable(MetadataArgs),
    /// Say how long a bookie may be away before its ledgers are repaired
    Delay {
        #[command(flatten)]
        metadata: MetadataArgs,
        /// Whole seconds, for example 15m; 0s for at once
        #[arg(value_name = "TIME", value_parser = span)]
        time: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_take_days_and_hours_and_none() {
        let seconds = |text| interval(text).map(|time| time.as_secs());
        assert_eq!((seconds("7d"), seconds("12h"), seconds("90s")), (Ok(604_800), Ok(43_200), Ok(90)));
        assert_eq!((seconds("0"), seconds("366d")), (Ok(0), Ok(31_622_400)));
        for bad in ["0d", "367d", "d", "-1h", "4294967295d", "soon"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
