//! The console: a page in the binary, what its node remembers, and the bookies of the cluster.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::PATIENCE;
use crate::common::whole::{Running, cluster, config, start};
use bindery_metadata::store::{CreateMode, MetadataStore as _};
use bindery_types::BookieId;
use bindery_wire::ErrorCode;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The whole answer, its head in small letters.
async fn said(running: &Running, head: &str) -> (String, String) {
    let mut socket = TcpStream::connect(running.admin).await.unwrap();
    let request = format!("{head}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    tokio::time::timeout(PATIENCE, socket.read_to_end(&mut said)).await.expect("it is answered").unwrap();
    let said = String::from_utf8(said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

#[tokio::test]
async fn the_page_and_its_files_come_with_their_policy_and_once() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path()), &cluster().await).await;
    let (head, page) = said(&running, "GET / HTTP/1.1").await;
    for line in [
        "http/1.1 200 ok",
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'self';",
        "x-content-type-options: nosniff",
        "cache-control: no-cache",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
    assert!(page.contains("<title>Bindery</title>"), "{page}");
    for (name, begin) in
        [("main.js", "//"), ("uPlot.iife.min.js", "/*! "), ("uPlot.LICENSE", "The MIT License")]
    {
        let (head, body) = said(&running, &format!("GET /console/{name} HTTP/1.1")).await;
        assert!(head.starts_with("http/1.1 200") && body.starts_with(begin), "{name}: {head}");
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
        let (head, body) =
            said(&running, &format!("GET /console/{name} HTTP/1.1\r\nIf-None-Match: {tag}")).await;
        assert!(head.starts_with("http/1.1 304") && body.is_empty(), "{name}: {head}");
        let (head, body) = said(&running, &format!("HEAD /console/{name} HTTP/1.1")).await;
        assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{name}: {head}");
    }
    for path in ["/console/", "/console/nothing", "/console/../Cargo.toml", "/console/%2e%2e%2fCargo.toml"] {
        let (head, _) = said(&running, &format!("GET {path} HTTP/1.1")).await;
        assert!(head.starts_with("http/1.1 404"), "{path}: {head}");
    }
    running.stop().await;
}

/// Every number that a bookie has is remembered: a metric that goes by another name is missed here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_remembers_what_its_metrics_said() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path()), &cluster().await).await;
    let begin_ms = running.json("/api/v1/console/history").await["node"].clone();
    assert_eq!(
        begin_ms,
        json!({ "version": env!("CARGO_PKG_VERSION"), "bookie": "bookie-0", "parts": ["bookie"] })
    );
    let remembered = async {
        let mut entry = 0;
        loop {
            assert_eq!(running.add(1, entry).await, ErrorCode::Ok);
            assert_eq!(running.read(1, entry).await, ErrorCode::Ok);
            entry += 1;
            let history = running.json("/api/v1/console/history?step=5&since=0").await;
            let adds =
                1 + history["series"].as_array().unwrap().iter().position(|key| key == "adds").unwrap();
            // The first look may have been before there was a bookie.
            let row = history["rows"].as_array().unwrap().iter().find(|row| row[adds].as_f64() > Some(0.0));
            if let Some(row) = row {
                return (history["series"].clone(), row.clone());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (series, row) = tokio::time::timeout(PATIENCE, remembered).await.expect("a row");
    let (series, row) = (series.as_array().unwrap(), row.as_array().unwrap());
    assert_eq!(row.len(), 1 + series.len());
    let of = |key: &str| &row[1 + series.iter().position(|series| series == key).unwrap()];
    for key in series.iter().filter_map(Value::as_str) {
        let is_of_another_part = key.starts_with("tier") || key.starts_with("repair");
        assert_eq!(of(key).is_null(), is_of_another_part, "{key}");
    }
    for key in
        ["adds", "addBytes", "reads", "readBytes", "addP99", "journalBytes", "journalFiles", "pool.write"]
    {
        assert!(of(key).as_f64().unwrap() > 0.0, "{key}");
    }
    let after = row[0].as_i64().unwrap();
    let newer = running.json(&format!("/api/v1/console/history?since={after}")).await;
    let newer = newer["rows"].as_array().unwrap();
    assert!(newer.iter().all(|row| row[0].as_i64().unwrap() > after), "{newer:?}");
    for (query, why) in [
        ("step=7", "give 5 or 60"),
        ("step=x", "step:"),
        ("since=x", "since:"),
        ("newest=-1", "newest:"),
        ("until=1", "unknown field"),
    ] {
        let (status, body) = running.http("GET", &format!("/api/v1/console/history?{query}"), "").await;
        assert!(status.contains("400") && body.contains(why), "{query}: {status} {body}");
    }
    let (status, _) = running.http("PUT", "/api/v1/console/history", "").await;
    assert!(status.contains("404"), "{status}");
    running.stop().await;
}

/// Those that are away, too, and where consoles are.
#[tokio::test]
async fn bookies_are_listed_with_their_consoles() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path()), &cluster().await).await;
    let away = BookieId::new("away.example:3181").unwrap();
    let path = format!("/ledgers/cookies/{away}");
    running.store.create(&path, b"4\n".to_vec().into(), CreateMode::Persistent).await.unwrap();
    let listed = running.json("/api/v1/console/bookies").await;
    let console = format!("http://{}/", running.admin);
    let expected = json!({
        "bookies": [
            { "id": away.as_str(), "state": "away", "console": null },
            { "id": "bookie-0", "state": "writable", "console": console },
        ],
        "leftOut": 0,
    });
    assert_eq!(listed, expected);
    let (status, _) = running.http("DELETE", "/api/v1/console/bookies", "").await;
    assert!(status.contains("404"), "{status}");
    running.stop().await;
}
