//! The core under its lock, the outboxes, and the thread that makes changes durable.
//!
//! # Data flow
//! ```text
//! act: lock -> core -> outputs, stamped with the batch they wait for -> outboxes
//! commit thread: lock, take batch -> store (one durable commit) -> progress -> outboxes let frames go
//! ```
//!
//! # Invariants
//! 1. A frame is stamped with the last batch that has changes at that moment, and leaves when that batch is durable.
//!    So nobody, reader or writer, ever sees a change that a crash could take back, and reads are as fresh as writes.
//! 2. Batches become durable in order, one at a time, each with everything that changed before it was taken.
//! 3. After the first failure of the store no batch becomes durable and nothing is executed: the failure is latched,
//!    every connection closes, and [`Progress::failure`] says why.
//!
//! # Limits     one batch waits while one is written; `pending_bytes_max` stops reading

use crate::config::CoordinatorConfig;
use crate::connection::{Counters, Outbox};
use crate::core::{Core, Figures, Now, Output};
use crate::store::Store;
use crate::watches::ConnectionId;
use bindery_io::Clock;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// How far things are durable.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Every batch up to this number is.
    pub(crate) durable: u64,
    /// Why no further one will be.
    pub(crate) failure: Option<Arc<str>>,
}

struct State {
    core: Core,
    outboxes: BTreeMap<ConnectionId, Arc<Outbox>>,
    next_connection: u64,
    /// Number of the batch being collected.
    batch: u64,
    /// Since when one is being written.
    writing_since_ms: Option<u64>,
    is_stopping: bool,
    has_failed: bool,
}

/// What all tasks of a coordinator share.
pub(crate) struct Shared {
    pub(crate) config: CoordinatorConfig,
    pub(crate) counters: Counters,
    clock: Arc<dyn Clock>,
    started_ms: u64,
    state: Mutex<State>,
    /// Wakes the commit thread.
    changed: Condvar,
    progress: watch::Sender<Progress>,
}

/// Both times of a clock.
pub(crate) fn now_of(clock: &dyn Clock) -> Now {
    Now { monotonic_ms: clock.monotonic_ns() / 1_000_000, wall_ms: clock.wall_ms() }
}

impl Shared {
    pub(crate) fn new(config: CoordinatorConfig, core: Core, clock: Arc<dyn Clock>) -> Shared {
        let started_ms = now_of(&*clock).monotonic_ms;
        Shared {
            config,
            counters: Counters::default(),
            started_ms,
            state: Mutex::new(State {
                core,
                outboxes: BTreeMap::new(),
                next_connection: 1,
                batch: 1,
                writing_since_ms: None,
                is_stopping: false,
                has_failed: false,
            }),
            changed: Condvar::new(),
            progress: watch::Sender::new(Progress::default()),
            clock,
        }
    }

    /// Follows what becomes durable.
    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Milliseconds of the monotonic clock, never 0.
    pub(crate) fn now_ms(&self) -> u64 {
        now_of(&*self.clock).monotonic_ms.max(1)
    }

    pub(crate) fn uptime_ms(&self) -> u64 {
        self.now_ms().saturating_sub(self.started_ms)
    }

    /// Registers a connection.
    pub(crate) fn connect(&self, peer: SocketAddr, outbox: Arc<Outbox>) -> ConnectionId {
        let mut state = self.state.lock();
        let id = ConnectionId(state.next_connection);
        state.next_connection += 1;
        state.core.on_connect(id, peer.ip());
        state.outboxes.insert(id, outbox);
        id
    }

    /// Forgets a connection.
    pub(crate) fn disconnect(&self, id: ConnectionId) {
        let mut state = self.state.lock();
        state.core.on_disconnect(id);
        if let Some(outbox) = state.outboxes.remove(&id) {
            self.counters.absorb(&outbox);
        }
    }

    /// Lets the core act, and hands out what it says (shared invariant 1).
    pub(crate) fn act(&self, act: impl FnOnce(&mut Core, Now, &mut Vec<Output>)) {
        let now = now_of(&*self.clock);
        let mut outputs = Vec::new();
        let mut state = self.state.lock();
        if state.has_failed || state.is_stopping {
            return;
        }
        act(&mut state.core, now, &mut outputs);
        let has_changes = state.core.has_changes();
        let batch = if has_changes { state.batch } else { state.batch - 1 };
        for output in outputs {
            match output {
                Output::Frame(id, frame) => {
                    if let Some(outbox) = state.outboxes.get(&id) {
                        outbox.push(frame, batch, now.monotonic_ms);
                    }
                }
                Output::Close(id) => {
                    if let Some(outbox) = state.outboxes.get(&id) {
                        outbox.close();
                    }
                }
                Output::Drop(id) => {
                    if let Some(outbox) = state.outboxes.get(&id) {
                        outbox.drop_now();
                    }
                }
            }
        }
        drop(state);
        if has_changes {
            self.changed.notify_one();
        }
    }

    /// A tick of the sessions.
    pub(crate) fn tick(&self) {
        let now_ms = self.now_ms();
        let writing_since = self.state.lock().writing_since_ms;
        // While the disk stands still, requests lie unread: their clients are alive.
        let was_stalled =
            writing_since.is_some_and(|since| now_ms.saturating_sub(since) > self.config.tick_ms());
        self.act(|core, now, out| core.on_tick(now, was_stalled, out));
    }

    /// True while more waits to become durable than may.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.lock().core.pending_bytes() > self.config.pending_bytes_max
    }

    /// Counters of the core, and the outboxes.
    pub(crate) fn figures(&self) -> (Figures, Vec<Arc<Outbox>>) {
        let state = self.state.lock();
        (state.core.figures(), state.outboxes.values().cloned().collect())
    }

    /// Executes nothing more; the commit thread ends when everything is durable.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.changed.notify_one();
    }

    /// The commit thread. Returns after [`Shared::stop`], or when the store fails (shared invariants 2 and 3).
    pub(crate) fn run_commits(&self, mut store: Store) {
        loop {
            let (batch, number) = {
                let mut state = self.state.lock();
                while !state.core.has_changes() {
                    if state.is_stopping {
                        return;
                    }
                    self.changed.wait(&mut state);
                }
                state.writing_since_ms = Some(self.now_ms());
                state.batch += 1;
                (state.core.take_batch(), state.batch - 1)
            };
            if let Err(error) = store.commit(&batch) {
                tracing::error!(%error, path = %store.path().display(), "the coordinator's store failed");
                self.state.lock().has_failed = true;
                let failure: Arc<str> = format!("the coordinator's store failed: {error}").into();
                self.progress.send_modify(|progress| progress.failure = Some(failure));
                return;
            }
            self.state.lock().writing_since_ms = None;
            self.progress.send_modify(|progress| progress.durable = number);
        }
    }
}
