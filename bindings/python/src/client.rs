//! `Client`: connected when first needed, so that its constructor neither blocks nor awaits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bindery_client::{FrameLimit, MetadataUri};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use tokio::sync::OnceCell;

use crate::auth::Authentication;
use crate::health::{BookieHealth, WriteHealth};
use crate::info::{BookieInfo, LedgerInfo};
use crate::listing::LedgerIterator;
use crate::metadata_security::MetadataSecurity;
use crate::options::{create_options, credentials, ledger_id, mode, password_or_none, seconds, sizes};
use crate::placement::{Arguments, DiskWeights, Placement, Policy};
use crate::reader::LedgerReader;
use crate::runtime::{start, wait};
use crate::shared::Shared;
use crate::tls::Tls;
use crate::writer::LedgerWriter;

fn frame_limit_of(bytes: i64) -> PyResult<FrameLimit> {
    let (least, most) = (FrameLimit::MIN.size_bytes(), FrameLimit::MAX.size_bytes());
    let limit = u32::try_from(bytes).ok().and_then(FrameLimit::new);
    limit.ok_or_else(|| PyValueError::new_err(format!("frame_limit is from {least} to {most} bytes")))
}

/// A client of a cluster. It connects when it is first needed.
#[pyclass(frozen, module = "bindery")]
pub(crate) struct Client(Arc<Shared>);

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (metadata_uri, *, session_timeout=None, request_timeout=None, memory_limit=None,
        slow_replica_bytes_max=None, explicit_lac_interval=None, frame_limit=None, metadata_patience=None,
        bookie_patience=None, placement=None, rack_map=None, rack_script=None, location=None, disk_weights=None,
        bookie_quarantine_time=None, metadata_security=None, tls=None, user=None, password=None,
        mechanism="digest-md5", auth_plugin=None, authenticate=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        metadata_uri: &str,
        session_timeout: Option<f64>,
        request_timeout: Option<f64>,
        memory_limit: Option<u64>,
        slow_replica_bytes_max: Option<u64>,
        explicit_lac_interval: Option<f64>,
        frame_limit: Option<i64>,
        metadata_patience: Option<f64>,
        bookie_patience: Option<f64>,
        placement: Option<Policy>,
        rack_map: Option<Bound<'_, PyAny>>,
        rack_script: Option<PathBuf>,
        location: Option<String>,
        disk_weights: Option<DiskWeights>,
        bookie_quarantine_time: Option<f64>,
        metadata_security: Option<MetadataSecurity>,
        tls: Option<Tls>,
        user: Option<String>,
        password: Option<String>,
        mechanism: &str,
        auth_plugin: Option<String>,
        authenticate: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Client> {
        let uri =
            metadata_uri.parse::<MetadataUri>().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let (credentials, authentication) =
            (credentials(user, password, mechanism)?, Authentication::of(auth_plugin, authenticate)?);
        if credentials.is_some() && authentication.is_some() {
            return Err(PyValueError::new_err(
                "give user and password, or auth_plugin and authenticate, not both",
            ));
        }
        let quarantine_time = seconds("bookie_quarantine_time", bookie_quarantine_time)?;
        let placement = Placement::of(
            py,
            Arguments { policy: placement, rack_map, rack_script, location, disk_weights, quarantine_time },
        )?;
        Ok(Client(Arc::new(Shared {
            uri,
            session_timeout: seconds("session_timeout", session_timeout)?,
            request_timeout: seconds("request_timeout", request_timeout)?,
            memory_limit,
            frame_limit: frame_limit.map(frame_limit_of).transpose()?,
            slow_replica_bytes_max,
            explicit_lac_interval: seconds("explicit_lac_interval", explicit_lac_interval)?,
            metadata_patience: seconds("metadata_patience", metadata_patience)?,
            bookie_patience: seconds("bookie_patience", bookie_patience)?,
            placement,
            metadata_security,
            tls,
            authentication,
            credentials,
            connected: OnceCell::new(),
            is_closed: AtomicBool::new(false),
        })))
    }

    /// Creates a ledger with this process as its writer.
    #[pyo3(signature = (*, ensemble=None, write_quorum=None, ack_quorum=None, digest="crc32c", password=None, custom=None,
        deferred_sync=false))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn create(
        &self,
        py: Python<'_>,
        ensemble: Option<usize>,
        write_quorum: Option<usize>,
        ack_quorum: Option<usize>,
        digest: &str,
        password: Option<PyBackedBytes>,
        custom: Option<BTreeMap<String, Vec<u8>>>,
        deferred_sync: bool,
    ) -> PyResult<LedgerWriter> {
        let options = create_options(sizes(ensemble, write_quorum, ack_quorum), digest, password, custom)?;
        wait(py, self.0.clone().create(options.deferred_sync(deferred_sync)))
    }

    /// `create` for asyncio.
    #[pyo3(signature = (*, ensemble=None, write_quorum=None, ack_quorum=None, digest="crc32c", password=None, custom=None,
        deferred_sync=false))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn create_async<'py>(
        &self,
        py: Python<'py>,
        ensemble: Option<usize>,
        write_quorum: Option<usize>,
        ack_quorum: Option<usize>,
        digest: &str,
        password: Option<PyBackedBytes>,
        custom: Option<BTreeMap<String, Vec<u8>>>,
        deferred_sync: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = create_options(sizes(ensemble, write_quorum, ack_quorum), digest, password, custom)?;
        start(py, self.0.clone().create(options.deferred_sync(deferred_sync)))
    }

    /// Creates a ledger for writers that follow one another, and leaves it to the first; its id.
    #[pyo3(signature = (*, ensemble=None, write_quorum=None, ack_quorum=None, digest="crc32c", password=None, custom=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn create_handed_over(
        &self,
        py: Python<'_>,
        ensemble: Option<usize>,
        write_quorum: Option<usize>,
        ack_quorum: Option<usize>,
        digest: &str,
        password: Option<PyBackedBytes>,
        custom: Option<BTreeMap<String, Vec<u8>>>,
    ) -> PyResult<i64> {
        let options = create_options(sizes(ensemble, write_quorum, ack_quorum), digest, password, custom)?;
        wait(py, self.0.clone().create_handed_over(options))
    }

    /// `create_handed_over` for asyncio.
    #[pyo3(signature = (*, ensemble=None, write_quorum=None, ack_quorum=None, digest="crc32c", password=None, custom=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn create_handed_over_async<'py>(
        &self,
        py: Python<'py>,
        ensemble: Option<usize>,
        write_quorum: Option<usize>,
        ack_quorum: Option<usize>,
        digest: &str,
        password: Option<PyBackedBytes>,
        custom: Option<BTreeMap<String, Vec<u8>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = create_options(sizes(ensemble, write_quorum, ack_quorum), digest, password, custom)?;
        start(py, self.0.clone().create_handed_over(options))
    }

    /// Takes a ledger that was handed over, and goes on where the last writer stopped.
    #[pyo3(signature = (ledger, *, password=None))]
    fn open_for_append(
        &self,
        py: Python<'_>,
        ledger: i64,
        password: Option<PyBackedBytes>,
    ) -> PyResult<LedgerWriter> {
        let password = password_or_none(py, password);
        wait(py, self.0.clone().open_for_append(ledger_id(ledger)?, password))
    }

    /// `open_for_append` for asyncio.
    #[pyo3(signature = (ledger, *, password=None))]
    fn open_for_append_async<'py>(
        &self,
        py: Python<'py>,
        ledger: i64,
        password: Option<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let password = password_or_none(py, password);
        start(py, self.0.clone().open_for_append(ledger_id(ledger)?, password))
    }

    /// Finds the ledger in which appends go on, if the writer of this one died having it; its id.
    #[pyo3(signature = (ledger, *, password=None))]
    fn take_over(&self, py: Python<'_>, ledger: i64, password: Option<PyBackedBytes>) -> PyResult<i64> {
        let password = password_or_none(py, password);
        wait(py, self.0.clone().take_over(ledger_id(ledger)?, password))
    }

    /// `take_over` for asyncio.
    #[pyo3(signature = (ledger, *, password=None))]
    fn take_over_async<'py>(
        &self,
        py: Python<'py>,
        ledger: i64,
        password: Option<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let password = password_or_none(py, password);
        start(py, self.0.clone().take_over(ledger_id(ledger)?, password))
    }

    /// Opens a ledger for reading, and leaves it to its writer; with `recover`, an unclosed one is fenced, recovered and closed on
    /// the way.
    #[pyo3(signature = (ledger, *, password=None, recover=false))]
    fn open(
        &self,
        py: Python<'_>,
        ledger: i64,
        password: Option<PyBackedBytes>,
        recover: bool,
    ) -> PyResult<LedgerReader> {
        let password = password_or_none(py, password);
        wait(py, self.0.clone().open(ledger_id(ledger)?, password, mode(recover)))
    }

    /// `open` for asyncio.
    #[pyo3(signature = (ledger, *, password=None, recover=false))]
    fn open_async<'py>(
        &self,
        py: Python<'py>,
        ledger: i64,
        password: Option<PyBackedBytes>,
        recover: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let password = password_or_none(py, password);
        start(py, self.0.clone().open(ledger_id(ledger)?, password, mode(recover)))
    }

    /// Deletes a ledger.
    fn delete(&self, py: Python<'_>, ledger: i64) -> PyResult<()> {
        wait(py, self.0.clone().delete(ledger_id(ledger)?))
    }

    /// `delete` for asyncio.
    fn delete_async<'py>(&self, py: Python<'py>, ledger: i64) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.0.clone().delete(ledger_id(ledger)?))
    }

    /// A ledger's metadata, as in the metadata store.
    fn metadata(&self, py: Python<'_>, ledger: i64) -> PyResult<LedgerInfo> {
        wait(py, self.0.clone().metadata(ledger_id(ledger)?))
    }

    /// `metadata` for asyncio.
    fn metadata_async<'py>(&self, py: Python<'py>, ledger: i64) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.0.clone().metadata(ledger_id(ledger)?))
    }

    /// The ids of all ledgers, ascending; for `for` and `async for`.
    fn ledgers(&self) -> LedgerIterator {
        LedgerIterator::new(self.0.clone())
    }

    /// All registered bookies, sorted by id.
    fn bookies(&self, py: Python<'_>) -> PyResult<Vec<BookieInfo>> {
        wait(py, self.0.clone().bookies())
    }

    /// `bookies` for asyncio.
    fn bookies_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.0.clone().bookies())
    }

    /// How bookies do: those of ledgers opened for reading, and those that failed. Does not wait.
    fn bookie_health(&self) -> PyResult<Vec<BookieHealth>> {
        self.0.bookie_health()
    }

    /// The health of this client's writes. Does not wait.
    fn write_health(&self) -> PyResult<WriteHealth> {
        self.0.write_health()
    }

    /// Ends the client. Writers that are not closed leave their ledgers open, for recovery.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, self.0.clone().close())
    }

    /// `close` for asyncio.
    fn close_async<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        start(py, self.0.clone().close())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let shared = slf.get().0.clone();
        wait(slf.py(), async move { shared.connected().await.map(|_| ()) })?;
        Ok(slf)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, exc_value, traceback);
        self.close(py)
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let shared = slf.get().0.clone();
        let py = slf.py();
        let slf = slf.unbind();
        start(py, async move { shared.connected().await.map(|_| slf) })
    }

    fn __aexit__<'py>(
        &self,
        py: Python<'py>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (exc_type, exc_value, traceback);
        self.close_async(py)
    }

    fn __repr__(&self) -> String {
        format!("<bindery.Client {}>", self.0.uri)
    }
}
