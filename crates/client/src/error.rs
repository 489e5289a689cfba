//! What can go wrong, one enum per operation. Each message says what happened and what to do about it.
//!
//! Errors that many waiters share are `Clone`. [`WhyStopped`] and the variants of the enums are what a program decides
//! by: retry, give up, take over, or look at the bookies.

use std::fmt;

use bindery_metadata::layout::{IdError, LedgerError};
use bindery_metadata::{OpenError as ClusterError, StoreError};
use bindery_types::{BookieId, EntryId, InvalidQuorum, LedgerId};
use bindery_wire::ErrorCode;

use crate::resolver::ResolveError;
use crate::tls::TlsError;
use crate::transport::{BookieError, UNAUTHORIZED};

/// The answer of each bookie that was asked, in the order of the answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BookieAnswers(pub Vec<(BookieId, BookieAnswer)>);

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BookieAnswer {
    /// It does not have it.
    #[error("does not have it")]
    Absent,
    /// It failed, or could not be asked.
    #[error(transparent)]
    Failed(BookieError),
    /// Its bytes are not what the writer stored: wrong ids or a wrong digest.
    #[error("returned damaged bytes")]
    Damaged,
    /// It answered properly; others were needed too.
    #[error("answered")]
    Answered,
}

impl fmt::Display for BookieAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no bookie was asked");
        }
        for (index, (bookie, answer)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{bookie}: {answer}")?;
        }
        Ok(())
    }
}

/// A spread that could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unmet {
    /// The domain that write sets are to be spread over: `racks` or `regions`.
    pub domain: &'static str,
    /// How many each write set should have.
    pub needed: usize,
    /// How many the worst one has; if the spread is enforced, how many there are in all.
    pub available: usize,
    /// How many bookies are left out because their place is unknown, or because their region is not to be written to.
    pub left_out: usize,
}

impl Unmet {
    /// Write sets should be spread over so many `domain`s (`racks`, `regions`), of which so many can be had.
    pub fn new(domain: &'static str, needed: usize, available: usize) -> Unmet {
        Unmet { domain, needed, available, left_out: 0 }
    }
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unmet { domain, needed, available, left_out } = self;
        let one = |count: usize, many: &'static str| if count == 1 { &many[..many.len() - 1] } else { many };
        write!(
            f,
            "no choice of writable bookies puts every write set on {needed} {}, {available} can be had",
            one(*needed, domain)
        )?;
        if *left_out > 0 {
            write!(
                f,
                " ({left_out} {} left out: in the default rack, or outside the regions to be written to)",
                one(*left_out, "bookies")
            )?;
        }
        Ok(())
    }
}

/// Too few bookies for an ensemble, or for the replacement of some of its members.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotEnoughBookies {
    /// How many are needed.
    pub needed: usize,
    /// How many of the registered ones take writes and may be chosen.
    pub available: usize,
    /// How many others are registered and take no writes: most often their disks are full.
    pub read_only: usize,
    /// Those that were not considered, or are to be replaced, and why.
    pub failed: BookieAnswers,
}

impl fmt::Display for NotEnoughBookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotEnoughBookies { needed, available, read_only, failed } = self;
        write!(f, "not enough bookies: {needed} needed, {available} available")?;
        if *read_only > 0 {
            write!(f, ", {read_only} read-only")?;
        }
        if !failed.0.is_empty() {
            write!(f, " (failed: {failed})")?;
        }
        // Registered as read-only, or on the way to that.
        let refuses = |answer: &BookieAnswer| {
            matches!(answer, BookieAnswer::Failed(BookieError::Refused(ErrorCode::ReadOnly)))
        };
        if *read_only > 0 || failed.0.iter().any(|(_, answer)| refuses(answer)) {
            f.write_str(
                "; a read-only bookie most often has a full disk: readOnlyBecause at http://ADMIN/api/v1/bookie/state says why, and so \
                 does its log. It takes entries again when there is space",
            )?;
        }
        f.write_str(
            "; start more bookies (see bindery bookie list), or create ledgers with a smaller ensemble",
        )
    }
}

impl std::error::Error for NotEnoughBookies {}

