//! The writer's decisions, without I/O: ids and digests of entries, acks, ensemble changes, the end of a ledger.
//!
//! # Data flow
//! ```text
//! append ----+                    +--> sends        (entry, position)
//! answer ----+--> WriterCore -----+--> next_step    place | write metadata | read metadata
//! step done -+                    +--> confirmed, released bytes, stopped
//! ```
//! A step is asked for with [`WriterCore::next_step`] and stays the next one until its outcome is told, so a driver
//! that was cancelled can be followed by another.
//!
//! # Invariants
//! 1. Those of [`AddWindow`]: IC1, IC2, IC11.
//! 2. The LAC (last add confirmed) in an entry is the one confirmed when it was encoded; it never goes back (IC3).
//! 3. Metadata is written only on the condition of the version read. An unknown outcome or a conflict is resolved by
//!    reading again: closed or in recovery ends the writer, another property is kept, an own write that went through is
//!    recognised (IC13, IC14; protocol reference, sections 7.3 and 7.8).
//! 4. A segment begins at the LAC + 1, which does not move while a change is under way.
//!
//! # Limits     [`CHANGES_IN_A_ROW_MAX`] ensemble changes without an entry confirmed in between

use std::collections::BTreeSet;

use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::store::Version;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState};
use bindery_wire::ErrorCode;
use bytes::BytesMut;

use crate::entry::EntryCodec;
use crate::error::{BookieAnswer, BookieAnswers, NotEnoughBookies, Stopped, WhyStopped};
use crate::handover::Handover;
use crate::metadata_edit::with_ensemble;
use crate::transport::{AddTag, BookieError};
use crate::window::{AddWindow, Heard, Send};

/// How many ensemble changes may follow one another while no entry gets through.
pub(crate) const CHANGES_IN_A_ROW_MAX: u32 = 64;

/// What an entry costs besides its stored bytes: its place in the window and in the queues of its bookies.
pub(crate) const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// Buffers for stored entries grow up to this.
const CHUNK_SIZE_BYTES_MAX: usize = 256 << 10;

/// What is to be done about metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Find up to `count` writable bookies.
    Place { count: usize, excluded: BTreeSet<BookieId>, avoided: BTreeSet<BookieId> },
    /// Write this if the version is still that.
    Write { metadata: Box<LedgerMetadata>, expected: Version },
    /// Read the ledger's metadata.
    Read,
}

/// What the metadata is being changed for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Goal {
    Ensemble(Vec<BookieId>),
    Close,
    HandOver,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// No change of metadata is under way.
    Idle,
    /// Replacements are looked for.
    Placing,
    /// Being written.
    Writing(Goal),
    /// A write failed or its outcome is unknown.
    Reading(Goal),
}

/// See the module.
pub(crate) struct WriterCore {
    ledger: LedgerId,
    codec: EntryCodec,
    metadata: LedgerMetadata,
    version: Version,
    window: AddWindow,
    /// Length at the start.
    length_before: u64,
    /// Length with everything pushed.
    length_bytes: u64,
    /// Set when this writer holds a ledger that can be handed over.
    token: Option<u64>,
    phase: Phase,
    stopped: Option<WhyStopped>,
    /// What a closing writer found when somebody else had closed.
    closed_elsewhere: Option<Option<EntryId>>,
    changes_in_a_row: u32,
    confirmed_at_change: Option<EntryId>,
    /// Bookies that failed in this ledger: taken again only when there is no other.
    suspects: BTreeSet<BookieId>,
    /// The highest LAC that readers can know.
    announced: Option<EntryId>,
    in_flight_bytes: u64,
    chunk: BytesMut,
}

/// Where a writer begins.
pub(crate) struct Start {
    pub ledger: LedgerId,
    pub codec: EntryCodec,
    pub metadata: LedgerMetadata,
    pub version: Version,
    /// The LAC and the length up to it.
    pub confirmed: Option<EntryId>,
    pub length_bytes: u64,
    pub token: Option<u64>,
}

impl WriterCore {
    pub fn new(start: Start) -> WriterCore {
        let Start { ledger, codec, metadata, version, confirmed, length_bytes, token } = start;
        let last = metadata.segments().last().expect("a ledger is created with a segment");
        let floor = last.first_entry.get() - 1;
        assert!(EntryId::to_wire(confirmed) >= floor, "the LAC is not below the last segment");
        WriterCore {
            window: AddWindow::new(metadata.quorum, last.ensemble.clone(), confirmed),
            ledger,
            codec,
            metadata,
            version,
            length_before: length_bytes,
            length_bytes,
            token,
            phase: Phase::Idle,
            stopped: None,
            closed_elsewhere: None,
            changes_in_a_row: 0,
            confirmed_at_change: None,
            suspects: BTreeSet::new(),
            announced: confirmed,
            in_flight_bytes: 0,
            chunk: BytesMut::new(),
        }
    }

