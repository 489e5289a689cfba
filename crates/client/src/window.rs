//! The adds of one ledger that are under way: which replica has which entry, and how far all before are complete.
//!
//! Writer and recovery share it; they differ in how an ensemble change is decided.
//!
//! # Invariants
//! 1. An entry is complete with `ack_quorum_size` acks of the bookies that hold its positions now; acks and failures of
//!    a bookie that was replaced there are ignored (IC1, IC11).
//! 2. Entries are confirmed in order, and none from the first failure until the ensemble change it causes is finished
//!    and every unconfirmed entry was sent to the bookies that joined (IC2, IC11).
//! 3. An entry's bytes count as in flight until it is confirmed (or the writer stopped) and each of its replicas
//!    answered or was replaced (IC17).
//! 4. A failure for an entry that is complete already waits for the next change, which the next entry starts.
//! 5. A position that is held gets nothing, and entries do not wait for its acks; acks that its bookie gave before
//!    count. The caller that holds one makes sure that each write set keeps an ack quorum of others
//!    ([`AddWindow::can_hold`]).
//! 6. No confirmed entry leaves the window without a report of the members that have not acknowledged it ([`Lack`]).
//!
//! # Limits     memory: bounded by the caller, in bytes; a write quorum of [`WRITE_QUORUM_SIZE_MAX`]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bindery_io::canary::{Canaries, Canary};
use bindery_types::{BookieId, EntryId, Quorum};
use bytes::Bytes;

use crate::error::{BookieAnswer, BookieAnswers};
use crate::options::WRITE_QUORUM_SIZE_MAX;
use crate::transport::{AddTag, BookieError};

/// A confirmed entry that a member of its write set has not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lack {
    /// Of the member: the bookie, its position, and since when it has it.
    pub tag: AddTag,
    pub bookie: BookieId,
    pub entry: EntryId,
    pub body: Bytes,
    /// Of the budget.
    pub cost_bytes: u64,
}

const POSITION_BITS: u32 = 16;
const _: () =
    assert!(bindery_types::ENSEMBLE_SIZE_MAX <= 1 << POSITION_BITS, "a position fits its bits of a tag");

/// An entry to be sent to the bookie at a position of the ensemble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Send {
    pub position: usize,
    pub entry: EntryId,
    pub body: Bytes,
    pub tag: AddTag,
}

#[cfg_attr(test, derive(Clone, Debug))]
struct Slot {
    body: Bytes,
    /// What it gives back to the budget.
    cost_bytes: u64,
    payload_bytes: u32,
    /// Bit i: the bookie now at the i-th position of the write set has it.
    acked: u64,
    /// Bit i: that bookie was sent it and has not answered.
    waiting: u64,
    /// Bit i: that bookie has it, as it said too late to be counted. It confirms nothing (invariant 5).
    late: u64,
    /// Bookies that have it, as they said when they had another position, or had not joined again. They confirm nothing either.
    former: Vec<BookieId>,
    /// Enough bookies have it that those which do not are behind ([`AddWindow::held_back`]).
    is_ahead: bool,
}

/// The members of a segment that ended, while its entries are in the window.
#[cfg_attr(test, derive(Clone, Debug))]
struct Former {
    ensemble: Vec<BookieId>,
    since: Vec<u64>,
    /// The first entry behind the segment.
    until: i64,
}

/// See the module.
#[cfg_attr(test, derive(Clone, Debug))]
pub(crate) struct AddWindow {
    quorum: Quorum,
    ensemble: Vec<BookieId>,
    /// The change that brought the bookie to each position; answers to what was sent before it are not its own.
    since: Vec<u64>,
    /// The bookie of each tag there was: one for each that joined.
    bookies: BTreeMap<u64, BookieId>,
    /// Numbers bookies that joined.
    changes: u64,
    /// Ascending.
    former: VecDeque<Former>,
    /// Positions that get nothing: being replaced, or given up.
    is_held: Vec<bool>,
    first: i64,
    slots: VecDeque<Slot>,
    /// The last confirmed entry, -1 for none.
    confirmed: i64,
    confirmed_payload_bytes: u64,
    /// Positions to be replaced now, and why.
    failed: BTreeMap<usize, BookieError>,
    /// Those that can wait (invariant 4).
    delayed: BTreeMap<usize, BookieError>,
    /// The change under way.
    replacing: Option<BTreeMap<usize, BookieError>>,
    is_stopped: bool,
    /// Cost of the slots that are ahead.
    ahead_bytes: u64,
    /// What was acknowledged by position, since it was asked last.
    acked_bytes: Vec<u64>,
    canaries: Canaries,
}

