//! The writer's decisions, without I/O: ids and digests of entries, acks, ensemble changes, the end of a ledger.
//!
//! # Data flow
//! ```text
//! append ----+                    +--> sends        (entry, position)
//! answer ----+--> WriterCore -----+--> next_step    place | mark | write metadata | read metadata
//! slow ------+                    +--> confirmed, bodies let go of, bookies to withdraw from, stopped
//! step done -+
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
//! 5. A member that failed or is slow and has no replacement is held: it gets nothing, the ledger goes on with its ack
//!    quorum, and a replacement is looked for again and again. Below an ack quorum the writer stops instead.
//! 6. Before entries that a slow bookie has not acknowledged are let go of, the ledger is marked as under-replicated
//!    there, and marked again before its end is written: repair may have looked in between. Where the mark cannot be
//!    made they are held back, within the budget, until the bookie answers or fails.
//!    Entries that a *failed* bookie has not acknowledged are let go of at once: they are confirmed by an ack quorum or
//!    sent to whoever takes its place, and what this process keeps in memory outlives nothing that a copy on disk is for.
//!    Without a replacement the mark comes before anything more is confirmed.
//! 7. A held bookie that can be written again joins with a segment of its own, so that the gap ends where a segment does:
//!    repair that looks at the ends of a segment sees it.
//! 8. Nothing is held up by the search for a replacement of a slow or held member, which is not begun for it (IC20): an
//!    ensemble change freezes the LAC only when there is something to write, and a failure ends the search.
//! 9. What metadata is not needed for does not stop a writer that has an ack quorum: when bookies cannot be listed, or the
//!    mark cannot be made, for longer than the driver is patient, a failed member is held all the same. The mark is tried
//!    again with each search and before the end; a ledger that cannot be marked then is closed with a warning.
//! 10. With deferred sync an entry is acknowledged before it is confirmed: [`force`](super::force) says when. Its
//!     ensemble does not change and nobody is held, since whoever takes a bookie's place cannot answer for what that one had
//!     not synced (protocol reference, section 7.9): a failure stops the writer. What is closed is what was forced.
//!
//! # Limits     [`CHANGES_IN_A_ROW_MAX`] ensemble changes without an entry confirmed in between

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_flow::Permit;
use bindery_io::canary::{Canaries, Canary};
use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::store::Version;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState};
use bindery_wire::ErrorCode;
use bytes::{Bytes, BytesMut};

use super::force::{Force, Unforced};
use crate::entry::EntryCodec;
use crate::error::{BookieAnswer, BookieAnswers, ForceError, NotEnoughBookies, Stopped, WhyStopped};
use crate::handover::Handover;
use crate::metadata_edit::with_ensemble;
use crate::transport::{AddTag, BookieError, Connection};
use crate::window::{AddWindow, Heard, Send};

/// How many ensemble changes may follow one another while no entry gets through.
pub(crate) const CHANGES_IN_A_ROW_MAX: u32 = 64;

/// What an entry costs besides its stored bytes: its place in the window, and its part of what is free in a block.
pub(crate) const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// What it costs for each replica: the head of its frame, its places in the queue and among what waits for answers. Twice
/// with deferred sync, where the head waits by itself.
pub(crate) const FRAME_OVERHEAD_BYTES: u64 = 192;

/// How soon a replacement for a held bookie is looked for again, at first; twice as long each time.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// And at last.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Buffers for stored entries grow up to this.
const BLOCK_BYTES_MAX: usize = 64 * 1024;

/// What nobody waits for any more, to be dropped where no lock is held.
#[derive(Default)]
pub(crate) struct LetGo {
    pub bodies: Vec<Bytes>,
    pub permit: Option<Permit>,
}

/// What a ledger holds of the budget.
#[derive(Default)]
struct Held(Option<Permit>);

/// Tests that copy a writer give it no permits.
#[cfg(test)]
impl Clone for Held {
    fn clone(&self) -> Held {
        assert!(self.0.is_none(), "a permit is returned once");
        Held(None)
    }
}

#[cfg(test)]
impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.as_ref().map(Permit::bytes))
    }
}

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
    /// Mark the ledger as under-replicated on these bookies.
    Mark { replicas: Vec<BookieId> },
    /// Write this if the version is still that.
    Write { metadata: Box<LedgerMetadata>, expected: Version },
    /// Read the ledger's metadata.
    Read,
}

