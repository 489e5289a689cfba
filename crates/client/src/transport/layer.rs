//! A transport over another one: every call that a layer does not take for itself is passed on, those with a default in
//! [`Transport`] too. For wrappers that look at a few calls, slow them down, or make them fail.

use std::sync::Arc;
use std::time::Duration;

use bindery_types::{BookieId, EntryId, LedgerId, MasterKey, TierSecret};
use bindery_wire::EntryAvailability;
use bindery_wire::v3::reconcile::{Reconcile, Reconciled};
use bytes::Bytes;

use super::{
    AddRequest, AddSink, Answer, BatchReadRequest, Connection, DiskSpace, LacAnswer, PollRequest,
    ReadRequest, Transport,
};

/// Passes the calls of a [`Transport`] on to the one beneath; an implementation is a [`Transport`].
#[expect(missing_docs, reason = "`Transport` documents each call")]
pub trait TransportLayer: Send + Sync + 'static {
    /// The transport that has what this one has not.
    fn beneath(&self) -> &dyn Transport;
    fn add(&self, bookie: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>) {
        self.beneath().add(bookie, request, sink);
    }
    fn flush(&self) {
        self.beneath().flush();
    }
    fn withdraw(&self, bookie: &BookieId, ledger: LedgerId, sink: &Arc<dyn AddSink>) {
        self.beneath().withdraw(bookie, ledger, sink);
    }
    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        self.beneath().read(bookie, request)
    }
    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        self.beneath().batch_read(bookie, request)
    }
    fn read_lac(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, LacAnswer> {
        self.beneath().read_lac(bookie, ledger)
    }
    fn write_lac(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        key: MasterKey,
        lac: EntryId,
        body: Bytes,
    ) -> Answer<'_, ()> {
        self.beneath().write_lac(bookie, ledger, key, lac, body)
    }
    fn poll_lac(&self, bookie: &BookieId, request: PollRequest) -> Answer<'_, Option<EntryId>> {
        self.beneath().poll_lac(bookie, request)
    }
    fn force(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, Connection> {
        self.beneath().force(bookie, ledger)
    }
    fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        secret: Option<TierSecret>,
        timeout: Duration,
    ) -> Answer<'_, Vec<Reconciled>> {
        self.beneath().reconcile(bookie, request, secret, timeout)
    }
    fn list_entries(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, EntryAvailability> {
        self.beneath().list_entries(bookie, ledger)
    }
    fn disk_space(&self, bookie: &BookieId) -> Answer<'_, DiskSpace> {
        self.beneath().disk_space(bookie)
    }
}

impl<L: TransportLayer> Transport for L {
    fn add(&self, bookie: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>) {
        TransportLayer::add(self, bookie, request, sink);
    }
    fn flush(&self) {
        TransportLayer::flush(self);
    }
    fn withdraw(&self, bookie: &BookieId, ledger: LedgerId, sink: &Arc<dyn AddSink>) {
        TransportLayer::withdraw(self, bookie, ledger, sink);
    }
    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        TransportLayer::read(self, bookie, request)
    }
    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        TransportLayer::batch_read(self, bookie, request)
    }
    fn read_lac(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, LacAnswer> {
        TransportLayer::read_lac(self, bookie, ledger)
    }
    fn write_lac(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        key: MasterKey,
        lac: EntryId,
        body: Bytes,
    ) -> Answer<'_, ()> {
        TransportLayer::write_lac(self, bookie, ledger, key, lac, body)
    }
    fn poll_lac(&self, bookie: &BookieId, request: PollRequest) -> Answer<'_, Option<EntryId>> {
        TransportLayer::poll_lac(self, bookie, request)
    }
    fn force(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, Connection> {
        TransportLayer::force(self, bookie, ledger)
    }
    fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        secret: Option<TierSecret>,
        timeout: Duration,
    ) -> Answer<'_, Vec<Reconciled>> {
        TransportLayer::reconcile(self, bookie, request, secret, timeout)
    }
    fn list_entries(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, EntryAvailability> {
        TransportLayer::list_entries(self, bookie, ledger)
    }
    fn disk_space(&self, bookie: &BookieId) -> Answer<'_, DiskSpace> {
        TransportLayer::disk_space(self, bookie)
    }
}
