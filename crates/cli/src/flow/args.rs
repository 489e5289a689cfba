//! Command line of `bindery flow`.

use crate::admin_find::FindAdminArgs;
use crate::live::DrawArgs;
use crate::parse::seconds;
use bindery_server::flow_view::Sort;
use clap::Args;

/// Flags of `bindery flow`.
#[derive(Debug, Args)]
#[command(after_help = FLOW_HELP)]
pub struct FlowArgs {
    #[command(flatten)]
    pub admin: FindAdminArgs,
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
    #[command(flatten)]
    pub draw: DrawArgs,
}

const FLOW_HELP: &str = "Columns:
  HELD     bytes of all pools that the connection holds
  WINDOW   how much of its read window is taken: loads under way, entries its peer has not taken
  UNSENT   bytes ready for the peer that the kernel has not taken
  READS    reads that are not answered; ADDS likewise; POLLS parked long polls
  STATE    STALLED: the peer takes nothing of what is ready for it; not read: why its requests wait

Keys: s takes another order, q quits, any other looks again.";
