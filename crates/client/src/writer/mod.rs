//! Writing one ledger: the shell around [`core::WriterCore`].
//!
//! # Data flow
//! ```text
//! enqueue -> byte budget -> [lock: id, digest, Transport::add x Qw] -> bookies
//! bookies -> AddSink::added (one socket read) -> [lock: acks, confirm, release] -> progress, appends that wait, budget
//! failure -> driver task: place, write metadata, resend
//! a bookie lacks something -> driver task: sent to it once more when it is back (`core::kept`)
//! force -> Transport::force x E -> [lock: LAC]        (`force`)
//! LAC that no entry tells -> Transport::write_lac x Qw: of an idle ledger, and before a drain returns        (`announce`)
//! ```
//!
//! # Invariants
//! 1. The lock is held for a few lines, never across an await; inside it only [`Transport::add`] and
//!    [`Transport::withdraw`] are called.
//! 2. Entries get their ids and leave for the bookies in the order of the calls, whoever makes them: a call that waits for
//!    room keeps its place until its entry has its id (`gate`).
//! 3. Progress never goes back (IC3), and says what is confirmed before it says why nothing more will be.
//! 4. An append or drain that waits is answered once: confirmed, or stopped (IC18).
//! 5. An entry's bytes count once, until each of its replicas answered, or was given up and its queue emptied of them.
//!    Who splits them from the permit of the ledger drops what it split, so they go back exactly once (IC17).
//! 6. A ledger that waits for an ensemble change takes nothing that leaves others less than half of the budget (`gate`).
//! 7. A writer that stopped gives its ledger back only when every add that it sent was answered, and as unauthorized.
//!
//! # Limits     bytes in flight: the client's `memory_limit`, from the call to the last answer of a replica; held up by
//! one bookie, over all ledgers: `slow_replica_bytes_max` (IC17); kept for bookies that lack it: a quarter of the limit
//! (`kept`)

mod announce;
pub(crate) mod core;
mod counts;
pub(crate) mod driver;
pub(crate) mod force;
mod gate;
mod inner;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bindery_flow::Permit;
use bindery_metadata::store::Version;
use bindery_types::{EntryId, LedgerId, LedgerMetadata, LedgerSecret, Quorum};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use self::announce::announce;
use self::core::WriterCore;
use self::gate::Place;
use self::inner::Inner;
use crate::error::{AppendError, CloseError, ForceError, Stopped, TryAppendError, WhyStopped};
use crate::shared::Shared;
use crate::transport::{AddSink, Transport};

/// How long the end of a ledger is put off for copies that are on their way: without it the last copy of the last entries would
/// as a rule be late, and the ledger be marked as under-replicated for nothing.
const LATE_COPIES_WAIT: Duration = Duration::from_secs(2);

/// Where a writer stands. Adds complete strictly in order, so one number says all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// The last confirmed entry: it and all before it are safe.
    pub confirmed: Option<EntryId>,
    /// The last entry that an ack quorum answered for, as all before it. The same, unless the ledger has
    /// [deferred sync](crate::CreateOptions::deferred_sync): then they are safe once they are
    /// [forced](LedgerWriter::force).
    pub acknowledged: Option<EntryId>,
    /// Why nothing more will be confirmed.
    pub failure: Option<AppendError>,
}

/// The progress of a writer, to look at (`borrow`) and to wait for (`changed`, `wait_for`), as tokio's watch channel offers it.
#[derive(Clone)]
pub struct ProgressWatch(watch::Receiver<Progress>);

/// Of a channel of one's own: for tests of what watches.
impl From<watch::Receiver<Progress>> for ProgressWatch {
    fn from(receiver: watch::Receiver<Progress>) -> ProgressWatch {
        ProgressWatch(receiver)
    }
}

impl std::ops::Deref for ProgressWatch {
    type Target = watch::Receiver<Progress>;

    fn deref(&self) -> &watch::Receiver<Progress> {
        &self.0
    }
}

impl std::ops::DerefMut for ProgressWatch {
    fn deref_mut(&mut self) -> &mut watch::Receiver<Progress> {
        &mut self.0
    }
}

/// The progress, not the channel.
impl std::fmt::Debug for ProgressWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.borrow().fmt(f)
    }
}

/// A ledger that was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Closed {
    /// Its last entry.
    pub last_entry: Option<EntryId>,
    /// Sum of its payloads.
    pub length_bytes: u64,
}

/// Where the writer before this one stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TakenOver {
    pub token: u64,
    pub next: EntryId,
    pub length_bytes: u64,
}

