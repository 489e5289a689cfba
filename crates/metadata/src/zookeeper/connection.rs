//! A connection to a ZooKeeper server: TCP or TLS, taken apart into frames, up to the answer that opens the session.

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
    /// Opens a connection and exchanges the first messages. Cancelling it closes the socket.
    pub(super) async fn open(
        server: String,
        tls: Option<Arc<Tls>>,
        request: BytesMut,
    ) -> Result<(Connection, wire::ConnectResponse), Refused> {
        let failed = |error: io::Error| match &tls {
            Some(tls) => tls.refused(&error),
            None => Refused::Failed(error.to_string()),
        };
        let socket = TcpStream::connect(&server).await.map_err(|error| Refused::Failed(error.to_string()))?;
        socket.set_nodelay(true).map_err(|error| Refused::Failed(error.to_string()))?;
        let stream: Box<dyn Stream> = match &tls {
            Some(tls) => Box::new(tls.clone().connect(&server, socket).await?),
            None => Box::new(socket),
        };
        let (reader, mut writer) = tokio::io::split(stream);
        send(&mut writer, &request).await.map_err(failed)?;
        let mut connection = Connection { reader, writer, buffer: BytesMut::with_capacity(4096) };
        let frame = next_frame(&mut connection, failed).await?;
        let response =
            wire::ConnectResponse::parse(frame).map_err(|error| Refused::Failed(error.to_string()))?;
        Ok((connection, response))
    }
}

/// Waits for a frame while nothing else happens on the connection.
async fn next_frame(
    connection: &mut Connection,
    failed: impl Fn(io::Error) -> Refused,
) -> Result<Bytes, Refused> {
    loop {
        let taken = take_frame(&mut connection.buffer).map_err(|error| Refused::Failed(error.to_string()))?;
        if let Some(frame) = taken {
            return Ok(frame);
        }
        match connection.reader.read_buf(&mut connection.buffer).await {
            // What a server does that is not serving, or whose state is behind what we have seen.
            Ok(0) => return Err(Refused::Failed("closed by the server before it answered".into())),
            Ok(_) => {}
            Err(error) => return Err(failed(error)),
        }
    }
}
