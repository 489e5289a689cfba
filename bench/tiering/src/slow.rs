//! The network, but for updates of bookies, which wait before they leave: a bookie with a slow journal, or far away.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::connection::Bookies;
use bindery_client::transport::{
    AddRequest, AddSink, Answer, BatchReadRequest, Connection, DiskSpace, LacAnswer, PollRequest,
    ReadRequest, Transport,
};
use bindery_client::{BookieId, EntryId, LedgerId, Reconcile, Reconciled};
use bindery_types::MasterKey;
use bytes::Bytes;

/// See the module.
pub struct SlowUpdates {
    /// The network.
    pub bookies: Arc<Bookies>,
    /// How long each request waits.
    pub latency: Duration,
    /// Requests with one of these are never sent.
    pub hanging: HashSet<LedgerId>,
}

impl Transport for SlowUpdates {
    fn add(&self, bookie: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>) {
        self.bookies.add(bookie, request, sink);
    }
    fn flush(&self) {
        self.bookies.flush();
    }
    fn withdraw(&self, bookie: &BookieId, ledger: LedgerId, sink: &Arc<dyn AddSink>) {
        self.bookies.withdraw(bookie, ledger, sink);
    }
    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        self.bookies.read(bookie, request)
    }
    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        self.bookies.batch_read(bookie, request)
    }
    fn read_lac(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, LacAnswer> {
        self.bookies.read_lac(bookie, ledger)
    }
    fn write_lac(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        key: MasterKey,
        lac: EntryId,
        body: Bytes,
    ) -> Answer<'_, ()> {
        self.bookies.write_lac(bookie, ledger, key, lac, body)
    }
    fn poll_lac(&self, bookie: &BookieId, request: PollRequest) -> Answer<'_, Option<EntryId>> {
        self.bookies.poll_lac(bookie, request)
    }
    fn force(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, Connection> {
        self.bookies.force(bookie, ledger)
    }
    fn disk_space(&self, bookie: &BookieId) -> Answer<'_, DiskSpace> {
        self.bookies.disk_space(bookie)
    }
    fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
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
            self.bookies.reconcile(&bookie, request, deadline).await
        })
    }
}
