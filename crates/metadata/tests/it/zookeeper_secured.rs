//! TLS and SASL of the ZooKeeper driver, with a server of this test in ZooKeeper's place, which sees every message. A real ZooKeeper
//! is in `tests/interop/zookeeper-secured`.

#![allow(clippy::disallowed_methods, reason = "what an operator puts there")]

use bindery_metadata::store::{MetadataStore, SessionState, StoreError};
use bindery_metadata::zookeeper::{self, SaslLogin, Security, TlsOptions, ZooKeeperOptions, ZooKeeperStore};
use bindery_sasl::Secret;
use bindery_sasl::digest_md5::{Ha1, Nonce, Server, ServerStep, ZOOKEEPER_HOST, ZOOKEEPER_SERVICE};
use bindery_tls::store::StoreFile;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

const OP_EXISTS: i32 = 3;
const OP_SASL: i32 = 102;
const ERR_NO_NODE: i32 = -101;
const ERR_AUTH_FAILED: i32 = -115;
/// Of `sessionRequireClientSASLAuth`.
const ERR_LOGIN_WANTED: i32 = -124;

struct Authority {
    params: CertificateParams,
    key: KeyPair,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Authority { params, key, certificate }
    }

    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate =
            CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        (certificate, key)
    }

    /// TLS of a server with this name; `wants` is the authority of its clients.
    fn server(&self, name: &str, wants: Option<&Authority>) -> Arc<ServerConfig> {
        let (certificate, key) = self.issue(name);
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match wants {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.certificate.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.unwrap())
            }
        };
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }

    fn trusted(&self, dir: &Path) -> StoreFile {
        store("zkTlsTrustStore", dir, &self.certificate.pem())
    }
}

fn store(setting: &'static str, dir: &Path, pem: &str) -> StoreFile {
    let path = dir.join(setting);
    std::fs::write(&path, pem).unwrap();
    StoreFile::new(setting, path)
}

/// How a server of this test behaves.
#[derive(Clone, Default)]
struct Conduct {
    tls: Option<Arc<ServerConfig>>,
    /// Logins are expected, with this password.
    password: Option<&'static str>,
}

/// A server that opens sessions and knows no node. Sending `false` cuts its connections, and it takes none until `true`.
struct FakeServer {
    address: String,
    open: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl FakeServer {
    async fn start(conduct: Conduct) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        let (open, gate) = watch::channel(true);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (mut gate, conduct) = (gate.clone(), conduct.clone());
                connections.spawn(async move {
                    if !*gate.borrow() {
                        return;
                    }
                    tokio::select! {
                        _ = serve(socket, conduct) => {}
                        _ = gate.wait_for(|open| !open) => {}
                    }
                });
            }
        });
        FakeServer { address, open, task }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(socket: TcpStream, conduct: Conduct) -> std::io::Result<()> {
    match conduct.tls {
        None => talk(socket, conduct.password).await,
        Some(tls) => talk(TlsAcceptor::from(tls).accept(socket).await?, conduct.password).await,
    }
}

async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    password: Option<&str>,
) -> std::io::Result<()> {
    receive(&mut stream).await?;
    let mut opened = vec![0; 4];
    opened.extend(10_000i32.to_be_bytes());
    opened.extend(77i64.to_be_bytes());
    opened.extend(16i32.to_be_bytes());
    opened.extend([7; 16]);
    send(&mut stream, &opened).await?;
    let nonce = Nonce::draw(|| 4);
    let mut login = password.map(|_| Server::new(ZOOKEEPER_SERVICE, ZOOKEEPER_HOST, ZOOKEEPER_HOST, nonce));
    loop {
        let request = receive(&mut stream).await?;
        let opcode = i32::from_be_bytes(request[4..8].try_into().unwrap());
        let mut reply = request[..4].to_vec();
        reply.extend([0; 8]);
        match (opcode, login.take()) {
            (OP_SASL, Some(mut exchange)) => {
                let secret = Secret::new(password.unwrap());
                let known = |user: &str| (user == "hd").then(|| Ha1::new(user, ZOOKEEPER_HOST, &secret));
                let token = match exchange.step(&request[12..], known) {
                    Ok(ServerStep::Challenge(challenge)) => {
                        login = Some(exchange);
                        challenge
                    }
                    Ok(ServerStep::Accepted(accepted)) => accepted.reply,
                    Err(_) => {
                        reply.extend(ERR_AUTH_FAILED.to_be_bytes());
                        send(&mut stream, &reply).await?;
                        return Ok(());
                    }
                };
                reply.extend([0; 4]);
                reply.extend((token.len() as i32).to_be_bytes());
                reply.extend(token);
            }
            // As a server that was told to want logins does.
            (_, Some(_)) => reply.extend(ERR_LOGIN_WANTED.to_be_bytes()),
            // A server without a JAAS file: no token.
            (OP_SASL, None) => {
                reply.extend([0; 4]);
                reply.extend((-1i32).to_be_bytes());
            }
            (OP_EXISTS, None) => reply.extend(ERR_NO_NODE.to_be_bytes()),
            (_, None) => reply.extend([0; 4]),
        }
        send(&mut stream, &reply).await?;
    }
}

