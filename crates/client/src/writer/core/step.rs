//! Steps on metadata, and their purposes.
//!
//! # Data flow
//! ```text
//! Idle -- members failed -----> Placing -> [Marking(Change)] --------> Writing(Ensemble) -> Idle
//!                               Placing -> Waiting -> Idle; Waiting at once after many changes in a row
//! Idle -- slow, or a retry ---> [Marking(Hold)] -> Seeking -> Marking(Join) -> Writing(Ensemble) -> Idle
//! Idle -- entries let go of --> [Writing(Splits)] -> Marking(Nothing) -> Idle
//! Idle -- the end ------------> [Marking(End)] -> Writing(Close | HandOver) -> stopped
//! Writing -- conflict, or outcome unknown -> Reading -> Writing again, or what comes after it, or stopped
//! ```
//! One at a time (IC11). What is in brackets, where bookies lack entries; splits, where they lie between those of a segment. A search that finds nothing, and a change that
//! leaves the ensemble as it is, end in `Idle`, and so does a writer that stops.

use std::collections::{BTreeMap, BTreeSet};

use bindery_metadata::store::Version;
use bindery_types::{BookieId, LedgerMetadata};

use crate::transport::BookieError;

/// What is to be done about metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Find writable bookies for these positions of the ensemble. If they are fewer, find out which of the members
    /// `asked` can be written again.
    Place {
        positions: Vec<usize>,
        ensemble: Vec<BookieId>,
        avoided: BTreeSet<BookieId>,
        asked: Vec<BookieId>,
    },
    /// Too few bookies are left for an ack quorum, or each replacement fails: pause, then try the members again.
    Wait,
    /// Mark the ledger as under-replicated on these bookies.
    Mark { replicas: Vec<BookieId> },
    /// Write this if the version is still that.
    Write { metadata: Box<LedgerMetadata>, expected: Version },
    /// Read the ledger's metadata.
    Read,
}

/// Why the metadata is being changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Goal {
    Ensemble(EnsembleChange),
    /// Segments are split where a bookie lacks entries, before repair is told of it.
    Splits,
    Close,
    HandOver,
}

/// How an ensemble is to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnsembleChange {
    pub ensemble: Vec<BookieId>,
    /// Members that failed and are not replaced are held; else they are tried again.
    pub holds_rest: bool,
    /// Held positions whose bookie is written again.
    pub rejoins: BTreeSet<usize>,
}

/// What follows a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AfterMark {
    /// The slow members, if any, are held, and replacements looked for.
    Hold { is_retry: bool },
    /// The change under way, of members that failed, goes on.
    Change(EnsembleChange),
    /// Slow and held members are replaced or join again, unless something happened meanwhile.
    Join { replacing: BTreeMap<usize, BookieError>, change: EnsembleChange },
    /// The end is written.
    End(Goal),
    /// Nothing: entries that a bookie lacks were let go of, and repair is told.
    Nothing,
}

/// Where the change of metadata stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// None is under way.
    Idle,
    /// Looking for replacements of members that failed.
    Placing,
    /// There are none, or they all failed, and the members left are no ack quorum: those that failed are tried again after a
    /// pause.
    Waiting,
    /// Looking for replacements of slow and held members, which holds up nothing (core invariant 8).
    Seeking { is_retry: bool },
    /// The ledger is being marked as under-replicated.
    Marking(AfterMark),
    /// Being written.
    Writing(Goal),
    /// A write failed or its outcome is unknown.
    Reading(Goal),
}

impl Phase {
    /// Whether the writer can go on without it, so that it can be given up.
    pub fn is_optional(&self) -> bool {
        matches!(
            self,
            Phase::Seeking { .. }
                | Phase::Marking(AfterMark::Hold { .. } | AfterMark::Join { .. } | AfterMark::Nothing)
                | Phase::Writing(Goal::Splits)
                | Phase::Reading(Goal::Splits)
        )
    }

    /// Whether the writer's end is being written.
    pub fn is_ending(&self) -> bool {
        matches!(
            self,
            Phase::Writing(Goal::Close | Goal::HandOver)
                | Phase::Reading(Goal::Close | Goal::HandOver)
                | Phase::Marking(AfterMark::End(_))
        )
    }
}
