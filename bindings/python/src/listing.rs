//! Iteration over the ids of ledgers: one range of the metadata store is read at a time.

use std::sync::Arc;

use bindery_client::{LedgerId, LedgerStream};
use pyo3::prelude::*;

use crate::errors::not_listed;
use crate::iterate::{Items, Source, Step};
use crate::shared::Shared;

/// Ids of ledgers, ascending.
#[pyclass(frozen, module = "bindery")]
pub(crate) struct LedgerIterator(Source<Ids>);

struct Ids {
    client: Arc<Shared>,
    /// `None` until the first step: making it wants a connection.
    listing: Option<LedgerStream>,
}

impl LedgerIterator {
    pub fn new(client: Arc<Shared>) -> LedgerIterator {
        LedgerIterator(Source::new(Ids { client, listing: None }))
    }
}

impl Items for Ids {
    type Item = i64;

    /// After an error the next call reads the same range.
    async fn next(&mut self) -> PyResult<Option<i64>> {
        let Ids { client, listing } = self;
        let client = client.connected().await?;
        let listing = listing.get_or_insert_with(|| client.ledgers());
        let next = listing.next().await.transpose();
        next.map(|id| id.map(LedgerId::get)).map_err(|error| not_listed("ledgers", &error))
    }
}

#[pymethods]
impl LedgerIterator {
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
