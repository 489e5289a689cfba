//! The client's own TLS and users, against bookies that speak TLS and peers that refuse.

#[path = "../../../../server/tests/it/common/certificates.rs"]
mod certificates;

use std::sync::Arc;

use bindery_client::connection::Bookies;
use bindery_client::connection::hooks::Hooks;
use bindery_client::tls::{Tls, TlsOptions, TlsVersion};
use bindery_client::transport::{BatchReadRequest, BookieError, ReadRequest, Transport};
use bindery_client::{Client, ConnectError, Credentials, Secret};
use bindery_sasl::digest_md5::{BOOKKEEPER_HOST, BOOKKEEPER_SERVICE, Ha1, Nonce, Server, ServerStep};
use bindery_server::tls::TlsConfig;
use bindery_wire::ErrorCode;
use bindery_wire::v3::{Operation, proto, response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::certificates::{Authority, Files, Use};
use crate::transport::bookie::{Setup, setup_with_tls};
use crate::transport::hooks::{answer_auth, next_auth, unreachable_because};
use crate::transport::peer::{Line, Peer};
use crate::transport::support::*;

/// The files of a cluster: its authority, a bookie's certificate and a client's.
struct Pki {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Pki {
    fn new() -> Pki {
        Pki { dir: tempfile::tempdir().unwrap(), authority: Authority::new("cluster") }
    }

    fn bookie(&self, wants_certificates: bool, is_required: bool) -> TlsConfig {
        let files =
            Files::write(self.dir.path(), &self.authority.issue(Use::Bookie), &self.authority.certificate);
        TlsConfig {
            client_authorities: wants_certificates.then_some(files.authorities),
            refresh: None,
            is_required,
            ..TlsConfig::new(files.certificates, files.key)
        }
    }

    fn options(&self) -> TlsOptions {
        TlsOptions::new().authority(self.dir.path().join("authorities.pem"))
    }

    #[allow(clippy::disallowed_methods, reason = "what an operator puts there")]
    fn options_with_identity(&self) -> TlsOptions {
        let issued = self.authority.issue(Use::Client);
        let [certificate, key] = ["client.pem", "client.key"].map(|name| self.dir.path().join(name));
        std::fs::write(&certificate, issued.certificate).unwrap();
        std::fs::write(&key, issued.key).unwrap();
        self.options().identity(certificate, key)
    }
}

fn over(options: TlsOptions) -> Hooks {
    Hooks { tls: Some(Arc::new(Tls::open(options).unwrap())), ..Hooks::default() }
}

fn proved_by(credentials: Credentials) -> Hooks {
    Hooks { authenticator: Some(Arc::new(credentials)), ..Hooks::default() }
}

/// Adds and reads of all sizes, batches, and requests of v3.
async fn use_all_lanes(setup: Setup) {
    setup.fill(1, 200, 1000).await;
    // Many records each.
    setup.fill(2, 8, 300_000).await;
    for at in 0..8 {
        assert!(setup.read(2, at).await.unwrap() == body(2, at, 300_000), "entry {at}");
    }
    let batch = BatchReadRequest {
        ledger: ledger(1),
        first: entry(0),
        stride: 1,
        count_max: 1000,
        size_bytes_max: 4 << 20,
    };
    let entries = setup.bookies.batch_read(&setup.running.id, batch).await.unwrap();
    assert!(entries.iter().zip(0..).all(|(found, at)| *found == body(1, at, 1000)) && entries.len() == 200);
    let lac = setup.bookies.read_lac(&setup.running.id, ledger(1)).await.unwrap();
    assert_eq!(lac.last_entry, Some(body(1, 199, 1000)));
    setup.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_lanes_work_over_both_versions_with_and_without_a_certificate() {
    let pki = Pki::new();
    for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        let config = pki.bookie(false, true);
        use_all_lanes(setup_with_tls(over(pki.options().versions([version])), Some(config)).await).await;
        let config = pki.bookie(true, true);
        let options = pki.options_with_identity().versions([version]);
        use_all_lanes(setup_with_tls(over(options), Some(config)).await).await;
    }
}

/// With TLS 1.3 the bookie refuses when the client believes that the handshake is over: no request is taken for done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_that_wants_a_certificate_says_so() {
    let pki = Pki::new();
    for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        let config = pki.bookie(true, true);
        let setup = setup_with_tls(over(pki.options().versions([version])), Some(config)).await;
        let sink = Recorder::new();
        sink.send(&setup.bookies, &setup.running.id, add(1, 0, 0, 10));
        let [(_, outcome)] = &sink.outcomes(1).await[..] else { panic!() };
        let why = "cannot begin TLS: the bookie refuses a client without a certificate";
        unreachable_because(outcome.clone(), why);
        // While it is not tried again, and over the other lane.
        unreachable_because(setup.read(1, 0).await, why);
        unreachable_because(setup.bookies.read_lac(&setup.running.id, ledger(1)).await, why);
        setup.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_one_side_only_is_told_by_its_name() {
    let pki = Pki::new();
    let config = pki.bookie(false, true);
    // The bookie does without.
    let setup = setup_with_tls(over(pki.options()), None).await;
    unreachable_because(setup.read(1, 0).await, "the bookie refuses TLS, because it is not set up for it");
    setup.end().await;
    // The client does without.
    let setup = setup_with_tls(Hooks::default(), Some(config)).await;
    let refused = setup.read(1, 0).await.unwrap_err();
    assert_eq!(refused, BookieError::Refused(ErrorCode::Unauthorized));
    let said = refused.to_string();
    for option in ["ClientBuilder::tls", "--tls", "--tls-cert", "--user"] {
        assert!(said.contains(option), "{said}");
    }
    setup.end().await;
}

async fn bookies(hooks: Hooks) -> Arc<Bookies> {
    Arc::new(Bookies::with_hooks(registration(&cluster().await).await, quick(5000), hooks))
}

fn read_first() -> ReadRequest {
    ReadRequest { ledger: ledger(1), entry: Some(entry(0)), fence: None }
}

/// The port of something else, spoken to plainly and with START_TLS.
#[tokio::test]
async fn a_port_that_speaks_another_protocol_is_told_by_its_name() {
    let pki = Pki::new();
    pki.bookie(false, false);
    let alert = [0x15, 3, 3, 0, 2, 2, 10];
    let answers: [(&[u8], &str); 2] = [
        (&alert, "speaks TLS from the first byte"),
        (
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n and more",
            "speaks HTTP",
        ),
    ];
    for (answer, why) in answers {
        for hooks in [Hooks::default(), over(pki.options())] {
            let (here, peer) = (bookies(hooks).await, Peer::new().await);
            let read = here.read(&peer.id, read_first());
            let mut line = peer.accept().await;
            line.next().await.unwrap();
            line.socket.write_all(answer).await.unwrap();
            drop(line);
            unreachable_because(read.await, why);
        }
    }
    // Closed without a word.
    let (here, peer) = (bookies(over(pki.options())).await, Peer::new().await);
    let read = here.read(&peer.id, read_first());
    drop(peer.accept().await);
    unreachable_because(read.await, "closed the connection when it was asked for TLS");
    let (here, peer) = (bookies(over(pki.options())).await, Peer::new().await);
    let read = here.read(&peer.id, read_first());
    let mut line = peer.accept().await;
    let asked = line.next_v3().await;
    assert_eq!(asked.operation, Operation::StartTls);
    line.answer_v3(response::start_tls(asked.txn_id, ErrorCode::Ok)).await;
    drop(line);
    unreachable_because(read.await, "closed the connection during the handshake");
}

/// As Java's bookies with OpenSSL do to a client whose certificate they refuse, over TLS 1.3.
#[tokio::test]
async fn a_connection_that_ends_without_an_answer_may_be_a_refusal() {
    let pki = Pki::new();
    pki.bookie(false, false);
    let acceptor = certificates::acceptor(&pki.authority.issue(Use::Bookie));
    let (here, peer, sink) = (bookies(over(pki.options())).await, Peer::new().await, Recorder::new());
    sink.send(&here, &peer.id, add(1, 0, 0, 10));
    let mut line = peer.accept().await;
    let asked = line.next_v3().await;
    line.answer_v3(response::start_tls(asked.txn_id, ErrorCode::Ok)).await;
    let mut stream = tokio_rustls::TlsAcceptor::from(acceptor).accept(line.socket).await.unwrap();
    // Something of the request has come.
    stream.read_u8().await.unwrap();
    drop(stream);
    let [(_, outcome)] = &sink.outcomes(1).await[..] else { panic!() };
    let Err(lost @ BookieError::LostUnanswered(why)) = outcome else { panic!("{outcome:?}") };
    assert!(lost.is_unknown() && why.contains("it may want a client certificate"), "{why}");
}

/// The bookie's side of DIGEST-MD5 as Java's speaks it, for one user. False when it refuses.
async fn accepts(line: &mut Line, password: &str) -> bool {
    let mut server = Server::new(BOOKKEEPER_SERVICE, BOOKKEEPER_HOST, BOOKKEEPER_HOST, Nonce::draw(|| 7));
    loop {
        let (id, message) = next_auth(line).await.unwrap();
        assert_eq!(message.auth_plugin_name, "sasl");
        let known =
            |user: &str| (user == "hd").then(|| Ha1::new(user, BOOKKEEPER_HOST, &Secret::new(password)));
        match server.step(&message.payload, known) {
            Ok(ServerStep::Challenge(challenge)) => answer_auth(line, id, "sasl", &challenge).await,
            Ok(ServerStep::Accepted(accepted)) => {
                answer_auth(line, id, "sasl", &accepted.reply).await;
                return true;
            }
            Err(_) => {
                if let Some(id) = id {
                    let code = ErrorCode::Unauthorized;
                    let refusal = response::without_body(id, proto::OperationType::Auth, code);
                    line.answer_v3(refusal).await;
                }
                return false;
            }
        }
    }
}

#[tokio::test]
async fn a_user_is_proved_on_both_lanes_or_refused() {
    for password in ["tiger", "lion"] {
        let is_right = password == "tiger";
        let hooks = proved_by(Credentials::digest_md5("hd", Secret::new(password)));
        let (here, peer, sink) = (bookies(hooks).await, Peer::new().await, Recorder::new());
        sink.send(&here, &peer.id, add(1, 0, 0, 10));
        let mut line = peer.accept().await;
        assert_eq!(accepts(&mut line, "tiger").await, is_right);
        if is_right {
            assert_eq!(line.next_add().await, (1, 0));
            line.answer_adds([(1, 0, ErrorCode::Ok)]).await;
        } else {
            drop(line);
        }
        let lac = here.read_lac(&peer.id, ledger(1));
        let mut control = peer.accept().await;
        assert_eq!(accepts(&mut control, "tiger").await, is_right);
        let [(_, added)] = &sink.outcomes(1).await[..] else { panic!() };
        if is_right {
            assert_eq!(*added, Ok(()));
            let asked = control.next_v3().await;
            control.answer_v3(response::read_lac(asked.txn_id, ErrorCode::NoEntry, 1, None, None)).await;
            assert_eq!(lac.await, Err(BookieError::Refused(ErrorCode::NoEntry)));
        } else {
            let why = "cannot authenticate: the bookie refuses this user";
            unreachable_because(added.clone(), why);
            let refused = lac.await;
            assert!(!format!("{refused:?}").contains("lion"), "{refused:?}");
            unreachable_because(refused, why);
        }
    }
}

/// Credentials invariants 2 and 3.
#[tokio::test]
async fn a_bookie_that_proves_nothing_and_a_line_without_tls_get_no_secret() {
    let hooks = proved_by(Credentials::digest_md5("hd", Secret::new("tiger")));
    let (here, peer) = (bookies(hooks).await, Peer::new().await);
    let read = here.read(&peer.id, read_first());
    let mut line = peer.accept().await;
    let mut server = Server::new(BOOKKEEPER_SERVICE, BOOKKEEPER_HOST, BOOKKEEPER_HOST, Nonce::draw(|| 7));
    let (id, hello) = next_auth(&mut line).await.unwrap();
    let Ok(ServerStep::Challenge(challenge)) = server.step(&hello.payload, |_| None) else { panic!() };
    answer_auth(&mut line, id, "sasl", &challenge).await;
    let (id, _) = next_auth(&mut line).await.unwrap();
    answer_auth(&mut line, id, "sasl", &[&b"rspauth="[..], &[b'0'; 32]].concat()).await;
    unreachable_because(read.await, "this client refuses the bookie");
    assert!(line.until_closed().await, "and sends nothing more");

    let plain = Credentials::plain("hd", Secret::new("tiger"));
    let (here, peer) = (bookies(proved_by(plain.clone())).await, Peer::new().await);
    let read = here.read(&peer.id, read_first());
    assert_eq!(peer.accept().await.next().await, None, "not a byte");
    unreachable_because(read.await, "over TLS only");
    let layout = open(&cluster().await).await;
    let refused = Client::builder().layout(layout).credentials(plain).connect().await.map(|_| ());
    assert_eq!(refused, Err(ConnectError::NeedsTls));
}

/// A Java bookie answers requests of a client that did not authenticate so.
#[tokio::test]
async fn a_bookie_that_wants_a_user_says_what_may_be_missing() {
    let (here, peer) = (bookies(Hooks::default()).await, Peer::new().await);
    let lac = here.read_lac(&peer.id, ledger(1));
    let mut line = peer.accept().await;
    let asked = line.next_v3().await;
    let code = ErrorCode::Unauthorized;
    line.answer_v3(response::without_body(asked.txn_id, proto::OperationType::ReadLac, code)).await;
    let refused = lac.await.unwrap_err();
    assert_eq!(refused, BookieError::Refused(code));
    assert!(refused.to_string().contains("ClientBuilder::credentials, --user"), "{refused}");
}

/// A file that does not exist is found when the client is made, before a metadata session is opened.
#[tokio::test]
async fn files_are_read_when_the_client_connects() {
    let dir = tempfile::tempdir().unwrap();
    let options = TlsOptions::new().authority(dir.path().join("none.pem"));
    let refused = Client::builder().tls(options).connect().await.map(|_| ()).unwrap_err();
    assert!(
        matches!(&refused, ConnectError::Tls(error) if error.to_string().contains("none.pem")),
        "{refused}"
    );
}