    pub fn ensemble(&self) -> &[BookieId] {
        self.window.ensemble()
    }

    pub fn confirmed(&self) -> Option<EntryId> {
        self.window.confirmed()
    }

    /// The last entry that was given an id, here or by the writer before.
    pub fn last_pushed(&self) -> Option<EntryId> {
        self.window.last_pushed()
    }

    pub fn has_unconfirmed(&self) -> bool {
        self.window.has_unconfirmed()
    }

    /// Length up to the last confirmed entry.
    pub fn confirmed_length_bytes(&self) -> u64 {
        self.length_before + self.window.confirmed_payload_bytes()
    }

    /// Why nothing more is confirmed, once that is so.
    pub fn stopped(&self) -> Option<Stopped> {
        let why = self.stopped.clone()?;
        Some(Stopped { ledger: self.ledger, last_confirmed: self.confirmed(), why })
    }

    /// Where somebody else closed the ledger that this writer wanted to close.
    pub fn closed_elsewhere(&self) -> Option<Option<EntryId>> {
        self.closed_elsewhere
    }

    /// What an entry of this size takes from the budget.
    pub fn cost_bytes(codec: &EntryCodec, payload: usize) -> u64 {
        codec.stored_size_bytes(payload) as u64 + ENTRY_OVERHEAD_BYTES
    }

    /// Takes an entry: its id, its stored form, its way to the write set.
    pub fn append(&mut self, payload: &[u8], out: &mut Vec<Send>) -> Result<EntryId, Stopped> {
        if let Some(stopped) = self.stopped() {
            return Err(stopped);
        }
        if let Phase::Writing(Goal::Close | Goal::HandOver) | Phase::Reading(Goal::Close | Goal::HandOver) =
            self.phase
        {
            let last_confirmed = self.confirmed();
            return Err(Stopped { ledger: self.ledger, last_confirmed, why: WhyStopped::Closing });
        }
        let length_bytes = self.length_bytes.checked_add(payload.len() as u64);
        let length_bytes = length_bytes.filter(|length| i64::try_from(*length).is_ok());
        let (Some(entry), Some(length_bytes)) = (self.window.next(), length_bytes) else {
            // Not latched: what is under way can still be confirmed, and the ledger closed.
            let last_confirmed = self.confirmed();
            return Err(Stopped { ledger: self.ledger, last_confirmed, why: WhyStopped::Full });
        };
        let stored_size_bytes = self.codec.stored_size_bytes(payload.len());
        if self.chunk.capacity() < stored_size_bytes {
            // As large as what is in flight asks for, so that a slow ledger pins little and a fast one allocates rarely.
            let wanted = (self.in_flight_bytes / 4) as usize;
            self.chunk = BytesMut::with_capacity(wanted.min(CHUNK_SIZE_BYTES_MAX).max(stored_size_bytes));
        }
        let lac = self.confirmed();
        self.codec.put(entry, lac, length_bytes, payload, &mut self.chunk);
        let body = self.chunk.split().freeze();
        debug_assert_eq!(body.len(), stored_size_bytes);
        self.announced = self.announced.max(lac);
        self.length_bytes = length_bytes;
        let cost_bytes = WriterCore::cost_bytes(&self.codec, payload.len());
        self.in_flight_bytes += cost_bytes;
        let payload_bytes = u32::try_from(payload.len()).expect("entries are smaller than a frame");
        self.window.push(body, payload_bytes, cost_bytes, out);
        self.begin_change_if_wanted();
        Ok(entry)
    }

    /// Counts an answer of a bookie. Follow a batch of them with [`settle`](Self::settle).
    pub fn on_answer(&mut self, entry: EntryId, tag: AddTag, result: &Result<(), BookieError>) {
        let Heard::Fatal(position) = self.window.on_answer(entry, tag, result) else { return };
        let bookie = self.ensemble()[position].clone();
        self.stop(match result {
            Err(BookieError::Refused(ErrorCode::Fenced)) => WhyStopped::Fenced,
            Err(BookieError::Closed) => WhyStopped::ClientClosed,
            Ok(()) | Err(_) => WhyStopped::Unauthorized { bookie },
        });
    }

    /// Confirms and releases what can be; whether the LAC moved, and bytes to give back.
    pub fn settle(&mut self) -> (bool, u64) {
        let has_moved = self.window.advance();
        self.begin_change_if_wanted();
        let released = self.window.release();
        self.in_flight_bytes -= released;
        (has_moved, released)
    }

