//! Canaries: planted bugs that prove the checkers work.
//!
//! One can be switched on in builds with debug assertions only; in others [`Canaries::has`] is a constant `false`, the sites
//! compile to nothing, and a release binary holds none. Ids are those of `docs/reference/reliability.md`.

#[cfg(debug_assertions)]
use crate::{Disk, DiskFile, DiskLayer, FileLayer, OpenMode};
#[cfg(debug_assertions)]
use std::{io, path::Path, sync::Arc};

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Canary {
    /// An add is acknowledged after the write, before the sync.
    M1AckBeforeSync,
    /// A group is acknowledged after a sync of the newest journal file alone.
    M2NewestFileSynced,
    /// A negative answer to a fence is sent before the fence record is durable.
    M3NegativeFenceBeforeDurable,
    /// A fence on an unknown ledger journals no key, so that replay cannot recreate the ledger.
    M4FenceWithoutKey,
    /// A failed sync is tried again, and the group acknowledged when that succeeds.
    M5SyncRetried,
    /// The mark of a flush is sampled when it runs, after the caches were swapped.
    M6MarkAfterSwap,
    /// Marks of several journals are compared lexicographically.
    M7MarksLexicographic,
    /// A flush without entries commits nothing, and counts as done.
    M8EmptyFlushSkipped,
    /// The index of a flush is committed before its entry log is durable.
    M9IndexBeforeLog,
    /// A checksum error is answered as "no such entry".
    M10DamageAsNoEntry,
    /// Replay stops silently at damage in the middle of a file.
    M11ReplayStopsAtDamage,
    /// A recycled journal file is replayed without checking its identity.
    M12RecycledFileUnchecked,
    /// Fence check and insert are two critical sections.
    M13FenceCheckApart,
    /// Compaction unlinks the old logs before the new one is committed.
    M22UnlinkBeforeCommit,
    /// The removal of a ledger hides what is added after the ledger came back.
    M25RemovalHidesNewer,
    /// Compaction copies overtaken entries as well, and as if they were the newest.
    M26CompactionKeepsLosers,
    /// A removal that is not in the state table yet counts when logs are dropped and rewritten.
    M27UncommittedRemovalCounts,
    /// Garbage collection believes a listing that failed or ended early, and reads no candidate again.
    M21ListingBelieved,
    /// Garbage collection takes a store for current that does not have the mark of this bookie.
    M42MarkIgnored,
    /// Journal files are free when their caches are frozen, before the flush.
    M28ReleasedBeforeFlush,
    /// The answers to a group whose write failed say that it is durable.
    M29FailedGroupAcknowledged,
    /// A ledger in limbo answers as if nothing of it were missing.
    M30LimboDenies,
    /// A removal is placed although the ledger changed since metadata was read for it.
    M31StaleRemoval,
    /// Entries are read together from disk although memory has a newer copy of one of them.
    M37OlderCopiesTogether,
    /// A start believes the page cache after a failed sync, although the medium holds something else.
    M38CacheBelieved,
    /// A trim that is not in the state table yet counts when logs are dropped and rewritten.
    M43UncommittedTrimCounts,
    /// A last reconciled entry is answered before its record is durable.
    M44ReconciledBeforeDurable,
    /// A flush commits last reconciled entries without the extents that came with them.
    M45ExtentsLeftOut,
    /// Bytes that a removal hides are not counted as dead, so that logs on disk look live for good.
    M47DeadBytesUncounted,
    /// A refusal that leaves ahead of a group whose write hangs overtakes the answer to an older add of the same entry.
    M48RefusalOvertakes,
    /// A rewrite takes it that no other log has copies of a ledger's entries.
    M49OtherLogsIgnored,
    /// Ledgers that were fenced are forgotten like others, so that after a restart no add makes the bookie ask metadata about them.
    M50FencesForgotten,
    /// The entries of an ingest are shown when they are on disk, before the commit.
    M51IngestShownEarly,
    /// An ingest does not wait until the removal before it is flushed.
    M52RemovalNotAwaited,
    /// An ingest commits its entries without the last entry and the last add confirmed of their ledgers.
    M53LastEntryNotRaised,
    /// A ledger that is removed while entries of it are ingested keeps the ingest's claim.
    M54RemovalUnnoticed,
    /// An ingest commits the ledgers that it brings entries of as if nothing had fenced them.
    M59IngestForgetsFence,
    /// Damaged copies are left behind by a rewrite although nothing has replaced them.
    M55DamageForgotten,
    /// A list of entries has those that are known to be damaged.
    M56DamageListed,
    /// A repair copies, and names the new member, without another look whether the old one came back.
    M57CopiesBeforeCheck,
    /// A repair goes on although its lock is lost.
    M58LockIgnored,
    /// A repair takes the entry before the last one of a segment for its last.
    M60SegmentEndOffByOne,
    /// A repair does the least endangered ledger first.
    M61DangerIgnored,
    /// A repair closes an open ledger while entries are seen to come.
    M62ClosesUnderWriter,
    /// A permit leaks when a connection dies while it is paused.
    M24PausedPermitLeaks,
    /// A recovery takes its fences for covering with one bookie too few.
    M14CoverageOffByOne,
    /// A recovery takes a request that timed out for "no such entry".
    M15TimeoutIsNegative,
    /// A recovery reads entries without fencing.
    M16ReadsWithoutFence,
    /// A writer uses a new ensemble before it is in metadata.
    M17EnsembleUnpublished,
    /// Acknowledgements of a bookie that was replaced count for its successor.
    M18ReplacedAckCounts,
    /// A recovery publishes its ensembles while it recovers.
    M19EnsemblePublishedEarly,
    /// A writer takes a close whose answer was lost for one that failed.
    M20LostCloseFailed,
    /// A recovery begins at the last confirmed entry it was told of, also when that is below the last segment.
    M32BeginsBelowSegment,
    /// A force answers for acknowledgements that came over another connection, before the bookie was restarted.
    M33ForcesAnyConnection,
    /// A recovery takes "I cannot tell" of a bookie in limbo for "no such entry".
    M34LimboIsNegative,
    /// A recovery's replacement is published as a member from the beginning of the last segment.
    M35ReplacementFromBeginning,
    /// A hedge goes to the replica that is being asked already.
    M36HedgeToTheSame,
    /// A recovery adds to the last segment, where a bookie may lack what was confirmed before.
    M39RecoversIntoTheSegment,
    /// A ledger is handed over without a segment for the next writer, although a bookie lacks the last entries.
    M40HandsOverTheSegment,
    /// Segments are not split where a bookie lacks entries between those that it has.
    M41GapsInTheMiddle,
    /// A bookie lets copies of a ledger go that is not closed, or not wholly in object storage (T9).
    T9TrimsBeforeTheEnd,
    /// A read whose object is gone is not looked up again, though the entry is in another one by now (T10).
    T10SourceNotLookedUpAgain,
    /// A bookie lets copies go although their copy in object storage differs (T19).
    T19DifferenceIgnored,
    /// A tierer moves the last reconciled entry when an object is uploaded, before its commit is answered.
    M23LreBeforeCommit,
    /// A tierer whose catalogue is behind a bookie goes on behind that bookie's last reconciled entry (T2).
    T2AheadIsSkipped,
    /// A tierer takes extents that the catalogue dropped for committed (T3).
    T3CorrectionIgnored,
    /// The scan of the bucket takes objects whose ids are only reserved for objects of nobody, and deletes them (T13).
    T13ReservationIgnored,
    /// A tierer deletes an object because the catalogue has no row for it, and it is old, without asking anybody (T13).
    T13OrphanWithoutProof,
    /// A tierer deletes an object that the catalogue does not refer to without a look at its footer (T16).
    T16FooterNotAsked,
    /// A tierer deletes an object although other objects have other entries in place of those in it (T16).
    T16EntriesNotCompared,
    /// A tierer believes a listing of ledgers that is empty or ended early, and looks up no ledger again (T17).
    T17ListingBelieved,
    /// A tierer goes on counting others that are gone, so what they owned is nobody's (T20).
    T20MembersStay,
}

