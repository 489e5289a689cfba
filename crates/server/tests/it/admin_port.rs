//! The admin port among peers that mean it no good: it stays small, it answers, and the bookie does not notice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a file beside those of the bookie")]

use crate::common::PATIENCE;
use crate::common::whole::{Running, cluster, config, start};
use bindery_server::config::{AdminScope, BookieConfig};
use bindery_server::limits::Limits;
use bindery_wire::ErrorCode;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Connections that the port serves at once.
const PLACES: usize = 16;
const METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// More than the port serves at once.
const CROWD: usize = 100;

struct Place {
    running: Running,
    _dir: tempfile::TempDir,
}

/// A bookie whose admin port waits so long for its peers.
async fn start_with(patience: Duration) -> Place {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { admin_patience: patience, ..Limits::default() };
    let config = BookieConfig { limits, ..config(dir.path()) };
    Place { running: start(config, &cluster().await).await, _dir: dir }
}

async fn connect(running: &Running) -> TcpStream {
    TcpStream::connect(running.admin).await.unwrap()
}

/// What the port says before it closes the connection.
async fn rest(socket: &mut TcpStream) -> String {
    let mut said = Vec::new();
    // A reset is an end like any other.
    let _ = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut said)).await.expect("it is closed");
    String::from_utf8_lossy(&said).into_owned()
}

/// A client that takes little before it must read.
async fn small_socket(running: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_send_buffer_size(4096).unwrap();
    socket.connect(running.admin).await.unwrap()
}

async fn heartbeat(running: &Running) -> String {
    tokio::time::timeout(PATIENCE, running.get("/heartbeat")).await.expect("a probe is answered")
}

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(3600);

/// Heads that never end, of more bytes than any head has: all are refused or closed, and nothing of them stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_without_end_are_refused() {
    let place = start_with(LONG).await;
    let mut head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Filler: ".to_vec();
    head.resize(100 * 1024, b'a');
    for _ in 0..CROWD {
        let mut socket = connect(&place.running).await;
        // It may be closed in the middle of that.
        let _ = socket.write_all(&head).await;
        rest(&mut socket).await;
    }
    assert_eq!(place.running.add(1, 0).await, ErrorCode::Ok);
    assert_eq!(place.running.metric("bindery_failed").await, 0);
    place.running.stop().await;
}

/// More peers than places, none of which says anything: the first ones give theirs to later ones, so few are open at once,
/// and who has something to say is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_peers_make_room_for_others() {
    let place = start_with(LONG).await;
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        crowd.push(connect(&place.running).await);
    }
    for socket in &mut crowd[..CROWD / 2] {
        assert_eq!(rest(socket).await, "");
    }
    assert!(place.running.get("/heartbeat").await.contains("OK"));
    place.running.stop().await;
}

/// A head, a body and a pause that take too long end a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_take_their_time_are_closed() {
    let place = start_with(Duration::from_millis(100)).await;
    let half_a_head = b"GET /metrics HTTP/1.1\r\nHost".as_slice();
    let half_a_body =
        b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{".as_slice();
    let nothing_more = b"GET /heartbeat HTTP/1.1\r\nHost: localhost\r\n\r\n".as_slice();
    for (sent, answer) in [(half_a_head, ""), (half_a_body, "408"), (nothing_more, "200 OK"), (b"", "")] {
        let mut socket = connect(&place.running).await;
        socket.write_all(sent).await.unwrap();
        let said = rest(&mut socket).await;
        assert!(said.contains(answer), "{said}");
    }
    place.running.stop().await;
}

/// A body above the bound is refused, and an order of ordinary size is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_are_refused() {
    let place = start_with(LONG).await;
    let large = format!("{{\"forceMajor\":true{}}}", " ".repeat(100_000));
    let mut socket = connect(&place.running).await;
    let head = format!(
        "PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        large.len()
    );
    let _ = socket.write_all(head.as_bytes()).await;
    let _ = socket.write_all(&large.as_bytes()[..8 * 1024]).await;
    let said = rest(&mut socket).await;
    assert!(said.contains("413"), "{said}");
    let (status, _) = place.running.http("PUT", "/api/v1/bookie/gc", "{\"forceMajor\":true}").await;
    assert!(status.contains("200"), "{status}");
    place.running.stop().await;
}

