//! The writer's decisions, without I/O: ids and digests of entries, acks, ensemble changes, the end of a ledger.
//!
//! # Data flow
//! ```text
//! append ----+                    +--> sends        (entry, position)
//! answer ----+--> WriterCore -----+--> next_step    place | mark | write metadata | read metadata
//! slow ------+                    +--> confirmed, bodies let go of, bookies to withdraw from, stopped
//! step done -+
//! ```
//! [`WriterCore::next_step`] returns the step to do now, and returns the same one until it is told the outcome, so
//! another driver can take over from one that was cancelled.
//!
//! Here is what each event leads to, in the order of an add's life, and when the writer stops. Who keeps what:
//! - `adds`: ids, lengths, acks, the LAC (last add confirmed), around the [`AddWindow`]; `in_flight`: their memory
//! - `kept`: confirmed entries that members lack and may still get
//! - `change`: what is under way about metadata, with the [`Step`]s and phases of `step`
//! - `members`: who is slow, who is held, who lacks entries, and whether a mark says so
//! - `known`: the metadata as read or written last
//!
//! # Invariants
//! 1. Those of [`AddWindow`]: IC1, IC2, IC11.
//! 2. The LAC in an entry is the one confirmed when it was encoded; it never goes back (IC3).
//! 3. Metadata is written only on the condition of the version read. An unknown outcome or a conflict is resolved by
//!    reading again: closed or in recovery ends the writer, another property is kept, an own write that went through is
//!    recognised (IC13, IC14; protocol reference, sections 7.3 and 7.8).
//! 4. A segment begins at the LAC + 1, which does not move while a change is under way.
//! 5. A member that failed or is slow and has no replacement is held: it gets nothing, the ledger goes on with its ack
//!    quorum, and the writer looks for a replacement again and again. Below an ack quorum the writer stops instead. As
//!    long as its driver has patience, it first retries the members that failed, with pauses, also where one
//!    replacement after the other fails; nothing is confirmed meanwhile.
//! 6. Before entries that a slow bookie has not acknowledged are let go of, the ledger is marked as under-replicated
//!    there; where the mark cannot be made they are held back, within the budget, until the bookie answers or fails.
//!    For entries that a *failed* bookie has not acknowledged the writer does not wait: they are confirmed by an ack quorum or
//!    sent to whoever takes its place. Without a replacement the mark comes before anything more is confirmed; with one,
//!    when they are let go of (11). Before the end is written every bookie that lacks something is marked, again if it was:
//!    repair may have looked in between.
//! 7. A held bookie that can be written again joins with a segment of its own, a ledger that is handed over with such a
//!    bookie gets one, and where a bookie lacks entries in the middle of a segment, that is split: every gap touches an end
//!    of a segment, so that repair which looks at the ends sees it (IC23, `gaps`). That is written before the mark is made:
//!    repair that sees no gap removes the mark, and a writer that crashes tells nobody.
//! 8. Nothing is held up by the search for a replacement of a slow or held member, which is not begun for it (IC20): an
//!    ensemble change freezes the LAC only when there is something to write, and a failure ends the search.
//! 9. Trouble with metadata does not stop a writer that has an ack quorum, as long as it needs no metadata to go on:
//!    when bookies cannot be listed, or the mark cannot be made, for longer than the driver is patient, a failed member
//!    is held anyway. The mark is tried again after pauses, with each search, and before the end; a ledger that cannot
//!    be marked then is closed with a warning.
//! 10. With deferred sync an entry is acknowledged before it is confirmed: [`force`](super::force) says when. The
//!     ensemble of such a ledger does not change and no member is held, since a replacement cannot answer for entries
//!     that the bookie before it had not synced (protocol reference, section 7.9): a failure stops the writer. The
//!     ledger is closed at the last forced entry.
//! 11. A confirmed entry that a bookie lacks is kept for a while, within a part of the budget, and sent when the bookie is
//!     back (`kept`), whether it is still a member or not. Copies that are let go of instead are counted, and marked; those of
//!     a writer that stops by itself get one attempt to mark them. With deferred sync no copies are kept.
//! 12. Entries in the queue to a bookie count until they are answered or withdrawn.
//! 13. Metadata stays so small that the ledger can be closed, by this writer and by others. Once it is large
//!     ([`metadata_edit`](crate::metadata_edit)) held bookies stay held, and what 7 says of segments ends: the mark remains. Larger still,
//!     a bookie that failed is held as well, as long as an ack quorum is left.
//!
//! # Limits
//! Ensemble changes without an entry confirmed in between: [`CHANGES_IN_A_ROW_MAX`], and one more for each pause while the
//! driver has patience (invariant 5).

