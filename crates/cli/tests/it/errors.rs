//! Failures at three in the morning, as an operator sees them: causes told apart, reported at once, with the next step.

#![allow(clippy::disallowed_methods, reason = "real processes on real files, in real time")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::Arc;

use bindery_metadata::store::{CreateMode, MetadataStore};
use bindery_metadata::zookeeper::{self, ZooKeeperOptions};
use serde_json::Value;

use super::server::{Place, bindery, free_port};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A bookie's process, killed when dropped.
struct Bookie {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Bookie {
    fn spawn(metadata: &str, data: &Path, options: &[&str]) -> Bookie {
        let data = data.to_str().unwrap();
        let begin =
            ["bookie", "--metadata", metadata, "--data", data, "--memory", "lazy", "--allow-loopback"];
        let mut child = bindery(&[&begin[..], options].concat()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Bookie { child, lines }
    }

    /// Reads its log up to a line with these words; `None` when it ends without.
    fn line(&mut self, words: &str) -> Option<String> {
        self.lines.by_ref().map_while(Result::ok).find(|line| line.contains(words))
    }

    fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    /// Its exit code, and the rest of its log.
    fn end(mut self) -> (Option<i32>, String) {
        let rest: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        (self.child.wait().unwrap().code(), rest.join("\n"))
    }
}

impl Drop for Bookie {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_bookie_says_that_its_metadata_store_is_down_and_goes_on_when_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 0);
    // The cluster exists: a store that has just come has none yet, and a bookie does not wait for that.
    place.start().stop("-TERM");
    let listen = format!("127.0.0.1:{}", free_port());
    let mut bookie = Bookie::spawn(&place.metadata(), &dir.path().join("bookie"), &["--listen", &listen]);
    let waiting = bookie.line("no metadata server can be reached yet").expect("it says so before it ends");
    assert!(waiting.contains("connection refused") && waiting.contains("trying for another"), "{waiting}");
    let _server = place.start();
    assert!(bookie.line("serving").is_some(), "{:?}", bookie.child.try_wait());
    bookie.stop();
}

#[test]
fn a_bookie_ends_at_once_where_waiting_does_not_help() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 1);
    let _server = place.start();
    let listen = format!("127.0.0.1:{}", free_port());
    let wrong = format!("zk://127.0.0.1:{}/ledgers", place.bookie_port);
    let options = ["--listen", &listen, "--log-format", "json"];
    let (code, log) = Bookie::spawn(&wrong, &dir.path().join("bookie"), &options).end();
    assert_eq!(code, Some(7), "{log}");
    assert!(!log.contains("can be reached yet"), "nothing is waited for: {log}");
    let last: Value = serde_json::from_str(log.lines().last().unwrap()).expect("the last line is JSON, too");
    let message = last["fields"]["message"].as_str().unwrap();
    assert!(message.contains("it is a bookie") && message.contains("--metadata"), "{message}");

    // Commands name each cause, and each server of the URI.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let several = format!("zk://127.0.0.1:{nobody},-nowhere.invalid:1,127.0.0.1:{}/l", place.admin_port);
    for command in [&["bookie", "list"][..], &["cluster", "cookie", "list"], &["ledger", "read", "0"]] {
        let output = bindery(&[command, &["--metadata", &several]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{command:?}: {}", said(&output));
        for words in ["connection refused", "-nowhere.invalid:1: unknown host", "it speaks HTTP"] {
            assert!(said(&output).contains(words), "{command:?}: {}", said(&output));
        }
        assert!(!said(&output).contains("tried for"), "nothing was waited for: {}", said(&output));
    }
}

#[test]
fn damage_that_stops_a_start_leads_to_the_command_that_shows_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 0);
    let _server = place.start();
    let (data, listen) = (dir.path().join("a bookie"), format!("127.0.0.1:{}", free_port()));
    let options = ["--listen", &listen];
    let mut bookie = Bookie::spawn(&place.metadata(), &data, &options);
    assert!(bookie.line("serving").is_some());
    let id = done(&place.run(&["ledger", "create"]));
    done(&place.pipe(&["ledger", "append", &id], b"one\n"));
    bookie.stop();
    let current = data.join("ledgers/current");
    let entry_log = fs::read_dir(&current)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "elog"))
        .expect("a stop flushes");
    let kept = dir.path().join("kept");
    let verify = format!("bindery verify '{}'", data.display());
    let refused = |what: &str| {
        let (code, log) = Bookie::spawn(&place.metadata(), &data, &options).end();
        assert_eq!(code, Some(1), "{log}");
        let last = log.lines().last().unwrap_or_default();
        assert!(last.starts_with("bindery: ") && last.contains(what) && last.ends_with(&verify), "{last}");
    };
    fs::rename(&entry_log, &kept).unwrap();
    refused(".elog");
    let verified = bindery(&["verify", data.to_str().unwrap()]).output().unwrap();
    assert_eq!(verified.status.code(), Some(9), "the command that was named finds it: {}", said(&verified));
    fs::rename(&kept, &entry_log).unwrap();
    let table = current.join("state.redb");
    let sound = fs::read(&table).unwrap();
    fs::write(&table, [&b"garbage!"[..], &sound[8..]].concat()).unwrap();
    refused("state.redb");
    fs::write(&table, sound).unwrap();
    let mut bookie = Bookie::spawn(&place.metadata(), &data, &options);
    assert!(bookie.line("serving").is_some(), "nothing was changed");
    assert_eq!(done(&place.run(&["ledger", "read", &id])), "one");
}

