//! The threads that drive a [`Machine`]: one for each journal, completion, flush, preparation of journal files. They
//! decide nothing.

use crate::api::AddSink;
use crate::completions::Completions;
use crate::config::PoolMemory;
use crate::flushing::Flushing;
use crate::journaling::{InFlight, Journaling};
use crate::open::Machine;
use crate::shared::Shared;
use crate::signal::Signal;
use crate::tickets::{Flushed, FreezeTicket};
use bindery_io::{Clock, Disk};
use bindery_journal::{JournalConfig, PreparedFile};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Groups of a journal on their way to the completion thread: enough that no journal waits for a thread that itself
/// never waits.
const COMPLETIONS_MAX: usize = 4;

/// A group of so few adds is answered by the journal thread itself: writing to its sockets costs less than waking
/// another thread, which would be most of the cost of a single add.
const ANSWERS_AT_ONCE_MAX: usize = 4;

/// After this long without an add the journal counts as idle and seals its last group.
const IDLE_WAIT: Duration = Duration::from_millis(500);

/// How often a read-only bookie looks for refusals that a hanging disk holds up, and one that is writable whether it is still.
const HUNG_LOOK: Duration = Duration::from_millis(100);
const WRITABLE_LOOK: Duration = Duration::from_secs(1);

/// Pause after each MiB of a journal file that is zero-filled: at about 0.5 ms of disk time for a MiB, adds that
/// arrive meanwhile find the disk free nine times out of ten. Without it their median was 3.7 ms instead of 0.15.
const PREPARE_PAUSE: Duration = Duration::from_millis(5);

/// The running threads of an engine. Drop it only after [`EngineThreads::stop`].
pub struct EngineThreads {
    shared: Arc<Shared>,
    is_stopping: Arc<AtomicBool>,
    desk: Arc<FlushDesk>,
    flush_signal: Arc<Signal>,
    threads: Vec<JoinHandle<()>>,
    journals: Vec<JoinHandle<Journaling>>,
    flush: JoinHandle<Flushing>,
}

/// The reason why a stop left something to replay. Acknowledged entries are safe.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// No failure: a flush or a forming group waits for space or for descriptors. Everything that is not flushed is in the journal.
    #[error("{0}")]
    Waits(String),
    /// The engine had failed before, or failed while stopping.
    #[error("{0}")]
    Failed(String),
    /// A thread panicked.
    #[error("the {0} thread panicked")]
    Panicked(&'static str),
}

/// What the flush thread shares with the journal threads.
struct FlushDesk {
    /// In the order in which they came; at most one of each journal.
    tickets: Mutex<VecDeque<FreezeTicket>>,
    /// By journal.
    flushed: Vec<Mutex<Option<Flushed>>>,
    /// Set when the journal threads have ended, so that no ticket follows.
    is_last: AtomicBool,
}

/// State of a journal thread besides its journal.
struct JournalLine {
    completions: SyncSender<Completions>,
    /// Sent to the completion thread and not delivered, of all journals.
    undelivered: Arc<AtomicUsize>,
    sink: Arc<dyn AddSink>,
    prepared: Receiver<Result<PreparedFile, u32>>,
    desk: Arc<FlushDesk>,
    flush_signal: Arc<Signal>,
    stop: Arc<AtomicBool>,
}

/// Journal files to be made ahead of their use.
struct Preparation {
    config: JournalConfig,
    slots: Vec<u32>,
    /// Each file, or the slot of one that is not made.
    prepared: SyncSender<Result<PreparedFile, u32>>,
}

