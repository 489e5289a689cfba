//! Turns of the runtime's threads for connections with many reads in hand, here called bulk.
//!
//! # Data flow
//! ```text
//! reader, before it takes memory ──┐
//!                                  ├─► line, in order of arrival ─► one slice of work ─► next in line, or all others first
//! sender, before it starts reads, ─┘
//! writes, or refuses many that are too old
//! ```
//! The runtime polls tasks in the order they were woken, but for the one that the task just polled has woken: that comes next,
//! up to three times in a row. A thousand connections that pipeline deeply are a thousand slices of work before the next request
//! of anybody else; in line here they are one slice for each thread.
//!
//! # Invariants
//! 1. Who has a turn waits for nothing: neither for its peer, nor for memory others hold, nor for the disk.
//! 2. A connection with few reads in hand needs no turn: fewer than [`DECODE_READS`] to decode more, fewer than
//!    [`START_READS`] to start and send them.
//! 3. A slice is [`SLICE_BYTES`] of requests, or the reads that a sender starts and what the socket takes, or the reads
//!    that it refuses, in one round. Writing is most of it: on loopback the kernel delivers to the peer meanwhile, and a
//!    thousand sockets may become writable at once.
//! 4. When a thread has worked on slices for [`SLICES_MAX`], everybody who was ready before has run before the next slice
//!    of that thread ([`Turn::pass_on`]).

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::Instant;

/// Reads in hand from which on a connection decodes by turns, in slices. A broker that adds over the same connection has
/// fewer, as a rule, and its adds come in whole batches.
pub const DECODE_READS: usize = 64;
/// Reads in hand from which on a connection starts them by turns.
pub const START_READS: usize = 32;
/// Bytes of requests that are read and handled in one turn: some 340 reads over v2, a fraction of a millisecond.
pub const SLICE_BYTES: usize = 8 * 1024;

/// How long a thread works on slices before it looks at what else there is. Shorter costs more: each look asks the kernel.
const SLICES_MAX: Duration = Duration::from_micros(150);

thread_local! {
    /// Work on slices since this thread looked at what else there is.
    static WORKED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Held while a slice is worked on.
pub struct Turn {
    permit: OwnedSemaphorePermit,
    begun: Instant,
}

impl Turn {
    /// Gives the turn to the next in line, and if it is time, only when all that is ready has run (invariant 4): woken by
    /// a slice, the next one would run before them. Returns whether they have. Dropped instead, by who goes on to wait, a
    /// turn is given on at once.
    pub async fn pass_on(self) -> bool {
        let worked = WORKED.get() + self.begun.elapsed();
        let is_time = worked >= SLICES_MAX;
        WORKED.set(if is_time { Duration::ZERO } else { worked });
        if is_time {
            yield_now().await;
        }
        drop(self.permit);
        is_time
    }
}

/// The line; see the module.
pub struct BulkLine(Arc<Semaphore>);

impl BulkLine {
    /// With `turns` at once, at least one: the threads of the runtime, so that none idles while somebody has work.
    pub fn new(turns: usize) -> BulkLine {
        BulkLine(Arc::new(Semaphore::new(turns.max(1))))
    }

    /// A turn, in order of arrival. Cancel safe, but for the place.
    pub fn turn(&self) -> impl Future<Output = Turn> + Send + use<> {
        let line = self.0.clone();
        async move {
            let permit = line.acquire_owned().await.expect("the line is never closed");
            Turn { permit, begun: Instant::now() }
        }
    }
}

/// A sender's place in the line. Keeps it while its owner does other things.
#[derive(Default)]
pub struct Place {
    waiting: Option<Pin<Box<dyn Future<Output = Turn> + Send>>>,
    turn: Option<Turn>,
}

impl Place {
    /// True when a connection with `held` reads in hand may start some; otherwise it stands in line from now on.
    pub fn may_start(&mut self, line: &BulkLine, held: usize) -> bool {
        if held < START_READS {
            *self = Place::default();
            return true;
        }
        if self.turn.is_none() && self.waiting.is_none() {
            self.waiting = Some(Box::pin(line.turn()));
        }
        self.turn.is_some()
    }

    /// True while it stands in line.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// The slice is done, or there is nothing to do. Returns whether others have run meanwhile.
    pub async fn end(&mut self) -> bool {
        match self.turn.take() {
            Some(turn) => turn.pass_on().await,
            None => false,
        }
    }

    /// Waits for the turn; for ever when there is none to wait for. Cancel safe: the place is kept.
    pub async fn granted(&mut self) {
        let Some(waiting) = &mut self.waiting else { return std::future::pending().await };
        self.turn = Some(waiting.await);
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn is_ready(future: impl Future) -> bool {
        pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn is_granted(place: &mut Place) -> bool {
        is_ready(place.granted())
    }

    /// What runs in which order when three slices of `slice` each are in line and three others are ready, on one thread.
    async fn order_of(slice: Duration) -> Vec<&'static str> {
        let line = Arc::new(BulkLine::new(1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = line.turn().await;
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let (line, order) = (line.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let turn = line.turn().await;
                order.lock().push("slice");
                std::thread::sleep(slice);
                turn.pass_on().await;
            }));
        }
        yield_now().await;
        for _ in 0..3 {
            let order = order.clone();
            tasks.push(tokio::spawn(async move { order.lock().push("other") }));
        }
        std::thread::sleep(slice);
        first.pass_on().await;
        for task in tasks {
            task.await.expect("it ran");
        }
        Arc::into_inner(order).expect("all have ended").into_inner()
    }

    /// Invariant 4.
    #[tokio::test]
    async fn all_that_is_ready_runs_when_slices_have_taken_their_time() {
        assert_eq!(order_of(SLICES_MAX).await, ["other", "other", "other", "slice", "slice", "slice"]);
    }

    #[tokio::test]
    async fn bulk_connections_take_turns_in_order_and_others_need_none() {
        let line = BulkLine::new(1);
        let [mut first, mut second, mut third] = std::array::from_fn(|_| Place::default());
        for place in [&mut first, &mut second, &mut third] {
            assert!(!place.may_start(&line, START_READS));
        }
        assert!(is_granted(&mut first) && !is_granted(&mut second) && !is_granted(&mut third));
        assert!(first.may_start(&line, 10 * START_READS));
        assert!(Place::default().may_start(&line, START_READS - 1), "invariant 2");
        first.end().await;
        assert!(!first.may_start(&line, START_READS), "behind the others");
        assert!(!is_granted(&mut first) && is_granted(&mut second) && !is_granted(&mut third));
        drop(second);
        assert!(is_granted(&mut third));
        assert!(third.may_start(&line, 3) && is_granted(&mut first), "what is not needed is given back");
    }
}
