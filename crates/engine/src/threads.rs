//! The threads that drive a [`Machine`]: journal, completion, flush, preparation of journal files. They decide nothing.

use crate::api::AddSink;
use crate::config::PoolMemory;
use crate::engine::Engine;
use crate::machine::{Completions, Flushing, FreezeTicket, Journaling};
use crate::open::Machine;
use crate::signal::Signal;
use bindery_io::Disk;
use bindery_journal::{JournalConfig, PreparedFile};
use bindery_storage::Mark;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Groups between the journal and the completion thread: enough that the journal never waits for a thread that
/// itself never waits.
const COMPLETIONS_MAX: usize = 4;

/// After this long without an add the journal counts as idle and seals its last group.
const IDLE_WAIT: Duration = Duration::from_millis(500);

/// Pause after each MiB of a journal file that is zero-filled: at about 0.5 ms of disk time for a MiB, adds that
/// arrive meanwhile find the disk free nine times out of ten. Without it their median was 3.7 ms instead of 0.15.
const PREPARE_PAUSE: Duration = Duration::from_millis(5);

/// The running threads of an engine. Drop it only after [`EngineThreads::stop`].
pub struct EngineThreads {
    engine: Arc<Engine>,
    is_stopping: Arc<AtomicBool>,
    desk: Arc<FlushDesk>,
    flush_signal: Arc<Signal>,
    threads: Vec<JoinHandle<()>>,
    journal: JoinHandle<Journaling>,
    flush: JoinHandle<Flushing>,
}

/// Why a stop was not clean. What was acknowledged is safe; the next start replays more.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The engine had failed before, or failed while stopping.
    #[error("{0}")]
    Failed(String),
    /// A thread panicked.
    #[error("the {0} thread panicked")]
    Panicked(&'static str),
}

/// What the flush thread shares with the journal thread.
#[derive(Default)]
struct FlushDesk {
    ticket: Mutex<Option<FreezeTicket>>,
    flushed: Mutex<Option<Mark>>,
    /// Set when the journal thread has ended, so that no ticket follows.
    is_last: AtomicBool,
}

impl Machine {
    /// Starts the threads. Answers to adds go to `sink`.
    pub fn start(self, disk: Arc<dyn Disk>, sink: Arc<dyn AddSink>) -> EngineThreads {
        let Machine { engine, mut journaling, mut flushing, .. } = self;
        flushing.pause = Some(std::thread::sleep);
        let is_stopping = Arc::new(AtomicBool::new(false));
        let desk = Arc::new(FlushDesk::default());
        let flush_signal = Arc::new(Signal::default());
        let (completions, to_complete) = sync_channel::<Completions>(COMPLETIONS_MAX);
        let (prepared, from_preparation) = sync_channel::<PreparedFile>(1);

        let missing =
            engine.config.journal_files_preallocated.saturating_sub(journaling.journal.files_free());
        let slots: Vec<u32> = (0..missing).map(|_| journaling.journal.reserve_slot()).collect();
        let journal_config = journaling.journal.config().clone();

        let threads = vec![
            spawn("bindery-complete", move || complete(&to_complete, &*sink)),
            spawn("bindery-prepare", {
                let (stop, engine) = (is_stopping.clone(), engine.clone());
                move || prepare(&*disk, &engine, &journal_config, &slots, &prepared, &stop)
            }),
        ];
        let flush = spawn("bindery-flush", {
            let (desk, signal, engine) = (desk.clone(), flush_signal.clone(), engine.clone());
            move || flush_loop(flushing, &desk, &signal, &engine)
        });
        let journal = spawn("bindery-journal", {
            let (stop, signal, desk) = (is_stopping.clone(), flush_signal.clone(), desk.clone());
            move || journal_loop(journaling, &completions, &from_preparation, &desk, &signal, &stop)
        });
        EngineThreads { engine, is_stopping, desk, flush_signal, threads, journal, flush }
    }
}

impl EngineThreads {
    /// Writes and answers what formed, flushes everything, and ends the threads. Nothing is left to replay.
    /// Blocks for as long as the disk takes.
    pub fn stop(self) -> Result<(), StopError> {
        self.is_stopping.store(true, Ordering::Release);
        self.engine.pacing.is_hurried.store(true, Ordering::Release);
        self.engine.journal_signal.raise();
        let mut journaling = self.journal.join().map_err(|_| StopError::Panicked("journal"))?;
        self.desk.is_last.store(true, Ordering::Release);
        self.flush_signal.raise();
        let mut flushing = self.flush.join().map_err(|_| StopError::Panicked("flush"))?;
        for thread in self.threads {
            thread.join().map_err(|_| StopError::Panicked("completion or preparation"))?;
        }
        journaling.is_flushing = false;
        self.engine.is_freeze_wanted.store(true, Ordering::Release);
        while let Some(in_flight) = journaling.cut() {
            let written = journaling.write(&in_flight);
            let done = journaling.finish(in_flight, written);
            // The sink's connections are closed by now; the adds in it were never acknowledged.
            if let Some(ticket) = done.freeze {
                match flushing.flush(ticket) {
                    Ok(mark) => journaling.on_flushed(mark),
                    Err(error) => return Err(StopError::Failed(error.to_string())),
                }
            }
        }
        match self.engine.status().failed {
            Some(reason) => Err(StopError::Failed(reason)),
            None => Ok(()),
        }
    }
}

