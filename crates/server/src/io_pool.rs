//! A few threads that may block on disks, in front of two bounded queues.
//!
//! # Data flow
//! ```text
//! slot ─► run ─► queue ─► a thread: begins to read for what is queued ─► the job
//! ```
//! So a device has as many reads at once as there are slots, and not as there are threads, and most jobs find in memory
//! what they read. Only threads that may block begin a read.
//!
//! # Invariants
//! 1. Nobody waits for a peer here: jobs load bytes and hand them over without waiting.
//! 2. A job enters by a slot of its lane; the fencing lane has slots of its own and is served first. Whoever waits for a
//!    slot gets it in the order of arrival; with few slots a connection that asks for much waits its turn there, and not
//!    others behind its jobs.
//! 3. `stop` runs what was accepted, then joins the threads.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Which queue a job waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Fencing, recovery and high priority.
    High,
    /// Everything else.
    Plain,
}

type Step = Box<dyn FnOnce() + Send>;

struct Job {
    /// Begins to read what `run` reads, and does not wait for it. Nothing once that was done.
    ahead: Option<Step>,
    run: Step,
    permit: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Queues {
    high: VecDeque<Job>,
    plain: VecDeque<Job>,
    is_stopping: bool,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    changed: Condvar,
}

/// See the module.
pub struct IoPool {
    shared: Arc<Shared>,
    high_slots: Arc<Semaphore>,
    plain_slots: Arc<Semaphore>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Room for one job.
pub struct Slot {
    lane: Lane,
    permit: OwnedSemaphorePermit,
}

impl Slot {
    /// True for the fencing lane.
    pub fn is_high(&self) -> bool {
        self.lane == Lane::High
    }
}

impl IoPool {
    /// Starts `threads` threads; each lane queues or runs up to `slots` jobs.
    pub fn start(threads: usize, slots: usize) -> std::io::Result<IoPool> {
        let pool = IoPool {
            shared: Arc::default(),
            high_slots: Arc::new(Semaphore::new(slots)),
            plain_slots: Arc::new(Semaphore::new(slots)),
            threads: Mutex::default(),
        };
        for index in 0..threads.max(1) {
            let shared = pool.shared.clone();
            let builder = std::thread::Builder::new().name(format!("disk-read-{index}"));
            pool.threads.lock().push(builder.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    /// Waits for room in a lane. Cancel safe: the place in line is given up.
    pub async fn slot(&self, lane: Lane) -> Slot {
        let slots = match lane {
            Lane::High => &self.high_slots,
            Lane::Plain => &self.plain_slots,
        };
        let permit = slots.clone().acquire_owned().await.expect("the semaphores are never closed");
        Slot { lane, permit }
    }

    /// Room in a lane, if there is some and nobody waits for it.
    pub fn try_slot(&self, lane: Lane) -> Option<Slot> {
        let slots = match lane {
            Lane::High => &self.high_slots,
            Lane::Plain => &self.plain_slots,
        };
        let permit = slots.clone().try_acquire_owned().ok()?;
        Some(Slot { lane, permit })
    }

    /// Hands a job over. `ahead` has the kernel begin to read what the job reads: called at most once, on a thread of the
    /// pool, before the job.
    pub fn run<A, J>(&self, slot: Slot, ahead: Option<A>, job: J)
    where
        A: FnOnce() + Send + 'static,
        J: FnOnce() + Send + 'static,
    {
        let ahead = ahead.map(|ahead| Box::new(ahead) as Step);
        let job = Job { ahead, run: Box::new(job), permit: slot.permit };
        let mut queues = self.shared.queues.lock();
        match slot.lane {
            Lane::High => queues.high.push_back(job),
            Lane::Plain => queues.plain.push_back(job),
        }
        drop(queues);
        self.shared.changed.notify_one();
    }

    /// Jobs waiting in both lanes.
    pub fn queued(&self) -> usize {
        let queues = self.shared.queues.lock();
        queues.high.len() + queues.plain.len()
    }

    /// Runs what was accepted and joins the threads. Blocks; later jobs are dropped unrun.
    pub fn stop(&self) {
        self.shared.queues.lock().is_stopping = true;
        self.shared.changed.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a disk read thread panicked");
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut begun = Vec::new();
        while let Some(mut job) = self.next(&mut begun) {
            if !begun.is_empty() {
                // Its own read comes first; alone it needs no beginning.
                job.ahead.take().into_iter().chain(begun.drain(..)).for_each(|ahead| ahead());
            }
            (job.run)();
            drop(job.permit);
        }
    }

    /// The next job, and in `begun` what the ones behind it are to read. `None` at the end.
    fn next(&self, begun: &mut Vec<Step>) -> Option<Job> {
        let mut queues = self.queues.lock();
        loop {
            let Queues { high, plain, is_stopping } = &mut *queues;
            if let Some(job) = high.pop_front().or_else(|| plain.pop_front()) {
                begun.extend(high.iter_mut().chain(plain).filter_map(|behind| behind.ahead.take()));
                return Some(job);
            }
            if *is_stopping {
                return None;
            }
            self.changed.wait(&mut queues);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    const NOTHING: Option<fn()> = None;

    #[tokio::test]
    async fn the_fencing_lane_has_slots_of_its_own_and_goes_first() {
        let pool = IoPool::start(1, 2).unwrap();
        let (release, gate) = sync_channel::<()>(0);
        let (done, order) = sync_channel::<u32>(10);
        pool.run(pool.slot(Lane::Plain).await, NOTHING, move || gate.recv().unwrap());
        let d = done.clone();
        pool.run(pool.slot(Lane::Plain).await, NOTHING, move || d.send(1).unwrap());
        let full = tokio::time::timeout(Duration::from_millis(10), pool.slot(Lane::Plain)).await;
        assert!(full.is_err(), "both plain slots are taken");
        pool.run(pool.slot(Lane::High).await, NOTHING, move || done.send(2).unwrap());
        release.send(()).unwrap();
        pool.stop();
        assert_eq!(order.iter().collect::<Vec<_>>(), [2, 1]);
    }
    /// With one thread and jobs that all wait for their own read, the reads are begun before the jobs, in order, each
    /// once; the first one reads by itself.
    #[tokio::test]
    async fn reads_are_begun_for_what_is_queued() {
        let pool = IoPool::start(1, 4).unwrap();
        let (release, gate) = sync_channel::<()>(0);
        let (done, order) = sync_channel::<String>(20);
        pool.run(pool.slot(Lane::Plain).await, NOTHING, move || gate.recv().unwrap());
        for (lane, name) in [(Lane::Plain, "a"), (Lane::Plain, "b"), (Lane::High, "c")] {
            let (begin, end) = (done.clone(), done.clone());
            pool.run(
                pool.slot(lane).await,
                Some(move || begin.send(format!("begin {name}")).unwrap()),
                move || end.send(name.to_owned()).unwrap(),
            );
        }
        release.send(()).unwrap();
        pool.stop();
        drop(done);
        assert_eq!(order.iter().collect::<Vec<_>>(), ["begin c", "begin a", "begin b", "c", "a", "b"]);
        let pool = IoPool::start(1, 4).unwrap();
        let (begin, begun) = sync_channel::<()>(1);
        pool.run(pool.slot(Lane::Plain).await, Some(move || begin.send(()).unwrap()), || ());
        pool.stop();
        assert!(begun.recv().is_err(), "nobody waits behind it");
    }
}
