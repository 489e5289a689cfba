//! Bench: that its fields are those of the Java drivers, that its numbers add up, and that it cleans up.

use crate::ledger::shell::{Cluster, eventually};
use serde_json::Value;
use std::path::Path;

/// Names of the fields that a Java driver prints, in the order of its source.
fn java_fields(class: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/peer/src/main/java/peer");
    let source = std::fs::read_to_string(folder.join(class)).unwrap();
    let names = source.split(['.', ' ', '\n']).filter_map(|word| {
        let name = word.strip_prefix("put(\"").or_else(|| word.strip_prefix("raw(\""))?;
        Some(name.split('"').next().unwrap().to_owned())
    });
    names.collect()
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field}: {value}"))
}

#[test]
fn add_reports_the_fields_of_the_java_driver_and_deletes_its_ledgers() {
    let cluster = Cluster::start();
    let pid = cluster.server.pid().to_string();
    let options = ["--ledgers", "5", "--outstanding", "200", "--warmup", "0", "--seconds", "1", "--json"];
    let add = |more: &[&str]| cluster.run(&[&["bench", "add"], &options[..], more].concat()).json();
    let report = add(&["--bookie-pids", &pid, "--label", "x"]);
    let fields = [java_fields("AddLoad.java"), java_fields("Json.java")].concat();
    assert!(fields.len() >= 30 && fields.contains(&"bookie_cpu_us_per_add".to_owned()), "{fields:?}");
    for field in fields {
        assert!(report.get(&field).is_some(), "{field} is missing: {report}");
    }
    let (ops, seconds) = (number(&report, "ops"), number(&report, "seconds"));
    assert!(ops > 100.0 && (0.9..5.0).contains(&seconds), "{report}");
    assert!((number(&report, "ops_per_s") - ops / seconds).abs() < 0.01 * ops, "{report}");
    assert!(
        (number(&report, "mb_per_s") * 1e6 - ops / seconds * 1024.0).abs() < 0.01 * ops * 1024.0,
        "{report}"
    );
    let percentiles = ["p50_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms"].map(|field| number(&report, field));
    assert!(percentiles[0] > 0.0 && percentiles.is_sorted(), "{report}");
    // Little's law: outstanding calls are rate times latency, at most as many as allowed.
    assert!(ops / seconds * number(&report, "mean_ms") / 1000.0 < 200.0 * 1.5, "{report}");
    assert_eq!(
        (&report["errors"], &report["drained"], &report["label"]),
        (&0.into(), &true.into(), &"x".into())
    );
    assert!(number(&report, "bookie_rss_mib") > 1.0 && number(&report, "bookie_cpu_s") > 0.0, "{report}");
    assert_eq!(cluster.run(&["ledger", "list"]).done(), "", "they are deleted");

    let report = add(&["--rate", "200", "--keep", "--entry-size", "10"]);
    assert!((150.0..250.0).contains(&number(&report, "ops_per_s")), "open loop: {report}");
    assert!(report.get("bookie_cpu_s").is_none(), "no process was named: {report}");
    assert_eq!(cluster.run(&["ledger", "list"]).done().lines().count(), 5, "--keep");
    let text = cluster.run(&["bench", "add", "--warmup", "0", "--seconds", "1"]).done();
    for row in ["workload", "adds ", "rate ", "latency ", "errors    0", "client "] {
        assert!(text.lines().any(|line| line.starts_with(row)), "{row}:\n{text}");
    }
}

#[test]
fn an_open_loop_counts_from_when_an_add_was_due() {
    let cluster = Cluster::start();
    let mut bench = cluster.spawn(&[
        "bench",
        "add",
        "--ledgers",
        "1",
        "--rate",
        "100",
        "--warmup",
        "0",
        "--seconds",
        "4",
        "--json",
    ]);
    // The server stands still for one of the four seconds: a quarter of all adds were due in it, and wait.
    eventually(|| !cluster.run(&["ledger", "list"]).done().is_empty());
    std::thread::sleep(std::time::Duration::from_millis(800));
    crate::ledger::shell::stop_process(cluster.server.pid());
    std::thread::sleep(std::time::Duration::from_secs(1));
    crate::ledger::shell::send_signal(cluster.server.pid(), "-CONT");
    drop(bench.stdin.take());
    let report = bench.wait().json();
    assert!(number(&report, "max_ms") > 800.0, "{report}");
    assert!(number(&report, "p95_ms") > 300.0, "not one add only: {report}");
    assert!(number(&report, "ops") > 300.0, "they are made up for: {report}");
}

#[test]
fn read_reports_the_fields_of_the_java_driver() {
    let cluster = Cluster::start();
    let options = [
        "--fill-ledgers",
        "2",
        "--entries",
        "50",
        "--readers",
        "2",
        "--warmup",
        "0",
        "--seconds",
        "1",
        "--json",
    ];
    let pid = cluster.server.pid().to_string();
    for (mode, batch) in [("random", "1"), ("seq", "7"), ("random", "50")] {
        let more = ["--mode", mode, "--batch", batch, "--bookie-pids", &pid];
        let report = cluster.run(&[&["bench", "read"], &options[..], &more].concat()).json();
        for field in java_fields("ReadLoad.java") {
            let is_other = field.starts_with("slow") || field == "before" || field == "after";
            let is_there = report.get(&field).or(report["during"].get(&field)).is_some();
            assert!(is_other || is_there, "{field} is missing: {report}");
        }
        let during = &report["during"];
        let ratio = number(during, "entries_per_s") / number(during, "calls_per_s");
        assert!((ratio - batch.parse::<f64>().unwrap()).abs() < 0.01, "each call reads its batch: {report}");
        assert!(number(during, "calls") > 10.0 && during["errors"] == 0, "{report}");
        assert_eq!(report["reads_each_second"].as_array().unwrap().len(), 1);
    }
    assert_eq!(cluster.run(&["ledger", "list"]).done(), "", "they are deleted");

    let id = cluster.ledger_of(b"a\nbb\nccc\n");
    let existing =
        ["bench", "read", "--ledger", &id, "--warmup", "0", "--seconds", "1", "--rate", "100", "--json"];
    let report = cluster.run(&existing).json();
    assert_eq!((&report["entries"], &report["ledgers"]), (&3.into(), &1.into()));
    assert!((70.0..130.0).contains(&number(&report["during"], "calls_per_s")), "{report}");
    assert_eq!(cluster.run(&["ledger", "list"]).done(), format!("{id}\n"), "not its own");
    let empty = cluster.create();
    cluster.run(&["bench", "read", "--ledger", &empty]).failed(2, &["nothing to read"]);
}

#[test]
fn it_cleans_up_after_a_signal_and_refuses_a_wrong_process() {
    let cluster = Cluster::start();
    let bench = cluster.spawn(&["bench", "add", "--ledgers", "3", "--warmup", "60"]);
    eventually(|| cluster.run(&["ledger", "list"]).done().lines().count() == 3);
    bench.signal("-INT");
    let ended = bench.wait();
    assert!(ended.code == 130 && ended.stderr.lines().next_back().unwrap().contains("SIGINT"), "{ended:?}");
    assert_eq!(cluster.run(&["ledger", "list"]).done(), "");
    cluster.run(&["bench", "add", "--bookie-pids", "4194305"]).failed(2, &["--bookie-pids", "4194305"]);
}
