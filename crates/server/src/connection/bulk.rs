//! Turns of the runtime's threads for connections with many reads in hand, here called bulk.
//!
//! # Data flow
//! ```text
//! reader, before it takes memory ──┐
//!                                  ├─► line, in order of arrival ─► one slice of work ─► all others run ─► next in line
//! sender, before it starts reads ──┘
//! and writes
//! ```
//! The runtime polls tasks in the order they were woken, but for the one that the task just polled has woken: that comes next,
//! up to three times in a row. A thousand connections that pipeline deeply are a thousand slices of work before the next request
//! of anybody else; in line here they are one slice for each thread.
//!
//! # Invariants
//! 1. Who has a turn waits for nothing: neither for its peer, nor for memory others hold, nor for the disk.
//! 2. A connection with few reads in hand needs no turn: fewer than [`DECODE_READS`] to decode more, fewer than
//!    [`START_READS`] to start and send them.
//! 3. A slice is [`SLICE_BYTES`] of requests, or the reads that a sender starts and what the socket takes, in one round.
//!    Writing is most of it: on loopback the kernel delivers to the peer meanwhile, and a
//!    thousand sockets may become writable at once.
//! 4. After a slice everybody who is ready on its thread runs before the turn goes to the next in line ([`Turn::pass_on`]):
//!    woken by a slice, that one would run before them. Only a slice whose adds find no room gives its turn on at once.

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
pub struct Turn(OwnedSemaphorePermit);

impl Turn {
    /// Gives the turn to the next in line, once all that is ready has run (invariant 4). Dropped instead, by who goes on
    /// to wait, it is given on at once.
    pub async fn pass_on(self) {
        after_all_others().await;
        drop(self.0);
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
        async move { Turn(line.acquire_owned().await.expect("the line is never closed")) }
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

    /// The slice is done, or there is nothing to do. Returns whether others have run meanwhile.
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

    fn is_granted(place: &mut Place) -> bool {
        is_ready(place.granted())
    }

    /// What runs in which order, on one thread of a runtime as the bookie's, when a slice ends with three others in line and
    /// ten tasks ready, and its turn is passed on, or dropped.
    fn order_after(is_passed_on: bool) -> Vec<&'static str> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).event_interval(4).enable_time().build().expect("a runtime");
        let (line, order) = (Arc::new(BulkLine::new(1)), Arc::new(Mutex::new(Vec::new())));
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
