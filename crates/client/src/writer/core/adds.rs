//! The life of an add: its id and digest, its way to the write set, its acknowledgements, the LAC (last add confirmed).
//!
//! # Data flow
//! ```text
//! append -> id, length -> digest over the LAC of the moment -> AddWindow -> sends
//! answer -> AddWindow: acks by position ------> advance -> acknowledged, in order -> LAC
//!        -> Unforced: which connection (deferred sync) -> force of the ensemble ---> LAC
//! every replica answered or was given up -----> release -> bodies, permit
//!        a member has not acknowledged it -----------> Gaps, Kept: filled, or let go of
//! LAC that no entry carries -> announce
//! ```
//!
//! # Invariants
//! Of the core: 1, 2, what 10 says of the LAC, and 11.
//!
//! # Not here   what a failure leads to (`change`), who is slow (`members`), when adds end (the core)

use std::collections::BTreeSet;

use bindery_flow::Permit;
use bindery_io::canary::Canaries;
use bindery_types::{BookieId, EntryId};
use bindery_wire::ErrorCode;
use bytes::Bytes;

use super::in_flight::{InFlight, LetGo, cost_bytes, frames};
use super::kept::{Fill, Kept, filled_member};
use super::known::End;
use crate::entry::EntryCodec;
use crate::error::{BookieAnswer, BookieAnswers, WhyStopped};
use crate::gaps::Gaps;
use crate::transport::{AddTag, BookieError, Connection};
use crate::window::{AddWindow, Heard, Lack, Send};
use crate::writer::force::{Force, Unforced};

/// See the module; of one ledger.
#[cfg_attr(test, derive(Clone, Debug))]
pub(super) struct Adds {
    codec: EntryCodec,
    /// Which replica has which entry. Its ensemble and who is held there are changed by `change` and `members`.
    pub(super) window: AddWindow,
    /// With deferred sync.
    unforced: Option<Unforced>,
    /// The LAC moved by a force since it was settled last.
    has_forced: bool,
    in_flight: InFlight,
    /// Entries that members lack, kept or not.
    gaps: Gaps,
    /// Those of them that are kept, at most so many bytes.
    kept: Kept,
    keep_bytes_max: u64,
    /// Released, and waits to be dropped by the caller.
    released: LetGo,
    /// Empty between calls; kept for its allocation.
    lacks: Vec<Lack>,
    /// Length at the start.
    length_before: u64,
    /// Length with everything pushed.
    length_bytes: u64,
    /// The highest LAC that readers can know.
    announced: Option<EntryId>,
    canaries: Canaries,
}

impl Adds {
    /// Nothing under way; the LAC and the length up to it are those of the window's start.
    pub fn new(codec: EntryCodec, window: AddWindow, length_bytes: u64, is_deferred: bool) -> Adds {
        let confirmed = window.confirmed();
        Adds {
            codec,
            unforced: is_deferred.then(|| Unforced::new(confirmed, window.ensemble().len())),
            has_forced: false,
            gaps: Gaps::new(window.quorum()),
            kept: Kept::default(),
            keep_bytes_max: 0,
            released: LetGo::default(),
            lacks: Vec::new(),
            window,
            in_flight: InFlight::default(),
            length_before: length_bytes,
            length_bytes,
            announced: confirmed,
            canaries: Canaries::none(),
        }
    }

    #[cfg(test)]
    pub fn plant(&mut self, canaries: Canaries) {
        self.canaries = canaries;
        self.window.plant(canaries);
    }

    pub fn ensemble(&self) -> &[BookieId] {
        self.window.ensemble()
    }

    /// With deferred sync.
    pub fn is_deferred(&self) -> bool {
        self.unforced.is_some()
    }

