//! Threads that may block on disks: for each ledger directory a few, in front of two bounded queues.
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
//! 2. A job enters by a slot of its place and lane. Whoever waits for a
//!    slot gets it in the order of arrival; with few slots a connection that asks for much waits its turn there, and not
//!    others behind its jobs.
//! 3. A disk that hangs holds up the jobs of its own place only.
//! 4. The fencing lane of a place has slots and a thread of its own, and is served first by the other threads: jobs of the
//!    plain lane, however long, do not hold it up. Nor does it begin their reads.
//! 5. `stop` runs what was accepted, then joins the threads.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Jobs queued or running for each thread, in each lane: enough that no thread idles while the next one comes, few enough
/// that connections wait in the order of arrival for a slot, and not behind the jobs of one of them.
const SLOTS_PER_THREAD: usize = 4;

/// Which queue a job waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Fencing, recovery and high priority.
    High,
    /// Everything else.
    Plain,
}

/// Jobs of a place share threads, because they may have to wait for the same disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(usize);

impl Place {
    /// A number below [`IoPools::place_count`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// The pools of all places; see the module.
pub struct IoPools {
    /// Those of the ledger directories, and one for what belongs to none of them.
    pools: Vec<IoPool>,
}

impl IoPools {
    /// Starts `threads` threads, at least, that read `directories` directories, each of which has as many as the others;
    /// and for each place one that is for fencing.
    pub fn start(directories: usize, threads: usize) -> std::io::Result<IoPools> {
        let directories = directories.max(1);
        let threads = threads.div_ceil(directories).max(1);
        let mut pools = Vec::with_capacity(directories + 1);
        for index in 0..directories {
            pools.push(IoPool::start(&format!("disk-read-{index}"), threads)?);
        }
        pools.push(IoPool::start("disk-look", 1)?);
        Ok(IoPools { pools })
    }

    /// Of the jobs that read this ledger directory.
    pub fn of_directory(&self, index: usize) -> Place {
        assert!(index + 1 < self.pools.len(), "there is a place for each ledger directory");
        Place(index)
    }

    /// Of the jobs that read no ledger directory.
    pub fn of_none(&self) -> Place {
        Place(self.pools.len() - 1)
    }

    /// All places.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.pools.len()).map(Place)
    }

    /// How many places there are.
    pub fn place_count(&self) -> usize {
        self.pools.len()
    }

    /// Waits for room in a lane. Cancel safe: the place in line is given up.
    pub async fn slot(&self, place: Place, lane: Lane) -> Slot {
        let slots = self.pools[place.0].slots(lane).clone();
        Slot { place, lane, permit: slots.acquire_owned().await.expect("the semaphores are never closed") }
    }

    /// Room in a lane, if there is some and nobody waits for it.
    pub fn try_slot(&self, place: Place, lane: Lane) -> Option<Slot> {
        let permit = self.pools[place.0].slots(lane).clone().try_acquire_owned().ok()?;
        Some(Slot { place, lane, permit })
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
        self.pools[slot.place.0].shared.push(slot.lane, job);
    }

    /// Jobs waiting everywhere.
    pub fn queued(&self) -> usize {
        let queued = |pool: &IoPool| {
            let queues = pool.shared.queues.lock();
            queues.high.len() + queues.plain.len()
        };
        self.pools.iter().map(queued).sum()
    }

    /// Runs what was accepted and joins the threads. Blocks; later jobs are dropped unrun.
    pub fn stop(&self) {
        for pool in &self.pools {
            pool.shared.queues.lock().is_stopping = true;
            pool.shared.of_any.notify_all();
            pool.shared.of_high.notify_all();
        }
        for thread in self.pools.iter().flat_map(|pool| std::mem::take(&mut *pool.threads.lock())) {
            if thread.join().is_err() {
                tracing::error!("a disk read thread panicked");
            }
        }
    }
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
    /// Wakes a thread that takes any job.
    of_any: Condvar,
    /// Wakes the one that takes jobs of the fencing lane only.
    of_high: Condvar,
}

/// The threads of one place.
struct IoPool {
    shared: Arc<Shared>,
    high_slots: Arc<Semaphore>,
    plain_slots: Arc<Semaphore>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Room for one job.
pub struct Slot {
    place: Place,
    lane: Lane,
    permit: OwnedSemaphorePermit,
}

impl Slot {
    /// Where the job will run.
    pub fn place(&self) -> Place {
        self.place
    }

    /// True for the fencing lane.
    pub fn is_high(&self) -> bool {
        self.lane == Lane::High
    }
}

impl IoPool {
    fn start(name: &str, threads: usize) -> std::io::Result<IoPool> {
        let slots = SLOTS_PER_THREAD * threads;
        let pool = IoPool {
            shared: Arc::default(),
            high_slots: Arc::new(Semaphore::new(slots)),
            plain_slots: Arc::new(Semaphore::new(slots)),
            threads: Mutex::default(),
        };
        for index in 0..=threads {
            let (shared, is_for_high) = (pool.shared.clone(), index == threads);
            let name = if is_for_high { format!("{name}-fence") } else { format!("{name}-{index}") };
            let builder = std::thread::Builder::new().name(name);
            pool.threads.lock().push(builder.spawn(move || shared.work(is_for_high))?);
        }
        Ok(pool)
    }

