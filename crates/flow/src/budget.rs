//! The budget itself: a counter, a FIFO of waiters, and permits that return on drop.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Why no permit was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// More than the whole budget: waiting would never end.
    #[error("{bytes} bytes are more than the whole pool {pool:?} of {capacity}")]
    TooLarge {
        /// Name of the pool.
        pool: &'static str,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes the pool has.
        capacity: u64,
    },
    /// Nothing became free in time.
    #[error("no room for {bytes} bytes in pool {pool:?} within the deadline")]
    Deadline {
        /// Name of the pool.
        pool: &'static str,
        /// Bytes asked for.
        bytes: u64,
    },
}

/// The state of a budget at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetGauge {
    /// Bytes the pool has.
    pub capacity: u64,
    /// Bytes in permits.
    pub used: u64,
    /// Number of tasks that wait for a permit.
    pub waiting: usize,
}

/// The waits for a budget since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetWaits {
    /// Requests for a permit that had to wait, whether or not they got one.
    pub count: u64,
    /// Nanoseconds waited in all, by requests that no longer wait.
    pub waited_ns: u64,
}

struct Waiting {
    since: Instant,
    bytes: u64,
    grant: oneshot::Sender<Permit>,
}

struct State {
    available: u64,
    /// By ticket number: iteration order is arrival order (invariant 2).
    waiters: BTreeMap<u64, Waiting>,
    next_ticket: u64,
    waits: BudgetWaits,
}

impl State {
    fn end_wait(&mut self, since: Instant) {
        let waited_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waits.waited_ns = self.waits.waited_ns.saturating_add(waited_ns);
    }
}

struct Shared {
    name: &'static str,
    capacity: u64,
    state: Mutex<State>,
}

impl Shared {
    /// Gives `bytes` back and serves the waiters for whom there is now enough.
    fn release(self: &Arc<Self>, bytes: u64) {
        self.serve(|state| state.available += bytes);
    }

    /// Changes the state, then grants from the front of the queue while it fits. Grants are sent outside the lock:
    /// one whose receiver is gone comes back as a permit, and dropping that one releases it again.
    fn serve(self: &Arc<Self>, change: impl FnOnce(&mut State)) {
        let mut granted = Vec::new();
        {
            let state = &mut *self.state.lock();
            change(state);
            assert!(state.available <= self.capacity, "pool {} got back more than it gave", self.name);
            while let Some(first) = state.waiters.first_entry() {
                let bytes = first.get().bytes;
                if bytes > state.available {
                    break;
                }
                let Waiting { since, bytes, grant } = first.remove();
                state.available -= bytes;
                state.end_wait(since);
                granted.push((grant, Permit { pool: self.clone(), bytes }));
            }
        }
        for (grant, permit) in granted {
            drop(grant.send(permit));
        }
    }
}

/// A named number of bytes that is handed out in permits. Clones share it.
#[derive(Clone)]
pub struct ByteBudget(Arc<Shared>);

impl ByteBudget {
    /// A budget of `capacity` bytes, all of them free.
    pub fn new(name: &'static str, capacity: u64) -> ByteBudget {
        let state = State {
            available: capacity,
            waiters: BTreeMap::new(),
            next_ticket: 0,
            waits: BudgetWaits::default(),
        };
        ByteBudget(Arc::new(Shared { name, capacity, state: Mutex::new(state) }))
    }

    /// The name it shows in messages and metrics.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// All of its bytes, free or not.
    pub fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// Use and queue at this moment.
    pub fn gauge(&self) -> BudgetGauge {
        let state = self.0.state.lock();
        BudgetGauge {
            capacity: self.0.capacity,
            used: self.0.capacity - state.available,
            waiting: state.waiters.len(),
        }
    }

    /// The waits for it so far.
    pub fn waits(&self) -> BudgetWaits {
        self.0.state.lock().waits
    }

    /// A permit at once, or `None` when there is no room or somebody waits already.
    pub fn try_acquire(&self, bytes: u64) -> Option<Permit> {
        let mut state = self.0.state.lock();
        if !state.waiters.is_empty() || bytes > state.available {
            return None;
        }
        state.available -= bytes;
        Some(Permit { pool: self.0.clone(), bytes })
    }

