//! What a reader knows of its ledger, and how it learns more.
//!
//! # Invariants
//! 1. The LAC (last add confirmed) never goes back (IC21). That of a closed ledger is its last entry.
//! 2. The LAC of an open ledger is the largest that a covering set of bookies reports, each with a valid digest
//!    (protocol reference, section 7.6), or what a writer of the same client has confirmed.
//! 3. Metadata is replaced by newer metadata only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::store::Version;
use bindery_types::{Digester, EntryId, LedgerId, LedgerMetadata, LedgerSecret, LedgerState};
use bindery_wire::ErrorCode;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::entry::{EntryCodec, OVERHEAD_SIZE_BYTES_MAX};
use crate::error::{BookieAnswer, BookieAnswers, ReadError};
use crate::handover::Handover;
use crate::health::{LedgerNodes, Outcome};
use crate::shared::Shared;
use crate::transport::{BookieError, LacAnswer};

/// How long a read of a closed ledger waits for current metadata. It could do without, so a metadata store that is away does not
/// hold up its error for the client's `metadata_patience`.
const CLOSED_PATIENCE: Duration = Duration::from_secs(1);

/// How long a read waits for metadata that another one reads again, before it does so itself.
const REREAD_PATIENCE: Duration = Duration::from_secs(3);

struct Known {
    replicas: Arc<Replicas>,
    version: Version,
}

/// Metadata read again for reads that failed: once for all that wait for it, because each time asks the leader of the metadata store.
#[derive(Default)]
struct Rereads {
    /// How many have begun.
    begun: AtomicU64,
    /// Which of them ended last, and how; held by the one that is at it.
    last: tokio::sync::Mutex<(u64, Option<Result<bool, ReadError>>)>,
}

/// Whether the end of a run of entries was compared with that of the ledger.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    Due,
    /// A task is at it.
    UnderWay,
    Done,
}

/// One version of a ledger's metadata, with the nodes of the bookies it names: looked up once (C13).
pub(crate) struct Replicas {
    pub metadata: LedgerMetadata,
    pub nodes: LedgerNodes,
    /// Readers of runs stay with one replica, which has every entry: each range that lies in object storage is fetched once. Only
    /// of a closed ledger: the copies of an open one stay where they are, and its end is in the memory of every replica.
    pub have_home: bool,
}

impl Replicas {
    fn new(metadata: LedgerMetadata, shared: &Shared) -> Arc<Replicas> {
        let nodes = LedgerNodes::new(&metadata, &shared.health);
        shared.survey.look_for(metadata.segments().iter().flat_map(|segment| &segment.ensemble));
        let is_whole = metadata.quorum.ensemble_size() == metadata.quorum.write_quorum_size();
        let have_home = is_whole && matches!(metadata.state, LedgerState::Closed { .. });
        Arc::new(Replicas { metadata, nodes, have_home })
    }
}

pub(crate) struct ReaderState {
    pub shared: Arc<Shared>,
    pub id: LedgerId,
    pub codec: EntryCodec,
    known: Mutex<Known>,
    /// When the ledger's node was created, by the metadata store's clock: a node of another time is another ledger's that has its id.
    node_created_ms: i64,
    rereads: Rereads,
    /// -1 for none.
    lac: AtomicI64,
    /// Mean size of its entries, as stored; 0 when nothing is known of it.
    entry_size_bytes: AtomicU64,
    /// Whether reads are sent as batches.
    pub batches: Batches,
    /// Set when one answered a batch read: until then a single one is tried.
    pub has_batched: AtomicBool,
}

/// How long entries are read one by one after bookies did not know batch reads. Long enough that asking costs nothing; a fault
/// that looked like it passes meanwhile.
const BATCHES_PAUSE: Duration = Duration::from_secs(30);

/// Whether batch reads are tried.
#[derive(Default)]
pub(crate) struct Batches {
    paused_until: Mutex<Option<Instant>>,
}

impl Batches {
    /// Bookies did not know the request, or answered as if they did not.
    pub fn pause(&self) {
        *self.paused_until.lock() = Some(Instant::now() + BATCHES_PAUSE);
    }

    pub fn are_wanted(&self) -> bool {
        self.paused_until.lock().is_none_or(|until| until <= Instant::now())
    }
}

/// What a ledger's length says of the size of its entries.
fn mean_size_bytes(metadata: &LedgerMetadata) -> u64 {
    match metadata.state {
        LedgerState::Closed { last_entry: Some(last), length_bytes } if length_bytes > 0 => {
            length_bytes / (last.get().unsigned_abs() + 1) + OVERHEAD_SIZE_BYTES_MAX as u64
        }
        _ => 0,
    }
}