/// What the metadata is being changed for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Goal {
    Ensemble(Change),
    Close,
    HandOver,
}

/// How an ensemble is to change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    ensemble: Vec<BookieId>,
    /// Members that failed and are not replaced are held; else they are tried again.
    holds_rest: bool,
    /// Held positions whose bookie is written again.
    rejoins: BTreeSet<usize>,
}

/// What follows a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AfterMark {
    /// The slow members, if any, are held, and replacements looked for.
    Hold { is_retry: bool },
    /// The change under way, of members that failed, goes on.
    Change(Change),
    /// Slow and held members are replaced or join again, unless something happened meanwhile.
    Join { replacing: BTreeMap<usize, BookieError>, change: Change },
    /// The end is written.
    End(Goal),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// No change of metadata is under way.
    Idle,
    /// Replacements are looked for, of members that failed.
    Placing,
    /// The same, of slow and held members: nothing waits for it (invariant 8).
    Seeking { is_retry: bool },
    /// The ledger is being marked as under-replicated.
    Marking(AfterMark),
    /// Being written.
    Writing(Goal),
    /// A write failed or its outcome is unknown.
    Reading(Goal),
}

/// See the module.
#[cfg_attr(test, derive(Clone, Debug))]
pub(crate) struct WriterCore {
    ledger: LedgerId,
    codec: EntryCodec,
    metadata: LedgerMetadata,
    version: Version,
    window: AddWindow,
    /// With deferred sync.
    unforced: Option<Unforced>,
    /// The LAC moved by a force since it was settled last.
    has_forced: bool,
    /// Entries are stored one behind another, so that they share an allocation.
    block: BytesMut,
    /// What the entries in the window hold of the budget.
    permit: Held,
    /// What they cost, which is what the permit is for.
    in_flight_bytes: u64,
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
    /// Members that are too far behind and are written to all the same, because they were not yet dealt with, or because
    /// the ack quorum needs them.
    slow: BTreeMap<usize, BookieError>,
    /// Held members, and why (invariant 5).
    held: BTreeMap<usize, BookieError>,
    /// Whether `slow` has members that were not dealt with.
    has_news: bool,
    /// Searches for replacements of slow and held members, since all was well.
    searches: u32,
    /// Bookies that lack entries which this writer let go of (invariant 6).
    lacking: BTreeSet<BookieId>,
    /// That could not be marked (invariant 9).
    is_unmarked: bool,
    /// Bookies that nothing more is to be sent to, of what is queued for them.
    withdrawn: Vec<BookieId>,
    canaries: Canaries,
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
    /// Whether bookies may acknowledge before they sync.
    pub is_deferred: bool,
}

/// How many frames an entry makes.
pub(crate) fn frames(write_quorum_size: usize, is_deferred: bool) -> usize {
    if is_deferred { 2 * write_quorum_size } else { write_quorum_size }
}

/// What an entry costs besides its stored bytes, by its frames.
pub(crate) fn overhead_bytes(frames: usize) -> u64 {
    ENTRY_OVERHEAD_BYTES + frames as u64 * FRAME_OVERHEAD_BYTES
}

impl WriterCore {
    pub fn new(start: Start) -> WriterCore {
        let Start { ledger, codec, metadata, version, confirmed, length_bytes, token, is_deferred } = start;
        let last = metadata.segments().last().expect("a ledger is created with a segment");
        let floor = last.first_entry.get() - 1;
        assert!(EntryId::to_wire(confirmed) >= floor, "the LAC is not below the last segment");
        WriterCore {
            window: AddWindow::new(metadata.quorum, last.ensemble.clone(), confirmed),
            unforced: is_deferred.then(|| Unforced::new(confirmed, last.ensemble.len())),
            has_forced: false,
            block: BytesMut::new(),
            permit: Held::default(),
            in_flight_bytes: 0,
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
            slow: BTreeMap::new(),
            held: BTreeMap::new(),
            has_news: false,
            searches: 0,
            lacking: BTreeSet::new(),
            is_unmarked: false,
            withdrawn: Vec::new(),
            canaries: Canaries::none(),
        }
    }

