//! Endpoints that show and change what a bookie does, in Java's shapes: read-only mode, compaction, places in the journal, files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::whole::{Running, cluster, config, config_that_flushes, start};
use bindery_metadata::RegistrationMode;
use bindery_server::config::BookieConfig;
use bindery_server::disks::DiskLimits;
use bindery_wire::ErrorCode;
use serde_json::{Value, json};
use std::time::Duration;

const READ_ONLY: &str = "/api/v1/bookie/state/readonly";
const SUSPEND: &str = "/api/v1/bookie/gc/suspend_compaction";
const RESUME: &str = "/api/v1/bookie/gc/resume_compaction";

impl Running {
    async fn told_to(&self, path: &str, body: &str) -> (String, String) {
        self.http("PUT", path, body).await
    }

    /// Waits until it is registered in this mode alone.
    async fn is_registered_as(&self, mode: RegistrationMode) {
        let registered = async {
            loop {
                let found = self.layout.registration().list().await.unwrap();
                if found.len() == 1 && found[0].mode == mode {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, registered).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_makes_a_bookie_read_only_and_writable_again() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let running = start(config(dir.path()), &cluster).await;
    assert_eq!(running.add(1, 0).await, ErrorCode::Ok);
    assert_eq!(running.json(READ_ONLY).await, json!({ "readOnly": false }));
    let (status, body) = running.told_to(READ_ONLY, r#"{"readOnly": true}"#).await;
    assert!(status.contains("200") && body == r#"{"readOnly":true}"#, "{status} {body}");
    running.is_registered_as(RegistrationMode::ReadOnly).await;
    assert_eq!(running.add(1, 1).await, ErrorCode::ReadOnly);
    assert_eq!(running.read(1, 0).await, ErrorCode::Ok);
    assert_eq!(running.json(READ_ONLY).await, json!({ "readOnly": true }));
    let why = running.json("/api/v1/bookie/state").await["readOnlyBecause"]["ordered"].take();
    assert!(why.as_str().unwrap().contains("127.0.0.1"), "{why}");
    assert_eq!(running.json("/api/v1/bookie/sanity").await["readOnly"], true);
    // It is ready to be read.
    running.get("/api/v1/bookie/is_ready").await;
    for wrong in ["", "{}", r#"{"readOnly": 1}"#, r#"{"readonly": true}"#] {
        let (status, body) = running.told_to(READ_ONLY, wrong).await;
        assert!(status.contains("400") && body.contains("readOnly"), "{wrong}: {status} {body}");
    }
    let (status, _) = running.told_to(READ_ONLY, r#"{"readOnly": false}"#).await;
    assert!(status.contains("200"), "{status}");
    running.is_registered_as(RegistrationMode::Writable).await;
    assert_eq!(running.add(1, 1).await, ErrorCode::Ok);
    // A restart ends it, too.
    running.told_to(READ_ONLY, r#"{"readOnly": true}"#).await;
    running.is_registered_as(RegistrationMode::ReadOnly).await;
    running.stop().await;
    let running = start(config(dir.path()), &cluster).await;
    assert_eq!(running.add(1, 2).await, ErrorCode::Ok);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_cannot_be_followed_says_why() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let running = start(BookieConfig { read_only: true, ..config(dir.path()) }, &cluster).await;
    let (status, body) = running.told_to(READ_ONLY, r#"{"readOnly": false}"#).await;
    assert!(status.contains("400") && body.contains("forceReadOnly mode"), "{status} {body}");
    running.stop().await;
    let limits = config(dir.path()).disks;
    let disks = DiskLimits { may_be_read_only: false, ..limits };
    let running = start(BookieConfig { disks, ..config(dir.path()) }, &cluster).await;
    let (status, body) = running.told_to(READ_ONLY, r#"{"readOnly": true}"#).await;
    assert!(status.contains("400") && body.contains("readOnlyModeEnabled=false"), "{status} {body}");
    assert_eq!(running.add(1, 0).await, ErrorCode::Ok);
    running.stop().await;
}

impl Running {
    async fn major_compactions(&self) -> u64 {
        self.json("/api/v1/bookie/gc_details").await[0]["majorCompactionCounter"].as_u64().unwrap()
    }

    /// Asks for collections until one has ended that began after the call; the major compactions so far.
    async fn collects(&self) -> u64 {
        let before = self.metric("bindery_space_collections").await;
        let collected = async {
            while self.metric("bindery_space_collections").await < before + 2 {
                self.collect(r#"{"forceMajor":true}"#).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, collected).await.unwrap();
        self.major_compactions().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspended_compactions_do_not_begin_until_they_are_resumed() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let running = start(config_that_flushes(dir.path()), &cluster).await;
    let before = running.major_compactions().await;
    assert!(running.collects().await > before, "asked for, it begins");
    let (status, body) = running.told_to(SUSPEND, r#"{"suspendMajor":true}"#).await;
    assert!(status.contains("200"), "{status} {body}");
    assert_eq!(body, r#""Suspend majorGC on BookieServer: bookie-0""#);
    let suspended = json!({ "isMajorGcSuspended": "true", "isMinorGcSuspended": "false" });
    assert_eq!(running.json(SUSPEND).await, suspended);
    // One that was begun before goes on.
    let suspended = running.collects().await;
    assert_eq!(running.collects().await, suspended, "whoever asks");
    for (path, body) in [(SUSPEND, ""), (SUSPEND, "{}"), (RESUME, r#"{"resumeMinor":false}"#), (RESUME, "[")]
    {
        let (status, why) = running.told_to(path, body).await;
        assert!(status.contains("400") && !why.is_empty(), "{path} {body}: {status} {why}");
    }
    let (_, body) = running.told_to(RESUME, r#"{"resumeMajor":true,"resumeMinor":true}"#).await;
    assert!(body.contains("Resume majorGC") && body.contains("minorGC"), "{body}");
    assert_eq!(running.json(SUSPEND).await["isMajorGcSuspended"], "false");
    assert!(running.collects().await > suspended);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_in_the_journal_and_files_are_those_on_disk() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let running = start(config_that_flushes(dir.path()), &cluster).await;
    for entry in 0..10 {
        assert_eq!(running.add(1, entry).await, ErrorCode::Ok);
    }
    running.flushed(10).await;
    let position = async {
        loop {
            let mark = running.json("/api/v1/bookie/last_log_mark").await;
            let marks = mark.as_object().unwrap();
            assert_eq!(marks.len(), 1, "{mark}");
            let (journal, position) = marks.iter().next().unwrap();
            assert!(journal.starts_with("LastLogMark: Journal Id - "), "{mark}");
            let position: u64 = position.as_str().unwrap().strip_prefix("Pos - ").unwrap().parse().unwrap();
            if position > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, position).await.unwrap();
    let files = running.json("/api/v1/bookie/list_disk_file").await;
    let names = |kind: &str| -> Vec<String> {
        let names = files[kind].as_str().unwrap_or_else(|| panic!("{files}"));
        names.split_terminator('\t').map(str::to_owned).collect()
    };
    assert!(names("journal files").iter().any(|name| name.ends_with(".bjl")), "{files}");
    assert!(names("entrylog files").iter().all(|name| name.ends_with(".elog")), "{files}");
    assert!(!names("entrylog files").is_empty(), "{files}");
    assert_eq!(names("index files"), ["state.redb"]);
    let one: Value = running.json("/api/v1/bookie/list_disk_file?file_type=index").await;
    assert_eq!(one, json!({ "index files": "state.redb\t" }));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_meaning_here_says_what_to_use() {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let running = start(config(dir.path()), &cluster).await;
    for (method, path, instead) in [
        ("PUT", "/api/v1/config/server_config", "bk_server.conf"),
        ("PUT", "/api/v1/bookie/expand_storage", "ledgerDirectories"),
        ("PUT", "/api/v1/bookie/entry_location_compact", "compact"),
        ("GET", "/api/v1/bookie/entry_location_compact", "compact"),
        ("GET", "/api/v1/bookie/list_bookie_info", "bindery cluster status"),
    ] {
        let (status, body) = running.http(method, path, "{}").await;
        assert!(status.contains("501") && body.contains(instead), "{method} {path}: {status} {body}");
    }
    running.stop().await;
}
