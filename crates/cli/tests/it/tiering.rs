//! `bindery tier` as a shell sees it: a tierer in a standalone cluster, one that is a process of its own, and what wrong
//! arguments lead to.

#![allow(clippy::disallowed_methods, reason = "real processes, in real time")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::server::{Place, bindery, free_port};

/// Bookies are told of a rewritten object after 45 s.
pub const PATIENCE: Duration = Duration::from_secs(150);

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// A ledger with so many lines; closed, unless it is to be left.
fn ledger(place: &Place, lines: usize) -> String {
    let created = place.run(&["ledger", "create"]);
    assert_eq!(created.status.code(), Some(0), "{}", said(&created));
    let id = text(&created.stdout).trim().to_owned();
    let input: String = (0..lines).map(|line| format!("line {line} of {id}\n")).collect();
    let appended = place.pipe(&["ledger", "append", &id], input.as_bytes());
    assert_eq!(appended.status.code(), Some(0), "{}", said(&appended));
    id
}

fn status(admin: &str) -> Value {
    let output = bindery(&["tier", "status", "--json", "--admin", admin]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn until(admin: &str, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let output = bindery(&["tier", "status", "--json", "--admin", admin]).output().unwrap();
        if output.status.success() {
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            if is_it(&report) {
                return report;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {report:#}");
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {}", said(&output));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_standalone_cluster_moves_its_ledgers_and_says_so() {
    let (data, bucket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = Place::new(data.path(), 1);
    let url = format!("file://{}", bucket.path().display());
    let server = place.start_with(&["--tier", &url]);
    let admin = format!("http://127.0.0.1:{}", place.admin_port);
    until(&admin, "the tierer is there", |report| report["store"] == url.as_str());

    let id = ledger(&place, 100);
    let now = bindery(&["tier", "now", &id, "--admin", &admin]).output().unwrap();
    assert_eq!(now.status.code(), Some(0), "{}", said(&now));
    assert!(text(&now.stdout).contains("tiered, 100 of 100 entries are in the tier"), "{}", said(&now));
    let report = status(&admin);
    assert_eq!((&report["entries"], &report["lag"]["entries"]), (&100.into(), &0.into()), "{report:#}");
    assert!(report["requests"]["puts"].as_u64().unwrap() > 0 && report["cost"]["requestsUsd"] == 0.0);

    // The bookie of this process takes updates, and was told.
    let report = until(&admin, "the bookie knows", |report| report["updateLedgers"].as_u64() >= Some(2));
    assert_eq!((&report["updateFailures"], &report["reconciledLate"]), (&0.into(), &0.into()), "{report:#}");
    let told =
        Command::new("curl").args(["-s", &format!("{admin}/api/v1/tier/ledger?id={id}")]).output().unwrap();
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told["bookies"][0][1], 99, "{told:#}");

    // For people, and for metrics.
    let shown = text(&place.run(&["tier", "status"]).stdout);
    for line in ["lag       0 entries", "limit     none", "100 entries", "STAGE", "commit", "list prices"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let metrics =
        text(&Command::new("curl").args(["-s", &format!("{admin}/metrics")]).output().unwrap().stdout);
    for line in ["bindery_tier_up 1", "bindery_tier_entries 100", "bindery_tier_lag_entries 0"] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }

    // A pause holds; a request for a ledger is told that nothing happens.
    let run = |args: &[&str]| {
        let output = place.run(args);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        text(&output.stdout)
    };
    assert!(run(&["tier", "pause", "--reason", "a test"]).contains("tiering is paused"));
    assert!(run(&["tier", "pause"]).contains("paused already, since 20"));
    until(&admin, "it knows", |report| report["paused"] == true);
    let other = ledger(&place, 3);
    let now = bindery(&["tier", "now", &other, "--admin", &admin, "--timeout", "2"]).output().unwrap();
    assert_eq!(now.status.code(), Some(1), "{}", said(&now));
    assert!(said(&now).contains("0 of 3 entries"), "{}", said(&now));
    assert!(run(&["tier", "resume"]).contains("tiering goes on"));
    assert!(run(&["tier", "resume"]).contains("was not paused"));
    let now = bindery(&["tier", "now", &other, "--admin", &admin]).output().unwrap();
    assert_eq!(now.status.code(), Some(0), "{}", said(&now));

    let missing = bindery(&["tier", "now", "999999", "--admin", &admin]).output().unwrap();
    assert_eq!(missing.status.code(), Some(6), "{}", said(&missing));
    let (status, _) = server.stop("-TERM");
    assert!(status.success());
}

/// The catalogue of a cluster that has objects is gone, and comes back. The bookie serves meanwhile, everything that is asked says why
/// there is no tierer, and it starts by itself.
#[test]
fn a_tierer_that_cannot_start_says_why_and_starts_once_it_can() {
    let (data, bucket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = Place::new(data.path(), 1);
    let url = format!("file://{}", bucket.path().display());
    let admin = format!("http://127.0.0.1:{}", place.admin_port);
    let get = |path: &str| {
        let said = Command::new("curl").args(["-s", &format!("{admin}{path}")]).output().unwrap();
        text(&said.stdout)
    };
    let server = place.start_with(&["--tier", &url]);
    let id = ledger(&place, 10);
    let now = bindery(&["tier", "now", &id, "--admin", &admin]).output().unwrap();
    assert_eq!(now.status.code(), Some(0), "{}", said(&now));
    assert!(server.stop("-TERM").0.success());

    let cluster = std::fs::read_dir(bucket.path()).unwrap().next().unwrap().unwrap().path();
    let (there, away) = (cluster.join("catalogue"), bucket.path().join("away"));
    std::fs::rename(&there, &away).unwrap();
    let server = place.start_with(&["--tier", &url]);
    let alarm = || {
        let state: Value = serde_json::from_str(&get("/api/v1/bookie/state")).unwrap();
        state["alarms"].as_array().unwrap().first().map(|alarm| alarm.as_str().unwrap().to_owned())
    };
    let began = Instant::now();
    let why = loop {
        if let Some(alarm) = alarm() {
            break alarm;
        }
        assert!(began.elapsed() < PATIENCE, "no alarm");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(why.starts_with("the tierer cannot start: ") && why.contains("catalogue"), "{why}");
    let metrics = get("/metrics");
    for line in ["bindery_tier_up 0", "bindery_tier_alarms 1"] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    let refused = bindery(&["tier", "status", "--admin", &admin]).output().unwrap();
    assert!(!refused.status.success() && said(&refused).contains("catalogue"), "{}", said(&refused));
    assert_eq!(
        ledger(&place, 3).parse::<u64>().unwrap(),
        id.parse::<u64>().unwrap() + 1,
        "the bookie serves"
    );

    std::fs::rename(&away, &there).unwrap();
    let report = until(&admin, "it starts by itself", |report| report["lag"]["entries"] == 0);
    assert_eq!(report["alarms"].as_array().unwrap().len(), 0, "{report:#}");
    assert_eq!(alarm(), None);
    let metrics = get("/metrics");
    for line in ["bindery_tier_up 1", "bindery_tier_alarms 0"] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    assert!(server.stop("-TERM").0.success());
}

/// `bindery tier run`; killed when dropped.
pub struct Tierer(Child);

impl Tierer {
    pub fn spawn(args: &[&str]) -> Tierer {
        let mut child = bindery(args).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Tierer(child)
    }
}

impl Drop for Tierer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tierers_of_their_own_share_the_work_and_end_on_request() {
    let (data, bucket) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = Place::new(data.path(), 1);
    let _server = place.start();
    let url = format!("file://{}", bucket.path().display());
    let (first, second) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let metadata = place.metadata();
    // Both spellings.
    let options = ["--metadata", &metadata, "--store", &url, "--memory-limit", "64MiB"];
    let mut one = Tierer::spawn(&[&["tier", "run"], &options[..], &["--admin", &first]].concat());
    let mut two =
        Tierer::spawn(&[&["tier"], &options[..], &["--admin", &second, "--compression", "zstd"]].concat());
    let (first, second) = (format!("http://{first}"), format!("http://{second}"));
    until(&first, "the first one runs", |report| report["paused"] == false);
    until(&second, "the second one runs", |report| report["paused"] == false);
    let ids: Vec<String> = (0..4).map(|_| ledger(&place, 50)).collect();
    for id in &ids {
        let now = bindery(&["tier", "now", id, "--admin", &first]).output().unwrap();
        assert_eq!(now.status.code(), Some(0), "{}", said(&now));
    }
    for admin in [&first, &second] {
        let report = until(admin, "it knows what the other one did", |report| report["lag"]["entries"] == 0);
        assert_eq!(report["alarms"].as_array().unwrap().len(), 0, "{report:#}");
    }
    for tierer in [&mut one, &mut two] {
        let pid = tierer.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert_eq!(tierer.0.wait().unwrap().code(), Some(0));
    }
    let gone = bindery(&["tier", "status", "--admin", &first]).output().unwrap();
    assert_eq!(gone.status.code(), Some(7), "{}", said(&gone));
    assert!(said(&gone).contains("bindery tier run --admin"), "{}", said(&gone));
}

#[test]
fn wrong_arguments_give_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let metadata = ["--metadata", "zk+hierarchical://127.0.0.1:1/ledgers"];
    let cases: [(&[&str], i32, &str); 9] = [
        (&["tier"], 2, "give --store file:///directory"),
        (&["tier", "run", "--store", "ftp://x"], 2, "--store: \"ftp://x\" names no object store"),
        (&["tier", "--store", "file:///no/such/dir"], 2, "make the directory first"),
        (
            &["tier", "--store", &url, "--memory-limit", "1MiB"],
            2,
            "--memory-limit 1MiB: give a size from 48MiB",
        ),
        (&["tier", "--store", &url, "--metadata", "nonsense"], 2, "nonsense"),
        (&["tier", "--store", &url, metadata[0], metadata[1]], 7, "127.0.0.1:1"),
        (&["tier", "now", "-1"], 2, "-1"),
        (&["tier", "now", "x"], 2, "a ledger id is a number from 0"),
        (&["tier", "status", "--admin", "127.0.0.1:1"], 7, "nobody listens there"),
    ];
    for (args, code, words) in cases {
        let output = bindery(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{args:?}: {}", said(&output));
    }
}
