//! The admin port over TLS.

use super::access::Access;
use super::extension::{
    AdminExtension, Extending, ExtensionAnswer, ExtensionFault, ExtensionRequest, Part, open_tls,
    serve_extension,
};
use super::port::{Serving, serve};
use crate::certificates::{Authority, Issued, Use};
use crate::latch::Latch;
use crate::memory::ADMIN_PLACES as PLACES;
use crate::tls::{Tls, TlsConfig, TlsSettings};
use axum::Router;
use bindery_flow::ByteBudget;
use bindery_metrics::Exposition;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

/// Far above anything that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn store(dir: &Path, own: &Issued) -> std::path::PathBuf {
    let path = dir.join("admin.pem");
    std::fs::write(&path, format!("{}{}", own.key, own.certificate)).unwrap();
    path
}

fn config(dir: &Path, authority: &Authority, are_clients_asked: bool, is_optional: bool) -> TlsConfig {
    let key = store(dir, &authority.issue(Use::Bookie));
    let authorities = dir.join("authorities.pem");
    std::fs::write(&authorities, &authority.certificate).unwrap();
    TlsConfig {
        client_authorities: are_clients_asked.then_some(authorities),
        serves_without_certificate: is_optional,
        refresh: Some(Duration::from_millis(50)),
        settings: TlsSettings::ADMIN,
        ..TlsConfig::new(key.clone(), key)
    }
}

struct Port {
    address: SocketAddr,
    stop: Arc<Latch>,
    task: JoinHandle<()>,
}

impl Port {
    async fn start(config: TlsConfig, patience: Duration) -> Port {
        let (listener, stop) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::new(Latch::default()));
        let address = listener.local_addr().unwrap();
        let router =
            Router::new().route("/thing", axum::routing::get(|| async { "seen" }).put(|| async { "done" }));
        let tls = Some(Arc::new(Tls::open(config, crate::turns::Turns::new(1)).unwrap()));
        let serving = Serving { router, access: Access::for_strangers(None), tls };
        let answers = ByteBudget::new("admin", 1 << 20);
        let task = tokio::spawn(serve(listener, serving, answers, patience, stop.clone()));
        Port { address, stop, task }
    }

    /// The status of the answer.
    async fn ask(&self, client: &Arc<ClientConfig>, method: &str) -> io::Result<u16> {
        let socket = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        status(TlsConnector::from(client.clone()).connect(name, socket).await?, method).await
    }

    async fn end(self) {
        self.stop.set();
        self.task.await.unwrap();
    }
}

async fn status(mut stream: impl AsyncRead + AsyncWrite + Unpin, method: &str) -> io::Result<u16> {
    let request = format!("{method} /thing HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    let status = said.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::other(format!("no answer: {said:?}")))
}

#[tokio::test]
async fn a_certificate_of_the_role_admin_allows_changes_and_any_other_a_look() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new("authority"), Authority::new("stranger"));
    let own = |unit| authority.client(Some(&authority.issue_to(Use::Client, unit)), &[]);
    let (admin, reader, nobody) =
        (own("0:reader,admin"), own("0:reader;1:admin"), authority.client(None, &[]));
    let strange = authority.client(Some(&stranger.issue_to(Use::Client, "0:admin")), &[]);

    let port = Port::start(config(dir.path(), &authority, true, true), PATIENCE).await;
    for (client, change) in [(&admin, 200), (&reader, 403), (&nobody, 403)] {
        assert_eq!(port.ask(client, "GET").await.unwrap(), 200);
        assert_eq!(port.ask(client, "PUT").await.unwrap(), change);
    }
    assert!(port.ask(&strange, "GET").await.is_err());
    assert!(port.ask(&stranger.client(None, &[]), "GET").await.is_err(), "it does not trust the port");
    let plain = TcpStream::connect(port.address).await.unwrap();
    assert!(status(plain, "GET").await.is_err(), "nothing is served in plain text");
    port.end().await;

    // As Java's port, which asks everybody.
    let port = Port::start(config(dir.path(), &authority, true, false), PATIENCE).await;
    assert_eq!(port.ask(&reader, "GET").await.unwrap(), 200);
    assert!(port.ask(&nobody, "GET").await.is_err());
    port.end().await;

    let port = Port::start(config(dir.path(), &authority, false, false), PATIENCE).await;
    assert_eq!(port.ask(&admin, "PUT").await.unwrap(), 403, "nobody verified that certificate");
    port.end().await;
}

/// A process without a bookie, whose extension cannot do its work.
struct Ailing;

impl AdminExtension for Ailing {
    fn fault(&self) -> Option<ExtensionFault> {
        Some(ExtensionFault { alarm: "no bucket".to_owned(), is_of_store: true })
    }
    fn answer<'a>(&'a self, _: ExtensionRequest<'a>) -> Extending<'a, ExtensionAnswer> {
        Box::pin(async { ExtensionAnswer::Json("{}".to_owned()) })
    }
    fn expose<'a>(&'a self, _: &'a mut Exposition) -> Extending<'a, ()> {
        Box::pin(async {})
    }
}

