//! `bindery cluster status` of a standalone server: one picture, one object, a live screen, and errors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "real processes, in real time")]

use crate::ledger::shell::{Cluster, eventually};
use crate::server::{Place, bindery, free_port};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_cluster_is_one_picture_one_object_or_a_screen() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(dir.path(), 1);
    let server = place.start();
    let metadata = place.metadata();
    let status = |args: &[&str]| {
        let line = [&["cluster", "status", "--metadata", &metadata], args].concat();
        bindery(&line).stdin(Stdio::null()).output().unwrap()
    };
    let bookie = format!("127.0.0.1:{}", place.bookie_port);

    let picture = printed(&status(&["--once"]));
    assert!(picture.contains("1 bookie: 1 writable, 0 read-only, 0 away"), "{picture}");
    assert!(picture.contains("repair enabled   auditor"), "{picture}");
    let line = picture.lines().find(|line| line.starts_with(&bookie)).unwrap();
    assert!(line.contains(" writable ") && line.contains("iB"), "its admin port says the space: {line}");
    assert!(picture.contains("\nno ledger is marked as under-replicated\n"), "{picture}");
    // Standard output is no terminal: the same.
    assert_eq!(printed(&status(&[])).lines().count(), picture.lines().count());

    printed(&bindery(&["cluster", "repair", "disable", "--metadata", &metadata]).output().unwrap());
    let object = printed(&status(&["--json"]));
    assert_eq!(object.lines().count(), 1, "{object}");
    let object: Value = serde_json::from_str(&object).unwrap();
    assert_eq!(object["repair"]["enabled"], Value::Bool(false));
    let of_bookie = &object["bookies"][0];
    assert_eq!(
        (&of_bookie["bookie_id"], &of_bookie["answers"]),
        (&Value::from(bookie.as_str()), &Value::Bool(true))
    );
    assert!(of_bookie["free_bytes"].as_u64().unwrap() <= of_bookie["total_bytes"].as_u64().unwrap());
    assert!(object["notes"][0].as_str().unwrap().contains("bindery cluster repair enable"), "{object}");

    // A screen, until a key ends it.
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap();
    let terminal = rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
    tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let mut command = bindery(&["cluster", "status", "--metadata", &metadata, "--interval", "0.1"]);
    let (input, output) = (terminal.try_clone().unwrap(), terminal.try_clone().unwrap());
    let mut child = command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).spawn().unwrap();
    drop((terminal, command));
    let mut screen = File::from(master);
    let (mut seen, mut bytes) = (String::new(), [0; 4096]);
    // It is drawn again and again.
    while seen.matches("repair DISABLED").count() < 3 {
        let len = screen.read(&mut bytes).unwrap();
        seen.push_str(&text(&bytes[..len]));
    }
    assert!(seen.contains(&bookie) && seen.contains("NOTE  repair is disabled"), "{seen}");
    screen.write_all(b"q").unwrap();
    // What it draws meanwhile is read, or it could not go on.
    let reading = std::thread::spawn(move || while screen.read(&mut bytes).is_ok_and(|len| len > 0) {});
    assert!(child.wait().unwrap().success());
    reading.join().unwrap();
    server.kill();

    let output = status(&["--once"]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stdout));
    let port = place.coordinator_port.to_string();
    assert!(text(&output.stderr).contains(&port), "{}", text(&output.stderr));
}

/// Clients of this bookie have to log in, and its repair has no user.
#[test]
fn repair_that_cannot_start_is_said_with_its_reason() {
    let cluster = Cluster::start();
    let users = cluster.file("users", &cluster.pipe(&["user", "hash", "hd"], b"secret\n").stdout);
    std::fs::set_permissions(&users, PermissionsExt::from_mode(0o600)).unwrap();
    let file = cluster.file("bk_server.conf", format!("usersFile={}\n", users.display()).as_bytes());
    let data = cluster.dir.path().join("second");
    let [listen, admin] = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let place = ["--listen", &listen, "--admin", &admin, "--data", data.to_str().unwrap()];
    let metadata = cluster.place.metadata();
    let start = ["bookie", "--allow-loopback", "--config", file.to_str().unwrap(), "--metadata", &metadata];
    let running = cluster.spawn(&[&start[..], &place].concat());
    let why = format!("NOTE  {listen}: repair cannot start: clients have to log in");
    eventually(|| cluster.run(&["cluster", "status", "--once"]).done().contains(&why));
    let object = cluster.run(&["cluster", "status", "--json"]).json();
    let bookies = object["bookies"].as_array().unwrap();
    let second = bookies.iter().find(|bookie| bookie["bookie_id"] == listen).unwrap();
    assert!(second["repair_error"].as_str().unwrap().contains("has no user"), "{second}");
    running.signal("-TERM");
    assert_eq!(running.wait().code, 0);
}

/// Status and body of an answer of an admin port; `None` when nothing listens there.
fn asked(admin: &str, method: &str, path: &str, body: &str) -> Option<(String, String)> {
    let mut socket = TcpStream::connect(admin).ok()?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {admin}\r\nContent-Length: {length}\r\n\r\n");
    socket.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Some((head.split(' ').nth(1).unwrap().to_owned(), body.to_owned()))
}

#[test]
fn repair_alone_has_health_metrics_and_orders_at_a_port_of_its_own() {
    let cluster = Cluster::start();
    let admin = format!("127.0.0.1:{}", free_port());
    cluster.run(&["repair", "--admin-tokens", "/none", "--admin", &admin]).failed(2, &["--admin-tokens"]);
    cluster.run(&["repair", "--admin-tokens", "/none"]).failed(2, &["--admin <IP:PORT>"]);
    let running = cluster.spawn(&["repair", "--admin", &admin]);
    let get = |path: &str| asked(&admin, "GET", path, "");
    eventually(|| get("/api/v1/autorecovery/report").is_some_and(|(status, _)| status == "200"));
    let json = |path: &str| serde_json::from_str::<Value>(&get(path).unwrap().1).unwrap();
    assert_eq!(json("/api/v1/autorecovery/state"), serde_json::json!({ "running": true, "alarms": [] }));
    assert_eq!(json("/api/v1/autorecovery/report")["copies_to_any"], Value::Bool(true));
    assert_eq!(get("/heartbeat").unwrap(), ("200".to_owned(), "OK\n".to_owned()));
    let metrics = get("/metrics").unwrap().1;
    assert!(metrics.lines().any(|line| line == "bindery_repair_up 1"), "{metrics}");
    assert!(!metrics.contains("bindery_tier_"), "it is no tierer: {metrics}");
    let bookie = format!("127.0.0.1:{}", cluster.place.bookie_port);
    let order = format!(r#"{{"bookie_src":["{bookie}"]}}"#);
    let (status, why) = asked(&admin, "PUT", "/api/v1/autorecovery/bookie", &order).unwrap();
    assert_eq!(status, "409", "{why}");
    assert!(why.contains("is running: stop it first"), "{why}");
    running.signal("-TERM");
    assert_eq!(running.wait().code, 0);
}
