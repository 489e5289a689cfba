//! State that a client and the objects it made share: the connection, made when first needed, and the calls on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bindery_client::{Client, CreateOptions, Credentials, FrameLimit, LedgerId, MetadataUri, OpenMode};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use tokio::sync::OnceCell;

use crate::auth::Authentication;
use crate::errors::{ClosedError, Raise, not_listed};
use crate::health::{BookieHealth, WriteHealth};
use crate::info::{BookieInfo, LedgerInfo};
use crate::metadata_security::MetadataSecurity;
use crate::placement::Placement;
use crate::reader::LedgerReader;
use crate::runtime::check_process;
use crate::tls::Tls;
use crate::writer::LedgerWriter;

/// How a client is made, and the client once it is connected.
pub(crate) struct Shared {
    pub uri: MetadataUri,
    pub session_timeout: Option<Duration>,
    pub request_timeout: Option<Duration>,
    pub memory_limit: Option<u64>,
    pub frame_limit: Option<FrameLimit>,
    pub slow_replica_bytes_max: Option<u64>,
    pub explicit_lac_interval: Option<Duration>,
    pub metadata_patience: Option<Duration>,
    pub bookie_patience: Option<Duration>,
    pub placement: Placement,
    pub metadata_security: Option<MetadataSecurity>,
    pub tls: Option<Tls>,
    pub authentication: Option<Authentication>,
    pub credentials: Option<Credentials>,
    pub connected: OnceCell<bindery_client::Client>,
    pub is_closed: AtomicBool,
}

impl Shared {
    pub async fn connected(&self) -> PyResult<&bindery_client::Client> {
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
        if let Some(limit) = self.frame_limit {
            builder = builder.frame_limit(limit);
        }
        if let Some(bytes) = self.slow_replica_bytes_max {
            builder = builder.slow_replica_bytes_max(bytes);
        }
        if let Some(interval) = self.explicit_lac_interval {
            builder = builder.explicit_lac_interval(interval);
        }
        if let Some(patience) = self.metadata_patience {
            builder = builder.metadata_patience(patience);
        }
        if let Some(patience) = self.bookie_patience {
            builder = builder.bookie_patience(patience);
        }
        builder = self.placement.apply(builder);
        if let Some(security) = &self.metadata_security {
            builder = builder.metadata_security(security.security());
        }
        if let Some(tls) = &self.tls {
            builder = builder.tls(tls.options());
        }
        if let Some(credentials) = self.credentials.clone() {
            builder = builder.credentials(credentials);
        }
        if let Some(authentication) = self.authentication.clone() {
            builder = builder.authenticator(authentication);
        }
        builder.connect().await.map_err(Raise::raise)
    }

    pub async fn close(self: Arc<Self>) -> PyResult<()> {
        self.is_closed.store(true, Ordering::Release);
        if let Some(client) = self.connected.get() {
            client.close().await;
        }
        Ok(())
    }

    pub async fn create(self: Arc<Self>, options: CreateOptions) -> PyResult<LedgerWriter> {
        let client = self.connected().await?;
        let writer = client.create_ledger(filled(client, options).await?).await.map_err(Raise::raise)?;
        Ok(LedgerWriter::new(writer))
    }

    pub async fn create_handed_over(self: Arc<Self>, options: CreateOptions) -> PyResult<i64> {
        let client = self.connected().await?;
        let created = client.create_handed_over(filled(client, options).await?).await;
        created.map(LedgerId::get).map_err(Raise::raise)
    }

    pub async fn open_for_append(
        self: Arc<Self>,
        id: LedgerId,
        password: PyBackedBytes,
    ) -> PyResult<LedgerWriter> {
        let taken = self.connected().await?.open_for_append(id, &password).await;
        taken.map(LedgerWriter::new).map_err(Raise::raise)
    }

    pub async fn take_over(self: Arc<Self>, id: LedgerId, password: PyBackedBytes) -> PyResult<i64> {
        let taken = self.connected().await?.take_over(id, &password).await;
        taken.map(|taken| taken.ledger.get()).map_err(Raise::raise)
    }

    pub async fn open(
        self: Arc<Self>,
        id: LedgerId,
        password: PyBackedBytes,
        how: OpenMode,
    ) -> PyResult<LedgerReader> {
        let opened = self.connected().await?.open_ledger(id, &password, how).await;
        opened.map(LedgerReader::new).map_err(Raise::raise)
    }

    pub async fn delete(self: Arc<Self>, id: LedgerId) -> PyResult<()> {
        self.connected().await?.delete_ledger(id).await.map_err(Raise::raise)
    }

    pub async fn metadata(self: Arc<Self>, id: LedgerId) -> PyResult<LedgerInfo> {
        let stored = self.connected().await?.metadata(id).await;
        stored.map(LedgerInfo::from).map_err(Raise::raise)
    }

    pub async fn bookies(self: Arc<Self>) -> PyResult<Vec<BookieInfo>> {
        let registered = self.connected().await?.bookies().await;
        let registered = registered.map_err(|error| not_listed("bookies", &error))?;
        Ok(registered.into_iter().map(BookieInfo::from).collect())
    }

    /// Waits for nothing: a client that is not connected has read nothing.
    pub fn bookie_health(&self) -> PyResult<Vec<BookieHealth>> {
        check_process()?;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let known = self.connected.get().map(bindery_client::Client::bookie_health);
        Ok(known.unwrap_or_default().into_iter().map(BookieHealth::from).collect())
    }

    /// Waits for nothing: a client that is not connected has written nothing.
    pub fn write_health(&self) -> PyResult<WriteHealth> {
        check_process()?;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let known = self.connected.get().map(bindery_client::Client::write_health);
        Ok(known.unwrap_or_default().into())
    }
}

fn closed() -> PyErr {
    ClosedError::new_err("the client was closed")
}

/// With all sizes. Warns of one copy that nobody chose.
async fn filled(client: &Client, mut options: CreateOptions) -> PyResult<CreateOptions> {
    if options.sizes.ensemble.or(options.sizes.write_quorum).is_none() {
        let quorum = client.quorum(options.sizes).await.map_err(Raise::raise)?;
        if quorum.write_quorum_size() == 1 {
            Python::attach(warn_of_one_copy)?;
        }
        options.sizes = quorum.into();
    }
    Ok(options)
}

fn warn_of_one_copy(py: Python<'_>) -> PyResult<()> {
    let text = c"one copy of each entry, lost with its disk, as one bookie takes writes: ensemble=1 says that this is meant";
    PyErr::warn(py, &py.get_type::<PyUserWarning>(), text, 1)
}
