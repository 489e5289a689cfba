//! Copies of one position of a ledger on their way to a bookie: into the bookie that this process is, or as adds to it or to another.
//!
//! ```text
//! what the target has --> runs that it lacks --> bulk reader --+--> intake, past the journal of this bookie
//!                                                              '--> recovery adds, acknowledged
//! ```
//! Entries that the other bookies let go of are not copied to this bookie. It is told where in object storage they are
//! ([`tiered`](super::tiered)).
//!
//! # Limits     copies under way: the budget of the bulk reader; [`COPIES_MAX`] batches of a ledger wait for acknowledgements

use std::sync::Arc;

use bindery_client::transport::BookieError;
use bindery_client::{LedgerView, StoredBatch, StoredEntry, StoredStream};
use bindery_engine::Engine;
use bindery_types::{BookieId, EntryId, MasterKey};
use tokio::task::JoinSet;

use super::Targets;
use super::intake::{self, Intake, IntakeError};
use super::ledger::Job;
use crate::core::audit::{Lack, missing_runs, slices};
use crate::core::ledger::{Copied, CopyTask, LedgerRepair};

/// Batches of a ledger that wait for acknowledgements.
const COPIES_MAX: usize = 4;

/// Why copying ends before all is there: never [`Copied::Whole`].
type Stopped = Copied;

fn failed(why: impl ToString) -> Stopped {
    Copied::Failed(why.to_string())
}

/// Copies of a position on their way to a bookie.
pub(super) struct Copying<'a> {
    pub core: &'a LedgerRepair,
    pub view: &'a LedgerView,
    pub lack: &'a Lack,
    pub target: &'a BookieId,
    key: MasterKey,
}

impl Copying<'_> {
    fn read(&self, (first, last): (EntryId, EntryId)) -> StoredStream {
        self.view.read_position(first, last, self.lack.position)
    }
}

