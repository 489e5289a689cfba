//! Reading ledgers in bulk, in the background: entries as they are stored, in batches.
//!
//! # Data flow
//! ```text
//! BulkReader::open: metadata --> LedgerView (metadata, end or LAC (last add confirmed), refreshed when reads fail)
//! LedgerView::read: [window | window | window]  one task each, ahead of the caller          (`stream`)
//!     window --> groups --> turn at a bookie --> bytes of the rate --> batch, or reads in a row    (`fetch`)
//!                             (`line`)               (`rate`)
//!     window <-- copies, put together in order (`window`) --> StoredBatch, with its room in the budget
//! ```
//! All streams of a reader share its budget, its rate and the turns at bookies. Reads go over connections of their own
//! ([`Bookies::background`](crate::connection::Bookies::background)), are not hedged, and are not counted in the latencies by
//! which the foreground chooses replicas.
//!
//! # Invariants
//! 1. Bytes come as a bookie stores them, never encoded again: replicas may differ in the LAC inside (an entry that
//!    re-replication packed again), and each copy is sound by itself.
//! 2. Each copy is verified by its digest if the metadata has the password, and a damaged one is read from another replica.
//!    Other copies have the right ids and are marked as unverified.
//! 3. An open ledger is read up to its LAC, which a covering set of bookies told (T4). Nothing here fences.
//! 4. Bytes held are bounded by the budget. Read-ahead takes no more than half of it, so a stream whose caller waits
//!    gets room as soon as batches are given back.
//! 5. A bookie has [`BulkOptions::ranges_per_bookie`] ranges of this reader under way at most, and fewer when it says "too
//!    many requests".
//!
//! # Limits     the budget, [`BulkOptions::memory_limit`]. Beyond it: one entry for each stream that is larger than a range, and
//! of a ledger whose entries grow suddenly, on bookies that know no batch reads or no strides, those that one has under way
//! (`fetch::SINGLES_MAX`) in frames on their way.
//!
//! # Not here   which ledgers to read, and when to back off ([`Client::busy_bookies`])

mod fetch;
mod line;
mod rate;
mod stream;
#[cfg(test)]
mod tests;
mod window;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bindery_flow::{ByteBudget, Permit};
use bindery_metadata::StoreError;
use bindery_metadata::layout::LedgerError;
use bindery_metadata::store::Version;
use bindery_types::{DigestType, EntryId, LedgerId, LedgerMetadata, LedgerSecret};
use bytes::Bytes;

use self::line::Lines;
use self::rate::Rate;
pub use self::stream::StoredStream;
use crate::client::Client;
use crate::error::ReadError;
use crate::reader::ReaderState;
use crate::shared::Shared;

/// Limits of a [`BulkReader`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkOptions {
    /// Bytes of entries that were read and not given back by callers, and room for those on their way: 64 MiB by default.
    /// At least two ranges.
    pub memory_limit: u64,
    /// Bytes read in a second, over all streams; not limited by default.
    pub bytes_per_second: Option<u64>,
    /// Bytes of one request, 512 KiB by default, as ordinary readers ask for; from 64 KiB to 4 MiB, so that an answer fits a
    /// frame. `cargo bench --bench bulk` compares sizes.
    pub range_size_bytes: u64,
    /// Ranges under way to one bookie, 1 by default.
    pub ranges_per_bookie: usize,
}

impl Default for BulkOptions {
    fn default() -> BulkOptions {
        BulkOptions {
            memory_limit: 64 << 20,
            bytes_per_second: None,
            range_size_bytes: 512 << 10,
            ranges_per_bookie: 1,
        }
    }
}

impl BulkOptions {
    /// The same as the default.
    pub fn new() -> BulkOptions {
        BulkOptions::default()
    }

    /// Another [`memory_limit`](Self::memory_limit).
    pub fn memory_limit(mut self, bytes: u64) -> BulkOptions {
        self.memory_limit = bytes;
        self
    }

    /// Another [`bytes_per_second`](Self::bytes_per_second).
    pub fn bytes_per_second(mut self, bytes: impl Into<Option<u64>>) -> BulkOptions {
        self.bytes_per_second = bytes.into();
        self
    }

    /// Another [`range_size_bytes`](Self::range_size_bytes).
    pub fn range_size_bytes(mut self, bytes: u64) -> BulkOptions {
        self.range_size_bytes = bytes;
        self
    }

    /// Other [`ranges_per_bookie`](Self::ranges_per_bookie).
    pub fn ranges_per_bookie(mut self, ranges: usize) -> BulkOptions {
        self.ranges_per_bookie = ranges;
        self
    }
}

