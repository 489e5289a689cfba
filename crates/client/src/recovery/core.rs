//! The recoverer's decisions, without I/O: where a ledger ends whose writer is gone.
//!
//! # Data flow (protocol reference, section 7.5)
//! ```text
//! mark -> fence the last ensemble -> read on from the LAC -> add again -> mark who lacks some -> close
//!         until covered              until an end is sure    in order     as under-replicated       one conditional write
//! ```
//! The event functions return reads and adds; metadata operations are steps that the driver asks for, as with the
//! writer.
//!
//! # Invariants
//! 1. Reads begin after fences cover the last ensemble; each carries the fence and the key (IC5).
//! 2. Known is only the entry with a valid digest, "no such entry" and "no such ledger". An error, silence, or an OK
//!    with bad bytes is unknown, and never means the end; the end takes `Qw - Qa + 1` negatives (IC6).
//! 3. The LAC (last add confirmed) to start from is never below the entry before the last segment (#2615).
//! 4. Everything found is stored on an ack quorum before the ledger is closed, and the ledger never closes below it
//!    (IC15, IC7). Replicas are the bytes that were found, unchanged.
//! 5. Ensembles change in memory only and are published by the write that closes the ledger (IC12). When a conflict
//!    shows that somebody else closed it, that is the result (IC8, IC13, IC14).
//! 6. A LAC inside an entry was confirmed, whether the entry is as its writer sent it or was packed again by re-replication
//!    (`entry`, invariant 3), so the ledger never closes below it. Where the fence finds it, reads begin behind it. Found
//!    later, in any copy that arrives before the end is found, it vetoes an end below it: bookies that lack what is confirmed
//!    have lost it.
//! 7. Entries that are added again begin a segment. A bookie may lack entries that the writer confirmed before and take
//!    these, and a gap is to end where a segment does (IC23, `gaps`). Only the writer knew of such a gap, and its mark may be
//!    gone.
//! 8. The recovery waits a while for the answers of all replicas. Before the ledger is closed it is marked as
//!    under-replicated on the bookies that lack entries which were added again. A mark that cannot be made does not keep it
//!    open.
//!
//! # Limits     [`READ_AHEAD_ENTRIES`] entries being read, [`ADDS_ENTRIES_MAX`] or [`ADDS_BYTES_MAX`] being added,
//! [`RESTARTS_MAX`] changes by others

use std::collections::{BTreeSet, VecDeque};

use bindery_io::canary::{Canaries, Canary};
use bindery_metadata::layout::{LedgerError, StoredLedger};
use bindery_metadata::store::Version;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Quorum};
use bindery_wire::ErrorCode;
use bytes::Bytes;

use crate::entry::{Entry, EntryCodec};
use crate::error::{BookieAnswer, BookieAnswers, NotEnoughBookies, RecoveryError};
use crate::gaps::Gaps;
use crate::handover::Handover;
use crate::metadata_edit::{that_fits, with_ensemble, with_replacements};
use crate::transport::{AddTag, BookieError};
use crate::window::{AddWindow, Heard, Send};
use crate::writer::core::{CHANGES_IN_A_ROW_MAX, Step};

/// How many entries to read at a time.
pub(crate) const READ_AHEAD_ENTRIES: usize = 16;

/// How many entries may wait for acks while more are read.
pub(crate) const ADDS_ENTRIES_MAX: usize = 256;

/// And how many bytes of them.
pub(crate) const ADDS_BYTES_MAX: u64 = 16 << 20;

/// How often the metadata may change under a recovery before it gives up.
pub(crate) const RESTARTS_MAX: u32 = 32;

/// A read of a bookie, to be sent with the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecoveryRead {
    pub bookie: BookieId,
    /// `None`: its last entry.
    pub entry: Option<EntryId>,
    /// Invariant 1: always.
    pub fences: bool,
    pub tag: ReadTag,
}

/// Which read an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadTag {
    /// Answers of an earlier attempt are ignored.
    attempt: u32,
    what: What,
    /// Of the ensemble, or of the write set.
    index: usize,
}

