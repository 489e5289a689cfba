//! The invariants that are checked, by the numbers of the reliability reference, and the state that only the checks
//! know.

use std::collections::{BTreeMap, BTreeSet};

use bindery_types::{BookieId, EntryId, LedgerMetadata, LedgerState};
use bindery_wire::ErrorCode;
use bytes::Bytes;

use super::network::Request;
use super::world::{Core, Party, WRITER, World};
use crate::error::WhyStopped;
use crate::handover::Handover;
use crate::metadata_edit::with_segments;
use crate::recovery::core::RecoveryRead;
use crate::transport::BookieError;

/// What a run, or all runs, came to.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Summary {
    pub confirmed: u64,
    pub ensemble_changes: u64,
    pub segments_by_recovery: u64,
    pub closed_by_writer: u64,
    pub fenced: u64,
    pub recoveries: u64,
    pub failed_recoveries: u64,
    pub recovered_behind_lac: u64,
    pub lost_store_answers: u64,
    pub holds: u64,
    pub rejoins: u64,
    pub closed_with_gaps: u64,
    pub announced: u64,
    pub crashes: u64,
    pub quiet_writers: u64,
    pub forced: u64,
    pub failed_forces: u64,
    pub reconnected: u64,
    pub lost_disks: u64,
    pub limbo_answers: u64,
    pub repairs_of_open: u64,
    pub repairs_of_closed: u64,
    pub packed_again: u64,
    pub handed_over: u64,
    pub copies_missing: u64,
    pub copies_filled: u64,
    pub gaps: u64,
    pub splits: u64,
    pub splits_before_a_mark: u64,
}

impl Summary {
    pub fn add(&mut self, other: &Summary) {
        self.confirmed += other.confirmed;
        self.ensemble_changes += other.ensemble_changes;
        self.segments_by_recovery += other.segments_by_recovery;
        self.closed_by_writer += other.closed_by_writer;
        self.fenced += other.fenced;
        self.recoveries += other.recoveries;
        self.failed_recoveries += other.failed_recoveries;
        self.recovered_behind_lac += other.recovered_behind_lac;
        self.lost_store_answers += other.lost_store_answers;
        self.holds += other.holds;
        self.rejoins += other.rejoins;
        self.closed_with_gaps += other.closed_with_gaps;
        self.announced += other.announced;
        self.crashes += other.crashes;
        self.quiet_writers += other.quiet_writers;
        self.forced += other.forced;
        self.failed_forces += other.failed_forces;
        self.reconnected += other.reconnected;
        self.lost_disks += other.lost_disks;
        self.limbo_answers += other.limbo_answers;
        self.repairs_of_open += other.repairs_of_open;
        self.repairs_of_closed += other.repairs_of_closed;
        self.packed_again += other.packed_again;
        self.handed_over += other.handed_over;
        self.copies_missing += other.copies_missing;
        self.copies_filled += other.copies_filled;
        self.gaps += other.gaps;
        self.splits += other.splits;
        self.splits_before_a_mark += other.splits_before_a_mark;
    }
}

/// What the harness knows.
#[derive(Clone)]
pub(super) struct Ghost {
    pub payloads: Vec<Vec<u8>>,
    /// Confirmed to the writer, -1 for none.
    pub confirmed: i64,
    /// Adds that a bookie has made durable and answered.
    pub acked: BTreeSet<(usize, i64)>,
    /// Copies that were durable on disks that are lost: the rules are about copies that were not destroyed.
    pub lost: BTreeSet<(usize, i64)>,
    /// The ends that somebody was told.
    ends: BTreeSet<(i64, u64)>,
    /// Bookies that the writer held at some time, and holds.
    pub was_held: BTreeSet<BookieId>,
    held: BTreeSet<BookieId>,
    /// Entries that a writer heard to be on a bookie.
    heard: BTreeSet<(usize, i64)>,
    /// Of the present writer.
    copies: (u64, u64),
    /// Recoveries, by party, that could not mark the ledger and went on without.
    pub unmarked: BTreeSet<usize>,
    pub summary: Summary,
}

