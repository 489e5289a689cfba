//! Ledgers of which entries are in object storage: what is asked and answered, and where an entry is.
//!
//! The **last reconciled entry** (LRE) of a ledger is the entry up to which everything is in object storage, at the extents
//! that came with it. A tierer moves it ([`crate::Engine::reconcile`]); a server that has compared its own copies with the objects
//! lets those go ([`crate::Engine::trim`]).
//!
//! # Data flow
//! ```text
//! reconcile -> Shard (journal record, extents in memory) -> durable -> answer
//!                         |
//!                         '-> freeze -> one commit: LRE, extents, mark
//! trim -> Shard (in memory) -> freeze -> commit -> copies count as dead (`space`)
//! read -> no copy in memory or on disk -> at or below the trim: TieredRead -> tier_extent -> the caller fetches it
//! ```
//!
//! # Invariants
//! 1. Since a ledger was removed last, or its register dropped (7), its LRE never goes back (T1). It is shown, and answered, once it is durable.
//! 2. The state table never has an LRE without the extents below it: they come with the same commit. Until then the journal
//!    has both. Extents stay in the directory of that commit, and the LRE moves on with the ledger's state: a start that finds
//!    other directories than before looks for all of them, and forgets LRE and trim of a ledger that lacks some. A replay
//!    takes no update whose predecessors are missing.
//! 3. A trim is at or below the durable LRE, extents cover it, and it counts only once it is committed in every directory
//!    (T9): before, a power cut takes it back.
//! 4. An entry at or below the trim is never denied: a copy, its extent, or an error.
//! 5. A ledger is restored ([`crate::Engine::restore`]) only where nothing of it is, or nothing but what was restored before: then there
//!    is no copy that would have to be compared (T19). The record that restores it has its extents and its trim. A repair restores it
//!    ([`crate::Engine::restore_lacking`]) only where the bookie has no entry of the ledger, so there is no copy to compare either. Limbo does
//!    not matter: it concerns entries that are not there.
//! 6. Extents at or below the trim are replaced only by those whose objects were compared
//!    ([`crate::Engine::reconcile_compared`]): they are all that leads to entries without a copy. Only the extents that were
//!    compared are replaced: an update in between ends the replacement.
//! 7. A ledger id may be used again. The state here is about the ledger that was created at the time that came with it, and updates
//!    of another one change nothing until metadata has decided which of them lives ([`Compared::is_new_life`]). While a ledger is trimmed
//!    every add waits for metadata, so that no copy of another ledger counts as trimmed ([`crate::Engine::end_other_life`]): the trim is
//!    made only if nothing was placed since the comparison began, and an add that metadata spoke for is placed only on the trim that it
//!    spoke of ([`crate::Engine::add_judged`]). A register without a creation time, as older builds left them, is dropped when one is told,
//!    to be told again; if it is trimmed it stays, and gets none.
//!
//! # Limits
//! Extents that are not in the state table yet: [`EngineConfig::tier_extents_bytes`](crate::EngineConfig::tier_extents_bytes).
//! Beyond it, beyond 256 updates of one ledger, or without room in the group that forms, an update is refused; adds and fences
//! do not notice. Records take a quarter of a group at most, and no chunk of the reserve. While a directory cannot be read, no
//! extent is found that is not in memory.