/// What an answer means beyond an ack or a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It was counted, or it was late and did not count.
    Noted,
    /// The bookie at this position refuses this client for good, or the client is closed.
    Fatal(usize),
}

impl AddWindow {
    /// Nothing under way; `confirmed` is the last add confirmed (LAC) so far. It is below the highest entry id, because a segment may
    /// begin behind it. Callers ensure this: [`EntryCodec`](crate::entry::EntryCodec) refuses a higher LAC, and the beginning of a
    /// segment or of the next writer is an entry id itself.
    pub fn new(quorum: Quorum, ensemble: Vec<BookieId>, confirmed: Option<EntryId>) -> AddWindow {
        assert!(quorum.write_quorum_size() <= WRITE_QUORUM_SIZE_MAX, "one bit per replica");
        assert_eq!(ensemble.len(), quorum.ensemble_size(), "a whole ensemble");
        assert!(confirmed < Some(EntryId::MAX), "an entry can follow what is confirmed");
        let mut window = AddWindow {
            since: vec![0; ensemble.len()],
            bookies: BTreeMap::new(),
            is_held: vec![false; ensemble.len()],
            acked_bytes: vec![0; ensemble.len()],
            quorum,
            ensemble,
            changes: 0,
            former: VecDeque::new(),
            first: EntryId::to_wire(confirmed) + 1,
            slots: VecDeque::new(),
            confirmed: EntryId::to_wire(confirmed),
            confirmed_payload_bytes: 0,
            failed: BTreeMap::new(),
            delayed: BTreeMap::new(),
            replacing: None,
            is_stopped: false,
            ahead_bytes: 0,
            canaries: Canaries::none(),
        };
        window.note_bookies();
        window
    }

    fn note_bookies(&mut self) {
        for (position, bookie) in self.ensemble.iter().enumerate() {
            self.bookies.entry(self.tag(position).0).or_insert_with(|| bookie.clone());
        }
    }

    /// The bookie that was sent something under a tag.
    pub fn bookie_of(&self, tag: AddTag) -> Option<&BookieId> {
        self.bookies.get(&tag.0)
    }

    /// The same, with a planted bug.
    #[cfg(test)]
    pub fn plant(&mut self, canaries: Canaries) {
        self.canaries = canaries;
    }

    /// The same, told from an earlier window of the ledger: answers to what that one sent are not counted here.
    pub fn following(mut self, earlier: &AddWindow) -> AddWindow {
        self.changes = earlier.changes + 1;
        self.since.fill(self.changes);
        self.bookies.clear();
        self.note_bookies();
        self
    }

    pub fn quorum(&self) -> Quorum {
        self.quorum
    }

    pub fn ensemble(&self) -> &[BookieId] {
        &self.ensemble
    }