/// What a recoverer asked and heard in its present attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    attempt: u32,
    /// Of the last ensemble, in its order: the bookie, and whether its answer to the fence is knowledge.
    fences: Vec<(usize, bool)>,
    /// Of each entry read: the bookies that have it, and those that have not.
    has: BTreeMap<i64, BTreeSet<usize>>,
    has_not: BTreeMap<i64, BTreeSet<usize>>,
    /// Of each entry added again: who has acknowledged it.
    acks: BTreeMap<i64, BTreeSet<usize>>,
}

impl Default for Ghost {
    fn default() -> Ghost {
        Ghost {
            payloads: Vec::new(),
            confirmed: -1,
            acked: BTreeSet::new(),
            lost: BTreeSet::new(),
            ends: BTreeSet::new(),
            was_held: BTreeSet::new(),
            held: BTreeSet::new(),
            heard: BTreeSet::new(),
            copies: (0, 0),
            unmarked: BTreeSet::new(),
            summary: Summary::default(),
        }
    }
}

impl Ghost {
    pub fn note_held(&mut self, now: BTreeSet<BookieId>, ensemble: &[BookieId]) {
        self.summary.holds += now.difference(&self.held).count() as u64;
        self.summary.rejoins +=
            self.held.difference(&now).filter(|bookie| ensemble.contains(bookie)).count() as u64;
        self.was_held.extend(now.iter().cloned());
        self.held = now;
    }

    pub fn note_copies(&mut self, missing: u64, filled: u64) {
        // Fewer when one came late.
        self.summary.copies_missing += missing.saturating_sub(self.copies.0);
        self.summary.copies_filled += filled - self.copies.1;
        self.copies = (missing, filled);
    }

    pub fn note_taken_over(&mut self) {
        self.copies = (0, 0);
        self.held.clear();
        self.summary.handed_over += 1;
    }
}

/// Which bookies have which entries, however segments are split.
fn coarse(metadata: &LedgerMetadata) -> Vec<(i64, Vec<BookieId>)> {
    let segments = metadata.segments().iter();
    let mut coarse: Vec<_> =
        segments.map(|segment| (segment.first_entry.get(), segment.ensemble.clone())).collect();
    coarse.dedup_by(|next, before| next.1 == before.1);
    coarse
}

/// IC11, IC23: wherever a segment began there is one that begins, so that no gap that touched an end is between others.
fn check_boundaries(before: &LedgerMetadata, new: &LedgerMetadata) {
    let starts = |metadata: &LedgerMetadata| -> BTreeSet<i64> {
        metadata.segments().iter().map(|segment| segment.first_entry.get()).collect()
    };
    assert!(
        starts(before).is_subset(&starts(new)),
        "IC11: of segments at {:?} those at {:?} are left",
        starts(before),
        starts(new)
    );
}

impl World {
    /// A rule of how things come about, which some runs leave to its consequences.
    pub fn process(&self, holds: bool, rule: &str) {
        assert!(holds || self.setup.only_outcomes, "{rule}");
    }

    /// IC1, IC2, IC3, IC7, IC11: newly confirmed entries are where metadata says, in order, and an entry is never
    /// confirmed after it was decided otherwise.
    pub fn note_confirmed(&mut self) {
        let Some(writer) = self.writer() else { return };
        let confirmed = EntryId::to_wire(writer.confirmed());
        assert!(confirmed >= self.ghost.confirmed, "IC3: the LAC goes back");
        assert!(writer.confirmed() <= writer.last_pushed(), "IC3: the LAC is behind the last entry");
        let qa = self.setup.quorum.ack_quorum_size();
        for id in self.ghost.confirmed + 1..=confirmed {
            let entry = EntryId::new(id).expect("entries are not negative");
            let members = self.metadata().write_set(entry).map(|bookie| self.index(bookie));
            let acks = members.filter(|&bookie| self.ghost.acked.contains(&(bookie, id))).count();
            assert!(
                acks >= qa,
                "IC1, IC11: entry {id} is confirmed with {acks} acks where metadata says it is"
            );
            let copies = self.copies(self.metadata(), entry);
            assert!(copies >= qa, "IC1, IC9: entry {id} is confirmed with {copies} durable copies");
        }
        if let Some((last, _)) = self.end() {
            assert!(confirmed <= EntryId::to_wire(last), "IC7: {confirmed} confirmed behind the end");
        }
        self.ghost.summary.confirmed += (confirmed - self.ghost.confirmed) as u64;
        self.ghost.confirmed = confirmed;
    }