    fn begin_change_if_wanted(&mut self) {
        if self.phase != Phase::Idle || self.stopped.is_some() || !self.window.wants_change() {
            return;
        }
        self.window.begin_change();
        if self.confirmed_at_change != self.confirmed() {
            self.changes_in_a_row = 0;
            self.confirmed_at_change = self.confirmed();
        }
        self.changes_in_a_row += 1;
        let failed = self.failures();
        self.suspects.extend(failed.0.iter().map(|(bookie, _)| bookie.clone()));
        if self.changes_in_a_row > CHANGES_IN_A_ROW_MAX {
            self.stop(WhyStopped::TooManyChanges { changes: CHANGES_IN_A_ROW_MAX, failed });
            return;
        }
        self.phase = Phase::Placing;
    }

    /// The members being replaced, and why.
    fn failures(&self) -> BookieAnswers {
        let replacing = self.window.replacing().into_iter().flatten();
        BookieAnswers(
            replacing
                .map(|(&position, error)| {
                    (self.ensemble()[position].clone(), BookieAnswer::Failed(error.clone()))
                })
                .collect(),
        )
    }

    /// Nothing more is confirmed. The first reason stays.
    pub fn stop(&mut self, why: WhyStopped) {
        if self.stopped.is_none() {
            self.stopped = Some(why);
            self.window.stop();
            self.phase = Phase::Idle;
        }
    }

    /// What is to be done about metadata now, if anything.
    pub fn next_step(&self) -> Option<Step> {
        match &self.phase {
            Phase::Idle => None,
            Phase::Placing => Some(Step::Place {
                count: self.window.replacing().map_or(0, |replacing| replacing.len()),
                excluded: self.ensemble().iter().cloned().collect(),
                avoided: self.suspects.clone(),
            }),
            Phase::Writing(goal) => {
                Some(Step::Write { metadata: Box::new(self.proposal(goal)), expected: self.version })
            }
            Phase::Reading(_) => Some(Step::Read),
        }
    }

    fn proposal(&self, goal: &Goal) -> LedgerMetadata {
        match goal {
            Goal::Ensemble(ensemble) => {
                // Invariant 4.
                let first_entry = EntryId::new(EntryId::to_wire(self.confirmed()) + 1);
                let first_entry = first_entry.expect("ids end before they overflow");
                with_ensemble(&self.metadata, first_entry, ensemble.clone())
            }
            Goal::Close => {
                let mut metadata = self.metadata.clone();
                metadata.state = self.end();
                metadata
            }
            Goal::HandOver => {
                let mut metadata = self.metadata.clone();
                self.idle().set(&mut metadata);
                metadata
            }
        }
    }

    fn end(&self) -> LedgerState {
        LedgerState::Closed { last_entry: self.confirmed(), length_bytes: self.confirmed_length_bytes() }
    }

    fn idle(&self) -> Handover {
        let next =
            EntryId::new(EntryId::to_wire(self.confirmed()) + 1).expect("ids end before they overflow");
        Handover::Idle { next, length_bytes: self.confirmed_length_bytes() }
    }

    /// Outcome of [`Step::Place`]: distinct bookies outside the ensemble, as many as there are, and how many are read-only.
    pub fn placed(&mut self, chosen: &[BookieId], read_only: usize) {
        if self.phase != Phase::Placing {
            return;
        }
        let replacing = self.window.replacing().expect("a change is under way while placing");
        if chosen.is_empty() {
            let (needed, failed) = (replacing.len(), self.failures());
            let error = NotEnoughBookies { needed, available: 0, read_only, failed };
            self.stop(WhyStopped::NotEnoughBookies(error));
            return;
        }
        let mut ensemble = self.ensemble().to_vec();
        // Fewer replacements than failures: those that were found are used.
        for (&position, bookie) in replacing.keys().zip(chosen) {
            assert!(!ensemble.contains(bookie), "a replacement is not a member");
            ensemble[position] = bookie.clone();
        }
        self.phase = Phase::Writing(Goal::Ensemble(ensemble));
    }

    /// Outcome of [`Step::Write`].
    pub fn written(&mut self, outcome: Result<Version, LedgerError>, out: &mut Vec<Send>) {
        let Phase::Writing(goal) = self.phase.clone() else { return };
        match outcome {
            Ok(version) => {
                let metadata = self.proposal(&goal);
                self.adopt(goal, metadata, version, out);
            }
            // Invariant 3.
            Err(LedgerError::Changed(_)) => self.phase = Phase::Reading(goal),
            Err(LedgerError::Store(error)) if error.is_transient() => self.phase = Phase::Reading(goal),
            Err(error) => self.metadata_failed(error),
        }
    }

