//! What the writers of a client know to be confirmed: its readers of the same ledgers need not wait until bookies know it.
//!
//! # Invariants
//! 1. A reader learns only of a writer of its own ledger, not of a former one with the same id: both have drawn the same creation token.
//! 2. A reader is told only of entries that an ack quorum has: a recovery by another client keeps them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bindery_types::{EntryId, LedgerId, LedgerMetadata};
use parking_lot::Mutex;

/// The LAC (last add confirmed) of a writer; -1 for none.
type Confirmed = Arc<AtomicI64>;

/// See the module. A clone is the same.
#[derive(Clone, Default)]
pub(crate) struct OwnWriters(Arc<Mutex<HashMap<(LedgerId, i64), Confirmed>>>);

/// A writer's registration, which ends when it is dropped. A ledger without a creation token is not registered.
pub(crate) struct OwnWriter {
    writers: OwnWriters,
    told: Option<((LedgerId, i64), Confirmed)>,
}

impl OwnWriters {
    pub fn begin(&self, id: LedgerId, metadata: &LedgerMetadata, confirmed: Option<EntryId>) -> OwnWriter {
        let told = metadata.creation_token.map(|token| {
            let confirmed = Arc::new(AtomicI64::new(EntryId::to_wire(confirmed)));
            self.0.lock().insert((id, token), confirmed.clone());
            ((id, token), confirmed)
        });
        OwnWriter { writers: self.clone(), told }
    }

    /// The last entry that a writer of this client knows to be confirmed.
    pub fn confirmed(&self, id: LedgerId, metadata: &LedgerMetadata) -> Option<EntryId> {
        let writers = self.0.lock();
        let confirmed = writers.get(&(id, metadata.creation_token?))?;
        EntryId::new(confirmed.load(Ordering::Acquire))
    }
}

impl OwnWriter {
    /// To be called before anybody is told that the entry is confirmed.
    pub fn tell(&self, confirmed: Option<EntryId>) {
        if let Some((_, told)) = &self.told {
            told.store(EntryId::to_wire(confirmed), Ordering::Release);
        }
    }
}

impl Drop for OwnWriter {
    fn drop(&mut self) {
        let Some((key, confirmed)) = &self.told else { return };
        let mut writers = self.writers.0.lock();
        // The next writer of the ledger may have come meanwhile.
        if writers.get(key).is_some_and(|other| Arc::ptr_eq(other, confirmed)) {
            writers.remove(key);
        }
    }
}
