//! Fair turns on the runtime's threads for connections with many reads in hand ("bulk" connections).
//!
//! # Data flow
//! ```text
//! ingest, before it takes memory ──────────┐
//!                                          ├─► queue ─► one slice of work ─► all other tasks run ─► next in the queue
//! sender, before it starts reads and sends ┘
//! ```
//! The runtime polls tasks in the order in which they were woken, except that the task woken by the one just polled comes
//! next, up to three times in a row. A thousand connections that pipeline deeply would be a thousand slices of work before
//! any other request; with turns they are one slice for each thread.
//!
//! # Invariants
//! 1. A task that holds a turn never blocks: neither on its peer, nor on memory that others hold, nor on the disk.
//! 2. A connection with few reads in hand needs no turn: fewer than [`DECODE_READS`] to decode more, fewer than
//!    [`START_READS`] to start and send them.
//! 3. A slice is [`SLICE_BYTES`] of requests, or the reads that a sender starts and the bytes that the socket takes in one
//!    round. Most of it is writing: on loopback the kernel delivers to the peer meanwhile, and a thousand sockets may
//!    become writable at once.
//! 4. After a slice every task that is ready on its thread runs before the turn goes to the next in the queue
//!    ([`SliceTurn::pass_on`]); woken by the slice, that one would run first. Only a slice whose adds find no room returns
//!    its turn at once.

use crate::yielding::after_all_others;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Reads in hand from which on a connection decodes by turns, in slices. A broker that adds over the same connection has
/// fewer, as a rule, and its adds come in whole batches.
pub const DECODE_READS: usize = 64;
/// Reads in hand from which on a connection starts them by turns.
pub const START_READS: usize = 32;
/// Bytes of requests that are read and handled in one turn: some 340 reads over v2, a fraction of a millisecond.
pub const SLICE_BYTES: usize = 8 * 1024;

/// Held while a slice is worked on.
pub struct SliceTurn(OwnedSemaphorePermit);

impl SliceTurn {
    /// Gives the turn to the next in the queue once every ready task has run (invariant 4). A task that is about to wait
    /// drops the turn instead, which gives it away at once.
    pub async fn pass_on(self) {
        after_all_others().await;
        drop(self.0);
    }
}

/// The queue for turns; see the module.
pub struct SliceTurns(Arc<Semaphore>);

impl SliceTurns {
    /// With `turns` at once, at least one: the threads of the runtime, so that none idles while somebody has work.
    pub fn new(turns: usize) -> SliceTurns {
        SliceTurns(Arc::new(Semaphore::new(turns.max(1))))
    }

    /// A turn, in order of arrival. Cancelling gives up the place in the queue.
    pub fn turn(&self) -> impl Future<Output = SliceTurn> + Send + use<> {
        let line = self.0.clone();
        async move { SliceTurn(line.acquire_owned().await.expect("the line is never closed")) }
    }
}

/// A sender's place in the queue, kept while its owner does other things.
#[derive(Default)]
pub struct SlicePlace {
    waiting: Option<Pin<Box<dyn Future<Output = SliceTurn> + Send>>>,
    turn: Option<SliceTurn>,
}

impl SlicePlace {
    /// True when a connection with `held` reads in hand may start some; otherwise it queues from now on.
    pub fn may_start(&mut self, line: &SliceTurns, held: usize) -> bool {
        if held < START_READS {
            *self = SlicePlace::default();
            return true;
        }
        if self.turn.is_none() && self.waiting.is_none() {
            self.waiting = Some(Box::pin(line.turn()));
        }
        self.turn.is_some()
    }

    /// Ends the slice. Returns whether other tasks have run meanwhile.
    pub async fn end(&mut self) -> bool {
        match self.turn.take() {
            Some(turn) => {
                turn.pass_on().await;
                true
            }
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

    fn is_granted(place: &mut SlicePlace) -> bool {
        is_ready(place.granted())
    }

    /// What runs in which order, on one thread of a runtime as the bookie's, when a slice ends with three others in line and
    /// ten tasks ready, and its turn is passed on, or dropped.
    fn order_after(is_passed_on: bool) -> Vec<&'static str> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).event_interval(4).enable_time().build().expect("a runtime");
        let (line, order) = (Arc::new(SliceTurns::new(1)), Arc::new(Mutex::new(Vec::new())));
        let first = {
            let order = order.clone();
            runtime.spawn(async move {
                let first = line.turn().await;
                let spawn = |name: &'static str| {
                    let (line, order) = (line.clone(), order.clone());
                    tokio::spawn(async move {
                        let turn = if name == "slice" { Some(line.turn().await) } else { None };
                        order.lock().push(name);
                        if let Some(turn) = turn {
                            turn.pass_on().await;
                        }
                    })
                };
                let mut tasks: Vec<_> = (0..3).map(|_| spawn("slice")).collect();
                after_all_others().await;
                tasks.extend((0..10).map(|_| spawn("other")));
                match is_passed_on {
                    true => first.pass_on().await,
                    false => drop(first),
                }
                for task in tasks {
                    task.await.expect("it ran");
                }
            })
        };
        runtime.block_on(first).expect("it ran");
        std::mem::take(&mut order.lock())
    }

    /// Invariant 4; and what it is against.
    #[test]
    fn all_that_is_ready_runs_between_two_slices() {
        let order = order_after(true);
        assert!(order[..10].iter().all(|name| *name == "other"), "{order:?}");
        let order = order_after(false);
        assert!(
            order[..10].contains(&"slice"),
            "the next in line is run before what is in the queue: {order:?}"
        );
    }

    #[tokio::test]
    async fn bulk_connections_take_turns_in_order_and_others_need_none() {
        let line = SliceTurns::new(1);
        let [mut first, mut second, mut third] = std::array::from_fn(|_| SlicePlace::default());
        for place in [&mut first, &mut second, &mut third] {
            assert!(!place.may_start(&line, START_READS));
        }
        assert!(is_granted(&mut first) && !is_granted(&mut second) && !is_granted(&mut third));
        assert!(first.may_start(&line, 10 * START_READS));
        assert!(SlicePlace::default().may_start(&line, START_READS - 1), "invariant 2");
        first.end().await;
        assert!(!first.may_start(&line, START_READS), "behind the others");
        assert!(!is_granted(&mut first) && is_granted(&mut second) && !is_granted(&mut third));
        drop(second);
        assert!(is_granted(&mut third));
        assert!(third.may_start(&line, 3) && is_granted(&mut first), "what is not needed is given back");
    }
}
