//! The bytes of a connection: plain TCP, or whatever a [`Connector`](crate::hooks::Connector) made.
//!
//! # Data flow
//! ```text
//! task: try_write, try_read --> Tcp: the socket, as it is ready
//!                          \--> Boxed: polled with the waker of the task, which is woken when it is worth another try
//! ```
//!
//! # Invariants
//! 1. Plain TCP takes no other way than a match: no allocation, no dynamic call.
//! 2. A boxed stream that cannot go on has the task's waker when `WouldBlock` is returned, so that [`readable`] ends.
//! 3. Bytes given to a boxed stream are flushed, however often that takes.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// A connection that is not plain TCP, such as a TLS stream. Anything that reads and writes is one.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection's bytes.
pub enum ByteStream {
    /// Plain TCP: the fast way.
    Tcp(TcpStream),
    /// Anything else.
    Boxed(BoxedStream),
}

/// A stream that is not plain TCP; made with [`ByteStream::boxed`].
pub struct BoxedStream {
    stream: Box<dyn Stream>,
    /// Invariant 3.
    wants_flush: bool,
}

impl BoxedStream {
    /// The stream inside. It must not have unflushed bytes.
    pub(crate) fn into_inner(self) -> Box<dyn Stream> {
        self.stream
    }
}

impl std::fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ByteStream::Tcp(socket) => f.debug_tuple("Tcp").field(socket).finish(),
            ByteStream::Boxed(_) => f.debug_tuple("Boxed").finish_non_exhaustive(),
        }
    }
}

impl ByteStream {
    /// Any stream that reads and writes.
    pub fn boxed(stream: impl Stream + 'static) -> ByteStream {
        ByteStream::Boxed(BoxedStream { stream: Box::new(stream), wants_flush: false })
    }

    pub(super) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            ByteStream::Tcp(socket) => Some(socket),
            ByteStream::Boxed(_) => None,
        }
    }

    /// Writes what is taken without waiting.
    pub(super) fn try_write_vectored(
        &mut self,
        slices: &[IoSlice<'_>],
        context: &mut Context<'_>,
    ) -> io::Result<usize> {
        match self {
            ByteStream::Tcp(socket) => socket.try_write_vectored(slices),
            ByteStream::Boxed(boxed) => {
                let written =
                    ready_or_blocked(Pin::new(&mut boxed.stream).poll_write_vectored(context, slices));
                match written {
                    // It would be tried for ever.
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(_) => boxed.wants_flush = true,
                    Err(_) => {}
                }
                written
            }
        }
    }

    /// Lets what a boxed stream was given leave.
    pub(super) fn try_flush(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let ByteStream::Boxed(boxed) = self else { return Ok(()) };
        if boxed.wants_flush {
            match Pin::new(&mut boxed.stream).poll_flush(context) {
                Poll::Ready(outcome) => {
                    boxed.wants_flush = false;
                    outcome?;
                }
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Reads what is there without waiting; 0 is the end.
    pub(super) fn try_read(&mut self, buffer: &mut [u8], context: &mut Context<'_>) -> io::Result<usize> {
        match self {
            ByteStream::Tcp(socket) => socket.try_read(buffer),
            ByteStream::Boxed(boxed) => {
                let mut buffer = ReadBuf::new(buffer);
                ready_or_blocked(Pin::new(&mut boxed.stream).poll_read(context, &mut buffer))?;
                Ok(buffer.filled().len())
            }
        }
    }

    /// Before the conversation begins.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            ByteStream::Tcp(socket) => socket.write_all(bytes).await,
            ByteStream::Boxed(boxed) => {
                boxed.stream.write_all(bytes).await?;
                boxed.stream.flush().await
            }
        }
    }

    /// Before the conversation begins: not a byte more than asked for.
    pub(super) async fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            ByteStream::Tcp(socket) => socket.read_exact(buffer).await.map(drop),
            ByteStream::Boxed(boxed) => boxed.stream.read_exact(buffer).await.map(drop),
        }
    }
}

fn ready_or_blocked<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(ErrorKind::WouldBlock.into()),
    }
}

/// Until it is worth reading again; of a boxed stream, until anything woke the task. Cancel safe.
pub(super) async fn readable(tcp: Option<&TcpStream>) -> io::Result<()> {
    match tcp {
        Some(socket) => socket.readable().await,
        None => {
            woken().await;
            Ok(())
        }
    }
}

/// Until it is worth writing again. Of a boxed stream [`readable`] says so.
pub(super) async fn writable(tcp: Option<&TcpStream>) -> io::Result<()> {
    match tcp {
        Some(socket) => socket.writable().await,
        None => std::future::pending().await,
    }
}

/// Ends when it is polled again, which a task does when its waker was used. A use before the first poll counts as well: the
/// runtime polls such a task again.
async fn woken() {
    let mut is_first = true;
    let again = poll_fn(|_| match std::mem::take(&mut is_first) {
        true => Poll::Pending,
        false => Poll::Ready(()),
    });
    again.await;
}
