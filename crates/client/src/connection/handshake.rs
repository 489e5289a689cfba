//! What comes before the first request of a connection: START_TLS and AUTH (protocol reference, section 2.5), as the
//! [`Hooks`] say.
//!
//! # Invariants
//! 1. Not a byte is read beyond the answers to what was sent here.
//! 2. AUTH speaks the protocol of the lane: bookies tell v2 from v3 by a connection's frames. START_TLS is v3 on both.
//! 3. A Java bookie that wants AUTH answers START_TLS twice, the second time behind TLS, v3 on a v2 lane too: EIO, for
//!    the client is unknown yet. The bookie goes on nevertheless, and so does this client.
//! 4. A bookie that authenticates nobody says so in its first answer. Later it would be a way out of an exchange in which the bookie has
//!    to prove something, too.
//!
//! # Limits     an answer: [`ANSWER_BYTES_MAX`]; messages: [`AUTH_ROUNDS_MAX`]; time: the caller's

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bindery_wire::v2::{self, Flags};
use bindery_wire::v3::{self, Operation, proto};
use bindery_wire::{ErrorCode, Protocol, frame};
use bytes::{Bytes, BytesMut};

use super::foreign;
use super::hooks::{
    AUTH_ROUNDS_MAX, Authenticator, BookieAddress, Connector, Exchange, Hooks, Turn, connect_tcp,
};
use crate::stream::ByteStream;
use crate::tls::Tls;

/// The largest answer: a certificate chain in a token is some kilobytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// What the bookie's refusal of a message means; its answer does not say. The first message carries no user with most mechanisms.
fn refused(plugin: &str, round: u32) -> io::Error {
    io::Error::other(match round {
        0 => format!("the bookie refuses this client, or authentication with {plugin:?}: compare it with the bookie's \
                      bookieAuthProviderFactoryClass, and check user and secret (Credentials, --user)"),
        _ => "the bookie refuses this user: it does not know the user, the secret is wrong, or the user is not allowed \
              (Credentials, --user)".to_owned(),
    })
}

/// Which frames a lane sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaks {
    V2,
    V3,
}

/// How far a connection has come, for its caller, who bounds its time.
#[derive(Debug, Default)]
pub(super) struct Progress(AtomicU8);

impl Progress {
    const TLS: u8 = 1;
    const AUTHENTICATION: u8 = 2;

    fn reach(&self, step: u8) {
        self.0.store(step, Ordering::Relaxed);
    }

    /// The step that the time ran out in, for an error; empty while there is no TCP connection.
    pub(super) fn awaited(&self) -> &'static str {
        match self.0.load(Ordering::Relaxed) {
            Self::TLS => ": the bookie did not finish the TLS handshake",
            // `SASLBookieAuthProvider` of BookKeeper 4.17 and 4.18 sends nothing when an exchange fails.
            Self::AUTHENTICATION => {
                ": the bookie did not answer a message of authentication, by which Java's bookies refuse a user or its secret \
                 (Credentials, --user)"
            }
            _ => "",
        }
    }
}

/// A stream on which requests may be sent.
pub(super) async fn connect(
    hooks: &Hooks,
    to: &BookieAddress,
    speaks: Speaks,
    progress: &Progress,
) -> io::Result<ByteStream> {
    let mut stream = match &hooks.connector {
        None => ByteStream::Tcp(connect_tcp(to).await?),
        Some(connector) => connector.connect(to).await?,
    };
    // Requests are gathered before they are written, and messages of a handshake answer one another: to wait for more would
    // only delay them. Here, so that what TLS is put on has it, too.
    if let Some(socket) = stream.tcp()
        && let Err(error) = socket.set_nodelay(true)
    {
        tracing::debug!(bookie_id = %to.bookie, %error, "set TCP_NODELAY");
    }
    let upgrade = Upgrade::of(hooks);
    if let Some(upgrade) = upgrade {
        progress.reach(Progress::TLS);
        stream = start_tls(upgrade, stream, to)
            .await
            .map_err(|why| io::Error::other(format!("cannot begin TLS: {why}")))?;
    }
    if let Some(authenticator) = &hooks.authenticator {
        progress.reach(Progress::AUTHENTICATION);
        authenticate(&**authenticator, upgrade.is_some(), &mut stream, to, speaks).await.map_err(
            |error| {
                // With TLS 1.3 a refusal of the handshake comes as late as this.
                match hooks.tls.as_ref().and_then(|tls| tls.late_refusal(&error)) {
                    Some(refusal) => io::Error::other(format!("cannot begin TLS: {refusal}")),
                    None => io::Error::other(format!("cannot authenticate: {error}")),
                }
            },
        )?;
    }
    Ok(stream)
}

