//! The common parts of every command's help: an example at the end, as in its man page, and rarely used flags last, which the short `-h`
//! leaves out.
//!
//! # Invariants (tests)
//! 1. Every command has an example, and every example is a command line that is accepted.
//! 2. A flag that a command has for itself comes before those that many commands share.

use clap::Command;

/// Where `--help` ends.
const EXIT_CODES_ARE: &str = "Exit codes: bindery help exit-codes";

/// Flags by which a cluster is reached that is not the usual one, in place of those with a heading of their own.
const RARE: &[&str] = &["metadata_config", "timeout", "frame_limit", "verbose"];
/// Commands whose help is about just these.
const ARE_THEIR_OWN: &[&str] = &["bookie gc", "tier now"];
/// Shown behind those of the command.
const RARE_ORDER: usize = 900;

/// The words that name a command, and examples of it.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("", &["bindery standalone", "bindery ledger create", "echo hello | bindery ledger append 0"]),
    ("standalone", &["bindery standalone --data ./bindery-data --bookies 3"]),
    (
        "bookie",
        &[
            "bindery bookie --metadata zk://zk1:2181/ledgers --data /var/lib/bindery",
            "bindery bookie --config /etc/bookkeeper/bk_server.conf --admin 127.0.0.1:8080",
        ],
    ),
    ("bookie list", &["bindery bookie list", "bindery bookie list --json | jq -r .bookie_id"]),
    ("bookie gc", &["bindery bookie gc", "bindery bookie gc --major bookie-1:3181"]),
    ("bookie health", &["bindery bookie health", "bindery bookie health --once --ledger 7"]),
    (
        "bookie recover",
        &["bindery bookie recover bookie-1:3181 --dry-run", "bindery bookie recover bookie-1:3181"],
    ),
    ("bookie decommission", &["bindery bookie decommission bookie-1:3181 --wait"]),
    ("bookie drain", &["bindery bookie drain bookie-1:3181 --dry-run", "bindery bookie drain bookie-1:3181"]),
    ("ledger", &["bindery ledger create", "bindery ledger read 0", "bindery ledger tail 0"]),
    (
        "ledger create",
        &["bindery ledger create", "bindery ledger create --ensemble 5 --write-quorum 3 --ack-quorum 2"],
    ),
    (
        "ledger append",
        &[
            "journalctl --follow | bindery ledger append 0",
            "tail -f app.log | bindery ledger append --take-over 0",
            "bindery ledger append 0 --whole one.json two.json --close",
        ],
    ),
    ("ledger close", &["bindery ledger close 0"]),
    ("ledger recover", &["bindery ledger recover 0 1 2", "bindery ledger recover 0 --yes"]),
    ("ledger verify", &["bindery ledger verify 0 --first 1000 --last 1999", "bindery ledger verify --all"]),
    ("ledger repair", &["bindery ledger repair 0", "bindery ledger repair 0 1 2 --rate 20MiB"]),
    (
        "ledger read",
        &["bindery ledger read 0 --first 10 --last 19", "bindery ledger read 0 --json | jq -r .text"],
    ),
    ("ledger tail", &["bindery ledger tail 0", "bindery ledger tail 0 --from-start"]),
    ("ledger list", &["bindery ledger list --long"]),
    ("ledger show", &["bindery ledger show 0", "bindery ledger show 0 --store s3://bucket/ledgers --long"]),
    ("ledger delete", &["bindery ledger delete 0 1 2 --yes"]),
    ("bench", &["bindery bench add --seconds 10", "bindery bench read --seconds 10"]),
    ("bench add", &["bindery bench add --ledgers 50 --outstanding 20000 --seconds 10 --entry-size 1024"]),
    ("bench read", &["bindery bench read --readers 8 --mode seq --batch 50 --seconds 10"]),
    ("config", &["bindery config check /etc/bookkeeper/bk_server.conf"]),
    ("config check", &["bindery config check /etc/bookkeeper/bk_server.conf"]),
    ("config show", &["bindery config show --config bk_server.conf", "bindery config show --all --json"]),
    ("config explain", &["bindery config explain journalMaxGroupWaitMSec"]),
    ("cluster", &["bindery cluster init --metadata zk://zk1:2181/ledgers"]),
    ("cluster init", &["bindery cluster init --metadata zk://zk1:2181/ledgers"]),
    ("cluster cookie", &["bindery cluster cookie list"]),
    ("cluster cookie list", &["bindery cluster cookie list"]),
    ("cluster cookie show", &["bindery cluster cookie show bookie-1:3181"]),
    ("cluster cookie delete", &["bindery cluster cookie delete bookie-1:3181"]),
    ("cluster status", &["bindery cluster status", "bindery cluster status --once"]),
    ("cluster safe-to-stop", &["bindery cluster safe-to-stop bookie-1:3181 && systemctl restart bindery"]),
    (
        "cluster under-replicated",
        &["bindery cluster under-replicated", "bindery cluster under-replicated --json | wc -l"],
    ),
    ("cluster repair", &["bindery cluster repair status"]),
    ("cluster repair status", &["bindery cluster repair status --json"]),
    ("cluster repair enable", &["bindery cluster repair enable"]),
    ("cluster repair disable", &["bindery cluster repair disable"]),
    ("cluster repair delay", &["bindery cluster repair delay 15m"]),
    ("cluster export", &["bindery cluster export cluster.jsonl"]),
    ("cluster import", &["bindery cluster import cluster.jsonl --metadata zk://new:2181/ledgers"]),
    ("tier", &["bindery tier run --store s3://bucket/ledgers", "bindery tier status"]),
    ("tier run", &["bindery tier run --store s3://bucket/ledgers"]),
    ("tier status", &["bindery tier status", "bindery tier status --json"]),
    ("tier now", &["bindery tier now 7"]),
    ("tier pause", &["bindery tier pause"]),
    ("tier resume", &["bindery tier resume"]),
    ("tier check", &["bindery tier check s3://bucket/ledgers"]),
    ("tier verify", &["bindery tier verify --store s3://bucket/ledgers"]),
    ("tier rebuild", &["bindery tier rebuild --store s3://bucket/ledgers"]),
    ("tier restore", &["bindery tier restore --store s3://bucket/ledgers"]),
    ("repair", &["bindery repair --metadata zk://zk1:2181/ledgers --rate 50MiB"]),
    ("inspect", &["bindery inspect journal /var/lib/bindery/journal/current/0.txn"]),
    ("inspect journal", &["bindery inspect journal /var/lib/bindery/journal/current/0.txn"]),
    ("inspect entry-log", &["bindery inspect entry-log /var/lib/bindery/ledgers/current/1.elog"]),
    ("inspect object", &["bindery inspect object s3://bucket/ledgers/INSTANCEID/objects/ID"]),
    ("inspect ledger", &["bindery inspect ledger /var/lib/bindery/ledgers --ledger 7"]),
    ("verify", &["bindery verify /var/lib/bindery"]),
    ("disk", &["bindery disk /var/lib/bindery"]),
    ("flow", &["bindery flow", "bindery flow --once --sort stalled --top 10"]),
    (
        "shell",
        &[
            "bindery shell --config conf/bk_server.conf whatisinstanceid",
            "bindery shell --config conf/bookkeeper.conf --config-env pulsar listbookies -rw",
        ],
    ),
    ("user", &["bindery user hash alice --roles writer,reader >> users"]),
    ("user hash", &["bindery user hash alice --roles writer,reader >> users"]),
    ("completions", &["bindery completions bash > /etc/bash_completion.d/bindery"]),
    ("man", &["bindery man | man -l -", "bindery man --out /usr/local/share/man/man1"]),
    ("exit-codes", &["bindery help exit-codes"]),
];

