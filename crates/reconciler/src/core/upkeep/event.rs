//! What the upkeep hears of, and what it wants done.

use std::time::Duration;

use bindery_tiering::ObjectId;
use bindery_types::LedgerId;

use super::ScanPage;

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
    /// Which of these ledgers are not there, on the metadata store's own word.
    LookAgain(Vec<LedgerId>),
    /// Remove ledgers from the catalogue.
    Remove(Vec<LedgerId>),
    /// Leave a new mark in the metadata store.
    Mark,
    /// Ask the catalogue for objects that are garbage for so long.
    FindGarbage {
        /// How long.
        delay: Duration,
        /// So many are enough.
        limit: usize,
    },
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
    /// Delete objects that have no row.
    DeleteOrphans(Vec<ObjectId>),
}

/// The answer to an [`UpkeepAction`].
#[derive(Debug, Clone, PartialEq)]
pub enum UpkeepEvent {
    /// Ids, ascending.
    Ledgers(Result<Vec<LedgerId>, String>),
    /// Of [`UpkeepAction::Prove`].
    Proven(Result<Proof, String>),
    /// The next ids, ascending; `None` at the end.
    Listed(Result<Option<Vec<LedgerId>>, String>),
    /// Those that are not there.
    LookedAgain(Result<Vec<LedgerId>, String>),
    /// Each ledger with the extents that are left of it; an error says that it may or may not have happened.
    Removed(Result<Vec<(LedgerId, u64)>, String>),
    /// Of [`UpkeepAction::Mark`].
    Marked(Result<(), String>),
    /// Of [`UpkeepAction::FindGarbage`].
    Garbage(Result<Vec<ObjectId>, String>),
    /// Of each object.
    Deleted(Vec<(ObjectId, Deletion)>),
    /// Rows that are gone; an error says that it may or may not have happened.
    Forgotten(Result<u64, String>),
    /// Of [`UpkeepAction::Scan`].
    Scanned(Result<ScanPage, String>),
    /// Those that are not there as they should be.
    Missing(Result<Vec<ObjectId>, String>),
    /// Of each orphan.
    OrphansDeleted(Vec<(ObjectId, Deletion)>),
}
