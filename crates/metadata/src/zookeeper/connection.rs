//! A connection to a ZooKeeper server over TCP or TLS: split into frames, and established up to the answer that opens the session.

use super::files::Files;
use super::probe::{self, Port, Spoken};
use super::sasl::{self, Login, MissingSection};
use super::security::{SaslLogin, Security};
use super::tls::Tls;
use super::wire;
use crate::fault::{self, Fault};
use crate::store::StoreError;
use bindery_sasl::Credentials;
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;
use tracing::warn;

/// The most buffer space that is reserved for a reply before its bytes arrive.
const READ_RESERVE_MAX: usize = 256 << 10;

/// A port that has accepted a connection and said nothing for this long is [probed](probe) while the wait goes on.
const SILENCE_LOOKED_INTO_AFTER: Duration = Duration::from_millis(200);

/// Plain TCP, or TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(super) type Writer = WriteHalf<Box<dyn Stream>>;

/// How connections are made.
pub(super) struct Way {
    tls: Option<Arc<Tls>>,
    sasl: Option<SaslLogin>,
    /// New nodes are to be owned by the SASL user, as there is no certificate that could own them.
    needs_user: bool,
    /// This process has logged in before. From then on it never connects without a login, whatever happens to the file.
    has_logged_in: AtomicBool,
    has_warned_of_no_login: AtomicBool,
    files: Files,
}

impl Way {
    pub(super) fn new(security: Security) -> Way {
        let files = Files::new();
        let has_certificate = security.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        Way {
            tls: security.tls.map(|options| Arc::new(Tls::new(options, files.clone()))),
            sasl: security.sasl,
            needs_user: security.is_restricted && !has_certificate,
            has_logged_in: AtomicBool::new(false),
            has_warned_of_no_login: AtomicBool::new(false),
            files,
        }
    }

    /// The user to log in as (SASL invariant 3).
    async fn credentials(&self) -> Result<Option<Credentials>, Refused> {
        let Some(login) = self.sasl.clone() else { return Ok(None) };
        let missing = if self.has_logged_in.load(Ordering::Relaxed) {
            MissingSection::AfterLogin
        } else if self.needs_user {
            MissingSection::OfOwner
        } else {
            MissingSection::MayBe
        };
        let found = self.files.look(move || sasl::credentials(&login, missing)).await??;
        if found.is_none()
            && !self.has_warned_of_no_login.swap(true, Ordering::Relaxed)
            && let Some(SaslLogin::Jaas { file, section, .. }) = &self.sasl
        {
            warn!(
                file = %file.display(),
                section,
                "not logging in to the metadata store: the JAAS file has no such section (zkSaslEnable=true makes \
                 this an error)"
            );
        }
        Ok(found)
    }

    /// The reason to report for an error of the socket.
    fn refused(&self, error: io::Error) -> Refused {
        match &self.tls {
            Some(tls) => tls.refused(&error),
            None if is_end(&error) => Refused::closed(),
            None => Refused::failed(error.to_string()),
        }
    }
}

/// Why there is no connection on which a session may be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The server has this fault.
    Fault(Fault),
    /// The login failed for good. The text, which follows the server's name, says which side refused and why.
    AuthFailed(String),
}

impl Refused {
    /// A fault that may pass by itself.
    pub(super) fn failed(why: String) -> Refused {
        Refused::Fault(Fault::Other(why))
    }

    /// A fault that stays until somebody changes a certificate or a setting.
    pub(super) fn untrusted(why: String) -> Refused {
        Refused::Fault(Fault::Untrusted(why))
    }

    fn closed() -> Refused {
        // Servers do that while they are not serving, when a client has too many connections, or when their state is older than
        // one that we have seen.
        Refused::Fault(Fault::Closed(
            "it closes connections without an answer: look at its log if it is a ZooKeeper server, or give the port of one for its \
             clients (clientPort; with TLS, secureClientPort and zkTlsEnable=true)"
                .to_owned(),
        ))
    }
}

/// [Probes](probe) a port that does not answer; returns the fault that this finds, if any.
async fn explanation(server: &str, has_tls: bool) -> Option<Refused> {
    let fault = match probe::look(server).await {
        Port::ZooKeeper { has_tls: Some(false), .. } if has_tls => Fault::WrongProtocol(
            "it speaks ZooKeeper's protocol without TLS: give the server's secure client port (secureClientPort), or set \
             zkTlsEnable=false"
                .to_owned(),
        ),
        Port::ZooKeeper { is_serving: false, .. } => Fault::NotServing,
        Port::Bookie => Fault::WrongProtocol(
            "it is a bookie: give the port of a ZooKeeper server for its clients (clientPort)".to_owned(),
        ),
        Port::Other(spoken) if !(has_tls && spoken == Spoken::Tls) => spoken.fault(),
        Port::Other(_) | Port::ZooKeeper { is_serving: true, .. } | Port::Unknown => return None,
    };
    Some(Refused::Fault(fault))
}

/// Whether the other side ended the connection.
pub(super) fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// A connection on which a session may be opened.
pub(super) struct Connection {
    pub reader: ReadHalf<Box<dyn Stream>>,
    pub writer: Writer,
    /// Received and not yet split into frames.
    pub buffer: BytesMut,
}

/// Sends all of a frame. Cancelling it leaves the connection unusable.
pub(super) async fn send(writer: &mut Writer, frame: &[u8]) -> io::Result<()> {
    writer.write_all(frame).await?;
    // TLS may hold encrypted bytes back until it is flushed.
    writer.flush().await
}

