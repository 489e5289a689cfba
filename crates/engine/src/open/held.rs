//! The end of a replay: the records of the journals are flushed, or wait for space while the bookie serves.
//!
//! # Data flow
//! ```text
//! replayed caches of one journal -> flush -> files released
//!                                    '- no space -> journal held, ticket waits as one of a running bookie (`flush_routing`)
//! ```
//!
//! # Invariants
//! 1. Waiting records are in memory and durably in their journal: they are shown from now on, and later records follow
//!    them. So the files that were read are synced before the start goes on.
//! 2. A record waits only where the current layout would have put it: the records of a journal are in its shards, and
//!    its ticket covers them.
//! 3. No add is taken while something waits, so memory holds what was acknowledged before, fences, and what recoveries add
//!    within their reserve, for which the pool and the journal have room.
//! 4. Nothing is written behind a gap: where numbers of groups were raised over what a power cut took, a start goes on only
//!    when the mark of every directory is behind them.
//!
//! # Limits
//! Each start that waits takes another file of the journal for what it writes; there is one as long as one was kept back
//! or can be made. Without one, fences wait for space, too.

use super::{Machine, OpenError, ReplayFault, begin_freezes};
use crate::directories::FlushError;
use crate::journals::MarkVector;
use crate::tickets::FreezeTicket;
use bindery_journal::ReplayError;
use std::sync::atomic::Ordering;

/// A start needs space to go on, and there is none. Nothing is lost.
#[derive(Debug, thiserror::Error)]
#[error("{source}. This start cannot wait for space: {why}. Make room on that volume{remedy}")]
pub struct WantOfSpace {
    why: &'static str,
    remedy: &'static str,
    source: FlushError,
}

impl WantOfSpace {
    /// Memory is full before everything is read.
    pub(super) fn of_memory(source: FlushError) -> WantOfSpace {
        let why = "its journal holds more than its write pool takes";
        WantOfSpace { why, remedy: ", or start with as much memory as before (--memory-limit)", source }
    }

    fn of_layout(source: FlushError) -> WantOfSpace {
        let why = "the number of its shards, journals or ledger directories changed, and what the journal holds goes by it";
        WantOfSpace { why, remedy: ", or start with the directories, memory and cores that it had", source }
    }

    fn of_lost_end(source: FlushError) -> WantOfSpace {
        let why = "a power cut took the end of its journal, which another ledger directory holds, and every directory must \
                   know of that before groups are written behind it";
        WantOfSpace { why, remedy: "", source }
    }

    fn of_damage(source: FlushError) -> WantOfSpace {
        let why = "what a damaged journal still holds must be flushed at once";
        WantOfSpace { why, remedy: "", source }
    }
}

impl Machine {
    /// One flush of everything, that must go through.
    pub(super) fn flush_at_once(
        &mut self,
        covered: &MarkVector,
        applied: MarkVector,
    ) -> Result<(), OpenError> {
        // Also without records (a seal alone, or numbers raised over a hole): files are released up to the mark, and the
        // next one begins behind it, which a lower mark would take for a gap.
        if (0..self.journals.len()).any(|journal| is_ahead(&applied, covered, journal)) {
            let ticket = FreezeTicket::begun(None, applied, begin_freezes(self.engine.shared(), None));
            if let Err(error) = self.flushing.flush(ticket) {
                return Err(match self.flushing.is_waiting() {
                    true if self.engine.shared().config().accepts_journal_damage => {
                        WantOfSpace::of_damage(error).into()
                    }
                    true => WantOfSpace::of_layout(error).into(),
                    false => error.into(),
                });
            }
        }
        for journaling in &mut self.journals {
            let journal = journaling.journal_mut();
            journal.release_up_to(journal.last_group());
        }
        Ok(())
    }

    /// A flush of what each journal held. One that finds no space waits as any other, and its journal for it.
    /// The journals in `raised` have numbers given out that no group of theirs has: they cannot wait (invariant 4).
    pub(super) fn flush_each(
        &mut self,
        covered: &MarkVector,
        applied: &MarkVector,
        raised: &[usize],
    ) -> Result<(), OpenError> {
        let shared = self.engine.shared().clone();
        for index in 0..self.journals.len() {
            let journaling = &mut self.journals[index];
            let last_group = journaling.journal().last_group();
            if !is_ahead(applied, covered, index) {
                journaling.journal_mut().release_up_to(last_group);
                continue;
            }
            let mut marks = covered.clone();
            marks.raise(index, applied.of_journal(index));
            let freezing = begin_freezes(&shared, Some(index));
            shared.pacing().flushes.fetch_add(1, Ordering::AcqRel);
            shared.on_ticket_out();
            match self.flushing.flush(FreezeTicket::begun(Some(index), marks, freezing)) {
                Ok(_) => journaling.journal_mut().release_up_to(last_group),
                Err(error) if shared.is_storage_lost() => return Err(error.into()),
                Err(error) if raised.contains(&index) => return Err(WantOfSpace::of_lost_end(error).into()),
                Err(error) => {
                    tracing::warn!(%error, "no space to flush what the journal holds: serving it from memory until \
                     there is");
                    let held = journaling.hold(covered.of_journal(index).group);
                    held.map_err(|error| Box::new(ReplayError::<ReplayFault>::from(error)))?;
                }
            }
        }
        Ok(())
    }
}

fn is_ahead(applied: &MarkVector, covered: &MarkVector, journal: usize) -> bool {
    applied.of_journal(journal).group > covered.of_journal(journal).group
}
