//! Ledgers over the admin port: lists, metadata, entries and deletion, in Java's shapes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a file of an operator")]

use crate::common::whole::{Running, cluster, config, id, metadata, open};
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metadata::MetadataStore as _;
use bindery_server::admin::extension::Extending;
use bindery_server::admin::ledgers::{
    EntriesFound, EntriesRefused, EntriesWanted, EntrySource, reading_bytes,
};
use bindery_server::bookie::{Bookie, Components, Metadata};
use bindery_server::config::BookieConfig;
use bindery_server::latch::Latch;
use bindery_server::limits::Limits;
use bindery_types::{EntryId, LedgerState};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;

/// Has ledger 7, with three entries.
#[derive(Default)]
struct Source(Mutex<Vec<EntriesWanted>>);

impl EntrySource for Source {
    fn read(&self, wanted: EntriesWanted) -> Extending<'_, Result<EntriesFound, EntriesRefused>> {
        self.0.lock().push(wanted);
        Box::pin(async move {
            if wanted.ledger != id(7) {
                return Err(EntriesRefused::NotFound(format!("ledger {} does not exist", wanted.ledger)));
            }
            let of = |raw: i64| (EntryId::new(raw).unwrap(), Bytes::from(format!("entry {raw}")));
            let entries = (wanted.first.get()..3).map(of).collect();
            Ok(EntriesFound { entries, end: EntryId::new(2) })
        })
    }
}

struct Place {
    running: Running,
    source: Arc<Source>,
    _dir: tempfile::TempDir,
}

async fn start_with(change: impl FnOnce(BookieConfig) -> BookieConfig) -> Place {
    let (dir, cluster) = (tempfile::tempdir().unwrap(), cluster().await);
    let components = Components {
        disk: Arc::new(RealDisk::new()),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        metadata: Metadata::Layout(open(&cluster).await),
    };
    let bookie = Bookie::start(change(config(dir.path())), components).await.unwrap();
    assert_eq!(bookie.entry_limits().1, reading_bytes(&Limits::default()));
    let (address, admin) = (bookie.address(), bookie.admin_address().unwrap());
    let source = Arc::new(Source::default());
    bookie.show_entries(source.clone());
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { bookie.run(&stop).await }
    });
    let layout = open(&cluster).await;
    let running = Running { address, admin, stop, task, store: Arc::new(cluster.open()), layout };
    Place { running, source, _dir: dir }
}

async fn started() -> Place {
    start_with(|config| config).await
}