impl ReaderState {
    pub fn new(
        shared: Arc<Shared>,
        id: LedgerId,
        secret: &LedgerSecret,
        stored: StoredLedger,
    ) -> ReaderState {
        let StoredLedger { metadata, version, created_ms: node_created_ms } = stored;
        let codec = EntryCodec::new(id, Digester::new(secret.digest_type, &secret.password));
        let lac = AtomicI64::new(-1);
        let replicas = Replicas::new(metadata, &shared);
        let known = Mutex::new(Known { replicas: replicas.clone(), version });
        let batches = Batches::default();
        let entry_size_bytes = AtomicU64::new(mean_size_bytes(&replicas.metadata));
        let has_batched = AtomicBool::new(false);
        let rereads = Rereads::default();
        let state = ReaderState {
            shared,
            id,
            codec,
            known,
            node_created_ms,
            rereads,
            lac,
            entry_size_bytes,
            batches,
            has_batched,
        };
        state.learn_from(&replicas.metadata);
        state
    }

    pub fn replicas(&self) -> Arc<Replicas> {
        self.known.lock().replicas.clone()
    }

    /// The metadata, and its version.
    pub fn known_metadata(&self) -> (LedgerMetadata, Version) {
        let known = self.known.lock();
        (known.replicas.metadata.clone(), known.version)
    }

    /// When it was created, in milliseconds since the epoch.
    pub fn created_ms(&self) -> i64 {
        self.known.lock().replicas.metadata.created_ms.unwrap_or(self.node_created_ms)
    }

    /// The last entry of a closed ledger, whatever LAC is inside its entries: one that re-replication packed again may have
    /// another.
    pub fn lac(&self) -> Option<EntryId> {
        match self.end() {
            Some((last_entry, _)) => last_entry,
            None => EntryId::new(self.lac.load(Ordering::Acquire)),
        }
    }

    /// How large the next entries may be expected to be, as stored; 0 when nothing is known of them.
    pub fn entry_size_bytes(&self) -> u64 {
        self.entry_size_bytes.load(Ordering::Relaxed)
    }

    /// Entries were this large in the mean. Of several who say so at a time one may be overheard.
    pub fn learn_size(&self, mean_bytes: u64) {
        let learned = match self.entry_size_bytes() {
            0 => mean_bytes,
            before => (before * 3 + mean_bytes) / 4,
        };
        self.entry_size_bytes.store(learned.max(1), Ordering::Relaxed);
    }

    /// Last entry and length, once the ledger is closed.
    pub fn end(&self) -> Option<(Option<EntryId>, u64)> {
        match self.known.lock().replicas.metadata.state {
            LedgerState::Closed { last_entry, length_bytes } => Some((last_entry, length_bytes)),
            LedgerState::Open | LedgerState::InRecovery => None,
        }
    }

    /// Invariant 1.
    pub fn advance(&self, lac: Option<EntryId>) {
        self.lac.fetch_max(EntryId::to_wire(lac), Ordering::AcqRel);
    }

    fn learn_from(&self, metadata: &LedgerMetadata) {
        if let LedgerState::Closed { last_entry, .. } = metadata.state {
            return self.advance(last_entry);
        }
        // A segment begins behind what was confirmed.
        self.advance(metadata.segments().last().and_then(|last| EntryId::new(last.first_entry.get() - 1)));
        if let Some(Ok(Handover::Idle { next, .. })) = Handover::of(metadata) {
            self.advance(EntryId::new(next.get() - 1));
        }
    }

    /// Takes metadata just read; whether it is news. Versions of a ledger that was deleted and created again begin anew: it is
    /// another one, and this one is gone.
    fn adopt(&self, stored: StoredLedger) -> Result<bool, ReadError> {
        if stored.created_ms != self.node_created_ms {
            return Err(ReadError::Deleted(self.id));
        }
        if !stored.version.is_later_than(self.known.lock().version) {
            return Ok(false);
        }
        let replicas = Replicas::new(stored.metadata, &self.shared);
        {
            let mut known = self.known.lock();
            if !stored.version.is_later_than(known.version) {
                return Ok(false);
            }
            *known = Known { replicas: replicas.clone(), version: stored.version };
        }
        self.learn_from(&replicas.metadata);
        Ok(true)
    }

    pub fn error_of(&self, error: LedgerError) -> ReadError {
        match error {
            LedgerError::NotFound(id) => ReadError::Deleted(id),
            LedgerError::Store(StoreError::Closed) => ReadError::ClientClosed,
            other => ReadError::Metadata(other),
        }
    }

    /// Reads the metadata again, patiently; whether it is news.
    pub async fn reread(&self) -> Result<bool, ReadError> {
        let stored = self.shared.stored(self.id).await.map_err(|error| self.error_of(error))?;
        self.adopt(stored)
    }

    /// As [`reread`](Self::reread), from a metadata store that has caught up: to be done before an entry is said to be absent.
    pub async fn reread_latest(&self) -> Result<bool, ReadError> {
        let stored = self.shared.stored_latest(self.id).await.map_err(|error| self.error_of(error))?;
        self.adopt(stored)
    }

    /// To be taken when a read has failed, for [`reread_after`](Self::reread_after).
    pub fn rereads_begun(&self) -> u64 {
        self.rereads.begun.load(Ordering::Acquire)
    }