#[test]
fn the_error_of_a_bookie_that_is_not_reached_says_which_step_failed() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 0);
    let _server = place.start();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (advertised, words) in [
        (nobody.to_string(), "connection refused, no process listens on that port"),
        // Refused by the resolver itself, also where no name server answers.
        ("-nowhere.invalid:3181".to_owned(), "unknown host"),
        (format!("127.0.0.1:{}", place.coordinator_port), "a port that is none of a bookie for its clients"),
    ] {
        let (data, listen) = (dir.path().join("bookie"), format!("127.0.0.1:{}", free_port()));
        let advertise = format!("--advertise={advertised}");
        let options = ["--listen", &listen, "--bookie-id", "moved", &advertise];
        let mut bookie = Bookie::spawn(&place.metadata(), &data, &options);
        assert!(bookie.line("serving").is_some());
        let health = done(&place.run(&["bookie", "health", "--once"]));
        assert!(health.lines().any(|line| line.starts_with("moved: ") && line.contains(words)), "{health}");
        let created = done(&place.run(&["ledger", "create"]));
        let append = place.pipe(&["ledger", "append", &created, "--patience", "1ms"], b"x\n");
        assert_ne!(append.status.code(), Some(0));
        assert!(said(&append).contains(words), "{words}: {}", said(&append));
        bookie.stop();
    }
}

#[test]
fn nodes_that_somebody_changed_by_hand_are_mended_as_the_errors_say() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&dir.path().join("data"), 0);
    let _server = place.start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = format!("127.0.0.1:{}", place.coordinator_port);
    let store = runtime.block_on(zookeeper::connect(&[server], ZooKeeperOptions::default())).unwrap();
    let store: Arc<dyn MetadataStore> = Arc::new(store);
    let create = |path: &str, data: &'static [u8]| {
        runtime.block_on(store.create(path, data.into(), CreateMode::Persistent)).unwrap();
    };
    let (data, listen) = (dir.path().join("bookie"), format!("127.0.0.1:{}", free_port()));
    let options = ["--listen", &listen, "--bookie-id", "b1"];

    // Nodes below which bookies register are recreated by any process that needs them: with Pulsar's driver they go with the last bookie.
    let nodes = ["/ledgers/available/readonly", "/ledgers/available"];
    let lose_nodes = || nodes.iter().for_each(|path| runtime.block_on(store.delete(path, None)).unwrap());
    lose_nodes();
    assert!(
        done(&place.run(&["cluster", "init"]))
            .ends_with("mended: nodes below which bookies register were missing")
    );
    lose_nodes();
    let mut bookie = Bookie::spawn(&place.metadata(), &data, &options);
    assert!(bookie.line("serving").is_some());
    assert_eq!(done(&place.run(&["bookie", "list", "--json"])).lines().count(), 1);
    bookie.stop();

    // A cookie that makes no sense.
    create("/ledgers/cookies/b2", b"nonsense");
    let (code, log) = Bookie::spawn(
        &place.metadata(),
        &dir.path().join("two"),
        &["--listen", &listen, "--bookie-id", "b2"],
    )
    .end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("bindery cluster cookie delete b2"), "{log}");
    let shown = place.run(&["cluster", "cookie", "show", "b2"]);
    assert!(done(&shown).contains("nonsense") && said(&shown).contains("cannot be used"), "{}", said(&shown));
    let asked = place.run(&["cluster", "cookie", "delete", "b2"]);
    assert_eq!(asked.status.code(), Some(2), "{}", said(&asked));
    let deleted = place.run(&["cluster", "cookie", "delete", "b2", "--yes"]);
    assert_eq!(done(&deleted), "b2: cookie deleted");
    assert!(said(&deleted).contains("damaged") && said(&deleted).contains("nonsense"), "{}", said(&deleted));
    assert_eq!(done(&place.run(&["cluster", "cookie", "list"])), "b1");
}

#[test]
fn fatal_lines_have_the_form_of_the_log_and_no_colours_in_a_pipe() {
    let wrong = bindery(&["bookie", "--log-format", "json", "--no-such-flag"]).output().unwrap();
    let line: Value = serde_json::from_str(&said(&wrong)).expect("one line of JSON");
    assert_eq!((wrong.status.code(), &line["fields"]["exit_code"]), (Some(2), &2.into()));
    let faults = bindery(&["bookie", "--log-format", "json"]).output().unwrap();
    let lines: Vec<Value> = said(&faults).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "a line for each fault: {}", said(&faults));
    let silenced = bindery(&["bookie", "--log-format", "json"]).env("RUST_LOG", "off").output().unwrap();
    assert_eq!(said(&silenced).lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count(), 2);

    for args in [
        &["--help"][..],
        &["ledger", "read", "--help"],
        &["ledger", "reed"],
        &["ledger"],
        &["ledger", "list", "-vv", "--metadata", "zk://127.0.0.1:1/l"],
        &["bookie", "--data", "/proc/x", "--metadata", "zk://127.0.0.1:1/l", "--allow-loopback"],
    ] {
        let output = bindery(args).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(!text.is_empty() && !text.contains(&0x1b), "{args:?}: {}", String::from_utf8_lossy(&text));
    }
}
