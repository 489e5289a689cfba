//! The configuration as its operator has it: a `bk_server.conf`, flags, the environment; and the commands that look at it.
//!
//! There is one format, BookKeeper's, and one table of keys ([`bindery_config::table`]). `settings` puts everything together.

pub mod args;
mod check;
mod explain;
mod reference;
mod secret_files;
pub mod show;

use crate::args::BookieArgs;
use crate::exit::Failure;
use args::{ConfigArgs, ConfigCommand};
use bindery_config::settings::{self, Examined};
use bindery_config::sources::host::ThisMachine;

/// Runs one of `bindery config`.
pub fn run(args: ConfigArgs) -> Result<(), Failure> {
    match args.command {
        ConfigCommand::Check(args) => check::run(*args),
        ConfigCommand::Show(args) => show::run(*args),
        ConfigCommand::Explain { key, json } => explain::run(&key, json),
        ConfigCommand::Reference => crate::output::write_all(reference::page().as_bytes()),
    }
}

/// The settings that a bookie would make of its flags, its file and this process's environment.
pub fn examine(args: &mut BookieArgs) -> Result<Examined, Failure> {
    args.tier_of_shell = std::env::var("BINDERY_TIER").ok().filter(|url| !url.is_empty());
    args.metadata_of_shell = std::env::var("BINDERY_METADATA").ok().filter(|uri| !uri.is_empty());
    let text = match &args.config {
        None => None,
        Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!(
                "cannot read {}: {error}; check the path of the configuration file",
                path.display()
            ))
        })?),
    };
    // A variable that is no text is no setting.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut examined = settings::examine(args, text.as_deref(), variables.collect(), &ThisMachine);
    let of_files = secret_files::warnings(&examined, args.config.as_deref());
    examined.warnings.extend(of_files);
    Ok(examined)
}