#[cfg(test)]
impl ReadTag {
    pub fn attempt(self) -> u32 {
        self.attempt
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Fence,
    Entry(EntryId),
    Length,
}

/// What events lead to.
#[derive(Default)]
pub(crate) struct Out {
    pub reads: Vec<RecoveryRead>,
    pub sends: Vec<Send>,
}

/// How a recovery ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// In state closed.
    pub metadata: LedgerMetadata,
    pub version: Version,
}

/// One entry being read from its write set.
#[cfg_attr(test, derive(Clone, Debug))]
struct Reading {
    entry: EntryId,
    /// By index in the write set.
    answers: Vec<Option<BookieAnswer>>,
    found: Option<(Entry, Bytes)>,
}

#[cfg_attr(test, derive(Clone, Debug))]
enum Phase {
    Marking,
    /// By position of the last ensemble.
    Fencing(Vec<Option<BookieAnswer>>),
    Reading {
        reads: VecDeque<Reading>,
        /// Negatives made this the end: nothing behind it is read.
        is_end_found: bool,
    },
    /// Asking for the last entry's length, because nothing was found behind it.
    Measuring {
        answers: Vec<Option<BookieAnswer>>,
    },
    /// Marked as under-replicated first, if bookies lack something.
    Closing(LedgerState),
}

#[cfg_attr(test, derive(Clone, Debug))]
enum MetadataPhase {
    Idle,
    Placing,
    /// Mark the bookies that lack entries.
    Marking,
    /// Write what the phase calls for: that the ledger is in recovery, or the end.
    Writing,
    Reading,
}

/// See the module.
#[cfg_attr(test, derive(Clone, Debug))]
pub(crate) struct RecoveryCore {
    ledger: LedgerId,
    codec: EntryCodec,
    attempt: u32,
    /// As read or written last.
    stored: LedgerMetadata,
    version: Version,
    /// With the ensembles changed in memory.
    changed: LedgerMetadata,
    phase: Phase,
    metadata_phase: MetadataPhase,
    window: AddWindow,
    adds_bytes: u64,
    /// Entries that were added again and that bookies lack.
    gaps: Gaps,
    /// It waits for late answers (invariant 8).
    is_patient: bool,
    lac: Option<EntryId>,
    /// The largest LAC inside an entry that was found while reading on (invariant 6).
    lac_found: Option<EntryId>,
    /// Length up to an entry, from the entry with the highest id seen at or below the LAC.
    length_at: Option<(EntryId, u64)>,
    /// The last entry found, and the length with it.
    recovered: Option<(EntryId, u64)>,
    changes_in_a_row: u32,
    suspects: BTreeSet<BookieId>,
    /// Members that failed and have no replacement.
    given_up: BookieAnswers,
    /// How many bookies were read-only at the last search for a replacement.
    read_only: usize,
    result: Option<Result<Recovered, RecoveryError>>,
    read_ahead_entries: usize,
    canaries: Canaries,
}

impl RecoveryCore {
    /// Starts from metadata just read.
    pub fn new(ledger: LedgerId, codec: EntryCodec, stored: StoredLedger, out: &mut Out) -> RecoveryCore {
        RecoveryCore::planted(ledger, codec, stored, READ_AHEAD_ENTRIES, Canaries::none(), out)
    }

    /// The same with a bound for the entries being read, and perhaps with a planted bug.
    pub fn planted(
        ledger: LedgerId,
        codec: EntryCodec,
        stored: StoredLedger,
        read_ahead_entries: usize,
        canaries: Canaries,
        out: &mut Out,
    ) -> RecoveryCore {
        let StoredLedger { metadata, version, .. } = stored;
        let window =
            AddWindow::new(metadata.quorum, vec![placeholder(); metadata.quorum.ensemble_size()], None);
        let mut core = RecoveryCore {
            ledger,
            codec,
            attempt: 0,
            changed: metadata.clone(),
            stored: metadata,
            version,
            phase: Phase::Marking,
            metadata_phase: MetadataPhase::Idle,
            gaps: Gaps::new(window.quorum()),
            is_patient: true,
            window,
            adds_bytes: 0,
            lac: None,
            lac_found: None,
            length_at: None,
            recovered: None,
            changes_in_a_row: 0,
            suspects: BTreeSet::new(),
            given_up: BookieAnswers::default(),
            read_only: 0,
            result: None,
            read_ahead_entries,
            canaries,
        };
        core.begin(out);
        core
    }

