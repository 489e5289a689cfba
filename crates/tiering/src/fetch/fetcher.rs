//! The shell around [`super::core`]: sends requests, watches deadlines, calls back.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bindery_types::EntryId;
use bindery_types::tier::ClusterId;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::core::{Action, Asked, Core, FetchStats, Got, JobId, PinId, Start, WaiterId, What};
use super::get::Bucket;
use super::index::Block;
use super::{Ask, FetchError, FetchOptions};
use crate::store::Store;

/// How a waiter is called back. Never with a lock held.
pub(super) type Callback = Box<dyn FnOnce(&Arc<Inner>, Result<Got, FetchError>) + Send>;

pub(super) struct Inner {
    pub(super) bucket: Bucket,
    pub(super) options: FetchOptions,
    core: Mutex<Core<Callback>>,
    /// Requests under way, and some that ended lately.
    tasks: Mutex<Vec<AbortHandle>>,
    handle: Handle,
    began: Instant,
    /// When the timer rings; `u64::MAX` when it does not.
    rings_at_ns: Mutex<u64>,
    timer_moved: Notify,
}

/// Reads entries from the tier. Ends everything that is under way when it is dropped.
pub struct Fetcher {
    inner: Arc<Inner>,
    timer: AbortHandle,
}

/// The outcome of asking for an entry.
pub enum Offer {
    /// It is here.
    Here(Entry),
    /// The callback will be called, unless the ticket is dropped before.
    Coming(Ticket),
}

impl Fetcher {
    /// A fetcher for the objects of `cluster` in `store`. Its requests run on `handle`, which should have no other work:
    /// blocks are decoded there. Makes no request.
    pub fn new(store: Store, cluster: ClusterId, options: FetchOptions, handle: Handle) -> Fetcher {
        let inner = Arc::new(Inner {
            bucket: Bucket { store, cluster },
            core: Mutex::new(Core::new(options.clone())),
            options,
            tasks: Mutex::default(),
            began: Instant::now(),
            rings_at_ns: Mutex::new(u64::MAX),
            timer_moved: Notify::new(),
            handle,
        });
        let of_timer = inner.clone();
        let timer = inner.handle.spawn(async move { of_timer.watch_time().await });
        Fetcher { inner, timer: timer.abort_handle() }
    }

    /// An entry, if it is in the cache.
    pub fn cached(&self, ask: &Ask) -> Option<Entry> {
        let (pin, block) = self.inner.with_core(|core, now_ns, out| core.cached(now_ns, ask, out))?;
        Some(Entry::new(Pin { inner: self.inner.clone(), id: pin }, &block, ask.entry))
    }

    /// Asks for an entry. `done` is called once, from any thread and maybe before this returns, unless the entry is here, the
    /// asking fails, or the ticket is dropped before.
    pub fn ask(
        &self,
        ask: Ask,
        done: impl FnOnce(Result<Fetched, FetchError>) + Send + 'static,
    ) -> Result<Offer, FetchError> {
        let entry = ask.entry;
        let on: Callback = Box::new(move |inner, outcome| match outcome {
            Ok(Got::Entry(id)) => {
                let size_bytes = inner.with_core(|core, _, _| core.size_of(id, entry));
                done(Ok(Fetched { pin: Pin { inner: inner.clone(), id }, entry, size_bytes }));
            }
            Ok(Got::Slot(_)) => unreachable!("who asks for an entry gets no slot"),
            Err(error) => done(Err(error)),
        });
        let asked = self.inner.with_core(|core, now_ns, out| core.ask(now_ns, ask, on, out));
        match asked {
            Ok(Asked::Here(pin, block)) => {
                let pin = Pin { inner: self.inner.clone(), id: pin };
                Ok(Offer::Here(Entry::new(pin, &block, entry)))
            }
            Ok(Asked::Waits(id)) => Ok(Offer::Coming(Ticket { inner: self.inner.clone(), id })),
            Err((error, _)) => Err(error),
        }
    }

    /// Counters and numbers of this moment.
    pub fn stats(&self) -> FetchStats {
        self.inner.core.lock().stats()
    }

    /// Its bounds.
    pub fn options(&self) -> &FetchOptions {
        &self.inner.options
    }

    /// Where it reads.
    pub fn store(&self) -> &Store {
        &self.inner.bucket.store
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        self.inner.core.lock().check_invariants();
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.timer.abort();
        self.inner.with_core(|core, now_ns, out| core.stop(now_ns, out));
        let tasks = std::mem::take(&mut *self.inner.tasks.lock());
        tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Inner {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn at(&self, ns: u64) -> Instant {
        self.began + Duration::from_nanos(ns)
    }

    /// Changes the core, then does what it says.
    pub(super) fn with_core<R>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Core<Callback>, u64, &mut Vec<Action<Callback>>) -> R,
    ) -> R {
        let mut actions = Vec::new();
        let result = {
            let mut core = self.core.lock();
            let result = change(&mut core, self.now_ns(), &mut actions);
            let next_ns = core.next_tick_ns().unwrap_or(u64::MAX);
            let mut rings_at_ns = self.rings_at_ns.lock();
            if next_ns < *rings_at_ns {
                *rings_at_ns = next_ns;
                self.timer_moved.notify_one();
            }
            result
        };
        for action in actions {
            match action {
                Action::Start(start) => self.spawn(start),
                Action::Answer(on, outcome) => on(self, outcome),
                Action::Drop(evicted) => drop(evicted),
            }
        }
        result
    }

