//! Re-replication as Java does it (AutoRecovery, `bookkeeper shell recover`), of whichever member a draw says.
//!
//! The entries of a member are read from the others, packed again with the LAC (last add confirmed) of the handle that reads
//! them, and added to another bookie as a recovery adds; then that bookie takes the member's place by a conditional write. Of a
//! ledger that is not closed the last segment is left alone. One step at a time: all else may happen between two.

use std::collections::VecDeque;

use bindery_types::{BookieId, EntryId, LedgerMetadata, LedgerState};

use super::bookie::Mode;
use super::world::World;
use crate::metadata_edit::with_segments;

#[derive(Clone, Debug)]
pub(super) struct Repair {
    /// Names the segment.
    first: EntryId,
    old: BookieId,
    new: usize,
    lac: EntryId,
    /// To be copied.
    left: VecDeque<EntryId>,
}

/// The metadata with another bookie in a member's place, if it is still there.
pub(super) fn with_member(
    metadata: &LedgerMetadata,
    first: EntryId,
    old: &BookieId,
    new: &BookieId,
) -> Option<LedgerMetadata> {
    let mut segments = metadata.segments().to_vec();
    let segment = segments.iter_mut().find(|segment| segment.first_entry == first)?;
    if segment.ensemble.contains(new) {
        return None;
    }
    *segment.ensemble.iter_mut().find(|member| *member == old)? = new.clone();
    Some(with_segments(metadata, segments))
}

/// The entries of a segment that the bookie at a position has, up to `lac`.
pub(super) fn entries_of(
    metadata: &LedgerMetadata,
    segment: usize,
    position: usize,
    lac: EntryId,
) -> impl Iterator<Item = EntryId> {
    let segments = metadata.segments();
    let end = segments.get(segment + 1).map_or(lac.get(), |next| lac.get().min(next.first_entry.get() - 1));
    let quorum = metadata.quorum;
    let all = (segments[segment].first_entry.get()..=end).filter_map(EntryId::new);
    all.filter(move |entry| quorum.is_in_write_set(*entry, position))
}

impl World {
    pub(super) fn step_repair(&mut self) {
        self.repair = match self.repair.take() {
            None => self.begin_repair(),
            Some(repair) => self.go_on_with(repair),
        };
    }

    fn begin_repair(&self) -> Option<Repair> {
        let metadata = self.metadata();
        let (last, before) = metadata.segments().split_last()?;
        let (lac, segments) = match metadata.state {
            LedgerState::Closed { last_entry, .. } => (last_entry?, before.len() + 1),
            LedgerState::Open | LedgerState::InRecovery => {
                let inside = last.ensemble.iter().filter_map(|id| {
                    let bookie = &self.bookies[self.index(id)];
                    let stored =
                        bookie.memory().entries.values().next_back().filter(|_| bookie.mode == Mode::Up);
                    self.codec.open(None, stored?)?.last_add_confirmed
                });
                let lac = inside.max().max(EntryId::new(last.first_entry.get() - 1))?;
                assert!(lac.get() <= self.ghost.confirmed, "IC3: a LAC that is read was confirmed");
                (lac, before.len())
            }
        };
        let below = |count: usize| (count > 0).then(|| self.draw(count as u64) as usize);
        let segment = below(segments)?;
        let ensemble = &metadata.segments()[segment].ensemble;
        let position = below(ensemble.len())?;
        let is_spare = |index: &usize| !ensemble.contains(&self.ids[*index]);
        let mut spare: Vec<usize> = (0..self.ids.len()).filter(is_spare).collect();
        // Often one that a recovery asks for its last entry.
        let is_last = |index: &usize| last.ensemble.contains(&self.ids[*index]);
        if self.draw(4) > 0 && spare.iter().any(is_last) {
            spare.retain(is_last);
        }
        Some(Repair {
            first: metadata.segments()[segment].first_entry,
            old: ensemble[position].clone(),
            new: spare[below(spare.len())?],
            lac,
            left: entries_of(metadata, segment, position, lac).collect(),
        })
    }

    /// Nothing when it is done, or cannot go on.
    fn go_on_with(&mut self, mut repair: Repair) -> Option<Repair> {
        let Some(entry) = repair.left.pop_front() else {
            let changed = with_member(self.metadata(), repair.first, &repair.old, &self.ids[repair.new])?;
            let summary = &mut self.ghost.summary;
            match changed.state {
                LedgerState::Closed { .. } => summary.repairs_of_closed += 1,
                LedgerState::Open | LedgerState::InRecovery => summary.repairs_of_open += 1,
            }
            self.history.push(changed.into());
            self.check_confirmed_copies();
            return None;
        };
        let readable = self.metadata().write_set(entry).find_map(|id| {
            let bookie = &self.bookies[self.index(id)];
            bookie.memory().entries.get(&entry.get()).filter(|_| bookie.mode == Mode::Up)
        });
        let found = self.codec.open(Some(entry), readable?).expect("stored entries are sound");
        let mut packed = Vec::new();
        self.codec.put(entry, Some(repair.lac), found.length_bytes, &found.payload, &mut packed);
        if self.bookies[repair.new].mode != Mode::Up {
            return None;
        }
        self.bookies[repair.new].add(entry, &packed.into(), true);
        self.sync(repair.new);
        Some(repair)
    }
}
