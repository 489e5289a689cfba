use super::*;
use crate::certificates::{Authority, Issued, Use};
use bindery_types::BookieId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, crypto::ring};
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

#[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
fn write(dir: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// A bookie's side: its certificate, and whose clients it accepts, if it asks.
struct Bookie<'a> {
    own: &'a Issued,
    clients_of: Option<&'a Authority>,
}

impl Bookie<'_> {
    fn config(&self, versions: &[TlsVersion]) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let versions: Vec<_> = versions.iter().map(|version| version.supported()).collect();
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&versions).unwrap();
        let builder = match self.clients_of {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                let pem = authority.certificate.as_bytes();
                roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let certificate = CertificateDer::from_pem_slice(self.own.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(self.own.key.as_bytes()).unwrap();
        Arc::new(builder.with_single_cert(vec![certificate], key).unwrap())
    }
}

/// The handshake, and the first byte of an answer behind it; or why there is none.
async fn outcome(
    tls: &Arc<Tls>,
    bookie: &Bookie<'_>,
    host: &str,
    versions: &[TlsVersion],
) -> Result<(), String> {
    let (near, far) = tokio::io::duplex(1 << 16);
    let acceptor = TlsAcceptor::from(bookie.config(versions));
    let bookie = tokio::spawn(async move {
        if let Ok(mut stream) = acceptor.accept(far).await {
            let _ = stream.write_all(b"!").await;
            let _ = stream.shutdown().await;
        }
    });
    let to = BookieAddress { bookie: BookieId::new("b").unwrap(), host: host.to_owned(), port: 3181 };
    let upgraded = tls.upgrade(ByteStream::boxed(near), &to).await;
    bookie.await.unwrap();
    let ByteStream::Boxed(stream) = upgraded? else { panic!("never TCP") };
    let mut byte = [0];
    let read = stream.into_inner().read_exact(&mut byte).await;
    read.map(drop).map_err(|error| tls.late_refusal(&error).unwrap_or_else(|| error.to_string()))
}

const BOTH: [TlsVersion; 2] = [TlsVersion::V1_2, TlsVersion::V1_3];

fn open(options: TlsOptions) -> Arc<Tls> {
    Arc::new(Tls::open(options).unwrap())
}

/// Invariant 1, and that each refusal says who refused, why, and what to do.
#[tokio::test]
async fn a_bookie_is_trusted_for_its_authority_its_time_and_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new("bookies"), Authority::new("others"));
    let file = write(dir.path(), "authority.pem", &authority.certificate);
    let options = TlsOptions::new().authority(&file);
    let (tls, any_name) = (open(options.clone()), open(options.skip_name_check()));
    let right = authority.issue(Use::Bookie);
    let named = authority.issue_for(&["bookie-7.example", "10.9.8.7"], Use::Bookie, 2040);
    let cases: [(&str, Issued, &str, &[&str]); 6] = [
        ("name", right, "localhost", &[]),
        (
            "authority",
            other.issue(Use::Bookie),
            "localhost",
            &["none of the authorities", "authority.pem", "--tls-ca"],
        ),
        ("time", authority.issue_until(Use::Bookie, 2001), "localhost", &["it expired", "days ago"]),
        (
            "host",
            named,
            "localhost",
            &["for bookie-7.example, 10.9.8.7, not for localhost", "DNS:localhost", "--tls-skip-name-check"],
        ),
        ("purpose", authority.issue(Use::Client), "localhost", &["not for servers", "serverAuth"]),
        (
            "address",
            authority.issue_for(&["localhost"], Use::Bookie, 2040),
            "127.0.0.1",
            &["not for 127.0.0.1", "IP:127.0.0.1"],
        ),
    ];
    for (case, own, host, words) in &cases {
        let bookie = Bookie { own, clients_of: None };
        for version in BOTH {
            let found = outcome(&tls, &bookie, host, &[version]).await;
            match &found {
                Ok(()) => assert!(words.is_empty(), "{case}"),
                Err(why) => {
                    assert!(why.contains("this client refuses the bookie's certificate"), "{case}: {why}");
                    assert!(
                        words.iter().all(|word| why.contains(word)) && !words.is_empty(),
                        "{case}: {why}"
                    );
                }
            }
            // Only the name does not count then.
            let is_trusted = outcome(&any_name, &bookie, host, &[version]).await.is_ok();
            assert_eq!(is_trusted, matches!(*case, "name" | "host" | "address"), "{case}");
        }
    }
    let right = Bookie { own: &cases[0].1, clients_of: None };
    outcome(&tls, &right, "127.0.0.1", &BOTH).await.unwrap();
    let why = outcome(&tls, &right, "not a host", &BOTH).await.unwrap_err();
    assert!(why.contains("no certificate can be for"), "{why}");
}