/// What a [`BulkReader`] did since it was made, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BulkCounts {
    /// Entries given to callers.
    pub entries: u64,
    /// Their bytes, as stored.
    pub bytes: u64,
    /// Requests for ranges: batches, or rows of single reads.
    pub ranges: u64,
    /// Ranges asked of another replica because the first one took long.
    pub late_ranges: u64,
    /// Ranges that a bookie refused with "too many requests".
    pub refused_ranges: u64,
    /// Copies that were damaged, and read from another replica.
    pub damaged_copies: u64,
    /// Bytes of the memory limit in use.
    pub held_bytes: u64,
}

#[derive(Default)]
struct Counters {
    entries: AtomicU64,
    bytes: AtomicU64,
    ranges: AtomicU64,
    late_ranges: AtomicU64,
    refused_ranges: AtomicU64,
    damaged_copies: AtomicU64,
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// What all streams of a reader share.
struct Bulk {
    shared: Arc<Shared>,
    budget: ByteBudget,
    rate: Arc<Rate>,
    lines: Lines,
    range_size_bytes: u64,
    counters: Counters,
}

/// Reads ledgers in bulk; one for a process, or for each class of background work. Clones share everything. Made by
/// [`Client::bulk`].
#[derive(Clone)]
pub struct BulkReader(Arc<Bulk>);

impl Client {
    /// A reader of stored bytes that keeps out of the way of everything else. See [`BulkReader`].
    pub fn bulk(&self, options: BulkOptions) -> BulkReader {
        let range_size_bytes = options.range_size_bytes.clamp(64 << 10, 4 << 20);
        BulkReader(Arc::new(Bulk {
            shared: self.0.clone(),
            budget: ByteBudget::new("bulk", options.memory_limit.max(2 * range_size_bytes)),
            rate: Arc::new(Rate::new(options.bytes_per_second.map(|rate| rate.max(1)))),
            lines: Lines::new(options.ranges_per_bookie),
            range_size_bytes,
            counters: Counters::default(),
        }))
    }
}

impl BulkReader {
    /// Opens a ledger by its metadata; no password is needed, as that is in the metadata. Asks no bookie, and changes nothing:
    /// what can be read of an open ledger says the first [`LedgerView::refresh`].
    ///
    /// # Errors
    /// [`ReadError::Deleted`] when there is no such ledger; when the metadata store fails.
    pub async fn open(&self, ledger: LedgerId) -> Result<LedgerView, ReadError> {
        let shared = &self.0.shared;
        if shared.is_closed() {
            return Err(ReadError::ClientClosed);
        }
        let stored = shared.stored(ledger).await.map_err(|error| match error {
            LedgerError::NotFound(ledger) => ReadError::Deleted(ledger),
            LedgerError::Store(StoreError::Closed) => ReadError::ClientClosed,
            error => ReadError::Metadata(error),
        })?;
        let secret = stored.metadata.secret.clone();
        let is_authentic = secret.is_some();
        let is_verifiable = secret.as_ref().is_some_and(|secret| secret.digest_type != DigestType::Dummy);
        // Of metadata version 1, which stores no password.
        let secret =
            secret.unwrap_or_else(|| LedgerSecret { digest_type: DigestType::Crc32, password: Vec::new() });
        let state = ReaderState::new(shared.clone(), ledger, &secret, stored);
        Ok(LedgerView {
            bulk: self.0.clone(),
            ledger: Arc::new(Ledger { state, is_authentic, is_verifiable }),
        })
    }

    /// Another rate from now on; `None` for no limit.
    pub fn set_bytes_per_second(&self, bytes_per_second: Option<u64>) {
        self.0.rate.set(bytes_per_second);
    }

    /// Waits until its rate allows so many bytes, which are read elsewhere: reads that belong together share one rate.
    pub async fn charge(&self, bytes: u64) {
        let mut taken = self.0.rate.take(bytes).await;
        taken.used(bytes);
    }

    /// What it did, and what it holds.
    pub fn counts(&self) -> BulkCounts {
        let counters = &self.0.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BulkCounts {
            entries: of(&counters.entries),
            bytes: of(&counters.bytes),
            ranges: of(&counters.ranges),
            late_ranges: of(&counters.late_ranges),
            refused_ranges: of(&counters.refused_ranges),
            damaged_copies: of(&counters.damaged_copies),
            held_bytes: self.0.budget.gauge().used,
        }
    }
}

impl std::fmt::Debug for BulkReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BulkReader").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// A ledger, as its views know it.
struct Ledger {
    state: ReaderState,
    /// The metadata has the secret, so what bookies say of the LAC (last add confirmed) can be told from damage.
    is_authentic: bool,
    /// And the ledger has digests.
    is_verifiable: bool,
}

/// What is known of one ledger. Clones share it.
#[derive(Clone)]
pub struct LedgerView {
    bulk: Arc<Bulk>,
    ledger: Arc<Ledger>,
}

impl LedgerView {
    /// The ledger.
    pub fn id(&self) -> LedgerId {
        self.ledger.state.id
    }

