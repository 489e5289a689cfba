//! Where a flush puts what: to the directory of each shard, past directories that failed, later when there is no room.
//!
//! # Data flow
//! ```text
//! ticket -> spread: a part for each directory -> flush_directory -> Ok
//!                                                 |- no space, no descriptor: the ticket waits with the parts that are left
//!                                                 '- failed: its part goes to the next directory, and the failure is recorded
//! ```
//!
//! # Invariants
//! 1. A ticket's mark is complete when every directory that is not out has committed it: entries that a failed one did
//!    not take are committed elsewhere before the others record that it is out, and only then are journal files
//!    released (IB12).
//! 2. A log whose write or sync failed is not written again: a retry goes into a new file (IB14). A directory that
//!    failed for any reason but space or descriptors takes no more entries before a restart.
//! 3. While a ticket waits for space no adds are taken, so memory stays bounded; fences go to the journal as always. When it is
//!    tried again, entries of ledgers that were removed meanwhile are left out, as soon as the journal has the removal durably: a
//!    start replays it behind the ticket's mark.
//! 4. A directory that is out, or lacks space, still serves reads, also of extents, from its table as of the last commit that
//!    worked. A failure to read is an I/O error, never "no such entry" (IB7).
//! 5. When no directory is left the engine is latched.
//!
//! # Limits
//! Tickets that wait: those that were made before, also by a start, one for each journal. Nothing bounds how long.

use crate::tickets::FreezeTicket;
use bindery_io::Shortage;
use bindery_storage::{
    DirectoryCommit, DirectoryError, JournalMark, LedgerDirectory, Mark, Meta, WriteError,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One directory's share of a ticket: places in its list of frozen caches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Whose entries.
    pub(crate) entries: Vec<usize>,
    /// Whose ledger states.
    pub(crate) states: Vec<usize>,
}

/// The parts that are still to be written, by directory.
pub(crate) type Left = BTreeMap<usize, Part>;

/// Why a directory did not take its part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StorageFault {
    /// It may pass.
    Short(Shortage, String),
    Failed(String),
}

impl StorageFault {
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, StorageFault::Short(..))
    }
}

impl From<WriteError> for StorageFault {
    fn from(error: WriteError) -> StorageFault {
        match error.shortage() {
            Some(shortage) => StorageFault::Short(shortage, error.to_string()),
            None => StorageFault::Failed(error.to_string()),
        }
    }
}

/// A ticket that waits for space.
struct Waiting {
    ticket: FreezeTicket,
    left: Left,
    tried_ns: u64,
}

/// What became of the ledger directories, and the tickets that wait.
pub(crate) struct FlushRouting {
    /// Of each directory, why it failed.
    failed: Vec<Option<String>>,
    /// Those of which the others have been told.
    told: Vec<bool>,
    waiting: VecDeque<Waiting>,
    /// A start refuses a directory that fails; afterwards the others go on without it.
    pub(crate) may_lose: bool,
}

impl FlushRouting {
    pub(crate) fn new(directories: usize) -> FlushRouting {
        FlushRouting {
            failed: vec![None; directories],
            told: vec![false; directories],
            waiting: VecDeque::new(),
            may_lose: false,
        }
    }

    pub(crate) fn has_failed(&self, directory: usize) -> bool {
        self.failed[directory].is_some()
    }

    /// Why a directory failed, if it did.
    pub(crate) fn failure(&self, directory: usize) -> Option<String> {
        self.failed[directory].clone()
    }

    pub(crate) fn has_any_failed(&self) -> bool {
        self.failed.iter().any(Option::is_some)
    }

    /// There would be a directory left.
    pub(crate) fn may_lose_another(&self) -> bool {
        self.may_lose && self.failed.iter().filter(|failed| failed.is_none()).count() > 1
    }

    /// A ticket waits for space.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// `directory` takes no more changes. True when this is the first reason.
    pub(crate) fn on_failed(&mut self, directory: usize, reason: &str) -> bool {
        let is_first = self.failed[directory].is_none();
        self.failed[directory].get_or_insert_with(|| reason.to_owned());
        is_first
    }

    /// A directory is left, and the others may go on without those that failed.
    pub(crate) fn has_one_left(&self) -> bool {
        self.failed.iter().any(Option::is_none) && self.may_lose
    }

    /// The directories that failed, when the others have not been told of all of them.
    pub(crate) fn untold(&self) -> Option<Vec<u32>> {
        let is_untold = |(failed, told): (&Option<String>, &bool)| failed.is_some() && !told;
        self.failed.iter().zip(&self.told).any(is_untold).then(|| {
            (0u32..).zip(&self.failed).filter_map(|(index, failed)| failed.as_ref().map(|_| index)).collect()
        })
    }

    /// The others know that these failed.
    pub(crate) fn on_told(&mut self, failed: &[u32]) {
        failed.iter().for_each(|index| self.told[*index as usize] = true);
    }

    /// A ticket waits for space with the parts that are left of it.
    pub(crate) fn put_aside(&mut self, ticket: FreezeTicket, left: Left, now_ns: u64) {
        self.waiting.push_back(Waiting { ticket, left, tried_ns: now_ns });
    }