    /// IC9: whatever became of the ensembles, a confirmed entry outlives the loss of all but one of its ack quorum.
    pub fn check_confirmed_copies(&self) {
        for id in 0..=self.ghost.confirmed {
            let copies = self.copies(self.metadata(), EntryId::new(id).expect("entries are not negative"));
            assert!(
                copies >= self.setup.quorum.ack_quorum_size(),
                "IC9: entry {id} is left with {copies} copies"
            );
        }
    }

    /// How many bookies of an entry's write set have it on their disks, with the writer's bytes, or had it on disks that
    /// were lost.
    pub fn copies(&self, metadata: &LedgerMetadata, entry: EntryId) -> usize {
        let has = |bookie: &&BookieId| {
            let stored = self.bookies[self.index(bookie)].durable().entries.get(&entry.get());
            stored.is_some_and(|stored| {
                let found = self.codec.open(Some(entry), stored).expect("stored entries are sound");
                assert_eq!(
                    found.payload,
                    self.ghost.payloads[entry.get() as usize],
                    "IC8: the writer's bytes"
                );
                true
            })
        };
        let had = |bookie: &BookieId| self.ghost.lost.contains(&(self.index(bookie), entry.get()));
        metadata.write_set(entry).filter(|bookie| has(bookie) || had(bookie)).count()
    }

    /// IC3: the LAC inside an entry was confirmed when it left. IC12: a recovery adds to the last segment only.
    pub fn check_send(&mut self, party: usize, entry: EntryId, body: &Bytes) {
        let Party { core, heard, .. } = &mut *self.parties[party];
        match core {
            Core::Writer(_) => {
                let lac =
                    self.codec.open(Some(entry), body).expect("sent entries are sound").last_add_confirmed;
                assert!(
                    EntryId::to_wire(lac) <= self.ghost.confirmed,
                    "IC3: {entry} says that {lac:?} is confirmed"
                );
            }
            Core::Recoverer(core) => {
                if !self.setup.only_outcomes {
                    heard.acks.entry(entry.get()).or_default();
                }
                let first = core.stored().segments().last().map(|last| last.first_entry);
                self.process(Some(entry) >= first, "IC12: a recovery touches the last segment only");
            }
            Core::Gone => {}
        }
    }

    /// IC4, IC5: reads come behind covering fences, and fence.
    pub fn check_recovery_read(&mut self, party: usize, bookie: usize, read: &RecoveryRead) {
        if self.setup.only_outcomes {
            return;
        }
        let heard = &mut self.parties[party].heard;
        if read.tag.attempt() != heard.attempt {
            *heard = Heard { attempt: read.tag.attempt(), ..Heard::default() };
        }
        match read.entry {
            None => heard.fences.push((bookie, false)),
            Some(_) => {
                let is_known: Vec<bool> = heard.fences.iter().map(|(_, is_known)| *is_known).collect();
                self.process(
                    self.is_covered(&is_known),
                    "IC4, IC5: reads begin when the fences cover the ensemble",
                );
                self.process(read.fences, "IC5: each read of a recovery fences");
            }
        }
    }

    /// By definition: no ack quorum of any write set is without a bookie that answered.
    fn is_covered(&self, is_known: &[bool]) -> bool {
        let quorum = self.setup.quorum;
        let size = quorum.ensemble_size();
        (0..size).all(|start| {
            let members: Vec<usize> =
                (0..quorum.write_quorum_size()).map(|offset| (start + offset) % size).collect();
            let subsets = (0u32..1 << members.len())
                .filter(|set| set.count_ones() as usize == quorum.ack_quorum_size());
            subsets.into_iter().all(|set| {
                members.iter().enumerate().any(|(bit, &member)| set >> bit & 1 == 1 && is_known[member])
            })
        })
    }

