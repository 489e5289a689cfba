//! Sockets of the admin port, which bound what a peer may take: time, and over TLS also bytes.

use crate::tls::limits::{BARREN_BYTES_MAX, HANDSHAKE_BYTES_MAX, PLAINTEXT_WEIGHT};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

/// A socket that fails when its peer takes too long to receive what is written. The time runs until it has received all: a byte now and
/// then is no progress. For requests there are hyper's deadline for heads and ours for bodies.
pub(super) struct PatientSocket {
    socket: TcpStream,
    patience: Duration,
    /// Set when the peer does not take something, until it has taken all.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Bytes that may be read before TLS gets something out of them, because the library keeps those of a message that is not whole.
    /// `None` without TLS.
    left: Option<usize>,
}

impl PatientSocket {
    pub(super) fn new(socket: TcpStream, patience: Duration) -> PatientSocket {
        PatientSocket { socket, patience, deadline: None, left: None }
    }

    /// The same, for a handshake of TLS.
    pub(super) fn of_handshake(self) -> PatientSocket {
        PatientSocket { left: Some(HANDSHAKE_BYTES_MAX), ..self }
    }

    /// The outcome of an attempt to write: an error when the peer has taken too long.
    fn within_patience<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for PatientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, into);
        if let Some(left) = &mut self.left {
            let Some(rest) = left.checked_sub(into.filled().len() - before) else {
                let why = "too many bytes of TLS with hardly anything in them";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
            };
            *left = rest;
        }
        read
    }
}

impl AsyncWrite for PatientSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.within_patience(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.within_patience(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper has written all it had.
        self.deadline = None;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // It does not wait for the peer, so it needs no deadline.
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// A connection after its handshake. As on the clients' port, each byte of plaintext allows for [`PLAINTEXT_WEIGHT`] of ciphertext,
/// and all of it for [`BARREN_BYTES_MAX`] more: messages of TLS itself, and records with hardly anything in them, end the connection
/// before they take memory. No ciphertext is received while plaintext waits, so a full record counts before the next one comes.
pub(super) struct TlsSocket(TlsStream<PatientSocket>);

impl TlsSocket {
    pub(super) fn new(mut stream: TlsStream<PatientSocket>) -> TlsSocket {
        stream.get_mut().0.left = Some(BARREN_BYTES_MAX);
        TlsSocket(stream)
    }

    /// The peer's own certificate (DER).
    pub(super) fn peer_certificate(&self) -> Option<&[u8]> {
        self.0.get_ref().1.peer_certificates()?.first().map(|own| &**own)
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.0).poll_read(context, into);
        let plaintext = into.filled().len() - before;
        if let Some(left) = &mut self.0.get_mut().0.left {
            *left = left.saturating_add(plaintext.saturating_mul(PLAINTEXT_WEIGHT)).min(BARREN_BYTES_MAX);
        }
        read
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
