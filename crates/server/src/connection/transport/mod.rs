//! A connection's socket and what is spoken over it: plain frames, or TLS from START_TLS on. The one place that reads from
//! the socket and writes to it.
//!
//! # Invariants
//! 1. A transport becomes TLS at most once, while no answer is owed to its peer, and stays TLS.
//! 2. Written bytes count as sent once the kernel has them. Over TLS they count once they are encrypted, at most one record
//!    ahead of the kernel ([`tls`], invariant 2), in memory that is charged for every connection.
//! 3. Over TLS only the connection's own tasks write ([`tls`], invariant 1).
//! 4. Waiting for the transport to become readable returns at once while decrypted bytes are buffered: no wake-up is lost
//!    because the kernel has handed everything over already.
//!
//! Reading belongs to one task and has a state of its own ([`Inlet`]); everything else may be called by any thread. Nothing
//! here blocks.

mod inlet;
#[cfg(test)]
mod tests;
mod tls;
#[cfg(test)]
mod tls_tests;

pub(super) use inlet::Inlet;
pub(super) use tls::Processed;
pub(crate) use tls::{CLIENT_AUTH_BYTES, HANDSHAKE_BYTES_MAX, HELD_BYTES_MAX};

use crate::connection::output::outbox::Sink;
use crate::metrics::Batching;
use crate::sockets;
use rustls::ServerConnection;
use std::io::{self, IoSlice};
use std::sync::{Arc, OnceLock};
use tls::TlsLink;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// The socket of one connection. It counts its own writes, so that no caller has to.
pub(super) struct Transport {
    socket: TcpStream,
    /// Set by the upgrade.
    tls: OnceLock<Box<TlsLink>>,
    /// Notified when reading leaves ciphertext pending.
    sender: Arc<Notify>,
    counters: Arc<Batching>,
}

impl Transport {
    /// Takes over a socket that nothing was read from. `sender` is notified when
    /// ciphertext is pending that it must push.
    pub(super) fn new(socket: TcpStream, sender: Arc<Notify>, counters: Arc<Batching>) -> Transport {
        Transport { socket, tls: OnceLock::new(), sender, counters }
    }

    /// Makes the close of the socket a reset ([`sockets::reset_on_close`]).
    pub(super) fn reset_on_close(&self) -> io::Result<()> {
        sockets::reset_on_close(&self.socket)
    }

    /// Waits until the peer takes bytes, or the socket breaks. Cancel safe.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// True from the upgrade on.
    pub(super) fn is_tls(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Switches to TLS (invariant 1). The handshake follows, driven through the [`Inlet`].
    fn upgrade(&self, session: ServerConnection, records_max: u64) {
        let is_first = self.tls.set(Box::new(TlsLink::new(session, records_max))).is_ok();
        assert!(is_first, "a transport becomes TLS once (transport invariant 1)");
    }

    /// Advances the handshake with the bytes received so far. This may compute for milliseconds, so it must not run on a
    /// thread that other tasks need.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] with a [`rustls::Error`]; the alert for the peer is pending.
    pub(super) fn process_handshake(&self) -> io::Result<Processed> {
        self.tls.get().expect("the transport was upgraded").process()
    }

    /// True while the handshake of TLS is not over.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.get().is_some_and(|tls| tls.is_handshaking())
    }

    /// The peer's own certificate (DER), if it has presented one. For the end of the handshake: it copies.
    pub(super) fn peer_certificate(&self) -> Option<Vec<u8>> {
        self.tls.get().and_then(|tls| tls.peer_certificate())
    }

    /// True when TLS has sent, or has to send, something.
    fn has_answered(&self) -> bool {
        self.has_pending() || self.pending_progress() > 0
    }

    /// True when bytes that count as sent still wait for the kernel.
    pub(super) fn has_pending(&self) -> bool {
        self.tls.get().is_some_and(|tls| tls.has_pending())
    }

    /// Writes pending bytes as far as the kernel takes them. True when none are left.
    ///
    /// # Errors
    /// The socket is broken.
    pub(super) fn push_pending(&self) -> io::Result<bool> {
        match self.tls.get() {
            None => Ok(true),
            Some(tls) => tls.push_pending(&self.socket),
        }
    }

    /// Grows whenever the kernel takes some of the pending bytes.
    pub(super) fn pending_progress(&self) -> u64 {
        self.tls.get().map_or(0, |tls| tls.sent())
    }

    /// True when the connection must end soon, because its keys may encrypt little more ([`tls`], invariant 5).
    pub(super) fn has_worn_keys(&self) -> bool {
        self.tls.get().is_some_and(|tls| tls.has_worn_keys())
    }

    /// Announces the end of the stream to the peer, if the protocol can express that and the kernel takes it now.
    pub(super) fn end(&self) {
        if let Some(tls) = self.tls.get() {
            tls.end(&self.socket);
        }
    }
}

impl Sink for Transport {
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.counters.socket_writes.add(1);
        match self.tls.get() {
            None => self.socket.try_write_vectored(slices),
            Some(tls) => tls.try_write_vectored(&self.socket, slices),
        }
    }
}