    /// With a planted bug.
    #[cfg(test)]
    pub fn plant(&mut self, canaries: Canaries) {
        self.canaries = canaries;
        self.window.plant(canaries);
    }

    pub fn ensemble(&self) -> &[BookieId] {
        self.window.ensemble()
    }

    /// The LAC: what is safe.
    pub fn confirmed(&self) -> Option<EntryId> {
        match &self.unforced {
            Some(unforced) => unforced.lac(),
            None => self.window.confirmed(),
        }
    }

    /// The last entry that an ack quorum answered for, as all before it: the LAC, unless sync is deferred.
    pub fn acknowledged(&self) -> Option<EntryId> {
        self.window.confirmed()
    }

    /// Whether a force would confirm something.
    pub fn has_unforced(&self) -> bool {
        self.acknowledged() > self.confirmed()
    }

    /// The last entry that was given an id, here or by the writer before.
    pub fn last_pushed(&self) -> Option<EntryId> {
        self.window.last_pushed()
    }

    /// Whether an entry waits for its ack quorum.
    pub fn has_unacknowledged(&self) -> bool {
        self.window.has_unconfirmed()
    }

    pub fn has_unconfirmed(&self) -> bool {
        self.has_unacknowledged() || self.has_unforced()
    }

    /// Length up to the last confirmed entry.
    pub fn confirmed_length_bytes(&self) -> u64 {
        let payload_bytes = match &self.unforced {
            Some(unforced) => unforced.payload_bytes(),
            None => self.window.confirmed_payload_bytes(),
        };
        self.length_before + payload_bytes
    }

