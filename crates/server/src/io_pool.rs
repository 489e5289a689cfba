//! A few threads that may block on disks, in front of two bounded queues.
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

type Job = (Box<dyn FnOnce() + Send>, OwnedSemaphorePermit);

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

    /// Hands a job over.
    pub fn run(&self, slot: Slot, job: impl FnOnce() + Send + 'static) {
        let mut queues = self.shared.queues.lock();
        let job: Job = (Box::new(job), slot.permit);
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
        loop {
            let (job, permit) = {
                let mut queues = self.queues.lock();
                loop {
                    if let Some(job) = queues.high.pop_front() {
                        break job;
                    }
                    if let Some(job) = queues.plain.pop_front() {
                        break job;
                    }
                    if queues.is_stopping {
                        return;
                    }
                    self.changed.wait(&mut queues);
                }
            };
            job();
            drop(permit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    #[tokio::test]
    async fn the_fencing_lane_has_slots_of_its_own_and_goes_first() {
        let pool = IoPool::start(1, 2).unwrap();
        let (release, gate) = sync_channel::<()>(0);
        let (done, order) = sync_channel::<u32>(10);
        pool.run(pool.slot(Lane::Plain).await, move || gate.recv().unwrap());
        let d = done.clone();
        pool.run(pool.slot(Lane::Plain).await, move || d.send(1).unwrap());
        let full = tokio::time::timeout(Duration::from_millis(10), pool.slot(Lane::Plain)).await;
        assert!(full.is_err(), "both plain slots are taken");
        pool.run(pool.slot(Lane::High).await, move || done.send(2).unwrap());
        release.send(()).unwrap();
        pool.stop();
        assert_eq!(order.iter().collect::<Vec<_>>(), [2, 1]);
    }
}
