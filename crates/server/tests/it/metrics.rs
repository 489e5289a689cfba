//! Metrics of a whole bookie say what it did, under our names and under BookKeeper's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::whole::{Running, cluster, config_that_flushes, start};
use bindery_wire::ErrorCode;
use std::collections::BTreeMap;
use std::time::Duration;

/// Series and their values; each name has its help, its type, and stands together.
async fn scrape(bookie: &Running) -> BTreeMap<String, f64> {
    let text = bookie.get("/metrics").await;
    let (mut series, mut names, mut helped) = (BTreeMap::new(), Vec::new(), String::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, about) = help.split_once(' ').unwrap();
            assert!(about.ends_with('.'), "{line}");
            helped = name.to_owned();
        } else if let Some(of_type) = line.strip_prefix("# TYPE ") {
            let name = of_type.split(' ').next().unwrap().to_owned();
            assert_eq!(name, helped, "help comes first");
            assert!(!names.contains(&name), "{name} stands in two places");
            names.push(name);
        } else {
            let (of, value) = line.rsplit_once(' ').unwrap();
            let name = names.last().unwrap();
            assert!(of.starts_with(name.as_str()), "{line} stands under {name}");
            assert!(series.insert(of.to_owned(), value.parse().unwrap()).is_none(), "{of} twice");
        }
    }
    assert!(names.len() > 150, "{}", names.len());
    series
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_bookkeepers_names_are_measured() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config_that_flushes(dir.path()), &cluster).await;
    for entry in 0..10 {
        assert_eq!(bookie.add(7, entry).await, ErrorCode::Ok);
    }
    assert_eq!(bookie.read(7, 3).await, ErrorCode::Ok);
    bookie.flushed(10).await;
    let found = scrape(&bookie).await;
    let path = dir.path().join("ledgers").display().to_string();
    let of_dir = format!("{{ledgerDir=\"{path}/current\",indexDir=\"{path}/current\"}}");
    let of_journal = "{success=\"true\", journalIndex=\"0\"}";
    for (series, value) in [
        ("bookkeeper_server_ADD_ENTRY_REQUEST_count{success=\"true\"}", 10.0),
        (
            "bookkeeper_server_ADD_ENTRY_count{success=\"true\", threadPool=\"BookieWriteThreadPool\", thread=\"0\"}",
            10.0,
        ),
        (
            "bookkeeper_server_READ_ENTRY_count{success=\"true\", threadPool=\"BookieReadThreadPool\", thread=\"0\"}",
            1.0,
        ),
        (&format!("bookie_journal_JOURNAL_ADD_ENTRY_count{of_journal}"), 10.0),
        ("bookie_journal_JOURNAL_QUEUE_SIZE{journalIndex=\"0\"}", 0.0),
        ("bookkeeper_server_READ_ENTRY_IN_PROGRESS", 0.0),
        (&format!("bookie_entries_count{of_dir}"), 10.0),
        (&format!("bookie_ACTIVE_ENTRY_LOG_TOTAL{of_dir}"), found["bindery_entry_logs"]),
        (&format!("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES{of_dir}"), found["bindery_entry_log_bytes"]),
        ("bookie_ACTIVE_LEDGER_TOTAL", 1.0),
        ("bookie_ledger_num_dirs", 1.0),
        ("bookie_ledger_writable_dirs", 1.0),
        ("bookie_JOURNAL_DIRS", 1.0),
        ("bookie_flush_count{success=\"true\"}", found["bindery_flushes"]),
        ("jvm_memory_bytes_max{area=\"heap\"}", (256 << 20) as f64),
        ("bookkeeper_server_thread_executor_queue{thread=\"BookieReadThreadPool-0\"}", 0.0),
    ] {
        assert_eq!(found.get(series), Some(&value), "{series}");
    }
    let usage = found.iter().find(|(series, _)| series.starts_with("bookie_ledger_dir_")).unwrap();
    let underscored = path.replace(|char: char| !char.is_ascii_alphanumeric(), "_");
    assert_eq!(usage.0, &format!("bookie_ledger_dir_{underscored}_usage"));
    let free = found.iter().find(|(series, _)| series.starts_with("bindery_volume_free_bytes")).unwrap().1;
    let total = found.iter().find(|(series, _)| series.starts_with("bindery_volume_total_bytes")).unwrap().1;
    assert!((usage.1 - 100.0 * (1.0 - free / total)).abs() < 5.0, "{usage:?}: {free} of {total}");
    let used: f64 =
        found.iter().filter(|(of, _)| of.starts_with("bindery_pool_used_bytes")).map(|(_, used)| used).sum();
    let direct = found["jvm_memory_direct_bytes_used"];
    assert!((direct - used).abs() < 1e6, "{direct} and {used} of the same moment, about");
    for above_zero in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "jvm_threads_current",
        "process_open_fds",
    ] {
        assert!(found[above_zero] > 0.0, "{above_zero}");
    }
    bookie.stop().await;
}

/// Space that comes back by a deletion is told from that of compaction, and both are part of what was removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_ledgers_and_their_space_are_counted() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let bookie = start(config_that_flushes(dir.path()), &cluster).await;
    for ledger in 0..4 {
        bookie.create(ledger).await;
    }
    bookie.flushed(4).await;
    bookie.delete(0).await;
    bookie.delete(2).await;
    let gone = async {
        loop {
            bookie.collect("{\"forceMajor\":true}").await;
            let found = scrape(&bookie).await;
            if found["bindery_space_bytes_removed"] > 0.0 && found["bookie_DELETED_LEDGER_TOTAL"] == 2.0 {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, gone).await.unwrap();
    let (by_deletion, by_compaction) =
        (found["bookie_RECLAIMED_DELETION_SPACE_BYTES"], found["bookie_RECLAIMED_COMPACTION_SPACE_BYTES"]);
    let dropped = found["bindery_space_logs_dropped"];
    assert_eq!(by_deletion > 0.0, dropped > 0.0, "{by_deletion} bytes of {dropped} logs");
    assert!(by_deletion + by_compaction <= found["bindery_space_bytes_removed"]);
    assert_eq!(found["bookie_ACTIVE_LEDGER_TOTAL"], 2.0);
    assert!(found["bookie_MAJOR_COMPACTION_TOTAL"] > 0.0);
    bookie.stop().await;
}