async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; stream.read_i32().await? as usize];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> std::io::Result<()> {
    stream.write_i32(frame.len() as i32).await?;
    stream.write_all(frame).await?;
    stream.flush().await
}

async fn connect(servers: &[&FakeServer], security: Security) -> Result<ZooKeeperStore, StoreError> {
    let servers: Vec<String> = servers.iter().map(|server| server.address.clone()).collect();
    zookeeper::connect(&servers, ZooKeeperOptions { security, ..ZooKeeperOptions::default() }).await
}

fn tls(authorities: StoreFile) -> TlsOptions {
    TlsOptions::new(authorities)
}

fn over_tls(options: TlsOptions) -> Security {
    Security::new().tls(options)
}

#[tokio::test]
async fn a_server_of_a_known_authority_is_spoken_to_and_others_are_named_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let serving = |tls| FakeServer::start(Conduct { tls: Some(tls), password: None });
    let good = serving(authority.server("localhost", None)).await;
    let strange = serving(stranger.server("localhost", None)).await;
    let misnamed = serving(authority.server("elsewhere", None)).await;
    let trusted = authority.trusted(dir.path());

    let store = connect(&[&strange, &good, &misnamed], over_tls(tls(trusted.clone()))).await.unwrap();
    assert_eq!(store.exists("/nothing").await, Ok(None));

    // Session invariant 7.
    for (server, why) in
        [(&strange, "none of the authorities in zkTlsTrustStore="), (&misnamed, "for another name")]
    {
        match connect(&[server], over_tls(tls(trusted.clone()))).await.err() {
            Some(StoreError::Untrusted { why: said }) => {
                assert!(said.starts_with(&server.address) && said.contains(why), "{said}");
            }
            other => panic!("{other:?}"),
        }
    }
    let any_name = tls(trusted.clone()).skip_name_check();
    assert!(connect(&[&misnamed], over_tls(any_name.clone())).await.is_ok());
    assert!(connect(&[&strange], over_tls(any_name)).await.is_err(), "only the name does not count");
    let missing = StoreFile::new("zkTlsTrustStore", "/nowhere.pem");
    let said = connect(&[&good], over_tls(tls(missing))).await.err().unwrap().to_string();
    assert!(said.contains("zkTlsTrustStore=/nowhere.pem"), "{said}");
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_gets_ours() {
    let dir = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = authority.server("localhost", Some(&authority));
    let server = FakeServer::start(Conduct { tls: Some(server), password: None }).await;
    let trusted = authority.trusted(dir.path());
    let own = |of: &Authority| {
        let (certificate, key) = of.issue("me");
        Some(store("zkTlsKeyStore", dir.path(), &format!("{}{}", key.serialize_pem(), certificate.pem())))
    };
    for (identity, why) in
        [(None, "without a certificate"), (own(&stranger), "refuses the certificate in zkTlsKeyStore=")]
    {
        let mut options = tls(trusted.clone());
        options.identity = identity;
        let said = connect(&[&server], over_tls(options)).await.err().unwrap().to_string();
        assert!(said.contains(why), "{said}");
    }
    let mut options = tls(trusted);
    options.identity = own(&authority);
    assert!(connect(&[&server], over_tls(options)).await.is_ok());
}

/// Invariant 1 of `tls`.
#[tokio::test]
async fn every_connection_takes_the_files_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let trusted = authority.trusted(dir.path());
    let path = trusted.path.clone();
    let conduct = Conduct { tls: Some(authority.server("localhost", None)), password: None };
    let server = FakeServer::start(conduct).await;
    let store = connect(&[&server], over_tls(tls(trusted))).await.unwrap();
    for contents in ["", "-----BEGIN"] {
        // Those loaded before stay in use.
        std::fs::write(&path, contents).unwrap();
        reconnect(&server, &store).await;
    }
    // A session that was open is not ended by authorities that do not fit (session invariant 7).
    std::fs::write(&path, Authority::new().certificate.pem()).unwrap();
    cut(&server, &store).await;
    let said = store.exists("/nothing").await.unwrap_err().to_string();
    assert!(said.contains("none of the authorities"), "{said}");
    std::fs::write(&path, authority.certificate.pem()).unwrap();
    connected(&store).await;
}

