//! Whether this bookie is being emptied, as the cluster's metadata say ([`Draining`](bindery_metadata::layout::Draining)): then it takes no
//! writes, also after a restart, until the node is gone.
//!
//! # Invariants
//! 1. While the metadata store does not answer, the last known state holds.
//! 2. One watch, and no request without a change.

use bindery_metadata::store::Watch;
use bindery_metadata::{Layout, StoreError};
use bindery_types::BookieId;
use std::sync::Arc;
use std::time::Duration;

use crate::disks::{Cause, ReadOnlyReasons};
use crate::latch::Latch;

/// After a failure of the metadata store.
const RETRY: Duration = Duration::from_secs(5);

/// See the module.
pub struct DrainWatch {
    /// Where the metadata are.
    pub layout: Layout,
    /// This bookie.
    pub bookie_id: BookieId,
    /// Whether it takes writes.
    pub standing: Arc<ReadOnlyReasons>,
}

impl DrainWatch {
    /// Looks once, and makes the bookie read-only or not. With a watch for the next change.
    pub async fn look(&self) -> Result<Watch, StoreError> {
        let (why, watch) = self.layout.draining().watch(&self.bookie_id).await?;
        let why = why.map(|why| {
            format!("the bookie is being emptied ({why}): bindery bookie drain --cancel ends that")
        });
        self.standing.set(Cause::Draining, why);
        Ok(watch)
    }

    /// Looks at each change until `stop`. `watch`: that of the last look, if it succeeded.
    pub async fn run(self, mut watch: Option<Watch>, stop: Arc<Latch>) {
        loop {
            let changed = async {
                match watch.take() {
                    Some(watch) => drop(watch.changed().await),
                    None => tokio::time::sleep(RETRY).await,
                }
            };
            tokio::select! {
                () = stop.wait() => return,
                () = changed => {}
            }
            match self.look().await {
                Ok(armed) => watch = Some(armed),
                // Said by what depends on it: the registration.
                Err(StoreError::Closed) => return,
                Err(error) => tracing::debug!(%error, "cannot look whether the bookie is being emptied"),
            }
        }
    }
}
