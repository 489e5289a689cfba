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

use crate::engine::{Engine, Wanting};
use crate::machine::{FlushError, Flushed, Flushing, FreezeTicket};
use bindery_io::Shortage;
use bindery_storage::{
    DirectoryCommit, DirectoryError, JournalMark, LedgerDirectory, Mark, Meta, WriteError,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

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

/// What became of the directories of a [`Flushing`].
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
    fn may_lose_another(&self) -> bool {
        self.may_lose && self.failed.iter().filter(|failed| failed.is_none()).count() > 1
    }

    /// A ticket waits for space.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The directory for the states of a shard: its own, or the next that did not fail.
    fn home(&self, shard: usize) -> usize {
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
    fn spread(&self, shards: impl Iterator<Item = usize>, full: &[bool]) -> Left {
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
        tracing::warn!(directory = %directories[index].path().display(), "it failed before and is used again");
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

impl Flushing {
    pub(crate) fn spread(&self, ticket: &FreezeTicket) -> Left {
        let full = self.engine.full_directories();
        self.routing.spread(ticket.frozen.iter().map(|(shard, _)| *shard), &full)
    }

    /// The directory that the state of a shard's ledgers goes to.
    pub(crate) fn home(&self, shard: usize) -> usize {
        self.routing.home(shard)
    }

    /// What a commit that did not go through says about its directory.
    pub(crate) fn fault_of(&self, index: usize, error: &DirectoryError) -> StorageFault {
        // One that has to be opened again for want of space may lack a descriptor for that.
        match (self.directories[index].lacks_space(), error.lacks_descriptor()) {
            (_, true) => StorageFault::Short(Shortage::Descriptors, error.to_string()),
            (true, false) => StorageFault::Short(Shortage::Space, error.to_string()),
            (false, false) => StorageFault::Failed(error.to_string()),
        }
    }

    /// `index` did not take its part, which is in `left`: puts the ticket aside, or spreads the part over the others.
    /// `Ok` gives the ticket back: go on with what is left.
    pub(crate) fn after_fault(
        &mut self,
        index: usize,
        fault: StorageFault,
        ticket: FreezeTicket,
        left: &mut Left,
    ) -> Result<FreezeTicket, FlushError> {
        self.engine.pacing.written.store(0, Ordering::Release);
        let reason = match fault {
            StorageFault::Short(what, reason) => {
                let error = self.error(index, reason);
                let tried_ns = self.clock.monotonic_ns();
                self.routing.waiting.push_back(Waiting { ticket, left: std::mem::take(left), tried_ns });
                self.engine.wait_for(Wanting::Flush, Some((what, error.to_string())));
                return Err(error);
            }
            StorageFault::Failed(reason) => reason,
        };
        let error = self.fail(index, reason);
        if self.engine.is_storage_lost() {
            return Err(error);
        }
        let lost = left.remove(&index).unwrap_or_default();
        let full = self.engine.full_directories();
        for place in lost.entries {
            let home = self.routing.home_of_entries(ticket.frozen[place].0, &full);
            left.entry(home).or_default().entries.push(place);
        }
        for place in lost.states {
            let home = self.routing.home(ticket.frozen[place].0);
            left.entry(home).or_default().states.push(place);
        }
        Ok(ticket)
    }

    /// Writes down which directories are out, in each of the others, before anything is released that only the marks
    /// of the lost ones still called for (invariant 1).
    pub(crate) fn tell_who_is_out(&mut self) -> Result<(), (usize, StorageFault)> {
        loop {
            let news = (0..self.directories.len())
                .any(|index| self.routing.has_failed(index) && !self.routing.told[index]);
            if !news {
                return Ok(());
            }
            let out: Vec<u32> = (0u32..)
                .zip(&self.routing.failed)
                .filter_map(|(index, failed)| failed.as_ref().map(|_| index))
                .collect();
            let mut fault = None;
            for index in 0..self.directories.len() {
                if self.routing.has_failed(index) {
                    continue;
                }
                let meta = Meta { out: out.clone(), ..crate::open::meta_of(&self.engine.config, index) };
                let commit = DirectoryCommit { meta: Some(&meta), ..Default::default() };
                if let Err(error) = self.directories[index].commit(&commit) {
                    fault = Some((index, self.fault_of(index, &error)));
                    break;
                }
            }
            match fault {
                None => {
                    for index in out {
                        self.routing.told[index as usize] = true;
                    }
                }
                Some((index, StorageFault::Failed(reason))) if self.routing.may_lose_another() => {
                    self.fail(index, reason);
                }
                Some(fault) => return Err(fault),
            }
        }
    }

    /// Tries what waits for space again, when that is due. `None`: nothing is due.
    pub fn retry(&mut self) -> Option<Result<Flushed, FlushError>> {
        let now = self.clock.monotonic_ns();
        let pause = u64::try_from(self.engine.config.space_retry_interval.as_nanos()).unwrap_or(u64::MAX);
        if now.saturating_sub(self.routing.waiting.front()?.tried_ns) < pause {
            return None;
        }
        if self.engine.is_storage_lost() {
            return None;
        }
        let waiting = self.routing.waiting.pop_front()?;
        let flushed = self.flush_left(waiting.ticket, waiting.left);
        if flushed.is_ok() && !self.routing.is_waiting() {
            self.engine.wait_for(Wanting::Flush, None);
        }
        Some(flushed)
    }

    /// True while a flush waits for space. No other ticket can be flushed then.
    pub fn is_waiting(&self) -> bool {
        self.routing.is_waiting()
    }

    /// The last failure, when no directory is left.
    pub(crate) fn lost(&self) -> Option<FlushError> {
        let index = self.directories.len() - 1;
        let reason = self.routing.failed[index].clone().unwrap_or_default();
        self.engine.is_storage_lost().then(|| self.error(index, reason))
    }

    pub(crate) fn error(&self, index: usize, reason: String) -> FlushError {
        FlushError::new(self.engine.config.ledger_dirs[index].display().to_string(), reason)
    }

    /// A directory can take no more changes. The others go on; without any, this bookie takes no adds.
    pub(crate) fn fail(&mut self, index: usize, reason: String) -> FlushError {
        let error = self.error(index, reason);
        let routing = &mut self.routing;
        let is_first = routing.failed[index].is_none();
        routing.failed[index].get_or_insert_with(|| error.to_string());
        let is_one_left = routing.failed.iter().any(Option::is_none) && routing.may_lose;
        if is_first {
            self.engine.lose_directory(index, error.to_string());
        }
        if is_one_left {
            if is_first {
                tracing::error!(
                    %error,
                    "a ledger directory failed: the others take what it would; what is on it alone may be unreadable. \
                     Replace the disk: see the guide, one bad directory"
                );
            }
        } else {
            tracing::error!(%error, "ledger storage failed: this bookie takes no adds any more; reads go on");
            self.engine.lose_storage(&error.to_string());
        }
        error
    }
}

impl Engine {
    /// Directories that should get no entries, because they are nearly full; the others take theirs.
    pub fn set_full_directories(&self, full: &[bool]) {
        full.clone_into(&mut self.full.lock());
    }

    pub(crate) fn full_directories(&self) -> Vec<bool> {
        self.full.lock().clone()
    }
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
