//! Threads that may block on disks: a few for each ledger directory, which take jobs from two bounded queues.
//!
//! # Data flow
//! ```text
//! slot ─► run ─► queue ─► a thread: begins to read for what is queued ─► the job
//! ```
//! So a device has as many reads at once as there are slots, rather than threads, and most jobs find in memory
//! what they read. Only threads that may block begin a read.
//!
//! # Invariants
//! 1. No job waits for a peer: jobs load bytes and hand them over without waiting.
//! 2. A job needs a slot of its place and class. Slots are given out in the order of arrival. They are few, so that
//!    a connection with many jobs waits for a slot like all others, and these never wait for all of its jobs.
//! 3. A disk that hangs holds up the jobs of its own place only. A slot stands for a part of the bytes that the jobs of a
//!    class may hold in one place, and a job that loads more takes several, all of them at most: so what hangs holds no more
//!    of the pool of its class than that, or one larger entry.
//! 4. The priority class of a place has slots and a thread of its own, and is served first by the other threads: jobs of the
//!    plain class, however long, do not hold it up. Nor does it begin their reads.
//! 5. Lists of entries have a place of their own for each directory: they may read all records of a ledger, and take no thread from reads
//!    and fences. A connection has one of them under way in a place ([`IoPools::loads_max`]), so it waits for those of others.
//! 6. `stop` runs what was accepted, then joins the threads.

use crate::read_class::{PerClass, ReadClass};
use bindery_io::Clock;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Jobs queued or running for each thread, in each class: enough that no thread idles while the next one comes, few enough
/// that connections wait in the order of arrival for a slot, and not behind the jobs of one of them.
const SLOTS_PER_THREAD: usize = 4;

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
    /// Those of the ledger directories, one for what belongs to none of them, and those for lists of entries of each directory.
    pools: Vec<IoPool>,
    directories: usize,
    clock: Arc<dyn Clock>,
}

impl IoPools {
    /// Starts at least `threads` threads to read `directories` directories, the same number for each, and for each place one thread more
    /// for the priority class. The jobs of a directory hold at most its share of `bytes`, lists of all directories a quarter of that together, and one
    /// share is left, less that quarter, for what is read from memory.
    pub fn start(
        directories: usize,
        threads: usize,
        bytes: PerClass<u64>,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<IoPools> {
        let directories = directories.max(1);
        let threads = threads.div_ceil(directories).max(1);
        let share = |bytes: u64| bytes / (directories as u64 + 1);
        let shares = PerClass { plain: share(bytes.plain), priority: share(bytes.priority) };
        let quarter = |share: u64| share / (4 * directories as u64);
        let of_lists = PerClass { plain: quarter(shares.plain), priority: quarter(shares.priority) };
        let mut pools = Vec::with_capacity(2 * directories + 1);
        for index in 0..directories {
            pools.push(IoPool::start(&format!("disk-read-{index}"), threads, shares, &clock)?);
        }
        pools.push(IoPool::start("disk-look", 1, shares, &clock)?);
        for index in 0..directories {
            pools.push(IoPool::start(&format!("disk-list-{index}"), 1, of_lists, &clock)?);
        }
        Ok(IoPools { pools, directories, clock })
    }

    /// The place of jobs that read this ledger directory.
    pub fn of_directory(&self, index: usize) -> Place {
        assert!(index < self.directories, "there is a place for each ledger directory");
        Place(index)
    }

    /// The place of lists of entries in this ledger directory.
    pub fn of_lists(&self, index: usize) -> Place {
        assert!(index < self.directories, "there is a place for each ledger directory");
        Place(self.directories + 1 + index)
    }

    /// How many jobs a connection may have in a place, where it may have `most` in those of reads.
    pub fn loads_max(&self, place: Place, most: usize) -> usize {
        if place.0 > self.directories { 1 } else { most }
    }

    /// Lists that wait or run.
    pub fn lists(&self) -> usize {
        let of_lists = &self.pools[self.directories + 1..];
        of_lists.iter().map(|pool| pool.slots.iter().map(Slots::taken).sum::<usize>()).sum()
    }

    /// The place of jobs that read no ledger directory.
    pub fn of_none(&self) -> Place {
        Place(self.directories)
    }

    /// All places.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.pools.len()).map(Place)
    }

    /// How many places there are.
    pub fn place_count(&self) -> usize {
        self.pools.len()
    }

    /// Waits for room at a place, in a class, for a job that holds `bytes` of loaded entries: the more it holds, the more room it takes.
    /// First come, first served. Cancel safe: the place in line is given up.
    pub async fn slot(&self, place: Place, class: ReadClass, bytes: u64) -> Slot {
        let slots = &self.pools[place.0].slots[class];
        let count = slots.count(bytes);
        let permit = slots.free.clone().acquire_many_owned(count).await;
        Slot { place, class, permit: permit.expect("the semaphores are never closed") }
    }

