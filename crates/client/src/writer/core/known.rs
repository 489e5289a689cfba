//! The ledger's metadata as this writer knows it: what it wants to write, and what it makes of somebody else's write.
//!
//! # Data flow
//! ```text
//! goal, end, gaps -> propose -> proposal -> written:  the proposal is what is known
//!                       ^            |---> conflict, or outcome unknown -> read -> reached | again | stop
//!                       +--------------------------------------------------------------------+
//! ```
//!
//! # Invariants
//! Of the core: 3, the first half of 4, and what 7 says of segments. A proposal stays as it is until its outcome is known,
//! whatever is filled meanwhile.

use bindery_io::canary::{Canaries, Canary};
use bindery_metadata::layout::StoredLedger;
use bindery_metadata::store::Version;
use bindery_types::{EntryId, LedgerMetadata, LedgerState, Segment};

use super::step::{EnsembleChange, Goal};
use crate::error::WhyStopped;
use crate::gaps::Gaps;
use crate::handover::Handover;
use crate::metadata_edit::{FULL_SIZE_BYTES, GROWN_SIZE_BYTES, size_bytes, that_fits, with_ensemble};

/// Where the ledger ends, if nothing more is confirmed.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// The LAC (last add confirmed).
    pub last_entry: Option<EntryId>,
    pub length_bytes: u64,
}

impl End {
    /// The first entry that is not confirmed: of the next segment, or of the next writer.
    fn next(self) -> EntryId {
        EntryId::new(EntryId::to_wire(self.last_entry) + 1).expect("ids end before they overflow")
    }

    fn closed(self) -> LedgerState {
        LedgerState::Closed { last_entry: self.last_entry, length_bytes: self.length_bytes }
    }

    fn idle(self) -> Handover {
        Handover::Idle { next: self.next(), length_bytes: self.length_bytes, is_whole: true }
    }
}

/// What was read, seen from a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It is reached: an own write went through.
    Reached,
    /// It is to be written again, on top of what others wrote.
    Again,
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct KnownMetadata {
    metadata: LedgerMetadata,
    version: Version,
    /// Set when this writer holds a ledger that can be handed over.
    token: Option<u64>,
    /// What is being written.
    proposal: Option<LedgerMetadata>,
    /// The last segment of splits whose outcome is not known; the writer goes on without it.
    unresolved: Option<Segment>,
    /// The end that somebody else gave the ledger.
    closed_elsewhere: Option<Option<EntryId>>,
}

impl KnownMetadata {
    pub fn new(metadata: LedgerMetadata, version: Version, token: Option<u64>) -> KnownMetadata {
        KnownMetadata { metadata, version, token, proposal: None, unresolved: None, closed_elsewhere: None }
    }

    #[cfg(test)]
    pub fn metadata(&self) -> &LedgerMetadata {
        &self.metadata
    }

    /// Whether segments are made only for bookies that failed.
    pub fn is_grown(&self) -> bool {
        size_bytes(&self.metadata) >= GROWN_SIZE_BYTES
    }

    /// Whether segments are made only where there is no ack quorum without.
    pub fn is_full(&self) -> bool {
        size_bytes(&self.metadata) >= FULL_SIZE_BYTES
    }

    /// The version that a write is conditional on.
    pub fn version(&self) -> Version {
        self.version
    }

    pub fn closed_elsewhere(&self) -> Option<Option<EntryId>> {
        self.closed_elsewhere
    }

    /// Decides what is to be written so that repair sees gaps (core invariant 7). False when there is nothing to write.
    pub fn propose_splits(&mut self, end: End, gaps: &Gaps, canaries: Canaries) -> bool {
        let split = with_splits(gaps, self.metadata.clone(), end, canaries);
        let is_wanted = split.segments().len() > self.metadata.segments().len();
        if is_wanted {
            self.unresolved = last_segment(&split).cloned();
            self.proposal = Some(split);
        }
        is_wanted
    }

    /// Whether splits may have been written or not.
    pub fn is_unresolved(&self) -> bool {
        self.unresolved.is_some()
    }

