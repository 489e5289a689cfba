//! The payloads of a stream of entries, as bytes.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_core::Stream;
use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

use crate::entry::Entry;
use crate::error::ReadError;

/// The payloads of entries, one behind the other: tokio's [`AsyncRead`] and [`AsyncBufRead`] over an
/// [`EntryStream`](crate::EntryStream) or [`TailStream`](crate::TailStream), or any stream of entries. Made by
/// [`LedgerReader::byte_reader`](crate::LedgerReader::byte_reader), or with [`ByteReader::new`]:
///
/// ```no_run
/// # async fn example(reader: bindery_client::LedgerReader) -> std::io::Result<()> {
/// use bindery_client::{ByteReader, EntryId};
///
/// // Follows the ledger until it is closed.
/// let mut bytes = ByteReader::new(reader.tail(EntryId::FIRST));
/// tokio::io::copy_buf(&mut bytes, &mut tokio::io::sink()).await?;
/// # Ok(()) }
/// ```
///
/// Read-ahead is the stream's, so within the client's memory limit; this holds one payload. It needs no
/// further buffer. Cancel safe: a read that is dropped has taken no bytes.
#[must_use = "nothing is read before it is polled"]
pub struct ByteReader<S> {
    entries: S,
    /// What is left of an entry.
    payload: Bytes,
    end: Option<Result<(), ReadError>>,
}

impl<S> ByteReader<S> {
    /// Reads the payloads of these entries.
    pub fn new(entries: S) -> ByteReader<S> {
        ByteReader { entries, payload: Bytes::new(), end: None }
    }

    /// The entries from the next one on, and what is left of the one before it.
    pub fn into_parts(self) -> (S, Bytes) {
        (self.entries, self.payload)
    }
}

impl<S: Stream<Item = Result<Entry, ReadError>> + Unpin> ByteReader<S> {
    /// Has bytes, unless this is the end. Empty entries are passed over.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.payload.is_empty() {
            if let Some(end) = &self.end {
                return Poll::Ready(end.clone().map_err(io::Error::from));
            }
            match ready!(Pin::new(&mut self.entries).poll_next(context)) {
                Some(Ok(entry)) => self.payload = entry.payload,
                Some(Err(error)) => self.end = Some(Err(error)),
                None => self.end = Some(Ok(())),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream<Item = Result<Entry, ReadError>> + Unpin> AsyncRead for ByteReader<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if into.remaining() > 0 {
            ready!(this.poll_fill(context))?;
            let part = this.payload.split_to(this.payload.len().min(into.remaining()));
            into.put_slice(&part);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream<Item = Result<Entry, ReadError>> + Unpin> AsyncBufRead for ByteReader<S> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_fill(context))?;
        Poll::Ready(Ok(&this.payload))
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        self.get_mut().payload.advance(bytes);
    }
}

impl<S: fmt::Debug> fmt::Debug for ByteReader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteReader")
            .field("entries", &self.entries)
            .field("payload_bytes", &self.payload.len())
            .field("end", &self.end)
            .finish()
    }
}
