//! Shell completions and man pages, made from the command line itself.

use crate::command_line::{Cli, EXIT_CODES};
use crate::examples::with_examples;
use crate::exit::Failure;
use crate::output;
use clap::CommandFactory;
use std::path::Path;

/// Writes a completion script to standard output.
pub fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "bindery", &mut script);
    output::write_all(&script)
}

/// The command line as man pages show it.
fn documented() -> clap::Command {
    let command = with_examples(Cli::command());
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command.after_help(format!("{EXIT_CODES}\n\n{examples}"))
}

/// Writes the page of `bindery` to standard output, or the pages of all commands into `out`.
pub fn man(out: Option<&Path>) -> Result<(), Failure> {
    let Some(out) = out else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(documented()).render(&mut page);
        rendered.map_err(|error| Failure::new(format!("cannot make the man page: {error}")))?;
        return output::write_all(&page);
    };
    #[expect(clippy::disallowed_methods, reason = "a directory of the user's, not of a server")]
    let made = std::fs::create_dir_all(out);
    made.and_then(|()| clap_mangen::generate_to(documented(), out)).map_err(|error| {
        Failure::new(format!("cannot write man pages into {}: {error}; choose another --out", out.display()))
    })
}
