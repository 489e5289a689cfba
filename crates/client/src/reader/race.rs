//! One read, asked of its replicas: of the best first, of the next when that one fails or takes long.
//!
//! ```text
//! order of health --> first replica --answer--> done; other attempts go on as stragglers
//!                       |--longer than most reads take--> hedge: the next one too      (hedge allowance)
//!                       |--1 s, or an error-------------> retry: the next one          (retry allowance, else later)
//!                       '--no such entry, damaged-------> the next one
//! ```
//!
//! # Invariants
//! 1. Each replica is asked once at most (C4, IC19). All are asked before a read fails (IC9): an empty allowance for
//!    retries makes them wait, for [`RETRY_WAIT_MAX`] after the last request that was under way.
//! 2. A read ends once, with the first good answer, or when every replica has answered or failed (C3).
//! 3. A request that lost goes on counting as under way until it is answered (C1): a slow bookie does not look idle.
//!
//! # Limits     requests: the write quorum; one hedge; stragglers: those of the hedges and retries that are allowed,
//! until the transport gives them up; their answers are dropped, and the client's read budget does not count them

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bindery_io::canary::Canary;
use bindery_types::{BookieId, EntryId};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::state::{ReaderState, Replicas};
use crate::error::{BookieAnswer, BookieAnswers};
use crate::health::{Node, NodeHealth, Operation, Outcome, READ_TIMEOUT, count};
use crate::transport::{BookieError, Transport};

/// How often a retry that has to wait asks again whether it may go.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long it waits at most.
const RETRY_WAIT_MAX: Duration = Duration::from_secs(1);

/// A request to one replica.
struct Attempt<T> {
    /// In the ensemble.
    position: usize,
    started: Instant,
    is_hedge: bool,
    is_late: bool,
    request: Pin<Box<dyn Future<Output = Result<T, BookieError>> + Send>>,
}

impl<T: Send + 'static> Attempt<T> {
    fn go_on(self, node: Arc<Node>, health: Arc<NodeHealth>) -> impl Future<Output = ()> + Send + 'static {
        let Attempt { started, is_late, mut request, .. } = self;
        async move {
            if !is_late && timeout_at(started + READ_TIMEOUT, &mut request).await.is_ok() {
                return;
            }
            if !is_late {
                health.is_late(&node);
            }
            drop(request.await);
        }
    }
}

async fn next_answer<T>(attempts: &mut Vec<Attempt<T>>) -> (Attempt<T>, Result<T, BookieError>) {
    poll_fn(|context| {
        for index in 0..attempts.len() {
            if let Poll::Ready(result) = attempts[index].request.as_mut().poll(context) {
                return Poll::Ready((attempts.swap_remove(index), result));
            }
        }
        Poll::Pending
    })
    .await
}

/// Why the next replica is to be asked.
#[derive(Clone, Copy)]
enum Why {
    /// Nobody was asked yet.
    First,
    /// The last one had not got it.
    NotThere,
    /// The last one failed, then.
    Retry(Instant),
}

/// What is read.
pub(super) struct Ask {
    pub first: EntryId,
    pub entries: u64,
    pub operation: Operation,
    /// It is part of a run of entries, whose reader stays with one replica where it can.
    pub is_of_run: bool,
}