    /// Outcome of [`Step::Read`], when it succeeded.
    pub fn read(&mut self, stored: StoredLedger, out: &mut Vec<Send>) {
        let Phase::Reading(goal) = self.phase.clone() else { return };
        let StoredLedger { metadata, version, .. } = stored;
        match metadata.state {
            LedgerState::Closed { .. } if goal == Goal::Close && metadata.state == self.end() => {
                // Closed by this writer, or by somebody who found the same end.
                return self.adopt(goal, metadata, version, out);
            }
            LedgerState::Closed { last_entry, .. } => {
                self.closed_elsewhere = Some(last_entry);
                return self.stop(WhyStopped::Closed);
            }
            // Whoever recovers it will find that we closed it.
            LedgerState::InRecovery if goal == Goal::Close => {}
            LedgerState::InRecovery => return self.stop(WhyStopped::Fenced),
            LedgerState::Open => {}
        }
        let last = |metadata: &LedgerMetadata| metadata.segments().last().cloned();
        let is_reached = match &goal {
            Goal::Ensemble(_) => last(&metadata) == last(&self.proposal(&goal)),
            Goal::HandOver => Handover::of(&metadata) == Some(Ok(self.idle())),
            Goal::Close => false,
        };
        if is_reached {
            return self.adopt(goal, metadata, version, out);
        }
        let is_still_ours = match self.token {
            Some(token) => Handover::of(&metadata) == Some(Ok(Handover::Busy { token })),
            None => Handover::of(&metadata).is_none(),
        };
        if !is_still_ours || last(&metadata) != last(&self.metadata) {
            return self.stop(WhyStopped::MetadataChanged);
        }
        // Something that does not concern us: kept, and tried again on top of it.
        self.metadata = metadata;
        self.version = version;
        self.phase = Phase::Writing(goal);
    }

    /// A step failed for good, or for longer than the driver is patient.
    pub fn metadata_failed(&mut self, error: LedgerError) {
        self.stop(match error {
            LedgerError::NotFound(_) => WhyStopped::Deleted,
            LedgerError::Store(StoreError::Closed) => WhyStopped::ClientClosed,
            other => WhyStopped::Metadata(other),
        });
    }

    fn adopt(&mut self, goal: Goal, metadata: LedgerMetadata, version: Version, out: &mut Vec<Send>) {
        self.metadata = metadata;
        self.version = version;
        self.phase = Phase::Idle;
        match goal {
            Goal::Ensemble(ensemble) => {
                self.window.finish_change(ensemble, false, out);
                // Failures that came meanwhile are next; nothing is confirmed in between.
                self.begin_change_if_wanted();
            }
            Goal::Close | Goal::HandOver => self.stop(WhyStopped::Closing),
        }
    }

    /// Begins to close the ledger after its last confirmed entry. A writer that was fenced with everything confirmed has
    /// an end to write like any other: whether the late answer of a slow bookie told it of the fence makes no difference.
    pub fn begin_close(&mut self) {
        if self.stopped == Some(WhyStopped::Fenced) && !self.has_unconfirmed() {
            self.stopped = None;
        }
        self.begin(Goal::Close);
    }

    /// Begins to leave the ledger to the next writer.
    pub fn begin_hand_over(&mut self) {
        self.begin(Goal::HandOver);
    }

    fn begin(&mut self, goal: Goal) {
        if self.stopped.is_some() {
            return;
        }
        assert_eq!(self.phase, Phase::Idle, "one change of metadata at a time (IC11)");
        assert!(!self.has_unconfirmed(), "entries are drained before the end is written");
        self.phase = Phase::Writing(goal);
    }

    /// The LAC, when readers cannot know it from an entry and nothing is under way that would tell them.
    pub fn unannounced(&self) -> Option<EntryId> {
        let is_quiet = self.stopped.is_none() && !self.has_unconfirmed();
        self.confirmed().filter(|lac| is_quiet && self.announced < Some(*lac))
    }

    /// Marks the LAC as announced; the bookies to tell and the body to tell them.
    pub fn announce(&mut self) -> Option<(EntryId, bytes::Bytes, Vec<BookieId>)> {
        let lac = self.unannounced()?;
        self.announced = Some(lac);
        let positions = self.metadata.quorum.write_set(lac);
        let bookies = positions.map(|position| self.ensemble()[position].clone()).collect();
        Some((lac, self.codec.lac_body(lac), bookies))
    }
}