    pub fn note_heard(
        &mut self,
        index: usize,
        bookie: usize,
        request: &Request,
        result: &Result<Bytes, BookieError>,
    ) {
        if self.setup.only_outcomes {
            return;
        }
        let Core::Recoverer(_) = self.parties[index].core else {
            if let (Request::Add { entry, .. }, Ok(_)) = (request, result) {
                self.ghost.heard.insert((bookie, entry.get()));
            }
            return;
        };
        let expected = match request {
            Request::Read { entry, .. } => *entry,
            Request::Add { .. } | Request::WriteLac { .. } | Request::Force { .. } => None,
        };
        let found = result.as_ref().ok().and_then(|body| self.codec.open(expected, body));
        let is_sound = found.is_some();
        let is_packed_again = found.is_some_and(|entry| entry.last_add_confirmed >= Some(entry.id));
        self.ghost.summary.packed_again += u64::from(is_packed_again);
        let is_absent = matches!(result, Err(BookieError::Refused(ErrorCode::NoEntry | ErrorCode::NoLedger)));
        let is_limbo = matches!(result, Err(BookieError::Refused(ErrorCode::UnknownLedgerState)));
        self.ghost.summary.limbo_answers += u64::from(is_limbo);
        let needed = self.setup.quorum.write_quorum_size() - self.setup.quorum.ack_quorum_size() + 1;
        let heard = &mut self.parties[index].heard;
        match request {
            Request::Add { entry, .. } if result.is_ok() => {
                heard.acks.entry(entry.get()).or_default().insert(bookie);
            }
            Request::Read { tag, .. } if tag.attempt() != heard.attempt => {}
            Request::Read { entry: None, .. } if is_sound || is_absent => {
                for fence in heard.fences.iter_mut().filter(|(of, _)| *of == bookie) {
                    fence.1 = true;
                }
            }
            // One that comes when the end is decided decides nothing any more.
            Request::Read { entry: Some(entry), .. }
                if is_sound
                    && heard.has_not.get(&entry.get()).is_none_or(|has_not| has_not.len() < needed) =>
            {
                heard.has.entry(entry.get()).or_default().insert(bookie);
            }
            Request::Read { entry: Some(entry), .. } if is_absent => {
                heard.has_not.entry(entry.get()).or_default().insert(bookie);
            }
            _ => {}
        }
    }

    /// A conditional write goes through.
    pub fn check_change(&mut self, party: usize, new: &LedgerMetadata) {
        let is_writer = party == WRITER;
        let before = self.metadata().clone();
        check_boundaries(&before, new);
        match (before.state, new.state) {
            (LedgerState::Open, LedgerState::Open) => {
                assert!(is_writer, "IC12: a recovery changes ensembles in memory only");
                match Handover::of(new) {
                    Some(Ok(Handover::Idle { next, length_bytes, .. })) => {
                        assert_eq!(coarse(new), coarse(&before), "IC11: a hand-over changes no ensemble");
                        let last_entry = EntryId::new(next.get() - 1);
                        assert_eq!(EntryId::to_wire(last_entry), self.ghost.confirmed, "IC7: the next entry");
                        let lengths = self.ghost.payloads.iter().map(|payload| payload.len() as u64);
                        assert_eq!(length_bytes, lengths.sum::<u64>(), "IC8: the length so far");
                        self.check_marks(new, last_entry);
                        self.check_gaps(new, last_entry);
                    }
                    _ if self.is_split(&before, new) => self.ghost.summary.splits_before_a_mark += 1,
                    _ => {
                        self.check_ensemble_change(&before, new);
                        self.ghost.summary.ensemble_changes += 1;
                    }
                }
                let split = new.segments().len().saturating_sub(before.segments().len() + 1);
                self.ghost.summary.splits += split as u64;
            }
            (LedgerState::Open, LedgerState::InRecovery) => {
                assert!(!is_writer, "IC13: a writer does not mark its ledger as in recovery");
                assert_eq!(new.segments(), before.segments(), "IC12: the mark changes no ensemble");
            }
            (
                LedgerState::Open | LedgerState::InRecovery,
                LedgerState::Closed { last_entry, length_bytes },
            ) => {
                if is_writer {
                    self.ghost.summary.closed_by_writer += 1;
                    assert_eq!(coarse(new), coarse(&before), "IC11: a close changes no ensemble");
                    self.ghost.summary.splits += (new.segments().len() - before.segments().len()) as u64;
                    self.check_marks(new, last_entry);
                    self.check_gaps(new, last_entry);
                } else {
                    self.check_recovered(party, &before, new, last_entry);
                    self.check_recovered_gaps(party, new, last_entry);
                }
                self.check_closed(new, last_entry, length_bytes);
            }
            (LedgerState::InRecovery, LedgerState::InRecovery) => {
                self.process(false, "IC12: a recovery publishes ensembles with the close");
            }
            (before, after) => panic!("IC8, IC13: from {before:?} to {after:?} by party {party}"),
        }
    }

