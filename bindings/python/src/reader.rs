//! `LedgerReader`, and iteration over its entries.

use bindery_client::{EntryId, EntryStream, ReadError, TailStream};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::errors::{NoEntryError, Raise};
use crate::iterate::{Items, Source, Step};
use crate::options::entry_id;
use crate::runtime::{start, wait};

/// An entry as it was read.
#[pyclass(frozen, get_all, module = "bindery")]
pub(crate) struct Entry {
    /// Its number.
    id: i64,
    /// The appended bytes.
    payload: Py<PyBytes>,
    /// The last confirmed entry that its sender knew: its writer, or re-replication, which knows of this one.
    last_add_confirmed: Option<i64>,
    /// Sum of the payloads up to and including this one.
    length_bytes: u64,
}

#[pymethods]
impl Entry {
    #[new]
    #[pyo3(signature = (id, payload, last_add_confirmed, length_bytes))]
    fn new(id: i64, payload: Py<PyBytes>, last_add_confirmed: Option<i64>, length_bytes: u64) -> Entry {
        Entry { id, payload, last_add_confirmed, length_bytes }
    }

    fn __eq__(slf: Bound<'_, Self>, other: Bound<'_, Self>) -> bool {
        let (py, (this, other)) = (slf.py(), (slf.get(), other.get()));
        (this.id, this.last_add_confirmed, this.length_bytes)
            == (other.id, other.last_add_confirmed, other.length_bytes)
            && this.payload.as_bytes(py) == other.payload.as_bytes(py)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        (self.id, self.payload.bind(py)).into_pyobject(py)?.hash()
    }

    /// For `pickle` and `copy`.
    fn __reduce__<'py>(slf: Bound<'py, Self>) -> (Bound<'py, PyType>, Parts<'py>) {
        let this = slf.get();
        let payload = this.payload.bind(slf.py()).clone();
        (slf.get_type(), (this.id, payload, this.last_add_confirmed, this.length_bytes))
    }

    /// The payload's, read-only.
    #[allow(unsafe_code, reason = "Python's buffer protocol")]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        // SAFETY: Python gives a view to be filled in, and holds the GIL. The payload fills it in, and is what the view refers
        // to and what releases it, so it needs nothing of this object any more.
        match unsafe { ffi::PyObject_GetBuffer(slf.get().payload.as_ptr(), view, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("<bindery.Entry {}, {} bytes>", self.id, self.payload.as_bytes(py).len())
    }
}

/// The parts of an entry.
type Parts<'py> = (i64, Bound<'py, PyBytes>, Option<i64>, u64);

/// An entry whose bytes are not Python's yet: they are copied once, where the GIL is held.
pub(crate) struct Found(bindery_client::Entry);

impl<'py> IntoPyObject<'py> for Found {
    type Target = Entry;
    type Output = Bound<'py, Entry>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, Entry>> {
        let bindery_client::Entry { id, payload, last_add_confirmed, length_bytes, .. } = self.0;
        let payload = PyBytes::new(py, &payload).unbind();
        let last_add_confirmed = last_add_confirmed.map(EntryId::get);
        Bound::new(py, Entry { id: id.get(), payload, last_add_confirmed, length_bytes })
    }
}

/// Reads a ledger.
#[pyclass(frozen, module = "bindery")]
pub(crate) struct LedgerReader(bindery_client::LedgerReader);

impl LedgerReader {
    pub fn new(reader: bindery_client::LedgerReader) -> LedgerReader {
        LedgerReader(reader)
    }
}

async fn refresh(reader: bindery_client::LedgerReader) -> PyResult<Option<i64>> {
    reader.refresh().await.map(|last| last.map(EntryId::get)).map_err(Raise::raise)
}

async fn read_entry(reader: bindery_client::LedgerReader, entry: EntryId) -> PyResult<Found> {
    reader.read_entry(entry).await.map(Found).map_err(|error| not_read(&reader, error))
}

/// A ledger that is not closed may have more entries, sooner or later.
fn not_read(reader: &bindery_client::LedgerReader, error: ReadError) -> PyErr {
    match error {
        ReadError::BeyondEnd { .. } if !reader.is_closed() => NoEntryError::new_err(format!(
            "{error} so far, because its writer has not closed it. Wait for more with tail(), or, if that writer is gone, open \
             the ledger with recover=True, which closes it"
        )),
        error => error.raise(),
    }
}