    /// How many changes were finished.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub fn confirmed(&self) -> Option<EntryId> {
        EntryId::new(self.confirmed)
    }

    /// Payloads of the entries confirmed since the start.
    pub fn confirmed_payload_bytes(&self) -> u64 {
        self.confirmed_payload_bytes
    }

    /// The id that the next entry gets; `None` when ids are used up.
    pub fn next(&self) -> Option<EntryId> {
        let next = self.first.checked_add(self.slots.len() as i64)?;
        // The next one after it must exist, too: the start of a segment is the LAC + 1.
        if next == i64::MAX { None } else { EntryId::new(next) }
    }

    /// The last entry pushed, or confirmed at the start.
    pub fn last_pushed(&self) -> Option<EntryId> {
        EntryId::new(self.first + self.slots.len() as i64 - 1)
    }

    pub fn has_unconfirmed(&self) -> bool {
        self.last_pushed() > self.confirmed()
    }

    pub fn unconfirmed_count(&self) -> usize {
        (EntryId::to_wire(self.last_pushed()) - self.confirmed) as usize
    }

    /// Whether positions failed and no change is under way for them yet.
    pub fn wants_change(&self) -> bool {
        !self.is_stopped && self.replacing.is_none() && !self.failed.is_empty()
    }

    /// Nothing is confirmed any more.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether nothing is confirmed until a change is complete, which is under way or begins as soon as it can.
    pub fn awaits_change(&self) -> bool {
        !self.is_stopped && (self.replacing.is_some() || !self.failed.is_empty())
    }

    fn is_frozen(&self) -> bool {
        self.is_stopped || self.awaits_change()
    }

    /// The position that a tag is for.
    pub fn position_of(tag: AddTag) -> usize {
        (tag.0 & ((1 << POSITION_BITS) - 1)) as usize
    }

    fn tag(&self, position: usize) -> AddTag {
        tag_of(position, self.since[position])
    }

    /// The ensemble of an entry in the window, and since when each position has its bookie.
    fn members_of(&self, entry: i64) -> (&[BookieId], &[u64]) {
        match self.former.iter().find(|former| entry < former.until) {
            Some(former) => (&former.ensemble, &former.since),
            None => (&self.ensemble, &self.since),
        }
    }

    /// Whether every replica of every entry answered, or was given up.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes the next entry and sends it to its write set.
    pub fn push(&mut self, body: Bytes, payload_bytes: u32, cost_bytes: u64, out: &mut Vec<Send>) -> EntryId {
        let entry = self.next().expect("callers ask for the next id first");
        assert!(!self.is_stopped, "a stopped writer takes no entries");
        if !self.delayed.is_empty() {
            let delayed = std::mem::take(&mut self.delayed);
            self.failed.extend(delayed);
        }
        let mut waiting = 0;
        for (offset, position) in self.quorum.write_set(entry).enumerate() {
            // Nothing to one that failed before it is decided what becomes of it: it would have this entry and lack others.
            if !self.is_held[position] && !self.failed.contains_key(&position) {
                waiting |= 1 << offset;
                out.push(Send { position, entry, body: body.clone(), tag: self.tag(position) });
            }
        }
        let slot = Slot {
            body,
            cost_bytes,
            payload_bytes,
            acked: 0,
            waiting,
            late: 0,
            former: Vec::new(),
            is_ahead: false,
        };
        self.slots.push_back(slot);
        entry
    }

    /// Counts an answer.
    pub fn on_answer(&mut self, entry: EntryId, tag: AddTag, result: &Result<(), BookieError>) -> Heard {
        let position = AddWindow::position_of(tag);
        // Invariant 1: what was sent to a predecessor says nothing about this position.
        let is_late = tag.0 >> POSITION_BITS != self.since.get(position).copied().unwrap_or(u64::MAX);
        if position >= self.ensemble.len() || is_late && !self.canaries.has(Canary::M18ReplacedAckCounts) {
            if result.is_ok() {
                self.note_late(entry, tag);
            }
            return Heard::Noted;
        }
        let Some(index) = entry.get().checked_sub(self.first).and_then(|index| usize::try_from(index).ok())
        else {
            return Heard::Noted;
        };
        let size = self.ensemble.len();
        let start = (entry.get().unsigned_abs() % size as u64) as usize;
        let offset = (position + size - start) % size;
        let ahead_from = self.ahead_from();
        let Some(slot) = self.slots.get_mut(index) else { return Heard::Noted };
        if offset >= self.quorum.write_quorum_size() || slot.waiting & (1 << offset) == 0 {
            if result.is_ok() {
                self.note_late(entry, tag);
            }
            return Heard::Noted;
        }
        slot.waiting &= !(1 << offset);
        let error = match result {
            Ok(()) => {
                slot.acked |= 1 << offset;
                self.acked_bytes[position] += slot.cost_bytes;
                if !slot.is_ahead && slot.acked.count_ones() as usize >= ahead_from {
                    slot.is_ahead = true;
                    self.ahead_bytes += slot.cost_bytes;
                }
                return Heard::Noted;
            }
            Err(error) => error,
        };
        if is_fatal(error) {
            return Heard::Fatal(position);
        }
        let is_complete = slot.acked.count_ones() as usize >= self.quorum.ack_quorum_size();
        if is_complete || entry.get() <= self.confirmed {
            self.delayed.entry(position).or_insert_with(|| error.clone());
        } else {
            self.failed.entry(position).or_insert_with(|| error.clone());
        }
        Heard::Noted
    }

    /// A bookie answers late, or after its replacement, that it has an entry of whose write set it was a member.
    fn note_late(&mut self, entry: EntryId, tag: AddTag) {
        let position = AddWindow::position_of(tag);
        let (_, since) = self.members_of(entry.get());
        let is_member = since.get(position) == Some(&(tag.0 >> POSITION_BITS));
        let mut write_set = self.quorum.write_set(entry);
        let index = entry.get().checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if !is_member {
            if let Some(slot) = index.and_then(|index| self.slots.get_mut(index))
                && let Some(bookie) = self.bookies.get(&tag.0)
                && !slot.former.contains(bookie)
            {
                slot.former.push(bookie.clone());
            }
            return;
        }
        if let Some(offset) = write_set.position(|member| member == position)
            && let Some(slot) = index.and_then(|index| self.slots.get_mut(index))
        {
            slot.late |= 1 << offset;
        }
    }

    /// Confirms what is complete, in order (invariant 2); whether anything was.
    pub fn advance(&mut self) -> bool {
        if self.is_frozen() {
            return false;
        }
        let before = self.confirmed;
        while let Some(slot) = self.slots.get((self.confirmed + 1 - self.first) as usize) {
            if (slot.acked.count_ones() as usize) < self.quorum.ack_quorum_size() {
                break;
            }
            self.confirmed_payload_bytes += u64::from(slot.payload_bytes);
            self.confirmed += 1;
        }
        self.confirmed > before
    }

    /// With so many acks an entry is ahead of the bookies that have not acknowledged it: an ack quorum has it, or all
    /// others have.
    fn ahead_from(&self) -> usize {
        self.quorum.ack_quorum_size().min(self.quorum.write_quorum_size() - 1).max(1)
    }

    /// Puts the bookies that hold others back into `behind`, by position, and returns how many bytes: the oldest entry waits
    /// for none but them, and so much was acknowledged by enough others and is kept until they answer. No positions when
    /// nobody is behind.
    pub fn held_back(&self, behind: &mut Vec<usize>) -> u64 {
        behind.clear();
        match self.slots.front() {
            Some(slot) if slot.is_ahead && slot.waiting != 0 => {
                let entry = EntryId::new(self.first).expect("entries are not negative");
                let members = self.quorum.write_set(entry).enumerate();
                let waited_for = members.filter(|(offset, _)| slot.waiting & (1 << offset) != 0);
                behind.extend(waited_for.map(|(_, position)| position));
                self.ahead_bytes
            }
            Some(_) | None => 0,
        }
    }

    /// Bytes that the bookie at a position acknowledged since the last call: how fast it is.
    pub fn take_acked_bytes(&mut self, position: usize) -> u64 {
        std::mem::take(&mut self.acked_bytes[position])
    }

    /// Whether each write set has an ack quorum of usable positions (invariant 5).
    pub fn keeps_quorum(&self, is_usable: impl Fn(usize) -> bool) -> bool {
        let (size, write_quorum_size) = (self.ensemble.len(), self.quorum.write_quorum_size());
        (0..size).all(|start| {
            let members = (start..start + write_quorum_size).map(|position| position % size);
            members.filter(|&position| is_usable(position)).count() >= self.quorum.ack_quorum_size()
        })
    }

    /// Whether these positions can be held besides those that are.
    pub fn can_hold(&self, more: impl Fn(usize) -> bool) -> bool {
        self.keeps_quorum(|position| !self.is_held[position] && !more(position))
    }

    /// Stops sending to a position, and waiting for it, outside of a change (invariant 5).
    pub fn hold(&mut self, position: usize) {
        assert!(self.replacing.is_none(), "not while the ensemble changes");
        assert!(self.can_hold(|other| other == position), "an ack quorum is left (IC1)");
        self.is_held[position] = true;
        self.failed.remove(&position);
        self.delayed.remove(&position);
        self.stop_waiting(|other| other == position);
    }

    fn stop_waiting(&mut self, is_given_up: impl Fn(usize) -> bool) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let entry = EntryId::new(self.first + index as i64).expect("entries are not negative");
            for (offset, position) in self.quorum.write_set(entry).enumerate() {
                if is_given_up(position) {
                    slot.waiting &= !(1 << offset);
                }
            }
        }
    }

    /// Lets go of entries that need no more answers (invariant 3); returns the bytes given back. The caller drops the
    /// bodies; confirmed entries that a member has not acknowledged are in `lacks` as well (invariant 6).
    pub fn release(&mut self, let_go: &mut Vec<Bytes>, lacks: &mut Vec<Lack>) -> u64 {
        let mut cost_bytes = 0;
        while let Some(slot) = self.slots.front() {
            if slot.waiting != 0 || (self.first > self.confirmed && !self.is_stopped) {
                break;
            }
            let has_it = (slot.acked | slot.late).count_ones() as usize;
            if self.first <= self.confirmed && has_it < self.quorum.write_quorum_size() {
                self.put_lacks(lacks);
            }
            let Some(slot) = self.slots.pop_front() else { break };
            cost_bytes += slot.cost_bytes;
            self.first += 1;
            if slot.is_ahead {
                self.ahead_bytes -= slot.cost_bytes;
            }
            let_go.push(slot.body);
        }
        while self.former.front().is_some_and(|former| former.until <= self.first) {
            self.former.pop_front();
        }
        cost_bytes
    }

    /// Of the first entry.
    fn put_lacks(&self, lacks: &mut Vec<Lack>) {
        let Some(slot) = self.slots.front() else { return };
        let entry = EntryId::new(self.first).expect("entries are not negative");
        let (ensemble, since) = self.members_of(self.first);
        for (offset, position) in self.quorum.write_set(entry).enumerate() {
            let has_it =
                (slot.acked | slot.late) & (1 << offset) != 0 || slot.former.contains(&ensemble[position]);
            if !has_it {
                let (bookie, body) = (ensemble[position].clone(), slot.body.clone());
                let (tag, cost_bytes) = (tag_of(position, since[position]), slot.cost_bytes);
                lacks.push(Lack { tag, bookie, entry, body, cost_bytes });
            }
        }
    }

    /// Bookies that have not answered yet.
    pub fn waited_for(&self) -> BTreeSet<BookieId> {
        let mut positions = BTreeSet::new();
        for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.waiting != 0) {
            let entry = EntryId::new(self.first + index as i64).expect("entries are not negative");
            let write_set = self.quorum.write_set(entry).enumerate();
            positions.extend(
                write_set
                    .filter(|(offset, _)| slot.waiting & (1 << offset) != 0)
                    .map(|(_, position)| position),
            );
        }
        // A position that has another bookie since expects no answer.
        positions.into_iter().map(|position| self.ensemble[position].clone()).collect()
    }

    /// Stops waiting for answers: the writer ends.
    pub fn give_up_rest(&mut self) {
        self.stop_waiting(|_| true);
    }

    /// Begins an ensemble change: from now on the failed positions get nothing and answers of their bookies are not
    /// waited for.
    pub fn begin_change(&mut self) {
        assert!(self.wants_change(), "one change at a time, and only for a reason (IC11)");
        let mut replacing = std::mem::take(&mut self.failed);
        replacing.extend(std::mem::take(&mut self.delayed));
        self.begin(replacing);
    }

    /// Begins a change for positions that are held already, or that are slow: for them a replacement is at hand, which
    /// those that failed for complete entries lack. They wait on (invariant 4).
    pub fn begin_change_of(&mut self, replacing: BTreeMap<usize, BookieError>) {
        assert!(self.replacing.is_none() && self.failed.is_empty(), "one change at a time (IC11)");
        self.delayed.retain(|position, _| !replacing.contains_key(position));
        self.begin(replacing);
    }

    fn begin(&mut self, replacing: BTreeMap<usize, BookieError>) {
        for &position in replacing.keys() {
            self.is_held[position] = true;
        }
        self.stop_waiting(|position| replacing.contains_key(&position));
        self.replacing = Some(replacing);
    }

    /// The positions being replaced, and why.
    pub fn replacing(&self) -> Option<&BTreeMap<usize, BookieError>> {
        self.replacing.as_ref()
    }

    /// The bookies being replaced, and why.
    pub fn failures(&self) -> BookieAnswers {
        let replacing = self.replacing.iter().flatten();
        let failures = replacing
            .map(|(&position, error)| (self.ensemble[position].clone(), BookieAnswer::Failed(error.clone())));
        BookieAnswers(failures.collect())
    }

    /// Ends the change: `ensemble` is in force. Unconfirmed entries are sent to bookies that joined, and once more to
    /// members that failed and stay, where they may succeed now; those are held instead with `gives_up_rest`.
    /// `rejoins` are held positions whose bookies are sent to again, from the first unconfirmed entry on.
    pub fn finish_change(
        &mut self,
        ensemble: Vec<BookieId>,
        gives_up_rest: bool,
        rejoins: &BTreeSet<usize>,
        out: &mut Vec<Send>,
    ) {
        let replacing = self.replacing.take().expect("a change is under way");
        assert_eq!(ensemble.len(), self.ensemble.len(), "a whole ensemble");
        if self.first <= self.confirmed && (ensemble != self.ensemble || !rejoins.is_empty()) {
            let (ensemble, since) = (self.ensemble.clone(), self.since.clone());
            self.former.push_back(Former { ensemble, since, until: self.confirmed + 1 });
        }
        self.changes += 1;
        let before = self.ensemble.clone();
        for (position, bookie) in ensemble.into_iter().enumerate() {
            let is_replaced = self.ensemble[position] != bookie;
            assert!(!is_replaced || replacing.contains_key(&position), "only failed positions are replaced");
            if is_replaced {
                self.ensemble[position] = bookie;
                self.since[position] = self.changes;
                self.failed.remove(&position);
                self.delayed.remove(&position);
            }
            let stays_held = gives_up_rest && !is_replaced && replacing.contains_key(&position);
            if rejoins.contains(&position) {
                // Entries sent before the member was held do not wait for it a second time.
                self.is_held[position] = false;
                self.since[position] = self.changes;
                continue;
            }
            if replacing.contains_key(&position) {
                self.is_held[position] = stays_held;
            }
        }
        self.note_bookies();
        let ahead_from = self.ahead_from();
        for index in 0..self.slots.len() {
            let entry = EntryId::new(self.first + index as i64).expect("entries are not negative");
            if entry.get() <= self.confirmed {
                continue;
            }
            for (offset, position) in self.quorum.write_set(entry).enumerate() {
                let tag = self.tag(position);
                let slot = &mut self.slots[index];
                if self.since[position] == self.changes {
                    if (slot.acked | slot.late) & (1 << offset) != 0
                        && !slot.former.contains(&before[position])
                    {
                        slot.former.push(before[position].clone());
                    }
                    // Invariant 1.
                    slot.acked &= !(1 << offset);
                    slot.late &= !(1 << offset);
                    if slot.is_ahead && (slot.acked.count_ones() as usize) < ahead_from {
                        slot.is_ahead = false;
                        self.ahead_bytes -= slot.cost_bytes;
                    }
                }
                if !self.is_held[position] && (slot.acked | slot.waiting) & (1 << offset) == 0 {
                    slot.waiting |= 1 << offset;
                    out.push(Send { position, entry, body: slot.body.clone(), tag });
                }
            }
        }
    }

    /// The first entry that can no longer become complete because positions were given up.
    pub fn hopeless(&self) -> Option<EntryId> {
        let is_hopeless =
            |slot: &Slot| ((slot.acked | slot.waiting).count_ones() as usize) < self.quorum.ack_quorum_size();
        let from = (self.confirmed + 1 - self.first) as usize;
        let index = (from..self.slots.len()).find(|&index| is_hopeless(&self.slots[index]))?;
        EntryId::new(self.first + index as i64)
    }
}

/// Of the bookie that has a position since this change.
fn tag_of(position: usize, since: u64) -> AddTag {
    AddTag(since << POSITION_BITS | position as u64)
}

/// Whether an error ends the writer instead of replacing the bookie (protocol reference, section 7.3).
fn is_fatal(error: &BookieError) -> bool {
    use bindery_wire::ErrorCode;
    matches!(error, BookieError::Refused(ErrorCode::Fenced | ErrorCode::Unauthorized) | BookieError::Closed)
}
