//! What a writer, its driver and the transport share: the core under its lock, and what is told after the lock is released.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bindery_flow::Permit;
use bindery_metadata::store::Version;
use bindery_types::{BookieId, Digester, EntryId, LedgerId, LedgerMetadata, LedgerSecret, MasterKey, Quorum};
use bindery_wire::ErrorCode;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};

use super::announce::Announcements;
use super::core::{Fill, LetGo, Start, WriterCore, cost_bytes, frames, overhead_bytes};
use super::counts::Counting;
use super::gate::Gate;
use super::{Progress, TakenOver};
use crate::entry::{EntryCodec, OVERHEAD_SIZE_BYTES_MAX};
use crate::error::{AppendError, Stopped, WhyStopped};
use crate::kept_bytes::KeptShare;
use crate::own_writers::OwnWriter;
use crate::retry::Retry;
use crate::shared::Shared;
use crate::slow::{Share, Verdict};
use crate::transport::{AddAnswer, AddRequest, AddSink, AddTag, BookieError};
use crate::window::Send;

pub(super) type Waiter = oneshot::Sender<Result<(), Stopped>>;

/// The state under the lock.
pub(super) struct State {
    pub(super) core: WriterCore,
    /// What is reported of each member of an ensemble, and the number of that ensemble.
    shares: Vec<Share>,
    shares_of: u64,
    /// Whether a bookie holds up too much and is not yet known to be slow: the driver looks again.
    pub(super) is_watching: bool,
    /// Appends and drains, by the entry they wait for, ascending.
    waiters: VecDeque<(EntryId, Waiter)>,
    /// Empty between calls; kept for its allocation.
    sends: Vec<Send>,
    /// Only used within a call; kept for its allocation.
    behind: Vec<usize>,
    counting: Counting,
    kept: KeptShare,
    /// The driver knows that something is kept for bookies that lack it.
    pub(super) is_keeping: bool,
    pub(super) is_closing: bool,
    patience: Patience,
    tally: Tally,
    /// The driver knows that the LAC is to be announced.
    is_announcing: bool,
}

/// A ledger as this writer took it.
pub(super) struct Claim {
    pub(super) metadata: LedgerMetadata,
    pub(super) version: Version,
    pub(super) start: TakenOver,
}

/// How many adds were sent, and how many were refused as unauthorized. One that was withdrawn counts as sent: it may have left before.
#[derive(Default)]
struct Tally {
    sent: u64,
    unauthorized: u64,
}

/// The log target of the one message about waiting for bookies, so that a command can show that alone.
const PATIENCE_TARGET: &str = "bindery_client::patience";

/// How much longer a writer without an ack quorum waits for bookies.
struct Patience {
    retry: Retry,
    /// The LAC when it began.
    confirmed: Option<EntryId>,
}

impl Patience {
    fn new(shared: &Shared, confirmed: Option<EntryId>) -> Patience {
        Patience { retry: Retry::new(shared.limits.bookie_patience), confirmed }
    }
}

/// See the module.
pub(crate) struct Inner {
    pub(super) shared: Arc<Shared>,
    pub(super) id: LedgerId,
    pub(super) master_key: MasterKey,
    pub(super) quorum: Quorum,
    pub(super) is_deferred: bool,
    /// Which entries fit the budget and a frame.
    pub(super) payload_bytes_max: u64,
    codec: EntryCodec,
    /// The ledger as it was taken, if it is one that is handed over.
    pub(super) claim: Option<Claim>,
    pub(super) state: Mutex<State>,
    /// Invariant 6.
    pub(super) gate: Gate,
    pub(super) progress: watch::Sender<Progress>,
    pub(super) wake_driver: Notify,
    pub(super) stop_driver: Notify,
    /// Notified when the writer is closing and no copy is on its way any more, or the writer stopped.
    pub(super) settled: Notify,
    /// Notified when bookies answer after the writer has stopped.
    pub(super) heard: Notify,
    pub(super) announcements: tokio::sync::Mutex<Announcements>,
    /// Tells readers of the same client what is confirmed.
    own: OwnWriter,
}