    /// The end, once it is reached.
    pub fn result(&self) -> Option<&Result<Recovered, RecoveryError>> {
        self.result.as_ref()
    }

    pub fn ensemble(&self) -> &[BookieId] {
        self.window.ensemble()
    }

    /// The last entry that it took for confirmed.
    #[cfg(test)]
    pub fn floor(&self) -> Option<EntryId> {
        self.lac
    }

    /// The metadata that it goes by.
    #[cfg(test)]
    pub fn stored(&self) -> &LedgerMetadata {
        &self.stored
    }

    fn begin(&mut self, out: &mut Out) {
        self.attempt += 1;
        if self.attempt > RESTARTS_MAX {
            return self.fail(RecoveryError::MetadataChanging(self.ledger));
        }
        self.changed = self.stored.clone();
        self.recovered = None;
        self.metadata_phase = MetadataPhase::Idle;
        match self.stored.state {
            LedgerState::Closed { .. } => self.succeed(),
            LedgerState::Open => {
                self.phase = Phase::Marking;
                self.metadata_phase = MetadataPhase::Writing;
            }
            LedgerState::InRecovery => self.fence(out),
        }
    }

    fn fail(&mut self, error: RecoveryError) {
        self.metadata_phase = MetadataPhase::Idle;
        self.window.stop();
        self.result.get_or_insert(Err(error));
    }

    fn succeed(&mut self) {
        self.metadata_phase = MetadataPhase::Idle;
        let recovered = Recovered { metadata: self.stored.clone(), version: self.version };
        self.result.get_or_insert(Ok(recovered));
    }

    fn fence(&mut self, out: &mut Out) {
        let Some(last) = self.stored.segments().last() else {
            return self.close(None, 0);
        };
        // Invariant 3.
        self.lac = match self.canaries.has(Canary::M32BeginsBelowSegment) {
            true => None,
            false => EntryId::new(last.first_entry.get() - 1),
        };
        self.lac_found = None;
        self.length_at = None;
        if let Some(Ok(Handover::Idle { next, length_bytes, .. })) = Handover::of(&self.stored)
            && let Some(entry) = EntryId::new(next.get() - 1)
        {
            // What its last writer had confirmed when it left.
            self.lac = self.lac.max(Some(entry));
            self.length_at = Some((entry, length_bytes));
        }
        self.phase = Phase::Fencing(vec![None; last.ensemble.len()]);
        for (index, bookie) in last.ensemble.iter().enumerate() {
            let tag = ReadTag { attempt: self.attempt, what: What::Fence, index };
            out.reads.push(RecoveryRead { bookie: bookie.clone(), entry: None, fences: true, tag });
        }
    }

    /// Outcome of a read.
    pub fn on_read(&mut self, tag: ReadTag, result: Result<Bytes, BookieError>, out: &mut Out) {
        if self.result.is_some() || tag.attempt != self.attempt {
            return;
        }
        let bookie = self.bookie_of(tag);
        if result == Err(BookieError::Refused(ErrorCode::Unauthorized)) {
            return self.fail(RecoveryError::Unauthorized { ledger: self.ledger, bookie });
        }
        let expected = match tag.what {
            What::Fence => None,
            What::Entry(entry) => Some(entry),
            What::Length => self.lac,
        };
        // Invariant 2.
        let (answer, found) = match result {
            Ok(stored) => match self.codec.open(expected, &stored) {
                Some(entry) => (BookieAnswer::Answered, Some((entry, stored))),
                None => (BookieAnswer::Damaged, None),
            },
            Err(BookieError::Refused(ErrorCode::NoEntry | ErrorCode::NoLedger)) => {
                (BookieAnswer::Absent, None)
            }
            Err(BookieError::TimedOut(_)) if self.canaries.has(Canary::M15TimeoutIsNegative) => {
                (BookieAnswer::Absent, None)
            }
            Err(BookieError::Refused(ErrorCode::UnknownLedgerState))
                if self.canaries.has(Canary::M34LimboIsNegative) =>
            {
                (BookieAnswer::Absent, None)
            }
            Err(error) => (BookieAnswer::Failed(error), None),
        };
        match tag.what {
            What::Fence => self.on_fenced(tag.index, answer, found.map(|(entry, _)| entry), out),
            What::Entry(entry) => self.on_entry(entry, tag.index, answer, found, out),
            What::Length => self.on_length(tag.index, answer, found.map(|(entry, _)| entry), out),
        }
    }

