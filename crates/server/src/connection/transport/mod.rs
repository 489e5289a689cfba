//! A connection's socket: the one place that reads from it and writes to it.
//!
//! Reading belongs to one task and has a state of its own ([`Inlet`]); everything else may be called by any thread. Nothing
//! here blocks.

mod inlet;
#[cfg(test)]
mod tests;

pub(super) use inlet::Inlet;

use super::outbox::Sink;
use crate::metrics::Batching;
use crate::sockets;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::net::TcpStream;

/// The socket of one connection. It counts what is written, so that no caller has to.
pub(super) struct Transport {
    socket: TcpStream,
    counters: Arc<Batching>,
}

impl Transport {
    /// Takes over a socket that nothing was read from.
    pub(super) fn new(socket: TcpStream, counters: Arc<Batching>) -> Transport {
        Transport { socket, counters }
    }

    /// Makes the close of the socket a reset ([`sockets::reset_on_close`]).
    pub(super) fn reset_on_close(&self) -> io::Result<()> {
        sockets::reset_on_close(&self.socket)
    }

    /// Waits until the peer takes bytes, or the socket breaks. Cancel safe.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }
}

impl Sink for Transport {
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.counters.socket_writes.add(1);
        self.socket.try_write_vectored(slices)
    }
}
