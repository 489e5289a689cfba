//! The tier secret of the cluster, read from metadata when it is first needed.
//!
//! # Invariants
//! 1. It is read again after a bookie refused it: somebody may have had another one drawn.
//! 2. None is remembered: the first bookie with object storage draws it when it starts.

use bindery_metadata::StoreError;
use bindery_metadata::layout::TierSecretNode;
use bindery_types::TierSecret;
use parking_lot::Mutex;

/// See the module.
#[derive(Default)]
pub(crate) struct KnownSecret(Mutex<Option<TierSecret>>);

impl KnownSecret {
    /// `None` in a cluster whose bookies have drawn none: those of earlier releases need none.
    pub async fn get(&self, node: &TierSecretNode) -> Result<Option<TierSecret>, StoreError> {
        let known = self.0.lock().clone();
        if known.is_some() {
            return Ok(known);
        }
        let found = node.get().await?;
        self.0.lock().clone_from(&found);
        Ok(found)
    }

    /// A bookie refused it.
    pub fn forget(&self) {
        *self.0.lock() = None;
    }
}
