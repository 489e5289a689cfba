//! The repair of one ledger.
//!
//! ```text
//! lock --> mark, metadata --> what is lacking --> who gets it --> entries that are not there yet --> copies
//!   '------- mark goes, lock goes <-- nothing lacking <-- metadata names the new member <-- all acknowledged
//! ```
//!
//! # Limits     copies under way: the budget of the bulk reader; [`COPIES_MAX`] batches of a ledger wait for acknowledgements

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bindery_client::repair::with_member;
use bindery_client::transport::BookieError;
use bindery_client::{
    EntryAvailability, ErrorCode, LedgerView, OpenMode, ReadError, StoredBatch, StoredEntry, StoredStream,
    Wanted,
};
use bindery_engine::Engine;
use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, Marked, Repaired, ReplicationLock};
use bindery_metadata::store::Version;
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, MasterKey};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::intake::{self, INTAKE_BYTES_MIN, Intake, IntakeError};
use super::{Common, Targets};
use crate::core::audit::{
    Audit, Lack, SegmentEnd, audit, entry_bytes, lacks_nothing, missing_runs, segments,
};
use crate::core::queue::Attempt;

/// Batches of a ledger that wait for acknowledgements.
const COPIES_MAX: usize = 4;
/// Changes of metadata in one attempt: each replaces a member, or meets another's change.
const STEPS_MAX: usize = 1000;
/// Between two looks at the end of an open ledger whose writer may be alive.
const ALIVE_LOOK: Duration = Duration::from_secs(2);
/// Pauses before another attempt: while repair is disabled, of a ledger that was marked again, of one whose bookie may come back, and of
/// one that is written to.
const DISABLED_PAUSE: Duration = Duration::from_secs(1);
const MARKED_AGAIN_PAUSE: Duration = Duration::from_millis(500);
const AWAITED_PAUSE_MAX: Duration = Duration::from_secs(120);
const WRITTEN_PAUSE_MIN: Duration = Duration::from_secs(5);

/// What a change of the ledger came to.
enum Step {
    /// It may lack more.
    Part,
    /// It lacks nothing, its mark is gone, and its lock is given back.
    Whole,
}

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
/// `is_for_others`: no worker of a bookie that could take its copies did, so they are sent to one.
pub(super) async fn repair(
    common: &Common,
    ledger: LedgerId,
    is_for_others: bool,
    stopped: &watch::Receiver<bool>,
) -> Attempt {
    let locks = common.layout().replication_locks();
    let lock = match locks.try_lock(ledger, &common.config.name).await {
        Ok(Some(lock)) => lock,
        Ok(None) => return Attempt::Elsewhere,
        Err(error) => return Attempt::Failed(error.to_string()),
    };
    let job =
        Job { common, ledger, is_for_others, stopped, lock: &lock, lock_place: Mutex::new(LockPlace::Held) };
    let attempt = match job.run().await {
        Ok(attempt) | Err(End::Attempt(attempt)) => attempt,
        Err(End::Changed) => Attempt::Failed("its metadata keeps changing".into()),
    };
    let has_lock = match job.lock_place.into_inner() {
        LockPlace::Held => true,
        LockPlace::GivenBack => false,
        // Another worker of another session may have it by now: its lock looks the same.
        LockPlace::Unknown => locks.holds(&lock).await.unwrap_or(false),
    };
    if !has_lock {
        return attempt;
    }
    if let Err(error) = locks.unlock(lock).await {
        // It goes with the session, and is found again by the next attempt.
        tracing::debug!(%ledger, %error, "the lock could not be given back");
    }
    attempt
}

struct Job<'a> {
    common: &'a Common,
    ledger: LedgerId,
    is_for_others: bool,
    stopped: &'a watch::Receiver<bool>,
    lock: &'a ReplicationLock,
    /// Where the lock is, as far as is known.
    lock_place: Mutex<LockPlace>,
}