#[tokio::test]
async fn a_bookie_that_asks_for_a_certificate_says_what_it_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new("cluster"), Authority::new("others"));
    let own = authority.issue(Use::Bookie);
    let bookie = Bookie { own: &own, clients_of: Some(&authority) };
    let options = TlsOptions::new().authority(write(dir.path(), "authority.pem", &authority.certificate));
    let with = |name: &str, issued: &Issued| {
        let certificate = write(dir.path(), &format!("{name}.pem"), &issued.certificate);
        open(options.clone().identity(certificate, write(dir.path(), &format!("{name}.key"), &issued.key)))
    };
    let right = with("right", &authority.issue(Use::Client));
    let foreign = with("foreign", &other.issue(Use::Client));
    let expired = with("expired", &authority.issue_until(Use::Client, 2001));
    let none = open(options.clone());
    for version in BOTH {
        outcome(&right, &bookie, "localhost", &[version]).await.unwrap();
        let why = outcome(&none, &bookie, "localhost", &[version]).await.unwrap_err();
        assert!(why.contains("the bookie refuses a client without a certificate"), "{version:?}: {why}");
        assert!(why.contains("--tls-cert and --tls-key"), "{why}");
        for (tls, file) in [(&foreign, "foreign.pem"), (&expired, "expired.pem")] {
            let why = outcome(tls, &bookie, "localhost", &[version]).await.unwrap_err();
            assert!(why.contains("the bookie refuses this client's certificate"), "{version:?}: {why}");
            assert!(why.contains(file) && why.contains("tlsTrustStore"), "{why}");
        }
    }
}

#[tokio::test]
async fn versions_without_a_common_one_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("bookies");
    let options = TlsOptions::new()
        .authority(write(dir.path(), "authority.pem", &authority.certificate))
        .versions([TlsVersion::V1_2]);
    let own = authority.issue(Use::Bookie);
    let bookie = Bookie { own: &own, clients_of: None };
    let why = outcome(&open(options.clone()), &bookie, "localhost", &[TlsVersion::V1_3]).await.unwrap_err();
    assert!(why.contains("tlsEnabledProtocols"), "{why}");
    let none = options.versions([TlsVersion::V1_3]).ciphers(["ECDHE-RSA-AES128-GCM-SHA256".parse().unwrap()]);
    assert!(Tls::open(none).unwrap_err().to_string().contains("leave nothing to speak"));
}

#[test]
fn files_that_cannot_be_used_are_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("bookies");
    let good = write(dir.path(), "authority.pem", &authority.certificate);
    let client = authority.issue(Use::Client);
    let certificate = write(dir.path(), "client.pem", &client.certificate);
    let key = write(dir.path(), "other.key", &authority.issue(Use::Client).key);
    let secret = write(dir.path(), "secret.txt", "my secret");
    let refused = |options: TlsOptions| Tls::open(options).unwrap_err().to_string();
    let said = refused(TlsOptions::new().authority(dir.path().join("none.pem")));
    assert!(said.contains("authorities to trust in") && said.contains("none.pem"), "{said}");
    let said = refused(TlsOptions::new().authority(&secret));
    assert!(said.contains("no certificate in it") && !said.contains("my secret"), "{said}");
    let said = refused(TlsOptions::new().authority(&good).identity(&certificate, &secret));
    assert!(said.contains("client's key in") && !said.contains("my secret"), "{said}");
    let said = refused(TlsOptions::new().authority(&good).identity(&certificate, key));
    assert!(said.contains("cannot be used together"), "{said}");
    // The stores of a Java client are not read: each is named, with the command that makes PEM files of it.
    let jks: &[u8] = &[0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2];
    for (store, command) in
        [(jks, "keytool -importkeystore"), (&[0x30, 0x82, 9, 0x8a], "openssl pkcs12 -in FILE")]
    {
        let store = write(dir.path(), "client.store", store);
        for options in [
            TlsOptions::new().authority(&store),
            TlsOptions::new().authority(&good).identity(&store, &store),
            TlsOptions::new().authority(&good).identity(&certificate, &store),
        ] {
            let said = refused(options);
            assert!(said.contains("client.store: ") && said.contains(command), "{said}");
        }
    }
}

/// Invariants 2 and 3.
#[tokio::test]
async fn files_that_changed_count_for_new_connections_and_bad_ones_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let file = write(dir.path(), "authority.pem", &first.certificate);
    let tls = open(TlsOptions::new().authority(&file));
    let (of_first, of_second) = (first.issue(Use::Bookie), second.issue(Use::Bookie));
    let trusts = async |own: &Issued| {
        outcome(&tls, &Bookie { own, clients_of: None }, "localhost", &BOTH).await.is_ok()
    };
    let failed = || tls.state.lock().reload_failed.clone();

    write(dir.path(), "authority.pem", "half a file");
    tls.reload();
    assert!(failed().unwrap().contains("authority.pem") && trusts(&of_first).await);
    write(dir.path(), "authority.pem", &second.certificate);
    tls.reload();
    assert!(failed().is_none() && trusts(&of_second).await && !trusts(&of_first).await);

    // One look at a time, an interval apart.
    let (looked_at, later) = (tls.state.lock().looked_at, Instant::now() + 2 * LOOK_INTERVAL);
    assert!(!tls.begin_look(looked_at));
    assert!(tls.begin_look(later) && !tls.begin_look(later + LOOK_INTERVAL));
    tls.reload();
    assert!(tls.begin_look(later));
    // The system's authorities are read once.
    assert!(!TlsOptions::new().has_files());
}

#[test]
fn debug_shows_files_and_nothing_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("bookies");
    let client = authority.issue(Use::Client);
    let options = TlsOptions::new()
        .authority(write(dir.path(), "authority.pem", &authority.certificate))
        .identity(write(dir.path(), "c.pem", &client.certificate), write(dir.path(), "c.key", &client.key));
    let shown = format!("{:?}", open(options));
    assert!(shown.contains("c.key") && !shown.contains("PRIVATE") && shown.len() < 1000, "{shown}");
}