/// Why [`ClientBuilder::connect`](crate::ClientBuilder::connect) failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The builder was given no metadata URI.
    #[error("no metadata store was named: give the builder its URI (ClientBuilder::metadata)")]
    NoMetadata,
    /// The settings or files of TLS cannot be used.
    #[error("cannot speak TLS with bookies: {0}")]
    Tls(#[from] TlsError),
    /// The way of authentication would tell the secret to everybody on the way.
    #[error(
        "this way of authentication tells bookies a secret, which is sent over TLS only: connect with TLS (ClientBuilder::tls, \
         --tls), or choose DIGEST-MD5"
    )]
    NeedsTls,
    /// The metadata store cannot be reached, or holds no cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// Why no ledger was created. Nothing is left behind, except perhaps a skipped id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Too few writable bookies.
    #[error("cannot create a ledger: {0}")]
    NotEnoughBookies(#[from] NotEnoughBookies),
    /// The bookies there are do not allow the spread that is enforced.
    #[error(
        "cannot create a ledger: {unmet}.{} Start bookies on other {}, mend the map or the script that says where they \
         stand, or do not enforce the spread", unknown_places(places.as_ref()), unmet.domain
    )]
    CannotSpread {
        /// Which spread.
        unmet: Unmet,
        /// Why places of bookies are not known, if the resolver failed.
        places: Option<ResolveError>,
    },
    /// Sizes that are no quorum.
    #[error(transparent)]
    Sizes(#[from] InvalidQuorum),
    /// A write quorum above what a writer keeps track of.
    #[error("a write quorum of {write_quorum_size} is above the limit of {max}")]
    WriteQuorumTooLarge {
        /// As asked for.
        write_quorum_size: usize,
        /// The limit.
        max: usize,
    },
    /// A ledger that is handed from one writer to the next knows nothing of deferred sync.
    #[error(
        "a ledger that is handed over cannot have deferred sync: create it with create_ledger, or without"
    )]
    DeferredSyncHandedOver,
    /// A custom property with a name that is ours.
    #[error("the property {0:?} is used by the client itself: choose another name")]
    ReservedProperty(String),
    /// No id was generated.
    #[error("cannot create a ledger: {0}")]
    Id(#[from] IdError),
    /// The metadata store failed or refused.
    #[error("cannot create a ledger: {0}")]
    Metadata(#[from] LedgerError),
    /// The list of bookies could not be read.
    #[error("cannot list the bookies: {0}")]
    Store(#[from] StoreError),
    /// The client was closed.
    #[error("the client was closed")]
    ClientClosed,
}

/// Why a writer stopped for good. What to do is in the messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhyStopped {
    /// Somebody recovers the ledger: another client took this writer for dead.
    #[error("another client is recovering the ledger; it will be closed. Write on in a new ledger")]
    Fenced,
    /// Somebody closed the ledger.
    #[error("another client closed the ledger. Write on in a new ledger")]
    Closed,
    /// The ledger was deleted.
    #[error("the ledger was deleted")]
    Deleted,
    /// Bookies failed that cannot be replaced, and those left are fewer than the ack quorum.
    #[error("fewer bookies than its ack quorum can be written to: {0}")]
    NotEnoughBookies(NotEnoughBookies),
    /// A bookie refused the ledger's key, or this client: both have the same code.
    #[error("{bookie} refuses this client or the ledger's key: {UNAUTHORIZED}")]
    Unauthorized {
        /// Who refused.
        bookie: BookieId,
    },
    /// Ensemble changes followed one another without an entry getting through.
    #[error("{changes} ensemble changes in a row, and bookies still fail: {failed}")]
    TooManyChanges {
        /// How many.
        changes: u32,
        /// The last failures.
        failed: BookieAnswers,
    },
    /// With deferred sync: a bookie failed, or its connection was lost before a force. No other can take its place, as none
    /// can answer for what it acknowledged and had not synced.
    #[error(
        "a bookie failed, and in a ledger with deferred sync none can be replaced: {0}. Recover the ledger, which keeps \
         what its bookies have, and write on in a new one"
    )]
    DeferredSync(BookieAnswers),
    /// Somebody else changed the ensemble that is being written to.
    #[error("the ledger's ensemble was changed by somebody else")]
    MetadataChanged,
    /// The metadata store failed for too long, or refused.
    #[error("{0}")]
    Metadata(LedgerError),
    /// The ledger cannot take another entry: ids or bytes are used up.
    #[error("the ledger is full")]
    Full,
    /// [`LedgerWriter::close`](crate::LedgerWriter::close) or hand-over has begun.
    #[error("this writer is being closed")]
    Closing,
    /// The client was closed.
    #[error("the client was closed")]
    ClientClosed,
}

