//! Shell completions and man pages, made from the command line itself.

use crate::args::Cli;
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

/// Writes the page of `bindery` to standard output, or the pages of all commands into `out`.
pub fn man(out: Option<&Path>) -> Result<(), Failure> {
    let Some(out) = out else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|error| Failure::new(format!("cannot make the man page: {error}")))?;
        return output::write_all(&page);
    };
    #[expect(clippy::disallowed_methods, reason = "a directory of the user's, not of a server")]
    let made = std::fs::create_dir_all(out);
    made.and_then(|()| clap_mangen::generate_to(Cli::command(), out)).map_err(|error| {
        Failure::new(format!("cannot write man pages into {}: {error}; choose another --out", out.display()))
    })
}