impl ReaderState {
    /// Asks the replicas of `ask.first` until `judge` takes an answer.
    pub(super) async fn ask<T, R, S>(
        &self,
        replicas: &Arc<Replicas>,
        ask: Ask,
        send: impl Fn(Arc<dyn Transport>, BookieId) -> S,
        mut judge: impl FnMut(Result<T, BookieError>) -> Result<R, BookieAnswer>,
    ) -> Result<R, BookieAnswers>
    where
        T: Send + 'static,
        S: Future<Output = Result<T, BookieError>> + Send + 'static,
    {
        let Ask { first, entries, operation, is_of_run } = ask;
        let health = &self.shared.health;
        let ensemble = replicas.nodes.ensemble(first);
        let write_set: Vec<usize> = match ensemble.is_empty() {
            true => Vec::new(),
            false => replicas.metadata.quorum.write_set(first).collect(),
        };
        let stays_with = (is_of_run && replicas.have_home).then_some(self.id);
        let order =
            health.order(write_set.iter().map(|position| &*ensemble[*position]), operation, stays_with);
        let mut untried: VecDeque<usize> = order.into_iter().map(|index| write_set[index]).collect();
        let start = |position: usize, is_hedge: bool| {
            let sent = send(self.shared.transport.clone(), ensemble[position].bookie().clone());
            let (health, replicas) = (health.clone(), replicas.clone());
            let started = Instant::now();
            count(&ensemble[position].counts.reads_sent);
            let request = Box::pin(async move {
                let node = &replicas.nodes.ensemble(first)[position];
                let pending = node.begin();
                let result = sent.await;
                let outcome =
                    result.as_ref().map_or_else(|error| node.outcome_of(error), |_| Outcome::Answered);
                health.finished(pending, node, operation, started.elapsed(), outcome);
                result
            });
            Attempt { position, started, is_hedge, is_late: false, request }
        };
        health.hedges.original(health.now(), entries);
        health.retries.original(health.now(), entries);
        let mut attempts: Vec<Attempt<T>> = Vec::with_capacity(2);
        let mut answers = BookieAnswers::default();
        let mut owed = Some(Why::First);
        let mut hedge_at = None;
        loop {
            if untried.is_empty() {
                (owed, hedge_at) = (None, None);
            }
            let mut wake_at: Option<Instant> = hedge_at;
            let mut sooner = |at: Instant| wake_at = Some(wake_at.map_or(at, |before| before.min(at)));
            if let Some(why) = owed {
                let may_go = match why {
                    Why::First | Why::NotThere => true,
                    Why::Retry(since) => {
                        // When all bookies are slow, each read would be asked twice: it waits for the request that is under
                        // way, which ends by the request timeout at the latest.
                        let must_go = attempts.is_empty() && since.elapsed() >= RETRY_WAIT_MAX;
                        must_go || health.retries.take(health.now(), entries)
                    }
                };
                if may_go {
                    owed = None;
                    let attempt = start(untried.pop_front().expect("an owed attempt has a replica"), false);
                    if let Why::First = why {
                        hedge_at =
                            health.hedge_after(operation, entries).map(|after| attempt.started + after);
                        hedge_at.into_iter().for_each(&mut sooner);
                    }
                    attempts.push(attempt);
                } else {
                    sooner(Instant::now() + RETRY_PAUSE);
                }
            }
            if attempts.is_empty() && owed.is_none() {
                // Invariant 1: each was asked and has answered.
                return Err(answers);
            }
            for attempt in attempts.iter().filter(|attempt| !attempt.is_late) {
                sooner(attempt.started + READ_TIMEOUT);
            }
            let until = wake_at.unwrap_or_else(Instant::now);
            tokio::select! {
                biased;
                (attempt, result) = next_answer(&mut attempts), if !attempts.is_empty() => {
                    let node = &ensemble[attempt.position];
                    match judge(result) {
                        Ok(read) => {
                            if attempt.is_hedge {
                                health.hedge_won(node);
                            }
                            for attempt in attempts {
                                let node = ensemble[attempt.position].clone();
                                self.shared.stragglers.adopt(attempt.go_on(node, health.clone()));
                            }
                            return Ok(read);
                        }
                        Err(answer) => {
                            let is_awaited = attempts.iter().any(|attempt| !attempt.is_late);
                            let is_missing = answer == BookieAnswer::Absent && self.lac() >= Some(first);
                            if is_missing {
                                count(&node.counts.missing_copies);
                            }
                            match &answer {
                                _ if is_awaited => {}
                                BookieAnswer::Failed(error) if *error != BookieError::Closed => {
                                    owed.get_or_insert_with(|| Why::Retry(Instant::now()));
                                }
                                _ => owed = Some(Why::NotThere),
                            }
                            answers.0.push((node.bookie().clone(), answer));
                        }
                    }
                }
                () = sleep_until(until), if wake_at.is_some() => {
                    let now = Instant::now();
                    for attempt in &mut attempts {
                        if !attempt.is_late && attempt.started + READ_TIMEOUT <= now {
                            attempt.is_late = true;
                            health.is_late(&ensemble[attempt.position]);
                        }
                    }
                    if owed.is_none() && attempts.iter().all(|attempt| attempt.is_late) {
                        owed = Some(Why::Retry(now));
                    }
                    if hedge_at.is_some_and(|at| at <= now) {
                        hedge_at = None;
                        if owed.is_none()
                            && !untried.is_empty()
                            && health.hedges.take(health.now(), entries)
                        {
                            let position = match self.shared.canaries.has(Canary::M36HedgeToTheSame) {
                                true => attempts[0].position,
                                false => untried.pop_front().expect("it was just looked at"),
                            };
                            let attempt = start(position, true);
                            count(&ensemble[position].counts.hedges_sent);
                            attempts.push(attempt);
                        }
                    }
                }
            }
        }
    }
}