/// Why a force did not come through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForceError {
    /// Not all bookies of the ensemble said that they synced. Nothing more is confirmed, and the writer lives on.
    #[error(
        "ledger {ledger} is not forced: all bookies of its ensemble must sync, and not all did ({answers}). Force it again \
         when they answer"
    )]
    Bookies {
        /// The ledger.
        ledger: LedgerId,
        /// What those said that did not.
        answers: BookieAnswers,
    },
    /// Forcing again would not help.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why an entry was not appended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// This entry is too large; the writer lives on.
    #[error(
        "an entry of {size_bytes} bytes is above the limit of {max_bytes}: split it, or raise the client's frame_limit, if \
         the bookies' nettyMaxFrameSizeBytes allows that, or its memory_limit if that is lower"
    )]
    TooLarge {
        /// Size of the payload.
        size_bytes: u64,
        /// The largest payload.
        max_bytes: u64,
    },
    /// The writer can write no more. Entries behind the last confirmed one may or may not be found in the ledger after
    /// its recovery; they were not promised.
    #[error("{0}")]
    Stopped(#[from] Stopped),
}

/// Why an entry was not appended at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TryAppendError {
    /// There is no room for it now; the writer lives on.
    #[error(
        "no room for an entry of {size_bytes} bytes: entries that bookies have not acknowledged use up the memory limit of \
         {limit_bytes} bytes. Try again later, wait with enqueue, or raise the client's memory_limit"
    )]
    NoRoom {
        /// Size of the payload.
        size_bytes: u64,
        /// The client's limit.
        limit_bytes: u64,
    },
    /// Waiting would not help.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// The end of a writer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// The ledger.
    pub ledger: LedgerId,
    /// The last entry that was confirmed; everything up to it is safe.
    pub last_confirmed: Option<EntryId>,
    /// Why.
    pub why: WhyStopped,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ledger {} can no longer be written: {}. ", self.ledger, self.why)?;
        match self.last_confirmed {
            Some(entry) => write!(f, "The last confirmed entry is {entry}"),
            None => f.write_str("No entry was confirmed"),
        }
    }
}

impl std::error::Error for Stopped {}

/// Why a ledger was not closed, or not handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Entries that were enqueued could not be confirmed: open the ledger with recovery to close it.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// Bookies refused every entry that was sent, as unauthorized. Nothing of them is stored, and the ledger was left as this writer found it:
    /// one with the rights or the key may go on.
    #[error("ledger {}: {}. Nothing of what was sent is stored, and the ledger was left as it was", .0.ledger, .0.why)]
    GivenBack(Stopped),
    /// Entries of a ledger with deferred sync could not be forced: the ledger is left open. Opening it with recovery closes
    /// it, with what its bookies have.
    #[error(
        "{error}. The ledger is left open: open it with recovery to close it, with what its bookies have"
    )]
    NotForced {
        /// Why.
        error: ForceError,
        /// What was forced before.
        last_confirmed: Option<EntryId>,
    },
    /// Somebody else closed it, with another end.
    #[error(
        "ledger {ledger} was closed by another client after entry {}; this writer had confirmed up to {}",
        EntryId::to_wire(*.last_entry), EntryId::to_wire(*.last_confirmed)
    )]
    ClosedElsewhere {
        /// The ledger.
        ledger: LedgerId,
        /// Where it was closed.
        last_entry: Option<EntryId>,
        /// What this writer had confirmed.
        last_confirmed: Option<EntryId>,
    },
}

