//! Rows of the catalogue, and what a core is told of those that lie below the tail of the log.

use std::collections::{BTreeMap, BTreeSet};

use bindery_types::tier::{ObjectRef, TierExtent};
use bindery_types::{EntryId, LedgerId};

use super::WriterId;
use crate::ObjectId;

/// The most extents that one removal of a ledger takes, so that no reader has to hold all those of a large one. The rest is left to
/// further removals of the same ledger.
pub const REMOVED_EXTENTS_MAX: usize = 4096;

/// The most extents that one new extent can replace.
pub const REPLACED_EXTENTS_MAX: usize = 4096;

/// A ledger of which something is in the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerRow {
    /// The first entry of its first extent.
    pub first: EntryId,
    /// The entry after its last extent: where the next one has to begin.
    pub next: EntryId,
    /// How many extents it has.
    pub extents: u64,
    /// Bytes of the entries in them.
    pub bytes: u64,
    /// Being removed: it takes no more extents.
    pub is_removed: bool,
    /// When the ledger was created ([`bindery_types::Creation`]), in milliseconds since the epoch; `None` in rows of older builds.
    pub created_ms: Option<i64>,
}

impl LedgerRow {
    /// Of a ledger of which nothing is in the tier yet, and which begins with this entry there.
    pub(super) fn new(first: EntryId) -> LedgerRow {
        LedgerRow { first, next: first, extents: 0, bytes: 0, is_removed: false, created_ms: None }
    }
}

/// An extent, by ledger and first entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentRow {
    /// The last entry.
    pub last: EntryId,
    /// Bytes of its entries.
    pub bytes: u64,
    /// The object that holds it.
    pub object: ObjectRef,
}

impl ExtentRow {
    /// The extent as bookies are told of it.
    pub fn tier_extent(&self, first: EntryId) -> TierExtent {
        TierExtent { first, last: self.last, object: self.object }
    }
}

/// The last time that another object took extents over from one (T16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replaced {
    /// The number of the record.
    pub number: u64,
    /// The log's time there.
    pub at_ms: u64,
}

/// An object that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredObject {
    /// The object.
    pub object: ObjectRef,
    /// Checksum of the commit's content (T6).
    pub crc: u32,
    /// Extents in it.
    pub extents: u32,
    /// Bytes of the entries in it.
    pub bytes: u64,
    /// Extents that the catalogue refers to.
    pub live_extents: u32,
    /// Bytes of the entries in those.
    pub live_bytes: u64,
    /// The log's time at which it was committed.
    pub committed_ms: u64,
    /// Since when, by the log's time, no extent of the catalogue refers to it. It may be deleted a delay later (T13).
    pub unreferenced_ms: Option<u64>,
    /// Set once other objects took over extents of it.
    pub replaced: Option<Replaced>,
}

impl StoredObject {
    /// The part of its bytes that is still referred to (T16): 1 when all of it is.
    pub fn live_ratio(&self) -> f64 {
        if self.bytes == 0 { 1.0 } else { self.live_bytes as f64 / self.bytes as f64 }
    }

    /// The catalogue refers to some of it, but bookies may know another object with the same entries and refuse this one: it is to be
    /// rewritten, however much of it is live. A catalogue that was rebuilt has such objects, and so does a rewrite between two parts.
    pub fn is_outranked(&self) -> bool {
        self.live_extents > 0 && self.replaced.is_some()
    }
}

/// An object id that the catalogue knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectRow {
    /// Reserved: there may be an object, or part of one.
    Reserved {
        /// From this time of the log on it can no longer be committed.
        expires_ms: u64,
        /// By whom.
        writer: WriterId,
    },
    /// Committed.
    Stored(StoredObject),
}

impl ObjectRow {
    /// Since when, by the log's time, the object of this id is of no use to anybody: its reservation has expired, or it is
    /// unreferenced. `None` while it is of use.
    pub fn garbage_since_ms(&self, log_ms: u64) -> Option<u64> {
        match self {
            ObjectRow::Reserved { expires_ms, .. } => (*expires_ms <= log_ms).then_some(*expires_ms),
            ObjectRow::Stored(stored) => stored.unreferenced_ms,
        }
    }
}

/// Extents of one ledger that have to be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WantedExtents {
    /// The ledger.
    pub ledger: LedgerId,
    /// Those whose first entry is this one or a later one,
    pub from: EntryId,
    /// and not later than this one;
    pub through: EntryId,
    /// of these, this many are enough.
    pub limit: usize,
}

