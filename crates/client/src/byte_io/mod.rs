//! Bytes over a ledger: tokio's [`AsyncWrite`](tokio::io::AsyncWrite), [`AsyncRead`](tokio::io::AsyncRead) and
//! [`AsyncBufRead`](tokio::io::AsyncBufRead), for data that has no entries of its own.
//!
//! # Data flow
//! ```text
//! write -> buffer of one entry -> LedgerWriter::enqueue -> bookies      flush: all of it is acknowledged
//!                                                                        shutdown: and the ledger closed
//! read <- payload of one entry <- EntryStream or TailStream <- bookies
//! ```
//!
//! # Invariants
//! 1. Bytes are stored in the order in which they were written, once each; those of a write that is pending are not taken.
//! 2. An entry has [`ByteWriter::entry_size_bytes`] bytes, except before a flush or the end, where it has what is left; it is
//!    never empty. The boundaries of writes are not kept.
//! 3. An error is the answer to every call behind it: a reader that failed does not look as if it had come to the end.
//!
//! # Limits     a writer: one entry, beside what the client's memory limit has room for; a reader: one payload, beside what
//! its stream reads ahead within that limit
//!
//! # Errors
//! [`io::Error`]s with the client's error inside (`get_ref`, `into_inner`, `downcast`), and the kind that `From` says.

mod reader;
mod writer;

use std::io::{self, ErrorKind};

pub use self::reader::ByteReader;
pub use self::writer::{ByteWriter, ENTRY_SIZE_BYTES_DEFAULT};
use crate::error::{AppendError, CloseError, ReadError, WhyStopped};

/// [`UnexpectedEof`](ErrorKind::UnexpectedEof) behind the end, [`NotFound`](ErrorKind::NotFound) for a deleted ledger,
/// [`NotConnected`](ErrorKind::NotConnected) after the client was closed, otherwise [`Other`](ErrorKind::Other). The error
/// itself is inside.
impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> io::Error {
        let kind = match &error {
            ReadError::BeyondEnd { .. } => ErrorKind::UnexpectedEof,
            ReadError::Deleted(_) => ErrorKind::NotFound,
            ReadError::ClientClosed => ErrorKind::NotConnected,
            ReadError::NoEntry { .. }
            | ReadError::Unavailable { .. }
            | ReadError::LacUnknown { .. }
            | ReadError::Metadata(_) => ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// [`InvalidInput`](ErrorKind::InvalidInput) for an entry that is too large; of a writer that can write no more
/// [`NotFound`](ErrorKind::NotFound) when its ledger was deleted, [`PermissionDenied`](ErrorKind::PermissionDenied) when a
/// bookie refuses it, [`NotConnected`](ErrorKind::NotConnected) after this program closed it or the client, otherwise
/// [`BrokenPipe`](ErrorKind::BrokenPipe). The error itself is inside.
impl From<AppendError> for io::Error {
    fn from(error: AppendError) -> io::Error {
        let kind = match &error {
            AppendError::TooLarge { .. } => ErrorKind::InvalidInput,
            AppendError::Stopped(stopped) => kind_of(&stopped.why),
        };
        io::Error::new(kind, error)
    }
}

/// The kinds of an [`AppendError`], and [`Other`](ErrorKind::Other) when bookies did not sync. The error itself is inside.
impl From<CloseError> for io::Error {
    fn from(error: CloseError) -> io::Error {
        let kind = match &error {
            CloseError::Stopped(stopped) | CloseError::GivenBack(stopped) => kind_of(&stopped.why),
            CloseError::ClosedElsewhere { .. } => ErrorKind::BrokenPipe,
            CloseError::NotForced { .. } => ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

fn kind_of(why: &WhyStopped) -> ErrorKind {
    match why {
        WhyStopped::Deleted => ErrorKind::NotFound,
        WhyStopped::Unauthorized { .. } => ErrorKind::PermissionDenied,
        WhyStopped::Closing | WhyStopped::ClientClosed => ErrorKind::NotConnected,
        WhyStopped::Fenced
        | WhyStopped::Closed
        | WhyStopped::NotEnoughBookies(_)
        | WhyStopped::TooManyChanges { .. }
        | WhyStopped::DeferredSync(_)
        | WhyStopped::MetadataChanged
        | WhyStopped::Metadata(_)
        | WhyStopped::Full => ErrorKind::BrokenPipe,
    }
}
