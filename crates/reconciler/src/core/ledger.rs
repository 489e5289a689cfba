//! What the core remembers of one ledger.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bindery_types::{BookieId, Creation, EntryId, LedgerMetadata, LedgerState};

use super::event::{RoundId, Sighting};

/// How many sightings of a ledger's end are remembered: enough to tell its lag within an eighth.
const MARKS_MAX: usize = 8;

/// Whether a ledger is in an object under construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is in none.
    Idle,
    /// It is in one of this round, which is not committed yet.
    Building(RoundId),
}

/// A bookie that is ahead of the catalogue, as far as the catalogue is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Doubt {
    pub bookie: BookieId,
    pub register: EntryId,
    /// The catalogue was asked since: only such an answer decides.
    pub is_asked: bool,
    /// Set if the catalogue has nothing of the ledger, which may have been deleted: this many more looks decide that first.
    pub looks_left: Option<u8>,
}

/// A ledger that is being watched.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    /// With the creation time under which the catalogue has the ledger, if it notes one: a copy of the metadata store may say another.
    pub metadata: Option<Arc<LedgerMetadata>>,
    pub creation: Option<Creation>,
    noted_ms: Option<i64>,
    pub available: Option<EntryId>,
    pub length_bytes: Option<u64>,
    /// Bytes of an entry, by the last extent that was committed.
    pub entry_bytes: Option<u64>,
    /// The last entry in the catalogue; `None` until the catalogue answered.
    pub tiered: Option<Option<EntryId>>,
    /// Ends that were seen above what was tiered, ascending, with the time of each.
    marks: VecDeque<(Duration, EntryId)>,
    pub stage: Stage,
    /// Whether bookies are being asked for its registers, and whether they have been (T15).
    pub is_asking: bool,
    pub is_asked: bool,
    /// The catalogue is being asked.
    pub is_locating: bool,
    pub is_looking: bool,
    pub look_at: Duration,
    pub look_pause: Duration,
    pub was_left_out: bool,
    pub is_urgent: bool,
    /// Somebody asked for it, and no look has come back since.
    pub is_stale: bool,
    /// While it was asked for not long ago, it is watched although another tierer owns it.
    pub kept_until: Duration,
    /// Reads and looks that failed in a row, and when the next may begin.
    pub failures: u32,
    pub not_before: Duration,
    pub last_error: Option<String>,
    pub doubt: Option<Doubt>,
    pub stopped: Option<Doubt>,
    pub is_gone: bool,
}

impl Ledger {
    pub fn new(now: Duration) -> Ledger {
        Ledger {
            metadata: None,
            creation: None,
            noted_ms: None,
            available: None,
            length_bytes: None,
            entry_bytes: None,
            tiered: None,
            marks: VecDeque::new(),
            stage: Stage::Idle,
            is_asking: false,
            is_asked: false,
            is_locating: false,
            is_looking: false,
            look_at: now,
            look_pause: Duration::ZERO,
            was_left_out: false,
            is_urgent: false,
            is_stale: false,
            kept_until: Duration::ZERO,
            failures: 0,
            not_before: Duration::ZERO,
            last_error: None,
            doubt: None,
            stopped: None,
            is_gone: false,
        }
    }

    pub fn is_sealed(&self) -> bool {
        self.metadata.as_ref().is_some_and(|metadata| matches!(metadata.state, LedgerState::Closed { .. }))
    }

    /// Takes a sighting in; true if there are more entries than before.
    pub fn see(&mut self, now: Duration, sighting: Sighting) -> bool {
        let Sighting { metadata, available, length_bytes, age, creation } = sighting;
        let is_first = self.metadata.is_none();
        (self.metadata, self.creation) = (Some(metadata), Some(creation));
        self.note(self.noted_ms);
        // A bookie that lags reports a LAC below one that was reported before.
        let has_grown = available > self.available;
        if has_grown || self.is_sealed() {
            self.available = available;
            self.length_bytes = length_bytes;
        }
        if let Some(end) = available.filter(|_| has_grown) {
            // How long the entries that the first look found have been there is unknown; at most for the age of the ledger.
            let since = if is_first { now.saturating_sub(age) } else { now };
            if self.marks.len() >= MARKS_MAX {
                self.marks.remove(1);
            }
            self.marks.push_back((since, end));
        }
        has_grown
    }

    /// Notes when the ledger was created by the catalogue.
    pub fn note(&mut self, created_ms: Option<i64>) {
        self.noted_ms = created_ms.or(self.noted_ms);
        if let Some(metadata) = self
            .metadata
            .as_mut()
            .filter(|metadata| self.noted_ms.is_some() && metadata.created_ms != self.noted_ms)
        {
            Arc::make_mut(metadata).created_ms = self.noted_ms;
        }
    }

    /// Notes that the catalogue has entries up to here.
    pub fn tier(&mut self, tiered: Option<EntryId>) {
        self.tiered = Some(tiered.max(self.tiered.flatten()));
        while self.marks.front().is_some_and(|(_, end)| Some(*end) <= self.tiered.flatten()) {
            self.marks.pop_front();
        }
    }

    /// Since when the oldest entry that is not in the tier could have been there.
    pub fn behind_since(&self) -> Option<Duration> {
        self.tiered?;
        self.marks.front().map(|(since, _)| *since).filter(|_| self.available > self.tiered.flatten())
    }

    /// The entries that are not in the tier.
    pub fn untiered(&self) -> Option<(EntryId, EntryId)> {
        let (tiered, available) = (self.tiered?, self.available?);
        let first = tiered
            .map_or(EntryId::FIRST, |last| EntryId::new(last.get().saturating_add(1)).expect("above an id"));
        (first <= available).then_some((first, available))
    }

    pub fn lag_entries(&self) -> u64 {
        self.untiered().map_or(0, |(first, last)| (last.get() - first.get()) as u64 + 1)
    }

    /// Bytes that are not in the tier, estimated by the length of a closed ledger, else by the entries that were tiered last, else by
    /// `elsewhere`, the average size of an entry in all ledgers.
    pub fn lag_bytes(&self, elsewhere: u64) -> u64 {
        let (entries, Some(available)) = (self.lag_entries(), self.available) else { return 0 };
        let each = match self.length_bytes {
            Some(length) => length / (available.get() as u64 + 1) + ENTRY_OVERHEAD_BYTES,
            None => self.entry_bytes.unwrap_or(elsewhere),
        };
        entries.saturating_mul(each)
    }

    /// Whether entries may go into an object at this time.
    pub fn may_build_at(&self, now: Duration) -> bool {
        self.stage == Stage::Idle
            && self.is_asked
            && self.doubt.is_none()
            && self.stopped.is_none()
            && !self.is_gone
            && now >= self.not_before
            && self.untiered().is_some()
    }

    /// Notes that a read or look failed. The next one waits a second after the first failure, and twice as long after each further one
    /// in a row, up to a minute.
    pub fn fail(&mut self, now: Duration, why: String) {
        self.failures += 1;
        self.last_error = Some(why);
        let pause = Duration::from_millis(500) * 2_u32.pow(self.failures.min(7));
        self.not_before = now + pause.min(Duration::from_secs(60));
    }
}

/// Ids, LAC, length and digest of an entry as it is stored.
const ENTRY_OVERHEAD_BYTES: u64 = 40;