    /// Waits in line for a permit. Cancel safe: a dropped future gives up its place and any grant under way.
    ///
    /// # Errors
    /// [`AcquireError::TooLarge`] at once when `bytes` is above the pool's capacity.
    pub async fn acquire(&self, bytes: u64) -> Result<Permit, AcquireError> {
        if bytes > self.0.capacity {
            return Err(AcquireError::TooLarge { pool: self.0.name, bytes, capacity: self.0.capacity });
        }
        let (ticket, grant) = {
            let mut state = self.0.state.lock();
            if state.waiters.is_empty() && bytes <= state.available {
                state.available -= bytes;
                return Ok(Permit { pool: self.0.clone(), bytes });
            }
            let (grant, granted) = oneshot::channel();
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.waits.count += 1;
            state.waiters.insert(ticket, Waiting { since: Instant::now(), bytes, grant });
            (ticket, granted)
        };
        let place = Place { pool: &self.0, ticket };
        let permit = grant.await.expect("a place leaves the queue by its grant or with its future");
        // The grant took the place out of the queue already.
        std::mem::forget(place);
        Ok(permit)
    }

    /// As [`ByteBudget::acquire`], at most for `patience`.
    ///
    /// # Errors
    /// Also [`AcquireError::Deadline`].
    pub async fn acquire_within(&self, bytes: u64, patience: Duration) -> Result<Permit, AcquireError> {
        match tokio::time::timeout(patience, self.acquire(bytes)).await {
            Ok(result) => result,
            Err(_) => Err(AcquireError::Deadline { pool: self.0.name, bytes }),
        }
    }
}

impl fmt::Debug for ByteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteBudget").field("name", &self.0.name).field("gauge", &self.gauge()).finish()
    }
}

/// A place in the queue; leaving it early may let the ones behind go ahead.
struct Place<'a> {
    pool: &'a Arc<Shared>,
    ticket: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pool.serve(|state| {
            if let Some(gone) = state.waiters.remove(&self.ticket) {
                state.end_wait(gone.since);
            }
        });
    }
}

/// Bytes of a budget. They go back when it is dropped.
#[must_use = "dropping a permit gives its bytes back"]
pub struct Permit {
    pool: Arc<Shared>,
    bytes: u64,
}

impl Permit {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True when both are of one pool, so that they can be merged.
    pub fn is_of_pool(&self, other: &Permit) -> bool {
        Arc::ptr_eq(&self.pool, &other.pool)
    }

    /// Takes `bytes` out of this permit into one of their own.
    ///
    /// # Panics
    /// When it holds fewer.
    pub fn split(&mut self, bytes: u64) -> Permit {
        assert!(bytes <= self.bytes, "cannot split {bytes} from {}", self.bytes);
        self.bytes -= bytes;
        Permit { pool: self.pool.clone(), bytes }
    }

    /// Gives back all but `bytes`; nothing when it holds no more than that.
    pub fn shrink_to(&mut self, bytes: u64) {
        if bytes < self.bytes {
            drop(self.split(self.bytes - bytes));
        }
    }