impl CloseError {
    /// The last entry that this writer had confirmed.
    pub fn last_confirmed(&self) -> Option<EntryId> {
        match self {
            CloseError::Stopped(stopped) | CloseError::GivenBack(stopped) => stopped.last_confirmed,
            CloseError::NotForced { last_confirmed, .. }
            | CloseError::ClosedElsewhere { last_confirmed, .. } => *last_confirmed,
        }
    }
}

/// Why a ledger cannot be taken up for appending.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendOpenError {
    /// No such ledger.
    #[error("ledger {0} does not exist")]
    NotFound(LedgerId),
    /// The password is not the ledger's.
    #[error("wrong password for ledger {0}")]
    WrongPassword(LedgerId),
    /// It was closed.
    #[error("ledger {ledger} is closed: it ends with {}. Create a new ledger", end(*.last_entry))]
    Closed {
        /// The ledger.
        ledger: LedgerId,
        /// Its last entry.
        last_entry: Option<EntryId>,
    },
    /// It was closed, and goes on in another ledger.
    #[error("ledger {ledger} is closed, and goes on in ledger {successor}")]
    Continued {
        /// The ledger.
        ledger: LedgerId,
        /// The one that continues it, which may be continued, too.
        successor: LedgerId,
    },
    /// It is being recovered.
    #[error(
        "ledger {0} is in recovery. If nobody is at it any more, bindery ledger append --take-over {0} finishes it and goes on in a \
         new ledger; bindery ledger close {0} only finishes it"
    )]
    InRecovery(LedgerId),
    /// Another writer has it, or died having it.
    #[error(
        "ledger {0} has a writer. If that writer is gone, bindery ledger append --take-over {0} recovers the ledger and goes on in \
         a new one that continues it; bindery ledger close {0} closes it for good"
    )]
    Busy(LedgerId),
    /// It was not created to be handed over.
    #[error(
        "ledger {0} belongs to the program that created it: a ledger has one writer. bindery ledger close {0} \
         recovers and closes it"
    )]
    NotHandedOver(LedgerId),
    /// Its hand-over property cannot be read.
    #[error(
        "ledger {ledger}: the property bindery.writer holds {text:?}, which this version does not know, or which does not \
         fit the rest of the ledger's metadata"
    )]
    UnknownHandover {
        /// The ledger.
        ledger: LedgerId,
        /// The property.
        text: String,
    },
    /// The metadata store failed or refused.
    #[error("{0}")]
    Metadata(LedgerError),
    /// The client was closed.
    #[error("the client was closed")]
    ClientClosed,
}

/// Why no ledger was found in which appends go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TakeOverError {
    /// A ledger of the chain cannot be written, nor be recovered for that.
    #[error(transparent)]
    Open(#[from] AppendOpenError),
    /// The ledger that was to continue it could not be created.
    #[error(transparent)]
    Create(CreateError),
    /// It could not be recovered now. The next try goes on here.
    #[error("{error}")]
    Recovery {
        /// The ledger.
        ledger: LedgerId,
        /// Why.
        error: OpenError,
    },
    /// Ledgers name one another.
    #[error("ledger {ledger} is continued in itself: somebody changed its property bindery.continued-in")]
    Circle {
        /// One of them.
        ledger: LedgerId,
    },
}

fn unknown_places(error: Option<&ResolveError>) -> String {
    error.map_or_else(String::new, |error| format!(" Where bookies stand is not known: {error}."))
}

fn end(last_entry: Option<EntryId>) -> String {
    last_entry.map_or("no entry".into(), |entry| format!("entry {entry}"))
}

/// Why a ledger was not opened for reading.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No such ledger.
    #[error("ledger {0} does not exist")]
    NotFound(LedgerId),
    /// The password is not the ledger's.
    #[error("wrong password for ledger {0}")]
    WrongPassword(LedgerId),
    /// The last writer's end could not be found; opening again tries again.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The LAC (last add confirmed) of an open ledger could not be found.
    #[error(transparent)]
    Lac(ReadError),
    /// The metadata store failed or refused.
    #[error("{0}")]
    Metadata(LedgerError),
    /// The client was closed.
    #[error("the client was closed")]
    ClientClosed,
}

