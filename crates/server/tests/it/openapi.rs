//! The description of the admin port beside the port: each path and method answers as it says.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::whole::{Running, cluster, config, id, metadata, open};
use bindery_io::{RealDisk, SystemClock, SystemRandom};
use bindery_metrics::Exposition;
use bindery_server::admin::extension::{
    AdminExtension, Extending, ExtensionAnswer, ExtensionFault, ExtensionRequest, Part,
};
use bindery_server::admin::ledgers::{EntriesFound, EntriesRefused, EntriesWanted, EntrySource};
use bindery_server::bookie::{Bookie, Components, Metadata};
use bindery_server::latch::Latch;
use bindery_types::{BookieId, EntryId, LedgerState};
use bytes::Bytes;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A part of the process that has every path.
struct Yes;

impl AdminExtension for Yes {
    fn fault(&self) -> Option<ExtensionFault> {
        None
    }

    fn answer<'a>(&'a self, request: ExtensionRequest<'a>) -> Extending<'a, ExtensionAnswer> {
        let is_text = ["bookie", "decommission"].contains(&request.name);
        Box::pin(async move {
            match is_text {
                true => ExtensionAnswer::Text("yes".to_owned()),
                false => ExtensionAnswer::Json("{}".to_owned()),
            }
        })
    }

    fn expose<'a>(&'a self, _: &'a mut Exposition) -> Extending<'a, ()> {
        Box::pin(async {})
    }
}

/// Every ledger has one entry.
impl EntrySource for Yes {
    fn read(&self, wanted: EntriesWanted) -> Extending<'_, Result<EntriesFound, EntriesRefused>> {
        let entries = vec![(wanted.first, Bytes::from_static(b"entry"))];
        Box::pin(async { Ok(EntriesFound { entries, end: EntryId::new(0) }) })
    }
}

async fn started(dir: &std::path::Path) -> Running {
    let cluster = cluster().await;
    let components = Components {
        disk: Arc::new(RealDisk::new()),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        metadata: Metadata::Layout(open(&cluster).await),
    };
    let bookie = Bookie::start(config(dir), components).await.unwrap();
    bookie.extend_admin(Part::Tier, Arc::new(Yes));
    bookie.extend_admin(Part::Repair, Arc::new(Yes));
    bookie.show_entries(Arc::new(Yes));
    bookie.show_settings(r#"{"bookiePort":"3181"}"#.to_owned());
    let (address, admin) = (bookie.address(), bookie.admin_address().unwrap());
    let stop = Arc::new(Latch::default());
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { bookie.run(&stop).await }
    });
    let layout = open(&cluster).await;
    layout.auditor_votes().vote(&BookieId::new("10.0.0.7:3181").unwrap()).await.unwrap();
    layout.repair_settings().set_delay(std::time::Duration::from_secs(900)).await.unwrap();
    layout.under_replication().mark(id(9), &[BookieId::new("10.0.0.3:3181").unwrap()]).await.unwrap();
    Running { address, admin, stop, task, store: Arc::new(cluster.open()), layout }
}

/// Status, value of a header, and body.
struct Said {
    status: u64,
    head: String,
    body: String,
}

impl Said {
    fn header(&self, name: &str) -> Option<&str> {
        let named = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&named))
    }
}