    async fn watch_time(self: Arc<Self>) {
        loop {
            let next_ns = {
                let core = self.core.lock();
                let next_ns = core.next_tick_ns().unwrap_or(u64::MAX);
                *self.rings_at_ns.lock() = next_ns;
                next_ns
            };
            let moved = self.timer_moved.notified();
            if next_ns == u64::MAX {
                moved.await;
                continue;
            }
            // Cancel safe: a notification that comes now is kept.
            tokio::select! {
                () = moved => continue,
                () = sleep_until(self.at(next_ns)) => {}
            }
            self.with_core(|core, now_ns, out| core.tick(now_ns, out));
        }
    }

    fn spawn(self: &Arc<Self>, start: Start) {
        let job = JobGuard { inner: self.clone(), id: Some(start.job) };
        // Without the lock: on a runtime that is shut down the task is dropped right here.
        let task = self.handle.spawn(job.run(start)).abort_handle();
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }
}

/// A job under way. One that is dropped before its end is finished, too.
struct JobGuard {
    inner: Arc<Inner>,
    id: Option<JobId>,
}

impl JobGuard {
    async fn run(mut self, start: Start) {
        sleep_until(self.inner.at(start.at_ns)).await;
        let (began, mut bytes) = (Instant::now(), 0);
        let until = self.inner.at(start.until_ns);
        let result = match timeout_at(until, self.inner.fetch(&start, &mut bytes)).await {
            Ok(result) => result,
            Err(_) => Err(no_answer(began.elapsed())),
        };
        let took_ns = began.elapsed().as_nanos() as u64;
        self.id = None;
        self.inner.with_core(|core, now_ns, out| {
            core.count_request(bytes, took_ns);
            core.finished(now_ns, start.job, result, out);
        });
    }
}

pub(super) fn no_answer(within: Duration) -> FetchError {
    FetchError::Unreachable { reason: format!("no answer within {} ms", within.as_millis()).into() }
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let error = match std::thread::panicking() {
                true => FetchError::Unreachable { reason: Arc::from("a request ended with a bug") },
                false => FetchError::Stopped,
            };
            self.inner.with_core(|core, now_ns, out| core.finished(now_ns, id, Err(error), out));
        }
    }
}

impl Inner {
    async fn fetch(self: &Arc<Self>, start: &Start, bytes: &mut u64) -> Result<(), FetchError> {
        match &start.what {
            What::Index => {
                let index = self.bucket.index(&start.object, bytes).await?;
                self.with_core(|core, now_ns, out| core.index_arrived(now_ns, start.job, index, out));
            }
            What::Blocks(extent, delivered) => {
                let left = &extent.blocks[*delivered..];
                let size = left.iter().map(|block| u64::from(block.stored_size_bytes)).sum();
                let offset = left.first().map_or(0, |block| block.offset);
                let mut body = self.bucket.get(&start.object, offset, size).await?;
                for at in *delivered..extent.blocks.len() {
                    let block = body.block(extent, at).await?;
                    *bytes += u64::from(extent.blocks[at].stored_size_bytes);
                    self.with_core(|core, now_ns, out| match block {
                        Ok(block) => core.block_arrived(now_ns, start.job, block, out),
                        Err(error) => core.block_failed(now_ns, start.job, &error, out),
                    });
                }
            }
        }
        Ok(())
    }
}

/// A pin, given back when it is dropped.
struct Pin {
    inner: Arc<Inner>,
    id: PinId,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let id = self.id;
        self.inner.with_core(|core, now_ns, out| core.unpin(now_ns, id, out));
    }
}

/// A place among those that wait. Dropping it cancels.
pub struct Ticket {
    inner: Arc<Inner>,
    id: WaiterId,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let id = self.id;
        // The callback and all it holds is dropped without the lock.
        drop(self.inner.with_core(|core, now_ns, out| core.cancel(now_ns, id, out)));
    }
}

/// An entry that came. It stays in memory for a while, or longer while others do not need that memory.
pub struct Fetched {
    pin: Pin,
    entry: EntryId,
    size_bytes: usize,
}

impl Fetched {
    /// The entry; `None` when others got its memory: then ask again.
    pub fn open(self) -> Option<Entry> {
        let id = self.pin.id;
        let block = self.pin.inner.with_core(|core, _, _| core.open(id))?;
        Some(Entry::new(self.pin, &block, self.entry))
    }

    /// Its number.
    pub fn id(&self) -> EntryId {
        self.entry
    }

    /// Its length.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

impl std::fmt::Debug for Fetched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fetched({})", self.entry)
    }
}

/// An entry in memory, which stays until this is dropped. Not to be kept while a peer takes its time.
pub struct Entry {
    body: Bytes,
    id: EntryId,
    pin: Pin,
}

impl Entry {
    fn new(pin: Pin, block: &Block, entry: EntryId) -> Entry {
        let body = block.entry(entry).expect("a waiter is answered with the block of its entry").clone();
        Entry { body, id: entry, pin }
    }

    /// For later: as an entry that came, whose memory may be taken back.
    pub fn keep(self) -> Fetched {
        let Entry { body, id, pin } = self;
        let size_bytes = body.len();
        drop(body);
        pin.inner.with_core(|core, now_ns, _| core.close(now_ns, pin.id));
        Fetched { pin, entry: id, size_bytes }
    }
}

impl Deref for Entry {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.body
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({} bytes)", self.body.len())
    }
}