/// Where the lock of a ledger is.
enum LockPlace {
    /// This session holds it.
    Held,
    /// It was given back in the transaction that ended the repair.
    GivenBack,
    /// The answer to that transaction was lost.
    Unknown,
}

impl Job<'_> {
    async fn run(&self) -> Result<Attempt, End> {
        let marks = self.common.layout().under_replication();
        let Some(mark) = marks.marked(self.ledger).await? else {
            marks.clear(self.ledger).await?;
            return Ok(Attempt::Done);
        };
        let view = match self.common.bulk.open(self.ledger).await {
            Ok(view) => view,
            Err(ReadError::Deleted(_)) => return self.gone(&mark).await,
            Err(error) => return failed(error.to_string()),
        };
        let mut has_changed = false;
        // Members that got all that they lacked. One in limbo goes on saying that it does not know, until it has compared.
        let mut completed: BTreeSet<(EntryId, usize)> = BTreeSet::new();
        // Positions that cannot be repaired now, and why: they hold up no other of the ledger.
        let mut given_up: BTreeMap<(EntryId, usize), Attempt> = BTreeMap::new();
        for _ in 0..STEPS_MAX {
            self.check_going().await?;
            let bookies = self.common.bookies().await?;
            let live = &bookies.ids;
            let (metadata, _) = view.metadata();
            let lost = audit(&metadata, |bookie| live.contains(bookie));
            let awaited = self.awaited(&lost, &mark).await?;
            // One that is being emptied is there, and its copies are to be replaced like those of one that is away.
            let leaving = self.common.leaving(&mark.replicas).await?;
            let staying: BTreeSet<BookieId> = live.difference(&leaving).cloned().collect();
            let found = audit(&metadata, |bookie| staying.contains(bookie));
            let is_left = |lack: &&Lack| {
                !awaited.contains_key(&lack.bookie) && !given_up.contains_key(&(lack.first, lack.position))
            };
            let (place, step) = if let Some(lack) = found.lacks.iter().find(is_left) {
                ((lack.first, lack.position), self.replace(&view, &metadata, lack, &mark, live).await)
            } else if let Some(lack) =
                self.incomplete(&metadata, &mark, &staying, &completed, &given_up).await?
            {
                let place = (lack.first, lack.position);
                let copied = self.fill(&view, &metadata, &lack, &lack.bookie).await;
                if copied.is_ok() {
                    completed.insert(place);
                }
                (place, copied.map(|()| Step::Part))
            } else if !given_up.is_empty() {
                // One that needs an operator tells more than one that another worker takes.
                let tells = |attempt: &Attempt| matches!(attempt, Attempt::Failed(_));
                let why = given_up.values().find(|attempt| tells(attempt)).or(given_up.values().next());
                return Ok(why.expect("it is not empty").clone());
            } else if let Some((bookie, left)) = awaited.iter().min_by_key(|(_, left)| **left) {
                let why = format!("{bookie} is away: it has {left:?} to come back before it is replaced");
                return Ok(Attempt::Later((*left).min(AWAITED_PAUSE_MAX), why));
            } else if lost.open.is_empty() {
                // An open ledger's writer leaves a bookie that is being emptied, with its next add.
                return self.finish(&mark, has_changed).await;
            } else {
                self.close(&view, &metadata, &lost, live).await?;
                view.reread().await.map_err(read_failed)?;
                continue;
            };
            match step {
                Ok(Step::Whole) => return Ok(self.repaired()),
                Ok(Step::Part) => has_changed = true,
                Err(End::Changed) => {}
                Err(End::Attempt(attempt @ Attempt::Later(..))) => return Ok(attempt),
                Err(End::Attempt(attempt)) => drop(given_up.insert(place, attempt)),
            }
            match view.reread().await {
                Ok(()) => {}
                Err(ReadError::Deleted(_)) => return self.gone(&mark).await,
                Err(error) => return failed(error.to_string()),
            }
        }
        Err(End::Changed)
    }

    /// Bookies that are away and may still return, and the time they have left before they are replaced.
    async fn awaited(&self, found: &Audit, mark: &Marked) -> Result<BTreeMap<BookieId, Duration>, End> {
        if self.common.is_on_demand || found.is_whole() {
            return Ok(BTreeMap::new());
        }
        let delay = self.common.delay().await?;
        let now = self.common.now();
        // Auditors and operators say since when; writers do not.
        let ordered = mark.since_ms.map(|since_ms| {
            let age_ms = self.common.clock.wall_ms().saturating_sub(since_ms).max(0).unsigned_abs();
            (now.saturating_sub(Duration::from_millis(age_ms)), mark.replicas.as_slice())
        });
        Ok(self.common.absences.lock().awaited(
            now,
            (delay, self.common.config.auditor.settle),
            found,
            ordered,
        ))
    }

    /// The ledger was deleted.
    async fn gone(&self, mark: &Marked) -> Result<Attempt, End> {
        self.common.layout().under_replication().unmark(self.ledger, mark.version).await?;
        Ok(Attempt::Done)
    }

    /// The ledger lacks nothing: its mark goes, unless it was marked again.
    async fn finish(&self, mark: &Marked, has_changed: bool) -> Result<Attempt, End> {
        self.check_held().await?;
        if !self.common.layout().under_replication().unmark(self.ledger, mark.version).await? {
            return Ok(Attempt::Later(MARKED_AGAIN_PAUSE, "it was marked again".into()));
        }
        if has_changed {
            return Ok(self.repaired());
        }
        self.common.state.lock().found_whole += 1;
        Ok(Attempt::Done)
    }

    fn repaired(&self) -> Attempt {
        self.common.state.lock().repaired += 1;
        Attempt::Done
    }

    /// Whether to go on: not at a stop, nor while repair is disabled, nor without the lock, as far as that is known without a request.
    async fn check_going(&self) -> Result<(), End> {
        let later = |pause, why: &str| Err(End::Attempt(Attempt::Later(pause, why.to_owned())));
        if *self.stopped.borrow() {
            return later(Duration::ZERO, "this process stops");
        }
        if self.common.facts.is_disabled().await? {
            self.common.state.lock().is_disabled = true;
            return later(DISABLED_PAUSE, "repair is disabled");
        }
        if !self.common.layout().replication_locks().may_hold(self.lock) {
            return failed("the session that held its lock ended");
        }
        Ok(())
    }

    /// Whether the lock is there still. Before everything that others believe: without it a target may remove the copies as surplus.
    async fn check_held(&self) -> Result<(), End> {
        match self.common.layout().replication_locks().holds(self.lock).await? {
            true => Ok(()),
            false => failed("its lock was lost"),
        }
    }

    /// Whether a bookie is there that is not being emptied: its copies are not replaced then.
    async fn is_staying(&self, bookie: &BookieId) -> Result<bool, End> {
        let is_there = self.common.bookies().await?.ids.contains(bookie);
        Ok(is_there && !self.common.facts.draining().await?.contains(bookie))
    }

    /// Puts a new member in the place of a bookie that is away, or that is being emptied.
    async fn replace(
        &self,
        view: &LedgerView,
        metadata: &LedgerMetadata,
        lack: &Lack,
        mark: &Marked,
        live: &BTreeSet<BookieId>,
    ) -> Result<Step, End> {
        let segment = metadata
            .segments()
            .iter()
            .find(|segment| segment.first_entry == lack.first)
            .expect("a lack is of a segment of this metadata");
        let sources = metadata.quorum.write_quorum_size() - 1;
        let others = segment.ensemble.iter().filter(|bookie| live.contains(*bookie)).count();
        // One that is being emptied is a source, too.
        if !live.contains(&lack.bookie) && (sources == 0 || others == 0) {
            return failed(format!(
                "entries {} to {} have no copy left: they come back only with {}",
                lack.first, lack.last, lack.bookie
            ));
        }
        let target = self.target(metadata, segment.ensemble.as_slice(), lack).await?;
        self.fill(view, metadata, lack, &target).await?;
        self.check_going().await?;
        // What came back is not replaced.
        if self.is_staying(&lack.bookie).await? {
            self.common.state.lock().dropped += 1;
            return Err(End::Changed);
        }
        let bookies = self.common.bookies().await?;
        let leaving = self.common.leaving(&mark.replicas).await?;
        let (current, version) = view.metadata();
        let is_same = current.segments() == metadata.segments() && current.state == metadata.state;
        let Some(changed) = with_member(&current, lack.first, lack.position, &target).filter(|_| is_same)
        else {
            return Err(End::Changed);
        };
        let named = || {
            tracing::info!(ledger = %self.ledger, first = %lack.first, last = %lack.last, lost = %lack.bookie,
                new = %target, "copies replaced");
        };
        let is_staying = |bookie: &BookieId| bookies.ids.contains(bookie) && !leaving.contains(bookie);
        if lacks_nothing(&changed, &mark.replicas, is_staying)
            && let Some(step) = self.commit_whole(&changed, version, mark).await?
        {
            named();
            return Ok(step);
        }
        self.check_held().await?;
        match self.common.layout().ledgers().update(self.ledger, &changed, version).await {
            Ok(_) => {
                named();
                Ok(Step::Part)
            }
            Err(LedgerError::Changed(_) | LedgerError::NotFound(_)) => Err(End::Changed),
            // The next look tells whether it was written.
            Err(LedgerError::Store(error)) if error.is_transient() => Err(End::Changed),
            Err(error) => failed(error.to_string()),
        }
    }

    /// Names the last member that was lacking, removes the mark and gives the lock back, in one request. `None` when any of these is not as it
    /// was read.
    async fn commit_whole(
        &self,
        changed: &LedgerMetadata,
        version: Version,
        mark: &Marked,
    ) -> Result<Option<Step>, End> {
        let repaired =
            Repaired { ledger: self.ledger, metadata: changed, version, mark: mark.version, lock: self.lock };
        match self.common.layout().commit_repair(&repaired).await {
            Ok(true) => {
                *self.lock_place.lock() = LockPlace::GivenBack;
                Ok(Some(Step::Whole))
            }
            Ok(false) => Ok(None),
            // The next look tells whether it was written.
            Err(error) if error.is_transient() => {
                *self.lock_place.lock() = LockPlace::Unknown;
                Err(End::Changed)
            }
            Err(error) => failed(error.to_string()),
        }
    }

    /// A position of a live member that the mark names and that lacks entries.
    async fn incomplete(
        &self,
        metadata: &LedgerMetadata,
        mark: &Marked,
        live: &BTreeSet<BookieId>,
        completed: &BTreeSet<(EntryId, usize)>,
        given_up: &BTreeMap<(EntryId, usize), Attempt>,
    ) -> Result<Option<Lack>, End> {
        let is_named = |bookie: &BookieId| mark.replicas.iter().any(|replica| replica == bookie.as_str());
        for (segment, end) in segments(metadata) {
            let SegmentEnd::At(last) = end else { continue };
            for (position, bookie) in segment.ensemble.iter().enumerate() {
                let place = (segment.first_entry, position);
                let is_settled = completed.contains(&place) || given_up.contains_key(&place);
                if is_settled || !live.contains(bookie) || !is_named(bookie) {
                    continue;
                }
                let lack = Lack { first: segment.first_entry, last, position, bookie: bookie.clone() };
                let held = self.held_by(bookie).await?;
                let lacks_some = |slice| !missing_runs(metadata, &slice, |entry| held.has(entry)).is_empty();
                // A bookie with nothing lacks some of the first slice, so most answers come at once.
                if slices(&lack).any(lacks_some) {
                    return Ok(Some(lack));
                }
            }
        }
        Ok(None)
    }

    /// Which entries a bookie has: none if it cannot tell.
    async fn held_by(&self, bookie: &BookieId) -> Result<Held, End> {
        match self.common.client.entries_of(bookie, self.ledger).await {
            Ok(found) => Ok(Held(found)),
            // It may lack anything.
            Err(BookieError::Refused(ErrorCode::UnknownLedgerState | ErrorCode::BadRequest)) => {
                Ok(Held(None))
            }
            Err(error) => failed(format!("{bookie} does not say which entries it has: {error}")),
        }
    }

    /// Copies what a bookie has not got of a position, a slice of the entries after the other.
    async fn fill(
        &self,
        view: &LedgerView,
        metadata: &LedgerMetadata,
        lack: &Lack,
        target: &BookieId,
    ) -> Result<(), End> {
        let is_source = target != &lack.bookie && self.common.bookies().await?.ids.contains(&lack.bookie);
        if metadata.quorum.write_quorum_size() == 1 && !is_source {
            return failed(format!(
                "no other bookie has the entries of {}: there is one copy of each",
                lack.bookie
            ));
        }
        let Some(secret) = &metadata.secret else {
            return failed(
                "its metadata is of version 1 and has no password: copies could not be verified or stored",
            );
        };
        let copying = Copying { view, metadata, lack, target, key: secret.master_key() };
        match self.own_engine(target) {
            Some(engine) => self.fill_own(&copying, engine).await,
            None => {
                let held = self.held_by(target).await?;
                for slice in slices(lack) {
                    let runs = missing_runs(metadata, &slice, |entry| held.has(entry));
                    self.send_all(&copying, &runs).await?;
                    self.check_going().await?;
                    tokio::task::yield_now().await;
                }
                Ok(())
            }
        }
    }

    /// The engine of a bookie, if this process is that bookie.
    fn own_engine(&self, bookie: &BookieId) -> Option<&Arc<Engine>> {
        let is_own = matches!(&self.common.config.targets, Targets::Own(own) if own == bookie);
        self.common.own.as_ref().filter(|_| is_own).map(|own| &own.engine)
    }

    /// As [`fill`](Self::fill), of the bookie that this process is: large copies go past its journal.
    async fn fill_own(&self, copying: &Copying<'_>, engine: &Arc<Engine>) -> Result<(), End> {
        for slice in slices(copying.lack) {
            let mut runs = self.missing_here(copying, engine, &slice).await?;
            let is_closed = matches!(copying.metadata.state, LedgerState::Closed { .. });
            // An ingest refuses what takes the place of damaged copies: it would be copied for nothing.
            let is_damaged = engine
                .damaged_of(self.ledger)
                .iter()
                .any(|range| range.first <= slice.last && slice.first <= range.last);
            if is_closed && !is_damaged && copying.bytes_of(&runs) >= INTAKE_BYTES_MIN {
                match self.take_in(copying, engine, &runs).await? {
                    Ok(()) => runs.clear(),
                    Err(why) => {
                        tracing::debug!(ledger = %self.ledger, %why, "copies go through the journal");
                        runs = self.missing_here(copying, engine, &slice).await?;
                    }
                }
            }
            self.send_all(copying, &runs).await?;
            self.check_going().await?;
        }
        Ok(())
    }

    /// Runs of entries of a slice that this bookie lacks.
    async fn missing_here(
        &self,
        copying: &Copying<'_>,
        engine: &Arc<Engine>,
        slice: &Lack,
    ) -> Result<Vec<(EntryId, EntryId)>, End> {
        let held = intake::held(engine, self.ledger, slice.first, slice.last).await;
        let held = held.map_err(|error| End::Attempt(Attempt::Failed(error.to_string())))?;
        Ok(missing_runs(copying.metadata, slice, |entry| {
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
    ) -> Result<Result<(), IntakeError>, End> {
        let ended = |error: IntakeError| match error.is_for_journal() {
            true => Ok(Err(error)),
            false => failed(error.to_string()),
        };
        let mut intake = match Intake::begin(engine, self.ledger, copying.key).await {
            Ok(intake) => intake,
            Err(error) => return ended(error),
        };
        for run in runs {
            let mut stream = copying.read(*run);
            while let Some(batch) = stream.next().await {
                let batch = batch.map_err(read_failed)?;
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
    async fn check_wanted(&self, copying: &Copying<'_>) -> Result<(), End> {
        self.check_going().await?;
        let Copying { lack, target, .. } = copying;
        if **target != lack.bookie && self.is_staying(&lack.bookie).await? {
            self.common.state.lock().dropped += 1;
            return Err(End::Changed);
        }
        Ok(())
    }

    /// Counts entries, and returns their bytes.
    fn note_copied(&self, entries: &[StoredEntry]) -> u64 {
        let bytes = entries.iter().map(|entry| entry.bytes.len() as u64).sum();
        let mut state = self.common.state.lock();
        state.entries += entries.len() as u64;
        state.bytes += bytes;
        bytes
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
        let registered = &self.common.bookies().await?.registered;
        let client = &self.common.client;
        let nobody = || format!("no bookie that takes writes can take the place of {}: add one", lack.bookie);
        match &self.common.config.targets {
            Targets::Own(own) => {
                if client.may_replace(own, wanted, registered).await {
                    return Ok(own.clone());
                }
                match client.replacements(wanted, registered).await.bookies.into_iter().next() {
                    None => failed(nobody()),
                    Some(other) if self.is_for_others => Ok(other),
                    // The worker of another bookie takes it.
                    Some(_) => Err(End::Attempt(Attempt::NotHere)),
                }
            }
            Targets::Any => {
                let choice = client.replacements(wanted, registered).await;
                choice.bookies.into_iter().next().map_or_else(|| failed(nobody()), Ok)
            }
        }
    }

    /// Copies runs of entries to the target as adds.
    async fn send_all(&self, copying: &Copying<'_>, runs: &[(EntryId, EntryId)]) -> Result<(), End> {
        let Copying { view, target, key, .. } = copying;
        if !view.is_sealed() && !runs.is_empty() {
            // What may be read of it is to be known.
            view.refresh().await.map_err(read_failed)?;
        }
        for run in runs {
            let mut stream = copying.read(*run);
            let mut copies: JoinSet<Result<(), BookieError>> = JoinSet::new();
            while let Some(batch) = stream.next().await {
                let batch = batch.map_err(read_failed)?;
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
        found: &Audit,
        live: &BTreeSet<BookieId>,
    ) -> Result<(), End> {
        let grace = self.common.config.open_grace;
        let names = found.open.iter().map(|bookie| bookie.as_str()).collect::<Vec<_>>().join(", ");
        let later = |pause, why| Err(End::Attempt(Attempt::Later(pause, why)));
        if metadata.state == LedgerState::Open {
            // Since this worker knows: a mark may be old, and may not say since when.
            let since = *self.common.open_since.lock().entry(self.ledger).or_insert_with(Instant::now);
            let age = since.elapsed();
            if age < grace {
                return later(
                    grace - age,
                    format!("it is open: its writer has {grace:?} to replace {names}"),
                );
            }
            if self.is_written_to(view, metadata, live).await? {
                let pause = grace.max(WRITTEN_PAUSE_MIN);
                return later(pause, format!("it is open, and written to without {names}"));
            }
        }
        let Some(secret) = &metadata.secret else {
            return failed("it is not closed, and its metadata has no password to close it with");
        };
        self.check_going().await?;
        self.check_held().await?;
        // The writer may have replaced it while this looked.
        view.reread().await.map_err(read_failed)?;
        if view.metadata().0.segments() != metadata.segments() {
            return Ok(());
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

    /// Whether entries are seen to come to any member of the last ensemble. A failure if no member can be asked: then nothing is known of
    /// its writer.
    async fn is_written_to(
        &self,
        view: &LedgerView,
        metadata: &LedgerMetadata,
        live: &BTreeSet<BookieId>,
    ) -> Result<bool, End> {
        let members =
            metadata.segments().last().map(|segment| segment.ensemble.as_slice()).unwrap_or_default();
        let members: Vec<&BookieId> = members.iter().filter(|bookie| live.contains(*bookie)).collect();
        let before = self.counts(&members).await;
        let lac_before = view.refresh().await.ok();
        let mut stopped = self.stopped.clone();
        if super::pause(&mut stopped, ALIVE_LOOK).await {
            return Err(End::Attempt(Attempt::Later(Duration::ZERO, "this process stops".into())));
        }
        let after = self.counts(&members).await;
        let lac_after = view.refresh().await.ok();
        let counts: Vec<(u64, u64)> =
            before.into_iter().zip(after).filter_map(|(before, after)| Some((before?, after?))).collect();
        if counts.is_empty() {
            return failed("it is open, and no bookie of its last ensemble says whether it is written to");
        }
        let has_grown = counts.iter().any(|(before, after)| after > before);
        Ok(has_grown || matches!((lac_before, lac_after), (Some(before), Some(after)) if after > before))
    }

    /// How many entries of the ledger each of these bookies has; `None` of one that does not say.
    async fn counts(&self, bookies: &[&BookieId]) -> Vec<Option<u64>> {
        let mut counts = Vec::with_capacity(bookies.len());
        for bookie in bookies {
            let found = self.common.client.entries_of(bookie, self.ledger).await;
            counts.push(found.ok().map(|found| found.map_or(0, |found| found.entry_count())));
        }
        counts
    }
}

/// Copies of a position on their way to a bookie.
struct Copying<'a> {
    view: &'a LedgerView,
    metadata: &'a LedgerMetadata,
    lack: &'a Lack,
    target: &'a BookieId,
    key: MasterKey,
}

impl Copying<'_> {
    fn read(&self, (first, last): (EntryId, EntryId)) -> StoredStream {
        self.view.read_position(first, last, self.lack.position)
    }

    /// About how many bytes the entries of the position in these runs have.
    fn bytes_of(&self, runs: &[(EntryId, EntryId)]) -> u64 {
        let numbers = |(first, last): &(EntryId, EntryId)| (last.get() - first.get()).unsigned_abs() + 1;
        let quorum = self.metadata.quorum;
        let (copies, bookies) = (quorum.write_quorum_size() as u64, quorum.ensemble_size() as u64);
        let entries = runs.iter().map(numbers).sum::<u64>() * copies / bookies.max(1);
        entries.saturating_mul(entry_bytes(self.metadata))
    }
}

/// What a bookie has of a ledger.
struct Held(Option<EntryAvailability>);

impl Held {
    fn has(&self, entry: EntryId) -> bool {
        self.0.as_ref().is_some_and(|found| found.contains(entry))
    }
}

/// Entries of a position that are looked at together: a ledger may claim to have any number.
const SLICE_ENTRIES: i64 = 1 << 20;

/// The entries of a position in slices.
fn slices(lack: &Lack) -> impl Iterator<Item = Lack> + '_ {
    let mut next = Some(lack.first);
    std::iter::from_fn(move || {
        let first = next.filter(|first| *first <= lack.last)?;
        let beyond = first.get().checked_add(SLICE_ENTRIES).and_then(EntryId::new);
        let last = beyond
            .map_or(lack.last, |beyond| EntryId::new(beyond.get() - 1).expect("above an id").min(lack.last));
        next = beyond;
        Some(Lack { first, last, ..lack.clone() })
    })
}

fn read_failed(error: ReadError) -> End {
    End::Attempt(Attempt::Failed(error.to_string()))
}