async fn said(running: &Running, method: &str, path: &str, body: &str) -> Said {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut socket = tokio::net::TcpStream::connect(running.admin).await.unwrap();
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Said {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

/// What in `value` is not as `schema` says.
fn fault(schema: &Value, value: &Value, at: &str) -> Option<String> {
    let is = match schema["type"].as_str() {
        None => return None,
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("{other}"),
    };
    if !is {
        return Some(format!("{at} is {value}, not {}", schema["type"]));
    }
    if let Value::Array(items) = value {
        return items.iter().find_map(|item| fault(&schema["items"], item, &format!("{at}[]")));
    }
    let Value::Object(members) = value else { return None };
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    for name in schema["required"].as_array().into_iter().flatten() {
        if !members.contains_key(name.as_str().unwrap()) {
            return Some(format!("{at} lacks {name}"));
        }
    }
    members.iter().find_map(|(name, member)| match (properties.get(name), &schema["additionalProperties"]) {
        (Some(of), _) => fault(of, member, &format!("{at}.{name}")),
        (None, Value::Bool(false)) => Some(format!("{at} has {name}, which is not described")),
        (None, of) => fault(of, member, &format!("{at}.{name}")),
    })
}

/// A query with the parameters that are needed, or with all.
fn query(operation: &Value, has_all: bool) -> String {
    let parameters = operation["parameters"].as_array().unwrap().iter();
    let wanted = parameters.filter(|parameter| has_all || parameter["required"] == true);
    let pairs: Vec<String> = wanted
        .map(|parameter| {
            format!("{}={}", parameter["name"].as_str().unwrap(), parameter["example"].as_str().unwrap())
        })
        .collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

/// Answers that a bookie without object storage gives, and those that need more than this test has.
const REFUSED: [(&str, &str, u64); 4] = [
    ("get", "/api/v1/bookie/tier", 404),
    ("put", "/api/v1/bookie/tier", 404),
    ("get", "/api/v1/bookie/tier/ledger", 404),
    ("put", "/api/v1/bookie/scrub", 200),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_path_answers_as_it_is_described() {
    let dir = tempfile::tempdir().unwrap();
    let running = started(dir.path()).await;
    let document: Value = running.json("/api/v1/openapi.json").await;
    assert_eq!(document["openapi"], "3.0.3");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 35, "{}", paths.len());
    let mut faults = Vec::new();
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            for has_all in [false, true] {
                let ledgers = running.layout.ledgers();
                let _ = ledgers.create(id(7), &metadata("bookie-0", LedgerState::Open)).await;
                let query = query(operation, has_all);
                let example = &operation["requestBody"]["content"]["application/json"]["example"];
                let body = if example.is_null() { String::new() } else { example.to_string() };
                let verb = method.to_ascii_uppercase();
                let answer = said(&running, &verb, &format!("{path}{query}"), &body).await;
                faults.extend(check(operation, &answer, (method, path)).err());
                if verb == "GET" {
                    let head = said(&running, "HEAD", &format!("{path}{query}"), "").await;
                    assert_eq!((head.status, &*head.body), (answer.status, ""), "HEAD {path}");
                    assert_eq!(head.header("content-type"), answer.header("content-type"), "HEAD {path}");
                }
            }
        }
        // Other methods are told what there is.
        for method in ["GET", "PUT", "DELETE", "POST"] {
            if operations.get(method.to_ascii_lowercase()).is_none() && path != "/heartbeat" {
                let answer = said(&running, method, path, "").await;
                let refused = [403, 404, 405].contains(&answer.status) && !answer.body.is_empty();
                assert!(refused, "{method} {path}: {} {}", answer.status, answer.body);
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let nowhere = said(&running, "GET", "/api/v1/nowhere", "").await;
    assert!(nowhere.status == 404 && nowhere.body.contains("openapi.json"), "{}", nowhere.body);
    running.stop().await;
}

/// Compares an answer with its description.
///
/// # Errors
/// The part that differs.
fn check(operation: &Value, answer: &Said, (method, path): (&str, &str)) -> Result<(), String> {
    let said = format!("{method} {path}: {} {}", answer.status, answer.body);
    let responses = operation["responses"].as_object().unwrap();
    let expected = match REFUSED.iter().find(|(of, at, _)| (*of, *at) == (method, path)) {
        Some((.., status)) => *status,
        None if responses.contains_key("501") => 501,
        None => 200,
    };
    let described = responses.get(&answer.status.to_string()).ok_or_else(|| said.clone())?;
    if answer.status != expected {
        return Err(format!("{said}, not {expected}"));
    }
    if expected == 501 && answer.body != format!("{}\n", described["description"].as_str().unwrap()) {
        return Err(format!("{said}, not what is described"));
    }
    let Some(content) = described["content"].as_object() else { return Ok(()) };
    let (kind, of) = content.iter().next().unwrap();
    if !answer.header("content-type").is_some_and(|found| found.starts_with(kind)) {
        return Err(format!("{said}\n{}", answer.head));
    }
    if kind == "application/json" {
        let body: Value = serde_json::from_str(&answer.body).map_err(|error| format!("{said}: {error}"))?;
        return fault(&of["schema"], &body, path).map_or(Ok(()), |fault| Err(format!("{said}: {fault}")));
    }
    Ok(())
}