    fn bookie_of(&self, tag: ReadTag) -> BookieId {
        let write_set = |entry: Option<EntryId>| {
            entry.and_then(|entry| self.stored.write_set(entry).nth(tag.index).cloned())
        };
        let bookie = match tag.what {
            What::Fence => self.stored.segments().last().map(|last| last.ensemble[tag.index].clone()),
            What::Entry(entry) => write_set(Some(entry)),
            What::Length => write_set(self.lac),
        };
        bookie.expect("a tag was made from the metadata it is looked up in")
    }

    fn on_fenced(&mut self, index: usize, answer: BookieAnswer, last: Option<Entry>, out: &mut Out) {
        let Phase::Fencing(answers) = &mut self.phase else { return };
        answers[index] = Some(answer);
        if let Some(entry) = last {
            // The LAC inside, not the entry itself: that is read again from its whole write set.
            self.lac = self.lac.max(entry.last_add_confirmed);
            let seen = (entry.id, entry.length_bytes);
            if Some(entry.id) <= self.lac && self.length_at.is_none_or(|(id, _)| id < entry.id) {
                self.length_at = Some(seen);
            }
        }
        let mut is_known: Vec<bool> = answers
            .iter()
            .map(|answer| matches!(answer, Some(BookieAnswer::Answered | BookieAnswer::Absent)))
            .collect();
        if self.canaries.has(Canary::M14CoverageOffByOne)
            && let Some(unknown) = is_known.iter_mut().find(|is_known| !**is_known)
        {
            *unknown = true;
        }
        if self.stored.quorum.is_covered(&is_known) {
            let last = self.stored.segments().last().expect("its ensemble was fenced");
            self.window =
                AddWindow::new(self.stored.quorum, last.ensemble.clone(), self.lac).following(&self.window);
            self.adds_bytes = 0;
            self.gaps = Gaps::new(self.stored.quorum);
            self.is_patient = true;
            self.changes_in_a_row = 0;
            self.given_up = BookieAnswers::default();
            self.phase = Phase::Reading { reads: VecDeque::new(), is_end_found: false };
            return self.settle(out);
        }
        if answers.iter().all(Option::is_some) {
            let ensemble = &self.stored.segments().last().expect("its ensemble was fenced").ensemble;
            let answers = named(ensemble.iter(), answers);
            self.fail(RecoveryError::NotCovered { ledger: self.ledger, answers });
        }
    }

    /// Asks for more entries, as far as limits allow.
    fn read_on(&mut self, out: &mut Out) {
        let Phase::Reading { reads, is_end_found } = &mut self.phase else { return };
        while !*is_end_found
            && reads.len() < self.read_ahead_entries
            && self.window.unconfirmed_count() + reads.len() < ADDS_ENTRIES_MAX
            && self.adds_bytes < ADDS_BYTES_MAX
        {
            // `None` behind the last entry that there can be.
            let next = match reads.back() {
                Some(read) => {
                    read.entry.get().checked_add(1).filter(|next| *next < i64::MAX).and_then(EntryId::new)
                }
                None => self.window.next(),
            };
            let Some(entry) = next else { return };
            let mut answers = Vec::new();
            for (index, bookie) in self.stored.write_set(entry).enumerate() {
                let tag = ReadTag { attempt: self.attempt, what: What::Entry(entry), index };
                let fences = !self.canaries.has(Canary::M16ReadsWithoutFence);
                out.reads.push(RecoveryRead { bookie: bookie.clone(), entry: Some(entry), fences, tag });
                answers.push(None);
            }
            reads.push_back(Reading { entry, answers, found: None });
        }
    }