    /// Whether nothing changes but that segments up to the LAC are split.
    fn is_split(&self, before: &LedgerMetadata, new: &LedgerMetadata) -> bool {
        let starts_below = |metadata: &LedgerMetadata| {
            metadata.segments().last().is_some_and(|last| last.first_entry.get() <= self.ghost.confirmed)
        };
        let unsplit = with_segments(new, before.segments().to_vec());
        new.segments().len() > before.segments().len()
            && starts_below(new)
            && coarse(new) == coarse(before)
            && unsplit == *before
    }

    /// IC11: a segment begins at the LAC + 1, which does not move meanwhile; only one that begins there is replaced. Those
    /// before it may be split.
    fn check_ensemble_change(&self, before: &LedgerMetadata, new: &LedgerMetadata) {
        let last = new.segments().last().expect("a ledger has segments");
        let first = self.ghost.confirmed + 1;
        assert_eq!(last.first_entry.get(), first, "IC11: a segment begins at the LAC + 1");
        let until = |metadata: &LedgerMetadata| {
            let mut segments = coarse(metadata);
            segments.retain(|(begin, _)| *begin < first);
            segments
        };
        assert_eq!(until(new), until(before), "IC11: segments before the last are for good");
    }

    /// IC11, IC13: whoever takes a ledger changes no ensemble.
    pub fn check_claim(&self, new: &LedgerMetadata, next: EntryId) {
        assert_eq!(coarse(new), coarse(self.metadata()), "IC11: a claim changes no ensemble");
        check_boundaries(self.metadata(), new);
        assert_eq!(next.get(), self.ghost.confirmed + 1, "IC7: nothing was confirmed behind it");
    }

    /// IC6, IC12, IC15, IC22: what a recovery rests on.
    fn check_recovered(
        &mut self,
        party: usize,
        before: &LedgerMetadata,
        new: &LedgerMetadata,
        last_entry: Option<EntryId>,
    ) {
        let (old_last, old_kept) = before.segments().split_last().expect("a ledger has segments");
        let quorum = self.setup.quorum;
        let kept = &new.segments()[..old_kept.len().min(new.segments().len())];
        let first = new.segments().get(kept.len()).map(|segment| segment.first_entry);
        self.process(
            kept == old_kept && first == Some(old_last.first_entry),
            "IC12: segments before the last are for good",
        );
        let heard = &self.parties[party].heard;
        let behind = EntryId::to_wire(last_entry) + 1;
        let negatives = heard.has_not.get(&behind).map_or(0, BTreeSet::len);
        self.process(
            negatives > quorum.write_quorum_size() - quorum.ack_quorum_size()
                && !heard.has.contains_key(&behind),
            "IC6: the end takes Qw - Qa + 1 negatives and no positive",
        );
        for (&id, acks) in &heard.acks {
            let entry = EntryId::new(id).expect("entries are not negative");
            let members = new.write_set(entry).map(|bookie| self.index(bookie));
            let acked = members.filter(|bookie| acks.contains(bookie)).count();
            self.process(acked >= quorum.ack_quorum_size(), "IC15: a recovered entry has its ack quorum");
        }
        for id in 0..=EntryId::to_wire(last_entry) {
            let entry = EntryId::new(id).expect("entries are not negative");
            let is_moved = !new.write_set(entry).eq(before.write_set(entry));
            self.process(
                !is_moved || heard.acks.contains_key(&id),
                "IC22: a bookie becomes the member for entries that were added again, and no others",
            );
        }
        let summary = &mut self.ghost.summary;
        summary.segments_by_recovery += u64::from(new.segments() != before.segments());
        summary.recovered_behind_lac += u64::from(EntryId::to_wire(last_entry) > self.ghost.confirmed);
    }