/// The writer of a ledger. Its methods may be called from several tasks; entries get their ids in the order in which the
/// calls were first polled. A call that waits for room and is neither polled nor dropped keeps those behind it waiting. A
/// writer that is dropped without [`close`](Self::close) leaves the ledger open: whoever opens it with
/// [`OpenMode::Recover`](crate::OpenMode::Recover) closes it.
pub struct LedgerWriter {
    inner: Arc<Inner>,
    sink: Arc<dyn AddSink>,
    driver: Option<JoinHandle<()>>,
}

impl LedgerWriter {
    pub(crate) fn start(
        shared: Arc<Shared>,
        id: LedgerId,
        metadata: LedgerMetadata,
        version: Version,
        secret: LedgerSecret,
        taken_over: Option<TakenOver>,
        is_deferred: bool,
    ) -> LedgerWriter {
        let inner = Arc::new(Inner::new(shared, id, metadata, version, secret, taken_over, is_deferred));
        let driver = Some(tokio::spawn(driver::run(inner.clone())));
        LedgerWriter { sink: inner.clone(), inner, driver }
    }

    /// The ledger.
    pub fn id(&self) -> LedgerId {
        self.inner.id
    }

    /// The numbers of bookies: of the ensemble, of copies of each entry, and of acknowledgements.
    pub fn quorum(&self) -> Quorum {
        self.inner.quorum
    }

    /// The largest payload that fits an entry.
    pub fn payload_bytes_max(&self) -> u64 {
        self.inner.payload_bytes_max
    }

    /// Waits for room, gives the entry its id and sends it to its write set. Does not wait for the acknowledgement.
    /// Cancel safe: a dropped call has taken no id.
    ///
    /// # Errors
    /// [`AppendError::TooLarge`] concerns this entry only; after [`AppendError::Stopped`] the writer takes no more.
    pub async fn enqueue(&self, payload: &[u8]) -> Result<EntryId, AppendError> {
        let (permit, _place) = self.permit(payload.len()).await?;
        self.inner.push(&self.sink, payload, permit, None)
    }

    /// [`enqueue`](Self::enqueue), then waits until the entry is confirmed; with
    /// [deferred sync](crate::CreateOptions::deferred_sync), until it is acknowledged. A call dropped while it waits leaves the
    /// entry on its way.
    ///
    /// Readers of this client see a confirmed entry at once. Others see it with the next one, which tells bookies that this one is
    /// confirmed, or without a next one within [`explicit_lac_interval`](crate::ClientBuilder::explicit_lac_interval), or when
    /// [`drain`](Self::drain) returns.
    pub async fn append(&self, payload: &[u8]) -> Result<EntryId, AppendError> {
        let (permit, place) = self.permit(payload.len()).await?;
        let (sender, confirmed) = oneshot::channel();
        let entry = self.inner.push(&self.sink, payload, permit, Some(sender))?;
        drop(place);
        self.inner.shared.transport.flush();
        confirmed.await.expect("every waiter is answered (invariant 4)")?;
        Ok(entry)
    }

    /// [`enqueue`](Self::enqueue), but refuses instead of waiting.
    ///
    /// # Errors
    /// [`TryAppendError::NoRoom`], also while an earlier call waits for room, and when half of the room is taken while this
    /// ledger waits for an ensemble change; otherwise as `enqueue`.
    pub fn try_enqueue(&self, payload: &[u8]) -> Result<EntryId, TryAppendError> {
        let permit = self.permit_now(payload.len())?;
        Ok(self.inner.push(&self.sink, payload, permit, None)?)
    }

