//! Requests to the engine and its answers: plain data, no behaviour.

use bindery_types::{EntryId, LedgerId, MasterKey};
use std::collections::BTreeMap;

/// Where the answer to an add goes. The engine carries it and never looks inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The connection the add came from.
    pub connection: u64,
    /// The request on that connection (v3: txnId).
    pub txn: u64,
    /// Whatever else the server needs to encode the answer (protocol, version, receive time).
    pub tag: u64,
}

/// One entry to be stored.
#[derive(Debug, Clone, Copy)]
pub struct Add<'a> {
    /// Where the answer goes.
    pub origin: Origin,
    /// The ledger, as the body names it.
    pub ledger: LedgerId,
    /// The entry, as the body names it.
    pub entry: EntryId,
    /// The LAC (last add confirmed) that the body carries.
    pub last_add_confirmed: Option<EntryId>,
    /// The key presented; the first one a ledger sees is its key for good.
    pub key: MasterKey,
    /// The entry exactly as it must be returned (protocol reference, section 3.1).
    pub body: &'a [u8],
    /// A recovery add passes a fence.
    pub is_recovery: bool,
    /// High priority passes the read-only state while there is room for it (section 4.7).
    pub is_high_priority: bool,
}

/// The answer to one add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddDone {
    /// From [`Add::origin`].
    pub origin: Origin,
    /// The ledger.
    pub ledger: LedgerId,
    /// The entry.
    pub entry: EntryId,
    /// Length of its body.
    pub bytes: u32,
    /// `Ok` only after the entry is durable (or written, when the journal does not sync).
    pub result: Result<(), Refusal>,
}

impl AddDone {
    pub(crate) fn of(add: &Add<'_>, result: Result<(), Refusal>) -> AddDone {
        let bytes = u32::try_from(add.body.len()).unwrap_or(u32::MAX);
        AddDone { origin: add.origin, ledger: add.ledger, entry: add.entry, bytes, result }
    }
}

/// A group and its times: in nanoseconds of the engine's clock, one reading of it for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupTimes {
    /// Number of its journal.
    pub journal: usize,
    /// Adds it answers, refused ones included.
    pub adds: u64,
    /// Bytes of its records; 0 when nothing was written.
    pub bytes: u64,
    /// When it was cut: later records are in the next one.
    pub cut_ns: u64,
    /// When its write began.
    pub begun_ns: u64,
    /// When its write and sync, one call, had ended, well or not. Without a write this and `begun_ns` are `cut_ns`.
    pub written_ns: u64,
}

/// Takes the answers to adds. Called with a whole group on the completion thread, or on a journal's when they are few;
/// must not block.
pub trait AddSink: Send + Sync {
    /// One call per group, in journal order, with the answers of all its shards, so that a socket is written once for a
    /// group, however many shards it has; answers of one connection stay in order within a shard. Also for a group
    /// without adds, for whoever measures.
    fn on_adds_done(&self, group: &GroupTimes, shards: &[Vec<AddDone>]);
}

/// Called once with the outcome, on the completion thread; must not block. Dropped uncalled only at shutdown.
pub type Waiter = Box<dyn FnOnce(Result<(), Refusal>) + Send>;

/// What became of a request with a waiter.
#[must_use]
pub(crate) enum Answer {
    /// The answer is known: call the waiter with it, without the shard's lock.
    Now(Waiter, Result<(), Refusal>),
    /// The shard keeps the waiter, until its record is durable.
    Later,
}

#[cfg(test)]
impl Answer {
    pub(crate) fn is_later(&self) -> bool {
        matches!(self, Answer::Later)
    }
}

