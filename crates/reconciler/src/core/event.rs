//! What the core hears of, and what it wants done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bindery_tiering::ObjectId;
use bindery_tiering::catalogue::{ExtentOutcome, NewObject, Refusal};
use bindery_types::tier::TierExtent;
use bindery_types::{BookieId, Creation, EntryId, LedgerId, LedgerMetadata};

use super::measure::BuildTimes;
use super::team::Team;
use super::updates::{Ability, RequestError, RequestId, UpdateRequest, UpdateResult};

/// A round's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoundId(pub u64);

/// A commit's number; a commit that is sent again keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(pub u64);

/// A ledger as metadata and bookies show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// Its metadata.
    pub metadata: Arc<LedgerMetadata>,
    /// The last entry that may be tiered: the end of a closed ledger, else the LAC (last add confirmed) that bookies say
    /// (T4).
    pub available: Option<EntryId>,
    /// Sum of the payloads of a closed ledger.
    pub length_bytes: Option<u64>,
    /// How long ago the ledger was created.
    pub age: Duration,
    /// When, and what that proves.
    pub creation: Creation,
}

/// What the catalogue has of a ledger id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The ledger.
    pub ledger: LedgerId,
    /// The last entry.
    pub last: Option<EntryId>,
    /// When the ledger was created that these entries are of; `None`: not known, or there are none.
    pub created_ms: Option<i64>,
}

/// What a look at a ledger showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// It is there.
    Found(Sighting),
    /// The metadata store says that there is no such ledger.
    Gone,
    /// Nothing is known, and why.
    Failed(String),
}

/// Why a ledger gave not all that an object was to have of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// The object was full before its turn, or in it.
    Full,
    /// The object took as long as it may before its turn, or in it.
    OutOfTime,
    /// Reading failed, or took too long.
    Unread(String),
}

/// A ledger that an object is to have entries of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildLedger {
    /// The ledger.
    pub ledger: LedgerId,
    /// The first entry that is not in the tier.
    pub first: EntryId,
    /// The last entry that may be.
    pub last: EntryId,
    /// Its metadata, for the footer.
    pub metadata: Arc<LedgerMetadata>,
    /// Bytes of these entries, about.
    pub bytes: u64,
}

/// An object to be built and uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildOrder {
    /// Its id, which is reserved.
    pub object: ObjectId,
    /// The ledgers, by their turn.
    pub ledgers: Vec<BuildLedger>,
}

/// What came of a [`BuildOrder`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The object, whole in the store; `None` when there was nothing to put into it; or why it is not there.
    pub outcome: Result<Option<NewObject>, String>,
    /// Ledgers that gave not all they were to give.
    pub left: Vec<(LedgerId, Left)>,
    /// Where the time went.
    pub times: BuildTimes,
}

/// What the catalogue says of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitReply {
    /// Of each object: its extents in the order of the commit, or why it was refused as a whole.
    pub objects: Vec<(ObjectId, Result<Vec<ExtentOutcome>, Refusal>)>,
    /// Ids that were reserved with it.
    pub reserved: Vec<ObjectId>,
}

/// Something happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Time passed: [`super::Core::wake_at`] said when to say so.
    Time,
    /// The next ledgers of the listing.
    Listed {
        /// Their ids.
        ledgers: Vec<LedgerId>,
        /// The listing is complete.
        is_last: bool,
    },
    /// The listing failed and begins again.
    ListFailed(String),
    /// Of [`Action::Look`].
    Looked {
        /// The ledger.
        ledger: LedgerId,
        /// What was seen.
        look: Look,
    },
    /// Of [`Action::Locate`]: what the catalogue has of each ledger; or why it could not be asked.
    Located(Result<Vec<Place>, String>),
    /// Of [`Action::FindExtents`].
    Extents {
        /// The ledger.
        ledger: LedgerId,
        /// Contiguous from the entry that the action names; `None` when the catalogue did not answer.
        extents: Option<Vec<TierExtent>>,
    },
    /// Of [`Action::Reserve`]; or why not.
    Reserved(Result<Vec<ObjectId>, String>),
    /// Of [`Action::Build`].
    Built {
        /// The object.
        object: ObjectId,
        /// What came of it.
        built: Built,
    },
    /// Of [`Action::Commit`]. An error says that it may or may not have happened.
    Committed {
        /// The commit.
        commit: CommitId,
        /// What the catalogue says.
        outcome: Result<CommitReply, String>,
    },
    /// Of [`Action::Update`].
    Updated {
        /// The request.
        request: RequestId,
        /// The answer.
        answer: Result<Vec<UpdateResult>, RequestError>,
    },
    /// The bookies that are registered, and whether they take updates.
    Bookies(BTreeMap<BookieId, Ability>),
    /// A bookie said, to a read, that it has too much to do.
    Pressure,
    /// Tiering was paused, or goes on.
    Paused(bool),
    /// The live tierers are these.
    Tierers {
        /// This tierer's team.
        team: Team,
        /// What the others say against the catalogue.
        doubts: HeardDoubts,
    },
    /// Which tierers live, and what they say of the catalogue, could not be asked; why.
    TierersUnknown(String),
    /// The catalogue is another one than before: nothing that was known of it counts.
    CatalogueReplaced,
    /// Somebody wants this ledger tiered now.
    Now(LedgerId),
    /// End: nothing new is begun.
    Stop,
    /// End at once: objects under construction are given up.
    StopNow,
}