/// All that the port says to these bytes before it closes the connection.
async fn said_to(running: &Running, request: &[u8]) -> String {
    let mut socket = connect(running).await;
    let _ = socket.write_all(request).await;
    rest(&mut socket).await
}

fn is_refused(said: &str) -> bool {
    said.starts_with("HTTP/1.1 4") || said.starts_with("HTTP/1.1 503")
}

/// Without a body, and the last one of its connection.
const ENDS: &str = "Content-Length: 0\r\nConnection: close\r\n";

/// S12: a path is compared with the routes and leads to no file, however it is written; queries are data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_lead_to_routes_alone() {
    let place = start_with(LONG).await;
    let dir = place._dir.path();
    std::fs::write(dir.join("secret"), "marker-4711").unwrap();
    let absolute = dir.join("secret").display().to_string();
    let up = "../".repeat(20);
    let paths = [
        absolute.clone(),
        format!("/{absolute}"),
        format!("/{up}{absolute}"),
        format!("/api/v1/bookie/{up}{absolute}"),
        format!("/api/v1/tier/{up}{absolute}"),
        format!("/api/v1/tier/{}", absolute.replace('/', "%2f")),
        format!("/api/v1/tier/{}{}", "..%2F".repeat(20), absolute.replace('/', "%2F")),
        format!("/{}{absolute}", "%2e%2e/".repeat(20)),
        format!("/{}{absolute}", "%252e%252e/".repeat(20)),
        format!("/..\\..\\..{absolute}"),
        format!("{absolute}%00"),
        "/metrics%00.txt".to_owned(),
        "/metrics/".to_owned(),
        "/metrics/../heartbeat".to_owned(),
        "/%6detrics".to_owned(),
        "//metrics".to_owned(),
        format!("http://localhost{absolute}"),
        format!("file://{absolute}"),
        "*".to_owned(),
        "metrics".to_owned(),
        String::new(),
        "/api/v1/bookie/tier/ledger?id=../../1".to_owned(),
        format!("/api/v1/bookie/tier/ledger?id={}", "9".repeat(5000)),
        format!("/api/v1/bookie/flow?connections={}", "9".repeat(5000)),
        format!("/heartbeat?{}", "a".repeat(100_000)),
        format!("/{}", "a/".repeat(50_000)),
    ];
    for path in paths {
        for method in ["GET", "PUT", "DELETE"] {
            let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{ENDS}\r\n");
            let said = said_to(&place.running, request.as_bytes()).await;
            // A head above the bound may be cut off by a reset.
            let is_long = request.len() > 16 * 1024;
            let short: String = path.chars().take(100).collect();
            assert!(is_refused(&said) || is_long && said.is_empty(), "{method} {short}: {said}");
            assert!(!said.contains("marker"), "{method} {short}: {said}");
        }
    }
    // Bytes that no request line and no header has.
    for request in [
        &b"GET /metrics\0 HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
        b"GET /metrics\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-A: a\0b\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /met\rrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let said = said_to(&place.running, request).await;
        assert!(said.starts_with("HTTP/1.1 400"), "{}: {said}", request.escape_ascii());
    }
    assert!(place.running.get("/heartbeat").await.contains("OK"));
    place.running.stop().await;
}

