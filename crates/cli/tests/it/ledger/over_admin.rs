//! Entries over the admin port of a bookie.

use crate::ledger::shell::Cluster;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Status, headers and body of what the admin port answers.
fn get(cluster: &Cluster, path: &str) -> (String, String, String) {
    let mut socket = TcpStream::connect(("127.0.0.1", cluster.place.admin_port)).unwrap();
    write!(socket, "GET /api/v1/ledger/{path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), head.to_owned(), body.to_owned())
}

fn json_of(cluster: &Cluster, path: &str) -> Value {
    let (status, _, body) = get(cluster, path);
    assert_eq!(status, "200", "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// A bookie shows what is confirmed, whatever the password, and leaves the ledger to its writer.
#[test]
fn entries_are_shown_and_the_ledger_stays_open() {
    let cluster = Cluster::start();
    let options = ["--digest", "mac", "--password", "secret"];
    let id = cluster.run(&[&["ledger", "create"], &options[..]].concat()).done().trim().to_owned();
    assert_eq!(get(&cluster, &format!("read?ledger_id={id}")).2, "{}", "it is empty");
    let append = ["ledger", "append", &id, "--password", "secret"];
    cluster.pipe(&append, b"a\nbb\n\xff\xfe\n").done();
    let read = |more: &str| json_of(&cluster, &format!("read?ledger_id={id}{more}"));
    assert_eq!(read(""), json!({ "0": "a\n", "1": "bb\n", "2": "\u{fffd}\u{fffd}\n" }));
    assert_eq!(read("&start_entry_id=1&end_entry_id=9&format=hex"), json!({ "1": "62620a", "2": "fffe0a" }));
    assert_eq!(
        read("&format=json&page=1")["2"],
        json!({ "length": 3, "base64": "//4K" }),
        "a page of Java's"
    );
    let metadata = json_of(&cluster, &format!("metadata?ledger_id={id}"))[&id].clone();
    assert_eq!((&metadata["state"], &metadata["password"]), (&json!("OPEN"), &Value::Null));
    cluster.pipe(&append, b"more\n").done();
    assert_eq!(read("&start_entry_id=3"), json!({ "3": "more\n" }));
    let (status, _, why) = get(&cluster, &format!("read?ledger_id={id}&start_entry_id=4"));
    assert_eq!((&*status, &*why), ("404", &*format!("ledger {id} has no entry 4: the last one is 3\n")));
    let (status, _, why) = get(&cluster, "read?ledger_id=4711");
    assert_eq!((&*status, &*why), ("404", "ledger 4711 does not exist\n"));
}

/// A long ledger comes in parts, whose ends are said.
#[test]
fn a_long_ledger_comes_in_parts() {
    let cluster = Cluster::start();
    let lines: String = (0..2500).map(|n| format!("{n:0>300}\n")).collect();
    let id = cluster.ledger_of(lines.as_bytes());
    let (mut next, mut parts, mut found) = (0, 0, 0);
    loop {
        let (status, head, body) = get(&cluster, &format!("read?ledger_id={id}&start_entry_id={next}"));
        assert!(status == "200" && body.len() <= 256 << 10, "{status} {}", body.len());
        let entries: Value = serde_json::from_str(&body).unwrap();
        for (entry, text) in entries.as_object().unwrap() {
            assert_eq!(text, &json!(format!("{entry:0>300}\n")));
            found += 1;
        }
        parts += 1;
        let more = head.lines().find_map(|line| line.strip_prefix("bindery-more: start_entry_id="));
        let Some(more) = more else { break };
        next = more.parse().unwrap();
    }
    assert!(found == 2500 && parts > 2, "{found} in {parts}");
}