/// What other tierers say against the catalogue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeardDoubts {
    /// Why one of them does not believe it.
    pub of_catalogue: Option<String>,
    /// What one of them says of objects that are missing.
    pub missing: Option<String>,
    /// Objects that they found missing, with the lengths that were committed, as far as that could be read.
    pub missing_objects: Vec<(ObjectId, u64)>,
}

/// Something is to be done. Unless it says otherwise, an event answers it once.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Read the next ledgers of the listing of all of them; from its beginning, if it is complete or failed.
    List,
    /// Look at a ledger.
    Look(LedgerId),
    /// Ask the catalogue, up to its last record, where ledgers end in the tier.
    Locate(Vec<LedgerId>),
    /// Ask the catalogue for extents.
    FindExtents {
        /// The ledger.
        ledger: LedgerId,
        /// The entry that the first one holds.
        from: EntryId,
    },
    /// Draw ids and reserve them.
    Reserve(usize),
    /// Build and upload an object.
    Build(BuildOrder),
    /// Give an object up. [`Event::Built`] still comes.
    Abandon(ObjectId),
    /// Commit objects, and reserve so many ids in the same record.
    Commit {
        /// Returned with the answer.
        commit: CommitId,
        /// The objects.
        objects: Vec<NewObject>,
        /// Ids to be reserved.
        reserve: usize,
    },
    /// Tell a bookie.
    Update(UpdateRequest),
    /// The answer to this request is of no use any more. No event.
    GiveUp(RequestId),
    /// Read more slowly. No event.
    SlowDown,
    /// A person must look. No event.
    Alarm(Alarm),
    /// The end after [`Event::Stop`] is reached. No event.
    Stopped,
}

/// Something that a person must look at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Alarm {
    /// T2.
    #[error(
        "ledger {ledger}: bookie {bookie} says that entries up to {register} are in the tier, and the catalogue ends with \
         {}: it was put back from an older copy, or is another cluster's. The ledger is not tiered any further, nothing of it is \
         skipped, and nothing is deleted from the tier; put the newest catalogue back, or rebuild it from the objects (bindery tier \
         rebuild --metadata URI --store URL)",
        tiered.map_or_else(|| "nothing".to_owned(), |entry| format!("entry {entry}"))
    )]
    BookieAhead {
        /// The ledger.
        ledger: LedgerId,
        /// Who says so.
        bookie: BookieId,
        /// The bookie's register.
        register: EntryId,
        /// The last entry in the catalogue.
        tiered: Option<EntryId>,
    },
    /// T3.
    #[error(
        "ledger {ledger}: the catalogue has no object with entry {first}, and goes on with entry {next}: an object is gone from the \
         bucket. Bookies are told of nothing behind the gap, and nothing is deleted from the tier. Bring the object back from a \
         version or a copy of the bucket and rebuild the catalogue (bindery tier rebuild --metadata URI --store URL), or delete the ledger"
    )]
    CatalogueGap {
        /// The ledger.
        ledger: LedgerId,
        /// The first entry that is missing.
        first: EntryId,
        /// The first entry behind the gap.
        next: EntryId,
    },
    /// The catalogue is not believed.
    #[error("nothing is deleted from the tier, because the catalogue is not believed: {why}")]
    DeletionsStopped {
        /// Why, and what ends it.
        why: String,
    },
    /// An object without a row whose footer cannot be read.
    #[error(
        "object {object} is not in the catalogue and cannot be read, so it is kept: {why}. Bring it back from a copy or an older version \
         of the bucket; when it is of no use (bindery tier verify finds every ledger whole), delete it by hand"
    )]
    OrphanUnreadable {
        /// The object.
        object: ObjectId,
        /// In which way.
        why: String,
    },
    /// T17.
    #[error("deleted ledgers are not removed from the catalogue: {why}")]
    LedgersNotRemoved {
        /// Why.
        why: String,
    },
    /// An extent without its data.
    #[error(
        "object {object} is in the catalogue and not in the bucket as it was committed: somebody else deleted or replaced it. Put \
         it back from a version or a copy of the bucket"
    )]
    ObjectMissing {
        /// The object.
        object: ObjectId,
    },
    /// T16.
    #[error(
        "object {object} is damaged, and can be neither rewritten nor let go: {why}. Bring it back from a copy or an older version of \
         the bucket; everything else goes on"
    )]
    ObjectDamaged {
        /// The object.
        object: ObjectId,
        /// In which way.
        why: String,
    },
    /// T16.
    #[error(
        "object {object} cannot be rewritten, because not one extent of it can be copied in the time that an object may take: {why}. Raise \
         the tierer's rate, or make the store faster; until then the object keeps what was deleted of it, and everything else goes on"
    )]
    RewriteTooSlow {
        /// The object.
        object: ObjectId,
        /// What happened.
        why: String,
    },
    /// T13.
    #[error(
        "objects that nothing refers to cannot be deleted from the bucket, and go on costing money: {why}. Allow the tierer's \
         credentials to delete objects; everything else goes on"
    )]
    CannotDelete {
        /// What the store says.
        why: String,
    },
    /// The same ledger cannot be read for long.
    #[error("ledger {ledger} cannot be read, and is not tiered: {why}")]
    Unreadable {
        /// The ledger.
        ledger: LedgerId,
        /// Why.
        why: String,
    },
}