    /// Decides what is to be written.
    pub fn propose(&mut self, goal: &Goal, end: End, gaps: &Gaps, canaries: Canaries) {
        let metadata = match goal {
            // Core invariant 4.
            Goal::Ensemble(EnsembleChange { ensemble, .. }) => {
                with_ensemble(&self.metadata, end.next(), ensemble.clone())
            }
            Goal::Splits => self.metadata.clone(),
            Goal::Close => {
                let mut metadata = self.metadata.clone();
                metadata.state = end.closed();
                metadata
            }
            Goal::HandOver => {
                // A bookie that lacks the last entries may be back when the next writer comes (core invariant 7).
                let mut metadata = match self.metadata.segments().last() {
                    Some(last)
                        if gaps.is_in_last_segment(&self.metadata)
                            && !self.is_grown()
                            && !canaries.has(Canary::M40HandsOverTheSegment) =>
                    {
                        with_ensemble(&self.metadata, end.next(), last.ensemble.clone())
                    }
                    Some(_) | None => self.metadata.clone(),
                };
                end.idle().set(&mut metadata);
                metadata
            }
        };
        let metadata = with_splits(gaps, metadata, end, canaries);
        self.proposal = Some(match goal {
            Goal::Close | Goal::HandOver => that_fits(metadata),
            Goal::Ensemble(_) | Goal::Splits => metadata,
        });
    }

    /// What is to be written.
    pub fn proposal(&self) -> &LedgerMetadata {
        self.proposal.as_ref().expect("it was decided before it is written")
    }

    /// The proposal was written.
    pub fn written(&mut self, version: Version) {
        self.metadata = self.proposal.take().expect("it was decided before it was written");
        self.version = version;
        self.unresolved = None;
    }

    /// The splits were refused.
    pub fn settle(&mut self) {
        self.proposal = None;
        self.unresolved = None;
    }

    /// Resolves a conflict, or a write of unknown outcome, by what the metadata says now (core invariant 3).
    ///
    /// # Errors
    /// Why the writer stops.
    pub fn reconcile(&mut self, stored: StoredLedger, goal: &Goal, end: End) -> Result<Found, WhyStopped> {
        let StoredLedger { metadata, version, .. } = stored;
        let found = self.judge(&metadata, goal, end)?;
        self.metadata = metadata;
        self.version = version;
        self.unresolved = None;
        Ok(found)
    }

    fn judge(&mut self, metadata: &LedgerMetadata, goal: &Goal, end: End) -> Result<Found, WhyStopped> {
        // Only this writer hands its ledger over: a writer that has it now, or left it further on, got it from here, by
        // a write whose answer was lost. It may have closed the ledger since, or a client recovers the ledger from it.
        if *goal == Goal::HandOver {
            let is_handed_over = match Handover::of(metadata) {
                Some(Ok(Handover::Busy { token })) => self.token.is_some_and(|ours| ours != token),
                Some(Ok(Handover::Idle { next, .. })) if next > end.next() => true,
                found => found == Some(Ok(end.idle())),
            };
            if is_handed_over {
                return Ok(Found::Reached);
            }
        }
        match metadata.state {
            // Closed by this writer, or by somebody who found the same end.
            state @ LedgerState::Closed { .. } if *goal == Goal::Close && state == end.closed() => {
                return Ok(Found::Reached);
            }
            LedgerState::Closed { last_entry, .. } => {
                self.closed_elsewhere = Some(last_entry);
                return Err(WhyStopped::Closed);
            }
            // Whoever recovers it will find that we closed it.
            LedgerState::InRecovery if *goal == Goal::Close => {}
            LedgerState::InRecovery => return Err(WhyStopped::Fenced),
            LedgerState::Open => {}
        }
        let is_reached = match goal {
            Goal::Ensemble(_) => last_segment(metadata) == last_segment(self.proposal()),
            Goal::Splits | Goal::HandOver | Goal::Close => false,
        };
        if is_reached {
            return Ok(Found::Reached);
        }
        let is_still_ours = match self.token {
            Some(token) => Handover::of(metadata) == Some(Ok(Handover::Busy { token })),
            None => Handover::of(metadata).is_none(),
        };
        let last = last_segment(metadata);
        let is_known =
            last == last_segment(&self.metadata) || last.is_some() && last == self.unresolved.as_ref();
        if !is_still_ours || !is_known {
            return Err(WhyStopped::MetadataChanged);
        }
        // Something that does not concern us: kept.
        Ok(Found::Again)
    }
}

fn with_splits(gaps: &Gaps, metadata: LedgerMetadata, end: End, canaries: Canaries) -> LedgerMetadata {
    match canaries.has(Canary::M41GapsInTheMiddle) {
        true => metadata,
        false => gaps.with_splits(metadata, end.last_entry),
    }
}

fn last_segment(metadata: &LedgerMetadata) -> Option<&Segment> {
    metadata.segments().last()
}
