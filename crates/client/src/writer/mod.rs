//! Writing one ledger: the shell around [`core::WriterCore`].
//!
//! # Data flow
//! ```text
//! enqueue -> byte budget -> [lock: id, digest, Transport::add x Qw] -> bookies
//! bookies -> AddSink::added (one socket read) -> [lock: acks, confirm, release] -> progress, appends that wait, budget
//! failure -> driver task: place, write metadata, resend
//! force -> Transport::force x E -> [lock: LAC]        (`force`)
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
//!
//! # Limits     bytes in flight: the client's `memory_limit`, from the call to the last answer of a replica; held up by
//! one bookie, over all ledgers: `slow_replica_bytes_max` (IC17)

pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod force;
mod gate;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use bindery_flow::Permit;
use bindery_metadata::store::Version;
use bindery_types::{BookieId, Digester, EntryId, LedgerId, LedgerMetadata, LedgerSecret, MasterKey, Quorum};
use bindery_wire::FrameLimit;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use self::core::{LetGo, Start, WriterCore, cost_bytes, frames, overhead_bytes};
use self::gate::{Gate, Place};
use crate::client::Shared;
use crate::entry::{EntryCodec, OVERHEAD_SIZE_BYTES_MAX};
use crate::error::{AppendError, CloseError, ForceError, Stopped, TryAppendError, WhyStopped};
use crate::slow::{Share, Verdict};
use crate::transport::{AddAnswer, AddRequest, AddSink, Transport};
use crate::window::Send;

/// Where a writer stands. Adds complete strictly in order, so one number says all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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

/// A ledger that was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

type Waiter = oneshot::Sender<Result<(), Stopped>>;

struct State {
    core: WriterCore,
    /// What is reported of each member of the ensemble of this number.
    shares: Vec<Share>,
    shares_of: u64,
    /// A bookie holds up too much, and it is not known yet whether it is slow: the driver looks again.
    is_watching: bool,
    /// Appends and drains, by the entry they wait for, ascending.
    waiters: VecDeque<(EntryId, Waiter)>,
    /// Empty between calls; kept for its allocation.
    sends: Vec<Send>,
    /// Only used within a call; kept for its allocation.
    behind: Vec<usize>,
    is_closing: bool,
    /// The driver knows that the LAC is to be announced.
    is_announcing: bool,
}

/// What the writer, its driver and the transport share.
pub(crate) struct Inner {
    shared: Arc<Shared>,
    id: LedgerId,
    master_key: MasterKey,
    quorum: Quorum,
    is_deferred: bool,
    /// Which entries fit the budget and a frame.
    payload_bytes_max: u64,
    codec: EntryCodec,
    state: Mutex<State>,
    /// Invariant 6.
    gate: Gate,
    progress: watch::Sender<Progress>,
    wake_driver: Notify,
    stop_driver: Notify,
}

/// What became known under the lock and is told behind it.
#[derive(Default)]
struct News {
    let_go: LetGo,
    answered: Vec<(Waiter, Result<(), Stopped>)>,
    progress: Option<Progress>,
    wakes_driver: bool,
}

impl Inner {
    /// Hands entries to the transport. The lock is held: invariant 2.
    fn send(&self, state: &mut State, sink: &Arc<dyn AddSink>) {
        let mut sends = std::mem::take(&mut state.sends);
        for Send { position, entry, body, tag } in sends.drain(..) {
            let request = AddRequest {
                ledger: self.id,
                entry,
                body,
                master_key: self.master_key,
                is_recovery: false,
                is_deferred: self.is_deferred,
                tag,
            };
            self.shared.transport.add(&state.core.ensemble()[position], request, sink);
        }
        state.sends = sends;
        self.withdraw(state, sink);
    }

    /// After what was sent in the same breath: it was decided later.
    fn withdraw(&self, state: &mut State, sink: &Arc<dyn AddSink>) {
        for bookie in state.core.take_withdrawn() {
            self.shared.transport.withdraw(&bookie, self.id, sink);
        }
    }