/// The status and the body of an answer, and the headers besides.
async fn said(running: &Running, method: &str, path: &str) -> (u16, String, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut socket = tokio::net::TcpStream::connect(running.admin).await.unwrap();
    let request = format!("{method} /api/v1/ledger/{path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned(), head.to_owned())
}

/// The header that says how an answer goes on.
fn more(head: &str) -> Option<&str> {
    head.lines().find_map(|line| line.strip_prefix("bindery-more: "))
}

async fn shown(place: &Place, path: &str) -> Value {
    let (status, body, _) = said(&place.running, "GET", path).await;
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn ledgers_are_listed_by_id_with_metadata_and_by_pages() {
    let place = started().await;
    let ledgers = place.running.layout.ledgers();
    assert_eq!(said(&place.running, "GET", "list").await.1, "{}");
    let closed = LedgerState::Closed { last_entry: EntryId::new(4), length_bytes: 50 };
    let mut of_seven = metadata("b:1", closed);
    of_seven.custom.insert("application".into(), b"pulsar".to_vec());
    (of_seven.created_ms, of_seven.creation_token) = (Some(1234), Some(99));
    ledgers.create(id(7), &of_seven).await.unwrap();
    ledgers.create(id(100), &metadata("b:1", LedgerState::Open)).await.unwrap();
    ledgers.create(id(1 << 40), &metadata("b:1", LedgerState::InRecovery)).await.unwrap();
    let all = r#"{"7":null,"100":null,"1099511627776":null}"#;
    assert_eq!(said(&place.running, "GET", "list").await.1, all);
    assert_eq!(said(&place.running, "GET", "list?print_metadata=yes").await.1, all);
    let (_, body, head) = said(&place.running, "GET", "list?limit=2").await;
    assert_eq!((&*body, more(&head)), (r#"{"7":null,"100":null}"#, Some("after=100")));
    let (_, body, head) = said(&place.running, "GET", "list?limit=2&after=100").await;
    assert_eq!((&*body, more(&head)), (r#"{"1099511627776":null}"#, None));

    let decoded = shown(&place, "list?print_metadata=true&decode_meta=true&limit=1").await;
    let of_seven = json!({
        "ledgerId": 7, "metadataFormatVersion": 3, "ensembleSize": 1, "writeQuorumSize": 1, "ackQuorumSize": 1,
        "state": "CLOSED", "closed": true, "lastEntryId": 4, "length": 50, "ctime": 1234, "digestType": "CRC32C",
        "password": null, "customMetadata": { "application": "cHVsc2Fy" },
        "allEnsembles": { "0": [{ "id": "b:1" }] }, "ctoken": 99,
    });
    assert_eq!(decoded, json!({ "7": of_seven }));
    assert_eq!(shown(&place, "metadata?ledger_id=7").await, json!({ "7": of_seven }));
    let open = &shown(&place, "metadata?ledger_id=100").await["100"];
    assert_eq!(
        (&open["state"], &open["closed"], &open["lastEntryId"]),
        (&json!("OPEN"), &json!(false), &json!(-1))
    );

    let text = shown(&place, "list?print_metadata=true").await;
    let text = text["7"].as_str().unwrap();
    assert!(
        text.starts_with("BookieMetadataFormatVersion\t2\n") && text.contains("lastEntryId: 4"),
        "{text}"
    );
    assert!(text.contains("password: \"\"") && !text.contains("password: \"p\""), "{text}");
    place.running.stop().await;
}

#[tokio::test]
async fn pages_of_a_list_have_a_hundred_ledgers() {
    let place = started().await;
    let ledgers = place.running.layout.ledgers();
    for raw in 0..250 {
        ledgers.create(id(raw), &metadata("b:1", LedgerState::Open)).await.unwrap();
    }
    let ids = async |path: &str| {
        let mut ids: Vec<i64> =
            shown(&place, path).await.as_object().unwrap().keys().map(|id| id.parse().unwrap()).collect();
        ids.sort_unstable();
        ids
    };
    for (page, range) in [(1, 0..100), (2, 100..200), (3, 200..250), (4, 0..0)] {
        let found = ids(&format!("list?print_metadata=true&decode_meta=true&page={page}")).await;
        assert_eq!(found, range.collect::<Vec<_>>(), "page {page}");
    }
    assert_eq!(ids("list").await.len(), 250);
    // One that cannot be read keeps nobody from seeing the others, and one that is gone is not there.
    place.running.store.set(&ledgers.path(id(3)), "garbage".into(), None).await.unwrap();
    ledgers.delete(id(4), None).await.unwrap();
    let some = shown(&place, "list?print_metadata=true&limit=5").await;
    assert!(some["3"].is_null() && some.get("4").is_none() && some["5"].is_string(), "{some}");
    let (status, why, _) = said(&place.running, "GET", "metadata?ledger_id=3").await;
    assert!(status == 500 && why.contains("ledger 3"), "{status} {why}");
    place.running.stop().await;
}

/// A list ends where it would become too long, and says how it goes on.
#[tokio::test]
async fn a_long_list_comes_in_parts() {
    let place = started().await;
    let ledgers = place.running.layout.ledgers();
    let mut large = metadata("b:1", LedgerState::Open);
    large.custom.insert("filler".into(), vec![b'x'; 100_000]);
    for raw in 0..30 {
        ledgers.create(id(raw), &large).await.unwrap();
    }
    let (mut found, mut parts, mut after) = (Vec::new(), 0, String::new());
    loop {
        let path = format!("list?print_metadata=true&decode_meta=true{after}");
        let (status, body, head) = said(&place.running, "GET", &path).await;
        assert!(status == 200 && body.len() < 512 << 10, "{status} {}", body.len());
        let some: Value = serde_json::from_str(&body).unwrap();
        found.extend(some.as_object().unwrap().keys().map(|id| id.parse::<i64>().unwrap()));
        parts += 1;
        let Some(more) = more(&head) else { break };
        after = format!("&{more}");
    }
    found.sort_unstable();
    assert_eq!(found, (0..30).collect::<Vec<_>>());
    assert!(parts > 1, "{parts}");
    place.running.stop().await;
}

#[tokio::test]
async fn entries_are_read_in_javas_shape() {
    let place = started().await;
    let (status, body, head) = said(&place.running, "GET", "read?ledger_id=7").await;
    assert_eq!((status, &*body, more(&head)), (200, r#"{"0":"entry 0","1":"entry 1","2":"entry 2"}"#, None));
    let body = said(&place.running, "GET", "read?ledger_id=7&start_entry_id=2&format=json").await.1;
    assert_eq!(body, r#"{"2":{"length":7,"text":"entry 2"}}"#);
    let (status, why, _) = said(&place.running, "GET", "read?ledger_id=8").await;
    assert_eq!((status, &*why), (404, "ledger 8 does not exist\n"));
    let wanted = place.source.0.lock().clone();
    assert_eq!(wanted.iter().map(|wanted| wanted.first.get()).collect::<Vec<_>>(), [0, 2, 0]);
    // Each answer gives back the memory that its source held.
    let pool = place.running.get("/metrics").await;
    assert!(pool.contains("bindery_pool_used_bytes{pool=\"outbound\"} 0\n"));
    place.running.stop().await;
}

#[tokio::test]
async fn a_ledger_is_deleted_once() {
    let place = started().await;
    place.running.layout.ledgers().create(id(7), &metadata("b:1", LedgerState::Open)).await.unwrap();
    let (status, body, _) = said(&place.running, "DELETE", "delete?ledger_id=7").await;
    assert_eq!((status, &*body), (200, "\"Deleted ledger: 7\""));
    assert!(!place.running.layout.ledgers().exists(id(7)).await.unwrap());
    let (status, body, _) = said(&place.running, "DELETE", "delete?ledger_id=7").await;
    assert_eq!((status, &*body), (404, "ledger 7 does not exist\n"));
    place.running.stop().await;
}

/// Another method, or a missing ledger, is not found, as in Java; an answer names a parameter that is no number.
#[tokio::test]
async fn what_cannot_be_asked_is_refused() {
    let place = started().await;
    for (method, path, status, text) in [
        ("PUT", "list", 404, "Should be GET method"),
        ("PUT", "metadata?ledger_id=7", 404, "Should be GET method"),
        ("GET", "metadata", 404, "ledger_id"),
        ("GET", "metadata?ledger_id=-7", 400, "ledger_id=-7"),
        ("GET", "metadata?ledger_id=7", 404, "ledger 7 does not exist"),
        ("DELETE", "read?ledger_id=7", 404, "Should be GET method"),
        ("GET", "read", 404, "ledger_id"),
        ("GET", "read?ledger_id=7&format=xml", 400, "json, hex or text"),
        ("GET", "read?ledger_id=7&start_entry_id=9", 404, "the last one is 2"),
        ("GET", "delete?ledger_id=7", 404, "Should be DELETE method"),
        ("DELETE", "delete", 404, "ledger_id"),
        ("DELETE", "delete?ledger_id=seven", 400, "ledger_id=seven"),
        ("GET", "list?after=x", 400, "after=x"),
        ("GET", "list?limit=0", 400, "limit=0"),
        ("GET", "list?print_metadata=true&page=0", 400, "page=0"),
    ] {
        let (found, why, _) = said(&place.running, method, path).await;
        assert!(found == status && why.contains(text), "{method} {path}: {found} {why}");
    }
    assert!(place.source.0.lock().iter().all(|wanted| wanted.first.get() == 9));
    place.running.stop().await;
}

/// Entries are for those who may make changes, metadata for whoever reaches the port.
#[tokio::test]
async fn entries_and_deletion_need_a_token_where_changes_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "secret\n").unwrap();
    let place =
        start_with(|config| BookieConfig { admin_tokens: Some(file), admin_token_required: true, ..config })
            .await;
    place.running.layout.ledgers().create(id(7), &metadata("b:1", LedgerState::Open)).await.unwrap();
    for (method, path, status) in [
        ("GET", "read?ledger_id=7", 401),
        ("HEAD", "read?ledger_id=7", 401),
        ("DELETE", "delete?ledger_id=7", 401),
        ("GET", "metadata?ledger_id=7", 200),
        ("GET", "list", 200),
    ] {
        assert_eq!(said(&place.running, method, path).await.0, status, "{method} {path}");
    }
    assert!(place.source.0.lock().is_empty());
    assert!(place.running.layout.ledgers().exists(id(7)).await.unwrap());
    place.running.stop().await;
}
