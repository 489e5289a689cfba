//! Reads in the background, over connections of their own.
//!
//! A bookie lets its connections take turns by bytes, so a long answer that is read here delays what others ask for by one
//! turn; on the connection of the foreground it would stand before all of its answers.
//!
//! # Limits     one connection more for each bookie that is read from in the background

use std::sync::Arc;
use std::time::Duration;

use bindery_types::{BookieId, EntryId, LedgerId, MasterKey};
use bindery_wire::v3::reconcile::{Reconcile, Reconciled};
use bytes::Bytes;

use super::{Bookies, Lanes};
use crate::transport::{
    AddRequest, AddSink, Answer, BatchReadRequest, Connection, DiskSpace, LacAnswer, PollRequest,
    ReadRequest, Transport,
};

/// The same bookies. Reads go over the background's connections, everything else as it always does.
pub(super) struct Background(pub(super) Arc<Bookies>);

impl Transport for Background {
    fn add(&self, bookie: &BookieId, request: AddRequest, sink: &Arc<dyn AddSink>) {
        self.0.add(bookie, request, sink);
    }

    fn withdraw(&self, bookie: &BookieId, ledger: LedgerId, sink: &Arc<dyn AddSink>) {
        self.0.withdraw(bookie, ledger, sink);
    }

    fn read(&self, bookie: &BookieId, request: ReadRequest) -> Answer<'_, Bytes> {
        match request.fence {
            // A fence is urgent, whoever asks for it.
            Some(_) => self.0.read(bookie, request),
            None => self.0.read_over(Lanes::Background, bookie, request),
        }
    }

    fn batch_read(&self, bookie: &BookieId, request: BatchReadRequest) -> Answer<'_, Vec<Bytes>> {
        self.0.batch_read_over(Lanes::Background, bookie, request)
    }

    fn read_lac(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, LacAnswer> {
        self.0.read_lac(bookie, ledger)
    }

    fn write_lac(
        &self,
        bookie: &BookieId,
        ledger: LedgerId,
        key: MasterKey,
        lac: EntryId,
        body: Bytes,
    ) -> Answer<'_, ()> {
        self.0.write_lac(bookie, ledger, key, lac, body)
    }

    fn poll_lac(&self, bookie: &BookieId, request: PollRequest) -> Answer<'_, Option<EntryId>> {
        self.0.poll_lac(bookie, request)
    }

    fn force(&self, bookie: &BookieId, ledger: LedgerId) -> Answer<'_, Connection> {
        self.0.force(bookie, ledger)
    }

    fn disk_space(&self, bookie: &BookieId) -> Answer<'_, DiskSpace> {
        self.0.disk_space(bookie)
    }

    fn reconcile(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        timeout: Duration,
    ) -> Answer<'_, Vec<Reconciled>> {
        self.0.reconcile(bookie, request, timeout)
    }

    fn restore(
        &self,
        bookie: &BookieId,
        request: Reconcile,
        timeout: Duration,
    ) -> Answer<'_, Vec<Reconciled>> {
        self.0.restore(bookie, request, timeout)
    }
}
