//! Read and tail.

use crate::ledger::shell::{Cluster, Outcome};
use crate::server::bindery;
use serde_json::{Value, json};
use std::fs::File;
use std::process::Stdio;

#[test]
fn ranges_are_exact_and_what_is_not_there_is_refused_with_6() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(b"a\nbb\n\nccc\n");
    let read = |options: &[&str]| cluster.run(&[&["ledger", "read", &id], options].concat());
    for (options, expected) in [
        (&[][..], &b"a\nbb\n\nccc\n"[..]),
        (&["--first", "1"], b"bb\n\nccc\n"),
        (&["--last", "1"], b"a\nbb\n"),
        (&["--first", "1", "--last", "2"], b"bb\n\n"),
        (&["--entry", "3"], b"ccc\n"),
        (&["--unconfirmed"], b"a\nbb\n\nccc\n"),
        (&["--unconfirmed", "--first", "2"], b"\nccc\n"),
    ] {
        let outcome = read(options);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{options:?}");
        assert_eq!(outcome.stdout, expected, "{options:?}");
    }
    let check_beyond = |more: &str| {
        for (options, entry) in [
            (&["--first", "4"][..], 4),
            (&["--last", "9"], 4),
            (&["--entry", "7"], 7),
            (&["--first", "2", "--last", "9223372036854775807"], 4),
        ] {
            let outcome = read(options);
            outcome.failed(6, &[&format!("no entry {entry}: it has entries 0 to 3"), more]);
            assert!(outcome.stdout.is_empty(), "nothing is written: {options:?}");
        }
    };
    check_beyond("so far; bindery ledger tail waits for more");
    read(&["--unconfirmed", "--last", "9"]).failed(6, &["entry 4"]);
    assert_eq!(read(&["--first", "2", "--last", "1"]).code, 2);
    read(&["--recover"]).failed(2, &["give --yes to close it"]);
    assert_eq!(read(&["--recover", "--yes"]).done(), "a\nbb\n\nccc\n");
    assert_eq!(read(&["--recover"]).done(), "a\nbb\n\nccc\n", "it is closed already");
    check_beyond("and is closed");
    assert_eq!(read(&["--unconfirmed"]).done(), "a\nbb\n\nccc\n", "all that a closed ledger has");
    assert_eq!(read(&["--unconfirmed", "--first", "2"]).done(), "\nccc\n");
    assert_eq!(read(&["--unconfirmed", "--first", "4"]).done(), "");

    let empty = cluster.create();
    assert_eq!(cluster.read(&empty), b"");
    cluster.run(&["ledger", "read", &empty, "--first", "0"]).failed(6, &["it is empty"]);
    cluster
        .run(&["ledger", "read", "4711"])
        .failed(6, &["ledger 4711 does not exist", "bindery ledger list"]);
    cluster.run(&["ledger", "tail", "4711"]).failed(6, &["ledger 4711 does not exist"]);
}

#[test]
fn json_holds_text_or_base64() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(b"t\xc3\xa9xt\n\xff\xfe");
    let text = cluster.run(&["ledger", "read", &id, "--json"]).done();
    let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        objects,
        [
            json!({"entry_id": 0, "size_bytes": 6, "text": "téxt\n"}),
            json!({"entry_id": 1, "size_bytes": 2, "base64": "//4="})
        ]
    );
}

#[test]
fn a_password_is_needed_by_everybody() {
    let cluster = Cluster::start();
    let options = ["--digest", "mac", "--password", "secret"];
    let id = cluster.run(&[&["ledger", "create"], &options[..]].concat()).done().trim().to_owned();
    for args in [&["ledger", "read", &id][..], &["ledger", "close", &id], &["ledger", "tail", &id]] {
        cluster.run(args).failed(1, &["wrong password", "--password", "BINDERY_PASSWORD"]);
    }
    cluster.pipe(&["ledger", "append", &id], b"x\n").failed(1, &["wrong password"]);
    cluster.pipe(&["ledger", "append", &id, "--password", "secret"], b"x\n").done();
    let mut command = bindery(&["ledger", "read", &id]);
    command.env("BINDERY_METADATA", cluster.place.metadata()).env("BINDERY_PASSWORD", "secret");
    assert_eq!(Outcome::of(command.output().unwrap()).done(), "x\n");
}

#[test]
fn an_output_that_is_closed_or_full_is_reported() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(&b"0123456789abcde\n".repeat(100_000));
    for args in [&["ledger", "read", &id][..], &["ledger", "tail", &id, "--from-start"]] {
        let mut running = cluster.spawn(args);
        let mut some = [0; 1000];
        std::io::Read::read_exact(running.stdout.as_mut().unwrap(), &mut some).unwrap();
        drop(running.stdout.take());
        let ended = running.wait();
        assert_eq!((ended.code, &*ended.stderr), (8, ""), "it is the reader's decision");

        let mut command = bindery(args);
        command.env("BINDERY_METADATA", cluster.place.metadata());
        let full = File::options().write(true).open("/dev/full").unwrap();
        let child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        Outcome::of(child.wait_with_output().unwrap()).failed(1, &["No space left on device"]);
    }
    assert_eq!(cluster.read(&id).len(), 1_600_000, "nothing is lost by it");
}

#[test]
fn tail_passes_on_each_entry_as_it_comes_and_ends_with_the_ledger() {
    let cluster = Cluster::start();
    let id = cluster.ledger_of(b"one\ntwo\n");
    let mut tails: Vec<_> = [&["--from-start"][..], &["-n", "1"], &["--lines", "5"], &["--from", "2"]]
        .map(|options| cluster.spawn(&[&["ledger", "tail", &id], options].concat()))
        .into();
    let lines: Vec<_> = tails.iter_mut().map(|tail| tail.lines()).collect();
    assert_eq!([lines[0].next(), lines[0].next()], ["one", "two"]);
    assert_eq!(lines[1].next(), "two");
    assert_eq!([lines[2].next(), lines[2].next()], ["one", "two"]);
    let mut append = cluster.spawn(&["ledger", "append", &id]);
    for line in ["three", "four", "five"] {
        append.write(format!("{line}\n").as_bytes());
        for lines in &lines {
            assert_eq!(lines.next(), line, "before the next one is appended");
        }
    }
    append.wait().done();
    cluster.pipe(&["ledger", "append", &id, "--close"], b"six\n").done();
    for (tail, lines) in tails.into_iter().zip(lines) {
        assert_eq!(lines.next(), "six");
        lines.end();
        let outcome = tail.wait();
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    }
    assert_eq!(cluster.run(&["ledger", "tail", &id, "-n", "2"]).done(), "five\nsix\n");
    assert_eq!(cluster.run(&["ledger", "tail", &id, "-n", "0"]).done(), "");
    assert_eq!(cluster.run(&["ledger", "tail", &id, "--from", "6"]).done(), "");
    cluster.run(&["ledger", "tail", &id, "--from", "7"]).failed(6, &["no entry 7", "closed"]);
}
