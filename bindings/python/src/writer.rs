//! `LedgerWriter`: calls share it, the one that ends it waits until they have returned it, and takes it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use bindery_client::{EntryId, ProgressWatch, Quorum};
use pyo3::prelude::*;
use tokio::sync::mpsc;

use crate::errors::{ClosedError, Raise};
use crate::payload::{Payload, id_of};
use crate::runtime::{start, wait};

/// The writer of a ledger. Entries get their ids in the order of the calls.
#[pyclass(frozen, module = "bindery")]
pub(crate) struct LedgerWriter {
    id: i64,
    quorum: Quorum,
    payload_bytes_max: u64,
    progress: ProgressWatch,
    shared: Arc<Shared>,
}

struct Shared {
    /// `None` once a close or hand-over has begun: calls behind it are refused.
    open: Mutex<Option<Open>>,
    /// Why the ledger was not closed, after a close that failed.
    failure: Mutex<Option<String>>,
}

struct Open {
    lent: Lent,
    /// Ends with the last call that has the writer.
    returned: mpsc::Receiver<Infallible>,
}

/// The writer, for the time of a call. Fields are dropped in this order: who sees all of `_until` gone is alone with the
/// writer.
#[derive(Clone)]
struct Lent {
    writer: Arc<bindery_client::LedgerWriter>,
    _until: mpsc::Sender<Infallible>,
}

impl Shared {
    fn lend(&self) -> PyResult<Lent> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map(|open| open.lent.clone()).ok_or_else(closed)
    }

    async fn enqueue(self: Arc<Self>, payload: Payload) -> PyResult<i64> {
        let lent = self.lend()?;
        match payload.send(|bytes| lent.writer.try_enqueue(bytes))? {
            Ok(entry) => Ok(entry.get()),
            Err(waiting) => id_of(lent.writer.enqueue(waiting.as_ref()).await),
        }
    }

    async fn append(self: Arc<Self>, payload: Payload) -> PyResult<i64> {
        let lent = self.lend()?;
        match payload.send(|bytes| lent.writer.try_append(bytes))? {
            Ok(confirmed) => id_of(confirmed.await),
            Err(waiting) => id_of(lent.writer.append(waiting.as_ref()).await),
        }
    }

    async fn drain(self: Arc<Self>) -> PyResult<Option<i64>> {
        let last = self.lend()?.writer.drain().await;
        last.map(|last| last.map(EntryId::get)).map_err(Raise::raise)
    }

    /// Returns at once, so it has no form that waits.
    async fn try_enqueue(self: Arc<Self>, payload: Payload) -> PyResult<i64> {
        let lent = self.lend()?;
        payload.send_now(|bytes| lent.writer.try_enqueue(bytes)).map(EntryId::get)
    }

    async fn force(self: Arc<Self>) -> PyResult<Option<i64>> {
        let last = self.lend()?.writer.force().await;
        last.map(|last| last.map(EntryId::get)).map_err(Raise::raise)
    }

    /// The writer, for the one that ends it; `None` when that has begun before. Cancelled, it leaves the writer to the
    /// calls that have it, and then drops it.
    async fn take(&self) -> Option<bindery_client::LedgerWriter> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Open { lent: Lent { writer, _until }, mut returned } = open?;
        drop(_until);
        if let Some(never) = returned.recv().await {
            match never {}
        }
        Some(Arc::into_inner(writer).expect("every call has returned it"))
    }

    /// Closing again does nothing, unless the ledger was not closed.
    async fn close(self: Arc<Self>) -> PyResult<()> {
        let Some(writer) = self.take().await else {
            let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            return match &*failure {
                Some(text) => Err(ClosedError::new_err(format!("this writer was not closed: {text}"))),
                None => Ok(()),
            };
        };
        let set = |text: Option<String>| *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = text;
        // Until the outcome is known: this future may be dropped.
        set(Some("its first close is under way or was cancelled, so what comes of it is not known".into()));
        let outcome = writer.close().await;
        set(outcome.as_ref().err().map(ToString::to_string));
        outcome.map(|_| ()).map_err(Raise::raise)
    }

    /// Again it is refused: there is no last entry to return, which is not the same as none.
    async fn hand_over(self: Arc<Self>) -> PyResult<Option<i64>> {
        let writer = self.take().await.ok_or_else(closed)?;
        writer.hand_over().await.map(|last| last.map(EntryId::get)).map_err(Raise::raise)
    }

    /// The end of a `with`: a close that came before it has said what came of it.
    async fn exit(self: Arc<Self>) -> PyResult<()> {
        let is_open = self.open.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if is_open { self.close().await } else { Ok(()) }
    }
}

