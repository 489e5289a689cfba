//! Writing one ledger.

use std::sync::Arc;

use bindery_metadata::store::Version;
use bindery_types::{EntryId, LedgerId, LedgerMetadata, LedgerSecret};
use tokio::sync::watch;

use crate::client::Shared;
use crate::error::{AppendError, CloseError, Stopped, WhyStopped};

/// Where a writer stands. Adds complete strictly in order, so one number says all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// The last confirmed entry: it and all before it are safe.
    pub confirmed: Option<EntryId>,
    /// Why nothing more will be confirmed.
    pub failure: Option<AppendError>,
}

/// A ledger that was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// Its last entry.
    pub last_entry: Option<EntryId>,
    /// Sum of its payloads.
    pub length_bytes: u64,
}

/// Where the writer before this one stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TakenOver {
    pub token: u64,
    pub next: EntryId,
    pub length_bytes: u64,
}

/// The writer of a ledger. Its methods may be called from several tasks; entries get their ids in the order of the
/// calls.
pub struct LedgerWriter {
    id: LedgerId,
    progress: watch::Sender<Progress>,
}

impl LedgerWriter {
    pub(crate) fn start(
        _shared: Arc<Shared>,
        id: LedgerId,
        _metadata: LedgerMetadata,
        _version: Version,
        _secret: LedgerSecret,
        _taken_over: Option<TakenOver>,
    ) -> LedgerWriter {
        LedgerWriter { id, progress: watch::channel(Progress::default()).0 }
    }

    fn stopped(&self) -> Stopped {
        Stopped { ledger: self.id, last_confirmed: None, why: WhyStopped::ClientClosed }
    }

    /// The ledger.
    pub fn id(&self) -> LedgerId {
        self.id
    }

    /// Waits for room, gives the entry its id and sends it to its write set. Does not wait for the acknowledgement.
    /// Cancel safe: a dropped call has taken no id.
    pub async fn enqueue(&self, payload: &[u8]) -> Result<EntryId, AppendError> {
        let _ = payload;
        Err(self.stopped().into())
    }

    /// [`enqueue`](Self::enqueue), then waits until the entry is confirmed.
    pub async fn append(&self, payload: &[u8]) -> Result<EntryId, AppendError> {
        self.enqueue(payload).await
    }

    /// What is confirmed, as it moves.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Waits until every entry enqueued so far is confirmed; the last confirmed entry.
    pub async fn drain(&self) -> Result<Option<EntryId>, AppendError> {
        Err(self.stopped().into())
    }

    /// Drains, then closes the ledger for good.
    pub async fn close(self) -> Result<Closed, CloseError> {
        Err(self.stopped().into())
    }

    /// Drains, announces the last entry, and leaves the ledger open for the next
    /// [`open_for_append`](crate::Client::open_for_append).
    pub async fn hand_over(self) -> Result<Option<EntryId>, CloseError> {
        Err(self.stopped().into())
    }
}
