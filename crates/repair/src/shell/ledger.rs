//! The repair of one ledger: does what the core ([`LedgerRepair`]) asks for.
//!
//! ```text
//! lock --> mark --> LedgerRepair --action--> metadata, lists, placement, copies, close --outcome--> LedgerRepair ... --> lock goes
//! ```
//!
//! # Limits     copies under way: see [`copying`](super::copying)

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bindery_client::transport::BookieError;
use bindery_client::{EntryAvailability, ErrorCode, LedgerView, OpenMode, ReadError, Wanted};
use bindery_io::canary::Canaries;
use bindery_metadata::StoreError;
use bindery_metadata::layout::{LedgerError, Marked, Repaired, ReplicationLock};
use bindery_metadata::store::Version;
use bindery_types::{BookieId, EntryId, LedgerId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::facts::Bookies;
use super::{Common, Targets};
use crate::core::audit::{Audit, Lack};
use crate::core::ledger::{Action, Facts, LedgerRepair, LockPlace, Named, Naming, Patience, Tally};
use crate::core::queue::Attempt;

/// Between two looks at the end of an open ledger whose writer may be alive.
const ALIVE_LOOK: Duration = Duration::from_secs(2);

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
    let looked_at_places = Mutex::default();
    let job = Job { common, ledger, is_for_others, stopped, lock: &lock, looked_at_places };
    let (attempt, place) = job.attempt().await;
    let has_lock = match place {
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

/// One ledger whose lock is held.
pub(super) struct Job<'a> {
    pub common: &'a Common,
    pub ledger: LedgerId,
    is_for_others: bool,
    stopped: &'a watch::Receiver<bool>,
    lock: &'a ReplicationLock,
    /// When the look at places in object storage began on which the naming after the last copy relies, if it does.
    pub(super) looked_at_places: Mutex<Option<Instant>>,
}

/// What is known without a request, at one moment.
pub(super) struct Known {
    bookies: Arc<Bookies>,
    draining: Arc<std::collections::BTreeSet<BookieId>>,
    is_disabled: bool,
    is_stopped: bool,
    may_hold_lock: bool,
}

impl Known {
    pub fn facts(&self) -> Facts<'_> {
        Facts {
            live: &self.bookies.ids,
            draining: &self.draining,
            is_stopped: self.is_stopped,
            is_disabled: self.is_disabled,
            may_hold_lock: self.may_hold_lock,
        }
    }
}

/// How long this worker waits for bookies and writers.
struct Waits<'a> {
    job: &'a Job<'a>,
    mark: Marked,
    delay: Duration,
}

impl Patience for Waits<'_> {
    fn awaited(&mut self, lost: &Audit) -> BTreeMap<BookieId, Duration> {
        let common = self.job.common;
        if common.is_on_demand {
            return BTreeMap::new();
        }
        let now = common.now();
        // Auditors and operators say since when; writers do not.
        let ordered = self.mark.since_ms.map(|since_ms| {
            let age_ms = common.clock.wall_ms().saturating_sub(since_ms).max(0).unsigned_abs();
            (now.saturating_sub(Duration::from_millis(age_ms)), self.mark.replicas.as_slice())
        });
        let delays = (self.delay, common.config.auditor.settle);
        common.absences.lock().awaited(now, delays, lost, ordered)
    }

    fn on_members_there(&mut self) {
        self.job.common.open_since.lock().remove(&self.job.ledger);
    }
}

