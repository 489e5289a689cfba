//! The core under its lock, the outboxes, and the thread that makes changes durable.
//!
//! # Data flow
//! ```text
//! act: lock -> core -> outputs, stamped with the batch they wait for -> outboxes
//! commit thread: lock, take batch -> store (one durable commit) -> progress -> outboxes let frames go
//! ```
//!
//! # Invariants
//! 1. A frame is stamped with the last batch that has changes at that moment, and leaves when that batch is durable. No
//!    client, reader or writer, ever sees a change that a crash could take back, and reads are as fresh as writes.
//! 2. Batches become durable in order, one at a time, each with everything that changed before it was taken.
//! 3. After the first failure of the store no batch becomes durable and nothing is executed: the failure is latched,
//!    every connection closes, and [`Progress::failure`] says why. A panic of the core or of the commit thread is such
//!    a failure: nobody can say what half a step left behind.
//!
//! # Limits     one batch waits while one is written; `pending_bytes_max` stops reading; beyond `outboxes_bytes_max` the
//! connection that is owed most is dropped

use crate::config::CoordinatorConfig;
use crate::core::{Core, Figures, Now, Output};
use crate::outbox::{Counters, Outbox, Owed};
use crate::requests::Requests;
use crate::store::Store;
use crate::watches::ConnectionId;
use bindery_io::Clock;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

impl State {
    fn add(&mut self, outbox: Arc<Outbox>) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.outboxes.insert(id, outbox);
        id
    }
}