    fn on_entry(
        &mut self,
        entry: EntryId,
        index: usize,
        answer: BookieAnswer,
        found: Option<(Entry, Bytes)>,
        out: &mut Out,
    ) {
        let Phase::Reading { reads, is_end_found } = &mut self.phase else { return };
        // Also of a copy that is not needed, and of an entry that is not decided yet.
        if let Some((found, _)) = &found
            && !*is_end_found
        {
            self.lac_found = self.lac_found.max(found.last_add_confirmed);
        }
        // Decided entries have left the queue.
        let Some(read) = reads.iter_mut().find(|read| read.entry == entry) else { return };
        read.answers[index] = Some(answer);
        if read.found.is_none() {
            read.found = found;
        }
        self.decide(out);
    }

    /// Takes entries from the front of the queue as far as it is known whether they exist.
    fn decide(&mut self, out: &mut Out) {
        let quorum = self.stored.quorum;
        let negatives_needed = quorum.write_quorum_size() - quorum.ack_quorum_size() + 1;
        loop {
            let Phase::Reading { reads, is_end_found } = &mut self.phase else { return };
            let Some(read) = reads.front_mut() else { break };
            let absent = read.answers.iter().flatten().filter(|answer| **answer == BookieAnswer::Absent);
            let absent = absent.count();
            // Invariant 6.
            let may_be_end = Some(read.entry) > self.lac_found;
            if let Some((found, stored)) = read.found.take() {
                reads.pop_front();
                let begins_below = self.canaries.has(Canary::M32BeginsBelowSegment)
                    && self.changed.segments().last().is_some_and(|last| found.id < last.first_entry);
                let is_planted = self.canaries.has(Canary::M39RecoversIntoTheSegment) || begins_below;
                if self.recovered.is_none() && !is_planted {
                    // Invariant 7.
                    self.changed = with_ensemble(&self.changed, found.id, self.window.ensemble().to_vec());
                }
                self.recovered = Some((found.id, found.length_bytes));
                let payload_bytes = u32::try_from(found.payload.len()).expect("entries fit a frame");
                let cost_bytes = stored.len() as u64;
                self.adds_bytes += cost_bytes;
                assert_eq!(
                    self.window.next(),
                    Some(found.id),
                    "entries are recovered in order, none skipped"
                );
                self.window.push(stored, payload_bytes, cost_bytes, &mut out.sends);
            } else if absent >= negatives_needed && may_be_end {
                reads.clear();
                *is_end_found = true;
            } else if read.answers.iter().all(Option::is_some) {
                let (entry, answers) = (read.entry, std::mem::take(&mut read.answers));
                let answers = named(self.stored.write_set(entry), &answers);
                return self.fail(RecoveryError::EntryUnknown { ledger: self.ledger, entry, answers });
            } else {
                break;
            }
        }
        self.settle(out);
    }

    /// Counts an answer to a recovery add. Follow a batch of them with [`settle`](Self::settle).
    pub fn on_answer(&mut self, entry: EntryId, tag: AddTag, result: &Result<(), BookieError>) {
        if result.is_ok() && matches!(self.phase, Phase::Reading { .. }) {
            // Perhaps a late one, of an entry that is complete.
            if let Some(bookie) = self.window.bookie_of(tag) {
                self.gaps.fill_of(bookie, entry);
            }
        }
        if let Heard::Fatal(position) = self.window.on_answer(entry, tag, result)
            && self.result.is_none()
        {
            let bookie = self.ensemble()[position].clone();
            self.fail(match result {
                // A recovery add is never refused as fenced: the bookie does not know the flag, or the client closed.
                Err(BookieError::Refused(ErrorCode::Unauthorized)) => {
                    RecoveryError::Unauthorized { ledger: self.ledger, bookie }
                }
                Ok(()) | Err(_) => {
                    let error = result.clone().err().map_or(BookieAnswer::Answered, BookieAnswer::Failed);
                    let answers = BookieAnswers(vec![(bookie, error)]);
                    RecoveryError::EntryUnknown { ledger: self.ledger, entry, answers }
                }
            });
        }
    }