#[pymethods]
impl LedgerReader {
    /// The ledger.
    #[getter]
    fn id(&self) -> i64 {
        self.0.id().get()
    }

    /// Whether the ledger was closed, as far as this reader knows.
    #[getter]
    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// The last entry of a closed ledger; the last confirmed one known so far of an open one.
    #[getter]
    fn last_add_confirmed(&self) -> Option<i64> {
        self.0.last_add_confirmed().map(EntryId::get)
    }

    /// Sum of the payloads of a closed ledger; None while it is open.
    #[getter]
    fn length_bytes(&self) -> Option<u64> {
        self.0.length_bytes()
    }

    /// Asks the bookies of an open ledger for its last confirmed entry, and whether it was closed.
    fn refresh(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        wait(py, refresh(self.0.clone()))
    }

    /// `refresh` for asyncio.
    fn refresh_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        start(py, refresh(self.0.clone()))
    }

    /// Reads one entry.
    fn read_entry<'py>(&self, py: Python<'py>, entry: i64) -> PyResult<Bound<'py, Entry>> {
        wait(py, read_entry(self.0.clone(), entry_id(entry)?))?.into_pyobject(py)
    }

    /// `read_entry` for asyncio.
    fn read_entry_async<'py>(&self, py: Python<'py>, entry: i64) -> PyResult<Bound<'py, PyAny>> {
        start(py, read_entry(self.0.clone(), entry_id(entry)?))
    }

    /// Entries first to last, both included, read ahead; for `for` and `async for`. Without a last one, it
    /// goes on to the last confirmed entry, and asks the bookies of an open ledger for more before it ends.
    #[pyo3(signature = (first=0, last=None))]
    fn read(&self, first: i64, last: Option<i64>) -> PyResult<EntryIterator> {
        let first = entry_id(first)?;
        let stream = match last.map(entry_id).transpose()? {
            Some(last) => self.0.read(first..=last),
            None => self.0.read(first..),
        };
        Ok(EntryIterator::over(Entries::Range(stream, self.0.clone())))
    }

    /// As `read`, also behind the last confirmed entry of an open ledger.
    fn read_unconfirmed(&self, first: i64, last: i64) -> PyResult<EntryIterator> {
        let stream = self.0.read_unconfirmed(entry_id(first)?, entry_id(last)?);
        Ok(EntryIterator::over(Entries::Range(stream, self.0.clone())))
    }

    /// Follows the ledger: waits for entries, ends when it is closed and read to its end.
    #[pyo3(signature = (first=0))]
    fn tail(&self, first: i64) -> PyResult<EntryIterator> {
        Ok(EntryIterator::over(Entries::Tail(Box::new(self.0.tail(entry_id(first)?)))))
    }

    fn __iter__(&self) -> PyResult<EntryIterator> {
        self.read(0, None)
    }

    fn __aiter__(&self) -> PyResult<EntryIterator> {
        self.read(0, None)
    }

    fn __repr__(&self) -> String {
        let state = if self.0.is_closed() { "closed" } else { "not closed" };
        format!("<bindery.LedgerReader of ledger {}, {state}>", self.0.id())
    }
}

/// Entries of a ledger, in order.
#[pyclass(frozen, module = "bindery")]
pub(crate) struct EntryIterator(Source<Entries>);

enum Entries {
    Range(EntryStream, bindery_client::LedgerReader),
    Tail(Box<TailStream>),
}

impl EntryIterator {
    fn over(entries: Entries) -> EntryIterator {
        EntryIterator(Source::new(entries))
    }
}

impl Items for Entries {
    type Item = Found;

    async fn next(&mut self) -> PyResult<Option<Found>> {
        let entry = match self {
            Entries::Range(stream, reader) => {
                stream.next().await.transpose().map_err(|error| not_read(reader, error))?
            }
            Entries::Tail(stream) => stream.next().await.transpose().map_err(Raise::raise)?,
        };
        Ok(entry.map(Found))
    }
}

#[pymethods]
impl EntryIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.0.next(py)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__(&self) -> Step {
        self.0.step()
    }
}