/// What has to be known of the rows below the tail, before a record can be applied or a question answered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// Rows of ledgers.
    pub ledgers: BTreeSet<LedgerId>,
    /// Rows of objects.
    pub objects: BTreeSet<ObjectId>,
    /// Rows of extents.
    pub extents: BTreeSet<WantedExtents>,
}

impl Needs {
    /// Nothing.
    pub fn is_empty(&self) -> bool {
        self.ledgers.is_empty() && self.objects.is_empty() && self.extents.is_empty()
    }
}

/// What is known of the rows below the tail. Valid as long as the tail begins at the same number.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// There are no other rows below the tail.
    is_complete: bool,
    ledgers: BTreeMap<LedgerId, Option<LedgerRow>>,
    objects: BTreeMap<ObjectId, Option<ObjectRow>>,
    extents: BTreeMap<(LedgerId, EntryId), ExtentRow>,
    /// For a ledger and a first entry: everything from there through this entry is in `extents`. Ranges do not overlap.
    covered: BTreeMap<(LedgerId, EntryId), EntryId>,
}

impl Facts {
    /// Nothing is known yet.
    pub fn new() -> Facts {
        Facts::default()
    }

    /// For a tail that is the whole catalogue: there is nothing below it that would have to be loaded.
    pub fn nothing_below() -> Facts {
        Facts { is_complete: true, ..Facts::default() }
    }

    /// How much is known, in rows; memory is bounded by it.
    pub fn len(&self) -> usize {
        self.ledgers.len() + self.objects.len() + self.extents.len() + self.covered.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes the row of a ledger, or that there is none.
    pub fn put_ledger(&mut self, ledger: LedgerId, row: Option<LedgerRow>) {
        self.ledgers.insert(ledger, row);
    }

    /// Notes the row of an object, or that there is none.
    pub fn put_object(&mut self, object: ObjectId, row: Option<ObjectRow>) {
        self.objects.insert(object, row);
    }

    /// Notes all extents of `ledger` whose first entries lie in `from..=through`.
    pub fn put_extents(
        &mut self,
        ledger: LedgerId,
        from: EntryId,
        through: EntryId,
        rows: impl IntoIterator<Item = (EntryId, ExtentRow)>,
    ) {
        self.extents.extend(rows.into_iter().map(|(first, row)| ((ledger, first), row)));
        let (mut from, mut through) = (from, through);
        // Ranges that meet become one.
        while let Some((begin, end)) = self.touching(ledger, from, through) {
            self.covered.remove(&(ledger, begin));
            (from, through) = (from.min(begin), through.max(end));
        }
        self.covered.insert((ledger, from), through);
    }

    /// A covered range that overlaps this one or borders on it.
    fn touching(&self, ledger: LedgerId, from: EntryId, through: EntryId) -> Option<(EntryId, EntryId)> {
        let behind = EntryId::new(through.get().saturating_add(1)).unwrap_or(EntryId::MAX);
        let (begin, end) =
            self.covered.range((ledger, EntryId::FIRST)..=(ledger, behind)).next_back().map(range_of)?;
        (end.get().saturating_add(1) >= from.get()).then_some((begin, end))
    }

    pub(super) fn ledger(&self, ledger: LedgerId) -> Option<Option<LedgerRow>> {
        self.ledgers.get(&ledger).copied().or(self.is_complete.then_some(None))
    }

    pub(super) fn object(&self, object: ObjectId) -> Option<Option<ObjectRow>> {
        self.objects.get(&object).copied().or(self.is_complete.then_some(None))
    }

    /// How far extents are known from `from` on: all of the ledger's extents whose first entry lies between `from` and the entry that
    /// is returned are in here. `None` if those at `from` have to be loaded.
    pub(super) fn covered(&self, ledger: LedgerId, from: EntryId) -> Option<EntryId> {
        if self.is_complete {
            return Some(EntryId::MAX);
        }
        let (_, end) =
            self.covered.range((ledger, EntryId::FIRST)..=(ledger, from)).next_back().map(range_of)?;
        (end >= from).then_some(end)
    }

    pub(super) fn extents(
        &self,
        ledger: LedgerId,
        from: EntryId,
        through: EntryId,
    ) -> impl Iterator<Item = (EntryId, ExtentRow)> {
        self.extents.range((ledger, from)..=(ledger, through)).map(|((_, first), row)| (*first, *row))
    }
}

fn range_of((key, end): (&(LedgerId, EntryId), &EntryId)) -> (EntryId, EntryId) {
    (key.1, *end)
}