/// Why a request was not served; each maps to one wire code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Proof that this bookie holds nothing of the ledger.
    #[error("no such ledger")]
    NoLedger,
    /// Proof that the ledger is here and the entry is not.
    #[error("no such entry")]
    NoEntry,
    /// Another master key than the ledger's.
    #[error("wrong master key")]
    WrongKey,
    /// The ledger is fenced and this is not a recovery add.
    #[error("the ledger is fenced")]
    Fenced,
    /// The bookie takes no writes.
    #[error("the bookie is read-only")]
    ReadOnly,
    /// The disk failed, or what it holds is damaged: nothing is known about the entry.
    #[error("I/O error")]
    Io,
    /// No room within the deadline.
    #[error("too many requests")]
    TooManyRequests,
    /// A request that no valid client sends.
    #[error("bad request")]
    BadRequest,
    /// The entry is in object storage and no copy is here. Who can read it there asks [`crate::Engine::tier_extent`]; told to a
    /// client it is an I/O error, which may pass, and never an absence.
    #[error("the entry is in object storage, which cannot be reached")]
    Tiered,
    /// Limbo: the bookie lost data of this ledger and cannot tell.
    #[error("the state of the ledger is unknown")]
    Unknown,
}

/// What an engine knows of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerPresence {
    /// Nothing.
    Unknown,
    /// It is here.
    Known,
    /// It was removed, and that is remembered: nothing is shown of it and nothing is added to it.
    Removed,
}

/// Why an add that was taken is not placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unplaced {
    /// It is left with the caller, to be offered again.
    Asks,
    /// It is refused: its answer leaves as any other's.
    Refused,
}

/// What metadata says of a ledger, read after the request that asks came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataVerdict {
    /// There is no such ledger.
    Absent,
    /// It is closed or in recovery: nobody may write to it but a recovery.
    Ended,
    /// It is open, and its last ensemble is without this bookie.
    OpenElsewhere,
    /// It is open, and this bookie is in its last ensemble.
    OpenHere,
    /// Metadata could not be read in time.
    Silent,
}

/// When something was placed for a ledger last, to be compared with a later look. Good for the life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changes(pub(crate) u64);

impl Changes {
    /// Nothing was placed in this process.
    pub const NONE: Changes = Changes(0);
}

/// Which entry a read asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryRef {
    /// A numbered entry.
    At(EntryId),
    /// The highest entry this bookie holds (entry id -1 on the wire).
    Last,
}

/// A position in the journal order of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurablePoint {
    /// Index of the shard.
    pub shard: usize,
    /// Sequence number of a record in the shard.
    pub sequence: u64,
}

/// Consecutive entries, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRun {
    /// First entry of the run.
    pub first: EntryId,
    /// Last entry of the run.
    pub last: EntryId,
}

/// What became of a request to be told when the LAC (last add confirmed) moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// It is beyond the given one already; the waiter was dropped uncalled.
    Ready,
    /// The waiter is kept, until the LAC moves or the ledger is fenced; take it back with [`crate::Engine::cancel_poll`] when the deadline passes.
    Parked(PollId),
}

/// Names a parked poll of a ledger. Ordered by the LAC that it waits to be passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PollId {
    /// Wake when the shown LAC is above this.
    pub(crate) previous: i64,
    /// In the order in which they came, of all polls of a shard.
    pub(crate) number: u64,
}

/// What an operator should know about an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Adds are refused, except with high priority.
    pub is_read_only: bool,
    /// Adds with high priority find room, read-only or not.
    pub takes_high_priority: bool,
    /// Bytes that recoveries may still add while no other adds are taken; `u64::MAX` without a bound.
    pub recovery_reserve_bytes: u64,
    /// Adds of recoveries that were refused because that, or the room for them in a journal, was used up.
    pub recoveries_refused: u64,
    /// The first failure of journal or storage. Nothing is acknowledged any more; reads go on.
    pub failed: Option<String>,
    /// Writes that found no space on their volume and are tried again until they do; no add is taken meanwhile but those of
    /// recoveries, as far as the reserve goes.
    pub waits_for_space: Option<String>,
    /// The same for want of a file descriptor, which says nothing about any volume.
    pub waits_for_descriptor: Option<String>,
    /// Ledger directories that failed while the others went on, by their number, and why.
    pub directories_failed: BTreeMap<usize, String>,
    /// False: acknowledged adds may be lost in a power cut.
    pub journal_sync: bool,
}

impl Status {
    /// What waits for space or for a file descriptor.
    pub fn waits(&self) -> Option<&str> {
        self.waits_for_space.as_deref().or(self.waits_for_descriptor.as_deref())
    }
}