use crate::api::{Changes, Refusal};
use bindery_storage::ExtentRow;
use bindery_types::tier::{Reconciliation, TierExtent};
use bindery_types::{EntryId, LedgerId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What became of one ledger of [`crate::Engine::reconcile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconciled {
    /// The ledger.
    pub ledger: LedgerId,
    /// `Ok`: everything up to the entry of the request is in the register. [`Refusal::BadRequest`]: its extents begin above
    /// the register, so that entries between would be missing. [`Refusal::NoLedger`]: nothing of the ledger is here.
    /// [`Refusal::TooManyRequests`]: no room at the moment.
    pub result: Result<(), Refusal>,
    /// The register, durable; nothing when no entry is reconciled, or that is not known.
    pub lre: Option<EntryId>,
}

/// What a tierer says of a ledger, after a look at the extents that are replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compared {
    /// What it says.
    pub reconciliation: Reconciliation,
    /// [`Tiered::update`] before that look; 0 when nothing of the ledger was in object storage, as far as was known here.
    pub seen: u64,
    /// Metadata says that the update is of the ledger that lives, and that what is known here was of another one of its id.
    pub is_new_life: bool,
}

/// Called once, with a result for each ledger in the order of the request; must not block. Dropped uncalled only at shutdown.
pub type ReconcileWaiter = Box<dyn FnOnce(Vec<Reconciled>) + Send>;

/// How far a ledger is in object storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiered {
    /// Names this life of the ledger: another one when it was removed and came back.
    pub life: u32,
    /// Grows with each update of its extents.
    pub update: u64,
    /// The last of these updates is durable: [`crate::Engine::tier_extents`] shows it.
    pub is_update_durable: bool,
    /// The last reconciled entry, durable.
    pub lre: EntryId,
    /// Entries up to this one, it included, are read from there when no copy is here.
    pub trimmed_below: Option<EntryId>,
    /// The trim is in the state table, so that the space of those copies can be collected.
    pub is_trim_committed: bool,
    /// When the ledger of this register was created, in milliseconds since the epoch; `None`: not known.
    pub created_ms: Option<i64>,
    /// When something other than updates and trims was placed for the ledger last.
    pub changes: Changes,
}

/// Length and checksum of a copy that is on disk here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalChecksum {
    /// The entry.
    pub entry: EntryId,
    /// Length of the stored entry: header, digest and payload.
    pub length: u32,
    /// CRC32C of these bytes.
    pub crc32c: u32,
}

/// Why copies may not go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrimError {
    /// Nothing of the ledger is in object storage, as far as is known here.
    #[error("the ledger is not here, or nothing of it is in object storage")]
    NotTiered,
    /// It was removed, left limbo, was written to, or was told of other extents since [`crate::Engine::tiered`] was asked.
    #[error("the ledger changed meanwhile")]
    Changed,
    /// Beyond the last reconciled entry.
    #[error("entry {0} is the last one in object storage")]
    AboveLre(EntryId),
    /// No extent has this entry, although the register is above it.
    #[error("no extent has entry {0}")]
    Uncovered(EntryId),
    /// The extents cannot be read.
    #[error("the extents cannot be read")]
    Io,
}

/// A read of an entry that is in object storage and not on this bookie: [`crate::Engine::tier_extent`] says where.
#[derive(Debug, Clone)]
pub struct TieredRead {
    ledger: LedgerId,
    entry: EntryId,
    /// Extents in memory that have the entry, and later ones that may overlap and so shorten them.
    in_memory: Vec<ExtentRow>,
    /// Rows of other epochs are what a removal left.
    epoch: u32,
    created_ms: Option<i64>,
}

impl TieredRead {
    pub(crate) fn new(
        ledger: LedgerId,
        entry: EntryId,
        in_memory: Vec<ExtentRow>,
        epoch: u32,
        created_ms: Option<i64>,
    ) -> TieredRead {
        TieredRead { ledger, entry, in_memory, epoch, created_ms }
    }

    pub(crate) fn in_memory(&self) -> &[ExtentRow] {
        &self.in_memory
    }

    /// The ledger of the entry.
    pub fn ledger(&self) -> LedgerId {
        self.ledger
    }

    /// The entry to fetch from object storage.
    pub fn entry(&self) -> EntryId {
        self.entry
    }

    /// It changes when the ledger is removed and comes back: findings for one epoch do not hold for another.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// When the ledger of the entry was created, in milliseconds since the epoch; `None`: not known.
    pub fn created_ms(&self) -> Option<i64> {
        self.created_ms
    }
}

/// Bounds the extents that are not in the state table yet.
pub(crate) struct TierBudget {
    bytes_max: u64,
    used: AtomicU64,
}

/// Room for some extents, given back when it is dropped.
pub(crate) struct TierPermit {
    budget: Arc<TierBudget>,
    bytes: u64,
}

impl TierBudget {
    pub(crate) fn new(bytes_max: u64) -> Arc<TierBudget> {
        Arc::new(TierBudget { bytes_max, used: AtomicU64::new(0) })
    }

    /// Bytes that so many extents of one update are charged.
    fn cost(extents: usize) -> u64 {
        (extents * size_of::<TierExtent>() + 2 * size_of::<PlacedUpdate>() + 64) as u64
    }

    /// Extents of one update that half of the room is for.
    pub(crate) fn extents_in_half(&self) -> usize {
        let left = (self.bytes_max / 2).saturating_sub(TierBudget::cost(0));
        usize::try_from(left).unwrap_or(usize::MAX) / size_of::<TierExtent>()
    }

    pub(crate) fn take(self: &Arc<TierBudget>, extents: usize) -> Option<TierPermit> {
        self.take_within(extents, self.bytes_max)
    }

    /// A start must take over all updates of a journal: at least one at a time, whatever the budget.
    pub(crate) fn take_at_start(self: &Arc<TierBudget>, extents: usize) -> Option<TierPermit> {
        let bytes = TierBudget::cost(extents);
        if self.used.load(Ordering::Acquire) == 0 {
            self.used.fetch_add(bytes, Ordering::AcqRel);
            return Some(TierPermit { budget: self.clone(), bytes });
        }
        self.take_within(extents, self.bytes_max.max(1 << 20))
    }

    fn take_within(self: &Arc<TierBudget>, extents: usize, max: u64) -> Option<TierPermit> {
        let bytes = TierBudget::cost(extents);
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(bytes).filter(|used| *used <= max)
        });
        taken.is_ok().then(|| TierPermit { budget: self.clone(), bytes })
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// A flush would make room that is needed soon.
    pub(crate) fn is_half_used(&self) -> bool {
        self.bytes_max > 0 && self.used() >= self.bytes_max / 2
    }
}

impl Drop for TierPermit {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// An update that is placed and not in the state table.
pub(crate) struct PlacedUpdate {
    pub(crate) sequence: u64,
    pub(crate) update: bindery_storage::ExtentUpdate,
    pub(crate) _permit: TierPermit,
}

impl PlacedUpdate {
    /// Its row that matters for what begins at an entry: the one that has it, or the first one behind it.
    pub(crate) fn row_at(&self, entry: EntryId) -> Option<ExtentRow> {
        let extents = &self.update.extents;
        let at = extents.partition_point(|extent| extent.last < entry);
        Some(ExtentRow { stamp: self.update.stamp, extent: *extents.get(at)? })
    }
}

/// The extent that has an entry, among rows of several sources that may overlap: of two that have it the one with the later
/// stamp counts, up to where one with a later stamp begins. It ends at `horizon` at the latest, behind which not all is known.
pub(crate) fn resolve(
    rows: impl Iterator<Item = ExtentRow> + Clone,
    entry: EntryId,
    horizon: EntryId,
) -> Option<TierExtent> {
    let best = rows.clone().filter(|row| row.extent.contains(entry)).max_by_key(|row| row.stamp)?;
    let cuts = rows.filter(|row| row.stamp > best.stamp && row.extent.first > entry);
    let cut = cuts.map(|row| row.extent.first.get() - 1).min().and_then(EntryId::new);
    let last = best.extent.last.min(horizon).min(cut.unwrap_or(EntryId::MAX));
    Some(TierExtent { last, ..best.extent })
}

/// Extents of entries `first..=last`, of the update with this number.
#[cfg(test)]
pub(crate) fn test_row(first: i64, last: i64, update: u64) -> ExtentRow {
    use bindery_types::tier::{ObjectId, ObjectRef, TierStamp};
    let id = ObjectId::new(update, [0; 10]);
    let object = ObjectRef { id, length_bytes: 9, footer_offset: 1, footer_crc: 0, etag_crc: 0 };
    let (first, last) = (EntryId::new(first).unwrap(), EntryId::new(last).unwrap());
    ExtentRow { stamp: TierStamp { epoch: 0, update }, extent: TierExtent { first, last, object } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn room_for_extents_is_bounded_and_comes_back() {
        let budget = TierBudget::new(TierBudget::cost(3));
        let held = budget.take(3).unwrap();
        assert!(budget.take(1).is_none() && budget.is_half_used());
        drop(held);
        assert_eq!((budget.used(), budget.is_half_used()), (0, false));
        assert!(budget.take(4).is_none());
        let alone = budget.take_at_start(100_000).expect("one update always");
        assert!(budget.take_at_start(1).is_none(), "but no second one beyond the bound");
        drop(alone);
        let off = TierBudget::new(0);
        assert!(off.take(1).is_none() && !off.is_half_used());
    }

    proptest! {
        /// Against one number for each entry: the object is that of the latest row, and it is the same up to the end.
        #[test]
        fn the_latest_row_counts_as_far_as_none_later_begins(
            ranges in prop::collection::vec((0i64..30, 0i64..10), 1..12), horizon in 0i64..40,
        ) {
            let rows: Vec<_> =
                (1u64..).zip(&ranges).map(|(n, (first, more))| test_row(*first, first + more, n)).collect();
            let latest = |entry: i64| {
                let id = EntryId::new(entry).unwrap();
                rows.iter().filter(|row| row.extent.contains(id)).map(|row| row.stamp.update).max()
            };
            for entry in 0..=horizon {
                let (at, end) = (EntryId::new(entry).unwrap(), EntryId::new(horizon).unwrap());
                let Some(extent) = resolve(rows.iter().copied(), at, end) else {
                    prop_assert_eq!(latest(entry), None);
                    continue;
                };
                prop_assert!(extent.contains(at) && extent.last <= end);
                for covered in entry..=extent.last.get() {
                    prop_assert_eq!(latest(covered), Some(extent.object.id.reserved_ms()));
                }
                let next = extent.last.get() + 1;
                let is_cut = next > horizon || latest(next) != Some(extent.object.id.reserved_ms());
                prop_assert!(is_cut, "it goes on at {}", next);
            }
        }
    }
}
