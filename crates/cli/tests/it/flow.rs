//! `bindery flow` against answers that are written down: what it prints, what it asks for, and what it says when the
//! other side is no admin port.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::thread::JoinHandle;

pub const FIRST: &str = include_str!("../flow/view-0.json");
/// The same bookie a second later.
pub const SECOND: &str = include_str!("../flow/view-1.json");
const TABLE: &str = include_str!("../flow/once.txt");

/// Answers one connection after the other; gives the request of each.
pub fn serve(answers: Vec<String>) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let task = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && socket.read(&mut byte).unwrap() == 1 {
                request.push(byte[0]);
            }
            let line = String::from_utf8(request).unwrap().lines().next().unwrap().to_owned();
            asked.push(line);
            socket.write_all(answer.as_bytes()).unwrap();
        }
        asked
    });
    (address, task)
}

pub fn ok(body: &str) -> String {
    format!("HTTP/1.0 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn flow(address: &str, args: &[&str]) -> Output {
    let admin = format!("http://{address}");
    let line = [&["flow", "--admin", &admin], args].concat();
    Command::new(env!("CARGO_BIN_EXE_bindery")).args(line).env_remove("RUST_LOG").output().unwrap()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn one_table_is_drawn_from_two_looks() {
    let (address, bookie) = serve(vec![ok(FIRST), ok(SECOND)]);
    // Standard output is no terminal: the same as with --once.
    let output = flow(&address.to_string(), &["--interval", "0.1"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(output.stderr));
    let printed = text(output.stdout).replace(&format!("http://{address}"), "http://127.0.0.1:8080");
    assert_eq!(printed, TABLE, "the picture in tests/flow/once.txt");
    let asked = bookie.join().unwrap();
    assert_eq!(asked, ["GET /api/v1/bookie/flow?sort=held&limit=1000 HTTP/1.0"; 2]);
}

#[test]
fn json_is_passed_on_as_it_is() {
    let (address, bookie) = serve(vec![ok(FIRST)]);
    let output = flow(&address.to_string(), &["--json", "--sort", "stalled", "--top", "7"]);
    assert_eq!(text(output.stdout), format!("{FIRST}\n"));
    assert_eq!(bookie.join().unwrap(), ["GET /api/v1/bookie/flow?sort=stalled&limit=7 HTTP/1.0"]);
}

#[test]
fn who_does_not_answer_as_a_bookie_is_told_apart() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = flow(&free.to_string(), &["--once"]);
    assert_eq!(refused.status.code(), Some(7));
    let error = text(refused.stderr);
    assert!(error.contains("nobody listens there") && error.contains("--admin IP:PORT"), "{error}");
    let cases = [
        (String::new(), 1, "does not speak HTTP"),
        ("HTTP/1.0 404 Not Found\r\n\r\n".to_owned(), 1, "has no flow view"),
        ("HTTP/1.0 503 Service Unavailable\r\n\r\n".to_owned(), 7, "still starting"),
        (ok("{}"), 1, "not understood"),
    ];
    for (answer, code, why) in cases {
        let (address, bookie) = serve(vec![answer]);
        let output = flow(&address.to_string(), &["--once"]);
        assert_eq!(output.status.code(), Some(code), "{why}");
        assert!(output.stdout.is_empty());
        let error = text(output.stderr);
        assert!(error.contains(why), "{error}");
        bookie.join().unwrap();
    }
    for (args, why) in [
        (["--admin", "https://h:1"], "BINDERY_ADMIN_CA"),
        (["--admin", "nonsense"], "names no port"),
        (["--sort", "size"], "give one of held"),
    ] {
        let line = [&["flow"], &args[..]].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_bindery")).args(line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{why}");
        let error = text(output.stderr);
        assert!(error.contains(why), "{error}");
    }
}
