//! The writing half of a connection's socket. It counts what is written, so that nobody who writes has to.

use super::outbox::Sink;
use crate::metrics::Batching;
use crate::sockets;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tokio::net::tcp::OwnedWriteHalf;

/// A socket that never blocks.
pub struct CountedSocket {
    half: OwnedWriteHalf,
    counters: Arc<Batching>,
}

impl CountedSocket {
    /// Counts the writes to `half` in `counters`.
    pub fn new(half: OwnedWriteHalf, counters: Arc<Batching>) -> CountedSocket {
        CountedSocket { half, counters }
    }

    /// Makes the close of it a reset ([`sockets::reset_on_close`]).
    pub fn reset_on_close(&self) -> io::Result<()> {
        sockets::reset_on_close(self.half.as_ref())
    }

    /// Waits until the peer takes bytes, or the socket breaks. Cancel safe.
    pub async fn writable(&self) -> io::Result<()> {
        self.half.writable().await
    }
}

impl Sink for CountedSocket {
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.counters.socket_writes.add(1);
        self.half.try_write_vectored(slices)
    }
}
