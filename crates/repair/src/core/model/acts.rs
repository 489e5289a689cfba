//! Everything but the workers: writers, bookies, the surplus round, the auditor and operators.

use super::*;

/// Entries after which a writer closes its ledger.
const ENTRIES_MAX: i64 = 100;

impl World {
    /// A writer adds an entry, or replaces a member that is away; or it closes its ledger, or ends without that.
    pub fn step_writer(&mut self, index: usize) {
        let ledger = &self.ledgers[index];
        if !ledger.has_writer || ledger.metadata.state != LedgerState::Open {
            self.ledgers[index].has_writer = false;
            return;
        }
        match self.below(160) {
            0 => self.ledgers[index].has_writer = false,
            1 | 2 if ledger.acked >= 0 => self.close_by_writer(index),
            _ => self.add(index),
        }
    }

    pub fn add(&mut self, index: usize) {
        let next = self.ledgers[index].acked + 1;
        if next >= ENTRIES_MAX {
            return self.close_by_writer(index);
        }
        let metadata = self.ledgers[index].metadata.clone();
        let members: Vec<usize> = metadata.write_set(entry(next)).map(|id| self.index_of(id)).collect();
        let takes = |member: &&usize| {
            let fenced = self.bookies[**member].ledgers.get(&index).is_some_and(|held| held.is_fenced);
            self.bookies[**member].is_up && !fenced
        };
        let taking: Vec<usize> = members.iter().filter(takes).copied().collect();
        let away: Vec<usize> =
            members.iter().filter(|member| !self.bookies[**member].is_up).copied().collect();
        if !away.is_empty() && self.random.chance(0.1) && self.replace_by_writer(index, &away) {
            return;
        }
        for member in &taking {
            self.put(*member, index, next);
        }
        if taking.len() >= metadata.quorum.ack_quorum_size() {
            self.ledgers[index].acked = next;
        }
    }

    /// A new segment from the next entry on. Copies that the replaced members lack, and those of the others, are marked.
    fn replace_by_writer(&mut self, index: usize, away: &[usize]) -> bool {
        let ledger = &self.ledgers[index];
        let mut metadata = ledger.metadata.clone();
        let mut ensemble = metadata.segments().last().unwrap().ensemble.clone();
        for member in away {
            let spare = (0..self.bookies.len())
                .find(|spare| self.takes_writes(*spare) && !ensemble.contains(&bookie_id(*spare)));
            let (Some(spare), Some(at)) = (spare, ensemble.iter().position(|id| *id == bookie_id(*member)))
            else {
                return false;
            };
            ensemble[at] = bookie_id(spare);
        }
        let first_entry = entry(ledger.acked + 1);
        let last = metadata.segments().last().unwrap();
        if last.first_entry == first_entry {
            metadata = with_last(&metadata, ensemble);
        } else {
            metadata.push_segment(Segment { first_entry, ensemble }).unwrap();
        }
        self.set_metadata(index, metadata);
        self.mark_gaps(index);
        true
    }

    pub fn close_by_writer(&mut self, index: usize) {
        let ledger = &self.ledgers[index];
        let metadata = closed(ledger, ledger.acked);
        self.set_metadata(index, metadata);
        self.ledgers[index].has_writer = false;
        self.mark_gaps(index);
    }

    /// Marks what members lack of the entries that belong to them, as a writer does that knows who acknowledged what.
    pub fn mark_gaps(&mut self, index: usize) {
        let lacking = self.lacking(index);
        if !lacking.is_empty() {
            let lacking: Vec<BookieId> = lacking.into_iter().map(bookie_id).collect();
            self.mark(index, &lacking, false);
        }
    }

    /// Members that lack entries of a segment that has an end.
    pub fn lacking(&self, index: usize) -> BTreeSet<usize> {
        let metadata = &self.ledgers[index].metadata;
        let mut lacking = BTreeSet::new();
        for segment in metadata.segments() {
            for (position, member) in segment.ensemble.iter().enumerate() {
                let member = self.index_of(member);
                let mut entries = World::entries_of(metadata, segment.first_entry, position).into_iter();
                if entries.any(|id| !self.has(member, index, id)) {
                    lacking.insert(member);
                }
            }
        }
        lacking
    }