/// S12: a request whose end a proxy could see elsewhere is refused once, and the connection ends: no part of a body becomes a request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_hidden_in_another() {
    let place = start_with(LONG).await;
    let hidden = "PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let chunked = format!("0\r\n\r\n{hidden}");
    let long = format!("Content-Length: {}\r\n", chunked.len());
    for (heads, body) in [
        (format!("Content-Length: 0\r\nContent-Length: {}\r\n", hidden.len()), hidden),
        (format!("Content-Length: {}\r\nContent-Length: 0\r\n", hidden.len()), hidden),
        (format!("Content-Length: 0, {}\r\n", hidden.len()), hidden),
        ("Content-Length: +0\r\n".to_owned(), hidden),
        ("Content-Length: -1\r\n".to_owned(), hidden),
        ("Content-Length: 0x0\r\n".to_owned(), hidden),
        ("Content-Length: 99999999999999999999999\r\n".to_owned(), hidden),
        (format!("Transfer-Encoding: chunked\r\n{long}"), &chunked),
        (format!("{long}Transfer-Encoding: chunked\r\n"), &chunked),
        ("Transfer-Encoding: chunked\r\n".to_owned(), &chunked),
        (format!("{long}Transfer-Encoding: identity\r\n"), &chunked),
        (format!("{long}Transfer-Encoding: xchunked\r\n"), &chunked),
        (format!("{long}Transfer-Encoding: chunked, identity\r\n"), &chunked),
        (format!("{long}Transfer-Encoding : chunked\r\n"), &chunked),
        (format!("{long}Transfer-Encoding:\x0bchunked\r\n"), &chunked),
        (format!("{long}X: y\r\n Transfer-Encoding: chunked\r\n"), &chunked),
    ] {
        for method in ["PUT", "GET"] {
            let request =
                format!("{method} /api/v1/bookie/state HTTP/1.1\r\nHost: localhost\r\n{heads}\r\n{body}");
            let said = said_to(&place.running, request.as_bytes()).await;
            assert!(is_refused(&said), "{method} {heads:?}: {said}");
            assert_eq!(said.matches("HTTP/1.1").count(), 1, "{method} {heads:?}: {said}");
            assert!(!said.contains("Triggered"), "{method} {heads:?}: {said}");
        }
    }
    let (_, gc) = place.running.http("GET", "/api/v1/bookie/gc", "").await;
    assert!(gc.contains("false"), "{gc}");
    place.running.stop().await;
}

/// A peer that asks on and on, and takes no answer, is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_take_no_answers_are_closed() {
    let place = start_with(Duration::from_millis(100)).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(place.running.admin).await.unwrap();
    let asks = async {
        while socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.is_ok() {}
    };
    tokio::time::timeout(PATIENCE, asks).await.expect("it is closed");
    assert!(place.running.get("/heartbeat").await.contains("OK"));
    place.running.stop().await;
}

/// As many as there are places, each in the middle of a body that never comes: probes are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_pass_peers_that_send_no_body() {
    let place = start_with(LONG).await;
    let mut crowd = Vec::new();
    for _ in 0..PLACES {
        let mut socket = connect(&place.running).await;
        let head = b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n";
        socket.write_all(head).await.unwrap();
        let mut said = [0; 12];
        socket.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"HTTP/1.1 100", "the body is waited for");
        crowd.push(socket);
    }
    assert!(heartbeat(&place.running).await.contains("OK"));
    drop(crowd);
    place.running.stop().await;
}

/// As many as there are places, each with answers that it does not read: probes are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_pass_peers_that_take_no_answers() {
    let place = start_with(LONG).await;
    let mut crowd = Vec::new();
    for _ in 0..PLACES {
        let mut socket = small_socket(&place.running).await;
        let asks = METRICS.repeat(100);
        let asked = async { while socket.write_all(asks.as_bytes()).await.is_ok() {} };
        // Blocked, or so slow that it makes no difference.
        let _ = tokio::time::timeout(Duration::from_millis(100), asked).await;
        crowd.push(socket);
    }
    assert!(heartbeat(&place.running).await.contains("OK"));
    drop(crowd);
    place.running.stop().await;
}

/// The port of `prometheusStatsHttpPort` shows metrics, and refuses every other request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_for_metrics_serves_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let config = BookieConfig { admin_scope: AdminScope::Metrics, ..config(dir.path()) };
    let running = start(config, &cluster().await).await;
    assert!(running.get("/metrics").await.contains("bookie_SERVER_STATUS"));
    assert_eq!(running.get("/heartbeat").await, "OK\n");
    for (method, path) in [
        ("GET", "/api/v1/bookie/state"),
        ("GET", "/api/v1/bookie/flow"),
        ("GET", "/"),
        ("GET", "/console/main.js"),
        ("GET", "/api/v1/console/history"),
        ("PUT", "/api/v1/bookie/gc"),
        ("PUT", "/api/v1/bookie/scrub"),
    ] {
        let (head, _) = running.http(method, path, "{}").await;
        assert!(head.contains("404"), "{method} {path}: {head}");
    }
    running.stop().await;
}