mod adds;
mod change;
mod in_flight;
mod kept;
mod known;
mod members;
mod step;

use std::time::Duration;

use bindery_flow::Permit;
#[cfg(test)]
use bindery_io::canary::Canaries;
use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::store::Version;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata};
use bytes::Bytes;

use self::adds::Adds;
use self::change::{Changes, why_stopped};
use self::known::KnownMetadata;
use self::step::Goal;
use super::force::Force;
use crate::entry::EntryCodec;
use crate::error::{ForceError, Stopped, WhyStopped};
use crate::transport::{AddTag, BookieError, Connection};
use crate::window::{AddWindow, Send};

pub(crate) use self::change::CHANGES_IN_A_ROW_MAX;
pub(crate) use self::in_flight::{LetGo, cost_bytes, frames, overhead_bytes};
#[cfg(test)]
pub(crate) use self::kept::GRACE_TICKS;
pub(crate) use self::kept::{FILL_INTERVAL, Fill};
pub(crate) use self::step::Step;

/// See the module.
#[cfg_attr(test, derive(Clone, Debug))]
pub(crate) struct WriterCore {
    ledger: LedgerId,
    adds: Adds,
    changes: Changes,
    /// Nothing more is confirmed.
    stopped: Option<WhyStopped>,
    parting: Parting,
}

/// How far the mark is that a writer makes when it stopped by itself (invariant 11).
#[cfg_attr(test, derive(Clone, Debug))]
#[derive(PartialEq, Eq)]
enum Parting {
    NotBegun,
    UnderWay,
    Over,
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

impl WriterCore {
    pub fn new(start: Start) -> WriterCore {
        let Start { ledger, codec, metadata, version, confirmed, length_bytes, token, is_deferred } = start;
        let last = metadata.segments().last().expect("a ledger is created with a segment");
        let floor = last.first_entry.get() - 1;
        assert!(EntryId::to_wire(confirmed) >= floor, "the LAC is not below the last segment");
        let window = AddWindow::new(metadata.quorum, last.ensemble.clone(), confirmed);
        WriterCore {
            ledger,
            adds: Adds::new(codec, window, length_bytes, is_deferred),
            changes: Changes::new(ledger, KnownMetadata::new(metadata, version, token)),
            stopped: None,
            parting: Parting::NotBegun,
        }
    }

    /// With a planted bug.
    #[cfg(test)]
    pub fn plant(&mut self, canaries: Canaries) {
        self.adds.plant(canaries);
        self.changes.plant(canaries);
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
        if self.changes.phase().is_ending() {
            return Err(self.because(WhyStopped::Closing));
        }
        let Some(entry) = self.adds.append(payload, permit, out) else {
            // Not latched: adds under way can still be confirmed, and the ledger closed.
            return Err(self.because(WhyStopped::Full));
        };
        let outcome = self.changes.on_pushed(&mut self.adds, out);
        self.latch(outcome);
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
        let outcome = self.adds.on_answer(entry, tag, connection, result);
        self.latch(outcome);
    }

    /// Confirms what can be; whether anything was confirmed or acknowledged. To be followed by
    /// [`release`](Self::release), once what is queued for [bookies to withdraw from](Self::take_withdrawn) is gone.
    pub fn settle(&mut self) -> bool {
        let has_moved = self.adds.advance();
        if self.stopped.is_none() {
            let outcome = self.changes.begin_if_wanted(&mut self.adds);
            self.latch(outcome);
        }
        has_moved
    }

    /// Bookies to which nothing more is to be sent of what is queued for them (to be done before the next send).
    pub fn take_withdrawn(&mut self) -> Vec<BookieId> {
        let withdrawn = self.changes.take_withdrawn();
        self.adds.on_withdrawn(&withdrawn);
        withdrawn
    }

    /// Puts entries that have all their answers into `let_go`, with their part of the budget. Those that a member lacks are
    /// kept for a while, as far as they [may](Self::may_keep) be (invariant 11).
    pub fn release(&mut self, let_go: &mut LetGo) {
        self.adds.release(let_go);
        let lost = self.adds.take_lost();
        // With deferred sync at the end: a failure may have to stop the writer before.
        if !lost.is_empty() && self.stopped.is_none() && !self.adds.is_deferred() {
            let outcome = self.changes.on_lost(lost, &mut self.adds);
            self.latch(outcome);
        }
    }

