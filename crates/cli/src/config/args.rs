//! The command line of `bindery config`.

use crate::args::BookieArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a bk_server.conf: all faults at once, each with its line. Exit code 2 when there are any; warnings are none
    Check(Box<CheckArgs>),
    /// Show the settings a bookie would have, and where each comes from
    Show(Box<ShowArgs>),
    /// Say what a key does here, its defaults, and why or what instead
    Explain {
        /// The key, as it stands in the file
        #[arg(value_name = "KEY")]
        key: String,
        /// A line of JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Write the reference of all keys, as it stands in docs/reference/configuration.md
    #[command(hide = true)]
    Reference,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Lines of JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Flags that the bookie will have.
    #[command(flatten)]
    pub run: BookieArgs,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// All keys, those without effect included
    #[arg(long)]
    pub all: bool,
    /// Lines of JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Flags that the bookie will have.
    #[command(flatten)]
    pub run: BookieArgs,
}
