//! Reading one ledger.

use std::sync::Arc;

use bindery_types::{EntryId, LedgerId};

use crate::client::Shared;
use crate::entry::Entry;
use crate::error::{OpenError, ReadError};
use crate::options::OpenMode;

/// A ledger opened for reading. Clones share what is known of it.
#[derive(Clone)]
pub struct LedgerReader {
    id: LedgerId,
}

impl LedgerReader {
    pub(crate) async fn open(
        _shared: Arc<Shared>,
        id: LedgerId,
        _password: &[u8],
        _how: OpenMode,
    ) -> Result<LedgerReader, OpenError> {
        let _ = id;
        Err(OpenError::ClientClosed)
    }

    /// The ledger.
    pub fn id(&self) -> LedgerId {
        self.id
    }

    /// Whether it ends where it ends now, for good.
    pub fn is_closed(&self) -> bool {
        false
    }

    /// The last entry of a closed ledger; the LAC (last add confirmed) known so far of an open one.
    pub fn last_add_confirmed(&self) -> Option<EntryId> {
        None
    }

    /// Sum of the payloads of a closed ledger.
    pub fn length_bytes(&self) -> Option<u64> {
        None
    }

    /// Asks the bookies of an open ledger for its LAC.
    pub async fn refresh(&self) -> Result<Option<EntryId>, ReadError> {
        Err(ReadError::ClientClosed)
    }

    /// Reads one entry up to the LAC.
    pub async fn read_entry(&self, entry: EntryId) -> Result<Entry, ReadError> {
        let _ = entry;
        Err(ReadError::ClientClosed)
    }

    /// Entries `first..=last`, in order, read ahead within the client's budget.
    pub fn read(&self, first: EntryId, last: EntryId) -> EntryStream {
        let _ = (first, last);
        EntryStream(())
    }

    /// As [`read`](Self::read), also behind the LAC: such entries may vanish again when the ledger is recovered.
    pub fn read_unconfirmed(&self, first: EntryId, last: EntryId) -> EntryStream {
        self.read(first, last)
    }

    /// Follows the ledger from `from` on; ends when the ledger is closed and read to its end.
    pub fn tail(&self, from: EntryId) -> TailStream {
        let _ = from;
        TailStream(())
    }
}

/// A run of entries, see [`LedgerReader::read`].
pub struct EntryStream(());

impl EntryStream {
    /// The next entry; `None` after the last one, or after an error. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Entry, ReadError>> {
        Some(Err(ReadError::ClientClosed))
    }
}

/// A ledger being followed, see [`LedgerReader::tail`].
pub struct TailStream(());

impl TailStream {
    /// The next entry, as soon as it is confirmed; `None` at the end of a closed ledger, or after an error. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Entry, ReadError>> {
        Some(Err(ReadError::ClientClosed))
    }
}