    /// So many bytes may be kept for bookies that lack them; none by default.
    pub fn may_keep(&mut self, bytes_max: u64) {
        self.adds.may_keep(if self.stopped.is_none() { bytes_max } else { 0 });
    }

    /// Bytes that are kept for bookies that lack them.
    pub fn kept_bytes(&self) -> u64 {
        self.adds.kept().bytes()
    }

    /// Whether no copy is on its way.
    pub fn is_settled(&self) -> bool {
        self.adds.window.is_empty() && !self.adds.kept().is_filling()
    }

    /// Whether every bookie has what it should have, as far as this writer may still see to it.
    #[cfg(test)]
    pub fn is_complete(&self) -> bool {
        self.adds.window.is_empty() && self.adds.kept().is_empty()
    }

    /// Looks whether bookies that lack something are back; to be called each [`FILL_INTERVAL`] (`counts`) while something
    /// is kept, or in between.
    pub fn tick(&mut self, counts: bool) {
        if self.stopped.is_none() {
            self.adds.tick(counts);
        }
    }

    /// Entries that bookies lack, to be sent to them now.
    pub fn take_fills(&mut self) -> Vec<Fill> {
        self.adds.take_fills()
    }

    /// Copies of entries that were let go of for good, and those that bookies got late, since this writer began.
    pub fn copies_missing_and_filled(&self) -> (u64, u64) {
        (self.adds.copies_missing(), self.adds.kept().filled())
    }

    /// Whether bookies lack entries that were let go of, and no mark says so.
    pub fn is_unmarked(&self) -> bool {
        self.changes.members().has_unmarked()
    }

    /// Whether this writer stopped by itself and has yet to say what bookies lack, or says it now.
    pub fn is_parting(&self) -> bool {
        match (&self.stopped, &self.parting) {
            (None | Some(WhyStopped::Closing | WhyStopped::ClientClosed | WhyStopped::Deleted), _) => false,
            (Some(_), Parting::NotBegun) => !self.adds.gaps().is_empty(),
            (Some(_), parting) => *parting == Parting::UnderWay,
        }
    }

    /// The bookies to be marked by a writer that stopped by itself: once.
    pub fn begin_parting(&mut self) -> Option<Vec<BookieId>> {
        let begins = self.is_parting() && self.parting == Parting::NotBegun;
        begins.then(|| {
            self.parting = Parting::UnderWay;
            self.adds.gaps().bookies().into_iter().collect()
        })
    }

    /// That mark was made, or could not be.
    pub fn end_parting(&mut self, is_marked: bool) {
        self.parting = Parting::Over;
        if is_marked && self.stopped.is_some() {
            self.changes.on_parted();
        }
    }

    /// The LAC: what is safe.
    pub fn confirmed(&self) -> Option<EntryId> {
        self.adds.confirmed()
    }

    /// The last entry that an ack quorum answered for, as all before it: the LAC, unless sync is deferred.
    pub fn acknowledged(&self) -> Option<EntryId> {
        self.adds.acknowledged()
    }

    /// The last entry that was given an id, here or by the writer before.
    pub fn last_pushed(&self) -> Option<EntryId> {
        self.adds.window.last_pushed()
    }

    /// Whether an entry waits for its ack quorum.
    pub fn has_unacknowledged(&self) -> bool {
        self.adds.has_unacknowledged()
    }

    /// Whether a force would confirm something.
    pub fn has_unforced(&self) -> bool {
        self.adds.has_unforced()
    }

    pub fn has_unconfirmed(&self) -> bool {
        self.adds.has_unconfirmed()
    }

    /// Length up to the last confirmed entry.
    pub fn confirmed_length_bytes(&self) -> u64 {
        self.adds.end().length_bytes
    }

    /// Whether nothing is confirmed until an ensemble change is complete.
    pub fn awaits_change(&self) -> bool {
        self.adds.window.awaits_change()
    }

    /// Whether a member gets nothing, since there is nobody who could take its place (invariant 5).
    pub fn is_short(&self) -> bool {
        self.changes.members().has_held()
    }