    /// Goes on as far as acks allow.
    pub fn settle(&mut self, out: &mut Out) {
        self.release();
        if self.result.is_some() {
            return;
        }
        if self.window.advance() {
            self.changes_in_a_row = 0;
            self.release();
        }
        if self.window.wants_change() && matches!(self.metadata_phase, MetadataPhase::Idle) {
            self.window.begin_change();
            self.changes_in_a_row += 1;
            let failed = self.window.failures();
            self.suspects.extend(failed.0.iter().map(|(bookie, _)| bookie.clone()));
            self.metadata_phase = MetadataPhase::Placing;
            if self.changes_in_a_row > CHANGES_IN_A_ROW_MAX {
                return self.fail_adds(0, failed);
            }
        }
        if matches!(self.metadata_phase, MetadataPhase::Idle) && self.window.hopeless().is_some() {
            let given_up = self.given_up.clone();
            return self.fail_adds(0, given_up);
        }
        let Phase::Reading { reads, is_end_found } = &self.phase else { return };
        // When ids are used up there is nothing more to read.
        let is_end_found = *is_end_found || reads.is_empty() && self.window.next().is_none();
        // Invariant 4.
        if is_end_found && !self.window.has_unconfirmed() {
            if self.is_lingering() {
                return;
            }
            self.window.give_up_rest();
            self.release();
            match (self.recovered, self.lac, self.length_at) {
                (Some((last, length_bytes)), _, _) => self.close(Some(last), length_bytes),
                (None, None, _) => self.close(None, 0),
                (None, Some(lac), Some((entry, length_bytes))) if lac == entry => {
                    self.close(Some(lac), length_bytes);
                }
                (None, Some(lac), _) => self.measure(lac, out),
            }
        } else {
            self.read_on(out);
        }
    }

    fn release(&mut self) {
        let mut lacks = Vec::new();
        self.adds_bytes -= self.window.release(&mut Vec::new(), &mut lacks);
        for lack in &lacks {
            self.gaps.add(lack);
        }
    }

    /// Whether the ledger is closed as soon as the last copies are there, or nobody is [patient](Self::lose_patience) any more.
    pub fn is_lingering(&self) -> bool {
        matches!(self.phase, Phase::Reading { is_end_found: true, .. })
            && matches!(self.metadata_phase, MetadataPhase::Idle)
            && self.result.is_none()
            && self.is_patient
            && !self.window.has_unconfirmed()
            && !self.window.is_empty()
    }

    /// Stops waiting for late answers.
    pub fn lose_patience(&mut self, out: &mut Out) {
        self.is_patient = false;
        self.settle(out);
    }

    fn measure(&mut self, lac: EntryId, out: &mut Out) {
        let mut answers = Vec::new();
        for (index, bookie) in self.stored.write_set(lac).enumerate() {
            let tag = ReadTag { attempt: self.attempt, what: What::Length, index };
            out.reads.push(RecoveryRead { bookie: bookie.clone(), entry: Some(lac), fences: true, tag });
            answers.push(None);
        }
        self.phase = Phase::Measuring { answers };
    }

    fn on_length(&mut self, index: usize, answer: BookieAnswer, found: Option<Entry>, _out: &mut Out) {
        let Phase::Measuring { answers } = &mut self.phase else { return };
        answers[index] = Some(answer);
        let is_last = answers.iter().all(Option::is_some);
        match found {
            Some(entry) => self.close(self.lac, entry.length_bytes),
            // Somebody may have it who cannot say so now: tried again rather than closed with a wrong length.
            None if is_last && answers.iter().flatten().any(|answer| *answer != BookieAnswer::Absent) => {
                let entry = self.lac.expect("only an entry has a length");
                let answers = named(self.stored.write_set(entry), answers);
                self.fail(RecoveryError::EntryUnknown { ledger: self.ledger, entry, answers });
            }
            // Confirmed, and now lost on all of its bookies: it is nevertheless known where the ledger ends.
            None if is_last => {
                tracing::warn!(ledger_id = %self.ledger, entry_id = EntryId::to_wire(self.lac),
                    "cannot read the last entry: closing the ledger with the length as of an earlier entry");
                self.close(self.lac, self.length_at.map_or(0, |(_, length_bytes)| length_bytes));
            }
            None => {}
        }
    }

