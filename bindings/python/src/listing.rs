//! Iteration over the ids of ledgers: one range of the metadata store is read at a time.

use std::sync::Arc;

use bindery_client::{LedgerId, LedgerListing};
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
    listing: Option<LedgerListing>,
    /// What is left of the range that was read last.
    range: std::vec::IntoIter<LedgerId>,
}

impl LedgerIterator {
    pub fn new(client: Arc<Shared>) -> LedgerIterator {
        LedgerIterator(Source::new(Ids { client, listing: None, range: Vec::new().into_iter() }))
    }
}

impl Items for Ids {
    type Item = i64;

    /// After an error the next call reads the same range.
    async fn next(&mut self) -> PyResult<Option<i64>> {
        let Ids { client, listing, range } = self;
        if range.as_slice().is_empty() {
            let client = client.connected().await?;
            let listing = listing.get_or_insert_with(|| client.ledgers());
            let found = listing.next().await.map_err(|error| not_listed("ledgers", &error))?;
            *range = found.unwrap_or_default().into_iter();
        }
        Ok(range.next().map(LedgerId::get))
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