    fn slots(&self, lane: Lane) -> &Arc<Semaphore> {
        match lane {
            Lane::High => &self.high_slots,
            Lane::Plain => &self.plain_slots,
        }
    }
}

impl Shared {
    fn push(&self, lane: Lane, job: Job) {
        let mut queues = self.queues.lock();
        match lane {
            Lane::High => queues.high.push_back(job),
            Lane::Plain => queues.plain.push_back(job),
        }
        drop(queues);
        self.of_any.notify_one();
        if lane == Lane::High {
            self.of_high.notify_one();
        }
    }

    fn work(&self, is_for_high: bool) {
        let mut begun = Vec::new();
        while let Some(mut job) = self.next(is_for_high, &mut begun) {
            if !begun.is_empty() {
                // Its own read comes first; alone it needs no beginning.
                job.ahead.take().into_iter().chain(begun.drain(..)).for_each(|ahead| ahead());
            }
            (job.run)();
            drop(job.permit);
        }
    }

    /// The next job, and in `begun` what the ones behind it in its lane are to read. `None` at the end.
    fn next(&self, is_for_high: bool, begun: &mut Vec<Step>) -> Option<Job> {
        let mut queues = self.queues.lock();
        loop {
            let Queues { high, plain, is_stopping } = &mut *queues;
            for lane in [Some(high), Some(plain).filter(|_| !is_for_high)].into_iter().flatten() {
                if let Some(job) = lane.pop_front() {
                    begun.extend(lane.iter_mut().filter_map(|behind| behind.ahead.take()));
                    return Some(job);
                }
            }
            if *is_stopping {
                return None;
            }
            if is_for_high { &self.of_high } else { &self.of_any }.wait(&mut queues);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{SyncSender, sync_channel};
    use std::time::Duration;

    const NOTHING: Option<fn()> = None;

    /// Runs a job that waits for what is returned to be dropped.
    async fn block(pools: &IoPools, place: Place, lane: Lane) -> SyncSender<()> {
        let (release, gate) = sync_channel::<()>(0);
        let (began, begins) = sync_channel(1);
        pools.run(pools.slot(place, lane).await, NOTHING, move || {
            began.send(()).unwrap();
            let _ = gate.recv();
        });
        begins.recv().unwrap();
        release
    }

    #[tokio::test]
    async fn the_fencing_lane_has_a_thread_and_slots_of_its_own() {
        let pools = IoPools::start(1, 1).unwrap();
        let place = pools.of_directory(0);
        let gate = block(&pools, place, Lane::Plain).await;
        for _ in 1..SLOTS_PER_THREAD {
            pools.run(pools.slot(place, Lane::Plain).await, NOTHING, || ());
        }
        assert!(pools.try_slot(place, Lane::Plain).is_none(), "all plain slots are taken");
        let (done, is_done) = sync_channel(1);
        let slot = pools.try_slot(place, Lane::High).unwrap();
        pools.run(slot, NOTHING, move || done.send(()).unwrap());
        is_done.recv_timeout(Duration::from_secs(30)).expect("invariant 4");
        drop(gate);
        pools.stop();
    }

    #[tokio::test]
    async fn what_hangs_in_one_place_holds_up_no_other() {
        let pools = IoPools::start(2, 1).unwrap();
        let hung = pools.of_directory(0);
        let gates = [block(&pools, hung, Lane::Plain).await, block(&pools, hung, Lane::High).await];
        while let Some(slot) = pools.try_slot(hung, Lane::High) {
            pools.run(slot, NOTHING, || ());
        }
        for place in [pools.of_directory(1), pools.of_none()] {
            for lane in [Lane::Plain, Lane::High] {
                let (done, is_done) = sync_channel(1);
                let slot = pools.try_slot(place, lane).unwrap();
                pools.run(slot, NOTHING, move || done.send(()).unwrap());
                is_done.recv_timeout(Duration::from_secs(30)).expect("invariant 3");
            }
        }
        drop(gates);
        pools.stop();
    }

    /// With threads that are busy, and jobs that all wait for their own read, the reads are begun before the jobs, in
    /// order, each once, and by jobs of their own lane only; a job alone reads by itself.
    #[tokio::test]
    async fn reads_are_begun_for_what_is_queued() {
        let pools = IoPools::start(1, 1).unwrap();
        let place = pools.of_directory(0);
        let gates = [block(&pools, place, Lane::High).await, block(&pools, place, Lane::High).await];
        let (done, order) = sync_channel::<String>(20);
        for (lane, name) in [(Lane::Plain, "a"), (Lane::Plain, "b"), (Lane::High, "c"), (Lane::High, "d")] {
            let (begin, end) = (done.clone(), done.clone());
            pools.run(
                pools.slot(place, lane).await,
                Some(move || begin.send(format!("begin {name}")).unwrap()),
                move || end.send(name.to_owned()).unwrap(),
            );
        }
        drop(done);
        // One of the two goes on, whichever lane it is for.
        let [first, second] = gates;
        drop(first);
        let seen: Vec<String> = order.iter().take(4).collect();
        assert_eq!(seen, ["begin c", "begin d", "c", "d"], "invariant 4");
        drop(second);
        pools.stop();
        assert_eq!(order.iter().collect::<Vec<_>>(), ["begin a", "begin b", "a", "b"]);

        let pools = IoPools::start(1, 1).unwrap();
        let (begin, begun) = sync_channel::<()>(1);
        let slot = pools.slot(pools.of_none(), Lane::Plain).await;
        pools.run(slot, Some(move || begin.send(()).unwrap()), || ());
        pools.stop();
        assert!(begun.recv().is_err(), "nobody waits behind it");
    }
}