/// Whose TLS a connection gets.
#[derive(Clone, Copy)]
enum Upgrade<'a> {
    Own(&'a Arc<Tls>),
    Connector(&'a dyn Connector),
}

impl Upgrade<'_> {
    fn of(hooks: &Hooks) -> Option<Upgrade<'_>> {
        let of_connector = || hooks.connector.as_deref().filter(|connector| connector.starts_tls());
        hooks.tls.as_ref().map(Upgrade::Own).or_else(|| of_connector().map(Upgrade::Connector))
    }
}

async fn start_tls(
    upgrade: Upgrade<'_>,
    mut stream: ByteStream,
    to: &BookieAddress,
) -> Result<ByteStream, String> {
    let request = v3::Request { txn_id: u64::MAX, priority: 0, operation: Operation::StartTls };
    let mut out = BytesMut::new();
    v3::put_frame(&request.into_message(), &mut out);
    let asking = async {
        stream.write_all(&out).await?;
        answer_v3(next_frame(&mut stream).await?, u64::MAX, proto::OperationType::StartTls)
    };
    let answer = asking.await.map_err(|error: io::Error| match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
            "the bookie closed the connection when it was asked for TLS: it is none, or one that knows no TLS"
                .to_owned()
        }
        _ => error.to_string(),
    })?;
    match ErrorCode::from_v3(answer.status) {
        Some(ErrorCode::Ok) => {}
        Some(ErrorCode::BadRequest) => {
            return Err("the bookie refuses TLS, because it is not set up for it: set tlsProviderFactoryClass in its \
                        configuration, or connect without TLS"
                .into());
        }
        code => return Err(format!("the bookie refuses TLS with {code:?}; its log says why")),
    }
    match upgrade {
        Upgrade::Own(tls) => tls.upgrade(stream, to).await,
        Upgrade::Connector(connector) => {
            connector.upgrade(stream, to).await.map_err(|error| error.to_string())
        }
    }
}

async fn authenticate(
    authenticator: &dyn Authenticator,
    is_over_tls: bool,
    stream: &mut ByteStream,
    to: &BookieAddress,
    speaks: Speaks,
) -> io::Result<()> {
    let plugin = authenticator.plugin_name();
    if authenticator.needs_tls() && !is_over_tls {
        return Err(io::Error::other(format!(
            "{plugin} tells the bookie a secret, which this client sends over TLS only: connect with TLS (ClientBuilder::tls, \
             --tls), or choose another mechanism"
        )));
    }
    let mut exchange: Box<dyn Exchange> = authenticator.begin(to);
    let mut received: Option<Bytes> = None;
    for round in 0..AUTH_ROUNDS_MAX {
        let (payload, is_last) = match exchange.next(received.as_deref()).map_err(io::Error::other)? {
            Turn::Send(payload) => (payload, false),
            Turn::SendLast(payload) => (payload, true),
            Turn::Done => return Ok(()),
        };
        let message = proto::AuthMessage { auth_plugin_name: plugin.to_owned(), payload: payload.into() };
        // Requests count upwards: a late answer to the last message is nobody's.
        let txn_id = u64::MAX - u64::from(round);
        stream.write_all(&auth_frame(message, txn_id, speaks)).await?;
        if is_last {
            return Ok(());
        }
        let answer = auth_answer(stream, txn_id, speaks).await?.ok_or_else(|| refused(plugin, round))?;
        if answer.auth_plugin_name == v3::AUTH_DISABLED_PLUGIN_NAME {
            // Invariant 4.
            return match round {
                0 => Ok(()),
                _ => Err(io::Error::other(
                    "the bookie began to authenticate this client, and then says that it authenticates nobody: it does not prove \
                     that it knows the user's secret, so it may be another than it seems",
                )),
            };
        }
        if answer.auth_plugin_name != plugin {
            let theirs = &answer.auth_plugin_name;
            return Err(io::Error::other(format!(
                "the bookie authenticates clients with {theirs:?}, and this client with {plugin:?}: choose the bookie's \
                 (bookieAuthProviderFactoryClass)"
            )));
        }
        received = Some(answer.payload);
    }
    Err(io::Error::other(format!("it is not done after {AUTH_ROUNDS_MAX} messages")))
}

