//! The repair of one ledger.
//!
//! ```text
//! lock --> mark, metadata --> what is lacking --> who gets it --> entries that are not there yet --> copies
//!   '------- mark goes, lock goes <-- nothing lacking <-- metadata names the new member <-- all acknowledged
//! ```
//!
//! # Limits     copies under way: the budget of the bulk reader; [`COPIES_MAX`] batches of a ledger wait for acknowledgements

use std::collections::BTreeSet;
use std::time::Duration;

use bindery_client::repair::with_member;
use bindery_client::transport::BookieError;
use bindery_client::{ErrorCode, LedgerView, OpenMode, ReadError, StoredBatch, Wanted};
use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, Marked};
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, MasterKey};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Common, Targets};
use crate::core::audit::{Audit, Lack, SegmentEnd, audit, missing_runs, segments};
use crate::core::queue::Attempt;

/// Batches of a ledger that wait for acknowledgements.
const COPIES_MAX: usize = 4;
/// Changes of metadata in one attempt: each replaces a member, or meets another's change.
const STEPS_MAX: usize = 1000;
/// Between two looks at the end of an open ledger whose writer may be alive.
const ALIVE_LOOK: Duration = Duration::from_secs(2);

/// Why an attempt ends before the ledger is whole.
enum End {
    Attempt(Attempt),
    /// Look again at everything: metadata or bookies changed.
    Changed,
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> End {
        End::Attempt(Attempt::Failed(error.to_string()))
    }
}

fn failed<T>(why: impl Into<String>) -> Result<T, End> {
    Err(End::Attempt(Attempt::Failed(why.into())))
}

/// Repairs a ledger under its lock.
pub(super) async fn repair(common: &Common, ledger: LedgerId, stopped: &watch::Receiver<bool>) -> Attempt {
    let locks = common.layout().replication_locks();
    let lock = match locks.try_lock(ledger, &common.config.name).await {
        Ok(Some(lock)) => lock,
        Ok(None) => return Attempt::Elsewhere,
        Err(error) => return Attempt::Failed(error.to_string()),
    };
    let attempt = match (Job { common, ledger, stopped }).run().await {
        Ok(attempt) | Err(End::Attempt(attempt)) => attempt,
        Err(End::Changed) => Attempt::Later(Duration::ZERO, "its metadata keeps changing".into()),
    };
    if let Err(error) = locks.unlock(lock).await {
        // It goes with the session, and is found again by the next attempt.
        tracing::debug!(%ledger, %error, "the lock could not be given back");
    }
    attempt
}

struct Job<'a> {
    common: &'a Common,
    ledger: LedgerId,
    stopped: &'a watch::Receiver<bool>,
}

