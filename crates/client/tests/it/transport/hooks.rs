//! Connections that are not plain TCP, START_TLS and authentication (protocol reference, section 2.5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bindery_client::connection::hooks::{
    AUTH_ROUNDS_MAX, Authenticator, BookieAddress, ByteStream, Connecting, Connector, Exchange, Hooks, Turn,
};
use bindery_client::connection::{Bookies, ConnectionOptions};
use bindery_client::transport::{BatchReadRequest, BookieError, ReadRequest, Transport};
use bindery_wire::frame::LENGTH_PREFIX_SIZE_BYTES;
use bindery_wire::v3::{self, Operation, proto, response};
use bindery_wire::{ErrorCode, v2};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::net::TcpStream;

use crate::transport::bookie::setup_with;
use crate::transport::peer::{Line, Peer};
use crate::transport::support::*;

/// Bytes go through a pipe of `room` bytes, each changed by `mask` on its way out and in, and are counted.
struct Piped {
    room: usize,
    mask: u8,
    starts_tls: bool,
    bytes: Arc<AtomicU64>,
}

impl Piped {
    fn new(room: usize, mask: u8, starts_tls: bool) -> (Arc<Piped>, Arc<AtomicU64>) {
        let bytes = Arc::new(AtomicU64::new(0));
        (Arc::new(Piped { room, mask, starts_tls, bytes: bytes.clone() }), bytes)
    }

    fn wrap(&self, socket: TcpStream) -> ByteStream {
        let (near, far) = tokio::io::duplex(self.room);
        let (from_bookie, to_bookie) = socket.into_split();
        let (from_client, to_client): (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>) =
            tokio::io::split(far);
        // They end with either end.
        tokio::spawn(pump(from_client, to_bookie, self.mask, self.bytes.clone()));
        tokio::spawn(pump(from_bookie, to_client, self.mask, self.bytes.clone()));
        ByteStream::boxed(near)
    }
}

async fn pump(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    mask: u8,
    bytes: Arc<AtomicU64>,
) {
    let mut buffer = [0; 5000];
    while let Ok(count) = from.read(&mut buffer).await
        && count > 0
    {
        buffer[..count].iter_mut().for_each(|byte| *byte ^= mask);
        bytes.fetch_add(count as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..count]).await.is_err() || to.flush().await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

impl Connector for Piped {
    fn connect<'a>(&'a self, to: &'a BookieAddress) -> Connecting<'a> {
        Box::pin(async move {
            let socket = TcpStream::connect((to.host.as_str(), to.port)).await?;
            Ok(if self.starts_tls { ByteStream::Tcp(socket) } else { self.wrap(socket) })
        })
    }

    fn starts_tls(&self) -> bool {
        self.starts_tls
    }

    fn upgrade<'a>(&'a self, stream: ByteStream, _: &'a BookieAddress) -> Connecting<'a> {
        Box::pin(async move {
            let ByteStream::Tcp(socket) = stream else { panic!("what connect made") };
            Ok(self.wrap(socket))
        })
    }
}

fn connected_by(connector: Arc<Piped>) -> Hooks {
    Hooks { connector: Some(connector), ..Hooks::default() }
}

fn authenticated_by(authenticator: impl Authenticator) -> Hooks {
    Hooks { authenticator: Some(Arc::new(authenticator)), ..Hooks::default() }
}

async fn bookies(options: ConnectionOptions, hooks: Hooks) -> Arc<Bookies> {
    Arc::new(Bookies::with_hooks(registration(&cluster().await).await, options, hooks))
}

/// Whatever the pipe holds: adds, reads, frames larger than any buffer, both lanes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_over_a_stream_that_is_not_tcp() {
    for room in [7, 4096, 1 << 20] {
        let (connector, bytes) = Piped::new(room, 0, false);
        let setup = setup_with(connected_by(connector)).await;
        let (count, large) = if room < 100 { (20, 20_000) } else { (200, 300_000) };
        setup.fill(1, count, 1000).await;
        setup.fill(2, 8, large).await;
        for at in 0..8 {
            assert_eq!(setup.read(2, at).await.unwrap(), body(2, at, large), "room {room}");
        }
        let batch = BatchReadRequest {
            ledger: ledger(1),
            first: entry(0),
            stride: 1,
            count_max: 1000,
            size_bytes_max: 4 << 20,
        };
        let entries = setup.bookies.batch_read(&setup.running.id, batch).await.unwrap();
        assert!(entries.iter().zip(0..).all(|(found, at)| *found == body(1, at, 1000)));
        assert_eq!(entries.len() as i64, count);
        let lac = setup.bookies.read_lac(&setup.running.id, ledger(1)).await.unwrap();
        assert_eq!(lac.last_entry, Some(body(1, count - 1, 1000)));
        assert!(bytes.load(Ordering::Relaxed) > 16 * large as u64, "it went through the pipe");
        setup.end().await;
    }
}