/// A connection that is counted for as long as this lives.
pub(crate) struct Admitted(Arc<Shared>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What all tasks of a coordinator share.
pub(crate) struct Shared {
    pub(crate) config: CoordinatorConfig,
    pub(crate) counters: Counters,
    /// What clients of both protocols asked for.
    pub(crate) requests: Requests,
    /// The bytes owed to all connections.
    pub(crate) owed: Owed,
    /// Connections of both protocols.
    connections: AtomicUsize,
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
            requests: Requests::new(),
            owed: Owed::default(),
            connections: AtomicUsize::new(0),
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

    /// Counts one connection more, unless there are as many as may be.
    pub(crate) fn admit(self: &Arc<Shared>) -> Option<Admitted> {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        let admitted = Admitted(self.clone());
        (before < self.config.connections_max).then_some(admitted)
    }

    /// Registers a connection of ZooKeeper's protocol.
    pub(crate) fn connect(&self, peer: SocketAddr, outbox: Arc<Outbox>) -> ConnectionId {
        let mut state = self.state.lock();
        let id = state.add(outbox);
        state.core.on_connect(id, peer.ip());
        id
    }

    /// Registers a connection of Oxia's protocol. Its outbox has no frames, and counts the bytes that the connection holds.
    pub(crate) fn connect_oxia(&self, outbox: Arc<Outbox>) -> ConnectionId {
        self.state.lock().add(outbox)
    }

    /// Forgets a connection.
    fn disconnect(&self, id: ConnectionId) {
        let mut state = self.state.lock();
        state.core.on_disconnect(id);
        if let Some(outbox) = state.outboxes.remove(&id) {
            self.counters.absorb(&outbox);
        }
    }

    /// Lets the core act, and hands out what it says (shared invariant 1).
    pub(crate) fn act(&self, act: impl FnOnce(&mut Core, Now, &mut Vec<Output>)) {
        self.perform(act);
    }

    /// As [`Shared::act`]; gives what the core gave, and the batch that has to be durable before any of it is shown. `None` when nothing is
    /// executed any more.
    pub(crate) fn perform<T>(
        &self,
        act: impl FnOnce(&mut Core, Now, &mut Vec<Output>) -> T,
    ) -> Option<(T, u64)> {
        let now = now_of(&*self.clock);
        let mut outputs = Vec::new();
        let _panics = PanicsFail { shared: self, who: "the coordinator" };
        let mut state = self.state.lock();
        if state.has_failed || state.is_stopping {
            return None;
        }
        let done = act(&mut state.core, now, &mut outputs);
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
        self.bound_outboxes(&state);
        drop(state);
        if has_changes {
            self.changed.notify_one();
        }
        Some((done, batch))
    }

    /// Counts bytes that a connection holds besides its frames; when all connections hold too many, one goes.
    pub(crate) fn hold(&self, outbox: &Outbox, bytes: usize) {
        outbox.hold(bytes);
        if self.owed.bytes() > self.config.outboxes_bytes_max {
            self.bound_outboxes(&self.state.lock());
        }
    }

    /// Drops who is owed most until all together are owed no more than may be.
    fn bound_outboxes(&self, state: &State) {
        while self.owed.bytes() > self.config.outboxes_bytes_max {
            let owed = state.outboxes.values().map(|outbox| (outbox.bytes(), outbox));
            // The rest belongs to connections that have ended, and goes with them.
            let Some((bytes, outbox)) = owed.max_by_key(|(bytes, _)| *bytes).filter(|(bytes, _)| *bytes > 0)
            else {
                return;
            };
            let all = self.owed.bytes();
            tracing::warn!(peer = %outbox.peer, bytes, all, "too many unsent bytes for all clients together, closing \
             the connection with the most");
            outbox.drop_now();
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

    /// Latches the first failure (shared invariant 3).
    fn fail(&self, why: String) {
        self.state.lock().has_failed = true;
        self.progress.send_modify(|progress| {
            progress.failure.get_or_insert(why.into());
        });
    }

    /// The commit thread. Returns after [`Shared::stop`], or when the store fails (shared invariants 2 and 3).
    pub(crate) fn run_commits(&self, mut store: Store) {
        let _panics = PanicsFail { shared: self, who: "the thread that writes the coordinator's store" };
        loop {
            let (batch, number) = {
                let mut state = self.state.lock();
                while !state.core.has_changes() || state.has_failed {
                    if state.is_stopping || state.has_failed {
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
                return self.fail(format!("the coordinator's store failed: {error}"));
            }
            self.state.lock().writing_since_ms = None;
            self.progress.send_modify(|progress| progress.durable = number);
        }
    }
}

/// Turns a panic while it lives into a failure. To be made before the state is locked: it locks it.
struct PanicsFail<'a> {
    shared: &'a Shared,
    who: &'static str,
}

impl Drop for PanicsFail<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.fail(format!("{} panicked", self.who));
        }
    }
}

/// Deregisters a connection when its task ends, however it does.
pub(crate) struct Registration<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) id: ConnectionId,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.shared.disconnect(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CoreConfig;
    use bindery_io::{RealDisk, SeededRandom, SystemClock};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn shared() -> Shared {
        let config = CoordinatorConfig::new(([127, 0, 0, 1], 0).into(), "unused");
        let core_config = CoreConfig { notifications_bytes_max: 0, ..CoreConfig::small() };
        let clock = Arc::new(SystemClock::new());
        let core = Core::new(core_config, 0, now_of(&*clock), Arc::new(SeededRandom::new(1)));
        Shared::new(config, core, clock)
    }

    /// Shared's limits.
    #[test]
    fn who_is_owed_most_goes_when_all_are_owed_too_much() {
        let mut shared = shared();
        shared.config.outboxes_bytes_max = 1000;
        let connect = |port| {
            let peer = ([127, 0, 0, 1], port).into();
            let outbox = Arc::new(Outbox::new(peer, &shared.config, shared.owed.clone()));
            (shared.connect(peer, outbox.clone()), outbox)
        };
        let (first, second) = (connect(1), connect(2));
        let owe = |id, bytes: usize| {
            shared.act(|_, _, out| out.push(Output::Frame(id, vec![0; bytes].into())));
        };
        owe(first.0, 600);
        owe(second.0, 300);
        owe(second.0, 100);
        assert_eq!((first.1.bytes(), second.1.bytes()), (600, 400));
        owe(second.0, 1);
        assert_eq!((first.1.bytes(), second.1.bytes(), shared.owed.bytes()), (0, 401, 401));
        owe(first.0, 100);
        assert_eq!(shared.owed.bytes(), 401, "it is gone");
    }

    /// Shared invariant 3: without it the commit thread would be gone and every client wait for ever.
    #[test]
    fn a_panic_is_a_failure_and_nothing_is_executed_after_it() {
        let shared = shared();
        let panicked = catch_unwind(AssertUnwindSafe(|| shared.act(|_, _, _| panic!("on purpose"))));
        assert!(panicked.is_err());
        let failure = shared.progress().borrow().failure.clone();
        assert_eq!(failure.as_deref(), Some("the coordinator panicked"));
        shared.act(|_, _, _| unreachable!("it has failed"));
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn bindery_io::Disk> = Arc::new(RealDisk::new());
        let (store, _) = Store::open(&disk, dir.path()).unwrap();
        shared.run_commits(store);
        assert_eq!(
            shared.progress().borrow().durable,
            0,
            "a state of which half may be missing is not written"
        );
    }
}