    /// Its metadata as it was last read, and the version of that.
    pub fn metadata(&self) -> (LedgerMetadata, Version) {
        self.ledger.state.known_metadata()
    }

    /// When it was created, in milliseconds since the epoch: what its metadata says, or else when the node of that was made.
    pub fn created_ms(&self) -> i64 {
        self.ledger.state.created_ms()
    }

    /// Whether these bytes, from wherever they are, are an entry of this ledger: they have its ids and its digest.
    pub fn is_authentic(&self, entry: EntryId, stored: &[u8]) -> bool {
        self.ledger.state.codec.check(entry, stored).is_some()
    }

    /// Whether it was closed: it ends where [`last_readable`](Self::last_readable) says, for good.
    pub fn is_sealed(&self) -> bool {
        self.ledger.state.end().is_some()
    }

    /// Whether entries have digests, and the metadata the password they need (T12). Otherwise entries come unverified.
    pub fn is_verifiable(&self) -> bool {
        self.ledger.is_verifiable
    }

    /// The last entry that can be read: of a closed ledger its last one, of an open one the LAC (last add confirmed) known so
    /// far, which [`refresh`](Self::refresh) asks for.
    pub fn last_readable(&self) -> Option<EntryId> {
        self.ledger.state.lac()
    }

    /// Reads the metadata of a ledger that is not closed again, and asks its bookies for the LAC (last add confirmed). Of one
    /// whose metadata has no password, or which has no digests, the bookies are not asked: nothing would tell a LAC from damage.
    ///
    /// # Errors
    /// [`ReadError::LacUnknown`] when too few bookies answered; [`ReadError::Deleted`].
    pub async fn refresh(&self) -> Result<Option<EntryId>, ReadError> {
        let state = &self.ledger.state;
        match self.ledger.is_verifiable {
            true => state.refresh().await,
            false => {
                if state.end().is_none() {
                    state.reread().await?;
                }
                Ok(state.lac())
            }
        }
    }

    /// Reads current metadata, also of a closed ledger: repair moves its replicas, and it may have been deleted.
    ///
    /// # Errors
    /// [`ReadError::Deleted`]; when the metadata store fails.
    pub async fn reread(&self) -> Result<(), ReadError> {
        self.ledger.state.reread_latest().await.map(drop)
    }

    /// Entries `first..=last`, in order, read ahead. Nothing when `last` is below `first`.
    ///
    /// # Errors
    /// The first [`StoredStream::next`] says [`ReadError::BeyondEnd`] when `last` is behind the last entry that can be read.
    pub fn read(&self, first: EntryId, last: EntryId) -> StoredStream {
        StoredStream::new(self.bulk.clone(), self.ledger.clone(), first, last, None)
    }

    /// As [`read`](Self::read), only the entries whose write set has this position of the ensemble: those that the bookie there should
    /// have.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    pub fn read_position(&self, first: EntryId, last: EntryId, position: usize) -> StoredStream {
        StoredStream::new(self.bulk.clone(), self.ledger.clone(), first, last, Some(position))
    }
}

impl std::fmt::Debug for LedgerView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerView")
            .field("id", &self.id())
            .field("is_sealed", &self.is_sealed())
            .field("last_readable", &self.last_readable())
            .finish_non_exhaustive()
    }
}

/// An entry as one of its bookies stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredEntry {
    /// Its number.
    pub id: EntryId,
    /// Header, digest and payload.
    pub bytes: Bytes,
    /// Whether the digest was verified; else only that the ids are right.
    pub is_verified: bool,
}

/// Entries of a stream that follow one another, and their room in the reader's budget.
#[derive(Debug)]
pub struct StoredBatch {
    entries: Vec<StoredEntry>,
    permit: Permit,
}

impl StoredBatch {
    /// The entries, never none.
    pub fn entries(&self) -> &[StoredEntry] {
        &self.entries
    }

    /// The entries, and the permit to be kept for as long as their bytes live. Whoever lets it go earlier has them in a budget of
    /// its own.
    pub fn into_parts(self) -> (Vec<StoredEntry>, Permit) {
        (self.entries, self.permit)
    }
}