    pub fn ensemble(&self) -> &[BookieId] {
        self.adds.ensemble()
    }

    /// Counts changes of the ensemble, so that a caller can keep something for each member.
    pub fn ensemble_number(&self) -> u64 {
        self.adds.window.changes()
    }

    /// The LAC, when readers cannot know it from an entry and nothing is under way that would tell them.
    pub fn unannounced(&self) -> Option<EntryId> {
        self.adds.unannounced().filter(|_| self.stopped.is_none())
    }

    /// Marks the LAC as announced, if no entry tells it, under way or not; the bookies to tell, which are those of its write set that
    /// are not held, and the body to tell them.
    pub fn announce(&mut self) -> Option<(EntryId, Bytes, Vec<BookieId>)> {
        let lac = self.adds.untold().filter(|_| self.stopped.is_none())?;
        let body = self.adds.announce(lac);
        let positions = self.adds.window.quorum().write_set(lac);
        // A held one would keep the next announcement waiting, and the others are an ack quorum.
        let positions = positions.filter(|position| !self.changes.members().is_held(*position));
        let bookies = positions.map(|position| self.ensemble()[position].clone()).collect();
        Some((lac, body, bookies))
    }

    /// A force of what is acknowledged now; its members are to be asked.
    pub fn begin_force(&self) -> Result<Force, Stopped> {
        match self.stopped() {
            Some(stopped) => Err(stopped),
            None => Ok(self.adds.begin_force()),
        }
    }

    /// Counts an answer to a force. False when it is to be ended, since it cannot succeed.
    pub fn on_force_answer(
        &self,
        force: &mut Force,
        position: usize,
        answer: Result<Connection, BookieError>,
    ) -> bool {
        self.adds.on_force_answer(force, position, answer)
    }

    /// Ends a force: each of its members answered, or one badly. The LAC. Follow with [`settle`](Self::settle).
    pub fn end_force(&mut self, force: &Force) -> Result<Option<EntryId>, ForceError> {
        if let Some(stopped) = self.stopped() {
            return Err(stopped.into());
        }
        if let Err(answers) = self.adds.end_force(force) {
            if force.is_hopeless() {
                self.stop(WhyStopped::DeferredSync(answers.clone()));
            }
            return Err(match self.stopped() {
                Some(stopped) => stopped.into(),
                None => ForceError::Bookies { ledger: self.ledger, answers },
            });
        }
        Ok(self.confirmed())
    }

    /// Which positions are behind the others, and what they hold up, see [`AddWindow::held_back`].
    pub fn held_back(&self, behind: &mut Vec<usize>) -> u64 {
        self.adds.window.held_back(behind)
    }

    /// See [`AddWindow::take_acked_bytes`].
    pub fn take_acked_bytes(&mut self, position: usize) -> u64 {
        self.adds.window.take_acked_bytes(position)
    }

    /// The bookie at a position holds up too much, in this and other ledgers `bytes` in all.
    pub fn on_slow(&mut self, position: usize, bytes: u64) {
        if self.stopped.is_none() {
            let outcome = self.changes.on_slow(position, bytes, &mut self.adds);
            self.latch(outcome);
        }
    }

    /// When to call [`retry`](Self::retry): members are held, or slow and needed, and nothing is being done about it; or
    /// all are well again after searches.
    pub fn retry_after(&self) -> Option<Duration> {
        self.changes.retry_after().filter(|_| self.stopped.is_none())
    }

    /// Looks again for replacements, or whether held bookies can be written again.
    pub fn retry(&mut self) {
        if self.stopped.is_none() {
            self.changes.retry(&self.adds);
        }
    }

    /// Whether a search for replacements of slow and held members keeps a failed one waiting.
    pub fn is_overtaken(&self) -> bool {
        self.changes.is_overtaken(&self.adds.window)
    }

    /// What is to be done about metadata now, if anything.
    pub fn next_step(&self) -> Option<Step> {
        self.changes.next_step(&self.adds)
    }

    /// Outcome of [`Step::Place`]: distinct bookies outside the ensemble, for the first of the positions; how many are
    /// read-only; which of those asked can be written again.
    pub fn placed(&mut self, chosen: &[BookieId], read_only: usize, alive: &[BookieId]) {
        let outcome = self.changes.placed(chosen, read_only, alive, &mut self.adds);
        self.latch(outcome);
    }