/// Results that are collected under the lock and told after it is released.
#[derive(Default)]
struct News {
    let_go: LetGo,
    answered: Vec<(Waiter, Result<(), Stopped>)>,
    progress: Option<Progress>,
    wakes_driver: bool,
}

impl Inner {
    pub(super) fn new(
        shared: Arc<Shared>,
        id: LedgerId,
        metadata: LedgerMetadata,
        version: Version,
        secret: LedgerSecret,
        taken_over: Option<TakenOver>,
        is_deferred: bool,
    ) -> Inner {
        let quorum = metadata.quorum;
        let codec = EntryCodec::new(id, Digester::new(secret.digest_type, &secret.password));
        let claim = taken_over.map(|start| Claim { metadata: metadata.clone(), version, start });
        let confirmed = taken_over.and_then(|start| EntryId::new(start.next.get() - 1));
        let own = shared.own_writers.begin(id, &metadata, confirmed);
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
        let counting = Counting::new(shared.writes.clone(), &core);
        let overhead_bytes = overhead_bytes(frames(quorum.write_quorum_size(), is_deferred));
        let stored_bytes_max = (shared.limits.frame_written().entry_size_bytes_max() as u64)
            .min(shared.limits.memory_limit.saturating_sub(overhead_bytes));
        let state = State {
            core,
            shares: Vec::new(),
            shares_of: 0,
            is_watching: false,
            waiters: VecDeque::new(),
            sends: Vec::new(),
            behind: Vec::new(),
            counting,
            kept: KeptShare::new(shared.kept.clone()),
            is_keeping: false,
            is_closing: false,
            patience: Patience::new(&shared, confirmed),
            tally: Tally::default(),
            is_announcing: false,
        };
        Inner {
            shared,
            id,
            master_key: secret.master_key(),
            quorum,
            is_deferred,
            payload_bytes_max: stored_bytes_max.saturating_sub(OVERHEAD_SIZE_BYTES_MAX as u64),
            codec,
            claim,
            state: Mutex::new(state),
            gate: Gate::default(),
            progress: watch::Sender::new(Progress { confirmed, acknowledged: confirmed, failure: None }),
            wake_driver: Notify::new(),
            stop_driver: Notify::new(),
            settled: Notify::new(),
            heard: Notify::new(),
            announcements: tokio::sync::Mutex::default(),
            own,
        }
    }

    /// The part of the byte budget that an entry takes. Fails if the entry does not fit a frame or the client's memory limit.
    pub(super) fn cost_bytes(&self, payload: usize) -> Result<u64, AppendError> {
        if payload as u64 > self.payload_bytes_max {
            let (size_bytes, max_bytes) = (payload as u64, self.payload_bytes_max);
            return Err(AppendError::TooLarge { size_bytes, max_bytes });
        }
        let frames = frames(self.quorum.write_quorum_size(), self.is_deferred);
        let cost_bytes = cost_bytes(&self.codec, frames, payload);
        if cost_bytes > self.shared.add_budget.capacity() {
            // A memory limit that has no room for any entry.
            return Err(AppendError::TooLarge { size_bytes: payload as u64, max_bytes: 0 });
        }
        Ok(cost_bytes)
    }