impl Job<'_> {
    async fn attempt(&self) -> (Attempt, LockPlace) {
        let marks = self.common.layout().under_replication();
        let mark = match marks.marked(self.ledger).await {
            Ok(Some(mark)) => mark,
            Ok(None) => {
                let cleared = marks.clear(self.ledger).await;
                let attempt =
                    cleared.map_or_else(|error| Attempt::Failed(error.to_string()), |()| Attempt::Done);
                return (attempt, LockPlace::Held);
            }
            Err(error) => return (Attempt::Failed(error.to_string()), LockPlace::Held),
        };
        let mut core = LedgerRepair::new(mark, self.common.config.open_grace, Canaries::none());
        let attempt = match self.run(&mut core).await {
            Ok(attempt) => attempt,
            Err(error) => Attempt::Failed(error.to_string()),
        };
        self.count(core.tally());
        (attempt, core.lock_place())
    }

    fn count(&self, tally: Tally) {
        let mut state = self.common.state.lock();
        state.repaired += u64::from(tally.is_repaired);
        state.found_whole += u64::from(tally.was_whole);
        state.closed += u64::from(tally.is_closed);
        state.dropped += tally.dropped;
    }

    /// Does what the core asks for, until it ends. An error is one of the metadata store.
    async fn run(&self, core: &mut LedgerRepair) -> Result<Attempt, StoreError> {
        let mut view: Option<LedgerView> = None;
        let mut action = core.begin();
        loop {
            action = match (action, &mut view) {
                (Action::End(attempt), _) => return Ok(attempt),
                (Action::Look { proves_lock }, view) => {
                    let holds_lock = !proves_lock || self.holds_lock().await?;
                    match self.read(view).await {
                        Ok(()) => {}
                        Err(ReadError::Deleted(_)) => {
                            action = core.on_deleted();
                            continue;
                        }
                        Err(error) => return Ok(Attempt::Failed(error.to_string())),
                    }
                    let known = self.known().await?;
                    let delay = self.common.delay().await?;
                    let mut waits = Waits { job: self, mark: core.mark().clone(), delay };
                    let looked = view.as_ref().expect("it was read").metadata();
                    core.on_look(looked, known.facts(), holds_lock, &mut waits)
                }
                (Action::List(bookie), _) => match self.held_by(&bookie).await {
                    Ok(held) => core.on_list(Ok(&|entry| held.has(entry))),
                    Err(why) => core.on_list(Err(why)),
                },
                (Action::Choose(lack), _) => core.on_choice(self.target(core, &lack).await?),
                (Action::Copy(copy), Some(view)) => {
                    let copied = self.copy(core, view, &copy).await;
                    core.on_copied(copied)
                }
                (Action::Check, _) => core.on_check(self.known().await?.facts()),
                (Action::ProveLock, _) => core.on_lock(self.holds_lock().await?),
                (Action::Name(naming), Some(view)) => {
                    let named = self.name(&naming).await;
                    self.look_after_naming(&naming.copy, view, &named).await;
                    core.on_named(named)
                }
                (Action::NameLast(naming, mark), Some(view)) => {
                    let named = self.name_last(&naming, mark).await;
                    self.look_after_naming(&naming.copy, view, &named).await;
                    core.on_named(named)
                }
                (Action::Unmark(version), _) => {
                    let marks = self.common.layout().under_replication();
                    core.on_unmarked(marks.unmark(self.ledger, version).await?)
                }
                (Action::Age, _) => core.on_age(self.open_for()),
                (Action::Watch, Some(view)) => core.on_growth(self.growth(core, view).await),
                (Action::Close, Some(_)) => core.on_closed(self.close(core).await),
                (
                    Action::Copy(_) | Action::Name(_) | Action::NameLast(..) | Action::Watch | Action::Close,
                    None,
                ) => unreachable!("metadata was looked at before"),
            };
        }
    }

    /// Reads the metadata of the ledger.
    async fn read(&self, view: &mut Option<LedgerView>) -> Result<(), ReadError> {
        match view {
            Some(view) => view.reread().await,
            None => {
                *view = Some(self.common.bulk.open(self.ledger).await?);
                Ok(())
            }
        }
    }

    /// What is known without a request, or with one when a watch said that it changed.
    pub async fn known(&self) -> Result<Known, StoreError> {
        let is_disabled = self.common.facts.is_disabled().await?;
        if is_disabled {
            self.common.state.lock().is_disabled = true;
        }
        Ok(Known {
            bookies: self.common.bookies().await?,
            draining: self.common.facts.draining().await?,
            is_disabled,
            is_stopped: *self.stopped.borrow(),
            may_hold_lock: self.common.layout().replication_locks().may_hold(self.lock),
        })
    }

    /// Since this worker knows: a mark may be old, and may not say since when.
    fn open_for(&self) -> Duration {
        let mut open_since = self.common.open_since.lock();
        open_since.entry(self.ledger).or_insert_with(Instant::now).elapsed()
    }

    async fn holds_lock(&self) -> Result<bool, StoreError> {
        self.common.layout().replication_locks().holds(self.lock).await
    }

    /// Which entries a bookie has: none if it cannot tell.
    pub async fn held_by(&self, bookie: &BookieId) -> Result<Held, String> {
        match self.common.client.entries_of(bookie, self.ledger).await {
            Ok(found) => Ok(Held(found)),
            // It may lack anything. A Java bookie with DbLedgerStorage never answers for a ledger that it has; one that answers
            // nothing fails with the copies.
            Err(
                BookieError::Refused(ErrorCode::UnknownLedgerState | ErrorCode::BadRequest)
                | BookieError::TimedOut(_),
            ) => Ok(Held(None)),
            Err(error) => Err(format!("{bookie} does not say which entries it has: {error}")),
        }
    }

    /// Who gets the copies of a position.
    async fn target(
        &self,
        core: &LedgerRepair,
        lack: &Lack,
    ) -> Result<Result<BookieId, Attempt>, StoreError> {
        let metadata = core.metadata();
        let segment = metadata.segments().iter().find(|segment| segment.first_entry == lack.first);
        let ensemble = segment.expect("a lack is of a segment of this metadata").ensemble.as_slice();
        let positions = [lack.position];
        let wanted = Wanted::new(metadata.quorum, ensemble, &positions);
        let registered = &self.common.bookies().await?.registered;
        let client = &self.common.client;
        let is_own = match &self.common.config.targets {
            Targets::Own(own) if client.may_replace(own, wanted, registered).await => {
                return Ok(Ok(own.clone()));
            }
            Targets::Own(_) => true,
            Targets::Any => false,
        };
        Ok(match client.replacements(wanted, registered).await.bookies.into_iter().next() {
            None => Err(Attempt::Failed(format!(
                "no bookie that takes writes can take the place of {}: add one",
                lack.bookie
            ))),
            // The worker of another bookie takes it.
            Some(_) if is_own && !self.is_for_others => Err(Attempt::NotHere),
            Some(other) => Ok(other),
        })
    }

    async fn name(&self, naming: &Naming) -> Named {
        if self.is_look_stale() {
            return Named::Refused;
        }
        let ledgers = self.common.layout().ledgers();
        match ledgers.update(self.ledger, &naming.metadata, naming.version).await {
            Ok(_) => self.replaced(naming),
            Err(LedgerError::Changed(_) | LedgerError::NotFound(_)) => Named::Refused,
            Err(LedgerError::Store(error)) if error.is_transient() => Named::Unknown,
            Err(error) => Named::Failed(error.to_string()),
        }
    }

    async fn name_last(&self, naming: &Naming, mark: Version) -> Named {
        if self.is_look_stale() {
            return Named::Refused;
        }
        let Naming { metadata, version, .. } = naming;
        let repaired = Repaired { ledger: self.ledger, metadata, version: *version, mark, lock: self.lock };
        match self.common.layout().commit_repair(&repaired).await {
            Ok(true) => self.replaced(naming),
            Ok(false) => Named::Refused,
            Err(error) if error.is_transient() => Named::Unknown,
            Err(error) => Named::Failed(error.to_string()),
        }
    }

    fn replaced(&self, naming: &Naming) -> Named {
        let Lack { first, last, bookie, .. } = &naming.copy.lack;
        let new = &naming.copy.target;
        tracing::info!(ledger = %self.ledger, %first, %last, lost = %bookie, %new, "copies replaced");
        Named::Done
    }

    /// Fences and closes the ledger.
    async fn close(&self, core: &LedgerRepair) -> Result<(), String> {
        let secret = core.metadata().secret.as_ref().expect("the core closes only ledgers with a password");
        let opened = self.common.client.open_ledger(self.ledger, &secret.password, OpenMode::Recover).await;
        match opened {
            Ok(_) => {
                let lost = core.lost_names();
                tracing::info!(ledger = %self.ledger, lost, "closed an open ledger to repair it");
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether entries are seen to come to any member of the last ensemble. A failure if no member can be asked: then nothing is known of
    /// its writer.
    async fn growth(&self, core: &LedgerRepair, view: &LedgerView) -> Result<bool, Attempt> {
        let segment = core.metadata().segments().last();
        let members = segment.map(|segment| segment.ensemble.as_slice()).unwrap_or_default();
        let members: Vec<&BookieId> = members.iter().filter(|bookie| core.live().contains(*bookie)).collect();
        let before = self.counts(&members).await;
        let lac_before = view.refresh().await.ok();
        let mut stopped = self.stopped.clone();
        if super::pause(&mut stopped, ALIVE_LOOK).await {
            return Err(Attempt::Later(Duration::ZERO, "this process stops".into()));
        }
        let after = self.counts(&members).await;
        let lac_after = view.refresh().await.ok();
        let counts: Vec<(u64, u64)> =
            before.into_iter().zip(after).filter_map(|(before, after)| Some((before?, after?))).collect();
        if counts.is_empty() {
            let why = "it is open, and no bookie of its last ensemble says whether it is written to";
            return Err(Attempt::Failed(why.into()));
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
pub(super) struct Held(Option<EntryAvailability>);

impl Held {
    pub fn has(&self, entry: EntryId) -> bool {
        self.0.as_ref().is_some_and(|found| found.contains(entry))
    }
}