async fn cut(server: &FakeServer, store: &ZooKeeperStore) {
    let mut session = store.session();
    server.open.send_replace(false);
    session.wait_for(|state| matches!(state, SessionState::Suspended(_))).await.unwrap();
    server.open.send_replace(true);
}

async fn connected(store: &ZooKeeperStore) {
    let mut session = store.session();
    session.wait_for(|state| matches!(state, SessionState::Connected(_))).await.unwrap();
}

async fn reconnect(server: &FakeServer, store: &ZooKeeperStore) {
    cut(server, store).await;
    connected(store).await;
    assert_eq!(store.exists("/nothing").await, Ok(None));
}

/// Session invariant 6.
#[tokio::test]
async fn each_connection_logs_in_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let password_file = dir.path().join("password");
    std::fs::write(&password_file, "tiger\n").unwrap();
    let login = |name: &str| SaslLogin::User { name: name.to_owned(), password_file: password_file.clone() };
    let with = |sasl| {
        let mut security = Security::new();
        security.sasl = sasl;
        security
    };
    let server = FakeServer::start(Conduct { tls: None, password: Some("tiger") }).await;
    let store = connect(&[&server], with(Some(login("hd")))).await.unwrap();
    for _ in 0..3 {
        reconnect(&server, &store).await;
    }
    let name = &server.address;
    // The server, which side refused, and what to do.
    let says = |error: Option<StoreError>, why: &str| match error {
        Some(error @ StoreError::AuthFailed { .. }) => {
            let said = error.to_string();
            assert!(said.contains(why), "{said}");
        }
        other => panic!("{other:?}"),
    };
    let refused = connect(&[&server], with(Some(login("nobody")))).await.err();
    says(refused, &format!("{name}: it refuses our credentials: compare the user"));
    let without = connect(&[&server], with(None)).await.unwrap();
    let wanted = format!("{name}: it serves only clients that have logged in; give the user");
    says(without.exists("/nothing").await.err(), &wanted);
    says(without.exists("/nothing").await.err(), &wanted);

    // The password was changed there: no further attempt is made.
    std::fs::write(&password_file, "lion\n").unwrap();
    let mut session = store.session();
    cut(&server, &store).await;
    session.wait_for(|state| matches!(state, SessionState::AuthFailed(_))).await.unwrap();
    says(store.exists("/nothing").await.err(), "it refuses our credentials");

    // A server that knows no logins does not prove that it knows the password.
    let open = FakeServer::start(Conduct::default()).await;
    let refused = connect(&[&open], with(Some(login("hd")))).await.err();
    says(refused, "so we refuse it");
}

/// SASL invariant 3.
#[tokio::test]
async fn a_process_that_has_logged_in_does_not_go_on_without_a_login() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jaas.conf");
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule required";
    let section = format!("Client {{ {module} username=\"hd\" password=\"tiger\"; }};\n");
    std::fs::write(&file, &section).unwrap();
    let sasl = SaslLogin::Jaas { file: file.clone(), section: "Client".to_owned(), is_needed: false };
    let security = Security::new().sasl(sasl);
    let server = FakeServer::start(Conduct { tls: None, password: Some("tiger") }).await;
    let store = connect(&[&server], security.clone()).await.unwrap();
    std::fs::write(&file, "").unwrap();
    cut(&server, &store).await;
    let said = store.exists("/nothing").await.unwrap_err().to_string();
    assert!(said.contains("has logged in before"), "{said}");
    std::fs::write(&file, &section).unwrap();
    connected(&store).await;

    // One that never did may, unless nodes are to be its own.
    std::fs::write(&file, "").unwrap();
    let open = FakeServer::start(Conduct::default()).await;
    let nobody = connect(&[&open], security.clone()).await.unwrap();
    assert_eq!(nobody.exists("/nothing").await, Ok(None));
    let refused = connect(&[&open], security.restricted(true)).await.err().unwrap();
    assert!(refused.to_string().contains("zkEnableSecurity=true needs a user"), "{refused}");
}
