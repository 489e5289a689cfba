//! Writer and reader of one ledger, blocking.

use std::fmt;
use std::ops::RangeBounds;

use bindery_types::{EntryId, LedgerId, Quorum};

use super::{Calls, Error};
use crate::entry::Entry;
use crate::error::{AppendError, CloseError, ForceError, ReadError, TryAppendError};
use crate::reader::{EntryStream, TailStream};
use crate::verify::VerifyReport;
use crate::writer::{Closed, Progress};

/// The writer of a ledger; see [`LedgerWriter`](crate::LedgerWriter). It may be shared by threads: entries get their ids in
/// the order of the calls.
pub struct LedgerWriter {
    pub(super) calls: Calls,
    pub(super) writer: crate::LedgerWriter,
}

impl LedgerWriter {
    /// The ledger.
    pub fn id(&self) -> LedgerId {
        self.writer.id()
    }

    /// The numbers of bookies: of the ensemble, of copies of each entry, and of acknowledgements.
    pub fn quorum(&self) -> Quorum {
        self.writer.quorum()
    }

    /// The largest payload that fits an entry.
    pub fn payload_bytes_max(&self) -> u64 {
        self.writer.payload_bytes_max()
    }

    /// Waits for room, gives the entry its id and sends it; does not wait until it is confirmed.
    pub fn enqueue(&self, payload: &[u8]) -> Result<EntryId, Error<AppendError>> {
        self.calls.wait(self.writer.enqueue(payload))
    }

    /// The same without waiting for room, so it may be called anywhere.
    pub fn try_enqueue(&self, payload: &[u8]) -> Result<EntryId, TryAppendError> {
        self.writer.try_enqueue(payload)
    }

    /// Appends an entry and waits until it, and all before it, are confirmed.
    pub fn append(&self, payload: &[u8]) -> Result<EntryId, Error<AppendError>> {
        self.calls.wait(self.writer.append(payload))
    }

    /// What is confirmed now, and why nothing more will be, if so.
    pub fn progress(&self) -> Progress {
        self.writer.progress().borrow().clone()
    }

    /// Waits until every entry enqueued so far is confirmed, and bookies know it. Returns the last confirmed entry. See
    /// [`drain`](crate::LedgerWriter::drain).
    pub fn drain(&self) -> Result<Option<EntryId>, Error<AppendError>> {
        self.calls.wait(self.writer.drain())
    }

    /// Has every bookie of the ensemble sync; see [`force`](crate::LedgerWriter::force).
    pub fn force(&self) -> Result<Option<EntryId>, Error<ForceError>> {
        self.calls.wait(self.writer.force())
    }

    /// Drains, then closes the ledger for good. Inside a runtime the ledger is left open.
    pub fn close(self) -> Result<Closed, Error<CloseError>> {
        self.calls.wait(self.writer.close())
    }

    /// Drains, and leaves the ledger open for the next [`open_for_append`](super::Client::open_for_append).
    pub fn hand_over(self) -> Result<Option<EntryId>, Error<CloseError>> {
        self.calls.wait(self.writer.hand_over())
    }
}

impl fmt::Debug for LedgerWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.writer.fmt(f)
    }
}

/// A ledger opened for reading; see [`LedgerReader`](crate::LedgerReader). As an iterator (`for entry in &reader`) it gives
/// all entries that are confirmed, as [`read`](Self::read) of `..` does.
#[derive(Clone)]
pub struct LedgerReader {
    pub(super) calls: Calls,
    pub(super) reader: crate::LedgerReader,
}

impl LedgerReader {
    /// The ledger.
    pub fn id(&self) -> LedgerId {
        self.reader.id()
    }

    /// Whether the ledger was closed, as far as this reader knows.
    pub fn is_closed(&self) -> bool {
        self.reader.is_closed()
    }

    /// The last entry of a closed ledger; the LAC (last add confirmed) known so far of an open one.
    pub fn last_add_confirmed(&self) -> Option<EntryId> {
        self.reader.last_add_confirmed()
    }

    /// Sum of the payloads of a closed ledger; `None` while it is open.
    pub fn length_bytes(&self) -> Option<u64> {
        self.reader.length_bytes()
    }

    /// Asks the bookies of an open ledger for its LAC (last add confirmed), and the metadata whether it was closed.
    pub fn refresh(&self) -> Result<Option<EntryId>, Error<ReadError>> {
        self.calls.wait(self.reader.refresh())
    }

    /// Reads one entry; see [`read_entry`](crate::LedgerReader::read_entry).
    pub fn read_entry(&self, entry: EntryId) -> Result<Entry, Error<ReadError>> {
        self.calls.wait(self.reader.read_entry(entry))
    }

    /// These entries, in order, read ahead: all that are confirmed where there is no last one (`..`); see
    /// [`read`](crate::LedgerReader::read).
    pub fn read(&self, entries: impl RangeBounds<EntryId>) -> Entries {
        Entries { calls: self.calls.clone(), stream: Some(self.reader.read(entries)) }
    }

    /// Entries `first..=last`, also behind the LAC (last add confirmed); see
    /// [`read_unconfirmed`](crate::LedgerReader::read_unconfirmed).
    pub fn read_unconfirmed(&self, first: EntryId, last: EntryId) -> Entries {
        Entries { calls: self.calls.clone(), stream: Some(self.reader.read_unconfirmed(first, last)) }
    }

    /// Follows the ledger from `from` on: the iterator waits for entries, and ends when the ledger is closed and read to
    /// its end.
    pub fn tail(&self, from: EntryId) -> Following {
        Following { calls: self.calls.clone(), stream: Some(self.reader.tail(from)) }
    }

    /// Looks at every copy of the entries `first..=last`, to the end; see [`verify`](crate::LedgerReader::verify).
    pub fn verify(&self, first: EntryId, last: Option<EntryId>) -> Result<VerifyReport, Error<ReadError>> {
        self.calls.wait(async {
            let mut look = self.reader.verify(first, last).await?;
            while look.step().await? {}
            Ok(look.into_report())
        })
    }
}

impl IntoIterator for &LedgerReader {
    type Item = Result<Entry, Error<ReadError>>;
    type IntoIter = Entries;

    fn into_iter(self) -> Entries {
        self.read(..)
    }
}

impl fmt::Debug for LedgerReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reader.fmt(f)
    }
}

/// Entries of a run, in order. Ends after the last one, or after an error.
pub struct Entries {
    calls: Calls,
    /// `None` when it is over.
    stream: Option<EntryStream>,
}

/// Entries of a ledger as they come. Ends after the last one of a closed ledger, or after an error.
pub struct Following {
    calls: Calls,
    /// `None` when it is over.
    stream: Option<TailStream>,
}

macro_rules! iterator {
    ($name:ident) => {
        impl Iterator for $name {
            type Item = Result<Entry, Error<ReadError>>;

            fn next(&mut self) -> Option<Self::Item> {
                let stream = self.stream.as_mut()?;
                let next = match self.calls.wait_for(stream.next()) {
                    Some(next) => next.map(|entry| entry.map_err(Error::Failed)),
                    None => Some(Err(Error::InsideRuntime)),
                };
                if !matches!(next, Some(Ok(_))) {
                    self.stream = None;
                }
                next
            }
        }

        impl std::iter::FusedIterator for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("is_over", &self.stream.is_none())
                    .finish_non_exhaustive()
            }
        }
    };
}

iterator!(Entries);
iterator!(Following);
