//! The repair of one ledger.
//!
//! ```text
//! lock --> mark, metadata --> what is lacking --> who gets it --> entries that are not there yet --> copies
//!   '------- mark goes, lock goes <-- nothing lacking <-- metadata names the new member <-- all acknowledged
//! ```
//!
//! # Limits     copies under way: the budget of the bulk reader; [`COPIES_MAX`] batches of a ledger wait for acknowledgements

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bindery_client::repair::with_member;
use bindery_client::transport::BookieError;
use bindery_client::{EntryAvailability, ErrorCode, LedgerView, OpenMode, ReadError, StoredBatch, Wanted};
use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, Marked, ReplicationLock};
use bindery_types::{BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, MasterKey};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Common, Targets};
use crate::core::audit::{Audit, Lack, SegmentEnd, audit, missing_runs, segments};
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
    let attempt = match (Job { common, ledger, stopped, lock: &lock }).run().await {
        Ok(attempt) | Err(End::Attempt(attempt)) => attempt,
        Err(End::Changed) => Attempt::Failed("its metadata keeps changing".into()),
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
    lock: &'a ReplicationLock,
}

impl Job<'_> {
    async fn run(&self) -> Result<Attempt, End> {
        let marks = self.common.layout().under_replication();
        let Some(mark) = marks.marked(self.ledger).await? else { return Ok(Attempt::Done) };
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
            self.check_allowed().await?;
            let live = self.common.live_now().await?;
            let (metadata, _) = view.metadata();
            let found = audit(&metadata, |bookie| live.contains(bookie));
            let awaited = self.awaited(&found, &mark).await?;
            let is_left = |lack: &&Lack| {
                !awaited.contains_key(&lack.bookie) && !given_up.contains_key(&(lack.first, lack.position))
            };
            let (place, step) = if let Some(lack) = found.lacks.iter().find(is_left) {
                ((lack.first, lack.position), self.replace(&view, &metadata, lack, &live).await)
            } else if let Some(lack) = self.incomplete(&metadata, &mark, &live, &completed, &given_up).await?
            {
                let place = (lack.first, lack.position);
                let copied = self.fill(&view, &metadata, &lack, &lack.bookie).await;
                if copied.is_ok() {
                    completed.insert(place);
                }
                (place, copied)
            } else if !given_up.is_empty() {
                // One that needs an operator tells more than one that another worker takes.
                let tells = |attempt: &Attempt| matches!(attempt, Attempt::Failed(_));
                let why = given_up.values().find(|attempt| tells(attempt)).or(given_up.values().next());
                return Ok(why.expect("it is not empty").clone());
            } else if let Some((bookie, left)) = awaited.iter().min_by_key(|(_, left)| **left) {
                let why = format!("{bookie} is away: it has {left:?} to come back before it is replaced");
                return Ok(Attempt::Later((*left).min(AWAITED_PAUSE_MAX), why));
            } else if found.open.is_empty() {
                return self.finish(&mark, has_changed).await;
            } else {
                self.close(&view, &metadata, &found, &live).await?;
                view.reread().await.map_err(read_failed)?;
                continue;
            };
            match step {
                Ok(()) => has_changed = true,
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

    /// Bookies that are away and not replaced yet, and how long their return is waited for still.
    async fn awaited(&self, found: &Audit, mark: &Marked) -> Result<BTreeMap<BookieId, Duration>, End> {
        if self.common.is_on_demand || found.is_whole() || found.is_endangered() {
            return Ok(BTreeMap::new());
        }
        // Auditors and operators say since when; writers do not.
        let ordered = if mark.since_ms.is_some() { mark.replicas.as_slice() } else { &[] };
        let delay = self.common.delay().await?;
        Ok(self.common.absences.lock().awaited(self.common.now(), delay, found, ordered))
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
        let mut state = self.common.state.lock();
        match has_changed {
            true => state.repaired += 1,
            false => state.found_whole += 1,
        }
        Ok(Attempt::Done)
    }

    /// Whether to go on: not at a stop, nor while repair is disabled, nor without the lock.
    async fn check_allowed(&self) -> Result<(), End> {
        if self.common.layout().repair_settings().is_disabled().await? {
            self.common.state.lock().is_disabled = true;
        }
        self.check_going()
    }

    /// The same as far as it is known without a request.
    fn check_going(&self) -> Result<(), End> {
        let later = |pause, why: &str| Err(End::Attempt(Attempt::Later(pause, why.to_owned())));
        if *self.stopped.borrow() {
            return later(Duration::ZERO, "this process stops");
        }
        if self.common.state.lock().is_disabled {
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
        self.fill(view, metadata, lack, &target).await?;
        self.check_allowed().await?;
        self.check_held().await?;
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
        if metadata.quorum.write_quorum_size() == 1 {
            return failed(format!(
                "no other bookie has the entries of {}: there is one copy of each",
                lack.bookie
            ));
        }
        let held = self.held_by(target).await?;
        for slice in slices(lack) {
            let runs = missing_runs(metadata, &slice, |entry| held.has(entry));
            self.copy(view, metadata, lack, &runs, target).await?;
            self.check_going()?;
            tokio::task::yield_now().await;
        }
        Ok(())
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
                self.check_going()?;
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
        self.check_allowed().await?;
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