/// The next whole frame, if it has arrived. Refuses a length above the limit before anything is allocated for it.
pub(super) fn take_frame(buffer: &mut BytesMut) -> Result<Option<Bytes>, StoreError> {
    let Some(prefix) = buffer.first_chunk::<4>() else { return Ok(None) };
    let size = u32::from_be_bytes(*prefix) as usize;
    if size > wire::FRAME_SIZE_BYTES_MAX {
        return Err(StoreError::Protocol(format!(
            "a reply of {size} bytes, and the limit is {}",
            wire::FRAME_SIZE_BYTES_MAX
        )));
    }
    if buffer.len() < 4 + size {
        // At most what the limit allows, and only once the length is known to be within it.
        buffer.reserve((4 + size - buffer.len()).min(READ_RESERVE_MAX));
        return Ok(None);
    }
    let mut frame = buffer.split_to(4 + size);
    let _ = frame.split_to(4);
    Ok(Some(frame.freeze()))
}

impl Connection {
    /// Opens a connection, exchanges the first messages and logs in; `is_connected` becomes true once the server has accepted the TCP
    /// connection. With `explains`, a port that does not answer is [probed](probe) for its fault. Dropping the future closes the socket.
    pub(super) async fn open(
        server: &str,
        way: &Way,
        request: BytesMut,
        is_connected: &AtomicBool,
        explains: bool,
    ) -> Result<(Connection, wire::ConnectResponse), Refused> {
        if !explains {
            return Connection::begin(server, way, request, is_connected).await;
        }
        let has_tls = way.tls.is_some();
        let beginning = Connection::begin(server, way, request, is_connected);
        tokio::pin!(beginning);
        let begun = match timeout(SILENCE_LOOKED_INTO_AFTER, &mut beginning).await {
            Ok(begun) => begun,
            Err(_) => {
                let looking = async {
                    match is_connected.load(Ordering::Relaxed) {
                        true => explanation(server, has_tls).await,
                        false => None,
                    }
                };
                tokio::select! {
                    biased;
                    begun = &mut beginning => begun,
                    Some(refused) = looking => Err(refused),
                }
            }
        };
        match begun {
            Err(refused @ Refused::Fault(Fault::Closed(_))) => {
                Err(explanation(server, has_tls).await.unwrap_or(refused))
            }
            begun => begun,
        }
    }

    async fn begin(
        server: &str,
        way: &Way,
        request: BytesMut,
        is_connected: &AtomicBool,
    ) -> Result<(Connection, wire::ConnectResponse), Refused> {
        let credentials = way.credentials().await?;
        let socket = fault::connect_tcp(server).await.map_err(Refused::Fault)?;
        is_connected.store(true, Ordering::Relaxed);
        socket.set_nodelay(true).map_err(|error| Refused::failed(error.to_string()))?;
        let stream: Box<dyn Stream> = match &way.tls {
            Some(tls) => Box::new(tls.clone().connect(server, socket).await?),
            None => Box::new(socket),
        };
        let (reader, mut writer) = tokio::io::split(stream);
        send(&mut writer, &request).await.map_err(|error| way.refused(error))?;
        let mut connection = Connection { reader, writer, buffer: BytesMut::with_capacity(4096) };
        let frame = connection.next_frame(way).await?;
        let response = wire::ConnectResponse::parse(frame).map_err(not_zookeeper)?;
        if let Some(credentials) = credentials.filter(|_| response.is_open()) {
            connection.log_in(way, Login::begin(credentials)?).await?;
            way.has_logged_in.store(true, Ordering::Relaxed);
        }
        Ok((connection, response))
    }

    /// Logs in before anything else is sent (session invariant 6).
    async fn log_in(&mut self, way: &Way, mut login: Login) -> Result<(), Refused> {
        let mut token = Vec::new();
        for xid in 1.. {
            let mut request = wire::begin_frame(xid, wire::OP_SASL);
            wire::put_buffer(&mut request, &token);
            wire::finish_frame(&mut request);
            send(&mut self.writer, &request).await.map_err(|error| way.refused(error))?;
            let mut reply = self.next_frame(way).await?;
            let header = wire::ReplyHeader::parse(&mut reply).map_err(refused_reply)?;
            if header.xid != xid {
                return Err(Refused::failed(format!("reply {} while that to the login was due", header.xid)));
            }
            match wire::error_of(header.error, "") {
                _ if header.error == wire::OK => {}
                StoreError::AuthFailed { .. } => return Err(Refused::AuthFailed(sasl::not_accepted())),
                other => return Err(Refused::failed(other.to_string())),
            }
            let message = wire::get_buffer(&mut reply).map_err(refused_reply)?;
            match login.step(&message)? {
                Some(response) => token = response,
                None => break,
            }
        }
        Ok(())
    }

    /// Waits for a frame, before any request is in flight.
    async fn next_frame(&mut self, way: &Way) -> Result<Bytes, Refused> {
        loop {
            if let Some(spoken) = probe::spoken(&self.buffer) {
                return Err(Refused::Fault(spoken.fault()));
            }
            if let Some(frame) = take_frame(&mut self.buffer).map_err(not_zookeeper)? {
                return Ok(frame);
            }
            match self.reader.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(Refused::closed()),
                Ok(_) => {}
                Err(error) => return Err(way.refused(error)),
            }
        }
    }
}

fn refused_reply(error: impl Into<StoreError>) -> Refused {
    Refused::failed(error.into().to_string())
}

/// The fault of a server whose first bytes are not ZooKeeper's.
fn not_zookeeper(error: impl Into<StoreError>) -> Refused {
    let why = match error.into() {
        StoreError::Protocol(why) => why,
        other => other.to_string(),
    };
    Refused::Fault(Fault::WrongProtocol(format!(
        "it does not answer as a ZooKeeper server does ({why}): give the port of one for its clients (clientPort)"
    )))
}