impl Job<'_> {
    async fn run(&self) -> Result<Attempt, End> {
        let marks = self.common.layout().under_replication();
        let Some(mark) = marks.marked(self.ledger).await? else { return Ok(Attempt::Done) };
        let view = match self.common.bulk.open(self.ledger).await {
            Ok(view) => view,
            Err(ReadError::Deleted(_)) => {
                marks.unmark(self.ledger, mark.version).await?;
                return Ok(Attempt::Done);
            }
            Err(error) => return failed(error.to_string()),
        };
        let mut has_changed = false;
        // Members that got all that they lacked. One in limbo goes on saying that it does not know, until it has compared.
        let mut completed: BTreeSet<(EntryId, usize)> = BTreeSet::new();
        for _ in 0..STEPS_MAX {
            self.check_allowed().await?;
            let live = self.common.live_now().await?;
            let (metadata, _) = view.metadata();
            let found = audit(&metadata, |bookie| live.contains(bookie));
            let step = match found.lacks.first() {
                Some(lack) => self.replace(&view, &metadata, lack, &live).await,
                None => match self.incomplete(&metadata, &mark, &live, &completed).await? {
                    Some((lack, runs)) => {
                        let copied = self.copy(&view, &metadata, &lack, &runs, &lack.bookie).await;
                        completed.insert((lack.first, lack.position));
                        copied
                    }
                    None if found.open.is_empty() => {
                        return self.finish(&mark, has_changed).await;
                    }
                    None => self.close(&view, &metadata, &mark, &found).await,
                },
            };
            match step {
                Ok(()) => has_changed = true,
                Err(End::Changed) => {}
                Err(end) => return Err(end),
            }
            match view.reread().await {
                Ok(()) => {}
                Err(ReadError::Deleted(_)) => {
                    marks.unmark(self.ledger, mark.version).await?;
                    return Ok(Attempt::Done);
                }
                Err(error) => return failed(error.to_string()),
            }
        }
        Err(End::Changed)
    }

    /// The ledger lacks nothing: its mark goes, unless it was marked again.
    async fn finish(&self, mark: &Marked, has_changed: bool) -> Result<Attempt, End> {
        if !self.common.layout().under_replication().unmark(self.ledger, mark.version).await? {
            return Ok(Attempt::Later(Duration::ZERO, "it was marked again".into()));
        }
        let mut state = self.common.state.lock();
        match has_changed {
            true => state.repaired += 1,
            false => state.found_whole += 1,
        }
        Ok(Attempt::Done)
    }

    /// Whether to go on: not at a stop, nor while repair is disabled.
    async fn check_allowed(&self) -> Result<(), End> {
        if *self.stopped.borrow() {
            return Err(End::Attempt(Attempt::Later(Duration::ZERO, "this process stops".into())));
        }
        if self.common.layout().repair_settings().is_disabled().await? {
            self.common.state.lock().is_disabled = true;
            return Err(End::Attempt(Attempt::Later(Duration::from_secs(1), "repair is disabled".into())));
        }
        Ok(())
    }

    /// Puts a new member in the place of a bookie that is away.
    async fn replace(
        &self,
        view: &LedgerView,
        metadata: &LedgerMetadata,
        lack: &Lack,
        live: &BTreeSet<BookieId>,
    ) -> Result<(), End> {
        let segment = metadata
            .segments()
            .iter()
            .find(|segment| segment.first_entry == lack.first)
            .expect("a lack is of a segment of this metadata");
        let sources = metadata.quorum.write_quorum_size() - 1;
        let others = segment.ensemble.iter().filter(|bookie| live.contains(*bookie)).count();
        if sources == 0 || others == 0 {
            return failed(format!(
                "entries {} to {} have no copy left: they come back only with {}",
                lack.first, lack.last, lack.bookie
            ));
        }
        let target = self.target(metadata, segment.ensemble.as_slice(), lack).await?;
        let runs = self.missing_at(metadata, lack, &target).await?;
        self.copy(view, metadata, lack, &runs, &target).await?;
        // What came back is not replaced.
        if self.common.live_now().await?.contains(&lack.bookie) {
            self.common.state.lock().dropped += 1;
            return Err(End::Changed);
        }
        let (current, version) = view.metadata();
        let is_same = current.segments() == metadata.segments() && current.state == metadata.state;
        let Some(changed) = with_member(&current, lack.first, lack.position, &target).filter(|_| is_same)
        else {
            return Err(End::Changed);
        };
        match self.common.layout().ledgers().update(self.ledger, &changed, version).await {
            Ok(_) => {
                tracing::info!(ledger = %self.ledger, first = %lack.first, last = %lack.last, lost = %lack.bookie,
                    new = %target, "copies replaced");
                Ok(())
            }
            Err(LedgerError::Changed(_) | LedgerError::NotFound(_)) => Err(End::Changed),
            // The next look tells whether it was written.
            Err(LedgerError::Store(error)) if error.is_transient() => Err(End::Changed),
            Err(error) => failed(error.to_string()),
        }
    }

    /// A live member that the mark names and that lacks entries, with the runs that it lacks.
    async fn incomplete(
        &self,
        metadata: &LedgerMetadata,
        mark: &Marked,
        live: &BTreeSet<BookieId>,
        completed: &BTreeSet<(EntryId, usize)>,
    ) -> Result<Option<(Lack, Vec<(EntryId, EntryId)>)>, End> {
        if metadata.quorum.write_quorum_size() == 1 {
            // Nobody else has its entries.
            return Ok(None);
        }
        let is_named = |bookie: &BookieId| mark.replicas.iter().any(|replica| replica == bookie.as_str());
        for (segment, end) in segments(metadata) {
            let SegmentEnd::At(last) = end else { continue };
            for (position, bookie) in segment.ensemble.iter().enumerate() {
                let is_completed = completed.contains(&(segment.first_entry, position));
                if !live.contains(bookie) || !is_named(bookie) || is_completed {
                    continue;
                }
                let lack = Lack { first: segment.first_entry, last, position, bookie: bookie.clone() };
                let runs = self.missing_at(metadata, &lack, bookie).await?;
                if !runs.is_empty() {
                    return Ok(Some((lack, runs)));
                }
            }
        }
        Ok(None)
    }

    /// Which entries of a position `bookie` has not got yet.
    async fn missing_at(
        &self,
        metadata: &LedgerMetadata,
        lack: &Lack,
        bookie: &BookieId,
    ) -> Result<Vec<(EntryId, EntryId)>, End> {
        match self.common.client.entries_of(bookie, self.ledger).await {
            Ok(found) => {
                let has = |entry| found.as_ref().is_some_and(|found| found.contains(entry));
                Ok(missing_runs(metadata, lack, has))
            }
            // It cannot tell: it may lack anything.
            Err(BookieError::Refused(ErrorCode::UnknownLedgerState | ErrorCode::BadRequest)) => {
                Ok(missing_runs(metadata, lack, |_| false))
            }
            Err(error) => failed(format!("{bookie} does not say which entries it has: {error}")),
        }
    }

    /// Who gets the copies of a position.
    async fn target(
        &self,
        metadata: &LedgerMetadata,
        ensemble: &[BookieId],
        lack: &Lack,
    ) -> Result<BookieId, End> {
        let positions = [lack.position];
        let wanted = Wanted::new(metadata.quorum, ensemble, &positions);
        let nobody = || format!("no bookie that takes writes can take the place of {}: add one", lack.bookie);
        match &self.common.config.targets {
            Targets::Own(own) => {
                if self.common.client.may_replace(own, wanted).await? {
                    return Ok(own.clone());
                }
                let choice = self.common.client.replacements(wanted, &BTreeSet::new()).await?;
                match choice.bookies.is_empty() {
                    true => failed(nobody()),
                    // Another bookie's worker takes it.
                    false => Err(End::Attempt(Attempt::Elsewhere)),
                }
            }
            Targets::Any => {
                let choice = self.common.client.replacements(wanted, &BTreeSet::new()).await?;
                choice.bookies.into_iter().next().map_or_else(|| failed(nobody()), Ok)
            }
        }
    }

    /// Copies runs of entries of a position.
    async fn copy(
        &self,
        view: &LedgerView,
        metadata: &LedgerMetadata,
        lack: &Lack,
        runs: &[(EntryId, EntryId)],
        target: &BookieId,
    ) -> Result<(), End> {
        let Some(secret) = &metadata.secret else {
            return failed(
                "its metadata is of version 1 and has no password: copies could not be verified or stored",
            );
        };
        if !view.is_sealed() && !runs.is_empty() {
            // What may be read of it is to be known.
            view.refresh().await.map_err(read_failed)?;
        }
        let key = secret.master_key();
        let is_lost = target != &lack.bookie;
        for (first, last) in runs {
            let mut stream = view.read_position(*first, *last, lack.position);
            let mut copies: JoinSet<Result<(), BookieError>> = JoinSet::new();
            while let Some(batch) = stream.next().await {
                let batch = batch.map_err(read_failed)?;
                while copies.len() >= COPIES_MAX {
                    self.copied(target, copies.join_next().await)?;
                }
                self.send(&mut copies, target.clone(), key, batch);
                if *self.stopped.borrow() {
                    return Err(End::Attempt(Attempt::Later(Duration::ZERO, "this process stops".into())));
                }
                if is_lost && self.common.live().await?.contains(&lack.bookie) {
                    self.common.state.lock().dropped += 1;
                    return Err(End::Changed);
                }
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
        {
            let mut state = self.common.state.lock();
            state.entries += entries.len() as u64;
            state.bytes += entries.iter().map(|entry| entry.bytes.len() as u64).sum::<u64>();
        }
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
    ) -> Result<(), End> {
        match ended {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => failed(format!("{target} does not take copies: {error}")),
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Closes a ledger whose last ensemble has lost a bookie, after its grace and unless it is written to.
    async fn close(
        &self,
        view: &LedgerView,
        metadata: &LedgerMetadata,
        mark: &Marked,
        found: &Audit,
    ) -> Result<(), End> {
        let grace = self.common.config.open_grace;
        let names = found.open.iter().map(|bookie| bookie.as_str()).collect::<Vec<_>>().join(", ");
        let marked_ms = mark.since_ms.unwrap_or(0);
        let age_ms = self.common.clock.wall_ms().saturating_sub(marked_ms);
        let age = Duration::from_millis(u64::try_from(age_ms).unwrap_or(0));
        if metadata.state == LedgerState::Open {
            if age < grace {
                let why = format!("it is open: its writer has {grace:?} to replace {names}");
                return Err(End::Attempt(Attempt::Later(grace - age, why)));
            }
            if self.is_written_to(view).await? {
                let why = format!("it is open, and written to without {names}");
                return Err(End::Attempt(Attempt::Later(grace.max(Duration::from_secs(5)), why)));
            }
        }
        let Some(secret) = &metadata.secret else {
            return failed("it is not closed, and its metadata has no password to close it with");
        };
        // The writer may have replaced it while this looked.
        view.reread().await.map_err(read_failed)?;
        if view.metadata().0.segments() != metadata.segments() {
            return Err(End::Changed);
        }
        let opened = self.common.client.open_ledger(self.ledger, &secret.password, OpenMode::Recover).await;
        match opened {
            Ok(_) => {
                self.common.state.lock().closed += 1;
                tracing::info!(ledger = %self.ledger, lost = names, "closed an open ledger to repair it");
                Ok(())
            }
            Err(error) => failed(format!("it cannot be closed: {error}")),
        }
    }

    /// Whether the end of an open ledger is seen to move.
    async fn is_written_to(&self, view: &LedgerView) -> Result<bool, End> {
        let Ok(before) = view.refresh().await else { return Ok(false) };
        let mut stopped = self.stopped.clone();
        if super::pause(&mut stopped, ALIVE_LOOK).await {
            return Err(End::Attempt(Attempt::Later(Duration::ZERO, "this process stops".into())));
        }
        let Ok(after) = view.refresh().await else { return Ok(false) };
        Ok(after > before)
    }
}

fn read_failed(error: ReadError) -> End {
    End::Attempt(Attempt::Failed(error.to_string()))
}
