//! A connection to a ZooKeeper server: TCP or TLS, taken apart into frames, up to the answer that opens the session.

use super::sasl::{self, Login};
use super::security::{SaslLogin, Security};
use super::tls::{Refused, Tls};
use super::wire;
use crate::store::StoreError;
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;

/// Most that is set aside for a reply before its bytes arrive.
const READ_RESERVE_MAX: usize = 256 << 10;

/// Plain TCP, or TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(super) type Writer = WriteHalf<Box<dyn Stream>>;

/// How connections are made.
pub(super) struct Way {
    tls: Option<Arc<Tls>>,
    sasl: Option<SaslLogin>,
}

impl Way {
    pub(super) fn new(security: Security) -> Way {
        Way { tls: security.tls.map(|options| Arc::new(Tls::new(options))), sasl: security.sasl }
    }

    /// What an error of the socket means.
    fn refused(&self, error: io::Error) -> Refused {
        match &self.tls {
            Some(tls) => tls.refused(&error),
            None => Refused::Failed(error.to_string()),
        }
    }
}

/// A connection on which a session may be opened.
pub(super) struct Connection {
    pub reader: ReadHalf<Box<dyn Stream>>,
    pub writer: Writer,
    /// Received and not yet taken apart.
    pub buffer: BytesMut,
}

/// Sends all of a frame. Cancelling it leaves the connection unusable.
pub(super) async fn send(writer: &mut Writer, frame: &[u8]) -> io::Result<()> {
    writer.write_all(frame).await?;
    // TLS may keep encrypted bytes until then.
    writer.flush().await
}

/// The next whole frame, if it has arrived. Refuses a length above the limit before anything is allocated for it.
pub(super) fn take_frame(buffer: &mut BytesMut) -> Result<Option<Bytes>, StoreError> {
    let Some(prefix) = buffer.first_chunk::<4>() else { return Ok(None) };
    let size = u32::from_be_bytes(*prefix) as usize;
    if size > wire::FRAME_SIZE_BYTES_MAX {
        return Err(StoreError::Protocol(format!("a reply of {size} bytes (is this a ZooKeeper server?)")));
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
    /// Opens a connection, exchanges the first messages and logs in. Cancelling it closes the socket.
    pub(super) async fn open(
        server: String,
        way: Arc<Way>,
        request: BytesMut,
    ) -> Result<(Connection, wire::ConnectResponse), Refused> {
        let credentials = match way.sasl.clone() {
            None => None,
            Some(login) => {
                let read = tokio::task::spawn_blocking(move || sasl::credentials(&login)).await;
                read.map_err(|error| Refused::Failed(error.to_string()))??
            }
        };
        let socket = TcpStream::connect(&server).await.map_err(|error| Refused::Failed(error.to_string()))?;
        socket.set_nodelay(true).map_err(|error| Refused::Failed(error.to_string()))?;
        let stream: Box<dyn Stream> = match &way.tls {
            Some(tls) => Box::new(tls.clone().connect(&server, socket).await?),
            None => Box::new(socket),
        };
        let (reader, mut writer) = tokio::io::split(stream);
        send(&mut writer, &request).await.map_err(|error| way.refused(error))?;
        let mut connection = Connection { reader, writer, buffer: BytesMut::with_capacity(4096) };
        let frame = connection.next_frame(&way).await?;
        let response = wire::ConnectResponse::parse(frame).map_err(refused_reply)?;
        if let Some(credentials) = credentials.filter(|_| response.is_open()) {
            connection.log_in(&way, Login::begin(credentials)?).await?;
        }
        Ok((connection, response))
    }

    /// Session invariant 6.
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
                return Err(Refused::Failed(format!("reply {} while that to the login was due", header.xid)));
            }
            match wire::error_of(header.error, "") {
                _ if header.error == wire::OK => {}
                StoreError::AuthFailed => {
                    return Err(Refused::AuthFailed(
                        "it does not accept the user or the password".to_owned(),
                    ));
                }
                other => return Err(Refused::Failed(other.to_string())),
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
            if let Some(frame) = take_frame(&mut self.buffer).map_err(refused_reply)? {
                return Ok(frame);
            }
            match self.reader.read_buf(&mut self.buffer).await {
                // Servers do that while they are not serving, or when their state is behind what we have seen.
                Ok(0) => return Err(Refused::Failed("closed by the server before it answered".into())),
                Ok(_) => {}
                Err(error) => return Err(way.refused(error)),
            }
        }
    }
}

fn refused_reply(error: impl Into<StoreError>) -> Refused {
    Refused::Failed(error.into().to_string())
}
