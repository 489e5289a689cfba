//! The `bindery` command: parses, wires the parts together, reports. No logic of its own.

mod args;
mod bookie;
mod cluster;
mod conf_file;
mod exit;
mod inspect;
mod logging;
mod settings;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors and go to stdout.
            let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match cli.command {
        Command::Bookie(args) => bookie::run(*args),
        Command::Cluster(args) => cluster::run(args.command),
        Command::Inspect(args) => inspect::run(args.command),
    };
    match result {
        Ok(()) => ExitCode::from(exit::OK),
        Err(failure) => {
            eprintln!("bindery: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