fn closed() -> PyErr {
    ClosedError::new_err("this writer was closed, or its ledger handed over")
}

impl LedgerWriter {
    pub fn new(writer: bindery_client::LedgerWriter) -> LedgerWriter {
        let (_until, returned) = mpsc::channel(1);
        LedgerWriter {
            id: writer.id().get(),
            quorum: writer.quorum(),
            payload_bytes_max: writer.payload_bytes_max(),
            progress: writer.progress(),
            shared: Arc::new(Shared {
                open: Mutex::new(Some(Open { lent: Lent { writer: Arc::new(writer), _until }, returned })),
                failure: Mutex::new(None),
            }),
        }
    }
}

#[pymethods]
impl LedgerWriter {
    /// The ledger.
    #[getter]
    fn id(&self) -> i64 {
        self.id
    }

    /// Ensemble, write quorum and ack quorum of the ledger.
    #[getter]
    fn quorum(&self) -> (usize, usize, usize) {
        let quorum = self.quorum;
        (quorum.ensemble_size(), quorum.write_quorum_size(), quorum.ack_quorum_size())
    }

    /// The largest payload that fits an entry, in bytes.
    #[getter]
    fn payload_bytes_max(&self) -> u64 {
        self.payload_bytes_max
    }

    /// The last confirmed entry: it and all before it are safe.
    #[getter]
    fn last_confirmed(&self) -> Option<i64> {
        self.progress.borrow().confirmed.map(EntryId::get)
    }

    /// The last acknowledged entry: with deferred sync it and all before it are safe once they are forced.
    #[getter]
    fn last_acknowledged(&self) -> Option<i64> {
        self.progress.borrow().acknowledged.map(EntryId::get)
    }

    /// Appends an entry and waits until it is confirmed; its id.
    fn append(&self, py: Python<'_>, payload: Payload) -> PyResult<i64> {
        wait(py, self.shared.clone().append(payload))
    }

    /// `append` for asyncio.
    fn append_async<'py>(&self, py: Python<'py>, payload: Payload) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.shared.clone().append(payload))
    }

    /// Waits for room only, and sends an entry; its id.
    fn enqueue(&self, py: Python<'_>, payload: Payload) -> PyResult<i64> {
        wait(py, self.shared.clone().enqueue(payload))
    }

    /// `enqueue` for asyncio.
    fn enqueue_async<'py>(&self, py: Python<'py>, payload: Payload) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.shared.clone().enqueue(payload))
    }

    /// Sends an entry if there is room for it at once; its id.
    fn try_enqueue(&self, py: Python<'_>, payload: Payload) -> PyResult<i64> {
        wait(py, self.shared.clone().try_enqueue(payload))
    }

    /// Waits until every entry so far is confirmed and bookies know it, so that readers see them; the last confirmed one.
    fn drain(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        wait(py, self.shared.clone().drain())
    }

    /// `drain` for asyncio.
    fn drain_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.shared.clone().drain())
    }

    /// Has all bookies of the ensemble sync; the last confirmed entry.
    fn force(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        wait(py, self.shared.clone().force())
    }

    /// `force` for asyncio.
    fn force_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.shared.clone().force())
    }

    /// Drains, and leaves the ledger open for the next writer; its last entry.
    fn hand_over(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        wait(py, self.shared.clone().hand_over())
    }

    /// `hand_over` for asyncio.
    fn hand_over_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.shared.clone().hand_over())
    }

    /// Drains, then closes the ledger for good. Again: nothing, or the error that says that the first close failed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, self.shared.clone().close())
    }

    /// `close` for asyncio.
    fn close_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.shared.clone().close())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, exc_value, traceback);
        wait(py, self.shared.clone().exit())
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let py = slf.py();
        let slf = slf.unbind();
        start(py, async move { Ok(slf) })
    }

    fn __aexit__<'py>(
        &self,
        py: Python<'py>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (exc_type, exc_value, traceback);
        start(py, self.shared.clone().exit())
    }

    fn __repr__(&self) -> String {
        format!("<bindery.LedgerWriter of ledger {}>", self.id)
    }
}
