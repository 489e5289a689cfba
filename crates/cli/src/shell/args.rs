//! The command line of `bindery shell`.

use crate::args::LogFormat;
use bindery_config::sources::environment::Naming;
use clap::Args;
use std::path::PathBuf;

/// The commands.
const COMMANDS: &str = "Commands, with the options of bin/bookkeeper shell:
  whatisinstanceid                              Print the cluster's INSTANCEID; fails where there is no cluster
  initnewcluster                                Create the cluster's metadata; fails where it is there
  metaformat [-nonInteractive]                  Create the cluster's metadata, or leave it as it is
  listbookies [-rw] [-ro] [-a]                  List bookies that run: writable, read-only, or all that have a cookie
  listunderreplicated                           List ledgers that are marked as lacking copies
  lostbookierecoverydelay -get | -set SECONDS   How long a bookie may be away
  whoisauditor                                  Name the auditor
  autorecovery [-enable | -disable]             Whether repair is enabled
  bookieformat [-deleteCookie]                  Prepare empty directories for a new bookie; never deletes entries
  bookiesanity                                  Whether the bookie of this configuration writes and reads

Of the images' other tools:
  autorecovery-daemon                           Repair until SIGTERM, as bin/bookkeeper autorecovery does
  zookeeper [-server HOST:PORT] ls | get | create PATH   As bin/pulsar zookeeper-shell does";

#[derive(Debug, Args)]
#[command(after_help = COMMANDS)]
pub struct ShellArgs {
    /// A bk_server.conf or bookkeeper.conf
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Settings in the environment: bk for BK_key, pulsar for PULSAR_PREFIX_key and key, as in the official images
    #[arg(long, value_enum, default_value_t = Naming::None)]
    pub config_env: Naming,
    /// A JAAS file with the login to ZooKeeper
    #[arg(long, value_name = "FILE")]
    pub jaas_file: Option<PathBuf>,
    /// Form of log lines on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// The command, and its options
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}
