//! A whole bookie that speaks TLS: what it registers, and files that change while it serves.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "what an operator does to files")]

use crate::common::PATIENCE;
use crate::common::certificates::{Authority, Files, Use, client_of};
use crate::common::frames::{KEY, OwnedV2, add_frame, body, framed, read_request};
use crate::common::whole::{Running, cluster, config, refused, start};
use crate::common::wire::Client;
use bindery_server::tls::{TlsConfig, TlsSettings};
use bindery_types::BookieId;
use bindery_wire::{ErrorCode, v2};
use rustls::{ClientConfig, version};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

fn tls(files: &Files, is_mutual: bool) -> TlsConfig {
    TlsConfig {
        client_authorities: is_mutual.then(|| files.authorities.clone()),
        refresh: Some(Duration::from_millis(50)),
        ..TlsConfig::new(&files.certificates, &files.key)
    }
}

async fn connect(bookie: &Running, config: &Arc<ClientConfig>) -> std::io::Result<Client> {
    Client::tls_on(TcpStream::connect(bookie.address).await?, config.clone()).await
}

async fn add(client: &mut Client, entry: i64) -> ErrorCode {
    client.send(&add_frame(1, entry, 100, v2::Flags::NONE, KEY)).await;
    client.next_v2().await.code()
}

async fn until(what: impl AsyncFn() -> bool) {
    let waited = async {
        while !what().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_speaks_tls_says_so_where_it_is_registered() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = cluster().await;
    let authority = Authority::new("authority");
    let files = Files::write(dir.path(), &authority.issue_until(Use::Bookie, 2040), "");
    let mut with_tls = config(&dir.path().join("data"));
    with_tls.tls = Some(tls(&files, false));
    let bookie = start(with_tls.clone(), &cluster).await;
    let id = BookieId::new("bookie-0").unwrap();
    let info = bookie.layout.registration().service_info(&id).await.unwrap().unwrap().unwrap();
    let extensions: Vec<Vec<String>> =
        info.endpoints.iter().map(|endpoint| endpoint.extensions.clone()).collect();
    assert_eq!(extensions, [vec!["tls".to_owned()], Vec::new()], "the client port's and the admin port's");
    assert_eq!(bookie.metric("bindery_tls_certificate_expires_seconds").await, 2_208_988_800);
    bookie.stop().await;

    // Files that cannot be used prevent a start before anything is touched.
    std::fs::write(&files.key, "hello").unwrap();
    let said = refused(with_tls, &cluster).await;
    assert!(said.contains("tlsKeyStore=") && said.contains("bookie.key"), "{said}");
}

/// A bookie that speaks TLS on its admin port alone tells how long that certificate lasts: alarms of monitoring rest on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_the_admin_port_is_measured_when_clients_have_none() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let own = authority.issue_until(Use::Bookie, 2040);
    let pem = dir.path().join("admin.pem");
    std::fs::write(&pem, format!("{}{}", own.key, own.certificate)).unwrap();
    let mut with_tls = config(&dir.path().join("data"));
    with_tls.admin_tls = Some(TlsConfig { settings: TlsSettings::ADMIN, ..TlsConfig::new(&pem, &pem) });
    let bookie = start(with_tls, &cluster().await).await;
    let socket = TcpStream::connect(bookie.admin).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(authority.client(None, &[]));
    let mut stream = connector.connect("localhost".try_into().unwrap(), socket).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    let line = "bindery_tls_certificate_expires_seconds{port=\"admin\"} 2208988800";
    assert!(said.lines().any(|found| found == line), "{said}");
    bookie.stop().await;
}

/// TLS invariants 1 and 2: certificates, key and authorities are replaced while requests are under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_replaced_without_a_request_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let files = Files::write(dir.path(), &first.issue(Use::Bookie), &first.certificate);
    let mut settings = config(&dir.path().join("data"));
    settings.tls = Some(tls(&files, true));
    let bookie = start(settings, &cluster().await).await;
    let (own_first, own_second) = (first.issue(Use::Client), second.issue(Use::Client));
    let (as_first, as_second) = (first.client(Some(&own_first), &[]), second.client(Some(&own_second), &[]));
    let mut old = connect(&bookie, &as_first).await.unwrap();
    assert_eq!(add(&mut old, 0).await, ErrorCode::Ok);
    assert!(connect(&bookie, &as_second).await.is_err());

    Files::write(dir.path(), &second.issue(Use::Bookie), &second.certificate);
    until(async || bookie.metric("bindery_tls_reloads").await >= 1).await;
    until(async || connect(&bookie, &as_second).await.is_ok()).await;
    let mut new = connect(&bookie, &as_second).await.unwrap();
    assert_eq!(add(&mut new, 1).await, ErrorCode::Ok);
    assert_eq!(add(&mut old, 2).await, ErrorCode::Ok, "a connection keeps what it began with");
    assert!(connect(&bookie, &as_first).await.is_err());

    // A file that cannot be loaded changes nothing, and is an alarm until it is mended.
    let alarms = async |bookie: &Running| bookie.json("/api/v1/bookie/state").await["alarms"].clone();
    assert_eq!(alarms(&bookie).await, serde_json::json!([]));
    std::fs::write(&files.key, "hello").unwrap();
    until(async || bookie.metric("bindery_tls_reload_failed").await == 1).await;
    let said = alarms(&bookie).await.to_string();
    assert!(said.contains("cannot reload the TLS files") && said.contains("tlsKeyStore"), "{said}");
    let mut still = connect(&bookie, &as_second).await.unwrap();
    assert_eq!(add(&mut still, 3).await, ErrorCode::Ok);
    Files::write(dir.path(), &second.issue(Use::Bookie), &second.certificate);
    until(async || bookie.metric("bindery_tls_reload_failed").await == 0).await;
    assert_eq!(alarms(&bookie).await, serde_json::json!([]));
    drop((old, new, still));
    bookie.stop().await;
}