/// Why a ledger could not be recovered. It stays in recovery, nothing is lost, and it can be tried again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// A bookie refused the key, or this client: both have the same code.
    #[error(
        "cannot recover ledger {ledger}: {bookie} refuses this client or the ledger's key: {UNAUTHORIZED}"
    )]
    Unauthorized {
        /// The ledger.
        ledger: LedgerId,
        /// Who refused.
        bookie: BookieId,
    },
    /// Too few bookies of the last ensemble answered: an acknowledged entry could be on the others only.
    #[error(
        "cannot recover ledger {ledger}: too few bookies of its last ensemble can be asked ({answers}). Start them and \
         try again"
    )]
    NotCovered {
        /// The ledger.
        ledger: LedgerId,
        /// What they said.
        answers: BookieAnswers,
    },
    /// Too few bookies could say whether an entry exists.
    #[error(
        "cannot recover ledger {ledger}: whether entry {entry} exists cannot be told ({answers}). Start these bookies and \
         try again"
    )]
    EntryUnknown {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// What they said.
        answers: BookieAnswers,
    },
    /// An entry that was found cannot be stored on enough bookies.
    #[error("cannot recover ledger {ledger}: entry {entry} cannot be stored again: {error}")]
    NotEnoughBookies {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// Why.
        error: NotEnoughBookies,
    },
    /// Its write quorum is above [`WRITE_QUORUM_SIZE_MAX`](crate::WRITE_QUORUM_SIZE_MAX).
    #[error(
        "cannot recover ledger {ledger}: its write quorum of {write_quorum_size} is above the limit of {max}"
    )]
    WriteQuorumTooLarge {
        /// The ledger.
        ledger: LedgerId,
        /// Its write quorum.
        write_quorum_size: usize,
        /// The limit.
        max: usize,
    },
    /// Its metadata kept changing.
    #[error("cannot recover ledger {0}: its metadata keeps changing. Try again")]
    MetadataChanging(LedgerId),
    /// The metadata store failed or refused.
    #[error("cannot recover: {0}")]
    Metadata(LedgerError),
}

/// Why something was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Behind the last entry (closed ledger) or the LAC, last add confirmed (open ledger).
    #[error("ledger {ledger} has no entry {entry}: it ends with {}", end(*.last))]
    BeyondEnd {
        /// The ledger.
        ledger: LedgerId,
        /// The entry asked for.
        entry: EntryId,
        /// The last one that can be read.
        last: Option<EntryId>,
    },
    /// All bookies that should have the entry were asked, and none has it.
    #[error("entry {entry} of ledger {ledger} is on none of its bookies ({answers})")]
    NoEntry {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// What they said.
        answers: BookieAnswers,
    },
    /// No bookie returned the entry, and at least one of them could not say, or the metadata store could not say whether others have
    /// it by now. Try again later.
    #[error("cannot read entry {entry} of ledger {ledger}: {answers}")]
    Unavailable {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
        /// What they said.
        answers: BookieAnswers,
    },
    /// Too few bookies answered to know the LAC.
    #[error("too few bookies of ledger {ledger} answered to know its last entry: {answers}")]
    LacUnknown {
        /// The ledger.
        ledger: LedgerId,
        /// What they said.
        answers: BookieAnswers,
    },
    /// The ledger was deleted.
    #[error("ledger {0} does not exist any more")]
    Deleted(LedgerId),
    /// The metadata store failed or refused.
    #[error("{0}")]
    Metadata(LedgerError),
    /// The client was closed.
    #[error("the client was closed")]
    ClientClosed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookie_that_refuses_as_read_only_leads_to_its_disk() {
        let shown = |read_only, error| {
            let failed = vec![(BookieId::new("b").unwrap(), BookieAnswer::Failed(error))];
            let failed = BookieAnswers(failed);
            NotEnoughBookies { needed: 1, available: 0, read_only, failed }.to_string()
        };
        assert!(shown(0, BookieError::Refused(ErrorCode::ReadOnly)).contains("full disk"));
        assert!(shown(1, BookieError::Lost).contains("full disk"));
        assert!(!shown(0, BookieError::Lost).contains("full disk"));
    }
}
