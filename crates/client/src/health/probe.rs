//! Asks bookies that are not healthy whether they answer again, and the registration whether they are still there.
//!
//! # Invariants
//! 1. One prober per client, which ends with it; nothing is sent while all bookies are healthy (C10).
//! 2. A bookie is probed at most once a second, with a read that finds nothing, over the connection that reads use.
//!
//! # Limits     a probe: [`READ_TIMEOUT`]; a list of the registered bookies every 2 s, in trouble only; for one that is not
//! registered any more ever more seldom, down to once a minute, and for half an hour

use std::sync::Arc;
use std::time::Duration;

use bindery_metadata::layout::Registration;
use bindery_types::{BookieId, LedgerId};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::condition::Event;
use super::{Node, NodeHealth, Operation, Outcome, READ_TIMEOUT};
use crate::transport::{BookieError, ReadRequest, Transport};

const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Up to so much of the interval less, so that many clients do not ask in step.
const JITTER: f64 = 0.2;
/// How long a list of the bookies may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// A ledger that nobody has: the largest id, which no sequence of ids reaches.
const NOBODYS_LEDGER: LedgerId = LedgerId::new(i64::MAX).expect("it is not negative");

/// The task. Dropped, it ends.
pub(crate) struct Prober(JoinHandle<()>);

impl Drop for Prober {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Prober {
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn start(
        health: Arc<NodeHealth>,
        transport: Arc<dyn Transport>,
        registration: Registration,
    ) -> Prober {
        Prober(tokio::spawn(run(health, transport, registration)))
    }
}

async fn run(health: Arc<NodeHealth>, transport: Arc<dyn Transport>, registration: Registration) {
    let mut refreshed_at: Option<Instant> = None;
    loop {
        let Some(interval) = health.refresh_interval() else {
            health.wake_prober.notified().await;
            continue;
        };
        let is_due = refreshed_at.is_none_or(|at| at.elapsed() >= interval);
        if is_due {
            refreshed_at = Some(Instant::now());
            match timeout(LIST_TIMEOUT, registration.list()).await {
                Ok(Ok(members)) => {
                    health.refresh(&members.into_iter().map(|member| member.bookie_id).collect());
                }
                Ok(Err(error)) => tracing::debug!(%error, "the bookies cannot be listed now"),
                Err(_) => tracing::debug!("the bookies cannot be listed in time"),
            }
        }
        // Dropped with this future: no probe outlives it.
        let mut probes = JoinSet::new();
        for node in health.to_probe() {
            probes.spawn(probe(health.clone(), transport.clone(), node));
        }
        while probes.join_next().await.is_some() {}
        let jitter = health.random.0.unit() * JITTER;
        sleep(PROBE_INTERVAL.mul_f64(1.0 - jitter)).await;
    }
}

/// Asks each bookie for what nobody has, and counts it as a read.
pub(crate) async fn ask(health: &Arc<NodeHealth>, transport: &Arc<dyn Transport>, bookies: &[BookieId]) {
    let mut requests = JoinSet::new();
    for bookie in bookies {
        let (health, transport, node) = (health.clone(), transport.clone(), health.node(bookie));
        requests.spawn(async move {
            let (pending, started) = (node.begin(), Instant::now());
            let answer = ask_one(&*transport, &node).await;
            if answer.is_none() {
                health.is_late(&node);
            }
            let outcome = match outcome_of(&node, answer.as_ref()) {
                // Here "no such ledger" is the expected answer.
                Outcome::Declined => Outcome::Answered,
                other => other,
            };
            health.finished(pending, &node, Operation::Read, started.elapsed(), outcome);
        });
    }
    while requests.join_next().await.is_some() {}
}

/// Reads what nobody has from a bookie; `None` when that takes too long.
async fn ask_one(transport: &dyn Transport, node: &Node) -> Option<Result<(), BookieError>> {
    let request = ReadRequest { ledger: NOBODYS_LEDGER, entry: None, fence: None };
    let answer = timeout(READ_TIMEOUT, transport.read(node.bookie(), request)).await;
    answer.ok().map(|answer| answer.map(drop))
}

fn outcome_of(node: &Node, answer: Option<&Result<(), BookieError>>) -> Outcome {
    match answer {
        Some(Ok(())) => Outcome::Answered,
        Some(Err(error)) => node.outcome_of(error),
        None => Outcome::TimedOut,
    }
}

async fn probe(health: Arc<NodeHealth>, transport: Arc<dyn Transport>, node: Arc<Node>) {
    let answer = ask_one(&*transport, &node).await;
    let event = match outcome_of(&node, answer.as_ref()) {
        // One that refuses answers, at least.
        Outcome::Answered | Outcome::Declined | Outcome::Rejected => Event::ProbeAnswered,
        Outcome::Failed | Outcome::Unreachable | Outcome::TimedOut => Event::ProbeFailed,
        Outcome::None => return,
    };
    if let (Event::ProbeFailed, Some(Err(error))) = (event, &answer)
        && *error != BookieError::Closed
    {
        tracing::debug!(bookie_id = %node.bookie(), %error, "a probe failed");
    }
    node.on(event, health.now());
}