    /// Says how much each member holds up, and tells the core of those that are slow. True when the driver is to look
    /// again.
    fn report_slow(&self, state: &mut State) -> bool {
        let slow = &self.shared.slow;
        if state.shares_of != state.core.ensemble_number() || state.shares.is_empty() {
            state.shares_of = state.core.ensemble_number();
            // Those before give back what they reported.
            state.shares = state.core.ensemble().iter().map(|bookie| slow.share(bookie)).collect();
        }
        let bytes = state.core.held_back(&mut state.behind);
        let was_watching = std::mem::take(&mut state.is_watching);
        for (position, share) in state.shares.iter_mut().enumerate() {
            let bytes = if state.behind.contains(&position) { bytes } else { 0 };
            match slow.report(share, bytes, state.core.take_acked_bytes(position)) {
                Verdict::Fine => {}
                Verdict::Watched => state.is_watching = true,
                Verdict::Slow(sum) => state.core.on_slow(position, sum),
            }
        }
        state.is_watching && !was_watching
    }

    /// Changes the core, then does what follows from it.
    fn change(&self, sink: &Arc<dyn AddSink>, change: impl FnOnce(&mut WriterCore, &mut Vec<Send>)) {
        let news = {
            let state = &mut *self.state.lock();
            change(&mut state.core, &mut state.sends);
            self.send(state, sink);
            self.settle(state, sink)
        };
        self.tell(news);
        self.shared.transport.flush();
    }

    fn settle(&self, state: &mut State, sink: &Arc<dyn AddSink>) -> News {
        let mut news = News::default();
        let has_moved = state.core.settle();
        news.wakes_driver = self.report_slow(state);
        // Invariant 5: what is let go of is in no queue.
        self.withdraw(state, sink);
        state.core.release(&mut news.let_go);
        let stopped = state.core.stopped();
        let (confirmed, acknowledged) = (state.core.confirmed(), state.core.acknowledged());
        if has_moved || stopped.is_some() {
            while let Some((entry, _)) = state.waiters.front() {
                let answer = match &stopped {
                    _ if Some(*entry) <= acknowledged => Ok(()),
                    Some(stopped) => Err(stopped.clone()),
                    None => break,
                };
                let (_, waiter) = state.waiters.pop_front().expect("it was just looked at");
                news.answered.push((waiter, answer));
            }
            // The end of a writer that was closed in good order is no failure.
            let failure =
                stopped.filter(|stopped| stopped.why != WhyStopped::Closing).map(AppendError::Stopped);
            news.progress = Some(Progress { confirmed, acknowledged, failure });
        }
        if !state.is_announcing
            && !self.shared.limits.explicit_lac_interval.is_zero()
            && state.core.unannounced().is_some()
        {
            state.is_announcing = true;
            news.wakes_driver = true;
        }
        news.wakes_driver |= state.core.next_step().is_some();
        self.gate.set(state.core.awaits_change());
        news
    }

    fn tell(&self, news: News) {
        drop(news.let_go);
        if let Some(new) = news.progress {
            // Two batches may come here in either order: invariant 3.
            self.progress.send_if_modified(|progress| {
                let is_newer = new.confirmed > progress.confirmed
                    || new.acknowledged > progress.acknowledged
                    || (new.failure.is_some() && progress.failure.is_none());
                if is_newer {
                    progress.confirmed = progress.confirmed.max(new.confirmed);
                    progress.acknowledged = progress.acknowledged.max(new.acknowledged);
                    progress.failure = progress.failure.take().or(new.failure);
                }
                is_newer
            });
        }
        for (waiter, answer) in news.answered {
            // A cancelled append has gone.
            let _ = waiter.send(answer);
        }
        if news.wakes_driver {
            self.wake_driver.notify_one();
        }
    }

    /// The LAC, when it waits to be announced; resets the mark when it does not.
    fn wants_announcement(&self) -> Option<EntryId> {
        let mut state = self.state.lock();
        let lac = state.core.unannounced();
        let lac = lac.filter(|_| !self.shared.limits.explicit_lac_interval.is_zero());
        state.is_announcing = lac.is_some();
        lac
    }
}

