//! Errors of the command line, said as every other failure is: in one line.

use crate::command_line::Cli;
use crate::exit::{self, Failure};
use crate::logging;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::process::ExitCode;

/// Prints help and version to standard output, and an error as a failure.
pub fn end(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(exit::OK);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(exit::USAGE);
    }
    // Not parsed, as nothing was: readers of this log expect lines of JSON.
    if wants_json(arguments.iter()) {
        logging::start(crate::args::LogFormat::Json);
    }
    let failure = Failure::usage(one_line(error, &arguments));
    logging::say_failure(&failure);
    ExitCode::from(failure.code)
}

fn wants_json<'a>(arguments: impl Iterator<Item = &'a OsString>) -> bool {
    let mut is_next = false;
    for argument in arguments {
        if (is_next && argument == "json") || argument == "--log-format=json" {
            return true;
        }
        is_next = argument == "--log-format";
    }
    false
}

/// Words that people try first, and what they are called here. Clap finds those that are spelled alike.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("server", "bindery standalone runs a cluster on this machine, bindery bookie one bookie of a cluster"),
    ("serve", "bindery standalone runs a cluster on this machine, bindery bookie one bookie of a cluster"),
    ("start", "bindery standalone runs a cluster on this machine, bindery bookie one bookie of a cluster"),
    ("write", "bindery ledger append writes"),
    ("cat", "bindery ledger read reads"),
    ("remove", "bindery ledger delete deletes"),
    ("--duration", "--seconds says how long"),
    ("--time", "--seconds says how long"),
    ("--replicas", "--write-quorum says how many copies"),
    ("--copies", "--write-quorum says how many copies"),
    ("--follow", "bindery ledger tail follows"),
    ("--watch", "on a terminal it goes on by itself, until q"),
];

/// The command that a line begins with, as its words.
fn command_of(arguments: &[OsString]) -> String {
    let (mut command, mut path) = (Cli::command(), "bindery".to_owned());
    for word in arguments.iter().filter_map(|argument| argument.to_str()) {
        let Some(sub) = command.find_subcommand(word).cloned() else { continue };
        path = format!("{path} {}", sub.get_name());
        command = sub;
    }
    path
}

/// Joins the paragraphs of clap's message: the error, tips, and where help is.
fn one_line(error: &clap::Error, arguments: &[OsString]) -> String {
    let rendered = error.render().to_string();
    let mut paragraphs = rendered.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ")
    });
    let first = paragraphs.next().unwrap_or_default();
    let mut line = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
    for paragraph in paragraphs {
        if let Some(tip) = paragraph.strip_prefix("tip: ") {
            line = format!("{line}; {tip}");
        }
    }
    for kind in [ContextKind::InvalidSubcommand, ContextKind::InvalidArg] {
        if let Some(ContextValue::String(word)) = error.get(kind)
            && let Some((_, here)) = OTHER_WORDS.iter().find(|(other, _)| other == word)
        {
            line = format!("{line}; {here}");
        }
    }
    format!("{line}; see {} --help", command_of(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn said(line: &[&str]) -> String {
        let error = Cli::try_parse_from([&["bindery"][..], line].concat()).unwrap_err();
        one_line(&error, &line.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn every_error_names_the_help_of_its_command() {
        for (line, help) in [
            (&["ledger", "read", "x"][..], "see bindery ledger read --help"),
            (&["ledger", "read", "7", "--first", "-1"], "see bindery ledger read --help"),
            (&["bench", "add", "--seconds", "0"], "see bindery bench add --help"),
            (&["tier", "nonsense"], "see bindery tier --help"),
            (&["--nonsense"], "see bindery --help"),
        ] {
            assert!(said(line).ends_with(help), "{line:?}: {}", said(line));
        }
    }

    #[test]
    fn words_that_people_try_first_are_translated() {
        assert!(said(&["server"]).contains("bindery standalone runs"), "{}", said(&["server"]));
        assert!(said(&["bench", "add", "--duration", "5"]).contains("--seconds says"));
        assert!(said(&["ledger", "create", "--replicas", "3"]).contains("--write-quorum says"));
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
        let wants = |line: &[&str]| wants_json(line.iter().map(OsString::from).collect::<Vec<_>>().iter());
        assert!(wants(&["bookie", "--log-format", "json", "--nonsense"]));
        assert!(wants(&["bookie", "--nonsense", "--log-format=json"]));
        assert!(!wants(&["bookie", "--log-format", "text", "json"]));
        assert!(!wants(&[]));
    }
}