    /// [`append`](Self::append), but refuses instead of waiting for room. When this returns the entry has its id and is on its
    /// way, and nothing refers to `payload` any more; the future waits until the entry is confirmed.
    ///
    /// # Errors
    /// Those of [`try_enqueue`](Self::try_enqueue); the future's are those of `append`.
    pub fn try_append(
        &self,
        payload: &[u8],
    ) -> Result<impl Future<Output = Result<EntryId, AppendError>> + Send + use<'_>, TryAppendError> {
        let permit = self.permit_now(payload.len())?;
        let (sender, confirmed) = oneshot::channel();
        let entry = self.inner.push(&self.sink, payload, permit, Some(sender))?;
        self.inner.shared.transport.flush();
        Ok(async move {
            confirmed.await.expect("every waiter is answered (invariant 4)")?;
            Ok(entry)
        })
    }

    fn permit_now(&self, payload: usize) -> Result<Permit, TryAppendError> {
        let cost_bytes = self.inner.cost_bytes(payload)?;
        let shared = &self.inner.shared;
        let permit = self.inner.gate.try_acquire(&shared.add_budget, cost_bytes);
        permit.ok_or_else(|| {
            // Adds whose answers would make room must be on their way.
            shared.transport.flush();
            let limit_bytes = shared.limits.memory_limit;
            TryAppendError::NoRoom { size_bytes: payload as u64, limit_bytes }
        })
    }

    async fn permit(&self, payload: usize) -> Result<(Permit, Option<Place<'_>>), AppendError> {
        let inner = &self.inner;
        let cost_bytes = inner.cost_bytes(payload)?;
        let budget = &inner.shared.add_budget;
        if let Some(permit) = inner.gate.try_acquire(budget, cost_bytes) {
            return Ok((permit, None));
        }
        // Adds whose answers would make room must be on their way.
        inner.shared.transport.flush();
        // Dropped here, the permit or the place in line goes back.
        let permit = inner.gate.acquire(budget, cost_bytes).await;
        let (permit, place) = permit.expect("its cost was compared with the budget");
        Ok((permit, Some(place)))
    }

    /// The progress of the writer, as it is made.
    pub fn progress(&self) -> ProgressWatch {
        ProgressWatch(self.inner.progress.subscribe())
    }

    /// Waits until every entry enqueued so far is confirmed, and bookies know it: a reader that looks from now on sees them. The
    /// last confirmed entry. With [deferred sync](crate::CreateOptions::deferred_sync) acknowledged stands for confirmed, and readers
    /// see what was [forced](Self::force).
    ///
    /// The bookies are told as well as it goes, and not at all if
    /// [`explicit_lac_interval`](crate::ClientBuilder::explicit_lac_interval) is zero: entries are confirmed without that.
    pub async fn drain(&self) -> Result<Option<EntryId>, AppendError> {
        let acknowledged = self.acknowledged().await?;
        if !self.inner.shared.limits.explicit_lac_interval.is_zero() {
            announce(&self.inner).await;
        }
        Ok(acknowledged)
    }

    /// Waits until every entry enqueued so far is acknowledged.
    async fn acknowledged(&self) -> Result<Option<EntryId>, AppendError> {
        let waits = self.inner.wait_for_all()?;
        if let Some(confirmed) = waits {
            self.inner.shared.transport.flush();
            confirmed.await.expect("every waiter is answered (invariant 4)")?;
        }
        Ok(self.inner.state.lock().core.acknowledged())
    }

    /// Has every bookie of the ensemble sync its entries of the ledger (BookKeeper's `force`); the last confirmed
    /// entry. With [deferred sync](crate::CreateOptions::deferred_sync) it covers the entries that were acknowledged
    /// when the call began: [`drain`](Self::drain) first to cover all enqueued ones. A ledger without it confirms its
    /// entries by itself; there a force is for bookies that run with `journalSyncData=false`, of the present ensemble,
    /// and relies on them not having restarted since. A dropped call confirms nothing, or all of it.
    ///
    /// # Errors
    /// [`ForceError::Bookies`]: it may be called again. After [`ForceError::Stopped`] the writer takes no more.
    pub async fn force(&self) -> Result<Option<EntryId>, ForceError> {
        let inner = &self.inner;
        if inner.shared.is_closed() {
            let last_confirmed = inner.state.lock().core.confirmed();
            let why = WhyStopped::ClientClosed;
            return Err(Stopped { ledger: inner.id, last_confirmed, why }.into());
        }
        let mut force = inner.state.lock().core.begin_force()?;
        // Dropped with this call.
        let mut answers = JoinSet::new();
        for (position, bookie) in force.members() {
            let (inner, bookie) = (inner.clone(), bookie.clone());
            answers.spawn(async move {
                let answer = inner.shared.transport.force(&bookie, inner.id).await;
                if let Err(error) = &answer {
                    inner.shared.health.note_failure(&bookie, error);
                }
                (position, answer)
            });
        }
        while let Some(answer) = answers.join_next().await {
            let (position, answer) =
                answer.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            if !inner.state.lock().core.on_force_answer(&mut force, position, answer) {
                break;
            }
        }
        let mut outcome = Ok(None);
        inner.change(&self.sink, |core, _| outcome = core.end_force(&force));
        outcome
    }

    /// Drains, [forces](Self::force) a ledger with deferred sync, then closes it for good. It waits up to 2 s for
    /// copies that are late; a ledger that still lacks some is marked as under-replicated. A call that is dropped leaves the ledger open or
    /// closed.
    ///
    /// # Errors
    /// [`CloseError::GivenBack`] when bookies took nothing from this writer for want of rights, and the ledger is free again.
    pub async fn close(mut self) -> Result<Closed, CloseError> {
        self.finish_or_give_back(WriterCore::begin_close).await?;
        let state = self.inner.state.lock();
        Ok(Closed { last_entry: state.core.confirmed(), length_bytes: state.core.confirmed_length_bytes() })
    }

    /// Drains, announces the last entry, and leaves the ledger open for the next
    /// [`open_for_append`](crate::Client::open_for_append).
    ///
    /// # Errors
    /// [`CloseError::GivenBack`] when bookies took nothing from this writer for want of rights, and the ledger is free again.
    pub async fn hand_over(mut self) -> Result<Option<EntryId>, CloseError> {
        // While it is idle its metadata says where it ends, so readers miss nothing if this fails.
        let inner = self.inner.clone();
        inner.state.lock().is_closing = true;
        if self.acknowledged().await.is_ok() && !inner.is_deferred {
            announce(&inner).await;
        }
        self.finish_or_give_back(WriterCore::begin_hand_over).await
    }

    /// Finishes, or leaves the ledger as it was when bookies took nothing from this writer for want of rights (invariant 7).
    async fn finish_or_give_back(
        &mut self,
        begin: fn(&mut WriterCore),
    ) -> Result<Option<EntryId>, CloseError> {
        match self.finish(begin).await {
            Err(CloseError::Stopped(stopped)) if matches!(stopped.why, WhyStopped::Unauthorized { .. }) => {
                Err(match driver::give_back(&self.inner).await {
                    true => CloseError::GivenBack(stopped),
                    false => CloseError::Stopped(stopped),
                })
            }
            outcome => outcome,
        }
    }

    /// Tries once more to give bookies what they lack, and waits for copies that are on their way.
    async fn wait_for_copies(&self) {
        let inner = &self.inner;
        inner.change(&self.sink, |core, _| core.tick(false));
        let is_over = || {
            let state = inner.state.lock();
            state.core.is_settled() || state.core.stopped().is_some()
        };
        let settled = async {
            while !is_over() {
                inner.settled.notified().await;
            }
        };
        // In time or not: bookies that still lack something are marked.
        let _ = timeout(LATE_COPIES_WAIT, settled).await;
    }

    async fn finish(&mut self, begin: fn(&mut WriterCore)) -> Result<Option<EntryId>, CloseError> {
        let inner = self.inner.clone();
        inner.state.lock().is_closing = true;
        if let Err(AppendError::Stopped(stopped)) = self.acknowledged().await {
            return Err(stopped.into());
        }
        // Otherwise the end would be the last force (protocol reference, section 7.9).
        let has_unforced = inner.state.lock().core.has_unforced();
        if has_unforced {
            self.force().await.map_err(|error| match error {
                ForceError::Stopped(stopped) => CloseError::Stopped(stopped),
                error @ ForceError::Bookies { .. } => {
                    let last_confirmed = inner.state.lock().core.confirmed();
                    CloseError::NotForced { error, last_confirmed }
                }
            })?;
        }
        self.wait_for_copies().await;
        inner.stop_driver.notify_one();
        if let Some(driver) = self.driver.take() {
            // It finishes an ensemble change that is under way; its failure shows in the core.
            if let Err(error) = driver.await {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        inner.change(&self.sink, |core, _| begin(core));
        driver::drive(&inner).await;
        let state = inner.state.lock();
        let stopped = state.core.stopped().expect("the end was written, or could not be");
        match (stopped.why.clone(), state.core.closed_elsewhere()) {
            (WhyStopped::Closing, _) => Ok(stopped.last_confirmed),
            (WhyStopped::Closed, Some(last_entry)) => Err(CloseError::ClosedElsewhere {
                ledger: inner.id,
                last_entry,
                last_confirmed: stopped.last_confirmed,
            }),
            _ => Err(stopped.into()),
        }
    }
}

impl Drop for LedgerWriter {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.take() {
            let is_parting = self.inner.state.lock().core.is_parting();
            match is_parting {
                // It says which copies are missing, within a few seconds, and ends.
                true => self.inner.stop_driver.notify_one(),
                false => driver.abort(),
            }
        }
        // The transport may hold the sink for a while.
        self.inner.abandon(&self.sink);
    }
}

impl std::fmt::Debug for LedgerWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerWriter").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

const _: fn() = || {
    fn is_shareable<T: std::marker::Send + Sync>() {}
    is_shareable::<LedgerWriter>();
    is_shareable::<Arc<dyn Transport>>();
};
