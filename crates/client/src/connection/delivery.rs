//! Answers on their way to those who asked: gathered under the lane's lock, handed over outside it.
//!
//! # Invariants
//! 1. A sink is called once for all that one socket read brought for it, in the order of the answers.
//! 2. No answer is lost: those gathered are handed over also when the task is dropped in between (`Drop`).

use std::sync::Arc;

use bindery_types::{BookieId, EntryId};
use bindery_wire::v3::proto;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::transport::{AddAnswer, AddSink, AddTag, BookieError, Connection};

/// The answer to a batch read.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) entries: Vec<Bytes>,
    /// They follow the stride of the request, and not one another.
    pub(super) is_strided: bool,
}

/// Who waits for one answer.
#[derive(Debug)]
pub(super) enum Waiter {
    Read(oneshot::Sender<Result<Bytes, BookieError>>),
    Batch(oneshot::Sender<Result<Batch, BookieError>>),
    V3(oneshot::Sender<Result<Box<proto::Response>, BookieError>>),
    /// Of a v3 request whose answer matters by the connection that brought it.
    Force(oneshot::Sender<Result<Connection, BookieError>>),
}

/// An answer to a request other than an add.
#[derive(Debug)]
pub(super) enum Outcome {
    Read(Bytes),
    Batch(Batch),
    V3(Box<proto::Response>),
}

impl Waiter {
    /// Whoever stopped waiting is told nothing.
    fn give(self, connection: Connection, result: Result<Outcome, BookieError>) {
        fn mismatch<T>() -> Result<T, BookieError> {
            unreachable!("answers are matched by operation")
        }
        match self {
            Waiter::Read(sender) => {
                let _ = sender.send(result.and_then(|outcome| match outcome {
                    Outcome::Read(body) => Ok(body),
                    Outcome::Batch(_) | Outcome::V3(_) => mismatch(),
                }));
            }
            Waiter::Batch(sender) => {
                let _ = sender.send(result.and_then(|outcome| match outcome {
                    Outcome::Batch(batch) => Ok(batch),
                    Outcome::Read(_) | Outcome::V3(_) => mismatch(),
                }));
            }
            Waiter::V3(sender) => {
                let _ = sender.send(result.and_then(|outcome| match outcome {
                    Outcome::V3(response) => Ok(response),
                    Outcome::Read(_) | Outcome::Batch(_) => mismatch(),
                }));
            }
            Waiter::Force(sender) => {
                let _ = sender.send(result.map(|_| connection));
            }
        }
    }
}

/// Answers for one sink.
struct SinkAnswers {
    sink: Arc<dyn AddSink>,
    answers: Vec<AddAnswer>,
}

/// See the module.
pub(super) struct Deliveries {
    bookie: BookieId,
    /// What brings the answers; the next one is told before it brings any.
    connection: Connection,
    sinks: Vec<SinkAnswers>,
    /// Where the last answer went: the next one mostly goes there, too.
    last: usize,
    calls: Vec<(Waiter, Result<Outcome, BookieError>)>,
    /// Emptied lists kept for reuse.
    spares: Vec<Vec<AddAnswer>>,
}

/// Lists kept for reuse, and the longest one kept.
const SPARES_MAX: usize = 16;
const SPARE_ANSWERS_MAX: usize = 4096;

impl Deliveries {
    pub(super) fn new(bookie: BookieId) -> Deliveries {
        let connection = Connection::default();
        Deliveries { bookie, connection, sinks: Vec::new(), last: 0, calls: Vec::new(), spares: Vec::new() }
    }

    /// Later answers come over another connection.
    pub(super) fn begin_connection(&mut self) {
        self.deliver();
        self.connection.0 += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sinks.is_empty() && self.calls.is_empty()
    }

    pub(super) fn add(
        &mut self,
        sink: &Arc<dyn AddSink>,
        entry: EntryId,
        tag: AddTag,
        result: Result<(), BookieError>,
    ) {
        let answer = AddAnswer { entry, tag, connection: self.connection, result };
        let is_same = |known: &SinkAnswers| std::ptr::addr_eq(Arc::as_ptr(&known.sink), Arc::as_ptr(sink));
        let index = match self.sinks.get(self.last) {
            Some(last) if is_same(last) => self.last,
            // A socket read brings answers of a few ledgers at most times; of many when many are written slowly.
            _ => self.sinks.iter().position(is_same).unwrap_or_else(|| {
                let answers = self.spares.pop().unwrap_or_default();
                self.sinks.push(SinkAnswers { sink: sink.clone(), answers });
                self.sinks.len() - 1
            }),
        };
        self.last = index;
        self.sinks[index].answers.push(answer);
    }

    pub(super) fn call(&mut self, waiter: Waiter, result: Result<Outcome, BookieError>) {
        self.calls.push((waiter, result));
    }

    /// Hands everything over. No lock of a lane may be held: sinks take their own locks, under which they add.
    pub(super) fn deliver(&mut self) {
        self.last = 0;
        for SinkAnswers { sink, mut answers } in self.sinks.drain(..) {
            sink.added(&self.bookie, &answers);
            answers.clear();
            if self.spares.len() < SPARES_MAX && answers.capacity() <= SPARE_ANSWERS_MAX {
                self.spares.push(answers);
            }
        }
        for (waiter, result) in self.calls.drain(..) {
            waiter.give(self.connection, result);
        }
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.deliver();
        }
    }
}