    /// Adds the bytes of another permit of the same pool.
    ///
    /// # Panics
    /// When the other one is of another pool.
    pub fn merge(&mut self, mut other: Permit) {
        assert!(self.is_of_pool(&other), "permits of two pools do not mix");
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.pool.release(self.bytes);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({} of {:?})", self.bytes, self.pool.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    type Acquire = Pin<Box<dyn Future<Output = Result<Permit, AcquireError>>>>;

    fn start(budget: &ByteBudget, bytes: u64) -> Acquire {
        let budget = budget.clone();
        let mut future: Acquire = Box::pin(async move { budget.acquire(bytes).await });
        match poll(&mut future) {
            Poll::Pending => future,
            Poll::Ready(result) => Box::pin(std::future::ready(result)),
        }
    }

    fn poll(future: &mut Acquire) -> Poll<Result<Permit, AcquireError>> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn waiters_are_served_in_order_and_a_small_one_does_not_pass_a_large_one() {
        let budget = ByteBudget::new("test", 10);
        let held = budget.try_acquire(6).unwrap();
        let mut large = start(&budget, 8);
        let mut small = start(&budget, 1);
        assert!(poll(&mut large).is_pending());
        assert!(poll(&mut small).is_pending(), "invariant 2: 4 bytes are free, but the large one is first");
        assert!(budget.try_acquire(1).is_none(), "invariant 2");
        drop(held);
        let Poll::Ready(Ok(large)) = poll(&mut large) else { panic!("there is room now") };
        let Poll::Ready(Ok(small)) = poll(&mut small) else { panic!("there is room now") };
        assert_eq!(budget.gauge(), BudgetGauge { capacity: 10, used: 9, waiting: 0 });
        drop((large, small));
        assert_eq!(budget.gauge().used, 0);
    }

    #[test]
    fn a_cancelled_waiter_lets_the_next_one_go() {
        let budget = ByteBudget::new("test", 10);
        let held = budget.try_acquire(5).unwrap();
        let large = start(&budget, 9);
        let mut small = start(&budget, 3);
        assert!(poll(&mut small).is_pending());
        drop(large);
        assert!(matches!(poll(&mut small), Poll::Ready(Ok(p)) if p.bytes() == 3));
        drop(held);
        assert_eq!(budget.gauge().used, 0);
    }

    #[test]
    fn a_grant_to_a_future_that_is_dropped_unread_comes_back() {
        let budget = ByteBudget::new("test", 4);
        let held = budget.try_acquire(4).unwrap();
        let waiting = start(&budget, 4);
        drop(held);
        assert_eq!(budget.gauge().used, 4, "granted, not yet picked up");
        drop(waiting);
        assert_eq!(budget.gauge(), BudgetGauge { capacity: 4, used: 0, waiting: 0 });
    }

    #[test]
    fn more_than_everything_is_refused_at_once() {
        let budget = ByteBudget::new("test", 4);
        let Poll::Ready(Err(error)) = poll(&mut start(&budget, 5)) else { panic!("must not wait") };
        assert_eq!(error, AcquireError::TooLarge { pool: "test", bytes: 5, capacity: 4 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_ends_the_wait_and_leaves_nothing_behind() {
        let budget = ByteBudget::new("test", 4);
        let held = budget.try_acquire(3).unwrap();
        let error = budget.acquire_within(2, Duration::from_secs(2)).await.unwrap_err();
        assert_eq!(error, AcquireError::Deadline { pool: "test", bytes: 2 });
        assert_eq!(budget.gauge(), BudgetGauge { capacity: 4, used: 3, waiting: 0 });
        drop(held);
    }

    /// Requirement J4. Goal: after a million steps of whatever can happen to a permit, all bytes are available. Method:
    /// a seed draws adds, polls, cancellations, time-outs and failures (a permit dropped half used) of many at once.
    #[tokio::test(start_paused = true)]
    async fn random_add_cancel_timeout_fail_leaves_everything_available() {
        use bindery_io::SeededRandom;
        const CAPACITY: u64 = 1000;
        let random = SeededRandom::new(4);
        let below = |n: usize| random.below(n as u64) as usize;
        let budget = ByteBudget::new("test", CAPACITY);
        let (mut waiting, mut held): (Vec<Acquire>, Vec<Permit>) = (Vec::new(), Vec::new());
        let (mut granted, mut timed_out, mut refused) = (0u64, 0u64, 0u64);
        for _ in 0..1_000_000 {
            match random.below(16) {
                0..=4 if waiting.len() < 64 => {
                    let (budget, bytes) = (budget.clone(), random.below(CAPACITY * 11 / 10));
                    let deadline = Duration::from_millis(1 + random.below(50));
                    waiting.push(Box::pin(async move { budget.acquire_within(bytes, deadline).await }));
                }
                0..=9 if !waiting.is_empty() => {
                    let at = below(waiting.len());
                    if let Poll::Ready(result) = poll(&mut waiting[at]) {
                        drop(waiting.swap_remove(at));
                        match result {
                            Ok(permit) => {
                                granted += 1;
                                held.push(permit);
                            }
                            Err(AcquireError::Deadline { .. }) => timed_out += 1,
                            Err(AcquireError::TooLarge { .. }) => refused += 1,
                        }
                    }
                }
                10 if !waiting.is_empty() => drop(waiting.swap_remove(below(waiting.len()))),
                11..=13 if !held.is_empty() => drop(held.swap_remove(below(held.len()))),
                14 if !held.is_empty() => {
                    let at = below(held.len());
                    let bytes = random.below(held[at].bytes() + 1);
                    let part = held[at].split(bytes);
                    if random.chance(0.5) { held.push(part) } else { held[at].shrink_to(0) }
                }
                15 if random.chance(0.05) => tokio::time::advance(Duration::from_millis(10)).await,
                _ => {}
            }
            assert!(budget.gauge().used <= CAPACITY, "available is never negative");
        }
        assert!(granted > 10_000 && timed_out > 1000 && refused > 1000, "{granted} {timed_out} {refused}");
        drop((waiting, held));
        assert_eq!(budget.gauge(), BudgetGauge { capacity: CAPACITY, used: 0, waiting: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn waits_are_counted_with_their_time_however_they_end() {
        let budget = ByteBudget::new("test", 4);
        let held = budget.try_acquire(4).unwrap();
        assert_eq!(budget.waits(), BudgetWaits::default(), "nobody waited");
        let mut granted = start(&budget, 4);
        tokio::time::advance(Duration::from_secs(1)).await;
        let cancelled = start(&budget, 4);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(budget.waits(), BudgetWaits { count: 2, waited_ns: 0 }, "both still wait");
        drop(cancelled);
        assert_eq!(budget.waits(), BudgetWaits { count: 2, waited_ns: 2_000_000_000 });
        drop(held);
        assert!(poll(&mut granted).is_ready());
        assert_eq!(budget.waits(), BudgetWaits { count: 2, waited_ns: 5_000_000_000 });
    }

    #[derive(Debug, Clone)]
    enum Step {
        Acquire(u64),
        TryAcquire(u64),
        Poll(usize),
        Cancel(usize),
        Release(usize),
        Split(usize, u64),
        Merge(usize, usize),
        Shrink(usize, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..120).prop_map(Step::Acquire),
            (0u64..120).prop_map(Step::TryAcquire),
            any::<usize>().prop_map(Step::Poll),
            any::<usize>().prop_map(Step::Cancel),
            any::<usize>().prop_map(Step::Release),
            (any::<usize>(), 0u64..100).prop_map(|(i, n)| Step::Split(i, n)),
            (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Step::Merge(a, b)),
            (any::<usize>(), 0u64..100).prop_map(|(i, n)| Step::Shrink(i, n)),
        ]
    }

    proptest! {
        /// Invariants 1 and 3, whatever order things happen in: used equals what permits and unread grants hold,
        /// never more than the capacity, and all of it is back at the end.
        #[test]
        fn every_byte_comes_back_once(steps in prop::collection::vec(step(), 1..200)) {
            let budget = ByteBudget::new("test", 100);
            let mut waiting: Vec<(u64, Acquire)> = Vec::new();
            let mut held: Vec<Permit> = Vec::new();
            for step in steps {
                match step {
                    Step::Acquire(n) => waiting.push((n, start(&budget, n))),
                    Step::TryAcquire(n) => held.extend(budget.try_acquire(n)),
                    Step::Poll(i) if !waiting.is_empty() => {
                        let i = i % waiting.len();
                        if let Poll::Ready(result) = poll(&mut waiting[i].1) {
                            held.extend(result.ok());
                            drop(waiting.remove(i));
                        }
                    }
                    Step::Cancel(i) if !waiting.is_empty() => drop(waiting.remove(i % waiting.len())),
                    Step::Release(i) if !held.is_empty() => drop(held.remove(i % held.len())),
                    Step::Split(i, n) if !held.is_empty() => {
                        let i = i % held.len();
                        let n = n.min(held[i].bytes());
                        let part = held[i].split(n);
                        held.push(part);
                    }
                    Step::Merge(a, b) if held.len() > 1 => {
                        let taken = held.remove(a % held.len());
                        let i = b % held.len();
                        held[i].merge(taken);
                    }
                    Step::Shrink(i, n) if !held.is_empty() => {
                        let i = i % held.len();
                        held[i].shrink_to(n);
                    }
                    _ => {}
                }
                let gauge = budget.gauge();
                let permits: u64 = held.iter().map(Permit::bytes).sum();
                let asked: u64 = waiting.iter().map(|(n, _)| n).sum();
                prop_assert!(gauge.used <= gauge.capacity);
                prop_assert!(permits <= gauge.used);
                prop_assert!(gauge.used <= permits + asked, "unread grants are the only other holders");
            }
            drop(waiting);
            prop_assert_eq!(budget.gauge().used, held.iter().map(Permit::bytes).sum::<u64>());
            drop(held);
            prop_assert_eq!(budget.gauge(), BudgetGauge { capacity: 100, used: 0, waiting: 0 });
        }
    }
}
