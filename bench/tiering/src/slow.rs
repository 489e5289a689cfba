//! The network, but for updates of bookies, which wait before they leave: a bookie with a slow journal, or far away.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::connection::Bookies;
use bindery_client::transport::{Answer, Transport, TransportLayer};
use bindery_client::{BookieId, LedgerId, Reconcile, Reconciled};
use bindery_types::TierSecret;

/// See the module.
pub struct SlowUpdates {
    /// The network.
    pub bookies: Arc<Bookies>,
    /// How long each request waits.
    pub latency: Duration,
    /// Requests with one of these are never sent.
    pub hanging: HashSet<LedgerId>,
}

impl TransportLayer for SlowUpdates {
    fn beneath(&self) -> &dyn Transport {
        &*self.bookies
    }

    fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        secret: Option<TierSecret>,
        deadline: Duration,
    ) -> Answer<'_, Vec<Reconciled>> {
        let bookie = bookie.clone();
        Box::pin(async move {
            // Registers are read at the start, with requests that have no extents: these are no updates.
            if request.ledgers.iter().any(|update| !update.extents.is_empty()) {
                if request.ledgers.iter().any(|update| self.hanging.contains(&update.ledger)) {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(self.latency).await;
            }
            self.bookies.reconcile(&bookie, request, secret, deadline).await
        })
    }
}