    /// Takes an entry: its id, its stored form, its way to the write set. `None` when ids or bytes are used up.
    pub fn append(&mut self, payload: &[u8], permit: Option<Permit>, out: &mut Vec<Send>) -> Option<EntryId> {
        let length_bytes = self.length_bytes.checked_add(payload.len() as u64);
        let length_bytes = length_bytes.filter(|length| i64::try_from(*length).is_ok())?;
        let entry = self.window.next()?;
        // Core invariant 2.
        let lac = self.confirmed();
        let body = self.in_flight.store(self.codec.stored_size_bytes(payload.len()), |block| {
            self.codec.put(entry, lac, length_bytes, payload, block);
        });
        let frames = frames(self.window.quorum().write_quorum_size(), self.is_deferred());
        let cost_bytes = cost_bytes(&self.codec, frames, payload.len());
        self.in_flight.admit(permit, cost_bytes);
        self.announced = self.announced.max(lac);
        self.length_bytes = length_bytes;
        let payload_bytes = u32::try_from(payload.len()).expect("entries are smaller than a frame");
        self.window.push(body, payload_bytes, cost_bytes, out);
        Some(entry)
    }

    /// Counts an answer of a bookie.
    ///
    /// # Errors
    /// Why the writer stops.
    pub fn on_answer(
        &mut self,
        entry: EntryId,
        tag: AddTag,
        connection: Connection,
        result: &Result<(), BookieError>,
    ) -> Result<(), WhyStopped> {
        if let (Some(unforced), Ok(()), None) = (&mut self.unforced, result, filled_member(tag)) {
            let position = AddWindow::position_of(tag);
            if !unforced.note(position, entry, connection, self.canaries) {
                let answer = BookieAnswer::Failed(BookieError::Reconnected);
                let failed = vec![(self.ensemble()[position].clone(), answer)];
                return Err(WhyStopped::DeferredSync(BookieAnswers(failed)));
            }
        }
        if let Some(member) = filled_member(tag) {
            if self.kept.on_answer(member, entry, result) {
                self.note_filled(member, entry);
            }
            return Ok(());
        }
        if result.is_ok() && !self.gaps.is_empty() {
            self.note_filled(tag, entry);
        }
        let Heard::Fatal(position) = self.window.on_answer(entry, tag, result) else { return Ok(()) };
        Err(match result {
            Err(BookieError::Refused(ErrorCode::Fenced)) => WhyStopped::Fenced,
            Err(BookieError::Closed) => WhyStopped::ClientClosed,
            Ok(()) | Err(_) => WhyStopped::Unauthorized { bookie: self.ensemble()[position].clone() },
        })
    }

    /// The bookie of a tag has an entry. It may have been known to lack it under another one: when it was a member again.
    fn note_filled(&mut self, tag: AddTag, entry: EntryId) {
        let Some(bookie) = self.window.bookie_of(tag) else { return };
        for tag in self.gaps.fill_of(bookie, entry) {
            self.kept.has(tag, entry);
        }
    }

    /// Confirms what can be; whether anything was confirmed or acknowledged since this was called last.
    pub fn advance(&mut self) -> bool {
        let has_moved = self.window.advance();
        has_moved | std::mem::take(&mut self.has_forced)
    }

    /// The LAC: what is safe.
    pub fn confirmed(&self) -> Option<EntryId> {
        match &self.unforced {
            Some(unforced) => unforced.lac(),
            None => self.acknowledged(),
        }
    }

    /// The last entry that an ack quorum answered for, as all before it: the LAC, unless sync is deferred.
    pub fn acknowledged(&self) -> Option<EntryId> {
        self.window.confirmed()
    }

    /// Whether an entry waits for its ack quorum.
    pub fn has_unacknowledged(&self) -> bool {
        self.window.has_unconfirmed()
    }

    /// Whether a force would confirm something.
    pub fn has_unforced(&self) -> bool {
        self.acknowledged() > self.confirmed()
    }

    pub fn has_unconfirmed(&self) -> bool {
        self.has_unacknowledged() || self.has_unforced()
    }

    /// Where the ledger would end now.
    pub fn end(&self) -> End {
        let payload_bytes = match &self.unforced {
            Some(unforced) => unforced.payload_bytes(),
            None => self.window.confirmed_payload_bytes(),
        };
        End { last_entry: self.confirmed(), length_bytes: self.length_before + payload_bytes }
    }

    /// Puts entries that have all their answers into `let_go`, with their part of the budget. Those that a member lacks may be
    /// kept.
    pub fn release(&mut self, let_go: &mut LetGo) {
        let_go.append(std::mem::take(&mut self.released));
        self.collect(let_go);
    }