    /// Fences and closes a ledger as a recovery does; false when too few bookies of the last ensemble answer.
    pub fn recover(&mut self, index: usize) -> bool {
        let metadata = self.ledgers[index].metadata.clone();
        let quorum = metadata.quorum;
        let segment = metadata.segments().last().unwrap().clone();
        let members: Vec<usize> = segment.ensemble.iter().map(|id| self.index_of(id)).collect();
        // One in limbo does not know what it had.
        let says = |member: usize| self.bookies[member].is_up && !self.is_limbo(member, index);
        for first in 0..quorum.ensemble_size() {
            let set = quorum.write_set(entry(first as i64));
            let silent = set.filter(|at| !says(members[*at])).count();
            if silent >= quorum.ack_quorum_size() {
                return false;
            }
        }
        let up: Vec<usize> = members.iter().copied().filter(|member| self.bookies[*member].is_up).collect();
        for member in &up {
            let held = self.bookies[*member].ledgers.entry(index).or_default();
            held.is_fenced = true;
            held.changes += 1;
        }
        let mut last = segment.first_entry.get() - 1;
        while up.iter().any(|member| self.has(*member, index, last + 1)) {
            last += 1;
        }
        for id in segment.first_entry.get()..=last {
            for at in quorum.write_set(entry(id)) {
                if self.bookies[members[at]].is_up {
                    self.put(members[at], index, id);
                }
            }
        }
        let acked = self.ledgers[index].acked;
        assert!(
            last >= acked,
            "IR4: the recovery of ledger {index} ends at {last}, before {acked}: {metadata:?}"
        );
        self.ledgers[index].acked = last;
        let metadata = closed(&self.ledgers[index], last);
        self.set_metadata(index, metadata);
        self.mark_gaps(index);
        true
    }

    /// A bookie stops, or starts again.
    pub fn crash(&mut self, index: usize) {
        let bookie = &mut self.bookies[index];
        bookie.is_up = false;
        bookie.surplus = None;
        self.unlock(Holder::Surplus(index));
        self.expire(index);
        self.workers[index].crash();
    }

    /// The store notices that a bookie stopped.
    pub fn deregister(&mut self, index: usize) {
        if !self.bookies[index].is_up {
            self.bookies[index].is_registered = false;
        }
    }

    pub fn restart(&mut self, index: usize) {
        let bookie = &mut self.bookies[index];
        if bookie.is_gone || bookie.is_up {
            return;
        }
        (bookie.is_up, bookie.is_registered) = (true, true);
        bookie.starts += 1;
        self.workers[index].start(self.now);
    }

    /// A stopped bookie loses all its ledgers, and starts empty under its old id: it marks those that metadata name it for, and has them in limbo.
    pub fn wipe(&mut self, index: usize) {
        let is_stopped = !self.bookies[index].is_up && !self.bookies[index].is_gone;
        if !is_stopped || !self.survive(index) || self.is_about_to_be_named(index) {
            return;
        }
        self.bookies[index].ledgers.clear();
        for ledger in 0..self.ledgers.len() {
            if self.ledgers[ledger].metadata.names(&bookie_id(index)) {
                let held = Held { is_limbo: true, ..Held::default() };
                self.bookies[index].ledgers.insert(ledger, held);
                self.mark(ledger, &[bookie_id(index)], false);
            }
        }
        self.note(|| format!("b{index} lost all it had"));
        self.restart(index);
    }

    /// A stopped bookie never returns.
    pub fn lose(&mut self, index: usize) {
        if !self.bookies[index].is_up && self.survive(index) {
            self.bookies[index].is_gone = true;
            self.note(|| format!("b{index} is gone for good"));
        }
    }

    /// A copy of an entry of a closed ledger rots; the bookie finds that, and marks the ledger. (A recovery is told of an error by a bookie
    /// that has a damaged copy, which this model of it does not know.)
    pub fn damage(&mut self, index: usize) {
        let entries = self.bookies[index].ledgers.iter().filter(|(ledger, _)| {
            let metadata = &self.ledgers[**ledger].metadata;
            // The surplus round removes the others.
            matches!(metadata.state, LedgerState::Closed { .. }) && metadata.names(&bookie_id(index))
        });
        let entries: Vec<(usize, i64)> =
            entries.flat_map(|(ledger, held)| held.entries.iter().map(|id| (*ledger, *id))).collect();
        if entries.is_empty() || !self.bookies[index].is_up || !self.survive(index) {
            return;
        }
        let (ledger, id) = entries[self.below(entries.len())];
        let held = self.bookies[index].ledgers.get_mut(&ledger).unwrap();
        held.entries.remove(&id);
        held.changes += 1;
        self.mark(ledger, &[bookie_id(index)], true);
        self.note(|| format!("b{index} lost entry {id} of ledger {ledger}"));
    }

    /// A ledger leaves limbo when all that belongs to the bookie is there.
    pub fn step_limbo(&mut self, index: usize) {
        let limbo = self.bookies[index].ledgers.iter().filter(|(_, held)| held.is_limbo);
        let limbo: Vec<usize> = limbo.map(|(ledger, _)| *ledger).collect();
        for ledger in limbo {
            let is_closed = matches!(self.ledgers[ledger].metadata.state, LedgerState::Closed { .. });
            if is_closed && !self.lacking(ledger).contains(&index) {
                self.bookies[index].ledgers.get_mut(&ledger).unwrap().is_limbo = false;
            }
        }
    }