    /// IC7, IC8, IC10.
    fn check_closed(&mut self, metadata: &LedgerMetadata, last_entry: Option<EntryId>, length_bytes: u64) {
        let last = EntryId::to_wire(last_entry);
        assert!(last >= self.ghost.confirmed, "IC7: closed at {last}, confirmed {}", self.ghost.confirmed);
        assert!(last < self.ghost.payloads.len() as i64, "IC8: closed at {last}, which nobody wrote");
        let mut length = 0;
        for id in 0..=last {
            let entry = EntryId::new(id).expect("entries are not negative");
            length += self.ghost.payloads[id as usize].len() as u64;
            let copies = self.copies(metadata, entry);
            assert!(copies >= self.setup.quorum.ack_quorum_size(), "IC10: entry {id} has {copies} copies");
        }
        assert_eq!(length_bytes, length, "IC8: the length of the ledger");
    }

    /// IC17: every entry that a bookie lacks is named by a mark when the writer leaves the ledger. With deferred sync a crash
    /// takes what a bookie said it had: there, those that the writer held.
    fn check_marks(&mut self, metadata: &LedgerMetadata, last_entry: Option<EntryId>) {
        let mut has_gaps = false;
        for id in 0..=EntryId::to_wire(last_entry) {
            let entry = EntryId::new(id).expect("entries are not negative");
            for bookie in metadata.write_set(entry) {
                let is_of_interest = !self.setup.is_deferred || self.ghost.was_held.contains(bookie);
                if is_of_interest && self.lacks(self.index(bookie), id) {
                    has_gaps = true;
                    assert!(
                        self.marks.contains(bookie),
                        "IC17: {bookie} lacks entry {id}, and no mark says so"
                    );
                }
            }
        }
        self.ghost.summary.closed_with_gaps += u64::from(has_gaps);
    }

    fn lacks(&self, bookie: usize, id: i64) -> bool {
        !self.bookies[bookie].memory().entries.contains_key(&id) && !self.ghost.lost.contains(&(bookie, id))
    }

    /// IC23, of a ledger that its writer leaves: every missing run of a member touches an end of its segment. What was not
    /// acknowledged counts as missing, next to something that is: nobody can know better.
    fn check_gaps(&mut self, new: &LedgerMetadata, last_entry: Option<EntryId>) {
        if self.setup.only_outcomes {
            return;
        }
        let heard = std::mem::take(&mut self.ghost.heard);
        self.check_runs(new, last_entry, 0, |bookie, id| heard.contains(&(bookie, id)));
        self.ghost.heard = heard;
    }

    /// IC23, of a recovery: what it added makes no end of a gap an inner part of a segment, and its own gaps are as those of a
    /// writer. IC17: they are marked. It does not know of gaps below the LAC that it began at.
    fn check_recovered_gaps(&mut self, party: usize, new: &LedgerMetadata, last_entry: Option<EntryId>) {
        let Core::Recoverer(core) = &self.parties[party].core else { return };
        if self.setup.only_outcomes {
            return;
        }
        let floor = EntryId::to_wire(core.floor());
        let acks = self.parties[party].heard.acks.clone();
        let has_acked = |bookie: usize, id: i64| acks.get(&id).is_some_and(|acks| acks.contains(&bookie));
        for id in floor + 1..=EntryId::to_wire(last_entry) {
            let entry = EntryId::new(id).expect("entries are not negative");
            for bookie in new.write_set(entry) {
                if self.lacks(self.index(bookie), id) {
                    assert!(
                        self.marks.contains(bookie) || self.ghost.unmarked.contains(&party),
                        "IC17: {bookie} lacks entry {id}, which a recovery added, and no mark says so"
                    );
                }
            }
        }
        self.check_runs(new, last_entry, floor + 1, has_acked);
        let segment = EntryId::new(floor).and_then(|floor| new.segment_of(floor)).cloned();
        let Some(segment) = segment else { return };
        let end = self.end_of(new, segment.first_entry, last_entry);
        for (position, bookie) in segment.ensemble.iter().enumerate().filter(|_| end > floor) {
            let bookie = self.index(bookie);
            let stripe = self.stripe(position, segment.first_entry.get(), end);
            let mut from_floor = stripe.iter().filter(|id| **id > floor);
            let is_open = stripe.iter().rfind(|id| **id <= floor).is_some_and(|id| self.lacks(bookie, *id));
            let is_middle = is_open && from_floor.any(|id| !self.lacks(bookie, *id));
            assert!(
                !is_middle,
                "IC23: a gap of bookie {bookie} that ended at {floor} is behind other entries"
            );
        }
    }

