//! Reading one ledger: entries, runs of entries, and a ledger that grows.
//!
//! # Parts
//! `state` metadata and LAC (last add confirmed) · `fetch` entries from replicas · `race` which replica, and when ·
//! `stream` read-ahead · `tail` following

mod fetch;
#[cfg(test)]
mod health_tests;
mod race;
mod state;
mod stream;
mod tail;
#[cfg(test)]
mod tests;

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_types::{EntryId, LedgerId, LedgerState};

pub(crate) use self::state::{Check, ReaderState, Replicas};
pub use self::stream::EntryStream;
pub use self::tail::TailStream;
use crate::byte_io::ByteReader;
use crate::entry::Entry;
use crate::error::{OpenError, ReadError, RecoveryError};
use crate::options::OpenMode;
use crate::recovery::recover;
use crate::shared::{Shared, check_password};

/// A ledger opened for reading. Clones share what is known of it.
#[derive(Clone)]
pub struct LedgerReader {
    state: Arc<ReaderState>,
}

impl LedgerReader {
    pub(crate) fn state(&self) -> &Arc<ReaderState> {
        &self.state
    }

    pub(crate) async fn open(
        shared: Arc<Shared>,
        id: LedgerId,
        password: &[u8],
        how: OpenMode,
    ) -> Result<LedgerReader, OpenError> {
        let stored = shared.stored(id).await.map_err(|error| match error {
            LedgerError::NotFound(_) => OpenError::NotFound(id),
            LedgerError::Store(StoreError::Closed) => OpenError::ClientClosed,
            error => OpenError::Metadata(error),
        })?;
        let secret = check_password(&stored.metadata, password).ok_or(OpenError::WrongPassword(id))?;
        let is_closed = matches!(stored.metadata.state, LedgerState::Closed { .. });
        let created_ms = stored.created_ms;
        let stored = match how {
            OpenMode::Recover if !is_closed => {
                let recovered = recover(&shared, id, &secret, stored).await.map_err(|error| match error {
                    RecoveryError::Metadata(LedgerError::NotFound(_)) => OpenError::NotFound(id),
                    other => OpenError::Recovery(other),
                })?;
                StoredLedger { metadata: recovered.metadata, version: recovered.version, created_ms }
            }
            OpenMode::Recover | OpenMode::ReadOnly => stored,
        };
        let state = Arc::new(ReaderState::new(shared, id, &secret, stored));
        if state.end().is_none() {
            state.refresh().await.map_err(|error| match error {
                ReadError::Deleted(_) => OpenError::NotFound(id),
                other => OpenError::Lac(other),
            })?;
        }
        Ok(LedgerReader { state })
    }

    /// The ledger.
    pub fn id(&self) -> LedgerId {
        self.state.id
    }

    /// Whether the ledger was closed, as far as this reader knows: it ends where it ends now, for good.
    pub fn is_closed(&self) -> bool {
        self.state.end().is_some()
    }

    /// The last entry of a closed ledger; the LAC (last add confirmed) known so far of an open one.
    pub fn last_add_confirmed(&self) -> Option<EntryId> {
        self.state.lac()
    }

    /// Sum of the payloads of a closed ledger; `None` while it is open.
    pub fn length_bytes(&self) -> Option<u64> {
        self.state.end().map(|(_, length_bytes)| length_bytes)
    }

    /// Asks the bookies of an open ledger for its LAC (last add confirmed), and the metadata whether it was closed.
    pub async fn refresh(&self) -> Result<Option<EntryId>, ReadError> {
        self.state.refresh().await
    }

    /// Reads one entry up to the LAC (last add confirmed). If the entry is beyond the known LAC, the LAC is read again.
    pub async fn read_entry(&self, entry: EntryId) -> Result<Entry, ReadError> {
        let mut stream = self.read(entry..=entry);
        stream.next().await.expect("a run of one entry has one outcome")
    }

    /// These entries, in order, read ahead within the client's budget.
    ///
    /// - With a last entry (`EntryId::FIRST..=last`) all of them, or an error. None when the last one is below the first.
    /// - Without (`..` for the whole ledger, `first..`) all that are confirmed. Before the stream ends, the LAC (last add
    ///   confirmed) of an open ledger is read again, so everything is there that was announced before it ended. A writer that
    ///   adds faster than this is read keeps it going: name a last entry then, such as
    ///   [`last_add_confirmed`](Self::last_add_confirmed). To wait for more there is [`tail`](Self::tail).
    ///
    /// # Errors
    /// The first [`EntryStream::next`] says [`ReadError::BeyondEnd`] when there is a last entry and it is behind the end or, of an open
    /// ledger, the LAC (last add confirmed).
    pub fn read(&self, entries: impl RangeBounds<EntryId>) -> EntryStream {
        let state = self.state.clone();
        let first = match entries.start_bound() {
            Bound::Included(first) => Some(*first),
            Bound::Excluded(before) => before.get().checked_add(1).and_then(EntryId::new),
            Bound::Unbounded => Some(EntryId::FIRST),
        };
        let Some(first) = first else { return EntryStream::of_nothing(state) };
        let last = match entries.end_bound() {
            Bound::Included(last) => Some(*last),
            Bound::Excluded(behind) => EntryId::new(behind.get() - 1),
            Bound::Unbounded => return EntryStream::without_end(state, first),
        };
        match last {
            Some(last) => EntryStream::new(state, first, last, false),
            None => EntryStream::of_nothing(state),
        }
    }

    /// As [`read`](Self::read), also behind the LAC (last add confirmed) of an open ledger: such entries may be there or
    /// not, and may vanish when it is recovered.
    pub fn read_unconfirmed(&self, first: EntryId, last: EntryId) -> EntryStream {
        EntryStream::new(self.state.clone(), first, last, true)
    }

    /// The bytes of these entries, one behind the other: `..` for all that are confirmed, which may be none.
    ///
    /// ```no_run
    /// # async fn example(reader: bindery_client::LedgerReader) -> std::io::Result<()> {
    /// use tokio::io::AsyncReadExt;
    ///
    /// let mut all = Vec::new();
    /// reader.byte_reader(..).read_to_end(&mut all).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`read`](Self::read), inside an [`io::Error`](std::io::Error).
    pub fn byte_reader(&self, entries: impl RangeBounds<EntryId>) -> ByteReader<EntryStream> {
        ByteReader::new(self.read(entries))
    }

    /// Follows the ledger from `from` on: waits for entries, ends when the ledger is closed and read to its end.
    pub fn tail(&self, from: EntryId) -> TailStream {
        TailStream::new(self.state.clone(), from)
    }
}

impl std::fmt::Debug for LedgerReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerReader").field("id", &self.state.id).finish_non_exhaustive()
    }
}