#[tokio::test]
async fn start_tls_comes_first_and_what_follows_goes_over_the_upgraded_stream() {
    let (connector, _) = Piped::new(4096, 0xa5, true);
    let (bookies, peer, sink) =
        (bookies(quick(5000), connected_by(connector)).await, Peer::new().await, Recorder::new());
    sink.send(&bookies, &peer.id, add(1, 0, 0, 10));
    let mut line = peer.accept().await;
    let asked = line.next_v3().await;
    assert_eq!(asked.operation, Operation::StartTls);
    line.answer_v3(response::start_tls(asked.txn_id, ErrorCode::Ok)).await;
    let head = LENGTH_PREFIX_SIZE_BYTES + v2::ADD_BODY_OFFSET_BYTES;
    let mut seen = vec![0; head + 42];
    line.socket.read_exact(&mut seen).await.unwrap();
    seen.iter_mut().for_each(|byte| *byte ^= 0xa5);
    assert_eq!(seen[head..], body(1, 0, 10)[..]);
    let mut out = BytesMut::new();
    v2::put_add_response(2, ErrorCode::Ok, 1, 0, &mut out);
    out.iter_mut().for_each(|byte| *byte ^= 0xa5);
    line.socket.write_all(&out).await.unwrap();
    assert_eq!(sink.outcomes(1).await, [(0, Ok(()))]);
}

pub fn unreachable_because<T: std::fmt::Debug>(result: Result<T, BookieError>, why: &str) {
    match &result {
        Err(BookieError::Unreachable(text)) if text.contains(why) => {}
        other => panic!("{other:?} is not for {why:?}"),
    }
}

fn read_first() -> ReadRequest {
    ReadRequest { ledger: ledger(1), entry: Some(entry(0)), fence: None }
}

/// Ours has no TLS; it says so, and lets anybody in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bookie_without_tls_and_without_authentication() {
    let (connector, _) = Piped::new(4096, 0, true);
    let setup = setup_with(connected_by(connector)).await;
    unreachable_because(
        setup.read(1, 0).await,
        "cannot begin TLS: the bookie refuses TLS, because it is not set up for it",
    );
    setup.end().await;
    let setup = setup_with(authenticated_by(Riddle { answer: b"7", is_endless: false })).await;
    setup.fill(1, 10, 10).await;
    assert_eq!(setup.read(1, 9).await.unwrap(), body(1, 9, 10));
    assert!(setup.bookies.read_lac(&setup.running.id, ledger(1)).await.is_ok(), "over v3 as well");
    setup.end().await;
}

/// Says hello, is asked something, answers, and wants to hear "welcome".
struct Riddle {
    answer: &'static [u8],
    is_endless: bool,
}