    /// A step of the round that removes what the bookie should not have: find, lock and prove, remove.
    pub fn step_surplus(&mut self, index: usize) {
        if !self.bookies[index].is_up {
            return;
        }
        let id = bookie_id(index);
        let is_surplus = |ledger: &Ledger| {
            matches!(ledger.metadata.state, LedgerState::Closed { .. }) && !ledger.metadata.names(&id)
        };
        match self.bookies[index].surplus {
            None => {
                let here: Vec<(usize, u64)> = self.bookies[index]
                    .ledgers
                    .iter()
                    .filter(|(ledger, _)| is_surplus(&self.ledgers[**ledger]))
                    .map(|(ledger, held)| (*ledger, held.changes))
                    .collect();
                if let Some((ledger, changes)) = here.first().copied() {
                    self.bookies[index].surplus = Some(Surplus { ledger, changes, is_proven: false });
                }
            }
            Some(Surplus { ledger, changes, is_proven: false }) => {
                let is_still = !self.rules.reads_again || is_surplus(&self.ledgers[ledger]);
                if self.ledgers[ledger].lock.is_some() || !is_still {
                    self.bookies[index].surplus = None;
                    return;
                }
                self.ledgers[ledger].lock = Some(Holder::Surplus(index));
                if self.rules.writes_anew {
                    self.ledgers[ledger].version += 1;
                }
                self.bookies[index].surplus = Some(Surplus { ledger, changes, is_proven: true });
            }
            Some(Surplus { ledger, changes, is_proven: true }) => {
                if self.bookies[index].ledgers.get(&ledger).is_some_and(|held| held.changes == changes) {
                    self.bookies[index].ledgers.remove(&ledger);
                    self.met.surplus += 1;
                    self.note(|| format!("b{index} removed surplus ledger {ledger}"));
                    self.check_copies(ledger);
                }
                self.unlock(Holder::Surplus(index));
                self.bookies[index].surplus = None;
            }
        }
    }

    /// All locks of a holder go.
    pub fn unlock(&mut self, holder: Holder) {
        for ledger in &mut self.ledgers {
            if ledger.lock == Some(holder) {
                ledger.lock = None;
            }
        }
    }

    /// An operator begins to empty a bookie, or ends that.
    pub fn drain(&mut self, index: usize) {
        self.bookies[index].is_draining ^= true;
        if !self.bookies[index].is_draining {
            return;
        }
        self.met.drained += 1;
        for ledger in 0..self.ledgers.len() {
            if self.ledgers[ledger].metadata.names(&bookie_id(index)) {
                self.mark(ledger, &[bookie_id(index)], true);
            }
        }
    }

    /// A step of the auditor: it learns, begins a scan, or judges a ledger.
    pub fn step_auditor(&mut self) {
        let (view, now) = (self.view(), self.now);
        let Some(mut auditor) = self.auditor.take() else {
            let core = AuditorCore::new(now, World::auditor_settings());
            self.auditor = Some(Auditor { core, view: View::default(), scan: None });
            return;
        };
        if self.random.chance(0.5) && auditor.view != view {
            auditor.core.on_bookies(now, view.live.clone());
            auditor.core.on_disabled(view.is_disabled);
            auditor.view = view;
        } else if let Some(rest) = &mut auditor.scan {
            match rest.pop() {
                Some(ledger) => {
                    let verdict = auditor.core.judge(now, &self.ledgers[ledger].metadata);
                    if !verdict.lost.is_empty() {
                        self.mark(ledger, &verdict.lost, true);
                    }
                }
                None => {
                    auditor.core.end_scan(now, true);
                    auditor.scan = None;
                }
            }
        } else if auditor.core.begin_scan(now) {
            auditor.scan = Some((0..self.ledgers.len()).collect());
        }
        self.auditor = Some(auditor);
    }
}

/// Metadata of a ledger that is closed at an entry.
fn closed(ledger: &Ledger, last: i64) -> LedgerMetadata {
    let mut metadata = ledger.metadata.clone();
    let entry_bytes = if ledger.is_large { LARGE_ENTRY_BYTES } else { 10 };
    let length_bytes = entry_bytes * (last + 1).unsigned_abs();
    metadata.state = LedgerState::Closed { last_entry: EntryId::new(last), length_bytes };
    metadata
}

/// Metadata with another ensemble in the last segment, which has no entry yet.
fn with_last(metadata: &LedgerMetadata, ensemble: Vec<BookieId>) -> LedgerMetadata {
    let secret = metadata.secret.clone().unwrap();
    let mut changed = LedgerMetadata::new(metadata.quorum, secret);
    let (last, before) = metadata.segments().split_last().unwrap();
    for segment in before {
        changed.push_segment(segment.clone()).unwrap();
    }
    changed.push_segment(Segment { first_entry: last.first_entry, ensemble }).unwrap();
    changed
}
