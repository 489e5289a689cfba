//! Room on a nearly full volume: how much of it a rewrite may take, and how much of it a flush leaves for rewrites.
//!
//! # Invariants
//! 1. While nothing is short, no output takes more than half of what is free: the rest is for the flush that comes next.
//! 2. While something waits for space, or its directory takes no entries, an output may take all that is free but for
//!    [`COMMIT_BYTES`], with which it comes into force. Its sources go with that commit, and then more is free than before.
//! 3. Of a reserve that was given up a flush leaves a part ([`crate::Engine::set_rewrite_room`]). Without it nothing that is deleted
//!    later could be given back, as long as a live entry is beside it. This costs no adds: a flush that would leave
//!    less would leave the bookie full. Fences, removals and a start take what there is.
//! 4. Space that rewrites under way will still need on the same volume is not free for another one. A compaction checks for that when
//!    it is planned and again when it begins, and waits for the rewrites that hold its room.
//! 5. A flush that does not fit is not begun again, nor by a start: it would take all that is free until its file is gone, from
//!    rewrites and from journals. The first attempt is made: adds go on beside it for as long as there is space.

use super::Upkeep;
use super::job::Job;
use crate::flush_routing::StorageFault;
use bindery_io::Shortage;

/// What the ends of an output and the pages of its commit take: a few blocks, and the paths to a few records in trees that
/// are never deep.
const COMMIT_BYTES: u64 = 64 << 10;

/// What is free for the rewrites of one directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    free: u64,
    is_short: bool,
}

impl Room {
    /// Of rewrites that are worth it: they give back more than their output takes. `live` is what one has to copy.
    pub(super) fn takes(&self, live: u64) -> bool {
        live <= self.shared() || (self.is_short && live <= self.free.saturating_sub(COMMIT_BYTES))
    }

    /// Most bytes of an output that several logs share: one that fails keeps none of them waiting for the others.
    pub(super) fn shared(&self) -> u64 {
        self.free / 2
    }
}

impl Upkeep {
    /// What rewrites of a directory find.
    pub(super) fn room(&self, index: usize) -> Room {
        let is_full = self.shared.full_directories().get(index).copied().unwrap_or(false);
        let free =
            self.free_bytes(index).map_or(u64::MAX, |free| free.saturating_sub(self.still_needed(index)));
        Room { free, is_short: is_full || self.shared.is_waiting() }
    }

    /// What the rewrites under way on the volume of a directory will still write, at most.
    pub(super) fn still_needed(&self, index: usize) -> u64 {
        self.rewrites_beside(index).map(Job::still_needed).sum()
    }

    /// The rewrites under way on the volume of a directory.
    pub(super) fn rewrites_beside(&self, index: usize) -> impl Iterator<Item = &Job> {
        let config = self.shared.config();
        self.space.jobs.iter().filter(move |job| config.are_on_one_volume(index, job.directory()))
    }

    /// Before a flush writes so many more bytes of entries: do they fit, and leave what rewrites need (invariants 3 and 5)?
    pub(crate) fn check_room(&self, index: usize, bytes: u64) -> Result<(), StorageFault> {
        let kept = self.shared.rewrite_room(index);
        match self.free_bytes(index) {
            Some(free) if free < bytes.saturating_add(kept) => {
                let why = format!(
                    "{bytes} bytes are to be written, {free} are free, and {kept} of them are kept for giving back the \
                     space of deleted ledgers"
                );
                Err(StorageFault::Short(Shortage::Space, why))
            }
            _ => Ok(()),
        }
    }

    /// `None`: that is not known. Some network file systems do not say.
    fn free_bytes(&self, index: usize) -> Option<u64> {
        let directory = &self.directories[index];
        let space = directory.disk().space(directory.path()).ok()?;
        (space.total > 0).then_some(space.free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_for_rewrites_and_all_but_a_commit_where_space_is_short() {
        for free in [0, COMMIT_BYTES, 3 * COMMIT_BYTES, u64::MAX] {
            let (calm, short) = (Room { free, is_short: false }, Room { free, is_short: true });
            assert!(calm.takes(free / 2));
            assert!(!calm.takes(free / 2 + 1));
            let most = (free / 2).max(free.saturating_sub(COMMIT_BYTES));
            assert!(short.takes(most));
            assert!(most == u64::MAX || !short.takes(most + 1));
        }
    }
}