impl AddSink for Inner {
    fn added(self: Arc<Self>, bookie: &BookieId, answers: &[AddAnswer]) {
        let sink: Arc<dyn AddSink> = self.clone();
        // One is enough to tell: the others of this read failed with it.
        if let Some(error) = answers.iter().find_map(|answer| answer.result.as_ref().err()) {
            self.shared.health.note_failure(bookie, error);
        }
        let news = {
            let state = &mut *self.state.lock();
            for answer in answers {
                state.core.on_answer(answer.entry, answer.tag, answer.connection, &answer.result);
            }
            self.settle(state, &sink)
        };
        self.tell(news);
    }
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
        let quorum = metadata.quorum;
        let codec = EntryCodec::new(id, Digester::new(secret.digest_type, &secret.password));
        let confirmed = taken_over.and_then(|start| EntryId::new(start.next.get() - 1));
        let core = WriterCore::new(Start {
            ledger: id,
            codec: codec.clone(),
            metadata,
            version,
            confirmed,
            length_bytes: taken_over.map_or(0, |start| start.length_bytes),
            token: taken_over.map(|start| start.token),
            is_deferred,
        });
        let overhead_bytes = overhead_bytes(frames(quorum.write_quorum_size(), is_deferred));
        let stored_bytes_max = (FrameLimit::DEFAULT.entry_size_bytes_max() as u64)
            .min(shared.limits.memory_limit.saturating_sub(overhead_bytes));
        let state = State {
            core,
            shares: Vec::new(),
            shares_of: 0,
            is_watching: false,
            waiters: VecDeque::new(),
            sends: Vec::new(),
            behind: Vec::new(),
            is_closing: false,
            is_announcing: false,
        };
        let inner = Arc::new(Inner {
            shared,
            id,
            master_key: secret.master_key(),
            quorum,
            is_deferred,
            payload_bytes_max: stored_bytes_max.saturating_sub(OVERHEAD_SIZE_BYTES_MAX as u64),
            codec,
            state: Mutex::new(state),
            gate: Gate::default(),
            progress: watch::Sender::new(Progress { confirmed, acknowledged: confirmed, failure: None }),
            wake_driver: Notify::new(),
            stop_driver: Notify::new(),
        });
        let driver = Some(tokio::spawn(driver::run(inner.clone())));
        LedgerWriter { sink: inner.clone(), inner, driver }
    }

    /// The ledger.
    pub fn id(&self) -> LedgerId {
        self.inner.id
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
        self.push(payload, permit, None)
    }

    /// [`enqueue`](Self::enqueue), then waits until the entry is confirmed; with
    /// [deferred sync](crate::CreateOptions::deferred_sync), until it is acknowledged. A call dropped while it waits leaves the
    /// entry on its way.
    pub async fn append(&self, payload: &[u8]) -> Result<EntryId, AppendError> {
        let (permit, place) = self.permit(payload.len()).await?;
        let (sender, confirmed) = oneshot::channel();
        let entry = self.push(payload, permit, Some(sender))?;
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
        let cost_bytes = self.cost_bytes(payload.len())?;
        let shared = &self.inner.shared;
        let Some(permit) = self.inner.gate.try_acquire(&shared.add_budget, cost_bytes) else {
            // What would make room must be on its way.
            shared.transport.flush();
            let limit_bytes = shared.limits.memory_limit;
            return Err(TryAppendError::NoRoom { size_bytes: payload.len() as u64, limit_bytes });
        };
        Ok(self.push(payload, permit, None)?)
    }

    fn cost_bytes(&self, payload: usize) -> Result<u64, AppendError> {
        let inner = &self.inner;
        if payload as u64 > inner.payload_bytes_max {
            let (size_bytes, max_bytes) = (payload as u64, inner.payload_bytes_max);
            return Err(AppendError::TooLarge { size_bytes, max_bytes });
        }
        let frames = frames(inner.quorum.write_quorum_size(), inner.is_deferred);
        let cost_bytes = cost_bytes(&inner.codec, frames, payload);
        if cost_bytes > inner.shared.add_budget.capacity() {
            // A memory limit that has no room for any entry.
            return Err(AppendError::TooLarge { size_bytes: payload as u64, max_bytes: 0 });
        }
        Ok(cost_bytes)
    }

    async fn permit(&self, payload: usize) -> Result<(Permit, Option<Place<'_>>), AppendError> {
        let inner = &self.inner;
        let cost_bytes = self.cost_bytes(payload)?;
        let budget = &inner.shared.add_budget;
        if let Some(permit) = inner.gate.try_acquire(budget, cost_bytes) {
            return Ok((permit, None));
        }
        // What would make room must be on its way.
        inner.shared.transport.flush();
        // Dropped here, the permit or the place in line goes back.
        let permit = inner.gate.acquire(budget, cost_bytes).await;
        let (permit, place) = permit.expect("what it costs was compared with the budget");
        Ok((permit, Some(place)))
    }

    fn push(&self, payload: &[u8], permit: Permit, waiter: Option<Waiter>) -> Result<EntryId, AppendError> {
        let inner = &self.inner;
        let mut state = inner.state.lock();
        let state = &mut *state;
        let refused = if state.is_closing {
            Some(WhyStopped::Closing)
        } else if inner.shared.is_closed() {
            Some(WhyStopped::ClientClosed)
        } else {
            None
        };
        if let Some(why) = refused {
            let last_confirmed = state.core.confirmed();
            return Err(Stopped { ledger: inner.id, last_confirmed, why }.into());
        }
        let entry = state.core.append(payload, Some(permit), &mut state.sends)?;
        inner.send(state, &self.sink);
        if let Some(waiter) = waiter {
            state.waiters.push_back((entry, waiter));
        }
        if state.core.next_step().is_some() {
            // A failure that could wait until now.
            inner.gate.set(state.core.awaits_change());
            inner.wake_driver.notify_one();
        }
        Ok(entry)
    }

    /// What is confirmed, as it moves.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.inner.progress.subscribe()
    }

    /// Waits until every entry enqueued so far is confirmed; the last confirmed entry. With
    /// [deferred sync](crate::CreateOptions::deferred_sync) acknowledged stands for confirmed.
    pub async fn drain(&self) -> Result<Option<EntryId>, AppendError> {
        let waits = {
            let state = &mut *self.inner.state.lock();
            match state.core.stopped() {
                Some(stopped) if state.core.has_unacknowledged() => return Err(stopped.into()),
                Some(_) | None => {}
            }
            state.core.last_pushed().filter(|_| state.core.has_unacknowledged()).map(|last| {
                let (sender, confirmed) = oneshot::channel();
                state.waiters.push_back((last, sender));
                confirmed
            })
        };
        if let Some(confirmed) = waits {
            self.inner.shared.transport.flush();
            confirmed.await.expect("every waiter is answered (invariant 4)")?;
        }
        Ok(self.inner.state.lock().core.acknowledged())
    }

    /// Has every bookie of the ensemble sync what it has of the ledger (BookKeeper's `force`); the last confirmed entry.
    /// With [deferred sync](crate::CreateOptions::deferred_sync) that is what was acknowledged when the call began:
    /// [`drain`](Self::drain) first to cover what was enqueued. A ledger without confirms its entries by itself; there a
    /// force is for bookies that run with `journalSyncData=false`, of the present ensemble, which are trusted not to have
    /// been started anew since. A dropped call confirms nothing, or all of it.
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

    /// Drains, [forces](Self::force) a ledger with deferred sync, then closes it for good. A call that is dropped leaves the
    /// ledger open or closed.
    pub async fn close(mut self) -> Result<Closed, CloseError> {
        self.finish(WriterCore::begin_close).await?;
        let state = self.inner.state.lock();
        Ok(Closed { last_entry: state.core.confirmed(), length_bytes: state.core.confirmed_length_bytes() })
    }

    /// Drains, announces the last entry, and leaves the ledger open for the next
    /// [`open_for_append`](crate::Client::open_for_append).
    pub async fn hand_over(mut self) -> Result<Option<EntryId>, CloseError> {
        // While it is idle its metadata says where it ends, so readers miss nothing if this fails.
        let inner = self.inner.clone();
        inner.state.lock().is_closing = true;
        if self.drain().await.is_ok() && !inner.is_deferred {
            driver::announce_now(&inner).await;
        }
        self.finish(WriterCore::begin_hand_over).await
    }

    async fn finish(&mut self, begin: fn(&mut WriterCore)) -> Result<Option<EntryId>, CloseError> {
        let inner = self.inner.clone();
        inner.state.lock().is_closing = true;
        if let Err(AppendError::Stopped(stopped)) = self.drain().await {
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
        inner.stop_driver.notify_one();
        if let Some(driver) = self.driver.take() {
            // It finishes an ensemble change that is under way; its failure shows in the core.
            if let Err(error) = driver.await {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        begin(&mut inner.state.lock().core);
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
            driver.abort();
        }
        // The transport may hold the sink for a while: what it still brings is counted, and not acted upon.
        self.inner.state.lock().core.stop(WhyStopped::Closing);
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