    /// Reads current metadata for a read that failed when this many re-reads had begun; one that began later will do, whoever
    /// asked for it and however it ended. False when the ledger is closed and the metadata store is away: where the ledger ends is
    /// known, but whether an entry is absent is not.
    pub async fn reread_after(&self, begun: u64) -> Result<bool, ReadError> {
        // Its holder may be a future that nobody polls any more.
        let Ok(mut last) = timeout(REREAD_PATIENCE, self.rereads.last.lock()).await else {
            return self.reread_soon().await;
        };
        if last.0 > begun
            && let Some(outcome) = &last.1
        {
            return outcome.clone();
        }
        let number = self.rereads.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let outcome = self.reread_soon().await;
        *last = (number, Some(outcome.clone()));
        outcome
    }

    async fn reread_soon(&self) -> Result<bool, ReadError> {
        if self.end().is_none() {
            return self.reread_latest().await.map(|_| true);
        }
        match timeout(CLOSED_PATIENCE, self.reread_latest()).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(ReadError::Metadata(error))) if error.is_transient() => Ok(false),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Learns the LAC of an open ledger, or that it was closed.
    pub async fn refresh(&self) -> Result<Option<EntryId>, ReadError> {
        if self.end().is_none() {
            self.reread().await?;
        }
        if self.end().is_none() {
            let replicas = self.replicas();
            self.advance(self.shared.own_writers.confirmed(self.id, &replicas.metadata));
            self.ask_for_lac().await?;
        }
        Ok(self.lac())
    }

    /// Whether the ledger has an entry to read, which is known to be behind the LAC otherwise. A lagging metadata store does not
    /// decide that.
    pub async fn reaches(&self, entry: EntryId) -> Result<bool, ReadError> {
        let is_behind = || self.lac() < Some(entry) && self.end().is_none();
        let mut known = Ok(());
        if is_behind() {
            match self.refresh().await {
                Ok(_) => {}
                // The bookies of an old ensemble may be gone.
                Err(error @ ReadError::LacUnknown { .. }) => known = Err(error),
                Err(error) => return Err(error),
            }
        }
        // It may have been closed, or go on in a newer segment.
        if is_behind() && self.reread_latest().await? {
            known = self.refresh().await.map(|_| ());
        }
        match self.lac() >= Some(entry) {
            true => Ok(true),
            false if self.end().is_some() => Ok(false),
            false => known.map(|()| false),
        }
    }

    /// Asks the last ensemble until it is covered (invariant 2).
    pub async fn ask_for_lac(&self) -> Result<(), ReadError> {
        let replicas = self.replicas();
        let metadata = &replicas.metadata;
        let Some(last) = metadata.segments().last() else { return Ok(()) };
        // Dropped with this future.
        let mut requests = JoinSet::new();
        for (position, bookie) in last.ensemble.iter().cloned().enumerate() {
            let (transport, id) = (self.shared.transport.clone(), self.id);
            requests.spawn(async move { (position, transport.read_lac(&bookie, id).await) });
        }
        let mut answers: Vec<Option<BookieAnswer>> = vec![None; last.ensemble.len()];
        let mut lac = None;
        while let Some(outcome) = requests.join_next().await {
            let (position, result) = match outcome {
                Ok(outcome) => outcome,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            let node = &replicas.nodes.last_ensemble()[position];
            let outcome = result.as_ref().map_or_else(|error| node.outcome_of(error), |_| Outcome::Answered);
            self.shared.health.note(node, outcome);
            let (answer, found) = self.judge_lac(result);
            answers[position] = Some(answer);
            lac = lac.max(found);
            let is_known: Vec<bool> = answers
                .iter()
                .map(|answer| matches!(answer, Some(BookieAnswer::Answered | BookieAnswer::Absent)))
                .collect();
            if metadata.quorum.is_covered(&is_known) {
                self.advance(lac);
                return Ok(());
            }
        }
        let answers = last.ensemble.iter().cloned().zip(answers.into_iter().flatten()).collect();
        Err(ReadError::LacUnknown { ledger: self.id, answers: BookieAnswers(answers) })
    }

    fn judge_lac(&self, result: Result<LacAnswer, BookieError>) -> (BookieAnswer, Option<EntryId>) {
        let answer = match result {
            Ok(answer) => answer,
            Err(BookieError::Refused(ErrorCode::NoEntry | ErrorCode::NoLedger)) => {
                return (BookieAnswer::Absent, None);
            }
            Err(error) => return (BookieAnswer::Failed(error), None),
        };
        let explicit = answer.explicit.map(|body| self.codec.open_lac(&body));
        let inside = answer.last_entry.map(|stored| self.codec.open(None, &stored));
        let inside = inside.map(|entry| entry.map(|entry| entry.last_add_confirmed));
        let is_sound = !matches!(explicit, Some(None)) && !matches!(inside, Some(None));
        let lac = explicit.flatten().flatten().max(inside.flatten().flatten());
        (if is_sound { BookieAnswer::Answered } else { BookieAnswer::Damaged }, lac)
    }
}
