//! Iteration over the ids of ledgers: one range of the metadata store is read at a time.

use std::sync::Arc;

use bindery_client::{LedgerId, LedgerListing};
use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::prelude::*;
use tokio::sync::Mutex;

use crate::errors::not_listed;
use crate::runtime::{start, wait};
use crate::shared::Shared;

/// Ids of ledgers, ascending.
#[pyclass(frozen, module = "bindery")]
pub(crate) struct LedgerIterator(Arc<Mutex<Source>>);

struct Source {
    client: Arc<Shared>,
    /// `None` until the first step: making it wants a connection.
    listing: Option<LedgerListing>,
    /// What is left of the range that was read last.
    range: std::vec::IntoIter<LedgerId>,
}

impl LedgerIterator {
    pub fn new(client: Arc<Shared>) -> LedgerIterator {
        let range = Vec::new().into_iter();
        LedgerIterator(Arc::new(Mutex::new(Source { client, listing: None, range })))
    }
}

/// Calls of several threads take turns. After an error the next one reads the same range.
async fn next(source: Arc<Mutex<Source>>) -> PyResult<Option<i64>> {
    let Source { client, listing, range } = &mut *source.lock().await;
    if range.as_slice().is_empty() {
        let client = client.connected().await?;
        let listing = listing.get_or_insert_with(|| client.ledgers());
        let found = listing.next().await.map_err(|error| not_listed("ledgers", &error))?;
        *range = found.unwrap_or_default().into_iter();
    }
    Ok(range.next().map(LedgerId::get))
}

#[pymethods]
impl LedgerIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        wait(py, next(self.0.clone()))
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let source = self.0.clone();
        start(py, async move { next(source).await?.ok_or_else(|| PyStopAsyncIteration::new_err(())) })
    }
}