    fn collect(&mut self, let_go: &mut LetGo) {
        let released_bytes = self.window.release(&mut let_go.bodies, &mut self.lacks);
        if released_bytes != 0 {
            let mut permit = self.in_flight.release(released_bytes);
            // With deferred sync nobody could say whether a copy that came later was forced.
            let keep_bytes_max = if self.is_deferred() { 0 } else { self.keep_bytes_max };
            for lack in self.lacks.drain(..) {
                let tag = lack.tag;
                let is_told = self.gaps.add(&lack);
                self.kept.keep(lack, keep_bytes_max, &mut permit);
                if !is_told {
                    // What it got would not be known to be there.
                    self.kept.give_up(tag.0);
                }
            }
            let_go.add_permit(permit);
        }
        self.kept.release(let_go);
    }

    /// So many bytes may be kept for members that lack them.
    pub fn may_keep(&mut self, bytes_max: u64) {
        self.keep_bytes_max = bytes_max;
    }

    /// Entries that are kept for members that lack them.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// See [`Kept::tick`].
    pub fn tick(&mut self, counts: bool) {
        self.kept.tick(counts);
    }

    /// See [`Kept::take_lost`].
    pub fn take_lost(&mut self) -> BTreeSet<BookieId> {
        self.kept.take_lost()
    }

    /// See [`Kept::take_fills`].
    pub fn take_fills(&mut self) -> Vec<Fill> {
        self.kept.take_fills()
    }

    /// See [`Kept::on_withdrawn`].
    pub fn on_withdrawn(&mut self, bookies: &[BookieId]) {
        bookies.iter().for_each(|bookie| self.kept.on_withdrawn(bookie));
    }

    /// Lets go of all that is kept for members.
    pub fn stop_keeping(&mut self) {
        self.kept.give_up_all();
        self.keep_bytes_max = 0;
    }

    /// The writer ends: whoever has not acknowledged something by now lacks it. The bookies whose queues are to be emptied of
    /// it before it is released.
    pub fn give_up_rest(&mut self) -> BTreeSet<BookieId> {
        self.stop_keeping();
        let mut waited_for = self.window.waited_for();
        waited_for.extend(self.kept.filling().cloned());
        self.window.give_up_rest();
        let mut released = std::mem::take(&mut self.released);
        self.collect(&mut released);
        self.released = released;
        waited_for
    }

    /// Copies of entries that were let go of for good.
    pub fn copies_missing(&self) -> u64 {
        self.gaps.copies().saturating_sub(self.kept.copies())
    }

    /// Entries that members lack.
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// A force of what is acknowledged now.
    pub fn begin_force(&self) -> Force {
        match &self.unforced {
            Some(unforced) => {
                let payload_bytes = self.window.confirmed_payload_bytes();
                unforced.begin(self.ensemble(), self.acknowledged(), payload_bytes)
            }
            None => Force::plain(self.ensemble()),
        }
    }

    /// Counts an answer to a force. False when it cannot succeed any more.
    pub fn on_force_answer(
        &self,
        force: &mut Force,
        position: usize,
        answer: Result<Connection, BookieError>,
    ) -> bool {
        force.on_answer(position, answer, self.canaries)
    }

    /// Ends a force: with deferred sync the LAC moves if all members answered well.
    ///
    /// # Errors
    /// The members that did not.
    pub fn end_force(&mut self, force: &Force) -> Result<(), BookieAnswers> {
        let before = self.confirmed();
        match &mut self.unforced {
            Some(unforced) => unforced.end(force)?,
            None => force.outcome()?,
        }
        self.has_forced |= self.confirmed() != before;
        Ok(())
    }

    /// The LAC, when readers cannot know it from an entry and no entry is under way that would tell them.
    pub fn unannounced(&self) -> Option<EntryId> {
        self.untold().filter(|_| !self.has_unacknowledged())
    }

    /// The LAC, when no entry tells it: those under way were sent before it was confirmed.
    pub fn untold(&self) -> Option<EntryId> {
        self.confirmed().filter(|lac| self.announced < Some(*lac))
    }

    /// Marks the LAC as announced; the body that says it.
    pub fn announce(&mut self, lac: EntryId) -> Bytes {
        self.announced = Some(lac);
        self.codec.lac_body(lac)
    }
}