/// Whether this build has them.
pub const CAN_BE_PLANTED: bool = cfg!(debug_assertions);

/// The canaries that the simulator looks for, with the name its command line knows them by. M24 is in the server, which
/// it does not run: the server's storm test looks for that one.
pub const ALL: [(&str, Canary); 39] = [
    ("M1", Canary::M1AckBeforeSync),
    ("M2", Canary::M2NewestFileSynced),
    ("M3", Canary::M3NegativeFenceBeforeDurable),
    ("M4", Canary::M4FenceWithoutKey),
    ("M5", Canary::M5SyncRetried),
    ("M6", Canary::M6MarkAfterSwap),
    ("M7", Canary::M7MarksLexicographic),
    ("M8", Canary::M8EmptyFlushSkipped),
    ("M9", Canary::M9IndexBeforeLog),
    ("M10", Canary::M10DamageAsNoEntry),
    ("M11", Canary::M11ReplayStopsAtDamage),
    ("M12", Canary::M12RecycledFileUnchecked),
    ("M13", Canary::M13FenceCheckApart),
    ("M22", Canary::M22UnlinkBeforeCommit),
    ("M25", Canary::M25RemovalHidesNewer),
    ("M26", Canary::M26CompactionKeepsLosers),
    ("M27", Canary::M27UncommittedRemovalCounts),
    ("M21", Canary::M21ListingBelieved),
    ("M28", Canary::M28ReleasedBeforeFlush),
    ("M29", Canary::M29FailedGroupAcknowledged),
    ("M30", Canary::M30LimboDenies),
    ("M31", Canary::M31StaleRemoval),
    ("M37", Canary::M37OlderCopiesTogether),
    ("M38", Canary::M38CacheBelieved),
    ("M42", Canary::M42MarkIgnored),
    ("M43", Canary::M43UncommittedTrimCounts),
    ("M44", Canary::M44ReconciledBeforeDurable),
    ("M45", Canary::M45ExtentsLeftOut),
    ("M47", Canary::M47DeadBytesUncounted),
    ("M48", Canary::M48RefusalOvertakes),
    ("M49", Canary::M49OtherLogsIgnored),
    ("M50", Canary::M50FencesForgotten),
    ("M51", Canary::M51IngestShownEarly),
    ("M52", Canary::M52RemovalNotAwaited),
    ("M53", Canary::M53LastEntryNotRaised),
    ("M54", Canary::M54RemovalUnnoticed),
    ("M55", Canary::M55DamageForgotten),
    ("M56", Canary::M56DamageListed),
    ("M59", Canary::M59IngestForgetsFence),
];