fn auth_frame(message: proto::AuthMessage, txn_id: u64, speaks: Speaks) -> BytesMut {
    let mut out = BytesMut::new();
    match speaks {
        Speaks::V3 => {
            let request = v3::Request { txn_id, priority: 0, operation: Operation::Auth(message) };
            v3::put_frame(&request.into_message(), &mut out);
        }
        Speaks::V2 => {
            let mut framed = BytesMut::new();
            v3::put_frame(&message, &mut framed);
            let message = &framed[frame::LENGTH_PREFIX_SIZE_BYTES..];
            let version = v2::VERSION_CURRENT;
            v2::Request::Auth(v2::Auth { version, flags: Flags::NONE, message }).encode(&mut out);
        }
    }
    out
}

/// `None` is a refusal.
async fn auth_answer(
    stream: &mut ByteStream,
    txn_id: u64,
    speaks: Speaks,
) -> io::Result<Option<proto::AuthMessage>> {
    let mut answer = next_frame(stream).await;
    if let Ok(frame) = &answer
        && is_about_tls(frame)
    {
        answer = next_frame(stream).await;
    }
    // Bookies close the connection of a client that they refuse, on v2 without an answer.
    if let Err(error) = &answer
        && matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
    {
        return Ok(None);
    }
    if speaks == Speaks::V2 {
        return match v2::Response::decode(&answer?).map_err(io::Error::other)? {
            v2::Response::Auth { message, .. } => {
                v3::decode_auth_message(message).map(Some).map_err(io::Error::other)
            }
            _ => Err(io::Error::other("the bookie answered something else")),
        };
    }
    let answer = answer_v3(answer?, txn_id, proto::OperationType::Auth)?;
    match (ErrorCode::from_v3(answer.status), answer.auth_response) {
        (Some(ErrorCode::Ok), Some(message)) => Ok(Some(message)),
        (Some(ErrorCode::Ok), None) => Err(io::Error::other("the bookie answered without a message")),
        (Some(ErrorCode::Unauthorized), _) => Ok(None),
        (code, _) => Err(io::Error::other(format!("the bookie answered {code:?}"))),
    }
}

/// Invariant 3.
fn is_about_tls(frame: &Bytes) -> bool {
    Protocol::of(frame) == Some(Protocol::V3)
        && v3::decode_response(frame.clone())
            .is_ok_and(|answer| answer.header.operation == proto::OperationType::StartTls as i32)
}

fn answer_v3(frame: Bytes, txn_id: u64, kind: proto::OperationType) -> io::Result<proto::Response> {
    let answer = v3::decode_response(frame).map_err(io::Error::other)?;
    match answer.header.txn_id == txn_id && answer.header.operation == kind as i32 {
        true => Ok(answer),
        false => Err(io::Error::other("the bookie answered something else")),
    }
}

async fn next_frame(stream: &mut ByteStream) -> io::Result<Bytes> {
    let mut length = [0; frame::LENGTH_PREFIX_SIZE_BYTES];
    stream.read_exact(&mut length).await.map_err(|error| match error.kind() {
        kind @ ErrorKind::UnexpectedEof => io::Error::new(kind, "the bookie closed the connection"),
        _ => error,
    })?;
    let size_bytes = u32::from_be_bytes(length) as usize;
    if let Some(speaks) = foreign::protocol(&length) {
        return Err(io::Error::other(speaks));
    }
    if size_bytes > ANSWER_BYTES_MAX {
        return Err(io::Error::other(format!("an answer of {size_bytes} bytes")));
    }
    let mut payload = vec![0; size_bytes];
    stream.read_exact(&mut payload).await?;
    Ok(payload.into())
}