/// The command line with its examples.
pub fn with_examples(command: Command) -> Command {
    dressed(command, "")
}

fn dressed(command: Command, path: &str) -> Command {
    let begin = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    let command = command.after_long_help(format!("{begin}{}", end_of_help(path)));
    let command = rare_last(command, path);
    let short = match command.get_arguments().any(clap::Arg::is_hide_short_help_set) {
        true => format!(
            "{begin}{}\n\nbindery {path} --help shows all options\n\n{EXIT_CODES_ARE}",
            short_end_of_help(path)
        ),
        false => format!("{begin}{}", end_of_help(path)),
    };
    let command = command.after_help(short);
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}").trim_start().to_owned();
        command.mut_subcommand(name, |sub| dressed(sub, &path))
    })
}

/// Invariant 2.
fn rare_last(command: Command, path: &str) -> Command {
    if path == "bookie" || path == "standalone" || ARE_THEIR_OWN.contains(&path) {
        return command;
    }
    command.mut_args(|arg| {
        let is_rare = RARE.contains(&arg.get_id().as_str()) || arg.get_help_heading().is_some();
        match is_rare {
            true => arg.hide_short_help(true).display_order(RARE_ORDER),
            false => arg,
        }
    })
}

fn short_end_of_help(path: &str) -> String {
    examples_of(path)
        .unwrap_or_default()
        .first()
        .map_or_else(String::new, |first| format!("Example:\n  {first}"))
}