    /// Whether the driver still has patience with bookies that the ack quorum needs (invariant 5); not by default.
    pub fn may_wait(&mut self, may_wait: bool) {
        self.changes.may_wait(may_wait);
    }

    /// Outcome of [`Step::Wait`]: the pause is over.
    pub fn waited(&mut self, out: &mut Vec<Send>) {
        let outcome = self.changes.waited(&mut self.adds, out);
        self.latch(outcome);
    }

    /// Outcome of [`Step::Mark`], when it succeeded.
    pub fn marked(&mut self, out: &mut Vec<Send>) {
        let outcome = self.changes.marked(&mut self.adds, out);
        self.latch(outcome);
    }

    /// Outcome of [`Step::Write`].
    pub fn written(&mut self, outcome: Result<Version, LedgerError>, out: &mut Vec<Send>) {
        let outcome = self.changes.written(outcome, &mut self.adds, out);
        self.latch(outcome);
    }

    /// Outcome of [`Step::Read`], when it succeeded.
    pub fn read(&mut self, stored: StoredLedger, out: &mut Vec<Send>) {
        let outcome = self.changes.read(stored, &mut self.adds, out);
        self.latch(outcome);
    }

    /// Gives up the step that failed, if it is optional: it is tried again later. False when the step must be done.
    pub fn put_off(&mut self) -> bool {
        let is_optional = self.changes.phase().is_optional();
        if is_optional {
            let outcome = self.changes.put_off(&mut self.adds);
            self.latch(outcome);
        }
        is_optional
    }

    /// The step under way failed for good, or for longer than the driver is patient. True when the writer goes on without
    /// it (invariant 9).
    pub fn goes_on_without(&mut self, error: &LedgerError, out: &mut Vec<Send>) -> bool {
        let may_go_on = *error != LedgerError::Store(StoreError::Closed)
            && self.changes.can_go_on_without(&self.adds.window);
        if may_go_on {
            let outcome = self.changes.go_on_without(error, &mut self.adds, out);
            self.latch(outcome);
        }
        may_go_on
    }

    /// A step failed for good, or for longer than the driver is patient.
    pub fn metadata_failed(&mut self, error: LedgerError) {
        self.stop(why_stopped(error));
    }

    /// Begins to close the ledger after its last confirmed entry. A writer that was fenced with everything confirmed has
    /// an end to write like any other: whether the late answer of a slow bookie told it of the fence makes no difference.
    pub fn begin_close(&mut self) {
        if self.stopped == Some(WhyStopped::Fenced) && !self.has_unconfirmed() {
            self.stopped = None;
        }
        self.begin_end(Goal::Close);
    }

    /// Begins to leave the ledger to the next writer.
    pub fn begin_hand_over(&mut self) {
        self.begin_end(Goal::HandOver);
    }

    fn begin_end(&mut self, goal: Goal) {
        if self.stopped.is_none() {
            self.changes.begin_end(goal, &mut self.adds);
        }
    }

    /// Why nothing more is confirmed, once that is so.
    pub fn stopped(&self) -> Option<Stopped> {
        Some(self.because(self.stopped.clone()?))
    }

    /// Where somebody else closed the ledger that this writer wanted to close.
    pub fn closed_elsewhere(&self) -> Option<Option<EntryId>> {
        self.changes.known().closed_elsewhere()
    }

    /// Nothing more is confirmed. The first reason stays.
    pub fn stop(&mut self, why: WhyStopped) {
        if self.stopped.is_none() {
            self.stopped = Some(why);
            self.adds.window.stop();
            self.adds.stop_keeping();
            self.changes.abandon(self.adds.take_lost());
        }
    }

    fn latch(&mut self, outcome: Result<(), WhyStopped>) {
        if let Err(why) = outcome {
            self.stop(why);
        }
    }

    fn because(&self, why: WhyStopped) -> Stopped {
        Stopped { ledger: self.ledger, last_confirmed: self.confirmed(), why }
    }

    #[cfg(test)]
    pub fn metadata(&self) -> &LedgerMetadata {
        self.changes.known().metadata()
    }

    #[cfg(test)]
    pub fn quorum(&self) -> bindery_types::Quorum {
        self.adds.window.quorum()
    }

    /// The bookies that are held (invariant 5).
    #[cfg(test)]
    pub fn held(&self) -> Vec<BookieId> {
        self.changes.members().held(&self.adds.window).cloned().collect()
    }
}