    /// When the ticket that is tried next was tried last.
    pub(crate) fn tried_ns(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.tried_ns)
    }

    /// Takes it out.
    pub(crate) fn take_waiting(&mut self) -> Option<(FreezeTicket, Left)> {
        self.waiting.pop_front().map(|waiting| (waiting.ticket, waiting.left))
    }

    /// Spreads the part of a ticket that a directory lost over the others.
    pub(crate) fn move_part(&self, lost: Part, ticket: &FreezeTicket, full: &[bool], left: &mut Left) {
        for place in lost.entries {
            let home = self.home_of_entries(ticket.frozen[place].0, full);
            left.entry(home).or_default().entries.push(place);
        }
        for place in lost.states {
            let home = self.home(ticket.frozen[place].0);
            left.entry(home).or_default().states.push(place);
        }
    }

    /// The directory for the states of a shard: its own, or the next that did not fail.
    pub(crate) fn home(&self, shard: usize) -> usize {
        self.first(shard, |directory| !self.has_failed(directory)).expect("a directory is left")
    }

    /// The directory for its entries: one with room, if there is one.
    fn home_of_entries(&self, shard: usize, full: &[bool]) -> usize {
        let has_room =
            |directory| !self.has_failed(directory) && !full.get(directory).is_some_and(|full| *full);
        self.first(shard, has_room).unwrap_or_else(|| self.home(shard))
    }

    fn first(&self, shard: usize, accept: impl Fn(usize) -> bool) -> Option<usize> {
        let count = self.failed.len();
        (0..count).map(|step| (shard + step) % count).find(|directory| accept(*directory))
    }

    /// A part for every directory that did not fail, empty ones included: each commits the mark.
    pub(crate) fn spread(&self, shards: impl Iterator<Item = usize>, full: &[bool]) -> Left {
        let healthy = (0..self.failed.len()).filter(|directory| !self.has_failed(*directory));
        let mut left: Left = healthy.map(|directory| (directory, Part::default())).collect();
        for (place, shard) in shards.enumerate() {
            left.entry(self.home_of_entries(shard, full)).or_default().entries.push(place);
            left.entry(self.home(shard)).or_default().states.push(place);
        }
        left
    }
}

/// At a start, directories that were out are in again. The others have the entries that they missed, so their marks
/// move up to where all of those are; then the others no longer record them as out. Both happen before any flush to
/// them.
///
/// # Errors
/// The directory that cannot be changed.
pub(crate) fn take_back(
    directories: &mut [LedgerDirectory],
    metas: &[Option<Meta>],
) -> Result<(), (usize, DirectoryError)> {
    let out: BTreeSet<usize> = metas
        .iter()
        .flatten()
        .flat_map(|meta| &meta.out)
        .filter_map(|index| usize::try_from(*index).ok())
        .collect();
    let mut lowest: Option<BTreeMap<u32, Mark>> = None;
    for index in (0..directories.len()).filter(|index| !out.contains(index)) {
        let marks: BTreeMap<u32, Mark> =
            directories[index].marks().into_iter().map(|m| (m.journal, m.mark)).collect();
        // One that is new has no marks and needs none.
        if marks.is_empty() {
            continue;
        }
        let others = lowest.take().unwrap_or_else(|| marks.clone());
        let both =
            others.into_iter().filter_map(|(journal, mark)| Some((journal, mark.min(*marks.get(&journal)?))));
        lowest = Some(both.collect());
    }
    let count = directories.len();
    for index in out.into_iter().filter(|index| *index < count) {
        let own: BTreeMap<u32, Mark> =
            directories[index].marks().into_iter().map(|m| (m.journal, m.mark)).collect();
        let raised =
            lowest.iter().flatten().filter(|(journal, mark)| own.get(journal).is_none_or(|own| own < *mark));
        let marks: Vec<JournalMark> =
            raised.map(|(journal, mark)| JournalMark { journal: *journal, mark: *mark }).collect();
        tracing::warn!(directory = %directories[index].path().display(), "a ledger directory that failed in an \
         earlier run is in use again: the other directories hold what it missed");
        let commit = DirectoryCommit { marks: &marks, ..Default::default() };
        directories[index].commit(&commit).map_err(|error| (index, error))?;
    }
    for (index, meta) in metas.iter().enumerate() {
        if let Some(meta) = meta.as_ref().filter(|meta| !meta.out.is_empty()) {
            let meta = Meta { out: Vec::new(), ..meta.clone() };
            let commit = DirectoryCommit { meta: Some(&meta), ..Default::default() };
            directories[index].commit(&commit).map_err(|error| (index, error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every cache goes to exactly one directory, and every healthy directory has a part.
        #[test]
        fn parts_cover_a_ticket_once(
            shards in prop::collection::btree_set(0usize..8, 0..8),
            failed in prop::collection::vec(any::<bool>(), 1..5),
            full in prop::collection::vec(any::<bool>(), 0..5),
        ) {
            prop_assume!(failed.contains(&false));
            let mut routing = FlushRouting::new(failed.len());
            for (index, failed) in failed.iter().enumerate() {
                routing.failed[index] = failed.then(|| "broken".to_owned());
            }
            let shards: Vec<usize> = shards.into_iter().collect();
            let left = routing.spread(shards.iter().copied(), &full);
            let healthy: Vec<usize> = (0..failed.len()).filter(|i| !failed[*i]).collect();
            prop_assert_eq!(left.keys().copied().collect::<Vec<_>>(), healthy.clone());
            for of in [|part: &Part| part.entries.clone(), |part: &Part| part.states.clone()] {
                let mut all: Vec<usize> = left.values().flat_map(of).collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..shards.len()).collect::<Vec<_>>());
            }
            // A shard whose directory is in order stays where it is.
            for (place, shard) in shards.iter().enumerate() {
                let own = shard % failed.len();
                if !failed[own] {
                    prop_assert!(left[&own].states.contains(&place));
                }
                let is_full = |directory: &usize| full.get(*directory) == Some(&true);
                if healthy.iter().any(|directory| !is_full(directory)) {
                    let takes = healthy.iter().find(|d| left[*d].entries.contains(&place));
                    prop_assert!(takes.is_some_and(|directory| !is_full(directory)));
                }
            }
        }
    }
}