    fn close(&mut self, last_entry: Option<EntryId>, length_bytes: u64) {
        assert!(last_entry >= self.lac, "a ledger never closes below what is confirmed (IC7)");
        assert!(last_entry >= self.lac_found, "a ledger never closes below what is confirmed (IC7)");
        self.phase = Phase::Closing(LedgerState::Closed { last_entry, length_bytes });
        self.metadata_phase = match self.gaps.is_empty() {
            true => MetadataPhase::Writing,
            false => MetadataPhase::Marking,
        };
    }

    /// Outcome of [`Step::Mark`], when it succeeded.
    pub fn marked(&mut self) {
        if matches!(self.metadata_phase, MetadataPhase::Marking) {
            self.metadata_phase = MetadataPhase::Writing;
        }
    }

    fn fail_adds(&mut self, available: usize, failed: BookieAnswers) {
        let entry = EntryId::new(EntryId::to_wire(self.window.confirmed()) + 1);
        let entry = entry.expect("an entry is being added");
        let read_only = self.read_only;
        let error = NotEnoughBookies { needed: failed.0.len(), available, read_only, failed };
        self.fail(RecoveryError::NotEnoughBookies { ledger: self.ledger, entry, error });
    }

    /// Of the ledger.
    pub fn quorum(&self) -> Quorum {
        self.stored.quorum
    }

    /// What is to be done about metadata now, if anything.
    pub fn next_step(&self) -> Option<Step> {
        match self.metadata_phase {
            MetadataPhase::Idle => None,
            MetadataPhase::Placing => Some(Step::Place {
                positions: self
                    .window
                    .replacing()
                    .into_iter()
                    .flatten()
                    .map(|(&position, _)| position)
                    .collect(),
                ensemble: self.ensemble().to_vec(),
                avoided: self.suspects.clone(),
                asked: Vec::new(),
            }),
            MetadataPhase::Marking => {
                Some(Step::Mark { replicas: self.gaps.bookies().into_iter().collect() })
            }
            MetadataPhase::Writing => {
                let mut metadata = match &self.phase {
                    Phase::Closing(LedgerState::Closed { last_entry, .. }) => {
                        self.gaps.with_splits(self.changed.clone(), *last_entry)
                    }
                    Phase::Closing(_) => self.changed.clone(),
                    Phase::Reading { .. } if self.canaries.has(Canary::M19EnsemblePublishedEarly) => {
                        self.changed.clone()
                    }
                    _ => self.stored.clone(),
                };
                metadata.state = match &self.phase {
                    Phase::Closing(end) => *end,
                    _ => LedgerState::InRecovery,
                };
                Some(Step::Write { metadata: Box::new(that_fits(metadata)), expected: self.version })
            }
            MetadataPhase::Reading => Some(Step::Read),
        }
    }

    /// Outcome of [`Step::Place`], and how many bookies are read-only. Invariant 5: nothing is written.
    pub fn placed(&mut self, chosen: &[BookieId], read_only: usize, out: &mut Out) {
        if !matches!(self.metadata_phase, MetadataPhase::Placing) || self.result.is_some() {
            return;
        }
        self.read_only = read_only;
        self.metadata_phase = MetadataPhase::Idle;
        let replacing = self.window.replacing().expect("a change is under way while placing");
        let failed = self.window.failures();
        let ensemble = with_replacements(self.ensemble(), replacing.keys(), chosen);
        if !chosen.is_empty() {
            let first = EntryId::new(EntryId::to_wire(self.window.confirmed()) + 1);
            let mut first = first.expect("an entry follows the confirmed ones");
            if self.canaries.has(Canary::M35ReplacementFromBeginning) {
                first = self.stored.segments().last().map_or(first, |last| last.first_entry);
                self.changed = self.stored.clone();
            }
            self.changed = with_ensemble(&self.changed, first, ensemble.clone());
            if self.canaries.has(Canary::M19EnsemblePublishedEarly) {
                self.metadata_phase = MetadataPhase::Writing;
            }
        }
        // Without a replacement an ack quorum of the others suffices: repair restores the rest once it is closed.
        if chosen.is_empty() {
            self.given_up.0.extend(failed.0);
        }
        self.window.finish_change(ensemble, chosen.is_empty(), &BTreeSet::new(), &mut out.sends);
        self.settle(out);
    }

