//! What the upkeep hears of, and what it wants done.

use std::sync::Arc;
use std::time::Duration;

use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::{ExtentOutcome, NewObject, ObjectRow, Refusal, StoredObject};
use bindery_types::tier::{ObjectRef, TierExtent};
use bindery_types::{EntryId, LedgerId, LedgerMetadata};

use super::{Orphan, ScanPage};
use crate::core::{BuildOrder, Built};

/// What the metadata store says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    /// Its INSTANCEID, empty when it has none.
    pub instance_id: String,
    /// It has the layout of a cluster, and is not being imported.
    pub is_whole: bool,
    /// It has the mark that tierers left there last.
    pub has_mark: bool,
    /// The ledger id that it gives out next.
    pub next_id: Option<LedgerId>,
}

/// What became of the deletion of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deletion {
    /// It is not there any more, or never was.
    Done,
    /// The credentials do not allow it.
    Denied(String),
    /// It may be there.
    Failed(String),
}

/// An object that is of no use to the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Garbage {
    /// Its id.
    pub object: ObjectId,
    /// Its row; `None` when the id was reserved in vain. Then it is not known whether there is an object of this id, nor what is in it.
    pub stored: Option<StoredObject>,
}

impl Garbage {
    /// From the catalogue's row.
    pub fn new(object: ObjectId, row: &ObjectRow) -> Garbage {
        let stored = match row {
            ObjectRow::Stored(stored) => Some(*stored),
            ObjectRow::Reserved { .. } => None,
        };
        Garbage { object, stored }
    }
}

/// A range of a ledger that the catalogue, or the metadata store, knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The ledger.
    pub ledger: LedgerId,
    /// The first entry.
    pub first: EntryId,
    /// The last entry.
    pub last: EntryId,
    /// Where it is now by the catalogue: extents that follow each other, in objects that are in the bucket. None when the catalogue
    /// does not have the ledger.
    pub extents: Vec<TierExtent>,
    /// In which way what is in those differs from what is in the object, when it does; ranges that are not covered are not compared.
    pub differs: Option<String>,
}

/// Where extents of an object are by now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Extents in the footer.
    pub extents: usize,
    /// Those of ledgers that the catalogue has, or that the metadata store has.
    pub moved: Vec<Moved>,
    /// Ledgers of extents that neither has. Those whose ids other ledgers have are in neither list: they are needed by no reader.
    pub absent: Vec<LedgerId>,
}

impl Moved {
    /// Whether the extents have all of it, without a gap.
    pub fn is_covered(&self) -> bool {
        let mut next = self.first;
        for extent in &self.extents {
            if extent.first > next {
                return false;
            }
            match EntryId::new(extent.last.get().saturating_add(1)).filter(|_| extent.last < self.last) {
                Some(behind) => next = next.max(behind),
                None => return true,
            }
        }
        false
    }
}

/// An extent of an object that the catalogue refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveExtent {
    /// The ledger.
    pub ledger: LedgerId,
    /// The first entry.
    pub first: EntryId,
    /// The last entry.
    pub last: EntryId,
    /// Bytes of its entries.
    pub bytes: u64,
    /// The ledger's metadata, as the metadata store has it.
    pub metadata: Arc<LedgerMetadata>,
}

/// The live extents of an object, or why they are not known.
pub type Survey = (ObjectRef, Result<Vec<LiveExtent>, SourceError>);

/// Why an object could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceError {
    /// Why.
    pub why: String,
    /// Whether that will pass.
    pub fault: Fault,
}

/// The fault of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It may be readable later.
    Passing,
    /// Its bytes are not those that were committed, which will not pass by itself.
    Damage,
    /// It is not in the bucket.
    Gone,
}

/// A whole extent of an object that is to be rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The object.
    pub object: ObjectRef,
    /// The first entry.
    pub first: EntryId,
    /// The last entry.
    pub last: EntryId,
}

/// An object to be built from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewriteOrder {
    /// The object, and what goes into it, in this order.
    pub order: BuildOrder,
    /// For each range of the order, the extents that make it up.
    pub pieces: Vec<Vec<Piece>>,
    /// It may take twice as long as others: the time was too short before.
    pub has_more_time: bool,
}

/// A ledger of the catalogue that does not exist: none of its id does, or another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absent {
    /// The ledger.
    pub ledger: LedgerId,
    /// When it was created, by the row of the catalogue that was compared: a row with another time stays.
    pub created_ms: Option<i64>,
}