    fn end_of(&self, metadata: &LedgerMetadata, first: EntryId, last_entry: Option<EntryId>) -> i64 {
        let mut behind = metadata.segments().iter().filter(|segment| segment.first_entry > first);
        behind.next().map_or(EntryId::to_wire(last_entry), |next| next.first_entry.get() - 1)
    }

    /// The entries of the member at a position.
    fn stripe(&self, position: usize, first: i64, last: i64) -> Vec<i64> {
        let entries = (first..=last).filter_map(EntryId::new);
        let own = entries.filter(|entry| self.setup.quorum.is_in_write_set(*entry, position));
        own.map(EntryId::get).collect()
    }

    /// Of the segments from an entry on.
    fn check_runs(
        &mut self,
        metadata: &LedgerMetadata,
        last_entry: Option<EntryId>,
        from: i64,
        is_acked: impl Fn(usize, i64) -> bool,
    ) {
        for segment in metadata.segments().iter().filter(|segment| segment.first_entry.get() >= from) {
            let end = self.end_of(metadata, segment.first_entry, last_entry);
            for (position, bookie) in segment.ensemble.iter().enumerate() {
                let bookie = self.index(bookie);
                let stripe = self.stripe(position, segment.first_entry.get(), end);
                let is_known = |id: &i64| is_acked(bookie, *id);
                let mut gaps = 0;
                for run in stripe.chunk_by(|one, two| is_known(one) == is_known(two)) {
                    let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
                    if is_known(first) || !run.iter().any(|id| self.lacks(bookie, *id)) {
                        continue;
                    }
                    gaps += 1;
                    assert!(
                        stripe.first() == Some(first) || stripe.last() == Some(last),
                        "IC23: bookie {bookie} lacks {run:?} of {stripe:?}, which touches no end of its segment"
                    );
                }
                self.ghost.summary.gaps += gaps;
            }
        }
    }

    /// Whether a party has come to its end. IC8: all that were told an end were told the same.
    pub fn note_end(&mut self, index: usize) -> bool {
        let told = match &self.parties[index].core {
            Core::Recoverer(core) => match core.result() {
                Some(Ok(recovered)) => {
                    let LedgerState::Closed { last_entry, length_bytes } = recovered.metadata.state else {
                        panic!("IC8: a recovered ledger is closed")
                    };
                    self.ghost.summary.recoveries += 1;
                    Some((EntryId::to_wire(last_entry), length_bytes))
                }
                Some(Err(_)) => {
                    self.ghost.summary.failed_recoveries += 1;
                    None
                }
                None => return false,
            },
            Core::Writer(core) => {
                let Some(stopped) = core.stopped() else { return false };
                self.ghost.summary.fenced += u64::from(stopped.why == WhyStopped::Fenced);
                let end = (EntryId::to_wire(core.confirmed()), core.confirmed_length_bytes());
                // A hand-over is no end of the ledger.
                (stopped.why == WhyStopped::Closing && self.end().is_some()).then_some(end)
            }
            Core::Gone => return false,
        };
        self.note_confirmed();
        self.ghost.ends.extend(told);
        let decided = self.end().map(|(last, length_bytes)| (EntryId::to_wire(last), length_bytes));
        assert!(
            self.ghost.ends.iter().all(|end| Some(*end) == decided),
            "IC8: {:?} but {decided:?}",
            self.ghost.ends
        );
        true
    }

    /// Checks the final state, after everything has ended.
    pub fn check_end(&self) {
        let (last_entry, length_bytes) = self.end().expect("closed when healed");
        let decided = (EntryId::to_wire(last_entry), length_bytes);
        assert!(
            decided.0 >= self.ghost.confirmed,
            "IC7: closed at {}, confirmed {}",
            decided.0,
            self.ghost.confirmed
        );
        assert!(self.ghost.ends.iter().all(|end| *end == decided), "IC8: {:?}", self.ghost.ends);
        for id in 0..=decided.0 {
            let copies = self.copies(self.metadata(), EntryId::new(id).expect("entries are not negative"));
            assert!(copies >= self.setup.quorum.ack_quorum_size(), "IC10: entry {id} has {copies} copies");
        }
    }
}