    /// Gives an entry its id and sends it. `waiter` is told when it is confirmed.
    pub(super) fn push(
        &self,
        sink: &Arc<dyn AddSink>,
        payload: &[u8],
        permit: Permit,
        waiter: Option<Waiter>,
    ) -> Result<EntryId, AppendError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let refused = if state.is_closing {
            Some(WhyStopped::Closing)
        } else if self.shared.is_closed() {
            Some(WhyStopped::ClientClosed)
        } else {
            None
        };
        if let Some(why) = refused {
            let last_confirmed = state.core.confirmed();
            return Err(Stopped { ledger: self.id, last_confirmed, why }.into());
        }
        let entry = state.core.append(payload, Some(permit), &mut state.sends)?;
        state.counting.pushed(entry);
        self.send(state, sink);
        if let Some(waiter) = waiter {
            state.waiters.push_back((entry, waiter));
        }
        if state.core.next_step().is_some() {
            // A failure that could wait until now.
            self.gate.set(state.core.awaits_change());
            self.wake_driver.notify_one();
        }
        if state.core.stopped().is_some() {
            // It stopped by that failure. Tell so now: perhaps no answer of a bookie will come after which it would be told.
            let news = self.settle(state, sink);
            drop(guard);
            self.tell(news);
        }
        Ok(entry)
    }

    /// A receiver for the outcome of the last entry; `None` if all entries are acknowledged. Fails if the writer has stopped before that.
    pub(super) fn wait_for_all(&self) -> Result<Option<oneshot::Receiver<Result<(), Stopped>>>, AppendError> {
        let state = &mut *self.state.lock();
        if !state.core.has_unacknowledged() {
            return Ok(None);
        }
        if let Some(stopped) = state.core.stopped() {
            return Err(stopped.into());
        }
        Ok(state.core.last_pushed().map(|last| {
            let (sender, confirmed) = oneshot::channel();
            state.waiters.push_back((last, sender));
            confirmed
        }))
    }

    /// Hands entries to the transport. The lock is held: invariant 2.
    fn send(&self, state: &mut State, sink: &Arc<dyn AddSink>) {
        let mut sends = std::mem::take(&mut state.sends);
        for Send { position, entry, body, tag } in sends.drain(..) {
            let request = self.request(entry, body, self.is_deferred, tag);
            state.tally.sent += 1;
            self.shared.transport.add(&state.core.ensemble()[position], request, sink);
        }
        state.sends = sends;
        self.withdraw(state, sink);
    }

    /// Sends bookies what they lack.
    fn fill(&self, state: &mut State, sink: &Arc<dyn AddSink>) {
        for Fill { bookie, entry, body, tag } in state.core.take_fills() {
            let request = self.request(entry, body, false, tag);
            state.tally.sent += 1;
            self.shared.transport.add(&bookie, request, sink);
        }
    }

    fn request(&self, entry: EntryId, body: Bytes, is_deferred: bool, tag: AddTag) -> AddRequest {
        let (ledger, master_key) = (self.id, self.master_key);
        AddRequest {
            ledger,
            entry,
            body,
            master_key,
            is_recovery: false,
            is_background: false,
            is_deferred,
            tag,
        }
    }

    /// Withdraws queued adds of bookies that the core named. Comes after the sends of the same call, as it was decided after those.
    fn withdraw(&self, state: &mut State, sink: &Arc<dyn AddSink>) {
        for bookie in state.core.take_withdrawn() {
            self.shared.transport.withdraw(&bookie, self.id, sink);
        }
    }

    /// Reports how much each member holds up, and tells the core which are slow. True if the driver is to look again.
    fn report_slow(&self, state: &mut State) -> bool {
        let slow = &self.shared.slow;
        if state.shares_of != state.core.ensemble_number() || state.shares.is_empty() {
            state.shares_of = state.core.ensemble_number();
            // The former ones take back what they reported as they are dropped.
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

    /// Whether to wait for bookies that the ack quorum needs. Each confirmed entry renews the patience with them.
    pub(super) fn has_patience(&self) -> bool {
        let state = &mut *self.state.lock();
        let confirmed = state.core.confirmed();
        if state.patience.confirmed != confirmed {
            state.patience = Patience::new(&self.shared, confirmed);
        }
        !state.patience.retry.is_over()
    }

    /// How long to wait before they are tried again. The first time of each patience is logged.
    pub(super) fn begin_wait(&self) -> Duration {
        let (is_first, pause) = {
            let retry = &mut self.state.lock().patience.retry;
            (!retry.has_begun(), retry.next_pause())
        };
        if is_first {
            let patience = self.shared.limits.bookie_patience;
            tracing::warn!(target: PATIENCE_TARGET, ledger_id = %self.id,
                "too few writable bookies: waiting up to {patience:?} for some to come back");
        }
        pause
    }

    /// Changes the core, then does what follows from it.
    pub(super) fn change(
        &self,
        sink: &Arc<dyn AddSink>,
        change: impl FnOnce(&mut WriterCore, &mut Vec<Send>),
    ) {
        let news = {
            let state = &mut *self.state.lock();
            change(&mut state.core, &mut state.sends);
            self.send(state, sink);
            self.settle(state, sink)
        };
        self.tell(news);
        self.shared.transport.flush();
    }

    /// Does what follows from a change of the core, with the lock held: confirms entries, finds slow bookies, withdraws queued adds,
    /// then lets go of entries, and sends bookies what they lack. Give the result to [`tell`](Self::tell).
    fn settle(&self, state: &mut State, sink: &Arc<dyn AddSink>) -> News {
        let mut news = News::default();
        let has_moved = state.core.settle();
        news.wakes_driver = self.report_slow(state);
        // Invariant 5: an entry that is let go of is in no queue.
        self.withdraw(state, sink);
        state.core.may_keep(state.kept.bytes_max());
        state.core.release(&mut news.let_go);
        state.kept.set(state.core.kept_bytes());
        self.fill(state, sink);
        if !state.is_keeping && state.core.kept_bytes() > 0 {
            state.is_keeping = true;
            news.wakes_driver = true;
        }
        state.counting.look(&state.core);
        let stopped = state.core.stopped();
        let (confirmed, acknowledged) = (state.core.confirmed(), state.core.acknowledged());
        if has_moved || stopped.is_some() {
            self.own.tell(confirmed);
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
        if state.is_closing && (state.core.is_settled() || state.core.stopped().is_some()) {
            self.settled.notify_one();
        }
        news.wakes_driver |= state.core.next_step().is_some() || state.core.is_parting();
        self.gate.set(state.core.awaits_change());
        news
    }

    /// Tells callers, watchers and the driver what happened, after the lock is released.
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

    /// Whether all adds that were sent were refused as unauthorized, so that no bookie stores any of them. True only of a writer that
    /// stopped and sends nothing more.
    pub(super) fn is_all_refused(&self) -> bool {
        let state = self.state.lock();
        state.core.stopped().is_some() && state.is_closing && state.tally.sent == state.tally.unauthorized
    }

    /// The writer is dropped: counts the adds under way, and does nothing more about them.
    pub(super) fn abandon(&self, sink: &Arc<dyn AddSink>) {
        let mut let_go = LetGo::default();
        let state = &mut *self.state.lock();
        state.core.stop(WhyStopped::Closing);
        // Invariant 5, for an end that was begun and then abandoned.
        self.withdraw(state, sink);
        state.core.release(&mut let_go);
        state.kept.set(0);
        state.counting.leave(&state.core);
    }

    /// The LAC, if it is to be announced. If not, the driver no longer counts as knowing of one.
    pub(super) fn wants_announcement(&self) -> Option<EntryId> {
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
            self.shared.health.note_add_failure(bookie, error);
        }
        let news = {
            let state = &mut *self.state.lock();
            for answer in answers {
                let is_refused = answer.result == Err(BookieError::Refused(ErrorCode::Unauthorized));
                state.tally.unauthorized += u64::from(is_refused);
                state.core.on_answer(answer.entry, answer.tag, answer.connection, &answer.result);
            }
            if state.core.stopped().is_some() {
                self.heard.notify_one();
            }
            self.settle(state, &sink)
        };
        self.tell(news);
    }
}