    /// Room in a class for a job that holds `bytes`, if there is some and no job waits for it.
    pub fn try_slot(&self, place: Place, class: ReadClass, bytes: u64) -> Option<Slot> {
        let slots = &self.pools[place.0].slots[class];
        let permit = slots.free.clone().try_acquire_many_owned(slots.count(bytes)).ok()?;
        Some(Slot { place, class, permit })
    }

    /// Makes a slot one for a job that holds `bytes`. `None` if that takes more room than there is now; the slot is given up then.
    pub fn fit(&self, mut slot: Slot, bytes: u64) -> Option<Slot> {
        let slots = &self.pools[slot.place.0].slots[slot.class];
        let (has, needs) = (slot.permit.num_permits(), slots.count(bytes) as usize);
        if needs < has {
            drop(slot.permit.split(has - needs));
        } else if needs > has {
            let more = slots.free.clone().try_acquire_many_owned((needs - has) as u32).ok()?;
            slot.permit.merge(more);
        }
        Some(slot)
    }

    /// For how long a place has had something to do and finished nothing.
    pub fn silent_for(&self, place: Place) -> Duration {
        let shared = &self.pools[place.0].shared;
        if shared.busy.load(Ordering::Acquire) == 0 {
            return Duration::ZERO;
        }
        let since_ns = shared.alive_ns.load(Ordering::Acquire);
        Duration::from_nanos(self.clock.monotonic_ns().saturating_sub(since_ns))
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
        self.pools[slot.place.0].shared.push(slot.class, job);
    }

    /// Jobs waiting everywhere.
    pub fn queued(&self) -> usize {
        let queued = |pool: &IoPool| {
            let queues = pool.shared.queues.lock();
            queues.jobs.iter().map(VecDeque::len).sum::<usize>()
        };
        self.pools.iter().map(queued).sum()
    }

    /// Jobs waiting to read each ledger directory.
    pub fn queued_by_directory(&self) -> Vec<PerClass<usize>> {
        let queued = |pool: &IoPool| {
            let queues = pool.shared.queues.lock();
            PerClass { plain: queues.jobs.plain.len(), priority: queues.jobs.priority.len() }
        };
        self.pools[..self.directories].iter().map(queued).collect()
    }

