//! Ledgers as the client shows them, kept while they are watched: looks at an open ledger follow each other.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bindery_client::{BulkReader, LedgerState, LedgerView, ReadError};
use bindery_metadata::Layout;
use bindery_metadata::layout::LedgerError;
use bindery_types::{Creation, EntryId, LedgerId};
use parking_lot::Mutex;

use crate::core::{Look, Sighting};

/// The views of one tierer.
pub(super) struct Views {
    reader: BulkReader,
    layout: Layout,
    /// When the cluster was made.
    cluster_ms: OnceLock<i64>,
    /// Bounded by the ledgers that the core watches, and those that it forgot since the last cleaning.
    open: Mutex<HashMap<LedgerId, LedgerView>>,
}

impl Views {
    pub fn new(reader: BulkReader, layout: Layout) -> Views {
        Views { reader, layout, cluster_ms: OnceLock::new(), open: Mutex::new(HashMap::new()) }
    }

    pub fn reader(&self) -> &BulkReader {
        &self.reader
    }

    /// Forgets those that are not watched any more.
    pub fn retain(&self, is_watched: impl Fn(LedgerId) -> bool) {
        self.open.lock().retain(|ledger, _| is_watched(*ledger));
    }

    pub async fn get(&self, ledger: LedgerId) -> Result<LedgerView, ReadError> {
        if let Some(view) = self.open.lock().get(&ledger) {
            return Ok(view.clone());
        }
        let view = self.reader.open(ledger).await?;
        self.open.lock().insert(ledger, view.clone());
        Ok(view)
    }

    /// Looks at a ledger: its metadata as it is now, and of an open one the LAC (last add confirmed) of its bookies.
    pub async fn look(&self, ledger: LedgerId, wall_ms: i64) -> Look {
        match self.seen(ledger, wall_ms).await {
            Ok(sighting) => Look::Found(sighting),
            Err(ReadError::Deleted(_)) => {
                self.open.lock().remove(&ledger);
                Look::Gone
            }
            // Its bytes cannot be read: never to be taken for a ledger that is gone.
            Err(error) => Look::Failed(error.to_string()),
        }
    }

    async fn seen(&self, ledger: LedgerId, wall_ms: i64) -> Result<Sighting, ReadError> {
        let known = self.open.lock().get(&ledger).cloned();
        let view = match known {
            // Repair moves replicas of closed ledgers, in their metadata.
            Some(view) if view.is_sealed() => {
                view.reread().await?;
                view
            }
            Some(view) => view,
            None => self.get(ledger).await?,
        };
        if !view.is_sealed() {
            // If too few bookies answer, nothing is known of its end.
            view.refresh().await?;
        }
        let (mut metadata, _) = view.metadata();
        let creation = Creation::of(&metadata, view.created_ms(), self.cluster_ms().await?);
        // Objects keep it: a ledger that is restored has a node of another time.
        metadata.created_ms = Some(creation.ms);
        let length_bytes = match metadata.state {
            LedgerState::Closed { length_bytes, .. } => Some(length_bytes),
            LedgerState::Open | LedgerState::InRecovery => None,
        };
        let available: Option<EntryId> = view.last_readable();
        let age_ms = wall_ms.saturating_sub(view.created_ms());
        let age = Duration::from_millis(u64::try_from(age_ms).unwrap_or(0));
        Ok(Sighting { metadata: Arc::new(metadata), available, length_bytes, age, creation })
    }

    /// Read once: the tierer works for one cluster.
    async fn cluster_ms(&self) -> Result<Option<i64>, ReadError> {
        if let Some(known) = self.cluster_ms.get() {
            return Ok(Some(*known));
        }
        let found = self.layout.made_ms().await;
        let found = found.map_err(|error| ReadError::Metadata(LedgerError::Store(error)))?;
        Ok(found.map(|found| *self.cluster_ms.get_or_init(|| found)))
    }
}