fn end_of_help(path: &str) -> String {
    let examples = examples_of(path).unwrap_or_default();
    match examples.len() {
        0 => EXIT_CODES_ARE.to_owned(),
        1 => format!("Example:\n  {}\n\n{EXIT_CODES_ARE}", examples[0]),
        _ => format!("Examples:\n  {}\n\n{EXIT_CODES_ARE}", examples.join("\n  ")),
    }
}

fn examples_of(path: &str) -> Option<&'static [&'static str]> {
    EXAMPLES.iter().find(|(of, _)| *of == path).map(|(_, examples)| *examples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::Cli;
    use clap::CommandFactory;

    fn paths(command: &Command, path: &str, found: &mut Vec<String>) {
        found.push(path.to_owned());
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            paths(sub, format!("{path} {}", sub.get_name()).trim_start(), found);
        }
    }

    /// Invariant 1.
    #[test]
    fn every_command_has_an_example_and_every_example_is_of_a_command() {
        let mut found = Vec::new();
        paths(&Cli::command(), "", &mut found);
        for path in &found {
            assert!(examples_of(path).is_some_and(|examples| !examples.is_empty()), "no example of {path:?}");
        }
        for (path, _) in EXAMPLES {
            assert!(found.iter().any(|found| found == path), "{path:?} is no command");
        }
    }

    /// Invariant 2.
    #[test]
    fn a_short_help_has_what_the_command_is_about() {
        let mut command = with_examples(Cli::command());
        let read = command.find_subcommand_mut("ledger").unwrap().find_subcommand_mut("read").unwrap();
        let (short, long) = (read.render_help().to_string(), read.render_long_help().to_string());
        assert!(short.contains("--first") && short.contains("--metadata "), "{short}");
        assert!(
            !short.contains("--tls-ca") && !short.contains("--rack-map") && !short.contains("--frame-limit")
        );
        assert!(
            short.lines().count() < 45 && short.contains("bindery ledger read --help shows all"),
            "{short}"
        );
        let at = |flag: &str| long.find(&format!("--{flag} ")).unwrap_or_else(|| panic!("--{flag}: {long}"));
        assert!(
            at("first") < at("frame-limit") && at("first") < at("tls-ca") && at("first") < at("rack-map")
        );
    }

    /// Invariant 1.
    #[test]
    fn every_example_is_accepted() {
        for (path, examples) in EXAMPLES {
            for example in *examples {
                let ours = example.split(" | ").find(|part| part.starts_with("bindery ")).unwrap_or_default();
                let ours = ours.split(" >").next().unwrap_or_default();
                let parsed = Cli::command().try_get_matches_from(ours.split_whitespace());
                match parsed {
                    Ok(_) => {}
                    Err(error) if !error.use_stderr() => {}
                    Err(error) => panic!("{path:?}: {example}: {error}"),
                }
            }
        }
    }
}