/// Something is to be done. One [`UpkeepEvent`] answers it.
#[derive(Debug, Clone, PartialEq)]
pub enum UpkeepAction {
    /// Follow the catalogue to its end, and read the ids of all its ledgers.
    Ledgers,
    /// Sync the metadata store, and ask who it is.
    Prove,
    /// Read the next ledgers of the listing of all of them; from its beginning when `is_first`.
    List {
        /// Start over.
        is_first: bool,
    },
    /// Which of these ledgers, as the catalogue has them, are not there, on the metadata store's own word.
    LookAgain(Vec<LedgerId>),
    /// Remove ledgers from the catalogue.
    Remove(Vec<Absent>),
    /// Leave a new mark in the metadata store.
    Mark,
    /// Ask the catalogue for objects that are garbage for so long.
    FindGarbage {
        /// How long.
        delay: Duration,
        /// Behind this one; `None` from the beginning.
        after: Option<ObjectId>,
        /// So many are enough.
        limit: usize,
    },
    /// Delete an object that never was there, to find out whether that is allowed.
    TryDeletion,
    /// Delete objects from the bucket.
    Delete(Vec<ObjectId>),
    /// Take the rows of deleted objects out of the catalogue.
    Forget(Vec<ObjectId>),
    /// List a page of the bucket's objects behind this one, and then read the rows of the same stretch.
    Scan {
        /// `None` for the first page.
        after: Option<ObjectId>,
    },
    /// Which of these objects are not in the bucket, or not with this length, while the catalogue still refers to them.
    AskFor(Vec<(ObjectId, u64)>),
    /// Read the footers of objects that have no row, of these lengths.
    ReadFooters(Vec<(ObjectId, u64)>),
    /// Read the footer of an object that is to go, find where the extents at these places in it, ascending, are by the catalogue, and
    /// compare them with those.
    WhereTo(ObjectRef, Vec<u32>),
    /// Read footers, look up which of their extents the catalogue refers to, and read the metadata of those ledgers.
    Survey {
        /// Of these objects.
        objects: Vec<ObjectRef>,
        /// Extents of a ledger that has no metadata are left out. Otherwise it fails for an object that has one.
        is_partial: bool,
    },
    /// Draw an id and reserve it, and then look whether the catalogue has an object with a later one.
    Reserve,
    /// Build and upload an object.
    Rewrite(RewriteOrder),
    /// Let an object take over extents of others.
    Replace {
        /// The object.
        object: NewObject,
        /// The others.
        sources: Vec<ObjectId>,
    },
}

/// The answer to an [`UpkeepAction`].
#[derive(Debug, Clone, PartialEq)]
pub enum UpkeepEvent {
    /// Ids, ascending.
    Ledgers(Result<Vec<LedgerId>, String>),
    /// The outcome of [`UpkeepAction::Prove`].
    Proven(Result<Proof, String>),
    /// The next ids, ascending; `None` at the end.
    Listed(Result<Option<Vec<LedgerId>>, String>),
    /// Those that are not there, or are others than the catalogue's.
    LookedAgain(Result<Vec<Absent>, String>),
    /// Each ledger with the extents that are left of it; an error says that it may or may not have happened.
    Removed(Result<Vec<(LedgerId, u64)>, String>),
    /// The outcome of [`UpkeepAction::Mark`].
    Marked(Result<(), String>),
    /// The outcome of [`UpkeepAction::FindGarbage`].
    Garbage(Result<Vec<Garbage>, String>),
    /// The outcome of [`UpkeepAction::TryDeletion`].
    DeletionTried(Deletion),
    /// Of each object.
    Deleted(Vec<(ObjectId, Deletion)>),
    /// Rows that are gone; an error says that it may or may not have happened.
    Forgotten(Result<u64, String>),
    /// The outcome of [`UpkeepAction::Scan`].
    Scanned(Result<ScanPage, String>),
    /// Those that are not there as they should be.
    Missing(Result<Vec<ObjectId>, String>),
    /// The outcome of [`UpkeepAction::ReadFooters`].
    FootersRead(Vec<(ObjectId, Result<Orphan, SourceError>)>),
    /// The outcome of [`UpkeepAction::WhereTo`].
    Whereabouts(Result<Whereabouts, SourceError>),
    /// Of each object.
    Surveyed(Vec<Survey>),
    /// The object, and one of the catalogue that has a later id, if there is one.
    Reserved(Result<(ObjectId, Option<ObjectId>), String>),
    /// The outcome of [`UpkeepAction::Rewrite`], with the sources that could not be read.
    Rewritten(Built, Vec<(ObjectId, SourceError)>),
    /// The outcome of [`UpkeepAction::Replace`]. An error says that it may or may not have happened.
    Replaced(Result<Result<Vec<ExtentOutcome>, Refusal>, String>),
}
