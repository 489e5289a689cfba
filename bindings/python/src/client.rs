//! `Client`: connected when first needed, so that its constructor neither blocks nor awaits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bindery_client::{CreateOptions, DigestType, LedgerId, MetadataUri, OpenMode, Quorum};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use tokio::sync::OnceCell;

use crate::errors::{ClosedError, Raise};
use crate::reader::LedgerReader;
use crate::runtime::{start, wait};
use crate::writer::LedgerWriter;

/// A client of a cluster. It connects when it is first needed.
#[pyclass(frozen, module = "bindery")]
pub(crate) struct Client(Arc<Shared>);

struct Shared {
    uri: MetadataUri,
    session_timeout: Option<Duration>,
    request_timeout: Option<Duration>,
    memory_limit: Option<u64>,
    slow_replica_bytes_max: Option<u64>,
    explicit_lac_interval: Option<Duration>,
    connected: OnceCell<bindery_client::Client>,
    is_closed: AtomicBool,
}

impl Shared {
    async fn connected(&self) -> PyResult<&bindery_client::Client> {
        let closed = || ClosedError::new_err("the client was closed");
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let client = self.connected.get_or_try_init(|| self.connect()).await?;
        if self.is_closed.load(Ordering::Acquire) {
            // Closed by another thread while this one connected.
            client.close().await;
            return Err(closed());
        }
        Ok(client)
    }

    async fn connect(&self) -> PyResult<bindery_client::Client> {
        let mut builder = bindery_client::Client::builder().metadata(self.uri.clone());
        if let Some(timeout) = self.session_timeout {
            builder = builder.session_timeout(timeout);
        }
        if let Some(timeout) = self.request_timeout {
            builder = builder.request_timeout(timeout);
        }
        if let Some(bytes) = self.memory_limit {
            builder = builder.memory_limit(bytes);
        }
        if let Some(bytes) = self.slow_replica_bytes_max {
            builder = builder.slow_replica_bytes_max(bytes);
        }
        if let Some(interval) = self.explicit_lac_interval {
            builder = builder.explicit_lac_interval(interval);
        }
        builder.connect().await.map_err(Raise::raise)
    }

    async fn close(self: Arc<Self>) -> PyResult<()> {
        self.is_closed.store(true, Ordering::Release);
        if let Some(client) = self.connected.get() {
            client.close().await;
        }
        Ok(())
    }

    async fn create(self: Arc<Self>, options: CreateOptions) -> PyResult<LedgerWriter> {
        let writer = self.connected().await?.create_ledger(options).await.map_err(Raise::raise)?;
        Ok(LedgerWriter::new(writer))
    }

    async fn open(
        self: Arc<Self>,
        id: LedgerId,
        password: PyBackedBytes,
        how: OpenMode,
    ) -> PyResult<LedgerReader> {
        let opened = self.connected().await?.open_ledger(id, &password, how).await;
        opened.map(LedgerReader::new).map_err(Raise::raise)
    }