impl Machine {
    /// Starts the threads. Answers to adds go to `sink`.
    pub fn start(self, disk: Arc<dyn Disk>, sink: Arc<dyn AddSink>) -> EngineThreads {
        let Machine { engine, journals, mut flushing, .. } = self;
        let shared = engine.shared().clone();
        flushing.pause_with(std::thread::sleep);
        let clock = flushing.clock().clone();
        let is_stopping = Arc::new(AtomicBool::new(false));
        let desk = Arc::new(FlushDesk {
            tickets: Mutex::default(),
            flushed: journals.iter().map(|_| Mutex::default()).collect(),
            is_last: AtomicBool::new(false),
        });
        let flush_signal = shared.flush_signal().clone();
        let (completions, to_complete) = sync_channel::<Completions>(COMPLETIONS_MAX * journals.len());
        let undelivered = shared.undelivered().clone();

        let (mut preparations, mut lines) = (Vec::new(), Vec::new());
        for mut journaling in journals {
            let (prepared, from_preparation) = sync_channel::<Result<PreparedFile, u32>>(1);
            let journal = journaling.journal_mut();
            // Those that are free, in use, and made ahead are within the cap.
            let config = shared.config();
            let allowed = (config.journal_cap_bytes() / config.journal_file_bytes) as usize;
            let missing = config.journal_files_preallocated.saturating_sub(journal.files_free());
            // Nor what a flush waits for.
            let allowed = if flushing.is_waiting() { 0 } else { allowed };
            let missing = missing.min(allowed.saturating_sub(journal.file_count()));
            let slots: Vec<u32> = (0..missing).map(|_| journal.reserve_slot()).collect();
            preparations.push(Preparation { config: journal.config().clone(), slots, prepared });
            let line = JournalLine {
                completions: completions.clone(),
                undelivered: undelivered.clone(),
                sink: sink.clone(),
                prepared: from_preparation,
                desk: desk.clone(),
                flush_signal: flush_signal.clone(),
                stop: is_stopping.clone(),
            };
            lines.push((journaling, line));
        }
        drop(completions);

        let threads = vec![
            spawn("bindery-complete", {
                let shared = shared.clone();
                move || complete(&to_complete, &undelivered, &shared, &*clock, &*sink)
            }),
            spawn("bindery-prepare", {
                let (stop, shared) = (is_stopping.clone(), shared.clone());
                move || prepare(&*disk, &shared, &preparations, &stop)
            }),
        ];
        let flush = spawn("bindery-flush", {
            let (desk, signal, shared) = (desk.clone(), flush_signal.clone(), shared.clone());
            move || flush_loop(flushing, &desk, &signal, &shared)
        });
        let journals = lines
            .into_iter()
            .map(|(journaling, line)| {
                // The kernel shows 15 bytes of a name.
                let name = match journaling.index() {
                    0 => "bindery-journal".to_owned(),
                    index => format!("bindery-jrnl-{index}"),
                };
                spawn(&name, move || journal_loop(journaling, &line))
            })
            .collect();
        EngineThreads { shared, is_stopping, desk, flush_signal, threads, journals, flush }
    }
}

impl EngineThreads {
    /// Writes and answers what formed, flushes everything, and ends the threads. Nothing is left to replay.
    /// Blocks for as long as the disk takes.
    pub fn stop(self) -> Result<(), StopError> {
        self.is_stopping.store(true, Ordering::Release);
        self.shared.pacing().is_hurried.store(true, Ordering::Release);
        self.shared.wake_journals();
        let mut journals = Vec::with_capacity(self.journals.len());
        for journal in self.journals {
            journals.push(journal.join().map_err(|_| StopError::Panicked("journal"))?);
        }
        self.desk.is_last.store(true, Ordering::Release);
        self.flush_signal.raise();
        let mut flushing = self.flush.join().map_err(|_| StopError::Panicked("flush"))?;
        for thread in self.threads {
            thread.join().map_err(|_| StopError::Panicked("completion or preparation"))?;
        }
        if flushing.is_waiting() {
            return Err(EngineThreads::not_flushed(&self.shared, "a flush waits".to_owned()));
        }
        for journaling in &mut journals {
            match self.desk.flushed[journaling.index()].lock().take() {
                Some(flushed) => journaling.on_flushed(flushed),
                None => journaling.forget_ticket(),
            }
        }
        self.shared.want_freeze();
        for journaling in &mut journals {
            while let Some(in_flight) = journaling.cut() {
                let written = journaling.write(&in_flight);
                let done = journaling.finish(in_flight, written);
                // The sink's connections are closed by now; the adds in it were never acknowledged.
                if let Some(ticket) = done.freeze {
                    match flushing.flush(ticket) {
                        Ok(flushed) => journaling.on_flushed(flushed),
                        Err(error) => {
                            return Err(EngineThreads::not_flushed(&self.shared, error.to_string()));
                        }
                    }
                }
            }
        }
        let is_left =
            || self.shared.shards().iter().map(|shard| shard.lock()).any(|s| s.is_dirty() || s.has_work());
        match EngineThreads::obstacle(&self.shared) {
            Some(StopError::Waits(_)) if !is_left() => Ok(()),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// The error for a flush that did not go through: `otherwise`, unless the engine knows better.
    fn not_flushed(shared: &Shared, otherwise: String) -> StopError {
        EngineThreads::obstacle(shared).unwrap_or(StopError::Failed(otherwise))
    }

    /// The failure of the engine, or what it waits for.
    fn obstacle(shared: &Shared) -> Option<StopError> {
        let status = shared.status();
        let waits = status.waits().map(str::to_owned).map(StopError::Waits);
        status.failed.map(StopError::Failed).or(waits)
    }
}

fn spawn<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).expect("a thread can be started at start-up")
}