fn spawn<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).expect("a thread can be started at start-up")
}

fn journal_loop(
    mut journaling: Journaling,
    completions: &SyncSender<Completions>,
    prepared: &Receiver<PreparedFile>,
    desk: &FlushDesk,
    flush_signal: &Signal,
    stop: &AtomicBool,
) -> Journaling {
    loop {
        if let Some(mark) = desk.flushed.lock().take() {
            journaling.on_flushed(mark);
        }
        match prepared.try_recv() {
            Ok(file) => journaling.journal.add_prepared(file),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        let Some(in_flight) = journaling.cut() else {
            if stop.load(Ordering::Acquire) {
                return journaling;
            }
            if !journaling.engine.journal_signal.wait(IDLE_WAIT) {
                journaling.seal();
            }
            continue;
        };
        let written = journaling.write(&in_flight);
        let mut done = journaling.finish(in_flight, written);
        if let Some(ticket) = done.freeze.take() {
            let before = desk.ticket.lock().replace(ticket);
            assert!(before.is_none(), "one ticket at a time");
            flush_signal.raise();
        }
        if !done.is_empty() {
            completions.send(done).expect("the completion thread outlives the journal thread");
        }
    }
}

fn complete(completions: &Receiver<Completions>, sink: &dyn AddSink) {
    while let Ok(done) = completions.recv() {
        done.deliver(sink);
    }
}

fn flush_loop(mut flushing: Flushing, desk: &FlushDesk, signal: &Signal, engine: &Engine) -> Flushing {
    let interval_ns = u64::try_from(engine.config.flush_interval.as_nanos()).unwrap_or(u64::MAX);
    let mut waited_from = flushing.clock.monotonic_ns();
    loop {
        // In this order: a ticket is on the desk before the flag says that it was the last one.
        let is_last = desk.is_last.load(Ordering::Acquire);
        let ticket = desk.ticket.lock().take();
        match ticket {
            Some(ticket) => {
                // On failure the ticket is not given back: no freeze follows, and the engine is latched.
                if let Ok(mark) = flushing.flush(ticket) {
                    *desk.flushed.lock() = Some(mark);
                }
                engine.journal_signal.raise();
                waited_from = flushing.clock.monotonic_ns();
            }
            None if is_last => return flushing,
            None => {
                // An error latches the engine, and then there is nothing to do here any more.
                let soon = flushing.tend().ok().flatten();
                let waited = flushing.clock.monotonic_ns().saturating_sub(waited_from);
                let left = Duration::from_nanos(interval_ns.saturating_sub(waited));
                if !signal.wait(soon.map_or(left, |soon| soon.min(left)))
                    && soon.is_none_or(|soon| soon >= left)
                {
                    waited_from = flushing.clock.monotonic_ns();
                    if engine.config.pool_memory == PoolMemory::Lazy {
                        engine.pool.give_back_idle();
                    }
                    engine.is_freeze_wanted.store(true, Ordering::Release);
                    engine.journal_signal.raise();
                }
            }
        }
    }
}

/// Zero-fills journal files and, unless it is to be taken lazily, touches the memory of the write pool, both once, so
/// that the hot path meets neither unallocated disk blocks nor fresh pages.
fn prepare(
    disk: &dyn Disk,
    engine: &Engine,
    config: &JournalConfig,
    slots: &[u32],
    prepared: &SyncSender<PreparedFile>,
    stop: &AtomicBool,
) {
    if engine.config.pool_memory == PoolMemory::Touched {
        while !stop.load(Ordering::Relaxed) && engine.pool.warm_one() {}
    }
    for &slot in slots {
        // What is filled ahead of its use must not be what entries and metadata then lack.
        let free = disk.space(&config.dir).map_or(u64::MAX, |space| space.free);
        if free < 2 * config.file_bytes {
            let free_mib = free >> 20;
            tracing::warn!(free_mib, "little disk space: journal files are made when needed, not ahead");
            return;
        }
        let proceed = || {
            std::thread::sleep(PREPARE_PAUSE);
            !stop.load(Ordering::Relaxed)
        };
        match PreparedFile::create(disk, config, slot, proceed) {
            Ok(Some(file)) => {
                if prepared.send(file).is_err() {
                    return;
                }
                engine.journal_signal.raise();
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, slot, "cannot prepare a journal file; the journal makes its own when needed");
                return;
            }
        }
    }
}
