//! A whole bookie that speaks TLS: what it registers, and files that change while it serves.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "what an operator does to files")]

use crate::common::PATIENCE;
use crate::common::certificates::{Authority, Files, Use};
use crate::common::frames::{KEY, add_frame};
use crate::common::whole::{Running, cluster, config, refused, start};
use crate::common::wire::Client;
use bindery_server::tls::TlsConfig;
use bindery_types::BookieId;
use bindery_wire::{ErrorCode, v2};
use rustls::ClientConfig;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

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
    assert!(said.contains("cannot be reloaded") && said.contains("tlsKeyStore"), "{said}");
    let mut still = connect(&bookie, &as_second).await.unwrap();
    assert_eq!(add(&mut still, 3).await, ErrorCode::Ok);
    Files::write(dir.path(), &second.issue(Use::Bookie), &second.certificate);
    until(async || bookie.metric("bindery_tls_reload_failed").await == 0).await;
    assert_eq!(alarms(&bookie).await, serde_json::json!([]));
    drop((old, new, still));
    bookie.stop().await;
}

/// Ten replacements under load: no request and no connection fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_reloads_under_load_are_not_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority");
    let renew = |dir: &Path| Files::write(dir, &authority.issue(Use::Bookie), "");
    let files = renew(dir.path());
    let mut settings = config(&dir.path().join("data"));
    settings.tls = Some(tls(&files, false));
    let bookie = start(settings, &cluster().await).await;
    let as_client = authority.client(None, &[]);
    let mut steady = connect(&bookie, &as_client).await.unwrap();
    let mut entry = 0;
    for round in 0..10 {
        renew(dir.path());
        let mut is_reloaded = false;
        while !is_reloaded {
            assert_eq!(add(&mut steady, entry).await, ErrorCode::Ok);
            let mut fresh = connect(&bookie, &as_client).await.unwrap();
            assert_eq!(add(&mut fresh, entry + 1).await, ErrorCode::Ok);
            entry += 2;
            is_reloaded = bookie.metric("bindery_tls_reloads").await > round;
        }
    }
    drop(steady);
    bookie.stop().await;
}