fn journal_loop(mut journaling: Journaling, line: &JournalLine) -> Journaling {
    let idle_wait_ns = u64::try_from(IDLE_WAIT.as_nanos()).unwrap_or(u64::MAX);
    // Since when there was nothing to write. Flushes and checks of the disks wake this thread, too, perhaps more often.
    let mut idle_from = None;
    loop {
        let flushed = line.desk.flushed[journaling.index()].lock().take();
        if let Some(flushed) = flushed {
            journaling.on_flushed(flushed);
        }
        match line.prepared.try_recv() {
            Ok(Ok(file)) => journaling.journal_mut().add_prepared(file),
            Ok(Err(slot)) => {
                journaling.journal_mut().give_back_slot(slot);
                journaling.tell_about_space();
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        let cut = journaling.cut();
        if cut.is_none() && line.stop.load(Ordering::Acquire) {
            return journaling;
        }
        // Refusals while the journal waits for a file do not count as work: the next attempt to make one must come.
        if cut.as_ref().is_none_or(InFlight::is_refusals) {
            let now = journaling.clock().monotonic_ns();
            let idle_ns = now.saturating_sub(*idle_from.get_or_insert(now));
            if idle_ns >= idle_wait_ns {
                journaling.seal();
                if journaling.journal().failure().is_some() {
                    line.flush_signal.raise();
                }
                idle_from = None;
            } else if cut.is_none() {
                let rest = Duration::from_nanos(idle_wait_ns - idle_ns);
                journaling.wait(rest);
            }
        } else {
            idle_from = None;
        }
        let Some(mut in_flight) = cut else { continue };
        let grants = in_flight.take_grants();
        if !grants.is_empty() {
            line.send(grants);
        }
        let written = journaling.write(&in_flight);
        let is_failed = written.is_err();
        let mut done = journaling.finish(in_flight, written);
        if is_failed {
            // From now on the flush thread looks for fences (`direct_fence`).
            line.flush_signal.raise();
        }
        if let Some(ticket) = done.freeze.take() {
            let mut tickets = line.desk.tickets.lock();
            let is_first = tickets.iter().all(|waiting| waiting.journal != ticket.journal);
            assert!(is_first, "one ticket of a journal at a time");
            tickets.push_back(ticket);
            line.flush_signal.raise();
        }
        if !done.is_empty() {
            line.deliver(done);
        }
    }
}

impl JournalLine {
    fn send(&self, done: Completions) {
        self.undelivered.fetch_add(1, Ordering::AcqRel);
        self.completions.send(done).expect("the completion thread outlives the journal threads");
    }

    /// Answers at once what is little, unless that would overtake what the completion thread has.
    fn deliver(&self, done: Completions) {
        if done.is_few_adds(ANSWERS_AT_ONCE_MAX) && self.undelivered.load(Ordering::Acquire) == 0 {
            done.deliver(&*self.sink);
        } else {
            self.send(done);
        }
    }
}

fn complete(
    completions: &Receiver<Completions>,
    undelivered: &AtomicUsize,
    shared: &Shared,
    clock: &dyn Clock,
    sink: &dyn AddSink,
) {
    let deliver = |done: Completions| {
        done.deliver(sink);
        undelivered.fetch_sub(1, Ordering::AcqRel);
    };
    let mut looked_ns = 0;
    loop {
        let pause = if shared.is_read_only() { HUNG_LOOK } else { WRITABLE_LOOK };
        match completions.recv_timeout(pause) {
            Ok(done) => deliver(done),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now_ns = clock.monotonic_ns();
        if !shared.is_read_only() || u128::from(now_ns.saturating_sub(looked_ns)) < HUNG_LOOK.as_nanos() {
            continue;
        }
        looked_ns = now_ns;
        for hung in shared.hung_writes(now_ns) {
            // Counted first, so that a journal thread which goes on meanwhile does not answer by itself.
            undelivered.fetch_add(1, Ordering::AcqRel);
            // What was answered before that write began (invariant 3 of `hung`).
            completions.try_iter().for_each(deliver);
            deliver(shared.refuse_while_hung(hung, now_ns));
        }
        if let Some(waiters) = shared.let_waiters_be_refused() {
            waiters.deliver(sink);
        }
    }
}

fn flush_loop(mut flushing: Flushing, desk: &FlushDesk, signal: &Signal, shared: &Shared) -> Flushing {
    let interval_ns = u64::try_from(shared.config().flush_interval.as_nanos()).unwrap_or(u64::MAX);
    let mut waited_from = flushing.clock().monotonic_ns();
    loop {
        // In this order: a ticket is on the desk before the flag says that it was the last one.
        let is_last = desk.is_last.load(Ordering::Acquire);
        let ticket = desk.tickets.lock().pop_front();
        match ticket {
            Some(ticket) => {
                // On failure the ticket is not given back: no freeze follows, and the engine is latched.
                if let Ok(flushed) = flushing.flush(ticket) {
                    *desk.flushed[flushed.journal].lock() = Some(flushed);
                }
                // Chunks are free again, for the shards of any journal.
                shared.wake_journals();
                waited_from = flushing.clock().monotonic_ns();
                // A step, also when the next ticket is there already: load that never ends does not end compaction. Its
                // error latches the engine.
                let _ = flushing.tend();
            }
            None if is_last => return flushing,
            None => {
                if let Some(Ok(flushed)) = flushing.retry() {
                    *desk.flushed[flushed.journal].lock() = Some(flushed);
                    shared.wake_journals();
                }
                // After an error the next look finds what is left to do.
                let soon = flushing.tend().ok().flatten();
                let waited = flushing.clock().monotonic_ns().saturating_sub(waited_from);
                let left = Duration::from_nanos(interval_ns.saturating_sub(waited));
                if !signal.wait(soon.map_or(left, |soon| soon.min(left)))
                    && soon.is_none_or(|soon| soon >= left)
                {
                    waited_from = flushing.clock().monotonic_ns();
                    if shared.config().pool_memory == PoolMemory::Lazy {
                        shared.pool().give_back_idle();
                    }
                    shared.want_freeze();
                    shared.wake_journals();
                }
            }
        }
    }
}

/// Zero-fills journal files and, unless it is to be taken lazily, touches the memory of the write pool, both once, so
/// that the hot path meets neither unallocated disk blocks nor fresh pages.
fn prepare(disk: &dyn Disk, shared: &Shared, journals: &[Preparation], stop: &AtomicBool) {
    if shared.config().pool_memory == PoolMemory::Touched {
        while !stop.load(Ordering::Relaxed) && shared.pool().warm_one() {}
    }
    // One file of each in turn: the first journal's spare files do not keep the others waiting.
    let rounds = journals.iter().map(|journal| journal.slots.len()).max().unwrap_or(0);
    let mut is_over = false;
    for round in 0..rounds {
        for journal in journals {
            let Some(slot) = journal.slots.get(round) else { continue };
            is_over = is_over || !prepare_file(disk, shared, journal, *slot, stop);
            // A slot without a file would count against the cap.
            if is_over && journal.prepared.send(Err(*slot)).is_ok() {
                shared.journals()[usize::from(journal.config.journal)].signal.raise();
            }
        }
    }
}

/// False: no more of them.
fn prepare_file(
    disk: &dyn Disk,
    shared: &Shared,
    journal: &Preparation,
    slot: u32,
    stop: &AtomicBool,
) -> bool {
    let config = &journal.config;
    // Files filled ahead of their use must not take the space that entries and metadata then lack.
    let free = disk.space(&config.dir).map_or(u64::MAX, |space| space.free);
    if free < 2 * config.file_bytes {
        let free_mib = free >> 20;
        tracing::warn!(free_mib, "low disk space: journal files are created when needed, not in advance");
        return false;
    }
    let proceed = || {
        std::thread::sleep(PREPARE_PAUSE);
        !stop.load(Ordering::Relaxed)
    };
    match PreparedFile::create(disk, config, slot, proceed) {
        Ok(Some(file)) => {
            let is_taken = journal.prepared.send(Ok(file)).is_ok();
            shared.journals()[usize::from(config.journal)].signal.raise();
            is_taken
        }
        Ok(None) => false,
        Err(error) => {
            tracing::warn!(%error, slot, "cannot create a journal file in advance; the journal will create its own \
             when needed");
            false
        }
    }
}