/// A tierer of its own says of its port what a bookie says of its own: how long the certificate lasts, and alarms.
#[tokio::test]
async fn the_port_of_an_extension_tells_of_its_certificate_and_of_faults() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let tls = open_tls(config(dir.path(), &authority, false, false)).await.unwrap();
    let (listener, stop) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::new(Latch::default()));
    let address = listener.local_addr().unwrap();
    let access = Access::for_strangers(None);
    let serving = tokio::spawn(serve_extension(
        listener,
        access,
        Some(tls),
        (Part::Tier, Arc::new(Ailing)),
        stop.clone(),
    ));
    let client = authority.client(None, &[]);
    let get = async |path: &str| {
        let socket = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(client.clone()).connect(name, socket).await.unwrap();
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        said.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    let state = async || serde_json::from_str::<serde_json::Value>(&get("/api/v1/tier/state").await).unwrap();
    let metrics = get("/metrics").await;
    for line in [
        "bindery_tls_certificate_expires_seconds{port=\"admin\"} 2208988800",
        "bindery_tls_reload_failed{port=\"admin\"} 0",
        "bindery_tier_reachable 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    assert_eq!(state().await, serde_json::json!({ "running": false, "alarms": ["no bucket"] }));

    std::fs::write(dir.path().join("admin.pem"), "no key").unwrap();
    let failed = async {
        while state().await["alarms"].as_array().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, failed).await.unwrap();
    let state = state().await;
    assert!(state["alarms"][1].as_str().unwrap().contains("cannot reload the TLS files"), "{state}");
    assert!(get("/metrics").await.contains("bindery_tls_reload_failed{port=\"admin\"} 1"));
    stop.set();
    serving.await.unwrap();
}

/// Port invariants 1 and 3: silent peers in the handshake keep nobody out.
#[tokio::test]
async fn peers_that_do_not_finish_their_handshake_lose_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let port = Port::start(config(dir.path(), &authority, false, false), PATIENCE).await;
    let mut silent = Vec::new();
    for at in 0..3 * PLACES {
        let mut socket = TcpStream::connect(port.address).await.unwrap();
        // Nothing, or the begin of a record, or of one that is none of TLS.
        let begin: &[u8] = [&b""[..], &[0x16, 3, 1, 1, 0], b"GET / HTTP"][at % 3];
        socket.write_all(begin).await.unwrap();
        silent.push(socket);
    }
    assert_eq!(port.ask(&authority.client(None, &[]), "GET").await.unwrap(), 200);
    drop(silent);
    port.end().await;

    let port = Port::start(config(dir.path(), &authority, false, false), Duration::from_millis(50)).await;
    let mut silent = TcpStream::connect(port.address).await.unwrap();
    assert_eq!(silent.read(&mut [0; 1]).await.unwrap_or(0), 0, "closed after the patience of the port");
    port.end().await;
}

/// Port invariant 3: a first message that is announced and goes on and on is not kept.
#[tokio::test]
async fn a_handshake_without_end_is_ended_before_it_takes_memory() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    // Only the bytes can be why it ends.
    let port = Port::start(config(dir.path(), &authority, true, true), Duration::from_secs(24 * 3600)).await;
    let mut socket = TcpStream::connect(port.address).await.unwrap();
    // 60,000 bytes are announced, and 40,000 come.
    let mut message = vec![1, 0, 0xea, 0x60];
    message.resize(40_000, 0);
    for piece in message.chunks(1000) {
        let record = [&[22, 3, 1], &(piece.len() as u16).to_be_bytes()[..], piece].concat();
        if socket.write_all(&record).await.is_err() {
            break;
        }
    }
    let ended = async { while socket.read(&mut [0; 100]).await.is_ok_and(|count| count > 0) {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("it is closed");
    assert_eq!(port.ask(&authority.client(None, &[]), "GET").await.unwrap(), 200);
    port.end().await;
}

/// Port invariant 3: ciphertext behind the handshake has to bring a request, in records of some bytes if need be.
#[tokio::test]
async fn ciphertext_with_hardly_any_request_in_it_ends_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let port =
        Port::start(config(dir.path(), &authority, false, false), Duration::from_secs(24 * 3600)).await;
    let client = authority.client(None, &[]);
    let head = format!("GET /thing HTTP/1.0\r\nHost: localhost\r\nPadding: {}\r\n\r\n", "x".repeat(12_000));
    for (record, is_served) in [(16_384, true), (40, true), (1, false)] {
        let socket = TcpStream::connect(port.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(client.clone()).connect(name, socket).await.unwrap();
        for some in head.as_bytes().chunks(record) {
            if stream.write_all(some).await.is_err() || stream.flush().await.is_err() {
                break;
            }
        }
        let mut said = String::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut said)).await;
        assert!(ended.is_ok(), "it is answered or closed");
        assert_eq!(said.contains("200 OK"), is_served, "records of {record}: {said:?}");
    }
    port.end().await;
}

#[tokio::test]
async fn a_renewed_certificate_is_presented_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, renewed) = (Authority::new("authority"), Authority::new("renewed"));
    let port = Port::start(config(dir.path(), &authority, false, false), PATIENCE).await;
    assert_eq!(port.ask(&authority.client(None, &[]), "GET").await.unwrap(), 200);
    store(dir.path(), &renewed.issue(Use::Bookie));
    let client = renewed.client(None, &[]);
    let served = async {
        while port.ask(&client, "GET").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("the new certificate is presented");
    port.end().await;
}