struct Solving(&'static [u8], bool);

impl Authenticator for Riddle {
    fn plugin_name(&self) -> &str {
        "riddle"
    }

    fn begin(&self, to: &BookieAddress) -> Box<dyn Exchange> {
        assert!(to.host.starts_with("127."));
        Box::new(Solving(self.answer, self.is_endless))
    }
}

impl Exchange for Solving {
    fn next(&mut self, received: Option<&[u8]>) -> Result<Turn, String> {
        match received {
            _ if self.1 => Ok(Turn::Send(b"and".to_vec())),
            None => Ok(Turn::Send(b"hello".to_vec())),
            Some(b"3 + 4?") => Ok(Turn::Send(self.0.to_vec())),
            Some(b"last: 3 + 4?") => Ok(Turn::SendLast(self.0.to_vec())),
            Some(b"welcome") => Ok(Turn::Done),
            Some(_) => Err("an impostor".into()),
        }
    }
}

/// What the client sent; its id, if it is v3.
pub async fn next_auth(line: &mut Line) -> Option<(Option<u64>, proto::AuthMessage)> {
    let payload = line.next().await?;
    Some(match payload[0] < 8 {
        true => match v2::Request::decode(&payload).unwrap() {
            v2::Request::Auth(auth) => (None, v3::decode_auth_message(auth.message).unwrap()),
            other => panic!("{other:?} before authentication"),
        },
        false => match v3::Request::decode(payload).unwrap() {
            v3::Request { txn_id, operation: Operation::Auth(message), .. } => (Some(txn_id), message),
            other => panic!("{other:?} before authentication"),
        },
    })
}

pub async fn answer_auth(line: &mut Line, txn_id: Option<u64>, plugin: &str, payload: &[u8]) {
    let message =
        proto::AuthMessage { auth_plugin_name: plugin.into(), payload: Bytes::copy_from_slice(payload) };
    match txn_id {
        Some(txn_id) => line.answer_v3(response::auth(txn_id, message)).await,
        None => {
            let (mut framed, mut out) = (BytesMut::new(), BytesMut::new());
            v3::put_frame(&message, &mut framed);
            v2::put_auth_response(2, &framed[LENGTH_PREFIX_SIZE_BYTES..], &mut out);
            line.socket.write_all(&out).await.unwrap();
        }
    }
}

/// Answers the client's hello so, and takes its solution.
async fn riddle_is_solved(line: &mut Line, hello: Option<u64>, ends: &'static [u8]) {
    answer_auth(line, hello, "riddle", ends).await;
    let (id, solution) = next_auth(line).await.unwrap();
    assert_eq!(&solution.payload[..], b"7");
    // The answer to the last message comes among answers to requests, and belongs to no request.
    answer_auth(line, id, "riddle", b"welcome").await;
}

/// The first add of ledger 1, and a read of its LAC over the other lane, go through.
async fn what_waited_is_sent<T: PartialEq + std::fmt::Debug>(
    mut line: Line,
    mut control: Line,
    sink: &Recorder,
    lac: impl Future<Output = Result<T, BookieError>>,
) {
    assert_eq!(line.next_add().await, (1, 0));
    line.answer_adds([(1, 0, ErrorCode::Ok)]).await;
    assert_eq!(sink.outcomes(1).await, [(0, Ok(()))]);
    let asked = control.next_v3().await;
    control.answer_v3(response::read_lac(asked.txn_id, ErrorCode::NoEntry, 1, None, None)).await;
    assert_eq!(lac.await, Err(BookieError::Refused(ErrorCode::NoEntry)));
}

#[tokio::test]
async fn nothing_is_sent_before_the_exchange_of_messages_is_done() {
    for ends in [&b"3 + 4?"[..], b"last: 3 + 4?"] {
        let hooks = authenticated_by(Riddle { answer: b"7", is_endless: false });
        let (bookies, peer, sink) = (bookies(quick(5000), hooks).await, Peer::new().await, Recorder::new());
        sink.send(&bookies, &peer.id, add(1, 0, 0, 10));
        let (mut line, lac) = (peer.accept().await, bookies.read_lac(&peer.id, ledger(1)));
        let mut control = peer.accept().await;
        for (line, is_v3) in [(&mut line, false), (&mut control, true)] {
            let (id, hello) = next_auth(line).await.unwrap();
            assert_eq!((hello.auth_plugin_name.as_str(), &hello.payload[..]), ("riddle", &b"hello"[..]));
            assert_eq!(id.is_some(), is_v3);
            let mut more = [0];
            let wait = tokio::time::timeout(Duration::from_millis(50), line.socket.peek(&mut more)).await;
            assert!(wait.is_err(), "it waits for its answer");
            riddle_is_solved(line, id, ends).await;
        }
        what_waited_is_sent(line, control, &sink, lac).await;
    }
}

/// A Java bookie that wants AUTH as well answers START_TLS a second time behind TLS: EIO, v3 on both lanes. Handshake invariant 3.
#[tokio::test]
async fn authentication_behind_tls_passes_over_the_second_answer_to_start_tls() {
    let (connector, _) = Piped::new(4096, 0, true);
    let authenticator = Some(Arc::new(Riddle { answer: b"7", is_endless: false }) as Arc<dyn Authenticator>);
    let hooks = Hooks { connector: Some(connector), authenticator, ..Hooks::default() };
    let (bookies, peer, sink) = (bookies(quick(5000), hooks).await, Peer::new().await, Recorder::new());
    sink.send(&bookies, &peer.id, add(1, 0, 0, 10));
    let (mut line, lac) = (peer.accept().await, bookies.read_lac(&peer.id, ledger(1)));
    let mut control = peer.accept().await;
    for (line, ends) in [(&mut line, &b"3 + 4?"[..]), (&mut control, b"last: 3 + 4?")] {
        let asked = line.next_v3().await;
        assert_eq!(asked.operation, Operation::StartTls);
        line.answer_v3(response::start_tls(asked.txn_id, ErrorCode::Ok)).await;
        // It comes when the handshake is over, before the answer to whatever the client says behind TLS.
        let code = ErrorCode::Io;
        line.answer_v3(response::without_body(asked.txn_id, proto::OperationType::StartTls, code)).await;
        let (id, _) = next_auth(line).await.unwrap();
        riddle_is_solved(line, id, ends).await;
    }
    what_waited_is_sent(line, control, &sink, lac).await;
}

#[tokio::test]
async fn an_exchange_that_fails_or_does_not_end_is_a_connection_that_could_not_be_made() {
    let hooks = || authenticated_by(Riddle { answer: b"7", is_endless: false });
    // v2: the bookie closes the connection.
    let (here, peer) = (bookies(quick(5000), hooks()).await, Peer::new().await);
    let read = here.read(&peer.id, read_first());
    drop(peer.accept().await);
    unreachable_because(read.await, "cannot authenticate: ");
    // v3: it says why.
    let lac = here.read_lac(&peer.id, ledger(1));
    let mut line = peer.accept().await;
    let (id, _) = next_auth(&mut line).await.unwrap();
    let refusal = response::without_body(id.unwrap(), proto::OperationType::Auth, ErrorCode::Unauthorized);
    line.answer_v3(refusal).await;
    unreachable_because(lac.await, "cannot authenticate: the bookie refuses this client");

    for (plugin, payload, why) in [
        ("other", &b"3 + 4?"[..], "\"other\", and this client with \"riddle\""),
        ("riddle", b"5?", "an impostor"),
    ] {
        let (here, peer) = (bookies(quick(5000), hooks()).await, Peer::new().await);
        let read = here.read(&peer.id, read_first());
        let mut line = peer.accept().await;
        let (id, _) = next_auth(&mut line).await.unwrap();
        answer_auth(&mut line, id, plugin, payload).await;
        unreachable_because(read.await, why);
        assert!(line.until_closed().await);
    }

    // Handshake invariant 4.
    let (here, peer) = (bookies(quick(5000), hooks()).await, Peer::new().await);
    let read = here.read(&peer.id, read_first());
    let mut line = peer.accept().await;
    let (id, _) = next_auth(&mut line).await.unwrap();
    answer_auth(&mut line, id, "riddle", b"3 + 4?").await;
    let (id, _) = next_auth(&mut line).await.unwrap();
    answer_auth(&mut line, id, v3::AUTH_DISABLED_PLUGIN_NAME, b"").await;
    unreachable_because(read.await, "then says that it authenticates nobody");
    assert!(line.until_closed().await);

    let endless = authenticated_by(Riddle { answer: b"", is_endless: true });
    let (here, peer) = (bookies(quick(5000), endless).await, Peer::new().await);
    let read = here.read(&peer.id, read_first());
    let mut line = peer.accept().await;
    let mut rounds = 0;
    while let Some((id, _)) = next_auth(&mut line).await {
        answer_auth(&mut line, id, "riddle", b"and?").await;
        rounds += 1;
    }
    assert_eq!(rounds, AUTH_ROUNDS_MAX);
    unreachable_because(read.await, "not done after");

    // Nothing is ever answered.
    let (here, peer) = (bookies(quick(400), hooks()).await, Peer::new().await);
    let read = here.read(&peer.id, read_first());
    let line = peer.accept().await;
    unreachable_because(
        read.await,
        "no connection within 300ms: the bookie did not answer a message of authentication",
    );
    assert!(line.until_closed().await);
}