    /// Whether nothing is confirmed until an ensemble change is complete.
    pub fn awaits_change(&self) -> bool {
        self.window.awaits_change()
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

    /// What an entry of this size takes from the budget, by the number of its [`frames`].
    pub fn cost_bytes(codec: &EntryCodec, frames: usize, payload: usize) -> u64 {
        codec.stored_size_bytes(payload) as u64 + overhead_bytes(frames)
    }

    /// Takes an entry: its id, its stored form, its way to the write set. The permit comes back with
    /// [`release`](Self::release).
    pub fn append(
        &mut self,
        payload: &[u8],
        permit: Option<Permit>,
        out: &mut Vec<Send>,
    ) -> Result<EntryId, Stopped> {
        if let Some(stopped) = self.stopped() {
            return Err(stopped);
        }
        if self.is_ending() {
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
        if self.block.capacity() < stored_size_bytes {
            // As large as what is in flight asks for, so that a slow ledger pins little and a fast one allocates rarely.
            let wanted = usize::try_from(self.in_flight_bytes / 4).unwrap_or(BLOCK_BYTES_MAX);
            self.block = BytesMut::with_capacity(wanted.min(BLOCK_BYTES_MAX).max(stored_size_bytes));
        }
        let lac = self.confirmed();
        self.codec.put(entry, lac, length_bytes, payload, &mut self.block);
        let body = self.block.split().freeze();
        debug_assert_eq!(body.len(), stored_size_bytes);
        match (&mut self.permit.0, permit) {
            (Some(held), Some(permit)) => held.merge(permit),
            (held @ None, permit) => *held = permit,
            (Some(_), None) => {}
        }
        self.announced = self.announced.max(lac);
        self.length_bytes = length_bytes;
        let frames = frames(self.metadata.quorum.write_quorum_size(), self.unforced.is_some());
        let cost_bytes = WriterCore::cost_bytes(&self.codec, frames, payload.len());
        self.in_flight_bytes += cost_bytes;
        let payload_bytes = u32::try_from(payload.len()).expect("entries are smaller than a frame");
        self.window.push(body, payload_bytes, cost_bytes, out);
        if self.canaries.has(Canary::M17EnsembleUnpublished)
            && let Phase::Writing(Goal::Ensemble(change)) = self.phase.clone()
            && self.window.replacing().is_some()
        {
            self.window.finish_change(change.ensemble, change.holds_rest, &change.rejoins, out);
        }
        self.begin_change_if_wanted();
        Ok(entry)
    }

    /// Counts an answer of a bookie. Follow a batch of them with [`settle`](Self::settle).
    pub fn on_answer(
        &mut self,
        entry: EntryId,
        tag: AddTag,
        connection: Connection,
        result: &Result<(), BookieError>,
    ) {
        if let (Some(unforced), Ok(())) = (&mut self.unforced, result) {
            let position = AddWindow::position_of(tag);
            if !unforced.note(position, entry, connection, self.canaries) {
                let answer = BookieAnswer::Failed(BookieError::Reconnected);
                let failed = vec![(self.ensemble()[position].clone(), answer)];
                return self.stop(WhyStopped::DeferredSync(BookieAnswers(failed)));
            }
        }
        let Heard::Fatal(position) = self.window.on_answer(entry, tag, result) else { return };
        let bookie = self.ensemble()[position].clone();
        self.stop(match result {
            Err(BookieError::Refused(ErrorCode::Fenced)) => WhyStopped::Fenced,
            Err(BookieError::Closed) => WhyStopped::ClientClosed,
            Ok(()) | Err(_) => WhyStopped::Unauthorized { bookie },
        });
    }

    /// Confirms what can be; whether anything was confirmed or acknowledged. To be followed by [`release`](Self::release), once what is queued for
    /// [bookies to withdraw from](Self::take_withdrawn) is gone.
    pub fn settle(&mut self) -> bool {
        let has_moved = self.window.advance();
        self.begin_change_if_wanted();
        has_moved | std::mem::take(&mut self.has_forced)
    }

    /// Puts entries that nobody waits for into `let_go`, with what they held of the budget.
    pub fn release(&mut self, let_go: &mut LetGo) {
        let released_bytes = self.window.release(&mut let_go.bodies);
        if released_bytes == 0 {
            return;
        }
        self.in_flight_bytes -= released_bytes;
        let_go.permit = self.permit.0.as_mut().map(|permit| permit.split(released_bytes));
        if self.in_flight_bytes == 0 {
            // An idle ledger holds nothing.
            self.block = BytesMut::new();
        }
    }

    /// A force of what is acknowledged now; its members are to be asked.
    pub fn begin_force(&self) -> Result<Force, Stopped> {
        if let Some(stopped) = self.stopped() {
            return Err(stopped);
        }
        let payload_bytes = self.window.confirmed_payload_bytes();
        Ok(match &self.unforced {
            Some(unforced) => unforced.begin(self.ensemble(), self.acknowledged(), payload_bytes),
            None => Force::plain(self.ensemble()),
        })
    }

    /// Counts an answer to a force. False when it is to be ended, since it cannot succeed.
    pub fn on_force_answer(
        &self,
        force: &mut Force,
        position: usize,
        answer: Result<Connection, BookieError>,
    ) -> bool {
        force.on_answer(position, answer, self.canaries)
    }

    /// Ends a force: each of its members answered, or one badly. The LAC. Follow with [`settle`](Self::settle).
    pub fn end_force(&mut self, force: &Force) -> Result<Option<EntryId>, ForceError> {
        if let Some(stopped) = self.stopped() {
            return Err(stopped.into());
        }
        let before = self.confirmed();
        let outcome = match &mut self.unforced {
            Some(unforced) => unforced.end(force),
            None => force.outcome(),
        };
        if let Err(answers) = outcome {
            if force.is_hopeless() {
                self.stop(WhyStopped::DeferredSync(answers.clone()));
            }
            return Err(match self.stopped() {
                Some(stopped) => stopped.into(),
                None => ForceError::Bookies { ledger: self.ledger, answers },
            });
        }
        self.has_forced |= self.confirmed() != before;
        Ok(self.confirmed())
    }

    #[cfg(test)]
    pub fn metadata(&self) -> &LedgerMetadata {
        &self.metadata
    }

    #[cfg(test)]
    pub fn quorum(&self) -> bindery_types::Quorum {
        self.metadata.quorum
    }

    /// The bookies that are held (invariant 5).
    #[cfg(test)]
    pub fn held(&self) -> Vec<BookieId> {
        self.held.keys().map(|&position| self.ensemble()[position].clone()).collect()
    }

    /// Counts changes of the ensemble, so that a caller can keep something for each member.
    pub fn ensemble_number(&self) -> u64 {
        self.window.changes()
    }

    /// Which positions are behind the others, and what they hold up, see [`AddWindow::held_back`].
    pub fn held_back(&self, behind: &mut Vec<usize>) -> u64 {
        self.window.held_back(behind)
    }

    /// See [`AddWindow::take_acked_bytes`].
    pub fn take_acked_bytes(&mut self, position: usize) -> u64 {
        self.window.take_acked_bytes(position)
    }

    /// Bookies to which nothing more is to be sent of what is queued for them (to be done before the next send).
    pub fn take_withdrawn(&mut self) -> Vec<BookieId> {
        std::mem::take(&mut self.withdrawn)
    }

    /// The bookie at a position holds up too much, in this and other ledgers `bytes` in all.
    pub fn on_slow(&mut self, position: usize, bytes: u64) {
        let is_dealt_with = self.stopped.is_some()
            // Invariant 10: it is waited for, within the budget, until its requests fail.
            || self.unforced.is_some()
            || self.slow.contains_key(&position)
            || self.held.contains_key(&position)
            || self.window.replacing().is_some_and(|replacing| replacing.contains_key(&position));
        if is_dealt_with {
            return;
        }
        self.slow.insert(position, BookieError::Behind(bytes));
        self.suspects.insert(self.ensemble()[position].clone());
        self.has_news = true;
        self.begin_change_if_wanted();
    }

    fn begin_change_if_wanted(&mut self) {
        if self.phase != Phase::Idle || self.stopped.is_some() {
            return;
        }
        if !self.window.wants_change() {
            if self.has_news {
                self.deal_with_slow(false);
            }
            return;
        }
        self.window.begin_change();
        if self.unforced.is_some() {
            // Invariant 10.
            return self.stop(WhyStopped::DeferredSync(self.failures()));
        }
        for position in self.window.replacing().into_iter().flatten().map(|(position, _)| position) {
            // It failed: that decides.
            self.slow.remove(position);
            self.withdrawn.push(self.window.ensemble()[*position].clone());
        }
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

    /// Slow members are held if that can be, and replacements looked for.
    fn deal_with_slow(&mut self, is_retry: bool) {
        self.has_news = false;
        let holds =
            !self.slow.is_empty() && self.window.can_hold(|position| self.slow.contains_key(&position));
        if holds {
            let bookies = self.slow.keys().map(|&position| self.window.ensemble()[position].clone());
            self.lacking.extend(bookies);
        }
        self.phase = match holds || self.is_unmarked {
            true => Phase::Marking(AfterMark::Hold { is_retry }),
            false => Phase::Seeking { is_retry },
        };
    }

    /// When to call [`retry`](Self::retry): members are held, or slow and needed, and nothing is being done about it; or
    /// all are well again after searches. A bookie that rejoins and fails again and again makes a segment each time, so
    /// the pauses begin anew only when all were well for the longest of them.
    pub fn retry_after(&self) -> Option<Duration> {
        if self.stopped.is_some() || self.phase != Phase::Idle {
            return None;
        }
        match self.held.is_empty() && self.slow.is_empty() {
            true => (self.searches > 0).then_some(RETRY_MAX),
            false => Some(RETRY_MAX.min(RETRY_MIN * 2u32.pow(self.searches.min(10)))),
        }
    }

    /// Looks again for replacements, or whether held bookies can be written again.
    pub fn retry(&mut self) {
        if self.retry_after().is_none() {
            return;
        }
        // One that has caught up meanwhile is like the others.
        let mut behind = Vec::new();
        self.held_back(&mut behind);
        self.slow.retain(|position, _| behind.contains(position));
        if !self.held.is_empty() || !self.slow.is_empty() {
            self.searches += 1;
            self.deal_with_slow(true);
        } else {
            self.searches = 0;
        }
    }

    /// Gives up the step that failed, if nothing waits for it: it is tried again later. False when it must be done.
    pub fn put_off(&mut self) -> bool {
        let is_optional = self.is_optional();
        if is_optional {
            self.phase = Phase::Idle;
            self.begin_change_if_wanted();
        }
        is_optional
    }

    /// Whether a search for replacements of slow and held members keeps a failed one waiting.
    pub fn is_overtaken(&self) -> bool {
        matches!(self.phase, Phase::Seeking { .. }) && self.window.wants_change()
    }

    fn is_optional(&self) -> bool {
        matches!(
            self.phase,
            Phase::Seeking { .. } | Phase::Marking(AfterMark::Hold { .. } | AfterMark::Join { .. })
        )
    }

    fn is_ending(&self) -> bool {
        matches!(
            self.phase,
            Phase::Writing(Goal::Close | Goal::HandOver)
                | Phase::Reading(Goal::Close | Goal::HandOver)
                | Phase::Marking(AfterMark::End(_))
        )
    }

    /// Outcome of [`Step::Mark`], when it succeeded.
    pub fn marked(&mut self, out: &mut Vec<Send>) {
        let Phase::Marking(after) = self.phase.clone() else { return };
        self.is_unmarked = false;
        self.go_on(after, out);
    }

    /// The step under way failed for good, or for longer than the driver is patient. True when the writer goes on without
    /// it (invariant 9).
    pub fn goes_on_without(&mut self, error: &LedgerError, out: &mut Vec<Send>) -> bool {
        if *error == LedgerError::Store(StoreError::Closed) {
            return false;
        }
        let may_go_on = match &self.phase {
            // Who is held already lacks what it lacks; of a slow one entries would be let go of.
            Phase::Marking(AfterMark::Hold { .. }) => self.slow.is_empty(),
            Phase::Marking(AfterMark::Join { replacing, .. }) => {
                replacing.keys().all(|position| !self.slow.contains_key(position))
            }
            Phase::Marking(AfterMark::Change(_) | AfterMark::End(_)) => true,
            Phase::Placing => self.window.can_hold(|_| false),
            Phase::Idle | Phase::Seeking { .. } | Phase::Writing(_) | Phase::Reading(_) => false,
        };
        if !may_go_on {
            return false;
        }
        if let Phase::Marking(after) = self.phase.clone() {
            tracing::warn!(ledger_id = %self.ledger, bookies = ?self.lacking, %error,
                "entries are missing on these bookies, and the ledger cannot be marked as under-replicated");
            self.is_unmarked = true;
            self.go_on(after, out);
        } else {
            tracing::warn!(ledger_id = %self.ledger, %error, "no replacement can be looked for");
            self.placed_for_failed(&[], 0, &[]);
        }
        true
    }

    fn go_on(&mut self, after: AfterMark, out: &mut Vec<Send>) {
        self.phase = Phase::Idle;
        match after {
            AfterMark::Hold { is_retry } => {
                for (position, error) in std::mem::take(&mut self.slow) {
                    let is_marked = self.lacking.contains(&self.ensemble()[position]);
                    if is_marked && self.window.can_hold(|other| other == position) {
                        self.hold(position, error);
                        self.window.hold(position);
                    } else {
                        self.slow.insert(position, error);
                    }
                }
                match self.window.wants_change() || self.has_news {
                    true => self.begin_change_if_wanted(),
                    // One that was just given up is asked after a pause.
                    false => self.phase = Phase::Seeking { is_retry },
                }
            }
            AfterMark::Change(change) if change.rejoins.is_empty() && change.ensemble == self.ensemble() => {
                self.finish(change, out);
            }
            AfterMark::Change(change) => self.phase = Phase::Writing(Goal::Ensemble(change)),
            // First things first; the search is repeated.
            AfterMark::Join { .. } if self.window.wants_change() || self.has_news => {
                self.begin_change_if_wanted();
            }
            AfterMark::Join { replacing, change } => {
                tracing::info!(ledger_id = %self.ledger, positions = ?replacing.keys(),
                    "written to a full ensemble again");
                let bookies = replacing.keys().map(|&position| self.window.ensemble()[position].clone());
                self.withdrawn.extend(bookies);
                self.window.begin_change_of(replacing);
                self.phase = Phase::Writing(Goal::Ensemble(change));
            }
            AfterMark::End(goal) => self.phase = Phase::Writing(goal),
        }
    }

    fn hold(&mut self, position: usize, error: BookieError) {
        let bookie = self.ensemble()[position].clone();
        tracing::warn!(ledger_id = %self.ledger, bookie_id = %bookie, %error,
            "no longer written to: the ledger goes on with its ack quorum, marked as under-replicated");
        self.lacking.insert(bookie.clone());
        self.withdrawn.push(bookie);
        self.held.insert(position, error);
    }

    /// An ensemble change is complete.
    fn finish(&mut self, change: Change, out: &mut Vec<Send>) {
        let before = self.ensemble().to_vec();
        let Change { ensemble, holds_rest, rejoins } = change;
        if !self.canaries.has(Canary::M17EnsembleUnpublished) || self.window.replacing().is_some() {
            self.window.finish_change(ensemble, holds_rest, &rejoins, out);
        }
        let is_back = |position: usize| {
            self.window.ensemble()[position] != before[position] || rejoins.contains(&position)
        };
        self.held.retain(|&position, _| !is_back(position));
        self.slow.retain(|&position, _| !is_back(position));
        if self.held.is_empty() && self.slow.is_empty() && rejoins.is_empty() {
            self.searches = 0;
        }
        // Failures that came meanwhile are next; nothing is confirmed in between.
        self.begin_change_if_wanted();
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
            Phase::Placing => {
                // Confirming waits for the answers: held members are asked only if there is no ack quorum without them.
                let asks = !self.window.can_hold(|_| false);
                let replacing = self.window.replacing().into_iter().flatten();
                Some(self.place(replacing.map(|(&position, _)| position).collect(), asks))
            }
            Phase::Seeking { is_retry } => Some(self.place(self.wanting(), *is_retry)),
            Phase::Marking(_) => Some(Step::Mark { replicas: self.lacking.iter().cloned().collect() }),
            Phase::Writing(goal) => {
                Some(Step::Write { metadata: Box::new(self.proposal(goal)), expected: self.version })
            }
            Phase::Reading(_) => Some(Step::Read),
        }
    }

    /// Slow and held members. Slow ones first: the ack quorum needs them.
    fn wanting(&self) -> Vec<usize> {
        self.slow.keys().chain(self.held.keys()).copied().collect()
    }

    fn place(&self, positions: Vec<usize>, asks: bool) -> Step {
        let held = self.held.keys().filter(|_| asks);
        Step::Place {
            positions,
            ensemble: self.ensemble().to_vec(),
            avoided: self.suspects.clone(),
            asked: held.map(|&position| self.ensemble()[position].clone()).collect(),
        }
    }

    fn proposal(&self, goal: &Goal) -> LedgerMetadata {
        match goal {
            Goal::Ensemble(Change { ensemble, .. }) => {
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

    /// Outcome of [`Step::Place`]: distinct bookies outside the ensemble, for the first of the positions; how many are
    /// read-only; which of those asked can be written again.
    pub fn placed(&mut self, chosen: &[BookieId], read_only: usize, alive: &[BookieId]) {
        match self.phase {
            Phase::Placing => self.placed_for_failed(chosen, read_only, alive),
            Phase::Seeking { .. } => self.placed_for_held(chosen, alive),
            _ => {}
        }
    }

    fn with_replacements<'a>(
        &self,
        positions: impl Iterator<Item = &'a usize>,
        chosen: &[BookieId],
    ) -> Vec<BookieId> {
        let mut ensemble = self.ensemble().to_vec();
        for (&position, bookie) in positions.zip(chosen) {
            assert!(!ensemble.contains(bookie), "a replacement is not a member");
            ensemble[position] = bookie.clone();
        }
        ensemble
    }

    fn held_and_alive(&self, alive: &[BookieId], ensemble: &[BookieId]) -> BTreeSet<usize> {
        // Of those that keep their position.
        self.held.keys().copied().filter(|&position| alive.contains(&ensemble[position])).collect()
    }

    fn placed_for_failed(&mut self, chosen: &[BookieId], read_only: usize, alive: &[BookieId]) {
        let replacing = self.window.replacing().expect("a change is under way while placing").clone();
        let ensemble = self.with_replacements(replacing.keys(), chosen);
        // Fewer replacements than failures: those that were found are used, and the rest is held (invariant 5).
        let rest: BTreeSet<usize> = replacing.keys().copied().skip(chosen.len()).collect();
        let rejoins = self.held_and_alive(alive, &ensemble);
        let holds_rest = self.window.keeps_quorum(|position| {
            !rest.contains(&position) && (!self.held.contains_key(&position) || rejoins.contains(&position))
        });
        let change = Change { ensemble, holds_rest, rejoins };
        if rest.is_empty() {
            self.phase = Phase::Writing(Goal::Ensemble(change));
        } else if holds_rest {
            for position in rest {
                self.hold(position, replacing[&position].clone());
            }
            self.phase = Phase::Marking(AfterMark::Change(change));
        } else if chosen.is_empty() {
            let needed = replacing.len();
            let mut failed = self.failures();
            let held = self.held.iter().map(|(&position, error)| (self.ensemble()[position].clone(), error));
            failed.0.extend(held.map(|(bookie, error)| (bookie, BookieAnswer::Failed(error.clone()))));
            let error = NotEnoughBookies { needed, available: 0, read_only, failed };
            self.stop(WhyStopped::NotEnoughBookies(error));
        } else {
            // Those that have no replacement are tried once more: without them there is no ack quorum.
            self.phase = Phase::Writing(Goal::Ensemble(change));
        }
    }

    fn placed_for_held(&mut self, chosen: &[BookieId], alive: &[BookieId]) {
        self.phase = Phase::Idle;
        if self.window.wants_change() || self.has_news {
            // First things first; the search is repeated.
            return self.begin_change_if_wanted();
        }
        // In the order of `wanting`.
        let wanting: Vec<(usize, BookieError)> =
            self.slow.iter().chain(&self.held).map(|(&position, error)| (position, error.clone())).collect();
        let ensemble = self.with_replacements(wanting.iter().map(|(position, _)| position), chosen);
        let rejoins = self.held_and_alive(alive, &ensemble);
        let replacing: BTreeMap<usize, BookieError> = wanting
            .into_iter()
            .filter(|(position, _)| {
                ensemble[*position] != self.ensemble()[*position] || rejoins.contains(position)
            })
            .collect();
        if replacing.is_empty() {
            return;
        }
        // Marked again, or for the first time (invariant 6).
        self.lacking.extend(replacing.keys().map(|&position| self.window.ensemble()[position].clone()));
        let change = Change { ensemble, holds_rest: false, rejoins };
        self.phase = Phase::Marking(AfterMark::Join { replacing, change });
    }

    /// Outcome of [`Step::Write`].
    pub fn written(&mut self, outcome: Result<Version, LedgerError>, out: &mut Vec<Send>) {
        let Phase::Writing(goal) = self.phase.clone() else { return };
        match outcome {
            Ok(version) => {
                let metadata = self.proposal(&goal);
                self.adopt(goal, metadata, version, out);
            }
            Err(error) if goal == Goal::Close && self.canaries.has(Canary::M20LostCloseFailed) => {
                self.metadata_failed(error);
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
            Goal::Ensemble(change) => self.finish(change, out),
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
        assert!(self.phase == Phase::Idle || self.is_optional(), "one change of metadata at a time (IC11)");
        assert!(!self.has_unconfirmed(), "entries are drained, and forced, before the end is written");
        // Invariant 6: what a slow member has not acknowledged is let go of with the writer.
        let owing = self.slow.keys().filter(|position| self.window.owes(**position));
        let owing: Vec<BookieId> = owing.map(|&position| self.ensemble()[position].clone()).collect();
        self.lacking.extend(owing);
        self.phase = match self.lacking.is_empty() {
            true => Phase::Writing(goal),
            false => Phase::Marking(AfterMark::End(goal)),
        };
    }

    /// The LAC, when readers cannot know it from an entry and nothing is under way that would tell them.
    pub fn unannounced(&self) -> Option<EntryId> {
        let is_quiet = self.stopped.is_none() && !self.has_unacknowledged();
        self.confirmed().filter(|lac| is_quiet && self.announced < Some(*lac))
    }

    /// Marks the LAC as announced; the bookies to tell, which are those of its write set that are not held, and the body
    /// to tell them.
    pub fn announce(&mut self) -> Option<(EntryId, bytes::Bytes, Vec<BookieId>)> {
        let lac = self.unannounced()?;
        self.announced = Some(lac);
        let positions = self.metadata.quorum.write_set(lac);
        // A held one would keep the next announcement waiting, and the others are an ack quorum.
        let positions = positions.filter(|position| !self.held.contains_key(position));
        let bookies = positions.map(|position| self.ensemble()[position].clone()).collect();
        Some((lac, self.codec.lac_body(lac), bookies))
    }
}