    /// Runs what was accepted and joins the threads. Blocks. Jobs that come later may never be run.
    pub fn stop(&self) {
        for pool in &self.pools {
            pool.shared.queues.lock().is_stopping = true;
            pool.shared.of_any.notify_all();
            pool.shared.of_priority.notify_all();
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
    /// Begins to read what `run` reads, and does not wait for it. `None` once that was done.
    ahead: Option<Step>,
    run: Step,
    permit: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Queues {
    jobs: PerClass<VecDeque<Job>>,
    is_stopping: bool,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    /// Wakes a thread that takes any job.
    of_any: Condvar,
    /// Wakes the one that takes jobs of the priority class only.
    of_priority: Condvar,
    /// Threads that have a job.
    busy: AtomicUsize,
    /// When a job ended last, or one began while no other ran.
    alive_ns: AtomicU64,
}

/// The threads of one place.
struct IoPool {
    shared: Arc<Shared>,
    slots: PerClass<Slots>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The room of a class in one place.
struct Slots {
    free: Arc<Semaphore>,
    /// How many there are.
    all: u32,
    /// What each stands for.
    bytes: u64,
}

impl Slots {
    fn new(all: usize, share: u64) -> Slots {
        let bytes = (share / all as u64).max(1);
        Slots { free: Arc::new(Semaphore::new(all)), all: all as u32, bytes }
    }

    fn taken(&self) -> usize {
        self.all as usize - self.free.available_permits()
    }

    /// How many a job takes that holds `bytes` (invariant 3).
    fn count(&self, bytes: u64) -> u32 {
        let count = bytes.div_ceil(self.bytes).clamp(1, u64::from(self.all));
        u32::try_from(count).expect("clamped to a number of 32 bits")
    }
}

/// Room for one job.
pub struct Slot {
    place: Place,
    class: ReadClass,
    permit: OwnedSemaphorePermit,
}

impl Slot {
    /// Where the job will run.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The class of the reads that the job is for.
    pub fn class(&self) -> ReadClass {
        self.class
    }
}

impl IoPool {
    fn start(
        name: &str,
        threads: usize,
        shares: PerClass<u64>,
        clock: &Arc<dyn Clock>,
    ) -> std::io::Result<IoPool> {
        let slots = SLOTS_PER_THREAD * threads;
        let pool = IoPool {
            shared: Arc::default(),
            slots: PerClass {
                plain: Slots::new(slots, shares.plain),
                priority: Slots::new(slots, shares.priority),
            },
            threads: Mutex::default(),
        };
        for index in 0..=threads {
            let (shared, is_for_priority) = (pool.shared.clone(), index == threads);
            let name = if is_for_priority { format!("{name}-fence") } else { format!("{name}-{index}") };
            let builder = std::thread::Builder::new().name(name);
            let clock = clock.clone();
            pool.threads.lock().push(builder.spawn(move || shared.work(is_for_priority, &*clock))?);
        }
        Ok(pool)
    }
}

impl Shared {
    fn push(&self, class: ReadClass, job: Job) {
        let mut queues = self.queues.lock();
        queues.jobs[class].push_back(job);
        drop(queues);
        self.of_any.notify_one();
        if class.is_priority() {
            self.of_priority.notify_one();
        }
    }

    fn work(&self, is_for_priority: bool, clock: &dyn Clock) {
        let mut begun = Vec::new();
        while let Some(mut job) = self.next(is_for_priority, &mut begun) {
            if self.busy.load(Ordering::Acquire) == 0 {
                self.alive_ns.store(clock.monotonic_ns(), Ordering::Release);
            }
            self.busy.fetch_add(1, Ordering::AcqRel);
            if !begun.is_empty() {
                // Its own read is begun first. A job that is alone reads at once anyhow.
                job.ahead.take().into_iter().chain(begun.drain(..)).for_each(|ahead| ahead());
            }
            (job.run)();
            drop(job.permit);
            self.alive_ns.store(clock.monotonic_ns(), Ordering::Release);
            self.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits for the next job, and puts into `begun` what begins the reads of those after it in its class. `None` once the pool stops and no
    /// job is left.
    fn next(&self, is_for_priority: bool, begun: &mut Vec<Step>) -> Option<Job> {
        let mut queues = self.queues.lock();
        loop {
            let Queues { jobs: PerClass { priority, plain }, is_stopping } = &mut *queues;
            for jobs in [Some(priority), Some(plain).filter(|_| !is_for_priority)].into_iter().flatten() {
                if let Some(job) = jobs.pop_front() {
                    begun.extend(jobs.iter_mut().filter_map(|behind| behind.ahead.take()));
                    return Some(job);
                }
            }
            if *is_stopping {
                return None;
            }
            if is_for_priority { &self.of_priority } else { &self.of_any }.wait(&mut queues);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{SyncSender, sync_channel};
    use std::time::Duration;

    const NOTHING: Option<fn()> = None;
    const SMALL: u64 = 1000;

    fn start(directories: usize, clock: Arc<dyn Clock>) -> IoPools {
        IoPools::start(directories, 1, PerClass { plain: 1 << 20, priority: 1 << 20 }, clock).unwrap()
    }

    fn pools(directories: usize) -> IoPools {
        start(directories, Arc::new(bindery_io::SystemClock::new()))
    }

    /// Runs a job that waits for what is returned to be dropped.
    async fn block(pools: &IoPools, place: Place, class: ReadClass) -> SyncSender<()> {
        let (release, gate) = sync_channel::<()>(0);
        let (began, begins) = sync_channel(1);
        pools.run(pools.slot(place, class, SMALL).await, NOTHING, move || {
            began.send(()).unwrap();
            let _ = gate.recv();
        });
        begins.recv().unwrap();
        release
    }

    #[tokio::test]
    async fn the_fencing_lane_has_a_thread_and_slots_of_its_own() {
        let pools = pools(1);
        let place = pools.of_directory(0);
        let gate = block(&pools, place, ReadClass::Plain).await;
        for _ in 1..SLOTS_PER_THREAD {
            pools.run(pools.slot(place, ReadClass::Plain, SMALL).await, NOTHING, || ());
        }
        assert!(pools.try_slot(place, ReadClass::Plain, SMALL).is_none(), "all plain slots are taken");
        let (done, is_done) = sync_channel(1);
        let slot = pools.try_slot(place, ReadClass::Priority, SMALL).unwrap();
        pools.run(slot, NOTHING, move || done.send(()).unwrap());
        is_done.recv_timeout(Duration::from_secs(30)).expect("invariant 4");
        drop(gate);
        pools.stop();
    }

    #[tokio::test]
    async fn what_hangs_in_one_place_holds_up_no_other() {
        let pools = pools(2);
        let hung = pools.of_directory(0);
        let gates =
            [block(&pools, hung, ReadClass::Plain).await, block(&pools, hung, ReadClass::Priority).await];
        while let Some(slot) = pools.try_slot(hung, ReadClass::Priority, SMALL) {
            pools.run(slot, NOTHING, || ());
        }
        for place in [pools.of_directory(1), pools.of_none()] {
            for class in [ReadClass::Plain, ReadClass::Priority] {
                let (done, is_done) = sync_channel(1);
                let slot = pools.try_slot(place, class, SMALL).unwrap();
                pools.run(slot, NOTHING, move || done.send(()).unwrap());
                is_done.recv_timeout(Duration::from_secs(30)).expect("invariant 3");
            }
        }
        drop(gates);
        pools.stop();
    }

    /// Invariant 3: however few large loads or many small ones, a place holds its share, and a larger one goes alone.
    #[tokio::test]
    async fn the_jobs_of_a_place_hold_no_more_than_its_share_of_the_pool() {
        const SHARE: u64 = (1 << 20) / 3;
        let pools = pools(2);
        let place = pools.of_directory(0);
        let part = SHARE / SLOTS_PER_THREAD as u64;
        for (bytes, most) in [(1, 4), (part, 4), (part + 1, 2), (3 * part, 1), (SHARE, 1), (1 << 20, 1)] {
            for class in [ReadClass::Plain, ReadClass::Priority] {
                let slots: Vec<_> = std::iter::from_fn(|| pools.try_slot(place, class, bytes)).collect();
                assert_eq!(slots.len(), most, "of {bytes}");
            }
        }
        let whole = pools.slot(place, ReadClass::Plain, SHARE).await;
        assert!(pools.try_slot(place, ReadClass::Plain, 1).is_none());
        assert!(pools.try_slot(pools.of_directory(1), ReadClass::Plain, SHARE).is_some(), "another disk's");
        let one = pools.fit(whole, part).unwrap();
        let other = pools.try_slot(place, ReadClass::Plain, 2 * part).unwrap();
        let two = pools.fit(one, 2 * part).expect("there is one more");
        assert!(pools.fit(other, 3 * part).is_none(), "there is none, and what it had is free");
        assert!(pools.fit(two, SHARE).is_some());
        pools.stop();
    }

    /// A clock that says what it is told to.
    #[derive(Default)]
    struct Told(AtomicU64);

    impl Clock for Told {
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }

        fn wall_ms(&self) -> i64 {
            0
        }
    }

    #[tokio::test]
    async fn a_place_is_silent_while_it_has_jobs_and_finishes_none() {
        let clock = Arc::new(Told::default());
        let pools = start(2, clock.clone());
        let (place, other) = (pools.of_directory(0), pools.of_directory(1));
        clock.0.store(1_000, Ordering::SeqCst);
        assert_eq!(pools.silent_for(place), Duration::ZERO, "it has nothing to do");
        let gate = block(&pools, place, ReadClass::Plain).await;
        clock.0.store(5_000, Ordering::SeqCst);
        assert_eq!(pools.silent_for(place), Duration::from_nanos(4_000));
        assert_eq!(pools.silent_for(other), Duration::ZERO);
        // One of its threads gets something done.
        drop(block(&pools, place, ReadClass::Priority).await);
        while pools.silent_for(place) > Duration::ZERO {
            tokio::task::yield_now().await;
        }
        clock.0.store(6_000, Ordering::SeqCst);
        assert_eq!(pools.silent_for(place), Duration::from_nanos(1_000));
        drop(gate);
        pools.stop();
        assert_eq!(pools.silent_for(place), Duration::ZERO);
    }

    /// With threads that are busy, and jobs that all wait for their own read, the reads are begun before the jobs, in
    /// order, each once, and by jobs of their own class only; a job alone reads by itself.
    #[tokio::test]
    async fn reads_are_begun_for_what_is_queued() {
        let pools = pools(1);
        let place = pools.of_directory(0);
        let gates = [
            block(&pools, place, ReadClass::Priority).await,
            block(&pools, place, ReadClass::Priority).await,
        ];
        let (done, order) = sync_channel::<String>(20);
        for (class, name) in [
            (ReadClass::Plain, "a"),
            (ReadClass::Plain, "b"),
            (ReadClass::Priority, "c"),
            (ReadClass::Priority, "d"),
        ] {
            let (begin, end) = (done.clone(), done.clone());
            pools.run(
                pools.slot(place, class, SMALL).await,
                Some(move || begin.send(format!("begin {name}")).unwrap()),
                move || end.send(name.to_owned()).unwrap(),
            );
        }
        drop(done);
        // One of the two goes on, whichever class it is for.
        let [first, second] = gates;
        drop(first);
        let seen: Vec<String> = order.iter().take(4).collect();
        assert_eq!(seen, ["begin c", "begin d", "c", "d"], "invariant 4");
        drop(second);
        pools.stop();
        assert_eq!(order.iter().collect::<Vec<_>>(), ["begin a", "begin b", "a", "b"]);

        let pools = self::pools(1);
        let (begin, begun) = sync_channel::<()>(1);
        let slot = pools.slot(pools.of_none(), ReadClass::Plain, SMALL).await;
        pools.run(slot, Some(move || begin.send(()).unwrap()), || ());
        pools.stop();
        assert!(begun.recv().is_err(), "nobody waits behind it");
    }
}