    /// Outcome of [`Step::Write`].
    pub fn written(&mut self, outcome: Result<Version, LedgerError>, out: &mut Out) {
        if !matches!(self.metadata_phase, MetadataPhase::Writing) {
            return;
        }
        match outcome {
            Ok(version) => {
                let Some(Step::Write { metadata, .. }) = self.next_step() else { return };
                self.version = version;
                self.metadata_phase = MetadataPhase::Idle;
                if matches!(self.phase, Phase::Reading { .. })
                    && self.canaries.has(Canary::M19EnsemblePublishedEarly)
                {
                    return self.settle(out);
                }
                self.stored = *metadata;
                match self.stored.state {
                    LedgerState::Closed { .. } => self.succeed(),
                    LedgerState::Open | LedgerState::InRecovery => {
                        self.changed = self.stored.clone();
                        self.fence(out);
                    }
                }
            }
            Err(LedgerError::Changed(_)) => self.metadata_phase = MetadataPhase::Reading,
            Err(error) if error.is_transient() => self.metadata_phase = MetadataPhase::Reading,
            Err(error) => self.fail(RecoveryError::Metadata(error)),
        }
    }

    /// Outcome of [`Step::Read`], when it succeeded.
    pub fn read(&mut self, read: StoredLedger, out: &mut Out) {
        if !matches!(self.metadata_phase, MetadataPhase::Reading) {
            return;
        }
        let StoredLedger { metadata, version, .. } = read;
        let is_closed = matches!(metadata.state, LedgerState::Closed { .. });
        let end = metadata.segments().last();
        // The length is that of the last confirmed entry, which other bookies may have now.
        let has_moved = self.recovered.is_none()
            && self.lac.is_some_and(|lac| !metadata.write_set(lac).eq(self.stored.write_set(lac)));
        if let Phase::Closing(_) = self.phase
            && !is_closed
            && !has_moved
            && metadata.state == LedgerState::InRecovery
            && end == self.stored.segments().last()
        {
            // Another property, or a repaired member of an older segment: closed on top of that.
            let mut changed = metadata.clone();
            let last = end.map(|segment| segment.first_entry);
            for segment in self.changed.segments().iter().filter(|ours| Some(ours.first_entry) >= last) {
                changed = with_ensemble(&changed, segment.first_entry, segment.ensemble.clone());
            }
            self.changed = changed;
            self.stored = metadata;
            self.version = version;
            self.metadata_phase = MetadataPhase::Writing;
            return;
        }
        self.stored = metadata;
        self.version = version;
        self.begin(out);
    }

    /// A step failed for good, or for longer than the driver is patient.
    pub fn metadata_failed(&mut self, error: LedgerError) {
        if matches!(self.metadata_phase, MetadataPhase::Marking) {
            tracing::warn!(ledger_id = %self.ledger, bookies = ?self.gaps.bookies(), %error,
                "entries are missing on these bookies, and the ledger cannot be marked as under-replicated");
            return self.marked();
        }
        self.fail(RecoveryError::Metadata(error));
    }
}

fn placeholder() -> BookieId {
    BookieId::new("none").expect("a valid id")
}

fn named<'a>(bookies: impl Iterator<Item = &'a BookieId>, answers: &[Option<BookieAnswer>]) -> BookieAnswers {
    let answers = bookies.zip(answers);
    BookieAnswers(answers.filter_map(|(bookie, answer)| Some((bookie.clone(), answer.clone()?))).collect())
}
