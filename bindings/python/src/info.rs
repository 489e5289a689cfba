//! Metadata of a ledger, and of a bookie, for Python.

use std::collections::BTreeMap;

use bindery_client::{EntryId, LedgerState, RegistrationMode, Segment};
use pyo3::prelude::*;

use crate::options::digest_word;

/// A ledger as the metadata store has it.
#[pyclass(frozen, get_all, module = "bindery")]
pub(crate) struct LedgerInfo {
    /// The ledger.
    id: i64,
    /// "open", "in_recovery" or "closed".
    state: &'static str,
    /// How many bookies its entries are spread over.
    ensemble: usize,
    /// How many of them store an entry.
    write_quorum: usize,
    /// How many of those confirm it.
    ack_quorum: usize,
    /// How its entries are digested, as `create` has it. None: written before 4.0, which did not store it.
    digest: Option<&'static str>,
    /// The last entry of a closed ledger; None of an empty one, and while it is not closed.
    last_entry: Option<i64>,
    /// Sum of the payloads of a closed ledger; None while it is not closed.
    length_bytes: Option<u64>,
    /// When it was created, in seconds since the epoch.
    created: f64,
    /// Free properties, and those of the client.
    custom: BTreeMap<String, Vec<u8>>,
    /// First entries, ascending, each with the bookies of the ensemble from there on.
    segments: Vec<(i64, Vec<String>)>,
}

#[pymethods]
impl LedgerInfo {
    fn __repr__(&self) -> String {
        format!("<bindery.LedgerInfo of ledger {}, {}>", self.id, self.state)
    }
}

impl From<bindery_client::LedgerInfo> for LedgerInfo {
    fn from(info: bindery_client::LedgerInfo) -> LedgerInfo {
        let bindery_client::LedgerInfo { id, metadata, created_ms, .. } = info;
        let (state, last_entry, length_bytes) = match metadata.state {
            LedgerState::Open => ("open", None, None),
            LedgerState::InRecovery => ("in_recovery", None, None),
            LedgerState::Closed { last_entry, length_bytes } => ("closed", last_entry, Some(length_bytes)),
        };
        LedgerInfo {
            id: id.get(),
            state,
            ensemble: metadata.quorum.ensemble_size(),
            write_quorum: metadata.quorum.write_quorum_size(),
            ack_quorum: metadata.quorum.ack_quorum_size(),
            digest: metadata.secret.as_ref().map(|secret| digest_word(secret.digest_type)),
            last_entry: last_entry.map(EntryId::get),
            length_bytes,
            created: created_ms as f64 / 1000.0,
            segments: metadata.segments().iter().map(segment).collect(),
            custom: metadata.custom,
        }
    }
}

fn segment(segment: &Segment) -> (i64, Vec<String>) {
    (segment.first_entry.get(), segment.ensemble.iter().map(ToString::to_string).collect())
}

/// A registered bookie.
#[pyclass(frozen, get_all, module = "bindery")]
pub(crate) struct BookieInfo {
    /// Its id.
    id: String,
    /// Whether it takes writes.
    is_writable: bool,
    /// Where it listens: names such as "bookie" and "httpserver", each with "host:port".
    endpoints: Vec<(String, String)>,
}

#[pymethods]
impl BookieInfo {
    fn __repr__(&self) -> String {
        let takes = if self.is_writable { "writable" } else { "read-only" };
        format!("<bindery.BookieInfo of {}, {takes}>", self.id)
    }
}

impl From<bindery_client::BookieInfo> for BookieInfo {
    fn from(info: bindery_client::BookieInfo) -> BookieInfo {
        let endpoints = info.endpoints.into_iter().map(|endpoint| {
            // Of an IPv6 address the port would not be told from the rest.
            let is_bare = endpoint.host.contains(':') && !endpoint.host.starts_with('[');
            let host = if is_bare { format!("[{}]", endpoint.host) } else { endpoint.host };
            (endpoint.id, format!("{host}:{}", endpoint.port))
        });
        BookieInfo {
            id: info.id.to_string(),
            is_writable: match info.mode {
                RegistrationMode::Writable => true,
                RegistrationMode::ReadOnly => false,
            },
            endpoints: endpoints.collect(),
        }
    }
}