/// The canaries in the client's cores, which the client's own model looks for, with their names. M36 is in its readers: the
/// model of the whole client looks for that one.
pub const CLIENT: [(&str, Canary); 14] = [
    ("M14", Canary::M14CoverageOffByOne),
    ("M15", Canary::M15TimeoutIsNegative),
    ("M16", Canary::M16ReadsWithoutFence),
    ("M17", Canary::M17EnsembleUnpublished),
    ("M18", Canary::M18ReplacedAckCounts),
    ("M19", Canary::M19EnsemblePublishedEarly),
    ("M20", Canary::M20LostCloseFailed),
    ("M32", Canary::M32BeginsBelowSegment),
    ("M33", Canary::M33ForcesAnyConnection),
    ("M34", Canary::M34LimboIsNegative),
    ("M35", Canary::M35ReplacementFromBeginning),
    ("M39", Canary::M39RecoversIntoTheSegment),
    ("M40", Canary::M40HandsOverTheSegment),
    ("M41", Canary::M41GapsInTheMiddle),
];

/// The canaries in the tierer's core, which its own model looks for, with their names.
pub const TIERER: [(&str, Canary); 9] = [
    ("M23", Canary::M23LreBeforeCommit),
    ("T2", Canary::T2AheadIsSkipped),
    ("T3", Canary::T3CorrectionIgnored),
    ("T13", Canary::T13ReservationIgnored),
    ("T13b", Canary::T13OrphanWithoutProof),
    ("T16", Canary::T16FooterNotAsked),
    ("T16b", Canary::T16EntriesNotCompared),
    ("T17", Canary::T17ListingBelieved),
    ("T20", Canary::T20MembersStay),
];

/// The canaries in the cores of repair, which their own model looks for, with their names.
pub const REPAIR: [(&str, Canary); 5] = [
    ("M57", Canary::M57CopiesBeforeCheck),
    ("M58", Canary::M58LockIgnored),
    ("M60", Canary::M60SegmentEndOffByOne),
    ("M61", Canary::M61DangerIgnored),
    ("M62", Canary::M62ClosesUnderWriter),
];

/// Which canary is on, if any.
#[derive(Debug, Clone, Copy, Default)]
pub struct Canaries {
    #[cfg(debug_assertions)]
    on: Option<Canary>,
}

impl Canaries {
    /// None.
    pub const fn none() -> Canaries {
        Canaries {
            #[cfg(debug_assertions)]
            on: None,
        }
    }

    /// Exactly one.
    #[cfg(debug_assertions)]
    pub const fn only(canary: Canary) -> Canaries {
        Canaries { on: Some(canary) }
    }

    /// True when `canary` is on.
    #[inline]
    pub fn has(self, canary: Canary) -> bool {
        #[cfg(debug_assertions)]
        return self.on == Some(canary);
        #[cfg(not(debug_assertions))]
        {
            let _ = canary;
            false
        }
    }
}

/// [`Canary::M38CacheBelieved`]: a disk whose reads past the page cache go through it.
#[cfg(debug_assertions)]
pub struct CachedDisk(pub Arc<dyn Disk>);

#[cfg(debug_assertions)]
impl DiskLayer for CachedDisk {
    fn beneath(&self) -> &dyn Disk {
        &*self.0
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        match mode {
            OpenMode::ReadDirect => Ok(Arc::new(CachedFile(self.0.open(path, OpenMode::Read)?))),
            _ => self.0.open(path, mode),
        }
    }
}

/// One that believes the page cache does not ask it to forget anything either.
#[cfg(debug_assertions)]
struct CachedFile(Arc<dyn DiskFile>);

#[cfg(debug_assertions)]
impl FileLayer for CachedFile {
    fn beneath(&self) -> &dyn DiskFile {
        &*self.0
    }
    fn drop_cached(&self) {}
}