/// A peer that works for as long as it is told to, and what it has done.
struct Worker {
    rounds: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// Entries of a round.
const BURST: i64 = 8;

impl Worker {
    /// Adds and reads in ledger `ledger`, in each round over a connection of its own if it `reconnects`. Panics with the first request
    /// or connection that fails.
    fn start(
        address: SocketAddr,
        config: Arc<ClientConfig>,
        ledger: i64,
        reconnects: bool,
        stop: Arc<AtomicBool>,
    ) -> Worker {
        let rounds = Arc::new(AtomicU64::new(0));
        let done = rounds.clone();
        let connect = async move || {
            let socket = TcpStream::connect(address).await.unwrap();
            Client::tls_on(socket, config.clone()).await.unwrap()
        };
        let task = tokio::spawn(async move {
            let mut client = connect().await;
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if reconnects {
                    client = connect().await;
                }
                let entries = round * BURST..(round + 1) * BURST;
                for entry in entries.clone() {
                    client.send(&add_frame(ledger, entry, 300, v2::Flags::NONE, KEY)).await;
                }
                for entry in entries.clone() {
                    assert_eq!(client.next_v2().await, OwnedV2::Add(ErrorCode::Ok, ledger, entry));
                }
                for entry in entries {
                    let read = client.v2(v2::Request::Read(read_request(ledger, entry))).await;
                    let expected = body(ledger, entry, entry - 1, 300);
                    assert!(read == OwnedV2::Read(ErrorCode::Ok, ledger, entry, expected), "entry {entry}");
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        Worker { rounds, task }
    }

    /// Two whole rounds from now: one that begins after this.
    async fn goes_on(&self) {
        let wanted = self.rounds.load(Ordering::Relaxed) + 2;
        until(async || self.task.is_finished() || self.rounds.load(Ordering::Relaxed) >= wanted).await;
        assert!(!self.task.is_finished(), "it failed");
    }
}

/// True if the bookie has a certificate that this client trusts, and serves it.
async fn is_served(bookie: &Running, config: &Arc<ClientConfig>) -> bool {
    let Ok(mut client) = connect(bookie, config).await else { return false };
    client.flood(framed(v2::Request::Read(read_request(99, 0))));
    // A client of TLS 1.3 is done before the bookie has seen its certificate.
    client.try_next_v2().await.is_some()
}

/// TLS invariants 1 and 2 under load: certificate, key and authorities are replaced ten times, once by a key that is none, and no
/// request and no connection fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_reloads_under_load_are_not_noticed() {
    const BROKEN: usize = 5;
    let dir = tempfile::tempdir().unwrap();
    let lasting = Authority::new("of the clients");
    let generations: Vec<Authority> = (0..=10).map(|n| Authority::new(&format!("generation {n}"))).collect();
    let replace = |n: usize| {
        let believed = format!("{}{}", lasting.certificate, generations[n].certificate);
        Files::write(dir.path(), &generations[n].issue(Use::Bookie), &believed)
    };
    // Trusts, and is trusted by, one generation alone: served when all files are loaded.
    let only: Vec<_> = generations
        .iter()
        .map(|authority| authority.client(Some(&authority.issue(Use::Client)), &[]))
        .collect();
    let files = replace(0);
    let mut settings = config(&dir.path().join("data"));
    settings.tls = Some(tls(&files, true));
    let bookie = start(settings, &cluster().await).await;

    let own = lasting.issue(Use::Client);
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<Worker> = [(1, false), (2, false), (3, true), (4, true)]
        .into_iter()
        .zip([&version::TLS12, &version::TLS13, &version::TLS12, &version::TLS13])
        .map(|((ledger, reconnects), version)| {
            let trusting = client_of(&generations, Some(&own), &[version]);
            Worker::start(bookie.address, trusting, ledger, reconnects, stop.clone())
        })
        .collect();
    for n in 1..generations.len() {
        if n == BROKEN {
            std::fs::write(&files.key, "hello").unwrap();
            until(async || bookie.metric("bindery_tls_reload_failed").await == 1).await;
            let alarms = bookie.json("/api/v1/bookie/state").await["alarms"].to_string();
            assert!(alarms.contains("cannot reload the TLS files"), "{alarms}");
            for worker in &workers {
                worker.goes_on().await;
            }
            assert!(is_served(&bookie, &only[n - 1]).await, "those loaded before stay in use");
        }
        replace(n);
        until(async || is_served(&bookie, &only[n]).await).await;
        for worker in &workers {
            worker.goes_on().await;
        }
    }
    for (n, config) in only.iter().enumerate() {
        assert_eq!(is_served(&bookie, config).await, n + 1 == only.len(), "generation {n}");
    }
    assert_eq!(bookie.metric("bindery_tls_reload_failed").await, 0);
    assert_eq!(bookie.json("/api/v1/bookie/state").await["alarms"], serde_json::json!([]));
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.task.await.unwrap();
    }
    bookie.stop().await;
}