impl Job<'_> {
    /// Copies what a bookie has not got of a position, a slice of the entries after the other.
    pub async fn copy(&self, core: &LedgerRepair, view: &LedgerView, copy: &CopyTask) -> Copied {
        let secret = core.metadata().secret.as_ref().expect("the core copies only ledgers with a password");
        let CopyTask { lack, target } = copy;
        let copying = Copying { core, view, lack, target, key: secret.master_key() };
        self.forget_look();
        let copied = match self.own_engine(target) {
            Some(engine) => self.copy_here(&copying, engine).await,
            None => self.copy_to(&copying).await,
        };
        copied.map_or_else(|stopped| stopped, |()| Copied::Whole)
    }

    /// The engine of a bookie, if this process is that bookie.
    pub fn own_engine(&self, bookie: &BookieId) -> Option<&Arc<Engine>> {
        let is_own = matches!(&self.common.config.targets, Targets::Own(own) if own == bookie);
        self.common.own.as_ref().filter(|_| is_own).map(|own| &own.engine)
    }

    /// Copies to another process.
    async fn copy_to(&self, copying: &Copying<'_>) -> Result<(), Stopped> {
        let held = self.held_by(copying.target).await.map_err(failed)?;
        for slice in slices(copying.lack) {
            let runs = missing_runs(copying.core.metadata(), &slice, |entry| held.has(entry));
            self.send_all(copying, &runs).await?;
            self.check_wanted(copying).await?;
            tokio::task::yield_now().await;
        }
        // Metadata names a member of before already, and tierers tell it where entries are.
        match copying.target == &copying.lack.bookie {
            true => Ok(()),
            false => self.confirm_copies_of(copying.target, copying.lack).await.map_err(failed),
        }
    }

    /// Copies into this bookie: large copies go past its journal, and entries that others let go stay where they are.
    async fn copy_here(&self, copying: &Copying<'_>, engine: &Arc<Engine>) -> Result<(), Stopped> {
        self.end_other_life(engine).await.map_err(failed)?;
        self.move_places(copying, engine).await;
        self.check_wanted(copying).await?;
        for slice in slices(copying.lack) {
            let mut runs = self.missing_here(copying, engine, &slice).await?;
            let is_damaged = engine
                .damaged_of(self.ledger)
                .iter()
                .any(|range| range.first <= slice.last && slice.first <= range.last);
            if copying.core.goes_past_journal(&runs, is_damaged) {
                match self.take_in(copying, engine, &runs).await? {
                    Ok(()) => runs.clear(),
                    Err(why) => {
                        tracing::debug!(ledger = %self.ledger, %why, "copies go through the journal");
                        runs = self.missing_here(copying, engine, &slice).await?;
                    }
                }
            }
            self.send_all(copying, &runs).await?;
            self.check_wanted(copying).await?;
        }
        self.confirm_places(copying.view, copying.lack, engine).await.map_err(failed)
    }

    /// Runs of entries of a slice that this bookie lacks.
    async fn missing_here(
        &self,
        copying: &Copying<'_>,
        engine: &Arc<Engine>,
        slice: &Lack,
    ) -> Result<Vec<(EntryId, EntryId)>, Stopped> {
        let held = intake::held(engine, self.ledger, slice.first, slice.last).await.map_err(failed)?;
        Ok(missing_runs(copying.core.metadata(), slice, |entry| {
            let at = held.partition_point(|run| run.last < entry);
            held.get(at).is_some_and(|run| run.first <= entry)
        }))
    }

    /// Copies runs of entries into the bookie that this process is, past its journal; `Err` says why they are to go through it.
    async fn take_in(
        &self,
        copying: &Copying<'_>,
        engine: &Arc<Engine>,
        runs: &[(EntryId, EntryId)],
    ) -> Result<Result<(), IntakeError>, Stopped> {
        let ended = |error: IntakeError| match error.is_for_journal() {
            true => Ok(Err(error)),
            false => Err(failed(error)),
        };
        let mut intake = match Intake::begin(engine, self.ledger, copying.key).await {
            Ok(intake) => intake,
            Err(error) => return ended(error),
        };
        for run in runs {
            let mut stream = copying.read(*run);
            while let Some(batch) = stream.next().await {
                let batch = batch.map_err(failed)?;
                let bytes = self.note_copied(batch.entries());
                if let Err(error) = intake.take(batch).await {
                    return ended(error);
                }
                self.common.state.lock().bytes_past_journal += bytes;
                self.check_wanted(copying).await?;
            }
        }
        match intake.commit().await {
            Ok(()) => Ok(Ok(())),
            Err(error) => ended(error),
        }
    }

    /// Between two batches: whether to go on, and whether the bookie whose copies are replaced is still away.
    pub async fn check_wanted(&self, copying: &Copying<'_>) -> Result<(), Stopped> {
        let known = self.known().await.map_err(failed)?;
        copying.core.unwanted(known.facts()).map_or(Ok(()), Err)
    }

    /// Counts entries, and returns their bytes.
    fn note_copied(&self, entries: &[StoredEntry]) -> u64 {
        let bytes = entries.iter().map(|entry| entry.bytes.len() as u64).sum();
        let mut state = self.common.state.lock();
        state.entries += entries.len() as u64;
        state.bytes += bytes;
        bytes
    }

    /// Copies runs of entries to the target as adds.
    async fn send_all(&self, copying: &Copying<'_>, runs: &[(EntryId, EntryId)]) -> Result<(), Stopped> {
        let Copying { view, target, key, .. } = copying;
        if !view.is_sealed() && !runs.is_empty() {
            // What may be read of it is to be known.
            view.refresh().await.map_err(failed)?;
        }
        for run in runs {
            let mut stream = copying.read(*run);
            let mut copies: JoinSet<Result<(), BookieError>> = JoinSet::new();
            while let Some(batch) = stream.next().await {
                let batch = batch.map_err(failed)?;
                while copies.len() >= COPIES_MAX {
                    self.copied(target, copies.join_next().await)?;
                }
                self.note_copied(batch.entries());
                self.send(&mut copies, (*target).clone(), *key, batch);
                self.check_wanted(copying).await?;
            }
            while let Some(copied) = copies.join_next().await {
                self.copied(target, Some(copied))?;
            }
        }
        Ok(())
    }

    fn send(
        &self,
        copies: &mut JoinSet<Result<(), BookieError>>,
        target: BookieId,
        key: MasterKey,
        batch: StoredBatch,
    ) {
        let (client, ledger) = (self.common.client.clone(), self.ledger);
        let (entries, permit) = batch.into_parts();
        copies.spawn(async move {
            let copied = client.copy(&target, ledger, key, &entries).await;
            // Its room, until all is acknowledged.
            drop(permit);
            copied
        });
    }

    fn copied(
        &self,
        target: &BookieId,
        ended: Option<Result<Result<(), BookieError>, tokio::task::JoinError>>,
    ) -> Result<(), Stopped> {
        match ended {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(failed(format!("{target} does not take copies: {error}"))),
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
