//! The differential wire suite: recorded from ZooKeeper, held against it and against the embedded coordinator.
//!
//! - a plain `cargo test` compares ours with the golden transcripts below `tests/golden`;
//! - the ignored test compares a real server with them, so that they stay true:
//!   `tests/interop/with-zookeeper cargo test -p bindery-coordinator --test it -- --ignored conformance::`;
//! - the same with `BINDERY_RECORD=1` records them again. `BINDERY_SCRIPTS=watch,acl` runs those whose names begin so.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::disallowed_methods, reason = "golden files are read and written here")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bindery_coordinator::{Coordinator, CoordinatorConfig, conformance};
use bindery_io::{SystemClock, SystemRandom};

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"))
}

fn chosen() -> Vec<&'static str> {
    let wanted = std::env::var("BINDERY_SCRIPTS").unwrap_or_default();
    let wanted: Vec<&str> = wanted.split(',').collect();
    let is_wanted = |name: &&str| wanted.iter().any(|begin| name.starts_with(begin));
    let chosen: Vec<_> = conformance::names().into_iter().filter(is_wanted).collect();
    assert!(!chosen.is_empty(), "BINDERY_SCRIPTS names no script: {wanted:?}");
    chosen
}

/// Runs the chosen scripts; panics with all differences.
fn compare(address: &str, difference: impl Fn(&str, &str, &str) -> Option<String>) {
    let (mut failed, mut report, mut lines) = (Vec::new(), String::new(), 0);
    for name in chosen() {
        let got = conformance::transcript(address, name);
        let expected = std::fs::read_to_string(golden(name)).unwrap_or_default();
        lines += got.lines().count();
        if let Some(text) = difference(name, &expected, &got) {
            failed.push(name);
            report += &format!("== {name} (-golden +got)\n{text}\n");
        }
    }
    println!("scripts={} lines={lines} failed={}", chosen().len(), failed.len());
    assert!(failed.is_empty(), "{} scripts differ: {}\n{report}", failed.len(), failed.join(" "));
}

#[test]
#[ignore = "needs BINDERY_TEST_ZOOKEEPER"]
fn the_golden_transcripts_are_zookeepers() {
    let address = std::env::var("BINDERY_TEST_ZOOKEEPER");
    let address =
        address.expect("BINDERY_TEST_ZOOKEEPER=host:port names the fresh ZooKeeper server to test against");
    if std::env::var("BINDERY_RECORD").as_deref() == Ok("1") {
        std::fs::create_dir_all(golden("x").parent().unwrap()).unwrap();
        for name in chosen() {
            std::fs::write(golden(name), conformance::transcript(&address, name)).unwrap();
            println!("recorded {name}");
        }
        return;
    }
    compare(&address, |_, expected, got| conformance::exact_differences(expected, got));
}

/// Ours, in this process. The first script needs a fresh server, and they run one after another: one test.
#[test]
fn the_coordinator_answers_as_zookeeper_does() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut config = CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), dir.path());
    // As the server the transcripts are from.
    config.container_check_interval = Duration::from_secs(1);
    let start = Coordinator::start(config, Arc::new(SystemClock::new()), Arc::new(SystemRandom));
    let coordinator = runtime.block_on(start).unwrap();
    compare(&coordinator.local_addr().to_string(), conformance::differences);
    runtime.block_on(coordinator.stop());
}

#[test]
#[ignore = "needs BINDERY_TEST_COORDINATOR"]
fn a_running_coordinator_answers_as_zookeeper_does() {
    let address = std::env::var("BINDERY_TEST_COORDINATOR");
    let address =
        address.expect("BINDERY_TEST_COORDINATOR=host:port names the fresh coordinator to test against");
    compare(&address, conformance::differences);
}
