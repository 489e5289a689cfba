//! Errors of the command line, said as every other failure is: in one line.

use crate::exit::{self, Failure};
use crate::logging;
use clap::error::ErrorKind;
use std::ffi::OsString;
use std::process::ExitCode;

/// Prints help and version to standard output, and an error as a failure.
pub fn end(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(exit::OK);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(exit::USAGE);
    }
    // Not parsed, as nothing was: readers of this log expect lines of JSON.
    if wants_json(arguments) {
        logging::start(crate::args::LogFormat::Json);
    }
    let failure = Failure::usage(one_line(&error.render().to_string()));
    logging::say_failure(&failure);
    ExitCode::from(failure.code)
}

fn wants_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let mut is_next = false;
    for argument in arguments {
        if (is_next && argument == "json") || argument == "--log-format=json" {
            return true;
        }
        is_next = argument == "--log-format";
    }
    false
}

/// Joins the paragraphs of clap's message: the error, tips, the usage, and where help is.
fn one_line(rendered: &str) -> String {
    let mut paragraphs = rendered.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ")
    });
    let first = paragraphs.next().unwrap_or_default();
    let mut line = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
    let mut help = "bindery --help".to_owned();
    for paragraph in paragraphs {
        if let Some(usage) = paragraph.strip_prefix("Usage: ") {
            let command: Vec<&str> =
                usage.split(' ').skip(1).take_while(|word| !word.starts_with(['<', '[', '-'])).collect();
            help = ["bindery"].into_iter().chain(command).chain(["--help"]).collect::<Vec<_>>().join(" ");
        } else if let Some(tip) = paragraph.strip_prefix("tip: ") {
            line = format!("{line}; {tip}");
        }
    }
    format!("{line}; see {help}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::Cli;
    use clap::Parser;

    fn said(line: &[&str]) -> String {
        let error = Cli::try_parse_from([&["bindery"][..], line].concat()).unwrap_err();
        one_line(&error.render().to_string())
    }

    #[test]
    fn an_error_is_one_line_with_its_tip_and_the_way_to_help() {
        assert_eq!(
            said(&["ledger", "read", "7", "--entrys"]),
            "unexpected argument '--entrys' found; a similar argument exists: '--entry'; see bindery ledger read --help"
        );
        let flag = said(&["bookie", "--data-dir", "/x"]);
        assert!(
            flag.starts_with("unexpected argument '--data-dir' found; a similar argument exists: '--data'"),
            "{flag}"
        );
        let missing = said(&["cluster", "cookie", "show"]);
        assert_eq!(
            missing,
            "the following required arguments were not provided: <BOOKIE_ID>; see bindery cluster cookie show --help"
        );
        let value = said(&["bookie", "--journal-sync", "maybe"]);
        assert!(
            value.contains("'maybe' for '--journal-sync <on|off>' [possible values: on, off]"),
            "{value}"
        );
        assert!(said(&["nonsense"]).starts_with("unrecognized subcommand 'nonsense'"));
        for line in [&["ledger", "read", "x"][..], &["bookie", "--data", "/d", "--journal-dir", "/j"]] {
            assert!(!said(line).contains('\n'), "{line:?}");
        }
    }

    #[test]
    fn the_form_of_the_log_is_found_in_a_line_that_is_wrong() {
        let wants = |line: &[&str]| wants_json(line.iter().map(OsString::from));
        assert!(wants(&["bookie", "--log-format", "json", "--nonsense"]));
        assert!(wants(&["bookie", "--nonsense", "--log-format=json"]));
        assert!(!wants(&["bookie", "--log-format", "text", "json"]));
        assert!(!wants(&[]));
    }
}
