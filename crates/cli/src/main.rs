//! The `bindery` command: parses, wires the parts together, reports. No logic of its own.

mod admin_find;
mod admin_http;
mod admin_port;
mod args;
mod bench;
mod bookie;
mod bookie_gc;
mod bookie_health;
mod bookie_list;
mod bookie_security;
mod bucket;
mod cluster;
mod cluster_transfer;
mod command_line;
mod config;
mod disk;
mod entry_source;
mod examples;
mod exit;
mod figure;
mod flow;
mod generate;
mod inspect;
mod ledger;
mod live;
mod logging;
mod metadata_failure;
mod metadata_session;
#[cfg(test)]
mod metrics_reference;
mod offline;
mod output;
mod own_client;
mod parse;
mod plot;
mod printable;
mod private_file;
mod progress;
mod repair;
mod runtime;
mod service_manager;
mod shell;
mod signals;
mod standalone;
mod status_line;
mod tier;
mod tier_role;
mod usage;
mod user;
mod verify;

use clap::{CommandFactory, FromArgMatches};
use command_line::{BookieCommand, Cli, Command, LedgerCliCommand};
use std::process::ExitCode;

fn main() -> ExitCode {
    let matches = examples::with_examples(Cli::command()).try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return usage::end(&error, std::env::args_os().skip(1)),
    };
    if cli.quiet {
        progress::silence();
    }
    let result = match cli.command {
        Command::Bookie(args) => match args.command {
            None => bookie::run(args.run),
            Some(BookieCommand::List(list)) => bookie_list::run(list),
            Some(BookieCommand::Health(health)) => bookie_health::run(health),
            Some(BookieCommand::Gc(gc)) => bookie_gc::run(&gc),
            Some(BookieCommand::Recover(recover)) => repair::recover(*recover),
            Some(BookieCommand::Decommission(decommission)) => repair::decommission(*decommission),
            Some(BookieCommand::Drain(drain)) => repair::drain(*drain),
        },
        Command::Standalone(args) => standalone::run(*args),
        Command::Ledger(args) => match args.command {
            LedgerCliCommand::Ledger(command) => ledger::run(command),
            LedgerCliCommand::Repair(repair) => repair::repair_ledgers(repair),
        },
        Command::Bench(args) => bench::run(args.command),
        Command::Config(args) => config::run(*args),
        Command::Cluster(args) => cluster::run(args.command),
        Command::Tier(args) => tier::run(*args),
        Command::Repair(args) => repair::run(*args),
        Command::Inspect(args) => inspect::run(args.command),
        Command::Verify(args) => verify::run(&args),
        Command::Disk(args) => disk::run(&args),
        Command::Flow(args) => flow::run(&args),
        Command::Shell(args) => shell::run(args),
        Command::User(args) => user::run(args),
        Command::ExitCodes => output::write_all(format!("{}\n", command_line::EXIT_CODES).as_bytes()),
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { out } => generate::man(out.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::from(exit::OK),
        Err(failure) => {
            if !failure.is_silent() {
                logging::say_failure(&failure);
            }
            ExitCode::from(failure.code)
        }
    }
}