    async fn delete(self: Arc<Self>, id: LedgerId) -> PyResult<()> {
        self.connected().await?.delete_ledger(id).await.map_err(Raise::raise)
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (metadata_uri, *, session_timeout=None, request_timeout=None, memory_limit=None,
        slow_replica_bytes_max=None, explicit_lac_interval=None))]
    fn new(
        metadata_uri: &str,
        session_timeout: Option<f64>,
        request_timeout: Option<f64>,
        memory_limit: Option<u64>,
        slow_replica_bytes_max: Option<u64>,
        explicit_lac_interval: Option<f64>,
    ) -> PyResult<Client> {
        let uri =
            metadata_uri.parse::<MetadataUri>().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Client(Arc::new(Shared {
            uri,
            session_timeout: seconds("session_timeout", session_timeout)?,
            request_timeout: seconds("request_timeout", request_timeout)?,
            memory_limit,
            slow_replica_bytes_max,
            explicit_lac_interval: seconds("explicit_lac_interval", explicit_lac_interval)?,
            connected: OnceCell::new(),
            is_closed: AtomicBool::new(false),
        })))
    }

    /// Creates a ledger with this process as its writer.
    #[pyo3(signature = (*, ensemble=3, write_quorum=3, ack_quorum=2, digest="crc32c", password=None, custom=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn create(
        &self,
        py: Python<'_>,
        ensemble: usize,
        write_quorum: usize,
        ack_quorum: usize,
        digest: &str,
        password: Option<PyBackedBytes>,
        custom: Option<BTreeMap<String, Vec<u8>>>,
    ) -> PyResult<LedgerWriter> {
        let options = create_options(ensemble, write_quorum, ack_quorum, digest, password, custom)?;
        wait(py, self.0.clone().create(options))
    }

    /// `create` for asyncio.
    #[pyo3(signature = (*, ensemble=3, write_quorum=3, ack_quorum=2, digest="crc32c", password=None, custom=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn create_async<'py>(
        &self,
        py: Python<'py>,
        ensemble: usize,
        write_quorum: usize,
        ack_quorum: usize,
        digest: &str,
        password: Option<PyBackedBytes>,
        custom: Option<BTreeMap<String, Vec<u8>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = create_options(ensemble, write_quorum, ack_quorum, digest, password, custom)?;
        start(py, self.0.clone().create(options))
    }

    /// Opens a ledger for reading; with `recover`, an unclosed one is fenced, recovered and closed on the way.
    #[pyo3(signature = (ledger, *, password=None, recover=true))]
    fn open(
        &self,
        py: Python<'_>,
        ledger: i64,
        password: Option<PyBackedBytes>,
        recover: bool,
    ) -> PyResult<LedgerReader> {
        let password = password.unwrap_or_else(|| no_password(py));
        wait(py, self.0.clone().open(ledger_id(ledger)?, password, mode(recover)))
    }

    /// `open` for asyncio.
    #[pyo3(signature = (ledger, *, password=None, recover=true))]
    fn open_async<'py>(
        &self,
        py: Python<'py>,
        ledger: i64,
        password: Option<PyBackedBytes>,
        recover: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let password = password.unwrap_or_else(|| no_password(py));
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

fn create_options(
    ensemble: usize,
    write_quorum: usize,
    ack_quorum: usize,
    digest: &str,
    password: Option<PyBackedBytes>,
    custom: Option<BTreeMap<String, Vec<u8>>>,
) -> PyResult<CreateOptions> {
    let quorum = Quorum::new(ensemble, write_quorum, ack_quorum)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let digest = match digest {
        "crc32" => DigestType::Crc32,
        "crc32c" => DigestType::Crc32c,
        "mac" => DigestType::Hmac,
        "dummy" => DigestType::Dummy,
        other => {
            let message = format!("no digest {other:?}: choose crc32c, crc32, mac or dummy");
            return Err(PyValueError::new_err(message));
        }
    };
    let password = password.map_or_else(Vec::new, |password| password.to_vec());
    Ok(CreateOptions { quorum, digest, password, custom: custom.unwrap_or_default(), deferred_sync: false })
}

fn no_password(py: Python<'_>) -> PyBackedBytes {
    pyo3::types::PyBytes::new(py, b"").into()
}

fn mode(recover: bool) -> OpenMode {
    if recover { OpenMode::Recover } else { OpenMode::ReadOnly }
}

fn ledger_id(raw: i64) -> PyResult<LedgerId> {
    LedgerId::new(raw)
        .ok_or_else(|| PyValueError::new_err(format!("{raw} is no ledger id: they begin with 0")))
}

fn seconds(name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let convert = |value| {
        Duration::try_from_secs_f64(value)
            .map_err(|error| PyValueError::new_err(format!("{name}: {value} s: {error}")))
    };
    value.map(convert).transpose()
}
