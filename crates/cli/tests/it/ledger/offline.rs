//! Tests that need no cluster: wrong command lines, unreachable servers, generated texts.

use crate::ledger::shell::Outcome;
use crate::server::{bindery, free_port};
use std::net::TcpListener;

fn run(args: &[&str]) -> Outcome {
    Outcome::of(bindery(args).output().unwrap())
}

/// Every command that talks to a cluster.
const COMMANDS: [&[&str]; 13] = [
    &["ledger", "create"],
    &["ledger", "append", "0"],
    &["ledger", "close", "0"],
    &["ledger", "recover", "0"],
    &["ledger", "verify", "0"],
    &["ledger", "read", "0"],
    &["ledger", "tail", "0"],
    &["ledger", "list"],
    &["ledger", "show", "0"],
    &["ledger", "delete", "0", "--yes"],
    &["bookie", "list"],
    &["bench", "add"],
    &["bench", "read"],
];

#[test]
fn nobody_there_is_7_and_says_what_to_do() {
    let nobody = format!("zk+hierarchical://127.0.0.1:{}/ledgers", free_port());
    let says = [nobody.as_str(), "bindery standalone", "--metadata", "BINDERY_METADATA"];
    let children: Vec<_> = COMMANDS
        .iter()
        .map(|args| {
            let mut command = bindery(&[args, &["--metadata", &nobody][..]].concat());
            command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
            command.stderr(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let outcome = Outcome::of(child.wait_with_output().unwrap());
        outcome.failed(7, &says);
        assert!(outcome.stdout.is_empty());
    }

    // Somebody who never answers, and a shorter wait.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("zk://127.0.0.1:{}/ledgers", silent.local_addr().unwrap().port());
    run(&["ledger", "list", "--metadata", &silent, "--timeout", "300ms", "--frame-limit", "10MiB"])
        .failed(7, &[&silent, "300ms"]);
}

#[test]
fn wrong_command_lines_are_2() {
    for args in [
        &["ledger"][..],
        &["ledger", "read"],
        &["ledger", "read", "-1"],
        &["ledger", "recover"],
        &["ledger", "verify"],
        &["ledger", "verify", "--all", "0"],
        &["ledger", "verify", "--all", "--first", "1"],
        &["ledger", "read", "x"],
        &["ledger", "read", "0", "--entry", "1", "--first", "0"],
        &["ledger", "read", "0", "--recover", "--unconfirmed"],
        &["ledger", "read", "0", "--delimiter", "tab"],
        &["ledger", "append", "0", "--lines", "--whole"],
        &["ledger", "append", "0", "--whole", "--chomp"],
        &["ledger", "append", "0", "--json", "--print-ids"],
        &["ledger", "tail", "0", "--from", "1", "--from-start"],
        &["ledger", "create", "--digest", "md5"],
        &["ledger", "create", "--property", "novalue"],
        &["ledger", "create", "--property", "bindery.writer=x"],
        &["ledger", "list", "--timeout", "3h"],
        &["ledger", "list", "--timeout", "0"],
        &["ledger", "list", "--frame-limit", "1023"],
        &["ledger", "list", "--frame-limit", "2GiB"],
        &["ledger", "list", "--frame-limit", "much"],
        &["ledger", "delete"],
        &["bench", "add", "--rate", "0"],
        &["bench", "read", "--ledger", "1", "--entries", "5"],
        &["bookie", "--data", "/nowhere", "list"],
        &["completions", "ed"],
        &["ledger", "list", "--metadata", "etcd://127.0.0.1/ledgers"],
        &["ledger", "list", "--metadata", "127.0.0.1"],
    ] {
        let outcome = run(args);
        assert_eq!(outcome.code, 2, "{args:?}: {}", outcome.stderr);
        assert!(outcome.stdout.is_empty() && !outcome.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn completions_know_the_commands_and_shells_take_them() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).done();
        for word in ["append", "print-ids", "bench", "standalone"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bindery.bash");
    std::fs::write(&path, run(&["completions", "bash"]).done()).unwrap();
    let asked = format!(
        "source {}; COMP_WORDS=(bindery ledger app); COMP_CWORD=2; _bindery bindery app ledger; echo ${{COMPREPLY[@]}}",
        path.display()
    );
    let output = std::process::Command::new("bash").args(["-c", &asked]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "append");
}

#[test]
fn there_is_a_man_page_for_every_command() {
    assert!(run(&["man"]).done().contains(".TH bindery 1"));
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("share/man1");
    assert_eq!(run(&["man", "--out", out.to_str().unwrap()]).done(), "");
    let page = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    for args in COMMANDS {
        let page = page(&format!("bindery-{}-{}.1", args[0], args[1]));
        assert!(page.contains(".SH SYNOPSIS") && page.contains("BINDERY_METADATA"), "{args:?}");
    }
    assert!(page("bindery-ledger-append.1").contains("print\\-ids"));
    assert!(page("bindery.1").contains("Exit codes"));
    run(&["man", "--out", "/dev/null/x"]).failed(1, &["--out"]);
}

#[test]
fn every_help_has_an_example_and_says_where_the_exit_codes_are() {
    for args in [
        &["--help"][..],
        &["ledger", "--help"],
        &["ledger", "append", "--help"],
        &["help", "ledger", "append"],
        &["bench", "--help"],
        &["flow", "-h"],
    ] {
        let help = run(args).done();
        assert!(help.contains("Example") && help.ends_with("bindery help exit-codes\n"), "{args:?}:\n{help}");
    }
    for args in [&["help", "exit-codes"][..], &["exit-codes"]] {
        assert!(run(args).done().contains("last acknowledged entry"), "{args:?}");
    }
}
